//! Configs of groups (KIP-848): set for a group by name, whether it exists or not, and kept with it.

use super::super::ask::GroupError;
use super::super::coordinator::{Coordinator, Turn};
use super::super::record::Record;
use std::collections::BTreeMap;

/// `consumer.heartbeat.interval.ms` where nobody says otherwise: so much for each member, at least
/// [`HEARTBEAT_MS_MIN`]. A coordinator has the same load whatever the size of a group.
const HEARTBEAT_MS_PER_MEMBER: i32 = 5;
const HEARTBEAT_MS_MIN: i32 = 500;
const HEARTBEAT_MS_MAX: i32 = 15_000;

/// One config of a group: a number of ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfigKey {
    /// Its name.
    pub(crate) name: &'static str,
    /// Smallest value.
    pub(crate) min: i32,
    /// Largest value.
    pub(crate) max: i32,
    /// The value where none is set.
    pub(crate) default: i32,
    /// What it does.
    pub(crate) doc: &'static str,
}

/// All configs of groups.
pub(crate) const KEYS: &[ConfigKey] = &[HEARTBEAT, SESSION];

const HEARTBEAT: ConfigKey = ConfigKey {
    name: "consumer.heartbeat.interval.ms",
    min: 100,
    max: 60_000,
    default: HEARTBEAT_MS_MIN,
    doc: "How often members of the consumer protocol send heartbeats. Where it is not set it grows with the group: 5 ms for each member, at least 500.",
};

const SESSION: ConfigKey = ConfigKey {
    name: "consumer.session.timeout.ms",
    min: 1_000,
    max: 1_800_000,
    default: 45_000,
    doc: "A member of the consumer protocol that is silent for so long is given up.",
};

/// Why a change of configs is refused; for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// There is no such config.
    #[error("unknown group config name: {0}")]
    Unknown(String),
    /// The value is none that it may have.
    #[error("invalid value {value} for configuration {name}: {why}")]
    Invalid {
        /// The config.
        name: &'static str,
        /// What was sent.
        value: String,
        /// What it may be.
        why: String,
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
        let invalid = |why: String| ConfigError::Invalid { name: key.name, value: value.clone(), why };
        let number: i32 = value.trim().parse().map_err(|_| invalid("not a number of type INT".to_owned()))?;
        if !(key.min..=key.max).contains(&number) {
            return Err(invalid(format!("value must be {} to {} ms", key.min, key.max)));
        }
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

    fn config(&self, group: &str, key: ConfigKey) -> Option<i32> {
        self.consumers.configs.get(group)?.get(key.name)?.parse().ok()
    }

    /// After how much silence a member is given up, ms.
    pub(in super::super) fn consumer_session_ms(&self, group: &str) -> u64 {
        u64::from(self.config(group, SESSION).unwrap_or(SESSION.default).unsigned_abs())
    }

    /// How often members shall be heard, ms.
    pub(super) fn consumer_heartbeat_ms(&self, group: &str) -> i32 {
        let members = self.consumers.groups.get(group).map_or(0, |image| image.members.len());
        let of_size = i32::try_from(members).unwrap_or(i32::MAX).saturating_mul(HEARTBEAT_MS_PER_MEMBER);
        self.config(group, HEARTBEAT).unwrap_or(of_size.clamp(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX))
    }
}
