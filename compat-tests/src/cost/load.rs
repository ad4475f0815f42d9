//! Producers that do not wait for answers: each request has an instant at which it is due, and its latency counts from there, so that
//! what waits behind a pause is counted too.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use kafka_protocol::messages::{ProduceResponse, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion};
use kafka_protocol::records::Record;

use crate::checks::numbered;
use crate::wire::{self, PRODUCE_VERSION};

/// Requests of a connection in flight at most. At part load it is not reached but by a pause.
const WINDOW: usize = 256;
const WINDOW_FULL_LOAD: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// What is sent where.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The broker.
    pub address: SocketAddr,
    /// Connections take these in turns.
    pub topics: Vec<&'static str>,
    /// Of each topic.
    pub partitions: i32,
    /// How many.
    pub connections: usize,
    /// Of a batch.
    pub records: usize,
    /// Of a record.
    pub value_bytes: usize,
}

/// One request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Its topic.
    pub topic: &'static str,
    /// Its partition.
    pub partition: i32,
    /// When it should have been sent.
    pub due: Instant,
    /// From then to its answer.
    pub latency: Duration,
}

impl Sample {
    /// When its answer was there.
    pub fn answered(&self) -> Instant {
        self.due + self.latency
    }
}

/// Producers at work.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Result<()>>>,
    receivers: Vec<JoinHandle<Result<Vec<Sample>>>>,
}

type Sent = (i32, Instant);

impl Load {
    /// Starts them: all together `rate` requests a second, or as many as are answered.
    pub fn start(shape: &Shape, rate: Option<f64>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for number in 0..shape.connections {
            let topic = shape.topics[number % shape.topics.len()];
            let stream = TcpStream::connect(shape.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let answers = stream.try_clone()?;
            let window = if rate.is_some() { WINDOW } else { WINDOW_FULL_LOAD };
            let (sent, waiting) = mpsc::sync_channel(window);
            let interval = rate.map(|rate| Duration::from_secs_f64(shape.connections as f64 / rate));
            let sender = Sending { shape: shape.clone(), number, topic, interval, stop: stop.clone() };
            senders.push(thread::spawn(move || sender.run(stream, sent)));
            receivers.push(thread::spawn(move || receive(topic, answers, waiting)));
        }
        Ok(Self { stop, senders, receivers })
    }

    /// Ends them; what was answered. Errors: a request failed.
    pub fn stop(self) -> Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Release);
        let sent: Vec<_> = self.senders.into_iter().map(JoinHandle::join).collect();
        let mut samples = Vec::new();
        // A receiver that ends has the reason, its sender only notices.
        for receiver in self.receivers {
            samples.extend(receiver.join().map_err(|_| anyhow!("a receiver panicked"))??);
        }
        for sender in sent {
            sender.map_err(|_| anyhow!("a sender panicked"))??;
        }
        ensure!(!samples.is_empty(), "nothing was answered");
        Ok(samples)
    }
}

struct Sending {
    shape: Shape,
    number: usize,
    topic: &'static str,
    interval: Option<Duration>,
    stop: Arc<AtomicBool>,
}

impl Sending {
    fn run(self, mut stream: TcpStream, sent: SyncSender<Sent>) -> Result<()> {
        let records = batch(self.shape.records, self.shape.value_bytes)?;
        let mut due = Instant::now();
        // Connections spread over the partitions, each in its own order.
        let mut partition = (self.number as i32 * 7) % self.shape.partitions;
        for correlation in 0.. {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            match self.interval {
                Some(interval) => {
                    due += interval;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                None => due = Instant::now(),
            }
            let request = wire::produce_request(vec![(self.topic, partition, records.clone())], -1, 30_000);
            let frame = wire::frame(&request, PRODUCE_VERSION, correlation)?;
            sent.send((partition, due)).ok().context("the receiver has ended")?;
            std::io::Write::write_all(&mut stream, &frame)?;
            partition = (partition + 1) % self.shape.partitions;
        }
        Ok(())
    }
}

fn receive(topic: &'static str, mut stream: TcpStream, waiting: Receiver<Sent>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (partition, due) in waiting {
        let mut frame = wire::read_frame(&mut stream)?;
        let latency = due.elapsed();
        ResponseHeader::decode(&mut frame, ProduceResponse::header_version(PRODUCE_VERSION))?;
        let response = ProduceResponse::decode(&mut frame, PRODUCE_VERSION)?;
        let code = response.responses.first().and_then(|topic| topic.partition_responses.first());
        let code = code.context("an answer without its partition")?.error_code;
        ensure!(code == 0, "{topic} partition {partition}: a batch was answered {code}");
        samples.push(Sample { topic, partition, due, latency });
    }
    Ok(samples)
}

/// A plain batch of records that are alike.
pub fn batch(records: usize, value_bytes: usize) -> Result<Bytes> {
    let mut value = vec![0; value_bytes];
    fastrand::Rng::with_seed(1).fill(&mut value);
    let value = Bytes::from(value);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
    let one = |number| Record { value: Some(value.clone()), ..numbered::record(0, number, now) };
    let mut records: Vec<Record> = (0..records as u64).map(one).collect();
    wire::batch(&mut records, None)
}
