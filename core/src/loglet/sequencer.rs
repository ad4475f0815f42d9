//! The sequencer: hands out a loglet's addresses and knows which prefix is complete. Pure; no I/O, no clock.
//!
//! Owns `next`, `done`, the window and the rule of the graceful roll (reshard-rules R4). Must not know drives, entries,
//! tickets or the chain's contents: it is told versions.
//!
//! ```text
//!  0            done                       next        done + window
//!  | completed  | some complete, some not  | not issued |
//! ```
//! INV-SEQ-1 `done <= next <= done + window` · INV-SEQ-2 an address is handed out once · INV-SEQ-3 `done` never passes an
//! address that is not complete, so acknowledging below `done` is in order (O3) · INV-SEQ-4 a roll's tail is `next`, and
//! then `next == done`.

use crate::testing::{Mutant, broken};
use crate::types::Address;
use std::collections::VecDeque;
use std::ops::Range;

/// Bounds of what may be in flight above the completed prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Entries (K of log-contracts), at least 1.
    pub entries: u32,
    /// Bytes; one run larger than this may go alone.
    pub bytes: u64,
}

/// Why no addresses are handed out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Window full, until the oldest run completes.
    #[error("window full: address {oldest} is not complete yet")]
    Full {
        /// First address that is not complete.
        oldest: Address,
    },
    /// A roll or close is under way, until it is recorded (then sealed) or called off.
    #[error("stopped: the segment is being rolled or closed")]
    Stopped,
    /// The loglet takes no more entries, for ever.
    #[error("sealed: the segment takes no entries any more")]
    Sealed,
}

/// Why a roll cannot go to the chain.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollError {
    /// Issuing was not stopped first, or it went on since.
    #[error("not stopped: stop issuing first")]
    NotStopped,
    /// Entries are in flight, until they complete.
    #[error("not drained: {in_flight} entries are in flight")]
    NotDrained {
        /// How many.
        in_flight: u64,
    },
    /// The compare-and-set is out already, until a chain version is read.
    #[error("the roll at version {version} is not answered yet")]
    Sent {
        /// The version that it named.
        version: u64,
    },
    /// Sealed, for ever.
    #[error("sealed: the segment was ended by somebody else")]
    Sealed,
}

/// A roll to be recorded: this tail, if the chain still has this version.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roll {
    /// The chain version read before the drain began (R1).
    pub version: u64,
    /// The loglet's length; nothing is in flight.
    pub tail: Address,
}

/// What a chain version that was read means for the sequencer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AfterRead {
    /// Issues, or may issue again.
    Issuing,
    /// Stays stopped: a roll is not answered, and this version does not answer it.
    Stopped,
    /// Another segment is active: sealed.
    Sealed,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Mode {
    Issuing,
    /// Draining; the chain version read before.
    Stopped(u64),
    /// The compare-and-set with this version is out and may be applied at any time.
    RollSent(u64),
    Sealed,
}

/// A reserved run: stands at its first address; the places of its other addresses stay `VACANT`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    count: u32,
    complete: bool,
    bytes: u64,
}

const VACANT: Slot = Slot { count: 0, complete: false, bytes: 0 };

/// One loglet's sequencer; owned by one task or behind the range's lock, never rebuilt after loss (O1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sequencer {
    next: u64,
    done: u64,
    window: Window,
    bytes: u64,
    mode: Mode,
    /// Places of the addresses `[done, next)`. Grows to the most that was ever in flight, at most the window.
    slots: VecDeque<Slot>,
}

impl Sequencer {
    /// A sequencer of an empty loglet.
    pub fn new(window: Window) -> Sequencer {
        assert!(window.entries >= 1, "a window holds one entry at least");
        Sequencer { next: 0, done: 0, window, bytes: 0, mode: Mode::Issuing, slots: VecDeque::new() }
    }

    /// Hands out `entries` consecutive addresses for a run of `bytes`; the first of them. All or nothing.
    ///
    /// Programmer error: a run of 0 entries or of more than [`Sequencer::run_entries_max`].
    ///
    /// Errors: `Full` until the oldest run completes, `Stopped` until the roll is decided, `Sealed` for ever.
    pub fn reserve(&mut self, entries: u32, bytes: u64) -> Result<Address, ReserveError> {
        assert!(entries >= 1, "a run holds one entry at least");
        assert!(entries <= self.window.entries, "a run is cut to the window by its caller");
        match self.mode {
            Mode::Issuing => {}
            Mode::Stopped(_) | Mode::RollSent(_) => return Err(ReserveError::Stopped),
            Mode::Sealed => return Err(ReserveError::Sealed),
        }
        let fits = self.in_flight() + u64::from(entries) <= u64::from(self.window.entries)
            && (self.drained() || self.bytes.saturating_add(bytes) <= self.window.bytes);
        if !fits {
            return Err(ReserveError::Full { oldest: Address(self.done) });
        }
        let first = self.next;
        self.slots.push_back(Slot { count: entries, complete: false, bytes });
        self.slots.extend((1..entries).map(|_| VACANT));
        self.next += u64::from(entries);
        self.bytes = self.bytes.saturating_add(bytes);
        self.check();
        Ok(Address(first))
    }

    /// A reserved run became durable. Newly complete addresses, to be acknowledged in order; `None` when an older run is
    /// still missing. Runs may complete in any order, also after the seal.
    ///
    /// Programmer error: a run that was not reserved like this, or one completed twice.
    pub fn complete(&mut self, first: Address, entries: u32) -> Option<Range<Address>> {
        let unawaited = broken(Mutant::CheckpointNotAwaited) && first.0 > 0 && self.done == 0;
        if let Some(oldest) = self.slots.front_mut().filter(|_| unawaited) {
            oldest.complete = true;
        }
        if broken(Mutant::CheckpointNotAwaited) && first.0 == 0 && self.done > 0 {
            return None;
        }
        assert!(first.0 >= self.done, "run completed twice");
        assert!(first.0 < self.next, "run completed that was never reserved");
        let place = (first.0 - self.done) as usize;
        let slot = self.slots.get_mut(place).filter(|s| s.count == entries);
        let slot = slot.unwrap_or_else(|| panic!("run at {first} completed with another length"));
        assert!(!slot.complete, "run completed twice");
        slot.complete = true;
        if place > 0 && !unawaited {
            return None;
        }
        let before = self.done;
        while let Some(&Slot { count, complete: true, bytes }) = self.slots.front() {
            self.slots.drain(..count as usize);
            self.done += u64::from(count);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        self.check();
        Some(Address(before)..Address(self.done))
    }

    /// Length of the completed prefix: every address below is durable and may be acknowledged and read.
    pub fn tail(&self) -> Address {
        Address(self.done)
    }

    /// The next address to be handed out.
    pub fn next(&self) -> Address {
        Address(self.next)
    }

    /// Entries that are handed out and not in the completed prefix.
    pub fn in_flight(&self) -> u64 {
        self.next - self.done
    }

    /// Whether nothing is in flight.
    pub fn drained(&self) -> bool {
        self.next == self.done
    }

    /// Largest run that is ever handed out, in entries; larger requests are cut by the caller.
    pub fn run_entries_max(&self) -> u32 {
        self.window.entries
    }

    /// Entries and bytes that fit now, were issuing not stopped. With nothing in flight one run may exceed the bytes.
    pub fn room(&self) -> (u32, u64) {
        let entries = u64::from(self.window.entries) - self.in_flight();
        (entries as u32, self.window.bytes.saturating_sub(self.bytes))
    }

    /// Whether the loglet takes no more entries, for ever.
    pub fn sealed(&self) -> bool {
        self.mode == Mode::Sealed
    }

    /// Whether addresses are handed out (window permitting).
    pub fn issuing(&self) -> bool {
        self.mode == Mode::Issuing
    }

    /// Stops handing out, to drain for a roll or close; `version` is the chain version read before (R1). Without effect
    /// once stopped or sealed.
    pub fn stop(&mut self, version: u64) {
        if self.mode == Mode::Issuing {
            self.mode = Mode::Stopped(version);
        }
    }

    /// Calls a stop off, for one that has sent nothing to the chain. Whether addresses are handed out again; false once a
    /// roll is out (R4): only a chain version that was read helps then.
    pub fn resume(&mut self) -> bool {
        match self.mode {
            Mode::Stopped(_) => self.mode = Mode::Issuing,
            Mode::RollSent(_) if broken(Mutant::ResumeUnanswered) => self.mode = Mode::Issuing,
            Mode::Issuing | Mode::RollSent(_) | Mode::Sealed => {}
        }
        self.issuing()
    }

    /// The roll to be sent to the chain. From here on only [`Sequencer::chain_read`] makes it issue again.
    ///
    /// Errors: `NotDrained` until the rest completes, `Sent` until a chain version is read; else for good.
    pub fn roll(&mut self) -> Result<Roll, RollError> {
        let version = match self.mode {
            Mode::Issuing => return Err(RollError::NotStopped),
            Mode::RollSent(version) => return Err(RollError::Sent { version }),
            Mode::Sealed => return Err(RollError::Sealed),
            Mode::Stopped(version) => version,
        };
        if !self.drained() && !broken(Mutant::RollBeforeDrain) {
            return Err(RollError::NotDrained { in_flight: self.in_flight() });
        }
        self.mode = Mode::RollSent(version);
        Ok(Roll { version, tail: self.tail() })
    }

    /// Tells a chain version that was read, and whether this loglet is still the open segment in it. A version above the
    /// one that the roll named proves that the roll can never be applied any more.
    pub fn chain_read(&mut self, version: u64, own_segment_open: bool) -> AfterRead {
        if !own_segment_open {
            self.mode = Mode::Sealed;
        }
        if let Mode::RollSent(named) = self.mode
            && version > named
        {
            self.mode = Mode::Issuing;
        }
        match self.mode {
            Mode::Issuing => AfterRead::Issuing,
            Mode::Stopped(_) | Mode::RollSent(_) => AfterRead::Stopped,
            Mode::Sealed => AfterRead::Sealed,
        }
    }

    /// Ends the loglet: nothing is handed out any more. Runs in flight may still complete.
    pub fn seal(&mut self) {
        self.mode = Mode::Sealed;
    }

    fn check(&self) {
        assert!(self.done <= self.next, "INV-SEQ-1: completed more than was handed out");
        assert!(
            self.in_flight() <= u64::from(self.window.entries),
            "INV-SEQ-1: more in flight than the window"
        );
        assert!(self.slots.len() as u64 == self.in_flight(), "a place per address in flight");
        debug_assert!(
            !self.slots.front().is_some_and(|s| s.complete),
            "INV-SEQ-3: the oldest run is complete"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn sequencer(entries: u32) -> Sequencer {
        Sequencer::new(Window { entries, bytes: 1000 })
    }

    fn range(from: u64, to: u64) -> Option<Range<Address>> {
        Some(Address(from)..Address(to))
    }

    #[test]
    fn completions_out_of_order_are_released_in_order() {
        let mut s = sequencer(8);
        assert_eq!(s.reserve(1, 10), Ok(Address(0)));
        assert_eq!(s.reserve(3, 10), Ok(Address(1)));
        assert_eq!(s.reserve(2, 10), Ok(Address(4)));
        assert_eq!(s.complete(Address(4), 2), None);
        assert_eq!(s.tail(), Address(0));
        assert_eq!(s.complete(Address(0), 1), range(0, 1));
        assert_eq!(s.complete(Address(1), 3), range(1, 6));
        assert!(s.drained());
        assert_eq!(s.room(), (8, 1000));
    }

    #[test]
    fn the_window_bounds_entries_and_bytes_and_lets_one_large_run_go_alone() {
        let mut s = sequencer(4);
        assert_eq!(s.reserve(1, 5000), Ok(Address(0)));
        assert_eq!(s.reserve(1, 1), Err(ReserveError::Full { oldest: Address(0) }));
        assert_eq!(s.complete(Address(0), 1), range(0, 1));
        assert_eq!(s.reserve(3, 600), Ok(Address(1)));
        assert_eq!(s.reserve(1, 401), Err(ReserveError::Full { oldest: Address(1) }));
        assert_eq!(s.reserve(1, 400), Ok(Address(4)));
        assert_eq!(s.reserve(1, 0), Err(ReserveError::Full { oldest: Address(1) }));
    }

    #[test]
    fn a_roll_waits_for_the_drain_and_stays_stopped_until_a_higher_version_is_read() {
        let mut s = sequencer(4);
        s.reserve(2, 1).unwrap();
        assert_eq!(s.roll(), Err(RollError::NotStopped));
        s.stop(7);
        assert_eq!(s.reserve(1, 1), Err(ReserveError::Stopped));
        assert_eq!(s.roll(), Err(RollError::NotDrained { in_flight: 2 }));
        s.complete(Address(0), 2);
        assert_eq!(s.roll(), Ok(Roll { version: 7, tail: Address(2) }));
        assert_eq!(s.roll(), Err(RollError::Sent { version: 7 }));
        assert!(!s.resume(), "an answer is outstanding");
        assert_eq!(s.chain_read(7, true), AfterRead::Stopped);
        assert_eq!(s.chain_read(8, true), AfterRead::Issuing);
        assert_eq!(s.reserve(1, 1), Ok(Address(2)));
    }

    #[test]
    fn a_stop_that_sent_nothing_is_called_off() {
        let mut s = sequencer(4);
        s.stop(1);
        assert!(s.resume());
        assert_eq!(s.reserve(1, 1), Ok(Address(0)));
    }

    #[test]
    fn a_recorded_end_seals_and_late_completions_are_still_taken() {
        let mut s = sequencer(4);
        s.reserve(1, 1).unwrap();
        assert_eq!(s.chain_read(3, false), AfterRead::Sealed);
        assert_eq!(s.reserve(1, 1), Err(ReserveError::Sealed));
        assert_eq!(s.complete(Address(0), 1), range(0, 1));
        assert!(!s.resume());
        assert_eq!(s.roll(), Err(RollError::Sealed));
    }

    #[test]
    #[should_panic(expected = "completed twice")]
    fn a_run_completed_twice_is_a_programmer_error() {
        let mut s = sequencer(4);
        s.reserve(1, 1).unwrap();
        s.reserve(1, 1).unwrap();
        s.complete(Address(1), 1);
        s.complete(Address(1), 1);
    }

    proptest! {
        /// Against a model that keeps sets: the prefix, the window and the bytes agree after every step.
        #[test]
        fn any_order_of_reserving_and_completing_agrees_with_the_model(
            steps in prop::collection::vec((any::<bool>(), 1u32..6, 0u64..400, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut s = sequencer(16);
            let mut open: Vec<(u64, u32, u64)> = Vec::new();
            let mut complete: BTreeSet<u64> = BTreeSet::new();
            let mut released = 0u64;
            for (reserve, entries, bytes, which) in steps {
                if reserve {
                    let unreleased: u64 = s.in_flight();
                    match s.reserve(entries, bytes) {
                        Ok(first) => {
                            prop_assert!(unreleased + u64::from(entries) <= 16);
                            open.push((first.0, entries, bytes));
                        }
                        Err(e) => prop_assert_eq!(e, ReserveError::Full { oldest: Address(released) }),
                    }
                } else if !open.is_empty() {
                    let (first, entries, _) = open.remove(which.index(open.len()));
                    complete.extend(first..first + u64::from(entries));
                    let got = s.complete(Address(first), entries);
                    let mut end = released;
                    while complete.contains(&end) {
                        end += 1;
                    }
                    let expected = (end > released).then_some(Address(released)..Address(end));
                    prop_assert_eq!(got, expected);
                    released = end;
                }
                prop_assert_eq!(s.tail(), Address(released));
                prop_assert_eq!(s.drained(), open.is_empty());
            }
        }
    }
}
