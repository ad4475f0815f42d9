//! Chunk files: names, header, and which of them count after a crash. A chunk stands in the place of neighbouring
//! extents: each partition's payloads back to back, entry headers in its directory.
//!
//! ```text
//! | header block 4096 | payloads by leaf, partition, address | zeros to 4096 |
//! ```
//! A chunk counts once its directory is there; before, the extents count. From then on the extents that it covers do
//! not, whether they are recycled yet or not.

use crate::codec::crc32c;
use crate::store::directory;
use crate::store::format::{BLOCK, VERSION, u64_at};
use crate::types::DiskId;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Directory of the chunks, under the data directory.
pub(crate) const CHUNKS: &str = "chunks";

const MAGIC: [u8; 4] = *b"RWCK";
const HEADER_LEN: usize = 128;

/// Who a chunk file is. All that finding its entries needs is in its directory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) disk: DiskId,
    /// Grows with each chunk of the disk.
    pub(crate) sequence: u64,
    pub(crate) covers: (u64, u64),
    /// Where the payloads end.
    pub(crate) data_end: u64,
}

impl ChunkHeader {
    /// The header block.
    pub(crate) fn encode(&self) -> [u8; BLOCK] {
        let mut b = [0u8; BLOCK];
        b[0..4].copy_from_slice(&MAGIC);
        b[4] = VERSION;
        b[8..24].copy_from_slice(self.disk.0.as_bytes());
        b[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        b[32..40].copy_from_slice(&self.covers.0.to_le_bytes());
        b[40..48].copy_from_slice(&self.covers.1.to_le_bytes());
        b[48..56].copy_from_slice(&self.data_end.to_le_bytes());
        let crc = crc32c(&[&b[..HEADER_LEN - 4]]);
        b[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        b
    }
}

/// The header in a chunk's first block, when it is exactly one.
pub(crate) fn header_of(block: &[u8]) -> Option<ChunkHeader> {
    let header = ChunkHeader {
        disk: DiskId(Uuid::from_bytes(*block.get(8..)?.first_chunk::<16>()?)),
        sequence: u64_at(block, 24)?,
        covers: (u64_at(block, 32)?, u64_at(block, 40)?),
        data_end: u64_at(block, 48)?,
    };
    (header.encode() == block).then_some(header)
}

/// Path of a chunk file.
pub(crate) fn path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(CHUNKS).join(format!("{sequence:08}.chk"))
}

/// The number in a chunk file's name.
pub(crate) fn sequence_of(path: &Path) -> Option<u64> {
    if path.extension()? != "chk" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

/// Chunk files of a data directory, the newest first.
///
/// Errors: the directory cannot be read; without one there are none.
pub(crate) fn files(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let items = match std::fs::read_dir(dir.join(CHUNKS)) {
        Ok(items) => items,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut files = Vec::new();
    for item in items {
        let path = item?.path();
        // A directory without its chunk is a lost chunk.
        let path =
            if path.extension().is_some_and(|e| e == "dir") { path.with_extension("chk") } else { path };
        if let Some(sequence) = sequence_of(&path) {
            files.push((sequence, path));
        }
    }
    files.sort_by(|a, b| b.cmp(a));
    files.dedup();
    Ok(files)
}

/// Deletes a chunk: directory first, so that what a crash leaves does not count.
pub(crate) fn delete(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    match std::fs::remove_file(directory::path_of(path)) {
        Ok(()) => crate::store::superblock::sync_dir(parent)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Whether a chunk stands aside for newer ones, which cover what it covers.
pub(crate) fn is_covered(covers: (u64, u64), newer: &[(u64, u64)]) -> bool {
    newer.iter().any(|n| n.0 <= covers.0 && covers.1 <= n.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_any_flipped_byte_of_its_block_is_noticed() {
        let disk = DiskId(Uuid::from_u128(5));
        let header = ChunkHeader { disk, sequence: 3, covers: (7, 9), data_end: 10_000 };
        let block = header.encode();
        assert_eq!(header_of(&block), Some(header));
        for at in 0..BLOCK {
            let mut bad = block;
            bad[at] ^= 2;
            assert_eq!(header_of(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn a_chunk_stands_aside_only_for_one_that_covers_all_of_it() {
        let newer = [(3, 5), (9, 9)];
        for (covers, expected) in
            [((3, 5), true), ((4, 4), true), ((2, 5), false), ((5, 9), false), ((9, 9), true)]
        {
            assert_eq!(is_covered(covers, &newer), expected, "{covers:?}");
        }
    }
}
