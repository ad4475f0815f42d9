//! Names of internal topics: the node's from the start, whether it has made its own or not.

use crate::process::Node;
use crate::support::{Batch, Client, Topic, start, topic_name};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, GroupId,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, OffsetCommitRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::NewTopic;
use rangeway_gateway::Settings;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const OWN: [&str; 2] = ["__groups", "__transactions"];
const INVALID_TOPIC: i16 = 17;

fn word(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// What clients may try with the name: nothing of it is done.
async fn everything_is_refused(client: &mut Client, name: &'static str, made: bool) {
    for version in [0, 3, 4, 12] {
        let rows = client.metadata(version, &[name]).await.topics;
        assert_eq!(rows[0].error_code, INVALID_TOPIC, "Metadata {version} of {name}");
    }
    let config = |(key, value): (&str, &str)| {
        CreatableTopicConfig::default().with_name(word(key)).with_value(Some(word(value)))
    };
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(50)
        .with_replication_factor(1)
        .with_configs([("retention.ms", "1000"), ("segment.ms", "1000")].map(config).into());
    for validate_only in [true, false] {
        let request =
            CreateTopicsRequest::default().with_topics(vec![topic.clone()]).with_validate_only(validate_only);
        let row = client.call(7, request).await.topics.remove(0);
        let want = if made { ResponseError::TopicAlreadyExists } else { ResponseError::InvalidRequest };
        assert_eq!(row.error_code, want.code(), "{:?}", row.error_message);
        assert!(row.error_message.unwrap().contains(name));
    }
    let topic = Topic { name: name.to_owned(), id: uuid::Uuid::nil() };
    let row = client.produce(&topic, Batch::of(1).bytes()).await;
    assert_eq!(row.error_code, INVALID_TOPIC);
    assert_eq!(row.error_message.unwrap().as_str(), format!("Cannot append to internal topic {name}"));
    let state = DeleteTopicState::default().with_name(Some(topic_name(name)));
    let request = DeleteTopicsRequest::default().with_topics(vec![state]);
    assert_eq!(client.call(6, request).await.responses[0].error_code, INVALID_TOPIC);
    let partition = DeleteRecordsPartition::default().with_offset(-1);
    let topic = DeleteRecordsTopic::default().with_name(topic_name(name)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
    assert_eq!(client.call(2, request).await.topics[0].partitions[0].error_code, INVALID_TOPIC);
    let topic = CreatePartitionsTopic::default().with_name(topic_name(name)).with_count(60);
    let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
    assert_eq!(client.call(3, request).await.results[0].error_code, INVALID_TOPIC);
    let config = AlterableConfig::default().with_name(word("retention.ms")).with_value(Some(word("1000")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(word(name))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(client.call(1, request).await.responses[0].error_code, INVALID_TOPIC);
}

/// Commits an offset of a group, which has the node make its topic.
async fn group_code(client: &mut Client, topic: &Topic) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(&topic.name))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(word("g")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    client.call(7, request).await.topics[0].partitions[0].error_code
}

async fn transaction_code(client: &mut Client) -> i16 {
    let id = TransactionalId(word("t"));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id))
        .with_transaction_timeout_ms(10_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    client.call(4, request).await.error_code
}

/// The code of `ask` once its coordinator has loaded.
macro_rules! settled {
    ($ask:expr) => {{
        let mut code = $ask;
        for _ in 0..200 {
            if ![14, 15, 16].contains(&code) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            code = $ask;
        }
        code
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_makes_writes_or_changes_an_internal_topic() {
    let broker = start(Settings::default()).await;
    let mut client = Client::to(&broker).await;
    for name in OWN {
        everything_is_refused(&mut client, name, false).await;
    }
    assert!(broker.shared.api.catalog().by_name.is_empty(), "nothing was made");
    let topic = client.topic(1, &[]).await;
    assert_eq!(settled!(group_code(&mut client, &topic).await), 0);
    assert_eq!(settled!(transaction_code(&mut client).await), 0);
    for name in OWN {
        everything_is_refused(&mut client, name, true).await;
        let catalog = broker.shared.api.catalog();
        let made = &catalog.by_name[name];
        assert!(made.internal);
        assert_eq!((made.partitions, made.config.retention_ms), (50, None));
    }
    assert_eq!(broker.shared.blocked(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_of_the_name_that_is_not_ours_is_not_adopted_and_said() {
    let broker = start(Settings::default()).await;
    let api = &broker.shared.api;
    // As a version that made another number of them would have left it.
    let foreign = NewTopic {
        name: "__groups".to_owned(),
        partitions: Some(16),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: true,
        validate_only: false,
    };
    let id = api.create_topic(foreign).await.unwrap().id;
    let mut client = Client::to(&broker).await;
    let topic = client.topic(1, &[]).await;
    assert_eq!(group_code(&mut client, &topic).await, ResponseError::CoordinatorNotAvailable.code());
    let blocked = broker.shared.blocked();
    assert_eq!(blocked.len(), 1, "{blocked:?}");
    assert!(blocked[0].starts_with("topic '__groups' has 16 partitions instead of 50"), "{blocked:?}");
    api.delete_topic(id).await.unwrap();
    assert_eq!(settled!(group_code(&mut client, &topic).await), 0);
    assert_eq!(broker.shared.blocked(), Vec::<String>::new());
}

#[test]
fn internal_names_are_refused_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    for name in ["__groups", "__transactions", "__consumer_offsets", "__transaction_state"] {
        let (status, body) = node.json("POST", "/api/v1/topics", &json!({"name": name, "partitions": 50}));
        assert_eq!(status, 403, "{body}");
        assert_eq!(body["error"]["code"], "internal_topic", "{body}");
        assert_eq!(node.http("GET", &format!("/api/v1/topics/{name}"), "", "").0, 404);
    }
    let refused = node.admin(&["topics", "create", "__groups"]);
    assert_eq!(refused.status.code(), Some(1));
}
