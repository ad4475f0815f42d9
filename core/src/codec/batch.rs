//! Head of a Kafka v2 record batch: the 61 bytes before the records (KIP-98). Batches are never taken apart here.
//!
//! ```text
//! baseOffset 0/8  batchLength 8/4  leaderEpoch 12/4  magic 16/1  crc 17/4  attributes 21/2  lastOffsetDelta 23/4
//! baseTimestamp 27/8  maxTimestamp 35/8  producerId 43/8  producerEpoch 51/2  baseSequence 53/4  recordCount 57/4
//! ```
//! The CRC covers bytes 21 to the end, so base offset and leader epoch are patched without touching it.

/// Length of a batch head in bytes.
pub const BATCH_HEAD_LEN: usize = 61;
/// Bytes of a batch that its length field does not count.
pub const BATCH_OVERHEAD: usize = 12;
/// First byte that the batch's CRC covers.
pub const CRC_FROM: usize = 21;

/// The fields of a batch head that sequencing and validation need.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// As sent; 0 from clients.
    pub base_offset: i64,
    /// Bytes after the length field.
    pub batch_length: i32,
    /// Message format, 2.
    pub magic: i8,
    /// CRC-32C over bytes 21 to the end.
    pub crc: u32,
    /// Bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control.
    pub attributes: i16,
    /// Last record's offset less the base offset.
    pub last_offset_delta: i32,
    /// ms.
    pub base_timestamp: i64,
    /// ms.
    pub max_timestamp: i64,
    /// -1 without.
    pub producer_id: i64,
    /// -1 without.
    pub producer_epoch: i16,
    /// -1 without.
    pub base_sequence: i32,
    /// How many records.
    pub record_count: i32,
}

impl BatchHead {
    /// Reads the head; `None` when there are fewer than 61 bytes.
    pub fn parse(bytes: &[u8]) -> Option<BatchHead> {
        let b = bytes.first_chunk::<BATCH_HEAD_LEN>()?;
        let i16_at = |at: usize| i16::from_be_bytes([b[at], b[at + 1]]);
        let i32_at = |at: usize| i32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let i64_at = |at: usize| (i64::from(i32_at(at)) << 32) | i64::from(i32_at(at + 4) as u32);
        Some(BatchHead {
            base_offset: i64_at(0),
            batch_length: i32_at(8),
            magic: b[16] as i8,
            crc: i32_at(17) as u32,
            attributes: i16_at(21),
            last_offset_delta: i32_at(23),
            base_timestamp: i64_at(27),
            max_timestamp: i64_at(35),
            producer_id: i64_at(43),
            producer_epoch: i16_at(51),
            base_sequence: i32_at(53),
            record_count: i32_at(57),
        })
    }

    /// Bit 4: part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// Bit 5: a control batch.
    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    /// Bits 0-2.
    pub fn codec(&self) -> i16 {
        self.attributes & 0x07
    }
}

/// Writes base offset and leader epoch into a batch head; neither is under the batch's CRC.
pub fn patch(head: &mut [u8; BATCH_HEAD_LEN], base_offset: i64, leader_epoch: i32) {
    head[0..8].copy_from_slice(&base_offset.to_be_bytes());
    head[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// Attribute bit 4: part of a transaction.
pub const TRANSACTIONAL_BIT: i16 = 0x10;
/// Attribute bit 3: the broker's append time stands for the records' timestamps.
pub const TIMESTAMP_TYPE_BIT: i16 = 0x08;

/// Writes attributes and maximum timestamp into a batch head; both are under the batch's CRC: [`set_crc`] follows.
pub fn restamp(head: &mut [u8; BATCH_HEAD_LEN], attributes: i16, max_timestamp: i64) {
    head[21..23].copy_from_slice(&attributes.to_be_bytes());
    head[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
}

/// Writes a batch's CRC.
pub fn set_crc(head: &mut [u8; BATCH_HEAD_LEN], crc: u32) {
    head[17..21].copy_from_slice(&crc.to_be_bytes());
}
