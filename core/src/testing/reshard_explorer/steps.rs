//! What may happen next.

use super::Scope;
use super::control::Way;
use super::transactions::TxnStep;
use super::world::{PARTITIONS, World};
use crate::range::primary::Phase;
use crate::reshard::driver::Step as DriverStep;
use crate::types::{LogletId, RangeId};
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;

/// One thing that happens; numbers are those of nodes, clients, places of primaries.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect(usize),
    ConnectStale(usize, usize),
    Read(usize),
    Look(usize),
    /// Which of the reads that it may do.
    ReadOn(usize, usize),
    Expire(usize),
    GiveUp(usize),
    /// At which copy.
    Arrive(LogletId, u64, u8),
    Answer(LogletId, u64),
    Begin,
    Abort(usize),
    TakeUp(usize),
    /// Without the answer of which copy.
    Drive(usize, Way, u8),
    DriveFails(usize),
    Follow(usize),
    LateArrives(usize),
    RollStops(usize, usize),
    RollRecords(usize, Way),
    RollCalledOff(usize),
    RollRead(usize),
    Restart(usize),
    TakeOver(usize, RangeId, u8),
    TakeoverRecords(usize, Way),
    Delete(usize, usize),
    Retain(usize, usize),
    Transact(TxnStep),
}

impl World {
    pub(super) fn steps(&self, scope: &Scope) -> Vec<Step> {
        // A connection is made at once: nothing that happens before it matters to it, save where it goes.
        if let Some(client) = (0..self.clients.len()).find(|client| self.must_connect(*client)) {
            return self.connections(client);
        }
        let mut steps = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            if !client.socket.is_empty() {
                steps.push(Step::Read(at));
            }
            if client.parked() > 0 {
                steps.push(Step::Look(at));
            }
            if scope.deadlines && self.budget.timeouts > 0 && !client.pending.is_empty() {
                steps.push(Step::Expire(at));
            }
            if self.budget.timeouts > 0 && !(client.socket.is_empty() && client.pending.is_empty()) {
                steps.push(Step::GiveUp(at));
            }
        }
        for reader in 0..self.readers.len() {
            steps.extend((0..PARTITIONS as usize).map(|which| Step::ReadOn(reader, which)));
        }
        for (loglet, leaf) in &self.leaves {
            let most = if scope.reorder { usize::MAX } else { 1 };
            for copy in 0..leaf.copies() as u8 {
                let coming = leaf.underway.iter().filter(|(_, flight)| flight.left.contains(&copy));
                steps.extend(coming.take(most).map(|(first, _)| Step::Arrive(*loglet, *first, copy)));
            }
            steps.extend(leaf.answers.keys().map(|first| Step::Answer(*loglet, *first)));
        }
        if self.budget.reshards > 0 {
            steps.push(Step::Begin);
        }
        let mut of_transactions = Vec::new();
        self.transaction_steps(&mut of_transactions);
        steps.extend(of_transactions.into_iter().map(Step::Transact));
        steps.extend((0..self.late.len()).map(Step::LateArrives));
        for node in 0..self.nodes.len() {
            self.steps_of(node, scope, &mut steps);
        }
        steps
    }

    fn connections(&self, client: usize) -> Vec<Step> {
        let partition = self.clients[client].kind.partition;
        let leader = self.range_of(partition).primary();
        let led =
            |node: &usize| self.nodes[*node].head_of(partition).is_some() && leader != Some(self.me(*node));
        let stale = (0..self.nodes.len()).filter(led).map(|node| Step::ConnectStale(client, node));
        let stale = stale.take(if self.budget.stale > 0 { usize::MAX } else { 0 });
        [Step::Connect(client)].into_iter().chain(stale).collect()
    }

    fn must_connect(&self, client: usize) -> bool {
        let client = &self.clients[client];
        let leader = self.range_of(client.kind.partition).primary();
        let alive = leader.is_some_and(|leader| (0..self.nodes.len()).any(|node| self.me(node) == leader));
        client.node.is_none() && alive && client.known.contains(&super::clients::Known::Unsent)
    }

    fn steps_of(&self, node: usize, scope: &Scope, steps: &mut Vec<Step>) {
        match &self.drivers[node] {
            None if self.running().is_some() && !self.busy(node) => {
                steps.push(Step::TakeUp(node));
                if self.budget.aborts > 0 {
                    steps.push(Step::Abort(node));
                }
            }
            None => {}
            Some(process) => {
                let step = process.driver.step();
                match step {
                    DriverStep::Record(_) | DriverStep::Abort { .. } => {
                        steps.extend(self.ways().map(|way| Step::Drive(node, way, 0)));
                    }
                    DriverStep::Seal(_) => {
                        steps.extend(self.silent().map(|copy| Step::Drive(node, Way::Answered, copy)));
                    }
                    _ => steps.push(Step::Drive(node, Way::Answered, 0)),
                }
                if matches!(step, DriverStep::Drain(_) | DriverStep::Seal(_)) && self.budget.failing > 0 {
                    steps.push(Step::DriveFails(node));
                }
            }
        }
        steps.push(Step::Follow(node));
        if self.budget.restarts > 0 {
            steps.push(Step::Restart(node));
        }
        let here = &self.nodes[node];
        for at in 0..here.heads.len() {
            if self.budget.rolls > 0 && !self.busy(node) {
                steps.push(Step::RollStops(node, at));
            }
            if self.budget.deletes > 0 {
                steps.push(Step::Delete(node, at));
            }
            if scope.deletes > 0 {
                steps.push(Step::Retain(node, at));
            }
        }
        if let Some(rolling) = here.rolling {
            if rolling.sent {
                steps.push(Step::RollRead(node));
            } else {
                steps.extend(self.ways().map(|way| Step::RollRecords(node, way)));
            }
            steps.push(Step::RollCalledOff(node));
        }
        match here.takeover {
            Some(_) => steps.extend(self.ways().map(|way| Step::TakeoverRecords(node, way))),
            None if self.busy(node) => {}
            None => {
                let ranges = self.takeovers(node, scope).into_iter();
                steps.extend(
                    ranges.flat_map(|r| self.silent().map(move |copy| Step::TakeOver(node, r, copy))),
                );
            }
        }
    }

    /// Copies that a seal may have to do without, if there is more than one.
    fn silent(&self) -> std::ops::Range<u8> {
        0..self.replicas as u8
    }

    /// Ranges that a node may take over: whose incarnation is gone, whose primary here takes no more writes, and as often
    /// as is allowed those of a node that lives.
    fn takeovers(&self, node: usize, scope: &Scope) -> BTreeSet<RangeId> {
        let may = |range: &&std::sync::Arc<crate::control::state::Range>| {
            let Some(open) = range.open() else { return false };
            if open.primary == self.me(node) {
                let head = self.nodes[node].head(range.id);
                let blocked = head.is_some_and(|head| {
                    head.active().0 == open.loglet && matches!(head.phase(), Phase::Blocked(_))
                });
                return scope.rolls_away && blocked;
            }
            let alive = (0..self.nodes.len()).any(|other| self.me(other) == open.primary);
            let same_node = open.primary.node == self.me(node).node;
            same_node || self.budget.failovers > 0 || (!alive && scope.failovers > 0)
        };
        let active = self.topic().live_ranges();
        active
            .filter(|range| range.state == crate::control::state::RangeState::Active)
            .filter(may)
            .map(|r| r.id)
            .collect()
    }

    /// The state after a step; `None` where it changes nothing.
    pub(super) fn after(&self, step: Step, scope: &Scope) -> Option<World> {
        // Not dropped when something is asserted amid a step: what it holds may assert then, too.
        let mut next = ManuallyDrop::new(self.fork());
        let made = next.make(step, scope);
        if made.is_some() {
            next.send();
            next.answers();
            next.transaction_answers();
        }
        let next = ManuallyDrop::into_inner(next);
        made.map(|()| next)
    }

    fn make(&mut self, step: Step, scope: &Scope) -> Option<()> {
        match step {
            Step::Connect(client) => self.connect(client),
            Step::ConnectStale(client, node) => self.connect_stale(client, node),
            Step::Read(client) => self.read_request(client),
            Step::Look(client) => self.look(client),
            Step::ReadOn(reader, which) => self.read_on(reader, which),
            Step::Expire(client) => self.expire(client),
            Step::GiveUp(client) => {
                self.budget.timeouts -= 1;
                self.clients[client].disconnect();
                Some(())
            }
            Step::Arrive(loglet, first, copy) => {
                let answered = self.has_writer(loglet);
                self.leaf(loglet)?.arrive(first, copy, answered)
            }
            Step::Answer(loglet, first) => self.answer(loglet, first),
            Step::Begin => self.begin(),
            Step::Abort(node) => self.abort(node),
            Step::TakeUp(node) => self.take_up(node),
            Step::Drive(node, way, without) => self.drive(node, (way, without), false, scope),
            Step::DriveFails(node) => self.drive(node, (Way::Answered, 0), true, scope),
            Step::Follow(node) => self.follow(node, scope),
            Step::LateArrives(n) => self.late_arrives(n),
            Step::RollStops(node, at) => self.roll_stops(node, at),
            Step::RollRecords(node, way) => self.roll_records(node, way, scope),
            Step::RollCalledOff(node) => self.roll_called_off(node),
            Step::RollRead(node) => self.roll_read(node),
            Step::Restart(node) => self.restart(node),
            Step::TakeOver(node, range, without) => {
                let open = self.topic().ranges.get(&range)?.open()?.primary;
                let alive = (0..self.nodes.len()).any(|other| self.me(other) == open);
                if alive && open != self.me(node) {
                    self.budget.failovers -= 1;
                }
                self.take_over(node, range, without)
            }
            Step::TakeoverRecords(node, way) => self.takeover_records(node, way, scope),
            Step::Delete(node, at) => self.delete_records(node, at),
            Step::Retain(node, at) => self.retain(node, at),
            Step::Transact(step) => self.transact(step),
        }
    }
}

const _: () = assert!(PARTITIONS == 2, "clients and splits are made for two");
