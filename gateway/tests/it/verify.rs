//! `rangeway verify` as its users run it: a changed byte in each kind of file of a data directory is found, and the place is named.

use crate::process::{Node, rangeway, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sizes at which a second of load closes extents and writes chunks.
const SMALL: [&str; 10] = [
    "--set",
    "extent.bytes=1MiB",
    "--set",
    "segment.roll.bytes=4MiB",
    "--set",
    "memory.tail.bytes=1MiB",
    "--set",
    "journal.bytes=4MiB",
    "--set",
    "ranges.initial=2",
];

/// A kind of file: an example of it, a byte of it that counts, and whether records lie there.
struct Kind {
    file: PathBuf,
    at: usize,
    records: bool,
}

/// Of a folder the first file with that ending of which the same with another ending exists.
fn first(folder: &Path, ending: &str, beside: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).ok()?.map(|f| f.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .find(|f| f.extension().is_some_and(|e| e == ending) && f.with_extension(beside).exists())
}

fn kinds(dir: &Path) -> Option<Vec<Kind>> {
    let (extents, chunks) = (dir.join("extents"), dir.join("chunks"));
    let (extent, chunk) = (first(&extents, "ext", "dir")?, first(&chunks, "chk", "dir")?);
    let middle = usize::try_from(fs::metadata(&chunk).ok()?.len() / 2).ok()?;
    let kind = |file: PathBuf, at, records| Kind { file, at, records };
    let mut kinds = vec![
        kind(extent.with_extension("dir"), 20, false),
        kind(chunk.with_extension("dir"), 20, false),
        kind(extent.clone(), 16, false),
        kind(chunk.clone(), 16, false),
        kind(extent, 300_000, true),
        kind(chunk, middle, true),
    ];
    kinds.extend(
        ["superblock", "leaves", "leaves-copy", "inventory", "control.redb"]
            .map(|n| kind(dir.join(n), 64, false)),
    );
    kinds.iter().all(|kind| kind.file.exists()).then_some(kinds)
}

#[test]
fn a_changed_byte_in_each_kind_of_file_is_found_and_its_place_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(dir.path(), &SMALL);
    let until = Instant::now() + Duration::from_secs(60);
    while kinds(dir.path()).is_none() {
        assert!(Instant::now() < until, "not every kind of file was made");
        let bench =
            ["bench", "produce", "--seconds", "1", "--keep", "--size", "1000", "--bootstrap", &node.kafka];
        assert_eq!(rangeway(&bench).status.code(), Some(0));
    }
    node.signal(rustix::process::Signal::TERM);
    node.child.wait().unwrap();
    let path = dir.path().to_str().unwrap();
    let clean = rangeway(&["verify", "--data", path]);
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");

    for Kind { file, at, records } in kinds(dir.path()).unwrap() {
        let mut bytes = fs::read(&file).unwrap();
        bytes[at] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
        let found = rangeway(&["verify", "--data", path, "--json"]);
        assert_eq!(found.status.code(), Some(1), "{} byte {at}: {found:?}", file.display());
        let verified: Value = serde_json::from_slice(&found.stdout).unwrap();
        let findings = verified["findings"].as_array().unwrap();
        let named: Vec<&Value> = findings.iter().filter(|f| f["file"].as_str() == file.to_str()).collect();
        assert!(!named.is_empty(), "{} byte {at}: {verified}", file.display());
        if records {
            let placed = |f: &&Value| f["segment"].is_string() && f["address"].is_u64();
            assert!(named.iter().any(placed), "{} byte {at}: {verified}", file.display());
        }
        let said = rangeway(&["verify", "--data", path]);
        assert!(text(&said.stdout).contains(file.file_name().unwrap().to_str().unwrap()), "{said:?}");
        bytes[at] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(rangeway(&["verify", "--data", path]).status.code(), Some(0));
}
