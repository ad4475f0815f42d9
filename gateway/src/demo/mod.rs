//! A demonstration, and a check of its own claim: keyed records are produced and consumed through the Kafka port while the
//! topic's ranges are split and merged, and every record that comes back is judged. Owns the load, the script and the
//! judgement. Knows of the node its Kafka address and [`Ranges`], and nothing of how the result is shown.

mod consume;
pub mod judge;
mod kcat;
mod keys;
mod produce;
pub mod script;
mod waiting;

use crate::bench::client::Broken;
use judge::Judge;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use script::{Range, Script, Step};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often is looked at what goes on.
const TICK: Duration = Duration::from_millis(100);
/// Steps come no faster than this, so that each can be seen.
const STEP_MAX: Duration = Duration::from_millis(700);
const STEP_MIN: Duration = Duration::from_millis(100);
/// The consumer is given up when it gets nothing for so long although there is something.
const CONSUME_MAX: Duration = Duration::from_secs(15);
/// Rates are over so long.
const RATE_OVER: Duration = Duration::from_secs(1);
/// Producing threads.
const PRODUCERS: usize = 2;

/// Whose client produces and consumes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// The one that this program brings
    Own,
    /// An installed kcat, one process to produce and one to consume
    Kcat,
}

/// What to show.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `HOST:PORT` of the Kafka port.
    pub address: String,
    /// The topic, which is there and empty.
    pub topic: String,
    /// Its partitions.
    pub partitions: i32,
    /// Records per second.
    pub rate: u32,
    /// Keys.
    pub keys: usize,
    /// Ranges to split to before they are merged back.
    pub ranges: usize,
    /// How long is produced.
    pub time: Duration,
    /// Who produces and consumes.
    pub client: Client,
}

/// What is asked of the node besides its Kafka port.
pub trait Ranges {
    /// The active ranges in order of partitions.
    fn active(&self) -> Vec<Range>;
    /// Splits or merges; the pause in ms, if it is known, or why it could not be done now.
    fn step(&self, step: Step) -> Result<Option<f64>, String>;
    /// The end offset of each partition.
    fn ends(&self) -> Result<Vec<i64>, String>;
}

/// Who watches.
pub trait View {
    /// A split or merge, and what came of it: the pause in ms, or why not.
    fn stepped(&mut self, step: Step, outcome: &Result<Option<f64>, String>);
    /// How things are; ten times a second.
    fn show(&mut self, now: &Snapshot);
}

/// How things are.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Since the start.
    pub elapsed: Duration,
    /// How long it goes.
    pub time: Duration,
    /// Active ranges in order of partitions.
    pub ranges: Vec<Range>,
    /// Records acknowledged.
    pub produced: u64,
    /// Records consumed.
    pub consumed: u64,
    /// Records acknowledged per second, lately.
    pub produced_per_second: f64,
    /// Records consumed per second, lately.
    pub consumed_per_second: f64,
    /// What was done.
    pub steps: Steps,
    /// What is wrong so far.
    pub faults: u64,
}

/// Splits and merges done, and their pauses.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Steps {
    /// Splits.
    pub splits: u64,
    /// Merges.
    pub merges: u64,
    /// Steps that could not be done when they were due.
    pub refused: u64,
    /// The last pause, ms.
    pub last_pause_ms: f64,
    /// The longest, ms.
    pub longest_pause_ms: f64,
    /// All of them, ms.
    pub sum_pause_ms: f64,
    /// Most ranges that there were at once.
    pub most_ranges: usize,
}

/// What it came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Whether everything held.
    pub held: bool,
    /// Seconds of producing.
    pub seconds: f64,
    /// Records acknowledged.
    pub produced: u64,
    /// Records consumed.
    pub consumed: u64,
    /// Keys.
    pub keys: usize,
    /// Partitions.
    pub partitions: i32,
    /// Splits and merges.
    #[serde(flatten)]
    pub steps: Steps,
    /// Answers that said to ask again.
    pub asked_again: u64,
    /// How much was wrong.
    pub fault_count: u64,
    /// What was wrong, the first of it.
    pub faults: Vec<String>,
}

/// What the threads of a run share.
#[derive(Debug)]
struct Load {
    address: String,
    topic: TopicName,
    rate: u32,
    keys: Vec<Key>,
    state: State,
}

#[derive(Debug)]
struct Key {
    text: String,
    partition: i32,
    acknowledged: AtomicU64,
}

#[derive(Debug)]
struct State {
    produced_enough: AtomicBool,
    consumed_enough: AtomicBool,
    acknowledged: AtomicU64,
    refusals: AtomicU64,
    judge: Mutex<Judge>,
    broken: Mutex<Option<Broken>>,
}

impl State {
    fn is_broken(&self) -> bool {
        self.broken.lock().is_some()
    }

    /// Notes the first thread that failed.
    fn note(&self, outcome: Result<(), Broken>) {
        if let Err(error) = outcome {
            self.broken.lock().get_or_insert(error);
        }
    }
}

/// Runs it for the planned time, or until `stop`; judges all that was acknowledged.
///
/// Errors: a client that broke off. What is wrong with the records is in the outcome.
pub fn run(
    plan: &Plan,
    node: &dyn Ranges,
    view: &mut dyn View,
    stop: &AtomicBool,
) -> Result<Outcome, Broken> {
    let load = Load {
        address: plan.address.clone(),
        topic: TopicName(StrBytes::from_string(plan.topic.clone())),
        rate: plan.rate,
        keys: keys::keys(plan.keys)
            .into_iter()
            .map(|text| Key {
                partition: keys::partition_of(text.as_bytes(), plan.partitions),
                text,
                acknowledged: AtomicU64::new(0),
            })
            .collect(),
        state: State {
            produced_enough: AtomicBool::new(false),
            consumed_enough: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            judge: Mutex::new(Judge::new(plan.partitions)),
            broken: Mutex::new(None),
        },
    };
    let mut show = Show {
        plan,
        load: &load,
        node,
        view,
        began: Instant::now(),
        samples: VecDeque::new(),
        steps: Steps::default(),
    };
    let seconds = std::thread::scope(|scope| {
        let (load, state) = (&load, &load.state);
        let mut producers = Vec::new();
        match plan.client {
            Client::Own => {
                for share in 0..PRODUCERS {
                    producers.push(scope.spawn(move || state.note(produce::run(load, share, PRODUCERS))));
                }
                scope.spawn(move || state.note(consume::run(load)));
            }
            Client::Kcat => {
                producers.push(scope.spawn(move || state.note(kcat::produce(load))));
                scope.spawn(move || state.note(kcat::consume(load)));
            }
        }
        show.drive(stop);
        state.produced_enough.store(true, Relaxed);
        let seconds = show.began.elapsed().as_secs_f64();
        for producer in producers {
            if producer.join().is_err() {
                state.note(Err(Broken("a producer panicked".to_owned())));
            }
        }
        let settled = show.wait_for_the_rest();
        state.note(settled);
        state.consumed_enough.store(true, Relaxed);
        seconds
    });
    let steps = show.steps;
    if let Some(error) = load.state.broken.lock().take() {
        return Err(error);
    }
    Ok(outcome(plan, &load, steps, seconds))
}

fn outcome(plan: &Plan, load: &Load, steps: Steps, seconds: f64) -> Outcome {
    let mut judge = load.state.judge.lock();
    judge.finish(load.keys.iter().map(|key| (key.text.as_str(), key.acknowledged.load(Relaxed))));
    let (produced, consumed) = (load.state.acknowledged.load(Relaxed), judge.seen());
    let mut faults = judge.faults().to_vec();
    let mut fault_count = judge.fault_count();
    let mut also = |wrong: bool, what: String| {
        if wrong {
            fault_count += 1;
            faults.push(what);
        }
    };
    also(consumed != produced, format!("{produced} records were acknowledged and {consumed} consumed"));
    also(produced == 0, "nothing was produced".to_owned());
    also(steps.splits == 0 || steps.merges == 0, "no range was split, or none merged".to_owned());
    Outcome {
        held: fault_count == 0,
        seconds,
        produced,
        consumed,
        keys: plan.keys,
        partitions: plan.partitions,
        steps,
        asked_again: load.state.refusals.load(Relaxed),
        fault_count,
        faults,
    }
}

/// The thread that splits, merges and tells.
struct Show<'a> {
    plan: &'a Plan,
    load: &'a Load,
    node: &'a dyn Ranges,
    view: &'a mut dyn View,
    began: Instant,
    samples: VecDeque<(Instant, u64, u64)>,
    steps: Steps,
}

impl Show<'_> {
    /// Splits and merges until the time is over.
    fn drive(&mut self, stop: &AtomicBool) {
        let mut script = Script::new(self.plan.ranges);
        let every = self.plan.time / (Script::cycle(self.plan.ranges) + 1);
        let every = every.clamp(STEP_MIN, STEP_MAX);
        let mut due = self.began + every;
        while self.began.elapsed() < self.plan.time && !stop.load(Relaxed) && !self.load.state.is_broken() {
            pause(TICK.min(due.saturating_duration_since(Instant::now())));
            let ranges = self.node.active();
            if Instant::now() >= due {
                due = Instant::now() + every;
                if let Some(step) = script.next(&ranges) {
                    self.step(step);
                }
            }
            self.show();
        }
    }

    fn step(&mut self, step: Step) {
        let outcome = self.node.step(step);
        match (&outcome, step) {
            (Ok(_), Step::Split { .. }) => self.steps.splits += 1,
            (Ok(_), Step::Merge { .. }) => self.steps.merges += 1,
            (Err(_), _) => self.steps.refused += 1,
        }
        if let Ok(Some(ms)) = outcome {
            let ms = to_microseconds(ms);
            self.steps.last_pause_ms = ms;
            self.steps.longest_pause_ms = self.steps.longest_pause_ms.max(ms);
            self.steps.sum_pause_ms = to_microseconds(self.steps.sum_pause_ms + ms);
        }
        self.view.stepped(step, &outcome);
    }

    /// Waits until the consumer is where every partition ends.
    fn wait_for_the_rest(&mut self) -> Result<(), Broken> {
        let mut last = (0, Instant::now());
        while !self.load.state.is_broken() {
            let ends = self.node.ends().map_err(Broken)?;
            let (there, seen) = {
                let judge = self.load.state.judge.lock();
                (judge.next_offsets() == ends, judge.seen())
            };
            if there {
                break;
            }
            if seen != last.0 {
                last = (seen, Instant::now());
            } else if last.1.elapsed() > CONSUME_MAX {
                // What is missing is told key by key.
                break;
            }
            self.show();
            pause(TICK);
        }
        self.show();
        Ok(())
    }

    fn show(&mut self) {
        let state = &self.load.state;
        let (consumed, faults) = {
            let judge = state.judge.lock();
            (judge.seen(), judge.fault_count())
        };
        let (now, produced) = (Instant::now(), state.acknowledged.load(Relaxed));
        self.samples.push_back((now, produced, consumed));
        while self.samples.get(1).is_some_and(|(at, ..)| now.duration_since(*at) >= RATE_OVER) {
            self.samples.pop_front();
        }
        let (at, produced_then, consumed_then) =
            self.samples.front().copied().unwrap_or((now, produced, consumed));
        let rate = |now_count: u64, then: u64| {
            now_count.saturating_sub(then) as f64 / now.duration_since(at).as_secs_f64().max(1e-3)
        };
        let ranges = self.node.active();
        self.steps.most_ranges = self.steps.most_ranges.max(ranges.len());
        self.view.show(&Snapshot {
            elapsed: self.began.elapsed(),
            time: self.plan.time,
            ranges,
            produced,
            consumed,
            produced_per_second: rate(produced, produced_then),
            consumed_per_second: rate(consumed, consumed_then),
            steps: self.steps.clone(),
            faults,
        });
    }
}

fn to_microseconds(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}
