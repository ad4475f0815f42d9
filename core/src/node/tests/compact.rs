//! Compaction on a real node: what stays, wherever ranges split and merge, on every kind of drive, amid readers, and when it
//! dies at any step.

use super::*;
use crate::api::{Isolation, Marker, TransactionVersion};
use crate::codec::records::{OpenBatch, Uncompressed, delete_horizon};
use crate::range::primary::RangePrimary;
use crate::testing::batch::keyed;
use crate::testing::rng::Rng;

const KEYS: usize = 9;

fn small() -> Vec<(&'static str, &'static str)> {
    vec![
        ("extent.bytes", "64KiB"),
        ("memory.tail.bytes", "64KiB"),
        ("retention.check.ms", "20"),
        // Tests say when.
        ("cleaner.backoff.ms", "1d"),
    ]
}

const COMPACT: (&str, &str) = ("cleanup.policy", "compact");
const EAGER: (&str, &str) = ("min.cleanable.dirty.ratio", "0");

fn ranges(node: &Node, id: TopicId) -> Vec<Arc<RangePrimary>> {
    node.inner.topic(id).expect("there").ranges().to_vec()
}

/// Closes the segments that are open, and waits until nothing older is needed by a fold.
async fn roll(node: &Node, id: TopicId) {
    let topic = node.inner.topic(id).expect("there");
    for range in topic.ranges().iter() {
        node.inner.roll(&topic, range).await.expect("rolled");
    }
    let until = soon();
    while !ranges(node, id).iter().all(|range| range.checkpointed().is_some()) {
        assert!(Instant::now() < until, "a checkpoint is not written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn compact(node: &Node, id: TopicId) {
    node.inner.compact(&node.inner.topic(id).expect("there")).await;
}

fn failed(node: &Node) -> u64 {
    node.inner.compaction.failed.load(Ordering::Relaxed)
}

type Record = (i64, String, Option<String>);

async fn records(node: &Node, id: TopicId, partition: i32, from: i64) -> Result<Vec<Record>, ReadFailure> {
    let mut all = Vec::new();
    for batch in read_batches(node, id, partition, from).await? {
        let open = OpenBatch::new(&batch, &Uncompressed, 1 << 20).expect("a batch");
        if open.head.is_control() {
            continue;
        }
        for record in open.records() {
            let record = record.expect("a record");
            let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
            let offset = open.head.base_offset + i64::from(record.offset_delta);
            all.push((offset, record.key.map(text).unwrap_or_default(), record.value.map(text)));
        }
    }
    Ok(all)
}

/// Everything that was acknowledged, by partition and key the newest.
#[derive(Default)]
struct Model {
    latest: BTreeMap<(i32, String), (i64, Option<String>)>,
    ends: BTreeMap<i32, i64>,
    written: i64,
}

impl Model {
    async fn write(&mut self, node: &Node, id: TopicId, rng: &mut Rng, batches: usize) {
        for _ in 0..batches {
            let partition = rng.below(4) as i32;
            let count = 1 + rng.below(4);
            let filler = "f".repeat(rng.below(400));
            let record = |n: usize| {
                (
                    format!("k{}", (n * 5 + self.written as usize) % KEYS),
                    format!("{}-{n}-{filler}", self.written),
                )
            };
            let pairs: Vec<_> = (0..count).map(record).collect();
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| (Some(k.as_str()), Some(v.as_str()))).collect();
            let batch = keyed(0, partition, None, 1000 + self.written, &pairs);
            let first = base(&append(node, id, vec![batch]).await[0]);
            assert_eq!(first, self.ends.get(&partition).copied().unwrap_or(0), "dense");
            for (n, (key, value)) in (0..).zip(&pairs) {
                let (key, value) = (key.unwrap_or_default().to_owned(), value.map(str::to_owned));
                self.latest.insert((partition, key), (first + n, value));
            }
            self.ends.insert(partition, first + pairs.len() as i64);
            self.written += 1;
        }
    }

    /// Reads all, from the beginning and from offsets within; how many records there are.
    async fn check(&self, node: &Node, id: TopicId) -> usize {
        let mut found = 0;
        for (&partition, end) in &self.ends {
            let all = records(node, id, partition, 0).await.expect("readable");
            found += all.len();
            assert!(all.is_sorted_by(|a, b| a.0 < b.0));
            let mut latest = BTreeMap::new();
            for (offset, key, value) in &all {
                latest.insert((partition, key.clone()), (*offset, value.clone()));
            }
            let expected: BTreeMap<_, _> = self
                .latest
                .iter()
                .filter(|((p, _), _)| *p == partition)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            assert_eq!(latest, expected, "partition {partition}");
            for from in (0..=*end).step_by(7) {
                let some = records(node, id, partition, from).await.expect("readable");
                let later: Vec<_> = all.iter().filter(|record| record.0 >= from).cloned().collect();
                assert!(some.ends_with(&later), "partition {partition} from {from}");
            }
            let offsets = node.api().offsets(TopicPartition { topic: id, partition }).expect("known");
            assert_eq!((offsets.log_start, offsets.high_watermark), (0, *end));
        }
        found
    }

    fn keys(&self) -> usize {
        self.latest.len()
    }
}

fn sealed(node: &Node, id: TopicId) -> usize {
    node.api().range_stats(id).iter().map(|range| range.segments).sum::<usize>() - ranges(node, id).len()
}

async fn a_life(drive: &str, durable: bool) {
    let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let paths: Vec<&Path> = dirs.iter().map(|dir| dir.path()).collect();
    let mut node = Node::start(options(&paths, &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[COMPACT, EAGER, ("rangeway.drive", drive)]).await;
    let (mut model, mut rng) = (Model::default(), Rng::new(5));
    for round in 0..3 {
        for _ in 0..3 {
            model.write(&node, id, &mut rng, 25).await;
            roll(&node, id).await;
        }
        let before = model.check(&node, id).await;
        assert!(before > model.keys() + 60);
        compact(&node, id).await;
        assert_eq!(failed(&node), 0);
        // All that is closed was compacted, and what is open holds nothing.
        assert_eq!(model.check(&node, id).await, model.keys(), "{drive} round {round}");
        assert!(sealed(&node, id) <= 2, "neighbours were put together: {} segments", sealed(&node, id));
        if durable {
            if round % 2 == 0 {
                node.crash().await
            } else {
                node.stop().await
            }
            node = Node::start(options(&paths, &small())).await.expect("starts again");
            assert_eq!(model.check(&node, id).await, model.keys());
            assert!(node.inner.control.read().tombstones.is_empty(), "what was replaced is deleted");
        }
    }
    // Histories that are split and united: closed ranges' segments too.
    let api = node.api();
    let split = api.split(id, 0, Some(2)).await.expect("split");
    model.write(&node, id, &mut rng, 30).await;
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(model.check(&node, id).await, model.keys(), "{drive} split");
    model.write(&node, id, &mut rng, 30).await;
    api.merge(id, split.created[0], split.created[1]).await.expect("merge");
    model.write(&node, id, &mut rng, 30).await;
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(model.check(&node, id).await, model.keys(), "{drive} merge");
    assert_eq!(failed(&node), 0);
    drop(api);
    if durable {
        node.crash().await;
        node = Node::start(options(&paths, &small())).await.expect("starts again");
        assert_eq!(model.check(&node, id).await, model.keys());
        model.write(&node, id, &mut rng, 10).await;
        model.check(&node, id).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_of_each_key_stays_on_a_disk_through_restarts_splits_and_merges() {
    a_life("disk", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_of_each_key_stays_on_copies_and_stripes() {
    a_life("quorum(2, write=2)", true).await;
    a_life("striped(2, disk)", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_of_each_key_stays_in_memory() {
    a_life("memory", false).await;
}

/// Whatever step it dies at: nothing is lost, what was written and does not count is deleted, and the next one does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_that_dies_at_any_step_leaves_the_old_or_the_new() {
    let mut steps = 0;
    for stop_after in 1..100 {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
        let configs = [COMPACT, EAGER, ("segment.bytes", "65536")];
        let id = topic(&node, "t", 4, &configs).await;
        let (mut model, mut rng) = (Model::default(), Rng::new(stop_after));
        for _ in 0..3 {
            model.write(&node, id, &mut rng, 120).await;
            roll(&node, id).await;
        }
        node.inner.compaction.stop_after.store(stop_after, Ordering::Relaxed);
        compact(&node, id).await;
        let stopped = failed(&node) > 0;
        model.check(&node, id).await;
        node.crash().await;
        let node = Node::start(options(&[dir.path()], &small())).await.expect("starts again");
        assert!(node.inner.control.read().tombstones.is_empty(), "stopped after {stop_after}");
        model.check(&node, id).await;
        roll(&node, id).await;
        compact(&node, id).await;
        assert_eq!(model.check(&node, id).await, model.keys(), "stopped after {stop_after}");
        node.stop().await;
        if !stopped {
            break;
        }
        steps = stop_after;
    }
    assert!((6..99).contains(&steps), "{steps} steps");
}

/// One that is given up while the node runs leaves nothing either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_is_deleted_while_the_node_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[COMPACT, EAGER]).await;
    let (mut model, mut rng) = (Model::default(), Rng::new(3));
    model.write(&node, id, &mut rng, 60).await;
    roll(&node, id).await;
    node.inner.compaction.stop_after.store(3, Ordering::Relaxed);
    compact(&node, id).await;
    assert_eq!(failed(&node), 1);
    let until = soon();
    while !node.inner.control.read().tombstones.is_empty() {
        assert!(Instant::now() < until, "what was written is kept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    compact(&node, id).await;
    assert_eq!(model.check(&node, id).await, model.keys());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_miss_nothing_while_segments_are_replaced_and_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[COMPACT, EAGER]).await;
    let (mut model, mut rng) = (Model::default(), Rng::new(11));
    let seen = parking_lot::Mutex::new(BTreeMap::new());
    let over = AtomicBool::new(false);
    let writing = async {
        for round in 0..25 {
            model.write(&node, id, &mut rng, 12).await;
            *seen.lock() = model.latest.clone();
            roll(&node, id).await;
            compact(&node, id).await;
            if round % 8 == 3 {
                let first = ranges(&node, id)[0].id.0;
                node.api().split(id, first, Some(2)).await.expect("split");
            } else if round % 8 == 7 {
                let both: Vec<u32> = ranges(&node, id).iter().map(|range| range.id.0).collect();
                node.api().merge(id, both[0], both[1]).await.expect("merge");
            }
        }
        over.store(true, Ordering::Relaxed);
    };
    let reading = async {
        let mut reads = 0;
        while !over.load(Ordering::Relaxed) {
            let before = seen.lock().clone();
            for partition in 0..4 {
                // A range that has ended may say that its segments are being replaced: asked again it is another.
                let Ok(all) = records(&node, id, partition, 0).await else { continue };
                for ((_, key), (offset, _)) in before.iter().filter(|((p, _), _)| *p == partition) {
                    let newest = all.iter().filter(|record| record.1 == *key).map(|record| record.0).max();
                    assert!(
                        newest >= Some(*offset),
                        "partition {partition} key {key}: {newest:?}, written at {offset}"
                    );
                }
                reads += 1;
                tokio::task::yield_now().await;
            }
        }
        assert!(reads > 20, "{reads} reads");
    };
    tokio::join!(writing, reading);
    assert_eq!(failed(&node), 0);
    model.check(&node, id).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_do_not_fit_into_memory_are_looked_at_in_several_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut set = small();
    set.push(("cleaner.dedupe.buffer.size", "64KiB"));
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 1, &[COMPACT, EAGER]).await;
    let names: Vec<String> = (0..2000).map(|n| format!("key-{n}")).collect();
    for value in ["old", "new"] {
        for names in names.chunks(100) {
            let pairs: Vec<_> = names.iter().map(|name| (Some(name.as_str()), Some(value))).collect();
            append(&node, id, vec![keyed(0, 0, None, 5, &pairs)]).await;
        }
    }
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(failed(&node), 0);
    let found = records(&node, id, 0, 0).await.expect("readable");
    assert_eq!(found.len(), 2000);
    assert!(
        (2000..).zip(&found).all(|(offset, record)| record.0 == offset && record.2.as_deref() == Some("new"))
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombstones_lag_ratio_and_policy_are_honoured() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 1, &[COMPACT, EAGER, ("delete.retention.ms", "0")]).await;
    let a = |value| keyed(0, 0, None, 5, &[(Some("a"), value), (Some("b"), Some("b"))]);
    for value in [Some("1"), None] {
        append(&node, id, vec![a(value)]).await;
    }
    roll(&node, id).await;
    compact(&node, id).await;
    let offsets = |found: Vec<Record>| found.into_iter().map(|record| record.0).collect::<Vec<_>>();
    assert_eq!(offsets(records(&node, id, 0, 0).await.expect("readable")), [2, 3], "met for the first time");
    let batch = read_batches(&node, id, 0, 0).await.expect("readable").remove(0);
    assert!(delete_horizon(&BatchHead::parse(&batch).expect("a head")).is_some());
    let at = TopicPartition { topic: id, partition: 0 };
    append(&node, id, vec![keyed(0, 0, None, 77, &[(Some("c"), Some("3"))])]).await;
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(offsets(records(&node, id, 0, 0).await.expect("readable")), [3, 4]);
    assert_eq!(offsets(records(&node, id, 0, 1).await.expect("readable")), [3, 4], "an offset that is gone");
    // Times lead to what is there.
    let found = node.api().find_timestamp(at, 6).await.expect("readable").expect("there");
    assert_eq!(BatchHead::parse(&found).expect("a head").base_offset, 4);
    assert!(node.api().find_timestamp(at, 78).await.expect("readable").is_none());
    let found = node.api().find_max_timestamp(at).await.expect("readable").expect("there");
    assert_eq!(BatchHead::parse(&found).expect("a head").base_offset, 4);

    // Young records, records that are not compacted by policy, and few dirty ones stay as they are.
    for configs in [
        &[COMPACT, EAGER, ("min.compaction.lag.ms", "3600000")][..],
        &[("cleanup.policy", "delete")],
        &[COMPACT, ("min.cleanable.dirty.ratio", "1")],
    ] {
        let id = topic(&node, &format!("t{}", configs.len()), 1, configs).await;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_millis();
        for _ in 0..3 {
            append(&node, id, vec![keyed(0, 0, None, now as i64, &[(Some("a"), Some("1"))])]).await;
        }
        roll(&node, id).await;
        if configs[0] == COMPACT {
            compact(&node, id).await;
        }
        assert_eq!(records(&node, id, 0, 0).await.expect("readable").len(), 3, "{configs:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_records_go_open_ones_stay_and_committed_readers_see_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 1, &[COMPACT, EAGER, ("delete.retention.ms", "0")]).await;
    let at = TopicPartition { topic: id, partition: 0 };
    let write = async |producer: i64, sequence, value: &'static str| {
        let batch = keyed(0x10, 0, Some((producer, 0, sequence)), 5, &[(Some("a"), Some(value))]);
        base(&append(&node, id, vec![batch]).await[0])
    };
    let end = async |producer_id, number, commit| {
        let (producer_epoch, coordinator_epoch, version) = (0, 0, TransactionVersion::V1);
        let marker = Marker { producer_id, producer_epoch, coordinator_epoch, number, commit, version };
        node.api().write_marker(at, marker, soon()).await.expect("ended");
    };
    let committed = async || {
        let from = ReadFrom {
            topic: id,
            partition: 0,
            offset: 0,
            max_bytes: 1 << 20,
            isolation: Isolation::Committed,
        };
        let read = node.api().read(&[from], 1 << 20).await.remove(0).expect("readable");
        read.aborted.iter().map(|one| (one.producer_id, one.first_offset)).collect::<Vec<_>>()
    };
    let offsets = async || {
        let found = records(&node, id, 0, 0).await.expect("readable");
        found
            .into_iter()
            .map(|record| (record.0, record.2.unwrap_or_default()))
            .filter(|r| !r.1.is_empty())
            .collect::<Vec<_>>()
    };
    let values = |pairs: &[(i64, &str)]| pairs.iter().map(|(o, v)| (*o, (*v).to_owned())).collect::<Vec<_>>();
    write(7, 0, "kept").await; // 0
    end(7, 1, true).await; // 1
    write(8, 0, "gone").await; // 2
    end(8, 1, false).await; // 3
    roll(&node, id).await;
    write(9, 0, "open").await; // 4
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(committed().await, [(8, 2)]);
    let markers = async || {
        let batches = read_batches(&node, id, 0, 0).await.expect("readable");
        let heads = batches.iter().filter_map(|batch| BatchHead::parse(batch));
        heads.filter(|head| head.is_control()).map(|head| head.base_offset).collect::<Vec<_>>()
    };
    assert_eq!(markers().await, [1, 3]);
    let seen = offsets().await;
    assert!(seen.contains(&(0, "kept".to_owned())) && seen.contains(&(4, "open".to_owned())), "{seen:?}");
    assert!(!seen.iter().any(|(offset, _)| *offset == 2), "aborted: {seen:?}");
    end(9, 1, true).await; // 5
    write(8, 1, "next").await; // 6
    end(8, 2, true).await; // 7
    roll(&node, id).await;
    compact(&node, id).await;
    // The abort's marker is there as long as readers are told of the transaction: what its producer did later is not hidden.
    assert_eq!(markers().await, [1, 3, 5, 7]);
    assert_eq!(committed().await, [(8, 2)]);
    append(&node, id, vec![keyed(0, 0, None, 5, &[(Some("b"), Some("b"))])]).await; // 8
    roll(&node, id).await;
    compact(&node, id).await;
    assert_eq!(markers().await, [3, 7], "nothing is left of the first and third, and their time is over");
    assert_eq!(failed(&node), 0);
    let last = offsets().await;
    assert_eq!(last.into_iter().filter(|r| r.1 != "b").collect::<Vec<_>>(), values(&[(6, "next")]));
    node.stop().await;
}
