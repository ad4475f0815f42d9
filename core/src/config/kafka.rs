//! What becomes here of each of Kafka's settings of a broker: it has its effect under a name of the node's own, is the
//! default of a topic's, is as it is, or there is nothing that it could change and it is refused.
//!
//! The names are those of Kafka 4.4; a test holds them against the list of all.

use super::kind::Kind;
use super::topic::{Effect, TopicKey};
use super::{broker, dynamic, node};

/// What becomes of a setting.
#[derive(Copy, Clone, Debug)]
pub enum Fate {
    /// A setting of the node, under this name.
    Node(&'static str),
    /// A setting of the program, under this name.
    Program(&'static str),
    /// The default of a topic's, changed while nodes run; and at the start under this name, where there is one.
    Topics(&'static TopicKey, Option<&'static str>),
    /// Another one in a larger unit, at the start only.
    Unit(&'static LargerUnit),
    /// Set by tools around a reassignment.
    Throttle,
    /// Shown, and as it is.
    Fixed,
    /// Nothing here answers to it: why, and what to do instead.
    Missing(&'static str),
}

/// Of which settings the same is to be said. A name that ends in a dot stands for all that begin so.
type Family = (&'static str, &'static [&'static str]);

/// Program keys by Kafka's names.
const PROGRAM: &[(&str, &str)] = &[
    ("broker.id", "node.id"),
    ("broker.rack", "node.rack"),
    ("log.dir", "data"),
    ("log.dirs", "data"),
    ("node.id", "node.id"),
];

/// One of Kafka's settings of a time that is written in hours or minutes.
#[derive(Debug)]
pub struct LargerUnit {
    name: &'static str,
    /// The same in milliseconds, by Kafka's name.
    of: &'static str,
    /// How many they are.
    millis: i64,
    /// Least value; one below 0 stands for no limit.
    least: i64,
}

const HOUR: i64 = 3_600_000;

/// By setting, the strongest first: milliseconds win over all.
const LARGER_UNITS: &[LargerUnit] = &[
    LargerUnit {
        name: "log.retention.minutes",
        of: "log.retention.ms",
        millis: 60_000,
        least: i32::MIN as i64,
    },
    LargerUnit { name: "log.retention.hours", of: "log.retention.ms", millis: HOUR, least: i32::MIN as i64 },
    LargerUnit { name: "log.roll.hours", of: "log.roll.ms", millis: HOUR, least: 1 },
    LargerUnit { name: "log.roll.jitter.hours", of: "log.roll.jitter.ms", millis: HOUR, least: 0 },
];

impl LargerUnit {
    /// `value` in milliseconds, as the node takes it.
    ///
    /// Errors: what would be right.
    pub fn in_millis(&self, value: &str) -> Result<String, String> {
        let number = Kind::Long { min: self.least, max: i64::from(i32::MAX) }.number(value)?;
        match number {
            0 if self.least < 0 => Err("Value must be at least 1, or -1 for no limit".to_owned()),
            ..0 => Ok("-1".to_owned()),
            number => Ok((number * self.millis).to_string()),
        }
    }

    /// Whether it is without effect where the settings of these names are written too.
    pub fn yields<'a>(&self, mut written: impl Iterator<Item = &'a str>) -> bool {
        let ours = TOPICS_AT_START.iter().find(|(kafka, _)| *kafka == self.of).map(|(_, ours)| *ours);
        written.any(|name| {
            name == self.of || Some(name) == ours || self.stronger().any(|unit| unit.name == name)
        })
    }

    /// Those that win over it.
    fn stronger(&self) -> impl Iterator<Item = &'static LargerUnit> {
        LARGER_UNITS.iter().take_while(|unit| unit.name != self.name).filter(|unit| unit.of == self.of)
    }

    fn documentation(&self) -> String {
        let stronger = self.stronger().map(|unit| format!("`{}`", unit.name));
        let all: Vec<String> = std::iter::once(format!("`{}`", self.of)).chain(stronger).collect();
        let unit = if self.millis == HOUR { "hours" } else { "minutes" };
        let verb = if all.len() > 1 { "win" } else { "wins" };
        let unlimited = if self.least < 0 { " -1: no limit." } else { "" };
        format!(
            "`{}` in {unit}, at the start only; {} {verb} where both are written.{unlimited}",
            self.of,
            all.join(" and ")
        )
    }
}

/// The setting in a larger unit that Kafka has under this name.
pub fn larger_unit(name: &str) -> Option<&'static LargerUnit> {
    LARGER_UNITS.iter().find(|unit| unit.name == name)
}

/// What is set at the start for topics that say nothing: Kafka's name and the node's.
const TOPICS_AT_START: &[(&str, &str)] = &[
    ("log.retention.bytes", "retention.bytes"),
    ("log.retention.ms", "retention.ms"),
    ("log.roll.jitter.ms", "segment.roll.jitter.ms"),
    ("log.roll.ms", "segment.roll.ms"),
    ("log.segment.bytes", "segment.roll.bytes"),
    ("message.max.bytes", "message.max.bytes"),
];

#[rustfmt::skip]
const MISSING: &[Family] = &[
    ("No listener encrypts or authenticates. Bind kafka.bind where only trusted machines reach it, or put a proxy in front of it that ends TLS.", &[
        "connection.failed.authentication.delay.ms", "connections.max.reauth.ms", "delegation.token.", "listener.name.",
        "listener.security.protocol.map", "principal.builder.class", "sasl.", "security.", "ssl.",
    ]),
    ("There is one listener for Kafka's protocol: say kafka.bind = HOST:PORT.", &[
        "controller.listener.names", "early.start.listeners", "inter.broker.listener.name", "listeners",
    ]),
    ("Where clients are told to connect is kafka.advertised = HOST:PORT.", &["advertised.listeners"]),
    ("The control state is the node's own, in its first data directory; no quorum of controllers is asked.", &[
        "broker.heartbeat.interval.ms", "broker.session.timeout.ms", "controlled.shutdown.enable", "controller.performance.",
        "controller.quorum.", "controller.socket.timeout.ms", "initial.broker.registration.timeout.ms", "internal.metadata.",
        "metadata.", "server.max.startup.time.ms",
    ]),
    ("No replica follows a leader: the node writes all copies itself, see drive and rangeway.drive.", &[
        "alter.log.dirs.replication.quota.", "auto.leader.rebalance.enable", "follower.fetch.last.tiered.offset.enable",
        "leader.imbalance.check.interval.seconds", "num.replica.alter.log.dirs.threads", "num.replica.fetchers", "replica.",
        "replication.quota.", "request.timeout.ms", "unclean.leader.election.interval.ms",
    ]),
    ("There are no pools of threads to size: work runs on all processors that the program is given. Give it fewer from outside, for instance as a container's limit.", &[
        "background.threads", "group.coordinator.background.threads", "group.coordinator.threads", "log.cleaner.threads",
        "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir",
    ]),
    ("What waits to be handled is bounded by its memory: request.memory.bytes.", &["queued.max.request.bytes", "queued.max.requests"]),
    ("Requests that wait are woken by what they wait for and leave nothing behind to purge.", &[
        "delete.records.purgatory.purge.interval.requests", "fetch.purgatory.purge.interval.requests",
        "producer.purgatory.purge.interval.requests",
    ]),
    ("Sockets have what the operating system gives them: its settings of TCP buffers and backlog.", &[
        "socket.connection.setup.", "socket.listen.backlog.size", "socket.receive.buffer.bytes", "socket.send.buffer.bytes",
    ]),
    ("No quotas are enforced.", &["client.quota.callback.class", "controller.quota.", "quota.window."]),
    ("Metrics are served at /metrics of http.bind, for Prometheus and its like to fetch; no reporter runs in the node.", &[
        "kafka.metrics.", "metric.reporters", "metrics.",
    ]),
    ("Clients' metrics are not taken.", &["telemetry.max.bytes"]),
    ("No Java classes are loaded.", &["alter.config.policy.class.name", "config.providers", "create.topic.policy.class.name"]),
    ("There is no tiered storage in Kafka's sense.", &["log.remote.copy.", "remote."]),
    ("Share groups are not served.", &["errors.deadletterqueue.", "group.share.", "share."]),
    ("Groups of Kafka Streams' own protocol are not served; Kafka Streams works over the classic one (group.protocol=classic, its default).", &["group.streams."]),
    ("Every acknowledged record is on disk already, and there are no checkpoint files beside the log.", &[
        "log.flush.offset.checkpoint.interval.ms", "log.flush.scheduler.interval.ms", "log.flush.start.offset.checkpoint.interval.ms",
    ]),
    ("Compacted topics are always compacted, one at a time, with cleaner.dedupe.buffer.size of memory (log.cleaner.dedupe.buffer.size).", &[
        "log.cleaner.enable", "log.cleaner.io.",
    ]),
    ("A disk that fails is out of use at once; no directory is closed to new partitions by a setting.", &[
        "cordoned.log.dirs", "log.dir.failure.timeout.ms", "log.initial.task.delay.ms",
    ]),
    ("Groups and transactions are kept in topics of the node's own, with 50 partitions, stored and loaded as its other records are; how many copies there are says drive.", &[
        "group.coordinator.append.linger.ms", "group.coordinator.cached.buffer.max.bytes", "offsets.commit.timeout.ms",
        "offsets.load.buffer.size", "offsets.topic.", "transaction.state.log.",
    ]),
    ("It is looked after often enough, without a setting.", &[
        "offsets.retention.check.interval.ms", "producer.id.expiration.check.interval.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", "transaction.remove.expired.transaction.cleanup.interval.ms",
    ]),
    ("Whether a partition takes part in a transaction is always verified, within the node.", &[
        "add.partitions.to.txn.", "transaction.partition.verification.enable",
    ]),
    ("Two-phase commit of transactions with other systems (KIP-939) is not served.", &["transaction.two.phase.commit.enable"]),
    ("Assignments and patterns of groups are computed at once, when they are needed.", &[
        "group.consumer.assignor.offload.enable", "group.consumer.regex.refresh.interval.ms",
    ]),
    ("How far a compressed batch may grow follows from max.message.bytes: 64 times as much, at most 256 MiB.", &["max.decompressed.message.bytes"]),
    ("DescribeTopicPartitions answers as many partitions as the client asks for, at most 2000.", &["max.request.partition.size.limit"]),
    ("What is served is what ApiVersions says.", &["unstable."]),
];

/// What becomes of the setting that Kafka has under this name; `None`: it has none.
pub fn find(name: &str) -> Option<Fate> {
    let named = |table: &'static [(&str, &'static str)]| {
        table.iter().find(|(kafka, _)| *kafka == name).map(|(_, ours)| *ours)
    };
    if let Some(ours) = named(PROGRAM) {
        return Some(Fate::Program(ours));
    }
    if let Some(key) = dynamic::topic_key(name) {
        return Some(Fate::Topics(key, named(TOPICS_AT_START)));
    }
    if let Some(unit) = larger_unit(name) {
        return Some(Fate::Unit(unit));
    }
    if let Some(ours) = broker::ours(name) {
        return Some(Fate::Node(ours));
    }
    if dynamic::THROTTLES.iter().any(|(throttle, _)| *throttle == name) {
        return Some(Fate::Throttle);
    }
    if broker::is_fixed(name) {
        return Some(Fate::Fixed);
    }
    missing(name).map(Fate::Missing)
}

/// Why a setting of Kafka's is not there, and what to do instead. Of families that overlap the longest name counts.
fn missing(name: &str) -> Option<&'static str> {
    let is_of = |of: &str| name == of || of.ends_with('.') && name.starts_with(of);
    let rows = MISSING.iter().flat_map(|(why, names)| names.iter().map(move |of| (*of, *why)));
    rows.filter(|(of, _)| is_of(of)).max_by_key(|(of, _)| of.len()).map(|(_, why)| why)
}

/// The name under which a setting of Kafka's is set at the start; `None`: Kafka has none of this name, or it is the same
/// here.
///
/// Errors: why it cannot be set there, and what to do instead.
pub fn at_start(name: &str) -> Option<Result<&'static str, String>> {
    let as_it_is = || "It is as it is and cannot be set; DescribeConfigs shows it.".to_owned();
    let while_running = |what: &str| {
        format!(
            "{what} is set while nodes run: kafka-configs --alter --entity-type brokers --entity-default --add-config {name}=…"
        )
    };
    Some(match find(name)? {
        Fate::Node(ours) | Fate::Program(ours) | Fate::Topics(_, Some(ours)) => Ok(ours),
        Fate::Unit(unit) => return at_start(unit.of),
        Fate::Topics(key, None) => Err(while_running(&format!("The default of topics' {}", key.name))),
        Fate::Throttle => Err(while_running("A throttle")),
        Fate::Fixed => Err(as_it_is()),
        Fate::Missing(why) => Err(format!("This setting of Kafka's is not supported. {why}")),
    })
}

/// Why a setting of Kafka's cannot be changed while nodes run, where it is one that is not there.
pub fn not_supported(name: &str) -> Option<&'static str> {
    match find(name)? {
        Fate::Missing(why) => Some(why),
        Fate::Node(_)
        | Fate::Program(_)
        | Fate::Unit(_)
        | Fate::Topics(..)
        | Fate::Throttle
        | Fate::Fixed => None,
    }
}

/// Names of all settings of a broker that Kafka 4.4 has, for the docs and for tests.
pub fn names() -> impl Iterator<Item = &'static str> {
    include_str!("kafka-4.4-broker-configs.txt").lines()
}

/// One setting for people: its name, and what becomes of it here.
pub fn documentation(name: &str) -> Option<String> {
    let documented = |ours: &str| node::find(ours).map_or("", |key| key.doc);
    let under = |ours: &str| if ours == name { String::new() } else { format!("`{ours}`. ") };
    Some(match find(name)? {
        Fate::Node(ours) => format!("{}{}", under(ours), documented(ours)),
        Fate::Program(ours) => format!("{}See [config](config.md).", under(ours)),
        Fate::Topics(key, at_start) => {
            let start = match at_start {
                Some(ours) => format!(" At the start: `{ours}`."),
                None => " Only while nodes run.".to_owned(),
            };
            let effect = match key.effect {
                Effect::Used => String::new(),
                Effect::StoredOnly { why } => format!(" Stored, without effect: {why}."),
            };
            format!("Default of topics' `{}`.{start}{effect}", key.name)
        }
        Fate::Unit(unit) => unit.documentation(),
        Fate::Throttle => {
            "Stored, without effect: nothing is copied that it would slow down, so it holds.".to_owned()
        }
        Fate::Fixed => "Shown; as it is.".to_owned(),
        Fate::Missing(why) => format!("Not supported. {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_a_kafka_broker_is_answered_for() {
        assert_eq!(names().count(), 379);
        assert!(names().is_sorted());
        let unanswered: Vec<&str> = names().filter(|name| find(name).is_none()).collect();
        assert_eq!(unanswered, [""; 0]);
        for (_, ours) in TOPICS_AT_START {
            assert!(node::find(ours).is_some(), "{ours}");
        }
    }

    #[test]
    fn every_row_is_about_a_setting_that_kafka_has_and_that_is_not_there() {
        for (of, why) in MISSING.iter().flat_map(|(why, names)| names.iter().map(move |of| (*of, *why))) {
            let about = |name: &&str| *name == of || of.ends_with('.') && name.starts_with(of);
            let mut of_kafka = names().filter(about).peekable();
            assert!(of == "listener.name." || of_kafka.peek().is_some(), "{of}: Kafka has none");
            for name in of_kafka {
                let is_missing = matches!(find(name), Some(Fate::Missing(_) | Fate::Fixed));
                assert!(is_missing, "{name} is there, yet it is said: {why}");
            }
        }
    }

    #[test]
    fn hours_and_minutes_are_taken_as_kafka_takes_them() {
        let millis = |name, value| larger_unit(name).expect("a unit").in_millis(value);
        for (name, value, taken) in [
            ("log.retention.hours", "168", "604800000"),
            ("log.retention.minutes", " 5 ", "300000"),
            ("log.retention.hours", "-1", "-1"),
            ("log.retention.minutes", "-7", "-1"),
            ("log.retention.hours", "2147483647", "7730941129200000"),
            ("log.roll.hours", "1", "3600000"),
            ("log.roll.jitter.hours", "0", "0"),
        ] {
            assert_eq!(millis(name, value).as_deref(), Ok(taken), "{name}={value}");
        }
        for (name, value, why) in [
            ("log.retention.hours", "0", "Value must be at least 1, or -1 for no limit"),
            ("log.retention.hours", "2147483648", "Value must be no more than 2147483647"),
            ("log.retention.hours", "7d", "Not a number of type LONG"),
            ("log.roll.hours", "0", "Value must be at least 1"),
            ("log.roll.jitter.hours", "-1", "Value must be at least 0"),
        ] {
            assert_eq!(millis(name, value), Err(why.to_owned()), "{name}={value}");
        }
        let yields = |name: &str, to: &str| larger_unit(name).expect("a unit").yields([to].into_iter());
        for (name, to) in [
            ("log.retention.hours", "log.retention.minutes"),
            ("log.retention.hours", "log.retention.ms"),
            ("log.retention.minutes", "retention.ms"),
            ("log.roll.hours", "segment.roll.ms"),
        ] {
            assert!(yields(name, to), "{name} {to}");
        }
        for (name, to) in [
            ("log.retention.minutes", "log.retention.hours"),
            ("log.retention.hours", "log.retention.hours"),
            ("log.retention.hours", "log.roll.ms"),
            ("log.roll.hours", "log.roll.jitter.ms"),
        ] {
            assert!(!yields(name, to), "{name} {to}");
        }
        for unit in LARGER_UNITS {
            assert!(at_start(unit.name).is_some_and(|found| found.is_ok()), "{}", unit.name);
            assert_eq!(not_supported(unit.name), None, "{}", unit.name);
        }
    }

    #[test]
    fn a_setting_is_written_under_either_name_or_refused_with_what_to_do_instead() {
        let start = |name| at_start(name).map(|found| found.unwrap_or_else(|why| panic!("{why}")));
        assert_eq!(start("max.connections"), Some("connections.max"));
        assert_eq!(start("log.retention.ms"), Some("retention.ms"));
        assert_eq!(start("log.dirs"), Some("data"));
        assert_eq!(start("quite.else"), None);
        let why = |name| at_start(name).expect("Kafka's").expect_err("refused");
        assert!(why("num.io.threads").ends_with("for instance as a container's limit."));
        assert!(why("listener.name.internal.ssl.keystore.location").contains("put a proxy in front"));
        assert!(
            why("log.cleanup.policy")
                .starts_with("The default of topics' cleanup.policy is set while nodes run")
        );
        assert!(why("sasl.enabled.mechanisms").starts_with("It is as it is"));
        assert_eq!(not_supported("background.threads"), missing("background.threads"));
        assert_eq!(not_supported("max.connections"), None);
    }
}
