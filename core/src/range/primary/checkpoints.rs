//! Opening a segment, and checkpoints: the state captured under the lock, encoded outside of it.

use super::own::own_header;
use super::sequence::fits;
use super::{Effect, HandedOver, Head, Phase, RangePrimary, Slot};
use crate::codec::entry::{CHECKPOINT_FIRST, CHECKPOINT_LAST, Entry, EntryHeader, EntryKind};
use crate::drive::Purpose;
use crate::loglet::sequencer::Sequencer;
use crate::range::checkpoint;
use crate::range::segment::{Segment, Start};
use crate::range::state::{Captured, RangeState};
use crate::types::{Address, Offset, Partition, Span, WHOLE_RANGE};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
            head.inherit(handed_over, now_ms);
        }
        self.settle();
        self.wake_room();
        self.watchers.wake();
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
        let bytes = usize::try_from(head.last_full_checkpoint).unwrap_or(usize::MAX);
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
            self.expire(&mut head, now_ms);
            let from = head.sequencer.next();
            head.checkpointing = true;
            (head.state.capture(from), head.segment.loglet, std::mem::take(&mut head.untold))
        };
        let log_starts = log_starts_of(&captured.state);
        let pieces = self.encode_checkpoint(&captured);
        let mut head = self.head.lock();
        head.checkpointing = false;
        if head.phase != Phase::Open || head.segment.loglet != loglet {
            head.untold |= untold;
            return false;
        }
        let submitted = self.submit_checkpoint(&mut head, pieces, log_starts, now_ms);
        head.untold |= untold && !submitted;
        submitted
    }

    pub(super) fn submit_checkpoint(
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
    pub(super) fn encode_checkpoint(&self, captured: &Captured) -> Vec<Bytes> {
        let mut piece_bytes = self.limits.checkpoint_piece_bytes;
        loop {
            let pieces = checkpoint::encode(captured, piece_bytes);
            if pieces.len() <= self.limits.window.entries as usize {
                return pieces;
            }
            piece_bytes = piece_bytes.saturating_mul(2);
        }
    }

    pub(super) fn expire(&self, head: &mut Head, now_ms: i64) {
        let before = now_ms.saturating_sub(self.limits.producer_expiration_ms);
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

pub(super) fn log_starts_of(state: &RangeState) -> Arc<[(Partition, Offset)]> {
    state
        .partitions()
        .filter(|(_, p)| p.log_start > 0)
        .map(|(partition, p)| (partition, p.log_start))
        .collect()
}
