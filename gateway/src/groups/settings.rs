//! Limits and times of groups, as the node's operator set them.

use super::consumer::assignor::{self, Assignor};
use rangeway_core::config::groups::MigrationPolicy;
use rangeway_core::config::node::NodeConfig;

/// Limits and times of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_ms_min: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_ms_max: i32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for further members.
    pub initial_rebalance_delay_ms: u64,
    /// `group.max.size`.
    pub members_max: usize,
    /// `group.consumer.max.size`.
    pub consumer_members_max: usize,
    /// `group.consumer.session.timeout.ms`.
    pub consumer_session_ms: Time,
    /// `group.consumer.heartbeat.interval.ms`.
    pub consumer_heartbeat_ms: Time,
    /// `group.consumer.assignment.interval.ms`.
    pub consumer_assignment_ms: Time,
    /// `group.consumer.assignors`, never empty; the first is the default.
    pub(crate) assignors: Vec<Assignor>,
    /// `group.consumer.migration.policy`.
    pub migration: MigrationPolicy,
    /// `offset.metadata.max.bytes`; counted in UTF-16 units.
    pub metadata_units_max: usize,
    /// `offsets.retention.minutes`, in ms.
    pub offsets_retention_ms: i64,
    /// How long a topic must be absent from the catalog before its offsets are dropped, ms. They are invisible at
    /// once; the wait covers a catalog that lags behind the commit of an offset.
    pub absent_topic_grace_ms: u64,
}

/// A time that groups may set for themselves, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Least that a group may say.
    pub min: i32,
    /// Most that a group may say.
    pub max: i32,
    /// What holds where a group says nothing; `None`: it depends on the group.
    pub default: Option<i32>,
}

impl Time {
    fn of(min: i64, default: Option<i64>, max: i64) -> Time {
        Time { min: int(min), max: int(max), default: default.map(int) }
    }
}

/// A setting whose bounds are those of an `i32`.
fn int(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Settings {
    /// Of a node.
    pub fn of(config: &NodeConfig) -> Settings {
        let size = |members: u32| usize::try_from(members).unwrap_or(usize::MAX);
        let assignors = config.group_consumer_assignors.iter().filter_map(|name| assignor::find(name));
        Settings {
            session_timeout_ms_min: int(config.group_min_session_timeout_ms),
            session_timeout_ms_max: int(config.group_max_session_timeout_ms),
            initial_rebalance_delay_ms: config.group_initial_rebalance_delay_ms.unsigned_abs(),
            members_max: size(config.group_max_size),
            consumer_members_max: size(config.group_consumer_max_size),
            consumer_session_ms: Time::of(
                config.group_consumer_min_session_timeout_ms,
                Some(config.group_consumer_session_timeout_ms),
                config.group_consumer_max_session_timeout_ms,
            ),
            consumer_heartbeat_ms: Time::of(
                config.group_consumer_min_heartbeat_interval_ms,
                config.group_consumer_heartbeat_interval_ms,
                config.group_consumer_max_heartbeat_interval_ms,
            ),
            consumer_assignment_ms: Time::of(
                config.group_consumer_min_assignment_interval_ms,
                Some(config.group_consumer_assignment_interval_ms),
                config.group_consumer_max_assignment_interval_ms,
            ),
            assignors: assignors.collect(),
            migration: config.group_consumer_migration_policy,
            metadata_units_max: size(config.offset_metadata_max_bytes),
            offsets_retention_ms: i64::from(config.offsets_retention_minutes) * 60_000,
            absent_topic_grace_ms: 300_000,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(&NodeConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rangeway_core::config::groups::ASSIGNORS;

    #[test]
    fn every_assignor_of_the_setting_is_there() {
        let names: Vec<&str> = Settings::default().assignors.iter().map(|a| a.name()).collect();
        assert_eq!(names, ASSIGNORS);
    }

    #[test]
    fn settings_are_those_of_the_node() {
        let mut config = NodeConfig::default();
        for (key, value) in [
            ("group.min.session.timeout.ms", "1s"),
            ("group.max.session.timeout.ms", "2s"),
            ("group.max.size", "3"),
            ("group.consumer.max.size", "4"),
            ("group.consumer.session.timeout.ms", "5s"),
            ("group.consumer.heartbeat.interval.ms", "600"),
            ("group.consumer.assignment.interval.ms", "700"),
            ("group.consumer.assignors", "uniform, range"),
            ("group.consumer.migration.policy", "upgrade"),
            ("offset.metadata.max.bytes", "8"),
            ("offsets.retention.minutes", "9"),
        ] {
            config.set(key, value).expect(key);
        }
        let settings = Settings::of(&config);
        assert_eq!((settings.session_timeout_ms_min, settings.session_timeout_ms_max), (1_000, 2_000));
        assert_eq!((settings.members_max, settings.consumer_members_max), (3, 4));
        let time = |min, default, max| Time { min, max, default: Some(default) };
        assert_eq!(settings.consumer_session_ms, time(45_000, 5_000, 60_000));
        assert_eq!(settings.consumer_heartbeat_ms, time(100, 600, 15_000));
        assert_eq!(settings.consumer_assignment_ms, time(0, 700, 15_000));
        assert_eq!(settings.assignors, [Assignor::Uniform, Assignor::Range]);
        assert_eq!(settings.migration, MigrationPolicy::Upgrade);
        assert_eq!((settings.metadata_units_max, settings.offsets_retention_ms), (8, 540_000));
    }
}
