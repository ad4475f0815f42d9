//! What tools see of groups as a log: numbers, compaction, what is gone.

use super::ask::*;
use super::coordinator::Coordinator;
use super::coordinator_rig::*;
use super::image::Image;
use super::record::{Key, Record, Stored};
use super::view::{Change, Look, Numbers, Row, Seen};
use rangeway_core::replicated::Machine;
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

/// A tool that reads on: of each key the newest value, as it must be at any time.
#[derive(Default)]
pub(super) struct Reader {
    next: u64,
    offsets: BTreeMap<(String, String, i32), i64>,
    groups: BTreeMap<String, i32>,
    /// Topics with offsets that were not there at some time.
    unknown: BTreeSet<TopicId>,
    /// So much went at once that not all of it is told.
    missed: bool,
}

impl Reader {
    /// Reads to the end, a few rows at a time, and compares with the state.
    pub(super) fn read(&mut self, machine: &Coordinator) {
        loop {
            let seen = machine.look(Look::Read { from: self.next, bytes_max: 200 });
            assert!(seen.rows.iter().all(|row| (self.next..seen.through).contains(&row.number)));
            assert!(seen.rows.is_sorted_by(|a, b| a.number < b.number), "{:?}", seen.rows);
            self.missed |= seen.next > self.next + 1_000;
            let at = std::mem::replace(&mut self.next, seen.through);
            assert!(at <= seen.through && seen.through <= seen.next, "{at} {seen:?}");
            seen.rows.into_iter().for_each(|row| self.take(row));
            if seen.through == seen.next {
                break;
            }
            assert!(seen.through > at, "it goes on");
        }
        let topics = machine.stored.values().flat_map(|stored| stored.offsets.keys().map(|key| key.0));
        self.unknown.extend(topics.filter(|topic| !machine.catalog.by_id.contains_key(topic)));
        self.check(machine);
    }

    fn take(&mut self, row: Row) {
        match row.what {
            Change::Offset(topic, partition, position) => {
                let key = (row.group, topic.to_string(), partition);
                match position {
                    Some(position) => self.offsets.insert(key, position.offset),
                    None => self.offsets.remove(&key),
                };
            }
            Change::Group(Some(image)) => {
                self.groups.insert(row.group, image.generation);
            }
            Change::Group(None) => {
                self.groups.remove(&row.group);
            }
        }
    }

    /// Of topics that are there every offset is known and no other; groups are known in their newest settled generation.
    fn check(&self, machine: &Coordinator) {
        let known = |(topic, partition): &Key| {
            let name = &machine.catalog.by_id.get(topic)?.name;
            (!self.unknown.contains(topic)).then(|| (name.to_string(), *partition))
        };
        let stored: BTreeMap<_, _> = machine
            .stored
            .iter()
            .flat_map(|(group, stored)| stored.offsets.iter().map(move |(key, p)| (group, key, p.offset)))
            .filter_map(|(group, key, offset)| {
                let (topic, partition) = known(key)?;
                Some(((group.clone(), topic, partition), offset))
            })
            .collect();
        // Nobody knows what a topic that was not there was called, nor which of two of one name a key is of; of keys that
        // are gone only the newest are told.
        for (key, offset) in &stored {
            assert_eq!(self.offsets.get(key), Some(offset), "{key:?}");
        }
        if self.unknown.is_empty() && !self.missed {
            let extra: Vec<_> = self.offsets.keys().filter(|key| !stored.contains_key(*key)).collect();
            assert!(extra.is_empty(), "shown and not there: {extra:?}");
        }
        for (group, generation) in &self.groups {
            let stored =
                machine.stored.get(group).unwrap_or_else(|| panic!("{group} is shown and not there"));
            assert!(*generation <= stored.group.generation, "{group}");
            assert!(stored.group.protocol_type.is_some() || *generation == 0, "{group}");
        }
    }
}

fn rows(rig: &mut Rig, from: u64) -> Vec<(u64, String)> {
    let Answer::Look(seen) = rig.ask(Ask::Look(Look::Read { from, bytes_max: usize::MAX })) else {
        panic!("nothing seen")
    };
    assert_eq!(seen.through, seen.next);
    let what = |row: Row| match row.what {
        Change::Offset(topic, partition, position) => {
            (row.number, format!("{topic}/{partition}={:?}", position.map(|p| p.offset)))
        }
        Change::Group(image) => (row.number, format!("{:?}", image.map(|i| i.generation))),
    };
    seen.rows.into_iter().map(what).collect()
}

fn shown(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
    rows.iter().map(|(number, text)| (*number, (*text).to_owned())).collect()
}

/// A group of no members with offsets in two partitions, the first one committed again.
fn simple() -> Rig {
    let mut rig = Rig::quick();
    rig.catalog = topics_at(1, &[(1, "t1", 4, &[0]), (2, "t2", 4, &[0])]);
    for (partition, offset) in [(0, 5), (1, 6), (0, 7)] {
        let position = CommitPosition { offset, leader_epoch: -1, metadata: String::new() };
        let commit = Commit {
            caller: caller("", -1),
            says_group_not_found: true,
            retention_ms: None,
            positions: vec![((topic(1), partition), position)],
        };
        assert_eq!(rig.commit(commit), Ok(vec![Ok(())]));
    }
    rig
}

#[test]
fn of_each_key_the_newest_change_is_there_under_its_number() {
    let mut rig = simple();
    assert_eq!(rows(&mut rig, 0), shown(&[(1, "t1/1=Some(6)"), (2, "t1/0=Some(7)")]));
    assert_eq!(rows(&mut rig, 2), shown(&[(2, "t1/0=Some(7)")]));
    assert_eq!(rows(&mut rig, 3), shown(&[]));
    rig.restart();
    assert_eq!(rows(&mut rig, 0), shown(&[(1, "t1/1=Some(6)"), (2, "t1/0=Some(7)")]));
}

#[test]
fn what_is_deleted_is_shown_as_gone() {
    let mut rig = simple();
    let keys = vec![((topic(1), 1), "t1".to_owned()), ((topic(1), 3), "t1".to_owned())];
    rig.ask(Ask::DeleteOffsets { group: "g".into(), keys });
    assert_eq!(rows(&mut rig, 0), shown(&[(2, "t1/0=Some(7)"), (3, "t1/1=None")]));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert_eq!(rows(&mut rig, 0), shown(&[(3, "t1/1=None"), (4, "t1/0=None")]));
    rig.restart();
    assert_eq!(rows(&mut rig, 4), shown(&[(4, "t1/0=None")]));
}

#[test]
fn a_generation_is_shown_when_its_assignment_is_known_and_when_it_is_empty() {
    let mut rig = Rig::quick();
    let ticket = rig.join(member("a"));
    let joined = rig.joined(ticket);
    assert_eq!(rows(&mut rig, 0), shown(&[]), "its assignment is awaited");
    let ticket = rig.sync_as(&joined, &[("a", "all")]);
    assert_eq!(rig.synced(ticket), Ok(blob("all")));
    assert_eq!(rows(&mut rig, 0), shown(&[(0, "Some(1)")]));
    assert_eq!(rig.leave(&[("a", None)]), vec![Ok(())]);
    assert_eq!(rows(&mut rig, 0), shown(&[(1, "Some(2)")]));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert_eq!(rows(&mut rig, 0), shown(&[(2, "None")]));
}

#[test]
fn reading_ends_at_the_bytes_asked_for_and_goes_on_there() {
    let rig = simple();
    let one = rig.machine.look(Look::Read { from: 0, bytes_max: 1 });
    assert_eq!((one.rows.len(), one.through, one.next), (1, 2, 3), "one at least");
    let rest = rig.machine.look(Look::Read { from: one.through, bytes_max: 1 });
    assert_eq!((rest.rows.len(), rest.through), (1, 3));
    let beyond = rig.machine.look(Look::Read { from: 9, bytes_max: 1 });
    assert_eq!(beyond, Seen { next: 3, rows: vec![], through: 3 });
}

#[test]
fn rows_are_found_by_time() {
    let mut rig = Rig::quick();
    rig.catalog = topics_at(1, &[(1, "t1", 4, &[0])]);
    let mut times = Vec::new();
    for partition in 0..3 {
        times.push(rig.now.wall_ms);
        let position = CommitPosition { offset: 1, leader_epoch: -1, metadata: String::new() };
        let commit = Commit {
            caller: caller("", -1),
            says_group_not_found: true,
            retention_ms: None,
            positions: vec![((topic(1), partition), position)],
        };
        rig.commit(commit).expect("committed");
        rig.advance(1_000);
    }
    let number = |look| rig.machine.look(look).rows.first().map(|row| row.number);
    assert_eq!(number(Look::At(times[0])), Some(0));
    assert_eq!(number(Look::At(times[0] + 1)), Some(1));
    assert_eq!(number(Look::At(times[2] + 1)), None);
    assert_eq!(number(Look::Newest), Some(2));
}

#[test]
fn only_the_newest_of_what_is_gone_is_kept() {
    let mut rig = Rig::quick();
    rig.catalog = topics_at(1, &[(1, "t1", 2_000, &[0])]);
    let position = || CommitPosition { offset: 1, leader_epoch: -1, metadata: String::new() };
    let commit = Commit {
        caller: caller("", -1),
        says_group_not_found: true,
        retention_ms: None,
        positions: (0..1_500).map(|partition| ((topic(1), partition), position())).collect(),
    };
    rig.commit(commit).expect("committed");
    rig.ask(Ask::Delete { group: "g".into() });
    let seen = rows(&mut rig, 0);
    assert_eq!((seen.len(), seen[0].0, seen[999].0), (1_000, 2_000, 2_999));
}

#[test]
fn a_state_that_was_stored_without_numbers_gets_them() {
    let rig = simple();
    let image = rig.machine.capture();
    // As version 3 had it: all fields but the last.
    let mut bytes = postcard::to_stdvec(&image.groups).expect("encoded");
    bytes.extend(postcard::to_stdvec(&image.consumers).expect("encoded"));
    bytes.extend(postcard::to_stdvec(&image.pending).expect("encoded"));
    let older: Image = postcard::from_bytes(&bytes).expect("it is read");
    assert_eq!(older.groups, image.groups);
    assert_eq!(older.numbers, Numbers::of(&image.groups));
    let mut machine = Coordinator::new(&rig.settings);
    machine.catalog = rig.catalog.clone();
    machine.restore(older);
    assert_eq!(machine.look(Look::Read { from: 0, bytes_max: 1_000 }).rows.len(), 2);
    let all: Image = postcard::from_bytes(&postcard::to_stdvec(&image).expect("encoded")).expect("read");
    assert_eq!(all, image);
}

#[test]
fn records_that_change_nothing_take_no_number() {
    let mut numbers = Numbers::default();
    let stored: BTreeMap<String, Stored> = BTreeMap::new();
    for record in [
        Record::GroupDropped { group: "g".into() },
        Record::OffsetsDropped { group: "g".into(), keys: vec![(topic(1), 0)] },
        Record::Configured { group: "g".into(), configs: BTreeMap::new() },
    ] {
        numbers.apply(&record, &[]);
    }
    assert_eq!(numbers, Numbers::of(&stored));
}
