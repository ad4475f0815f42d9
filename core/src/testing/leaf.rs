//! A leaf for tests: registers and entries in memory behind a queue, moved on by hand or by a thread of its own. It can lag,
//! lose requests, lose answers, die.

use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Payload, Purpose, Read, ReadError, Run, ScanQuery,
    SealId, Stored, TailDesc, WriteError,
};
use crate::store::registers::{Registers, Slot};
use crate::types::{Address, LogletId, Offset, Partition};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// Which loglet the entries of [`header`] belong to.
pub(crate) const LOGLET: LogletId = LogletId(7);

/// A header of one of our own kinds that takes offsets.
pub(crate) fn header(
    address: u64,
    partition: Partition,
    offset: Offset,
    records: i32,
    payload: u32,
) -> EntryHeader {
    EntryHeader {
        loglet: LOGLET,
        address: Address(address),
        kind: EntryKind::Control,
        flags: 0,
        partition,
        base_offset: offset,
        last_offset_delta: records - 1,
        record_count: records,
        leader_epoch: 3,
        appended_at: 1000 + offset,
        first_timestamp: 1000 + offset,
        max_timestamp: 1000 + offset,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: payload,
    }
}

/// The one entry that a test writes at a loglet address: partition 0, one record, offset = address.
pub(crate) fn entry_at(address: u64) -> Entry {
    let payload = Bytes::from(format!("entry {address}"));
    Entry::own(header(address, 0, address as i64, 1, payload.len() as u32), payload)
}

enum Job {
    Write(Box<Run>),
    Fence(u32, oneshot::Sender<TailDesc>),
}

/// What becomes of a job taken from the queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Done and answered.
    Done,
    /// Done, the answer is lost: a write is told `Unavailable`, a fence never answers.
    AnswerLost,
    /// Not done, told like a lost answer.
    RequestLost,
}

#[derive(Default)]
struct State {
    registers: Registers,
    entries: BTreeMap<u64, Entry>,
    queue: Vec<Job>,
    dead: bool,
    full: bool,
}

/// See the module head.
pub(crate) struct Leaf {
    state: Mutex<State>,
    /// Wakes the leaf's own thread, if it has one.
    wake: Option<mpsc::Sender<()>>,
}

impl Leaf {
    /// A leaf that moves only when [`Leaf::step`] is called.
    pub(crate) fn by_hand() -> Arc<Leaf> {
        Arc::new(Leaf { state: Mutex::default(), wake: None })
    }

    /// A leaf whose thread does every job at once, in order; it ends with the leaf.
    pub(crate) fn threaded() -> Arc<Leaf> {
        let (wake, woken) = mpsc::channel();
        let leaf = Arc::new(Leaf { state: Mutex::default(), wake: Some(wake) });
        let weak = Arc::downgrade(&leaf);
        std::thread::spawn(move || {
            while woken.recv().is_ok() {
                let Some(leaf) = weak.upgrade() else { return };
                leaf.step(0, Fate::Done);
            }
        });
        leaf
    }

    /// How many jobs wait.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }

    pub(crate) fn die(&self) {
        self.state.lock().dead = true;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// From now on it has room for records, or not.
    pub(crate) fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Takes the job at `place` of the queue, if there is one.
    pub(crate) fn step(&self, place: usize, fate: Fate) {
        let mut state = self.state.lock();
        if place >= state.queue.len() {
            return;
        }
        let job = state.queue.remove(place);
        let fate = if state.dead { Fate::RequestLost } else { fate };
        match job {
            Job::Write(run) => {
                let outcome = match fate {
                    Fate::RequestLost => Ok(()),
                    _ => state.write(run.first, &run.entries),
                };
                drop(state);
                let lost = WriteError::Unavailable("no answer".into());
                run.ticket.complete(if fate == Fate::Done { outcome } else { Err(lost) });
            }
            Job::Fence(k, answer) => {
                if fate != Fate::RequestLost {
                    state.registers.fence();
                }
                if fate == Fate::Done {
                    let _ = answer.send(state.registers.tail(k));
                }
            }
        }
    }

    fn enqueue(&self, job: Job) {
        self.state.lock().queue.push(job);
        if let Some(wake) = &self.wake {
            let _ = wake.send(());
        }
    }

    fn reading<T>(&self, f: impl FnOnce(&State) -> T) -> Result<T, ReadError> {
        let state = self.state.lock();
        match state.dead {
            true => Err(ReadError::Unavailable("dead leaf".into())),
            false => Ok(f(&state)),
        }
    }
}

impl State {
    fn write(&mut self, first: Address, entries: &[Entry]) -> Result<(), WriteError> {
        let at = |i: usize| first.0 + i as u64;
        // All or nothing, so that a refused run leaves nothing behind.
        for (i, entry) in entries.iter().enumerate() {
            match self.registers.write_meets(at(i)) {
                Slot::Free => {}
                Slot::Sealed => return Err(WriteError::Sealed),
                Slot::Trimmed => return Err(WriteError::Trimmed(Address(at(i)))),
                Slot::Written if self.holds_other(at(i), entry) => {
                    return Err(WriteError::Conflict(Address(at(i))));
                }
                Slot::Written => {}
            }
        }
        for (i, entry) in entries.iter().enumerate() {
            self.registers.set(at(i));
            self.entries.insert(at(i), entry.clone());
        }
        Ok(())
    }

    fn holds_other(&self, at: u64, entry: &Entry) -> bool {
        self.entries.get(&at).is_some_and(|held| held.head != entry.head || held.body != entry.body)
    }

    fn repair(&mut self, at: Address, entry: Entry, below: Address) -> Result<(), WriteError> {
        if self.dead || !self.registers.is_fenced() || at >= below {
            return Err(WriteError::Unavailable("repairs go to fenced leaves, below the tail".into()));
        }
        match self.registers.holds(at.0) {
            Slot::Trimmed => Err(WriteError::Trimmed(at)),
            Slot::Written if self.holds_other(at.0, &entry) => Err(WriteError::Conflict(at)),
            _ => {
                self.registers.set(at.0);
                self.entries.insert(at.0, entry);
                Ok(())
            }
        }
    }

    /// Entries that are not trimmed.
    fn live(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.range(self.registers.trimmed()..).map(|(_, e)| e)
    }
}

fn stored(entry: &Entry) -> Stored {
    let payload = Payload::Memory { head: entry.payload_head(), body: entry.body.clone() };
    Stored { header: entry.header, payload }
}

impl LogDrive for Leaf {
    fn admit(&self, _bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        let state = self.state.lock();
        match purpose {
            _ if state.dead => Err(AdmitError::Dead("dead leaf".into())),
            Purpose::Records if state.full => Err(AdmitError::Full("full leaf".into())),
            _ => Ok(()),
        }
    }

    fn submit(&self, run: Run) {
        assert!(!self.state.lock().full, "a leaf without room takes no records");
        self.enqueue(Job::Write(Box::new(run)));
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        Box::pin(async move {
            self.reading(|state| match state.entries.get(&address.0) {
                _ if address.0 < state.registers.trimmed() => Read::Trimmed,
                Some(entry) => Read::Value(stored(entry)),
                None => Read::Hole,
            })
        })
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        self.reading(|state| list(state, query)).ok()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move { self.reading(|state| list(state, &query)) })
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            self.reading(|state| {
                let wanted = |e: &&Entry| query.from <= e.header.address && e.header.address < query.below;
                state.live().filter(wanted).take(query.max_entries).map(stored).collect()
            })
        })
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        Box::pin(async move {
            self.reading(|state| {
                let headers = state.live().rev().map(|e| e.header);
                let mut found = headers
                    .filter(|h| h.kind == kind && h.flags & flags == flags && h.address < below)
                    .map(|h| h.address);
                found.next()
            })
        })
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        Box::pin(async move { self.reading(|state| state.registers.tail(k)) })
    }

    fn fence(&self, k: u32, _by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        let (answer, answered) = oneshot::channel();
        self.enqueue(Job::Fence(k, answer));
        Box::pin(async move { answered.await.map_err(|_| FenceError::Unavailable("no answer".into())) })
    }

    fn repair(
        &self,
        address: Address,
        entry: Entry,
        below: Address,
        _by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move { self.state.lock().repair(address, entry, below) })
    }

    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            self.state.lock().registers.trim(below.0);
            Ok(())
        })
    }

    fn note_committed(&self, _committed: Address) {}

    fn note_log_starts(&self, _starts: &[(Partition, Offset)]) {}

    fn caps(&self) -> Caps {
        Caps { fence: true, durable: false }
    }
}

fn list(state: &State, query: &ListQuery) -> Vec<Stored> {
    let mut bytes = 0;
    let mut found: Vec<Stored> = Vec::new();
    for entry in state.live() {
        let header = entry.header;
        let wanted = header.partition == query.partition
            && header.last_offset() >= query.from_offset
            && header.address < query.below
            && query.min_timestamp.is_none_or(|t| header.max_timestamp >= t);
        if !wanted {
            continue;
        }
        if found.len() >= query.max_entries || (bytes >= query.max_bytes && !found.is_empty()) {
            break;
        }
        bytes += header.payload_len as usize;
        found.push(stored(entry));
    }
    found
}
