//! The control state: topics, ranges, chains, epochs, nodes, tombstones. Pure data with its queries and invariants;
//! `apply` changes it, a [`Store`](super::Store) keeps it. Holds no record and no index of records.
//!
//! Cloning is cheap: topics and ranges are shared until they change.

pub use super::command::{Acl, RangeState};
use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::types::{DiskId, Generation, LogletId, NodeId, Partition, RangeId, Span, TopicId};
use crate::virtual_log::chain::ChainEntry;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Numbers that only grow.
    pub counters: Counters,
    /// Topics by id.
    pub topics: BTreeMap<TopicId, Arc<Topic>>,
    /// Topic ids by folded name (`.` read as `_`); names that fold alike cannot stand side by side.
    pub(super) names: Arc<BTreeMap<String, TopicId>>,
    /// Highest leader epoch of a deleted topic, by name: a topic created again starts above.
    pub name_tombstones: Arc<BTreeMap<String, i32>>,
    /// Segments out of every chain whose data may be deleted.
    pub tombstones: Arc<BTreeMap<LogletId, Tombstone>>,
    /// Nodes that ever started.
    pub nodes: Arc<BTreeMap<NodeId, Node>>,
    /// By node, of each of its disks: in which generation of that disk the node last started on it.
    pub disk_starts: Arc<BTreeMap<NodeId, DiskStarts>>,
    /// Operations under way or done.
    pub operations: Arc<BTreeMap<OperationId, Operation>>,
    /// Settings that were changed while nodes ran, by Kafka's names: of one node, or (`None`) of all. Nothing is empty.
    pub node_configs: Arc<BTreeMap<Option<NodeId>, BTreeMap<String, String>>>,
    /// Rules of who may do what.
    pub acls: Arc<BTreeSet<Acl>>,
}

/// Numbers that only grow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Commands applied: the state's version.
    pub version: u64,
    /// The next loglet's id.
    pub next_loglet: u64,
    /// The next free producer id.
    pub next_producer_id: i64,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// How many partitions.
    pub partitions: i32,
    /// Explicit configs.
    pub configs: BTreeMap<String, String>,
    /// Its own drive expression, for segments opened from here on.
    pub drive: Option<DriveExpr>,
    /// Replication factor as asked for.
    pub replication_factor: i16,
    /// Made by the system, hidden from clients.
    pub internal: bool,
    /// Broker ms.
    pub created_at: i64,
    /// Grows with every command on the topic itself (not on its ranges).
    pub version: u64,
    /// The next range's id.
    pub next_range: u32,
    /// Leader epoch that new partitions start with: above whatever an earlier topic of the name had.
    pub first_epoch: i32,
    /// Ranges whose last segment is gone.
    pub stones: Vec<Stone>,
    /// Its ranges.
    #[serde(skip)]
    pub ranges: BTreeMap<RangeId, Arc<Range>>,
    /// Active and fencing ranges by their first partition.
    #[serde(skip)]
    pub(super) layout: BTreeMap<Partition, RangeId>,
}

/// A range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Its identity in the topic.
    pub id: RangeId,
    /// Its partitions.
    pub span: Span,
    /// Whether it takes appends.
    pub state: RangeState,
    /// Grows with every command on it (R1).
    pub version: u64,
    /// Ranges it came from.
    pub parents: Vec<RangeId>,
    /// Ranges it went into.
    pub children: Vec<RangeId>,
    /// Its segments, oldest first; at most the last one is open.
    pub chain: Vec<ChainEntry>,
    /// Leader epochs of its partitions, runs in order (R13).
    pub epochs: Vec<EpochRun>,
}

/// Partitions `[first, last]` with one leader epoch.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRun {
    /// First partition.
    pub first: Partition,
    /// Last partition, included.
    pub last: Partition,
    /// Their leader epoch.
    pub epoch: i32,
}

/// What is left of a range once its segments are gone (R16).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stone {
    /// The range.
    pub range: RangeId,
    /// Its partitions.
    pub span: Span,
    /// Its end, a virtual address.
    pub end: u64,
    /// Where its partitions went.
    pub children: Vec<RangeId>,
}

/// A segment whose data may be deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The topic it was of.
    pub topic: TopicId,
    /// The range it was of.
    pub range: RangeId,
    /// Where it is stored.
    pub drive: DriveSpec,
    /// Nodes that have not yet deleted it; never empty.
    pub pending: BTreeSet<NodeId>,
    /// When it was dropped, broker ms.
    pub at: i64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its present start.
    pub generation: Generation,
    /// Its disks at that start.
    pub disks: Vec<DiskId>,
    /// When it started, broker ms.
    pub started_at: i64,
}

/// Generations of disks, as their superblocks had them at the last start on each: one that has a lower one is an older copy.
pub type DiskStarts = BTreeMap<DiskId, Generation>;

/// Identity of an operation.
pub type OperationId = Uuid;

/// A long change that anyone can carry on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its identity.
    pub id: OperationId,
    /// The topic it changes.
    pub topic: TopicId,
    /// What it does.
    pub kind: OperationKind,
    /// How far it is.
    pub state: OperationState,
    /// When it was recorded, broker ms.
    pub started_at: i64,
    /// When it ended, broker ms; the start's time while it runs.
    pub ended_at: i64,
}

/// What an operation does.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// Splits a range; `at` is the right child's first partition.
    Split {
        /// The range.
        range: RangeId,
        /// First partition of the right child.
        at: Partition,
    },
    /// Merges two neighbours.
    Merge {
        /// The left one.
        left: RangeId,
        /// The right one.
        right: RangeId,
    },
}

impl OperationKind {
    /// The ranges that it closes, in order of partitions.
    pub fn ranges(&self) -> SmallVec<[RangeId; 2]> {
        match self {
            OperationKind::Split { range, .. } => SmallVec::from_slice(&[*range]),
            OperationKind::Merge { left, right } => SmallVec::from_slice(&[*left, *right]),
        }
    }
}

impl std::fmt::Display for OperationKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OperationKind::Split { range, at } => write!(f, "split of range {} at {at}", range.0),
            OperationKind::Merge { left, right } => write!(f, "merge of ranges {} and {}", left.0, right.0),
        }
    }
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationState {
    /// Recorded; anyone may finish it.
    Running,
    /// Done: these ranges were made.
    Done {
        /// The ranges made.
        created: Vec<RangeId>,
    },
    /// Given up, for this reason.
    Aborted {
        /// Why.
        why: String,
    },
}

impl OperationState {
    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        !matches!(self, OperationState::Running)
    }
}

impl std::fmt::Display for OperationState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OperationState::Running => "running",
            OperationState::Done { .. } => "done",
            OperationState::Aborted { .. } => "aborted",
        })
    }
}

impl Range {
    /// The open segment.
    pub fn open(&self) -> Option<&ChainEntry> {
        self.chain.last().filter(|entry| entry.tail.is_none())
    }

    /// The incarnation that leads the range: its newest segment's primary.
    pub fn primary(&self) -> Option<crate::types::Primary> {
        self.chain.last().map(|entry| entry.primary)
    }

    /// Leader epoch of a partition of the range.
    pub fn epoch_of(&self, partition: Partition) -> Option<i32> {
        self.epochs.iter().find(|run| run.first <= partition && partition <= run.last).map(|run| run.epoch)
    }

    /// Virtual address after the last sealed segment; where the next one begins.
    pub fn sealed_end(&self) -> u64 {
        self.chain.last().map_or(0, |entry| entry.base.saturating_add(entry.tail.map_or(0, |tail| tail.0)))
    }
}

impl Topic {
    /// The range that takes a partition's appends.
    pub fn range_of(&self, partition: Partition) -> Option<&Arc<Range>> {
        let (_, id) = self.layout.range(..=partition).next_back()?;
        self.ranges.get(id).filter(|range| range.span.contains(partition))
    }

    /// Active and fencing ranges in partition order.
    pub fn live_ranges(&self) -> impl Iterator<Item = &Arc<Range>> {
        self.layout.values().filter_map(|id| self.ranges.get(id))
    }

    /// Highest leader epoch of any partition.
    pub fn highest_epoch(&self) -> i32 {
        let runs = self.ranges.values().flat_map(|range| &range.epochs);
        runs.map(|run| run.epoch).fold(self.first_epoch, i32::max)
    }
}

impl State {
    /// The topic of a name.
    pub fn topic_named(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topic_like(name).filter(|topic| topic.name == name)
    }

    /// The topic whose name is this one, or differs from it in `.` against `_` only.
    pub fn topic_like(&self, name: &str) -> Option<&Arc<Topic>> {
        self.names.get(&folded(name)).and_then(|id| self.topics.get(id))
    }

    /// The range, if both are there.
    pub fn range(&self, topic: TopicId, range: RangeId) -> Option<&Arc<Range>> {
        self.topics.get(&topic)?.ranges.get(&range)
    }

    /// What a node has still to delete.
    pub fn tombstones_of(&self, node: NodeId) -> impl Iterator<Item = (LogletId, &Tombstone)> {
        self.tombstones.iter().filter(move |(_, t)| t.pending.contains(&node)).map(|(id, t)| (*id, t))
    }
}

/// A name with `.` read as `_`.
pub(super) fn folded(name: &str) -> String {
    name.replace('.', "_")
}

/// Nodes that hold a leaf of the drive tree.
pub fn nodes_of(drive: &DriveSpec) -> BTreeSet<NodeId> {
    fn walk(drive: &DriveSpec, nodes: &mut BTreeSet<NodeId>) {
        match drive {
            DriveSpec::Memory { node } | DriveSpec::Disk { node, .. } => {
                nodes.insert(*node);
            }
            DriveSpec::Quorum { children, .. } | DriveSpec::Striped { children } => {
                children.iter().for_each(|child| walk(child, nodes));
            }
        }
    }
    let mut nodes = BTreeSet::new();
    walk(drive, &mut nodes);
    nodes
}
