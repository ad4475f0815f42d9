//! Producing as fast as it is acknowledged, with a bounded number of requests in flight.

use super::client::{Broken, Connection, TIMEOUT_MS, Target, Topic, answer, broken, frame, refused};
use super::{Plan, Tally};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Record, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Payload of one request, about, in bytes.
const REQUEST_BYTES: usize = 1 << 20;
/// Partitions in one request of the wide workload.
const WIDE_PARTITIONS: usize = 100;

/// A request that is sent again and again.
struct Prepared {
    frame: Vec<u8>,
    records: u64,
    bytes: u64,
}

/// Full batches, one per partition and request.
pub fn batches(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    let records = (plan.batch_bytes / plan.record_bytes.max(1)).max(1);
    let per_request = (REQUEST_BYTES / (records * plan.record_bytes).max(1)).max(1);
    run(plan, target, topic, records, per_request, progress)
}

/// One record for each of a hundred partitions in every request.
pub fn wide(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    run(plan, target, topic, 1, WIDE_PARTITIONS, progress)
}

fn run(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    records: usize,
    per_request: usize,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    let version = target.version::<ProduceRequest>(9)?;
    let batch = batch(records, plan.record_bytes)?;
    let mut lanes = Vec::new();
    for (address, partitions) in &topic.leaders {
        for share in shares(partitions, plan.connections) {
            let requests: Result<Vec<Prepared>, Broken> = share
                .chunks(per_request)
                .map(|chunk| prepare(plan, topic, chunk, &batch, records, version))
                .collect();
            lanes.push((Connection::open(address)?, requests?));
        }
    }
    let began = Instant::now();
    let mut total = Tally::default();
    let tallies: Vec<Result<Tally, Broken>> = std::thread::scope(|scope| {
        let running: Vec<_> = lanes
            .into_iter()
            .map(|(connection, requests)| {
                scope.spawn(move || lane(plan, connection, requests, version, began, progress))
            })
            .collect();
        running
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(|_| Err(Broken("a lane panicked".into()))))
            .collect()
    });
    for tally in tallies {
        total.join(tally?);
    }
    total.took = began.elapsed();
    Ok(total)
}

/// Partitions dealt out to connections; with fewer partitions than connections some share one.
pub(super) fn shares(partitions: &[i32], connections: usize) -> Vec<Vec<i32>> {
    let connections = connections.max(1);
    (0..connections)
        .map(|c| {
            if partitions.len() >= connections {
                partitions.iter().copied().skip(c).step_by(connections).collect()
            } else {
                partitions.iter().copied().cycle().skip(c).take(usize::from(!partitions.is_empty())).collect()
            }
        })
        .filter(|share: &Vec<i32>| !share.is_empty())
        .collect()
}

/// Keeps `in_flight` requests on their way until the time is over, then waits for the rest.
fn lane(
    plan: &Plan,
    mut connection: Connection,
    mut requests: Vec<Prepared>,
    version: i16,
    began: Instant,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    let mut tally = Tally::default();
    let mut flying: VecDeque<(Instant, u64, u64)> = VecDeque::new();
    let mut next = 0;
    loop {
        let on = began.elapsed() < plan.time;
        while on && flying.len() < plan.in_flight.max(1) {
            let count = requests.len().max(1);
            let Some(request) = requests.get_mut(next % count) else { return Ok(tally) };
            next += 1;
            let sent = Instant::now();
            connection.send(&mut request.frame)?;
            flying.push_back((sent, request.records, request.bytes));
        }
        let Some((sent, records, bytes)) = flying.pop_front() else { break };
        let body = connection.receive()?;
        tally.times.add(sent.elapsed());
        check(&body, version)?;
        tally.records += records;
        tally.bytes += bytes;
        tally.requests += 1;
        progress(began.elapsed().as_secs_f64() / plan.time.as_secs_f64().max(1e-9));
    }
    Ok(tally)
}

/// Fails on the first partition that was refused.
pub(super) fn check(body: &Bytes, version: i16) -> Result<(), Broken> {
    let answer = answer::<ProduceRequest>(body, version)?;
    for topic in &answer.responses {
        for row in &topic.partition_responses {
            let what = || format!("producing to partition {}", row.index);
            if row.error_code != 0 {
                refused(what(), row.error_code, row.error_message.as_ref())?;
            }
        }
    }
    Ok(())
}

fn prepare(
    plan: &Plan,
    topic: &Topic,
    partitions: &[i32],
    batch: &Bytes,
    records: usize,
    version: i16,
) -> Result<Prepared, Broken> {
    let rows = partitions
        .iter()
        .map(|index| PartitionProduceData::default().with_index(*index).with_records(Some(batch.clone())))
        .collect();
    let data = TopicProduceData::default().with_name(topic.name.clone()).with_partition_data(rows);
    let request = ProduceRequest::default()
        .with_acks(plan.acks)
        .with_timeout_ms(TIMEOUT_MS)
        .with_topic_data(vec![data]);
    let count = (records * partitions.len()) as u64;
    Ok(Prepared { frame: frame(&request, version)?, records: count, bytes: count * plan.record_bytes as u64 })
}

/// A batch of records without keys whose values do not compress.
pub(super) fn batch(records: usize, record_bytes: usize) -> Result<Bytes, Broken> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let timestamp = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let records: Vec<Record> = (0..records)
        .map(|at| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            timestamp_type: TimestampType::Creation,
            offset: at as i64,
            // The batch's base sequence, which the first record gives, is -1: no producer.
            sequence: at as i32 - 1,
            timestamp,
            key: None,
            value: Some(value(record_bytes, &mut noise)),
            headers: Default::default(),
        })
        .collect();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    let mut bytes = BytesMut::new();
    RecordBatchEncoder::encode(&mut bytes, &records, &options).map_err(broken("encoding a batch"))?;
    Ok(bytes.freeze())
}

fn value(len: usize, noise: &mut u64) -> Bytes {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        *noise ^= *noise << 13;
        *noise ^= *noise >> 7;
        *noise ^= *noise << 17;
        bytes.extend_from_slice(&noise.to_le_bytes());
    }
    bytes.truncate(len);
    Bytes::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rangeway_core::api::batch::BatchHead;

    #[test]
    fn every_partition_has_a_connection_and_every_connection_a_partition() {
        let all: Vec<i32> = (0..7).collect();
        for connections in 1..=10 {
            let shares = shares(&all, connections);
            assert_eq!(shares.len(), connections);
            let mut dealt: Vec<i32> = shares.iter().flatten().copied().collect();
            dealt.sort_unstable();
            dealt.dedup();
            assert_eq!(dealt, all, "{connections}");
        }
        assert!(shares(&[], 3).is_empty());
    }

    #[test]
    fn a_batch_is_one_batch_without_a_producer() {
        let bytes = batch(10, 100).unwrap();
        let head = BatchHead::parse(&bytes).unwrap();
        assert_eq!((head.record_count, head.last_offset_delta), (10, 9));
        assert_eq!((head.producer_id, head.producer_epoch, head.base_sequence), (-1, -1, -1));
        assert_eq!(bytes.len(), head.batch_length as usize + 12);
        assert!(bytes.len() > 1000);
    }
}
