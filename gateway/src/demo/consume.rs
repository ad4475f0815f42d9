//! The demo's consumer: reads all partitions from their first offset on, and has every record judged.

use super::{Load, pause};
use crate::bench::client::{Broken, Connection, answer, broken, refused};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::records::RecordBatchDecoder;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const FETCH: i16 = 12;
/// Longest wait of a fetch for a first record.
const WAIT_MS: i32 = 100;

/// Consumes until told to stop.
///
/// Errors: a refusal that asking again does not change, or a connection that breaks.
pub fn run(load: &Load) -> Result<(), Broken> {
    let mut connection = Connection::open(&load.address)?;
    while !load.state.consumed_enough.load(Relaxed) && !load.state.is_broken() {
        let next = load.state.judge.lock().next_offsets().to_vec();
        connection.send(&mut crate::bench::client::frame(&request(load, &next), FETCH)?)?;
        let fetched = answer::<FetchRequest>(&connection.receive()?, FETCH)?;
        refused("fetching", fetched.error_code, None)?;
        for row in fetched.responses.into_iter().flat_map(|topic| topic.partitions) {
            match ResponseError::try_from_code(row.error_code) {
                None => judge(load, row.partition_index, row.records.unwrap_or_default())?,
                Some(error) if error.is_retriable() => {
                    load.state.refusals.fetch_add(1, Relaxed);
                    pause(Duration::from_millis(5));
                }
                Some(_) => {
                    refused(format!("fetching partition {}", row.partition_index), row.error_code, None)?;
                }
            }
        }
    }
    Ok(())
}

fn request(load: &Load, next: &[i64]) -> FetchRequest {
    let partitions = (0..).zip(next).map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default().with_topic(load.topic.clone()).with_partitions(partitions.collect());
    FetchRequest::default()
        .with_max_wait_ms(WAIT_MS)
        .with_min_bytes(1)
        .with_max_bytes(8 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn judge(load: &Load, partition: i32, mut records: bytes::Bytes) -> Result<(), Broken> {
    if records.is_empty() {
        return Ok(());
    }
    let sets = RecordBatchDecoder::decode_all(&mut records).map_err(broken("records are not understood"))?;
    let mut judge = load.state.judge.lock();
    let at = usize::try_from(partition).ok();
    let from = at.and_then(|at| judge.next_offsets().get(at)).copied().unwrap_or(0);
    // A batch may begin below the offset that was asked for; what is below was seen.
    for record in sets.into_iter().flat_map(|set| set.records).filter(|record| record.offset >= from) {
        let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
        let value = record.value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
        match (key, value.and_then(|value| value.parse().ok())) {
            (Some(key), Some(sequence)) => judge.saw(partition, record.offset, key, sequence),
            _ => judge.saw_nonsense(format!(
                "partition {partition} offset {}: no record of the demo",
                record.offset
            )),
        }
    }
    Ok(())
}
