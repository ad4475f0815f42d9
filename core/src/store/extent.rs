//! Extent and chunk files: names, creation, the pin that keeps one from being recycled.

use crate::store::directory::DirectoryHeader;
use crate::store::file::{self, Faults};
use crate::store::format::BLOCK;
use crate::store::leaf::Index;
use crate::types::LeafId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Directory of the extents, under the data directory.
pub(crate) const EXTENTS: &str = "extents";

/// Mean payload bytes of a partition in an extent from which on it is data as it is.
const ADOPTED_RUN_MIN: u64 = 128 << 10;
/// Bit of [`Extent::key`] that tells chunks from extents.
pub(crate) const CHUNK_KEY: u64 = 1 << 63;

/// An extent that holds data, or a chunk that stands in the place of some. Whoever holds the `Arc` pins it.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Orders extents and chunks; a chunk has the number of the last extent in whose place it stands.
    pub(crate) number: u64,
    /// First extent in whose place it stands; an extent's own number.
    pub(crate) first: u64,
    /// Which file it is, also while an extent and the chunk made of it live side by side.
    pub(crate) key: u64,
    pub(crate) path: PathBuf,
    /// Opened for buffered reads.
    pub(crate) file: Arc<File>,
    len: AtomicU64,
    /// Leaves that have anything in it, in order.
    pub(crate) leaves: Mutex<BTreeSet<LeafId>>,
    /// Payload bytes of leaves that were deleted before it has a directory.
    pub(crate) gone: Mutex<BTreeMap<LeafId, u64>>,
    /// Head of its directory, once it has one.
    pub(crate) directory: OnceLock<DirectoryHeader>,
    /// A bit per block: the entry of at least a block's size that begins there was checked in this process.
    checked: OnceLock<Box<[AtomicU64]>>,
    /// Payload bytes, once it has a directory.
    pub(crate) payload: AtomicU64,
    /// At least half of it is dead, as far as was looked.
    pub(crate) half_dead: AtomicBool,
    /// Was looked at whole.
    pub(crate) looked: AtomicBool,
    /// Cannot be rewritten: an entry in it is damaged.
    pub(crate) stuck: AtomicBool,
}

impl Extent {
    pub(crate) fn new(number: u64, path: PathBuf, file: File, len: u64) -> Extent {
        Extent::with_key(number, (number, number), path, file, len)
    }

    /// A chunk in the place of the extents `covers`, first to last.
    pub(crate) fn chunk(sequence: u64, covers: (u64, u64), path: PathBuf, file: File, len: u64) -> Extent {
        Extent::with_key(CHUNK_KEY | sequence, covers, path, file, len)
    }

    fn with_key(key: u64, (first, number): (u64, u64), path: PathBuf, file: File, len: u64) -> Extent {
        Extent {
            number,
            first,
            key,
            payload: AtomicU64::new(0),
            half_dead: AtomicBool::new(false),
            looked: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            path,
            file: Arc::new(file),
            len: AtomicU64::new(len),
            leaves: Mutex::default(),
            gone: Mutex::default(),
            directory: OnceLock::new(),
            checked: OnceLock::new(),
        }
    }

    /// Remembers what a deleted leaf had in it, for the directory that is not written yet: how much of it is dead.
    pub(crate) fn note_gone(&self, id: LeafId, index: &Index) {
        if let Index::Memory(index) = index {
            let bytes = index.entries().iter().map(|e| u64::from(e.payload_len)).sum();
            self.gone.lock().insert(id, bytes);
        }
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Its end was cut: so many bytes of the file are left.
    pub(crate) fn shrink(&self, len: u64) {
        self.len.store(len, Ordering::Relaxed);
    }

    pub(crate) fn is_chunk(&self) -> bool {
        self.key & CHUNK_KEY != 0
    }

    /// Whether it is an extent that stays as it is: its partitions lie in large runs.
    pub(crate) fn is_adopted(&self) -> bool {
        let runs = self.directory.get().map_or(0, |d| u64::from(d.partitions));
        let payload = self.payload.load(Ordering::Relaxed);
        !self.is_chunk() && payload.checked_div(runs).is_some_and(|mean| mean >= ADOPTED_RUN_MIN)
    }

    /// Whether it is a closed extent that is not adopted.
    pub(crate) fn is_scattered(&self) -> bool {
        !self.is_chunk() && self.directory.get().is_some() && !self.is_adopted()
    }

    fn bit(position: u32) -> (usize, u64) {
        let block = position as usize / BLOCK;
        (block / 64, 1 << (block % 64))
    }

    /// Whether the entry (of at least a block) at `position` was checked before.
    pub(crate) fn is_checked(&self, position: u32) -> bool {
        let (word, bit) = Extent::bit(position);
        let word = self.checked.get().and_then(|words| words.get(word));
        word.is_some_and(|w| w.load(Ordering::Relaxed) & bit != 0)
    }

    pub(crate) fn set_checked(&self, position: u32) {
        let (word, bit) = Extent::bit(position);
        let words = self.len() as usize / BLOCK / 64 + 1;
        let all = self.checked.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        if let Some(w) = all.get(word) {
            w.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// The number in an extent file's name.
pub(crate) fn file_number(path: &Path) -> Option<u64> {
    if path.extension()? != "ext" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

/// Path of the extent file with this number. A recycled file keeps its name; its header says which extent it holds.
pub(crate) fn path(dir: &Path, file: u64) -> PathBuf {
    dir.join(EXTENTS).join(format!("{file:08}.ext"))
}

/// Creates an extent file of `len` bytes, all allocated and zero.
///
/// Errors: no space, or the file system fails; the file is removed again.
pub(crate) fn allocate(path: &Path, len: u64, faults: Option<&Arc<dyn Faults>>) -> io::Result<()> {
    if faults.is_some_and(|f| f.allocate_fails(len)) {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()));
    }
    let create = || OpenOptions::new().write(true).create_new(true).open(path);
    let file = file::with_descriptor(faults, create)?;
    let made = match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(len),
        Err(e) => Err(e.into()),
    };
    let made = made.and_then(|()| file.sync_all());
    if made.is_err() {
        std::fs::remove_file(path)?;
    }
    made
}
