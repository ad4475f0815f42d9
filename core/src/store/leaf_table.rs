//! The leaf table: what must outlive recycled extents. Fences, trim points, which addresses were ever written, and the
//! loglets deleted by tombstone. Written, twice, before an extent that may hold such facts is recycled.

use crate::codec::crc32c;
use crate::store::Inner;
use crate::store::discarded::Discarded;
use crate::store::format::{VERSION, u16_at, u32_at, u64_at};
use crate::store::registers::Registers;
use crate::store::superblock::write_whole;
use crate::types::{DiskId, LeafId, LogletId};
use std::io;
use std::path::Path;

const MAGIC: [u8; 4] = *b"RWLT";
const HEADER: usize = 48;
/// The two copies: one bad byte loses nothing.
pub(crate) const FILES: [&str; 2] = ["leaves", "leaves-copy"];
/// Runs of deleted loglets that are remembered; the newest stay.
const DISCARDED_MAX: usize = 65_536;
/// Deleted loglets as runs; before, in version 1, each by itself.
const RUNS: u8 = 2;

/// Contents of the table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LeafTable {
    pub(crate) sequence: u64,
    pub(crate) leaves: Vec<(LeafId, Registers)>,
    pub(crate) discarded: Discarded,
    /// Numbers below were used by extents, which may be recycled; none is used again.
    pub(crate) next_extent: u64,
    /// The same, of write groups.
    pub(crate) next_group: u64,
}

impl LeafTable {
    fn encode(&self, disk: DiskId) -> Vec<u8> {
        let mut b = Vec::with_capacity(HEADER + 48 * self.leaves.len());
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&[RUNS, 0, 0, 0]);
        b.extend_from_slice(disk.0.as_bytes());
        b.extend_from_slice(&self.sequence.to_le_bytes());
        b.extend_from_slice(&(self.leaves.len() as u64).to_le_bytes());
        b.extend_from_slice(&(self.discarded.runs().len() as u64).to_le_bytes());
        for (id, r) in &self.leaves {
            let holes: Vec<_> = r.holes().collect();
            b.extend_from_slice(&id.loglet.0.to_le_bytes());
            b.extend_from_slice(&id.leaf.to_le_bytes());
            b.extend_from_slice(&[u8::from(r.is_fenced()), 0]);
            b.extend_from_slice(&(holes.len() as u32).to_le_bytes());
            b.extend_from_slice(&r.end().to_le_bytes());
            b.extend_from_slice(&r.trimmed().to_le_bytes());
            for (start, end) in holes {
                b.extend_from_slice(&start.to_le_bytes());
                b.extend_from_slice(&end.to_le_bytes());
            }
        }
        for (first, last) in self.discarded.runs() {
            b.extend_from_slice(&first.to_le_bytes());
            b.extend_from_slice(&last.to_le_bytes());
        }
        b.extend_from_slice(&self.next_extent.to_le_bytes());
        b.extend_from_slice(&self.next_group.to_le_bytes());
        let crc = crc32c(&[&b]);
        b.extend_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a table's bytes; `None`: damaged, or another disk's.
    pub(crate) fn decode(b: &[u8], disk: DiskId) -> Option<LeafTable> {
        let (body, crc) = b.split_at_checked(b.len().checked_sub(4)?)?;
        let version = *body.get(4)?;
        let known = [VERSION, RUNS].contains(&version);
        let ours = body.get(..4)? == MAGIC && known && body.get(8..24)? == disk.0.as_bytes();
        if !ours || u32_at(crc, 0)? != crc32c(&[body]) {
            return None;
        }
        let mut table = LeafTable { sequence: u64_at(body, 24)?, ..LeafTable::default() };
        let mut at = HEADER;
        for _ in 0..u64_at(body, 32)? {
            let id = LeafId { loglet: LogletId(u64_at(body, at)?), leaf: u16_at(body, at + 8)? };
            let fenced = *body.get(at + 10)? != 0;
            let holes = u32_at(body, at + 12)? as usize;
            let (end, trim) = (u64_at(body, at + 16)?, u64_at(body, at + 24)?);
            at += 32;
            let mut runs = Vec::new();
            for _ in 0..holes {
                runs.push((u64_at(body, at)?, u64_at(body, at + 8)?));
                at += 16;
            }
            table.leaves.push((id, Registers::restored(end, trim, fenced, &runs)));
        }
        for _ in 0..u64_at(body, 40)? {
            let first = u64_at(body, at)?;
            if version == VERSION {
                table.discarded.insert(LogletId(first));
                at += 8;
                continue;
            }
            if !table.discarded.push(first, u64_at(body, at + 8)?) {
                return None;
            }
            at += 16;
        }
        // A table of before has none.
        table.next_extent = u64_at(body, at).unwrap_or_default();
        table.next_group = u64_at(body, at + 8).unwrap_or_default();
        Some(table)
    }

    /// Writes both copies, durably.
    ///
    /// Errors: nothing may be recycled then.
    pub(crate) fn write(&self, dir: &Path, disk: DiskId) -> io::Result<()> {
        let bytes = self.encode(disk);
        FILES.iter().try_for_each(|name| write_whole(&dir.join(name), &bytes))
    }
}

/// What the two files hold.
pub(crate) struct Loaded {
    /// The newer good copy.
    pub(crate) table: Option<LeafTable>,
    /// Copies that are there and bad.
    pub(crate) damaged: Vec<&'static str>,
}

/// Reads the table.
pub(crate) fn load(dir: &Path, disk: DiskId) -> io::Result<Loaded> {
    let mut loaded = Loaded { table: None, damaged: Vec::new() };
    for name in FILES {
        let bytes = match std::fs::read(dir.join(name)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        match LeafTable::decode(&bytes, disk) {
            None => loaded.damaged.push(name),
            Some(t) if loaded.table.as_ref().is_none_or(|o| o.sequence < t.sequence) => {
                loaded.table = Some(t)
            }
            Some(_) => {}
        }
    }
    Ok(loaded)
}

impl Inner {
    /// The table of what is durable at the moment.
    pub(crate) fn leaf_table(&self, sequence: u64) -> LeafTable {
        let mut leaves = Vec::new();
        for leaf in self.leaves() {
            let state = leaf.state.read();
            if !state.discarded && (state.registers.end() > 0 || state.registers.is_fenced()) {
                leaves.push((leaf.id, state.registers.clone()));
            }
        }
        let discarded = self.discarded.lock().newest(DISCARDED_MAX);
        let extents = self.extents.lock();
        let all = extents.live.values().chain(extents.chunks.values());
        let next_group = all.filter_map(|e| e.directory.get()).map(|d| d.end_group).max().unwrap_or_default();
        let next_group = next_group.max(extents.next_group);
        LeafTable { sequence, leaves, discarded, next_extent: extents.next_number, next_group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discarded(ids: &[u64]) -> Discarded {
        let mut discarded = Discarded::default();
        ids.iter().for_each(|id| discarded.insert(LogletId(*id)));
        discarded
    }

    #[test]
    fn a_table_that_names_each_deleted_loglet_is_read() {
        let disk = DiskId(uuid::Uuid::from_u128(5));
        let mut bytes = [&MAGIC[..], &[VERSION, 0, 0, 0], disk.0.as_bytes()].concat();
        for number in [4u64, 0, 3, 8, 9, 12, 77, 78] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&[&bytes]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let expected = LeafTable {
            sequence: 4,
            leaves: Vec::new(),
            discarded: discarded(&[8, 9, 12]),
            next_extent: 77,
            next_group: 78,
        };
        assert_eq!(LeafTable::decode(&bytes, disk), Some(expected));
    }

    #[test]
    fn a_table_is_read_back_and_any_flipped_byte_is_noticed() {
        let disk = DiskId(uuid::Uuid::from_u128(5));
        let id = |n| LeafId { loglet: LogletId(n), leaf: 3 };
        let leaves = vec![
            (id(1), Registers::restored(10, 2, true, &[(4, 6), (7, 9)])),
            (id(2), Registers::restored(0, 0, true, &[])),
        ];
        let table = LeafTable {
            sequence: 4,
            leaves,
            discarded: discarded(&[8, 9, 12]),
            next_extent: 77,
            next_group: 78,
        };
        let bytes = table.encode(disk);
        assert_eq!(LeafTable::decode(&bytes, disk), Some(table));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(LeafTable::decode(&bad, disk), None, "byte {at}");
            assert_eq!(LeafTable::decode(&bytes[..at], disk), None, "cut at {at}");
        }
    }
}
