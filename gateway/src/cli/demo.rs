//! `rangeway demo`: a node of its own, the load of `crate::demo`, and the result as a person sees it.

use super::demo_screen::{Lines, Live};
use super::embedded::Embedded;
use super::failure::Failure;
use super::serve::{Signals, logs};
use crate::config::LogFormat;
use crate::demo::script::{Range, Step};
use crate::demo::{self, Client, Outcome, Plan, Ranges, View};
use clap::Args;
use rangeway_core::api::{Api, NewTopic};
use rangeway_core::error::TopicPartition;
use rangeway_core::types::{Offset, TopicId};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Partitions of the topic.
const PARTITIONS: i32 = 16;

/// `rangeway demo`.
#[derive(Args, Debug)]
#[command(
    about = "Split and merge ranges under load, and check that no record is lost, doubled or out of order",
    after_help = "A node is started on free ports with its data in a temporary directory. A keyed topic of 16 partitions is \
        produced and consumed\nthrough its Kafka port while its ranges are split and merged. Every record that comes back is \
        checked: each key's numbers\nin order, none missing, none twice, offsets without a gap. It ends with 0 only if all of \
        that held.\n\nExamples:\n  rangeway demo\n  rangeway demo --seconds 120 --rate 20000 --ranges 16\n  \
        rangeway demo --client kcat            an installed kcat produces and consumes\n  rangeway demo --data ./demo-data \
        \x20      keep the data, to look at it with `rangeway serve --data ./demo-data`"
)]
pub struct DemoArgs {
    /// How long is produced
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Records per second
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Ranges to split to before they are merged back to one
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=16))]
    ranges: u32,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Who produces and consumes
    #[arg(long, value_enum, default_value_t = Client::Own)]
    client: Client,
    /// Keep the node's data in this directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// Runs the demo.
pub fn run(args: DemoArgs) -> Result<(), Failure> {
    if args.client == Client::Kcat {
        kcat_is_there()?;
    }
    logs(None, "error", LogFormat::Text)?;
    let temporary = match args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("rangeway-demo-").tempdir().map_err(|e| {
            Failure::unusable("data_unusable", format!("no temporary directory can be made: {e}"))
                .hint("name a directory with --data DIR")
        })?),
    };
    let data = match (&args.data, &temporary) {
        (Some(data), _) => data.clone(),
        (None, Some(made)) => made.path().to_owned(),
        (None, None) => return Err(Failure::unusable("data_unusable", "no data directory")),
    };
    let runtime = super::serve::runtime()?;
    let node = runtime.block_on(Embedded::start(&data))?;
    let outcome = on(&args, &node, runtime.handle(), &data);
    runtime.block_on(node.stop());
    let outcome = outcome?;
    if args.json {
        let text = serde_json::to_string(&outcome).map_err(|e| Failure::failed("json", e.to_string()))?;
        super::print(&(text + "\n"))?;
    } else {
        super::print(&summary(&outcome))?;
    }
    match outcome.held {
        true => Ok(()),
        false => {
            let told = outcome.faults.join("\n");
            Err(Failure::failed("demo", format!("{} faults:\n{told}", outcome.fault_count)))
        }
    }
}

fn on(
    args: &DemoArgs,
    node: &Embedded,
    runtime: &tokio::runtime::Handle,
    data: &Path,
) -> Result<Outcome, Failure> {
    let (topic, name) = runtime.block_on(make_topic(&node.api))?;
    let plan = Plan {
        address: node.kafka.to_string(),
        topic: name.clone(),
        partitions: PARTITIONS,
        rate: args.rate,
        keys: args.keys as usize,
        ranges: args.ranges as usize,
        time: Duration::from_secs(args.seconds),
        client: args.client,
    };
    let stop = Arc::new(AtomicBool::new(false));
    runtime.spawn(stop_when_told(runtime.block_on(async { Signals::listen() })?, stop.clone()));
    let ranges = NodeRanges { api: node.api.clone(), topic, name: name.clone(), runtime: runtime.clone() };
    if !args.json {
        super::print(&format!(
            "page   http://{}/\nkafka  {}   topic {name}, {PARTITIONS} partitions, {} keys\ndata   {}\n\n",
            node.http,
            node.kafka,
            args.keys,
            data.display()
        ))?;
    }
    let mut view: Box<dyn View> = match (args.json, std::io::stdout().is_terminal()) {
        (true, _) => Box::new(Silent),
        (false, true) => Box::new(Live::new(PARTITIONS)),
        (false, false) => Box::new(Lines::new(PARTITIONS)),
    };
    demo::run(&plan, &ranges, &mut *view, &stop).map_err(|e| Failure::failed("demo", e.to_string()))
}

/// The first signal ends the load and everything is judged; a second one ends the process.
async fn stop_when_told(mut signals: Signals, stop: Arc<AtomicBool>) {
    signals.next().await;
    stop.store(true, Ordering::Relaxed);
    let name = signals.next().await;
    Failure::failed("interrupted", format!("second signal ({name}): stopped at once; nothing was judged"))
        .report(super::failure::Format::Text);
    std::process::exit(1);
}

/// The topic `demo`, or with a number when data is kept and it is there already.
async fn make_topic(api: &Api) -> Result<(TopicId, String), Failure> {
    let taken = |name: &str| api.catalog().by_name.contains_key(name);
    let numbered = (2..u32::MAX).map(|n| format!("demo-{n}"));
    let name = std::iter::once("demo".to_owned()).chain(numbered).find(|name| !taken(name));
    let topic = NewTopic {
        name: name.unwrap_or_default(),
        partitions: Some(PARTITIONS),
        replication_factor: None,
        configs: Default::default(),
        internal: false,
        validate_only: false,
    };
    let made = api.create_topic(topic).await.map_err(|e| Failure::failed("demo", e.to_string()))?;
    Ok((made.id, made.name.to_string()))
}

fn kcat_is_there() -> Result<(), Failure> {
    let asked = Command::new("kcat").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match asked {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::failed("kcat_missing", format!("kcat cannot be started: {e}"))
            .hint("install it (Debian: apt-get install kcat), or leave --client away")),
    }
}

/// The node as the demo uses it.
struct NodeRanges {
    api: Api,
    topic: TopicId,
    name: String,
    runtime: tokio::runtime::Handle,
}

impl Ranges for NodeRanges {
    fn active(&self) -> Vec<Range> {
        let catalog = self.api.catalog();
        let ranges = catalog.by_name.get(&*self.name).map(|topic| topic.ranges.clone()).unwrap_or_default();
        ranges.iter().map(|r| Range { id: r.id.0, first: r.span.first, last: r.span.last }).collect()
    }

    fn step(&self, step: Step) -> Result<Option<f64>, String> {
        let done = match step {
            // In the middle of its partitions: by bytes the same one would be cut again and again.
            Step::Split { range, at } => self.runtime.block_on(self.api.split(self.topic, range, Some(at))),
            Step::Merge { left, right } => self.runtime.block_on(self.api.merge(self.topic, left, right)),
        };
        let view = done.map_err(|e| e.to_string())?;
        match view.state.as_str() {
            "done" => Ok(view.paused_ms),
            other => Err(format!("{} is {other}: {}", view.kind, view.why.unwrap_or_default())),
        }
    }

    fn ends(&self) -> Result<Vec<Offset>, String> {
        let end = |partition| {
            let at = TopicPartition { topic: self.topic, partition };
            self.api.offsets(at).map(|offsets| offsets.high_watermark).map_err(|e| e.to_string())
        };
        (0..PARTITIONS).map(end).collect()
    }
}

struct Silent;

impl View for Silent {
    fn stepped(&mut self, _: Step, _: &Result<Option<f64>, String>) {}
    fn show(&mut self, _: &demo::Snapshot) {}
}

fn summary(outcome: &Outcome) -> String {
    let steps = &outcome.steps;
    let count = (steps.splits + steps.merges).max(1) as f64;
    let verdict = match outcome.held {
        true => "held: each key in order, nothing lost, nothing twice, offsets without a gap",
        false => "NOT held",
    };
    format!(
        "\n{verdict}\nrecords  {} produced and acknowledged, {} consumed, {} keys, {:.1} s\nranges   {} splits, {} merges, at most {} \
         ranges at once\npauses   {:.1} ms on average, {:.1} ms the longest\n",
        outcome.produced,
        outcome.consumed,
        outcome.keys,
        outcome.seconds,
        steps.splits,
        steps.merges,
        steps.most_ranges,
        steps.sum_pause_ms / count,
        steps.longest_pause_ms,
    )
}
