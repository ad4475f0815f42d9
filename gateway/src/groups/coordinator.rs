//! The coordinator of the groups of one partition: Kafka's classic group protocol as a pure machine (protocol 10, 11).
//!
//! ```text
//!            join                    all joined, or time            leader's sync
//!  Empty ──────────► Preparing ─────────────────────► Completing ────────────────► Stable
//!    ▲                 ▲  ▲                               │ join, leave, expiry       │ join, leave, expiry
//!    └── nobody left ──┘  └───────────────────────────────┴───────────────────────────┘
//! ```
//! Durable: generations with their members, assignments, offsets ([`super::record`]). Soft: who is joining, parked
//! joins and syncs, timers. Preparing is soft alone: a coordinator that dies in it comes back with the generation
//! before, whose members join again. A generation's number is durable before a member learns it, so no number is ever
//! given twice.
//!
//! Owns the dispatch, the timers and the index of what is due. Rules of joining and syncing: `join`, `sync`; offsets:
//! `offsets`; what tools ask: `admin`. Must not know topics' names, connections or wire types.

use super::ask::{Answer, Ask, GroupError, State};
use super::record::{self, GroupImage, MemberInfo, Phase, Record, Stored};
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A member that never joined before is given up after so long in a join, ms: its client may be gone.
pub(super) const NEW_MEMBER_JOIN_MS: u64 = 300_000;

/// Limits and times of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_ms_min: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_ms_max: i32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for further members.
    pub initial_rebalance_delay_ms: u64,
    /// `group.max.size`.
    pub members_max: usize,
    /// `offset.metadata.max.bytes`.
    pub metadata_bytes_max: usize,
    /// `offsets.retention.minutes`, in ms.
    pub offsets_retention_ms: i64,
    /// How long a topic must be absent from the catalog before its offsets are dropped, ms. They are invisible at
    /// once; the wait covers a catalog that lags behind the commit of an offset.
    pub absent_topic_grace_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            session_timeout_ms_min: 6_000,
            session_timeout_ms_max: 1_800_000,
            initial_rebalance_delay_ms: 500,
            members_max: i32::MAX as usize,
            metadata_bytes_max: 4096,
            offsets_retention_ms: 7 * 24 * 3600 * 1000,
            absent_topic_grace_ms: 300_000,
        }
    }
}

/// All groups of one partition.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(super) settings: Settings,
    /// Durable; changed by [`Machine::replay`] alone.
    pub(super) stored: BTreeMap<String, Stored>,
    pub(super) live: HashMap<String, Live>,
    /// (monotonic ms, group): when a group has to be looked at; at or before its real next deadline.
    due: BTreeSet<(u64, String)>,
    /// Topics with offsets that the catalog does not hold, and since when.
    pub(super) absent_topics: HashMap<TopicId, u64>,
}

/// Soft state of one group.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Joined or joining, by member id.
    pub(super) members: BTreeMap<String, Member>,
    /// Ids given out and not yet used, with the time when they lapse.
    pub(super) pending: BTreeMap<String, u64>,
    /// The rebalance in preparation.
    pub(super) rebalance: Option<Rebalance>,
    /// When members that have not synced are removed.
    pub(super) sync_due: Option<u64>,
    /// The member that will lead, or leads.
    pub(super) leader: Option<String>,
    /// Protocol type of the members.
    pub(super) protocol_type: Option<String>,
    joined: u64,
    wake: Option<u64>,
}

/// Soft state of one member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) info: MemberInfo,
    /// Order of joining: the first one that is left leads.
    pub(super) order: u64,
    /// Its parked join.
    pub(super) join: Option<Ticket>,
    /// Its parked sync.
    pub(super) sync: Option<Ticket>,
    /// Has asked for this generation's assignment.
    pub(super) synced: bool,
    /// Was in no generation yet.
    pub(super) is_new: bool,
    /// When its session ends, unless a call of it is parked.
    pub(super) session_due: u64,
}

/// Members are joining.
#[derive(Clone, Debug)]
pub(super) struct Rebalance {
    /// When those who have not joined are left out.
    pub(super) due: u64,
    /// The group was empty: wait for further members, whoever has joined.
    pub(super) initial: Option<Initial>,
}

/// The wait of a group that was empty.
#[derive(Clone, Debug)]
pub(super) struct Initial {
    /// How much longer it may be extended, ms.
    pub(super) remaining_ms: u64,
    /// Somebody joined since the last extension.
    pub(super) joined_since: bool,
}

impl Member {
    /// When it is removed for silence; `None` while a call of it is parked.
    pub(super) fn expires(&self) -> Option<u64> {
        let parked = self.sync.is_some() || (self.join.is_some() && !self.is_new);
        (!parked).then_some(self.session_due)
    }
}

impl Live {
    /// Adds a member with a parked join.
    pub(super) fn add(&mut self, id: String, info: MemberInfo, ticket: Ticket, now_ms: u64) {
        self.joined += 1;
        if let Some(initial) = self.rebalance.as_mut().and_then(|r| r.initial.as_mut()) {
            initial.joined_since = true;
        }
        self.pending.remove(&id);
        self.leader.get_or_insert_with(|| id.clone());
        let member = Member {
            info,
            order: self.joined,
            join: Some(ticket),
            sync: None,
            synced: false,
            is_new: true,
            session_due: now_ms + NEW_MEMBER_JOIN_MS,
        };
        self.members.insert(id, member);
    }

    /// Takes a member out; the lead goes to the one that joined first of those left.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        if self.leader.as_deref() == Some(id) {
            self.leader = self.first_of(|_| true);
        }
        Some(member)
    }

    /// The member that joined first among those that `which` picks.
    pub(super) fn first_of(&self, which: impl Fn(&Member) -> bool) -> Option<String> {
        let picked = self.members.iter().filter(|(_, m)| which(m));
        picked.min_by_key(|(_, m)| m.order).map(|(id, _)| id.clone())
    }

    /// The member with this `group.instance.id`.
    pub(super) fn static_member(&self, instance_id: &str) -> Option<String> {
        let mut members = self.members.iter();
        let found = members.find(|(_, m)| m.info.instance_id.as_deref() == Some(instance_id));
        found.map(|(id, _)| id.clone())
    }

    /// Whether the caller is a member, by both its names.
    pub(super) fn validate(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            return match self.static_member(instance_id) {
                None => Err(GroupError::UnknownMember),
                Some(id) if id != member_id => Err(GroupError::FencedInstance),
                Some(_) => Ok(()),
            };
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(GroupError::UnknownMember) }
    }

    /// The longest rebalance timeout of all members, ms.
    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|m| u64::from(m.info.rebalance_timeout_ms)).max().unwrap_or(0)
    }

    /// Puts off the end of a member's session.
    pub(super) fn touch(&mut self, member_id: &str, now_ms: u64) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.session_due = now_ms + u64::from(member.info.session_timeout_ms);
        }
    }

    fn next_due(&self) -> Option<u64> {
        let members = self.members.values().filter_map(Member::expires);
        let pending = self.pending.values().copied();
        let rebalance = self.rebalance.as_ref().map(|r| r.due);
        members.chain(pending).chain(rebalance).chain(self.sync_due).min()
    }

    fn is_nothing(&self) -> bool {
        self.members.is_empty() && self.pending.is_empty() && self.rebalance.is_none()
    }

    /// Of a generation that was loaded: sessions start afresh, nobody is parked.
    fn of(image: &GroupImage, now_ms: u64) -> Live {
        let mut live = Live {
            leader: image.leader.clone(),
            protocol_type: image.protocol_type.clone(),
            ..Live::default()
        };
        for (id, member) in &image.members {
            live.joined += 1;
            let member = Member {
                info: member.info.clone(),
                order: live.joined,
                join: None,
                sync: None,
                synced: image.phase == Phase::Stable,
                is_new: false,
                session_due: now_ms + u64::from(member.info.session_timeout_ms),
            };
            live.members.insert(id.clone(), member);
        }
        live.sync_due = (image.phase == Phase::Completing).then(|| now_ms + live.rebalance_timeout_ms());
        live
    }
}

/// One group's turn: what its rules work with while an event is handled.
pub(super) struct Turn<'a> {
    pub(super) coordinator: &'a mut Coordinator,
    pub(super) group: &'a str,
    pub(super) now: Now,
    pub(super) out: &'a mut Outcome<Coordinator>,
}

impl Turn<'_> {
    /// The group's soft state, made if it is not there.
    pub(super) fn live(&mut self) -> &mut Live {
        self.coordinator.live.entry(self.group.to_owned()).or_default()
    }

    /// Whether the group exists: stored, or with somebody joining.
    pub(super) fn exists(&self) -> bool {
        self.coordinator.stored.contains_key(self.group)
            || self.coordinator.live.get(self.group).is_some_and(|l| !l.is_nothing())
    }

    /// The newest generation; the empty one before the first.
    pub(super) fn image(&self) -> GroupImage {
        self.coordinator.stored.get(self.group).map(|s| GroupImage::clone(&s.group)).unwrap_or_default()
    }

    /// Number of the newest generation.
    pub(super) fn generation(&self) -> i32 {
        self.coordinator.stored.get(self.group).map_or(0, |s| s.group.generation)
    }

    /// Its state now.
    pub(super) fn state(&self) -> State {
        self.coordinator.state(self.group)
    }

    /// Records a fact of the group.
    pub(super) fn emit(&mut self, record: Record) {
        self.out.emit(self.coordinator, record);
    }
}

impl Coordinator {
    /// State of a group.
    pub(super) fn state(&self, group: &str) -> State {
        let live = self.live.get(group);
        if live.is_some_and(|l| l.rebalance.is_some()) {
            return State::PreparingRebalance;
        }
        match self.stored.get(group).map(|s| s.group.phase) {
            Some(Phase::Stable) => State::Stable,
            Some(Phase::Completing) => State::CompletingRebalance,
            Some(Phase::Empty) => State::Empty,
            None if live.is_some_and(|l| !l.is_nothing()) => State::Empty,
            None => State::Dead,
        }
    }

    fn turn<'a>(&'a mut self, group: &'a str, now: Now, out: &'a mut Outcome<Coordinator>) -> Turn<'a> {
        Turn { coordinator: self, group, now, out }
    }

    /// Makes sure that the group is looked at in time; drops its soft state when there is none. A due time that has
    /// moved away stays in the index and costs one look.
    fn settle(&mut self, group: &str) {
        let Some(live) = self.live.get_mut(group) else { return };
        if live.is_nothing() {
            if let Some(at) = live.wake {
                self.due.remove(&(at, group.to_owned()));
            }
            self.live.remove(group);
            return;
        }
        let Some(at) = live.next_due() else { return };
        if live.wake.is_some_and(|wake| wake <= at) {
            return;
        }
        if let Some(wake) = live.wake.replace(at) {
            self.due.remove(&(wake, group.to_owned()));
        }
        self.due.insert((at, group.to_owned()));
    }

    #[cfg(test)]
    pub(super) fn live_members(&self, group: &str) -> Vec<(String, MemberInfo)> {
        let members = self.live.get(group).into_iter().flat_map(|l| l.members.iter());
        members.map(|(id, m)| (id.clone(), m.info.clone())).collect()
    }
}

impl Machine for Coordinator {
    type Event = Ask;
    type Reply = Answer;
    type Record = Record;
    type Image = BTreeMap<String, Stored>;
    type Settings = Settings;
    const VERSION: u8 = record::VERSION;

    fn new(settings: &Settings) -> Coordinator {
        Coordinator {
            settings: settings.clone(),
            stored: BTreeMap::new(),
            live: HashMap::new(),
            due: BTreeSet::new(),
            absent_topics: HashMap::new(),
        }
    }

    fn handle(&mut self, ticket: Ticket, ask: Ask, now: Now, out: &mut Outcome<Coordinator>) {
        let answer = match ask {
            Ask::Join(join) => {
                let group = join.group.clone();
                self.turn(&group, now, out).join(ticket, join);
                return self.settle(&group);
            }
            Ask::Sync(sync) => {
                let group = sync.caller.group.clone();
                self.turn(&group, now, out).sync(ticket, sync);
                return self.settle(&group);
            }
            Ask::Heartbeat(caller) => {
                let answer = self.turn(&caller.group, now, out).heartbeat(&caller);
                self.settle(&caller.group);
                Answer::Heartbeat(answer)
            }
            Ask::Leave { group, members } => {
                let answer = self.turn(&group, now, out).leave(&members);
                self.settle(&group);
                Answer::Leave(answer)
            }
            Ask::Commit(commit) => {
                let group = commit.caller.group.clone();
                let answer = self.turn(&group, now, out).commit(commit);
                self.settle(&group);
                Answer::Commit(answer)
            }
            Ask::Offsets { group, keys } => Answer::Offsets(self.offsets(&group, keys)),
            Ask::DeleteOffsets { group, keys } => {
                Answer::DeleteOffsets(self.turn(&group, now, out).delete_offsets(keys))
            }
            Ask::Describe { group } => Answer::Describe(self.describe(&group)),
            Ask::List => Answer::List(self.list()),
            Ask::Delete { group } => {
                let answer = self.turn(&group, now, out).delete();
                self.settle(&group);
                Answer::Delete(answer)
            }
            Ask::Sweep { catalog } => {
                self.sweep(&catalog, now, out);
                Answer::Sweep
            }
        };
        out.reply(ticket, answer);
    }

    fn expire(&mut self, now: Now, out: &mut Outcome<Coordinator>) {
        while let Some((at, _)) = self.due.first()
            && *at <= now.mono_ms
        {
            let Some((_, group)) = self.due.pop_first() else { return };
            if let Some(live) = self.live.get_mut(&group) {
                live.wake = None;
            }
            self.turn(&group, now, out).expire();
            self.settle(&group);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    fn replay(&mut self, record: &Record) {
        record::apply(&mut self.stored, record);
    }

    fn loaded(&mut self, now: Now) {
        let groups: Vec<String> = self.stored.keys().cloned().collect();
        for group in groups {
            let Some(stored) = self.stored.get(&group) else { continue };
            self.live.insert(group.clone(), Live::of(&stored.group, now.mono_ms));
            self.settle(&group);
        }
    }

    fn capture(&self) -> BTreeMap<String, Stored> {
        self.stored.clone()
    }

    fn restore(&mut self, image: BTreeMap<String, Stored>) {
        self.stored = image;
    }
}
