//! How much of a disk is left and for whom, and where the next extent comes from.
//!
//! What is left for entries is less than what is free: directories of extents are still to be written. A look at the file
//! system is good for [`SPACE_FRESH`], and for a quarter of what it found above the reserve: whole blocks are written for
//! what was admitted, and so that does not add up near the reserve.

use crate::drive::{AdmitError, Purpose};
use crate::store::extent::{self, EXTENTS};
use crate::store::format::{BLOCK, ExtentHeader};
use crate::store::room::says_full;
use crate::store::superblock::{self, Superblock};
use crate::store::{EXTENT_BYTES_MIN, Inner, Spare, file};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long a look at the file system's free space is good for.
const SPACE_FRESH: Duration = Duration::from_millis(50);
/// How long one is used at most because files are on the move whenever another is due.
const SPACE_KEPT: Duration = Duration::from_secs(1);
/// A look is good for one part in so many of what was left above the reserve.
const LOOK_SHARE: u64 = 4;

/// How long it is not said again that a disk is full, or that nothing more of it can be rewritten.
pub(super) const FULL_SAID_REST: Duration = Duration::from_secs(600);

/// Pages of a directory with a row of each kind, in bytes.
const DIRECTORY_BYTES_MIN: u64 = 5 * BLOCK as u64;
/// A new extent within the reserve takes one part in so many of what is free.
const EXTENT_SHARE: u64 = 8;
/// Of an extent of entries of some KiB its directory takes one part in so many.
const DIRECTORY_SHARE: u64 = 64;

/// Free space as it was looked up, in bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Space {
    at: Instant,
    left: u64,
    /// Admitted since.
    taken: u64,
    /// As long as no more is admitted it need not be looked up again.
    good_for: u64,
    recent: Recent,
}

/// What was admitted and may not be written yet.
#[derive(Copy, Clone, Debug)]
struct Recent {
    since: Instant,
    taken: u64,
    /// What the journal had written at `since`, in all.
    written: u64,
    /// `taken` and `written` of the time before `since`, when that is recent.
    before: Option<(u64, u64)>,
}

impl Recent {
    /// With what is older than [`SPACE_FRESH`] as what was before; what is older than twice that is written, or never will be.
    fn turned(self, written: u64, now: Instant) -> Recent {
        let age = now.saturating_duration_since(self.since);
        if age < SPACE_FRESH {
            return self;
        }
        let before = (age < 2 * SPACE_FRESH).then_some((self.taken, self.written));
        Recent { since: now, taken: 0, written, before }
    }

    fn in_flight(&self, written: u64) -> u64 {
        let (taken, from) = self.before.unwrap_or((0, self.written));
        self.taken.saturating_add(taken).saturating_sub(written.saturating_sub(from))
    }
}

impl Space {
    /// After a look that found `found` bytes; `before`: the one before, `written`: what the journal has written in all.
    fn new(before: Option<Space>, found: u64, written: u64, reserve: u64, now: Instant) -> Space {
        let fresh = Recent { since: now, taken: 0, written, before: None };
        let recent = before.map_or(fresh, |space| space.recent.turned(written, now));
        let left = found.saturating_sub(recent.in_flight(written));
        let good_for = left.saturating_sub(reserve) / LOOK_SHARE;
        Space { at: now, left, taken: 0, good_for, recent }
    }

    fn is_good(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < SPACE_FRESH && self.taken <= self.good_for
    }

    /// What is left before `bytes` are taken, which they are if that is at least `need`.
    fn take(&mut self, bytes: u64, need: u64) -> u64 {
        let left = self.left.saturating_sub(self.taken);
        if left >= need {
            self.taken = self.taken.saturating_add(bytes);
            self.recent.taken = self.recent.taken.saturating_add(bytes);
        }
        left
    }
}

/// Counts files that move between free space, spare extents and the open one: a look meanwhile would count them twice, or not.
#[derive(Default)]
pub(crate) struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A file moves as long as this lives.
pub(crate) struct Moving<'a>(&'a Moves);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Inner {
    /// Says that a file moves, until the answer is dropped.
    pub(crate) fn moving(&self) -> Moving<'_> {
        self.moves.begun.fetch_add(1, Ordering::SeqCst);
        Moving(&self.moves)
    }

    /// Free bytes before `bytes` more are taken. What is refused is not taken.
    fn available(&self, bytes: u64, need: u64) -> io::Result<u64> {
        let mut space = self.space.lock();
        let now = Instant::now();
        let known = space.filter(|space| space.is_good(now));
        let looked = match known {
            Some(known) => known,
            None => {
                let (found, is_still) = self.look_up_space()?;
                let kept = space.filter(|s| !is_still && now.saturating_duration_since(s.at) < SPACE_KEPT);
                let written = self.counters.bytes_written.load(Ordering::Relaxed);
                kept.unwrap_or_else(|| Space::new(*space, found, written, self.reserve_bytes, now))
            }
        };
        Ok(space.insert(looked).take(bytes, need))
    }

    /// What the journal can still write, into the open extent, spare ones and new ones; and whether no file moved meanwhile.
    /// If one did, it is not counted twice.
    pub(crate) fn look_up_space(&self) -> io::Result<(u64, bool)> {
        let ended = self.moves.ended.load(Ordering::SeqCst);
        let begun = self.moves.begun.load(Ordering::SeqCst);
        let left = self.open_left.load(Ordering::Relaxed);
        let spare = self.spare_bytes();
        let found = self.free_space()?.saturating_add(spare).saturating_add(left);
        let found = found.saturating_sub(self.owed_directories());
        let is_still = ended == begun && self.moves.begun.load(Ordering::SeqCst) == begun;
        Ok((found, is_still))
    }

    fn spare_bytes(&self) -> u64 {
        self.extents.lock().spares.iter().map(|s| s.len).sum()
    }

    pub(super) fn free_space(&self) -> io::Result<u64> {
        if let Some(bytes) = self.faults.as_ref().and_then(|f| f.available()) {
            return Ok(bytes);
        }
        let s = rustix::fs::statvfs(&self.dir)?;
        Ok(s.f_bavail.saturating_mul(s.f_frsize))
    }

    /// See `LogDrive::admit`.
    pub(crate) fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        if let Some(why) = self.dead_reason() {
            return Err(AdmitError::Dead(why));
        }
        let kept = purpose.keeps(self.reserve_bytes);
        let need = kept.saturating_add(bytes as u64);
        let available = self
            .available(bytes as u64, need)
            .map_err(|e| AdmitError::Dead(format!("{}: {e}", self.dir.display())))?;
        let full = available < need;
        if purpose == Purpose::Records {
            self.note_full(available, need);
        }
        if full {
            return Err(AdmitError::Full(format!(
                "{}: {available} bytes left, expected {need} ({kept} are reserved for {})",
                self.dir.display(),
                match purpose {
                    Purpose::Unasked | Purpose::Records => "control records",
                    Purpose::Coordination | Purpose::Rewriting => "what frees space",
                    Purpose::Freeing => "fences",
                }
            )));
        }
        Ok(())
    }

    /// Whether there is room for an extent of records, not only for the next few: what a segment is placed on.
    pub(crate) fn is_roomy(&self) -> bool {
        let need = self.reserve_bytes.saturating_add(self.extent_bytes);
        let roomy = self.available(0, 0).is_ok_and(|available| {
            self.note_full(available, need);
            available >= need
        });
        roomy && !self.is_dead()
    }

    /// Takes note of whether records are refused, with so much `available` where they `need` so much. What was full stays so
    /// until there is room for an extent: near the reserve it would be full and not full by turns.
    fn note_full(&self, available: u64, need: u64) {
        let was = self.full.load(Ordering::Relaxed);
        let roomy = available >= self.reserve_bytes.saturating_add(self.extent_bytes);
        let full = available < need || was && !roomy;
        if full != was && self.full.swap(full, Ordering::Relaxed) != full && full {
            // What is not worth it otherwise is rewritten now.
            self.check_extents();
            self.say_full(available, need);
        }
    }

    /// Once in a while.
    fn say_full(&self, available: u64, need: u64) {
        let now = Instant::now();
        let mut said = self.said_full.lock();
        if said.is_none_or(|at| now.saturating_duration_since(at) >= FULL_SAID_REST) {
            *said = Some(now);
            tracing::warn!(dir = %self.dir.display(), available, need,
                "disk full: it takes no more records until space is freed");
        }
    }

    /// Whether a file that the store makes for itself would leave the reserve.
    ///
    /// Errors: until space is freed.
    pub(crate) fn has_room(&self, bytes: u64) -> io::Result<()> {
        let free = self.free_space()?;
        let need = self.reserve_bytes.saturating_add(bytes);
        if free < need {
            return Err(io::Error::other(format!("{free} bytes left, expected {need}")));
        }
        Ok(())
    }

    /// How many bytes a file may have that the store makes for itself, spare extents given up for it: the reserve is left,
    /// or, for one that frees more than it takes, an extent to go on in, which may be a small one, and what small files need.
    ///
    /// Errors: the file system does not say.
    pub(crate) fn room(&self, frees: bool) -> io::Result<u64> {
        let reserve = self.reserve_bytes.max(self.extent_bytes);
        let least = self.extent_bytes.min(self.reserve_bytes / 4).saturating_add(self.reserve_bytes / 16);
        let kept = if frees { reserve.min(least) } else { reserve };
        Ok(self.free_space()?.saturating_add(self.spare_bytes()).saturating_sub(kept))
    }

    /// Takes room for a file that the store makes for itself, and makes now. So many bytes are there as [`Inner::room`]
    /// said; spare extents are given up until they are free.
    ///
    /// Errors: a spare extent cannot be deleted.
    pub(crate) fn take_room(&self, bytes: u64) -> io::Result<()> {
        let kept = self.extent_bytes.min(self.reserve_bytes / 16);
        while self.free_space()? < bytes.saturating_add(kept) {
            let Some(spare) = self.extents.lock().spares.pop() else { break };
            std::fs::remove_file(&spare.path)?;
        }
        // Allocated at once: the next look at the file system sees it.
        if let Some(space) = self.space.lock().as_mut() {
            space.left = space.left.saturating_sub(bytes);
        }
        Ok(())
    }

    /// About what the directories will take that are not written yet, in bytes.
    fn owed_directories(&self) -> u64 {
        let extents = self.extents.lock();
        let without = extents.live.values().rev().take_while(|e| e.directory.get().is_none());
        without.map(|e| DIRECTORY_BYTES_MIN + e.len() / DIRECTORY_SHARE).sum()
    }

    /// Chooses the file of the next extent: a spare one, else a new one; on a full disk one that is smaller than others.
    ///
    /// Errors: `need` bytes and a block are nowhere, until space is freed; nothing was written.
    pub(crate) fn prepare_extent(&self, need: u64, first_group: u64) -> io::Result<(ExtentHeader, PathBuf)> {
        let least = (need + BLOCK as u64).next_multiple_of(BLOCK as u64);
        let whole = least.max(self.extent_bytes);
        let (path, len) = match self.take_spare(whole) {
            Some(spare) => (spare.path, spare.len),
            None => match self.new_file(self.fair_len(whole)?.max(least)) {
                Err(e) if says_full(&e) => self.small_file(least, e)?,
                made => made?,
            },
        };
        let number = {
            let mut extents = self.extents.lock();
            extents.next_number += 1;
            extents.next_number - 1
        };
        let Superblock { disk, generation, .. } = self.superblock;
        let salt = Uuid::new_v4().as_u64_pair().0;
        Ok((ExtentHeader { disk, generation, number, first_group, len, salt }, path))
    }

    /// The length of a new extent: `whole` where that leaves the reserve, else what is above the reserve; within it a part of
    /// what is free, since small files need room too.
    fn fair_len(&self, whole: u64) -> io::Result<u64> {
        let free = self.free_space()?;
        let part = (free / EXTENT_SHARE).max(EXTENT_BYTES_MIN.min(free / 2));
        let fair = free.saturating_sub(self.reserve_bytes).max(part).min(whole);
        Ok(fair - fair % BLOCK as u64)
    }

    /// A spare extent of at least `len` bytes; one that was written before if there is one.
    fn take_spare(&self, len: u64) -> Option<Spare> {
        let mut extents = self.extents.lock();
        let written = extents.spares.iter().position(|s| s.len >= len && s.written);
        let fitting = written.or_else(|| extents.spares.iter().position(|s| s.len >= len));
        fitting.map(|at| extents.spares.swap_remove(at))
    }

    /// A file of at least `least` bytes where there is no room for a whole extent, as `full` says: the largest that a few tries
    /// find.
    fn small_file(&self, least: u64, full: io::Error) -> io::Result<(PathBuf, u64)> {
        if let Some(spare) = self.take_spare(least) {
            return Ok((spare.path, spare.len));
        }
        let (mut len, mut full) = (self.extent_bytes.max(least), full);
        while len > least {
            len = (len / 2).next_multiple_of(BLOCK as u64).max(least);
            match self.new_file(len) {
                Err(e) if says_full(&e) => full = e,
                made => return made,
            }
        }
        Err(full)
    }

    /// Creates a file for an extent.
    pub(crate) fn new_file(&self, len: u64) -> io::Result<(PathBuf, u64)> {
        let number = {
            let mut extents = self.extents.lock();
            extents.next_file += 1;
            extents.next_file - 1
        };
        let path = extent::path(&self.dir, number);
        extent::allocate(&path, len, self.faults.as_ref())?;
        let dir = self.dir.join(EXTENTS);
        file::with_descriptor(self.faults.as_ref(), || superblock::sync_dir(&dir))?;
        Ok((path, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_look_is_good_for_a_quarter_of_what_is_above_the_reserve_and_then_another_is_due() {
        let now = Instant::now();
        let mut space = Space::new(None, 20 * MIB, 0, 4 * MIB, now);
        assert_eq!(space.take(4 * MIB, 8 * MIB), 20 * MIB);
        assert!(space.is_good(now));
        assert_eq!(space.take(1, 4 * MIB + 1), 16 * MIB);
        assert!(!space.is_good(now), "a quarter is taken");
        let full = Space::new(None, 4 * MIB, 0, 4 * MIB, now);
        assert!(full.is_good(now) && !full.is_good(now + SPACE_FRESH), "nothing is taken of a full disk");
    }

    #[test]
    fn what_is_refused_is_not_taken() {
        let mut space = Space::new(None, 5 * MIB, 0, 4 * MIB, Instant::now());
        assert_eq!(space.take(2 * MIB, 6 * MIB), 5 * MIB);
        assert_eq!(space.take(MIB, 5 * MIB), 5 * MIB);
        assert_eq!(space.take(0, 0), 4 * MIB);
    }

    #[test]
    fn what_was_admitted_and_is_not_written_counts_as_taken_after_further_looks() {
        let begun = Instant::now();
        let mut space = Space::new(None, 100 * MIB, 0, 0, begun);
        space.take(10 * MIB, 10 * MIB);
        // The file system as before, since nothing was written.
        for (ms, written, left) in [(1, 0, 90), (2, 4, 94), (60, 4, 94), (61, 10, 100), (200, 10, 100)] {
            let now = begun + Duration::from_millis(ms);
            space = Space::new(Some(space), 100 * MIB, written * MIB, 0, now);
            assert_eq!(space.left, left * MIB, "after {ms} ms");
        }
    }
}
