//! Disks that die, are not there, or are new: what goes on without them, what is said of them, and what becomes of it when
//! they are back.

use super::*;
use crate::drive::expr::shape;
use crate::error::TopicError;
use crate::range::primary::Phase;
use std::path::PathBuf;

pub(super) const QUORUM: (&str, &str) = ("drive", "quorum(3, write=2)");

pub(super) struct Disks {
    _home: tempfile::TempDir,
    pub(super) dirs: Vec<PathBuf>,
}

impl Disks {
    pub(super) fn new(n: usize) -> Disks {
        let home = tempfile::tempdir().expect("a directory");
        let dirs = (0..n).map(|i| home.path().join(format!("q{i}"))).collect();
        Disks { _home: home, dirs }
    }

    pub(super) fn all(&self) -> Vec<&Path> {
        self.dirs.iter().map(PathBuf::as_path).collect()
    }

    /// Takes a disk away as an unmount does: its place is empty.
    pub(super) fn unmount(&self, at: usize) -> PathBuf {
        let aside = self.dirs[at].with_extension("aside");
        std::fs::rename(&self.dirs[at], &aside).expect("moved");
        aside
    }

    fn mount(&self, at: usize) {
        let _ = std::fs::remove_dir_all(&self.dirs[at]);
        let _ = std::fs::remove_file(&self.dirs[at]);
        std::fs::rename(self.dirs[at].with_extension("aside"), &self.dirs[at]).expect("moved back");
    }
}

pub(super) fn with(dirs: &[&Path], set: &[(&str, &str)]) -> NodeOptions {
    options(dirs, &[&[("extent.bytes", "64KiB")], set].concat())
}

/// Appends one record and names its number, which must be dense.
pub(super) async fn one(node: &Node, id: TopicId, n: i64) {
    let outcome = append(node, id, vec![batch(0, 1, None, n, &format!("{n}"))]).await;
    assert_eq!(base(&outcome[0]), n);
}

pub(super) async fn has(node: &Node, id: TopicId, count: i64) {
    let read = read_all(node, id, 0, 0).await;
    let expected: Vec<_> = (0..count).map(|n| (n, n.to_string().into_bytes())).collect();
    assert_eq!(read, expected);
}

fn open_drive(node: &Node, id: TopicId) -> String {
    let state = node.inner.control.read();
    let range = state.topics[&id].live_ranges().next().expect("a range").clone();
    shape(&range.open().expect("an open segment").drive).to_string()
}

async fn roll(node: &Node, id: TopicId) -> Result<(), String> {
    let topic = node.inner.topic(id).expect("there");
    let range = topic.ranges()[0].clone();
    node.inner.roll(&topic, &range).await
}

pub(super) async fn refused(options: NodeOptions) -> String {
    match Node::start(options).await {
        Ok(_) => panic!("started"),
        Err(error) => error.to_string(),
    }
}

fn metric(node: &Node, name: &str) -> f64 {
    node.api().metrics().iter().find(|m| m.name == name).expect("a metric").value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_rolls_on_to_the_disks_that_live_and_refuses_at_once_below_its_write_quorum() {
    let disks = Disks::new(3);
    let (second, third) = (Arc::new(FailingSync::default()), Arc::new(FailingSync::default()));
    let mut options = with(&disks.all(), &[QUORUM]);
    options.faults.0.insert(disks.dirs[1].clone(), second.clone());
    options.faults.0.insert(disks.dirs[2].clone(), third.clone());
    let node = Node::start(options).await.expect("starts");
    let id = topic(&node, "t", 2, &[]).await;
    one(&node, id, 0).await;
    assert_eq!((node.api().under_replicated(), metric(&node, "segments_under_replicated")), (vec![], 0.0));

    third.0.store(true, Ordering::Release);
    for n in 1..5 {
        one(&node, id, n).await;
    }
    let until = soon();
    while metric(&node, "disks_dead") == 0.0 {
        assert!(Instant::now() < until, "the disk does not die");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    roll(&node, id).await.expect("two of three live");
    assert_eq!(open_drive(&node, id), "quorum(2, write=2)");
    one(&node, id, 5).await;
    let thin = node.api().under_replicated().join("\n");
    assert!(thin.contains("topic 't': 2 of 2 segments have fewer copies"), "{thin}");
    assert!(thin.contains(&disks.dirs[2].display().to_string()), "{thin}");
    assert_eq!(metric(&node, "segments_under_replicated"), 2.0);
    let young = topic(&node, "young", 1, &[]).await;
    one(&node, young, 0).await;
    let view = node.api().split(id, 0, None).await.expect("an operation");
    assert_eq!(view.state, "done", "{view:?}");
    one(&node, id, 6).await;

    second.0.store(true, Ordering::Release);
    let asked = node.api().append(&Lane::default(), id, vec![batch(0, 1, None, 7, "7")], soon());
    drop(asked);
    let until = soon();
    while !node.api().blocked().iter().any(|why| why.contains("topic 't'")) {
        assert!(Instant::now() < until, "{:?}", node.api().blocked());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let outcome = append(&node, id, vec![batch(0, 1, Some((8, 0, 0)), 8, "8")]).await;
    assert!(matches!(outcome[0], Appended::Err(AppendError::Storage(_))), "{outcome:?}");
    let new = NewTopic {
        name: "none".into(),
        partitions: Some(1),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: false,
        validate_only: false,
    };
    let error = node.api().create_topic(new).await.expect_err("no disks");
    let TopicError::NoDisk(why) = &error else { panic!("{error:?}") };
    for dir in &disks.dirs[1..] {
        assert!(why.contains(&dir.display().to_string()) && why.contains("needs 2 disks that live"), "{why}");
    }
    node.crash().await;

    let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts again");
    assert_eq!(node.api().blocked(), Vec::<String>::new());
    assert_eq!(open_drive(&node, id), "quorum(3, write=2)");
    let read = read_all(&node, id, 0, 0).await;
    assert!(read.len() >= 7 && read[6] == (6, b"6".to_vec()), "{read:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_without_a_place_leaves_the_segment_as_it_is_and_one_that_is_not_recorded_is_said() {
    let disks = Disks::new(2);
    let fault = Arc::new(FailingSync::default());
    let mut options = with(&disks.all(), &[]);
    options.faults.0.insert(disks.dirs[1].clone(), fault.clone());
    let node = Node::start(options).await.expect("starts");
    let id = topic(&node, "t", 1, &[("rangeway.drive", "memory")]).await;
    one(&node, id, 0).await;
    let both = vec![("rangeway.drive".to_owned(), Some("quorum(2, write=2)".to_owned()))];
    node.api().alter_topic_configs(id, both, false).await.expect("two disks live");
    let other = topic(&node, "other", 1, &[]).await;
    fault.0.store(true, Ordering::Release);
    let until = soon();
    while metric(&node, "disks_dead") == 0.0 {
        assert!(Instant::now() < until, "the disk does not die");
        let asked =
            node.api().append(&Lane::default(), other, vec![batch(0, 1, None, 7, "7")], Instant::now());
        drop(asked);
        // Segments lie on either disk.
        let _ = roll(&node, other).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let why = roll(&node, id).await.expect_err("one disk lives");
    assert!(why.contains(&disks.dirs[1].display().to_string()), "{why}");
    one(&node, id, 1).await;

    let runtime = node.inner.topic(id).expect("there");
    let range = runtime.ranges()[0].clone();
    let state = node.inner.control.read();
    let control = state.range(id, range.id).expect("there");
    range.stop_issuing(control.version);
    assert!(range.drained().is_some());
    node.inner.after_failed_roll(&runtime, &range, range.active_loglet());
    assert!(matches!(range.phase(), Phase::Blocked(_)), "{:?}", range.phase());
    let outcome = append(&node, id, vec![batch(0, 1, Some((8, 0, 0)), 2, "2")]).await;
    assert!(matches!(outcome[0], Appended::Err(AppendError::Storage(_))), "{outcome:?}");
    assert!(
        node.api().blocked().iter().any(|why| why.contains("topic 't' range r0")),
        "{:?}",
        node.api().blocked()
    );
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_without_a_disk_of_its_quorums_and_takes_it_back() {
    for how in ["damaged superblock", "no directory", "left out"] {
        let disks = Disks::new(3);
        let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts");
        let id = topic(&node, "t", 1, &[]).await;
        one(&node, id, 0).await;
        node.crash().await;

        let lost = &disks.dirs[2];
        let superblock = lost.join("superblock");
        let whole = std::fs::read(&superblock).expect("readable");
        let mut given = disks.all();
        match how {
            "damaged superblock" => std::fs::write(&superblock, vec![0xff; whole.len()]).expect("written"),
            "no directory" => {
                disks.unmount(2);
                std::fs::write(lost, "a file").expect("written");
            }
            _ => drop(given.pop()),
        }
        let node = Node::start(with(&given, &[QUORUM])).await.unwrap_or_else(|e| panic!("{how}: {e}"));
        assert_eq!(open_drive(&node, id), "quorum(2, write=2)", "{how}");
        one(&node, id, 1).await;
        has(&node, id, 2).await;
        let blocked = node.api().blocked().join("\n");
        match how {
            "left out" => assert_eq!(blocked, "", "nothing is blocked"),
            _ => assert!(blocked.contains(&lost.display().to_string()), "{how}: {blocked}"),
        }
        let thin = node.api().under_replicated().join("\n");
        assert!(thin.contains(&lost.display().to_string()), "{how}: {thin}");
        node.crash().await;

        match how {
            "damaged superblock" => std::fs::write(&superblock, &whole).expect("written"),
            "no directory" => disks.mount(2),
            _ => {}
        }
        let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts with all");
        assert_eq!(
            (node.api().blocked(), open_drive(&node, id).as_str()),
            (vec![], "quorum(3, write=2)"),
            "{how}"
        );
        one(&node, id, 2).await;
        has(&node, id, 3).await;
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_directory_in_the_place_of_a_disk_is_not_taken_for_a_new_one() {
    let disks = Disks::new(2);
    let node = Node::start(with(&disks.all(), &[])).await.expect("starts");
    let mut topics = Vec::new();
    for n in 0..12 {
        let id = topic(&node, &format!("t{n}"), 1, &[]).await;
        one(&node, id, 0).await;
        topics.push(id);
    }
    node.stop().await;
    disks.unmount(1);
    let lost = disks.dirs[1].display().to_string();
    for _ in 0..2 {
        let why = refused(with(&disks.all(), &[])).await;
        for part in [&lost, "is a disk not mounted?", "--accept-new-disks", "segments of"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(!disks.dirs[1].join("superblock").exists(), "nothing was written");
    }

    // Left out: what lies there is blocked and named, the rest goes on.
    let node = Node::start(with(&disks.all()[..1], &[])).await.expect("starts without it");
    let blocked = node.api().blocked();
    // One line for all ranges that cannot be written, one for all that cannot be read.
    assert!(blocked.len() == 2 && blocked.iter().all(|why| why.contains(&lost)), "{blocked:?}");
    let mut wrote = 0;
    for id in &topics {
        let outcome = append(&node, *id, vec![batch(0, 1, Some((8, 0, 0)), 1, "1")]).await;
        match &outcome[0] {
            Appended::Ok { .. } => wrote += 1,
            Appended::Err(AppendError::Storage(_)) => {}
            Appended::Err(other) => panic!("{other:?}"),
        }
    }
    assert!(0 < wrote && wrote < topics.len(), "{wrote}");
    node.stop().await;

    // Accepted: a new disk beside the missing one.
    let accepting = NodeOptions { accept_new_disks: true, ..with(&disks.all(), &[]) };
    Node::start(accepting).await.expect("told to").stop().await;
    let node = Node::start(with(&disks.all(), &[])).await.expect("the new one is known now");
    assert!(node.api().blocked().iter().all(|why| why.contains("is in none of the data directories")));
    node.stop().await;
    let third = disks.dirs[1].with_extension("new");
    std::fs::rename(&disks.dirs[1], &third).expect("moved");
    disks.mount(1);
    let all = [disks.all(), vec![&third]].concat();
    let node = Node::start(with(&all, &[])).await.expect("starts with all three");
    assert_eq!(node.api().blocked(), Vec::<String>::new());
    for id in &topics {
        assert_eq!(read_all(&node, *id, 0, 0).await[0], (0, b"0".to_vec()));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_first_disk_a_start_is_refused_and_says_what_to_do() {
    let disks = Disks::new(3);
    let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    one(&node, id, 0).await;
    node.crash().await;
    let all = disks.all();
    let turned = [all[1], all[0], all[2]];
    let why = refused(with(&turned, &[QUORUM])).await;
    assert!(
        why.contains("name that directory first") && why.contains(&all[0].display().to_string()),
        "{why}"
    );

    disks.unmount(0);
    let why = refused(with(&all, &[QUORUM])).await;
    assert!(why.contains("Is its disk mounted?"), "{why}");
    assert!(!all[0].exists(), "nothing was written");
    disks.mount(0);

    std::fs::write(all[0].join("superblock"), "x").expect("written");
    let why = refused(with(&all[..1], &[])).await;
    assert!(why.contains("only disk of this node"), "{why}");
    let why = refused(with(&all, &[QUORUM])).await;
    assert!(why.contains("move that file into another of the data directories"), "{why}");
    std::fs::rename(all[0].join("control.redb"), all[1].join("control.redb")).expect("moved");
    let node = Node::start(with(&turned, &[QUORUM])).await.expect("starts without the first");
    one(&node, id, 1).await;
    has(&node, id, 2).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_that_cannot_start_leaves_nothing_behind() {
    let disks = Disks::new(3);
    let all = disks.all();
    let why = refused(with(&all[..2], &[QUORUM])).await;
    assert!(why.contains("the default drive quorum(3, write=2) cannot be used here"), "{why}");
    let why = refused(with(&all, &[("disk.reserve.bytes", "1000000GiB")])).await;
    assert!(why.contains("take a larger disk"), "{why}");
    std::fs::write(all[0].with_extension("file"), "").expect("written");
    let below = all[0].with_extension("file").join("d");
    let why = refused(with(&[&below, all[1]], &[])).await;
    assert!(why.contains("a part of that path is a file"), "{why}");
    assert!(all.iter().all(|dir| !dir.exists()), "{why}");
    Node::start(with(&all, &[QUORUM])).await.expect("starts").stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_while_a_disk_is_away_is_deleted_on_it_once_it_is_back() {
    let disks = Disks::new(3);
    let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    one(&node, id, 0).await;
    node.stop().await;
    let node = Node::start(with(&disks.all()[..2], &[QUORUM])).await.expect("starts without one");
    node.api().delete_topic(id).await.expect("deleted");
    let me = node.inner.node();
    assert_eq!(node.inner.control.read().tombstones_of(me).count(), 1, "the disk that is away has it");
    node.stop().await;
    let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts with all");
    assert_eq!(node.inner.control.read().tombstones_of(me).count(), 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_stays_until_the_deletion_is_durable() {
    let disks = Disks::new(1);
    let fault = Arc::new(FailingSync::default());
    let mut options = with(&disks.all(), &[]);
    options.faults.0.insert(disks.dirs[0].clone(), fault.clone());
    let node = Node::start(options).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    one(&node, id, 0).await;
    fault.0.store(true, Ordering::Release);
    node.api().delete_topic(id).await.expect("the control state is elsewhere");
    let me = node.inner.node();
    assert_eq!(node.inner.control.read().tombstones_of(me).count(), 1, "nobody knows what the disk has");
    node.crash().await;
    let node = Node::start(with(&disks.all(), &[])).await.expect("starts again");
    assert_eq!(node.inner.control.read().tombstones_of(me).count(), 0);
    node.stop().await;
}
