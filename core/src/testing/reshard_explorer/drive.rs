//! The reshard driver, carried out: each node has one, and two may be at one operation.

use super::Scope;
use super::control::{Way, new_segment};
use super::world::World;
use crate::control::command::{AbortReshard, Command, Ended, ParentEnd, Reply, Reshard};
use crate::control::state::{OperationId, OperationKind, OperationState, Range, RangeState};
use crate::range::primary::Phase;
use crate::reshard::driver::{Driver, Parent, Step};
use crate::types::{Address, RangeId};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A driver at work.
#[derive(Clone)]
pub(super) struct DriverProcess {
    pub(super) operation: OperationId,
    kind: OperationKind,
    pub(super) driver: Driver,
    /// The parents as they were read after the intent.
    before: SmallVec<[Arc<Range>; 2]>,
}

impl Hash for DriverProcess {
    fn hash<H: Hasher>(&self, into: &mut H) {
        (self.operation, &self.driver).hash(into);
    }
}

impl World {
    /// The node's driver takes up what runs, reads its ranges and probes them.
    pub(super) fn take_up(&mut self, node: usize) -> Option<()> {
        if self.busy(node) {
            return None;
        }
        let operation = self.running()?;
        let (id, kind) = (operation.id, operation.kind);
        let ranges = kind.ranges().into_iter().filter_map(|id| self.topic().ranges.get(&id).cloned());
        let before: SmallVec<[Arc<Range>; 2]> = ranges.collect();
        let parents = before.iter().map(|range| {
            let open = range.open().map(|open| open.loglet);
            let led_here = self.nodes[node].takes_appends(range.id)
                && range.open().is_some_and(|open| open.primary == self.me(node));
            Parent { range: range.id, version: range.version, open, led_here }
        });
        let mut driver = Driver::new(parents.collect::<Vec<_>>());
        let tails = before.iter().filter_map(|range| range.open());
        let tails = tails.map(|open| Address(self.leaves[&open.loglet].contiguous()));
        driver.probed(Ok(tails.collect()));
        self.drivers[node] = Some(DriverProcess { operation: id, kind, driver, before });
        Some(())
    }

    /// The next step of the node's driver. `fails`: a drain does not end in time, a seal finds no quorum.
    pub(super) fn drive(
        &mut self,
        node: usize,
        (way, without): (Way, u8),
        fails: bool,
        scope: &Scope,
    ) -> Option<()> {
        let mut process = self.drivers[node].take()?;
        let step = process.driver.step();
        if fails {
            self.budget.failing = self.budget.failing.checked_sub(1)?;
        }
        match step {
            Step::Probe => return None,
            Step::Stop => {
                for parent in process.driver.parents().iter().filter(|parent| parent.led_here) {
                    let head = parent.open.and_then(|loglet| self.nodes[node].writer(loglet));
                    head.into_iter().for_each(|head| head.stop_issuing(parent.version));
                }
                process.driver.stopped();
            }
            Step::Drain(n) => {
                let open = process.driver.parents()[n].open;
                let head = open.and_then(|loglet| self.nodes[node].writer(loglet));
                let drained = head.filter(|head| !fails && head.is_idle()).map(|head| head.drained());
                match drained {
                    Some(tail) => process.driver.drained(n, tail),
                    None if fails || head.is_none() => process.driver.drained(n, None),
                    None => return None,
                }
            }
            Step::Seal(n) => {
                let ended = match fails {
                    true => Err("no quorum".to_owned()),
                    false => self.seal(&process.before[n], without),
                };
                process.driver.sealed(n, ended);
            }
            Step::Record(parents) => {
                let leader = self.me(node);
                let other = if scope.spread { self.me((node + 1) % self.nodes.len()) } else { leader };
                let children = match process.kind {
                    OperationKind::Split { .. } => vec![leader, other],
                    OperationKind::Merge { .. } => vec![other],
                };
                let next = children.into_iter().map(|child| new_segment(child, scope.window)).collect();
                let command = Reshard { operation: process.operation, parents, next, now: 0 };
                match self.propose(Command::Reshard(command), way) {
                    Some(Some(Reply::Operation { state: OperationState::Done { created } })) => {
                        process.driver.recorded(created);
                    }
                    _ => process.driver.unanswered(),
                }
            }
            Step::Read => {
                let operation = self.control.operations.get(&process.operation)?;
                process.driver.read(&operation.state);
            }
            Step::Open { created, .. } => {
                self.open_children(node, &process, &created, scope);
                process.driver.opened();
            }
            Step::Abort { why, sealed } => {
                let me = self.me(node);
                let next = |end: ParentEnd| (end, new_segment(me, scope.window));
                let sealed = sealed.into_iter().map(next).collect();
                let command = AbortReshard { operation: process.operation, why, sealed, now: 0 };
                match self.propose(Command::AbortReshard(command), way) {
                    Some(Some(_)) => process.driver.aborted(),
                    _ => process.driver.unanswered(),
                }
            }
            Step::Resume { sealed } => {
                for parent in process.driver.parents() {
                    let Some(loglet) = parent.open else { continue };
                    if sealed.iter().any(|end| end.range == parent.range) {
                        self.nodes[node].writer(loglet).into_iter().for_each(|head| {
                            head.close(Phase::Blocked("its segment was fenced".to_owned()));
                        });
                    } else {
                        self.read_chain(node, loglet);
                    }
                }
                self.follow(node, scope);
                process.driver.opened();
            }
            Step::Over => {}
        }
        if process.driver.step() != Step::Over {
            self.drivers[node] = Some(process);
        }
        Some(())
    }

    /// Opens the children that are led here. Memory may be used after a complete drain: it must be what a fold gives.
    fn open_children(&mut self, node: usize, process: &DriverProcess, created: &[RangeId], scope: &Scope) {
        for before in &process.before {
            if self.topic().ranges.get(&before.id).is_some_and(|range| range.state != RangeState::Closed) {
                self.broken =
                    Some(format!("children are opened, and the end of range {} is not recorded", before.id));
                return;
            }
        }
        if process.driver.all_drained() {
            for before in &process.before {
                let open = before.open().map(|open| open.loglet);
                let Some(head) = open.and_then(|loglet| self.nodes[node].writer(loglet)) else { continue };
                // A parent may be dropped by now, once its children elsewhere have checkpoints.
                if self.fold(before.id).is_ok_and(|folded| folded != head.state()) {
                    self.broken = Some(format!("range {}: drained memory is not its fold", before.id));
                }
            }
        }
        let ended = self.ended(node);
        let mut items = Vec::new();
        for (range, tail) in &ended {
            items.extend(self.end_head(node, *range, *tail));
        }
        let mine = created.iter().copied().filter(|id| {
            let open = self.topic().ranges.get(id).and_then(|range| range.open());
            open.is_some_and(|open| open.primary == self.me(node)) && self.nodes[node].head(*id).is_none()
        });
        let mine: Vec<RangeId> = mine.collect();
        let opened = self.open_ranges(&mine, items, scope);
        let ended: Vec<RangeId> = ended.iter().map(|(range, _)| *range).collect();
        self.nodes[node].replace(&ended, opened);
    }

    /// A pass of the sealer over a range's open segment, of which one copy does not answer.
    pub(super) fn seal(&mut self, range: &Range, without: u8) -> Result<Ended, String> {
        let open = range.open().ok_or("no open segment")?;
        let leaf = self.leaf(open.loglet).ok_or("no such leaf")?;
        leaf.seal(range.version, open, without)
    }
}
