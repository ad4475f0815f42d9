//! The words of the project as types. Owns identity and arithmetic of the things that count; knows nothing of I/O.
//!
//! One word for one thing: an *address* places an entry in a loglet, an *offset* numbers a record in its partition.

use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// Number of a record in its partition (Kafka's offset).
pub type Offset = i64;
/// Index of a virtual partition in its topic, from 0.
pub type Partition = i32;
/// The partition of entries that concern a whole range (checkpoints, log starts).
pub const WHOLE_RANGE: Partition = -1;

/// Internal topic of consumer groups.
pub const GROUPS_TOPIC: &str = "__groups";
/// Internal topic of transactions.
pub const TRANSACTIONS_TOPIC: &str = "__transactions";
/// Names that only the node gives: its internal topics, and those of Kafka, which tools take for internal ones.
const RESERVED_TOPICS: [&str; 6] = [
    GROUPS_TOPIC,
    TRANSACTIONS_TOPIC,
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
];

/// Whether no client may make a topic of this name, whether the node has made its own or not.
pub fn is_reserved_topic(name: &str) -> bool {
    RESERVED_TOPICS.contains(&name)
}

/// A topic's identity; never reused, also when a name is.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TopicId(pub Uuid);

/// A range's identity, unique in its topic, never reused.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RangeId(pub u32);

/// A loglet's (segment's) identity, unique in the cluster, never reused.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogletId(pub u64);

/// One leaf of a loglet's drive tree: the leaves are numbered in the tree's order from 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeafId {
    /// The loglet that the leaf stores.
    pub loglet: LogletId,
    /// Which leaf of the loglet's tree.
    pub leaf: u16,
}

/// A node's number, as clients see it (`>= 0`).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub i32);

/// Which start of a node: grows by one each time the node starts.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// A disk's identity, written in its superblock; an emptied disk is another disk.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiskId(pub Uuid);

/// Place of an entry in its loglet, from 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Address(pub u64);

/// The one sequencer incarnation that may write a segment: a node in one of its generations.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Primary {
    /// The node.
    pub node: NodeId,
    /// Its start.
    pub generation: Generation,
}

/// A run of whole partitions `[first, last]`, both included.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// First partition.
    pub first: Partition,
    /// Last partition, included.
    pub last: Partition,
}

impl Span {
    /// Whether the span holds `partition`.
    pub fn contains(self, partition: Partition) -> bool {
        self.first <= partition && partition <= self.last
    }

    /// How many partitions the span holds.
    pub fn count(self) -> usize {
        usize::try_from(i64::from(self.last) - i64::from(self.first) + 1).unwrap_or(0)
    }

    /// Place of `partition` in the span, from 0; `None` outside of it.
    pub fn index(self, partition: Partition) -> Option<usize> {
        if !self.contains(partition) {
            return None;
        }
        usize::try_from(i64::from(partition) - i64::from(self.first)).ok()
    }

    /// The partitions of the span in order.
    pub fn iter(self) -> impl Iterator<Item = Partition> {
        self.first..=self.last
    }
}

impl Address {
    /// The address `n` entries further.
    pub fn plus(self, n: u64) -> Address {
        Address(self.0 + n)
    }
}

macro_rules! shown {
    ($($t:ty => $f:literal),* $(,)?) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, $f, self.0) }
        }
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, $f, self.0) }
        }
    )*};
}
shown!(TopicId => "{}", RangeId => "r{}", LogletId => "l{}", NodeId => "n{}", Generation => "g{}", DiskId => "{}", Address => "{}");

impl fmt::Display for LeafId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.loglet, self.leaf)
    }
}
impl fmt::Debug for LeafId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
