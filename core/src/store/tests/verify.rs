//! The offline check finds a flipped byte anywhere in each kind of file.

use super::*;
use crate::store::OpenError;
use crate::store::verify::{Report, verify};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn check(dir: &Path) -> Report {
    verify(dir, |_| {}).unwrap()
}

fn filled(dir: &Path) {
    runtime().block_on(async {
        let (store, _) =
            DiskStore::open(StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir) }).unwrap();
        let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
        for i in 0..30u64 {
            write(&*a, i, vec![data(leaf(1), i, (i % 2) as i32, i as i64, 3000)]).await.unwrap();
        }
        let mut header = data(leaf(2), 0, -1, 0, 0).header;
        header.kind = EntryKind::Checkpoint;
        let state = Bytes::from(vec![7; 500]);
        header.payload_len = state.len() as u32;
        write(&*b, 0, vec![Entry::own(header, state)]).await.unwrap();
        b.fence(3, SEAL).await.unwrap();
        a.trim(Address(20)).await.unwrap();
        let recycled = || store.stats().recycled > 0;
        for _ in 0..2000 {
            if recycled() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(recycled(), "the leaf table is written when something is recycled");
        store.close().await.unwrap();
    });
}

/// Bytes of a file that count: all, save what lies behind an extent's last group and in spare extents.
fn counting(file: &PathBuf) -> usize {
    let bytes = std::fs::read(file).unwrap();
    if file.extension().is_none_or(|e| e != "ext") {
        return bytes.len();
    }
    match std::fs::read(file.with_extension("dir")) {
        Ok(dir) => u64::from_le_bytes(dir[48..56].try_into().unwrap()) as usize,
        Err(_) => 0,
    }
}

#[test]
fn a_flipped_byte_anywhere_in_each_kind_of_file_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let clean = check(dir.path());
    assert_eq!((clean.findings, clean.torn_bytes), (vec![], 0));
    assert!(clean.entries >= 11 && clean.files >= 5, "{} entries, {} files", clean.entries, clean.files);
    let mut files: Vec<PathBuf> = ["superblock", "leaves", "leaves-copy"].map(|f| dir.path().join(f)).into();
    files.extend(std::fs::read_dir(dir.path().join("extents")).unwrap().map(|f| f.unwrap().path()));
    let mut flips = 0;
    for path in files {
        let f = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let len = counting(&path);
        let step = if len > 3000 { 101 } else { 1 };
        for at in (0..len).step_by(step) {
            let mut byte = [0];
            f.read_exact_at(&mut byte, at as u64).unwrap();
            f.write_all_at(&[byte[0] ^ 0x20], at as u64).unwrap();
            let found = check(dir.path()).findings;
            let named = found.iter().any(|x| x.damage.file == path);
            assert!(named, "{} byte {at}: {found:?}", path.display());
            f.write_all_at(&byte, at as u64).unwrap();
            flips += 1;
        }
    }
    assert!(flips > 500, "{flips}");
    assert_eq!(check(dir.path()).findings, vec![]);
}

#[test]
fn damage_in_an_entry_names_its_segment_and_address() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let files = std::fs::read_dir(dir.path().join("extents")).unwrap().map(|f| f.unwrap().path());
    let large = |f: &PathBuf| {
        let b = std::fs::read(f).unwrap();
        let first_group = u32::from_le_bytes(b[4096 + 32..4096 + 36].try_into().unwrap());
        f.extension().is_some_and(|e| e == "ext") && f.with_extension("dir").exists() && first_group > 3000
    };
    let extent = files.into_iter().find(large).unwrap();
    let f = std::fs::OpenOptions::new().write(true).open(&extent).unwrap();
    f.write_all_at(&[0xff; 8], 4096 + 64 + 32 + 96 + 1000).unwrap();
    let found = check(dir.path()).findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].damage.segment == Some(leaf(1)) && found[0].damage.address.is_some(), "{found:?}");
    let text = found[0].damage.to_string();
    assert!(text.contains("segment l1.0 address") && text.contains(".ext position"), "{text}");
}

#[test]
fn a_directory_in_use_is_not_checked_and_a_killed_one_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    assert!(matches!(verify(dir.path(), |_| {}), Err(OpenError::InUse(_))));
    runtime().block_on(async {
        write(&*store.drive(leaf(1)), 0, vec![data(leaf(1), 0, 0, 0, 9)]).await.unwrap();
    });
    drop(store);
    let report = check(dir.path());
    assert_eq!((report.findings, report.entries), (vec![], 1));
}
