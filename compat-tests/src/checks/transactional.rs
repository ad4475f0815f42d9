//! A transactional producer that goes on across kills: it commits, aborts, or dies in the middle and begins anew under its id. By
//! either rule of KIP-890.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProducerId, TransactionalId,
};

use super::Client;
use super::client::is_retriable;
use super::numbered::record;
use crate::turmoil::Turmoil;
use crate::wire;

const RETRY_PAUSE: Duration = Duration::from_millis(5);
const REQUEST_TIMEOUT_MS: i32 = 30_000;
const BATCHES_MAX: u32 = 5;
const RECORDS_MAX: u32 = 8;
const PARTS_MAX: usize = 3;
const INIT_VERSION: i16 = 4;
/// Fewer transactions of one writer say too little.
const COMMITTED_MIN: usize = 15;
const ABORTED_MIN: usize = 7;
/// Answers after which a transactional client asks the same again: its coordinator loads or is elsewhere, or the transaction
/// before is being completed.
const RETRIABLE: [i16; 4] = [14, 15, 16, 51];

/// How a partition becomes part of a transaction (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// By asking for it; epochs stay.
    Asked,
    /// By writing to it; each end gives another epoch.
    Written,
}

/// A number that is a record's in all of a run: who sent it in which transaction.
pub fn number(writer: u64, transaction: u32, index: u32) -> u64 {
    writer << 48 | u64::from(transaction) << 16 | u64::from(index)
}

/// Writer and transaction of a record.
pub fn transaction_of(number: u64) -> u64 {
    number >> 16
}

/// What became of what was sent.
#[derive(Debug, Default)]
pub struct Book {
    /// Of each partition the acknowledged offset of each record.
    pub acked: BTreeMap<(i32, u64), i64>,
    /// Whether each transaction, by [`transaction_of`], was committed.
    pub committed: BTreeMap<u64, bool>,
}

impl Book {
    fn is_full(&self) -> bool {
        let committed = self.committed.values().filter(|committed| **committed).count();
        committed >= COMMITTED_MIN && self.committed.len() - committed >= ABORTED_MIN
    }
}

/// See the module head.
#[derive(Debug)]
pub struct Transactional<'a> {
    turmoil: &'a Turmoil,
    client: Client<'a>,
    topic: &'a str,
    writer: u64,
    rule: Rule,
    producer: (i64, i16),
    /// Of each partition the next sequence.
    sequences: Vec<i32>,
    random: fastrand::Rng,
    book: Book,
}

impl<'a> Transactional<'a> {
    /// Writer number `writer` to the partitions of a topic.
    pub fn new(turmoil: &'a Turmoil, topic: &'a str, partitions: i32, writer: u64, rule: Rule) -> Self {
        Self {
            turmoil,
            client: Client::new(turmoil),
            topic,
            writer,
            rule,
            producer: (-1, -1),
            sequences: vec![0; partitions.unsigned_abs() as usize],
            random: fastrand::Rng::with_seed(writer),
            book: Book::default(),
        }
    }

    /// One transaction after another while the run goes on, and until there were enough of each kind. Errors: what no kill explains.
    pub fn run(mut self) -> Result<Book> {
        self.begin_anew()?;
        for transaction in 0.. {
            if !self.turmoil.goes_on_until(self.book.is_full()) {
                break;
            }
            self.transaction(transaction)?;
        }
        self.turmoil.in_time()?;
        Ok(self.book)
    }

    fn id(&self) -> TransactionalId {
        TransactionalId(wire::text(&format!("checked-{}", self.writer)))
    }

    /// Whatever is open is aborted.
    fn begin_anew(&mut self) -> Result<()> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.id()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        self.producer = self.asked("InitProducerId", |client| {
            let response = client.call(&request, INIT_VERSION)?;
            Ok((response.error_code, (response.producer_id.0, response.producer_epoch)))
        })?;
        self.sequences.fill(0);
        Ok(())
    }

    fn transaction(&mut self, transaction: u32) -> Result<()> {
        let count = self.sequences.len();
        let parts =
            self.random.choose_multiple(0..count, self.random.clone().usize(1..=PARTS_MAX.min(count)));
        if self.rule == Rule::Asked {
            self.add(&parts)?;
        }
        let mut index = 0;
        for _ in 0..self.random.u32(1..=BATCHES_MAX) {
            let at = self.random.choice(&parts).copied().context("a partition")?;
            let records = self.random.u32(1..=RECORDS_MAX);
            let numbers: Vec<u64> =
                (index..index + records).map(|n| number(self.writer, transaction, n)).collect();
            index += records;
            self.write(at, &numbers)?;
        }
        let end = self.random.u32(0..10);
        let of = transaction_of(number(self.writer, transaction, 0));
        self.book.committed.insert(of, end < 6);
        match end {
            0..6 => self.end(true),
            6..9 => self.end(false),
            _ => self.begin_anew(),
        }
    }

    fn add(&mut self, parts: &[usize]) -> Result<()> {
        let partitions = parts.iter().map(|part| Ok(i32::try_from(*part)?)).collect::<Result<_>>()?;
        let topic =
            AddPartitionsToTxnTopic::default().with_name(wire::topic(self.topic)).with_partitions(partitions);
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.id())
            .with_v3_and_below_producer_id(ProducerId(self.producer.0))
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![topic]);
        self.asked("AddPartitionsToTxn", |client| {
            let response = client.call(&request, 3)?;
            let topics = response.results_by_topic_v3_and_below.iter();
            let mut codes =
                topics.flat_map(|t| &t.results_by_partition).map(|part| part.partition_error_code);
            Ok((codes.find(|code| *code != 0).unwrap_or(0), ()))
        })
    }

    fn write(&mut self, at: usize, numbers: &[u64]) -> Result<()> {
        let partition = i32::try_from(at)?;
        let one = |number: &u64| {
            let mut one = record(partition, *number, self.turmoil.began_ms);
            one.transactional = true;
            one
        };
        let mut records: Vec<_> = numbers.iter().map(one).collect();
        let (id, epoch) = self.producer;
        let bytes = wire::batch(&mut records, Some((id, epoch, self.sequences[at])))?;
        let request = wire::produce_request(vec![(self.topic, partition, bytes)], -1, REQUEST_TIMEOUT_MS)
            .with_transactional_id(Some(self.id()));
        let version = if self.rule == Rule::Written { 12 } else { 11 };
        let base = self.asked("Produce", |client| {
            let response = client.call(&request, version)?;
            let answer = response.responses.first().and_then(|topic| topic.partition_responses.first());
            let answer = answer.context("an answer without its partition")?;
            Ok((answer.error_code, answer.base_offset))
        })?;
        self.sequences[at] += i32::try_from(numbers.len())?;
        self.book.acked.extend(numbers.iter().map(|number| (partition, *number)).zip(base..));
        Ok(())
    }

    fn end(&mut self, commit: bool) -> Result<()> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(commit);
        let version = if self.rule == Rule::Written { 5 } else { 4 };
        let next = self.asked("EndTxn", |client| {
            let response = client.call(&request, version)?;
            Ok((response.error_code, (response.producer_id.0, response.producer_epoch)))
        })?;
        if self.rule == Rule::Written {
            let (id, epoch) = self.producer;
            ensure!(next.0 != id || next.1 > epoch, "{next:?} goes on after {:?}", self.producer);
            self.producer = next;
            self.sequences.fill(0);
        }
        Ok(())
    }

    /// Asks until the answer is none after which one asks again. Errors: any other code.
    fn asked<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&mut Client<'a>) -> Result<(i16, T)>,
    ) -> Result<T> {
        loop {
            match ask(&mut self.client)? {
                (0, answer) => return Ok(answer),
                (code, _) if is_retriable(code) || RETRIABLE.contains(&code) => thread::sleep(RETRY_PAUSE),
                (code, _) => bail!("writer {}: {what} was answered {code}", self.writer),
            }
            self.turmoil.in_time()?;
        }
    }
}
