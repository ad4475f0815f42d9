//! `coordinator-cost`: commits of offsets and transactions, this broker and the reference in turns.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rangeway_compat_tests::cost::coordinators::{self, Plan};

/// Measures commits of offsets and transactions per second and per CPU-second of the broker, beside the reference broker in the same run. Wants
/// a quiet machine, release builds, and `compat-tests/install reference`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Connections, each with a group or a transactional id of its own
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Partitions of each commit and of each transaction
    #[arg(long, default_value_t = 10)]
    partitions: i32,
    /// Length of a round, s
    #[arg(long, default_value_t = 5.0)]
    round_s: f64,
    /// Rounds of each broker, after one to warm up
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Settings of the broker
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut settings = Vec::new();
    for setting in &arguments.settings {
        let Some((key, value)) = setting.split_once('=') else {
            eprintln!("--set {setting}: give it as KEY=VALUE");
            return ExitCode::from(2);
        };
        settings.push((key.to_owned(), value.to_owned()));
    }
    let plan = Plan {
        connections: arguments.connections,
        partitions: arguments.partitions,
        round: Duration::from_secs_f64(arguments.round_s),
        rounds: arguments.rounds,
        settings,
    };
    match coordinators::run(&plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coordinator-cost: {error:#}");
            ExitCode::FAILURE
        }
    }
}
