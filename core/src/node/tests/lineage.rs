//! Folding and reading through lineages that the control state is made to tell of.

use super::*;
use crate::control::state::{EpochRun, Range, RangeState as Standing, Topic};
use crate::drive::spec::DriveSpec;
use crate::node::Inner;
use crate::range::primary::RangePrimary;
use crate::range::project::project;
use crate::range::state::RangeState;
use crate::types::{Address, RangeId, Span};

fn span(first: i32, last: i32) -> Span {
    Span { first, last }
}

/// A range that closed before it wrote anything.
fn empty(id: u32, span: Span, parents: &[u32]) -> Range {
    Range {
        id: RangeId(id),
        span,
        state: Standing::Closed,
        version: 0,
        parents: parents.iter().map(|p| RangeId(*p)).collect(),
        children: Vec::new(),
        chain: Vec::new(),
        epochs: vec![EpochRun { first: span.first, last: span.last, epoch: 0 }],
    }
}

fn inner(node: &Node) -> Arc<Inner> {
    node.api().node.clone()
}

/// What the control state says of a topic, its one range closed where it stands; and the state that the range ended with.
fn closed(node: &Node, id: TopicId) -> (Topic, RangeState) {
    let inner = inner(node);
    let mut topic = Topic::clone(&inner.control.read().topics[&id]);
    let primary = inner.topic(id).expect("there").ranges()[0].clone();
    let mut parent = Range::clone(&topic.ranges[&RangeId(0)]);
    let tail = primary.view(parent.span.first).expect("inside").tail;
    parent.chain.last_mut().expect("a segment").tail = Some(tail);
    parent.state = Standing::Closed;
    topic.ranges.insert(parent.id, Arc::new(parent));
    (topic, primary.state())
}

fn put(topic: &mut Topic, range: Range) {
    topic.ranges.insert(range.id, Arc::new(range));
}

async fn fold(node: &Node, topic: &Topic, id: u32) -> Result<RangeState, String> {
    let inner = inner(node);
    let range = &topic.ranges[&RangeId(id)];
    let sealed = inner.sealed_segments(range, None)?;
    inner.fold_range(topic, range, &sealed).await
}

async fn written(dir: &Path, partitions: i32) -> (Node, TopicId) {
    let node = Node::start(options(&[dir], &[])).await.expect("starts");
    let id = topic(&node, "t", partitions, &[]).await;
    for i in 0..5 {
        let producer = |p| (p % 2 == 0).then_some((7, 0, i));
        append(&node, id, (0..partitions).map(|p| batch(p, 1, producer(p), 100, "x")).collect()).await;
    }
    (node, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_folds_what_its_parents_ended_with_and_its_own_log_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 4).await;
    let (mut topic, state) = closed(&node, id);
    put(&mut topic, empty(1, span(0, 1), &[0]));
    put(&mut topic, empty(2, span(2, 3), &[0]));
    // Whoever wrote the lineage down may have named the right parent first.
    put(&mut topic, empty(3, span(0, 3), &[2, 1]));
    assert_eq!(fold(&node, &topic, 1).await, Ok(project(&state, span(0, 1)).expect("inside")));
    assert_eq!(fold(&node, &topic, 2).await, Ok(project(&state, span(2, 3)).expect("inside")));
    assert_eq!(fold(&node, &topic, 3).await, Ok(state.clone()));

    // The left child begins a log of its own.
    let inner = inner(&node);
    let left = topic.ranges[&RangeId(1)].clone();
    let mut entry = topic.ranges[&RangeId(0)].chain[0].clone();
    entry.loglet.0 += 1000;
    (entry.base, entry.tail) = (0, None);
    let mut left = Range::clone(&left);
    left.chain.push(entry);
    let first = inner.open_segment(&left).expect("opens");
    let history = inner.history(&topic, &left, Vec::new()).expect("opens");
    let (sibling, cousin) = (&topic.ranges[&RangeId(2)], &topic.ranges[&RangeId(3)]);
    for other in [sibling, cousin] {
        let others = inner.history(&topic, other, Vec::new()).expect("opens");
        assert!(Arc::ptr_eq(&history[0], &others[0]), "a segment is opened once");
    }
    let inherited = project(&state, left.span).expect("inside");
    let stamping = Default::default();
    let child = RangePrimary::new(id, left.id, inner.limits(), stamping, inherited, history, first.clone());
    child.open(first, &[(left.span, 9)], Vec::new(), 1);
    while !child.is_idle() {
        child.wait_for_progress().await;
    }
    child.issue_log_starts(&[(1, 3)], &Default::default(), 1).expect("of the range").expect("room");
    while !child.is_idle() {
        child.wait_for_progress().await;
    }
    left.chain[0].tail = Some(child.view(0).expect("inside").tail);
    put(&mut topic, left);
    let left = fold(&node, &topic, 1).await.expect("folds");
    assert_eq!(left, child.state());
    let merged = fold(&node, &topic, 3).await.expect("folds");
    assert_eq!(project(&merged, span(0, 1)), Ok(left));
    assert_eq!(project(&merged, span(2, 3)), project(&state, span(2, 3)));
    assert_eq!(child.read(1, 3, 1000).await.expect("readable").entries.len(), 2, "of the parent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lineage_a_thousand_deep_is_folded_once_each() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 2).await;
    let (mut topic, state) = closed(&node, id);
    // Splits and merges in turn: 2^500 ways lead back to the root.
    for n in 0..500u32 {
        let parent = 3 * n;
        put(&mut topic, empty(parent + 1, span(0, 0), &[parent]));
        put(&mut topic, empty(parent + 2, span(1, 1), &[parent]));
        put(&mut topic, empty(parent + 3, span(0, 1), &[parent + 1, parent + 2]));
    }
    assert_eq!(fold(&node, &topic, 1500).await, Ok(state));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_dropped_is_said_to_be_lost_and_never_numbered_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 2).await;
    let (mut topic, _) = closed(&node, id);
    put(&mut topic, empty(1, span(0, 0), &[0]));
    put(&mut topic, empty(2, span(0, 0), &[1]));
    put(&mut topic, empty(3, span(0, 0), &[3]));
    let circle = fold(&node, &topic, 3).await.expect_err("its own parent");
    assert!(circle.contains("cannot be its parent"), "{circle}");

    let mut parent = Range::clone(&topic.ranges[&RangeId(0)]);
    (parent.chain[0].base, parent.chain[0].tail) = (10, Some(Address(0)));
    put(&mut topic, parent.clone());
    let lost = fold(&node, &topic, 2).await.expect_err("dropped before it, and empty");
    assert!(lost.contains("its numbering is lost"), "{lost}");
    parent.chain[0].drive = DriveSpec::Memory { node: crate::types::NodeId(1) };
    put(&mut topic, parent);
    let blank = fold(&node, &topic, 2).await;
    assert_eq!(blank, Ok(RangeState::new(span(0, 0))), "memory forgets");

    topic.ranges.remove(&RangeId(0));
    let dropped = fold(&node, &topic, 2).await.expect_err("its state is gone");
    assert!(dropped.contains("range r1: its state is in range r0, which was dropped"), "{dropped}");
}
