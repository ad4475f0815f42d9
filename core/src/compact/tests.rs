//! Cleaning against a model that holds all records in one list; and what is due.

use super::clean::{Cleaner, Item, Rules, mark, note_keys};
use super::keys::{Class, Full, KeyMap, Marks, Newer};
use super::plan::{self, Piece, Policy};
use crate::codec::batch::{BatchHead, TRANSACTIONAL_BIT};
use crate::codec::crc32c;
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::codec::marker::MarkerBody;
use crate::codec::records::{OpenBatch, Uncompressed, delete_horizon};
use crate::testing::batch::keyed;
use crate::types::{Address, LogletId, Offset, RangeId, Span};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CODEC: Uncompressed = Uncompressed;

fn header(kind: EntryKind, base_offset: Offset, payload_len: usize) -> EntryHeader {
    EntryHeader {
        loglet: LogletId(1),
        address: Address(0),
        kind,
        flags: 0,
        partition: 0,
        base_offset,
        last_offset_delta: 0,
        record_count: 1,
        leader_epoch: 0,
        appended_at: 5,
        first_timestamp: -1,
        max_timestamp: -1,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: payload_len as u32,
    }
}

/// A stored batch; `producer`: in a transaction of it, which was aborted or not.
fn item(base: Offset, records: &[(Option<&str>, Option<&str>)], producer: Option<(i64, bool)>) -> Item {
    let attributes = if producer.is_some() { TRANSACTIONAL_BIT } else { 0 };
    let batch = keyed(attributes, 0, producer.map(|(id, _)| (id, 0, 0)), 1000 + base, records);
    let header = EntryHeader {
        last_offset_delta: records.len() as i32 - 1,
        record_count: records.len() as i32,
        max_timestamp: 1000 + base,
        producer_id: producer.map_or(-1, |(id, _)| id),
        attributes,
        ..header(EntryKind::Data, base, batch.bytes.len())
    };
    Item { header, payload: batch.bytes, aborted: producer.is_some_and(|(_, aborted)| aborted) }
}

fn marker(base: Offset, producer_id: i64, commit: bool) -> Item {
    let body = MarkerBody { producer_id, producer_epoch: 0, coordinator_epoch: 0, number: 1, commit };
    let header = body.header(header(EntryKind::Control, base, 0));
    Item { header, payload: body.batch(&header), aborted: false }
}

fn rules(now: i64, log_start: Offset) -> Rules {
    Rules { log_starts: BTreeMap::from([(0, log_start)]), now, delete_retention_ms: 100 }
}

fn map_of(items: &[Item]) -> KeyMap {
    let mut map = KeyMap::new(7, Class { nth: 0, of: 1 }, 1 << 20);
    items.iter().for_each(|item| note_keys(&mut map, item, &CODEC).expect("fits"));
    map
}

fn cleaned(items: &[Item], newer: Newer, rules: Rules) -> Vec<Item> {
    let mut cleaner = Cleaner::new(rules, newer);
    let last = items.last().map(|item| item.header.base_offset);
    let kept = items.iter().filter_map(|item| {
        let kept = cleaner.clean(item, Some(item.header.base_offset) == last, &CODEC);
        kept.map(|(header, payload)| Item { header, payload, aborted: item.aborted })
    });
    kept.collect()
}

fn clean(items: &[Item], now: i64) -> Vec<Item> {
    cleaned(items, Newer::Keys(map_of(items)), rules(now, 0))
}

type Shown = (Offset, Option<String>, Option<String>, i64);

/// Offset, key, value and timestamp of all records that are not control records; also that headers and CRCs are right.
fn shown(items: &[Item]) -> Vec<Shown> {
    let mut all = Vec::new();
    for item in items {
        assert_eq!(item.header.payload_len as usize, item.payload.len());
        let batch = OpenBatch::new(&item.payload, &CODEC, 1 << 20).expect("a batch");
        assert_eq!(crc32c(&[&item.payload[21..]]), batch.head.crc);
        assert_eq!(batch.head.last_offset_delta, item.header.last_offset_delta);
        assert_eq!(batch.head.record_count, item.header.record_count);
        assert_eq!(batch.head.attributes, item.header.attributes);
        if item.header.kind == EntryKind::Marker {
            continue;
        }
        let text = |field: Option<&[u8]>| field.map(|field| String::from_utf8_lossy(field).into_owned());
        let mut count = 0;
        for record in batch.records() {
            let record = record.expect("a record");
            let time = batch.head.base_timestamp + record.timestamp_delta;
            let offset = item.header.base_offset + i64::from(record.offset_delta);
            all.push((offset, text(record.key), text(record.value), time));
            count += 1;
        }
        assert_eq!(count, item.header.record_count);
        let newest = if count == 0 { -1 } else { 1000 + item.header.base_offset };
        assert_eq!((item.header.max_timestamp, batch.head.max_timestamp), (newest, newest));
    }
    all
}

fn offsets(items: &[Item]) -> Vec<Offset> {
    shown(items).into_iter().map(|record| record.0).collect()
}

#[test]
fn the_newest_of_each_key_stays_with_its_offset_and_what_has_no_key_stays() {
    let (a, b) = (Some("a"), Some("b"));
    let log = [
        item(0, &[(a, Some("1")), (b, Some("2")), (None, Some("3"))], None),
        item(3, &[(a, Some("4"))], None),
        item(4, &[(a, Some("5")), (a, Some("6"))], None),
        item(6, &[(b, Some("7"))], None),
        item(7, &[(a, Some("8"))], None),
    ];
    let kept = clean(&log[..4], 0);
    let bases: Vec<Offset> = kept.iter().map(|item| item.header.base_offset).collect();
    assert_eq!((bases, offsets(&kept)), (vec![0, 4, 6], vec![2, 5, 6]));
    assert_eq!(kept[0].header.last_offset_delta, 2, "the batch ends where it ended");
    assert_eq!(kept[2].payload, log[3].payload, "what stays whole stays as it is");
    // The last entry stays, be it empty.
    let end = [log[3].clone(), log[1].clone(), item(9, &[(a, None)], Some((4, true)))];
    let kept = clean(&end, 0);
    assert_eq!(kept.iter().map(|item| item.header.record_count).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(kept[2].header.attributes, TRANSACTIONAL_BIT);
    // Deleted records go, also those of a batch that is left.
    let kept = cleaned(&log, Newer::Keys(map_of(&[])), rules(0, 5));
    assert_eq!(offsets(&kept), [5, 6, 7]);
}

#[test]
fn a_tombstone_goes_when_its_time_has_come_and_not_before() {
    let log = [
        item(0, &[(Some("a"), Some("1"))], None),
        item(1, &[(Some("a"), None), (Some("b"), Some("2"))], None),
        item(3, &[(Some("c"), Some("3"))], None),
    ];
    let first = clean(&log, 1000);
    assert_eq!(offsets(&first), [1, 2, 3]);
    assert_eq!(BatchHead::parse(&first[0].payload).and_then(|head| delete_horizon(&head)), Some(1100));
    assert_eq!(shown(&first)[0].3, 1001, "times of records are what they were");
    let second = clean(&first, 1099);
    assert_eq!(offsets(&second), [1, 2, 3]);
    assert_eq!(second[0].payload, first[0].payload, "the time is set once");
    let third = clean(&second, 1100);
    assert_eq!(offsets(&third), [2, 3]);
    assert_eq!(shown(&third)[0].3, 1001);
}

#[test]
fn aborted_records_go_and_supersede_nothing_and_markers_stay_as_long_as_they_are_needed() {
    let a = |value| [(Some("a"), Some(value))];
    let log = [
        item(0, &a("1"), None),
        item(1, &a("2"), Some((5, true))),
        marker(2, 5, false),
        item(3, &a("3"), Some((6, false))),
        marker(4, 6, true),
        item(5, &[(Some("z"), Some("9"))], None),
    ];
    let bases = |items: &[Item]| items.iter().map(|item| item.header.base_offset).collect::<Vec<_>>();
    assert_eq!(bases(&clean(&log[..3], 0)), [0, 2], "what was aborted is no newer record");
    let first = clean(&log, 0);
    assert_eq!(bases(&first), [2, 3, 4, 5]);
    // Nothing is left of the committed one: its marker waits its time; the aborted one's stays.
    let later = [
        first[0].clone(),
        first[1].clone(),
        first[2].clone(),
        item(7, &a("4"), None),
        item(8, &a("5"), None),
    ];
    let second = clean(&later, 1000);
    assert_eq!(bases(&second), [2, 4, 8]);
    let marker = MarkerBody::of(&second[1].header).expect("a marker");
    assert!(marker.commit && marker.producer_id == 6);
    assert_eq!(BatchHead::parse(&second[1].payload).and_then(|head| delete_horizon(&head)), Some(1100));
    assert_eq!(bases(&clean(&second, 1099)), [2, 4, 8]);
    assert_eq!(bases(&clean(&second, 1100)), [2, 8]);
}

#[test]
fn a_map_that_is_full_says_so_and_classes_together_are_all_keys() {
    let mut map = KeyMap::new(1, Class { nth: 0, of: 1 }, 0);
    assert_eq!(map.note(0, b"a", 4), Ok(()));
    assert_eq!(map.note(0, b"a", 3), Ok(()));
    assert_eq!((map.note(0, b"b", 3), map.len()), (Err(Full), 1));
    assert!(map.supersedes(0, b"a", 3) && !map.supersedes(0, b"a", 4) && !map.supersedes(1, b"a", 3));
    let in_class = |nth| {
        let mut map = KeyMap::new(1, Class { nth, of: 3 }, 1 << 20);
        (0..300u32).for_each(|key| map.note(0, &key.to_le_bytes(), 1).expect("fits"));
        map.len()
    };
    let each = [in_class(0), in_class(1), in_class(2)];
    assert_eq!(each.iter().sum::<usize>(), 300);
    assert!(each.iter().all(|n| *n > 50), "{each:?}");
}

#[test]
fn bytes_that_are_no_batch_stay_as_they_are() {
    let mut damaged = item(0, &[(Some("a"), Some("1"))], None);
    damaged.payload = damaged.payload.slice(..68);
    let log = [damaged.clone(), item(1, &[(Some("a"), Some("2"))], None)];
    let kept = clean(&log, 0);
    assert_eq!((kept.len(), &kept[0].payload), (2, &damaged.payload));
}

fn piece(range: u32, span: (i32, i32), compacted: bool, bytes: u64) -> Piece {
    let span = Span { first: span.0, last: span.1 };
    Piece { range: RangeId(range), span, compacted, free: true, bytes, oldest: 0, newest: 0 }
}

const HALF: Policy = Policy { dirty_ppm: 500_000, min_lag_ms: 0, max_lag_ms: i64::MAX };

#[test]
fn it_is_due_when_the_share_of_dirty_bytes_or_their_age_says_so() {
    let all = (0, 9);
    let pieces = [piece(0, all, true, 100), piece(0, all, false, 60), piece(0, all, false, 40)];
    assert_eq!(plan::due(&pieces, &HALF, 0), None, "half is not above half");
    let less = Policy { dirty_ppm: 499_999, ..HALF };
    let due = plan::due(&pieces, &less, 0).expect("due");
    assert_eq!((due.dirty, due.targets), (vec![1, 2], vec![0, 1, 2]));
    let old = Policy { max_lag_ms: 50, ..HALF };
    assert_eq!(plan::due(&pieces, &old, 50), None);
    assert!(plan::due(&pieces, &old, 51).is_some());
    assert_eq!(plan::due(&pieces[..1], &Policy { dirty_ppm: 0, ..HALF }, i64::MAX), None, "nothing is dirty");
    assert!(plan::due(&pieces[1..], &Policy { dirty_ppm: 999_999, ..HALF }, 0).is_some(), "nothing is clean");
}

#[test]
fn what_cannot_be_cleaned_holds_back_what_follows_it_in_any_partition() {
    let mut pieces = [
        piece(0, (0, 3), false, 9),
        piece(1, (0, 1), false, 9),
        piece(2, (2, 3), false, 9),
        piece(3, (0, 3), false, 9),
    ];
    let dirty = |pieces: &[Piece], policy| plan::due(pieces, &policy, 10).map(|due| due.dirty);
    assert_eq!(dirty(&pieces, HALF), Some(vec![0, 1, 2, 3]));
    pieces[1].free = false;
    assert_eq!(dirty(&pieces, HALF), Some(vec![0, 2]));
    pieces[0].newest = 5;
    assert_eq!(dirty(&pieces, Policy { min_lag_ms: 6, ..HALF }), None);
    assert_eq!(dirty(&pieces, Policy { min_lag_ms: 5, ..HALF }), Some(vec![0, 2]));
    pieces[0].compacted = true;
    assert_eq!(
        dirty(&pieces, Policy { min_lag_ms: 6, dirty_ppm: 0, ..HALF }),
        Some(vec![2]),
        "what was cleaned is old enough"
    );
}

#[test]
fn families_are_what_shares_histories_and_neighbours_become_one_segment() {
    let kin: [(u32, &[u32]); 7] =
        [(0, &[]), (1, &[]), (2, &[0]), (3, &[0]), (4, &[]), (5, &[3, 1]), (6, &[9])];
    let parents: Vec<(RangeId, Vec<RangeId>)> =
        kin.iter().map(|(id, of)| (RangeId(*id), of.iter().map(|id| RangeId(*id)).collect())).collect();
    let found = plan::families(parents.iter().map(|(id, of)| (*id, of.as_slice())));
    let found: Vec<u32> = found.into_values().map(|id| id.0).collect();
    assert_eq!(found, [0, 0, 0, 0, 4, 0, 6]);
    let all = (0, 9);
    let pieces =
        [(0, 5), (0, 5), (0, 5), (1, 5), (1, 50), (1, 1)].map(|(r, bytes)| piece(r, all, false, bytes));
    assert_eq!(
        plan::groups(&pieces, &[0, 1, 2, 3, 4, 5], 10),
        [vec![0, 1], vec![2], vec![3], vec![4], vec![5]]
    );
    assert_eq!(plan::groups(&pieces, &[0, 2, 3], 100), [vec![0], vec![2], vec![3]]);
    let due = plan::Due { dirty: vec![1, 2, 4, 5], targets: vec![0, 1, 2, 3, 4, 5] };
    let mut pieces = pieces;
    (pieces[0].compacted, pieces[3].compacted) = (true, true);
    let less = plan::less(&due, &pieces).expect("less");
    assert_eq!((less.dirty.clone(), less.targets.clone()), (vec![1, 2], vec![0, 1, 2, 3]));
    assert!(plan::less(&plan::less(&less, &pieces).expect("one"), &pieces).is_none());
}

/// Key, tombstone, transaction: 0 none, 1 committed, 2 aborted; how many records.
type Step = (u8, bool, u8, u8);

fn log_of(steps: &[Step]) -> Vec<Item> {
    let names = ["a", "b", "c", "d", "e"];
    let mut next = 0;
    let mut log = Vec::new();
    for (n, (key, tombstone, transaction, count)) in steps.iter().enumerate() {
        let value = format!("v{n}");
        let record = |k: usize| (names.get(k).copied(), (!tombstone).then_some(value.as_str()));
        let records: Vec<_> =
            (0..=usize::from(*count)).map(|more| record((usize::from(*key) + more) % 6)).collect();
        let producer = (*transaction > 0).then_some((n as i64, *transaction == 2));
        log.push(item(next, &records, producer));
        next += records.len() as i64;
        if *transaction > 0 {
            log.push(marker(next, n as i64, *transaction == 1));
            next += 1;
        }
    }
    log
}

/// What a reader of committed records has in the end, and the newest record of each key, by a walk over the whole log.
fn model(log: &[Item]) -> (BTreeSet<Shown>, BTreeMap<String, Shown>) {
    let mut latest = BTreeMap::new();
    let mut keyless = BTreeSet::new();
    for record in shown(&log.iter().filter(|item| !item.aborted).cloned().collect::<Vec<_>>()) {
        match record.1.clone() {
            Some(key) => drop(latest.insert(key, record)),
            None => drop(keyless.insert(record)),
        }
    }
    (keyless, latest)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever is cleaned how often, in one pass or in several: the newest of each key is there with offset, time and value
    /// (tombstones until their time), nothing else with a key that is superseded, what has no key is there; and both ways to
    /// know what is superseded agree.
    #[test]
    fn cleaning_agrees_with_the_model(
        steps in prop::collection::vec((0..6u8, prop::bool::weighted(0.2), 0..3u8, 0..3u8), 1..40),
        cuts in prop::collection::vec(0..60usize, 0..4),
        classes in 1..4u64,
        step_ms in 0..150i64,
    ) {
        let log = log_of(&steps);
        let mut present: Vec<Item> = Vec::new();
        let (mut clean_to, mut now) = (0, 0);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| *cut.min(&log.len())).collect();
        ends.push(log.len());
        ends.sort_unstable();
        for end in ends.into_iter().filter(|end| *end > 0) {
            let dirty = &log[clean_to..end];
            present.extend_from_slice(dirty);
            let mut marks = Marks::default();
            for nth in 0..classes {
                let mut map = KeyMap::new(3, Class { nth, of: classes }, 1 << 20);
                dirty.iter().for_each(|item| note_keys(&mut map, item, &CODEC).expect("fits"));
                present.iter().for_each(|item| mark(&map, &mut marks, item, &CODEC));
            }
            let by_marks = cleaned(&present, Newer::Marks(marks), rules(now, 0));
            let by_map = cleaned(&present, Newer::Keys(map_of(dirty)), rules(now, 0));
            prop_assert_eq!(shown(&by_marks), shown(&by_map));
            present = by_map;
            clean_to = end;
            now += step_ms;
            let (keyless, latest) = model(&log[..end]);
            let found = shown(&present);
            prop_assert!(found.is_sorted_by(|a, b| a.0 < b.0));
            for record in &found {
                match &record.1 {
                    Some(key) => prop_assert_eq!(Some(record), latest.get(key)),
                    None => prop_assert!(keyless.contains(record)),
                }
            }
            for record in keyless.iter().chain(latest.values().filter(|record| record.2.is_some())) {
                prop_assert!(found.contains(record), "{:?} is gone", record);
            }
            if now < 100 {
                prop_assert_eq!(found.len(), keyless.len() + latest.len(), "no tombstone goes before its time");
            }
            let last = |items: &[Item]| items.last().map(|item| item.header.last_offset());
            prop_assert_eq!(last(&present), last(&log[..end]));
        }
    }

    #[test]
    fn any_bytes_are_cleaned_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), count in -2..5i32) {
        let mut one = item(0, &[(Some("a"), None), (Some("b"), Some("x"))], None);
        let mut payload = one.payload.to_vec();
        payload.truncate(61);
        payload.extend(&bytes);
        payload[57..61].copy_from_slice(&count.to_be_bytes());
        one.payload = payload.into();
        clean(&[one.clone(), one], 5);
    }
}
