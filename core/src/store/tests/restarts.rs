//! Restarts of a disk that records have filled: however many there are, and however they end, they take nothing of it.

use super::full::{KIB, SmallDisk, fill, frees, small};
use super::*;
use crate::store::extent::{self, EXTENTS};
use crate::store::file::Faults;
use crate::store::format::{BLOCK, ExtentHeader, HeaderBlock};
use crate::store::{DiskHealth, verify};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Killed,
    /// Before anything was asked of it.
    KilledAtOnce,
}

/// What a node does at a start: deletes what its last start had begun and not used, and fences what it goes on from. Then it
/// begins another loglet, of which nothing is written.
async fn start_over(store: &DiskStore, at: u64) {
    let deleted = store.discard(LogletId(at - 2)).await.unwrap();
    assert_eq!(deleted, Ok(()), "start {at}: no room for a tombstone");
    let fenced = store.drive(leaf(at - 1)).fence(4, SEAL).await;
    assert_eq!(fenced.map(|tail| tail.end), Ok(0), "start {at}: no room for a fence");
}

async fn restart(sizes: &StoreConfig, at: u64, end: End) {
    let (store, report) = DiskStore::open(sizes.clone()).unwrap();
    assert_eq!(report.damage, vec![], "start {at}");
    assert!(!matches!(store.health(), DiskHealth::Dead(_)), "start {at}: {:?}", store.health());
    if end != End::KilledAtOnce {
        start_over(&store, at).await;
    }
    if end == End::Stopped {
        store.close().await.unwrap();
    }
}

/// Fills a disk with two loglets, restarts 48 times, and deletes the first `deleted` of them.
fn check(sizes: StoreConfig, disk: &Arc<SmallDisk>, deleted: u64) {
    runtime().block_on(async {
        let (store, _) = DiskStore::open(sizes.clone()).unwrap();
        let kept = fill(&store).await;
        drop(store);
        let ends = [End::Killed, End::Stopped, End::KilledAtOnce, End::Stopped];
        let mut used = Vec::new();
        for at in 12..60 {
            restart(&sizes, at, ends[at as usize % ends.len()]).await;
            used.push(disk.used());
        }
        let (early, late) = used.split_at(8);
        let most = early.iter().max().unwrap() + 64 * KIB;
        assert!(late.iter().all(|used| *used <= most), "starts take ever more: {used:?}");
        assert_eq!(verify::verify(&sizes.dir, |_| {}).unwrap().findings, vec![]);
        let (store, _) = DiskStore::open(sizes.clone()).unwrap();
        let b = store.drive(leaf(2));
        assert_eq!(b.list(everything(0)).await.unwrap().len() as u64, kept);
        (1..=deleted).for_each(|loglet| drop(store.discard(LogletId(loglet))));
        frees(&store).await;
        write(&*store.drive(leaf(3)), 0, vec![data(leaf(3), 0, 0, 0, 4000)]).await.unwrap();
        store.close().await.unwrap();
    });
    assert_eq!(verify::verify(&sizes.dir, |_| {}).unwrap().findings, vec![]);
}

fn limited(dir: &Path, disk_kib: u64) -> (StoreConfig, Arc<SmallDisk>) {
    let disk = SmallDisk::new(dir, disk_kib * KIB);
    let faults: Option<Arc<dyn Faults>> = Some(disk.clone());
    (StoreConfig { faults, ..small(dir) }, disk)
}

#[test]
fn any_number_of_restarts_of_a_full_disk_takes_nothing_of_its_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let (sizes, disk) = limited(dir.path(), 2048);
    check(sizes, &disk, 1);
}

#[test]
fn what_an_open_extent_has_left_of_the_reserve_is_given_back_by_the_start_that_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (sizes, disk) = limited(dir.path(), 2048);
    check(StoreConfig { extent_bytes: 512 * KIB, reserve_bytes: 192 * KIB, ..sizes }, &disk, 2);
}

#[test]
fn without_room_for_a_copy_of_the_last_group_it_is_written_again_where_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let (sizes, disk) = limited(dir.path(), 2048);
    let sizes = StoreConfig { reserve_bytes: 0, ..sizes };
    runtime().block_on(async {
        for at in 0..6 {
            let (store, report) = DiskStore::open(sizes.clone()).unwrap();
            assert_eq!(report.damage, vec![]);
            let a = store.drive(leaf(1));
            assert_eq!(a.list(everything(0)).await.unwrap().len() as u64, at);
            assert!(!matches!(store.health(), DiskHealth::Dead(_)), "start {at}: {:?}", store.health());
            let refused = write(&*a, at, vec![data(leaf(1), at, 0, at as i64, 4000)]).await;
            if at > 0 {
                let why = "there is no room for another extent";
                assert!(matches!(refused, Err(WriteError::Unavailable(_))), "{refused:?}: {why}");
                disk.resize(2048 * KIB);
                write(&*a, at, vec![data(leaf(1), at, 0, at as i64, 4000)]).await.unwrap();
            }
            // Killed before a later group proves the last one.
            drop((a, store));
            disk.resize(0);
            extents(dir.path())
                .iter()
                .filter(|path| is_spare(path))
                .for_each(|path| std::fs::remove_file(path).unwrap());
        }
    });
    assert_eq!(verify::verify(dir.path(), |_| {}).unwrap().findings, vec![]);
}

fn extents(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join(EXTENTS)).unwrap().map(|f| f.unwrap().path());
    all.filter(|path| extent::file_number(path).is_some()).collect()
}

fn is_spare(path: &Path) -> bool {
    let mut block = [0; BLOCK];
    std::fs::File::open(path).unwrap().read_exact_at(&mut block, 0).unwrap();
    ExtentHeader::read(&block) == HeaderBlock::Spare
}

#[test]
fn a_cut_that_ends_at_any_step_loses_nothing_and_is_no_damage() {
    for step in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let (store, _) = open(dir.path());
            for i in 0..3 {
                write(&*store.drive(leaf(1)), i, vec![data(leaf(1), i, 0, i as i64, 3000)]).await.unwrap();
            }
            drop(store);
        });
        let path = extents(dir.path()).into_iter().next().expect("an extent");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut block = [0; BLOCK];
        file.read_exact_at(&mut block, 0).unwrap();
        let HeaderBlock::Live { header, .. } = ExtentHeader::read(&block) else { panic!("a header") };
        let end = 4 * BLOCK as u64;
        let steps = [header.encode_cut(end), ExtentHeader { len: end, ..header }.encode()];
        if let Some(block) = steps.get((step as usize).clamp(1, 2) - 1).filter(|_| step > 0) {
            file.write_all_at(block, 0).unwrap();
        }
        if step == 3 {
            file.set_len(end).unwrap();
        }
        assert_eq!(verify::verify(dir.path(), |_| {}).unwrap().findings, vec![], "step {step}");
        let (store, report) = open(dir.path());
        assert_eq!(report.damage, vec![], "step {step}");
        let read =
            runtime().block_on(async { store.drive(leaf(1)).list(everything(0)).await.unwrap().len() });
        assert_eq!(read, 3, "step {step}");
    }
}
