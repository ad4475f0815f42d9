//! One record per request at a fixed rate; timed from when a record was due to be sent until a consumer has it.
//!
//! Due, not sent: a stall of the broker delays the records behind it too, and their waiting counts.

use super::client::{Broken, Connection, TIMEOUT_MS, Target, Topic, frame};
use super::consume::{fetch, fetched, walk};
use super::produce::{batch, check};
use super::{Plan, Tally};
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::fetch_request::FetchRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time given to what is still on its way after the last record was sent.
const REST_MAX: Duration = Duration::from_secs(30);

/// What the three threads of a run share.
struct Run<'a> {
    plan: &'a Plan,
    target: &'a Target,
    topic: &'a Topic,
    partition: i32,
    /// When the first record is due.
    began: Instant,
    every: Duration,
    count: u64,
    /// A thread failed: the others need not wait.
    failed: AtomicBool,
}

/// Sends to one partition and reads it at the same time.
pub fn run(
    plan: &Plan,
    target: &Target,
    topic: &Topic,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Tally, Broken> {
    let Some((address, partition)) = topic.leaders.iter().find_map(|(a, p)| Some((a, *p.first()?))) else {
        return Err(Broken("the topic has no partition".to_owned()));
    };
    let rate = f64::from(plan.rate.max(1));
    let (send, acks) = Connection::open(address)?.split()?;
    let read = Connection::open(address)?;
    let run = Run {
        plan,
        target,
        topic,
        partition,
        // A moment for the threads to start.
        began: Instant::now() + Duration::from_millis(20),
        every: Duration::from_secs_f64(1.0 / rate),
        count: (plan.time.as_secs_f64() * rate) as u64,
        failed: AtomicBool::new(false),
    };
    let mut tally = std::thread::scope(|scope| {
        let sender = scope.spawn(|| run.watched(run.send(send)));
        let acks = scope.spawn(|| run.watched(run.acknowledged(acks)));
        let received = run.receive(read, progress);
        for thread in [sender, acks] {
            // Whatever the receiver waited for in vain, this is the cause.
            thread.join().unwrap_or_else(|_| Err(Broken("a thread panicked".to_owned())))?;
        }
        received
    })?;
    tally.took = run.began.elapsed();
    Ok(tally)
}

impl Run<'_> {
    fn watched(&self, outcome: Result<(), Broken>) -> Result<(), Broken> {
        if outcome.is_err() {
            self.failed.store(true, Relaxed);
        }
        outcome
    }

    /// When record `at` is due.
    fn due(&self, at: u64) -> Instant {
        self.began + Duration::from_secs_f64(self.every.as_secs_f64() * at as f64)
    }

    fn send(&self, mut connection: Connection) -> Result<(), Broken> {
        let version = self.target.version::<ProduceRequest>(9)?;
        let row = PartitionProduceData::default()
            .with_index(self.partition)
            .with_records(Some(batch(1, self.plan.record_bytes)?));
        let data =
            TopicProduceData::default().with_name(self.topic.name.clone()).with_partition_data(vec![row]);
        let request = ProduceRequest::default()
            .with_acks(self.plan.acks)
            .with_timeout_ms(TIMEOUT_MS)
            .with_topic_data(vec![data]);
        let mut bytes = frame(&request, version)?;
        for at in 0..self.count {
            if self.failed.load(Relaxed) {
                return Ok(());
            }
            let wait = self.due(at).saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait);
            }
            connection.send(&mut bytes)?;
        }
        Ok(())
    }

    fn acknowledged(&self, mut connection: Connection) -> Result<(), Broken> {
        let version = self.target.version::<ProduceRequest>(9)?;
        for _ in 0..self.count {
            check(&connection.receive()?, version)?;
        }
        Ok(())
    }

    fn receive(&self, mut connection: Connection, progress: &(dyn Fn(f64) + Sync)) -> Result<Tally, Broken> {
        let version = self.target.version::<FetchRequest>(12)?;
        let mut tally = Tally::default();
        let mut next = 0i64;
        let until = self.began + self.plan.time + REST_MAX;
        while next.unsigned_abs() < self.count {
            if self.failed.load(Relaxed) || Instant::now() > until {
                return Err(Broken(format!("{next} of {} records came back in time", self.count)));
            }
            let request = fetch(self.topic, [(self.partition, next)].into_iter(), 500);
            connection.send(&mut frame(&request, version)?)?;
            let body = connection.receive()?;
            let now = Instant::now();
            tally.requests += 1;
            for (_, records) in fetched(&body, version)? {
                let (after, got) = walk(&records, next);
                for at in next..after {
                    tally.times.add(now.saturating_duration_since(self.due(at.unsigned_abs())));
                }
                next = after;
                tally.records += got.unsigned_abs();
                tally.bytes += got.unsigned_abs() * self.plan.record_bytes as u64;
            }
            progress(next as f64 / self.count.max(1) as f64);
        }
        Ok(tally)
    }
}
