//! `storm`: kills a broker under load at random instants and judges what is left.

use std::process::ExitCode;

use clap::Parser;
use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::storm::{self, Plan, Reshard};

/// Kills a broker under load at random instants, restarts it, and checks that nothing acknowledged was lost, doubled,
/// reordered or renumbered.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often to kill
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// Decides the load and the instants; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Producers: two of three idempotent, one plain
    #[arg(long, default_value_t = 6)]
    producers: u32,
    /// Bytes a second of each producer at most
    #[arg(long, default_value_t = 3_000_000)]
    rate: u64,
    /// Data directories of the broker
    #[arg(long, default_value_t = 1)]
    disks: usize,
    /// Drive of the topics, such as 'quorum(3, write=2)'
    #[arg(long, value_name = "EXPR")]
    drive: Option<String>,
    /// Take the last disk away before every other kill, for a life of the broker; needs a drive that goes on without it
    #[arg(long)]
    lose_disk: bool,
    /// Settings of the broker, replacing the small sizes that a storm sets by default
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Fail when no segment was rolled or no checkpoint written; from 50 kills on, no extent recycled or rewritten either
    #[arg(long)]
    require_roll: bool,
    /// Split and merge ranges all the while; with --kills 0 until so many are done, and then no client may notice anything
    #[arg(long, value_name = "LEAST", num_args = 0..=1, default_missing_value = "1")]
    reshard: Option<u64>,
    /// Pause between two splits or merges at most, ms
    #[arg(long, default_value_t = 30)]
    reshard_pause_ms: u64,
    /// Leave out `rangeway verify` at the end
    #[arg(long)]
    no_verify: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let kind = Kind::from_env();
    let mut settings = storm::small_sizes(kind);
    for setting in &arguments.settings {
        let Some((key, value)) = setting.split_once('=') else {
            eprintln!("--set {setting}: give it as KEY=VALUE");
            return ExitCode::from(2);
        };
        settings.retain(|(known, _)| known != key);
        settings.push((key.to_owned(), value.to_owned()));
    }
    settings.extend(arguments.drive.map(|drive| ("drive".to_owned(), drive)));
    let plan = Plan {
        kind,
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        kills: arguments.kills,
        producers: arguments.producers,
        rate: arguments.rate,
        disks: arguments.disks,
        lose_disk: arguments.lose_disk,
        settings,
        require_roll: arguments.require_roll,
        verify: !arguments.no_verify,
        reshard: arguments.reshard.map(|least| Reshard { least, pause_ms: arguments.reshard_pause_ms }),
    };
    println!("seed {}", plan.seed);
    match storm::run(&plan) {
        Ok(summary) => {
            println!("{summary}");
            if summary.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("storm: {error:#}");
            ExitCode::FAILURE
        }
    }
}
