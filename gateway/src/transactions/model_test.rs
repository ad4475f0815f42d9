//! Random clients, crashes, lost appends, and markers that come late, twice or never, against partitions that are a
//! model: no transaction is half committed, and none stays open.

use super::ask::*;
use super::coordinator_test::{Rig, place};
use super::record::{Place, Producer, Rules, State};
use proptest::prelude::*;
use rangeway_core::replicated::{Machine, Outcome, Ticket};
use std::collections::{BTreeMap, BTreeSet};

const PLACES: i32 = 3;
const CLIENTS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// A client starts anew.
    Init(usize),
    /// A client goes on after an error.
    GoOn(usize),
    /// A client writes to a partition, by the rules: adding it before, or by writing.
    Write(usize, i32, Rules),
    /// A client writes without having added anything.
    WriteOnly(usize, i32),
    /// A client ends its transaction.
    End(usize, Rules, bool),
    /// The writer of markers takes what is decided.
    Take,
    /// A marker that is on its way arrives.
    Arrive(usize),
    /// A marker is sent once more.
    Copy(usize),
    /// Complete transactions are told.
    Tell,
    /// Time passes.
    Wait(u64),
    /// The coordinator's process dies.
    Restart,
    /// It dies with the append of what the next step makes.
    LoseNext,
}

fn step() -> impl Strategy<Value = Step> {
    let rules = || prop_oneof![Just(Rules::V1), Just(Rules::V2)];
    let client = || 0..CLIENTS;
    prop_oneof![
        1 => client().prop_map(Step::Init),
        1 => client().prop_map(Step::GoOn),
        8 => (client(), 0..PLACES, rules()).prop_map(|(c, p, r)| Step::Write(c, p, r)),
        2 => (client(), 0..PLACES).prop_map(|(c, p)| Step::WriteOnly(c, p)),
        5 => (client(), rules(), any::<bool>()).prop_map(|(c, r, b)| Step::End(c, r, b)),
        4 => Just(Step::Take),
        8 => (0usize..8).prop_map(Step::Arrive),
        2 => (0usize..8).prop_map(Step::Copy),
        4 => Just(Step::Tell),
        1 => (1u64..70_000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => Just(Step::LoseNext),
    ]
}

/// A partition's log as far as transactions go.
#[derive(Default)]
struct Partition {
    /// Newest epoch by producer id.
    epochs: BTreeMap<i64, i16>,
    /// Open transactions: which, by producer id.
    open: BTreeMap<i64, u64>,
    /// The last transaction that ended, by producer id.
    ended: BTreeMap<i64, u64>,
}

#[derive(Clone, Debug)]
struct Sent {
    place: Place,
    marker: Decided,
}

struct World {
    rig: Rig,
    clients: Vec<Option<Producer>>,
    partitions: Vec<Partition>,
    /// Markers under way.
    sent: Vec<Sent>,
    /// Partitions that a taken transaction still waits for, by its number.
    waiting: BTreeMap<u64, BTreeSet<Place>>,
    /// Writes, by transaction: producer and partition.
    written: BTreeMap<u64, BTreeSet<(i64, Place)>>,
    /// How each transaction ended in each partition.
    outcomes: BTreeMap<(u64, Place), bool>,
    /// What clients were told.
    told: BTreeMap<u64, bool>,
    lose: bool,
}

impl World {
    fn new() -> World {
        World {
            rig: Rig::new(),
            clients: vec![None; CLIENTS],
            partitions: (0..PLACES).map(|_| Partition::default()).collect(),
            sent: Vec::new(),
            waiting: BTreeMap::new(),
            written: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            told: BTreeMap::new(),
            lose: false,
        }
    }

    fn number(&self) -> u64 {
        self.rig.machine.entries.get("t").map_or(0, |e| e.number)
    }

    fn run(&mut self, step: Step) {
        let before = self.rig.records.len();
        let lose = std::mem::take(&mut self.lose);
        match step {
            Step::Init(c) => self.init(c, None, lose),
            Step::GoOn(c) => {
                let expected = self.clients[c];
                if expected.is_some() {
                    self.init(c, expected, lose);
                }
            }
            Step::Write(c, p, rules) => {
                if let Some(producer) = self.clients[c]
                    && self.rig.add(producer, rules, place(p)).is_ok()
                    && !lose
                {
                    self.write(producer, p);
                }
            }
            Step::WriteOnly(c, p) => {
                if let Some(producer) = self.clients[c]
                    && self.rig.verify(producer, vec![place(p)]).is_ok_and(|v| !v.places.is_empty())
                {
                    self.write(producer, p);
                }
            }
            Step::End(c, rules, commit) => self.end(c, rules, commit, lose),
            Step::Take => {
                let decided = self.rig.decided();
                if !lose {
                    decided.into_iter().for_each(|d| self.send(d));
                }
            }
            Step::Arrive(n) => {
                if !self.sent.is_empty() {
                    let sent = self.sent.remove(n % self.sent.len());
                    self.arrive(&sent);
                }
            }
            Step::Copy(n) => {
                if !self.sent.is_empty() {
                    self.sent.push(self.sent[n % self.sent.len()].clone());
                }
            }
            Step::Tell => self.tell(),
            Step::Wait(ms) => self.rig.advance(ms),
            Step::Restart => self.restart(before),
            Step::LoseNext => self.lose = true,
        }
        if lose {
            // Nobody learned of it: what was recorded in this step is not there.
            self.restart(before);
        }
    }

    fn restart(&mut self, keep: usize) {
        self.rig.forget_after(keep);
        self.waiting.clear();
    }

    fn init(&mut self, c: usize, expected: Option<Producer>, lose: bool) {
        let answer = self.rig.init(expected);
        if let (Ok(producer), false) = (answer, lose) {
            self.clients[c] = Some(producer);
        }
    }

    fn write(&mut self, producer: Producer, p: i32) {
        let number = self.number();
        let partition = &mut self.partitions[p as usize];
        if partition.epochs.get(&producer.id).is_some_and(|newest| *newest > producer.epoch) {
            return;
        }
        partition.epochs.insert(producer.id, producer.epoch);
        let ended = partition.ended.get(&producer.id).copied().unwrap_or(0);
        assert!(ended < number, "a write behind the marker of its transaction");
        partition.open.insert(producer.id, number);
        self.written.entry(number).or_default().insert((producer.id, place(p)));
    }

    fn end(&mut self, c: usize, rules: Rules, commit: bool, lose: bool) {
        let Some(producer) = self.clients[c] else { return };
        let was_ongoing = self.rig.machine.entries.get("t").is_some_and(|e| e.state == State::Ongoing);
        let number = self.number();
        if let (Ok(next), false) = (self.rig.end(producer, rules, commit), lose) {
            if was_ongoing {
                self.told.insert(number, commit);
            }
            if rules == Rules::V2 {
                self.clients[c] = Some(next);
            }
        }
    }

    fn send(&mut self, decided: Decided) {
        self.waiting.insert(decided.number, decided.places.iter().copied().collect());
        for place in decided.places.clone() {
            self.sent.push(Sent { place, marker: decided.clone() });
        }
    }

    fn arrive(&mut self, sent: &Sent) {
        let Sent { place, marker } = sent;
        let partition = &mut self.partitions[place.1 as usize];
        let last = partition.ended.entry(marker.producer.id).or_insert(0);
        if *last < marker.number {
            *last = marker.number;
            partition.epochs.insert(marker.producer.id, marker.producer.epoch);
            let open = partition.open.remove(&marker.producer.id);
            assert!(open.is_none_or(|number| number == marker.number), "it ends its own transaction");
            let before = self.outcomes.insert((marker.number, *place), marker.commit);
            assert_eq!(before, None, "a partition has one outcome");
        }
        if let Some(places) = self.waiting.get_mut(&marker.number) {
            places.remove(place);
        }
    }

    fn tell(&mut self) {
        let done: Vec<u64> = self.waiting.iter().filter(|(_, p)| p.is_empty()).map(|(n, _)| *n).collect();
        for number in done {
            self.waiting.remove(&number);
            self.rig.written(number);
        }
    }

    /// Lets everything come to its end and looks at what became of it.
    fn finish(mut self) {
        self.restart(self.rig.records.len());
        self.rig.advance(60_000);
        for _ in 0..3 {
            self.rig.decided().into_iter().for_each(|d| self.send(d));
            for sent in std::mem::take(&mut self.sent) {
                self.arrive(&sent);
            }
            self.tell();
        }
        if let Some(entry) = self.rig.machine.entries.get("t") {
            let over = matches!(entry.state, State::Empty | State::CompleteCommit | State::CompleteAbort);
            assert!(over, "still {:?}", entry.state);
        }
        for partition in &self.partitions {
            assert!(partition.open.is_empty(), "a transaction that nobody ends");
        }
        for (number, writes) in &self.written {
            let outcomes: BTreeSet<Option<bool>> =
                writes.iter().map(|(_, place)| self.outcomes.get(&(*number, *place)).copied()).collect();
            assert_eq!(outcomes.len(), 1, "transaction {number} ended differently: {writes:?} {outcomes:?}");
            if let Some(commit) = self.told.get(number) {
                assert!(outcomes.contains(&Some(*commit)), "not as its client was told");
            }
        }
    }
}

impl Rig {
    /// The process died: the records up to here alone survive.
    fn forget_after(&mut self, records: usize) {
        self.records.truncate(records);
        self.restart();
        self.refold();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn no_transaction_is_half_committed(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.finish();
    }
}

/// The writer's question does not outlive a restart of the machine: it asks again.
#[test]
fn a_parked_question_is_gone_with_the_machine() {
    let mut rig = Rig::new();
    assert!(rig.try_ask(Ask::Decided).is_none());
    rig.restart();
    let mut out = Outcome::default();
    rig.machine.handle(Ticket(99), Ask::Decided, rig.now, &mut out);
    assert!(rig.take(out).is_empty(), "nobody of before is answered");
}
