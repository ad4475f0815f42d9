//! `rangeway config`: the keys that a node takes, offline.

use super::failure::Failure;
use super::table::{Align, Table};
use crate::config::{KeyDoc, did_you_mean, key_docs};
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
    /// All keys with their defaults and bounds
    List,
    /// One key in full
    Describe {
        /// The key
        key: String,
    },
}

/// Runs `rangeway config`.
pub fn run(args: ConfigArgs) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::List if args.json => json(&key_docs()),
        ConfigCommand::List => super::print(&list(&key_docs())),
        ConfigCommand::Describe { key } => {
            let found = key_docs().into_iter().find(|doc| doc.key == key).ok_or_else(|| {
                Failure::failed("unknown_key", format!("there is no key '{key}'{}", did_you_mean(&key)))
            })?;
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
    format!(
        "{}\n  default   {}\n  allowed   {}\n  variable  {}\n\n{}\n",
        doc.key,
        shown(&doc.default),
        doc.bounds,
        doc.variable,
        doc.doc
    )
}

fn shown(default: &str) -> String {
    if default.is_empty() { "(not set)".to_owned() } else { default.to_owned() }
}
