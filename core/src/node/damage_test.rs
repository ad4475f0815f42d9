//! What a node makes of damaged and missing files: intact records stay readable, the rest is an error and never the end.

use super::tests::{append, base, batch, options, read_all, soon, topic};
use crate::api::{Appended, ReadFrom};
use crate::error::{AppendError, ReadFailure, TopicPartition};
use crate::node::Node;
use crate::node::verify::verify;
use crate::types::TopicId;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Of a batch in its entry: the entry's header is so many bytes before the records.
const HEADER_BEFORE_RECORDS: u64 = 61 + 96;

pub(super) fn extents(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.join("extents")).expect("listed").map(|f| f.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "ext")).collect();
    files.sort();
    files
}

pub(super) fn metric(node: &Node, name: &str) -> f64 {
    node.api().metrics().iter().find(|m| m.name == name).expect("shown").value
}

/// Flips a byte so many bytes before the place where `text` is stored. Twice is never.
fn flip(dir: &Path, text: &str, before: u64) {
    let mut flipped = 0;
    for path in extents(dir) {
        let bytes = std::fs::read(&path).expect("read");
        let found = bytes.windows(text.len()).position(|window| window == text.as_bytes());
        let Some(at) = found else { continue };
        let at = at as u64 - before;
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[bytes[at as usize] ^ 8], at).expect("written");
        flipped += 1;
    }
    assert!(flipped > 0, "'{text}' is stored");
}

pub(super) async fn read_at(node: &Node, topic: TopicId, offset: i64) -> Result<i64, ReadFailure> {
    let from = ReadFrom { topic, partition: 0, offset, max_bytes: 1, isolation: Default::default() };
    node.api().read(&[from], 1).await.remove(0).map(|read| read.next_offset)
}

/// Where the read ends that a client's default sizes ask for.
async fn read_much(node: &Node, topic: TopicId, offset: i64) -> Result<i64, ReadFailure> {
    let from = ReadFrom { topic, partition: 0, offset, max_bytes: 1 << 20, isolation: Default::default() };
    node.api().read(&[from], 1 << 20).await.remove(0).map(|read| read.next_offset)
}

/// A node with one topic and `count` records in its partition 0, each a batch that says its offset; killed.
pub(super) async fn killed_with(dir: &Path, count: i64) -> TopicId {
    let node = Node::start(options(&[dir], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    for i in 0..count {
        append(&node, id, vec![batch(0, 1, None, 100 + i, &format!("record {i};"))]).await;
    }
    node.crash().await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_with_damaged_contents_is_counted_and_its_range_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let id = killed_with(dir.path(), 10).await;
    flip(dir.path(), "record 4;", 0);
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    assert_eq!(node.api().blocked(), Vec::<String>::new());
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "more")]).await[0]), 10);
    assert_eq!(read_at(&node, id, 3).await, Ok(4));
    assert_eq!(read_much(&node, id, 0).await, Ok(4), "what comes before it, however much is asked for");
    assert!(matches!(read_at(&node, id, 4).await, Err(ReadFailure::Storage(_))));
    assert!(matches!(read_much(&node, id, 4).await, Err(ReadFailure::Storage(_))));
    assert_eq!(read_all(&node, id, 0, 5).await.len(), 6);
    let damage = node.api().damage();
    assert_eq!(damage.len(), 1, "{damage:?}");
    let named = ["topic 't' range r0", "disk ", "address 5", &*dir.path().display().to_string()];
    assert!(named.iter().all(|part| damage[0].contains(part)), "{damage:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_entry_above_the_checkpoint_blocks_appends_and_not_what_is_intact() {
    let dir = tempfile::tempdir().expect("a directory");
    let id = killed_with(dir.path(), 10).await;
    flip(dir.path(), "record 4;", HEADER_BEFORE_RECORDS - 20);
    let at = TopicPartition { topic: id, partition: 0 };
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let blocked = node.api().blocked();
    let named = ["topic 't' range r0", "address 5", &*dir.path().display().to_string()];
    assert!(blocked.len() == 1 && named.iter().all(|part| blocked[0].contains(part)), "{blocked:?}");
    for offset in 0..4 {
        assert_eq!(read_at(&node, id, offset).await, Ok(offset + 1));
        assert_eq!(
            read_much(&node, id, offset).await,
            Ok(4),
            "what comes before it, however much is asked for"
        );
    }
    // Neither the end, nor out of range, nor "there is none".
    for offset in [4, 5, 9, 10, 11] {
        assert!(matches!(read_at(&node, id, offset).await, Err(ReadFailure::Storage(_))), "{offset}");
    }
    assert!(matches!(node.api().offsets(at), Err(ReadFailure::Storage(_))));
    assert_eq!(
        node.api().known_offsets(at).map(|(o, whole)| (o.log_start, o.high_watermark, whole)),
        Ok((0, 4, false))
    );
    assert!(matches!(node.api().find_timestamp(at, 108).await, Err(ReadFailure::Storage(_))));
    assert!(matches!(node.api().find_timestamp(at, 102).await, Ok(Some(_))));
    assert!(matches!(node.api().find_max_timestamp(at).await, Err(ReadFailure::Storage(_))));
    assert!(matches!(node.api().delete_records(at, None).await, Err(ReadFailure::Storage(_))));
    let outcome = append(&node, id, vec![batch(0, 1, Some((4, 0, 0)), 0, "no")]).await;
    assert!(matches!(outcome[0], Appended::Err(AppendError::Storage(_))), "{outcome:?}");
    node.crash().await;
    flip(dir.path(), "record 4;", HEADER_BEFORE_RECORDS - 20);
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    assert_eq!(read_all(&node, id, 0, 0).await.len(), 10);
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "yes")]).await[0]), 10);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_entry_below_the_checkpoint_costs_its_records_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let id = killed_with(dir.path(), 10).await;
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    append(&node, id, vec![batch(0, 1, None, 200, "last")]).await;
    node.stop().await;
    // The extents are closed: nothing is read whole at the start, so only a read can find it.
    flip(dir.path(), "record 4;", HEADER_BEFORE_RECORDS - 20);
    let verified = verify(&[dir.path().to_path_buf()], |_, _, _| {}).expect("checked");
    let place = verified.findings[0].position.expect("an entry's");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    assert_eq!(node.api().blocked(), Vec::<String>::new());
    assert_eq!(read_at(&node, id, 3).await, Ok(4));
    assert_eq!(read_much(&node, id, 0).await, Ok(4), "what comes before it, however much is asked for");
    assert!(matches!(read_at(&node, id, 4).await, Err(ReadFailure::Storage(_))));
    assert_eq!(read_all(&node, id, 0, 5).await.len(), 6);
    let damage = node.api().damage();
    assert!(damage.len() == 1 && damage[0].contains("topic 't' range r0 disk "), "{damage:?}");
    assert!(
        damage[0].contains(&format!(" position {place},")),
        "the offline check names {place}: {damage:?}"
    );
    assert_eq!(metric(&node, "damaged_places"), 1.0);
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "more")]).await[0]), 11);
    node.api().delete_topic(id).await.expect("deleted");
    let gone = soon();
    while !node.api().damage().is_empty() && std::time::Instant::now() < gone {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(node.api().damage(), Vec::<String>::new(), "gone with its segment");
    node.stop().await;
}
