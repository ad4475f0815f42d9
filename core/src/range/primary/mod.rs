//! A range's primary: sequences batches under one short lock and hands them to the active segment's drive; learns from
//! the drive what is durable, in order.
//!
//! Owns the live state (always equal to the fold of the issued entries), the sequencer and who waits. Must not know
//! clients, the control store or how a drive works. Everything that can refuse or wait comes before `reserve`; from
//! `reserve` to `submit` there is no await and no error return.
//!
//! INV-RANGE-1 an entry is submitted inside the lock that numbered it: address order is submission order.
//! INV-RANGE-2 a batch is acknowledged, and readable, only when every address up to it is complete.
//! INV-RANGE-3 a duplicate of an entry in flight is answered when that entry completes (R5).
//! INV-RANGE-11 an entry in flight when its segment ends is acknowledged below the recorded tail, and numbered again in
//! its order by the successor at or above it (R7b).
//! INV-RANGE-12 a primary takes nothing from others before all that it took over has its number or its refusal (R7a).
//! INV-RANGE-14 readers are shown the end of a transaction when its marker is complete, not before.

mod checkpoints;
mod complete;
#[cfg(test)]
pub(crate) mod fork;
mod handover;
mod markers;
mod own;
mod phases;
mod sequence;
mod view;

pub use checkpoints::Base;
use checkpoints::Pieces;
use handover::Inherited;
pub use handover::{HandedOver, divide};
pub use sequence::Told;
pub use view::ReadView;

use crate::codec::batch::BatchHead;
use crate::loglet::sequencer::{Sequencer, Window};
use crate::range::ack::AckSlot;
use crate::range::segment::Segment;
use crate::range::state::{FirstSequence, RangeState};
use crate::range::watch::Watchers;
use crate::types::{LogletId, Offset, Partition, RangeId, Span, TopicId};
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use tokio::sync::Notify;

/// One batch to sequence.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its partition.
    pub partition: Partition,
    /// Its head, parsed.
    pub head: BatchHead,
    /// The whole batch as received.
    pub bytes: Bytes,
    /// What it may begin with.
    pub first: FirstSequence,
}

/// What of a topic's configs sequencing needs.
#[derive(Copy, Clone, Debug, Default)]
pub struct Stamping {
    /// LogAppendTime: broker time replaces the batch's timestamps.
    pub log_append_time: bool,
}

/// What of the node's configs a primary needs.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// What may be in flight.
    pub window: Window,
    /// Largest piece of a checkpoint, in bytes.
    pub checkpoint_piece_bytes: usize,
    /// Producers silent for so long are forgotten at a checkpoint, ms.
    pub producer_expiration_ms: i64,
    /// Most producers kept at a checkpoint.
    pub producers_max: usize,
}

/// Why a primary takes nothing now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Between two segments: appends wait.
    Between,
    /// Takes appends.
    Open,
    /// Its segment's drive is dead: appends are refused, until the range rolls away. Plain ones wait until it is known whether it can.
    Blocked(String),
    /// Its partitions belong to other primaries, which are in the layout already: who asks looks there again.
    Moved,
    /// The node stops.
    Stopping,
    /// The topic was deleted.
    Gone,
}

/// How much of its range's log a primary knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// All: what is not there was never acknowledged.
    Whole,
    /// Up to its high watermarks; more may follow that cannot be read, for the reason given.
    Prefix(String),
    /// Nothing, for the reason given.
    Nothing(String),
}

/// See the module head.
pub struct RangePrimary {
    /// The topic.
    pub topic: TopicId,
    /// The range.
    pub id: RangeId,
    /// Its partitions.
    pub span: Span,
    limits: Limits,
    /// That of `limits`, until it is changed.
    producer_expiration_ms: AtomicI64,
    stamping: ArcSwap<Stamping>,
    head: Mutex<Head>,
    /// Its own and its ancestors', oldest first.
    segments: ArcSwap<Vec<Arc<Segment>>>,
    /// Does not change: a range whose log is read whole again gets another primary.
    pub(super) known: Known,
    /// Woken when the window has room again or the phase changes.
    room: Notify,
    waiting: AtomicBool,
    watchers: Watchers,
    /// Lanes with batches that wait for room or for another phase.
    lanes: Watchers,
    counts: Counts,
}

/// Counters of a range.
#[derive(Debug, Default)]
pub struct Counts {
    /// Batches appended.
    pub batches: AtomicU64,
    /// Payload bytes appended.
    pub bytes: AtomicU64,
    /// Checkpoints begun.
    pub checkpoints: AtomicU64,
    /// Batches answered as duplicates.
    pub duplicates: AtomicU64,
}

struct Head {
    state: RangeState,
    sequencer: Sequencer,
    segment: Arc<Segment>,
    slots: VecDeque<Slot>,
    visible: Visible,
    phase: Phase,
    /// Of a blocked one: it was tried to go on elsewhere, and that cannot be now.
    stuck: bool,
    since_checkpoint: u64,
    last_full_checkpoint: u64,
    /// The active segment's first checkpoint, while it waits for something to be written behind it.
    first: Option<Pieces>,
    /// The segment whose checkpoint the state was folded from at the start; counts while the first one waits.
    base: Option<LogletId>,
    /// Entries of the active segment's first checkpoint.
    first_checkpoint_len: u64,
    first_append_at: Option<i64>,
    /// Between the capture of a checkpoint and its pieces.
    checkpointing: bool,
    /// Log starts rose since the last checkpoint was captured: drives learn of them by the next.
    untold: bool,
    /// What was taken over and comes before everything else; `None` once all of it has its number or its refusal.
    inherited: Option<Inherited>,
    /// What was in flight was handed over: completions that come now are nobody's.
    over: bool,
}

/// What readers may see: moves when entries complete.
struct Visible {
    high: Box<[Offset]>,
    log_start: Box<[Offset]>,
    /// Transactions whose marker is in flight: which of the span's partitions, and their first offsets.
    ending: Vec<(u32, Offset)>,
}

/// An entry in flight.
struct Slot {
    effect: Effect,
    acks: SmallVec<[AckSlot; 1]>,
    /// What it takes to number a batch again, should the segment end below it.
    batch: Option<Batch>,
}

enum Effect {
    /// High watermark of the span's `n`th partition.
    High(u32, Offset),
    /// The same, of a marker; and the first offset of the transaction that it ends.
    Ended(u32, Offset, Offset),
    /// Log starts.
    LogStarts(Arc<[(Partition, Offset)]>),
    /// A whole checkpoint, with the log starts that it holds: a fold from it needs nothing below them.
    Checkpointed(Arc<[(Partition, Offset)]>),
    None,
}

/// The loglet of a primary that has no segment of its own.
pub const NOWHERE: LogletId = LogletId(u64::MAX);

/// Whether a call issued everything.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All entries have an outcome or an address.
    All,
    /// So many have. Wait for room, then go on with the rest: in the range that holds the partition by then, since this
    /// one may have moved.
    Part(usize),
}

impl RangePrimary {
    /// A primary between segments; [`RangePrimary::open`] makes it take appends. All of `state` is completed. `sealed` are
    /// the range's own segments and those of its ancestors as in [`crate::range::lineage`], oldest first.
    pub fn new(
        topic: TopicId,
        id: RangeId,
        limits: Limits,
        stamping: Stamping,
        state: RangeState,
        sealed: Vec<Arc<Segment>>,
        first: Arc<Segment>,
    ) -> Arc<RangePrimary> {
        let log = (state, sealed, Known::Whole);
        RangePrimary::build(topic, id, limits, stamping, log, first, Phase::Between)
    }

    /// A primary that takes no appends, because the log cannot be read whole or no segment can be opened: `state` and `segments`
    /// are what can be read, `nowhere` is a segment of [`NOWHERE`].
    pub fn blocked(
        topic: TopicId,
        id: RangeId,
        limits: Limits,
        (state, segments): (RangeState, Vec<Arc<Segment>>),
        known: Known,
        nowhere: Arc<Segment>,
        why: String,
    ) -> Arc<RangePrimary> {
        let log = (state, segments, known);
        RangePrimary::build(topic, id, limits, Stamping::default(), log, nowhere, Phase::Blocked(why))
    }

    fn build(
        topic: TopicId,
        id: RangeId,
        limits: Limits,
        stamping: Stamping,
        (state, segments, known): (RangeState, Vec<Arc<Segment>>, Known),
        first: Arc<Segment>,
        phase: Phase,
    ) -> Arc<RangePrimary> {
        let span = state.span();
        let visible = Visible {
            high: state.partitions().map(|(_, p)| p.next).collect(),
            log_start: state.partitions().map(|(_, p)| p.log_start).collect(),
            ending: Vec::new(),
        };
        let head = Head {
            state,
            sequencer: Sequencer::new(limits.window),
            segment: first,
            slots: VecDeque::new(),
            visible,
            stuck: matches!(phase, Phase::Blocked(_)),
            phase,
            since_checkpoint: 0,
            last_full_checkpoint: 0,
            first: None,
            base: None,
            first_checkpoint_len: u64::MAX,
            first_append_at: None,
            checkpointing: false,
            untold: false,
            inherited: None,
            over: false,
        };
        Arc::new(RangePrimary {
            topic,
            id,
            span,
            limits,
            producer_expiration_ms: AtomicI64::new(limits.producer_expiration_ms),
            stamping: ArcSwap::from_pointee(stamping),
            head: Mutex::new(head),
            segments: ArcSwap::from_pointee(segments),
            known,
            room: Notify::new(),
            waiting: AtomicBool::new(false),
            watchers: Watchers::default(),
            lanes: Watchers::default(),
            counts: Counts::default(),
        })
    }
}

impl Head {
    /// Bytes of the first checkpoint that go with whatever is written next.
    fn first_bytes(&self) -> usize {
        self.first.as_ref().map_or(0, Pieces::bytes)
    }

    fn visible_log_start(&self, span: Span, partition: Partition) -> Offset {
        span.index(partition).and_then(|i| self.visible.log_start.get(i).copied()).unwrap_or(0)
    }
}

impl std::fmt::Debug for RangePrimary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RangePrimary({} {})", self.topic, self.id)
    }
}
