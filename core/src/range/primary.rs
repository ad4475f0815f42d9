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

use crate::codec::batch::{self, BATCH_HEAD_LEN, BatchHead, CRC_FROM};
use crate::codec::crc32c;
use crate::codec::entry::{
    CHECKPOINT_FIRST, CHECKPOINT_LAST, ENTRY_HEADER_LEN, Entry, EntryHeader, EntryKind,
};
use crate::drive::{AdmitError, Completion, Run, Ticket, WriteError};
use crate::error::AppendError;
use crate::loglet::sequencer::{Sequencer, Window};
use crate::range::ack::{Ack, AckSlot, Issued};
use crate::range::checkpoint;
use crate::range::log_start;
use crate::range::segment::{Segment, Start};
use crate::range::state::{Captured, Decision, RangeState, SequenceRefusal, Sequencing};
use crate::range::watch::Watchers;
use crate::types::{Address, Offset, Partition, RangeId, Span, TopicId, WHOLE_RANGE};
use arc_swap::ArcSwap;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Its segment's drive is dead: appends are refused, until the range rolls away.
    Blocked(String),
    /// The node stops.
    Stopping,
    /// The topic was deleted.
    Gone,
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
    stamping: ArcSwap<Stamping>,
    head: Mutex<Head>,
    segments: ArcSwap<Vec<Arc<Segment>>>,
    /// Woken when the window has room again or the phase changes.
    room: Notify,
    waiting: AtomicBool,
    watchers: Watchers,
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
    since_checkpoint: u64,
    last_full_checkpoint: u64,
    /// Entries of the active segment's first checkpoint.
    first_checkpoint_len: u64,
    first_append_at: Option<i64>,
    /// Between the capture of a checkpoint and its pieces.
    checkpointing: bool,
}

/// What readers may see: moves when entries complete.
struct Visible {
    high: Box<[Offset]>,
    log_start: Box<[Offset]>,
}

/// An entry in flight.
struct Slot {
    effect: Effect,
    acks: SmallVec<[AckSlot; 1]>,
}

enum Effect {
    /// High watermark of the span's `n`th partition.
    High(u32, Offset),
    /// Log starts.
    LogStarts(Arc<[(Partition, Offset)]>),
    /// A whole checkpoint, with the log starts that it holds: a fold from it needs nothing below them.
    Checkpointed(Arc<[(Partition, Offset)]>),
    None,
}

/// What a reader needs to know of a partition, taken under one lock.
#[derive(Clone, Debug)]
pub struct ReadView {
    /// First readable offset.
    pub log_start: Offset,
    /// One above the last completed record.
    pub high_watermark: Offset,
    /// Current leader epoch.
    pub leader_epoch: i32,
    /// Completed tail of the active segment.
    pub tail: Address,
    /// The active segment.
    pub segment: Arc<Segment>,
}

/// Whether a call issued everything.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All entries have an outcome or an address.
    All,
    /// So many have; wait for room, then go on with the rest.
    Part(usize),
}

/// Told by the drive that a run is durable.
struct RunDone {
    primary: Arc<RangePrimary>,
    segment: Arc<Segment>,
    first: Address,
    entries: u32,
}

impl Completion for RunDone {
    fn complete(&self, outcome: Result<(), WriteError>) {
        match outcome {
            Ok(()) => self.primary.completed(&self.segment, self.first, self.entries),
            Err(error) => self.primary.run_failed(&self.segment, error),
        }
    }
}

impl RangePrimary {
    /// A primary between segments; [`RangePrimary::open`] makes it take appends. All of `state` is completed.
    pub fn new(
        topic: TopicId,
        id: RangeId,
        limits: Limits,
        stamping: Stamping,
        state: RangeState,
        sealed: Vec<Arc<Segment>>,
        first: Arc<Segment>,
    ) -> Arc<RangePrimary> {
        let span = state.span();
        let visible = Visible {
            high: state.partitions().map(|(_, p)| p.next).collect(),
            log_start: state.partitions().map(|(_, p)| p.log_start).collect(),
        };
        let head = Head {
            state,
            sequencer: Sequencer::new(limits.window),
            segment: first,
            slots: VecDeque::new(),
            visible,
            phase: Phase::Between,
            since_checkpoint: 0,
            last_full_checkpoint: 0,
            first_checkpoint_len: u64::MAX,
            first_append_at: None,
            checkpointing: false,
        };
        Arc::new(RangePrimary {
            topic,
            id,
            span,
            limits,
            stamping: ArcSwap::from_pointee(stamping),
            head: Mutex::new(head),
            segments: ArcSwap::from_pointee(sealed),
            room: Notify::new(),
            waiting: AtomicBool::new(false),
            watchers: Watchers::default(),
            counts: Counts::default(),
        })
    }

    /// Opens `segment` as the active one: its first entries are a full checkpoint, encoded outside of the lock.
    ///
    /// The caller has recorded the end of the segment before, and that every issued entry is below it.
    pub fn open(self: &Arc<Self>, segment: Arc<Segment>, epochs: &[(Span, i32)], now_ms: i64) {
        let captured = {
            let mut head = self.head.lock();
            assert!(head.slots.is_empty(), "a segment opens when nothing is in flight");
            for &(span, epoch) in epochs {
                head.state.set_epoch(span, epoch);
            }
            self.expire(&mut head, now_ms);
            head.state.capture(Address(0))
        };
        segment.note_starts(starts_of(&captured.state));
        let pieces = self.encode_checkpoint(&captured);
        let log_starts = log_starts_of(&captured.state);
        {
            let mut head = self.head.lock();
            let mut segments = Vec::clone(&self.segments.load());
            segments.push(segment.clone());
            self.segments.store(Arc::new(segments));
            head.sequencer = Sequencer::new(self.limits.window);
            head.segment = segment;
            head.first_append_at = None;
            head.first_checkpoint_len = pieces.len() as u64;
            let submitted = self.submit_checkpoint(&mut head, pieces, log_starts, now_ms);
            assert!(submitted, "the first checkpoint of a segment fits its window");
            if head.phase == Phase::Between || matches!(head.phase, Phase::Blocked(_)) {
                head.phase = Phase::Open;
            }
        }
        self.room.notify_waiters();
        self.watchers.wake();
    }

    /// Sequences the batches `which` of `batches` in that order. An outcome for each goes to `issued`; what gets an
    /// address is resolved through `ack` when it completes.
    pub fn issue(
        self: &Arc<Self>,
        batches: &[Batch],
        which: &[usize],
        ack: &Arc<Ack>,
        issued: &mut [Option<Issued>],
        now_ms: i64,
    ) -> Progress {
        let stamping = **self.stamping.load();
        let mut head = self.head.lock();
        let incoming: usize = which.iter().map(|&i| batches[i].bytes.len()).sum();
        if let Some(error) = self.refusal(&head, incoming) {
            match error {
                Some(error) => {
                    which.iter().for_each(|&i| issued[i] = Some(Issued::Err(error.clone())));
                    return Progress::All;
                }
                None => return Progress::Part(0),
            }
        }
        let first = head.sequencer.next();
        let (room_entries, room_bytes) = head.sequencer.room();
        let mut scratch = BytesMut::with_capacity(which.len() * (ENTRY_HEADER_LEN + BATCH_HEAD_LEN));
        let mut headers: SmallVec<[(EntryHeader, Bytes); 8]> = SmallVec::new();
        let mut bytes = 0u64;
        let mut progress = Progress::All;
        for (done, &i) in which.iter().enumerate() {
            let one = &batches[i];
            let (base_offset, leader_epoch) =
                match head.state.decide(one.partition, &one.head, Sequencing::Next) {
                    Decision::Append { base_offset, leader_epoch } => (base_offset, leader_epoch),
                    Decision::Duplicate { base_offset, place, appended_at, .. } => {
                        self.counts.duplicates.fetch_add(1, Ordering::Relaxed);
                        self.await_original(&mut head, place, ack, i);
                        issued[i] = Some(Issued::Ok {
                            base_offset,
                            log_start: head.visible_log_start(self.span, one.partition),
                            log_append_time: if stamping.log_append_time { appended_at } else { -1 },
                        });
                        continue;
                    }
                    Decision::Refuse(refusal) => {
                        issued[i] = Some(Issued::Err(refused(refusal)));
                        continue;
                    }
                };
            let len = one.bytes.len() as u64;
            let fits = (headers.len() as u32) < room_entries
                && (bytes + len <= room_bytes || bytes == 0 && head.sequencer.drained());
            if !fits {
                progress = Progress::Part(done);
                break;
            }
            let address = first.plus(headers.len() as u64);
            let header =
                append_header(&head, &mut scratch, one, base_offset, leader_epoch, address, stamping, now_ms);
            head.state.apply(&header).expect("a decided entry follows from the state");
            bytes += len;
            let end = header.last_offset() + 1;
            let index = self.span.index(one.partition).unwrap_or(0) as u32;
            head.slots.push_back(Slot {
                effect: Effect::High(index, end),
                acks: SmallVec::from_iter([ack.slot(i)]),
            });
            headers.push((header, one.bytes.slice(BATCH_HEAD_LEN..)));
            issued[i] = Some(Issued::Ok {
                base_offset,
                log_start: head.visible_log_start(self.span, one.partition),
                log_append_time: if stamping.log_append_time { now_ms } else { -1 },
            });
        }
        if headers.is_empty() {
            return progress;
        }
        head.first_append_at.get_or_insert(now_ms);
        let scratch = scratch.freeze();
        let stride = ENTRY_HEADER_LEN + BATCH_HEAD_LEN;
        let entries = headers
            .into_iter()
            .enumerate()
            .map(|(k, (header, body))| Entry {
                header,
                head: scratch.slice(k * stride..(k + 1) * stride),
                body,
            })
            .collect();
        self.submit(&mut head, first, entries, bytes);
        progress
    }

    /// Appends entries of our own to a partition (records of a state machine) or to the range (log starts); each of the
    /// former takes one offset. Returns the offset of the first, or nothing when the window is full.
    pub fn issue_own(
        self: &Arc<Self>,
        partition: Partition,
        entries: &[(EntryKind, Bytes)],
        ack: &Arc<Ack>,
        now_ms: i64,
    ) -> Result<Option<Offset>, AppendError> {
        let mut head = self.head.lock();
        let bytes: usize = entries.iter().map(|(_, payload)| payload.len()).sum();
        if let Some(error) = self.refusal(&head, bytes) {
            return match error {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        if !fits(&head.sequencer, entries.len(), bytes as u64) {
            return Ok(None);
        }
        let Some(state) = head.state.partition(partition) else {
            return Err(AppendError::UnknownPartition);
        };
        let base_offset = state.next;
        let leader_epoch = state.epochs.latest().unwrap_or(0);
        let first = head.sequencer.next();
        let index = self.span.index(partition).unwrap_or(0) as u32;
        let mut built: SmallVec<[Entry; 2]> = SmallVec::new();
        for (k, (kind, payload)) in entries.iter().enumerate() {
            let header = EntryHeader {
                base_offset: base_offset + k as i64,
                last_offset_delta: 0,
                record_count: 1,
                leader_epoch,
                ..own_header(&head, *kind, partition, first.plus(k as u64), payload.len(), now_ms)
            };
            head.state.apply(&header).expect("a numbered entry follows from the state");
            let end = header.last_offset() + 1;
            let acks =
                if k + 1 == entries.len() { SmallVec::from_iter([ack.slot(0)]) } else { SmallVec::new() };
            head.slots.push_back(Slot { effect: Effect::High(index, end), acks });
            built.push(Entry::own(header, payload.clone()));
        }
        head.first_append_at.get_or_insert(now_ms);
        self.submit(&mut head, first, built, bytes as u64);
        Ok(Some(base_offset))
    }

    /// Raises log starts by one entry; they show when it completes. Nothing when the window is full.
    ///
    /// Errors: `UnknownPartition` for partitions or offsets that are not of this range.
    pub fn issue_log_starts(
        self: &Arc<Self>,
        starts: &[(Partition, Offset)],
        ack: &Arc<Ack>,
        now_ms: i64,
    ) -> Result<Option<()>, AppendError> {
        let payload = log_start::encode(starts);
        let mut head = self.head.lock();
        if let Some(error) = self.refusal(&head, payload.len()) {
            return match error {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        if !fits(&head.sequencer, 1, payload.len() as u64) {
            return Ok(None);
        }
        if head.state.apply_log_starts(starts).is_err() {
            return Err(AppendError::UnknownPartition);
        }
        let first = head.sequencer.next();
        let header = own_header(&head, EntryKind::LogStart, WHOLE_RANGE, first, payload.len(), now_ms);
        head.slots.push_back(Slot {
            effect: Effect::LogStarts(starts.into()),
            acks: SmallVec::from_iter([ack.slot(0)]),
        });
        let bytes = payload.len() as u64;
        self.submit(&mut head, first, SmallVec::from_iter([Entry::own(header, payload)]), bytes);
        Ok(Some(()))
    }

    /// Waits until the window may have room again or the phase changed; no wake-up between the caller's look and this
    /// one is missed.
    pub async fn wait_for_room(&self) {
        let notified = self.room.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        self.waiting.store(true, Ordering::Release);
        let waits = {
            let head = self.head.lock();
            match head.phase {
                Phase::Open => head.sequencer.room().0 == 0 || head.sequencer.in_flight() > 0,
                Phase::Between => true,
                Phase::Blocked(_) | Phase::Stopping | Phase::Gone => false,
            }
        };
        if waits {
            notified.await;
        }
    }

    /// Waits until something in flight completes or the phase changes; returns at once when nothing is in flight.
    pub async fn wait_for_progress(&self) {
        let notified = self.room.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        self.waiting.store(true, Ordering::Release);
        if !self.is_idle() {
            notified.await;
        }
    }

    /// Why nothing is taken now: `Some(None)` means wait.
    fn refusal(&self, head: &Head, bytes: usize) -> Option<Option<AppendError>> {
        match &head.phase {
            Phase::Open => {
                let refused = head.segment.drive.admit(bytes).err()?;
                Some(Some(AppendError::Storage(refused.to_string())))
            }
            Phase::Between => Some(None),
            Phase::Blocked(why) => Some(Some(AppendError::Storage(why.clone()))),
            Phase::Stopping => Some(Some(AppendError::Stopping)),
            Phase::Gone => Some(Some(AppendError::UnknownPartition)),
        }
    }

    /// A duplicate's answer waits for the original, if that is in flight (R5).
    fn await_original(
        &self,
        head: &mut Head,
        place: (crate::types::LogletId, Address),
        ack: &Arc<Ack>,
        index: usize,
    ) {
        let (loglet, address) = place;
        if loglet != head.segment.loglet {
            return;
        }
        let Some(ahead) = address.0.checked_sub(head.sequencer.tail().0) else { return };
        if let Some(slot) = head.slots.get_mut(ahead as usize) {
            slot.acks.push(ack.slot(index));
        }
    }

    /// From here to the drive nothing waits and nothing fails.
    fn submit(self: &Arc<Self>, head: &mut Head, first: Address, entries: SmallVec<[Entry; 2]>, bytes: u64) {
        let count = entries.len() as u32;
        let reserved = head.sequencer.reserve(count, bytes).expect("room was looked at under this lock");
        assert_eq!(reserved, first, "addresses are handed out under one lock");
        let stored: usize = entries.iter().map(Entry::encoded_len).sum();
        head.segment.add_bytes(stored as u64);
        head.since_checkpoint += stored as u64;
        self.counts.batches.fetch_add(u64::from(count), Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        let done = RunDone { primary: self.clone(), segment: head.segment.clone(), first, entries: count };
        head.segment.drive.submit(Run { first, entries, ticket: Ticket::new(Arc::new(done)) });
    }

    fn completed(&self, segment: &Arc<Segment>, first: Address, entries: u32) {
        let mut resolved: SmallVec<[AckSlot; 16]> = SmallVec::new();
        let mut freed = None;
        {
            let mut head = self.head.lock();
            if head.segment.loglet != segment.loglet {
                return;
            }
            let Some(contiguous) = head.sequencer.complete(first, entries) else { return };
            for _ in contiguous.start.0..contiguous.end.0 {
                let Some(slot) = head.slots.pop_front() else { break };
                match slot.effect {
                    Effect::High(index, end) => head.visible.high[index as usize] = end,
                    Effect::LogStarts(starts) => {
                        for &(partition, start) in starts.iter() {
                            if let Some(index) = self.span.index(partition) {
                                let shown = &mut head.visible.log_start[index];
                                *shown = start.max(*shown);
                            }
                        }
                    }
                    Effect::Checkpointed(starts) => freed = Some(starts),
                    Effect::None => {}
                }
                resolved.extend(slot.acks);
            }
            head.segment.drive.note_committed(head.sequencer.tail());
        }
        for ack in resolved {
            ack.done();
        }
        if let Some(starts) = freed {
            self.segments.load().iter().for_each(|segment| segment.drive.note_log_starts(&starts));
        }
        if self.waiting.swap(false, Ordering::AcqRel) {
            self.room.notify_waiters();
        }
        self.watchers.wake();
    }

    fn run_failed(&self, segment: &Arc<Segment>, error: WriteError) {
        {
            let mut head = self.head.lock();
            if head.segment.loglet != segment.loglet || head.phase == Phase::Gone {
                return;
            }
            if error == WriteError::Sealed {
                head.sequencer.seal();
            }
            if !matches!(head.phase, Phase::Blocked(_)) {
                tracing::error!(topic = %self.topic, range = %self.id, segment = %segment.loglet, %error,
                    "range blocked: its segment takes no more writes");
            }
            head.phase = Phase::Blocked(error.to_string());
        }
        self.room.notify_waiters();
    }

    /// Blocks the range if its active segment's drive has died, also while nobody appends.
    pub fn look_at_drive(&self) {
        let segment = self.head.lock().segment.clone();
        if let Err(AdmitError::Dead(why)) = segment.drive.admit(0) {
            self.run_failed(&segment, WriteError::Unavailable(why));
        }
    }

    /// Begins the drain of a roll or a stop: no further address is handed out. The completed tail once nothing is in
    /// flight; `None` while something is.
    pub fn stop_issuing(&self, chain_version: u64) {
        let mut head = self.head.lock();
        head.sequencer.stop(chain_version);
        if head.phase == Phase::Open {
            head.phase = Phase::Between;
        }
    }

    /// The segment's tail if it has drained and may be rolled at the version named to [`RangePrimary::stop_issuing`].
    pub fn drained(&self) -> Option<Address> {
        let mut head = self.head.lock();
        head.sequencer.roll().ok().map(|roll| roll.tail)
    }

    /// Ends a drain without a roll: appends go on in the same segment. Only before [`RangePrimary::drained`] gave a
    /// tail, or when the chain was read again since (R4).
    pub fn resume(&self, chain_read: Option<u64>) {
        {
            let mut head = self.head.lock();
            let issuing = match chain_read {
                None => head.sequencer.resume(),
                Some(version) => {
                    head.sequencer.chain_read(version, true) == crate::loglet::sequencer::AfterRead::Issuing
                }
            };
            if issuing && head.phase == Phase::Between {
                head.phase = Phase::Open;
            }
        }
        self.room.notify_waiters();
    }

    /// Takes no more appends, for the reason given by `phase`.
    pub fn close(&self, phase: Phase) {
        self.head.lock().phase = phase;
        self.room.notify_waiters();
        self.watchers.wake();
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        self.head.lock().phase.clone()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.head.lock().sequencer.drained()
    }

    /// Bytes since the last checkpoint of this range, and the size of the last full one.
    pub fn unfolded(&self) -> (u64, u64) {
        let head = self.head.lock();
        (head.since_checkpoint, head.last_full_checkpoint)
    }

    /// Writes a full checkpoint into the active segment: captured under the lock, encoded outside of it. False when
    /// the segment is not open or its window is full; try again later.
    pub fn checkpoint(self: &Arc<Self>, now_ms: i64) -> bool {
        let captured = {
            let mut head = self.head.lock();
            // One at a time: expiry between a capture and its pieces would be missing in the fold.
            if head.phase != Phase::Open || head.checkpointing {
                return false;
            }
            self.expire(&mut head, now_ms);
            let from = head.sequencer.next();
            head.checkpointing = true;
            (head.state.capture(from), head.segment.loglet)
        };
        let (captured, loglet) = captured;
        let log_starts = log_starts_of(&captured.state);
        let pieces = self.encode_checkpoint(&captured);
        let mut head = self.head.lock();
        head.checkpointing = false;
        if head.phase != Phase::Open || head.segment.loglet != loglet {
            return false;
        }
        self.submit_checkpoint(&mut head, pieces, log_starts, now_ms)
    }

    fn submit_checkpoint(
        self: &Arc<Self>,
        head: &mut Head,
        pieces: Vec<Bytes>,
        log_starts: Arc<[(Partition, Offset)]>,
        now_ms: i64,
    ) -> bool {
        let bytes: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        if !fits(&head.sequencer, pieces.len(), bytes) {
            return false;
        }
        let first = head.sequencer.next();
        let last = pieces.len().saturating_sub(1);
        let mut entries: SmallVec<[Entry; 2]> = SmallVec::new();
        for (k, piece) in pieces.into_iter().enumerate() {
            let mut flags = 0;
            if k == 0 {
                flags |= CHECKPOINT_FIRST;
            }
            if k == last {
                flags |= CHECKPOINT_LAST;
            }
            let header = EntryHeader {
                flags,
                ..own_header(
                    head,
                    EntryKind::Checkpoint,
                    WHOLE_RANGE,
                    first.plus(k as u64),
                    piece.len(),
                    now_ms,
                )
            };
            let effect = if k == last { Effect::Checkpointed(log_starts.clone()) } else { Effect::None };
            head.slots.push_back(Slot { effect, acks: SmallVec::new() });
            entries.push(Entry::own(header, piece));
        }
        self.submit(head, first, entries, bytes);
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        head.since_checkpoint = 0;
        head.last_full_checkpoint = bytes;
        true
    }

    /// A checkpoint in pieces, few enough for the window.
    fn encode_checkpoint(&self, captured: &Captured) -> Vec<Bytes> {
        let mut piece_bytes = self.limits.checkpoint_piece_bytes;
        loop {
            let pieces = checkpoint::encode(captured, piece_bytes);
            if pieces.len() <= self.limits.window.entries as usize {
                return pieces;
            }
            piece_bytes = piece_bytes.saturating_mul(2);
        }
    }

    fn expire(&self, head: &mut Head, now_ms: i64) {
        let before = now_ms.saturating_sub(self.limits.producer_expiration_ms);
        head.state.expire(before, self.limits.producers_max);
    }

    /// What a reader of `partition` may see; `None` outside of the range.
    pub fn view(&self, partition: Partition) -> Option<ReadView> {
        let index = self.span.index(partition)?;
        let head = self.head.lock();
        Some(ReadView {
            log_start: *head.visible.log_start.get(index)?,
            high_watermark: *head.visible.high.get(index)?,
            leader_epoch: head.state.partition(partition)?.epochs.latest().unwrap_or(0),
            tail: head.sequencer.tail(),
            segment: head.segment.clone(),
        })
    }

    /// Log starts as readers see them, in partition order.
    pub fn visible_log_starts(&self) -> Vec<(Partition, Offset)> {
        let head = self.head.lock();
        self.span.iter().zip(head.visible.log_start.iter().copied()).collect()
    }

    /// Where every partition stands now, completed or not.
    pub fn ends(&self) -> Arc<[Start]> {
        let captured = self.head.lock().state.clone();
        starts_of(&captured)
    }

    /// See [`RangeState::end_of_epoch`].
    pub fn end_of_epoch(&self, partition: Partition, epoch: i32) -> Option<(i32, Offset)> {
        let index = self.span.index(partition)?;
        let head = self.head.lock();
        let high = *head.visible.high.get(index)?;
        head.state.end_of_epoch(partition, epoch, high)
    }

    /// The segments, oldest first; the last is the active one.
    pub fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        self.segments.load_full()
    }

    /// Forgets segments that left the chain.
    pub fn drop_segments(&self, gone: &[crate::types::LogletId]) {
        let kept = self.segments.load().iter().filter(|s| !gone.contains(&s.loglet)).cloned().collect();
        self.segments.store(Arc::new(kept));
    }

    /// Bytes in the active segment and when its first record was sequenced (`None` before), for the roll.
    pub fn head_data(&self) -> (u64, Option<i64>) {
        let head = self.head.lock();
        (head.segment.bytes(), head.first_append_at)
    }

    /// The active segment, if its first checkpoint is complete: then a fold of the range needs nothing older.
    pub fn checkpointed(&self) -> Option<crate::types::LogletId> {
        let head = self.head.lock();
        (head.sequencer.tail().0 >= head.first_checkpoint_len).then(|| head.segment.loglet)
    }

    /// Changes what is stamped from the next batch on.
    pub fn set_stamping(&self, stamping: Stamping) {
        self.stamping.store(Arc::new(stamping));
    }

    /// Wakes `who` at the next change.
    pub fn watch(&self, who: &Arc<Notify>) {
        self.watchers.register(who);
    }

    /// Counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Head {
    fn visible_log_start(&self, span: Span, partition: Partition) -> Offset {
        span.index(partition).and_then(|i| self.visible.log_start.get(i).copied()).unwrap_or(0)
    }
}

impl std::fmt::Debug for RangePrimary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RangePrimary({} {})", self.topic, self.id)
    }
}

/// Whether a run has room now; one larger than the window's bytes goes alone.
fn fits(sequencer: &Sequencer, entries: usize, bytes: u64) -> bool {
    let (room_entries, room_bytes) = sequencer.room();
    entries <= room_entries as usize && (bytes <= room_bytes || sequencer.drained())
}

fn starts_of(state: &RangeState) -> Arc<[Start]> {
    state
        .partitions()
        .map(|(_, p)| Start { offset: p.next, bytes: p.bytes, max_timestamp: p.max_timestamp })
        .collect()
}

fn log_starts_of(state: &RangeState) -> Arc<[(Partition, Offset)]> {
    state
        .partitions()
        .filter(|(_, p)| p.log_start > 0)
        .map(|(partition, p)| (partition, p.log_start))
        .collect()
}

fn own_header(
    head: &Head,
    kind: EntryKind,
    partition: Partition,
    address: Address,
    payload_len: usize,
    now_ms: i64,
) -> EntryHeader {
    EntryHeader {
        loglet: head.segment.loglet,
        address,
        kind,
        flags: 0,
        partition,
        base_offset: -1,
        last_offset_delta: 0,
        record_count: 0,
        leader_epoch: 0,
        appended_at: now_ms,
        first_timestamp: -1,
        max_timestamp: -1,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: payload_len as u32,
    }
}

/// Puts header and patched batch head into `scratch`.
#[expect(clippy::too_many_arguments, reason = "one call site; the values are not a thing of their own")]
fn append_header(
    head: &Head,
    scratch: &mut BytesMut,
    one: &Batch,
    base_offset: Offset,
    leader_epoch: i32,
    address: Address,
    stamping: Stamping,
    now_ms: i64,
) -> EntryHeader {
    let mut patched = [0u8; BATCH_HEAD_LEN];
    patched.copy_from_slice(&one.bytes[..BATCH_HEAD_LEN]);
    batch::patch(&mut patched, base_offset, leader_epoch);
    let mut attributes = one.head.attributes;
    let mut max_timestamp = one.head.max_timestamp;
    if stamping.log_append_time {
        attributes |= batch::TIMESTAMP_TYPE_BIT;
        max_timestamp = now_ms;
    } else {
        attributes &= !batch::TIMESTAMP_TYPE_BIT;
    }
    if attributes != one.head.attributes || max_timestamp != one.head.max_timestamp {
        batch::restamp(&mut patched, attributes, max_timestamp);
        let crc = crc32c(&[&patched[CRC_FROM..], &one.bytes[BATCH_HEAD_LEN..]]);
        batch::set_crc(&mut patched, crc);
    }
    let header = EntryHeader {
        loglet: head.segment.loglet,
        address,
        kind: EntryKind::Data,
        flags: 0,
        partition: one.partition,
        base_offset,
        last_offset_delta: one.head.last_offset_delta,
        record_count: one.head.record_count,
        leader_epoch,
        appended_at: now_ms,
        first_timestamp: one.head.base_timestamp,
        max_timestamp,
        producer_id: one.head.producer_id,
        producer_epoch: one.head.producer_epoch,
        first_sequence: one.head.base_sequence,
        attributes,
        payload_len: one.bytes.len() as u32,
    };
    scratch.put_slice(&header.encode(&patched));
    scratch.put_slice(&patched);
    header
}

fn refused(refusal: SequenceRefusal) -> AppendError {
    match refusal {
        SequenceRefusal::OutsideSpan(_) => AppendError::UnknownPartition,
        SequenceRefusal::OutOfOrder { got, expected } => AppendError::OutOfOrderSequence { got, expected },
        SequenceRefusal::InvalidProducerEpoch { got, current } => {
            AppendError::ProducerFenced { got, current }
        }
        SequenceRefusal::OffsetTaken { .. }
        | SequenceRefusal::LeaderEpochFell { .. }
        | SequenceRefusal::Impossible { .. } => AppendError::Invalid(refusal.to_string()),
    }
}
