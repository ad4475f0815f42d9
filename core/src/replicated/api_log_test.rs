//! The runtime over a real node's partition: snapshots, the rise of the log start, restarts.

use super::runtime_test::{Ask, Counters};
use super::*;
use crate::api::{EntryKind, NewTopic, OwnEntry, Purpose};
use crate::config::node::NodeConfig;
use crate::error::{AppendError, TopicPartition};
use crate::node::{Node, NodeOptions};
use crate::store::tests::full::SmallDisk;
use crate::types::TopicId;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

async fn node(dir: &Path) -> Node {
    Node::start(options(dir, &[("disk.reserve.bytes", "64KiB")])).await.expect("starts")
}

fn options(dir: &Path, set: &[(&str, &str)]) -> NodeOptions {
    let mut config = NodeConfig::default();
    for (key, value) in set {
        config.set(key, value).expect("a known key");
    }
    let faults = Default::default();
    NodeOptions {
        data: vec![dir.to_path_buf()],
        node_id: 1,
        rack: None,
        accept_new_disks: false,
        config,
        codec: std::sync::Arc::new(crate::codec::records::Uncompressed),
        faults,
    }
}

async fn topic(node: &Node) -> TopicId {
    named(node, "__counters").await
}

async fn named(node: &Node, name: &str) -> TopicId {
    let new = NewTopic {
        name: name.into(),
        partitions: Some(3),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: name.starts_with("__"),
        validate_only: false,
    };
    node.api().create_topic(new).await.expect("a new topic").id
}

fn start(node: &Node, at: TopicPartition) -> Partition<Counters> {
    let log = ApiLog::new(node.api(), at, Duration::from_secs(10));
    Partition::start(log, (), Options { snapshot_bytes: 2048, ..Options::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_survives_restarts_while_snapshots_raise_the_log_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut running = node(dir.path()).await;
    let at = TopicPartition { topic: topic(&running).await, partition: 1 };
    for round in 1..=3u64 {
        let partition = start(&running, at);
        for n in 0..40 {
            let calls = (0..20).map(|k| partition.call(Ask::Add(format!("counter {n} {k}"), 1)));
            for answer in futures_util::future::join_all(calls).await {
                assert_eq!(answer, Ok(round));
            }
        }
        partition.stop().await;
        let offsets = running.api().offsets(at).expect("led here");
        assert!(offsets.log_start > 0, "a snapshot has raised the log start");
        let kept = offsets.high_watermark - offsets.log_start;
        assert!(kept < offsets.high_watermark, "{kept} entries of {} kept", offsets.high_watermark);
        running.stop().await;
        running = node(dir.path()).await;
    }
    let partition = start(&running, at);
    assert_eq!(partition.call(Ask::Get("counter 39 19".into())).await, Ok(3));
    assert_eq!(partition.call(Ask::Get("counter 0 0".into())).await, Ok(3));
    partition.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_the_state_is_read_also_when_it_is_loaded_and_changed_again_when_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("extent.bytes", "64KiB"), ("disk.reserve.bytes", "2MiB"), ("retention.check.ms", "50")];
    let mut options = options(dir.path(), &set);
    options.faults.0.insert(dir.path().to_path_buf(), SmallDisk::new(dir.path(), 6 << 20));
    let node = Node::start(options).await.expect("starts");
    let soon = || Instant::now() + Duration::from_secs(20);
    let at = TopicPartition { topic: topic(&node).await, partition: 1 };
    let other = named(&node, "other").await;
    let partition = start(&node, at);
    assert_eq!(partition.call(Ask::Add("a".into(), 5)).await, Ok(5));
    // Until the share of coordination is used up, and nothing more comes of what the store still does.
    let (mut taken, mut refused) = (0, 0);
    while refused < 30 {
        let entry = OwnEntry { kind: EntryKind::Control, payload: vec![7; 8000].into() };
        let into = TopicPartition { topic: other, partition: 0 };
        let filled = node.api().append_own(into, vec![entry], Purpose::Coordination, soon()).await;
        match (filled, partition.call(Ask::Add("a".into(), 1)).await) {
            (Err(AppendError::Storage(_)), Err(Unavailable::Storage(_))) => refused += 1,
            (Ok(_) | Err(AppendError::Storage(_)), Ok(_) | Err(Unavailable::Storage(_))) => {
                (taken, refused) = (taken + 1, 0);
                assert!(taken < 10_000, "the reserve has an end");
                continue;
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let high = || node.api().offsets(at).expect("led here").high_watermark;
    let (Ok(value), before) = (partition.call(Ask::Get("a".into())).await, high()) else {
        panic!("not read")
    };
    for _ in 0..50 {
        let refused = partition.call(Ask::Add("a".into(), 1)).await;
        assert!(
            matches!(&refused, Err(Unavailable::Storage(why)) if why.contains("disk full")),
            "{refused:?}"
        );
        assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(value));
    }
    assert_eq!(high(), before, "it was not loaded again");
    partition.stop().await;
    let partition = start(&node, at);
    assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(value));
    assert!(partition.call(Ask::Add("a".into(), 1)).await.is_err());
    node.api().delete_topic(other).await.expect("deleted");
    let until = soon();
    while partition.call(Ask::Add("a".into(), 1)).await != Ok(value + 1) {
        assert!(Instant::now() < until, "no room after a deletion");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    partition.stop().await;
    node.stop().await;
}
