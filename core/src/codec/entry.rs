//! The stored entry: a fixed header and a payload, both final before they are submitted (design 4).
//!
//! ```text
//! | header 96 | payload |         data:  payload = Kafka v2 batch, patched
//! ```
//! The header's CRC covers the header and, of a `data` payload, the first 61 bytes (the batch's own CRC covers the
//! rest); of any other payload all bytes.

use crate::codec::batch::BATCH_HEAD_LEN;
use crate::codec::crc32c;
use crate::types::{Address, LogletId, Offset, Partition};
use bytes::Bytes;

/// Length of an encoded header, in bytes.
pub const ENTRY_HEADER_LEN: usize = 96;
const MAGIC: u16 = 0x5257;
const VERSION: u8 = 1;

/// What an entry is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// One Kafka v2 batch of one partition.
    Data = 1,
    /// One record of a replicated state machine; takes one offset.
    Control = 2,
    /// A piece of the range's folded state; `flags` holds [`CHECKPOINT_LAST`] on the last piece.
    Checkpoint = 3,
    /// Raised log starts of some partitions of the range.
    LogStart = 4,
    /// A snapshot of a replicated state machine; takes one offset.
    Snapshot = 5,
    /// The control batch that ends a transaction in its partition; takes one offset (see [`crate::codec::marker`]).
    Marker = 6,
}

/// Flag of a checkpoint's last entry.
pub const CHECKPOINT_LAST: u8 = 1;
/// Flag of a checkpoint's first entry.
pub const CHECKPOINT_FIRST: u8 = 2;

impl EntryKind {
    /// The kind with this number.
    pub fn from_u8(n: u8) -> Option<EntryKind> {
        Some(match n {
            1 => EntryKind::Data,
            2 => EntryKind::Control,
            3 => EntryKind::Checkpoint,
            4 => EntryKind::LogStart,
            5 => EntryKind::Snapshot,
            6 => EntryKind::Marker,
            _ => return None,
        })
    }
}

/// Header of a stored entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// The loglet that the entry belongs to.
    pub loglet: LogletId,
    /// Its address in that loglet.
    pub address: Address,
    /// What it is.
    pub kind: EntryKind,
    /// Bits by kind.
    pub flags: u8,
    /// Its partition; [`crate::types::WHOLE_RANGE`] for entries of the range.
    pub partition: Partition,
    /// Offset of its first record; -1 for entries of the range.
    pub base_offset: Offset,
    /// Last record's offset less `base_offset`.
    pub last_offset_delta: i32,
    /// How many records.
    pub record_count: i32,
    /// The partition's leader epoch when it was sequenced.
    pub leader_epoch: i32,
    /// When the primary sequenced it, in ms since the epoch.
    pub appended_at: i64,
    /// Timestamp of the first record (batch base timestamp), ms; -1 without. Of a marker the transaction's number.
    pub first_timestamp: i64,
    /// Largest record timestamp, ms; -1 without.
    pub max_timestamp: i64,
    /// Producer id; -1 without.
    pub producer_id: i64,
    /// Producer epoch; -1 without.
    pub producer_epoch: i16,
    /// Sequence of the first record; -1 without. Of a marker the coordinator's epoch.
    pub first_sequence: i32,
    /// Attributes of a data batch or marker (codec, timestamp type, transactional, control); 0 otherwise.
    pub attributes: i16,
    /// Length of the payload in bytes.
    pub payload_len: u32,
}

/// Why bytes are no entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Fewer bytes than a header.
    #[error("entry header cut: got {got} bytes, expected {ENTRY_HEADER_LEN}")]
    Short {
        /// Bytes there were.
        got: usize,
    },
    /// Another magic or a newer version.
    #[error("no entry header here (magic {magic:#06x}, version {version})")]
    Magic {
        /// Magic found.
        magic: u16,
        /// Version found.
        version: u8,
    },
    /// A kind that this version does not know.
    #[error("unknown entry kind {0}")]
    Kind(u8),
    /// The checksum differs.
    #[error("entry checksum differs: got {got:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Computed from the bytes.
        got: u32,
        /// Stored in the header.
        expected: u32,
    },
}

impl EntryHeader {
    /// Offset of the last record; `base_offset - 1` for entries of the range, which take no offset.
    pub fn last_offset(&self) -> Offset {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// Bytes of the header with the CRC over it and over `covered`, the covered part of the payload.
    pub fn encode(&self, covered: &[u8]) -> [u8; ENTRY_HEADER_LEN] {
        let mut b = [0u8; ENTRY_HEADER_LEN];
        b[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        b[2] = VERSION;
        b[3] = self.kind as u8;
        b[4] = self.flags;
        b[6..8].copy_from_slice(&self.attributes.to_le_bytes());
        b[8..16].copy_from_slice(&self.loglet.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.address.0.to_le_bytes());
        b[24..28].copy_from_slice(&self.partition.to_le_bytes());
        b[28..32].copy_from_slice(&self.leader_epoch.to_le_bytes());
        b[32..40].copy_from_slice(&self.base_offset.to_le_bytes());
        b[40..44].copy_from_slice(&self.last_offset_delta.to_le_bytes());
        b[44..48].copy_from_slice(&self.record_count.to_le_bytes());
        b[48..56].copy_from_slice(&self.appended_at.to_le_bytes());
        b[56..64].copy_from_slice(&self.first_timestamp.to_le_bytes());
        b[64..72].copy_from_slice(&self.max_timestamp.to_le_bytes());
        b[72..80].copy_from_slice(&self.producer_id.to_le_bytes());
        b[80..82].copy_from_slice(&self.producer_epoch.to_le_bytes());
        b[84..88].copy_from_slice(&self.first_sequence.to_le_bytes());
        b[88..92].copy_from_slice(&self.payload_len.to_le_bytes());
        let crc = crc32c(&[&b[..92], covered]);
        b[92..96].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a header; the checksum is looked at by [`check`], which needs the payload too.
    ///
    /// Errors: final, the bytes are not an entry of this version.
    pub fn decode(b: &[u8]) -> Result<EntryHeader, EntryError> {
        let Some(b) = b.first_chunk::<ENTRY_HEADER_LEN>() else {
            return Err(EntryError::Short { got: b.len() });
        };
        let magic = u16::from_le_bytes([b[0], b[1]]);
        if magic != MAGIC || b[2] != VERSION {
            return Err(EntryError::Magic { magic, version: b[2] });
        }
        let kind = EntryKind::from_u8(b[3]).ok_or(EntryError::Kind(b[3]))?;
        Ok(EntryHeader {
            kind,
            flags: b[4],
            attributes: i16::from_le_bytes([b[6], b[7]]),
            loglet: LogletId(le_u64(b, 8)),
            address: Address(le_u64(b, 16)),
            partition: le_i32(b, 24),
            leader_epoch: le_i32(b, 28),
            base_offset: le_i64(b, 32),
            last_offset_delta: le_i32(b, 40),
            record_count: le_i32(b, 44),
            appended_at: le_i64(b, 48),
            first_timestamp: le_i64(b, 56),
            max_timestamp: le_i64(b, 64),
            producer_id: le_i64(b, 72),
            producer_epoch: i16::from_le_bytes([b[80], b[81]]),
            first_sequence: le_i32(b, 84),
            payload_len: le_i32(b, 88) as u32,
        })
    }

    /// How many payload bytes the header's CRC covers.
    pub fn covered_len(&self) -> usize {
        match self.kind {
            EntryKind::Data => BATCH_HEAD_LEN.min(self.payload_len as usize),
            _ => self.payload_len as usize,
        }
    }
}

/// Checks an encoded header's CRC against the covered part of its payload.
///
/// Errors: [`EntryError::Checksum`], for good: header or payload head are damaged.
pub fn check(header: &[u8; ENTRY_HEADER_LEN], covered: &[u8]) -> Result<(), EntryError> {
    let expected = le_i32(header, 92) as u32;
    let got = crc32c(&[&header[..92], covered]);
    if got != expected {
        return Err(EntryError::Checksum { got, expected });
    }
    Ok(())
}

fn le_u64(b: &[u8; ENTRY_HEADER_LEN], at: usize) -> u64 {
    let mut x = [0u8; 8];
    x.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(x)
}
fn le_i64(b: &[u8; ENTRY_HEADER_LEN], at: usize) -> i64 {
    le_u64(b, at) as i64
}
fn le_i32(b: &[u8; ENTRY_HEADER_LEN], at: usize) -> i32 {
    i32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// An entry on its way to a drive or held in memory: header, then `head[96..]` and `body` are its payload.
///
/// `head` is the encoded header followed by the patched 61-byte batch head (for `data`), both in one scratch buffer of
/// the request; `body` is a slice of what was received. Cloning copies no bytes.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The decoded header.
    pub header: EntryHeader,
    /// Encoded header, then the part of the payload that was patched.
    pub head: Bytes,
    /// The rest of the payload.
    pub body: Bytes,
}

impl Entry {
    /// An entry of one of our own kinds (not `data`), encoded.
    pub fn own(header: EntryHeader, payload: Bytes) -> Entry {
        let head = Bytes::copy_from_slice(&header.encode(&payload));
        Entry { header, head, body: payload }
    }

    /// The part of the payload that lies in `head`.
    pub fn payload_head(&self) -> Bytes {
        self.head.slice(ENTRY_HEADER_LEN.min(self.head.len())..)
    }

    /// Encoded length in bytes: header and payload.
    pub fn encoded_len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}
