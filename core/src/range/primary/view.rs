//! What others may know of a primary: what readers see, its segments, its counters.

use super::checkpoints::starts_of;
use super::{Counts, Known, Phase, RangePrimary, Stamping};
use crate::range::segment::{Segment, Start};
use crate::range::state::RangeState;
use crate::types::{Address, LogletId, Offset, Partition};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// What a reader needs to know of a partition, taken under one lock.
#[derive(Clone, Debug)]
pub struct ReadView {
    /// First readable offset.
    pub log_start: Offset,
    /// One above the last completed record.
    pub high_watermark: Offset,
    /// First offset of the earliest open transaction, else the high watermark.
    pub last_stable: Offset,
    /// Current leader epoch.
    pub leader_epoch: i32,
    /// Completed tail of the active segment.
    pub tail: Address,
    /// The active segment.
    pub segment: Arc<Segment>,
}

impl RangePrimary {
    /// What a reader of `partition` may see; `None` outside of the range.
    pub fn view(&self, partition: Partition) -> Option<ReadView> {
        let index = self.span.index(partition)?;
        let head = self.head.lock();
        Some(ReadView {
            log_start: *head.visible.log_start.get(index)?,
            high_watermark: *head.visible.high.get(index)?,
            last_stable: head.last_stable(partition, index),
            leader_epoch: head.state.partition(partition)?.epochs.latest().unwrap_or(0),
            tail: head.sequencer.tail(),
            segment: head.segment.clone(),
        })
    }

    /// How much of the range's log is known.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Log starts as readers see them, in partition order.
    pub fn visible_log_starts(&self) -> Vec<(Partition, Offset)> {
        let head = self.head.lock();
        self.span.iter().zip(head.visible.log_start.iter().copied()).collect()
    }

    /// Where every partition stands now, completed or not.
    pub fn ends(&self) -> Arc<[Start]> {
        starts_of(&self.head.lock().state)
    }

    /// The state after every entry that was issued; what a fold gives once all of them are complete (INV-RANGE-4).
    pub fn state(&self) -> RangeState {
        self.head.lock().state.clone()
    }

    /// See [`RangeState::end_of_epoch`].
    pub fn end_of_epoch(&self, partition: Partition, epoch: i32) -> Option<(i32, Offset)> {
        let index = self.span.index(partition)?;
        let head = self.head.lock();
        let high = *head.visible.high.get(index)?;
        head.state.end_of_epoch(partition, epoch, high)
    }

    /// The segment that it writes, or last wrote.
    pub fn active_loglet(&self) -> LogletId {
        self.head.lock().segment.loglet
    }

    /// The segments that hold its partitions, oldest first: its ancestors' and its own, of which the last is the active
    /// one (see [`crate::range::lineage`]).
    pub fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        self.segments.load_full()
    }

    /// Whether a segment is still one that it reads.
    pub fn reads(&self, segment: &Segment) -> bool {
        let known = self.segments.load().iter().any(|own| own.loglet == segment.loglet);
        known && !segment.is_replaced() && self.phase() != Phase::Gone
    }

    /// Forgets segments that left the chain.
    pub fn drop_segments(&self, gone: &[LogletId]) {
        let kept = self.segments.load().iter().filter(|s| !gone.contains(&s.loglet)).cloned().collect();
        self.segments.store(Arc::new(kept));
    }

    /// Puts `new` in the place of those of its segments that it replaces, neighbours in one log. Changes nothing for a range
    /// that does not read them.
    pub fn replace_segments(&self, gone: &[LogletId], new: &Arc<Segment>) {
        let mut segments = Vec::clone(&self.segments.load());
        let Some(at) = segments.iter().position(|s| gone.contains(&s.loglet)) else { return };
        segments.retain(|s| !gone.contains(&s.loglet));
        segments.insert(at, new.clone());
        self.segments.store(Arc::new(segments));
    }

    /// Bytes in the active segment and when its first record was sequenced (`None` before), for the roll.
    pub fn head_data(&self) -> (u64, Option<i64>) {
        let head = self.head.lock();
        (head.segment.bytes(), head.first_append_at)
    }

    /// The active segment, if its first checkpoint is complete, or while that waits the one that the range was folded from: a fold
    /// of the range needs nothing older.
    pub fn checkpointed(&self) -> Option<LogletId> {
        let head = self.head.lock();
        match head.sequencer.tail().0 >= head.first_checkpoint_len {
            true => Some(head.segment.loglet),
            false => head.base.filter(|_| head.first.is_some()),
        }
    }

    /// Changes what is stamped from the next batch on.
    pub fn set_stamping(&self, stamping: Stamping) {
        self.stamping.store(Arc::new(stamping));
    }

    /// From here on producers silent for so long are forgotten at a checkpoint.
    pub fn set_producer_expiration(&self, ms: i64) {
        self.producer_expiration_ms.store(ms, Ordering::Relaxed);
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
