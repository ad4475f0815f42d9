//! CreateDelegationToken (38) and DescribeDelegationToken (41), versions 1 to 3; RenewDelegationToken (39) and
//! ExpireDelegationToken (40), versions 1 and 2.
//!
//! v2: flexible. v3: requesters (KIP-373). A token is for somebody who authenticated; on a listener where nobody does, all
//! are refused, as Kafka does.

use super::Context;
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError::DelegationTokenRequestNotAllowed;
use kafka_protocol::messages::{
    CreateDelegationTokenRequest, CreateDelegationTokenResponse, DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse, ExpireDelegationTokenRequest, ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest, RenewDelegationTokenResponse,
};
use kafka_protocol::protocol::StrBytes;

/// Stands for a time that there is not.
const NEVER: i64 = -1;

/// Refuses.
pub async fn create(
    context: Context,
    _: CreateDelegationTokenRequest,
) -> Result<CreateDelegationTokenResponse, Close> {
    let (kind, name) = context.principal.name.split_once(':').unwrap_or(("User", "ANONYMOUS"));
    let (kind, name) = (StrBytes::from_string(kind.to_owned()), StrBytes::from_string(name.to_owned()));
    let response = CreateDelegationTokenResponse::default()
        .with_error_code(DelegationTokenRequestNotAllowed.code())
        .with_principal_type(kind.clone())
        .with_principal_name(name.clone())
        .with_issue_timestamp_ms(NEVER)
        .with_expiry_timestamp_ms(NEVER)
        .with_max_timestamp_ms(NEVER);
    if context.version < 3 {
        return Ok(response);
    }
    Ok(response.with_token_requester_principal_type(kind).with_token_requester_principal_name(name))
}

/// Refuses.
pub async fn renew(
    _: Context,
    _: RenewDelegationTokenRequest,
) -> Result<RenewDelegationTokenResponse, Close> {
    Ok(RenewDelegationTokenResponse::default()
        .with_error_code(DelegationTokenRequestNotAllowed.code())
        .with_expiry_timestamp_ms(NEVER))
}

/// Refuses.
pub async fn expire(
    _: Context,
    _: ExpireDelegationTokenRequest,
) -> Result<ExpireDelegationTokenResponse, Close> {
    Ok(ExpireDelegationTokenResponse::default()
        .with_error_code(DelegationTokenRequestNotAllowed.code())
        .with_expiry_timestamp_ms(NEVER))
}

/// Refuses.
pub async fn describe(
    _: Context,
    _: DescribeDelegationTokenRequest,
) -> Result<DescribeDelegationTokenResponse, Close> {
    Ok(DescribeDelegationTokenResponse::default().with_error_code(DelegationTokenRequestNotAllowed.code()))
}
