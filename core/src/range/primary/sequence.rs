//! Sequencing of batches: decided, numbered and submitted under one lock.

use super::complete::RunDone;
use super::{Batch, Effect, Head, Phase, Progress, RangePrimary, Slot, Stamping};
use crate::codec::batch::{self, BATCH_HEAD_LEN, CRC_FROM};
use crate::codec::crc32c;
use crate::codec::entry::{ENTRY_HEADER_LEN, Entry, EntryHeader, EntryKind};
use crate::drive::{Run, Ticket};
use crate::error::AppendError;
use crate::loglet::sequencer::Sequencer;
use crate::range::ack::{Ack, Issued};
use crate::range::state::{Decision, SequenceRefusal, Sequencing};
use crate::types::{Address, LogletId, Offset};
use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl RangePrimary {
    /// Sequences the batches `which` of `batches` in that order. An outcome for each goes to `issued`; what gets an
    /// address is resolved through `ack` when it completes.
    pub fn issue(
        self: &Arc<Self>,
        batches: &[Batch],
        which: &[usize],
        ack: &Arc<Ack>,
        issued: &mut [Option<Issued>],
        now_ms: i64,
    ) -> Progress {
        let stamping = **self.stamping.load();
        let mut head = self.head.lock();
        let incoming: usize = which.iter().map(|&i| batches[i].bytes.len()).sum();
        if let Some(error) = self.refusal(&head, incoming) {
            match error {
                Some(error) => {
                    which.iter().for_each(|&i| issued[i] = Some(Issued::Err(error.clone())));
                    return Progress::All;
                }
                None => return Progress::Part(0),
            }
        }
        let first = head.sequencer.next();
        let (room_entries, room_bytes) = head.sequencer.room();
        let mut scratch = BytesMut::with_capacity(which.len() * (ENTRY_HEADER_LEN + BATCH_HEAD_LEN));
        let mut headers: SmallVec<[(EntryHeader, Bytes); 8]> = SmallVec::new();
        let mut bytes = 0u64;
        let mut progress = Progress::All;
        for (done, &i) in which.iter().enumerate() {
            let one = &batches[i];
            let (base_offset, leader_epoch) =
                match head.state.decide(one.partition, &one.head, Sequencing::Next) {
                    Decision::Append { base_offset, leader_epoch } => (base_offset, leader_epoch),
                    Decision::Duplicate { base_offset, place, appended_at, .. } => {
                        self.counts.duplicates.fetch_add(1, Ordering::Relaxed);
                        self.await_original(&mut head, place, ack, i);
                        issued[i] = Some(Issued::Ok {
                            base_offset,
                            log_start: head.visible_log_start(self.span, one.partition),
                            log_append_time: if stamping.log_append_time { appended_at } else { -1 },
                        });
                        continue;
                    }
                    Decision::Refuse(refusal) => {
                        issued[i] = Some(Issued::Err(refused(refusal)));
                        continue;
                    }
                };
            let len = one.bytes.len() as u64;
            let fits = (headers.len() as u32) < room_entries
                && (bytes + len <= room_bytes || bytes == 0 && head.sequencer.drained());
            if !fits {
                progress = Progress::Part(done);
                break;
            }
            let address = first.plus(headers.len() as u64);
            let header =
                append_header(&head, &mut scratch, one, base_offset, leader_epoch, address, stamping, now_ms);
            head.state.apply(&header).expect("a decided entry follows from the state");
            bytes += len;
            let end = header.last_offset() + 1;
            let index = self.span.index(one.partition).unwrap_or(0) as u32;
            head.slots.push_back(Slot {
                effect: Effect::High(index, end),
                acks: SmallVec::from_iter([ack.slot(i)]),
            });
            headers.push((header, one.bytes.slice(BATCH_HEAD_LEN..)));
            issued[i] = Some(Issued::Ok {
                base_offset,
                log_start: head.visible_log_start(self.span, one.partition),
                log_append_time: if stamping.log_append_time { now_ms } else { -1 },
            });
        }
        if headers.is_empty() {
            return progress;
        }
        head.first_append_at.get_or_insert(now_ms);
        let scratch = scratch.freeze();
        let stride = ENTRY_HEADER_LEN + BATCH_HEAD_LEN;
        let entries = headers
            .into_iter()
            .enumerate()
            .map(|(k, (header, body))| Entry {
                header,
                head: scratch.slice(k * stride..(k + 1) * stride),
                body,
            })
            .collect();
        self.submit(&mut head, first, entries, bytes);
        progress
    }

    /// Why nothing is taken now: `Some(None)` means wait.
    pub(super) fn refusal(&self, head: &Head, bytes: usize) -> Option<Option<AppendError>> {
        match &head.phase {
            Phase::Open => {
                let refused = head.segment.drive.admit(bytes).err()?;
                Some(Some(AppendError::Storage(refused.to_string())))
            }
            Phase::Between | Phase::Moved => Some(None),
            Phase::Blocked(why) => Some(Some(AppendError::Storage(why.clone()))),
            Phase::Stopping => Some(Some(AppendError::Stopping)),
            Phase::Gone => Some(Some(AppendError::UnknownPartition)),
        }
    }

    /// A duplicate's answer waits for the original, if that is in flight (R5).
    pub(super) fn await_original(
        &self,
        head: &mut Head,
        place: (LogletId, Address),
        ack: &Arc<Ack>,
        index: usize,
    ) {
        let (loglet, address) = place;
        if loglet != head.segment.loglet {
            return;
        }
        let Some(ahead) = address.0.checked_sub(head.sequencer.tail().0) else { return };
        if let Some(slot) = head.slots.get_mut(ahead as usize) {
            slot.acks.push(ack.slot(index));
        }
    }

    /// From here to the drive nothing waits and nothing fails.
    pub(super) fn submit(
        self: &Arc<Self>,
        head: &mut Head,
        first: Address,
        entries: SmallVec<[Entry; 2]>,
        bytes: u64,
    ) {
        let count = entries.len() as u32;
        let reserved = head.sequencer.reserve(count, bytes).expect("room was looked at under this lock");
        assert_eq!(reserved, first, "addresses are handed out under one lock");
        let stored: usize = entries.iter().map(Entry::encoded_len).sum();
        head.segment.add_bytes(stored as u64);
        head.since_checkpoint += stored as u64;
        self.counts.batches.fetch_add(u64::from(count), Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        let done = RunDone { primary: self.clone(), segment: head.segment.clone(), first, entries: count };
        head.segment.drive.submit(Run { first, entries, ticket: Ticket::new(Arc::new(done)) });
    }
}

/// Whether a run has room now; one larger than the window's bytes goes alone.
pub(super) fn fits(sequencer: &Sequencer, entries: usize, bytes: u64) -> bool {
    let (room_entries, room_bytes) = sequencer.room();
    entries <= room_entries as usize && (bytes <= room_bytes || sequencer.drained())
}

/// Puts header and patched batch head into `scratch`.
#[expect(clippy::too_many_arguments, reason = "one call site; the values are not a thing of their own")]
pub(super) fn append_header(
    head: &Head,
    scratch: &mut BytesMut,
    one: &Batch,
    base_offset: Offset,
    leader_epoch: i32,
    address: Address,
    stamping: Stamping,
    now_ms: i64,
) -> EntryHeader {
    let mut patched = [0u8; BATCH_HEAD_LEN];
    patched.copy_from_slice(&one.bytes[..BATCH_HEAD_LEN]);
    batch::patch(&mut patched, base_offset, leader_epoch);
    let mut attributes = one.head.attributes;
    let mut max_timestamp = one.head.max_timestamp;
    if stamping.log_append_time {
        attributes |= batch::TIMESTAMP_TYPE_BIT;
        max_timestamp = now_ms;
    } else {
        attributes &= !batch::TIMESTAMP_TYPE_BIT;
    }
    if attributes != one.head.attributes || max_timestamp != one.head.max_timestamp {
        batch::restamp(&mut patched, attributes, max_timestamp);
        let crc = crc32c(&[&patched[CRC_FROM..], &one.bytes[BATCH_HEAD_LEN..]]);
        batch::set_crc(&mut patched, crc);
    }
    let header = EntryHeader {
        loglet: head.segment.loglet,
        address,
        kind: EntryKind::Data,
        flags: 0,
        partition: one.partition,
        base_offset,
        last_offset_delta: one.head.last_offset_delta,
        record_count: one.head.record_count,
        leader_epoch,
        appended_at: now_ms,
        first_timestamp: one.head.base_timestamp,
        max_timestamp,
        producer_id: one.head.producer_id,
        producer_epoch: one.head.producer_epoch,
        first_sequence: one.head.base_sequence,
        attributes,
        payload_len: one.bytes.len() as u32,
    };
    scratch.put_slice(&header.encode(&patched));
    scratch.put_slice(&patched);
    header
}

pub(super) fn refused(refusal: SequenceRefusal) -> AppendError {
    match refusal {
        SequenceRefusal::OutsideSpan(_) => AppendError::UnknownPartition,
        SequenceRefusal::OutOfOrder { got, expected } => AppendError::OutOfOrderSequence { got, expected },
        SequenceRefusal::InvalidProducerEpoch { got, current } => {
            AppendError::ProducerFenced { got, current }
        }
        SequenceRefusal::OffsetTaken { .. }
        | SequenceRefusal::LeaderEpochFell { .. }
        | SequenceRefusal::Impossible { .. } => AppendError::Invalid(refusal.to_string()),
    }
}
