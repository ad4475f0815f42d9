//! Whether what producers and readers said is one dense, ordered log per partition, each record of it read once.
//!
//! Pure: it is given all that the clients said, and the driver's observations.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::report::{Report, Stretch};

/// So many faults are listed of one kind and one client.
const LISTED_MAX: usize = 5;
/// With so many splits and merges per partition, the number of ranges must have gone from one to all and back.
const SWEEP_RESHARDS: u64 = 4;

/// What was to be, and what was said.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Of the topic.
    pub partitions: i32,
    /// Records that each producer was to send.
    pub records_each: u64,
    /// Name and report of each producer.
    pub producers: Vec<(String, Report)>,
    /// Readers that share the topic's partitions among themselves: a group, or one reader alone.
    pub readers: Vec<Reader>,
    /// Assignments that nobody planned: who got one, and when.
    pub rebalances: Vec<String>,
    /// Splits and merges that were to be done at least.
    pub reshards_wanted: u64,
    /// Splits and merges done.
    pub reshards: u64,
    /// Fewest and most ranges seen.
    pub ranges: (u64, u64),
    /// Error lines of the broker's log.
    pub log_errors: Vec<String>,
    /// What went wrong outside of the clients: the time was over, an answer of the HTTP door that must not be.
    pub wrong: Vec<String>,
}

/// All lives of all members.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// For people.
    pub name: String,
    /// Name and report of each life.
    pub lives: Vec<(String, Report)>,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of the sentence that Display makes of them")]
pub enum Fault {
    /// A client saw it.
    Client { name: String, what: String },
    /// A client did not come to its end.
    Unfinished { name: String },
    /// Sends of a producer failed.
    FailedSends { name: String, failed: u64 },
    /// A producer's records were not all acknowledged; `key` is `None` for all of them together.
    NotAcknowledged { name: String, key: Option<u32>, sent: u64, acked: u64 },
    /// The acknowledged offsets of a partition are not 0, 1, 2, …
    NotDense { partition: i32, records: u64, last: u64, sum: u128 },
    /// A reader went on elsewhere than where it or its group stood.
    Resumed { reader: String, partition: i32, due: u64, first: u64 },
    /// A reader ended elsewhere than at the partition's end.
    Ended { reader: String, partition: i32, due: u64, next: u64 },
    /// A key's records were left out, or came again, between two stretches or at the end.
    Key { reader: String, partition: i32, producer: u32, key: u32, due: u64, found: u64 },
    /// A group's partitions were assigned anew without a member coming or going.
    Rebalance { what: String },
    /// Fewer splits and merges than asked for.
    FewReshards { wanted: u64, done: u64 },
    /// The number of ranges did not go from one to all of the partitions.
    NoSweep { least: u64, most: u64 },
    /// The broker logged an error.
    Logged { line: String },
    /// Something else.
    Wrong { what: String },
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client { name, what } => write!(f, "{name}: {what}"),
            Self::Unfinished { name } => write!(f, "{name} did not come to its end"),
            Self::FailedSends { name, failed } => write!(f, "{name}: {failed} sends failed"),
            Self::NotAcknowledged { name, key: None, sent, acked } => {
                write!(f, "{name}: {acked} of {sent} records acknowledged")
            }
            Self::NotAcknowledged { name, key: Some(key), sent, acked } => {
                write!(f, "{name}: {acked} of {sent} records of key {key} acknowledged")
            }
            Self::NotDense { partition, records, last, sum } => write!(
                f,
                "partition {partition}: {records} acknowledged records with offsets up to {last} and of sum {sum} are not dense"
            ),
            Self::Resumed { reader, partition, due, first } => {
                write!(f, "{reader}: partition {partition} went on at {first} where {due} was due")
            }
            Self::Ended { reader, partition, due, next } => {
                write!(f, "{reader}: partition {partition} ended at {next} where {due} was due")
            }
            Self::Key { reader, partition, producer, key, due, found } => write!(
                f,
                "{reader}: partition {partition}: key {key} of producer {producer} stood at {found} where {due} was due"
            ),
            Self::Rebalance { what } => write!(f, "an assignment that nobody planned: {what}"),
            Self::FewReshards { wanted, done } => write!(f, "{done} of {wanted} splits and merges done"),
            Self::NoSweep { least, most } => write!(f, "between {least} and {most} ranges only"),
            Self::Logged { line } => write!(f, "the broker logged: {line}"),
            Self::Wrong { what } => f.write_str(what),
        }
    }
}

/// Offset after the last acknowledged one, by partition.
pub fn ends<'a>(producers: impl Iterator<Item = &'a Report>) -> BTreeMap<i32, u64> {
    let mut ends = BTreeMap::new();
    for (partition, acked) in producers.flat_map(|report| &report.offsets) {
        let end = ends.entry(*partition).or_insert(0);
        *end = (acked.last + 1).max(*end);
    }
    ends
}

/// Everything that must not be, at most a few of each kind.
pub fn judge(history: &History) -> Vec<Fault> {
    let mut faults: Vec<Fault> =
        history.wrong.iter().map(|what| Fault::Wrong { what: what.clone() }).collect();
    faults.extend(history.producers.iter().flat_map(|(name, report)| said(name, report)));
    faults.extend(
        history.producers.iter().flat_map(|(name, report)| producer(name, report, history.records_each)),
    );
    faults.extend(numbering(history).into_iter().take(LISTED_MAX));
    for reader in &history.readers {
        faults.extend(reader.lives.iter().flat_map(|(name, report)| said(name, report)));
        faults.extend(reading(history, reader).into_iter().take(LISTED_MAX));
    }
    faults.extend(
        history.rebalances.iter().take(LISTED_MAX).map(|what| Fault::Rebalance { what: what.clone() }),
    );
    if history.reshards < history.reshards_wanted {
        faults.push(Fault::FewReshards { wanted: history.reshards_wanted, done: history.reshards });
    }
    let (least, most) = history.ranges;
    let partitions = u64::from(history.partitions.unsigned_abs());
    if history.reshards_wanted >= SWEEP_RESHARDS * partitions && (least, most) != (1, partitions) {
        faults.push(Fault::NoSweep { least, most });
    }
    faults
        .extend(history.log_errors.iter().take(LISTED_MAX).map(|line| Fault::Logged { line: line.clone() }));
    faults
}

fn said(name: &str, report: &Report) -> Vec<Fault> {
    let client = |what: &String| Fault::Client { name: name.to_owned(), what: what.clone() };
    let mut faults: Vec<Fault> = report.faults.iter().take(LISTED_MAX).map(client).collect();
    if !report.done {
        faults.push(Fault::Unfinished { name: name.to_owned() });
    }
    faults
}

fn producer(name: &str, report: &Report, records: u64) -> Vec<Fault> {
    let name = || name.to_owned();
    let mut faults = Vec::new();
    if report.failed > 0 {
        faults.push(Fault::FailedSends { name: name(), failed: report.failed });
    }
    let total: u64 = report.offsets.values().map(|acked| acked.count).sum();
    if total != records {
        faults.push(Fault::NotAcknowledged { name: name(), key: None, sent: records, acked: total });
    }
    let short = report.keys.iter().filter(|(_, (sent, acked))| sent != acked);
    faults.extend(short.take(LISTED_MAX).map(|(key, (sent, acked))| Fault::NotAcknowledged {
        name: name(),
        key: Some(*key),
        sent: *sent,
        acked: *acked,
    }));
    faults
}

/// All producers' offsets of a partition together are 0 to its end, each once: as many as the end, and of the sum that
/// those numbers have.
fn numbering(history: &History) -> Vec<Fault> {
    let ends = ends(history.producers.iter().map(|(_, report)| report));
    let mut faults = Vec::new();
    for (partition, end) in ends {
        let acked = || history.producers.iter().filter_map(|(_, report)| report.offsets.get(&partition));
        let (records, sum) = (acked().map(|a| a.count).sum(), acked().map(|a| a.sum).sum());
        if records != end || sum != u128::from(end) * u128::from(end.saturating_sub(1)) / 2 {
            faults.push(Fault::NotDense { partition, records, last: end.saturating_sub(1), sum });
        }
    }
    faults
}

/// The stretches of each partition follow each other without a gap and without an overlap, from 0 to the end, and so do
/// the counters of each key in them, from 0 to what was acknowledged.
fn reading(history: &History, reader: &Reader) -> Vec<Fault> {
    let ends = ends(history.producers.iter().map(|(_, report)| report));
    let mut stretches: BTreeMap<i32, Vec<&Stretch>> = BTreeMap::new();
    for stretch in reader.lives.iter().flat_map(|(_, report)| &report.stretches) {
        stretches.entry(stretch.partition).or_default().push(stretch);
    }
    let mut faults = Vec::new();
    let mut keys: BTreeMap<(u32, u32), (i32, u64)> = BTreeMap::new();
    for partition in 0..history.partitions {
        let mut all = stretches.remove(&partition).unwrap_or_default();
        all.sort_by_key(|stretch| (stretch.first, stretch.next));
        let mut due = 0;
        for stretch in all {
            if stretch.first != due {
                let first = stretch.first;
                faults.push(Fault::Resumed { reader: reader.name.clone(), partition, due, first });
            }
            due = stretch.next;
            for (&(producer, key), &(first, next)) in &stretch.keys {
                let (_, counter) = keys.entry((producer, key)).or_insert((partition, 0));
                if u64::from(first) != *counter {
                    let (due, found) = (*counter, first.into());
                    faults.push(Fault::Key {
                        reader: reader.name.clone(),
                        partition,
                        producer,
                        key,
                        due,
                        found,
                    });
                }
                *counter = next.into();
            }
        }
        let end = ends.get(&partition).copied().unwrap_or(0);
        if due != end {
            faults.push(Fault::Ended { reader: reader.name.clone(), partition, due: end, next: due });
        }
    }
    for (producer, (_, report)) in (0u32..).zip(&history.producers) {
        for (&key, &(_, acked)) in &report.keys {
            let (partition, found) = keys.get(&(producer, key)).copied().unwrap_or((-1, 0));
            if found != acked {
                let reader = reader.name.clone();
                faults.push(Fault::Key { reader, partition, producer, key, due: acked, found });
            }
        }
    }
    faults
}

#[cfg(test)]
#[path = "judge_test.rs"]
mod tests;
