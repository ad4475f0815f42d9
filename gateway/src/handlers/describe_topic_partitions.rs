//! DescribeTopicPartitions (75), version 0 (KIP-966): topics in order of name, in pages.

use super::metadata::topic_operations;
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::TopicView;
use std::collections::BTreeSet;

/// Most partitions in one answer.
const PAGE_MAX: i32 = 2000;

/// Describes topics from the cursor on.
pub async fn handle(
    context: Context,
    request: DescribeTopicPartitionsRequest,
) -> Result<DescribeTopicPartitionsResponse, Close> {
    if is_beside(&request) {
        let refused = request.topics.into_iter().map(|topic| {
            DescribeTopicPartitionsResponseTopic::default()
                .with_error_code(ResponseError::InvalidRequest.code())
                .with_name(Some(topic.name))
        });
        return Ok(DescribeTopicPartitionsResponse::default().with_topics(refused.collect()));
    }
    let catalog = context.api.catalog();
    let mut names: BTreeSet<String> = if request.topics.is_empty() {
        let visible = catalog.by_name.values().filter(|t| !t.internal);
        visible
            .filter(|t| context.authorize(Operation::Describe, Resource::Topic(&t.name)))
            .map(|t| t.name.to_string())
            .collect()
    } else {
        request.topics.iter().map(|t| t.name.to_string()).collect()
    };
    let (first, skip) = match &request.cursor {
        Some(cursor) => (cursor.topic_name.to_string(), cursor.partition_index),
        None => (String::new(), 0),
    };
    names = names.split_off(&first);
    let mut left = request.response_partition_limit.clamp(1, PAGE_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        if left == 0 {
            response.next_cursor = Some(cursor(&name, 0));
            break;
        }
        let unknown = |code: ResponseError| {
            DescribeTopicPartitionsResponseTopic::default()
                .with_error_code(code.code())
                .with_name(Some(topic_name(&name)))
        };
        if !context.authorize(Operation::Describe, Resource::Topic(&name)) {
            response.topics.push(unknown(ResponseError::TopicAuthorizationFailed));
            continue;
        }
        let Some(topic) = vpartition::by_name(&catalog, &name) else {
            let valid = vpartition::check_topic_name(&name).is_ok();
            let row = unknown(if valid {
                ResponseError::UnknownTopicOrPartition
            } else {
                ResponseError::InvalidTopicException
            });
            response.topics.push(row.with_topic_authorized_operations(topic_operations(&context, &name)));
            continue;
        };
        let from = if name == first { skip.min(topic.partitions) } else { 0 };
        let to = topic.partitions.min(from.saturating_add(left));
        left -= to - from;
        response.topics.push(
            DescribeTopicPartitionsResponseTopic::default()
                .with_name(Some(topic_name(&name)))
                .with_topic_id(topic.id.0)
                .with_is_internal(topic.derived_from.is_some())
                .with_partitions((from..to).map(|p| partition(topic, p)).collect())
                .with_topic_authorized_operations(topic_operations(&context, &name)),
        );
        if to < topic.partitions {
            response.next_cursor = Some(cursor(&name, to));
            break;
        }
    }
    Ok(response)
}

/// Whether a cursor is at no partition, or in no topic that is asked for; one past a topic's last is at its end.
fn is_beside(request: &DescribeTopicPartitionsRequest) -> bool {
    let Some(cursor) = &request.cursor else { return false };
    let topics = &request.topics;
    let asked = topics.is_empty() || topics.iter().any(|topic| topic.name == cursor.topic_name);
    cursor.partition_index < 0 || !asked
}

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

fn cursor(name: &str, partition: i32) -> Cursor {
    Cursor::default().with_topic_name(topic_name(name)).with_partition_index(partition)
}

fn partition(topic: &TopicView, index: i32) -> DescribeTopicPartitionsResponsePartition {
    let row = DescribeTopicPartitionsResponsePartition::default()
        .with_partition_index(index)
        .with_eligible_leader_replicas(Some(Vec::new()))
        .with_last_known_elr(Some(Vec::new()));
    match topic.leader(index) {
        Some((leader, epoch)) => row
            .with_leader_id(BrokerId(leader.0))
            .with_leader_epoch(epoch)
            .with_replica_nodes(vec![BrokerId(leader.0)])
            .with_isr_nodes(vec![BrokerId(leader.0)]),
        None => row
            .with_error_code(ResponseError::LeaderNotAvailable.code())
            .with_leader_id(BrokerId(-1))
            .with_leader_epoch(-1),
    }
}
