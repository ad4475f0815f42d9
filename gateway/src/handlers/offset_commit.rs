//! OffsetCommit (8), versions 2 to 9. Answered when the offsets are durable.
//!
//! v2 to v4: a retention time. v6: leader epochs. v7: `group.instance.id`. v9: an absent group is named (KIP-848).
//! Topics are found by name here; what is kept is their id, so that a topic made anew starts without offsets.

use super::words::{GROUP_DENIED, optional};
use super::{Context, Operation, Resource, places};
use crate::groups::{Caller, Commit, CommitPosition, GroupError, Key};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};
use rangeway_core::api::Catalog;

/// Commits what can be committed; one code per partition.
pub async fn handle(context: Context, request: OffsetCommitRequest) -> Result<OffsetCommitResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(respond(&request, || GROUP_DENIED));
    }
    let catalog = context.api.catalog();
    let may_read = |topic: &str| context.authorize(Operation::Read, Resource::Topic(topic));
    let places = place(&catalog, &request, may_read);
    let commit = ask(context.version, &request, &places);
    if commit.positions.is_empty() {
        // Nothing of it can be kept: as Kafka, the group is not asked.
        return Ok(answer(&request, &places, Ok(Vec::new())));
    }
    let answers = context.shared.groups.commit(commit).await;
    Ok(answer(&request, &places, answers))
}

/// Where each partition of the request goes, in order: a key, or a code at once.
fn place(
    catalog: &Catalog,
    request: &OffsetCommitRequest,
    may_read: impl Fn(&str) -> bool,
) -> Vec<Result<Key, i16>> {
    let topics = request.topics.iter();
    let topics =
        topics.map(|t| (t.name.as_str(), t.partitions.iter().map(|partition| partition.partition_index)));
    places::find(catalog, topics, may_read)
}

fn ask(version: i16, request: &OffsetCommitRequest, places: &[Result<Key, i16>]) -> Commit {
    let partitions = request.topics.iter().flat_map(|t| &t.partitions);
    let positions = partitions.zip(places).filter_map(|(p, place)| Some(((*place).ok()?, position(p))));
    Commit {
        caller: Caller {
            group: request.group_id.to_string(),
            member_id: request.member_id.to_string(),
            instance_id: optional(request.group_instance_id.as_ref()),
            generation: request.generation_id_or_member_epoch,
        },
        says_group_not_found: version >= 9,
        retention_ms: Some(request.retention_time_ms).filter(|ms| version <= 4 && *ms >= 0),
        positions: positions.collect(),
    }
}

fn position(partition: &OffsetCommitRequestPartition) -> CommitPosition {
    CommitPosition {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: optional(partition.committed_metadata.as_ref()).unwrap_or_default(),
    }
}

fn answer(
    request: &OffsetCommitRequest,
    places: &[Result<Key, i16>],
    answers: Result<Vec<Result<(), GroupError>>, GroupError>,
) -> OffsetCommitResponse {
    respond(request, places::codes(places, answers.map_err(GroupError::code)))
}

/// The request's shape with a code for each partition, asked for in order.
fn respond(request: &OffsetCommitRequest, mut code: impl FnMut() -> i16) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code())
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, request, response, topic_id};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestTopic;
    use kafka_protocol::messages::{GroupId, TopicName};

    fn sent(version: i16) -> OffsetCommitRequest {
        let partition = |n| {
            let mut p = OffsetCommitRequestPartition::default()
                .with_partition_index(n)
                .with_committed_offset(40 + i64::from(n))
                .with_committed_metadata(Some(wire("m")));
            if version >= 6 {
                p = p.with_committed_leader_epoch(5);
            }
            p
        };
        let topic = |name, partitions: &[i32]| {
            OffsetCommitRequestTopic::default()
                .with_name(TopicName(wire(name)))
                .with_partitions(partitions.iter().map(|n| partition(*n)).collect())
        };
        let mut sent = OffsetCommitRequest::default()
            .with_group_id(GroupId(wire("g")))
            .with_generation_id_or_member_epoch(4)
            .with_member_id(wire("m"))
            .with_topics(vec![topic("unknown", &[0]), topic("t", &[0, 9, 1])]);
        if version <= 4 {
            sent = sent.with_retention_time_ms(1000);
        }
        if version >= 7 {
            sent = sent.with_group_instance_id(Some(wire("i")));
        }
        sent
    }

    #[test]
    fn every_version_keeps_what_it_can_and_answers_each_partition() {
        let catalog = catalog(&[("t", 2)]);
        for version in 2..=9 {
            let sent = request(sent(version), version, 8);
            let places = place(&catalog, &sent, |_| true);
            let commit = ask(version, &sent, &places);
            assert_eq!(commit.positions.len(), 2);
            assert_eq!(commit.positions[1].0, (topic_id("t"), 1));
            let expected = CommitPosition {
                offset: 41,
                leader_epoch: if version >= 6 { 5 } else { -1 },
                metadata: "m".into(),
            };
            assert_eq!(commit.positions[1].1, expected);
            assert_eq!(commit.retention_ms, (version <= 4).then_some(1000));
            assert_eq!(commit.caller.instance_id.is_some(), version >= 7);
            assert_eq!(commit.says_group_not_found, version >= 9);

            let codes = |answers| {
                let read = response(answer(&sent, &places, answers), version);
                let codes =
                    |t: &OffsetCommitResponseTopic| t.partitions.iter().map(|p| p.error_code).collect();
                read.topics.iter().map(codes).collect::<Vec<Vec<i16>>>()
            };
            let partly = Ok(vec![Ok(()), Err(GroupError::MetadataTooLarge)]);
            assert_eq!(codes(partly), vec![vec![3], vec![0, 3, 12]]);
            assert_eq!(codes(Err(GroupError::IllegalGeneration)), vec![vec![3], vec![22, 3, 22]]);
        }
    }

    #[test]
    fn a_topic_that_may_not_be_read_is_denied() {
        let places = place(&catalog(&[("t", 2)]), &sent(9), |topic| topic != "t");
        assert_eq!(places, vec![Err(3), Err(29), Err(29), Err(29)]);
    }
}
