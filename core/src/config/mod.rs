//! Settings: which there are, what they may hold, what they mean. One table per kind of thing that is configured:
//! [`node`] (a node's own; those of consumer groups fit together as [`groups`] says), [`topic`] (a topic's, by the names Kafka's tools use), [`dynamic`] (a node's that are changed
//! while it runs), [`broker`] (a node's as clients see them), [`connections`] (those of how many connections there may be), [`kafka`] (what becomes of each of Kafka's). Owns names, types, bounds, defaults and their texts; knows nothing of files, flags or requests.

pub mod access;
pub mod broker;
pub mod connections;
pub mod dynamic;
pub mod groups;
pub mod kafka;
pub mod node;
pub mod reshard;
pub mod topic;

mod kind;
#[cfg(test)]
mod node_test;

pub use kind::Kind;

/// Why a setting is refused, for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no such setting.
    #[error("Unknown {what} config name: {name}{}", hint(.nearest.as_deref()))]
    Unknown {
        /// `topic`, `node` or `dynamic broker`.
        what: &'static str,
        /// The name given.
        name: String,
        /// The name that may be meant.
        nearest: Option<String>,
    },
    /// The value is not one that the setting can hold.
    #[error("Invalid value {value} for configuration {name}: {why}")]
    Invalid {
        /// The setting.
        name: String,
        /// The value given.
        value: String,
        /// What would be right.
        why: String,
    },
    /// A setting of Kafka's that is not there.
    #[error("{name} is not supported. {why}")]
    NotSupported {
        /// The setting.
        name: String,
        /// Why, and what to do instead.
        why: &'static str,
    },
    /// Settings that contradict each other.
    #[error("{0}")]
    Conflict(String),
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Longest part of a refused value that is shown.
const SHOWN_CHARS_MAX: usize = 100;

fn invalid(name: &str, value: &str, why: String) -> ConfigError {
    let mut shown: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    ConfigError::Invalid { name: name.to_owned(), value: shown, why }
}

/// The name that differs least from `name`, if it differs little: at most two edits, or a fifth of its length.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let asked: Vec<char> = name.to_ascii_lowercase().replace(['_', '-'], ".").chars().collect();
    let least = names.into_iter().map(|known| (edits(&asked, known), known)).min_by_key(|(edits, _)| *edits);
    least.filter(|(edits, known)| *edits <= (known.len() / 5).max(2)).map(|(_, known)| known)
}

/// Insertions, deletions and replacements that make one text of the other.
fn edits(asked: &[char], known: &str) -> usize {
    let mut row: Vec<usize> = (0..=asked.len()).collect();
    for (i, letter) in known.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in asked.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_if_it_is_near() {
        let names = ["retention.ms", "retention.bytes", "segment.bytes"];
        assert_eq!(nearest("retention.mss", names), Some("retention.ms"));
        assert_eq!(nearest("RETENTION_BYTES", names), Some("retention.bytes"));
        assert_eq!(nearest("segmnt.byts", names), Some("segment.bytes"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn a_long_value_is_shown_cut() {
        let error = invalid("a", &"ä".repeat(500), "too long".to_owned());
        assert_eq!(
            error.to_string(),
            format!("Invalid value {}… for configuration a: too long", "ä".repeat(100))
        );
    }
}
