//! A quorum of which one disk is full: nothing stops, nothing is taken of its reserve, and it is freed as one disk is.

use super::*;
use crate::drive::expr::shape;
use crate::store::tests::full::SmallDisk;
use crate::types::Offset;

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 2 * MIB;
/// What a file on its way and small files may hide.
const UNSEEN: u64 = 512 << 10;
const EXTENT: u64 = 256 << 10;
const BATCH: usize = 60_000;

struct Disks {
    _home: tempfile::TempDir,
    dirs: Vec<std::path::PathBuf>,
    small: Vec<Option<Arc<SmallDisk>>>,
}

impl Disks {
    /// Disks of so many bytes; 0: what there is.
    fn new(sizes: [u64; 3]) -> Disks {
        let home = tempfile::tempdir().expect("a directory");
        let dirs: Vec<_> = (0..sizes.len()).map(|i| home.path().join(format!("q{i}"))).collect();
        let small =
            dirs.iter().zip(sizes).map(|(dir, bytes)| (bytes > 0).then(|| SmallDisk::new(dir, bytes)));
        Disks { small: small.collect(), dirs, _home: home }
    }

    async fn start(&self) -> Node {
        let set = [
            ("drive", "quorum(3, write=2)"),
            ("extent.bytes", "256KiB"),
            ("segment.roll.bytes", "1MiB"),
            ("disk.reserve.bytes", "2MiB"),
            ("memory.tail.bytes", "64KiB"),
            ("retention.check.ms", "50"),
        ];
        let dirs: Vec<&Path> = self.dirs.iter().map(std::path::PathBuf::as_path).collect();
        let mut options = options(&dirs, &set);
        for (dir, small) in self.dirs.iter().zip(&self.small) {
            if let Some(small) = small {
                options.faults.0.insert(dir.clone(), small.clone());
            }
        }
        Node::start(options).await.expect("starts")
    }

    /// What is left of a small disk.
    fn left(&self, at: usize) -> u64 {
        use crate::store::Faults;
        self.small[at].as_ref().and_then(|small| small.available()).expect("a small disk")
    }
}

async fn taken(node: &Node, id: TopicId) -> Result<(), String> {
    match &append(node, id, vec![batch(0, 1, None, 1, &"x".repeat(BATCH))]).await[0] {
        Appended::Ok { .. } => Ok(()),
        Appended::Err(AppendError::Storage(why)) if why.contains("disk full") => Err(why.clone()),
        Appended::Err(error) => panic!("{error}"),
    }
}

async fn offsets(node: &Node, id: TopicId) -> Vec<Offset> {
    read_all(node, id, 0, 0).await.into_iter().map(|(offset, _)| offset).collect()
}

fn open_drive(node: &Node, id: TopicId) -> String {
    let state = node.inner.control.read();
    let range = state.topics[&id].live_ranges().next().expect("a range").clone();
    shape(&range.open().expect("an open segment").drive).to_string()
}

fn metric(node: &Node, name: &str) -> f64 {
    node.api().metrics().iter().find(|m| m.name == name).expect("a metric").value
}

async fn roll(node: &Node, id: TopicId) -> Result<(), String> {
    let topic = node.inner.topic(id).expect("there");
    let range = topic.ranges()[0].clone();
    node.inner.roll(&topic, &range).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_goes_on_without_the_disk_that_is_full_and_the_disk_is_freed_without_a_restart() {
    for how in ["records", "topic", "retention"] {
        let disks = Disks::new([0, 6 * MIB, 0]);
        let node = disks.start().await;
        let a = topic(&node, "a", 1, &[("retention.ms", "-1")]).await;
        let b = topic(&node, "b", 1, &[("retention.ms", "-1")]).await;
        let segments_before = metric(&node, "segments");
        for n in 0..100 {
            for id in [a, b] {
                taken(&node, id).await.unwrap_or_else(|why| panic!("{how}: batch {n}: {why}"));
            }
            let left = disks.left(1);
            assert!(
                left + UNSEEN >= RESERVE,
                "{how}: records took of the reserve: {left} are left after {n}"
            );
        }
        // 12 MB to disks of which one takes 4: one that is not here takes no part in new segments.
        assert_eq!(
            (open_drive(&node, a), metric(&node, "disks_dead")),
            ("quorum(2, write=2)".into(), 0.0),
            "{how}"
        );
        let rolls = metric(&node, "segments") - segments_before;
        assert!(rolls <= 14.0, "{how}: {rolls} segments for 12 MB: a storm");
        let thin = node.api().under_replicated().join("\n");
        assert!(thin.contains("'b'") && thin.contains("missing or full"), "{how}: {thin}");

        match how {
            "topic" => node.api().delete_topic(a).await.expect("deleted"),
            "records" => {
                let at = TopicPartition { topic: a, partition: 0 };
                node.api().delete_records(at, None).await.map(|_| ()).expect("deleted");
            }
            _ => {
                let configs = vec![("retention.bytes".to_owned(), Some("8192".to_owned()))];
                node.api().alter_topic_configs(a, configs, false).await.expect("altered");
            }
        }
        let until = soon();
        // With extents that are kept for records to come.
        let left = || disks.left(1) + node.inner.storage.disks()[1].stats().extents_spare * EXTENT;
        while left() < RESERVE + MIB {
            assert!(Instant::now() < until, "{how}: {} are left", left());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A look at the file system is good for a while, so that the first roll may not know of the room.
        while open_drive(&node, b) != "quorum(3, write=2)" {
            assert!(Instant::now() < until, "{how}: not as wide as before with {} left", left());
            tokio::time::sleep(Duration::from_millis(20)).await;
            roll(&node, b).await.expect("room");
        }
        taken(&node, b).await.expect("room");
        assert_eq!(offsets(&node, b).await, (0..101).collect::<Vec<_>>(), "{how}");
        node.crash().await;
        let node = disks.start().await;
        assert_eq!(offsets(&node, b).await, (0..101).collect::<Vec<_>>(), "{how}");
        taken(&node, b).await.expect("room");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_has_filled_in_the_middle_of_a_segment_is_said_to_lack_it() {
    let disks = Disks::new([0, 0, 4 * MIB]);
    let node = disks.start().await;
    let configs = [("segment.bytes", "100000000"), ("retention.ms", "-1")];
    let id = topic(&node, "a", 1, &configs).await;
    for _ in 0..60 {
        taken(&node, id).await.expect("two have room");
    }
    assert_eq!((open_drive(&node, id), metric(&node, "segments")), ("quorum(3, write=2)".into(), 1.0));
    let thin = node.api().under_replicated().join("\n");
    assert!(thin.contains("topic 'a': 1 of 1 segments have fewer copies"), "{thin}");
    assert_eq!(metric(&node, "segments_under_replicated"), 1.0);
    assert_eq!(offsets(&node, id).await, (0..60).collect::<Vec<_>>());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_whose_disks_are_all_full_goes_on_when_some_was_freed() {
    let disks = Disks::new([6 * MIB, 5 * MIB, 7 * MIB]);
    let node = disks.start().await;
    let a = topic(&node, "a", 1, &[("retention.ms", "-1")]).await;
    let b = topic(&node, "b", 1, &[("retention.ms", "-1")]).await;
    let mut count = 0;
    'full: loop {
        for id in [a, b] {
            if taken(&node, id).await.is_err() {
                break 'full;
            }
        }
        count += 1;
        assert!(count < 100, "disks of 7 MiB are full some time");
    }
    for at in 0..2 {
        let left = disks.left(at);
        assert!(left + UNSEEN >= RESERVE && left < RESERVE + MIB, "disk {at}: {left} are left");
    }
    let before = offsets(&node, b).await;
    node.api().delete_topic(a).await.expect("deleted");
    let (until, mut took) = (soon(), 0);
    while took < 20 {
        match taken(&node, b).await {
            Ok(()) => took += 1,
            Err(why) => assert!(Instant::now() < until, "after {took}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(offsets(&node, b).await.starts_with(&before));
    node.stop().await;
}
