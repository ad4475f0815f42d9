//! AlterConfigs (33), versions 0 to 2. Deprecated by Kafka: what is not named goes back to its default.
//!
//! v2: flexible. Settings under `rangeway.` are kept unless they are named: a tool that knows Kafka's settings only
//! must not change where records are stored.

use super::Context;
use super::config_changes::{Changes, Target, all_dynamic, apply, target};
use super::configs::{Named, Refused, answered, no_duplicates};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use std::collections::BTreeMap;

/// Prefix of settings that Kafka's tools do not know.
const OWN: &str = "rangeway.";

/// Replaces configs, one resource after the other.
pub async fn handle(context: Context, request: AlterConfigsRequest) -> Result<AlterConfigsResponse, Close> {
    let named = Named::of(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let outcome = match named.once(resource.resource_type, &resource.resource_name) {
            Ok(()) => replace(&context, resource, request.validate_only).await,
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
    Ok(AlterConfigsResponse::default().with_responses(responses))
}

async fn replace(
    context: &Context,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refused> {
    let target = target(context, resource.resource_type, &resource.resource_name)?;
    let changes = match &target {
        Target::Topic(topic) => changes(&topic.configs, &resource.configs)?,
        Target::Nodes(node) => {
            all_dynamic(context, resource.configs.iter().map(|config| config.name.as_str()))?;
            let catalog = context.api.catalog();
            let present = if node.is_some() { &catalog.dynamic.node } else { &catalog.dynamic.all };
            changes(present, &resource.configs)?
        }
        Target::Loggers => {
            let why = "log levels are changed one by one (IncrementalAlterConfigs)";
            return Err((ResponseError::InvalidRequest, why.to_owned()));
        }
    };
    apply(context, target, changes, validate_only).await
}

/// Sets all that are named, takes back all others.
fn changes(present: &BTreeMap<String, String>, asked: &[AlterableConfig]) -> Result<Changes, Refused> {
    no_duplicates(asked.iter().map(|config| config.name.as_str()))?;
    let mut changes: BTreeMap<String, Option<String>> =
        present.keys().filter(|key| !key.starts_with(OWN)).map(|key| (key.clone(), None)).collect();
    for config in asked {
        let name = config.name.as_str();
        let Some(value) = &config.value else {
            let why = format!("config {name} has no value; leave it out to have the default");
            return Err((ResponseError::InvalidRequest, why));
        };
        changes.insert(name.to_owned(), Some(value.to_string()));
    }
    Ok(changes.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    #[test]
    fn what_is_not_named_goes_back_to_its_default_except_our_own() {
        let present = [("retention.ms", "1"), ("segment.ms", "2"), ("rangeway.drive", "memory")];
        let present = present.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let asked = |value| {
            vec![
                AlterableConfig::default()
                    .with_name(StrBytes::from_static_str("segment.ms"))
                    .with_value(value),
            ]
        };
        let replaced = changes(&present, &asked(Some(StrBytes::from_static_str("3"))));
        let expected = [("retention.ms".to_owned(), None), ("segment.ms".to_owned(), Some("3".to_owned()))];
        assert_eq!(replaced, Ok(expected.to_vec()));
        assert_eq!(changes(&present, &asked(None)).map_err(|(code, _)| code.code()), Err(42));
        let twice =
            [asked(Some(StrBytes::from_static_str("3"))), asked(Some(StrBytes::from_static_str("4")))];
        assert_eq!(changes(&present, &twice.concat()).map_err(|(code, _)| code.code()), Err(42));
    }
}
