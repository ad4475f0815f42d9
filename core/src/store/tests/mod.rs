//! Tests of the stores through the drive trait, with real files.

mod crash;
mod drive;
pub(crate) mod full;
mod life;
mod missing;
mod restarts;
mod rewrite;
mod verify;

use crate::codec::batch::{BATCH_HEAD_LEN, CRC_FROM};
use crate::codec::crc32c;
use crate::codec::entry::{ENTRY_HEADER_LEN, Entry, EntryHeader, EntryKind};
use crate::drive::{Completion, ListQuery, LogDrive, Payload, Run, SealId, Stored, Ticket, WriteError};
use crate::store::{DiskStore, RecoveryReport, StoreConfig, TailBudget};
use crate::types::{Address, LeafId, LogletId, NodeId};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

pub(super) const SEAL: SealId = SealId { node: NodeId(1), pass: 1 };
pub(super) const ALL: Address = Address(u64::MAX);

pub(super) fn leaf(n: u64) -> LeafId {
    LeafId { loglet: LogletId(n), leaf: 0 }
}

/// A batch of one "record" of `len` filler bytes, with a right checksum.
pub(super) fn data(id: LeafId, address: u64, partition: i32, base_offset: i64, len: usize) -> Entry {
    let mut batch = vec![0u8; BATCH_HEAD_LEN + len];
    for (i, b) in batch.iter_mut().enumerate().skip(BATCH_HEAD_LEN) {
        *b = (i as u64 * 31 + address * 7 + id.loglet.0) as u8;
    }
    batch[0..8].copy_from_slice(&base_offset.to_be_bytes());
    batch[16] = 2;
    let crc = crc32c(&[&batch[CRC_FROM..]]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    let header = EntryHeader {
        loglet: id.loglet,
        address: Address(address),
        kind: EntryKind::Data,
        flags: 0,
        partition,
        base_offset,
        last_offset_delta: 0,
        record_count: 1,
        leader_epoch: 0,
        appended_at: 1,
        first_timestamp: base_offset,
        max_timestamp: base_offset,
        producer_id: -1,
        producer_epoch: -1,
        first_sequence: -1,
        attributes: 0,
        payload_len: batch.len() as u32,
    };
    let batch = Bytes::from(batch);
    let mut head = header.encode(&batch[..BATCH_HEAD_LEN]).to_vec();
    head.extend_from_slice(&batch[..BATCH_HEAD_LEN]);
    Entry { header, head: head.into(), body: batch.slice(BATCH_HEAD_LEN..) }
}

/// Bytes of an entry as read back.
pub(super) fn bytes_of(stored: &Stored) -> Vec<u8> {
    match &stored.payload {
        Payload::Memory { head, body } => [&head[..], &body[..]].concat(),
        Payload::File(slice) => {
            use std::os::unix::fs::FileExt;
            let mut b = vec![0; slice.len as usize];
            slice.file.read_exact_at(&mut b, slice.position).unwrap();
            b
        }
    }
}

pub(super) fn payload_of(entry: &Entry) -> Vec<u8> {
    [&entry.head[ENTRY_HEADER_LEN..], &entry.body[..]].concat()
}

struct Tell(parking_lot::Mutex<Option<oneshot::Sender<Result<(), WriteError>>>>);
impl Completion for Tell {
    fn complete(&self, outcome: Result<(), WriteError>) {
        let tell = self.0.lock().take().expect("completed twice");
        drop(tell.send(outcome));
    }
}

pub(super) fn submit(
    drive: &dyn LogDrive,
    first: u64,
    entries: Vec<Entry>,
) -> oneshot::Receiver<Result<(), WriteError>> {
    let (tell, told) = oneshot::channel();
    let ticket = Ticket::new(Arc::new(Tell(parking_lot::Mutex::new(Some(tell)))));
    drive.submit(Run { first: Address(first), entries: entries.into(), ticket });
    told
}

pub(super) async fn write(drive: &dyn LogDrive, first: u64, entries: Vec<Entry>) -> Result<(), WriteError> {
    submit(drive, first, entries).await.unwrap()
}

pub(super) fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        extent_bytes: 64 << 10,
        tail_bytes: TailBudget::new(1 << 20),
        reserve_bytes: 0,
        ..StoreConfig::new(dir, NodeId(1))
    }
}

pub(super) fn open(dir: &Path) -> (Arc<DiskStore>, RecoveryReport) {
    DiskStore::open(config(dir)).unwrap()
}

pub(super) fn everything(partition: i32) -> ListQuery {
    ListQuery {
        partition,
        from_offset: i64::MIN,
        below: ALL,
        max_bytes: usize::MAX,
        max_entries: usize::MAX,
        min_timestamp: None,
    }
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
