//! The inventory: which extents and chunks the data directory ought to hold, so that one that is gone is noticed and not taken
//! for one that never was.
//!
//! INV-STORE-11 an extent or chunk leaves the inventory before its file is recycled or deleted, and stands in it shortly after it counts; the
//! extents in whose place a chunk stands may leave later. So what the inventory names is there, or a chunk that is there covers it,
//! or it was lost.

use crate::codec::crc32c;
use crate::store::Extents;
use crate::store::extent::{CHUNK_KEY, Extent, file_number};
use crate::store::format::{VERSION, u64_at};
use crate::types::{DiskId, LogletId};
use std::io;
use std::path::Path;

const MAGIC: [u8; 4] = *b"RWIN";
const HEADER: usize = 40;
const ROW: usize = 32;
/// Its file in the data directory.
pub(crate) const FILE: &str = "inventory";

/// An extent or a chunk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// First and last extent number in whose place it stands; an extent's own.
    pub(crate) covers: (u64, u64),
    /// Number in the file's name.
    pub(crate) file: u64,
    /// Where it was found missing, or was and is back without a directory: loglets below may have had their only entries in it;
    /// before, 0.
    pub(crate) below: LogletId,
}

/// See the module head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    /// By number.
    pub(crate) extents: Vec<Held>,
    /// By sequence.
    pub(crate) chunks: Vec<Held>,
}

impl Held {
    fn of(extent: &Extent) -> Held {
        let file = match extent.is_chunk() {
            true => extent.key & !CHUNK_KEY,
            false => file_number(&extent.path).unwrap_or_default(),
        };
        Held { covers: (extent.first, extent.number), file, below: LogletId(0) }
    }
}

impl Inventory {
    /// What is there, and what was found missing, but for `without`, which is about to go.
    pub(crate) fn of(extents: &Extents, without: &[u64]) -> Inventory {
        let stays = |e: &&std::sync::Arc<Extent>| !without.contains(&e.key);
        let mut all = extents.absent.clone();
        all.extents.extend(extents.live.values().filter(stays).map(|e| {
            // What was brought back is known as such until a directory says what it holds.
            let below = extents.returned.get(&e.number).filter(|_| e.directory.get().is_none());
            Held { below: below.copied().unwrap_or(LogletId(0)), ..Held::of(e) }
        }));
        all.chunks.extend(extents.chunks.values().filter(stays).map(|e| Held::of(e)));
        all.extents.sort_by_key(|held| held.covers);
        all.chunks.sort_by_key(|held| held.file);
        all
    }

    fn encode(&self, disk: DiskId) -> Vec<u8> {
        let rows = self.extents.iter().chain(&self.chunks);
        let mut b = Vec::with_capacity(HEADER + ROW * (self.extents.len() + self.chunks.len()) + 4);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&[VERSION, 0, 0, 0]);
        b.extend_from_slice(disk.0.as_bytes());
        b.extend_from_slice(&(self.extents.len() as u64).to_le_bytes());
        b.extend_from_slice(&(self.chunks.len() as u64).to_le_bytes());
        for Held { covers, file, below } in rows {
            for n in [covers.0, covers.1, *file, below.0] {
                b.extend_from_slice(&n.to_le_bytes());
            }
        }
        let crc = crc32c(&[&b]);
        b.extend_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads an inventory's bytes; `None`: damaged, or another disk's.
    pub(crate) fn decode(b: &[u8], disk: DiskId) -> Option<Inventory> {
        let (body, crc) = b.split_at_checked(b.len().checked_sub(4)?)?;
        let ours =
            body.get(..4)? == MAGIC && *body.get(4)? == VERSION && body.get(8..24)? == disk.0.as_bytes();
        if !ours || crc != crc32c(&[body]).to_le_bytes() {
            return None;
        }
        let rows = body.get(HEADER..)?;
        let (extents, chunks) = (u64_at(body, 24)?, u64_at(body, 32)?);
        let expected = extents.checked_add(chunks)?.checked_mul(ROW as u64)?;
        if rows.len() as u64 != expected {
            return None;
        }
        let held = |row: &[u8]| {
            let covers = (u64_at(row, 0)?, u64_at(row, 8)?);
            Some(Held { covers, file: u64_at(row, 16)?, below: LogletId(u64_at(row, 24)?) })
        };
        let mut all = rows.chunks_exact(ROW).map(held).collect::<Option<Vec<_>>>()?;
        let chunks = all.split_off(usize::try_from(extents).ok()?);
        Some(Inventory { extents: all, chunks })
    }

    /// Writes it, durably.
    ///
    /// Errors: nothing may be recycled then.
    pub(crate) fn write(&self, dir: &Path, disk: DiskId) -> io::Result<()> {
        crate::store::superblock::write_whole(&dir.join(FILE), &self.encode(disk))
    }
}

/// What the file holds.
pub(crate) enum Loaded {
    /// It is good.
    Whole(Inventory),
    /// There is none: the directory is new, or of a program that wrote none.
    Missing,
    /// It is there and bad: what ought to be there is not known.
    Damaged,
}

/// Reads the inventory of a data directory.
pub(crate) fn load(dir: &Path, disk: DiskId) -> io::Result<Loaded> {
    match std::fs::read(dir.join(FILE)) {
        Ok(bytes) => Ok(Inventory::decode(&bytes, disk).map_or(Loaded::Damaged, Loaded::Whole)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Loaded::Missing),
        Err(e) => Err(e),
    }
}

/// Of what an inventory names, what is neither there nor covered by a chunk that is there.
///
/// `extents`: numbers; `chunks`: sequences, with those that count no more; `covered`: by chunks that count.
pub(crate) fn missing(
    named: &Inventory,
    extents: impl Fn(u64) -> bool,
    chunks: impl Fn(u64) -> bool,
    covered: &[(u64, u64)],
) -> Inventory {
    let covered = |held: &Held| crate::store::chunk::is_covered(held.covers, covered);
    let gone = |all: &[Held], there: &dyn Fn(&Held) -> bool| -> Vec<Held> {
        all.iter().filter(|held| !there(held) && !covered(held)).copied().collect()
    };
    Inventory {
        extents: gone(&named.extents, &|held| extents(held.covers.1)),
        chunks: gone(&named.chunks, &|held| chunks(held.file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn held(first: u64, last: u64, file: u64) -> Held {
        Held { covers: (first, last), file, below: LogletId(0) }
    }

    #[test]
    fn an_inventory_is_read_back_and_any_flipped_byte_is_noticed() {
        let disk = DiskId(Uuid::from_u128(7));
        let all = Inventory { extents: vec![held(3, 3, 1), held(9, 9, 0)], chunks: vec![held(4, 8, 2)] };
        let bytes = all.encode(disk);
        assert_eq!(Inventory::decode(&bytes, disk), Some(all));
        assert_eq!(Inventory::decode(&bytes, DiskId(Uuid::from_u128(8))), None);
        for at in (0..bytes.len()).filter(|at| !(5..8).contains(at)) {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(Inventory::decode(&bad, disk), None, "byte {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Inventory::decode(&bytes[..len], disk), None, "cut to {len}");
        }
    }

    #[test]
    fn what_is_named_and_not_there_is_missing_unless_a_chunk_covers_it() {
        let named = Inventory {
            extents: vec![held(1, 1, 1), held(2, 2, 2), held(5, 5, 5)],
            chunks: vec![held(3, 4, 1), held(6, 9, 2)],
        };
        let found = missing(&named, |n| n == 5, |sequence| sequence == 2, &[(2, 2)]);
        assert_eq!(found, Inventory { extents: vec![held(1, 1, 1)], chunks: vec![held(3, 4, 1)] });
        let merged = missing(&named, |n| n == 5, |_| false, &[(1, 9)]);
        assert_eq!(merged, Inventory::default());
    }
}
