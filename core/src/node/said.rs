//! What is said to people of many ranges that share a cause, a disk as a rule: one line, with how many and the first few of
//! them. Each by itself is said at the level DEBUG.

use super::Inner;
use crate::types::RangeId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

/// Topics that are named beside the first.
const NAMED: usize = 3;
/// How long the same is not logged again; what comes meanwhile is counted.
const REST: Duration = Duration::from_secs(10);

/// A range or a whole topic, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    topic: String,
    range: Option<RangeId>,
}

impl Named {
    pub(super) fn topic(topic: &str) -> Named {
        Named { topic: topic.to_owned(), range: None }
    }

    pub(super) fn range(topic: &str, range: RangeId) -> Named {
        Named { topic: topic.to_owned(), range: Some(range) }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic '{}'", self.topic)?;
        self.range.map_or(Ok(()), |range| write!(f, " range {range}"))
    }
}

/// Ranges, or topics, that share a cause.
#[derive(Debug, Default)]
pub(super) struct Shared(BTreeSet<Named>);

impl Shared {
    pub(super) fn add(&mut self, one: Named) {
        self.0.insert(one);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        write!(f, "{first}")?;
        let more = self.0.len() - 1;
        if more == 0 {
            return Ok(());
        }
        let what = if first.range.is_some() { "range" } else { "topic" };
        write!(f, " and {more} more {what}{}", if more > 1 { "s" } else { "" })?;
        let topics: BTreeSet<&str> = self.0.iter().map(|one| one.topic.as_str()).collect();
        let others: Vec<String> =
            topics.iter().filter(|t| **t != first.topic).take(NAMED).map(|t| format!("'{t}'")).collect();
        if others.is_empty() {
            return Ok(());
        }
        let cut = if topics.len() > 1 + NAMED { ", …" } else { "" };
        write!(f, " ({}{cut})", others.join(", "))
    }
}

/// Puts together what has a cause in common: a line for each cause, in the order of the first that has it.
///
/// Each row: who, its cause, and what is said of it, of which one stands for all that share the cause.
pub(super) fn by_cause(rows: impl IntoIterator<Item = (Named, String, String)>) -> Vec<String> {
    let mut causes: BTreeMap<String, (Shared, Option<(Named, String)>)> = BTreeMap::new();
    for (who, cause, why) in rows {
        let (shared, first) = causes.entry(cause).or_default();
        shared.add(who.clone());
        if first.as_ref().is_none_or(|(first, _)| who < *first) {
            *first = Some((who, why));
        }
    }
    let whole = |(shared, first): (Shared, Option<(Named, String)>)| {
        first.map(|(who, why)| (who, format!("{shared}: {why}")))
    };
    let mut lines: Vec<(Named, String)> = causes.into_values().filter_map(whole).collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// What is logged of ranges while a node runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Takes no more writes.
    Blocked,
    /// Went on in another segment.
    GoesOn,
    /// Its segment should have ended.
    NotRolled,
    /// Retention found what may go, and it was not recorded.
    NotRaised,
    /// Segments that nobody needs stay.
    NotDropped,
    /// Compaction was begun and given up.
    NotCompacted,
    /// Recorded, and not served yet.
    NotOpened,
}

#[derive(Debug, Default)]
struct Gathered {
    of: Shared,
    /// Of the first of them.
    why: String,
    said: Option<Instant>,
}

/// What is to be logged with the next look.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<BTreeMap<Event, Gathered>>);

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    event: Event,
    of: String,
    count: usize,
    why: String,
}

impl Log {
    fn note(&self, event: Event, who: Named, why: &str) {
        let mut all = self.0.lock();
        let gathered = all.entry(event).or_default();
        if gathered.of.len() == 0 {
            why.clone_into(&mut gathered.why);
        }
        gathered.of.add(who);
    }

    /// What is due.
    fn due(&self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        for (event, gathered) in self.0.lock().iter_mut() {
            let rests = gathered.said.is_some_and(|at| now.saturating_duration_since(at) < REST);
            if gathered.of.len() == 0 || rests {
                continue;
            }
            gathered.said = Some(now);
            let of = std::mem::take(&mut gathered.of);
            let why = std::mem::take(&mut gathered.why);
            lines.push(Line { event: *event, of: of.to_string(), count: of.len(), why });
        }
        lines
    }
}

impl Inner {
    /// Takes note of what befell a range or a topic: logged with all others that the same befell.
    pub(super) fn note(&self, event: Event, who: Named, why: &str) {
        tracing::debug!(%who, why, ?event, "noted");
        self.said.note(event, who, why);
    }

    /// Logs what was noted, unless the same was said just now.
    pub(super) fn say(&self) {
        self.said.due(Instant::now()).into_iter().for_each(Line::log);
    }
}

impl Line {
    fn log(self) {
        let Line { event, of, count, why } = self;
        match event {
            Event::Blocked => tracing::error!(count, why, "blocked, takes no more writes: {of}"),
            Event::GoesOn => tracing::info!(count, "goes on in another segment: {of}"),
            Event::NotRolled => tracing::warn!(count, why, "not rolled, tried again: {of}"),
            Event::NotRaised => tracing::warn!(count, why, "log starts not raised, tried again: {of}"),
            Event::NotDropped => tracing::warn!(count, why, "segments not dropped, tried again: {of}"),
            Event::NotCompacted => tracing::info!(count, why, "compaction given up, begun again: {of}"),
            Event::NotOpened => tracing::warn!(count, why, "recorded and not opened, tried again: {of}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(topic: usize, range: u32) -> Named {
        Named::range(&format!("t{topic}"), RangeId(range))
    }

    #[test]
    fn what_has_a_cause_in_common_is_one_line_and_what_has_not_is_said_as_it_is() {
        let disk = |n| (named(n, 0), "disk".to_owned(), format!("segment {n} is on a dead disk"));
        let rows = (0..10).rev().map(disk).chain([(named(5, 1), "damage".into(), "damaged".into())]);
        let expected = [
            "topic 't0' range r0 and 9 more ranges ('t1', 't2', 't3', …): segment 0 is on a dead disk",
            "topic 't5' range r1: damaged",
        ];
        assert_eq!(by_cause(rows), expected);
        let topics = [Named::topic("b"), Named::topic("a")].map(|who| (who, "c".into(), "thin".into()));
        assert_eq!(by_cause(topics), ["topic 'a' and 1 more topic ('b'): thin"]);
        let ranges = [named(0, 1), named(0, 0)].map(|who| (who, "c".into(), "why".into()));
        assert_eq!(by_cause(ranges), ["topic 't0' range r0 and 1 more range: why"]);
        assert_eq!(by_cause([]), Vec::<String>::new());
    }

    #[test]
    fn what_befalls_many_ranges_is_logged_once_and_what_comes_soon_after_is_counted() {
        let (log, now) = (Log::default(), Instant::now());
        (0..1000).for_each(|n| log.note(Event::NotRolled, named(n, 0), "disk full"));
        log.note(Event::Blocked, named(7, 0), "dead");
        let lines = log.due(now);
        let counts: Vec<(Event, usize)> = lines.iter().map(|line| (line.event, line.count)).collect();
        assert_eq!(counts, [(Event::Blocked, 1), (Event::NotRolled, 1000)]);
        assert_eq!(lines[1].why, "disk full");
        for soon in 1..10 {
            log.note(Event::NotRolled, named(soon, 0), "disk full");
            assert!(log.due(now + Duration::from_secs(soon as u64)).is_empty());
        }
        let later = log.due(now + REST);
        assert_eq!((later.len(), later[0].count), (1, 9));
        assert!(log.due(now + 3 * REST).is_empty());
    }
}
