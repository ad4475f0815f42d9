//! What handlers ask a coordinator and what it answers, in words without wire types.

use super::consumer::{Beat, BeatRefused, Beaten, Change, ConfigError, DescribedConsumers};
use super::pending::{Ended, PendingCommit};
use super::record::{Blob, Key, MemberInfo, Position};
use super::view::{Look, Seen};
use crate::coordinators::NoCoordinator;
use rangeway_core::api::Catalog;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An event for one partition's coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// What is asked.
    pub(crate) ask: Ask,
    /// The topics there are.
    pub(crate) catalog: Arc<Catalog>,
}

/// What may be asked.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Join or rejoin; answered when the generation is formed.
    Join(Join),
    /// Hand in or fetch the assignment; answered when it is known.
    Sync(Sync),
    /// A sign of life.
    Heartbeat(Caller),
    /// Members leave.
    Leave {
        /// The group.
        group: String,
        /// Who.
        members: Vec<Leaver>,
    },
    /// Commit offsets.
    Commit(Commit),
    /// Read offsets: of these partitions, or all.
    Offsets {
        /// The group.
        group: String,
        /// `None`: all that are committed.
        keys: Option<Vec<Key>>,
        /// A member that names itself, and its epoch.
        reader: Option<(String, i32)>,
    },
    /// Delete offsets of partitions, with the topic's name for the look into subscriptions.
    DeleteOffsets {
        /// The group.
        group: String,
        /// Which.
        keys: Vec<(Key, String)>,
    },
    /// Describe one group.
    Describe {
        /// The group.
        group: String,
    },
    /// All groups of this partition.
    List,
    /// Delete an empty group with its offsets.
    Delete {
        /// The group.
        group: String,
    },
    /// Commit offsets within a transaction.
    CommitPending(PendingCommit),
    /// A transaction ended: what it committed of offsets counts, or is dropped.
    EndTransaction(Ended),
    /// Which offsets of a group wait for the end of a transaction.
    Pending {
        /// The group.
        group: String,
    },
    /// A heartbeat of the consumer protocol.
    Beat(Box<Beat>),
    /// Describe one group of the consumer protocol.
    DescribeConsumers {
        /// The group.
        group: String,
    },
    /// Configs that were set for a group.
    Configs {
        /// The group.
        group: String,
    },
    /// Groups of this partition that have configs.
    Configured,
    /// Change configs of a group.
    Configure {
        /// The group.
        group: String,
        /// Values to set, or to unset.
        changes: Vec<Change>,
        /// Only check.
        validate_only: bool,
    },
    /// Look into what tools see of the partition as a log.
    Look(Look),
    /// Drop what has expired, and offsets of topics that are gone.
    Sweep,
}

impl Ask {
    /// The group that it is about; `None`: all.
    pub(super) fn group(&self) -> Option<&str> {
        match self {
            Ask::Join(join) => Some(&join.group),
            Ask::Sync(sync) => Some(&sync.caller.group),
            Ask::Heartbeat(caller) => Some(&caller.group),
            Ask::Commit(commit) => Some(&commit.caller.group),
            Ask::CommitPending(asked) => Some(&asked.commit.caller.group),
            Ask::Beat(beat) => Some(&beat.group),
            Ask::Leave { group, .. }
            | Ask::Offsets { group, .. }
            | Ask::DeleteOffsets { group, .. }
            | Ask::Describe { group }
            | Ask::DescribeConsumers { group }
            | Ask::Configs { group }
            | Ask::Configure { group, .. }
            | Ask::Pending { group }
            | Ask::Delete { group } => Some(group),
            Ask::List | Ask::Configured | Ask::EndTransaction(_) | Ask::Look(_) | Ask::Sweep => None,
        }
    }
}

/// JoinGroup.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    /// The group.
    pub(crate) group: String,
    /// Empty for a new member.
    pub(crate) member_id: String,
    /// The id to give to a new member; never used before.
    pub(crate) fresh_id: String,
    /// `consumer`, `connect`, …
    pub(crate) protocol_type: String,
    /// What the member says about itself.
    pub(crate) info: MemberInfo,
    /// v4+: a new dynamic member is first told its id.
    pub(crate) requires_known_id: bool,
    /// v9+: a returning static leader may be told to skip the assignment.
    pub(crate) may_skip_assignment: bool,
}

/// A member that speaks for its generation.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The group.
    pub(crate) group: String,
    /// Its id.
    pub(crate) member_id: String,
    /// `group.instance.id`.
    pub(crate) instance_id: Option<String>,
    /// The generation it believes in.
    pub(crate) generation: i32,
}

/// SyncGroup.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    /// Who.
    pub(crate) caller: Caller,
    /// v5+: must match the group's, when given.
    pub(crate) protocol_type: Option<String>,
    /// v5+: must match the group's, when given.
    pub(crate) protocol: Option<String>,
    /// The leader's assignment by member id.
    pub(crate) assignments: Vec<(String, Blob)>,
}

/// A member that leaves; either id may be the one that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaver {
    /// Its id, or empty.
    pub(crate) member_id: String,
    /// `group.instance.id`.
    pub(crate) instance_id: Option<String>,
}

/// OffsetCommit, with topics already found.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// Who; a generation below 0 for one that manages its partitions itself.
    pub(crate) caller: Caller,
    /// v9+: an absent group is named as such.
    pub(crate) says_group_not_found: bool,
    /// v2 to v4: how long to keep the offsets, ms.
    pub(crate) retention_ms: Option<i64>,
    /// What to commit: offset, leader epoch, metadata.
    pub(crate) positions: Vec<(Key, CommitPosition)>,
}

/// One offset to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitPosition {
    /// Any number.
    pub(crate) offset: i64,
    /// -1 when unknown.
    pub(crate) leader_epoch: i32,
    /// The client's text.
    pub(crate) metadata: String,
}

/// The answer to an [`Ask`], same order of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To `Join`.
    Join(Result<Joined, JoinRefused>),
    /// To `Sync`.
    Sync(Result<Synced, GroupError>),
    /// To `Heartbeat`.
    Heartbeat(Result<(), GroupError>),
    /// To `Leave`: one per member, in order.
    Leave(Result<Vec<Result<(), GroupError>>, GroupError>),
    /// To `Commit`: one per partition, in order.
    Commit(Result<Vec<Result<(), GroupError>>, GroupError>),
    /// To `Offsets`: one per partition asked for, in order; or all.
    Offsets(Result<Vec<(Key, Option<Position>)>, GroupError>),
    /// To `DeleteOffsets`: one per partition, in order.
    DeleteOffsets(Result<Vec<Result<(), GroupError>>, GroupError>),
    /// To `Describe`.
    Describe(Result<Described, Absent>),
    /// To `List`.
    List(Vec<Listed>),
    /// To `Delete`.
    Delete(Result<(), GroupError>),
    /// To `Beat`.
    Beat(Result<Beaten, BeatRefused>),
    /// To `DescribeConsumers`.
    DescribeConsumers(Result<DescribedConsumers, Absent>),
    /// To `Configs`: value by name.
    Configs(BTreeMap<String, String>),
    /// To `Configured`.
    Configured(Vec<String>),
    /// To `Configure`.
    Configure(Result<(), ConfigError>),
    /// To `CommitPending`: one per partition, in order.
    CommitPending(Result<Vec<Result<(), GroupError>>, GroupError>),
    /// To `EndTransaction`: it is durable.
    EndTransaction,
    /// To `Pending`.
    Pending(BTreeSet<Key>),
    /// To `Look`.
    Look(Seen),
    /// To `Sweep`.
    Sweep,
}

/// Why there is nothing to describe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// There is no such group.
    NotFound,
    /// It is of the other type.
    OtherType,
}

/// Type of a group, Kafka's word for it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupType {
    /// Clients assign.
    Classic,
    /// The coordinator assigns (KIP-848).
    Consumer,
}

impl GroupType {
    /// Kafka's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GroupType::Classic => "classic",
            GroupType::Consumer => "consumer",
        }
    }
}

/// A formed generation as one member sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Its number.
    pub(crate) generation: i32,
    /// `consumer`, `connect`, …
    pub(crate) protocol_type: String,
    /// The protocol chosen.
    pub(crate) protocol: String,
    /// The leader's member id.
    pub(crate) leader: String,
    /// The leader must not assign.
    pub(crate) skip_assignment: bool,
    /// The member's own id.
    pub(crate) member_id: String,
    /// For the leader: member id, instance id, metadata.
    pub(crate) members: Vec<(String, Option<String>, Blob)>,
}

/// Why a join is refused, with the member id that the answer carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinRefused {
    /// Why.
    pub(crate) error: GroupError,
    /// The id sent, or the one to use from here on.
    pub(crate) member_id: String,
}

/// A member's assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    /// `consumer`, `connect`, …
    pub(crate) protocol_type: String,
    /// The protocol chosen.
    pub(crate) protocol: String,
    /// From the leader.
    pub(crate) assignment: Blob,
}

/// State of a group as tools see it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No members.
    Empty,
    /// Members are asked to join again.
    PreparingRebalance,
    /// The assignment is awaited.
    CompletingRebalance,
    /// Members consume.
    Stable,
    /// There is no such group.
    Dead,
}

impl State {
    /// Kafka's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }
}

/// One group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The group.
    pub(crate) group: String,
    /// Kafka's word for its state.
    pub(crate) state: &'static str,
    /// Its type.
    pub(crate) group_type: GroupType,
    /// Empty for one that only commits offsets.
    pub(crate) protocol_type: String,
}

/// One group in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// Its state.
    pub(crate) state: State,
    /// Empty for one that only commits offsets.
    pub(crate) protocol_type: String,
    /// Empty unless stable.
    pub(crate) protocol: String,
    /// Its members.
    pub(crate) members: Vec<DescribedMember>,
}

/// One member in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedMember {
    /// Its id.
    pub(crate) member_id: String,
    /// `group.instance.id`.
    pub(crate) instance_id: Option<String>,
    /// Client id of its connection.
    pub(crate) client_id: String,
    /// `/address`.
    pub(crate) client_host: String,
    /// For the chosen protocol.
    pub(crate) metadata: Blob,
    /// Of the last assignment.
    pub(crate) assignment: Blob,
}

/// Why a coordinator refuses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupError {
    /// The group id is empty where that is not allowed; for good.
    #[error("the group id is empty")]
    InvalidGroupId,
    /// The session timeout is out of bounds; for good.
    #[error("the session timeout is outside of the broker's bounds")]
    InvalidSessionTimeout,
    /// No protocol that all members share, or another protocol type; until the other members are gone.
    #[error("no protocol that all members support")]
    InconsistentProtocol,
    /// No such member; it has to join anew.
    #[error("unknown member id")]
    UnknownMember,
    /// A new member has to join again with the id it was given.
    #[error("join again with the member id given")]
    MemberIdRequired,
    /// The group has as many members as it may; until one leaves.
    #[error("the group is full")]
    GroupFull,
    /// Another process uses this `group.instance.id`; for good.
    #[error("fenced by another member with the same group.instance.id")]
    FencedInstance,
    /// Another generation is the present one; the member has to join again.
    #[error("not the present generation")]
    IllegalGeneration,
    /// Members are joining; the member has to join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// The text of a commit is too long; for good.
    #[error("the commit's metadata is too long")]
    MetadataTooLarge,
    /// No such group.
    #[error("no such group")]
    GroupNotFound,
    /// The group has members; until they leave.
    #[error("the group has members")]
    NonEmptyGroup,
    /// Members consume the topic; until they leave.
    #[error("the group is subscribed to the topic")]
    SubscribedToTopic,
    /// The state is being loaded; until that ends.
    #[error("the coordinator is loading")]
    Loading,
    /// Another node coordinates the group, or this one cannot make anything durable; find the coordinator again.
    #[error("not the coordinator of this group")]
    NotCoordinator,
    /// The topic that keeps groups cannot be made; until it can.
    #[error("the coordinator is not available")]
    NotAvailable,
    /// The version does not carry what the group needs; for good.
    #[error("the version of the request does not carry a member epoch")]
    UnsupportedVersion,
    /// Fields that do not go together; for good.
    #[error("the request is not valid")]
    InvalidRequest,
    /// Another epoch than the member's; it has to give up its partitions and to join anew.
    #[error("not the member's epoch")]
    FencedMemberEpoch,
    /// A member that is there uses this `group.instance.id`; until it leaves.
    #[error("the group.instance.id is in use")]
    UnreleasedInstance,
    /// There is no such assignor; for good.
    #[error("unknown assignor")]
    UnsupportedAssignor,
    /// Another epoch than the member's; until it has heard of its own.
    #[error("not the member's epoch; ask again after the next heartbeat")]
    StaleMemberEpoch,
    /// The pattern is none; for good.
    #[error("not a regular expression")]
    InvalidRegex,
}

impl GroupError {
    /// Kafka's code.
    pub(crate) fn code(self) -> i16 {
        match self {
            GroupError::MetadataTooLarge => 12,
            GroupError::Loading => 14,
            GroupError::NotAvailable => 15,
            GroupError::NotCoordinator => 16,
            GroupError::IllegalGeneration => 22,
            GroupError::InconsistentProtocol => 23,
            GroupError::InvalidGroupId => 24,
            GroupError::UnknownMember => 25,
            GroupError::InvalidSessionTimeout => 26,
            GroupError::RebalanceInProgress => 27,
            GroupError::NonEmptyGroup => 68,
            GroupError::GroupNotFound => 69,
            GroupError::MemberIdRequired => 79,
            GroupError::GroupFull => 81,
            GroupError::FencedInstance => 82,
            GroupError::SubscribedToTopic => 86,
            GroupError::UnsupportedVersion => 35,
            GroupError::InvalidRequest => 42,
            GroupError::FencedMemberEpoch => 110,
            GroupError::UnreleasedInstance => 111,
            GroupError::UnsupportedAssignor => 112,
            GroupError::StaleMemberEpoch => 113,
            GroupError::InvalidRegex => 128,
        }
    }
}

impl From<NoCoordinator> for GroupError {
    fn from(e: NoCoordinator) -> GroupError {
        match e {
            NoCoordinator::Loading => GroupError::Loading,
            NoCoordinator::Elsewhere => GroupError::NotCoordinator,
            NoCoordinator::NotAvailable => GroupError::NotAvailable,
        }
    }
}
