//! What partitions of one topic say of a trouble that many of them meet, such as a full disk: one line for all, with how many
//! and the first few of them, when it begins and when all of them are over it. Each by itself is said at the level DEBUG.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long others have to join who meet the same.
const GATHER: Duration = Duration::from_secs(1);
/// How long it is not said again that a trouble began which comes and goes.
const REST: Duration = Duration::from_secs(60);
/// Partitions that are named.
const NAMED: usize = 5;

/// What keeps a partition from its work.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// Its log takes no records; what is stored is answered.
    RecordsNothing,
    /// What is stored cannot be loaded.
    NotLoaded,
}

/// The troubles of a topic's partitions; shared by them.
#[derive(Debug, Default)]
pub struct Together {
    topic: String,
    troubles: Mutex<BTreeMap<Trouble, Met>>,
}

impl Together {
    /// Of a topic's partitions, none of which is in trouble.
    pub fn of(topic: &str) -> Arc<Together> {
        Arc::new(Together { topic: topic.to_owned(), troubles: Mutex::default() })
    }
}

/// A partition among those that speak together; alone by default.
#[derive(Clone, Debug, Default)]
pub struct Voice {
    /// All of them.
    pub together: Arc<Together>,
    /// Which of them it is.
    pub partition: i32,
}

impl Voice {
    /// Notes whether the partition is in a trouble, and why. To be called again and again while it is.
    pub(super) fn note(&self, trouble: Trouble, why: Option<&str>, now: Instant) {
        let (line, topic) = {
            let mut troubles = self.together.troubles.lock();
            let met = troubles.entry(trouble).or_default();
            if met.note(self.partition, why, now) {
                tracing::debug!(
                    topic = self.together.topic,
                    partition = self.partition,
                    ?trouble,
                    why,
                    "changed"
                );
            }
            (met.line(now), self.together.topic.as_str())
        };
        match (trouble, line) {
            (_, None) => {}
            (Trouble::RecordsNothing, Some(Line::Begun { count, which, why })) => {
                tracing::warn!(topic, count, which, why, "coordinators record nothing until their logs do");
            }
            (Trouble::RecordsNothing, Some(Line::Over { count })) => {
                tracing::info!(topic, count, "coordinators record again");
            }
            (Trouble::NotLoaded, Some(Line::Begun { count, which, why })) => {
                tracing::warn!(topic, count, which, why, "coordinators cannot be loaded");
            }
            (Trouble::NotLoaded, Some(Line::Over { count })) => {
                tracing::info!(topic, count, "coordinators are loaded");
            }
        }
    }
}

/// Who is in one trouble.
#[derive(Debug, Default)]
struct Met {
    /// Each with why.
    now: BTreeMap<i32, String>,
    /// As was said last.
    told: BTreeSet<i32>,
    /// When the first change came that was not said.
    changed: Option<Instant>,
    /// When it was said last that it began.
    said: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Begun { count: usize, which: String, why: String },
    Over { count: usize },
}

impl Met {
    /// Whether that is a change.
    fn note(&mut self, partition: i32, why: Option<&str>, now: Instant) -> bool {
        let changed = match why {
            Some(why) => self.now.insert(partition, why.to_owned()).is_none(),
            None => self.now.remove(&partition).is_some(),
        };
        if changed {
            self.changed.get_or_insert(now);
        }
        changed
    }

    /// What is due to be said.
    fn line(&mut self, now: Instant) -> Option<Line> {
        let changed = self.changed?;
        if self.now.is_empty() {
            self.changed = None;
            let count = std::mem::take(&mut self.told).len();
            return (count > 0).then_some(Line::Over { count });
        }
        let due = self.said.map_or(changed + GATHER, |said| (said + REST).max(changed + GATHER));
        if now < due {
            return None;
        }
        self.changed = None;
        if self.now.keys().all(|partition| self.told.contains(partition)) {
            return None; // some are over it: said when all are
        }
        self.said = Some(now);
        self.told.extend(self.now.keys());
        let mut which: Vec<String> = self.now.keys().take(NAMED).map(ToString::to_string).collect();
        which.extend((self.now.len() > NAMED).then(|| "…".to_owned()));
        let why = self.now.values().next().cloned().unwrap_or_default();
        Some(Line::Begun { count: self.now.len(), which: which.join(", "), why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(begun: Instant, ms: u64) -> Instant {
        begun + Duration::from_millis(ms)
    }

    #[test]
    fn fifty_that_stop_and_go_on_say_so_in_two_lines() {
        let (mut met, begun) = (Met::default(), Instant::now());
        let mut lines = Vec::new();
        for tick in 0..30 {
            for partition in 0..50 {
                met.note(
                    partition,
                    Some("disk full: 5 bytes left"),
                    ms(begun, tick * 100 + partition as u64),
                );
                lines.extend(met.line(ms(begun, tick * 100 + 50)));
            }
        }
        let (which, why) = ("0, 1, 2, 3, 4, …".to_owned(), "disk full: 5 bytes left".to_owned());
        assert_eq!(lines, [Line::Begun { count: 50, which, why }]);
        lines.clear();
        for partition in 0..50 {
            met.note(partition, None, ms(begun, 4000));
            lines.extend(met.line(ms(begun, 4000)));
        }
        assert_eq!(lines, [Line::Over { count: 50 }]);
    }

    #[test]
    fn what_comes_and_goes_is_said_once_a_minute_at_most() {
        let (mut met, begun) = (Met::default(), Instant::now());
        let (mut begins, mut ends) = (0, 0);
        for tick in 0..3000 {
            // Two seconds full, two seconds not, for five minutes.
            met.note(1, (tick / 20 % 2 == 0).then_some("full"), ms(begun, tick * 100));
            match met.line(ms(begun, tick * 100)) {
                Some(Line::Begun { .. }) => begins += 1,
                Some(Line::Over { .. }) => ends += 1,
                None => {}
            }
        }
        assert!((4..=5).contains(&begins), "{begins}");
        assert_eq!(begins, ends);
    }

    #[test]
    fn a_moment_is_not_said_and_those_that_come_later_are() {
        let (mut met, begun) = (Met::default(), Instant::now());
        met.note(3, Some("full"), begun);
        met.note(3, None, ms(begun, 500));
        assert_eq!(met.line(ms(begun, 500)), None);
        met.note(3, Some("full"), ms(begun, 600));
        let first = met.line(ms(begun, 1600));
        assert_eq!(first, Some(Line::Begun { count: 1, which: "3".into(), why: "full".into() }));
        met.note(4, Some("full"), ms(begun, 1700));
        assert_eq!(met.line(ms(begun, 9000)), None);
        let later = met.line(ms(begun, 61_600));
        assert_eq!(later, Some(Line::Begun { count: 2, which: "3, 4".into(), why: "full".into() }));
        met.note(3, None, ms(begun, 62_000));
        assert_eq!(met.line(ms(begun, 62_000)), None);
        met.note(4, None, ms(begun, 63_000));
        assert_eq!(met.line(ms(begun, 63_000)), Some(Line::Over { count: 2 }));
    }
}
