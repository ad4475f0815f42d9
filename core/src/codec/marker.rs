//! Markers: the control batch that ends a producer's transaction in one partition (KIP-98), and its entry's header.
//!
//! ```text
//! | batch head 61: attributes 0x30, base sequence -1, one record | record 17 |
//! record: 0x20 | attributes 0 | timestamp delta 0 | offset delta 0 | 0x08 version i16, type i16 | 0x0c version i16,
//!         coordinator epoch i32 | 0 headers           type: 0 abort, 1 commit; both versions 0
//! ```
//! What a fold needs stands in the entry's header: it reads no payload.

use crate::codec::batch::{BATCH_HEAD_LEN, BATCH_OVERHEAD, CRC_FROM};
use crate::codec::crc32c;
use crate::codec::entry::{EntryHeader, EntryKind};
use bytes::{BufMut, Bytes, BytesMut};

/// Entry flag of a marker that commits; without it the marker aborts.
pub const MARKER_COMMIT: u8 = 1;
/// Length of a marker's batch in bytes.
pub const MARKER_LEN: usize = BATCH_HEAD_LEN + 17;
/// Transactional and control.
const ATTRIBUTES: i16 = 0x30;

/// What a marker says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MarkerBody {
    /// Whose transaction ends.
    pub producer_id: i64,
    /// The epoch that the producer has from here on.
    pub producer_epoch: i16,
    /// Leader epoch of the coordinator's partition.
    pub coordinator_epoch: i32,
    /// The transaction's number, growing per producer id; 0 without.
    pub number: u64,
    /// Commit, else abort.
    pub commit: bool,
}

impl MarkerBody {
    /// What the entry's header says; `None` where the entry is no marker.
    pub fn of(header: &EntryHeader) -> Option<MarkerBody> {
        (header.kind == EntryKind::Marker).then_some(MarkerBody {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            coordinator_epoch: header.first_sequence,
            number: header.first_timestamp as u64,
            commit: header.flags & MARKER_COMMIT != 0,
        })
    }

    /// The header of the marker's entry: of `numbered` the place, offset, leader epoch and time are kept.
    pub fn header(&self, numbered: EntryHeader) -> EntryHeader {
        EntryHeader {
            kind: EntryKind::Marker,
            flags: if self.commit { MARKER_COMMIT } else { 0 },
            last_offset_delta: 0,
            record_count: 1,
            first_timestamp: self.number as i64,
            max_timestamp: numbered.appended_at,
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            first_sequence: self.coordinator_epoch,
            attributes: ATTRIBUTES,
            payload_len: MARKER_LEN as u32,
            ..numbered
        }
    }

    /// The batch as clients read it, numbered as the entry is.
    pub fn batch(&self, header: &EntryHeader) -> Bytes {
        let mut b = BytesMut::with_capacity(MARKER_LEN);
        b.put_i64(header.base_offset);
        b.put_i32((MARKER_LEN - BATCH_OVERHEAD) as i32);
        b.put_i32(header.leader_epoch);
        b.put_i8(2);
        b.put_u32(0); // the checksum, known at the end
        b.put_i16(ATTRIBUTES);
        b.put_i32(0);
        b.put_i64(header.max_timestamp);
        b.put_i64(header.max_timestamp);
        b.put_i64(self.producer_id);
        b.put_i16(self.producer_epoch);
        b.put_i32(-1);
        b.put_i32(1);
        b.put_slice(&[0x20, 0, 0, 0, 0x08, 0, 0, 0, u8::from(self.commit), 0x0c, 0, 0]);
        b.put_i32(self.coordinator_epoch);
        b.put_u8(0);
        let crc = crc32c(&[&b[CRC_FROM..]]);
        b[CRC_FROM - 4..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        b.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::batch::BatchHead;
    use crate::types::{Address, LogletId};

    fn numbered() -> EntryHeader {
        EntryHeader {
            loglet: LogletId(3),
            address: Address(4),
            kind: EntryKind::Control,
            flags: 0,
            partition: 5,
            base_offset: 6,
            last_offset_delta: 0,
            record_count: 0,
            leader_epoch: 7,
            appended_at: 8,
            first_timestamp: -1,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            first_sequence: -1,
            attributes: 0,
            payload_len: 0,
        }
    }

    /// An abort marker as a broker of version 4.4 writes it, but for offset, time and checksum.
    #[test]
    fn the_record_is_kafkas() {
        let body =
            MarkerBody { producer_id: 9, producer_epoch: 2, coordinator_epoch: 0, number: 1, commit: false };
        let header = body.header(numbered());
        let batch = body.batch(&header);
        let record = [0x20, 0, 0, 0, 0x08, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(batch[BATCH_HEAD_LEN..], record);
        let commit = MarkerBody { commit: true, coordinator_epoch: 0x0102, ..body };
        let record = [0x20, 0, 0, 0, 0x08, 0, 0, 0, 1, 0x0c, 0, 0, 0, 0, 1, 2, 0];
        assert_eq!(commit.batch(&header)[BATCH_HEAD_LEN..], record);
        let head = BatchHead::parse(&batch).expect("a whole head");
        assert_eq!(head.batch_length as usize + BATCH_OVERHEAD, batch.len());
        assert_eq!(head.crc, crc32c(&[&batch[CRC_FROM..]]));
        assert!(head.is_transactional() && head.is_control());
        let numbers = (head.base_offset, head.producer_id, head.producer_epoch, head.base_sequence);
        assert_eq!(numbers, (6, 9, 2, -1));
        assert_eq!((head.max_timestamp, head.record_count, head.last_offset_delta), (8, 1, 0));
    }

    #[test]
    fn a_header_says_what_the_marker_does() {
        let body = MarkerBody {
            producer_id: i64::MAX,
            producer_epoch: i16::MAX,
            coordinator_epoch: i32::MAX,
            number: u64::MAX,
            commit: true,
        };
        let header = body.header(numbered());
        let again = EntryHeader::decode(&header.encode(&body.batch(&header))).expect("a header");
        assert_eq!(MarkerBody::of(&again), Some(body));
        assert_eq!(MarkerBody::of(&EntryHeader { kind: EntryKind::Data, ..again }), None);
    }
}
