//! What a disk has done and how it is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Running counts; monotone unless said otherwise.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_written: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) group_bytes_max: AtomicU64,
    pub(crate) recycled: AtomicU64,
    pub(crate) rewritten: AtomicU64,
    pub(crate) chunks_written: AtomicU64,
    pub(crate) extents_rewritten: AtomicU64,
}

/// Figures of one disk since it was opened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes written to extents, padding included.
    pub bytes_written: u64,
    /// Durable writes.
    pub syncs: u64,
    /// Groups written.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Largest group, in bytes.
    pub group_bytes_max: u64,
    /// Extents that have no directory yet: the one that is written, and those just closed.
    pub extents_open: u64,
    /// Extents that hold data and have their directory.
    pub extents_closed: u64,
    /// Extents ready for reuse.
    pub extents_spare: u64,
    /// Extents reused.
    pub recycled: u64,
    /// Bytes rewritten into chunks.
    pub rewritten: u64,
    /// Chunks written.
    pub chunks_written: u64,
    /// Extents in whose place a chunk came to stand.
    pub extents_rewritten: u64,
    /// Chunk files that hold data.
    pub chunks: u64,
    /// Of the closed extents, those that stay as they are: their partitions lie in large runs.
    pub adopted: u64,
    /// Bytes of closed extents that are not adopted: they wait to die or to be rewritten.
    pub scattered_bytes: u64,
    /// Most of these that may wait.
    pub journal_bytes: u64,
}

/// How a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskHealth {
    /// Takes writes.
    Live,
    /// Refuses new entries until space is freed; the text says how much is missing.
    Full(String),
    /// It had no room to begin: no writes until it has and the node is started again. All that is stored is read.
    ReadOnly(String),
    /// A write failed: no writes until a restart. Reads go on.
    Dead(String),
}

impl Counters {
    pub(crate) fn read(&self) -> DiskStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        DiskStats {
            bytes_written: get(&self.bytes_written),
            syncs: get(&self.syncs),
            groups: get(&self.groups),
            records: get(&self.records),
            group_bytes_max: get(&self.group_bytes_max),
            recycled: get(&self.recycled),
            rewritten: get(&self.rewritten),
            chunks_written: get(&self.chunks_written),
            extents_rewritten: get(&self.extents_rewritten),
            ..DiskStats::default()
        }
    }
}
