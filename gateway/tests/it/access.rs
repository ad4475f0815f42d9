//! Access rules over the wire: made, found and taken away, and what each API answers to who has no right.

use crate::support::{Batch, Broker, Client, fetch_request, produce_request, run, start, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{GroupId, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::config::node::NodeConfig;
use rangeway_gateway::Settings;
use std::sync::Arc;

const TOPIC: i8 = 2;
const GROUP: i8 = 3;
const CLUSTER: i8 = 4;
const TRANSACTION: i8 = 5;
const ALL: i8 = 2;
const DENY: i8 = 2;
const TOPIC_DENIED: i16 = 29;
const GROUP_DENIED: i16 = 30;
const CLUSTER_DENIED: i16 = 31;
const TRANSACTION_DENIED: i16 = 53;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A node with an authoriser; whether all is allowed where no rule is.
async fn guarded(everyone: bool) -> Broker {
    let mut config = NodeConfig::default();
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    config.set("authorizer.class.name", authorizer).unwrap();
    config.set("allow.everyone.if.no.acl.found", &everyone.to_string()).unwrap();
    start(Settings { node: Arc::new(config), ..Settings::default() }).await
}

fn rule(kind: i8, name: &str, operation: i8, permission: i8) -> AclCreation {
    AclCreation::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_resource_pattern_type(3)
        .with_principal(text("User:*"))
        .with_host(text("*"))
        .with_operation(operation)
        .with_permission_type(permission)
}

async fn make(c: &mut Client, version: i16, rules: Vec<AclCreation>) -> Vec<i16> {
    let response = c.call(version, m::CreateAclsRequest::default().with_creations(rules)).await;
    response.results.iter().map(|row| row.error_code).collect()
}

fn all() -> DeleteAclsFilter {
    DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1)
}

/// (resource's type, name, how many rules) of all that there are, or the error.
async fn shown(c: &mut Client, version: i16) -> Result<Vec<(i8, String, usize)>, i16> {
    let request = m::DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let response = c.call(version, request).await;
    if response.error_code != 0 {
        return Err(response.error_code);
    }
    let row = |r: &m::describe_acls_response::DescribeAclsResource| {
        (r.resource_type, r.resource_name.to_string(), r.acls.len())
    };
    Ok(response.resources.iter().map(row).collect())
}

#[test]
fn rules_are_made_found_and_taken_away() {
    run(async {
        let broker = guarded(true).await;
        let mut c = Client::to(&broker).await;
        for version in 1..=3 {
            let wrong = rule(TOPIC, "", 3, 3);
            let rules =
                vec![rule(TOPIC, "a", 3, 3), wrong, rule(TOPIC, "a", 4, DENY), rule(GROUP, "g", ALL, 3)];
            assert_eq!(make(&mut c, version, rules.clone()).await, [0, 42, 0, 0]);
            assert_eq!(make(&mut c, version, rules).await, [0, 42, 0, 0], "once more is no fault");
            let there = vec![(TOPIC, "a".to_owned(), 2), (GROUP, "g".to_owned(), 1)];
            assert_eq!(shown(&mut c, version).await, Ok(there));
            let filters = vec![all().with_operation(4), all().with_resource_type_filter(0)];
            let response =
                c.call(version, m::DeleteAclsRequest::default().with_filters(filters)).await.filter_results;
            let matching: Vec<_> = response[0].matching_acls.iter().map(|acl| acl.operation).collect();
            assert_eq!((matching, response[1].error_code), (vec![4], 42));
            c.call(version, m::DeleteAclsRequest::default().with_filters(vec![all()])).await;
            assert_eq!(shown(&mut c, version).await, Ok(vec![]));
        }
    });
}

#[test]
fn without_a_right_on_the_cluster_rules_are_hidden_and_stay() {
    run(async {
        let broker = guarded(false).await;
        let mut c = Client::to(&broker).await;
        assert_eq!(shown(&mut c, 3).await, Err(CLUSTER_DENIED));
        assert_eq!(make(&mut c, 3, vec![rule(TOPIC, "a", 3, 3)]).await, [CLUSTER_DENIED]);
        let response = c.call(3, m::DeleteAclsRequest::default().with_filters(vec![all()])).await;
        assert_eq!(response.filter_results[0].error_code, CLUSTER_DENIED);
        let topic = CreatableTopic::default().with_name(topic_name("a")).with_num_partitions(1);
        let request = m::CreateTopicsRequest::default().with_topics(vec![topic.with_replication_factor(1)]);
        assert_eq!(c.call(7, request).await.topics[0].error_code, TOPIC_DENIED);
        assert_eq!(c.metadata(12, &["a"]).await.topics[0].error_code, TOPIC_DENIED);
    });
}

#[test]
fn a_topic_that_is_denied_is_not_seen_read_written_or_changed() {
    run(async {
        let broker = guarded(true).await;
        let mut c = Client::to(&broker).await;
        let (t, other) = (c.topic(1, &[]).await, c.topic(1, &[]).await);
        assert_eq!(c.produce(&t, Batch::of(1).bytes()).await.error_code, 0);
        assert_eq!(make(&mut c, 3, vec![rule(TOPIC, &t.name, ALL, DENY)]).await, [0]);

        let row = c.metadata(12, &[&t.name]).await.topics.remove(0);
        assert_eq!((row.error_code, row.topic_id.is_nil(), row.partitions.len()), (TOPIC_DENIED, true, 0));
        let everything = c.call(12, m::MetadataRequest::default().with_topics(None)).await;
        let names: Vec<_> = everything.topics.iter().filter_map(|t| t.name.as_ref()).collect();
        assert!(names.contains(&&topic_name(&other.name)) && !names.contains(&&topic_name(&t.name)));
        assert_eq!(c.produce(&t, Batch::of(1).bytes()).await.error_code, TOPIC_DENIED);
        let by_id = c.call(13, produce_request(&t, -1, &[(0, Some(Batch::of(1).bytes()))])).await;
        assert_eq!(by_id.responses[0].partition_responses[0].error_code, TOPIC_DENIED);
        let fetched = c.fetch(&t, 0).await;
        assert_eq!((fetched.error_code, fetched.records.map_or(0, |r| r.len())), (TOPIC_DENIED, 0));
        let by_id = c.call(13, fetch_request(&t, &[(0, 0)])).await;
        assert_eq!(by_id.responses[0].partitions[0].error_code, TOPIC_DENIED);
        let partition = ListOffsetsPartition::default().with_timestamp(-1);
        let topic =
            ListOffsetsTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
        let offsets = c.call(7, m::ListOffsetsRequest::default().with_topics(vec![topic])).await;
        assert_eq!(offsets.topics[0].partitions[0].error_code, TOPIC_DENIED);
        let topic = CreatePartitionsTopic::default().with_name(topic_name(&t.name)).with_count(2);
        let grown = c.call(3, m::CreatePartitionsRequest::default().with_topics(vec![topic])).await;
        assert_eq!(grown.results[0].error_code, TOPIC_DENIED);
        let partition = DeleteRecordsPartition::default().with_offset(-1);
        let topic =
            DeleteRecordsTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
        let cut = c.call(2, m::DeleteRecordsRequest::default().with_topics(vec![topic])).await;
        assert_eq!(cut.topics[0].partitions[0].error_code, TOPIC_DENIED);
        let topic =
            DescribeConfigsResource::default().with_resource_type(TOPIC).with_resource_name(text(&t.name));
        let configs = c.call(4, m::DescribeConfigsRequest::default().with_resources(vec![topic])).await;
        assert_eq!((configs.results[0].error_code, configs.results[0].configs.len()), (TOPIC_DENIED, 0));
        let topic = DeleteTopicState::default().with_name(Some(topic_name(&t.name)));
        let dropped = c.call(6, m::DeleteTopicsRequest::default().with_topics(vec![topic])).await;
        assert_eq!(dropped.responses[0].error_code, TOPIC_DENIED);

        assert_eq!(c.produce(&other, Batch::of(1).bytes()).await.error_code, 0);
        c.call(3, m::DeleteAclsRequest::default().with_filters(vec![all()])).await;
        assert_eq!(c.fetch(&t, 0).await.records.map(|r| r.is_empty()), Some(false), "nothing was lost");
    });
}

#[test]
fn groups_and_transactional_ids_that_are_denied_are_not_used() {
    run(async {
        let broker = guarded(true).await;
        let mut c = Client::to(&broker).await;
        let rules = vec![rule(GROUP, "g", ALL, DENY), rule(TRANSACTION, "x", ALL, DENY)];
        assert_eq!(make(&mut c, 3, rules).await, [0, 0]);
        for (kind, key, code) in
            [(0, "g", GROUP_DENIED), (1, "x", TRANSACTION_DENIED), (0, "h", 0), (1, "y", 0)]
        {
            let request = m::FindCoordinatorRequest::default()
                .with_key_type(kind)
                .with_coordinator_keys(vec![text(key)]);
            assert_eq!(c.call(4, request).await.coordinators[0].error_code, code, "{key}");
        }
        let group = GroupId(text("g"));
        let join = m::JoinGroupRequest::default()
            .with_group_id(group.clone())
            .with_session_timeout_ms(10_000)
            .with_protocol_type(text("consumer"));
        assert_eq!(c.call(9, join).await.error_code, GROUP_DENIED);
        let fetch = OffsetFetchRequestGroup::default().with_group_id(group.clone()).with_topics(None);
        let fetched = c.call(8, m::OffsetFetchRequest::default().with_groups(vec![fetch])).await;
        assert_eq!(fetched.groups[0].error_code, GROUP_DENIED);
        let described = c.call(5, m::DescribeGroupsRequest::default().with_groups(vec![group.clone()])).await;
        assert_eq!(described.groups[0].error_code, GROUP_DENIED);
        let gone = c.call(2, m::DeleteGroupsRequest::default().with_groups_names(vec![group])).await;
        assert_eq!(gone.results[0].error_code, GROUP_DENIED);

        let init = m::InitProducerIdRequest::default().with_transaction_timeout_ms(1000);
        let init = init.with_producer_id((-1).into()).with_producer_epoch(-1);
        let own = init.clone().with_transactional_id(Some(TransactionalId(text("x"))));
        assert_eq!(c.call(4, own).await.error_code, TRANSACTION_DENIED);
        let idempotent = init.with_transactional_id(None);
        assert_eq!(c.call(4, idempotent.clone()).await.error_code, 0);
        let rules = vec![rule(CLUSTER, "kafka-cluster", 12, DENY), rule(TOPIC, "*", 4, DENY)];
        assert_eq!(make(&mut c, 3, rules).await, [0, 0]);
        assert_eq!(c.call(4, idempotent).await.error_code, CLUSTER_DENIED, "no topic is there to be written");
    });
}
