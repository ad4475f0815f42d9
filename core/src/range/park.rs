//! The park of a lane: batches that no range takes now, in the order of their arrival (reshard-rules R7, R8). Pure.
//!
//! ```text
//! arrive ── nothing of its partition is parked ──► issue ── taken ──► out of here
//!    │                                               └ not now ─► park
//!    ├── something is ──► park, behind it
//!    └── a refused sequence is outstanding, or the lane has ended ──► refuse
//! ```
//! INV-PARK-1 of a lane and partition, batches are issued in the order in which they arrived (R7a).
//! INV-PARK-2 what is refused is out of the park in the same step, and so is everything behind it (R7c, R7d).
//! INV-PARK-3 after an idempotent batch was refused nothing that follows it in sequence is taken until it comes again,
//! which holds for each that was refused so; after a plain one was, nothing more is taken (R8), or, if it was since its range cannot
//! go on, nothing of its partition that is plain: it is refused alike as long as that is so, then the lane ends.

use crate::codec::batch::BatchHead;
use crate::error::TopicPartition;
use crate::testing::{Mutant, broken};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

/// Producers and partitions of which a lane remembers refused sequences; one with more of them ends.
const REFUSED_MAX: usize = 1024;
/// Refused sequences remembered of each, the lowest ones: clients keep at most five in flight.
const SEQUENCES_MAX: usize = 16;

/// An idempotent producer's batch, as far as order goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Sequenced {
    /// The producer.
    pub producer: i64,
    /// Its epoch.
    pub epoch: i16,
    /// Sequence of the first record.
    pub sequence: i32,
}

impl Sequenced {
    /// Of a batch; `None` for a plain one.
    pub fn of(head: &BatchHead) -> Option<Sequenced> {
        (head.producer_id >= 0).then_some(Sequenced {
            producer: head.producer_id,
            epoch: head.producer_epoch,
            sequence: head.base_sequence,
        })
    }

    /// Whether this one follows `other` of the same producer and epoch; sequences go round after 2^31 - 1.
    fn follows(&self, other: &Sequenced) -> bool {
        let ahead = self.sequence.wrapping_sub(other.sequence) & i32::MAX;
        self.epoch == other.epoch && ahead != 0 && ahead < 1 << 30
    }
}

/// A batch that waits.
#[derive(Clone, Debug)]
pub struct Parked<T> {
    /// Its partition.
    pub at: TopicPartition,
    /// Its place in its producer's order, if it has one.
    pub sequenced: Option<Sequenced>,
    /// When it is refused.
    pub deadline: Instant,
    /// What is to be issued.
    pub body: T,
}

/// What a batch is told that is not taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Send it again, and what follows it after it.
    Again,
    /// No more of this lane is taken: nothing in a plain batch tells a later one from one sent again.
    Ended,
}

/// Where a batch that arrives goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// To its range.
    Issue,
    /// Into the park.
    Park,
    /// Back.
    Refuse(Refusal),
}

/// See the module head.
#[derive(Debug)]
pub struct Park<T> {
    /// In order of arrival, all partitions.
    queue: VecDeque<Parked<T>>,
    /// Refused sequences of a producer and partition that did not come again yet, in their order and of one epoch. Never
    /// an empty list.
    refused: HashMap<(TopicPartition, i64), Vec<Sequenced>>,
    /// Partitions of which a plain batch was refused since the range cannot go on.
    stuck: HashSet<TopicPartition>,
    ended: bool,
}

impl<T> Default for Park<T> {
    fn default() -> Park<T> {
        Park { queue: VecDeque::new(), refused: HashMap::new(), stuck: HashSet::new(), ended: false }
    }
}

impl<T: Clone> Park<T> {
    /// Whether every batch that arrives goes to its range.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.refused.is_empty() && self.stuck.is_empty() && !self.ended
    }

    /// Whether no more is taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Decides of a batch that arrives.
    pub fn arrive(&mut self, at: TopicPartition, sequenced: Option<Sequenced>) -> Arrival {
        if self.ended {
            return Arrival::Refuse(Refusal::Ended);
        }
        if let Some(sequenced) = sequenced
            && self.overtakes(at, sequenced)
        {
            return Arrival::Refuse(self.refuse(at, Some(sequenced)));
        }
        let behind = self.queue.iter().any(|parked| parked.at == at);
        if behind && !broken(Mutant::ParkedOvertaken) { Arrival::Park } else { Arrival::Issue }
    }

    /// Whether a batch would go before one that was refused; forgets the refused one that it is.
    fn overtakes(&mut self, at: TopicPartition, sequenced: Sequenced) -> bool {
        let key = (at, sequenced.producer);
        let Some(refused) = self.refused.get_mut(&key) else { return false };
        let Some(first) = refused.first() else { return false };
        if sequenced.follows(first) {
            return true;
        }
        if sequenced == *first {
            refused.remove(0);
        } else if sequenced.epoch > first.epoch {
            refused.clear();
        }
        if refused.is_empty() {
            self.refused.remove(&key);
        }
        false
    }

    /// Parks a batch behind all others.
    pub fn park(&mut self, batch: Parked<T>) {
        self.queue.push_back(batch);
    }

    /// What waits, in order of arrival.
    pub fn queue(&self) -> &VecDeque<Parked<T>> {
        &self.queue
    }

    /// Takes out what was issued or refused by its range: `done` says which, in order of arrival.
    pub fn take(&mut self, done: &[bool]) -> Vec<Parked<T>> {
        let mut taken = Vec::new();
        let mut left = VecDeque::with_capacity(self.queue.len());
        for (i, parked) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            if done.get(i) == Some(&true) { taken.push(parked) } else { left.push_back(parked) }
        }
        self.queue = left;
        taken
    }

    /// A batch was refused for a reason that passes, and nothing of its partition waits behind it: what follows it later
    /// must not go first.
    pub fn refuse(&mut self, at: TopicPartition, sequenced: Option<Sequenced>) -> Refusal {
        let Some(sequenced) = sequenced else {
            if !broken(Mutant::PlainRefused) {
                self.ended = true;
                return Refusal::Ended;
            }
            return Refusal::Again;
        };
        if broken(Mutant::RefusedForgotten) {
            return Refusal::Again;
        }
        let refused = self.refused.entry((at, sequenced.producer)).or_default();
        match refused.first().map(|first| first.epoch) {
            Some(epoch) if epoch < sequenced.epoch => refused.clear(),
            Some(epoch) if epoch > sequenced.epoch => return Refusal::Again,
            _ => {}
        }
        let place = refused.partition_point(|before| sequenced.follows(before));
        if refused.get(place) != Some(&sequenced) {
            refused.insert(place, sequenced);
            refused.truncate(SEQUENCES_MAX);
        }
        if self.refused.len() > REFUSED_MAX {
            self.ended = true;
        }
        Refusal::Again
    }

    /// A plain batch was refused since its range cannot go on: none of its partition is taken any more. While the range cannot go on they
    /// are refused alike; one that comes when it can is refused by [`Park::refuse`], which ends the lane.
    pub fn refuse_stuck(&mut self, at: TopicPartition) {
        self.stuck.insert(at);
        self.ended |= self.stuck.len() > REFUSED_MAX;
    }

    /// Whether [`Park::refuse_stuck`] holds for a batch.
    pub fn is_stuck(&self, at: TopicPartition, sequenced: Option<Sequenced>) -> bool {
        sequenced.is_none() && !self.ended && self.stuck.contains(&at)
    }

    /// A batch that is not parked (any more) was refused, for a reason that passes: refuses all of its partition that
    /// waits behind it.
    pub fn bar(
        &mut self,
        at: TopicPartition,
        sequenced: Option<Sequenced>,
    ) -> (Refusal, Vec<(Parked<T>, Refusal)>) {
        let refusal = self.refuse(at, sequenced);
        (refusal, self.withdraw(|parked| parked.at == at))
    }

    /// Refuses what is due at `now` and everything behind it of its partition.
    pub fn due(&mut self, now: Instant) -> Vec<(Parked<T>, Refusal)> {
        self.withdraw(|parked| parked.deadline <= now)
    }

    /// Refuses what `which` says and everything behind it of its partition.
    pub fn withdraw(&mut self, which: impl Fn(&Parked<T>) -> bool) -> Vec<(Parked<T>, Refusal)> {
        if !self.queue.iter().any(&which) {
            return Vec::new();
        }
        let mut barred: Vec<TopicPartition> = Vec::new();
        let mut withdrawn = Vec::new();
        for parked in std::mem::take(&mut self.queue) {
            let behind = barred.contains(&parked.at) && !broken(Mutant::RefusedAlone);
            if !behind && !which(&parked) {
                self.queue.push_back(parked);
                continue;
            }
            barred.push(parked.at);
            if broken(Mutant::RefusedStays) {
                self.queue.push_back(parked.clone());
            }
            let refusal = self.refuse(parked.at, parked.sequenced);
            withdrawn.push((parked, refusal));
        }
        withdrawn
    }
}

#[cfg(test)]
impl<T: Clone> Park<T> {
    /// The same park once more, with `body` made of each body.
    pub(crate) fn fork(&self, mut body: impl FnMut(&T) -> T) -> Park<T> {
        let queue = self.queue.iter().map(|parked| Parked { body: body(&parked.body), ..parked.clone() });
        Park {
            queue: queue.collect(),
            refused: self.refused.clone(),
            stuck: self.stuck.clone(),
            ended: self.ended,
        }
    }

    /// Refused sequences that did not come again yet.
    pub(crate) fn refused(&self) -> impl Iterator<Item = &Sequenced> {
        self.refused.values().flatten()
    }
}
