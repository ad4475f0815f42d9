//! Batches for tests.

use crate::codec::batch::{BatchHead, TRANSACTIONAL_BIT};
use crate::range::primary::Batch;
use crate::range::state::FirstSequence;
use crate::types::Partition;
use bytes::{BufMut, BytesMut};

/// A batch of `count` records whose body says `text`, of a `producer` (id, epoch, first sequence) or of none; the CRC is
/// right, the records are no records.
pub(crate) fn batch(
    partition: Partition,
    count: i32,
    producer: Option<(i64, i16, i32)>,
    timestamp: i64,
    text: &str,
) -> Batch {
    with_attributes(0, partition, count, producer, timestamp, text)
}

/// The same, as part of its producer's transaction.
pub(crate) fn transactional(
    partition: Partition,
    count: i32,
    producer: (i64, i16, i32),
    timestamp: i64,
    text: &str,
) -> Batch {
    with_attributes(TRANSACTIONAL_BIT, partition, count, Some(producer), timestamp, text)
}

/// A batch whose records are records: key and value of each, of a `producer` or of none, in a transaction or not.
pub(crate) fn keyed(
    attributes: i16,
    partition: Partition,
    producer: Option<(i64, i16, i32)>,
    timestamp: i64,
    records: &[(Option<&str>, Option<&str>)],
) -> Batch {
    let mut body = Vec::new();
    let signed = |out: &mut Vec<u8>, value: i64| {
        let mut left = ((value << 1) ^ (value >> 63)) as u64;
        while left >= 0x80 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    };
    for (n, (key, value)) in (0i64..).zip(records) {
        let mut record = vec![0];
        signed(&mut record, 0);
        signed(&mut record, n);
        for field in [key, value] {
            signed(&mut record, field.map_or(-1, |field| field.len() as i64));
            record.extend_from_slice(field.unwrap_or_default().as_bytes());
        }
        signed(&mut record, 0);
        signed(&mut body, record.len() as i64);
        body.extend_from_slice(&record);
    }
    with_body(attributes, partition, records.len() as i32, producer, timestamp, &body)
}

fn with_attributes(
    attributes: i16,
    partition: Partition,
    count: i32,
    producer: Option<(i64, i16, i32)>,
    timestamp: i64,
    text: &str,
) -> Batch {
    with_body(attributes, partition, count, producer, timestamp, text.as_bytes())
}

fn with_body(
    attributes: i16,
    partition: Partition,
    count: i32,
    producer: Option<(i64, i16, i32)>,
    timestamp: i64,
    body: &[u8],
) -> Batch {
    let (id, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
    let mut tail = BytesMut::new();
    tail.put_i16(attributes);
    tail.put_i32(count - 1);
    tail.put_i64(timestamp);
    tail.put_i64(timestamp);
    tail.put_i64(id);
    tail.put_i16(epoch);
    tail.put_i32(sequence);
    tail.put_i32(count);
    tail.put_slice(body);
    let mut bytes = BytesMut::new();
    bytes.put_i64(0);
    bytes.put_i32(9 + tail.len() as i32);
    bytes.put_i32(0);
    bytes.put_i8(2);
    bytes.put_u32(crate::codec::crc32c(&[&tail]));
    bytes.put_slice(&tail);
    let bytes = bytes.freeze();
    Batch {
        partition,
        head: BatchHead::parse(&bytes).expect("a whole head"),
        bytes,
        first: FirstSequence::Any,
    }
}
