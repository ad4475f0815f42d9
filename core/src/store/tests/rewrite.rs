//! Scattered extents become chunks: nothing is lost or doubled, damage is named, dead chunks go.

use super::life::{EndsAt, eventually};
use super::*;
use crate::drive::{Purpose, Read, ReadError, ScanQuery};
use crate::store::Faults;
use crate::store::verify::{FindingKind, verify};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;

const PARTITIONS: u64 = 20;
const ENTRIES: u64 = 240;

fn rewriting(dir: &Path) -> StoreConfig {
    StoreConfig {
        tail_bytes: TailBudget::new(0),
        journal_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        ..config(dir)
    }
}

/// One entry in three is large enough for a slice.
fn entry(l: u64, a: u64) -> Entry {
    let len = if a.is_multiple_of(3) { 9000 } else { 700 };
    data(leaf(l), a, (a % PARTITIONS) as i32, a as i64, len)
}

async fn fill(store: &DiskStore) {
    for a in 0..ENTRIES {
        for l in 1..3 {
            write(&*store.drive(leaf(l)), a, vec![entry(l, a)]).await.unwrap();
        }
    }
}

/// Every entry reads back once, by address, by scan and by partition.
async fn all_there(store: &DiskStore) {
    for l in 1..3 {
        let drive = store.drive(leaf(l));
        let scan = ScanQuery { from: Address(0), below: ALL, max_entries: usize::MAX };
        let scanned: Vec<u64> = drive.scan(scan).await.unwrap().iter().map(|s| s.header.address.0).collect();
        assert_eq!(scanned, (0..ENTRIES).collect::<Vec<_>>());
        for p in 0..PARTITIONS {
            let listed = drive.list(everything(p as i32)).await.unwrap();
            let addresses: Vec<u64> = listed.iter().map(|s| s.header.address.0).collect();
            assert_eq!(addresses, (p..ENTRIES).step_by(PARTITIONS as usize).collect::<Vec<_>>());
            for stored in &listed {
                assert_eq!(bytes_of(stored), payload_of(&entry(l, stored.header.address.0)));
            }
        }
        for a in 0..ENTRIES {
            assert!(
                matches!(drive.read(Address(a)).await.unwrap(), Read::Value(v) if v.header == entry(l, a).header)
            );
        }
    }
}

fn chunk_files(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("chunks")).unwrap().map(|f| f.unwrap().path());
    let mut chunks: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "chk")).collect();
    chunks.sort();
    chunks
}

/// A directory in which most is in chunks.
fn filled(dir: &Path) {
    runtime().block_on(async {
        let (store, _) = DiskStore::open(rewriting(dir)).unwrap();
        fill(&store).await;
        eventually("extents beyond the bound are rewritten and recycled", || {
            let s = store.stats();
            s.extents_closed <= 1 && s.extents_spare > 0 && s.chunks > 3
        })
        .await;
        all_there(&store).await;
        store.close().await.unwrap();
    });
}

#[test]
fn scattered_extents_become_chunks_in_which_partitions_lie_together_and_survive_restarts() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    runtime().block_on(async {
        for _ in 0..2 {
            let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
            assert_eq!((&report.damage, report.unfinished_chunks), (&vec![], 0), "{report:?}");
            assert!(report.chunks > 3 && report.entries >= 2 * ENTRIES, "{report:?}");
            all_there(&store).await;
            drop(store);
        }
        let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
        let drive = store.drive(leaf(1));
        write(&*drive, ENTRIES, vec![entry(1, ENTRIES)]).await.unwrap();
        assert_eq!(write(&*drive, 0, vec![entry(1, 0)]).await, Ok(()), "the same bytes again are fine");
        let other = data(leaf(1), 1, 1, 1, 10);
        assert_eq!(write(&*drive, 1, vec![other]).await, Err(WriteError::Conflict(Address(1))));
        let stored: Vec<Stored> = drive.list(everything(0)).await.unwrap();
        let slices: Vec<_> = stored
            .iter()
            .filter_map(|s| match &s.payload {
                Payload::File(f) => Some((f.position, f.len)),
                Payload::Memory { .. } => None,
            })
            .collect();
        assert!(slices.len() > 2, "large payloads are slices of chunks");
    });
    let bytes = std::fs::read(chunk_files(dir.path()).remove(0)).unwrap();
    let batches: Vec<usize> =
        (0..bytes.len() - 17).filter(|at| bytes[at + 16] == 2 && bytes[at + 8..at + 16] == [0; 8]).collect();
    assert!(batches.contains(&4096), "payloads begin right behind the header, without entry headers");
}

#[test]
fn a_rewrite_killed_at_any_step_loses_and_doubles_nothing() {
    let mut unfinished = 0;
    let mut finished = 0;
    for at in 0..14 {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let faults = Arc::new(EndsAt { at, seen: AtomicUsize::new(0) });
            let hook: Option<Arc<dyn Faults>> = Some(faults.clone());
            let (store, _) = DiskStore::open(StoreConfig { faults: hook, ..rewriting(dir.path()) }).unwrap();
            fill(&store).await;
            eventually("the step is reached", || faults.seen.load(std::sync::atomic::Ordering::Relaxed) > at)
                .await;
            all_there(&store).await;
            drop(store);
            assert_eq!(verify(dir.path(), |_| {}).unwrap().findings, vec![], "killed at step {at}");
            let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
            assert_eq!(report.damage, vec![], "killed at step {at}");
            unfinished += report.unfinished_chunks;
            finished += report.chunks;
            all_there(&store).await;
            eventually("rewriting goes on", || store.stats().extents_closed <= 1).await;
            all_there(&store).await;
            drop(store);
            let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
            all_there(&store).await;
        });
    }
    assert!(unfinished > 3 && finished > 3, "{unfinished} killed before they counted, {finished} after");
}

#[test]
fn damage_in_a_chunk_is_named_and_never_skipped() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let file = chunk_files(dir.path()).remove(0);
    let f = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    f.write_all_at(&[0xee; 3], 4096 + 100).unwrap();
    runtime().block_on(async {
        let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
        assert_eq!(report.damage, vec![], "found when it is read");
        let drive = store.drive(leaf(1));
        let refused = drive.list(everything(0)).await;
        let Err(ReadError::Damaged(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("00000000.chk position 4096") && why.contains("address 0"), "{why}");
        assert!(matches!(drive.read(Address(0)).await, Err(ReadError::Damaged(_))));
        assert!(matches!(drive.read(Address(PARTITIONS)).await, Ok(Read::Value(_))));
        drop((store, drive));
        // The directory of a chunk is its index: without it nobody may say that nothing was there.
        f.write_all_at(&payload_of(&entry(1, 0))[100..103], 4096 + 100).unwrap();
        let directory = file.with_extension("dir");
        let d = std::fs::OpenOptions::new().write(true).open(&directory).unwrap();
        let good = std::fs::read(&directory).unwrap();
        d.write_all_at(&[0xee; 3], 30).unwrap();
        let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
        assert!(report.damage.iter().any(|x| x.file == directory), "{report:?}");
        let drive = store.drive(leaf(1));
        assert!(matches!(drive.list(everything(0)).await, Err(ReadError::Damaged(_))));
        assert!(matches!(drive.read(Address(0)).await, Err(ReadError::Damaged(_))));
        assert!(matches!(drive.weak_tail(4).await, Err(ReadError::Damaged(_))));
        let last = ENTRIES - 1;
        let behind = ListQuery { from_offset: last as i64, ..everything((last % PARTITIONS) as i32) };
        assert_eq!(drive.list(behind).await.unwrap().len(), 1, "what is intact is served");
        let fresh = store.drive(leaf(3));
        assert_eq!(
            fresh.admit(10, Purpose::Records),
            Ok(()),
            "a segment that misses nothing is not concerned"
        );
        write(&*fresh, 0, vec![data(leaf(3), 0, 0, 0, 10)]).await.unwrap();
        drop((store, drive, fresh));
        let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
        let fresh = store.drive(leaf(3));
        assert_eq!(
            (fresh.admit(10, Purpose::Records), fresh.list(everything(0)).await.unwrap().len()),
            (Ok(()), 1)
        );
        drop((store, fresh));
        // Restored, it counts again.
        d.write_all_at(&good[30..33], 30).unwrap();
        let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
        assert_eq!(report.damage, vec![]);
        all_there(&store).await;
        assert_eq!(store.drive(leaf(3)).list(everything(0)).await.unwrap().len(), 1);
    });
    assert!(file.exists(), "damaged data is left alone");
}

#[test]
fn an_extent_with_a_damaged_entry_stays_as_it_is_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) =
            DiskStore::open(StoreConfig { journal_bytes: 1 << 30, ..rewriting(dir.path()) }).unwrap();
        fill(&store).await;
        store.close().await.unwrap();
    });
    let file = dir.path().join("extents/00000002.ext");
    let f = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mut whole = vec![0; 64 << 10];
    f.read_exact_at(&mut whole, 0).unwrap();
    // In the first entry of the extent: its header names loglet and address.
    let at = 4096 + 64 + 32;
    let field = |from: usize| u64::from_le_bytes(whole[at + from..at + from + 8].try_into().unwrap());
    let (l, address) = (field(8), field(16));
    f.write_all_at(&[0xee; 3], at as u64 + 300).unwrap();
    runtime().block_on(async {
        let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
        eventually("all but the damaged one are rewritten", || {
            let s = store.stats();
            s.extents_closed <= 2 && s.extents_spare > 0
        })
        .await;
        for other in 1..3 {
            for a in 0..ENTRIES {
                let read = store.drive(leaf(other)).read(Address(a)).await;
                match (other, a) == (l, address) {
                    true => assert!(matches!(read, Err(ReadError::Damaged(_))), "{read:?}"),
                    false => assert!(matches!(read, Ok(Read::Value(_))), "{other} {a}: {read:?}"),
                }
            }
        }
        assert_eq!(std::fs::read(&file).unwrap()[at..at + 96], whole[at..at + 96], "the file is left alone");
    });
}

#[test]
fn an_offline_check_finds_a_flipped_byte_anywhere_in_a_chunk_and_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let check = || verify(dir.path(), |_| {}).unwrap();
    let clean = check();
    assert_eq!((clean.findings, clean.entries), (vec![], 2 * ENTRIES));
    let chunk = chunk_files(dir.path()).remove(0);
    let mut kinds = BTreeSet::new();
    for path in [chunk.clone(), chunk.with_extension("dir")] {
        let f = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let len = f.metadata().unwrap().len();
        for at in (0..100).chain((0..len).step_by(1501)).chain(len - 3..len) {
            let mut byte = [0];
            f.read_exact_at(&mut byte, at).unwrap();
            f.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
            let found = check().findings;
            assert!(found.iter().any(|x| x.damage.file == path), "{} byte {at}: {found:?}", path.display());
            kinds.extend(found.iter().map(|x| format!("{:?}", x.kind)));
            f.write_all_at(&byte, at).unwrap();
        }
    }
    for kind in [FindingKind::Chunk, FindingKind::Entry, FindingKind::Directory] {
        assert!(kinds.contains(&format!("{kind:?}")), "{kinds:?}");
    }
    assert_eq!(check().findings, vec![]);
}

#[test]
fn a_dead_chunk_is_deleted_but_not_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    runtime().block_on(async {
        let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
        let drive = store.drive(leaf(1));
        let held = drive.list(ListQuery { max_entries: 1, ..everything(0) }).await.unwrap();
        assert!(matches!(&held[0].payload, Payload::File(_)));
        let before = chunk_files(dir.path());
        drive.trim(Address(ENTRIES)).await.unwrap();
        drop(store.discard(leaf(2).loglet));
        write(&*store.drive(leaf(3)), 0, vec![data(leaf(3), 0, 0, 0, 10)]).await.unwrap();
        eventually("all chunks but the pinned one go", || chunk_files(dir.path()).len() == 1).await;
        assert_eq!(store.stats().chunks, 0);
        assert_eq!(chunk_files(dir.path())[0], before[0]);
        assert_eq!(bytes_of(&held[0]), payload_of(&entry(1, 0)));
        drop(held);
        eventually("a pin that is gone frees its chunk", || chunk_files(dir.path()).is_empty()).await;
        drop((store, drive));
        let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
        assert_eq!((&report.damage, report.chunks), (&vec![], 0));
        let drive = store.drive(leaf(1));
        assert_eq!(drive.weak_tail(8).await.unwrap().trim, ENTRIES);
        assert!(matches!(drive.read(Address(3)).await.unwrap(), Read::Trimmed));
        assert!(matches!(store.drive(leaf(2)).read(Address(3)).await.unwrap(), Read::Trimmed));
    });
}

#[test]
fn large_runs_are_adopted_and_a_checkpoint_among_dead_data_pins_no_extent() {
    let dir = tempfile::tempdir().unwrap();
    let config = || StoreConfig {
        extent_bytes: 1 << 20,
        tail_bytes: TailBudget::new(0),
        journal_bytes: 1 << 20,
        ..config(dir.path())
    };
    runtime().block_on(async {
        let (store, _) = DiskStore::open(config()).unwrap();
        let a = store.drive(leaf(1));
        for i in 0..30u64 {
            let entry = match i % 10 {
                9 => checkpoint(i),
                _ => data(leaf(1), i, 0, i as i64, 250_000),
            };
            write(&*a, i, vec![entry]).await.unwrap();
        }
        eventually("extents have directories", || store.stats().extents_open == 1).await;
        let before = store.stats();
        assert!(before.adopted >= 5 && before.adopted == before.extents_closed, "{before:?}");
        assert_eq!((before.chunks, before.rewritten), (0, 0), "adopted data is not rewritten");
        a.note_log_starts(&[(0, 28)]);
        eventually("only what lives is left", || {
            let s = store.stats();
            s.extents_closed <= 1 && s.chunks > 0
        })
        .await;
        assert!(store.stats().rewritten < 100_000, "only checkpoints are copied: {:?}", store.stats());
        for _ in 0..2 {
            let (store, a) = (&store, &a);
            assert!(matches!(a.read(Address(9)).await.unwrap(), Read::Value(v) if v.header == checkpoint(9).header));
            assert_eq!(
                a.last_of(EntryKind::Checkpoint, 0, Address(15)).await.unwrap(),
                Some(Address(9))
            );
            assert!(matches!(a.read(Address(0)).await.unwrap(), Read::Gone { next: Address(9) }));
            assert!(store.stats().rewritten < 100_000, "and only once");
        }
        store.close().await.unwrap();
    });
}

/// Bytes of files with this extension.
fn bytes_in(dir: &Path, folder: &str, extension: &str) -> u64 {
    let all = std::fs::read_dir(dir.join(folder)).unwrap().map(|f| f.unwrap().path());
    all.filter(|p| p.extension().is_some_and(|e| e == extension))
        .map(|p| p.metadata().map_or(0, |m| m.len()))
        .sum()
}

#[test]
fn a_cold_partition_pins_no_more_than_its_own_size_of_its_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let before = bytes_in(dir.path(), "chunks", "chk");
    runtime().block_on(async {
        let (store, _) = DiskStore::open(rewriting(dir.path())).unwrap();
        let starts: Vec<_> = (1..PARTITIONS as i32).map(|p| (p, ENTRIES as i64)).collect();
        for l in 1..3 {
            store.drive(leaf(l)).note_log_starts(&starts);
        }
        eventually("what is dead goes", || bytes_in(dir.path(), "chunks", "chk") < before / 4).await;
        let drive = store.drive(leaf(1));
        let begun = std::time::Instant::now();
        // What is a quarter of the bytes may be of the first extents.
        while matches!(drive.read(Address(1)).await.unwrap(), Read::Value(_)) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "what is dead goes");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        for _ in 0..2 {
            let kept: Vec<u64> =
                drive.list(everything(0)).await.unwrap().iter().map(|s| s.header.address.0).collect();
            assert_eq!(kept, (0..ENTRIES).step_by(PARTITIONS as usize).collect::<Vec<_>>());
            let gone = drive.read(Address(1)).await.unwrap();
            assert!(matches!(gone, Read::Gone { next: Address(20) }), "{gone:?}");
        }
        let mut rests = 0;
        while rests < 20 {
            let rewritten = store.stats().rewritten;
            assert!(rewritten < before, "what was rewritten is not rewritten again");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            rests = if store.stats().rewritten == rewritten { rests + 1 } else { 0 };
        }
        store.close().await.unwrap();
    });
    let (store, report) = DiskStore::open(rewriting(dir.path())).unwrap();
    assert_eq!(report.damage, vec![]);
    let kept = runtime().block_on(store.drive(leaf(2)).list(everything(0))).unwrap();
    assert_eq!(kept.len() as u64, ENTRIES / PARTITIONS);
    drop(store);
    assert_eq!(verify(dir.path(), |_| {}).unwrap().findings, vec![]);
}

fn checkpoint(address: u64) -> Entry {
    let mut header = data(leaf(1), address, -1, 0, 0).header;
    header.kind = EntryKind::Checkpoint;
    header.base_offset = -1;
    let state = Bytes::from(vec![7; 500]);
    header.payload_len = state.len() as u32;
    Entry::own(header, state)
}

#[test]
fn what_is_deleted_before_its_extent_is_closed_is_dead_in_it_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = || StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir.path()) };
    let fill = async |store: &DiskStore, dead: u64, extent: u64| {
        let (dead, b) = (leaf(dead), store.drive(leaf(9)));
        for i in 0..4 {
            write(&*store.drive(dead), i, vec![data(dead, i, 0, i as i64, 4000)]).await.unwrap();
        }
        for i in extent * 3..(extent + 1) * 3 {
            write(&*b, i, vec![data(leaf(9), i, 0, i as i64, 4000)]).await.unwrap();
        }
        drop(store.discard(dead.loglet));
    };
    runtime().block_on(async {
        let (store, _) = DiskStore::open(config()).unwrap();
        fill(&store, 1, 0).await;
        // Closes the extent; nothing else dies.
        write(&*store.drive(leaf(8)), 0, vec![data(leaf(8), 0, 0, 0, 60_000)]).await.unwrap();
        write(&*store.drive(leaf(8)), 1, vec![data(leaf(8), 1, 0, 1, 60_000)]).await.unwrap();
        eventually("the deleted half goes", || store.stats().extents_rewritten == 1).await;
        fill(&store, 2, 1).await;
        store.close().await.unwrap();
        drop(store);
        let (store, _) = DiskStore::open(config()).unwrap();
        eventually("that of the last extent too", || store.stats().extents_rewritten >= 1).await;
        assert_eq!(store.drive(leaf(9)).list(everything(0)).await.unwrap().len(), 6);
        store.close().await.unwrap();
    });
}
