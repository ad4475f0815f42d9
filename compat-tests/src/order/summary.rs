//! What an order proof came to, as a table.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::Plan;
use super::judge::{Fault, History, judge};
use crate::reshard::Reshards;

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Decides it all.
    pub seed: u64,
    /// Records acknowledged.
    pub records: u64,
    /// Seconds from the first record to the last acknowledgement.
    pub seconds: f64,
    /// Records that all readers read together.
    pub read: u64,
    /// Records that were there when the late reader began.
    pub lag: u64,
    /// Of the topic.
    pub partitions: i32,
    /// Done.
    pub splits: u64,
    /// Done.
    pub merges: u64,
    /// Pauses of splits and merges, ms: median, 99 of 100, longest.
    pub pauses: [f64; 3],
    /// Fewest and most ranges.
    pub ranges: (u64, u64),
    /// Assignments of the group that nobody planned, and all.
    pub rebalances: (u64, u64),
    /// Sends that failed.
    pub failed: u64,
    /// Batches or requests that producers sent again.
    pub retries: u64,
    /// Warnings in the broker's log.
    pub warnings: u64,
    /// What must not be.
    pub faults: Vec<Fault>,
    /// Where the broker's data and log are kept, if there are faults.
    pub kept: Option<PathBuf>,
}

impl Summary {
    /// Judges the history and counts.
    pub(super) fn fill(&mut self, plan: &Plan, history: &History, reshards: &Reshards, log: &str) {
        let producers = || history.producers.iter().map(|(_, report)| report);
        let lives = || history.readers.iter().flat_map(|reader| &reader.lives);
        let done = reshards.done.load(Ordering::Relaxed);
        self.seed = plan.seed;
        self.records = producers().map(|report| report.acked).sum();
        self.read = lives().map(|(_, report)| report.read).sum();
        self.partitions = plan.partitions;
        self.splits = reshards.splits.load(Ordering::Relaxed);
        self.merges = done.saturating_sub(self.splits);
        let longest = reshards.longest_pause_us.load(Ordering::Relaxed) as f64 / 1000.0;
        self.pauses = [reshards.pause(50), reshards.pause(99), longest];
        self.ranges = history.ranges;
        let group = history.readers.iter().filter(|reader| reader.name == "group");
        let assignments = group.flat_map(|reader| &reader.lives).map(|(_, report)| report.assignments).sum();
        self.rebalances = (history.rebalances.len() as u64, assignments);
        self.failed = producers().map(|report| report.failed).sum();
        self.retries = producers().map(|report| report.retries).sum();
        self.warnings = log.lines().filter(|line| line.contains("WARN")).count() as u64;
        self.faults = judge(history);
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [median, p99, longest] = self.pauses;
        let rows = [
            ("seed", self.seed.to_string()),
            ("partitions", self.partitions.to_string()),
            ("records acknowledged", self.records.to_string()),
            ("seconds", format!("{:.1}", self.seconds)),
            ("records/s", format!("{:.0}", self.records as f64 / self.seconds.max(0.001))),
            ("records read", self.read.to_string()),
            ("lag of the late reader", self.lag.to_string()),
            ("splits, merges", format!("{}, {}", self.splits, self.merges)),
            ("ranges, fewest and most", format!("{}, {}", self.ranges.0, self.ranges.1)),
            ("pause ms, median, p99, longest", format!("{median:.1}, {p99:.1}, {longest:.1}")),
            ("assignments of the group, unplanned", format!("{}, {}", self.rebalances.1, self.rebalances.0)),
            ("failed sends", self.failed.to_string()),
            ("sent again", self.retries.to_string()),
            ("warnings logged", self.warnings.to_string()),
            ("faults", self.faults.len().to_string()),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<36} {value}")?;
        }
        for fault in &self.faults {
            writeln!(f, "FAULT {fault}")?;
        }
        match &self.kept {
            Some(folder) => writeln!(f, "data and log are kept in {}", folder.display()),
            None => Ok(()),
        }
    }
}
