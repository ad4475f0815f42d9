//! DescribeConfigs (32), versions 1 to 4.
//!
//! v1: synonyms (KIP-226). v3: types and documentation (KIP-569). v4: flexible. No keys, or null, are all keys.

use super::configs::{
    BROKER, BROKER_LOGGER, CLIENT_METRICS, Facts, GROUP, Nodes, Refused, Shown, TOPIC, all_brokers_rows,
    broker_rows, logger_rows, text, topic_rows,
};
use super::{Context, Operation, Resource, group_configs};
use crate::protocol::dispatch::Close;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};

/// Describes configs.
pub async fn handle(
    context: Context,
    request: DescribeConfigsRequest,
) -> Result<DescribeConfigsResponse, Close> {
    let shown = Shown {
        synonyms: request.include_synonyms,
        documentation: context.version >= 3 && request.include_documentation,
    };
    let mut results = Vec::with_capacity(request.resources.len());
    for asked in &request.resources {
        let result = DescribeConfigsResult::default()
            .with_resource_type(asked.resource_type)
            .with_resource_name(asked.resource_name.clone());
        let rows = match asked.resource_type {
            GROUP => group_configs::describe(&context, &asked.resource_name, shown).await,
            _ => describe(&context, asked, shown).await,
        };
        results.push(match rows {
            Ok(rows) => result.with_error_message(None).with_configs(only(asked, rows)),
            Err((code, message)) => result.with_error_code(code.code()).with_error_message(text(message)),
        });
    }
    Ok(DescribeConfigsResponse::default().with_results(results))
}

async fn describe(
    context: &Context,
    asked: &DescribeConfigsResource,
    shown: Shown,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    let name = asked.resource_name.as_str();
    let catalog = context.api.catalog();
    let nodes = Nodes { config: &context.shared.settings.node, dynamic: &catalog.dynamic };
    let resource = if asked.resource_type == TOPIC { Resource::Topic(name) } else { Resource::Cluster };
    if !context.authorize(Operation::DescribeConfigs, resource) {
        let code = match asked.resource_type {
            TOPIC => ResponseError::TopicAuthorizationFailed,
            _ => ResponseError::ClusterAuthorizationFailed,
        };
        return Err((code, "not allowed to see configs".to_owned()));
    }
    match asked.resource_type {
        TOPIC => {
            vpartition::check_topic_name(name).map_err(|why| (ResponseError::InvalidTopicException, why))?;
            let topic = vpartition::by_name(&catalog, name).ok_or_else(|| {
                (ResponseError::UnknownTopicOrPartition, format!("The topic '{name}' does not exist."))
            })?;
            Ok(topic_rows(topic, nodes, shown))
        }
        // Those of all brokers that were set while they ran.
        BROKER if name.is_empty() => Ok(all_brokers_rows(&catalog.dynamic, shown)),
        BROKER => {
            this_node(context, name)?;
            Ok(broker_rows(&facts(context).await, nodes, shown))
        }
        BROKER_LOGGER => {
            this_node(context, name)?;
            Ok(logger_rows(context.shared.settings.logs.as_deref()))
        }
        CLIENT_METRICS if !name.is_empty() => Ok(Vec::new()),
        CLIENT_METRICS => Err((ResponseError::InvalidRequest, "the resource needs a name".to_owned())),
        other => Err((
            ResponseError::InvalidRequest,
            format!(
                "resource type {other} is not known; types are 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group"
            ),
        )),
    }
}

async fn facts(context: &Context) -> Facts {
    let cluster = context.api.cluster();
    let (host, port) = context.client.node_address(&context.shared);
    let rack = cluster.nodes.into_iter().find(|(node, _)| *node == cluster.node).and_then(|(_, rack)| rack);
    let dirs = context.api.log_dirs(|_| false).await.into_iter().map(|dir| dir.path).collect();
    Facts { id: cluster.node.0, rack, host, port, dirs }
}

/// This node's number, when that is what the resource is named.
pub(super) fn this_node(context: &Context, name: &str) -> Result<i32, Refused> {
    let id = context.shared.node.0;
    if name.parse() == Ok(id) {
        return Ok(id);
    }
    let why = format!("'{name}' is not this node; it answers for broker {id} only");
    Err((ResponseError::InvalidRequest, why))
}

/// The rows that were asked for; keys that do not exist are passed over, as Kafka does.
fn only(
    asked: &DescribeConfigsResource,
    mut rows: Vec<DescribeConfigsResourceResult>,
) -> Vec<DescribeConfigsResourceResult> {
    if let Some(keys) = asked.configuration_keys.as_ref().filter(|keys| !keys.is_empty()) {
        rows.retain(|row| keys.contains(&row.name));
    }
    rows
}
