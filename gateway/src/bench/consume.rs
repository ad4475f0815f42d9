//! Reading a topic from its start to the end it had when reading began.

use super::client::{Broken, Connection, Target, Topic, answer, frame, refused};
use super::produce::shares;
use super::{Plan, Tally, produce};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use rangeway_core::api::batch::{BATCH_OVERHEAD, BatchHead};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

/// ListOffsets' word for the end.
const LATEST: i64 = -1;

/// Reads; a topic that is empty is filled first, which is not measured.
pub fn run(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    let mut ends = ends(target, topic)?;
    if ends.values().all(|end| *end == 0) {
        produce::batches(plan, target, topic, &|_| progress(0.0))?;
        ends = self::ends(target, topic)?;
    }
    let all: i64 = ends.values().sum();
    let seen = AtomicI64::new(0);
    let count = |records: i64| {
        let so_far = seen.fetch_add(records, Relaxed) + records;
        progress(so_far as f64 / all.max(1) as f64);
    };
    let mut lanes = Vec::new();
    for (address, partitions) in &topic.leaders {
        // More readers than partitions would read the same twice.
        for share in shares(partitions, plan.connections.min(partitions.len())) {
            lanes.push((Connection::open(address)?, share));
        }
    }
    let began = Instant::now();
    let tallies: Vec<Result<Tally, Broken>> = std::thread::scope(|scope| {
        let (ends, count) = (&ends, &count);
        let running: Vec<_> = lanes
            .into_iter()
            .map(|(connection, share)| {
                scope.spawn(move || lane(plan, target, topic, connection, &share, ends, count))
            })
            .collect();
        running
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(|_| Err(Broken("a lane panicked".into()))))
            .collect()
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.join(tally?);
    }
    total.took = began.elapsed();
    Ok(total)
}

fn lane(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    mut connection: Connection,
    partitions: &[i32],
    ends: &BTreeMap<i32, i64>,
    count: &(dyn Fn(i64) + Sync),
) -> Result<Tally, Broken> {
    let version = target.version::<FetchRequest>(12)?;
    let end = |partition: i32| ends.get(&partition).copied().unwrap_or(0);
    let mut next: BTreeMap<i32, i64> = partitions.iter().map(|p| (*p, 0)).collect();
    let mut tally = Tally::default();
    while next.iter().any(|(partition, offset)| *offset < end(*partition)) {
        let left = next.iter().filter(|(partition, offset)| **offset < end(**partition));
        let request = fetch(topic, left.map(|(p, o)| (*p, *o)), 500);
        let sent = Instant::now();
        connection.send(&mut frame(&request, version)?)?;
        let body = connection.receive()?;
        tally.times.add(sent.elapsed());
        tally.requests += 1;
        for (partition, records) in fetched(&body, version)? {
            let Some(offset) = next.get_mut(&partition) else { continue };
            let (after, got) = walk(&records, *offset);
            *offset = after;
            tally.records += got.unsigned_abs();
            tally.bytes += got.unsigned_abs() * plan.record_bytes as u64;
            count(got);
        }
    }
    Ok(tally)
}

/// A request for these partitions from these offsets on; waits at most `wait_ms` for a first byte.
pub(super) fn fetch(topic: &Topic, from: impl Iterator<Item = (i32, i64)>, wait_ms: i32) -> FetchRequest {
    let partitions = from
        .map(|(partition, offset)| {
            FetchPartition::default()
                .with_partition(partition)
                .with_fetch_offset(offset)
                .with_partition_max_bytes(1 << 20)
        })
        .collect();
    FetchRequest::default()
        .with_max_wait_ms(wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_topics(vec![FetchTopic::default().with_topic(topic.name.clone()).with_partitions(partitions)])
}

/// Partitions of an answer with their bytes.
pub(super) fn fetched(body: &Bytes, version: i16) -> Result<Vec<(i32, Bytes)>, Broken> {
    let answer = answer::<FetchRequest>(body, version)?;
    refused("fetching", answer.error_code, None)?;
    let mut all = Vec::new();
    for row in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
        refused(format!("fetching partition {}", row.partition_index), row.error_code, None)?;
        all.push((row.partition_index, row.records.unwrap_or_default()));
    }
    Ok(all)
}

/// The offset after the whole batches in `bytes`, and how many records at or above `from` they have.
pub(super) fn walk(bytes: &[u8], from: i64) -> (i64, i64) {
    let (mut rest, mut next) = (bytes, from);
    while let Some(head) = BatchHead::parse(rest) {
        let Ok(length) = usize::try_from(head.batch_length) else { break };
        let Some(after) = rest.get(BATCH_OVERHEAD.saturating_add(length)..) else { break };
        next = next.max(head.base_offset + i64::from(head.last_offset_delta) + 1);
        rest = after;
    }
    (next, next - from)
}

/// The end offset of each partition.
fn ends(target: &Target, topic: &Topic) -> Result<BTreeMap<i32, i64>, Broken> {
    let version = target.version::<ListOffsetsRequest>(6)?;
    let mut ends = BTreeMap::new();
    for (address, partitions) in &topic.leaders {
        let rows = partitions
            .iter()
            .map(|p| ListOffsetsPartition::default().with_partition_index(*p).with_timestamp(LATEST))
            .collect();
        let asked = ListOffsetsTopic::default().with_name(topic.name.clone()).with_partitions(rows);
        let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
        let answer = Connection::open(address)?.call(&request, version)?;
        for row in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            refused(format!("the end of partition {}", row.partition_index), row.error_code, None)?;
            ends.insert(row.partition_index, row.offset);
        }
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_counts_whole_batches_and_stops_at_a_cut_one() {
        let batch = produce::batch(5, 10).unwrap();
        let mut second = batch.to_vec();
        second[..8].copy_from_slice(&5i64.to_be_bytes());
        let both = [batch.as_ref(), second.as_slice()].concat();
        assert_eq!(walk(&both, 0), (10, 10));
        assert_eq!(walk(&both, 3), (10, 7), "an offset inside a batch");
        assert_eq!(walk(&both[..both.len() - 1], 0), (5, 5));
        assert_eq!(walk(&[], 7), (7, 0));
    }
}
