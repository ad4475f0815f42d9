//! Commands of the control state: what may be asked, what is answered, and why it may be refused.
//!
//! Time and ids come inside a command, so that applying it is deterministic. Commands are numbered by their place in
//! [`Command`]; a number is never reused: the enum only grows at its end.

use super::state::{DiskStarts, OperationId, OperationKind, OperationState};
use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::types::{Address, DiskId, Generation, LogletId, NodeId, Partition, Primary, RangeId, TopicId};
use crate::virtual_log::chain::SealMode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most partitions that a topic may have.
pub const PARTITIONS_MAX: i32 = 1_000_000;
/// Most ranges that one command may create.
pub const NEW_RANGES_MAX: u32 = 10_000;
/// Longest topic name, in bytes.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Most explicit configs of a topic, and of a node.
pub const CONFIGS_MAX: usize = 256;
/// Longest value of a config, in bytes.
pub const CONFIG_BYTES_MAX: usize = 32 * 1024;
/// Most rules of who may do what.
pub const ACLS_MAX: usize = 10_000;
/// Longest name, principal or host of such a rule, in bytes.
pub const ACL_BYTES_MAX: usize = 1024;
/// Largest block of producer ids that one command may take.
pub const PRODUCER_IDS_MAX: u32 = 1_000_000;

/// A change of the control state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Makes a topic. Answer: [`Reply::Created`].
    CreateTopic(CreateTopic),
    /// Drops a topic with its ranges; its segments become tombstones, its name keeps its highest epoch.
    DeleteTopic {
        /// The topic.
        topic: TopicId,
        /// Broker ms.
        now: i64,
    },
    /// Appends partitions in new ranges. Answer: [`Reply::Created`] with the new ranges.
    CreatePartitions(CreatePartitions),
    /// Changes a topic's explicit configs.
    AlterConfigs(AlterConfigs),
    /// Seals a range's open segment, if there is one, and opens the next. Answer: [`Reply::Extended`].
    Extend(Extend),
    /// Drops the oldest segments of a range; they become tombstones. A closed range goes with its last one and leaves a
    /// stone; one that has none is named without segments.
    DropSegments(DropSegments),
    /// A node has deleted everything it held of these loglets. Unknown loglets are fine: asked twice.
    AckTombstones {
        /// The node.
        node: NodeId,
        /// The loglets.
        loglets: Vec<LogletId>,
    },
    /// Registers a start of a node: its generation grows by one. Answer: [`Reply::Started`].
    StartNode {
        /// The node.
        node: NodeId,
        /// Its disks.
        disks: Vec<DiskId>,
        /// Of those that it starts on, their generations, durable there.
        begun: DiskStarts,
        /// Broker ms.
        now: i64,
    },
    /// Takes a block of producer ids that nobody else gets. Answer: [`Reply::ProducerIds`].
    AllocateProducerIds {
        /// How many, `1..=PRODUCER_IDS_MAX`.
        count: u32,
    },
    /// Seals and extends all ranges of a node that started again, in one commit (R14). Answer: [`Reply::Restarted`].
    Restart(Restart),
    /// Records the intent of a split or merge: its ranges take no new segment from here on. Asked again with the same
    /// id it changes nothing. Answer: [`Reply::Operation`].
    BeginReshard(BeginReshard),
    /// Closes the ranges of an operation at their tails and creates their children, all at once. Asked again once it
    /// was done it changes nothing. Answer: [`Reply::Operation`].
    Reshard(Reshard),
    /// Gives a running operation up; its ranges are active again and writable. Answer: [`Reply::Operation`].
    AbortReshard(AbortReshard),
    /// Changes settings of nodes that are looked at while they run.
    AlterNodeConfigs(AlterNodeConfigs),
    /// Takes a loglet that will hold sealed segments of a range anew: a tombstone until it replaces them, so that what is
    /// never finished is deleted. Answer: [`Reply::Prepared`].
    PrepareReplacement(PrepareReplacement),
    /// Puts one compacted segment in the place of neighbouring sealed ones, which become tombstones.
    Replace(Replace),
    /// Adds and takes away rules of who may do what.
    AlterAcls(AlterAcls),
}

/// A rule of who may do what: an access control list is a set of them. What the numbers mean is Kafka's protocol (KIP-11, KIP-290); whoever
/// asks has checked them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acl {
    /// Type of the resources: topic 2, group 3, cluster 4, transactional id 5, delegation token 6, user 7.
    pub resource: i8,
    /// How the name is meant: literally 3 (`*`: every name), as the beginning of names 4.
    pub pattern: i8,
    /// Name of the resources.
    pub name: String,
    /// Who, such as `User:alice`; `User:*`: everybody.
    pub principal: String,
    /// From where; `*`: from anywhere.
    pub host: String,
    /// What: all 2, read 3, write 4, and so on.
    pub operation: i8,
    /// Denied 2, allowed 3.
    pub permission: i8,
}

/// See [`Command::AlterAcls`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterAcls {
    /// Rules to add; those that are there already are left as they are.
    pub add: Vec<Acl>,
    /// Rules to take away; those that are not there are no fault.
    pub remove: Vec<Acl>,
}

/// See [`Command::PrepareReplacement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareReplacement {
    /// The topic.
    pub topic: TopicId,
    /// The range.
    pub range: RangeId,
    /// Where the loglet is written: its drive tree, placed.
    pub drive: DriveSpec,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::Replace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replace {
    /// The topic.
    pub topic: TopicId,
    /// The range; not fencing.
    pub range: RangeId,
    /// The range's version, read when it was seen that the segments are still those that were read (R1).
    pub version: u64,
    /// Neighbours in the range's chain, oldest first, all sealed, none of which lacks copies. Whoever asks knows that no
    /// fold needs them (R12).
    pub old: Vec<LogletId>,
    /// The loglet that holds what stays of them, sealed; prepared, and not deleted since.
    pub with: LogletId,
    /// Its addresses that have fewer copies than they should.
    pub degraded: Option<(Address, Address)>,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::AlterNodeConfigs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterNodeConfigs {
    /// The node; `None`: all nodes, where they have no value of their own.
    pub node: Option<NodeId>,
    /// Values to set (`Some`), already validated, or to give up (`None`); others stay.
    pub changes: BTreeMap<String, Option<String>>,
}

/// See [`Command::BeginReshard`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginReshard {
    /// New, random.
    pub operation: OperationId,
    /// The topic.
    pub topic: TopicId,
    /// What is to be done.
    pub kind: OperationKind,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::Reshard`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshard {
    /// The operation; running, or done already.
    pub operation: OperationId,
    /// The ends of its ranges, in order of partitions.
    pub parents: Vec<ParentEnd>,
    /// First segments of the children, in order of partitions.
    pub next: Vec<NewSegment>,
    /// Broker ms.
    pub now: i64,
}

/// How a range of an operation ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentEnd {
    /// The range; must be fencing.
    pub range: RangeId,
    /// The range's version, read after the intent and before the first fence or the drain decision (R1).
    pub version: u64,
    /// End of its open segment; `None` only for a range that never had one.
    pub ended: Option<Ended>,
}

/// See [`Command::AbortReshard`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortReshard {
    /// The operation.
    pub operation: OperationId,
    /// Why, for the operator.
    pub why: String,
    /// Ranges of it whose open segment was fenced already, each with the segment that follows: an abort leaves every
    /// range writable (R3).
    pub sealed: Vec<(ParentEnd, NewSegment)>,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::CreateTopic`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateTopic {
    /// New, random.
    pub id: TopicId,
    /// `[a-zA-Z0-9._-]{1,249}`, not `.` or `..`, unlike any present name up to `.` against `_`.
    pub name: String,
    /// How many partitions, `1..=PARTITIONS_MAX`.
    pub partitions: i32,
    /// Into how many ranges they are cut, `1..=min(partitions, NEW_RANGES_MAX)`.
    pub ranges: u32,
    /// Replication factor as asked for, echoed to clients.
    pub replication_factor: i16,
    /// The drive expression, where the topic has one of its own.
    pub drive: Option<DriveExpr>,
    /// Explicit configs, already validated.
    pub configs: BTreeMap<String, String>,
    /// Made by the system, hidden from clients.
    pub internal: bool,
    /// First segments, one per range in order; or none, and [`Command::Extend`] opens them.
    pub segments: Vec<NewSegment>,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::CreatePartitions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatePartitions {
    /// The topic.
    pub topic: TopicId,
    /// How many partitions it shall have in all; more than it has.
    pub total: i32,
    /// Into how many new ranges the new partitions are cut.
    pub ranges: u32,
    /// First segments, one per new range in order; or none.
    pub segments: Vec<NewSegment>,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::AlterConfigs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterConfigs {
    /// The topic.
    pub topic: TopicId,
    /// The topic's version that the change was computed from (appends, full replacements); `None`: whatever it is.
    pub version: Option<u64>,
    /// Values to set (`Some`) or to give up (`None`); others stay.
    pub changes: BTreeMap<String, Option<String>>,
    /// The drive expression that new segments get.
    pub drive: DriveChange,
}

/// What becomes of a topic's own drive expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriveChange {
    /// Stays.
    Keep,
    /// The node's default again.
    Clear,
    /// This one.
    Set(DriveExpr),
}

/// A segment to open; its loglet id, base and epochs are found when the command is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSegment {
    /// Its drive tree, placed.
    pub drive: DriveSpec,
    /// Window in slots, at least 1.
    pub window: u32,
    /// How it is sealed.
    pub seal_mode: SealMode,
    /// The one incarnation that may write it.
    pub primary: Primary,
}

/// The end of a segment, as its fence (or complete drain) gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    /// The segment that ends; must be the open one.
    pub loglet: LogletId,
    /// Its length.
    pub tail: Address,
    /// See [`crate::virtual_log::chain::ChainEntry`].
    pub degraded: Option<(Address, Address)>,
    /// See [`crate::virtual_log::chain::ChainEntry`].
    pub lost: Vec<(Address, Address)>,
}

impl Ended {
    /// An end without degraded or lost addresses.
    pub fn at(loglet: LogletId, tail: Address) -> Ended {
        Ended { loglet, tail, degraded: None, lost: Vec::new() }
    }
}

/// See [`Command::Extend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// The topic.
    pub topic: TopicId,
    /// The range; must be active.
    pub range: RangeId,
    /// The range's version, read before the first fence (roll: before the drain decision) (R1).
    pub version: u64,
    /// End of the open segment; `None` only for a range that never had one.
    pub ended: Option<Ended>,
    /// What follows.
    pub next: NewSegment,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::DropSegments`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropSegments {
    /// The topic.
    pub topic: TopicId,
    /// The range.
    pub range: RangeId,
    /// The range's version, read before it was decided what may go.
    pub version: u64,
    /// The oldest segments of the chain in order, all sealed. Whoever asks knows that every partition passed them and
    /// that everyone who folds through them has a committed checkpoint (R12).
    pub loglets: Vec<LogletId>,
    /// Broker ms.
    pub now: i64,
}

/// See [`Command::Restart`]. Applied whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The node in its present generation; the primary of every new segment.
    pub primary: Primary,
    /// One row per range whose open segment an earlier generation of the node wrote.
    pub ranges: Vec<RestartRange>,
    /// Broker ms.
    pub now: i64,
}

/// One range of a [`Restart`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRange {
    /// The topic.
    pub topic: TopicId,
    /// The range.
    pub range: RangeId,
    /// The range's version, read before the fence.
    pub version: u64,
    /// End of its open segment.
    pub ended: Ended,
    /// Drive tree of the next one, placed.
    pub drive: DriveSpec,
    /// Its window in slots.
    pub window: u32,
    /// How it is sealed.
    pub seal_mode: SealMode,
}

/// Answer of a command that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done; nothing to tell.
    Done,
    /// The topic's new ranges in partition order, each with its first segment, if one was given.
    Created(Vec<(RangeId, Option<LogletId>)>),
    /// The segment that was opened.
    Extended(Extended),
    /// The node's generation from here on.
    Started {
        /// The generation.
        generation: Generation,
    },
    /// The block `[first, first + count)`.
    ProducerIds {
        /// First id of the block.
        first: i64,
        /// How many.
        count: u32,
    },
    /// The segments that were opened, in the order of the command's ranges.
    Restarted(Vec<Extended>),
    /// How far the operation is.
    Operation {
        /// Its state; the ranges it made are in it.
        state: OperationState,
    },
    /// The loglet that was taken.
    Prepared(LogletId),
}

/// A segment that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// Its id.
    pub loglet: LogletId,
    /// Virtual address of its address 0.
    pub base: u64,
    /// The range's version with it.
    pub version: u64,
}

/// Why a command was refused; the state is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Too many rules of who may do what, until some are taken away.
    #[error("{got} access rules; {max} at most")]
    Acls {
        /// How many there would be.
        got: usize,
        /// Most.
        max: usize,
    },
    /// A name, principal or host of a rule is too long, for good.
    #[error("an access rule names something of {got} bytes; {max} at most")]
    AclBytes {
        /// Its length.
        got: usize,
        /// Most.
        max: usize,
    },
    /// A topic of that name is there, until it is deleted.
    #[error("topic '{name}' already exists with id {id}")]
    TopicExists {
        /// The name.
        name: String,
        /// The id it has.
        id: TopicId,
    },
    /// A topic is there whose name differs only in `.` against `_`, until it is deleted.
    #[error("Topic '{name}' collides with existing topic: {existing}")]
    NameCollides {
        /// The name asked for.
        name: String,
        /// The name that is there.
        existing: String,
    },
    /// Not a topic name, for good.
    #[error("{0}")]
    InvalidName(String),
    /// The topic id is taken.
    #[error("topic id {0} is taken")]
    TopicIdTaken(TopicId),
    /// No such topic.
    #[error("there is no topic {0}")]
    UnknownTopic(TopicId),
    /// No such range.
    #[error("topic {topic} has no range {range}")]
    UnknownRange {
        /// The topic.
        topic: TopicId,
        /// The range.
        range: RangeId,
    },
    /// Number of partitions out of bounds, for good.
    #[error("{got} partitions asked for; possible are {min} to {max}")]
    Partitions {
        /// Asked for.
        got: i32,
        /// Fewest.
        min: i32,
        /// Most.
        max: i32,
    },
    /// Number of ranges out of bounds, for good.
    #[error("{got} ranges asked for; possible are 1 to {max}")]
    Ranges {
        /// Asked for.
        got: u32,
        /// Most.
        max: u32,
    },
    /// First segments must be given for all new ranges or for none.
    #[error("{got} first segments for {ranges} ranges; give one for each, or none")]
    Segments {
        /// Given.
        got: usize,
        /// Wanted.
        ranges: u32,
    },
    /// The version named is not the present one: read again and decide anew.
    #[error("version {named} is named, {present} is present: read again")]
    Stale {
        /// The version named.
        named: u64,
        /// The version that is.
        present: u64,
    },
    /// The range takes no new segment in this state.
    #[error("range {} is {state}", range.0)]
    NotActive {
        /// The range.
        range: RangeId,
        /// Its state.
        state: RangeState,
    },
    /// The segment named as ended is not the open one.
    #[error("range {range}: ended segment {named:?} is named, open is {open:?}")]
    NotTheOpenSegment {
        /// The range.
        range: RangeId,
        /// The segment named.
        named: Option<LogletId>,
        /// The open one.
        open: Option<LogletId>,
    },
    /// The segments to drop are not the oldest ones, or not all sealed.
    #[error("range {range}: only its oldest sealed segments can be dropped, in order")]
    NotAPrefix {
        /// The range.
        range: RangeId,
    },
    /// The primary is not the present generation of a registered node.
    #[error("{node} in generation {named} is not running; present generation: {present:?}")]
    DeadPrimary {
        /// The node.
        node: NodeId,
        /// The generation named.
        named: Generation,
        /// The generation that is, if the node is known.
        present: Option<Generation>,
    },
    /// The open segment's primary is another node, or this very generation: a restart does not seal it.
    #[error("range {range}: its open segment is not one of an earlier generation of {node}")]
    NotMine {
        /// The range.
        range: RangeId,
        /// The node.
        node: NodeId,
    },
    /// The range cannot be split there, for good.
    #[error("range {} holds partitions {first} to {last}; it can be split at {} to {last}, {at} was given", range.0, first.saturating_add(1))]
    SplitPoint {
        /// The range.
        range: RangeId,
        /// Its first partition.
        first: Partition,
        /// Its last partition.
        last: Partition,
        /// First partition of the right part, as asked for.
        at: Partition,
    },
    /// The range holds one partition and is never cut, for good.
    #[error("range {} holds partition {partition} only; a range is split between partitions", range.0)]
    SinglePartition {
        /// The range.
        range: RangeId,
        /// Its partition.
        partition: Partition,
    },
    /// The ranges do not follow each other, for good.
    #[error("range {} does not begin where range {} ends: only neighbours merge", right.0, left.0)]
    NotNeighbours {
        /// The left one.
        left: RangeId,
        /// The right one.
        right: RangeId,
    },
    /// No such operation: never begun, or so long done that it was forgotten.
    #[error("there is no operation {0}")]
    UnknownOperation(OperationId),
    /// The operation is over, for good.
    #[error("operation {operation} is {state}")]
    OperationOver {
        /// The operation.
        operation: OperationId,
        /// How it ended.
        state: String,
    },
    /// The ranges named are not those of the operation, for good.
    #[error("operation {0} is of other ranges")]
    OtherRanges(OperationId),
    /// A number in the command is out of its bounds, for good.
    #[error("{what}: {got} given, {min} to {max} possible")]
    OutOfBounds {
        /// What it counts.
        what: String,
        /// Given.
        got: u64,
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A counter is used up (ids, addresses, epochs), for good.
    #[error("no more {0} left")]
    Exhausted(String),
    /// A range's last segment is kept, and an empty range too, while a parent of it is there: what is left of the parents
    /// is reached through it.
    #[error("range {range}: its parents are still there and are reached through it")]
    ParentsRemain {
        /// The range.
        range: RangeId,
    },
    /// The segments to replace are not neighbours in the chain, not sealed, or lack copies.
    #[error("range {range}: only neighbouring sealed segments that lack nothing are replaced")]
    NotReplaceable {
        /// The range.
        range: RangeId,
    },
    /// The loglet was not prepared for that range, or was deleted since; for good.
    #[error("{0} was not prepared as a replacement, or was given up")]
    NotPrepared(LogletId),
}

/// What the one refused can do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Read the state again, decide anew.
    Reread,
    /// Nothing: the same command is refused for as long as the state stands as it does.
    No,
}

impl Refusal {
    /// What the one refused can do.
    pub fn retry(&self) -> Retry {
        match self {
            Refusal::Stale { .. }
            | Refusal::NotActive { .. }
            | Refusal::NotTheOpenSegment { .. }
            | Refusal::NotAPrefix { .. }
            | Refusal::ParentsRemain { .. }
            | Refusal::NotReplaceable { .. }
            | Refusal::NotMine { .. } => Retry::Reread,
            Refusal::TopicExists { .. }
            | Refusal::NameCollides { .. }
            | Refusal::InvalidName(_)
            | Refusal::TopicIdTaken(_)
            | Refusal::UnknownTopic(_)
            | Refusal::UnknownRange { .. }
            | Refusal::Partitions { .. }
            | Refusal::Ranges { .. }
            | Refusal::Segments { .. }
            | Refusal::DeadPrimary { .. }
            | Refusal::SplitPoint { .. }
            | Refusal::SinglePartition { .. }
            | Refusal::NotNeighbours { .. }
            | Refusal::UnknownOperation(_)
            | Refusal::OperationOver { .. }
            | Refusal::OtherRanges(_)
            | Refusal::OutOfBounds { .. }
            | Refusal::NotPrepared(_)
            | Refusal::Acls { .. }
            | Refusal::AclBytes { .. }
            | Refusal::Exhausted(_) => Retry::No,
        }
    }
}

/// State of a range.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeState {
    /// Takes appends.
    Active,
    /// A split or merge of it is intended: no new segment.
    Fencing,
    /// Takes no more appends, for ever; readable while it has segments.
    Closed,
}

impl std::fmt::Display for RangeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RangeState::Active => "active",
            RangeState::Fencing => "fencing",
            RangeState::Closed => "closed",
        })
    }
}

/// Whether `name` can be a topic's.
///
/// Errors: `InvalidName` with what would be right.
pub fn check_topic_name(name: &str) -> Result<(), Refusal> {
    let why = if name.is_empty() {
        "Topic name is invalid: the empty string is not allowed".to_owned()
    } else if name == "." || name == ".." {
        "Topic name is invalid: '.' or '..' is not allowed".to_owned()
    } else if name.len() > TOPIC_NAME_BYTES_MAX {
        let shown: String = name.chars().take(TOPIC_NAME_BYTES_MAX).collect();
        format!("Topic name is invalid: its length {} is above {TOPIC_NAME_BYTES_MAX}: '{shown}'", name.len())
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        format!(
            "Topic name is invalid: '{name}' contains characters other than ASCII letters, digits, '.', '_' and '-'"
        )
    } else {
        return Ok(());
    };
    Err(Refusal::InvalidName(why))
}

/// Cuts `partitions` consecutive partitions from `first` on into `ranges` spans whose lengths differ by one at most.
/// `ranges` is clamped to `1..=partitions`; nothing for no partitions.
pub fn cut(first: Partition, partitions: i32, ranges: u32) -> Vec<crate::types::Span> {
    if partitions <= 0 {
        return Vec::new();
    }
    let count = i64::from(partitions);
    let ranges = i64::from(ranges).clamp(1, count);
    let edge = |i: i64| i64::from(first) + i * count / ranges;
    let partition = |p: i64| Partition::try_from(p).unwrap_or(Partition::MAX);
    (0..ranges)
        .map(|i| crate::types::Span { first: partition(edge(i)), last: partition(edge(i + 1) - 1) })
        .collect()
}
