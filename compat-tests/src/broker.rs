//! A broker as a real process: rangeway, or the reference broker, on ports of its own with a data directory of its own.
//!
//! It can be stopped, killed at any instant, and started again on the same data and the same ports.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ports;

/// How long a clean stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How long a start may take, recovery included.
const START_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);
const LOG_LINES_SHOWN: usize = 40;

/// Which broker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The one under test.
    Rangeway,
    /// Apache Kafka, whose results the expectations are written from.
    Reference,
}

impl Kind {
    /// What `RANGEWAY_COMPAT_REFERENCE` asks for: anything but empty means the reference.
    pub fn from_env() -> Self {
        match std::env::var_os("RANGEWAY_COMPAT_REFERENCE") {
            Some(value) if !value.is_empty() => Self::Reference,
            _ => Self::Rangeway,
        }
    }
}

/// A broker process and all that it keeps.
#[derive(Debug)]
pub struct Broker {
    kind: Kind,
    program: PathBuf,
    home: TempDir,
    kafka_port: u16,
    /// HTTP port, or the controller's for the reference.
    second_port: u16,
    settings: Vec<(String, String)>,
    /// Data directories.
    disks: usize,
    /// The reference's Java machine starts quickly and serves slowly.
    hasty: bool,
    child: Option<Child>,
    starts: u32,
    started_at: Instant,
}

impl Broker {
    /// Prepares a broker with these settings (`--set key=value`, or lines of the reference's properties).
    pub fn prepare(kind: Kind, settings: &[(&str, &str)]) -> Result<Self> {
        let program = match kind {
            Kind::Rangeway => rangeway_program()?,
            Kind::Reference => reference_libs()?,
        };
        let broker = Self {
            kind,
            program,
            home: tempfile::Builder::new().prefix("rangeway-compat-").tempdir()?,
            kafka_port: ports::free()?,
            second_port: ports::free()?,
            settings: settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            disks: 1,
            hasty: false,
            child: None,
            starts: 0,
            started_at: Instant::now(),
        };
        if kind == Kind::Reference {
            broker.format_reference()?;
        }
        Ok(broker)
    }

    /// As [`Broker::start`], with so many data directories; the reference has one.
    pub fn start_on(kind: Kind, disks: usize, settings: &[(&str, &str)]) -> Result<Self> {
        let mut broker = Self::prepare(kind, settings)?;
        broker.disks = disks.max(1);
        broker.spawn()?;
        broker.wait_ready()?;
        Ok(broker)
    }

    /// Prepares and starts one, and waits until it accepts clients.
    pub fn start(kind: Kind, settings: &[(&str, &str)]) -> Result<Self> {
        let mut broker = Self::prepare(kind, settings)?;
        broker.spawn()?;
        broker.wait_ready()?;
        Ok(broker)
    }

    /// As [`Broker::start`], for suites, which restart it often: most of what the reference does is to start. Not for measuring.
    pub fn start_for_suites(kind: Kind, settings: &[(&str, &str)]) -> Result<Self> {
        let mut broker = Self::prepare(kind, settings)?;
        broker.hasty = true;
        broker.spawn()?;
        broker.wait_ready()?;
        Ok(broker)
    }

    /// Starts the process and does not wait.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "the broker runs already");
        self.starts += 1;
        let mut command = match self.kind {
            Kind::Rangeway => self.rangeway_command(),
            Kind::Reference => self.reference_command(),
        };
        let stderr = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let out = File::create(self.out_path())?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(stderr).spawn();
        self.child = Some(child.with_context(|| format!("starting {}", self.program.display()))?);
        self.started_at = Instant::now();
        Ok(())
    }

    /// Waits until the started process accepts clients; answers the time since its start.
    pub fn wait_ready(&mut self) -> Result<Duration> {
        loop {
            if self.is_ready()? {
                return Ok(self.started_at.elapsed());
            }
            if let Some(status) = self.exited()? {
                bail!("the broker ended with {status} before it was ready\n{}", self.log_end());
            }
            if self.started_at.elapsed() > START_LIMIT {
                bail!("the broker was not ready in {START_LIMIT:?}\n{}", self.log_end());
            }
            thread::sleep(POLL);
        }
    }

    /// SIGTERM, then waits for the end, which must be a clean one.
    pub fn stop(&mut self) -> Result<()> {
        let Some(child) = self.child.as_mut() else { return Ok(()) };
        let pid = Pid::from_child(child);
        kill_process(pid, Signal::TERM)?;
        let asked = Instant::now();
        while asked.elapsed() < STOP_LIMIT {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                // A JVM that ends on a signal says so in its exit code.
                let clean = status.success() || self.kind == Kind::Reference && status.code() == Some(143);
                ensure!(clean, "a clean stop ended with {status}\n{}", self.log_end());
                return Ok(());
            }
            thread::sleep(POLL);
        }
        self.kill()?;
        bail!("the broker did not stop within {STOP_LIMIT:?}\n{}", self.log_end())
    }

    /// Holds the process still, so that all that is sent meanwhile reaches it together, until [`Broker::go_on`].
    pub fn hold(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Ends [`Broker::hold`].
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("the broker does not run")?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// SIGKILL; the process is gone when this returns.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts again on the same data and ports and waits; answers how long that took.
    pub fn restart(&mut self) -> Result<Duration> {
        self.spawn()?;
        self.wait_ready()
    }

    /// The exit status, if the process has ended by itself.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Whether this process said that it is ready.
    pub fn is_ready(&self) -> Result<bool> {
        let said = fs::read_to_string(self.out_path())?;
        Ok(match self.kind {
            Kind::Rangeway => said.lines().any(|line| line.starts_with("rangeway ready ")),
            Kind::Reference => said.contains("Kafka Server started"),
        })
    }

    /// Where Kafka clients connect.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.kafka_port))
    }

    /// Which broker this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The first data directory.
    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// All data directories.
    pub fn disks(&self) -> Vec<PathBuf> {
        let more = (1..self.disks).map(|n| self.home.path().join(format!("data-{n}")));
        std::iter::once(self.data()).chain(more).collect()
    }

    /// What it wrote to stderr over all starts.
    pub fn log_path(&self) -> PathBuf {
        self.home.path().join("stderr.log")
    }

    /// The last lines that it logged, for error messages.
    pub fn log_end(&self) -> String {
        let mut log = fs::read_to_string(self.log_path()).unwrap_or_default();
        if self.kind == Kind::Reference {
            log.push_str(&fs::read_to_string(self.out_path()).unwrap_or_default());
        }
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// Keeps data and logs after the end and names the folder.
    pub fn keep(&mut self) -> &Path {
        self.home.disable_cleanup(true);
        self.home.path()
    }

    /// Body of an HTTP GET, such as `/metrics`. Errors also when the status is not 200.
    pub fn http_get(&self, path: &str) -> Result<String> {
        let (status, body) = crate::http::call(self.http_address(), "GET", path, "")?;
        ensure!(status == 200, "GET {path}: {status} {body}");
        Ok(body)
    }

    /// Where its HTTP door is, over all restarts.
    pub fn http_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.second_port))
    }

    /// The program, for commands that work on stopped data.
    pub fn program(&self) -> &Path {
        &self.program
    }

    fn out_path(&self) -> PathBuf {
        self.home.path().join(format!("stdout-{}.log", self.starts))
    }

    fn rangeway_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // Settings of the tests, and of whoever runs them, are not the broker's.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RANGEWAY_"))
        {
            command.env_remove(name);
        }
        command.arg("serve");
        for disk in self.disks() {
            command.arg("--data").arg(disk);
        }
        command.arg("--kafka").arg(format!("127.0.0.1:{}", self.kafka_port));
        command.arg("--http").arg(format!("127.0.0.1:{}", self.second_port));
        for (key, value) in &self.settings {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command
    }

    fn java(&self, heap: &str) -> Command {
        let mut command = Command::new("java");
        let log4j = self.home.path().join("log4j2.yaml");
        if self.hasty {
            command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        }
        command.arg(format!("-Xmx{heap}")).arg(format!("-Dlog4j2.configurationFile={}", log4j.display()));
        command.arg("-cp").arg(format!("{}/*", self.program.display()));
        command
    }

    fn reference_command(&self) -> Command {
        let mut command = self.java("512m");
        command.arg("kafka.Kafka").arg(self.properties_path());
        command
    }

    fn properties_path(&self) -> PathBuf {
        self.home.path().join("server.properties")
    }

    fn format_reference(&self) -> Result<()> {
        let (port, controller) = (self.kafka_port, self.second_port);
        let mut properties = format!(
            "process.roles=broker,controller\nnode.id=1\n\
             controller.quorum.voters=1@localhost:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://localhost:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             controller.listener.names=CONTROLLER\n\
             log.dirs={}\nnum.partitions=16\ndefault.replication.factor=1\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n\
             group.initial.rebalance.delay.ms=500\nbroker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n",
            self.data().display()
        );
        for (key, value) in &self.settings {
            properties.push_str(&format!("{key}={value}\n"));
        }
        fs::write(self.properties_path(), properties)?;
        fs::write(
            self.home.path().join("log4j2.yaml"),
            "Configuration:\n  Appenders:\n    Console: {name: OUT, PatternLayout: {pattern: \"[%d] %p %m (%c)%n\"}}\n  \
             Loggers:\n    Root: {level: INFO, AppenderRef: [{ref: OUT}]}\n",
        )?;
        let mut format = self.java("256m");
        format.args(["kafka.tools.StorageTool", "format", "-t", "cmFuZ2V3YXlyZWZlcmVuYw", "-c"]);
        let done = format.arg(self.properties_path()).output().context("running java")?;
        ensure!(done.status.success(), "formatting the reference: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Nobody is left to hear about a process that cannot be killed.
        let _ = self.kill();
    }
}

/// Folder of everything that `compat-tests/install` puts down.
pub fn installed() -> PathBuf {
    match std::env::var_os("RANGEWAY_COMPAT_HOME") {
        Some(home) => home.into(),
        None => build_folder().parent().map_or_else(|| "target".into(), Path::to_path_buf).join("compat"),
    }
}

/// Folder of `compat-tests` in the source tree.
pub fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the running test's or program's profile, such as `target/debug`.
fn build_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    folder.to_path_buf()
}

/// Whether there is a reference broker to run.
pub fn reference_is_installed() -> bool {
    reference_libs().is_ok()
}

fn reference_libs() -> Result<PathBuf> {
    let libs = installed().join("reference/libs");
    ensure!(libs.is_dir(), "the reference broker is not installed; run compat-tests/install reference");
    Ok(libs)
}

/// `RANGEWAY_BIN`, or the binary of this workspace, built once if need be.
fn rangeway_program() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(program) = std::env::var_os("RANGEWAY_BIN") {
        return std::path::absolute(program).context("RANGEWAY_BIN");
    }
    BUILT
        .get_or_init(|| build_rangeway().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|e| anyhow!(e))
}

fn build_rangeway() -> Result<PathBuf> {
    let folder = build_folder();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(source()).args(["build", "--quiet", "--workspace", "--bin", "rangeway"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().context("running cargo")?;
    ensure!(status.success(), "building rangeway ended with {status}");
    Ok(folder.join("rangeway"))
}
