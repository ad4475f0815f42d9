//! DescribeProducers (61), version 0 (KIP-664): who writes to a partition, for tools that look for hanging transactions.
//!
//! The time of a producer is the node's, when it took the producer's last batch or marker: that is what is kept of it, and
//! what its expiry is judged by. Kafka's is the largest timestamp of the last batch.

use super::words::{TOPIC_DENIED, UNKNOWN_TOPIC, client_topic};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, ProducerId};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::{Catalog, ProducerView};
use rangeway_core::error::TopicPartition;

/// One row per partition asked for.
pub async fn handle(
    context: Context,
    request: DescribeProducersRequest,
) -> Result<DescribeProducersResponse, Close> {
    let catalog = context.api.catalog();
    let topics = request.topics.into_iter().map(|topic| {
        let allowed = context.authorize(Operation::Read, Resource::Topic(&topic.name));
        let partitions = topic.partition_indexes.iter().map(|partition| {
            let row = match allowed {
                true => describe(&context, &catalog, &topic.name, *partition),
                false => failed(TOPIC_DENIED, None),
            };
            row.with_partition_index(*partition)
        });
        let partitions = partitions.collect();
        TopicResponse::default().with_name(topic.name).with_partitions(partitions)
    });
    Ok(DescribeProducersResponse::default().with_topics(topics.collect()))
}

fn describe(context: &Context, catalog: &Catalog, topic: &str, partition: i32) -> PartitionResponse {
    let view = client_topic(catalog, topic).filter(|view| (0..view.partitions).contains(&partition));
    let Some(view) = view else { return failed(UNKNOWN_TOPIC, None) };
    if view.derived_from.is_some() {
        return PartitionResponse::default();
    }
    match context.api.producers(TopicPartition { topic: view.id, partition }) {
        Ok(producers) => {
            PartitionResponse::default().with_active_producers(producers.iter().map(producer).collect())
        }
        Err(error) => failed(errors::read(&error).code(), Some(error.to_string())),
    }
}

fn producer(one: &ProducerView) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(one.producer_id))
        .with_producer_epoch(i32::from(one.epoch))
        .with_last_sequence(one.last_sequence)
        .with_last_timestamp(one.last_timestamp)
        .with_coordinator_epoch(one.coordinator_epoch)
        .with_current_txn_start_offset(one.transaction_start)
}

fn failed(code: i16, why: Option<String>) -> PartitionResponse {
    PartitionResponse::default().with_error_code(code).with_error_message(why.map(StrBytes::from_string))
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::response;
    use super::*;

    #[test]
    fn a_producer_is_shown_whole() {
        let view = ProducerView {
            producer_id: 7,
            epoch: 2,
            last_sequence: 3,
            last_timestamp: 4,
            coordinator_epoch: 5,
            transaction_start: 6,
        };
        let row = PartitionResponse::default().with_active_producers(vec![producer(&view)]);
        let topic = TopicResponse::default().with_partitions(vec![row, failed(3, Some("why".into()))]);
        let read = response(DescribeProducersResponse::default().with_topics(vec![topic]), 0);
        let one = &read.topics[0].partitions[0].active_producers[0];
        assert_eq!((one.producer_id.0, one.producer_epoch, one.last_sequence), (7, 2, 3));
        assert_eq!((one.last_timestamp, one.coordinator_epoch, one.current_txn_start_offset), (4, 5, 6));
        assert_eq!(read.topics[0].partitions[1].error_code, 3);
    }
}
