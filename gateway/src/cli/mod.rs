//! The command line: what can be asked of the program, and how its answers look. Owns arguments, tables and exit
//! codes. Knows nothing of how a node works: `serve` assembles one, `groups` speaks Kafka to one, every other admin command HTTP.

mod admin_client;
mod bench;
mod config_cmd;
mod demo;
mod demo_screen;
mod embedded;
pub mod failure;
mod groups;
mod operations;
mod ranges;
mod serve;
mod table;
mod topics;
mod verify;

use clap::{Args, Parser, Subcommand};
use failure::{Failure, Format};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Where an admin command finds its node.
pub const SERVER_DEFAULT: &str = "127.0.0.1:9180";

#[derive(Parser, Debug)]
#[command(
    name = "rangeway",
    version,
    about = "A Kafka-wire-compatible gateway over a range log",
    after_help = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 data directory or port not usable."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a node: Kafka clients on one port, administration over HTTP on another
    Serve(serve::ServeArgs),
    /// Make, show, change and delete topics
    Topics(topics::TopicsArgs),
    /// Show how a topic's partitions are grouped into ranges; split and merge them
    Ranges(ranges::RangesArgs),
    /// Show consumer groups; say where they go on; delete them
    Groups(groups::GroupsArgs),
    /// Show splits and merges; give one up
    Operations(operations::OperationsArgs),
    /// Show the cluster
    Cluster(topics::ClusterArgs),
    /// Split and merge ranges under load, and check that nothing is lost, doubled or out of order
    Demo(demo::DemoArgs),
    /// Measure a node, or any Kafka broker, through its Kafka port
    Bench(bench::BenchArgs),
    /// Check a data directory that no node uses, down to every checksum
    Verify(verify::VerifyArgs),
    /// List and explain configuration keys
    Config(config_cmd::ConfigArgs),
}

/// What every admin command takes.
#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// The node's HTTP address
    #[arg(long, value_name = "HOST:PORT", default_value = SERVER_DEFAULT, global = true)]
    pub server: String,
    /// Print the node's answer as it is (JSON)
    #[arg(long, global = true)]
    pub json: bool,
}

/// Runs the program.
pub fn main() -> ExitCode {
    quiet_store_panics();
    let cli = Cli::parse();
    let (format, outcome) = match cli.command {
        Command::Serve(args) => (Format::Text, serve::run(args)),
        Command::Topics(args) => (Format::json(args.admin.json), topics::run(args)),
        Command::Ranges(args) => (Format::json(args.admin.json), ranges::run(args)),
        Command::Groups(args) => (Format::json(args.json), groups::run(args)),
        Command::Operations(args) => (Format::json(args.admin.json), operations::run(args)),
        Command::Cluster(args) => (Format::json(args.admin.json), topics::run_cluster(args)),
        Command::Demo(args) => (Format::json(args.json), demo::run(args)),
        Command::Bench(args) => (Format::json(args.json), bench::run(args)),
        Command::Verify(args) => (Format::json(args.json), verify::run(args)),
        Command::Config(args) => (Format::json(args.json), config_cmd::run(args)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(format);
            failure.exit.into()
        }
    }
}

/// The embedded store of control state panics on some damaged files; core catches that and reports the damage, so the
/// panic itself is no news to anybody. All others are shown as always.
fn quiet_store_panics() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|at| at.file().contains("/redb-")) {
            shown(panic);
        }
    }));
}

/// Splits `KEY=VALUE`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// Writes to stdout. A reader that went away (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("stdout", format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Waits for `answer` and says so on a terminal; elsewhere nothing is shown.
pub fn waiting<T>(what: &str, answer: impl FnOnce() -> T) -> T {
    let spinner = indicatif::ProgressBar::new_spinner();
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
        spinner.set_style(style);
    }
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    let answer = answer();
    spinner.finish_and_clear();
    answer
}

/// A runtime for a command that only waits for answers.
pub fn small_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed("runtime", format!("cannot start the async runtime: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn key_value_pairs_need_a_key_and_keep_everything_after_the_first_equals_sign() {
        assert_eq!(key_value("a.b = c=d"), Ok(("a.b".to_owned(), "c=d".to_owned())));
        assert_eq!(key_value("a="), Ok(("a".to_owned(), String::new())));
        assert!(key_value("=x").is_err());
        assert!(key_value("x").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_told_by_what_it_is() {
        let refused = |arguments: &[&str]| {
            Cli::try_parse_from(["rangeway"].iter().chain(arguments)).unwrap_err().to_string()
        };
        let itself = refused(&["ranges", "merge", "t", "--ranges", "2,2"]);
        assert!(itself.contains("does not merge with itself"), "{itself}");
        assert!(
            Cli::try_parse_from(["rangeway", "ranges", "split", "t", "--range", "0", "--at", "-1"]).is_ok()
        );
        assert!(
            Cli::try_parse_from(["rangeway", "serve", "--node-id", "-5"]).is_ok(),
            "the setting says its bounds"
        );
    }

    #[test]
    fn what_is_not_built_yet_is_not_offered() {
        for absent in ["--cluster", "--join"] {
            assert!(Cli::try_parse_from(["rangeway", "serve", absent, "x"]).is_err(), "{absent} is offered");
        }
        assert!(Cli::try_parse_from(["rangeway", "ranges", "abandon", "t"]).is_err());
    }
}
