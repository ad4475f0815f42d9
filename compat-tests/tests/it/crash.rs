//! The crash storm in its small, seeded form; `storm` is the command for the big one.

use std::time::Duration;

use kafka_protocol::messages::ProduceRequest;
use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::payload::{Place, RecordId, record};
use rangeway_compat_tests::storm::{Plan, Reshard, run, small_sizes};
use rangeway_compat_tests::wire::{self, Connection, PRODUCE_VERSION};

#[test]
fn nothing_acknowledged_is_lost_doubled_or_reordered_over_eight_kills() {
    let kind = Kind::from_env();
    let plan = Plan {
        kind,
        seed: 20_261_129,
        kills: 8,
        producers: 4,
        rate: 2_000_000,
        disks: 1,
        lose_disk: false,
        settings: small_sizes(kind),
        require_roll: kind == Kind::Rangeway,
        verify: true,
        reshard: None,
    };
    let summary = run(&plan).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
    assert!(summary.in_flight.iter().any(|n| *n > 0), "no kill met an append in flight: {summary}");
}

fn on_disks(disks: usize, drive: &str, seed: u64) -> Plan {
    let drive = ("drive".to_owned(), drive.to_owned());
    Plan {
        disks,
        settings: small_sizes(Kind::Rangeway).into_iter().chain([drive]).collect(),
        ..with_reshards(6, seed, 1)
    }
}

#[test]
fn nothing_acknowledged_is_lost_on_a_quorum_that_loses_a_disk_every_other_time() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let plan = Plan { lose_disk: true, ..on_disks(3, "quorum(3, write=2)", 20_261_132) };
    let summary = run(&plan).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
}

#[test]
fn nothing_acknowledged_is_lost_on_stripes() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let summary = run(&on_disks(2, "striped(2, disk)", 20_261_133)).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
}

fn with_reshards(kills: u32, seed: u64, least: u64) -> Plan {
    Plan {
        kind: Kind::Rangeway,
        seed,
        kills,
        producers: 4,
        rate: 1_000_000,
        disks: 1,
        lose_disk: false,
        settings: small_sizes(Kind::Rangeway),
        require_roll: false,
        verify: true,
        reshard: Some(Reshard { least, pause_ms: 20 }),
    }
}

#[test]
fn clients_notice_nothing_while_ranges_split_and_merge() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let summary = run(&with_reshards(0, 20_261_130, 60)).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
}

#[test]
fn nothing_acknowledged_is_lost_when_kills_fall_into_splits_and_merges() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let summary = run(&with_reshards(8, 20_261_131, 1)).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
    assert!(summary.in_reshard > 0, "no kill met a split or merge: {summary}");
}

#[test]
fn a_batch_sent_again_is_answered_with_its_offset_before_and_after_a_kill() {
    let mut broker = Broker::start(Kind::from_env(), &[]).unwrap();
    let open = |broker: &Broker| Connection::open(broker.address(), Duration::from_secs(60)).unwrap();
    let mut connection = open(&broker);
    connection.create_topic("again", 1, &[]).unwrap();
    let producer = connection.init_producer().unwrap().unwrap();
    let place = Place { topic: 0, partition: 0 };
    let send = |connection: &mut Connection, sequence: i32| {
        let mut records = [record(place, RecordId { producer: 0, counter: sequence as u64 }, 0)];
        let batch = wire::batch(&mut records, Some((producer.0, producer.1, sequence))).unwrap();
        let request = wire::produce_request(vec![("again", 0, batch)], -1, 30_000);
        let response = connection.call::<ProduceRequest>(&request, PRODUCE_VERSION).unwrap();
        let part = &response.responses[0].partition_responses[0];
        (part.error_code, part.base_offset)
    };
    for (sequence, offset) in [(0, 0), (1, 1), (1, 1), (0, 0)] {
        assert_eq!(send(&mut connection, sequence), (0, offset), "sequence {sequence}");
    }
    broker.kill().unwrap();
    broker.restart().unwrap();
    let mut connection = open(&broker);
    for (sequence, offset) in [(1, 1), (2, 2), (1, 1)] {
        assert_eq!(send(&mut connection, sequence), (0, offset), "sequence {sequence} after the kill");
    }
    const OUT_OF_ORDER: i16 = 45;
    assert_eq!(send(&mut connection, 4).0, OUT_OF_ORDER);
    assert_eq!(connection.list_offset("again", 0, -1).unwrap(), (0, 3));
}
