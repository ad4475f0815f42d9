//! InitProducerId (22), versions 0 to 5.
//!
//! v3: the producer's own id and epoch (KIP-360). v4: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v5: KIP-890.
//! With a transactional id its coordinator answers: it fences whoever wrote under it before.

use super::words::TRANSACTION_DENIED;
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::transactions::{Init, Producer, TxnError};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};

/// Gives out a producer id.
pub async fn handle(
    context: Context,
    request: InitProducerIdRequest,
) -> Result<InitProducerIdResponse, Close> {
    let Some(id) = &request.transactional_id else { return Ok(idempotent(&context).await) };
    if !context.authorize(Operation::Write, Resource::Transaction(id)) {
        return Ok(failed(TRANSACTION_DENIED));
    }
    let expected = match expected(&request) {
        Ok(expected) if !id.is_empty() => expected,
        _ => return Ok(failed(ResponseError::InvalidRequest.code())),
    };
    let timeout_ms = request.transaction_timeout_ms;
    let init = Init { id: id.to_string(), timeout_ms, expected, fresh_id: None };
    Ok(match context.shared.transactions.init(init).await {
        Ok(producer) => answer(producer),
        Err(error) => failed(code(error, context.version)),
    })
}

/// Who the client says it is; `Err` when it says half of it.
fn expected(request: &InitProducerIdRequest) -> Result<Option<Producer>, ()> {
    match (request.producer_id.0, request.producer_epoch) {
        (-1, -1) => Ok(None),
        (-1, _) | (_, -1) => Err(()),
        (id, epoch) => Ok(Some(Producer { id, epoch })),
    }
}

fn code(error: TxnError, version: i16) -> i16 {
    if version >= 4 { error.code() } else { error.code_before_fenced() }
}

async fn idempotent(context: &Context) -> InitProducerIdResponse {
    if !context.may_be_idempotent() {
        return failed(ResponseError::ClusterAuthorizationFailed.code());
    }
    match context.api.new_producer_id().await {
        Ok(id) => answer(Producer { id, epoch: 0 }),
        Err(error) => {
            tracing::warn!(%error, "no producer id");
            // Clients take this one as "ask again"; other topic codes mean nothing here.
            let code = match error {
                rangeway_core::error::TopicError::Control(_) => ResponseError::CoordinatorNotAvailable,
                other => errors::topic(&other),
            };
            failed(code.code())
        }
    }
}

fn answer(producer: Producer) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_producer_id(ProducerId(producer.id))
        .with_producer_epoch(producer.epoch)
}

fn failed(code: i16) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(code)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::TransactionalId;

    #[test]
    fn every_version_says_who_it_is_as_far_as_it_can() {
        for version in 0..=5 {
            let mut sent = InitProducerIdRequest::default()
                .with_transactional_id(Some(TransactionalId(wire("t"))))
                .with_transaction_timeout_ms(1000)
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1);
            if version >= 3 {
                sent = sent.with_producer_id(ProducerId(7)).with_producer_epoch(2);
            }
            let read = request(sent, version, 2);
            let producer = Producer { id: 7, epoch: 2 };
            assert_eq!(expected(&read), Ok((version >= 3).then_some(producer)));
            let answered = response(answer(producer), version);
            assert_eq!((answered.producer_id.0, answered.producer_epoch), (7, 2));
            let refused = response(failed(code(TxnError::Fenced, version)), version);
            assert_eq!(refused.error_code, if version >= 4 { 90 } else { 47 });
        }
        let half = InitProducerIdRequest::default().with_producer_id(ProducerId(7)).with_producer_epoch(-1);
        assert_eq!(expected(&half), Err(()));
    }
}
