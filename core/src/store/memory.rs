//! The memory store: write-once registers that live as long as the process. Bounded by trims and discards.
//!
//! Same semantics as the disk store, its own completion thread: nothing is completed from inside `submit`.

use crate::codec::entry::{ENTRY_HEADER_LEN, Entry, EntryKind};
use crate::drive::memory::MemoryDrive;
use crate::drive::{FenceError, ListQuery, Read, Run, ScanQuery, Stored, TailDesc, Ticket, WriteError};
use crate::store::registers::{Registers, Slot};
use crate::store::tail::stored;
use crate::types::{Address, LeafId, LogletId, Offset, Partition};
use dashmap::DashMap;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

type Outcome = (Ticket, Result<(), WriteError>);

/// All memory leaves of a node.
pub struct MemoryStore {
    leaves: DashMap<LeafId, Arc<MemoryLeaf>>,
    /// Its thread ends when the store and all its drives are gone. Bounded by the windows of who submits.
    done: Sender<Outcome>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryStore({} leaves)", self.leaves.len())
    }
}

impl MemoryStore {
    /// An empty store.
    ///
    /// Errors: no thread can be started.
    pub fn new() -> std::io::Result<Arc<MemoryStore>> {
        let (done, outcomes) = channel::<Outcome>();
        std::thread::Builder::new().name("memory-drive".into()).spawn(move || {
            while let Ok((ticket, outcome)) = outcomes.recv() {
                ticket.complete(outcome);
            }
        })?;
        Ok(Arc::new(MemoryStore { leaves: DashMap::new(), done }))
    }

    /// The drive of one leaf.
    pub fn drive(&self, id: LeafId) -> Arc<MemoryDrive> {
        let leaf = self.leaves.entry(id).or_insert_with(|| Arc::new(MemoryLeaf::default())).clone();
        Arc::new(MemoryDrive::new(leaf, self.done.clone()))
    }

    /// Deletes all leaves of a loglet. They stay sealed for who still holds a drive.
    pub fn discard(&self, loglet: LogletId) {
        let of_loglet = |id: &LeafId| id.loglet == loglet;
        for leaf in self.leaves.iter().filter(|l| of_loglet(l.key())) {
            leaf.value().state.lock().discard();
        }
        self.leaves.retain(|id, _| !of_loglet(id));
    }
}

/// One leaf in memory.
#[derive(Default)]
pub(crate) struct MemoryLeaf {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    registers: Registers,
    entries: BTreeMap<u64, Entry>,
    /// Addresses by partition, in order.
    partitions: HashMap<Partition, Vec<u64>>,
    discarded: bool,
}

impl State {
    fn discard(&mut self) {
        self.registers.fence();
        self.entries.clear();
        self.partitions.clear();
        self.discarded = true;
    }

    fn put(&mut self, address: u64, entry: Entry) {
        let list = self.partitions.entry(entry.header.partition).or_default();
        let at = list.partition_point(|a| *a < address);
        list.insert(at, address);
        self.registers.set(address);
        self.entries.insert(address, entry);
    }

    fn same(&self, address: Address, entry: &Entry) -> Result<(), WriteError> {
        let header = |e: &Entry| e.head.get(..ENTRY_HEADER_LEN).map(<[u8]>::to_vec);
        match self.entries.get(&address.0) {
            Some(standing) if header(standing) == header(entry) => Ok(()),
            _ => Err(WriteError::Conflict(address)),
        }
    }

    fn write(&mut self, address: Address, entry: Entry) -> Result<(), WriteError> {
        match self.registers.write_meets(address.0) {
            Slot::Sealed => Err(WriteError::Sealed),
            Slot::Trimmed => Err(WriteError::Trimmed(address)),
            Slot::Written => self.same(address, &entry),
            Slot::Free => {
                self.put(address.0, entry);
                Ok(())
            }
        }
    }
}

impl MemoryLeaf {
    pub(crate) fn submit(&self, run: Run, done: &Sender<Outcome>) {
        let mut state = self.state.lock();
        let mut outcome = Ok(());
        for (i, entry) in run.entries.into_iter().enumerate() {
            outcome = state.write(run.first.plus(i as u64), entry);
            if outcome.is_err() {
                break;
            }
        }
        // Sent under the lock, so that completions of a leaf keep the order of its writes. The receiver lives as long
        // as any sender.
        if done.send((run.ticket, outcome)).is_err() {
            tracing::error!("the memory drive's thread ended");
        }
    }

    pub(crate) fn read(&self, address: Address) -> Read {
        let state = self.state.lock();
        if state.discarded || address.0 < state.registers.trimmed() {
            return Read::Trimmed;
        }
        state.entries.get(&address.0).map_or(Read::Hole, |e| Read::Value(stored(e)))
    }

    pub(crate) fn list(&self, query: &ListQuery) -> Vec<Stored> {
        let state = self.state.lock();
        let Some(list) = state.partitions.get(&query.partition) else { return Vec::new() };
        let last_offset = |a: &u64| state.entries.get(a).map_or(Offset::MIN, |e| e.header.last_offset());
        let from = list.partition_point(|a| last_offset(a) < query.from_offset);
        let mut found = Vec::new();
        let mut bytes = 0;
        for entry in list.get(from..).unwrap_or_default().iter().filter_map(|a| state.entries.get(a)) {
            let full = found.len() >= query.max_entries || (bytes >= query.max_bytes && !found.is_empty());
            if full || entry.header.address >= query.below {
                break;
            }
            if query.min_timestamp.is_none_or(|t| entry.header.max_timestamp >= t) {
                bytes += entry.header.payload_len as usize;
                found.push(stored(entry));
            }
        }
        found
    }

    pub(crate) fn scan(&self, query: &ScanQuery) -> Vec<Stored> {
        let state = self.state.lock();
        let from_here = state.entries.values().skip_while(|e| e.header.address < query.from);
        let wanted = from_here.take_while(|e| e.header.address < query.below).take(query.max_entries);
        wanted.map(stored).collect()
    }

    pub(crate) fn last_of(&self, kind: EntryKind, flags: u8, below: Address) -> Option<Address> {
        let state = self.state.lock();
        let mut newest = state.entries.values().rev().map(|e| &e.header);
        newest.find(|h| h.address < below && h.kind == kind && h.flags & flags == flags).map(|h| h.address)
    }

    pub(crate) fn tail(&self, k: u32) -> TailDesc {
        self.state.lock().registers.tail(k)
    }

    pub(crate) fn fence(&self, k: u32) -> Result<TailDesc, FenceError> {
        let mut state = self.state.lock();
        if state.discarded {
            return Err(FenceError::Unavailable("segment discarded".into()));
        }
        state.registers.fence();
        Ok(state.registers.tail(k))
    }

    pub(crate) fn repair(&self, address: Address, entry: Entry) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        if !state.registers.is_fenced() {
            return Err(WriteError::Unavailable("not fenced: fence the segment before a repair".into()));
        }
        match state.registers.holds(address.0) {
            Slot::Free => state.put(address.0, entry),
            Slot::Written => state.same(address, &entry)?,
            Slot::Trimmed | Slot::Sealed => {}
        }
        Ok(())
    }

    pub(crate) fn trim(&self, below: Address) {
        let mut state = self.state.lock();
        state.registers.trim(below.0);
        state.entries = state.entries.split_off(&below.0);
        state.partitions.retain(|_, list| {
            let gone = list.partition_point(|a| *a < below.0);
            list.drain(..gone);
            !list.is_empty()
        });
    }
}
