//! `rangeway ranges`: how a topic's partitions are grouped, and why; splitting and merging them.

use super::AdminArgs;
use super::admin_client::call;
use super::failure::Failure;
use super::table::{Align, Table, bytes};
use super::topics::{show, topic_path};
use super::{operations, waiting};
use crate::http::shapes::{OperationDescription, PlanDescription, RangeDescription, RangesExplained};
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

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
    /// The ranges of a topic: those that are written, and closed ones that still hold segments
    List {
        /// The topic
        topic: String,
    },
    /// The same in sentences: where each range came from, who leads it, what it holds
    Explain {
        /// The topic
        topic: String,
    },
    /// Cut a range in two; producers and consumers go on
    #[command(
        after_help = "Its partitions take no appends for a few milliseconds; what is sent meanwhile waits and is answered in \
        order.\nNo record is copied: the closed range's segments are read where they are.\n\nExamples:\n  \
        rangeway ranges split orders --range 0            where its stored bytes are halved\n  \
        rangeway ranges split orders --range 0 --at 6     partitions 6 and up become a range of their own\n  \
        rangeway ranges split orders --range 0 --dry-run  say what would become of it"
    )]
    Split {
        /// The topic
        topic: String,
        /// Which of its ranges, by the number that `rangeway ranges list` shows
        #[arg(long, value_name = "R")]
        range: u32,
        /// First partition of the right half [default: where the stored bytes are halved, in the middle while there are few]
        #[arg(long, value_name = "P", allow_negative_numbers = true)]
        at: Option<i32>,
        /// Only say what would become of it
        #[arg(long)]
        dry_run: bool,
    },
    /// Make one range of two neighbours; producers and consumers go on
    #[command(
        after_help = "Neighbours are ranges whose partitions follow each other. It costs what a split costs.\n\nExamples:\n  \
        rangeway ranges merge orders --ranges 1,2\n  \
        rangeway ranges merge orders --ranges 1,2 --dry-run"
    )]
    Merge {
        /// The topic
        topic: String,
        /// Two neighbours, in either order
        #[arg(long, value_name = "A,B", value_parser = pair)]
        ranges: [u32; 2],
        /// Only say what would become of them
        #[arg(long)]
        dry_run: bool,
    },
}

/// Two numbers of ranges.
fn pair(text: &str) -> Result<[u32; 2], String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    numbers
        .and_then(|numbers| <[u32; 2]>::try_from(numbers).ok())
        .ok_or_else(|| format!("'{text}' is not two numbers of ranges, such as 1,2"))
        .and_then(|pair: [u32; 2]| match pair[0] == pair[1] {
            true => Err(format!("range {} does not merge with itself; name two neighbours", pair[0])),
            false => Ok(pair),
        })
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
        RangesCommand::Split { topic, range, at, dry_run } => {
            let path = format!("{}/ranges/{range}/split", topic_path(&topic));
            let mut body = json!({ "dry_run": dry_run });
            if let (Some(at), Some(object)) = (at, body.as_object_mut()) {
                object.insert("at".to_owned(), at.into());
            }
            reshard(&args.admin, &path, body, &format!("splitting range {range} of {topic}"))
        }
        RangesCommand::Merge { topic, ranges: [a, b], dry_run } => {
            let path = format!("{}/ranges/merge", topic_path(&topic));
            let body = json!({ "ranges": [a, b], "dry_run": dry_run });
            reshard(&args.admin, &path, body, &format!("merging ranges {a} and {b} of {topic}"))
        }
    }
}

/// Asks for a split or merge, or only what it would do.
fn reshard(admin: &AdminArgs, path: &str, body: Value, what: &str) -> Result<(), Failure> {
    let dry_run = body.get("dry_run").is_some_and(|dry| *dry == true);
    let answer = waiting(what, || call(admin, Method::POST, path, Some(&body)))?;
    match dry_run {
        true => show(admin, answer, |plan: PlanDescription| planned(&plan)),
        false => show(admin, answer, |done: OperationDescription| operations::sentence(&done)),
    }
}

fn planned(plan: &PlanDescription) -> String {
    let spans: Vec<String> =
        plan.creates.iter().map(|span| format!("partitions {} to {}", span.first, span.last)).collect();
    let ranges = if plan.closes.len() == 1 { "range" } else { "ranges" };
    format!("possible: {ranges} {} would be closed and become {}\n", ids(&plan.closes), spans.join(" | "))
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
            if range.blocked.is_some() { "blocked".to_owned() } else { range.state.clone() },
            range.primary.to_string(),
            range.segments.to_string(),
            bytes(range.bytes),
            ids(&range.parents),
            ids(&range.children),
        ]);
    }
    let why = ranges.iter().filter_map(|range| Some((range.id, range.blocked.as_ref()?)));
    let why: String = why.map(|(id, why)| format!("range {id} takes no writes: {why}\n")).collect();
    table.render() + &why
}

/// Numbers of ranges in a cell.
pub fn ids(ids: &[u32]) -> String {
    match ids {
        [] => "-".to_owned(),
        ids => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}
