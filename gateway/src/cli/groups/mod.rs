//! `rangeway groups`: consumer groups and their offsets, asked and changed through the Kafka port; so it serves any
//! Kafka broker. What a reset does is decided in `reset`.

mod admin;
mod reset;
mod show;

use super::failure::{Exit, Failure};
use admin::Admin;
use clap::{Args, Subcommand};
use reset::{Selection, To};
use serde::Serialize;
use show::{Deleted, Reset, Summary};

/// `rangeway groups`.
#[derive(Args, Debug)]
pub struct GroupsArgs {
    /// The Kafka port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092", global = true)]
    bootstrap: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    command: GroupsCommand,
}

#[derive(Subcommand, Debug)]
enum GroupsCommand {
    /// All groups, with type and state
    List,
    /// One group: its members, what they read, where they stand
    Describe {
        /// Its id
        group: String,
    },
    /// Say where an inactive group goes on; only shown until --execute
    #[command(
        after_help = "The group must have no members. Offsets beyond a partition's first or last one are brought within. A group \
        that is not there is made.\n\nExamples:\n  \
        rangeway groups reset-offsets billing --topic orders --to-earliest                  only say what would become of it\n  \
        rangeway groups reset-offsets billing --topic orders --to-earliest --execute\n  \
        rangeway groups reset-offsets billing --topic orders:0,3 --shift-by -100 --execute  two partitions\n  \
        rangeway groups reset-offsets billing --all-topics --to-datetime 2026-03-01T06:30:00 --execute"
    )]
    ResetOffsets(ResetArgs),
    /// Forget where a group stands in topics that it does not read
    #[command(after_help = "Example: rangeway groups delete-offsets billing --topic orders:0,3")]
    DeleteOffsets {
        /// Its id
        group: String,
        /// A topic, or some of its partitions; may be repeated
        #[arg(long = "topic", value_name = "TOPIC[:P,P…]", value_parser = reset::selection, required = true)]
        topics: Vec<Selection>,
    },
    /// Delete groups without members, with their offsets
    Delete {
        /// Their ids
        #[arg(required = true)]
        groups: Vec<String>,
    },
}

#[derive(Args, Debug)]
struct ResetArgs {
    /// Its id
    group: String,
    /// A topic, or some of its partitions; may be repeated
    #[arg(long = "topic", value_name = "TOPIC[:P,P…]", value_parser = reset::selection, required_unless_present = "all_topics")]
    topics: Vec<Selection>,
    /// All topics that the group has offsets in
    #[arg(long, conflicts_with = "topics")]
    all_topics: bool,
    #[command(flatten)]
    to: ToArgs,
    /// Do it
    #[arg(long, conflicts_with = "dry_run")]
    execute: bool,
    /// Only say what would become of it: the default
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct ToArgs {
    /// To the first record that is there
    #[arg(long)]
    to_earliest: bool,
    /// To the end
    #[arg(long)]
    to_latest: bool,
    /// To where the group stands; to the end where it stands nowhere
    #[arg(long)]
    to_current: bool,
    /// To this offset
    #[arg(long, value_name = "N")]
    to_offset: Option<i64>,
    /// To the first record of this time or later, UTC unless it says otherwise: 2026-03-01T06:30:00, …+02:00
    #[arg(long, value_name = "TIME", value_parser = reset::datetime)]
    to_datetime: Option<i64>,
    /// By so many records, back where it is negative
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    shift_by: Option<i64>,
}

impl ToArgs {
    fn to(&self) -> To {
        match *self {
            ToArgs { to_offset: Some(offset), .. } => To::Offset(offset),
            ToArgs { to_datetime: Some(ms), .. } => To::Time(ms),
            ToArgs { shift_by: Some(by), .. } => To::Shift(by),
            ToArgs { to_earliest: true, .. } => To::Earliest,
            ToArgs { to_latest: true, .. } => To::Latest,
            // One of them is given: clap sees to it.
            ToArgs { .. } => To::Current,
        }
    }
}

/// Runs `rangeway groups`.
pub fn run(args: GroupsArgs) -> Result<(), Failure> {
    let mut admin = Admin::open(&args.bootstrap)?;
    match args.command {
        GroupsCommand::List => {
            let mut all: Vec<Summary> = admin.list()?;
            all.sort_by(|a, b| a.group.cmp(&b.group));
            out(args.json, &all, |all| show::list(all))
        }
        GroupsCommand::Describe { group } => {
            let description = admin.describe(&group)?.ok_or_else(|| not_found(&group))?;
            out(args.json, &description, show::describe)
        }
        GroupsCommand::ResetOffsets(asked) => reset_offsets(&mut admin, &asked, args.json),
        GroupsCommand::DeleteOffsets { group, topics } => {
            let partitions = admin.partitions_of(&topics)?;
            let deleted = admin.delete_offsets(&group, &partitions)?;
            out(args.json, &deleted, show::deleted_offsets)?;
            let refused = deleted.offsets.iter().filter(|row| row.error.is_some()).count();
            all_done(
                refused,
                "offsets_not_deleted",
                "offsets of partitions",
                "members of the group read their topic; stop them first",
            )
        }
        GroupsCommand::Delete { groups } => {
            let mut rows = Vec::new();
            for group in groups {
                let error = admin.delete(&group)?;
                rows.push(Deleted { group, error });
            }
            out(args.json, &rows, |rows| show::deleted(rows))?;
            let refused = rows.iter().filter(|row| row.error.is_some()).count();
            all_done(
                refused,
                "groups_not_deleted",
                "groups",
                "a group with members is not deleted; stop them first",
            )
        }
    }
}

fn reset_offsets(admin: &mut Admin, asked: &ResetArgs, json: bool) -> Result<(), Failure> {
    let group = &asked.group;
    if let Some((state, members)) = admin.active(group)? {
        let message = format!(
            "group '{group}' is {state} with {members} members: who reads would not notice and commit over it"
        );
        return Err(Failure::failed("group_active", message).hint("stop its members first"));
    }
    let committed = admin.committed(group)?;
    let partitions = match asked.all_topics {
        true => committed.keys().cloned().collect(),
        false => admin.partitions_of(&asked.topics)?,
    };
    if partitions.is_empty() {
        return Err(Failure::failed("no_offsets", format!("group '{group}' has no offsets to reset"))
            .hint("name a topic with --topic"));
    }
    let to = asked.to.to();
    let known = admin.bounds(&partitions, to)?;
    let planned = reset::plan(to, &partitions, &committed, &known)
        .map_err(|error| Failure::failed("cannot_shift", error.to_string()))?;
    for moved in planned.iter().filter_map(|row| row.note.as_ref().map(|note| (row, note))) {
        eprintln!("warning: {} {}: {}", moved.0.topic, moved.0.partition, moved.1);
    }
    if asked.execute {
        admin.commit(group, &planned)?;
    }
    let reset = Reset { group: group.clone(), executed: asked.execute, offsets: planned };
    out(json, &reset, show::reset)
}

fn not_found(group: &str) -> Failure {
    Failure::failed("group_not_found", format!("there is no group '{group}'"))
        .hint("`rangeway groups list` shows all")
}

fn all_done(refused: usize, code: &str, what: &str, hint: &str) -> Result<(), Failure> {
    match refused {
        0 => Ok(()),
        n => Err(Failure {
            exit: Exit::Failed,
            ..Failure::failed(code, format!("{n} {what} were not deleted"))
        }
        .hint(hint)),
    }
}

fn out<T: Serialize + ?Sized>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    if !json {
        return super::print(&text(value));
    }
    let line = serde_json::to_string(value).map_err(|e| Failure::failed("json", e.to_string()))?;
    super::print(&(line + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        args: GroupsArgs,
    }

    fn reset(words: &[&str]) -> Result<(To, bool, Vec<Selection>), clap::error::ErrorKind> {
        let words = ["x", "reset-offsets", "g"].iter().chain(words);
        match Cli::try_parse_from(words).map_err(|e| e.kind())?.args.command {
            GroupsCommand::ResetOffsets(asked) => Ok((asked.to.to(), asked.execute, asked.topics)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reset_goes_to_one_place_and_is_shown_until_it_is_to_be_done() {
        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument, ValueValidation};
        let to = |words: &[&str]| {
            reset(&[&["--topic", "t"], words].concat()).map(|(to, execute, _)| (to, execute))
        };
        assert_eq!(to(&["--to-earliest"]), Ok((To::Earliest, false)));
        assert_eq!(to(&["--to-latest", "--dry-run"]), Ok((To::Latest, false)));
        assert_eq!(to(&["--to-current", "--execute"]), Ok((To::Current, true)));
        assert_eq!(to(&["--to-offset", "7", "--execute"]), Ok((To::Offset(7), true)));
        assert_eq!(to(&["--shift-by", "-5"]), Ok((To::Shift(-5), false)));
        assert_eq!(to(&["--to-datetime", "1970-01-01T00:00:01"]), Ok((To::Time(1000), false)));
        assert_eq!(to(&["--to-datetime", "soon"]), Err(ValueValidation));
        assert_eq!(to(&[]), Err(MissingRequiredArgument));
        assert_eq!(to(&["--to-earliest", "--to-latest"]), Err(ArgumentConflict));
        assert_eq!(to(&["--to-earliest", "--execute", "--dry-run"]), Err(ArgumentConflict));
    }

    #[test]
    fn a_reset_says_of_which_partitions() {
        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument, ValueValidation};
        let (_, _, topics) = reset(&["--topic", "a", "--topic", "b:3,1", "--to-latest"]).expect("right");
        assert_eq!(topics.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b:1,3"]);
        assert_eq!(reset(&["--all-topics", "--to-latest"]).map(|(_, _, topics)| topics.len()), Ok(0));
        assert_eq!(reset(&["--to-latest"]).unwrap_err(), MissingRequiredArgument);
        assert_eq!(reset(&["--all-topics", "--topic", "a", "--to-latest"]).unwrap_err(), ArgumentConflict);
        assert_eq!(reset(&["--topic", "a:x", "--to-latest"]).unwrap_err(), ValueValidation);
    }
}
