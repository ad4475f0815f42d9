//! A topic's ranges in sentences. Pure.

use super::shapes::{OperationDescription, RangeExplained};
use rangeway_core::api::TopicView;
use std::collections::BTreeMap;

/// Partitions of a range whose ends are told one by one.
const ENDS_TOLD: usize = 16;

/// What there is to tell.
#[derive(Copy, Clone, Debug)]
pub struct Look<'a> {
    /// The topic.
    pub topic: &'a TopicView,
    /// Its ranges.
    pub ranges: &'a [RangeExplained],
    /// The split or merge that was begun last.
    pub last_reshard: Option<&'a OperationDescription>,
    /// Broker time.
    pub now_ms: i64,
}

/// The topic, each range, where its partitions end, which range came from which, the last split or merge.
pub fn sentences(look: Look<'_>) -> Vec<String> {
    let Look { topic, ranges, last_reshard, now_ms } = look;
    let all: u64 = ranges.iter().map(|r| r.range.bytes).sum();
    let mut lines = vec![format!(
        "{} has {} in {}, each range one log on drive {}.",
        topic.name,
        counted(i64::from(topic.partitions), "partition"),
        counted(i64::try_from(topic.ranges.len()).unwrap_or(i64::MAX), "active range"),
        topic.drive
    )];
    for range in ranges {
        lines.push(of_range(topic, range, all, now_ms));
        lines.extend(ends(range));
    }
    lines.extend(lineage(ranges));
    lines.push(last(last_reshard, now_ms));
    lines
}

fn of_range(topic: &TopicView, explained: &RangeExplained, all: u64, now_ms: i64) -> String {
    let range = &explained.range;
    let share = if all == 0 { 0.0 } else { 100.0 * range.bytes as f64 / all as f64 };
    let took = match (explained.records_per_second, explained.bytes_per_second) {
        (Some(records), Some(bytes)) => format!(", {records:.0} records/s and {bytes:.0} bytes/s"),
        _ => String::new(),
    };
    let head = explained.head.map_or_else(String::new, |head| {
        let length = head.tail.saturating_sub(head.base);
        let entries = if length == 1 { "1 entry".to_owned() } else { format!("{length} entries") };
        format!(", the open one with {entries} and {} old", age(now_ms.saturating_sub(head.opened_at)))
    });
    let oldest = explained
        .oldest_opened_at
        .map_or_else(String::new, |at| format!(", the oldest opened {} ago", age(now_ms.saturating_sub(at))));
    format!(
        "Range {} ({}) holds partitions {} to {}: {}{took}; {} bytes in {} ({share:.0} % of the topic){head}{oldest}; {}.{}",
        range.id,
        range.state,
        range.first,
        range.last,
        led(topic, range.id),
        range.bytes,
        counted(i64::try_from(range.segments).unwrap_or(i64::MAX), "segment"),
        origin(&range.parents),
        fate(&range.children),
    )
}

/// Who leads a range, and in which epochs clients see its partitions.
fn led(topic: &TopicView, range: u32) -> String {
    let Some(view) = topic.ranges.iter().find(|view| view.id.0 == range) else {
        return "not led".to_owned();
    };
    let epochs: Vec<String> = match &*view.epochs {
        [(_, epoch)] => vec![format!("leader epoch {epoch}")],
        runs => runs
            .iter()
            .map(|(span, epoch)| {
                format!("leader epoch {epoch} for partitions {} to {}", span.first, span.last)
            })
            .collect(),
    };
    format!("led by node {}, {}", view.leader.0, epochs.join(", "))
}

fn ends(explained: &RangeExplained) -> Option<String> {
    let told = explained.partitions.iter().take(ENDS_TOLD).map(|p| match p.log_start {
        0 => format!("{} at {}", p.partition, p.end),
        start => format!("{} from {start} to {}", p.partition, p.end),
    });
    let told: Vec<String> = told.collect();
    let more = explained.partitions.len().saturating_sub(ENDS_TOLD);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!told.is_empty()).then(|| {
        format!("Partitions of range {} end with offset: {}{more}.", explained.range.id, told.join(", "))
    })
}

/// Which ranges became which: `0 -> 1 + 2`.
fn lineage(ranges: &[RangeExplained]) -> Option<String> {
    let mut made: BTreeMap<u32, (&[u32], Vec<u32>)> = BTreeMap::new();
    for range in ranges.iter().map(|r| &r.range) {
        if let Some(oldest) = range.children.iter().min() {
            made.entry(*oldest).or_insert((&range.children, Vec::new())).1.push(range.id);
        }
    }
    let steps: Vec<String> = made
        .values()
        .map(|(children, parents)| format!("{} -> {}", joined(parents, " + "), joined(children, " + ")))
        .collect();
    (!steps.is_empty()).then(|| format!("Lineage: {}.", steps.join(", ")))
}

fn last(operation: Option<&OperationDescription>, now_ms: i64) -> String {
    let Some(operation) = operation else {
        return "No split or merge of it is remembered.".to_owned();
    };
    let begun = age(now_ms.saturating_sub(operation.started_at));
    let pause = match (operation.state.as_str(), operation.paused_ms) {
        ("running", _) => "; it runs".to_owned(),
        ("aborted", _) => "; it was given up".to_owned(),
        (_, Some(ms)) => format!("; its partitions took no appends for {ms:.1} ms"),
        (_, None) => "; its pause is not known any more".to_owned(),
    };
    format!("Last: {}, {begun} ago{pause}.", operation.kind)
}

fn origin(parents: &[u32]) -> String {
    match parents {
        [] => "made with the topic or with added partitions".to_owned(),
        [parent] => format!("split from range {parent}"),
        parents => format!("merged from ranges {}", joined(parents, " and ")),
    }
}

fn fate(children: &[u32]) -> String {
    match children {
        [] => String::new(),
        children => format!(" Its partitions went on in {}.", joined(children, " and ")),
    }
}

fn joined(ids: &[u32], between: &str) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}

fn counted(n: i64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A time for people, in its largest unit.
fn age(ms: i64) -> String {
    match ms.max(0) / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_their_largest_unit() {
        let told: Vec<String> =
            [-5, 0, 119_999, 120_000, 7_199_000, 7_200_000, 172_800_000].into_iter().map(age).collect();
        assert_eq!(told, ["0 s", "0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
