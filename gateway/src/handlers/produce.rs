//! Produce (0), versions 3 to 13; 0 to 2 are listed and closed.
//!
//! v5: log start offset. v7: zstd. v8: record errors and messages. v9: flexible. v10: current leader with
//! NOT_LEADER_OR_FOLLOWER (KIP-951). v13: topic ids (KIP-516).
//!
//! In two stages: batches are checked and sequenced, or parked, in the order of requests; then durability is awaited beside
//! later requests. Plain batches that stay parked for their whole time end the connection, since their order could not be
//! kept otherwise: what was read is answered first. The answer to acks 1 and all comes after the drive's durability; acks 0 is never answered, and a failure
//! closes the connection so that the client looks again.

use super::{Context, Operation, Resource};
use crate::protocol::batch::{self, Refused, Rules};
use crate::protocol::dispatch::{Answer, Close, Decoded, Reply, decode, encode};
use crate::protocol::errors;
use crate::vpartition;
use bytes::Bytes;
use futures_util::future::join_all;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{BrokerId, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::batch::BatchHead;
use rangeway_core::api::{AppendBatch, Appended, Catalog, PendingAppend, TopicView};
use rangeway_core::error::AppendError;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// As many copies as the topic wants (`acks=all`).
const ALL: i16 = -1;
/// The least time given to durability: clients that ask for none still want their records stored.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The most.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// One topic of a request, under way.
struct Topic {
    response: TopicProduceResponse,
    view: Option<Arc<TopicView>>,
    pending: Option<PendingAppend>,
    /// Which rows of the response the pending batches are, in their order.
    rows: Vec<usize>,
}

/// Checks and sequences; the answer comes later.
pub async fn handle(context: Context, decoded: Decoded) -> Result<Answer, Close> {
    let request = decode::<ProduceRequest>(&decoded)?;
    let (acks, correlation) = (request.acks, decoded.correlation);
    drop(decoded);
    let wait =
        Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).clamp(WAIT_MIN, WAIT_MAX);
    let deadline = Instant::now() + wait;
    let refused = whole_request_refused(&request);
    let catalog = context.api.catalog();
    let now_ms = now_ms();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for data in request.topic_data {
        let (mut topic, batches) = match &refused {
            Some(why) => (refuse_topic(data, why), Vec::new()),
            None => check_topic(&context, &catalog, data, acks, now_ms),
        };
        if let (Some(view), false) = (&topic.view, batches.is_empty()) {
            let lane = &context.client.connection.lane;
            topic.pending = Some(context.api.append(lane, view.id, batches, deadline));
        }
        topics.push(topic);
    }
    Ok(Answer::Later(Box::pin(finish(context, topics, acks, correlation))))
}

/// What makes all partitions of a request fail alike.
fn whole_request_refused(request: &ProduceRequest) -> Option<Refused> {
    let refused = |code, message: &str| Some(Refused { code, message: message.to_owned(), record: None });
    if !(-1..=1).contains(&request.acks) {
        return refused(ResponseError::InvalidRequiredAcks, "acks must be -1 (all), 0 or 1");
    }
    let transactional = |records: &Option<Bytes>| {
        records.as_ref().and_then(|r| BatchHead::parse(r)).is_some_and(|head| head.is_transactional())
    };
    let mut all = request.topic_data.iter().flat_map(|t| &t.partition_data);
    if request.transactional_id.is_none() && all.any(|p| transactional(&p.records)) {
        return refused(
            ResponseError::TransactionalIdAuthorizationFailed,
            "transactional records need a transactional id",
        );
    }
    None
}

fn refuse_topic(data: TopicProduceData, why: &Refused) -> Topic {
    let rows = data.partition_data.iter().map(|p| failed(p.index, why)).collect();
    let response = TopicProduceResponse::default()
        .with_name(data.name)
        .with_topic_id(data.topic_id)
        .with_partition_responses(rows);
    Topic { response, view: None, pending: None, rows: Vec::new() }
}

/// Checks the batches of a topic; those that pass are to be appended.
fn check_topic(
    context: &Context,
    catalog: &Catalog,
    data: TopicProduceData,
    acks: i16,
    now_ms: i64,
) -> (Topic, Vec<AppendBatch>) {
    let by_id = context.version >= 13;
    let view = if by_id {
        vpartition::by_id(catalog, data.topic_id)
    } else {
        vpartition::by_name(catalog, &data.name)
    };
    let unknown = if by_id { ResponseError::UnknownTopicId } else { ResponseError::UnknownTopicOrPartition };
    let refused = |code, message: String| Refused { code, message, record: None };
    let Some(view) = view.cloned() else {
        return (refuse_topic(data, &refused(unknown, "this node has no such topic".to_owned())), Vec::new());
    };
    if !context.authorize(Operation::Write, Resource::Topic(&view.name)) {
        let why =
            refused(ResponseError::TopicAuthorizationFailed, format!("no right to write '{}'", view.name));
        return (refuse_topic(data, &why), Vec::new());
    }
    let wanted = usize::try_from(view.config.min_insync_replicas).unwrap_or(1);
    if acks == ALL && view.copies() < wanted {
        let why =
            format!("'{}' wants {wanted} copies (min.insync.replicas) and has {}", view.name, view.copies());
        return (refuse_topic(data, &refused(ResponseError::NotEnoughReplicas, why)), Vec::new());
    }
    let rules = Rules::of(&view);
    let mut batches = Vec::with_capacity(data.partition_data.len());
    let mut rows = Vec::with_capacity(data.partition_data.len());
    let mut responses = Vec::with_capacity(data.partition_data.len());
    for partition in data.partition_data {
        let checked = check_partition(
            &view,
            partition.index,
            partition.records.as_ref(),
            context.version,
            now_ms,
            &rules,
        );
        match checked {
            Ok((head, bytes)) => {
                rows.push(responses.len());
                batches.push(AppendBatch { partition: partition.index, head, bytes });
                responses.push(PartitionProduceResponse::default().with_index(partition.index));
            }
            Err(why) => responses.push(failed(partition.index, &why)),
        }
    }
    let response = TopicProduceResponse::default()
        .with_name(data.name)
        .with_topic_id(data.topic_id)
        .with_partition_responses(responses);
    (Topic { response, view: Some(view), pending: None, rows }, batches)
}

fn check_partition(
    view: &TopicView,
    partition: i32,
    records: Option<&Bytes>,
    version: i16,
    now_ms: i64,
    rules: &Rules,
) -> Result<(BatchHead, Bytes), Refused> {
    if partition < 0 || partition >= view.partitions {
        return Err(Refused {
            code: ResponseError::UnknownTopicOrPartition,
            message: format!("'{}' has partitions 0 to {}", view.name, view.partitions - 1),
            record: None,
        });
    }
    let (head, bytes) = batch::check(records, version, now_ms, rules)?;
    if head.is_transactional() && head.producer_id >= 0 {
        // No transaction can have been begun here: its producer id was never given out for one.
        let code =
            if version >= 11 { ResponseError::TransactionAbortable } else { ResponseError::InvalidTxnState };
        return Err(Refused {
            code,
            message: "the partition was not added to a transaction".to_owned(),
            record: None,
        });
    }
    Ok((head, bytes))
}

fn failed(index: i32, why: &Refused) -> PartitionProduceResponse {
    let response = error_row(index, why.code, why.message.clone());
    let Some(record) = why.record else { return response };
    let row = BatchIndexAndErrorMessage::default()
        .with_batch_index(record)
        .with_batch_index_error_message(Some(StrBytes::from_string(why.message.clone())));
    response.with_record_errors(vec![row])
}

fn error_row(index: i32, code: ResponseError, message: String) -> PartitionProduceResponse {
    PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(code.code())
        .with_base_offset(-1)
        .with_log_append_time_ms(-1)
        .with_log_start_offset(-1)
        .with_error_message(Some(StrBytes::from_string(message)))
}

/// Awaits durability and answers.
async fn finish(
    context: Context,
    mut topics: Vec<Topic>,
    acks: i16,
    correlation: i32,
) -> Result<Reply, Close> {
    let pending: Vec<Option<PendingAppend>> = topics.iter_mut().map(|topic| topic.pending.take()).collect();
    // All at once: what one topic waits for must not hold up what another has parked.
    let wait = |one: Option<PendingAppend>| async { Some(one?.wait().await) };
    let settled = join_all(pending.into_iter().map(wait)).await;
    let mut endpoints = Vec::new();
    let mut close_after = false;
    for (topic, outcomes) in topics.iter_mut().zip(settled).filter_map(|(t, o)| o.map(|o| (t, o))) {
        close_after |= outcomes.close_after;
        for (row, outcome) in topic.rows.iter().zip(outcomes.batches) {
            if let Some(response) = topic.response.partition_responses.get_mut(*row) {
                settle(response, outcome, &context, topic.view.as_deref(), &mut endpoints);
            }
        }
    }
    if acks == 0 {
        let mut rows = topics.iter().flat_map(|t| &t.response.partition_responses);
        return match rows.find(|row| row.error_code != errors::NONE) {
            None => Ok(None),
            Some(row) => Err(Close::UnacknowledgedFailure(
                row.error_message
                    .as_ref()
                    .map_or_else(|| format!("code {}", row.error_code), |m| m.to_string()),
            )),
        };
    }
    let response = ProduceResponse::default()
        .with_responses(topics.into_iter().map(|t| t.response).collect())
        .with_node_endpoints(endpoints);
    let reply = encode("Produce", &response, context.version, correlation)?;
    if close_after { Err(Close::ProduceHeld(reply)) } else { Ok(Some(reply)) }
}

fn settle(
    response: &mut PartitionProduceResponse,
    outcome: Appended,
    context: &Context,
    view: Option<&TopicView>,
    endpoints: &mut Vec<NodeEndpoint>,
) {
    let error = match outcome {
        Appended::Ok { base_offset, log_start, log_append_time } => {
            response.base_offset = base_offset;
            response.log_start_offset = log_start;
            response.log_append_time_ms = log_append_time;
            return;
        }
        Appended::Err(error) => error,
    };
    *response = error_row(response.index, errors::append(&error), error.to_string());
    if let AppendError::NotLeader { leader: Some(leader) } = error
        && context.version >= 10
    {
        let epoch = view.and_then(|v| v.leader(response.index)).map_or(-1, |(_, epoch)| epoch);
        response.current_leader =
            LeaderIdAndEpoch::default().with_leader_id(BrokerId(leader.0)).with_leader_epoch(epoch);
        let known = endpoints.iter().any(|e| e.node_id.0 == leader.0);
        if leader == context.shared.node && !known {
            let (host, port) = context.client.node_address(&context.shared);
            endpoints.push(
                NodeEndpoint::default()
                    .with_node_id(BrokerId(leader.0))
                    .with_host(StrBytes::from_string(host))
                    .with_port(i32::from(port)),
            );
        }
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}
