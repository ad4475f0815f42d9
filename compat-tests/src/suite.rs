//! Runs the program of a foreign client against a broker and compares its lines with the ones expected.
//!
//! The program is given the bootstrap address as its last argument and speaks lines on stdout: `ok NAME`,
//! `FAIL NAME: why`, and `RESTART`, upon which the broker is restarted and one line written to the program's stdin. Other
//! lines are for people. A line whose name ends with `-over-broker-restart` or `-after-broker-restart` needs a `RESTART` of its own. `expected.list` in the client's folder names the lines that must be ok; it is written from
//! the reference broker's result and works as a ratchet: a line more is a failure too, until it is listed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::broker::{Broker, Kind, source};
use crate::reshard;

/// How long one client's program may take.
const PROGRAM_LIMIT: Duration = Duration::from_secs(1200);
const RESHARD_SEED: u64 = 16;

/// What the lines of one client came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Names of lines that passed.
    pub passed: BTreeSet<String>,
    /// Names of lines that failed, with what went wrong.
    pub failed: Vec<String>,
}

impl Report {
    /// Takes one line of output; lines that are neither ok nor FAIL are ignored.
    pub fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("ok ") {
            self.passed.insert(name.split_whitespace().next().unwrap_or_default().to_owned());
        } else if let Some(failure) = line.strip_prefix("FAIL ") {
            self.failed.push(failure.to_owned());
        }
    }

    /// Reads what `to_string` wrote, or all that a program said.
    pub fn parse(lines: &str) -> Self {
        let mut report = Self::default();
        lines.lines().for_each(|line| report.line(line));
        report
    }

    /// What went wrong with the line of that name, if it failed.
    pub fn failure(&self, name: &str) -> Option<&str> {
        self.failed.iter().find(|failure| failure.split([':', ' ']).next() == Some(name)).map(String::as_str)
    }

    /// Errors: every line that failed, was expected and is missing, or passed without being expected.
    pub fn compare(&self, expected: &str) -> Result<()> {
        let expected = expected_lines(expected);
        let passed: BTreeSet<&str> = self.passed.iter().map(String::as_str).collect();
        let mut wrong: Vec<String> = self.failed.iter().map(|failure| format!("FAIL {failure}")).collect();
        wrong.extend(
            expected
                .difference(&passed)
                .filter(|name| self.failure(name).is_none())
                .map(|name| format!("never came to {name}")),
        );
        wrong.extend(
            passed.difference(&expected).map(|name| format!("{name} passed and is not in expected.list")),
        );
        ensure!(wrong.is_empty(), "{} of {} lines:\n{}", wrong.len(), expected.len(), wrong.join("\n"));
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.passed.iter().try_for_each(|name| writeln!(f, "ok {name}"))?;
        self.failed.iter().try_for_each(|failure| writeln!(f, "FAIL {}", failure.replace('\n', " ")))
    }
}

/// Names in an `expected.list`, without comments.
pub fn expected_lines(list: &str) -> BTreeSet<&str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Folder of a client's program, pin and expectations.
pub fn folder(client: &str) -> PathBuf {
    source().join("clients").join(client)
}

/// Starts a broker for suites: it looks often for what is to be compacted.
pub fn broker(kind: Kind) -> Result<Broker> {
    let often = match kind {
        Kind::Rangeway => ("cleaner.backoff.ms", "500ms"),
        Kind::Reference => ("log.cleaner.backoff.ms", "500"),
    };
    Broker::start_for_suites(kind, &[often])
}

/// Checks a report against the client's `expected.list`, or writes that list when `RANGEWAY_COMPAT_RECORD` is set. Where
/// `RANGEWAY_COMPAT_RESULTS` names a folder the report is kept there, for the page that shows both brokers side by side.
///
/// Only the reference broker's result is ever written.
pub fn settle(client: &str, kind: Kind, report: &Report) -> Result<()> {
    if let Some(results) = std::env::var_os("RANGEWAY_COMPAT_RESULTS").filter(|folder| !folder.is_empty()) {
        let path = PathBuf::from(results).join(client);
        fs::write(&path, report.to_string()).with_context(|| format!("writing {}", path.display()))?;
    }
    let path = folder(client).join("expected.list");
    if std::env::var_os("RANGEWAY_COMPAT_RECORD").is_some() {
        ensure!(kind == Kind::Reference, "expectations are recorded from the reference broker only");
        ensure!(report.failed.is_empty(), "the reference failed: {:?}", report.failed);
        let names: Vec<&str> = report.passed.iter().map(String::as_str).collect();
        return fs::write(path, names.join("\n") + "\n").context("writing expected.list");
    }
    let expected = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    report.compare(&expected).with_context(|| client.to_owned())
}

/// Whether a program of that name is on the path.
pub fn on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Runs a client's program to its end against a broker of its own and settles its lines.
pub fn run(client: &str, program: Command) -> Result<()> {
    run_within(client, program, |http, suite| amid_reshards(http, suite))
}

/// The same while the ranges of all topics split and merge, with pauses of `pause_ms` at most; the reference has none.
pub fn run_amid_reshards(client: &str, program: Command, pause_ms: u64) -> Result<()> {
    run_within(client, program, |http, suite| match Kind::from_env() {
        Kind::Rangeway => reshard::amid(http, RESHARD_SEED, pause_ms, suite),
        Kind::Reference => suite(),
    })
}

/// Builds the Go program in the client's folder from the modules that are there already.
pub fn build_go(client: &str, program: &Path) -> Result<()> {
    let mut build = Command::new("go");
    build
        .args(["build".as_ref(), "-o".as_ref(), program.as_os_str(), ".".as_ref()])
        .current_dir(folder(client));
    let done = build.env("GOFLAGS", "-mod=readonly").stdin(Stdio::null()).output().context("running go")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// `within` is given the HTTP door of the broker, and runs what it is given once.
fn run_within(
    client: &str,
    mut program: Command,
    within: impl FnOnce(SocketAddr, &mut dyn FnMut() -> Result<Report>) -> Result<Report>,
) -> Result<()> {
    let kind = Kind::from_env();
    let mut broker = broker(kind)?;
    program.arg(broker.address().to_string());
    program.current_dir(folder(client));
    let http = broker.http_address();
    let report = within(http, &mut || converse(&mut program, &mut broker));
    let report = report.with_context(|| format!("running {client}"))?;
    let settled = settle(client, kind, &report);
    if settled.is_err() {
        eprintln!("the broker's last lines:\n{}", broker.log_end());
    }
    settled?;
    broker.stop()
}

/// Runs a suite; where `RANGEWAY_COMPAT_RESHARD` is not empty, while the ranges of all topics split and merge, with pauses of so many
/// ms at most.
pub fn amid_reshards<T>(http: SocketAddr, suite: impl FnOnce() -> Result<T>) -> Result<T> {
    let pause_ms = std::env::var("RANGEWAY_COMPAT_RESHARD").unwrap_or_default();
    if pause_ms.is_empty() || Kind::from_env() == Kind::Reference {
        return suite();
    }
    let pause_ms = pause_ms.parse().context("RANGEWAY_COMPAT_RESHARD")?;
    reshard::amid(http, RESHARD_SEED, pause_ms, suite)
}

fn converse(program: &mut Command, broker: &mut Broker) -> Result<Report> {
    let child =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the client")?;
    let ended = Arc::new(AtomicBool::new(false));
    let mut child = EndsWithItsSuite { child, ended: Arc::clone(&ended) };
    let child = &mut child.child;
    let mut input = child.stdin.take().context("the client has no stdin")?;
    let output = BufReader::new(child.stdout.take().context("the client has no stdout")?);
    let watchdog = thread::spawn({
        let (ended, pid, began) = (Arc::clone(&ended), Pid::from_child(child), Instant::now());
        move || {
            while !ended.load(Ordering::Acquire) {
                if began.elapsed() > PROGRAM_LIMIT {
                    // It may have ended just now.
                    let _ = kill_process(pid, Signal::KILL);
                    return;
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut report = Report::default();
    let mut restarted = false;
    for line in output.lines() {
        let line = line?;
        println!("{line}");
        if line == "RESTART" {
            broker.stop()?;
            broker.restart()?;
            writeln!(input, "RESTARTED")?;
            restarted = true;
        } else if line.starts_with("ok ") || line.starts_with("FAIL ") {
            report.line(&proven(&line, restarted));
            restarted = false;
        }
    }
    let status = child.wait()?;
    ended.store(true, Ordering::Release);
    if watchdog.join().is_err() {
        bail!("the watchdog panicked");
    }
    if !status.success() && report.failed.is_empty() {
        report.failed.push(format!("program: ended with {status}"));
    }
    Ok(report)
}

/// A line about a restart proves nothing when the broker was not restarted since the line before it.
fn proven(line: &str, restarted: bool) -> Cow<'_, str> {
    let name = line.strip_prefix("ok ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let about = ["-over-broker-restart", "-after-broker-restart"].iter().any(|end| name.ends_with(end));
    if about && !restarted {
        return format!("FAIL {name}: the broker was not restarted").into();
    }
    line.into()
}

/// A client's program, killed when the suite ends before it does, as when the broker did not come back.
struct EndsWithItsSuite {
    child: Child,
    /// Nothing else may kill it from here on: its number is another's.
    ended: Arc<AtomicBool>,
}

impl Drop for EndsWithItsSuite {
    fn drop(&mut self) {
        // Nobody is left to hear about a process that cannot be killed; one that has ended is not.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[&str]) -> Report {
        let mut report = Report::default();
        lines.iter().for_each(|line| report.line(line));
        report
    }

    #[test]
    fn a_line_about_a_restart_fails_without_one() {
        for line in ["ok exactly-once-over-broker-restart 3.1s", "ok group-rest-after-broker-restart"] {
            assert_eq!(proven(line, true), line);
            assert!(proven(line, false).starts_with("FAIL "), "{line}");
        }
        for line in ["ok records-survive-broker-restart 1.0s", "ok admin", "FAIL x-over-broker-restart: y"] {
            assert_eq!(proven(line, false), line);
        }
    }

    #[test]
    fn lines_as_expected_pass() {
        assert!(report(&["ok a 0.1s", "talk", "ok b"]).compare("# head\na\nb\n").is_ok());
    }

    #[test]
    fn a_failed_a_missing_and_an_unlisted_line_are_each_named() {
        let told =
            format!("{:#}", report(&["ok a", "FAIL b: too late", "ok d"]).compare("a\nb\nc\n").unwrap_err());
        for part in ["FAIL b: too late", "never came to c", "d passed and is not in expected.list"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains("never came to b"), "{told}");
    }
}
