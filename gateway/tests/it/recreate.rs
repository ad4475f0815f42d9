//! A topic that is deleted and made again under its name while clients use it.

use crate::support::{Batch, Client, Topic, fetch_request, produce_request, run, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use uuid::Uuid;

/// What clients may be told of a topic that is being deleted.
const UNKNOWN: [i16; 2] = [3, 100];
const PATIENCE: Duration = Duration::from_secs(30);

async fn make(c: &mut Client, name: &str) -> (i16, Uuid) {
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(1)
        .with_replication_factor(1);
    let request = m::CreateTopicsRequest::default().with_timeout_ms(10_000).with_topics(vec![topic]);
    let row = c.call(7, request).await.topics.remove(0);
    (row.error_code, row.topic_id)
}

async fn delete(c: &mut Client, id: Uuid) -> i16 {
    let topic = DeleteTopicState::default().with_name(None).with_topic_id(id);
    let request = m::DeleteTopicsRequest::default().with_timeout_ms(10_000).with_topics(vec![topic]);
    c.call(6, request).await.responses[0].error_code
}

/// Offsets by topic id that acknowledged batches were given.
type Acknowledged = HashMap<Uuid, Vec<i64>>;

/// Produces by id (13) or by name (12) until the channel closes; what was acknowledged by id.
async fn write(version: i16, mut topic: watch::Receiver<Topic>, acks: Arc<AtomicU64>) -> Acknowledged {
    let mut c = Client::new().await;
    let mut acknowledged = Acknowledged::new();
    while topic.has_changed().is_ok() {
        let t = topic.borrow_and_update().clone();
        let response = c.call(version, produce_request(&t, -1, &[(0, Some(Batch::of(1).bytes()))])).await;
        let row = &response.responses[0].partition_responses[0];
        match row.error_code {
            0 => {
                acks.fetch_add(1, Ordering::Relaxed);
                if version >= 13 {
                    acknowledged.entry(t.id).or_default().push(row.base_offset);
                }
            }
            code => assert!(UNKNOWN.contains(&code), "produce answered {code}"),
        }
    }
    acknowledged
}

/// Waits for records by id until the channel closes; how many answers it got.
async fn read(mut topic: watch::Receiver<Topic>) -> usize {
    let (mut c, mut answers, mut offset) = (Client::new().await, 0, 0);
    let mut reading = topic.borrow().id;
    while topic.has_changed().is_ok() {
        let t = topic.borrow_and_update().clone();
        if t.id != reading {
            (reading, offset) = (t.id, 0);
        }
        let response = c.call(13, fetch_request(&t, &[(0, offset)]).with_max_wait_ms(200)).await;
        assert_eq!(response.error_code, 0);
        let partition = &response.responses[0].partitions[0];
        match partition.error_code {
            0 => offset = partition.high_watermark,
            code => assert!(UNKNOWN.contains(&code), "fetch answered {code}"),
        }
        answers += 1;
    }
    answers
}

#[test]
fn clients_with_an_old_id_never_touch_the_new_topic() {
    run(async {
        let mut c = Client::new().await;
        let name = "made-again";
        let (code, mut id) = make(&mut c, name).await;
        assert_eq!(code, 0);
        let (tell, topic) = watch::channel(Topic { name: name.to_owned(), id });
        let acks = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> =
            [13, 13, 12].map(|version| tokio::spawn(write(version, topic.clone(), acks.clone()))).into();
        let reader = tokio::spawn(read(topic));
        let (mut ids, mut last_epoch) = (HashSet::new(), -1);
        for _ in 0..12 {
            let (before, since) = (acks.load(Ordering::Relaxed), Instant::now());
            while acks.load(Ordering::Relaxed) < before + 20 && since.elapsed() < PATIENCE {
                tokio::task::yield_now().await;
            }
            assert!(acks.load(Ordering::Relaxed) >= before + 20, "writers go on");
            let epoch = c.metadata(12, &[name]).await.topics[0].partitions[0].leader_epoch;
            assert!(epoch > last_epoch, "{epoch} after {last_epoch}: clients would ignore it");
            last_epoch = epoch;
            assert_eq!(delete(&mut c, id).await, 0);
            let old = Topic { name: name.to_owned(), id };
            assert_eq!(delete(&mut c, id).await, 100);
            let by_id = MetadataRequestTopic::default().with_name(None).with_topic_id(id);
            let metadata = c.call(12, m::MetadataRequest::default().with_topics(Some(vec![by_id]))).await;
            assert_eq!(metadata.topics[0].error_code, 100);
            let (code, new) = make(&mut c, name).await;
            assert_eq!(code, 0);
            assert!(ids.insert(new) && new != id, "an id is never used again");
            let produced = c.call(13, produce_request(&old, -1, &[(0, Some(Batch::of(1).bytes()))])).await;
            assert_eq!(produced.responses[0].partition_responses[0].error_code, 100);
            let fetched = c.call(13, fetch_request(&old, &[(0, 0)])).await;
            assert_eq!(fetched.responses[0].partitions[0].error_code, 100);
            id = new;
            tell.send_replace(Topic { name: name.to_owned(), id });
        }
        drop(tell);
        let mut given: HashSet<(Uuid, i64)> = HashSet::new();
        for writer in writers {
            for (id, offsets) in writer.await.unwrap() {
                assert!(offsets.is_sorted(), "a writer's offsets grow within a topic");
                for offset in offsets {
                    assert!(given.insert((id, offset)), "offset {offset} was given twice");
                }
            }
        }
        assert!(reader.await.unwrap() > 0);
        assert_eq!(delete(&mut c, id).await, 0);
    });
}

#[test]
fn names_at_the_limits() {
    run(async {
        let mut c = Client::new().await;
        let longest = "n".repeat(249);
        for (name, code) in [
            (longest.as_str(), 0),
            (&"n".repeat(250), 17),
            ("", 17),
            (".", 17),
            ("..", 17),
            ("...", 0),
            ("a b", 17),
            ("na\u{ef}ve", 17),
            ("limits.a_b-C9", 0),
            ("limits_a.b-C9", 17),
            ("limits.a_b-C9", 36),
        ] {
            assert_eq!(make(&mut c, name).await.0, code, "{name}");
        }
        let t = Topic { name: longest.clone(), id: Uuid::nil() };
        assert_eq!(c.produce(&t, Batch::of(1).bytes()).await.error_code, 0);
        assert_eq!(c.metadata(12, &[&longest]).await.topics[0].partitions.len(), 1);
    });
}
