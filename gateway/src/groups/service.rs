//! Runs one coordinator per partition of the internal topic `__groups` and leads each question to the right one.
//!
//! The topic is made when something has to be stored for the first time; until then every group is unknown. A
//! partition is loaded at its first use.

use super::ask::{
    Absent, Answer, Ask, Asked, Caller, Commit, Described, GroupError, Join, JoinRefused, Joined, Leaver,
    Listed, Sync, Synced,
};
use super::consumer::{Beat, BeatRefused, Beaten, Change, ConfigError, DescribedConsumers};
use super::coordinator::{Coordinator, Settings};
use super::hash;
use super::pending::{Ended, PendingCommit};
use super::record::{Key, Position};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rangeway_core::api::{Api, Catalog, NewTopic};
use rangeway_core::error::{TopicError, TopicPartition};
use rangeway_core::replicated::{ApiLog, Options, Partition};
use rangeway_core::types::{NodeId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The internal topic that keeps groups.
pub const TOPIC: &str = "__groups";
/// An append that takes longer counts as of unknown outcome.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often expired offsets are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

type Slot = Mutex<Option<Arc<Partition<Coordinator>>>>;

/// The group coordinators of this node.
#[derive(Debug)]
pub struct Groups {
    inner: Arc<Inner>,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inner {
    api: Api,
    settings: Settings,
    partitions: Vec<Slot>,
    creating: tokio::sync::Mutex<()>,
    stopped: AtomicBool,
}

impl Groups {
    /// Nothing runs before the first question.
    pub fn new(api: Api, settings: Settings) -> Groups {
        let partitions = (0..hash::PARTITIONS).map(|_| Slot::default()).collect();
        let inner = Inner {
            api,
            settings,
            partitions,
            creating: tokio::sync::Mutex::new(()),
            stopped: AtomicBool::new(false),
        };
        let inner = Arc::new(inner);
        Groups { inner, sweeper: Mutex::new(None) }
    }

    /// Ends all coordinators for good: what waits, and what comes, is answered that this is not the coordinator.
    pub async fn stop(&self) {
        self.inner.stopped.store(true, Ordering::Release);
        let sweeper = self.sweeper.lock().take();
        if let Some(sweeper) = sweeper {
            sweeper.abort();
        }
        let running: Vec<_> = self.inner.partitions.iter().filter_map(|slot| slot.lock().take()).collect();
        join_all(running.iter().map(|partition| partition.stop())).await;
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
        if !self.inner.topic_exists() {
            return Ok(BTreeSet::new());
        }
        match self.ask(&group.clone(), Ask::Pending { group }).await? {
            Answer::Pending(keys) => Ok(keys),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// The partition of [`TOPIC`] that keeps a group; the topic is made if it is not there.
    pub(crate) async fn place(&self, group: &str) -> Result<TopicPartition, GroupError> {
        Ok(TopicPartition { topic: self.inner.topic().await?, partition: hash::partition_of(group) })
    }

    /// OffsetFetch: of these partitions, in order; or all.
    pub(crate) async fn offsets(
        &self,
        group: String,
        keys: Option<Vec<Key>>,
        reader: Option<(String, i32)>,
    ) -> Result<Vec<(Key, Option<Position>)>, GroupError> {
        if !self.inner.topic_exists() {
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
        if !self.inner.topic_exists() {
            return Err(GroupError::GroupNotFound);
        }
        match self.ask(&group.clone(), Ask::DeleteOffsets { group, keys }).await? {
            Answer::DeleteOffsets(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// DescribeGroups, of one.
    pub(crate) async fn describe(&self, group: String) -> Result<Result<Described, Absent>, GroupError> {
        if !self.inner.topic_exists() {
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
        if !self.inner.topic_exists() {
            return Ok(Err(Absent::NotFound));
        }
        match self.ask(&group.clone(), Ask::DescribeConsumers { group }).await? {
            Answer::DescribeConsumers(answer) => Ok(answer),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Configs that were set for a group.
    pub(crate) async fn configs(&self, group: String) -> Result<BTreeMap<String, String>, GroupError> {
        if !self.inner.topic_exists() {
            return Ok(BTreeMap::new());
        }
        match self.ask(&group.clone(), Ask::Configs { group }).await? {
            Answer::Configs(configs) => Ok(configs),
            _ => Err(GroupError::NotAvailable),
        }
    }

    /// Groups that have configs.
    pub(crate) async fn configured(&self) -> Result<Vec<String>, GroupError> {
        if !self.inner.topic_exists() {
            return Ok(Vec::new());
        }
        let answers = join_all((0..hash::PARTITIONS).map(|n| self.ask_partition(n, Ask::Configured))).await;
        let mut all = Vec::new();
        for answer in answers {
            match answer? {
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
        if !self.inner.topic_exists() {
            return Ok(Vec::new());
        }
        let answers = join_all((0..hash::PARTITIONS).map(|n| self.ask_partition(n, Ask::List))).await;
        let mut all = Vec::new();
        for answer in answers {
            match answer? {
                Answer::List(listed) => all.extend(listed),
                _ => return Err(GroupError::NotAvailable),
            }
        }
        Ok(all)
    }

    /// DeleteGroups, of one.
    pub(crate) async fn delete(&self, group: String) -> Result<(), GroupError> {
        if !self.inner.topic_exists() {
            return Err(GroupError::GroupNotFound);
        }
        match self.ask(&group.clone(), Ask::Delete { group }).await? {
            Answer::Delete(answer) => answer,
            _ => Err(GroupError::NotAvailable),
        }
    }

    async fn ask(&self, group: &str, ask: Ask) -> Result<Answer, GroupError> {
        self.ask_partition(hash::partition_of(group), ask).await
    }

    async fn ask_partition(&self, number: i32, ask: Ask) -> Result<Answer, GroupError> {
        let partition = self.inner.partition(number).await?;
        self.start_sweeper();
        Ok(partition.call(Asked { ask, catalog: self.inner.api.catalog() }).await?)
    }

    fn start_sweeper(&self) {
        let mut sweeper = self.sweeper.lock();
        if sweeper.is_none() {
            *sweeper = Some(tokio::spawn(sweep(Arc::downgrade(&self.inner))));
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.lock().take() {
            sweeper.abort();
        }
    }
}

impl Inner {
    fn topic_exists(&self) -> bool {
        self.api.catalog().by_name.contains_key(TOPIC)
    }

    /// The running coordinator of a partition; started if it is not.
    async fn partition(&self, number: i32) -> Result<Arc<Partition<Coordinator>>, GroupError> {
        let slot = usize::try_from(number).ok().and_then(|n| self.partitions.get(n));
        let slot = slot.ok_or(GroupError::NotCoordinator)?;
        if let Some(running) = &*slot.lock() {
            return Ok(running.clone());
        }
        let topic = self.topic().await?;
        let mut slot = slot.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(GroupError::NotCoordinator);
        }
        let running = slot.get_or_insert_with(|| {
            let at = TopicPartition { topic, partition: number };
            let log = ApiLog::new(self.api.clone(), at, APPEND_TIMEOUT);
            Arc::new(Partition::start(log, self.settings.clone(), Options::default()))
        });
        Ok(running.clone())
    }

    /// The internal topic; made if it is not there.
    async fn topic(&self) -> Result<TopicId, GroupError> {
        let _one_at_a_time = self.creating.lock().await;
        if let Some(found) = known(&self.api.catalog()) {
            return found;
        }
        match self.api.create_topic(new_topic()).await {
            Ok(topic) => Ok(topic.id),
            Err(TopicError::Exists(_)) => known(&self.api.catalog()).unwrap_or(Err(GroupError::NotAvailable)),
            Err(error) => {
                tracing::warn!(%error, "the topic {TOPIC} cannot be made");
                Err(GroupError::NotAvailable)
            }
        }
    }
}

/// Its groups live as long as the topic: nothing of it goes by age or size, only below a snapshot.
fn new_topic() -> NewTopic {
    let configs = ["retention.ms", "retention.bytes"].map(|key| (key.to_owned(), "-1".to_owned()));
    NewTopic {
        name: TOPIC.to_owned(),
        partitions: Some(hash::PARTITIONS),
        replication_factor: None,
        configs: BTreeMap::from(configs),
        internal: true,
        validate_only: false,
    }
}

fn known(catalog: &Catalog) -> Option<Result<TopicId, GroupError>> {
    let topic = catalog.by_name.get(TOPIC)?;
    if topic.partitions != hash::PARTITIONS {
        tracing::error!(partitions = topic.partitions, "the topic {TOPIC} is not the one that keeps groups");
        return Some(Err(GroupError::NotAvailable));
    }
    Some(Ok(topic.id))
}

/// Asks the running coordinators now and then to drop what has expired.
async fn sweep(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let running: Vec<_> = inner.partitions.iter().filter_map(|slot| slot.lock().clone()).collect();
        for partition in running {
            let asked = Asked { ask: Ask::Sweep, catalog: inner.api.catalog() };
            if let Err(error) = partition.call(asked).await {
                tracing::debug!(%error, "a coordinator was not swept; it is at the next turn");
            }
        }
    }
}

/// Who leads the partition that keeps a group; `None` while there is none.
pub(crate) fn leader_of(catalog: &Catalog, group: &str) -> Option<NodeId> {
    let topic = catalog.by_name.get(TOPIC)?;
    topic.leader(hash::partition_of(group)).map(|(leader, _)| leader)
}
