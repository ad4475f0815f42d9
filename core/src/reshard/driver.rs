//! Carries one split or merge from its recorded intent to its end. Pure: it says what to do next and is told what came
//! of it; whoever finds a running operation can begin here (design 7, reshard-semantics 2.5).
//!
//! ```text
//! Probe ─► Stop ─► Drain ─► Seal (what did not drain) ─► Record ─► Open ─► Over
//!   │                          │                           │ └─ Read ─► Open | Resume | Over
//!   └───────── Abort ◄─────────┘ ──────────────────────────┘     Abort ─► Resume ─► Over
//! ```
//! Nothing is fenced before all parents were probed (R3). A drained parent needs no fence: its sequencer stays stopped
//! until the record is answered or the chain was read again (R4).

use crate::control::command::{Ended, ParentEnd};
use crate::control::state::OperationState;
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, RangeId};
use smallvec::SmallVec;

/// A range that the operation closes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parent {
    /// The range.
    pub range: RangeId,
    /// Its version, read after the intent (R1).
    pub version: u64,
    /// Its open segment; `None` when it never had one.
    pub open: Option<LogletId>,
    /// Whether its open segment's sequencer runs here: only then it can drain.
    pub led_here: bool,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the drives of all open segments whether a seal quorum answers; changes nothing. Then [`Driver::probed`].
    Probe,
    /// Hand out no more addresses in the parents that are led here. Then [`Driver::stopped`].
    Stop,
    /// Wait a bounded time until nothing is in flight in parent `n`. Then [`Driver::drained`].
    Drain(usize),
    /// Fence parent `n`'s open segment and find its tail from the answers. Then [`Driver::sealed`].
    Seal(usize),
    /// Record these ends and the children in one command. Then [`Driver::recorded`] or [`Driver::unanswered`].
    Record(Vec<ParentEnd>),
    /// Read how far the operation is. Then [`Driver::read`].
    Read,
    /// Open the children that are led here with their parents' state. Then [`Driver::opened`].
    Open {
        /// The children, in order of partitions.
        created: Vec<RangeId>,
        /// The parents' ends, where this driver knows them; `None`: fold what is recorded.
        ends: Option<Vec<ParentEnd>>,
    },
    /// Record that the operation is given up; parents that were fenced get a next segment. Then [`Driver::aborted`] or
    /// [`Driver::unanswered`].
    Abort {
        /// Why.
        why: String,
        /// The parents that were fenced.
        sealed: Vec<ParentEnd>,
    },
    /// Parents led here that were not fenced go on in their segments, the chain read again first; fenced ones in their
    /// next segments. Then [`Driver::opened`].
    Resume {
        /// The parents that were fenced.
        sealed: Vec<ParentEnd>,
    },
    /// Nothing is left to do here.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum End {
    /// Not known.
    Open,
    /// Nothing is in flight below this tail, and nothing is handed out.
    Drained(Address),
    /// Fenced.
    Sealed(Ended),
    /// There never was a segment.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Probe,
    Stop,
    Drain(usize),
    Seal(usize),
    Record,
    Read,
    Open(Vec<RangeId>),
    Abort(String),
    Resume,
    Over,
}

/// See the module head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Driver {
    parents: SmallVec<[Parent; 2]>,
    ends: SmallVec<[End; 2]>,
    /// What the parents' tails were before anything was stopped; kept for a broken rule only.
    measured: SmallVec<[Address; 2]>,
    phase: Phase,
}

impl Driver {
    /// A driver for an operation whose intent is recorded.
    pub fn new(parents: impl IntoIterator<Item = Parent>) -> Driver {
        let parents: SmallVec<[Parent; 2]> = parents.into_iter().collect();
        let ends = parents.iter().map(|p| if p.open.is_some() { End::Open } else { End::Never }).collect();
        Driver { parents, ends, measured: SmallVec::new(), phase: Phase::Probe }
    }

    /// The parents.
    pub fn parents(&self) -> &[Parent] {
        &self.parents
    }

    /// Whether every end came from a complete drain: then memory equals the fold and may be used.
    pub fn all_drained(&self) -> bool {
        self.ends.iter().all(|end| matches!(end, End::Drained(_)))
    }

    /// What is to be done next; the same until it is told what came of it.
    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Probe => Step::Probe,
            Phase::Stop => Step::Stop,
            Phase::Drain(n) => Step::Drain(*n),
            Phase::Seal(n) => Step::Seal(*n),
            Phase::Record => Step::Record(self.recorded_ends()),
            Phase::Read => Step::Read,
            Phase::Open(created) => {
                let known = self.ends.iter().all(|end| *end != End::Open);
                Step::Open { created: created.clone(), ends: known.then(|| self.recorded_ends()) }
            }
            Phase::Abort(why) => Step::Abort { why: why.clone(), sealed: self.fenced_ends() },
            Phase::Resume => Step::Resume { sealed: self.fenced_ends() },
            Phase::Over => Step::Over,
        }
    }

    /// All drives answered, with these tails; or one did not, and nothing was touched.
    pub fn probed(&mut self, tails: Result<SmallVec<[Address; 2]>, String>) {
        assert_eq!(self.phase, Phase::Probe);
        match tails {
            Ok(tails) => {
                self.measured = tails;
                self.phase = Phase::Stop;
            }
            Err(why) => self.phase = Phase::Abort(why),
        }
    }

    /// No more addresses are handed out here.
    pub fn stopped(&mut self) {
        assert_eq!(self.phase, Phase::Stop);
        if broken(Mutant::ReshardEndMeasured) && self.measured.len() == self.parents.len() {
            self.ends = self.measured.iter().map(|tail| End::Drained(*tail)).collect();
        }
        self.advance();
    }

    /// Parent `n` has drained at this tail, or not in time.
    pub fn drained(&mut self, n: usize, tail: Option<Address>) {
        assert_eq!(self.phase, Phase::Drain(n));
        match tail {
            Some(tail) => self.ends[n] = End::Drained(tail),
            None => self.parents[n].led_here = false, // its sequencer counts no more: the fence decides
        }
        self.advance();
    }

    /// Parent `n` was fenced and ends here; or no seal quorum answers, within the time that was given to it.
    pub fn sealed(&mut self, n: usize, ended: Result<Ended, String>) {
        assert_eq!(self.phase, Phase::Seal(n));
        match ended {
            Ok(ended) => {
                self.ends[n] = End::Sealed(ended);
                self.advance();
            }
            Err(why) => self.phase = Phase::Abort(why),
        }
    }

    /// The command was applied: these children are there.
    pub fn recorded(&mut self, created: Vec<RangeId>) {
        assert_eq!(self.phase, Phase::Record);
        self.phase = Phase::Open(created);
    }

    /// The operation was given up.
    pub fn aborted(&mut self) {
        assert!(matches!(self.phase, Phase::Abort(_)));
        self.phase = Phase::Resume;
    }

    /// A command was refused or its answer is lost: it may have been applied, or be applied later.
    pub fn unanswered(&mut self) {
        assert!(matches!(self.phase, Phase::Record | Phase::Abort(_)));
        self.phase = Phase::Read;
    }

    /// The operation as it was read. Running still: somebody's command is under way, or ours never came; it is for the
    /// next pass to begin again with what it reads then.
    pub fn read(&mut self, state: &OperationState) {
        assert_eq!(self.phase, Phase::Read);
        self.phase = match state {
            OperationState::Done { created } => Phase::Open(created.clone()),
            OperationState::Aborted { .. } => Phase::Resume,
            OperationState::Running => Phase::Over,
        };
    }

    /// What [`Step::Open`] or [`Step::Resume`] asked for is done.
    pub fn opened(&mut self) {
        assert!(matches!(self.phase, Phase::Open(_) | Phase::Resume));
        self.phase = Phase::Over;
    }

    /// The next parent to drain, else to seal, else all ends are known.
    fn advance(&mut self) {
        let open = |n: &usize| self.ends[*n] == End::Open;
        let all = 0..self.parents.len();
        let drain = all.clone().filter(open).find(|n| self.parents[*n].led_here);
        self.phase = match (drain, all.clone().find(open)) {
            (Some(n), _) => Phase::Drain(n),
            (None, Some(n)) => Phase::Seal(n),
            (None, None) => Phase::Record,
        };
        if self.phase == Phase::Record && broken(Mutant::OpenBeforeRecord) {
            self.phase = Phase::Open(Vec::new());
        }
    }

    fn recorded_ends(&self) -> Vec<ParentEnd> {
        let ended = |parent: &Parent, end: &End| match (end, parent.open) {
            (End::Drained(tail), Some(loglet)) => Some(Ended::at(loglet, *tail)),
            (End::Sealed(ended), _) => Some(ended.clone()),
            _ => None,
        };
        let both = self.parents.iter().zip(&self.ends);
        both.map(|(p, end)| ParentEnd { range: p.range, version: p.version, ended: ended(p, end) }).collect()
    }

    fn fenced_ends(&self) -> Vec<ParentEnd> {
        if broken(Mutant::AbortForgetsFence) {
            return Vec::new();
        }
        let fenced = self.ends.iter().map(|end| matches!(end, End::Sealed(_)));
        self.recorded_ends()
            .into_iter()
            .zip(fenced)
            .filter(|(_, fenced)| *fenced)
            .map(|(end, _)| end)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mutant::switched::with_broken;
    use smallvec::smallvec;

    fn parent(n: u32, led_here: bool) -> Parent {
        let open = Some(LogletId(u64::from(n) + 10));
        Parent { range: RangeId(n), version: u64::from(n) + 3, open, led_here }
    }

    fn end(n: u32, tail: u64) -> ParentEnd {
        let ended = Some(Ended::at(LogletId(u64::from(n) + 10), Address(tail)));
        ParentEnd { range: RangeId(n), version: u64::from(n) + 3, ended }
    }

    fn stopped(parents: Vec<Parent>) -> Driver {
        let tails = parents.iter().map(|_| Address(1)).collect();
        let mut driver = Driver::new(parents);
        assert_eq!(driver.step(), Step::Probe);
        driver.probed(Ok(tails));
        assert_eq!(driver.step(), Step::Stop);
        driver.stopped();
        driver
    }

    #[test]
    fn a_parent_that_drains_is_not_fenced_and_memory_may_be_used() {
        let mut driver = stopped(vec![parent(0, true)]);
        assert_eq!(driver.step(), Step::Drain(0));
        driver.drained(0, Some(Address(7)));
        assert_eq!(driver.step(), Step::Record(vec![end(0, 7)]));
        assert!(driver.all_drained());
        driver.recorded(vec![RangeId(4), RangeId(5)]);
        let created = vec![RangeId(4), RangeId(5)];
        assert_eq!(driver.step(), Step::Open { created, ends: Some(vec![end(0, 7)]) });
        driver.opened();
        assert_eq!(driver.step(), Step::Over);
    }

    #[test]
    fn what_does_not_drain_or_is_led_elsewhere_is_fenced() {
        let mut driver = stopped(vec![parent(0, true), parent(1, false)]);
        driver.drained(0, None);
        assert_eq!(driver.step(), Step::Seal(0));
        driver.sealed(0, Ok(Ended::at(LogletId(10), Address(5))));
        assert_eq!(driver.step(), Step::Seal(1));
        driver.sealed(1, Ok(Ended::at(LogletId(11), Address(6))));
        assert_eq!(driver.step(), Step::Record(vec![end(0, 5), end(1, 6)]));
        assert!(!driver.all_drained());
    }

    #[test]
    fn below_a_seal_quorum_nothing_is_stopped() {
        let mut driver = Driver::new([parent(0, true), parent(1, true)]);
        driver.probed(Err("one of two disks".into()));
        assert_eq!(driver.step(), Step::Abort { why: "one of two disks".into(), sealed: vec![] });
        driver.aborted();
        assert_eq!(driver.step(), Step::Resume { sealed: vec![] });
    }

    #[test]
    fn an_abort_after_a_fence_names_what_was_fenced() {
        let aborted = || {
            let mut driver = stopped(vec![parent(0, false), parent(1, false)]);
            driver.sealed(0, Ok(Ended::at(LogletId(10), Address(5))));
            driver.sealed(1, Err("gone".into()));
            driver.step()
        };
        assert_eq!(aborted(), Step::Abort { why: "gone".into(), sealed: vec![end(0, 5)] });
        let forgotten = with_broken(Some(Mutant::AbortForgetsFence), aborted);
        assert_eq!(forgotten, Step::Abort { why: "gone".into(), sealed: vec![] });
    }

    #[test]
    fn a_lost_answer_is_looked_up() {
        let unanswered = || {
            let mut driver = stopped(vec![parent(0, true)]);
            driver.drained(0, Some(Address(7)));
            driver.unanswered();
            assert_eq!(driver.step(), Step::Read);
            driver
        };
        let mut done = unanswered();
        done.read(&OperationState::Done { created: vec![RangeId(2)] });
        assert!(matches!(done.step(), Step::Open { .. }));
        let mut aborted = unanswered();
        aborted.read(&OperationState::Aborted { why: String::new() });
        assert!(matches!(aborted.step(), Step::Resume { .. }));
        let mut running = unanswered();
        running.read(&OperationState::Running);
        assert_eq!(running.step(), Step::Over);
    }

    #[test]
    fn ends_measured_early_and_children_opened_early_are_mutants() {
        let measured = || {
            let mut driver = Driver::new([parent(0, true)]);
            driver.probed(Ok(smallvec![Address(1)]));
            driver.stopped();
            driver.step()
        };
        assert_eq!(measured(), Step::Drain(0));
        let early = with_broken(Some(Mutant::ReshardEndMeasured), measured);
        assert_eq!(early, Step::Record(vec![end(0, 1)]));
        let opened = || {
            let mut driver = stopped(vec![parent(0, true)]);
            driver.drained(0, Some(Address(7)));
            driver.step()
        };
        assert!(matches!(opened(), Step::Record(_)));
        let early = with_broken(Some(Mutant::OpenBeforeRecord), opened);
        assert!(matches!(early, Step::Open { .. }));
    }
}
