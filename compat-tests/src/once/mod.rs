//! The exactly-once proof: programs of real client libraries copy a topic within transactions, while they and the broker are
//! killed and ranges split and merge, and a reader of what is committed finds every record once.
//!
//! The input is every number once. A copier reads some, writes them to the output and commits where it stands, in one
//! transaction; one transaction of ten is aborted, and then its values are marked, so that a reader that sees one is
//! seen to. A copier that is killed leaves its transaction open: the one that is started in its place, or time, aborts it. At
//! the end no transaction may hang: what is committed and what is stored end alike in each partition.
//!
//! Lines of the programs: `copied N` (by one transaction), `seen N` (different numbers), `fault WHAT`, `note WHAT` (what a
//! kill explains), `ends P:OFFSET…`, `done`.

mod fill;
mod process;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::broker::{Broker, Kind};
use crate::reshard::{Resharder, Reshards};
use crate::wire::Connection;
use fill::Fill;
use process::{Library, Line, Process, Programs};

const INPUT: &str = "once-in";
const OUTPUT: &str = "once-out";
/// Library and records of a transaction at most, of each copier.
const COPIERS: [(Library, u32); 3] =
    [(Library::Librdkafka, 200), (Library::Java, 500), (Library::Librdkafka, 1000)];
/// Number of the reader among the programs.
const READER: usize = COPIERS.len();
/// Time for a stop.
const STOP: Duration = Duration::from_secs(150);
/// A kill waits for progress since the one before, at most so long.
const PROGRESS: Duration = Duration::from_secs(15);
/// Nothing new that is seen for so long is a fault.
const STALL: Duration = Duration::from_secs(60);
const FAULTS_KEPT: usize = 20;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which broker; the reference cannot split and merge.
    pub kind: Kind,
    /// Decides what is killed, what is aborted, splits and merges.
    pub seed: u64,
    /// Records to copy.
    pub records: u64,
    /// Of both topics.
    pub partitions: i32,
    /// SIGKILLs of the broker and of copiers, together.
    pub kills: u32,
    /// Between two of them at most, ms.
    pub kill_pause_ms: u64,
    /// Whether ranges split and merge all the while.
    pub reshard: bool,
    /// Limit of the whole run.
    pub limit: Duration,
    /// The broker's settings.
    pub settings: Vec<(String, String)>,
}

/// What came out.
#[derive(Debug, Default)]
pub struct Summary {
    /// Records of the input.
    pub records: u64,
    /// Records of transactions whose commit returned, by librdkafka and by Java; a killed copier has no time to say so.
    pub copied: [u64; 2],
    /// Kills of the broker.
    pub broker_kills: u32,
    /// Kills of copiers.
    pub copier_kills: u32,
    /// Splits and merges.
    pub reshards: u64,
    /// From the first record to the last that was seen, s.
    pub seconds: f64,
    /// What must not be.
    pub faults: Vec<String>,
    /// Where data and logs are kept, after a fault.
    pub kept: Vec<PathBuf>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} records copied in {:.0} s; kills: {} of the broker, {} of copiers; {} splits and merges",
            self.records, self.seconds, self.broker_kills, self.copier_kills, self.reshards
        )?;
        let [librdkafka, java] = self.copied;
        writeln!(f, "commits that returned: {librdkafka} records by librdkafka, {java} by Java")?;
        for fault in &self.faults {
            writeln!(f, "FAULT {fault}")?;
        }
        for kept in &self.kept {
            writeln!(f, "kept: {}", kept.display())?;
        }
        Ok(())
    }
}

/// Runs it and says what came out. Errors: something that is no verdict, such as a broker that does not start.
pub fn run(plan: &Plan) -> Result<Summary> {
    let settings: Vec<(&str, &str)> = plan.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let programs = Programs::prepare()?;
    let mut broker = Broker::start(plan.kind, &settings)?;
    let mut connection = Connection::open(broker.address(), Duration::from_secs(60))?;
    for topic in [INPUT, OUTPUT] {
        connection.create_topic(topic, plan.partitions, &[("retention.ms", "-1")])?;
    }
    drop(connection);
    let mut logs = tempfile::Builder::new().prefix("rangeway-once-").tempdir()?;
    let reshards = Reshards::default();
    let stop = AtomicBool::new(!plan.reshard);
    let topics = [INPUT, OUTPUT, "__groups", "__transactions"].map(str::to_owned).to_vec();
    let resharder = Resharder::new(broker.http_address(), topics, &reshards, plan.seed, 100);
    let mut summary = Summary { records: plan.records, ..Summary::default() };
    let ran = thread::scope(|scope| {
        scope.spawn(|| resharder.run(|| stop.load(Ordering::Acquire)));
        let ran = Run::new(plan, &mut broker, programs, logs.path()).play(&mut summary, &stop);
        stop.store(true, Ordering::Release);
        ran
    });
    summary.faults.extend(ran.err().map(|error| format!("{error:#}")));
    summary.faults.extend(reshards.wrong());
    summary.reshards = reshards.done.load(Ordering::Relaxed);
    let log = fs::read_to_string(broker.log_path()).unwrap_or_default();
    let errors = log.lines().filter(|line| line.contains("ERROR") || line.contains("panicked"));
    if plan.kind == Kind::Rangeway {
        summary.faults.extend(errors.take(FAULTS_KEPT).map(str::to_owned));
    }
    if let Err(error) = broker.stop() {
        summary.faults.push(format!("{error:#}"));
    }
    if !summary.faults.is_empty() {
        logs.disable_cleanup(true);
        summary.kept = vec![broker.keep().to_owned(), logs.path().to_owned()];
    }
    Ok(summary)
}

struct Run<'a> {
    plan: &'a Plan,
    broker: &'a mut Broker,
    programs: Programs,
    logs: &'a Path,
    random: fastrand::Rng,
    processes: BTreeMap<usize, Process>,
    /// Which copier or reader a process is.
    roles: BTreeMap<usize, usize>,
    started: usize,
    told: Sender<Line>,
    lines: Receiver<Line>,
    seen: u64,
    copied: [u64; 2],
    faults: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, broker: &'a mut Broker, programs: Programs, logs: &'a Path) -> Self {
        let (told, lines) = channel();
        Self {
            plan,
            broker,
            programs,
            logs,
            random: fastrand::Rng::with_seed(plan.seed),
            processes: BTreeMap::new(),
            roles: BTreeMap::new(),
            started: 0,
            told,
            lines,
            seen: 0,
            copied: [0; 2],
            faults: Vec::new(),
        }
    }

    fn play(mut self, summary: &mut Summary, stop_reshards: &AtomicBool) -> Result<()> {
        for role in 0..=READER {
            self.start(role)?;
        }
        self.copy(summary)?;
        stop_reshards.store(true, Ordering::Release);
        let all: Vec<usize> = self.processes.keys().copied().collect();
        for number in &all {
            if self.roles.get(number) != Some(&READER) {
                self.stop(*number);
            }
        }
        let reader = all.iter().find(|number| self.roles.get(number) == Some(&READER)).copied();
        reader.into_iter().for_each(|number| self.stop(number));
        // What is on the disk says the same as what was read while it came.
        self.broker.kill()?;
        self.broker.restart()?;
        self.seen = 0;
        let again = self.start(READER)?;
        self.stop(again);
        if self.seen != self.plan.records {
            self.faults.push(format!("{} of {} records at the end", self.seen, self.plan.records));
        }
        summary.copied = self.copied;
        summary.faults.append(&mut self.faults);
        Ok(())
    }

    /// Until all is seen and enough is killed.
    fn copy(&mut self, summary: &mut Summary) -> Result<()> {
        let plan = self.plan;
        let began = Instant::now();
        let mut fill = Fill::new(self.broker.address(), INPUT, plan.partitions, plan.records);
        let mut moved_at = began;
        let (mut kills, mut due, mut seen_then, mut killed_at) = (0, self.pause(began), 0, began);
        while kills < plan.kills || self.seen < plan.records {
            if began.elapsed() > plan.limit {
                let (seen, records) = (self.seen, plan.records);
                self.faults.push(format!("{seen} of {records} records and {kills} kills within the limit"));
                break;
            }
            let before = self.seen;
            self.listen(Duration::from_millis(5));
            if self.seen > before {
                moved_at = Instant::now();
            } else if moved_at.elapsed() > STALL {
                self.faults.push(self.stalled());
                break;
            }
            // The input does not run ahead of the kills.
            let allowed = plan.records * u64::from(kills + 1) / u64::from(plan.kills + 1);
            if fill.next < allowed && fill.one().is_err() {
                thread::sleep(Duration::from_millis(20));
            }
            let moved = self.seen > seen_then || killed_at.elapsed() > PROGRESS;
            if kills < plan.kills && Instant::now() >= due && moved {
                let is_broker = self.random.u32(..100) < 40;
                if is_broker {
                    self.broker.kill()?;
                    self.broker.restart()?;
                    summary.broker_kills += 1;
                } else {
                    self.kill_copier()?;
                    summary.copier_kills += 1;
                }
                kills += 1;
                seen_then = self.seen;
                killed_at = Instant::now();
                due = self.pause(killed_at);
            }
            if self.faults.len() >= FAULTS_KEPT {
                break;
            }
        }
        summary.seconds = began.elapsed().as_secs_f64();
        Ok(())
    }

    fn stalled(&self) -> String {
        let running = self.processes.keys().map(usize::to_string).collect::<Vec<_>>().join(", ");
        format!("nothing new for {STALL:?} after {} records; programs {running} run", self.seen)
    }

    fn pause(&mut self, from: Instant) -> Instant {
        from + Duration::from_millis(self.random.u64(50..=self.plan.kill_pause_ms.max(51)))
    }

    fn start(&mut self, role: usize) -> Result<usize> {
        let number = self.started;
        self.started += 1;
        let (plan, address) = (self.plan, self.broker.address());
        let mut arguments = vec![format!("bootstrap={address}")];
        let library = match COPIERS.get(role) {
            Some((library, batch)) => {
                arguments.insert(0, "copy".to_owned());
                arguments.extend([
                    format!("in={INPUT}"),
                    format!("out={OUTPUT}"),
                    "group=once".to_owned(),
                    format!("id=copier-{role}"),
                    format!("batch={batch}"),
                    format!("seed={}", plan.seed.wrapping_add(number as u64) % (1 << 31)),
                ]);
                *library
            }
            None => {
                arguments.insert(0, "read".to_owned());
                arguments.extend([
                    format!("topic={OUTPUT}"),
                    format!("records={}", plan.records),
                    format!("partitions={}", plan.partitions),
                ]);
                Library::Librdkafka
            }
        };
        let lines = self.told.clone();
        let process = Process::start(&self.programs, library, number, &arguments, self.logs, lines)?;
        self.processes.insert(number, process);
        self.roles.insert(number, role);
        Ok(number)
    }

    fn kill_copier(&mut self) -> Result<()> {
        let role = self.random.usize(..COPIERS.len());
        let number = self.roles.iter().rfind(|(_, of)| **of == role).map(|(number, _)| *number);
        if let Some(number) = number
            && let Some(mut process) = self.processes.remove(&number)
        {
            process.kill()?;
        }
        self.start(role)?;
        Ok(())
    }

    /// Takes what the programs said, waiting a little for something.
    fn listen(&mut self, wait: Duration) {
        let mut line = self.lines.recv_timeout(wait).ok();
        while let Some((number, said)) = line {
            self.heard(number, said);
            line = self.lines.try_recv().ok();
        }
    }

    fn heard(&mut self, number: usize, said: Option<String>) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let Some(said) = said else {
            process.ended = true;
            return;
        };
        let (word, rest) = said.split_once(' ').unwrap_or((&said, ""));
        match word {
            "copied" => {
                let library = self.roles.get(&number).and_then(|role| COPIERS.get(*role)).map(|(of, _)| *of);
                self.copied[usize::from(library == Some(Library::Java))] += rest.parse().unwrap_or(0);
            }
            "seen" => self.seen = rest.parse().unwrap_or(self.seen),
            "fault" if self.faults.len() < FAULTS_KEPT => self.faults.push(rest.to_owned()),
            "done" => process.ended = true,
            _ => {}
        }
    }

    /// Stops a program and waits for its end.
    fn stop(&mut self, number: usize) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if process.ended {
            self.faults.push(format!("a program ended by itself, see {}/{number}.log", self.logs.display()));
            return;
        }
        process.stop();
        let until = Instant::now() + STOP;
        while self.processes.get(&number).is_some_and(|process| !process.ended) {
            if Instant::now() > until {
                self.faults.push(format!("program {number} did not stop"));
                break;
            }
            self.listen(Duration::from_millis(20));
        }
        self.processes.remove(&number);
    }
}
