//! The records section of a batch: bounded decompression.

use rangeway_core::api::batch::{BATCH_HEAD_LEN, BatchHead};
pub use rangeway_core::api::records::{Malformed, Record, Records};
use std::borrow::Cow;
use std::io::Read;

/// Header that Java's snappy streams begin with.
pub(super) const XERIAL: &[u8] = b"\x82SNAPPY\0";
/// [`XERIAL`] and two version numbers.
const XERIAL_HEADER: usize = 16;

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

/// Why records were not decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// They come to more bytes than were allowed.
    #[error("the records decompress to more than {0} bytes")]
    TooLarge(usize),
    /// They are not what the codec writes.
    #[error("the records do not decompress: {0}")]
    Malformed(String),
}

impl From<InflateError> for Malformed {
    fn from(error: InflateError) -> Malformed {
        Malformed(error.to_string())
    }
}

fn malformed(message: impl Into<String>) -> InflateError {
    InflateError::Malformed(message.into())
}

/// The records section of a batch, decompressed; at most `most` bytes, else an error.
pub fn inflate<'a>(batch: &'a [u8], head: &BatchHead, most: usize) -> Result<Cow<'a, [u8]>, InflateError> {
    let packed = batch.get(BATCH_HEAD_LEN..).unwrap_or_default();
    match head.codec() {
        0 => Ok(Cow::Borrowed(packed)),
        codec => unpack(codec, packed, most).map(Cow::Owned),
    }
}

/// Decompressed bytes of a codec, by its number in the attributes; at most `most` bytes, else an error.
pub(super) fn unpack(codec: i16, packed: &[u8], most: usize) -> Result<Vec<u8>, InflateError> {
    let io = |e: std::io::Error| malformed(e.to_string());
    match codec {
        1 => bounded(flate2::read::MultiGzDecoder::new(packed), most),
        2 => snappy(packed, most),
        3 => lz4_frame(packed, most),
        4 => bounded(zstd::stream::read::Decoder::new(packed).map_err(io)?, most),
        codec => Err(malformed(format!("unknown codec {codec}"))),
    }
}

fn bounded(reader: impl Read, most: usize) -> Result<Vec<u8>, InflateError> {
    let mut out = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut out).map_err(|e| malformed(e.to_string()))?;
    if out.len() > most { Err(InflateError::TooLarge(most)) } else { Ok(out) }
}

/// A whole frame: the library hands out what came before a cut.
fn lz4_frame(packed: &[u8], most: usize) -> Result<Vec<u8>, InflateError> {
    let mut decoder = lz4::Decoder::new(packed).map_err(|e| malformed(e.to_string()))?;
    let out = bounded(&mut decoder, most)?;
    let (_, ended) = decoder.finish();
    ended.map(|()| out).map_err(|_| malformed("an lz4 frame is cut short"))
}

/// One raw block, or Java's stream of length-prefixed blocks.
fn snappy(packed: &[u8], most: usize) -> Result<Vec<u8>, InflateError> {
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

fn block(packed: &[u8], out: &mut Vec<u8>, most: usize) -> Result<(), InflateError> {
    let why = |e: snap::Error| malformed(e.to_string());
    let length = snap::raw::decompress_len(packed).map_err(why)?;
    // A snappy block cannot hold more than this; the length in front is only a claim.
    if length > packed.len().saturating_mul(64) {
        return Err(malformed(format!("a snappy block of {} bytes claims to hold {length}", packed.len())));
    }
    if length > most.saturating_sub(out.len()) {
        return Err(InflateError::TooLarge(most));
    }
    let start = out.len();
    out.resize(start + length, 0);
    let written = snap::raw::Decoder::new()
        .decompress(packed, out.get_mut(start..).unwrap_or_default())
        .map_err(why)?;
    out.truncate(start + written);
    Ok(())
}
