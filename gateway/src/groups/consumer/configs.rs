//! Configs of groups (KIP-848): set for a group by name, whether it exists or not, and kept with it.

use super::super::ask::GroupError;
use super::super::coordinator::{Coordinator, Turn};
use super::super::record::Record;
use super::super::settings::{Settings, Time};
use rangeway_core::config::groups;
use std::collections::BTreeMap;

/// One config of a group: a number of ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigKey {
    /// Its name.
    pub(crate) name: &'static str,
    /// The node's setting that holds where the group has none.
    pub(crate) node: &'static str,
    /// The node's settings of its least and greatest value.
    bounds: [&'static str; 2],
    /// Least value at all.
    least: i32,
    time: fn(&Settings) -> Time,
    /// What it does.
    pub(crate) doc: &'static str,
}

impl ConfigKey {
    /// The value where none is set, in a group without members.
    pub(crate) fn default(&self, settings: &Settings) -> i32 {
        let time = (self.time)(settings);
        time.default.unwrap_or_else(|| heartbeat_ms(0, time))
    }
}

/// Within the bounds of `time`, which are whole numbers of 32 bits.
fn heartbeat_ms(members: usize, time: Time) -> i32 {
    let ms = groups::heartbeat_ms(members, i64::from(time.min), i64::from(time.max));
    i32::try_from(ms).unwrap_or(i32::MAX)
}

/// All configs of groups.
pub(crate) const KEYS: &[ConfigKey] = &[ASSIGNMENT, HEARTBEAT, SESSION];

const ASSIGNMENT: ConfigKey = ConfigKey {
    name: "consumer.assignment.interval.ms",
    node: "group.consumer.assignment.interval.ms",
    bounds: ["group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"],
    least: 0,
    time: |settings| settings.consumer_assignment_ms,
    doc: "Least time between two assignments of a group of the consumer protocol: what changes meanwhile is assigned in one.",
};

const HEARTBEAT: ConfigKey = ConfigKey {
    name: "consumer.heartbeat.interval.ms",
    node: "group.consumer.heartbeat.interval.ms",
    bounds: ["group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"],
    least: 1,
    time: |settings| settings.consumer_heartbeat_ms,
    doc: "How often members of the consumer protocol send heartbeats. Where nobody sets it it grows with the group: 5 ms for each member, at least 500.",
};

const SESSION: ConfigKey = ConfigKey {
    name: "consumer.session.timeout.ms",
    node: "group.consumer.session.timeout.ms",
    bounds: ["group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"],
    least: 1,
    time: |settings| settings.consumer_session_ms,
    doc: "A member of the consumer protocol that is silent for so long is given up.",
};

/// Why a change of configs is refused; for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// There is no such config.
    #[error("Unknown group config name: {0}")]
    Unknown(String),
    /// The value is none that it may have.
    #[error("Invalid value {value} for configuration {name}: {why}")]
    Invalid {
        /// The config.
        name: &'static str,
        /// What was sent.
        value: String,
        /// What it may be.
        why: String,
    },
    /// It would be beyond what a setting of the node or another config of the group allows.
    #[error("{name} must be {than} {other}")]
    Conflict {
        /// The config.
        name: &'static str,
        /// How it must be to the other.
        than: &'static str,
        /// The other.
        other: &'static str,
    },
    /// The coordinator cannot be asked.
    #[error("{0}")]
    Group(#[from] GroupError),
}

/// A change: a value to set, or `None` to go back to the default.
pub(crate) type Change = (String, Option<String>);

fn check(changes: &[Change]) -> Result<(), ConfigError> {
    for (name, value) in changes {
        let key = KEYS.iter().find(|key| key.name == name);
        let key = key.ok_or_else(|| ConfigError::Unknown(name.clone()))?;
        let Some(value) = value else { continue };
        let invalid =
            |why: &str| ConfigError::Invalid { name: key.name, value: value.clone(), why: why.to_owned() };
        let number: i32 = value.trim().parse().map_err(|_| invalid("Not a number of type INT"))?;
        if number < key.least {
            return Err(invalid(&format!("Value must be at least {}", key.least)));
        }
    }
    Ok(())
}

/// Whether a group's configs are within the node's bounds and fit together.
fn check_bounds(configs: &BTreeMap<String, String>, settings: &Settings) -> Result<(), ConfigError> {
    let value = |key: &ConfigKey| configs.get(key.name).and_then(|value| value.parse::<i32>().ok());
    for key in KEYS {
        let Some(value) = value(key) else { continue };
        let (Time { min, max, .. }, [least, most]) = ((key.time)(settings), key.bounds);
        let conflict = |than, other| Err(ConfigError::Conflict { name: key.name, than, other });
        if value < min {
            return conflict("greater than or equal to", least);
        }
        if value > max {
            return conflict("less than or equal to", most);
        }
    }
    let of = |key: &ConfigKey| value(key).unwrap_or_else(|| key.default(settings));
    if of(&SESSION) <= of(&HEARTBEAT) {
        let (name, other) = (SESSION.name, HEARTBEAT.name);
        return Err(ConfigError::Conflict { name, than: "greater than", other });
    }
    Ok(())
}

impl Turn<'_> {
    /// Changes configs: all or none.
    pub(in super::super) fn configure(
        &mut self,
        changes: &[Change],
        validate_only: bool,
    ) -> Result<(), ConfigError> {
        if self.group.is_empty() {
            return Err(GroupError::InvalidGroupId.into());
        }
        check(changes)?;
        let before = self.coordinator.consumers.configs.get(self.group).cloned().unwrap_or_default();
        let mut configs = before.clone();
        for (name, value) in changes {
            match value {
                Some(value) => configs.insert(name.clone(), value.trim().to_owned()),
                None => configs.remove(name),
            };
        }
        check_bounds(&configs, &self.coordinator.settings)?;
        if configs != before && !validate_only {
            let group = self.group.to_owned();
            self.emit(Record::Configured { group, configs });
        }
        Ok(())
    }
}

impl Coordinator {
    /// Configs that were set for a group.
    pub(in super::super) fn configs(&self, group: &str) -> BTreeMap<String, String> {
        self.consumers.configs.get(group).cloned().unwrap_or_default()
    }

    /// What a group says; the node's bounds may have changed since.
    fn config(&self, group: &str, key: ConfigKey) -> Option<i32> {
        let Time { min, max, default } = (key.time)(&self.settings);
        let own = self.consumers.configs.get(group).and_then(|configs| configs.get(key.name));
        own.and_then(|value| value.parse().ok()).map(|value: i32| value.max(min).min(max)).or(default)
    }

    /// After how much silence a member is given up, ms.
    pub(in super::super) fn consumer_session_ms(&self, group: &str) -> u64 {
        let session_ms = self.config(group, SESSION).unwrap_or(i32::MAX);
        u64::from(session_ms.unsigned_abs())
    }

    /// Least time between two targets, ms.
    pub(super) fn consumer_assignment_ms(&self, group: &str) -> u64 {
        self.config(group, ASSIGNMENT).map_or(0, |ms| u64::from(ms.unsigned_abs()))
    }

    /// How often members shall be heard, ms.
    pub(super) fn consumer_heartbeat_ms(&self, group: &str) -> i32 {
        let of_size = || {
            let members = self.consumers.groups.get(group).map_or(0, |image| image.members.len());
            heartbeat_ms(members, self.settings.consumer_heartbeat_ms)
        };
        self.config(group, HEARTBEAT).unwrap_or_else(of_size)
    }
}
