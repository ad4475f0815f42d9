//! Lanes over primaries whose segments end anywhere: what was acknowledged is in the log once, where it was said to be, and
//! every client's batches are there in its order (G5, G6; reshard-rules R5, R7, R8).

use super::ack::Issued;
use super::handover_tests::{One, batch};
use super::lane::{Appending, Lane, Layout, Parking};
use super::primary::{Phase, RangePrimary};
use super::state::RangeState;
use crate::error::{AppendError, TopicPartition};
use crate::testing::Mutant;
use crate::testing::mutant::switched::with_broken;
use crate::types::{Address, LogletId, Offset, Partition, Span};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SPAN: Span = Span { first: 0, last: 3 };
const IN_FLIGHT_MAX: i32 = 5;

#[derive(Clone, Debug)]
enum Op {
    /// A client sends its next batch.
    Send(usize),
    /// A client sends its first refused batch again.
    Again(usize),
    /// The `n`th run in the drive completes.
    Complete(usize),
    /// The range takes nothing for now, or goes on.
    Hold(bool),
    /// The segment ends so many entries above what is complete; its successor opens.
    End(u64),
    /// The first request of a client is answered without having an outcome.
    Answered(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..4usize).prop_map(Op::Send),
        4 => (0..4usize).prop_map(Op::Again),
        4 => (0..3usize).prop_map(Op::Complete),
        2 => prop::bool::weighted(0.3).prop_map(Op::Hold),
        2 => (0..6u64).prop_map(Op::End),
        1 => (0..4usize).prop_map(Op::Answered),
    ]
}

struct Now {
    primary: Mutex<Arc<RangePrimary>>,
    parking: Arc<Parking>,
}

impl Layout for Now {
    fn range_of(&self, _at: TopicPartition) -> Option<Arc<RangePrimary>> {
        Some(self.primary.lock().clone())
    }
    fn now_ms(&self) -> i64 {
        1000
    }
    fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }
    async fn leads(&self, _at: TopicPartition, _loglet: LogletId) -> bool {
        true
    }
}

/// Clients 0 and 1 are idempotent, 2 and 3 plain; two of them share a partition.
struct Client {
    lane: Lane,
    partition: Partition,
    idempotent: bool,
    next: i32,
    flying: Vec<(i32, Appending)>,
    refused: BTreeSet<i32>,
    acked: BTreeMap<i32, Offset>,
}

impl Client {
    /// Clients keep at most five batches whose outcome they do not know.
    fn may_go_on(&self) -> bool {
        let flying = self.flying.iter().map(|(sequence, _)| *sequence);
        let oldest = flying.chain(self.refused.iter().copied()).min();
        oldest.is_none_or(|oldest| self.next - oldest < IN_FLIGHT_MAX)
    }

    fn text(&self, id: usize, sequence: i32) -> String {
        format!("{id}/{sequence}")
    }
}

struct World {
    now: Now,
    head: One,
    ended: Vec<(One, Address)>,
    clients: Vec<Client>,
}

impl World {
    fn new() -> World {
        let head = One::new(1, RangeState::new(SPAN), 4);
        head.open(Vec::new());
        let client = |n: usize| Client {
            lane: Lane::default(),
            partition: [0, 1, 0, 1][n],
            idempotent: n < 2,
            next: 0,
            flying: Vec::new(),
            refused: BTreeSet::new(),
            acked: BTreeMap::new(),
        };
        let now = Now { primary: Mutex::new(head.primary.clone()), parking: Arc::default() };
        World { now, head, ended: Vec::new(), clients: (0..4).map(client).collect() }
    }

    fn run(ops: &[Op]) -> Result<(), String> {
        let mut world = World::new();
        for op in ops {
            world.step(op)?;
            world.look()?;
        }
        world.finish()
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Send(n) => {
                let client = &mut self.clients[n];
                if client.may_go_on() {
                    let sequence = client.next;
                    client.next += 1;
                    self.send(n, sequence);
                }
            }
            Op::Again(n) => self.again(n),
            Op::Complete(n) => {
                let waiting = self.head.drive.waiting();
                if waiting > 0 {
                    self.head.drive.complete(n % waiting);
                }
            }
            Op::Hold(true) => self.head.primary.stop_issuing(0),
            Op::Hold(false) => self.head.primary.resume(None),
            Op::End(above) => self.end(above),
            Op::Answered(n) => {
                let client = &mut self.clients[n];
                if !client.flying.is_empty() {
                    let (sequence, pending) = client.flying.remove(0);
                    drop(pending);
                    if client.idempotent {
                        client.refused.insert(sequence);
                    }
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, n: usize, sequence: i32) {
        let client = &mut self.clients[n];
        let producer = client.idempotent.then_some((n as i64, 0, sequence));
        let one = batch(client.partition, producer, &client.text(n, sequence));
        let topic = self.head.primary.topic;
        let far = Instant::now() + Duration::from_secs(3600);
        let pending = client.lane.append(topic, vec![one], far, &self.now);
        client.flying.push((sequence, pending));
    }

    /// As clients do: what was refused goes again in order, while nothing before it is under way.
    fn again(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let Some(&sequence) = client.refused.first() else { return };
        if client.flying.iter().all(|(other, _)| *other > sequence) {
            client.refused.remove(&sequence);
            self.send(n, sequence);
        }
    }

    fn end(&mut self, above: u64) {
        self.head.primary.stop_issuing(0);
        let tail = Address((self.head.completed() + above).min(self.head.drive.submitted()));
        let next = One::new(self.ended.len() as u64 + 2, self.head.folded(tail), 4);
        next.open(self.head.primary.hand_over(tail, None));
        *self.now.primary.lock() = next.primary.clone();
        self.head.primary.close(Phase::Moved);
        self.ended.push((std::mem::replace(&mut self.head, next), tail));
    }

    /// Hands out what is parked and takes in what is known.
    fn look(&mut self) -> Result<(), String> {
        for (n, client) in self.clients.iter_mut().enumerate() {
            client.lane.pump(&self.now, None);
            let mut ended = false;
            let mut flying = Vec::new();
            for (sequence, mut pending) in std::mem::take(&mut client.flying) {
                let Some(mut outcomes) = pending.try_confirmed(|_, _| true) else {
                    flying.push((sequence, pending));
                    continue;
                };
                ended |= outcomes.close_after;
                match outcomes.batches.pop() {
                    Some(Issued::Ok { base_offset, .. }) => drop(client.acked.insert(sequence, base_offset)),
                    Some(Issued::Err(AppendError::NotLeader { .. })) if client.idempotent => {
                        client.refused.insert(sequence);
                    }
                    Some(Issued::Err(AppendError::TimedOut)) if !client.idempotent => {}
                    other => return Err(format!("client {n}: {sequence} was answered {other:?}")),
                }
            }
            client.flying = flying;
            if ended {
                // Its connection is closed; it goes on with another and does not know what became of the rest.
                client.flying.clear();
                client.lane = Lane::default();
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), String> {
        for _ in 0..400 {
            self.head.primary.resume(None);
            self.head.drive.complete_all();
            (0..self.clients.len()).for_each(|n| self.again(n));
            self.look()?;
        }
        if let Some(n) = self.clients.iter().position(|c| !c.flying.is_empty() || !c.refused.is_empty()) {
            return Err(format!("client {n} never gets its answers"));
        }
        if self.now.parking.now() != 0 {
            return Err(format!("{} are counted as parked", self.now.parking.now()));
        }
        let mut log: Vec<(Partition, Offset, String)> = Vec::new();
        self.ended.iter().for_each(|(one, tail)| log.extend(one.texts(*tail)));
        log.extend(self.head.texts(Address(u64::MAX)));
        for (n, client) in self.clients.iter().enumerate() {
            let mine: Vec<i32> = log
                .iter()
                .filter_map(|(_, _, text)| text.strip_prefix(&format!("{n}/")).and_then(|s| s.parse().ok()))
                .collect();
            if !mine.is_sorted() || mine.windows(2).any(|w| w[0] == w[1]) {
                return Err(format!("client {n}: stored {mine:?}"));
            }
            if client.idempotent && mine != (0..client.next).collect::<Vec<_>>() {
                return Err(format!("client {n}: sent 0 to {}, stored {mine:?}", client.next));
            }
            for (sequence, offset) in &client.acked {
                let place = (client.partition, *offset, client.text(n, *sequence));
                if !log.contains(&place) {
                    return Err(format!("{place:?} was acknowledged and is not there: {log:?}"));
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_ends_where_every_client_finds_its_batches_once_and_in_order(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        World::run(&ops).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn each_broken_rule_of_the_handover_is_found() {
    for mutant in [
        Mutant::WithdrawnAlone,
        Mutant::OthersBeforeInherited,
        Mutant::DuplicateInFlight,
        Mutant::BlindReappend,
        Mutant::ParkedOvertaken,
        Mutant::RefusedForgotten,
    ] {
        let mut runner = TestRunner::deterministic();
        let ops = prop::collection::vec(op(), 20..60);
        let found = (0..3000).any(|_| {
            let case = ops.new_tree(&mut runner).expect("a case").current();
            let run = AssertUnwindSafe(|| World::run(&case));
            with_broken(Some(mutant), || catch_unwind(run)).map_or(true, |outcome| outcome.is_err())
        });
        assert!(found, "{mutant:?} was not found");
    }
}
