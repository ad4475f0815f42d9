//! Markers in the fold: whether one is taken, and what it does to its producer and partition (KIP-98, KIP-890,
//! reshard-rules R17). Pure.
//!
//! A transaction has a number that grows per producer id. The table keeps the highest that a marker named, so that a copy
//! of a marker that comes late (parked at a split, sent again after a lost answer) ends nothing: it is known.

use crate::codec::entry::EntryHeader;
use crate::codec::marker::MarkerBody;
use crate::range::producers::LastMarker;
use crate::range::state::RangeState;
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, Offset, Partition};

/// Whose rules of epochs hold for a transaction (feature `transaction.version`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TransactionVersion {
    /// The marker has the epoch of the transaction's batches, or a higher one.
    V1,
    /// The marker has a higher epoch than the transaction's batches (KIP-890): late ones are refused after it.
    V2,
}

/// The end of a transaction in one partition, as its coordinator decided it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Whose transaction ends.
    pub producer_id: i64,
    /// The epoch that the producer has from here on; batches of older ones are refused.
    pub producer_epoch: i16,
    /// Leader epoch of the coordinator's partition; a lower one than that of the producer's last marker is refused.
    pub coordinator_epoch: i32,
    /// Number of the transaction, growing per producer id from 1. One at or below the last that was marked in the
    /// partition is done. 0: no number, as of an operator's own marker, which is always taken for a new one.
    pub number: u64,
    /// Commit, else abort.
    pub commit: bool,
    /// Whose rules of epochs hold.
    pub version: TransactionVersion,
}

/// What to do with a marker.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MarkerDecision {
    /// Append it with these numbers.
    Append {
        /// Its offset.
        base_offset: Offset,
        /// Leader epoch to stamp.
        leader_epoch: i32,
    },
    /// Its transaction is marked, by the entry there or an older one: to be answered once that is durable.
    Known((LogletId, Address)),
    /// Do not append it.
    Refuse(MarkerRefusal),
}

/// Why a marker is not taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerRefusal {
    /// Not a partition of this range, for good: the caller's layout is stale.
    #[error("partition {0} is not in this range")]
    OutsideSpan(Partition),
    /// Another coordinator has taken over; for good.
    #[error("coordinator epoch {got} is fenced by epoch {current}")]
    CoordinatorFenced {
        /// Epoch of the marker.
        got: i32,
        /// Epoch of the producer's last marker.
        current: i32,
    },
    /// The producer's epoch in the partition is higher, or, with version 2, that of its open transaction; for good.
    #[error("producer epoch {got} of the marker is fenced by epoch {current}")]
    ProducerFenced {
        /// Epoch of the marker.
        got: i16,
        /// Newest epoch of the producer.
        current: i16,
    },
    /// Negative numbers; for good.
    #[error("the marker's numbers are impossible: producer {producer_id}, epoch {producer_epoch}")]
    Impossible {
        /// Producer of the marker.
        producer_id: i64,
        /// Epoch of the marker.
        producer_epoch: i16,
    },
}

impl Marker {
    /// What of it is stored.
    pub fn body(&self) -> MarkerBody {
        let Marker { producer_id, producer_epoch, coordinator_epoch, number, commit, .. } = *self;
        MarkerBody { producer_id, producer_epoch, coordinator_epoch, number, commit }
    }
}

impl RangeState {
    /// What to do with a marker. Changes nothing: an append takes place when its header is given to
    /// [`RangeState::apply`], before the next decision. One for a producer without an open transaction is taken, too.
    pub fn decide_marker(&self, partition: Partition, marker: &Marker) -> MarkerDecision {
        let Some(state) = self.partition(partition) else {
            return MarkerDecision::Refuse(MarkerRefusal::OutsideSpan(partition));
        };
        let Marker { producer_id, producer_epoch: got, .. } = *marker;
        if producer_id < 0 || got < 0 || state.next == Offset::MAX {
            return MarkerDecision::Refuse(MarkerRefusal::Impossible { producer_id, producer_epoch: got });
        }
        let append = MarkerDecision::Append {
            base_offset: state.next,
            leader_epoch: state.epochs.latest().unwrap_or(0),
        };
        let Some(producer) = self.producers.get(partition, producer_id) else { return append };
        if let Some(last) = producer.marker() {
            let is_known = (1..=last.number).contains(&marker.number);
            if is_known && !broken(Mutant::MarkerUnnumbered) {
                return MarkerDecision::Known((last.loglet, last.address));
            }
            let (got, current) = (marker.coordinator_epoch, last.coordinator_epoch);
            if got < current {
                return MarkerDecision::Refuse(MarkerRefusal::CoordinatorFenced { got, current });
            }
        }
        let current = producer.epoch();
        let raises = marker.version == TransactionVersion::V2 && producer.open().is_some();
        if got < current || raises && got == current {
            return MarkerDecision::Refuse(MarkerRefusal::ProducerFenced { got, current });
        }
        append
    }

    /// Takes in a marker that the log holds.
    pub(super) fn apply_marker(&mut self, header: &EntryHeader) {
        let Some(body) = MarkerBody::of(header).filter(|body| body.producer_id >= 0) else { return };
        let (partition, id) = (header.partition, body.producer_id);
        let marker = LastMarker {
            number: body.number,
            coordinator_epoch: body.coordinator_epoch,
            loglet: header.loglet,
            address: header.address,
            appended_at: header.appended_at,
        };
        let keeps = broken(Mutant::MarkerKeepsEpoch);
        let begins = if keeps { 0 } else { body.producer_epoch };
        let producer = self.producers.touch(partition, id, begins, header.appended_at);
        let epoch = if keeps { producer.epoch() } else { body.producer_epoch };
        let ended = producer.end(epoch, marker);
        if let Some(first) = ended
            && let Some(state) = self.partition_mut(partition)
        {
            state.transactions.end(id, first, header.base_offset, body.commit);
        }
    }

    /// The first offset of the earliest transaction that is open in a partition.
    pub fn first_open(&self, partition: Partition) -> Option<Offset> {
        self.partition(partition)?.transactions.first_open()
    }

    /// Forgets aborted transactions that end below these log starts. Called only just before a capture whose checkpoint is
    /// then written: so the fold forgets the same ones.
    pub fn trim_aborted(&mut self, log_starts: impl IntoIterator<Item = (Partition, Offset)>) {
        for (partition, start) in log_starts {
            let trims = |state: &crate::range::state::PartitionState| state.transactions.trims(start);
            if self.partition(partition).is_some_and(trims)
                && let Some(state) = self.partition_mut(partition)
            {
                state.transactions.trim(start);
            }
        }
    }
}
