//! Appending: batches of clients in their lanes, entries of our own.

use super::Inner;
use crate::codec::entry::EntryKind;
use crate::drive::Purpose;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{Ack, Issued, Pending};
use crate::range::lane::{Appending, Lane, Layout, Outcomes, Parking};
use crate::range::markers::Marker;
use crate::range::primary::{Batch, RangePrimary};
use crate::types::{LogletId, Offset, Partition, TopicId};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;

impl Layout for Inner {
    fn range_of(&self, at: TopicPartition) -> Option<Arc<RangePrimary>> {
        self.range(at)
    }

    fn now_ms(&self) -> i64 {
        Inner::now_ms(self)
    }

    fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }

    async fn leads(&self, at: TopicPartition, loglet: LogletId) -> bool {
        let Ok(state) = self.control.read_latest().await else { return false };
        let range = state.topics.get(&at.topic).and_then(|topic| topic.range_of(at.partition));
        let open = range.and_then(|range| range.open());
        open.is_some_and(|open| open.loglet == loglet && open.primary == self.primary)
    }
}

impl Inner {
    pub(crate) fn append(
        &self,
        lane: &Lane,
        topic: TopicId,
        batches: Vec<Batch>,
        deadline: Instant,
    ) -> Appending {
        lane.append(topic, batches, deadline, self)
    }

    /// Outcomes as clients get them: whatever is to be sent again is to be sent to this node.
    pub(crate) async fn outcomes(&self, appending: Appending) -> Outcomes {
        self.named(appending.wait(self).await)
    }

    pub(crate) fn named(&self, mut outcomes: Outcomes) -> Outcomes {
        for one in &mut outcomes.batches {
            if let Issued::Err(AppendError::NotLeader { leader: leader @ None }) = one {
                *leader = Some(self.node());
            }
        }
        outcomes
    }

    pub(crate) async fn append_own(
        &self,
        at: TopicPartition,
        entries: Vec<(EntryKind, Bytes)>,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<Offset, AppendError> {
        loop {
            let ack = Arc::new(Ack::default());
            let range = self.range(at).ok_or(AppendError::UnknownPartition)?;
            match range.issue_own(at.partition, &entries, purpose, &ack, self.now_ms())? {
                Some(base) => match durable(ack, base, deadline).await {
                    Err(error) if began_again(&error) => {}
                    outcome => return outcome,
                },
                None => wait_for_room(&range, deadline).await?,
            }
        }
    }

    /// Whether entries of our own are taken of a partition.
    pub(crate) fn takes_own(&self, at: TopicPartition, purpose: Purpose) -> Result<(), AppendError> {
        self.range(at).ok_or(AppendError::UnknownPartition)?.takes_own(purpose)
    }

    /// See [`RangePrimary::is_full`].
    pub(crate) fn is_full(&self, at: TopicPartition) -> bool {
        self.range(at).is_some_and(|range| range.is_full())
    }

    /// Ends a transaction in one partition durably.
    pub(crate) async fn write_marker(
        &self,
        at: TopicPartition,
        marker: &Marker,
        deadline: Instant,
    ) -> Result<(), AppendError> {
        loop {
            let ack = Arc::new(Ack::default());
            let range = self.range(at).ok_or(AppendError::UnknownPartition)?;
            match range.issue_marker(at.partition, marker, &ack, self.now_ms())? {
                Some(()) => match durable(ack, 0, deadline).await {
                    Err(error) if began_again(&error) => {}
                    outcome => return outcome.map(|_| ()),
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

async fn durable(ack: Arc<Ack>, base_offset: Offset, deadline: Instant) -> Result<Offset, AppendError> {
    let issued = vec![Issued::Ok { base_offset, log_start: 0, log_append_time: -1 }];
    match Pending::new(issued, ack).wait(deadline).await.pop() {
        Some(Issued::Ok { base_offset, .. }) => Ok(base_offset),
        Some(Issued::Err(error)) => Err(error),
        None => Err(AppendError::TimedOut),
    }
}
