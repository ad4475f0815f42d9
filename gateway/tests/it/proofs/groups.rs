//! The group protocols, with one member.

use super::proofs;
use crate::support::{Client, Topic, topic_name};
use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::protocol::StrBytes;
use std::sync::atomic::{AtomicU32, Ordering};

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A group of its own.
fn group() -> GroupId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    GroupId(text(&format!("group-{}", NEXT.fetch_add(1, Ordering::Relaxed))))
}

/// A heartbeat of the consumer protocol.
fn consumer(group: &GroupId, member: &str, epoch: i32) -> m::ConsumerGroupHeartbeatRequest {
    m::ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group.clone())
        .with_member_id(text(member))
        .with_member_epoch(epoch)
}

/// A member of a group and its generation.
struct Member {
    group: GroupId,
    id: StrBytes,
    generation: i32,
}

async fn join(c: &mut Client, version: i16, group: GroupId) -> Member {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff"));
    let mut request = m::JoinGroupRequest::default()
        .with_group_id(group.clone())
        .with_session_timeout_ms(10_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request = request.with_rebalance_timeout_ms(20_000);
    }
    let mut joined = c.call(version, request.clone()).await;
    if version >= 4 {
        assert_eq!(joined.error_code, 79, "first an id is given out (KIP-394)");
        joined = c.call(version, request.with_member_id(joined.member_id)).await;
    }
    assert_eq!((joined.error_code, joined.leader == joined.member_id, joined.members.len()), (0, true, 1));
    Member { group, id: joined.member_id, generation: joined.generation_id }
}

async fn sync(c: &mut Client, version: i16, member: &Member) {
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(member.id.clone())
        .with_assignment(Bytes::from_static(b"all"));
    let mut request = m::SyncGroupRequest::default()
        .with_group_id(member.group.clone())
        .with_generation_id(member.generation)
        .with_member_id(member.id.clone())
        .with_assignments(vec![assignment]);
    if version >= 5 {
        request = request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range")));
    }
    let response = c.call(version, request).await;
    assert_eq!((response.error_code, &response.assignment[..]), (0, &b"all"[..]));
}

/// A member that has its assignment.
async fn member(c: &mut Client) -> Member {
    let member = join(c, 5, group()).await;
    sync(c, 3, &member).await;
    member
}

async fn leave(c: &mut Client, version: i16, member: &Member) {
    let mut request = m::LeaveGroupRequest::default().with_group_id(member.group.clone());
    match version {
        ..3 => request.member_id = member.id.clone(),
        _ => request.members = vec![MemberIdentity::default().with_member_id(member.id.clone())],
    }
    let response = c.call(version, request).await;
    assert_eq!(response.error_code, 0);
    assert!(response.members.iter().all(|row| row.error_code == 0));
}

async fn commit(c: &mut Client, version: i16, group: &GroupId, t: &Topic) {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(5)
        .with_committed_metadata(Some(text("note")));
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
    let request = m::OffsetCommitRequest::default()
        .with_group_id(group.clone())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let response = c.call(version, request).await;
    assert_eq!(response.topics[0].partitions[0].error_code, 0);
}

/// (offset, metadata) committed for partition 0.
async fn committed(c: &mut Client, version: i16, group: &GroupId, t: &Topic) -> (i64, String) {
    if version < 8 {
        let topic =
            OffsetFetchRequestTopic::default().with_name(topic_name(&t.name)).with_partition_indexes(vec![0]);
        let request =
            m::OffsetFetchRequest::default().with_group_id(group.clone()).with_topics(Some(vec![topic]));
        let row = c.call(version, request).await.topics.remove(0).partitions.remove(0);
        assert_eq!(row.error_code, 0);
        return (row.committed_offset, row.metadata.unwrap().to_string());
    }
    let topic =
        OffsetFetchRequestTopics::default().with_name(topic_name(&t.name)).with_partition_indexes(vec![0]);
    let asked =
        OffsetFetchRequestGroup::default().with_group_id(group.clone()).with_topics(Some(vec![topic]));
    let response = c.call(version, m::OffsetFetchRequest::default().with_groups(vec![asked])).await;
    let row = &response.groups[0].topics[0].partitions[0];
    assert_eq!(row.error_code, 0);
    (row.committed_offset, row.metadata.as_ref().unwrap().to_string())
}

proofs! {
    the_coordinator_is_found: FindCoordinatorRequest 0..=6, |c, version| {
        let mut request = m::FindCoordinatorRequest::default();
        match version {
            ..4 => request.key = text("g"),
            _ => request.coordinator_keys = vec![text("g"), text("h")],
        }
        let response = c.call(version, request).await;
        let found: Vec<_> = match version {
            ..4 => vec![(response.error_code, response.node_id.0)],
            _ => response.coordinators.iter().map(|row| (row.error_code, row.node_id.0)).collect(),
        };
        assert_eq!(found, vec![(0, 7); if version < 4 { 1 } else { 2 }]);
    }
    a_member_joins: JoinGroupRequest 0..=9, |c, version| {
        let member = join(c, version, group()).await;
        assert_eq!(member.generation, 1);
    }
    a_member_gets_its_assignment: SyncGroupRequest 0..=5, |c, version| {
        let member = join(c, 5, group()).await;
        sync(c, version, &member).await;
    }
    a_member_lives: HeartbeatRequest 0..=4, |c, version| {
        let member = member(c).await;
        for (generation, code) in [(member.generation, 0), (member.generation + 1, 22)] {
            let request = m::HeartbeatRequest::default()
                .with_group_id(member.group.clone())
                .with_generation_id(generation)
                .with_member_id(member.id.clone());
            assert_eq!(c.call(version, request).await.error_code, code);
        }
    }
    a_member_leaves: LeaveGroupRequest 0..=5, |c, version| {
        let member = member(c).await;
        leave(c, version, &member).await;
        let request = m::HeartbeatRequest::default()
            .with_group_id(member.group)
            .with_generation_id(member.generation)
            .with_member_id(member.id);
        assert_eq!(c.call(4, request).await.error_code, 25);
    }
    an_offset_is_committed: OffsetCommitRequest 2..=9, |c, version| {
        let (group, t) = (group(), c.topic(1, &[]).await);
        commit(c, version, &group, &t).await;
        assert_eq!(committed(c, 7, &group, &t).await, (5, "note".to_owned()));
    }
    a_committed_offset_is_told: OffsetFetchRequest 1..=9, |c, version| {
        let (group, t) = (group(), c.topic(1, &[]).await);
        assert_eq!(committed(c, version, &group, &t).await, (-1, String::new()));
        commit(c, 7, &group, &t).await;
        assert_eq!(committed(c, version, &group, &t).await, (5, "note".to_owned()));
    }
    an_offset_is_deleted: OffsetDeleteRequest 0..=0, |c, version| {
        let (group, t) = (group(), c.topic(1, &[]).await);
        commit(c, 7, &group, &t).await;
        let partitions = vec![OffsetDeleteRequestPartition::default()];
        let topic = OffsetDeleteRequestTopic::default().with_name(topic_name(&t.name)).with_partitions(partitions);
        let request = m::OffsetDeleteRequest::default().with_group_id(group.clone()).with_topics(vec![topic]);
        let response = c.call(version, request).await;
        assert_eq!((response.error_code, response.topics[0].partitions[0].error_code), (0, 0));
        assert_eq!(committed(c, 7, &group, &t).await.0, -1);
    }
    a_group_is_described: DescribeGroupsRequest 0..=6, |c, version| {
        let member = member(c).await;
        let request = m::DescribeGroupsRequest::default().with_groups(vec![member.group.clone()]);
        let response = c.call(version, request).await;
        let row = &response.groups[0];
        assert_eq!((row.error_code, row.group_state.as_str(), row.members.len()), (0, "Stable", 1));
        assert_eq!((&row.members[0].member_id, row.members[0].client_id.as_str()), (&member.id, "it"));
    }
    groups_are_listed: ListGroupsRequest 0..=5, |c, version| {
        let member = member(c).await;
        let response = c.call(version, m::ListGroupsRequest::default()).await;
        let row = response.groups.iter().find(|row| row.group_id == member.group).unwrap();
        assert_eq!((response.error_code, row.protocol_type.as_str()), (0, "consumer"));
        if version >= 4 {
            assert_eq!(row.group_state.as_str(), "Stable");
            let empty = m::ListGroupsRequest::default().with_states_filter(vec![text("Empty")]);
            let filtered = c.call(version, empty).await;
            assert!(filtered.groups.iter().all(|row| row.group_id != member.group));
        }
    }
    a_group_is_deleted: DeleteGroupsRequest 0..=2, |c, version| {
        let member = member(c).await;
        let request = m::DeleteGroupsRequest::default().with_groups_names(vec![member.group.clone()]);
        assert_eq!(c.call(version, request.clone()).await.results[0].error_code, 68);
        leave(c, 5, &member).await;
        assert_eq!(c.call(version, request).await.results[0].error_code, 0);
    }
    a_consumer_joins_stays_and_leaves: ConsumerGroupHeartbeatRequest 0..=1, |c, version| {
        let (group, t) = (group(), c.topic(2, &[]).await);
        let id = if version >= 1 { "own" } else { "" };
        let joining = consumer(&group, id, 0)
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(vec![topic_name(&t.name)]))
            .with_topic_partitions(Some(vec![]));
        let joined = c.call(version, joining.clone()).await;
        assert_eq!((joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms), (0, 1, 500));
        let topics = joined.assignment.expect("what it shall read").topic_partitions;
        assert_eq!((topics[0].topic_id, topics[0].partitions.as_slice()), (t.id, &[0, 1][..]));
        let id = joined.member_id.expect("its id, made here for version 0").to_string();
        let stays = c.call(version, consumer(&group, &id, 1)).await;
        assert_eq!((stays.error_code, stays.member_epoch, stays.assignment), (0, 1, None));
        assert_eq!(c.call(version, consumer(&group, &id, -1)).await.member_epoch, -1);
        let gone = c.call(version, consumer(&group, &id, 1)).await;
        assert_eq!((gone.error_code, gone.member_epoch, gone.member_id), (25, 0, None));
        if version >= 1 {
            assert_eq!(c.call(version, consumer(&group, "", 0)).await.error_code, 42);
            let pattern = joining.with_subscribed_topic_regex(Some(text("[")));
            assert_eq!(c.call(version, pattern).await.error_code, 128);
        }
    }
    a_consumer_group_is_described: ConsumerGroupDescribeRequest 0..=1, |c, version| {
        let (group, t) = (group(), c.topic(2, &[]).await);
        let joining = consumer(&group, "own", 0)
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(vec![topic_name(&t.name)]))
            .with_topic_partitions(Some(vec![]));
        c.call(1, joining).await;
        let groups = vec![group.clone(), GroupId(text("nobody's"))];
        let described = c.call(version, m::ConsumerGroupDescribeRequest::default().with_group_ids(groups)).await;
        let row = &described.groups[0];
        assert_eq!((row.error_code, row.group_state.as_str(), row.group_epoch), (0, "Stable", 1));
        assert_eq!(row.assignor_name.as_str(), "range-scoped");
        let member = &row.members[0];
        assert_eq!((member.member_id.as_str(), member.member_type), ("own", if version >= 1 { 1 } else { -1 }));
        let topics = &member.assignment.topic_partitions;
        assert_eq!((&topics[0].topic_name, topics[0].partitions.as_slice()), (&topic_name(&t.name), &[0, 1][..]));
        assert_eq!(described.groups[1].error_code, 69);
    }
}
