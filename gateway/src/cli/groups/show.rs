//! Groups as people and programs are shown them.

use super::super::table::{Align, Table};
use super::reset::Move;
use serde::Serialize;
use std::collections::BTreeMap;

/// One group of a list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    /// Its id.
    pub(super) group: String,
    /// `classic`, `consumer`, …; empty where an old broker does not say.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Its state.
    pub(super) state: String,
    /// `consumer`, `connect`, …
    pub(super) protocol: String,
}

/// One group in full.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Description {
    /// Its id.
    pub(super) group: String,
    /// `classic` or `consumer`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Its state.
    pub(super) state: String,
    /// Who coordinates it, `host:port`.
    pub(super) coordinator: String,
    /// The assignor, or the protocol that the members agreed on.
    pub(super) assignor: String,
    /// Of the consumer protocol: its epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<i32>,
    /// Of the consumer protocol: the epoch of the assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) assignment_epoch: Option<i32>,
    /// Its members.
    pub(super) members: Vec<Member>,
    /// Partitions that it has offsets of, or that are assigned.
    pub(super) offsets: Vec<Offset>,
}

/// One member.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Member {
    /// Its id.
    pub(super) member: String,
    /// `group.instance.id`.
    pub(super) instance: Option<String>,
    /// `client.id`.
    pub(super) client: String,
    /// Where it connects from.
    pub(super) host: String,
    /// Of the consumer protocol: its epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<i32>,
    /// What it reads, by topic.
    pub(super) reads: BTreeMap<String, Vec<i32>>,
}

/// Where a group stands in a partition.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Offset {
    /// The topic.
    pub(super) topic: String,
    /// The partition.
    pub(super) partition: i32,
    /// The next record that it will read; `None`: it has committed nothing.
    pub(super) committed: Option<i64>,
    /// The next record that will be written; `None`: the partition is gone.
    pub(super) end: Option<i64>,
    /// Records between both.
    pub(super) lag: Option<i64>,
    /// Who reads it.
    pub(super) member: Option<String>,
}

/// What a reset did, or would do.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Reset {
    /// The group.
    pub(super) group: String,
    /// Whether it was done.
    pub(super) executed: bool,
    /// Each partition.
    pub(super) offsets: Vec<Move>,
}

/// A group that was to be deleted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Deleted {
    /// Its id.
    pub(super) group: String,
    /// Why it was not.
    pub(super) error: Option<String>,
}

/// Offsets that were to be deleted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DeletedOffsets {
    /// The group.
    pub(super) group: String,
    /// Each partition.
    pub(super) offsets: Vec<DeletedOffset>,
}

/// One of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DeletedOffset {
    /// The topic.
    pub(super) topic: String,
    /// The partition.
    pub(super) partition: i32,
    /// Why it was not.
    pub(super) error: Option<String>,
}

/// A cell for what may not be there.
fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn named(text: &str) -> String {
    or_dash(Some(text).filter(|text| !text.is_empty()))
}

pub(super) fn list(all: &[Summary]) -> String {
    if all.is_empty() {
        return "no groups\n".to_owned();
    }
    let columns = ["GROUP", "TYPE", "STATE", "PROTOCOL"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    for row in all {
        table.row(vec![row.group.clone(), named(&row.kind), named(&row.state), named(&row.protocol)]);
    }
    table.render()
}

pub(super) fn describe(group: &Description) -> String {
    let mut out = format!(
        "group        {}\ntype         {}\nstate        {}\ncoordinator  {}\nassignor     {}\n",
        group.group,
        group.kind,
        group.state,
        group.coordinator,
        named(&group.assignor)
    );
    if let (Some(epoch), Some(assignment)) = (group.epoch, group.assignment_epoch) {
        out.push_str(&format!("epoch        {epoch}, of the assignment {assignment}\n"));
    }
    out.push('\n');
    if group.members.is_empty() {
        out.push_str("no members\n");
    } else {
        out.push_str(&members(&group.members));
    }
    out.push('\n');
    if group.offsets.is_empty() {
        out.push_str("no offsets\n");
    } else {
        out.push_str(&offsets(&group.offsets));
    }
    out
}

fn members(all: &[Member]) -> String {
    let mut table = Table::new(&[
        ("MEMBER", Align::Left),
        ("INSTANCE", Align::Left),
        ("CLIENT", Align::Left),
        ("HOST", Align::Left),
        ("EPOCH", Align::Right),
        ("PARTITIONS", Align::Right),
        ("READS", Align::Left),
    ]);
    for member in all {
        let count: usize = member.reads.values().map(Vec::len).sum();
        let reads = member.reads.iter().map(|(topic, of)| format!("{topic}:{}", runs(of)));
        table.row(vec![
            member.member.clone(),
            or_dash(member.instance.as_ref()),
            named(&member.client),
            named(&member.host),
            or_dash(member.epoch),
            count.to_string(),
            named(&reads.collect::<Vec<_>>().join(" ")),
        ]);
    }
    table.render()
}

/// Numbers in ascending order, with runs of them as `first-last`.
fn runs(numbers: &[i32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for number in sorted {
        match runs.last_mut() {
            Some((_, last)) if i64::from(*last) + 1 >= i64::from(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let one = |(first, last): &(i32, i32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}

fn offsets(all: &[Offset]) -> String {
    let mut table = Table::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("COMMITTED", Align::Right),
        ("END", Align::Right),
        ("LAG", Align::Right),
        ("MEMBER", Align::Left),
    ]);
    for row in all {
        table.row(vec![
            row.topic.clone(),
            row.partition.to_string(),
            or_dash(row.committed),
            or_dash(row.end),
            or_dash(row.lag),
            or_dash(row.member.as_ref()),
        ]);
    }
    table.render()
}

pub(super) fn reset(reset: &Reset) -> String {
    let mut table = Table::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("FROM", Align::Right),
        ("TO", Align::Right),
    ]);
    for row in &reset.offsets {
        let cells = [row.topic.clone(), row.partition.to_string(), or_dash(row.from), row.to.to_string()];
        table.row(cells.to_vec());
    }
    let done = if reset.executed { "reset" } else { "nothing was changed; --execute does it" };
    format!("{}{done}\n", table.render())
}

pub(super) fn deleted(rows: &[Deleted]) -> String {
    let line = |row: &Deleted| match &row.error {
        None => format!("deleted {}\n", row.group),
        Some(error) => format!("not deleted {}: {error}\n", row.group),
    };
    rows.iter().map(line).collect()
}

pub(super) fn deleted_offsets(deleted: &DeletedOffsets) -> String {
    let mut table =
        Table::new(&[("TOPIC", Align::Left), ("PARTITION", Align::Right), ("OUTCOME", Align::Left)]);
    for row in &deleted.offsets {
        let outcome = row.error.clone().unwrap_or_else(|| "deleted".to_owned());
        table.row(vec![row.topic.clone(), row.partition.to_string(), outcome]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shown_in_runs() {
        assert_eq!(runs(&[]), "");
        assert_eq!(runs(&[4]), "4");
        assert_eq!(runs(&[3, 0, 1, 2, 7, 9, 8]), "0-3,7-9");
        assert_eq!(runs(&[i32::MAX, i32::MAX]), i32::MAX.to_string());
    }

    #[test]
    fn what_is_not_there_is_a_dash() {
        let offset = Offset {
            topic: "t".into(),
            partition: 1,
            committed: None,
            end: Some(3),
            lag: None,
            member: Some("m".into()),
        };
        let shown = offsets(&[offset]);
        let last = shown.lines().last().expect("a row");
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["t", "1", "-", "3", "-", "m"]);
    }
}
