//! The judge is judged first: each kind of harm, done to a log that is right, must be named.

use super::*;

const PLACE: Place = Place { topic: 0, partition: 0 };
const TRIMMED: Place = Place { topic: 1, partition: 0 };
const ONCE: u32 = 1;
const PLAIN: u32 = 2;

fn id(producer: u32, counter: u64) -> RecordId {
    RecordId { producer, counter }
}

fn stored(base_offset: i64, producer: u32, counters: impl IntoIterator<Item = u64>) -> Stored {
    let records = counters.into_iter().map(|counter| Ok(id(producer, counter))).collect();
    Stored { base_offset, epoch: 0, records }
}

fn log(batches: Vec<Stored>) -> Log {
    let end = batches.last().map_or(0, |b| b.base_offset + b.records.len() as i64);
    Log { start: batches.first().map_or(0, |b| b.base_offset), end, batches }
}

fn ack(producer: u32, first: u64, count: u32, base_offset: i64) -> Ack {
    Ack { producer, batch: Attempt { first, count }, base_offset }
}

/// Two idempotent batches with a plain one between, all acknowledged.
fn history(place: Place) -> History {
    let mut history = History::default();
    history.producer(ONCE, Kind::Idempotent);
    history.producer(PLAIN, Kind::Plain);
    history.may_trim(TRIMMED.topic);
    for (producer, first, base) in [(ONCE, 0, 0), (PLAIN, 0, 2), (ONCE, 2, 4)] {
        history.attempted(place, producer, Attempt { first, count: 2 });
        history.acked(place, ack(producer, first, 2, base));
    }
    history
}

fn right() -> Vec<Stored> {
    vec![stored(0, ONCE, 0..2), stored(2, PLAIN, 0..2), stored(4, ONCE, 2..4)]
}

fn judged(history: &History, batches: Vec<Stored>) -> Vec<Fault> {
    judge(history, &BTreeMap::from([(PLACE, log(batches))]))
}

#[track_caller]
fn names(faults: &[Fault], wanted: impl Fn(&Fault) -> bool) {
    assert!(faults.iter().any(wanted), "{faults:?}");
}

#[test]
fn what_was_sent_answered_and_stored_alike_has_no_fault() {
    assert_eq!(judged(&history(PLACE), right()), []);
}

#[test]
fn a_lost_record_at_the_end_is_named() {
    let faults = judged(&history(PLACE), right()[..2].to_vec());
    names(&faults, |f| *f == Fault::Lost { place: PLACE, id: id(ONCE, 3), offset: 5 });
    names(&faults, |f| *f == Fault::EndFell { place: PLACE, was: 6, is: 4 });
}

#[test]
fn a_lost_batch_in_the_middle_that_moves_the_rest_is_named() {
    let batches = vec![stored(0, ONCE, 0..2), stored(2, ONCE, 2..4)];
    let faults = judged(&history(PLACE), batches);
    names(&faults, |f| matches!(f, Fault::Renumbered { id, offset: 2, .. } if id.producer == PLAIN));
    names(&faults, |f| *f == Fault::Lost { place: PLACE, id: id(ONCE, 2), offset: 4 });
}

#[test]
fn a_hole_is_named() {
    let batches = vec![stored(0, ONCE, 0..2), stored(4, ONCE, 2..4)];
    let faults = judged(&history(PLACE), batches);
    names(&faults, |f| *f == Fault::NotDense { place: PLACE, expected: 2, found: 4 });
    names(&faults, |f| *f == Fault::Lost { place: PLACE, id: id(PLAIN, 0), offset: 2 });
}

#[test]
fn a_doubled_idempotent_batch_is_named() {
    let mut batches = right();
    batches.push(stored(6, ONCE, 2..4));
    names(&judged(&history(PLACE), batches), |f| {
        *f == Fault::Doubled { place: PLACE, id: id(ONCE, 2), offset: 6 }
    });
}

#[test]
fn a_plain_batch_may_be_stored_as_often_as_it_was_sent_and_no_more() {
    let mut history = history(PLACE);
    history.attempted(PLACE, PLAIN, Attempt { first: 0, count: 2 });
    let mut batches = right();
    batches.push(stored(6, PLAIN, 0..2));
    assert_eq!(judged(&history, batches.clone()), []);
    batches.push(stored(8, PLAIN, 0..2));
    names(&judged(&history, batches), |f| *f == Fault::Doubled { place: PLACE, id: id(PLAIN, 0), offset: 8 });
}

#[test]
fn an_unacknowledged_batch_may_be_there_or_not() {
    let mut history = history(PLACE);
    history.attempted(PLACE, ONCE, Attempt { first: 4, count: 1 });
    history.attempted(PLACE, PLAIN, Attempt { first: 2, count: 1 });
    assert_eq!(judged(&history, right()), []);
    let mut batches = right();
    batches.extend([stored(6, ONCE, 4..5), stored(7, PLAIN, 2..3)]);
    assert_eq!(judged(&history, batches), []);
}

#[test]
fn idempotent_batches_against_their_order_are_named() {
    let mut history = History::default();
    history.producer(ONCE, Kind::Idempotent);
    for first in [0, 2] {
        history.attempted(PLACE, ONCE, Attempt { first, count: 2 });
    }
    let faults = judged(&history, vec![stored(0, ONCE, 2..4), stored(2, ONCE, 0..2)]);
    names(&faults, |f| *f == Fault::LeftOut { place: PLACE, id: id(ONCE, 0), offset: 0 });
    names(&faults, |f| *f == Fault::Reordered { place: PLACE, id: id(ONCE, 0), offset: 2 });
}

#[test]
fn plain_batches_against_their_order_are_named() {
    let mut history = History::default();
    history.producer(PLAIN, Kind::Plain);
    for first in [0, 2] {
        history.attempted(PLACE, PLAIN, Attempt { first, count: 2 });
    }
    let swapped = vec![stored(0, PLAIN, 2..4), stored(2, PLAIN, 0..2)];
    names(&judged(&history, swapped.clone()), |f| {
        *f == Fault::Reordered { place: PLACE, id: id(PLAIN, 0), offset: 2 }
    });
    history.attempted(PLACE, PLAIN, Attempt { first: 0, count: 2 });
    assert_eq!(judged(&history, swapped), [], "the first batch was sent once more after the second");
}

#[test]
fn an_idempotent_batch_left_out_before_a_later_one_is_named() {
    let mut history = History::default();
    history.producer(ONCE, Kind::Idempotent);
    for first in [0, 2, 4] {
        history.attempted(PLACE, ONCE, Attempt { first, count: 2 });
    }
    let faults = judged(&history, vec![stored(0, ONCE, 0..2), stored(2, ONCE, 4..6)]);
    assert_eq!(faults, [Fault::LeftOut { place: PLACE, id: id(ONCE, 2), offset: 2 }]);
}

#[test]
fn half_a_batch_is_named() {
    let mut history = History::default();
    history.producer(PLAIN, Kind::Plain);
    history.attempted(PLACE, PLAIN, Attempt { first: 0, count: 3 });
    let faults = judged(&history, vec![stored(0, PLAIN, 0..2)]);
    names(&faults, |f| *f == Fault::LeftOut { place: PLACE, id: id(PLAIN, 2), offset: 2 });
}

#[test]
fn a_record_at_another_offset_than_acknowledged_is_named() {
    let mut history = History::default();
    history.producer(ONCE, Kind::Idempotent);
    history.attempted(PLACE, ONCE, Attempt { first: 0, count: 2 });
    history.acked(PLACE, ack(ONCE, 0, 2, 1));
    let faults = judged(&history, vec![stored(0, ONCE, 0..2)]);
    names(&faults, |f| {
        *f == Fault::Renumbered { place: PLACE, id: id(ONCE, 0), offset: 1, found: id(ONCE, 1) }
    });
}

#[test]
fn what_a_consumer_saw_must_stay_even_unacknowledged() {
    let mut history = History::default();
    history.producer(PLAIN, Kind::Plain);
    history.attempted(PLACE, PLAIN, Attempt { first: 0, count: 1 });
    history.attempted(PLACE, PLAIN, Attempt { first: 1, count: 1 });
    history.seen(PLACE, 0, Ok(id(PLAIN, 0)));
    let gone = judged(&history, vec![]);
    names(&gone, |f| *f == Fault::Changed { place: PLACE, offset: 0, was: id(PLAIN, 0), is: None });
    let other = judged(&history, vec![stored(0, PLAIN, 1..2)]);
    names(&other, |f| matches!(f, Fault::Changed { offset: 0, is: Some(_), .. }));
    history.seen(PLACE, 0, Ok(id(PLAIN, 1)));
    names(history.faults(), |f| matches!(f, Fault::Changed { offset: 0, is: Some(_), .. }));
}

#[test]
fn strangers_and_damage_are_named() {
    let mut batches = right();
    batches.push(stored(6, 9, 0..1));
    batches.push(stored(7, ONCE, 4..5));
    batches.push(Stored { base_offset: 8, epoch: 0, records: vec![Err("another value".into())] });
    let faults = judged(&history(PLACE), batches);
    names(&faults, |f| *f == Fault::Invented { place: PLACE, id: id(9, 0), offset: 6 });
    names(&faults, |f| *f == Fault::Invented { place: PLACE, id: id(ONCE, 4), offset: 7 });
    names(&faults, |f| matches!(f, Fault::Damaged { offset: 8, .. }));
}

#[test]
fn an_epoch_that_falls_is_named() {
    let mut batches = right();
    batches[1].epoch = 2;
    names(&judged(&history(PLACE), batches), |f| {
        *f == Fault::EpochFell { place: PLACE, offset: 4, was: 2, is: 0 }
    });
}

#[test]
fn an_end_or_start_that_falls_is_named() {
    let mut history = history(PLACE);
    history.bounds(PLACE, 0, 5);
    names(history.faults(), |f| *f == Fault::EndFell { place: PLACE, was: 6, is: 5 });
    history.bounds(PLACE, 2, 6);
    names(history.faults(), |f| *f == Fault::StartMoved { place: PLACE, was: 0, is: 2 });
    history.bounds(TRIMMED, 4, 6);
    history.bounds(TRIMMED, 2, 6);
    names(history.faults(), |f| *f == Fault::StartMoved { place: TRIMMED, was: 4, is: 2 });
}

#[test]
fn a_trimmed_front_is_allowed_where_trimming_is_and_judged_by_what_was_seen() {
    let mut history = history(TRIMMED);
    history.bounds(TRIMMED, 4, 6);
    let suffix = BTreeMap::from([(TRIMMED, log(right()[2..].to_vec()))]);
    assert_eq!(judge(&history, &suffix), []);
    history.seen(TRIMMED, 0, Ok(id(PLAIN, 0)));
    names(&judge(&history, &suffix), |f| matches!(f, Fault::Renumbered { offset: 0, .. }));
}

#[test]
fn a_commit_that_falls_is_named() {
    let mut history = History::default();
    history.committing("g", PLACE, 5);
    history.committed("g", PLACE, 5);
    history.committing("g", PLACE, 9);
    history.position("g", PLACE, 5);
    history.position("g", PLACE, 9);
    assert_eq!(history.faults(), [], "an unacknowledged commit may have happened");
    history.position("g", PLACE, 5);
    names(history.faults(), |f| matches!(f, Fault::CommitFell { was: 9, is: 5, .. }));
    history.position("g", PLACE, 10);
    names(history.faults(), |f| matches!(f, Fault::Answer { .. }));
}
