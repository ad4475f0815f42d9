//! An idempotent producer that does what real ones do: five batches of a partition in flight, everything unanswered sent again in
//! order after a broken connection, and after a refusal once nothing of that partition is in flight.
//!
//! It numbers each partition's records from 0, so that an acknowledged batch must have its first number as its offset.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};

use super::client::{is_broken, is_retriable};
use super::numbered::record;
use crate::turmoil::Turmoil;
use crate::wire::{self, Connection, PRODUCE_VERSION};

const PATIENCE: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Between two new batches: enough of them for a test, and time for others.
const PACE: Duration = Duration::from_millis(1);
const RECORDS_MAX: u64 = 20;
const REQUEST_TIMEOUT_MS: i32 = 30_000;

/// A batch: its first number, the number after its last, whether it is in flight.
#[derive(Clone, Copy, Debug)]
struct Batch {
    first: u64,
    next: u64,
    sent: bool,
}

#[derive(Debug, Default)]
struct Part {
    made: u64,
    /// Not acknowledged, in order.
    waiting: VecDeque<Batch>,
    /// Nothing is sent until nothing is in flight.
    refused: bool,
}

/// See the module head.
#[derive(Debug)]
pub struct Writer<'a> {
    turmoil: &'a Turmoil,
    topic: &'a str,
    /// Where it connects: the broker, or a proxy before it.
    address: SocketAddr,
    /// Batches of a partition in flight at most.
    window: usize,
    /// Of each partition the number below which all is acknowledged.
    acked: &'a [AtomicI64],
    parts: Vec<Part>,
    producer: Option<(i64, i16)>,
    connection: Option<Connection>,
    /// Requests in flight: partition and first number.
    flying: VecDeque<(i32, u64)>,
    random: fastrand::Rng,
}

impl<'a> Writer<'a> {
    /// A writer to all partitions of a topic, of which `acked` has one value each.
    pub fn new(turmoil: &'a Turmoil, topic: &'a str, acked: &'a [AtomicI64], seed: u64) -> Self {
        Self {
            turmoil,
            topic,
            address: turmoil.address,
            window: 5,
            acked,
            parts: acked.iter().map(|_| Part::default()).collect(),
            producer: None,
            connection: None,
            flying: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// One that connects elsewhere.
    pub fn through(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// One with a single batch of each partition in flight.
    pub fn one_at_a_time(mut self) -> Self {
        self.window = 1;
        self
    }

    /// Writes while `more` says so, then until all is acknowledged; `on_ack` is told the partition, the first offset and the one
    /// after the last of each batch. Errors: what no kill explains.
    pub fn run(
        mut self,
        more: impl Fn() -> bool,
        mut on_ack: impl FnMut(i32, i64, i64) -> Result<()>,
    ) -> Result<u64> {
        loop {
            self.turmoil.in_time()?;
            let draining = !more();
            if draining && self.parts.iter().all(|part| part.waiting.is_empty()) {
                return Ok(self.parts.iter().map(|part| part.made).sum());
            }
            match self.step(draining, &mut on_ack) {
                Err(error) if is_broken(&error) => self.disconnect(),
                done => done?,
            }
        }
    }

    fn step(&mut self, draining: bool, on_ack: &mut impl FnMut(i32, i64, i64) -> Result<()>) -> Result<()> {
        self.connect()?;
        match self.choose(draining) {
            Some(at) if self.flying.len() < self.window * 2 => self.send(at),
            _ if self.flying.is_empty() => {
                thread::sleep(RETRY_PAUSE);
                Ok(())
            }
            _ => self.receive(on_ack),
        }
    }

    fn connect(&mut self) -> Result<()> {
        if self.connection.is_none() {
            match Connection::open(self.address, PATIENCE) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => {
                    thread::sleep(RETRY_PAUSE);
                    return Ok(());
                }
            }
        }
        if self.producer.is_none() {
            let connection = self.connection.as_mut().context("it was just made")?;
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(60_000);
            let response = connection.call(&request, 4)?;
            ensure!(response.error_code == 0, "InitProducerId answered {}", response.error_code);
            self.producer = Some((response.producer_id.0, response.producer_epoch));
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        self.connection = None;
        self.flying.clear();
        for part in &mut self.parts {
            part.refused = false;
            part.waiting.iter_mut().for_each(|batch| batch.sent = false);
        }
    }

    /// A partition of which a batch is to be sent: an old one, or a new one that is made here.
    fn choose(&mut self, draining: bool) -> Option<usize> {
        self.connection.as_ref()?;
        let again = self.parts.iter().position(|part| !part.refused && part.waiting.iter().any(|b| !b.sent));
        if again.is_some() || draining || self.flying.len() >= self.window * 2 {
            return again;
        }
        let window = self.window;
        let free: Vec<usize> = (0..self.parts.len())
            .filter(|at| !self.parts[*at].refused && self.parts[*at].waiting.len() < window)
            .collect();
        let at = self.random.choice(free)?;
        let records = self.random.u64(1..=RECORDS_MAX);
        let part = &mut self.parts[at];
        part.waiting.push_back(Batch { first: part.made, next: part.made + records, sent: false });
        part.made += records;
        thread::sleep(PACE);
        Some(at)
    }

    fn send(&mut self, at: usize) -> Result<()> {
        let partition = i32::try_from(at)?;
        let (id, epoch) = self.producer.context("a producer id")?;
        let batch = self.parts[at].waiting.iter_mut().find(|batch| !batch.sent).context("a batch to send")?;
        batch.sent = true;
        let first = batch.first;
        let numbers = first..batch.next;
        let mut records: Vec<_> = numbers.map(|n| record(partition, n, self.turmoil.began_ms)).collect();
        let bytes = wire::batch(&mut records, Some((id, epoch, i32::try_from(first)?)))?;
        let request = wire::produce_request(vec![(self.topic, partition, bytes)], -1, REQUEST_TIMEOUT_MS);
        self.flying.push_back((partition, first));
        self.connection.as_mut().context("a connection")?.send(&request, PRODUCE_VERSION)
    }

    fn receive(&mut self, on_ack: &mut impl FnMut(i32, i64, i64) -> Result<()>) -> Result<()> {
        let response: ProduceResponse =
            self.connection.as_mut().context("a connection")?.receive::<ProduceRequest>()?;
        let (partition, first) = self.flying.pop_front().context("a request in flight")?;
        let answer = response.responses.first().and_then(|topic| topic.partition_responses.first());
        let answer = answer.context("an answer without its partition")?;
        let (code, base) = (answer.error_code, answer.base_offset);
        ensure!(
            code == 0 || is_retriable(code),
            "partition {partition}: the batch of record {first} was answered {code}"
        );
        let at = usize::try_from(partition)?;
        let part = &mut self.parts[at];
        if code == 0 {
            ensure!(
                i64::try_from(first)? == base,
                "partition {partition}: record {first} was acknowledged at offset {base}"
            );
            let place = part.waiting.iter().position(|batch| batch.first == first);
            let batch = place.and_then(|place| part.waiting.remove(place)).context("a batch that waits")?;
            let below = part.waiting.front().map_or(part.made, |batch| batch.first);
            self.acked[at].store(i64::try_from(below)?, Ordering::Release);
            on_ack(partition, base, i64::try_from(batch.next)?)?;
        } else {
            part.refused = true;
        }
        let part = &mut self.parts[at];
        if part.refused && self.flying.iter().all(|(other, _)| *other != partition) {
            part.refused = false;
            part.waiting.iter_mut().for_each(|batch| batch.sent = false);
            thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }
}
