//! CreateTopics (19), versions 2 to 7.
//!
//! v4: -1 means the node's default (KIP-464; older versions are answered alike). v5: flexible; what was made is
//! answered with all its configs (KIP-525). v7: topic id.
//!
//! Checked in Kafka's order, so that of several faults the same one is named: name, existing, configs, replicas,
//! partitions; then core's own checks.

use super::Context;
use super::configs::{Nodes, Refused, created_rows, text};
use crate::config::log_without_effect;
use crate::offsets_view;
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition::check_topic_name;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, CreateTopicsResponse, TopicName};
use rangeway_core::api::{NewTopic, TopicView};
use rangeway_core::config::topic;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Partitions that one request makes at most, as in Kafka.
pub(super) const PARTITIONS_A_REQUEST: i64 = 10_000;

/// Makes topics, one after the other.
pub async fn handle(context: Context, request: CreateTopicsRequest) -> Result<CreateTopicsResponse, Close> {
    let mut times: HashMap<&TopicName, usize> = HashMap::new();
    for topic in &request.topics {
        *times.entry(&topic.name).or_default() += 1;
    }
    let default = context.shared.settings.node.num_partitions;
    let once = request.topics.iter().filter(|topic| times.get(&topic.name) == Some(&1));
    let too_many = asked_for(once, default) > PARTITIONS_A_REQUEST;
    let mut rows = Vec::new();
    let mut answered = HashSet::new();
    for topic in &request.topics {
        if !answered.insert(&topic.name) {
            continue;
        }
        let outcome = if times.get(&topic.name).is_some_and(|n| *n > 1) {
            Err((ResponseError::InvalidRequest, "Duplicate topic name.".to_owned()))
        } else if too_many {
            let why = "Excessively large number of partitions per request.";
            Err((ResponseError::PolicyViolation, why.to_owned()))
        } else {
            create(&context, topic, request.validate_only).await
        };
        rows.push(row(&context, topic, outcome));
    }
    Ok(CreateTopicsResponse::default().with_topics(rows))
}

async fn create(
    context: &Context,
    wanted: &CreatableTopic,
    validate_only: bool,
) -> Result<Arc<TopicView>, Refused> {
    let name = wanted.name.as_str();
    if !context.may_create(name) {
        return Err((ResponseError::TopicAuthorizationFailed, "not allowed to create topics".to_owned()));
    }
    check_topic_name(name).map_err(|why| (ResponseError::InvalidTopicException, why))?;
    if name == offsets_view::NAME && !validate_only {
        let made = context.shared.groups.make_topic().await;
        made.map_err(|error| (ResponseError::LeaderNotAvailable, error.to_string()))?;
    }
    if context.api.catalog().by_name.contains_key(name) {
        return Err((ResponseError::TopicAlreadyExists, format!("Topic '{name}' already exists.")));
    }
    let configs = configs(wanted)?;
    let (partitions, replication_factor) = shape(wanted, context.api.cluster().node.0)?;
    let new = NewTopic {
        name: name.to_owned(),
        partitions,
        replication_factor,
        configs,
        internal: false,
        validate_only,
    };
    let view = context.api.create_topic(new).await.map_err(|e| (errors::topic(&e), e.to_string()))?;
    if !validate_only {
        tracing::info!(topic = name, id = %view.id, partitions = view.partitions, drive = %view.drive, "topic created");
        log_without_effect(name, &view.configs);
    }
    Ok(view)
}

/// The configs asked for, checked one by one; of several for one key the last holds, as in Kafka.
fn configs(wanted: &CreatableTopic) -> Result<BTreeMap<String, String>, Refused> {
    let refused = |why: String| (ResponseError::InvalidConfig, why);
    let mut configs = BTreeMap::new();
    for config in &wanted.configs {
        let Some(value) = &config.value else {
            let why =
                format!("config {} has no value; leave it out to have the default", config.name.as_str());
            return Err(refused(why));
        };
        configs.insert(config.name.to_string(), value.to_string());
    }
    topic::check(&configs).map_err(|e| refused(e.to_string()))?;
    Ok(configs)
}

/// Partitions that topics ask for, all together.
fn asked_for<'a>(topics: impl Iterator<Item = &'a CreatableTopic>, default: i32) -> i64 {
    let each = topics.map(|topic| match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => i64::from(default),
        (0, count) => i64::from(count.max(0)),
        (assigned, _) => i64::try_from(assigned).unwrap_or(i64::MAX),
    });
    each.fold(0, i64::saturating_add)
}

/// Partition count and replication factor, `None` for the node's default.
fn shape(wanted: &CreatableTopic, node: i32) -> Result<(Option<i32>, Option<i16>), Refused> {
    if !wanted.assignments.is_empty() {
        return assigned(wanted, node).map(|(partitions, copies)| (Some(partitions), Some(copies)));
    }
    let (partitions, copies) = (wanted.num_partitions, wanted.replication_factor);
    if copies < -1 || copies == 0 {
        let why = "Replication factor must be larger than 0, or -1 to use the default value.";
        return Err((ResponseError::InvalidReplicationFactor, why.to_owned()));
    }
    if partitions < -1 || partitions == 0 {
        let why = "Number of partitions was set to an invalid non-positive value.";
        return Err((ResponseError::InvalidPartitions, why.to_owned()));
    }
    Ok(((partitions != -1).then_some(partitions), (copies != -1).then_some(copies)))
}

/// Placement belongs to ranges here; an assignment is accepted when it names this node, and gives the shape.
fn assigned(wanted: &CreatableTopic, node: i32) -> Result<(i32, i16), Refused> {
    let request = |why: &str| Err((ResponseError::InvalidRequest, why.to_owned()));
    let assignment = |why: String| Err((ResponseError::InvalidReplicaAssignment, why));
    if wanted.replication_factor != -1 {
        return request(
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        );
    }
    if wanted.num_partitions != -1 {
        return request("A manual partition assignment was specified, but numPartitions was not set to -1.");
    }
    let mut indexes: Vec<i32> = wanted.assignments.iter().map(|a| a.partition_index).collect();
    indexes.sort_unstable();
    if !indexes.iter().copied().eq((0i32..).take(indexes.len())) {
        let twice = indexes.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        return assignment(twice.map_or_else(
            || "partitions should be a consecutive 0-based integer sequence".to_owned(),
            |partition| format!("Found multiple manual partition assignments for partition {partition}"),
        ));
    }
    let copies = wanted.assignments.first().map_or(0, |a| a.broker_ids.len());
    for CreatableReplicaAssignment { broker_ids, .. } in &wanted.assignments {
        replicas(broker_ids, copies, node)?;
    }
    match (i32::try_from(indexes.len()), i16::try_from(copies)) {
        (Ok(partitions), Ok(copies)) => Ok((partitions, copies)),
        _ => assignment("too many partitions or replicas".to_owned()),
    }
}

/// Checks the replicas of one partition, in Kafka's order and words; all partitions must have `copies` of them.
pub(super) fn replicas(brokers: &[BrokerId], copies: usize, node: i32) -> Result<(), Refused> {
    let refused = |why: String| {
        Err((
            ResponseError::InvalidReplicaAssignment,
            format!("The manual partition assignment includes {why}"),
        ))
    };
    if brokers.is_empty() {
        return refused("an empty replica list.".to_owned());
    }
    if let Some(unknown) = brokers.iter().map(|broker| broker.0).filter(|id| *id != node).min() {
        return refused(format!("broker {unknown}, but no such broker is registered."));
    }
    if brokers.len() > 1 {
        return refused(format!("the broker {node} more than once."));
    }
    if brokers.len() != copies {
        return refused(format!(
            "a partition with {} replica(s), but this is not consistent with previous partitions, which have {copies} \
             replica(s).",
            brokers.len()
        ));
    }
    Ok(())
}

fn row(
    context: &Context,
    wanted: &CreatableTopic,
    outcome: Result<Arc<TopicView>, Refused>,
) -> CreatableTopicResult {
    let row = CreatableTopicResult::default().with_name(wanted.name.clone());
    let catalog = context.api.catalog();
    let nodes = Nodes { config: &context.shared.settings.node, dynamic: &catalog.dynamic };
    match outcome {
        Ok(view) => row
            .with_topic_id(view.id.0)
            .with_error_message(None)
            .with_num_partitions(view.partitions)
            .with_replication_factor(view.replication_factor)
            .with_configs(Some(created_rows(&view, nodes))),
        Err((code, message)) => row.with_error_code(code.code()).with_error_message(text(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    fn topic(partitions: i32, copies: i16, assigned: &[(i32, &[i32])]) -> CreatableTopic {
        let assignments = assigned.iter().map(|(partition, nodes)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(*partition)
                .with_broker_ids(nodes.iter().map(|n| BrokerId(*n)).collect())
        });
        CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_static_str("t")))
            .with_num_partitions(partitions)
            .with_replication_factor(copies)
            .with_assignments(assignments.collect())
    }

    fn shaped(topic: &CreatableTopic) -> Result<(Option<i32>, Option<i16>), i16> {
        shape(topic, 1).map_err(|(code, _)| code.code())
    }

    #[test]
    fn minus_one_is_the_default_and_zero_is_nothing() {
        assert_eq!(shaped(&topic(-1, -1, &[])), Ok((None, None)));
        assert_eq!(shaped(&topic(3, 2, &[])), Ok((Some(3), Some(2))));
        assert_eq!(shaped(&topic(0, 1, &[])), Err(37));
        assert_eq!(shaped(&topic(-2, 1, &[])), Err(37));
        assert_eq!(shaped(&topic(1, 0, &[])), Err(38));
        assert_eq!(shaped(&topic(1, -2, &[])), Err(38));
        assert_eq!(shaped(&topic(0, 0, &[])), Err(38), "replicas are looked at first");
    }

    #[test]
    fn what_a_request_asks_for_is_counted_over_its_topics() {
        let asked = |topics: &[CreatableTopic]| asked_for(topics.iter(), 16);
        let assigned = topic(-1, -1, &[(0, &[1]), (1, &[1])]);
        assert_eq!(asked(&[topic(5000, 1, &[]), topic(-1, 1, &[]), topic(0, 1, &[]), assigned]), 5018);
        assert_eq!(asked(&[topic(i32::MAX, 1, &[]), topic(i32::MAX, 1, &[])]), 2 * i64::from(i32::MAX));
        assert_eq!(asked(&[topic(-7, 1, &[])]), 0);
    }

    #[test]
    fn a_manual_assignment_names_this_node_and_every_partition_once() {
        assert_eq!(shaped(&topic(-1, -1, &[(1, &[1]), (0, &[1])])), Ok((Some(2), Some(1))));
        assert_eq!(shaped(&topic(-1, 1, &[(0, &[1])])), Err(42));
        assert_eq!(shaped(&topic(1, -1, &[(0, &[1])])), Err(42));
        assert_eq!(shaped(&topic(-1, -1, &[(0, &[1]), (2, &[1])])), Err(39), "not consecutive");
        assert_eq!(shaped(&topic(-1, -1, &[(0, &[1]), (0, &[1])])), Err(39), "twice");
        assert_eq!(shaped(&topic(-1, -1, &[(0, &[7])])), Err(39), "unknown node");
        assert_eq!(shaped(&topic(-1, -1, &[(0, &[1, 1])])), Err(39), "one node twice");
        assert_eq!(shaped(&topic(-1, -1, &[(0, &[])])), Err(39), "no node");
        assert_eq!(shaped(&topic(-1, -1, &[(i32::MAX, &[1])])), Err(39));
    }
}
