//! What a drive tells of what was submitted: completed in order, or the segment is over.

use super::{Effect, Head, Phase, RangePrimary};
use crate::drive::{AdmitError, Completion, Purpose, WriteError};
use crate::range::ack::AckSlot;
use crate::range::segment::Segment;
use crate::types::{Address, Offset, Partition, Span};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Told by the drive that a run is durable.
pub(super) struct RunDone {
    pub(super) primary: Arc<RangePrimary>,
    pub(super) segment: Arc<Segment>,
    pub(super) first: Address,
    pub(super) entries: u32,
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
    pub(super) fn completed(self: &Arc<Self>, segment: &Arc<Segment>, first: Address, entries: u32) {
        let mut resolved: SmallVec<[AckSlot; 16]> = SmallVec::new();
        let mut freed = None;
        let settles;
        {
            let mut head = self.head.lock();
            if head.over || head.segment.loglet != segment.loglet {
                return;
            }
            let Some(contiguous) = head.sequencer.complete(first, entries) else { return };
            for _ in contiguous.start.0..contiguous.end.0 {
                let Some(slot) = head.slots.pop_front() else { break };
                freed = head.show(self.span, slot.effect).or(freed);
                resolved.extend(slot.acks);
            }
            head.segment.drive.note_committed(head.sequencer.tail());
            settles = head.inherited.is_some();
        }
        for ack in resolved {
            ack.done();
        }
        if let Some(starts) = freed {
            self.tell_log_starts(&starts);
        }
        if settles {
            self.settle();
        }
        if self.waiting.swap(false, Ordering::AcqRel) {
            self.room.notify_waiters();
        }
        self.lanes.wake();
        self.watchers.wake();
    }

    /// Tells drives what no fold needs any more.
    pub(super) fn tell_log_starts(&self, starts: &[(Partition, Offset)]) {
        // Ancestors' segments are for retention to judge: until all that came from them have a checkpoint of their
        // own, a fold may need every entry.
        let segments = self.segments.load();
        let own = segments.iter().filter(|segment| segment.owner.range == self.id);
        own.for_each(|segment| segment.drive.note_log_starts(starts));
    }

    pub(super) fn run_failed(&self, segment: &Arc<Segment>, error: WriteError) {
        {
            let mut head = self.head.lock();
            if head.over || head.segment.loglet != segment.loglet || head.phase == Phase::Gone {
                return;
            }
            if error == WriteError::Sealed {
                head.sequencer.seal();
            }
            if !matches!(head.phase, Phase::Blocked(_)) {
                // Said of all ranges together by whoever looks after them.
                tracing::debug!(topic = %self.topic, range = %self.id, segment = %segment.loglet, %error,
                    "range blocked: its segment takes no more writes");
            }
            head.phase = Phase::Blocked(error.to_string());
        }
        self.wake_room();
    }

    /// Blocks the range if its active segment's drive has died, also while nobody appends.
    pub fn look_at_drive(&self) {
        if let Some((segment, why)) = self.dead_drive() {
            self.run_failed(&segment, WriteError::Unavailable(why));
        }
    }

    /// Whether the active segment's drive has died with nothing in flight: the segment's end is known without a fence.
    pub fn ends_unfenced(&self) -> bool {
        self.dead_drive().is_some() && {
            let head = self.head.lock();
            head.phase == Phase::Open && head.inherited.is_none() && head.sequencer.drained()
        }
    }

    fn dead_drive(&self) -> Option<(Arc<Segment>, String)> {
        let segment = self.head.lock().segment.clone();
        match segment.drive.admit(0, Purpose::Records) {
            Err(AdmitError::Dead(why)) => Some((segment, why)),
            _ => None,
        }
    }
}

impl Head {
    /// Shows a completed entry to readers; the log starts of a completed checkpoint.
    pub(super) fn show(&mut self, span: Span, effect: Effect) -> Option<Arc<[(Partition, Offset)]>> {
        match effect {
            Effect::High(index, end) => self.visible.high[index as usize] = end,
            Effect::Ended(index, end, begun) => {
                self.visible.high[index as usize] = end;
                let ended = self.visible.ending.iter().position(|one| *one == (index, begun));
                ended.map(|at| self.visible.ending.swap_remove(at));
            }
            Effect::LogStarts(starts) => {
                for &(partition, start) in starts.iter() {
                    if let Some(index) = span.index(partition) {
                        let shown = &mut self.visible.log_start[index];
                        *shown = start.max(*shown);
                    }
                }
            }
            Effect::Checkpointed(starts) => return Some(starts),
            Effect::None => {}
        }
        None
    }
}
