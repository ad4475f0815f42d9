//! One client program of the exactly-once proof as a process.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::java;
use crate::order::python;
use crate::suite::folder;

/// What to run.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    class_path: String,
}

/// Which client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Librdkafka,
    Java,
}

impl Programs {
    pub(super) fn prepare() -> Result<Self> {
        Ok(Self { class_path: java::compile("java", "Once")? })
    }

    fn command(&self, library: Library) -> Command {
        match library {
            Library::Librdkafka => {
                let mut command = Command::new(python());
                command.args(["-u", "-B", "once.py"]).current_dir(folder("confluent-kafka"));
                command
            }
            Library::Java => {
                let mut command = Command::new("java");
                command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                command.arg("-Dlog4j2.configurationFile=log4j2.xml").args(["-cp", &self.class_path, "Once"]);
                command.current_dir(folder("java"));
                command
            }
        }
    }
}

/// What a program said, with its number; `None`: its end.
pub(super) type Line = (usize, Option<String>);

/// A program that runs, or ran.
#[derive(Debug)]
pub(super) struct Process {
    /// Whether its output has ended.
    pub(super) ended: bool,
    child: Child,
    input: ChildStdin,
}

impl Process {
    /// Starts one; what it says comes to `lines` with its number, and `None` at its end.
    pub(super) fn start(
        programs: &Programs,
        library: Library,
        number: usize,
        arguments: &[String],
        logs: &Path,
        lines: Sender<Line>,
    ) -> Result<Self> {
        let stderr = File::create(logs.join(format!("{number}.log")))?;
        let mut said = File::create(logs.join(format!("{number}.out")))?;
        let mut command = programs.command(library);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().with_context(|| format!("starting {library:?}"))?;
        let input = child.stdin.take().context("the client has no stdin")?;
        let output = BufReader::new(child.stdout.take().context("the client has no stdout")?);
        thread::spawn(move || {
            let began = Instant::now();
            for line in output.lines().map_while(Result::ok) {
                // A log that is not written loses nothing of the verdict.
                let _ = writeln!(said, "{:.3} {line}", began.elapsed().as_secs_f64());
                if lines.send((number, Some(line))).is_err() {
                    return;
                }
            }
            // Nobody listens any more when the run is over.
            let _ = lines.send((number, None));
        });
        Ok(Self { ended: false, child, input })
    }

    /// Tells it to stop. One that has ended hears nothing.
    pub(super) fn stop(&mut self) {
        let _ = writeln!(self.input, "stop");
    }

    /// SIGKILL; it is gone when this returns.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, as a rule.
        let _ = self.kill();
    }
}
