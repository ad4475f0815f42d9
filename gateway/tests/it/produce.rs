//! Produce: the table of bad batches, acks, idempotence.

use crate::support::{Batch, Client, Topic, batches, fetch_request, now_ms, only, produce_request, run};
use bytes::Bytes;
use kafka_protocol::messages::{ApiVersionsRequest, InitProducerIdRequest, ProduceRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;

fn set(at: usize, bytes: &[u8]) -> impl FnOnce(&mut Vec<u8>) {
    move |b| b[at..at + bytes.len()].copy_from_slice(bytes)
}

async fn code(client: &mut Client, topic: &Topic, records: Bytes) -> i16 {
    client.produce(topic, records).await.error_code
}

#[test]
fn a_compacted_topic_takes_records_with_keys_only() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("cleanup.policy", "compact,delete")]).await;
        let refused = c.produce(&t, Batch { key: false, ..Batch::of(1) }.bytes()).await;
        assert_eq!(refused.error_code, 87);
        let message = refused.record_errors[0].batch_index_error_message.as_ref().map(|m| m.to_string());
        assert_eq!(message.as_deref(), Some("Compacted topic cannot accept message without key"));
    });
}

#[test]
fn bad_batches_get_kafkas_codes_and_nothing_of_them_is_stored() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(2, &[]).await;
        let good = Batch::of(2).bytes();
        let mut bad_crc = good.to_vec();
        bad_crc[17] ^= 1;
        let twice = [good.clone(), good.clone()].concat();
        let cases: Vec<(&str, Bytes, i16)> = vec![
            ("bad crc", bad_crc.into(), 2),
            ("magic 1", Batch::of(1).with(set(16, &[1])), 87),
            ("two batches", twice.into(), 87),
            ("no batch", Bytes::new(), 87),
            ("3 bytes short", good.slice(..good.len() - 3), 87),
            ("base offset", Batch::of(1).with(set(0, &5i64.to_be_bytes())), 87),
            ("control", Batch::of(1).with(set(21, &0x20i16.to_be_bytes())), 87),
            ("count", Batch::of(2).with(set(57, &3i32.to_be_bytes())), 87),
            ("last offset delta", Batch::of(2).with(set(23, &2i32.to_be_bytes())), 87),
            ("no sequence", Batch::of(1).by(5, 0, -1).bytes(), 87),
            ("codec 7", Batch::of(1).with(set(21, &7i16.to_be_bytes())), -1),
            ("gzip bit", Batch::of(1).with(set(21, &1i16.to_be_bytes())), -1),
            ("too large", Batch::of(1).value(1_048_588).bytes(), 10),
            ("future", Batch::at(vec![now_ms() + 7_200_000]).bytes(), 32),
            ("transactional", Batch::of(1).by(5, 0, 0).with(set(21, &0x10i16.to_be_bytes())), 53),
        ];
        for (name, records, want) in cases {
            let row = c.produce(&t, records).await;
            assert_eq!(row.error_code, want, "{name}");
            assert_eq!(
                (row.base_offset, row.log_start_offset, row.log_append_time_ms),
                (-1, -1, -1),
                "{name}"
            );
            assert!(row.error_message.is_some_and(|m| !m.is_empty()), "{name}");
        }
        assert_eq!(c.produce_at(12, &t, 0, None).await.error_code, 87, "null records");
        for partition in [2, -1] {
            assert_eq!(c.produce_at(12, &t, partition, Some(good.clone())).await.error_code, 3);
        }
        let zstd = Batch::of(1).with(set(21, &4i16.to_be_bytes()));
        assert_eq!(c.produce_at(6, &t, 0, Some(zstd)).await.error_code, 76);
        assert_eq!(c.fetch(&t, 0).await.high_watermark, 0);
    });
}

#[test]
fn good_oddities_are_accepted() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        assert_eq!(
            code(&mut c, &t, Batch::of(1).with(set(12, &77i32.to_be_bytes()))).await,
            0,
            "leader epoch"
        );
        assert_eq!(code(&mut c, &t, Batch::at(vec![-1]).bytes()).await, 0, "no timestamp");
        assert_eq!(
            code(&mut c, &t, Batch::of(1).with(set(21, &8i16.to_be_bytes()))).await,
            0,
            "timestamp type"
        );
        let records = c.fetch(&t, 0).await.records.unwrap();
        let third = &records[records.len() - Batch::of(1).bytes().len()..];
        assert_eq!(third[21..23], [0, 0], "the client's timestamp type on a topic of client time");
    });
}

#[test]
fn one_bad_partition_fails_alone() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(3, &[]).await;
        let good = Batch::of(1).bytes();
        let request = produce_request(
            &t,
            -1,
            &[(0, Some(good.clone())), (1, Some(Bytes::new())), (2, Some(good)), (9, None)],
        );
        let response = c.call(9, request).await;
        let rows: Vec<_> = response.responses[0]
            .partition_responses
            .iter()
            .map(|p| (p.index, p.error_code, p.base_offset))
            .collect();
        assert_eq!(rows, [(0, 0, 0), (1, 87, -1), (2, 0, 0), (9, 3, -1)]);
    });
}

/// Kafka 4.4 stores the last one alone and answers one row for both: decision 0009.
#[test]
fn a_partition_that_is_named_twice_has_both_batches_stored_in_their_order_and_answered() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(2, &[]).await;
        let [first, second] = [Batch::of(1), Batch::of(2)].map(|batch| Some(batch.bytes()));
        let request = produce_request(&t, -1, &[(0, first.clone()), (1, first.clone()), (0, second.clone())]);
        let response = c.call(9, request).await;
        let rows = |of: usize| -> Vec<(i32, i16, i64)> {
            let rows = &response.responses[of].partition_responses;
            rows.iter().map(|p| (p.index, p.error_code, p.base_offset)).collect()
        };
        assert_eq!(rows(0), [(0, 0, 0), (1, 0, 0), (0, 0, 1)]);
        assert_eq!(batches(&c.fetch(&t, 0).await.records).iter().map(|b| b.0).collect::<Vec<_>>(), [0, 1]);
        // The topic twice.
        let mut request = produce_request(&t, -1, &[(0, second)]);
        request.topic_data.extend(produce_request(&t, -1, &[(0, first)]).topic_data);
        let response = c.call(9, request).await;
        let offsets: Vec<i64> =
            response.responses.iter().map(|topic| topic.partition_responses[0].base_offset).collect();
        assert_eq!(offsets, [3, 5]);
        assert_eq!(c.fetch(&t, 0).await.high_watermark, 6);
    });
}

#[test]
fn acks_are_minus_1_0_or_1() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let good = || Some(Batch::of(1).bytes());
        for acks in [2, -2] {
            let response = c.call(9, produce_request(&t, acks, &[(0, good())])).await;
            assert_eq!(response.responses[0].partition_responses[0].error_code, 21);
        }
        let response = c.call(9, produce_request(&t, 1, &[(0, good())])).await;
        assert_eq!(response.responses[0].partition_responses[0].base_offset, 0);
        c.send(9, produce_request(&t, 0, &[(0, good())])).await;
        // No answer to that one: the next answer is this one's.
        c.call(0, ApiVersionsRequest::default()).await;
        assert_eq!(c.fetch(&t, 0).await.high_watermark, 2);
        let unknown = Topic { name: "no-such-topic".to_owned(), id: t.id };
        c.send(9, produce_request(&unknown, 0, &[(0, good())])).await;
        assert!(c.is_closed().await);
    });
}

#[test]
fn unknown_topics_are_answered_by_name_and_by_id() {
    run(async {
        let mut c = Client::new().await;
        let unknown = Topic { name: "no-such-topic".to_owned(), id: uuid::Uuid::from_u128(5) };
        let good = Some(Batch::of(1).bytes());
        assert_eq!(c.produce_at(12, &unknown, 0, good.clone()).await.error_code, 3);
        assert_eq!(c.produce_at(13, &unknown, 0, good).await.error_code, 100);
    });
}

#[test]
fn pipelined_requests_are_stored_in_their_order() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut bytes = Vec::new();
        for i in 0..200 {
            let request = produce_request(&t, -1, &[(0, Some(Batch::of(1).value(i + 1).bytes()))]);
            bytes.extend(crate::support::frame(i as i32, 9, &request));
        }
        c.send_bytes(&bytes).await;
        for i in 0..200 {
            assert_eq!(c.receive_bytes().await.unwrap().0, i);
        }
        let mut sizes = Vec::new();
        while sizes.len() < 200 {
            let data = c.fetch(&t, sizes.len() as i64).await;
            sizes.extend(batches(&data.records).into_iter().map(|b| b.3));
        }
        assert!(sizes.is_sorted() && sizes.first() < sizes.last(), "{sizes:?}");
    });
}

#[test]
fn a_topic_of_broker_time_answers_with_it() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("message.timestamp.type", "LogAppendTime")]).await;
        let row = c.produce(&t, Batch::at(vec![5]).bytes()).await;
        assert_eq!(row.error_code, 0);
        assert!((now_ms() - row.log_append_time_ms).abs() < 60_000);
        let records = c.fetch(&t, 0).await.records.unwrap();
        assert_eq!(records[22] & 8, 8, "timestamp type");
        assert_eq!(records[35..43], row.log_append_time_ms.to_be_bytes(), "max timestamp");
        let crc = rangeway_core::api::crc32c(&[&records[21..]]);
        assert_eq!(records[17..21], crc.to_be_bytes());
    });
}

async fn producer_id(c: &mut Client) -> i64 {
    let request =
        InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
    let response = c.call(4, request).await;
    assert_eq!((response.error_code, response.producer_epoch), (0, 0));
    response.producer_id.0
}

#[test]
fn a_repeated_batch_is_answered_with_its_first_offset_five_back_but_not_six() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let pid = producer_id(&mut c).await;
        for i in 0..6 {
            let row = c.produce(&t, Batch::of(2).by(pid, 0, i * 2).bytes()).await;
            assert_eq!((row.error_code, row.base_offset), (0, i64::from(i) * 2));
        }
        for (sequence, want) in [(10, (0, 10)), (2, (0, 2)), (0, (45, -1))] {
            let row = c.produce(&t, Batch::of(2).by(pid, 0, sequence).bytes()).await;
            assert_eq!((row.error_code, row.base_offset), want, "sequence {sequence}");
        }
        let longer = c.produce(&t, Batch::of(3).by(pid, 0, 10).bytes()).await;
        assert_eq!(longer.error_code, 45, "same first sequence, other length");
        assert_eq!(c.fetch(&t, 0).await.high_watermark, 12);
    });
}

#[test]
fn gaps_and_epochs_of_a_producer_are_judged_as_kafka_does() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        assert_eq!(code(&mut c, &t, Batch::of(1).by(9001, 3, 5).bytes()).await, 0, "unknown: any sequence");
        assert_eq!(code(&mut c, &t, Batch::of(1).by(9001, 3, 7).bytes()).await, 45, "gap");
        assert_eq!(code(&mut c, &t, Batch::of(1).by(9001, 2, 6).bytes()).await, 47, "older epoch");
        assert_eq!(
            code(&mut c, &t, Batch::of(1).by(9001, 4, 6).bytes()).await,
            45,
            "newer epoch from above 0"
        );
        assert_eq!(code(&mut c, &t, Batch::of(1).by(9001, 4, 0).bytes()).await, 0, "newer epoch from 0");
        let wrap = Batch::of(2).by(9002, 0, i32::MAX - 1).bytes();
        assert_eq!(code(&mut c, &t, wrap).await, 0);
        assert_eq!(code(&mut c, &t, Batch::of(1).by(9002, 0, 0).bytes()).await, 0, "sequences wrap to 0");
    });
}

#[test]
fn producer_ids_are_given_out_once() {
    run(async {
        let mut c = Client::new().await;
        let first = producer_id(&mut c).await;
        assert_ne!(first, producer_id(&mut c).await);
        let t = c.topic(1, &[]).await;
        let batch = Batch::of(1).by(first, 0, 0).with(set(21, &0x10i16.to_be_bytes()));
        for version in [10, 11, 12] {
            let request: ProduceRequest = produce_request(&t, -1, &[(0, Some(batch.clone()))])
                .with_transactional_id(Some(TransactionalId(StrBytes::from_static_str("tx"))));
            let response = c.call(version, request).await;
            let code = response.responses[0].partition_responses[0].error_code;
            assert_eq!(code, 49, "it is not that of a transactional id");
        }
    });
}

#[test]
fn stored_bytes_come_back_as_they_were_sent_but_for_offset_and_epoch() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let sent = Batch::of(3).value(5000).bytes();
        c.produce(&t, Batch::of(2).bytes()).await;
        assert_eq!(c.produce(&t, sent.clone()).await.base_offset, 2);
        let response = c.call(12, fetch_request(&t, &[(0, 3)])).await;
        let got = only(&response).records.unwrap();
        assert_eq!(got[..8], 2i64.to_be_bytes());
        assert_eq!(got[8..12], sent[8..12]);
        assert!(got[16..] == sent[16..]);
    });
}
