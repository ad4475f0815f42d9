//! `rangeway config`: the keys that a node and its topics take, offline.

use super::failure::Failure;
use super::table::{Align, Table};
use crate::config::{KeyDoc, did_you_mean, key_docs, key_of, topic_docs};
use clap::{Args, Subcommand};

/// `rangeway config`.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand, Debug)]
enum ConfigCommand {
    /// All keys of a node with their defaults and bounds
    List {
        /// Configs of topics instead
        #[arg(long)]
        topics: bool,
    },
    /// One key in full
    Describe {
        /// The key, of a node or of topics
        key: String,
    },
}

/// Runs `rangeway config`.
pub fn run(args: ConfigArgs) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::List { topics } => {
            let docs = if topics { topic_docs() } else { key_docs() };
            if args.json { json(&docs) } else { super::print(&list(&docs)) }
        }
        ConfigCommand::Describe { key } => {
            // Where both have a key of one name, the node's is meant: the topic's takes its default from it.
            let named = |key: &str| key_docs().into_iter().chain(topic_docs()).find(|doc| doc.key == key);
            let found = match named(&key) {
                Some(found) => found,
                None => {
                    let ours = key_of(&key)
                        .map_err(|why| Failure::failed("unknown_key", format!("{key}: {why}")))?;
                    let unknown = || format!("there is no key '{key}'{}", did_you_mean(&key));
                    named(ours).ok_or_else(|| Failure::failed("unknown_key", unknown()))?
                }
            };
            if args.json { json(&found) } else { super::print(&describe(&found)) }
        }
    }
}

fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::failed("json", e.to_string()))?;
    super::print(&(text + "\n"))
}

fn list(docs: &[KeyDoc]) -> String {
    let mut table = Table::new(&[("KEY", Align::Left), ("DEFAULT", Align::Left), ("ALLOWED", Align::Left)]);
    for doc in docs {
        table.row(vec![doc.key.clone(), shown(&doc.default), doc.bounds.clone()]);
    }
    table.render()
}

fn describe(doc: &KeyDoc) -> String {
    let set_by = doc.variable.as_ref().map_or_else(
        || "topic     rangeway topics alter NAME --config KEY=VALUE".to_owned(),
        |variable| format!("variable  {variable}"),
    );
    let (key, default) = (&doc.key, shown(&doc.default));
    format!("{key}\n  default   {default}\n  allowed   {}\n  {set_by}\n\n{}\n", doc.bounds, doc.doc)
}

fn shown(default: &str) -> String {
    if default.is_empty() { "(not set)".to_owned() } else { default.to_owned() }
}
