//! DescribeTransactions (65), version 0 (KIP-664).
//!
//! Partitions of topics that the client may not describe are left out, and so are those of groups' offsets: their topic
//! is ours alone.

use super::words::{TRANSACTION_DENIED, client_topic, wire};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::transactions::{Described, Place};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::Catalog;
use std::collections::BTreeMap;

/// One row per transactional id asked for.
pub async fn handle(
    context: Context,
    request: DescribeTransactionsRequest,
) -> Result<DescribeTransactionsResponse, Close> {
    let mut rows = Vec::with_capacity(request.transactional_ids.len());
    for id in request.transactional_ids {
        rows.push(describe(&context, &id).await.with_transactional_id(id));
    }
    Ok(DescribeTransactionsResponse::default().with_transaction_states(rows))
}

async fn describe(context: &Context, id: &TransactionalId) -> TransactionState {
    let failed = |code| TransactionState::default().with_error_code(code);
    if !context.authorize(Operation::Describe, Resource::Transaction(id)) {
        return failed(TRANSACTION_DENIED);
    }
    if id.is_empty() {
        return failed(ResponseError::InvalidRequest.code());
    }
    match context.shared.transactions.describe(id.to_string()).await {
        Ok(Some(described)) => {
            let may_see = |topic: &str| context.authorize(Operation::Describe, Resource::Topic(topic));
            row(&context.api.catalog(), described, may_see)
        }
        Ok(None) => failed(ResponseError::TransactionalIdNotFound.code()),
        Err(error) => failed(error.code()),
    }
}

fn row(catalog: &Catalog, described: Described, may_see: impl Fn(&str) -> bool) -> TransactionState {
    TransactionState::default()
        .with_transaction_state(StrBytes::from_static_str(described.state.name()))
        .with_producer_id(ProducerId(described.producer.id))
        .with_producer_epoch(described.producer.epoch)
        .with_transaction_timeout_ms(described.timeout_ms)
        .with_transaction_start_time_ms(described.started_at)
        .with_topics(topics(catalog, &described.places, may_see))
}

fn topics(catalog: &Catalog, places: &[Place], may_see: impl Fn(&str) -> bool) -> Vec<TopicData> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (id, partition) in places {
        let view = catalog.by_id.get(id).filter(|view| may_see(&view.name));
        if let Some(view) = view.and_then(|view| client_topic(catalog, &view.name)) {
            topics.entry(&view.name).or_default().push(*partition);
        }
    }
    let topics = topics.into_iter();
    topics
        .map(|(name, partitions)| {
            TopicData::default().with_topic(TopicName(wire(name))).with_partitions(partitions)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, response, topic_id};
    use super::*;
    use crate::transactions::{Producer, State};

    #[test]
    fn a_row_names_topics_that_may_be_seen() {
        let described = Described {
            state: State::Ongoing,
            producer: Producer { id: 7, epoch: 2 },
            timeout_ms: 1000,
            started_at: 5,
            places: vec![(topic_id("gone"), 0), (topic_id("t"), 1), (topic_id("t"), 0), (topic_id("u"), 0)],
        };
        let answer = row(&catalog(&[("t", 2), ("u", 1)]), described, |topic| topic != "u");
        let answer = DescribeTransactionsResponse::default().with_transaction_states(vec![answer]);
        let read = response(answer, 0).transaction_states.remove(0);
        assert_eq!(
            (read.transaction_state.as_str(), read.producer_id.0, read.producer_epoch),
            ("Ongoing", 7, 2)
        );
        assert_eq!((read.transaction_timeout_ms, read.transaction_start_time_ms), (1000, 5));
        let topics: Vec<_> =
            read.topics.iter().map(|t| (t.topic.to_string(), t.partitions.clone())).collect();
        assert_eq!(topics, [("t".to_owned(), vec![1, 0])]);
    }
}
