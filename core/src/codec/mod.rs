//! Byte layouts: stored entries, the head of a Kafka v2 batch and its records. Decoders answer errors, never panic.

pub mod batch;
pub mod entry;
pub mod marker;
pub mod records;

/// CRC-32C (Castagnoli) of several pieces, as one.
pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}
