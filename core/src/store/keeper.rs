//! The keeper thread: writes the directories of closed extents, has scattered ones rewritten into chunks, and recycles
//! what is dead, beside the journal.
//!
//! INV-STORE-6 an extent is recycled only when every leaf in it is deleted, trimmed or below its log starts there, no
//! reader pins it, the leaf table is written after its last fact, and all older extents have directories (an extent
//! without one is bounded by its successor's header). INV-STORE-9 a chunk counts from the moment its directory is on the disk; the
//! leaf table is written before, for the extents in whose place it stands count no more.

use crate::store::chunk;
use crate::store::directory::{self, DirectoryHeader, LeafPart};
use crate::store::extent::{CHUNK_KEY, Extent};
use crate::store::file::{Aligned, RewriteStep, Writer};
use crate::store::flusher::{Copied, Failed, Plan, Rewritten};
use crate::store::format::BLOCK;
use crate::store::index::LeafIndex;
use crate::store::inventory::Inventory;
use crate::store::leaf::{Index, Leaf};
use crate::store::life::Look;
use crate::store::rest::Rest;
use crate::store::rewrite::{Candidate, Choice, Life, choose};
use crate::store::space::FULL_SAID_REST;
use crate::store::superblock::{sync_dir, write_whole};
use crate::store::{Inner, Spare, ZEROED_EXTENT_MIN};
use crate::types::{LeafId, LogletId};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Spare extents that are kept; more are deleted.
const SPARES_MAX: usize = 8;
/// Extents written with zeros in a new data directory: blocks that were written before sync faster.
const ZEROED: usize = 2;
/// How soon a pinned extent is looked at again.
const RETRY: Duration = Duration::from_millis(200);
/// How long nothing must be written before a spare extent is zeroed ahead.
const IDLE: Duration = Duration::from_secs(1);
/// The same failure is said again after so long.
const SAID_REST: Duration = Duration::from_secs(10);
/// How many are tried one after the other that find no room.
const REFUSED_MAX: usize = 32;
/// Shortest time between whole looks at all extents.
const LOOK_REST_MIN: Duration = Duration::from_millis(200);
/// A whole look takes one part in so many of the time.
const LOOK_SHARE: u32 = 20;
/// Leaf number of a directory row that records a deleted loglet.
pub(crate) const DISCARD_ROW: u16 = u16::MAX;

/// Work for the keeper.
pub(crate) enum Job {
    /// An extent takes no more writes, and its last group is proven.
    Closed(Closed),
    /// An extent counts from now on.
    Begun,
    /// Something died: a trim, a deletion, raised log starts.
    Check,
    /// The flusher is done with a plan.
    Rewritten(Rewritten),
    /// Write some spare extents ahead.
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
    plans: Sender<Plan>,
    /// The flusher has a plan.
    busy: bool,
    /// Whether rewrites are left alone since they failed.
    rest: Rest,
    /// Extents and chunks (keys) that found no room when they were tried: others go before them.
    unfit: BTreeSet<u64>,
    /// How many of them since the last rest.
    refused: usize,
    /// When it was said last that something found no room.
    said_no_room: Option<Instant>,
    /// Something died since all extents were looked at whole.
    died: bool,
    /// No whole look before that.
    look_from: Instant,
    /// No rewrite any more in this process.
    halted: bool,
    /// Groups written when the disk was last looked at for idleness.
    groups_seen: Option<u64>,
    /// The failure that was logged last, and when.
    said: Option<(String, Instant)>,
}

impl Keeper {
    /// `sequence`: of the leaf table that was read; `stale`: extents and chunks that newer chunks replace.
    pub(crate) fn new(
        inner: Arc<Inner>,
        sequence: u64,
        stale: Vec<Arc<Extent>>,
        plans: Sender<Plan>,
    ) -> Keeper {
        Keeper {
            inner,
            closed: VecDeque::new(),
            retiring: stale,
            sequence,
            plans,
            busy: false,
            rest: Rest::default(),
            unfit: BTreeSet::new(),
            refused: 0,
            said_no_room: None,
            died: true,
            look_from: Instant::now(),
            halted: false,
            groups_seen: None,
            said: None,
        }
    }

    /// Works until it is stopped or the store is dropped.
    pub(crate) fn run(mut self, jobs: Receiver<Job>) {
        loop {
            let job = match self.limit() {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(limit) => jobs.recv_timeout(limit),
            };
            if self.inner.dropped.load(Ordering::Relaxed) {
                return;
            }
            let done = match job {
                Ok(Job::Closed(closed)) => {
                    self.closed.push_back(closed);
                    let ahead = self.allocate(1);
                    self.check().and(ahead)
                }
                Ok(Job::Begun) => self.save_inventory(&[]),
                Ok(Job::Check) => {
                    self.inner.check_queued.store(false, Ordering::Release);
                    self.note_death();
                    self.check()
                }
                Ok(Job::Rewritten(rewritten)) => self.rewritten(rewritten).and_then(|()| self.check()),
                Ok(Job::Zero) => self.allocate(ZEROED).and_then(|()| self.zero()),
                Err(RecvTimeoutError::Timeout) => self.idle(),
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(e) = done {
                self.failed(&e, Instant::now());
            }
        }
    }

    /// Something died: there may be room now.
    fn note_death(&mut self) {
        self.died = true;
        self.rest.died();
    }

    /// Takes what a start found closed, and frees what it can at once.
    pub(crate) fn tidy(&mut self, closed: Vec<Closed>) {
        self.closed.extend(closed);
        if let Err(e) = self.check() {
            self.failed(&e, Instant::now());
        }
    }

    /// Nothing is lost: the extent stays indexed in memory, or is not recycled, until the next attempt, which waits a little.
    fn failed(&mut self, error: &io::Error, now: Instant) {
        self.look_from = self.look_from.max(now + RETRY);
        let error = error.to_string();
        let is_new = self.said.as_ref().is_none_or(|(said, at)| *said != error || now >= *at + SAID_REST);
        if is_new {
            tracing::warn!(dir = %self.inner.dir.display(), "keeping extents: {error}");
            self.said = Some((error, now));
        }
    }

    /// How long to wait for a job at most.
    fn limit(&self) -> Option<Duration> {
        let now = Instant::now();
        let retry = (!self.retiring.is_empty()).then_some(RETRY);
        let idle = self.lacks_spare().then_some(IDLE);
        let look = self.died.then(|| self.look_from.saturating_duration_since(now));
        retry.into_iter().chain(idle).chain(look).chain(self.rest.wait(now)).min()
    }

    fn idle(&mut self) -> io::Result<()> {
        if self.died && self.look_from <= Instant::now() {
            self.check()?;
        }
        if self.rest.ends(Instant::now()) {
            self.check()?;
        }
        self.reuse()?;
        let groups = self.inner.counters.groups.load(Ordering::Relaxed);
        let quiet = self.groups_seen.replace(groups) == Some(groups) && self.inner.queue.len() == 0;
        if quiet && self.retiring.is_empty() && self.lacks_spare() {
            self.allocate(1)?;
            self.zero()?;
        }
        Ok(())
    }

    /// Whether the next extent would be one that was never written, which is slower.
    fn lacks_spare(&self) -> bool {
        let extents = self.inner.extents.lock();
        let large = self.inner.extent_bytes >= ZEROED_EXTENT_MIN;
        large && !extents.spares.iter().any(|s| s.written) && !extents.live.is_empty()
    }

    fn close(&mut self, closed: &Closed) -> io::Result<()> {
        let extent = &closed.extent;
        let leaves: Vec<LeafId> = extent.leaves.lock().iter().copied().collect();
        let parts: Vec<LeafPart> = leaves.into_iter().map(|id| self.part(id, extent)).collect();
        let header = DirectoryHeader {
            disk: self.inner.superblock.disk,
            extent: extent.key,
            covers: None,
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
        extent.payload.store(summaries.iter().map(|(_, s)| s.bytes).sum(), Ordering::Relaxed);
        extent.directory.get_or_init(|| header);
        for (id, summary) in summaries.into_iter().filter(|(id, _)| id.leaf != DISCARD_ROW) {
            let Some(leaf) = self.inner.known_leaf(id) else { continue };
            let mut state = leaf.state.write();
            if let Some((_, index)) = state.extents.iter_mut().find(|(e, _)| e.number == extent.number) {
                *index = Index::Disk(summary);
            }
        }
        self.inner.give_back(extent, closed.data_end);
        Ok(())
    }

    fn part(&self, id: LeafId, extent: &Arc<Extent>) -> LeafPart {
        let (index, headers) = (Arc::default(), Vec::new());
        if id.leaf == DISCARD_ROW {
            return LeafPart { id, fenced: false, discarded: true, trim: 0, index, gone_bytes: 0, headers };
        }
        let Some(leaf) = self.inner.known_leaf(id) else {
            let gone_bytes = extent.gone.lock().get(&id).copied().unwrap_or(0);
            return LeafPart { id, fenced: true, discarded: false, trim: 0, index, gone_bytes, headers };
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
        let (fenced, trim) = (registers.is_fenced(), registers.trimmed());
        let gone_bytes = match index.entries() {
            [] => extent.gone.lock().get(&id).copied().unwrap_or(0),
            _ => 0,
        };
        LeafPart { id, fenced, discarded: false, trim, index, gone_bytes, headers }
    }

    /// Writes missing directories, retires what is dead, and has rewritten what should be.
    fn check(&mut self) -> io::Result<()> {
        self.give_up_spares()?;
        // Where there is no room for a directory, what older extents take may be freed all the same.
        let closed = self.close_all();
        let given = self.give_back_all();
        self.free().and(given).and(closed)
    }

    fn close_all(&mut self) -> io::Result<()> {
        while let Some(closed) = self.closed.pop_front() {
            if let Err(e) = self.close(&closed) {
                self.closed.push_front(closed);
                return Err(e);
            }
        }
        Ok(())
    }

    /// While room is short, what was closed before it was gives back its end too.
    fn give_back_all(&self) -> io::Result<()> {
        if !self.inner.is_short()? {
            return Ok(());
        }
        let extents: Vec<Arc<Extent>> = self.inner.extents.lock().live.values().cloned().collect();
        for (extent, header) in extents.iter().filter_map(|e| Some((e, e.directory.get()?))) {
            self.inner.give_back(extent, header.data_end);
        }
        Ok(())
    }

    /// Retires what is dead, and has rewritten what should be.
    fn free(&mut self) -> io::Result<()> {
        if self.halted && self.inner.faults.is_some() {
            // A test wants to find what a kill leaves behind.
            return Ok(());
        }
        let (closed, open_from) = {
            let extents = self.inner.extents.lock();
            let has_directory = |e: &&Arc<Extent>| e.directory.get().is_some();
            let open_from = extents.live.values().find(|e| !has_directory(e)).map_or(u64::MAX, |e| e.number);
            let live = extents.live.values().take_while(has_directory);
            let mut closed: Vec<Arc<Extent>> = live.chain(extents.chunks.values()).cloned().collect();
            closed.sort_by_key(|e| e.number);
            (closed, open_from)
        };
        let begun = Instant::now();
        let look = if self.died && self.look_from <= begun { Look::Whole } else { Look::Quick };
        let judged = closed.into_iter().map(|e| (self.inner.life(&e, look), e));
        let (dead, mut rest): (Vec<_>, Vec<_>) = judged.partition(|(life, _)| *life == Life::Dead);
        if look == Look::Whole {
            self.died = false;
            self.look_from = Instant::now() + LOOK_REST_MIN.max(begun.elapsed() * LOOK_SHARE);
        }
        if !dead.is_empty() {
            let without: Vec<u64> = dead.iter().map(|(_, extent)| extent.key).collect();
            let saved = self.save_table().and_then(|()| self.save_inventory(&without));
            // Without room for the table they wait, not for the next death.
            self.died |= saved.is_err();
            saved?;
            dead.into_iter().for_each(|(_, extent)| self.retire(extent));
        }
        // What is beyond an extent without directory has neighbours that are not in the list.
        rest.retain(|(_, e)| e.number < open_from);
        self.plan(&rest);
        drop(rest);
        self.reuse()
    }

    fn save_table(&mut self) -> io::Result<()> {
        self.sequence += 1;
        self.inner.leaf_table(self.sequence).write(&self.inner.dir, self.inner.superblock.disk)
    }

    /// Records what is there, but for `without` (keys), which is about to go.
    fn save_inventory(&self, without: &[u64]) -> io::Result<()> {
        if self.forgets_absent() {
            self.inner.extents.lock().absent = Inventory::default();
        }
        let inventory = Inventory::of(&self.inner.extents.lock(), without);
        inventory.write(&self.inner.dir, self.inner.superblock.disk)
    }

    /// Whether all that what is missing may have held was deleted since.
    fn forgets_absent(&self) -> bool {
        let misses = |leaf: &Arc<Leaf>| {
            let state = leaf.state.read();
            state.suspect.is_some() && !state.discarded
        };
        self.inner.settled.load(Ordering::Acquire) && !self.inner.leaves().iter().any(misses)
    }

    /// Sends the flusher its next work, if there is any.
    fn plan(&mut self, all: &[(Life, Arc<Extent>)]) {
        // Not only when nothing came for a while: jobs may come without end.
        self.rest.ends(Instant::now());
        if self.busy || self.halted || self.rest.left(Instant::now()).is_some() || self.inner.is_dead() {
            return;
        }
        let candidate = |(life, e): &(Life, Arc<Extent>)| Candidate {
            chunk: e.is_chunk(),
            adopted: e.is_adopted(),
            stuck: e.stuck.load(Ordering::Relaxed) || self.unfit.contains(&e.key),
            life: *life,
            len: e.len(),
            entries: e.directory.get().map_or(0, |d| u64::from(d.entries)),
        };
        // A chunk must not come to cover what is missing: brought back, it would be taken for recycled.
        let absent = self.inner.extents.lock().absent.clone();
        let holes: Vec<u64> = absent.extents.iter().chain(&absent.chunks).map(|held| held.covers.1).collect();
        let apart = |a: u64, b: u64| holes.iter().any(|hole| a < *hole && *hole < b);
        let chosen = all.chunk_by(|a, b| !apart(a.1.number, b.1.number)).find_map(|group| {
            let candidates: Vec<Candidate> = group.iter().map(candidate).collect();
            let full = self.inner.full.load(Ordering::Relaxed);
            let Choice { range, urgency } = choose(&candidates, self.inner.journal_bytes, full)?;
            let sources: Vec<Arc<Extent>> =
                group.iter().map(|(_, e)| e.clone()).skip(range.start).take(range.len()).collect();
            Some((sources, urgency))
        });
        let Some((sources, urgency)) = chosen else {
            // All were tried: from the first on again, a little later.
            if !self.unfit.is_empty() {
                self.unfit.clear();
                self.rest();
            }
            return;
        };
        let sequence = {
            let mut extents = self.inner.extents.lock();
            extents.next_chunk += 1;
            extents.next_chunk - 1
        };
        self.rest.tries(Instant::now());
        self.busy = self.plans.send(Plan { sources, sequence, urgency }).is_ok();
    }

    /// Takes what the flusher did: from here on the chunk counts, and its sources do not.
    fn rewritten(&mut self, rewritten: Rewritten) -> io::Result<()> {
        self.busy = false;
        let Rewritten { sources, outcome } = rewritten;
        match outcome {
            Ok(Some(copied)) => self.register(copied, &sources)?,
            Ok(None) => {
                self.save_table()?;
                self.save_inventory(&sources.iter().map(|source| source.key).collect::<Vec<_>>())?;
            }
            Err(Failed::Ended) => {
                self.halted = true;
                return Ok(());
            }
            Err(Failed::Source(source, what)) => {
                tracing::error!("not rewritten, stays as it is: {}: {what}", source.path.display());
                source.stuck.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(Failed::NoRoom(why)) => {
                self.unfit.extend(sources.first().map(|source| source.key));
                self.refused += 1;
                if self.refused >= REFUSED_MAX {
                    self.rest();
                }
                self.say_no_room(&why, Instant::now());
                return Ok(());
            }
            Err(Failed::Io(e)) => {
                self.rest();
                return Err(e);
            }
        }
        // Only what is registered, or holds nothing that lives, comes here.
        if self.ends_at(RewriteStep::Recycle) {
            return Ok(());
        }
        sources.into_iter().for_each(|source| self.retire(source));
        Ok(())
    }

    /// Once in a while: a disk may be full for long.
    fn say_no_room(&mut self, why: &str, now: Instant) {
        if self.said_no_room.is_none_or(|at| now.saturating_duration_since(at) >= FULL_SAID_REST) {
            self.said_no_room = Some(now);
            tracing::warn!(dir = %self.inner.dir.display(), "keeping extents: {why}");
        }
    }

    /// No rewrite for a while.
    fn rest(&mut self) {
        self.refused = 0;
        self.rest.begin(Instant::now());
    }

    fn ends_at(&mut self, step: RewriteStep) -> bool {
        self.halted |= self.inner.faults.as_ref().is_some_and(|f| f.rewrite_ends(step));
        self.halted
    }

    fn register(&mut self, copied: Copied, sources: &[Arc<Extent>]) -> io::Result<()> {
        if self.ends_at(RewriteStep::Register) {
            return Ok(());
        }
        let of_groups = || sources.iter().filter_map(|s| s.directory.get());
        let header = DirectoryHeader {
            disk: self.inner.superblock.disk,
            extent: CHUNK_KEY | copied.sequence,
            covers: Some(copied.covers),
            first_group: of_groups().map(|d| d.first_group).min().unwrap_or_default(),
            end_group: of_groups().map(|d| d.end_group).max().unwrap_or_default(),
            data_end: copied.data_end,
            leaves: 0,
            partitions: 0,
            entries: 0,
        };
        let (bytes, header, summaries) = directory::encode(header, &copied.parts);
        let path = &copied.path;
        let opened = self.save_table().and_then(|()| File::open(path));
        let written = opened.and_then(|file| write_whole(&directory::path_of(path), &bytes).map(|()| file));
        let file = match written {
            Ok(file) => file,
            Err(e) => {
                self.rest.begin(Instant::now());
                // It must not come to count at the next start if another attempt is made.
                if let Err(e) = chunk::delete(path) {
                    tracing::error!("no rewriting until a restart: {}: {e}", path.display());
                    self.halted = true;
                }
                return Err(e);
            }
        };
        let extent = Extent::chunk(copied.sequence, copied.covers, path.clone(), file, copied.len);
        extent.directory.get_or_init(|| header);
        extent.payload.store(summaries.iter().map(|(_, s)| s.bytes).sum(), Ordering::Relaxed);
        extent.leaves.lock().extend(summaries.iter().map(|(id, _)| *id));
        let extent = Arc::new(extent);
        for (id, summary) in summaries {
            let Some(leaf) = self.inner.known_leaf(id) else { continue };
            let mut state = leaf.state.write();
            if !state.discarded {
                state.extents.retain(|(e, _)| !sources.iter().any(|s| s.key == e.key));
                let at = state.extents.partition_point(|(e, _)| e.number < extent.number);
                state.extents.insert(at, (extent.clone(), Index::Disk(summary)));
            }
        }
        self.inner.extents.lock().chunks.insert(copied.sequence, extent);
        let counters = &self.inner.counters;
        counters.rewritten.fetch_add(copied.data_end, Ordering::Relaxed);
        counters.chunks_written.fetch_add(1, Ordering::Relaxed);
        let extents = sources.iter().filter(|s| !s.is_chunk()).count();
        counters.extents_rewritten.fetch_add(extents as u64, Ordering::Relaxed);
        Ok(())
    }

    fn retire(&mut self, extent: Arc<Extent>) {
        {
            let mut extents = self.inner.extents.lock();
            match extent.is_chunk() {
                true => extents.chunks.remove(&(extent.key & !CHUNK_KEY)),
                false => extents.live.remove(&extent.number),
            };
        }
        let ids: Vec<LeafId> = extent.leaves.lock().iter().copied().collect();
        for id in ids.iter().filter(|id| id.leaf != DISCARD_ROW) {
            if let Some(leaf) = self.inner.known_leaf(*id) {
                leaf.state.write().extents.retain(|(e, _)| e.key != extent.key);
            }
        }
        if let Some(header) = extent.directory.get() {
            self.inner.directories.forget(extent.key, header.pages());
        }
        // Retired before, when all of it died while it was copied.
        if !self.retiring.iter().any(|e| e.key == extent.key) {
            self.retiring.push(extent);
        }
    }

    /// Makes retired extents that nobody reads any more spare.
    fn reuse(&mut self) -> io::Result<()> {
        let (free, pinned) = self.retiring.drain(..).partition(|e| Arc::strong_count(e) == 1);
        self.retiring = pinned;
        let free: Vec<Arc<Extent>> = free;
        for extent in free {
            if extent.is_chunk() {
                chunk::delete(&extent.path)?;
                continue;
            }
            match std::fs::remove_file(directory::path_of(&extent.path)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let len = extent.len();
            let few = self.inner.extents.lock().spares.len() < SPARES_MAX;
            if few && len == self.inner.extent_bytes && !self.inner.is_short()? {
                // Zeros where the header was: the file holds nothing any more.
                let writer = Writer::open(&extent.path, self.inner.mode, None)?;
                let mut zeros = Aligned::with_capacity(BLOCK);
                zeros.extend(&[0; BLOCK]);
                writer.write(zeros.filled(), 0)?;
                let path = extent.path.clone();
                self.inner.extents.lock().spares.push(Spare { path, len, written: true });
            } else {
                std::fs::remove_file(&extent.path)?;
            }
            sync_dir(extent.path.parent().unwrap_or(&self.inner.dir))?;
            self.inner.counters.recycled.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Deletes spare files while less than the reserve is free: small files need room too, and extents that are as small as the
    /// disk is full.
    fn give_up_spares(&self) -> io::Result<()> {
        while self.inner.is_short()? {
            let _moving = self.inner.moving();
            let Some(spare) = self.inner.extents.lock().spares.pop() else { break };
            std::fs::remove_file(&spare.path)?;
        }
        Ok(())
    }

    /// Makes files until there are `count` spare ones, unless the disk is nearly full: making one takes two commits of
    /// the file system, for which no append should wait.
    fn allocate(&self, count: usize) -> io::Result<()> {
        let len = self.inner.extent_bytes;
        while self.inner.extents.lock().spares.len() < count && self.inner.has_room(len).is_ok() {
            let _moving = self.inner.moving();
            let (path, len) = self.inner.new_file(len)?;
            self.inner.extents.lock().spares.push(Spare { path, len, written: false });
        }
        Ok(())
    }

    /// Writes zeros to spare files that were never written.
    fn zero(&self) -> io::Result<()> {
        loop {
            let _moving = self.inner.moving();
            let Some(spare) = self.unwritten_spare() else { return Ok(()) };
            let written = self.write_zeros(&spare);
            let Spare { path, len, .. } = spare;
            self.inner.extents.lock().spares.push(Spare { path, len, written: written.is_ok() });
            written?;
        }
    }

    fn unwritten_spare(&self) -> Option<Spare> {
        let mut extents = self.inner.extents.lock();
        let at = extents.spares.iter().position(|s| !s.written)?;
        Some(extents.spares.swap_remove(at))
    }

    fn write_zeros(&self, spare: &Spare) -> io::Result<()> {
        const PIECE: usize = 4 << 20;
        let mut zeros = Aligned::with_capacity(PIECE);
        zeros.extend(&vec![0; PIECE]);
        let writer = Writer::open(&spare.path, self.inner.mode, None)?;
        let mut at = 0;
        while at < spare.len && !self.inner.dropped.load(Ordering::Relaxed) {
            let piece = usize::try_from(spare.len - at).unwrap_or(PIECE).min(PIECE);
            writer.write(zeros.filled().get(..piece).unwrap_or_default(), at)?;
            at += piece as u64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{data, leaf, open, runtime, write};
    use std::sync::mpsc;

    #[test]
    fn after_a_failure_the_next_look_waits_and_the_same_is_not_said_again_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let mut keeper = Keeper::new(store.inner.clone(), 0, Vec::new(), mpsc::channel().0);
        assert_eq!(keeper.limit(), Some(Duration::ZERO), "something died and is looked at at once");
        let (full, now) = (io::Error::other("full"), Instant::now() + Duration::from_secs(60));
        keeper.failed(&full, now);
        assert!(keeper.limit().is_some_and(|limit| limit >= RETRY));
        let said = |keeper: &Keeper| keeper.said.clone().map(|(_, at)| at);
        keeper.failed(&full, now + RETRY);
        assert_eq!(said(&keeper), Some(now));
        keeper.failed(&full, now + SAID_REST);
        assert_eq!(said(&keeper), Some(now + SAID_REST));
        keeper.failed(&io::Error::other("another"), now + SAID_REST + RETRY);
        assert_eq!(said(&keeper), Some(now + SAID_REST + RETRY));
    }

    #[test]
    fn what_found_no_room_lets_others_go_first_and_after_some_it_rests() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        runtime().block_on(async {
            write(&*store.drive(leaf(1)), 0, vec![data(leaf(1), 0, 0, 0, 100)]).await.unwrap();
        });
        let open: Vec<Arc<Extent>> = store.inner.extents.lock().live.values().cloned().collect();
        let mut keeper = Keeper::new(store.inner.clone(), 0, Vec::new(), mpsc::channel().0);
        for refused in 1..=REFUSED_MAX {
            assert_eq!(keeper.rest.left(Instant::now()), None, "after {refused}");
            let outcome = Err(Failed::NoRoom("full".to_owned()));
            keeper.rewritten(Rewritten { sources: open.clone(), outcome }).unwrap();
            assert!(keeper.unfit.contains(&open[0].key));
        }
        assert!(keeper.rest.left(Instant::now()).is_some());
    }

    #[test]
    fn what_dies_while_rewriting_rests_is_rewritten_without_waiting_for_the_rests_end() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let mut keeper = Keeper::new(store.inner.clone(), 0, Vec::new(), mpsc::channel().0);
        keeper.died = false;
        let outcome = Err(Failed::Io(io::Error::other("full")));
        keeper.rewritten(Rewritten { sources: Vec::new(), outcome }).unwrap_err();
        assert!(keeper.limit().is_none_or(|limit| limit >= IDLE), "{:?}", keeper.limit());
        keeper.note_death();
        keeper.died = false;
        let soon = keeper.limit().unwrap_or(Duration::ZERO);
        assert!(soon <= RETRY, "it is tried within {soon:?}");
    }
}
