//! A disk that records have filled: what frees it goes on within the reserve, and frees it.

use super::*;
use crate::drive::{AdmitError, Purpose, ScanQuery};
use crate::store::{DiskHealth, Fault, Faults};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const KIB: u64 = 1 << 10;
const RESERVE: u64 = 512 * KIB;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// A disk of so many bytes for the extents and chunks of one directory.
pub(crate) struct SmallDisk {
    dir: PathBuf,
    bytes: AtomicU64,
}

impl SmallDisk {
    pub(crate) fn new(dir: &Path, bytes: u64) -> Arc<SmallDisk> {
        Arc::new(SmallDisk { dir: dir.to_path_buf(), bytes: AtomicU64::new(bytes) })
    }

    /// From now on it has so many bytes.
    pub(crate) fn resize(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> u64 {
        let files =
            ["extents", "chunks"].into_iter().filter_map(|f| std::fs::read_dir(self.dir.join(f)).ok());
        files.flatten().filter_map(|f| f.ok()?.metadata().ok()).map(|m| m.len()).sum()
    }
}

impl Faults for SmallDisk {
    fn write(&self, _len: usize) -> Fault {
        Fault::None
    }
    fn allocate_fails(&self, len: u64) -> bool {
        self.used() + len > self.bytes.load(Ordering::Relaxed)
    }
    fn available(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed).saturating_sub(self.used()))
    }
}

pub(super) fn small(dir: &Path) -> StoreConfig {
    let faults: Option<Arc<dyn Faults>> = Some(SmallDisk::new(dir, 2048 * KIB));
    StoreConfig { reserve_bytes: RESERVE, tail_bytes: TailBudget::new(0), faults, ..config(dir) }
}

/// Until a third of the disk is free for records.
pub(super) async fn frees(store: &DiskStore) {
    let b = store.drive(leaf(2));
    let begun = std::time::Instant::now();
    while let Err(full) = b.admit(600 << 10, Purpose::Records) {
        let chunks: Vec<u64> = store.inner.extents.lock().chunks.values().map(|c| c.len()).collect();
        let stats = store.stats();
        assert!(begun.elapsed() < PATIENCE, "{full}; chunks of {chunks:?}; {stats:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// What is left once extents that closed have given back their ends and what was kept for their directories, and the next is
/// there.
async fn settled(store: &DiskStore) -> u64 {
    let mut seen = Vec::new();
    loop {
        let (left, _) = store.inner.look_up_space().unwrap();
        seen.retain(|before| *before == left);
        seen.push(left);
        if seen.len() == 20 {
            return left;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Entries of two loglets by turns until records are refused: how many of each.
pub(super) async fn fill(store: &DiskStore) -> u64 {
    let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
    for i in 0.. {
        if a.admit(16 << 10, Purpose::Records).is_err() {
            assert!(i > 20, "{i} is not a full disk");
            let (left, _) = store.inner.look_up_space().unwrap();
            // What is on its way to be a spare extent, and two directories.
            let unseen = 128 * KIB;
            assert!(
                left + unseen > store.inner.reserve_bytes,
                "records took of the reserve: {left} are left"
            );
            return i;
        }
        write(&*a, i, vec![data(leaf(1), i, 0, i as i64, 4000)]).await.unwrap();
        write(&*b, i, vec![data(leaf(2), i, 0, i as i64, 4000)]).await.unwrap();
    }
    unreachable!("a disk of two MiB is full some time");
}

#[test]
fn what_is_deleted_of_a_full_disk_makes_room_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        let kept = fill(&store).await;
        drop(store.discard(LogletId(1)));
        let b = store.drive(leaf(2));
        frees(&store).await;
        let there: Vec<u64> =
            b.list(everything(0)).await.unwrap().iter().map(|s| s.header.address.0).collect();
        assert_eq!(there, (0..kept).collect::<Vec<_>>());
        store.close().await.unwrap();
    });
    let (store, report) = DiskStore::open(small(dir.path())).unwrap();
    assert_eq!(report.damage, vec![]);
    drop(store);
}

/// Extents that live and wait to be rewritten find no room on a full disk: those that free some go all the same.
#[test]
fn what_finds_no_room_to_be_rewritten_does_not_hold_up_what_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let wait = StoreConfig { journal_bytes: 1 << 30, ..small(dir.path()) };
    let none_waits = StoreConfig { journal_bytes: 0, ..small(dir.path()) };
    runtime().block_on(async {
        let (store, _) = DiskStore::open(wait).unwrap();
        // Scattered, and nearly all of each extent.
        let c = store.drive(leaf(3));
        for i in 0..60 {
            write(&*c, i, vec![data(leaf(3), i, i as i32 % 20, i as i64, 7800)]).await.unwrap();
        }
        fill(&store).await;
        drop(store.discard(LogletId(1)));
        store.close().await.unwrap();
        drop(store);
        let (store, _) = DiskStore::open(none_waits).unwrap();
        let begun = std::time::Instant::now();
        frees(&store).await;
        let took = begun.elapsed();
        assert!(took.as_secs() < 8, "{took:?}: as long as the keeper rests where all was tried");
        let scan = ScanQuery { from: Address(0), below: ALL, max_entries: usize::MAX };
        assert_eq!(store.drive(leaf(3)).scan(scan).await.unwrap().len(), 60);
        store.close().await.unwrap();
    });
}

#[test]
fn what_was_deleted_of_a_disk_that_was_full_when_it_was_closed_makes_room_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        fill(&store).await;
        drop(store.discard(LogletId(1)));
        store.close().await.unwrap();
        drop(store);
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        frees(&store).await;
        store.close().await.unwrap();
    });
}

#[test]
fn each_purpose_has_its_share_of_the_reserve_and_none_takes_what_fences_need() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        let mut next = fill(&store).await;
        let a = store.drive(leaf(1));
        for purpose in [Purpose::Coordination, Purpose::Rewriting, Purpose::Freeing] {
            let (left, kept) = (settled(&store).await, purpose.keeps(RESERVE));
            let mut written = 0;
            loop {
                match a.admit(4096, purpose) {
                    Ok(()) => {}
                    Err(AdmitError::Full(_)) => break,
                    Err(dead) => panic!("{dead}"),
                }
                // Looked up anew: what was written is seen.
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                write(&*a, next, vec![data(leaf(1), next, 0, next as i64, 3000)]).await.unwrap();
                (next, written) = (next + 1, written + 4096);
            }
            assert!(
                written > 0 && written <= left - kept,
                "{purpose:?}: {written} of {left}, {kept} are kept"
            );
            // An extent that was opened for the last of it, and its directory, may come on top.
            let (left, opened) = (settled(&store).await, 24 * KIB);
            assert!(left + opened >= kept, "{purpose:?}: {left} are left of {kept}");
        }
        assert_eq!(a.fence(4, SEAL).await.unwrap().end, next);
        assert_eq!(store.drive(leaf(3)).fence(4, SEAL).await.unwrap().end, 0);
        store.close().await.unwrap();
    });
}

#[test]
fn fences_find_room_in_a_reserve_that_is_smaller_than_an_extent() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let sizes = StoreConfig { extent_bytes: 256 * KIB, reserve_bytes: 128 * KIB, ..small(dir.path()) };
        let (store, _) = DiskStore::open(sizes.clone()).unwrap();
        let next = fill(&store).await;
        for loglet in 1..=8 {
            let end = if loglet > 2 { 0 } else { next };
            assert_eq!(store.drive(leaf(loglet)).fence(4, SEAL).await.unwrap().end, end);
        }
        store.close().await.unwrap();
        drop(store);
        let (store, report) = DiskStore::open(sizes).unwrap();
        assert_eq!(report.damage, vec![]);
        assert_eq!(store.drive(leaf(1)).list(everything(0)).await.unwrap().len() as u64, next);
        let late = write(&*store.drive(leaf(8)), 0, vec![data(leaf(8), 0, 0, 0, 10)]).await;
        assert_eq!(late, Err(WriteError::Sealed));
    });
}

#[test]
fn a_disk_that_is_full_to_the_last_block_refuses_and_lives_and_goes_on_when_something_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = StoreConfig { reserve_bytes: 0, ..small(dir.path()) };
    runtime().block_on(async {
        let (store, _) = DiskStore::open(sizes.clone()).unwrap();
        // Nobody asks whether there is room.
        let (mut loglet, mut next, mut rest) = (1, 0, 0);
        let refused = loop {
            let drive = store.drive(leaf(loglet));
            match write(&*drive, next, vec![data(leaf(loglet), next, 0, next as i64, 4000)]).await {
                Ok(()) => next += 1,
                Err(refused) => break refused,
            }
            assert!(next < 1000, "a disk of two MiB is full some time");
            if (loglet, next) == (1, 70) {
                (loglet, next) = (2, 0);
            }
        };
        assert!(matches!(&refused, WriteError::Unavailable(why) if why.contains("full")), "{refused:?}");
        assert!(loglet == 2 && next > 20, "{loglet} {next}");
        assert!(!matches!(store.health(), DiskHealth::Dead(_)), "{:?}", store.health());
        // What is left of the open extent.
        while write(&*store.drive(leaf(4)), rest, vec![data(leaf(4), rest, 0, rest as i64, 10)]).await.is_ok()
        {
            rest += 1;
        }
        let tombstone = store.discard(LogletId(1)).await.unwrap();
        assert!(
            matches!(&tombstone, Err(WriteError::Unavailable(why)) if why.contains("full")),
            "{tombstone:?}"
        );
        let mut tries = 0;
        while write(&*store.drive(leaf(3)), 0, vec![data(leaf(3), 0, 0, 0, 4000)]).await.is_err() {
            tries += 1;
            assert!(tries < 2000, "no room after a deletion: {:?}", store.stats());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let b = store.drive(leaf(2));
        assert_eq!(b.list(everything(0)).await.unwrap().len() as u64, next);
        // The address that was refused is free, and what follows was not written.
        assert_eq!(b.fence(4, SEAL).await.unwrap().contiguous(), Address(next));
        // It dies with no tombstone for what was deleted, of which a part is there no more.
        drop((store, b));
        let (store, report) = DiskStore::open(sizes.clone()).unwrap();
        assert_eq!(report.damage, vec![]);
        assert_eq!(store.drive(leaf(2)).list(everything(0)).await.unwrap().len() as u64, next);
        assert_eq!(store.discard(LogletId(1)).await.unwrap(), Ok(()));
        drop(store);
        let (store, report) = DiskStore::open(sizes).unwrap();
        assert_eq!(report.damage, vec![]);
        let late = write(&*store.drive(leaf(1)), 70, vec![data(leaf(1), 70, 0, 70, 10)]).await;
        assert_eq!(late, Err(WriteError::Sealed), "the deletion is remembered");
    });
}
