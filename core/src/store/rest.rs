//! How long the keeper leaves rewriting alone after it failed. Pure: it is told the time.
//!
//! On a full disk what failed fails again until something dies: then it is tried at once, and as long as something dies
//! again and again, at most as often as [`REST_MIN`] and the cost of an attempt allow.

use std::time::{Duration, Instant};

/// How long nothing is tried while nothing dies.
const REST_MAX: Duration = Duration::from_secs(10);
/// How long whatever dies.
const REST_MIN: Duration = Duration::from_millis(200);

/// See the module head.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Rest {
    /// When the last attempt began.
    tried_at: Option<Instant>,
    /// Something died since.
    died: bool,
    /// Nothing is tried before the first; before the second, unless something dies.
    until: Option<(Instant, Instant)>,
}

impl Rest {
    /// An attempt begins.
    pub(crate) fn tries(&mut self, now: Instant) {
        (self.tried_at, self.died) = (Some(now), false);
    }

    /// Something died: there may be room.
    pub(crate) fn died(&mut self) {
        self.died = true;
    }

    /// It failed, or nothing is left that could be tried.
    pub(crate) fn begin(&mut self, now: Instant) {
        let took = self.tried_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.until = Some((now + REST_MIN.max(took), now + REST_MAX));
    }

    /// How long it still rests; `None`: it does not.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.wait(now).filter(|left| !left.is_zero())
    }

    /// When its end is to be looked at; `None`: it has ended.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let (least, most) = self.until?;
        let until = if self.died { least } else { most };
        Some(until.saturating_duration_since(now))
    }

    /// Ends it if it is over; whether it was one that ends now.
    pub(crate) fn ends(&mut self, now: Instant) -> bool {
        let ends = self.until.is_some() && self.left(now).is_none();
        if ends {
            // What died is what the next attempts are for.
            (self.until, self.died) = (None, false);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn failed(at: Instant, took: Duration) -> Rest {
        let mut rest = Rest::default();
        rest.tries(at);
        rest.begin(at + took);
        rest
    }

    #[test]
    fn while_nothing_dies_it_rests_long_and_what_dies_ends_that_at_once() {
        let begun = Instant::now();
        let mut rest = failed(begun, MS);
        assert!(rest.left(begun + REST_MAX).is_some() && !rest.ends(begun + REST_MAX));
        // Long after the attempt: nothing is waited for.
        rest.died();
        let later = begun + REST_MIN + MS;
        assert_eq!(rest.left(later), None);
        assert!(rest.ends(later) && !rest.ends(later), "it ends once");
        let mut untouched = failed(begun, MS);
        assert!(untouched.ends(begun + REST_MAX + MS));
    }

    #[test]
    fn what_dies_while_an_attempt_runs_or_before_the_least_rest_waits_for_that_only() {
        let begun = Instant::now();
        for died_first in [true, false] {
            let mut rest = Rest::default();
            rest.tries(begun);
            if died_first {
                rest.died();
            }
            rest.begin(begun + MS);
            rest.died();
            assert_eq!(rest.left(begun + MS), Some(REST_MIN), "died first: {died_first}");
            assert!(rest.ends(begun + MS + REST_MIN));
        }
    }

    #[test]
    fn deaths_without_end_do_not_make_attempts_without_rest() {
        let (mut now, mut attempts, took) = (Instant::now(), 0, REST_MIN * 3);
        let end = now + Duration::from_secs(60);
        let mut rest = Rest::default();
        while now < end {
            rest.died();
            if rest.left(now).is_none() {
                rest.ends(now);
                rest.tries(now);
                attempts += 1;
                now += took;
                rest.begin(now);
            }
            now += MS;
        }
        assert!((40..=60).contains(&attempts), "half of the time at most: {attempts}");
    }

    #[test]
    fn an_attempt_that_was_for_what_died_rests_long_when_it_fails() {
        let begun = Instant::now();
        let mut rest = failed(begun, MS);
        rest.died();
        assert!(rest.ends(begun + REST_MAX));
        rest.tries(begun + REST_MAX);
        rest.begin(begun + REST_MAX + MS);
        assert_eq!(rest.left(begun + REST_MAX + MS), Some(REST_MAX));
    }
}
