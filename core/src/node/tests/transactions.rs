//! Transactions on a real node: what committed readers see, through splits, merges and restarts.

use super::*;
use crate::api::{AbortedTransaction, Isolation, Marker, ProducerView, TransactionVersion};
use crate::testing::batch::transactional;

fn txn(partition: i32, id: i64, epoch: i16, sequence: i32) -> AppendBatch {
    transactional(partition, 1, (id, epoch, sequence), 100, &format!("{id}/{epoch}/{sequence}"))
}

fn marker(producer_id: i64, number: u64, producer_epoch: i16, commit: bool) -> Marker {
    let (coordinator_epoch, version) = (3, TransactionVersion::V2);
    Marker { producer_id, producer_epoch, coordinator_epoch, number, commit, version }
}

/// Offset after what a committed reader gets from `offset` on, the offsets it is told, and what was aborted there.
async fn committed(
    node: &Node,
    at: TopicPartition,
    offset: i64,
    max_bytes: usize,
) -> (i64, (i64, i64), Vec<(i64, i64)>) {
    let TopicPartition { topic, partition } = at;
    let from = ReadFrom { topic, partition, offset, max_bytes, isolation: Isolation::Committed };
    let read = node.api().read(&[from], 1 << 20).await.remove(0).expect("readable");
    let aborted = |one: AbortedTransaction| (one.producer_id, one.first_offset);
    let offsets = (read.offsets.high_watermark, read.offsets.last_stable);
    (read.next_offset, offsets, read.aborted.into_iter().map(aborted).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_readers_see_ended_transactions_through_split_and_merge_and_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(options(&[dir.path()], &[("extent.bytes", "256KiB")])).await.expect("starts");
    let id = topic(&node, "t", 2, &[]).await;
    let at = TopicPartition { topic: id, partition: 1 };
    for (batch, offset) in [txn(1, 5, 0, 0), txn(1, 6, 0, 0), txn(1, 5, 0, 1)].into_iter().zip(0..) {
        assert_eq!(base(&append(&node, id, vec![batch]).await[0]), offset);
    }
    assert_eq!(committed(&node, at, 0, 1 << 20).await, (0, (3, 0), vec![]), "both are open");
    let open = node.api().metrics().into_iter().find(|metric| metric.name == "transactions_open");
    assert_eq!(open.map(|metric| metric.value), Some(2.0));
    assert_eq!(read_all(&node, id, 1, 0).await.len(), 3);
    node.api().split(id, 0, Some(1)).await.expect("split");
    node.api().write_marker(at, marker(5, 1, 1, false), soon()).await.expect("the child takes it");
    assert_eq!(committed(&node, at, 0, 1 << 20).await, (1, (4, 1), vec![(5, 0)]));
    let copy = node.api().write_marker(at, marker(5, 1, 1, false), soon()).await;
    assert_eq!((copy, node.api().offsets(at).expect("known").high_watermark), (Ok(()), 4), "known");
    node.api().merge(id, 1, 2).await.expect("merge");
    let late = append(&node, id, vec![txn(1, 5, 0, 2)]).await;
    assert!(matches!(late[0], Appended::Err(AppendError::ProducerFenced { got: 0, current: 1 })), "{late:?}");
    node.stop().await;
    node = Node::start(options(&[dir.path()], &[("extent.bytes", "256KiB")])).await.expect("starts again");
    assert_eq!(committed(&node, at, 0, 1 << 20).await, (1, (4, 1), vec![(5, 0)]));
    assert_eq!(committed(&node, at, 3, 1 << 20).await, (3, (4, 1), vec![]), "above the last stable offset");
    node.api().write_marker(at, marker(6, 1, 1, true), soon()).await.expect("taken");
    node.api().write_marker(at, marker(5, 1, 1, false), soon()).await.expect("known after a restart");
    assert_eq!(committed(&node, at, 0, 1 << 20).await, (5, (5, 5), vec![(5, 0)]));
    assert_eq!(committed(&node, at, 2, 1 << 20).await, (5, (5, 5), vec![(5, 0)]), "it began before");
    assert_eq!(committed(&node, at, 4, 1 << 20).await, (5, (5, 5), vec![]), "behind its marker");
    assert_eq!(committed(&node, at, 0, 1).await, (1, (5, 5), vec![(5, 0)]), "one batch");
    let producers = node.api().producers(at).expect("known");
    let expected = |producer_id| ProducerView {
        producer_id,
        epoch: 1,
        last_sequence: -1,
        last_timestamp: 0,
        coordinator_epoch: 3,
        transaction_start: -1,
    };
    let timeless = |view: ProducerView| ProducerView { last_timestamp: 0, ..view };
    assert_eq!(producers.into_iter().map(timeless).collect::<Vec<_>>(), [expected(5), expected(6)]);
    let outside = TopicPartition { topic: id, partition: 2 };
    let unknown = node.api().write_marker(outside, marker(5, 2, 2, true), soon()).await;
    assert_eq!(unknown, Err(AppendError::UnknownPartition));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_stable_offset_is_never_below_the_log_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    let at = TopicPartition { topic: id, partition: 0 };
    append(&node, id, (0..4).map(|n| txn(0, 5, 0, n)).collect()).await;
    assert_eq!(node.api().delete_records(at, Some(2)).await.expect("deleted"), 2);
    let offsets = node.api().offsets(at).expect("known");
    assert_eq!((offsets.log_start, offsets.last_stable, offsets.high_watermark), (2, 2, 4));
    assert_eq!(committed(&node, at, 2, 1 << 20).await, (2, (4, 2), vec![]));
    node.api().write_marker(at, marker(5, 1, 1, false), soon()).await.expect("taken");
    assert_eq!(committed(&node, at, 2, 1 << 20).await, (5, (5, 5), vec![(5, 0)]));
    node.stop().await;
}
