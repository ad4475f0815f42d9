//! Fetch (1), versions 4 to 17.
//!
//! v5: log start offset. v7: sessions (KIP-227). v9: current leader epoch. v10: topics of zstd (KIP-110). v11: rack. v12: flexible, diverging epochs.
//! v13: topic ids (KIP-516). v15: replica state in place of replica id. v16: node endpoints (KIP-951).
//!
//! Stored bytes go out as they are: the response is encoded around them.

use super::{Context, Operation, Resource};
use crate::fetch::poll::{Limits, Outcome, Source, poll};
use crate::fetch::session::{FINAL, INITIAL, Shown, TopicKey, Turn, Wanted};
use crate::protocol::dispatch::{Answer, Close, Decoded, Reply, decode};
use crate::protocol::frame::{self, Splices};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, ProducerId, TopicName};
use rangeway_core::api::{Isolation, TopicView};
use rangeway_core::config::topic::Compression;
use std::time::{Duration, Instant};

/// Longest wait that is granted.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// First version whose clients know zstd (KIP-110).
const ZSTD_FROM: i16 = 10;

/// Answers when there is something, or when the client has waited long enough.
pub async fn handle(context: Context, decoded: Decoded) -> Result<Answer, Close> {
    let request = decode::<FetchRequest>(&decoded)?;
    let correlation = decoded.correlation;
    drop(decoded);
    let limits = limits(&request, context.shared.settings.fetch_bytes_max);
    let by_id = context.version >= 13;
    // Sessions begin with version 7.
    let (id, epoch) =
        if context.version >= 7 { (request.session_id, request.session_epoch) } else { (0, FINAL) };
    let (wanted, forgotten) = names(request, by_id);
    let begun =
        context.shared.fetch_sessions.lock().begin(id, epoch, by_id, wanted, forgotten, Instant::now());
    let turn = match begun {
        Ok(turn) => turn,
        Err(code) => {
            let response = FetchResponse::default().with_error_code(code.code());
            return reply(&response, Splices::default(), &context, correlation).map(Answer::Now);
        }
    };
    let refuse = |topic: &TopicView| refused(&context, topic);
    let source = Source {
        api: &context.api,
        node: context.shared.node,
        groups: &context.shared.groups,
        memory: &context.shared.fetch_memory,
    };
    let (outcomes, held) = poll(source, &turn.wanted, limits, &refuse).await;
    let mut splices = Splices::default();
    let rows: Vec<(PartitionData, Shown)> = turn
        .wanted
        .iter()
        .zip(outcomes)
        .map(|(wanted, outcome)| row(wanted, outcome, limits.isolation, context.version, &mut splices))
        .collect();
    let shown: Vec<Shown> = rows.iter().map(|(_, shown)| *shown).collect();
    let (session, include) = context.shared.fetch_sessions.lock().finish(&turn, &shown, Instant::now());
    debug_assert!(epoch != INITIAL || include.iter().all(|shown| *shown), "a full answer shows all");
    let rows = rows.into_iter().map(|(data, _)| data);
    let response =
        FetchResponse::default().with_session_id(session).with_responses(grouped(&turn, rows, &include));
    let mut reply = reply(&response, splices, &context, correlation)?;
    if !held.is_empty() {
        reply.hold = Some(Box::new(held));
    }
    Ok(Answer::Now(reply))
}

fn reply(
    response: &FetchResponse,
    splices: Splices,
    context: &Context,
    correlation: i32,
) -> Result<Reply, Close> {
    frame::encode("Fetch", response, splices, context.version, correlation).map(Reply::from)
}

/// Why a topic is not for this client: rights, or a codec that its version does not know.
fn refused(context: &Context, topic: &TopicView) -> Option<ResponseError> {
    if !context.authorize(Operation::Read, Resource::Topic(&topic.name)) {
        return Some(ResponseError::TopicAuthorizationFailed);
    }
    let zstd = matches!(topic.config.compression, Some(Compression::Zstd(_)));
    (zstd && context.version < ZSTD_FROM).then_some(ResponseError::UnsupportedCompressionType)
}

fn limits(request: &FetchRequest, bytes_max: usize) -> Limits {
    let size = |n: i32| usize::try_from(n).unwrap_or(0);
    let max_bytes = size(request.max_bytes).min(bytes_max);
    Limits {
        // More than can be sent is never waited for, else a consumer would wait for ever.
        min_bytes: size(request.min_bytes).min(max_bytes),
        max_bytes,
        max_wait: Duration::from_millis(size(request.max_wait_ms) as u64).min(WAIT_MAX),
        isolation: if request.isolation_level == 1 { Isolation::Committed } else { Isolation::Uncommitted },
    }
}

fn names(request: FetchRequest, by_id: bool) -> (Vec<Wanted>, Vec<(TopicKey, i32)>) {
    let key = |name: TopicName, id| if by_id { TopicKey::Id(id) } else { TopicKey::Name(name.0) };
    let mut wanted = Vec::new();
    for topic in request.topics {
        let key = key(topic.topic, topic.topic_id);
        wanted.extend(topic.partitions.into_iter().map(|p| Wanted {
            topic: key.clone(),
            partition: p.partition,
            offset: p.fetch_offset,
            max_bytes: p.partition_max_bytes,
            current_leader_epoch: p.current_leader_epoch,
            last_fetched_epoch: p.last_fetched_epoch,
        }));
    }
    let mut forgotten = Vec::new();
    for topic in request.forgotten_topics_data {
        let key = key(topic.topic, topic.topic_id);
        forgotten.extend(topic.partitions.into_iter().map(|p| (key.clone(), p)));
    }
    (wanted, forgotten)
}

fn row(
    wanted: &Wanted,
    outcome: Outcome,
    isolation: Isolation,
    version: i16,
    splices: &mut Splices,
) -> (PartitionData, Shown) {
    let data = PartitionData::default()
        .with_partition_index(wanted.partition)
        .with_aborted_transactions((isolation == Isolation::Committed).then(Vec::new))
        .with_records(Some(bytes::Bytes::new()));
    let with = |data: PartitionData, o: rangeway_core::api::PartitionOffsets| {
        data.with_high_watermark(o.high_watermark)
            .with_last_stable_offset(o.last_stable)
            .with_log_start_offset(o.log_start)
    };
    let shown = |o: rangeway_core::api::PartitionOffsets, always, has_records| Shown {
        high_watermark: o.high_watermark,
        last_stable: o.last_stable,
        log_start: o.log_start,
        always,
        has_records,
    };
    match outcome {
        Outcome::Read(read) => {
            let has_records = read.bytes > 0;
            // Where the answer is full the partition has its turn next time.
            let records = splices.add(read.pieces).unwrap_or_default();
            let mut data = with(data, read.offsets).with_records(Some(records));
            if let Some(aborted) = &mut data.aborted_transactions {
                aborted.extend(read.aborted.iter().map(|one| {
                    AbortedTransaction::default()
                        .with_producer_id(ProducerId(one.producer_id))
                        .with_first_offset(one.first_offset)
                }));
            }
            (data, shown(read.offsets, has_records, has_records))
        }
        Outcome::Diverging { epoch, end, offsets } => {
            let diverging = EpochEndOffset::default().with_epoch(epoch).with_end_offset(end);
            (with(data, offsets).with_diverging_epoch(diverging), shown(offsets, true, false))
        }
        Outcome::Error(code) => {
            // The storage code is unknown to clients of versions up to 5.
            let code = match code {
                ResponseError::KafkaStorageError if version <= 5 => ResponseError::NotLeaderOrFollower,
                code => code,
            };
            let data = data
                .with_error_code(code.code())
                .with_high_watermark(-1)
                .with_last_stable_offset(-1)
                .with_log_start_offset(-1)
                .with_preferred_read_replica(BrokerId(-1));
            let nothing = Shown {
                high_watermark: -1,
                last_stable: -1,
                log_start: -1,
                always: true,
                has_records: false,
            };
            (data, nothing)
        }
    }
}

/// Rows under their topics, in order; neighbours of one topic share an entry.
fn grouped(
    turn: &Turn,
    rows: impl Iterator<Item = PartitionData>,
    include: &[bool],
) -> Vec<FetchableTopicResponse> {
    let mut topics: Vec<FetchableTopicResponse> = Vec::new();
    let mut last: Option<&TopicKey> = None;
    for ((wanted, row), _) in turn.wanted.iter().zip(rows).zip(include).filter(|(_, include)| **include) {
        if last != Some(&wanted.topic) {
            let topic = FetchableTopicResponse::default();
            topics.push(match &wanted.topic {
                TopicKey::Name(name) => topic.with_topic(TopicName(name.clone())),
                TopicKey::Id(id) => topic.with_topic_id(*id),
            });
            last = Some(&wanted.topic);
        }
        if let Some(topic) = topics.last_mut() {
            topic.partitions.push(row);
        }
    }
    topics
}
