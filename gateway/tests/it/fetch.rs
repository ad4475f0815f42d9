//! Fetch: limits, waiting, sessions, epochs, errors.

use crate::support::{
    Batch, Client, Topic, batches, end_transaction, fetch_request, in_transaction, only, produce_request,
    run, topic_name,
};
use kafka_protocol::messages::fetch_request::ForgottenTopic;
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse, ProduceRequest};
use std::time::{Duration, Instant};

/// A topic with three batches of 100, 1000 and 1000 value bytes in partition 0: offsets 0-1, 2-3, 4-5.
async fn three(c: &mut Client) -> (Topic, Vec<usize>) {
    let t = c.topic(2, &[]).await;
    let mut sizes = Vec::new();
    for value in [100, 1000, 1000] {
        let batch = Batch::of(2).value(value).bytes();
        sizes.push(batch.len());
        assert_eq!(c.produce(&t, batch).await.error_code, 0);
    }
    (t, sizes)
}

async fn fetched(c: &mut Client, request: FetchRequest) -> Vec<(i64, i64)> {
    let response: FetchResponse = c.call(12, request).await;
    batches(&only(&response).records).into_iter().map(|b| (b.0, b.1)).collect()
}

#[test]
fn an_offset_inside_a_batch_gives_that_batch() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        assert_eq!(fetched(&mut c, fetch_request(&t, &[(0, 3)])).await, [(2, 3), (4, 5)]);
        assert_eq!(fetched(&mut c, fetch_request(&t, &[(0, 0)])).await, [(0, 1), (2, 3), (4, 5)]);
        assert_eq!(fetched(&mut c, fetch_request(&t, &[(0, 6)])).await, []);
    });
}

#[test]
fn the_first_batch_comes_whole_whatever_the_limits_say() {
    run(async {
        let mut c = Client::new().await;
        let (t, sizes) = three(&mut c).await;
        let mut one = fetch_request(&t, &[(0, 2)]);
        one.topics[0].partitions[0].partition_max_bytes = 1;
        assert_eq!(fetched(&mut c, one).await, [(2, 3)]);
        assert_eq!(fetched(&mut c, fetch_request(&t, &[(0, 2)]).with_max_bytes(1)).await, [(2, 3)]);
        let mut two = fetch_request(&t, &[(0, 0)]);
        two.topics[0].partitions[0].partition_max_bytes = (sizes[0] + sizes[1]) as i32;
        assert_eq!(fetched(&mut c, two).await, [(0, 1), (2, 3)]);
        // Only the first partition with records has this right.
        c.produce_at(12, &t, 1, Some(Batch::of(1).bytes())).await;
        let response = c.call(12, fetch_request(&t, &[(0, 2), (1, 0)]).with_max_bytes(1)).await;
        let lengths: Vec<usize> =
            response.responses[0].partitions.iter().map(|p| p.records.as_ref().unwrap().len()).collect();
        assert_eq!(lengths, [sizes[1], 0]);
    });
}

#[test]
fn offsets_out_of_range_and_unknown_places_are_errors() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        for offset in [7, -1] {
            let p = c.fetch(&t, offset).await;
            assert_eq!(
                (p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset),
                (1, -1, -1, -1)
            );
        }
        let p = only(&c.call(12, fetch_request(&t, &[(5, 0)])).await);
        assert_eq!(p.error_code, 3);
        let unknown = Topic { name: "none".to_owned(), id: uuid::Uuid::from_u128(9) };
        assert_eq!(only(&c.call(12, fetch_request(&unknown, &[(0, 0)])).await).error_code, 3);
        assert_eq!(only(&c.call(13, fetch_request(&unknown, &[(0, 0)])).await).error_code, 100);
        let mut newer = fetch_request(&t, &[(0, 0)]);
        newer.topics[0].partitions[0].current_leader_epoch = 1000;
        assert_eq!(only(&c.call(12, newer).await).error_code, 75);
    });
}

#[test]
fn positions_and_isolation_are_shown() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let p = c.fetch(&t, 0).await;
        assert_eq!((p.high_watermark, p.last_stable_offset, p.log_start_offset), (6, 6, 0));
        assert_eq!((p.aborted_transactions, p.preferred_read_replica.0), (None, -1));
        let committed = only(&c.call(12, fetch_request(&t, &[(0, 0)]).with_isolation_level(1)).await);
        assert_eq!(committed.aborted_transactions, Some(vec![]));
    });
}

#[test]
fn a_fetch_waits_for_min_bytes_at_most_max_wait() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let waiting =
            |offset, min, wait| fetch_request(&t, &[(0, offset)]).with_min_bytes(min).with_max_wait_ms(wait);
        let since = Instant::now();
        assert_eq!(fetched(&mut c, waiting(0, 1 << 20, 300)).await.len(), 3, "what there is, at the end");
        assert!(since.elapsed() >= Duration::from_millis(295), "{:?}", since.elapsed());
        let since = Instant::now();
        assert!(fetched(&mut c, waiting(6, 1, 300)).await.is_empty());
        assert!(since.elapsed() >= Duration::from_millis(295));
        let since = Instant::now();
        assert_eq!(fetched(&mut c, waiting(0, 1, 60_000)).await.len(), 3);
        assert_eq!(only(&c.call(12, waiting(99, 1, 60_000)).await).error_code, 1, "an error does not wait");
        assert!(since.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn a_waiting_fetch_is_woken_by_new_records() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let mut producer = Client::new().await;
        c.send(12, fetch_request(&t, &[(0, 6)]).with_max_wait_ms(60_000)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let since = Instant::now();
        producer.produce(&t, Batch::of(1).bytes()).await;
        let response = c.receive::<FetchRequest>(12).await;
        assert_eq!(batches(&only(&response).records)[0].0, 6);
        assert!(since.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn errors_found_before_the_read_do_not_cut_the_wait() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let since = Instant::now();
        let response = c.call(12, fetch_request(&t, &[(0, 6), (77, 0)]).with_max_wait_ms(400)).await;
        assert!(since.elapsed() >= Duration::from_millis(395));
        let codes: Vec<i16> = response.responses[0].partitions.iter().map(|p| p.error_code).collect();
        assert_eq!(codes, [0, 3]);
        let since = Instant::now();
        c.call(12, fetch_request(&t, &[(77, 0)]).with_max_wait_ms(60_000)).await;
        assert!(since.elapsed() < Duration::from_secs(30), "nothing readable is not waited for");
    });
}

#[test]
fn a_history_that_differs_is_told_from_one_that_is_unknown() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let epoch = batches(&c.fetch(&t, 0).await.records)[0].2;
        let with = |offset, last| {
            let mut request = fetch_request(&t, &[(0, offset)]);
            request.topics[0].partitions[0].last_fetched_epoch = last;
            request
        };
        assert_eq!(fetched(&mut c, with(2, epoch)).await.len(), 2, "the same history");
        let p = only(&c.call(12, with(9, epoch)).await);
        assert_eq!((p.error_code, p.records.unwrap().len()), (0, 0));
        assert_eq!((p.diverging_epoch.epoch, p.diverging_epoch.end_offset), (epoch, 6));
        assert_eq!(only(&c.call(12, with(2, epoch + 5)).await).error_code, 1);
    });
}

#[test]
fn a_session_shows_changes_only_and_belongs_to_no_connection() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let full = fetch_request(&t, &[(0, 6), (1, 0)]).with_session_epoch(0);
        let opened = c.call(12, full).await;
        let id = opened.session_id;
        assert!(id > 0);
        assert_eq!(opened.responses[0].partitions.len(), 2);
        let next = |epoch| {
            FetchRequest::default()
                .with_session_id(id)
                .with_session_epoch(epoch)
                .with_max_bytes(1 << 20)
                .with_max_wait_ms(0)
        };
        let quiet = c.call(12, next(1)).await;
        assert_eq!((quiet.error_code, quiet.session_id, quiet.responses.len()), (0, id, 0));
        c.produce_at(12, &t, 1, Some(Batch::of(1).bytes())).await;
        let mut other = Client::new().await;
        let p = only(&other.call(12, next(2)).await);
        assert_eq!((p.partition_index, p.high_watermark, batches(&p.records).len()), (1, 1, 1));
        let forgotten = ForgottenTopic::default().with_topic(topic_name(&t.name)).with_partitions(vec![1]);
        let without = next(3).with_forgotten_topics_data(vec![forgotten]);
        assert!(c.call(12, without).await.responses.is_empty(), "a forgotten partition is not served");
        assert_eq!(c.call(12, next(3)).await.error_code, 71);
        assert_eq!(c.call(12, next(4).with_session_id(id ^ 1)).await.error_code, 70);
        assert_eq!(c.call(13, next(4)).await.error_code, 106);
        let closed = c.call(12, fetch_request(&t, &[(0, 6)]).with_session_id(id)).await;
        assert_eq!(closed.session_id, 0);
        assert_eq!(c.call(12, next(4)).await.error_code, 70);
    });
}

#[test]
fn a_waiting_session_is_woken_though_it_names_nothing_new() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let id = c.call(13, fetch_request(&t, &[(0, 6)]).with_session_epoch(0)).await.session_id;
        let next = FetchRequest::default()
            .with_session_id(id)
            .with_session_epoch(1)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_wait_ms(60_000);
        c.send(13, next).await;
        let mut producer = Client::new().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        producer.produce(&t, Batch::of(1).bytes()).await;
        let p = only(&c.receive::<FetchRequest>(13).await);
        assert_eq!(batches(&p.records).len(), 1);
    });
}

#[test]
fn replies_leave_in_request_order_behind_a_long_poll() {
    run(async {
        let mut c = Client::new().await;
        let (t, _) = three(&mut c).await;
        let fetch = c.send(12, fetch_request(&t, &[(0, 6)]).with_max_wait_ms(500)).await;
        let produce =
            c.send::<ProduceRequest>(9, produce_request(&t, -1, &[(1, Some(Batch::of(1).bytes()))])).await;
        assert_eq!(c.receive_bytes().await.unwrap().0, fetch);
        assert_eq!(c.receive_bytes().await.unwrap().0, produce);
    });
}

#[test]
fn a_batch_larger_than_all_limits_is_fetched() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("max.message.bytes", "8388608")]).await;
        let large = Batch::of(1).value(7 << 20).bytes();
        assert_eq!(c.produce(&t, large.clone()).await.error_code, 0);
        let p = only(&c.call(12, fetch_request(&t, &[(0, 0)]).with_max_bytes(1000)).await);
        assert!(p.records.unwrap()[61..] == large[61..]);
    });
}

#[test]
fn a_committed_reader_is_told_what_was_aborted_and_waits_for_open_transactions() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        in_transaction(&t, 71, 0).await;
        in_transaction(&t, 70, 0).await;
        in_transaction(&t, 72, 0).await;
        end_transaction(&t, 70, false).await;
        let committed = |offset, wait| {
            fetch_request(&t, &[(0, offset)]).with_isolation_level(1).with_min_bytes(1).with_max_wait_ms(wait)
        };
        let p = only(&c.call(12, committed(0, 0)).await);
        assert_eq!((p.high_watermark, p.last_stable_offset), (4, 0));
        assert_eq!((batches(&p.records).len(), p.aborted_transactions), (0, Some(vec![])));
        let all = only(&c.call(12, fetch_request(&t, &[(0, 0)])).await);
        assert_eq!((batches(&all.records).len(), all.aborted_transactions), (4, None), "uncommitted");
        // A reader that waits is woken when the last stable offset moves.
        let mut waiting = Client::new().await;
        waiting.send(12, committed(0, 60_000)).await;
        end_transaction(&t, 71, false).await;
        let p = only(&waiting.receive::<FetchRequest>(12).await);
        assert_eq!(batches(&p.records).iter().map(|b| b.0).collect::<Vec<_>>(), [0, 1]);
        let aborted = |p: &PartitionData| -> Vec<(i64, i64)> {
            let all = p.aborted_transactions.as_ref().unwrap();
            all.iter().map(|one| (one.producer_id.0, one.first_offset)).collect()
        };
        assert_eq!(aborted(&p), [(71, 0), (70, 1)], "by first offset, not by marker");
        end_transaction(&t, 72, true).await;
        let p = only(&c.call(12, committed(1, 0)).await);
        assert_eq!(batches(&p.records).iter().map(|b| b.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!((aborted(&p), p.last_stable_offset), (vec![(71, 0), (70, 1)], 6), "it began before");
        assert_eq!(aborted(&only(&c.call(12, committed(5, 0)).await)), []);
    });
}
