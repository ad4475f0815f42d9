//! TxnOffsetCommit (28), versions 0 to 5: offsets that count once their transaction commits.
//!
//! v2: leader epochs. v3: the member and its generation (KIP-447). v4: TRANSACTION_ABORTABLE. v5: the group's partition is
//! added to the transaction by this request (KIP-890); before it must have been added.

use super::words::{GROUP_DENIED, TRANSACTION_DENIED, optional};
use super::{Context, Operation, Resource, places};
use crate::groups::{Caller, Commit, CommitPosition, GroupError, Key, PendingCommit};
use crate::protocol::dispatch::Close;
use crate::transactions::{Admission, Producer, TxnError};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use rangeway_core::api::Catalog;

/// Commits what can be committed; one code per partition.
pub async fn handle(
    context: Context,
    request: TxnOffsetCommitRequest,
) -> Result<TxnOffsetCommitResponse, Close> {
    if !context.authorize(Operation::Write, Resource::Transaction(&request.transactional_id)) {
        return Ok(respond(&request, || TRANSACTION_DENIED));
    }
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(respond(&request, || GROUP_DENIED));
    }
    let may_read = |topic: &str| context.authorize(Operation::Read, Resource::Topic(topic));
    let places = place(&context.api.catalog(), &request, may_read);
    if request.group_id.is_empty() {
        return Ok(respond(&request, || GroupError::InvalidGroupId.code()));
    }
    if places.iter().all(Result::is_err) {
        return Ok(answer(&request, &places, Ok(Vec::new())));
    }
    let answers = commit(&context, &request, &places).await;
    Ok(answer(&request, &places, answers))
}

/// One answer per partition that has a place, in order; or one code for all.
async fn commit(
    context: &Context,
    request: &TxnOffsetCommitRequest,
    places: &[Result<Key, i16>],
) -> Result<Vec<Result<(), GroupError>>, i16> {
    let at = context.shared.groups.place(&request.group_id).await.map_err(GroupError::code)?;
    let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
    let admission = if context.version >= 5 { Admission::ByWriting } else { Admission::Added };
    let (id, place) = (&request.transactional_id, (at.topic, at.partition));
    let admitted = context.shared.transactions.admit_offsets(id, producer, place, admission).await;
    // Held until the answer is there: the transaction's end goes behind it.
    let (_admitted, number) = admitted.map_err(|error| refused(error, context.version))?;
    let partitions = request.topics.iter().flat_map(|t| &t.partitions);
    let positions = partitions.zip(places).filter_map(|(p, place)| Some(((*place).ok()?, position(p))));
    let commit = Commit {
        caller: Caller {
            group: request.group_id.to_string(),
            member_id: request.member_id.to_string(),
            instance_id: optional(request.group_instance_id.as_ref()),
            generation: request.generation_id,
        },
        says_group_not_found: false,
        retention_ms: None,
        positions: positions.collect(),
    };
    let asked = PendingCommit { producer_id: producer.id, number, commit };
    context.shared.groups.commit_pending(asked).await.map_err(GroupError::code)
}

/// Codes that each version's clients act on rightly.
fn refused(error: TxnError, version: i16) -> i16 {
    match error {
        TxnError::NotAdded if version < 4 => TxnError::InvalidState.code(),
        // The group's coordinator is the right one: the same question again, a little later.
        TxnError::Concurrent if version < 5 => TxnError::Loading.code(),
        TxnError::Loading | TxnError::NotAvailable | TxnError::NotCoordinator => TxnError::Loading.code(),
        other => other.code_before_fenced(),
    }
}

/// Where each partition of the request goes, in order: a key, or a code at once.
fn place(
    catalog: &Catalog,
    request: &TxnOffsetCommitRequest,
    may_read: impl Fn(&str) -> bool,
) -> Vec<Result<Key, i16>> {
    let topics = request.topics.iter();
    let topics =
        topics.map(|t| (t.name.as_str(), t.partitions.iter().map(|partition| partition.partition_index)));
    places::find(catalog, topics, may_read)
}

fn position(partition: &TxnOffsetCommitRequestPartition) -> CommitPosition {
    CommitPosition {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: optional(partition.committed_metadata.as_ref()).unwrap_or_default(),
    }
}

fn answer(
    request: &TxnOffsetCommitRequest,
    places: &[Result<Key, i16>],
    answers: Result<Vec<Result<(), GroupError>>, i16>,
) -> TxnOffsetCommitResponse {
    respond(request, places::codes(places, answers))
}

/// The request's shape with a code for each partition, asked for in order.
fn respond(request: &TxnOffsetCommitRequest, mut code: impl FnMut() -> i16) -> TxnOffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code())
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
    use kafka_protocol::messages::{GroupId, ProducerId, TopicName, TransactionalId};

    fn sent(version: i16) -> TxnOffsetCommitRequest {
        let partition = |n| {
            let p =
                TxnOffsetCommitRequestPartition::default().with_partition_index(n).with_committed_offset(40);
            if version >= 2 { p.with_committed_leader_epoch(5) } else { p }
        };
        let topic = |name, partitions: &[i32]| {
            TxnOffsetCommitRequestTopic::default()
                .with_name(TopicName(wire(name)))
                .with_partitions(partitions.iter().map(|n| partition(*n)).collect())
        };
        let sent = TxnOffsetCommitRequest::default()
            .with_transactional_id(TransactionalId(wire("x")))
            .with_group_id(GroupId(wire("g")))
            .with_producer_id(ProducerId(7))
            .with_producer_epoch(1)
            .with_topics(vec![topic("none", &[0]), topic("t", &[0, 9, 1])]);
        match version {
            3.. => {
                sent.with_generation_id(4).with_member_id(wire("m")).with_group_instance_id(Some(wire("i")))
            }
            _ => sent,
        }
    }

    #[test]
    fn every_version_round_trips_and_answers_each_partition() {
        for version in 0..=5 {
            let sent = request(sent(version), version, 3);
            assert_eq!(sent.generation_id, if version >= 3 { 4 } else { -1 });
            let places = place(&catalog(&[("t", 2)]), &sent, |_| true);
            let codes = |answers| {
                let read = response(answer(&sent, &places, answers), version);
                let codes =
                    |t: &TxnOffsetCommitResponseTopic| t.partitions.iter().map(|p| p.error_code).collect();
                read.topics.iter().map(codes).collect::<Vec<Vec<i16>>>()
            };
            let partly = Ok(vec![Ok(()), Err(GroupError::MetadataTooLarge)]);
            assert_eq!(codes(partly), vec![vec![3], vec![0, 3, 12]]);
            assert_eq!(codes(Err(22)), vec![vec![3], vec![22, 3, 22]]);
            assert_eq!(refused(TxnError::Fenced, version), 47);
            assert_eq!(refused(TxnError::NotAdded, version), if version >= 4 { 120 } else { 48 });
        }
    }

    #[test]
    fn a_topic_that_may_not_be_read_is_denied() {
        let places = place(&catalog(&[("t", 2)]), &sent(5), |topic| topic != "t");
        assert_eq!(places, vec![Err(3), Err(29), Err(29), Err(29)]);
    }
}
