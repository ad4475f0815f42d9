//! The coordinator of the transactional ids of one partition, as a pure machine (KIP-98, KIP-360, KIP-890; protocol 13).
//!
//! ```text
//!           add                end                 all markers written
//!  Empty ─────────► Ongoing ─────────► PrepareCommit ─────────────────► CompleteCommit ──┐
//!    ▲                 ▲  └──────────► PrepareAbort  ─────────────────► CompleteAbort  ──┤
//!    │                 │    end, time, newer producer                                    │
//!    └── init ─────────┴── add ──────────────────────────────────────────────────────────┘
//! ```
//! A transaction is decided by one record, `Prepared`, and by nothing else: before it is durable no marker is written,
//! after it every partition gets the same one, whoever coordinates then. Durable: [`super::record`]. Soft: when
//! transactions time out, and which decided ones the writer of markers has taken.
//!
//! Owns the dispatch and the timers. Rules: `init`, `places`, `end`. Must not know topics' names, connections, wire
//! types, nor how markers are written.
//!
//! INV-TXN-1 the outcome of a transaction never changes once it is prepared · INV-TXN-2 it is complete only after every
//! partition that took part has its marker · INV-TXN-3 of a transactional id's producers only the newest epoch adds
//! partitions or ends a transaction · INV-TXN-4 numbers of a transactional id's transactions grow by one.

use super::ask::{Add, Answer, Ask, Decided, Described, End, Init, Listed};
use super::record::{self, Entries, Entry, Record, State};
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Decided transactions in one answer.
const DECIDED_MAX: usize = 256;

/// Limits and times of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `transaction.max.timeout.ms`.
    pub timeout_ms_max: i32,
    /// `transactional.id.expiration.ms`.
    pub id_expiration_ms: i64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout_ms_max: 900_000, id_expiration_ms: 7 * 24 * 3600 * 1000 }
    }
}

/// All transactional ids of one partition.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(super) settings: Settings,
    /// Durable; changed by [`Machine::replay`] alone.
    pub(super) entries: Entries,
    /// Monotonic ms at which an ongoing transaction is aborted.
    due: HashMap<String, u64>,
    /// The same, in order.
    dues: BTreeSet<(u64, String)>,
    /// Decided and not taken by the writer of markers.
    decided: VecDeque<String>,
    /// The writer's parked question.
    writer: Option<Ticket>,
}

impl Coordinator {
    /// The entry of a transactional id.
    pub(super) fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.get(id).map(|entry| &**entry)
    }

    /// Records a fact, and what follows from it in soft state.
    pub(super) fn emit(&mut self, record: Record, now: Now, out: &mut Outcome<Coordinator>) {
        let (Record::Initialised { id, .. }
        | Record::Added { id, .. }
        | Record::Prepared { id, .. }
        | Record::Completed { id, .. }
        | Record::Expired { id }) = &record;
        let id = id.clone();
        out.emit(self, record);
        self.settle(&id, now);
    }

    /// Starts and stops the time of a transaction, and hands decided ones to the writer of markers.
    fn settle(&mut self, id: &str, now: Now) {
        let Some((state, timeout_ms, age_ms)) = self.entry(id).map(|e| {
            let age = now.wall_ms.saturating_sub(e.started_at).max(0);
            (e.state, u64::from(e.timeout_ms.unsigned_abs()), age.unsigned_abs())
        }) else {
            return self.stop_time(id);
        };
        match state {
            State::Ongoing if !self.due.contains_key(id) => {
                let at = now.mono_ms + timeout_ms.saturating_sub(age_ms);
                self.due.insert(id.to_owned(), at);
                self.dues.insert((at, id.to_owned()));
            }
            State::Ongoing => {}
            State::PrepareCommit | State::PrepareAbort => {
                self.stop_time(id);
                self.decided.push_back(id.to_owned());
            }
            State::Empty | State::CompleteCommit | State::CompleteAbort => self.stop_time(id),
        }
    }

    fn stop_time(&mut self, id: &str) {
        if let Some(at) = self.due.remove(id) {
            self.dues.remove(&(at, id.to_owned()));
        }
    }

    /// Answers the writer of markers if something waits for it.
    fn feed_writer(&mut self, out: &mut Outcome<Coordinator>) {
        if self.decided.is_empty() {
            return;
        }
        let Some(writer) = self.writer.take() else { return };
        let take = self.decided.len().min(DECIDED_MAX);
        let ids: Vec<String> = self.decided.drain(..take).collect();
        let decided = ids.into_iter().filter_map(|id| self.decided_of(id)).collect();
        out.reply(writer, Answer::Decided(decided));
    }

    fn decided_of(&self, id: String) -> Option<Decided> {
        let entry = self.entry(&id).filter(|e| e.state.is_prepared())?;
        Some(Decided {
            number: entry.number,
            producer: entry.producer,
            commit: entry.state == State::PrepareCommit,
            places: entry.places.iter().copied().collect(),
            rules: entry.rules,
            id,
        })
    }

    fn written(&mut self, id: String, number: u64, now: Now, out: &mut Outcome<Coordinator>) {
        let is_open = self.entry(&id).is_some_and(|e| e.state.is_prepared() && e.number == number);
        if is_open {
            self.emit(Record::Completed { id, at: now.wall_ms }, now, out);
        }
    }

    fn describe(&self, id: &str) -> Option<Described> {
        self.entry(id).map(|e| Described {
            state: e.state,
            producer: e.producer,
            timeout_ms: e.timeout_ms,
            started_at: e.started_at,
            places: e.places.iter().copied().collect(),
        })
    }

    fn list(&self) -> Vec<Listed> {
        let listed = |(id, e): (&String, &rangeway_core::replicated::Shared<Entry>)| Listed {
            id: id.clone(),
            state: e.state,
            producer_id: e.producer.id,
            started_at: e.started_at,
        };
        self.entries.iter().map(listed).collect()
    }

    /// Forgets ids without a transaction that have not been used for so long that they have expired.
    fn sweep(&mut self, now: Now, out: &mut Outcome<Coordinator>) {
        let has_expired = |e: &Entry| {
            let idle = matches!(e.state, State::Empty | State::CompleteCommit | State::CompleteAbort);
            idle && now.wall_ms.saturating_sub(e.updated_at) >= self.settings.id_expiration_ms
        };
        let expired = self.entries.iter().filter(|(_, e)| has_expired(e));
        let expired: Vec<String> = expired.map(|(id, _)| id.clone()).collect();
        for id in expired {
            self.emit(Record::Expired { id }, now, out);
        }
    }
}

impl Machine for Coordinator {
    type Event = Ask;
    type Reply = Answer;
    type Record = Record;
    type Image = Entries;
    type Settings = Settings;
    const VERSION: u8 = record::VERSION;

    fn new(settings: &Settings) -> Coordinator {
        Coordinator {
            settings: settings.clone(),
            entries: Entries::new(),
            due: HashMap::new(),
            dues: BTreeSet::new(),
            decided: VecDeque::new(),
            writer: None,
        }
    }

    fn handle(&mut self, ticket: Ticket, ask: Ask, now: Now, out: &mut Outcome<Coordinator>) {
        let answer = match ask {
            Ask::Init(init) => self.init(init, now, out),
            Ask::Add(add) => Answer::Add(self.add(add, now, out)),
            Ask::Verify(add) => Answer::Verify(self.verify(&add)),
            Ask::End(end) => self.end(end, now, out),
            Ask::Decided => {
                // A writer asks again only when its last question has ended: an older one is of a writer that is gone.
                if let Some(gone) = self.writer.replace(ticket) {
                    out.reply(gone, Answer::Decided(Vec::new()));
                }
                return self.feed_writer(out);
            }
            Ask::Written { id, number } => {
                self.written(id, number, now, out);
                Answer::Written
            }
            Ask::Describe { id } => Answer::Describe(self.describe(&id)),
            Ask::List => Answer::List(self.list()),
            Ask::Sweep => {
                self.sweep(now, out);
                Answer::Sweep
            }
        };
        out.reply(ticket, answer);
        self.feed_writer(out);
    }

    /// Of what may record it is tried on a copy of the id's entry.
    fn passes(&self, ask: &Ask, now: Now) -> bool {
        let id = match ask {
            Ask::Verify(_) | Ask::Decided | Ask::Describe { .. } | Ask::List => return true,
            Ask::Sweep => return false,
            Ask::Init(Init { id, .. })
            | Ask::Add(Add { id, .. })
            | Ask::End(End { id, .. })
            | Ask::Written { id, .. } => id,
        };
        let mut copy = Coordinator::new(&self.settings);
        copy.entries.extend(self.entries.get(id).map(|entry| (id.clone(), entry.clone())));
        let mut out = Outcome::default();
        copy.handle(Ticket(u64::MAX), ask.clone(), now, &mut out);
        out.take_records().is_empty()
    }

    /// A transaction whose time is over is aborted: those who read committed records wait for it.
    fn resume(&mut self, _: Now) {}

    /// Aborts transactions whose time is over.
    fn expire(&mut self, now: Now, out: &mut Outcome<Coordinator>) {
        while let Some((at, id)) = self.dues.first().cloned()
            && at <= now.mono_ms
        {
            self.stop_time(&id);
            if self.entry(&id).is_some_and(|e| e.state == State::Ongoing) {
                self.fence(id, now, out);
            }
        }
        self.feed_writer(out);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.dues.first().map(|(at, _)| *at)
    }

    fn replay(&mut self, record: &Record) {
        record::apply(&mut self.entries, record);
    }

    fn loaded(&mut self, now: Now) {
        let ids: Vec<String> = self.entries.keys().cloned().collect();
        for id in ids {
            self.settle(&id, now);
        }
    }

    fn capture(&self) -> Entries {
        self.entries.clone()
    }

    fn restore(&mut self, image: Entries) {
        self.entries = image;
    }
}
