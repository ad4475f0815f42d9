//! The body of a checkpoint as a state. Bytes from a disk: every number is looked at, and memory stays within a small
//! multiple of the input.

use super::{Before, CheckpointError, HAS_MARKER, HAS_OPEN};
use crate::range::epochs::{EpochStart, EpochTable};
use crate::range::producers::{BATCHES_REMEMBERED, LastMarker, Producer, ProducerTable, RecentBatch};
use crate::range::state::{PartitionState, RangeState};
use crate::range::transactions::{AbortedSpan, Transactions};
use crate::types::{Address, LogletId, Partition, Span};

/// An encoded partition is never shorter: four numbers and an empty epoch table.
const PARTITION_BYTES_MIN: usize = 5;

/// The state that a body holds, with transactions or of a version without.
///
/// Errors: final, the bytes are no body of that version.
pub(super) fn state(body: &[u8], transactions: bool) -> Result<RangeState, CheckpointError> {
    let input = &mut Reader(body);
    let span = Span { first: input.i32()?, last: input.i32()? };
    if span.first < 0 || span.count() > input.0.len() / PARTITION_BYTES_MIN {
        return Err(CheckpointError::Impossible("span"));
    }
    let mut partitions = Vec::with_capacity(span.count());
    for _ in 0..span.count() {
        partitions.push(partition(input)?);
    }
    let producers = producers(input, span, &partitions, transactions)?;
    if transactions {
        aborted(input, span, &mut partitions)?;
    }
    for ((partition, id), producer) in producers.iter() {
        let state = span.index(partition).and_then(|at| partitions.get_mut(at));
        if let (Some(first), Some(state)) = (producer.open(), state) {
            state.transactions.begin(first, id);
        }
    }
    if !input.0.is_empty() {
        return Err(CheckpointError::Impossible("bytes after the end"));
    }
    Ok(RangeState::from_partitions(span, partitions.into_iter(), producers))
}

fn partition(input: &mut Reader<'_>) -> Result<PartitionState, CheckpointError> {
    let (next, log_start) = (input.offset()?, input.offset()?);
    if log_start > next {
        return Err(CheckpointError::Impossible("log start"));
    }
    let (bytes, max_timestamp) = (input.varint()?, input.signed()?);
    let mut starts = Vec::new();
    for _ in 0..input.varint()? {
        let epoch =
            i32::try_from(input.varint()?).map_err(|_| CheckpointError::Impossible("leader epoch"))?;
        starts.push(EpochStart { epoch, start: input.offset()? });
    }
    if starts.last().is_some_and(|e| e.start > next) {
        return Err(CheckpointError::Impossible("epoch start"));
    }
    let epochs = EpochTable::from_starts(&starts).ok_or(CheckpointError::Impossible("epoch table"))?;
    let transactions = Transactions::default();
    Ok(PartitionState { next, log_start, epochs, bytes, max_timestamp, transactions })
}

fn aborted(
    input: &mut Reader<'_>,
    span: Span,
    partitions: &mut [PartitionState],
) -> Result<(), CheckpointError> {
    const WRONG: CheckpointError = CheckpointError::Impossible("aborted transaction");
    let mut at = 0usize;
    for n in 0..input.varint()? {
        let step = usize::try_from(input.varint()?).map_err(|_| WRONG)?;
        at = at.checked_add(step).filter(|at| *at < span.count() && (n == 0 || step > 0)).ok_or(WRONG)?;
        let state = partitions.get_mut(at).ok_or(WRONG)?;
        let count = input.varint()?;
        if count == 0 {
            return Err(WRONG);
        }
        let (mut before, mut producer_id) = (0i64, 0i64);
        for n in 0..count {
            let last = before.checked_add_unsigned(input.varint()?).filter(|last| *last < state.next);
            let last = last.filter(|last| n == 0 || *last > before).ok_or(WRONG)?;
            let first = last.checked_sub_unsigned(input.varint()?);
            let first = first.filter(|first| (0..last).contains(first)).ok_or(WRONG)?;
            producer_id = producer_id.wrapping_add(input.signed()?);
            state.transactions.abort(AbortedSpan { producer_id, first, last });
            before = last;
        }
    }
    Ok(())
}

fn producers(
    input: &mut Reader<'_>,
    span: Span,
    partitions: &[PartitionState],
    transactions: bool,
) -> Result<ProducerTable, CheckpointError> {
    let mut table = ProducerTable::default();
    let (mut partition, mut id) = (span.first, -1i64);
    for _ in 0..input.varint()? {
        let step = input.varint()?;
        if step != 0 {
            id = -1;
        }
        let moved = i64::from(partition).checked_add_unsigned(step).and_then(|p| Partition::try_from(p).ok());
        partition =
            moved.filter(|p| span.contains(*p)).ok_or(CheckpointError::Impossible("producer's partition"))?;
        let grown = input.varint()?;
        let next_id = id.checked_add_unsigned(grown).filter(|next| *next > id);
        id = next_id.ok_or(CheckpointError::Impossible("producer id"))?;
        let end = span.index(partition).and_then(|at| partitions.get(at)).map_or(0, |p| p.next);
        table.push((partition, id), producer(input, end, transactions)?);
    }
    Ok(table)
}

/// A producer whose batches all lie below `end`, the next offset of its partition.
fn producer(input: &mut Reader<'_>, end: i64, transactions: bool) -> Result<Producer, CheckpointError> {
    const COUNT: CheckpointError = CheckpointError::Impossible("number of batches");
    let epoch = i16::try_from(input.signed()?).map_err(|_| CheckpointError::Impossible("producer epoch"))?;
    let count = input.varint()?;
    let follows = if transactions { count & (HAS_OPEN | HAS_MARKER) } else { 0 };
    let batches = count ^ follows;
    if batches > BATCHES_REMEMBERED as u64 || batches == 0 && follows & HAS_MARKER == 0 {
        return Err(COUNT);
    }
    let mut before = Before::default();
    let mut producer = Producer::new(epoch);
    for _ in 0..batches {
        let batch = batch(input, &before, end)?;
        before = Before::of(&batch);
        producer.record(epoch, batch);
    }
    let open = if follows & HAS_OPEN != 0 { Some(input.offset()?) } else { None };
    if follows & HAS_MARKER != 0 {
        producer.end(epoch, marker(input)?);
    }
    if let Some(first) = open {
        if first >= end {
            return Err(CheckpointError::Impossible("first offset of an open transaction"));
        }
        producer.begin(first);
    }
    Ok(producer)
}

fn marker(input: &mut Reader<'_>) -> Result<LastMarker, CheckpointError> {
    let number = input.varint()?;
    let coordinator_epoch =
        i32::try_from(input.signed()?).map_err(|_| CheckpointError::Impossible("coordinator epoch"))?;
    Ok(LastMarker {
        number,
        coordinator_epoch,
        loglet: LogletId(input.varint()?),
        address: Address(input.varint()?),
        appended_at: input.signed()?,
    })
}

fn batch(input: &mut Reader<'_>, before: &Before, end: i64) -> Result<RecentBatch, CheckpointError> {
    let first_sequence =
        i32::try_from(input.varint()?).map_err(|_| CheckpointError::Impossible("sequence"))?;
    let delta = i32::try_from(input.varint()?).map_err(|_| CheckpointError::Impossible("sequence"))?;
    let base_offset = before.base_offset.wrapping_add(input.signed()?);
    let inside = base_offset >= 0 && base_offset.checked_add(i64::from(delta)).is_some_and(|last| last < end);
    if !inside {
        return Err(CheckpointError::Impossible("offset of a producer's batch"));
    }
    Ok(RecentBatch {
        first_sequence,
        last_sequence: first_sequence.wrapping_add(delta) & i32::MAX,
        base_offset,
        loglet: LogletId(before.loglet.wrapping_add(input.signed()? as u64)),
        address: Address(before.address.wrapping_add(input.signed()? as u64)),
        appended_at: before.appended_at.wrapping_add(input.signed()?),
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn i32(&mut self) -> Result<i32, CheckpointError> {
        let (bytes, rest) = self.0.split_first_chunk::<4>().ok_or(CheckpointError::Short)?;
        self.0 = rest;
        Ok(i32::from_le_bytes(*bytes))
    }

    /// A number in its shortest form: no second encoding of a state exists.
    fn varint(&mut self) -> Result<u64, CheckpointError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(CheckpointError::Short)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    break;
                }
                return Ok(value);
            }
        }
        Err(CheckpointError::Impossible("number"))
    }

    fn signed(&mut self) -> Result<i64, CheckpointError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn offset(&mut self) -> Result<i64, CheckpointError> {
        i64::try_from(self.varint()?).map_err(|_| CheckpointError::Impossible("offset"))
    }
}
