//! `compat-matrix [SUITE]...`: runs the clients' suites against this workspace's broker and against the reference, and writes
//! `docs/compatibility.md` from what both came to. With names only these suites' sections are written anew. With
//! `RANGEWAY_COMPAT_RECORD` what the reference passes is written to each `expected.list` as well. A run that was broken off goes on with
//! what is in the folder that `RANGEWAY_COMPAT_RESULTS` named: a suite whose report is there does not run again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use rangeway_compat_tests::matrix::{self, Section};
use rangeway_compat_tests::suite::folder;

fn main() -> Result<ExitCode> {
    let all = matrix::suites()?;
    let named: BTreeSet<String> = std::env::args().skip(1).collect();
    ensure!(named.is_subset(&all), "suites are {all:?}");
    let wanted = if named.is_empty() { &all } else { &named };
    let home = tempfile::tempdir()?;
    let kept = std::env::var_os("RANGEWAY_COMPAT_RESULTS").filter(|folder| !folder.is_empty());
    // The tests run in another folder.
    let results = kept.map_or_else(|| Ok(home.path().to_owned()), std::path::absolute)?;
    let sides = [results.join("rangeway"), results.join("reference")];
    for (side, reference) in sides.iter().zip(["", "1"]) {
        fs::create_dir_all(side)?;
        let missing: Vec<&String> = wanted.iter().filter(|suite| !side.join(suite).exists()).collect();
        if !missing.is_empty() {
            run(side, reference, &missing)?;
        }
    }
    let written = fs::read_to_string(matrix::path()).unwrap_or_default();
    let mut sections = matrix::parse(&written)?;
    let mut whole = true;
    for suite in wanted {
        match (matrix::report(&sides[0], suite)?, matrix::report(&sides[1], suite)?) {
            (Some(ours), Some(theirs)) => {
                let expected = fs::read_to_string(folder(suite).join("expected.list"))?;
                sections.insert(suite.clone(), Section::of(matrix::pin(suite)?, &expected, [&ours, &theirs]));
            }
            _ => {
                eprintln!("{suite}: it did not run against both brokers, its section stays as it was");
                whole = false;
            }
        }
    }
    sections.retain(|name, _| all.contains(name));
    for suite in &all {
        if !sections.contains_key(suite) {
            let expected = fs::read_to_string(folder(suite).join("expected.list"))?;
            sections.insert(suite.clone(), Section::unmeasured(matrix::pin(suite)?, &expected));
        }
    }
    fs::write(matrix::path(), matrix::render(&sections, &matrix::reference_version()?)?)?;
    let checked = matrix::check(&fs::read_to_string(matrix::path())?);
    if let Err(wrong) = &checked {
        eprintln!("{wrong:#}");
    }
    Ok(if whole && checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests that run suites; those that fail are told by their reports.
fn run(results: &Path, reference: &str, suites: &[&String]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tests = Command::new(cargo);
    tests.args(["test", "-p", "rangeway-compat-tests", "--features", "rdkafka", "--test", "it"]);
    tests.args(["--", "--nocapture"]);
    // A test that runs a suite has its name in its own.
    tests
        .args(suites.iter().map(|name| format!("{}_", name.replace('-', "_"))))
        .args(["--skip", "once::", "--skip", "order::"]);
    tests.env("RANGEWAY_COMPAT_RESULTS", results).env("RANGEWAY_COMPAT_REFERENCE", reference);
    tests.env_remove("RANGEWAY_COMPAT_RESHARD");
    if reference.is_empty() {
        tests.env_remove("RANGEWAY_COMPAT_RECORD");
    }
    tests.status().context("running cargo")?;
    Ok(())
}
