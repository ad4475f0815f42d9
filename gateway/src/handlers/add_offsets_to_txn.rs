//! AddOffsetsToTxn (25), versions 0 to 4: a group's partition of the groups' topic takes part in a transaction.
//!
//! v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v3: flexible. v4: TRANSACTION_ABORTABLE.

use super::words::{GROUP_DENIED, TRANSACTION_DENIED};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::transactions::{Add, Producer, Rules, TxnError};
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

/// Adds it.
pub async fn handle(
    context: Context,
    request: AddOffsetsToTxnRequest,
) -> Result<AddOffsetsToTxnResponse, Close> {
    Ok(AddOffsetsToTxnResponse::default().with_error_code(code(&context, &request).await))
}

async fn code(context: &Context, request: &AddOffsetsToTxnRequest) -> i16 {
    if !context.authorize(Operation::Write, Resource::Transaction(&request.transactional_id)) {
        return TRANSACTION_DENIED;
    }
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return GROUP_DENIED;
    }
    let place = match context.shared.groups.place(&request.group_id).await {
        Ok(at) => (at.topic, at.partition),
        Err(error) => return error.code(),
    };
    let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
    let id = request.transactional_id.to_string();
    let added = context.shared.transactions.add(Add { id, producer, places: vec![place], rules: Rules::V1 });
    added.await.map_or_else(|error| refused(error, context.version), |_| 0)
}

fn refused(error: TxnError, version: i16) -> i16 {
    if version >= 2 { error.code() } else { error.code_before_fenced() }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::{GroupId, ProducerId, TransactionalId};

    #[test]
    fn every_version_round_trips() {
        for version in 0..=4 {
            let sent = AddOffsetsToTxnRequest::default()
                .with_transactional_id(TransactionalId(wire("t")))
                .with_producer_id(ProducerId(7))
                .with_producer_epoch(3)
                .with_group_id(GroupId(wire("g")));
            assert_eq!(request(sent.clone(), version, 3), sent);
            let answer =
                AddOffsetsToTxnResponse::default().with_error_code(refused(TxnError::Fenced, version));
            assert_eq!(response(answer, version).error_code, if version >= 2 { 90 } else { 47 });
        }
    }
}
