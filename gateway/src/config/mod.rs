//! What an operator may set, and from where. Owns the layers and the keys of the program; the keys of the node and of
//! topics are core's and are only passed on.
//!
//! file < environment < `--set` < named flags. An unknown key is an error that names where it was written and what was
//! probably meant.

mod keys;
pub mod layers;

pub use keys::{PROGRAM_KEYS, ProgramKey, host_port};
use layers::{Origin, Setting};
use rangeway_core::config::node::{self, NODE_KEYS, NodeConfig};
use rangeway_core::config::{ConfigError, Kind, kafka, nearest, topic};
use std::collections::BTreeMap;
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The program's own.
    pub program: Program,
    /// The node's.
    pub node: NodeConfig,
}

/// Applies settings in the order given: later ones win. Kafka's in a larger unit yield to the same in a smaller one, wherever
/// that is written.
///
/// Errors: one message per wrong setting, each with its origin.
pub fn load(settings: &[Setting]) -> Result<Loaded, Vec<String>> {
    let mut loaded = Loaded::default();
    let mut errors: Vec<String> =
        settings.iter().filter_map(|setting| apply(&mut loaded, setting, settings).err()).collect();
    if errors.is_empty() {
        errors.extend(loaded.node.check().err().map(|e| e.to_string()));
    }
    if errors.is_empty() { Ok(loaded) } else { Err(errors) }
}

fn apply(loaded: &mut Loaded, setting: &Setting, all: &[Setting]) -> Result<(), String> {
    let Setting { key: written, value, origin } = setting;
    if let Some(unit) = kafka::larger_unit(written) {
        let millis =
            unit.in_millis(value).map_err(|why| format!("{origin}: {written} = '{value}': {why}"))?;
        return match unit.yields(all.iter().map(|other| other.key.as_str())) {
            true => Ok(()),
            false => set(loaded, written, &millis, origin),
        };
    }
    set(loaded, written, value, origin)
}

fn set(loaded: &mut Loaded, written: &str, value: &str, origin: &Origin) -> Result<(), String> {
    let key = key_of(written).map_err(|why| format!("{origin}: {written}: {why}"))?;
    if let Some(known) = PROGRAM_KEYS.iter().find(|known| known.name == key) {
        return (known.set)(&mut loaded.program, value)
            .map_err(|why| format!("{origin}: {key} = '{value}': {why}"));
    }
    if node::find(key).is_some() {
        return loaded.node.set(key, value).map_err(|error| match error {
            ConfigError::Invalid { name, value, why } => format!("{origin}: {name} = '{value}': {why}"),
            other => format!("{origin}: {other}"),
        });
    }
    Err(format!("{origin}: there is no key '{key}'{}", did_you_mean(key)))
}

/// The key that a name stands for: itself, or the one that Kafka has under it. Where both are written the later one wins.
///
/// Errors: why a setting of Kafka's cannot be set at the start, and what to do instead.
pub fn key_of(name: &str) -> Result<&str, String> {
    match key_names().any(|known| known == name) {
        true => Ok(name),
        false => kafka::at_start(name).unwrap_or(Ok(name)),
    }
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
    /// The environment variable that sets it; none for configs of topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
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
            variable: Some(layers::variable(key.name)),
        })
        .chain(NODE_KEYS.iter().map(|key| KeyDoc {
            key: key.name.to_owned(),
            default: key.default(),
            bounds: match key.default().as_str() {
                "auto" => bounds(key.kind, Units::Taken) + ", or auto",
                _ => bounds(key.kind, Units::Taken),
            },
            doc: key.doc.to_owned(),
            variable: Some(key.variable()),
        }))
        .collect();
    docs.sort_by(|a, b| a.key.cmp(&b.key));
    docs
}

/// All configs that a topic may have, by name.
pub fn topic_docs() -> Vec<KeyDoc> {
    let node = NodeConfig::default();
    let rows = topic::TOPIC_KEYS.iter().map(|key| KeyDoc {
        key: key.name.to_owned(),
        default: key.default(&node),
        bounds: bounds(key.kind, Units::Plain),
        doc: key.documentation(),
        variable: None,
    });
    rows.collect()
}

/// Says in the log which settings of a topic do nothing here, and why: whoever set them expects something of them.
pub fn log_without_effect(topic: &str, explicit: &BTreeMap<String, String>) {
    for (config, why) in topic::without_effect(explicit) {
        tracing::warn!(topic, config, "config is stored and has no effect: {why}");
    }
}

/// Names of all keys that a node takes.
pub fn key_names() -> impl Iterator<Item = &'static str> {
    PROGRAM_KEYS.iter().map(|key| key.name).chain(NODE_KEYS.iter().map(|key| key.name))
}

/// Whether a value may be written with a unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Units {
    /// Settings of the node: `1GiB`, `7d`.
    Taken,
    /// Configs of topics, as Kafka's tools write them.
    Plain,
}

/// What values a kind allows, for people.
fn bounds(kind: Kind, units: Units) -> String {
    let number = |min: i64, max: i64| match (min, max) {
        (i64::MIN, i64::MAX) => "any number of".to_owned(),
        (_, i64::MAX) => format!("{min} or more"),
        _ => format!("{min} to {max}"),
    };
    match kind {
        Kind::Int { min, max } => number(i64::from(min), i64::from(max)),
        Kind::Long { min, max } => number(min, max),
        Kind::Bytes { min, max } => {
            number(min, max) + if units == Units::Taken { " bytes (KiB, MiB, GiB, TiB)" } else { " bytes" }
        }
        Kind::Millis { min, max } => {
            number(min, max) + if units == Units::Taken { " ms (s, min, h, d)" } else { " ms" }
        }
        Kind::Double { min, max } => format!("{min} to {max}"),
        Kind::Bool => "true or false".to_owned(),
        Kind::Choice(words) => words.join(", "),
        Kind::List([]) => "a list, separated by commas".to_owned(),
        Kind::List(words) => format!("a list of {}", words.join(", ")),
        Kind::Text => "any text".to_owned(),
        Kind::Drive => "a drive expression".to_owned(),
        Kind::Addresses => "ADDRESS:COUNT, separated by commas".to_owned(),
    }
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
    fn keys_of_the_node_are_set_with_units_and_checked_together() {
        let set = |key: &str, value: &str| from_set(&(key.to_owned(), value.to_owned()));
        let node = load(&[set("extent.bytes", "1MiB"), set("drive", "memory")]).expect("known").node;
        assert_eq!((node.extent_bytes, node.drive.to_string()), (1 << 20, "memory".to_owned()));
        let errors = load(&[set("request.max.bytes", "1MiB")]).expect_err("below message.max.bytes");
        assert!(errors[0].contains("message.max.bytes"), "{errors:?}");
    }

    #[test]
    fn no_name_is_in_both_tables_and_every_key_is_documented() {
        let names: std::collections::BTreeSet<&str> = key_names().collect();
        assert_eq!(names.len(), key_names().count());
        let docs = key_docs();
        assert_eq!(docs.len(), names.len());
        assert!(docs.iter().all(|doc| !doc.doc.is_empty() && !doc.bounds.is_empty()));
        let find = |key: &str| docs.iter().find(|doc| doc.key == key).map(|doc| doc.bounds.clone());
        assert_eq!(find("num.partitions").as_deref(), Some("1 to 1000000"));
        assert_eq!(find("topics.replication.lenient").as_deref(), Some("true or false, or auto"));
        assert_eq!(find("retention.ms").as_deref(), Some("-1 or more ms (s, min, h, d)"));
    }

    #[test]
    fn all_wrong_settings_are_named_with_their_place_and_what_would_be_right() {
        let mut settings = from_toml("node.idd = 1\nhttp.insecure = 1", Path::new("f.toml")).expect("toml");
        settings.extend(from_env([("RANGEWAY_KAFKA_BIND".to_owned(), "h:1".to_owned())]));
        settings.push(from_set(&("num.partitions".to_owned(), "0".to_owned())));
        settings.push(from_set(&("quite.else".to_owned(), "1".to_owned())));
        assert_eq!(
            load(&settings),
            Err(vec![
                "f.toml:2: http.insecure = '1': it is true or false".to_owned(),
                "f.toml:1: there is no key 'node.idd'; did you mean 'node.id'?".to_owned(),
                "environment variable RANGEWAY_KAFKA_BIND: there is no key 'kafka_bind'; did you mean 'kafka.bind'?"
                    .to_owned(),
                "--set num.partitions=0: num.partitions = '0': Value must be at least 1".to_owned(),
                "--set quite.else=1: there is no key 'quite.else'; `rangeway config list` shows all".to_owned(),
            ])
        );
    }

    #[test]
    fn kafkas_names_of_settings_are_taken_and_those_that_are_not_there_are_refused_with_what_to_do() {
        let set = |key: &str, value: &str| from_set(&(key.to_owned(), value.to_owned()));
        let settings = [
            set("max.connections", "5"),
            set("log.retention.ms", "7000"),
            set("log.dirs", "/a,/b"),
            set("broker.rack", "r"),
            set("retention.ms", "8000"),
        ];
        let loaded = load(&settings).expect("all known");
        assert_eq!((loaded.node.connections_max, loaded.node.retention_ms), (5, 8000));
        assert_eq!((loaded.program.data.len(), loaded.program.rack.as_deref()), (2, Some("r")));
        let errors = load(&[set("num.io.threads", "8"), set("max.connections", "0")]).expect_err("refused");
        assert!(
            errors[0].starts_with(
                "--set num.io.threads=8: num.io.threads: This setting of Kafka's is not supported. There are"
            ),
            "{errors:?}"
        );
        assert_eq!(errors[1], "--set max.connections=0: connections.max = '0': Value must be at least 1");
    }

    #[test]
    fn hours_yield_to_minutes_and_both_to_milliseconds_wherever_they_are_written() {
        let file = |text: &str| from_toml(text, Path::new("f.toml")).expect("toml");
        let set = |key: &str, value: &str| from_set(&(key.to_owned(), value.to_owned()));
        let retention = |settings: &[Setting]| load(settings).map(|loaded| loaded.node.retention_ms);
        let hours = || set("log.retention.hours", "168");
        assert_eq!(retention(&[hours()]), Ok(604_800_000));
        assert_eq!(retention(&[set("log.retention.hours", "-1")]), Ok(-1));
        assert_eq!(retention(&[set("log.retention.minutes", "2"), hours()]), Ok(120_000));
        assert_eq!(retention(&[hours(), set("log.retention.hours", "2")]), Ok(7_200_000), "the later one");
        let both = |smaller: &str| [file(smaller), vec![hours()]].concat();
        assert_eq!(retention(&both("log.retention.ms = 7000")), Ok(7000));
        assert_eq!(retention(&both("retention.ms = \"8s\"")), Ok(8000));
        let rolls =
            load(&[set("log.roll.hours", "2"), set("log.roll.jitter.hours", "1")]).expect("taken").node;
        assert_eq!((rolls.segment_roll_ms, rolls.segment_roll_jitter_ms), (7_200_000, 3_600_000));
        // Also where it would be without effect.
        let errors = retention(&[set("log.retention.ms", "1"), set("log.retention.hours", "a")])
            .expect_err("no number");
        assert_eq!(
            errors,
            ["--set log.retention.hours=a: log.retention.hours = 'a': Not a number of type LONG"]
        );
    }

    #[test]
    fn the_page_of_kafkas_broker_configs_is_current() {
        let mut out = "# Kafka's settings of a broker\n\nEvery setting that Kafka 4.4 has for a broker, and what becomes of it \
            here. Made from the tables that the program uses. A setting with a name of the node's own is taken at the start \
            under either name; one that is not supported is refused, at the start and by tools, with the sentence that stands \
            here. What is stored without effect, since nothing is promised by it, says so.\n\n| setting | here |\n|---|---|\n"
            .to_owned();
        for name in kafka::names() {
            let here = kafka::documentation(name).unwrap_or_default();
            out += &format!("| `{name}` | {} |\n", cell(&here));
        }
        page("kafka-broker-configs.md", &out);
    }

    /// Compares a page of the docs with what the tables say. With `UPDATE_DOCS` set it writes the page.
    fn page(name: &str, expected: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, expected).expect("the page is written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let update = "UPDATE_DOCS=1 cargo test -p rangeway-gateway --lib config";
        assert!(
            found == expected,
            "docs/reference/{name} is not what the tables say; write it with\n{update}"
        );
    }

    fn cell(text: &str) -> String {
        text.replace('|', "\\|")
    }

    #[test]
    fn the_page_of_all_settings_is_current() {
        let mut out =
            "# All settings of a node\n\nMade from the tables that the program uses. How to set them: \
            [configure](../guides/configure.md).\n\n| key | default | allowed | what |\n|---|---|---|---|\n"
                .to_owned();
        for doc in key_docs() {
            let default =
                if doc.default.is_empty() { "not set".to_owned() } else { format!("`{}`", doc.default) };
            out += &format!("| `{}` | {default} | {} | {} |\n", doc.key, cell(&doc.bounds), cell(&doc.doc));
        }
        page("config.md", &out);
    }

    #[test]
    fn the_page_of_topic_configs_is_current() {
        let mut out =
            "# Configs of a topic\n\nMade from the table that the program uses. A topic without a value \
            has the default, which some node setting may change.\n\n| config | default | allowed | what |\n\
            |---|---|---|---|\n"
                .to_owned();
        for doc in topic_docs() {
            let default =
                if doc.default.is_empty() { "empty".to_owned() } else { format!("`{}`", doc.default) };
            out += &format!("| `{}` | {default} | {} | {} |\n", doc.key, cell(&doc.bounds), cell(&doc.doc));
        }
        page("topic-configs.md", &out);
    }
}
