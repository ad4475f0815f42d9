//! Restarts of a node whose disk records have filled: they take nothing of it, and it is freed afterwards as before.

use super::full::{PARTITIONS, delete_all_records, fill, filled, goes_on, held, small, whole_after};
use super::*;
use crate::codec::entry::EntryKind;
use crate::drive::Purpose;
use crate::store::tests::full::SmallDisk;
use crate::types::Offset;

const RESTARTS: usize = 44;

async fn started(dir: &Path) -> Node {
    let until = soon();
    loop {
        match Node::start(small(dir)).await {
            Ok(node) => return node,
            // A start that was given up has not let go of the directory yet.
            Err(error) if error.to_string().contains("in use") && Instant::now() < until => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts and ends a node in another way each time.
async fn restart(dir: &Path, n: usize, meanwhile: impl AsyncFn(&Node)) {
    if n % 4 == 3 {
        // Killed on the way, as far as one process can.
        let begun =
            tokio::time::timeout(Duration::from_millis(n as u64 % 7 * 3), Node::start(small(dir))).await;
        if let Ok(Ok(node)) = begun {
            node.crash().await;
        }
    }
    let node = started(dir).await;
    meanwhile(&node).await;
    if n.is_multiple_of(2) { node.crash().await } else { node.stop().await }
}

/// Restarts a full node many times; what it takes must have an end.
async fn storm(dir: &Path, meanwhile: impl AsyncFn(&Node)) {
    let disk = SmallDisk::new(dir, 0);
    let mut used = Vec::new();
    for n in 0..RESTARTS {
        restart(dir, n, &meanwhile).await;
        used.push(disk.used());
    }
    let (early, late) = used.split_at(RESTARTS / 2);
    let most = early.iter().max().expect("some") + (128 << 10);
    assert!(late.iter().all(|used| *used <= most), "starts take ever more: {used:?}");
}

fn segments(node: &Node) -> usize {
    let state = node.inner.control.read();
    state.topics.values().flat_map(|topic| topic.ranges.values()).map(|range| range.chain.len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_that_was_restarted_many_times_is_freed_by_deleted_records() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    let chains = segments(&node);
    node.crash().await;
    storm(dir.path(), async |_: &Node| {}).await;
    let node = started(dir.path()).await;
    // One per range and start, were it not full; a few as long as there is something above the reserve.
    assert!(segments(&node) < chains + RESTARTS, "{} segments, {chains} before", segments(&node));
    delete_all_records(&node, a).await;
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_with_many_topics_that_was_restarted_many_times_is_freed_by_a_deleted_topic() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(small(dir.path())).await.expect("starts");
    let mut topics = Vec::new();
    for n in 0..30 {
        topics.push(topic(&node, &format!("t{n}"), PARTITIONS, &[("retention.ms", "-1")]).await);
    }
    fill(&node, [topics[0], topics[1]]).await;
    let before = held(&node, topics[1]).await;
    node.stop().await;
    storm(dir.path(), async |_: &Node| {}).await;
    let node = started(dir.path()).await;
    node.api().delete_topic(topics[0]).await.expect("deleted");
    whole_after(node, topics[1], before).await;
}

/// What a directory takes beside extents and chunks, in bytes of the file system: control state, leaf table, inventory.
fn beside(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).expect("listed").filter_map(|f| f.ok()?.metadata().ok());
    files.filter(|m| m.is_file()).map(|m| std::os::unix::fs::MetadataExt::blocks(&m) * 512).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_a_full_node_with_many_topics_and_a_small_reserve_take_nothing_for_the_control_state_either()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let options = || {
        let mut options = small(dir.path());
        options.config.set("disk.reserve.bytes", "1MiB").expect("a known key");
        options
    };
    let node = Node::start(options()).await.expect("starts");
    let mut topics = Vec::new();
    for n in 0..200 {
        topics.push(topic(&node, &format!("t{n}"), PARTITIONS, &[("retention.ms", "-1")]).await);
    }
    fill(&node, [topics[0], topics[1]]).await;
    let before = held(&node, topics[1]).await;
    node.stop().await;
    let (disk, mut extents, mut others) = (SmallDisk::new(dir.path(), 0), Vec::new(), Vec::new());
    for n in 0..30 {
        let node = Node::start(options()).await.expect("starts");
        if n % 2 == 0 {
            node.crash().await
        } else {
            node.stop().await
        }
        extents.push(disk.used());
        others.push(beside(dir.path()));
    }
    for (used, more) in [(&extents, 128 << 10), (&others, 16 << 10)] {
        let (early, late) = used.split_at(10);
        let most = early.iter().max().expect("some") + more;
        assert!(late.iter().all(|used| *used <= most), "starts take ever more: {used:?}");
    }
    let node = Node::start(options()).await.expect("starts");
    node.api().delete_topic(topics[0]).await.expect("deleted");
    whole_after(node, topics[1], before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_coordination_and_clients_that_retry_ask_of_a_full_node_between_restarts_leaves_it_what_frees_it()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    node.stop().await;
    let at = TopicPartition { topic: b, partition: 0 };
    storm(dir.path(), async |node: &Node| {
        for _ in 0..10 {
            let entry = crate::api::OwnEntry { kind: EntryKind::Control, payload: vec![7; 3000].into() };
            match node.api().append_own(at, vec![entry], Purpose::Coordination, soon()).await {
                Ok(_) => {}
                Err(AppendError::Storage(why)) => assert!(why.contains("disk full"), "{why}"),
                Err(error) => panic!("{error}"),
            }
        }
        append(node, a, vec![batch(1, 1, None, 1, &"x".repeat(6000))]).await;
    })
    .await;
    let node = started(dir.path()).await;
    // By time: whatever was written before the restarts is in segments that have ended, be it one.
    let configs = vec![("retention.ms".to_owned(), Some("1".to_owned()))];
    node.api().alter_topic_configs(a, configs, false).await.expect("altered");
    whole_after(node, b, before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_were_deleted_just_before_a_kill_free_the_disk_after_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, a, b, before) = filled(dir.path()).await;
    node.crash().await;
    // So that the log starts stand behind a first checkpoint that waited.
    let node = started(dir.path()).await;
    delete_all_records(&node, a).await;
    node.crash().await;
    started(dir.path()).await.crash().await;
    let node = started(dir.path()).await;
    whole_after(node, b, before).await;
}

/// Takes small records until none was taken for a while: what the store still tidies up has an end too.
async fn to_the_last_block(node: &Node, id: TopicId) {
    let (mut refused, mut full_since) = (0, Instant::now());
    while refused < 20 || full_since.elapsed() < Duration::from_millis(150) {
        match &append(node, id, vec![batch(0, 1, None, 1, "x")]).await[0] {
            Appended::Ok { .. } => (refused, full_since) = (0, Instant::now()),
            Appended::Err(_) => refused += 1,
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_with_nothing_above_the_reserve_writes_no_checkpoint_until_there_is_room_and_a_record_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut node, a, b, _) = filled(dir.path()).await;
    let mut starts = 0;
    // A start, or what is tidied up after it, may give a few blocks back, and a first checkpoint takes them.
    loop {
        to_the_last_block(&node, b).await;
        node.crash().await;
        node = started(dir.path()).await;
        // Several looks at each range.
        tokio::time::sleep(Duration::from_millis(600)).await;
        if [a, b].map(|id| checkpoints_of(&node, id)) == [0; 2] {
            break;
        }
        starts += 1;
        assert!(starts < 20, "a first checkpoint waits for room, or for something to write");
    }
    let epochs = [a, b].map(|id| epoch(&node, id));
    node.crash().await;
    let node = started(dir.path()).await;
    assert_eq!([a, b].map(|id| epoch(&node, id)), epochs.map(|e| e + 1));
    node.api().delete_topic(a).await.expect("deleted");
    goes_on(&node, b).await;
    assert!(checkpoints_of(&node, b) > 0, "with room or the first record");
    let before: Vec<Vec<Offset>> = held(&node, b).await;
    node.crash().await;
    let node = started(dir.path()).await;
    assert_eq!(held(&node, b).await, before);
    node.stop().await;
}

fn epoch(node: &Node, topic: TopicId) -> i32 {
    node.api().offsets(TopicPartition { topic, partition: 0 }).expect("led here").leader_epoch
}

fn checkpoints_of(node: &Node, topic: TopicId) -> u64 {
    let ranges = node.inner.topic(topic).expect("there").ranges();
    ranges.iter().map(|range| range.counts().checkpoints.load(Ordering::Relaxed)).sum()
}
