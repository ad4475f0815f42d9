//! Configs as clients see them: value, source, type, synonyms, documentation. Owns Kafka's numbers for sources and
//! types; the tables themselves are core's.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_response::CreatableTopicConfigs;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::TopicView;
use rangeway_core::config::topic::{DRIVE, TOPIC_KEYS, TopicKey};
use rangeway_core::config::{Kind, broker, node::NodeConfig};
use std::collections::{HashMap, HashSet};

/// Resource type of topics.
pub(super) const TOPIC: i8 = 2;
/// Resource type of brokers.
pub(super) const BROKER: i8 = 4;
/// Resource type of a broker's log levels.
pub(super) const BROKER_LOGGER: i8 = 8;
/// Resource type of clients' metrics subscriptions.
pub(super) const CLIENT_METRICS: i8 = 16;
/// Resource type of groups.
pub(super) const GROUP: i8 = 32;

/// Where a value comes from, in Kafka's numbers.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_STATIC_BROKER: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

/// What a row of DescribeConfigs shows beside its value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The values that would hold without the topmost.
    pub synonyms: bool,
    /// What the setting means.
    pub documentation: bool,
}

/// A refused change or question: code and message.
pub(super) type Refused = (ResponseError, String);

/// Resources by type and name, to answer one that is named twice as Kafka does: refused each time.
#[derive(Debug, Default)]
pub(super) struct Named(HashMap<(i8, String), usize>);

impl Named {
    pub(super) fn of<'a>(resources: impl Iterator<Item = (i8, &'a str)>) -> Named {
        let mut times = HashMap::new();
        for (kind, name) in resources {
            *times.entry((kind, name.to_owned())).or_default() += 1;
        }
        Named(times)
    }

    /// Errors: INVALID_REQUEST for a resource that the request names more than once.
    pub(super) fn once(&self, kind: i8, name: &str) -> Result<(), Refused> {
        match self.0.get(&(kind, name.to_owned())) {
            Some(times) if *times > 1 => Err((
                ResponseError::InvalidRequest,
                "the request names this resource more than once".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Errors: INVALID_REQUEST where a resource's configs name one more than once, as Kafka answers it.
pub(super) fn no_duplicates<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Refused> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err((ResponseError::InvalidRequest, format!("config {name} is named more than once")));
        }
    }
    Ok(())
}

/// Error code and message of a row that answers a change.
pub(super) fn answered(outcome: Result<(), Refused>) -> (i16, Option<StrBytes>) {
    match outcome {
        Ok(()) => (0, None),
        Err((code, message)) => (code.code(), text(message)),
    }
}

/// All settings of a topic, by name.
pub(super) fn topic_rows(
    topic: &TopicView,
    node: &NodeConfig,
    shown: Shown,
) -> Vec<DescribeConfigsResourceResult> {
    TOPIC_KEYS.iter().map(|key| topic_row(key, topic, node, shown)).collect()
}

fn topic_row(
    key: &TopicKey,
    topic: &TopicView,
    node: &NodeConfig,
    shown: Shown,
) -> DescribeConfigsResourceResult {
    let (value, source) = effective(key, topic, node);
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(key.name))
        .with_value(Some(StrBytes::from_string(value)))
        .with_read_only(false)
        .with_config_source(source)
        .with_is_sensitive(false)
        .with_synonyms(if shown.synonyms { topic_synonyms(key, topic, node) } else { Vec::new() })
        .with_config_type(type_number(key.kind))
        .with_documentation(shown.documentation.then(|| StrBytes::from_string(key.documentation())))
}

/// The value that holds, and its source. A topic without an expression of its own shows the one its segments get.
fn effective(key: &TopicKey, topic: &TopicView, node: &NodeConfig) -> (String, i8) {
    match topic.configs.get(key.name) {
        Some(value) => (value.clone(), SOURCE_TOPIC),
        None if key.name == DRIVE => (topic.drive.to_string(), node_source(key, node)),
        None => (key.default(node), node_source(key, node)),
    }
}

fn node_source(key: &TopicKey, node: &NodeConfig) -> i8 {
    if key.default(node) == key.default(&NodeConfig::default()) {
        SOURCE_DEFAULT
    } else {
        SOURCE_STATIC_BROKER
    }
}

/// The topic's own value, the node's, the default: those that there are.
fn topic_synonyms(key: &TopicKey, topic: &TopicView, node: &NodeConfig) -> Vec<DescribeConfigsSynonym> {
    let own = topic.configs.get(key.name).map(|value| synonym(key.name, value.clone(), SOURCE_TOPIC));
    let Some(name) = key.synonym else { return own.into_iter().collect() };
    let set = node_source(key, node) == SOURCE_STATIC_BROKER;
    let of_node = set.then(|| synonym(name, key.default(node), SOURCE_STATIC_BROKER));
    let default = synonym(name, key.default(&NodeConfig::default()), SOURCE_DEFAULT);
    own.into_iter().chain(of_node).chain([default]).collect()
}

fn synonym(name: &str, value: String, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym::default()
        .with_name(StrBytes::from_string(name.to_owned()))
        .with_value(Some(StrBytes::from_string(value)))
        .with_source(source)
}

/// All settings of this node, by name; none can be changed while it runs.
pub(super) fn broker_rows(id: i32, node: &NodeConfig, shown: Shown) -> Vec<DescribeConfigsResourceResult> {
    broker::describe(id, node)
        .into_iter()
        .map(|row| {
            let source = if row.is_default { SOURCE_DEFAULT } else { SOURCE_STATIC_BROKER };
            let synonyms = vec![synonym(&row.name, row.value.clone(), source)];
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_string(row.name))
                .with_value(Some(StrBytes::from_string(row.value)))
                .with_read_only(true)
                .with_config_source(source)
                .with_is_sensitive(false)
                .with_synonyms(if shown.synonyms { synonyms } else { Vec::new() })
                .with_config_type(type_number(row.kind))
                .with_documentation(shown.documentation.then(|| StrBytes::from_string(row.documentation)))
        })
        .collect()
}

/// All settings of a topic as CreateTopics answers them.
pub(super) fn created_rows(topic: &TopicView, node: &NodeConfig) -> Vec<CreatableTopicConfigs> {
    TOPIC_KEYS
        .iter()
        .map(|key| {
            let (value, source) = effective(key, topic, node);
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_static_str(key.name))
                .with_value(Some(StrBytes::from_string(value)))
                .with_read_only(false)
                .with_config_source(source)
                .with_is_sensitive(false)
        })
        .collect()
}

/// Kafka's number of a type.
fn type_number(kind: Kind) -> i8 {
    const BOOLEAN: i8 = 1;
    const STRING: i8 = 2;
    const INT: i8 = 3;
    const LONG: i8 = 5;
    const DOUBLE: i8 = 6;
    const LIST: i8 = 7;
    match kind {
        Kind::Bool => BOOLEAN,
        Kind::Int { .. } => INT,
        Kind::Bytes { max, .. } if max <= i64::from(i32::MAX) => INT,
        Kind::Long { .. } | Kind::Bytes { .. } | Kind::Millis { .. } => LONG,
        Kind::Double { .. } => DOUBLE,
        Kind::List(_) => LIST,
        Kind::Choice(_) | Kind::Text | Kind::Drive => STRING,
    }
}

/// Text for a message field.
pub(super) fn text(message: impl Into<String>) -> Option<StrBytes> {
    Some(StrBytes::from_string(message.into()))
}
