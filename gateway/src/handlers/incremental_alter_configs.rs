//! IncrementalAlterConfigs (44), versions 0 and 1.
//!
//! v1: flexible. Operations: 0 set, 1 delete, 2 append, 3 subtract; the last two on lists only (KIP-339).

use super::config_changes::{Changes, Target, all_dynamic, apply, target};
use super::configs::{GROUP, Named, Nodes, Refused, answered, effective, no_duplicates};
use super::{Context, group_configs};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use rangeway_core::config::topic::{self, TopicKey};
use rangeway_core::config::{broker, dynamic};

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
    let target = target(context, resource.resource_type, &resource.resource_name)?;
    no_duplicates(resource.configs.iter().map(|change| change.name.as_str()))?;
    let catalog = context.api.catalog();
    let nodes = Nodes { config: &context.shared.settings.node, dynamic: &catalog.dynamic };
    let changes = match &target {
        Target::Topic(topic) => changes(&resource.configs, |name| {
            let key = topic::find(name).map_err(|e| (ResponseError::InvalidConfig, e.to_string()))?;
            Ok(Some((key, effective(key, topic, nodes).0)))
        })?,
        Target::Nodes(_) => {
            let set = resource.configs.iter().filter(|change| change.config_operation != DELETE);
            all_dynamic(context, set.map(|change| change.name.as_str()))?;
            changes(&resource.configs, |name| {
                let value = |key: &TopicKey| {
                    let values = broker::beneath_topics(key, nodes.config, nodes.dynamic);
                    values.into_iter().next().map(|(_, value)| value).unwrap_or_default()
                };
                Ok(dynamic::topic_key(name).map(|key| (key, value(key))))
            })?
        }
        Target::Loggers => {
            if let Some(change) =
                resource.configs.iter().find(|one| ![SET, DELETE].contains(&one.config_operation))
            {
                let word = if change.config_operation == APPEND { "APPEND" } else { "SUBTRACT" };
                let why = format!("{word} operation is not allowed for the BROKER_LOGGER resource");
                return Err((ResponseError::InvalidRequest, why));
            }
            changes(&resource.configs, |_| Ok(None))?
        }
    };
    apply(context, target, changes, validate_only).await
}

/// What the operations come to; `present` gives the row of a setting that may be a list, and the value that holds now.
fn changes(
    asked: &[AlterableConfig],
    present: impl Fn(&str) -> Result<Option<(&'static TopicKey, String)>, Refused>,
) -> Result<Changes, Refused> {
    let request = |why: String| (ResponseError::InvalidRequest, why);
    let config = |why: String| (ResponseError::InvalidConfig, why);
    let mut changes = Vec::with_capacity(asked.len());
    for change in asked {
        let name = change.name.as_str();
        if change.config_operation == DELETE {
            // Also of what is not known: it is not there, as was asked for.
            changes.push((name.to_owned(), None));
            continue;
        }
        let present = present(name)?;
        let Some(value) = &change.value else {
            return Err(request(format!("Null value not supported for : {name}")));
        };
        let not_a_list =
            |word: &str| config(format!("Can't {word} to key {name} because its type is not LIST."));
        let value = match (change.config_operation, present) {
            (SET, _) => value.to_string(),
            (APPEND, Some((key, present))) => {
                key.appended(&present, value).map_err(|_| not_a_list("APPEND"))?
            }
            (SUBTRACT, Some((key, present))) => {
                key.subtracted(&present, value).map_err(|_| not_a_list("SUBTRACT"))?
            }
            (APPEND, None) => return Err(not_a_list("APPEND")),
            (SUBTRACT, None) => return Err(not_a_list("SUBTRACT")),
            (other, _) => {
                return Err(request(format!(
                    "operation {other} on config {name} is not known; 0 set, 1 delete, 2 append, 3 subtract"
                )));
            }
        };
        changes.push((name.to_owned(), Some(value)));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    fn changed(
        have: &[(&str, &str)],
        asked: &[(&'static str, i8, Option<&'static str>)],
    ) -> Result<Changes, i16> {
        let asked: Vec<AlterableConfig> = asked
            .iter()
            .map(|(name, operation, value)| {
                AlterableConfig::default()
                    .with_name(StrBytes::from_static_str(name))
                    .with_config_operation(*operation)
                    .with_value(value.map(StrBytes::from_static_str))
            })
            .collect();
        let present = |name: &str| {
            let key = topic::find(name).map_err(|e| (ResponseError::InvalidConfig, e.to_string()))?;
            let own = have.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
            Ok(Some((key, own.unwrap_or_default())))
        };
        changes(&asked, present).map_err(|(code, _)| code.code())
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
        assert_eq!(
            changed(&[], &[("no.such.key", DELETE, None)]),
            Ok(vec![("no.such.key".to_owned(), None)])
        );
        assert_eq!(changed(&[], &[("retention.ms", SET, None)]), Err(42));
        assert_eq!(changed(&[], &[("retention.ms", 9, Some("5"))]), Err(42));
    }
}
