//! Several disks under one node, as a started process: what was acknowledged survives kills and the death of a disk, and
//! what is wrong with a disk is said where operators look.

use crate::process::{Node, serve, text};
use crate::support::{Batch, Topic, batches, fetch_request, only, produce_request};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use rangeway_gateway::bench::client::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SMALL: [&str; 6] = [
    "--set",
    "extent.bytes=64KiB",
    "--set",
    "segment.roll.bytes=256KiB",
    "--set",
    "disk.reserve.bytes=64KiB",
];
const VALUE: usize = 16 << 10;
/// Batches of [`VALUE`] that fill a segment and the extents of any disk.
const A_SEGMENT: i64 = 24;

struct Disks {
    home: tempfile::TempDir,
    count: usize,
    drive: &'static str,
    topic: Topic,
}

impl Disks {
    fn new(count: usize, drive: &'static str) -> Disks {
        let topic = Topic { name: "t".to_owned(), id: uuid::Uuid::nil() };
        Disks { home: tempfile::tempdir().unwrap(), count, drive, topic }
    }

    fn dir(&self, n: usize) -> PathBuf {
        self.home.path().join(format!("q{n}"))
    }

    fn arguments(&self) -> Vec<String> {
        let more = (1..self.count).flat_map(|n| ["--data".to_owned(), self.dir(n).display().to_string()]);
        let drive = ["--drive".to_owned(), self.drive.to_owned()];
        more.chain(drive).chain(SMALL.map(str::to_owned)).collect()
    }

    fn start(&self) -> Node {
        let arguments = self.arguments();
        Node::start(&self.dir(0), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What a start that must fail says.
    fn refused(&self) -> String {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = serve(&self.dir(0), &arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(3), "{}", text(&ended.stderr));
        text(&ended.stderr).to_owned()
    }

    fn create(&self, node: &Node) {
        let name = TopicName(StrBytes::from_string(self.topic.name.clone()));
        let topic =
            CreatableTopic::default().with_name(name).with_num_partitions(1).with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        assert_eq!(node.kafka().call(&request, 6).unwrap().topics[0].error_code, 0);
    }

    /// Appends `count` records, which get the next offsets.
    fn produce(&self, node: &Node, next: &mut i64, count: i64) {
        let mut connection = node.kafka();
        for _ in 0..count {
            let row = self.send(&mut connection);
            assert_eq!(row, (0, *next));
            *next += 1;
        }
    }

    fn send(&self, connection: &mut Connection) -> (i16, i64) {
        let batch = Batch::of(1).value(VALUE).bytes();
        let request = produce_request(&self.topic, -1, &[(0, Some(batch))]);
        let answer = connection.call(&request, 12).unwrap();
        let row = &answer.responses[0].partition_responses[0];
        (row.error_code, row.base_offset)
    }

    /// All offsets below `next` are read, once each.
    fn has(&self, node: &Node, next: i64) {
        let mut connection = node.kafka();
        let mut at = 0;
        while at < next {
            let answer = connection.call(&fetch_request(&self.topic, &[(0, at)]), 12).unwrap();
            let data = only(&answer);
            assert_eq!(data.error_code, 0, "at {at}");
            let read = batches(&data.records);
            assert!(!read.is_empty(), "no record at {at} of {next}");
            for (base, last, ..) in read {
                assert_eq!((base, last), (at, at));
                at += 1;
            }
        }
        assert_eq!(at, next);
    }
}

fn readyz(node: &Node) -> (u16, String) {
    node.http("GET", "/readyz", "", "")
}

fn metric(node: &Node, name: &str) -> f64 {
    let (_, all) = node.http("GET", "/metrics", "", "");
    let line = all.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
}

fn kill(mut node: Node) {
    node.child.kill().unwrap();
    node.child.wait().unwrap();
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_quorum_of_three_goes_on_without_a_disk_that_dies_and_takes_it_back() {
    let disks = Disks::new(3, "quorum(3, write=2)");
    let (node, mut next) = (disks.start(), 0);
    disks.create(&node);
    disks.produce(&node, &mut next, A_SEGMENT);
    kill(node);

    let node = disks.start();
    assert_eq!(readyz(&node), (200, "ok\n".to_owned()));
    let lost = disks.dir(2);
    let aside = lost.with_extension("aside");
    fs::rename(&lost, &aside).unwrap();
    fs::write(&lost, "").unwrap();
    // Several segments' worth: the disk dies at its next extent, and the ranges roll.
    let rolled = metric(&node, "rangeway_segment_rolls_total");
    disks.produce(&node, &mut next, 3 * A_SEGMENT);
    let until = Instant::now() + Duration::from_secs(20);
    while metric(&node, "rangeway_segment_rolls_total") < rolled + 2.0 {
        assert!(Instant::now() < until, "no roll without the disk");
        disks.produce(&node, &mut next, 1);
    }
    let (status, said) = readyz(&node);
    assert_eq!(status, 503);
    for part in ["is dead", "under-replicated: topic 't'", &shown(&lost)] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(metric(&node, "rangeway_segments_under_replicated") > 0.0);
    assert_eq!(metric(&node, "rangeway_disks_dead"), 1.0);
    let split = node.admin(&["topics", "create", "u", "--partitions", "1"]);
    assert!(split.status.success(), "{}", text(&split.stderr));
    kill(node);

    // What stands in its place is no directory: the node starts without it.
    let node = disks.start();
    let (status, said) = readyz(&node);
    assert!(status == 503 && said.contains(&shown(&lost)) && said.contains("cannot be used"), "{said}");
    assert!(!said.contains("range"), "no range is blocked: {said}");
    let cluster = node.admin(&["cluster", "status"]);
    assert!(text(&cluster.stdout).contains("under-replicated: topic 't'"), "{}", text(&cluster.stdout));
    disks.produce(&node, &mut next, 2);
    disks.has(&node, next);
    kill(node);

    // An empty directory in its place is not taken for a new disk.
    fs::remove_file(&lost).unwrap();
    fs::create_dir(&lost).unwrap();
    let said = disks.refused();
    assert!(said.contains("is a disk not mounted?") && said.contains("--accept-new-disks"), "{said}");
    fs::remove_dir(&lost).unwrap();

    fs::rename(&aside, &lost).unwrap();
    let node = disks.start();
    let (status, said) = readyz(&node);
    assert_eq!(status, 200, "{said}");
    assert!(said.contains("under-replicated: topic 't'"), "segments lack a copy still: {said}");
    disks.produce(&node, &mut next, 2);
    disks.has(&node, next);
}

#[test]
fn stripes_over_two_disks_survive_kills_and_a_dead_disk_is_said_at_once() {
    let disks = Disks::new(2, "striped(2, disk)");
    let (node, mut next) = (disks.start(), 0);
    disks.create(&node);
    disks.produce(&node, &mut next, A_SEGMENT);
    kill(node);
    let node = disks.start();
    disks.produce(&node, &mut next, 2 * A_SEGMENT);
    disks.has(&node, next);
    let lost = disks.dir(1);
    let aside = lost.with_extension("aside");
    fs::rename(&lost, &aside).unwrap();
    fs::write(&lost, "").unwrap();
    // What was in flight when the disk died has no answer. Then the range is blocked and says so, or, if nothing was, goes on on
    // the disk that lives. A producer each that numbers its batches: a plain batch would wait for the range to keep its order.
    let (until, storage_error, mut said) = (Instant::now() + Duration::from_secs(60), 56, None);
    for producer in 1000.. {
        assert!(Instant::now() < until, "the disk does not die");
        let batch = Batch::of(1).value(VALUE).by(producer, 0, 0).bytes();
        let request = produce_request(&disks.topic, -1, &[(0, Some(batch))]).with_timeout_ms(1_000);
        if let Ok(answer) = node.kafka().call(&request, 12) {
            let row = &answer.responses[0].partition_responses[0];
            match (row.error_code, &said) {
                (0, _) => next = row.base_offset + 1,
                (code, Some(_)) => assert_eq!(code, storage_error),
                _ => {}
            }
            if said.is_some() {
                break;
            }
        }
        said = Some(readyz(&node)).filter(|(status, _)| *status == 503);
    }
    let (_, said) = said.unwrap();
    assert!(said.contains(&shown(&lost)), "{said}");
    kill(node);
    fs::remove_file(&lost).unwrap();
    fs::rename(&aside, &lost).unwrap();
    let node = disks.start();
    assert_eq!(readyz(&node).0, 200);
    disks.has(&node, next);
}
