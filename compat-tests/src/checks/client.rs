//! A client that connects again for as long as the run lasts, and tells kills from wrong answers.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{BrokerId, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest};
use kafka_protocol::protocol::Request;

use crate::turmoil::Turmoil;
use crate::wire::{self, Connection, FETCH_VERSION, FetchFrom, FetchedBatch};

const PATIENCE: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const FETCH_BYTES: i32 = 256 << 10;
/// `isolation_level` of a reader of all records, and of committed ones only.
pub const ISOLATIONS: [i8; 2] = [0, 1];
/// Timestamps that stand for a log's end, its start, and its latest time.
pub const LATEST: i64 = -1;
/// See [`LATEST`].
pub const EARLIEST: i64 = -2;
/// See [`LATEST`].
pub const MAX_TIMESTAMP: i64 = -3;
/// Answers after which a client asks again: a partition or its leader that is not known yet, a time limit, a disk that has no
/// quorum now, an epoch that changes, an offset that is not known yet.
const RETRIABLE: [i16; 10] = [3, 5, 6, 7, 19, 20, 56, 74, 75, 78];

/// Whether a client asks again after this code.
pub fn is_retriable(code: i16) -> bool {
    RETRIABLE.contains(&code)
}

/// Whether an error is a broken connection, as kills leave them.
pub fn is_broken(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<io::Error>())
}

/// See the module head.
#[derive(Debug)]
pub struct Client<'a> {
    turmoil: &'a Turmoil,
    address: SocketAddr,
    connection: Option<Connection>,
}

/// What a fetch of one partition answered.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Error code, 0 or one after which one asks again.
    pub code: i16,
    /// Log start, last stable offset, high watermark.
    pub bounds: [i64; 3],
    /// Whole batches.
    pub batches: Vec<FetchedBatch>,
    /// For readers of committed records: producer and first offset of the aborted transactions among them.
    pub aborted: Vec<(i64, i64)>,
}

impl<'a> Client<'a> {
    /// A client of the broker.
    pub fn new(turmoil: &'a Turmoil) -> Self {
        Self { turmoil, address: turmoil.address, connection: None }
    }

    /// A connection, tried until there is one.
    pub fn connected(&mut self) -> Result<&mut Connection> {
        while self.connection.is_none() {
            self.turmoil.in_time()?;
            match Connection::open(self.address, PATIENCE) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => thread::sleep(RETRY_PAUSE),
            }
        }
        self.connection.as_mut().context("it was just made")
    }

    /// Asks until there is an answer. Errors: an answer that cannot be read, or the run is over.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        loop {
            match self.connected()?.call(request, version) {
                Ok(response) => return Ok(response),
                Err(error) if is_broken(&error) => self.connection = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks until the answer's code is none after which one asks again.
    pub fn settled<T>(&mut self, mut ask: impl FnMut(&mut Self) -> Result<(i16, T)>) -> Result<(i16, T)> {
        loop {
            let (code, answer) = ask(self)?;
            if !is_retriable(code) {
                return Ok((code, answer));
            }
            self.turmoil.in_time()?;
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// (offset, timestamp) that ListOffsets answers; an error code is an error.
    pub fn list_offset(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
        isolation: i8,
    ) -> Result<(i64, i64)> {
        let wanted = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let of_topic =
            ListOffsetsTopic::default().with_name(wire::topic(topic)).with_partitions(vec![wanted]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_isolation_level(isolation)
            .with_topics(vec![of_topic]);
        let (code, found) = self.settled(|client| {
            let response = client.call(&request, 7)?;
            let found = response.topics.first().and_then(|topic| topic.partitions.first());
            let found = found.context("ListOffsets answered without the partition")?;
            Ok((found.error_code, (found.offset, found.timestamp)))
        })?;
        match code {
            0 => Ok(found),
            code => bail!("partition {partition}: ListOffsets of {timestamp} answered {code}"),
        }
    }

    /// One fetch of one partition. Errors: a code that nothing excuses, such as an offset out of range.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64, wait_ms: i32) -> Result<Fetched> {
        self.fetch_as(0, topic, partition, offset, wait_ms)
    }

    /// The same with one of [`ISOLATIONS`].
    pub fn fetch_as(
        &mut self,
        isolation: i8,
        topic: &str,
        partition: i32,
        offset: i64,
        wait_ms: i32,
    ) -> Result<Fetched> {
        let from = [FetchFrom { topic, partition, offset }];
        let request = wire::fetch_request(&from, wait_ms, FETCH_BYTES).with_isolation_level(isolation);
        let response = self.call::<FetchRequest>(&request, FETCH_VERSION)?;
        let found =
            response.responses.into_iter().next().and_then(|topic| topic.partitions.into_iter().next());
        let found = found.context("a fetch answered without its partition")?;
        let code = found.error_code;
        if code != 0 && !is_retriable(code) {
            bail!("partition {partition}: a fetch at {offset} answered {code}");
        }
        let bounds = [found.log_start_offset, found.last_stable_offset, found.high_watermark];
        let aborted = found.aborted_transactions.unwrap_or_default();
        let aborted = aborted.iter().map(|one| (one.producer_id.0, one.first_offset)).collect();
        Ok(Fetched { code, bounds, batches: wire::batches(found.records.unwrap_or_default())?, aborted })
    }

    /// (epoch, end offset) that OffsetForLeaderEpoch answers.
    pub fn epoch_end(&mut self, topic: &str, partition: i32, epoch: i32) -> Result<(i32, i64)> {
        let wanted = OffsetForLeaderPartition::default()
            .with_partition(partition)
            .with_current_leader_epoch(-1)
            .with_leader_epoch(epoch);
        let of_topic =
            OffsetForLeaderTopic::default().with_topic(wire::topic(topic)).with_partitions(vec![wanted]);
        let request =
            OffsetForLeaderEpochRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![of_topic]);
        let (code, found) = self.settled(|client| {
            let response = client.call(&request, 4)?;
            let found = response.topics.first().and_then(|topic| topic.partitions.first());
            let found = found.context("OffsetForLeaderEpoch answered without the partition")?;
            Ok((found.error_code, (found.leader_epoch, found.end_offset)))
        })?;
        match code {
            0 => Ok(found),
            code => bail!("partition {partition}: OffsetForLeaderEpoch of {epoch} answered {code}"),
        }
    }
}
