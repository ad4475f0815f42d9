//! AlterPartitionReassignments (45), versions 0 and 1, and ListPartitionReassignments (46), version 0.
//!
//! v1 of 45: whether the number of replicas may change (KIP-860). Ranges are placed, not partitions: the one list of
//! replicas that a partition can have is the node that leads it. Asked for that, nothing is to be done; so nothing is
//! ever under way, and nothing can be cancelled.

use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use rangeway_core::api::Catalog;

/// Says of each partition whether it lies where it was asked to.
pub async fn alter(
    context: Context,
    request: AlterPartitionReassignmentsRequest,
) -> Result<AlterPartitionReassignmentsResponse, Close> {
    let response = AlterPartitionReassignmentsResponse::default()
        .with_error_message(None)
        .with_allow_replication_factor_change(context.version < 1 || request.allow_replication_factor_change);
    if !context.authorize(Operation::Alter, Resource::Cluster) {
        return Ok(response
            .with_error_code(ResponseError::ClusterAuthorizationFailed.code())
            .with_error_message(text("not allowed to place partitions")));
    }
    let (catalog, node) = (context.api.catalog(), context.shared.node.0);
    let responses = request.topics.into_iter().map(|topic| {
        let rows = topic.partitions.iter().map(|partition| {
            let row = ReassignablePartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_error_message(None);
            match judge(&catalog, &topic.name, partition, node) {
                Ok(()) => row,
                Err((code, message)) => row.with_error_code(code.code()).with_error_message(text(message)),
            }
        });
        ReassignableTopicResponse::default().with_partitions(rows.collect()).with_name(topic.name.clone())
    });
    Ok(response.with_responses(responses.collect()))
}

fn judge(catalog: &Catalog, topic: &str, asked: &ReassignablePartition, node: i32) -> Result<(), Refused> {
    let unknown = |what: String| Err((ResponseError::UnknownTopicOrPartition, what));
    let partition = asked.partition_index;
    match vpartition::by_name(catalog, topic) {
        None => return unknown(format!("Unable to find a topic named {topic}.")),
        Some(view) if !(0..view.partitions).contains(&partition) => {
            return unknown(format!("Unable to find partition {topic}:{partition}."));
        }
        Some(_) => {}
    }
    let Some(replicas) = &asked.replicas else {
        return Err((
            ResponseError::NoReassignmentInProgress,
            "No partition reassignment is in progress.".to_owned(),
        ));
    };
    super::create_topics::replicas(replicas, replicas.len(), node)
}

/// There is none.
pub async fn list(
    context: Context,
    _: ListPartitionReassignmentsRequest,
) -> Result<ListPartitionReassignmentsResponse, Close> {
    let response = ListPartitionReassignmentsResponse::default().with_error_message(None);
    if !context.authorize(Operation::Describe, Resource::Cluster) {
        return Ok(response
            .with_error_code(ResponseError::ClusterAuthorizationFailed.code())
            .with_error_message(text("not allowed to see how partitions are placed")));
    }
    Ok(response)
}
