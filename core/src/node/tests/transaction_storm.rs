//! Transactions of several producers while their ranges split, merge and roll and the node dies: a committed reader, who
//! leaves out what it is told to as a client does, gets what was committed, once and in order, and nothing else.

use super::*;
use crate::api::{AbortedTransaction, Api, Isolation, Marker, TransactionVersion};
use crate::testing::batch::transactional;
use crate::testing::rng::Rng;
use crate::types::Offset;
use std::collections::BTreeSet;

const PARTITIONS: i32 = 4;
const PRODUCERS: i64 = 4;
const ROUNDS: usize = 3;
const TRANSACTIONS: usize = 12;

/// A producer with its coordinator; even ones are of version 1 and keep their epoch.
struct Producer {
    id: i64,
    epoch: i16,
    number: u64,
    sequences: [i32; PARTITIONS as usize],
    rng: Rng,
    /// What it committed, by partition, in its order.
    committed: Vec<Vec<String>>,
}

impl Producer {
    fn new(id: i64) -> Producer {
        Producer {
            id,
            epoch: 0,
            number: 0,
            sequences: [0; PARTITIONS as usize],
            rng: Rng::new(id as u64),
            committed: vec![Vec::new(); PARTITIONS as usize],
        }
    }

    /// Begins a transaction: what it wrote, by partition.
    async fn write(&mut self, api: &Api, topic: TopicId, lane: &Lane) -> Vec<(i32, String)> {
        self.number += 1;
        let mut written = Vec::new();
        for n in 0..1 + self.rng.below(5) {
            let partition = self.rng.below(PARTITIONS as usize) as i32;
            let text = format!("{}/{}/{n};", self.id, self.number);
            let sequence = &mut self.sequences[partition as usize];
            let one = transactional(partition, 1, (self.id, self.epoch, *sequence), 5, &text);
            *sequence += 1;
            loop {
                let outcomes = api.append(lane, topic, vec![one.clone()], soon()).wait().await;
                match &outcomes.batches[0] {
                    Appended::Ok { .. } => break,
                    Appended::Err(AppendError::NotLeader { .. } | AppendError::TimedOut) => {}
                    Appended::Err(error) => panic!("{text}: {error}"),
                }
            }
            written.push((partition, text));
        }
        written
    }

    async fn end(&mut self, api: &Api, topic: TopicId, written: Vec<(i32, String)>, commit: bool) {
        let raises = self.id % 2 == 1;
        let version = if raises { TransactionVersion::V2 } else { TransactionVersion::V1 };
        let marker = Marker {
            producer_id: self.id,
            producer_epoch: self.epoch + i16::from(raises),
            coordinator_epoch: 0,
            number: self.number,
            commit,
            version,
        };
        let partitions: BTreeSet<i32> = written.iter().map(|(partition, _)| *partition).collect();
        for partition in partitions {
            let at = TopicPartition { topic, partition };
            api.write_marker(at, marker, soon()).await.expect("taken");
            api.write_marker(at, marker, soon()).await.expect("known");
        }
        if raises {
            self.epoch += 1;
            self.sequences = Default::default();
        }
        if commit {
            written.into_iter().for_each(|(partition, text)| self.committed[partition as usize].push(text));
        }
    }
}

/// What a client with `read_committed` delivers of a partition, read in pieces of `max_bytes`.
async fn delivered(node: &Node, at: TopicPartition, max_bytes: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut offset: Offset = 0;
    loop {
        let (topic, partition, isolation) = (at.topic, at.partition, Isolation::Committed);
        let from = ReadFrom { topic, partition, offset, max_bytes, isolation };
        let read = node.api().read(&[from], max_bytes).await.remove(0).expect("readable");
        let mut ahead: Vec<AbortedTransaction> = read.aborted;
        assert!(ahead.is_sorted_by_key(|one| one.first_offset));
        let mut aborted: BTreeSet<i64> = BTreeSet::new();
        let bytes = read.pieces.iter().flat_map(whole).collect::<Vec<u8>>();
        let mut rest = &bytes[..];
        while let Some(head) = BatchHead::parse(rest) {
            let (batch, after) = rest.split_at(head.batch_length as usize + 12);
            rest = after;
            let last = head.base_offset + i64::from(head.last_offset_delta);
            while ahead.first().is_some_and(|one| one.first_offset <= last) {
                aborted.insert(ahead.remove(0).producer_id);
            }
            if head.is_control() {
                aborted.remove(&head.producer_id);
            } else if !aborted.contains(&head.producer_id) {
                found.push(String::from_utf8_lossy(&batch[61..]).into_owned());
            }
        }
        if read.next_offset == offset {
            assert_eq!(offset, node.api().offsets(at).expect("known").last_stable);
            return found;
        }
        offset = read.next_offset;
    }
}

fn whole(piece: &Piece) -> Vec<u8> {
    match piece {
        Piece::Memory(bytes) => bytes.to_vec(),
        Piece::File(slice) => {
            let mut buffer = vec![0; slice.len as usize];
            std::os::unix::fs::FileExt::read_exact_at(&*slice.file, &mut buffer, slice.position)
                .expect("readable");
            buffer
        }
    }
}

/// Splits, merges and rolls until `work` is done; how many there were.
async fn unrest(api: Api, topic: TopicId, mut rng: Rng, done: Arc<AtomicBool>) -> usize {
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        let ranges = api.range_stats(topic);
        let active: Vec<_> = ranges.iter().filter(|range| range.state == "active").collect();
        let at = rng.below(active.len());
        let changed = match active.get(at + 1) {
            Some(next) if rng.chance(50) => api.merge(topic, active[at].id, next.id).await,
            _ => api.split(topic, active[at].id, None).await,
        };
        made += usize::from(changed.is_ok());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    made
}

/// Waits until something was rewritten into a chunk: markers are, too.
async fn rewritten(node: &Node) {
    let until = soon();
    let chunks = || node.api().metrics().into_iter().find(|metric| metric.name == "chunks_written_total");
    while chunks().is_none_or(|metric| metric.value == 0.0) {
        assert!(Instant::now() < until, "nothing is rewritten");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_reader_gets_what_was_committed_whatever_becomes_of_ranges_and_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = [
        ("segment.roll.bytes", "64KiB"),
        ("extent.bytes", "64KiB"),
        ("memory.tail.bytes", "64KiB"),
        ("journal.bytes", "64KiB"),
    ];
    let mut node = Node::start(options(&[dir.path()], &small)).await.expect("starts");
    let topic = topic(&node, "t", PARTITIONS, &[]).await;
    let mut producers: Vec<Producer> = (1..=PRODUCERS).map(Producer::new).collect();
    let mut changes = 0;
    for round in 0..ROUNDS {
        let done = Arc::new(AtomicBool::new(false));
        let unrest = tokio::spawn(unrest(node.api(), topic, Rng::new(round as u64), done.clone()));
        let mut running = Vec::new();
        for mut producer in producers.drain(..) {
            let api = node.api();
            running.push(tokio::spawn(async move {
                let lane = Lane::default();
                for _ in 0..TRANSACTIONS {
                    let written = producer.write(&api, topic, &lane).await;
                    let commit = producer.rng.chance(60);
                    producer.end(&api, topic, written, commit).await;
                }
                let left_open = producer.write(&api, topic, &lane).await;
                (producer, left_open)
            }));
        }
        let mut open = Vec::new();
        for task in running {
            let (producer, left_open) = task.await.expect("no panic");
            producers.push(producer);
            open.push(left_open);
        }
        done.store(true, Ordering::Release);
        changes += unrest.await.expect("no panic");
        rewritten(&node).await;
        match round % 2 {
            0 => node.crash().await,
            _ => node.stop().await,
        }
        node = Node::start(options(&[dir.path()], &small)).await.expect("starts again");
        for (producer, written) in producers.iter_mut().zip(open) {
            let commit = producer.rng.chance(50);
            producer.end(&node.api(), topic, written, commit).await;
        }
        for partition in 0..PARTITIONS {
            let at = TopicPartition { topic, partition };
            let offsets = node.api().offsets(at).expect("known");
            assert_eq!(offsets.last_stable, offsets.high_watermark, "nothing is open");
            for max_bytes in [1, 300, 1 << 20] {
                let found = delivered(&node, at, max_bytes).await;
                for producer in &producers {
                    let of = format!("{}/", producer.id);
                    let mine: Vec<&String> = found.iter().filter(|text| text.starts_with(&of)).collect();
                    let committed = producer.committed[partition as usize].iter();
                    assert!(mine.iter().copied().eq(committed), "producer {} in {partition}", producer.id);
                }
            }
        }
    }
    assert!(changes >= ROUNDS, "ranges were split or merged {changes} times");
    node.stop().await;
}
