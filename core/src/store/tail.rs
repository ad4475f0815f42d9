//! Recent entries in memory, within a budget of the whole node: the oldest of all leaves go first.

use crate::codec::entry::Entry;
use crate::drive::{ListQuery, Payload, Stored};
use crate::types::{Offset, Partition};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Book-keeping bytes per entry that count against the budget beside its own.
const ENTRY_OVERHEAD: usize = 160;

/// Forgets a leaf's oldest entries.
pub(crate) trait Evict: Send + Sync {
    /// Drops entries numbered below `sequence`; answers the bytes freed.
    fn evict_below(&self, sequence: u64) -> usize;
}

struct Recent {
    leaf: Weak<dyn Evict>,
    below: u64,
}

/// The node's budget for durable entries kept in memory, shared by all its disks. Entries that are not yet durable
/// stand outside of it.
pub struct TailBudget {
    limit: usize,
    used: AtomicUsize,
    recent: Mutex<VecDeque<Recent>>,
}

impl std::fmt::Debug for TailBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TailBudget({} of {} bytes)", self.used(), self.limit)
    }
}

impl TailBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Arc<TailBudget> {
        Arc::new(TailBudget { limit: bytes, used: AtomicUsize::new(0), recent: Mutex::default() })
    }

    /// Bytes held at the moment.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of entries of `leaf` numbered below `below`. Not to be called with a leaf's lock held.
    pub(crate) fn add(&self, leaf: Weak<dyn Evict>, below: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        // Every live item stands for at least one entry; more items than entries fit are left over from trims.
        let items_max = self.limit / ENTRY_OVERHEAD + 1;
        let mut items = {
            let mut recent = self.recent.lock();
            recent.push_back(Recent { leaf, below });
            recent.len()
        };
        while self.used() > self.limit || items > items_max {
            items = items.saturating_sub(1);
            let Some(oldest) = self.recent.lock().pop_front() else { return };
            if let Some(leaf) = oldest.leaf.upgrade() {
                self.release(leaf.evict_below(oldest.below));
            }
        }
    }

    /// Gives back bytes of entries dropped otherwise (trim, discard).
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The recent entries of one leaf, in address order.
///
/// Invariant: what is held is a suffix of all entries published, without gaps but unwritten addresses; an entry that is
/// published below the end empties it.
#[derive(Debug, Default)]
pub(crate) struct LeafTail {
    first: u64,
    entries: VecDeque<(u64, Entry)>,
    partitions: HashMap<Partition, VecDeque<u64>>,
    bytes: usize,
}

/// An entry as a reader gets it from memory.
pub(crate) fn stored(entry: &Entry) -> Stored {
    Stored {
        header: entry.header,
        payload: Payload::Memory { head: entry.payload_head(), body: entry.body.clone() },
    }
}

impl LeafTail {
    /// Adds an entry above all that are held; answers the bytes it counts.
    pub(crate) fn push(&mut self, address: u64, entry: Entry) -> usize {
        let bytes = entry.encoded_len() + ENTRY_OVERHEAD;
        self.bytes += bytes;
        let sequence = self.next();
        self.partitions.entry(entry.header.partition).or_default().push_back(sequence);
        self.entries.push_back((address, entry));
        bytes
    }

    /// Number that the next entry gets.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Drops entries numbered below `sequence`; answers the bytes freed.
    pub(crate) fn evict_below(&mut self, sequence: u64) -> usize {
        let before = self.bytes;
        while self.first < sequence {
            let Some((_, entry)) = self.entries.pop_front() else { break };
            self.bytes -= entry.encoded_len() + ENTRY_OVERHEAD;
            if let Some(list) = self.partitions.get_mut(&entry.header.partition) {
                list.pop_front();
                if list.is_empty() {
                    self.partitions.remove(&entry.header.partition);
                }
            }
            self.first += 1;
        }
        if self.entries.is_empty() {
            self.entries.shrink_to(16);
            self.partitions.shrink_to(16);
        }
        before - self.bytes
    }

    /// Drops entries below an address; answers the bytes freed.
    pub(crate) fn trim(&mut self, below: u64) -> usize {
        let count = self.entries.partition_point(|(a, _)| *a < below);
        self.evict_below(self.first + count as u64)
    }

    /// Drops all; answers the bytes freed.
    pub(crate) fn clear(&mut self) -> usize {
        self.evict_below(self.next())
    }

    pub(crate) fn get(&self, address: u64) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&address, |(a, _)| *a).ok()?;
        self.entries.get(at).map(|(_, e)| e)
    }

    fn numbered(&self, sequence: u64) -> Option<&Entry> {
        let at = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.entries.get(at).map(|(_, e)| e)
    }

    /// The answer to `query`, if no older entry can belong to it.
    pub(crate) fn list(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        let held = self.partitions.get(&query.partition)?;
        let last_offset = |n: &u64| self.numbered(*n).map_or(Offset::MIN, |e| e.header.last_offset());
        let oldest = self.numbered(*held.front()?)?;
        if query.from_offset < oldest.header.base_offset {
            return None;
        }
        let from = held.partition_point(|n| last_offset(n) < query.from_offset);
        let mut found = Vec::new();
        let mut bytes = 0;
        for entry in held.range(from..).filter_map(|n| self.numbered(*n)) {
            let full = found.len() >= query.max_entries || (bytes >= query.max_bytes && !found.is_empty());
            if entry.header.address >= query.below || full {
                break;
            }
            if query.min_timestamp.is_some_and(|t| entry.header.max_timestamp < t) {
                continue;
            }
            bytes += entry.header.payload_len as usize;
            found.push(stored(entry));
        }
        Some(found)
    }
}
