//! The `rangeway` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    rangeway_gateway::cli::main()
}
