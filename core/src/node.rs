//! A node: its disks, control state, ranges and background work. Started and stopped as a whole.

use crate::api::{
    Api, AppendBatch, Appended, Catalog, ClusterView, EntryKind, Metric, NewTopic, OwnEntry,
    PartitionOffsets, PartitionRead, RangeStats, ReadFrom, TopicView, Watch,
};
use crate::error::{AppendError, ReadFailure, TopicError, TopicPartition};
use crate::types::{Offset, TopicId};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;

/// What a node needs to start.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Data directories, one per disk; the first also holds control state.
    pub data: Vec<std::path::PathBuf>,
    /// This node's number.
    pub node_id: i32,
    /// Rack, if any.
    pub rack: Option<String>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A data directory cannot be used: in use, another cluster's, a newer format, damaged. Exit code 3.
    #[error("{0}")]
    Data(String),
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
}

impl Node {
    /// Opens the disks, recovers, seals the old segments of all ranges, opens new ones, serves.
    pub async fn start(_options: NodeOptions) -> Result<Node, StartError> {
        todo!()
    }

    /// The door.
    pub fn api(&self) -> Api {
        Api { node: self.inner.clone() }
    }

    /// What recovery found, lines for the operator.
    pub fn recovered(&self) -> Vec<String> {
        todo!()
    }

    /// Drains, checkpoints, closes the disks.
    pub async fn stop(self) {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct Inner {}

#[derive(Debug)]
pub(crate) struct Pending {}

impl Pending {
    pub(crate) async fn wait(self, _deadline: Instant) -> Vec<Appended> {
        todo!()
    }
    pub(crate) fn try_take(&mut self) -> Option<Vec<Appended>> {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct WatchInner {}

impl WatchInner {
    pub(crate) async fn changed(&mut self) {
        todo!()
    }
}

impl Inner {
    pub(crate) fn cluster(&self) -> ClusterView {
        todo!()
    }
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        todo!()
    }
    pub(crate) async fn create_topic(&self, _topic: NewTopic) -> Result<Arc<TopicView>, TopicError> {
        todo!()
    }
    pub(crate) async fn delete_topic(&self, _topic: TopicId) -> Result<(), TopicError> {
        todo!()
    }
    pub(crate) async fn create_partitions(
        &self,
        _topic: TopicId,
        _total: i32,
        _validate_only: bool,
    ) -> Result<(), TopicError> {
        todo!()
    }
    pub(crate) async fn alter_topic_configs(
        &self,
        _topic: TopicId,
        _changes: Vec<(String, Option<String>)>,
        _validate_only: bool,
    ) -> Result<(), TopicError> {
        todo!()
    }
    pub(crate) async fn new_producer_id(&self) -> Result<i64, TopicError> {
        todo!()
    }
    pub(crate) async fn append(
        &self,
        _topic: TopicId,
        _batches: Vec<AppendBatch>,
        _deadline: Instant,
    ) -> Pending {
        todo!()
    }
    pub(crate) async fn append_own(
        &self,
        _at: TopicPartition,
        _entries: Vec<OwnEntry>,
        _deadline: Instant,
    ) -> Result<Offset, AppendError> {
        todo!()
    }
    pub(crate) async fn read_own(
        &self,
        _at: TopicPartition,
        _from: Offset,
        _max: usize,
    ) -> Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure> {
        todo!()
    }
    pub(crate) fn offsets(&self, _at: TopicPartition) -> Result<PartitionOffsets, ReadFailure> {
        todo!()
    }
    pub(crate) async fn read(
        &self,
        _reads: &[ReadFrom],
        _max_bytes: usize,
    ) -> Vec<Result<PartitionRead, ReadFailure>> {
        todo!()
    }
    pub(crate) async fn find_timestamp(
        &self,
        _at: TopicPartition,
        _timestamp: i64,
    ) -> Result<Option<Bytes>, ReadFailure> {
        todo!()
    }
    pub(crate) async fn find_max_timestamp(&self, _at: TopicPartition) -> Result<Option<Bytes>, ReadFailure> {
        todo!()
    }
    pub(crate) fn end_of_epoch(
        &self,
        _at: TopicPartition,
        _epoch: i32,
    ) -> Result<Option<(i32, Offset)>, ReadFailure> {
        todo!()
    }
    pub(crate) async fn delete_records(
        &self,
        _at: TopicPartition,
        _before: Option<Offset>,
    ) -> Result<Offset, ReadFailure> {
        todo!()
    }
    pub(crate) fn watch(&self, _partitions: &[TopicPartition]) -> Watch {
        todo!()
    }
    pub(crate) fn range_stats(&self, _topic: TopicId) -> Vec<RangeStats> {
        todo!()
    }
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        todo!()
    }
    pub(crate) fn blocked(&self) -> Vec<String> {
        todo!()
    }
}
