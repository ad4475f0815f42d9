//! Topics: made, grown, shown, deleted.

use super::proofs;
use crate::support::{BROKER, Client, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;

async fn partitions(c: &mut Client, name: &str) -> usize {
    c.metadata(12, &[name]).await.topics[0].partitions.len()
}

proofs! {
    a_topic_is_made: CreateTopicsRequest 2..=7, |c, version| {
        let name = format!("made-{version}");
        let topic = CreatableTopic::default()
            .with_name(topic_name(&name))
            .with_num_partitions(3)
            .with_replication_factor(1);
        let request = m::CreateTopicsRequest::default().with_timeout_ms(10_000).with_topics(vec![topic]);
        let checked = c.call(version, request.clone().with_validate_only(true)).await;
        assert_eq!((checked.topics[0].error_code, partitions(c, &name).await), (0, 0));
        let made = c.call(version, request.clone()).await;
        let row = &made.topics[0];
        assert_eq!((row.error_code, partitions(c, &name).await), (0, 3));
        if version >= 5 {
            assert_eq!((row.num_partitions, row.replication_factor, row.topic_config_error_code), (3, 1, 0));
            let configs = row.configs.as_deref().unwrap_or_default();
            let retention = configs.iter().find(|config| config.name.as_str() == "retention.ms").unwrap();
            let value = retention.value.as_ref().map(|value| value.as_str());
            assert_eq!((value, retention.config_source), (Some("604800000"), 5));
        }
        assert_eq!(row.topic_id.is_nil(), version < 7);
        let again = c.call(version, request).await;
        assert_eq!(again.topics[0].error_code, 36);
    }
    a_topic_grows: CreatePartitionsRequest 0..=3, |c, version| {
        let t = c.topic(1, &[]).await;
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(&t.name))
            .with_count(3)
            .with_assignments(None);
        let request = m::CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let checked = c.call(version, request.clone().with_validate_only(true)).await;
        assert_eq!((checked.results[0].error_code, partitions(c, &t.name).await), (0, 1));
        let grown = c.call(version, request.clone()).await;
        assert_eq!((grown.results[0].error_code, partitions(c, &t.name).await), (0, 3));
        let again = c.call(version, request).await;
        assert_eq!(again.results[0].error_code, 37);
    }
    a_topic_is_deleted: DeleteTopicsRequest 1..=6, |c, version| {
        let t = c.topic(1, &[]).await;
        let mut request = m::DeleteTopicsRequest::default().with_timeout_ms(10_000);
        match version {
            ..6 => request.topic_names = vec![topic_name(&t.name)],
            _ => request.topics = vec![DeleteTopicState::default().with_topic_id(t.id)],
        }
        let deleted = c.call(version, request.clone()).await;
        let row = &deleted.responses[0];
        assert_eq!((row.error_code, row.name.as_ref()), (0, Some(&topic_name(&t.name))));
        assert_eq!(partitions(c, &t.name).await, 0);
        let again = c.call(version, request).await;
        assert_eq!(again.responses[0].error_code, if version < 6 { 3 } else { 100 });
    }
    a_topic_is_shown: MetadataRequest 0..=13, |c, version| {
        let t = c.topic(2, &[]).await;
        let mut asked = MetadataRequestTopic::default().with_name(Some(topic_name(&t.name)));
        if version >= 12 {
            asked = MetadataRequestTopic::default().with_topic_id(t.id).with_name(None);
        }
        let response = c.call(version, m::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
        let topic = &response.topics[0];
        assert_eq!((topic.error_code, topic.partitions.len()), (0, 2));
        assert_eq!(topic.topic_id, if version >= 10 { t.id } else { uuid::Uuid::nil() });
        assert_eq!(response.brokers[0].node_id, topic.partitions[0].leader_id);
    }
    nodes_are_shown: DescribeClusterRequest 0..=2, |c, version| {
        let response = c.call(version, m::DescribeClusterRequest::default()).await;
        assert_eq!((response.error_code, response.brokers[0].broker_id.0), (0, 7));
        assert_eq!(response.brokers[0].port, i32::from(BROKER.address.port()));
    }
    a_topic_is_shown_in_pages: DescribeTopicPartitionsRequest 0..=0, |c, version| {
        let t = c.topic(3, &[]).await;
        let mut request = m::DescribeTopicPartitionsRequest::default()
            .with_topics(vec![TopicRequest::default().with_name(topic_name(&t.name))])
            .with_response_partition_limit(2)
            .with_cursor(None);
        let first = c.call(version, request.clone()).await;
        assert_eq!(first.topics[0].partitions.len(), 2);
        let cursor = first.next_cursor.unwrap();
        request.cursor = Some(
            m::describe_topic_partitions_request::Cursor::default()
                .with_topic_name(cursor.topic_name)
                .with_partition_index(cursor.partition_index),
        );
        let second = c.call(version, request).await;
        assert_eq!((second.topics[0].partitions.len(), second.next_cursor), (1, None));
    }
}
