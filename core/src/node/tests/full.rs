//! A disk that records have filled: it is freed by what an operator can do, without a restart, and coordination goes on.

use super::*;
use crate::codec::entry::EntryKind;
use crate::drive::Purpose;
use crate::store::tests::full::SmallDisk;
use crate::types::Offset;

const PARTITIONS: i32 = 4;

fn small(dir: &Path) -> NodeOptions {
    let set = [
        ("extent.bytes", "64KiB"),
        ("segment.roll.bytes", "128KiB"),
        ("disk.reserve.bytes", "2MiB"),
        ("memory.tail.bytes", "64KiB"),
        ("retention.check.ms", "50"),
    ];
    let mut options = options(&[dir], &set);
    options.faults.0.insert(dir.to_path_buf(), SmallDisk::new(dir, 6 << 20));
    options
}

async fn taken(node: &Node, id: TopicId, at: i32) -> bool {
    let outcome = append(node, id, vec![batch(at, 1, None, 1, &"x".repeat(6000))]).await;
    match &outcome[0] {
        Appended::Ok { .. } => true,
        Appended::Err(AppendError::Storage(why)) if why.contains("disk full") => false,
        Appended::Err(error) => panic!("{error}"),
    }
}

/// Batches to all partitions of both by turns until one is refused.
async fn fill(node: &Node, topics: [TopicId; 2]) {
    for n in 0.. {
        assert!(n < 1000, "a disk of 6 MiB is full some time");
        for id in topics {
            if !taken(node, id, n % PARTITIONS).await {
                assert!(n > 20, "{n} is not a full disk");
                return;
            }
        }
    }
}

/// Until so much was taken again that something was freed.
async fn goes_on(node: &Node, id: TopicId) {
    let (until, mut took) = (soon(), 0);
    while took < 100 {
        if taken(node, id, took % PARTITIONS).await {
            took += 1;
            continue;
        }
        assert!(Instant::now() < until, "no room after {took} batches");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn held(node: &Node, id: TopicId) -> Vec<Vec<Offset>> {
    let mut all = Vec::new();
    for p in 0..PARTITIONS {
        all.push(read_all(node, id, p, 0).await.into_iter().map(|(offset, _)| offset).collect());
    }
    all
}

async fn filled(dir: &Path) -> (Node, TopicId, TopicId, Vec<Vec<Offset>>) {
    let node = Node::start(small(dir)).await.expect("starts");
    let a = topic(&node, "a", PARTITIONS, &[("retention.ms", "-1")]).await;
    let b = topic(&node, "b", PARTITIONS, &[("retention.ms", "-1")]).await;
    fill(&node, [a, b]).await;
    let before = held(&node, b).await;
    (node, a, b, before)
}

async fn whole_after(node: Node, b: TopicId, before: Vec<Vec<Offset>>) {
    goes_on(&node, b).await;
    for (now, before) in held(&node, b).await.iter().zip(&before) {
        assert!(now.starts_with(before), "{now:?} {before:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_retention_of_one_topic_frees_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    let configs = vec![("retention.bytes".to_owned(), Some("8192".to_owned()))];
    node.api().alter_topic_configs(a, configs, false).await.expect("altered");
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_records_free_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    for partition in 0..PARTITIONS {
        let at = TopicPartition { topic: a, partition };
        let end = node.api().offsets(at).expect("led here").high_watermark;
        assert_eq!(node.api().delete_records(at, None).await, Ok(end));
    }
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deletion_of_one_topic_frees_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    node.api().delete_topic(a).await.expect("deleted");
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_state_machines_go_on_and_leave_room_for_log_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    let (at, mut taken) = (TopicPartition { topic: b, partition: 0 }, 0);
    let payload = Bytes::from_static(&[7; 100]);
    let why = loop {
        let entry = crate::api::OwnEntry { kind: EntryKind::Control, payload: payload.clone() };
        match node.api().append_own(at, vec![entry], Purpose::Coordination, soon()).await {
            Ok(_) => taken += 1,
            Err(AppendError::Storage(why)) if why.contains("disk full") => break why,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 1000, "the reserve has an end");
    };
    assert!(taken > 10, "{taken} entries fit a quarter of the reserve: {why}");
    for partition in 0..PARTITIONS {
        node.api().delete_records(TopicPartition { topic: a, partition }, None).await.expect("deleted");
    }
    whole_after(node, b, before).await;
}
