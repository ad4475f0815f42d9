//! The drive contract on both stores (log-contracts 1.1), and reading.

use super::*;
use crate::drive::{Read, ScanQuery};
use crate::store::MemoryStore;

/// Runs a check on a memory and a disk drive.
fn on_both<F: AsyncFn(Arc<dyn LogDrive>, LeafId)>(check: F) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let memory = MemoryStore::new().unwrap();
    runtime().block_on(async {
        check(memory.drive(leaf(1)), leaf(1)).await;
        check(store.drive(leaf(1)), leaf(1)).await;
    });
}

#[test]
fn an_entry_written_is_read_back_by_address_offset_and_scan() {
    on_both(async |drive, id| {
        let entries: Vec<_> = (0..10).map(|a| data(id, a, (a % 3) as i32, 100 + a as i64, 50)).collect();
        write(&*drive, 0, entries.clone()).await.unwrap();
        for (a, e) in entries.iter().enumerate() {
            match drive.read(Address(a as u64)).await.unwrap() {
                Read::Value(v) => assert_eq!((v.header, bytes_of(&v)), (e.header, payload_of(e))),
                other => panic!("{other:?}"),
            }
        }
        let listed = drive.list(everything(1)).await.unwrap();
        assert_eq!(listed.iter().map(|s| s.header.base_offset).collect::<Vec<_>>(), [101, 104, 107]);
        let from = drive.list(ListQuery { from_offset: 102, max_entries: 1, ..everything(1) }).await.unwrap();
        assert_eq!(from[0].header.base_offset, 104);
        let below = drive.list(ListQuery { below: Address(7), ..everything(1) }).await.unwrap();
        assert_eq!(below.len(), 2);
        let late = drive.list(ListQuery { min_timestamp: Some(105), ..everything(1) }).await.unwrap();
        assert_eq!(late[0].header.base_offset, 107);
        let scan = ScanQuery { from: Address(2), below: Address(9), max_entries: 4 };
        let scanned = drive.scan(scan).await.unwrap();
        assert_eq!(scanned.iter().map(|s| s.header.address.0).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(drive.last_of(EntryKind::Data, 0, Address(6)).await.unwrap(), Some(Address(5)));
        assert_eq!(drive.last_of(EntryKind::Checkpoint, 0, ALL).await.unwrap(), None);
        let cached = drive.list_cached(&ListQuery { from_offset: 104, ..everything(1) }).unwrap();
        assert_eq!(cached.len(), 2);
    });
}

#[test]
fn a_rewrite_of_the_same_bytes_is_ok_and_of_others_a_conflict() {
    on_both(async |drive, id| {
        let e = data(id, 0, 0, 0, 10);
        write(&*drive, 0, vec![e.clone()]).await.unwrap();
        assert_eq!(write(&*drive, 0, vec![e.clone()]).await, Ok(()));
        let other = data(id, 0, 0, 5, 10);
        assert_eq!(write(&*drive, 0, vec![other]).await, Err(WriteError::Conflict(Address(0))));
        match drive.read(Address(0)).await.unwrap() {
            Read::Value(v) => assert_eq!(v.header, e.header),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_fenced_drive_answers_sealed_even_to_a_rewrite_and_takes_repairs() {
    on_both(async |drive, id| {
        write(&*drive, 0, vec![data(id, 0, 0, 0, 10)]).await.unwrap();
        write(&*drive, 2, vec![data(id, 2, 0, 2, 10)]).await.unwrap();
        let early = drive.repair(Address(1), data(id, 1, 0, 1, 10), Address(3), SEAL).await;
        assert!(early.is_err(), "a repair before the fence must be refused");
        let tail = drive.fence(8, SEAL).await.unwrap();
        assert_eq!((tail.end, tail.holes.iter().copied().collect::<Vec<_>>()), (3, vec![1]));
        assert_eq!(drive.fence(8, SEAL).await.unwrap(), tail);
        assert_eq!(write(&*drive, 0, vec![data(id, 0, 0, 0, 10)]).await, Err(WriteError::Sealed));
        assert_eq!(write(&*drive, 3, vec![data(id, 3, 0, 3, 10)]).await, Err(WriteError::Sealed));
        drive.repair(Address(1), data(id, 1, 0, 1, 10), Address(3), SEAL).await.unwrap();
        assert_eq!(drive.weak_tail(8).await.unwrap().contiguous(), Address(3));
        let listed = drive.list(everything(0)).await.unwrap();
        assert_eq!(listed.iter().map(|s| s.header.base_offset).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(write(&*drive, 1, vec![data(id, 1, 0, 1, 10)]).await, Err(WriteError::Sealed));
    });
}

#[test]
fn a_fence_of_a_leaf_never_heard_of_answers_an_empty_tail() {
    on_both(async |drive, id| {
        assert_eq!(drive.fence(4, SEAL).await.unwrap().end, 0);
        assert_eq!(write(&*drive, 0, vec![data(id, 0, 0, 0, 10)]).await, Err(WriteError::Sealed));
    });
}

#[test]
fn trimmed_addresses_count_as_written_and_never_reopen() {
    on_both(async |drive, id| {
        write(&*drive, 0, (0..4).map(|a| data(id, a, 0, a as i64, 10)).collect()).await.unwrap();
        drive.trim(Address(3)).await.unwrap();
        drive.trim(Address(1)).await.unwrap();
        assert!(matches!(drive.read(Address(2)).await.unwrap(), Read::Trimmed));
        assert!(matches!(drive.read(Address(3)).await.unwrap(), Read::Value(_)));
        assert!(matches!(drive.read(Address(4)).await.unwrap(), Read::Hole));
        let again = write(&*drive, 2, vec![data(id, 2, 0, 2, 10)]).await;
        assert_eq!(again, Err(WriteError::Trimmed(Address(2))));
        let tail = drive.weak_tail(10).await.unwrap();
        assert_eq!((tail.end, tail.trim, tail.holes.len()), (4, 3, 0));
        assert_eq!(drive.list(everything(0)).await.unwrap().len(), 1);
    });
}

#[test]
fn entries_out_of_order_are_listed_in_order() {
    on_both(async |drive, id| {
        for a in [0, 5, 3, 1, 6, 2, 4] {
            write(&*drive, a, vec![data(id, a, 0, a as i64 * 10, 10)]).await.unwrap();
        }
        let listed = drive.list(everything(0)).await.unwrap();
        let offsets: Vec<_> = listed.iter().map(|s| s.header.base_offset).collect();
        assert_eq!(offsets, [0, 10, 20, 30, 40, 50, 60]);
        if let Some(cached) = drive.list_cached(&ListQuery { from_offset: 30, ..everything(0) }) {
            assert_eq!(cached.len(), 4, "an answer from memory must be whole");
        }
    });
}

#[test]
fn an_entry_larger_than_an_extent_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let big = data(leaf(1), 1, 0, 1, 300 << 10);
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        let drive = store.drive(leaf(1));
        let entries = vec![data(leaf(1), 0, 0, 0, 10), big.clone(), data(leaf(1), 2, 0, 2, 10)];
        write(&*drive, 0, entries).await.unwrap();
        drop(store);
        let (store, report) = open(dir.path());
        assert_eq!((report.entries, report.damage.len()), (3, 0));
        let listed = store.drive(leaf(1)).list(everything(0)).await.unwrap();
        assert_eq!(bytes_of(&listed[1]), payload_of(&big));
    });
}

#[test]
fn a_lookup_by_time_passes_older_entries_however_few_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        let drive = store.drive(leaf(1));
        write(&*drive, 0, (0..9).map(|a| data(leaf(1), a, 0, a as i64, 10)).collect()).await.unwrap();
    });
    // From the index in memory, then from the directory of a clean end.
    for ending in ["crashed", "closed"] {
        let (store, _) = open(dir.path());
        let late = ListQuery { min_timestamp: Some(6), max_entries: 1, ..everything(0) };
        let found = runtime().block_on(store.drive(leaf(1)).list(late)).unwrap();
        assert_eq!(found.iter().map(|s| s.header.base_offset).collect::<Vec<_>>(), [6], "{ending}");
        if ending == "crashed" {
            runtime().block_on(store.close()).unwrap();
        }
    }
}
