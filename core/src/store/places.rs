//! Where each disk of a node was last: a small text file in the first data directory, so that a disk that is not there can
//! be named by its directory. For messages only; nothing is decided by it, and it may be deleted.

use crate::store::superblock::write_whole;
use crate::types::DiskId;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use uuid::Uuid;

/// File in the first data directory: a line per disk, its identity and its directory.
pub const FILE: &str = "disks";
/// A larger file is not ours.
const BYTES_MAX: u64 = 1 << 20;

/// Directories by disk, as far as they are known.
pub fn read(dir: &Path) -> BTreeMap<DiskId, PathBuf> {
    let path = dir.join(FILE);
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
    if let Err(error) = write_whole(&dir.join(FILE), text.as_bytes()) {
        tracing::debug!(%error, "where disks are is not noted");
    }
}

/// Whether the two name the same directory or file, one that is there or one that is to be made.
pub fn is_same(a: &Path, b: &Path) -> bool {
    matches!((resolved(a), resolved(b)), (Some(a), Some(b)) if a == b)
}

/// A path without links and dots: as the file system has it as far as it is there, and as it will have it beyond.
fn resolved(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    let (part, mut resolved) = there?;
    for beyond in path.strip_prefix(part).ok()?.components() {
        match beyond {
            Component::ParentDir => drop(resolved.pop()),
            beyond => resolved.push(beyond),
        }
    }
    Some(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_one_directory_are_told_before_it_is_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir(at("there")).expect("made");
        std::os::unix::fs::symlink(at("there"), at("link")).expect("linked");
        for (a, b) in [
            ("new", "new"),
            ("new", "./new/"),
            ("new", "there/../new"),
            ("new/x", "new/y/../x"),
            ("there", "link"),
            ("there/new", "link/new"),
        ] {
            assert!(is_same(&at(a), &at(b)), "{a} {b}");
            assert!(!is_same(&at(a), &at("other")), "{a}");
        }
        assert!(is_same(Path::new("new-here"), Path::new("./new-here")));
        assert!(!is_same(&at("there"), &at("there/new")));
    }

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
        std::fs::write(dir.path().join(FILE), "x\n\0\n1 2\n").expect("written");
        assert_eq!(read(dir.path()), BTreeMap::new());
    }
}
