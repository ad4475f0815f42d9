//! For tests that look at many futures of one lane: a lane and its requests twice, time by hand, its identity.

use super::{Appending, Inner, Lane, LaneOf, Layout, Outcomes, Waiting};
use crate::error::TopicPartition;
use crate::range::ack::{AckSlot, Forks};
use crate::range::park::Parked;
use crate::types::LogletId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

/// Lanes of which there is a second one, by where the first is. It is empty until its lane is forked itself.
#[derive(Default)]
pub(crate) struct LaneForks(HashMap<usize, Arc<Inner>>);

impl LaneForks {
    fn of(&mut self, inner: &Arc<Inner>) -> Arc<Inner> {
        let fork = || Arc::new(Inner { id: inner.id, park: Mutex::default(), room: Arc::default() });
        self.0.entry(Arc::as_ptr(inner) as usize).or_insert_with(fork).clone()
    }
}

impl LaneOf {
    pub(in crate::range) fn fork(&self, lanes: &mut LaneForks) -> LaneOf {
        let lane =
            self.lane.upgrade().map_or_else(|| self.lane.clone(), |inner| Arc::downgrade(&lanes.of(&inner)));
        LaneOf { id: self.id, lane }
    }
}

impl Lane {
    /// The same lane once more, with what is parked.
    pub(crate) fn fork(&self, forks: &mut Forks) -> Lane {
        let inner = forks.lanes.of(&self.0);
        let fork = |waiting: &Waiting| Waiting { ack: waiting.ack.fork(forks), ..waiting.clone() };
        *inner.park.lock() = self.0.park.lock().fork(fork);
        Lane(inner)
    }

    /// Hands out what can be.
    pub(crate) fn look(&self, layout: &impl Layout) {
        self.pump(layout, None);
    }

    /// How many batches are parked.
    pub(crate) fn parked(&self) -> usize {
        self.0.park.lock().queue().len()
    }

    /// Everything that decides what it does from here on; `number` names who waits.
    pub(crate) fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        let park = self.0.park.lock();
        into.write_u8(u8::from(park.has_ended()));
        for Parked { body, .. } in park.queue() {
            into.write_i64(body.batch.head.base_timestamp);
            into.write_u64(number(&body.ack));
        }
        let mut refused: Vec<i32> = park.refused().map(|one| one.sequence).collect();
        refused.sort_unstable();
        into.write_usize(refused.len());
        refused.into_iter().for_each(|sequence| into.write_i32(sequence));
    }
}

impl Appending {
    /// The same request once more, of the lane's second one.
    pub(crate) fn fork(&self, forks: &mut Forks) -> Appending {
        Appending {
            lane: Lane(forks.lanes.of(&self.lane.0)),
            issued: self.issued.clone(),
            ack: forks.of(&self.ack),
            deadline: self.deadline,
            parked: self.parked,
        }
    }

    /// What its client is told at the deadline.
    pub(crate) fn expire(
        &mut self,
        layout: &impl Layout,
        leads: impl Fn(TopicPartition, LogletId) -> bool,
    ) -> Outcomes {
        let outcomes = self.late(layout);
        self.confirmed(outcomes, leads)
    }

    /// What its client is told, if all is known now.
    pub(crate) fn try_confirmed(
        &mut self,
        leads: impl Fn(TopicPartition, LogletId) -> bool,
    ) -> Option<Outcomes> {
        if !self.ack.is_done() {
            return None;
        }
        let outcomes = self.outcomes(true);
        Some(self.confirmed(outcomes, leads))
    }

    fn confirmed(
        &self,
        mut outcomes: Outcomes,
        leads: impl Fn(TopicPartition, LogletId) -> bool,
    ) -> Outcomes {
        let doubts = self.ack.take_doubts();
        let false_ones = doubts.iter().filter(|doubt| !leads(doubt.at, doubt.loglet));
        false_ones.for_each(|doubt| self.take_back(doubt, &mut outcomes));
        outcomes
    }

    /// Whether `slot` is a share of it.
    pub(crate) fn has(&self, slot: &AckSlot) -> bool {
        slot.is_of(&self.ack)
    }
}
