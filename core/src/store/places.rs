//! Where each disk of a node was last: a small text file in the first data directory, so that a disk that is not there can
//! be named by its directory. For messages only; nothing is decided by it, and it may be deleted.

use crate::store::superblock::write_whole;
use crate::types::DiskId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// File in the first data directory: a line per disk, its identity and its directory.
const PLACES: &str = "disks";
/// A larger file is not ours.
const BYTES_MAX: u64 = 1 << 20;

/// Directories by disk, as far as they are known.
pub fn read(dir: &Path) -> BTreeMap<DiskId, PathBuf> {
    let path = dir.join(PLACES);
    if std::fs::metadata(&path).is_ok_and(|found| found.len() > BYTES_MAX) {
        return BTreeMap::new();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let line = |line: &str| {
        let (disk, dir) = line.split_once(' ')?;
        Some((DiskId(Uuid::parse_str(disk).ok()?), PathBuf::from(dir)))
    };
    text.lines().filter_map(line).collect()
}

/// Notes where disks are; without effect where that cannot be written.
pub fn write(dir: &Path, places: &BTreeMap<DiskId, PathBuf>) {
    if read(dir) == *places {
        return;
    }
    let line = |(disk, dir): (&DiskId, &PathBuf)| format!("{disk} {}\n", dir.display());
    let text: String = places.iter().map(line).collect();
    if let Err(error) = write_whole(&dir.join(PLACES), text.as_bytes()) {
        tracing::debug!(%error, "where disks are is not noted");
    }
}

/// Whether the two name the same directory or file.
pub fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_back_and_nonsense_is_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), BTreeMap::new());
        let places = BTreeMap::from([
            (DiskId(Uuid::from_u128(1)), PathBuf::from("/a b/c")),
            (DiskId(Uuid::from_u128(2)), PathBuf::from("/d")),
        ]);
        write(dir.path(), &places);
        assert_eq!(read(dir.path()), places);
        std::fs::write(dir.path().join(PLACES), "x\n\0\n1 2\n").expect("written");
        assert_eq!(read(dir.path()), BTreeMap::new());
    }
}
