//! A node's settings as clients see them: by the names Kafka's tools ask for where there is one, else under `rangeway.`. A
//! setting without effect says so in its documentation. Those of [`dynamic`] can be changed while the node runs.

use super::dynamic::{self, DynamicConfigs};
use super::kind::Kind;
use super::node::{NODE_KEYS, NodeConfig, NodeKey};
use super::topic::{Effect, TOPIC_KEYS, TopicKey};
use std::collections::BTreeMap;

/// Where a value was set.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// For this node, while it ran.
    Node,
    /// For all nodes, while they ran.
    All,
    /// At the start.
    Start,
    /// Nowhere.
    Default,
}

/// One setting as shown to clients.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Its name.
    pub name: String,
    /// Its values: the one that holds, then those that would without it; none where Kafka's default is null.
    pub values: Vec<(Source, String)>,
    /// Type and bounds.
    pub kind: Kind,
    /// Whether it is as it is until the node starts anew.
    pub read_only: bool,
    /// Meaning.
    pub documentation: String,
}

impl BrokerConfig {
    /// The value that holds.
    pub fn value(&self) -> Option<&str> {
        self.values.first().map(|(_, value)| value.as_str())
    }

    /// Where it was set.
    pub fn source(&self) -> Source {
        self.values.first().map_or(Source::Default, |(source, _)| *source)
    }
}

/// The one of Kafka's settings that may be `auto` here and is a number there.
const HEARTBEAT: &str = "group.consumer.heartbeat.interval.ms";

/// Kafka's names of settings of the node that are not the default of a topic's.
const NAMES: &[(&str, &str)] = &[
    ("auto.create.topics.enable", "auto.create.topics.enable"),
    ("connections.max.idle.ms", "connections.idle.ms"),
    ("default.replication.factor", "default.replication.factor"),
    ("fetch.max.bytes", "fetch.max.bytes"),
    ("group.consumer.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignors", "group.consumer.assignors"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.max.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("group.consumer.max.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.max.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.max.size", "group.consumer.max.size"),
    ("group.consumer.migration.policy", "group.consumer.migration.policy"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.min.assignment.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.min.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.initial.rebalance.delay.ms", "group.initial.rebalance.delay.ms"),
    ("group.max.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.max.size", "group.max.size"),
    ("group.min.session.timeout.ms", "group.min.session.timeout.ms"),
    ("log.cleaner.backoff.ms", "cleaner.backoff.ms"),
    ("log.cleaner.dedupe.buffer.size", "cleaner.dedupe.buffer.size"),
    ("log.retention.check.interval.ms", "retention.check.ms"),
    ("max.connection.creation.rate", "connections.rate.max"),
    ("max.connections", "connections.max"),
    ("max.connections.per.ip", "connections.per.ip.max"),
    ("max.connections.per.ip.overrides", "connections.per.ip.overrides"),
    ("max.incremental.fetch.session.cache.slots", "fetch.sessions.max"),
    ("num.partitions", "num.partitions"),
    ("offset.metadata.max.bytes", "offset.metadata.max.bytes"),
    ("offsets.retention.minutes", "offsets.retention.minutes"),
    ("producer.id.expiration.ms", "producer.id.expiration.ms"),
    ("socket.request.max.bytes", "request.max.bytes"),
    ("transaction.max.timeout.ms", "transaction.max.timeout.ms"),
    ("transactional.id.expiration.ms", "transactional.id.expiration.ms"),
];

/// Settings that are shown as the default of a topic's, under Kafka's name.
const TOPIC_DEFAULTS: &[&str] = &[
    "message.max.bytes",
    "retention.bytes",
    "retention.ms",
    "segment.roll.bytes",
    "segment.roll.jitter.ms",
    "segment.roll.ms",
];

/// What is as it is, by the names of Kafka's settings for it.
const FIXED: &[(&str, Kind, &str, &str)] = &[
    ("delete.topic.enable", Kind::Bool, "true", "Topics can be deleted."),
    (
        "group.coordinator.rebalance.protocols",
        Kind::List(&["classic", "consumer"]),
        "classic,consumer",
        "Protocols of groups that are served.",
    ),
    (
        "offsets.topic.num.partitions",
        Kind::Int { min: 1, max: i32::MAX },
        "50",
        "Partitions of the internal topic of groups.",
    ),
    (
        "process.roles",
        Kind::List(&["broker", "controller"]),
        "broker,controller",
        "What a node is: always both.",
    ),
    ("sasl.enabled.mechanisms", Kind::List(&[]), "", "No listener takes SASL."),
];

/// The node's own name of a setting that Kafka has under this one.
pub(super) fn ours(name: &str) -> Option<&'static str> {
    let same = || NODE_KEYS.iter().find(|key| key.name == name).map(|key| key.name);
    NAMES.iter().find(|(kafka, _)| *kafka == name).map(|(_, ours)| *ours).or_else(same)
}

/// Whether a setting is shown and cannot be set.
pub(super) fn is_fixed(name: &str) -> bool {
    FIXED.iter().any(|(fixed, ..)| *fixed == name)
}

/// The values of a setting that can be changed, and of the one it is the default of: strongest first.
fn changed(name: &str, dynamic: &DynamicConfigs) -> Vec<(Source, String)> {
    let node = dynamic.node.get(name).map(|value| (Source::Node, value.clone()));
    let all = dynamic.all.get(name).map(|value| (Source::All, value.clone()));
    node.into_iter().chain(all).collect()
}

/// What nodes have for topics that do not say `key`, strongest first; the default is left out where Kafka's is null.
pub fn beneath_topics(
    key: &TopicKey,
    config: &NodeConfig,
    dynamic: &DynamicConfigs,
) -> Vec<(Source, String)> {
    let mut values = key.synonym.map(|name| changed(name, dynamic)).unwrap_or_default();
    let (start, default) = (key.default(config), key.default(&NodeConfig::default()));
    if start != default {
        values.push((Source::Start, start));
    }
    if !key.synonym_is_null {
        values.push((Source::Default, default));
    }
    values
}

/// A setting of the node as it is shown: the number that holds for Kafka's own that is `auto`.
fn shown(key: &NodeKey, config: &NodeConfig) -> String {
    match key.name {
        HEARTBEAT => config.group_consumer_heartbeat_interval_ms_of().to_string(),
        _ => key.value(config),
    }
}

/// What holds where a setting is not set: for Kafka's own that is `auto`, what others of this node make of it.
fn default(key: &NodeKey, config: &NodeConfig) -> String {
    match key.name {
        HEARTBEAT => {
            let auto = NodeConfig { group_consumer_heartbeat_interval_ms: None, ..config.clone() };
            shown(key, &auto)
        }
        _ => key.default(),
    }
}

/// A setting that may be `auto`, and is shown so, is a text.
fn shown_kind(key: &NodeKey) -> Kind {
    if key.may_be_auto && key.name != HEARTBEAT { Kind::Text } else { key.kind }
}

/// All settings of node `id`, by name.
pub fn describe(id: i32, config: &NodeConfig, dynamic: &DynamicConfigs) -> Vec<BrokerConfig> {
    let mut all = BTreeMap::new();
    let mut add = |row: BrokerConfig| all.insert(row.name.clone(), row);
    for key in NODE_KEYS.iter().filter(|key| !TOPIC_DEFAULTS.contains(&key.name)) {
        let kafka = NAMES.iter().find(|(_, ours)| *ours == key.name).map(|(kafka, _)| *kafka);
        let name = kafka.map_or_else(|| format!("rangeway.{}", key.name), str::to_owned);
        let mut values = changed(&name, dynamic);
        if key.value(config) != key.default() {
            values.push((Source::Start, shown(key, config)));
        }
        values.push((Source::Default, default(key, config)));
        let (kind, read_only) = (shown_kind(key), !dynamic::is_dynamic(&name));
        add(BrokerConfig { name, values, kind, read_only, documentation: key.doc.to_owned() });
    }
    for key in TOPIC_KEYS {
        let Some(name) = key.synonym else { continue };
        add(BrokerConfig {
            name: name.to_owned(),
            values: beneath_topics(key, config, dynamic),
            kind: key.kind,
            read_only: false,
            documentation: match key.effect {
                Effect::Used => format!("Of topics that do not say otherwise: {}", key.documentation()),
                Effect::StoredOnly { .. } => key.documentation(),
            },
        });
    }
    for (name, documentation) in dynamic::THROTTLES {
        let (values, kind) = (changed(name, dynamic), dynamic::kind(name));
        if let (Some(kind), false) = (kind, values.is_empty()) {
            let (name, documentation) = ((*name).to_owned(), (*documentation).to_owned());
            add(BrokerConfig { name, values, kind, read_only: false, documentation });
        }
    }
    for (name, kind, value, documentation) in FIXED {
        add(BrokerConfig {
            name: (*name).to_owned(),
            values: vec![(Source::Default, (*value).to_owned())],
            kind: *kind,
            read_only: true,
            documentation: (*documentation).to_owned(),
        });
    }
    for name in ["broker.id", "node.id"] {
        add(BrokerConfig {
            name: name.to_owned(),
            values: vec![(Source::Start, id.to_string())],
            kind: Kind::Int { min: 0, max: i32::MAX },
            read_only: true,
            documentation: "Number of this node.".to_owned(),
        });
    }
    all.into_values().collect()
}

/// What was set for all nodes while they ran, by name.
pub fn describe_all(dynamic: &DynamicConfigs) -> Vec<BrokerConfig> {
    let rows = dynamic.all.iter().map(|(name, value)| BrokerConfig {
        name: name.clone(),
        values: vec![(Source::All, value.clone())],
        kind: dynamic::kind(name).unwrap_or(Kind::Text),
        read_only: false,
        documentation: dynamic::topic_key(name).map(TopicKey::documentation).unwrap_or_default(),
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_setting_of_the_node_is_shown_under_one_name() {
        let shown = describe(7, &NodeConfig::default(), &DynamicConfigs::default());
        assert!(shown.is_sorted_by(|a, b| a.name < b.name));
        for ours in NAMES.iter().map(|(_, ours)| ours).chain(TOPIC_DEFAULTS) {
            assert!(node::find(ours).is_some(), "{ours}");
        }
        for (name, kind, value, _) in FIXED {
            assert_eq!(kind.check(value), Ok(()), "{name}");
        }
        let synonyms = TOPIC_KEYS.iter().filter(|key| key.synonym.is_some()).count();
        assert_eq!(shown.len(), NODE_KEYS.len() - TOPIC_DEFAULTS.len() + synonyms + FIXED.len() + 2);
    }

    #[test]
    fn every_value_is_one_of_its_type() {
        let mut set = NodeConfig::default();
        for (name, value) in [("group.consumer.heartbeat.interval.ms", "1s"), ("disk.reserve.bytes", "1GiB")]
        {
            set.set(name, value).unwrap();
        }
        let none = DynamicConfigs::default();
        for row in describe(7, &set, &none).into_iter().chain(describe(7, &NodeConfig::default(), &none)) {
            for (source, value) in &row.values {
                assert_eq!(row.kind.check(value), Ok(()), "{} {source:?} {value}", row.name);
            }
        }
        let mut bounded = NodeConfig::default();
        bounded.set("group.consumer.min.heartbeat.interval.ms", "2s").unwrap();
        for (config, interval) in [(&NodeConfig::default(), "500"), (&bounded, "2000"), (&set, "1000")] {
            let shown = describe(7, config, &none);
            let row = shown.iter().find(|row| row.name == HEARTBEAT).unwrap();
            assert_eq!(row.value(), Some(interval));
        }
    }

    #[test]
    fn what_kafka_leaves_to_another_setting_has_no_value_until_it_is_set() {
        let none = DynamicConfigs::default();
        let mut config = NodeConfig::default();
        let value = |config: &NodeConfig, name: &str| {
            let row = describe(7, config, &none).into_iter().find(|row| row.name == name).unwrap();
            (row.value().map(str::to_owned), row.source())
        };
        for name in ["log.flush.interval.ms", "log.roll.jitter.ms", "log.roll.ms"] {
            assert_eq!(value(&config, name), (None, Source::Default), "{name}");
        }
        config.set("segment.roll.ms", "1h").unwrap();
        assert_eq!(value(&config, "log.roll.ms"), (Some("3600000".to_owned()), Source::Start));
    }

    #[test]
    fn values_are_the_nodes_and_say_where_they_were_set() {
        let mut config = NodeConfig::default();
        config.set("retention.ms", "5s").unwrap();
        config.set("extent.bytes", "1MiB").unwrap();
        let dynamic = DynamicConfigs {
            all: set(&[("log.retention.ms", "1"), ("max.connections", "5")]),
            node: set(&[("log.retention.ms", "2"), ("leader.replication.throttled.rate", "1000")]),
        };
        let shown = describe(7, &config, &dynamic);
        let find = |name: &str| {
            let row = shown.iter().find(|row| row.name == name).unwrap();
            (row.value().unwrap(), row.source(), row.read_only)
        };
        assert_eq!(find("node.id"), ("7", Source::Start, true));
        assert_eq!(find("rangeway.extent.bytes"), ("1048576", Source::Start, true));
        assert_eq!(find("num.partitions"), ("16", Source::Default, true));
        assert_eq!(find("fetch.max.bytes"), ("57671680", Source::Default, true));
        assert_eq!(find("message.max.bytes"), ("1048588", Source::Default, false));
        assert_eq!(find("max.connections"), ("5", Source::All, false));
        assert_eq!(find("log.retention.ms"), ("2", Source::Node, false));
        assert_eq!(find("leader.replication.throttled.rate"), ("1000", Source::Node, false));
        assert!(shown.iter().all(|row| row.name != "follower.replication.throttled.rate"), "not set");
        let retention = shown.iter().find(|row| row.name == "log.retention.ms").unwrap();
        let values: Vec<_> =
            retention.values.iter().map(|(source, value)| (*source, value.as_str())).collect();
        let week = "604800000";
        let expected =
            [(Source::Node, "2"), (Source::All, "1"), (Source::Start, "5000"), (Source::Default, week)];
        assert_eq!(values, expected);
        let all: Vec<String> = describe_all(&dynamic).into_iter().map(|row| row.name).collect();
        assert_eq!(all, ["log.retention.ms", "max.connections"]);
    }
}
