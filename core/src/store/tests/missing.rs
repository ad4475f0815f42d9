//! Files of a data directory that are gone, empty or cut: reported, and what they may have held is not taken for never written.

use super::*;
use crate::drive::{FenceError, Read, ReadError};
use crate::store::verify::verify;
use crate::store::{directory, inventory};
use std::path::PathBuf;

const ENTRIES: u64 = 240;

pub(super) fn small(dir: &Path) -> StoreConfig {
    StoreConfig {
        tail_bytes: TailBudget::new(0),
        journal_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        ..config(dir)
    }
}

/// What is done to a data directory of which some is in chunks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Harm {
    NewestExtent,
    NewestExtentEmptied,
    NewestExtentCut,
    ClosedExtent,
    AllExtents,
    Chunk,
    ChunkDirectory,
    All,
}

pub(super) fn files(dir: &Path, kind: &str, extension: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join(kind)).unwrap().map(|f| f.unwrap().path());
    let mut files: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

/// Extents that hold data, by number, with their files.
pub(super) fn extents(dir: &Path) -> Vec<(u64, PathBuf)> {
    let held = |path: PathBuf| {
        let mut block = [0; crate::store::format::BLOCK];
        // A running store may delete it meanwhile.
        crate::store::recovery::read_up_to(&std::fs::File::open(&path).ok()?, &mut block, 0).ok()?;
        match crate::store::format::ExtentHeader::read(&block) {
            crate::store::format::HeaderBlock::Live { header, .. } => Some((header.number, path)),
            _ => None,
        }
    };
    let mut all: Vec<_> = files(dir, "extents", "ext").into_iter().filter_map(held).collect();
    all.sort();
    all
}

/// Extents that hold data and in whose place no chunk stands.
pub(super) fn counting(dir: &Path) -> Vec<(u64, PathBuf)> {
    let chunks = files(dir, "chunks", "dir").into_iter();
    let covers: Vec<(u64, u64)> =
        chunks.filter_map(|path| directory::open(&path.with_extension("chk")).unwrap().0.covers).collect();
    let mut all = extents(dir);
    all.retain(|(number, _)| !covers.iter().any(|(first, last)| first <= number && number <= last));
    all
}

pub(super) fn filled(dir: &Path) {
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir)).unwrap();
        for a in 0..ENTRIES {
            for l in 1..3 {
                write(&*store.drive(leaf(l)), a, vec![data(leaf(l), a, (a % 20) as i32, a as i64, 900)])
                    .await
                    .unwrap();
            }
        }
        life::eventually("there are chunks", || store.stats().chunks > 2).await;
        // A third leaf has all it has in the newest extent.
        write(&*store.drive(leaf(3)), 0, vec![data(leaf(3), 0, 0, 0, 900)]).await.unwrap();
        let newest = extents(dir).pop().unwrap().0;
        life::eventually("the newest extent is in the inventory", || {
            let loaded = inventory::load(dir, store.disk_id()).unwrap();
            matches!(loaded, inventory::Loaded::Whole(all) if all.extents.iter().any(|held| held.covers.1 == newest))
        })
        .await;
        // As a kill leaves it.
        drop(store);
    });
}

fn harm(dir: &Path, harm: Harm) {
    let gone = |path: &PathBuf| std::fs::remove_file(path).unwrap();
    let newest = || extents(dir).pop().unwrap().1;
    match harm {
        Harm::NewestExtent => gone(&newest()),
        Harm::NewestExtentEmptied => drop(std::fs::File::create(newest()).unwrap()),
        Harm::NewestExtentCut => {
            std::fs::OpenOptions::new().write(true).open(newest()).unwrap().set_len(4096).unwrap()
        }
        Harm::ClosedExtent => gone(&counting(dir).remove(0).1),
        Harm::AllExtents => std::fs::remove_dir_all(dir.join("extents")).unwrap(),
        Harm::Chunk => {
            for extension in ["chk", "dir"] {
                gone(&files(dir, "chunks", extension)[0]);
            }
        }
        Harm::ChunkDirectory => gone(&files(dir, "chunks", "dir")[0]),
        Harm::All => {
            for kind in ["extents", "chunks"] {
                std::fs::remove_dir_all(dir.join(kind)).unwrap();
            }
            for name in crate::store::leaf_table::FILES {
                drop(std::fs::remove_file(dir.join(name)));
            }
        }
    }
}

#[test]
fn whatever_file_is_gone_is_reported_and_nothing_is_taken_for_the_end() {
    use Harm::*;
    for what in [
        NewestExtent,
        NewestExtentEmptied,
        NewestExtentCut,
        ClosedExtent,
        AllExtents,
        Chunk,
        ChunkDirectory,
        All,
    ] {
        // At times all but the newest extent are in chunks.
        let suits = |dir: &Path| what != ClosedExtent || counting(dir).len() > 1;
        let made = || {
            let dir = tempfile::tempdir().unwrap();
            filled(dir.path());
            dir
        };
        let dir = (0..100).map(|_| made()).find(|dir| suits(dir.path())).unwrap();
        assert_eq!(verify(dir.path(), |_| {}).unwrap().findings, vec![], "before {what:?}");
        let chunk = files(dir.path(), "chunks", "dir")[0].with_extension("chk");
        harm(dir.path(), what);
        let absent_all = matches!(what, AllExtents | All);
        assert_ne!(verify(dir.path(), |_| {}).unwrap().findings, vec![], "{what:?}");
        for start in 0..3 {
            runtime().block_on(async {
                let (store, report) = DiskStore::open(small(dir.path())).unwrap();
                store.used_before(LogletId(10));
                assert_ne!(report.damage, vec![], "{what:?}, start {start}");
                assert!(!store.damage().is_empty(), "{what:?}, start {start}");
                let mut missing = 0;
                for l in 1..3 {
                    for a in 0..ENTRIES {
                        match store.drive(leaf(l)).read(Address(a)).await {
                            Ok(Read::Value(stored)) => assert_eq!(stored.header.address, Address(a)),
                            Err(ReadError::Damaged(_)) => missing += 1,
                            other => panic!("{what:?}, start {start}: {other:?} at {a} of {l}"),
                        }
                    }
                }
                let newest =
                    matches!(what, NewestExtent | NewestExtentEmptied | NewestExtentCut) || absent_all;
                let fenced = store.drive(leaf(3)).fence(8, SEAL).await;
                assert_eq!(matches!(fenced, Err(FenceError::Unavailable(_))), newest, "{what:?}: {fenced:?}");
                if !newest {
                    assert!(missing > 0, "{what:?}, start {start}");
                }
                // Others go on, and one that begins now is whole.
                let new = leaf(20 + start);
                write(&*store.drive(new), 0, vec![data(new, 0, 0, 0, 900)]).await.unwrap();
                assert!(store.drive(new).fence(8, SEAL).await.is_ok(), "{what:?}, start {start}");
                store.settled();
                if start == 1 {
                    store.close().await.unwrap();
                }
            });
        }
        if what == ChunkDirectory {
            assert!(chunk.exists(), "a chunk that counts is not deleted");
        }
    }
}

#[test]
fn a_file_that_is_brought_back_is_used_again() {
    for extension in ["dir", "chk"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let file = files(dir.path(), "chunks", extension).remove(0);
        let kept = dir.path().join("kept");
        std::fs::rename(&file, &kept).unwrap();
        runtime().block_on(async {
            let (store, report) = DiskStore::open(small(dir.path())).unwrap();
            assert_ne!(report.damage, vec![], "{extension}");
            store.close().await.unwrap();
            drop(store);
            std::fs::rename(&kept, &file).unwrap();
            let (store, report) = DiskStore::open(small(dir.path())).unwrap();
            assert_eq!(report.damage, vec![], "{extension}");
            for a in 0..ENTRIES {
                assert!(matches!(store.drive(leaf(1)).read(Address(a)).await, Ok(Read::Value(_))));
            }
        });
    }
}

#[test]
fn an_extent_that_is_brought_back_after_others_were_written_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let newest = extents(dir.path()).pop().unwrap().1;
    let kept = dir.path().join("kept");
    std::fs::rename(&newest, &kept).unwrap();
    runtime().block_on(async {
        for start in 0..2 {
            let (store, report) = DiskStore::open(small(dir.path())).unwrap();
            assert_ne!(report.damage, vec![], "start {start}");
            store.used_before(LogletId(10));
            for a in 0..50 {
                let new = leaf(20 + start);
                write(&*store.drive(new), a, vec![data(new, a, 0, a as i64, 900)]).await.unwrap();
            }
            store.close().await.unwrap();
        }
        assert!(!newest.exists(), "its name is nobody else's");
        std::fs::rename(&kept, &newest).unwrap();
        for start in 0..3 {
            let (store, report) = DiskStore::open(small(dir.path())).unwrap();
            assert_eq!(report.damage, vec![], "start {start} with it");
            store.used_before(LogletId(30));
            for (l, count) in [(1, ENTRIES), (2, ENTRIES), (3, 1), (20, 50), (21, 50)] {
                for a in 0..count {
                    let read = store.drive(leaf(l)).read(Address(a)).await;
                    assert!(matches!(read, Ok(Read::Value(_))), "start {start}: {a} of {l}: {read:?}");
                }
            }
            // As a kill leaves it, at times before there is a directory.
            drop(store);
        }
    });
}

#[test]
fn what_was_missing_is_forgotten_once_all_it_may_have_held_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    harm(dir.path(), Harm::Chunk);
    runtime().block_on(async {
        let (store, _) = DiskStore::open(small(dir.path())).unwrap();
        store.used_before(LogletId(10));
        store.settled();
        for l in 1..4 {
            drop(store.discard(LogletId(l)));
        }
        write(&*store.drive(leaf(9)), 0, vec![data(leaf(9), 0, 0, 0, 900)]).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        // The inventory is written when an extent begins: this start's first does.
        for _ in 0..2 {
            let (store, _) = DiskStore::open(small(dir.path())).unwrap();
            store.used_before(LogletId(10));
            store.settled();
            write(&*store.drive(leaf(9)), 1, vec![data(leaf(9), 1, 0, 1, 900)]).await.unwrap();
            store.close().await.unwrap();
        }
        let (_store, report) = DiskStore::open(small(dir.path())).unwrap();
        assert_eq!(report.damage, vec![]);
    });
}
