//! A broker whose ranges split and merge without rest, and which is killed and started again, while clients check what they see.
//!
//! Three of four kills fall into a split or merge that was asked for and not answered. Clients that meet a kill connect again
//! and go on; what they check must hold all the same.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::broker::{Broker, Kind};
use crate::reshard::{Resharder, Reshards};
use crate::storm::{aim, small_sizes};
use crate::wire::Connection;

const ALIVE_MS: std::ops::Range<u64> = 150..900;
const POLL: Duration = Duration::from_millis(5);
const RESHARDS_PER_KILL: u64 = 6;
const KILLS: u32 = 3;
/// One more for each kill.
const LIMIT: Duration = Duration::from_secs(120);
const LIMIT_PER_KILL: Duration = Duration::from_secs(10);

/// Topic name, partitions, configs.
pub type TopicOf<'a> = (&'a str, i32, &'a [(&'a str, &'a str)]);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Decides splits, merges and the instants of kills.
    pub seed: u64,
    /// SIGKILLs, each followed by a start.
    pub kills: u32,
    /// Splits and merges at least.
    pub reshards: u64,
    /// Between two of them at most, ms.
    pub reshard_pause_ms: u64,
    /// The topics to make; those of more than one partition split and merge.
    pub topics: &'a [TopicOf<'a>],
    /// Topics of the node's own that split and merge too.
    pub internal: &'a [&'a str],
}

impl<'a> Plan<'a> {
    /// The small form; `RANGEWAY_COMPAT_KILLS` asks for more kills, with splits and merges in proportion.
    pub fn from_env(seed: u64, topics: &'a [TopicOf<'a>]) -> Self {
        let asked = std::env::var("RANGEWAY_COMPAT_KILLS").ok().and_then(|kills| kills.parse().ok());
        let kills = asked.unwrap_or(KILLS);
        let reshards = RESHARDS_PER_KILL * u64::from(kills.max(1));
        Self { seed, kills, reshards, reshard_pause_ms: 30, topics, internal: &[] }
    }
}

/// What the clients of a run share.
#[derive(Debug)]
pub struct Turmoil {
    /// Where Kafka clients connect, over all restarts.
    pub address: SocketAddr,
    /// Wall-clock start of the run, ms.
    pub began_ms: i64,
    /// Splits and merges.
    pub reshards: Reshards,
    /// Kills until now.
    pub kills: AtomicU32,
    in_reshard: AtomicU32,
    /// Comparisons that clients made.
    pub checks: AtomicU64,
    over: AtomicBool,
    stopped: AtomicBool,
    failure: Mutex<Option<String>>,
    deadline: Instant,
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// SIGKILLs.
    pub kills: u32,
    /// Of those, inside of a split or merge.
    pub in_reshard: u32,
    /// Splits and merges that were answered as done.
    pub reshards: u64,
    /// Comparisons that clients made.
    pub checks: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, in_reshard, reshards, checks } = self;
        write!(
            f,
            "{kills} kills ({in_reshard} inside of a split or merge), {reshards} splits and merges, {checks} checks"
        )
    }
}

impl Turmoil {
    /// Whether kills, or splits and merges, are still to come.
    pub fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Acquire) && self.in_time().is_ok()
    }

    /// As [`goes_on`](Self::goes_on), and longer while not `enough` came of it: on a busy machine all kills may be over soon.
    pub fn goes_on_until(&self, enough: bool) -> bool {
        self.goes_on() || !enough && self.in_time().is_ok()
    }

    /// Errors: the run failed, or takes too long.
    pub fn in_time(&self) -> Result<()> {
        if let Some(failure) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            bail!("ended since {failure}");
        }
        ensure!(Instant::now() < self.deadline, "the time of the run is over");
        Ok(())
    }

    /// A client found a fault: all others end.
    pub fn failed(&self, error: &anyhow::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(format!("{error:#}"));
    }

    /// Runs a client and tells the others when it fails.
    pub fn client<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        run().inspect_err(|error| self.failed(error))
    }

    /// So many comparisons more.
    pub fn checked(&self, count: usize) {
        self.checks.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Waits until so many more splits and merges are done. Errors as [`in_time`](Self::in_time).
    pub fn await_reshards(&self, more: u64) -> Result<()> {
        let wanted = self.reshards.done.load(Ordering::Acquire) + more;
        while self.reshards.done.load(Ordering::Acquire) < wanted {
            self.in_time()?;
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Whatever ends the clients ends the rest of the run.
struct Stop<'a>(&'a Turmoil);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
    }
}

/// Runs `clients` on this thread amid kills, splits and merges, which go on until it returns. Its error, or what went wrong beside
/// it; data and logs are kept then.
pub fn run(plan: &Plan<'_>, clients: impl FnOnce(&Turmoil) -> Result<()>) -> Result<Figures> {
    let settings = small_sizes(Kind::Rangeway);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut broker = Broker::start(Kind::Rangeway, &settings)?;
    let mut connection = Connection::open(broker.address(), Duration::from_secs(30))?;
    for (name, partitions, configs) in plan.topics {
        connection.create_topic(name, *partitions, configs)?;
    }
    let turmoil = Turmoil {
        address: broker.address(),
        began_ms: i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?,
        reshards: Reshards::default(),
        kills: AtomicU32::new(0),
        in_reshard: AtomicU32::new(0),
        checks: AtomicU64::new(0),
        over: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        failure: Mutex::default(),
        deadline: Instant::now() + LIMIT + LIMIT_PER_KILL * plan.kills,
    };
    let names = plan.topics.iter().filter(|(_, partitions, _)| *partitions > 1).map(|(name, ..)| *name);
    let names = names.chain(plan.internal.iter().copied()).map(str::to_owned).collect();
    let resharder =
        Resharder::new(broker.http_address(), names, &turmoil.reshards, plan.seed, plan.reshard_pause_ms);
    let outcome = thread::scope(|threads| {
        let _stop = Stop(&turmoil);
        threads.spawn(|| resharder.run(|| turmoil.stopped()));
        let raging = threads.spawn(|| turmoil.client(|| rage(plan, &mut broker, &turmoil)));
        let checked = turmoil.client(|| clients(&turmoil));
        turmoil.stopped.store(true, Ordering::Release);
        let raged = raging.join().map_err(|_| anyhow!("the killer panicked"))?;
        checked.and(raged)
    });
    let outcome = outcome.and_then(|()| match turmoil.reshards.wrong() {
        Some(wrong) => bail!("a wrong answer to a split or merge: {wrong}"),
        None => broker.stop(),
    });
    if outcome.is_err() {
        eprintln!("seed {}; data and logs are kept in {}", plan.seed, broker.keep().display());
        eprintln!("the broker's last lines:\n{}", broker.log_end());
    }
    outcome?;
    let figures = Figures {
        kills: turmoil.kills.load(Ordering::Acquire),
        in_reshard: turmoil.in_reshard.load(Ordering::Acquire),
        reshards: turmoil.reshards.done.load(Ordering::Acquire),
        checks: turmoil.checks.load(Ordering::Acquire),
    };
    ensure!(figures.checks > 0, "nothing was compared");
    ensure!(
        figures.kills >= plan.kills && figures.reshards >= plan.reshards,
        "too little happened: {figures}"
    );
    Ok(figures)
}

fn rage(plan: &Plan<'_>, broker: &mut Broker, turmoil: &Turmoil) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(plan.seed ^ 0x6b69_6c6c);
    while turmoil.kills.load(Ordering::Acquire) < plan.kills && !turmoil.stopped() {
        thread::sleep(Duration::from_millis(random.u64(ALIVE_MS)));
        if random.u8(..4) > 0 {
            aim(&turmoil.reshards, &mut random);
        }
        turmoil.in_time()?;
        if let Some(status) = broker.exited()? {
            bail!("the broker ended by itself with {status}");
        }
        let inside = turmoil.reshards.under_way.load(Ordering::Acquire);
        broker.kill()?;
        turmoil.in_reshard.fetch_add(u32::from(inside), Ordering::AcqRel);
        turmoil.kills.fetch_add(1, Ordering::AcqRel);
        broker.restart().context("starting again after a kill")?;
    }
    while turmoil.reshards.done.load(Ordering::Acquire) < plan.reshards && !turmoil.stopped() {
        turmoil.in_time()?;
        thread::sleep(POLL);
    }
    turmoil.over.store(true, Ordering::Release);
    while !turmoil.stopped() {
        if let Some(status) = broker.exited()? {
            bail!("the broker ended by itself with {status}");
        }
        thread::sleep(POLL);
    }
    Ok(())
}
