//! ConsumerGroupHeartbeat (68), versions 0 and 1 (KIP-848). A member joins, stays and leaves with it, says what it owns
//! and learns what it shall own.
//!
//! v1: members make their ids; topics by pattern. What a heartbeat leaves out (null, -1) did not change.

use super::words::{GROUP_DENIED, TOPIC_DENIED, optional, wire};
use super::{ClientInfo, Context, Operation, Resource};
use crate::groups::{Beat, BeatRefused, Beaten, Partitions, by_topic};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use rangeway_core::types::TopicId;
use uuid::Uuid;

/// One heartbeat.
pub async fn handle(
    context: Context,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<ConsumerGroupHeartbeatResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(refused(GROUP_DENIED, "not allowed to read with this group"));
    }
    let topics = request.subscribed_topic_names.iter().flatten();
    let mut denied = topics.filter(|topic| !context.authorize(Operation::Describe, Resource::Topic(topic)));
    if denied.next().is_some() {
        return Ok(refused(TOPIC_DENIED, "not allowed to see a topic that is subscribed to"));
    }
    let beat = ask(context.version, &context.client, &request);
    Ok(respond(context.shared.groups.beat(beat).await))
}

fn ask(version: i16, client: &ClientInfo, request: &ConsumerGroupHeartbeatRequest) -> Beat {
    let topics = request.subscribed_topic_names.as_ref();
    let owned = request.topic_partitions.as_ref();
    Beat {
        group: request.group_id.to_string(),
        member_id: request.member_id.to_string(),
        fresh_id: Uuid::new_v4().to_string(),
        makes_its_id: version >= 1,
        epoch: request.member_epoch,
        instance_id: optional(request.instance_id.as_ref()),
        rack_id: optional(request.rack_id.as_ref()),
        client_id: client.id().to_owned(),
        client_host: format!("/{}", client.connection.peer.ip().to_canonical()),
        rebalance_timeout_ms: u32::try_from(request.rebalance_timeout_ms).ok(),
        topics: topics.map(|topics| topics.iter().map(|topic| topic.to_string()).collect()),
        regex: optional(request.subscribed_topic_regex.as_ref()),
        assignor: optional(request.server_assignor.as_ref()),
        owned: owned.map(|topics| {
            by_topic(topics.iter().flat_map(|topic| {
                let id = TopicId(topic.topic_id);
                topic.partitions.iter().map(move |partition| (id, *partition))
            }))
        }),
    }
}

fn respond(answer: Result<Beaten, BeatRefused>) -> ConsumerGroupHeartbeatResponse {
    let beaten = match answer {
        Ok(beaten) => beaten,
        Err(BeatRefused { error, why }) => return refused(error.code(), &why),
    };
    ConsumerGroupHeartbeatResponse::default()
        .with_member_id(Some(wire(beaten.member_id)))
        .with_member_epoch(beaten.epoch)
        .with_heartbeat_interval_ms(beaten.heartbeat_interval_ms)
        .with_assignment(beaten.assignment.map(assignment))
}

fn refused(code: i16, why: &str) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse::default().with_error_code(code).with_error_message(Some(wire(why)))
}

fn assignment(partitions: Partitions) -> Assignment {
    let topics = partitions.into_iter().map(|(topic, of)| {
        TopicPartitions::default().with_topic_id(topic.0).with_partitions(of.into_iter().collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{client, request, response, topic_id};
    use super::*;
    use crate::groups::GroupError;
    use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions as Owned;
    use kafka_protocol::messages::{GroupId, TopicName};

    #[test]
    fn every_version_asks_for_what_was_sent() {
        for version in 0..=1 {
            let owned = Owned::default().with_topic_id(topic_id("t").0).with_partitions(vec![3, 1]);
            let mut sent = ConsumerGroupHeartbeatRequest::default()
                .with_group_id(GroupId(wire("g")))
                .with_member_id(wire("m"))
                .with_member_epoch(4)
                .with_instance_id(Some(wire("i")))
                .with_rack_id(Some(wire("r")))
                .with_rebalance_timeout_ms(5000)
                .with_subscribed_topic_names(Some(vec![TopicName(wire("t"))]))
                .with_server_assignor(Some(wire("uniform")))
                .with_topic_partitions(Some(vec![owned]));
            if version >= 1 {
                sent = sent.with_subscribed_topic_regex(Some(wire("t.*")));
            }
            let beat = ask(version, &client(), &request(sent, version, 0));
            assert_eq!((beat.group.as_str(), beat.member_id.as_str(), beat.epoch), ("g", "m", 4));
            assert_eq!((beat.instance_id.as_deref(), beat.rack_id.as_deref()), (Some("i"), Some("r")));
            assert_eq!((beat.makes_its_id, beat.regex.is_some()), (version >= 1, version >= 1));
            assert_eq!((beat.rebalance_timeout_ms, beat.topics), (Some(5000), Some(vec!["t".to_owned()])));
            assert_eq!(beat.owned, Some(by_topic([(topic_id("t"), 1), (topic_id("t"), 3)])));

            let sent = ConsumerGroupHeartbeatRequest::default().with_member_epoch(4);
            let beat = ask(version, &client(), &request(sent, version, 0));
            assert_eq!((beat.rebalance_timeout_ms, beat.topics, beat.owned), (None, None, None));
            assert_eq!((beat.instance_id, beat.regex, beat.assignor), (None, None, None));
        }
    }

    #[test]
    fn every_version_answers_the_assignment_and_a_refusal() {
        for version in 0..=1 {
            let mut beaten = Beaten {
                member_id: "m".into(),
                epoch: 5,
                heartbeat_interval_ms: 500,
                assignment: Some(by_topic([(topic_id("t"), 1), (topic_id("t"), 3)])),
            };
            let read = response(respond(Ok(beaten.clone())), version);
            assert_eq!((read.error_code, read.member_epoch, read.heartbeat_interval_ms), (0, 5, 500));
            let topics = read.assignment.expect("told").topic_partitions;
            assert_eq!((topics[0].topic_id, topics[0].partitions.as_slice()), (topic_id("t").0, &[1, 3][..]));
            beaten.assignment = None;
            assert_eq!(response(respond(Ok(beaten)), version).assignment, None);

            let read = response(respond(Err(GroupError::FencedMemberEpoch.into())), version);
            assert_eq!((read.error_code, read.member_epoch, read.member_id), (110, 0, None));
            assert!(read.error_message.is_some());
        }
    }
}
