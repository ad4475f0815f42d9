//! State of a range: what a fold over its entries' headers gives, and the decision where a batch goes (design 6).
//!
//! Owns numbering: next offsets, log starts, leader epochs, the producer table. `apply` (with `apply_log_starts`) is
//! the one step by which entries change it, taken by the live primary and by recovery alike, so memory and log cannot
//! disagree. Knows nothing of drives, durability or who waits: an offset handed out here is not yet acknowledged.

use crate::codec::batch::{BatchHead, TRANSACTIONAL_BIT};
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::range::epochs::EpochTable;
use crate::range::producers::{ProducerTable, RecentBatch, sequence_after};
use crate::range::transactions::Transactions;
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, Offset, Partition, Span};
use std::sync::Arc;

/// Partitions per copy-on-write chunk: what the first write after a capture copies.
pub(super) const CHUNK: usize = 256;

/// What is known of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// Offset that the next record gets.
    pub next: Offset,
    /// First offset that may be read; at most `next`.
    pub log_start: Offset,
    /// Which leader epoch began where.
    pub epochs: EpochTable,
    /// Payload bytes of its entries in the range's whole life: the difference of two is what lies between.
    pub bytes: u64,
    /// Largest timestamp of its batches so far, ms; 0 without.
    pub max_timestamp: i64,
    /// Its open and aborted transactions; the open ones are those of its producers.
    pub transactions: Transactions,
}

/// The folded state of a range. Cloning copies pointers only (one for 256 partitions, one for up to 32 producers).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeState {
    pub(super) span: Span,
    pub(super) chunks: Vec<Arc<[PartitionState]>>,
    pub(super) producers: ProducerTable,
}

/// How a batch's offset is chosen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sequencing {
    /// The next offset, the current leader epoch, the producer's sequence checked.
    Next(FirstSequence),
    /// A given offset, at or above the next one, and leader epoch: a batch copied from a log that has sequenced it, so
    /// the producer's sequence is recorded and not judged.
    At(Offset, i32),
}

/// What a partition takes as the first sequence of a producer that it does not know.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FirstSequence {
    /// Any: the producer may have been forgotten.
    Any,
    /// 0: each transaction begins there, so another one has overtaken it or follows one that was refused (KIP-890).
    Zero,
}

/// What to do with a batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Append it with these numbers.
    Append {
        /// Offset of its first record.
        base_offset: Offset,
        /// Leader epoch to stamp.
        leader_epoch: i32,
    },
    /// It is there already; to be answered when the original is known to be durable, not earlier.
    Duplicate {
        /// Offset of the original's first record.
        base_offset: Offset,
        /// Offset of the original's last record.
        last_offset: Offset,
        /// Loglet and local address of the original.
        place: (LogletId, Address),
        /// When the original was sequenced, broker ms.
        appended_at: i64,
    },
    /// Do not append it.
    Refuse(SequenceRefusal),
}

/// Why a batch gets no offset. True of this state; a primary that may be sealed must not answer it (R6).
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceRefusal {
    /// Not a partition of this range, for good: the caller's layout is stale.
    #[error("partition {0} is not in this range")]
    OutsideSpan(Partition),
    /// Sequence neither the next nor one of the last five; for good, unless batches before it arrive first.
    #[error("out of order sequence: got {got}, expected {expected}")]
    OutOfOrder {
        /// First sequence of the batch.
        got: i32,
        /// The next one in order.
        expected: i32,
    },
    /// The producer's epoch is older than one that has written; for good.
    #[error("producer epoch {got} is fenced by epoch {current}")]
    InvalidProducerEpoch {
        /// Epoch of the batch.
        got: i16,
        /// Newest epoch that has written.
        current: i16,
    },
    /// A batch outside of any transaction, of a producer whose transaction is open; until that has ended.
    #[error("a batch outside of the producer's transaction, which is open since offset {0}")]
    TransactionOpen(Offset),
    /// A given offset below the next one; for good.
    #[error("offset {got} is below the next offset {next}")]
    OffsetTaken {
        /// Offset given.
        got: Offset,
        /// The next one.
        next: Offset,
    },
    /// A given leader epoch below the current one; for good.
    #[error("leader epoch {got} is below the current epoch {current}")]
    LeaderEpochFell {
        /// Epoch given.
        got: i32,
        /// The partition's newest.
        current: i32,
    },
    /// The batch's own numbers are impossible (negative count or sequence, offsets beyond 2^63 - 1); for good.
    #[error("the batch's numbers are impossible: last offset delta {last_offset_delta}, sequence {sequence}")]
    Impossible {
        /// Last offset delta of the batch.
        last_offset_delta: i32,
        /// First sequence of the batch.
        sequence: i32,
    },
}

/// Why an entry does not follow from the state: a damaged log or two sequencers. Final; the state is unchanged.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Not a partition of this range.
    #[error("entry of partition {0}, which is not in this range")]
    OutsideSpan(Partition),
    /// Its offsets would number a record twice or are impossible.
    #[error(
        "partition {partition}: entry with offset {base_offset} and delta {last_offset_delta}, next is {next}"
    )]
    Offset {
        /// The partition.
        partition: Partition,
        /// Base offset of the entry.
        base_offset: Offset,
        /// Last offset delta of the entry.
        last_offset_delta: i32,
        /// Next offset of the partition.
        next: Offset,
    },
    /// Its leader epoch is below one already seen.
    #[error("partition {partition}: entry of leader epoch {got} after epoch {current}")]
    LeaderEpochFell {
        /// The partition.
        partition: Partition,
        /// Epoch of the entry.
        got: i32,
        /// The partition's newest.
        current: i32,
    },
    /// A log start above the end.
    #[error("partition {partition}: log start {got} above the next offset {next}")]
    LogStartAboveEnd {
        /// The partition.
        partition: Partition,
        /// Log start of the entry.
        got: Offset,
        /// Next offset of the partition.
        next: Offset,
    },
}

/// A state as it was when the entry at `from` was the next to be sequenced; encodes to a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The state.
    pub state: RangeState,
    /// The first address, of the loglet that will hold the checkpoint, whose entry is not in the state.
    pub from: Address,
}

impl RangeState {
    /// A range in which nothing was written.
    pub fn new(span: Span) -> RangeState {
        RangeState::from_partitions(
            span,
            (0..span.count()).map(|_| PartitionState::default()),
            ProducerTable::default(),
        )
    }

    pub(super) fn from_partitions(
        span: Span,
        partitions: impl Iterator<Item = PartitionState>,
        producers: ProducerTable,
    ) -> RangeState {
        let all: Vec<PartitionState> = partitions.collect();
        assert_eq!(all.len(), span.count(), "one state for each partition of the span");
        RangeState { span, chunks: all.chunks(CHUNK).map(Arc::from).collect(), producers }
    }

    /// The partitions of the range.
    pub fn span(&self) -> Span {
        self.span
    }

    /// What is known of a partition; `None` outside of the span.
    pub fn partition(&self, partition: Partition) -> Option<&PartitionState> {
        let at = self.span.index(partition)?;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// All partitions in order.
    pub fn partitions(&self) -> impl Iterator<Item = (Partition, &PartitionState)> {
        self.span.iter().zip(self.chunks.iter().flat_map(|chunk| chunk.iter()))
    }

    /// The log starts that rose, in partition order.
    pub fn log_starts(&self) -> Arc<[(Partition, Offset)]> {
        let raised = self.partitions().filter(|(_, p)| p.log_start > 0);
        raised.map(|(partition, p)| (partition, p.log_start)).collect()
    }

    /// The producers of the range.
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// Where a batch goes. Changes nothing: an append takes place when its header is given to [`RangeState::apply`],
    /// before the next decision.
    pub fn decide(&self, partition: Partition, head: &BatchHead, sequencing: Sequencing) -> Decision {
        let Some(state) = self.partition(partition) else {
            return Decision::Refuse(SequenceRefusal::OutsideSpan(partition));
        };
        let current = state.epochs.latest().unwrap_or(0);
        let (base_offset, leader_epoch) = match sequencing {
            Sequencing::Next(_) => (state.next, current),
            Sequencing::At(offset, _) if offset < state.next => {
                return Decision::Refuse(SequenceRefusal::OffsetTaken { got: offset, next: state.next });
            }
            Sequencing::At(_, epoch) if epoch < current => {
                return Decision::Refuse(SequenceRefusal::LeaderEpochFell { got: epoch, current });
            }
            Sequencing::At(offset, epoch) => (offset, epoch),
        };
        let sequenced = head.producer_id >= 0 && !head.is_control();
        let impossible = head.last_offset_delta < 0
            || end_after(base_offset, head.last_offset_delta).is_none()
            || (sequenced && head.base_sequence < 0 && matches!(sequencing, Sequencing::Next(_)));
        if impossible {
            let (last_offset_delta, sequence) = (head.last_offset_delta, head.base_sequence);
            return Decision::Refuse(SequenceRefusal::Impossible { last_offset_delta, sequence });
        }
        if let Sequencing::Next(first) = sequencing
            && sequenced
        {
            match self.judge(partition, head, first) {
                Ok(None) => {}
                Ok(Some(original)) => return original,
                Err(refusal) => return Decision::Refuse(refusal),
            }
        }
        Decision::Append { base_offset, leader_epoch }
    }

    /// The producer's side of a decision: the original if `head` is a duplicate, nothing if it is the next batch.
    fn judge(
        &self,
        partition: Partition,
        head: &BatchHead,
        first: FirstSequence,
    ) -> Result<Option<Decision>, SequenceRefusal> {
        let got = head.base_sequence;
        let Some(producer) = self.producers.get(partition, head.producer_id) else {
            return match first {
                FirstSequence::Zero if got != 0 => Err(SequenceRefusal::OutOfOrder { got, expected: 0 }),
                FirstSequence::Any | FirstSequence::Zero => Ok(None),
            };
        };
        let (epoch, current) = (head.producer_epoch, producer.epoch());
        if epoch < current {
            return Err(SequenceRefusal::InvalidProducerEpoch { got: epoch, current });
        }
        let last = sequence_after(got, head.last_offset_delta);
        if epoch == current
            && let Some(original) = producer.duplicate_of(got, last)
        {
            return Ok(Some(Decision::Duplicate {
                base_offset: original.base_offset,
                last_offset: original.last_offset(),
                place: (original.loglet, original.address),
                appended_at: original.appended_at,
            }));
        }
        // One whose epoch was raised by a marker has no batch of it.
        let before = producer.last().filter(|_| epoch == current);
        let expected = before.map_or(0, |last| sequence_after(last.last_sequence, 1));
        if got != expected {
            return Err(SequenceRefusal::OutOfOrder { got, expected });
        }
        match producer.open() {
            Some(first) if !head.is_transactional() => Err(SequenceRefusal::TransactionOpen(first)),
            _ => Ok(None),
        }
    }

    /// Takes in an entry of the log, in address order. The payload of log-start entries goes to
    /// [`RangeState::apply_log_starts`]; they and checkpoints change nothing here.
    ///
    /// Errors: final, the entry does not follow from the state, which is unchanged.
    pub fn apply(&mut self, header: &EntryHeader) -> Result<(), ApplyError> {
        match header.kind {
            EntryKind::Checkpoint | EntryKind::LogStart => Ok(()),
            EntryKind::Data | EntryKind::Control | EntryKind::Snapshot | EntryKind::Marker => {
                self.apply_records(header)
            }
        }
    }

    fn apply_records(&mut self, header: &EntryHeader) -> Result<(), ApplyError> {
        let EntryHeader { partition, base_offset, last_offset_delta, leader_epoch, .. } = *header;
        let state = self.partition_mut(partition).ok_or(ApplyError::OutsideSpan(partition))?;
        let next = state.next;
        let end = end_after(base_offset, last_offset_delta).filter(|_| base_offset >= next);
        let Some(end) = end else {
            return Err(ApplyError::Offset { partition, base_offset, last_offset_delta, next });
        };
        match state.epochs.latest() {
            Some(current) if leader_epoch < current => {
                return Err(ApplyError::LeaderEpochFell { partition, got: leader_epoch, current });
            }
            Some(current) if leader_epoch == current => {}
            _ => state.epochs.begin(leader_epoch, base_offset),
        }
        state.next = end;
        state.bytes = state.bytes.saturating_add(u64::from(header.payload_len));
        state.max_timestamp = state.max_timestamp.max(header.max_timestamp);
        match header.kind {
            EntryKind::Marker => self.apply_marker(header),
            // A control batch carries its producer's id and no sequence.
            EntryKind::Data if header.producer_id >= 0 && header.first_sequence >= 0 => {
                self.apply_sequence(header);
            }
            _ => {}
        }
        Ok(())
    }

    /// Remembers a batch of a producer, and a transaction that begins with it.
    fn apply_sequence(&mut self, header: &EntryHeader) {
        let EntryHeader { partition, producer_id, base_offset, .. } = *header;
        let batch = RecentBatch {
            first_sequence: header.first_sequence,
            last_sequence: sequence_after(header.first_sequence, header.last_offset_delta),
            base_offset,
            loglet: header.loglet,
            address: header.address,
            appended_at: header.appended_at,
        };
        let producer =
            self.producers.touch(partition, producer_id, header.producer_epoch, header.appended_at);
        producer.record(header.producer_epoch, batch);
        let begins = header.attributes & TRANSACTIONAL_BIT != 0 && producer.begin(base_offset);
        if begins && let Some(state) = self.partition_mut(partition) {
            state.transactions.begin(base_offset, producer_id);
        }
    }

    /// Raises log starts, the payload of a log-start entry; one at or below the present log start changes nothing.
    ///
    /// Errors: final, a partition or offset is not of this range; nothing is changed.
    pub fn apply_log_starts(&mut self, starts: &[(Partition, Offset)]) -> Result<(), ApplyError> {
        for &(partition, got) in starts {
            let state = self.partition(partition).ok_or(ApplyError::OutsideSpan(partition))?;
            if got > state.next {
                return Err(ApplyError::LogStartAboveEnd { partition, got, next: state.next });
            }
        }
        for &(partition, start) in starts {
            let raised = self.partition(partition).is_some_and(|state| state.log_start < start);
            if raised && let Some(state) = self.partition_mut(partition) {
                state.log_start = start;
                state.epochs.trim(start);
            }
        }
        Ok(())
    }

    /// The partitions of `span` carry `leader_epoch` from their next record on: called for each run of the control
    /// state when a segment opens, before its first checkpoint is captured. Partitions outside of the range are left
    /// out; an epoch at or below the newest changes nothing.
    pub fn set_epoch(&mut self, span: Span, leader_epoch: i32) {
        let (first, last) = (span.first.max(self.span.first), span.last.min(self.span.last));
        for partition in (Span { first, last }).iter() {
            let leader_epoch = match broken(Mutant::EpochFromFold) {
                true => self.partition(partition).and_then(|s| s.epochs.latest()).map_or(0, |e| e + 1),
                false => leader_epoch,
            };
            let newer = self
                .partition(partition)
                .is_some_and(|s| s.epochs.latest().is_none_or(|latest| latest < leader_epoch));
            if newer && let Some(state) = self.partition_mut(partition) {
                let next = state.next;
                state.epochs.begin(leader_epoch, next);
                state.epochs.trim(state.log_start);
            }
        }
    }

    /// The partition's largest known leader epoch at or below `epoch` and the offset where it ends, the newest one at
    /// `high_watermark`; `None` outside of the span, for a negative epoch and one above the newest.
    pub fn end_of_epoch(
        &self,
        partition: Partition,
        epoch: i32,
        high_watermark: Offset,
    ) -> Option<(i32, Offset)> {
        self.partition(partition)?.epochs.end_of(epoch, high_watermark)
    }

    /// Forgets producers whose last batch was appended before `before_ms`, and of the rest all but the `keep_max` most
    /// recent. Called only just before a capture whose checkpoint is then written: so the fold forgets the same ones.
    pub fn expire(&mut self, before_ms: i64, keep_max: usize) {
        self.producers.expire(before_ms, keep_max);
    }

    /// The state as it is now, for a checkpoint to be encoded later, outside of the range's lock. `from` is the next
    /// address that the loglet's sequencer hands out.
    pub fn capture(&self, from: Address) -> Captured {
        Captured { state: self.clone(), from }
    }

    pub(super) fn partition_mut(&mut self, partition: Partition) -> Option<&mut PartitionState> {
        let at = self.span.index(partition)?;
        Arc::make_mut(self.chunks.get_mut(at / CHUNK)?).get_mut(at % CHUNK)
    }
}

/// The offset after a batch; `None` when its numbers are impossible.
fn end_after(base_offset: Offset, last_offset_delta: i32) -> Option<Offset> {
    if base_offset < 0 || last_offset_delta < 0 {
        return None;
    }
    base_offset.checked_add(i64::from(last_offset_delta))?.checked_add(1)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
