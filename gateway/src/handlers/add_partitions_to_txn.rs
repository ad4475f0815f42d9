//! AddPartitionsToTxn (24), versions 0 to 5.
//!
//! v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v4: many transactions, to add or only to verify, from brokers
//! (KIP-890). v5: TRANSACTION_ABORTABLE.
//! Partitions are added all or none: where one cannot be, the others are answered OPERATION_NOT_ATTEMPTED.

use super::words::{TOPIC_DENIED, TRANSACTION_DENIED, UNKNOWN_TOPIC, client_topic};
use super::{Context, Operation, Resource};
use crate::offsets_view;
use crate::protocol::dispatch::Close;
use crate::transactions::{Add, Place, Producer, Rules, TxnError};
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use rangeway_core::api::Catalog;

/// Adds partitions to transactions, or says whether they were.
pub async fn handle(
    context: Context,
    request: AddPartitionsToTxnRequest,
) -> Result<AddPartitionsToTxnResponse, Close> {
    if context.version < 4 {
        let asked = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(request.v3_and_below_transactional_id)
            .with_producer_id(request.v3_and_below_producer_id)
            .with_producer_epoch(request.v3_and_below_producer_epoch)
            .with_topics(request.v3_and_below_topics);
        let results = of_transaction(&context, asked, Rules::V1).await.topic_results;
        return Ok(AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(results));
    }
    if !context.authorize(Operation::ClusterAction, Resource::Cluster) {
        let code = ResponseError::ClusterAuthorizationFailed.code();
        return Ok(AddPartitionsToTxnResponse::default().with_error_code(code));
    }
    let mut results = Vec::with_capacity(request.transactions.len());
    for asked in request.transactions {
        results.push(of_transaction(&context, asked, Rules::V2).await);
    }
    Ok(AddPartitionsToTxnResponse::default().with_results_by_transaction(results))
}

async fn of_transaction(
    context: &Context,
    asked: AddPartitionsToTxnTransaction,
    rules: Rules,
) -> AddPartitionsToTxnResult {
    let codes = codes(context, &asked, rules).await;
    let result = AddPartitionsToTxnResult::default().with_transactional_id(asked.transactional_id);
    result.with_topic_results(shape(&asked.topics, codes))
}

/// One code per partition, in order.
async fn codes(context: &Context, asked: &AddPartitionsToTxnTransaction, rules: Rules) -> Vec<i16> {
    let all = |code| vec![code; asked.topics.iter().map(|t| t.partitions.len()).sum()];
    if !context.authorize(Operation::Write, Resource::Transaction(&asked.transactional_id)) {
        return all(TRANSACTION_DENIED);
    }
    let may_write = |topic: &str| context.authorize(Operation::Write, Resource::Topic(topic));
    let places = match places(&context.api.catalog(), &asked.topics, may_write) {
        Ok(places) if places.is_empty() => return Vec::new(),
        Ok(places) => places,
        Err(codes) => return codes,
    };
    let producer = Producer { id: asked.producer_id.0, epoch: asked.producer_epoch };
    let add = Add { id: asked.transactional_id.to_string(), producer, places, rules };
    let code = |error| code(error, context.version);
    if asked.verify_only {
        return match context.shared.transactions.verify(add).await {
            Ok((_, each)) => each.into_iter().map(|one| one.map_or_else(code, |()| 0)).collect(),
            Err(error) => all(code(error)),
        };
    }
    all(context.shared.transactions.add(add).await.map_or_else(code, |_| 0))
}

/// Where the partitions are; or one code per partition when one of them cannot be added.
fn places(
    catalog: &Catalog,
    topics: &[AddPartitionsToTxnTopic],
    may_write: impl Fn(&str) -> bool,
) -> Result<Vec<Place>, Vec<i16>> {
    let mut found = Vec::new();
    for topic in topics {
        let view = client_topic(catalog, &topic.name);
        let allowed = may_write(&topic.name);
        found.extend(topic.partitions.iter().map(|partition| match view {
            // Kafka's code for an internal topic too.
            _ if !allowed || is_internal(&topic.name) => Err(TOPIC_DENIED),
            Some(view) if (0..view.partitions).contains(partition) => Ok((view.id, *partition)),
            _ => Err(UNKNOWN_TOPIC),
        }));
    }
    if found.iter().all(Result::is_ok) {
        return Ok(found.into_iter().flatten().collect());
    }
    let not_attempted = ResponseError::OperationNotAttempted.code();
    Err(found.into_iter().map(|one| one.map_or_else(|code| code, |_| not_attempted)).collect())
}

/// Whether clients may not write to a topic of that name, be it there or not.
fn is_internal(name: &str) -> bool {
    let kafkas = matches!(name, offsets_view::NAME | "__transaction_state" | "__share_group_state");
    kafkas || vpartition::is_own_name(name)
}

fn code(error: TxnError, version: i16) -> i16 {
    if version >= 2 { error.code() } else { error.code_before_fenced() }
}

fn shape(topics: &[AddPartitionsToTxnTopic], codes: Vec<i16>) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut codes = codes.into_iter();
    let topics = topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().zip(codes.by_ref()).map(|(partition, code)| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*partition)
                .with_partition_error_code(code)
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name.clone())
            .with_results_by_partition(partitions.collect())
    });
    topics.collect()
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, request, response, topic_id};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::{ProducerId, TopicName, TransactionalId};

    fn topics() -> Vec<AddPartitionsToTxnTopic> {
        let topic = |name, partitions: &[i32]| {
            AddPartitionsToTxnTopic::default()
                .with_name(TopicName(wire(name)))
                .with_partitions(partitions.to_vec())
        };
        vec![topic("t", &[0, 1]), topic("u", &[0])]
    }

    #[test]
    fn every_version_round_trips() {
        for version in 0..=5 {
            let mut sent = AddPartitionsToTxnRequest::default();
            if version < 4 {
                sent = sent
                    .with_v3_and_below_transactional_id(TransactionalId(wire("x")))
                    .with_v3_and_below_producer_id(ProducerId(7))
                    .with_v3_and_below_producer_epoch(1)
                    .with_v3_and_below_topics(topics());
            } else {
                let one = AddPartitionsToTxnTransaction::default()
                    .with_transactional_id(TransactionalId(wire("x")))
                    .with_verify_only(true)
                    .with_topics(topics());
                sent = sent.with_transactions(vec![one]);
            }
            assert_eq!(request(sent.clone(), version, 3), sent);
            let results = shape(&topics(), vec![0, code(TxnError::Fenced, version), 3]);
            let codes: Vec<i16> = results
                .iter()
                .flat_map(|t| t.results_by_partition.iter().map(|p| p.partition_error_code))
                .collect();
            assert_eq!(codes, [0, if version >= 2 { 90 } else { 47 }, 3]);
            let answer = if version < 4 {
                AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(results)
            } else {
                let one = AddPartitionsToTxnResult::default().with_topic_results(results);
                AddPartitionsToTxnResponse::default().with_results_by_transaction(vec![one])
            };
            assert_eq!(response(answer.clone(), version), answer);
        }
    }

    #[test]
    fn one_that_cannot_be_added_keeps_the_others_from_being_tried() {
        let found = places(&catalog(&[("t", 2), ("u", 1)]), &topics(), |_| true);
        assert_eq!(found, Ok(vec![(topic_id("t"), 0), (topic_id("t"), 1), (topic_id("u"), 0)]));
        assert_eq!(places(&catalog(&[("t", 1)]), &topics(), |_| true), Err(vec![55, 3, 3]));
        for internal in ["__consumer_offsets", "__transaction_state"] {
            let topic = AddPartitionsToTxnTopic::default()
                .with_name(TopicName(wire(internal)))
                .with_partitions(vec![0]);
            for there in [&[(internal, 1)][..], &[]] {
                let found = places(&catalog(there), std::slice::from_ref(&topic), |_| true);
                assert_eq!(found, Err(vec![29]), "{internal}");
            }
        }
        assert_eq!(places(&catalog(&[("t", 2), ("u", 1)]), &topics(), |t| t != "u"), Err(vec![55, 55, 29]));
    }
}
