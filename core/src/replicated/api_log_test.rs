//! The runtime over a real node's partition: snapshots, the rise of the log start, restarts.

use super::runtime_test::{Ask, Counters};
use super::*;
use crate::api::NewTopic;
use crate::config::node::NodeConfig;
use crate::error::TopicPartition;
use crate::node::{Node, NodeOptions};
use crate::types::TopicId;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

async fn node(dir: &Path) -> Node {
    let mut config = NodeConfig::default();
    config.set("disk.reserve.bytes", "64KiB").expect("a known key");
    let faults = Default::default();
    let options = NodeOptions {
        data: vec![dir.to_path_buf()],
        node_id: 1,
        rack: None,
        accept_new_disks: false,
        config,
        codec: std::sync::Arc::new(crate::codec::records::Uncompressed),
        faults,
    };
    Node::start(options).await.expect("starts")
}

async fn topic(node: &Node) -> TopicId {
    let new = NewTopic {
        name: "__counters".into(),
        partitions: Some(3),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: true,
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
