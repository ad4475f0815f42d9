//! The crash storm: a broker under load, killed again and again at random instants, and judged at the end.
//!
//! One seed decides the load's shape and the instants; what the scheduler makes of them differs from run to run, so a
//! failure prints the seed and keeps the data.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use kafka_protocol::messages::FetchRequest;

use crate::broker::{Broker, Kind as BrokerKind};
use crate::judge::{self, Fault, Kind, Log, Stored};
use crate::load::{Producer, Reader, Shared, Topic, parts};
use crate::member::Member;
use crate::payload::{Place, identify};
use crate::reshard::{Resharder, Reshards};
use crate::wire::{self, Connection, FETCH_VERSION, FetchFrom};

const FAULTS_SHOWN: usize = 40;
/// How long the load may need after a restart until something is acknowledged.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);
/// How long the producers may need at the end to get the rest acknowledged, and how long readers may make no progress.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
const READERS: u64 = 2;
const ALIVE_MS_MAX: u64 = 1_200;
/// How long a kill waits for a split or merge to fall into, and how far into it at most.
const AIM_LIMIT: Duration = Duration::from_millis(500);
const RESHARD_US_MAX: u64 = 20_000;
/// Where the groups' state is: its ranges split and merge like any.
const GROUPS_TOPIC: &str = "__groups";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Counters of the broker's work that a storm shows, by metric name; the first ones must move, as [`required`] says.
pub const WORK: [(&str, &str); 11] = [
    ("segments rolled", "rangeway_segment_rolls_total"),
    ("checkpoints", "rangeway_checkpoints_total"),
    ("extents recycled", "rangeway_extents_recycled_total"),
    ("segments dropped", "rangeway_segments_dropped_total"),
    ("chunks written", "rangeway_chunks_written_total"),
    ("extents rewritten", "rangeway_extents_rewritten_total"),
    ("bytes rewritten", "rangeway_rewritten_bytes_total"),
    ("duplicates answered", "rangeway_duplicate_batches_total"),
    ("splits done", "rangeway_range_splits_total"),
    ("merges done", "rangeway_range_merges_total"),
    ("splits and merges finished after a start", "rangeway_reshards_resumed_total"),
];

/// How many of [`WORK`] a storm of so many kills must have come to: a short one writes too little to free or rewrite an extent.
fn required(kills: u32) -> &'static [(&'static str, &'static str)] {
    const LONG_KILLS: u32 = 50;
    if kills < LONG_KILLS { &WORK[..2] } else { &WORK[..7] }
}

/// Settings under which a short storm comes to rolls, flushes, checkpoints, recycling and retention.
pub fn small_sizes(kind: BrokerKind) -> Vec<(String, String)> {
    let settings: &[(&str, &str)] = match kind {
        BrokerKind::Rangeway => &[
            ("extent.bytes", "1048576"),
            ("segment.roll.bytes", "4194304"),
            ("memory.tail.bytes", "1048576"),
            ("journal.bytes", "4194304"),
            ("chunk.bytes", "131072"),
            ("checkpoint.bytes", "1048576"),
            ("retention.check.ms", "200"),
            ("cleaner.backoff.ms", "100"),
        ],
        BrokerKind::Reference => {
            &[("log.retention.check.interval.ms", "500"), ("log.segment.bytes", "4194304")]
        }
    };
    settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which broker.
    pub kind: BrokerKind,
    /// Decides load and instants.
    pub seed: u64,
    /// SIGKILLs.
    pub kills: u32,
    /// Producers; two of three are idempotent.
    pub producers: u32,
    /// Bytes a second that each producer sends at most.
    pub rate: u64,
    /// Data directories.
    pub disks: usize,
    /// With the last of them it is as if it had died, now and then: its files are taken away before a kill, and the broker
    /// runs a life without it before it is back. Needs a drive that goes on without one disk.
    pub lose_disk: bool,
    /// The broker's settings.
    pub settings: Vec<(String, String)>,
    /// Fail when the broker's counters show no roll or checkpoint; over a long storm, no recycled extent and no chunk either.
    pub require_roll: bool,
    /// Run `rangeway verify` on the data at the end.
    pub verify: bool,
    /// Split and merge ranges all the while.
    pub reshard: Option<Reshard>,
}

/// Splits and merges during a storm.
#[derive(Copy, Clone, Debug)]
pub struct Reshard {
    /// So many at least are done before the end.
    pub least: u64,
    /// Pause between two of them at most, ms.
    pub pause_ms: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// SIGKILLs sent.
    pub kills: u32,
    /// Of those, during recovery.
    pub in_recovery: u32,
    /// Appends in flight at each kill.
    pub in_flight: Vec<i64>,
    /// Time from start to ready after each kill that was followed by one.
    pub recoveries: Vec<Duration>,
    /// Records acknowledged.
    pub acked: u64,
    /// Records that consumers read.
    pub read: u64,
    /// Records of plain producers that are stored again, since a kill came between storing and acknowledging.
    pub repeated: u64,
    /// Kills that fell while a split or merge was asked for and not answered.
    pub in_reshard: u32,
    /// Splits and merges that were answered as done, and without an answer.
    pub reshards: (u64, u64),
    /// Pauses of the answered ones, ms: half of them, 99 of 100, all stay within.
    pub pauses: [f64; 3],
    /// Most active ranges of a topic.
    pub ranges_max: u64,
    /// Answers that made a client try again, and joins of the group member.
    pub disturbed: (u64, u64),
    /// The broker's counters of [`WORK`], summed over all its lives.
    pub work: BTreeMap<&'static str, f64>,
    /// What the judge says.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.in_flight.iter().filter(|n| **n > 0).count();
        let most = self.in_flight.iter().max().copied().unwrap_or(0);
        let mut recoveries = self.recoveries.clone();
        recoveries.sort_unstable();
        let at = |share: usize| {
            recoveries.get((recoveries.len().saturating_sub(1)) * share / 100).copied().unwrap_or_default()
        };
        writeln!(
            f,
            "{} kills ({} during recovery, {busy} with appends in flight, at most {most})",
            self.kills, self.in_recovery
        )?;
        writeln!(
            f,
            "{} records acknowledged, {} read, {} of plain producers stored again",
            self.acked, self.read, self.repeated
        )?;
        if self.reshards != (0, 0) {
            let ((done, unanswered), [half, most, all]) = (self.reshards, self.pauses);
            writeln!(
                f,
                "{done} splits and merges answered, {unanswered} cut off ({} kills inside), up to {} ranges of a topic",
                self.in_reshard, self.ranges_max
            )?;
            writeln!(f, "pause: median {half:.1} ms, p99 {most:.1} ms, longest {all:.1} ms")?;
        }
        let (refused, joins) = self.disturbed;
        writeln!(f, "{refused} batches refused and sent again, {joins} joins of the group member")?;
        writeln!(f, "recovery: median {:?}, longest {:?}", at(50), at(100))?;
        for (name, count) in &self.work {
            writeln!(f, "{name}: {count}")?;
        }
        for fault in self.faults.iter().take(FAULTS_SHOWN) {
            writeln!(f, "{fault}")?;
        }
        write!(f, "{} faults", self.faults.len())
    }
}

/// Runs a storm to its end. Errors: the broker failed to start, to serve or to stop; faults are in the summary.
pub fn run(plan: &Plan) -> Result<Summary> {
    let settings: Vec<(&str, &str)> = plan.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut broker = Broker::start_on(plan.kind, plan.disks, &settings)?;
    let outcome = storm(plan, &mut broker);
    if !matches!(&outcome, Ok(summary) if summary.faults.is_empty()) {
        eprintln!("seed {}; data and logs are kept in {}", plan.seed, broker.keep().display());
        eprintln!("the broker's last lines:\n{}", broker.log_end());
    }
    outcome
}

fn storm(plan: &Plan, broker: &mut Broker) -> Result<Summary> {
    let began_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let shared = Shared::new(broker.address(), began_ms, topics(), plan.rate);
    let mut connection = Connection::open(broker.address(), ANSWER_TIMEOUT)?;
    for topic in &shared.topics {
        connection.create_topic(&topic.name, topic.partitions, &topic.configs)?;
    }
    let mut summary = Summary::default();
    let reshards = Reshards::default();
    let open = thread::scope(|threads| -> Result<usize> {
        let mut producers = Vec::new();
        for number in 0..plan.producers {
            let kind = if number % 3 == 2 { Kind::Plain } else { Kind::Idempotent };
            let acks = if number % 3 == 2 && number % 2 == 0 { 1 } else { -1 };
            let producer = Producer::new(&shared, number, kind, acks, plan.seed ^ u64::from(number) << 32);
            producers.push(threads.spawn(|| producer.run()));
        }
        for seed in 0..READERS {
            let reader = Reader::new(&shared, plan.seed ^ seed);
            threads.spawn(|| reader.run());
        }
        let member = Member::new(&shared, "storm");
        threads.spawn(|| member.run());
        if let Some(reshard) = plan.reshard {
            let mut topics: Vec<String> =
                shared.topics.iter().filter(|t| t.partitions > 1).map(|t| t.name.clone()).collect();
            topics.push(GROUPS_TOPIC.to_owned());
            let resharder =
                Resharder::new(broker.http_address(), topics, &reshards, plan.seed, reshard.pause_ms);
            threads.spawn(|| resharder.run(|| shared.draining.load(Ordering::Acquire)));
        }
        let raged = rage(plan, broker, &shared, &reshards, &mut summary);
        shared.draining.store(true, Ordering::Release);
        let asked = Instant::now();
        while raged.is_ok()
            && producers.iter().any(|p| !p.is_finished())
            && asked.elapsed() < DRAIN_LIMIT
            && broker.exited()?.is_none()
        {
            thread::sleep(Duration::from_millis(20));
        }
        let mut progress = (shared.read.load(Ordering::Acquire), Instant::now());
        while raged.is_ok()
            && shared.readers_done.load(Ordering::Acquire) < READERS
            && progress.1.elapsed() < DRAIN_LIMIT
            && broker.exited()?.is_none()
        {
            thread::sleep(Duration::from_millis(20));
            let read = shared.read.load(Ordering::Acquire);
            if read > progress.0 {
                progress = (read, Instant::now());
            }
        }
        shared.stopped.store(true, Ordering::Release);
        let open = producers.into_iter().map(|p| p.join().unwrap_or(1)).sum();
        raged.map(|()| open)
    })?;
    ensure!(open == 0, "{open} batches were not acknowledged within {DRAIN_LIMIT:?} after the last restart");
    if let Some(status) = broker.exited()? {
        bail!("the broker ended by itself with {status}\n{}", broker.log_end());
    }
    ensure!(
        shared.readers_done.load(Ordering::Acquire) == READERS,
        "a reader came to a stand for {DRAIN_LIMIT:?} before the end; its last trouble: {}",
        shared.reader_error()
    );
    count_work(broker, &mut summary.work)?;
    if let Some(wrong) = reshards.wrong() {
        bail!("a wrong answer to a split or merge: {wrong}");
    }
    let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Acquire);
    summary.reshards = (count(&reshards.done), count(&reshards.unanswered));
    summary.ranges_max = count(&reshards.ranges_max);
    summary.pauses = [50, 99, 100].map(|share| reshards.pause(share));
    summary.disturbed = (count(&shared.refused), count(&shared.joins));
    if let (Some(reshard), 0) = (plan.reshard, plan.kills) {
        ensure!(summary.reshards.0 >= reshard.least, "too few splits and merges\n{summary}");
        ensure!(summary.disturbed == (0, 1), "clients were disturbed\n{summary}");
    }
    let mut history = shared.history();
    if let Some(producer) = history.idle_producer() {
        bail!("producer {producer} never had a record acknowledged");
    }
    let logs = read_all(&shared, broker)?;
    for (place, log) in &logs {
        history.bounds(*place, log.start, log.end);
    }
    summary.acked = history.acked_records();
    summary.read = shared.read.load(Ordering::Acquire);
    summary.repeated = judge::repeats(&history, &logs);
    summary.faults = judge::judge(&history, &logs);
    broker.stop()?;
    if plan.verify && plan.kind == BrokerKind::Rangeway {
        for disk in broker.disks() {
            let done = Command::new(broker.program()).arg("verify").arg("--data").arg(disk).output()?;
            let said =
                String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
            ensure!(done.status.success(), "verify ended with {}:\n{said}", done.status);
        }
    }
    if plan.require_roll {
        // Where ranges are split and merged all the while, segments end by that before they are large enough to roll.
        let ended_otherwise = |name: &str| plan.reshard.is_some() && name == WORK[0].0;
        for (name, metric) in required(plan.kills).iter().filter(|(name, _)| !ended_otherwise(name)) {
            let count = summary.work.get(name).copied().unwrap_or(0.0);
            ensure!(count > 0.0, "the storm came to no {name} ({metric} stayed 0)\n{summary}");
        }
    }
    Ok(summary)
}

fn topics() -> Vec<Topic> {
    let topic = |name: &str, partitions, configs: &[(&'static str, &'static str)], trimmed| Topic {
        name: name.to_owned(),
        partitions,
        configs: configs.to_vec(),
        trimmed,
    };
    vec![
        topic("storm-wide", 12, &[], false),
        topic("storm-one", 1, &[], false),
        topic("storm-trim", 3, &[("retention.bytes", "4194304"), ("segment.bytes", "1048576")], true),
    ]
}

/// Kills and restarts as often as planned; the broker serves when this returns.
fn rage(
    plan: &Plan,
    broker: &mut Broker,
    shared: &Shared,
    reshards: &Reshards,
    summary: &mut Summary,
) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let least = plan.reshard.map_or(0, |reshard| reshard.least);
    while summary.kills == 0 && plan.kills == 0 && reshards.done.load(Ordering::Acquire) < least {
        await_progress(broker, shared)?;
        looks_right(shared, reshards)?;
    }
    while summary.kills < plan.kills {
        await_progress(broker, shared)?;
        thread::sleep(Duration::from_millis(random.u64(..ALIVE_MS_MAX)));
        count_work(broker, &mut summary.work)?;
        thread::sleep(Duration::from_millis(random.u64(..25)));
        let aimed = plan.reshard.is_some() && random.u8(..4) > 0;
        if aimed {
            aim(reshards, &mut random);
        }
        let away = if plan.lose_disk && summary.kills % 2 == 1 { Some(lose(broker, shared)?) } else { None };
        summary.in_reshard += u32::from(reshards.under_way.load(Ordering::Acquire));
        let in_flight = strike(broker, shared, summary)?;
        let again = summary.kills < plan.kills && random.u8(..4) == 0;
        if again {
            let usual = summary.recoveries.last().copied().unwrap_or(Duration::from_millis(100));
            broker.spawn()?;
            thread::sleep(usual.mul_f64(random.f64() * 1.2));
            summary.in_recovery += u32::from(!broker.is_ready()?);
            strike(broker, shared, summary)?;
        }
        let mut ready = broker.restart()?;
        if let Some((disk, aside)) = away {
            // A life without the disk, then the disk as it was before.
            await_progress(broker, shared)?;
            count_work(broker, &mut summary.work)?;
            strike(broker, shared, summary)?;
            let _ = fs::remove_file(&disk);
            fs::rename(&aside, &disk)?;
            ready = broker.restart()?;
        }
        summary.recoveries.push(ready);
        println!(
            "kill {}: {in_flight} appends in flight, {} records acknowledged, {} read{}, ready again after {} ms",
            summary.kills,
            shared.acked.load(Ordering::Acquire),
            shared.read.load(Ordering::Acquire),
            if again { ", killed once more on the way" } else { "" },
            ready.as_millis()
        );
        let faults = shared.history().faults().len();
        if faults > 0 {
            println!("{faults} faults so far; the storm ends here");
            return Ok(());
        }
        looks_right(shared, reshards)?;
    }
    await_progress(broker, shared)
}

/// Takes the last data directory away under the running broker, which has to go on; answers where it was and where it is. A file
/// stands in its place: what is asked of the disk fails.
fn lose(broker: &mut Broker, shared: &Shared) -> Result<(PathBuf, PathBuf)> {
    let disk = broker.disks().pop().context("no data directory")?;
    let aside = disk.with_extension("aside");
    fs::rename(&disk, &aside)?;
    fs::write(&disk, "")?;
    await_progress(broker, shared)?;
    Ok((disk, aside))
}

/// Waits until a split or merge is under way and a random part of it is over.
pub(crate) fn aim(reshards: &Reshards, random: &mut fastrand::Rng) {
    let began = Instant::now();
    while !reshards.under_way.load(Ordering::Acquire) && began.elapsed() < AIM_LIMIT {
        thread::sleep(Duration::from_micros(100));
    }
    thread::sleep(Duration::from_micros(random.u64(..RESHARD_US_MAX)));
}

fn looks_right(shared: &Shared, reshards: &Reshards) -> Result<()> {
    if let Some(wrong) = reshards.wrong() {
        bail!("a wrong answer to a split or merge: {wrong}");
    }
    let history = shared.history();
    ensure!(history.faults().is_empty(), "{:?}", history.faults().first().map(ToString::to_string));
    Ok(())
}

fn strike(broker: &mut Broker, shared: &Shared, summary: &mut Summary) -> Result<i64> {
    if let Some(status) = broker.exited()? {
        bail!("the broker ended by itself with {status}\n{}", broker.log_end());
    }
    let in_flight = shared.in_flight.load(Ordering::Acquire);
    broker.kill()?;
    summary.kills += 1;
    summary.in_flight.push(in_flight);
    Ok(in_flight)
}

fn await_progress(broker: &mut Broker, shared: &Shared) -> Result<()> {
    let (before, began) = (shared.acked.load(Ordering::Acquire), Instant::now());
    while shared.acked.load(Ordering::Acquire) == before {
        if let Some(status) = broker.exited()? {
            bail!("the broker ended by itself with {status}\n{}", broker.log_end());
        }
        let faults = shared.history().faults().len();
        ensure!(
            began.elapsed() < PROGRESS_LIMIT,
            "nothing was acknowledged for {PROGRESS_LIMIT:?} ({faults} faults so far: {:?})",
            shared.history().faults().first().map(ToString::to_string)
        );
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Adds this life's counters to the sums; called right before a life ends.
fn count_work(broker: &Broker, work: &mut BTreeMap<&'static str, f64>) -> Result<()> {
    if broker.kind() == BrokerKind::Reference {
        return Ok(());
    }
    let metrics = broker.http_get("/metrics").context("reading /metrics")?;
    for (name, metric) in WORK {
        *work.entry(name).or_default() += metric_sum(&metrics, metric);
    }
    Ok(())
}

/// Sum of all samples of a metric in the text format of Prometheus.
pub fn metric_sum(text: &str, metric: &str) -> f64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(metric))
        .filter(|rest| rest.starts_with(['{', ' ']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Reads every partition from its log start to its end.
fn read_all(shared: &Shared, broker: &Broker) -> Result<BTreeMap<Place, Log>> {
    let mut connection = Connection::open(broker.address(), ANSWER_TIMEOUT)?;
    let mut logs = BTreeMap::new();
    for place in shared.places() {
        let name = &shared.topics.get(usize::from(place.topic)).context("a topic of the run")?.name;
        // Retention may take the start away while it is read: then once more from the new one.
        let log = match read_log(shared, &mut connection, name, place)? {
            Some(log) => Some(log),
            None => read_log(shared, &mut connection, name, place)?,
        };
        logs.insert(place, log.with_context(|| format!("{place} lost its start twice while it was read"))?);
    }
    Ok(logs)
}

fn read_log(shared: &Shared, connection: &mut Connection, name: &str, place: Place) -> Result<Option<Log>> {
    let (start_code, start) = connection.list_offset(name, place.partition, -2)?;
    let (end_code, end) = connection.list_offset(name, place.partition, -1)?;
    ensure!(start_code == 0 && end_code == 0, "bounds of {place}: errors {start_code} and {end_code}");
    let mut log = Log { start, end, batches: Vec::new() };
    let mut next = start;
    while next < end {
        let from = [FetchFrom { topic: name, partition: place.partition, offset: next }];
        let request = wire::fetch_request(&from, 1_000, 4 << 20);
        let response = connection.call::<FetchRequest>(&request, FETCH_VERSION)?;
        let (_, code, records) =
            parts(shared, &response).into_iter().next().context("a fetch answered without its partition")?;
        if code == 1 && shared.topics.get(usize::from(place.topic)).is_some_and(|t| t.trimmed) {
            return Ok(None);
        }
        ensure!(code == 0, "reading {place} at {next}: error {code}");
        let before = next;
        for batch in wire::batches(records)? {
            next = batch.base_offset + batch.records.len() as i64;
            let records = batch.records.iter().map(|found| identify(place, found, shared.began_ms)).collect();
            log.batches.push(Stored { base_offset: batch.base_offset, epoch: batch.epoch, records });
        }
        // A log that gives nothing before its end is for the judge.
        if next <= before {
            break;
        }
    }
    Ok(Some(log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_are_summed_and_others_left_alone() {
        let text = "# HELP a_total x\na_total 1\na_total{disk=\"0\"} 2\na_total_more 4\nb 8\n";
        assert_eq!(metric_sum(text, "a_total"), 3.0);
    }
}
