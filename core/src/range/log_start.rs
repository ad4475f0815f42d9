//! Payload of a log-start entry: the raised log starts of some partitions of a range (layout: docs/formats-range.md).

use crate::types::{Offset, Partition};
use bytes::{BufMut, Bytes, BytesMut};

const VERSION: u8 = 1;
const HEAD: usize = 5;
const ITEM: usize = 12;

/// Why bytes are no log-start payload; final.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogStartError {
    /// A version that this program does not know.
    #[error("log starts: unknown version {0}, expected {VERSION}")]
    Version(u8),
    /// Another length than the count says.
    #[error("log starts: got {got} bytes, expected {expected}")]
    Length {
        /// Bytes there were.
        got: usize,
        /// Bytes that the count asks for.
        expected: usize,
    },
    /// Partitions do not ascend, or a negative number.
    #[error("log starts: item {0} is out of order or negative")]
    Item(usize),
}

/// Encodes log starts; the partitions must ascend strictly.
pub fn encode(starts: &[(Partition, Offset)]) -> Bytes {
    debug_assert!(starts.windows(2).all(|w| w[0].0 < w[1].0), "log starts ascend by partition");
    let mut b = BytesMut::with_capacity(HEAD + ITEM * starts.len());
    b.put_u8(VERSION);
    b.put_u32_le(starts.len() as u32);
    for &(partition, offset) in starts {
        b.put_i32_le(partition);
        b.put_i64_le(offset);
    }
    b.freeze()
}

/// Reads log starts.
///
/// Errors: final, the bytes are no payload of this version.
pub fn decode(bytes: &[u8]) -> Result<Vec<(Partition, Offset)>, LogStartError> {
    let short = LogStartError::Length { got: bytes.len(), expected: HEAD };
    let (&version, rest) = bytes.split_first().ok_or(short)?;
    if version != VERSION {
        return Err(LogStartError::Version(version));
    }
    let (count, items) = rest.split_first_chunk::<4>().ok_or(short)?;
    let expected = ITEM.saturating_mul(u32::from_le_bytes(*count) as usize);
    if items.len() != expected {
        return Err(LogStartError::Length { got: bytes.len(), expected: expected.saturating_add(HEAD) });
    }
    let mut starts: Vec<(Partition, Offset)> = Vec::with_capacity(items.len() / ITEM);
    for (at, item) in items.as_chunks::<ITEM>().0.iter().enumerate() {
        let [p0, p1, p2, p3, offset @ ..] = *item;
        let (partition, offset) = (i32::from_le_bytes([p0, p1, p2, p3]), i64::from_le_bytes(offset));
        let ascends = starts.last().is_none_or(|&(before, _)| before < partition);
        if partition < 0 || offset < 0 || !ascends {
            return Err(LogStartError::Item(at));
        }
        starts.push((partition, offset));
    }
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_these() {
        let bytes = encode(&[(1, 2), (3, 0x0102)]);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "010200000001000000020000000000000003000000020100000000 0000".replace(' ', ""));
    }

    #[test]
    fn lies_about_counts_order_and_versions_are_errors() {
        assert!(matches!(decode(&[]), Err(LogStartError::Length { .. })));
        assert_eq!(decode(&[2, 0, 0, 0, 0]), Err(LogStartError::Version(2)));
        assert!(matches!(decode(&[1, 255, 255, 255, 255]), Err(LogStartError::Length { .. })));
        let mut unordered = BytesMut::from(&[1u8, 2, 0, 0, 0][..]);
        for partition in [4, 4] {
            unordered.put_i32_le(partition);
            unordered.put_i64_le(0);
        }
        assert_eq!(decode(&unordered), Err(LogStartError::Item(1)));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(starts in prop::collection::btree_map(0..i32::MAX, 0..i64::MAX, 0..20)) {
            let starts: Vec<_> = starts.into_iter().collect();
            prop_assert_eq!(decode(&encode(&starts)), Ok(starts));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(starts) = decode(&bytes) {
                prop_assert_eq!(&encode(&starts)[..], &bytes[..]);
            }
        }
    }
}
