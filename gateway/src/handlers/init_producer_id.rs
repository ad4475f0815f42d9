//! InitProducerId (22), versions 0 to 5, for idempotent producers.
//!
//! v2: flexible. v3: the producer's present id and epoch (KIP-360). v4: fenced error code. v5: KIP-890's.
//! Transactions are not served: their APIs are not listed, and a transactional id is answered with UNSUPPORTED_VERSION.
//! Clients do not come this far: FindCoordinator refuses them first.

use super::Context;
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};

/// Gives out a producer id.
pub async fn handle(
    context: Context,
    request: InitProducerIdRequest,
) -> Result<InitProducerIdResponse, Close> {
    let failed = |code: ResponseError| {
        InitProducerIdResponse::default()
            .with_error_code(code.code())
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    };
    match &request.transactional_id {
        Some(id) if id.is_empty() => return Ok(failed(ResponseError::InvalidRequest)),
        Some(_) => return Ok(failed(ResponseError::UnsupportedVersion)),
        None => {}
    }
    Ok(match context.api.new_producer_id().await {
        Ok(id) => InitProducerIdResponse::default().with_producer_id(ProducerId(id)).with_producer_epoch(0),
        Err(error) => {
            tracing::warn!(%error, "no producer id");
            // Clients take this one as "ask again"; other topic codes mean nothing here.
            let code = match error {
                rangeway_core::error::TopicError::Control(_) => ResponseError::CoordinatorNotAvailable,
                other => errors::topic(&other),
            };
            failed(code)
        }
    })
}
