//! A topic after very many splits and merges against a fresh one with the same records, on a broker each, measured in turns.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kafka_protocol::messages::{FetchRequest, ProduceRequest};

use super::load::batch;
use super::reshard;
use super::stats::{mean, quantile, spread};
use crate::broker::{Broker, Kind};
use crate::wire::{self, Connection, FETCH_VERSION, FetchFrom, PRODUCE_VERSION};

const TOPIC: &str = "worn";
const PARTITIONS: i32 = 16;
const ROUNDS: usize = 9;
const TIMED_REQUESTS: usize = 400;
const FETCH_BYTES: i32 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// After a start, until the node has read in the background where its segments begin.
const SETTLED: Duration = Duration::from_secs(2);
/// What is measured of a broker in one round, the less the better.
const MEASURES: [&str; 5] = [
    "produce, one request at a time, µs (median)",
    "fetch of one batch at the end, µs (median)",
    "fetch of one batch at the start, µs (median)",
    "fetch of everything, ms",
    "restart after a kill until ready, ms",
];

/// Runs it, and prints each measure of both brokers.
pub fn worn(reshards: u32, settings: &[(String, String)]) -> Result<()> {
    let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut brokers = Vec::new();
    for worn in [true, false] {
        let mut broker = Broker::start(Kind::Rangeway, &settings)?;
        let mut connection = Connection::open(broker.address(), PATIENCE)?;
        connection.create_topic(TOPIC, PARTITIONS, &[])?;
        let began = Instant::now();
        for n in 0..reshards {
            if worn {
                // Split and merge in turns: in the end there are as many ranges as before.
                reshard(broker.http_address(), TOPIC, n % 2 == 1)?;
            }
            produce(&mut connection, n as i32 % PARTITIONS, &batch(10, 100)?)?;
        }
        if worn {
            println!("{reshards} splits and merges of one topic in {:.1} s", began.elapsed().as_secs_f64());
        }
        drop(connection);
        // Both begin with a fresh process.
        broker.stop()?;
        broker.restart()?;
        brokers.push(broker);
    }
    let mut values = vec![vec![Vec::new(); MEASURES.len()]; brokers.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..brokers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            for (measure, value) in measured(&mut brokers[at])?.into_iter().enumerate() {
                values[at][measure].push(value);
            }
        }
    }
    println!("after {reshards} splits and merges against none, {ROUNDS} rounds in turns (mean, spread):");
    for (measure, name) in MEASURES.iter().enumerate() {
        let [worn, fresh] = [0, 1].map(|broker| &values[broker][measure]);
        println!(
            "  {name}: {:.1} ({:.1} %) against {:.1} ({:.1} %): {:+.1} %",
            mean(worn),
            spread(worn) * 100.0,
            mean(fresh),
            spread(fresh) * 100.0,
            (mean(worn) / mean(fresh) - 1.0) * 100.0
        );
    }
    brokers.iter_mut().try_for_each(Broker::stop)
}

fn measured(broker: &mut Broker) -> Result<[f64; MEASURES.len()]> {
    std::thread::sleep(SETTLED);
    let mut connection = Connection::open(broker.address(), PATIENCE)?;
    let records = batch(10, 100)?;
    let mut took = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..TIMED_REQUESTS {
        let partition = n as i32 % PARTITIONS;
        let began = Instant::now();
        let base = produce(&mut connection, partition, &records)?;
        took[0].push(micros(began));
        for (measure, offset) in [(1, base), (2, 0)] {
            let began = Instant::now();
            let next = fetch(&mut connection, partition, offset, 1)?;
            took[measure].push(micros(began));
            ensure!(next > offset, "partition {partition} gives nothing at {offset}");
        }
    }
    let began = Instant::now();
    for partition in 0..PARTITIONS {
        let (mut next, end) = (0, connection.list_offset(TOPIC, partition, -1)?.1);
        while next < end {
            let after = fetch(&mut connection, partition, next, FETCH_BYTES)?;
            ensure!(after > next, "partition {partition} gives nothing at {next}");
            next = after;
        }
    }
    let everything = micros(began) / 1000.0;
    broker.kill()?;
    let ready = broker.restart()?;
    let [produce, end, start] = took.map(|took| quantile(&took, 50.0));
    Ok([produce, end, start, everything, ready.as_secs_f64() * 1000.0])
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

/// Offset of the first record.
fn produce(connection: &mut Connection, partition: i32, records: &bytes::Bytes) -> Result<i64> {
    let request = wire::produce_request(vec![(TOPIC, partition, records.clone())], -1, 30_000);
    let response = connection.call::<ProduceRequest>(&request, PRODUCE_VERSION)?;
    let answer = &response.responses[0].partition_responses[0];
    ensure!(answer.error_code == 0, "partition {partition}: a batch was answered {}", answer.error_code);
    Ok(answer.base_offset)
}

/// The offset after what was fetched.
fn fetch(connection: &mut Connection, partition: i32, offset: i64, max_bytes: i32) -> Result<i64> {
    let request = wire::fetch_request(&[FetchFrom { topic: TOPIC, partition, offset }], 0, max_bytes);
    let response = connection.call::<FetchRequest>(&request, FETCH_VERSION)?;
    let answer = &response.responses[0].partitions[0];
    ensure!(
        answer.error_code == 0,
        "partition {partition}: a fetch at {offset} was answered {}",
        answer.error_code
    );
    let batches = wire::batches(answer.records.clone().unwrap_or_default())?;
    Ok(batches.last().map_or(offset, |batch| batch.base_offset + batch.records.len() as i64))
}
