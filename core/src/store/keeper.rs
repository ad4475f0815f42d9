//! The keeper thread: writes the directories of closed extents and recycles dead ones, beside the journal.
//!
//! INV-STORE-6 an extent is recycled only when every leaf in it is deleted, trimmed or below its log starts there, no
//! reader pins it, the leaf table is written after its last fact, and all older extents have directories (an extent
//! without one is bounded by its successor's header).

use crate::store::directory::{self, DirectoryHeader, LeafPart};
use crate::store::extent::Extent;
use crate::store::file::{Aligned, Writer};
use crate::store::format::BLOCK;
use crate::store::index::LeafIndex;
use crate::store::leaf::Index;
use crate::store::superblock::{sync_dir, write_whole};
use crate::store::{Inner, Spare};
use crate::types::{LeafId, LogletId};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Spare extents that are kept; more are deleted.
const SPARES_MAX: usize = 8;
/// Extents written with zeros in a new data directory: blocks that were written before sync faster.
const ZEROED: usize = 2;
/// How soon a pinned extent is looked at again.
const RETRY: Duration = Duration::from_millis(200);
/// Leaf number of a directory row that records a deleted loglet.
pub(crate) const DISCARD_ROW: u16 = u16::MAX;

/// Work for the keeper.
pub(crate) enum Job {
    /// An extent takes no more writes, and its last group is proven.
    Closed(Closed),
    /// Something died: a trim, a deletion, raised log starts.
    Check,
    /// Zero some spare extents.
    Zero,
    /// Finish what was sent before, then end.
    Stop,
}

/// A closed extent.
pub(crate) struct Closed {
    pub(crate) extent: Arc<Extent>,
    pub(crate) first_group: u64,
    pub(crate) end_group: u64,
    pub(crate) data_end: u64,
}

pub(crate) struct Keeper {
    inner: Arc<Inner>,
    /// Closed extents whose directory is to be written, oldest first; one that fails is tried again with the next job.
    closed: VecDeque<Closed>,
    retiring: Vec<Arc<Extent>>,
    sequence: u64,
}

impl Keeper {
    /// `sequence`: of the leaf table that was read.
    pub(crate) fn new(inner: Arc<Inner>, sequence: u64) -> Keeper {
        Keeper { inner, closed: VecDeque::new(), retiring: Vec::new(), sequence }
    }

    /// Works until it is stopped or the store is dropped.
    pub(crate) fn run(mut self, jobs: Receiver<Job>) {
        loop {
            let job = match self.retiring.is_empty() {
                true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => jobs.recv_timeout(RETRY),
            };
            if self.inner.dropped.load(Ordering::Relaxed) {
                return;
            }
            let done = match job {
                Ok(Job::Closed(closed)) => {
                    self.closed.push_back(closed);
                    self.check()
                }
                Ok(Job::Check) => {
                    self.inner.check_queued.store(false, Ordering::Release);
                    self.check()
                }
                Ok(Job::Zero) => self.zero(),
                Err(RecvTimeoutError::Timeout) => self.reuse(),
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(e) = done {
                // Nothing is lost: the extent stays indexed in memory, or is not recycled, until the next attempt.
                tracing::warn!(dir = %self.inner.dir.display(), "keeping extents: {e}");
            }
        }
    }

    fn close(&mut self, closed: &Closed) -> io::Result<()> {
        let extent = &closed.extent;
        let leaves: Vec<LeafId> = extent.leaves.lock().iter().copied().collect();
        let parts: Vec<LeafPart> = leaves.into_iter().map(|id| self.part(id, extent)).collect();
        let header = DirectoryHeader {
            disk: self.inner.superblock.disk,
            extent: extent.number,
            first_group: closed.first_group,
            end_group: closed.end_group,
            data_end: closed.data_end,
            leaves: 0,
            partitions: 0,
            entries: 0,
        };
        let (bytes, header, summaries) = directory::encode(header, &parts);
        drop(parts);
        write_whole(&directory::path_of(&extent.path), &bytes)?;
        extent.directory.get_or_init(|| header);
        for (id, summary) in summaries.into_iter().filter(|(id, _)| id.leaf != DISCARD_ROW) {
            let Some(leaf) = self.inner.known_leaf(id) else { continue };
            let mut state = leaf.state.write();
            if let Some((_, index)) = state.extents.iter_mut().find(|(e, _)| e.number == extent.number) {
                *index = Index::Disk(summary);
            }
        }
        Ok(())
    }

    fn part(&self, id: LeafId, extent: &Arc<Extent>) -> LeafPart {
        if id.leaf == DISCARD_ROW {
            let index = Arc::default();
            return LeafPart { id, fenced: false, discarded: true, trim: 0, index };
        }
        let Some(leaf) = self.inner.known_leaf(id) else {
            return LeafPart { id, fenced: true, discarded: false, trim: 0, index: Arc::default() };
        };
        let state = leaf.state.read();
        let index: Arc<LeafIndex> = state
            .extents
            .iter()
            .find(|(e, _)| e.number == extent.number)
            .map_or_else(Arc::default, |(_, index)| match index {
                Index::Memory(index) => index.clone(),
                Index::Disk(_) => Arc::default(),
            });
        let registers = &state.registers;
        LeafPart { id, fenced: registers.is_fenced(), discarded: false, trim: registers.trimmed(), index }
    }

    /// Writes missing directories, then retires the extents that are dead.
    fn check(&mut self) -> io::Result<()> {
        while let Some(closed) = self.closed.pop_front() {
            if let Err(e) = self.close(&closed) {
                self.closed.push_front(closed);
                return Err(e);
            }
        }
        let live: Vec<Arc<Extent>> = self.inner.extents.lock().live.values().cloned().collect();
        let closed = live.into_iter().take_while(|e| e.directory.get().is_some());
        let dead: Vec<Arc<Extent>> = closed.filter(|e| self.is_dead(e)).collect();
        if !dead.is_empty() {
            self.sequence += 1;
            self.inner.leaf_table(self.sequence).write(&self.inner.dir, self.inner.superblock.disk)?;
            for extent in dead {
                self.retire(extent)?;
            }
        }
        self.reuse()
    }

    fn is_dead(&self, extent: &Arc<Extent>) -> bool {
        extent.leaves.lock().iter().all(|id| id.leaf == DISCARD_ROW || self.is_dead_for(*id, extent))
    }

    fn is_dead_for(&self, id: LeafId, extent: &Arc<Extent>) -> bool {
        let Some(leaf) = self.inner.known_leaf(id) else { return true };
        let (summary, starts) = {
            let state = leaf.state.read();
            let Some((_, index)) = state.extents.iter().find(|(e, _)| e.number == extent.number) else {
                return true;
            };
            let Index::Disk(summary) = index else { return false };
            if state.discarded || summary.entries == 0 || summary.addresses.1 < state.registers.trimmed() {
                return true;
            }
            if state.log_starts.len() < summary.partitions as usize {
                return false;
            }
            (*summary, state.log_starts.clone())
        };
        (0..summary.partitions).all(|i| {
            let row = self.inner.directories.partition(extent, &summary, i);
            row.is_ok_and(|r| starts.get(&r.partition).is_some_and(|start| r.last_offset < *start))
        })
    }

    fn retire(&mut self, extent: Arc<Extent>) -> io::Result<()> {
        self.inner.extents.lock().live.remove(&extent.number);
        let ids: Vec<LeafId> = extent.leaves.lock().iter().copied().collect();
        for id in ids.iter().filter(|id| id.leaf != DISCARD_ROW) {
            if let Some(leaf) = self.inner.known_leaf(*id) {
                leaf.state.write().extents.retain(|(e, _)| e.number != extent.number);
            }
        }
        if let Some(header) = extent.directory.get() {
            self.inner.directories.forget(extent.number, header.pages());
        }
        self.retiring.push(extent);
        Ok(())
    }

    /// Makes retired extents that nobody reads any more spare.
    fn reuse(&mut self) -> io::Result<()> {
        let (free, pinned) = self.retiring.drain(..).partition(|e| Arc::strong_count(e) == 1);
        self.retiring = pinned;
        let free: Vec<Arc<Extent>> = free;
        for extent in free {
            std::fs::remove_file(directory::path_of(&extent.path))?;
            let len = extent.len;
            let room = self.inner.extents.lock().spares.len() < SPARES_MAX && len == self.inner.extent_bytes;
            if room {
                // Zeros where the header was: the file holds nothing any more.
                let writer = Writer::open(&extent.path, self.inner.mode, None)?;
                let mut zeros = Aligned::with_capacity(BLOCK);
                zeros.extend(&[0; BLOCK]);
                writer.write(zeros.filled(), 0)?;
                let path = extent.path.clone();
                self.inner.extents.lock().spares.push(Spare { path, len });
            } else {
                std::fs::remove_file(&extent.path)?;
            }
            sync_dir(extent.path.parent().unwrap_or(&self.inner.dir))?;
            self.inner.counters.recycled.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn zero(&mut self) -> io::Result<()> {
        const PIECE: usize = 4 << 20;
        let mut zeros = Aligned::with_capacity(PIECE);
        zeros.extend(&vec![0; PIECE]);
        for _ in 0..ZEROED {
            let (path, len) = self.inner.new_file(self.inner.extent_bytes)?;
            let writer = Writer::open(&path, self.inner.mode, None)?;
            let mut at = 0;
            while at < len && !self.inner.dropped.load(Ordering::Relaxed) {
                let piece = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
                writer.write(zeros.filled().get(..piece).unwrap_or_default(), at)?;
                at += piece as u64;
            }
            self.inner.extents.lock().spares.push(Spare { path, len });
        }
        Ok(())
    }
}

impl Inner {
    /// Remembers in an extent's directory that a loglet was deleted.
    pub(crate) fn note_discard(extent: &Extent, loglet: LogletId) {
        extent.leaves.lock().insert(LeafId { loglet, leaf: DISCARD_ROW });
    }

    /// Sends work to the keeper.
    pub(crate) fn keep(&self, job: Job) {
        if self.keeper.send(job).is_err() {
            tracing::debug!("the keeper has ended");
        }
    }

    /// Asks the keeper to look for dead extents, once for many reasons.
    pub(crate) fn check_extents(&self) {
        if !self.check_queued.swap(true, Ordering::AcqRel) {
            self.keep(Job::Check);
        }
    }
}
