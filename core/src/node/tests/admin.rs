//! What operators see and set: bytes of partitions by directory, settings that outlive a restart.

use std::collections::BTreeMap;

use super::*;
use crate::api::DerivedTopic;
use crate::types::{NodeId, Partition};

/// Bytes of each partition of a topic, all directories together.
async fn total(node: &Node, topic: TopicId) -> BTreeMap<Partition, u64> {
    let mut sum = BTreeMap::new();
    for dir in node.api().log_dirs(|id| id == topic).await {
        for ((_, partition), bytes) in dir.partitions {
            *sum.entry(partition).or_default() += bytes;
        }
    }
    sum
}

/// Bytes of each partition of a topic in each directory.
async fn bytes(node: &Node, topic: TopicId) -> Vec<Vec<u64>> {
    let dirs = node.api().log_dirs(|id| id == topic).await;
    dirs.iter().map(|dir| dir.partitions.values().copied().collect()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_partition_are_the_same_whichever_range_holds_it() {
    let (a, b) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let dirs = [a.path(), b.path()];
    let mut node = Node::start(options(&dirs, &[])).await.expect("starts");
    let copies = topic(&node, "copies", 3, &[("rangeway.drive", "quorum(2, write=2)")]).await;
    let one = topic(&node, "one", 2, &[]).await;
    let memory = topic(&node, "memory", 2, &[("rangeway.drive", "memory")]).await;
    let sent = |p: i32, n: usize| batch(p, 1, None, 100, &"x".repeat(100 * n));
    let sizes = |n: usize| sent(0, n).bytes.len() as u64;
    append(&node, copies, vec![sent(0, 1), sent(1, 20), sent(1, 30)]).await;
    append(&node, one, vec![sent(1, 5)]).await;
    append(&node, memory, vec![sent(1, 5)]).await;
    let expected = vec![sizes(1), sizes(20) + sizes(30), 0];
    for crash in [false, true] {
        assert_eq!(bytes(&node, copies).await, [expected.clone(), expected.clone()], "a copy in each");
        // A segment lies in one of them; the next one, after a start, may lie in the other.
        assert_eq!(
            total(&node, one).await,
            BTreeMap::from([(0, 0), (1, sizes(5))]),
            "the empty partition too"
        );
        assert_eq!(bytes(&node, memory).await, [[0; 0], [0; 0]], "nowhere");
        if crash {
            node.crash().await;
        } else {
            node.stop().await;
        }
        node = Node::start(options(&dirs, &[])).await.expect("starts again");
    }
    let api = node.api();
    let made = api.split(copies, 0, Some(1)).await.expect("split").created;
    assert_eq!(bytes(&node, copies).await[1], expected, "the parent's segments are the children's");
    append(&node, copies, vec![sent(1, 7)]).await;
    let more = vec![expected[0], expected[1] + sizes(7), 0];
    assert_eq!(bytes(&node, copies).await[0], more);
    api.merge(copies, made[0], made[1]).await.expect("merge");
    assert_eq!(bytes(&node, copies).await[0], more);
    api.delete_records(TopicPartition { topic: copies, partition: 1 }, None).await.expect("raised");
    assert_eq!(bytes(&node, copies).await[0], [expected[0], 0, 0], "what nobody may read does not count");
    let space: Vec<_> = api.log_dirs(|_| false).await;
    assert!(space.iter().all(|dir| dir.dead.is_none() && dir.usable_bytes <= dir.total_bytes), "{space:?}");
    assert!(space.iter().all(|dir| dir.partitions.is_empty()), "nothing was asked for");
    drop(api);
    node.stop().await;
}

fn set(name: &str, value: Option<&str>) -> Vec<(String, Option<String>)> {
    vec![(name.to_owned(), value.map(str::to_owned))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_nodes_outlive_a_restart_and_topics_win() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(options(&[dir.path()], &[("retention.ms", "9000")])).await.expect("starts");
    let plain = topic(&node, "plain", 1, &[]).await;
    let own = topic(&node, "own", 1, &[("retention.ms", "1")]).await;
    let retention = |node: &Node, id| node.api().catalog().by_id[&id].config.retention_ms;
    assert_eq!(retention(&node, plain), Some(9000));
    let api = node.api();
    api.alter_node_configs(None, set("log.retention.ms", Some("2")), false).await.expect("set");
    api.alter_node_configs(Some(NodeId(2)), set("log.retention.ms", Some("3")), false).await.expect("set");
    api.alter_node_configs(None, set("max.connections", Some("7")), true).await.expect("checked");
    assert!(api.alter_node_configs(None, set("log.retention.ms", Some("x")), false).await.is_err());
    assert!(api.alter_node_configs(None, set("node.id", Some("3")), false).await.is_err());
    drop(api);
    for crash in [false, true] {
        assert_eq!((retention(&node, plain), retention(&node, own)), (Some(2), Some(1)));
        assert_eq!(node.api().catalog().dynamic.connections_max(), None, "only checked");
        if crash {
            node.crash().await;
        } else {
            node.stop().await;
        }
        let again = options(&[dir.path()], &[("retention.ms", "9000")]);
        node = Node::start(again).await.expect("starts again");
    }
    let api = node.api();
    api.alter_node_configs(Some(NodeId(1)), set("log.retention.ms", Some("4")), false).await.expect("set");
    assert_eq!(retention(&node, plain), Some(4), "this node's wins over that of all");
    api.alter_node_configs(Some(NodeId(1)), set("log.retention.ms", None), false).await.expect("taken back");
    api.alter_node_configs(None, set("log.retention.ms", None), false).await.expect("taken back");
    assert_eq!((retention(&node, plain), retention(&node, own)), (Some(9000), Some(1)));
    drop(api);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_derived_topic_is_shown_as_long_as_what_it_is_derived_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let api = node.api();
    let configs = BTreeMap::from([("cleanup.policy".to_owned(), "compact".to_owned())]);
    api.derive_topic(DerivedTopic { name: "shown", from: "own", configs });
    assert!(api.catalog().by_name.is_empty());
    let own = topic(&node, "own", 3, &[]).await;
    let catalog = api.catalog();
    let shown = catalog.by_name.get("shown").expect("it is shown");
    let from = &catalog.by_id[&own];
    assert_eq!((shown.derived_from, shown.partitions, shown.internal), (Some(own), 3, false));
    assert_eq!((shown.leader(2), shown.config.cleanup.delete), (from.leader(2), false));
    assert!(shown.id != own && catalog.by_id[&shown.id].name == shown.name);
    let at = TopicPartition { topic: shown.id, partition: 0 };
    assert!(matches!(api.offsets(at), Err(ReadFailure::UnknownPartition)), "it has nothing of its own");
    // A topic of the name that is stored goes before.
    let stored = topic(&node, "shown", 1, &[]).await;
    assert_eq!(api.catalog().by_name["shown"].id, stored);
    api.delete_topic(stored).await.expect("deleted");
    assert_eq!(api.catalog().by_name["shown"].derived_from, Some(own));
    api.delete_topic(own).await.expect("deleted");
    assert!(api.catalog().by_name.is_empty());
    node.stop().await;
}

/// First readable offset of partition 0 after everything that could take records of a topic had its turn.
async fn kept_from(node: &Node, internal: bool) -> i64 {
    let configs =
        [("cleanup.policy", "compact,delete"), ("retention.ms", "1"), ("min.cleanable.dirty.ratio", "0")];
    let new = NewTopic {
        name: if internal { "__groups" } else { "groups" }.into(),
        partitions: Some(1),
        replication_factor: None,
        configs: configs.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        internal,
        validate_only: false,
    };
    let id = node.api().create_topic(new).await.expect("a new topic").id;
    append(node, id, vec![batch(0, 1, None, 100, "old"), batch(0, 1, None, 100, "older")]).await;
    let topic = node.inner.topic(id).expect("there");
    for range in topic.ranges().iter() {
        node.inner.roll(&topic, range).await.expect("rolled");
    }
    append(node, id, vec![batch(0, 1, None, 100, "last")]).await;
    for _ in 0..3 {
        node.inner.retain(&topic).await;
        node.inner.compact(&topic).await;
    }
    let at = TopicPartition { topic: id, partition: 0 };
    let batches = read_batches(node, id, 0, node.api().offsets(at).expect("known").log_start).await;
    batches.expect("readable").first().map_or(-1, |b| BatchHead::parse(b).expect("whole").base_offset)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_internal_topic_retention_and_compaction_take_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let quiet = [("retention.check.ms", "1d"), ("cleaner.backoff.ms", "1d")];
    let node = Node::start(options(&[dir.path()], &quiet)).await.expect("starts");
    assert_ne!(kept_from(&node, false).await, 0, "else this shows nothing");
    assert_eq!(kept_from(&node, true).await, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_internal_topics_are_the_nodes() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    for validate_only in [true, false] {
        for name in ["__groups", "__transactions", "__consumer_offsets", "__cluster_metadata"] {
            let new = NewTopic {
                name: name.into(),
                partitions: Some(1),
                replication_factor: None,
                configs: BTreeMap::new(),
                internal: false,
                validate_only,
            };
            let refused = node.api().create_topic(new).await.expect_err("refused");
            assert_eq!(refused, crate::error::TopicError::Reserved(name.into()));
        }
    }
    assert!(node.api().catalog().by_name.is_empty());
    topic(&node, "__mine", 1, &[]).await;
    node.stop().await;
}
