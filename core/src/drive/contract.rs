//! The contract suite: what every drive must do, primitive or tree (log-contracts 1.1). Trees of lagging and failing leaves
//! are in `contract_trees`.
//!
//! A primitive's tests call [`run_all`] with a factory of fresh, empty drives. Entries belong to the loglet
//! [`crate::testing::leaf::LOGLET`], leaf 0, and are of kind control.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    Completion, ListQuery, LogDrive, Purpose, Read, Run, ScanQuery, SealId, Stored, Ticket, WriteError,
};
use crate::testing::leaf::{entry_at, header};
use crate::types::{Address, NodeId, Offset};
use bytes::Bytes;
use smallvec::SmallVec;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A fresh drive and whatever must live as long as it does (a store, a directory).
pub(crate) struct Subject {
    pub(crate) drive: Arc<dyn LogDrive>,
    pub(crate) keep: Box<dyn Any>,
}

impl Subject {
    pub(crate) fn new(drive: Arc<dyn LogDrive>) -> Subject {
        Subject { drive, keep: Box::new(()) }
    }
}

const K: u32 = 8;
const SEALER: SealId = SealId { node: NodeId(1), pass: 1 };
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every rule on a fresh drive each; panics with the rule's name.
pub(crate) fn run_all(name: &str, mut fresh: impl FnMut() -> Subject) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    macro_rules! rules {
        ($($rule:ident),* $(,)?) => {$(
            let subject = fresh();
            println!("{name}: {}", stringify!($rule));
            let drive = subject.drive.clone();
            let checked = runtime.block_on(async { tokio::time::timeout(PATIENCE, $rule(drive)).await });
            assert!(checked.is_ok(), "{name}: {} hangs", stringify!($rule));
            drop(subject.keep);
        )*};
    }
    rules!(
        a_completed_write_is_read_back_and_others_are_holes,
        a_tail_covers_completed_writes_and_invents_none,
        the_same_bytes_again_are_ok_and_others_conflict,
        after_a_fence_every_write_is_sealed_also_of_held_bytes,
        writes_that_race_a_fence_are_ok_only_if_the_fence_saw_them,
        repairs_fill_holes_of_fenced_drives_only,
        trimmed_addresses_stay_trimmed_and_count_as_written,
        a_list_is_one_partition_in_offset_order_within_its_limits,
        a_scan_is_all_partitions_in_address_order,
        the_last_entry_of_a_kind_is_found_below_a_bound,
    );
}

thread_local! {
    static SUBMITTING: Cell<bool> = const { Cell::new(false) };
}

/// Passes the outcome on; checks that it comes once and not from inside `submit`.
struct Awaited {
    outcome: parking_lot::Mutex<Option<oneshot::Sender<Result<(), WriteError>>>>,
    times: AtomicUsize,
}

impl Completion for Awaited {
    fn complete(&self, outcome: Result<(), WriteError>) {
        assert!(!SUBMITTING.get(), "a ticket is never completed from inside submit");
        assert_eq!(self.times.fetch_add(1, Ordering::SeqCst), 0, "a ticket is completed once");
        if let Some(sender) = self.outcome.lock().take() {
            let _ = sender.send(outcome);
        }
    }
}

pub(crate) fn submit(
    drive: &dyn LogDrive,
    first: u64,
    entries: Vec<Entry>,
) -> oneshot::Receiver<Result<(), WriteError>> {
    let (sender, receiver) = oneshot::channel();
    let awaited = Awaited { outcome: parking_lot::Mutex::new(Some(sender)), times: AtomicUsize::new(0) };
    let ticket = Ticket::new(Arc::new(awaited));
    SUBMITTING.set(true);
    drive.submit(Run { first: Address(first), entries: SmallVec::from_vec(entries), ticket });
    SUBMITTING.set(false);
    receiver
}

async fn write(drive: &dyn LogDrive, first: u64, entries: Vec<Entry>) -> Result<(), WriteError> {
    submit(drive, first, entries).await.expect("every ticket is completed")
}

fn run(addresses: std::ops::Range<u64>) -> Vec<Entry> {
    addresses.map(entry_at).collect()
}

async fn bytes_at(drive: &dyn LogDrive, at: u64) -> Option<Vec<u8>> {
    match drive.read(Address(at)).await.unwrap() {
        Read::Value(stored) => {
            assert_eq!(stored.header, entry_at(at).header);
            Some(payload(&stored))
        }
        _ => None,
    }
}

/// The bytes of a payload.
pub(crate) fn payload(stored: &Stored) -> Vec<u8> {
    match &stored.payload {
        crate::drive::Payload::Memory { head, body } => [head.as_ref(), body.as_ref()].concat(),
        crate::drive::Payload::File(slice) => {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; slice.len as usize];
            slice.file.read_exact_at(&mut bytes, slice.position).unwrap();
            bytes
        }
    }
}

fn other_bytes(address: u64) -> Entry {
    let payload = Bytes::from_static(b"something else");
    Entry::own(header(address, 0, address as i64, 1, payload.len() as u32), payload)
}

async fn a_completed_write_is_read_back_and_others_are_holes(drive: Arc<dyn LogDrive>) {
    assert_eq!(drive.admit(1000, Purpose::Records), Ok(()));
    assert!(matches!(drive.read(Address(0)).await, Ok(Read::Hole)));
    assert_eq!(write(&*drive, 0, run(0..3)).await, Ok(()));
    assert_eq!(write(&*drive, 4, run(4..5)).await, Ok(()));
    for at in [0, 1, 2, 4] {
        assert_eq!(bytes_at(&*drive, at).await, Some(format!("entry {at}").into_bytes()));
    }
    assert!(matches!(drive.read(Address(3)).await, Ok(Read::Hole)));
    assert!(matches!(drive.read(Address(5)).await, Ok(Read::Hole)));
}

async fn a_tail_covers_completed_writes_and_invents_none(drive: Arc<dyn LogDrive>) {
    let empty = drive.weak_tail(K).await.unwrap();
    assert_eq!((empty.end, empty.holes.len()), (0, 0));
    write(&*drive, 0, run(0..4)).await.unwrap();
    write(&*drive, 6, run(6..8)).await.unwrap();
    let tail = drive.weak_tail(K).await.unwrap();
    assert_eq!((tail.end, tail.holes.clone()), (8, BTreeSet::from([4, 5])));
    assert_eq!(tail.contiguous(), Address(4));
    write(&*drive, 4, run(4..6)).await.unwrap();
    write(&*drive, 8, run(8..13)).await.unwrap();
    let tail = drive.weak_tail(K).await.unwrap();
    assert_eq!((tail.end, tail.holes.len()), (13, 0));
}

async fn the_same_bytes_again_are_ok_and_others_conflict(drive: Arc<dyn LogDrive>) {
    write(&*drive, 0, run(0..2)).await.unwrap();
    assert_eq!(write(&*drive, 0, run(0..2)).await, Ok(()));
    assert_eq!(write(&*drive, 1, vec![other_bytes(1)]).await, Err(WriteError::Conflict(Address(1))));
    assert_eq!(bytes_at(&*drive, 1).await, Some(b"entry 1".to_vec()));
}

async fn after_a_fence_every_write_is_sealed_also_of_held_bytes(drive: Arc<dyn LogDrive>) {
    write(&*drive, 0, run(0..2)).await.unwrap();
    assert!(drive.caps().fence);
    let tail = drive.fence(K, SEALER).await.unwrap();
    assert_eq!((tail.end, tail.holes.len()), (2, 0));
    assert_eq!(write(&*drive, 2, run(2..3)).await, Err(WriteError::Sealed));
    assert_eq!(write(&*drive, 0, run(0..2)).await, Err(WriteError::Sealed));
    assert_eq!(drive.fence(K, SealId { pass: 2, ..SEALER }).await.unwrap(), tail, "a fence is idempotent");
    assert!(matches!(drive.read(Address(2)).await, Ok(Read::Hole)));
}

async fn writes_that_race_a_fence_are_ok_only_if_the_fence_saw_them(drive: Arc<dyn LogDrive>) {
    let started: Vec<_> = (0..200).map(|at| (at, submit(&*drive, at, run(at..at + 1)))).collect();
    let fence = {
        let drive = drive.clone();
        tokio::spawn(async move { drive.fence(4096, SEALER).await.unwrap() })
    };
    let later: Vec<_> = (200..400).map(|at| (at, submit(&*drive, at, run(at..at + 1)))).collect();
    let tail = fence.await.unwrap();
    for (at, outcome) in started.into_iter().chain(later) {
        match outcome.await.unwrap() {
            Ok(()) => {
                assert!(tail.written(at), "address {at} was acknowledged and the fence has not seen it")
            }
            Err(error) => assert_eq!(error, WriteError::Sealed),
        }
    }
}

async fn repairs_fill_holes_of_fenced_drives_only(drive: Arc<dyn LogDrive>) {
    write(&*drive, 0, run(0..1)).await.unwrap();
    write(&*drive, 2, run(2..3)).await.unwrap();
    let below = Address(3);
    assert!(drive.repair(Address(1), entry_at(1), below, SEALER).await.is_err(), "not fenced yet");
    drive.fence(K, SEALER).await.unwrap();
    assert_eq!(drive.repair(Address(1), entry_at(1), below, SEALER).await, Ok(()));
    assert_eq!(drive.repair(Address(2), entry_at(2), below, SEALER).await, Ok(()), "held already");
    assert!(drive.repair(Address(3), entry_at(3), below, SEALER).await.is_err(), "not below the tail");
    assert_eq!(bytes_at(&*drive, 1).await, Some(b"entry 1".to_vec()));
    assert_eq!(
        write(&*drive, 1, run(1..2)).await,
        Err(WriteError::Sealed),
        "a repair acknowledges nothing (B7)"
    );
}

async fn trimmed_addresses_stay_trimmed_and_count_as_written(drive: Arc<dyn LogDrive>) {
    write(&*drive, 0, run(0..6)).await.unwrap();
    drive.note_committed(Address(6));
    drive.trim(Address(4)).await.unwrap();
    drive.trim(Address(2)).await.unwrap();
    assert!(matches!(drive.read(Address(3)).await, Ok(Read::Trimmed)));
    assert_eq!(bytes_at(&*drive, 4).await, Some(b"entry 4".to_vec()));
    assert_eq!(write(&*drive, 3, run(3..4)).await, Err(WriteError::Trimmed(Address(3))));
    let tail = drive.weak_tail(K).await.unwrap();
    assert_eq!((tail.end, tail.holes.len(), tail.trim), (6, 0, 4));
    let scan = ScanQuery { from: Address(0), below: Address(6), max_entries: 99 };
    assert_eq!(addresses(&drive.scan(scan).await.unwrap()), [4, 5]);
}

fn addresses(found: &[Stored]) -> Vec<u64> {
    found.iter().map(|s| s.header.address.0).collect()
}

/// Addresses 0..24: partition `a % 3`, three records each, payload of 10 bytes.
async fn fill(drive: &dyn LogDrive) {
    let entry = |a: u64| {
        let payload = Bytes::from(format!("payload {a:02}"));
        Entry::own(header(a, (a % 3) as i32, (a / 3) as Offset * 3, 3, payload.len() as u32), payload)
    };
    for first in (0..24).step_by(4) {
        write(drive, first, (first..first + 4).map(entry).collect()).await.unwrap();
    }
}

/// A list may stop early; this goes on until it is empty or full.
async fn list(drive: &dyn LogDrive, query: ListQuery) -> Vec<u64> {
    let mut all: Vec<Stored> = Vec::new();
    loop {
        let from_offset = all.last().map_or(query.from_offset, |s| s.header.last_offset() + 1);
        let bytes: usize = all.iter().map(|s| s.payload.len()).sum();
        if all.len() >= query.max_entries || (bytes >= query.max_bytes && !all.is_empty()) {
            return addresses(&all);
        }
        let rest = ListQuery {
            from_offset,
            max_bytes: query.max_bytes.saturating_sub(bytes),
            max_entries: query.max_entries - all.len(),
            ..query
        };
        let found = drive.list(rest).await.unwrap();
        if let Some(cached) = drive.list_cached(&rest) {
            let n = cached.len().min(found.len());
            assert_eq!(addresses(&cached[..n]), addresses(&found[..n]), "memory and store agree");
            assert_eq!(cached.is_empty(), found.is_empty());
        }
        assert!(
            found.iter().all(|s| payload(s) == format!("payload {:02}", s.header.address.0).into_bytes())
        );
        if found.is_empty() {
            return addresses(&all);
        }
        all.extend(found);
    }
}

async fn a_list_is_one_partition_in_offset_order_within_its_limits(drive: Arc<dyn LogDrive>) {
    fill(&*drive).await;
    let all = ListQuery {
        partition: 1,
        from_offset: 0,
        below: Address(24),
        max_bytes: usize::MAX,
        max_entries: 99,
        min_timestamp: None,
    };
    assert_eq!(list(&*drive, all).await, [1, 4, 7, 10, 13, 16, 19, 22]);
    assert_eq!(list(&*drive, ListQuery { from_offset: 4, ..all }).await, [4, 7, 10, 13, 16, 19, 22]);
    assert_eq!(list(&*drive, ListQuery { below: Address(10), ..all }).await, [1, 4, 7]);
    assert_eq!(list(&*drive, ListQuery { max_entries: 2, ..all }).await, [1, 4]);
    assert_eq!(
        list(&*drive, ListQuery { max_bytes: 20, ..all }).await,
        [1, 4],
        "ends with what reaches the limit"
    );
    let one = drive.list(ListQuery { max_bytes: 0, ..all }).await.unwrap();
    assert_eq!(addresses(&one), [1], "the first entry is always listed");
    assert_eq!(list(&*drive, ListQuery { min_timestamp: Some(1016), ..all }).await, [19, 22]);
    assert_eq!(list(&*drive, ListQuery { from_offset: 24, ..all }).await, Vec::<u64>::new());
    assert_eq!(list(&*drive, ListQuery { partition: 9, ..all }).await, Vec::<u64>::new());
}

async fn a_scan_is_all_partitions_in_address_order(drive: Arc<dyn LogDrive>) {
    fill(&*drive).await;
    let mut all = Vec::new();
    loop {
        let from = Address(all.last().map_or(3, |a| a + 1));
        let found = drive.scan(ScanQuery { from, below: Address(20), max_entries: 5 }).await.unwrap();
        assert!(found.len() <= 5);
        if found.is_empty() {
            break;
        }
        all.extend(addresses(&found));
    }
    assert_eq!(all, (3..20).collect::<Vec<u64>>());
}

async fn the_last_entry_of_a_kind_is_found_below_a_bound(drive: Arc<dyn LogDrive>) {
    let checkpoint = |a: u64, flags: u8| {
        let h = crate::codec::entry::EntryHeader {
            kind: EntryKind::Checkpoint,
            flags,
            base_offset: -1,
            last_offset_delta: -1,
            record_count: 0,
            partition: crate::types::WHOLE_RANGE,
            ..header(a, 0, 0, 1, 4)
        };
        Entry::own(h, Bytes::from_static(b"fold"))
    };
    write(&*drive, 0, vec![checkpoint(0, 2), checkpoint(1, 1), entry_at(2), checkpoint(3, 3), entry_at(4)])
        .await
        .unwrap();
    let last =
        async |flags, below| drive.last_of(EntryKind::Checkpoint, flags, Address(below)).await.unwrap();
    assert_eq!(last(1, 5).await, Some(Address(3)));
    assert_eq!(last(1, 3).await, Some(Address(1)));
    assert_eq!(last(2, 3).await, Some(Address(0)));
    assert_eq!(last(1, 1).await, None);
    assert_eq!(drive.last_of(EntryKind::Snapshot, 0, Address(5)).await.unwrap(), None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::quorum::Quorum;
    use crate::drive::striped::Striped;
    use crate::store::{DiskStore, MemoryStore, StoreConfig};
    use crate::testing::leaf::{LOGLET, Leaf};
    use crate::types::LeafId;

    fn leaf() -> Arc<dyn LogDrive> {
        Leaf::threaded()
    }

    fn quorum(copies: usize, write: usize, child: impl Fn() -> Arc<dyn LogDrive>) -> Arc<dyn LogDrive> {
        Arc::new(Quorum::new((0..copies).map(|_| Ok(child())).collect(), write))
    }

    fn striped(stripes: usize, child: impl Fn() -> Arc<dyn LogDrive>) -> Arc<dyn LogDrive> {
        Arc::new(Striped::new((0..stripes).map(|_| child()).collect()))
    }

    #[test]
    fn leaves_quorums_stripes_and_their_nestings_keep_the_contract() {
        run_all("leaf", || Subject::new(leaf()));
        run_all("quorum(3, write=2)", || Subject::new(quorum(3, 2, leaf)));
        run_all("quorum(2, write=2)", || Subject::new(quorum(2, 2, leaf)));
        run_all("quorum(1, write=1)", || Subject::new(quorum(1, 1, leaf)));
        run_all("striped(4)", || Subject::new(striped(4, leaf)));
        run_all("striped(2, quorum(3, write=2))", || Subject::new(striped(2, || quorum(3, 2, leaf))));
        run_all("quorum(3, write=2, striped(2))", || Subject::new(quorum(3, 2, || striped(2, leaf))));
    }

    const LEAF: LeafId = LeafId { loglet: LOGLET, leaf: 0 };

    fn disk() -> Subject {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            extent_bytes: 1 << 20,
            reserve_bytes: 0,
            ..StoreConfig::new(dir.path(), NodeId(1))
        };
        let (store, _) = DiskStore::open(config).unwrap();
        Subject { drive: store.drive(LEAF), keep: Box::new((store, dir)) }
    }

    #[test]
    fn the_memory_drive_keeps_the_contract() {
        run_all("memory", || {
            let store = MemoryStore::new().unwrap();
            Subject { drive: store.drive(LEAF), keep: Box::new(store) }
        });
    }

    #[test]
    fn the_disk_drive_keeps_the_contract() {
        run_all("disk", disk);
    }

    #[test]
    fn a_quorum_of_disks_keeps_the_contract() {
        run_all("quorum(3, write=2) of disks", || {
            let (drives, keep): (Vec<_>, Vec<_>) =
                (0..3).map(|_| disk()).map(|s| (Ok(s.drive), s.keep)).unzip();
            Subject { drive: Arc::new(Quorum::new(drives, 2)), keep: Box::new(keep) }
        });
    }

    #[test]
    fn what_a_seal_kept_is_read_and_repaired_from_the_one_copy_that_holds_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Two copies are what `quorum(3, write=2)` has while a disk is away.
        for (copies, holder) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
            runtime.block_on(async {
                let leaves: Vec<_> = (0..copies).map(|_| leaf()).collect();
                let drive = Quorum::new(leaves.iter().cloned().map(Ok).collect(), 2);
                write(&drive, 0, run(0..2)).await.unwrap();
                write(&*leaves[holder], 2, run(2..3)).await.unwrap();
                let tail = drive.fence(K, SEALER).await.unwrap();
                if !tail.written(2) {
                    return; // A seal quorum without the holder answered first: not kept.
                }
                assert!(drive.thin().contains(&2), "{:?}", drive.thin());
                assert_eq!(bytes_at(&drive, 2).await, Some(b"entry 2".to_vec()));
                let scan = ScanQuery { from: Address(2), below: Address(3), max_entries: 9 };
                assert_eq!(addresses(&drive.scan(scan).await.unwrap()), [2]);
                assert_eq!(addresses(&drive.scan_heads(scan).await.unwrap()), [2]);
                let last = drive.last_of(EntryKind::Control, 0, Address(3)).await.unwrap();
                assert_eq!(last, Some(Address(2)));
                let query = ListQuery {
                    partition: 0,
                    from_offset: 2,
                    below: Address(3),
                    max_bytes: 99,
                    max_entries: 9,
                    min_timestamp: None,
                };
                assert_eq!(addresses(&drive.list(query).await.unwrap()), [2]);
                assert_eq!(drive.repair(Address(2), entry_at(2), Address(3), SEALER).await, Ok(()));
                assert_eq!(drive.fence(K, SEALER).await.map(|tail| tail.end), Ok(3));
            });
        }
    }

    #[test]
    fn a_quorum_with_an_absent_or_dead_copy_keeps_the_contract() {
        let absent = || Arc::new(Quorum::new(vec![Err("disk gone".into()), Ok(leaf()), Ok(leaf())], 2));
        run_all("quorum with an absent copy", || Subject::new(absent()));
        let dead = || {
            let dead = Leaf::threaded();
            dead.die();
            Arc::new(Quorum::new(vec![Ok(dead), Ok(leaf()), Ok(leaf())], 2))
        };
        run_all("quorum with a dead copy", || Subject::new(dead()));
    }
}
