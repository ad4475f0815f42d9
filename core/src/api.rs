//! The only door into core: topics, appends, reads, offsets. The gateway imports nothing else but `node`,
//! `replicated`, `types`, `error` and `config`.

pub use crate::codec::crc32c;
pub use crate::codec::entry::EntryKind;
pub use crate::codec::{batch, records};
/// A rule of who may do what.
pub use crate::control::command::{ACL_BYTES_MAX, ACLS_MAX, Acl};
pub use crate::drive::spec::{DriveExpr, DriveSpec};
pub use crate::drive::{FileSlice, Purpose};
/// Outcome of one batch.
pub use crate::range::ack::Issued as Appended;
/// The batches of one connection, and the outcomes of a request of it.
pub use crate::range::lane::{Lane, Outcomes as AppendOutcomes};
/// The end of a transaction in one partition, and whose rules of epochs hold.
pub use crate::range::markers::{Marker, TransactionVersion};
/// One batch to append: already checked by the gateway (magic, CRC, lengths, counts).
pub use crate::range::primary::Batch as AppendBatch;
/// What of transactions a reader wants to see.
pub use crate::range::read::Isolation;
pub use crate::range::state::FirstSequence;

use crate::config::dynamic::DynamicConfigs;
use crate::config::topic::TopicConfig;
use crate::control::command::AlterAcls;
use crate::control::state::OperationKind;
use crate::error::{AppendError, ReadFailure, ReshardError, TopicError, TopicPartition};
use crate::types::{NodeId, Offset, Partition, RangeId, Span, TopicId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// What the gateway shows of a topic: an immutable snapshot of control state.
#[derive(Clone, Debug)]
pub struct TopicView {
    /// Identity.
    pub id: TopicId,
    /// Name.
    pub name: Arc<str>,
    /// How many partitions.
    pub partitions: i32,
    /// Configs that were set explicitly.
    pub configs: Arc<BTreeMap<String, String>>,
    /// What holds: these over what nodes have for topics that do not say.
    pub config: Arc<TopicConfig>,
    /// Hidden from clients.
    pub internal: bool,
    /// The topic that it is derived from: it has no records of its own, see [`DerivedTopic`].
    pub derived_from: Option<TopicId>,
    /// The replication factor that its creator asked for.
    pub replication_factor: i16,
    /// Its drive expression.
    pub drive: DriveExpr,
    /// Its active ranges in order of partitions, with the leader epochs of their partitions.
    pub ranges: Arc<[RangeView]>,
    /// Grows with every change.
    pub version: u64,
}

/// One active range of a topic.
#[derive(Clone, Debug)]
pub struct RangeView {
    /// Identity.
    pub id: RangeId,
    /// Its partitions.
    pub span: Span,
    /// The node that leads it.
    pub leader: NodeId,
    /// Leader epochs as runs of partitions.
    pub epochs: Arc<[(Span, i32)]>,
}

impl TopicView {
    /// Leader and leader epoch of a partition; `None` outside of the topic.
    pub fn leader(&self, partition: Partition) -> Option<(NodeId, i32)> {
        let at = self.ranges.partition_point(|r| r.span.last < partition);
        let range = self.ranges.get(at).filter(|r| r.span.contains(partition))?;
        let epoch = range.epochs.iter().find(|(span, _)| span.contains(partition)).map(|(_, e)| *e)?;
        Some((range.leader, epoch))
    }
}

/// A topic that clients see and that is stored nowhere: it has the partitions, leaders and epochs of the internal topic
/// that it is derived from, and is there as long as that one is. Who shows it answers its reads; core knows none of its
/// partitions ([`ReadFailure::UnknownPartition`]).
#[derive(Clone, Debug)]
pub struct DerivedTopic {
    /// Its name; a stored topic of the name goes before.
    pub name: &'static str,
    /// Name of the topic that it is derived from.
    pub from: &'static str,
    /// Its configs, as clients see them.
    pub configs: BTreeMap<String, String>,
}

/// All topics at one version of control state.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Version, growing.
    pub version: u64,
    /// By name; internal ones too.
    pub by_name: BTreeMap<Arc<str>, Arc<TopicView>>,
    /// By id.
    pub by_id: HashMap<TopicId, Arc<TopicView>>,
    /// Settings that were changed while this node runs.
    pub dynamic: Arc<DynamicConfigs>,
}

/// This node and its peers.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// Stable identity of the cluster.
    pub cluster_id: String,
    /// This node.
    pub node: NodeId,
    /// Live nodes (this one included) with their racks.
    pub nodes: Vec<(NodeId, Option<String>)>,
}

/// A topic to be made.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Name; its form is checked by the gateway and again here.
    pub name: String,
    /// Partition count; `None`: the node's default.
    pub partitions: Option<i32>,
    /// Replication factor asked for; `None`: the node's default.
    pub replication_factor: Option<i16>,
    /// Explicit configs, among them `rangeway.drive`.
    pub configs: BTreeMap<String, String>,
    /// Hidden from clients.
    pub internal: bool,
    /// Only check.
    pub validate_only: bool,
}

/// Batches that were issued or parked: their place among others is fixed and their outcome is awaited.
#[derive(Debug)]
pub struct PendingAppend {
    pub(crate) inner: crate::node::Appending,
    pub(crate) node: Arc<crate::node::Inner>,
}

impl PendingAppend {
    /// Waits until all batches are durable or failed, at most until the deadline of the append. What is parked then is
    /// refused: `NotLeader` for idempotent batches, else `TimedOut`; what is not known to be durable is `TimedOut`.
    ///
    /// Dropping it, or this future, gives up what of it is parked.
    pub async fn wait(self) -> AppendOutcomes {
        self.node.outcomes(self.inner).await
    }

    /// The outcomes, if all are known now.
    pub fn try_take(&mut self) -> Option<AppendOutcomes> {
        self.inner.try_take().map(|outcomes| self.node.named(outcomes))
    }
}

/// Offsets of a partition that clients see.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PartitionOffsets {
    /// First readable offset.
    pub log_start: Offset,
    /// One above the last completed record.
    pub high_watermark: Offset,
    /// First offset of the earliest open transaction, else the high watermark.
    pub last_stable: Offset,
    /// The current leader epoch.
    pub leader_epoch: i32,
}

/// One partition to read.
#[derive(Copy, Clone, Debug)]
pub struct ReadFrom {
    /// The topic.
    pub topic: TopicId,
    /// The partition.
    pub partition: Partition,
    /// First offset wanted.
    pub offset: Offset,
    /// Stop at so many bytes; the first batch may be larger when `first_whole` of the call says so.
    pub max_bytes: usize,
    /// What of transactions is wanted.
    pub isolation: Isolation,
}

/// A run of stored bytes: whole batches.
#[derive(Clone, Debug)]
pub enum Piece {
    /// In memory.
    Memory(Bytes),
    /// In a file, to be sent from there.
    File(FileSlice),
}

impl Piece {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Memory(b) => b.len(),
            Piece::File(f) => f.len as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The memory that an answer may hold. Asked before each partition is read, told after it.
pub trait ReadMemory: Send {
    /// Room for up to `wanted` bytes; what is not kept is free again when the next is asked for.
    fn take(&mut self, wanted: usize) -> usize;
    /// So many bytes of what was read are held, which is more than there was room for where one batch is.
    fn keep(&mut self, bytes: usize);
}

/// As much as is wanted.
struct Unbounded;

impl ReadMemory for Unbounded {
    fn take(&mut self, wanted: usize) -> usize {
        wanted
    }
    fn keep(&mut self, _bytes: usize) {}
}

/// What one partition gave.
#[derive(Clone, Debug)]
pub struct PartitionRead {
    /// Offsets at the time of the read.
    pub offsets: PartitionOffsets,
    /// Whole batches in offset order, the first one holding or following the offset asked for.
    pub pieces: Vec<Piece>,
    /// Their length in bytes.
    pub bytes: usize,
    /// Of these the bytes that are held in memory; the others are in files.
    pub memory: usize,
    /// Offset after the last batch; the offset asked for when there is none.
    pub next_offset: Offset,
    /// For a committed reader: the aborted transactions that have something in these batches, by first offset.
    pub aborted: Vec<AbortedTransaction>,
}

/// A transaction that was aborted: batches of the producer from there on, up to its next abort marker, are to be left out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose it was.
    pub producer_id: i64,
    /// Offset of its first record in the partition.
    pub first_offset: Offset,
}

/// What a partition knows of a producer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ProducerView {
    /// The producer.
    pub producer_id: i64,
    /// Its newest epoch.
    pub epoch: i16,
    /// Last sequence of that epoch; -1 without.
    pub last_sequence: i32,
    /// When it last appended something, or had a transaction ended, broker ms.
    pub last_timestamp: i64,
    /// Epoch of the coordinator that ended its last transaction; -1 without.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction; -1 without.
    pub transaction_start: Offset,
}

/// One record of a replicated state machine.
#[derive(Clone, Debug)]
pub struct OwnEntry {
    /// `Control` or `Snapshot`.
    pub kind: EntryKind,
    /// Its bytes.
    pub payload: Bytes,
}

/// The door. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Api {
    pub(crate) node: Arc<crate::node::Inner>,
}

impl Api {
    /// Broker time, ms since 1970: what ages are told by.
    pub fn now_ms(&self) -> i64 {
        self.node.now_ms()
    }

    /// This node and its peers.
    pub fn cluster(&self) -> ClusterView {
        self.node.cluster()
    }

    /// All topics now; a snapshot, cheap.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.node.catalog()
    }

    /// Shows a derived topic in the catalog from here on.
    pub fn derive_topic(&self, derived: DerivedTopic) {
        self.node.derive_topic(derived);
    }

    /// Makes a topic; returns when this node leads and serves its partitions.
    ///
    /// Errors: see [`TopicError`]; all but `Control` are final for this request.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<Arc<TopicView>, TopicError> {
        let node = self.node.clone();
        self.node.to_its_end(async move { node.create_topic(topic).await }).await
    }

    /// Deletes a topic: its partitions answer `UnknownPartition` from here on, its data is freed.
    pub async fn delete_topic(&self, topic: TopicId) -> Result<(), TopicError> {
        let node = self.node.clone();
        self.node.to_its_end(async move { node.delete_topic(topic).await }).await
    }

    /// Appends partitions until there are `total`, in new ranges. With `validate_only` nothing changes.
    pub async fn create_partitions(
        &self,
        topic: TopicId,
        total: i32,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let node = self.node.clone();
        self.node.to_its_end(async move { node.create_partitions(topic, total, validate_only).await }).await
    }

    /// Sets (`Some`) and deletes (`None`) explicit configs of a topic. With `validate_only` nothing changes.
    pub async fn alter_topic_configs(
        &self,
        topic: TopicId,
        changes: Vec<(String, Option<String>)>,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let node = self.node.clone();
        self.node
            .to_its_end(async move { node.alter_topic_configs(topic, changes, validate_only).await })
            .await
    }

    /// Sets (`Some`) and takes back (`None`) settings that are looked at while nodes run, by Kafka's names: of `node`, or of
    /// all nodes, where they have none of their own. With `validate_only` nothing changes.
    pub async fn alter_node_configs(
        &self,
        node: Option<NodeId>,
        changes: Vec<(String, Option<String>)>,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let this = self.node.clone();
        self.node.to_its_end(async move { this.alter_node_configs(node, changes, validate_only).await }).await
    }

    /// The rules of who may do what; a snapshot, cheap.
    pub fn acls(&self) -> Arc<BTreeSet<Acl>> {
        self.node.acls()
    }

    /// Adds and takes away rules of who may do what; they hold when this returns.
    pub async fn alter_acls(&self, add: Vec<Acl>, remove: Vec<Acl>) -> Result<(), TopicError> {
        let node = self.node.clone();
        self.node.to_its_end(async move { node.alter_acls(AlterAcls { add, remove }).await }).await
    }

    /// A producer id that was never given out, with epoch 0.
    pub async fn new_producer_id(&self) -> Result<i64, TopicError> {
        self.node.new_producer_id().await
    }

    /// Sequences batches of one topic and hands them to their drives, in the order given per partition, behind all
    /// earlier ones of `lane`: the lane of a connection.
    ///
    /// Waits for nothing. A batch that its range does not take now (window, a segment that ends, a split) is parked, and
    /// so are those of its lane and partition that come after it; [`PendingAppend::wait`] hands them out, until
    /// `deadline`. The bytes are kept by reference until they are durable.
    pub fn append(
        &self,
        lane: &Lane,
        topic: TopicId,
        batches: Vec<AppendBatch>,
        deadline: Instant,
    ) -> PendingAppend {
        let inner = self.node.append(lane, topic, batches, deadline);
        PendingAppend { inner, node: self.node.clone() }
    }

    /// Appends records of a replicated state machine to a partition of an internal topic; returns the offset of the
    /// first once all are durable. `purpose`: how far into the reserve of a full disk.
    pub async fn append_own(
        &self,
        at: TopicPartition,
        entries: Vec<OwnEntry>,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<Offset, AppendError> {
        let entries = entries.into_iter().map(|e| (e.kind, e.payload)).collect();
        self.node.append_own(at, entries, purpose, deadline).await
    }

    /// Whether such records are taken now; `true` too where they have to wait for a while.
    ///
    /// Errors: until space is freed, or the partition goes on elsewhere.
    pub fn takes_own(&self, at: TopicPartition, purpose: Purpose) -> Result<(), AppendError> {
        self.node.takes_own(at, purpose)
    }

    /// Whether a partition takes no records of clients since a disk is full, or has taken nothing since the start.
    pub fn is_full(&self, at: TopicPartition) -> bool {
        self.node.is_full(at)
    }

    /// Ends a transaction in one partition: returns once its marker is durable there, or was already. Waits where the
    /// partition takes nothing now (a full window, a split, a roll). A marker for a producer without an open transaction is
    /// written all the same. One that timed out may be written still: the same marker again is answered as the first.
    ///
    /// Errors: `CoordinatorFenced` and `ProducerFenced` for good; others as for batches.
    pub async fn write_marker(
        &self,
        at: TopicPartition,
        marker: Marker,
        deadline: Instant,
    ) -> Result<(), AppendError> {
        self.node.write_marker(at, &marker, deadline).await
    }

    /// What a partition knows of its producers, by their ids: those that wrote there not too long ago, or whose transaction
    /// is open.
    ///
    /// Errors: `Storage` also where the log can be read, but not up to its end.
    pub fn producers(&self, at: TopicPartition) -> Result<Vec<ProducerView>, ReadFailure> {
        self.node.producers(at)
    }

    /// Reads records of a replicated state machine from an offset on: (offset, kind, payload), at most `max_entries`.
    pub async fn read_own(
        &self,
        at: TopicPartition,
        from: Offset,
        max_entries: usize,
    ) -> Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure> {
        self.node.read_own(at, from, max_entries).await
    }

    /// Offsets of a partition.
    ///
    /// Errors: `Storage` also where the log can be read, but not up to its end.
    pub fn offsets(&self, at: TopicPartition) -> Result<PartitionOffsets, ReadFailure> {
        self.node.offsets(at)
    }

    /// Offsets of a partition as far as its log can be read, and whether that is its end. If not, the high watermark and
    /// the leader epoch are lower bounds, good for finding a place to read and for nothing else.
    pub fn known_offsets(&self, at: TopicPartition) -> Result<(PartitionOffsets, bool), ReadFailure> {
        self.node.known_offsets(at).map(|(offsets, why)| (offsets, why.is_none()))
    }

    /// What is damaged on the disks, a line for each place (design 9); what blocks a range is in [`Api::blocked`] too.
    pub fn damage(&self) -> Vec<String> {
        self.node.damage()
    }

    /// Reads many partitions, in the order given, at most `max_bytes` in all; the first batch of the answer is whole
    /// whatever its size. Answers what is there now and does not wait for more.
    pub async fn read(
        &self,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Vec<Result<PartitionRead, ReadFailure>> {
        self.read_within(reads, max_bytes, &mut Unbounded).await
    }

    /// The same within the memory that there is: where a partition finds less room than it may give, it gives less.
    pub async fn read_within(
        &self,
        reads: &[ReadFrom],
        max_bytes: usize,
        memory: &mut dyn ReadMemory,
    ) -> Vec<Result<PartitionRead, ReadFailure>> {
        self.node.read(reads, max_bytes, memory).await
    }

    /// The first batch in offset order whose maximum timestamp is at or above `timestamp`, whole and in memory.
    pub async fn find_timestamp(
        &self,
        at: TopicPartition,
        timestamp: i64,
    ) -> Result<Option<Bytes>, ReadFailure> {
        self.node.find_timestamp(at, timestamp).await
    }

    /// The first batch in offset order that holds the partition's largest timestamp, whole and in memory.
    pub async fn find_max_timestamp(&self, at: TopicPartition) -> Result<Option<Bytes>, ReadFailure> {
        self.node.find_max_timestamp(at).await
    }

    /// The largest known leader epoch at or below `epoch` and its end offset (KIP-320); `None` when there is none.
    pub fn end_of_epoch(&self, at: TopicPartition, epoch: i32) -> Result<Option<(i32, Offset)>, ReadFailure> {
        self.node.end_of_epoch(at, epoch)
    }

    /// Raises the log start of a partition to `before` (`None`: to the high watermark), durably; the new log start.
    pub async fn delete_records(
        &self,
        at: TopicPartition,
        before: Option<Offset>,
    ) -> Result<Offset, ReadFailure> {
        self.node.delete_records(at, before).await
    }

    /// Wakes when something readable or a changed layout appears in one of the partitions after this call.
    pub fn watch(&self, partitions: &[TopicPartition]) -> Watch {
        Watch { inner: self.node.watch(partitions) }
    }

    /// Who keeps the control state, and how far it is.
    pub fn control_voter(&self) -> ControlVoter {
        self.node.control_voter()
    }

    /// The data directories, with what they hold of the partitions of the topics that `wanted` names.
    pub async fn log_dirs(&self, wanted: impl Fn(TopicId) -> bool + Send) -> Vec<LogDir> {
        self.node.log_dirs(wanted).await
    }

    /// Bytes and ranges for operators.
    pub fn range_stats(&self, topic: TopicId) -> Vec<RangeStats> {
        self.node.range_stats(topic)
    }

    /// Reads what is still to be known of the bytes that a topic's ranges store, so that
    /// [`range_stats`](Api::range_stats) says it: after a start they are known bit by bit.
    pub async fn know_stored(&self, topic: TopicId) {
        self.node.know_stored(topic).await;
    }

    /// What is, or would be, split or merged by load now, and why; `None` for unknown and internal topics.
    pub fn reshard_advice(&self, topic: TopicId) -> Option<ReshardAdvice> {
        self.node.reshard_advice(topic)
    }

    /// Splits a range before partition `at`; `None`: where its stored bytes are halved, in the middle while
    /// there are few. Producers and consumers go on.
    /// Answers when it is done, or after 30 s with an operation that still runs and goes on.
    ///
    /// Errors: see [`ReshardError`]; nothing is recorded then.
    pub async fn split(
        &self,
        topic: TopicId,
        range: u32,
        at: Option<Partition>,
    ) -> Result<OperationView, ReshardError> {
        let kind = self.split_kind(topic, range, at).await?;
        self.node.reshard(topic, kind).await
    }

    /// Merges two neighbouring ranges, `left` before `right`. Answers and errors as [`Api::split`].
    pub async fn merge(&self, topic: TopicId, left: u32, right: u32) -> Result<OperationView, ReshardError> {
        self.node.reshard(topic, merge_kind(left, right)).await
    }

    /// What a split would do, if it is possible now.
    pub async fn preview_split(
        &self,
        topic: TopicId,
        range: u32,
        at: Option<Partition>,
    ) -> Result<ReshardPlan, ReshardError> {
        let kind = self.split_kind(topic, range, at).await?;
        self.node.preview_reshard(topic, &kind)
    }

    /// What a merge would do, if it is possible now.
    pub fn preview_merge(&self, topic: TopicId, left: u32, right: u32) -> Result<ReshardPlan, ReshardError> {
        self.node.preview_reshard(topic, &merge_kind(left, right))
    }

    async fn split_kind(
        &self,
        topic: TopicId,
        range: u32,
        at: Option<Partition>,
    ) -> Result<OperationKind, ReshardError> {
        let at = match at {
            Some(at) => at,
            None => self.node.split_point(topic, RangeId(range)).await?,
        };
        Ok(OperationKind::Split { range: RangeId(range), at })
    }

    /// A split or merge by its id; `None` when it is not known, or over for so long that it was forgotten.
    pub fn operation(&self, id: uuid::Uuid) -> Option<OperationView> {
        self.node.operation(id)
    }

    /// Splits and merges that run or ended not long ago, oldest first.
    pub fn operations(&self) -> Vec<OperationView> {
        self.node.operations()
    }

    /// Gives up a split or merge that runs; its ranges go on as they are.
    ///
    /// Errors: `UnknownOperation`, `Impossible` when it is over.
    pub async fn abort_operation(&self, id: uuid::Uuid) -> Result<OperationView, ReshardError> {
        let node = self.node.clone();
        self.node.to_its_end(async move { node.abort_operation(id).await }).await
    }

    /// Counters for `/metrics`: (name, help, kind is a counter, labels, value).
    pub fn metrics(&self) -> Vec<Metric> {
        self.node.metrics()
    }

    /// What keeps the node from serving all its ranges; empty when it is ready.
    pub fn blocked(&self) -> Vec<String> {
        self.node.blocked()
    }

    /// Which topics have segments with fewer copies than their drive asks for, and why. Nothing is blocked by that.
    pub fn under_replicated(&self) -> Vec<String> {
        self.node.under_replicated()
    }
}

/// A wake-up for long polls: see [`Api::watch`].
#[derive(Debug)]
pub struct Watch {
    pub(crate) inner: crate::node::WatchInner,
}

impl Watch {
    /// Waits for the next change; returns at once if there was one since the last call.
    pub async fn changed(&mut self) {
        self.inner.changed().await;
    }
}

fn merge_kind(left: u32, right: u32) -> OperationKind {
    OperationKind::Merge { left: RangeId(left), right: RangeId(right) }
}

/// A split or merge, for operators.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OperationView {
    /// Its identity.
    pub operation: String,
    /// The topic that it changes.
    #[serde(skip)]
    pub topic: TopicId,
    /// What it does, in words.
    pub kind: String,
    /// `running`, `done` or `aborted`.
    pub state: String,
    /// Ranges that it closed.
    pub closed: Vec<u32>,
    /// Ranges that it made.
    pub created: Vec<u32>,
    /// Why it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long its partitions took no appends, ms; unknown once the node started again.
    pub paused_ms: Option<f64>,
    /// Broker ms.
    pub started_at: i64,
    /// Broker ms; the start's time while it runs.
    pub ended_at: i64,
}

/// What load says of a topic's ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshardAdvice {
    /// Whether it is done: `off`, `advise`, `on`.
    pub mode: String,
    /// A sentence for each range, figures in it.
    pub lines: Vec<String>,
}

/// What a split or merge would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshardPlan {
    /// Ranges that it would close.
    pub closes: Vec<u32>,
    /// Partitions of the ranges that it would make.
    pub creates: Vec<Span>,
}

/// A node that keeps the control state.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ControlVoter {
    /// Which start of the node it is.
    pub generation: u64,
    /// The disk that the state lies on.
    pub disk: uuid::Uuid,
    /// Changes of the state so far.
    pub version: u64,
}

/// One data directory: what Kafka calls a log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    /// Absolute path.
    pub path: String,
    /// Why it takes no writes until the node starts again.
    pub dead: Option<String>,
    /// Size of its file system.
    pub total_bytes: Option<u64>,
    /// What of that may still be taken.
    pub usable_bytes: Option<u64>,
    /// Payload bytes of partitions, as far as retention holds them: a stripe or a copy as what lies here.
    pub partitions: BTreeMap<(TopicId, Partition), u64>,
}

/// One range, for operators.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RangeStats {
    /// Identity in its topic.
    pub id: u32,
    /// First partition.
    pub first: Partition,
    /// Last partition.
    pub last: Partition,
    /// `active`, `fencing` or `closed`.
    pub state: String,
    /// Why it takes no writes, if it should.
    pub blocked: Option<String>,
    /// Node that leads it.
    pub primary: i32,
    /// How many segments it wrote that are left.
    pub segments: usize,
    /// Payload bytes in these. A segment counts once, for the range that wrote it, also where the ranges that came from it
    /// still read it.
    pub bytes: u64,
    /// Ranges it came from.
    pub parents: Vec<u32>,
    /// Ranges that came from it.
    pub children: Vec<u32>,
    /// Records that its partitions ever got, before it was made too: two looks give a rate. 0 once it is closed.
    pub appended_records: u64,
    /// Their payload bytes.
    pub appended_bytes: u64,
    /// When its oldest segment that is left was opened, broker ms.
    pub oldest_opened_at: Option<i64>,
    /// Its open segment.
    pub head: Option<HeadStats>,
    /// Where its partitions stand, in their order; empty once it is closed.
    pub partitions: Vec<PartitionStats>,
}

/// The open segment of a range.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HeadStats {
    /// Its loglet.
    pub loglet: u64,
    /// Virtual address of its first entry.
    pub base: u64,
    /// Virtual address after its last completed entry; its base while this node does not lead it.
    pub tail: u64,
    /// When it was opened, broker ms.
    pub opened_at: i64,
}

/// Where a partition stands.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PartitionStats {
    /// The partition.
    pub partition: Partition,
    /// First readable offset.
    pub log_start: Offset,
    /// One above its last completed record.
    pub end: Offset,
}

/// One value for `/metrics`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name without the `rangeway_` prefix.
    pub name: &'static str,
    /// One line.
    pub help: &'static str,
    /// A counter, else a gauge.
    pub counter: bool,
    /// Labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}
