//! Settings of nodes that are changed while they run, by Kafka's names: some for all nodes, and over these some for one.
//! They are what topics have that do not say otherwise, and over what was said at the start.

use super::kafka;
use super::kind::Kind;
use super::node;
use super::topic::{TOPIC_KEYS, TopicKey};
use super::{ConfigError, invalid, nearest};
use std::collections::BTreeMap;

/// Name of the most connections at once.
pub const CONNECTIONS_MAX: &str = "max.connections";
/// Name of the most connections of an address.
pub const CONNECTIONS_PER_IP: &str = "max.connections.per.ip";
/// Name of the most connections of certain addresses.
pub const CONNECTIONS_OVERRIDES: &str = "max.connections.per.ip.overrides";
/// Name of the most connections that are let in within a second.
pub const CONNECTIONS_RATE: &str = "max.connection.creation.rate";

/// Name of how long a silent idempotent producer is remembered.
pub const PRODUCER_EXPIRATION: &str = "producer.id.expiration.ms";

/// Settings that are the default of no topic's, with type and bounds.
const OWN: &[(&str, Kind)] = &[
    (CONNECTIONS_RATE, node::CONNECTIONS_RATE),
    (CONNECTIONS_MAX, node::CONNECTIONS),
    (CONNECTIONS_PER_IP, node::CONNECTIONS_PER_IP),
    (CONNECTIONS_OVERRIDES, Kind::Addresses),
    (PRODUCER_EXPIRATION, node::PERIOD_INT),
];

const THROTTLE: Kind = Kind::Long { min: 0, max: i64::MAX };

/// Throttles that tools set around a reassignment, with what they are: shown only where they were set, as Kafka shows them.
pub const THROTTLES: &[(&str, &str)] = &[
    (
        "follower.replication.throttled.rate",
        "Bytes per second at which followers copy. Stored, without effect: no replica is copied from another, so it holds.",
    ),
    (
        "leader.replication.throttled.rate",
        "Bytes per second at which leaders are copied. Stored, without effect: no replica is copied from another, so it holds.",
    ),
    (
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "Bytes per second at which replicas are moved between log directories. Stored, without effect: none is moved that way, so it holds.",
    ),
];

/// Type and bounds of a setting that is not the default of a topic's.
fn own(name: &str) -> Option<Kind> {
    let throttle = THROTTLES.iter().any(|(throttle, _)| *throttle == name);
    let own = OWN.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    own.or(throttle.then_some(THROTTLE))
}

/// For which nodes a value was set.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For all that have none of their own.
    All,
    /// For this one.
    Node,
}

/// What was set, as one node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicConfigs {
    /// For all nodes.
    pub all: BTreeMap<String, String>,
    /// For this node.
    pub node: BTreeMap<String, String>,
}

impl DynamicConfigs {
    /// The value that holds here, and for whom it was set.
    pub fn get(&self, name: &str) -> Option<(&str, Scope)> {
        match (self.node.get(name), self.all.get(name)) {
            (Some(value), _) => Some((value, Scope::Node)),
            (None, Some(value)) => Some((value, Scope::All)),
            (None, None) => None,
        }
    }

    /// Most connections at once, where it was set.
    pub fn connections_max(&self) -> Option<usize> {
        self.get(CONNECTIONS_MAX).and_then(|(value, _)| value.trim().parse().ok())
    }

    /// How long a silent idempotent producer is remembered, ms, where it was set.
    pub fn producer_id_expiration_ms(&self) -> Option<i64> {
        self.get(PRODUCER_EXPIRATION).and_then(|(value, _)| value.trim().parse().ok())
    }

    /// A topic's settings with these beneath: its own win.
    pub fn beneath(&self, explicit: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut layered = explicit.clone();
        if self.all.is_empty() && self.node.is_empty() {
            return layered;
        }
        for key in TOPIC_KEYS.iter().filter(|key| !explicit.contains_key(key.name)) {
            if let Some((value, _)) = key.synonym.and_then(|name| self.get(name)) {
                layered.insert(key.name.to_owned(), value.to_owned());
            }
        }
        layered
    }
}

/// The topic's setting whose default is set by this name.
pub fn topic_key(name: &str) -> Option<&'static TopicKey> {
    TOPIC_KEYS.iter().find(|key| key.synonym == Some(name))
}

/// Whether a node's setting is one that can be changed while it runs.
pub fn is_dynamic(name: &str) -> bool {
    topic_key(name).is_some() || own(name).is_some()
}

/// Type and bounds of a setting that can be changed.
pub fn kind(name: &str) -> Option<Kind> {
    topic_key(name).map(|key| key.kind).or_else(|| own(name))
}

/// Whether a setting that can be changed can hold `value`.
///
/// Errors: `Invalid`, in Kafka's words where Kafka has some; `NotSupported` for Kafka's that are not there; `Unknown` for
/// all else that cannot be changed while a node runs.
pub fn check(name: &str, value: &str) -> Result<(), ConfigError> {
    if let Some(key) = topic_key(name) {
        return key.check(value).map_err(|error| match error {
            ConfigError::Invalid { value, why, .. } => {
                ConfigError::Invalid { name: name.to_owned(), value, why }
            }
            other => other,
        });
    }
    match (kind(name), kafka::not_supported(name)) {
        (Some(kind), _) => kind.check(value).map_err(|why| invalid(name, value, why)),
        (None, Some(why)) => Err(ConfigError::NotSupported { name: name.to_owned(), why }),
        (None, None) => {
            let throttles = THROTTLES.iter().map(|(name, _)| *name);
            let own = throttles.chain(OWN.iter().map(|(name, _)| *name));
            let nearest =
                nearest(name, TOPIC_KEYS.iter().filter_map(|key| key.synonym).chain(own)).map(str::to_owned);
            Err(ConfigError::Unknown { what: "dynamic broker", name: name.to_owned(), nearest })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node::NodeConfig;
    use crate::config::topic::TopicConfig;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_topics_own_value_wins_then_the_nodes_then_that_of_all() {
        let dynamic = DynamicConfigs {
            all: map(&[
                ("log.retention.ms", "1"),
                ("message.max.bytes", "2000"),
                ("log.segment.bytes", "70000"),
            ]),
            node: map(&[("message.max.bytes", "3000"), ("log.segment.bytes", "80000")]),
        };
        let layered = dynamic.beneath(&map(&[("segment.bytes", "90000"), ("flush.ms", "5")]));
        let expected = [
            ("flush.ms", "5"),
            ("max.message.bytes", "3000"),
            ("retention.ms", "1"),
            ("segment.bytes", "90000"),
        ];
        assert_eq!(layered, map(&expected));
        let config = TopicConfig::new(&layered, &NodeConfig::default()).unwrap();
        assert_eq!((config.max_message_bytes, config.retention_ms), (3000, Some(1)));
        assert_eq!(dynamic.get("log.retention.ms"), Some(("1", Scope::All)));
        assert_eq!(dynamic.get("message.max.bytes"), Some(("3000", Scope::Node)));
        assert_eq!(dynamic.get("max.connections"), None);
    }

    #[test]
    fn only_what_is_looked_at_while_a_node_runs_can_be_changed() {
        check("log.retention.ms", "-1").unwrap();
        check("max.connections", "5").unwrap();
        check("producer.id.expiration.ms", "2147483647").unwrap();
        assert!(check("producer.id.expiration.ms", "0").is_err());
        let error = |name, value| check(name, value).unwrap_err().to_string();
        assert_eq!(
            error("log.retention.ms", "x"),
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG"
        );
        assert!(error("max.connections", "0").ends_with("Value must be at least 1"));
        check("max.connections.per.ip", "0").unwrap();
        check("max.connections.per.ip.overrides", "10.0.0.7:100,::1:5").unwrap();
        check("max.connection.creation.rate", "2147483647").unwrap();
        assert!(error("max.connections.per.ip", "-1").ends_with("Value must be at least 0"));
        assert!(error("max.connections.per.ip.overrides", "host:1").contains("'host:1' is no ADDRESS:COUNT"));
        for (throttle, _) in THROTTLES {
            assert_eq!((check(throttle, "0"), is_dynamic(throttle)), (Ok(()), true));
            check(throttle, &i64::MAX.to_string()).unwrap();
            assert!(error(throttle, "-1").ends_with("Value must be at least 0"), "{throttle}");
            assert!(error(throttle, "1.5").ends_with("Not a number of type LONG"), "{throttle}");
        }
        assert!(
            error("log.cleanup.policy", "x")
                .starts_with("Invalid value x for configuration log.cleanup.policy")
        );
        assert!(
            error("background.threads", "3")
                .starts_with("background.threads is not supported. There are no pools"),
        );
        assert_eq!(
            error("log.retention.mss", "1"),
            "Unknown dynamic broker config name: log.retention.mss; did you mean log.retention.ms?"
        );
        assert!(
            !is_dynamic("num.partitions") && !is_dynamic("retention.ms") && is_dynamic("min.insync.replicas")
        );
    }
}
