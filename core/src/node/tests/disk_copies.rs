//! Copies of disks and of the control state in the place of what the node wrote last: none is taken, and each is named.

use super::disks::{Disks, QUORUM, has, one, refused, with};
use super::*;
use crate::control::command::Command;
use crate::control::local::LocalStore;
use crate::control::state::DiskStarts;
use crate::control::{Store, propose_one};
use crate::node::verify::verify;
use crate::store::superblock::Superblock;
use crate::types::{Generation, NodeId};
use std::path::PathBuf;

const STRIPED: (&str, &str) = ("drive", "striped(2, disk)");

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for item in std::fs::read_dir(from).expect("listed") {
        let item = item.expect("an item");
        let to = to.join(item.file_name());
        match item.file_type().expect("a kind").is_dir() {
            true => copy(&item.path(), &to),
            false => drop(std::fs::copy(item.path(), to).expect("copied")),
        }
    }
}

/// Puts a copy of `from` in the place of `to`.
fn replace(from: &Path, to: &Path) {
    match to.is_dir() {
        true => std::fs::remove_dir_all(to).expect("removed"),
        false => std::fs::remove_file(to).expect("removed"),
    }
    match from.is_dir() {
        true => copy(from, to),
        false => drop(std::fs::copy(from, to).expect("copied")),
    }
}

fn superblocks(dirs: &[&Path]) -> Vec<Vec<u8>> {
    dirs.iter().map(|dir| std::fs::read(dir.join("superblock")).expect("read")).collect()
}

/// What an offline check says, by kind.
fn found(dirs: &[&Path]) -> Vec<(&'static str, String)> {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.to_path_buf()).collect();
    let verified = verify(&dirs, |_, _, _| {}).expect("checked");
    verified.findings.into_iter().map(|finding| (finding.kind, finding.what)).collect()
}

/// A start with `dirs` is refused without a change of any disk; what is said, which an offline check says too.
async fn refused_unchanged(dirs: &[&Path], drive: (&str, &str)) -> String {
    let before = superblocks(dirs);
    let why = refused(with(dirs, &[drive])).await;
    assert_eq!(refused(with(dirs, &[drive])).await, why);
    assert_eq!(superblocks(dirs), before, "a refused start begins nothing");
    let found = found(dirs);
    assert!(
        found.iter().any(|(kind, what)| *kind == "copied disk" && why.contains(what)),
        "{why}: {found:?}"
    );
    why
}

/// A node of `n` disks with one record, killed.
async fn killed(n: usize, drive: (&str, &str)) -> (Disks, TopicId) {
    let disks = Disks::new(n);
    let node = Node::start(with(&disks.all(), &[drive])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    one(&node, id, 0).await;
    node.crash().await;
    (disks, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_directories_of_one_disk_are_refused_and_both_are_named() {
    let (disks, id) = killed(2, STRIPED).await;
    for (at, started) in [(0, 1), (1, 1)] {
        let twin = disks.dirs[at].with_extension("twin");
        copy(&disks.dirs[at], &twin);
        let all = [disks.all(), vec![&twin]].concat();
        let why = refused_unchanged(&all, STRIPED).await;
        let disk = crate::store::DiskStore::look(&twin, &["control.redb"]).expect("a disk");
        let crate::store::Identity::Disk { id: disk, generation } = disk else { panic!("{disk:?}") };
        assert_eq!(generation, Generation(started));
        for part in [&disk.to_string(), &twin.display().to_string(), &disks.dirs[at].display().to_string()] {
            assert!(why.contains(part.as_str()), "{part}: {why}");
        }
        std::fs::remove_dir_all(&twin).expect("removed");
    }
    let node = Node::start(with(&disks.all(), &[STRIPED])).await.expect("starts with each once");
    has(&node, id, 1).await;
    node.stop().await;
    assert_eq!(found(&disks.all()), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_a_disk_is_refused_until_the_right_one_is_back_or_given_up() {
    let (disks, id) = killed(2, STRIPED).await;
    let old = disks.dirs[1].with_extension("old");
    copy(&disks.dirs[1], &old);
    let node = Node::start(with(&disks.all(), &[STRIPED])).await.expect("starts");
    for n in 1..5 {
        one(&node, id, n).await;
    }
    node.crash().await;
    let right = disks.dirs[1].with_extension("right");
    copy(&disks.dirs[1], &right);
    replace(&old, &disks.dirs[1]);
    let why = refused_unchanged(&disks.all(), STRIPED).await;
    for part in ["older copy of disk", "of its start 1, expected is start 2", "--accept-new-disks"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(why.contains(&disks.dirs[1].display().to_string()), "{why}");

    replace(&right, &disks.dirs[1]);
    let node = Node::start(with(&disks.all(), &[STRIPED])).await.expect("starts with the right one");
    has(&node, id, 5).await;
    node.stop().await;

    replace(&old, &disks.dirs[1]);
    assert!(refused(with(&disks.all(), &[STRIPED])).await.contains("expected is start 3"));
    std::fs::remove_dir_all(&disks.dirs[1]).expect("removed");
    let accepting = NodeOptions { accept_new_disks: true, ..with(&disks.all(), &[STRIPED]) };
    let node = Node::start(accepting).await.expect("told that it is lost");
    let id = topic(&node, "u", 1, &[]).await;
    one(&node, id, 0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_first_disk_beside_its_control_state_is_refused_and_can_be_given_up() {
    for (n, drive) in [(1, ("drive", "disk")), (3, QUORUM)] {
        let (disks, id) = killed(n, drive).await;
        let (first, control) = (disks.dirs[0].clone(), disks.dirs[0].join("control.redb"));
        let old = first.with_extension("old");
        copy(&first, &old);
        let node = Node::start(with(&disks.all(), &[drive])).await.expect("starts");
        one(&node, id, 1).await;
        node.stop().await;
        std::fs::copy(&control, old.join("control.redb")).expect("copied");
        replace(&old, &first);
        let why = refused_unchanged(&disks.all(), drive).await;
        if n > 1 {
            assert!(why.contains("move control.redb into another of the data directories"), "{why}");
            std::fs::rename(&control, disks.dirs[1].join("control.redb")).expect("moved");
            let node = Node::start(with(&disks.all()[1..], &[drive])).await.expect("starts without it");
            has(&node, id, 2).await;
            node.stop().await;
            continue;
        }
        assert!(why.contains("move all but control.redb out of it"), "{why}");
        std::fs::rename(&control, old.join("control.redb")).expect("moved");
        std::fs::remove_dir_all(&first).expect("removed");
        std::fs::create_dir(&first).expect("made");
        std::fs::rename(old.join("control.redb"), &control).expect("moved back");
        let accepting = NodeOptions { accept_new_disks: true, ..with(&disks.all(), &[drive]) };
        Node::start(accepting).await.expect("told that it is lost").stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_away_for_some_starts_is_as_it_was_and_an_older_copy_of_it_is_not() {
    let (disks, id) = killed(3, QUORUM).await;
    let old = disks.dirs[2].with_extension("old");
    copy(&disks.dirs[2], &old);
    Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts").crash().await;
    let right = disks.dirs[2].with_extension("right");
    std::fs::rename(&disks.dirs[2], &right).expect("moved");
    for n in 1..4 {
        let node = Node::start(with(&disks.all()[..2], &[QUORUM])).await.expect("starts without it");
        one(&node, id, n).await;
        node.crash().await;
    }
    copy(&old, &disks.dirs[2]);
    let why = refused_unchanged(&disks.all(), QUORUM).await;
    assert!(why.contains("of its start 1, expected is start 2"), "{why}");
    replace(&right, &disks.dirs[2]);
    assert_eq!(found(&disks.all()), vec![]);
    let node = Node::start(with(&disks.all(), &[QUORUM])).await.expect("starts with all");
    has(&node, id, 4).await;
    node.stop().await;
}

/// Begins a disk's next generation, and no more.
fn begin(dir: &Path) {
    let path = dir.join("superblock");
    let now = Superblock::decode(&std::fs::read(&path).expect("read"), &path).expect("whole");
    let next = Superblock { generation: Generation(now.generation.0 + 1), ..now };
    std::fs::write(&path, next.encode()).expect("written");
}

/// What the control state remembers of disks, with `StartNode` as any node proposes it.
async fn starts_recorded(dir: &Path, record: Option<DiskStarts>) -> DiskStarts {
    let control = LocalStore::open(&dir.join("control.redb")).expect("opened");
    let node = NodeId(1);
    let starts =
        |state: &crate::control::state::State| state.disk_starts.get(&node).cloned().unwrap_or_default();
    if let Some(begun) = record {
        // Without the disks the record forgets them.
        let forget = Command::StartNode { node, disks: vec![], begun: DiskStarts::new(), now: 0 };
        let disks = control.read().nodes[&node].disks.clone();
        propose_one(&control, forget).await.expect("forgotten");
        propose_one(&control, Command::StartNode { node, disks, begun, now: 0 }).await.expect("recorded");
    }
    let recorded = starts(&control.read());
    control.close();
    recorded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_ended_before_it_was_recorded_and_a_node_of_before_records_go_on() {
    let (disks, id) = killed(2, STRIPED).await;
    let first = starts_recorded(&disks.dirs[0], None).await;
    assert_eq!(first.values().map(|g| g.0).collect::<Vec<_>>(), [1, 1]);
    for n in 1..4 {
        // As a kill between the two leaves them: one disk or both have begun, and nothing says so.
        disks.all().into_iter().take(if n == 2 { 1 } else { 2 }).for_each(begin);
        let node = Node::start(with(&disks.all(), &[STRIPED])).await.expect("starts again");
        one(&node, id, n).await;
        node.crash().await;
    }
    // As an earlier build left it.
    assert_eq!(starts_recorded(&disks.dirs[0], Some(DiskStarts::new())).await, DiskStarts::new());
    let node = Node::start(with(&disks.all(), &[STRIPED])).await.expect("starts without a record");
    has(&node, id, 4).await;
    node.crash().await;
    let recorded = starts_recorded(&disks.dirs[0], None).await;
    let mut recorded: Vec<u64> = recorded.values().map(|g| g.0).collect();
    recorded.sort_unstable();
    assert_eq!(recorded, [7, 8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_control_state_beside_newer_records_is_refused() {
    for drive in [STRIPED, QUORUM] {
        let (disks, id) = killed(3, drive).await;
        let control = disks.dirs[0].join("control.redb");
        let old = disks.dirs[0].with_extension("control");
        std::fs::copy(&control, &old).expect("copied");
        let node = Node::start(with(&disks.all(), &[drive])).await.expect("starts");
        one(&node, id, 1).await;
        node.crash().await;
        let right = disks.dirs[0].with_extension("right");
        std::fs::copy(&control, &right).expect("copied");
        replace(&old, &control);
        let why = refused(with(&disks.all(), &[drive])).await;
        assert!(why.contains("this is an older copy of the control state"), "{why}");
        let found = found(&disks.all());
        assert!(found.iter().any(|(kind, what)| *kind == "control state" && why.contains(what)), "{found:?}");
        replace(&right, &control);
        let node = Node::start(with(&disks.all(), &[drive])).await.expect("starts with the right one");
        has(&node, id, 2).await;
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offline_check_misses_the_control_state_where_disks_are_noted() {
    let (disks, _) = killed(2, STRIPED).await;
    std::fs::remove_file(disks.dirs[0].join("control.redb")).expect("removed");
    let found_in = |dirs: &[&Path]| found(dirs).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(found_in(&disks.all()), ["missing file"]);
    assert_eq!(found_in(&disks.all()[1..]), Vec::<&str>::new(), "it is in the first directory");
}
