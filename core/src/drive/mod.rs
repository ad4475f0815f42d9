//! Log drives: write-once registers that make addresses durable, and their combinators (design 5, log-contracts 1).
//!
//! Owns the contract; knows nothing of ranges, offsets' meaning or clients. Primitives are `memory` and `disk`,
//! combinators `striped` and `quorum`; trees nest at will. Local addresses: a combinator translates addresses for its
//! children, the entry's bytes (its header holds the *loglet's* address) are the same everywhere.
//!
//! Obligations of whoever submits (O1 one proposer, O2 window, O3 in-order acknowledgement): `loglet`.

use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::types::{Address, NodeId, Offset, Partition};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

mod absent;
mod build;
#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
mod contract_trees;
pub mod disk;
pub mod expr;
#[cfg(test)]
pub(crate) mod faulty;
pub mod memory;
pub mod merge;
pub mod narrow;
pub mod quorum;
mod room;
pub mod spec;
pub mod striped;

pub use absent::Absent;
pub use build::{OpenError, OpenLeaf, build, same_disk};

/// Consecutive entries of one loglet, submitted together; `entries[i]` has the drive-local address `first + i`.
#[derive(Debug)]
pub struct Run {
    /// Drive-local address of the first entry.
    pub first: Address,
    /// The entries, final.
    pub entries: SmallVec<[Entry; 2]>,
    /// Completed once, with the outcome of the whole run.
    pub ticket: Ticket,
}

/// Whom to tell that a run is durable, or never will be known to be.
#[derive(Clone)]
pub struct Ticket(Arc<dyn Completion>);

/// Receives the outcome of a run.
pub trait Completion: Send + Sync {
    /// Called exactly once per submitted run, from a thread of the drive and *never from inside `submit`*; must not
    /// block. `Ok`: all entries of the run are durable by that drive's policy (W1).
    fn complete(&self, outcome: Result<(), WriteError>);
}

impl Ticket {
    /// A ticket that tells `completion`.
    pub fn new(completion: Arc<dyn Completion>) -> Ticket {
        Ticket(completion)
    }

    /// Tells the outcome.
    pub fn complete(self, outcome: Result<(), WriteError>) {
        self.0.complete(outcome);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// Why a submitted run is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WriteError {
    /// Fenced, for ever (W4): the run is not written by this drive.
    #[error("sealed: the segment takes no writes any more")]
    Sealed,
    /// Below the trim point, for ever (W5).
    #[error("trimmed: address {0} is below the trim point")]
    Trimmed(Address),
    /// Other bytes stand at the address: two sequencers, an alarm (W2).
    #[error("conflict: address {0} holds other bytes; two sequencers wrote one segment")]
    Conflict(Address),
    /// May be there now, later or never, until a fence (W3).
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// Why a read gives no answer. Never to be taken for a hole or the end of the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Bytes are there and damaged, until repaired.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Cannot be read now (disk dead, too few children); until that changes.
    #[error("unreadable: {0}")]
    Unavailable(String),
}

/// What is to be appended, and so how far into a disk's reserve it may go (design 9).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// What nobody asked for and that can wait, such as checkpoints at a start: not at all, and not of as much above it, so that
    /// starts of a disk that is nearly full take nothing of it for good, whatever they free for a while.
    Unasked,
    /// Records of clients: not at all.
    Records,
    /// What coordination lives by, records of state machines and markers: a quarter.
    Coordination,
    /// Copies by which what they are made of is freed, as compaction writes them: a half, so that log starts have theirs.
    Rewriting,
    /// What lets others be freed, log starts and checkpoints: three quarters.
    Freeing,
}

impl Purpose {
    /// What of a reserve of so many bytes is kept from it.
    pub fn keeps(self, reserve: u64) -> u64 {
        match self {
            Purpose::Unasked => reserve.saturating_mul(2),
            Purpose::Records => reserve,
            Purpose::Coordination => reserve - reserve / 4,
            Purpose::Rewriting => reserve - reserve / 2,
            Purpose::Freeing => reserve / 4,
        }
    }
}

/// Why a drive refuses new work *before* anything is reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Disk full, until space is freed.
    #[error("disk full: {0}")]
    Full(String),
    /// Disk dead for this process, or too few live children: until the range rolls to other disks or a restart.
    #[error("drive dead: {0}")]
    Dead(String),
}

/// Why a fence failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// The drive cannot fence (register mode needed).
    #[error("this drive cannot fence")]
    Unsupported,
    /// Fewer than the seal quorum answered; nothing is decided, ask again when more children live.
    #[error("seal quorum not reached: {0}")]
    Unavailable(String),
}

/// Answer of a read of one address.
#[derive(Clone, Debug)]
pub enum Read {
    /// The entry.
    Value(Stored),
    /// Nothing written there, linearizably for a primitive.
    Hole,
    /// Below the trim point.
    Trimmed,
    /// Freed below the tail (log start passed, compacted); the next address that may hold something.
    Gone {
        /// Where to read on.
        next: Address,
    },
}

/// A stored entry as a drive gives it back.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its header.
    pub header: EntryHeader,
    /// Its payload, in memory or in a file.
    pub payload: Payload,
}

/// A payload without a copy.
#[derive(Clone, Debug)]
pub enum Payload {
    /// In memory: patched head, then the rest.
    Memory {
        /// First piece.
        head: Bytes,
        /// Second piece.
        body: Bytes,
    },
    /// In a file that will not be recycled while this value lives.
    File(FileSlice),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Memory { head, body } => head.len() + body.len(),
            Payload::File(slice) => slice.len as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes `[position, position + len)` of a file, pinned.
#[derive(Clone)]
pub struct FileSlice {
    /// The file, opened for buffered reads.
    pub file: Arc<File>,
    /// First byte.
    pub position: u64,
    /// How many bytes.
    pub len: u32,
    /// Keeps the file's contents from being recycled.
    pub pin: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for FileSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileSlice({}+{})", self.position, self.len)
    }
}

/// What to look for in one partition's entries, in offset order.
#[derive(Copy, Clone, Debug)]
pub struct ListQuery {
    /// The partition.
    pub partition: Partition,
    /// Entries whose last offset is at or above this.
    pub from_offset: Offset,
    /// Only entries whose header address (the loglet's) is below this: the completed or recorded tail.
    pub below: Address,
    /// Stop when this many payload bytes are listed; the first entry is always listed.
    pub max_bytes: usize,
    /// Stop after this many entries.
    pub max_entries: usize,
    /// Only entries whose maximum timestamp is at or above this.
    pub min_timestamp: Option<i64>,
}

/// What to look for in address order: the fold's view.
#[derive(Copy, Clone, Debug)]
pub struct ScanQuery {
    /// First address (the loglet's).
    pub from: Address,
    /// End, excluded.
    pub below: Address,
    /// Stop after this many entries.
    pub max_entries: usize,
}

/// Answer of [`LogDrive::weak_tail`] and [`LogDrive::fence`]: what stands in the window (log-contracts 1.1, T1 to T4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct TailDesc {
    /// One above the highest address written.
    pub end: u64,
    /// Unwritten addresses in `[end - K, end)`.
    pub holes: BTreeSet<u64>,
    /// Addresses below count as written and are gone.
    pub trim: u64,
}

impl TailDesc {
    /// The lowest hole, else the end: everything below is written, given Lemma 1 at the root.
    pub fn contiguous(&self) -> Address {
        Address(self.holes.first().copied().unwrap_or(self.end))
    }

    /// Whether address `a` is written, for `a` in the window `[end - k, ..)`.
    pub fn written(&self, a: u64) -> bool {
        a < self.trim || (a < self.end && !self.holes.contains(&a))
    }
}

/// Who seals: names the pass in logs and repairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SealId {
    /// The sealing node.
    pub node: NodeId,
    /// Its own count of passes.
    pub pass: u64,
}

/// A log drive: see the module head and log-contracts 1.1 for the rules W1 to W5 and T1 to T4.
pub trait LogDrive: Send + Sync + 'static {
    /// Whether `bytes` more of `purpose` can be taken now: space, life of disks and children. The last refusal before
    /// `reserve`. Of 0 bytes it is a question; else who submits asks it right before, under the same lock, and a quorum sends what
    /// is submitted next to the copies that have room.
    ///
    /// Errors: `Full` until space is freed, `Dead` until the range rolls away or the process restarts.
    fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError>;

    /// Whether a disk under it has no room for records, be it that others take them.
    fn lacks_room(&self) -> bool {
        matches!(self.admit(0, Purpose::Records), Err(AdmitError::Full(_)))
    }

    /// Whether a copy was not sent what others were, in this process, since it had no room.
    fn is_behind(&self) -> bool {
        false
    }

    /// Takes a run; synchronous, cannot fail: its ticket is completed later, from another thread.
    fn submit(&self, run: Run);

    /// The entry at a drive-local address.
    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>>;

    /// Entries of one partition, when the answer is in memory whole; `None` sends the caller to [`LogDrive::list`].
    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>>;

    /// Entries of one partition in offset order. Linearizable below a completed tail: entries below `query.below` that
    /// a completed write holds are all found, save those freed below the log start.
    ///
    /// Errors: damage or too few children; an empty answer means there is none.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>>;

    /// Entries in the loglet's address order, all partitions.
    ///
    /// Errors: as for `list`.
    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>>;

    /// As `scan`, but the payload of records (`EntryKind::Data`) may be left out, unread and unchecked: what a fold needs.
    /// So a record whose payload is damaged is counted, and only its readers are told.
    ///
    /// Errors: as for `list`.
    fn scan_heads(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        self.scan(query)
    }

    /// Largest header address of an entry of `kind` with `flags` set, below `below`: a hint where a fold may begin.
    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>>;

    /// A scan of the last `k` addresses, not a snapshot (T1 to T4).
    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>>;

    /// Closes the drive to writes for ever, durably, idempotent; every write that ever returns Ok is in the answer.
    fn fence(&self, k: u32, by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>>;

    /// Drive-local addresses in the window of the last [`LogDrive::fence`] that fewer copies hold than a quorum of the
    /// tree asks for: what the seal repairs. Empty before a fence, and for a primitive: one copy is all it has.
    fn thin(&self) -> BTreeSet<u64> {
        BTreeSet::new()
    }

    /// Writes a copy at a drive-local address of a *fenced* drive, `address < below`; acknowledges nothing to a
    /// sequencer.
    fn repair(
        &self,
        address: Address,
        entry: Entry,
        below: Address,
        by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>>;

    /// Forgets addresses below, for ever (a max-register, drive-local).
    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>>;

    /// The loglet's completed tail (loglet addresses), piggybacked; no I/O.
    fn note_committed(&self, committed: Address);

    /// Log starts of partitions rose: entries wholly below may be freed singly (then `Gone`). A hint, no I/O here.
    fn note_log_starts(&self, starts: &[(Partition, Offset)]);

    /// What the drive can do.
    fn caps(&self) -> Caps;
}

/// What a drive can do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// It refuses writes after a fence, durably.
    pub fence: bool,
    /// A write survives the loss of the process.
    pub durable: bool,
}
