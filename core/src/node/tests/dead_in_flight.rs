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
