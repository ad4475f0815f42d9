//! A disk that records have filled: what frees it goes on within the reserve, and frees it.

use super::life::eventually;
use super::*;
use crate::drive::{AdmitError, Purpose};
use crate::store::{Fault, Faults};
use std::path::PathBuf;

const KIB: u64 = 1 << 10;
const RESERVE: u64 = 512 * KIB;

/// A disk of so many bytes for the extents and chunks of one directory.
pub(crate) struct SmallDisk {
    dir: PathBuf,
    bytes: u64,
}

impl SmallDisk {
    pub(crate) fn new(dir: &Path, bytes: u64) -> Arc<SmallDisk> {
        Arc::new(SmallDisk { dir: dir.to_path_buf(), bytes })
    }

    fn used(&self) -> u64 {
        let files =
            ["extents", "chunks"].into_iter().filter_map(|f| std::fs::read_dir(self.dir.join(f)).ok());
        files.flatten().filter_map(|f| f.ok()?.metadata().ok()).map(|m| m.len()).sum()
    }
}

impl Faults for SmallDisk {
    fn write(&self, _len: usize) -> Fault {
        Fault::None
    }
    fn allocate_fails(&self) -> bool {
        self.used() >= self.bytes
    }
    fn available(&self) -> Option<u64> {
        Some(self.bytes.saturating_sub(self.used()))
    }
}

fn small(dir: &Path) -> StoreConfig {
    let faults: Option<Arc<dyn Faults>> = Some(SmallDisk::new(dir, 2048 * KIB));
    StoreConfig { reserve_bytes: RESERVE, tail_bytes: TailBudget::new(0), faults, ..config(dir) }
}

/// Entries of two loglets by turns until records are refused: how many of each.
async fn fill(store: &DiskStore) -> u64 {
    let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
    for i in 0.. {
        if a.admit(16 << 10, Purpose::Records).is_err() {
            assert!(i > 20, "{i} is not a full disk");
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
        store.discard(LogletId(1));
        let b = store.drive(leaf(2));
        eventually("a third of the disk is free again", || b.admit(600 << 10, Purpose::Records).is_ok())
            .await;
        let there: Vec<u64> =
            b.list(everything(0)).await.unwrap().iter().map(|s| s.header.address.0).collect();
        assert_eq!(there, (0..kept).collect::<Vec<_>>());
        store.close().await.unwrap();
    });
    let (store, report) = DiskStore::open(small(dir.path())).unwrap();
    assert_eq!(report.damage, vec![]);
    drop(store);
}

#[test]
fn what_was_deleted_of_a_disk_that_was_full_when_it_was_closed_makes_room_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        fill(&store).await;
        store.discard(LogletId(1));
        store.close().await.unwrap();
        drop(store);
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        let b = store.drive(leaf(2));
        eventually("a third of the disk is free again", || b.admit(600 << 10, Purpose::Records).is_ok())
            .await;
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
        for purpose in [Purpose::Coordination, Purpose::Freeing] {
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
            let share = RESERVE - purpose.keeps(RESERVE);
            assert!(written > 0 && written <= share, "{purpose:?}: {written} of {share}");
        }
        assert_eq!(a.fence(4, SEAL).await.unwrap().end, next);
        assert_eq!(store.drive(leaf(3)).fence(4, SEAL).await.unwrap().end, 0);
        store.close().await.unwrap();
    });
}
