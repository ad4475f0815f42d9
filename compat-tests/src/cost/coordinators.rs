//! What commits of offsets and transactions cost: this broker and the reference beside each other in one run, in turns.
//!
//! *Commits*: connections that each commit the offsets of one group, one request in flight each. *Transactions*: producers with an id each, one
//! transaction after another: a batch of one record to each partition in one request, then its end; by either rule of KIP-890. What is
//! asked is answered with its outcome in both brokers, so no client library's pauses are in the figures.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, FindCoordinatorRequest, GroupId, InitProducerIdRequest,
    OffsetCommitRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{Record, TimestampType};

use super::stats::{mean, spread};
use crate::broker::{Broker, Kind};
use crate::wire::{self, Connection};

const PATIENCE: Duration = Duration::from_secs(30);
const TOPIC: &str = "costs";
const VALUE_BYTES: usize = 100;
const COMMIT_VERSION: i16 = 8;
/// The last one with one key.
const FIND_COORDINATOR_VERSION: i16 = 3;
/// Kinds of coordinators (`FindCoordinator`).
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// Asked again after: the coordinator loads, is elsewhere, or still writes the markers of the transaction before.
const RETRIABLE: [i16; 5] = [3, 14, 15, 16, 51];
/// Kernel ticks per second in `/proc/PID/stat` (`USER_HZ`, the same on every Linux that runs here).
const TICKS_PER_SECOND: f64 = 100.0;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections that commit or produce.
    pub connections: usize,
    /// Partitions of each commit and of each transaction.
    pub partitions: i32,
    /// Length of a round.
    pub round: Duration,
    /// Rounds of each broker and kind.
    pub rounds: u32,
    /// Settings of this broker.
    pub settings: Vec<(String, String)>,
}

/// What is asked of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Commits,
    /// Partitions are asked for; epochs stay.
    Asked,
    /// A write adds its partition; each end gives another epoch.
    Written,
}

impl Work {
    const ALL: [Self; 3] = [Self::Commits, Self::Asked, Self::Written];

    fn name(self) -> &'static str {
        match self {
            Self::Commits => "commits",
            Self::Asked => "transactions, partitions asked for",
            Self::Written => "transactions, partitions by writing (KIP-890)",
        }
    }
}

/// Rate and CPU of one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    per_second: f64,
    per_cpu_second: f64,
}

/// Runs the plan and prints a table. Errors: a broker that does not start, an answer that is none, no CPU time.
pub fn run(plan: &Plan) -> Result<()> {
    let settings: Vec<(&str, &str)> = plan.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let ours = Broker::start(Kind::Rangeway, &settings)?;
    let reference = Broker::start(Kind::Reference, &[])?;
    for broker in [&ours, &reference] {
        Connection::open(broker.address(), PATIENCE)?.create_topic(TOPIC, plan.partitions, &[])?;
    }
    let mut runs = 0;
    for work in Work::ALL {
        let mut results = [Vec::new(), Vec::new()];
        // The first round of each warms up: classes are loaded, coordinators come up.
        for round in 0..=plan.rounds {
            for (broker, results) in [&ours, &reference].into_iter().zip(&mut results) {
                runs += 1;
                let measured = measure(broker, plan, work, runs)?;
                if round > 0 {
                    results.push(measured);
                }
            }
        }
        report(work, &results);
    }
    Ok(())
}

fn report(work: Work, [ours, reference]: &[Vec<Round>; 2]) {
    println!("{}:", work.name());
    let row = |name: &str, what: fn(&Round) -> f64| {
        let of = |rounds: &[Round]| -> Vec<f64> { rounds.iter().map(what).collect() };
        let (a, b) = (of(ours), of(reference));
        println!(
            "  {name}: {:.0} (spread {:.1} %) against the reference's {:.0} ({:.1} %): {:.2} times",
            mean(&a),
            spread(&a) * 100.0,
            mean(&b),
            spread(&b) * 100.0,
            mean(&a) / mean(&b)
        );
    };
    row("per second", |round| round.per_second);
    row("per CPU-second of the broker", |round| round.per_cpu_second);
}

fn measure(broker: &Broker, plan: &Plan, work: Work, run: u32) -> Result<Round> {
    let pid = broker.pid().context("the broker ended")?;
    let workers = (0..plan.connections)
        .map(|n| Worker::open(broker, work, plan.partitions, format!("cost-{run}-{n}")))
        .collect::<Result<Vec<_>>>()?;
    let (cpu, began) = (cpu_seconds(pid)?, Instant::now());
    let until = began + plan.round;
    let counts: Vec<Result<u64>> = thread::scope(|scope| {
        let running: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || worker.run(until))).collect();
        running.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a worker panicked"))).collect()
    });
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds(pid)? - cpu);
    let done: u64 = counts.into_iter().sum::<Result<u64>>()?;
    ensure!(done > 0 && cpu > 0.0, "{}: {done} done in {seconds:.1} s", work.name());
    Ok(Round { per_second: done as f64 / seconds, per_cpu_second: done as f64 / cpu })
}

/// CPU time of a process so far: its user and system time.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name may hold blanks; it ends with the last bracket.
    let (_, fields) = stat.rsplit_once(')').context("no /proc/PID/stat")?;
    let ticks = |n: usize| -> Result<f64> {
        Ok(fields.split_whitespace().nth(n).context("a short /proc/PID/stat")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

struct Worker {
    connection: Connection,
    work: Work,
    partitions: i32,
    name: String,
    producer: (i64, i16),
    sequence: i32,
}

impl Worker {
    fn open(broker: &Broker, work: Work, partitions: i32, name: String) -> Result<Self> {
        let connection = Connection::open(broker.address(), PATIENCE)?;
        let mut worker = Self { connection, work, partitions, name, producer: (-1, -1), sequence: 0 };
        match work {
            Work::Commits => {
                worker.find_coordinator(GROUP)?;
                worker.commit(0)?;
            }
            Work::Asked | Work::Written => {
                worker.find_coordinator(TRANSACTION)?;
                worker.begin()?;
            }
        }
        Ok(worker)
    }

    /// The reference makes its internal topics when somebody looks for a coordinator, and not before.
    fn find_coordinator(&mut self, key_type: i8) -> Result<()> {
        let request =
            FindCoordinatorRequest::default().with_key(wire::text(&self.name)).with_key_type(key_type);
        self.asked("FindCoordinator", |connection| {
            let response = connection.call(&request, FIND_COORDINATOR_VERSION)?;
            Ok((response.error_code, ()))
        })
    }

    /// One after another until then; answers how many.
    fn run(mut self, until: Instant) -> Result<u64> {
        let mut done = 0;
        while Instant::now() < until {
            match self.work {
                Work::Commits => self.commit(done + 1)?,
                Work::Asked | Work::Written => self.transaction()?,
            }
            done += 1;
        }
        Ok(done)
    }

    fn id(&self) -> TransactionalId {
        TransactionalId(wire::text(&self.name))
    }

    fn commit(&mut self, offset: u64) -> Result<()> {
        let offset = i64::try_from(offset)?;
        let partitions = (0..self.partitions).map(|index| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_committed_metadata(Some(StrBytes::default()))
        });
        let of_topic = OffsetCommitRequestTopic::default()
            .with_name(wire::topic(TOPIC))
            .with_partitions(partitions.collect());
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(wire::text(&self.name)))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![of_topic]);
        self.asked("OffsetCommit", |connection| {
            let response = connection.call(&request, COMMIT_VERSION)?;
            let mut codes = response.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
            Ok((codes.find(|code| *code != 0).unwrap_or(0), ()))
        })
    }

    fn begin(&mut self) -> Result<()> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.id()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        self.producer = self.asked("InitProducerId", |connection| {
            let response = connection.call(&request, 4)?;
            Ok((response.error_code, (response.producer_id.0, response.producer_epoch)))
        })?;
        Ok(())
    }

    fn transaction(&mut self) -> Result<()> {
        if self.work == Work::Asked {
            self.add()?;
        }
        let batches = (0..self.partitions)
            .map(|partition| {
                let (id, epoch) = self.producer;
                let bytes = wire::batch(&mut [record()], Some((id, epoch, self.sequence)))?;
                Ok((TOPIC, partition, bytes))
            })
            .collect::<Result<Vec<_>>>()?;
        let request = wire::produce_request(batches, -1, 30_000).with_transactional_id(Some(self.id()));
        let version = if self.work == Work::Written { 12 } else { 11 };
        self.asked("Produce", |connection| {
            let response = connection.call(&request, version)?;
            let mut codes =
                response.responses.iter().flat_map(|t| &t.partition_responses).map(|p| p.error_code);
            Ok((codes.find(|code| *code != 0).unwrap_or(0), ()))
        })?;
        self.sequence += 1;
        self.end()
    }

    fn add(&mut self) -> Result<()> {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(wire::topic(TOPIC))
            .with_partitions((0..self.partitions).collect());
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.id())
            .with_v3_and_below_producer_id(ProducerId(self.producer.0))
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![topic]);
        self.asked("AddPartitionsToTxn", |connection| {
            let response = connection.call(&request, 3)?;
            let topics = response.results_by_topic_v3_and_below.iter();
            let mut codes = topics.flat_map(|t| &t.results_by_partition).map(|p| p.partition_error_code);
            Ok((codes.find(|code| *code != 0).unwrap_or(0), ()))
        })
    }

    fn end(&mut self) -> Result<()> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(true);
        let version = if self.work == Work::Written { 5 } else { 4 };
        let next = self.asked("EndTxn", |connection| {
            let response = connection.call(&request, version)?;
            Ok((response.error_code, (response.producer_id.0, response.producer_epoch)))
        })?;
        if self.work == Work::Written {
            self.producer = next;
            self.sequence = 0;
        }
        Ok(())
    }

    /// Asks until the answer is none after which one asks again at once, as a client would after a pause. Errors: any other code.
    fn asked<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&mut Connection) -> Result<(i16, T)>,
    ) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(&mut self.connection)? {
                (0, answer) => return Ok(answer),
                (code, _) if RETRIABLE.contains(&code) && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(1));
                }
                (code, _) => bail!("{}: {what} was answered {code}", self.name),
            }
        }
    }
}

fn record() -> Record {
    Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: -1,
        timestamp: 1_700_000_000_000,
        key: None,
        value: Some(vec![b'v'; VALUE_BYTES].into()),
        headers: Default::default(),
    }
}
