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

use super::ask::{Answer, Ask, Asked, State};
use super::consumer::image::Consumers;
use super::consumer::sessions;
use super::image::Image;
use super::live::Live;
use super::pending::Pending;
use super::record::{self, GroupImage, Phase, Record, Stored};
use super::settings::Settings;
use super::view::Numbers;
use rangeway_core::api::Catalog;
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A member that never joined before is given up after so long in a join, ms: its client may be gone.
pub(super) const NEW_MEMBER_JOIN_MS: u64 = 300_000;

/// All groups of one partition.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(super) settings: Settings,
    /// Durable; changed by [`Machine::replay`] alone.
    pub(super) stored: BTreeMap<String, Stored>,
    /// Durable too: groups of the consumer protocol, and configs of groups.
    pub(super) consumers: Consumers,
    /// Durable too: offsets of transactions that are under way.
    pub(super) pending: Pending,
    /// Durable too: where tools find all this.
    pub(super) numbers: Numbers,
    /// The newest that came with a question.
    pub(super) catalog: Arc<Catalog>,
    pub(super) live: HashMap<String, Live>,
    /// (monotonic ms, group): when a group has to be looked at; at or before its real next deadline.
    pub(super) due: BTreeSet<(u64, String)>,
    /// Topics with offsets that the catalog does not hold, and since when.
    pub(super) absent_topics: HashMap<TopicId, u64>,
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
            || self.coordinator.consumers.groups.contains_key(self.group)
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

    /// Answers what is asked of a group; `None` when it was answered or will be.
    fn answer(&mut self, ticket: Ticket, ask: Ask) -> Option<Answer> {
        let is_consumer = self.consumer().is_some_and(|image| !image.members.is_empty());
        Some(match ask {
            Ask::Join(join) => {
                if is_consumer {
                    self.join_consumer(ticket, join)
                } else {
                    self.join(ticket, join)
                }
                return None;
            }
            Ask::Sync(sync) if is_consumer => Answer::Sync(self.sync_consumer(&sync)),
            Ask::Sync(sync) => {
                self.sync(ticket, sync);
                return None;
            }
            Ask::Heartbeat(caller) if is_consumer => Answer::Heartbeat(self.heartbeat_consumer(&caller)),
            Ask::Heartbeat(caller) => Answer::Heartbeat(self.heartbeat(&caller)),
            Ask::Leave { members, .. } if is_consumer => Answer::Leave(Ok(self.leave_consumer(&members))),
            Ask::Leave { members, .. } => Answer::Leave(self.leave(&members)),
            Ask::Beat(beat) => Answer::Beat(self.beat(&beat)),
            Ask::Commit(commit) => Answer::Commit(self.commit(commit)),
            Ask::CommitPending(asked) => Answer::CommitPending(self.commit_pending(asked)),
            Ask::Pending { .. } => Answer::Pending(self.coordinator.pending_keys(self.group)),
            Ask::Offsets { keys, reader, .. } => {
                let allowed = self.coordinator.check_reader(self.group, reader.as_ref());
                Answer::Offsets(allowed.map(|()| self.coordinator.offsets(self.group, keys)))
            }
            Ask::DeleteOffsets { keys, .. } => Answer::DeleteOffsets(self.delete_offsets(keys)),
            Ask::Describe { .. } => Answer::Describe(self.coordinator.describe(self.group)),
            Ask::DescribeConsumers { .. } => {
                Answer::DescribeConsumers(self.coordinator.describe_consumers(self.group))
            }
            Ask::Configs { .. } => Answer::Configs(self.coordinator.configs(self.group)),
            Ask::Configure { changes, validate_only, .. } => {
                Answer::Configure(self.configure(&changes, validate_only))
            }
            Ask::Delete { .. } => Answer::Delete(self.delete()),
            // Of no group: answered before a turn begins.
            Ask::List | Ask::Configured | Ask::EndTransaction(_) | Ask::Look(_) | Ask::Sweep => return None,
        })
    }

    /// Does what is due.
    fn due(&mut self) {
        if self.consumer().is_some() { self.expire_consumers() } else { self.expire() }
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

    /// All groups that are stored.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.stored.keys().chain(self.consumers.groups.keys()).cloned().collect()
    }

    fn turn<'a>(&'a mut self, group: &'a str, now: Now, out: &'a mut Outcome<Coordinator>) -> Turn<'a> {
        Turn { coordinator: self, group, now, out }
    }

    /// Makes sure that the group is looked at in time; drops its soft state when there is none. A due time that has
    /// moved away stays in the index and costs one look.
    pub(super) fn settle(&mut self, group: &str) {
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
    pub(super) fn live_members(&self, group: &str) -> Vec<(String, record::MemberInfo)> {
        let members = self.live.get(group).into_iter().flat_map(|l| l.members.iter());
        members.map(|(id, m)| (id.clone(), m.info.clone())).collect()
    }
}

impl Machine for Coordinator {
    type Event = Asked;
    type Reply = Answer;
    type Record = Record;
    type Image = Image;
    type Settings = Settings;
    const VERSION: u8 = record::VERSION;
    const VERSION_OLDEST: u8 = record::VERSION_OLDEST;

    fn new(settings: &Settings) -> Coordinator {
        Coordinator {
            settings: settings.clone(),
            stored: BTreeMap::new(),
            consumers: Consumers::default(),
            pending: Pending::default(),
            numbers: Numbers::default(),
            catalog: Arc::default(),
            live: HashMap::new(),
            due: BTreeSet::new(),
            absent_topics: HashMap::new(),
        }
    }

    fn handle(&mut self, ticket: Ticket, asked: Asked, now: Now, out: &mut Outcome<Coordinator>) {
        if asked.catalog.version >= self.catalog.version {
            self.catalog = asked.catalog;
        }
        let Some(group) = asked.ask.group().map(str::to_owned) else {
            let answer = match asked.ask {
                Ask::List => Answer::List(self.list()),
                Ask::EndTransaction(ended) => {
                    if let Some(record) = self.end_transaction(ended) {
                        out.emit(self, record);
                    }
                    Answer::EndTransaction
                }
                Ask::Look(look) => Answer::Look(self.look(look)),
                Ask::Configured => Answer::Configured(self.consumers.configs.keys().cloned().collect()),
                _ => {
                    self.sweep(now, out);
                    Answer::Sweep
                }
            };
            return out.reply(ticket, answer);
        };
        if let Some(answer) = self.turn(&group, now, out).answer(ticket, asked.ask) {
            out.reply(ticket, answer);
        }
        self.settle(&group);
    }

    fn passes(&self, asked: &Asked, now: Now) -> bool {
        self.records_nothing(asked, now)
    }

    fn resume(&mut self, now: Now) {
        self.begin_times(now.mono_ms);
    }

    fn expire(&mut self, now: Now, out: &mut Outcome<Coordinator>) {
        while let Some((at, _)) = self.due.first()
            && *at <= now.mono_ms
        {
            let Some((_, group)) = self.due.pop_first() else { return };
            if let Some(live) = self.live.get_mut(&group) {
                live.wake = None;
            }
            self.turn(&group, now, out).due();
            self.settle(&group);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    fn replay(&mut self, record: &Record) {
        let ended = self.pending.counts_with(record);
        self.numbers.apply(record, &ended);
        record::apply(&mut self.stored, record);
        self.consumers.apply(record);
        self.pending.apply(&mut self.stored, record);
    }

    fn loaded(&mut self, now: Now) {
        for group in self.names() {
            let live = match (self.consumers.groups.get(&group), self.stored.get(&group)) {
                (Some(image), _) => {
                    let session_ms = self.consumer_session_ms(&group);
                    Live { consumers: sessions(image, session_ms, now.mono_ms), ..Live::default() }
                }
                (None, Some(stored)) => Live::of(&stored.group, now.mono_ms),
                (None, None) => continue,
            };
            self.live.insert(group.clone(), live);
            self.settle(&group);
        }
    }

    fn capture(&self) -> Image {
        Image {
            groups: self.stored.clone(),
            consumers: self.consumers.clone(),
            pending: self.pending.clone(),
            numbers: self.numbers.clone(),
        }
    }

    fn restore(&mut self, image: Image) {
        self.stored = image.groups;
        self.consumers = image.consumers;
        self.pending = image.pending;
        self.numbers = image.numbers;
    }
}
