//! Directories that are found damaged while they are in use: written anew from what they are a directory of.
//!
//! Of an extent everything in a directory stands in the extent too. Of a chunk, partition, order and entry rows follow from
//! the entry headers, which stand only in the directory: where those are damaged their entries cannot be read. A directory
//! is replaced only by one that says the same of every leaf (INV-STORE-13).

use crate::codec::entry::EntryHeader;
use crate::drive::ReadError;
use crate::store::directory::{self, DirectoryHeader, LeafPart, Summary, page_of, path_of, read_page};
use crate::store::extent::Extent;
use crate::store::format::{BLOCK, ExtentHeader, HeaderBlock};
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::recovery::{Damage, Found, read_up_to, scan};
use crate::store::superblock::write_whole;
use crate::types::{Address, LeafId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A damaged page that was met.
struct Met {
    damage: Damage,
    mended: bool,
}

/// Damaged pages of directories, by the key of their file and their number, and whether they are mended.
#[derive(Default)]
pub(crate) struct Mending {
    never: bool,
    met: Mutex<BTreeMap<(u64, u32), Met>>,
    /// One directory at a time: others that meet the same page find it mended.
    turn: Mutex<()>,
}

impl Mending {
    /// Takes note of damage and changes nothing.
    pub(crate) fn never() -> Mending {
        Mending { never: true, ..Mending::default() }
    }

    /// What was met, each page once.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.met.lock().values().map(|met| met.damage.clone()).collect()
    }

    /// Whether an error is one of [`Mending::page`], whose place is known therefore.
    pub(crate) fn tells(&self, error: &str) -> bool {
        let met = self.met.lock();
        !met.is_empty() && met.values().any(|met| !met.mended && error.ends_with(&met.damage.to_string()))
    }

    /// Forgets what was met of a file that is recycled.
    pub(crate) fn forget(&self, key: u64) {
        self.met.lock().retain(|(of, _), _| *of != key);
    }

    /// A page that is damaged, as `error` says, out of the directory written anew.
    ///
    /// Errors: `Damaged`, with the place and what stood there.
    pub(crate) fn page(&self, extent: &Extent, number: u32, error: &str) -> Result<Vec<u8>, ReadError> {
        let _turn = self.turn.lock();
        if let Ok(page) = read_page(extent, number) {
            return Ok(page);
        }
        let key = (extent.key, number);
        if let Some(met) = self.met.lock().get(&key).filter(|met| !met.mended) {
            return Err(ReadError::Damaged(met.damage.to_string()));
        }
        let opened = directory::open(&extent.path).ok().filter(|(h, _)| extent.directory.get() == Some(h));
        let (segment, address, there) = match &opened {
            Some((header, leaves)) => directory::contents(header, leaves, number),
            None => (None, None, format!("page {number}")),
        };
        let anew = match (&opened, self.never) {
            (Some((header, leaves)), false) => anew(extent, header, leaves),
            (Some(_), true) => Err("not looked for elsewhere".to_owned()),
            (None, _) => Err("nor can its header or leaf rows be read".to_owned()),
        };
        let path = path_of(&extent.path);
        let from = if extent.is_chunk() { "its entry headers" } else { "its extent" };
        let fate = match &anew {
            Ok(bytes) => match write_whole(&path, bytes) {
                Ok(()) => format!("written anew from {from}"),
                Err(e) => format!("read from {from} instead, not written anew: {e}"),
            },
            Err(why) => why.clone(),
        };
        let what = format!("{there}: {error}; {fate}");
        let position = u64::from(number) * BLOCK as u64;
        let damage = Damage { file: path, position, segment, address, what };
        let told = damage.to_string();
        let new = self.met.lock().insert(key, Met { damage, mended: anew.is_ok() }).is_none();
        let page = anew.ok().and_then(|bytes| page_of(&bytes, number).map(<[u8]>::to_vec));
        if page.is_some() && new {
            tracing::error!("damaged: {told}");
        }
        // Who reads it says so of one that is not mended.
        page.ok_or(ReadError::Damaged(told))
    }
}

/// The directory of a file as it was before it was damaged.
///
/// Errors: why it cannot be told.
fn anew(extent: &Extent, header: &DirectoryHeader, leaves: &[(LeafId, Summary)]) -> Result<Vec<u8>, String> {
    let parts = if extent.is_chunk() {
        of_chunk(extent, header, leaves)?
    } else {
        of_extent(extent, header, leaves)?
    };
    let (bytes, encoded, summaries) = directory::encode(*header, &parts);
    match encoded == *header && summaries == leaves {
        true => Ok(bytes),
        false => Err("its file is damaged too".to_owned()),
    }
}

fn part(id: LeafId, summary: &Summary, index: LeafIndex) -> LeafPart {
    let Summary { fenced, discarded, trim, entries, bytes, .. } = *summary;
    let gone_bytes = if entries == 0 { bytes } else { 0 };
    LeafPart { id, fenced, discarded, trim, index: Arc::new(index), gone_bytes, headers: Vec::new() }
}

fn of_extent(
    extent: &Extent,
    directory: &DirectoryHeader,
    leaves: &[(LeafId, Summary)],
) -> Result<Vec<LeafPart>, String> {
    let mut block = [0; BLOCK];
    read_up_to(&extent.file, &mut block, 0).map_err(|e| e.to_string())?;
    let header: ExtentHeader = match ExtentHeader::read(&block) {
        HeaderBlock::Live { header, .. } if header.number == extent.number => header,
        _ => return Err("the extent's header is damaged too".to_owned()),
    };
    let mut found: HashMap<LeafId, LeafIndex> = HashMap::new();
    scan(&extent.file, &extent.path, header, Some(directory.end_group), |group| {
        for Found { record, entry } in &group.records {
            if let Some((header, position)) = entry {
                let entry = IndexEntry::new(header, record.address, *position as u32);
                found.entry(record.leaf).or_default().insert(entry);
            }
        }
    })
    .map_err(|e| e.to_string())?;
    // A leaf that was deleted before the directory was written has no entries in it.
    let mut index = |id: &LeafId, s: &Summary| found.remove(id).filter(|_| s.entries > 0).unwrap_or_default();
    Ok(leaves.iter().map(|(id, s)| part(*id, s, index(id, s))).collect())
}

/// Payloads lie by leaf, partition and address, back to back behind the header block.
fn of_chunk(
    chunk: &Extent,
    directory: &DirectoryHeader,
    leaves: &[(LeafId, Summary)],
) -> Result<Vec<LeafPart>, String> {
    let bytes = std::fs::read(path_of(&chunk.path)).map_err(|e| e.to_string())?;
    let mut position = BLOCK as u64;
    let mut parts = Vec::with_capacity(leaves.len());
    for (id, summary) in leaves {
        let headers = directory::headers_of(&bytes, directory, summary)?;
        let mut entries = Vec::with_capacity(headers.len());
        for (n, encoded) in (0u64..).zip(&headers) {
            let header = EntryHeader::decode(encoded).map_err(|e| e.to_string())?;
            let address = match summary.is_contiguous() {
                true => Address(summary.addresses.0 + n),
                // Not striped: local addresses are the loglet's.
                false if summary.addresses == summary.loglet_addresses => header.address,
                false => return Err("which addresses its entries have stood there".to_owned()),
            };
            entries.push(IndexEntry::new(&header, address, 0));
        }
        entries.sort_by_key(|e| (e.partition, e.address));
        let mut index = LeafIndex::default();
        for mut entry in entries {
            entry.position = u32::try_from(position).map_err(|_| "positions beyond 4 GiB".to_owned())?;
            position = position.saturating_add(u64::from(entry.payload_len));
            index.insert(entry);
        }
        parts.push(LeafPart { headers, ..part(*id, summary, index) });
    }
    if position != directory.data_end {
        return Err("its entry headers do not fit the chunk".to_owned());
    }
    Ok(parts)
}
