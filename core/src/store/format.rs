//! Byte layouts of an extent: its header, write groups and records (`docs/formats.md`, "disk"). Pure; bytes from a
//! disk answer `None` or an error, never panic.
//!
//! ```text
//! extent:  | header block 4096 | group | group | …            every group starts on a multiple of 4096
//! group:   | header 64 | record | record | … | zeros to 4096 |
//! record:  | header 32 | entry header 96 | payload |          entry and repair; other kinds have no body
//! ```
//! A record's checksum is salted with its group's number: what an earlier life of a recycled extent left behind a torn
//! write is no record of this life.

use crate::codec::crc32c;
use crate::types::{Address, DiskId, Generation, LeafId, LogletId};
use uuid::Uuid;

/// Groups begin and are padded to multiples of this many bytes (the physical block).
pub(crate) const BLOCK: usize = 4096;
/// Length of a group header.
pub(crate) const GROUP_HEADER_LEN: usize = 64;
/// Length of a record header.
pub(crate) const RECORD_HEADER_LEN: usize = 32;
/// Version of all layouts in this file.
pub(crate) const VERSION: u8 = 1;

const EXTENT_MAGIC: [u8; 4] = *b"RWEX";
const GROUP_MAGIC: [u8; 4] = *b"RWGR";
const EXTENT_HEADER_LEN: usize = 128;
/// Where the second copy of the extent header lies in its block.
const SECOND_COPY: usize = 2048;

/// `n` rounded up to a whole block.
pub(crate) fn align_up(n: usize) -> usize {
    n.div_ceil(BLOCK) * BLOCK
}

pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*b.get(at..)?.first_chunk::<2>()?))
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*b.get(at..)?.first_chunk::<4>()?))
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*b.get(at..)?.first_chunk::<8>()?))
}

/// Who an extent is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentHeader {
    pub(crate) disk: DiskId,
    pub(crate) generation: Generation,
    /// Grows by one with each extent that is begun on the disk; never reused.
    pub(crate) number: u64,
    /// Number of the first group in it: all groups below are proven to be on the disk.
    pub(crate) first_group: u64,
    /// Length of the file, at least.
    pub(crate) len: u64,
    /// Random; salts the checksums of the extent's groups, so that no payload can pass for a group.
    pub(crate) salt: u64,
}

/// What an extent's header block is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderBlock {
    /// A header; `damaged_copy` when one of the two copies is bad.
    Live { header: ExtentHeader, damaged_copy: bool },
    /// Zeros, or a header write that was cut: nothing was ever stored under it.
    Spare,
    /// Newer than this program.
    Newer(u8),
    /// Both copies are bad.
    Damaged,
}

impl ExtentHeader {
    fn copy(&self) -> [u8; EXTENT_HEADER_LEN] {
        let mut h = [0u8; EXTENT_HEADER_LEN];
        h[0..4].copy_from_slice(&EXTENT_MAGIC);
        h[4] = VERSION;
        h[8..24].copy_from_slice(self.disk.0.as_bytes());
        h[24..32].copy_from_slice(&self.generation.0.to_le_bytes());
        h[32..40].copy_from_slice(&self.number.to_le_bytes());
        h[40..48].copy_from_slice(&self.first_group.to_le_bytes());
        h[48..56].copy_from_slice(&self.len.to_le_bytes());
        h[56..64].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c(&[&h[..EXTENT_HEADER_LEN - 4]]);
        h[EXTENT_HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        h
    }

    /// The header block: two copies, so that one bad byte loses nothing.
    pub(crate) fn encode(&self) -> [u8; BLOCK] {
        self.encode_cut(self.len)
    }

    /// The header block of an extent whose end is about to be cut to `len`: its second copy says so, the first not yet.
    pub(crate) fn encode_cut(&self, len: u64) -> [u8; BLOCK] {
        let second = ExtentHeader { len, ..*self }.copy();
        let mut block = [0u8; BLOCK];
        block[..EXTENT_HEADER_LEN].copy_from_slice(&self.copy());
        block[SECOND_COPY..SECOND_COPY + EXTENT_HEADER_LEN].copy_from_slice(&second);
        block
    }

    /// Whether a block is this header and nothing else. Copies may differ in the length: the cut of the end was cut off.
    pub(crate) fn is_whole(&self, block: &[u8; BLOCK]) -> bool {
        let second = block.get(SECOND_COPY..).and_then(ExtentHeader::decode);
        matches!(second, Some(Ok(second)) if *block == self.encode_cut(second.len))
    }

    fn is_like(&self, other: &ExtentHeader) -> bool {
        ExtentHeader { len: other.len, ..*self } == *other
    }

    fn decode(h: &[u8]) -> Option<Result<ExtentHeader, u8>> {
        let h = h.get(..EXTENT_HEADER_LEN)?;
        let crc = u32_at(h, EXTENT_HEADER_LEN - 4)?;
        if h[0..4] != EXTENT_MAGIC || crc != crc32c(&[&h[..EXTENT_HEADER_LEN - 4]]) {
            return None;
        }
        if h[4] != VERSION {
            return Some(Err(h[4]));
        }
        Some(Ok(ExtentHeader {
            disk: DiskId(Uuid::from_bytes(*h[8..].first_chunk::<16>()?)),
            generation: Generation(u64_at(h, 24)?),
            number: u64_at(h, 32)?,
            first_group: u64_at(h, 40)?,
            len: u64_at(h, 48)?,
            salt: u64_at(h, 56)?,
        }))
    }

    /// What the first block of an extent file says.
    pub(crate) fn read(block: &[u8]) -> HeaderBlock {
        let first = ExtentHeader::decode(block);
        let second = block.get(SECOND_COPY..).and_then(ExtentHeader::decode);
        let rest_is_zero = |from: usize| block.get(from..).is_some_and(|b| b.iter().all(|x| *x == 0));
        match (first, second) {
            (Some(Err(v)), _) | (_, Some(Err(v))) => HeaderBlock::Newer(v),
            (Some(Ok(a)), Some(Ok(b))) => HeaderBlock::Live { header: a, damaged_copy: !a.is_like(&b) },
            (None, Some(Ok(header))) => HeaderBlock::Live { header, damaged_copy: true },
            // The second copy is written with the first: zeros there mean that the write was cut.
            (_, None) if rest_is_zero(SECOND_COPY) => HeaderBlock::Spare,
            (Some(Ok(header)), None) => HeaderBlock::Live { header, damaged_copy: true },
            (None, None) => HeaderBlock::Damaged,
        }
    }
}

/// Head of a write group.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    pub(crate) extent: u64,
    pub(crate) number: u64,
    pub(crate) generation: Generation,
    /// Bytes of the records, without header and padding.
    pub(crate) len: u32,
    pub(crate) records: u32,
}

impl GroupHeader {
    pub(crate) fn encode(&self, salt: u64) -> [u8; GROUP_HEADER_LEN] {
        let mut h = [0u8; GROUP_HEADER_LEN];
        h[0..4].copy_from_slice(&GROUP_MAGIC);
        h[4] = VERSION;
        h[8..16].copy_from_slice(&self.extent.to_le_bytes());
        h[16..24].copy_from_slice(&self.number.to_le_bytes());
        h[24..32].copy_from_slice(&self.generation.0.to_le_bytes());
        h[32..36].copy_from_slice(&self.len.to_le_bytes());
        h[36..40].copy_from_slice(&self.records.to_le_bytes());
        let crc = crc32c(&[&h[..GROUP_HEADER_LEN - 4], &salt.to_le_bytes()]);
        h[GROUP_HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        h
    }

    /// The header, when these bytes are one of an extent with this salt.
    pub(crate) fn decode(b: &[u8], salt: u64) -> Option<GroupHeader> {
        let h = b.get(..GROUP_HEADER_LEN)?;
        if h[0..4] != GROUP_MAGIC || h[4] != VERSION {
            return None;
        }
        if u32_at(h, GROUP_HEADER_LEN - 4)? != crc32c(&[&h[..GROUP_HEADER_LEN - 4], &salt.to_le_bytes()]) {
            return None;
        }
        Some(GroupHeader {
            extent: u64_at(h, 8)?,
            number: u64_at(h, 16)?,
            generation: Generation(u64_at(h, 24)?),
            len: u32_at(h, 32)?,
            records: u32_at(h, 36)?,
        })
    }

    /// Bytes that the group takes in its extent.
    pub(crate) fn span(&self) -> usize {
        align_up(GROUP_HEADER_LEN + self.len as usize)
    }
}

/// What a record does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// An entry, written by the sequencer.
    Entry = 1,
    /// The leaf takes no writes any more.
    Fence = 2,
    /// The leaf forgets addresses below the record's.
    Trim = 3,
    /// An entry, copied by a seal pass to a fenced leaf.
    Repair = 4,
    /// All leaves of the loglet are deleted by tombstone.
    Discard = 5,
}

impl RecordKind {
    fn from_u8(n: u8) -> Option<RecordKind> {
        Some(match n {
            1 => RecordKind::Entry,
            2 => RecordKind::Fence,
            3 => RecordKind::Trim,
            4 => RecordKind::Repair,
            5 => RecordKind::Discard,
            _ => return None,
        })
    }
}

/// Head of a record.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) leaf: LeafId,
    /// Drive-local.
    pub(crate) address: Address,
    /// Bytes after this header: an encoded entry, or none.
    pub(crate) len: u32,
}

impl RecordHeader {
    pub(crate) fn encode(&self, group: u64) -> [u8; RECORD_HEADER_LEN] {
        let mut h = [0u8; RECORD_HEADER_LEN];
        h[0] = self.kind as u8;
        h[1] = VERSION;
        h[2..4].copy_from_slice(&self.leaf.leaf.to_le_bytes());
        h[4..8].copy_from_slice(&self.len.to_le_bytes());
        h[8..16].copy_from_slice(&self.leaf.loglet.0.to_le_bytes());
        h[16..24].copy_from_slice(&self.address.0.to_le_bytes());
        let crc = crc32c(&[&h[..RECORD_HEADER_LEN - 4], &group.to_le_bytes()]);
        h[RECORD_HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        h
    }

    /// The header, when these bytes are one of a record of `group`.
    pub(crate) fn decode(b: &[u8], group: u64) -> Option<RecordHeader> {
        let h = b.get(..RECORD_HEADER_LEN)?;
        let crc = u32_at(h, RECORD_HEADER_LEN - 4)?;
        if h[1] != VERSION || crc != crc32c(&[&h[..RECORD_HEADER_LEN - 4], &group.to_le_bytes()]) {
            return None;
        }
        Some(RecordHeader {
            kind: RecordKind::from_u8(h[0])?,
            leaf: LeafId { loglet: LogletId(u64_at(h, 8)?), leaf: u16_at(h, 2)? },
            len: u32_at(h, 4)?,
            address: Address(u64_at(h, 16)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ExtentHeader {
        ExtentHeader {
            disk: DiskId(Uuid::from_u128(7)),
            generation: Generation(3),
            number: 9,
            first_group: 77,
            len: 65536,
            salt: 5,
        }
    }

    #[test]
    fn one_bad_byte_in_an_extent_header_loses_nothing_and_is_seen() {
        let good = header().encode();
        for at in (0..EXTENT_HEADER_LEN).chain(SECOND_COPY..SECOND_COPY + EXTENT_HEADER_LEN) {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(
                ExtentHeader::read(&bad),
                HeaderBlock::Live { header: header(), damaged_copy: true },
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_cut_header_write_is_a_spare_at_every_length_below_the_second_copy() {
        let good = header().encode();
        for len in 0..SECOND_COPY {
            let mut cut = [0u8; BLOCK];
            cut[..len].copy_from_slice(&good[..len]);
            assert_eq!(ExtentHeader::read(&cut), HeaderBlock::Spare, "{len} bytes");
        }
    }

    #[test]
    fn a_record_of_another_group_is_no_record() {
        let r = RecordHeader {
            kind: RecordKind::Entry,
            leaf: LeafId { loglet: LogletId(4), leaf: 2 },
            address: Address(11),
            len: 100,
        };
        assert_eq!(RecordHeader::decode(&r.encode(5), 5), Some(r));
        assert_eq!(RecordHeader::decode(&r.encode(5), 6), None);
    }
}
