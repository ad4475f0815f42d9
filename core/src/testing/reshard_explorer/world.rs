//! The world: control state, leaves, nodes, clients, and how often what may still happen.

use super::Scope;
use super::clients::{Client, now};
use super::control::{Late, create_topic};
use super::drive::DriverProcess;
use super::node::NodeProcess;
use super::readers::Reader;
use super::storage::{Leaf, Outbox};
use super::transactions::{Transactional, producer_of};
use crate::control::state::{Range, State, Topic};
use crate::range::ack::{AckSlot, Forks};
use crate::range::lane::Parking;
use crate::testing::write_only::WriteOnly;
use crate::types::{Generation, LogletId, NodeId, Offset, Partition, Primary, TopicId};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

pub(super) const TOPIC: TopicId = TopicId(Uuid::from_u128(1));
pub(super) const PARTITIONS: i32 = 2;

/// What may happen so often still.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) reshards: u8,
    pub(super) aborts: u8,
    pub(super) rolls: u8,
    pub(super) restarts: u8,
    pub(super) failovers: u8,
    pub(super) lost: u8,
    pub(super) late: u8,
    pub(super) stale: u8,
    pub(super) timeouts: u8,
    pub(super) failing: u8,
    pub(super) deletes: u8,
    pub(super) transactions: u8,
    pub(super) copies: u8,
}

/// See the module head.
pub(super) struct World {
    pub(super) control: State,
    /// Those of segments that left their chain too, for the checks.
    pub(super) leaves: BTreeMap<LogletId, Arc<Leaf>>,
    /// Of each segment.
    pub(super) replicas: usize,
    /// Every tail that was ever recorded.
    pub(super) tails: BTreeMap<LogletId, u64>,
    pub(super) nodes: Vec<NodeProcess>,
    pub(super) drivers: Vec<Option<DriverProcess>>,
    pub(super) late: Vec<Late>,
    pub(super) clients: Vec<Client>,
    pub(super) transactional: Option<Transactional>,
    pub(super) readers: Vec<Reader>,
    /// Of each partition: the highest log start that was asked for.
    pub(super) deleted: [Offset; PARTITIONS as usize],
    pub(super) budget: Budget,
    /// Who led a partition under which epoch, as far as anybody was told.
    pub(super) led: BTreeMap<(Partition, i32), Primary>,
    pub(super) operations: u128,
    /// What was seen to be broken.
    pub(super) broken: Option<String>,
    pub(super) outbox: Arc<WriteOnly<Outbox>>,
    pub(super) parking: Arc<Parking>,
    /// From which deadlines count; no time passes but by steps.
    pub(super) begun: Instant,
}

impl World {
    pub(super) fn new(scope: &Scope) -> World {
        let mut world = World {
            control: State::default(),
            leaves: BTreeMap::new(),
            replicas: scope.replicas,
            tails: BTreeMap::new(),
            nodes: (0..scope.nodes).map(NodeProcess::new).collect(),
            drivers: (0..scope.nodes).map(|_| None).collect(),
            late: Vec::new(),
            clients: scope.clients.iter().enumerate().map(|(i, kind)| Client::new(i, *kind)).collect(),
            transactional: producer_of(scope),
            readers: Vec::new(),
            deleted: [0; PARTITIONS as usize],
            budget: Budget {
                reshards: scope.reshards,
                aborts: scope.aborts,
                rolls: scope.rolls,
                restarts: scope.restarts,
                failovers: scope.failovers,
                lost: scope.lost,
                late: scope.late,
                stale: scope.stale,
                timeouts: scope.timeouts,
                failing: scope.failing,
                deletes: scope.deletes,
                transactions: scope.transactions,
                copies: scope.copies,
            },
            led: BTreeMap::new(),
            operations: 0,
            broken: None,
            outbox: Arc::default(),
            parking: Arc::default(),
            begun: now(),
        };
        create_topic(&mut world, scope);
        world.follow(0, scope);
        world.send();
        // The first checkpoints are complete.
        let opened: Vec<LogletId> = world.leaves.keys().copied().collect();
        for loglet in opened {
            for copy in 0..scope.replicas as u8 {
                world.leaf(loglet).and_then(|leaf| leaf.arrive(0, copy, true));
            }
            world.answer(loglet, 0);
        }
        (0..scope.readers).for_each(|_| world.add_reader());
        world
    }

    pub(super) fn topic(&self) -> &Topic {
        &self.control.topics[&TOPIC]
    }

    /// The live range of a partition.
    pub(super) fn range_of(&self, partition: Partition) -> &Range {
        self.topic().range_of(partition).expect("live ranges tile the topic")
    }

    pub(super) fn me(&self, node: usize) -> Primary {
        primary(node, self.nodes[node].generation)
    }

    /// A leaf, to be changed.
    pub(super) fn leaf(&mut self, loglet: LogletId) -> Option<&mut Leaf> {
        self.leaves.get_mut(&loglet).map(Arc::make_mut)
    }

    /// What was submitted in this step is on its way.
    pub(super) fn send(&mut self) {
        for run in self.outbox.clone().take() {
            let (loglet, first) = (run[0].0.loglet, run[0].0.address.0);
            let leaf = self.leaf(loglet).expect("a segment that was opened");
            leaf.submit(first, run);
        }
    }

    /// The same world once more.
    pub(super) fn fork(&self) -> World {
        let mut forks = Forks::default();
        World {
            control: self.control.clone(),
            leaves: self.leaves.clone(),
            replicas: self.replicas,
            tails: self.tails.clone(),
            nodes: self.nodes.iter().map(|node| node.fork(&mut forks)).collect(),
            drivers: self.drivers.clone(),
            late: self.late.clone(),
            clients: self.clients.iter().map(|client| client.fork(&mut forks)).collect(),
            transactional: self.transactional.as_ref().map(|one| one.fork(&mut forks)),
            readers: self.readers.clone(),
            deleted: self.deleted,
            budget: self.budget,
            led: self.led.clone(),
            operations: self.operations,
            broken: None,
            outbox: self.outbox.clone(),
            parking: self.parking.clone(),
            begun: self.begun,
        }
    }

    /// Identity of the state.
    pub(super) fn key(&self) -> u64 {
        let mut hasher = Quick::default();
        let into = &mut hasher;
        self.identify_control(into);
        for (loglet, leaf) in &self.leaves {
            loglet.hash(into);
            leaf.identify(into);
        }
        let number = |ack: &AckSlot| {
            let pending = self.clients.iter().flat_map(|client| client.pending.iter().map(|(_, p)| p));
            let found = pending.enumerate().find(|(_, pending)| pending.has(ack));
            let of_transaction = || self.transactional.as_ref()?.place(ack).map(|at| at + 50);
            found.map(|(at, _)| at).or_else(of_transaction).unwrap_or(99) as u64
        };
        self.nodes.iter().for_each(|node| node.identify(into, &number));
        self.drivers.hash(into);
        self.late.iter().for_each(|late| late.identify(into));
        self.clients.iter().for_each(|client| client.identify(into, &number));
        self.transactional.iter().for_each(|one| one.identify(into, &number));
        self.readers.iter().for_each(|reader| reader.identify(into));
        (self.budget, &self.led, &self.tails, self.deleted).hash(into);
        hasher.finish()
    }

    fn identify_control(&self, into: &mut impl Hasher) {
        for range in self.topic().ranges.values() {
            (range.id, range.span, range.version, range.state as u8).hash(into);
            for entry in &range.chain {
                (entry.base, entry.loglet, entry.tail, entry.primary).hash(into);
            }
            range.epochs.iter().for_each(|run| (run.first, run.last, run.epoch).hash(into));
        }
        for operation in self.control.operations.values() {
            (operation.id, std::mem::discriminant(&operation.state)).hash(into);
            operation.kind.ranges().hash(into);
        }
        self.topic().stones.len().hash(into);
    }
}

pub(super) fn primary(node: usize, generation: u64) -> Primary {
    Primary { node: NodeId(node as i32), generation: Generation(generation) }
}

/// Mixes words: quick without optimisation too, which is how tests are built.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last));
    }
    fn write_u64(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = self.0.rotate_left(29) ^ (mixed >> 64) as u64 ^ (mixed as u64);
    }
    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
