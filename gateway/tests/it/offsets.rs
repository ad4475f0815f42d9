//! ListOffsets and OffsetForLeaderEpoch.

use crate::support::{
    Batch, Client, Topic, batches, end_transaction, in_transaction, now_ms, run, topic_name,
};
use bytes::Bytes;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest};
use rangeway_core::api::batch::BatchHead;

async fn list(c: &mut Client, version: i16, t: &Topic, timestamp: i64) -> (i16, i64, i64) {
    list_as(c, version, t, timestamp, 0).await
}

async fn list_as(c: &mut Client, version: i16, t: &Topic, timestamp: i64, isolation: i8) -> (i16, i64, i64) {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let request = request.with_isolation_level(isolation);
    let response = c.call(version, request).await;
    let p = &response.topics[0].partitions[0];
    (p.error_code, p.timestamp, p.offset)
}

#[test]
fn special_timestamps_of_a_log_of_six_records() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        for times in [vec![1000, 1100], vec![2000, 2100], vec![3000, 3100]] {
            assert_eq!(c.produce(&t, Batch::at(times).bytes()).await.error_code, 0);
        }
        let cases = [
            (-1, (0, -1, 6)),
            (-2, (0, -1, 0)),
            (-3, (0, 3100, 5)),
            (-4, (0, -1, 0)),
            (-5, (0, -1, -1)),
            (-6, (35, -1, -1)),
            (-7, (35, -1, -1)),
            (0, (0, 1000, 0)),
            (1001, (0, 1100, 1)),
            (1101, (0, 2000, 2)),
            (3100, (0, 3100, 5)),
            (3101, (0, -1, -1)),
        ];
        for (timestamp, want) in cases {
            assert_eq!(list(&mut c, 9, &t, timestamp).await, want, "timestamp {timestamp}");
        }
        for (timestamp, version) in [(-3, 6), (-4, 7), (-5, 8)] {
            assert_eq!(list(&mut c, version, &t, timestamp).await.0, 35, "{timestamp} in version {version}");
        }
    });
}

#[test]
fn times_are_the_records_own_whatever_the_heads_of_batches_say() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let claims =
            [(vec![1000, 1100], 5), (vec![2000, 2100], now_ms() + 3_000_000), (vec![3000, 3100], -1)];
        for (times, claimed) in claims {
            let records =
                Batch::at(times).with(|bytes| bytes[35..43].copy_from_slice(&i64::to_be_bytes(claimed)));
            assert_eq!(c.produce(&t, records).await.error_code, 0);
        }
        let cases = [(-3, (0, 3100, 5)), (1001, (0, 1100, 1)), (2101, (0, 3000, 4)), (3101, (0, -1, -1))];
        for (timestamp, want) in cases {
            assert_eq!(list(&mut c, 9, &t, timestamp).await, want, "timestamp {timestamp}");
        }
        let stored = c.fetch(&t, 0).await.records.unwrap();
        assert_eq!(BatchHead::parse(&stored).unwrap().max_timestamp, 1100);
    });
}

#[test]
fn special_timestamps_of_an_empty_log() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        for (timestamp, offset) in [(-1, 0), (-2, 0), (-3, -1), (-4, 0), (-5, -1), (0, -1), (5000, -1)] {
            assert_eq!(list(&mut c, 9, &t, timestamp).await, (0, -1, offset), "timestamp {timestamp}");
        }
        let unknown = Topic { name: "none".to_owned(), ..t };
        assert_eq!(list(&mut c, 9, &unknown, -1).await.0, 3);
    });
}

#[test]
fn the_first_record_in_offset_order_wins_though_times_are_not_in_order() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        for times in [vec![5000, 1000], vec![200, 9000, 8000]] {
            c.produce(&t, Batch::at(times).bytes()).await;
        }
        assert_eq!(list(&mut c, 1, &t, 900).await, (0, 5000, 0));
        assert_eq!(list(&mut c, 1, &t, 5001).await, (0, 9000, 3));
        assert_eq!(list(&mut c, 7, &t, -3).await, (0, 9000, 3));
    });
}

/// Kafka 4.4 goes on naming a record below the log start until its segment is deleted.
#[test]
fn the_largest_timestamp_is_that_of_a_record_that_is_there() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        for times in [vec![9000], vec![2000, 2100]] {
            assert_eq!(c.produce(&t, Batch::at(times).bytes()).await.error_code, 0);
        }
        for (before, found) in [(0, (0, 9000, 0)), (1, (0, 2100, 2)), (-1, (0, -1, -1))] {
            let partition = DeleteRecordsPartition::default().with_offset(before);
            let topic =
                DeleteRecordsTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
            let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
            assert_eq!(c.call(1, request).await.topics[0].partitions[0].error_code, 0);
            assert_eq!(list(&mut c, 7, &t, -3).await, found, "records before {before} deleted");
        }
        assert_eq!(c.produce(&t, Batch::at(vec![500]).bytes()).await.error_code, 0);
        assert_eq!(list(&mut c, 7, &t, -3).await, (0, 500, 3));
    });
}

#[test]
fn times_are_found_within_compressed_batches() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let open = Batch::at(vec![1000, 2000, 3000]);
        let packed = open.with(|b| {
            let section = zstd_of(&b.split_off(61));
            b.extend(section);
            b[22] = 4;
            let length = b.len() as i32 - 12;
            b[8..12].copy_from_slice(&length.to_be_bytes());
        });
        assert_eq!(c.produce(&t, packed).await.error_code, 0);
        assert_eq!(list(&mut c, 5, &t, 1500).await, (0, 2000, 1));
    });
}

fn zstd_of(bytes: &[u8]) -> Bytes {
    Bytes::from(zstd::stream::encode_all(bytes, 3).unwrap())
}

async fn end(c: &mut Client, t: &Topic, current: i32, epoch: i32) -> (i16, i32, i64) {
    let partition =
        OffsetForLeaderPartition::default().with_current_leader_epoch(current).with_leader_epoch(epoch);
    let topic =
        OffsetForLeaderTopic::default().with_topic(topic_name(&t.name)).with_partitions(vec![partition]);
    let request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
    let response = c.call(4, request).await;
    let p = &response.topics[0].partitions[0];
    (p.error_code, p.leader_epoch, p.end_offset)
}

#[test]
fn the_end_of_an_epoch_is_the_log_end_for_the_present_one() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        c.produce(&t, Batch::of(6).bytes()).await;
        let epoch = batches(&c.fetch(&t, 0).await.records)[0].2;
        assert_eq!(end(&mut c, &t, -1, epoch).await, (0, epoch, 6));
        assert_eq!(end(&mut c, &t, epoch, epoch + 5).await, (0, -1, -1), "not known");
        assert_eq!(end(&mut c, &t, -1, -1).await, (0, -1, -1));
        assert_eq!(end(&mut c, &t, -1, -5).await, (0, -5, 0), "below all: where the first begins");
        assert_eq!(end(&mut c, &t, -2, epoch).await, (74, -1, -1), "only -1 is none");
        assert_eq!(end(&mut c, &t, epoch + 5, epoch).await, (75, -1, -1));
        let unknown = Topic { name: "none".to_owned(), ..t };
        assert_eq!(end(&mut c, &unknown, -1, 0).await, (3, -1, -1));
    });
}

#[test]
fn a_committed_reader_finds_nothing_above_the_last_stable_offset() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        assert_eq!(c.produce(&t, Batch::at(vec![1000]).bytes()).await.error_code, 0);
        in_transaction(&t, 80, 0).await;
        assert_eq!(list_as(&mut c, 9, &t, -1, 0).await, (0, -1, 2));
        assert_eq!(list_as(&mut c, 9, &t, -1, 1).await, (0, -1, 1));
        assert_eq!(list_as(&mut c, 9, &t, 1000, 1).await, (0, 1000, 0));
        assert_eq!(list_as(&mut c, 9, &t, 1001, 0).await.2, 1);
        assert_eq!(list_as(&mut c, 9, &t, 1001, 1).await, (0, -1, -1));
        assert_eq!(list_as(&mut c, 9, &t, -3, 1).await, (0, -1, -1));
        end_transaction(&t, 80, true).await;
        assert_eq!(list_as(&mut c, 9, &t, -1, 1).await, (0, -1, 3));
        assert_eq!(list_as(&mut c, 9, &t, 1001, 1).await.2, 1);
    });
}
