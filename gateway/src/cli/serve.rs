//! `rangeway serve`: assembles a node, says when it is ready, stops it when asked.
//!
//! Order of starting: settings, logs, both ports (so that a taken port fails at once), recovery, Kafka clients. Until
//! recovery is done clients wait in the listen queue and `/readyz` answers 503.

use super::failure::{Failure, Format};
use super::key_value;
use crate::Codecs;
use crate::config::layers::{self, Origin, Setting};
use crate::config::{self, Loaded, LogFormat, Program};
use crate::connection;
use crate::http::{self, HttpState};
use crate::logs::{Apply, Levels};
use crate::shared::{Settings, Shared};
use clap::Args;
use rangeway_core::node::{Node, NodeOptions, StartError};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A clean stop takes at most so long.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Of which so long for requests in progress.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// `rangeway serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Settings come from --config FILE, then RANGEWAY_KEY__SUBKEY variables, then --set, then the flags \
    above; later ones win.\n`rangeway config list` shows all keys.\n\nExamples:\n  rangeway serve\n  \
    rangeway serve --data /disk1 --data /disk2 --drive 'quorum(2, write=2)'\n  \
    rangeway serve --kafka 0.0.0.0:9092 --advertise broker.example:9092"
)]
pub struct ServeArgs {
    /// Data directory, one per disk; the first also holds control state [default: ./rangeway-data]
    #[arg(long, value_name = "DIR")]
    data: Vec<PathBuf>,
    /// Take new, empty data directories as new disks although a disk that holds segments is missing: once, when that disk is lost
    #[arg(long)]
    accept_new_disks: bool,
    /// Where Kafka clients are served [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    kafka: Option<String>,
    /// Where administration, metrics and health are served [default: 127.0.0.1:9180]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Allow --http to be reachable from other machines: whoever reaches it may administer the node
    #[arg(long)]
    http_insecure: bool,
    /// Settings in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Number of this node, as clients see it [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    node_id: Option<i32>,
    /// Where Kafka clients are told to connect [default: the address by which they reached the node]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Rack or zone of this node
    #[arg(long, value_name = "RACK")]
    rack: Option<String>,
    /// Drive of topics that do not name one: memory, disk, quorum(3, write=2), striped(2, disk) [default: disk]
    #[arg(long, value_name = "EXPR")]
    drive: Option<String>,
    /// What is logged: a level, or target=level pairs [default: $RUST_LOG, else info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, value_name = "text|json")]
    log_format: Option<String>,
}

/// Runs a node until it is told to stop.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let settings = gather(&args)?;
    let mut loaded =
        config::load(&settings).map_err(|errors| Failure::usage("invalid_config", errors.join("\n")))?;
    if !args.data.is_empty() {
        loaded.program.data = args.data;
    }
    let levels = start_logs(&loaded.program)?;
    runtime()?.block_on(serve(loaded, args.accept_new_disks, levels))
}

/// All settings, weakest first.
fn gather(args: &ServeArgs) -> Result<Vec<Setting>, Failure> {
    let mut settings = Vec::new();
    if let Some(path) = &args.config {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::usage("config_unreadable", format!("{}: {e}", path.display())))?;
        settings.extend(layers::from_toml(&text, path).map_err(|e| Failure::usage("config_unreadable", e))?);
    }
    let variables =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    settings.extend(layers::from_env(variables));
    settings.extend(args.set.iter().map(layers::from_set));
    let flags = [
        ("kafka.bind", "--kafka", args.kafka.clone()),
        ("http.bind", "--http", args.http.clone()),
        ("http.insecure", "--http-insecure", args.http_insecure.then(|| "true".to_owned())),
        ("node.id", "--node-id", args.node_id.map(|id| id.to_string())),
        ("kafka.advertised", "--advertise", args.advertise.clone()),
        ("node.rack", "--rack", args.rack.clone()),
        ("drive", "--drive", args.drive.clone()),
        ("log.filter", "--log", args.log.clone()),
        ("log.format", "--log-format", args.log_format.clone()),
    ];
    settings.extend(flags.into_iter().filter_map(|(key, flag, value)| {
        let origin = Origin::Flag { flag: flag.to_owned() };
        Some(Setting { key: key.to_owned(), value: value?, origin })
    }));
    Ok(settings)
}

fn start_logs(program: &Program) -> Result<Levels, Failure> {
    logs(program.log_filter.as_deref(), "info", program.log_format)
}

/// Logs to standard error what `filter` lets pass, else `RUST_LOG`, else the level `otherwise`; what that is can be changed.
pub(super) fn logs(filter: Option<&str>, otherwise: &str, format: LogFormat) -> Result<Levels, Failure> {
    let base = match (filter, std::env::var("RUST_LOG")) {
        (Some(filter), _) => filter.to_owned(),
        (None, Ok(filter)) if !filter.is_empty() => filter,
        (None, _) => otherwise.to_owned(),
    };
    let filter = EnvFilter::try_new(&base)
        .map_err(|e| Failure::usage("invalid_config", format!("log filter: {e}")))?;
    let logs = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    let apply: Apply = match format {
        LogFormat::Json => {
            let logs = logs.json().with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()))
        }
        LogFormat::Text => {
            let logs =
                logs.with_ansi(std::io::stderr().is_terminal()).with_target(false).with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()))
        }
    };
    Ok(Levels::new(base, apply))
}

/// One worker thread on one or two processors, else one less than there are: the disk thread and the kernel's network
/// work need the rest, and more threads than that were slower.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(processors.saturating_sub(1).max(1))
        .thread_name("rangeway")
        .enable_all()
        .build()
        .map_err(|e| Failure::failed("runtime", format!("cannot start the async runtime: {e}")))
}

async fn serve(loaded: Loaded, accept_new_disks: bool, levels: Levels) -> Result<(), Failure> {
    let program = &loaded.program;
    let mut signals = Signals::listen()?;
    let kafka = bind("kafka", &program.kafka, Reach::Anywhere).await?;
    let reach = if program.http_insecure { Reach::Anywhere } else { Reach::Loopback };
    let http = bind("http", &program.http, reach).await?;
    let (kafka_at, http_at) = (local(&kafka)?, local(&http)?);
    let state = HttpState::new();
    let stop_http = CancellationToken::new();
    let http_task = tokio::spawn(http::serve(http, state.clone(), stop_http.clone().cancelled_owned()));

    let node = tokio::select! {
        started = Node::start(NodeOptions { accept_new_disks, ..options(&loaded) }) => started.map_err(not_started)?,
        name = signals.next() => {
            tracing::info!("{name} while recovering: stopped; nothing was served");
            return Ok(());
        }
    };
    for line in node.recovered() {
        tracing::info!("recovered: {line}");
    }
    for line in node.api().blocked() {
        tracing::error!("blocked: {line}");
    }
    let settings = Settings { logs: Some(Arc::new(levels)), ..settings(&loaded) };
    let shared = Shared::new(node.api(), settings);
    let metrics = shared.metrics.clone();
    state.count(Box::new(move || http::metrics::kafka(&metrics)));
    let coordinators = shared.clone();
    state.also_blocked(Box::new(move || coordinators.blocked()));
    let stop_kafka = CancellationToken::new();
    let mut kafka_task = tokio::spawn(connection::serve(kafka, shared.clone(), stop_kafka.clone()));
    let shown = program.advertised.as_ref().map_or_else(|| kafka_at.to_string(), |(h, p)| format!("{h}:{p}"));
    state.ready(node.api(), shown);
    super::print(&format!("rangeway ready kafka={kafka_at} http={http_at} node={}\n", program.node_id))?;

    let failed = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: stopping; a second signal stops at once");
            None
        }
        ended = &mut kafka_task => Some(match ended {
            Ok(Ok(())) => "the Kafka port ended".to_owned(),
            Ok(Err(e)) => format!("the Kafka port failed: {e}"),
            Err(e) => format!("the Kafka port failed: {e}"),
        }),
    };
    state.stopping();
    let drained = async {
        stop_kafka.cancel();
        shared.stop_coordinators().await;
        if failed.is_none() && tokio::time::timeout(DRAIN_MAX, kafka_task).await.is_err() {
            tracing::warn!(
                "some requests did not end within {DRAIN_MAX:?}; their clients see a closed connection"
            );
        }
        node.stop().await;
        stop_http.cancel();
    };
    tokio::select! {
        biased;
        name = signals.next() => cut_off("stopped_at_once", format!("second signal ({name}): stopped at once")),
        stopped = tokio::time::timeout(STOP_MAX, drained) => if stopped.is_err() {
            cut_off("stop_timeout", format!("not stopped cleanly within {STOP_MAX:?}"));
        },
    }
    if tokio::time::timeout(Duration::from_secs(1), http_task).await.is_err() {
        tracing::debug!("HTTP requests were cut off");
    }
    match failed {
        Some(why) => Err(Failure::failed("kafka_port", why)),
        None => {
            tracing::info!("stopped");
            Ok(())
        }
    }
}

pub(super) fn options(loaded: &Loaded) -> NodeOptions {
    let program = &loaded.program;
    NodeOptions {
        data: program.data.clone(),
        node_id: program.node_id,
        rack: program.rack.clone(),
        accept_new_disks: false,
        config: loaded.node.clone(),
        codec: Arc::new(Codecs),
    }
}

/// What the Kafka port takes of everything that was set.
pub(super) fn settings(loaded: &Loaded) -> Settings {
    let node = &loaded.node;
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    Settings {
        advertised: loaded.program.advertised.clone(),
        frame_bytes_max: node.request_max_bytes as usize,
        fetch_bytes_max: node.fetch_max_bytes as usize,
        response_memory_bytes: usize::try_from(node.response_memory_bytes).unwrap_or(usize::MAX),
        request_memory_bytes: usize::try_from(node.request_memory_bytes).unwrap_or(usize::MAX),
        connections_max: node.connections_max as usize,
        connections_fit: connections_fit(node.connections_max as usize),
        connection_idle: millis(node.connections_idle_ms),
        fetch_sessions_max: node.fetch_sessions_max as usize,
        fetch_session_idle: millis(node.fetch_session_idle_ms),
        auto_create_topics: node.auto_create_topics,
        partitions_default: node.num_partitions,
        node: Arc::new(node.clone()),
        ..Settings::default()
    }
}

/// Half of the files that the process may have open, so that extents, chunks and the HTTP door find theirs; said when it is less
/// than what is set.
fn connections_fit(set: usize) -> usize {
    let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum else {
        return usize::MAX;
    };
    let fit = usize::try_from(files / 2).unwrap_or(usize::MAX);
    if fit < set {
        tracing::warn!(
            "at most {fit} connections, not {set} (connections.max): the system lets this process open {files} files; raise the \
             hard limit (ulimit -Hn)"
        );
    }
    fit
}

/// Ends the process where it stands: whatever still runs must not hold it up.
fn cut_off(code: &str, why: String) -> ! {
    let failure = Failure::failed(code, why)
        .hint("nothing acknowledged is lost; the next start recovers as after a crash");
    failure.report(Format::Text);
    std::process::exit(1)
}

pub(super) fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Data(why) => Failure::unusable("data_unusable", why),
        StartError::Control(error) => Failure::unusable("data_unusable", error.to_string()),
        StartError::Range { .. } => Failure::failed("range_not_recovered", error.to_string()),
    }
}

/// From where a port may be reached.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Reach {
    Loopback,
    Anywhere,
}

/// Binds the first address of a name that can be bound.
pub(super) async fn bind(port: &str, address: &str, reach: Reach) -> Result<TcpListener, Failure> {
    let unusable = |why: String| Failure::unusable("port_unusable", format!("{port} port {address}: {why}"));
    // A host in brackets is an IPv6 address, which the resolver takes as it is.
    let found: Vec<SocketAddr> =
        tokio::net::lookup_host(address).await.map_err(|e| unusable(e.to_string()))?.collect();
    if reach == Reach::Loopback && found.iter().any(|at| !at.ip().is_loopback()) {
        return Err(Failure::usage(
            "http_insecure",
            format!("{port} port {address} is reachable from other machines, and whoever reaches it may administer the node"),
        )
        .hint("bind it to 127.0.0.1, or allow it with --http-insecure"));
    }
    TcpListener::bind(found.as_slice()).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => unusable("in use by another program".to_owned())
            .hint(format!("choose another with --{port}, port 0 takes a free one")),
        _ => unusable(e.to_string()),
    })
}

pub(super) fn local(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|e| Failure::unusable("port_unusable", e.to_string()))
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|e| Failure::failed("signals", format!("cannot listen for signals: {e}")))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
