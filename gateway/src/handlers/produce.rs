//! Produce (0), versions 3 to 13; 0 to 2 are listed and closed.
//!
//! v5: log start offset. v7: zstd. v8: record errors and messages. v9: flexible. v10: current leader with
//! NOT_LEADER_OR_FOLLOWER (KIP-951). v13: topic ids (KIP-516).
//!
//! In two stages: batches are checked and sequenced, or parked, in the order of requests; then durability is awaited beside
//! later requests. Plain batches that stay parked for their whole time end the connection, since their order could not be
//! kept otherwise: what was read is answered first. The answer to acks 1 and all comes after the drive's durability; acks 0 is never answered, and a failure
//! closes the connection so that the client looks again.
//!
//! A transactional batch is let in when its partition is in its producer's transaction (KIP-890): the coordinator is asked
//! once per transaction and partition, and from v12 adds it. Batches without a transaction ask nobody.

use super::{Context, Operation, Resource};
use crate::heavy;
use crate::protocol::batch::{self, Refused, Rules};
use crate::protocol::dispatch::{Answer, Close, Decoded, Reply, decode, encode};
use crate::protocol::errors;
use crate::transactions::{Admission, Admitted, Place, Producer, TxnError};
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
use rangeway_core::api::{AppendBatch, Appended, Catalog, FirstSequence, PendingAppend, TopicView};
use rangeway_core::error::AppendError;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The least time given to durability: clients that ask for none still want their records stored.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The most.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// One topic of a request, under way.
struct Topic {
    response: TopicProduceResponse,
    view: Option<Arc<TopicView>>,
    /// To be appended.
    batches: Vec<AppendBatch>,
    pending: Option<PendingAppend>,
    /// Which rows of the response the batches are, in their order.
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
    let refused = whole_request_refused(&context, &request);
    let transactional_id = request.transactional_id.clone();
    let catalog = context.api.catalog();
    let now_ms = now_ms();
    let heavy = refused.is_none() && request.topic_data.iter().any(|data| is_heavy(&context, &catalog, data));
    let check = || {
        let data = request.topic_data.into_iter();
        let checked = data.map(|data| match &refused {
            Some(why) => refuse_topic(data, why),
            None => check_topic(&context, &catalog, data, now_ms),
        });
        checked.collect::<Vec<_>>()
    };
    let mut topics = if heavy { heavy::run(check).await } else { check() };
    let admitted = match &transactional_id {
        Some(id) => admit(&context, id, &mut topics).await,
        None => Admitted::default(),
    };
    for topic in &mut topics {
        let batches = std::mem::take(&mut topic.batches);
        if let (Some(view), false) = (&topic.view, batches.is_empty()) {
            let lane = &context.client.connection.lane;
            topic.pending = Some(context.api.append(lane, view.id, batches, deadline));
        }
    }
    Ok(Answer::Later(Box::pin(finish(context, topics, acks, correlation, admitted))))
}

/// Whether checking the batches may take long.
fn is_heavy(context: &Context, catalog: &Catalog, data: &TopicProduceData) -> bool {
    let Some(view) = view_of(context, catalog, data) else { return false };
    let rules = Rules::of(view);
    let mut records = data.partition_data.iter().filter_map(|partition| partition.records.as_ref());
    records.any(|records| batch::is_looked_into(records, &rules))
}

/// The topic that is meant: by id from version 13, by name before.
fn view_of<'a>(
    context: &Context,
    catalog: &'a Catalog,
    data: &TopicProduceData,
) -> Option<&'a Arc<TopicView>> {
    match context.version >= 13 {
        true => vpartition::by_id(catalog, data.topic_id),
        false => vpartition::by_name(catalog, &data.name),
    }
}

/// What makes all partitions of a request fail alike.
fn whole_request_refused(context: &Context, request: &ProduceRequest) -> Option<Refused> {
    let refused =
        |code, message: &str| Some(Refused { code, message: message.to_owned(), records: Vec::new() });
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
    if let Some(id) = &request.transactional_id
        && !context.authorize(Operation::Write, Resource::Transaction(id))
    {
        return refused(
            ResponseError::TransactionalIdAuthorizationFailed,
            "no right to write with this transactional id",
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
    Topic { response, view: None, batches: Vec::new(), pending: None, rows: Vec::new() }
}

/// Lets the transactional batches of a request in; those that are not are taken out and answered. What comes back is held
/// until all are settled.
async fn admit(context: &Context, id: &str, topics: &mut [Topic]) -> Admitted {
    let producer = |head: &BatchHead| Producer { id: head.producer_id, epoch: head.producer_epoch };
    let batches = topics.iter().flat_map(|topic| {
        let topic_id = topic.view.as_ref().map(|view| view.id);
        topic.batches.iter().filter_map(move |batch| Some((topic_id?, batch)))
    });
    let transactional = batches.filter(|(_, batch)| is_of_transaction(&batch.head));
    let asked: Vec<(Place, Producer)> =
        transactional.map(|(topic, batch)| ((topic, batch.partition), producer(&batch.head))).collect();
    let Some((_, first)) = asked.first() else { return Admitted::default() };
    let (admitted, answers) = if asked.iter().all(|(_, of)| of == first) {
        let places: Vec<Place> = asked.iter().map(|(place, _)| *place).collect();
        let admission = if context.version >= 12 { Admission::ByWriting } else { Admission::Added };
        context.shared.transactions.admit(id, *first, &places, admission).await
    } else {
        (Admitted::default(), vec![Err(TxnError::UnknownProducerId); asked.len()])
    };
    let mut answers = answers.into_iter();
    for topic in topics {
        let batches = std::mem::take(&mut topic.batches).into_iter().zip(std::mem::take(&mut topic.rows));
        for (batch, row) in batches {
            let answer = if is_of_transaction(&batch.head) { answers.next() } else { None };
            let refused = match answer {
                Some(Err(error)) => Some(not_admitted(error, context.version)),
                Some(Ok(())) | None => None,
            };
            match refused {
                Some(why) => {
                    if let Some(response) = topic.response.partition_responses.get_mut(row) {
                        *response = failed(response.index, &why);
                    }
                }
                None => {
                    topic.batches.push(batch);
                    topic.rows.push(row);
                }
            }
        }
    }
    admitted
}

fn is_of_transaction(head: &BatchHead) -> bool {
    head.is_transactional() && head.producer_id >= 0
}

/// Codes that each version's clients act on rightly.
fn not_admitted(error: TxnError, version: i16) -> Refused {
    let code = match error {
        TxnError::NotAdded if version >= 11 => ResponseError::TransactionAbortable,
        TxnError::NotAdded | TxnError::InvalidState => ResponseError::InvalidTxnState,
        TxnError::Fenced => ResponseError::InvalidProducerEpoch,
        TxnError::UnknownProducerId => ResponseError::InvalidProducerIdMapping,
        TxnError::InvalidRequest | TxnError::InvalidTimeout => ResponseError::InvalidRequest,
        TxnError::Concurrent if version >= 12 => ResponseError::ConcurrentTransactions,
        // Older clients ask again on this one, without looking for another leader.
        TxnError::Concurrent | TxnError::Loading | TxnError::NotCoordinator | TxnError::NotAvailable => {
            ResponseError::NotEnoughReplicas
        }
    };
    let message = match error {
        TxnError::NotAdded => "Partition was not added to the transaction".to_owned(),
        other => format!("not let in as part of a transaction: {other}"),
    };
    Refused { code, message, records: Vec::new() }
}

/// Checks the batches of a topic; those that pass are to be appended.
fn check_topic(context: &Context, catalog: &Catalog, data: TopicProduceData, now_ms: i64) -> Topic {
    let by_id = context.version >= 13;
    let view = view_of(context, catalog, &data);
    let unknown = if by_id { ResponseError::UnknownTopicId } else { ResponseError::UnknownTopicOrPartition };
    let refused = |code, message: String| Refused { code, message, records: Vec::new() };
    let name: &str = view.map_or(data.name.as_str(), |view| &view.name);
    if vpartition::is_own_name(name) {
        let why = format!("Cannot append to internal topic {name}");
        return refuse_topic(data, &refused(ResponseError::InvalidTopicException, why));
    }
    let Some(view) = view.cloned() else {
        return refuse_topic(data, &refused(unknown, "this node has no such topic".to_owned()));
    };
    if !context.authorize(Operation::Write, Resource::Topic(&view.name)) {
        let why =
            refused(ResponseError::TopicAuthorizationFailed, format!("no right to write '{}'", view.name));
        return refuse_topic(data, &why);
    }
    if let Err((code, why)) = vpartition::check_stored(&view, "append to") {
        return refuse_topic(data, &refused(code, why));
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
                // Where writing adds the partition, each transaction begins with 0.
                let first = match head.is_transactional() && context.version >= 12 {
                    true => FirstSequence::Zero,
                    false => FirstSequence::Any,
                };
                batches.push(AppendBatch { partition: partition.index, head, bytes, first });
                responses.push(PartitionProduceResponse::default().with_index(partition.index));
            }
            Err(why) => responses.push(failed(partition.index, &why)),
        }
    }
    let response = TopicProduceResponse::default()
        .with_name(data.name)
        .with_topic_id(data.topic_id)
        .with_partition_responses(responses);
    Topic { response, view: Some(view), batches, pending: None, rows }
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
            records: Vec::new(),
        });
    }
    batch::check(records, version, now_ms, rules)
}

fn failed(index: i32, why: &Refused) -> PartitionProduceResponse {
    let response = error_row(index, why.code, why.message.clone());
    let row = |record: &i32| {
        BatchIndexAndErrorMessage::default()
            .with_batch_index(*record)
            .with_batch_index_error_message(Some(StrBytes::from_string(why.message.clone())))
    };
    response.with_record_errors(why.records.iter().map(row).collect())
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
    admitted: Admitted,
) -> Result<Reply, Close> {
    let pending: Vec<Option<PendingAppend>> = topics.iter_mut().map(|topic| topic.pending.take()).collect();
    // All at once: what one topic waits for must not hold up what another has parked.
    let wait = |one: Option<PendingAppend>| async { Some(one?.wait().await) };
    let settled = join_all(pending.into_iter().map(wait)).await;
    drop(admitted);
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
            None => Ok(Reply::default()),
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
    if close_after { Err(Close::ProduceHeld(reply)) } else { Ok(reply.into()) }
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
