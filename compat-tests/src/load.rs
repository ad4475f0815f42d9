//! The clients of a crash storm: producers with exact sequences, readers, a group member that commits.
//!
//! Each is a thread with one connection at a time; when it breaks, the thread reconnects and does what a real client
//! may do: producers send everything unanswered again in order, readers go on from their position, the group member
//! rejoins and asks where it stands. Everything sent, answered and seen goes into the [`History`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ProduceRequest, ProduceResponse};

use crate::judge::{Ack, Attempt, Fault, History, Kind};
use crate::payload::{Place, RecordId, identify, record};
use crate::wire::{self, Connection, FETCH_VERSION, FetchFrom, PRODUCE_VERSION};

/// How long a client waits for one answer before it gives the connection up.
pub const PATIENCE: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(30);
/// Requests of one producer in flight: what an idempotent Kafka producer allows itself.
const WINDOW: usize = 5;
const BATCH_RECORDS_MAX: u32 = 40;
const BATCH_BYTES_MAX: usize = 800_000;
const READ_PARTITION_BYTES: i32 = 256 << 10;

const OFFSET_OUT_OF_RANGE: i16 = 1;
const OUT_OF_ORDER_SEQUENCE: i16 = 45;
/// Answers after which a client tries again: unknown topic, leader not available, not leader, timed out, not enough
/// replicas (twice), storage error, fenced or unknown leader epoch.
const RETRIABLE: [i16; 9] = [3, 5, 6, 7, 19, 20, 56, 74, 75];

/// A topic of the run.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: i32,
    /// Its configs.
    pub configs: Vec<(&'static str, &'static str)>,
    /// Whether retention may raise its log starts.
    pub trimmed: bool,
}

/// What all clients of a run share.
#[derive(Debug)]
pub struct Shared {
    /// Where the broker listens, over all restarts.
    pub address: SocketAddr,
    /// Wall-clock start of the run, ms.
    pub began_ms: i64,
    /// The topics, by number.
    pub topics: Vec<Topic>,
    /// Batches sent and not answered.
    pub in_flight: AtomicI64,
    /// Records acknowledged.
    pub acked: AtomicU64,
    /// Records read by consumers.
    pub read: AtomicU64,
    /// Batches that were answered with an error which a client tries again after.
    pub refused: AtomicU64,
    /// Times that group members joined.
    pub joins: AtomicU64,
    /// Bytes that each producer sends in a second at most.
    pub rate: u64,
    /// No new batches: flush and end.
    pub draining: AtomicBool,
    /// End now.
    pub stopped: AtomicBool,
    /// Readers that came to the end of everything while the run drained.
    pub readers_done: AtomicU64,
    reader_error: Mutex<String>,
    history: Mutex<History>,
}

impl Shared {
    /// A run against that address.
    pub fn new(address: SocketAddr, began_ms: i64, topics: Vec<Topic>, rate: u64) -> Self {
        let mut history = History::default();
        for (number, topic) in (0..).zip(&topics) {
            if topic.trimmed {
                history.may_trim(number);
            }
        }
        Self {
            address,
            began_ms,
            topics,
            in_flight: AtomicI64::new(0),
            acked: AtomicU64::new(0),
            read: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            joins: AtomicU64::new(0),
            rate,
            draining: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            readers_done: AtomicU64::new(0),
            reader_error: Mutex::default(),
            history: Mutex::new(history),
        }
    }

    /// The history; a panic of another client does not hide what it recorded.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader_stopped_by(&self, error: &anyhow::Error) {
        *self.reader_error.lock().unwrap_or_else(PoisonError::into_inner) = format!("{error:#}");
    }

    /// What last ended a reader's connection.
    pub fn reader_error(&self) -> String {
        self.reader_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All partitions of the run.
    pub fn places(&self) -> Vec<Place> {
        (0..)
            .zip(&self.topics)
            .flat_map(|(topic, t)| (0..t.partitions).map(move |partition| Place { topic, partition }))
            .collect()
    }

    fn topic(&self, place: Place) -> &str {
        self.topics.get(usize::from(place.topic)).map_or("", |t| &t.name)
    }

    fn place(&self, topic: &str, partition: i32) -> Option<Place> {
        let number = self.topics.iter().position(|t| t.name == topic)?;
        Some(Place { topic: u16::try_from(number).ok()?, partition })
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A connection, tried until there is one; `None` once the run is over.
    pub fn connect(&self) -> Option<Connection> {
        while !self.stopped() {
            match Connection::open(self.address, PATIENCE) {
                Ok(connection) => return Some(connection),
                Err(_) => thread::sleep(RECONNECT_PAUSE),
            }
        }
        None
    }
}

/// A batch that has been sent at least once and is not acknowledged.
#[derive(Clone, Debug)]
struct Batch {
    place: Place,
    records: Attempt,
    first_sequence: i32,
}

/// A producer: up to five requests in flight, each with batches of up to three partitions.
#[derive(Debug)]
pub struct Producer<'a> {
    shared: &'a Shared,
    number: u32,
    kind: Kind,
    acks: i16,
    random: fastrand::Rng,
    next: BTreeMap<Place, (u64, i32)>,
    /// Requests in sending order; the first `sent` of them are on the present connection.
    requests: VecDeque<Vec<Batch>>,
    sent: usize,
    /// Batches of those.
    flying: i64,
    id: Option<(i64, i16)>,
    began: Instant,
    bytes: u64,
}

impl<'a> Producer<'a> {
    /// A producer of that number; its choices follow from the seed.
    pub fn new(shared: &'a Shared, number: u32, kind: Kind, acks: i16, seed: u64) -> Self {
        shared.history().producer(number, kind);
        Self {
            shared,
            number,
            kind,
            acks,
            random: fastrand::Rng::with_seed(seed),
            next: shared.places().into_iter().map(|place| (place, (0, 0))).collect(),
            requests: VecDeque::new(),
            sent: 0,
            flying: 0,
            id: None,
            began: Instant::now(),
            bytes: 0,
        }
    }

    /// Produces until the run drains, then until everything is acknowledged. Answers the batches still open.
    pub fn run(mut self) -> usize {
        while !(self.shared.stopped() || self.shared.draining() && self.requests.is_empty()) {
            let Some(mut connection) = self.shared.connect() else { break };
            let outcome = self.converse(&mut connection);
            self.forget_connection();
            if outcome.is_err() {
                thread::sleep(RECONNECT_PAUSE);
            }
        }
        self.requests.iter().map(Vec::len).sum()
    }

    /// Uses one connection until the run is over or the connection breaks (the error).
    fn converse(&mut self, connection: &mut Connection) -> Result<()> {
        if self.kind == Kind::Idempotent && self.id.is_none() {
            match connection.init_producer()? {
                Ok(id) => self.id = Some(id),
                Err(code) => bail!("InitProducerId answered {code}"),
            }
        }
        while !self.shared.stopped() {
            while self.sent < self.requests.len().min(WINDOW) {
                self.send(connection, self.sent)?;
            }
            if self.sent < WINDOW && !self.shared.draining() && self.requests.len() < WINDOW {
                let request = self.next_request();
                self.requests.push_back(request);
                continue;
            }
            if self.sent == 0 {
                return Ok(());
            }
            if !self.take_answer(connection)? {
                self.take_rest_and_retry(connection)?;
            }
        }
        Ok(())
    }

    fn next_request(&mut self) -> Vec<Batch> {
        self.keep_to_rate();
        let mut places: BTreeSet<Place> = BTreeSet::new();
        for _ in 0..self.random.usize(1..=3) {
            let at = self.random.usize(..self.next.len());
            places.extend(self.next.keys().nth(at).copied());
        }
        let mut batches = Vec::new();
        for place in places {
            let Some((counter, sequence)) = self.next.get_mut(&place) else { continue };
            let count = self.random.u32(1..=BATCH_RECORDS_MAX);
            let count = fitting(place, self.number, *counter, count, self.shared.began_ms);
            let records = Attempt { first: *counter, count };
            batches.push(Batch { place, records, first_sequence: *sequence });
            *counter += u64::from(count);
            *sequence += count as i32;
        }
        batches
    }

    fn keep_to_rate(&self) {
        let due = Duration::from_millis(self.bytes.saturating_mul(1_000) / self.shared.rate.max(1));
        // Sleeping in short pieces keeps answers from lying about for long.
        thread::sleep(due.saturating_sub(self.began.elapsed()).min(Duration::from_millis(20)));
    }

    fn send(&mut self, connection: &mut Connection, index: usize) -> Result<()> {
        let batches = self.requests.get(index).cloned().unwrap_or_default();
        let mut encoded = Vec::new();
        for batch in &batches {
            let numbers = batch.records.first..batch.records.first + u64::from(batch.records.count);
            let mut records: Vec<_> = numbers
                .map(|counter| RecordId { producer: self.number, counter })
                .map(|id| record(batch.place, id, self.shared.began_ms))
                .collect();
            let producer = self.id.map(|(id, epoch)| (id, epoch, batch.first_sequence));
            let bytes = wire::batch(&mut records, producer)?;
            self.bytes += bytes.len() as u64;
            encoded.push((self.shared.topic(batch.place), batch.place.partition, bytes));
        }
        let request = wire::produce_request(encoded, self.acks, 20_000);
        {
            let mut history = self.shared.history();
            for batch in &batches {
                history.attempted(batch.place, self.number, batch.records);
            }
        }
        self.shared.in_flight.fetch_add(batches.len() as i64, Ordering::AcqRel);
        self.flying += batches.len() as i64;
        self.sent += 1;
        connection.send(&request, PRODUCE_VERSION)
    }

    /// Takes the answer to the first request. `false` when a part of it must be tried again.
    fn take_answer(&mut self, connection: &mut Connection) -> Result<bool> {
        let response = connection.receive::<ProduceRequest>()?;
        let request = self.take_first();
        let left = self.settle(request, &response, &mut BTreeSet::new());
        let done = left.is_empty();
        if !done {
            self.requests.push_front(left);
        }
        Ok(done)
    }

    /// After a refusal: takes the answers of all that is in flight, keeps what was refused in its order, and begins again.
    fn take_rest_and_retry(&mut self, connection: &mut Connection) -> Result<()> {
        let mut refused: BTreeSet<Place> =
            self.requests.front().into_iter().flatten().map(|batch| batch.place).collect();
        let mut again: VecDeque<Vec<Batch>> = self.requests.pop_front().into_iter().collect();
        while connection.waiting() > 0 {
            let response = match connection.receive::<ProduceRequest>() {
                Ok(response) => response,
                Err(error) => {
                    while let Some(request) = again.pop_back() {
                        self.requests.push_front(request);
                    }
                    return Err(error);
                }
            };
            let request = self.take_first();
            let left = self.settle(request, &response, &mut refused);
            if !left.is_empty() {
                again.push_back(left);
            }
        }
        while let Some(request) = again.pop_back() {
            self.requests.push_front(request);
        }
        self.sent = 0;
        thread::sleep(RETRY_PAUSE);
        Ok(())
    }

    fn take_first(&mut self) -> Vec<Batch> {
        let request = self.requests.pop_front().unwrap_or_default();
        self.sent = self.sent.saturating_sub(1);
        self.shared.in_flight.fetch_sub(request.len() as i64, Ordering::AcqRel);
        self.flying -= request.len() as i64;
        request
    }

    /// Records the answer of each batch; gives back those to be tried again.
    fn settle(
        &self,
        request: Vec<Batch>,
        response: &ProduceResponse,
        refused: &mut BTreeSet<Place>,
    ) -> Vec<Batch> {
        let mut left = Vec::new();
        let mut history = self.shared.history();
        for batch in request {
            let place = batch.place;
            let answer = response
                .responses
                .iter()
                .filter(|t| t.name.0.as_str() == self.shared.topic(place))
                .flat_map(|t| &t.partition_responses)
                .find(|p| p.index == place.partition);
            match answer.map(|a| (a.error_code, a.base_offset, &a.error_message)) {
                Some((0, base_offset, _)) if base_offset >= 0 => {
                    let ack = Ack { producer: self.number, batch: batch.records, base_offset };
                    history.acked(place, ack);
                    self.shared.acked.fetch_add(u64::from(batch.records.count), Ordering::AcqRel);
                }
                Some((code, ..))
                    if RETRIABLE.contains(&code)
                        || code == OUT_OF_ORDER_SEQUENCE && refused.contains(&place) =>
                {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                    refused.insert(place);
                    left.push(batch);
                }
                answer => {
                    let id = RecordId { producer: self.number, counter: batch.records.first };
                    let what = format!("produce of {} from {id}: {answer:?}", batch.records.count);
                    history.fault(Fault::Answer { place, what });
                    // Tried again all the same, so that one wrong answer is not reported as many lost records.
                    refused.insert(place);
                    left.push(batch);
                }
            }
        }
        left
    }

    fn forget_connection(&mut self) {
        self.shared.in_flight.fetch_sub(self.flying, Ordering::AcqRel);
        self.flying = 0;
        self.sent = 0;
    }
}

/// How many of `count` records fit one batch.
fn fitting(place: Place, producer: u32, first: u64, count: u32, began_ms: i64) -> u32 {
    let mut bytes = 0;
    for index in 0..count {
        let id = RecordId { producer, counter: first + u64::from(index) };
        bytes += record(place, id, began_ms).value.map_or(0, |value| value.len()) + 64;
        if bytes > BATCH_BYTES_MAX {
            return index.max(1);
        }
    }
    count
}

/// Reads every partition over and over from where it stands, now and then a stretch back.
#[derive(Debug)]
pub struct Reader<'a> {
    shared: &'a Shared,
    random: fastrand::Rng,
    positions: BTreeMap<Place, i64>,
}

impl<'a> Reader<'a> {
    /// A reader from the start of everything.
    pub fn new(shared: &'a Shared, seed: u64) -> Self {
        let positions = shared.places().into_iter().map(|place| (place, 0)).collect();
        Self { shared, random: fastrand::Rng::with_seed(seed), positions }
    }

    /// A reader from these positions.
    pub fn from(shared: &'a Shared, positions: BTreeMap<Place, i64>) -> Self {
        Self { shared, random: fastrand::Rng::with_seed(0), positions }
    }

    /// Reads until the run stops; while it drains, until everything acknowledged has been read.
    pub fn run(mut self) {
        while let Some(mut connection) = self.shared.connect() {
            while !self.shared.stopped() {
                if !self.shared.draining() {
                    self.step_back_sometimes();
                } else if self.shared.history().is_read_up_to(&self.positions) {
                    self.shared.readers_done.fetch_add(1, Ordering::AcqRel);
                    return;
                }
                if let Err(error) = self.read_once(&mut connection) {
                    self.shared.reader_stopped_by(&error);
                    break;
                }
            }
            thread::sleep(RECONNECT_PAUSE);
        }
    }

    /// Where it stands.
    pub fn positions(&self) -> &BTreeMap<Place, i64> {
        &self.positions
    }

    fn step_back_sometimes(&mut self) {
        const BACK_RECORDS_MAX: i64 = 2_000;
        for position in self.positions.values_mut() {
            if self.random.u8(..200) == 0 {
                *position -= self.random.i64(0..=BACK_RECORDS_MAX).min(*position);
            }
        }
    }

    /// One fetch of everything; records what it gives.
    pub fn read_once(&mut self, connection: &mut Connection) -> Result<()> {
        let from: Vec<FetchFrom<'_>> = self
            .positions
            .iter()
            .map(|(place, offset)| FetchFrom {
                topic: self.shared.topic(*place),
                partition: place.partition,
                offset: *offset,
            })
            .collect();
        let request = wire::fetch_request(&from, 200, READ_PARTITION_BYTES);
        let response = connection.call::<FetchRequest>(&request, FETCH_VERSION)?;
        let mut busy = false;
        for (place, code, records) in parts(self.shared, &response) {
            match code {
                0 => busy |= self.take(place, records)?,
                OFFSET_OUT_OF_RANGE => self.out_of_range(connection, place)?,
                _ if RETRIABLE.contains(&code) => {}
                _ => {
                    let what = format!("fetch answered {code}");
                    self.shared.history().fault(Fault::Answer { place, what });
                    thread::sleep(RETRY_PAUSE);
                }
            }
        }
        if !busy {
            thread::sleep(RECONNECT_PAUSE);
        }
        Ok(())
    }

    fn take(&mut self, place: Place, records: bytes::Bytes) -> Result<bool> {
        let Some(position) = self.positions.get_mut(&place) else { return Ok(false) };
        let before = *position;
        let mut history = self.shared.history();
        for batch in wire::batches(records).with_context(|| format!("decoding what {place} gave"))? {
            for (offset, record) in (batch.base_offset..).zip(&batch.records) {
                if record.offset != offset || offset > *position {
                    let found = record.offset.max(offset);
                    history.fault(Fault::NotDense { place, expected: *position, found });
                }
                if offset >= *position {
                    history.seen(place, offset, identify(place, record, self.shared.began_ms));
                    *position = offset + 1;
                }
            }
        }
        self.shared.read.fetch_add((*position - before) as u64, Ordering::AcqRel);
        Ok(*position > before)
    }

    /// Allowed only below a log start that has risen.
    fn out_of_range(&mut self, connection: &mut Connection, place: Place) -> Result<()> {
        let Some(position) = self.positions.get_mut(&place) else { return Ok(()) };
        let topic = self.shared.topic(place);
        let (code, start) = connection.list_offset(topic, place.partition, -2)?;
        if code != 0 {
            return Ok(());
        }
        let trimmed = self.shared.topics.get(usize::from(place.topic)).is_some_and(|t| t.trimmed);
        if !trimmed || *position >= start {
            let what = format!("offset {position} is out of range, the log starts at {start}");
            self.shared.history().fault(Fault::Answer { place, what });
        }
        *position = start;
        Ok(())
    }
}

/// (partition, error code, records) of each part of a fetch's answer that belongs to the run.
pub fn parts(shared: &Shared, response: &FetchResponse) -> Vec<(Place, i16, bytes::Bytes)> {
    let topics = response.responses.iter();
    topics
        .flat_map(|topic| {
            topic.partitions.iter().filter_map(|part| {
                let place = shared.place(topic.topic.0.as_str(), part.partition_index)?;
                Some((place, part.error_code, part.records.clone().unwrap_or_default()))
            })
        })
        .collect()
}
