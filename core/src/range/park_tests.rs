//! The park under random arrivals, room, deadlines and refusals, against the list of what it was told.

use super::park::{Arrival, Park, Parked, Refusal, Sequenced};
use crate::error::TopicPartition;
use crate::testing::Mutant;
use crate::testing::mutant::switched::with_broken;
use crate::types::TopicId;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
enum Op {
    /// A fresh batch of a producer, 0 being none, or the first refused one again.
    Send { partition: i32, producer: i64, again: bool, patience: u64 },
    /// The range of a partition takes so many parked ones.
    Room { partition: i32, batches: usize },
    /// Whether ranges take what is not behind parked ones.
    Open(bool),
    /// The range of a partition refuses its first parked batch, for now.
    RangeRefuses { partition: i32 },
    /// The batch of a producer that was issued last is not stored after all.
    Withdrawn { partition: i32, producer: i64 },
    /// Time goes on.
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let partition = || 0..2i32;
    prop_oneof![
        10 => (partition(), 0..3i64, prop::bool::weighted(0.3), 1..20u64).prop_map(
            |(partition, producer, again, patience)| Op::Send { partition, producer, again, patience }
        ),
        5 => (partition(), 1..4usize).prop_map(|(partition, batches)| Op::Room { partition, batches }),
        2 => any::<bool>().prop_map(Op::Open),
        1 => partition().prop_map(|partition| Op::RangeRefuses { partition }),
        1 => (partition(), 1..3i64).prop_map(|(partition, producer)| Op::Withdrawn { partition, producer }),
        3 => (1..8u64).prop_map(Op::Wait),
    ]
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fate {
    Issued,
    Parked,
    Refused,
}

struct World {
    park: Park<u64>,
    start: Instant,
    now: u64,
    open: bool,
    next: BTreeMap<(i32, i64), i32>,
    /// Refused sequences that did not come again.
    refused: BTreeMap<(i32, i64), BTreeSet<i32>>,
    fates: Vec<Fate>,
    last_issued: BTreeMap<i32, u64>,
    issued: BTreeMap<(i32, i64), i32>,
    ended: bool,
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition { topic: TopicId(uuid::Uuid::from_u128(1)), partition }
}

impl World {
    fn run(ops: &[Op]) -> Result<(), String> {
        let mut world = World {
            park: Park::default(),
            start: Instant::now(),
            now: 0,
            open: true,
            next: BTreeMap::new(),
            refused: BTreeMap::new(),
            fates: Vec::new(),
            last_issued: BTreeMap::new(),
            issued: BTreeMap::new(),
            ended: false,
        };
        for op in ops {
            world.step(op)?;
        }
        let waiting: BTreeSet<u64> = world.park.queue().iter().map(|p| p.body).collect();
        let parked = world.fates.iter().filter(|fate| **fate == Fate::Parked).count();
        if waiting.len() != parked {
            Err(format!("{parked} are parked, {} are there", waiting.len()))
        } else {
            Ok(())
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Send { partition, producer, again, patience } => {
                self.send(partition, producer, again, patience)
            }
            Op::Room { partition, batches } => self.room(partition, batches),
            Op::Open(open) => {
                self.open = open;
                Ok(())
            }
            Op::RangeRefuses { partition } => {
                let place = self.park.queue().iter().position(|p| p.at == at(partition));
                let Some(place) = place else { return Ok(()) };
                let mut done = vec![false; self.park.queue().len()];
                done[place] = true;
                for parked in self.park.take(&done) {
                    if parked.sequenced.is_some() {
                        let (refusal, behind) = self.park.bar(parked.at, parked.sequenced);
                        self.told(&parked, refusal)?;
                        behind.iter().try_for_each(|(parked, refusal)| self.told(parked, *refusal))?;
                    } else {
                        self.issue(partition, parked.sequenced, parked.body)?;
                    }
                }
                Ok(())
            }
            Op::Withdrawn { partition, producer } => {
                let Some(sequence) = self.issued.remove(&(partition, producer)) else { return Ok(()) };
                self.refused.entry((partition, producer)).or_default().insert(sequence);
                let sequenced = Some(Sequenced { producer, epoch: 0, sequence });
                let (_, behind) = self.park.bar(at(partition), sequenced);
                behind.iter().try_for_each(|(parked, refusal)| self.told(parked, *refusal))
            }
            Op::Wait(time) => {
                self.now += time;
                let due = self.park.due(self.start + Duration::from_millis(self.now));
                due.iter().try_for_each(|(parked, refusal)| self.told(parked, *refusal))
            }
        }
    }

    fn send(&mut self, partition: i32, producer: i64, again: bool, patience: u64) -> Result<(), String> {
        let id = self.fates.len() as u64;
        let sequenced = (producer > 0).then(|| {
            let key = (partition, producer);
            let first = self.refused.get(&key).and_then(|r| r.first().copied()).filter(|_| again);
            let sequence = first.unwrap_or_else(|| {
                let next = self.next.entry(key).or_default();
                *next += 1;
                *next - 1
            });
            Sequenced { producer, epoch: 0, sequence }
        });
        let deadline = self.start + Duration::from_millis(self.now + patience);
        let parked = Parked { at: at(partition), sequenced, deadline, body: id };
        self.fates.push(Fate::Parked);
        match self.park.arrive(at(partition), sequenced) {
            Arrival::Refuse(refusal) => return self.told(&parked, refusal),
            Arrival::Issue if self.open => return self.issue(partition, sequenced, id),
            Arrival::Issue | Arrival::Park => self.park.park(parked),
        }
        Ok(())
    }

    fn room(&mut self, partition: i32, batches: usize) -> Result<(), String> {
        let mut left = batches;
        let takes = |p: &Parked<u64>| {
            let takes = p.at == at(partition) && left > 0;
            left -= usize::from(takes);
            takes
        };
        let done: Vec<bool> = self.park.queue().iter().map(takes).collect();
        let taken = self.park.take(&done);
        taken.into_iter().try_for_each(|p| self.issue(partition, p.sequenced, p.body))
    }

    fn issue(&mut self, partition: i32, sequenced: Option<Sequenced>, id: u64) -> Result<(), String> {
        let fate = &mut self.fates[id as usize];
        if *fate != Fate::Parked {
            return Err(format!("{id} is issued and was {fate:?}"));
        }
        *fate = Fate::Issued;
        let last = self.last_issued.insert(partition, id);
        if last.is_some_and(|last| last > id) {
            return Err(format!("{id} is issued after {last:?}"));
        }
        let Some(Sequenced { producer, sequence, .. }) = sequenced else { return Ok(()) };
        let refused = self.refused.entry((partition, producer)).or_default();
        refused.remove(&sequence);
        if refused.first().is_some_and(|first| *first < sequence) {
            return Err(format!("sequence {sequence} of {producer} overtakes refused ones {refused:?}"));
        }
        self.issued.insert((partition, producer), sequence);
        Ok(())
    }

    fn told(&mut self, parked: &Parked<u64>, refusal: Refusal) -> Result<(), String> {
        if parked.sequenced.is_none() && refusal != Refusal::Ended {
            return Err("a plain batch is told to come again".into());
        }
        self.refused(parked)
    }

    fn refused(&mut self, parked: &Parked<u64>) -> Result<(), String> {
        let fate = &mut self.fates[parked.body as usize];
        if *fate != Fate::Parked {
            return Err(format!("{} is refused and was {fate:?}", parked.body));
        }
        *fate = Fate::Refused;
        match parked.sequenced {
            Some(s) => {
                let key = (parked.at.partition, s.producer);
                // Sent again while the first waited, which was issued since: nothing of it is outstanding.
                if self.issued.get(&key).is_none_or(|last| *last < s.sequence) {
                    self.refused.entry(key).or_default().insert(s.sequence);
                }
            }
            None => self.ended = true,
        }
        // From the first refused plain batch on nothing that arrives is taken.
        if self.ended && self.park.arrive(at(0), None) != Arrival::Refuse(Refusal::Ended) {
            return Err("a plain batch was refused and the lane goes on".into());
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn order_is_kept_whatever_is_parked_and_refused(ops in prop::collection::vec(op(), 1..60)) {
        World::run(&ops).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn each_broken_rule_of_the_park_is_found() {
    for mutant in [
        Mutant::RefusedAlone,
        Mutant::ParkedOvertaken,
        Mutant::RefusedForgotten,
        Mutant::PlainRefused,
        Mutant::RefusedStays,
    ] {
        let mut runner = TestRunner::deterministic();
        let ops = prop::collection::vec(op(), 1..60);
        let found = (0..500).any(|_| {
            let case = ops.new_tree(&mut runner).expect("a case").current();
            with_broken(Some(mutant), || World::run(&case)).is_err()
        });
        assert!(found, "{mutant:?} was not found");
    }
}

#[test]
fn a_refused_sequence_bars_what_follows_it_and_nothing_else() {
    let mut park: Park<u64> = Park::default();
    let sequenced = |epoch, sequence| Some(Sequenced { producer: 5, epoch, sequence });
    park.refuse(at(0), sequenced(0, i32::MAX));
    assert_eq!(park.arrive(at(0), sequenced(0, 0)), Arrival::Refuse(Refusal::Again), "0 follows the largest");
    assert_eq!(
        park.arrive(at(0), sequenced(0, i32::MAX - 1)),
        Arrival::Issue,
        "what comes before cannot overtake"
    );
    assert_eq!(park.arrive(at(1), sequenced(0, 0)), Arrival::Issue, "another partition");
    assert_eq!(park.arrive(at(0), None), Arrival::Issue, "no producer");
    park.refuse(at(0), sequenced(0, i32::MAX - 1));
    assert_eq!(
        park.arrive(at(0), sequenced(0, i32::MAX)),
        Arrival::Refuse(Refusal::Again),
        "an earlier one now"
    );
    assert_eq!(park.arrive(at(0), sequenced(0, i32::MAX - 1)), Arrival::Issue, "come again");
    assert_eq!(
        park.arrive(at(0), sequenced(0, 0)),
        Arrival::Refuse(Refusal::Again),
        "the largest was refused too and is first now"
    );
    assert_eq!(park.arrive(at(0), sequenced(0, i32::MAX)), Arrival::Issue);
    assert_eq!(park.arrive(at(0), sequenced(0, 1)), Arrival::Refuse(Refusal::Again), "0 was refused too");
    assert_eq!(park.arrive(at(0), sequenced(1, 0)), Arrival::Issue, "a new epoch begins anew");
    assert!(park.is_quiet());
}
