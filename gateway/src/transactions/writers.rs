//! Transactional writers of this node's partitions: that a partition was added to its producer's transaction is asked of
//! the coordinator once, and a transaction's marker goes behind everything that was let in for it (KIP-890).
//!
//! ```text
//!  ask ──► coordinator ──► confirm ──► let in: batch under way ──► settled
//!   │                        ▲                                        │
//!   └────── end: markers ────┴──── what is asked or let in ends ──────┴──► marker
//! ```
//! Without it a batch could be let in, wait while its range splits, and be stored behind the marker: it would begin a
//! transaction that nobody ends. Where the epoch was raised with the end, the log itself refuses such a batch.
//!
//! INV-TXN-5 a marker goes behind every batch that was let in for its transaction.

use super::record::{Place, Producer};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Batches that were let in; to be held until their outcome is known.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    _tokens: Vec<TaskTrackerToken>,
}

impl Admitted {
    pub(super) fn hold(&mut self, token: TaskTrackerToken) {
        self._tokens.push(token);
    }
}

/// What is known of writers, by producer id and partition.
#[derive(Debug, Default)]
pub(super) struct Writers {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_place: HashMap<(i64, Place), Slot>,
    serial: u64,
}

#[derive(Debug)]
struct Slot {
    /// Tells it from a slot of the same place before or after.
    serial: u64,
    /// Questions under way.
    asking: usize,
    /// The epoch whose transaction has the partition.
    epoch: Option<i16>,
    /// Batches under way.
    under_way: TaskTracker,
}

/// A question to the coordinator, under way.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    writers: &'a Writers,
    key: (i64, Place),
    serial: u64,
}

impl Writers {
    /// Lets a batch in if its partition is known to be in its producer's transaction.
    pub(super) fn enter(&self, producer: Producer, place: Place) -> Option<TaskTrackerToken> {
        let slots = self.slots.lock();
        let slot = slots.by_place.get(&(producer.id, place))?;
        (slot.epoch == Some(producer.epoch)).then(|| slot.under_way.token())
    }

    /// Before the coordinator is asked: an end that comes while it is asked is noticed.
    pub(super) fn ask(&self, producer_id: i64, place: Place) -> Asking<'_> {
        let mut slots = self.slots.lock();
        let key = (producer_id, place);
        slots.serial += 1;
        let serial = slots.serial;
        let fresh = || Slot { serial, asking: 0, epoch: None, under_way: TaskTracker::new() };
        let slot = slots.by_place.entry(key).or_insert_with(fresh);
        slot.asking += 1;
        Asking { writers: self, key, serial: slot.serial }
    }

    /// Forgets a producer's place in a partition: its transaction has ended. What was let in is awaited with the answer.
    pub(super) fn end(&self, producer_id: i64, place: Place) -> Option<TaskTracker> {
        let slot = self.slots.lock().by_place.remove(&(producer_id, place))?;
        slot.under_way.close();
        Some(slot.under_way)
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        self.slots.lock().by_place.len()
    }
}

impl Asking<'_> {
    /// The coordinator said that the partition takes part: lets the batch in, unless the transaction has ended since.
    pub(super) fn confirm(self, epoch: i16) -> Option<TaskTrackerToken> {
        let mut slots = self.writers.slots.lock();
        let slot = slots.by_place.get_mut(&self.key).filter(|slot| slot.serial == self.serial)?;
        slot.epoch = Some(epoch);
        Some(slot.under_way.token())
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut slots = self.writers.slots.lock();
        let Some(slot) = slots.by_place.get_mut(&self.key).filter(|slot| slot.serial == self.serial) else {
            return;
        };
        slot.asking -= 1;
        if slot.asking == 0 && slot.epoch.is_none() {
            slots.by_place.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use rangeway_core::types::TopicId;
    use uuid::Uuid;

    const PLACE: Place = (TopicId(Uuid::nil()), 0);

    fn producer(epoch: i16) -> Producer {
        Producer { id: 7, epoch }
    }

    #[test]
    fn what_was_confirmed_is_let_in_until_the_end() {
        let writers = Writers::default();
        assert!(writers.enter(producer(1), PLACE).is_none());
        let token = writers.ask(7, PLACE).confirm(1).expect("let in");
        assert!(writers.enter(producer(2), PLACE).is_none(), "another epoch");
        let second = writers.enter(producer(1), PLACE).expect("known");
        let under_way = writers.end(7, PLACE).expect("known");
        assert!(writers.enter(producer(1), PLACE).is_none());
        drop(token);
        assert!(under_way.wait().now_or_never().is_none(), "one is under way");
        drop(second);
        assert!(under_way.wait().now_or_never().is_some());
        assert!(writers.end(7, PLACE).is_none());
    }

    #[test]
    fn an_end_while_the_coordinator_is_asked_is_noticed() {
        let writers = Writers::default();
        let late = writers.ask(7, PLACE);
        assert!(writers.end(7, PLACE).is_some());
        let next = writers.ask(7, PLACE);
        assert!(late.confirm(1).is_none(), "it was asked about a transaction that ended");
        assert!(next.confirm(1).is_some());
    }

    #[test]
    fn a_question_that_came_to_nothing_leaves_nothing() {
        let writers = Writers::default();
        let first = writers.ask(7, PLACE);
        let second = writers.ask(7, PLACE);
        drop(first);
        assert_eq!(writers.known(), 1);
        drop(second);
        assert_eq!(writers.known(), 0);
        let first = writers.ask(7, PLACE);
        let second = writers.ask(7, PLACE);
        assert!(first.confirm(1).is_some());
        drop(second);
        assert_eq!(writers.known(), 1, "one of both was confirmed");
    }
}
