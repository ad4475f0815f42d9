//! The offline check finds a flipped byte anywhere in each kind of file.

use super::*;
use crate::store::OpenError;
use crate::store::verify::{Finding, FindingKind, Report, verify};
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

/// What is taken away, by its names in the data directory, and what of it is named, as which kind, with which words.
struct Gone {
    what: &'static str,
    names: Vec<PathBuf>,
    said: Vec<(PathBuf, FindingKind, &'static str)>,
}

/// Every kind of file that a store writes, once.
fn kinds_of_files(dir: &Path) -> Vec<Gone> {
    use FindingKind::{Missing, Superblock};
    let of = |name: &str| dir.join(name);
    let newest = missing::extents(dir).pop().unwrap().1;
    let closed =
        missing::counting(dir).into_iter().map(|(_, path)| path).find(|p| p.with_extension("dir").exists());
    let closed = closed.unwrap();
    let directory = closed.with_extension("dir");
    let chunk = missing::files(dir, "chunks", "chk")[0].clone();
    let of_chunk = chunk.with_extension("dir");
    let gone = |what, names: &[&PathBuf], said: &[(&PathBuf, FindingKind, &'static str)]| Gone {
        what,
        names: names.iter().map(|name| (*name).clone()).collect(),
        said: said.iter().map(|(name, kind, text)| ((*name).clone(), *kind, *text)).collect(),
    };
    let (leaves, copy) = (of("leaves"), of("leaves-copy"));
    let (lost, other) = ("missing: fences and trims", "missing: the other copy is used");
    let inventory = of("inventory");
    let unknown = "missing: whether an extent or a chunk";
    vec![
        gone("superblock", &[&of("superblock")], &[(&of("superblock"), Superblock, "missing")]),
        gone("leaf table", &[&leaves], &[(&leaves, Missing, other)]),
        gone("its copy", &[&copy], &[(&copy, Missing, other)]),
        gone("both copies", &[&leaves, &copy], &[(&leaves, Missing, lost), (&copy, Missing, lost)]),
        gone("inventory", &[&inventory], &[(&inventory, Missing, unknown)]),
        gone("newest extent", &[&newest], &[(&newest, Missing, "missing: extent")]),
        gone("closed extent", &[&closed], &[(&closed, Missing, "missing: extent")]),
        gone(
            "closed extent and inventory",
            &[&closed, &inventory],
            &[(&closed, Missing, "missing although its directory"), (&inventory, Missing, unknown)],
        ),
        gone("directory of an extent, which is read instead", &[&directory], &[]),
        gone("extent and directory", &[&closed, &directory], &[(&closed, Missing, "missing: extent")]),
        gone("chunk", &[&chunk], &[(&chunk, Missing, "missing although its directory")]),
        gone("directory of a chunk", &[&of_chunk], &[(&of_chunk, Missing, "missing: chunk")]),
        gone("chunk and directory", &[&chunk, &of_chunk], &[(&chunk, Missing, "missing: chunk")]),
        gone("lock and ballast, which hold nothing", &[&of("lock"), &of("ballast")], &[]),
    ]
}

#[test]
fn whatever_kind_of_file_is_missing_is_named_as_missing() {
    let suits =
        |dir: &Path| missing::counting(dir).iter().any(|(_, path)| path.with_extension("dir").exists());
    let made = || {
        let dir = tempfile::tempdir().unwrap();
        missing::filled(dir.path());
        dir
    };
    // At times all that is closed is in chunks.
    let dir = (0..100).map(|_| made()).find(|dir| suits(dir.path())).unwrap();
    let away = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
    for Gone { what, names, said } in kinds_of_files(dir.path()) {
        let kept = |path: &PathBuf| away.path().join(path.file_name().unwrap());
        let there: Vec<PathBuf> = names.into_iter().filter(|path| path.exists()).collect();
        there.iter().for_each(|path| std::fs::rename(path, kept(path)).unwrap());
        let found = check(dir.path()).findings;
        for (path, kind, text) in &said {
            let of_it: Vec<_> = found.iter().filter(|x| x.damage.file == *path).collect();
            assert_eq!(of_it.len(), 1, "{what}: {found:?}");
            assert_eq!(of_it[0].kind, *kind, "{what}: {found:?}");
            assert!(of_it[0].damage.what.starts_with(text), "{what}: {found:?}");
        }
        // The inventory may still name extents in whose place a chunk stood that is gone.
        let known = |x: &Finding| said.iter().any(|(path, ..)| *path == x.damage.file);
        assert!(
            found.iter().all(|x| known(x) || x.damage.what.starts_with("missing: extent")),
            "{what}: {found:?}"
        );
        assert_eq!(found.is_empty(), said.is_empty(), "{what}: {found:?}");
        there.iter().for_each(|path| std::fs::rename(kept(path), path).unwrap());
        assert_eq!(check(dir.path()).findings, vec![], "{what} is back");
    }
    let foreign = dir.path().join("extents").join("x.dir");
    std::fs::write(&foreign, "").unwrap();
    let found = check(dir.path()).findings;
    assert_eq!((found.len(), found[0].kind, &found[0].damage.file), (1, FindingKind::Unknown, &foreign));
}

#[test]
fn a_leaf_table_that_was_not_written_yet_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    drop(store);
    assert_eq!(check(dir.path()).findings, vec![]);
    // Recycled: then it was.
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    assert!(missing::files(dir.path(), "chunks", "dir").is_empty());
    for name in ["leaves", "leaves-copy"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let found = check(dir.path()).findings;
    assert_eq!(found.len(), 2, "{found:?}");
}
