//! What readers see of one leaf on a disk: registers, recent entries, and where all entries lie. Published by the
//! journal thread once a group is durable, so that what can be read is durable.

use crate::codec::batch::CRC_FROM;
use crate::codec::entry::{ENTRY_HEADER_LEN, EntryHeader, EntryKind, check};
use crate::codec::{batch::BatchHead, crc32c};
use crate::drive::{ListQuery, Payload, Read, ReadError, ScanQuery, Stored};
use crate::store::extent::Extent;
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::registers::{Registers, Slot};
use crate::store::tail::{Evict, LeafTail, stored};
use crate::types::{Address, LeafId, Offset, Partition};
use bytes::Bytes;
use parking_lot::RwLock;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A leaf, shared between the journal thread and its readers.
pub(crate) struct Leaf {
    pub(crate) id: LeafId,
    pub(crate) state: RwLock<LeafState>,
}

/// See the module head.
#[derive(Default)]
pub(crate) struct LeafState {
    pub(crate) registers: Registers,
    pub(crate) tail: LeafTail,
    /// By extent number, ascending.
    pub(crate) extents: Vec<(Arc<Extent>, LeafIndex)>,
    pub(crate) discarded: bool,
    /// Why entries may be missing: damage that names no address.
    pub(crate) suspect: Option<String>,
    /// Addresses whose entries are there and unreadable.
    pub(crate) damaged: BTreeMap<u64, String>,
    pub(crate) log_starts: HashMap<Partition, Offset>,
}

impl Evict for Leaf {
    fn evict_below(&self, sequence: u64) -> usize {
        self.state.write().tail.evict_below(sequence)
    }
}

/// Where an entry of an answer comes from.
pub(crate) enum Found {
    Memory(Stored),
    File(Arc<Extent>, IndexEntry),
}

impl Found {
    /// The entry; reads and checks its bytes when they lie in a file (blocking).
    pub(crate) fn load(self) -> Result<Stored, ReadError> {
        match self {
            Found::Memory(stored) => Ok(stored),
            Found::File(extent, entry) => load(&extent, &entry),
        }
    }
}

impl Leaf {
    pub(crate) fn new(id: LeafId) -> Leaf {
        Leaf { id, state: RwLock::default() }
    }

    /// What stands at an address: an answer, or where to load it from.
    pub(crate) fn find(&self, address: Address) -> Result<Result<Read, Found>, ReadError> {
        let state = self.state.read();
        if state.discarded || address.0 < state.registers.trimmed() {
            return Ok(Ok(Read::Trimmed));
        }
        if let Some(what) = state.damaged.get(&address.0) {
            return Err(ReadError::Damaged(format!("segment {} address {address}: {what}", self.id)));
        }
        if let Some(entry) = state.tail.get(address.0) {
            return Ok(Ok(Read::Value(stored(entry))));
        }
        for (extent, index) in state.extents.iter().rev() {
            if let Some(entry) = index.get(address.0) {
                return Ok(Err(Found::File(extent.clone(), entry)));
            }
        }
        if let Some(why) = &state.suspect {
            return Err(ReadError::Damaged(format!("segment {} address {address}: {why}", self.id)));
        }
        match state.registers.holds(address.0) {
            Slot::Free => Ok(Ok(Read::Hole)),
            _ => Ok(Ok(Read::Gone { next: state.next_held(address.0) })),
        }
    }

    /// Plans the answer to a list; see `LogDrive::list`.
    pub(crate) fn plan_list(&self, query: &ListQuery) -> Result<Vec<Found>, ReadError> {
        let state = self.state.read();
        state.refuse_if_incomplete(self.id, query.below)?;
        let mut cursors: Vec<_> = state
            .extents
            .iter()
            .map(|(extent, index)| (extent, index.at_offset(query.partition, query.from_offset)))
            .collect();
        let mut heap = BinaryHeap::new();
        for (at, (_, entries)) in cursors.iter_mut().enumerate() {
            if let Some(e) = entries.next() {
                heap.push(Reverse((e.address, at, Item(e))));
            }
        }
        let damaged = state.first_damaged(0);
        let mut found = Vec::new();
        let mut bytes = 0usize;
        while let Some(Reverse((_, at, Item(entry)))) = heap.pop() {
            if found.len() >= query.max_entries || (bytes >= query.max_bytes && !found.is_empty()) {
                break;
            }
            let Some((extent, entries)) = cursors.get_mut(at) else { break };
            if let Some(e) = entries.next() {
                heap.push(Reverse((e.address, at, Item(e))));
            }
            // The damaged entry may belong to any partition: the answer ends before it.
            if damaged.is_some_and(|(a, _)| *a < entry.address) {
                break;
            }
            let wanted = entry.loglet_address < query.below.0
                && entry.address >= state.registers.trimmed()
                && query.min_timestamp.is_none_or(|t| entry.max_timestamp >= t);
            if wanted {
                bytes += entry.payload_len as usize;
                found.push(state.locate(extent, entry));
            }
        }
        match damaged {
            Some((a, what)) if found.is_empty() && *a < query.below.0 => {
                Err(ReadError::Damaged(format!("segment {} address {a}: {what}", self.id)))
            }
            _ => Ok(found),
        }
    }

    /// Plans the answer to a scan; see `LogDrive::scan`.
    pub(crate) fn plan_scan(&self, query: &ScanQuery) -> Result<Vec<Found>, ReadError> {
        let state = self.state.read();
        state.refuse_if_incomplete(self.id, query.below)?;
        let mut found = Vec::new();
        for (extent, index) in &state.extents {
            let entries = index.at_loglet_address(query.from.0).iter();
            found.extend(
                entries
                    .filter(|e| e.address >= state.registers.trimmed())
                    .take_while(|e| e.loglet_address < query.below.0)
                    .take(query.max_entries)
                    .map(|e| (extent, *e)),
            );
        }
        found.sort_by_key(|(_, e)| e.address);
        found.truncate(query.max_entries);
        if let Some((a, what)) = state.first_damaged(query.from.0) {
            found.retain(|(_, e)| e.address < *a);
            if found.is_empty() && *a < query.below.0 {
                return Err(ReadError::Damaged(format!("segment {} address {a}: {what}", self.id)));
            }
        }
        Ok(found.into_iter().map(|(extent, e)| state.locate(extent, e)).collect())
    }

    /// See `LogDrive::last_of`.
    pub(crate) fn last_of(&self, kind: EntryKind, flags: u8, below: Address) -> Option<Address> {
        let state = self.state.read();
        let newest = |index: &LeafIndex| {
            let mut entries = index.entries().iter().rev();
            entries
                .find(|e| {
                    e.loglet_address < below.0
                        && e.kind == kind
                        && e.flags & flags == flags
                        && e.address >= state.registers.trimmed()
                })
                .map(|e| e.loglet_address)
        };
        state.extents.iter().filter_map(|(_, index)| newest(index)).max().map(Address)
    }
}

/// Carried beside the key of a heap, not compared.
struct Item(IndexEntry);
impl PartialEq for Item {
    fn eq(&self, _: &Item) -> bool {
        true
    }
}
impl Eq for Item {}
impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Item) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Item {
    fn cmp(&self, _: &Item) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl LeafState {
    fn locate(&self, extent: &Arc<Extent>, entry: IndexEntry) -> Found {
        match self.tail.get(entry.address) {
            Some(e) => Found::Memory(stored(e)),
            None => Found::File(extent.clone(), entry),
        }
    }

    fn first_damaged(&self, from: u64) -> Option<(&u64, &String)> {
        self.damaged.range(from.max(self.registers.trimmed())..).next()
    }

    /// The next address above `address` that holds an entry, else the end.
    fn next_held(&self, address: u64) -> Address {
        let above = |index: &LeafIndex| {
            let at = index.entries().partition_point(|e| e.address <= address);
            index.entries().get(at).map(|e| e.address)
        };
        Address(self.extents.iter().filter_map(|(_, i)| above(i)).min().unwrap_or(self.registers.end()))
    }

    /// A leaf with damage of unknown address gives no answer that spans a missing address.
    fn refuse_if_incomplete(&self, id: LeafId, below: Address) -> Result<(), ReadError> {
        match &self.suspect {
            Some(why) if !self.registers.is_contiguous() || below.0 > self.registers.end() => {
                Err(ReadError::Damaged(format!("segment {id}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// The index of this leaf in `extent`, made when there is none.
    pub(crate) fn index_in(&mut self, extent: &Arc<Extent>) -> &mut LeafIndex {
        let at = self.extents.partition_point(|(e, _)| e.number < extent.number);
        if self.extents.get(at).is_none_or(|(e, _)| e.number != extent.number) {
            self.extents.insert(at, (extent.clone(), LeafIndex::default()));
        }
        &mut self.extents[at].1
    }
}

/// Reads an entry from its file and checks it whole.
///
/// Errors: `Damaged` names file, segment and address; `Unavailable` when the file cannot be read.
pub(crate) fn load(extent: &Arc<Extent>, entry: &IndexEntry) -> Result<Stored, ReadError> {
    let mut bytes = vec![0; ENTRY_HEADER_LEN + entry.payload_len as usize];
    extent.file.read_exact_at(&mut bytes, u64::from(entry.position)).map_err(|e| {
        ReadError::Unavailable(format!("{} position {}: {e}", extent.path.display(), entry.position))
    })?;
    let header = verify_entry(&bytes)
        .and_then(|h| match (h.address.0, h.payload_len) == (entry.loglet_address, entry.payload_len) {
            true => Ok(h),
            false => Err("another entry stands there".to_owned()),
        })
        .map_err(|what| {
            ReadError::Damaged(format!(
                "{} position {}, segment address {}: {what}",
                extent.path.display(),
                entry.position,
                entry.loglet_address
            ))
        })?;
    let bytes = Bytes::from(bytes).slice(ENTRY_HEADER_LEN..);
    Ok(Stored { header, payload: Payload::Memory { head: bytes, body: Bytes::new() } })
}

/// Checks an encoded entry: header, its checksum, and of a batch the batch's own.
///
/// Errors: what is wrong, for good.
pub(crate) fn verify_entry(bytes: &[u8]) -> Result<EntryHeader, String> {
    let header = EntryHeader::decode(bytes).map_err(|e| e.to_string())?;
    let payload = bytes.get(ENTRY_HEADER_LEN..).unwrap_or_default();
    if payload.len() != header.payload_len as usize {
        return Err(format!("payload of {} bytes, expected {}", payload.len(), header.payload_len));
    }
    let covered = payload.get(..header.covered_len()).unwrap_or_default();
    let Some(encoded) = bytes.first_chunk::<ENTRY_HEADER_LEN>() else {
        return Err("entry cut".to_owned());
    };
    check(encoded, covered).map_err(|e| e.to_string())?;
    if header.kind == EntryKind::Data {
        let head = BatchHead::parse(payload).ok_or("batch shorter than its head")?;
        let got = crc32c(&[payload.get(CRC_FROM..).unwrap_or_default()]);
        if got != head.crc {
            return Err(format!("batch checksum differs: got {got:#010x}, expected {:#010x}", head.crc));
        }
    }
    Ok(header)
}
