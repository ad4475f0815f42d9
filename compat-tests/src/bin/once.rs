//! `once`: consume, transform, produce by real clients, exactly once, while they and the broker are killed.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::once::{self, Plan};
use rangeway_compat_tests::order::Programs;
use rangeway_compat_tests::storm;

/// Shows that transactions are exactly once: whatever is killed and however ranges split and merge, what is committed of the
/// output is the input, each record once, nothing of what was aborted is seen, and no transaction hangs.
#[derive(Debug, Parser)]
struct Arguments {
    /// Records to copy
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// SIGKILLs of the broker (two of five) and of copiers
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Pause between two kills at most, ms
    #[arg(long, default_value_t = 2_000)]
    kill_pause_ms: u64,
    /// Decides what is killed and aborted, splits and merges; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Partitions of both topics
    #[arg(long, default_value_t = 12)]
    partitions: i32,
    /// Leave ranges alone. The reference broker has none
    #[arg(long)]
    no_reshard: bool,
    /// Limit of the whole run, s
    #[arg(long, default_value_t = 3_600)]
    seconds_max: u64,
    /// Settings of the broker, replacing the small sizes that are set by default
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(missing) = Programs::missing() {
        eprintln!("once: {}; install: {}", missing.what, missing.install);
        return ExitCode::from(2);
    }
    let kind = Kind::from_env();
    let mut settings = Vec::new();
    for setting in &arguments.settings {
        let Some((key, value)) = setting.split_once('=') else {
            eprintln!("--set {setting}: give it as KEY=VALUE");
            return ExitCode::from(2);
        };
        settings.push((key.to_owned(), value.to_owned()));
    }
    let plan = Plan {
        kind,
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        records: arguments.records,
        partitions: arguments.partitions,
        kills: arguments.kills,
        kill_pause_ms: arguments.kill_pause_ms,
        reshard: kind == Kind::Rangeway && !arguments.no_reshard,
        limit: Duration::from_secs(arguments.seconds_max),
        settings: if settings.is_empty() { storm::small_sizes(kind) } else { settings },
    };
    println!("seed {}", plan.seed);
    match once::run(&plan) {
        Ok(summary) => {
            print!("{summary}");
            if summary.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("once: {error:#}");
            ExitCode::FAILURE
        }
    }
}
