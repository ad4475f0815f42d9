//! Times in buckets: exact to 1 in 32, whatever their number.

use std::time::Duration;

/// Buckets per power of two.
const PARTS: u64 = 32;

/// Counts of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; (64 * PARTS) as usize], total: 0, max: Duration::ZERO }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn add(&mut self, time: Duration) {
        self.add_many(time, 1);
    }

    /// Counts one time `n` times.
    pub fn add_many(&mut self, time: Duration, n: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count += n;
        }
        self.total += n;
        self.max = self.max.max(time);
    }

    /// Counts another's times too.
    pub fn join(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The time that `part` (0 to 1) of all times are at or below; zero when there are none.
    pub fn at(&self, part: f64) -> Duration {
        let wanted = ((self.total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(upper(bucket as u64)).min(self.max);
            }
        }
        self.max
    }

    /// The largest time.
    pub fn max(&self) -> Duration {
        self.max
    }
}

/// Values below `PARTS` have a bucket each; above, each power of two has `PARTS`.
fn bucket(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let power = u64::from(nanos.ilog2()) - u64::from(PARTS.ilog2());
    ((power + 1) * PARTS + ((nanos >> power) - PARTS)) as usize
}

/// The largest value of a bucket.
fn upper(bucket: u64) -> u64 {
    if bucket < PARTS {
        return bucket;
    }
    let (power, part) = (bucket / PARTS - 1, bucket % PARTS);
    let next = u128::from(PARTS + part + 1) << power;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket_within_one_part(nanos in any::<u64>()) {
            let bucket = bucket(nanos) as u64;
            prop_assert!(bucket < 64 * PARTS);
            prop_assert!(nanos <= upper(bucket));
            prop_assert!(u128::from(upper(bucket) - nanos) * u128::from(PARTS) <= u128::from(nanos.max(PARTS)) + u128::from(PARTS));
            if bucket > 0 {
                prop_assert!(nanos > upper(bucket - 1));
            }
        }
    }

    #[test]
    fn parts_of_known_times() {
        let mut times = Histogram::default();
        for ms in 1..=1000 {
            times.add(Duration::from_millis(ms));
        }
        let near = |part: f64, ms: f64| {
            let got = times.at(part).as_secs_f64() * 1e3;
            assert!((got - ms).abs() <= ms / 32.0, "{part}: {got} is not {ms}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(0.999, 999.0);
        assert_eq!(times.max(), Duration::from_secs(1));
        assert_eq!(Histogram::default().at(0.5), Duration::ZERO);
    }
}
