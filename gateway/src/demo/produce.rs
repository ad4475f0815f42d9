//! The demo's producer: idempotent, several requests on their way, what is refused for now is sent again in its order.

use super::waiting::{Sent, Waiting};
use super::{Load, pause};
use crate::bench::client::{Broken, Connection, TIMEOUT_MS, answer, broken, frame, refused};
use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceResponse};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

const PRODUCE: i16 = 9;
const INIT_PRODUCER_ID: i16 = 4;
/// Requests on their way at once; a broker remembers as many batches of a producer.
const IN_FLIGHT: usize = 5;
/// Records gather for so long.
const LINGER: Duration = Duration::from_millis(5);
/// A batch that is refused for so long is given up.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// A batch on its way: it keeps its bytes, so that it can be sent again as it was.
#[derive(Clone, Debug)]
struct Batch {
    partition: i32,
    bytes: Bytes,
    /// Keys of its records by their places in `Load::keys`.
    keys: Vec<usize>,
}

struct Producer<'a> {
    load: &'a Load,
    connection: Connection,
    id: i64,
    epoch: i16,
    /// The keys of each partition, and the next one's turn.
    turns: BTreeMap<i32, (Vec<usize>, usize)>,
    /// Next number of each partition's records at the broker.
    sequences: BTreeMap<i32, i32>,
    /// Next number of each key's records.
    numbers: BTreeMap<usize, u64>,
    flying: VecDeque<(Vec<Batch>, Sent)>,
    waiting: Waiting<Batch>,
    refused_since: Option<Instant>,
    sent: u64,
}

/// Produces the keys of every `of`th partition at its share of the rate until told to stop, and until all is acknowledged.
///
/// Errors: a refusal that stays, or a connection that breaks.
pub fn run(load: &Load, share: usize, of: usize) -> Result<(), Broken> {
    let mut connection = Connection::open(&load.address)?;
    let request = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1);
    let given = connection.call(&request, INIT_PRODUCER_ID)?;
    refused("InitProducerId", given.error_code, None)?;
    let mut turns: BTreeMap<i32, (Vec<usize>, usize)> = BTreeMap::new();
    for (at, key) in load.keys.iter().enumerate() {
        if usize::try_from(key.partition).is_ok_and(|partition| partition % of == share) {
            turns.entry(key.partition).or_default().0.push(at);
        }
    }
    let mut producer = Producer {
        load,
        connection,
        id: given.producer_id.0,
        epoch: given.producer_epoch,
        turns,
        sequences: BTreeMap::new(),
        numbers: BTreeMap::new(),
        flying: VecDeque::new(),
        waiting: Waiting::default(),
        refused_since: None,
        sent: 0,
    };
    let rate = f64::from(load.rate.max(1)) / of as f64;
    let began = Instant::now();
    while !load.state.is_broken() {
        let on = !load.state.produced_enough.load(Relaxed);
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        let room = producer.waiting.is_empty() && producer.flying.len() < IN_FLIGHT;
        if on && room && due > producer.sent {
            // After a stall what is overdue is not sent in one go.
            producer.send_new((due - producer.sent).min(rate as u64 / 10 + 1))?;
        } else if producer.flying.is_empty() && !producer.waiting.is_empty() {
            producer.send_again()?;
        } else if !producer.flying.is_empty() {
            producer.receive()?;
        } else if on {
            pause(LINGER);
        } else {
            return Ok(());
        }
        if on && producer.flying.len() < IN_FLIGHT {
            pause(LINGER);
        }
    }
    Ok(())
}

impl Producer<'_> {
    /// Sends so many records, dealt out to the partitions.
    fn send_new(&mut self, records: u64) -> Result<(), Broken> {
        let partitions: Vec<i32> = self.turns.keys().copied().collect();
        let each = usize::try_from(records).unwrap_or(usize::MAX).div_ceil(partitions.len().max(1));
        let batches: Vec<Batch> =
            partitions.into_iter().map(|partition| self.batch(partition, each)).collect::<Result<_, _>>()?;
        self.sent += batches.iter().map(|batch| batch.keys.len() as u64).sum::<u64>();
        self.send(batches, Sent::First)
    }

    /// Sends the first refused batch of each partition; the rest waits until that is answered.
    fn send_again(&mut self) -> Result<(), Broken> {
        if self.refused_since.is_some_and(|since| since.elapsed() > REFUSED_MAX) {
            return Err(Broken(format!("producing was refused for {REFUSED_MAX:?}")));
        }
        pause(LINGER);
        let batches = self.waiting.next_round();
        self.send(batches, Sent::Again)
    }

    fn send(&mut self, batches: Vec<Batch>, sent: Sent) -> Result<(), Broken> {
        let rows = batches.iter().map(|batch| {
            PartitionProduceData::default()
                .with_index(batch.partition)
                .with_records(Some(batch.bytes.clone()))
        });
        let data = TopicProduceData::default()
            .with_name(self.load.topic.clone())
            .with_partition_data(rows.collect());
        let request =
            ProduceRequest::default().with_acks(-1).with_timeout_ms(TIMEOUT_MS).with_topic_data(vec![data]);
        self.connection.send(&mut frame(&request, PRODUCE)?)?;
        self.flying.push_back((batches, sent));
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Broken> {
        let body = self.connection.receive()?;
        let answered: ProduceResponse = answer::<ProduceRequest>(&body, PRODUCE)?;
        let mut codes: BTreeMap<i32, i16> = BTreeMap::new();
        for row in answered.responses.iter().flat_map(|topic| &topic.partition_responses) {
            codes.insert(row.index, row.error_code);
        }
        let mut refused_now = Vec::new();
        let Some((batches, sent)) = self.flying.pop_front() else { return Ok(()) };
        for batch in batches {
            let Some(code) = codes.get(&batch.partition).copied() else {
                return Err(Broken(format!("partition {} was not answered", batch.partition)));
            };
            match ResponseError::try_from_code(code) {
                // Stored by an earlier try of which the answer said otherwise.
                None | Some(ResponseError::DuplicateSequenceNumber) => self.acknowledged(&batch),
                Some(error) if error.is_retriable() || self.is_behind_refused(&batch, error, sent) => {
                    self.load.state.refusals.fetch_add(1, Relaxed);
                    refused_now.push((batch.partition, batch));
                }
                Some(_) => refused(format!("producing to partition {}", batch.partition), code, None)?,
            }
        }
        self.waiting.refused(refused_now, sent);
        match self.waiting.is_empty() {
            true => self.refused_since = None,
            false => {
                self.refused_since.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// What was sent behind a refused batch of its partition is out of order until that one is stored.
    fn is_behind_refused(&self, batch: &Batch, error: ResponseError, sent: Sent) -> bool {
        sent == Sent::First
            && error == ResponseError::OutOfOrderSequenceNumber
            && self.waiting.has(batch.partition)
    }

    fn acknowledged(&self, batch: &Batch) {
        for key in &batch.keys {
            if let Some(key) = self.load.keys.get(*key) {
                key.acknowledged.fetch_add(1, Relaxed);
            }
        }
        self.load.state.acknowledged.fetch_add(batch.keys.len() as u64, Relaxed);
    }

    /// The next `count` records of a partition, its keys in turn.
    fn batch(&mut self, partition: i32, count: usize) -> Result<Batch, Broken> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let timestamp = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let (keys, turn) = self.turns.entry(partition).or_default();
        let first = self.sequences.entry(partition).or_insert(0);
        let mut records = Vec::with_capacity(count);
        let mut of_records = Vec::with_capacity(count);
        for at in 0..count {
            let Some(key) = keys.get(*turn % keys.len().max(1)).copied() else { break };
            let Some(keyed) = self.load.keys.get(key) else { break };
            *turn += 1;
            let number = self.numbers.entry(key).or_insert(0);
            records.push(Record {
                transactional: false,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
                producer_id: self.id,
                producer_epoch: self.epoch,
                timestamp_type: TimestampType::Creation,
                offset: at as i64,
                sequence: first.saturating_add(at as i32),
                timestamp,
                key: Some(Bytes::copy_from_slice(keyed.text.as_bytes())),
                value: Some(Bytes::from(number.to_string())),
                headers: Default::default(),
            });
            *number += 1;
            of_records.push(key);
        }
        *first = first.saturating_add(records.len() as i32);
        let options = RecordEncodeOptions { version: 2, compression: Compression::None };
        let mut bytes = BytesMut::new();
        RecordBatchEncoder::encode(&mut bytes, &records, &options).map_err(broken("encoding a batch"))?;
        Ok(Batch { partition, bytes: bytes.freeze(), keys: of_records })
    }
}
