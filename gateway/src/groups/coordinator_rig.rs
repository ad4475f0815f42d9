//! A coordinator under test: the pure machine, a twin that only replays its records, a clock, and what is asked of it.

use super::ask::*;
use super::consumer::image::{ConsumerImage, Consumers, flat};
use super::coordinator::Coordinator;
use super::record::{Blob, Key, MemberInfo, Phase, Record, apply};
use super::settings::Settings;
use super::view_test::Reader;
use bytes::Bytes;
use rangeway_core::api::{Catalog, RangeView, TopicView};
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use rangeway_core::types::{NodeId, RangeId, Span, TopicId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// A coordinator, a twin that only replays its records, and time.
pub(super) struct Rig {
    pub(super) machine: Coordinator,
    pub(super) settings: Settings,
    pub(super) records: Vec<Record>,
    twin: BTreeMap<String, super::record::Stored>,
    twin_consumers: Consumers,
    pub(super) catalog: Arc<Catalog>,
    /// Reads what tools see, from the beginning on and after every step.
    reader: Reader,
    answers: HashMap<Ticket, Answer>,
    tickets: u64,
    pub(super) now: Now,
}

impl Rig {
    pub(super) fn new(settings: Settings) -> Rig {
        Rig {
            machine: Coordinator::new(&settings),
            settings,
            records: Vec::new(),
            twin: BTreeMap::new(),
            twin_consumers: Consumers::default(),
            catalog: Arc::default(),
            reader: Reader::default(),
            answers: HashMap::new(),
            tickets: 0,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
        }
    }

    pub(super) fn quick() -> Rig {
        Rig::new(Settings { initial_rebalance_delay_ms: 0, ..Settings::default() })
    }

    fn take(&mut self, mut out: Outcome<Coordinator>) {
        for record in out.take_records() {
            apply(&mut self.twin, &record);
            self.twin_consumers.apply(&record);
            self.records.push(record);
        }
        for (ticket, answer) in out.take_replies() {
            let before = self.answers.insert(ticket, answer);
            assert!(before.is_none(), "a call was answered twice");
        }
        self.check();
        self.reader.read(&self.machine);
    }

    /// What must hold after every step.
    fn check(&self) {
        assert_eq!(self.twin, self.machine.stored, "replay of the records is the durable state");
        assert_eq!(self.twin_consumers, self.machine.consumers, "of consumers too");
        for image in self.machine.consumers.groups.values() {
            check_consumers(image);
        }
        for (group, stored) in &self.machine.stored {
            if self.machine.state(group) == State::PreparingRebalance {
                continue;
            }
            let live = self.machine.live_members(group);
            let image: Vec<(String, MemberInfo)> =
                stored.group.members.iter().map(|(id, m)| (id.clone(), m.info.clone())).collect();
            assert_eq!(live, image, "members of {group} are those of its generation");
            assert_eq!(
                stored.group.phase == Phase::Empty,
                image.is_empty(),
                "{group} is empty without members"
            );
        }
    }

    /// Asks and lets due things happen.
    pub(super) fn send(&mut self, ask: Ask) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let mut out = Outcome::default();
        let asked = Asked { ask, catalog: self.catalog.clone() };
        let (passes, before) = (self.machine.passes(&asked, self.now), self.records.len());
        let text = format!("{:?}", asked.ask);
        self.machine.handle(ticket, asked, self.now, &mut out);
        self.take(out);
        assert!(!passes || self.records.len() == before, "passes on a full disk and records: {text}");
        self.advance(0);
        ticket
    }

    pub(super) fn take_answer(&mut self, ticket: Ticket) -> Option<Answer> {
        self.answers.remove(&ticket)
    }

    pub(super) fn ask(&mut self, ask: Ask) -> Answer {
        let ticket = self.send(ask);
        self.take_answer(ticket).expect("answered at once")
    }

    pub(super) fn advance(&mut self, ms: u64) {
        let end = self.now.mono_ms + ms;
        let wall = self.now.wall_ms - self.now.mono_ms as i64;
        let mut turns = 0;
        while let Some(due) = self.machine.next_deadline().filter(|due| *due <= end) {
            turns += 1;
            assert!(turns < 10_000, "time stands still");
            self.now.mono_ms = due.max(self.now.mono_ms);
            self.now.wall_ms = wall + self.now.mono_ms as i64;
            let mut out = Outcome::default();
            self.machine.expire(self.now, &mut out);
            self.take(out);
        }
        self.now = Now { mono_ms: end, wall_ms: wall + end as i64 };
    }

    /// Another process takes over: records alone survive.
    pub(super) fn restart(&mut self) {
        let numbers = self.machine.numbers.clone();
        self.machine = Coordinator::new(&self.settings);
        for record in &self.records {
            self.machine.replay(record);
        }
        assert_eq!(self.machine.numbers, numbers, "what tools read has the numbers that it had");
        self.machine.loaded(self.now);
        self.answers.clear();
        self.check();
    }

    pub(super) fn join(&mut self, join: Join) -> Ticket {
        self.send(Ask::Join(join))
    }

    pub(super) fn joined(&mut self, ticket: Ticket) -> Joined {
        match self.take_answer(ticket) {
            Some(Answer::Join(Ok(joined))) => joined,
            other => panic!("no generation: {other:?}"),
        }
    }

    pub(super) fn refused(&mut self, join: Join) -> JoinRefused {
        let ticket = self.join(join);
        match self.take_answer(ticket) {
            Some(Answer::Join(Err(refused))) => refused,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(super) fn sync_as(&mut self, joined: &Joined, assignments: &[(&str, &str)]) -> Ticket {
        self.send(Ask::Sync(Sync {
            caller: caller(&joined.member_id, joined.generation),
            protocol_type: None,
            protocol: None,
            assignments: assignments.iter().map(|(id, a)| ((*id).to_owned(), blob(a))).collect(),
        }))
    }

    pub(super) fn synced(&mut self, ticket: Ticket) -> Result<Blob, GroupError> {
        match self.take_answer(ticket) {
            Some(Answer::Sync(answer)) => answer.map(|s| s.assignment),
            other => panic!("no sync answer: {other:?}"),
        }
    }

    pub(super) fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), GroupError> {
        match self.ask(Ask::Heartbeat(caller(member, generation))) {
            Answer::Heartbeat(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Result<(), GroupError>> {
        let members = members.iter().map(|(id, instance)| Leaver {
            member_id: (*id).to_owned(),
            instance_id: instance.map(str::to_owned),
        });
        match self.ask(Ask::Leave { group: "g".into(), members: members.collect() }) {
            Answer::Leave(answer) => answer.expect("per member"),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn state(&self) -> State {
        self.machine.state("g")
    }

    /// A stable group of one: its generation as its leader sees it.
    pub(super) fn stable(&mut self, id: &str) -> Joined {
        let ticket = self.join(member(id));
        let joined = self.joined(ticket);
        let ticket = self.sync_as(&joined, &[(&joined.member_id, "all")]);
        assert_eq!(self.synced(ticket), Ok(blob("all")));
        assert_eq!(self.state(), State::Stable);
        joined
    }

    pub(super) fn commit(&mut self, commit: Commit) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        match self.ask(Ask::Commit(commit)) {
            Answer::Commit(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn offset(&mut self, key: Key) -> Option<i64> {
        match self.ask(Ask::Offsets { group: "g".into(), keys: Some(vec![key]), reader: None }) {
            Answer::Offsets(Ok(found)) => found[0].1.as_ref().map(|p| p.offset),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn sweep(&mut self, catalog: &Arc<Catalog>) {
        self.catalog = catalog.clone();
        assert_eq!(self.ask(Ask::Sweep), Answer::Sweep);
    }

    pub(super) fn groups(&mut self) -> Vec<Listed> {
        match self.ask(Ask::List) {
            Answer::List(listed) => listed,
            other => panic!("{other:?}"),
        }
    }
}

/// What must hold of a consumer group at any time (INV-GROUP-1).
fn check_consumers(image: &ConsumerImage) {
    let mut owned = BTreeSet::new();
    assert!(image.target_epoch <= image.epoch);
    for (id, member) in &image.members {
        assert!(member.current.epoch <= image.target_epoch, "{id} is ahead of the target");
        for partition in flat(&member.current.assigned).chain(flat(&member.current.revoking)) {
            assert!(owned.insert(partition), "{partition:?} has two owners, one is {id}");
        }
    }
}

pub(super) fn blob(text: &str) -> Blob {
    Blob(Bytes::copy_from_slice(text.as_bytes()))
}

/// A consumer's subscription to one topic.
pub(super) fn subscribed(topic: &str) -> Blob {
    let mut bytes = vec![0, 1, 0, 0, 0, 1];
    bytes.extend((topic.len() as u16).to_be_bytes());
    bytes.extend(topic.as_bytes());
    Blob(bytes.into())
}

pub(super) fn info() -> MemberInfo {
    MemberInfo {
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocols: vec![("range".into(), subscribed("t")), ("roundrobin".into(), subscribed("t"))],
    }
}

/// A new member of an old client (before v4): no id, no second join.
pub(super) fn member(id: &str) -> Join {
    Join {
        group: "g".into(),
        member_id: String::new(),
        fresh_id: id.into(),
        protocol_type: "consumer".into(),
        info: info(),
        requires_known_id: false,
        may_skip_assignment: true,
    }
}

pub(super) fn again(joined: &Joined) -> Join {
    Join { member_id: joined.member_id.clone(), ..member("unused") }
}

pub(super) fn with_instance(id: &str, instance: &str) -> Join {
    Join { info: MemberInfo { instance_id: Some(instance.into()), ..info() }, ..member(id) }
}

pub(super) fn with_protocols(join: Join, names: &[&str]) -> Join {
    let protocols = names.iter().map(|n| ((*n).to_owned(), blob(n))).collect();
    Join { info: MemberInfo { protocols, ..join.info.clone() }, ..join }
}

pub(super) fn caller(member: &str, generation: i32) -> Caller {
    Caller { group: "g".into(), member_id: member.into(), instance_id: None, generation }
}

pub(super) fn topic(n: u8) -> TopicId {
    TopicId(Uuid::from_bytes([n; 16]))
}

pub(super) fn commit_of(caller: Caller, offset: i64) -> Commit {
    Commit {
        caller,
        says_group_not_found: false,
        retention_ms: None,
        positions: vec![((topic(1), 0), CommitPosition { offset, leader_epoch: 3, metadata: "m".into() })],
    }
}

pub(super) fn catalog(topics: &[(u8, &str)]) -> Arc<Catalog> {
    let topics: Vec<(u8, &str, i32, &[i32])> =
        topics.iter().map(|(n, name)| (*n, *name, 1, &[0][..])).collect();
    topics_at(1, &topics)
}

/// Topics at a version of the catalog: number, name, partitions, first partitions of their ranges.
pub(super) fn topics_at(version: u64, topics: &[(u8, &str, i32, &[i32])]) -> Arc<Catalog> {
    let mut catalog = Catalog { version, ..Catalog::default() };
    for (n, name, partitions, firsts) in topics {
        let range = |(place, first): (usize, &i32)| RangeView {
            id: RangeId(place as u32),
            span: Span { first: *first, last: firsts.get(place + 1).unwrap_or(partitions) - 1 },
            leader: NodeId(1),
            epochs: Arc::from([]),
        };
        let view = Arc::new(TopicView {
            id: topic(*n),
            name: Arc::from(*name),
            partitions: *partitions,
            configs: Arc::default(),
            config: Arc::default(),
            internal: false,
            derived_from: None,
            version: 1,
            replication_factor: 1,
            drive: rangeway_core::api::DriveExpr::Disk,
            ranges: firsts.iter().enumerate().map(range).collect(),
        });
        catalog.by_name.insert(view.name.clone(), view.clone());
        catalog.by_id.insert(view.id, view);
    }
    Arc::new(catalog)
}

impl Rig {
    pub(super) fn sync_as_static(
        &mut self,
        joined: &Joined,
        instance: &str,
        assignments: &[(&str, &str)],
    ) -> Ticket {
        let caller =
            Caller { instance_id: Some(instance.into()), ..caller(&joined.member_id, joined.generation) };
        let assignments = assignments.iter().map(|(id, a)| ((*id).to_owned(), blob(a))).collect();
        self.send(Ask::Sync(Sync { caller, protocol_type: None, protocol: None, assignments }))
    }
}
