//! Where a group is to go on: from what was asked and what is known of the partitions to an offset of each. Pure.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A partition by its topic's name.
pub(super) type Partition = (String, i32);

/// Where to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// The first record that is there.
    Earliest,
    /// The end.
    Latest,
    /// Where the group stands.
    Current,
    /// An offset.
    Offset(i64),
    /// The first record of this time or later, ms since 1970.
    Time(i64),
    /// So many records on.
    Shift(i64),
}

/// A topic, or some of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Its name.
    pub(super) topic: String,
    /// `None`: all.
    pub(super) partitions: Option<BTreeSet<i32>>,
}

/// What is known of a partition.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// First offset that is there.
    pub(super) start: i64,
    /// Offset of the next record.
    pub(super) end: i64,
    /// Of [`To::Time`]: the offset of that time; `None`: no record is as late.
    pub(super) at_time: Option<i64>,
}

/// One partition's reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Move {
    /// The topic.
    pub(super) topic: String,
    /// The partition.
    pub(super) partition: i32,
    /// Where the group stands.
    pub(super) from: Option<i64>,
    /// Where it is to go on.
    pub(super) to: i64,
    /// Why that is not what was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// There is nothing to shift from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the group stands nowhere in partition {1} of topic {0}, so there is nothing to shift from")]
pub(super) struct NoOffset(String, i32);

/// An offset for each partition, in their order.
///
/// Errors: a shift from where the group does not stand.
pub(super) fn plan(
    to: To,
    partitions: &[Partition],
    committed: &BTreeMap<Partition, i64>,
    known: &BTreeMap<Partition, Bounds>,
) -> Result<Vec<Move>, NoOffset> {
    let row = |partition: &Partition| {
        let from = committed.get(partition).copied();
        let bounds = known.get(partition).copied().unwrap_or_default();
        let (to, note) = match to {
            To::Earliest => (bounds.start, None),
            To::Latest => (bounds.end, None),
            To::Current => (from.unwrap_or(bounds.end), None),
            To::Offset(offset) => within(offset, bounds),
            To::Time(_) => match bounds.at_time {
                Some(offset) => (offset, None),
                None => (bounds.end, Some(format!("no record is as late: the end, {}", bounds.end))),
            },
            To::Shift(by) => {
                let from = from.ok_or_else(|| NoOffset(partition.0.clone(), partition.1))?;
                within(from.saturating_add(by), bounds)
            }
        };
        Ok(Move { topic: partition.0.clone(), partition: partition.1, from, to, note })
    };
    partitions.iter().map(row).collect()
}

fn within(offset: i64, Bounds { start, end, .. }: Bounds) -> (i64, Option<String>) {
    if offset < start {
        return (start, Some(format!("{offset} is before the first record: {start}")));
    }
    if offset > end {
        return (end, Some(format!("{offset} is beyond the end: {end}")));
    }
    (offset, None)
}

/// `TOPIC` or `TOPIC:P,P…`.
pub(super) fn selection(text: &str) -> Result<Selection, String> {
    let (topic, partitions) = match text.split_once(':') {
        None => (text, None),
        Some((topic, list)) => {
            let numbers = list.split(',').map(|number| number.trim().parse::<i32>().ok().filter(|n| *n >= 0));
            let numbers: Option<BTreeSet<i32>> = numbers.collect();
            let wrong = || format!("'{text}' is not TOPIC or TOPIC:P,P…, such as orders:0,3");
            (topic, Some(numbers.ok_or_else(wrong)?))
        }
    };
    if topic.is_empty() {
        return Err(format!("'{text}' names no topic"));
    }
    Ok(Selection { topic: topic.to_owned(), partitions })
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.topic)?;
        let Some(partitions) = &self.partitions else { return Ok(()) };
        let numbers: Vec<String> = partitions.iter().map(i32::to_string).collect();
        write!(f, ":{}", numbers.join(","))
    }
}

/// A time, UTC where it names no offset from it; ms since 1970.
pub(super) fn datetime(text: &str) -> Result<i64, String> {
    let zoned = text.parse::<jiff::Timestamp>();
    let local = || {
        let at: jiff::civil::DateTime = text.parse().ok()?;
        at.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp())
    };
    let at = zoned.ok().or_else(local);
    at.map(jiff::Timestamp::as_millisecond).ok_or_else(|| {
        format!("'{text}' is not a time such as 2026-03-01T06:30:00 or 2026-03-01T06:30:00.000+02:00")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(to: To, from: Option<i64>, bounds: Bounds) -> (i64, Option<String>) {
        let partition = ("t".to_owned(), 0);
        let committed = from.map(|from| (partition.clone(), from)).into_iter().collect();
        let known = BTreeMap::from([(partition.clone(), bounds)]);
        let row = plan(to, &[partition], &committed, &known).expect("possible").remove(0);
        assert_eq!(row.from, from);
        (row.to, row.note)
    }

    /// The offsets are those that the reference's tool was seen to choose.
    #[test]
    fn offsets_are_within_the_partition_and_said_to_be_others_where_they_are() {
        let bounds = Bounds { start: 3, end: 9, at_time: None };
        let noted = |(to, note): (i64, Option<String>)| (to, note.is_some());
        for (to, from, expected) in [
            (To::Earliest, Some(5), (3, false)),
            (To::Latest, Some(5), (9, false)),
            (To::Current, Some(5), (5, false)),
            (To::Current, None, (9, false)),
            (To::Offset(4), None, (4, false)),
            (To::Offset(0), None, (3, true)),
            (To::Offset(100), None, (9, true)),
            (To::Shift(2), Some(5), (7, false)),
            (To::Shift(-9), Some(5), (3, true)),
            (To::Shift(i64::MAX), Some(5), (9, true)),
            (To::Time(1), Some(5), (9, true)),
        ] {
            assert_eq!(noted(planned(to, from, bounds)), expected, "{to:?} from {from:?}");
        }
        assert_eq!(planned(To::Time(1), None, Bounds { at_time: Some(6), ..bounds }), (6, None));
    }

    #[test]
    fn nothing_is_shifted_from_nowhere() {
        let partition = ("t".to_owned(), 4);
        let error = plan(To::Shift(1), &[partition], &BTreeMap::new(), &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("partition 4 of topic t"), "{error}");
    }

    #[test]
    fn partitions_are_chosen_by_topic_and_number() {
        let all = Selection { topic: "t".into(), partitions: None };
        assert_eq!(selection("t"), Ok(all));
        let some = Selection { topic: "t".into(), partitions: Some(BTreeSet::from([0, 3])) };
        assert_eq!(selection("t:3, 0"), Ok(some));
        for wrong in ["", ":0", "t:", "t:x", "t:-1", "t:1,"] {
            assert!(selection(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_utc_unless_they_say_otherwise() {
        for (text, ms) in [
            ("1970-01-01T00:00:01", 1_000),
            ("1970-01-01T00:00:01.5", 1_500),
            ("1970-01-01T00:00:01Z", 1_000),
            ("1970-01-01T02:00:00+02:00", 0),
            ("1970-01-02", 86_400_000),
        ] {
            assert_eq!(datetime(text), Ok(ms), "{text}");
        }
        for wrong in ["", "yesterday", "2026-13-01T00:00:00", "1000"] {
            assert!(datetime(wrong).is_err(), "{wrong}");
        }
    }
}
