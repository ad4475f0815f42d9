//! Appending: batches of a topic to their ranges, ranges in order of their partitions.

use super::Inner;
use super::topic::TopicRuntime;
use crate::codec::batch::BATCH_HEAD_LEN;
use crate::codec::entry::EntryKind;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{Ack, Issued, Pending, Share};
use crate::range::primary::{Batch, Phase, Progress, RangePrimary, Told};
use crate::types::{Offset, Partition, TopicId};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

type Indices = SmallVec<[usize; 16]>;
type Groups = SmallVec<[(Arc<RangePrimary>, Indices); 2]>;

impl Inner {
    pub(crate) async fn append(&self, topic: TopicId, batches: Vec<Batch>, deadline: Instant) -> Pending {
        let ack = Arc::new(Ack::default());
        let mut issued: Vec<Option<Issued>> = vec![None; batches.len()];
        let runtime = self.topic(topic);
        let mut todo = group(runtime.as_deref(), &batches, 0..batches.len(), &mut issued);
        while let Some((range, which)) = todo.last_mut() {
            let items = which.iter().map(|&i| (&batches[i], Share::New(&ack, i)));
            let told = |n: usize, told: Told| issued[which[n]] = Some(told.issued());
            match range.issue(items, told, self.now_ms()) {
                Progress::All => {
                    todo.pop();
                    continue;
                }
                Progress::Part(n) => which.drain(..n),
            };
            if tokio::time::timeout_at(deadline.into(), range.wait_for_room()).await.is_err() {
                todo.pop();
            } else if range.phase() == Phase::Moved {
                let rest = todo.pop().map(|(_, which)| which).unwrap_or_default();
                todo.extend(group(runtime.as_deref(), &batches, rest, &mut issued));
            }
        }
        let issued =
            issued.into_iter().map(|one| one.unwrap_or(Issued::Err(AppendError::TimedOut))).collect();
        Pending::new(issued, ack)
    }

    pub(crate) async fn append_own(
        &self,
        at: TopicPartition,
        entries: Vec<(EntryKind, Bytes)>,
        deadline: Instant,
    ) -> Result<Offset, AppendError> {
        loop {
            let ack = Arc::new(Ack::default());
            let range = self.range(at).ok_or(AppendError::UnknownPartition)?;
            match range.issue_own(at.partition, &entries, &ack, self.now_ms())? {
                Some(base) => match durable(ack, base, deadline).await {
                    Err(error) if began_again(&error) => {}
                    outcome => return outcome,
                },
                None => wait_for_room(&range, deadline).await?,
            }
        }
    }

    /// Raises log starts of a topic durably, by one entry in each range that holds some of the partitions.
    pub(super) async fn raise_log_starts(
        &self,
        topic: TopicId,
        starts: &[(Partition, Offset)],
        deadline: Instant,
    ) -> Result<(), AppendError> {
        let mut rest: Vec<(Partition, Offset)> = starts.to_vec();
        while let Some(&(partition, _)) = rest.first() {
            let ack = Arc::new(Ack::default());
            let range =
                self.range(TopicPartition { topic, partition }).ok_or(AppendError::UnknownPartition)?;
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                rest.iter().partition(|(partition, _)| range.span.contains(*partition));
            match range.issue_log_starts(&here, &ack, self.now_ms())? {
                Some(()) => match durable(ack, 0, deadline).await {
                    Err(error) if began_again(&error) => {}
                    outcome => {
                        outcome?;
                        rest = elsewhere;
                    }
                },
                None => wait_for_room(&range, deadline).await?,
            }
        }
        Ok(())
    }
}

async fn wait_for_room(range: &RangePrimary, deadline: Instant) -> Result<(), AppendError> {
    let waited = tokio::time::timeout_at(deadline.into(), range.wait_for_room()).await;
    waited.map_err(|_| AppendError::TimedOut)
}

/// Whether the segment ended below an entry of our own: nothing of it is stored, and the successor takes it.
fn began_again(error: &AppendError) -> bool {
    matches!(error, AppendError::NotLeader { leader: None })
}

/// The batches `which` by the ranges that hold them; the last group comes first. In order of ranges for every request,
/// so that two requests never wait for each other crosswise.
fn group(
    topic: Option<&TopicRuntime>,
    batches: &[Batch],
    which: impl IntoIterator<Item = usize>,
    issued: &mut [Option<Issued>],
) -> Groups {
    let mut groups = Groups::new();
    for i in which {
        let batch = &batches[i];
        if batch.bytes.len() < BATCH_HEAD_LEN {
            issued[i] = Some(Issued::Err(AppendError::Invalid("a batch is shorter than its head".into())));
            continue;
        }
        if let Some((_, which)) = groups.iter_mut().find(|(range, _)| range.span.contains(batch.partition)) {
            which.push(i);
            continue;
        }
        match topic.and_then(|t| t.range_of(batch.partition)) {
            Some(range) => groups.push((range, SmallVec::from_iter([i]))),
            None => issued[i] = Some(Issued::Err(AppendError::UnknownPartition)),
        }
    }
    groups.sort_by_key(|(range, _)| std::cmp::Reverse(range.span.first));
    groups
}

async fn durable(ack: Arc<Ack>, base_offset: Offset, deadline: Instant) -> Result<Offset, AppendError> {
    let issued = vec![Issued::Ok { base_offset, log_start: 0, log_append_time: -1 }];
    match Pending::new(issued, ack).wait(deadline).await.pop() {
        Some(Issued::Ok { base_offset, .. }) => Ok(base_offset),
        Some(Issued::Err(error)) => Err(error),
        None => Err(AppendError::TimedOut),
    }
}
