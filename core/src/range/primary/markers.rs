//! Markers of transactions, what readers may see of transactions that are open, and what is known of producers.

use super::own::own_header;
use super::sequence::fits;
use super::{Effect, Head, RangePrimary, Slot};
use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::codec::marker::MARKER_LEN;
use crate::drive::Purpose;
use crate::error::AppendError;
use crate::range::ack::Ack;
use crate::range::markers::{Marker, MarkerDecision, MarkerRefusal};
use crate::range::producers::Producer;
use crate::range::transactions::AbortedSpan;
use crate::testing::{Mutant, broken};
use crate::types::{Offset, Partition};
use smallvec::SmallVec;
use std::sync::Arc;

impl RangePrimary {
    /// Appends a marker, or finds that its transaction is marked; `ack` is done once that is durable. Nothing when the
    /// window is full: wait for room, then look where the partition is.
    ///
    /// Errors: see [`MarkerRefusal`]; and as for batches while nothing is taken.
    pub fn issue_marker(
        self: &Arc<Self>,
        partition: Partition,
        marker: &Marker,
        ack: &Arc<Ack>,
        now_ms: i64,
    ) -> Result<Option<()>, AppendError> {
        let mut head = self.head.lock();
        if let Some(error) = self.refusal(&head, MARKER_LEN, Purpose::Coordination) {
            return match error {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        let (base_offset, leader_epoch) = match head.state.decide_marker(partition, marker) {
            MarkerDecision::Append { base_offset, leader_epoch } => (base_offset, leader_epoch),
            MarkerDecision::Known(place) => {
                if !broken(Mutant::MarkerInFlight)
                    && let Some(slot) = head.original(place)
                {
                    slot.acks.push(ack.slot(0));
                }
                return Ok(Some(()));
            }
            MarkerDecision::Refuse(refusal) => return Err(refused(refusal)),
        };
        self.begin_segment(&mut head, now_ms);
        if !fits(&head.sequencer, 1, MARKER_LEN as u64) {
            return Ok(None);
        }
        let first = head.sequencer.next();
        let numbered = own_header(&head, EntryKind::Marker, partition, first, MARKER_LEN, now_ms);
        let body = marker.body();
        let header = body.header(EntryHeader { base_offset, leader_epoch, ..numbered });
        let begun = head.state.producers().get(partition, marker.producer_id).and_then(Producer::open);
        head.state.apply(&header).expect("a decided marker follows from the state");
        let index = self.span.index(partition).unwrap_or(0) as u32;
        let effect = match begun {
            Some(begun) => {
                head.visible.ending.push((index, begun));
                Effect::Ended(index, base_offset + 1, begun)
            }
            None => Effect::High(index, base_offset + 1),
        };
        head.slots.push_back(Slot { effect, acks: SmallVec::from_iter([ack.slot(0)]), batch: None });
        head.first_append_at.get_or_insert(now_ms);
        let entry = Entry::own(header, body.batch(&header));
        self.submit(&mut head, first, SmallVec::from_iter([entry]), MARKER_LEN as u64);
        Ok(Some(()))
    }

    /// The aborted transactions that have something in `[from, below)` of a partition, by first offset; `below` is at most
    /// the last stable offset that the reader was told. Nothing where that begins below the log start: what was aborted
    /// there may be forgotten.
    pub fn aborted(&self, partition: Partition, from: Offset, below: Offset) -> Option<Vec<AbortedSpan>> {
        let index = self.span.index(partition)?;
        let head = self.head.lock();
        let log_start = *head.visible.log_start.get(index)?;
        let state = head.state.partition(partition)?;
        (from >= log_start).then(|| state.transactions.aborted_within(from, below))
    }

    /// How many transactions are open, counted in each partition.
    pub fn open_transactions(&self) -> usize {
        let state = self.state();
        state.partitions().map(|(_, partition)| partition.transactions.open().len()).sum()
    }

    /// What `look` makes of each producer of a partition, in order of their ids; nothing outside of the range.
    pub fn producers<T>(&self, partition: Partition, look: impl Fn(i64, &Producer) -> T) -> Option<Vec<T>> {
        self.span.index(partition)?;
        let head = self.head.lock();
        Some(head.state.producers().of(partition).map(|(id, producer)| look(id, producer)).collect())
    }
}

impl Head {
    /// The last stable offset of a partition, the span's `index`th: the first offset of the earliest transaction of which no
    /// marker is complete, else the high watermark; never below the log start.
    pub(super) fn last_stable(&self, partition: Partition, index: usize) -> Offset {
        let high = self.visible.high.get(index).copied().unwrap_or(0);
        let open = self.state.first_open(partition);
        let ending = self.visible.ending.iter().filter(|(of, _)| *of as usize == index);
        let ending = ending.map(|(_, begun)| *begun).min().filter(|_| !broken(Mutant::StableShownEarly));
        let stable = [open, ending].into_iter().flatten().fold(high, Offset::min);
        stable.max(self.visible.log_start.get(index).copied().unwrap_or(0))
    }
}

fn refused(refusal: MarkerRefusal) -> AppendError {
    match refusal {
        MarkerRefusal::OutsideSpan(_) => AppendError::UnknownPartition,
        MarkerRefusal::CoordinatorFenced { got, current } => AppendError::CoordinatorFenced { got, current },
        MarkerRefusal::ProducerFenced { got, current } => AppendError::ProducerFenced { got, current },
        MarkerRefusal::Impossible { .. } => AppendError::Invalid(refusal.to_string()),
    }
}
