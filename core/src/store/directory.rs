//! The directory of a closed extent or of a chunk: where every entry lies, in pages that are read when they are needed.
//!
//! ```text
//! page 0 header | leaf rows | partition rows | order rows | entry rows | entry headers (chunks)   rows never cross a page
//! ```
//! Each page ends in a checksum over itself, the extent's number and its own. Entry rows are sorted by (leaf, address);
//! order rows name entry rows by (leaf, partition, address). In memory a closed extent costs one [`Summary`] per leaf.

use crate::codec::crc32c;
use crate::codec::entry::{ENTRY_HEADER_LEN, EntryKind};
use crate::drive::ReadError;
use crate::store::extent::Extent;
use crate::store::format::{BLOCK, VERSION, u16_at, u32_at, u64_at};
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::mend::Mending;
use crate::store::recovery::Damage;
use crate::types::{Address, DiskId, LeafId, LogletId, Offset, Partition};
use moka::sync::Cache;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: [u8; 4] = *b"RWED";
const PAGE: usize = BLOCK;
const PAGE_ROOM: usize = PAGE - 4;
const LEAF_ROW: usize = 88;
const PARTITION_ROW: usize = 40;
const ORDER_ROW: usize = 4;
const ENTRY_ROW: usize = 56;
const FENCED: u8 = 1;
const DISCARDED: u8 = 2;
/// At byte 5 of a chunk's directory.
const CHUNK: u8 = 1;
/// Bytes of directory pages kept in memory, for all extents of a disk.
const CACHE_BYTES: u64 = 8 << 20;

/// What memory keeps of one leaf in one closed extent.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) fenced: bool,
    pub(crate) discarded: bool,
    pub(crate) trim: u64,
    /// Lowest and highest drive-local address.
    pub(crate) addresses: (u64, u64),
    /// Lowest and highest address of the loglet.
    pub(crate) loglet_addresses: (u64, u64),
    pub(crate) entries: u32,
    entries_at: u32,
    pub(crate) partitions: u32,
    partitions_at: u32,
    /// Bit `kind` for each kind of entry that is there.
    kinds: u8,
    /// Bit `partition mod 64` for each partition that is there.
    bits: u64,
    /// Total payload bytes; of a leaf that was deleted before the directory was written, what it had.
    pub(crate) bytes: u64,
}

impl Summary {
    /// Whether entries of `partition` may be there.
    pub(crate) fn may_hold(&self, partition: Partition) -> bool {
        self.entries > 0 && self.bits & (1 << (partition as u32 % 64)) != 0
    }

    pub(crate) fn holds_kind(&self, kind: EntryKind) -> bool {
        self.kinds & (1 << (kind as u8)) != 0
    }

    /// Whether all entries are of the whole range, none of a partition.
    pub(crate) fn holds_whole_range_only(&self) -> bool {
        self.entries > 0
            && ![EntryKind::Data, EntryKind::Control, EntryKind::Snapshot, EntryKind::Marker]
                .iter()
                .any(|k| self.holds_kind(*k))
    }

    /// Whether every address between the lowest and the highest is there.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.entries > 0
            && self.addresses.1.checked_sub(self.addresses.0) == Some(u64::from(self.entries) - 1)
            && self.addresses.1 < u64::MAX
    }
}

/// One leaf of an extent, on its way into a directory.
pub(crate) struct LeafPart {
    pub(crate) id: LeafId,
    pub(crate) fenced: bool,
    pub(crate) discarded: bool,
    pub(crate) trim: u64,
    pub(crate) index: Arc<LeafIndex>,
    /// Payload bytes of what was deleted before, and is not in the index.
    pub(crate) gone_bytes: u64,
    /// Of a chunk: the encoded header of each entry, in the order of the index.
    pub(crate) headers: Vec<[u8; ENTRY_HEADER_LEN]>,
}

/// Head of a directory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryHeader {
    pub(crate) disk: DiskId,
    /// Identity of its file: an extent's number, or a chunk's (see [`crate::store::chunk`]).
    pub(crate) extent: u64,
    /// Of a chunk: numbers of the first and the last extent in whose place it stands.
    pub(crate) covers: Option<(u64, u64)>,
    pub(crate) first_group: u64,
    /// One above the extent's last group that counts.
    pub(crate) end_group: u64,
    /// Where that group ends in the extent.
    pub(crate) data_end: u64,
    pub(crate) leaves: u32,
    pub(crate) partitions: u32,
    pub(crate) entries: u32,
}

/// A row's kind and size.
#[derive(Copy, Clone)]
enum Section {
    Leaves,
    Partitions,
    Order,
    Entries,
    Headers,
}

impl Section {
    fn row(self) -> usize {
        match self {
            Section::Leaves => LEAF_ROW,
            Section::Partitions => PARTITION_ROW,
            Section::Order => ORDER_ROW,
            Section::Entries => ENTRY_ROW,
            Section::Headers => ENTRY_HEADER_LEN,
        }
    }
    fn per_page(self) -> u32 {
        (PAGE_ROOM / self.row()) as u32
    }
}

impl DirectoryHeader {
    fn rows(&self, section: Section) -> u32 {
        match section {
            Section::Leaves => self.leaves,
            Section::Partitions => self.partitions,
            Section::Order | Section::Entries => self.entries,
            Section::Headers if self.covers.is_some() => self.entries,
            Section::Headers => 0,
        }
    }

    fn first_page(&self, section: Section) -> u32 {
        let before: &[Section] = match section {
            Section::Leaves => &[],
            Section::Partitions => &[Section::Leaves],
            Section::Order => &[Section::Leaves, Section::Partitions],
            Section::Entries => &[Section::Leaves, Section::Partitions, Section::Order],
            Section::Headers => &[Section::Leaves, Section::Partitions, Section::Order, Section::Entries],
        };
        1 + before.iter().map(|s| self.rows(*s).div_ceil(s.per_page())).sum::<u32>()
    }

    /// How many pages the directory has.
    pub(crate) fn pages(&self) -> u32 {
        self.first_page(Section::Headers) + self.rows(Section::Headers).div_ceil(Section::Headers.per_page())
    }

    fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; PAGE_ROOM];
        b[0..4].copy_from_slice(&MAGIC);
        b[4] = VERSION;
        b[8..24].copy_from_slice(self.disk.0.as_bytes());
        b[24..32].copy_from_slice(&self.extent.to_le_bytes());
        b[32..40].copy_from_slice(&self.first_group.to_le_bytes());
        b[40..48].copy_from_slice(&self.end_group.to_le_bytes());
        b[48..56].copy_from_slice(&self.data_end.to_le_bytes());
        b[56..60].copy_from_slice(&self.leaves.to_le_bytes());
        b[60..64].copy_from_slice(&self.partitions.to_le_bytes());
        b[64..68].copy_from_slice(&self.entries.to_le_bytes());
        if let Some((first, last)) = self.covers {
            b[5] = CHUNK;
            b[72..80].copy_from_slice(&first.to_le_bytes());
            b[80..88].copy_from_slice(&last.to_le_bytes());
        }
        b
    }

    pub(crate) fn decode(b: &[u8]) -> Result<DirectoryHeader, String> {
        if b.get(..4) != Some(&MAGIC[..]) {
            return Err("no directory (magic differs)".into());
        }
        if b.get(4) != Some(&VERSION) {
            return Err(format!("directory version {:?}, expected {VERSION}", b.get(4)));
        }
        let parse = || {
            Some(DirectoryHeader {
                disk: DiskId(Uuid::from_bytes(*b.get(8..)?.first_chunk::<16>()?)),
                extent: u64_at(b, 24)?,
                covers: match *b.get(5)? {
                    CHUNK => Some((u64_at(b, 72)?, u64_at(b, 80)?)),
                    _ => None,
                },
                first_group: u64_at(b, 32)?,
                end_group: u64_at(b, 40)?,
                data_end: u64_at(b, 48)?,
                leaves: u32_at(b, 56)?,
                partitions: u32_at(b, 60)?,
                entries: u32_at(b, 64)?,
            })
        };
        parse().ok_or_else(|| "directory header cut".into())
    }
}

/// Path of the directory of an extent file.
pub(crate) fn path_of(extent: &Path) -> PathBuf {
    extent.with_extension("dir")
}

fn seal_page(page: &mut Vec<u8>, extent: u64, number: u32) {
    page.resize(PAGE_ROOM, 0);
    let crc = crc32c(&[page, &extent.to_le_bytes(), &number.to_le_bytes()]);
    page.extend_from_slice(&crc.to_le_bytes());
}

/// Checks one page's checksum.
pub(crate) fn page_is_good(page: &[u8], extent: u64, number: u32) -> bool {
    let (Some(room), Some(crc)) = (page.get(..PAGE_ROOM), u32_at(page, PAGE_ROOM)) else { return false };
    page.len() == PAGE && crc == crc32c(&[room, &extent.to_le_bytes(), &number.to_le_bytes()])
}

struct PageWriter {
    bytes: Vec<u8>,
    page: Vec<u8>,
    extent: u64,
    number: u32,
}

impl PageWriter {
    fn row(&mut self, row: &[u8]) {
        if self.page.len() + row.len() > PAGE_ROOM {
            self.end_page();
        }
        self.page.extend_from_slice(row);
    }
    fn end_page(&mut self) {
        if !self.page.is_empty() {
            seal_page(&mut self.page, self.extent, self.number);
            self.bytes.append(&mut self.page);
            self.number += 1;
        }
    }
}

fn entry_row(e: &IndexEntry) -> [u8; ENTRY_ROW] {
    let mut r = [0; ENTRY_ROW];
    r[0..8].copy_from_slice(&e.address.to_le_bytes());
    r[8..16].copy_from_slice(&e.loglet_address.to_le_bytes());
    r[16..24].copy_from_slice(&e.base_offset.to_le_bytes());
    r[24..32].copy_from_slice(&e.max_timestamp.to_le_bytes());
    r[32..36].copy_from_slice(&e.last_offset_delta.to_le_bytes());
    r[36..40].copy_from_slice(&e.partition.to_le_bytes());
    r[40..44].copy_from_slice(&e.position.to_le_bytes());
    r[44..48].copy_from_slice(&e.payload_len.to_le_bytes());
    r[48] = e.kind as u8;
    r[49] = e.flags;
    r
}

fn entry_of(r: &[u8]) -> Option<IndexEntry> {
    Some(IndexEntry {
        address: u64_at(r, 0)?,
        loglet_address: u64_at(r, 8)?,
        base_offset: u64_at(r, 16)? as i64,
        max_timestamp: u64_at(r, 24)? as i64,
        last_offset_delta: u32_at(r, 32)? as i32,
        partition: u32_at(r, 36)? as i32,
        position: u32_at(r, 40)?,
        payload_len: u32_at(r, 44)?,
        kind: EntryKind::from_u8(*r.get(48)?)?,
        flags: *r.get(49)?,
        row: 0,
    })
}

fn leaf_row(id: LeafId, s: &Summary) -> [u8; LEAF_ROW] {
    let mut r = [0; LEAF_ROW];
    r[0..8].copy_from_slice(&id.loglet.0.to_le_bytes());
    r[8..10].copy_from_slice(&id.leaf.to_le_bytes());
    r[10] = u8::from(s.fenced) * FENCED + u8::from(s.discarded) * DISCARDED;
    r[11] = s.kinds;
    r[12..16].copy_from_slice(&s.entries.to_le_bytes());
    r[16..24].copy_from_slice(&s.trim.to_le_bytes());
    r[24..32].copy_from_slice(&s.addresses.0.to_le_bytes());
    r[32..40].copy_from_slice(&s.addresses.1.to_le_bytes());
    r[40..48].copy_from_slice(&s.loglet_addresses.0.to_le_bytes());
    r[48..56].copy_from_slice(&s.loglet_addresses.1.to_le_bytes());
    r[56..60].copy_from_slice(&s.entries_at.to_le_bytes());
    r[60..64].copy_from_slice(&s.partitions_at.to_le_bytes());
    r[64..68].copy_from_slice(&s.partitions.to_le_bytes());
    r[72..80].copy_from_slice(&s.bits.to_le_bytes());
    r[80..88].copy_from_slice(&s.bytes.to_le_bytes());
    r
}

fn leaf_of(r: &[u8]) -> Option<(LeafId, Summary)> {
    let id = LeafId { loglet: LogletId(u64_at(r, 0)?), leaf: u16_at(r, 8)? };
    let flags = *r.get(10)?;
    let summary = Summary {
        fenced: flags & FENCED != 0,
        discarded: flags & DISCARDED != 0,
        kinds: *r.get(11)?,
        entries: u32_at(r, 12)?,
        trim: u64_at(r, 16)?,
        addresses: (u64_at(r, 24)?, u64_at(r, 32)?),
        loglet_addresses: (u64_at(r, 40)?, u64_at(r, 48)?),
        entries_at: u32_at(r, 56)?,
        partitions_at: u32_at(r, 60)?,
        partitions: u32_at(r, 64)?,
        bits: u64_at(r, 72)?,
        bytes: u64_at(r, 80)?,
    };
    Some((id, summary))
}

/// Encodes a directory; answers its bytes, the header with its counts, and each leaf's summary.
pub(crate) fn encode(
    mut header: DirectoryHeader,
    parts: &[LeafPart],
) -> (Vec<u8>, DirectoryHeader, Vec<(LeafId, Summary)>) {
    header.leaves = parts.len() as u32;
    header.entries = parts.iter().map(|p| p.index.entries().len() as u32).sum();
    header.partitions = parts.iter().map(|p| p.index.partitions().count() as u32).sum();
    let mut w = PageWriter { bytes: Vec::new(), page: Vec::new(), extent: header.extent, number: 0 };
    w.page = header.encode();
    w.end_page();
    let (mut entries_at, mut partitions_at) = (0, 0);
    let mut summaries = Vec::with_capacity(parts.len());
    for part in parts {
        let summary = summarize(part, entries_at, partitions_at);
        w.row(&leaf_row(part.id, &summary));
        entries_at += summary.entries;
        partitions_at += summary.partitions;
        summaries.push((part.id, summary));
    }
    w.end_page();
    let mut order_at = 0u32;
    for part in parts {
        for (partition, addresses) in part.index.partitions() {
            let of = || addresses.iter().filter_map(|a| part.index.get(*a));
            let mut r = [0; PARTITION_ROW];
            r[0..4].copy_from_slice(&partition.to_le_bytes());
            r[4..8].copy_from_slice(&(addresses.len() as u32).to_le_bytes());
            r[8..12].copy_from_slice(&order_at.to_le_bytes());
            r[16..24].copy_from_slice(&of().next().map_or(-1, |e| e.base_offset).to_le_bytes());
            r[24..32].copy_from_slice(&of().map(|e| e.last_offset()).max().unwrap_or(-1).to_le_bytes());
            r[32..40].copy_from_slice(&of().map(|e| e.max_timestamp).max().unwrap_or(-1).to_le_bytes());
            w.row(&r);
            order_at += addresses.len() as u32;
        }
    }
    w.end_page();
    for (part, (_, summary)) in parts.iter().zip(&summaries) {
        for (_, addresses) in part.index.partitions() {
            for address in addresses {
                let at = part.index.entries().partition_point(|e| e.address < *address) as u32;
                w.row(&(summary.entries_at + at).to_le_bytes());
            }
        }
    }
    w.end_page();
    for part in parts {
        part.index.entries().iter().for_each(|e| w.row(&entry_row(e)));
    }
    w.end_page();
    for part in parts {
        part.headers.iter().for_each(|h| w.row(h));
    }
    w.end_page();
    (w.bytes, header, summaries)
}

fn summarize(part: &LeafPart, entries_at: u32, partitions_at: u32) -> Summary {
    let entries = part.index.entries();
    let range = |key: fn(&IndexEntry) -> u64| {
        (entries.iter().map(key).min().unwrap_or(0), entries.iter().map(key).max().unwrap_or(0))
    };
    Summary {
        fenced: part.fenced,
        discarded: part.discarded,
        trim: part.trim,
        addresses: range(|e| e.address),
        loglet_addresses: range(|e| e.loglet_address),
        entries: entries.len() as u32,
        entries_at,
        partitions: part.index.partitions().count() as u32,
        partitions_at,
        kinds: entries.iter().fold(0, |k, e| k | 1 << (e.kind as u8)),
        bits: part.index.partitions().fold(0, |b, (p, _)| b | 1 << (p as u32 % 64)),
        bytes: part.gone_bytes + entries.iter().map(|e| u64::from(e.payload_len)).sum::<u64>(),
    }
}

type Page = Arc<[u8]>;

/// Reads directory pages, through a bounded cache; a damaged directory is written anew where its file says enough (see
/// [`crate::store::mend`]). Reads files: for blocking threads only.
pub(crate) struct Directories {
    pages: Cache<(u64, u32), Page>,
    mending: Mending,
}

/// Where a partition's entries are in a directory.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PartitionRow {
    pub(crate) partition: Partition,
    pub(crate) count: u32,
    at: u32,
    pub(crate) last_offset: Offset,
}

impl Directories {
    pub(crate) fn new() -> Directories {
        let weigher = |_: &(u64, u32), page: &Page| page.len() as u32 + 128;
        let pages = Cache::builder().weigher(weigher).max_capacity(CACHE_BYTES).build();
        Directories { pages, mending: Mending::default() }
    }

    /// For a check: writes nothing.
    pub(crate) fn as_they_are() -> Directories {
        Directories { mending: Mending::never(), ..Directories::new() }
    }

    /// Damaged places of directories that were met, mended or not.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.mending.damage()
    }

    /// Whether an error tells of damage that is among [`Directories::damage`].
    pub(crate) fn tells(&self, error: &str) -> bool {
        self.mending.tells(error)
    }

    /// Forgets a recycled extent's pages.
    pub(crate) fn forget(&self, extent: u64, pages: u32) {
        self.mending.forget(extent);
        for page in 0..pages {
            self.pages.invalidate(&(extent, page));
        }
    }

    fn page(&self, extent: &Extent, number: u32) -> Result<Page, ReadError> {
        if let Some(page) = self.pages.get(&(extent.key, number)) {
            return Ok(page);
        }
        let bytes = match read_page(extent, number) {
            Ok(bytes) => bytes,
            Err(ReadError::Damaged(what)) => self.mending.page(extent, number, &what)?,
            Err(unavailable) => return Err(unavailable),
        };
        let page: Page = bytes.into();
        self.pages.insert((extent.key, number), page.clone());
        Ok(page)
    }

    fn row<T>(
        &self,
        extent: &Extent,
        section: Section,
        row: u32,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, ReadError> {
        let bad = || ReadError::Damaged(format!("{}: no row {row}", path_of(&extent.path).display()));
        let header = extent.directory.get().filter(|h| row < h.rows(section)).ok_or_else(bad)?;
        let page = self.page(extent, header.first_page(section) + row / section.per_page())?;
        let at = (row % section.per_page()) as usize * section.row();
        page.get(at..at + section.row()).and_then(parse).ok_or_else(bad)
    }

    /// The first row in `[from, to)` for which `before` does not hold.
    fn search(
        from: u32,
        to: u32,
        mut before: impl FnMut(u32) -> Result<bool, ReadError>,
    ) -> Result<u32, ReadError> {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low + (high - low) / 2;
            if before(middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Entry `i` of a leaf, in address order.
    pub(crate) fn entry(&self, extent: &Extent, leaf: &Summary, i: u32) -> Result<IndexEntry, ReadError> {
        self.entry_row(extent, leaf.entries_at.saturating_add(i))
    }

    /// Entry row `row` of the whole directory.
    pub(crate) fn entry_row(&self, extent: &Extent, row: u32) -> Result<IndexEntry, ReadError> {
        self.row(extent, Section::Entries, row, |r| Some(IndexEntry { row, ..entry_of(r)? }))
    }

    /// The encoded header of the entry in entry row `row` of a chunk's directory.
    pub(crate) fn header(&self, chunk: &Extent, row: u32) -> Result<[u8; ENTRY_HEADER_LEN], ReadError> {
        self.row(chunk, Section::Headers, row, |r| r.first_chunk().copied())
    }

    /// Index of the first entry of a leaf for which `before` does not hold.
    pub(crate) fn first_entry(
        &self,
        extent: &Extent,
        leaf: &Summary,
        before: impl Fn(&IndexEntry) -> bool,
    ) -> Result<u32, ReadError> {
        Self::search(0, leaf.entries, |i| Ok(before(&self.entry(extent, leaf, i)?)))
    }

    /// Row `i` of a leaf's partitions.
    pub(crate) fn partition(
        &self,
        extent: &Extent,
        leaf: &Summary,
        i: u32,
    ) -> Result<PartitionRow, ReadError> {
        self.row(extent, Section::Partitions, leaf.partitions_at.saturating_add(i), |r| {
            Some(PartitionRow {
                partition: u32_at(r, 0)? as i32,
                count: u32_at(r, 4)?,
                at: u32_at(r, 8)?,
                last_offset: u64_at(r, 24)? as i64,
            })
        })
    }

    /// A partition's row, if the leaf has entries of it there.
    pub(crate) fn find_partition(
        &self,
        extent: &Extent,
        leaf: &Summary,
        partition: Partition,
    ) -> Result<Option<PartitionRow>, ReadError> {
        if !leaf.may_hold(partition) {
            return Ok(None);
        }
        let at =
            Self::search(0, leaf.partitions, |i| Ok(self.partition(extent, leaf, i)?.partition < partition))?;
        if at == leaf.partitions {
            return Ok(None);
        }
        Ok(Some(self.partition(extent, leaf, at)?).filter(|r| r.partition == partition))
    }

    /// Entry `i` of a partition, in order.
    pub(crate) fn in_partition(
        &self,
        extent: &Extent,
        row: &PartitionRow,
        i: u32,
    ) -> Result<IndexEntry, ReadError> {
        let at = self.row(extent, Section::Order, row.at.saturating_add(i), |r| u32_at(r, 0))?;
        self.entry_row(extent, at)
    }

    /// Index of a partition's first entry whose last offset is at or above `from`.
    pub(crate) fn first_in_partition(
        &self,
        extent: &Extent,
        row: &PartitionRow,
        from: Offset,
    ) -> Result<u32, ReadError> {
        Self::search(0, row.count, |i| Ok(self.in_partition(extent, row, i)?.last_offset() < from))
    }
}

/// A page as it is in the file.
///
/// Errors: `Damaged`, also where the file is cut or gone; `Unavailable`.
pub(crate) fn read_page(extent: &Extent, number: u32) -> Result<Vec<u8>, ReadError> {
    let path = path_of(&extent.path);
    let mut bytes = vec![0; PAGE];
    let read = File::open(&path).and_then(|f| f.read_exact_at(&mut bytes, u64::from(number) * PAGE as u64));
    match read {
        Ok(()) if page_is_good(&bytes, extent.key, number) => Ok(bytes),
        Ok(()) => Err(ReadError::Damaged("checksum differs".to_owned())),
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound) => {
            Err(ReadError::Damaged(e.to_string()))
        }
        Err(e) => Err(ReadError::Unavailable(format!("{} page {number}: {e}", path.display()))),
    }
}

/// Page `number` of a whole directory.
pub(crate) fn page_of(bytes: &[u8], number: u32) -> Option<&[u8]> {
    bytes.chunks_exact(PAGE).nth(number as usize)
}

/// The encoded headers of the entries of a leaf, out of the bytes of a chunk's directory.
///
/// Errors: a page is damaged.
pub(crate) fn headers_of(
    bytes: &[u8],
    header: &DirectoryHeader,
    leaf: &Summary,
) -> Result<Vec<[u8; ENTRY_HEADER_LEN]>, String> {
    let (first, per_page) = (header.first_page(Section::Headers), Section::Headers.per_page());
    let mut headers = Vec::with_capacity(leaf.entries as usize);
    let mut checked = None;
    for row in leaf.entries_at..leaf.entries_at.saturating_add(leaf.entries) {
        let number = first + row / per_page;
        let page = page_of(bytes, number).ok_or("directory cut")?;
        if checked != Some(number) && !page_is_good(page, header.extent, number) {
            return Err(format!("page {number} is damaged too"));
        }
        checked = Some(number);
        let at = (row % per_page) as usize * ENTRY_HEADER_LEN;
        headers.push(*page.get(at..).and_then(|rest| rest.first_chunk()).ok_or("row cut")?);
    }
    Ok(headers)
}

/// What stands on a page: the first segment, its first address there where the rows tell it, and all of it in words.
pub(crate) fn contents(
    header: &DirectoryHeader,
    leaves: &[(LeafId, Summary)],
    page: u32,
) -> (Option<LeafId>, Option<Address>, String) {
    const SECTIONS: [(Section, &str); 5] = [
        (Section::Leaves, "leaf rows"),
        (Section::Partitions, "partition rows"),
        (Section::Order, "order rows"),
        (Section::Entries, "entry rows"),
        (Section::Headers, "entry headers"),
    ];
    let held = |(section, name): &(Section, &'static str)| {
        let rows = header.rows(*section);
        let before = page.checked_sub(header.first_page(*section))?.checked_mul(section.per_page())?;
        (before < rows)
            .then(|| (*section, *name, before, rows.min(before.saturating_add(section.per_page()))))
    };
    // The last one that begins at or before the page: sections without rows have no page.
    let Some((section, name, from, to)) = SECTIONS.iter().filter_map(held).next_back() else {
        return (None, None, format!("page {page}"));
    };
    let rows = |(place, (_, s)): (usize, &(LeafId, Summary))| match section {
        Section::Leaves => (place as u32, place as u32 + 1),
        Section::Partitions => (s.partitions_at, s.partitions_at.saturating_add(s.partitions)),
        _ => (s.entries_at, s.entries_at.saturating_add(s.entries)),
    };
    let there: Vec<_> = (leaves.iter().enumerate())
        .map(|leaf| (rows(leaf), leaf.1))
        .filter(|((first, end), _)| *first < to && from < *end)
        .collect();
    let addresses = |((first, end), (_, s)): &((u32, u32), &(LeafId, Summary))| {
        let tells = matches!(section, Section::Entries | Section::Headers) && s.is_contiguous();
        let at = |row: u32| s.addresses.0 + u64::from(row - first);
        tells.then(|| (at(from.max(*first)), at(to.min(*end) - 1)))
    };
    let words: Vec<String> = (there.iter().take(4))
        .map(|leaf| match addresses(leaf) {
            Some((first, last)) => format!("segment {} addresses {first} to {last}", leaf.1.0),
            None => format!("segment {}", leaf.1.0),
        })
        .chain((there.len() > 4).then(|| format!("{} more", there.len() - 4)))
        .collect();
    let first = there.first();
    let address = first.and_then(addresses).map(|(first, _)| Address(first));
    (first.map(|leaf| leaf.1.0), address, format!("page {page}, {name} of {}", words.join(", ")))
}

/// Reads a directory's header and leaf rows.
///
/// Errors: why it is not to be used; the extent is scanned then.
pub(crate) fn open(extent_path: &Path) -> Result<(DirectoryHeader, Vec<(LeafId, Summary)>), String> {
    let file = File::open(path_of(extent_path)).map_err(|e| e.to_string())?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, 0).map_err(|e| e.to_string())?;
    let header = DirectoryHeader::decode(&page)?;
    if !page_is_good(&page, header.extent, 0) {
        return Err("header page: checksum differs".into());
    }
    if len != u64::from(header.pages()) * PAGE as u64 {
        return Err(format!("{len} bytes, expected {} pages", header.pages()));
    }
    let mut leaves = Vec::new();
    for number in 1..header.first_page(Section::Partitions) {
        file.read_exact_at(&mut page, u64::from(number) * PAGE as u64).map_err(|e| e.to_string())?;
        if !page_is_good(&page, header.extent, number) {
            return Err(format!("page {number}: checksum differs"));
        }
        let left = header.leaves as usize - leaves.len();
        for row in page.chunks_exact(LEAF_ROW).take(left.min(Section::Leaves.per_page() as usize)) {
            leaves.push(leaf_of(row).ok_or("leaf row cut")?);
        }
    }
    Ok((header, leaves))
}
