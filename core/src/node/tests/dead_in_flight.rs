//! A disk that dies with appends in flight: their outcome is unknown, and what comes later is refused at once.

use super::*;
use crate::range::lane::Outcomes;
use crate::range::primary::{Phase, RangePrimary};

/// Longer than any test: what is answered was not answered because its time was over.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn only_range(node: &Node, id: TopicId) -> Arc<RangePrimary> {
    node.inner.topic(id).expect("there").ranges()[0].clone()
}

fn is_refused(outcomes: &Outcomes) -> bool {
    matches!(outcomes.batches[0], Appended::Err(AppendError::Storage(_))) && !outcomes.close_after
}

async fn blocked(range: &RangePrimary) {
    let until = soon();
    while !matches!(range.phase(), Phase::Blocked(_)) {
        assert!(Instant::now() < until, "the disk does not die");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_after_a_write_that_failed_is_refused_and_what_was_in_flight_is_not() {
    for (drive, failing) in [("disk", 0), ("striped(2, disk)", 1)] {
        let dirs: Vec<_> = (0..=failing).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
        let fault = Arc::new(FailingSync::default());
        let node = Node::start(with_fault(&paths, failing, &fault)).await.expect("starts");
        let id = topic(&node, "t", 1, &[("rangeway.drive", drive)]).await;
        let api = node.api();
        let (plain, with_id) = (Lane::default(), Lane::default());
        for n in 0..4 {
            assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, n, "before")]).await[0]), n);
        }
        let layout = node.inner.layout.lock().await; // nobody finds out meanwhile whether it can go on
        let range = only_range(&node, id);
        fault.0.store(true, Ordering::Release);
        // Of two stripes the second that is written to is the dead disk.
        let in_flight = || {
            (0..=failing).map(|_| api.append(&plain, id, vec![batch(0, 1, None, 4, "in flight")], never()))
        };
        let mut in_flight: Vec<_> = in_flight().collect();
        let numbered = |n| vec![batch(0, 1, Some((7, 0, n)), 5, "numbered")];
        let mut first = api.append(&with_id, id, numbered(0), never());
        blocked(&range).await;
        let second = api.append(&with_id, id, numbered(1), never()).wait().await;
        assert!(is_refused(&second), "{drive}: {second:?}");
        let mut early = api.append(&plain, id, vec![batch(0, 1, None, 6, "early")], never());
        assert!(early.try_take().is_none(), "it is not known yet whether the range can go on");
        drop(layout);
        let early =
            tokio::time::timeout(Duration::from_secs(20), early.wait()).await.expect("it is found out");
        assert!(is_refused(&early), "{drive}: {early:?}");
        for lane in [&plain, &Lane::default()] {
            let mut later = api.append(lane, id, vec![batch(0, 1, None, 6, "later")], never());
            let later = later.try_take().expect("answered in the same step");
            assert!(is_refused(&later), "{drive}: {later:?}");
        }
        let third = api.append(&with_id, id, numbered(2), never()).wait().await;
        assert!(
            matches!(third.batches[0], Appended::Err(AppendError::NotLeader { .. })),
            "behind the second"
        );
        let unknown = in_flight.last_mut().and_then(|last| last.try_take());
        assert!(
            unknown.is_none() && first.try_take().is_none(),
            "{drive}: whether they are stored is unknown"
        );
        drop((in_flight, first, range, api));
        node.crash().await;

        let node = Node::start(options(&paths, &[])).await.expect("starts again");
        let stored = read_all(&node, id, 0, 0).await;
        let is = |what: &str| stored.iter().filter(|(_, value)| value == what.as_bytes()).count();
        assert_eq!((is("before"), is("early"), is("later")), (4, 0, 0), "{drive}");
        assert!(is("in flight") <= 1 + failing && is("numbered") <= 1, "{drive}: none twice");
        append(&node, id, vec![batch(0, 1, Some((7, 0, 0)), 5, "numbered")]).await;
        append(&node, id, vec![batch(0, 1, Some((7, 0, 1)), 5, "next")]).await;
        let stored = read_all(&node, id, 0, 0).await;
        let tail: Vec<&[u8]> = stored.iter().rev().take(2).map(|(_, value)| value.as_slice()).collect();
        assert_eq!(tail, [b"next".as_slice(), b"numbered"], "{drive}: in order, once");
        node.stop().await;
    }
}

/// A disk on which the file of the control state fails while this is set.
#[derive(Default)]
struct FailingControl(Arc<AtomicBool>);

impl Faults for FailingControl {
    fn write(&self, _len: usize) -> Fault {
        Fault::None
    }
    fn control_fails(&self) -> Option<Arc<AtomicBool>> {
        Some(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_that_fails_with_the_control_state_stops_its_range_and_no_other_is_begun() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
    let fault = Arc::new(FailingControl::default());
    let mut with_fault = options(&paths, &[("drive", "quorum(3, write=2)")]);
    with_fault.faults.0.insert(paths[0].to_path_buf(), fault.clone());
    let node = Node::start(with_fault).await.expect("starts");
    let (hit, other) = (topic(&node, "hit", 1, &[]).await, topic(&node, "other", 1, &[]).await);
    let one = |n| vec![batch(0, 1, None, n, "x")];
    for id in [hit, other] {
        assert_eq!(base(&append(&node, id, one(0)).await[0]), 0);
    }
    fault.0.store(true, Ordering::Release);
    let roll = async |id: TopicId| {
        node.inner.roll(&node.inner.topic(id).expect("there"), &only_range(&node, id)).await
    };
    assert_eq!(base(&append(&node, hit, one(1)).await[0]), 1, "until it has to roll");
    let why = roll(hit).await.expect_err("nothing can be recorded");
    assert!(why.contains("not recorded"), "{why}");
    let refused = node.api().append(&Lane::default(), hit, one(2), never()).wait();
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await.expect("it is found out");
    assert!(is_refused(&refused), "{refused:?}");
    let later = node.api().append(&Lane::default(), hit, one(2), never()).try_take();
    assert!(later.as_ref().is_some_and(is_refused), "{later:?}");

    let why = roll(other).await.expect_err("nothing can be recorded");
    assert!(why.contains("until a restart"), "{why}");
    assert_eq!(only_range(&node, other).phase(), Phase::Open);
    assert_eq!(base(&append(&node, other, one(1)).await[0]), 1, "in the segment that it has");
    node.crash().await;

    let node = Node::start(options(&paths, &[("drive", "quorum(3, write=2)")])).await.expect("starts again");
    for id in [hit, other] {
        assert_eq!(
            read_all(&node, id, 0, 0).await.len(),
            2,
            "all that was acknowledged, and nothing besides"
        );
        assert_eq!(base(&append(&node, id, one(2)).await[0]), 2);
    }
    node.stop().await;
}
