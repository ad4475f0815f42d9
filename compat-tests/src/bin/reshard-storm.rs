//! `reshard-storm`: runs a command while the ranges of a running broker split and merge, and passes its exit code on.

use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Parser;
use rangeway_compat_tests::reshard;

/// Runs a command while all ranges of a broker split and merge without rest, its own topics' too. Fails with the command, or when the
/// broker answers a split or merge as it should not.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the broker's HTTP door is
    #[arg(long, value_name = "HOST:PORT")]
    http: SocketAddr,
    /// Decides what is split and merged; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Pause between two splits or merges at most, ms
    #[arg(long, default_value_t = 50)]
    pause_ms: u64,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    eprintln!("seed {seed}");
    let ran = reshard::amid(arguments.http, seed, arguments.pause_ms, || {
        let (program, rest) = arguments.command.split_first().context("a command")?;
        let status =
            Command::new(program).args(rest).status().with_context(|| format!("starting {program}"))?;
        ensure!(status.success(), "{program} ended with {status}");
        Ok(())
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reshard-storm: {error:#}");
            ExitCode::FAILURE
        }
    }
}
