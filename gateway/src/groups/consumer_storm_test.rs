//! Hours of a group with members of both protocols: they join, leave, crash, pause, restart as static members, change
//! their protocol and subscription, while topics come and go, ranges split and the coordinator restarts.
//!
//! Clients here do what real ones do: they read what they were told to read, and give up before they say so. The judge
//! knows who reads what; the machine does not know the judge.

use super::ask::*;
use super::consumer::Beat;
use super::consumer::image::{ConsumerState, Partitions, by_topic, contains, flat};
use super::consumer_test::{beat, joining, subscribing};
use super::coordinator_rig::{Rig, info, topics_at};
use super::mutant::{self, Mutant};
use super::record::{MemberInfo, Phase};
use super::settings::Settings;
use super::storm_test::is_found;
use super::subscription;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rangeway_core::replicated::Ticket;
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

const CLIENTS: usize = 5;
const NAMES: [&str; 3] = ["t0", "t1", "u"];

#[derive(Clone, Debug)]
enum Step {
    /// A client takes its next turn.
    Turn(usize),
    /// Everybody takes turns for a while, with time between.
    Calm(u8),
    /// A client leaves as it should; a static one says that it will be back.
    Leave(usize),
    /// A client's process dies and starts anew.
    Crash(usize),
    /// A client's process dies and starts anew with the other protocol.
    Convert(usize),
    /// A client subscribes to other topics.
    Subscribe(usize, u8),
    /// Time passes and nobody is heard.
    Wait(u64),
    /// The coordinator's process dies and starts anew.
    Restart,
    /// A client commits all that it reads.
    Commit(usize),
    /// Nothing happens for a while: the group becomes stable.
    Settle,
    /// The topics become these: partitions of each, 0: none.
    Topics([i32; 3]),
    /// Ranges become these.
    Ranges(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        16 => client.clone().prop_map(Step::Turn),
        6 => (1u8..12).prop_map(Step::Calm),
        2 => client.clone().prop_map(Step::Leave),
        2 => client.clone().prop_map(Step::Crash),
        2 => client.clone().prop_map(Step::Convert),
        2 => (client.clone(), any::<u8>()).prop_map(|(c, n)| Step::Subscribe(c, n)),
        4 => (1u64..6_000).prop_map(Step::Wait),
        1 => (20_000u64..200_000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => Just(Step::Settle),
        4 => client.prop_map(Step::Commit),
        1 => proptest::array::uniform3(0i32..6).prop_map(Step::Topics),
        1 => (1i32..6).prop_map(Step::Ranges),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Consumer,
    Classic,
}

/// Where a client of the classic protocol stands.
#[derive(Clone, Debug, Default, PartialEq)]
enum Place {
    #[default]
    Out,
    Joining(Ticket),
    /// With what the members say, for the one that leads.
    Joined(Vec<(String, Vec<u8>)>),
    Syncing(Ticket),
    Member,
}

#[derive(Clone, Debug)]
struct Client {
    protocol: Protocol,
    instance: Option<String>,
    topics: BTreeSet<&'static str>,
    regex: bool,
    id: String,
    /// Member epoch or generation.
    epoch: i32,
    /// What it reads.
    owned: Partitions,
    /// Consumer protocol: it says all of itself next time.
    full: bool,
    place: Place,
}

struct Storm {
    rig: Rig,
    clients: Vec<Client>,
    cooperative: bool,
    fresh: u32,
    version: u64,
    /// Partitions of each topic, 0: it is not there; and how often it was made.
    topics: [(i32, u8); 3],
    ranges: i32,
    committed: BTreeMap<(TopicId, i32), i64>,
    next_offset: i64,
}

impl Storm {
    fn new(protocols: [bool; CLIENTS], statics: usize, cooperative: bool, interval_ms: i32) -> Storm {
        let mut settings = Settings { initial_rebalance_delay_ms: 200, ..Settings::default() };
        settings.consumer_assignment_ms.default = Some(interval_ms);
        let clients = protocols.iter().enumerate().map(|(n, consumer)| Client {
            protocol: if *consumer { Protocol::Consumer } else { Protocol::Classic },
            instance: (n < statics).then(|| format!("i{n}")),
            topics: NAMES.into_iter().take(2).collect(),
            regex: n == 1,
            id: String::new(),
            epoch: 0,
            owned: Partitions::new(),
            full: true,
            place: Place::Out,
        });
        let mut storm = Storm {
            rig: Rig::new(settings),
            clients: clients.collect(),
            cooperative,
            fresh: 0,
            version: 0,
            topics: [(4, 0), (3, 0), (2, 0)],
            ranges: 1,
            committed: BTreeMap::new(),
            next_offset: 1,
        };
        storm.publish();
        storm
    }

    fn publish(&mut self) {
        self.version += 1;
        let firsts: Vec<i32> = (0..self.ranges).collect();
        let below = |count: i32| firsts.iter().copied().filter(|f| *f < count).collect::<Vec<i32>>();
        let firsts: Vec<Vec<i32>> = self.topics.iter().map(|(count, _)| below(*count)).collect();
        let topics = NAMES.iter().zip(self.topics).zip(&firsts).zip(1u8..);
        let there = topics.filter(|(((_, (count, _)), _), _)| *count > 0);
        let rows: Vec<(u8, &str, i32, &[i32])> = there
            .map(|(((name, (count, made)), firsts), n)| (n + 4 * made, *name, count, firsts.as_slice()))
            .collect();
        self.rig.catalog = topics_at(self.version, &rows);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Turn(n) => self.turn(n),
            Step::Calm(rounds) => self.calm(rounds),
            Step::Leave(n) => self.leave(n),
            Step::Crash(n) => self.crash(n),
            Step::Convert(n) => {
                self.crash(n);
                let client = &mut self.clients[n];
                client.protocol = match client.protocol {
                    Protocol::Consumer => Protocol::Classic,
                    Protocol::Classic => Protocol::Consumer,
                };
            }
            Step::Subscribe(n, bits) => {
                let client = &mut self.clients[n];
                let picked = NAMES.iter().enumerate().filter(|(t, _)| bits & (1 << t) != 0);
                client.topics = picked.map(|(_, name)| *name).collect();
                client.full = true;
                if client.protocol == Protocol::Classic && client.place == Place::Member {
                    self.join(n);
                }
            }
            Step::Wait(ms) => self.rig.advance(ms),
            Step::Restart => {
                self.rig.restart();
                for client in &mut self.clients {
                    client.full = true;
                    if matches!(client.place, Place::Joining(_) | Place::Syncing(_)) {
                        client.place = Place::Out;
                    }
                }
            }
            Step::Commit(n) => self.commit(n),
            Step::Settle => self.settle(),
            Step::Topics(topics) => {
                // Partitions are only ever added; a topic that was deleted comes back under another id.
                for (is, wanted) in self.topics.iter_mut().zip(topics) {
                    *is = match (*is, wanted) {
                        ((0, made), 1..) if made < 60 => (wanted, made + 1),
                        ((count, made), 1..) if count > 0 => (count.max(wanted), made),
                        ((_, made), _) => (0, made),
                    };
                }
                self.publish();
            }
            Step::Ranges(ranges) => self.split(ranges),
        }
        self.collect();
        self.check_readers();
    }

    /// At any time: what two read counts for one of them at most; in a stable group nobody reads what another does.
    fn check_readers(&self) {
        let stable = self.is_stable();
        let mut readers: BTreeMap<(TopicId, i32), usize> = BTreeMap::new();
        for (n, client) in self.clients.iter().enumerate() {
            for partition in flat(&client.owned).filter(|p| stable || self.may_commit(n, *p)) {
                let before = readers.insert(partition, n);
                assert!(before.is_none(), "{partition:?} is read by {before:?} and {n}, stable: {stable}");
            }
        }
    }

    fn calm(&mut self, rounds: u8) {
        for _ in 0..rounds {
            for n in 0..CLIENTS {
                self.turn(n);
                self.collect();
            }
            self.rig.advance(2_000);
            self.collect();
        }
    }

    /// INV-GROUP-2: nobody notices.
    fn split(&mut self, ranges: i32) {
        // Whatever the topics became before is taken note of first.
        self.calm(1);
        let epoch = |rig: &Rig| rig.machine.consumers.groups.get("g").map(|image| image.epoch);
        let before = epoch(&self.rig);
        self.ranges = ranges;
        self.publish();
        let speaks = |n: &usize| self.is_in(*n) && self.clients[*n].protocol == Protocol::Consumer;
        if let Some(n) = (0..CLIENTS).find(|n| speaks(n) && !self.clients[*n].full) {
            self.turn(n);
            assert_eq!(epoch(&self.rig), before, "a split began a new epoch");
        }
    }

    fn is_in(&self, n: usize) -> bool {
        let image = self.rig.machine.consumers.groups.get("g");
        image.is_some_and(|image| image.members.contains_key(&self.clients[n].id))
    }

    fn turn(&mut self, n: usize) {
        match self.clients[n].protocol {
            Protocol::Consumer => self.heartbeat_consumer(n),
            Protocol::Classic => self.turn_classic(n),
        }
    }

    fn leave(&mut self, n: usize) {
        let client = self.clients[n].clone();
        if !client.id.is_empty() {
            match client.protocol {
                Protocol::Consumer => {
                    let epoch = if client.instance.is_some() { -2 } else { -1 };
                    let leave = Beat { instance_id: client.instance, ..beat(&client.id, epoch) };
                    let _ = self.rig.beat(leave);
                }
                Protocol::Classic => {
                    let leaver = Leaver { member_id: client.id, instance_id: client.instance };
                    self.rig.send(Ask::Leave { group: "g".into(), members: vec![leaver] });
                }
            }
        }
        self.crash(n);
    }

    fn crash(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.id.clear();
        client.epoch = 0;
        client.owned.clear();
        client.full = true;
        client.place = Place::Out;
    }

    /// The member abandons all it has and joins anew, under the same id where that is the protocol's way.
    fn fenced(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.epoch = 0;
        client.owned.clear();
        client.full = true;
        client.place = Place::Out;
    }

    fn heartbeat_consumer(&mut self, n: usize) {
        self.fresh += 1;
        let fresh = format!("k{n}-{}", self.fresh);
        let client = &mut self.clients[n];
        if client.id.is_empty() {
            client.id = fresh;
        }
        let mut sent = beat(&client.id, client.epoch);
        let topics: Vec<&str> = client.topics.iter().copied().collect();
        if client.epoch == 0 || client.full {
            sent = Beat { epoch: client.epoch, ..joining(&client.id, &topics) };
            sent.regex = client.regex.then(|| "u.*".to_owned());
        }
        sent.owned = Some(client.owned.clone());
        sent.instance_id = client.instance.clone();
        client.full = false;
        match self.rig.beat(sent) {
            Ok(beaten) => {
                self.clients[n].epoch = beaten.epoch;
                if let Some(assignment) = beaten.assignment {
                    self.follow(n, assignment);
                }
            }
            Err(refused) => match refused.error {
                GroupError::FencedInstance | GroupError::UnreleasedInstance => self.crash(n),
                GroupError::FencedMemberEpoch | GroupError::UnknownMember | GroupError::GroupNotFound => {
                    self.fenced(n)
                }
                other => panic!("{other:?}: {}", refused.why),
            },
        }
    }

    /// Reads what it is told to; nobody else may still read it.
    fn follow(&mut self, n: usize, assignment: Partitions) {
        for partition in flat(&assignment) {
            if contains(&self.clients[n].owned, partition) {
                continue;
            }
            for (other, client) in self.clients.iter().enumerate().filter(|(other, _)| *other != n) {
                let reads = contains(&client.owned, partition) && self.may_commit(other, partition);
                assert!(!reads, "{partition:?} is given to {n} while {other} reads it: {client:?}");
            }
        }
        self.clients[n].owned = assignment;
    }

    /// Whether what this client reads of a partition may still count.
    fn may_commit(&self, n: usize, partition: (TopicId, i32)) -> bool {
        let client = &self.clients[n];
        match self.rig.machine.consumers.groups.get("g") {
            Some(image) => image.members.get(&client.id).is_some_and(|m| {
                let held = m.held_since(partition).is_some_and(|since| since <= client.epoch);
                let is_behind = m.subscription.classic.is_none() && client.epoch < m.current.epoch;
                client.epoch == m.current.epoch || (is_behind && held)
            }),
            None => {
                let known = self.rig.machine.live_members("g").iter().any(|(id, _)| *id == client.id);
                let generation = self.rig.machine.stored.get("g").map_or(0, |s| s.group.generation);
                known && generation == client.epoch
            }
        }
    }

    fn turn_classic(&mut self, n: usize) {
        match self.clients[n].place.clone() {
            Place::Out => self.join(n),
            Place::Joining(_) | Place::Syncing(_) => {}
            Place::Joined(members) => {
                let assignments = self.lead(members);
                let sync = Sync {
                    caller: self.caller(n),
                    protocol_type: Some("consumer".into()),
                    protocol: None,
                    assignments,
                };
                let ticket = self.rig.send(Ask::Sync(sync));
                self.clients[n].place = Place::Syncing(ticket);
            }
            Place::Member => {
                let ticket = self.rig.send(Ask::Heartbeat(self.caller(n)));
                match self.rig.take_answer(ticket) {
                    Some(Answer::Heartbeat(Ok(()))) => {}
                    Some(Answer::Heartbeat(Err(GroupError::RebalanceInProgress))) => self.join(n),
                    Some(Answer::Heartbeat(Err(GroupError::IllegalGeneration))) => self.fenced(n),
                    Some(Answer::Heartbeat(Err(_))) => self.crash(n),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn caller(&self, n: usize) -> Caller {
        let client = &self.clients[n];
        Caller {
            group: "g".into(),
            member_id: client.id.clone(),
            instance_id: client.instance.clone(),
            generation: client.epoch,
        }
    }

    fn join(&mut self, n: usize) {
        self.fresh += 1;
        let catalog = self.rig.catalog.clone();
        let client = &mut self.clients[n];
        if !self.cooperative {
            client.owned.clear();
        }
        let owned: Vec<(String, Vec<i32>)> = client
            .owned
            .iter()
            .filter_map(|(id, of)| {
                Some((catalog.by_id.get(id)?.name.to_string(), of.iter().copied().collect()))
            })
            .collect();
        let topics: Vec<&str> = client.topics.iter().copied().collect();
        let name = if self.cooperative { "cooperative-sticky" } else { "range" };
        let protocols = vec![(name.to_owned(), subscribing(&topics, &owned))];
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

    /// What the leader of a classic group assigns: everything in turn; a cooperative one leaves out what another has.
    fn lead(&self, members: Vec<(String, Vec<u8>)>) -> Vec<(String, super::record::Blob)> {
        let parsed: Vec<(String, subscription::Parsed)> = members
            .into_iter()
            .map(|(id, metadata)| (id, subscription::parse(&metadata).expect("a subscription")))
            .collect();
        let mut given: BTreeMap<String, BTreeMap<String, Vec<i32>>> = BTreeMap::new();
        for topic in self.rig.catalog.by_name.values() {
            let readers: Vec<&String> = parsed
                .iter()
                .filter(|(_, p)| p.topics.iter().any(|t| **t == *topic.name))
                .map(|(id, _)| id)
                .collect();
            for partition in 0..topic.partitions {
                let Some(reader) = readers.get(partition as usize % readers.len().max(1)) else { continue };
                let has = |p: &subscription::Parsed| {
                    p.owned.iter().any(|(name, of)| **name == *topic.name && of.contains(&partition))
                };
                let taken = parsed.iter().any(|(id, p)| id != *reader && has(p));
                if !(self.cooperative && taken) {
                    let of = given.entry((*reader).clone()).or_default();
                    of.entry(topic.name.to_string()).or_default().push(partition);
                }
            }
        }
        let encode = |of: BTreeMap<String, Vec<i32>>| {
            subscription::encode_assignment(1, &of.into_iter().collect::<Vec<_>>())
        };
        parsed.iter().map(|(id, _)| (id.clone(), encode(given.remove(id).unwrap_or_default()))).collect()
    }

    /// Takes the answers that have come, as clients of the classic protocol would.
    fn collect(&mut self) {
        for n in 0..CLIENTS {
            match self.clients[n].place.clone() {
                Place::Joining(ticket) => match self.rig.take_answer(ticket) {
                    Some(Answer::Join(Ok(joined))) => {
                        let client = &mut self.clients[n];
                        client.id = joined.member_id;
                        client.epoch = joined.generation;
                        let members = joined.members.into_iter().map(|(id, _, blob)| (id, blob.0.to_vec()));
                        client.place = Place::Joined(members.collect());
                    }
                    Some(Answer::Join(Err(refused))) => match refused.error {
                        GroupError::MemberIdRequired => {
                            self.clients[n].id = refused.member_id;
                            self.clients[n].place = Place::Out;
                        }
                        GroupError::RebalanceInProgress => {
                            // A new member learns its id so; as Kafka's clients it goes on with it.
                            self.clients[n].id = refused.member_id;
                            self.clients[n].place = Place::Out;
                        }
                        _ => self.crash(n),
                    },
                    Some(other) => panic!("{other:?}"),
                    None => {}
                },
                Place::Syncing(ticket) => match self.rig.take_answer(ticket) {
                    Some(Answer::Sync(Ok(synced))) => self.assigned(n, &synced.assignment.0),
                    Some(Answer::Sync(Err(GroupError::RebalanceInProgress))) => {
                        self.clients[n].place = Place::Out
                    }
                    Some(Answer::Sync(Err(GroupError::IllegalGeneration))) => self.fenced(n),
                    Some(Answer::Sync(Err(_))) => self.crash(n),
                    Some(other) => panic!("{other:?}"),
                    None => {}
                },
                Place::Out | Place::Joined(_) | Place::Member => {}
            }
        }
    }

    fn assigned(&mut self, n: usize, bytes: &[u8]) {
        self.clients[n].place = Place::Member;
        let named = if bytes.is_empty() {
            Vec::new()
        } else {
            subscription::assignment(bytes).expect("an assignment")
        };
        let catalog = self.rig.catalog.clone();
        let topic_of = |name: &str| catalog.by_name.get(name).map(|topic| topic.id);
        let assignment = by_topic(
            named
                .iter()
                .filter_map(|(name, of)| Some((topic_of(name)?, of)))
                .flat_map(|(id, of)| of.iter().map(move |partition| (id, *partition))),
        );
        let gives_up = flat(&self.clients[n].owned).any(|partition| !contains(&assignment, partition));
        self.follow(n, assignment);
        if self.cooperative && gives_up {
            self.join(n);
        }
    }

    fn commit(&mut self, n: usize) {
        let positions: Vec<_> = flat(&self.clients[n].owned)
            .map(|key| {
                self.next_offset += 1;
                let position =
                    CommitPosition { offset: self.next_offset, leader_epoch: -1, metadata: String::new() };
                (key, position)
            })
            .collect();
        if positions.is_empty() || self.clients[n].id.is_empty() {
            return;
        }
        let may = flat(&self.clients[n].owned).all(|partition| self.may_commit(n, partition));
        let sent: Vec<((TopicId, i32), i64)> = positions.iter().map(|(key, p)| (*key, p.offset)).collect();
        let commit =
            Commit { caller: self.caller(n), says_group_not_found: true, retention_ms: None, positions };
        match self.rig.ask(Ask::Commit(commit)) {
            Answer::Commit(Ok(_)) => {
                assert!(may, "a commit of one that is no member in this epoch was taken");
                self.committed.extend(sent);
            }
            Answer::Commit(Err(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    fn check_committed(&mut self) {
        let Answer::Offsets(Ok(found)) =
            self.rig.ask(Ask::Offsets { group: "g".into(), keys: None, reader: None })
        else {
            panic!("no offsets")
        };
        let found: BTreeMap<(TopicId, i32), i64> =
            found.into_iter().filter_map(|(key, position)| Some((key, position?.offset))).collect();
        assert_eq!(found, self.committed, "the last commit of each partition stands");
    }

    /// Without further faults the group becomes stable, and everything that is subscribed to has one reader.
    fn settle(&mut self) {
        self.calm(20);
        // Leaders of classic groups watch the topics themselves.
        for n in 0..CLIENTS {
            if self.clients[n].protocol == Protocol::Classic && self.clients[n].place == Place::Member {
                self.join(n);
            }
        }
        for _ in 0..400 {
            self.calm(1);
            if self.is_stable() {
                return self.check_owners();
            }
        }
        panic!(
            "not stable: {:?} {:?} {:?}",
            self.rig.machine.consumers.groups.get("g"),
            self.rig.machine.state("g"),
            self.clients
        );
    }

    fn is_stable(&self) -> bool {
        let joined =
            self.clients.iter().all(|c| c.protocol == Protocol::Consumer || c.place == Place::Member);
        match self.rig.machine.consumers.groups.get("g") {
            Some(image) => {
                let known = |c: &Client| {
                    image
                        .members
                        .get(&c.id)
                        .is_some_and(|m| m.current.epoch == c.epoch && m.current.assigned == c.owned)
                };
                joined && image.state() == ConsumerState::Stable && self.clients.iter().all(known)
            }
            None => {
                let stored = self.rig.machine.stored.get("g").map(|s| (s.group.phase, s.group.generation));
                let (phase, generation) = stored.unwrap_or_default();
                joined
                    && phase == Phase::Stable
                    && self.rig.machine.state("g") == State::Stable
                    && self.clients.iter().all(|c| c.epoch == generation)
            }
        }
    }

    fn check_owners(&self) {
        let mut owners: BTreeMap<(TopicId, i32), Vec<usize>> = BTreeMap::new();
        for (n, client) in self.clients.iter().enumerate() {
            for partition in flat(&client.owned) {
                owners.entry(partition).or_default().push(n);
            }
        }
        for (partition, readers) in &owners {
            assert_eq!(readers.len(), 1, "{partition:?} is read by {readers:?}");
        }
        for topic in self.rig.catalog.by_name.values() {
            let reads = |c: &Client| {
                let by_pattern = c.protocol == Protocol::Consumer && c.regex && topic.name.starts_with('u');
                c.topics.contains(&*topic.name) || by_pattern
            };
            let is_read = self.clients.iter().any(reads);
            for partition in 0..topic.partitions {
                let owned = owners.contains_key(&(topic.id, partition));
                assert_eq!(owned, is_read, "{} {partition} is read: {is_read}", topic.name);
            }
        }
    }
}

/// How many storms; `RANGEWAY_STORMS` asks for more.
fn cases() -> u32 {
    std::env::var("RANGEWAY_STORMS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// One storm: who begins with the consumer protocol, how many are static, whether classic members are cooperative, the
/// assignment interval, what happens.
type Weather = ([bool; CLIENTS], usize, bool, i32, Vec<Step>);

/// Most of some minutes, some of hours.
fn storm() -> impl Strategy<Value = Weather> {
    let steps = prop_oneof![
        19 => proptest::collection::vec(step(), 1..150),
        1 => proptest::collection::vec(step(), 400..800),
    ];
    let interval_ms = prop_oneof![Just(0), Just(1_000), Just(7_000)];
    (proptest::array::uniform5(any::<bool>()), 0..=CLIENTS, any::<bool>(), interval_ms, steps)
}

/// One owner at any time, commits of members in their epoch only and never back, times of rest and an end in which
/// everything that is subscribed to is read by one; replay of the records is the state (the rig, at every step). Answers
/// how long it took, ms.
fn survive((protocols, statics, cooperative, interval_ms, steps): Weather) -> u64 {
    let mut storm = Storm::new(protocols, statics, cooperative, interval_ms);
    let begin = storm.rig.now.mono_ms;
    for step in steps {
        storm.run(step);
        storm.check_committed();
    }
    storm.settle();
    storm.check_committed();
    storm.rig.now.mono_ms - begin
}

#[test]
fn a_group_of_both_protocols_survives_any_storm() {
    let simulated_ms = std::cell::Cell::new(0);
    let mut runner =
        TestRunner::new(ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(cases()) });
    let survived = runner.run(&storm(), |weather| {
        simulated_ms.set(simulated_ms.get() + survive(weather));
        Ok(())
    });
    if let Err(failed) = survived {
        panic!("{failed}\n{runner}");
    }
    println!("{} storms of {:.1} hours in all", cases(), simulated_ms.get() as f64 / 3_600_000.0);
}

#[test]
fn storms_of_both_protocols_find_each_rule_that_is_broken() {
    for mutant in
        [Mutant::HeldIsGiven, Mutant::RevokedUnasked, Mutant::AnyEpochCommits, Mutant::FirstCommitStays]
    {
        let found = mutant::with(mutant, || {
            is_found(60, &storm(), |weather| {
                survive(weather);
            })
        });
        assert!(found, "{mutant:?} is not noticed");
    }
}
