//! `rangeway topics` and `rangeway cluster`: administration of a running node.

use super::admin_client::{call, segment};
use super::failure::Failure;
use super::table::{Align, Table};
use super::{AdminArgs, key_value};
use crate::http::shapes::{ClusterStatus, TopicDescription};
use clap::{Args, Subcommand};
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// `rangeway topics`.
#[derive(Args, Debug)]
pub struct TopicsArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    command: TopicsCommand,
}

#[derive(Subcommand, Debug)]
enum TopicsCommand {
    /// All topics
    List {
        /// Also those that the node keeps for itself
        #[arg(long)]
        internal: bool,
    },
    /// Make a topic
    #[command(
        after_help = "Example: rangeway topics create orders --partitions 12 --config retention.ms=86400000"
    )]
    Create {
        /// Its name: letters, digits, '.', '_' and '-', at most 249
        name: String,
        /// How many partitions; without it the node's num.partitions
        #[arg(long, value_name = "N")]
        partitions: Option<i32>,
        /// Where its records are kept: memory, disk, quorum(3, write=2), striped(2, disk), nested at will
        #[arg(long, value_name = "EXPR")]
        drive: Option<String>,
        /// How many copies are asked for
        #[arg(long, value_name = "N")]
        replication_factor: Option<i16>,
        /// A topic config; may be repeated
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
        /// Only check whether it could be made
        #[arg(long)]
        validate_only: bool,
    },
    /// One topic
    Describe {
        /// Its name
        name: String,
    },
    /// Change configs of a topic, or add partitions
    #[command(after_help = "Examples:\n  rangeway topics alter orders --config retention.ms=3600000\n  \
        rangeway topics alter orders --unset retention.ms\n  rangeway topics alter orders --partitions 24")]
    Alter {
        /// Its name
        name: String,
        /// The new, larger count of partitions. Keys move to other partitions, as with any Kafka
        #[arg(long, value_name = "N")]
        partitions: Option<i32>,
        /// A topic config to set; may be repeated
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
        /// A topic config that goes back to the node's default; may be repeated
        #[arg(long = "unset", value_name = "KEY")]
        unset: Vec<String>,
    },
    /// Delete a topic and its records
    Delete {
        /// Its name
        name: String,
    },
}

/// `rangeway cluster`.
#[derive(Args, Debug)]
pub struct ClusterArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand, Debug)]
enum ClusterCommand {
    /// Nodes, control plane and what is blocked
    Status,
}

/// Runs `rangeway topics`.
pub fn run(args: TopicsArgs) -> Result<(), Failure> {
    let admin = &args.admin;
    match args.command {
        TopicsCommand::List { internal } => {
            let path = if internal { "/api/v1/topics?internal=true" } else { "/api/v1/topics" };
            show(admin, call(admin, Method::GET, path, None)?, |all: Vec<TopicDescription>| list(&all))
        }
        TopicsCommand::Create { name, partitions, drive, replication_factor, configs, validate_only } => {
            named_once(configs.iter().map(|(key, _)| key))?;
            let mut body = json!({ "name": name });
            put(&mut body, "partitions", partitions.map(Value::from));
            put(&mut body, "drive", drive.map(Value::from));
            put(&mut body, "replication_factor", replication_factor.map(Value::from));
            put(&mut body, "validate_only", validate_only.then(|| Value::from(true)));
            if !configs.is_empty() {
                put(&mut body, "configs", Some(config_map(configs, Vec::new())));
            }
            let answer = call(admin, Method::POST, "/api/v1/topics", Some(&body))?;
            let done = if validate_only { "could be created" } else { "created" };
            show(admin, answer, |topic: TopicDescription| format!("{done}\n{}", describe(&topic)))
        }
        TopicsCommand::Describe { name } => {
            show(admin, call(admin, Method::GET, &topic_path(&name), None)?, |t: TopicDescription| {
                describe(&t)
            })
        }
        TopicsCommand::Alter { name, partitions, configs, unset } => {
            if partitions.is_none() && configs.is_empty() && unset.is_empty() {
                return Err(Failure::usage("nothing_to_change", "nothing to change")
                    .hint("give --partitions N, --config KEY=VALUE or --unset KEY"));
            }
            named_once(configs.iter().map(|(key, _)| key).chain(&unset))?;
            let mut body = json!({});
            put(&mut body, "partitions", partitions.map(Value::from));
            if !configs.is_empty() || !unset.is_empty() {
                put(&mut body, "configs", Some(config_map(configs, unset)));
            }
            let answer = call(admin, Method::PATCH, &topic_path(&name), Some(&body))?;
            show(admin, answer, |topic: TopicDescription| format!("changed\n{}", describe(&topic)))
        }
        TopicsCommand::Delete { name } => {
            show(admin, call(admin, Method::DELETE, &topic_path(&name), None)?, |gone: Value| {
                format!("deleted {}\n", gone.get("name").and_then(Value::as_str).unwrap_or(&name))
            })
        }
    }
}

/// Runs `rangeway cluster`.
pub fn run_cluster(args: ClusterArgs) -> Result<(), Failure> {
    match args.command {
        ClusterCommand::Status => {
            let answer = call(&args.admin, Method::GET, "/api/v1/cluster", None)?;
            show(&args.admin, answer, |status: ClusterStatus| cluster(&status))
        }
    }
}

/// Prints an answer: as it is, or as `text` makes it.
pub fn show<T: DeserializeOwned>(
    admin: &AdminArgs,
    answer: Bytes,
    text: impl FnOnce(T) -> String,
) -> Result<(), Failure> {
    let out = if admin.json {
        format!("{}\n", String::from_utf8_lossy(&answer).trim_end())
    } else {
        let parsed = serde_json::from_slice(&answer).map_err(|e| {
            Failure::failed(
                "answer_unreadable",
                format!("the answer of {} is not understood: {e}", admin.server),
            )
            .hint("is the node of the same version as this program? --json prints what it said")
        })?;
        text(parsed)
    };
    super::print(&out)
}

/// The path of a topic.
pub fn topic_path(name: &str) -> String {
    format!("/api/v1/topics/{}", segment(name))
}

/// Errors: a config that is set twice, or both set and taken back: which of the two is meant?
fn named_once<'a>(keys: impl Iterator<Item = &'a String>) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(Failure::usage("named_twice", format!("config {key} is named more than once"))
                .hint("give each config once, with --config or with --unset"));
        }
    }
    Ok(())
}

fn put(body: &mut Value, key: &str, value: Option<Value>) {
    if let (Some(object), Some(value)) = (body.as_object_mut(), value) {
        object.insert(key.to_owned(), value);
    }
}

fn config_map(set: Vec<(String, String)>, unset: Vec<String>) -> Value {
    let mut map = Map::new();
    map.extend(set.into_iter().map(|(key, value)| (key, Value::from(value))));
    map.extend(unset.into_iter().map(|key| (key, Value::Null)));
    Value::Object(map)
}

fn list(topics: &[TopicDescription]) -> String {
    if topics.is_empty() {
        return "no topics\n".to_owned();
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PARTITIONS", Align::Right),
        ("RANGES", Align::Right),
        ("DRIVE", Align::Left),
        ("ID", Align::Left),
    ]);
    for topic in topics {
        table.row(vec![
            topic.name.clone(),
            topic.partitions.to_string(),
            topic.ranges.to_string(),
            topic.drive.clone(),
            topic.id.to_string(),
        ]);
    }
    table.render()
}

fn describe(topic: &TopicDescription) -> String {
    let mut out = format!(
        "name                {}\nid                  {}\npartitions          {}\nranges              {}\ndrive               {}\nreplication factor  {}\n",
        topic.name, topic.id, topic.partitions, topic.ranges, topic.drive, topic.replication_factor
    );
    if topic.configs.is_empty() {
        out.push_str("configs             none set; the node's defaults hold\n");
    }
    for (key, value) in &topic.configs {
        out.push_str(&format!("config              {key}={value}\n"));
    }
    out
}

fn cluster(status: &ClusterStatus) -> String {
    let mut nodes = Table::new(&[
        ("NODE", Align::Right),
        ("ADDRESS", Align::Left),
        ("STATE", Align::Left),
        ("RACK", Align::Left),
    ]);
    for node in &status.nodes {
        nodes.row(vec![
            node.id.to_string(),
            node.address.clone(),
            node.state.clone(),
            node.rack.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let blocked = match status.blocked.as_slice() {
        [] => "nothing is blocked\n".to_owned(),
        lines => lines.iter().map(|line| format!("blocked: {line}\n")).collect(),
    };
    let thin: String =
        status.under_replicated.iter().map(|line| format!("under-replicated: {line}\n")).collect();
    format!("cluster {}\n{}{blocked}{thin}", status.cluster_id, nodes.render())
}
