//! For tests: a topic whose ranges are split, merged, rolled, trimmed and begun anew over real stores, beside a model of what
//! its partitions hold and what of their transactions is open or aborted.

use super::*;
use crate::drive::LogDrive;
use crate::loglet::sequencer::Window;
use crate::range::ack::{Ack, Issued, Pending, Share};
use crate::range::markers::{Marker, TransactionVersion};
use crate::range::parts::Holdings;
use crate::range::primary::{Batch, Limits, Phase, RangePrimary, Stamping, Told};
use crate::range::project::inherit as inherit_state;
use crate::range::read::{Isolation, load};
use crate::range::retention::{self, FoldsFrom};
use crate::range::state::RangeState;
use crate::range::transactions::AbortedSpan;
use crate::store::{DiskStore, MemoryStore};
use crate::types::{LeafId, LogletId, Offset, TopicId};
use proptest::prelude::*;
use std::time::{Duration, Instant};

pub(super) const PARTITIONS: i32 = 8;
pub(super) const LIMITS: Limits = Limits {
    window: Window { entries: 16, bytes: 1 << 20 },
    checkpoint_piece_bytes: 1 << 16,
    producer_expiration_ms: i64::MAX,
    producers_max: 100,
};

pub(super) fn span(first: i32, last: i32) -> Span {
    Span { first, last }
}

pub(super) fn batch(partition: Partition, count: i32, timestamp: i64, text: &str) -> Batch {
    crate::testing::batch::batch(partition, count, None, timestamp, text)
}

/// An appended batch as the model keeps it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) base: Offset,
    pub(super) next: Offset,
    pub(super) timestamp: i64,
    pub(super) epoch: i32,
    pub(super) text: Vec<u8>,
    pub(super) bytes: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Partitioned {
    pub(super) entries: Vec<Known>,
    pub(super) log_start: Offset,
    pub(super) epoch: i32,
    /// Open transactions by producer, and how many transactional batches each has written.
    pub(super) open: BTreeMap<i64, Offset>,
    pub(super) sequences: BTreeMap<i64, i32>,
    pub(super) aborted: Vec<AbortedSpan>,
}

impl Partitioned {
    pub(super) fn end(&self) -> Offset {
        self.entries.last().map_or(0, |e| e.next)
    }

    pub(super) fn last_stable(&self) -> Offset {
        self.open.values().copied().fold(self.end(), Offset::min).max(self.log_start)
    }

    pub(super) fn readable(&self) -> impl Iterator<Item = &Known> {
        self.entries.iter().filter(|e| e.next > self.log_start)
    }
}

pub(super) enum Store {
    Memory(Arc<MemoryStore>),
    Disk(Arc<DiskStore>),
}

/// A topic that lives: its ranges' primaries without a node, and what was done to it.
pub(super) struct World {
    pub(super) store: Store,
    pub(super) next_loglet: u64,
    pub(super) next_range: u32,
    /// Live ranges in order of partitions, each with whether it was opened.
    pub(super) live: Vec<(Arc<RangePrimary>, bool)>,
    pub(super) model: Vec<Partitioned>,
    pub(super) clock: i64,
    /// Segments that retention let go.
    pub(super) dropped: usize,
}

impl World {
    pub(super) fn new(store: Store) -> World {
        let model = vec![Partitioned::default(); PARTITIONS as usize];
        let mut world =
            World { store, next_loglet: 1, next_range: 0, live: Vec::new(), model, clock: 1000, dropped: 0 };
        let whole = span(0, PARTITIONS - 1);
        world.begin(0, whole, RangeState::new(whole), Vec::new());
        world
    }

    pub(super) fn memory() -> World {
        World::new(Store::Memory(MemoryStore::new().expect("a thread")))
    }

    pub(super) fn drive(&self, loglet: LogletId) -> Arc<dyn LogDrive> {
        let leaf = LeafId { loglet, leaf: 0 };
        match &self.store {
            Store::Memory(store) => store.drive(leaf),
            Store::Disk(store) => store.drive(leaf),
        }
    }

    pub(super) fn segment(&mut self, owner: Owner) -> Arc<Segment> {
        let loglet = LogletId(self.next_loglet);
        self.next_loglet += 1;
        Arc::new(Segment::new(owner, loglet, loglet.0, self.drive(loglet), self.clock, None))
    }

    /// A range that is not opened yet.
    pub(super) fn begin(&mut self, at: usize, span: Span, state: RangeState, sealed: Vec<Arc<Segment>>) {
        let id = RangeId(self.next_range);
        self.next_range += 1;
        let first = self.segment(Owner { range: id, span });
        let topic = TopicId(uuid::Uuid::from_u128(1));
        let primary = RangePrimary::new(topic, id, LIMITS, Stamping::default(), state, sealed, first);
        self.live.insert(at, (primary, false));
    }

    pub(super) fn open(&mut self, at: usize) {
        let (primary, opened) = self.live[at].clone();
        if !opened {
            let first = primary.view(primary.span.first).expect("inside").segment;
            primary.open(first, &self.epochs(primary.span), Vec::new(), self.clock);
            self.live[at].1 = true;
        }
    }

    pub(super) fn epochs(&self, of: Span) -> Vec<(Span, i32)> {
        of.iter().map(|p| (span(p, p), self.model[p as usize].epoch)).collect()
    }

    pub(super) fn range_of(&self, partition: Partition) -> usize {
        self.live.iter().position(|(r, _)| r.span.contains(partition)).expect("ranges tile the topic")
    }

    pub(super) async fn append(&mut self, partition: Partition, count: i32, timestamp: i64) {
        let text = format!("{partition}/{}", self.clock);
        self.append_one(batch(partition, count, timestamp, &text)).await;
    }

    /// A batch of a producer's transaction.
    pub(super) async fn transact(&mut self, partition: Partition, producer: i64) {
        let text = format!("{partition}/{producer}/{}", self.clock);
        let of = &mut self.model[partition as usize];
        let begin = of.end();
        of.open.entry(producer).or_insert(begin);
        let sequence = of.sequences.entry(producer).or_default();
        *sequence += 1;
        let producer = (producer, 0, *sequence - 1);
        let one = crate::testing::batch::transactional(partition, 1, producer, 5, &text);
        self.append_one(one).await;
    }

    /// A producer's transaction ends, if it has one; its marker comes twice.
    pub(super) async fn mark(&mut self, partition: Partition, producer_id: i64, commit: bool) {
        let at = self.range_of(partition);
        self.open(at);
        self.clock += 1;
        let of = &mut self.model[partition as usize];
        let (base, number) = (of.end(), of.end() as u64 + 1);
        let version = TransactionVersion::V1;
        let marker = Marker { producer_id, producer_epoch: 0, coordinator_epoch: 0, number, commit, version };
        let ack = Arc::new(Ack::default());
        for _ in 0..2 {
            let issued = self.live[at].0.issue_marker(partition, &marker, &ack, self.clock);
            issued.expect("of this range").expect("there is room");
        }
        let issued = vec![Issued::Ok { base_offset: base, log_start: 0, log_append_time: -1 }];
        let done = Pending::new(issued, ack).wait(Instant::now() + Duration::from_secs(20)).await;
        assert!(matches!(done[..], [Issued::Ok { .. }]), "{done:?}");
        if let (Some(first), false) = (of.open.remove(&producer_id), commit) {
            of.aborted.push(AbortedSpan { producer_id, first, last: base });
        }
        let text = [&[0x20, 0, 0, 0, 8, 0, 0, 0, u8::from(commit), 12][..], &[0; 7]].concat();
        let (bytes, epoch, timestamp) = (61 + text.len(), of.epoch, self.clock);
        of.entries.push(Known { base, next: base + 1, timestamp, epoch, text, bytes });
    }

    pub(super) async fn append_one(&mut self, one: Batch) {
        let partition = one.partition;
        let (count, timestamp) = (one.head.record_count, one.head.base_timestamp);
        let text = one.bytes[61..].to_vec();
        let at = self.range_of(partition);
        self.open(at);
        self.clock += 1;
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

    pub(super) async fn trim(&mut self, partition: Partition, keep: i64) {
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
    pub(super) async fn end(&mut self, at: usize) -> RangeState {
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

    pub(super) async fn roll(&mut self, at: usize) {
        self.open(at);
        self.end(at).await;
        let primary = self.live[at].0.clone();
        let next = self.segment(Owner { range: primary.id, span: primary.span });
        primary.open(next, &self.epochs(primary.span), Vec::new(), self.clock);
    }

    /// Closes the ranges at `which` and begins one over each of `spans` in their place; `elsewhere` raises the epochs.
    pub(super) async fn reshard(&mut self, which: std::ops::Range<usize>, spans: &[Span], elsewhere: bool) {
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

    pub(super) async fn split(&mut self, partition: Partition, elsewhere: bool) {
        let at = self.range_of(partition);
        let Span { first, last } = self.live[at].0.span;
        if partition > first {
            self.reshard(at..at + 1, &[span(first, partition - 1), span(partition, last)], elsewhere).await;
        }
    }

    pub(super) async fn merge(&mut self, partition: Partition, elsewhere: bool) {
        let at = self.range_of(partition);
        if at + 1 < self.live.len() {
            let both = span(self.live[at].0.span.first, self.live[at + 1].0.span.last);
            self.reshard(at..at + 2, &[both], elsewhere).await;
        }
    }

    /// All ranges begin anew as after a restart: segments opened afresh, of which nothing was read yet.
    pub(super) async fn restart(&mut self) {
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
    pub(super) async fn retain(&mut self) {
        let mut holdings = Holdings::default();
        let mut owners: BTreeMap<RangeId, Owner> = BTreeMap::new();
        for (live, _) in &self.live {
            let parts = live.parts(self.clock).await;
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

    pub(super) async fn step(&mut self, op: &Op) {
        match *op {
            Op::Append { partition, count, timestamp } => self.append(partition, count, timestamp).await,
            Op::Transact { partition, producer } => self.transact(partition, producer).await,
            Op::Mark { partition, producer, commit } => self.mark(partition, producer, commit).await,
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
    pub(super) async fn check_read(&self, partition: Partition, offset: Offset, max_bytes: usize) {
        self.check_read_as(partition, offset, max_bytes, Isolation::Uncommitted).await;
        self.check_read_as(partition, offset, max_bytes, Isolation::Committed).await;
    }

    pub(super) async fn check_read_as(
        &self,
        partition: Partition,
        offset: Offset,
        max_bytes: usize,
        isolation: Isolation,
    ) {
        let range = &self.live[self.range_of(partition)].0;
        let of = &self.model[partition as usize];
        let read = range.read(partition, offset, max_bytes, isolation).await.expect("readable");
        let committed = isolation == Isolation::Committed;
        let below = if committed { of.last_stable() } else { of.end() };
        let mut taken = 0;
        let expected: Vec<&Known> = of
            .entries
            .iter()
            .filter(|e| e.next > offset && offset < below)
            .take_while(|e| e.base < below)
            .take_while(|e| {
                taken += e.bytes;
                taken <= max_bytes || taken == e.bytes
            })
            .collect();
        assert_eq!(read.entries.len(), expected.len(), "partition {partition} from {offset}");
        let next = expected.last().map_or(offset, |e| e.next);
        let within = |span: &&AbortedSpan| committed && span.first < next && span.last >= offset;
        let mut aborted: Vec<AbortedSpan> = of.aborted.iter().filter(within).copied().collect();
        aborted.sort_by_key(|span| span.first);
        assert_eq!(read.aborted, if expected.is_empty() { Vec::new() } else { aborted });
        for (stored, known) in read.entries.into_iter().zip(expected) {
            assert_eq!((stored.header.partition, stored.header.base_offset), (partition, known.base));
            let bytes = load(stored.payload).await.expect("readable");
            assert_eq!(bytes[61..], known.text);
        }
    }

    pub(super) async fn check_bytes(&self) {
        let mut stored = 0;
        for (range, _) in &self.live {
            range.parts(self.clock).await;
            stored += range.stored().values().sum::<u64>();
        }
        let written: u64 = self.model.iter().flat_map(|of| &of.entries).map(|e| e.bytes as u64).sum();
        let readable: u64 = self.model.iter().flat_map(|of| of.readable()).map(|e| e.bytes as u64).sum();
        assert!(readable <= stored && stored <= written, "{readable} <= {stored} <= {written}");
        assert!(self.dropped > 0 || stored == written);
    }

    pub(super) async fn check(&self, max_bytes: usize) {
        self.check_bytes().await;
        for (partition, of) in (0..).zip(&self.model) {
            let range = &self.live[self.range_of(partition)].0;
            let view = range.view(partition).expect("inside");
            assert_eq!((view.log_start, view.high_watermark), (of.log_start, of.end()));
            assert_eq!(view.last_stable, of.last_stable());
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
pub(super) enum Op {
    Append { partition: Partition, count: i32, timestamp: i64 },
    Transact { partition: Partition, producer: i64 },
    Mark { partition: Partition, producer: i64, commit: bool },
    Trim { partition: Partition, keep: i64 },
    Roll { partition: Partition },
    Split { partition: Partition, elsewhere: bool },
    Merge { partition: Partition, elsewhere: bool },
    Restart,
    Retain,
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let p = || 0..PARTITIONS;
    let op = prop_oneof![
        8 => (p(), 1..4i32, 0..10i64).prop_map(|(partition, count, timestamp)| Op::Append { partition, count, timestamp }),
        3 => (p(), 0..3i64).prop_map(|(partition, producer)| Op::Transact { partition, producer }),
        2 => (p(), 0..3i64, any::<bool>()).prop_map(|(partition, producer, commit)| Op::Mark { partition, producer, commit }),
        1 => (p(), 0..8i64).prop_map(|(partition, keep)| Op::Trim { partition, keep }),
        1 => p().prop_map(|partition| Op::Roll { partition }),
        2 => (p(), any::<bool>()).prop_map(|(partition, elsewhere)| Op::Split { partition, elsewhere }),
        2 => (p(), any::<bool>()).prop_map(|(partition, elsewhere)| Op::Merge { partition, elsewhere }),
    ];
    let op = prop_oneof![20 => op, 1 => Just(Op::Restart), 2 => Just(Op::Retain)];
    prop::collection::vec(op, 1..70)
}
