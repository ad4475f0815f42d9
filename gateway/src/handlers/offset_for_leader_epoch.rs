//! OffsetForLeaderEpoch (23), versions 2 to 4 (KIP-320): where the records of an epoch end.
//!
//! v3: replica id. v4: flexible.

use super::{Context, Operation, Resource};
use crate::offsets_view;
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
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut rows = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            rows.push(one(&context, &topic.topic, asked).await);
        }
        topics.push(OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(rows));
    }
    Ok(OffsetForLeaderEpochResponse::default().with_topics(topics))
}

async fn one(context: &Context, topic: &str, asked: &OffsetForLeaderPartition) -> EpochEndOffset {
    let row = EpochEndOffset::default().with_partition(asked.partition);
    match end(context, topic, asked).await {
        Ok((epoch, offset)) => row.with_leader_epoch(epoch).with_end_offset(offset),
        Err(code) => row.with_error_code(code.code()).with_leader_epoch(-1).with_end_offset(-1),
    }
}

async fn end(
    context: &Context,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<(i32, i64), ResponseError> {
    if !context.authorize(Operation::Describe, Resource::Topic(topic)) {
        return Err(ResponseError::TopicAuthorizationFailed);
    }
    let (at, derived) = {
        let catalog = context.api.catalog();
        let view = vpartition::by_name(&catalog, topic).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let (partition, believed) = (asked.partition, asked.current_leader_epoch);
        (
            vpartition::led_here(view, partition, believed, context.shared.node)?,
            vpartition::derived(view, partition),
        )
    };
    match derived {
        // Never cut: whatever the epoch, its records are followed by those of the next.
        Some((at, _)) if (0..=at.epoch).contains(&asked.leader_epoch) => {
            let offsets = offsets_view::bounds(&context.shared.groups, at).await?;
            Ok((asked.leader_epoch, offsets.high_watermark))
        }
        Some((at, _)) if asked.leader_epoch < -1 => {
            let offsets = offsets_view::bounds(&context.shared.groups, at).await?;
            Ok((asked.leader_epoch, offsets.log_start))
        }
        Some(_) => Ok((-1, -1)),
        None => vpartition::end_of_epoch(&context.api, at, asked.leader_epoch).map_err(|e| errors::read(&e)),
    }
}
