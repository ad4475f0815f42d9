//! CreatePartitions (37), versions 0 to 3.
//!
//! v2: flexible. Keys of a grown topic go to other partitions than before, as with any Kafka.

use super::configs::{Refused, text};
use super::create_topics::{PARTITIONS_A_REQUEST, replicas};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse, TopicName};
use std::collections::{HashMap, HashSet};

/// Grows topics, one after the other.
pub async fn handle(
    context: Context,
    request: CreatePartitionsRequest,
) -> Result<CreatePartitionsResponse, Close> {
    let mut times: HashMap<&TopicName, usize> = HashMap::new();
    for topic in &request.topics {
        *times.entry(&topic.name).or_default() += 1;
    }
    let too_many = {
        let catalog = context.api.catalog();
        let once = request.topics.iter().filter(|topic| times.get(&topic.name) == Some(&1));
        let added = once.filter_map(|topic| {
            let now = vpartition::by_name(&catalog, &topic.name)?.partitions;
            Some((i64::from(topic.count) - i64::from(now)).max(0))
        });
        added.fold(0, i64::saturating_add) > PARTITIONS_A_REQUEST
    };
    let mut results = Vec::new();
    let mut answered = HashSet::new();
    for topic in &request.topics {
        if !answered.insert(&topic.name) {
            continue;
        }
        let outcome = if times.get(&topic.name).is_some_and(|n| *n > 1) {
            Err((ResponseError::InvalidRequest, "Duplicate topic name.".to_owned()))
        } else if too_many {
            let why = "Excessively large number of additional partitions per request.";
            Err((ResponseError::PolicyViolation, why.to_owned()))
        } else {
            grow(&context, topic, request.validate_only).await
        };
        let row =
            CreatePartitionsTopicResult::default().with_name(topic.name.clone()).with_error_message(None);
        results.push(match outcome {
            Ok(()) => row,
            Err((code, message)) => row.with_error_code(code.code()).with_error_message(text(message)),
        });
    }
    Ok(CreatePartitionsResponse::default().with_results(results))
}

async fn grow(context: &Context, wanted: &CreatePartitionsTopic, validate_only: bool) -> Result<(), Refused> {
    let name = wanted.name.as_str();
    if !context.authorize(Operation::Alter, Resource::Topic(name)) {
        return Err((ResponseError::TopicAuthorizationFailed, "not allowed to change this topic".to_owned()));
    }
    let topic = vpartition::by_name(&context.api.catalog(), name)
        .cloned()
        .ok_or_else(|| vpartition::not_there(name))?;
    vpartition::check_stored(&topic, "add partitions to")?;
    check(wanted, topic.partitions, context.api.cluster().node.0)?;
    let done = context.api.create_partitions(topic.id, wanted.count, validate_only).await;
    done.map_err(|e| (errors::topic(&e), e.to_string()))?;
    if !validate_only {
        tracing::info!(topic = name, from = topic.partitions, to = wanted.count, "partitions added");
    }
    Ok(())
}

/// The count grows, and what is assigned by hand is one row per added partition, on this node.
fn check(wanted: &CreatePartitionsTopic, now: i32, node: i32) -> Result<(), Refused> {
    let (name, count) = (wanted.name.as_str(), wanted.count);
    if count <= now {
        let why = if count == now {
            format!("Topic already has {now} partition(s).")
        } else {
            format!("The topic {name} currently has {now} partition(s); {count} would not be an increase.")
        };
        return Err((ResponseError::InvalidPartitions, why));
    }
    let Some(assignments) = &wanted.assignments else { return Ok(()) };
    let added = i64::from(count) - i64::from(now);
    if i64::try_from(assignments.len()) != Ok(added) {
        let why = format!(
            "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
            assignments.len()
        );
        return Err((ResponseError::InvalidReplicaAssignment, why));
    }
    let copies = assignments.first().map_or(0, |a| a.broker_ids.len());
    assignments.iter().try_for_each(|a| replicas(&a.broker_ids, copies, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::BrokerId;
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;

    fn checked(count: i32, assigned: Option<&[&[i32]]>) -> Result<(), i16> {
        let assignments = assigned.map(|rows| {
            rows.iter()
                .map(|row| {
                    let brokers = row.iter().map(|n| BrokerId(*n)).collect();
                    CreatePartitionsAssignment::default().with_broker_ids(brokers)
                })
                .collect()
        });
        let wanted = CreatePartitionsTopic::default().with_count(count).with_assignments(assignments);
        check(&wanted, 3, 1).map_err(|(code, _)| code.code())
    }

    #[test]
    fn the_count_only_grows() {
        assert_eq!(checked(4, None), Ok(()));
        for count in [3, 2, 0, -1, i32::MIN] {
            assert_eq!(checked(count, None), Err(37), "{count}");
        }
    }

    #[test]
    fn assignments_match_the_added_partitions() {
        assert_eq!(checked(5, Some(&[&[1], &[1]])), Ok(()));
        assert_eq!(checked(5, Some(&[&[1]])), Err(39));
        assert_eq!(checked(5, Some(&[])), Err(39));
        assert_eq!(checked(4, Some(&[&[2]])), Err(39));
        assert_eq!(checked(i32::MAX, Some(&[&[1]])), Err(39));
    }
}
