//! Sequencing of batches: decided, numbered and submitted under one lock.

use super::complete::RunDone;
use super::{Batch, Effect, Head, Phase, Progress, RangePrimary, Slot, Stamping};
use crate::codec::batch::{self, BATCH_HEAD_LEN, CRC_FROM};
use crate::codec::crc32c;
use crate::codec::entry::{ENTRY_HEADER_LEN, Entry, EntryHeader, EntryKind};
use crate::drive::{Purpose, Run, Ticket};
use crate::error::AppendError;
use crate::loglet::sequencer::Sequencer;
use crate::range::ack::{Issued, Share};
use crate::range::state::{Decision, SequenceRefusal, Sequencing};
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, Offset};
use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What sequencing says of one batch.
#[derive(Debug)]
pub enum Told {
    /// The outcome will hold when the batch's share is resolved.
    Waits(Issued),
    /// The outcome holds now; no share was taken.
    Known(Issued),
}

impl Told {
    /// The outcome, holding already or not.
    pub fn issued(self) -> Issued {
        match self {
            Told::Waits(issued) | Told::Known(issued) => issued,
        }
    }
}

/// What was decided of one batch, before anybody is told.
pub(super) enum Verdict {
    /// Not now: nothing was done.
    NoRoom,
    /// It has the newest slot.
    Numbered(Issued),
    /// Its original has this place.
    Duplicate(Issued, (LogletId, Address)),
    Refused(SequenceRefusal),
}

/// A run that is being put together under the range's lock.
pub(super) struct Building {
    first: Address,
    room: (u32, u64),
    bytes: u64,
    scratch: BytesMut,
    headers: SmallVec<[(EntryHeader, Bytes); 8]>,
    stamping: Stamping,
    now_ms: i64,
}

impl RangePrimary {
    /// Sequences batches in the order given; each with the share that is to be resolved when it completes. `told` is
    /// called with its place in that order for each that has an outcome.
    pub fn issue<'a>(
        self: &Arc<Self>,
        items: impl Iterator<Item = (&'a Batch, Share<'a>)> + Clone,
        mut told: impl FnMut(usize, Told),
        now_ms: i64,
    ) -> Progress {
        let mut head = self.head.lock();
        let incoming: usize = items.clone().map(|(batch, _)| batch.bytes.len()).sum();
        if let Some(error) = self.refusal(&head, incoming, Purpose::Records) {
            let Some(error) = error else { return Progress::Part(0) };
            items.enumerate().for_each(|(i, _)| told(i, Told::Known(Issued::Err(error.clone()))));
            return Progress::All;
        }
        self.begin_segment(&mut head, now_ms);
        let mut run = self.begin_run(&head, items.clone().count(), now_ms);
        let mut progress = Progress::All;
        for (i, (batch, share)) in items.enumerate() {
            match self.number(&mut head, &mut run, batch) {
                Verdict::NoRoom => {
                    progress = Progress::Part(i);
                    break;
                }
                Verdict::Numbered(issued) => {
                    if let Some(slot) = head.slots.back_mut() {
                        slot.acks.push(share.take());
                    }
                    told(i, Told::Waits(issued));
                }
                Verdict::Duplicate(issued, place) => match head.original(place) {
                    Some(slot) => {
                        slot.acks.push(share.take());
                        told(i, Told::Waits(issued));
                    }
                    None => told(i, Told::Known(issued)),
                },
                Verdict::Refused(refusal) => told(i, Told::Known(Issued::Err(refused(refusal)))),
            }
        }
        self.submit_run(&mut head, run);
        progress
    }

    /// An empty run that will take `most` batches at most.
    pub(super) fn begin_run(&self, head: &Head, most: usize, now_ms: i64) -> Building {
        let most = most.min(head.sequencer.room().0 as usize);
        Building {
            first: head.sequencer.next(),
            room: head.sequencer.room(),
            bytes: 0,
            scratch: BytesMut::with_capacity(most * (ENTRY_HEADER_LEN + BATCH_HEAD_LEN)),
            headers: SmallVec::new(),
            stamping: **self.stamping.load(),
            now_ms,
        }
    }

    /// Decides of one batch; numbers it if that is the decision and there is room.
    pub(super) fn number(&self, head: &mut Head, run: &mut Building, one: &Batch) -> Verdict {
        let log_start = head.visible_log_start(self.span, one.partition);
        let sequencing = Sequencing::Next(one.first);
        let (base_offset, leader_epoch) = match head.state.decide(one.partition, &one.head, sequencing) {
            Decision::Append { base_offset, leader_epoch } => (base_offset, leader_epoch),
            Decision::Duplicate { base_offset, place, appended_at, .. } => {
                self.counts.duplicates.fetch_add(1, Ordering::Relaxed);
                let log_append_time = if run.stamping.log_append_time { appended_at } else { -1 };
                return Verdict::Duplicate(Issued::Ok { base_offset, log_start, log_append_time }, place);
            }
            Decision::Refuse(refusal) => return Verdict::Refused(refusal),
        };
        let len = one.bytes.len() as u64;
        let fits = (run.headers.len() as u32) < run.room.0
            && (run.bytes + len <= run.room.1 || run.bytes == 0 && head.sequencer.drained());
        if !fits {
            return Verdict::NoRoom;
        }
        let header = append_header(head, run, one, base_offset, leader_epoch);
        head.state.apply(&header).expect("a decided entry follows from the state");
        run.bytes += len;
        let index = self.span.index(one.partition).unwrap_or(0) as u32;
        head.slots.push_back(Slot {
            effect: Effect::High(index, header.last_offset() + 1),
            acks: SmallVec::new(),
            batch: Some(one.clone()),
        });
        run.headers.push((header, one.bytes.slice(BATCH_HEAD_LEN..)));
        let log_append_time = if run.stamping.log_append_time { run.now_ms } else { -1 };
        Verdict::Numbered(Issued::Ok { base_offset, log_start, log_append_time })
    }

    /// Submits what was numbered.
    pub(super) fn submit_run(self: &Arc<Self>, head: &mut Head, run: Building) {
        if run.headers.is_empty() {
            return;
        }
        head.first_append_at.get_or_insert(run.now_ms);
        let scratch = run.scratch.freeze();
        let stride = ENTRY_HEADER_LEN + BATCH_HEAD_LEN;
        let entries = run
            .headers
            .into_iter()
            .enumerate()
            .map(|(k, (header, body))| Entry {
                header,
                head: scratch.slice(k * stride..(k + 1) * stride),
                body,
            })
            .collect();
        self.submit(head, run.first, entries, run.bytes);
    }

    /// Why nothing of `purpose` is taken now: `Some(None)` means wait.
    pub(super) fn refusal(&self, head: &Head, bytes: usize, purpose: Purpose) -> Option<Option<AppendError>> {
        match &head.phase {
            Phase::Open if head.inherited.is_some() && !broken(Mutant::OthersBeforeInherited) => Some(None),
            Phase::Open => {
                let refused = head.segment.drive.admit(bytes + head.first_bytes(), purpose).err()?;
                Some(Some(AppendError::Storage(refused.to_string())))
            }
            Phase::Between | Phase::Moved => Some(None),
            Phase::Blocked(why) => Some(Some(AppendError::Storage(why.clone()))),
            Phase::Stopping => Some(Some(AppendError::Stopping)),
            Phase::Gone => Some(Some(AppendError::UnknownPartition)),
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

impl Head {
    /// The original of a duplicate if it is in flight: the answer waits for it (R5).
    pub(super) fn original(&mut self, place: (LogletId, Address)) -> Option<&mut Slot> {
        let (loglet, address) = place;
        if loglet != self.segment.loglet || broken(Mutant::DuplicateInFlight) {
            return None;
        }
        let ahead = address.0.checked_sub(self.sequencer.tail().0)?;
        self.slots.get_mut(ahead as usize)
    }
}

/// Whether a run has room now; one larger than the window's bytes goes alone.
pub(super) fn fits(sequencer: &Sequencer, entries: usize, bytes: u64) -> bool {
    let (room_entries, room_bytes) = sequencer.room();
    entries <= room_entries as usize && (bytes <= room_bytes || sequencer.drained())
}

/// Puts header and patched batch head into the run's scratch.
fn append_header(
    head: &Head,
    run: &mut Building,
    one: &Batch,
    base_offset: Offset,
    leader_epoch: i32,
) -> EntryHeader {
    let (stamping, now_ms) = (run.stamping, run.now_ms);
    let address = run.first.plus(run.headers.len() as u64);
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
    run.scratch.put_slice(&header.encode(&patched));
    run.scratch.put_slice(&patched);
    header
}

pub(super) fn refused(refusal: SequenceRefusal) -> AppendError {
    match refusal {
        SequenceRefusal::OutsideSpan(_) => AppendError::UnknownPartition,
        SequenceRefusal::OutOfOrder { got, expected } => AppendError::OutOfOrderSequence { got, expected },
        SequenceRefusal::InvalidProducerEpoch { got, current } => {
            AppendError::ProducerFenced { got, current }
        }
        SequenceRefusal::TransactionOpen(first_offset) => AppendError::TransactionOpen { first_offset },
        SequenceRefusal::OffsetTaken { .. }
        | SequenceRefusal::LeaderEpochFell { .. }
        | SequenceRefusal::Impossible { .. } => AppendError::Invalid(refusal.to_string()),
    }
}
