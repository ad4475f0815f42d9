//! How fast one disk store takes runs: `cargo run --release --example journal_rate -- DIR [seconds]`.
//!
//! Prints, for runs of 12 batches of 16 KiB and for runs of one small batch, by how many are in flight: MB/s, runs/s,
//! groups/s and bytes on the disk per payload byte.

use bytes::Bytes;
use rangeway_core::codec::batch::{BATCH_HEAD_LEN, CRC_FROM};
use rangeway_core::codec::crc32c;
use rangeway_core::codec::entry::{Entry, EntryHeader, EntryKind};
use rangeway_core::drive::{Completion, LogDrive, Run, Ticket, WriteError};
use rangeway_core::store::{DiskStore, StoreConfig};
use rangeway_core::types::{Address, LeafId, LogletId, NodeId};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

struct Tell(SyncSender<Result<(), WriteError>>);
impl Completion for Tell {
    fn complete(&self, outcome: Result<(), WriteError>) {
        // The main thread may have ended.
        drop(self.0.try_send(outcome));
    }
}

fn batch(len: usize) -> (Bytes, Bytes) {
    let mut b = vec![7u8; len.max(BATCH_HEAD_LEN + 1)];
    b[16] = 2;
    let crc = crc32c(&[&b[CRC_FROM..]]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    let b = Bytes::from(b);
    (b.slice(..BATCH_HEAD_LEN), b.slice(BATCH_HEAD_LEN..))
}

fn entry(id: LeafId, address: u64, partition: i32, (head, body): &(Bytes, Bytes)) -> Entry {
    let header = EntryHeader {
        loglet: id.loglet,
        address: Address(address),
        kind: EntryKind::Data,
        flags: 0,
        partition,
        base_offset: address as i64,
        last_offset_delta: 0,
        record_count: 1,
        leader_epoch: 0,
        appended_at: 0,
        first_timestamp: 0,
        max_timestamp: 0,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: (head.len() + body.len()) as u32,
    };
    let encoded = [&header.encode(head)[..], head].concat();
    Entry { header, head: encoded.into(), body: body.clone() }
}

fn measure(store: &DiskStore, loglet: u64, entries: usize, len: usize, in_flight: usize, time: Duration) {
    let id = LeafId { loglet: LogletId(loglet), leaf: 0 };
    let drive = store.drive(id);
    let batch = batch(len);
    let (tell, told) = sync_channel(in_flight * 2);
    let ticket = Ticket::new(Arc::new(Tell(tell)));
    let before = store.stats();
    let begun = Instant::now();
    let (mut next, mut sent, mut done) = (0u64, 0usize, 0usize);
    while begun.elapsed() < time || done < sent {
        while sent - done < in_flight && begun.elapsed() < time {
            let run = (0..entries).map(|i| entry(id, next + i as u64, i as i32, &batch)).collect();
            drive.submit(Run { first: Address(next), entries: run, ticket: ticket.clone() });
            next += entries as u64;
            sent += 1;
        }
        match told.recv() {
            Ok(Ok(())) => done += 1,
            other => return eprintln!("write failed: {other:?}"),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let payload = (done * entries * len) as f64;
    let stats = store.stats();
    println!(
        "{entries:2} x {len:6} B, {in_flight:2} in flight: {:7.1} MB/s  {:8.0} runs/s  {:6.0} groups/s  {:.2} disk/payload",
        payload / seconds / 1e6,
        done as f64 / seconds,
        (stats.groups - before.groups) as f64 / seconds,
        (stats.bytes_written - before.bytes_written) as f64 / payload,
    );
    store.discard(id.loglet);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else { return eprintln!("usage: journal_rate DIR [seconds]") };
    let time = Duration::from_secs_f64(args.next().and_then(|s| s.parse().ok()).unwrap_or(2.0));
    let opened = Instant::now();
    let store = match DiskStore::open(StoreConfig::new(dir, NodeId(1))) {
        Ok((store, report)) => {
            println!(
                "opened in {:?}: {} extents, {} scanned, {} entries",
                opened.elapsed(),
                report.extents,
                report.scanned,
                report.entries
            );
            store
        }
        Err(e) => return eprintln!("{e}"),
    };
    for (i, (entries, len, in_flight)) in [
        (12, 16 << 10, 1),
        (12, 16 << 10, 4),
        (12, 16 << 10, 16),
        (1, 200, 1),
        (1, 200, 64),
        (1, 16 << 10, 3),
    ]
    .into_iter()
    .enumerate()
    {
        measure(&store, store.generation().0 * 100 + i as u64, entries, len, in_flight, time);
    }
    println!("{:?}", store.stats());
}
