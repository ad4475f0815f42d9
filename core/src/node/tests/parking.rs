//! What waits for a range while its segment ends goes on in the successor.

use super::*;
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
