//! Groups of the consumer protocol over the wire (KIP-848).

use crate::support::{Client, Topic, run, topic_name};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest, DescribeGroupsRequest, GroupId, ListGroupsRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, TransactionalId, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn beat(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
}

fn joining(group: &str, member: &str, topic: &Topic) -> ConsumerGroupHeartbeatRequest {
    beat(group, member, 0)
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(vec![topic_name(&topic.name)]))
        .with_topic_partitions(Some(vec![]))
}

fn owning(topic: &Topic, partitions: &[i32]) -> Option<Vec<TopicPartitions>> {
    Some(vec![TopicPartitions::default().with_topic_id(topic.id).with_partitions(partitions.to_vec())])
}

/// Partitions of the one topic; `None` when nothing was told.
fn told(answer: &ConsumerGroupHeartbeatResponse) -> Option<Vec<i32>> {
    let topics = &answer.assignment.as_ref()?.topic_partitions;
    Some(topics.iter().flat_map(|t| t.partitions.clone()).collect())
}

async fn commit(c: &mut Client, group: &str, member: &str, epoch: i32, topic: &Topic, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(&topic.name))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(vec![topic]);
    c.call(9, request).await.topics[0].partitions[0].error_code
}

#[test]
fn two_members_share_a_topic_and_commit_in_their_epochs() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(3, &[]).await;
        let group = "it-consumers";
        let a = c.call(1, joining(group, "a", &t)).await;
        assert_eq!((a.error_code, a.member_epoch, told(&a)), (0, 1, Some(vec![0, 1, 2])));
        assert_eq!((a.member_id.as_deref(), a.heartbeat_interval_ms), (Some("a"), 500));
        let b = c.call(1, joining(group, "b", &t)).await;
        assert_eq!((b.error_code, b.member_epoch, told(&b)), (0, 2, Some(vec![])));
        let a = c.call(1, beat(group, "a", 1).with_topic_partitions(owning(&t, &[0, 1, 2]))).await;
        assert_eq!((a.member_epoch, told(&a)), (1, Some(vec![0, 1])));
        let a = c.call(1, beat(group, "a", 1).with_topic_partitions(owning(&t, &[0, 1]))).await;
        assert_eq!((a.member_epoch, told(&a)), (2, None));
        let b = c.call(1, beat(group, "b", 2)).await;
        assert_eq!(told(&b), Some(vec![2]));

        assert_eq!(commit(&mut c, group, "a", 1, &t, 6).await, 0, "its own since then");
        assert_eq!(commit(&mut c, group, "a", 2, &t, 7).await, 0);
        assert_eq!(commit(&mut c, group, "a", 3, &t, 8).await, 113);
        assert_eq!(commit(&mut c, group, "b", 1, &t, 8).await, 113);
        assert_eq!(commit(&mut c, group, "x", 2, &t, 8).await, 25);
        let fetch = |member: Option<&str>, epoch| {
            let asked = OffsetFetchRequestGroup::default()
                .with_group_id(GroupId(text(group)))
                .with_member_id(member.map(text))
                .with_member_epoch(epoch)
                .with_topics(None);
            OffsetFetchRequest::default().with_groups(vec![asked])
        };
        let fetched = c.call(9, fetch(Some("a"), 2)).await;
        assert_eq!(fetched.groups[0].topics[0].partitions[0].committed_offset, 7);
        assert_eq!(c.call(9, fetch(Some("a"), 1)).await.groups[0].error_code, 113);
        assert_eq!(c.call(9, fetch(Some("x"), 1)).await.groups[0].error_code, 25);
        assert_eq!(c.call(9, fetch(None, -1)).await.groups[0].error_code, 0);

        let asked = ConsumerGroupDescribeRequest::default()
            .with_group_ids(vec![GroupId(text(group)), GroupId(text("it-nobody"))]);
        let described = c.call(1, asked).await;
        let row = &described.groups[0];
        assert_eq!((row.group_state.as_str(), row.group_epoch, row.members.len()), ("Stable", 2, 2));
        assert_eq!(row.members[1].assignment.topic_partitions[0].topic_name, topic_name(&t.name));
        assert_eq!(described.groups[1].error_code, 69);
        let asked = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(group))]);
        assert_eq!(c.call(6, asked).await.groups[0].error_code, 69);
        let asked = ListGroupsRequest::default().with_types_filter(vec![text("Consumer")]);
        let listed = c.call(5, asked).await;
        assert!(
            listed.groups.iter().any(|g| g.group_id.as_str() == group && g.group_state.as_str() == "Stable")
        );

        for member in ["a", "b"] {
            assert_eq!(c.call(1, beat(group, member, -1)).await.member_epoch, -1);
        }
        let refused = c.call(1, beat(group, "a", 2)).await;
        assert_eq!((refused.error_code, refused.member_epoch, refused.member_id), (25, 0, None));
    });
}

#[test]
fn group_names_are_checked_where_kafka_checks_them() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let none = || GroupId(text(""));
        let described = ConsumerGroupDescribeRequest::default().with_group_ids(vec![none()]);
        assert_eq!(c.call(1, described).await.groups[0].error_code, 24);
        let offsets = OffsetDeleteRequest::default().with_group_id(none());
        assert_eq!(c.call(0, offsets).await.error_code, 24);
        let partition = TxnOffsetCommitRequestPartition::default().with_committed_offset(1);
        let of = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(&t.name))
            .with_partitions(vec![partition]);
        let pending = TxnOffsetCommitRequest::default()
            .with_transactional_id(TransactionalId(text("x")))
            .with_topics(vec![of]);
        assert_eq!(c.call(3, pending).await.topics[0].partitions[0].error_code, 24);
        // For old clients offsets may be kept under no name at all, and such a group is described and deleted.
        assert_eq!(commit(&mut c, "", "", -1, &t, 5).await, 0);
        let described = DescribeGroupsRequest::default().with_groups(vec![none()]);
        let group = c.call(5, described).await.groups.remove(0);
        assert_eq!((group.error_code, group.group_state.as_str()), (0, "Empty"));
        let delete = || DeleteGroupsRequest::default().with_groups_names(vec![none()]);
        assert_eq!(c.call(2, delete()).await.results[0].error_code, 0);
        assert_eq!(c.call(2, delete()).await.results[0].error_code, 69);
        // The longest name that a request can carry in all versions.
        let longest = "g".repeat(i16::MAX as usize);
        assert_eq!(commit(&mut c, &longest, "", -1, &t, 5).await, 0);
        let listed = c.call(5, ListGroupsRequest::default()).await.groups;
        assert!(listed.iter().any(|group| group.group_id.as_str() == longest));
        let delete = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(&longest))]);
        assert_eq!(c.call(2, delete).await.results[0].error_code, 0);
    });
}
