//! The seal pass of one loglet, as a machine without I/O: answers go in, commands come out (log-contracts 1.5).
//!
//! ```text
//!  Probe ──► Fence ──► Repair ──► Record ──► Finished
//!    │ below the seal quorum: nothing is touched      ▲
//!    └────────────────────────────────────────────────┘
//! ```
//! Any node may run a pass, several at once; one record wins and the others adopt its tail. Rules kept here: the tail comes
//! from the fence's own answer, never from the probe before it; it is the lowest hole, else the end; repair never holds up the
//! record; the record names the chain version read before the first fence (R1); nobody sees a tail before it is recorded.
//!
//! INV-SEAL-1 what was acknowledged lies below the recorded tail · INV-SEAL-2 the tail is the fence's · INV-SEAL-3 below
//! the seal quorum nothing is touched.
//!
//! Must not know drives or the chain's contents. At the root of a tree `fence` merges the copies' answers itself.

use crate::drive::{FenceError, ReadError, TailDesc};
use crate::loglet::repair::Repair;
use crate::testing::{Mutant, broken};
use crate::types::Address;
use std::collections::BTreeSet;

/// How often a fence is asked again when its answer lies below what is known to be committed.
const STALE_ANSWERS_MAX: u32 = 3;

/// What is to be done next; each command is answered by the method it names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SealCommand {
    /// Ask the drive's `weak_tail`: is the seal quorum there? → [`Sealer::probed`].
    Probe,
    /// `fence` the drive, then take its `thin` → [`Sealer::fenced`].
    Fence,
    /// Drive [`Sealer::repair`] until finished or out of time → [`Sealer::repaired`].
    Repair,
    /// Compare-and-set → [`Sealer::recorded`]; without an answer [`Sealer::chain_read`].
    Record(SealRecord),
    /// The pass is over.
    Finished(SealEnd),
}

/// What the chain shall record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SealRecord {
    /// Only if the chain still has this version.
    pub version: u64,
    /// The loglet's length.
    pub tail: Address,
    /// Addresses below the tail with fewer copies than the write quorum.
    pub degraded: Option<(Address, Address)>,
}

/// How a pass ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SealEnd {
    /// The chain holds this tail, by this pass or another.
    Recorded {
        /// The recorded tail.
        tail: Address,
    },
    /// The seal quorum is not there; until more copies live. Fences that were set stay.
    Unreachable(String),
    /// The drive lost what was acknowledged: an operator must decide.
    BelowCommitted {
        /// What the fence answered.
        tail: Address,
        /// What is known to be acknowledged.
        committed: Address,
    },
}

/// What became of a record.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Recording {
    /// The chain took it.
    Won,
    /// The loglet has a tail already, this one.
    Ended(Address),
    /// The chain moved to this version with the loglet still open.
    Moved(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Probe,
    Fence,
    Repair { tail: Address },
    Record { tail: Address },
    Finished(SealEnd),
}

/// See the module head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sealer {
    version: u64,
    committed: Address,
    step: Step,
    repair: Repair,
    stale: u32,
    /// What the probe measured, kept only to show that using it loses entries (B1).
    #[cfg(test)]
    measured: TailDesc,
}

impl Sealer {
    /// A pass over a loglet that is open in the chain's `version`, of which `committed` is known to be acknowledged. The
    /// version must be read before the pass begins. Begins with [`SealCommand::Probe`].
    pub fn new(version: u64, committed: Address) -> Sealer {
        Sealer {
            version,
            committed,
            step: Step::Probe,
            repair: Repair::new([]),
            stale: 0,
            #[cfg(test)]
            measured: TailDesc::default(),
        }
    }

    /// The command that is due; the same until it is answered.
    pub fn command(&self) -> SealCommand {
        match &self.step {
            Step::Probe => SealCommand::Probe,
            Step::Fence => SealCommand::Fence,
            Step::Repair { .. } => SealCommand::Repair,
            Step::Record { tail } => SealCommand::Record(SealRecord {
                version: self.version,
                tail: *tail,
                degraded: self.repair.degraded(),
            }),
            Step::Finished(end) => SealCommand::Finished(end.clone()),
        }
    }

    /// Answers [`SealCommand::Probe`].
    pub fn probed(&mut self, answer: Result<TailDesc, ReadError>) {
        self.expect(&Step::Probe);
        self.step = match answer {
            #[cfg(test)]
            Ok(tail) if broken(Mutant::MeasuredBeforeFence) => {
                self.measured = tail;
                Step::Fence
            }
            Ok(_) => Step::Fence,
            Err(error) => Step::Finished(SealEnd::Unreachable(error.to_string())),
        };
    }

    /// Answers [`SealCommand::Fence`] with the fence's own answer and the drive's thin addresses after it.
    pub fn fenced(&mut self, answer: Result<TailDesc, FenceError>, thin: &BTreeSet<u64>) {
        self.expect(&Step::Fence);
        let answer = match answer {
            Err(error) => {
                self.step = Step::Finished(SealEnd::Unreachable(error.to_string()));
                return;
            }
            #[cfg(test)]
            Ok(_) if broken(Mutant::MeasuredBeforeFence) => self.measured.clone(),
            Ok(answer) => answer,
        };
        let tail = if broken(Mutant::HighestEnd) { Address(answer.end) } else { answer.contiguous() };
        if tail < self.committed {
            self.stale += 1;
            if self.stale >= STALE_ANSWERS_MAX {
                self.step = Step::Finished(SealEnd::BelowCommitted { tail, committed: self.committed });
            }
            return;
        }
        let wanted = thin.range(self.committed.0.min(tail.0)..tail.0);
        self.repair = Repair::new(wanted.copied().map(Address));
        self.step = match self.repair.finished() {
            true => Step::Record { tail },
            false => Step::Repair { tail },
        };
    }

    /// The repair of [`SealCommand::Repair`]: its copies are the driver's to make, up to its own deadline.
    pub fn repair(&mut self) -> &mut Repair {
        &mut self.repair
    }

    /// Answers [`SealCommand::Repair`]: finished or out of time; what is left stays degraded.
    pub fn repaired(&mut self) {
        let Step::Repair { tail } = self.step else { panic!("no repair is due") };
        self.repair.give_up();
        self.step = Step::Record { tail };
    }

    /// Answers [`SealCommand::Record`]. A chain that moved with the loglet open makes the pass start again with that
    /// version: what it named was read before the first fence, and that is over (R1).
    pub fn recorded(&mut self, outcome: Recording) {
        let Step::Record { tail } = self.step else { panic!("no record is due") };
        match outcome {
            Recording::Won => self.step = Step::Finished(SealEnd::Recorded { tail }),
            Recording::Ended(tail) => self.step = Step::Finished(SealEnd::Recorded { tail }),
            Recording::Moved(version) => *self = Sealer::new(version, self.committed),
        }
    }

    /// The chain was read instead of an answer to [`SealCommand::Record`]: its version, and the loglet's tail if it has one.
    /// While neither moved, the record is sent again; it can be applied once only.
    pub fn chain_read(&mut self, version: u64, tail: Option<Address>) {
        match tail {
            Some(tail) => self.recorded(Recording::Ended(tail)),
            None if version > self.version => self.recorded(Recording::Moved(version)),
            None => {}
        }
    }

    /// The tail that readers may be shown: the recorded one, never the one that this pass would like.
    pub fn readable(&self) -> Option<Address> {
        match &self.step {
            Step::Finished(SealEnd::Recorded { tail }) => Some(*tail),
            Step::Repair { tail } | Step::Record { tail } if broken(Mutant::TailShownEarly) => Some(*tail),
            _ => None,
        }
    }

    fn expect(&self, step: &Step) {
        assert!(self.step == *step, "answer to {step:?} while {:?} is due", self.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(end: u64, holes: &[u64]) -> TailDesc {
        TailDesc { end, holes: holes.iter().copied().collect(), trim: 0 }
    }

    fn fenced(committed: u64, answer: TailDesc, thin: &[u64]) -> Sealer {
        let mut sealer = Sealer::new(5, Address(committed));
        assert_eq!(sealer.command(), SealCommand::Probe);
        sealer.probed(Ok(tail(99, &[])));
        assert_eq!(sealer.command(), SealCommand::Fence);
        sealer.fenced(Ok(answer), &thin.iter().copied().collect());
        sealer
    }

    fn record(tail: u64, degraded: Option<(u64, u64)>) -> SealCommand {
        let degraded = degraded.map(|(from, to)| (Address(from), Address(to)));
        SealCommand::Record(SealRecord { version: 5, tail: Address(tail), degraded })
    }

    #[test]
    fn the_tail_is_the_lowest_hole_of_the_fence_and_is_shown_only_once_recorded() {
        let mut sealer = fenced(2, tail(8, &[6]), &[1, 6, 7]);
        assert_eq!(
            sealer.command(),
            record(6, None),
            "thin addresses below the committed tail have their copies"
        );
        assert_eq!(sealer.readable(), None);
        sealer.recorded(Recording::Won);
        assert_eq!(sealer.readable(), Some(Address(6)));
    }

    #[test]
    fn what_cannot_be_repaired_is_degraded_and_does_not_hold_up_the_record() {
        let mut sealer = fenced(0, tail(4, &[]), &[1, 2, 3]);
        assert_eq!(sealer.command(), SealCommand::Repair);
        assert_eq!(sealer.repair().next_copy(), Some(Address(1)));
        sealer.repair().copied(Address(1), Ok::<(), ()>(()));
        sealer.repaired();
        assert_eq!(sealer.command(), record(4, Some((2, 4))));
    }

    #[test]
    fn below_the_seal_quorum_nothing_is_fenced() {
        let mut sealer = Sealer::new(5, Address(0));
        sealer.probed(Err(ReadError::Unavailable("1 of 3".into())));
        let unreachable = SealEnd::Unreachable("unreadable: 1 of 3".into());
        assert_eq!(sealer.command(), SealCommand::Finished(unreachable));
    }

    #[test]
    fn the_loser_adopts_the_recorded_tail() {
        let mut sealer = fenced(0, tail(4, &[]), &[]);
        sealer.recorded(Recording::Ended(Address(3)));
        assert_eq!(sealer.command(), SealCommand::Finished(SealEnd::Recorded { tail: Address(3) }));
    }

    #[test]
    fn a_record_without_an_answer_is_sent_again_until_the_chain_moves() {
        let mut sealer = fenced(0, tail(4, &[]), &[]);
        sealer.chain_read(5, None);
        assert_eq!(sealer.command(), record(4, None));
        sealer.chain_read(6, None);
        assert_eq!(sealer.command(), SealCommand::Probe, "begins again with the version that was read");
    }

    #[test]
    fn a_fence_that_stays_below_the_committed_tail_is_reported_as_loss() {
        let mut sealer = fenced(5, tail(4, &[]), &[]);
        for _ in 1..STALE_ANSWERS_MAX {
            assert_eq!(sealer.command(), SealCommand::Fence);
            sealer.fenced(Ok(tail(4, &[])), &BTreeSet::new());
        }
        let lost = SealEnd::BelowCommitted { tail: Address(4), committed: Address(5) };
        assert_eq!(sealer.command(), SealCommand::Finished(lost));
    }
}
