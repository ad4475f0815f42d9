//! `rangeway ranges`: how a topic's partitions are grouped, and why.

use super::AdminArgs;
use super::admin_client::call;
use super::failure::Failure;
use super::table::{Align, Table, bytes};
use super::topics::{show, topic_path};
use crate::http::shapes::{RangeDescription, RangesExplained};
use clap::{Args, Subcommand};
use hyper::Method;

/// `rangeway ranges`.
#[derive(Args, Debug)]
pub struct RangesArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    command: RangesCommand,
}

#[derive(Subcommand, Debug)]
enum RangesCommand {
    /// The ranges of a topic
    List {
        /// The topic
        topic: String,
    },
    /// The same in sentences: where each range came from, who leads it, what it holds
    Explain {
        /// The topic
        topic: String,
    },
}

/// Runs `rangeway ranges`.
pub fn run(args: RangesArgs) -> Result<(), Failure> {
    match args.command {
        RangesCommand::List { topic } => {
            let answer = call(&args.admin, Method::GET, &format!("{}/ranges", topic_path(&topic)), None)?;
            show(&args.admin, answer, |ranges: Vec<RangeDescription>| list(&ranges))
        }
        RangesCommand::Explain { topic } => {
            let path = format!("{}/ranges/explain", topic_path(&topic));
            let answer = call(&args.admin, Method::GET, &path, None)?;
            show(&args.admin, answer, |explained: RangesExplained| explained.lines.join("\n") + "\n")
        }
    }
}

fn list(ranges: &[RangeDescription]) -> String {
    let mut table = Table::new(&[
        ("RANGE", Align::Right),
        ("PARTITIONS", Align::Left),
        ("STATE", Align::Left),
        ("PRIMARY", Align::Right),
        ("SEGMENTS", Align::Right),
        ("BYTES", Align::Right),
        ("PARENTS", Align::Left),
        ("CHILDREN", Align::Left),
    ]);
    for range in ranges {
        table.row(vec![
            range.id.to_string(),
            format!("{}-{}", range.first, range.last),
            range.state.clone(),
            range.primary.to_string(),
            range.segments.to_string(),
            bytes(range.bytes),
            ids(&range.parents),
            ids(&range.children),
        ]);
    }
    table.render()
}

fn ids(ids: &[u32]) -> String {
    match ids {
        [] => "-".to_owned(),
        ids => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}
