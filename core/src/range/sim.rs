//! For tests: a range that lives: batches, duplicates, epochs, transactions, deletes, checkpoints, rolls and crashes in any
//! order.

use super::checkpoint::{encode, piece_flags};
use super::fold::{Fold, LogSummary, SealedSegment, Step, next_to_read};
use super::log_start;
use super::markers::{Marker, MarkerDecision, TransactionVersion};
use super::producers::Producer;
use super::state::{Decision, FirstSequence, RangeState, Sequencing};
use super::transactions::AbortedSpan;
use crate::codec::batch::{BatchHead, TRANSACTIONAL_BIT};
use crate::codec::entry::{CHECKPOINT_LAST, EntryHeader, EntryKind};
use crate::types::{Address, LogletId, Offset, Partition, Span, WHOLE_RANGE};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(super) const SPAN: Span = Span { first: 3, last: 3 + 299 };

#[derive(Clone, Debug)]
pub(super) enum Op {
    Send {
        partition: i32,
        producer: i64,
        epoch_step: i16,
        sequence_step: i32,
        records: i32,
        transactional: bool,
    },
    Mark {
        partition: i32,
        producer: i64,
        epoch_step: i16,
        number_step: i64,
        commit: bool,
    },
    Copy {
        partition: i32,
        skip: i64,
    },
    Snapshot {
        partition: i32,
    },
    Delete {
        partition: i32,
        keep: i64,
    },
    Checkpoint {
        expire_last_ms: i64,
        keep_max: usize,
        piece_bytes: usize,
    },
    Piece,
    Roll {
        new_epoch: bool,
    },
    Crash {
        cut: usize,
    },
}

fn partitions() -> impl Strategy<Value = Partition> {
    prop_oneof![Just(3), Just(4), Just(258), Just(259), Just(302)]
}

pub(super) fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let epoch_step = || prop_oneof![8 => Just(0i16), 1 => Just(1), 1 => Just(-1)];
    let send = (partitions(), 0..4i64, epoch_step(), -6..2i32, 1..4i32, any::<bool>()).prop_map(
        |(partition, producer, epoch_step, sequence_step, records, transactional)| Op::Send {
            partition,
            producer,
            epoch_step,
            sequence_step,
            records,
            transactional,
        },
    );
    let mark = (partitions(), 0..4i64, epoch_step(), -1..3i64, any::<bool>()).prop_map(
        |(partition, producer, epoch_step, number_step, commit)| Op::Mark {
            partition,
            producer,
            epoch_step,
            number_step,
            commit,
        },
    );
    let op = prop_oneof![
        12 => send,
        5 => mark,
        1 => (partitions(), 0..5i64).prop_map(|(partition, skip)| Op::Copy { partition, skip }),
        1 => partitions().prop_map(|partition| Op::Snapshot { partition }),
        2 => (partitions(), 0..9i64).prop_map(|(partition, keep)| Op::Delete { partition, keep }),
        2 => (0..60i64, 0..12usize, 64..900usize)
            .prop_map(|(expire_last_ms, keep_max, piece_bytes)| Op::Checkpoint { expire_last_ms, keep_max, piece_bytes }),
        4 => Just(Op::Piece),
        1 => any::<bool>().prop_map(|new_epoch| Op::Roll { new_epoch }),
        1 => (0..60usize).prop_map(|cut| Op::Crash { cut }),
    ];
    prop::collection::vec(op, 1..count)
}

pub(super) struct Segment {
    pub(super) loglet: LogletId,
    pub(super) entries: Vec<(EntryHeader, Bytes)>,
    /// The live state before entry `i`, and whether a checkpoint was under way then.
    before: Vec<(RangeState, bool)>,
    /// Length of its first checkpoint.
    opening: usize,
    /// What it was opened with.
    inherited: RangeState,
}

pub(super) struct Live {
    pub(super) state: RangeState,
    pub(super) chain: Vec<Segment>,
    epoch: i32,
    clock: i64,
    pieces: Vec<(u8, Bytes)>,
}

impl Live {
    pub(super) fn new() -> Live {
        let mut live = Live {
            state: RangeState::new(SPAN),
            chain: Vec::new(),
            epoch: 0,
            clock: 1000,
            pieces: Vec::new(),
        };
        live.open(1 << 16);
        live
    }

    pub(super) fn run(ops: &[Op]) -> Live {
        let mut live = Live::new();
        for op in ops {
            live.step(op);
        }
        live
    }

    fn open(&mut self, piece_bytes: usize) {
        let inherited = self.state.clone();
        self.state.set_epoch(SPAN, self.epoch);
        let loglet = LogletId(self.chain.len() as u64 + 1);
        self.chain.push(Segment {
            loglet,
            entries: Vec::new(),
            before: Vec::new(),
            opening: usize::MAX,
            inherited,
        });
        self.pieces.clear();
        self.checkpoint(40, 8, piece_bytes);
        while self.piece() {}
        let opening = self.head().entries.len();
        self.head().opening = opening;
    }

    fn head(&mut self) -> &mut Segment {
        self.chain.last_mut().expect("a chain is never empty")
    }

    fn checkpoint(&mut self, expire_last_ms: i64, keep_max: usize, piece_bytes: usize) {
        if !self.pieces.is_empty() {
            return;
        }
        self.state.expire(self.clock - expire_last_ms, keep_max);
        let starts: Vec<_> = self.state.partitions().map(|(p, of_state)| (p, of_state.log_start)).collect();
        self.state.trim_aborted(starts);
        let from = Address(self.head().entries.len() as u64);
        let pieces = encode(&self.state.capture(from), piece_bytes);
        let count = pieces.len();
        self.pieces = pieces.into_iter().enumerate().map(|(i, p)| (piece_flags(i, count), p)).collect();
    }

    fn piece(&mut self) -> bool {
        if self.pieces.is_empty() {
            return false;
        }
        let (flags, payload) = self.pieces[0].clone();
        let header = EntryHeader { flags, ..self.header(EntryKind::Checkpoint, WHOLE_RANGE) };
        self.append(header, payload);
        self.pieces.remove(0);
        true
    }

    fn header(&mut self, kind: EntryKind, partition: Partition) -> EntryHeader {
        EntryHeader {
            loglet: self.head().loglet,
            address: Address(self.head().entries.len() as u64),
            kind,
            flags: 0,
            partition,
            base_offset: -1,
            last_offset_delta: 0,
            record_count: 0,
            leader_epoch: 0,
            appended_at: self.clock,
            first_timestamp: -1,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            first_sequence: -1,
            attributes: 0,
            payload_len: 0,
        }
    }

    fn append(&mut self, header: EntryHeader, payload: Bytes) {
        let before = (self.state.clone(), !self.pieces.is_empty());
        self.state.apply(&header).expect("a live entry follows");
        if header.kind == EntryKind::LogStart {
            let starts = log_start::decode(&payload).expect("our own bytes");
            self.state.apply_log_starts(&starts).expect("inside the log");
        }
        self.head().before.push(before);
        self.head().entries.push((header, payload));
    }

    fn append_batch(&mut self, partition: Partition, head: &BatchHead, how: Sequencing) {
        match self.state.decide(partition, head, how) {
            Decision::Append { base_offset, leader_epoch } => {
                let header = EntryHeader {
                    base_offset,
                    leader_epoch,
                    last_offset_delta: head.last_offset_delta,
                    producer_id: head.producer_id,
                    producer_epoch: head.producer_epoch,
                    first_sequence: head.base_sequence,
                    attributes: head.attributes,
                    ..self.header(EntryKind::Data, partition)
                };
                self.append(header, Bytes::new());
            }
            Decision::Duplicate { base_offset, place, .. } => {
                let segment =
                    self.chain.iter().find(|s| s.loglet == place.0).expect("the loglet is in the chain");
                let original = segment.entries[place.1.0 as usize].0;
                let same = (
                    original.partition,
                    original.producer_id,
                    original.producer_epoch,
                    original.first_sequence,
                );
                assert_eq!(same, (partition, head.producer_id, head.producer_epoch, head.base_sequence));
                assert_eq!(
                    (original.base_offset, original.last_offset_delta),
                    (base_offset, head.last_offset_delta)
                );
            }
            Decision::Refuse(_) => {}
        }
    }

    pub(super) fn step(&mut self, op: &Op) {
        self.clock += 1;
        match *op {
            Op::Send { partition, producer, epoch_step, sequence_step, records, transactional } => {
                let known = self.state.producers().get(partition, producer);
                let last = known.and_then(|p| p.last()).map(|last| last.last_sequence);
                let epoch = known.map_or(5, |p| p.epoch());
                let last = last.unwrap_or(if known.is_some() { -1 } else { i32::MAX - 3 });
                let sequence =
                    if epoch_step > 0 { 0 } else { last.wrapping_add(1 + sequence_step.min(0)) & i32::MAX };
                let mut head = head(producer, epoch + epoch_step, sequence, records);
                head.attributes = if transactional { TRANSACTIONAL_BIT } else { 0 };
                self.append_batch(partition, &head, Sequencing::Next(FirstSequence::Any));
            }
            Op::Mark { partition, producer, epoch_step, number_step, commit } => {
                let known = self.state.producers().get(partition, producer);
                let number = known.and_then(|p| p.marker()).map_or(0, |marker| marker.number as i64);
                let marker = Marker {
                    producer_id: producer,
                    producer_epoch: known.map_or(5, |p| p.epoch()) + epoch_step,
                    coordinator_epoch: i32::from(epoch_step),
                    number: (number + number_step).max(0) as u64,
                    commit,
                    version: if commit { TransactionVersion::V1 } else { TransactionVersion::V2 },
                };
                if let MarkerDecision::Append { base_offset, leader_epoch } =
                    self.state.decide_marker(partition, &marker)
                {
                    let numbered = EntryHeader {
                        base_offset,
                        leader_epoch,
                        ..self.header(EntryKind::Marker, partition)
                    };
                    self.append(marker.body().header(numbered), Bytes::new());
                }
            }
            Op::Copy { partition, skip } => {
                let next = self.state.partition(partition).expect("in the span").next;
                let epoch = self.epoch;
                self.append_batch(partition, &head(7, 0, 9, 2), Sequencing::At(next + skip, epoch));
            }
            Op::Snapshot { partition } => {
                let base_offset = self.state.partition(partition).expect("in the span").next;
                let leader_epoch = self.epoch;
                let header =
                    EntryHeader { base_offset, leader_epoch, ..self.header(EntryKind::Snapshot, partition) };
                self.append(header, Bytes::new());
            }
            Op::Delete { partition, keep } => {
                let next = self.state.partition(partition).expect("in the span").next;
                let payload = log_start::encode(&[(partition, (next - keep).max(0))]);
                let header = self.header(EntryKind::LogStart, WHOLE_RANGE);
                self.append(header, payload);
            }
            Op::Checkpoint { expire_last_ms, keep_max, piece_bytes } => {
                self.checkpoint(expire_last_ms, keep_max, piece_bytes);
            }
            Op::Piece => {
                self.piece();
            }
            Op::Roll { new_epoch } => {
                self.epoch += i32::from(new_epoch);
                while self.piece() {}
                assert!(self.fold() == self.state, "after a drain the fold is the live state");
                self.check_transactions();
                self.open(200);
            }
            Op::Crash { cut } => self.crash(cut),
        }
    }

    /// The head's tail ends up `cut` entries short: the next incarnation folds.
    fn crash(&mut self, cut: usize) {
        let live = self.state.clone();
        let segment = self.head();
        let tail = segment.entries.len().saturating_sub(cut);
        let (expected, under_way) = if tail < segment.opening {
            (segment.inherited.clone(), false)
        } else {
            segment.before.get(tail).cloned().unwrap_or((live, true))
        };
        segment.entries.truncate(tail);
        let folded = self.fold();
        if under_way {
            // Expiry between a capture and its pieces is not in the fold: it forgets less.
            let trimmed = |state: &RangeState| {
                let mut state = state.clone();
                let starts: Vec<_> =
                    state.partitions().map(|(p, of_state)| (p, of_state.log_start)).collect();
                state.trim_aborted(starts);
                state
            };
            assert!(trimmed(&folded).partitions().eq(trimmed(&expected).partitions()));
            for ((partition, id), producer) in expected.producers().iter() {
                let found = folded.producers().get(partition, id).expect("the fold forgets no producer");
                assert_eq!(found.epoch(), producer.epoch());
                assert!(found.batches().ends_with(producer.batches()), "of the same batches the newest");
                assert_eq!(found.open(), producer.open());
                let number = |p: &Producer| p.marker().map_or(0, |marker| marker.number);
                assert!(number(found) >= number(producer), "no number is forgotten");
            }
        } else {
            assert!(folded == expected, "the fold is what the live state was at the tail");
        }
        self.state = folded;
        self.check_transactions();
        self.epoch += 1;
        self.open(100);
    }

    /// Open and aborted transactions are those that one finds by reading the whole log.
    pub(super) fn check_transactions(&self) {
        let mut open: BTreeMap<(Partition, i64), Offset> = BTreeMap::new();
        let mut aborted: Vec<(Partition, AbortedSpan)> = Vec::new();
        for (header, _) in self.chain.iter().flat_map(|segment| &segment.entries) {
            let EntryHeader { partition, producer_id, base_offset, .. } = *header;
            let key = (partition, producer_id);
            match header.kind {
                EntryKind::Data if producer_id >= 0 && header.attributes & TRANSACTIONAL_BIT != 0 => {
                    open.entry(key).or_insert(base_offset);
                }
                EntryKind::Marker => {
                    let first = open.remove(&key);
                    if let (Some(first), 0) = (first, header.flags) {
                        aborted.push((partition, AbortedSpan { producer_id, first, last: base_offset }));
                    }
                }
                _ => {}
            }
        }
        for (partition, state) in self.state.partitions() {
            let mine = open.iter().filter(|((p, _), _)| *p == partition);
            let mut expected: Vec<(Offset, i64)> = mine.map(|((_, id), first)| (*first, *id)).collect();
            expected.sort_unstable();
            assert_eq!(state.transactions.open(), expected, "open in partition {partition}");
            let producers = self.state.producers().of(partition);
            let mut known: Vec<(Offset, i64)> =
                producers.filter_map(|(id, producer)| Some((producer.open()?, id))).collect();
            known.sort_unstable();
            assert_eq!(known, expected, "the open ones are those of its producers");
            let start = state.log_start;
            let readable = aborted.iter().filter(|(p, span)| *p == partition && span.last >= start);
            let found = state.transactions.aborted().filter(|span| span.last >= start);
            assert!(found.eq(readable.map(|(_, span)| span)), "aborted in partition {partition}");
        }
    }

    /// What a new incarnation folds from the chain as it stands.
    pub(super) fn fold(&self) -> RangeState {
        let sealed: Vec<SealedSegment> = self
            .chain
            .iter()
            .map(|s| SealedSegment { loglet: s.loglet, tail: Address(s.entries.len() as u64) })
            .collect();
        let log = LogSummary { begins_at: 0, sealed, parents: Vec::new() };
        let mut before = log.sealed.len();
        loop {
            match next_to_read(&log, before) {
                Step::Segment { index, segment } => match self.fold_segment(index, segment) {
                    Some(state) => return state,
                    None => before = index,
                },
                Step::Blank => return RangeState::new(SPAN),
                other => panic!("a root range whose log is whole: {other:?}"),
            }
        }
    }

    fn fold_segment(&self, index: usize, segment: SealedSegment) -> Option<RangeState> {
        let entries = &self.chain[index].entries;
        let last = entries
            .iter()
            .rposition(|(h, _)| h.kind == EntryKind::Checkpoint && h.flags & CHECKPOINT_LAST != 0)?;
        let mut fold = Fold::begin(segment, SPAN, &entries[last].1, Address(last as u64))
            .expect("the last piece of a checkpoint");
        for (header, payload) in &entries[fold.from().0 as usize..] {
            let payload = if Fold::needs_payload(header.kind) { payload.clone() } else { Bytes::new() };
            fold.push(header, &payload).expect("a log folds");
        }
        Some(fold.finish().expect("all entries were given"))
    }
}

fn head(producer_id: i64, producer_epoch: i16, base_sequence: i32, records: i32) -> BatchHead {
    BatchHead {
        base_offset: 0,
        batch_length: 49,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: records - 1,
        base_timestamp: 0,
        max_timestamp: 0,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count: records,
    }
}
