//! Entries of our own: records of state machines, log starts.

use super::sequence::fits;
use super::{Effect, Head, RangePrimary, Slot};
use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::drive::Purpose;
use crate::error::AppendError;
use crate::range::ack::Ack;
use crate::range::log_start;
use crate::types::{Address, Offset, Partition, WHOLE_RANGE};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;

impl RangePrimary {
    /// Appends entries of our own to a partition (records of a state machine) or to the range (log starts); each of the
    /// former takes one offset. Returns the offset of the first, or nothing when the window is full.
    pub fn issue_own(
        self: &Arc<Self>,
        partition: Partition,
        entries: &[(EntryKind, Bytes)],
        purpose: Purpose,
        ack: &Arc<Ack>,
        now_ms: i64,
    ) -> Result<Option<Offset>, AppendError> {
        let mut head = self.head.lock();
        let bytes: usize = entries.iter().map(|(_, payload)| payload.len()).sum();
        if let Some(error) = self.refusal(&head, bytes, purpose) {
            return match error {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        if head.state.partition(partition).is_some() {
            self.begin_segment(&mut head, now_ms);
        }
        if !fits(&head.sequencer, entries.len(), bytes as u64) {
            return Ok(None);
        }
        let Some(state) = head.state.partition(partition) else {
            return Err(AppendError::UnknownPartition);
        };
        let base_offset = state.next;
        let leader_epoch = state.epochs.latest().unwrap_or(0);
        let first = head.sequencer.next();
        let index = self.span.index(partition).unwrap_or(0) as u32;
        let mut built: SmallVec<[Entry; 2]> = SmallVec::new();
        for (k, (kind, payload)) in entries.iter().enumerate() {
            let header = EntryHeader {
                base_offset: base_offset + k as i64,
                last_offset_delta: 0,
                record_count: 1,
                leader_epoch,
                ..own_header(&head, *kind, partition, first.plus(k as u64), payload.len(), now_ms)
            };
            head.state.apply(&header).expect("a numbered entry follows from the state");
            let end = header.last_offset() + 1;
            let acks =
                if k + 1 == entries.len() { SmallVec::from_iter([ack.slot(0)]) } else { SmallVec::new() };
            head.slots.push_back(Slot { effect: Effect::High(index, end), acks, batch: None });
            built.push(Entry::own(header, payload.clone()));
        }
        head.first_append_at.get_or_insert(now_ms);
        self.submit(&mut head, first, built, bytes as u64);
        Ok(Some(base_offset))
    }

    /// Whether entries of our own would be refused now. What has to wait for a while is not.
    pub fn takes_own(&self, purpose: Purpose) -> Result<(), AppendError> {
        self.refusal(&self.head.lock(), 0, purpose).flatten().map_or(Ok(()), Err)
    }

    /// Raises log starts by one entry; they show when it completes. Nothing when the window is full.
    ///
    /// Errors: `UnknownPartition` for partitions or offsets that are not of this range.
    pub fn issue_log_starts(
        self: &Arc<Self>,
        starts: &[(Partition, Offset)],
        ack: &Arc<Ack>,
        now_ms: i64,
    ) -> Result<Option<()>, AppendError> {
        let payload = log_start::encode(starts);
        let mut head = self.head.lock();
        if let Some(error) = self.refusal(&head, payload.len(), Purpose::Freeing) {
            return match error {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        self.begin_segment(&mut head, now_ms);
        if !fits(&head.sequencer, 1, payload.len() as u64) {
            return Ok(None);
        }
        if head.state.apply_log_starts(starts).is_err() {
            return Err(AppendError::UnknownPartition);
        }
        head.untold = true;
        let first = head.sequencer.next();
        let header = own_header(&head, EntryKind::LogStart, WHOLE_RANGE, first, payload.len(), now_ms);
        head.slots.push_back(Slot {
            effect: Effect::LogStarts(starts.into()),
            acks: SmallVec::from_iter([ack.slot(0)]),
            batch: None,
        });
        let bytes = payload.len() as u64;
        self.submit(&mut head, first, SmallVec::from_iter([Entry::own(header, payload)]), bytes);
        Ok(Some(()))
    }
}

pub(super) fn own_header(
    head: &Head,
    kind: EntryKind,
    partition: Partition,
    address: Address,
    payload_len: usize,
    now_ms: i64,
) -> EntryHeader {
    EntryHeader {
        loglet: head.segment.loglet,
        address,
        kind,
        flags: 0,
        partition,
        base_offset: -1,
        last_offset_delta: 0,
        record_count: 0,
        leader_epoch: 0,
        appended_at: now_ms,
        first_timestamp: -1,
        max_timestamp: -1,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: payload_len as u32,
    }
}
