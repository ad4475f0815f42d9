//! Measures a node, or any Kafka broker, through its Kafka port. Owns the load: what is sent, how fast, and what is
//! timed. Knows nothing of the node but its address.
//!
//! A thread per connection, plain blocking sockets, frames that are encoded once and sent again: the client must cost
//! little beside the node, which runs on the same machine more often than not.

pub mod client;
mod consume;
mod histogram;
mod latency;
mod produce;

pub use client::Made;
use client::{Broken, Target};

use serde::Serialize;
use std::time::Duration;

/// A kind of load.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Full batches into a few partitions, as fast as they are acknowledged
    Produce,
    /// The same topic read from its start
    Consume,
    /// Small batches of very many partitions in each request
    Partitions,
    /// One record per request at a fixed rate; time from when it was due until a consumer has it
    Latency,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `HOST:PORT` of the Kafka port.
    pub bootstrap: String,
    /// How long each workload runs.
    pub time: Duration,
    /// Partitions of the topic (produce, consume, latency).
    pub partitions: i32,
    /// Partitions of the topic (partitions).
    pub many: i32,
    /// Bytes of a record's value.
    pub record_bytes: usize,
    /// Bytes of a batch, about; at least one record.
    pub batch_bytes: usize,
    /// Connections per leader.
    pub connections: usize,
    /// Requests of a connection on their way at once.
    pub in_flight: usize,
    /// Acknowledgement asked for: 1, or -1 for all.
    pub acks: i16,
    /// Records per second (latency).
    pub rate: u32,
    /// Replication factor of the topics made; -1: the node's default.
    pub replication_factor: i16,
    /// Drive expression of the topics made, as topic config.
    pub drive: Option<String>,
    /// Leave the topics there.
    pub keep: bool,
}

/// What a workload came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The workload.
    pub workload: Workload,
    /// Records acknowledged or received.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Seconds measured.
    pub seconds: f64,
    /// Records per second.
    pub records_per_second: f64,
    /// MB (10^6 bytes) of values per second.
    pub mb_per_second: f64,
    /// Requests answered.
    pub requests: u64,
    /// Half of the times are at or below this: request to answer, or due to received. Milliseconds.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// 999 of 1000.
    pub p999_ms: f64,
    /// The largest.
    pub max_ms: f64,
}

/// What a running workload tells of itself.
pub trait Progress: Sync {
    /// So much of the whole is done, 0 to 1.
    fn at(&self, workload: Workload, part: f64);
}

/// What was counted and timed.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    bytes: u64,
    requests: u64,
    took: Duration,
    times: histogram::Histogram,
}

impl Tally {
    fn outcome(&self, workload: Workload) -> Outcome {
        let seconds = self.took.as_secs_f64().max(1e-9);
        let ms = |part: f64| self.times.at(part).as_secs_f64() * 1e3;
        Outcome {
            workload,
            records: self.records,
            bytes: self.bytes,
            seconds,
            records_per_second: self.records as f64 / seconds,
            mb_per_second: self.bytes as f64 / seconds / 1e6,
            requests: self.requests,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            max_ms: self.times.max().as_secs_f64() * 1e3,
        }
    }

    fn join(&mut self, other: Tally) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.times.join(&other.times);
    }
}

/// Runs workloads one after the other, each on topics of its own that are deleted afterwards, also when it breaks off;
/// `made` are those that are there.
///
/// Errors: the first refusal or broken connection ends it.
pub fn run(
    plan: &Plan,
    workloads: &[Workload],
    progress: &dyn Progress,
    made: &Made,
) -> Result<Vec<Outcome>, Broken> {
    let target = Target::find(&plan.bootstrap, made)?;
    let outcomes = measure(plan, workloads, progress, &target);
    let left = if plan.keep { Ok(()) } else { made.delete(&plan.bootstrap) };
    outcomes.and_then(|outcomes| left.map(|()| outcomes))
}

fn measure(
    plan: &Plan,
    workloads: &[Workload],
    progress: &dyn Progress,
    target: &Target,
) -> Result<Vec<Outcome>, Broken> {
    let mut outcomes = Vec::with_capacity(workloads.len());
    // Consume reads what produce left, when both are asked for.
    let mut filled: Option<client::Topic> = None;
    for workload in workloads {
        let partitions = if *workload == Workload::Partitions { plan.many } else { plan.partitions };
        let reused = if *workload == Workload::Consume { filled.take() } else { None };
        let topic = match reused {
            Some(topic) => topic,
            None => target.make_topic(plan, name(*workload), partitions)?,
        };
        let outcome = match workload {
            Workload::Produce => produce::batches(plan, target, &topic, &|p| progress.at(*workload, p)),
            Workload::Partitions => produce::wide(plan, target, &topic, &|p| progress.at(*workload, p)),
            Workload::Consume => consume::run(plan, target, &topic, &|p| progress.at(*workload, p)),
            Workload::Latency => latency::run(plan, target, &topic, &|p| progress.at(*workload, p)),
        };
        let wanted_next = *workload == Workload::Produce && workloads.contains(&Workload::Consume);
        if wanted_next && outcome.is_ok() {
            filled = Some(topic);
        } else if !plan.keep {
            target.delete_topic(&topic.name)?;
        }
        outcomes.push(outcome?.outcome(*workload));
    }
    Ok(outcomes)
}

/// Its name on the command line.
pub fn name(workload: Workload) -> &'static str {
    match workload {
        Workload::Produce => "produce",
        Workload::Consume => "consume",
        Workload::Partitions => "partitions",
        Workload::Latency => "latency",
    }
}
