//! Files that ought to be there and are not, and files that are none of ours.
//!
//! What was never written is not missing. A directory of an extent may be missing: the extent is read instead, and the next
//! start writes it again. The lock and the ballast hold nothing.

use super::{Check, FindingKind, Live};
use crate::store::OpenError;
use crate::store::chunk::{self, CHUNKS};
use crate::store::directory;
use crate::store::extent::{self, EXTENTS, file_number};
use crate::store::inventory::{self, Inventory};
use crate::store::leaf_table;
use crate::store::superblock::Superblock;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// What is said of an extent or a chunk whose directory is there.
pub(super) const BESIDE_ITS_DIRECTORY: &str = "missing although its directory is there";

impl Check {
    /// What is known to have been written and is not there.
    pub(super) fn missing(
        &mut self,
        dir: &Path,
        superblock: Option<&Superblock>,
        live: &[Live],
    ) -> Result<(), OpenError> {
        let extents = dir.join(EXTENTS);
        if !extents.exists() {
            self.add(FindingKind::Missing, &extents, 0, "missing, and all extents with it");
        }
        let Some(superblock) = superblock else { return Ok(()) };
        let chunks = chunk::files(dir).map_err(OpenError::io(&dir.join(CHUNKS)))?;
        let counting: Vec<&(u64, PathBuf)> =
            chunks.iter().filter(|(_, path)| directory::path_of(path).exists()).collect();
        let closed = live.iter().any(|l| directory::path_of(&l.path).exists());
        let named = self.inventory(dir, superblock, closed || !counting.is_empty())?;
        let mut written = !counting.is_empty();
        if let Some(named) = named {
            self.absent(dir, &named, live, &counting);
            // The first extent was recycled, for which the table is written.
            let first =
                live.iter().map(|l| l.header.number).chain(named.extents.iter().map(|h| h.covers.0)).min();
            written |= !named.chunks.is_empty() || first.is_some_and(|first| first > 0);
        }
        self.leaf_table_copies(dir, superblock, written)
    }

    /// Reads the inventory. It stands for each extent before that one is closed.
    fn inventory(
        &mut self,
        dir: &Path,
        superblock: &Superblock,
        written: bool,
    ) -> Result<Option<Inventory>, OpenError> {
        let path = dir.join(inventory::FILE);
        match inventory::load(dir, superblock.disk).map_err(OpenError::io(&path))? {
            inventory::Loaded::Whole(named) => {
                self.count(std::fs::metadata(&path).map_err(OpenError::io(&path))?.len());
                return Ok(Some(named));
            }
            inventory::Loaded::Missing if written => {
                let what = "missing: whether an extent or a chunk is missing too is not known";
                self.add(FindingKind::Missing, &path, 0, what);
            }
            inventory::Loaded::Missing => {}
            inventory::Loaded::Damaged => {
                self.add(FindingKind::Inventory, &path, 0, "checksum, version or disk differs");
            }
        }
        Ok(None)
    }

    /// What the inventory names and is not there.
    fn absent(&mut self, dir: &Path, named: &Inventory, live: &[Live], counting: &[&(u64, PathBuf)]) {
        let (mut covered, mut seen) = (Vec::new(), HashSet::new());
        for (sequence, path) in counting {
            // One that cannot be read, or whose chunk is missing, is a finding of its own.
            seen.insert(*sequence);
            let header = directory::open(path).ok().map(|(header, _)| header);
            let held = named.chunks.iter().find(|held| held.file == *sequence).map(|held| held.covers);
            covered.extend(header.and_then(|header| header.covers).or(held));
        }
        let there: HashSet<u64> = live.iter().map(|l| l.header.number).collect();
        let absent =
            inventory::missing(named, |number| there.contains(&number), |s| seen.contains(&s), &covered);
        for held in absent.extents {
            let path = extent::path(dir, held.file);
            let state = if path.exists() { "does not hold it any more" } else { "missing" };
            self.add(FindingKind::Missing, &path, 0, format!("{state}: extent {}", held.covers.1));
        }
        for held in absent.chunks {
            let path = chunk::path(dir, held.file);
            let path = if path.exists() { directory::path_of(&path) } else { path };
            let (first, last) = held.covers;
            let what = format!("missing: chunk {} in the place of extents {first} to {last}", held.file);
            self.add(FindingKind::Missing, &path, 0, what);
        }
    }

    /// Both copies of the leaf table are there once it is `written`; a crash in its first writing leaves the first alone.
    fn leaf_table_copies(
        &mut self,
        dir: &Path,
        superblock: &Superblock,
        written: bool,
    ) -> Result<(), OpenError> {
        let [first, second] = leaf_table::FILES.map(|name| dir.join(name));
        let table = leaf_table::load(dir, superblock.disk).map_err(OpenError::io(dir))?.table;
        let written_again = table.is_some_and(|table| table.sequence > 1);
        for (copy, other, needed) in
            [(&first, &second, written || second.exists()), (&second, &first, written || written_again)]
        {
            if needed && !copy.exists() {
                let what = match other.exists() {
                    true => "missing: the other copy is used",
                    false => "missing: fences and trims of what was recycled may be lost",
                };
                self.add(FindingKind::Missing, copy, 0, what);
            }
        }
        Ok(())
    }

    /// What is none of ours; and an extent of which only the directory is there.
    pub(super) fn unknown(&mut self, files: &Path, extension: &str) -> Result<(), OpenError> {
        if !files.exists() {
            return Ok(());
        }
        let is_numbered = |path: &Path| match extension {
            "ext" => file_number(path).is_some(),
            _ => chunk::sequence_of(path).is_some(),
        };
        for item in std::fs::read_dir(files).map_err(OpenError::io(files))? {
            let path = item.map_err(OpenError::io(files))?.path();
            let ends = |with: &str| path.extension().is_some_and(|e| e == with);
            let whose = path.with_extension(extension);
            if is_numbered(&path) || ends("new") {
                continue;
            }
            if !ends("dir") || !is_numbered(&whose) {
                self.add(FindingKind::Unknown, &path, 0, "not a file of this program");
            } else if extension == "ext" && !whose.exists() && !self.names(&whose) {
                // Of chunks it is found when they are read.
                self.add(FindingKind::Missing, &whose, 0, BESIDE_ITS_DIRECTORY);
            }
        }
        Ok(())
    }

    fn names(&self, path: &Path) -> bool {
        self.report.findings.iter().any(|found| found.damage.file == path)
    }
}
