//! The chain: which loglets make up a range's log, and since when. Pure data and its rules (log-contracts 1.8).
//!
//! ```text
//!  virtual   0          40         40           90
//!            | l1, T=40 | (l2, T=0) | l3, T=50  | l5, open …
//! ```
//! INV-CHAIN-1 bases are contiguous · INV-CHAIN-2 a tail is set once · INV-CHAIN-3 every change raises the version by one
//! (R1) · INV-CHAIN-4 only the last segment is open · INV-CHAIN-5 a segment that ended empty leaves with the extension; its
//! leader epoch stays with the range (R10).

use crate::drive::spec::DriveSpec;
use crate::types::{Address, LogletId, Primary};
use serde::{Deserialize, Serialize};

/// How a segment is sealed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SealMode {
    /// The drive refuses writes (log-contracts 1.5 F).
    Fence,
}

/// One segment of a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainEntry {
    /// Virtual address of the loglet's address 0.
    pub base: u64,
    /// The loglet.
    pub loglet: LogletId,
    /// Its drive tree, placed.
    pub drive: DriveSpec,
    /// Window: at most so many slots in flight above the contiguous tail.
    pub window: u32,
    /// How it is sealed.
    pub seal_mode: SealMode,
    /// The one incarnation that may write it.
    pub primary: Primary,
    /// Its length, once sealed.
    pub tail: Option<Address>,
    /// Addresses below the tail with fewer copies than the write quorum, until healed.
    pub degraded: Option<(Address, Address)>,
    /// Addresses below the tail that no child holds.
    pub lost: Vec<(Address, Address)>,
    /// Compacted: gaps inside are right.
    pub sparse: bool,
    /// When it was opened, broker ms.
    pub opened_at: i64,
}

/// A segment to open; its base follows from the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The loglet; never used before.
    pub loglet: LogletId,
    /// Its drive tree, placed.
    pub drive: DriveSpec,
    /// Window, at least 1.
    pub window: u32,
    /// How it is sealed.
    pub seal_mode: SealMode,
    /// The one incarnation that may write it.
    pub primary: Primary,
    /// Broker ms.
    pub opened_at: i64,
}

impl Segment {
    /// As the open entry of a chain.
    pub fn at(self, base: u64) -> ChainEntry {
        ChainEntry {
            base,
            loglet: self.loglet,
            drive: self.drive,
            window: self.window,
            seal_mode: self.seal_mode,
            primary: self.primary,
            tail: None,
            degraded: None,
            lost: Vec::new(),
            sparse: false,
            opened_at: self.opened_at,
        }
    }
}

/// The end of the open segment, as a seal pass or a complete drain gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The segment that ends; must be the open one.
    pub loglet: LogletId,
    /// Its length.
    pub tail: Address,
    /// See [`ChainEntry::degraded`].
    pub degraded: Option<(Address, Address)>,
}

/// A change of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChainOp {
    /// Ends the open segment and opens the next, in one step.
    Extend {
        /// End of the open segment; `None` if the last one is sealed already.
        end: Option<End>,
        /// What follows.
        next: Segment,
    },
    /// Ends the open segment; the range is blocked until it is extended or closed.
    SetTail(End),
    /// Ends the range: a split or merge took its place.
    Close {
        /// End of the open segment; `None` if the last one is sealed already.
        end: Option<End>,
    },
    /// Puts another drive in the place of a sealed segment's: same base, same tail, same addresses.
    Replace {
        /// The segment.
        loglet: LogletId,
        /// Where its entries are from now on.
        drive: DriveSpec,
        /// Compacted: gaps inside are right.
        sparse: bool,
    },
    /// Missing copies of a sealed segment were made.
    Healed(LogletId),
    /// Addresses of a sealed segment that no copy holds.
    Lost {
        /// The segment.
        loglet: LogletId,
        /// First lost address.
        from: Address,
        /// End, excluded.
        to: Address,
    },
    /// Forgets virtual addresses below, and the segments wholly below.
    Trim {
        /// First address that is kept.
        below: u64,
    },
    /// Changes nothing but the version: an intent, an abort (R1).
    Touch,
}

/// Why a change does not apply. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Somebody else changed the chain; for good, read it again.
    #[error("chain is at version {found}, the change names {named}")]
    Version {
        /// What it is.
        found: u64,
        /// What was named.
        named: u64,
    },
    /// The segment is not the open one; for good.
    #[error("segment {0} is not open")]
    NotOpen(LogletId),
    /// The last segment is open and the change does not end it.
    #[error("segment {0} is open and must be ended by the change")]
    StillOpen(LogletId),
    /// Only sealed segments are replaced, healed or declared lost; until it is sealed.
    #[error("segment {0} is not sealed, or not in the chain")]
    NotSealed(LogletId),
    /// The range ended, for good.
    #[error("the range is closed")]
    Closed,
    /// A loglet id that is in the chain already.
    #[error("segment {0} was used before")]
    Reused(LogletId),
    /// Numbers that cannot be: outside of the segment, a window of 0, addresses exhausted.
    #[error("out of bounds: {0}")]
    Bounds(String),
}

/// What a change brought about, for whoever applies it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainEffect {
    /// Segments that left the chain: their data may be deleted by a tombstone.
    pub dropped: Vec<ChainEntry>,
    /// The primary is another node or generation than the last segment's, also of one that ended empty: leader epochs
    /// grow by one (R13).
    pub primary_changed: bool,
}

/// Where a virtual address lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// Below what is kept; reading goes on at `first`.
    Trimmed {
        /// First address that is kept.
        first: u64,
    },
    /// In a segment, below its tail if it has one.
    In {
        /// The segment.
        entry: &'a ChainEntry,
        /// The address in it.
        local: Address,
    },
    /// At or above the end of a chain whose last segment is sealed.
    End {
        /// The end.
        end: u64,
    },
}

/// The segments of one range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// Raised by one with every change.
    pub version: u64,
    /// First virtual address that is kept.
    pub trim: u64,
    /// Segments, oldest first.
    pub entries: Vec<ChainEntry>,
    /// The end, once the range is closed.
    pub closed: Option<u64>,
    /// Primary of the last segment, also when that one left the chain (R10).
    last_primary: Primary,
}

impl Chain {
    /// The chain of a new range, at version 1.
    pub fn new(first: Segment) -> Chain {
        let last_primary = first.primary;
        Chain { version: 1, trim: 0, entries: vec![first.at(0)], closed: None, last_primary }
    }

    /// The open segment.
    pub fn open(&self) -> Option<&ChainEntry> {
        self.entries.last().filter(|e| e.tail.is_none())
    }

    /// A segment of the chain.
    pub fn entry(&self, loglet: LogletId) -> Option<&ChainEntry> {
        self.entries.iter().find(|e| e.loglet == loglet)
    }

    /// Applies a change, if the chain still has version `expected`.
    ///
    /// Errors: nothing has changed; see [`ChainError`] for until when.
    pub fn apply(&mut self, expected: u64, op: ChainOp) -> Result<ChainEffect, ChainError> {
        if self.version != expected {
            return Err(ChainError::Version { found: self.version, named: expected });
        }
        let mut changed = self.clone();
        let effect = changed.change(op)?;
        changed.version += 1;
        if let Err(broken) = changed.check() {
            return Err(ChainError::Bounds(broken));
        }
        *self = changed;
        Ok(effect)
    }

    fn change(&mut self, op: ChainOp) -> Result<ChainEffect, ChainError> {
        let mut effect = ChainEffect::default();
        match op {
            ChainOp::Extend { end, next } => {
                self.end(end)?;
                if self.entry(next.loglet).is_some() {
                    return Err(ChainError::Reused(next.loglet));
                }
                let base =
                    self.sealed_end().ok_or_else(|| ChainError::Bounds("addresses exhausted".into()))?;
                effect.dropped.extend(self.drop_empty());
                effect.primary_changed = self.last_primary != next.primary;
                self.last_primary = next.primary;
                self.entries.push(next.at(base));
            }
            ChainOp::SetTail(end) => self.end(Some(end))?,
            ChainOp::Close { end } => {
                self.end(end)?;
                self.closed = self.sealed_end();
                effect.dropped.extend(self.drop_empty());
            }
            ChainOp::Replace { loglet, drive, sparse } => {
                let entry = self.sealed(loglet)?;
                entry.drive = drive;
                entry.sparse |= sparse;
            }
            ChainOp::Healed(loglet) => self.sealed(loglet)?.degraded = None,
            ChainOp::Lost { loglet, from, to } => {
                let entry = self.sealed(loglet)?;
                entry.lost.push((from, to));
                entry.lost.sort_unstable();
            }
            ChainOp::Trim { below } => {
                self.trim = self.trim.max(below);
                let kept = |e: &ChainEntry| e.tail.is_none_or(|t| e.base.saturating_add(t.0) > below);
                let first = self.entries.iter().position(kept).unwrap_or(self.entries.len());
                // The last segment of a chain that goes on stays, so that the next one finds its base.
                let first = if self.closed.is_some() { first } else { first.min(self.entries.len() - 1) };
                effect.dropped.extend(self.entries.drain(..first));
            }
            ChainOp::Touch => {}
        }
        Ok(effect)
    }

    /// Ends the open segment; afterwards none is open.
    fn end(&mut self, end: Option<End>) -> Result<(), ChainError> {
        if self.closed.is_some() {
            return Err(ChainError::Closed);
        }
        let open = self.entries.last_mut().filter(|e| e.tail.is_none());
        match (open, end) {
            (None, None) => Ok(()),
            (Some(open), None) => Err(ChainError::StillOpen(open.loglet)),
            (Some(open), Some(end)) if open.loglet == end.loglet => {
                open.tail = Some(end.tail);
                open.degraded = end.degraded;
                Ok(())
            }
            (_, Some(end)) => Err(ChainError::NotOpen(end.loglet)),
        }
    }

    /// End of the last segment, if it is sealed.
    fn sealed_end(&self) -> Option<u64> {
        let last = self.entries.last()?;
        last.base.checked_add(last.tail?.0)
    }

    fn drop_empty(&mut self) -> Option<ChainEntry> {
        self.entries.pop_if(|e| e.tail == Some(Address(0)))
    }

    fn sealed(&mut self, loglet: LogletId) -> Result<&mut ChainEntry, ChainError> {
        let entry = self.entries.iter_mut().find(|e| e.loglet == loglet && e.tail.is_some());
        entry.ok_or(ChainError::NotSealed(loglet))
    }

    /// Where a virtual address lies.
    pub fn resolve(&self, address: u64) -> Place<'_> {
        if address < self.trim {
            return Place::Trimmed { first: self.trim };
        }
        let after = self.entries.partition_point(|e| e.base <= address);
        let entry = after.checked_sub(1).and_then(|i| self.entries.get(i));
        let end = self.closed.or(self.sealed_end());
        match (entry, end) {
            (_, Some(end)) if address >= end => Place::End { end },
            (Some(entry), _) => Place::In { entry, local: Address(address - entry.base) },
            (None, _) => Place::Trimmed { first: self.entries.first().map_or(self.trim, |e| e.base) },
        }
    }

    /// The virtual address of a segment's address; `None` above its tail or outside of the chain.
    pub fn virtual_address(&self, loglet: LogletId, local: Address) -> Option<u64> {
        let entry = self.entry(loglet).filter(|e| e.tail.is_none_or(|t| local < t))?;
        entry.base.checked_add(local.0)
    }

    /// Checks the invariants; also for chains that come from elsewhere.
    ///
    /// Errors: which one is broken.
    pub fn check(&self) -> Result<(), String> {
        for (i, entry) in self.entries.iter().enumerate() {
            let name = entry.loglet;
            let last = i + 1 == self.entries.len();
            let end = match entry.tail {
                Some(tail) => entry.base.checked_add(tail.0).ok_or(format!("{name}: addresses exhausted"))?,
                None if last && self.closed.is_none() => u64::MAX,
                None => return Err(format!("INV-CHAIN-4: {name} is open and not the last")),
            };
            let next = self.entries.get(i + 1).map(|e| e.base).or(self.closed);
            if next.is_some_and(|base| base != end) {
                return Err(format!("INV-CHAIN-1: {name} ends at {end}, the next begins at {next:?}"));
            }
            if entry.window == 0 {
                return Err(format!("{name}: a window of 0"));
            }
            let inside = |(from, to): &(Address, Address)| from < to && entry.tail.is_some_and(|t| *to <= t);
            if !entry.degraded.iter().chain(&entry.lost).all(inside) {
                return Err(format!("{name}: degraded or lost addresses outside of the segment"));
            }
            if self.entries.iter().skip(i + 1).any(|e| e.loglet == name) {
                return Err(format!("{name} stands in the chain twice"));
            }
        }
        let end = self.closed.or(self.sealed_end()).unwrap_or(u64::MAX);
        match self.trim <= end {
            true => Ok(()),
            false => Err(format!("trimmed below {}, the end is {end}", self.trim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Generation, NodeId};
    use proptest::prelude::*;

    fn segment(loglet: u64, generation: u64) -> Segment {
        let node = NodeId(1);
        Segment {
            loglet: LogletId(loglet),
            drive: DriveSpec::Memory { node },
            window: 4,
            seal_mode: SealMode::Fence,
            primary: Primary { node, generation: Generation(generation) },
            opened_at: 0,
        }
    }

    fn end(loglet: u64, tail: u64) -> Option<End> {
        Some(End { loglet: LogletId(loglet), tail: Address(tail), degraded: None })
    }

    fn extend(ended: u64, tail: u64, next: u64) -> ChainOp {
        ChainOp::Extend { end: end(ended, tail), next: segment(next, 1) }
    }

    #[test]
    fn an_extension_sets_the_tail_once_and_only_against_the_version_that_was_read() {
        let mut chain = Chain::new(segment(1, 1));
        chain.apply(1, extend(1, 40, 2)).unwrap();
        assert_eq!(chain.apply(1, extend(1, 30, 3)), Err(ChainError::Version { found: 2, named: 1 }));
        assert_eq!(chain.apply(2, extend(1, 30, 3)), Err(ChainError::NotOpen(LogletId(1))));
        assert_eq!(
            chain.apply(2, ChainOp::Extend { end: None, next: segment(3, 1) }),
            Err(ChainError::StillOpen(LogletId(2)))
        );
        assert_eq!(chain.apply(2, extend(2, 5, 1)), Err(ChainError::Reused(LogletId(1))));
        assert_eq!((chain.version, chain.entries[0].tail, chain.entries[1].base), (2, Some(Address(40)), 40));
    }

    #[test]
    fn an_empty_segment_leaves_with_the_extension_and_its_primary_still_counts() {
        let mut chain = Chain::new(segment(1, 1));
        chain.apply(1, extend(1, 40, 2)).unwrap();
        let effect = chain.apply(2, ChainOp::Extend { end: end(2, 0), next: segment(3, 2) }).unwrap();
        assert_eq!(effect.dropped.iter().map(|e| e.loglet).collect::<Vec<_>>(), [LogletId(2)]);
        assert!(effect.primary_changed);
        let effect = chain.apply(3, ChainOp::Extend { end: end(3, 0), next: segment(4, 2) }).unwrap();
        assert!(!effect.primary_changed, "the empty segment had this primary");
        assert_eq!(chain.entries.len(), 2);
        assert_eq!(chain.entries[1].base, 40);
    }

    #[test]
    fn virtual_addresses_resolve_to_one_segment_and_back() {
        let mut chain = Chain::new(segment(1, 1));
        chain.apply(1, extend(1, 40, 2)).unwrap();
        chain.apply(2, extend(2, 10, 3)).unwrap();
        let place = |chain: &Chain, a| match chain.resolve(a) {
            Place::In { entry, local } => (entry.loglet.0, local.0),
            Place::Trimmed { first } => (0, first),
            Place::End { end } => (99, end),
        };
        assert_eq!(place(&chain, 39), (1, 39));
        assert_eq!(place(&chain, 40), (2, 0));
        assert_eq!(place(&chain, 1000), (3, 950));
        assert_eq!(chain.virtual_address(LogletId(2), Address(9)), Some(49));
        assert_eq!(chain.virtual_address(LogletId(2), Address(10)), None);
        chain.apply(3, ChainOp::Trim { below: 45 }).unwrap();
        assert_eq!(place(&chain, 44), (0, 45));
        assert_eq!(place(&chain, 45), (2, 5));
        chain.apply(4, ChainOp::SetTail(end(3, 7).unwrap())).unwrap();
        assert_eq!(place(&chain, 57), (99, 57));
    }

    #[test]
    fn only_sealed_segments_are_replaced_and_a_closed_range_takes_nothing_more() {
        let mut chain = Chain::new(segment(1, 1));
        let replace = |l| ChainOp::Replace {
            loglet: LogletId(l),
            drive: DriveSpec::Memory { node: NodeId(2) },
            sparse: false,
        };
        assert_eq!(chain.apply(1, replace(1)), Err(ChainError::NotSealed(LogletId(1))));
        chain.apply(1, ChainOp::Close { end: end(1, 8) }).unwrap();
        chain.apply(2, replace(1)).unwrap();
        assert_eq!(chain.apply(3, extend(1, 8, 2)), Err(ChainError::Closed));
        let lost = |from, to| ChainOp::Lost { loglet: LogletId(1), from: Address(from), to: Address(to) };
        assert!(matches!(chain.apply(3, lost(7, 9)), Err(ChainError::Bounds(_))), "above the tail");
        chain.apply(3, lost(6, 8)).unwrap();
        let effect = chain.apply(4, ChainOp::Trim { below: 8 }).unwrap();
        assert_eq!((effect.dropped.len(), chain.entries.len(), chain.closed), (1, 0, Some(8)));
        assert!(matches!(chain.apply(5, ChainOp::Trim { below: 9 }), Err(ChainError::Bounds(_))));
    }

    proptest! {
        /// Any changes: the invariants hold, a tail once set and an address once placed never change, and a refused
        /// change changes nothing.
        #[test]
        fn any_changes_keep_the_invariants(ops in prop::collection::vec((0u8..7, 0u64..20, any::<bool>()), 0..40)) {
            let mut chain = Chain::new(segment(0, 0));
            let mut placed = std::collections::BTreeMap::new();
            for (next, (op, n, fresh)) in (1..).zip(ops) {
                let last = chain.entries.last().map_or(0, |e| e.loglet.0);
                let end = chain.open().and_then(|_| end(last, n));
                let op = match op {
                    0..=2 => ChainOp::Extend { end, next: segment(next, n % 3) },
                    3 => ChainOp::SetTail(End { loglet: LogletId(last), tail: Address(n), degraded: None }),
                    4 => ChainOp::Trim { below: n * 2 },
                    5 if n == 0 => ChainOp::Close { end },
                    5 => ChainOp::Touch,
                    _ => ChainOp::Lost { loglet: LogletId(n), from: Address(0), to: Address(n) },
                };
                let before = chain.clone();
                let expected = if fresh { chain.version } else { chain.version.wrapping_sub(1) };
                match chain.apply(expected, op) {
                    Err(_) => prop_assert_eq!(&chain, &before),
                    Ok(_) => {
                        prop_assert!(fresh);
                        prop_assert_eq!(chain.version, before.version + 1);
                    }
                }
                prop_assert_eq!(chain.check(), Ok(()));
                for entry in chain.entries.iter().filter(|e| e.tail.is_some()) {
                    let first = placed.entry(entry.loglet).or_insert((entry.base, entry.tail));
                    prop_assert_eq!(*first, (entry.base, entry.tail));
                }
            }
        }
    }
}
