//! The classic protocol's rules, one scenario each, on the pure machine.

use super::ask::*;
use super::consumer::image::{ConsumerImage, Consumers, flat};
use super::coordinator::{Coordinator, Settings};
use super::record::{Blob, Key, MemberInfo, Phase, Record, apply};
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
    settings: Settings,
    pub(super) records: Vec<Record>,
    twin: BTreeMap<String, super::record::Stored>,
    twin_consumers: Consumers,
    pub(super) catalog: Arc<Catalog>,
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
        self.machine.handle(ticket, asked, self.now, &mut out);
        self.take(out);
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
        self.machine = Coordinator::new(&self.settings);
        for record in &self.records {
            self.machine.replay(record);
        }
        self.machine.loaded(self.now);
        self.answers.clear();
        self.check();
    }

    fn join(&mut self, join: Join) -> Ticket {
        self.send(Ask::Join(join))
    }

    fn joined(&mut self, ticket: Ticket) -> Joined {
        match self.take_answer(ticket) {
            Some(Answer::Join(Ok(joined))) => joined,
            other => panic!("no generation: {other:?}"),
        }
    }

    fn refused(&mut self, join: Join) -> JoinRefused {
        let ticket = self.join(join);
        match self.take_answer(ticket) {
            Some(Answer::Join(Err(refused))) => refused,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn sync_as(&mut self, joined: &Joined, assignments: &[(&str, &str)]) -> Ticket {
        self.send(Ask::Sync(Sync {
            caller: caller(&joined.member_id, joined.generation),
            protocol_type: None,
            protocol: None,
            assignments: assignments.iter().map(|(id, a)| ((*id).to_owned(), blob(a))).collect(),
        }))
    }

    fn synced(&mut self, ticket: Ticket) -> Result<Blob, GroupError> {
        match self.take_answer(ticket) {
            Some(Answer::Sync(answer)) => answer.map(|s| s.assignment),
            other => panic!("no sync answer: {other:?}"),
        }
    }

    fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), GroupError> {
        match self.ask(Ask::Heartbeat(caller(member, generation))) {
            Answer::Heartbeat(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Result<(), GroupError>> {
        let members = members.iter().map(|(id, instance)| Leaver {
            member_id: (*id).to_owned(),
            instance_id: instance.map(str::to_owned),
        });
        match self.ask(Ask::Leave { group: "g".into(), members: members.collect() }) {
            Answer::Leave(answer) => answer.expect("per member"),
            other => panic!("{other:?}"),
        }
    }

    fn state(&self) -> State {
        self.machine.state("g")
    }

    /// A stable group of one: its generation as its leader sees it.
    fn stable(&mut self, id: &str) -> Joined {
        let ticket = self.join(member(id));
        let joined = self.joined(ticket);
        let ticket = self.sync_as(&joined, &[(&joined.member_id, "all")]);
        assert_eq!(self.synced(ticket), Ok(blob("all")));
        assert_eq!(self.state(), State::Stable);
        joined
    }

    fn commit(&mut self, commit: Commit) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        match self.ask(Ask::Commit(commit)) {
            Answer::Commit(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn offset(&mut self, key: Key) -> Option<i64> {
        match self.ask(Ask::Offsets { group: "g".into(), keys: Some(vec![key]), reader: None }) {
            Answer::Offsets(Ok(found)) => found[0].1.as_ref().map(|p| p.offset),
            other => panic!("{other:?}"),
        }
    }

    fn sweep(&mut self, catalog: &Arc<Catalog>) {
        self.catalog = catalog.clone();
        assert_eq!(self.ask(Ask::Sweep), Answer::Sweep);
    }

    fn groups(&mut self) -> Vec<Listed> {
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
fn subscribed(topic: &str) -> Blob {
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
fn member(id: &str) -> Join {
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

fn again(joined: &Joined) -> Join {
    Join { member_id: joined.member_id.clone(), ..member("unused") }
}

fn with_instance(id: &str, instance: &str) -> Join {
    Join { info: MemberInfo { instance_id: Some(instance.into()), ..info() }, ..member(id) }
}

fn with_protocols(join: Join, names: &[&str]) -> Join {
    let protocols = names.iter().map(|n| ((*n).to_owned(), blob(n))).collect();
    Join { info: MemberInfo { protocols, ..join.info.clone() }, ..join }
}

fn caller(member: &str, generation: i32) -> Caller {
    Caller { group: "g".into(), member_id: member.into(), instance_id: None, generation }
}

pub(super) fn topic(n: u8) -> TopicId {
    TopicId(Uuid::from_bytes([n; 16]))
}

fn commit_of(caller: Caller, offset: i64) -> Commit {
    Commit {
        caller,
        says_group_not_found: false,
        retention_ms: None,
        positions: vec![((topic(1), 0), CommitPosition { offset, leader_epoch: 3, metadata: "m".into() })],
    }
}

fn catalog(topics: &[(u8, &str)]) -> Arc<Catalog> {
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

#[test]
fn a_member_alone_gets_generation_one_and_everything() {
    let mut rig = Rig::quick();
    let joined = rig.stable("a");
    assert_eq!((joined.generation, joined.leader.as_str(), joined.protocol.as_str()), (1, "a", "range"));
    assert_eq!(joined.members, vec![("a".into(), None, subscribed("t"))]);
    assert_eq!(rig.heartbeat("a", 1), Ok(()));
}

#[test]
fn joins_are_checked_before_anything_else() {
    let mut rig = Rig::quick();
    let with_session = |ms| Join { info: MemberInfo { session_timeout_ms: ms, ..info() }, ..member("a") };
    for (join, error) in [
        (Join { group: String::new(), ..member("a") }, GroupError::InvalidGroupId),
        (with_session(5_999), GroupError::InvalidSessionTimeout),
        (with_session(1_800_001), GroupError::InvalidSessionTimeout),
        (with_session(u32::MAX), GroupError::InvalidSessionTimeout),
        (Join { member_id: "x".into(), ..member("a") }, GroupError::UnknownMember),
        (with_protocols(member("a"), &[]), GroupError::InconsistentProtocol),
        (Join { protocol_type: String::new(), ..member("a") }, GroupError::InconsistentProtocol),
    ] {
        let sent = join.member_id.clone();
        assert_eq!(rig.refused(join), JoinRefused { error, member_id: sent });
    }
    assert_eq!(rig.state(), State::Dead);
    rig.stable("a");
    for join in
        [with_protocols(member("b"), &["other"]), Join { protocol_type: "connect".into(), ..member("b") }]
    {
        assert_eq!(rig.refused(join).error, GroupError::InconsistentProtocol);
    }
    assert_eq!(rig.refused(Join { member_id: "x".into(), ..member("b") }).error, GroupError::UnknownMember);
    assert_eq!(rig.state(), State::Stable);
}

#[test]
fn a_dynamic_member_is_first_told_its_id() {
    let mut rig = Rig::quick();
    let first = Join { requires_known_id: true, ..member("a") };
    let refused = rig.refused(first.clone());
    assert_eq!(refused, JoinRefused { error: GroupError::MemberIdRequired, member_id: "a".into() });
    assert!(rig.groups().is_empty());
    let ticket = rig.join(Join { member_id: "a".into(), ..first.clone() });
    assert_eq!(rig.joined(ticket).member_id, "a");
    // An id that is not used within the session timeout is forgotten.
    rig.refused(Join { fresh_id: "b".into(), ..first.clone() });
    rig.advance(10_001);
    assert_eq!(rig.refused(Join { member_id: "b".into(), ..first }).error, GroupError::UnknownMember);
}

#[test]
fn a_join_phase_waits_for_ids_that_were_given_out() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    rig.refused(Join { requires_known_id: true, ..member("b") });
    let ticket = rig.join(again(&a));
    assert_eq!(rig.state(), State::PreparingRebalance);
    let b = rig.join(Join { member_id: "b".into(), requires_known_id: true, ..member("unused") });
    let (a, b) = (rig.joined(ticket), rig.joined(b));
    assert_eq!((a.generation, b.generation, a.members.len(), b.members.len()), (2, 2, 2, 0));
}

#[test]
fn an_empty_group_waits_for_more_members_and_longer_for_each() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() });
    let a = rig.join(member("a"));
    rig.advance(2_000);
    let b = rig.join(member("b"));
    rig.advance(3_900);
    assert_eq!(rig.take_answer(a), None, "extended once, for b");
    rig.advance(100);
    let (a, b) = (rig.joined(a), rig.joined(b));
    assert_eq!((a.generation, a.leader.as_str(), b.leader.as_str()), (1, "a", "a"));
}

#[test]
fn the_wait_of_an_empty_group_ends_at_the_rebalance_timeout() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() });
    let short = |id: &str| Join { info: MemberInfo { rebalance_timeout_ms: 5_000, ..info() }, ..member(id) };
    let first = rig.join(short("m0"));
    for n in 1..4 {
        rig.advance(1_600);
        rig.join(short(&format!("m{n}")));
    }
    rig.advance(201);
    assert_eq!(rig.joined(first).members.len(), 4);
}

#[test]
fn members_that_do_not_rejoin_in_time_are_dropped() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    assert_eq!(rig.heartbeat("a", 1), Err(GroupError::RebalanceInProgress));
    for _ in 0..6 {
        rig.advance(9_999);
        let _ = rig.heartbeat("a", 1);
    }
    rig.advance(6);
    let joined = rig.joined(b);
    assert_eq!((joined.generation, joined.leader.as_str(), joined.members.len()), (2, "b", 1));
    assert_eq!(rig.heartbeat("a", a.generation), Err(GroupError::UnknownMember));
}

#[test]
fn followers_wait_for_the_leaders_assignment() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    assert_eq!(rig.state(), State::CompletingRebalance);
    assert_eq!(rig.heartbeat("b", 2), Ok(()));
    let waiting = rig.sync_as(&b, &[]);
    assert_eq!(rig.take_answer(waiting), None);
    let leader = rig.sync_as(&a, &[("b", "for b"), ("stranger", "x")]);
    assert_eq!(rig.synced(waiting), Ok(blob("for b")));
    assert_eq!(rig.synced(leader), Ok(Blob::default()), "not named: empty");
    let later = rig.sync_as(&b, &[]);
    assert_eq!(rig.synced(later), Ok(blob("for b")), "known from here on");
}

#[test]
fn a_follower_may_be_given_nothing() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.sync_as(&a, &[("a", "all")]);
    assert_eq!(rig.synced(waiting), Ok(Blob::default()));
}

#[test]
fn syncs_are_checked() {
    let mut rig = Rig::quick();
    let sync = |rig: &mut Rig, member: &str, generation, protocol: Option<&str>| {
        let ticket = rig.send(Ask::Sync(Sync {
            caller: caller(member, generation),
            protocol_type: Some("consumer".into()),
            protocol: protocol.map(str::to_owned),
            assignments: vec![],
        }));
        rig.synced(ticket)
    };
    assert_eq!(sync(&mut rig, "a", 1, None), Err(GroupError::UnknownMember));
    let a = rig.stable("a");
    assert_eq!(sync(&mut rig, "x", 1, None), Err(GroupError::UnknownMember));
    assert_eq!(sync(&mut rig, "a", 2, None), Err(GroupError::IllegalGeneration));
    assert_eq!(sync(&mut rig, "a", 1, Some("roundrobin")), Err(GroupError::InconsistentProtocol));
    assert_eq!(sync(&mut rig, "a", 1, Some("range")), Ok(blob("all")));
    rig.join(member("b"));
    let ticket = rig.sync_as(&a, &[]);
    assert_eq!(rig.synced(ticket), Err(GroupError::RebalanceInProgress));
}

#[test]
fn members_that_never_sync_are_removed() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    for _ in 0..6 {
        rig.advance(9_999);
        let _ = rig.heartbeat(&a.member_id, 2);
    }
    rig.advance(10);
    assert_eq!(rig.synced(waiting), Err(GroupError::RebalanceInProgress));
    assert_eq!(rig.heartbeat("a", 2), Err(GroupError::UnknownMember));
    assert_eq!(rig.state(), State::PreparingRebalance);
}

#[test]
fn only_a_change_or_the_leader_causes_a_rebalance() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let ticket = rig.join(again(&b));
    assert_eq!(rig.joined(ticket).generation, 2, "unchanged while completing");
    rig.sync_as(&a, &[]);
    let ticket = rig.join(again(&b));
    let present = rig.joined(ticket);
    assert_eq!((present.generation, present.leader.as_str()), (2, "a"), "unchanged while stable");
    assert_eq!(rig.state(), State::Stable);
    let changed = rig.join(with_protocols(again(&b), &["range"]));
    assert_eq!(rig.state(), State::PreparingRebalance);
    let leader = rig.join(again(&a));
    assert_eq!((rig.joined(changed).generation, rig.joined(leader).generation), (3, 3));
    let ticket = rig.sync_as(&Joined { generation: 3, ..a.clone() }, &[]);
    assert_eq!(rig.synced(ticket), Ok(Blob::default()));
    let leader = rig.join(again(&a));
    assert_eq!(rig.take_answer(leader), None, "a leader that rejoins wants a rebalance");
}

#[test]
fn a_new_join_while_completing_sends_everybody_back() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.join(member("c"));
    assert_eq!(rig.synced(waiting), Err(GroupError::RebalanceInProgress));
    let late = rig.sync_as(&a, &[("a", "all")]);
    assert_eq!(rig.synced(late), Err(GroupError::RebalanceInProgress));
}

#[test]
fn the_protocol_is_the_most_wanted_of_those_that_all_support() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 10, ..Settings::default() });
    let a = rig.join(with_protocols(member("a"), &["x", "y", "z"]));
    rig.join(with_protocols(member("b"), &["w", "y", "x"]));
    rig.join(with_protocols(member("c"), &["y", "x"]));
    rig.advance(100);
    let joined = rig.joined(a);
    assert_eq!(joined.protocol, "y");
    assert_eq!(joined.members.iter().map(|m| m.2.clone()).collect::<Vec<_>>(), vec![blob("y"); 3]);
}

#[test]
fn silent_members_are_removed_and_heartbeats_keep_them() {
    let mut rig = Rig::quick();
    rig.stable("a");
    for _ in 0..5 {
        rig.advance(9_000);
        assert_eq!(rig.heartbeat("a", 1), Ok(()));
    }
    rig.advance(10_001);
    assert_eq!(rig.state(), State::Empty);
    assert_eq!(rig.heartbeat("a", 1), Err(GroupError::UnknownMember));
    assert_eq!(rig.machine.stored["g"].group.generation, 2);
}

#[test]
fn a_parked_member_does_not_expire() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (_, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.advance(9_000);
    let _ = rig.heartbeat("a", 2);
    rig.advance(9_000);
    assert_eq!(rig.take_answer(waiting), None);
    let members = rig.machine.live_members("g");
    assert_eq!(members.len(), 2, "b is parked for longer than its session timeout");
}

#[test]
fn leaving_is_answered_per_member_and_empties_the_group() {
    let mut rig = Rig::quick();
    assert_eq!(rig.leave(&[("a", None)]), vec![Err(GroupError::UnknownMember)]);
    rig.stable("a");
    assert_eq!(rig.leave(&[("x", None), ("a", None)]), vec![Err(GroupError::UnknownMember), Ok(())]);
    assert_eq!(rig.state(), State::Empty);
    let joined = rig.stable("b");
    assert_eq!(joined.generation, 3, "the empty group took a generation too");
}

#[test]
fn a_leader_that_leaves_is_followed_by_the_next() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    rig.sync_as(&a, &[]);
    rig.leave(&[("a", None)]);
    assert_eq!(rig.heartbeat("b", 2), Err(GroupError::RebalanceInProgress));
    let b = rig.join(again(&b));
    assert_eq!(rig.joined(b).leader, "b");
}

#[test]
fn a_static_member_returns_without_a_rebalance_and_fences_its_old_self() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    let joined = rig.joined(ticket);
    let ticket = rig.sync_as_static(&joined, "i", &[("a1", "all")]);
    assert_eq!(rig.synced(ticket), Ok(blob("all")));
    let ticket = rig.join(with_instance("a2", "i"));
    let back = rig.joined(ticket);
    assert_eq!((back.generation, back.leader.as_str(), back.skip_assignment), (1, "a2", true));
    assert_eq!(back.members.len(), 1);
    assert_eq!(rig.state(), State::Stable);
    let old = Caller { instance_id: Some("i".into()), ..caller("a1", 1) };
    assert_eq!(rig.ask(Ask::Heartbeat(old)), Answer::Heartbeat(Err(GroupError::FencedInstance)));
    let ticket = rig.sync_as_static(&back, "i", &[]);
    assert_eq!(rig.synced(ticket), Ok(blob("all")));
    rig.restart();
    let new = Caller { instance_id: Some("i".into()), ..caller("a2", 1) };
    assert_eq!(rig.ask(Ask::Heartbeat(new)), Answer::Heartbeat(Ok(())));
}

#[test]
fn an_older_static_leader_is_told_that_its_old_self_leads() {
    let mut rig = Rig::quick();
    let old = |id: &str| Join { may_skip_assignment: false, ..with_instance(id, "i") };
    let ticket = rig.join(old("a1"));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[("a1", "all")]);
    let ticket = rig.join(old("a2"));
    let back = rig.joined(ticket);
    assert_eq!((back.leader.as_str(), back.skip_assignment, back.members.len()), ("a1", false, 0));
}

#[test]
fn a_static_member_that_returns_while_completing_causes_a_rebalance() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    assert_eq!(rig.joined(ticket).generation, 1);
    let ticket = rig.join(with_instance("a2", "i"));
    assert_eq!(rig.joined(ticket).generation, 2);
}

#[test]
fn two_clients_with_one_instance_id_fence_each_other_in_a_join() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 100, ..Settings::default() });
    let first = rig.join(with_instance("a1", "i"));
    let second = rig.join(with_instance("a2", "i"));
    assert_eq!(
        rig.take_answer(first),
        Some(Answer::Join(Err(JoinRefused { error: GroupError::FencedInstance, member_id: "a1".into() })))
    );
    rig.advance(200);
    assert_eq!(rig.joined(second).members.len(), 1);
}

#[test]
fn a_static_member_leaves_by_its_instance_id_only() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[]);
    assert_eq!(rig.leave(&[("", Some("j"))]), vec![Err(GroupError::UnknownMember)]);
    assert_eq!(rig.leave(&[("a0", Some("i"))]), vec![Err(GroupError::FencedInstance)]);
    assert_eq!(rig.leave(&[("", Some("i"))]), vec![Ok(())]);
    assert_eq!(rig.state(), State::Empty);
}

#[test]
fn static_members_that_are_away_are_kept_through_a_rebalance() {
    let mut rig = Rig::quick();
    let session =
        |join: Join| Join { info: MemberInfo { session_timeout_ms: 100_000, ..join.info.clone() }, ..join };
    let ticket = rig.join(session(with_instance("a1", "i")));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[]);
    let b = rig.join(session(member("b")));
    rig.advance(60_001);
    let joined = rig.joined(b);
    assert_eq!((joined.leader.as_str(), joined.members.len()), ("b", 2));
}

#[test]
fn a_full_group_refuses_further_members() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 0, members_max: 1, ..Settings::default() });
    let a = rig.stable("a");
    assert_eq!(rig.refused(member("b")).error, GroupError::GroupFull);
    let ticket = rig.join(again(&a));
    assert_eq!(rig.joined(ticket).generation, 2);
}

#[test]
fn after_a_restart_a_stable_group_is_stable_and_sessions_are_fresh() {
    let mut rig = Rig::quick();
    rig.stable("a");
    rig.advance(9_000);
    rig.restart();
    assert_eq!(rig.state(), State::Stable);
    rig.advance(9_000);
    assert_eq!(rig.heartbeat("a", 1), Ok(()));
    rig.advance(10_001);
    assert_eq!(rig.state(), State::Empty);
}

#[test]
fn a_generation_number_is_never_given_twice_across_a_restart() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, _) = (rig.joined(a), rig.joined(b));
    assert_eq!(a.generation, 2);
    rig.restart();
    assert_eq!(rig.state(), State::CompletingRebalance);
    let ticket = rig.sync_as(&a, &[("b", "late")]);
    assert_eq!(rig.synced(ticket), Ok(Blob::default()));
    let ticket = rig.join(again(&a));
    rig.advance(60_001);
    assert_eq!(rig.joined(ticket).generation, 3);
}

#[test]
fn commits_are_checked_in_kafkas_order() {
    let mut rig = Rig::quick();
    let simple = || caller("", -1);
    assert_eq!(rig.commit(commit_of(caller("a", 1), 5)), Err(GroupError::IllegalGeneration));
    let modern = Commit { says_group_not_found: true, ..commit_of(caller("a", 1), 5) };
    assert_eq!(rig.commit(modern), Err(GroupError::GroupNotFound));
    assert_eq!(rig.commit(commit_of(simple(), 5)), Ok(vec![Ok(())]));
    assert_eq!(rig.offset((topic(1), 0)), Some(5));
    let a = rig.stable("a");
    assert_eq!(rig.commit(commit_of(simple(), 6)), Err(GroupError::UnknownMember));
    assert_eq!(rig.commit(commit_of(caller("x", 1), 6)), Err(GroupError::UnknownMember));
    assert_eq!(rig.commit(commit_of(caller("a", 9), 6)), Err(GroupError::IllegalGeneration));
    assert_eq!(rig.commit(commit_of(caller("a", 1), 6)), Ok(vec![Ok(())]));
    let b = rig.join(member("b"));
    assert_eq!(rig.commit(commit_of(caller("a", 1), 7)), Ok(vec![Ok(())]), "while preparing");
    let again = rig.join(again(&a));
    let (_, _) = (rig.joined(again), rig.joined(b));
    assert_eq!(rig.commit(commit_of(caller("a", 2), 8)), Err(GroupError::RebalanceInProgress));
    assert_eq!(rig.offset((topic(1), 0)), Some(7));
}

#[test]
fn any_offset_may_be_committed_and_long_metadata_may_not() {
    let mut rig = Rig::quick();
    for offset in [-1, i64::MAX, i64::MIN, 3] {
        assert_eq!(rig.commit(commit_of(caller("", -1), offset)), Ok(vec![Ok(())]));
        assert_eq!(rig.offset((topic(1), 0)), Some(offset));
    }
    let mut long = commit_of(caller("", -1), 9);
    long.positions[0].1.metadata = "x".repeat(4097);
    assert_eq!(rig.commit(long), Ok(vec![Err(GroupError::MetadataTooLarge)]));
    assert_eq!(rig.offset((topic(1), 0)), Some(3));
    assert_eq!(rig.offset((topic(2), 0)), None);
}

#[test]
fn offsets_and_their_epochs_survive_a_restart() {
    let mut rig = Rig::quick();
    rig.commit(commit_of(caller("", -1), 42)).expect("committed");
    rig.restart();
    let answer = rig.ask(Ask::Offsets { group: "g".into(), keys: None, reader: None });
    let Answer::Offsets(Ok(all)) = answer else { panic!("{answer:?}") };
    let position = all[0].1.as_ref().expect("committed");
    assert_eq!(
        (all.len(), position.offset, position.leader_epoch, position.metadata.as_str()),
        (1, 42, 3, "m")
    );
    assert_eq!(
        rig.ask(Ask::Offsets { group: "other".into(), keys: None, reader: None }),
        Answer::Offsets(Ok(vec![]))
    );
}

#[test]
fn offsets_of_consumed_topics_are_not_deleted() {
    let mut rig = Rig::quick();
    let delete = |rig: &mut Rig, topics: &[(u8, &str)]| {
        let keys = topics.iter().map(|(n, name)| ((topic(*n), 0), (*name).to_owned())).collect();
        match rig.ask(Ask::DeleteOffsets { group: "g".into(), keys }) {
            Answer::DeleteOffsets(answer) => answer,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(delete(&mut rig, &[(1, "t")]), Err(GroupError::GroupNotFound));
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    rig.stable("a");
    assert_eq!(delete(&mut rig, &[(1, "t"), (2, "u")]), Ok(vec![Err(GroupError::SubscribedToTopic), Ok(())]));
    rig.leave(&[("a", None)]);
    assert_eq!(delete(&mut rig, &[(1, "t")]), Ok(vec![Ok(())]));
    assert_eq!(rig.offset((topic(1), 0)), None);
    let ticket = rig.join(Join { protocol_type: "connect".into(), ..member("c") });
    rig.joined(ticket);
    assert_eq!(delete(&mut rig, &[(1, "t")]), Err(GroupError::NonEmptyGroup));
}

#[test]
fn offsets_expire_after_the_group_was_empty_for_the_retention() {
    let mut rig = Rig::quick();
    let week = 7 * 24 * 3600 * 1000i64;
    let catalog = catalog(&[(1, "t"), (2, "u")]);
    let mut other = commit_of(caller("a", 1), 7);
    other.positions[0].0 = (topic(2), 0);
    rig.stable("a");
    rig.commit(commit_of(caller("a", 1), 7)).expect("committed");
    rig.commit(other).expect("committed");
    rig.now.wall_ms += week + 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), Some(7), "consumed");
    assert_eq!(rig.offset((topic(2), 0)), None, "not subscribed to");
    rig.leave(&[("a", None)]);
    rig.now.wall_ms += week - 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), Some(7));
    rig.now.wall_ms += 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), None);
    assert_eq!(rig.state(), State::Dead, "empty and without offsets");
}

#[test]
fn simple_groups_expire_by_commit_and_old_clients_choose_their_time() {
    let mut rig = Rig::quick();
    let catalog = catalog(&[(1, "t"), (2, "u")]);
    let mut short = commit_of(caller("", -1), 1);
    short.retention_ms = Some(1000);
    short.positions[0].0 = (topic(2), 0);
    rig.commit(short).expect("committed");
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    rig.now.wall_ms += 1000;
    rig.sweep(&catalog);
    assert_eq!((rig.offset((topic(2), 0)), rig.offset((topic(1), 0))), (None, Some(1)));
    rig.now.wall_ms += 7 * 24 * 3600 * 1000;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), None);
}

#[test]
fn offsets_of_deleted_topics_are_dropped_after_a_while() {
    let mut rig = Rig::quick();
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    let (with, without) = (catalog(&[(1, "t")]), catalog(&[]));
    rig.sweep(&without);
    rig.advance(299_999);
    rig.sweep(&with);
    rig.sweep(&without);
    rig.advance(299_999);
    rig.sweep(&without);
    assert_eq!(rig.offset((topic(1), 0)), Some(1), "the wait starts anew when the topic is seen");
    rig.advance(1);
    rig.sweep(&without);
    assert_eq!(rig.offset((topic(1), 0)), None);
    assert!(rig.machine.stored.is_empty());
}

#[test]
fn groups_are_described_listed_and_deleted() {
    let mut rig = Rig::quick();
    assert_eq!(rig.ask(Ask::Describe { group: "g".into() }), Answer::Describe(Err(Absent::NotFound)));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Err(GroupError::GroupNotFound)));
    rig.stable("a");
    let answer = rig.ask(Ask::Describe { group: "g".into() });
    let Answer::Describe(Ok(described)) = answer else { panic!("{answer:?}") };
    assert_eq!((described.state.name(), described.protocol_type.as_str()), ("Stable", "consumer"));
    assert_eq!((described.protocol.as_str(), &described.members[0].assignment), ("range", &blob("all")));
    assert_eq!(rig.groups()[0].state, "Stable");
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Err(GroupError::NonEmptyGroup)));
    let b = rig.join(member("b"));
    let answer = rig.ask(Ask::Describe { group: "g".into() });
    let Answer::Describe(Ok(described)) = answer else { panic!("{answer:?}") };
    assert_eq!((described.state, described.members.len()), (State::PreparingRebalance, 2));
    assert_eq!(described.members[0].assignment, blob("all"), "while rebalancing");
    rig.leave(&[("a", None), ("b", None)]);
    assert!(matches!(rig.take_answer(b), Some(Answer::Join(Err(_)))));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert!(rig.groups().is_empty());
    rig.restart();
    assert!(rig.groups().is_empty());
}

impl Rig {
    fn sync_as_static(&mut self, joined: &Joined, instance: &str, assignments: &[(&str, &str)]) -> Ticket {
        let caller =
            Caller { instance_id: Some(instance.into()), ..caller(&joined.member_id, joined.generation) };
        let assignments = assignments.iter().map(|(id, a)| ((*id).to_owned(), blob(a))).collect();
        self.send(Ask::Sync(Sync { caller, protocol_type: None, protocol: None, assignments }))
    }
}
