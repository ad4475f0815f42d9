//! Metadata (3), versions 0 to 13.
//!
//! v0: an empty list means all topics; from v1 null does, and empty means none. v4: may create. v7: leader epochs.
//! v8: authorised operations. v9: flexible. v10: topic ids. v12: lookup by id. v13: a top-level error code.

use super::{Context, Operation, Resource};
use crate::offsets_view;
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::{NewTopic, TopicView};
use rangeway_core::error::TopicError;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Stands for "not asked for" in fields of authorised operations.
pub(super) const OPERATIONS_UNKNOWN: i32 = i32::MIN;

/// Topics that one request makes at most. Further ones are answered as unknown, and made when they are asked for again: so
/// that a long list of names makes no more than clients go on to ask for.
const CREATED_MAX: usize = 100;

/// Describes nodes and topics.
pub async fn handle(context: Context, request: MetadataRequest) -> Result<MetadataResponse, Close> {
    let version = context.version;
    let all = match &request.topics {
        None => true,
        Some(topics) => version == 0 && topics.is_empty(),
    };
    let operations = version >= 8 && request.include_topic_authorized_operations;
    let topics =
        if all { all_topics(&context, operations) } else { named(&context, &request, operations).await };
    let cluster = context.api.cluster();
    let mut response = MetadataResponse::default()
        .with_brokers(brokers(&context))
        .with_cluster_id(Some(StrBytes::from_string(cluster.cluster_id)))
        .with_controller_id(BrokerId(cluster.node.0))
        .with_topics(topics);
    if (8..=10).contains(&version) && request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = cluster_operations(&context);
    }
    Ok(response)
}

/// Live nodes as this client reaches them.
fn brokers(context: &Context) -> Vec<MetadataResponseBroker> {
    let (host, port) = context.client.node_address(&context.shared);
    let cluster = context.api.cluster();
    let own = cluster.nodes.iter().filter(|(node, _)| *node == cluster.node);
    own.map(|(node, rack)| {
        MetadataResponseBroker::default()
            .with_node_id(BrokerId(node.0))
            .with_host(StrBytes::from_string(host.clone()))
            .with_port(i32::from(port))
            .with_rack(rack.clone().map(StrBytes::from_string))
    })
    .collect()
}

fn all_topics(context: &Context, operations: bool) -> Vec<MetadataResponseTopic> {
    let catalog = context.api.catalog();
    let visible = catalog.by_name.values().filter(|topic| !topic.internal);
    visible
        .filter(|topic| context.authorize(Operation::Describe, Resource::Topic(&topic.name)))
        .map(|topic| describe(context, topic, operations))
        .collect()
}

async fn named(context: &Context, request: &MetadataRequest, operations: bool) -> Vec<MetadataResponseTopic> {
    let may_create = context.shared.settings.auto_create_topics
        && (context.version < 4 || request.allow_auto_topic_creation);
    let mut creates = if may_create { CREATED_MAX } else { 0 };
    let mut seen = HashSet::new();
    let mut rows = Vec::new();
    for topic in request.topics.iter().flatten() {
        // A name given twice is answered once.
        if seen.insert((topic.name.clone(), topic.topic_id)) {
            rows.push(one(context, topic, &mut creates, operations).await);
        }
    }
    rows
}

async fn one(
    context: &Context,
    asked: &MetadataRequestTopic,
    creates: &mut usize,
    operations: bool,
) -> MetadataResponseTopic {
    let failed = |code: ResponseError| {
        let name = match &asked.name {
            None if context.version < 12 => Some(TopicName::default()),
            name => name.clone().filter(|_| asked.topic_id.is_nil() || context.version < 12),
        };
        MetadataResponseTopic::default()
            .with_error_code(code.code())
            .with_name(name)
            .with_topic_id(asked.topic_id)
            .with_topic_authorized_operations(OPERATIONS_UNKNOWN)
    };
    let by_id = !asked.topic_id.is_nil();
    if context.version < 12 && (by_id || asked.name.is_none()) {
        return failed(ResponseError::InvalidRequest);
    }
    let catalog = context.api.catalog();
    // As in Kafka an id counts whatever name stands beside it: Java's consumers send an empty one.
    let Some(name) = asked.name.as_ref().filter(|_| !by_id) else {
        return match vpartition::by_id(&catalog, asked.topic_id) {
            Some(topic) if context.authorize(Operation::Describe, Resource::Topic(&topic.name)) => {
                describe(context, topic, operations)
            }
            _ => failed(ResponseError::UnknownTopicId),
        };
    };
    if !context.authorize(Operation::Describe, Resource::Topic(name)) {
        return failed(ResponseError::TopicAuthorizationFailed);
    }
    if let Some(topic) = vpartition::by_name(&catalog, name) {
        return describe(context, topic, operations);
    }
    if vpartition::check_topic_name(name).is_err() {
        return failed(ResponseError::InvalidTopicException);
    }
    // As in Kafka the topic of offsets is made when it is asked for.
    if *creates > 0 && name.as_str() == offsets_view::NAME {
        let made = context.shared.groups.make_topic().await;
        return match vpartition::by_name(&context.api.catalog(), name).filter(|_| made.is_ok()) {
            Some(topic) => describe(context, topic, operations),
            None => failed(ResponseError::LeaderNotAvailable),
        };
    }
    if vpartition::is_own_name(name) {
        return failed(ResponseError::InvalidTopicException);
    }
    if *creates == 0 || !vpartition::may_be_auto_created(name) {
        return failed(ResponseError::UnknownTopicOrPartition);
    }
    if !context.may_create(name) {
        return failed(ResponseError::TopicAuthorizationFailed);
    }
    *creates -= 1;
    match create(context, name).await {
        Ok(topic) => describe(context, &topic, operations),
        Err(code) => failed(code),
    }
}

/// Makes a topic because a client asked about it; it serves when this returns.
async fn create(context: &Context, name: &str) -> Result<Arc<TopicView>, ResponseError> {
    let topic = NewTopic {
        name: name.to_owned(),
        partitions: None,
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: false,
        validate_only: false,
    };
    match context.api.create_topic(topic).await {
        Ok(topic) => {
            tracing::info!(topic = name, id = %topic.id, partitions = topic.partitions, "topic created on request");
            Ok(topic)
        }
        // Two clients asked at once.
        Err(TopicError::Exists(_)) => vpartition::by_name(&context.api.catalog(), name)
            .cloned()
            .ok_or(ResponseError::UnknownTopicOrPartition),
        Err(TopicError::Control(why)) => {
            tracing::warn!(topic = name, why, "topic not created");
            Err(ResponseError::LeaderNotAvailable)
        }
        Err(error) => {
            tracing::warn!(topic = name, %error, "topic not created");
            Err(errors::topic(&error))
        }
    }
}

fn describe(context: &Context, topic: &TopicView, operations: bool) -> MetadataResponseTopic {
    let partitions = (0..topic.partitions)
        .map(|index| {
            let row = MetadataResponsePartition::default().with_partition_index(index);
            match topic.leader(index) {
                Some((leader, epoch)) => {
                    let leader = BrokerId(leader.0);
                    row.with_leader_id(leader)
                        .with_leader_epoch(epoch)
                        .with_replica_nodes(vec![leader])
                        .with_isr_nodes(vec![leader])
                }
                None => row
                    .with_error_code(ResponseError::LeaderNotAvailable.code())
                    .with_leader_id(BrokerId(-1))
                    .with_leader_epoch(-1),
            }
        })
        .collect();
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(topic.name.to_string()))))
        .with_topic_id(topic.id.0)
        .with_is_internal(topic.derived_from.is_some())
        .with_partitions(partitions)
        .with_topic_authorized_operations(if operations {
            topic_operations(context, &topic.name)
        } else {
            OPERATIONS_UNKNOWN
        })
}

/// Kafka's number of an operation is its bit.
fn bits(context: &Context, operations: &[(Operation, u32)], resource: Resource<'_>) -> i32 {
    let allowed = operations.iter().filter(|(operation, _)| context.authorize(*operation, resource));
    allowed.fold(0, |bits, (_, number)| bits | 1 << number)
}

/// What the principal may do to a topic, as bits (KIP-430).
pub(super) fn topic_operations(context: &Context, topic: &str) -> i32 {
    const ALL: [(Operation, u32); 8] = [
        (Operation::Read, 3),
        (Operation::Write, 4),
        (Operation::Create, 5),
        (Operation::Delete, 6),
        (Operation::Alter, 7),
        (Operation::Describe, 8),
        (Operation::DescribeConfigs, 10),
        (Operation::AlterConfigs, 11),
    ];
    bits(context, &ALL, Resource::Topic(topic))
}

/// What the principal may do to the cluster, as bits (KIP-430).
pub(super) fn cluster_operations(context: &Context) -> i32 {
    const ALL: [(Operation, u32); 7] = [
        (Operation::Create, 5),
        (Operation::Alter, 7),
        (Operation::Describe, 8),
        (Operation::ClusterAction, 9),
        (Operation::DescribeConfigs, 10),
        (Operation::AlterConfigs, 11),
        (Operation::IdempotentWrite, 12),
    ];
    bits(context, &ALL, Resource::Cluster)
}
