//! What splits and merges cost: how long producers are held up, what others notice, how much throughput and metadata it takes, and what
//! a topic is like after a thousand of them. Everything is measured against an undisturbed control in the same run, interleaved.

pub mod coordinators;
mod load;
mod stats;
mod worn;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::broker::{Broker, Kind};
use crate::http;
use crate::storm::metric_sum;
use crate::wire::Connection;
use load::{Load, Sample, Shape};
use stats::{mean, quantile, quantiles, spread};
pub use worn::worn;

const SPLIT: &str = "cost-split";
const OTHER: &str = "cost-other";
const WARM_UP: Duration = Duration::from_secs(3);
/// A request belongs to an operation when it was due from so long before it was asked for until so long after it was answered.
const MARGIN: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the topic that splits and merges, and of the one beside it.
    pub partitions: i32,
    /// Bytes of a record's value.
    pub value_bytes: usize,
    /// Records of a batch.
    pub records: usize,
    /// Connections, of which one in four writes to the topic that is left alone.
    pub connections: usize,
    /// Pairs of windows, one with a split or merge in its middle and one without, at full load.
    pub pairs: u32,
    /// Length of such a window.
    pub window: Duration,
    /// Splits and merges of which pauses are measured.
    pub pauses: u32,
    /// Load meanwhile, as a part of what was reached at full load.
    pub share: f64,
    /// Settings of the broker.
    pub settings: Vec<(String, String)>,
}

/// A split or merge as its operator saw it.
#[derive(Clone, Copy, Debug)]
struct Operation {
    asked: Instant,
    answered: Instant,
    /// The partitions of the ranges that it closed.
    span: (i32, i32),
    /// Pause that the node tells, ms.
    paused_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Range {
    id: u32,
    first: i32,
    last: i32,
    state: String,
}

#[derive(Debug, Deserialize)]
struct Answer {
    state: String,
    paused_ms: Option<f64>,
}

/// Splits a topic's widest range in its middle, or merges the first two where that is the only range of a partition or `merge` says so.
fn reshard(http: SocketAddr, topic: &str, merge: bool) -> Result<Operation> {
    let (status, body) = http::call(http, "GET", &format!("/api/v1/topics/{topic}/ranges"), "")?;
    ensure!(status == 200, "ranges of {topic}: {status} {body}");
    let mut ranges: Vec<Range> = serde_json::from_str(&body)?;
    ranges.retain(|range| range.state == "active");
    ranges.sort_by_key(|range| range.first);
    let (path, wanted, span) = match &ranges[..] {
        [left, right, ..] if merge => {
            let wanted = format!(r#"{{"ranges":[{},{}]}}"#, left.id, right.id);
            (format!("/api/v1/topics/{topic}/ranges/merge"), wanted, (left.first, right.last))
        }
        _ => {
            let widest = ranges.iter().max_by_key(|range| range.last - range.first).context("a range")?;
            let at = widest.first + (widest.last - widest.first + 1) / 2;
            let path = format!("/api/v1/topics/{topic}/ranges/{}/split", widest.id);
            (path, format!(r#"{{"at":{at}}}"#), (widest.first, widest.last))
        }
    };
    let asked = Instant::now();
    let (status, body) = http::call(http, "POST", &path, &wanted)?;
    let answered = Instant::now();
    ensure!(status == 200, "{path} {wanted}: {status} {body}");
    let answer: Answer = serde_json::from_str(&body)?;
    ensure!(answer.state == "done", "{path} {wanted}: {body}");
    Ok(Operation { asked, answered, span, paused_ms: answer.paused_ms.unwrap_or(0.0) })
}

/// Runs all of it but [`worn`], and prints what it finds.
pub fn run(plan: &Plan) -> Result<()> {
    let settings: Vec<(&str, &str)> = plan.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut broker = Broker::start(Kind::Rangeway, &settings)?;
    let mut connection = Connection::open(broker.address(), Duration::from_secs(30))?;
    for topic in [SPLIT, OTHER] {
        connection.create_topic(topic, plan.partitions, &[])?;
    }
    metadata(&broker)?;
    let shape = Shape {
        address: broker.address(),
        topics: vec![SPLIT, SPLIT, SPLIT, OTHER],
        partitions: plan.partitions,
        connections: plan.connections,
        records: plan.records,
        value_bytes: plan.value_bytes,
    };
    let full = throughput(plan, &broker, &shape)?;
    pauses(plan, &broker, &shape, full * plan.share)?;
    broker.stop()
}

/// Commits and bytes of metadata that splits and merges take, on a node that does nothing else.
fn metadata(broker: &Broker) -> Result<()> {
    const OPERATIONS: u32 = 40;
    let read = || -> Result<[f64; 2]> {
        let metrics = broker.http_get("/metrics")?;
        Ok(["rangeway_control_commits_total", "rangeway_control_bytes_total"]
            .map(|m| metric_sum(&metrics, m)))
    };
    for (what, merge) in [("split", false), ("merge", true)] {
        let before = read()?;
        for _ in 0..OPERATIONS {
            reshard(broker.http_address(), SPLIT, merge)?;
        }
        let after = read()?;
        let of = |n: usize| (after[n] - before[n]) / f64::from(OPERATIONS);
        println!("metadata of a {what}: {:.2} commits, {:.0} bytes of rows", of(0), of(1));
    }
    Ok(())
}

/// Full load: windows with a split or merge in the middle against windows without. Answers requests a second without.
fn throughput(plan: &Plan, broker: &Broker, shape: &Shape) -> Result<f64> {
    let load = Load::start(shape, None)?;
    thread::sleep(WARM_UP);
    let mut windows = Vec::new();
    for pair in 0..plan.pairs {
        // Which comes first takes turns: what grows with time falls on both.
        for disturbed in [pair % 2 == 0, pair % 2 == 1] {
            let began = Instant::now();
            thread::sleep(plan.window / 2);
            if disturbed {
                reshard(broker.http_address(), SPLIT, pair % 4 > 1)?;
            }
            thread::sleep((plan.window).saturating_sub(began.elapsed()));
            windows.push((disturbed, began, Instant::now()));
        }
    }
    let samples = load.stop()?;
    let rate = |(_, from, to): &(bool, Instant, Instant)| {
        let acked = samples.iter().filter(|s| s.answered() >= *from && s.answered() < *to).count();
        acked as f64 / (*to - *from).as_secs_f64()
    };
    let of = |which: bool| windows.iter().filter(|w| w.0 == which).map(rate).collect::<Vec<_>>();
    let (with, without) = (of(true), of(false));
    let records = plan.records as f64;
    println!(
        "throughput at full load, windows of {:?}: {:.0} records/s without (spread {:.1} %), {:.0} with a split or merge: {:+.2} %",
        plan.window,
        mean(&without) * records,
        spread(&without) * 100.0,
        mean(&with) * records,
        (mean(&with) / mean(&without) - 1.0) * 100.0
    );
    Ok(mean(&without))
}

/// Part load: what requests to the partitions of a split or merge wait at most, what others see meanwhile, and both in equally long
/// times without.
fn pauses(plan: &Plan, broker: &Broker, shape: &Shape, rate: f64) -> Result<()> {
    let load = Load::start(shape, Some(rate))?;
    thread::sleep(WARM_UP);
    let mut operations = Vec::new();
    for n in 0..plan.pauses {
        // Eight splits, then eight merges, and so on: ranges of all sizes.
        operations.push(reshard(broker.http_address(), SPLIT, n / 8 % 2 == 1)?);
        // The control's time lies in the second half of what passes until the next one.
        let length = operations[operations.len() - 1].answered - operations[operations.len() - 1].asked;
        thread::sleep(Duration::from_millis(100) + 2 * (length + 2 * MARGIN));
    }
    let samples = load.stop()?;
    let mut by_topic: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    samples.iter().for_each(|sample| by_topic.entry(sample.topic).or_default().push(sample));
    by_topic.values_mut().for_each(|samples| samples.sort_by_key(|sample| sample.due));
    let within = |topic: &str, from: Instant, to: Instant| {
        let samples = by_topic.get(topic).map_or(&[][..], Vec::as_slice);
        let first = samples.partition_point(|sample| sample.due < from);
        let last = samples.partition_point(|sample| sample.due < to);
        samples[first..last].iter().map(|sample| (sample.partition, sample.latency.as_secs_f64() * 1000.0))
    };
    let (mut held, mut calm, mut others, mut others_calm) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for operation in &operations {
        let (from, to) = (operation.asked - MARGIN, operation.answered + MARGIN);
        let length = to - from;
        let calm_from = operation.answered + Duration::from_millis(100) + MARGIN;
        let (first, last) = operation.span;
        let longest = |from, to| {
            let affected = within(SPLIT, from, to).filter(|(p, _)| (first..=last).contains(p));
            affected.map(|(_, ms)| ms).fold(0.0, f64::max)
        };
        held.push(longest(from, to));
        calm.push(longest(calm_from, calm_from + length));
        others.extend(within(OTHER, from, to).map(|(_, ms)| ms));
        others_calm.extend(within(OTHER, calm_from, calm_from + length).map(|(_, ms)| ms));
    }
    let told: Vec<f64> = operations.iter().map(|operation| operation.paused_ms).collect();
    println!(
        "{} splits and merges at {:.0} records/s ({:.0} % of full load), ms as p50 p99 max:",
        operations.len(),
        rate * plan.records as f64,
        plan.share * 100.0
    );
    println!("  longest request of the affected partitions: {}", quantiles(&held));
    println!("  the same in equally long times without:      {}", quantiles(&calm));
    println!("  pause as the node tells it:                  {}", quantiles(&told));
    println!("  requests to another topic meanwhile:         {}", quantiles(&others));
    println!("  the same in equally long times without:      {}", quantiles(&others_calm));
    let all: Vec<f64> = samples.iter().map(|sample| sample.latency.as_secs_f64() * 1000.0).collect();
    println!("  all requests: {}, {} of them", quantiles(&all), all.len());
    ensure!(quantile(&held, 50.0) > 0.0, "no request met a split or merge");
    Ok(())
}
