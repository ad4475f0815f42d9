//! Errors of the door: what is true now, what would change it, and what a caller may do about it.

use crate::types::{NodeId, Offset, Partition};

/// Whether asking again helps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same call later.
    After,
    /// The same call at another node.
    Elsewhere,
    /// No.
    No,
}

/// Why a batch was not appended. Nothing of it is stored, except with `TimedOut`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No such topic or partition; until it is created.
    #[error("unknown topic or partition")]
    UnknownPartition,
    /// Another node leads the partition; ask there.
    #[error("not the leader of this partition")]
    NotLeader {
        /// Who leads, when known.
        leader: Option<NodeId>,
    },
    /// Sequence neither the next nor one of the last five; for good.
    #[error("out of order sequence: got {got}, expected {expected}")]
    OutOfOrderSequence {
        /// First sequence of the batch.
        got: i32,
        /// The next one in order.
        expected: i32,
    },
    /// The producer's epoch is older than one that has written; for good.
    #[error("producer epoch {got} is fenced by epoch {current}")]
    ProducerFenced {
        /// Epoch of the batch.
        got: i16,
        /// Newest epoch that has written.
        current: i16,
    },
    /// A batch outside of any transaction, of a producer whose transaction is open; until that has ended.
    #[error("a batch outside of the producer's transaction, which is open since offset {first_offset}")]
    TransactionOpen {
        /// First offset of the transaction.
        first_offset: Offset,
    },
    /// A marker of a coordinator that another one has replaced; for good.
    #[error("coordinator epoch {got} is fenced by epoch {current}")]
    CoordinatorFenced {
        /// Epoch of the marker.
        got: i32,
        /// Newest epoch of a coordinator that wrote one.
        current: i32,
    },
    /// The batch's own numbers are impossible; for good.
    #[error("{0}")]
    Invalid(String),
    /// Disk full, disk dead or drive below its write quorum; until an operator acts or space is freed.
    #[error("storage: {0}")]
    Storage(String),
    /// Not known to be durable within the time given; it may be stored.
    #[error("not durable within the time given; it may be stored")]
    TimedOut,
    /// The node is stopping; ask another, or again later.
    #[error("the node is stopping")]
    Stopping,
}

impl AppendError {
    /// Whether asking again helps.
    pub fn retry(&self) -> Retry {
        match self {
            AppendError::UnknownPartition | AppendError::Storage(_) | AppendError::TimedOut => Retry::After,
            AppendError::NotLeader { .. } | AppendError::Stopping => Retry::Elsewhere,
            AppendError::OutOfOrderSequence { .. }
            | AppendError::ProducerFenced { .. }
            | AppendError::TransactionOpen { .. }
            | AppendError::CoordinatorFenced { .. }
            | AppendError::Invalid(_) => Retry::No,
        }
    }
}

/// Why a partition cannot be read at a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// No such topic or partition; until it is created.
    #[error("unknown topic or partition")]
    UnknownPartition,
    /// Another node leads the partition; ask there.
    #[error("not the leader of this partition")]
    NotLeader {
        /// Who leads, when known.
        leader: Option<NodeId>,
    },
    /// Below the log start or above the end.
    #[error("offset {got} out of range: log start {log_start}, end {end}")]
    OutOfRange {
        /// Asked for.
        got: Offset,
        /// First readable offset.
        log_start: Offset,
        /// One above the last readable offset.
        end: Offset,
    },
    /// Damaged or unreadable storage; until repaired.
    #[error("storage: {0}")]
    Storage(String),
}

/// Why a topic command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The name is taken.
    #[error("topic '{0}' already exists")]
    Exists(String),
    /// The name is one that the node keeps for itself; for good.
    #[error(
        "Creation of internal topic {0} is prohibited: the name is the node's, which makes what it needs itself"
    )]
    Reserved(String),
    /// No such topic.
    #[error("no such topic")]
    Unknown,
    /// Partition count out of bounds or not above the present one.
    #[error("{0}")]
    InvalidPartitions(String),
    /// The name breaks the rules.
    #[error("{0}")]
    InvalidName(String),
    /// A config is unknown or has a bad value.
    #[error("{0}")]
    InvalidConfig(String),
    /// The drive expression cannot be placed on this node.
    #[error("{0}")]
    InvalidDrive(String),
    /// Too few disks live to hold what would be written, or that of the control state takes nothing; until that changes.
    #[error("{0}")]
    NoDisk(String),
    /// More copies asked for than there are nodes.
    #[error("{0}")]
    InvalidReplication(String),
    /// The control plane could not record it; try again.
    #[error("control plane: {0}")]
    Control(String),
}

/// Why a split or merge was refused; nothing of it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReshardError {
    /// No such topic.
    #[error("no such topic")]
    UnknownTopic,
    /// No such range in the topic, or none any more.
    #[error("the topic has no range {0}")]
    UnknownRange(u32),
    /// No such operation: never begun, or over for so long that it was forgotten.
    #[error("there is no operation {0}")]
    UnknownOperation(String),
    /// Not possible with these ranges, for good: one partition only, not neighbours, a point outside.
    #[error("{0}")]
    Impossible(String),
    /// Not possible now: another operation of the range runs, or no disk takes its segments.
    #[error("{0}")]
    Busy(String),
    /// The control plane could not record it; try again.
    #[error("control plane: {0}")]
    Control(String),
    /// The node is stopping; ask another, or again later.
    #[error("the node is stopping")]
    Stopping,
}

impl ReshardError {
    /// Whether asking again helps.
    pub fn retry(&self) -> Retry {
        match self {
            ReshardError::Busy(_) | ReshardError::Control(_) => Retry::After,
            ReshardError::Stopping => Retry::Elsewhere,
            ReshardError::UnknownTopic
            | ReshardError::UnknownRange(_)
            | ReshardError::UnknownOperation(_)
            | ReshardError::Impossible(_) => Retry::No,
        }
    }
}

/// A partition of a topic, named in messages.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: crate::types::TopicId,
    /// The partition.
    pub partition: Partition,
}
