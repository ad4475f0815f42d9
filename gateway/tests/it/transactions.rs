//! Transactions as raw clients of both kinds see them: those that add partitions before they write (KIP-98), and those
//! that add by writing and get a new epoch with each end (KIP-890).

use crate::support::{Batch, Client, Topic, fetch_request, only, produce_request, run, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{GroupId, ProducerId, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Transactional, in a batch's attributes.
const TRANSACTIONAL: i16 = 0x10;

/// How transactional ids of tests begin.
pub const TRANSACTIONAL_MARK: &str = "txn-";

/// Who writes under a transactional id.
#[derive(Clone, Debug)]
pub struct Writer {
    pub id: String,
    pub producer: i64,
    pub epoch: i16,
    pub sequence: i32,
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn txn(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

pub fn fresh() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{TRANSACTIONAL_MARK}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub async fn init(c: &mut Client, version: i16, id: &str, timeout_ms: i32) -> m::InitProducerIdResponse {
    let request = m::InitProducerIdRequest::default()
        .with_transactional_id(Some(txn(id)))
        .with_transaction_timeout_ms(timeout_ms)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    c.call(version, request).await
}

impl Writer {
    pub async fn new(c: &mut Client) -> Writer {
        Writer::of(c, &fresh()).await
    }

    pub async fn of(c: &mut Client, id: &str) -> Writer {
        let answer = init(c, 5, id, 60_000).await;
        assert_eq!(answer.error_code, 0);
        let (producer, epoch) = (answer.producer_id.0, answer.producer_epoch);
        Writer { id: id.to_owned(), producer, epoch, sequence: 0 }
    }

    /// The code of adding partition 0.
    pub async fn add(&self, c: &mut Client, version: i16, topic: &Topic) -> i16 {
        let answer = c.call(version, self.add_request(version, &[(topic.name.as_str(), 0)], false)).await;
        let results = match version {
            0..=3 => answer.results_by_topic_v3_and_below,
            _ => answer.results_by_transaction[0].topic_results.clone(),
        };
        results[0].results_by_partition[0].partition_error_code
    }

    pub fn add_request(
        &self,
        version: i16,
        partitions: &[(&str, i32)],
        verify: bool,
    ) -> m::AddPartitionsToTxnRequest {
        let topics = partitions.iter().map(|(name, partition)| {
            AddPartitionsToTxnTopic::default().with_name(topic_name(name)).with_partitions(vec![*partition])
        });
        let topics = topics.collect();
        if version < 4 {
            return m::AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(txn(&self.id))
                .with_v3_and_below_producer_id(ProducerId(self.producer))
                .with_v3_and_below_producer_epoch(self.epoch)
                .with_v3_and_below_topics(topics);
        }
        let one = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(txn(&self.id))
            .with_producer_id(ProducerId(self.producer))
            .with_producer_epoch(self.epoch)
            .with_verify_only(verify)
            .with_topics(topics);
        m::AddPartitionsToTxnRequest::default().with_transactions(vec![one])
    }

    /// Writes `n` records to partition 0 within the transaction.
    pub async fn write(
        &mut self,
        c: &mut Client,
        version: i16,
        topic: &Topic,
        n: usize,
    ) -> PartitionProduceResponse {
        let batch = Batch { attributes: TRANSACTIONAL, ..Batch::of(n) };
        let batch = batch.by(self.producer, self.epoch, self.sequence).bytes();
        let request =
            produce_request(topic, -1, &[(0, Some(batch))]).with_transactional_id(Some(txn(&self.id)));
        let answer = c.call(version, request).await.responses.remove(0).partition_responses.remove(0);
        if answer.error_code == 0 {
            self.sequence += n as i32;
        }
        answer
    }

    pub async fn end(&self, c: &mut Client, version: i16, commit: bool) -> m::EndTxnResponse {
        let request = m::EndTxnRequest::default()
            .with_transactional_id(txn(&self.id))
            .with_producer_id(ProducerId(self.producer))
            .with_producer_epoch(self.epoch)
            .with_committed(commit);
        c.call(version, request).await
    }

    /// Ends by the newer rules and goes on under the new epoch.
    pub async fn end_and_go_on(&mut self, c: &mut Client, commit: bool) {
        let answer = self.end(c, 5, commit).await;
        assert_eq!(answer.error_code, 0);
        assert_eq!((answer.producer_id.0, answer.producer_epoch), (self.producer, self.epoch + 1));
        self.epoch += 1;
        self.sequence = 0;
    }

    pub async fn state(&self, c: &mut Client) -> m::describe_transactions_response::TransactionState {
        let request = m::DescribeTransactionsRequest::default().with_transactional_ids(vec![txn(&self.id)]);
        c.call(0, request).await.transaction_states.remove(0)
    }

    /// Waits until the transaction stands there.
    pub async fn until(&self, c: &mut Client, state: &str) {
        loop {
            let described = self.state(c).await;
            assert_eq!(described.error_code, 0);
            if described.transaction_state.as_str() == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn commit_offset(
        &self,
        c: &mut Client,
        version: i16,
        group: &str,
        topic: &Topic,
        offset: i64,
    ) -> i16 {
        let partition =
            TxnOffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(offset);
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(&topic.name))
            .with_partitions(vec![partition]);
        let request = m::TxnOffsetCommitRequest::default()
            .with_transactional_id(txn(&self.id))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(ProducerId(self.producer))
            .with_producer_epoch(self.epoch)
            .with_topics(vec![topic]);
        c.call(version, request).await.topics[0].partitions[0].error_code
    }

    pub async fn add_offsets(&self, c: &mut Client, version: i16, group: &str) -> i16 {
        let request = m::AddOffsetsToTxnRequest::default()
            .with_transactional_id(txn(&self.id))
            .with_producer_id(ProducerId(self.producer))
            .with_producer_epoch(self.epoch)
            .with_group_id(GroupId(text(group)));
        c.call(version, request).await.error_code
    }
}

/// Committed offset of partition 0, or the code that stands in its place.
pub async fn offset(c: &mut Client, group: &str, topic: &Topic, stable: bool) -> Result<i64, i16> {
    let wanted = OffsetFetchRequestTopics::default()
        .with_name(topic_name(&topic.name))
        .with_partition_indexes(vec![0]);
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(Some(vec![wanted]));
    let request = m::OffsetFetchRequest::default().with_require_stable(stable).with_groups(vec![group]);
    let answer = c.call(8, request).await;
    let partition = &answer.groups[0].topics[0].partitions[0];
    match partition.error_code {
        0 => Ok(partition.committed_offset),
        code => Err(code),
    }
}

/// High watermark, last stable offset, and (producer, first offset) of aborted transactions, of a reader that wants what
/// is committed, from an offset on.
pub async fn committed(c: &mut Client, topic: &Topic, from: i64) -> (i64, i64, Vec<(i64, i64)>) {
    let read = only(&c.call(12, fetch_request(topic, &[(0, from)]).with_isolation_level(1)).await);
    assert_eq!(read.error_code, 0);
    let aborted = read.aborted_transactions.unwrap_or_default();
    let aborted = aborted.iter().map(|t| (t.producer_id.0, t.first_offset)).collect();
    (read.high_watermark, read.last_stable_offset, aborted)
}

/// Producer id, epoch, last sequence and first offset of the open transaction, of partition 0.
pub async fn producers(c: &mut Client, topic: &Topic) -> Vec<(i64, i32, i32, i64)> {
    let asked = TopicRequest::default().with_name(topic_name(&topic.name)).with_partition_indexes(vec![0, 9]);
    let answer = c.call(0, m::DescribeProducersRequest::default().with_topics(vec![asked])).await;
    let partitions = &answer.topics[0].partitions;
    assert_eq!((partitions[0].error_code, partitions[1].error_code), (0, 3));
    let producers = partitions[0].active_producers.iter();
    let shown =
        producers.map(|p| (p.producer_id.0, p.producer_epoch, p.last_sequence, p.current_txn_start_offset));
    shown.collect()
}

#[test]
fn partitions_that_were_added_are_committed_and_aborted() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(&mut c).await;
        assert_eq!(w.add(&mut c, 0, &t).await, 0);
        assert_eq!(w.write(&mut c, 10, &t, 2).await.base_offset, 0);
        assert_eq!(w.write(&mut c, 10, &t, 1).await.base_offset, 2);
        assert_eq!(committed(&mut c, &t, 0).await, (3, 0, vec![]), "nothing is stable yet");
        assert_eq!(w.end(&mut c, 1, true).await.error_code, 0);
        w.until(&mut c, "CompleteCommit").await;
        assert_eq!(committed(&mut c, &t, 0).await, (4, 4, vec![]), "the marker takes an offset");
        assert_eq!(w.end(&mut c, 1, true).await.error_code, 0, "asked again");
        assert_eq!(w.end(&mut c, 1, false).await.error_code, 48);

        assert_eq!(w.write(&mut c, 10, &t, 1).await.error_code, 48, "the next one has no partition yet");
        assert_eq!(w.add(&mut c, 3, &t).await, 0);
        assert_eq!(w.write(&mut c, 11, &t, 1).await.base_offset, 4);
        assert_eq!(w.end(&mut c, 4, false).await.error_code, 0);
        w.until(&mut c, "CompleteAbort").await;
        assert_eq!(committed(&mut c, &t, 0).await, (6, 6, vec![(w.producer, 4)]));
    });
}

#[test]
fn writing_adds_partitions_and_each_end_gives_another_epoch() {
    run(async {
        let mut c = Client::new().await;
        let (t, u) = (c.topic(1, &[]).await, c.topic(1, &[]).await);
        let mut w = Writer::new(&mut c).await;
        assert_eq!(w.write(&mut c, 12, &t, 1).await.base_offset, 0);
        let described = w.state(&mut c).await;
        assert_eq!(described.transaction_state.as_str(), "Ongoing");
        assert_eq!((described.topics.len(), described.topics[0].topic.as_str()), (1, t.name.as_str()));
        w.end_and_go_on(&mut c, true).await;
        let next = w.write(&mut c, 13, &t, 2).await;
        assert_eq!((next.error_code, next.base_offset), (0, 2));
        assert_eq!(
            w.write(&mut c, 13, &u, 1).await.error_code,
            45,
            "sequences begin with 0 in each partition"
        );
        w.sequence = 0;
        assert_eq!(w.write(&mut c, 13, &u, 1).await.base_offset, 0);
        w.end_and_go_on(&mut c, false).await;
        w.until(&mut c, "CompleteAbort").await;
        assert_eq!(committed(&mut c, &t, 0).await, (5, 5, vec![(w.producer, 2)]));
        assert_eq!(committed(&mut c, &u, 0).await, (2, 2, vec![(w.producer, 0)]));
        let mut before = Writer { epoch: w.epoch - 1, ..w.clone() };
        assert_eq!(before.write(&mut c, 12, &t, 1).await.error_code, 47);
        let again = before.end(&mut c, 5, false).await;
        assert_eq!((again.error_code, again.producer_epoch), (0, w.epoch), "asked again");
        assert_eq!(before.end(&mut c, 5, true).await.error_code, 48);
    });
}

#[test]
fn what_was_not_added_is_refused_as_each_version_knows_it() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(&mut c).await;
        for (version, code) in [(3, 48), (10, 48), (11, 120)] {
            let refused = w.write(&mut c, version, &t, 1).await;
            assert_eq!(refused.error_code, code, "v{version}");
            if version >= 8 {
                let why = refused.error_message.unwrap_or_default();
                assert_eq!(why.as_str(), "Partition was not added to the transaction");
            }
        }
        let mut unknown = Writer { id: fresh(), ..w.clone() };
        assert_eq!(unknown.write(&mut c, 12, &t, 1).await.error_code, 49);
        assert_eq!(unknown.add(&mut c, 3, &t).await, 49);
        assert_eq!(unknown.end(&mut c, 4, true).await.error_code, 49);
        let read = only(&c.call(12, fetch_request(&t, &[(0, 0)])).await);
        assert_eq!(read.high_watermark, 0, "nothing was stored");
    });
}

#[test]
fn partitions_are_added_all_or_none() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let w = Writer::new(&mut c).await;
        let request = w.add_request(3, &[(&t.name, 0), ("none", 0), (&t.name, 7)], false);
        let answer = c.call(3, request).await;
        let codes: Vec<i16> = answer
            .results_by_topic_v3_and_below
            .iter()
            .map(|t| t.results_by_partition[0].partition_error_code)
            .collect();
        assert_eq!(codes, [55, 3, 3]);
        assert_eq!(w.state(&mut c).await.transaction_state.as_str(), "Empty");
        for (verify, code) in [(true, 120), (false, 0), (true, 0)] {
            let answer = c.call(5, w.add_request(5, &[(&t.name, 0)], verify)).await;
            let results = &answer.results_by_transaction[0].topic_results[0].results_by_partition;
            assert_eq!(results[0].partition_error_code, code, "verify {verify}");
        }
    });
}

#[test]
fn ends_without_a_transaction_go_by_their_version() {
    run(async {
        let mut c = Client::new().await;
        let w = Writer::new(&mut c).await;
        assert_eq!(w.end(&mut c, 4, true).await.error_code, 48);
        assert_eq!(w.end(&mut c, 4, false).await.error_code, 48);
        assert_eq!(w.end(&mut c, 5, true).await.error_code, 48);
        let aborted = w.end(&mut c, 5, false).await;
        assert_eq!((aborted.error_code, aborted.producer_epoch), (0, w.epoch + 1));
    });
}

#[test]
fn a_second_producer_fences_the_first() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut first = Writer::new(&mut c).await;
        assert_eq!(first.write(&mut c, 12, &t, 1).await.error_code, 0);
        let meanwhile = init(&mut c, 5, &first.id, 60_000).await;
        assert_eq!((meanwhile.error_code, meanwhile.producer_id.0, meanwhile.producer_epoch), (51, -1, -1));
        first.until(&mut c, "CompleteAbort").await;
        let mut second = Writer::of(&mut c, &first.id).await;
        assert_eq!((second.producer, second.epoch), (first.producer, first.epoch + 2));
        assert_eq!(first.write(&mut c, 12, &t, 1).await.error_code, 47);
        assert_eq!(first.write(&mut c, 10, &t, 1).await.error_code, 47);
        for (version, code) in [(0, 47), (1, 47), (2, 90), (4, 90), (5, 90)] {
            assert_eq!(first.end(&mut c, version, true).await.error_code, code, "EndTxn v{version}");
        }
        for (version, code) in [(0, 47), (1, 47), (2, 90), (3, 90)] {
            assert_eq!(first.add(&mut c, version, &t).await, code, "AddPartitionsToTxn v{version}");
            assert_eq!(first.add_offsets(&mut c, version, "g").await, code, "AddOffsetsToTxn v{version}");
        }
        assert_eq!(second.write(&mut c, 12, &t, 1).await.error_code, 0);
        second.end_and_go_on(&mut c, true).await;
        second.until(&mut c, "CompleteCommit").await;
        assert_eq!(committed(&mut c, &t, 0).await, (4, 4, vec![(first.producer, 0)]));
    });
}

#[test]
fn a_producer_may_go_on_under_the_next_epoch() {
    run(async {
        let mut c = Client::new().await;
        let w = Writer::new(&mut c).await;
        let go_on = |epoch| {
            m::InitProducerIdRequest::default()
                .with_transactional_id(Some(txn(&w.id)))
                .with_transaction_timeout_ms(60_000)
                .with_producer_id(ProducerId(w.producer))
                .with_producer_epoch(epoch)
        };
        for _ in 0..2 {
            let next = c.call(4, go_on(w.epoch)).await;
            assert_eq!((next.error_code, next.producer_epoch), (0, w.epoch + 1));
        }
        assert_eq!(c.call(4, go_on(w.epoch + 1)).await.producer_epoch, w.epoch + 2);
        assert_eq!(c.call(4, go_on(w.epoch)).await.error_code, 90);
        assert_eq!(c.call(3, go_on(w.epoch)).await.error_code, 47);
        for (timeout_ms, code) in [(900_001, 50), (0, 50), (900_000, 0)] {
            assert_eq!(init(&mut c, 5, &w.id, timeout_ms).await.error_code, code, "{timeout_ms} ms");
        }
        assert_eq!(init(&mut c, 5, "", 1).await.error_code, 42);
    });
}

#[test]
fn offsets_count_once_their_transaction_commits() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(&mut c).await;
        let group = fresh();
        assert_eq!(w.commit_offset(&mut c, 3, &group, &t, 5).await, 48, "the group was not added");
        assert_eq!(w.commit_offset(&mut c, 4, &group, &t, 5).await, 120, "the group was not added");
        assert_eq!(w.add_offsets(&mut c, 3, &group).await, 0);
        assert_eq!(w.commit_offset(&mut c, 3, &group, &t, 5).await, 0);
        assert_eq!(offset(&mut c, &group, &t, true).await, Err(88));
        assert_eq!(offset(&mut c, &group, &t, false).await, Ok(-1));
        assert_eq!(w.end(&mut c, 1, true).await.error_code, 0);
        w.until(&mut c, "CompleteCommit").await;
        assert_eq!(offset(&mut c, &group, &t, true).await, Ok(5));

        assert_eq!(w.commit_offset(&mut c, 5, &group, &t, 9).await, 0, "committing adds the group");
        assert_eq!(offset(&mut c, &group, &t, true).await, Err(88));
        w.end_and_go_on(&mut c, false).await;
        w.until(&mut c, "CompleteAbort").await;
        assert_eq!(offset(&mut c, &group, &t, true).await, Ok(5));

        assert_eq!(w.commit_offset(&mut c, 5, &group, &t, 9).await, 0);
        w.end_and_go_on(&mut c, true).await;
        w.until(&mut c, "CompleteCommit").await;
        assert_eq!(offset(&mut c, &group, &t, true).await, Ok(9));
        let before = Writer { epoch: w.epoch - 1, ..w.clone() };
        assert_eq!(before.commit_offset(&mut c, 5, &group, &t, 1).await, 47);
    });
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let id = fresh();
        let answer = init(&mut c, 5, &id, 200).await;
        let (producer, epoch) = (answer.producer_id.0, answer.producer_epoch);
        let mut w = Writer { id, producer, epoch, sequence: 0 };
        let group = fresh();
        assert_eq!(w.write(&mut c, 12, &t, 1).await.error_code, 0);
        assert_eq!(w.commit_offset(&mut c, 5, &group, &t, 9).await, 0);
        w.until(&mut c, "CompleteAbort").await;
        assert_eq!(committed(&mut c, &t, 0).await, (2, 2, vec![(producer, 0)]));
        assert_eq!(offset(&mut c, &group, &t, true).await, Ok(-1));
        assert_eq!(w.write(&mut c, 12, &t, 1).await.error_code, 47);
        assert_eq!(w.end(&mut c, 5, true).await.error_code, 48);
        assert_eq!(w.end(&mut c, 1, true).await.error_code, 47);
    });
}

#[test]
fn transactions_are_described_and_listed() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(2, &[]).await;
        let mut w = Writer::new(&mut c).await;
        assert_eq!(w.write(&mut c, 12, &t, 1).await.error_code, 0);
        let described = w.state(&mut c).await;
        assert_eq!((described.error_code, described.transaction_timeout_ms), (0, 60_000));
        assert_eq!((described.producer_id.0, described.producer_epoch), (w.producer, w.epoch));
        assert!(described.transaction_start_time_ms > 0);
        assert_eq!(described.topics[0].partitions, [0]);
        let unknown = Writer { id: fresh(), ..w.clone() };
        assert_eq!(unknown.state(&mut c).await.error_code, 105);
        let nameless = Writer { id: String::new(), ..w.clone() };
        assert_eq!(nameless.state(&mut c).await.error_code, 42);

        let list = m::ListTransactionsRequest::default()
            .with_state_filters(vec![text("Ongoing"), text("Nonsense")])
            .with_producer_id_filters(vec![ProducerId(w.producer)])
            .with_duration_filter(-1)
            .with_transactional_id_pattern(Some(text("txn-[0-9]+")));
        let answer = c.call(2, list.clone()).await;
        assert_eq!((answer.error_code, answer.unknown_state_filters), (0, vec![text("Nonsense")]));
        let rows: Vec<_> = answer.transaction_states.iter().map(|s| s.transactional_id.to_string()).collect();
        assert_eq!(rows, [w.id.clone()]);
        let none = c.call(2, list.clone().with_transactional_id_pattern(Some(text("txn")))).await;
        assert!(none.transaction_states.is_empty());
        assert_eq!(c.call(2, list.with_transactional_id_pattern(Some(text("(")))).await.error_code, 128);
        w.end_and_go_on(&mut c, true).await;
        w.until(&mut c, "CompleteCommit").await;
        assert!(w.state(&mut c).await.topics.is_empty());
    });
}

#[test]
fn a_tool_may_end_a_transaction_in_one_partition() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut w = Writer::new(&mut c).await;
        assert_eq!(w.write(&mut c, 12, &t, 1).await.error_code, 0);
        assert_eq!(committed(&mut c, &t, 0).await.1, 0);
        assert_eq!(producers(&mut c, &t).await, [(w.producer, i32::from(w.epoch), 0, 0)]);
        let topic = |name: &str| {
            WritableTxnMarkerTopic::default().with_name(topic_name(name)).with_partition_indexes(vec![0])
        };
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(w.producer))
            .with_producer_epoch(w.epoch)
            .with_transaction_result(false)
            .with_coordinator_epoch(0)
            .with_topics(vec![topic(&t.name), topic("none")]);
        let answer = c.call(1, m::WriteTxnMarkersRequest::default().with_markers(vec![marker])).await;
        let codes: Vec<i16> = answer.markers[0].topics.iter().map(|t| t.partitions[0].error_code).collect();
        assert_eq!(codes, [0, 3]);
        assert_eq!(committed(&mut c, &t, 0).await, (2, 2, vec![(w.producer, 0)]));
        let open: Vec<i64> = producers(&mut c, &t).await.iter().map(|(_, _, _, start)| *start).collect();
        assert_eq!(open, [-1], "nothing hangs");
        assert_eq!(w.end(&mut c, 1, true).await.error_code, 0, "its coordinator goes on all the same");
        w.until(&mut c, "CompleteCommit").await;
    });
}

#[test]
fn the_coordinator_of_a_transactional_id_is_this_node() {
    run(async {
        let mut c = Client::new().await;
        for version in 1..=3 {
            let request = m::FindCoordinatorRequest::default().with_key(text("t")).with_key_type(1);
            let found = c.call(version, request).await;
            assert_eq!((found.error_code, found.node_id.0), (0, 7));
        }
        for version in 4..=6 {
            let request =
                m::FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(vec![text("t")]);
            let found = c.call(version, request).await;
            assert_eq!((found.coordinators[0].error_code, found.coordinators[0].node_id.0), (0, 7));
        }
    });
}

#[test]
fn features_say_that_writing_adds_partitions() {
    run(async {
        let mut c = Client::new().await;
        for version in [3, 4] {
            let word = StrBytes::from_static_str("it");
            let request = m::ApiVersionsRequest::default()
                .with_client_software_name(word.clone())
                .with_client_software_version(word);
            let answer = c.call(version, request).await;
            let finalized =
                answer.finalized_features.iter().find(|f| f.name.as_str() == "transaction.version");
            assert_eq!(finalized.map(|f| (f.min_version_level, f.max_version_level)), Some((2, 2)));
            let supported =
                answer.supported_features.iter().find(|f| f.name.as_str() == "transaction.version");
            let supported = supported.map(|f| (f.min_version, f.max_version));
            assert_eq!(supported, (version >= 4).then_some((0, 2)), "v3 cannot say 0");
        }
    });
}
