//! IncrementalAlterConfigs (44), versions 0 and 1.
//!
//! v1: flexible. Operations: 0 set, 1 delete, 2 append, 3 subtract; the last two on lists only (KIP-339).

use super::configs::{BROKER, BROKER_LOGGER, GROUP, Named, Refused, TOPIC, answered, no_duplicates};
use super::{Context, Operation, Resource, group_configs};
use crate::config::log_without_effect;
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use rangeway_core::api::TopicView;
use rangeway_core::config::node::NodeConfig;
use rangeway_core::config::topic;
use std::collections::BTreeMap;
use std::sync::Arc;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Changes configs, one resource after the other.
pub async fn handle(
    context: Context,
    request: IncrementalAlterConfigsRequest,
) -> Result<IncrementalAlterConfigsResponse, Close> {
    let named = Named::of(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let outcome = match named.once(resource.resource_type, &resource.resource_name) {
            Ok(()) => alter(&context, resource, request.validate_only).await,
            Err(refused) => Err(refused),
        };
        let (code, message) = answered(outcome);
        responses.push(
            AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone()),
        );
    }
    Ok(IncrementalAlterConfigsResponse::default().with_responses(responses))
}

async fn alter(
    context: &Context,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refused> {
    if resource.resource_type == GROUP {
        return group_configs::alter(context, &resource.resource_name, &resource.configs, validate_only)
            .await;
    }
    let topic = alterable(context, resource.resource_type, &resource.resource_name)?;
    let changes = changes(&topic, &context.shared.settings.node, &resource.configs)?;
    apply(context, &topic, changes, validate_only).await
}

/// The topic whose configs may be changed.
pub(super) fn alterable(context: &Context, resource_type: i8, name: &str) -> Result<Arc<TopicView>, Refused> {
    let request = |why: String| Err((ResponseError::InvalidRequest, why));
    match resource_type {
        TOPIC => {}
        BROKER => {
            return request(
                "this node's settings come from its file, environment and flags and are read at start"
                    .to_owned(),
            );
        }
        BROKER_LOGGER => return request("log levels are set at start (log.filter, RUST_LOG)".to_owned()),
        other => {
            return request(format!(
                "configs of resource type {other} cannot be changed; those of topics (2) can"
            ));
        }
    }
    if !context.authorize(Operation::AlterConfigs, Resource::Topic(name)) {
        return Err((ResponseError::TopicAuthorizationFailed, "not allowed to change configs".to_owned()));
    }
    vpartition::check_topic_name(name).map_err(|why| (ResponseError::InvalidTopicException, why))?;
    vpartition::by_name(&context.api.catalog(), name)
        .cloned()
        .ok_or_else(|| (ResponseError::UnknownTopicOrPartition, format!("there is no topic '{name}'")))
}

/// Records changes; says which of them do nothing.
pub(super) async fn apply(
    context: &Context,
    topic: &TopicView,
    changes: Vec<(String, Option<String>)>,
    validate_only: bool,
) -> Result<(), Refused> {
    let set: BTreeMap<String, String> =
        changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect();
    let names: Vec<String> = changes.iter().map(|(key, _)| key.clone()).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let done = context.api.alter_topic_configs(topic.id, changes, validate_only).await;
    done.map_err(|e| (errors::topic(&e), e.to_string()))?;
    if !validate_only {
        tracing::info!(topic = &*topic.name, configs = names.join(","), "configs changed");
        log_without_effect(&topic.name, &set);
    }
    Ok(())
}

/// What the operations come to, over the topic's present values.
fn changes(
    topic: &TopicView,
    node: &NodeConfig,
    asked: &[AlterableConfig],
) -> Result<Vec<(String, Option<String>)>, Refused> {
    let request = |why: String| (ResponseError::InvalidRequest, why);
    let config = |why: String| (ResponseError::InvalidConfig, why);
    no_duplicates(asked.iter().map(|change| change.name.as_str()))?;
    let mut changes = Vec::with_capacity(asked.len());
    for change in asked {
        let name = change.name.as_str();
        let key = topic::find(name).map_err(|e| config(e.to_string()))?;
        if change.config_operation == DELETE {
            changes.push((name.to_owned(), None));
            continue;
        }
        let Some(value) = &change.value else {
            return Err(request(format!("config {name} needs a value; operation 1 (delete) takes it back")));
        };
        let present = || topic.configs.get(name).cloned().unwrap_or_else(|| key.default(node));
        let value = match change.config_operation {
            SET => Ok(value.to_string()),
            APPEND => key.appended(&present(), value),
            SUBTRACT => key.subtracted(&present(), value),
            other => {
                return Err(request(format!(
                    "operation {other} on config {name} is not known; 0 set, 1 delete, 2 append, 3 subtract"
                )));
            }
        };
        changes.push((name.to_owned(), Some(value.map_err(|e| config(e.to_string()))?)));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;
    use rangeway_core::api::DriveExpr;
    use rangeway_core::types::TopicId;

    fn topic(configs: &[(&str, &str)]) -> TopicView {
        TopicView {
            id: TopicId(uuid::Uuid::nil()),
            version: 0,
            name: "t".into(),
            partitions: 1,
            configs: Arc::new(configs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
            internal: false,
            replication_factor: 1,
            drive: DriveExpr::Disk,
            ranges: Arc::new([]),
        }
    }

    fn changed(
        have: &[(&str, &str)],
        asked: &[(&'static str, i8, Option<&'static str>)],
    ) -> Result<Vec<(String, Option<String>)>, i16> {
        let asked: Vec<AlterableConfig> = asked
            .iter()
            .map(|(name, operation, value)| {
                AlterableConfig::default()
                    .with_name(StrBytes::from_static_str(name))
                    .with_config_operation(*operation)
                    .with_value(value.map(StrBytes::from_static_str))
            })
            .collect();
        changes(&topic(have), &NodeConfig::default(), &asked).map_err(|(code, _)| code.code())
    }

    const LIST: &str = "leader.replication.throttled.replicas";

    #[test]
    fn operations_come_to_values_over_the_present_ones() {
        let set = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        assert_eq!(changed(&[], &[("retention.ms", SET, Some("5"))]), Ok(vec![set("retention.ms", "5")]));
        assert_eq!(
            changed(&[], &[("retention.ms", DELETE, None)]),
            Ok(vec![("retention.ms".to_owned(), None)])
        );
        assert_eq!(changed(&[(LIST, "0:1")], &[(LIST, APPEND, Some("1:1"))]), Ok(vec![set(LIST, "0:1,1:1")]));
        assert_eq!(
            changed(&[(LIST, "0:1,1:1")], &[(LIST, SUBTRACT, Some("0:1"))]),
            Ok(vec![set(LIST, "1:1")])
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_kafkas_codes() {
        assert_eq!(changed(&[], &[("retention.ms", APPEND, Some("5"))]), Err(40));
        assert_eq!(changed(&[], &[("no.such.key", SET, Some("5"))]), Err(40));
        assert_eq!(changed(&[], &[("retention.ms", SET, None)]), Err(42));
        assert_eq!(changed(&[], &[("retention.ms", 9, Some("5"))]), Err(42));
        let twice = [("retention.ms", SET, Some("5")), ("retention.ms", DELETE, None)];
        assert_eq!(changed(&[], &twice), Err(42));
    }
}
