//! `order`: real producers and readers on one topic whose ranges split and merge all the while, and a verdict.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::order::{self, Plan, Programs};

/// Shows that no client notices splits and merges: nothing out of order, missing or doubled, offsets dense, groups where they
/// were, no rebalance, no failed send.
#[derive(Debug, Parser)]
struct Arguments {
    /// Records of all producers together
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Splits and merges at least; the producers keep pace with them. The reference broker has none: give 0
    #[arg(long, default_value_t = 500)]
    reshards: u64,
    /// Decides keys, splits and merges; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Limit of the whole run, s
    #[arg(long, default_value_t = 3_600)]
    seconds_max: u64,
    /// Partitions of the topic
    #[arg(long, default_value_t = 64)]
    partitions: i32,
    /// Different keys
    #[arg(long, default_value_t = 2_000)]
    keys: u32,
    /// Size of a value at least
    #[arg(long, default_value_t = 64)]
    value_bytes: u32,
    /// Pause between two splits or merges at most, ms
    #[arg(long, default_value_t = 200)]
    reshard_pause_ms: u64,
    /// Records a second that the late reader reads while there are producers
    #[arg(long, default_value_t = 5_000)]
    lag_rate: u64,
    /// Settings of the broker
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(missing) = Programs::missing() {
        eprintln!("order: {}; install: {}", missing.what, missing.install);
        return ExitCode::from(2);
    }
    let mut settings = Vec::new();
    for setting in &arguments.settings {
        let Some((key, value)) = setting.split_once('=') else {
            eprintln!("--set {setting}: give it as KEY=VALUE");
            return ExitCode::from(2);
        };
        settings.push((key.to_owned(), value.to_owned()));
    }
    let plan = Plan {
        kind: Kind::from_env(),
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        records: arguments.records,
        reshards: arguments.reshards,
        reshard_pause_ms: arguments.reshard_pause_ms,
        partitions: arguments.partitions,
        keys: arguments.keys,
        value_bytes: arguments.value_bytes,
        lag_rate: arguments.lag_rate,
        limit: Duration::from_secs(arguments.seconds_max),
        settings,
    };
    println!("seed {}", plan.seed);
    match order::run(&plan) {
        Ok(summary) => {
            print!("{summary}");
            if summary.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("order: {error:#}");
            ExitCode::FAILURE
        }
    }
}
