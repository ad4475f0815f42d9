//! Records compressed anew, where a topic's `compression.type` is not that of the batch.
//!
//! Written so that the pickiest reader takes it: snappy in Java's stream of blocks, LZ4 frames of independent blocks.

use super::records::{Malformed, XERIAL, unpack};
use bytes::{BufMut, Bytes, BytesMut};
use rangeway_core::api::batch::{BATCH_HEAD_LEN, BATCH_OVERHEAD, BatchHead, CRC_FROM};
use rangeway_core::api::crc32c;
use rangeway_core::api::records::RecordCodec;
use rangeway_core::config::topic::Compression;
use std::io::Write;

/// Bits 0-2 of the attributes.
const CODEC_BITS: i16 = 0x07;
/// Bytes of a snappy block before it is compressed, as Java's streams have them.
const SNAPPY_BLOCK: usize = 32 * 1024;
/// Version and lowest compatible version of a snappy stream.
const SNAPPY_VERSIONS: [u32; 2] = [1, 1];

/// Number of a codec in a batch's attributes.
pub(super) fn codec(compression: Compression) -> i16 {
    match compression {
        Compression::None => 0,
        Compression::Gzip(_) => 1,
        Compression::Snappy => 2,
        Compression::Lz4(_) => 3,
        Compression::Zstd(_) => 4,
    }
}

/// The batch with its `records` (not compressed) in another codec: its head is the same but for codec, length and CRC.
pub(super) fn again(
    batch: &Bytes,
    mut head: BatchHead,
    records: &[u8],
    compression: Compression,
) -> Result<(BatchHead, Bytes), Malformed> {
    let failed = |e: std::io::Error| Malformed(format!("the records do not compress: {e}"));
    let packed = pack(records, compression).map_err(failed)?;
    let mut bytes = BytesMut::with_capacity(BATCH_HEAD_LEN + packed.len());
    bytes.put_slice(batch.get(..BATCH_HEAD_LEN).unwrap_or_default());
    bytes.put_slice(&packed);
    head.attributes = head.attributes & !CODEC_BITS | codec(compression);
    head.batch_length = i32::try_from(bytes.len() - BATCH_OVERHEAD)
        .map_err(|_| Malformed("the records are too large for a batch".to_owned()))?;
    put(&mut bytes, 8, &head.batch_length.to_be_bytes());
    put(&mut bytes, 21, &head.attributes.to_be_bytes());
    head.crc = crc32c(&[bytes.get(CRC_FROM..).unwrap_or_default()]);
    put(&mut bytes, 17, &head.crc.to_be_bytes());
    Ok((head, bytes.freeze()))
}

fn put(bytes: &mut BytesMut, at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}

fn pack(records: &[u8], compression: Compression) -> std::io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(records.to_vec()),
        Compression::Gzip(level) => {
            let level = u32::try_from(level).map_or(flate2::Compression::default(), flate2::Compression::new);
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(records)?;
            encoder.finish()
        }
        Compression::Snappy => snappy(records).map_err(std::io::Error::other),
        Compression::Lz4(level) => {
            let mut encoder = lz4::EncoderBuilder::new()
                .level(u32::try_from(level).unwrap_or(0))
                .block_mode(lz4::BlockMode::Independent)
                .block_size(lz4::BlockSize::Max64KB)
                .build(Vec::new())?;
            encoder.write_all(records)?;
            let (bytes, ended) = encoder.finish();
            ended.map(|()| bytes)
        }
        Compression::Zstd(level) => zstd::stream::encode_all(records, level),
    }
}

/// The codecs, for whoever rewrites stored batches: levels are the codecs' own defaults.
#[derive(Copy, Clone, Debug, Default)]
pub struct Codecs;

impl RecordCodec for Codecs {
    fn unpack(&self, codec: i16, packed: &[u8], most: usize) -> Result<Vec<u8>, Malformed> {
        Ok(unpack(codec, packed, most)?)
    }

    fn pack(&self, codec: i16, records: &[u8]) -> Result<Vec<u8>, Malformed> {
        let compression = match codec {
            1 => Compression::Gzip(-1),
            2 => Compression::Snappy,
            3 => Compression::Lz4(0),
            4 => Compression::Zstd(0),
            codec => return Err(Malformed(format!("unknown codec {codec}"))),
        };
        pack(records, compression).map_err(|e| Malformed(format!("the records do not compress: {e}")))
    }
}

fn snappy(records: &[u8]) -> Result<Vec<u8>, snap::Error> {
    let mut out = XERIAL.to_vec();
    SNAPPY_VERSIONS.iter().for_each(|version| out.put_u32(*version));
    let mut encoder = snap::raw::Encoder::new();
    for block in records.chunks(SNAPPY_BLOCK) {
        let packed = encoder.compress_vec(block)?;
        // A block of 32 KiB never takes more than four bytes can say.
        out.put_u32(u32::try_from(packed.len()).unwrap_or(u32::MAX));
        out.extend(packed);
    }
    Ok(out)
}
