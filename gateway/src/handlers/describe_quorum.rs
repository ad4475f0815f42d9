//! DescribeQuorum (55), versions 0 to 2.
//!
//! v1: times of the last fetch (KIP-836). v2: nodes and directories (KIP-853). Kafka's tools ask for the one partition of
//! `__cluster_metadata`: here that is the control state, with this node as its leader and only voter; its offsets are
//! the state's versions.

use super::configs::text;
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use kafka_protocol::messages::{BrokerId, DescribeQuorumRequest, DescribeQuorumResponse};
use kafka_protocol::protocol::StrBytes;

/// The topic that Kafka keeps its cluster's state in.
const TOPIC: &str = "__cluster_metadata";

/// Describes who keeps the control state.
pub async fn handle(
    context: Context,
    request: DescribeQuorumRequest,
) -> Result<DescribeQuorumResponse, Close> {
    let response = DescribeQuorumResponse::default().with_error_message(None);
    if !context.authorize(Operation::Describe, Resource::Cluster) {
        return Ok(response
            .with_error_code(ResponseError::ClusterAuthorizationFailed.code())
            .with_error_message(text("not allowed to see the control plane")));
    }
    let the_one = |topics: &[kafka_protocol::messages::describe_quorum_request::TopicData]| match topics {
        [only] => {
            only.topic_name.as_str() == TOPIC
                && matches!(only.partitions.as_slice(), [p] if p.partition_index == 0)
        }
        _ => false,
    };
    if !the_one(&request.topics) {
        return Ok(response.with_topics(unknown(&request)));
    }
    let (voter, now_ms) = (context.api.control_voter(), context.api.now_ms());
    let version = i64::try_from(voter.version).unwrap_or(i64::MAX);
    let leader = BrokerId(context.shared.node.0);
    let mut replica = ReplicaState::default().with_replica_id(leader).with_log_end_offset(version);
    if context.version >= 1 {
        replica = replica.with_last_fetch_timestamp(now_ms).with_last_caught_up_timestamp(now_ms);
    }
    if context.version >= 2 {
        replica = replica.with_replica_directory_id(voter.disk);
    }
    let partition = PartitionData::default()
        .with_error_message(None)
        .with_leader_id(leader)
        .with_leader_epoch(i32::try_from(voter.generation).unwrap_or(i32::MAX))
        .with_high_watermark(version)
        .with_current_voters(vec![replica]);
    let topic = TopicData::default()
        .with_topic_name(request.topics.into_iter().next().map(|t| t.topic_name).unwrap_or_default())
        .with_partitions(vec![partition]);
    let response = response.with_topics(vec![topic]);
    if context.version < 2 {
        return Ok(response);
    }
    let (host, port) = context.client.node_address(&context.shared);
    let listener = Listener::default()
        .with_name(StrBytes::from_static_str("PLAINTEXT"))
        .with_host(StrBytes::from_string(host))
        .with_port(port);
    Ok(response.with_nodes(vec![Node::default().with_node_id(leader).with_listeners(vec![listener])]))
}

/// Every partition that was asked for, as not existing.
fn unknown(request: &DescribeQuorumRequest) -> Vec<TopicData> {
    let topics = request.topics.iter().map(|topic| {
        let rows = topic.partitions.iter().map(|partition| {
            PartitionData::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(ResponseError::UnknownTopicOrPartition.code())
                .with_error_message(None)
                .with_leader_id(BrokerId(-1))
                .with_leader_epoch(-1)
                .with_high_watermark(-1)
        });
        TopicData::default().with_topic_name(topic.topic_name.clone()).with_partitions(rows.collect())
    });
    topics.collect()
}
