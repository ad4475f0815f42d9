//! What tools see of groups and offsets as records of a compacted log: the numbers under which the facts of a partition
//! are read there, and reading by number (design 12, `__consumer_offsets`).
//!
//! ```text
//! number    0      1      2      3      4      5      6 = next
//! change    g/t0   g      g/t1   h/t0   g/t0   g (gone)
//! there            -      g/t1   h/t0   g/t0   g (gone)         what a later change of the same key replaced is left out
//! ```
//! Every change of a key takes the next number, in the order of the log; a number never moves and is never given twice,
//! whatever starts in between: numbers are part of the fold. Of each key the newest change is there. Of keys that are
//! gone the newest [`GONE_MAX`] are (INV-GROUP-4).

use super::consumer::image::ConsumerRecord;
use super::coordinator::Coordinator;
use super::record::{GroupImage, Key, Phase, Position, Record, Stored};
use rangeway_core::replicated::Shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys that are gone and still shown as gone, in one partition.
const GONE_MAX: usize = 1_000;
/// Bytes of a row beside its texts, about.
const ROW_BYTES: usize = 64;

/// Numbers of all that is shown of one partition; durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// Number of the next change.
    next: u64,
    groups: BTreeMap<String, Shared<OfGroup>>,
    /// By number: a group's metadata (no key), or an offset of it, that is gone.
    gone: BTreeMap<u64, (String, Option<Key>)>,
}

/// Numbers of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OfGroup {
    /// The highest of all.
    newest: u64,
    /// Of the members and generation, where they are shown.
    group: Option<u64>,
    offsets: BTreeMap<Key, u64>,
}

impl Numbers {
    /// For a state that was stored without any: in order of names.
    pub(super) fn of(groups: &BTreeMap<String, Stored>) -> Numbers {
        let mut numbers = Numbers::default();
        for (name, stored) in groups {
            if is_shown(&stored.group) {
                numbers.number_group(name);
            }
            stored.offsets.keys().for_each(|key| numbers.number_offset(name, *key));
        }
        numbers
    }

    /// Applies one record of the partition; `ended`: the offsets that count because of it, where it ends a transaction.
    pub(super) fn apply(&mut self, record: &Record, ended: &[(String, Key)]) {
        match record {
            Record::Formed { group, image } if is_shown(image) => self.number_group(group),
            Record::Formed { .. } => {}
            Record::Assigned { group, .. } => self.number_group(group),
            Record::Committed { group, positions } => {
                positions.iter().for_each(|(key, _)| self.number_offset(group, *key));
            }
            Record::OffsetsDropped { group, keys } => {
                keys.iter().for_each(|key| self.drop_offset(group, *key));
            }
            Record::GroupDropped { group } => {
                let keys = self.groups.get(group).map(|of| of.offsets.keys().copied().collect::<Vec<_>>());
                keys.into_iter().flatten().for_each(|key| self.drop_offset(group, key));
                self.drop_group(group);
                self.groups.remove(group);
            }
            // A group of the other type has no generation of this one any more.
            Record::Consumer { group, fact: ConsumerRecord::Formed(_) } => self.drop_group(group),
            Record::TransactionEnded(_) => {
                ended.iter().for_each(|(group, key)| self.number_offset(group, *key));
            }
            Record::Consumer { .. } | Record::Configured { .. } | Record::OffsetsPending(_) => {}
        }
    }

    fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn number_group(&mut self, group: &str) {
        let number = self.take();
        let of = self.groups.entry(group.to_owned()).or_default().to_mut();
        (of.newest, of.group) = (number, Some(number));
    }

    fn number_offset(&mut self, group: &str, key: Key) {
        let number = self.take();
        let of = self.groups.entry(group.to_owned()).or_default().to_mut();
        of.newest = number;
        of.offsets.insert(key, number);
    }

    fn drop_group(&mut self, group: &str) {
        let Some(of) = self.groups.get_mut(group).filter(|of| of.group.is_some()) else { return };
        of.to_mut().group = None;
        self.bury(group, None);
    }

    fn drop_offset(&mut self, group: &str, key: Key) {
        let Some(of) = self.groups.get_mut(group).filter(|of| of.offsets.contains_key(&key)) else { return };
        of.to_mut().offsets.remove(&key);
        self.bury(group, Some(key));
    }

    fn bury(&mut self, group: &str, key: Option<Key>) {
        let number = self.take();
        self.gone.insert(number, (group.to_owned(), key));
        if self.gone.len() > GONE_MAX {
            self.gone.pop_first();
        }
    }

    /// What is there from a number on, in order.
    fn read_from(&self, from: u64) -> Vec<(u64, &str, Option<Key>)> {
        let gone = self.gone.range(from..).map(|(number, (group, key))| (*number, group.as_str(), *key));
        let mut found: Vec<_> = gone.collect();
        for (group, of) in self.groups.iter().filter(|(_, of)| of.newest >= from) {
            let offsets = of.offsets.iter().map(|(key, number)| (*number, group.as_str(), Some(*key)));
            let all = offsets.chain(of.group.map(|number| (number, group.as_str(), None)));
            found.extend(all.filter(|(number, _, _)| *number >= from));
        }
        found.sort_unstable_by_key(|(number, _, _)| *number);
        debug_assert!(found.iter().all(|(number, _, _)| (from..self.next).contains(number)));
        found
    }
}

/// Kafka stores a generation when its assignment is known, and when it is empty; a group that only has offsets has none.
fn is_shown(image: &GroupImage) -> bool {
    image.phase != Phase::Completing && image.protocol_type.is_some()
}

/// What is asked of the view of one partition.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Look {
    /// Rows from a number on, of at most so many bytes about, and one at least.
    Read {
        /// The first number.
        from: u64,
        /// Bytes.
        bytes_max: usize,
    },
    /// The first row of this time or later.
    At(i64),
    /// The newest row by its time, the first one of several.
    Newest,
}

/// What the view shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of the next change.
    pub(crate) next: u64,
    /// In order of their numbers.
    pub(crate) rows: Vec<Row>,
    /// Where reading goes on.
    pub(crate) through: u64,
}

/// The newest change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its number.
    pub(crate) number: u64,
    /// When it was made, wall clock ms; -1 where that is not kept.
    pub(crate) at: i64,
    /// The group.
    pub(crate) group: String,
    /// What of it.
    pub(crate) what: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An offset: topic, partition, what was committed; `None`: nothing any more.
    Offset(Arc<str>, i32, Option<Position>),
    /// Members and generation; `None`: none any more.
    Group(Option<Shared<GroupImage>>),
}

impl Row {
    fn bytes(&self) -> usize {
        let of = match &self.what {
            Change::Offset(topic, _, position) => {
                topic.len() + position.as_ref().map_or(0, |p| p.metadata.len())
            }
            Change::Group(image) => {
                let members = image.iter().flat_map(|image| image.members.iter());
                let member = |(id, member): (&String, &super::record::MemberImage)| {
                    let protocols = member.info.protocols.iter().map(|(_, blob)| blob.0.len());
                    ROW_BYTES + 2 * id.len() + member.assignment.0.len() + protocols.max().unwrap_or(0)
                };
                members.map(member).sum()
            }
        };
        ROW_BYTES + self.group.len() + of
    }
}

impl Coordinator {
    /// Looks into the view.
    pub(super) fn look(&self, look: Look) -> Seen {
        let next = self.numbers.next;
        let nothing = Seen { next, rows: Vec::new(), through: next };
        let rows = |from| {
            let found = if from < next { self.numbers.read_from(from) } else { Vec::new() };
            found.into_iter().filter_map(|(number, group, key)| self.row(number, group, key))
        };
        match look {
            Look::Read { from, bytes_max } => {
                let mut seen = nothing;
                let mut bytes = 0;
                for row in rows(from) {
                    bytes += row.bytes();
                    if bytes > bytes_max && !seen.rows.is_empty() {
                        seen.through = row.number;
                        break;
                    }
                    seen.rows.push(row);
                }
                seen
            }
            Look::At(time) => {
                Seen { rows: rows(0).find(|row| row.at >= time).into_iter().collect(), ..nothing }
            }
            Look::Newest => {
                let newest = rows(0)
                    .filter(|row| row.at >= 0)
                    .reduce(|best, row| if row.at > best.at { row } else { best });
                Seen { rows: newest.into_iter().collect(), ..nothing }
            }
        }
    }

    /// `None` for an offset of a topic that is gone: nobody knows its name.
    fn row(&self, number: u64, group: &str, key: Option<Key>) -> Option<Row> {
        let stored = self.stored.get(group);
        let is_gone = self.numbers.gone.contains_key(&number);
        let (at, what) = match key {
            Some(key) => {
                let topic = self.catalog.by_id.get(&key.0)?.name.clone();
                let position = stored.filter(|_| !is_gone).and_then(|s| s.offsets.get(&key));
                (position.map_or(-1, |p| p.committed_at), Change::Offset(topic, key.1, position.cloned()))
            }
            None => {
                let image = stored.filter(|_| !is_gone).map(|s| s.group.clone());
                (image.as_ref().map_or(-1, |i| i.changed_at), Change::Group(image))
            }
        };
        Some(Row { number, at, group: group.to_owned(), what })
    }
}
