//! The records section of a Kafka v2 batch, not compressed: a walk that borrows, and the batch anew with some of its
//! records (KIP-98, KIP-534). Only compaction takes a batch apart.
//!
//! ```text
//! record: length varint | attributes 1 | timestamp delta varlong | offset delta varint | key | value | headers
//! ```

use super::batch::{
    BATCH_HEAD_LEN, BATCH_OVERHEAD, BatchHead, CRC_FROM, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
};
use super::crc32c;
use bytes::{BufMut, Bytes, BytesMut};
use std::fmt::Debug;

/// Attribute bit 6: the base timestamp is the time (ms) from which on tombstones and markers of the batch may go.
pub const DELETE_HORIZON_BIT: i16 = 0x40;
/// Most bytes of a record's length or offset as a varint.
const VARINT_BYTES_MAX: usize = 10;

/// What packs and unpacks the records of a batch. Codecs are numbered as in the attributes; 0 is not asked for.
pub trait RecordCodec: Debug + Send + Sync {
    /// The records of a batch whose bytes after the head are `packed`, at most `most` bytes.
    ///
    /// Errors: for good, the bytes are not of that codec or grow beyond `most`.
    fn unpack(&self, codec: i16, packed: &[u8], most: usize) -> Result<Vec<u8>, Malformed>;

    /// Records as batches of that codec hold them.
    ///
    /// Errors: a codec that is not known.
    fn pack(&self, codec: i16, records: &[u8]) -> Result<Vec<u8>, Malformed>;
}

/// Knows batches without compression only.
#[derive(Copy, Clone, Debug, Default)]
pub struct Uncompressed;

impl RecordCodec for Uncompressed {
    fn unpack(&self, codec: i16, _packed: &[u8], _most: usize) -> Result<Vec<u8>, Malformed> {
        Err(malformed(format!("codec {codec} is not known here")))
    }

    fn pack(&self, codec: i16, _records: &[u8]) -> Result<Vec<u8>, Malformed> {
        Err(malformed(format!("codec {codec} is not known here")))
    }
}

/// Why bytes are no records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

fn malformed(message: impl Into<String>) -> Malformed {
    Malformed(message.into())
}

/// One record, borrowed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset less the batch's base offset.
    pub offset_delta: i32,
    /// Timestamp less the batch's base timestamp, ms.
    pub timestamp_delta: i64,
    /// Key.
    pub key: Option<&'a [u8]>,
    /// Value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers as encoded, their count included.
    pub headers: &'a [u8],
    /// The record as encoded, its length included.
    raw: &'a [u8],
    /// What follows the timestamp.
    after_timestamp: &'a [u8],
}

/// Walks records without allocating. Ends after `count` records or at the first fault.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    left: i32,
}

impl<'a> Records<'a> {
    /// The records that `bytes`, not compressed, hold.
    pub fn new(bytes: &'a [u8], count: i32) -> Records<'a> {
        Records { rest: bytes, left: count }
    }

    /// Bytes not walked.
    pub fn rest(&self) -> usize {
        self.rest.len()
    }

    fn record(&mut self) -> Result<Record<'a>, Malformed> {
        let whole = self.rest;
        let length = usize::try_from(varint(&mut self.rest)?)
            .ok()
            .filter(|n| *n <= self.rest.len())
            .ok_or_else(|| malformed("a record is longer than its batch"))?;
        let (mut body, rest) = self.rest.split_at(length);
        self.rest = rest;
        let raw = whole.get(..whole.len() - rest.len()).unwrap_or_default();
        let body = &mut body;
        let _attributes = byte(body)?;
        let timestamp_delta = varlong(body)?;
        let after_timestamp = *body;
        let offset_delta = varint(body)?;
        let key = field(body)?;
        let value = field(body)?;
        let headers = *body;
        let count = varint(body)?;
        if count < 0 {
            return Err(malformed(format!("a record with {count} headers")));
        }
        for _ in 0..count {
            field(body)?.ok_or_else(|| malformed("a header without a key"))?;
            field(body)?;
        }
        match body.len() {
            0 => Ok(Record { offset_delta, timestamp_delta, key, value, headers, raw, after_timestamp }),
            n => Err(malformed(format!("{n} bytes after the end of a record"))),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        let record = self.record();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

fn byte(from: &mut &[u8]) -> Result<u8, Malformed> {
    let (first, rest) = from.split_first().ok_or_else(|| malformed("a record is cut short"))?;
    *from = rest;
    Ok(*first)
}

fn varint(from: &mut &[u8]) -> Result<i32, Malformed> {
    let wide = unsigned(from, 5)?;
    let raw = u32::try_from(wide).map_err(|_| malformed("a varint is larger than 32 bits"))?;
    Ok(((raw >> 1) as i32) ^ -((raw & 1) as i32))
}

fn varlong(from: &mut &[u8]) -> Result<i64, Malformed> {
    let raw = unsigned(from, 10)?;
    Ok(((raw >> 1) as i64) ^ -((raw & 1) as i64))
}

fn unsigned(from: &mut &[u8], bytes_max: u32) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for at in 0..bytes_max {
        let b = byte(from)?;
        value |= u64::from(b & 0x7f) << (7 * at).min(63);
        if b & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(malformed(format!("a varint of more than {bytes_max} bytes")))
}

fn field<'a>(from: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let length = varint(from)?;
    if length == -1 {
        return Ok(None);
    }
    let length = usize::try_from(length)
        .ok()
        .filter(|n| *n <= from.len())
        .ok_or_else(|| malformed(format!("a field of {length} bytes with {} left", from.len())))?;
    let (field, rest) = from.split_at(length);
    *from = rest;
    Ok(Some(field))
}

fn put_unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_unsigned(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// A stored batch with its records laid open.
#[derive(Debug)]
pub struct OpenBatch<'a> {
    /// Its head.
    pub head: BatchHead,
    batch: &'a Bytes,
    records: std::borrow::Cow<'a, [u8]>,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The batch: same offsets, producer and codec.
    pub bytes: Bytes,
    /// Its records.
    pub records: i32,
    /// Largest timestamp of these, ms; -1 without.
    pub max_timestamp: i64,
    /// Its attributes.
    pub attributes: i16,
}

impl<'a> OpenBatch<'a> {
    /// Lays a batch open, at most `most` bytes of records.
    ///
    /// Errors: the bytes are no batch, or its records do not unpack.
    pub fn new(batch: &'a Bytes, codec: &dyn RecordCodec, most: usize) -> Result<OpenBatch<'a>, Malformed> {
        let head = BatchHead::parse(batch).ok_or_else(|| malformed("shorter than a batch's head"))?;
        let packed = batch.get(BATCH_HEAD_LEN..).unwrap_or_default();
        let records = match head.codec() {
            0 => packed.into(),
            number => codec.unpack(number, packed, most)?.into(),
        };
        Ok(OpenBatch { head, batch, records })
    }

    /// Its records in order.
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.records, self.head.record_count)
    }

    /// The time from which on its tombstones or its marker may go, where it was set (KIP-534).
    pub fn delete_horizon(&self) -> Option<i64> {
        delete_horizon(&self.head)
    }

    /// The batch with the records for which `keep` says so, by their place in it; `horizon` sets the time from which on what
    /// marks deletions may go.
    ///
    /// Errors: records that cannot be read or packed.
    pub fn rewrite(
        &self,
        codec: &dyn RecordCodec,
        keep: &[bool],
        horizon: Option<i64>,
    ) -> Result<Rewritten, Malformed> {
        let base = horizon.unwrap_or(self.head.base_timestamp);
        let mut out = Vec::with_capacity(self.records.len());
        let (mut count, mut max_timestamp) = (0, -1);
        for (record, _) in self.records().zip(keep).filter(|(_, keep)| **keep) {
            let record = record?;
            let time = self.head.base_timestamp.wrapping_add(record.timestamp_delta);
            max_timestamp = max_timestamp.max(time);
            count += 1;
            if base == self.head.base_timestamp {
                out.extend_from_slice(record.raw);
                continue;
            }
            let mut start = Vec::with_capacity(1 + VARINT_BYTES_MAX);
            start.push(0);
            put_signed(&mut start, time.wrapping_sub(base));
            put_signed(&mut out, (start.len() + record.after_timestamp.len()) as i64);
            out.extend_from_slice(&start);
            out.extend_from_slice(record.after_timestamp);
        }
        if count == 0 {
            return Ok(emptied(self.batch, &self.head));
        }
        if self.head.attributes & TIMESTAMP_TYPE_BIT != 0 {
            max_timestamp = self.head.max_timestamp;
        }
        let packed = match self.head.codec() {
            0 => out,
            number => codec.pack(number, &out)?,
        };
        let horizon_bit = if horizon.is_some() { DELETE_HORIZON_BIT } else { 0 };
        let attributes = self.head.attributes | horizon_bit;
        let bytes = build(self.batch, &packed, attributes, (base, max_timestamp), count);
        Ok(Rewritten { bytes, records: count, max_timestamp, attributes })
    }
}

/// The time from which on what marks deletions in a batch may go, where it was set.
pub fn delete_horizon(head: &BatchHead) -> Option<i64> {
    (head.attributes & DELETE_HORIZON_BIT != 0).then_some(head.base_timestamp)
}

/// The batch without records: its offsets and its producer's numbers.
pub fn emptied(batch: &[u8], head: &BatchHead) -> Rewritten {
    let attributes = head.attributes & TRANSACTIONAL_BIT;
    let bytes = build(batch, &[], attributes, (-1, -1), 0);
    Rewritten { bytes, records: 0, max_timestamp: -1, attributes }
}

fn build(batch: &[u8], packed: &[u8], attributes: i16, times: (i64, i64), count: i32) -> Bytes {
    let mut b = BytesMut::with_capacity(BATCH_HEAD_LEN + packed.len());
    b.put_slice(batch.get(..BATCH_HEAD_LEN).unwrap_or_default());
    b.put_slice(packed);
    let length = (b.len() - BATCH_OVERHEAD) as i32;
    b[8..12].copy_from_slice(&length.to_be_bytes());
    b[21..23].copy_from_slice(&attributes.to_be_bytes());
    b[27..35].copy_from_slice(&times.0.to_be_bytes());
    b[35..43].copy_from_slice(&times.1.to_be_bytes());
    b[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&[&b[CRC_FROM..]]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    b.freeze()
}
