//! Opening a segment, and checkpoints: the state captured under the lock, encoded outside of it.

use super::own::own_header;
use super::sequence::fits;
use super::{Effect, HandedOver, Head, NOWHERE, Phase, RangePrimary, Slot};
use crate::codec::entry::{CHECKPOINT_FIRST, CHECKPOINT_LAST, Entry, EntryHeader, EntryKind};
use crate::drive::{AdmitError, LogDrive, Purpose};
use crate::loglet::sequencer::Sequencer;
use crate::range::checkpoint;
use crate::range::segment::{Segment, Start};
use crate::range::state::{Captured, RangeState};
use crate::types::{Address, LogletId, Offset, Partition, Span, WHOLE_RANGE};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The checkpoint that a state was folded from, of the range's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The segment that holds it: a fold needs nothing older.
    pub loglet: LogletId,
    /// The log starts that it holds: a fold needs no record below them.
    pub log_starts: Arc<[(Partition, Offset)]>,
}

/// A checkpoint, encoded.
#[derive(Clone)]
pub(super) struct Pieces {
    entries: Vec<Bytes>,
    log_starts: Arc<[(Partition, Offset)]>,
}

impl Pieces {
    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(Bytes::len).sum()
    }
}

/// Whether so many bytes that can be done without had better wait, since a disk is full or nearly so.
fn is_full(drive: &dyn LogDrive, bytes: usize) -> bool {
    matches!(drive.admit(bytes, Purpose::Unasked), Err(AdmitError::Full(_)))
}

impl RangePrimary {
    /// Opens `segment` as the active one: its first entries are a full checkpoint, encoded outside of the lock.
    ///
    /// The caller has recorded the end of the segment before. What of its entries was at or above that end is
    /// `handed_over` by the primary before and is numbered again, ahead of everything that others append.
    pub fn open(
        self: &Arc<Self>,
        segment: Arc<Segment>,
        epochs: &[(Span, i32)],
        handed_over: Vec<HandedOver>,
        now_ms: i64,
    ) {
        let first = self.begin(segment, epochs, now_ms);
        self.open_with(first, handed_over, now_ms, |_, _| false);
    }

    /// As [`RangePrimary::open`], at a start, after which nothing may ever be written: on a full disk the first checkpoint waits until
    /// something is, so that starts which follow one another take no room. `base` is what the state was folded from.
    pub fn reopen(
        self: &Arc<Self>,
        segment: Arc<Segment>,
        epochs: &[(Span, i32)],
        base: Option<Base>,
        now_ms: i64,
    ) {
        let first = self.begin(segment, epochs, now_ms);
        let told = base.as_ref().map(|base| base.log_starts.clone()).unwrap_or_default();
        let mut waits = false;
        self.open_with(first, Vec::new(), now_ms, |head, first| {
            head.base = base.map(|base| base.loglet);
            waits = is_full(&*head.segment.drive, first.bytes());
            head.untold = waits && first.log_starts != told;
            waits
        });
        if waits {
            self.tell_log_starts(&told);
        }
    }

    /// The first checkpoint of a segment, encoded.
    fn begin(
        self: &Arc<Self>,
        segment: Arc<Segment>,
        epochs: &[(Span, i32)],
        now_ms: i64,
    ) -> (Arc<Segment>, Pieces) {
        let captured = {
            let mut head = self.head.lock();
            assert!(head.slots.is_empty(), "a segment opens when nothing is in flight");
            assert!(head.visible.ending.is_empty(), "nothing is in flight: no marker is");
            for &(span, epoch) in epochs {
                head.state.set_epoch(span, epoch);
            }
            self.expire(&mut head, now_ms);
            head.untold = false;
            head.state.capture(Address(0))
        };
        segment.note_starts(starts_of(&captured.state));
        (segment, self.encode_checkpoint(&captured))
    }

    /// `waits`: whether the first checkpoint does.
    fn open_with(
        self: &Arc<Self>,
        (segment, first): (Arc<Segment>, Pieces),
        handed_over: Vec<HandedOver>,
        now_ms: i64,
        waits: impl FnOnce(&mut Head, &Pieces) -> bool,
    ) {
        {
            let mut head = self.head.lock();
            let mut segments = Vec::clone(&self.segments.load());
            segments.push(segment.clone());
            self.segments.store(Arc::new(segments));
            head.sequencer = Sequencer::new(self.limits.window);
            head.segment = segment;
            head.first_append_at = None;
            head.first_checkpoint_len = first.entries.len() as u64;
            let waits = waits(&mut head, &first);
            head.first = Some(first);
            if !waits {
                self.begin_segment(&mut head, now_ms);
            }
            if head.phase == Phase::Between || matches!(head.phase, Phase::Blocked(_)) {
                head.phase = Phase::Open;
                head.stuck = false;
            }
            head.inherit(handed_over, now_ms);
        }
        self.settle();
        self.wake_room();
        self.watchers.wake();
    }

    /// Writes the segment's first checkpoint, if that waits: before anything else.
    pub(super) fn begin_segment(self: &Arc<Self>, head: &mut Head, now_ms: i64) {
        let Some(first) = head.first.take() else { return };
        let submitted = self.submit_checkpoint(head, first, now_ms);
        assert!(submitted, "the first checkpoint of a segment fits its window");
        head.untold = false;
    }

    /// Writes a first checkpoint that waits, if there is room for it.
    pub fn begin_with_room(self: &Arc<Self>, now_ms: i64) {
        let mut head = self.head.lock();
        let bytes = head.first.as_ref().map(Pieces::bytes);
        if head.phase == Phase::Open && bytes.is_some_and(|bytes| !is_full(&*head.segment.drive, bytes)) {
            self.begin_segment(&mut head, now_ms);
        }
    }

    /// Whether nothing is to be written that can be done without: it is open and a disk is full or nearly so, or it has taken nothing
    /// since the start.
    pub fn is_full(&self) -> bool {
        let head = self.head.lock();
        match head.phase {
            Phase::Open => is_full(&*head.segment.drive, 0),
            Phase::Blocked(_) => head.segment.loglet == NOWHERE,
            _ => false,
        }
    }

    /// Whether it was blocked when the node started: it has a log and no segment that it writes.
    pub fn is_still(&self) -> bool {
        self.head.lock().segment.loglet == NOWHERE
    }

    /// Whether there is room for a full checkpoint that nothing but the next start needs.
    pub fn has_room_for_checkpoint(&self) -> bool {
        let head = self.head.lock();
        !is_full(&*head.segment.drive, usize::try_from(head.last_full_checkpoint).unwrap_or(usize::MAX))
    }

    /// Bytes since the last checkpoint of this range, and the size of the last full one.
    pub fn unfolded(&self) -> (u64, u64) {
        let head = self.head.lock();
        (head.since_checkpoint, head.last_full_checkpoint)
    }

    /// Whether a checkpoint would have a full disk freed: log starts rose, and drives let go of nothing before they are
    /// told by a checkpoint that holds them.
    pub fn frees_by_checkpoint(&self) -> bool {
        let head = self.head.lock();
        if !head.untold || head.phase != Phase::Open {
            return false;
        }
        let bytes = head.last_full_checkpoint.max(head.first_bytes() as u64);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let drive = &head.segment.drive;
        drive.lacks_room() && drive.admit(bytes, Purpose::Freeing).is_ok()
    }

    /// Writes a full checkpoint into the active segment: captured under the lock, encoded outside of it. False when
    /// the segment is not open or its window is full; try again later.
    pub fn checkpoint(self: &Arc<Self>, now_ms: i64) -> bool {
        let (captured, loglet, untold) = {
            let mut head = self.head.lock();
            // One at a time: expiry between a capture and its pieces would be missing in the fold.
            if head.phase != Phase::Open || head.checkpointing {
                return false;
            }
            if head.first.is_some() {
                self.begin_segment(&mut head, now_ms);
                return true;
            }
            self.expire(&mut head, now_ms);
            let from = head.sequencer.next();
            head.checkpointing = true;
            (head.state.capture(from), head.segment.loglet, std::mem::take(&mut head.untold))
        };
        let pieces = self.encode_checkpoint(&captured);
        let mut head = self.head.lock();
        head.checkpointing = false;
        if head.phase != Phase::Open || head.segment.loglet != loglet {
            head.untold |= untold;
            return false;
        }
        let submitted = self.submit_checkpoint(&mut head, pieces, now_ms);
        head.untold |= untold && !submitted;
        submitted
    }

    pub(super) fn submit_checkpoint(self: &Arc<Self>, head: &mut Head, pieces: Pieces, now_ms: i64) -> bool {
        let bytes = pieces.bytes() as u64;
        let Pieces { entries: pieces, log_starts } = pieces;
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
            head.slots.push_back(Slot { effect, acks: SmallVec::new(), batch: None });
            entries.push(Entry::own(header, piece));
        }
        // It is written in any case; this tells a quorum which of its copies have room for it.
        let admitted =
            head.segment.drive.admit(usize::try_from(bytes).unwrap_or(usize::MAX), Purpose::Freeing);
        if let Err(error) = admitted {
            tracing::debug!(range = %self.id, %error, "a checkpoint without room");
        }
        self.submit(head, first, entries, bytes);
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        head.since_checkpoint = 0;
        head.last_full_checkpoint = bytes;
        true
    }

    /// A checkpoint in pieces, few enough for the window.
    pub(super) fn encode_checkpoint(&self, captured: &Captured) -> Pieces {
        let mut piece_bytes = self.limits.checkpoint_piece_bytes;
        let log_starts = captured.state.log_starts();
        loop {
            let entries = checkpoint::encode(captured, piece_bytes);
            if entries.len() <= self.limits.window.entries as usize {
                return Pieces { entries, log_starts };
            }
            piece_bytes = piece_bytes.saturating_mul(2);
        }
    }

    pub(super) fn expire(&self, head: &mut Head, now_ms: i64) {
        let before = now_ms.saturating_sub(self.producer_expiration_ms.load(Ordering::Relaxed));
        head.state.expire(before, self.limits.producers_max);
        // What readers see: they may still read below a log start that is not complete.
        head.state.trim_aborted(self.span.iter().zip(head.visible.log_start.iter().copied()));
    }
}

pub(super) fn starts_of(state: &RangeState) -> Arc<[Start]> {
    state
        .partitions()
        .map(|(_, p)| Start { offset: p.next, bytes: p.bytes, max_timestamp: p.max_timestamp })
        .collect()
}
