//! A disk that records have filled: it is freed by what an operator can do, without a restart, and coordination goes on.

use super::*;
use crate::codec::entry::EntryKind;
use crate::drive::Purpose;
use crate::error::TopicError;
use crate::store::tests::full::SmallDisk;
use crate::testing::batch::keyed;
use crate::types::Offset;

pub(super) const PARTITIONS: i32 = 4;

pub(super) fn small(dir: &Path) -> NodeOptions {
    let set = [
        ("extent.bytes", "64KiB"),
        ("segment.roll.bytes", "128KiB"),
        ("disk.reserve.bytes", "2MiB"),
        ("memory.tail.bytes", "64KiB"),
        ("retention.check.ms", "50"),
        ("cleaner.backoff.ms", "50ms"),
    ];
    let mut options = options(&[dir], &set);
    options.faults.0.insert(dir.to_path_buf(), SmallDisk::new(dir, 6 << 20));
    options
}

pub(super) async fn taken(node: &Node, id: TopicId, at: i32) -> bool {
    let outcome = append(node, id, vec![batch(at, 1, None, 1, &"x".repeat(6000))]).await;
    match &outcome[0] {
        Appended::Ok { .. } => true,
        Appended::Err(AppendError::Storage(why)) if why.contains("disk full") => false,
        Appended::Err(error) => panic!("{error}"),
    }
}

/// Until the open segment is below what it may have, or there seems to be no room for another.
async fn rolled(node: &Node, id: TopicId) {
    let patience = Instant::now() + Duration::from_secs(1);
    let topic = node.inner.topic(id).expect("there");
    while topic.ranges()[0].head_data().0 >= 128 << 10 && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Batches to all partitions of both by turns until one is refused, no faster than segments end.
pub(super) async fn fill(node: &Node, topics: [TopicId; 2]) {
    for n in 0.. {
        assert!(n < 1000, "a disk of 6 MiB is full some time");
        for id in topics {
            rolled(node, id).await;
            if !taken(node, id, n % PARTITIONS).await {
                assert!(n > 20, "{n} is not a full disk");
                return;
            }
        }
    }
}

/// Until so much was taken again that something was freed.
pub(super) async fn goes_on(node: &Node, id: TopicId) {
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

pub(super) async fn held(node: &Node, id: TopicId) -> Vec<Vec<Offset>> {
    let mut all = Vec::new();
    for p in 0..PARTITIONS {
        all.push(read_all(node, id, p, 0).await.into_iter().map(|(offset, _)| offset).collect());
    }
    all
}

pub(super) async fn filled(dir: &Path) -> (Node, TopicId, TopicId, Vec<Vec<Offset>>) {
    let node = Node::start(small(dir)).await.expect("starts");
    let a = topic(&node, "a", PARTITIONS, &[("retention.ms", "-1")]).await;
    let b = topic(&node, "b", PARTITIONS, &[("retention.ms", "-1")]).await;
    fill(&node, [a, b]).await;
    let before = held(&node, b).await;
    (node, a, b, before)
}

pub(super) async fn delete_all_records(node: &Node, id: TopicId) {
    for partition in 0..PARTITIONS {
        let at = TopicPartition { topic: id, partition };
        let end = node.api().offsets(at).expect("led here").high_watermark;
        assert_eq!(node.api().delete_records(at, None).await, Ok(end));
    }
}

pub(super) async fn whole_after(node: Node, b: TopicId, before: Vec<Vec<Offset>>) {
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
    delete_all_records(&node, a).await;
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
    delete_all_records(&node, a).await;
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_frees_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(small(dir.path())).await.expect("starts");
    let dirty = ("min.cleanable.dirty.ratio", "0");
    let a = topic(&node, "a", 1, &[("retention.ms", "-1"), dirty]).await;
    let b = topic(&node, "b", PARTITIONS, &[("retention.ms", "-1")]).await;
    let filler = "f".repeat(6000);
    let (mut latest, mut n) = (BTreeMap::new(), 0);
    loop {
        let (key, value) = (format!("k{}", n % 5), format!("{n}-{filler}"));
        let sent = keyed(0, 0, None, 1000 + n, &[(Some(&key), Some(&value))]);
        match &append(&node, a, vec![sent]).await[0] {
            Appended::Ok { .. } => drop(latest.insert(key, value)),
            Appended::Err(AppendError::Storage(why)) if why.contains("disk full") => break,
            Appended::Err(error) => panic!("{error}"),
        }
        n += 1;
        assert!(n < 2000, "a disk of 6 MiB is full some time");
    }
    assert!(!taken(&node, b, 0).await, "for others too");
    let configs = vec![("cleanup.policy".to_owned(), Some("compact".to_owned()))];
    node.api().alter_topic_configs(a, configs, false).await.expect("altered");
    goes_on(&node, b).await;
    let left = read_all(&node, a, 0, 0).await;
    for value in latest.values() {
        assert!(left.iter().any(|(_, batch)| batch.windows(value.len()).any(|w| w == value.as_bytes())));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_no_topic_is_made_until_one_is_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, _) = filled(dir.path()).await;
    // To the last record, and until nothing more comes of what the store still does.
    let mut refused = 0;
    while refused < 20 {
        match &append(&node, b, vec![batch(0, 1, None, 1, "x")]).await[0] {
            Appended::Ok { .. } => refused = 0,
            Appended::Err(_) => refused += 1,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = held(&node, b).await;
    let new = |name: &str, internal| NewTopic {
        name: name.into(),
        partitions: Some(1),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal,
        validate_only: false,
    };
    let refused = node.api().create_topic(new("c", false)).await.map(|topic| topic.id);
    assert!(matches!(&refused, Err(TopicError::NoDisk(why)) if why.contains("disk full")), "{refused:?}");
    let grown = node.api().create_partitions(b, PARTITIONS + 1, false).await;
    assert!(matches!(&grown, Err(TopicError::NoDisk(_))), "{grown:?}");
    node.api().create_topic(new("__c", true)).await.expect("coordination has its share");
    node.api().delete_topic(a).await.expect("deleted");
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_waits_for_room_and_takes_nothing_of_what_fences_need() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    let at = TopicPartition { topic: a, partition: 0 };
    let mut refused = 0;
    while refused < 20 {
        let entry = crate::api::OwnEntry { kind: EntryKind::Control, payload: vec![7; 4000].into() };
        match node.api().append_own(at, vec![entry], Purpose::Freeing, soon()).await {
            Ok(_) => refused = 0,
            Err(AppendError::Storage(why)) if why.contains("disk full") => refused += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let runtime = node.inner.topic(b).expect("there");
    let range = runtime.ranges()[0].clone();
    let open = range.active_loglet();
    for _ in 0..20 {
        let why = node.inner.roll(&runtime, &range).await.expect_err("no room for a checkpoint");
        assert!(why.contains("disk full"), "{why}");
    }
    assert_eq!((range.active_loglet(), range.phase()), (open, crate::range::primary::Phase::Open));
    node.api().delete_topic(a).await.expect("deleted");
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_goes_to_a_disk_that_takes_records() {
    let (full, other) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let mut options = options(&[full.path(), other.path()], &[("extent.bytes", "64KiB")]);
    options.faults.0.insert(full.path().to_path_buf(), SmallDisk::new(full.path(), 32 << 10));
    let node = Node::start(options).await.expect("starts");
    for n in 0..12 {
        let id = topic(&node, &format!("t{n}"), 1, &[("rangeway.drive", "disk")]).await;
        assert!(taken(&node, id, 0).await, "topic {n} lies on the full disk");
    }
    node.stop().await;
}
