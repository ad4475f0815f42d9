//! Metadata, DescribeCluster, DescribeTopicPartitions.

use crate::support::{BROKER, Client, run, start, topic_name};
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeTopicPartitionsRequest, MetadataRequest};
use rangeway_gateway::Settings;

#[test]
fn no_topics_means_all_in_version_0_and_none_from_version_1() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(3, &[]).await;
        let empty = || MetadataRequest::default().with_topics(Some(vec![]));
        assert!(c.call(0, empty()).await.topics.iter().any(|x| x.name.as_ref().unwrap().as_str() == t.name));
        assert!(c.call(1, empty()).await.topics.is_empty());
        let all = c.call(12, MetadataRequest::default().with_topics(None)).await;
        let row = all.topics.iter().find(|x| x.topic_id == t.id).unwrap();
        assert_eq!((row.partitions.len(), row.is_internal, row.error_code), (3, false, 0));
        assert!(all.topics.iter().all(|x| !x.topic_id.is_nil()), "every topic has an id");
        assert!(
            row.partitions
                .iter()
                .all(|p| p.leader_id.0 == 7 && p.leader_epoch >= 0 && p.isr_nodes.len() == 1)
        );
        let own =
            all.topics.iter().map(|x| x.name.as_ref().unwrap().as_str()).filter(|x| x.starts_with("__"));
        assert!(own.into_iter().all(|x| x == "__consumer_offsets"), "the node's own are hidden");
    });
}

#[test]
fn the_node_is_where_the_client_reached_it() {
    run(async {
        let mut c = Client::new().await;
        let response = c.metadata(12, &[]).await;
        let broker = &response.brokers[0];
        assert_eq!((broker.host.as_str(), broker.port), ("127.0.0.1", i32::from(BROKER.address.port())));
        assert_eq!((response.controller_id.0, response.brokers.len()), (7, 1));
        let described = c.call(1, DescribeClusterRequest::default().with_endpoint_type(1)).await;
        assert_eq!(response.cluster_id.unwrap(), described.cluster_id);
        assert_eq!(described.brokers[0].port, broker.port);
        for (endpoint, want) in [(2, 114), (9, 115)] {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint);
            assert_eq!(c.call(1, request).await.error_code, want);
        }
    });
}

#[test]
fn a_topic_asked_for_is_made_and_serves() {
    run(async {
        let mut c = Client::new().await;
        let request = |name: &str, create| {
            let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
            MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(create)
        };
        assert_eq!(c.call(12, request("auto-1", false)).await.topics[0].error_code, 3);
        let made = c.call(12, request("auto-1", true)).await;
        assert_eq!((made.topics[0].error_code, made.topics[0].partitions.len()), (0, 4));
        let again = c.call(12, request("auto-1", false)).await;
        assert_eq!(again.topics[0].topic_id, made.topics[0].topic_id);
        for (name, want) in [("bad name", 17), ("", 17), ("..", 17), ("__transaction_state", 3)] {
            assert_eq!(c.call(12, request(name, true)).await.topics[0].error_code, want, "{name}");
        }
        assert_eq!(
            c.call(3, request("auto-2", true)).await.topics[0].error_code,
            0,
            "old versions always create"
        );
    });
}

#[test]
fn topics_are_found_by_id_from_version_12() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        // Java's consumers send an empty name beside an id.
        for name in [None, Some("")] {
            let by_id = |id| {
                let topic = MetadataRequestTopic::default().with_name(name.map(topic_name)).with_topic_id(id);
                MetadataRequest::default().with_topics(Some(vec![topic]))
            };
            let found = c.call(12, by_id(t.id)).await;
            assert_eq!(found.topics[0].name.as_ref().unwrap().as_str(), t.name);
            let unknown = c.call(12, by_id(uuid::Uuid::from_u128(3))).await;
            assert_eq!((unknown.topics[0].error_code, &unknown.topics[0].name), (100, &None));
            assert_eq!(c.call(11, by_id(t.id)).await.topics[0].error_code, 42);
        }
    });
}

#[test]
fn a_name_given_twice_is_answered_once() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        assert_eq!(c.metadata(9, &[&t.name, &t.name]).await.topics.len(), 1);
    });
}

#[test]
fn operations_are_shown_when_asked_for() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let topics = Some(vec![MetadataRequestTopic::default().with_name(Some(topic_name(&t.name)))]);
        let asked = MetadataRequest::default()
            .with_topics(topics)
            .with_include_cluster_authorized_operations(true)
            .with_include_topic_authorized_operations(true);
        let shown = c.call(8, asked).await;
        assert_eq!(
            (shown.cluster_authorized_operations, shown.topics[0].topic_authorized_operations),
            (8096, 3576)
        );
        let quiet = c.metadata(8, &[&t.name]).await;
        assert_eq!(quiet.cluster_authorized_operations, i32::MIN);
        assert_eq!(quiet.topics[0].topic_authorized_operations, i32::MIN);
    });
}

#[test]
fn partitions_are_described_in_pages() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(3, &[]).await;
        let name = topic_name(&t.name);
        let request = |cursor| {
            DescribeTopicPartitionsRequest::default()
                .with_topics(vec![TopicRequest::default().with_name(name.clone())])
                .with_response_partition_limit(2)
                .with_cursor(cursor)
        };
        let first = c.call(0, request(None)).await;
        let rows = |r: &kafka_protocol::messages::DescribeTopicPartitionsResponse| -> Vec<i32> {
            r.topics[0].partitions.iter().map(|p| p.partition_index).collect()
        };
        assert_eq!(rows(&first), [0, 1]);
        let next = first.next_cursor.unwrap();
        assert_eq!((next.topic_name.as_str(), next.partition_index), (t.name.as_str(), 2));
        let cursor = Cursor::default().with_topic_name(name.clone()).with_partition_index(2);
        let second = c.call(0, request(Some(cursor))).await;
        assert_eq!((rows(&second), second.next_cursor), (vec![2], None));
        let at = |name: &str, partition| {
            Some(Cursor::default().with_topic_name(topic_name(name)).with_partition_index(partition))
        };
        for (cursor, code) in [(at(&t.name, 5), 0), (at(&t.name, -1), 42), (at("a", 0), 42)] {
            let answer = c.call(0, request(cursor.clone())).await;
            assert_eq!((answer.topics[0].error_code, rows(&answer)), (code, vec![]), "{cursor:?}");
        }
        for (name, code) in [("none", 3), ("no/name", 17)] {
            let unknown = TopicRequest::default().with_name(topic_name(name));
            let request = DescribeTopicPartitionsRequest::default()
                .with_topics(vec![unknown])
                .with_response_partition_limit(2000);
            let row = c.call(0, request).await.topics.remove(0);
            assert_eq!((row.error_code, row.topic_authorized_operations), (code, 3576), "{name}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_makes_so_many_topics_and_no_more() {
    let broker = start(Settings::default()).await;
    let mut c = Client::to(&broker).await;
    let names: Vec<String> = (0..130).map(|n| format!("auto-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let codes: Vec<i16> = c.metadata(3, &names).await.topics.iter().map(|row| row.error_code).collect();
    assert_eq!((codes[..100].to_vec(), codes[100..].to_vec()), (vec![0; 100], vec![3; 30]));
    let codes: Vec<i16> = c.metadata(3, &names).await.topics.iter().map(|row| row.error_code).collect();
    assert_eq!(codes, [0; 130]);
}

#[test]
fn a_request_asks_for_so_many_partitions_and_no_more() {
    use kafka_protocol::messages as m;
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let topic = |n: usize, partitions| {
            m::create_topics_request::CreatableTopic::default()
                .with_name(topic_name(&format!("many-{n}")))
                .with_num_partitions(partitions)
                .with_replication_factor(1)
        };
        for (counts, code) in [(vec![10_001], 44), (vec![5000, 5000, 1], 44), (vec![5000, 5000], 0)] {
            let topics = counts.iter().enumerate().map(|(n, count)| topic(n, *count)).collect();
            let request = m::CreateTopicsRequest::default().with_validate_only(true).with_topics(topics);
            let rows = c.call(7, request).await.topics;
            assert!(rows.iter().all(|row| row.error_code == code), "{counts:?}: {rows:?}");
        }
        for (count, code) in [(10_002, 44), (10_001, 0)] {
            let topic = m::create_partitions_request::CreatePartitionsTopic::default()
                .with_name(topic_name(&t.name))
                .with_count(count)
                .with_assignments(None);
            let request =
                m::CreatePartitionsRequest::default().with_validate_only(true).with_topics(vec![topic]);
            assert_eq!(c.call(3, request).await.results[0].error_code, code, "{count}");
        }
    });
}

#[test]
fn a_topic_that_is_named_twice_is_not_deleted() {
    use kafka_protocol::messages as m;
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let id = || m::delete_topics_request::DeleteTopicState::default().with_name(None).with_topic_id(t.id);
        let name =
            || m::delete_topics_request::DeleteTopicState::default().with_name(Some(topic_name(&t.name)));
        for twice in [vec![name(), name()], vec![id(), id()], vec![id(), name()], vec![name(), id()]] {
            let request =
                m::DeleteTopicsRequest::default().with_topics(twice.clone()).with_timeout_ms(10_000);
            let codes: Vec<i16> =
                c.call(6, request).await.responses.iter().map(|row| row.error_code).collect();
            assert_eq!(codes, [42], "{twice:?}");
        }
        let request = m::DeleteTopicsRequest::default().with_topics(vec![id()]).with_timeout_ms(10_000);
        assert_eq!(c.call(6, request).await.responses[0].error_code, 0);
    });
}
