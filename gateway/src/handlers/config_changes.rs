//! What configs may be changed, and the change itself: topics', nodes' that are looked at while they run, levels of logs.

use super::configs::{BROKER, BROKER_LOGGER, Refused, TOPIC};
use super::describe_configs::this_node;
use super::{Context, Operation, Resource};
use crate::config::log_without_effect;
use crate::logs::ROOT;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use rangeway_core::api::TopicView;
use rangeway_core::config::{broker, dynamic, kafka};
use rangeway_core::types::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values to set (`Some`) or to take back (`None`), by name.
pub(super) type Changes = Vec<(String, Option<String>)>;

/// Whose configs are changed.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// A topic's.
    Topic(Arc<TopicView>),
    /// A node's, or (`None`) all nodes'.
    Nodes(Option<NodeId>),
    /// This node's log levels.
    Loggers,
}

/// What a resource is, if its configs may be changed.
pub(super) fn target(context: &Context, resource_type: i8, name: &str) -> Result<Target, Refused> {
    match resource_type {
        TOPIC => topic(context, name).map(Target::Topic),
        BROKER | BROKER_LOGGER if !context.authorize(Operation::AlterConfigs, Resource::Cluster) => {
            Err((ResponseError::ClusterAuthorizationFailed, "not allowed to change configs".to_owned()))
        }
        BROKER if name.is_empty() => Ok(Target::Nodes(None)),
        BROKER => this_node(context, name).map(|id| Target::Nodes(Some(NodeId(id)))),
        BROKER_LOGGER => this_node(context, name).map(|_| Target::Loggers),
        other => Err((
            ResponseError::InvalidRequest,
            format!(
                "configs of resource type {other} cannot be changed; those of topics (2), brokers (4) and broker loggers \
                 (8) can"
            ),
        )),
    }
}

fn topic(context: &Context, name: &str) -> Result<Arc<TopicView>, Refused> {
    if !context.authorize(Operation::AlterConfigs, Resource::Topic(name)) {
        return Err((ResponseError::TopicAuthorizationFailed, "not allowed to change configs".to_owned()));
    }
    if name.is_empty() {
        let why = "a topic needs a name; what topics have by default are configs of brokers";
        return Err((ResponseError::InvalidRequest, why.to_owned()));
    }
    vpartition::check_topic_name(name).map_err(|why| (ResponseError::InvalidTopicException, why))?;
    let topic =
        vpartition::by_name(&context.api.catalog(), name).cloned().ok_or_else(
            || match vpartition::not_there(name) {
                (ResponseError::UnknownTopicOrPartition, _) => {
                    (ResponseError::UnknownTopicOrPartition, format!("The topic '{name}' does not exist."))
                }
                own => own,
            },
        )?;
    vpartition::check_stored(&topic, "change configs of")?;
    Ok(topic)
}

/// Whether all of these are settings of a node that can be changed while it runs.
///
/// Errors: Kafka's code and words for those that are known and cannot; INVALID_CONFIG for the others.
pub(super) fn all_dynamic<'a>(
    context: &Context,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), Refused> {
    let fixed: Vec<&str> = names.filter(|name| !dynamic::is_dynamic(name)).collect();
    let (Some(first), settings) = (fixed.first(), &context.shared.settings) else { return Ok(()) };
    let catalog = context.api.catalog();
    let known = broker::describe(context.shared.node.0, &settings.node, &catalog.dynamic);
    let is_known = |name: &str| {
        known.iter().any(|row| row.name == name)
            || matches!(kafka::find(name), Some(kafka::Fate::Program(_) | kafka::Fate::Unit(_)))
    };
    if fixed.iter().all(|name| is_known(name)) {
        let why = format!("Cannot update these configs dynamically: [{}]", fixed.join(", "));
        return Err((ResponseError::InvalidRequest, why));
    }
    let why = dynamic::check(first, "").err().map(|error| error.to_string()).unwrap_or_default();
    Err((ResponseError::InvalidConfig, why))
}

/// Records changes; says which of them do nothing.
pub(super) async fn apply(
    context: &Context,
    target: Target,
    changes: Changes,
    validate_only: bool,
) -> Result<(), Refused> {
    if changes.is_empty() {
        return Ok(());
    }
    let names = changes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",");
    let set: BTreeMap<String, String> =
        changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect();
    let (done, whose) = match &target {
        Target::Topic(topic) => (
            context.api.alter_topic_configs(topic.id, changes, validate_only).await,
            format!("topic {}", topic.name),
        ),
        Target::Nodes(node) => (
            context.api.alter_node_configs(*node, changes, validate_only).await,
            node.map_or_else(|| "all nodes".to_owned(), |node| format!("node {}", node.0)),
        ),
        Target::Loggers => return levels(context, &changes, validate_only),
    };
    done.map_err(|error| match (&target, errors::topic(&error)) {
        // Kafka's code for a broker's bad values.
        (Target::Nodes(_), ResponseError::InvalidConfig) => {
            (ResponseError::InvalidRequest, error.to_string())
        }
        (_, code) => (code, error.to_string()),
    })?;
    if !validate_only {
        tracing::info!(whose, configs = names, "configs changed");
        if let Target::Topic(topic) = target {
            log_without_effect(&topic.name, &set);
        }
    }
    Ok(())
}

fn levels(context: &Context, changes: &Changes, validate_only: bool) -> Result<(), Refused> {
    let Some(levels) = &context.shared.settings.logs else {
        return Err((ResponseError::InvalidRequest, "this program's logs have no levels".to_owned()));
    };
    if changes.iter().any(|(name, level)| name == ROOT && level.is_none()) {
        let why = "Removing the log level of the root logger is not allowed";
        return Err((ResponseError::InvalidRequest, why.to_owned()));
    }
    levels.change(changes, validate_only).map_err(|why| (ResponseError::InvalidConfig, why))?;
    if !validate_only {
        tracing::info!(levels = ?changes, "log levels changed");
    }
    Ok(())
}
