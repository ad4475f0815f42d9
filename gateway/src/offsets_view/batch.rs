//! Rows as one Kafka batch with the offsets that they have: what is missing between them is missing in the batch, as
//! in one that was compacted.

use super::records;
use crate::groups::{Row, Seen};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Record, RecordBatchEncoder, RecordEncodeOptions,
    TimestampType,
};
use rangeway_core::api::batch::{BATCH_HEAD_LEN, BATCH_OVERHEAD, CRC_FROM};
use rangeway_core::api::crc32c;

/// Where a batch holds the offset of its last record less that of its first.
const LAST_OFFSET_DELTA: std::ops::Range<usize> = 23..27;
/// Where it holds its CRC.
const CRC: std::ops::Range<usize> = 17..21;

/// What was seen from `from` on; `None`: nothing. Where the last rows are of no use to a reader the batch still reaches
/// beyond them, and one without records is a batch as well: readers go on behind it.
///
/// Errors: rows that make no batch, which is a fault of this program.
pub(super) fn encode(seen: &Seen, from: u64, leader_epoch: i32) -> Result<Option<Bytes>, ()> {
    if from >= seen.through {
        return Ok(None);
    }
    let of = |row: &Row| Some((row.number, row.at, records::encode(row)?));
    let rows: Vec<_> = seen.rows.iter().filter_map(of).collect();
    let base = rows.first().map_or(from, |(number, _, _)| *number);
    let last = i32::try_from(seen.through - 1 - base).map_err(|_| ())?;
    if rows.is_empty() {
        return Ok(Some(empty(base, last, leader_epoch)));
    }
    let mut batch = with_records(base, rows, leader_epoch)?;
    let crc = {
        let delta = batch.get_mut(LAST_OFFSET_DELTA).ok_or(())?;
        delta.copy_from_slice(&last.to_be_bytes());
        crc32c(&[batch.get(CRC_FROM..).ok_or(())?])
    };
    batch.get_mut(CRC).ok_or(())?.copy_from_slice(&crc.to_be_bytes());
    Ok(Some(batch.freeze()))
}

fn with_records(
    base: u64,
    rows: Vec<(u64, i64, records::Encoded)>,
    leader_epoch: i32,
) -> Result<BytesMut, ()> {
    let records: Vec<Record> = rows
        .into_iter()
        .map(|(number, timestamp, (key, value))| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: leader_epoch,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            timestamp_type: TimestampType::Creation,
            offset: number as i64,
            // In step with the offsets, so that all are of one batch; the first one is that of no producer.
            sequence: (number - base) as i32 - 1,
            timestamp,
            key: Some(key),
            value,
            headers: Default::default(),
        })
        .collect();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    let mut batch = BytesMut::new();
    RecordBatchEncoder::encode(&mut batch, &records, &options).map_err(|_| ())?;
    Ok(batch)
}

/// A batch without records.
fn empty(base: u64, last_offset_delta: i32, leader_epoch: i32) -> Bytes {
    let mut rest = BytesMut::with_capacity(BATCH_HEAD_LEN - CRC_FROM);
    rest.put_i16(0);
    rest.put_i32(last_offset_delta);
    rest.put_i64(-1);
    rest.put_i64(-1);
    rest.put_i64(NO_PRODUCER_ID);
    rest.put_i16(NO_PRODUCER_EPOCH);
    rest.put_i32(-1);
    rest.put_i32(0);
    let mut batch = BytesMut::with_capacity(BATCH_HEAD_LEN);
    batch.put_u64(base);
    batch.put_i32((BATCH_HEAD_LEN - BATCH_OVERHEAD) as i32);
    batch.put_i32(leader_epoch);
    batch.put_i8(2);
    batch.put_u32(crc32c(&[&rest]));
    batch.put_slice(&rest);
    batch.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Shown;
    use kafka_protocol::records::RecordBatchDecoder;
    use rangeway_core::api::batch::BatchHead;

    fn row(number: u64, group: &str) -> Row {
        Row { number, at: number as i64, group: group.to_owned(), what: Shown::Group(None) }
    }

    fn seen(rows: Vec<Row>, through: u64) -> Seen {
        Seen { next: through, rows, through }
    }

    #[test]
    fn offsets_keep_their_gaps_and_the_batch_reaches_to_the_end() {
        let seen = seen(vec![row(3, "a"), row(7, "b")], 11);
        let mut batch = encode(&seen, 0, 5).expect("a batch").expect("not nothing");
        let head = BatchHead::parse(&batch).expect("a head");
        assert_eq!((head.base_offset, head.last_offset_delta, head.record_count), (3, 7, 2));
        assert_eq!((head.base_sequence, head.max_timestamp), (-1, 7));
        assert_eq!(head.crc, crc32c(&[&batch[CRC_FROM..]]));
        let records = RecordBatchDecoder::decode(&mut batch).expect("records").records;
        assert_eq!(records.iter().map(|r| r.offset).collect::<Vec<_>>(), [3, 7]);
        assert!(records.iter().all(|r| r.value.is_none() && r.partition_leader_epoch == 5));
    }

    #[test]
    fn rows_of_no_use_leave_a_batch_without_records() {
        let long = row(4, &"x".repeat(40_000));
        for rows in [vec![], vec![long]] {
            let mut batch = encode(&seen(rows, 6), 2, 1).expect("a batch").expect("not nothing");
            let head = BatchHead::parse(&batch).expect("a head");
            assert_eq!((head.base_offset, head.last_offset_delta, head.record_count), (2, 3, 0));
            assert_eq!(head.crc, crc32c(&[&batch[CRC_FROM..]]));
            assert_eq!(RecordBatchDecoder::decode(&mut batch).expect("records").records.len(), 0);
        }
    }

    #[test]
    fn at_the_end_there_is_nothing() {
        assert_eq!(encode(&seen(vec![], 6), 6, 1), Ok(None));
    }
}
