//! Whether an unfinished frame comes fast enough. Pure: it is told the time.
//!
//! A frame has the idle limit to become whole, and again as long as what came within each such stretch makes a pace that a slow
//! link keeps. So a connection whose bytes drip is no busier than an idle one, and how long a frame may take is bounded.

use std::time::{Duration, Instant};

/// Bytes per second below which a frame makes no progress.
pub(super) const PACE_MIN: u64 = 512;

/// Of the frame that is coming, while it is the client's turn to send.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<Stretch>);

#[derive(Debug)]
struct Stretch {
    since: Instant,
    came: u64,
}

impl Pace {
    /// A part of a frame is here and more is read.
    pub(super) fn waits(&mut self, now: Instant) {
        self.0.get_or_insert(Stretch { since: now, came: 0 });
    }

    /// So many bytes came.
    pub(super) fn came(&mut self, bytes: usize) {
        if let Some(stretch) = &mut self.0 {
            stretch.came = stretch.came.saturating_add(bytes as u64);
        }
    }

    /// A frame became whole, or nothing is read for a reason of ours.
    pub(super) fn ends(&mut self) {
        self.0 = None;
    }

    /// Whether the frame has had `limit` and too little came in it; else another such stretch begins.
    pub(super) fn is_too_slow(&mut self, limit: Duration, now: Instant) -> bool {
        let Some(stretch) = &mut self.0 else { return false };
        let took = now.saturating_duration_since(stretch.since);
        if took < limit {
            return false;
        }
        let least = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).saturating_mul(PACE_MIN) / 1000;
        if stretch.came < least {
            return true;
        }
        *stretch = Stretch { since: now, came: 0 };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Feeds `bytes` each second: after how many the frame is given up, of two hours.
    fn ended(bytes: u64) -> Option<u64> {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        pace.waits(begun);
        (1..7200).find(|second| {
            let now = begun + Duration::from_secs(*second);
            pace.came(usize::try_from(bytes).unwrap());
            pace.waits(now);
            pace.is_too_slow(LIMIT, now)
        })
    }

    #[test]
    fn what_drips_has_the_idle_limit_and_a_slow_link_all_the_time_that_it_needs() {
        assert_eq!((ended(0), ended(1), ended(PACE_MIN - 1)), (Some(60), Some(60), Some(60)));
        assert_eq!((ended(PACE_MIN), ended(100 * PACE_MIN)), (None, None));
    }

    #[test]
    fn each_stretch_is_judged_by_itself_and_time_of_ours_is_none_of_the_clients() {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        pace.waits(begun);
        pace.came(1 << 20);
        assert!(!pace.is_too_slow(LIMIT, begun + LIMIT));
        assert!(pace.is_too_slow(LIMIT, begun + 2 * LIMIT), "what came before does not count");
        pace.ends();
        assert!(!pace.is_too_slow(LIMIT, begun + 3 * LIMIT));
        pace.waits(begun + 3 * LIMIT);
        assert!(!pace.is_too_slow(LIMIT, begun + 3 * LIMIT + LIMIT / 2));
        assert!(pace.is_too_slow(LIMIT, begun + 4 * LIMIT));
    }
}
