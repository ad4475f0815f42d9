//! A flipped byte in each kind of place, in a lineage of many small segments, of a split and a merge: what is outside of the
//! place is read, the place is an error, and is named once.

use super::damage_test::{extents, metric};
use super::tests::{append, batch, options, read_all, soon, topic};
use crate::api::{Piece, ReadFrom};
use crate::codec::entry::{CHECKPOINT_FIRST, ENTRY_HEADER_LEN, EntryHeader, EntryKind, check};
use crate::error::ReadFailure;
use crate::node::Node;
use crate::node::verify::verify;
use crate::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PARTITIONS: i32 = 4;
/// Batches of a partition that are appended before the next thing happens.
const ROUND: i64 = 30;
const PAGE: usize = 4096;

fn small(journal_bytes: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![
        ("extent.bytes", "64KiB"),
        ("chunk.bytes", "64KiB"),
        ("memory.tail.bytes", "64KiB"),
        ("checkpoint.bytes", "64KiB"),
        ("journal.bytes", journal_bytes),
    ]
}

fn text(partition: i32, offset: i64) -> String {
    format!("p{partition} {offset};")
}

/// A topic of which each partition holds so many records, one a batch, over a lineage with a split, a merge and restarts.
struct Written {
    dir: tempfile::TempDir,
    id: TopicId,
    count: i64,
}

impl Written {
    async fn extents() -> Written {
        Written::with("64MiB").await
    }

    /// Most of it in chunks.
    async fn chunks() -> Written {
        Written::with("128KiB").await
    }

    async fn with(journal_bytes: &'static str) -> Written {
        let dir = tempfile::tempdir().expect("a directory");
        let set = small(journal_bytes);
        let start = async || Node::start(options(&[dir.path()], &set)).await.expect("starts");
        let mut node = start().await;
        let id = topic(&node, "t", PARTITIONS, &[]).await;
        let mut count = 0;
        let mut round = async |node: &Node| {
            for offset in count..count + ROUND {
                let one =
                    |p| batch(p, 1, None, 100 + offset, &format!("{}{}", text(p, offset), "x".repeat(1500)));
                append(node, id, (0..PARTITIONS).map(one).collect()).await;
            }
            count += ROUND;
        };
        round(&node).await;
        node.api().split(id, 0, Some(2)).await.expect("split");
        round(&node).await;
        node.stop().await;
        node = start().await;
        round(&node).await;
        node.api().merge(id, 1, 2).await.expect("merged");
        round(&node).await;
        node.crash().await;
        node = start().await;
        let late = soon();
        while journal_bytes == "128KiB" && metric(&node, "chunks") < 2.0 && std::time::Instant::now() < late {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        node.stop().await;
        Written { dir, id, count }
    }

    /// A copy of it on which `damage` was done.
    fn copy(&self, damage: impl FnOnce(&Path)) -> tempfile::TempDir {
        let to = tempfile::tempdir().expect("a directory");
        let mut ahead = vec![PathBuf::new()];
        while let Some(under) = ahead.pop() {
            for item in std::fs::read_dir(self.dir.path().join(&under)).expect("listed") {
                let item = item.expect("an item");
                let name = under.join(item.file_name());
                if item.path().is_dir() {
                    std::fs::create_dir(to.path().join(&name)).expect("made");
                    ahead.push(name);
                } else {
                    std::fs::copy(item.path(), to.path().join(&name)).expect("copied");
                }
            }
        }
        damage(to.path());
        to
    }

    /// Reads every record of a copy on which `damage` was done; fails when what is named is not one place, or none where no
    /// read meets it.
    async fn read(&self, what: &str, damage: impl FnOnce(&Path)) -> Found {
        let dir = self.copy(damage);
        // Nothing is rewritten meanwhile.
        let node = Node::start(options(&[dir.path()], &small("64MiB"))).await.expect("starts");
        let mut failed = BTreeSet::new();
        for partition in 0..PARTITIONS {
            for offset in 0..self.count {
                match self.read_at(&node, partition, offset).await {
                    Ok(found) => assert_eq!(found, text(partition, offset), "{what}"),
                    Err(ReadFailure::Storage(_)) => drop(failed.insert((partition, offset))),
                    Err(other) => panic!("{what}: partition {partition} offset {offset}: {other}"),
                }
            }
            if failed.iter().all(|(p, _)| *p != partition) && node.api().blocked().is_empty() {
                let all = read_all(&node, self.id, partition, 0).await;
                assert_eq!(all.len() as i64, self.count, "{what}");
            }
        }
        for (partition, offset) in &failed {
            assert!(self.read_at(&node, *partition, *offset).await.is_err(), "{what}");
        }
        let named = node.api().damage();
        let met = if what.starts_with("later checkpoint") { 0..=1 } else { 1..=1 };
        assert!(met.contains(&named.len()), "{what}: {named:?}");
        assert_eq!(metric(&node, "damaged_places"), named.len() as f64, "{what}");
        let stored: u64 = node.api().range_stats(self.id).iter().map(|range| range.bytes).sum();
        let found = Found { failed, blocked: node.api().blocked(), stored };
        node.stop().await;
        found
    }

    async fn read_at(&self, node: &Node, partition: i32, offset: i64) -> Result<String, ReadFailure> {
        let from =
            ReadFrom { topic: self.id, partition, offset, max_bytes: 1, isolation: Default::default() };
        let read = node.api().read(&[from], 1).await.remove(0)?;
        let mut bytes = Vec::new();
        for piece in read.pieces {
            match piece {
                Piece::Memory(b) => bytes.extend_from_slice(&b),
                Piece::File(f) => {
                    let mut buffer = vec![0; f.len as usize];
                    f.file.read_exact_at(&mut buffer, f.position).expect("readable");
                    bytes.extend_from_slice(&buffer);
                }
            }
        }
        let records = String::from_utf8_lossy(bytes.get(61..).unwrap_or_default()).into_owned();
        Ok(records.split_inclusive(';').next().unwrap_or_default().to_owned())
    }
}

#[derive(Debug)]
struct Found {
    failed: BTreeSet<(i32, i64)>,
    blocked: Vec<String>,
    stored: u64,
}

/// Files and positions where an entry lies: what was written last before a crash is there twice.
type Places = Vec<(PathBuf, usize)>;

/// Every good entry in the extents, by segment and address.
fn entries(dir: &Path) -> BTreeMap<(u64, u64), (EntryHeader, Places)> {
    let mut found = BTreeMap::new();
    for path in extents(dir) {
        let bytes = std::fs::read(&path).expect("read");
        for at in 0..bytes.len().saturating_sub(ENTRY_HEADER_LEN) {
            if bytes[at..at + 3] != [0x57, 0x52, 1] {
                continue;
            }
            let Ok(header) = EntryHeader::decode(&bytes[at..]) else { continue };
            let covered = at + ENTRY_HEADER_LEN..at + ENTRY_HEADER_LEN + header.covered_len();
            let encoded = bytes[at..].first_chunk().expect("long enough");
            if bytes.get(covered).is_some_and(|covered| check(encoded, covered).is_ok()) {
                let key = (header.loglet.0, header.address.0);
                let (_, places) = found.entry(key).or_insert((header, Vec::new()));
                places.push((path.strip_prefix(dir).expect("below").to_path_buf(), at));
            }
        }
    }
    found
}

fn flip(path: &Path, at: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at as u64).expect("written");
}

fn files(dir: &Path, under: &str, extension: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.join(under)).expect("listed").map(|f| f.expect("a file").path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .map(|path| path.strip_prefix(dir).expect("below").to_path_buf())
        .collect();
    files.sort();
    files
}

/// Whether the offline check names segments at a page of a directory.
fn names_a_segment(dir: &Path) -> bool {
    let found = verify(&[dir.to_path_buf()], |_, _, _| {}).expect("checked").findings;
    let mut pages = found.iter().filter(|f| f.kind == "directory");
    pages.any(|f| f.segment.is_some() && f.what.contains("page"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_entry_costs_its_own_records_and_no_others_checkpoints_none() {
    let written = Written::extents().await;
    let all = entries(written.dir.path());
    let newest = all.keys().map(|(loglet, _)| *loglet).max().expect("entries");
    let mut tried = BTreeMap::new();
    let mut stored = BTreeSet::new();
    for ((loglet, address), (header, places)) in &all {
        let checkpoint = header.kind == EntryKind::Checkpoint;
        let first_of_kind = |kind| {
            let of = all.iter().find(|((l, a), (h, _))| {
                l == loglet && h.kind == kind && (*a > 0 || kind == EntryKind::Data)
            });
            of.is_some_and(|((_, a), _)| a == address)
        };
        let kind = match header.kind {
            EntryKind::Checkpoint if *address == 0 && header.flags & CHECKPOINT_FIRST != 0 => {
                "first checkpoint"
            }
            EntryKind::Checkpoint if first_of_kind(EntryKind::Checkpoint) => "later checkpoint",
            EntryKind::Data if first_of_kind(EntryKind::Data) => "first record",
            EntryKind::Data if *address == 50 => "record",
            _ => continue,
        };
        let what = format!("{kind}, segment l{loglet} address {address}");
        let found = written
            .read(&what, |dir| places.iter().for_each(|(path, at)| flip(&dir.join(path), at + 60)))
            .await;
        let own = BTreeSet::from([(header.partition, header.base_offset)]);
        assert_eq!(found.failed, if checkpoint { BTreeSet::new() } else { own }, "{what}");
        // The newest checkpoint of all is what numbering goes on from.
        assert!(found.blocked.is_empty() || *loglet == newest, "{what}: {:?}", found.blocked);
        if found.blocked.is_empty() && checkpoint {
            stored.insert(found.stored);
        }
        *tried.entry(kind).or_insert(0) += 1;
    }
    assert!(tried.len() == 4 && tried["first checkpoint"] >= 4, "{tried:?}");
    assert!(stored.len() == 1 && stored.first() > Some(&0), "figures are whole all the same: {stored:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extents_directory_is_written_anew_whichever_page_is_damaged() {
    let written = Written::extents().await;
    let directories = files(written.dir.path(), "extents", "dir");
    assert!(directories.len() > 3, "{directories:?}");
    for path in [&directories[0], &directories[directories.len() / 2]] {
        let pages = std::fs::metadata(written.dir.path().join(path)).expect("there").len() as usize / PAGE;
        for page in 0..pages {
            let what = format!("{} page {page}", path.display());
            let damage = |dir: &Path| flip(&dir.join(path), page * PAGE + 9);
            let found = written.read(&what, damage).await;
            assert_eq!((found.failed.len(), found.blocked.len()), (0, 0), "{what}: {found:?}");
            assert!(page < 2 || names_a_segment(written.copy(damage).path()), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_chunks_directory_what_its_entry_headers_tell_is_written_anew() {
    let written = Written::chunks().await;
    let chunks = files(written.dir.path(), "chunks", "chk");
    assert!(!chunks.is_empty());
    let chunk = &chunks[0];
    let found = written.read("chunk header", |dir| flip(&dir.join(chunk), 20)).await;
    assert_eq!((found.failed.len(), found.blocked.len()), (0, 0), "{found:?}");
    let directory = chunk.with_extension("dir");
    let bytes = std::fs::read(written.dir.path().join(&directory)).expect("read");
    let entries = u32::from_le_bytes(*bytes[64..].first_chunk().expect("a header")) as usize;
    let pages = bytes.len() / PAGE;
    let header_pages = entries.div_ceil(PAGE / ENTRY_HEADER_LEN);
    let mut lost = BTreeSet::new();
    for page in 0..pages {
        let what = format!("{} page {page}", directory.display());
        let damage = |dir: &Path| flip(&dir.join(&directory), page * PAGE + 9);
        let found = written.read(&what, damage).await;
        let most = match page {
            // Nobody can say which entries were in it.
            0 | 1 => entries,
            _ if page < pages - header_pages => 0,
            _ => PAGE / ENTRY_HEADER_LEN,
        };
        assert!(found.failed.len() <= most, "{what}: {found:?}");
        if page >= pages - header_pages {
            assert!(!found.failed.is_empty() && found.failed.is_disjoint(&lost), "{what}: {found:?}");
            lost.extend(found.failed);
        }
        assert!(page < 2 || names_a_segment(written.copy(damage).path()), "{what}");
    }
    assert!(lost.len() <= entries);
}
