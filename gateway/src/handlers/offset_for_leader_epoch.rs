//! OffsetForLeaderEpoch (23), versions 2 to 4 (KIP-320): where the records of an epoch end.
//!
//! v3: replica id. v4: flexible.

use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

/// Answers (-1, -1) without an error for an epoch that is not known.
pub async fn handle(
    context: Context,
    request: OffsetForLeaderEpochRequest,
) -> Result<OffsetForLeaderEpochResponse, Close> {
    let topics = request
        .topics
        .into_iter()
        .map(|topic| {
            let rows = topic.partitions.iter().map(|p| one(&context, &topic.topic, p)).collect();
            OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(rows)
        })
        .collect();
    Ok(OffsetForLeaderEpochResponse::default().with_topics(topics))
}

fn one(context: &Context, topic: &str, asked: &OffsetForLeaderPartition) -> EpochEndOffset {
    let row = EpochEndOffset::default().with_partition(asked.partition);
    match end(context, topic, asked) {
        Ok((epoch, offset)) => row.with_leader_epoch(epoch).with_end_offset(offset),
        Err(code) => row.with_error_code(code.code()).with_leader_epoch(-1).with_end_offset(-1),
    }
}

fn end(
    context: &Context,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<(i32, i64), ResponseError> {
    if !context.authorize(Operation::Describe, Resource::Topic(topic)) {
        return Err(ResponseError::TopicAuthorizationFailed);
    }
    let catalog = context.api.catalog();
    let view = vpartition::by_name(&catalog, topic).ok_or(ResponseError::UnknownTopicOrPartition)?;
    let at = vpartition::led_here(view, asked.partition, asked.current_leader_epoch, context.shared.node)?;
    vpartition::end_of_epoch(&context.api, at, asked.leader_epoch).map_err(|e| errors::read(&e))
}
