//! ListConfigResources (74), versions 0 and 1.
//!
//! v0: clients' metrics subscriptions (KIP-714), of which there are none. v1: all that has configs (KIP-1142).

use super::configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_protocol::protocol::StrBytes;

const TYPES: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];

/// Names what has configs.
pub async fn handle(
    context: Context,
    request: ListConfigResourcesRequest,
) -> Result<ListConfigResourcesResponse, Close> {
    let response = ListConfigResourcesResponse::default();
    if !context.authorize(Operation::DescribeConfigs, Resource::Cluster) {
        return Ok(response.with_error_code(ResponseError::ClusterAuthorizationFailed.code()));
    }
    let asked = if context.version == 0 { vec![CLIENT_METRICS] } else { request.resource_types };
    if asked.iter().any(|kind| !TYPES.contains(kind)) {
        return Ok(response.with_error_code(ResponseError::UnsupportedVersion.code()));
    }
    let wanted = |kind: i8| asked.is_empty() || asked.contains(&kind);
    let mut resources = Vec::new();
    let mut add = |kind: i8, name: String| {
        let resource = ConfigResource::default().with_resource_name(StrBytes::from_string(name));
        resources.push(resource.with_resource_type(kind));
    };
    if wanted(TOPIC) {
        let catalog = context.api.catalog();
        let visible = catalog.by_name.values().filter(|topic| !topic.internal);
        visible.for_each(|topic| add(TOPIC, topic.name.to_string()));
    }
    for kind in [BROKER, BROKER_LOGGER].into_iter().filter(|kind| wanted(*kind)) {
        add(kind, context.shared.node.0.to_string());
    }
    if wanted(GROUP) {
        match context.shared.groups.configured().await {
            Ok(groups) => groups.into_iter().for_each(|group| add(GROUP, group)),
            Err(error) => return Ok(response.with_error_code(error.code())),
        }
    }
    Ok(response.with_config_resources(resources))
}
