//! `__consumer_offsets` as tools read it.

use crate::process::Node;
use crate::support::{
    Batch, Broker, Client, Topic, batches, fetch_request, only, produce_request, run, start, topic_name,
};
use bytes::{Buf, Bytes};
use kafka_protocol::messages as m;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{Record, RecordBatchDecoder};
use rangeway_gateway::Settings;
use std::time::{Duration, Instant};

const NAME: &str = "__consumer_offsets";

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Kafka's `Utils.abs(groupId.hashCode) % 50`, of ASCII.
fn partition_of(group: &str) -> i32 {
    let hash = group.bytes().fold(0i32, |hash, b| hash.wrapping_mul(31).wrapping_add(i32::from(b)));
    if hash == i32::MIN { 0 } else { hash.abs() % 50 }
}

async fn commit(c: &mut Client, group: &str, topic: &Topic, partition: i32, offset: i64) {
    let row = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text("meta")));
    let of =
        OffsetCommitRequestTopic::default().with_name(topic_name(&topic.name)).with_partitions(vec![row]);
    let request = m::OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![of]);
    let answer = c.call(8, request).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

/// The view, once there is one.
async fn view(c: &mut Client) -> Topic {
    let answer = c.metadata(12, &[NAME]).await;
    let row = &answer.topics[0];
    assert_eq!((row.error_code, row.is_internal, row.partitions.len()), (0, true, 50));
    assert!(row.partitions.iter().all(|p| p.leader_id.0 == 7 && p.leader_epoch >= 0));
    Topic { name: NAME.to_owned(), id: row.topic_id }
}

fn records(bytes: &Option<Bytes>) -> Vec<Record> {
    let mut bytes = bytes.clone().unwrap_or_default();
    let mut all = Vec::new();
    while bytes.has_remaining() {
        all.extend(RecordBatchDecoder::decode(&mut bytes).unwrap().records);
    }
    all
}

/// (offset in the view, group, topic, partition, committed offset) of the offsets among the records.
fn commits(records: &[Record]) -> Vec<(i64, String, String, i32, Option<i64>)> {
    let short = |bytes: &mut Bytes| {
        let len = usize::try_from(bytes.get_i16()).unwrap();
        String::from_utf8(bytes.split_to(len).to_vec()).unwrap()
    };
    let mut all = Vec::new();
    for record in records {
        let mut key = record.key.clone().unwrap();
        if key.get_i16() != 1 {
            continue;
        }
        let (group, topic, partition) = (short(&mut key), short(&mut key), key.get_i32());
        let committed = record.value.clone().map(|mut value| {
            assert_eq!(value.get_i16(), 3);
            let offset = value.get_i64();
            assert_eq!((value.get_i32(), short(&mut value).as_str()), (-1, "meta"));
            assert_eq!(value.get_i64(), record.timestamp);
            offset
        });
        all.push((record.offset, group, topic, partition, committed));
    }
    all
}

async fn own() -> (Broker, Client, Topic, Topic) {
    let broker = start(Settings::default()).await;
    let mut c = Client::to(&broker).await;
    let topic = c.topic(3, &[]).await;
    commit(&mut c, "g", &topic, 0, 5).await;
    commit(&mut c, "g", &topic, 1, 6).await;
    commit(&mut c, "g", &topic, 0, 7).await;
    let view = view(&mut c).await;
    (broker, c, topic, view)
}

async fn list(c: &mut Client, version: i16, partition: i32, timestamp: i64) -> (i16, i64, i64) {
    let row = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_timestamp(timestamp)
        .with_current_leader_epoch(-1);
    let of = ListOffsetsTopic::default().with_name(topic_name(NAME)).with_partitions(vec![row]);
    let answer = c.call(version, m::ListOffsetsRequest::default().with_topics(vec![of])).await;
    let row = &answer.topics[0].partitions[0];
    (row.error_code, row.offset, row.timestamp)
}

#[test]
fn every_version_of_fetch_reads_the_newest_offsets() {
    run(async {
        let (_broker, mut c, topic, view) = own().await;
        let at = partition_of("g");
        for version in 4..=17 {
            let answer = only(&c.call(version, fetch_request(&view, &[(at, 0)])).await);
            assert_eq!((answer.error_code, answer.high_watermark, answer.last_stable_offset), (0, 3, 3));
            let expected = [
                (1, "g".to_owned(), topic.name.clone(), 1, Some(6)),
                (2, "g".to_owned(), topic.name.clone(), 0, Some(7)),
            ];
            assert_eq!(commits(&records(&answer.records)), expected, "version {version}");
        }
        let from_inside = only(&c.call(12, fetch_request(&view, &[(at, 2)])).await);
        assert_eq!(commits(&records(&from_inside.records)).len(), 1);
        let at_the_end = only(&c.call(12, fetch_request(&view, &[(at, 3)])).await);
        assert_eq!((at_the_end.error_code, batches(&at_the_end.records)), (0, vec![]));
        for offset in [4, -1] {
            assert_eq!(only(&c.call(12, fetch_request(&view, &[(at, offset)])).await).error_code, 1);
        }
        assert_eq!(only(&c.call(12, fetch_request(&view, &[(50, 0)])).await).error_code, 3);
        let elsewhere = only(&c.call(12, fetch_request(&view, &[((at + 1) % 50, 0)])).await);
        assert_eq!((elsewhere.error_code, elsewhere.high_watermark), (0, 0));
    });
}

#[test]
fn a_fetch_of_few_bytes_gives_one_record_and_goes_on() {
    run(async {
        let (_broker, mut c, _, view) = own().await;
        let mut few = fetch_request(&view, &[(partition_of("g"), 0)]);
        few.topics[0].partitions[0].partition_max_bytes = 1;
        let answer = only(&c.call(12, few.clone()).await);
        assert_eq!(batches(&answer.records).iter().map(|b| (b.0, b.1)).collect::<Vec<_>>(), [(1, 1)]);
        few.topics[0].partitions[0].fetch_offset = 2;
        let answer = only(&c.call(12, few).await);
        assert_eq!(batches(&answer.records).iter().map(|b| (b.0, b.1)).collect::<Vec<_>>(), [(2, 2)]);
    });
}

#[test]
fn a_waiting_fetch_of_all_partitions_sees_the_next_commit() {
    run(async {
        let (broker, mut c, topic, view) = own().await;
        let mut all = fetch_request(&view, &(0..50).map(|p| (p, 0)).collect::<Vec<_>>());
        all.topics[0].partitions[partition_of("g") as usize].fetch_offset = 3;
        // A session, as consumers have.
        all.session_epoch = 0;
        let first = c.call(12, all).await;
        assert_eq!(first.responses[0].partitions.len(), 50);
        let next = m::FetchRequest::default()
            .with_max_wait_ms(30_000)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_session_id(first.session_id)
            .with_session_epoch(1);
        c.send(12, next).await;
        let mut other = Client::to(&broker).await;
        commit(&mut other, "h", &topic, 2, 9).await;
        let waited = Instant::now();
        let answer = only(&c.receive::<m::FetchRequest>(12).await);
        assert!(waited.elapsed() < Duration::from_secs(25), "it was woken");
        assert_eq!(answer.partition_index, partition_of("h"));
        assert_eq!(commits(&records(&answer.records)), [(0, "h".to_owned(), topic.name.clone(), 2, Some(9))]);
    });
}

#[test]
fn every_version_of_list_offsets_knows_its_bounds_and_times() {
    run(async {
        let (_broker, mut c, _, view) = own().await;
        let at = partition_of("g");
        let answer = only(&c.call(12, fetch_request(&view, &[(at, 0)])).await);
        let times: Vec<i64> = records(&answer.records).iter().map(|r| r.timestamp).collect();
        for version in 1..=10 {
            assert_eq!(list(&mut c, version, at, -1).await, (0, 3, -1), "version {version}");
            assert_eq!(list(&mut c, version, at, -2).await, (0, 0, -1));
            assert_eq!(list(&mut c, version, at, 0).await, (0, 1, times[0]));
            assert_eq!(list(&mut c, version, at, times[1] + 1).await, (0, -1, -1));
        }
        let (error, offset, _) = list(&mut c, 7, at, -3).await;
        assert_eq!((error, [1, 2].contains(&offset)), (0, true));
        assert_eq!(list(&mut c, 8, at, -4).await.1, 0);
        assert_eq!(list(&mut c, 9, at, -5).await.1, -1);
        assert_eq!(list(&mut c, 1, 50, -1).await.0, 3);
        let epochs = |epoch| {
            let row = OffsetForLeaderPartition::default()
                .with_partition(at)
                .with_leader_epoch(epoch)
                .with_current_leader_epoch(-1);
            let of = OffsetForLeaderTopic::default().with_topic(topic_name(NAME)).with_partitions(vec![row]);
            m::OffsetForLeaderEpochRequest::default().with_topics(vec![of])
        };
        for (epoch, expected) in [(0, (0, 0, 3)), (1000, (0, -1, -1))] {
            let answer = c.call(4, epochs(epoch)).await;
            let row = &answer.topics[0].partitions[0];
            assert_eq!((row.error_code, row.leader_epoch, row.end_offset), expected);
        }
    });
}

#[test]
fn it_is_listed_as_internal_and_only_read() {
    run(async {
        let (_broker, mut c, topic, view) = own().await;
        let all = c.call(12, m::MetadataRequest::default().with_topics(None)).await;
        let listed: Vec<(&str, bool)> =
            all.topics.iter().map(|t| (t.name.as_ref().unwrap().as_str(), t.is_internal)).collect();
        assert_eq!(listed, [(NAME, true), (&topic.name, false)]);
        for (version, expected) in [(9, 17), (12, 17), (13, 17)] {
            let request = produce_request(&view, -1, &[(0, Some(Batch::of(1).bytes()))]);
            let answer = c.call(version, request).await;
            assert_eq!(answer.responses[0].partition_responses[0].error_code, expected, "{version}");
        }
        let delete = DeleteTopicState::default().with_name(Some(topic_name(NAME)));
        let delete = m::DeleteTopicsRequest::default().with_topics(vec![delete]);
        assert_eq!(c.call(6, delete).await.responses[0].error_code, 17);
        let records = DeleteRecordsTopic::default()
            .with_name(topic_name(NAME))
            .with_partitions(vec![DeleteRecordsPartition::default().with_offset(1)]);
        let records = m::DeleteRecordsRequest::default().with_topics(vec![records]);
        assert_eq!(c.call(2, records).await.topics[0].partitions[0].error_code, 17);
        let more = CreatePartitionsTopic::default()
            .with_name(topic_name(NAME))
            .with_count(60)
            .with_assignments(None);
        let more = m::CreatePartitionsRequest::default().with_topics(vec![more]).with_timeout_ms(1000);
        assert_eq!(c.call(3, more).await.results[0].error_code, 17);
        let create = m::create_topics_request::CreatableTopic::default()
            .with_name(topic_name(NAME))
            .with_num_partitions(50)
            .with_replication_factor(1);
        let create = m::CreateTopicsRequest::default().with_topics(vec![create]).with_timeout_ms(1000);
        assert_eq!(c.call(7, create).await.topics[0].error_code, 36);
        // A group that reads it keeps its place in it.
        commit(&mut c, "reader", &view, 3, 1).await;
        let answer = only(&c.call(12, fetch_request(&view, &[(partition_of("reader"), 0)])).await);
        let expected = [(0, "reader".to_owned(), NAME.to_owned(), 3, Some(1))];
        assert_eq!(commits(&crate::offsets_view::records(&answer.records)), expected);
    });
}

#[test]
fn it_is_made_when_it_is_asked_for_and_not_before() {
    run(async {
        let broker = start(Settings::default()).await;
        let mut c = Client::to(&broker).await;
        let all = c.call(12, m::MetadataRequest::default().with_topics(None)).await;
        assert!(all.topics.is_empty());
        let asked = |create| {
            let topic =
                m::metadata_request::MetadataRequestTopic::default().with_name(Some(topic_name(NAME)));
            m::MetadataRequest::default()
                .with_topics(Some(vec![topic]))
                .with_allow_auto_topic_creation(create)
        };
        assert_eq!(c.call(12, asked(false)).await.topics[0].error_code, 3);
        let made = c.call(12, asked(true)).await;
        assert_eq!((made.topics[0].error_code, made.topics[0].partitions.len()), (0, 50));
        view(&mut c).await;
    });
}

#[test]
fn what_is_gone_is_a_tombstone() {
    run(async {
        let (_broker, mut c, topic, view) = own().await;
        let delete = m::DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text("g"))]);
        assert_eq!(c.call(2, delete).await.results[0].error_code, 0);
        let answer = only(&c.call(12, fetch_request(&view, &[(partition_of("g"), 0)])).await);
        let gone: Vec<(i32, Option<i64>)> =
            commits(&records(&answer.records)).into_iter().map(|c| (c.3, c.4)).collect();
        assert_eq!((gone, answer.high_watermark), (vec![(0, None), (1, None)], 5));
        // The names of topics that are gone are not known: readers are led past their records.
        commit(&mut c, "g", &topic, 2, 1).await;
        let delete = DeleteTopicState::default().with_name(Some(topic_name(&topic.name)));
        let delete = m::DeleteTopicsRequest::default().with_topics(vec![delete]).with_timeout_ms(5000);
        assert_eq!(c.call(6, delete).await.responses[0].error_code, 0);
        let answer = only(&c.call(12, fetch_request(&view, &[(partition_of("g"), 0)])).await);
        let whole: Vec<(i64, i64)> = batches(&answer.records).iter().map(|b| (b.0, b.1)).collect();
        assert_eq!((whole, answer.high_watermark), (vec![(0, 5)], 6));
        assert_eq!(records(&answer.records), []);
    });
}

#[test]
fn offsets_stay_where_they_are_when_the_node_is_killed() {
    let data = tempfile::tempdir().unwrap();
    let read = |node: &Node| {
        let answer = node.admin(&["topics", "list"]);
        assert!(!String::from_utf8_lossy(&answer.stdout).contains(NAME), "it is no topic to administrate");
        run(async {
            let mut c = Client::at(node.kafka.parse().unwrap()).await;
            let view = Topic { name: NAME.to_owned(), id: c.metadata(12, &[NAME]).await.topics[0].topic_id };
            let answer = only(&c.call(12, fetch_request(&view, &[(partition_of("g"), 0)])).await);
            (view.id, answer.high_watermark, commits(&records(&answer.records)))
        })
    };
    let node = Node::start(data.path(), &[]);
    run(async {
        let mut c = Client::at(node.kafka.parse().unwrap()).await;
        let topic = c.topic(2, &[]).await;
        for offset in 0..20 {
            commit(&mut c, "g", &topic, (offset % 2) as i32, offset).await;
        }
    });
    let before = read(&node);
    assert_eq!(
        (before.1, before.2.iter().map(|c| (c.0, c.4)).collect::<Vec<_>>()),
        (20, vec![(18, Some(18)), (19, Some(19))])
    );
    node.signal(rustix::process::Signal::KILL);
    drop(node);
    let node = Node::start(data.path(), &[]);
    assert_eq!(read(&node), before);
}
