//! Settings of consumer groups, by Kafka's names: the words that they take, and how they fit together. What follows from
//! them is decided by the gateway's coordinators.

use super::ConfigError;
use super::node::NodeConfig;

/// Names of the assignors on the coordinator's side; the first is the default.
pub const ASSIGNORS: &[&str] = &["range-scoped", "uniform", "range"];

/// How often members of the consumer protocol send heartbeats where nobody says it: so much for each member, so that a
/// coordinator has the same load whatever the size of a group.
const HEARTBEAT_MS_PER_MEMBER: i64 = 5;
const HEARTBEAT_MS_MIN: i64 = 500;
const HEARTBEAT_MS_MAX: i64 = 15_000;

/// `group.consumer.heartbeat.interval.ms` of a group with so many members where nobody says it, within the node's bounds
/// of what groups may say.
pub fn heartbeat_ms(members: usize, min: i64, max: i64) -> i64 {
    let of_size = i64::try_from(members).unwrap_or(i64::MAX).saturating_mul(HEARTBEAT_MS_PER_MEMBER);
    of_size.clamp(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX).max(min).min(max)
}

/// Which groups with members may change between the classic and the consumer protocol (KIP-848).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// Both ways.
    Bidirectional,
    /// From classic to consumer.
    Upgrade,
    /// From consumer to classic.
    Downgrade,
    /// None.
    Disabled,
}

/// The words of a policy.
pub const MIGRATION_POLICIES: &[&str] = &["bidirectional", "upgrade", "downgrade", "disabled"];

impl MigrationPolicy {
    /// The policy of a word.
    pub fn of(word: &str) -> Option<MigrationPolicy> {
        match word.trim() {
            "bidirectional" => Some(MigrationPolicy::Bidirectional),
            "upgrade" => Some(MigrationPolicy::Upgrade),
            "downgrade" => Some(MigrationPolicy::Downgrade),
            "disabled" => Some(MigrationPolicy::Disabled),
            _ => None,
        }
    }

    /// Whether a classic group with members may become one of the consumer protocol.
    pub fn upgrades(self) -> bool {
        matches!(self, MigrationPolicy::Bidirectional | MigrationPolicy::Upgrade)
    }

    /// Whether a consumer group in which classic members alone are left may become a classic one.
    pub fn downgrades(self) -> bool {
        matches!(self, MigrationPolicy::Bidirectional | MigrationPolicy::Downgrade)
    }
}

impl std::fmt::Display for MigrationPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MigrationPolicy::Bidirectional => "bidirectional",
            MigrationPolicy::Upgrade => "upgrade",
            MigrationPolicy::Downgrade => "downgrade",
            MigrationPolicy::Disabled => "disabled",
        })
    }
}

/// Whether a node's settings of groups fit together.
///
/// Errors: `Conflict`, naming both.
pub(super) fn check(config: &NodeConfig) -> Result<(), ConfigError> {
    let at_most = |(low, a): (&str, i64), (high, b): (&str, i64)| {
        if a <= b {
            return Ok(());
        }
        Err(ConfigError::Conflict(format!("{low} ({a}) must be at most {high} ({b})")))
    };
    at_most(
        ("group.min.session.timeout.ms", config.group_min_session_timeout_ms),
        ("group.max.session.timeout.ms", config.group_max_session_timeout_ms),
    )?;
    let session = ("group.consumer.session.timeout.ms", config.group_consumer_session_timeout_ms);
    let session_max = ("group.consumer.max.session.timeout.ms", config.group_consumer_max_session_timeout_ms);
    at_most(
        ("group.consumer.min.session.timeout.ms", config.group_consumer_min_session_timeout_ms),
        session,
    )?;
    at_most(session, session_max)?;
    let heartbeat_min =
        ("group.consumer.min.heartbeat.interval.ms", config.group_consumer_min_heartbeat_interval_ms);
    let heartbeat_max =
        ("group.consumer.max.heartbeat.interval.ms", config.group_consumer_max_heartbeat_interval_ms);
    at_most(heartbeat_min, heartbeat_max)?;
    if let Some(heartbeat) = config.group_consumer_heartbeat_interval_ms {
        let heartbeat = ("group.consumer.heartbeat.interval.ms", heartbeat);
        at_most(heartbeat_min, heartbeat)?;
        at_most(heartbeat, heartbeat_max)?;
        at_most(heartbeat, session)?;
    }
    let assignment = ("group.consumer.assignment.interval.ms", config.group_consumer_assignment_interval_ms);
    let assignment_min =
        ("group.consumer.min.assignment.interval.ms", config.group_consumer_min_assignment_interval_ms);
    let assignment_max =
        ("group.consumer.max.assignment.interval.ms", config.group_consumer_max_assignment_interval_ms);
    at_most(assignment_min, assignment)?;
    at_most(assignment, assignment_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_policies_are_read_as_they_are_written() {
        for word in MIGRATION_POLICIES {
            assert_eq!(MigrationPolicy::of(word).unwrap().to_string(), *word);
        }
        assert_eq!(MigrationPolicy::of("both"), None);
        let ways = |word| MigrationPolicy::of(word).map(|policy| (policy.upgrades(), policy.downgrades()));
        assert_eq!(ways("bidirectional"), Some((true, true)));
        assert_eq!(ways("upgrade"), Some((true, false)));
        assert_eq!(ways("downgrade"), Some((false, true)));
        assert_eq!(ways("disabled"), Some((false, false)));
    }

    #[test]
    fn a_value_out_of_its_own_bounds_is_named_with_the_bound() {
        for (name, value, other) in [
            ("group.min.session.timeout.ms", "31min", "group.max.session.timeout.ms (1800000)"),
            ("group.consumer.session.timeout.ms", "44s", "group.consumer.min.session.timeout.ms (45000)"),
            ("group.consumer.session.timeout.ms", "61s", "group.consumer.max.session.timeout.ms (60000)"),
            ("group.consumer.heartbeat.interval.ms", "99", "group.consumer.min.heartbeat.interval.ms (100)"),
            (
                "group.consumer.heartbeat.interval.ms",
                "16s",
                "group.consumer.max.heartbeat.interval.ms (15000)",
            ),
            (
                "group.consumer.assignment.interval.ms",
                "1min",
                "group.consumer.max.assignment.interval.ms (15000)",
            ),
            ("group.consumer.min.assignment.interval.ms", "14s", "group.consumer.assignment.interval.ms"),
        ] {
            let mut config = NodeConfig::default();
            config.set(name, value).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(other), "{name}={value}: {error}");
        }
        let mut config = NodeConfig::default();
        config.set("group.consumer.max.heartbeat.interval.ms", "1min").unwrap();
        config.set("group.consumer.heartbeat.interval.ms", "50s").unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("group.consumer.session.timeout.ms (45000)"), "{error}");
    }
}
