//! A disk whose reserve is used up as far as coordination may, as a started process: groups are read, records and commits are
//! refused with codes by which clients try again, and all goes on when there is room.

use crate::process::Node;
use crate::support::{Batch, Topic, produce_request, topic_name};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    CreateTopicsRequest, DescribeGroupsRequest, GroupId, OffsetCommitRequest, OffsetFetchRequest,
};
use kafka_protocol::protocol::StrBytes;
use std::path::Path;

const NOT_COORDINATOR: i16 = 16;
const STORAGE_ERROR: i16 = 56;

fn group() -> GroupId {
    GroupId(StrBytes::from_static_str("g"))
}

fn start(dir: &Path, reserve: u64) -> Node {
    let reserve = format!("disk.reserve.bytes={reserve}");
    Node::start(dir, &["--set", "extent.bytes=64KiB", "--set", &reserve])
}

fn topic() -> Topic {
    Topic { name: "t".to_owned(), id: uuid::Uuid::nil() }
}

fn commit(node: &Node, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    node.kafka().call(&request, 8).unwrap().topics[0].partitions[0].error_code
}

fn committed(node: &Node) -> (i16, i64) {
    let asked = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![asked]);
    let answer = node.kafka().call(&request, 8).unwrap();
    let group = &answer.groups[0];
    let offset = group.topics.first().map(|topic| topic.partitions[0].committed_offset);
    (group.error_code, offset.unwrap_or(-1))
}

fn described(node: &Node) -> (i16, String) {
    let request = DescribeGroupsRequest::default().with_groups(vec![group()]);
    let answer = node.kafka().call(&request, 5).unwrap();
    (answer.groups[0].error_code, answer.groups[0].group_state.to_string())
}

fn produce(node: &Node) -> i16 {
    let request = produce_request(&topic(), -1, &[(0, Some(Batch::of(1).bytes()))]);
    node.kafka().call(&request, 12).unwrap().responses[0].partition_responses[0].error_code
}

#[test]
fn groups_are_read_and_commits_refused_while_the_disk_is_full_and_no_position_is_lost_or_ahead() {
    let dir = tempfile::tempdir().unwrap();
    {
        let node = start(dir.path(), 64 << 10);
        let topic = CreatableTopic::default()
            .with_name(topic_name("t"))
            .with_num_partitions(1)
            .with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        assert_eq!(node.kafka().call(&request, 6).unwrap().topics[0].error_code, 0);
        assert_eq!((produce(&node), commit(&node, 5)), (0, 0));
    }
    // Twice what is free: less than three quarters of the reserve are left, and more than one.
    let disk = rustix::fs::statvfs(dir.path()).unwrap();
    {
        let node = start(dir.path(), 2 * disk.f_bavail * disk.f_frsize);
        assert_eq!(produce(&node), STORAGE_ERROR);
        for offset in 6..20 {
            assert_eq!(committed(&node), (0, 5));
            assert_eq!(commit(&node, offset), NOT_COORDINATOR);
            assert_eq!(described(&node), (0, "Empty".to_owned()));
        }
    }
    let node = start(dir.path(), 64 << 10);
    assert_eq!(committed(&node), (0, 5));
    assert_eq!((produce(&node), commit(&node, 6)), (0, 0));
    assert_eq!(committed(&node), (0, 6));
}
