//! What readers see of one leaf on a disk: registers, recent entries, and where all entries lie. Published by the
//! journal thread once a group is durable, so that what can be read is durable.

use crate::codec::batch::{BATCH_HEAD_LEN, CRC_FROM};
use crate::codec::entry::{ENTRY_HEADER_LEN, EntryHeader, EntryKind, check};
use crate::codec::{batch::BatchHead, crc32c};
use crate::drive::{FileSlice, Payload, ReadError, Stored};
use crate::store::directory::{Directories, Summary};
use crate::store::extent::Extent;
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::registers::Registers;
use crate::store::tail::{Evict, LeafTail};
use crate::types::{LeafId, Offset, Partition};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Payloads from this size on are handed out as file slices, once they are checked.
const SLICE_BYTES_MIN: u32 = 8 << 10;

/// Most unreadable entries of a leaf that are remembered.
const UNREADABLE_MAX: usize = 1000;

/// A leaf, shared between the journal thread and its readers.
pub(crate) struct Leaf {
    pub(crate) id: LeafId,
    pub(crate) state: RwLock<LeafState>,
    /// Where reading of a partition stopped: entries from that offset on lie in that extent or later ones.
    pub(crate) hints: Mutex<HashMap<Partition, (Offset, u64)>>,
}

/// Where the entries of a leaf in one extent are found.
pub(crate) enum Index {
    /// In memory: the extent has no directory yet.
    Memory(Arc<LeafIndex>),
    /// In the extent's directory.
    Disk(Summary),
}

/// See the module head.
#[derive(Default)]
pub(crate) struct LeafState {
    pub(crate) registers: Registers,
    pub(crate) tail: LeafTail,
    /// By extent number, ascending.
    pub(crate) extents: Vec<(Arc<Extent>, Index)>,
    pub(crate) discarded: bool,
    /// Why entries may be missing: damage that names no address.
    pub(crate) suspect: Option<String>,
    /// Written addresses, as first and one above the last, whose entries are not found: a lost chunk may have held them.
    pub(crate) lost: BTreeMap<u64, u64>,
    /// Addresses whose entries are there and unreadable.
    pub(crate) damaged: BTreeMap<u64, String>,
    /// What was found damaged so far, by address, at the start or by a read; no answer depends on it.
    pub(crate) unreadable: BTreeMap<u64, String>,
    pub(crate) log_starts: HashMap<Partition, Offset>,
}

impl Evict for Leaf {
    fn evict_below(&self, sequence: u64) -> usize {
        self.state.write().tail.evict_below(sequence)
    }
}

impl Leaf {
    pub(crate) fn new(id: LeafId) -> Leaf {
        Leaf { id, state: RwLock::default(), hints: Mutex::default() }
    }
}

impl LeafState {
    /// The first address at or above `from` whose entry is there and unreadable, or may have been there and is lost.
    pub(crate) fn first_bad(&self, from: u64) -> Option<(u64, String)> {
        let from = from.max(self.registers.trimmed());
        let damaged = self.damaged.range(from..).next().map(|(a, what)| (*a, what.clone()));
        let why = self.suspect.as_ref();
        let gap = self.lost.iter().find(|(_, end)| **end > from).map(|(start, _)| from.max(*start));
        let lost =
            why.map(|why| (gap.into_iter().fold(self.registers.first_free(from), u64::min), why.clone()));
        damaged.into_iter().chain(lost).min_by_key(|(a, _)| *a)
    }

    /// Remembers what cannot be read, for the operator.
    pub(crate) fn note_unreadable(&mut self, address: u64, what: String) {
        if self.unreadable.len() < UNREADABLE_MAX {
            self.unreadable.insert(address, what);
        }
    }

    /// The index of this leaf in `extent`, made when there is none.
    pub(crate) fn index_in(&mut self, id: LeafId, extent: &Arc<Extent>) -> &mut LeafIndex {
        let at = self.extents.partition_point(|(e, _)| e.number < extent.number);
        let there = self
            .extents
            .get(at)
            .is_some_and(|(e, i)| e.number == extent.number && matches!(i, Index::Memory(_)));
        if !there {
            extent.leaves.lock().insert(id);
            self.extents.insert(at, (extent.clone(), Index::Memory(Arc::default())));
        }
        match &mut self.extents[at].1 {
            Index::Memory(index) => Arc::make_mut(index),
            Index::Disk(_) => unreachable!("an extent with a directory takes no entries"),
        }
    }
}

/// Reads the header of a record from its file and checks it; its payload is left out.
///
/// Errors: as for [`load`].
pub(crate) fn load_head(
    extent: &Arc<Extent>,
    entry: &IndexEntry,
    directories: &Directories,
) -> Result<Stored, ReadError> {
    let covered = BATCH_HEAD_LEN.min(entry.payload_len as usize);
    let mut bytes = vec![0; ENTRY_HEADER_LEN + covered];
    read_encoded(extent, entry, directories, &mut bytes)?;
    let header = EntryHeader::decode(&bytes).map_err(|e| damaged(extent, entry, e.to_string()))?;
    let (Some(encoded), Some(covered)) = (bytes.first_chunk(), bytes.get(ENTRY_HEADER_LEN..)) else {
        return Err(damaged(extent, entry, "entry cut".to_owned()));
    };
    check(encoded, covered).map_err(|e| damaged(extent, entry, e.to_string()))?;
    let header = expected(extent, entry, header)?;
    Ok(Stored { header, payload: Payload::Memory { head: Bytes::new(), body: Bytes::new() } })
}

fn place(extent: &Extent, entry: &IndexEntry) -> String {
    format!("{} position {}", extent.path.display(), entry.position)
}

fn damaged(extent: &Extent, entry: &IndexEntry, what: String) -> ReadError {
    let (place, address) = (place(extent, entry), entry.loglet_address);
    ReadError::Damaged(format!("{place}, segment address {address}: {what}"))
}

fn expected(extent: &Extent, entry: &IndexEntry, header: EntryHeader) -> Result<EntryHeader, ReadError> {
    if (header.address.0, header.payload_len) != (entry.loglet_address, entry.payload_len) {
        return Err(damaged(extent, entry, "another entry stands there".to_owned()));
    }
    Ok(header)
}

/// Reads an entry from its file and checks it whole.
///
/// Errors: `Damaged` names file, segment and address; `Unavailable` when the file cannot be read.
pub(crate) fn load(
    extent: &Arc<Extent>,
    entry: &IndexEntry,
    directories: &Directories,
) -> Result<Stored, ReadError> {
    let checked_before = entry.payload_len >= SLICE_BYTES_MIN && extent.is_checked(entry.position);
    let wanted = if checked_before { 0 } else { entry.payload_len as usize };
    let mut bytes = vec![0; ENTRY_HEADER_LEN + wanted];
    let payload_at = read_encoded(extent, entry, directories, &mut bytes)?;
    let header = match checked_before {
        true => EntryHeader::decode(&bytes).map_err(|e| damaged(extent, entry, e.to_string()))?,
        false => verify_entry(&bytes).map_err(|what| damaged(extent, entry, what))?,
    };
    let header = expected(extent, entry, header)?;
    let payload = if entry.payload_len >= SLICE_BYTES_MIN {
        extent.set_checked(entry.position);
        Payload::File(FileSlice {
            file: extent.file.clone(),
            position: payload_at,
            len: entry.payload_len,
            pin: extent.clone(),
        })
    } else {
        Payload::Memory { head: Bytes::from(bytes).slice(ENTRY_HEADER_LEN..), body: Bytes::new() }
    };
    Ok(Stored { header, payload })
}

/// Fills `bytes` with an encoded entry, or its beginning; answers where its payload lies in the file.
///
/// Errors: `Unavailable` when a file cannot be read, `Damaged` when a chunk's directory is.
pub(crate) fn read_encoded(
    extent: &Extent,
    entry: &IndexEntry,
    directories: &Directories,
    bytes: &mut [u8],
) -> Result<u64, ReadError> {
    let position = u64::from(entry.position);
    let read = |into: &mut [u8]| {
        let read = extent.file.read_exact_at(into, position);
        read.map_err(|e| ReadError::Unavailable(format!("{}: {e}", place(extent, entry))))
    };
    if !extent.is_chunk() {
        read(bytes)?;
        return Ok(position + ENTRY_HEADER_LEN as u64);
    }
    let header = directories.header(extent, entry.row)?;
    if let Some((head, payload)) = bytes.split_at_mut_checked(ENTRY_HEADER_LEN) {
        head.copy_from_slice(&header);
        read(payload)?;
    }
    Ok(position)
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
