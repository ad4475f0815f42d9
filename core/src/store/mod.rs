//! The disk store of one data directory, used by all ranges; and the memory store, its likeness without a disk.
//!
//! Owns superblock, lock, journal, extents, recovery, memory tail. Knows leaves (a loglet's piece on one drive) and
//! entry headers; never ranges, chains, clients. Layouts: `docs/formats.md`.
//!
//! ```text
//! submit → queue → journal thread: group → write, durable → publish to leaves → complete tickets
//!                                              readers: memory tail, else extent or chunk file by index
//! closed extents → keeper: directory → adopted as they are, or: flusher → chunk → recycled
//! ```

use crate::drive::disk::DiskDrive;
use crate::drive::{AdmitError, Purpose, WriteError};
use crate::types::{DiskId, Generation, LeafId, LogletId, NodeId};
use dashmap::DashMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;
use uuid::Uuid;

mod chunk;
mod cut;
mod directory;
mod discarded;
mod extent;
mod file;
mod flusher;
mod format;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod index;
mod inventory;
mod journal;
mod keeper;
pub(crate) mod leaf;
mod leaf_table;
mod life;
pub(crate) mod memory;
mod mend;
mod open;
pub mod places;
pub(crate) mod query;
pub(crate) mod queue;
mod recovery;
pub(crate) mod registers;
mod rest;
mod rewrite;
mod room;
mod space;
mod stats;
pub(crate) mod superblock;
pub(crate) mod tail;
#[cfg(test)]
pub(crate) mod tests;

pub mod verify;

pub use file::{Fault, Faults, RewriteStep};
pub use memory::MemoryStore;
pub use recovery::{Damage, RecoveryReport};
pub use stats::{DiskHealth, DiskStats};
pub use superblock::{Identity, OpenError};
pub use tail::TailBudget;

use chunk::CHUNKS;
use directory::Directories;
use discarded::Discarded;
use extent::{EXTENTS, Extent};
use file::{WriteMode, Writer};
use format::{BLOCK, ExtentHeader};
use inventory::Inventory;
use journal::{Journal, Open};
use keeper::{Closed, Job, Keeper};
use leaf::Leaf;
use queue::{Item, Queue};
use space::{Moves, Space};
use stats::Counters;
use superblock::Superblock;

/// Smallest extent.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// Extents from this size on are zeroed ahead in a new data directory.
pub(crate) const ZEROED_EXTENT_MIN: u64 = 16 << 20;
/// Largest extent: positions in one are 32 bits.
pub const EXTENT_BYTES_MAX: u64 = 1 << 31;

/// Smallest buffer for pieces of chunks.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// How a data directory is opened.
#[derive(Clone)]
pub struct StoreConfig {
    /// The data directory; made when it is missing.
    pub dir: PathBuf,
    /// The cluster it must belong to; `None` takes what is there, or a new one.
    pub cluster_id: Option<Uuid>,
    /// The node it must belong to.
    pub node_id: NodeId,
    /// Size of an extent: 64 KiB to 2 GiB, rounded up to 4096. A single larger entry gets an extent of its own size.
    pub extent_bytes: u64,
    /// The node's budget for recent entries in memory, shared by its disks.
    pub tail_bytes: Arc<TailBudget>,
    /// Most bytes of closed, scattered extents that may wait; beyond, the oldest are rewritten into chunks.
    pub journal_bytes: u64,
    /// Largest piece of a chunk that is written at once, in bytes; at least 64 KiB, rounded up to 4096.
    pub chunk_bytes: usize,
    /// Bytes that entries may not use: kept for fences and other control records.
    pub reserve_bytes: u64,
    /// Makes writes fail, in tests.
    pub faults: Option<Arc<dyn Faults>>,
}

impl StoreConfig {
    /// The defaults of design 16 for a directory and a node.
    pub fn new(dir: impl Into<PathBuf>, node_id: NodeId) -> StoreConfig {
        StoreConfig {
            dir: dir.into(),
            cluster_id: None,
            node_id,
            extent_bytes: 64 << 20,
            tail_bytes: TailBudget::new(32 << 20),
            journal_bytes: 4 << 30,
            chunk_bytes: 4 << 20,
            reserve_bytes: 256 << 20,
            faults: None,
        }
    }
}

/// A file that holds nothing and can become an extent.
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    /// All its blocks were written before: such blocks sync faster.
    pub(crate) written: bool,
}

#[derive(Default)]
pub(crate) struct Extents {
    pub(crate) live: BTreeMap<u64, Arc<Extent>>,
    /// By sequence.
    pub(crate) chunks: BTreeMap<u64, Arc<Extent>>,
    pub(crate) next_chunk: u64,
    pub(crate) spares: Vec<Spare>,
    pub(crate) next_number: u64,
    /// Group numbers below were used when the directory was opened.
    pub(crate) next_group: u64,
    pub(crate) next_file: u64,
    /// What the inventory named and the start did not find.
    pub(crate) absent: Inventory,
    /// Extents that were missing at an earlier start and are back, as [`inventory::Held::below`] says.
    pub(crate) returned: BTreeMap<u64, LogletId>,
}

/// What the journal thread, the drives and the store share.
pub(crate) struct Inner {
    pub(crate) dir: PathBuf,
    pub(crate) extent_bytes: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) chunk_bytes: usize,
    reserve_bytes: u64,
    pub(crate) superblock: Superblock,
    pub(crate) mode: WriteMode,
    pub(crate) faults: Option<Arc<dyn Faults>>,
    pub(crate) queue: Queue,
    leaves: DashMap<LeafId, Arc<Leaf>>,
    discarded: Mutex<Discarded>,
    pub(crate) tail: Arc<TailBudget>,
    pub(crate) counters: Counters,
    pub(crate) extents: Mutex<Extents>,
    dead: OnceLock<String>,
    /// It is dead for want of room alone, since the start: what is stored is whole.
    only_read: AtomicBool,
    /// Why what was written last may not be on the disk for good.
    pub(crate) unsure: OnceLock<String>,
    pub(crate) directories: Directories,
    pub(crate) keeper: Sender<Job>,
    pub(crate) check_queued: AtomicBool,
    /// The store is about to be closed: long work is left.
    pub(crate) stopping: AtomicBool,
    /// The store is gone: threads end without finishing.
    pub(crate) dropped: AtomicBool,
    space: Mutex<Option<Space>>,
    moves: Moves,
    /// Records were refused since there was no room, and there was none for an extent since.
    pub(crate) full: AtomicBool,
    /// When that was said last.
    said_full: Mutex<Option<Instant>>,
    /// Bytes that the open extent has room for.
    pub(crate) open_left: AtomicU64,
    /// Damage of no single entry, found when the directory was opened.
    file_damage: Mutex<Vec<Damage>>,
    /// Why entries of a leaf of which nothing was found may have been there.
    pub(crate) lost_any: OnceLock<String>,
    /// All leaves that are used were asked for.
    pub(crate) settled: AtomicBool,
    /// Something is lost within a file that is there.
    pub(crate) lost_within: AtomicBool,
    /// Loglets below were handed out before this start, or before it was found what is missing.
    used_below: AtomicU64,
}

impl Inner {
    /// The leaf, if it is known.
    pub(crate) fn known_leaf(&self, id: LeafId) -> Option<Arc<Leaf>> {
        self.leaves.get(&id).map(|l| l.clone())
    }

    /// All known leaves.
    pub(crate) fn leaves(&self) -> Vec<Arc<Leaf>> {
        self.leaves.iter().map(|l| l.value().clone()).collect()
    }

    /// The leaf, made when it is new.
    pub(crate) fn leaf(&self, id: LeafId) -> Arc<Leaf> {
        if let Some(leaf) = self.leaves.get(&id) {
            return leaf.clone();
        }
        let discarded = self.discarded.lock().contains(id.loglet);
        let made = || {
            let leaf = Leaf::new(id);
            let mut state = leaf.state.write();
            state.discarded = discarded;
            if id.loglet.0 < self.used_below.load(Ordering::Acquire) {
                state.suspect = self.lost_any.get().cloned();
            }
            drop(state);
            Arc::new(leaf)
        };
        self.leaves.entry(id).or_insert_with(made).clone()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get().is_some()
    }
    pub(crate) fn dead_reason(&self) -> Option<String> {
        self.dead.get().cloned()
    }
    /// What was written last before a crash may not be on the disk for good.
    pub(crate) fn not_sure(&self) {
        let why =
            "what was written last before a crash is not sure to stay until there is room to write it again";
        self.unsure.get_or_init(|| format!("{}: {why}", self.dir.display()));
    }
    /// Takes no writes in this process, since there is no room to begin.
    pub(crate) fn only_read(&self, why: String) {
        self.only_read.store(true, Ordering::Relaxed);
        self.die(why);
    }
    pub(crate) fn die(&self, why: String) {
        // The first reason stays.
        drop(self.dead.set(why));
    }

    /// Takes over which loglets were deleted, before any of them is read.
    pub(crate) fn forget_all(&self, discarded: Discarded) {
        self.leaves.retain(|id, _| !discarded.contains(id.loglet));
        *self.discarded.lock() = discarded;
    }

    /// Deletes a loglet's leaves from what can be read.
    pub(crate) fn forget(&self, loglet: LogletId) {
        self.discarded.lock().insert(loglet);
        let leaves: Vec<_> =
            self.leaves.iter().filter(|l| l.key().loglet == loglet).map(|l| l.value().clone()).collect();
        for leaf in leaves {
            let mut state = leaf.state.write();
            let freed = state.tail.clear();
            state.extents.drain(..).for_each(|(extent, index)| extent.note_gone(leaf.id, &index));
            state.discarded = true;
            drop(state);
            self.tail.release(freed);
        }
        self.leaves.retain(|id, _| id.loglet != loglet);
        self.check_extents();
    }

    /// Writes an extent's header: from then on it counts.
    pub(crate) fn begin_extent(&self, header: ExtentHeader, path: &Path, writer: Writer) -> io::Result<Open> {
        let mut block = file::Aligned::with_capacity(BLOCK);
        block.extend(&header.encode());
        writer.write(block.filled(), 0)?;
        let file = file::with_descriptor(self.faults.as_ref(), || File::open(path))?;
        let extent = Arc::new(Extent::new(header.number, path.to_owned(), file, header.len));
        self.extents.lock().live.insert(header.number, extent.clone());
        self.keep(Job::Begun);
        let (salt, first_group) = (header.salt, header.first_group);
        Ok(Open { extent, writer, position: BLOCK as u64, salt, first_group })
    }

    /// A file that [`Inner::prepare_extent`] gave, as an extent that is ready to be written.
    pub(crate) fn start_extent(&self, header: ExtentHeader, path: &Path) -> io::Result<Open> {
        let writer = Writer::open(path, self.mode, self.faults.clone())?;
        self.begin_extent(header, path, writer)
    }

    /// Takes note that an extent takes no more writes, and that its groups below `end_group` are proven.
    pub(crate) fn closed(&self, open: Open, end_group: u64) {
        let Open { extent, first_group, position: data_end, .. } = open;
        self.keep(Job::Closed(Closed { extent, first_group, end_group, data_end }));
    }

    /// Queues an item; when no thread serves the queue any more it is refused, from another thread.
    pub(crate) fn push(&self, item: Item) {
        if let Err(item) = self.queue.push(item) {
            let refuse = move || item.refuse("the store is closed");
            if std::thread::Builder::new().name("store-closed".into()).spawn(refuse).is_err() {
                tracing::error!("no thread to refuse a write to a closed store");
            }
        }
    }
}

/// One data directory. Dropping it without [`DiskStore::close`] is like killing the process.
pub struct DiskStore {
    inner: Arc<Inner>,
    journal: Mutex<Option<JoinHandle<()>>>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    flusher: Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<File>>,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskStore({})", self.inner.dir.display())
    }
}

/// Whether a directory has files of extents or chunks.
fn holds_data(dir: &Path) -> Result<bool, OpenError> {
    let files = |sub: &str| match std::fs::read_dir(dir.join(sub)) {
        Ok(mut items) => Ok(items.next().is_some()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(OpenError::Io { file: dir.join(sub), error }),
    };
    Ok(files(EXTENTS)? || files(CHUNKS)?)
}

impl DiskStore {
    /// Opens a data directory, recovers it, and starts its journal.
    ///
    /// Errors: see [`OpenError`]. Damaged data is no error: it is in the report, and its reads answer errors.
    pub fn open(config: StoreConfig) -> Result<(Arc<DiskStore>, RecoveryReport), OpenError> {
        DiskStore::has_room_to_begin(&config)?;
        let extents_dir = config.dir.join(EXTENTS);
        std::fs::create_dir_all(&extents_dir).map_err(OpenError::io(&extents_dir))?;
        let lock = superblock::lock(&config.dir)?;
        let chunks_dir = config.dir.join(CHUNKS);
        std::fs::create_dir_all(&chunks_dir).map_err(OpenError::io(&chunks_dir))?;
        let has_chunks = !chunk::files(&config.dir).map_err(OpenError::io(&chunks_dir))?.is_empty();
        let has_data = has_chunks || !open::extent_files(&config.dir)?.is_empty();
        if room::make(&config.dir).map_err(OpenError::io(&config.dir))? {
            tracing::warn!(dir = %config.dir.display(), "the disk is full: its ballast is given up to start");
        }
        let (superblock, full) = superblock::begin(
            &config.dir,
            config.cluster_id,
            config.node_id,
            has_data,
            config.faults.as_ref(),
        )?;
        if let Err(e) = room::lay(&config.dir) {
            tracing::warn!(dir = %config.dir.display(), "no ballast: a start on a full disk may fail: {e}");
        }
        let mode = match full {
            // Nothing is written.
            Some(_) => WriteMode::Buffered,
            None => WriteMode::probe(&config.dir).map_err(OpenError::io(&config.dir))?,
        };
        if mode == WriteMode::Buffered && full.is_none() {
            tracing::info!(dir = %config.dir.display(), "no direct writes on this file system: buffered with fdatasync");
        }
        let extent_bytes = config.extent_bytes.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX);
        let (keeper, jobs) = channel();
        let inner = Arc::new(Inner {
            dir: config.dir,
            extent_bytes: extent_bytes.next_multiple_of(BLOCK as u64),
            journal_bytes: config.journal_bytes,
            chunk_bytes: config.chunk_bytes.max(CHUNK_BYTES_MIN).next_multiple_of(BLOCK),
            reserve_bytes: config.reserve_bytes,
            superblock,
            mode,
            faults: config.faults,
            queue: Queue::default(),
            leaves: DashMap::new(),
            discarded: Mutex::default(),
            tail: config.tail_bytes,
            counters: Counters::default(),
            extents: Mutex::default(),
            dead: OnceLock::new(),
            only_read: AtomicBool::new(false),
            unsure: OnceLock::new(),
            directories: Directories::new(),
            keeper,
            check_queued: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            space: Mutex::default(),
            moves: Moves::default(),
            full: AtomicBool::new(false),
            said_full: Mutex::default(),
            open_left: AtomicU64::new(0),
            file_damage: Mutex::default(),
            lost_any: OnceLock::new(),
            lost_within: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            used_below: AtomicU64::new(0),
        });
        if let Some(full) = full {
            inner
                .only_read(format!("no space is left to begin ({full}): free some and start the node again"));
        }
        let recovered = open::recover(&inner)?;
        for damage in &recovered.report.damage {
            tracing::error!("damaged: {damage}");
        }
        let of_files = recovered.report.damage.iter().filter(|d| d.address.is_none());
        *inner.file_damage.lock() = of_files.cloned().collect();
        if !has_data && inner.extent_bytes >= ZEROED_EXTENT_MIN {
            inner.keep(Job::Zero);
        }
        let journal = Journal::new(inner.clone(), recovered.open, recovered.next_group);
        // A disk that is full is known as such when what it holds is looked at first.
        drop(inner.admit(0, Purpose::Records));
        let (plans, planned) = channel();
        let mut keeper = Keeper::new(inner.clone(), recovered.table_sequence, recovered.stale, plans);
        if inner.is_short().unwrap_or(true) && !inner.is_dead() {
            // What earlier starts left is given back before this one needs room.
            keeper.tidy(recovered.closed);
        } else {
            recovered.closed.into_iter().for_each(|closed| inner.keep(Job::Closed(closed)));
        }
        inner.check_extents();
        let keeper = spawn("keeper", move || keeper.run(jobs)).map_err(OpenError::io(&inner.dir))?;
        let shared = inner.clone();
        let flusher =
            spawn("flusher", move || flusher::run(&shared, &planned)).map_err(OpenError::io(&inner.dir))?;
        let journal = spawn("journal", move || journal.run()).map_err(OpenError::io(&inner.dir))?;
        let store = DiskStore {
            inner,
            journal: Mutex::new(Some(journal)),
            keeper: Mutex::new(Some(keeper)),
            flusher: Mutex::new(Some(flusher)),
            lock: Mutex::new(Some(lock)),
        };
        Ok((Arc::new(store), recovered.report))
    }

    /// Looks who a data directory is, and changes nothing. `others`: names of files that its user keeps in it.
    ///
    /// Errors: why nobody can say; the same that would keep it from being opened. `Foreign`: what is in it is none of ours.
    pub fn look(dir: &Path, others: &[&str]) -> Result<Identity, OpenError> {
        superblock::look(dir, holds_data(dir)?, others)
    }

    /// Whether a directory that is a disk is this node's, and free; answers its cluster. Changes nothing.
    ///
    /// Errors: as opening it would.
    pub fn belongs(dir: &Path, cluster: Option<Uuid>, node: NodeId) -> Result<Uuid, OpenError> {
        superblock::belongs(dir, cluster, node)
    }

    /// Whether its disk is large enough for a directory without data; changes nothing. One that has data is always opened.
    ///
    /// Errors: `TooSmall`; `Io`: the system does not say.
    pub fn has_room_to_begin(config: &StoreConfig) -> Result<(), OpenError> {
        let dir = &config.dir;
        if holds_data(dir)? {
            return Ok(());
        }
        // What is there of its path; a name without a directory in front lies in this one.
        let there = dir.ancestors().find(|part| part.exists()).unwrap_or(Path::new("."));
        let size = room::disk_bytes(there).map_err(OpenError::io(there))?;
        let (extent_bytes, reserve_bytes) = (config.extent_bytes, config.reserve_bytes);
        let least = room::least(extent_bytes, reserve_bytes);
        if size < least {
            return Err(OpenError::TooSmall { dir: dir.clone(), size, least, extent_bytes, reserve_bytes });
        }
        Ok(())
    }

    /// The disk's identity; another one when the directory is emptied.
    pub fn disk_id(&self) -> DiskId {
        self.inner.superblock.disk
    }
    /// The highest loglet of which anything is stored.
    pub fn newest_loglet(&self) -> Option<LogletId> {
        self.inner.leaves.iter().map(|leaf| leaf.key().loglet).max()
    }
    /// Which start of this directory it is.
    pub fn generation(&self) -> Generation {
        self.inner.superblock.generation
    }
    /// The cluster that the directory belongs to.
    pub fn cluster_id(&self) -> Uuid {
        self.inner.superblock.cluster
    }

    /// The drive of one leaf; the leaf is made by its first write.
    pub fn drive(&self, id: LeafId) -> Arc<DiskDrive> {
        Arc::new(DiskDrive::new(self.inner.clone(), self.inner.leaf(id)))
    }

    /// Loglets below were handed out before this start: where something of the directory is lost, one of which nothing is found may have
    /// been there, and is not taken for empty. Said before any drive is asked for.
    pub fn used_before(&self, next: LogletId) {
        if self.inner.lost_any.get().is_none() {
            return;
        }
        let mut extents = self.inner.extents.lock();
        let Inventory { extents: absent, chunks } = &mut extents.absent;
        let mut below = 0;
        for held in absent.iter_mut().chain(chunks) {
            if held.below.0 == 0 {
                held.below = next;
            }
            below = below.max(held.below.0);
        }
        // Of what is lost within files that are there, it is not known since when.
        let below = if self.inner.lost_within.load(Ordering::Relaxed) { next.0 } else { below };
        drop(extents);
        self.inner.used_below.store(below, Ordering::Release);
        self.inner.keep(Job::Begun);
    }

    /// All drives that are used were asked for since the start.
    pub fn settled(&self) {
        self.inner.settled.store(true, Ordering::Release);
    }

    /// Deletes all leaves of a loglet, by tombstone: queued; the answer comes when the tombstone is durable.
    ///
    /// Errors: the disk is dead, for good; or it has no room for the tombstone, until there is some. Then what is stored is
    /// deleted all the same, but comes back with the next start.
    pub fn discard(&self, loglet: LogletId) -> oneshot::Receiver<Result<(), WriteError>> {
        let (reply, answer) = oneshot::channel();
        self.inner.push(Item::Discard { loglet, reply });
        answer
    }

    /// Whether anything of this purpose is taken now: what is least written at a time, a block.
    pub(crate) fn admit(&self, purpose: Purpose) -> Result<(), AdmitError> {
        self.inner.admit(BLOCK, purpose)
    }

    /// Bytes that records may not use.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.inner.reserve_bytes
    }

    /// Whether there is room for more than a few records.
    pub(crate) fn is_roomy(&self) -> bool {
        self.inner.is_roomy()
    }

    /// Whether the disk takes writes.
    pub fn health(&self) -> DiskHealth {
        match self.inner.admit(0, Purpose::Records) {
            Ok(()) => DiskHealth::Live,
            Err(AdmitError::Full(why)) => DiskHealth::Full(why),
            Err(AdmitError::Dead(why)) if self.inner.only_read.load(Ordering::Relaxed) => {
                DiskHealth::ReadOnly(why)
            }
            Err(AdmitError::Dead(why)) => DiskHealth::Dead(why),
        }
    }

    /// Why it is not sure that what was written last stays: whoever fences its leaves decides.
    pub(crate) fn unsure(&self) -> Option<&str> {
        self.inner.unsure.get().map(String::as_str)
    }

    /// Bytes of the file system that holds the directory, and how many of them may still be taken; `None` when it does not
    /// say.
    pub fn space(&self) -> Option<(u64, u64)> {
        let total = room::disk_bytes(&self.inner.dir).ok()?;
        Some((total, self.inner.free_space().ok()?))
    }

    /// What is known to be damaged: (leaf, drive-local address, what), the first two where they are known. Found when the
    /// directory was opened, or by a read since; gone with its segment.
    pub fn damage(&self) -> Vec<(Option<LeafId>, Option<u64>, String)> {
        let directories = &self.inner.directories;
        let of_files = self.inner.file_damage.lock().clone();
        let of_files = of_files.into_iter().filter(|d| !directories.tells(&d.what));
        let of_files = of_files.chain(directories.damage());
        let mut all: Vec<(Option<LeafId>, Option<u64>, String)> =
            of_files.map(|d| (d.segment, None, d.to_string())).collect();
        let mut leaves = self.inner.leaves();
        leaves.sort_by_key(|leaf| leaf.id);
        for leaf in leaves {
            let state = leaf.state.read();
            let from = if state.discarded { u64::MAX } else { state.registers.trimmed() };
            let unreadable = state.unreadable.range(from..);
            all.extend(unreadable.map(|(a, what)| (Some(leaf.id), Some(*a), what.clone())));
        }
        all
    }

    /// Figures since the directory was opened.
    pub fn stats(&self) -> DiskStats {
        let extents = self.inner.extents.lock();
        let closed = extents.live.values().filter(|e| e.directory.get().is_some()).count() as u64;
        DiskStats {
            extents_open: extents.live.len() as u64 - closed,
            extents_closed: closed,
            extents_spare: extents.spares.len() as u64,
            chunks: extents.chunks.len() as u64,
            adopted: extents.live.values().filter(|e| e.is_adopted()).count() as u64,
            scattered_bytes: extents.live.values().filter(|e| e.is_scattered()).map(|e| e.len()).sum(),
            journal_bytes: self.inner.journal_bytes,
            ..self.inner.counters.read()
        }
    }

    /// Finishes what is queued, ends the journal and gives the directory free.
    ///
    /// Errors: why the disk died; what was acknowledged is safe all the same.
    pub async fn close(&self) -> Result<(), String> {
        let (reply, closed) = oneshot::channel();
        self.inner.push(Item::Close { reply });
        let outcome = closed.await.unwrap_or_else(|_| Err("the journal thread ended".to_owned()));
        self.end(Ending::Clean);
        outcome
    }

    fn end(&self, ending: Ending) {
        let unfinished = self.inner.queue.abandon();
        self.inner.stopping.store(true, Ordering::Relaxed);
        if ending == Ending::Killed {
            self.inner.dropped.store(true, Ordering::Relaxed);
        }
        join(&self.journal, "journal");
        self.inner.keep(Job::Stop);
        join(&self.keeper, "keeper");
        join(&self.flusher, "flusher");
        unfinished.into_iter().for_each(|item| item.refuse("the store was dropped"));
        drop(self.lock.lock().take());
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.end(Ending::Killed);
    }
}

/// Whether threads finish their work.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Ending {
    Clean,
    Killed,
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

fn join(thread: &Mutex<Option<JoinHandle<()>>>, name: &str) {
    let thread = thread.lock().take();
    if thread.is_some_and(|t| t.join().is_err()) {
        tracing::error!("the {name} thread panicked");
    }
}
