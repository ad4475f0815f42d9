//! Runs one coordinator per partition of the internal topic `__groups` and leads each question to the right one.
//!
//! The topic is made when something has to be stored for the first time; until then every group is unknown. A
//! partition is loaded at its first use.

use super::ask::{
    Absent, Answer, Ask, Asked, Caller, Commit, Described, GroupError, Join, JoinRefused, Joined, Leaver,
    Listed, Sync, Synced,
};
use super::consumer::{Beat, BeatRefused, Beaten, Change, ConfigError, DescribedConsumers};
use super::coordinator::Coordinator;
use super::pending::{Ended, PendingCommit};
use super::record::{Key, Position};
use super::settings::Settings;
use super::view::{Look, Seen};
use crate::coordinators::{self, Coordinators, Kind, partition_of};
use rangeway_core::api::{Api, Catalog};
use rangeway_core::error::TopicPartition;
use rangeway_core::types::{GROUPS_TOPIC, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The internal topic that keeps groups.
pub const TOPIC: &str = GROUPS_TOPIC;

/// The group coordinators of this node.
#[derive(Debug)]
pub struct Groups {
    api: Api,
    coordinators: Coordinators<Coordinator>,
}

fn asked(api: &Api, ask: Ask) -> Asked {
    Asked { ask, catalog: api.catalog() }
}

impl Groups {
    /// Nothing runs before the first question.
    pub fn new(api: Api, settings: Settings) -> Groups {
        let sweep = |api: &Api| asked(api, Ask::Sweep);
        let kind = Kind { topic: TOPIC, settings, sweep, beside: None };
        Groups { api: api.clone(), coordinators: Coordinators::new(api, kind) }
    }

    /// Ends all coordinators for good: what waits, and what comes, is answered that this is not the coordinator.
    pub async fn stop(&self) {
        self.coordinators.stop().await;
    }

    /// What keeps groups from being coordinated here; empty when nothing does.
    pub fn blocked(&self) -> Vec<String> {
        self.coordinators.blocked()
    }

    /// JoinGroup.
    pub(crate) async fn join(&self, join: Join) -> Result<Joined, JoinRefused> {
        let member_id = join.member_id.clone();
        let refused = |error| JoinRefused { error, member_id };
        match self.ask(&join.group.clone(), Ask::Join(join)).await {
            Ok(Answer::Join(answer)) => answer,
            Ok(_) => Err(refused(GroupError::NotAvailable)),
            Err(error) => Err(refused(error)),
        }
    }

    /// SyncGroup.
    pub(crate) async fn sync(&self, sync: Sync) -> Result<Synced, GroupError> {
        match self.ask(&sync.caller.group.clone(), Ask::Sync(sync)).await? {
            Answer::Sync(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Heartbeat.
    pub(crate) async fn heartbeat(&self, caller: Caller) -> Result<(), GroupError> {
        match self.ask(&caller.group.clone(), Ask::Heartbeat(caller)).await? {
            Answer::Heartbeat(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// LeaveGroup: one answer per member, in order.
    pub(crate) async fn leave(
        &self,
        group: String,
        members: Vec<Leaver>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        match self.ask(&group.clone(), Ask::Leave { group, members }).await? {
            Answer::Leave(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// OffsetCommit: one answer per partition, in order.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        match self.ask(&commit.caller.group.clone(), Ask::Commit(commit)).await? {
            Answer::Commit(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// TxnOffsetCommit: one answer per partition, in order.
    pub(crate) async fn commit_pending(
        &self,
        asked: PendingCommit,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        match self.ask(&asked.commit.caller.group.clone(), Ask::CommitPending(asked)).await? {
            Answer::CommitPending(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// The marker of a transaction for one partition of [`TOPIC`]; answered when it is durable.
    pub(crate) async fn end_transaction(&self, partition: i32, ended: Ended) -> Result<(), GroupError> {
        match self.ask_partition(partition, Ask::EndTransaction(ended)).await? {
            Answer::EndTransaction => Ok(()),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Which offsets of a group wait for the end of a transaction. What is not among them is, when it is read after
    /// this, not older than now.
    pub(crate) async fn pending(&self, group: String) -> Result<BTreeSet<Key>, GroupError> {
        if !self.coordinators.topic_exists() {
            return Ok(BTreeSet::new());
        }
        match self.ask(&group.clone(), Ask::Pending { group }).await? {
            Answer::Pending(keys) => Ok(keys),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// The partition of [`TOPIC`] that keeps a group; the topic is made if it is not there.
    pub(crate) async fn place(&self, group: &str) -> Result<TopicPartition, GroupError> {
        Ok(self.coordinators.place(group).await?)
    }

    /// OffsetFetch: of these partitions, in order; or all.
    pub(crate) async fn offsets(
        &self,
        group: String,
        keys: Option<Vec<Key>>,
        reader: Option<(String, i32)>,
    ) -> Result<Vec<(Key, Option<Position>)>, GroupError> {
        if !self.coordinators.topic_exists() {
            return Ok(keys.unwrap_or_default().into_iter().map(|key| (key, None)).collect());
        }
        match self.ask(&group.clone(), Ask::Offsets { group, keys, reader }).await? {
            Answer::Offsets(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// OffsetDelete: one answer per partition, in order.
    pub(crate) async fn delete_offsets(
        &self,
        group: String,
        keys: Vec<(Key, String)>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        if group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        if !self.coordinators.topic_exists() {
            return Err(GroupError::GroupNotFound);
        }
        match self.ask(&group.clone(), Ask::DeleteOffsets { group, keys }).await? {
            Answer::DeleteOffsets(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// DescribeGroups, of one.
    pub(crate) async fn describe(&self, group: String) -> Result<Result<Described, Absent>, GroupError> {
        if !self.coordinators.topic_exists() {
            return Ok(Err(Absent::NotFound));
        }
        match self.ask(&group.clone(), Ask::Describe { group }).await? {
            Answer::Describe(answer) => Ok(answer),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// ConsumerGroupHeartbeat.
    pub(crate) async fn beat(&self, beat: Beat) -> Result<Beaten, BeatRefused> {
        match self.ask(&beat.group.clone(), Ask::Beat(Box::new(beat))).await? {
            Answer::Beat(answer) => answer,
            _ => Err(GroupError::NotAvailable.into()),
        }
    }

    /// ConsumerGroupDescribe, of one.
    pub(crate) async fn describe_consumers(
        &self,
        group: String,
    ) -> Result<Result<DescribedConsumers, Absent>, GroupError> {
        if group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        if !self.coordinators.topic_exists() {
            return Ok(Err(Absent::NotFound));
        }
        match self.ask(&group.clone(), Ask::DescribeConsumers { group }).await? {
            Answer::DescribeConsumers(answer) => Ok(answer),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Configs that were set for a group.
    pub(crate) async fn configs(&self, group: String) -> Result<BTreeMap<String, String>, GroupError> {
        if !self.coordinators.topic_exists() {
            return Ok(BTreeMap::new());
        }
        match self.ask(&group.clone(), Ask::Configs { group }).await? {
            Answer::Configs(configs) => Ok(configs),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Groups that have configs.
    pub(crate) async fn configured(&self) -> Result<Vec<String>, GroupError> {
        let mut all = Vec::new();
        for answer in self.coordinators.ask_all(|| asked(&self.api, Ask::Configured)).await? {
            match answer {
                Answer::Configured(groups) => all.extend(groups),
                _ => return Err(GroupError::NotAvailable),
            }
        }
        Ok(all)
    }

    /// Changes configs of a group: all or none.
    pub(crate) async fn configure(
        &self,
        group: String,
        changes: Vec<Change>,
        validate_only: bool,
    ) -> Result<(), ConfigError> {
        match self.ask(&group.clone(), Ask::Configure { group, changes, validate_only }).await? {
            Answer::Configure(answer) => answer,
            _ => Err(GroupError::NotAvailable.into()),
        }
    }

    /// ListGroups: of all partitions.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, GroupError> {
        let mut all = Vec::new();
        for answer in self.coordinators.ask_all(|| asked(&self.api, Ask::List)).await? {
            match answer {
                Answer::List(listed) => all.extend(listed),
                _ => return Err(GroupError::NotAvailable),
            }
        }
        Ok(all)
    }

    /// Looks into what tools see of a partition of [`TOPIC`] as a log.
    pub(crate) async fn look(&self, partition: i32, look: Look) -> Result<Seen, GroupError> {
        match self.ask_partition(partition, Ask::Look(look)).await? {
            Answer::Look(seen) => Ok(seen),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Makes [`TOPIC`] if it is not there.
    pub(crate) async fn make_topic(&self) -> Result<(), GroupError> {
        self.place("").await.map(|_| ())
    }

    /// DeleteGroups, of one.
    pub(crate) async fn delete(&self, group: String) -> Result<(), GroupError> {
        if !self.coordinators.topic_exists() {
            return Err(GroupError::GroupNotFound);
        }
        match self.ask(&group.clone(), Ask::Delete { group }).await? {
            Answer::Delete(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    async fn ask(&self, group: &str, ask: Ask) -> Result<Answer, GroupError> {
        self.ask_partition(partition_of(group), ask).await
    }

    async fn ask_partition(&self, number: i32, ask: Ask) -> Result<Answer, GroupError> {
        Ok(self.coordinators.ask(number, asked(&self.api, ask)).await?)
    }
}

/// Who leads the partition that keeps a group; `None` while there is none.
pub(crate) fn leader_of(catalog: &Catalog, group: &str) -> Option<NodeId> {
    coordinators::leader_of(catalog, TOPIC, group)
}
