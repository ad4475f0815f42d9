//! Transactions: producers of both kinds, their coordinator, and what tools see of them.

use super::proofs;
use crate::support::topic_name;
use crate::transactions::{TRANSACTIONAL_MARK, Writer, committed, fresh, init, offset, producers, text};
use kafka_protocol::messages as m;
use kafka_protocol::messages::ProducerId;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};

proofs! {
    a_transactional_producer_is_known_by_its_id: InitProducerIdRequest 0..=5, |c, version| {
        let id = fresh();
        let first = init(c, version, &id, 60_000).await;
        let second = init(c, version, &id, 60_000).await;
        assert_eq!((first.error_code, second.error_code), (0, 0));
        assert_eq!((second.producer_id, second.producer_epoch), (first.producer_id, first.producer_epoch + 1));
    }
    a_partition_takes_part: AddPartitionsToTxnRequest 0..=5, |c, version| {
        let t = c.topic(1, &[]).await;
        let w = Writer::new(c).await;
        assert_eq!(w.add(c, version, &t).await, 0);
        let described = w.state(c).await;
        assert_eq!((described.transaction_state.as_str(), &described.topics[0].partitions[..]), ("Ongoing", &[0][..]));
    }
    a_groups_offsets_take_part: AddOffsetsToTxnRequest 0..=4, |c, version| {
        let t = c.topic(1, &[]).await;
        let (w, group) = (Writer::new(c).await, fresh());
        assert_eq!(w.add_offsets(c, version, &group).await, 0);
        assert_eq!(w.commit_offset(c, 3, &group, &t, 5).await, 0);
    }
    a_transaction_commits: EndTxnRequest 0..=5, |c, version| {
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(c).await;
        assert_eq!(w.write(c, 12, &t, 1).await.error_code, 0);
        let ended = w.end(c, version, true).await;
        let next = if version >= 5 { (w.producer, w.epoch + 1) } else { (-1, -1) };
        assert_eq!((ended.error_code, (ended.producer_id.0, ended.producer_epoch)), (0, next));
        w.until(c, "CompleteCommit").await;
        assert_eq!(committed(c, &t, 0).await, (2, 2, vec![]));
    }
    a_transaction_is_ended_in_one_partition: WriteTxnMarkersRequest 1..=1, |c, version| {
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(c).await;
        assert_eq!(w.write(c, 12, &t, 1).await.error_code, 0);
        let topic = WritableTxnMarkerTopic::default().with_name(topic_name(&t.name)).with_partition_indexes(vec![0]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(w.producer))
            .with_producer_epoch(w.epoch)
            .with_topics(vec![topic]);
        let answer = c.call(version, m::WriteTxnMarkersRequest::default().with_markers(vec![marker])).await;
        assert_eq!(answer.markers[0].topics[0].partitions[0].error_code, 0);
        assert_eq!(committed(c, &t, 0).await, (2, 2, vec![(w.producer, 0)]));
    }
    an_offset_counts_with_its_transaction: TxnOffsetCommitRequest 0..=5, |c, version| {
        let t = c.topic(1, &[]).await;
        let (w, group) = (Writer::new(c).await, fresh());
        if version < 5 {
            assert_eq!(w.add_offsets(c, 3, &group).await, 0);
        }
        assert_eq!(w.commit_offset(c, version, &group, &t, 5).await, 0);
        assert_eq!(offset(c, &group, &t, true).await, Err(88));
        assert_eq!(w.end(c, if version < 5 { 4 } else { 5 }, true).await.error_code, 0);
        w.until(c, "CompleteCommit").await;
        assert_eq!(offset(c, &group, &t, true).await, Ok(5));
    }
    who_writes_is_shown: DescribeProducersRequest 0..=0, |c, version| {
        assert_eq!(version, 0);
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(c).await;
        assert_eq!(w.write(c, 12, &t, 3).await.error_code, 0);
        assert_eq!(producers(c, &t).await, [(w.producer, i32::from(w.epoch), 2, 0)]);
    }
    a_transaction_is_described: DescribeTransactionsRequest 0..=0, |c, version| {
        assert_eq!(version, 0);
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(c).await;
        assert_eq!(w.write(c, 12, &t, 1).await.error_code, 0);
        let described = w.state(c).await;
        assert_eq!((described.error_code, described.transaction_state.as_str()), (0, "Ongoing"));
        assert_eq!((described.producer_id.0, described.topics[0].topic.as_str()), (w.producer, t.name.as_str()));
    }
    transactions_are_listed: ListTransactionsRequest 0..=2, |c, version| {
        let w = Writer::new(c).await;
        let mut request = m::ListTransactionsRequest::default().with_producer_id_filters(vec![ProducerId(w.producer)]);
        if version >= 2 {
            request = request.with_transactional_id_pattern(Some(text(&format!("{TRANSACTIONAL_MARK}.*"))));
        }
        let listed = c.call(version, request).await;
        let rows: Vec<_> = listed.transaction_states.iter().map(|s| (s.transactional_id.as_str(), s.transaction_state.as_str())).collect();
        assert_eq!((listed.error_code, rows), (0, vec![(w.id.as_str(), "Empty")]));
    }
}
