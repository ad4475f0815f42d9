//! A node's settings as clients see them, read-only: by the names Kafka's tools ask for where there is one, else under
//! `rangeway.`. A setting without effect says so in its documentation.

use super::kind::Kind;
use super::node::{self, NODE_KEYS, NodeConfig};
use super::topic::{Effect, TOPIC_KEYS};
use std::collections::BTreeMap;

/// One setting as shown to clients.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Type and bounds.
    pub kind: Kind,
    /// Whether it is as it comes.
    pub is_default: bool,
    /// Meaning.
    pub documentation: String,
}

/// Kafka's names of settings of the node that are not the default of a topic's.
const NAMES: &[(&str, &str)] = &[
    ("auto.create.topics.enable", "auto.create.topics.enable"),
    ("connections.max.idle.ms", "connections.idle.ms"),
    ("default.replication.factor", "default.replication.factor"),
    ("group.initial.rebalance.delay.ms", "group.initial.rebalance.delay.ms"),
    ("log.retention.check.interval.ms", "retention.check.ms"),
    ("max.connections", "connections.max"),
    ("max.incremental.fetch.session.cache.slots", "fetch.sessions.max"),
    ("num.partitions", "num.partitions"),
    ("producer.id.expiration.ms", "producer.id.expiration.ms"),
    ("socket.request.max.bytes", "request.max.bytes"),
];

/// Settings that are shown as the default of a topic's, under Kafka's name.
const TOPIC_DEFAULTS: &[&str] =
    &["message.max.bytes", "retention.bytes", "retention.ms", "segment.roll.bytes", "segment.roll.ms"];

/// All settings of node `id`, by name.
pub fn describe(id: i32, config: &NodeConfig) -> Vec<BrokerConfig> {
    let mut all = BTreeMap::new();
    for key in NODE_KEYS.iter().filter(|key| !TOPIC_DEFAULTS.contains(&key.name)) {
        let kafka = NAMES.iter().find(|(_, ours)| *ours == key.name).map(|(kafka, _)| *kafka);
        let name = kafka.map_or_else(|| format!("rangeway.{}", key.name), str::to_owned);
        all.insert(name.clone(), row(name, key, config));
    }
    for key in TOPIC_KEYS {
        let Some(name) = key.synonym else { continue };
        let (value, default) = (key.default(config), key.default(&NodeConfig::default()));
        all.insert(
            name.to_owned(),
            BrokerConfig {
                name: name.to_owned(),
                is_default: value == default,
                value,
                kind: key.kind,
                documentation: match key.effect {
                    Effect::Used => format!("Of topics that do not say otherwise: {}", key.documentation()),
                    Effect::StoredOnly { .. } => key.documentation(),
                },
            },
        );
    }
    for name in ["broker.id", "node.id"] {
        all.insert(
            name.to_owned(),
            BrokerConfig {
                name: name.to_owned(),
                value: id.to_string(),
                kind: Kind::Int { min: 0, max: i32::MAX },
                is_default: false,
                documentation: "Number of this node.".to_owned(),
            },
        );
    }
    all.into_values().collect()
}

fn row(name: String, key: &node::NodeKey, config: &NodeConfig) -> BrokerConfig {
    let value = key.value(config);
    let is_default = value == key.default();
    BrokerConfig { name, value, kind: key.kind, is_default, documentation: key.doc.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_the_node_is_shown_under_one_name() {
        let shown = describe(7, &NodeConfig::default());
        assert!(shown.is_sorted_by(|a, b| a.name < b.name));
        for ours in NAMES.iter().map(|(_, ours)| ours).chain(TOPIC_DEFAULTS) {
            assert!(node::find(ours).is_some(), "{ours}");
        }
        let synonyms = TOPIC_KEYS.iter().filter(|key| key.synonym.is_some()).count();
        assert_eq!(shown.len(), NODE_KEYS.len() - TOPIC_DEFAULTS.len() + synonyms + 2);
    }

    #[test]
    fn values_are_the_nodes_and_say_whether_they_are_defaults() {
        let mut config = NodeConfig::default();
        config.set("retention.ms", "5s").unwrap();
        config.set("extent.bytes", "1MiB").unwrap();
        let shown = describe(7, &config);
        let find =
            |name: &str| shown.iter().find(|row| row.name == name).map(|r| (r.value.as_str(), r.is_default));
        assert_eq!(find("node.id"), Some(("7", false)));
        assert_eq!(find("log.retention.ms"), Some(("5000", false)));
        assert_eq!(find("rangeway.extent.bytes"), Some(("1048576", false)));
        assert_eq!(find("num.partitions"), Some(("16", true)));
        assert_eq!(find("message.max.bytes"), Some(("1048588", true)));
    }
}
