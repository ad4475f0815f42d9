//! Where settings come from: a TOML file, the environment, `--set`. Owns parsing them into `key = value` with the
//! place each was written; knows nothing of which keys exist.
//!
//! file < environment < `--set` < named flags: a later layer wins, key by key.

use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Prefix of the environment variables read.
pub const ENV_PREFIX: &str = "RANGEWAY_";

/// One value with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Dotted key.
    pub key: String,
    /// Value as text; a list's items are joined by commas.
    pub value: String,
    /// Where it was written.
    pub origin: Origin,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Env {
        /// Its name.
        name: String,
    },
    /// A flag.
    Flag {
        /// As it is written.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Env { name } => write!(f, "environment variable {name}"),
            Origin::Flag { flag } => f.write_str(flag),
        }
    }
}

/// Reads a TOML file's text. Tables and dotted keys are the same thing: `[a] b = 1` is `a.b = 1`.
///
/// Errors: a message with file and line.
pub fn from_toml(text: &str, path: &Path) -> Result<Vec<Setting>, String> {
    let parsed = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(0, |span| line_of(text, span.start));
        format!("{}:{line}: {}", path.display(), e.message())
    })?;
    let mut settings = Vec::new();
    flatten(text, path, "", parsed.get_ref(), &mut settings)?;
    Ok(settings)
}

fn flatten(
    text: &str,
    path: &Path,
    prefix: &str,
    table: &DeTable<'_>,
    into: &mut Vec<Setting>,
) -> Result<(), String> {
    for (name, value) in table {
        let key = match prefix {
            "" => name.get_ref().to_string(),
            prefix => format!("{prefix}.{}", name.get_ref()),
        };
        if let DeValue::Table(inner) = value.get_ref() {
            flatten(text, path, &key, inner, into)?;
            continue;
        }
        let line = line_of(text, name.span().start);
        let value = scalar(value.get_ref())
            .ok_or_else(|| format!("{}:{line}: {key} is a list of more than plain values", path.display()))?;
        into.push(Setting { key, value, origin: Origin::File { path: path.to_owned(), line } });
    }
    Ok(())
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.as_str().to_owned(),
        },
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Datetime(when) => when.to_string(),
        DeValue::Array(items) => {
            items.iter().map(|item| scalar(item.get_ref())).collect::<Option<Vec<_>>>()?.join(",")
        }
        DeValue::Table(_) => return None,
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// Reads `RANGEWAY_KEY__SUBKEY` variables: two underscores stand for the dot, one for itself.
///
/// What container platforms set for a service that is named `rangeway` (`RANGEWAY_SERVICE_HOST`, `RANGEWAY_PORT`,
/// `RANGEWAY_PORT_9092_TCP`, …) is not ours and is passed over.
pub fn from_env(variables: impl IntoIterator<Item = (String, String)>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = variables
        .into_iter()
        .filter_map(|(name, value)| {
            let key = name.strip_prefix(ENV_PREFIX)?;
            let service_link =
                key == "PORT" || key.starts_with("PORT_") || key.starts_with("SERVICE_") || key.is_empty();
            (!service_link).then(|| Setting {
                key: key.to_ascii_lowercase().replace("__", "."),
                value,
                origin: Origin::Env { name: name.clone() },
            })
        })
        .collect();
    settings.sort_by(|a, b| a.key.cmp(&b.key));
    settings
}

/// The variable that sets a key.
pub fn variable(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// Reads one `--set key=value`, already split.
pub fn from_set((key, value): &(String, String)) -> Setting {
    Setting {
        key: key.clone(),
        value: value.clone(),
        origin: Origin::Flag { flag: format!("--set {key}={value}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<Vec<(String, String, String)>, String> {
        from_toml(text, Path::new("f.toml")).map(|settings| {
            let mut all: Vec<_> =
                settings.into_iter().map(|s| (s.key, s.value, s.origin.to_string())).collect();
            all.sort();
            all
        })
    }

    fn row(key: &str, value: &str, origin: &str) -> (String, String, String) {
        (key.to_owned(), value.to_owned(), origin.to_owned())
    }

    #[test]
    fn tables_dotted_and_quoted_keys_are_the_same_thing() {
        let text =
            "data = [\"/a\", \"/b\"]\n[num]\npartitions = 1_000\n[auto.create]\ntopics.enable = false\n";
        assert_eq!(
            toml(text),
            Ok(vec![
                row("auto.create.topics.enable", "false", "f.toml:5"),
                row("data", "/a,/b", "f.toml:1"),
                row("num.partitions", "1000", "f.toml:3"),
            ])
        );
        assert_eq!(toml("\"num.partitions\" = 0x10"), Ok(vec![row("num.partitions", "16", "f.toml:1")]));
    }

    #[test]
    fn a_broken_file_is_named_with_its_line() {
        let error = toml("a = 1\nb = \n").expect_err("broken");
        assert!(error.starts_with("f.toml:2: "), "{error}");
        let error = toml("\n\na = [{b = 1}]\n").expect_err("tables in a list");
        assert!(error.starts_with("f.toml:3: a is a list"), "{error}");
    }

    #[test]
    fn two_underscores_are_a_dot_and_one_is_itself() {
        let settings = from_env([
            ("RANGEWAY_NUM__PARTITIONS".to_owned(), "3".to_owned()),
            ("RANGEWAY_A_B".to_owned(), "x".to_owned()),
            ("PATH".to_owned(), "/bin".to_owned()),
        ]);
        let keys: Vec<_> = settings.iter().map(|s| (s.key.as_str(), s.value.as_str())).collect();
        assert_eq!(keys, [("a_b", "x"), ("num.partitions", "3")]);
        assert_eq!(settings[1].origin.to_string(), "environment variable RANGEWAY_NUM__PARTITIONS");
    }

    #[test]
    fn the_variable_of_a_key_sets_that_key() {
        let name = variable("http.bind");
        assert_eq!(name, "RANGEWAY_HTTP__BIND");
        assert_eq!(from_env([(name, "v".to_owned())])[0].key, "http.bind");
    }

    #[test]
    fn service_links_of_container_platforms_are_not_settings() {
        let links = ["RANGEWAY_PORT", "RANGEWAY_PORT_9092_TCP", "RANGEWAY_SERVICE_HOST", "RANGEWAY_"];
        assert_eq!(from_env(links.map(|name| (name.to_owned(), "tcp://10.0.0.1".to_owned()))), []);
    }
}
