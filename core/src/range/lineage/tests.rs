use super::*;
use crate::drive::LogDrive;
use crate::loglet::sequencer::Window;
use crate::range::ack::{Ack, Issued, Pending, Share};
use crate::range::parts::Holdings;
use crate::range::primary::{Batch, Limits, Phase, RangePrimary, Stamping, Told};
use crate::range::project::inherit as inherit_state;
use crate::range::read::{Isolation, load};
use crate::range::retention::{self, Bounds, FoldsFrom, Policy, SegmentView};
use crate::range::state::RangeState;
use crate::store::{DiskStore, MemoryStore, StoreConfig, TailBudget};
use crate::types::{LeafId, LogletId, NodeId, Offset, TopicId};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 8;
const LIMITS: Limits = Limits {
    window: Window { entries: 16, bytes: 1 << 20 },
    checkpoint_piece_bytes: 1 << 16,
    producer_expiration_ms: i64::MAX,
    producers_max: 100,
};

fn span(first: i32, last: i32) -> Span {
    Span { first, last }
}

fn batch(partition: Partition, count: i32, timestamp: i64, text: &str) -> Batch {
    crate::testing::batch::batch(partition, count, None, timestamp, text)
}

/// An appended batch as the model keeps it.
#[derive(Clone, Debug)]
struct Known {
    base: Offset,
    next: Offset,
    timestamp: i64,
    epoch: i32,
    text: String,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Partitioned {
    entries: Vec<Known>,
    log_start: Offset,
    epoch: i32,
}

impl Partitioned {
    fn end(&self) -> Offset {
        self.entries.last().map_or(0, |e| e.next)
    }

    fn readable(&self) -> impl Iterator<Item = &Known> {
        self.entries.iter().filter(|e| e.next > self.log_start)
    }
}

enum Store {
    Memory(Arc<MemoryStore>),
    Disk(Arc<DiskStore>),
}

/// A topic that lives: its ranges' primaries without a node, and what was done to it.
struct World {
    store: Store,
    next_loglet: u64,
    next_range: u32,
    /// Live ranges in order of partitions, each with whether it was opened.
    live: Vec<(Arc<RangePrimary>, bool)>,
    model: Vec<Partitioned>,
    clock: i64,
    /// Segments that retention let go.
    dropped: usize,
}

impl World {
    fn new(store: Store) -> World {
        let model = vec![Partitioned::default(); PARTITIONS as usize];
        let mut world =
            World { store, next_loglet: 1, next_range: 0, live: Vec::new(), model, clock: 1000, dropped: 0 };
        let whole = span(0, PARTITIONS - 1);
        world.begin(0, whole, RangeState::new(whole), Vec::new());
        world
    }

    fn memory() -> World {
        World::new(Store::Memory(MemoryStore::new().expect("a thread")))
    }

    fn drive(&self, loglet: LogletId) -> Arc<dyn LogDrive> {
        let leaf = LeafId { loglet, leaf: 0 };
        match &self.store {
            Store::Memory(store) => store.drive(leaf),
            Store::Disk(store) => store.drive(leaf),
        }
    }

    fn segment(&mut self, owner: Owner) -> Arc<Segment> {
        let loglet = LogletId(self.next_loglet);
        self.next_loglet += 1;
        Arc::new(Segment::new(owner, loglet, 0, self.drive(loglet), self.clock, None))
    }

    /// A range that is not opened yet.
    fn begin(&mut self, at: usize, span: Span, state: RangeState, sealed: Vec<Arc<Segment>>) {
        let id = RangeId(self.next_range);
        self.next_range += 1;
        let first = self.segment(Owner { range: id, span });
        let topic = TopicId(uuid::Uuid::from_u128(1));
        let primary = RangePrimary::new(topic, id, LIMITS, Stamping::default(), state, sealed, first);
        self.live.insert(at, (primary, false));
    }

    fn open(&mut self, at: usize) {
        let (primary, opened) = self.live[at].clone();
        if !opened {
            let first = primary.view(primary.span.first).expect("inside").segment;
            primary.open(first, &self.epochs(primary.span), Vec::new(), self.clock);
            self.live[at].1 = true;
        }
    }

    fn epochs(&self, of: Span) -> Vec<(Span, i32)> {
        of.iter().map(|p| (span(p, p), self.model[p as usize].epoch)).collect()
    }

    fn range_of(&self, partition: Partition) -> usize {
        self.live.iter().position(|(r, _)| r.span.contains(partition)).expect("ranges tile the topic")
    }

    async fn append(&mut self, partition: Partition, count: i32, timestamp: i64) {
        let at = self.range_of(partition);
        self.open(at);
        self.clock += 1;
        let text = format!("{partition}/{}", self.clock);
        let one = batch(partition, count, timestamp, &text);
        let (ack, mut issued) = (Arc::new(Ack::default()), vec![None]);
        let bytes = one.bytes.len();
        let told = |n: usize, told: Told| issued[n] = Some(told.issued());
        self.live[at].0.issue([(&one, Share::New(&ack, 0))].into_iter(), told, self.clock);
        let issued = issued.into_iter().map(|one| one.expect("there is room")).collect();
        let done = Pending::new(issued, ack).wait(Instant::now() + Duration::from_secs(20)).await;
        let of = &mut self.model[partition as usize];
        let base = of.end();
        assert!(matches!(done[..], [Issued::Ok { base_offset, .. }] if base_offset == base), "{done:?}");
        let next = base + i64::from(count);
        of.entries.push(Known { base, next, timestamp, epoch: of.epoch, text, bytes });
    }

    async fn trim(&mut self, partition: Partition, keep: i64) {
        let at = self.range_of(partition);
        self.open(at);
        let of = &mut self.model[partition as usize];
        of.log_start = of.log_start.max(of.end() - keep);
        let start = of.log_start;
        let ack = Arc::new(Ack::default());
        let issued = self.live[at].0.issue_log_starts(&[(partition, start)], &ack, self.clock);
        issued.expect("of this range").expect("there is room");
        let issued = vec![Issued::Ok { base_offset: 0, log_start: 0, log_append_time: -1 }];
        Pending::new(issued, ack).wait(Instant::now() + Duration::from_secs(20)).await;
    }

    /// Ends a range's active segment; gives its state, which is the fold of what it issued.
    async fn end(&mut self, at: usize) -> RangeState {
        let (primary, opened) = self.live[at].clone();
        if opened {
            primary.stop_issuing(0);
            while !primary.is_idle() {
                primary.wait_for_progress().await;
            }
            let tail = primary.drained().expect("nothing is in flight");
            primary.segments().last().expect("opened").seal(tail);
        }
        primary.state()
    }

    async fn roll(&mut self, at: usize) {
        self.open(at);
        self.end(at).await;
        let primary = self.live[at].0.clone();
        let next = self.segment(Owner { range: primary.id, span: primary.span });
        primary.open(next, &self.epochs(primary.span), Vec::new(), self.clock);
    }

    /// Closes the ranges at `which` and begins one over each of `spans` in their place; `elsewhere` raises the epochs.
    async fn reshard(&mut self, which: std::ops::Range<usize>, spans: &[Span], elsewhere: bool) {
        let (mut states, mut lists) = (Vec::new(), Vec::new());
        for at in which.clone() {
            states.push(self.end(at).await);
            lists.push(self.live[at].0.segments());
        }
        let first = which.start;
        self.live.drain(which).for_each(|(parent, _)| parent.close(Phase::Stopping));
        for (n, &span) in spans.iter().enumerate() {
            span.iter().for_each(|p| self.model[p as usize].epoch += i32::from(elsewhere));
            let state = inherit_state(span, &states).expect("the parents cover it");
            self.begin(first + n, span, state, inherit(span, lists.iter().map(|l| &l[..])));
        }
    }

    async fn split(&mut self, partition: Partition, elsewhere: bool) {
        let at = self.range_of(partition);
        let Span { first, last } = self.live[at].0.span;
        if partition > first {
            self.reshard(at..at + 1, &[span(first, partition - 1), span(partition, last)], elsewhere).await;
        }
    }

    async fn merge(&mut self, partition: Partition, elsewhere: bool) {
        let at = self.range_of(partition);
        if at + 1 < self.live.len() {
            let both = span(self.live[at].0.span.first, self.live[at + 1].0.span.last);
            self.reshard(at..at + 2, &[both], elsewhere).await;
        }
    }

    /// All ranges begin anew as after a restart: segments opened afresh, of which nothing was read yet.
    async fn restart(&mut self) {
        let mut opened: BTreeMap<LogletId, Arc<Segment>> = BTreeMap::new();
        for at in 0..self.live.len() {
            let state = self.end(at).await;
            let (primary, _) = self.live.remove(at);
            primary.close(Phase::Stopping);
            let mut list = Vec::new();
            for old in primary.segments().iter() {
                let fresh = || {
                    let drive = self.drive(old.loglet);
                    Arc::new(Segment::new(old.owner, old.loglet, old.base, drive, old.opened_at, old.tail()))
                };
                list.push(opened.entry(old.loglet).or_insert_with(fresh).clone());
            }
            primary.span.iter().for_each(|p| self.model[p as usize].epoch += 1);
            let first = self.segment(Owner { range: primary.id, span: primary.span });
            let (topic, id) = (primary.topic, primary.id);
            let next = RangePrimary::new(topic, id, LIMITS, Stamping::default(), state, list, first);
            self.live.insert(at, (next, false));
        }
    }

    /// Deletes every segment that retention lets go, as it does on a node.
    async fn retain(&mut self) {
        let mut holdings = Holdings::default();
        let mut owners: BTreeMap<RangeId, Owner> = BTreeMap::new();
        for (live, _) in &self.live {
            let parts = live.parts(self.clock).await.expect("readable");
            owners.extend(parts.iter().map(|(segment, _)| (segment.owner.range, segment.owner)));
            holdings.add(parts);
        }
        for (id, owner) in owners {
            let own = self.live.iter().find(|(live, _)| live.id == id);
            let folds_from = match own {
                Some((own, _)) => own.checkpointed().map_or(FoldsFrom::Unknown, FoldsFrom::Segment),
                None => {
                    let live = self.live.iter().map(|(r, _)| (r.span, r.checkpointed().is_some()));
                    retention::folds_through(owner.span, live)
                }
            };
            let log_start = |p: Partition| self.model.get(p as usize).map(|of| of.log_start);
            let gone = retention::droppable(&holdings.views(id), log_start, folds_from);
            self.live.iter().for_each(|(live, _)| live.drop_segments(&gone));
            if let Store::Memory(store) = &self.store {
                gone.iter().for_each(|loglet| store.discard(*loglet));
            }
            self.dropped += gone.len();
        }
    }

    async fn step(&mut self, op: &Op) {
        match *op {
            Op::Append { partition, count, timestamp } => self.append(partition, count, timestamp).await,
            Op::Trim { partition, keep } => self.trim(partition, keep).await,
            Op::Roll { partition } => {
                let at = self.range_of(partition);
                self.roll(at).await;
            }
            Op::Split { partition, elsewhere } => self.split(partition, elsewhere).await,
            Op::Merge { partition, elsewhere } => self.merge(partition, elsewhere).await,
            Op::Restart => self.restart().await,
            Op::Retain => self.retain().await,
        }
    }

    /// What `partition` gives from `offset` on under a byte limit is what the model says.
    async fn check_read(&self, partition: Partition, offset: Offset, max_bytes: usize) {
        let range = &self.live[self.range_of(partition)].0;
        let of = &self.model[partition as usize];
        let read = range.read(partition, offset, max_bytes, Isolation::Uncommitted).await.expect("readable");
        let mut taken = 0;
        let expected: Vec<&Known> = of
            .entries
            .iter()
            .filter(|e| e.next > offset)
            .take_while(|e| {
                taken += e.bytes;
                taken <= max_bytes || taken == e.bytes
            })
            .collect();
        assert_eq!(read.entries.len(), expected.len(), "partition {partition} from {offset}");
        for (stored, known) in read.entries.into_iter().zip(expected) {
            assert_eq!((stored.header.partition, stored.header.base_offset), (partition, known.base));
            let bytes = load(stored.payload).await.expect("readable");
            assert_eq!(&bytes[61..], known.text.as_bytes());
        }
    }

    async fn check_bytes(&self) {
        let mut stored = 0;
        for (range, _) in &self.live {
            range.parts(self.clock).await.expect("readable");
            stored += range.stored().values().sum::<u64>();
        }
        let written: u64 = self.model.iter().flat_map(|of| &of.entries).map(|e| e.bytes as u64).sum();
        let readable: u64 = self.model.iter().flat_map(|of| of.readable()).map(|e| e.bytes as u64).sum();
        assert!(readable <= stored && stored <= written, "{readable} <= {stored} <= {written}");
        assert!(self.dropped > 0 || stored == written);
    }

    async fn check(&self, max_bytes: usize) {
        self.check_bytes().await;
        for (partition, of) in (0..).zip(&self.model) {
            let range = &self.live[self.range_of(partition)].0;
            let view = range.view(partition).expect("inside");
            assert_eq!((view.log_start, view.high_watermark), (of.log_start, of.end()));
            for offset in of.log_start..=of.end() {
                self.check_read(partition, offset, max_bytes).await;
            }
            self.check_read(partition, of.log_start, usize::MAX).await;
            for timestamp in 0..12 {
                let found = range.first_at_timestamp(partition, timestamp).await.expect("readable");
                let expected = of.readable().find(|e| e.timestamp >= timestamp);
                assert_eq!(found.map(|s| s.header.base_offset), expected.map(|e| e.base));
            }
            let max = of.readable().map(|e| e.timestamp).max();
            let expected = of.readable().find(|e| Some(e.timestamp) == max);
            let found = range.first_at_max_timestamp(partition).await.expect("readable");
            assert_eq!(found.map(|s| s.header.base_offset), expected.map(|e| e.base));
            for entry in of.readable() {
                let after = of.entries.iter().find(|e| e.epoch > entry.epoch).map_or(of.end(), |e| e.base);
                assert_eq!(range.end_of_epoch(partition, entry.epoch), Some((entry.epoch, after)));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append { partition: Partition, count: i32, timestamp: i64 },
    Trim { partition: Partition, keep: i64 },
    Roll { partition: Partition },
    Split { partition: Partition, elsewhere: bool },
    Merge { partition: Partition, elsewhere: bool },
    Restart,
    Retain,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let p = || 0..PARTITIONS;
    let op = prop_oneof![
        8 => (p(), 1..4i32, 0..10i64).prop_map(|(partition, count, timestamp)| Op::Append { partition, count, timestamp }),
        1 => (p(), 0..8i64).prop_map(|(partition, keep)| Op::Trim { partition, keep }),
        1 => p().prop_map(|partition| Op::Roll { partition }),
        2 => (p(), any::<bool>()).prop_map(|(partition, elsewhere)| Op::Split { partition, elsewhere }),
        2 => (p(), any::<bool>()).prop_map(|(partition, elsewhere)| Op::Merge { partition, elsewhere }),
    ];
    let op = prop_oneof![20 => op, 1 => Just(Op::Restart), 2 => Just(Op::Retain)];
    prop::collection::vec(op, 1..70)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_split_and_merged_every_partition_reads_as_it_was_written(ops in ops(), max_bytes in 1..400usize) {
        runtime().block_on(async {
            let mut world = World::memory();
            for op in &ops {
                world.step(op).await;
            }
            world.check(max_bytes).await;
        });
    }
}

async fn split_and_merged(mut world: World) {
    for round in 0..3 {
        for partition in 0..PARTITIONS {
            world.append(partition, 2, round).await;
        }
        world.split(4, round == 1).await;
        world.check(100).await;
        for partition in [1, 5] {
            world.append(partition, 1, 5 + round).await;
        }
        world.split(6, false).await;
        world.merge(4, true).await;
        world.append(5, 3, 9).await;
        world.merge(0, false).await;
        world.check(200).await;
        world.trim(1, 1).await;
        world.restart().await;
    }
    assert_eq!(world.live.len(), 1);
    world.check(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_reads_across_splits_and_merges_as_memory_does() {
    split_and_merged(World::memory()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let config = StoreConfig {
        extent_bytes: 1 << 20,
        tail_bytes: TailBudget::new(0),
        reserve_bytes: 0,
        ..StoreConfig::new(dir.path(), NodeId(1))
    };
    let store =
        tokio::task::spawn_blocking(|| DiskStore::open(config).expect("opens").0).await.expect("ends");
    split_and_merged(World::new(Store::Disk(store))).await;
}

#[tokio::test]
async fn a_read_near_the_tail_looks_at_nothing_of_the_ancestors() {
    let mut world = World::memory();
    for _ in 0..20 {
        world.append(0, 1, 1).await;
        world.split(4, false).await;
        world.append(5, 1, 1).await;
        world.merge(0, false).await;
    }
    world.append(0, 1, 1).await;
    world.restart().await;
    world.append(0, 1, 2).await;
    let range = &world.live[0].0;
    let end = world.model[0].end();
    for offset in [end, end - 1] {
        range.read(0, offset, 100, Isolation::Uncommitted).await.expect("readable");
    }
    let looked_at = || range.segments().iter().rev().map(|s| s.starts().is_some()).collect::<Vec<_>>();
    let (newest, older) = (looked_at()[0], looked_at()[1..].iter().filter(|seen| **seen).count());
    assert_eq!((newest, older), (true, 0));
    range.read(0, end - 2, 100, Isolation::Uncommitted).await.expect("readable");
    assert_eq!(looked_at().iter().filter(|seen| **seen).count(), 2, "the one before, and no more");
    world.check(300).await;
}

#[tokio::test]
async fn retention_lets_a_closed_range_go_once_all_partitions_have_passed_it_and_its_children_have_checkpoints()
 {
    let mut world = World::memory();
    for partition in [0, 5] {
        world.append(partition, 2, 1).await;
    }
    world.roll(0).await;
    world.append(5, 1, 2).await;
    world.split(4, false).await;
    world.trim(5, 0).await;
    let ancestors = |world: &World, at: usize| {
        world.live[at].0.segments().iter().filter(|s| s.owner.range.0 == 0).count()
    };
    world.retain().await;
    assert_eq!((world.dropped, ancestors(&world, 1)), (0, 2), "the left child has no checkpoint");
    world.open(0);
    world.append(1, 1, 1).await;
    world.retain().await;
    assert_eq!(world.dropped, 0, "partition 0 has not passed the first segment");
    world.trim(0, 0).await;
    world.retain().await;
    assert_eq!((world.dropped, ancestors(&world, 0), ancestors(&world, 1)), (2, 0, 0));
    let owners = |at: usize| world.live[at].0.stored().into_iter().filter(|(_, n)| *n > 0).map(|(r, _)| r.0);
    assert_eq!((owners(0).collect::<Vec<_>>(), owners(1).count()), (vec![1], 0));
    world.check(100).await;
}

#[tokio::test]
async fn retention_counts_a_partitions_records_wherever_they_were_written() {
    let mut world = World::memory();
    for _ in 0..3 {
        world.append(5, 2, 100).await;
        world.append(0, 1, 100).await;
        world.split(4, false).await;
        world.append(5, 1, 200).await;
        world.merge(0, false).await;
    }
    let range = world.live[0].0.clone();
    let seen = range.parts(world.clock).await.expect("readable");
    let views: Vec<SegmentView> = seen
        .into_iter()
        .map(|(s, parts)| SegmentView { loglet: s.loglet, sealed: s.tail().is_some(), parts })
        .collect();
    let of =
        |p| views.iter().flat_map(|v| &v.parts).filter(move |part| part.partition == p).collect::<Vec<_>>();
    assert_eq!(
        of(5).iter().map(|p| (p.first, p.next)).collect::<Vec<_>>(),
        [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9)]
    );
    assert_eq!(of(0).iter().map(|p| (p.first, p.next)).collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
    let stored: u64 = world.model[5].entries.iter().map(|e| e.bytes as u64).sum();
    assert_eq!(of(5).iter().map(|p| p.bytes).sum::<u64>(), stored);
    let bounds =
        |p| range.view(p).map(|v| Bounds { log_start: v.log_start, high_watermark: v.high_watermark });
    let newest: u64 = world.model[5].entries[4..].iter().map(|e| e.bytes as u64).sum();
    let bytes = Policy { retention_ms: None, retention_bytes: Some(newest) };
    assert_eq!(retention::raise(&views, bounds, bytes, 0), [(0, 1), (5, 6)]);
    let time = Policy { retention_ms: Some(50), retention_bytes: None };
    assert_eq!(retention::raise(&views, bounds, time, 200), [(0, 3), (5, 2)]);
}

/// Segments that nothing was read of, of the ranges `(id, span)` in the order of their loglets, all sealed.
fn list(of: &[(u32, Span)]) -> Vec<Arc<Segment>> {
    let store = MemoryStore::new().expect("a thread");
    let sealed = |(loglet, &(range, span)): (u64, &(u32, Span))| {
        let loglet = LogletId(loglet);
        let drive = store.drive(LeafId { loglet, leaf: 0 });
        let owner = Owner { range: RangeId(range), span };
        Arc::new(Segment::new(owner, loglet, 0, drive, 0, Some(Address(1))))
    };
    (0..).zip(of).map(sealed).collect()
}

#[test]
fn the_history_of_a_partition_is_what_holds_it() {
    let segments =
        list(&[(0, span(0, 3)), (1, span(0, 1)), (2, span(2, 3)), (1, span(0, 1)), (3, span(0, 3))]);
    let history = |partition| {
        let mut places = Vec::new();
        while let Some(at) = next_of(&segments, places.last().map_or(0, |at| at + 1), partition) {
            places.push(at);
        }
        places
    };
    assert_eq!(history(0), [0, 1, 3, 4]);
    assert_eq!(history(2), [0, 2, 4]);
    assert_eq!(history(4), [] as [usize; 0]);
    assert_eq!(back(&segments, 5, 1, 2), Some(4));
    assert_eq!(back(&segments, 4, 1, 2), Some(2));
    assert_eq!(back(&segments, 4, 9, 2), Some(0), "the oldest there is");
    assert_eq!(back(&segments, 0, 1, 2), None);
}

#[test]
fn a_child_inherits_what_overlaps_and_nothing_twice_or_empty() {
    let grandparent = list(&[(0, span(0, 7))]).remove(0);
    let mut lists = [vec![grandparent.clone()], vec![grandparent]];
    let others = list(&[(9, span(0, 7)), (1, span(0, 3)), (2, span(4, 5))]);
    lists[0].push(others[1].clone());
    lists[1].push(others[2].clone());
    let of = |span| -> Vec<u64> {
        inherit(span, lists.iter().map(|l| &l[..])).iter().map(|s| s.loglet.0).collect()
    };
    assert_eq!(of(span(0, 5)), [0, 1, 2]);
    assert_eq!(of(span(3, 3)), [0, 1]);
    assert_eq!(of(span(6, 7)), [0]);
}

mod control {
    use super::*;
    use crate::drive::spec::DriveSpec;
    use crate::types::{Generation, Primary};
    use crate::virtual_log::chain::SealMode;

    fn entry(loglet: u64, tail: Option<u64>) -> ChainEntry {
        let node = NodeId(1);
        ChainEntry {
            base: 0,
            loglet: LogletId(loglet),
            drive: DriveSpec::Memory { node },
            window: 1,
            seal_mode: SealMode::Fence,
            primary: Primary { node, generation: Generation(1) },
            tail: tail.map(Address),
            degraded: None,
            lost: Vec::new(),
            sparse: false,
            opened_at: 0,
        }
    }

    struct Given {
        owner: Owner,
        parents: Vec<RangeId>,
        chain: Vec<ChainEntry>,
    }

    fn given(id: u32, span: Span, parents: &[u32], chain: &[(u64, Option<u64>)]) -> Given {
        Given {
            owner: Owner { range: RangeId(id), span },
            parents: parents.iter().map(|p| RangeId(*p)).collect(),
            chain: chain.iter().map(|(loglet, tail)| entry(*loglet, *tail)).collect(),
        }
    }

    fn loglets(of: &[Given], span: Span, parents: &[RangeId]) -> Vec<u64> {
        let find = |id: RangeId| {
            let found = of.iter().find(|r| r.owner.range == id)?;
            Some(Kin { owner: found.owner, parents: &found.parents, chain: &found.chain })
        };
        ancestors(span, parents, find).iter().map(|(_, entry)| entry.loglet.0).collect()
    }

    #[test]
    fn ancestors_are_found_through_empty_and_shared_ones_and_not_through_dropped_ones() {
        let mut all = vec![
            given(0, span(0, 7), &[], &[(1, Some(9)), (2, Some(4))]),
            given(1, span(0, 3), &[0], &[]),
            given(2, span(4, 7), &[0], &[(5, Some(2))]),
            given(3, span(0, 7), &[1, 2], &[(7, Some(3)), (8, Some(0))]),
        ];
        let parents = [RangeId(3)];
        assert_eq!(loglets(&all, span(0, 7), &parents), [1, 2, 5, 7]);
        assert_eq!(loglets(&all, span(1, 1), &parents), [1, 2, 7], "the sibling's are not the partition's");
        all.remove(0);
        assert_eq!(loglets(&all, span(0, 7), &parents), [5, 7]);
        assert_eq!(loglets(&all, span(0, 7), &[]), [] as [u64; 0]);
    }

    #[test]
    fn a_lineage_a_thousand_deep_is_walked_once() {
        // Each step splits the one range and merges both halves: 2^500 ways lead to the root.
        let mut all = vec![given(0, span(0, 1), &[], &[(1, Some(1))])];
        for n in 0..500u32 {
            let (parent, left) = (3 * n, 3 * n + 1);
            let loglet = u64::from(left) + 1;
            all.push(given(left, span(0, 0), &[parent], &[(loglet, Some(1))]));
            all.push(given(left + 1, span(1, 1), &[parent], &[(loglet + 1, Some(1))]));
            all.push(given(left + 2, span(0, 1), &[left, left + 1], &[(loglet + 2, Some(1))]));
        }
        let found = loglets(&all, span(1, 1), &[RangeId(1500)]);
        assert_eq!(found.len(), 1001);
        assert!(found.windows(2).all(|w| w[0] < w[1]), "oldest first");
    }
}
