//! Splits and merges on a real node: producers and readers go on, offsets and sequences survive, also a crash at any step.

use super::*;
use crate::api::OperationView;
use crate::control::command::{BeginReshard, Command, ParentEnd, Reshard};
use crate::control::propose_one;
use crate::control::state::OperationKind;
use crate::error::ReshardError;
use crate::range::primary::Phase;
use crate::testing::rng::Rng;
use crate::types::{LogletId, RangeId};
use std::sync::atomic::AtomicI64;
use uuid::Uuid;

fn small() -> Vec<(&'static str, &'static str)> {
    vec![("segment.roll.bytes", "256KiB"), ("extent.bytes", "256KiB"), ("memory.tail.bytes", "64KiB")]
}

/// (id, first, last) of the active ranges.
fn layout(node: &Node, topic: TopicId) -> Vec<(u32, i32, i32)> {
    let all = node.api().range_stats(topic);
    all.iter().filter(|r| r.state == "active").map(|r| (r.id, r.first, r.last)).collect()
}

fn done(view: &OperationView, closed: &[u32], created: &[u32]) {
    assert_eq!(view.state, "done", "{view:?}");
    assert_eq!((view.closed.as_slice(), view.created.as_slice()), (closed, created));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_sequences_and_reads_go_on_through_split_and_merge_and_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[]).await;
    let api = node.api();
    for i in 0..5 {
        append(&node, id, (0..4).map(|p| batch(p, 1, Some((7, 0, i)), 100, &format!("{p}/{i}"))).collect())
            .await;
    }
    let epoch = api.offsets(TopicPartition { topic: id, partition: 2 }).expect("known").leader_epoch;
    done(&api.split(id, 0, Some(1)).await.expect("split"), &[0], &[1, 2]);
    assert_eq!(layout(&node, id), [(1, 0, 0), (2, 1, 3)]);
    // A duplicate of what the parent took is answered with its offset, the next sequence goes on.
    let again = append(&node, id, vec![batch(2, 1, Some((7, 0, 4)), 100, "2/4")]).await;
    assert_eq!(base(&again[0]), 4);
    let next = append(&node, id, vec![batch(2, 1, Some((7, 0, 5)), 100, "2/5")]).await;
    assert_eq!(base(&next[0]), 5);
    let gap = append(&node, id, vec![batch(2, 1, Some((7, 0, 9)), 100, "gap")]).await;
    assert!(matches!(gap[0], Appended::Err(AppendError::OutOfOrderSequence { .. })));
    done(&api.split(id, 2, Some(3)).await.expect("split"), &[2], &[3, 4]);
    done(&api.merge(id, 1, 3).await.expect("merge"), &[1, 3], &[5]);
    assert_eq!(layout(&node, id), [(5, 0, 2), (4, 3, 3)]);
    let next = append(&node, id, vec![batch(2, 1, Some((7, 0, 6)), 100, "2/6")]).await;
    assert_eq!(base(&next[0]), 6);
    let now = api.offsets(TopicPartition { topic: id, partition: 2 }).expect("known").leader_epoch;
    assert_eq!(now, epoch, "the owner did not change");
    let expected: Vec<(i64, Vec<u8>)> = (0..7).map(|i| (i, format!("2/{i}").into_bytes())).collect();
    assert_eq!(read_all(&node, id, 2, 0).await, expected);
    drop(api);
    for crash in [true, false, true] {
        if crash {
            node.crash().await;
        } else {
            node.stop().await;
        }
        node = Node::start(options(&[dir.path()], &small())).await.expect("starts again");
        assert_eq!(layout(&node, id), [(5, 0, 2), (4, 3, 3)]);
        assert_eq!(read_all(&node, id, 2, 0).await, expected);
        assert_eq!(read_all(&node, id, 2, 3).await, expected[3..]);
        let again = append(&node, id, vec![batch(2, 1, Some((7, 0, 6)), 100, "2/6")]).await;
        assert_eq!(base(&again[0]), 6, "still a duplicate");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_refused_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 3, &[]).await;
    let api = node.api();
    assert!(matches!(api.split(id, 9, None).await, Err(ReshardError::UnknownRange(9))));
    assert!(matches!(api.split(id, 0, Some(3)).await, Err(ReshardError::Impossible(_))));
    assert!(matches!(api.split(TopicId(Uuid::nil()), 0, None).await, Err(ReshardError::UnknownTopic)));
    let plan = api.preview_split(id, 0, Some(1)).await.expect("possible");
    assert_eq!((plan.closes, plan.creates.len()), (vec![0], 2));
    assert_eq!(layout(&node, id).len(), 1, "a preview changes nothing");
    done(&api.split(id, 0, Some(1)).await.expect("split"), &[0], &[1, 2]);
    assert!(matches!(api.split(id, 0, Some(1)).await, Err(ReshardError::Busy(_))), "closed");
    let single = api.split(id, 1, None).await.expect_err("one partition");
    assert_eq!(single.to_string(), "range 1 holds partition 0 only; a range is split between partitions");
    assert!(matches!(api.merge(id, 2, 1).await, Err(ReshardError::Impossible(_))));
    assert_eq!(api.operations().len(), 1);
    node.stop().await;
}

/// Just after a start, before anybody looked at the segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ranges_store_is_known_at_once_after_a_start_and_a_split_goes_by_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 16, &[]).await;
    let sent = |p: i32, size: usize| batch(p, 1, None, 100, &"x".repeat(size));
    append(&node, id, vec![sent(0, 10)]).await;
    let cut = async |node: &Node| {
        let plan = node.api().preview_split(id, 0, None).await.expect("possible");
        plan.creates[1].first
    };
    assert_eq!(cut(&node).await, 8, "one record decides nothing");
    let all = [sent(12, 900_000), sent(13, 900_000), sent(14, 900_000), sent(15, 900_000)];
    let bytes =
        all.iter().map(|batch| batch.bytes.len() as u64).sum::<u64>() + sent(0, 10).bytes.len() as u64;
    append(&node, id, all.into()).await;
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts again");
    node.api().know_stored(id).await;
    assert_eq!(node.api().range_stats(id)[0].bytes, bytes);
    assert_eq!(cut(&node).await, 14);
    node.stop().await;
}

/// A driver that dies after the intent: the next start finishes the operation, or the running node's pass does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_that_nobody_carries_out_is_finished() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[]).await;
    append(&node, id, (0..4).map(|p| batch(p, 1, None, 1, &format!("{p}"))).collect()).await;
    let intent = |kind| {
        let begin = BeginReshard { operation: Uuid::new_v4(), topic: id, kind, now: 0 };
        Command::BeginReshard(begin)
    };
    let split = intent(OperationKind::Split { range: RangeId(0), at: 2 });
    propose_one(&*node.inner.control, split).await.expect("recorded");
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts again");
    assert_eq!(layout(&node, id), [(1, 0, 1), (2, 2, 3)]);
    let merge = intent(OperationKind::Merge { left: RangeId(1), right: RangeId(2) });
    propose_one(&*node.inner.control, merge).await.expect("recorded");
    let until = soon();
    while layout(&node, id) != [(3, 0, 3)] {
        assert!(Instant::now() < until, "{:?}", node.api().operations());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for p in 0..4 {
        assert_eq!(read_all(&node, id, p, 0).await, [(0, format!("{p}").into_bytes())]);
        assert_eq!(base(&append(&node, id, vec![batch(p, 1, None, 1, "more")]).await[0]), 1);
    }
    node.stop().await;
}

/// What an operator gives up leaves its range as it was: written, and free for another operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_runs_is_given_up_and_its_range_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let (id, api) = (topic(&node, "t", 4, &[]).await, node.api());
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 1, "before")]).await[0]), 0);
    let operation = Uuid::new_v4();
    let kind = OperationKind::Split { range: RangeId(0), at: 2 };
    // Begun in an hour: nobody takes it up meanwhile.
    let begin = BeginReshard { operation, topic: id, kind, now: node.inner.now_ms() + 3_600_000 };
    propose_one(&*node.inner.control, Command::BeginReshard(begin)).await.expect("recorded");
    assert!(matches!(api.split(id, 0, Some(2)).await, Err(ReshardError::Busy(_))));
    for _ in 0..2 {
        let view = api.abort_operation(operation).await.expect("given up, and still so");
        assert_eq!((&*view.state, view.why.as_deref()), ("aborted", Some("given up by an operator")));
        assert_eq!((view.closed, view.created), (vec![], vec![]));
    }
    let counted = api.metrics().into_iter().find(|metric| metric.name == "reshards_aborted_total");
    assert_eq!(counted.map(|metric| metric.value), Some(1.0));
    assert_eq!(layout(&node, id), [(0, 0, 3)]);
    assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 1, "after")]).await[0]), 1);
    done(&api.split(id, 0, Some(2)).await.expect("split"), &[0], &[1, 2]);
    assert!(matches!(api.abort_operation(Uuid::nil()).await, Err(ReshardError::UnknownOperation(_))));
    node.stop().await;
}

/// Whoever recorded the close need not be the one who opens the children (R14): the node does that on seeing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_that_somebody_else_recorded_is_opened_by_the_node_that_it_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", 4, &[]).await;
    append(&node, id, (0..4).map(|p| batch(p, 1, Some((7, 0, 0)), 1, &format!("{p}"))).collect()).await;
    let inner = node.inner.clone();
    let old = inner.topic(id).expect("there").ranges()[0].clone();
    {
        let _layout = inner.layout.lock().await;
        let operation = Uuid::new_v4();
        let kind = OperationKind::Split { range: RangeId(0), at: 2 };
        let begin = BeginReshard { operation, topic: id, kind, now: i64::MAX };
        propose_one(&*inner.control, Command::BeginReshard(begin)).await.expect("recorded");
        let state = inner.control.read();
        let range = state.range(id, RangeId(0)).expect("there").clone();
        let ended = Some(inner.seal(&range).await.expect("sealed"));
        let parents = vec![ParentEnd { range: range.id, version: range.version, ended }];
        let seed = LogletId(state.counters.next_loglet);
        let expression = inner.drive_of(&state.topics[&id]);
        let next = vec![inner.new_segment(&expression, seed).expect("a place"); 2];
        let reshard = Reshard { operation, parents, next, now: 1 };
        propose_one(&*inner.control, Command::Reshard(reshard)).await.expect("recorded");
    }
    let until = soon();
    while old.phase() != Phase::Moved {
        assert!(Instant::now() < until, "recorded and not opened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(layout(&node, id), [(1, 0, 1), (2, 2, 3)]);
    for p in 0..4 {
        let again = append(&node, id, vec![batch(p, 1, Some((7, 0, 0)), 1, &format!("{p}"))]).await;
        assert_eq!(base(&again[0]), 0, "a duplicate of what the parent took");
        let next = append(&node, id, vec![batch(p, 1, Some((7, 0, 1)), 1, "more")]).await;
        assert_eq!(base(&next[0]), 1);
        assert_eq!(read_all(&node, id, p, 0).await.len(), 2);
    }
    drop(inner);
    node.stop().await;
}

/// Producers with several batches in flight, readers behind them, and a random layout that never rests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_and_readers_notice_nothing_while_ranges_split_and_merge() {
    const PARTITIONS: i32 = 8;
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(options(&[dir.path()], &small())).await.expect("starts");
    let id = topic(&node, "t", PARTITIONS, &[]).await;
    let mut sequences = [0i32; PARTITIONS as usize];
    for round in 0..3u64 {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicI64::new(0));
        let reshards = {
            let (api, stop, count) = (node.api(), stop.clone(), count.clone());
            tokio::spawn(async move {
                let mut rng = Rng::new(round + 1);
                while !stop.load(Ordering::Relaxed) {
                    let ranges: Vec<_> =
                        api.range_stats(id).into_iter().filter(|r| r.state == "active").collect();
                    let at = rng.below(ranges.len());
                    let outcome = match (rng.below(2), ranges.get(at + 1)) {
                        (0, Some(right)) => api.merge(id, ranges[at].id, right.id).await,
                        _ if ranges[at].first == ranges[at].last => continue,
                        _ => api.split(id, ranges[at].id, None).await,
                    };
                    assert_eq!(outcome.expect("possible").state, "done");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let producers: Vec<_> = (0..PARTITIONS)
            .map(|p| {
                let api = node.api();
                let (from, lane, count) = (sequences[p as usize], Lane::default(), count.clone());
                tokio::spawn(async move {
                    let mut i = from;
                    while i < from + 60 || count.load(Ordering::Relaxed) < 8 {
                        let mut flying = Vec::new();
                        for n in i..i + 3 {
                            let one = batch(p, 1, Some((9 + i64::from(p), 0, n)), 1, &format!("{p}/{n}"));
                            flying.push((n, api.append(&lane, id, vec![one], soon())));
                        }
                        for (n, pending) in flying {
                            assert_eq!(base(&pending.wait().await.batches[0]), i64::from(n));
                        }
                        i += 3;
                    }
                    i
                })
            })
            .collect();
        for (p, producer) in producers.into_iter().enumerate() {
            sequences[p] = producer.await.expect("every append succeeds");
        }
        stop.store(true, Ordering::Relaxed);
        reshards.await.expect("every split and merge succeeds");
        for p in 0..PARTITIONS {
            let expected: Vec<(i64, Vec<u8>)> =
                (0..sequences[p as usize]).map(|n| (i64::from(n), format!("{p}/{n}").into_bytes())).collect();
            assert_eq!(read_all(&node, id, p, 0).await, expected);
        }
        node.crash().await;
        node = Node::start(options(&[dir.path()], &small())).await.expect("starts again");
    }
    node.stop().await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_ranges_go_when_all_have_passed_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = [("retention.check.ms", "50"), ("extent.bytes", "64KiB"), ("segment.roll.bytes", "64KiB")];
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts");
    let id = topic(&node, "t", 2, &[("retention.ms", "-1")]).await;
    let api = node.api();
    for i in 0..4 {
        append(&node, id, (0..2).map(|p| batch(p, 1, None, 1, &format!("{p}/{i}"))).collect()).await;
    }
    done(&api.split(id, 0, None).await.expect("split"), &[0], &[1, 2]);
    append(&node, id, (0..2).map(|p| batch(p, 1, None, 1, &format!("{p}/4"))).collect()).await;
    let known = |id: u32| node.api().range_stats(id_of(&node)).iter().any(|r| r.id == id);
    fn id_of(node: &Node) -> TopicId {
        *node.api().catalog().by_id.keys().next().expect("a topic")
    }
    api.delete_records(TopicPartition { topic: id, partition: 0 }, Some(4)).await.expect("deleted");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(known(0), "partition 1 still has records in it");
    assert_eq!(read_all(&node, id, 1, 0).await.len(), 5);
    api.delete_records(TopicPartition { topic: id, partition: 1 }, Some(4)).await.expect("deleted");
    let until = soon();
    while known(0) {
        assert!(Instant::now() < until, "the closed range stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(api);
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &set)).await.expect("starts again");
    for p in 0..2 {
        assert_eq!(read_all(&node, id, p, 4).await, [(4, format!("{p}/4").into_bytes())]);
        assert_eq!(base(&append(&node, id, vec![batch(p, 1, None, 1, "next")]).await[0]), 5);
    }
    node.stop().await;
}
