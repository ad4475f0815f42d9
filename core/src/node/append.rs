//! Appending: batches of a topic to their ranges, ranges in order of their partitions.

use super::Inner;
use crate::codec::batch::BATCH_HEAD_LEN;
use crate::codec::entry::EntryKind;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{Ack, Issued, Pending};
use crate::range::primary::{Batch, Progress, RangePrimary};
use crate::types::{Offset, Partition, TopicId};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

type Indices = SmallVec<[usize; 16]>;

impl Inner {
    pub(crate) async fn append(&self, topic: TopicId, batches: Vec<Batch>, deadline: Instant) -> Pending {
        let ack = Arc::new(Ack::default());
        let mut issued: Vec<Option<Issued>> = vec![None; batches.len()];
        let mut groups: SmallVec<[(Arc<RangePrimary>, Indices); 2]> = SmallVec::new();
        let runtime = self.topic(topic);
        for (i, batch) in batches.iter().enumerate() {
            if batch.bytes.len() < BATCH_HEAD_LEN {
                issued[i] =
                    Some(Issued::Err(AppendError::Invalid("a batch is shorter than its head".into())));
                continue;
            }
            if let Some((_, which)) =
                groups.iter_mut().find(|(range, _)| range.span.contains(batch.partition))
            {
                which.push(i);
                continue;
            }
            match runtime.as_ref().and_then(|t| t.range_of(batch.partition)) {
                Some(range) => groups.push((range, SmallVec::from_iter([i]))),
                None => issued[i] = Some(Issued::Err(AppendError::UnknownPartition)),
            }
        }
        // In order of ranges for every request, so that two requests never wait for each other crosswise.
        groups.sort_by_key(|(range, _)| range.span.first);
        for (range, which) in &groups {
            self.issue_all(range, &batches, which, &ack, &mut issued, deadline).await;
        }
        let issued =
            issued.into_iter().map(|one| one.unwrap_or(Issued::Err(AppendError::TimedOut))).collect();
        Pending::new(issued, ack)
    }

    async fn issue_all(
        &self,
        range: &Arc<RangePrimary>,
        batches: &[Batch],
        which: &[usize],
        ack: &Arc<Ack>,
        issued: &mut [Option<Issued>],
        deadline: Instant,
    ) {
        let mut done = 0;
        loop {
            match range.issue(batches, &which[done..], ack, issued, self.now_ms()) {
                Progress::All => return,
                Progress::Part(n) => done += n,
            }
            if tokio::time::timeout_at(deadline.into(), range.wait_for_room()).await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn append_own(
        &self,
        at: TopicPartition,
        entries: Vec<(EntryKind, Bytes)>,
        deadline: Instant,
    ) -> Result<Offset, AppendError> {
        let range = self.range(at).ok_or(AppendError::UnknownPartition)?;
        let ack = Arc::new(Ack::default());
        let base_offset = loop {
            if let Some(base) = range.issue_own(at.partition, &entries, &ack, self.now_ms())? {
                break base;
            }
            if tokio::time::timeout_at(deadline.into(), range.wait_for_room()).await.is_err() {
                return Err(AppendError::TimedOut);
            }
        };
        durable(ack, base_offset, deadline).await
    }

    /// Raises log starts of one range, durably.
    pub(super) async fn raise_log_starts(
        &self,
        range: &Arc<RangePrimary>,
        starts: &[(Partition, Offset)],
        deadline: Instant,
    ) -> Result<(), AppendError> {
        let ack = Arc::new(Ack::default());
        while range.issue_log_starts(starts, &ack, self.now_ms())?.is_none() {
            if tokio::time::timeout_at(deadline.into(), range.wait_for_room()).await.is_err() {
                return Err(AppendError::TimedOut);
            }
        }
        durable(ack, 0, deadline).await.map(|_| ())
    }
}

async fn durable(ack: Arc<Ack>, base_offset: Offset, deadline: Instant) -> Result<Offset, AppendError> {
    let issued = vec![Issued::Ok { base_offset, log_start: 0, log_append_time: -1 }];
    match Pending::new(issued, ack).wait(deadline).await.pop() {
        Some(Issued::Ok { base_offset, .. }) => Ok(base_offset),
        Some(Issued::Err(error)) => Err(error),
        None => Err(AppendError::TimedOut),
    }
}
