//! `__consumer_offsets` for tools that read it: a topic that clients see, derived from the internal topic of groups and
//! stored nowhere (design 12).
//!
//! Owns its name and configs, the records in Kafka's formats (`records`) and the batches around them (`batch`). Which
//! changes there are, and their offsets, is the groups' (`groups/view.rs`). It is a compacted log without delay: of each
//! key the newest record is there, under the offset that it was given, and offsets have gaps where others were.

mod batch;
mod records;

use crate::groups::{GroupError, Groups, Look, TOPIC};
use kafka_protocol::ResponseError;
use rangeway_core::api::{DerivedTopic, PartitionOffsets, PartitionRead, Piece};
use std::collections::BTreeMap;

/// Its name.
pub const NAME: &str = "__consumer_offsets";

/// How clients see it.
pub fn topic() -> DerivedTopic {
    let configs = [("cleanup.policy", "compact"), ("compression.type", "producer")];
    let configs = configs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    DerivedTopic { name: NAME, from: TOPIC, configs: BTreeMap::from(configs) }
}

/// A partition of it that this node leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// Its number.
    pub partition: i32,
    /// Its leader epoch.
    pub epoch: i32,
}

/// A place by time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// ms.
    pub timestamp: i64,
    /// Of the record.
    pub offset: i64,
}

/// Reads from an offset on: of at most `bytes_max`, or one record where `first_whole` says so.
///
/// Errors: an offset outside of the log; a coordinator that is not here, until it is looked for again.
pub async fn read(
    groups: &Groups,
    at: At,
    offset: i64,
    bytes_max: usize,
    first_whole: bool,
) -> Result<PartitionRead, ResponseError> {
    let from = u64::try_from(offset).map_err(|_| ResponseError::OffsetOutOfRange)?;
    let seen = groups.look(at.partition, Look::Read { from, bytes_max }).await.map_err(code)?;
    if from > seen.next {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let offsets = offsets(at, seen.next);
    let batch = match batch::encode(&seen, from, at.epoch).map_err(|()| ResponseError::KafkaStorageError)? {
        Some(batch) if first_whole || batch.len() <= bytes_max => batch,
        _ => {
            let (pieces, aborted) = (Vec::new(), Vec::new());
            return Ok(PartitionRead { offsets, pieces, bytes: 0, memory: 0, next_offset: offset, aborted });
        }
    };
    Ok(PartitionRead {
        offsets,
        bytes: batch.len(),
        memory: batch.len(),
        pieces: vec![Piece::Memory(batch)],
        next_offset: int(seen.through),
        aborted: Vec::new(),
    })
}

/// Where the log begins and ends.
pub async fn bounds(groups: &Groups, at: At) -> Result<PartitionOffsets, ResponseError> {
    let nothing = Look::Read { from: u64::MAX, bytes_max: 0 };
    Ok(offsets(at, groups.look(at.partition, nothing).await.map_err(code)?.next))
}

/// The first record of this time or later.
pub async fn by_time(groups: &Groups, at: At, time: i64) -> Result<Option<Found>, ResponseError> {
    found(groups, at, Look::At(time)).await
}

/// The first record of the latest time.
pub async fn newest(groups: &Groups, at: At) -> Result<Option<Found>, ResponseError> {
    found(groups, at, Look::Newest).await
}

async fn found(groups: &Groups, at: At, look: Look) -> Result<Option<Found>, ResponseError> {
    let seen = groups.look(at.partition, look).await.map_err(code)?;
    Ok(seen.rows.first().map(|row| Found { timestamp: row.at, offset: int(row.number) }))
}

fn offsets(at: At, next: u64) -> PartitionOffsets {
    let next = int(next);
    PartitionOffsets { log_start: 0, high_watermark: next, last_stable: next, leader_epoch: at.epoch }
}

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// To readers it is a log like others: who cannot answer now is not its leader, or has no storage.
fn code(error: GroupError) -> ResponseError {
    match error {
        GroupError::NotAvailable => ResponseError::KafkaStorageError,
        _ => ResponseError::NotLeaderOrFollower,
    }
}
