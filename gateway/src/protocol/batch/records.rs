//! The records section of a batch: bounded decompression, and a walk that borrows.

use rangeway_core::api::batch::{BATCH_HEAD_LEN, BatchHead};
use std::borrow::Cow;
use std::io::Read;

/// Header that Java's snappy streams begin with.
pub(super) const XERIAL: &[u8] = b"\x82SNAPPY\0";
/// [`XERIAL`] and two version numbers.
const XERIAL_HEADER: usize = 16;

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
        let length = usize::try_from(varint(&mut self.rest)?)
            .ok()
            .filter(|n| *n <= self.rest.len())
            .ok_or_else(|| malformed("a record is longer than its batch"))?;
        let (mut body, rest) = self.rest.split_at(length);
        self.rest = rest;
        let body = &mut body;
        let _attributes = byte(body)?;
        let timestamp_delta = varlong(body)?;
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
            0 => Ok(Record { offset_delta, timestamp_delta, key, value, headers }),
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

/// Whether the first bytes are such as the codec writes; costs nothing. Snappy has no mark of its own.
pub(super) fn looks_compressed(bytes: &[u8], codec: i16) -> Result<(), String> {
    let (name, mark): (_, &[u8]) = match codec {
        1 => ("gzip", &[0x1f, 0x8b]),
        3 => ("lz4", &[0x04, 0x22, 0x4d, 0x18]),
        4 => ("zstd", &[0x28, 0xb5, 0x2f, 0xfd]),
        _ => return Ok(()),
    };
    if bytes.starts_with(mark) { Ok(()) } else { Err(format!("the records are not {name}")) }
}

/// The records section of a batch, decompressed; at most `most` bytes, else an error.
pub fn inflate<'a>(batch: &'a [u8], head: &BatchHead, most: usize) -> Result<Cow<'a, [u8]>, Malformed> {
    let packed = batch.get(BATCH_HEAD_LEN..).unwrap_or_default();
    let io = |e: std::io::Error| malformed(e.to_string());
    let records = match head.codec() {
        0 => return Ok(Cow::Borrowed(packed)),
        1 => bounded(flate2::read::MultiGzDecoder::new(packed), most)?,
        2 => snappy(packed, most)?,
        3 => bounded(lz4::Decoder::new(packed).map_err(io)?, most)?,
        4 => bounded(zstd::stream::read::Decoder::new(packed).map_err(io)?, most)?,
        codec => return Err(malformed(format!("unknown codec {codec}"))),
    };
    Ok(Cow::Owned(records))
}

fn bounded(reader: impl Read, most: usize) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut out).map_err(|e| malformed(e.to_string()))?;
    if out.len() > most { Err(too_large(most)) } else { Ok(out) }
}

fn too_large(most: usize) -> Malformed {
    malformed(format!("the records decompress to more than {most} bytes"))
}

/// One raw block, or Java's stream of length-prefixed blocks.
fn snappy(packed: &[u8], most: usize) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    if !packed.starts_with(XERIAL) {
        return block(packed, &mut out, most).map(|()| out);
    }
    let mut rest =
        packed.get(XERIAL_HEADER..).ok_or_else(|| malformed("a snappy stream without a header"))?;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let (chunk, after) =
            after.split_at_checked(length).ok_or_else(|| malformed("a snappy block is cut short"))?;
        block(chunk, &mut out, most)?;
        rest = after;
    }
    if rest.is_empty() { Ok(out) } else { Err(malformed("a snappy stream is cut short")) }
}

fn block(packed: &[u8], out: &mut Vec<u8>, most: usize) -> Result<(), Malformed> {
    let why = |e: snap::Error| malformed(e.to_string());
    let length = snap::raw::decompress_len(packed).map_err(why)?;
    // A snappy block cannot hold more than this; the length in front is only a claim.
    if length > most.saturating_sub(out.len()) || length > packed.len().saturating_mul(64) {
        return Err(too_large(most));
    }
    let start = out.len();
    out.resize(start + length, 0);
    let written = snap::raw::Decoder::new()
        .decompress(packed, out.get_mut(start..).unwrap_or_default())
        .map_err(why)?;
    out.truncate(start + written);
    Ok(())
}
