//! The order proof: producers and readers of real client libraries on one topic whose ranges split and merge all the while.
//!
//! Every value names its producer, its key, and which of that key and of that producer it is, so that a reader sees a
//! record that is left out, comes again or comes too early, per key, per producer and by its offset. Two readers are a group
//! of both libraries, of which either is stopped and started again; one reads alone and goes on from where it stopped; one starts
//! when half is produced, and slowly. The producers do not run ahead of the splits and merges, nor these end before them.

mod clients;
mod drive;
pub mod judge;
pub mod report;
mod summary;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub(crate) use clients::python;
pub use clients::{Client, Library, Missing, Programs};
pub use summary::Summary;

use crate::broker::{Broker, Kind};
use crate::reshard::{Resharder, Reshards};
use crate::wire::Connection;
use clients::Library::{Java, Librdkafka};
use drive::Drive;
use judge::{History, Reader};

const TOPIC: &str = "order";
/// Library, whether idempotent, compression of each producer.
const PRODUCERS: [(Library, bool, &str); 4] =
    [(Librdkafka, true, "lz4"), (Librdkafka, false, "snappy"), (Java, true, "zstd"), (Java, false, "none")];
/// The part of all splits and merges that the producers may be ahead.
const LEAD: f64 = 0.05;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which broker; the reference cannot split and merge.
    pub kind: Kind,
    /// Decides keys, splits and merges.
    pub seed: u64,
    /// Records of all producers together.
    pub records: u64,
    /// Splits and merges at least.
    pub reshards: u64,
    /// Between two of them at most, ms.
    pub reshard_pause_ms: u64,
    /// Of the topic.
    pub partitions: i32,
    /// Different keys, the same ones for all producers.
    pub keys: u32,
    /// Size of a value at least.
    pub value_bytes: u32,
    /// Records a second that the late reader reads while there are producers.
    pub lag_rate: u64,
    /// Limit of the whole run.
    pub limit: Duration,
    /// The broker's settings.
    pub settings: Vec<(String, String)>,
}

/// Numbers of the clients by what they do.
#[derive(Debug, Default)]
struct Cast {
    producers: Vec<usize>,
    /// All lives of the group's members; the last of each library lives.
    group: Vec<usize>,
    members: [usize; 2],
    alone: Vec<usize>,
    late: Vec<usize>,
}

/// Runs it and says what came out. Errors: something that is no verdict, such as a broker that does not start.
pub fn run(plan: &Plan) -> Result<Summary> {
    let deadline = Instant::now() + plan.limit;
    let programs = Programs::prepare("order.py", "Order")?;
    let settings: Vec<(&str, &str)> = plan.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut broker = Broker::start(plan.kind, &settings)?;
    Connection::open(broker.address(), Duration::from_secs(60))?.create_topic(TOPIC, plan.partitions, &[])?;
    let logs = tempfile::Builder::new().prefix("rangeway-order-").tempdir()?;
    let mut drive = Drive::new(programs, logs.path().to_owned(), deadline);
    let reshards = Reshards::default();
    let mut cast = Cast::default();
    let mut summary = Summary::default();
    let (begin, stop) = (AtomicBool::new(false), AtomicBool::new(plan.reshards == 0));
    let resharder = Resharder::new(
        broker.http_address(),
        vec![TOPIC.to_owned()],
        &reshards,
        plan.seed,
        plan.reshard_pause_ms,
    );
    let ran = thread::scope(|scope| {
        scope.spawn(|| {
            while !begin.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(10));
            }
            resharder.run(|| stop.load(Ordering::Acquire));
        });
        let mut run = Run { plan, broker: &broker, drive: &mut drive, cast: &mut cast, reshards: &reshards };
        let ran = run.play(&begin, &mut summary);
        stop.store(true, Ordering::Release);
        ran
    });
    let mut wrong: Vec<String> = ran.err().map(|error| format!("{error:#}")).into_iter().collect();
    wrong.extend(reshards.wrong());
    let log = fs::read_to_string(broker.log_path()).unwrap_or_default();
    if let Err(error) = broker.stop() {
        wrong.push(format!("{error:#}"));
    }
    let history = history(plan, &drive, &cast, &reshards, wrong, &log);
    summary.fill(plan, &history, &reshards, &log);
    if !summary.faults.is_empty() {
        summary.kept = Some(broker.keep().to_owned());
    }
    Ok(summary)
}

struct Run<'a> {
    plan: &'a Plan,
    broker: &'a Broker,
    drive: &'a mut Drive,
    cast: &'a mut Cast,
    reshards: &'a Reshards,
}

impl<'a> Run<'a> {
    fn play(&mut self, begin: &AtomicBool, summary: &mut Summary) -> Result<()> {
        for library in 0..2 {
            self.start_member(library)?;
        }
        let alone = self.start_reader(Librdkafka, "alone", &format!("from={}", self.starts(None)), 0)?;
        self.cast.alone.push(alone);
        self.start_producers()?;
        self.settle()?;
        begin.store(true, Ordering::Release);
        let began = Instant::now();
        self.produce_until("a quarter of the records", 0.25)?;
        self.restart_member(0)?;
        self.produce_until("half of the records", 0.5)?;
        self.restart_alone()?;
        let from = format!("from={}", self.starts(None));
        summary.lag = self.acked();
        let late = self.start_reader(Java, "late", &from, self.plan.lag_rate)?;
        self.cast.late.push(late);
        self.produce_until("three quarters of the records", 0.75)?;
        self.restart_member(1)?;
        let producers = self.cast.producers.clone();
        let (pace, ended) = (self.pace(), |drive: &Drive| producers.iter().all(|n| drive.clients[*n].ended));
        self.drive.until("all records", pace, ended)?;
        summary.seconds = began.elapsed().as_secs_f64();
        let (reshards, wanted) = (self.reshards, self.plan.reshards);
        self.drive.until(
            "all splits and merges",
            |_| (),
            |_| reshards.done.load(Ordering::Relaxed) >= wanted,
        )?;
        self.read_to_the_end()
    }

    fn read_to_the_end(&mut self) -> Result<()> {
        let ends = judge::ends(self.cast.producers.iter().map(|n| &self.drive.clients[*n].report));
        let ends: Vec<String> = ends.iter().map(|(partition, end)| format!("{partition}:{end}")).collect();
        let readers =
            [&self.cast.members[..], &self.cast.alone[self.cast.alone.len() - 1..], &self.cast.late].concat();
        self.drive.tell(&readers, &format!("ends {}", ends.join(" ")));
        let reached = |drive: &Drive| readers.iter().all(|n| drive.clients[*n].report.reached);
        self.drive.until("the readers", |_| (), reached)?;
        // The first member that leaves lets the other one be given all.
        self.drive.planned = true;
        self.drive.stop(&readers)
    }

    /// `P:OFFSET,…` where a life ended, or 0 of each.
    fn starts(&self, life: Option<usize>) -> String {
        let mut starts: BTreeMap<i32, u64> =
            (0..self.plan.partitions).map(|partition| (partition, 0)).collect();
        let stretches = life.map(|n| &self.drive.clients[n].report.stretches);
        starts.extend(stretches.into_iter().flatten().map(|stretch| (stretch.partition, stretch.next)));
        starts.iter().map(|(p, offset)| format!("{p}:{offset}")).collect::<Vec<_>>().join(",")
    }

    fn common(&self) -> Vec<String> {
        vec![format!("bootstrap={}", self.broker.address()), format!("topic={TOPIC}")]
    }

    fn start_producers(&mut self) -> Result<()> {
        for (number, (library, idempotent, compression)) in PRODUCERS.into_iter().enumerate() {
            let mut arguments = vec!["produce".to_owned()];
            arguments.extend(self.common());
            arguments.extend([
                format!("producer={number}"),
                format!("records={}", self.plan.records / PRODUCERS.len() as u64),
                format!("keys={}", self.plan.keys),
                format!("seed={}", self.plan.seed.wrapping_add(number as u64) % (1 << 31)),
                format!("idempotent={idempotent}"),
                format!("compression={compression}"),
                format!("value-bytes={}", self.plan.value_bytes),
            ]);
            let how = if idempotent { "idempotent" } else { "plain" };
            let name = format!("{library:?}-{how}").to_lowercase();
            let client = self.drive.start(library, &name, &arguments)?;
            self.cast.producers.push(client);
        }
        Ok(())
    }

    fn start_reader(&mut self, library: Library, name: &str, scope: &str, rate: u64) -> Result<usize> {
        let mut arguments = vec!["consume".to_owned()];
        arguments.extend(self.common());
        arguments.extend([scope.to_owned(), format!("rate={rate}")]);
        self.drive.start(library, name, &arguments)
    }

    fn start_member(&mut self, which: usize) -> Result<()> {
        let library = [Librdkafka, Java][which];
        let name = format!("member-{library:?}").to_lowercase();
        let number = self.start_reader(library, &name, "group=order", 0)?;
        self.cast.group.push(number);
        self.cast.members[which] = number;
        Ok(())
    }

    /// Stops a member, lets the other one have all, starts it again, and waits until they share.
    fn restart_member(&mut self, which: usize) -> Result<()> {
        self.drive.planned = true;
        let (leaving, staying) = (self.cast.members[which], self.cast.members[1 - which]);
        self.drive.tell(&[leaving], "stop");
        let all = self.plan.partitions as usize;
        let pace = self.pace();
        let alone = |drive: &Drive| {
            drive.clients[leaving].ended && drive.clients[staying].report.assigned.len() == all
        };
        self.drive.until("a member that has all partitions", pace, alone)?;
        self.start_member(which)?;
        self.settle()
    }

    /// Waits until both members share all partitions; from then on nobody's coming or going explains an assignment.
    fn settle(&mut self) -> Result<()> {
        let (members, all) = (self.cast.members, self.plan.partitions as usize);
        let pace = self.pace();
        let shared = |drive: &Drive| {
            let of = |which: usize| drive.clients[members[which]].report.assigned.len();
            of(0) > 0 && of(1) > 0 && of(0) + of(1) == all
        };
        self.drive.until("a group that shares all partitions", pace, shared)?;
        self.drive.planned = false;
        Ok(())
    }

    fn restart_alone(&mut self) -> Result<()> {
        let before = *self.cast.alone.last().context("a reader alone")?;
        self.drive.stop(&[before])?;
        let from = format!("from={}", self.starts(Some(before)));
        let after = self.start_reader(Librdkafka, "alone", &from, 0)?;
        self.cast.alone.push(after);
        Ok(())
    }

    fn acked(&self) -> u64 {
        self.cast.producers.iter().map(|n| self.drive.clients[*n].report.acked).sum()
    }

    fn produce_until(&mut self, what: &str, part: f64) -> Result<()> {
        let producers = self.cast.producers.clone();
        let wanted = (self.plan.records as f64 * part) as u64;
        let acked = |drive: &Drive| producers.iter().map(|n| drive.clients[*n].report.acked).sum::<u64>();
        let pace = self.pace();
        self.drive.until(what, pace, |drive| acked(drive) >= wanted)
    }

    /// Lets each producer send the part of its records that is due by the splits and merges that are done.
    fn pace(&self) -> impl FnMut(&mut Drive) + use<'a> {
        let producers = self.cast.producers.clone();
        let each = self.plan.records / PRODUCERS.len() as u64;
        let (wanted, reshards) = (self.plan.reshards, self.reshards);
        let mut told = 0;
        move |drive| {
            let done = reshards.done.load(Ordering::Relaxed) as f64;
            let part = if wanted == 0 { 1.0 } else { (done / wanted as f64 + LEAD).min(1.0) };
            let limit = (each as f64 * part) as u64;
            if limit > told {
                told = limit;
                drive.tell(&producers, &format!("limit {limit}"));
            }
        }
    }
}

fn history(
    plan: &Plan,
    drive: &Drive,
    cast: &Cast,
    reshards: &Reshards,
    wrong: Vec<String>,
    log: &str,
) -> History {
    let named = |numbers: &[usize]| {
        let of = |n: &usize| (drive.clients[*n].name.clone(), drive.clients[*n].report.clone());
        numbers.iter().map(of).collect::<Vec<_>>()
    };
    let reader = |name: &str, numbers: &[usize]| Reader { name: name.to_owned(), lives: named(numbers) };
    History {
        partitions: plan.partitions,
        records_each: plan.records / PRODUCERS.len() as u64,
        producers: named(&cast.producers),
        readers: vec![reader("group", &cast.group), reader("alone", &cast.alone), reader("late", &cast.late)],
        rebalances: drive.rebalances.clone(),
        reshards_wanted: plan.reshards,
        reshards: reshards.done.load(Ordering::Relaxed),
        ranges: (reshards.ranges_min.load(Ordering::Relaxed), reshards.ranges_max.load(Ordering::Relaxed)),
        log_errors: log.lines().filter(|line| is_error(line)).map(str::to_owned).collect(),
        wrong,
    }
}

fn is_error(line: &str) -> bool {
    line.contains("ERROR") || line.contains("panicked")
}
