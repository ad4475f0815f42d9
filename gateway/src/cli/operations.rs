//! `rangeway operations`: splits and merges that run or ended not long ago.

use super::AdminArgs;
use super::admin_client::{call, segment};
use super::failure::Failure;
use super::ranges::ids;
use super::table::{Align, Table};
use super::topics::show;
use crate::http::shapes::OperationDescription;
use clap::{Args, Subcommand};
use hyper::Method;

/// `rangeway operations`.
#[derive(Args, Debug)]
pub struct OperationsArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    command: OperationsCommand,
}

#[derive(Subcommand, Debug)]
enum OperationsCommand {
    /// Splits and merges that run, and those that ended not long ago, oldest first
    List,
    /// Give up a split or merge that runs; its ranges go on as they were
    #[command(
        after_help = "What is done already cannot be given up: merge the ranges of a split again, or split those of a \
        merge.\n\nExample: rangeway operations abort 0b0e7d0c-6f38-4c5c-8f0e-6a6a1b5f8f11"
    )]
    Abort {
        /// Its identity, as `rangeway operations list` shows it
        id: String,
    },
}

/// Runs `rangeway operations`.
pub fn run(args: OperationsArgs) -> Result<(), Failure> {
    match args.command {
        OperationsCommand::List => {
            let answer = call(&args.admin, Method::GET, "/api/v1/operations", None)?;
            show(&args.admin, answer, |all: Vec<OperationDescription>| list(&all))
        }
        OperationsCommand::Abort { id } => {
            let path = format!("/api/v1/operations/{}/abort", segment(&id));
            let answer = call(&args.admin, Method::POST, &path, None)?;
            show(&args.admin, answer, |operation: OperationDescription| sentence(&operation))
        }
    }
}

/// What became of an operation.
pub fn sentence(operation: &OperationDescription) -> String {
    let OperationDescription { kind, operation: id, .. } = operation;
    match operation.state.as_str() {
        "done" => {
            let ranges = if operation.created.len() == 1 { "range" } else { "ranges" };
            let pause = pause(operation.paused_ms, "", " (no appends for ", " ms)");
            format!("done: {kind} made {ranges} {}{pause}\noperation {id}\n", ids(&operation.created))
        }
        "running" => format!(
            "still running: {kind}; it goes on by itself\noperation {id}\nhint: `rangeway operations list` shows when it is done, \
             `rangeway operations abort {id}` gives it up\n"
        ),
        _ => {
            let why = operation.why.as_deref().unwrap_or("no reason was recorded");
            format!("given up: {kind}; the ranges go on as they were ({why})\noperation {id}\n")
        }
    }
}

fn pause(ms: Option<f64>, unknown: &str, before: &str, after: &str) -> String {
    ms.map_or_else(|| unknown.to_owned(), |ms| format!("{before}{ms:.1}{after}"))
}

fn list(operations: &[OperationDescription]) -> String {
    if operations.is_empty() {
        return "no operations\n".to_owned();
    }
    let mut table = Table::new(&[
        ("OPERATION", Align::Left),
        ("TOPIC", Align::Left),
        ("STATE", Align::Left),
        ("WHAT", Align::Left),
        ("MADE", Align::Left),
        ("PAUSE MS", Align::Right),
    ]);
    for operation in operations {
        let what = match &operation.why {
            Some(why) => format!("{} ({why})", operation.kind),
            None => operation.kind.clone(),
        };
        table.row(vec![
            operation.operation.clone(),
            operation.topic.clone().unwrap_or_else(|| "-".to_owned()),
            operation.state.clone(),
            what,
            ids(&operation.created),
            pause(operation.paused_ms, "-", "", ""),
        ]);
    }
    table.render()
}
