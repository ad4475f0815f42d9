//! ListOffsets (2), versions 1 to 10.
//!
//! v2: isolation level. v4: leader epochs. v6: flexible. v7: largest timestamp (-3). v8: earliest local (-4). v9:
//! latest tiered (-5). v10: a timeout for asynchronous lookups, of which there are none here.
//!
//! The largest timestamp is that of what is there. Kafka 4.4 goes on naming a record below the log start until its segment is
//! deleted, which nobody can read; here a partition whose records were all deleted answers as an empty one.
//!
//! Lookups by time are record-precise and in offset order: the first record whose timestamp is at or above the one
//! asked for. "Not found" is offset -1 without an error.

use super::{Context, Operation, Resource};
use crate::groups::Groups;
use crate::offsets_view;
use crate::protocol::batch::{LOG_APPEND_TIME, Records, stored_records};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use rangeway_core::api::batch::BatchHead;
use rangeway_core::api::{Api, Isolation, Piece, ReadFrom};
use rangeway_core::error::{ReadFailure, TopicPartition};
use std::collections::HashSet;
use tokio::sync::Semaphore;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
/// How much is read at a time when a lookup has to go on after core's first candidate.
const SCAN_BYTES: usize = 1 << 20;

/// A place by time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Found {
    timestamp: i64,
    offset: i64,
    epoch: i32,
}

const NOWHERE: Found = Found { timestamp: -1, offset: -1, epoch: -1 };

/// Finds offsets.
pub async fn handle(context: Context, request: ListOffsetsRequest) -> Result<ListOffsetsResponse, Close> {
    let committed = request.isolation_level == 1;
    let mut seen = HashSet::new();
    let repeated: HashSet<(String, i32)> = request
        .topics
        .iter()
        .flat_map(|t| t.partitions.iter().map(|p| (t.name.to_string(), p.partition_index)))
        .filter(|at| !seen.insert(at.clone()))
        .collect();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut rows = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let found = if repeated.contains(&(topic.name.to_string(), asked.partition_index)) {
                Err(ResponseError::InvalidRequest)
            } else {
                one(&context, &topic.name, asked, committed).await
            };
            let row = ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
            rows.push(match found {
                Ok(found) => {
                    // Versions before 4 have no field for it.
                    let epoch = if context.version >= 4 { found.epoch } else { -1 };
                    row.with_timestamp(found.timestamp).with_offset(found.offset).with_leader_epoch(epoch)
                }
                Err(code) => {
                    row.with_error_code(code.code()).with_timestamp(-1).with_offset(-1).with_leader_epoch(-1)
                }
            });
        }
        topics.push(ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(rows));
    }
    Ok(ListOffsetsResponse::default().with_topics(topics))
}

async fn one(
    context: &Context,
    topic: &str,
    asked: &ListOffsetsPartition,
    committed: bool,
) -> Result<Found, ResponseError> {
    if !context.authorize(Operation::Describe, Resource::Topic(topic)) {
        return Err(ResponseError::TopicAuthorizationFailed);
    }
    let (at, derived) = {
        let catalog = context.api.catalog();
        let view = vpartition::by_name(&catalog, topic).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let at = vpartition::led_here(
            view,
            asked.partition_index,
            asked.current_leader_epoch,
            context.shared.node,
        )?;
        (at, vpartition::derived(view, asked.partition_index))
    };
    let version_for = |needed: i16| {
        if context.version >= needed { Ok(()) } else { Err(ResponseError::UnsupportedVersion) }
    };
    let code = |e: ReadFailure| errors::read(&e);
    let api = &context.api;
    if let Some((at, _)) = derived {
        return one_derived(&context.shared.groups, at, asked.timestamp, version_for).await;
    }
    match asked.timestamp {
        LATEST => {
            let offsets = api.offsets(at).map_err(code)?;
            let offset = if committed { offsets.last_stable } else { offsets.high_watermark };
            Ok(Found { timestamp: -1, offset, epoch: offsets.leader_epoch })
        }
        EARLIEST | EARLIEST_LOCAL => {
            version_for(if asked.timestamp == EARLIEST_LOCAL { 8 } else { 1 })?;
            let offset = api.known_offsets(at).map_err(code)?.0.log_start;
            let epoch = vpartition::epoch_of(api, at, offset).map_err(code)?;
            Ok(Found { timestamp: -1, offset, epoch })
        }
        MAX_TIMESTAMP => {
            version_for(7)?;
            let Some(batch) = api.find_max_timestamp(at).await.map_err(code)? else { return Ok(NOWHERE) };
            let head = BatchHead::parse(&batch).ok_or(ResponseError::KafkaStorageError)?;
            let found = look_into(batch, head.max_timestamp, i64::MIN).await?.unwrap_or(NOWHERE);
            visible(api, at, found, committed)
        }
        LATEST_TIERED => version_for(9).map(|()| NOWHERE),
        timestamp if timestamp < 0 => Err(ResponseError::UnsupportedVersion),
        timestamp => {
            let found = by_time(api, at, timestamp).await?;
            visible(api, at, found, committed)
        }
    }
}

/// The same of `__consumer_offsets`.
async fn one_derived(
    groups: &Groups,
    at: offsets_view::At,
    timestamp: i64,
    version_for: impl Fn(i16) -> Result<(), ResponseError>,
) -> Result<Found, ResponseError> {
    let found = |found: Option<offsets_view::Found>| {
        found.map_or(NOWHERE, |f| Found { timestamp: f.timestamp, offset: f.offset, epoch: at.epoch })
    };
    match timestamp {
        LATEST => {
            let offset = offsets_view::bounds(groups, at).await?.high_watermark;
            Ok(Found { timestamp: -1, offset, epoch: at.epoch })
        }
        EARLIEST | EARLIEST_LOCAL => {
            version_for(if timestamp == EARLIEST_LOCAL { 8 } else { 1 })?;
            let offset = offsets_view::bounds(groups, at).await?.log_start;
            Ok(Found { timestamp: -1, offset, epoch: at.epoch })
        }
        MAX_TIMESTAMP => {
            version_for(7)?;
            offsets_view::newest(groups, at).await.map(found)
        }
        LATEST_TIERED => version_for(9).map(|()| NOWHERE),
        timestamp if timestamp < 0 => Err(ResponseError::UnsupportedVersion),
        timestamp => offsets_view::by_time(groups, at, timestamp).await.map(found),
    }
}

/// A record that a committed reader is not shown yet is not found, as Kafka has it.
fn visible(api: &Api, at: TopicPartition, found: Found, committed: bool) -> Result<Found, ResponseError> {
    if committed && found.offset >= api.known_offsets(at).map_err(|e| errors::read(&e))?.0.last_stable {
        return Ok(NOWHERE);
    }
    Ok(found)
}

/// The first record at or above `timestamp`, in offset order, from the log start on.
async fn by_time(api: &Api, at: TopicPartition, timestamp: i64) -> Result<Found, ResponseError> {
    let code = |e: ReadFailure| errors::read(&e);
    let log_start = api.known_offsets(at).map_err(code)?.0.log_start;
    let Some(batch) = api.find_timestamp(at, timestamp).await.map_err(code)? else { return Ok(NOWHERE) };
    if let Some(found) = look_into(batch.clone(), timestamp, log_start).await? {
        return Ok(found);
    }
    // The batch promised by its head but held nothing, or only below the log start: look on behind it.
    let head = BatchHead::parse(&batch).ok_or(ResponseError::KafkaStorageError)?;
    let mut offset = head.base_offset + i64::from(head.last_offset_delta) + 1;
    loop {
        let from = ReadFrom {
            topic: at.topic,
            partition: at.partition,
            offset,
            max_bytes: SCAN_BYTES,
            isolation: Isolation::Uncommitted,
        };
        let read = api.read(&[from], SCAN_BYTES).await.pop().ok_or(ResponseError::UnknownServerError)?;
        let read = read.map_err(code)?;
        if read.pieces.is_empty() {
            return Ok(NOWHERE);
        }
        let mut bytes = gather(&read.pieces)?;
        while let Some(batch) = next_batch(&mut bytes) {
            let head = BatchHead::parse(&batch).ok_or(ResponseError::KafkaStorageError)?;
            if head.max_timestamp >= timestamp
                && let Some(found) = look_into(batch, timestamp, log_start).await?
            {
                return Ok(found);
            }
        }
        offset = read.next_offset;
    }
}

/// Pieces as one run of bytes.
fn gather(pieces: &[Piece]) -> Result<Bytes, ResponseError> {
    let mut all = Vec::with_capacity(pieces.iter().map(Piece::len).sum());
    for piece in pieces {
        match piece {
            Piece::Memory(bytes) => all.extend_from_slice(bytes),
            Piece::File(slice) => {
                let from = all.len();
                all.resize(from + slice.len as usize, 0);
                let into = all.get_mut(from..).unwrap_or_default();
                std::os::unix::fs::FileExt::read_exact_at(&*slice.file, into, slice.position)
                    .map_err(|_| ResponseError::KafkaStorageError)?;
            }
        }
    }
    Ok(Bytes::from(all))
}

fn next_batch(bytes: &mut Bytes) -> Option<Bytes> {
    let length = i32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?);
    let whole = usize::try_from(length).ok()?.checked_add(12)?;
    if whole > bytes.len() {
        return None;
    }
    Some(bytes.split_to(whole))
}

/// [`first_at_or_after`]; what must be decompressed for it is, beside the runtime and two at a time: a small batch may
/// hold very much.
async fn look_into(batch: Bytes, timestamp: i64, log_start: i64) -> Result<Option<Found>, ResponseError> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    let head = BatchHead::parse(&batch).ok_or(ResponseError::KafkaStorageError)?;
    if head.codec() == 0 || head.attributes & LOG_APPEND_TIME != 0 {
        return first_at_or_after(&batch, timestamp, log_start);
    }
    // The semaphore is never closed.
    let _turn = TURNS.acquire().await.map_err(|_| ResponseError::UnknownServerError)?;
    let look = tokio::task::spawn_blocking(move || first_at_or_after(&batch, timestamp, log_start));
    look.await.unwrap_or(Err(ResponseError::UnknownServerError))
}

/// The first record of a stored batch at or above `timestamp` and at or above offset `log_start`.
fn first_at_or_after(batch: &[u8], timestamp: i64, log_start: i64) -> Result<Option<Found>, ResponseError> {
    let head = BatchHead::parse(batch).ok_or(ResponseError::KafkaStorageError)?;
    let epoch = batch.get(12..16).and_then(|b| b.try_into().ok()).map_or(-1, i32::from_be_bytes);
    if head.max_timestamp < timestamp {
        return Ok(None);
    }
    if head.attributes & LOG_APPEND_TIME != 0 {
        let offset = head.base_offset.max(log_start);
        return Ok(Some(Found { timestamp: head.max_timestamp, offset, epoch }));
    }
    let records = stored_records(batch, &head).map_err(|_| ResponseError::CorruptMessage)?;
    for record in Records::new(&records, head.record_count) {
        let record = record.map_err(|_| ResponseError::CorruptMessage)?;
        let time = head.base_timestamp.wrapping_add(record.timestamp_delta);
        let offset = head.base_offset + i64::from(record.offset_delta);
        if time >= timestamp && offset >= log_start {
            return Ok(Some(Found { timestamp: time, offset, epoch }));
        }
    }
    Ok(None)
}
