//! Splits and merges without rest, through the broker's HTTP door, while clients and kills go on.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::http;

const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How often a storm over all topics looks which there are.
const TOPICS_PAUSE: Duration = Duration::from_millis(300);
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const UNAVAILABLE: u16 = 503;

/// What a storm of splits and merges came to.
#[derive(Debug, Default)]
pub struct Reshards {
    /// One is asked for and not answered.
    pub under_way: AtomicBool,
    /// Answered as done.
    pub done: AtomicU64,
    /// Answered as under way or closed by another one, by a broker that had finished an earlier one meanwhile.
    pub busy: AtomicU64,
    /// Without an answer: the broker was killed.
    pub unanswered: AtomicU64,
    /// Splits of those done; the others are merges.
    pub splits: AtomicU64,
    /// Fewest active ranges of a topic that were seen; 0: none yet.
    pub ranges_min: AtomicU64,
    /// Most active ranges of a topic that were seen.
    pub ranges_max: AtomicU64,
    /// Longest pause that was answered, µs.
    pub longest_pause_us: AtomicU64,
    pauses: Mutex<Vec<f64>>,
    wrong: Mutex<Option<String>>,
}

impl Reshards {
    fn saw(&self, ranges: u64) {
        self.ranges_max.fetch_max(ranges, Ordering::Relaxed);
        let fewer = |least: u64| (least == 0 || ranges < least).then_some(ranges);
        // Refused when it is no fewer.
        let _ = self.ranges_min.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// The first answer that should not have come.
    pub fn wrong(&self) -> Option<String> {
        self.wrong.lock().ok().and_then(|wrong| wrong.clone())
    }

    /// The pause, in ms, that `share` per cent of all stay within.
    pub fn pause(&self, share: usize) -> f64 {
        let mut pauses = self.pauses.lock().map(|pauses| pauses.clone()).unwrap_or_default();
        pauses.sort_by(f64::total_cmp);
        pauses.get(pauses.len().saturating_sub(1) * share / 100).copied().unwrap_or(0.0)
    }
}

#[derive(Debug, Deserialize)]
struct Topic {
    name: String,
    partitions: i32,
}

#[derive(Debug, Deserialize)]
struct Range {
    id: u32,
    first: i32,
    last: i32,
    state: String,
}

#[derive(Debug, Deserialize)]
struct Operation {
    state: String,
    paused_ms: Option<f64>,
}

/// Of the splits and merges of a topic, so many of a hundred lead towards where its number of ranges is going: as many as there
/// are partitions, then one, then as many again.
const ONWARD: u32 = 75;

/// Splits and merges random ranges of some topics until it is told to stop.
#[derive(Debug)]
pub struct Resharder<'a> {
    http: SocketAddr,
    /// With whether the number of its ranges grows.
    topics: Vec<(String, bool)>,
    /// Of a storm over all topics: when it is to look again which there are.
    look_at: Option<Instant>,
    counts: &'a Reshards,
    random: fastrand::Rng,
    /// Between two of them at most, ms.
    pause_ms: u64,
}

impl<'a> Resharder<'a> {
    /// One for these topics.
    pub fn new(
        http: SocketAddr,
        topics: Vec<String>,
        counts: &'a Reshards,
        seed: u64,
        pause_ms: u64,
    ) -> Self {
        let topics = topics.into_iter().map(|topic| (topic, true)).collect();
        Self { http, topics, look_at: None, counts, random: fastrand::Rng::with_seed(seed), pause_ms }
    }

    /// One for all topics that come and go, the broker's own too.
    pub fn of_all(http: SocketAddr, counts: &'a Reshards, seed: u64, pause_ms: u64) -> Self {
        Self { look_at: Some(Instant::now()), ..Self::new(http, Vec::new(), counts, seed, pause_ms) }
    }

    /// Goes on until `stopped`; what a kill breaks is begun anew.
    pub fn run(mut self, stopped: impl Fn() -> bool) {
        while !stopped() {
            match self.one() {
                Ok(()) => thread::sleep(Duration::from_millis(self.random.u64(..=self.pause_ms))),
                Err(error) => {
                    if let Some(wrong) = error.downcast_ref::<Wrong>()
                        && let Ok(mut first) = self.counts.wrong.lock()
                    {
                        first.get_or_insert(wrong.0.clone());
                    }
                    thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn look(&mut self) -> Result<()> {
        let (status, body) = http::call(self.http, "GET", "/api/v1/topics?internal=true", "")?;
        if status != 200 {
            bail!("{status}");
        }
        let there: Vec<Topic> = serde_json::from_str(&body)?;
        let divisible = there.into_iter().filter(|topic| topic.partitions > 1);
        let grows =
            |name: &str| self.topics.iter().find(|(known, _)| known == name).is_none_or(|(_, grows)| *grows);
        self.topics =
            divisible.map(|topic| (grows(&topic.name), topic.name)).map(|(g, name)| (name, g)).collect();
        self.look_at = Some(Instant::now() + TOPICS_PAUSE);
        Ok(())
    }

    fn one(&mut self) -> Result<()> {
        if self.look_at.is_some_and(|at| Instant::now() >= at) {
            self.look()?;
        }
        if self.topics.is_empty() {
            return Ok(());
        }
        let which = self.random.usize(..self.topics.len());
        let (topic, grows) = self.topics[which].clone();
        let (status, body) = http::call(self.http, "GET", &format!("/api/v1/topics/{topic}/ranges"), "")?;
        if status != 200 {
            bail!("{status}");
        }
        let mut ranges: Vec<Range> = serde_json::from_str(&body)?;
        ranges.retain(|range| range.state == "active");
        ranges.sort_by_key(|range| range.first);
        if ranges.is_empty() {
            return Ok(());
        }
        self.counts.saw(ranges.len() as u64);
        let partitions = ranges.last().map_or(1, |range| range.last + 1);
        let grows = if grows { (ranges.len() as i32) < partitions } else { ranges.len() == 1 };
        self.topics[which].1 = grows;
        let divisible: Vec<&Range> = ranges.iter().filter(|range| range.first < range.last).collect();
        let onward = self.random.u32(..100) < ONWARD;
        let merges = (grows != onward || divisible.is_empty()) && ranges.len() > 1;
        let (path, body) = if merges {
            let at = self.random.usize(..ranges.len() - 1);
            let (left, right) = (ranges[at].id, ranges[at + 1].id);
            (format!("/api/v1/topics/{topic}/ranges/merge"), format!(r#"{{"ranges":[{left},{right}]}}"#))
        } else if let Some(range) = self.random.choice(divisible) {
            let point = self.random.i32(range.first + 1..=range.last);
            (format!("/api/v1/topics/{topic}/ranges/{}/split", range.id), format!(r#"{{"at":{point}}}"#))
        } else {
            // One range of one partition.
            return Ok(());
        };
        self.counts.under_way.store(true, Ordering::Release);
        let answer = http::call(self.http, "POST", &path, &body);
        self.counts.under_way.store(false, Ordering::Release);
        let Ok((status, answer)) = answer else {
            self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
            bail!("no answer");
        };
        self.judge(status, &answer, &format!("{path} {body}"))?;
        if status == 200 && !merges {
            self.counts.splits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn judge(&self, status: u16, answer: &str, asked: &str) -> Result<()> {
        match status {
            200 => {
                let operation: Operation =
                    serde_json::from_str(answer).map_err(|e| Wrong(format!("{asked}: {e} in {answer}")))?;
                if operation.state != "done" {
                    return Err(Wrong(format!("{asked}: {answer}")).into());
                }
                self.counts.done.fetch_add(1, Ordering::Relaxed);
                if let (Some(ms), Ok(mut pauses)) = (operation.paused_ms, self.counts.pauses.lock()) {
                    pauses.push(ms);
                    self.counts.longest_pause_us.fetch_max((ms * 1000.0) as u64, Ordering::Relaxed);
                }
                Ok(())
            }
            // What was read is old by now; or the node stops or starts.
            CONFLICT | NOT_FOUND | UNAVAILABLE => {
                self.counts.busy.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Wrong(format!("{asked}: {status} {answer}")).into()),
        }
    }
}

/// Runs something while all ranges of a broker split and merge, with pauses of `pause_ms` at most, and says on stderr what that came
/// to. Errors: its own, or an answer to a split or merge that should not have come, or not one that was done.
pub fn amid<T>(http: SocketAddr, seed: u64, pause_ms: u64, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let (counts, stopped) = (Reshards::default(), AtomicBool::new(false));
    let resharder = Resharder::of_all(http, &counts, seed, pause_ms);
    let ran = thread::scope(|threads| {
        let _stop = Stop(&stopped);
        threads.spawn(|| resharder.run(|| stopped.load(Ordering::Acquire)));
        run()
    });
    let [done, splits, most] =
        [&counts.done, &counts.splits, &counts.ranges_max].map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "amid {splits} splits and {} merges, up to {most} ranges of a topic, paused {:.1} ms (median), {:.1} ms (99 of 100)",
        done - splits,
        counts.pause(50),
        counts.pause(99)
    );
    let ran = ran?;
    if let Some(wrong) = counts.wrong() {
        bail!("a wrong answer to a split or merge: {wrong}");
    }
    ensure!(done > 0, "nothing was split or merged");
    Ok(ran)
}

/// Stops a storm, also when what it was about panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// An answer that no kill explains.
#[derive(Debug)]
struct Wrong(String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}
