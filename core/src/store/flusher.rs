//! The flusher thread: copies what lives in some neighbouring extents into a chunk file, clustered by leaf and
//! partition. Slowly, beside the journal; what it wrote counts only when the keeper has registered it.
//!
//! INV-STORE-10 nothing is copied that its own checksums do not confirm; an extent with a damaged entry stays as it is.
//! One write of at most `chunk.bytes` is in flight.

use crate::codec::entry::ENTRY_HEADER_LEN;
use crate::drive::ReadError;
use crate::store::Inner;
use crate::store::chunk::{self, CHUNKS, ChunkHeader};
use crate::store::directory::{LeafPart, Summary};
use crate::store::extent::{self, Extent};
use crate::store::file::{Aligned, RewriteStep, Writer};
use crate::store::format::{BLOCK, align_up};
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::keeper::Job;
use crate::store::leaf::{Index, read_encoded, verify_entry};
use crate::store::rewrite::Urgency;
use crate::store::superblock::sync_dir;
use crate::types::{LeafId, Offset, Partition};
use rustix::fs::{Advice, fadvise};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Items in the journal's queue from which on the flusher waits.
const BUSY_ITEMS: usize = 64;
/// How long it waits for a busy journal before a piece, at most: it must come on, or extents pile up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest rest after a piece.
const REST_MAX: Duration = Duration::from_millis(200);

/// Extents (or one chunk) to be rewritten, oldest first.
pub(crate) struct Plan {
    pub(crate) sources: Vec<Arc<Extent>>,
    pub(crate) sequence: u64,
    pub(crate) urgency: Urgency,
}

/// A chunk file whose bytes are on the disk, before it counts.
pub(crate) struct Copied {
    pub(crate) path: PathBuf,
    pub(crate) sequence: u64,
    pub(crate) covers: (u64, u64),
    pub(crate) len: u64,
    pub(crate) data_end: u64,
    pub(crate) parts: Vec<LeafPart>,
}

/// Why there is no chunk.
pub(crate) enum Failed {
    /// An entry of this source is damaged or cannot be read.
    Source(Arc<Extent>, String),
    /// For a copy of the first source, or it would free too little. Another may need less.
    NoRoom(String),
    /// Later perhaps.
    Io(io::Error),
    /// The store is closing, or a test wants it so.
    Ended,
}

/// What became of a plan, or of the first of its sources where there is no room for more. `Ok(None)`: nothing in them
/// lives.
pub(crate) struct Rewritten {
    pub(crate) sources: Vec<Arc<Extent>>,
    pub(crate) outcome: Result<Option<Copied>, Failed>,
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Failed {
        Failed::Io(e)
    }
}

/// Serves plans until nobody sends any more.
pub(crate) fn run(inner: &Inner, plans: &Receiver<Plan>) {
    while let Ok(mut plan) = plans.recv() {
        let path = chunk::path(&inner.dir, plan.sequence);
        let fits = Copy { inner, plan: &plan, path: &path }.fitting();
        let outcome = fits.and_then(|count| {
            plan.sources.truncate(count);
            Copy { inner, plan: &plan, path: &path }.run()
        });
        let killed = inner.dropped.load(Ordering::Relaxed);
        let halted = matches!(outcome, Err(Failed::Ended)) && !inner.stopping.load(Ordering::Relaxed);
        if outcome.is_err() && !killed && !halted {
            remove(&path);
        }
        for source in &plan.sources {
            forget_pages(source);
        }
        let rewritten = Rewritten { sources: plan.sources, outcome };
        if inner.keeper.send(Job::Rewritten(rewritten)).is_err() {
            remove(&path);
        }
    }
}

/// What remains of an unfinished chunk is deleted at the next start too.
fn remove(path: &Path) {
    if let Err(e) = chunk::delete(path) {
        tracing::warn!("unfinished chunk {}: {e}", path.display());
    }
}

/// The page cache need not keep what is about to go.
fn forget_pages(source: &Extent) {
    if let Err(e) = fadvise(&source.file, 0, None, Advice::DontNeed) {
        tracing::debug!("{}: {e}", source.path.display());
    }
}

/// A live entry and the source that it lies in.
type Found = (usize, IndexEntry);

struct Copy<'a> {
    inner: &'a Inner,
    plan: &'a Plan,
    path: &'a Path,
}

impl Copy<'_> {
    /// How many of the sources, from the first on, there is room to rewrite.
    ///
    /// Errors: `NoRoom`, not even for the first; what cannot be read.
    fn fitting(&self) -> Result<usize, Failed> {
        let lens: Vec<u64> = self.plan.sources.iter().map(|source| source.len()).collect();
        let (plenty, least) = (self.inner.room(false)?, self.inner.room(true)?);
        if lens.iter().sum::<u64>() < plenty {
            return Ok(lens.len());
        }
        let mut payloads = vec![0u64; lens.len()];
        for (at, entry) in self.live()?.iter().flat_map(|(_, found)| found) {
            if let Some(payload) = payloads.get_mut(*at) {
                *payload += u64::from(entry.payload_len);
            }
        }
        match fitting(&payloads, &lens, plenty, least) {
            0 => {
                let lives = payloads.first().copied().unwrap_or_default();
                let len = lens.first().copied().unwrap_or_default();
                Err(Failed::NoRoom(format!(
                    "no room to rewrite {lives} bytes of {len} that live: {least} may be taken where that frees a quarter more"
                )))
            }
            count => Ok(count),
        }
    }

    fn run(&self) -> Result<Option<Copied>, Failed> {
        for source in &self.plan.sources {
            // Read in one go; a refusal costs time only.
            if let Err(e) = fadvise(&source.file, 0, None, Advice::WillNeed) {
                tracing::debug!("{}: {e}", source.path.display());
            }
        }
        let leaves = self.live()?;
        let payload: u64 = leaves.iter().flat_map(|(_, e)| e).map(|(_, e)| u64::from(e.payload_len)).sum();
        if leaves.is_empty() {
            return Ok(None);
        }
        let (data_end, len) = chunk_len(payload);
        if u32::try_from(len).is_err() {
            return Err(io::Error::other(format!("chunk of {len} bytes is too large")).into());
        }
        let moving = self.inner.moving();
        self.inner.take_room(len)?;
        let (sequence, covers) = (self.plan.sequence, self.covers());
        extent::allocate(self.path, len, self.inner.faults.as_ref())?;
        drop(moving);
        let header = ChunkHeader { disk: self.inner.superblock.disk, sequence, covers, data_end };
        let writer = Writer::open(self.path, self.inner.mode, None)?;
        let piece = self.inner.chunk_bytes;
        let mut out = Out { copy: self, writer, buffer: Aligned::with_capacity(piece), piece, position: 0 };
        out.put(&header.encode())?;
        let mut parts = Vec::with_capacity(leaves.len());
        for (id, found) in leaves {
            parts.push(self.copy_leaf(id, found, &mut out)?);
        }
        out.finish()?;
        sync_dir(&self.inner.dir.join(CHUNKS))?;
        Ok(Some(Copied { path: self.path.to_owned(), sequence, covers, len, data_end, parts }))
    }

    fn covers(&self) -> (u64, u64) {
        let sources = &self.plan.sources;
        (
            sources.iter().map(|s| s.first).min().unwrap_or_default(),
            sources.iter().map(|s| s.number).max().unwrap_or_default(),
        )
    }

    /// Live entries by leaf, each leaf's by partition and address.
    fn live(&self) -> Result<Vec<(LeafId, Vec<Found>)>, Failed> {
        let mut ids = BTreeSet::new();
        for source in &self.plan.sources {
            ids.extend(source.leaves.lock().iter().copied());
        }
        let mut leaves = Vec::new();
        for id in ids {
            if self.ends() {
                return Err(Failed::Ended);
            }
            let mut found = self.live_of(id)?;
            if !found.is_empty() {
                found.sort_by_key(|(_, e)| (e.partition, e.address));
                leaves.push((id, found));
            }
        }
        Ok(leaves)
    }

    fn live_of(&self, id: LeafId) -> Result<Vec<Found>, Failed> {
        let Some(leaf) = self.inner.known_leaf(id) else { return Ok(Vec::new()) };
        let (places, trimmed, starts): (Vec<(usize, Summary)>, u64, HashMap<Partition, Offset>) = {
            let state = leaf.state.read();
            if state.discarded {
                return Ok(Vec::new());
            }
            let place = |(extent, index): &(Arc<Extent>, Index)| match index {
                Index::Disk(summary) => {
                    let at = self.plan.sources.iter().position(|s| s.key == extent.key)?;
                    Some((at, *summary))
                }
                Index::Memory(_) => None,
            };
            let places = state.extents.iter().filter_map(place).collect();
            (places, state.registers.trimmed(), state.log_starts.clone())
        };
        let mut found = Vec::new();
        for (at, summary) in places {
            let Some(source) = self.plan.sources.get(at) else { continue };
            for i in 0..summary.entries {
                let entry = self.inner.directories.entry(source, &summary, i);
                let entry = entry.map_err(|e| failed(source, e))?;
                let dead = starts.get(&entry.partition).is_some_and(|start| entry.last_offset() < *start);
                if entry.address >= trimmed && !dead {
                    found.push((at, entry));
                }
            }
        }
        Ok(found)
    }

    fn copy_leaf(&self, id: LeafId, found: Vec<Found>, out: &mut Out<'_>) -> Result<LeafPart, Failed> {
        let mut copied = Vec::with_capacity(found.len());
        let mut bytes = Vec::new();
        for (at, entry) in found {
            let Some(source) = self.plan.sources.get(at) else { continue };
            bytes.resize(ENTRY_HEADER_LEN + entry.payload_len as usize, 0);
            read_encoded(source, &entry, &self.inner.directories, &mut bytes)
                .map_err(|e| failed(source, e))?;
            let header = verify_entry(&bytes).and_then(|h| match h.address.0 == entry.loglet_address {
                true => Ok(h),
                false => Err("another entry stands there".to_owned()),
            });
            if let Err(what) = header {
                let what =
                    format!("position {}, segment {id} address {}: {what}", entry.position, entry.address);
                return Err(Failed::Source(source.clone(), what));
            }
            let Some((header, payload)) = bytes.split_first_chunk::<ENTRY_HEADER_LEN>() else { continue };
            copied.push((IndexEntry { position: out.end() as u32, row: 0, ..entry }, *header));
            out.put(payload)?;
        }
        copied.sort_by_key(|(e, _)| e.address);
        let mut index = LeafIndex::default();
        let mut headers = Vec::with_capacity(copied.len());
        for (entry, header) in copied {
            index.insert(entry);
            headers.push(header);
        }
        Ok(LeafPart {
            id,
            fenced: false,
            discarded: false,
            trim: 0,
            index: Arc::new(index),
            gone_bytes: 0,
            headers,
        })
    }

    fn ends(&self) -> bool {
        let inner = self.inner;
        inner.stopping.load(Ordering::Relaxed) || inner.dropped.load(Ordering::Relaxed) || inner.is_dead()
    }

    /// Between pieces: whether to go on, and not before the journal has time.
    fn pause(&self) -> Result<(), Failed> {
        let begun = Instant::now();
        let patient = self.plan.urgency == Urgency::Low;
        while patient && !self.ends() && self.inner.queue.len() > BUSY_ITEMS && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        let wanted = self.inner.faults.as_ref().is_some_and(|f| f.rewrite_ends(RewriteStep::Piece));
        if self.ends() || wanted { Err(Failed::Ended) } else { Ok(()) }
    }
}

/// Where the payloads end in a chunk of so many bytes of them, and the length of its file.
fn chunk_len(payload: u64) -> (u64, u64) {
    let data_end = BLOCK as u64 + payload;
    (data_end, data_end.next_multiple_of(BLOCK as u64))
}

/// How many sources, from the first on, fit: those with `payloads` that live, in files of `lens`, into `plenty` bytes; or
/// into `least`, which is more, where that frees a quarter more than it takes.
fn fitting(payloads: &[u64], lens: &[u64], plenty: u64, least: u64) -> usize {
    let (mut payload, mut freed, mut fits) = (0u64, 0u64, 0);
    for (count, (one, len)) in (1..).zip(payloads.iter().zip(lens)) {
        payload = payload.saturating_add(*one);
        freed = freed.saturating_add(*len);
        let (_, takes) = chunk_len(payload);
        let frees = takes <= freed - freed / 4;
        if payload == 0 || takes <= plenty || (frees && takes <= least) {
            fits = count;
        }
    }
    fits
}

fn failed(source: &Arc<Extent>, e: ReadError) -> Failed {
    Failed::Source(source.clone(), e.to_string())
}

/// Collects bytes and writes them in pieces, each durable.
struct Out<'a> {
    copy: &'a Copy<'a>,
    writer: Writer,
    buffer: Aligned,
    piece: usize,
    /// Where the buffer begins in the file.
    position: u64,
}

impl Out<'_> {
    /// Where the next byte goes.
    fn end(&self) -> u64 {
        self.position + self.buffer.len() as u64
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<(), Failed> {
        while !bytes.is_empty() {
            let room = self.piece.saturating_sub(self.buffer.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.buffer.extend(now);
            bytes = later;
            if self.buffer.len() >= self.piece {
                self.write()?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Failed> {
        self.buffer.pad();
        if self.buffer.len() > 0 { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Failed> {
        self.copy.pause()?;
        debug_assert_eq!(align_up(self.buffer.len()), self.buffer.len());
        let begun = Instant::now();
        self.writer.write(self.buffer.filled(), self.position)?;
        if self.copy.plan.urgency == Urgency::Low {
            // Half of the time is the journal's.
            std::thread::sleep(begun.elapsed().min(REST_MAX));
        }
        self.position += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_fit_as_there_is_room_for_and_what_frees_may_take_more_of_it() {
        const MIB: u64 = 1 << 20;
        let lens = [4 * MIB; 3];
        for (payloads, plenty, least, expected) in [
            ([2, 2, 2], 7, 7, 3),
            ([2, 2, 2], 5, 5, 2),
            ([2, 2, 2], 0, 5, 2),
            ([2, 2, 2], 0, 1, 0),
            ([4, 4, 4], 0, 9, 0),
            ([4, 4, 4], 9, 9, 2),
            ([4, 0, 0], 0, 5, 3),
            ([0, 4, 4], 0, 0, 1),
            ([0, 0, 0], 0, 0, 3),
        ] {
            let payloads = payloads.map(|n| n * MIB);
            let fits = fitting(&payloads, &lens, plenty * MIB, least * MIB);
            assert_eq!(fits, expected, "{payloads:?} {plenty} {least}");
        }
    }
}
