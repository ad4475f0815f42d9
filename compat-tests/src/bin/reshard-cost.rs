//! `reshard-cost`: what splits and merges cost, against an undisturbed control in the same run.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rangeway_compat_tests::cost::{self, Plan};

/// Measures pauses of producers, what other ranges notice, throughput around a split, metadata of a split, and what a topic is like after a
/// thousand of them. Wants a quiet machine and release builds.
#[derive(Debug, Parser)]
struct Arguments {
    /// Partitions of the topic
    #[arg(long, default_value_t = 64)]
    partitions: i32,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Records of a batch
    #[arg(long, default_value_t = 100)]
    records: usize,
    /// Connections that produce
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Pairs of windows at full load, with and without a split or merge
    #[arg(long, default_value_t = 8)]
    pairs: u32,
    /// Length of such a window, s
    #[arg(long, default_value_t = 10.0)]
    window_s: f64,
    /// Splits and merges of which pauses are measured
    #[arg(long, default_value_t = 200)]
    pauses: u32,
    /// Load meanwhile, as a part of full load
    #[arg(long, default_value_t = 0.5)]
    share: f64,
    /// Splits and merges of the topic that is compared with a fresh one; 0 leaves that out
    #[arg(long, default_value_t = 1_000)]
    worn: u32,
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
        partitions: arguments.partitions,
        value_bytes: arguments.value_bytes,
        records: arguments.records,
        connections: arguments.connections,
        pairs: arguments.pairs,
        window: Duration::from_secs_f64(arguments.window_s),
        pauses: arguments.pauses,
        share: arguments.share,
        settings: settings.clone(),
    };
    let measured = cost::run(&plan).and_then(|()| match arguments.worn {
        0 => Ok(()),
        reshards => cost::worn(reshards, &settings),
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reshard-cost: {error:#}");
            ExitCode::FAILURE
        }
    }
}
