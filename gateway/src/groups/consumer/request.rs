//! A heartbeat of the consumer protocol, and what can be said against it without a look at the group.

use super::super::ask::GroupError;
use super::assignor::Assignor;
use super::image::Partitions;
use super::{JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, topics};

/// ConsumerGroupHeartbeat. What is `None` did not change since the member's last one.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    /// The group.
    pub(crate) group: String,
    /// Empty for a new member of v0.
    pub(crate) member_id: String,
    /// The id to give to such a member; never used before.
    pub(crate) fresh_id: String,
    /// v1+: members make their ids.
    pub(crate) makes_its_id: bool,
    /// The epoch it believes in, or one of the special ones.
    pub(crate) epoch: i32,
    /// `group.instance.id`.
    pub(crate) instance_id: Option<String>,
    /// Its rack.
    pub(crate) rack_id: Option<String>,
    /// Client id of its connection.
    pub(crate) client_id: String,
    /// Where it connects from, `/address`.
    pub(crate) client_host: String,
    /// How long it may take to give partitions up, ms.
    pub(crate) rebalance_timeout_ms: Option<u32>,
    /// Topics by name.
    pub(crate) topics: Option<Vec<String>>,
    /// Topics by pattern; empty: none any more.
    pub(crate) regex: Option<String>,
    /// The assignor that it prefers.
    pub(crate) assignor: Option<String>,
    /// What it owns.
    pub(crate) owned: Option<Partitions>,
}

/// The answer to a [`Beat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beaten {
    /// The member's id.
    pub(crate) member_id: String,
    /// Its epoch.
    pub(crate) epoch: i32,
    /// When it shall be heard next, ms.
    pub(crate) heartbeat_interval_ms: i32,
    /// What it may read from here on; `None`: what it was told last.
    pub(crate) assignment: Option<Partitions>,
}

/// Why a heartbeat is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BeatRefused {
    /// What is the matter.
    pub(crate) error: GroupError,
    /// What it is about, for people.
    pub(crate) why: String,
}

impl From<GroupError> for BeatRefused {
    fn from(error: GroupError) -> BeatRefused {
        BeatRefused { error, why: error.to_string() }
    }
}

pub(super) fn refuse<T>(error: GroupError, why: impl Into<String>) -> Result<T, BeatRefused> {
    Err(BeatRefused { error, why: why.into() })
}

impl Beat {
    /// Whether all is there that a member says when it joins, or after an answer it missed.
    pub(super) fn is_full(&self) -> bool {
        let subscribed = self.topics.is_some() || self.regex.is_some();
        self.epoch == JOIN_EPOCH
            || (self.rebalance_timeout_ms.is_some() && subscribed && self.owned.is_some())
    }

    /// Kafka's checks in Kafka's order. `assignors`: those that may be asked for.
    pub(super) fn check(&self, assignors: &[Assignor]) -> Result<(), BeatRefused> {
        let invalid = |why: &str| refuse(GroupError::InvalidRequest, why);
        let is_empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
        if self.member_id.is_empty() && (self.makes_its_id || self.epoch > 0 || self.epoch == LEAVE_EPOCH) {
            return invalid("MemberId can't be empty.");
        }
        if self.group.is_empty() {
            return invalid("GroupId can't be empty.");
        }
        if is_empty(&self.instance_id) {
            return invalid("InstanceId can't be empty.");
        }
        if is_empty(&self.rack_id) {
            return invalid("RackId can't be empty.");
        }
        match self.epoch {
            JOIN_EPOCH => self.check_join()?,
            LEAVE_STATIC_EPOCH if self.instance_id.is_none() => return invalid("InstanceId can't be null."),
            ..LEAVE_STATIC_EPOCH => return invalid("MemberEpoch is invalid."),
            _ => {}
        }
        if let Some(name) = &self.assignor
            && !assignors.iter().any(|assignor| assignor.name() == name)
        {
            let names: Vec<&str> = assignors.iter().map(|assignor| assignor.name()).collect();
            let names = names.join(", ");
            return refuse(
                GroupError::UnsupportedAssignor,
                format!("ServerAssignor {name} is not supported. Supported assignors: {names}."),
            );
        }
        match self.regex.as_deref().filter(|regex| !regex.is_empty()).map(topics::compile) {
            Some(Err(why)) => refuse(GroupError::InvalidRegex, why),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    fn check_join(&self) -> Result<(), BeatRefused> {
        let invalid = |why: &str| refuse(GroupError::InvalidRequest, why);
        if self.rebalance_timeout_ms.is_none() {
            return invalid("RebalanceTimeoutMs must be provided in first request.");
        }
        if !self.owned.as_ref().is_some_and(Partitions::is_empty) {
            return invalid("TopicPartitions must be empty when (re-)joining.");
        }
        if self.topics.is_none() && self.regex.is_none() {
            return invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            );
        }
        Ok(())
    }
}
