//! `rangeway bench`: arguments, a progress bar and the table of `crate::bench`.

use super::failure::{Failure, Format};
use super::serve::Signals;
use super::table::{Align, Table};
use crate::bench::{self, Made, Outcome, Plan, Progress, Workload};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// `rangeway bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each workload makes a topic of its own and deletes it afterwards. Times are from request to answer; for latency from\n\
when a record was due to be sent until a consumer has it.\n\n\
Examples:\n  \
rangeway bench                                          all workloads, 10 s each, against 127.0.0.1:9092\n  \
rangeway bench produce consume --partitions 12 --batch 16384\n  \
rangeway bench produce --batch 1 --in-flight 1          one record per request, one request at a time\n  \
rangeway bench latency --rate 5000 --seconds 30 --json\n  \
rangeway bench --bootstrap broker.example:9092 produce  another broker, for comparison")]
pub struct BenchArgs {
    /// What to measure; all when nothing is named
    #[arg(value_enum)]
    workloads: Vec<Workload>,
    /// The Kafka port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    bootstrap: String,
    /// How long each workload runs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Partitions of the topic (produce, consume, latency)
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// Partitions of the topic (partitions)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(i32).range(1..))]
    many: i32,
    /// Bytes of a record's value
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    size: u32,
    /// Bytes of a batch, about; at least one record (produce, consume)
    #[arg(long, value_name = "BYTES", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    batch: u32,
    /// Connections to each leader
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Requests of a connection on their way at once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    in_flight: u32,
    /// Acknowledgement asked for: 1 or all
    #[arg(long, value_name = "1|all", default_value = "all", value_parser = acks)]
    acks: i16,
    /// Records per second (latency)
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Replication factor of the topics; -1 is the node's default
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    replication_factor: i16,
    /// Drive of the topics, as in `rangeway topics create`
    #[arg(long, value_name = "EXPR")]
    drive: Option<String>,
    /// Leave the topics there
    #[arg(long)]
    keep: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn acks(text: &str) -> Result<i16, String> {
    match text {
        "1" => Ok(1),
        "all" | "-1" => Ok(-1),
        _ => Err("it is 1 or all; without acknowledgements there is nothing to time".to_owned()),
    }
}

/// Runs `rangeway bench`.
pub fn run(args: BenchArgs) -> Result<(), Failure> {
    let plan = Plan {
        bootstrap: args.bootstrap,
        time: Duration::from_secs(args.seconds),
        partitions: args.partitions,
        many: args.many,
        record_bytes: args.size as usize,
        batch_bytes: args.batch as usize,
        connections: args.connections as usize,
        in_flight: args.in_flight as usize,
        acks: args.acks,
        rate: args.rate,
        replication_factor: args.replication_factor,
        drive: args.drive,
        keep: args.keep,
    };
    let all = [Workload::Produce, Workload::Consume, Workload::Partitions, Workload::Latency];
    let workloads = if args.workloads.is_empty() { &all[..] } else { &args.workloads[..] };
    let bar = Bar::new();
    let made = Made::default();
    if !plan.keep {
        clean_up_when_told_to_stop(made.clone(), plan.bootstrap.clone())?;
    }
    let outcomes = bench::run(&plan, workloads, &bar, &made);
    bar.0.finish_and_clear();
    let outcomes = outcomes.map_err(|e| Failure::failed("bench", e.to_string()))?;
    if args.json {
        let text = serde_json::to_string(&outcomes).map_err(|e| Failure::failed("json", e.to_string()))?;
        return super::print(&(text + "\n"));
    }
    super::print(&table(&outcomes))
}

/// A bench that is stopped leaves no topics either: they are deleted before the process ends.
fn clean_up_when_told_to_stop(made: Made, bootstrap: String) -> Result<(), Failure> {
    let runtime = super::small_runtime()?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    let wait = move || {
        let name = runtime.block_on(signals.next());
        let deleted = made.delete(&bootstrap);
        let failure = match deleted {
            Ok(()) => Failure::failed(
                "interrupted",
                format!("{name}: stopped; the topics that it made are deleted"),
            ),
            Err(e) => {
                Failure::failed("interrupted", format!("{name}: stopped; its topics are still there: {e}"))
            }
        };
        failure.report(Format::Text);
        std::process::exit(1)
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(|e| Failure::failed("signals", format!("cannot wait for signals: {e}")))
}

/// A bar on stderr; nothing where that is no terminal.
struct Bar(ProgressBar);

impl Bar {
    const STEPS: u64 = 1000;

    fn new() -> Bar {
        let bar = ProgressBar::new(Bar::STEPS);
        if let Ok(style) = ProgressStyle::with_template("{msg:10} {wide_bar} {percent:>3} %  {elapsed}") {
            bar.set_style(style);
        }
        Bar(bar)
    }
}

impl Progress for Bar {
    fn at(&self, workload: Workload, part: f64) {
        let step = (part.clamp(0.0, 1.0) * Bar::STEPS as f64) as u64;
        // Called for each answer: the bar is touched only when it moves.
        if self.0.position() != step {
            self.0.set_message(bench::name(workload));
            self.0.set_position(step);
        }
    }
}

fn table(outcomes: &[Outcome]) -> String {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("WORKLOAD", Align::Left),
        right("RECORDS/S"),
        right("MB/S"),
        right("REQUESTS"),
        right("P50 MS"),
        right("P99 MS"),
        right("P99.9 MS"),
        right("MAX MS"),
    ]);
    for outcome in outcomes {
        table.row(vec![
            bench::name(outcome.workload).to_owned(),
            format!("{:.0}", outcome.records_per_second),
            format!("{:.1}", outcome.mb_per_second),
            outcome.requests.to_string(),
            format!("{:.3}", outcome.p50_ms),
            format!("{:.3}", outcome.p99_ms),
            format!("{:.3}", outcome.p999_ms),
            format!("{:.3}", outcome.max_ms),
        ]);
    }
    table.render()
}
