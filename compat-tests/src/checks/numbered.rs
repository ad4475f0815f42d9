//! Records of which each partition's *n*th is number *n*: whoever reads one knows what its offset must be.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::records::{
    NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, TimestampType,
};

use crate::wire::FetchedBatch;

const HEAD_BYTES: usize = 12;
const PADDING_BYTES_MAX: u64 = 400;
/// Timestamps go back and forth within so many ms before the run began.
const SPREAD_MS: u64 = 100_000;

/// When record `number` of a partition says that it was made, ms since 1970.
pub fn timestamp(partition: i32, number: u64, began_ms: i64) -> i64 {
    began_ms - (mixed(partition, number) % SPREAD_MS) as i64
}

/// Record `number` of a partition.
pub fn record(partition: i32, number: u64, began_ms: i64) -> Record {
    Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: NO_SEQUENCE,
        timestamp: timestamp(partition, number, began_ms),
        key: None,
        value: Some(value(partition, number)),
        headers: IndexMap::new(),
    }
}

/// Which record this is, all of it compared. Errors: what differs.
pub fn number_of(partition: i32, found: &Record, began_ms: i64) -> Result<u64, String> {
    let value_found = found.value.as_ref().ok_or("no value")?;
    let number =
        value_found.get(4..HEAD_BYTES).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let number = number.ok_or_else(|| format!("a value of {} bytes", value_found.len()))?;
    if *value_found != value(partition, number) {
        return Err(format!("not the value of record {number} of partition {partition}"));
    }
    let due = timestamp(partition, number, began_ms);
    if found.timestamp != due {
        return Err(format!("record {number} with timestamp {} for {due}", found.timestamp));
    }
    Ok(number)
}

/// Checks that a partition goes on with these batches: offsets dense, and the record at offset *n* is number *n*. Answers the
/// next offset.
pub fn follow(partition: i32, from: i64, batches: &[FetchedBatch], began_ms: i64) -> Result<i64, String> {
    let mut next = from;
    for batch in batches {
        for (offset, found) in (batch.base_offset..).zip(&batch.records) {
            // The batch that holds the offset asked for comes whole.
            if offset < from {
                continue;
            }
            let number = number_of(partition, found, began_ms)
                .map_err(|wrong| format!("partition {partition} offset {offset}: {wrong}"))?;
            if offset != next || i64::try_from(number) != Ok(offset) {
                return Err(format!(
                    "partition {partition}: record {number} at offset {offset} where record and offset {next} were due"
                ));
            }
            next += 1;
        }
    }
    Ok(next)
}

fn value(partition: i32, number: u64) -> Bytes {
    let noise = mixed(partition, number);
    let padding = (noise >> 32) % PADDING_BYTES_MAX;
    let mut value = BytesMut::with_capacity(HEAD_BYTES + padding as usize);
    value.put_i32(partition);
    value.put_u64(number);
    value.put_bytes(noise as u8, padding as usize);
    value.freeze()
}

fn mixed(partition: i32, number: u64) -> u64 {
    fastrand::Rng::with_seed(number << 12 ^ partition as u64).u64(..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(base_offset: i64, numbers: std::ops::Range<u64>) -> FetchedBatch {
        let records = numbers.map(|number| record(2, number, 5_000)).collect();
        FetchedBatch { base_offset, epoch: 0, records }
    }

    #[test]
    fn what_goes_on_is_followed_and_the_front_of_its_first_batch_left_out() {
        assert_eq!(follow(2, 3, &[batch(2, 2..5), batch(5, 5..7)], 5_000), Ok(7));
    }

    #[test]
    fn what_is_left_out_comes_again_or_is_changed_is_seen() {
        assert!(follow(2, 0, &[batch(0, 0..3), batch(4, 4..5)], 5_000).is_err(), "left out");
        assert!(follow(2, 0, &[batch(0, 0..3), batch(3, 2..4)], 5_000).is_err(), "comes again");
        assert!(follow(2, 0, &[batch(0, 0..3), batch(2, 2..4)], 5_000).is_err(), "offsets twice");
        let mut changed = batch(0, 0..1);
        changed.records[0].timestamp += 1;
        assert!(follow(2, 0, &[changed], 5_000).is_err());
        assert!(follow(3, 0, &[batch(0, 0..1)], 5_000).is_err(), "another partition's");
    }
}
