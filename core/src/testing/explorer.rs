//! All interleavings of one loglet and its chain, breadth first: three copies, a write quorum of two, a window of two, sealers,
//! and the old sequencer going on as a zombie. Runs the machines of the product: sequencer, sealer, repair, quorum merge and
//! tally, leaf registers, disk identity, chain.
//!
//! Checked in every state: what was acknowledged lies below a recorded tail (I1); every address below a recorded tail is on a
//! copy that answers (I4); what a reader was shown stays (I2); at most the window is in flight (I5).

use crate::drive::merge::{quorum_merge, quorum_thin, seal_quorum};
use crate::drive::quorum::Tally;
use crate::drive::spec::DriveSpec;
use crate::drive::{TailDesc, WriteError, same_disk};
use crate::loglet::sealer::{Recording, SealCommand, SealEnd, Sealer};
use crate::loglet::sequencer::{Roll, Sequencer, Window};
use crate::store::registers::{Registers, Slot};
use crate::types::{Address, DiskId, Generation, LeafId, LogletId, NodeId, Primary};
use crate::virtual_log::chain::{Chain, ChainError, ChainOp, End, SealMode, Segment};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use uuid::Uuid;

const COPIES: usize = 3;
const WRITE: usize = 2;
const WINDOW: u32 = 2;
const LOGLET: LogletId = LogletId(1);

/// What may happen in a run.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Scope {
    /// Entries that are issued at most.
    pub(crate) entries: u64,
    /// Sealers.
    pub(crate) sealers: usize,
    /// Copies that may lose their disk and come back empty.
    pub(crate) wipes: usize,
    /// Whether the sequencer rolls, and commands raise the chain's version beside it.
    pub(crate) roll: bool,
    /// Whether a repair may be given up.
    pub(crate) give_up: bool,
    /// Run ends, without a verdict, at so many states.
    pub(crate) states_max: usize,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All states were seen.
    Holds { states: usize },
    /// A rule was broken; the steps that lead there.
    Broken { rule: String, trace: Vec<String>, states: usize },
    /// Too many states.
    Capped { states: usize },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Copy {
    registers: Registers,
    /// Which disk stands there: a wiped one is another.
    disk: u128,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Pass {
    machine: Sealer,
    answers: [Option<TailDesc>; COPIES],
}

#[derive(Clone)]
struct World {
    copies: [Copy; COPIES],
    wiped: usize,
    sequencer: Sequencer,
    /// Writes that did not arrive at a copy yet: (copy, address).
    underway: BTreeSet<(usize, u64)>,
    tallies: Vec<Option<Tally>>,
    passes: Vec<Option<Pass>>,
    chain: Arc<Chain>,
    /// A roll's compare-and-set on its way, and one that was carried out without its answer being told.
    roll: Option<Roll>,
    touched: bool,
    /// Highest tail that a reader of a sealed segment was shown.
    shown: u64,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Step {
    Issue,
    Arrive(usize, u64),
    Wipe(usize),
    Begin(usize),
    Probe(usize),
    Fence(usize, usize),
    Merge(usize),
    Copy(usize),
    GiveUp(usize),
    Record(usize),
    ReadChain(usize),
    Show(usize),
    Stop,
    Roll,
    RollArrives,
    RollAnswered,
    Resume,
    SequencerReadsChain,
    Touch,
}

fn disk(n: u128) -> DiskId {
    DiskId(Uuid::from_u128(n))
}

fn segment(loglet: LogletId) -> Segment {
    let node = NodeId(1);
    let leaf = |n: u128| DriveSpec::Disk { node, disk: disk(n) };
    Segment {
        loglet,
        drive: DriveSpec::Quorum { children: (0..COPIES as u128).map(leaf).collect(), write: WRITE as u8 },
        window: WINDOW,
        seal_mode: SealMode::Fence,
        primary: Primary { node, generation: Generation(1) },
        opened_at: 0,
    }
}

fn extend(tail: Address, degraded: Option<(Address, Address)>) -> ChainOp {
    ChainOp::Extend { end: Some(End { loglet: LOGLET, tail, degraded }), next: segment(LogletId(2)) }
}

impl World {
    fn new(scope: &Scope) -> World {
        let copy = |n: usize| Copy { registers: Registers::default(), disk: n as u128 };
        World {
            copies: std::array::from_fn(copy),
            wiped: 0,
            sequencer: Sequencer::new(Window { entries: WINDOW, bytes: u64::MAX }),
            underway: BTreeSet::new(),
            tallies: Vec::new(),
            passes: vec![None; scope.sealers],
            chain: Arc::new(Chain::new(segment(LOGLET))),
            roll: None,
            touched: false,
            shown: 0,
        }
    }

    /// The recorded tail of the loglet.
    fn recorded(&self) -> Option<Address> {
        self.chain.entry(LOGLET).map_or(Some(Address(0)), |e| e.tail)
    }

    /// Whether a copy answers requests that name it.
    fn answers(&self, copy: usize) -> bool {
        let leaf = LeafId { loglet: LOGLET, leaf: copy as u16 };
        same_disk(leaf, disk(copy as u128), disk(self.copies[copy].disk)).is_ok()
    }

    fn steps(&self, scope: &Scope) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.sequencer.next().0 < scope.entries {
            steps.push(Step::Issue);
        }
        steps.extend(self.underway.iter().map(|(copy, a)| Step::Arrive(*copy, *a)));
        if self.wiped < scope.wipes {
            steps.extend((0..COPIES).map(Step::Wipe));
        }
        for (i, pass) in self.passes.iter().enumerate() {
            let Some(pass) = pass else {
                // Sealers are alike too: they begin in their order.
                steps.push(Step::Begin(i));
                break;
            };
            match pass.machine.command() {
                SealCommand::Probe => steps.push(Step::Probe(i)),
                SealCommand::Fence => {
                    let asked = (0..COPIES).filter(|c| pass.answers[*c].is_none() && self.answers(*c));
                    steps.extend(asked.map(|c| Step::Fence(i, c)));
                    if pass.answers.iter().flatten().count() >= seal_quorum(COPIES, WRITE) {
                        steps.push(Step::Merge(i));
                    }
                }
                SealCommand::Repair => {
                    steps.push(Step::Copy(i));
                    if scope.give_up {
                        steps.push(Step::GiveUp(i));
                    }
                }
                SealCommand::Record(_) => steps.extend([Step::Record(i), Step::ReadChain(i)]),
                SealCommand::Finished(_) => {}
            }
            if pass.machine.readable().is_some_and(|t| t.0 > self.shown) {
                steps.push(Step::Show(i));
            }
        }
        if scope.roll {
            steps.extend([Step::Stop, Step::Roll, Step::Resume, Step::SequencerReadsChain]);
            if self.roll.is_some() {
                steps.extend([Step::RollArrives, Step::RollAnswered]);
            }
            if !self.touched {
                steps.push(Step::Touch);
            }
        }
        steps
    }

    /// The state after a step; `None` where it changes nothing.
    fn after(&self, step: Step) -> Option<World> {
        let mut w = self.clone();
        match step {
            Step::Issue => w.issue()?,
            Step::Arrive(copy, a) => w.arrive(copy, a),
            Step::Wipe(copy) => {
                w.wiped += 1;
                w.copies[copy] = Copy { registers: Registers::default(), disk: 100 + copy as u128 };
            }
            Step::Begin(i) => {
                w.chain.open().filter(|e| e.loglet == LOGLET)?;
                let machine = Sealer::new(w.chain.version, Address(0));
                w.passes[i] = Some(Pass { machine, answers: Default::default() });
            }
            Step::Touch => {
                w.touched = true;
                let version = w.chain.version;
                Arc::make_mut(&mut w.chain).apply(version, ChainOp::Touch).ok()?;
            }
            Step::Stop => w.sequencer.stop(w.chain.version),
            Step::Roll => w.roll = Some(w.sequencer.roll().ok()?),
            Step::Resume => {
                w.sequencer.resume();
            }
            Step::RollArrives | Step::RollAnswered => w.roll_arrives(step)?,
            Step::SequencerReadsChain => w.sequencer_reads_chain(),
            Step::Probe(i)
            | Step::Fence(i, _)
            | Step::Merge(i)
            | Step::Copy(i)
            | Step::GiveUp(i)
            | Step::Record(i)
            | Step::ReadChain(i)
            | Step::Show(i) => {
                let mut pass = w.passes[i].take()?;
                w.seal(step, &mut pass)?;
                w.passes[i] = Some(pass);
            }
        }
        Some(w)
    }

    fn issue(&mut self) -> Option<()> {
        let a = self.sequencer.reserve(1, 1).ok()?;
        self.underway.extend((0..COPIES).map(|copy| (copy, a.0)));
        self.tallies.push(Some(Tally::new(COPIES, WRITE, 0)));
        Some(())
    }

    fn arrive(&mut self, copy: usize, a: u64) {
        self.underway.remove(&(copy, a));
        let outcome = if !self.answers(copy) {
            Err(WriteError::Unavailable(String::new()))
        } else {
            let registers = &mut self.copies[copy].registers;
            match registers.write_meets(a) {
                Slot::Sealed => Err(WriteError::Sealed),
                Slot::Trimmed => Err(WriteError::Trimmed(Address(a))),
                Slot::Written => Ok(()),
                Slot::Free => {
                    registers.set(a);
                    Ok(())
                }
            }
        };
        let tally = &mut self.tallies[a as usize];
        if let Some(decided) = tally.as_mut().and_then(|t| t.count(outcome)) {
            *tally = None;
            match decided {
                Ok(()) => drop(self.sequencer.complete(Address(a), 1)),
                Err(WriteError::Sealed) => self.sequencer.seal(),
                Err(_) => {}
            }
        }
    }

    /// A compare-and-set of a roll is carried out; its answer is lost, or told.
    fn roll_arrives(&mut self, step: Step) -> Option<()> {
        let roll = self.roll.take()?;
        // Refused if the version moved.
        let _ = Arc::make_mut(&mut self.chain).apply(roll.version, extend(roll.tail, None));
        if step == Step::RollAnswered {
            self.sequencer_reads_chain();
        }
        Some(())
    }

    fn sequencer_reads_chain(&mut self) {
        let open = self.chain.open().is_some_and(|e| e.loglet == LOGLET);
        self.sequencer.chain_read(self.chain.version, open);
    }

    fn seal(&mut self, step: Step, pass: &mut Pass) -> Option<()> {
        match step {
            Step::Probe(_) => {
                let tails: Vec<TailDesc> = (0..COPIES)
                    .filter(|c| self.answers(*c))
                    .map(|c| self.copies[c].registers.tail(WINDOW))
                    .collect();
                pass.machine.probed(Ok(quorum_merge(COPIES, WRITE, WINDOW, &tails).ok()?));
                pass.answers = Default::default();
            }
            Step::Fence(_, copy) => {
                self.copies[copy].registers.fence();
                pass.answers[copy] = Some(self.copies[copy].registers.tail(WINDOW));
            }
            Step::Merge(_) => {
                let tails: Vec<TailDesc> = pass.answers.iter().flatten().cloned().collect();
                let merged = quorum_merge(COPIES, WRITE, WINDOW, &tails).ok()?;
                let thin = quorum_thin(WRITE, WINDOW, &tails, merged.end);
                pass.machine.fenced(Ok(merged), &thin);
            }
            Step::Copy(_) => {
                let a = pass.machine.repair().next_copy()?;
                let outcome = self.copy(a.0);
                pass.machine.repair().copied(a, outcome);
                if pass.machine.repair().finished() {
                    pass.machine.repaired();
                }
            }
            Step::GiveUp(_) => pass.machine.repaired(),
            Step::Record(_) => {
                let SealCommand::Record(record) = pass.machine.command() else { return None };
                let change = extend(record.tail, record.degraded);
                let applied = Arc::make_mut(&mut self.chain).apply(record.version, change);
                pass.machine.recorded(match (applied, self.recorded()) {
                    (Ok(_), _) => Recording::Won,
                    (Err(_), Some(tail)) => Recording::Ended(tail),
                    (Err(ChainError::Version { found, .. }), None) => Recording::Moved(found),
                    (Err(error), None) => panic!("{error}"),
                });
            }
            Step::ReadChain(_) => pass.machine.chain_read(self.chain.version, self.recorded()),
            Step::Show(_) => self.shown = self.shown.max(pass.machine.readable()?.0),
            _ => return None,
        }
        if let SealCommand::Finished(SealEnd::BelowCommitted { .. }) = pass.machine.command() {
            panic!("nothing is known to be committed");
        }
        Some(())
    }

    /// Copies an address from whichever copy holds it to the fenced ones.
    fn copy(&mut self, a: u64) -> Result<(), ()> {
        let live: Vec<usize> = (0..COPIES).filter(|c| self.answers(*c)).collect();
        let holds = |w: &World, c: usize| w.copies[c].registers.holds(a) == Slot::Written;
        if !live.iter().any(|c| holds(self, *c)) {
            return Err(());
        }
        for copy in &live {
            if self.copies[*copy].registers.is_fenced() && !holds(self, *copy) {
                self.copies[*copy].registers.set(a);
            }
        }
        match live.iter().filter(|c| holds(self, **c)).count() >= WRITE {
            true => Ok(()),
            false => Err(()),
        }
    }

    fn broken_rule(&self) -> Option<String> {
        if self.sequencer.in_flight() > u64::from(WINDOW) {
            return Some("I5: more in flight than the window".into());
        }
        let tail = self.recorded()?;
        let acknowledged = self.sequencer.tail();
        if acknowledged > tail {
            return Some(format!("I1: acknowledged below {acknowledged}, recorded tail {tail}: lost"));
        }
        if self.shown > tail.0 {
            return Some(format!("I2: a reader was shown {}, recorded tail {tail}", self.shown));
        }
        let held = |a: u64| {
            (0..COPIES).any(|c| self.answers(c) && self.copies[c].registers.holds(a) == Slot::Written)
        };
        let hole = (0..tail.0).find(|a| !held(*a))?;
        // With a disk lost, what nobody acknowledged may be gone with it; what was acknowledged may not.
        let excused = self.wiped > 0 && hole >= acknowledged.0;
        (!excused).then(|| format!("I4: address {hole} is on no copy, recorded tail {tail}"))
    }

    /// Identity of the state; copies are alike, so states that differ in their numbering only are one.
    fn key(&self) -> u64 {
        let mut copies: [u64; COPIES] = std::array::from_fn(|c| {
            let mut hasher = DefaultHasher::new();
            let copy = &self.copies[c];
            (&copy.registers, copy.disk == c as u128).hash(&mut hasher);
            self.underway.iter().filter(|(to, _)| *to == c).for_each(|(_, a)| a.hash(&mut hasher));
            self.passes.iter().flatten().for_each(|pass| pass.answers[c].hash(&mut hasher));
            hasher.finish()
        });
        copies.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (copies, self.wiped, &self.sequencer, &self.tallies).hash(&mut hasher);
        self.passes.iter().for_each(|pass| pass.as_ref().map(|p| &p.machine).hash(&mut hasher));
        (self.chain.version, self.recorded(), &self.roll, self.touched, self.shown).hash(&mut hasher);
        hasher.finish()
    }
}

/// Explores all interleavings.
pub(crate) fn explore(scope: Scope) -> Outcome {
    let first = World::new(&scope);
    let mut seen = HashSet::from([first.key()]);
    // Parent and step of every state, for the trace.
    let mut origins: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(0, first)]);
    while let Some((number, world)) = queue.pop_front() {
        for step in world.steps(&scope) {
            let Some(next) = world.after(step) else { continue };
            if !seen.insert(next.key()) {
                continue;
            }
            origins.push((number, Some(step)));
            let states = origins.len();
            if let Some(rule) = next.broken_rule() {
                return Outcome::Broken { rule, trace: trace(&origins), states };
            }
            if states >= scope.states_max {
                return Outcome::Capped { states };
            }
            queue.push_back((states - 1, next));
        }
    }
    Outcome::Holds { states: origins.len() }
}

fn trace(origins: &[(usize, Option<Step>)]) -> Vec<String> {
    let mut steps = Vec::new();
    let mut at = origins.len() - 1;
    while let Some((parent, Some(step))) = origins.get(at) {
        steps.push(format!("{step:?}"));
        at = *parent;
    }
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Mutant;
    use crate::testing::mutant::switched::with_broken;

    const SEAL: Scope =
        Scope { entries: 3, sealers: 1, wipes: 0, roll: false, give_up: true, states_max: 400_000 };
    const TWO: Scope = Scope { entries: 2, sealers: 2, give_up: false, ..SEAL };
    const WIPE: Scope = Scope { entries: 2, wipes: 1, ..SEAL };
    const ROLL: Scope = Scope { entries: 2, roll: true, give_up: false, ..SEAL };

    fn holds(name: &str, scope: Scope) {
        match explore(scope) {
            Outcome::Holds { states } => println!("{name}: holds, {states} states"),
            Outcome::Capped { states } => panic!("{name}: more than {states} states"),
            broken => panic!("{name}: {broken:?}"),
        }
    }

    fn caught(mutant: Mutant, scope: Scope) {
        match with_broken(Some(mutant), || explore(scope)) {
            Outcome::Broken { rule, trace, states } => {
                println!("{mutant:?}: {} steps, {states} states, {rule}: {}", trace.len(), trace.join(" "));
            }
            other => panic!("{mutant:?} is not found: {other:?}"),
        }
    }

    #[test]
    fn one_sealer_loses_nothing_acknowledged() {
        holds("one sealer, 3 entries", SEAL);
    }

    #[test]
    fn two_sealers_and_a_zombie_lose_nothing_acknowledged() {
        holds("two sealers, 2 entries", TWO);
    }

    #[test]
    fn a_wiped_copy_is_another_disk_and_loses_nothing_acknowledged() {
        holds("one sealer, one wiped copy", WIPE);
    }

    #[test]
    fn a_roll_beside_a_sealer_and_other_commands_loses_nothing_acknowledged() {
        holds("roll and one sealer", ROLL);
    }

    #[test]
    fn every_rule_broken_on_purpose_is_found() {
        caught(Mutant::MeasuredBeforeFence, SEAL);
        caught(Mutant::HighestEnd, SEAL);
        caught(Mutant::WriteQuorumOfAnswers, SEAL);
        caught(Mutant::OrderStatistic, SEAL);
        caught(Mutant::TailShownEarly, TWO);
        caught(Mutant::FencedRewriteOk, TWO);
        caught(Mutant::WipedLeafAnswers, WIPE);
        caught(Mutant::RollBeforeDrain, ROLL);
        caught(Mutant::ResumeUnanswered, ROLL);
    }
}
