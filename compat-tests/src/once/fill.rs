//! The input of the exactly-once proof: every number once, whatever is killed meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::records::{
    NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, TimestampType,
};

use crate::wire::{self, Connection};

/// Numbers of one batch.
const BATCH: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(10);

/// Produces 0, 1, 2, … to the partitions in turn, batch by batch.
#[derive(Debug)]
pub(super) struct Fill {
    address: SocketAddr,
    topic: String,
    partitions: i32,
    records: u64,
    connection: Option<Connection>,
    producer: Option<(i64, i16)>,
    /// Of each partition.
    sequences: Vec<i32>,
    /// The first number that is not stored.
    pub(super) next: u64,
}

impl Fill {
    pub(super) fn new(address: SocketAddr, topic: &str, partitions: i32, records: u64) -> Self {
        let sequences = vec![0; partitions as usize];
        let topic = topic.to_owned();
        Self { address, topic, partitions, records, connection: None, producer: None, sequences, next: 0 }
    }

    /// Stores the next batch; again with the same sequence when it is not known to be stored.
    pub(super) fn one(&mut self) -> Result<()> {
        let done = self.send();
        if done.is_err() {
            self.connection = None;
        }
        done
    }

    fn send(&mut self) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(Connection::open(self.address, PATIENCE)?);
        }
        let connection = self.connection.as_mut().context("a connection")?;
        let (id, epoch) = match self.producer {
            Some(producer) => producer,
            None => {
                let given = connection.init_producer()?;
                *self.producer.insert(given.map_err(|code| anyhow::anyhow!("InitProducerId: {code}"))?)
            }
        };
        let until = (self.next + BATCH).min(self.records);
        let mut records: Vec<Record> = (self.next..until).map(record).collect();
        let partition = (self.next / BATCH % self.partitions as u64) as i32;
        let sequence = self.sequences[partition as usize];
        let batch = wire::batch(&mut records, Some((id, epoch, sequence)))?;
        let request = wire::produce_request(vec![(&self.topic, partition, batch)], -1, 10_000);
        let answer = connection.call(&request, wire::PRODUCE_VERSION)?;
        let row = answer.responses.first().and_then(|t| t.partition_responses.first());
        let code = row.context("Produce answered without the partition")?.error_code;
        ensure!(code == 0, "Produce: {code}");
        self.sequences[partition as usize] += records.len() as i32;
        self.next = until;
        Ok(())
    }
}

fn record(number: u64) -> Record {
    Record {
        transactional: false,
        control: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        delete_horizon: false,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: NO_SEQUENCE,
        timestamp: 1_700_000_000_000,
        key: None,
        value: Some(Bytes::from(number.to_string())),
        headers: IndexMap::new(),
    }
}
