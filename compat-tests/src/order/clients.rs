//! The programs of real client libraries that a test talks with by lines, and one of them as a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};

use super::report::Report;
use crate::broker::installed;
use crate::java;
use crate::suite::{folder, on_path};

const STDERR_LINES_SHOWN: usize = 10;

/// Which client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// librdkafka, through confluent-kafka.
    Librdkafka,
    /// kafka-clients.
    Java,
}

/// Where the clients are.
#[derive(Clone, Debug)]
pub struct Programs {
    python: PathBuf,
    class_path: String,
    /// The program for librdkafka, and the class for Java.
    names: (&'static str, &'static str),
}

/// A client that is not installed.
#[derive(Clone, Debug)]
pub struct Missing {
    /// What is not there.
    pub what: String,
    /// The command that installs it.
    pub install: &'static str,
}

impl Programs {
    /// Whether all that the proof drives is installed.
    pub fn missing() -> Option<Missing> {
        let home = installed();
        if !python().is_file() {
            let what = format!("no confluent-kafka in {}", home.display());
            return Some(Missing { what, install: "compat-tests/install confluent-kafka" });
        }
        if !on_path("javac") || !home.join("java/libs").is_dir() {
            let what = "no Java 17 with javac, or no kafka-clients".to_owned();
            let install = "apt-get install openjdk-17-jdk maven && compat-tests/install java";
            return Some(Missing { what, install });
        }
        None
    }

    /// Finds them, of these names in `clients/confluent-kafka` and `clients/java`, and compiles the Java one.
    pub fn prepare(script: &'static str, class: &'static str) -> Result<Self> {
        Ok(Self { python: python(), class_path: java::compile("java", class)?, names: (script, class) })
    }

    fn command(&self, library: Library) -> Command {
        let (script, class) = self.names;
        match library {
            Library::Librdkafka => {
                let mut command = Command::new(&self.python);
                command.args(["-u", "-B", script]).current_dir(folder("confluent-kafka"));
                command
            }
            Library::Java => {
                let mut command = Command::new("java");
                command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                command.arg("-Dlog4j2.configurationFile=log4j2.xml").args(["-cp", &self.class_path, class]);
                command.current_dir(folder("java"));
                command
            }
        }
    }
}

/// The interpreter that has confluent-kafka.
pub(crate) fn python() -> PathBuf {
    installed().join("confluent-kafka/venv/bin/python")
}

/// A client that runs, or ran.
#[derive(Debug)]
pub struct Client {
    /// For people.
    pub name: String,
    /// What it said until now.
    pub report: Report,
    /// Whether its output has ended.
    pub ended: bool,
    child: Child,
    input: ChildStdin,
    stderr_path: PathBuf,
}

impl Client {
    /// Starts one; what it says comes to `lines` with its number, and `None` at its end.
    pub fn start(
        programs: &Programs,
        library: Library,
        (number, name): (usize, &str),
        arguments: &[String],
        logs: &Path,
        lines: Sender<(usize, Option<String>)>,
    ) -> Result<Self> {
        let stderr = logs.join(format!("{number}-{name}.log"));
        let mut command = programs.command(library);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&stderr)?);
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        let input = child.stdin.take().context("the client has no stdin")?;
        let output = BufReader::new(child.stdout.take().context("the client has no stdout")?);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if lines.send((number, Some(line))).is_err() {
                    return;
                }
            }
            // Nobody listens any more when the run is over.
            let _ = lines.send((number, None));
        });
        Ok(Self {
            name: name.to_owned(),
            report: Report::default(),
            ended: false,
            child,
            input,
            stderr_path: stderr,
        })
    }

    /// Writes a line to its stdin. One that has ended hears nothing, and is found out by what it did not say.
    pub fn tell(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}");
    }

    /// All that it wrote to stderr.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr_path).unwrap_or_default()
    }

    /// The last lines of its stderr.
    pub fn complaints(&self) -> String {
        let text = self.stderr();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(STDERR_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
