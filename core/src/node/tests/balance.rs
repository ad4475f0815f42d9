//! Splits and merges by load, with windows of tenths of seconds.

use super::*;
use crate::types::RangeId;
use std::ops::ControlFlow;

const SMALL: &[(&str, &str)] = &[
    ("rangeway.reshard.bytes.per.second", "20000"),
    ("rangeway.reshard.records.per.second", "0"),
    ("rangeway.reshard.window.ms", "600"),
    ("rangeway.reshard.cool.down.ms", "600"),
    ("rangeway.reshard.ranges.max", "3"),
];

fn configs(mode: &'static str) -> Vec<(&'static str, &'static str)> {
    [SMALL, &[("rangeway.reshard", mode)]].concat()
}

fn ranges(node: &Node, id: TopicId) -> Vec<RangeId> {
    node.api().node.topic(id).expect("there").ranges().iter().map(|range| range.id).collect()
}

fn metric(node: &Node, name: &str, kind: &str) -> f64 {
    let metrics = node.api().metrics();
    let found = metrics.iter().find(|m| m.name == name && m.labels.iter().any(|(_, value)| value == kind));
    found.unwrap_or_else(|| panic!("no metric {name}")).value
}

/// Appends to all partitions, or waits, until `step` has seen what it waits for. Returns the turns with appends.
async fn until(
    node: &Node,
    id: TopicId,
    text: Option<&str>,
    mut step: impl FnMut(usize) -> ControlFlow<()>,
) -> usize {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut turns = 0;
    while step(turns).is_continue() {
        assert!(Instant::now() < deadline, "never: {:?}", node.api().reshard_advice(id));
        if let Some(text) = text {
            let batches = (0..4).map(|partition| batch(partition, 1, None, 100, text)).collect();
            append(node, id, batches).await.iter().for_each(|outcome| {
                base(outcome);
            });
            turns += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    turns
}

fn seen(is: bool) -> ControlFlow<()> {
    if is { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_topic_splits_by_itself_and_becomes_one_range_when_it_is_cold() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 4, &configs("on")).await;
    let text = "x".repeat(4000);
    let mut most = 1;
    let turns = until(&node, id, Some(&text), |_| {
        most = most.max(ranges(&node, id).len());
        seen(most == 3)
    })
    .await;
    until(&node, id, None, |_| seen(ranges(&node, id).len() == 1)).await;
    for partition in 0..4 {
        let read = read_all(&node, id, partition, 0).await;
        let offsets: Vec<i64> = read.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (0..turns as i64).collect::<Vec<_>>(), "each record once, in order");
    }
    // A machine that stands still for a while makes a topic cold, so there may have been more of both.
    let begun = ["split", "merge"].map(|kind| metric(&node, "reshard_decisions_total", kind));
    assert!(begun[0] >= 2.0 && begun[1] >= 2.0, "{begun:?}");
    assert_eq!(metric(&node, "reshard_advice", "split"), 0.0, "what is done is not advised");
    let advice = node.api().reshard_advice(id).expect("a client's topic");
    assert_eq!((advice.mode.as_str(), advice.lines.len()), ("on", 1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advice_is_said_and_not_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 4, &configs("advise")).await;
    let text = "x".repeat(4000);
    let mut said = String::new();
    until(&node, id, Some(&text), |_| {
        let advice = node.api().reshard_advice(id).expect("a client's topic");
        let line = advice.lines.into_iter().find(|line| line.starts_with("A split is advised: Range 0 has "));
        said = line.unwrap_or_default();
        seen(!said.is_empty() && metric(&node, "reshard_advice", "split") == 1.0)
    })
    .await;
    assert!(said.contains("the target of 19.5 KiB/s; a split at partition 2 leaves "), "{said}");
    assert_eq!(ranges(&node, id), [RangeId(0)]);
    assert_eq!(metric(&node, "reshard_decisions_total", "split"), 0.0);
    // The advice goes with its cause, and at once when it is switched off.
    until(&node, id, None, |_| seen(metric(&node, "reshard_advice", "split") == 0.0)).await;
    node.stop().await;
}
