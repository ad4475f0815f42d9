//! Checkpoint entries: a captured state as bytes and back (layout: docs/formats-range.md). Pure; whose turn it is to
//! write one, and whether it is complete, is not known here.
//!
//! A checkpoint is one piece or several, each the payload of an entry of its own, in order. It holds the fold of all
//! entries below the address it was captured at, which may lie well below its own pieces: what was appended while it
//! was encoded is folded on top.

mod decode;

use crate::codec::entry::{CHECKPOINT_FIRST, CHECKPOINT_LAST};
use crate::range::producers::{Producer, RecentBatch};
use crate::range::state::{Captured, PartitionState, RangeState};
use crate::testing::{Mutant, broken};
use crate::types::Address;
use bytes::{BufMut, Bytes};

/// Written. Version 1 has no transactions; it is read.
const VERSION: u8 = 2;
const WITHOUT_TRANSACTIONS: u8 = 1;
/// With a producer's number of batches: a first offset follows, of its open transaction.
const HAS_OPEN: u64 = 8;
/// With a producer's number of batches: its last marker follows.
const HAS_MARKER: u64 = 16;
/// Bytes of a piece before its part of the body.
pub const PIECE_HEAD_LEN: usize = 17;
const COUNT_AT: usize = 5;
const VARINT_BYTES_MAX: usize = 10;

/// Which piece of which checkpoint a payload is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PieceHead {
    /// Which piece, from 0.
    pub index: u32,
    /// How many pieces the checkpoint has.
    pub count: u32,
    /// Address, in the piece's loglet, from which entries are to be folded on top of the checkpoint.
    pub from: Address,
}

impl PieceHead {
    /// Flags of the entry that holds the piece.
    pub fn flags(&self) -> u8 {
        piece_flags(self.index as usize, self.count as usize)
    }
}

/// Entry flags of piece `index` of `count`.
pub fn piece_flags(index: usize, count: usize) -> u8 {
    let first = if index == 0 { CHECKPOINT_FIRST } else { 0 };
    let last = if index + 1 == count { CHECKPOINT_LAST } else { 0 };
    first | last
}

/// Whether a checkpoint is due: `unfolded` bytes were appended since the newest one, whose pieces had `last` bytes. So
/// at most a sixteenth of what is written is checkpoints, and a fold reads little more than `floor`.
pub fn due(unfolded: u64, last: u64, floor: u64) -> bool {
    unfolded >= floor.max(last.saturating_mul(16))
}

/// Which ranges write a checkpoint because all together have more than `limit` bytes of log above their last ones: those
/// with most of it first, until the rest is within the limit. A range is (bytes above, length of its last full one); one
/// that would write more than it has appended is left out.
pub fn relieve(ranges: &[(u64, u64)], limit: u64) -> Vec<usize> {
    let limit = u128::from(limit);
    let mut total: u128 = ranges.iter().map(|(unfolded, _)| u128::from(*unfolded)).sum();
    if total <= limit {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&i| ranges[i].0 > ranges[i].1).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(ranges[i].0));
    let enough = order.iter().position(|&i| {
        total -= u128::from(ranges[i].0);
        total <= limit
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    order
}

/// Why bytes are no checkpoint; final.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A version that this program does not know.
    #[error("checkpoint: unknown version {0}, expected at most {VERSION}")]
    Version(u8),
    /// The bytes end early.
    #[error("checkpoint: cut short")]
    Short,
    /// Not the pieces 0 to n - 1 of one checkpoint, in order.
    #[error("checkpoint: piece {got} of {count} where piece {expected} belongs")]
    Pieces {
        /// Index of the piece.
        got: u32,
        /// Count that it names.
        count: u32,
        /// Index that belongs there.
        expected: u32,
    },
    /// A number that no state holds.
    #[error("checkpoint: impossible {0}")]
    Impossible(&'static str),
}

/// Encodes a capture in pieces of at most `piece_bytes_max` bytes (taken as at least 64).
pub fn encode(captured: &Captured, piece_bytes_max: usize) -> Vec<Bytes> {
    let state = &captured.state;
    let mut out = Pieces::new(captured.from, piece_bytes_max.max(64));
    out.put(&state.span().first.to_le_bytes());
    out.put(&state.span().last.to_le_bytes());
    for (_, partition) in state.partitions() {
        encode_partition(&mut out, partition);
    }
    out.varint(state.producers().len() as u64);
    let (mut partition_before, mut id_before) = (state.span().first, -1i64);
    for ((partition, id), producer) in state.producers().iter() {
        let step = partition.wrapping_sub(partition_before);
        if step != 0 {
            id_before = -1;
        }
        out.varint(step as u32 as u64);
        out.varint(id.wrapping_sub(id_before) as u64);
        encode_producer(&mut out, producer);
        (partition_before, id_before) = (partition, id);
    }
    encode_aborted(&mut out, state);
    out.finish()
}

/// Aborted transactions, of partitions that have some.
fn encode_aborted(out: &mut Pieces, state: &RangeState) {
    let with = || state.partitions().filter(|(_, p)| p.transactions.aborted_len() > 0);
    out.varint(with().count() as u64);
    let mut before = state.span().first;
    for (partition, of_state) in with() {
        out.varint(partition.wrapping_sub(before) as u32 as u64);
        before = partition;
        out.varint(of_state.transactions.aborted_len() as u64);
        let (mut last, mut id) = (0i64, 0i64);
        for span in of_state.transactions.aborted() {
            out.varint(span.last.wrapping_sub(last) as u64);
            out.varint(span.last.wrapping_sub(span.first) as u64);
            out.signed(span.producer_id.wrapping_sub(id));
            (last, id) = (span.last, span.producer_id);
        }
    }
}

fn encode_partition(out: &mut Pieces, partition: &PartitionState) {
    out.varint(partition.next as u64);
    out.varint(partition.log_start as u64);
    out.varint(partition.bytes);
    out.signed(partition.max_timestamp);
    let starts = partition.epochs.starts();
    out.varint(starts.len() as u64);
    for e in starts {
        out.varint(e.epoch as u32 as u64);
        out.varint(e.start as u64);
    }
}

fn encode_producer(out: &mut Pieces, producer: &Producer) {
    out.signed(i64::from(producer.epoch()));
    let open = producer.open().filter(|_| !broken(Mutant::OpenNotFolded));
    let marker = producer.marker();
    let has = |is: bool, flag: u64| if is { flag } else { 0 };
    let follows = has(open.is_some(), HAS_OPEN) | has(marker.is_some(), HAS_MARKER);
    out.varint(producer.batches().len() as u64 | follows);
    let mut before = Before::default();
    for b in producer.batches() {
        out.varint(b.first_sequence as u32 as u64);
        out.varint((b.last_sequence.wrapping_sub(b.first_sequence) & i32::MAX) as u64);
        out.signed(b.base_offset.wrapping_sub(before.base_offset));
        out.signed(b.loglet.0.wrapping_sub(before.loglet) as i64);
        out.signed(b.address.0.wrapping_sub(before.address) as i64);
        out.signed(b.appended_at.wrapping_sub(before.appended_at));
        before = Before::of(b);
    }
    if let Some(first) = open {
        out.varint(first as u64);
    }
    if let Some(marker) = marker {
        out.varint(if broken(Mutant::NumberNotFolded) { 0 } else { marker.number });
        out.signed(i64::from(marker.coordinator_epoch));
        out.varint(marker.loglet.0);
        out.varint(marker.address.0);
        out.signed(marker.appended_at);
    }
}

/// Numbers of the batch before, from which the next one's are counted.
#[derive(Default)]
struct Before {
    base_offset: i64,
    loglet: u64,
    address: u64,
    appended_at: i64,
}

impl Before {
    fn of(b: &RecentBatch) -> Before {
        Before {
            base_offset: b.base_offset,
            loglet: b.loglet.0,
            address: b.address.0,
            appended_at: b.appended_at,
        }
    }
}

/// Reads the head of a piece.
///
/// Errors: final, the bytes are no piece of this version.
pub fn piece_head(piece: &[u8]) -> Result<PieceHead, CheckpointError> {
    let (&version, rest) = piece.split_first().ok_or(CheckpointError::Short)?;
    if !(WITHOUT_TRANSACTIONS..=VERSION).contains(&version) {
        return Err(CheckpointError::Version(version));
    }
    let (index, rest) = rest.split_first_chunk::<4>().ok_or(CheckpointError::Short)?;
    let (count, rest) = rest.split_first_chunk::<4>().ok_or(CheckpointError::Short)?;
    let (from, _) = rest.split_first_chunk::<8>().ok_or(CheckpointError::Short)?;
    let (index, count) = (u32::from_le_bytes(*index), u32::from_le_bytes(*count));
    if index >= count {
        return Err(CheckpointError::Pieces { got: index, count, expected: 0 });
    }
    Ok(PieceHead { index, count, from: Address(u64::from_le_bytes(*from)) })
}

/// Puts the pieces of one checkpoint together, all of them, in order.
///
/// Errors: final, the bytes are no checkpoint of this version. Memory stays within a small multiple of the input.
pub fn decode(pieces: &[Bytes]) -> Result<Captured, CheckpointError> {
    let first = piece_head(pieces.first().ok_or(CheckpointError::Short)?)?;
    let mut body = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
    let version = pieces.first().and_then(|piece| piece.first()).copied().unwrap_or(VERSION);
    for (piece, expected) in pieces.iter().zip(0u32..) {
        let head = piece_head(piece)?;
        if piece.first() != Some(&version) {
            return Err(CheckpointError::Impossible("mixture of versions"));
        }
        if (head.index, head.count, head.from) != (expected, first.count, first.from) {
            return Err(CheckpointError::Pieces { got: head.index, count: head.count, expected });
        }
        body.extend_from_slice(piece.get(PIECE_HEAD_LEN..).ok_or(CheckpointError::Short)?);
    }
    if pieces.len() as u64 != u64::from(first.count) {
        let expected = pieces.len() as u32;
        return Err(CheckpointError::Pieces { got: first.count, count: first.count, expected });
    }
    let state = decode::state(&body, version > WITHOUT_TRANSACTIONS)?;
    Ok(Captured { state, from: first.from })
}

/// Writes a body over pieces of bounded length.
struct Pieces {
    from: Address,
    bytes_max: usize,
    done: Vec<Vec<u8>>,
    current: Vec<u8>,
}

impl Pieces {
    fn new(from: Address, bytes_max: usize) -> Pieces {
        let mut pieces = Pieces { from, bytes_max, done: Vec::new(), current: Vec::new() };
        pieces.begin_piece();
        pieces
    }

    fn begin_piece(&mut self) {
        self.current.put_u8(VERSION);
        self.current.put_u32_le(self.done.len() as u32);
        self.current.put_u32_le(0); // the count, known at the end
        self.current.put_u64_le(self.from.0);
    }

    fn put(&mut self, mut bytes: &[u8]) {
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(self.bytes_max - self.current.len()));
            self.current.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            self.done.push(std::mem::take(&mut self.current));
            self.begin_piece();
            bytes = later;
        }
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0u8; VARINT_BYTES_MAX];
        let mut len = 0;
        while value >= 0x80 {
            bytes[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        bytes[len] = value as u8;
        self.put(&bytes[..=len]);
    }

    fn signed(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.done.push(self.current);
        let count = (self.done.len() as u32).to_le_bytes();
        for piece in &mut self.done {
            piece[COUNT_AT..COUNT_AT + 4].copy_from_slice(&count);
        }
        self.done.into_iter().map(Bytes::from).collect()
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
