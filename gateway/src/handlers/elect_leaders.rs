//! ElectLeaders (43), versions 0 to 2.
//!
//! v1: election types (KIP-460); v0 means preferred. v2: flexible. A partition has one place here, so the leader that
//! there is, is the preferred one, and no copy that lacks records could lead: there is never an election to hold.

use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::Catalog;
use rangeway_core::types::Partition;

/// Preferred and unclean.
const TYPES: std::ops::RangeInclusive<i8> = 0..=1;

/// Says of each partition that it has the leader that it should.
pub async fn handle(context: Context, request: ElectLeadersRequest) -> Result<ElectLeadersResponse, Close> {
    let response = ElectLeadersResponse::default();
    if !context.authorize(Operation::Alter, Resource::Cluster) {
        return Ok(response.with_error_code(ResponseError::ClusterAuthorizationFailed.code()));
    }
    if context.version >= 1 && !TYPES.contains(&request.election_type) {
        return Ok(response.with_error_code(ResponseError::InvalidRequest.code()));
    }
    let catalog = context.api.catalog();
    let results = match &request.topic_partitions {
        // All partitions: those where there is nothing to do are left out, their topics are not.
        None => {
            let visible = catalog.by_name.values().filter(|topic| !topic.internal);
            let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
            visible.map(|topic| ReplicaElectionResult::default().with_topic(name(&topic.name))).collect()
        }
        Some(topics) => topics
            .iter()
            .map(|topic| {
                let rows = topic.partitions.iter().map(|p| row(&catalog, &topic.topic, *p)).collect();
                ReplicaElectionResult::default().with_topic(topic.topic.clone()).with_partition_result(rows)
            })
            .collect(),
    };
    Ok(response.with_replica_election_results(results))
}

fn row(catalog: &Catalog, topic: &str, partition: Partition) -> PartitionResult {
    let (code, message) = judge(catalog, topic, partition);
    PartitionResult::default()
        .with_partition_id(partition)
        .with_error_code(code.code())
        .with_error_message(text(message))
}

fn judge(catalog: &Catalog, topic: &str, partition: Partition) -> Refused {
    match vpartition::by_name(catalog, topic) {
        None => (ResponseError::UnknownTopicOrPartition, format!("No such topic as {topic}")),
        Some(view) if !(0..view.partitions).contains(&partition) => {
            (ResponseError::UnknownTopicOrPartition, format!("No such partition as {topic}-{partition}"))
        }
        Some(_) => {
            (ResponseError::ElectionNotNeeded, "Leader election not needed for topic partition.".to_owned())
        }
    }
}
