//! The contract on random trees to depth 3 whose leaves lag, lose requests and answers, have no room for a while, and die, under a
//! real sequencer that keeps O1 to O3, two sealers, and repairs while the old sequencer goes on (log-contracts 1.4). Seeded; a failing seed is
//! named and fails again.

use crate::drive::contract::submit;
use crate::drive::quorum::Quorum;
use crate::drive::striped::Striped;
use crate::drive::{FenceError, ListQuery, LogDrive, Purpose, Read, ScanQuery, SealId, TailDesc, WriteError};
use crate::loglet::sequencer::{Sequencer, Window};
use crate::testing::leaf::{Fate, Leaf, entry_at};
use crate::testing::mutant::switched::with_broken;
use crate::testing::rng::Rng;
use crate::testing::{Mutant, broken};
use crate::types::{Address, NodeId};
use futures_util::future::{BoxFuture, FutureExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Shape of a tree, to know what can be reached.
enum Shape {
    Leaf(Arc<Leaf>),
    Quorum(Vec<Shape>, usize),
    Striped(Vec<Shape>),
}

impl Shape {
    fn random(rng: &mut Rng, depth: usize) -> Shape {
        if depth == 0 || rng.chance(20) {
            return Shape::Leaf(Leaf::by_hand());
        }
        let children: Vec<Shape> = (0..1 + rng.below(3)).map(|_| Shape::random(rng, depth - 1)).collect();
        match rng.chance(60) {
            true => {
                let write = 1 + rng.below(children.len());
                Shape::Quorum(children, write)
            }
            false => Shape::Striped(children),
        }
    }

    fn drive(&self) -> Arc<dyn LogDrive> {
        match self {
            Shape::Leaf(leaf) => leaf.clone(),
            Shape::Quorum(children, write) => {
                let copies = children.iter().map(|c| Ok(c.drive())).collect();
                Arc::new(Quorum::new(copies, *write))
            }
            Shape::Striped(children) => Arc::new(Striped::new(children.iter().map(Shape::drive).collect())),
        }
    }

    fn leaves(&self, found: &mut Vec<Arc<Leaf>>) {
        match self {
            Shape::Leaf(leaf) => found.push(leaf.clone()),
            Shape::Quorum(children, _) | Shape::Striped(children) => {
                children.iter().for_each(|c| c.leaves(found));
            }
        }
    }

    /// Whether a tail can be told: a seal quorum of every quorum and all of every stripe live.
    fn reachable(&self) -> bool {
        match self {
            Shape::Leaf(leaf) => !leaf.is_dead(),
            Shape::Striped(children) => children.iter().all(Shape::reachable),
            Shape::Quorum(children, write) => {
                children.iter().filter(|c| c.reachable()).count() > children.len() - write
            }
        }
    }
}

struct Pending {
    first: u64,
    count: u64,
    outcome: oneshot::Receiver<Result<(), WriteError>>,
}

struct World {
    rng: Rng,
    k: u32,
    shape: Shape,
    drive: Arc<dyn LogDrive>,
    leaves: Vec<Arc<Leaf>>,
    sequencer: Sequencer,
    retry: bool,
    pending: Vec<Pending>,
    /// Writes without a known outcome: first address and count.
    again: Vec<(u64, u64)>,
    /// Addresses whose write returned Ok.
    good: BTreeSet<u64>,
    /// Answers of fences, by sealer.
    fenced: Vec<TailDesc>,
    figures: Figures,
}

#[derive(Default, Debug)]
struct Figures {
    tails: usize,
    fences: usize,
    repairs: usize,
    refused: usize,
    acknowledged_after_fence: usize,
    sealers_disagree: usize,
}

type Fence = BoxFuture<'static, Result<TailDesc, FenceError>>;

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let shape = Shape::random(&mut rng, 3);
        let k = 1 + rng.below(8) as u32;
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        World {
            drive: shape.drive(),
            sequencer: Sequencer::new(Window { entries: k, bytes: u64::MAX }),
            retry: true,
            rng,
            k,
            shape,
            leaves,
            pending: Vec::new(),
            again: Vec::new(),
            good: BTreeSet::new(),
            fenced: Vec::new(),
            figures: Figures::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut fences: Vec<Fence> = Vec::new();
        let first_fence = 10 + self.rng.below(60);
        for step in 0..140 {
            match self.rng.below(10) {
                0..=2 => self.write(),
                3..=7 => self.move_a_leaf(),
                8 => self.check_tail()?,
                _ if step > first_fence && fences.len() + self.fenced.len() < 2 => {
                    fences.push(self.start_fence());
                }
                _ if self.rng.chance(6) => self.kill_a_leaf(),
                _ if self.rng.chance(40) => self.fill_or_free_a_leaf(),
                _ => self.repair(),
            }
            self.poll_fences(&mut fences)?;
            self.collect()?;
        }
        // Dead leaves would fail what is tried again for ever.
        self.retry = false;
        while let Some(leaf) = self.leaves.iter().find(|leaf| leaf.queued() > 0) {
            leaf.step(0, Fate::Done);
            self.poll_fences(&mut fences)?;
            self.collect()?;
        }
        self.check_tail()?;
        self.check_reads()
    }

    /// The proposer's last question before anything is reserved or submitted.
    fn admitted(&mut self) -> bool {
        let admitted = self.drive.admit(1, Purpose::Records).is_ok();
        self.figures.refused += usize::from(!admitted);
        admitted
    }

    fn write(&mut self) {
        if !self.admitted() {
            return;
        }
        let count = 1 + self.rng.below(self.k.min(3) as usize) as u32;
        if let Ok(first) = self.sequencer.reserve(count, 0) {
            self.submit(first.0, u64::from(count));
        }
    }

    fn submit(&mut self, first: u64, count: u64) {
        let outcome = submit(&*self.drive, first, (first..first + count).map(entry_at).collect());
        self.pending.push(Pending { first, count, outcome });
    }

    fn move_a_leaf(&mut self) {
        let leaf = self.leaves[self.rng.below(self.leaves.len())].clone();
        if leaf.queued() > 0 {
            let place = self.rng.below(leaf.queued());
            let fate = match self.rng.below(20) {
                0 => Fate::AnswerLost,
                1 => Fate::RequestLost,
                _ => Fate::Done,
            };
            leaf.step(place, fate);
        }
    }

    fn fill_or_free_a_leaf(&mut self) {
        let (leaf, full) = (self.rng.below(self.leaves.len()), self.rng.chance(50));
        self.leaves[leaf].set_full(full);
    }

    fn kill_a_leaf(&mut self) {
        let leaf = self.rng.below(self.leaves.len());
        self.leaves[leaf].die();
    }

    /// Takes outcomes of writes; a write without a known outcome is tried again, a sealed one ends the sequencer.
    fn collect(&mut self) -> Result<(), String> {
        let mut waiting = Vec::new();
        for mut p in std::mem::take(&mut self.pending) {
            match p.outcome.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => waiting.push(p),
                Err(oneshot::error::TryRecvError::Closed) => return Err("a ticket was dropped".into()),
                Ok(Ok(())) => self.written(&p)?,
                Ok(Err(WriteError::Sealed)) => self.sequencer.seal(),
                Ok(Err(WriteError::Unavailable(_))) => self.again.push((p.first, p.count)),
                Ok(Err(error)) => return Err(format!("one proposer and no trim, yet: {error}")),
            }
        }
        self.pending = waiting;
        let again = if self.retry { std::mem::take(&mut self.again) } else { Vec::new() };
        for (first, count) in again {
            match self.admitted() {
                true => self.submit(first, count),
                false => self.again.push((first, count)),
            }
        }
        Ok(())
    }

    fn written(&mut self, p: &Pending) -> Result<(), String> {
        self.good.extend(p.first..p.first + p.count);
        let before = self.sequencer.tail();
        self.sequencer.complete(Address(p.first), p.count as u32);
        self.figures.acknowledged_after_fence +=
            usize::from(!self.fenced.is_empty() && self.sequencer.tail() > before);
        self.check_fences()
    }

    /// Every write that ever returns Ok, before a fence's answer or after it, is written in it.
    fn check_fences(&self) -> Result<(), String> {
        for tail in &self.fenced {
            if let Some(a) = self.good.iter().find(|a| !tail.written(**a)) {
                return Err(format!("address {a} returned Ok and a fence answered {tail:?}"));
            }
            if tail.contiguous() < self.sequencer.tail() {
                let acknowledged = self.sequencer.tail();
                return Err(format!("acknowledged below {acknowledged}, sealed at {tail:?}: lost"));
            }
        }
        Ok(())
    }

    fn check_tail(&mut self) -> Result<(), String> {
        let tail = self.drive.weak_tail(self.k).now_or_never().ok_or("a tail waits for a leaf")?;
        let tail = match (tail, self.shape.reachable()) {
            (Ok(tail), true) => tail,
            (Err(_), false) => return Ok(()),
            (tail, reachable) => return Err(format!("reachable: {reachable}, answer: {tail:?}")),
        };
        self.figures.tails += 1;
        self.check_window(&tail)?;
        if let Some(a) = self.good.iter().find(|a| !tail.written(**a)) {
            return Err(format!("T1: {a} is written, the tail says {tail:?}"));
        }
        match tail.contiguous() >= self.sequencer.tail() {
            true => Ok(()),
            false => Err(format!("the tail {tail:?} is below {}", self.sequencer.tail())),
        }
    }

    fn check_window(&self, tail: &TailDesc) -> Result<(), String> {
        let low = tail.end.saturating_sub(u64::from(self.k));
        let facts = [
            ("T2: invented", tail.end <= self.sequencer.next().0),
            ("T3: not tight", tail.end == 0 || !tail.holes.contains(&(tail.end - 1))),
            ("T4: holes outside of the window", tail.holes.iter().all(|h| (low..tail.end).contains(h))),
        ];
        match facts.iter().find(|(_, holds)| !holds) {
            Some((rule, _)) => Err(format!("{rule}: {tail:?}")),
            None => Ok(()),
        }
    }

    fn start_fence(&mut self) -> Fence {
        let (drive, k) = (self.drive.clone(), self.k);
        let by = SealId { node: NodeId(1), pass: self.fenced.len() as u64 };
        async move { drive.fence(k, by).await }.boxed()
    }

    fn poll_fences(&mut self, fences: &mut Vec<Fence>) -> Result<(), String> {
        let mut waiting = Vec::new();
        for mut fence in std::mem::take(fences) {
            match (&mut fence).now_or_never() {
                None => waiting.push(fence),
                Some(Err(_)) => {}
                Some(Ok(tail)) => {
                    self.check_window(&tail)?;
                    self.figures.fences += 1;
                    let others = self.fenced.iter().any(|t| t.contiguous() != tail.contiguous());
                    self.figures.sealers_disagree += usize::from(others);
                    self.fenced.push(tail);
                    self.check_fences()?;
                }
            }
        }
        *fences = waiting;
        Ok(())
    }

    /// A sealer repairs one address below its tail, while the old sequencer may still go on.
    fn repair(&mut self) {
        if self.fenced.is_empty() {
            return;
        }
        let below = self.fenced[self.rng.below(self.fenced.len())].contiguous();
        let thin: Vec<u64> = self.drive.thin().into_iter().filter(|a| *a < below.0).collect();
        if thin.is_empty() {
            return;
        }
        let at = thin[self.rng.below(thin.len())];
        let by = SealId { node: NodeId(1), pass: 0 };
        let repair = self.drive.repair(Address(at), entry_at(at), below, by);
        if let Some(Ok(())) = repair.now_or_never() {
            self.figures.repairs += 1;
        }
    }

    /// What was acknowledged below the tail is read, listed and scanned, as long as a seal quorum lives; and all that a seal
    /// keeps, be it on one copy alone, as long as every leaf lives.
    fn check_reads(&mut self) -> Result<(), String> {
        if !self.shape.reachable() {
            return Ok(());
        }
        let below = self.fenced.first().map_or(self.sequencer.tail(), TailDesc::contiguous);
        let all_live = !self.leaves.iter().any(|leaf| leaf.is_dead());
        let kept = if all_live && !self.fenced.is_empty() { below } else { self.sequencer.tail() };
        let kept: BTreeSet<u64> = (0..kept.0).collect();
        for a in &kept {
            match self.drive.read(Address(*a)).now_or_never() {
                Some(Ok(Read::Value(stored))) if stored.header == entry_at(*a).header => {}
                other => return Err(format!("address {a} is to be kept and reads as {other:?}")),
            }
        }
        let max_entries = 1 + self.rng.below(6);
        let listed = self.walk(|drive, from| {
            let from_offset = from as i64;
            let query = ListQuery {
                partition: 0,
                from_offset,
                below,
                max_bytes: 30,
                max_entries,
                min_timestamp: None,
            };
            drive.list(query)
        })?;
        let scanned =
            self.walk(|drive, from| drive.scan(ScanQuery { from: Address(from), below, max_entries }))?;
        for (what, found) in [("list", listed), ("scan", scanned)] {
            if let Some(a) = kept.difference(&found).next() {
                return Err(format!("address {a} is to be kept and is missing in a {what}"));
            }
        }
        Ok(())
    }

    fn walk<'a>(
        &'a self,
        ask: impl Fn(
            &'a dyn LogDrive,
            u64,
        ) -> BoxFuture<'a, Result<Vec<crate::drive::Stored>, crate::drive::ReadError>>,
    ) -> Result<BTreeSet<u64>, String> {
        let mut found = BTreeSet::new();
        loop {
            let from = found.last().map_or(0, |a| a + 1);
            let answer = ask(&*self.drive, from).now_or_never().ok_or("a read waits for a leaf")?;
            let answer = answer.map_err(|e| format!("reachable, yet: {e}"))?;
            let addresses: Vec<u64> = answer.iter().map(|s| s.header.address.0).collect();
            if !addresses.is_sorted_by(|a, b| a < b) || addresses.first().is_some_and(|a| *a < from) {
                return Err(format!("out of order from {from}: {addresses:?}"));
            }
            if addresses.is_empty() {
                return Ok(found);
            }
            found.extend(addresses);
        }
    }
}

/// Runs the seeds; the first failure, or the figures of all.
fn storm(seeds: std::ops::Range<u64>) -> Result<Figures, String> {
    let mut sum = Figures::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run().map_err(|e| format!("seed {seed}: {e}"))?;
        let f = world.figures;
        sum.tails += f.tails;
        sum.fences += f.fences;
        sum.repairs += f.repairs;
        sum.refused += f.refused;
        sum.acknowledged_after_fence += f.acknowledged_after_fence;
        sum.sealers_disagree += f.sealers_disagree;
    }
    Ok(sum)
}

#[test]
fn random_trees_keep_the_contract_with_lagging_lossy_full_and_dead_leaves() {
    let trees = std::env::var("RANGEWAY_TEST_TREES").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let figures = storm(0..trees).unwrap();
    println!("random trees: {trees}, {figures:?}");
    assert!(figures.fences > 100 && figures.repairs > 20, "the storm must reach fences and repairs");
    assert!(figures.refused > 100, "and trees without room");
    assert!(
        figures.acknowledged_after_fence > 0 && figures.sealers_disagree > 0,
        "and the races between them"
    );
}

#[test]
fn a_tree_with_one_rule_broken_is_caught() {
    for mutant in [
        Mutant::WriteQuorumOfAnswers,
        Mutant::OrderStatistic,
        Mutant::FencedRewriteOk,
        Mutant::SealQuorumReads,
    ] {
        let caught = with_broken(Some(mutant), || {
            assert!(broken(mutant));
            storm(0..6000)
        });
        println!("{mutant:?}: {}", caught.expect_err("a broken rule must be found"));
    }
}
