//! What an operator may set, and from where. Owns the layers and the keys of the program; the keys of the node and of
//! topics are core's and are only passed on.
//!
//! file < environment < `--set` < named flags. An unknown key is an error that names where it was written and what was
//! probably meant.

mod keys;
pub mod layers;
pub mod near_miss;

pub use keys::{PROGRAM_KEYS, ProgramKey, host_port};
use layers::Setting;
use near_miss::nearest;
use std::path::PathBuf;

/// How log lines look.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings of the program itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Data directories, one per disk; the first also holds control state.
    pub data: Vec<PathBuf>,
    /// Bind address of the Kafka port.
    pub kafka: String,
    /// Where Kafka clients are told to connect; `None`: as they reached us.
    pub advertised: Option<(String, u16)>,
    /// Bind address of the HTTP port.
    pub http: String,
    /// The HTTP port may be reachable from other machines.
    pub http_insecure: bool,
    /// This node's number.
    pub node_id: i32,
    /// Its rack.
    pub rack: Option<String>,
    /// What is logged; `None`: RUST_LOG, else `info`.
    pub log_filter: Option<String>,
    /// How.
    pub log_format: LogFormat,
}

impl Default for Program {
    fn default() -> Program {
        Program {
            data: vec![PathBuf::from("./rangeway-data")],
            kafka: "127.0.0.1:9092".to_owned(),
            advertised: None,
            http: "127.0.0.1:9180".to_owned(),
            http_insecure: false,
            node_id: 1,
            rack: None,
            log_filter: None,
            log_format: LogFormat::Text,
        }
    }
}

/// Everything that was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The program's own.
    pub program: Program,
}

/// Applies settings in the order given: later ones win.
///
/// Errors: one message per wrong setting, each with its origin.
pub fn load(settings: &[Setting]) -> Result<Loaded, Vec<String>> {
    let mut loaded = Loaded::default();
    let errors: Vec<String> =
        settings.iter().filter_map(|setting| apply(&mut loaded, setting).err()).collect();
    if errors.is_empty() { Ok(loaded) } else { Err(errors) }
}

fn apply(loaded: &mut Loaded, setting: &Setting) -> Result<(), String> {
    let Setting { key, value, origin } = setting;
    let wrong = |why: String| format!("{origin}: {key} = '{value}': {why}");
    if let Some(known) = PROGRAM_KEYS.iter().find(|known| known.name == key) {
        return (known.set)(&mut loaded.program, value).map_err(wrong);
    }
    Err(format!("{origin}: there is no key '{key}'{}", did_you_mean(key)))
}

/// The tail of a message about an unknown key.
pub fn did_you_mean(key: &str) -> String {
    match nearest(key, key_names()) {
        Some(near) => format!("; did you mean '{near}'?"),
        None => "; `rangeway config list` shows all".to_owned(),
    }
}

/// One key, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyDoc {
    /// Dotted name.
    pub key: String,
    /// As text; empty: not set.
    pub default: String,
    /// What values are allowed.
    pub bounds: String,
    /// What it does.
    pub doc: String,
    /// The environment variable that sets it.
    pub variable: String,
}

/// All keys that a node takes, by name.
pub fn key_docs() -> Vec<KeyDoc> {
    let mut docs: Vec<KeyDoc> = PROGRAM_KEYS
        .iter()
        .map(|key| KeyDoc {
            key: key.name.to_owned(),
            default: key.default.to_owned(),
            bounds: key.bounds.to_owned(),
            doc: key.doc.to_owned(),
            variable: layers::variable(key.name),
        })
        .collect();
    docs.sort_by(|a, b| a.key.cmp(&b.key));
    docs
}

/// Names of all keys that a node takes.
pub fn key_names() -> impl Iterator<Item = &'static str> {
    PROGRAM_KEYS.iter().map(|key| key.name)
}

#[cfg(test)]
mod tests {
    use super::layers::{from_env, from_set, from_toml};
    use super::*;
    use std::path::Path;

    #[test]
    fn a_later_layer_wins_key_by_key() {
        let mut settings =
            from_toml("[node]\nid = 5\nrack = \"file\"\n[http]\nbind = \"127.0.0.1:1\"", Path::new("f.toml"))
                .expect("toml");
        settings.extend(from_env([("RANGEWAY_NODE__RACK".to_owned(), "env".to_owned())]));
        settings.push(from_set(&("http.bind".to_owned(), "127.0.0.1:2".to_owned())));
        let program = load(&settings).expect("all known").program;
        assert_eq!(
            (program.node_id, program.rack.as_deref(), &*program.http),
            (5, Some("env"), "127.0.0.1:2")
        );
    }

    #[test]
    fn all_wrong_settings_are_named_with_their_place_and_what_would_be_right() {
        let mut settings = from_toml("node.idd = 1\nhttp.insecure = 1", Path::new("f.toml")).expect("toml");
        settings.extend(from_env([("RANGEWAY_KAFKA_BIND".to_owned(), "h:1".to_owned())]));
        settings.push(from_set(&("quite.else".to_owned(), "1".to_owned())));
        assert_eq!(
            load(&settings),
            Err(vec![
                "f.toml:2: http.insecure = '1': it is true or false".to_owned(),
                "f.toml:1: there is no key 'node.idd'; did you mean 'node.id'?".to_owned(),
                "environment variable RANGEWAY_KAFKA_BIND: there is no key 'kafka_bind'; did you mean 'kafka.bind'?"
                    .to_owned(),
                "--set quite.else=1: there is no key 'quite.else'; `rangeway config list` shows all".to_owned(),
            ])
        );
    }
}
