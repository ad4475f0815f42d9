//! Disks that fail or fill up in the middle of a split or merge: it is refused, given up or finished, nothing acknowledged is lost or stored
//! twice, and once the disk is back everything goes on.

use super::*;
use crate::api::OperationView;
use crate::drive::spec::DriveSpec;
use crate::error::ReshardError;
use crate::types::{DiskId, LogletId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};

const PARTITIONS: i32 = 4;
/// A split writes less than so many groups.
const WRITES_MAX: usize = 12;
/// Bytes of a write that is none of the store's own.
const LARGE: usize = 16 << 10;

/// A disk of which a coming write goes wrong, and everything after it.
struct Failing {
    /// Writes that still go well; `usize::MAX`: all.
    well: AtomicUsize,
    how: Mutex<Fault>,
    /// Smaller writes go well and do not count.
    least: AtomicUsize,
    /// Free bytes as they are told; 0: as they are.
    free: AtomicU64,
}

impl Failing {
    fn new(how: Fault) -> Arc<Failing> {
        Arc::new(Failing {
            well: AtomicUsize::new(usize::MAX),
            how: Mutex::new(how),
            least: AtomicUsize::new(0),
            free: AtomicU64::new(0),
        })
    }

    fn after(&self, writes: usize) {
        self.well.store(writes, Ordering::Release);
    }

    fn only_from(&self, bytes: usize) {
        self.least.store(bytes, Ordering::Release);
    }

    fn failed(&self) -> bool {
        self.well.load(Ordering::Acquire) == 0
    }
}

impl Faults for Failing {
    fn write(&self, len: usize) -> Fault {
        if len < self.least.load(Ordering::Acquire) {
            return Fault::None;
        }
        let count = |left: usize| match left {
            0 | usize::MAX => None,
            left => Some(left - 1),
        };
        match self.well.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            Err(0) => *self.how.lock(),
            _ => Fault::None,
        }
    }
    fn available(&self) -> Option<u64> {
        Some(self.free.load(Ordering::Acquire)).filter(|free| *free > 0)
    }
}

fn faulty(dirs: &[&Path], failing: usize, faults: &Arc<Failing>) -> NodeOptions {
    // Small extents: a spare one counts as room.
    let mut options = options(dirs, &[("extent.bytes", "64KiB")]);
    options.faults.0.insert(dirs[failing].to_path_buf(), faults.clone());
    options
}

/// Sends batches of an idempotent producer per partition, some together; counts those acknowledged, in order.
async fn send(node: &Node, id: TopicId, acked: &mut [i32], rounds: i32, patience: Duration) {
    let lane = Lane::default();
    let mut flying = Vec::new();
    for n in 0..rounds {
        for (p, from) in (0..PARTITIONS).zip(acked.iter()) {
            let one = batch(p, 1, Some((20 + i64::from(p), 0, from + n)), 1, &format!("{p}/{}", from + n));
            flying.push((p, from + n, node.api().append(&lane, id, vec![one], Instant::now() + patience)));
        }
    }
    for (p, n, pending) in flying {
        if let Appended::Ok { base_offset, .. } = pending.wait().await.batches[0] {
            assert_eq!(base_offset, i64::from(n), "partition {p}");
            assert_eq!(acked[p as usize], n, "partition {p}: acknowledged in order");
            acked[p as usize] = n + 1;
        }
    }
}

/// All that was acknowledged is there, once, at its offset; behind it at most what had no answer.
async fn whole(node: &Node, id: TopicId, acked: &[i32]) {
    for (p, count) in (0..PARTITIONS).zip(acked) {
        let read = read_all(node, id, p, 0).await;
        assert!(read.len() as i32 >= *count, "partition {p}: {} of {count} acknowledged", read.len());
        for (n, one) in (0..).zip(&read) {
            assert_eq!(*one, (n, format!("{p}/{n}").into_bytes()), "partition {p}");
        }
    }
}

/// What is at its end, sent again or new, is taken.
async fn goes_on(node: &Node, id: TopicId, acked: &mut [i32]) {
    let before = acked.to_vec();
    send(node, id, acked, 3, Duration::from_secs(20)).await;
    for (p, (before, after)) in before.iter().zip(acked.iter()).enumerate() {
        assert_eq!(*after, before + 3, "partition {p} goes on");
    }
    whole(node, id, acked).await;
}

fn active(node: &Node, id: TopicId) -> Vec<u32> {
    node.api().range_stats(id).iter().filter(|r| r.state == "active").map(|r| r.id).collect()
}

/// A split or merge, whichever is possible, with appends in flight.
async fn reshard_under_load(
    node: &Node,
    id: TopicId,
    acked: &mut [i32],
    patience: Duration,
) -> Result<OperationView, ReshardError> {
    let api = node.api();
    let ranges = active(node, id);
    let operation = async {
        match ranges[..] {
            [one] => api.split(id, one, None).await,
            [left, right, ..] => api.merge(id, left, right).await,
            [] => panic!("no range"),
        }
    };
    let (outcome, ()) = tokio::join!(operation, send(node, id, acked, 4, patience));
    outcome
}

/// On one disk, the failure of any write of a split or merge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_write_of_a_split_fails_nothing_acknowledged_is_lost() {
    for how in [Fault::SyncFails, Fault::Torn(700), Fault::Full] {
        let mut hit = 0;
        for writes in 0..WRITES_MAX {
            let dir = tempfile::tempdir().expect("a directory");
            let faults = Failing::new(how);
            let node = Node::start(faulty(&[dir.path()], 0, &faults)).await.expect("starts");
            let id = topic(&node, "t", PARTITIONS, &[]).await;
            let mut acked = [0; PARTITIONS as usize];
            send(&node, id, &mut acked, 2, Duration::from_secs(20)).await;
            if writes % 2 == 1 {
                node.api().split(id, 0, None).await.expect("split");
            }
            faults.after(writes);
            let outcome = reshard_under_load(&node, id, &mut acked, Duration::from_millis(300)).await;
            if let Ok(view) = &outcome {
                assert!(["done", "aborted"].contains(&&*view.state), "{view:?}");
            }
            whole(&node, id, &acked).await;
            hit += usize::from(faults.failed());
            node.crash().await;
            let node = Node::start(options(&[dir.path()], &[])).await.expect("starts again");
            assert_eq!(node.api().blocked(), Vec::<String>::new(), "{how:?} after {writes}: {outcome:?}");
            whole(&node, id, &acked).await;
            goes_on(&node, id, &mut acked).await;
            let again = reshard_under_load(&node, id, &mut acked, Duration::from_secs(20)).await;
            assert_eq!(again.expect("possible").state, "done");
            goes_on(&node, id, &mut acked).await;
            node.stop().await;
        }
        assert!(hit > 2, "{how:?} met {hit} writes only");
    }
}

/// Where enough copies are left no client notices the failure; children get a place while there are as many disks as they want copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_write_of_one_disk_of_a_quorum_fails_amid_a_split_no_append_does() {
    let mut states = Vec::new();
    for writes in 0..WRITES_MAX {
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
        let faults = Failing::new(Fault::SyncFails);
        let node = Node::start(faulty(&paths, 2, &faults)).await.expect("starts");
        let id = topic(&node, "t", PARTITIONS, &[("rangeway.drive", "quorum(3, write=2)")]).await;
        let mut acked = [0; PARTITIONS as usize];
        send(&node, id, &mut acked, 2, Duration::from_secs(20)).await;
        faults.after(writes);
        for _ in 0..2 {
            let before = acked;
            let view =
                reshard_under_load(&node, id, &mut acked, Duration::from_secs(20)).await.expect("possible");
            let placed = view.why.as_deref().is_none_or(|why| why.contains("no place"));
            assert!(["done", "aborted"].contains(&&*view.state) && placed, "after {writes}: {view:?}");
            assert_eq!(acked, before.map(|n| n + 4), "every append succeeds");
            states.push(view.state);
        }
        whole(&node, id, &acked).await;
        node.crash().await;
        let node = Node::start(options(&paths, &[])).await.expect("starts again");
        whole(&node, id, &acked).await;
        goes_on(&node, id, &mut acked).await;
        node.stop().await;
    }
    assert!(states.iter().any(|state| state == "done"), "{states:?}");
}

/// A full disk refuses records before anything is numbered, and takes what ends and opens segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_split_and_merge_on_a_full_disk_and_go_on_once_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let faults = Failing::new(Fault::None);
    let node = Node::start(faulty(&[dir.path()], 0, &faults)).await.expect("starts");
    let id = topic(&node, "t", PARTITIONS, &[]).await;
    let mut acked = [0; PARTITIONS as usize];
    send(&node, id, &mut acked, 2, Duration::from_secs(20)).await;
    faults.free.store(1, Ordering::Release);
    let until = soon();
    loop {
        let before = acked;
        send(&node, id, &mut acked, 4, Duration::from_secs(20)).await;
        if acked == before {
            break;
        }
        assert!(Instant::now() < until, "the disk is never found to be full");
    }
    for _ in 0..4 {
        let before = acked;
        let done = reshard_under_load(&node, id, &mut acked, Duration::from_millis(300)).await;
        assert_eq!(done.expect("possible").state, "done");
        assert_eq!(acked, before, "no room for records");
        whole(&node, id, &acked).await;
    }
    faults.free.store(0, Ordering::Release);
    let until = soon();
    loop {
        let before = acked;
        send(&node, id, &mut acked, 1, Duration::from_millis(300)).await;
        if acked == before.map(|n| n + 1) {
            break;
        }
        assert!(Instant::now() < until, "room is never found again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    goes_on(&node, id, &mut acked).await;
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts again");
    whole(&node, id, &acked).await;
    goes_on(&node, id, &mut acked).await;
    node.stop().await;
}

/// A disk of two dies under an append. The range with that append, whose fate is unknown, cannot be sealed: its split is
/// refused, says why and touches nothing. Ranges that had nothing under way end without a fence: those of the dead disk
/// split away from it, those of the other one as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_below_the_seal_quorum_is_refused_and_touches_nothing() {
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let faults = Failing::new(Fault::SyncFails);
    let node = Node::start(faulty(&paths, 1, &faults)).await.expect("starts");
    let disks: Vec<DiskId> = node.inner.storage.disks().iter().map(|disk| disk.disk_id()).collect();
    let open = |node: &Node, id: &TopicId| -> Vec<(LogletId, DriveSpec)> {
        let state = node.inner.control.read();
        let open = state.topics[id].live_ranges().filter_map(|r| r.open());
        open.map(|entry| (entry.loglet, entry.drive.clone())).collect()
    };
    let (mut on_living, mut on_failing) = (Vec::new(), Vec::new());
    for n in 0..200 {
        let id = topic(&node, &format!("t{n}"), PARTITIONS, &[]).await;
        let mut acked = [0; PARTITIONS as usize];
        send(&node, id, &mut acked, 1, Duration::from_secs(20)).await;
        match &open(&node, &id)[..] {
            [(_, DriveSpec::Disk { disk, .. })] if *disk == disks[0] => on_living.push((id, acked)),
            _ => on_failing.push((id, acked)),
        }
        if on_living.len() > 1 && on_failing.len() > 2 {
            break;
        }
    }
    assert!(on_living.len() > 1 && on_failing.len() > 2, "both disks are used");
    // Whatever else the disk writes is smaller: the append meets a disk that lives.
    faults.only_from(LARGE);
    faults.after(0);
    let (hit, quiet) = on_failing.split_at_mut(1);
    let (id, acked) = &mut hit[0];
    let large = batch(0, 1, None, 1, &"x".repeat(2 * LARGE));
    let patience = Instant::now() + Duration::from_millis(300);
    let appended = node.api().append(&Lane::default(), *id, vec![large], patience).wait().await;
    assert!(!matches!(appended.batches[0], Appended::Ok { .. }), "the write failed");
    assert!(node.inner.storage.dead()[0].contains("write failed"), "{:?}", node.inner.storage.dead());
    let before = open(&node, id);
    let view = node.api().split(*id, 0, None).await.expect("an operation");
    assert_eq!(view.state, "aborted", "{view:?}");
    let why = view.why.as_deref().unwrap_or_default();
    assert!(
        ["seal quorum", &paths[1].display().to_string(), "restart"].iter().all(|part| why.contains(part)),
        "{view:?}"
    );
    assert_eq!(open(&node, id), before, "nothing was touched");
    whole(&node, *id, acked).await;
    for (id, acked) in quiet.iter_mut().chain(&mut on_living) {
        let view = node.api().split(*id, 0, None).await.expect("an operation");
        assert_eq!(view.state, "done", "{view:?}");
        let living =
            |(_, drive): &(_, DriveSpec)| matches!(drive, DriveSpec::Disk { disk, .. } if *disk == disks[0]);
        assert!(open(&node, id).iter().all(living), "children lie on the disk that lives");
        goes_on(&node, *id, acked).await;
    }
    node.crash().await;
    let node = Node::start(options(&paths, &[])).await.expect("starts again");
    let (id, _) = &hit[0];
    let read = read_all(&node, *id, 0, 0).await;
    assert_eq!(read[0], (0, b"0/0".to_vec()));
    for (id, acked) in quiet.iter_mut().chain(&mut on_living) {
        whole(&node, *id, acked).await;
        goes_on(&node, *id, acked).await;
    }
    node.stop().await;
}
