//! What waits for a range while its segment ends goes on in the successor.

use super::*;
use crate::range::lane::Outcomes;
use crate::range::primary::{Phase, RangePrimary};

/// The only range of a topic, taking nothing until it is rolled away.
fn held(node: &Node, id: TopicId) -> Arc<RangePrimary> {
    let range = node.inner.range(TopicPartition { topic: id, partition: 0 }).expect("known");
    range.stop_issuing(0);
    range
}

async fn roll_away(node: &Node, id: TopicId, range: &Arc<RangePrimary>) {
    let topic = node.inner.topic(id).expect("known");
    node.inner.roll_away(&topic, range).await.expect("goes on elsewhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_range_lands_in_its_successor() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Arc::new(Node::start(options(&[dir.path()], &[])).await.expect("starts"));
    let id = topic(&node, "t", 2, &[]).await;
    assert_eq!(base(&append(&node, id, vec![batch(0, 3, None, 0, "before")]).await[0]), 0);
    let old = held(&node, id);
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { append(&node, id, vec![batch(0, 1, None, 0, "a"), batch(1, 1, None, 0, "b")]).await }
    });
    let deleting = tokio::spawn({
        let node = node.clone();
        async move { node.api().delete_records(TopicPartition { topic: id, partition: 0 }, Some(2)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished() && !deleting.is_finished(), "both wait");
    roll_away(&node, id, &old).await;
    assert_eq!(old.phase(), Phase::Moved);
    let outcomes = waiting.await.expect("no panic");
    assert_eq!((base(&outcomes[0]), base(&outcomes[1])), (3, 0));
    assert_eq!(deleting.await.expect("no panic"), Ok(2));
    assert_eq!(
        read_all(&node, id, 0, 2).await.len(),
        2,
        "the batch across the log start and the one that waited"
    );
    Arc::into_inner(node).expect("nobody else").stop().await;
}

/// A topic of two ranges with a partition each.
async fn two_ranges(node: &Node) -> TopicId {
    let id = topic(node, "t", 1, &[]).await;
    node.api().create_partitions(id, 2, false).await.expect("another range");
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_stands_still_holds_up_no_other_of_the_lane() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = two_ranges(&node).await;
    let (api, lane) = (node.api(), Lane::default());
    let old = held(&node, id);
    let mut first = api.append(&lane, id, vec![batch(0, 1, None, 0, "a"), batch(1, 1, None, 0, "x")], soon());
    let mut second = api.append(&lane, id, vec![batch(0, 1, None, 0, "b")], soon());
    let beside = api.append(&lane, id, vec![batch(1, 1, None, 0, "y")], soon()).wait().await;
    assert_eq!(base(&beside.batches[0]), 1, "behind x, which did not wait either");
    assert!(first.try_take().is_none() && second.try_take().is_none());
    let parked = |node: &Node| node.inner.parking.now();
    assert_eq!(parked(&node), 2);
    roll_away(&node, id, &old).await;
    // The later request alone is waited for: it hands out what is ahead of it too.
    assert_eq!(base(&second.wait().await.batches[0]), 1);
    let first = first.wait().await;
    assert_eq!((base(&first.batches[0]), base(&first.batches[1])), (0, 0));
    assert!(!first.close_after);
    assert_eq!(parked(&node), 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotent_batch_is_refused_at_its_deadline_and_what_follows_waits_for_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let (api, lane) = (node.api(), Lane::default());
    let range = held(&node, id);
    let send = |sequence, deadline| {
        api.append(&lane, id, vec![batch(0, 1, Some((4, 0, sequence)), 0, "x")], deadline)
    };
    let (first, behind) = (send(0, Instant::now() + Duration::from_millis(30)), send(1, soon()));
    let again = AppendError::NotLeader { leader: Some(crate::types::NodeId(1)) };
    let first = first.wait().await;
    assert_eq!(first.batches, [Appended::Err(again.clone())]);
    assert!(!first.close_after);
    assert_eq!(behind.wait().await.batches, [Appended::Err(again.clone())], "long before its own deadline");
    range.resume(None);
    assert_eq!(send(2, soon()).wait().await.batches, [Appended::Err(again)], "it would go first");
    let mut in_order = Vec::new();
    for sequence in 0..3 {
        in_order.push(base(&send(sequence, soon()).wait().await.batches[0]));
    }
    assert_eq!(in_order, [0, 1, 2]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_batch_that_waits_too_long_ends_its_lane() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let (api, lane) = (node.api(), Lane::default());
    let range = held(&node, id);
    let outcomes = |pending: crate::api::PendingAppend| async move {
        let outcomes = pending.wait().await;
        (outcomes.batches, outcomes.close_after)
    };
    let refused = (vec![Appended::Err(AppendError::TimedOut)], true);
    let plain = |text, deadline| api.append(&lane, id, vec![batch(0, 1, None, 0, text)], deadline);
    let (first, behind) = (plain("a", Instant::now() + Duration::from_millis(30)), plain("b", soon()));
    assert_eq!(outcomes(first).await, refused);
    assert_eq!(outcomes(behind).await, refused);
    range.resume(None);
    assert_eq!(outcomes(plain("c", soon())).await, refused, "no more of this lane");
    let other = append(&node, id, vec![batch(0, 1, None, 0, "d")]).await;
    assert_eq!(base(&other[0]), 0);
    assert_eq!(read_all(&node, id, 0, 0).await, [(0, b"d".to_vec())]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_closed_connection_had_parked_is_not_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let (api, lane) = (node.api(), Lane::default());
    let range = held(&node, id);
    drop(api.append(&lane, id, vec![batch(0, 1, None, 0, "gone")], soon()));
    assert_eq!(node.inner.parking.now(), 0);
    range.resume(None);
    append(&node, id, vec![batch(0, 1, None, 0, "later")]).await;
    assert_eq!(read_all(&node, id, 0, 0).await, [(0, b"later".to_vec())]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_batches_wait_for_a_range_that_is_blocked_and_keep_their_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let (api, lane, with_id) = (node.api(), Lane::default(), Lane::default());
    let layout = node.inner.layout.lock().await; // nobody rolls it away meanwhile
    let range = held(&node, id);
    range.close(Phase::Blocked("its disk died".to_owned()));
    let plain = |text| api.append(&lane, id, vec![batch(0, 1, None, 0, text)], soon());
    let (mut first, second) = (plain("a"), plain("b"));
    let refused = api.append(&with_id, id, vec![batch(0, 1, Some((4, 0, 0)), 0, "c")], soon()).wait().await;
    assert!(
        matches!(refused.batches[0], Appended::Err(AppendError::Storage(_))),
        "a producer with an id is told"
    );
    assert!(first.try_take().is_none(), "and a plain one waits");
    drop(layout);
    assert_eq!(base(&second.wait().await.batches[0]), 1);
    assert_eq!(base(&first.wait().await.batches[0]), 0);
    assert_eq!(read_all(&node, id, 0, 0).await, [(0, b"a".to_vec()), (1, b"b".to_vec())]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_plain_batch_was_refused_by_a_stuck_range_the_lane_takes_none_that_would_overtake_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = two_ranges(&node).await;
    let (api, lane) = (node.api(), Lane::default());
    let append = |partition, text| api.append(&lane, id, vec![batch(partition, 1, None, 0, text)], soon());
    let layout = node.inner.layout.lock().await; // nobody rolls it away meanwhile
    let range = held(&node, id);
    range.close(Phase::Blocked("its disk died".to_owned()));
    let (mut waits, also) = (append(0, "a"), append(0, "b"));
    assert!(waits.try_take().is_none(), "it may go on shortly");
    range.stay_blocked();
    for refused in [waits.wait().await, also.wait().await, append(0, "c").wait().await] {
        assert!(matches!(refused.batches[0], Appended::Err(AppendError::Storage(_))), "{refused:?}");
        assert!(!refused.close_after, "clients are told and go on with others");
    }
    assert_eq!(base(&append(1, "others go on").wait().await.batches[0]), 0);
    drop(layout);
    let until = soon();
    while range.phase() != Phase::Moved {
        assert!(Instant::now() < until, "it does not go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let late = append(0, "d").wait().await;
    assert_eq!(late, Outcomes { batches: vec![Appended::Err(AppendError::TimedOut)], close_after: true });
    let again = api.append(&Lane::default(), id, vec![batch(0, 1, None, 0, "a")], soon()).wait().await;
    assert_eq!(base(&again.batches[0]), 0, "nothing of the refused was stored");
    node.stop().await;
}
