//! Configs as clients see them: value, source, type, synonyms, documentation. Owns Kafka's numbers for sources and
//! types; the tables themselves are core's.

use crate::logs::Levels;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_response::CreatableTopicConfigs;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::TopicView;
use rangeway_core::config::broker::{self, BrokerConfig, Source};
use rangeway_core::config::dynamic::DynamicConfigs;
use rangeway_core::config::topic::{DRIVE, TOPIC_KEYS, TopicKey};
use rangeway_core::config::{Kind, node::NodeConfig};
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

fn number(source: Source) -> i8 {
    const DYNAMIC_BROKER: i8 = 2;
    const DYNAMIC_DEFAULT_BROKER: i8 = 3;
    const DEFAULT: i8 = 5;
    match source {
        Source::Node => DYNAMIC_BROKER,
        Source::All => DYNAMIC_DEFAULT_BROKER,
        Source::Start => SOURCE_STATIC_BROKER,
        Source::Default => DEFAULT,
    }
}

/// What nodes have for topics that do not say otherwise.
#[derive(Copy, Clone, Debug)]
pub(super) struct Nodes<'a> {
    /// Set at the start.
    pub(super) config: &'a NodeConfig,
    /// Set since.
    pub(super) dynamic: &'a DynamicConfigs,
}

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
    nodes: Nodes<'_>,
    shown: Shown,
) -> Vec<DescribeConfigsResourceResult> {
    TOPIC_KEYS.iter().map(|key| topic_row(key, topic, nodes, shown)).collect()
}

fn topic_row(
    key: &TopicKey,
    topic: &TopicView,
    nodes: Nodes<'_>,
    shown: Shown,
) -> DescribeConfigsResourceResult {
    let (value, source) = effective(key, topic, nodes);
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(key.name))
        .with_value(Some(StrBytes::from_string(value)))
        .with_read_only(false)
        .with_config_source(source)
        .with_is_sensitive(false)
        .with_synonyms(if shown.synonyms { topic_synonyms(key, topic, nodes) } else { Vec::new() })
        .with_config_type(type_number(key.kind))
        .with_documentation(shown.documentation.then(|| StrBytes::from_string(key.documentation())))
}

/// The value that holds, and its source. A topic without an expression of its own shows the one its segments get.
pub(super) fn effective(key: &TopicKey, topic: &TopicView, nodes: Nodes<'_>) -> (String, i8) {
    if let Some(value) = topic.configs.get(key.name) {
        return (key.kind.shown(value), SOURCE_TOPIC);
    }
    let beneath = broker::beneath_topics(key, nodes.config, nodes.dynamic);
    let default = || (Source::Default, key.default(&NodeConfig::default()));
    let (source, value) = beneath.into_iter().next().unwrap_or_else(default);
    let value = if key.name == DRIVE { topic.drive.to_string() } else { key.kind.shown(&value) };
    (value, number(source))
}

/// The topic's own value, what nodes have, the default: those that there are.
fn topic_synonyms(key: &TopicKey, topic: &TopicView, nodes: Nodes<'_>) -> Vec<DescribeConfigsSynonym> {
    let own = topic.configs.get(key.name).map(|value| synonym(key.name, key.kind.shown(value), SOURCE_TOPIC));
    let Some(name) = key.synonym else { return own.into_iter().collect() };
    let beneath = broker::beneath_topics(key, nodes.config, nodes.dynamic);
    let beneath =
        beneath.into_iter().map(|(source, value)| synonym(name, key.kind.shown(&value), number(source)));
    own.into_iter().chain(beneath).collect()
}

fn synonym(name: &str, value: String, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym::default()
        .with_name(StrBytes::from_string(name.to_owned()))
        .with_value(Some(StrBytes::from_string(value)))
        .with_source(source)
}

/// What a node is, beside its settings.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) id: i32,
    pub(super) rack: Option<String>,
    /// As clients reach it.
    pub(super) host: String,
    pub(super) port: u16,
    /// Data directories.
    pub(super) dirs: Vec<String>,
}

/// All settings of this node, by name.
pub(super) fn broker_rows(
    facts: &Facts,
    nodes: Nodes<'_>,
    shown: Shown,
) -> Vec<DescribeConfigsResourceResult> {
    let rows = broker::describe(facts.id, nodes.config, nodes.dynamic);
    let mut rows: Vec<_> = rows.into_iter().map(|row| broker_row(row, shown)).collect();
    let listener = format!("PLAINTEXT://{}:{}", facts.host, facts.port);
    for (name, value, kind, documentation) in [
        (
            "advertised.listeners",
            Some(listener.clone()),
            Kind::List(&[]),
            "Where clients are told to connect.",
        ),
        ("broker.rack", facts.rack.clone(), Kind::Text, "Rack or zone of this node."),
        ("listeners", Some(listener), Kind::List(&[]), "Where this client is served."),
        ("log.dirs", Some(facts.dirs.join(",")), Kind::List(&[]), "Data directories of this node."),
    ] {
        let row = DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value.clone().map(StrBytes::from_string))
            .with_read_only(true)
            .with_config_source(number(if value.is_some() { Source::Start } else { Source::Default }))
            .with_config_type(type_number(kind))
            .with_documentation(shown.documentation.then(|| StrBytes::from_static_str(documentation)));
        let own = value.map(|value| synonym(name, value, SOURCE_STATIC_BROKER));
        rows.push(row.with_synonyms(own.into_iter().filter(|_| shown.synonyms).collect()));
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

/// What was set for all nodes while they ran, by name.
pub(super) fn all_brokers_rows(dynamic: &DynamicConfigs, shown: Shown) -> Vec<DescribeConfigsResourceResult> {
    broker::describe_all(dynamic).into_iter().map(|row| broker_row(row, shown)).collect()
}

/// The log levels of this node, by logger.
pub(super) fn logger_rows(levels: Option<&Levels>) -> Vec<DescribeConfigsResourceResult> {
    const DYNAMIC_BROKER_LOGGER: i8 = 6;
    let loggers = levels.map(Levels::loggers).unwrap_or_default().into_iter().map(|logger| {
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_string(logger.name))
            .with_value(Some(StrBytes::from_string(logger.level)))
            .with_read_only(false)
            .with_config_source(DYNAMIC_BROKER_LOGGER)
            .with_documentation(None)
    });
    loggers.collect()
}

fn broker_row(row: BrokerConfig, shown: Shown) -> DescribeConfigsResourceResult {
    let (value, source) = (row.value().map(|value| row.kind.shown(value)), number(row.source()));
    let shown_once = |value: String| row.kind.shown(&value);
    let synonyms =
        row.values.into_iter().map(|(source, value)| synonym(&row.name, shown_once(value), number(source)));
    let synonyms = if shown.synonyms { synonyms.collect() } else { Vec::new() };
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_string(row.name))
        .with_value(value.map(StrBytes::from_string))
        .with_read_only(row.read_only)
        .with_config_source(source)
        .with_is_sensitive(false)
        .with_synonyms(synonyms)
        .with_config_type(type_number(row.kind))
        .with_documentation(shown.documentation.then(|| StrBytes::from_string(row.documentation)))
}

/// All settings of a topic as CreateTopics answers them.
pub(super) fn created_rows(topic: &TopicView, nodes: Nodes<'_>) -> Vec<CreatableTopicConfigs> {
    TOPIC_KEYS
        .iter()
        .map(|key| {
            let (value, source) = effective(key, topic, nodes);
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
        // Other bounds are the node's own: what is bounded so is a whole number of 32 bits in Kafka.
        Kind::Millis { max, .. } if max == i64::from(i32::MAX) => INT,
        Kind::Long { .. } | Kind::Bytes { .. } | Kind::Millis { .. } => LONG,
        Kind::Double { .. } => DOUBLE,
        Kind::List(_) => LIST,
        Kind::Choice(_) | Kind::Text | Kind::Drive | Kind::Addresses => STRING,
    }
}

/// Text for a message field.
pub(super) fn text(message: impl Into<String>) -> Option<StrBytes> {
    Some(StrBytes::from_string(message.into()))
}
