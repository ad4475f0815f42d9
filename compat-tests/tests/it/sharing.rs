//! Small appends of many ranges that are in flight together share few durable writes.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::ProduceRequest;
use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::payload::{Place, RecordId, record};
use rangeway_compat_tests::wire::{self, Connection, PRODUCE_VERSION};

const RANGES: u16 = 1_000;
const CONNECTIONS: usize = 50;
/// The faster a disk, the fewer appends come while one write lasts. A file for each range would take them all.
const DURABLE_WRITES_MAX: f64 = 500.0;

#[test]
fn a_thousand_ranges_with_an_append_each_share_their_durable_writes() {
    let mut broker = Broker::start(Kind::Rangeway, &[]).unwrap();
    let open = || Connection::open(broker.address(), Duration::from_secs(60)).unwrap();
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| open()).collect();
    for number in 0..RANGES {
        connections[0].create_topic(&name(number), 1, &[]).unwrap();
    }
    // The first append of each opens its range.
    append_to_all(&broker, &mut connections, 0);
    let before = durable_writes(&broker);
    append_to_all(&broker, &mut connections, 1);
    let shared = durable_writes(&broker) - before;
    println!("{RANGES} appends in flight together took {shared} durable writes");
    assert!(shared > 0.0 && shared < DURABLE_WRITES_MAX, "{RANGES} appends took {shared} durable writes");
    broker.stop().unwrap();
}

fn name(number: u16) -> String {
    format!("range-{number}")
}

/// A request on each connection, with a batch for each of its topics, all there before the broker takes the first.
fn append_to_all(broker: &Broker, connections: &mut [Connection], counter: u64) {
    broker.hold().unwrap();
    for (first, connection) in (0..).zip(connections.iter_mut()) {
        let names: Vec<(u16, String)> =
            (first..RANGES).step_by(CONNECTIONS).map(|number| (number, name(number))).collect();
        let batches = names.iter().map(|(number, name)| (name.as_str(), 0, small_batch(*number, counter)));
        let request = wire::produce_request(batches.collect(), -1, 30_000);
        connection.send(&request, PRODUCE_VERSION).unwrap();
    }
    broker.go_on().unwrap();
    for connection in connections {
        let response = connection.receive::<ProduceRequest>().unwrap();
        assert_eq!(response.responses.len(), usize::from(RANGES) / CONNECTIONS);
        for topic in &response.responses {
            let part = &topic.partition_responses[0];
            assert_eq!((part.error_code, part.base_offset), (0, counter as i64), "{:?}", topic.name);
        }
    }
}

fn small_batch(number: u16, counter: u64) -> Bytes {
    let place = Place { topic: number, partition: 0 };
    let mut records = [record(place, RecordId { producer: 0, counter }, 0)];
    records[0].value = Some(Bytes::from_static(b"a small record"));
    wire::batch(&mut records, None).unwrap()
}

fn durable_writes(broker: &Broker) -> f64 {
    let metrics = broker.http_get("/metrics").unwrap();
    rangeway_compat_tests::storm::metric_sum(&metrics, "rangeway_journal_syncs_total")
}
