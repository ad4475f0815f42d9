//! For tests that look at many futures of one primary: a primary twice, its drive's answers by hand, its identity.

use super::handover::{HandedOver, Inherited};
use super::{Effect, Head, RangePrimary, Slot};
use crate::drive::WriteError;
use crate::loglet::sequencer::Sequencer;
use crate::range::ack::{AckSlot, Forks};
use crate::range::checkpoint;
use crate::range::state::RangeState;
use crate::range::watch::Watchers;
use crate::types::{Address, LogletId, Partition};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::sync::Notify;

type Acks = SmallVec<[AckSlot; 1]>;

impl RangePrimary {
    /// The same primary once more; who waits for it waits in `forks`. Segments are shared: their tails must not be noted.
    pub(crate) fn fork(&self, forks: &mut Forks) -> Arc<RangePrimary> {
        Arc::new(RangePrimary {
            topic: self.topic,
            id: self.id,
            span: self.span,
            limits: self.limits,
            producer_expiration_ms: AtomicI64::new(self.producer_expiration_ms.load(Ordering::Relaxed)),
            known: self.known.clone(),
            stamping: ArcSwap::new(self.stamping.load_full()),
            head: Mutex::new(self.head.lock().fork(forks)),
            segments: ArcSwap::new(self.segments.load_full()),
            room: Notify::new(),
            waiting: AtomicBool::new(false),
            watchers: Watchers::default(),
            lanes: Watchers::default(),
            counts: super::Counts::default(),
        })
    }

    /// The drive's answer to a run of the active segment.
    pub(crate) fn answered(self: &Arc<Self>, first: Address, entries: u32, outcome: Result<(), WriteError>) {
        let segment = self.head.lock().segment.clone();
        match outcome {
            Ok(()) => self.completed(&segment, first, entries),
            Err(error) => self.run_failed(&segment, error),
        }
    }

    /// The active segment and its sequencer.
    pub(crate) fn active(&self) -> (LogletId, Sequencer) {
        let head = self.head.lock();
        (head.segment.loglet, head.sequencer.clone())
    }

    /// One above the last completed record of a partition.
    pub(crate) fn high(&self, partition: Partition) -> Option<i64> {
        let index = self.span.index(partition)?;
        self.head.lock().visible.high.get(index).copied()
    }

    /// Everything that decides what it does from here on; `number` names who waits.
    pub(crate) fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        let head = self.head.lock();
        (self.id, head.segment.loglet, head.over, std::mem::discriminant(&head.phase)).hash(into);
        (&head.sequencer, &head.visible.high, &head.visible.log_start, &head.visible.ending).hash(into);
        identify_state(&head.state, into);
        for slot in &head.slots {
            std::mem::discriminant(&slot.effect).hash(into);
            slot.batch.as_ref().map(|batch| batch.head.base_timestamp).hash(into);
            slot.acks.iter().for_each(|ack| number(ack).hash(into));
        }
        for item in head.inherited.iter().flat_map(|inherited| &inherited.queue) {
            item.identify(into, number);
        }
    }
}

/// Hashes a state whole.
pub(crate) fn identify_state(state: &RangeState, into: &mut impl Hasher) {
    checkpoint::encode(&state.capture(Address(0)), 1 << 16).hash(into);
}

fn fork_acks(acks: &Acks, forks: &mut Forks) -> Acks {
    acks.iter().map(|ack| ack.fork(forks)).collect()
}

impl Head {
    fn fork(&self, forks: &mut Forks) -> Head {
        let slots = self.slots.iter().map(|slot| Slot {
            effect: slot.effect.clone(),
            acks: fork_acks(&slot.acks, forks),
            batch: slot.batch.clone(),
        });
        Head {
            state: self.state.clone(),
            sequencer: self.sequencer.clone(),
            segment: self.segment.clone(),
            slots: slots.collect(),
            visible: super::Visible {
                high: self.visible.high.clone(),
                log_start: self.visible.log_start.clone(),
                ending: self.visible.ending.clone(),
            },
            phase: self.phase.clone(),
            stuck: self.stuck,
            since_checkpoint: self.since_checkpoint,
            last_full_checkpoint: self.last_full_checkpoint,
            first: self.first.clone(),
            base: self.base,
            first_checkpoint_len: self.first_checkpoint_len,
            first_append_at: self.first_append_at,
            checkpointing: self.checkpointing,
            untold: self.untold,
            inherited: self.inherited.as_ref().map(|inherited| inherited.fork(forks)),
            over: self.over,
        }
    }
}

impl Clone for Effect {
    fn clone(&self) -> Effect {
        match self {
            Effect::High(index, end) => Effect::High(*index, *end),
            Effect::Ended(index, end, begun) => Effect::Ended(*index, *end, *begun),
            Effect::LogStarts(starts) => Effect::LogStarts(starts.clone()),
            Effect::Checkpointed(starts) => Effect::Checkpointed(starts.clone()),
            Effect::None => Effect::None,
        }
    }
}

impl Inherited {
    fn fork(&self, forks: &mut Forks) -> Inherited {
        let queue = self.queue.iter().map(|item| HandedOver {
            topic: item.topic,
            batch: item.batch.clone(),
            acks: fork_acks(&item.acks, forks),
        });
        Inherited { queue: queue.collect(), at: self.at, settling: self.settling }
    }
}

impl HandedOver {
    fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        self.batch.head.base_timestamp.hash(into);
        self.acks.iter().for_each(|ack| number(ack).hash(into));
    }
}
