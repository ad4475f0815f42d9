//! Folding and reading through lineages that the control state is made to tell of.

use super::*;
use crate::control::state::{EpochRun, Range, RangeState as Standing, Topic};
use crate::drive::spec::DriveSpec;
use crate::node::Inner;
use crate::range::primary::{Phase, RangePrimary};
use crate::range::project::project;
use crate::range::read::Isolation;
use crate::range::state::RangeState;
use crate::types::{Address, RangeId, Span};
use std::sync::atomic::AtomicUsize;

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
    assert_eq!(
        child.read(1, 3, 1000, Isolation::Uncommitted).await.expect("readable").entries.len(),
        2,
        "of the parent"
    );
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

async fn roll_away(inner: &Inner, id: TopicId) {
    let topic = inner.topic(id).expect("there");
    let range = topic.ranges()[0].clone();
    range.close(Phase::Blocked("its drive died".into()));
    inner.roll_away(&topic, &range).await.expect("goes on elsewhere");
}

/// Whoever looked at a range and then waited for the layout does nothing to the segment of the primary that took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_replaced_ends_nobodys_segment() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 2).await;
    let inner = inner(&node);
    let topic = inner.topic(id).expect("there");
    let old = topic.ranges()[0].clone();
    roll_away(&inner, id).await;
    for i in 0..20 {
        append(&node, id, vec![batch(1, 1, None, 100, &format!("{i}"))]).await;
    }
    let chain = || inner.control.read().range(id, old.id).expect("there").chain.clone();
    let (before, records) = (chain(), read_all(&node, id, 1, 0).await);
    inner.roll(&topic, &old).await.expect("rolled");
    inner.roll_away(&topic, &old).await.expect("nothing to do");
    assert_eq!(chain(), before);
    append(&node, id, vec![batch(1, 1, None, 100, "last")]).await;
    let after = read_all(&node, id, 1, 0).await;
    assert_eq!((after.len(), &after[..records.len()]), (records.len() + 1, &records[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_said_by_the_present_range_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 2).await;
    let inner = inner(&node);
    let at = TopicPartition { topic: id, partition: 1 };
    let asked = AtomicUsize::new(0);
    let above_the_end = |range: Arc<RangePrimary>| {
        let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
        let inner = inner.clone();
        async move {
            let answer = range.read(1, 6, 100, Isolation::Uncommitted).await;
            if first {
                roll_away(&inner, id).await;
                let lane = Lane::default();
                inner.append(&lane, id, vec![batch(1, 1, None, 100, "y")], soon()).wait(&*inner).await;
            }
            answer
        }
    };
    let answer = inner.ask(at, |_| true, above_the_end).await.expect("the end by now");
    assert_eq!((answer.view.high_watermark, asked.load(Ordering::Relaxed)), (6, 2));

    // A positive answer stands, whoever gave it.
    let asked = AtomicUsize::new(0);
    let below_the_end = |range: Arc<RangePrimary>| {
        asked.fetch_add(1, Ordering::Relaxed);
        let inner = inner.clone();
        async move {
            let answer = range.read(1, 2, 100, Isolation::Uncommitted).await;
            roll_away(&inner, id).await;
            answer
        }
    };
    inner.ask(at, |_| true, below_the_end).await.expect("readable");
    assert_eq!(asked.load(Ordering::Relaxed), 1);

    // Where the log ends is said by the present range too.
    let topic = inner.topic(id).expect("there");
    let old = topic.ranges()[0].clone();
    roll_away(&inner, id).await;
    let new = topic.ranges()[0].clone();
    topic.add(vec![old.clone()]);
    let looked_at = std::sync::Mutex::new(Vec::new());
    let seen = inner.look(at, |range| {
        topic.add(vec![new.clone()]);
        looked_at.lock().expect("alone").push(std::ptr::from_ref(range));
        range.view(1)
    });
    assert_eq!(seen.expect("there").high_watermark, 6);
    assert_eq!(*looked_at.lock().expect("alone"), [Arc::as_ptr(&old), Arc::as_ptr(&new)]);
    let gone = TopicPartition { topic: id, partition: 2 };
    assert!(matches!(inner.look(gone, |range| range.view(2)), Err(ReadFailure::UnknownPartition)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_follows_its_partitions_to_the_ranges_that_hold_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, id) = written(dir.path(), 2).await;
    let mut watch = node.api().watch(&[0, 1].map(|partition| TopicPartition { topic: id, partition }));
    let woken = async |watch: &mut crate::api::Watch| {
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("woken");
    };
    for text in ["y", "z"] {
        roll_away(&inner(&node), id).await;
        woken(&mut watch).await;
        // The first checkpoint of the new segment wakes too: take what comes until it is quiet.
        while !inner(&node).topic(id).expect("there").ranges()[0].is_idle() {
            tokio::task::yield_now().await;
        }
        while futures_util::FutureExt::now_or_never(watch.changed()).is_some() {}
        append(&node, id, vec![batch(1, 1, None, 100, text)]).await;
        woken(&mut watch).await;
    }
    node.api().delete_topic(id).await.expect("deleted");
    woken(&mut watch).await;
    while futures_util::FutureExt::now_or_never(watch.changed()).is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_range_is_dropped_once_its_partitions_have_passed_it_and_leaves_a_stone() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("retention.check.ms", "20")];
    let mut node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 3, &[("retention.ms", "-1")]).await;
    let api = node.api();
    for i in 0..5 {
        append(&node, id, (0..3).map(|p| batch(p, 1, Some((7, 0, i)), 100, "x")).collect()).await;
    }
    assert_eq!(api.split(id, 0, Some(1)).await.expect("split").state, "done");
    assert_eq!(api.split(id, 2, Some(2)).await.expect("split").state, "done");
    let left = || {
        let mut ids: Vec<u32> = api.range_stats(id).iter().map(|r| r.id).collect();
        ids.sort_unstable();
        ids
    };
    append(&node, id, vec![batch(1, 1, None, 100, "x")]).await;
    let bytes = || {
        let rows = api.range_stats(id).into_iter();
        rows.map(|r| (r.id, r.bytes)).collect::<BTreeMap<u32, u64>>()
    };
    let one = bytes()[&3];
    assert!(one > 0, "{:?}", bytes());
    assert_eq!(bytes(), BTreeMap::from([(0, 15 * one), (1, 0), (2, 0), (3, one), (4, 0)]), "each once");
    for partition in [0, 2] {
        let at = TopicPartition { topic: id, partition };
        assert_eq!(api.delete_records(at, None).await, Ok(5));
    }
    // Passes go on meanwhile; partition 1 is still in r0, and r2 is the way to it.
    let passes = inner(&node);
    for _ in 0..3 {
        passes.retain(&passes.topic(id).expect("there")).await;
    }
    assert_eq!(left(), [0, 1, 2, 3, 4]);
    assert_eq!(read_all(&node, id, 1, 0).await.len(), 6);
    assert_eq!(api.delete_records(TopicPartition { topic: id, partition: 1 }, None).await, Ok(6));
    let until = soon();
    while left().len() > 3 {
        assert!(Instant::now() < until, "{:?}", api.range_stats(id));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stones: Vec<u32> =
        inner(&node).control.read().topics[&id].stones.iter().map(|stone| stone.range.0).collect();
    assert_eq!(stones, [0, 2], "parents first");
    // The control state shows a drop before the primaries have forgotten the segments.
    let own_only = || passes.topic(id).expect("there").ranges().iter().all(|r| r.segments().len() == 1);
    while !own_only() {
        assert!(Instant::now() < until, "segments that were dropped stay in a primary's list");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop((api, passes));
    for _ in 0..2 {
        node.crash().await;
        node = Node::start(options(&[dir.path()], &set)).await.expect("starts again");
        for partition in 0..3 {
            let again = append(&node, id, vec![batch(partition, 1, Some((7, 0, 4)), 100, "x")]).await;
            assert_eq!(base(&again[0]), 4, "sequences outlive the records");
        }
    }
    let next = append(&node, id, vec![batch(1, 1, Some((7, 0, 5)), 100, "y")]).await;
    assert_eq!(base(&next[0]), 6);
    node.stop().await;
}
