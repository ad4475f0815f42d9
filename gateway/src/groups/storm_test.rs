//! Many simulated clients, restarts and time against the invariants of a group.

use super::ask::*;
use super::coordinator_rig::{Rig, blob, info};
use super::mutant::{self, Mutant};
use super::record::{Blob, MemberInfo};
use super::settings::Settings;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rangeway_core::replicated::Ticket;
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A client takes its next turn.
    Turn(usize),
    /// A client leaves.
    Leave(usize),
    /// A client's process dies and starts anew; a static one under its instance id.
    Die(usize),
    /// A client wants other protocols.
    Change(usize, bool),
    /// Time passes.
    Wait(u64),
    /// The coordinator's process dies and starts anew.
    Restart,
    /// A client of an earlier generation commits and must be refused unless it is current.
    Commit(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..CLIENTS).prop_map(Step::Turn),
        1 => (0..CLIENTS).prop_map(Step::Leave),
        1 => (0..CLIENTS).prop_map(Step::Die),
        1 => ((0..CLIENTS), any::<bool>()).prop_map(|(c, b)| Step::Change(c, b)),
        4 => (1u64..4_000).prop_map(Step::Wait),
        1 => (20_000u64..70_000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        3 => (0..CLIENTS).prop_map(Step::Commit),
    ]
}

/// What a client believes.
#[derive(Clone, Debug, Default)]
struct Client {
    instance: Option<String>,
    both_protocols: bool,
    id: String,
    generation: i32,
    place: Place,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Place {
    #[default]
    Out,
    Joining(Ticket),
    Joined(Vec<String>),
    Syncing(Ticket),
    Member,
}

struct Storm {
    rig: Rig,
    clients: Vec<Client>,
    fresh: u32,
    /// Generation → (protocol, who was given the members' list).
    formed: BTreeMap<i32, (String, BTreeSet<String>)>,
    highest: i32,
    committed: Option<i64>,
    next_offset: i64,
}

impl Storm {
    fn new(statics: usize) -> Storm {
        let settings = Settings { initial_rebalance_delay_ms: 200, ..Settings::default() };
        let clients = (0..CLIENTS).map(|n| Client {
            instance: (n < statics).then(|| format!("i{n}")),
            both_protocols: true,
            ..Client::default()
        });
        Storm {
            rig: Rig::new(settings),
            clients: clients.collect(),
            fresh: 0,
            formed: BTreeMap::new(),
            highest: 0,
            committed: None,
            next_offset: 0,
        }
    }

    fn caller(&self, n: usize) -> Caller {
        let client = &self.clients[n];
        Caller {
            group: "g".into(),
            member_id: client.id.clone(),
            instance_id: client.instance.clone(),
            generation: client.generation,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Turn(n) => self.turn(n),
            Step::Leave(n) => {
                let leaver = Leaver {
                    member_id: self.clients[n].id.clone(),
                    instance_id: self.clients[n].instance.clone(),
                };
                if !leaver.member_id.is_empty() {
                    self.rig.send(Ask::Leave { group: "g".into(), members: vec![leaver] });
                }
                self.forget(n);
            }
            Step::Die(n) => self.forget(n),
            Step::Change(n, both) => {
                if self.clients[n].both_protocols != both && self.clients[n].place == Place::Member {
                    self.clients[n].both_protocols = both;
                    self.join(n);
                }
            }
            Step::Wait(ms) => self.rig.advance(ms),
            Step::Restart => {
                self.rig.restart();
                // Connections are gone: whoever waited has to ask again.
                for client in &mut self.clients {
                    if matches!(client.place, Place::Joining(_) | Place::Syncing(_)) {
                        client.place = Place::Out;
                    }
                }
            }
            Step::Commit(n) => self.commit(n),
        }
        self.collect();
    }

    fn forget(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.id.clear();
        client.place = Place::Out;
    }

    fn turn(&mut self, n: usize) {
        match self.clients[n].place.clone() {
            Place::Out => self.join(n),
            Place::Joining(_) | Place::Syncing(_) => {}
            Place::Joined(members) => {
                let generation = self.clients[n].generation;
                let give = |id: &String| (id.clone(), blob(&format!("{generation}:{id}")));
                let sync = Sync {
                    caller: self.caller(n),
                    protocol_type: Some("consumer".into()),
                    protocol: None,
                    assignments: members.iter().map(give).collect(),
                };
                let ticket = self.rig.send(Ask::Sync(sync));
                self.clients[n].place = Place::Syncing(ticket);
            }
            Place::Member => {
                let ticket = self.rig.send(Ask::Heartbeat(self.caller(n)));
                match self.rig.take_answer(ticket) {
                    Some(Answer::Heartbeat(Ok(()))) => {}
                    Some(Answer::Heartbeat(Err(GroupError::RebalanceInProgress))) => self.join(n),
                    Some(Answer::Heartbeat(Err(_))) => self.forget(n),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn join(&mut self, n: usize) {
        self.fresh += 1;
        let client = &self.clients[n];
        let mut protocols = vec![("range".to_owned(), Blob::default())];
        if client.both_protocols {
            protocols.insert(0, ("sticky".to_owned(), Blob::default()));
        }
        let join = Join {
            group: "g".into(),
            member_id: client.id.clone(),
            fresh_id: format!("c{n}-{}", self.fresh),
            protocol_type: "consumer".into(),
            info: MemberInfo { instance_id: client.instance.clone(), protocols, ..info() },
            requires_known_id: n.is_multiple_of(2),
            may_skip_assignment: true,
        };
        let ticket = self.rig.send(Ask::Join(join));
        self.clients[n].place = Place::Joining(ticket);
    }

    fn commit(&mut self, n: usize) {
        let caller = self.caller(n);
        let positions = vec![(
            (TopicId(Uuid::from_bytes([1; 16])), 0),
            CommitPosition { offset: self.next_offset, leader_epoch: -1, metadata: String::new() },
        )];
        let commit = Commit { caller, says_group_not_found: true, retention_ms: None, positions };
        let ticket = self.rig.send(Ask::Commit(commit));
        match self.rig.take_answer(ticket) {
            Some(Answer::Commit(Ok(_))) => {
                let present = self.rig.machine.stored["g"].group.generation;
                if !self.clients[n].id.is_empty() {
                    assert_eq!(
                        self.clients[n].generation, present,
                        "a commit of an earlier generation was taken"
                    );
                }
                self.committed = Some(self.next_offset);
                self.next_offset += 1;
            }
            Some(Answer::Commit(Err(_))) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Takes the answers that have come, as clients would, and checks what they say.
    fn collect(&mut self) {
        for n in 0..CLIENTS {
            match self.clients[n].place.clone() {
                Place::Joining(ticket) => match self.rig.take_answer(ticket) {
                    Some(Answer::Join(Ok(joined))) => self.joined(n, joined),
                    Some(Answer::Join(Err(refused))) => {
                        self.clients[n].place = Place::Out;
                        self.clients[n].id = match refused.error {
                            GroupError::MemberIdRequired => refused.member_id,
                            GroupError::RebalanceInProgress => self.clients[n].id.clone(),
                            _ => String::new(),
                        };
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                },
                Place::Syncing(ticket) => match self.rig.take_answer(ticket) {
                    Some(Answer::Sync(Ok(synced))) => {
                        let client = &mut self.clients[n];
                        let own = blob(&format!("{}:{}", client.generation, client.id));
                        // A static member that came back in its generation has what its old self was given.
                        let of_generation = format!("{}:", client.generation);
                        let inherited = client.instance.is_some()
                            && synced.assignment.0.starts_with(of_generation.as_bytes());
                        assert!(
                            synced.assignment == own || synced.assignment == Blob::default() || inherited,
                            "an assignment of another member or generation: {:?}",
                            synced.assignment.0
                        );
                        client.place = Place::Member;
                    }
                    Some(Answer::Sync(Err(error))) => {
                        self.clients[n].place = Place::Out;
                        if error == GroupError::UnknownMember || error == GroupError::FencedInstance {
                            self.clients[n].id.clear();
                        }
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                },
                Place::Out | Place::Joined(_) | Place::Member => {}
            }
        }
    }

    fn joined(&mut self, n: usize, joined: Joined) {
        assert!(joined.generation >= self.highest, "generation {} after {}", joined.generation, self.highest);
        self.highest = joined.generation;
        let entry =
            self.formed.entry(joined.generation).or_insert((joined.protocol.clone(), BTreeSet::new()));
        assert_eq!(entry.0, joined.protocol, "one generation, one protocol");
        if !joined.members.is_empty() {
            assert_eq!(joined.leader, joined.member_id, "members are for the leader");
            entry.1.insert(self.clients[n].instance.clone().unwrap_or(joined.leader.clone()));
            assert_eq!(entry.1.len(), 1, "one generation, one leader: {:?}", entry.1);
        }
        let client = &mut self.clients[n];
        client.id = joined.member_id;
        client.generation = joined.generation;
        client.place = Place::Joined(joined.members.into_iter().map(|m| m.0).collect());
    }

    /// Without further faults everybody becomes a member of one generation.
    fn settle(&mut self) {
        for _ in 0..200 {
            for n in 0..CLIENTS {
                self.turn(n);
                self.collect();
            }
            self.rig.advance(1_000);
            self.collect();
            if self.clients.iter().all(|c| c.place == Place::Member)
                && self.rig.machine.state("g") == State::Stable
                && self.clients.iter().all(|c| c.generation == self.clients[0].generation)
            {
                return;
            }
        }
        panic!("no stable generation: {:?} {:?}", self.rig.machine.state("g"), self.clients);
    }

    fn check_committed(&mut self) {
        let key = (TopicId(Uuid::from_bytes([1; 16])), 0);
        let ticket = self.rig.send(Ask::Offsets { group: "g".into(), keys: Some(vec![key]), reader: None });
        let Some(Answer::Offsets(Ok(found))) = self.rig.take_answer(ticket) else { panic!("no offsets") };
        assert_eq!(found[0].1.as_ref().map(|p| p.offset), self.committed, "the last commit stands");
    }
}

fn storm() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (0..=CLIENTS, proptest::collection::vec(step(), 1..120))
}

/// One generation at a time, one leader and protocol in each, assignments of it only for its members, offsets never
/// back, numbers never twice, replay of the records is the state (checked by the rig at every step), and an end in one
/// stable generation.
fn survive((statics, steps): (usize, Vec<Step>)) {
    let mut storm = Storm::new(statics);
    for step in steps {
        storm.run(step);
        storm.check_committed();
    }
    storm.settle();
    storm.check_committed();
    storm.rig.restart();
    storm.check_committed();
    assert_eq!(storm.rig.machine.state("g"), State::Stable);
}

#[test]
fn storms_find_each_rule_that_is_broken() {
    for mutant in
        [Mutant::AnyGenerationCommits, Mutant::NumberTwice, Mutant::OldSelfStays, Mutant::FirstCommitStays]
    {
        assert!(mutant::with(mutant, || is_found(300, &storm(), survive)), "{mutant:?} is not noticed");
    }
}

/// Whether one of `cases` storms fails; the same ones each time.
pub(super) fn is_found<S: Strategy>(cases: u32, storms: &S, survive: impl Fn(S::Value)) -> bool {
    let config =
        ProptestConfig { cases, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let survived = runner.run(storms, |storm| {
        survive(storm);
        Ok(())
    });
    survived.is_err()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_group_survives_any_storm(storm in storm()) {
        survive(storm);
    }
}
