//! EndTxn (26), versions 0 to 5. Answered when the outcome is durable; markers follow.
//!
//! v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v3: flexible. v4: TRANSACTION_ABORTABLE. v5: the epoch is raised
//! with each transaction, and answered (KIP-890).

use super::words::TRANSACTION_DENIED;
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::transactions::{End, Producer, Rules, TxnError};
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ProducerId};

/// Commits or aborts.
pub async fn handle(context: Context, request: EndTxnRequest) -> Result<EndTxnResponse, Close> {
    if !context.authorize(Operation::Write, Resource::Transaction(&request.transactional_id)) {
        return Ok(failed(TRANSACTION_DENIED));
    }
    let end = End {
        id: request.transactional_id.to_string(),
        producer: Producer { id: request.producer_id.0, epoch: request.producer_epoch },
        commit: request.committed,
        rules: rules(context.version),
        fresh_id: None,
    };
    Ok(match context.shared.transactions.end(end).await {
        Ok(producer) => answer(producer, context.version),
        Err(error) => failed(code(error, context.version)),
    })
}

fn rules(version: i16) -> Rules {
    if version >= 5 { Rules::V2 } else { Rules::V1 }
}

fn answer(producer: Producer, version: i16) -> EndTxnResponse {
    match rules(version) {
        Rules::V1 => failed(0),
        Rules::V2 => EndTxnResponse::default()
            .with_producer_id(ProducerId(producer.id))
            .with_producer_epoch(producer.epoch),
    }
}

fn failed(code: i16) -> EndTxnResponse {
    EndTxnResponse::default().with_error_code(code).with_producer_id(ProducerId(-1)).with_producer_epoch(-1)
}

fn code(error: TxnError, version: i16) -> i16 {
    if version >= 2 { error.code() } else { error.code_before_fenced() }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::TransactionalId;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=5 {
            let sent = EndTxnRequest::default()
                .with_transactional_id(TransactionalId(wire("t")))
                .with_producer_id(ProducerId(7))
                .with_producer_epoch(3)
                .with_committed(true);
            assert_eq!(request(sent.clone(), version, 3), sent);
            let read = response(answer(Producer { id: 7, epoch: 4 }, version), version);
            let next = (read.producer_id.0, read.producer_epoch);
            assert_eq!(next, if version >= 5 { (7, 4) } else { (-1, -1) });
            let refused = response(failed(code(TxnError::Fenced, version)), version);
            assert_eq!(refused.error_code, if version >= 2 { 90 } else { 47 });
        }
    }
}
