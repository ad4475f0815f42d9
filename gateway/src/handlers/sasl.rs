//! SaslHandshake (17), versions 0 and 1, and SaslAuthenticate (36), versions 0 to 2.
//!
//! No listener takes SASL. As Kafka's listeners without it, both are answered ILLEGAL_SASL_STATE, so that a client which is set
//! up for SASL is told what is wrong, and its connection stays as it is.

use super::Context;
use super::words::wire;
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError::IllegalSaslState;
use kafka_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};

/// Refuses; there is no mechanism to name.
pub async fn handshake(_: Context, _: SaslHandshakeRequest) -> Result<SaslHandshakeResponse, Close> {
    Ok(SaslHandshakeResponse::default().with_error_code(IllegalSaslState.code()))
}

/// Refuses.
pub async fn authenticate(_: Context, _: SaslAuthenticateRequest) -> Result<SaslAuthenticateResponse, Close> {
    let why = "SaslAuthenticate request received on a listener that does not take SASL";
    Ok(SaslAuthenticateResponse::default()
        .with_error_code(IllegalSaslState.code())
        .with_error_message(Some(wire(why))))
}
