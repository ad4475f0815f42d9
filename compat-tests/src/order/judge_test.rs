//! Two producers, three partitions, a group of two members of which one has two lives, and a reader alone: what they say of
//! a sound log passes, and each kind of harm is seen.

use super::*;

/// Producer 0: key 0 in partition 0 (4 records), key 1 in partition 1 (3). Producer 1: key 0 in partition 0 (2 records).
/// Partition 2 is empty.
fn sound() -> History {
    let first =
        "acked 7\noffsets 0 4 0 5 9\noffsets 1 3 0 2 3\nkey 0 4 4\nkey 1 3 3\nfailed 0\nretries 0\ndone";
    let second =
        "acked 7\noffsets 0 2 2 4 6\noffsets 1 5 3 7 25\nkey 0 2 2\nkey 1 5 5\nfailed 0\nretries 0\ndone";
    let whole = "stretch 0 0 6 0:0:0:4 1:0:0:2\nstretch 1 0 8 0:1:0:3 1:1:0:5\nstretch 2 0 0\nread 14\ndone";
    History {
        partitions: 3,
        records_each: 7,
        producers: vec![("p0".into(), report(first)), ("p1".into(), report(second))],
        readers: vec![
            Reader {
                name: "group".into(),
                lives: vec![
                    ("a".into(), report("assigned 0\nrevoked 0\nstretch 0 0 3 0:0:0:2 1:0:0:1\ndone")),
                    (
                        "b".into(),
                        report(
                            "assigned 1 2\nrevoked 1 2\nstretch 1 0 4 0:1:0:3 1:1:0:1\nstretch 2 0 0\n\
                             assigned 0 1 2\nstretch 0 3 3\nstretch 1 4 8 1:1:1:5\nstretch 2 0 0\ndone",
                        ),
                    ),
                    ("a".into(), report("assigned 0\nstretch 0 3 6 0:0:2:4 1:0:1:2\ndone")),
                ],
            },
            Reader { name: "alone".into(), lives: vec![("alone".into(), report(whole))] },
        ],
        reshards_wanted: 12,
        reshards: 13,
        ranges: (1, 3),
        ..History::default()
    }
}

fn report(lines: &str) -> Report {
    let mut report = Report::default();
    lines.lines().for_each(|line| report.take(line).unwrap());
    report
}

/// The faults of the sound history with that done to it.
fn faults(harm: impl FnOnce(&mut History)) -> Vec<Fault> {
    let mut history = sound();
    harm(&mut history);
    judge(&history)
}

fn life(history: &mut History, reader: usize, life: usize) -> &mut Report {
    &mut history.readers[reader].lives[life].1
}

#[test]
fn a_sound_history_passes() {
    assert_eq!(faults(|_| ()), []);
}

#[test]
fn offsets_that_are_left_out_or_given_twice_are_not_dense() {
    // As many records as before: only the sum shows a gap at 1 that is hidden by a second 2.
    let told = faults(|h| h.producers[0].1.offsets.get_mut(&0).unwrap().sum += 1);
    assert_eq!(told, [Fault::NotDense { partition: 0, records: 6, last: 5, sum: 16 }]);
    let told = faults(|h| h.producers[1].1.offsets.get_mut(&1).unwrap().last += 1);
    assert!(told.contains(&Fault::NotDense { partition: 1, records: 8, last: 8, sum: 28 }), "{told:?}");
}

#[test]
fn a_failed_send_and_a_record_without_an_answer_are_told() {
    assert_eq!(
        faults(|h| h.producers[0].1.failed = 2),
        [Fault::FailedSends { name: "p0".into(), failed: 2 }]
    );
    let told = faults(|h| {
        h.producers[1].1.keys.insert(1, (6, 5));
    });
    assert_eq!(told, [Fault::NotAcknowledged { name: "p1".into(), key: Some(1), sent: 6, acked: 5 }]);
    let told = faults(|h| h.records_each = 8);
    assert!(
        told.contains(&Fault::NotAcknowledged { name: "p0".into(), key: None, sent: 8, acked: 7 }),
        "{told:?}"
    );
}

#[test]
fn a_member_that_skips_or_repeats_after_a_restart_is_told() {
    for first in [2, 4] {
        let told = faults(|h| life(h, 0, 2).stretches[0].first = first);
        let resumed = |f: &Fault| matches!(f, Fault::Resumed { partition: 0, .. });
        assert!(told.iter().any(resumed), "{first}: {told:?}");
    }
}

#[test]
fn a_reader_that_stops_before_the_end_or_reads_beyond_it_is_told() {
    for next in [5, 7] {
        let told = faults(|h| life(h, 1, 0).stretches[0].next = next);
        assert_eq!(told, [Fault::Ended { reader: "alone".into(), partition: 0, due: 6, next }]);
    }
}

#[test]
fn counters_of_a_key_that_do_not_follow_from_life_to_life_are_told() {
    let told = faults(|h| {
        life(h, 0, 2).stretches[0].keys.insert((0, 0), (3, 4));
    });
    let wanted = Fault::Key { reader: "group".into(), partition: 0, producer: 0, key: 0, due: 2, found: 3 };
    assert_eq!(told, [wanted]);
}

#[test]
fn a_key_that_a_reader_never_saw_to_its_end_is_told() {
    let told = faults(|h| {
        life(h, 1, 0).stretches[1].keys.remove(&(1, 1));
    });
    let wanted = Fault::Key { reader: "alone".into(), partition: -1, producer: 1, key: 1, due: 5, found: 0 };
    assert_eq!(told, [wanted]);
}

#[test]
fn what_a_client_complains_of_and_a_client_without_an_end_are_told() {
    let told = faults(|h| {
        life(h, 1, 0).take("fault partition 0: offset 4 where 3 was due").unwrap();
        life(h, 0, 1).done = false;
    });
    let complaint =
        Fault::Client { name: "alone".into(), what: "partition 0: offset 4 where 3 was due".into() };
    assert_eq!(told, [Fault::Unfinished { name: "b".into() }, complaint]);
}

#[test]
fn rebalances_few_reshards_no_sweep_and_logged_errors_are_told() {
    let told = faults(|h| {
        h.rebalances.push("b".into());
        h.reshards = 11;
        h.ranges = (1, 2);
        h.log_errors.push("ERROR".into());
        h.wrong.push("late".into());
    });
    assert_eq!(
        told,
        [
            Fault::Wrong { what: "late".into() },
            Fault::Rebalance { what: "b".into() },
            Fault::FewReshards { wanted: 12, done: 11 },
            Fault::NoSweep { least: 1, most: 2 },
            Fault::Logged { line: "ERROR".into() },
        ]
    );
}

#[test]
fn a_line_that_means_nothing_is_an_error() {
    for line in ["", "offsets 1 2", "stretch 0 0 1 1:2:3", "key a 1 1", "hello"] {
        assert!(Report::default().take(line).is_err(), "{line:?}");
    }
}
