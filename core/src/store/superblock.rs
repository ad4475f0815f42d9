//! Who a data directory is: the superblock and the lock file. Refuses what is in use, newer, or somebody else's.
//!
//! The superblock is written to a new file and renamed over the old one, both synced: there is always one whole.

use crate::codec::crc32c;
use crate::store::file::Faults;
use crate::store::format::{u32_at, u64_at};
use crate::store::room::is_full;
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
            | OpenError::TooSmall { .. } => false,
        }
    }
}

/// Who a data directory is, before it is opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Nobody yet: missing, or without superblock and data. Opening it makes a new disk of it.
    New,
    /// This disk.
    Disk(DiskId),
}

/// Looks who a data directory is. Changes nothing and takes no lock.
///
/// Errors: what makes it impossible to say, as [`begin`] would.
pub(crate) fn look(dir: &Path, has_data: bool) -> Result<Identity, OpenError> {
    let path = dir.join(SUPERBLOCK);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Identity::Disk(Superblock::decode(&bytes, &path)?.disk)),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !has_data => Ok(Identity::New),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(missing(path)),
        Err(error) => Err(OpenError::Io { file: path, error }),
    }
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
    let path = dir.join(SUPERBLOCK);
    let found = match std::fs::read(&path) {
        Ok(bytes) => Some(Superblock::decode(&bytes, &path)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !has_data => None,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(path)),
        Err(error) => return Err(OpenError::Io { file: path, error }),
    };
    let next = match found {
        None => Superblock {
            cluster: cluster.unwrap_or_else(Uuid::new_v4),
            node,
            disk: DiskId(Uuid::new_v4()),
            generation: Generation(1),
        },
        Some(s) => {
            if let Some(expected) = cluster.filter(|c| *c != s.cluster) {
                return Err(OpenError::Cluster { dir: dir.to_owned(), got: s.cluster, expected });
            }
            if s.node != node {
                return Err(OpenError::Node { dir: dir.to_owned(), got: s.node, expected: node });
            }
            Superblock { generation: Generation(s.generation.0 + 1), ..s }
        }
    };
    let written = match faults.is_some_and(|faults| faults.no_room_to_begin()) {
        true => Err(OpenError::io(&path)(rustix::io::Errno::NOSPC.into())),
        false => next.write(dir),
    };
    match (written, found) {
        (Ok(()), _) => Ok((next, None)),
        (Err(full), Some(found)) if is_full(&full) => Ok((found, Some(full))),
        (Err(e), _) => Err(e),
    }
}
