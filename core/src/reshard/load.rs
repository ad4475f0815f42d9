//! How loaded a range is: rates over a window, from counters that only grow. Pure: told what the counters are and when.
//!
//! ```text
//!  samples   |----|----|----|----|----|----|      a slot lies between two samples; the window holds SLOTS of them
//!  mean      over all of them
//!  steady    without the busiest slot: a burst alone raises it not
//!  peak      the busiest slot: a quiet moment alone lowers it not
//! ```

use std::collections::VecDeque;

/// Slots of a window.
pub const SLOTS: i64 = 6;

/// What was appended: a partition's counter, or the difference of two.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Payload bytes.
    pub bytes: u64,
    /// Records.
    pub records: u64,
}

/// Appends per second.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Payload bytes per second.
    pub bytes: u64,
    /// Records per second.
    pub records: u64,
}

/// A range's load over the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeLoad {
    /// How long it was measured, ms; below the window while it is new, or the program is.
    pub measured_ms: i64,
    /// Over the window.
    pub mean: Rate,
    /// Over the window without its busiest slot.
    pub steady: Rate,
    /// In the busiest slot.
    pub peak: Rate,
    /// Bytes that the range stores; `None`: not known yet, as just after a start.
    pub stored_bytes: Option<u64>,
    /// What each partition got over the last one or two windows, in the span's order: for their shares.
    pub partitions: Vec<Counts>,
}

impl Counts {
    fn since(self, before: Counts) -> Counts {
        Counts {
            bytes: self.bytes.saturating_sub(before.bytes),
            records: self.records.saturating_sub(before.records),
        }
    }

    /// Both together.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            bytes: self.bytes.saturating_add(other.bytes),
            records: self.records.saturating_add(other.records),
        }
    }

    fn per(self, ms: i64) -> Rate {
        Rate { bytes: per_second(self.bytes, ms), records: per_second(self.records, ms) }
    }
}

fn per_second(count: u64, ms: i64) -> u64 {
    let rate = u128::from(count) * 1000 / u128::from(ms.max(1).unsigned_abs());
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The rate over all slots but the busiest; of a single slot its own.
fn steady(slots: &[(i64, Counts)], of: impl Fn(&Counts) -> u64) -> u64 {
    let rate = |(ms, counts): &(i64, Counts)| per_second(of(counts), *ms);
    let busiest = (0..slots.len()).max_by_key(|i| rate(&slots[*i])).filter(|_| slots.len() > 1);
    let rest = slots.iter().enumerate().filter(|(i, _)| Some(*i) != busiest).map(|(_, slot)| slot);
    let (ms, count) = rest.fold((0i64, 0u64), |(ms, n), (slot_ms, counts)| {
        (ms.saturating_add(*slot_ms), n.saturating_add(of(counts)))
    });
    per_second(count, ms)
}

impl Rate {
    /// Both together.
    pub fn plus(self, other: Rate) -> Rate {
        Rate {
            bytes: self.bytes.saturating_add(other.bytes),
            records: self.records.saturating_add(other.records),
        }
    }

    fn max(self, other: Rate) -> Rate {
        Rate { bytes: self.bytes.max(other.bytes), records: self.records.max(other.records) }
    }
}

/// What a range's counters were at one time.
#[derive(Copy, Clone, Debug)]
struct Sample {
    at_ms: i64,
    total: Counts,
}

/// Measures one range. Memory: two counters per partition.
#[derive(Clone, Debug)]
pub struct Meter {
    window_ms: i64,
    samples: VecDeque<Sample>,
    /// Partitions' counters one to two windows ago, when they were so, and up to one window ago.
    before: Vec<Counts>,
    between: Vec<Counts>,
    between_at_ms: i64,
    /// Partitions' counters at the last sample.
    last: Vec<Counts>,
}

impl Meter {
    /// A meter of a window, at least [`SLOTS`] ms.
    pub fn new(window_ms: i64) -> Meter {
        Meter {
            window_ms: window_ms.max(SLOTS),
            samples: VecDeque::new(),
            before: Vec::new(),
            between: Vec::new(),
            between_at_ms: 0,
            last: Vec::new(),
        }
    }

    /// Its window, ms.
    pub fn window_ms(&self) -> i64 {
        self.window_ms
    }

    /// Whether a sample is due: once per slot.
    pub fn due(&self, now_ms: i64) -> bool {
        let last = self.samples.back();
        last.is_none_or(|last| now_ms.saturating_sub(last.at_ms) >= self.window_ms / SLOTS)
    }

    /// Takes a sample: the counters of the range's partitions, in the span's order. One that is not later than the last is
    /// passed over; the clock was set back.
    pub fn observe(&mut self, now_ms: i64, counters: Vec<Counts>) {
        if self.samples.back().is_some_and(|last| now_ms <= last.at_ms) {
            return;
        }
        let total = counters.iter().fold(Counts::default(), |sum, counts| sum.plus(*counts));
        self.samples.push_back(Sample { at_ms: now_ms, total });
        // The oldest that is kept is the youngest that is a whole window old.
        while self.samples.get(1).is_some_and(|second| now_ms - second.at_ms >= self.window_ms) {
            self.samples.pop_front();
        }
        if self.between.len() != counters.len() {
            (self.before, self.between, self.between_at_ms) = (counters.clone(), counters.clone(), now_ms);
        } else if now_ms - self.between_at_ms >= self.window_ms {
            self.before = std::mem::replace(&mut self.between, counters.clone());
            self.between_at_ms = now_ms;
        }
        self.last = counters;
    }

    /// What was measured up to the last sample.
    pub fn load(&self, stored_bytes: Option<u64>) -> RangeLoad {
        let slots = self.samples.iter().zip(self.samples.iter().skip(1));
        let slots: Vec<(i64, Counts)> =
            slots.map(|(from, to)| (to.at_ms - from.at_ms, to.total.since(from.total))).collect();
        let measured_ms = slots.iter().map(|(ms, _)| ms).sum();
        let all = slots.iter().fold(Counts::default(), |sum, (_, counts)| sum.plus(*counts));
        RangeLoad {
            measured_ms,
            mean: all.per(measured_ms),
            steady: Rate {
                bytes: steady(&slots, |counts| counts.bytes),
                records: steady(&slots, |counts| counts.records),
            },
            peak: slots.iter().map(|(ms, counts)| counts.per(*ms)).fold(Rate::default(), Rate::max),
            stored_bytes,
            partitions: self.last.iter().zip(&self.before).map(|(now, then)| now.since(*then)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(bytes: u64, records: u64) -> Counts {
        Counts { bytes, records }
    }

    /// A meter of a window of 6 s, told each second what was appended in it.
    fn measured(seconds: &[u64]) -> RangeLoad {
        let mut meter = Meter::new(6000);
        let mut total = counts(1 << 40, 1 << 30);
        meter.observe(0, vec![total]);
        for (i, bytes) in seconds.iter().enumerate() {
            total = total.plus(counts(*bytes, bytes / 100));
            let now = 1000 * (i as i64 + 1);
            assert!(!meter.due(now - 1) && meter.due(now));
            meter.observe(now, vec![total]);
        }
        meter.load(Some(0))
    }

    #[test]
    fn rates_are_of_the_window_alone() {
        let load = measured(&[9000, 9000, 600, 600, 600, 600, 600, 600]);
        assert_eq!(load.measured_ms, 6000);
        assert_eq!(load.mean, Rate { bytes: 600, records: 6 });
        assert_eq!((load.steady, load.peak), (load.mean, load.mean));
    }

    #[test]
    fn a_new_meter_says_how_little_it_knows() {
        assert_eq!(
            Meter::new(6000).load(Some(7)),
            RangeLoad { stored_bytes: Some(7), ..RangeLoad::default() }
        );
        assert_eq!(measured(&[]).measured_ms, 0);
        let load = measured(&[600, 600]);
        assert_eq!((load.measured_ms, load.mean.bytes), (2000, 600));
    }

    #[test]
    fn a_burst_raises_the_peak_and_not_the_steady_rate() {
        let load = measured(&[100, 100, 100, 100_000, 100, 100]);
        assert_eq!((load.steady.bytes, load.peak.bytes), (100, 100_000));
        assert_eq!(load.mean.bytes, 100_500 / 6);
    }

    #[test]
    fn shares_of_partitions_are_of_the_last_two_windows_at_most() {
        let mut meter = Meter::new(6000);
        let at = |now: i64| vec![counts(10 * now as u64, 0), counts(if now < 20_000 { 0 } else { 7 }, 0)];
        for now in (0..=40_000).step_by(1000) {
            meter.observe(now, at(now));
        }
        let shares = meter.load(Some(0)).partitions;
        assert!((60_000..=120_000).contains(&shares[0].bytes), "{shares:?}");
        assert_eq!(shares[1], counts(0, 0), "long ago");
    }

    #[test]
    fn a_clock_that_is_set_back_and_counters_that_fall_do_no_harm() {
        let mut meter = Meter::new(6000);
        meter.observe(5000, vec![counts(500, 5)]);
        meter.observe(4000, vec![counts(900, 9)]);
        meter.observe(6000, vec![counts(400, 4)]);
        assert_eq!(meter.load(Some(0)).mean, Rate::default());
        meter.observe(i64::MAX, vec![counts(u64::MAX, u64::MAX), counts(u64::MAX, 0)]);
        assert!(meter.load(Some(0)).measured_ms > 0);
        assert!(!meter.due(i64::MIN));
    }
}
