//! A disk that fills up to its last block while ranges split and merge: what was acknowledged stays, what cannot be done is refused with an
//! answer, and all goes on once there is room, without a restart and across one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use kafka_protocol::messages::ProduceRequest;
use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::checks::client::is_retriable;
use rangeway_compat_tests::checks::numbered::{follow, record};
use rangeway_compat_tests::http;
use rangeway_compat_tests::wire::{self, Connection, FETCH_VERSION, FetchFrom, PRODUCE_VERSION};

const TOPIC: &str = "full";
const PARTITIONS: i32 = 4;
const DISK_BYTES: u64 = 48 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const SETTINGS: &[(&str, &str)] = &[
    ("extent.bytes", "1048576"),
    ("journal.bytes", "4194304"),
    ("memory.tail.bytes", "1048576"),
    ("segment.roll.bytes", "2097152"),
    ("disk.reserve.bytes", "2097152"),
    ("checkpoint.bytes", "1048576"),
];

/// A small file system of its own, where one may be made; else a folder whose disk is never full.
struct Small {
    folder: PathBuf,
    mounted: bool,
}

impl Small {
    fn at(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "tmpfs"]).arg(&folder);
        let mounted = mount.output().is_ok_and(|done| done.status.success());
        Self { folder, mounted }
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Writes until nothing more goes in.
    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 20, 4096, 1] {
            let block = vec![1; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily: whatever is still open there ends with the test.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
        }
    }
}

/// A producer with an id that sends one batch at a time, the same one until it is acknowledged.
struct Sender {
    connection: Connection,
    producer: (i64, i16),
    /// Of each partition: acknowledged, all below.
    acked: [i64; PARTITIONS as usize],
}

impl Sender {
    fn new(broker: &Broker) -> Self {
        let mut connection = Connection::open(broker.address(), PATIENCE).unwrap();
        connection.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
        let producer = connection.init_producer().unwrap().unwrap();
        Self { connection, producer, acked: [0; PARTITIONS as usize] }
    }

    fn again(&mut self, broker: &Broker) {
        self.connection = Connection::open(broker.address(), PATIENCE).unwrap();
    }

    /// Whether the partition's next ten records are acknowledged.
    fn send(&mut self, partition: i32) -> bool {
        let first = self.acked[partition as usize];
        let numbers = first as u64..first as u64 + 10;
        let mut records: Vec<_> = numbers.map(|n| record(partition, n, 0)).collect();
        let bytes =
            wire::batch(&mut records, Some((self.producer.0, self.producer.1, first as i32))).unwrap();
        let request = wire::produce_request(vec![(TOPIC, partition, bytes)], -1, 2_000);
        let response = self.connection.call::<ProduceRequest>(&request, PRODUCE_VERSION).unwrap();
        let answer = &response.responses[0].partition_responses[0];
        let code = answer.error_code;
        assert!(code == 0 || is_retriable(code), "partition {partition}: answered {code}");
        if code == 0 {
            assert_eq!(answer.base_offset, first, "partition {partition}");
            self.acked[partition as usize] += 10;
        }
        code == 0
    }

    /// Until every partition has taken so many batches more.
    fn send_all(&mut self, batches: i64) {
        let began = Instant::now();
        for partition in 0..PARTITIONS {
            let wanted = self.acked[partition as usize] + 10 * batches;
            while self.acked[partition as usize] < wanted {
                if !self.send(partition) {
                    assert!(began.elapsed() < PATIENCE, "partition {partition} takes nothing");
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Everything acknowledged is there, once and in its place.
    fn read_all(&mut self) {
        for partition in 0..PARTITIONS {
            let mut next = 0;
            while next < self.acked[partition as usize] {
                let from = [FetchFrom { topic: TOPIC, partition, offset: next }];
                let request = wire::fetch_request(&from, 100, 1 << 20);
                let response = self
                    .connection
                    .call::<kafka_protocol::messages::FetchRequest>(&request, FETCH_VERSION)
                    .unwrap();
                let answer = &response.responses[0].partitions[0];
                assert_eq!(answer.error_code, 0, "partition {partition}: a fetch at {next}");
                let batches = wire::batches(answer.records.clone().unwrap_or_default()).unwrap();
                let after = follow(partition, next, &batches, 0).unwrap();
                assert!(after > next, "partition {partition} gives nothing at {next}");
                next = after;
            }
        }
    }
}

/// Splits the only range or merges the first two; the status.
fn reshard(broker: &Broker) -> u16 {
    let (status, body) =
        http::call(broker.http_address(), "GET", &format!("/api/v1/topics/{TOPIC}/ranges"), "").unwrap();
    assert_eq!(status, 200, "{body}");
    let ranges: serde_json::Value = serde_json::from_str(&body).unwrap();
    let active = ranges.as_array().unwrap().iter().filter(|range| range["state"] == "active");
    let active: Vec<u64> = active.map(|range| range["id"].as_u64().unwrap()).collect();
    let (path, wanted) = match active[..] {
        [one] => (format!("/api/v1/topics/{TOPIC}/ranges/{one}/split"), "{}".to_owned()),
        [left, right, ..] => {
            (format!("/api/v1/topics/{TOPIC}/ranges/merge"), format!(r#"{{"ranges":[{left},{right}]}}"#))
        }
        // One is under way.
        [] => return 409,
    };
    let (status, body) = http::call(broker.http_address(), "POST", &path, &wanted).unwrap();
    println!("{path}: {status} {body}");
    status
}

fn until_resharded(broker: &Broker) {
    let began = Instant::now();
    while reshard(broker) != 200 {
        assert!(began.elapsed() < PATIENCE, "no split or merge is done though there is room");
        thread::sleep(Duration::from_millis(100));
    }
}

fn verify(broker: &Broker, data: &Path) {
    let done = Command::new(broker.program()).arg("verify").arg("--data").arg(data).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn a_disk_full_to_its_last_block_amid_splits_and_merges_costs_nothing_acknowledged() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let mut broker = Broker::prepare(Kind::Rangeway, SETTINGS).unwrap();
    let disk = Small::at(broker.data());
    if !disk.mounted {
        // What is left then is the core's test with a disk that says that it is full.
        println!("no file system can be mounted here");
        return;
    }
    broker.spawn().unwrap();
    broker.wait_ready().unwrap();
    let mut sender = Sender::new(&broker);
    sender.send_all(20);
    until_resharded(&broker);
    for round in 0..3 {
        disk.fill();
        let mut answers = Vec::new();
        for _ in 0..4 {
            let taken = (0..PARTITIONS).filter(|p| sender.send(*p)).count();
            answers.push((taken, reshard(&broker)));
            sender.read_all();
        }
        println!("round {round}: batches taken and statuses while it was full: {answers:?}");
        assert!(broker.exited().unwrap().is_none(), "a full disk ends nothing");
        if round == 1 {
            // What is left after a kill is started with, full as it is, or once there is room.
            broker.kill().unwrap();
            broker.spawn().unwrap();
            if broker.wait_ready().is_ok() {
                sender.again(&broker);
                sender.read_all();
                broker.kill().unwrap();
            }
            disk.make_room();
            broker.restart().unwrap();
            sender.again(&broker);
        } else {
            disk.make_room();
        }
        sender.send_all(5);
        until_resharded(&broker);
        sender.send_all(5);
        sender.read_all();
    }
    broker.kill().unwrap();
    broker.restart().unwrap();
    sender.again(&broker);
    sender.read_all();
    sender.send_all(5);
    broker.stop().unwrap();
    verify(&broker, &broker.data());
}
