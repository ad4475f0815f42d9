//! Reading: partitions to their ranges, stored bytes as they are.

use super::Inner;
use super::pieces::Pieces;
use crate::api::{AbortedTransaction, PartitionOffsets, PartitionRead, ProducerView, ReadFrom, ReadMemory};
use crate::codec::entry::EntryKind;
use crate::drive::Stored;
use crate::error::{ReadFailure, TopicPartition};
use crate::range::primary::{Known, RangePrimary, ReadView};
use crate::range::producers::Producer;
use crate::range::read::{Isolation, load};
use crate::types::Offset;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Inner {
    /// Looks at the range that holds a partition. What it says of the log's end stands only if it still holds the
    /// partition after it was looked at; else the one that does then is asked (R6).
    ///
    /// Errors: `UnknownPartition`.
    pub(super) fn look<T>(
        &self,
        at: TopicPartition,
        look: impl Fn(&RangePrimary) -> Option<T>,
    ) -> Result<T, ReadFailure> {
        // Goes round as often as the layout changes meanwhile.
        loop {
            let range = self.range(at).ok_or(ReadFailure::UnknownPartition)?;
            let seen = look(&range);
            if self.holds(&range, at) {
                return seen.ok_or(ReadFailure::UnknownPartition);
            }
        }
    }

    /// Asks the range that holds a partition. An answer of which `stands` is true is given as it is, since what an older
    /// range holds stays true; any other, and every failure, only if the range still holds the partition then (R6).
    pub(super) async fn ask<T, F: Future<Output = Result<T, ReadFailure>>>(
        &self,
        at: TopicPartition,
        stands: impl Fn(&T) -> bool,
        ask: impl Fn(Arc<RangePrimary>) -> F,
    ) -> Result<T, ReadFailure> {
        loop {
            let range = self.range(at).ok_or(ReadFailure::UnknownPartition)?;
            let answer = ask(range.clone()).await;
            if answer.as_ref().is_ok_and(&stands) || self.holds(&range, at) {
                return answer;
            }
        }
    }

    fn holds(&self, range: &Arc<RangePrimary>, at: TopicPartition) -> bool {
        self.range(at).is_some_and(|now| Arc::ptr_eq(&now, range))
    }

    pub(crate) fn offsets(&self, at: TopicPartition) -> Result<PartitionOffsets, ReadFailure> {
        match self.known_offsets(at)? {
            (offsets, None) => Ok(offsets),
            (_, Some(why)) => Err(ReadFailure::Storage(why)),
        }
    }

    /// Offsets as far as the log can be read, and why no further.
    pub(crate) fn known_offsets(
        &self,
        at: TopicPartition,
    ) -> Result<(PartitionOffsets, Option<String>), ReadFailure> {
        let (view, known) =
            self.look(at, |range| Some((range.view(at.partition)?, range.known().clone())))?;
        let offsets = offsets_of(&view);
        match known {
            Known::Whole => Ok((offsets, None)),
            Known::Prefix(why) => Ok((offsets, Some(why))),
            Known::Nothing(why) => Err(ReadFailure::Storage(why)),
        }
    }

    pub(crate) async fn read(
        &self,
        reads: &[ReadFrom],
        max_bytes: usize,
        memory: &mut dyn ReadMemory,
    ) -> Vec<Result<PartitionRead, ReadFailure>> {
        let mut answers = Vec::with_capacity(reads.len());
        let mut left = max_bytes;
        let mut first_whole = true;
        for one in reads {
            let room = memory.take(left.min(one.max_bytes));
            let answer = self.read_one(one, left.min(room), first_whole).await;
            let kept = answer.as_ref().map_or(0, |read| read.memory);
            memory.keep(kept);
            if let Ok(read) = &answer
                && read.bytes > 0
            {
                first_whole = false;
                left = left.saturating_sub(read.bytes);
            }
            answers.push(answer);
        }
        answers
    }

    async fn read_one(
        &self,
        from: &ReadFrom,
        left: usize,
        first_whole: bool,
    ) -> Result<PartitionRead, ReadFailure> {
        let at = TopicPartition { topic: from.topic, partition: from.partition };
        let limit = if first_whole { from.max_bytes.max(1) } else { from.max_bytes.min(left) };
        let limit = limit.min(left.max(1));
        let max_bytes = if left == 0 && !first_whole { 0 } else { limit };
        let (partition, offset, isolation) = (from.partition, from.offset, from.isolation);
        let read = |range: Arc<RangePrimary>| async move {
            range.read(partition, offset, max_bytes, isolation).await
        };
        // An old end is a lower bound, which is enough for a fetch.
        let found = self.ask(at, |_| true, read).await?;
        let mut read = PartitionRead {
            offsets: offsets_of(&found.view),
            pieces: Vec::new(),
            bytes: 0,
            memory: 0,
            next_offset: from.offset,
            aborted: Vec::new(),
        };
        let mut pieces = Pieces::of(&found.entries);
        for stored in found.entries {
            let len = stored.payload.len();
            if read.bytes + len > limit && !(first_whole && read.bytes == 0) {
                break;
            }
            read.next_offset = stored.header.last_offset() + 1;
            if !matches!(stored.header.kind, EntryKind::Data | EntryKind::Marker) {
                continue;
            }
            read.bytes += len;
            pieces.push(stored.payload);
        }
        (read.pieces, read.memory) = pieces.finish();
        let aborted = found.aborted.into_iter().filter(|span| span.first < read.next_offset);
        read.aborted = aborted
            .map(|span| AbortedTransaction { producer_id: span.producer_id, first_offset: span.first })
            .collect();
        Ok(read)
    }

    pub(crate) fn producers(&self, at: TopicPartition) -> Result<Vec<ProducerView>, ReadFailure> {
        let (producers, known) = self
            .look(at, |range| Some((range.producers(at.partition, producer_view)?, range.known().clone())))?;
        match known {
            Known::Whole => Ok(producers),
            Known::Prefix(why) | Known::Nothing(why) => Err(ReadFailure::Storage(why)),
        }
    }

    pub(crate) async fn read_own(
        &self,
        at: TopicPartition,
        from: Offset,
        max_entries: usize,
    ) -> Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure> {
        let read = |range: Arc<RangePrimary>| async move {
            range.read(at.partition, from, OWN_BYTES_MAX, Isolation::Uncommitted).await
        };
        let found = self.ask(at, |found| !found.entries.is_empty(), read).await?;
        let mut entries = Vec::with_capacity(found.entries.len().min(max_entries));
        for stored in found.entries.into_iter().take(max_entries) {
            let (offset, kind) = (stored.header.base_offset, stored.header.kind);
            entries.push((offset, kind, bytes_of(at, stored).await?));
        }
        Ok(entries)
    }

    pub(crate) async fn find_timestamp(
        &self,
        at: TopicPartition,
        timestamp: i64,
    ) -> Result<Option<Bytes>, ReadFailure> {
        let find =
            |range: Arc<RangePrimary>| async move { range.first_at_timestamp(at.partition, timestamp).await };
        match self.ask(at, Option::is_some, find).await? {
            Some(stored) => bytes_of(at, stored).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn find_max_timestamp(&self, at: TopicPartition) -> Result<Option<Bytes>, ReadFailure> {
        // The largest of an older range may not be the largest any more.
        let find = |range: Arc<RangePrimary>| async move { range.first_at_max_timestamp(at.partition).await };
        match self.ask(at, |_| false, find).await? {
            Some(stored) => bytes_of(at, stored).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn end_of_epoch(
        &self,
        at: TopicPartition,
        epoch: i32,
    ) -> Result<Option<(i32, Offset)>, ReadFailure> {
        self.look(at, |range| Some(range.end_of_epoch(at.partition, epoch)))
    }

    pub(crate) async fn delete_records(
        &self,
        at: TopicPartition,
        before: Option<Offset>,
    ) -> Result<Offset, ReadFailure> {
        let (view, known) =
            self.look(at, |range| Some((range.view(at.partition)?, range.known().clone())))?;
        if let Known::Prefix(why) | Known::Nothing(why) = known {
            return Err(ReadFailure::Storage(why));
        }
        let to = before.unwrap_or(view.high_watermark);
        if to > view.high_watermark || to < 0 {
            let (log_start, end) = (view.log_start, view.high_watermark);
            return Err(ReadFailure::OutOfRange { got: to, log_start, end });
        }
        if to <= view.log_start {
            return Ok(view.log_start);
        }
        let deadline = Instant::now() + DELETE_TIMEOUT;
        self.raise_log_starts(at.topic, &[(at.partition, to)], deadline)
            .await
            .map_err(|e| ReadFailure::Storage(e.to_string()))?;
        Ok(self.range(at).and_then(|r| r.view(at.partition)).map_or(to, |view| view.log_start))
    }
}

const OWN_BYTES_MAX: usize = 4 << 20;
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

fn offsets_of(view: &ReadView) -> PartitionOffsets {
    PartitionOffsets {
        log_start: view.log_start,
        high_watermark: view.high_watermark,
        last_stable: view.last_stable,
        leader_epoch: view.leader_epoch,
    }
}

fn producer_view(producer_id: i64, producer: &Producer) -> ProducerView {
    ProducerView {
        producer_id,
        epoch: producer.epoch(),
        last_sequence: producer.last().map_or(-1, |batch| batch.last_sequence),
        last_timestamp: producer.touched_at(),
        coordinator_epoch: producer.marker().map_or(-1, |marker| marker.coordinator_epoch),
        transaction_start: producer.open().unwrap_or(-1),
    }
}

async fn bytes_of(at: TopicPartition, stored: Stored) -> Result<Bytes, ReadFailure> {
    load(stored.payload)
        .await
        .map_err(|e| ReadFailure::Storage(format!("topic {} partition {}: {e}", at.topic, at.partition)))
}
