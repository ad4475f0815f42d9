//! The local store: durability, grouping, refusals, watching, damaged files.

use super::command::*;
use super::file::ControlFile;
use super::local::LocalStore;
use super::state::State;
use super::{ControlError, Delta, PROPOSAL_COMMANDS_MAX, Store, propose_one};
use crate::types::{NodeId, TopicId};
use redb::backends::FileBackend;
use redb::{Builder, StorageBackend};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

fn create(n: u128) -> Command {
    Command::CreateTopic(CreateTopic {
        id: TopicId(Uuid::from_u128(n)),
        name: format!("topic-{n}"),
        partitions: 4,
        ranges: 2,
        replication_factor: 1,
        drive: None,
        configs: BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]),
        internal: false,
        segments: Vec::new(),
        now: 7,
    })
}

fn start(node: i32) -> Command {
    Command::StartNode { node: NodeId(node), disks: Vec::new(), begun: Default::default(), now: 1 }
}

#[tokio::test]
async fn what_was_answered_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let store = LocalStore::open(&path).unwrap();
    store.propose(vec![start(1), create(1), create(2)]).await.unwrap();
    propose_one(&store, Command::DeleteTopic { topic: TopicId(Uuid::from_u128(1)), now: 2 }).await.unwrap();
    let before = store.read();
    drop(store);
    let again = LocalStore::open(&path).unwrap();
    assert_eq!(again.read(), before);
    assert_eq!(before.counters.version, 4);
    assert!(before.topic_named("topic-1").is_none() && before.topic_named("topic-2").is_some());
}

#[tokio::test]
async fn what_was_answered_is_in_a_copy_of_the_files_taken_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let store = LocalStore::open(&path).unwrap();
    for n in 1..20 {
        propose_one(&store, create(n)).await.unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        let opened = LocalStore::open(&copy).unwrap();
        assert_eq!(opened.read(), store.read(), "as a kill after the answer would leave it");
    }
}

#[tokio::test]
async fn a_proposal_is_applied_whole_or_not_at_all() {
    let store = LocalStore::in_memory();
    let refused = store.propose(vec![create(1), create(2), create(1)]).await.unwrap_err();
    let ControlError::Refused { index: 2, refusal: Refusal::TopicExists { name, .. } } = refused else {
        panic!("{refused}")
    };
    assert_eq!(name, "topic-1");
    assert!(store.read().topics.is_empty());
    assert_eq!(store.read().counters.version, 0);
    let many = vec![start(1); PROPOSAL_COMMANDS_MAX + 1];
    assert!(matches!(store.propose(many).await, Err(ControlError::TooMany { .. })));
}

#[tokio::test]
async fn many_at_once_are_all_answered_and_all_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let store = Arc::new(LocalStore::open(&path).unwrap());
    let asked: Vec<_> = (1..=300)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { propose_one(&*store, create(n)).await })
        })
        .collect();
    for one in asked {
        one.await.unwrap().unwrap();
    }
    drop(store);
    assert_eq!(LocalStore::open(&path).unwrap().read().topics.len(), 300);
}

#[tokio::test]
async fn a_watcher_hears_of_every_row_that_changed() {
    let store = LocalStore::in_memory();
    propose_one(&store, start(1)).await.unwrap();
    let mut from_start = store.watch(0);
    let changes = from_start.next().await.unwrap();
    assert_eq!(changes.deltas, Some(vec![Delta::Node(NodeId(1))]));

    let mut watch = store.watch(store.read().counters.version);
    let waiting = tokio::spawn(async move { (watch.next().await, watch) });
    propose_one(&store, create(1)).await.unwrap();
    let (changes, mut watch) = waiting.await.unwrap();
    let changes = changes.unwrap();
    let topic = TopicId(Uuid::from_u128(1));
    assert!(changes.deltas.unwrap().contains(&Delta::Topic(topic)));
    assert!(changes.state.topics.contains_key(&topic));
    store.close();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_watcher_too_far_behind_is_told_that_anything_may_have_changed() {
    let store = LocalStore::in_memory();
    let mut late = store.watch(0);
    for _ in 0..20 {
        store.propose(vec![start(1); PROPOSAL_COMMANDS_MAX]).await.unwrap();
    }
    assert_eq!(late.next().await.unwrap().deltas, Some(vec![Delta::Node(NodeId(1))]), "one row, one delta");
    for n in 0..40 {
        let topics = (1..=500).map(|i| create(n * 1000 + i)).collect();
        store.propose(topics).await.unwrap();
    }
    assert_eq!(late.next().await.unwrap().deltas, None);
}

#[tokio::test]
async fn a_closed_store_answers_closed() {
    let store = LocalStore::in_memory();
    store.close();
    assert_eq!(store.propose(vec![start(1)]).await, Err(ControlError::Closed));
    store.close();
}

#[test]
fn a_file_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let _store = LocalStore::open(&path).unwrap();
    assert_eq!(LocalStore::open(&path).unwrap_err(), ControlError::InUse(path.display().to_string()));
}

#[test]
fn a_creation_cut_short_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("control.new"), b"half a fi").unwrap();
    LocalStore::open(&dir.path().join("control")).unwrap();
    assert!(!dir.path().join("control.new").exists());
}

#[test]
fn a_missing_directory_is_named() {
    let error = LocalStore::open(Path::new("/nonexistent/dir/control")).unwrap_err();
    assert!(matches!(&error, ControlError::Io { path, .. } if path.contains("/nonexistent/dir")), "{error}");
}

#[test]
fn a_newer_format_and_a_foreign_file_are_refused() {
    use redb::{Database, TableDefinition};
    let dir = tempfile::tempdir().unwrap();
    let newer = dir.path().join("newer");
    drop(LocalStore::open(&newer).unwrap());
    let database = Database::open(&newer).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = TableDefinition::<&str, u64>::new("format");
    transaction.open_table(table).unwrap().insert("rangeway.control", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let path = newer.display().to_string();
    assert_eq!(LocalStore::open(&newer).unwrap_err(), ControlError::Newer { path, found: 2, known: 1 });

    let foreign = dir.path().join("foreign");
    drop(Database::create(&foreign).unwrap());
    let text = dir.path().join("text");
    fs::write(&text, b"not a store at all").unwrap();
    for path in [foreign, text] {
        let error = LocalStore::open(&path).unwrap_err();
        assert!(matches!(error, ControlError::Damaged { .. }), "{error}");
    }
}

/// Opens copies of `good` with one bit flipped: each is reported, or it lies where it changes nothing that was
/// answered; never a silent loss.
fn flip_bits(dir: &Path, good: &[u8], state: &State) {
    let marker = b"topic-40";
    let rows: Vec<usize> = (0..good.len()).filter(|i| good[*i..].starts_with(marker)).collect();
    assert!(!rows.is_empty());
    let spread = (0..good.len()).step_by(good.len() / 60 + 1);
    let head = (0..320).step_by(5);
    let mut reported = 0;
    for at in rows.iter().copied().chain(spread).chain(head) {
        let copy = dir.join("copy");
        let mut bytes = good.to_vec();
        bytes[at] ^= 0x10;
        fs::write(&copy, &bytes).unwrap();
        match LocalStore::open(&copy) {
            Ok(store) => assert_eq!(*store.read(), *state, "byte {at} changed the state without a word"),
            Err(ControlError::Damaged { .. }) => reported += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(reported > 0, "a flip inside of a live row is among them");
}

#[tokio::test]
async fn a_flipped_bit_is_reported_or_harmless_after_a_clean_stop_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let store = LocalStore::open(&path).unwrap();
    for n in 1..=40 {
        propose_one(&store, create(n)).await.unwrap();
    }
    let state = store.read();
    let killed = fs::read(&path).unwrap();
    drop(store);
    let stopped = fs::read(&path).unwrap();
    flip_bits(dir.path(), &stopped, &state);
    flip_bits(dir.path(), &killed, &state);
}

#[tokio::test]
async fn a_truncated_file_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let store = LocalStore::open(&path).unwrap();
    for n in 1..=40 {
        propose_one(&store, create(n)).await.unwrap();
    }
    drop(store);
    let good = fs::read(&path).unwrap();
    for len in [0, 1, 100, 4096, good.len() / 2, good.len() - 4096] {
        let copy = dir.path().join("copy");
        fs::write(&copy, &good[..len]).unwrap();
        let error = LocalStore::open(&copy).unwrap_err();
        assert!(matches!(error, ControlError::Damaged { .. } | ControlError::Io { .. }), "{len}: {error}");
    }
}

/// A file on a disk that is full, or fails, while it is told so, of which nothing is lost.
#[derive(Debug)]
struct Crammed {
    file: FileBackend,
    full: Arc<AtomicBool>,
    error: io::ErrorKind,
}

impl Crammed {
    fn room(&self) -> io::Result<()> {
        match self.full.load(Ordering::Acquire) {
            true => Err(self.error.into()),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Crammed {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }
}

/// A store on a disk that is full while it is told so.
pub(crate) fn crammed(path: &Path, full: Arc<AtomicBool>) -> Result<LocalStore, ControlError> {
    refusing(path, full, io::ErrorKind::StorageFull)
}

/// A store on a disk whose writes fail while it is told so; made if it is not there.
pub(crate) fn failing(path: &Path, fails: Arc<AtomicBool>) -> Result<LocalStore, ControlError> {
    drop(LocalStore::open(path)?);
    refusing(path, fails, io::ErrorKind::Other)
}

fn refusing(path: &Path, full: Arc<AtomicBool>, error: io::ErrorKind) -> Result<LocalStore, ControlError> {
    let open = move |path: &Path| {
        let file = FileBackend::new(OpenOptions::new().read(true).write(true).open(path)?)?;
        Builder::new().create_with_backend(Crammed { file, full: full.clone(), error })
    };
    Ok(LocalStore::in_file(path, ControlFile::open_by(path, Box::new(open))?))
}

#[tokio::test]
async fn a_full_disk_refuses_a_change_and_takes_the_next_one_once_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    drop(LocalStore::open(&path).unwrap());
    let full = Arc::new(AtomicBool::new(false));
    let store = crammed(&path, full.clone()).unwrap();
    propose_one(&store, create(1)).await.unwrap();
    for round in 2..5 {
        full.store(true, Ordering::Release);
        let before = store.read();
        for _ in 0..2 {
            let refused = propose_one(&store, create(round)).await.unwrap_err();
            assert!(matches!(refused, ControlError::Full(_) | ControlError::Unknown(_)), "{refused}");
            assert_eq!(store.read(), before, "what is read goes on");
        }
        full.store(false, Ordering::Release);
        propose_one(&store, create(round)).await.unwrap();
    }
    let before = store.read();
    assert_eq!((before.topics.len(), before.counters.version), (4, 4));
    assert_eq!(store.written().commits, 4);
    drop(store);
    assert_eq!(LocalStore::open(&path).unwrap().read(), before);
}
