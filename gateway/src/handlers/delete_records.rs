//! DeleteRecords (21), versions 0 to 2.
//!
//! v2: flexible. Offset -1 is the high watermark; at or below the log start nothing happens and that is success. The
//! new log start may lie inside a batch: the batch is still served whole and clients skip its first records.

use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use futures_util::stream::{self, StreamExt};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use rangeway_core::api::TopicView;
use std::sync::Arc;

/// Partitions of a request that are worked on at once; their writes share the disk's groups.
const AT_ONCE: usize = 64;
/// Offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Raises log starts.
pub async fn handle(context: Context, request: DeleteRecordsRequest) -> Result<DeleteRecordsResponse, Close> {
    let mut topics = Vec::with_capacity(request.topics.len());
    for asked in &request.topics {
        topics.push(topic(&context, asked).await);
    }
    Ok(DeleteRecordsResponse::default().with_topics(topics))
}

async fn topic(context: &Context, asked: &DeleteRecordsTopic) -> DeleteRecordsTopicResult {
    let found = if context.authorize(Operation::Delete, Resource::Topic(&asked.name)) {
        let catalog = context.api.catalog();
        let known = vpartition::by_name(&catalog, &asked.name).cloned();
        known.ok_or_else(|| vpartition::not_there(&asked.name).0)
    } else {
        Err(ResponseError::TopicAuthorizationFailed)
    };
    let work: Vec<_> = asked.partitions.iter().map(|p| partition(context, &found, p)).collect();
    let partitions = stream::iter(work).buffered(AT_ONCE).collect().await;
    DeleteRecordsTopicResult::default().with_name(asked.name.clone()).with_partitions(partitions)
}

async fn partition(
    context: &Context,
    topic: &Result<Arc<TopicView>, ResponseError>,
    asked: &DeleteRecordsPartition,
) -> DeleteRecordsPartitionResult {
    let outcome = match topic {
        Ok(topic) => delete(context, topic, asked).await,
        Err(code) => Err(*code),
    };
    let row = DeleteRecordsPartitionResult::default().with_partition_index(asked.partition_index);
    match outcome {
        Ok(low) => row.with_low_watermark(low),
        Err(code) => row.with_low_watermark(-1).with_error_code(code.code()),
    }
}

async fn delete(
    context: &Context,
    topic: &TopicView,
    asked: &DeleteRecordsPartition,
) -> Result<i64, ResponseError> {
    vpartition::check_stored(topic, "delete records of").map_err(|(code, _)| code)?;
    let at = vpartition::led_here(topic, asked.partition_index, -1, context.api.cluster().node)?;
    let before = match asked.offset {
        HIGH_WATERMARK => None,
        offset if offset < 0 => return Err(ResponseError::OffsetOutOfRange),
        offset => Some(offset),
    };
    let low = context.api.delete_records(at, before).await.map_err(|e| errors::read(&e))?;
    tracing::info!(topic = &*topic.name, partition = at.partition, low, "records deleted");
    Ok(low)
}
