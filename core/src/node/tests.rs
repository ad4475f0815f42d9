mod admin;
mod balance;
mod compact;
mod dead_in_flight;
mod disk_copies;
mod disks;
mod full;
mod full_quorum;
mod hang_up;
mod lineage;
mod parking;
mod read_only;
mod reshard;
mod reshard_faults;
mod restarts;
mod transaction_storm;
mod transactions;

use super::{Node, NodeOptions};
use crate::api::batch::BatchHead;
use crate::api::{AppendBatch, Appended, Lane, NewTopic, Piece, ReadFrom};
use crate::config::node::NodeConfig;
use crate::error::{AppendError, ReadFailure, TopicPartition};
use crate::store::{Fault, Faults};
pub(super) use crate::testing::batch::batch;
use crate::types::TopicId;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) fn options(dirs: &[&Path], set: &[(&str, &str)]) -> NodeOptions {
    let mut config = NodeConfig::default();
    config.set("disk.reserve.bytes", "64KiB").expect("a known key");
    for (key, value) in set {
        config.set(key, value).expect("a known key");
    }
    NodeOptions {
        data: dirs.iter().map(|d| d.to_path_buf()).collect(),
        node_id: 1,
        rack: None,
        accept_new_disks: false,
        config,
        codec: Arc::new(crate::codec::records::Uncompressed),
        faults: Default::default(),
    }
}

pub(super) async fn topic(node: &Node, name: &str, partitions: i32, configs: &[(&str, &str)]) -> TopicId {
    let configs: BTreeMap<String, String> =
        configs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let new = NewTopic {
        name: name.into(),
        partitions: Some(partitions),
        replication_factor: None,
        configs,
        internal: false,
        validate_only: false,
    };
    node.api().create_topic(new).await.expect("a new topic").id
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(super) async fn append(node: &Node, topic: TopicId, batches: Vec<AppendBatch>) -> Vec<Appended> {
    node.api().append(&Lane::default(), topic, batches, soon()).wait().await.batches
}

pub(super) fn base(outcome: &Appended) -> i64 {
    match outcome {
        Appended::Ok { base_offset, .. } => *base_offset,
        Appended::Err(error) => panic!("not appended: {error}"),
    }
}

pub(super) async fn read_all(node: &Node, topic: TopicId, partition: i32, from: i64) -> Vec<(i64, Vec<u8>)> {
    let batches = read_batches(node, topic, partition, from).await.expect("readable");
    let base = |batch: &Bytes| BatchHead::parse(batch).expect("a whole batch").base_offset;
    batches.iter().map(|batch| (base(batch), batch[61..].to_vec())).collect()
}

/// Whole batches of a partition from an offset to its end.
pub(super) async fn read_batches(
    node: &Node,
    topic: TopicId,
    partition: i32,
    from: i64,
) -> Result<Vec<Bytes>, ReadFailure> {
    let mut found = Vec::new();
    let mut offset = from;
    loop {
        let from = ReadFrom { topic, partition, offset, max_bytes: 1 << 20, isolation: Default::default() };
        let read = node.api().read(&[from], 1 << 20).await.remove(0)?;
        let mut bytes = Vec::new();
        for piece in read.pieces {
            match piece {
                Piece::Memory(b) => bytes.extend_from_slice(&b),
                Piece::File(f) => {
                    let mut buffer = vec![0; f.len as usize];
                    std::os::unix::fs::FileExt::read_exact_at(&*f.file, &mut buffer, f.position)
                        .expect("readable");
                    bytes.extend_from_slice(&buffer);
                }
            }
        }
        let mut at = 0;
        while at < bytes.len() {
            let head = BatchHead::parse(&bytes[at..]).expect("a whole batch");
            let len = head.batch_length as usize + 12;
            let whole = &bytes[at..at + len];
            assert_eq!(crate::codec::crc32c(&[&whole[21..]]), head.crc, "stored bytes are whole");
            found.push(Bytes::copy_from_slice(whole));
            at += len;
        }
        if read.next_offset == offset {
            return Ok(found);
        }
        offset = read.next_offset;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_read_back_after_a_restart_and_numbering_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 3, &[]).await;
    for i in 0..10 {
        let outcomes =
            append(&node, id, (0..3).map(|p| batch(p, 2, None, 100 + i, &format!("{p}/{i}"))).collect())
                .await;
        outcomes.iter().for_each(|o| assert_eq!(base(o), 2 * i));
    }
    let at = TopicPartition { topic: id, partition: 1 };
    let mut node = node;
    for crash in [false, true, true, false] {
        let before = read_all(&node, id, 1, 0).await;
        let epoch = node.api().offsets(at).expect("known").leader_epoch;
        if crash {
            node.crash().await;
        } else {
            node.stop().await;
        }
        node = Node::start(options(&[dir.path()], &[])).await.expect("starts again");
        assert_eq!(read_all(&node, id, 1, 0).await, before);
        let now = node.api().offsets(at).expect("known").leader_epoch;
        assert_eq!(now, epoch + 1, "another generation leads with another epoch");
        let outcomes = append(&node, id, vec![batch(1, 2, None, 500, "later")]).await;
        assert_eq!(base(&outcomes[0]), before.len() as i64 * 2);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_gets_its_first_offset_across_rolls_and_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("segment.roll.bytes", "64KiB"), ("extent.bytes", "64KiB"), ("memory.tail.bytes", "64KiB")];
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let filler = "x".repeat(9000);
    for i in 0..40 {
        let outcome = append(&node, id, vec![batch(0, 1, Some((7, 0, i)), 0, &filler)]).await;
        assert_eq!(base(&outcome[0]), i64::from(i));
        if i % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
    let rolled = node.api().range_stats(id)[0].segments;
    assert!(rolled > 1, "{rolled} segments");
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts again");
    for i in 35..40 {
        let outcome = append(&node, id, vec![batch(0, 1, Some((7, 0, i)), 0, &filler)]).await;
        assert_eq!(base(&outcome[0]), i64::from(i), "a duplicate");
    }
    let old = append(&node, id, vec![batch(0, 1, Some((7, 0, 34)), 0, &filler)]).await;
    assert!(matches!(old[0], Appended::Err(AppendError::OutOfOrderSequence { .. })), "{old:?}");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 40);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_records_stay_deleted_and_retention_drops_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [
        ("segment.roll.bytes", "64KiB"),
        ("extent.bytes", "64KiB"),
        ("retention.check.ms", "50"),
        ("memory.tail.bytes", "64KiB"),
    ];
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(
        &node,
        "t",
        2,
        &[("retention.bytes", "100000"), ("retention.ms", "-1"), ("segment.bytes", "65536")],
    )
    .await;
    let at = TopicPartition { topic: id, partition: 0 };
    let filler = "y".repeat(9000);
    for i in 0..60 {
        append(&node, id, vec![batch(0, 1, None, i, &filler), batch(1, 1, None, i, "small")]).await;
        if i % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
    let until = Instant::now() + Duration::from_secs(10);
    while node.api().offsets(at).expect("known").log_start == 0 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let start = node.api().offsets(at).expect("known").log_start;
    assert!(start > 0, "retention raised the log start");
    let other = node.api().offsets(TopicPartition { topic: id, partition: 1 }).expect("known");
    assert_eq!(other.log_start, 0, "the other partition is small and stays");
    assert_eq!(node.api().delete_records(at, Some(55)).await, Ok(55));
    assert!(matches!(
        node.api().delete_records(at, Some(61)).await,
        Err(ReadFailure::OutOfRange { end: 60, .. })
    ));
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts again");
    assert_eq!(node.api().offsets(at).expect("known").log_start, 55);
    let read = node
        .api()
        .read(
            &[ReadFrom { topic: id, partition: 0, offset: 54, max_bytes: 10, isolation: Default::default() }],
            10,
        )
        .await;
    assert!(matches!(read[0], Err(ReadFailure::OutOfRange { log_start: 55, end: 60, .. })));
    assert_eq!(read_all(&node, id, 0, 55).await.len(), 5);
    assert_eq!(read_all(&node, id, 1, 0).await.len(), 60);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_drive_serves_through_the_same_door() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let node = Node::start(options(&paths, &[])).await.expect("starts");
    let kinds =
        ["memory", "disk", "quorum(3, write=2)", "striped(2, disk)", "striped(2, quorum(2, write=2))"];
    let mut topics = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        let id = topic(&node, &format!("t{n}"), 2, &[("rangeway.drive", kind)]).await;
        for i in 0..20 {
            let outcome =
                append(&node, id, vec![batch(0, 1, None, i, &format!("{i}")), batch(1, 3, None, i, "b")])
                    .await;
            assert_eq!((base(&outcome[0]), base(&outcome[1])), (i, 3 * i), "{kind}");
        }
        assert_eq!(read_all(&node, id, 0, 0).await.len(), 20, "{kind}");
        topics.push(id);
    }
    node.crash().await;
    let node = Node::start(options(&paths, &[])).await.expect("starts again");
    for (kind, id) in kinds.iter().zip(&topics).filter(|(kind, _)| **kind != "memory") {
        assert_eq!(read_all(&node, *id, 0, 0).await.len(), 20, "{kind}");
        let outcome = append(&node, *id, vec![batch(0, 1, None, 0, "more")]).await;
        assert_eq!(base(&outcome[0]), 20, "{kind}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_by_time_find_the_first_batch_in_offset_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let at = TopicPartition { topic: id, partition: 0 };
    for (i, ts) in [1000, 3000, 2000, 3000].into_iter().enumerate() {
        append(&node, id, vec![batch(0, 1, None, ts, &format!("{i}"))]).await;
    }
    let base_of = |b: Option<Bytes>| b.map(|b| BatchHead::parse(&b).expect("a batch").base_offset);
    assert_eq!(base_of(node.api().find_timestamp(at, 1500).await.expect("found")), Some(1));
    assert_eq!(base_of(node.api().find_timestamp(at, 3001).await.expect("found")), None);
    assert_eq!(base_of(node.api().find_max_timestamp(at).await.expect("found")), Some(1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_disk_of_a_quorum_costs_nothing_acknowledged() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let node = Node::start(options(&paths, &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[("rangeway.drive", "quorum(3, write=2)")]).await;
    for i in 0..50 {
        append(&node, id, vec![batch(0, 1, None, i, &format!("{i}"))]).await;
    }
    let before = read_all(&node, id, 0, 0).await;
    node.crash().await;
    // The first directory also holds the control state; one of the others is lost with all it has.
    std::fs::remove_dir_all(paths[2]).expect("removed");
    std::fs::create_dir(paths[2]).expect("made again");
    let refused = Node::start(options(&paths, &[])).await.err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| why.contains("--accept-new-disks")), "{refused:?}");
    let accepting = NodeOptions { accept_new_disks: true, ..options(&paths, &[]) };
    let node = Node::start(accepting).await.expect("starts with an emptied disk");
    assert_eq!(read_all(&node, id, 0, 0).await, before);
    let outcome = append(&node, id, vec![batch(0, 1, None, 0, "more")]).await;
    assert_eq!(base(&outcome[0]), 50);
    node.stop().await;
}

/// A disk whose syncs fail once it is told so.
#[derive(Default)]
struct FailingSync(AtomicBool);

impl Faults for FailingSync {
    fn write(&self, _len: usize) -> Fault {
        if self.0.load(Ordering::Acquire) { Fault::SyncFails } else { Fault::None }
    }
}

fn with_fault(dirs: &[&Path], failing: usize, fault: &Arc<FailingSync>) -> NodeOptions {
    let mut options = options(dirs, &[]);
    options.faults.0.insert(dirs[failing].to_path_buf(), fault.clone());
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_outlives_the_death_of_one_disk() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let fault = Arc::new(FailingSync::default());
    let node = Node::start(with_fault(&paths, 2, &fault)).await.expect("starts");
    let id = topic(&node, "t", 1, &[("rangeway.drive", "quorum(3, write=2)")]).await;
    for i in 0..40 {
        if i == 20 {
            fault.0.store(true, Ordering::Release);
        }
        let outcome = append(&node, id, vec![batch(0, 1, None, i, &format!("{i}"))]).await;
        assert_eq!(base(&outcome[0]), i);
    }
    let until = Instant::now() + Duration::from_secs(5);
    while node.api().blocked().is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(node.api().blocked().iter().any(|why| why.contains("dead")), "{:?}", node.api().blocked());
    node.crash().await;
    let node = Node::start(options(&paths, &[])).await.expect("starts again");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 40);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_disk_blocks_what_it_failed_and_all_others_go_on() {
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let fault = Arc::new(FailingSync::default());
    let node = Node::start(with_fault(&paths, 1, &fault)).await.expect("starts");
    let mut topics = Vec::new();
    for n in 0..12 {
        let id = topic(&node, &format!("t{n}"), 1, &[]).await;
        assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "before")]).await[0]), 0);
        topics.push(id);
    }
    fault.0.store(true, Ordering::Release);
    let mut refused = Vec::new();
    for id in &topics {
        let deadline = Instant::now() + Duration::from_millis(500);
        let outcome = node
            .api()
            .append(&Lane::default(), *id, vec![batch(0, 1, None, 0, "after")], deadline)
            .wait()
            .await
            .batches;
        match &outcome[0] {
            Appended::Ok { base_offset, .. } => assert_eq!(*base_offset, 1),
            Appended::Err(AppendError::TimedOut | AppendError::Storage(_)) => refused.push(*id),
            other => panic!("{other:?}"),
        }
    }
    assert!(!refused.is_empty() && refused.len() < topics.len(), "{} of {}", refused.len(), topics.len());
    let until = Instant::now() + Duration::from_secs(10);
    let mut blocked = Vec::new();
    for id in &refused {
        let range = format!("topic '{}' range ", node.api().catalog().by_id[id].name);
        loop {
            let again = Instant::now() + Duration::from_millis(200);
            let lane = Lane::default();
            let pending = node.api().append(&lane, *id, vec![batch(0, 1, None, 0, "again")], again);
            if matches!(pending.wait().await.batches[0], Appended::Ok { base_offset: 1, .. }) {
                break;
            }
            if node.api().blocked().iter().any(|why| why.starts_with(&range)) {
                blocked.push(*id);
                break;
            }
            assert!(Instant::now() < until, "goes on or says why not");
        }
    }
    assert!(blocked.len() <= 1, "only what met the failing write: {:?}", node.api().blocked());
    assert_eq!(node.api().blocked().len(), 1 + blocked.len(), "{:?}", node.api().blocked());
    let new = topic(&node, "new", 1, &[]).await;
    assert_eq!(base(&append(&node, new, vec![batch(0, 1, None, 0, "on the live disk")]).await[0]), 0);
    for id in &topics {
        assert!(!read_all(&node, *id, 0, 0).await.is_empty(), "what was acknowledged stays readable");
    }
    node.crash().await;
    let node = Node::start(options(&paths, &[])).await.expect("starts again");
    for id in &topics {
        let stored = read_all(&node, *id, 0, 0).await.len();
        let least = if refused.contains(id) { 1 } else { 2 };
        assert!(stored >= least, "{stored} records, {least} were acknowledged");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_one_small_entry_still_takes_everything_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("window.entries", "1"), ("window.bytes", "64KiB"), ("checkpoint.bytes", "64KiB")];
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 3000, &[]).await;
    let large = "z".repeat(70_000);
    for i in 0..12 {
        let request =
            vec![batch(0, 1, None, i, &large), batch(0, 1, None, i, "a"), batch(1, 1, None, i, "b")];
        let outcomes = append(&node, id, request).await;
        assert_eq!((base(&outcomes[0]), base(&outcomes[1]), base(&outcomes[2])), (2 * i, 2 * i + 1, i));
        let at = TopicPartition { topic: id, partition: 1 };
        assert_eq!(node.api().delete_records(at, Some(i)).await, Ok(i));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts again");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 24);
    assert_eq!(read_all(&node, id, 1, 11).await.len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_extent_blocks_its_range_and_is_no_end_of_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("extent.bytes", "64KiB"), ("memory.tail.bytes", "64KiB")];
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let filler = "m".repeat(9000);
    for i in 0..60 {
        append(&node, id, vec![batch(0, 1, None, i, &filler)]).await;
    }
    node.crash().await;
    let extents = dir.path().join("extents");
    let mut files: Vec<_> = std::fs::read_dir(&extents)
        .expect("listed")
        .map(|f| f.expect("a file").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ext"))
        // Not one that is allocated ahead and holds nothing.
        .filter(|p| std::fs::read(p).expect("read").starts_with(b"RWEX"))
        .collect();
    files.sort();
    let lost = files[files.len() / 2].clone();
    let aside = dir.path().join("aside");
    std::fs::rename(&lost, &aside).expect("moved");
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts without the extent");
    let blocked = node.api().blocked();
    assert!(blocked.iter().any(|why| why.contains("are missing")), "{blocked:?}");
    // What is there is read, up to the gap; there is no end to be seen.
    let from = ReadFrom { topic: id, partition: 0, offset: 0, max_bytes: 1, isolation: Default::default() };
    assert!(node.api().read(&[from], 1).await[0].as_ref().is_ok_and(|read| read.next_offset == 1));
    let at = TopicPartition { topic: id, partition: 0 };
    let (known, whole) = node.api().known_offsets(at).expect("known in part");
    assert!(!whole && known.high_watermark > 0 && known.high_watermark < 60, "{known:?}");
    let from = ReadFrom {
        topic: id,
        partition: 0,
        offset: known.high_watermark,
        max_bytes: 1,
        isolation: Default::default(),
    };
    assert!(matches!(node.api().read(&[from], 1).await[0], Err(ReadFailure::Storage(_))));
    let plain = append(&node, id, vec![batch(0, 1, None, 0, "no")]).await;
    assert!(matches!(plain[0], Appended::Err(AppendError::Storage(_))), "{plain:?}");
    let with_id = append(&node, id, vec![batch(0, 1, Some((4, 0, 0)), 0, "no")]).await;
    assert!(matches!(with_id[0], Appended::Err(AppendError::Storage(_))), "{with_id:?}");
    node.crash().await;
    std::fs::rename(&aside, &lost).expect("moved back");
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts with it again");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 60);
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "yes")]).await[0]), 60);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_without_control_state_do_not_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    append(&node, id, vec![batch(0, 1, None, 0, "a")]).await;
    node.stop().await;
    std::fs::rename(dir.path().join("control.redb"), dir.path().join("aside")).expect("moved");
    let refused = Node::start(options(&[dir.path()], &[])).await.expect_err("refused");
    assert!(refused.to_string().contains("control.redb is missing"), "{refused}");
    std::fs::rename(dir.path().join("aside"), dir.path().join("control.redb")).expect("moved back");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 1);
    node.stop().await;
}

#[tokio::test]
async fn a_default_drive_that_the_disks_cannot_hold_is_refused_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = Node::start(options(&[dir.path()], &[("drive", "quorum(3, write=2)")])).await;
    let refused = refused.expect_err("one disk for three copies").to_string();
    assert!(refused.contains("quorum(3, write=2)") && refused.contains("3 disks"), "{refused}");
}
