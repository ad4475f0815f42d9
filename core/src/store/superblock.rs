//! Who a data directory is: the superblock and the lock file. Refuses what is in use, newer, or somebody else's.
//!
//! The superblock is written to a new file and renamed over the old one, both synced: there is always one whole.

use crate::codec::crc32c;
use crate::store::chunk::CHUNKS;
use crate::store::extent::EXTENTS;
use crate::store::file::{Faults, PROBE};
use crate::store::format::{u32_at, u64_at};
use crate::store::room::{self, is_full};
use crate::store::{inventory, leaf_table, places};
use crate::types::{DiskId, Generation, NodeId};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: [u8; 8] = *b"RANGEWAY";
const FORMAT: u32 = 1;
const LEN: usize = 128;
/// File name of the superblock.
pub(crate) const SUPERBLOCK: &str = "superblock";
const LOCK: &str = "lock";

/// Why a data directory does not open. All are final until an operator acts.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the lock; until it ends.
    #[error("{dir}: in use by another process (it holds {dir}/lock)", dir = .0.display())]
    InUse(PathBuf),
    /// Written by a newer program.
    #[error("{}: format {got} is newer than this program's {expected}; use a newer program", .file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// Format found.
        got: u32,
        /// Newest format that this program reads.
        expected: u32,
    },
    /// The directory belongs to another cluster.
    #[error("{}: belongs to cluster {got}, expected {expected}; wrong data directory?", .dir.display())]
    Cluster {
        /// The data directory.
        dir: PathBuf,
        /// Cluster found.
        got: Uuid,
        /// Cluster of this node.
        expected: Uuid,
    },
    /// The directory belongs to another node.
    #[error("{}: belongs to node {got}, expected {expected}; wrong data directory?", .dir.display())]
    Node {
        /// The data directory.
        dir: PathBuf,
        /// Node found.
        got: NodeId,
        /// This node.
        expected: NodeId,
    },
    /// The disk is too small to begin on; until it grows, or the settings get smaller.
    #[error(
        "{}: the disk has {size} bytes, at least {least} are needed: two extents of {extent_bytes} and a reserve of \
         {reserve_bytes}; set extent.bytes (from 64KiB) or disk.reserve.bytes lower, or take a larger disk",
        .dir.display()
    )]
    TooSmall {
        /// The data directory.
        dir: PathBuf,
        /// Bytes of its disk.
        size: u64,
        /// Bytes needed.
        least: u64,
        /// Bytes of an extent.
        extent_bytes: u64,
        /// Bytes that entries may not use.
        reserve_bytes: u64,
    },
    /// Nothing of this program is in the directory, and something else is.
    #[error(
        "it holds no data of a node, and what it holds is none of ours ({found}): a new disk begins in an empty directory; \
         name one that is empty or not there yet, such as {}",
        .dir.join("rangeway").display()
    )]
    Foreign {
        /// The data directory.
        dir: PathBuf,
        /// Some of the names that are there.
        found: String,
    },
    /// The superblock is there and bad, or gone while data is there.
    #[error("{}: {what}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("{}: {error}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(file: &Path) -> impl FnOnce(io::Error) -> OpenError + '_ {
        move |error| OpenError::Io { file: file.to_owned(), error }
    }
}

impl OpenError {
    /// Whether the disk, not the operator's choice of directories, is what is wrong: other disks can go on without it.
    pub fn is_of_the_disk(&self) -> bool {
        match self {
            OpenError::Damaged { .. } | OpenError::Io { .. } => true,
            OpenError::InUse(_)
            | OpenError::Newer { .. }
            | OpenError::Cluster { .. }
            | OpenError::Node { .. }
            | OpenError::Foreign { .. }
            | OpenError::TooSmall { .. } => false,
        }
    }
}

/// Who a data directory is, before it is opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Nobody yet: missing, or without superblock and data. Opening it makes a new disk of it.
    New,
    /// This disk, as its last start left it.
    Disk {
        /// Its identity.
        id: DiskId,
        /// Which of its starts that was.
        generation: Generation,
    },
}

/// Looks who a data directory is. Changes nothing and takes no lock.
///
/// Errors: what makes it impossible to say, as [`begin`] would; `Foreign` until another directory is named: one without a
/// superblock in which is more than the first start of a node makes, and `others`.
pub(crate) fn look(dir: &Path, has_data: bool, others: &[&str]) -> Result<Identity, OpenError> {
    match read(dir, has_data)? {
        Some(Superblock { disk: id, generation, .. }) => Ok(Identity::Disk { id, generation }),
        None => refuse_foreign(dir, others).map(|()| Identity::New),
    }
}

/// The superblock; `None`: there is none, nor data.
fn read(dir: &Path, has_data: bool) -> Result<Option<Superblock>, OpenError> {
    let path = dir.join(SUPERBLOCK);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(Superblock::decode(&bytes, &path)?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !has_data => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(missing(path)),
        Err(error) => Err(OpenError::Io { file: path, error }),
    }
}

/// What file systems have in a new root.
const OF_FILE_SYSTEMS: &[&str] = &["lost+found", ".snapshot", ".zfs"];
/// So many foreign names are told.
const FOREIGN_NAMES: usize = 3;

/// Names in a data directory that a first start may have made before it was cut off, besides `.new` files.
fn ours() -> impl Iterator<Item = &'static str> {
    let tables = leaf_table::FILES.into_iter();
    tables.chain([SUPERBLOCK, LOCK, EXTENTS, CHUNKS, inventory::FILE, room::BALLAST, places::FILE, PROBE])
}

/// Whether a name without `.new` is of this program, or of the file system.
fn is_known(name: &str, others: &[&str]) -> bool {
    let known = |name: &str| ours().any(|our| our == name) || others.contains(&name);
    let was = name.strip_suffix(".new").unwrap_or(name);
    known(name) || known(was) || OF_FILE_SYSTEMS.contains(&name)
}

fn refuse_foreign(dir: &Path, others: &[&str]) -> Result<(), OpenError> {
    let items = match std::fs::read_dir(dir) {
        Ok(items) => items,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OpenError::Io { file: dir.to_owned(), error }),
    };
    let mut found = Vec::new();
    for item in items {
        let name = item.map_err(OpenError::io(dir))?.file_name().to_string_lossy().into_owned();
        if !is_known(&name, others) {
            found.push(format!("'{name}'"));
        }
    }
    found.sort();
    let more = if found.len() > FOREIGN_NAMES { ", …" } else { "" };
    found.truncate(FOREIGN_NAMES);
    match found.is_empty() {
        true => Ok(()),
        false => Err(OpenError::Foreign { dir: dir.to_owned(), found: found.join(", ") + more }),
    }
}

/// Whether a directory with a superblock is this node's, and free; answers its cluster. Changes nothing.
///
/// Errors: `Cluster`, `Node`, `InUse`, as opening it would.
pub(crate) fn belongs(dir: &Path, cluster: Option<Uuid>, node: NodeId) -> Result<Uuid, OpenError> {
    let found = read(dir, true)?.ok_or_else(|| missing(dir.join(SUPERBLOCK)))?;
    found.check(dir, cluster, node)?;
    let path = dir.join(LOCK);
    // One that cannot be opened is found out when the directory is.
    if let Ok(lock) = OpenOptions::new().write(true).open(&path)
        && flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(OpenError::InUse(dir.to_owned()));
    }
    Ok(found.cluster)
}

fn missing(file: PathBuf) -> OpenError {
    let what = "superblock missing although extents are there; restore it or move the directory away";
    OpenError::Damaged { file, what: what.into() }
}

/// What the superblock says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) cluster: Uuid,
    pub(crate) node: NodeId,
    pub(crate) disk: DiskId,
    pub(crate) generation: Generation,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut b = [0u8; LEN];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        b[12..16].copy_from_slice(&self.node.0.to_le_bytes());
        b[16..32].copy_from_slice(self.cluster.as_bytes());
        b[32..48].copy_from_slice(self.disk.0.as_bytes());
        b[48..56].copy_from_slice(&self.generation.0.to_le_bytes());
        let crc = crc32c(&[&b[..LEN - 4]]);
        b[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a superblock's bytes.
    ///
    /// Errors: `Newer` until a newer program runs, `Damaged` for good.
    pub(crate) fn decode(b: &[u8], file: &Path) -> Result<Superblock, OpenError> {
        let damaged = |what: &str| OpenError::Damaged { file: file.to_owned(), what: what.to_owned() };
        if b.get(..8) != Some(&MAGIC[..]) {
            return Err(damaged("no superblock of this program (magic differs)"));
        }
        let format = u32_at(b, 8).ok_or_else(|| damaged("superblock cut"))?;
        if format > FORMAT {
            return Err(OpenError::Newer { file: file.to_owned(), got: format, expected: FORMAT });
        }
        let parse = || {
            if b.len() != LEN || u32_at(b, LEN - 4)? != crc32c(&[b.get(..LEN - 4)?]) {
                return None;
            }
            Some(Superblock {
                node: NodeId(u32_at(b, 12)? as i32),
                cluster: Uuid::from_bytes(*b.get(16..)?.first_chunk::<16>()?),
                disk: DiskId(Uuid::from_bytes(*b.get(32..)?.first_chunk::<16>()?)),
                generation: Generation(u64_at(b, 48)?),
            })
        };
        parse().ok_or_else(|| damaged("superblock damaged: checksum differs"))
    }

    /// Errors: `Cluster` or `Node`, until another directory is named.
    fn check(&self, dir: &Path, cluster: Option<Uuid>, node: NodeId) -> Result<(), OpenError> {
        let (dir, got) = (dir.to_owned(), self.cluster);
        if let Some(expected) = cluster.filter(|c| *c != got) {
            return Err(OpenError::Cluster { dir, got, expected });
        }
        if self.node != node {
            return Err(OpenError::Node { dir, got: self.node, expected: node });
        }
        Ok(())
    }

    fn write(&self, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(SUPERBLOCK);
        write_whole(&path, &self.encode()).map_err(OpenError::io(&path))
    }
}

/// Replaces a small file: either the old or the new content is there, whole, after any crash.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Makes names created in or removed from a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Takes the directory's lock; held until the file is dropped.
///
/// Errors: `InUse` until the other process ends.
pub(crate) fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(OpenError::io(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(dir.to_owned())),
        Err(e) => Err(OpenError::Io { file: path, error: e.into() }),
    }
}

/// Reads or creates the superblock and begins the next generation.
///
/// On a full disk the old superblock stays, with the reason: then nothing may be written in this generation.
///
/// Errors: see [`OpenError`]; a directory that has extents and no superblock is damaged, not new.
pub(crate) fn begin(
    dir: &Path,
    cluster: Option<Uuid>,
    node: NodeId,
    has_data: bool,
    faults: Option<&Arc<dyn Faults>>,
) -> Result<(Superblock, Option<OpenError>), OpenError> {
    let found = read(dir, has_data)?;
    let next = match found {
        None => Superblock {
            cluster: cluster.unwrap_or_else(Uuid::new_v4),
            node,
            disk: DiskId(Uuid::new_v4()),
            generation: Generation(1),
        },
        Some(s) => {
            s.check(dir, cluster, node)?;
            Superblock { generation: Generation(s.generation.0 + 1), ..s }
        }
    };
    let written = match faults.is_some_and(|faults| faults.no_room_to_begin()) {
        true => Err(OpenError::io(&dir.join(SUPERBLOCK))(rustix::io::Errno::NOSPC.into())),
        false => next.write(dir),
    };
    match (written, found) {
        (Ok(()), _) => Ok((next, None)),
        (Err(full), Some(found)) if is_full(&full) => Ok((found, Some(full))),
        (Err(e), _) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`look`] says of a directory with these names in it: those that are none of ours.
    fn foreign(names: &[&str]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            match name.strip_suffix('/') {
                Some(name) => std::fs::create_dir(dir.path().join(name)).unwrap(),
                None => std::fs::write(dir.path().join(name), "").unwrap(),
            }
        }
        match look(dir.path(), false, &["control.redb"]) {
            Ok(identity) => {
                assert_eq!(identity, Identity::New);
                None
            }
            Err(OpenError::Foreign { found, .. }) => Some(found),
            Err(other) => panic!("{names:?}: {other}"),
        }
    }

    #[test]
    fn a_directory_with_foreign_files_is_not_taken_for_a_new_disk() {
        for ours in [
            &[][..],
            &["lost+found/"],
            &["extents/", "chunks/", "lock", "lost+found/"],
            &["extents/", "chunks/", "lock", "ballast", "superblock.new", "probe.new"],
            &["control.redb", "disks", "leaves", "leaves-copy", "leaves-copy.new", "inventory"],
        ] {
            assert_eq!(foreign(ours), None, "{ours:?}");
        }
        assert_eq!(foreign(&["etc/", "lost+found/"]).as_deref(), Some("'etc'"));
        assert_eq!(foreign(&[".profile", "extents/"]).as_deref(), Some("'.profile'"));
        assert_eq!(foreign(&["d", "c", "b", "a.new"]).as_deref(), Some("'a.new', 'b', 'c', …"));
    }

    #[test]
    fn whose_a_directory_is_and_that_it_is_in_use_is_known_before_it_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let (superblock, _) = begin(dir.path(), None, NodeId(1), false, None).unwrap();
        let cluster = superblock.cluster;
        let asked = |cluster, node| belongs(dir.path(), cluster, NodeId(node));
        assert!(matches!(asked(None, 1), Err(OpenError::InUse(_))));
        drop(held);
        assert_eq!(asked(Some(cluster), 1).unwrap(), cluster);
        assert_eq!(asked(None, 1).unwrap(), cluster);
        assert!(matches!(asked(None, 2), Err(OpenError::Node { .. })));
        assert!(matches!(asked(Some(Uuid::from_u128(1)), 1), Err(OpenError::Cluster { .. })));
    }
}
