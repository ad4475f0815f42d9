//! Commands to the control state and their answers: told, lost, or late.

use super::Scope;
use super::storage::Leaf;
use super::world::{PARTITIONS, TOPIC, World, primary};
use crate::control::command::{AbortReshard, BeginReshard, Command, CreateTopic, NewSegment, Reply};
use crate::control::state::{Operation, OperationKind};
use crate::drive::spec::DriveSpec;
use crate::range::primary::Phase;
use crate::types::{NodeId, Partition, Primary};
use crate::virtual_log::chain::SealMode;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use uuid::Uuid;

/// What becomes of a command.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// Carried out or refused, and answered.
    Answered,
    /// Carried out or refused, and the answer is lost.
    Lost,
    /// Not carried out yet; there will be no answer.
    Late,
}

/// A command that may be carried out at any time.
#[derive(Clone, Debug)]
pub(super) struct Late(Command);

impl Late {
    pub(super) fn identify(&self, into: &mut impl Hasher) {
        format!("{:?}", self.0).hash(into);
    }
}

pub(super) fn new_segment(primary: Primary, window: u32) -> NewSegment {
    let drive = DriveSpec::Memory { node: NodeId(0) };
    NewSegment { drive, window, seal_mode: SealMode::Fence, primary }
}

pub(super) fn create_topic(world: &mut World, scope: &Scope) {
    for node in 0..scope.nodes {
        let start = Command::StartNode {
            node: NodeId(node as i32),
            disks: Vec::new(),
            begun: Default::default(),
            now: 0,
        };
        world.apply(&start);
    }
    world.apply(&Command::CreateTopic(CreateTopic {
        id: TOPIC,
        name: "t".to_owned(),
        partitions: PARTITIONS,
        ranges: scope.ranges,
        replication_factor: 1,
        drive: None,
        configs: BTreeMap::new(),
        internal: false,
        segments: vec![new_segment(primary(0, 1), scope.window); scope.ranges as usize],
        now: 0,
    }));
}

impl World {
    /// A command arrives at the control state.
    pub(super) fn apply(&mut self, command: &Command) -> Option<Reply> {
        let reply = self.control.apply(command).ok().map(|(reply, _)| reply);
        if reply.is_some() && self.control.topics.contains_key(&TOPIC) {
            if let Err(wrong) = self.control.check() {
                self.broken = Some(format!("control state: {wrong}"));
            }
            self.note_chains();
        }
        reply
    }

    fn note_chains(&mut self) {
        let entries: Vec<_> = self.topic().ranges.values().flat_map(|range| range.chain.clone()).collect();
        for entry in entries {
            let leaf = || Arc::new(Leaf::of(entry.primary, self.replicas));
            self.leaves.entry(entry.loglet).or_insert_with(leaf);
            if let Some(tail) = entry.tail {
                self.tails.insert(entry.loglet, tail.0);
            }
        }
    }

    /// Sends a command on its way; the outer answer is `None` where nobody will be told.
    pub(super) fn propose(&mut self, command: Command, way: Way) -> Option<Option<Reply>> {
        match way {
            Way::Answered => return Some(self.apply(&command)),
            Way::Lost => {
                self.budget.lost -= 1;
                self.apply(&command);
            }
            Way::Late => {
                self.budget.late -= 1;
                self.late.push(Late(command));
            }
        }
        None
    }

    pub(super) fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let lost = (self.budget.lost > 0).then_some(Way::Lost);
        let late = (self.budget.late > 0).then_some(Way::Late);
        [Way::Answered].into_iter().chain(lost).chain(late)
    }

    pub(super) fn late_arrives(&mut self, n: usize) -> Option<()> {
        let Late(command) = self.late.remove(n);
        self.apply(&command);
        Some(())
    }

    /// What the operator may ask for: a split of what holds both partitions, a merge of what holds one each.
    pub(super) fn begin(&mut self) -> Option<()> {
        let left = self.range_of(0).id;
        let right = self.range_of(PARTITIONS - 1).id;
        let kind = match left == right {
            true => OperationKind::Split { range: left, at: PARTITIONS as Partition / 2 },
            false => OperationKind::Merge { left, right },
        };
        let operation = Uuid::from_u128(self.operations);
        self.apply(&Command::BeginReshard(BeginReshard { operation, topic: TOPIC, kind, now: 0 }))?;
        self.operations += 1;
        self.budget.reshards -= 1;
        Some(())
    }

    pub(super) fn running(&self) -> Option<&Operation> {
        self.control.operations.values().find(|operation| !operation.state.is_over())
    }

    /// The operator gives an operation up, at a node, whose stopped primaries read the chain again.
    pub(super) fn abort(&mut self, node: usize) -> Option<()> {
        let operation = self.running()?.clone();
        let (id, why) = (operation.id, String::new());
        let abort = AbortReshard { operation: id, why, sealed: Vec::new(), now: 0 };
        self.apply(&Command::AbortReshard(abort))?;
        self.budget.aborts -= 1;
        for range in operation.kind.ranges() {
            let head = self.nodes[node].head(range).filter(|head| head.phase() == Phase::Between);
            if let Some(loglet) = head.map(|head| head.active().0) {
                self.read_chain(node, loglet);
            }
        }
        Some(())
    }
}
