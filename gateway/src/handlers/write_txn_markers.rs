//! WriteTxnMarkers (27), version 1: ends a transaction in single partitions, for tools that find one hanging.
//!
//! Such a marker has no number: it ends whatever its producer has open there.

use super::words::{UNKNOWN_TOPIC, client_topic};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::transactions::Producer;
use futures_util::future::join_all;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};

/// Writes them; one code per partition.
pub async fn handle(
    context: Context,
    request: WriteTxnMarkersRequest,
) -> Result<WriteTxnMarkersResponse, Close> {
    let allowed = [Operation::ClusterAction, Operation::Alter]
        .into_iter()
        .any(|operation| context.authorize(operation, Resource::Cluster));
    let mut results = Vec::with_capacity(request.markers.len());
    for marker in &request.markers {
        results.push(write(&context, marker, allowed).await);
    }
    Ok(WriteTxnMarkersResponse::default().with_markers(results))
}

async fn write(context: &Context, marker: &WritableTxnMarker, allowed: bool) -> WritableTxnMarkerResult {
    let mut topics = Vec::with_capacity(marker.topics.len());
    for topic in &marker.topics {
        let partitions = topic.partition_indexes.iter().map(async |partition| {
            let code = match allowed {
                true => code(context, marker, &topic.name, *partition).await,
                false => ResponseError::ClusterAuthorizationFailed.code(),
            };
            WritableTxnMarkerPartitionResult::default().with_partition_index(*partition).with_error_code(code)
        });
        let partitions = join_all(partitions).await;
        topics.push(
            WritableTxnMarkerTopicResult::default().with_name(topic.name.clone()).with_partitions(partitions),
        );
    }
    WritableTxnMarkerResult::default().with_producer_id(marker.producer_id).with_topics(topics)
}

async fn code(context: &Context, marker: &WritableTxnMarker, topic: &str, partition: i32) -> i16 {
    let place = client_topic(&context.api.catalog(), topic)
        .filter(|view| view.derived_from.is_none() && (0..view.partitions).contains(&partition))
        .map(|view| (view.id, partition));
    let Some(place) = place else { return UNKNOWN_TOPIC };
    let producer = Producer { id: marker.producer_id.0, epoch: marker.producer_epoch };
    let (commit, epoch) = (marker.transaction_result, marker.coordinator_epoch);
    let written = context.shared.transactions.write_marker(place, producer, commit, epoch);
    written.await.map_or_else(|error| errors::append(&error).code(), |()| errors::NONE)
}
