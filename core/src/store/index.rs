//! Where the entries of one leaf lie in one extent. Pure.

use crate::codec::entry::{EntryHeader, EntryKind};
use crate::types::{Address, Offset, Partition};
use std::collections::BTreeMap;

/// Where an entry lies, and what finding it needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// Drive-local.
    pub(crate) address: u64,
    /// The loglet's, as in its header.
    pub(crate) loglet_address: u64,
    pub(crate) base_offset: Offset,
    pub(crate) max_timestamp: i64,
    pub(crate) last_offset_delta: i32,
    pub(crate) partition: Partition,
    /// Position in the file: of the entry header in an extent, of the payload in a chunk.
    pub(crate) position: u32,
    pub(crate) payload_len: u32,
    pub(crate) kind: EntryKind,
    pub(crate) flags: u8,
    /// Its entry row in a directory, when it was read from one.
    pub(crate) row: u32,
}

impl IndexEntry {
    pub(crate) fn new(header: &EntryHeader, address: Address, position: u32) -> IndexEntry {
        IndexEntry {
            address: address.0,
            loglet_address: header.address.0,
            base_offset: header.base_offset,
            max_timestamp: header.max_timestamp,
            last_offset_delta: header.last_offset_delta,
            partition: header.partition,
            position,
            payload_len: header.payload_len,
            kind: header.kind,
            flags: header.flags,
            row: 0,
        }
    }

    pub(crate) fn last_offset(&self) -> Offset {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }
}

/// The entries of one leaf in one extent, by address and by partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeafIndex {
    /// Sorted by address.
    entries: Vec<IndexEntry>,
    /// Addresses of each partition's entries, sorted; a partition's offsets rise with the address.
    partitions: BTreeMap<Partition, Vec<u64>>,
}

fn insert_sorted<T: Copy>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> u64) {
    let k = key(&item);
    if list.last().is_none_or(|last| key(last) < k) {
        list.push(item);
        return;
    }
    let at = list.partition_point(|x| key(x) < k);
    if list.get(at).is_none_or(|x| key(x) != k) {
        list.insert(at, item);
    }
}

impl LeafIndex {
    /// Adds an entry; one that is there already stays.
    pub(crate) fn insert(&mut self, entry: IndexEntry) {
        insert_sorted(&mut self.entries, entry, |e| e.address);
        insert_sorted(self.partitions.entry(entry.partition).or_default(), entry.address, |a| *a);
    }

    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Partitions in order, each with the addresses of its entries in order.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = (Partition, &[u64])> + '_ {
        self.partitions.iter().map(|(p, a)| (*p, a.as_slice()))
    }

    pub(crate) fn get(&self, address: u64) -> Option<IndexEntry> {
        let at = self.entries.binary_search_by_key(&address, |e| e.address).ok()?;
        self.entries.get(at).copied()
    }

    /// Entries of a partition whose last offset is at or above `from`, in order.
    pub(crate) fn at_offset(
        &self,
        partition: Partition,
        from: Offset,
    ) -> impl Iterator<Item = IndexEntry> + '_ {
        let addresses = self.partitions.get(&partition).map_or(&[][..], |v| v.as_slice());
        let at = addresses.partition_point(|a| self.get(*a).is_some_and(|e| e.last_offset() < from));
        addresses.get(at..).unwrap_or_default().iter().filter_map(|a| self.get(*a))
    }

    /// Entries whose loglet address is at or above `from`, in order.
    pub(crate) fn at_loglet_address(&self, from: u64) -> &[IndexEntry] {
        let at = self.entries.partition_point(|e| e.loglet_address < from);
        self.entries.get(at..).unwrap_or_default()
    }
}
