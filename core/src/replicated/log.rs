//! The log of one partition as the runtime needs it, and its form over the door of core.

use crate::api::{Api, EntryKind, OwnEntry, Purpose};
use crate::error::{AppendError, ReadFailure, TopicPartition};
use crate::types::Offset;
use bytes::Bytes;
use std::future::Future;
use std::time::{Duration, Instant};

/// Where a partition's log starts and who leads it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// First readable offset.
    pub start: Offset,
    /// One above the last readable offset.
    pub end: Offset,
    /// Leader epoch; another one than at load means that others may have written.
    pub epoch: i32,
}

/// What a partition's log takes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// Everything.
    Records,
    /// What was decided before, and what frees space; nothing more shall be decided. The text says why.
    Freeing(String),
    /// Nothing. The text says why.
    Nothing(String),
}

impl Room {
    /// Why no record is to be made now.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Room::Records => None,
            Room::Freeing(why) | Room::Nothing(why) => Some(why),
        }
    }
}

/// One partition of an internal topic. Entries take one offset each, without gaps.
pub trait PartitionLog: Send + Sync + 'static {
    /// Appends; the offset of the first once all are durable. An error may leave any prefix of them stored, now or
    /// until a later append returns.
    fn append(&self, entries: Vec<OwnEntry>) -> impl Future<Output = Result<Offset, AppendError>> + Send;
    /// Durable entries from an offset on, at most `max_entries`; at least one if there is one.
    fn read(
        &self,
        from: Offset,
        max_entries: usize,
    ) -> impl Future<Output = Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure>> + Send;
    /// What would be taken now. Between this and an append there is room for what is decided at a time.
    fn room(&self) -> Room;
    /// Whether a disk is full, or the log has taken nothing since the start: then nothing is appended that can be done without.
    fn is_full(&self) -> bool;
    /// Raises the log start.
    fn trim(&self, before: Offset) -> impl Future<Output = Result<(), ReadFailure>> + Send;
    /// Start and epoch now; an error when this node does not lead the partition.
    fn bounds(&self) -> Result<LogBounds, ReadFailure>;
}

/// A partition reached through [`Api`].
#[derive(Clone, Debug)]
pub struct ApiLog {
    api: Api,
    at: TopicPartition,
    append_timeout: Duration,
}

impl ApiLog {
    /// The partition `at`; an append that takes longer than `append_timeout` counts as of unknown outcome.
    pub fn new(api: Api, at: TopicPartition, append_timeout: Duration) -> ApiLog {
        ApiLog { api, at, append_timeout }
    }
}

impl PartitionLog for ApiLog {
    async fn append(&self, entries: Vec<OwnEntry>) -> Result<Offset, AppendError> {
        // Whether anything may be decided was asked before: what was is stored, up to where fences have theirs.
        self.api.append_own(self.at, entries, Purpose::Freeing, Instant::now() + self.append_timeout).await
    }

    fn room(&self) -> Room {
        let full = |purpose| match self.api.takes_own(self.at, purpose) {
            Err(AppendError::Storage(why)) => Some(why),
            // Whoever appends is told.
            _ => None,
        };
        match (full(Purpose::Coordination), full(Purpose::Freeing)) {
            (None, _) => Room::Records,
            (Some(why), None) => Room::Freeing(why),
            (Some(_), Some(why)) => Room::Nothing(why),
        }
    }

    fn is_full(&self) -> bool {
        self.api.is_full(self.at)
    }

    async fn read(
        &self,
        from: Offset,
        max_entries: usize,
    ) -> Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure> {
        self.api.read_own(self.at, from, max_entries).await
    }

    async fn trim(&self, before: Offset) -> Result<(), ReadFailure> {
        self.api.delete_records(self.at, Some(before)).await.map(|_| ())
    }

    fn bounds(&self) -> Result<LogBounds, ReadFailure> {
        let offsets = self.api.offsets(self.at)?;
        let end = offsets.high_watermark;
        Ok(LogBounds { start: offsets.log_start, end, epoch: offsets.leader_epoch })
    }
}
