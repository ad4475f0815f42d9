//! Configs of groups (resource type 32, KIP-848): described and changed like those of topics, kept by the group's
//! coordinator, whether the group exists or not.

use super::configs::{Refused, Shown, no_duplicates};
use super::{Context, Operation, Resource};
use crate::groups::{CONFIG_KEYS, Change, ConfigError, ConfigKey, Settings};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::incremental_alter_configs_request::AlterableConfig;
use kafka_protocol::protocol::StrBytes;
use rangeway_core::config::node::{self, NodeConfig};
use std::collections::BTreeMap;

/// Where a value comes from, in Kafka's numbers.
const SOURCE_STATIC_BROKER: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;
const SOURCE_GROUP: i8 = 8;
/// Type of a value: a whole number.
const TYPE_INT: i8 = 3;
const SET: i8 = 0;
const DELETE: i8 = 1;

/// All configs of a group.
pub(super) async fn describe(
    context: &Context,
    group: &str,
    shown: Shown,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    if group.is_empty() {
        return Err((ResponseError::InvalidRequest, "the resource needs a name".to_owned()));
    }
    if !context.authorize(Operation::DescribeConfigs, Resource::Group(group)) {
        return Err((ResponseError::GroupAuthorizationFailed, "not allowed to see configs".to_owned()));
    }
    let set = context.shared.groups.configs(group.to_owned()).await.map_err(|e| refused(e.into()))?;
    let node = &context.shared.settings.node;
    let at = Beneath { settings: &Settings::of(node), node };
    Ok(CONFIG_KEYS.iter().map(|key| row(key, &set, at, shown)).collect())
}

/// What holds where a group says nothing.
#[derive(Clone, Copy)]
struct Beneath<'a> {
    settings: &'a Settings,
    node: &'a NodeConfig,
}

impl Beneath<'_> {
    /// Whether the operator set it.
    fn source(self, key: &ConfigKey) -> i8 {
        let is_default = node::find(key.node).is_none_or(|node| node.value(self.node) == node.default());
        if is_default { SOURCE_DEFAULT } else { SOURCE_STATIC_BROKER }
    }
}

fn row(
    key: &ConfigKey,
    set: &BTreeMap<String, String>,
    beneath: Beneath<'_>,
    shown: Shown,
) -> DescribeConfigsResourceResult {
    let own = set.get(key.name).cloned();
    let default = key.default(beneath.settings).to_string();
    let default_source = beneath.source(key);
    let source = if own.is_some() { SOURCE_GROUP } else { default_source };
    let synonym = |name: &'static str, value: String, source| {
        DescribeConfigsSynonym::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(StrBytes::from_string(value)))
            .with_source(source)
    };
    let synonyms = own.clone().map(|value| synonym(key.name, value, SOURCE_GROUP));
    let synonyms = synonyms.into_iter().chain([synonym(key.node, default.clone(), default_source)]);
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(key.name))
        .with_value(Some(StrBytes::from_string(own.unwrap_or(default))))
        .with_read_only(false)
        .with_config_source(source)
        .with_is_sensitive(false)
        .with_synonyms(if shown.synonyms { synonyms.collect() } else { Vec::new() })
        .with_config_type(TYPE_INT)
        .with_documentation(shown.documentation.then(|| StrBytes::from_static_str(key.doc)))
}

/// Changes configs of a group: all or none.
pub(super) async fn alter(
    context: &Context,
    group: &str,
    asked: &[AlterableConfig],
    validate_only: bool,
) -> Result<(), Refused> {
    if group.is_empty() {
        return Err((ResponseError::InvalidRequest, "the resource needs a name".to_owned()));
    }
    if !context.authorize(Operation::AlterConfigs, Resource::Group(group)) {
        return Err((ResponseError::GroupAuthorizationFailed, "not allowed to change configs".to_owned()));
    }
    let changes = changes(asked)?;
    let names: Vec<String> = changes.iter().map(|(name, _)| name.clone()).collect();
    context.shared.groups.configure(group.to_owned(), changes, validate_only).await.map_err(refused)?;
    if !validate_only {
        tracing::info!(group, configs = names.join(","), "configs changed");
    }
    Ok(())
}

fn changes(asked: &[AlterableConfig]) -> Result<Vec<Change>, Refused> {
    no_duplicates(asked.iter().map(|change| change.name.as_str()))?;
    let change = |change: &AlterableConfig| {
        let name = change.name.to_string();
        match (change.config_operation, &change.value) {
            (DELETE, _) => Ok((name, None)),
            (SET, Some(value)) => Ok((name, Some(value.to_string()))),
            (SET, None) => Err((ResponseError::InvalidRequest, format!("config {name} needs a value"))),
            (other, _) => Err((
                ResponseError::InvalidConfig,
                format!("operation {other} is for lists, and config {name} is none"),
            )),
        }
    };
    asked.iter().map(change).collect()
}

fn refused(error: ConfigError) -> Refused {
    let code = match &error {
        ConfigError::Unknown(_) | ConfigError::Invalid { .. } | ConfigError::Conflict { .. } => {
            ResponseError::InvalidConfig
        }
        ConfigError::Group(error) => {
            ResponseError::try_from_code(error.code()).unwrap_or(ResponseError::UnknownServerError)
        }
    };
    (code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rows: &[(&'static str, i8, Option<&'static str>)]) -> Vec<AlterableConfig> {
        let one = |(name, operation, value): &(&'static str, i8, Option<&'static str>)| {
            AlterableConfig::default()
                .with_name(StrBytes::from_static_str(name))
                .with_config_operation(*operation)
                .with_value(value.map(StrBytes::from_static_str))
        };
        rows.iter().map(one).collect()
    }

    #[test]
    fn operations_come_to_changes() {
        let changed = changes(&asked(&[("a", SET, Some("1")), ("b", DELETE, None)]));
        assert_eq!(changed, Ok(vec![("a".into(), Some("1".into())), ("b".into(), None)]));
        for (rows, code) in [
            (vec![("a", SET, None)], 42),
            (vec![("a", 2, Some("1"))], 40),
            (vec![("a", SET, Some("1")), ("a", DELETE, None)], 42),
        ] {
            assert_eq!(changes(&asked(&rows)).map_err(|(code, _)| code.code()), Err(code), "{rows:?}");
        }
    }

    #[test]
    fn a_row_says_where_its_value_comes_from() {
        let shown = Shown { synonyms: true, documentation: true };
        let key =
            CONFIG_KEYS.iter().find(|key| key.name == "consumer.session.timeout.ms").expect("it is there");
        let shown_with = |node: &NodeConfig, set: &[(&str, &str)]| {
            let settings = Settings::of(node);
            let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let row = row(key, &set.collect(), Beneath { settings: &settings, node }, shown);
            let synonyms = row
                .synonyms
                .iter()
                .map(|s| format!("{} {} {}", s.source, s.name, s.value.as_deref().unwrap_or("")));
            (row.config_source, row.value.map(|value| value.to_string()), synonyms.collect::<Vec<_>>())
        };
        let mut node = NodeConfig::default();
        let beneath = "5 group.consumer.session.timeout.ms 45000".to_owned();
        assert_eq!(shown_with(&node, &[]), (SOURCE_DEFAULT, Some("45000".into()), vec![beneath.clone()]));
        let own = "8 consumer.session.timeout.ms 7000".to_owned();
        assert_eq!(
            shown_with(&node, &[(key.name, "7000")]),
            (SOURCE_GROUP, Some("7000".into()), vec![own, beneath])
        );
        node.set(key.node, "50s").expect("a known key");
        let beneath = "4 group.consumer.session.timeout.ms 50000".to_owned();
        assert_eq!(shown_with(&node, &[]), (SOURCE_STATIC_BROKER, Some("50000".into()), vec![beneath]));
    }
}
