//! What to do when a connection cannot be accepted, and how much to say of bad ones. Pure: it is told the time.

use std::io;
use std::time::{Duration, Instant};

const WAIT_MIN: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Failures in a row are logged at most so often.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Lines about connections that end badly, in so much time.
const LINES_MAX: u32 = 20;

/// What follows from a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// How long not to ask again: the connection stays in the listen queue, so asking at once would spin.
    pub(super) wait: Duration,
    /// Failures since the last one that was logged, if this one is to be.
    pub(super) log: Option<u64>,
}

/// Lines of one kind: some at once, then one per [`LOG_EVERY`] / [`LINES_MAX`] on average.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Quiet {
    /// Whether a line is to be logged, with how many were not since the one before.
    pub(super) fn line(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.duration_since(began) >= LOG_EVERY) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines >= LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Failures of a listener since the last success.
#[derive(Debug, Default)]
pub(super) struct Failures {
    wait: Duration,
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Failures {
    /// A connection was accepted.
    pub(super) fn over(&mut self) {
        self.wait = Duration::ZERO;
    }

    /// Accepting failed: out of descriptors or memory, which passes, or the client is gone already, which is no
    /// reason to wait.
    pub(super) fn pause(&mut self, error: &io::Error, now: Instant) -> Pause {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::Interrupted
        );
        if gone {
            return Pause { wait: Duration::ZERO, log: None };
        }
        self.wait = (self.wait * 2).clamp(WAIT_MIN, WAIT_MAX);
        self.unlogged += 1;
        let due = self.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_EVERY);
        let log = due.then(|| std::mem::take(&mut self.unlogged));
        if due {
            self.logged_at = Some(now);
        }
        Pause { wait: self.wait, log }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_descriptors_it_waits_longer_each_time_and_logs_every_ten_seconds() {
        let (mut failures, begun) = (Failures::default(), Instant::now());
        let full = io::Error::from_raw_os_error(24);
        let at = |ms| begun + Duration::from_millis(ms);
        let waits: Vec<Pause> = (0..9).map(|n| failures.pause(&full, at(n))).collect();
        let ms: Vec<u128> = waits.iter().map(|p| p.wait.as_millis()).collect();
        assert_eq!(ms, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(waits.iter().filter_map(|p| p.log).collect::<Vec<_>>(), [1]);
        assert_eq!(failures.pause(&full, at(10_000)).log, Some(9));
        failures.over();
        let again = failures.pause(&full, at(10_001));
        assert_eq!(
            (again.wait.as_millis(), again.log),
            (10, None),
            "a success in between does not fill the log"
        );
    }

    #[test]
    fn of_many_lines_some_are_logged_and_the_rest_counted() {
        let (mut quiet, begun) = (Quiet::default(), Instant::now());
        let lines: Vec<_> = (0..5000).filter_map(|_| quiet.line(begun)).collect();
        assert_eq!(lines, [0; LINES_MAX as usize]);
        assert_eq!(quiet.line(begun + LOG_EVERY), Some(5000 - u64::from(LINES_MAX)));
        assert_eq!(quiet.line(begun + LOG_EVERY), Some(0));
    }

    #[test]
    fn a_client_that_is_gone_costs_nothing() {
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        let pause = Failures::default().pause(&gone, Instant::now());
        assert_eq!(pause, Pause { wait: Duration::ZERO, log: None });
    }
}
