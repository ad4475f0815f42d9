//! Kills, torn tails, flipped bytes, failing writes.

use super::*;
use crate::drive::{AdmitError, FenceError, Purpose, Read, ReadError};
use crate::store::{DiskHealth, Fault, Faults, OpenError};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

fn extent_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir.join("extents")).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "ext"));
    files.sort();
    files
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_with_offsets_fences_and_trims() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        let (a, b, c) = (store.drive(leaf(1)), store.drive(leaf(2)), store.drive(leaf(3)));
        for i in 0..200u64 {
            write(&*a, i, vec![data(leaf(1), i, (i % 4) as i32, i as i64, 900)]).await.unwrap();
        }
        write(&*b, 0, vec![data(leaf(2), 0, 0, 0, 9)]).await.unwrap();
        b.fence(4, SEAL).await.unwrap();
        c.fence(4, SEAL).await.unwrap();
        a.trim(Address(7)).await.unwrap();
        let first = (store.disk_id(), store.generation(), store.cluster_id());
        drop((store, a, b, c));
        let (store, report) = open(dir.path());
        assert_eq!((report.entries, report.damage), (201, vec![]));
        assert_eq!((store.disk_id(), store.cluster_id()), (first.0, first.2));
        assert_eq!(store.generation().0, first.1.0 + 1);
        let a = store.drive(leaf(1));
        let tail = a.weak_tail(10).await.unwrap();
        assert_eq!((tail.end, tail.trim, tail.holes.len()), (200, 7, 0));
        let listed = a.list(everything(1)).await.unwrap();
        assert_eq!(listed.first().unwrap().header.base_offset, 9);
        assert_eq!(listed.len(), 48);
        for e in &listed {
            let sent = data(leaf(1), e.header.address.0, 1, e.header.base_offset, 900);
            assert_eq!(bytes_of(e), payload_of(&sent));
        }
        for sealed in [leaf(2), leaf(3)] {
            let outcome = write(&*store.drive(sealed), 1, vec![data(sealed, 1, 0, 1, 9)]).await;
            assert_eq!(outcome, Err(WriteError::Sealed));
        }
        assert_eq!(write(&*a, 200, vec![data(leaf(1), 200, 0, 200, 9)]).await, Ok(()));
    });
}

#[test]
fn a_closed_store_opens_again_and_refuses_what_comes_late() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        let drive = store.drive(leaf(1));
        let pending: Vec<_> =
            (0..50).map(|i| submit(&*drive, i, vec![data(leaf(1), i, 0, i as i64, 3000)])).collect();
        store.close().await.unwrap();
        for p in pending {
            assert_eq!(p.await.unwrap(), Ok(()), "close finishes what is queued");
        }
        let late = write(&*drive, 50, vec![data(leaf(1), 50, 0, 50, 3)]).await;
        assert!(matches!(late, Err(WriteError::Unavailable(_))), "{late:?}");
        let (store, report) = open(dir.path());
        assert_eq!((report.entries, report.torn_bytes), (50, 0));
        assert_eq!(store.drive(leaf(1)).weak_tail(4).await.unwrap().end, 50);
    });
}

#[test]
fn a_directory_in_use_of_another_cluster_or_node_or_newer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    assert!(matches!(DiskStore::open(config(dir.path())), Err(OpenError::InUse(_))));
    let cluster = store.cluster_id();
    drop(store);
    let wrong = StoreConfig { cluster_id: Some(uuid::Uuid::from_u128(1)), ..config(dir.path()) };
    assert!(matches!(DiskStore::open(wrong), Err(OpenError::Cluster { got, .. }) if got == cluster));
    let wrong = StoreConfig { node_id: NodeId(2), ..config(dir.path()) };
    assert!(matches!(DiskStore::open(wrong), Err(OpenError::Node { .. })));
    let file = dir.path().join("superblock");
    let good = std::fs::read(&file).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&file, &bad).unwrap();
        let refused = DiskStore::open(config(dir.path())).map(|_| ());
        let expected = matches!(refused, Err(OpenError::Damaged { .. } | OpenError::Newer { .. }));
        assert!(expected, "byte {at}: {refused:?}");
    }
    std::fs::write(&file, &good).unwrap();
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        write(&*store.drive(leaf(1)), 0, vec![data(leaf(1), 0, 0, 0, 9)]).await.unwrap();
    });
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(DiskStore::open(config(dir.path())), Err(OpenError::Damaged { .. })));
}

/// Fails the write number `at` (from 0) in one way.
struct FailAt {
    at: usize,
    fault: Fault,
    seen: AtomicUsize,
}
impl Faults for FailAt {
    fn write(&self, _len: usize) -> Fault {
        match self.seen.fetch_add(1, Ordering::Relaxed) == self.at {
            true => self.fault,
            false => Fault::None,
        }
    }
}

fn failing(dir: &Path, at: usize, fault: Fault) -> StoreConfig {
    StoreConfig { faults: Some(Arc::new(FailAt { at, fault, seen: AtomicUsize::new(0) })), ..config(dir) }
}

#[test]
fn a_group_torn_at_any_byte_loses_only_what_was_not_acknowledged() {
    let group = 64 + 3 * (32 + 96 + 61 + 40);
    for cut in (0..=group).step_by(5) {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            // Writes: extent header, first group, then the one that is torn.
            let (store, _) = DiskStore::open(failing(dir.path(), 2, Fault::Torn(cut))).unwrap();
            let drive = store.drive(leaf(1));
            write(&*drive, 0, vec![data(leaf(1), 0, 0, 0, 40)]).await.unwrap();
            let torn = write(&*drive, 1, (1..4).map(|a| data(leaf(1), a, 0, a as i64, 40)).collect()).await;
            assert!(matches!(torn, Err(WriteError::Unavailable(_))));
            drop((store, drive));
            for _ in 0..2 {
                let (store, report) = open(dir.path());
                assert_eq!(report.damage, vec![], "cut at {cut}: a tear is no damage");
                let drive = store.drive(leaf(1));
                let found = drive.list(everything(0)).await.unwrap();
                let end = drive.weak_tail(8).await.unwrap().contiguous().0;
                assert_eq!(end, found.len() as u64);
                assert!((1..=5).contains(&end), "cut at {cut}: end {end}");
                for (a, e) in found.iter().enumerate() {
                    assert_eq!(bytes_of(e), payload_of(&data(leaf(1), a as u64, 0, a as i64, 40)));
                }
                write(&*drive, end, vec![data(leaf(1), end, 0, end as i64, 40)]).await.unwrap();
            }
        });
    }
}

#[test]
fn a_failed_write_kills_the_disk_and_reads_go_on() {
    for fault in [Fault::WriteFails, Fault::SyncFails, Fault::Full, Fault::Torn(100)] {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let (store, _) = DiskStore::open(failing(dir.path(), 2, fault)).unwrap();
            let drive = store.drive(leaf(1));
            write(&*drive, 0, vec![data(leaf(1), 0, 0, 0, 40)]).await.unwrap();
            assert_eq!(store.health(), DiskHealth::Live);
            for a in 1..4 {
                let outcome = write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 40)]).await;
                assert!(matches!(outcome, Err(WriteError::Unavailable(_))), "{fault:?}: {outcome:?}");
            }
            assert!(matches!(drive.admit(1, Purpose::Records), Err(AdmitError::Dead(_))));
            assert!(matches!(drive.fence(4, SEAL).await, Err(FenceError::Unavailable(_))));
            assert!(matches!(store.health(), DiskHealth::Dead(_)));
            assert!(matches!(drive.read(Address(0)).await.unwrap(), Read::Value(_)));
            assert!(store.close().await.is_err());
            let (store, report) = open(dir.path());
            assert_eq!(report.damage, vec![]);
            assert!(matches!(store.drive(leaf(1)).read(Address(0)).await.unwrap(), Read::Value(_)));
        });
    }
}

/// Every second file finds no descriptor at first.
#[derive(Default)]
struct FewDescriptors(AtomicU32);
impl Faults for FewDescriptors {
    fn write(&self, _: usize) -> Fault {
        Fault::None
    }
    fn no_descriptor(&self) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst) % 2 == 1
    }
}

#[test]
fn a_process_without_descriptors_for_a_while_keeps_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let faults = Arc::new(FewDescriptors::default());
        let config = StoreConfig { faults: Some(faults.clone()), ..config(dir.path()) };
        let (store, _) = DiskStore::open(config).unwrap();
        let drive = store.drive(leaf(1));
        let begun = faults.0.load(Ordering::SeqCst);
        for a in 0..60 {
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 3000)]).await.unwrap();
        }
        assert!(faults.0.load(Ordering::SeqCst) > begun + 2, "no extent was begun meanwhile");
        assert_eq!(store.health(), DiskHealth::Live);
        assert_eq!(drive.admit(1000, Purpose::Records), Ok(()));
    });
}

struct NoSpace;
impl Faults for NoSpace {
    fn write(&self, _: usize) -> Fault {
        Fault::None
    }
    fn available(&self) -> Option<u64> {
        Some(1 << 20)
    }
}

#[test]
fn a_full_disk_is_refused_before_anything_is_reserved_while_fences_go_on() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let faults: Option<Arc<dyn Faults>> = Some(Arc::new(NoSpace));
        let config = StoreConfig { reserve_bytes: 512 << 10, faults, ..config(dir.path()) };
        let (store, _) = DiskStore::open(config).unwrap();
        let drive = store.drive(leaf(1));
        assert_eq!(drive.admit(1000, Purpose::Records), Ok(()));
        assert!(matches!(drive.admit(600 << 10, Purpose::Records), Err(AdmitError::Full(_))));
        assert_eq!(drive.fence(4, SEAL).await.unwrap().end, 0);
    });
}

/// Ten groups of one entry each, killed; answers where each group stands in its file.
fn ten_groups(dir: &Path) -> PathBuf {
    runtime().block_on(async {
        let (store, _) = open(dir);
        let drive = store.drive(leaf(1));
        for a in 0..10 {
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 40)]).await.unwrap();
        }
    });
    extent_files(dir).remove(0)
}

#[test]
fn a_flipped_byte_in_the_middle_is_reported_and_never_reads_as_a_hole_or_the_end() {
    let group = 64 + 32 + 96 + 61 + 40;
    for at in 0..group {
        let dir = tempfile::tempdir().unwrap();
        let file = ten_groups(dir.path());
        let f = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        // Empty groups may stand between: take the sixth with a record.
        let whole = std::fs::read(&file).unwrap();
        let mut groups = (1..16u64).filter(|b| whole[*b as usize * 4096 + 36] == 1);
        let position = 4096 * groups.nth(5).unwrap() + at;
        let mut byte = [0];
        f.read_exact_at(&mut byte, position).unwrap();
        f.write_all_at(&[byte[0] ^ 0x10], position).unwrap();
        drop(f);
        runtime().block_on(async {
            let (store, report) = open(dir.path());
            assert!(!report.damage.is_empty(), "byte {at} of the group");
            assert!(report.damage[0].to_string().contains("00000000.ext"), "{}", report.damage[0]);
            let drive = store.drive(leaf(1));
            let read = drive.read(Address(5)).await;
            assert!(matches!(read, Err(ReadError::Damaged(_))), "byte {at}: {read:?}");
            let listed = drive.list(everything(0)).await;
            assert!(
                !matches!(&listed, Ok(all) if all.is_empty() || all.len() > 5),
                "byte {at}: damage skipped: {listed:?}"
            );
            let beyond = drive.list(ListQuery { from_offset: 5, ..everything(0) }).await;
            assert!(matches!(beyond, Err(ReadError::Damaged(_))), "byte {at}: {beyond:?}");
            store.close().await.unwrap();
            drop((store, drive));
            let (store, again) = open(dir.path());
            assert_eq!(again.damage, report.damage, "byte {at}: damage is not forgotten by a restart");
            let read = store.drive(leaf(1)).read(Address(5)).await;
            assert!(matches!(read, Err(ReadError::Damaged(_))), "byte {at}: {read:?}");
        });
    }
}

#[test]
fn a_cut_file_is_reported_and_its_segments_give_no_vote() {
    for keep in [4096 * 3, 4096 * 5 + 100, 4096 * 10] {
        let dir = tempfile::tempdir().unwrap();
        let file = ten_groups(dir.path());
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(keep).unwrap();
        runtime().block_on(async {
            for start in 0..2 {
                let (store, report) = open(dir.path());
                assert!(report.damage.iter().any(|d| d.what.contains("file cut")), "{report:?}");
                let drive = store.drive(leaf(1));
                assert!(matches!(drive.read(Address(9)).await, Err(ReadError::Damaged(_))), "kept {keep}");
                assert!(matches!(drive.weak_tail(4).await, Err(ReadError::Damaged(_))));
                assert!(matches!(drive.fence(4, SEAL).await, Err(FenceError::Unavailable(_))));
                assert!(matches!(drive.admit(1, Purpose::Records), Err(AdmitError::Dead(_))));
                let fresh = leaf(2 + start);
                write(&*store.drive(fresh), 0, vec![data(fresh, 0, 0, 0, 9)]).await.unwrap();
            }
        });
    }
}

#[test]
fn an_extent_whose_header_is_lost_is_left_alone_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = ten_groups(dir.path());
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&[0x55; 4096], 0).unwrap();
    let (store, report) = open(dir.path());
    assert!(report.damage[0].to_string().contains("header damaged"), "{report:?}");
    runtime().block_on(async {
        write(&*store.drive(leaf(2)), 0, vec![data(leaf(2), 0, 0, 0, 9)]).await.unwrap();
    });
    drop(store);
    assert!(std::fs::read(&file).unwrap()[4096..].starts_with(b"RWGR"), "nothing was written over it");
}

/// A file system without a free block.
struct Crammed;

impl Faults for Crammed {
    fn write(&self, _len: usize) -> Fault {
        Fault::None
    }
    fn allocate_fails(&self, _: u64) -> bool {
        true
    }
}

#[test]
fn a_full_disk_opens_for_reads_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = open(dir.path());
        let drive = store.drive(leaf(1));
        for a in 0..3 {
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 100)]).await.unwrap();
        }
    });
    // Killed: the last group may stand unproven, and there is no file for its copy.
    let crammed = StoreConfig { faults: Some(Arc::new(Crammed)), ..config(dir.path()) };
    runtime().block_on(async {
        let (store, _) = DiskStore::open(crammed).unwrap();
        let drive = store.drive(leaf(1));
        let listed = drive.list(everything(0)).await.unwrap();
        assert_eq!(listed.len(), 3);
        let refused = write(&*drive, 3, vec![data(leaf(1), 3, 0, 3, 100)]).await;
        assert!(matches!(refused, Err(WriteError::Unavailable(_))), "{refused:?}");
    });
    let (store, report) = open(dir.path());
    assert_eq!(report.damage, Vec::new());
    runtime().block_on(async {
        let drive = store.drive(leaf(1));
        assert_eq!(drive.list(everything(0)).await.unwrap().len(), 3);
        write(&*drive, 3, vec![data(leaf(1), 3, 0, 3, 100)]).await.unwrap();
    });
}

#[test]
fn a_disk_of_less_than_two_extents_is_refused_with_what_to_set() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { reserve_bytes: 1 << 60, ..config(dir.path()) };
    let refused = DiskStore::open(config).map(|_| ()).unwrap_err().to_string();
    for part in ["two extents of 65536", "extent.bytes", "disk.reserve.bytes"] {
        assert!(refused.contains(part), "{refused}");
    }
}
