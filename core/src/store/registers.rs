//! The write-once registers of one leaf, without their contents: which addresses are written, trimmed, fenced. A pure
//! state machine shared by the disk and the memory store; what is durable is the caller's matter.
//!
//! INV-STORE-7 holes are disjoint and within `[trim, end)`; `end - 1` is never a hole; `trim ≤ end`.

use crate::drive::TailDesc;
use crate::testing::{Mutant, broken};
use std::collections::BTreeMap;

/// Which addresses of a leaf are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Registers {
    end: u64,
    trim: u64,
    /// Unwritten runs below `end`: start → end, excluded.
    holes: BTreeMap<u64, u64>,
    fenced: bool,
}

/// What a write of an address meets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Unwritten: take it.
    Free,
    /// Written: the same bytes are fine, others are a conflict.
    Written,
    /// Below the trim point.
    Trimmed,
    /// The leaf is fenced, whatever the address holds.
    Sealed,
}

impl Registers {
    /// What a sequencer's write of `a` meets; the fence comes first (W4).
    pub(crate) fn write_meets(&self, a: u64) -> Slot {
        let held_and_ok = broken(Mutant::FencedRewriteOk) && self.holds(a) == Slot::Written;
        let closed = self.fenced && !held_and_ok && !broken(Mutant::FenceLifted);
        if closed { Slot::Sealed } else { self.holds(a) }
    }

    /// What stands at `a`, the fence left out (repairs).
    pub(crate) fn holds(&self, a: u64) -> Slot {
        if a < self.trim {
            Slot::Trimmed
        } else if a >= self.end || self.is_hole(a) {
            Slot::Free
        } else {
            Slot::Written
        }
    }

    fn is_hole(&self, a: u64) -> bool {
        self.holes.range(..=a).next_back().is_some_and(|(_, end)| a < *end)
    }

    /// Marks `a` written; whether it lay below the end (out of order).
    pub(crate) fn set(&mut self, a: u64) -> bool {
        self.set_run(a, a.saturating_add(1))
    }

    /// Marks `[start, end)` written; whether it began below the end.
    pub(crate) fn set_run(&mut self, start: u64, end: u64) -> bool {
        let below_end = start < self.end;
        if start > self.end {
            self.holes.insert(self.end, start);
        }
        let before = self.holes.range(..start).next_back().filter(|(_, e)| **e > start);
        let first = before.map_or(start, |(s, _)| *s);
        let cut: Vec<(u64, u64)> = self.holes.range(first..end).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in cut.into_iter().filter(|(_, e)| *e > start) {
            self.holes.remove(&s);
            if s < start {
                self.holes.insert(s, start);
            }
            if e > end {
                self.holes.insert(end, e);
            }
        }
        self.end = self.end.max(end);
        below_end
    }

    /// Raises the trim point; addresses below count as written and are gone.
    pub(crate) fn trim(&mut self, below: u64) {
        if below <= self.trim {
            return;
        }
        self.trim = below;
        self.end = self.end.max(below);
        let mut kept = self.holes.split_off(&below);
        if let Some((_, &end)) = self.holes.iter().next_back()
            && end > below
        {
            kept.insert(below, end);
        }
        self.holes = kept;
    }

    /// Closes the leaf to writes, for ever.
    pub(crate) fn fence(&mut self) {
        self.fenced = true;
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }
    pub(crate) fn end(&self) -> u64 {
        self.end
    }
    pub(crate) fn trimmed(&self) -> u64 {
        self.trim
    }

    /// Whether there is no hole at all.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.holes.is_empty()
    }

    /// The window of the last `k` addresses (T1 to T4).
    pub(crate) fn tail(&self, k: u32) -> TailDesc {
        let from = self.end.saturating_sub(u64::from(k)).max(self.trim);
        let mut tail = TailDesc { end: self.end, trim: self.trim, ..TailDesc::default() };
        let before = self.holes.range(..from).next_back();
        for (&start, &end) in before.into_iter().chain(self.holes.range(from..)) {
            tail.holes.extend(start.max(from)..end);
        }
        tail
    }
}

impl Registers {
    /// Holes below the end: start and end, excluded.
    pub(crate) fn holes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes.iter().map(|(s, e)| (*s, *e))
    }

    /// The first unwritten address at or above `from`.
    pub(crate) fn first_free(&self, from: u64) -> u64 {
        let from = from.max(self.trim);
        if from >= self.end || self.is_hole(from) {
            return from;
        }
        self.holes.range(from..).next().map_or(self.end, |(start, _)| *start)
    }

    /// Registers as they were stored: holes and trim point within the end.
    pub(crate) fn restored(end: u64, trim: u64, fenced: bool, holes: &[(u64, u64)]) -> Registers {
        let mut r = Registers { end, fenced, ..Registers::default() };
        r.holes = holes.iter().copied().filter(|(s, e)| s < e && *e < end).collect();
        r.trim(trim);
        r
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn registers_agree_with_a_set_of_addresses(ops in prop::collection::vec((0u8..5, 0u64..60), 0..80), k in 0u32..70) {
            let mut r = Registers::default();
            let mut written = BTreeSet::new();
            let (mut trim, mut end) = (0u64, 0u64);
            for (op, a) in ops {
                if op == 0 {
                    r.trim(a / 2);
                    trim = trim.max(a / 2);
                    end = end.max(trim);
                } else if op == 1 {
                    r.set_run(a, a + 4);
                    written.extend(a..a + 4);
                    end = end.max(a + 4);
                } else if r.write_meets(a) == Slot::Free {
                    r.set(a);
                    written.insert(a);
                    end = end.max(a + 1);
                }
                for a in 0..64 {
                    let expected = if a < trim { Slot::Trimmed }
                        else if written.contains(&a) { Slot::Written } else { Slot::Free };
                    prop_assert_eq!(r.write_meets(a), expected);
                }
            }
            let tail = r.tail(k);
            prop_assert_eq!(tail.end, end);
            prop_assert_eq!(tail.trim, trim);
            let expected: BTreeSet<u64> = (end.saturating_sub(u64::from(k)).max(trim)..end)
                .filter(|a| !written.contains(a)).collect();
            prop_assert_eq!(tail.holes, expected);
            let holes: Vec<_> = r.holes().collect();
            prop_assert_eq!(&Registers::restored(r.end(), r.trimmed(), false, &holes), &r);
            r.fence();
            for a in 0..64 { prop_assert_eq!(r.write_meets(a), Slot::Sealed); }
        }
    }
}
