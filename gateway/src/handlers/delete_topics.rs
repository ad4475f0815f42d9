//! DeleteTopics (20), versions 1 to 6.
//!
//! v4: flexible. v5: error messages. v6: by name or by id (KIP-516).

use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use rangeway_core::api::TopicView;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

/// Deletes topics, one after the other.
pub async fn handle(context: Context, request: DeleteTopicsRequest) -> Result<DeleteTopicsResponse, Close> {
    let asked: Vec<DeleteTopicState> = if context.version >= 6 {
        request.topics
    } else {
        request
            .topic_names
            .into_iter()
            .map(|name| DeleteTopicState::default().with_name(Some(name)))
            .collect()
    };
    let invalid = |why: &str| Err((ResponseError::InvalidRequest, why.to_owned()));
    let by_id: HashSet<Uuid> =
        asked.iter().filter(|topic| topic.name.is_none()).map(|topic| topic.topic_id).collect();
    // Before any is deleted: what is named twice, by name, by id or by both, is not deleted at all.
    let found: Vec<_> = asked.iter().map(|topic| find(&context, topic)).collect();
    let by_name: HashSet<Uuid> = asked
        .iter()
        .zip(&found)
        .filter_map(|(topic, found)| topic.name.as_ref().and(found.as_ref().ok()).map(|view| view.id.0))
        .collect();
    let mut times: HashMap<(Option<TopicName>, Uuid), usize> = HashMap::new();
    for topic in &asked {
        *times.entry(key(topic)).or_default() += 1;
    }
    let mut responses = Vec::with_capacity(asked.len());
    for (topic, found) in asked.into_iter().zip(found) {
        // Answered with its first mention.
        let Some(mentions) = times.remove(&key(&topic)) else { continue };
        let outcome = match found {
            Err(refused) if mentions == 1 => Err(refused),
            _ if mentions > 1 && topic.name.is_some() => invalid("Duplicate topic name."),
            _ if mentions > 1 => invalid("Duplicate topic id."),
            Ok(view) if topic.name.is_some() && by_id.contains(&view.id.0) => {
                invalid("The provided topic name maps to an ID that was already supplied.")
            }
            // The mention by name says so.
            Ok(view) if topic.name.is_none() && by_name.contains(&view.id.0) => continue,
            Ok(view) => delete(&context, view).await,
            Err(refused) => Err(refused),
        };
        responses.push(row(topic, outcome));
    }
    Ok(DeleteTopicsResponse::default().with_responses(responses))
}

/// What is the same topic mentioned again.
fn key(topic: &DeleteTopicState) -> (Option<TopicName>, Uuid) {
    (topic.name.clone(), topic.topic_id)
}

fn find(context: &Context, asked: &DeleteTopicState) -> Result<Arc<TopicView>, Refused> {
    let catalog = context.api.catalog();
    match (&asked.name, asked.topic_id.is_nil()) {
        (Some(_), false) => {
            Err((ResponseError::InvalidRequest, "give a topic's name or its id, not both".to_owned()))
        }
        (None, true) => Err((ResponseError::InvalidRequest, "give a topic's name or its id".to_owned())),
        (Some(name), true) => {
            vpartition::by_name(&catalog, name).cloned().ok_or_else(|| vpartition::not_there(name))
        }
        (None, false) => vpartition::by_id(&catalog, asked.topic_id).cloned().ok_or_else(|| {
            (ResponseError::UnknownTopicId, "This server does not host this topic ID.".to_owned())
        }),
    }
}

async fn delete(context: &Context, topic: Arc<TopicView>) -> Result<Arc<TopicView>, Refused> {
    if !context.authorize(Operation::Delete, Resource::Topic(&topic.name)) {
        return Err((ResponseError::TopicAuthorizationFailed, "not allowed to delete this topic".to_owned()));
    }
    vpartition::check_stored(&topic, "delete")?;
    context.api.delete_topic(topic.id).await.map_err(|e| (errors::topic(&e), e.to_string()))?;
    tracing::info!(topic = &*topic.name, id = %topic.id, "topic deleted");
    Ok(topic)
}

fn row(asked: DeleteTopicState, outcome: Result<Arc<TopicView>, Refused>) -> DeletableTopicResult {
    let row = DeletableTopicResult::default().with_topic_id(asked.topic_id).with_error_message(None);
    match outcome {
        Ok(view) => row
            .with_name(Some(TopicName(kafka_protocol::protocol::StrBytes::from_string(
                view.name.to_string(),
            ))))
            .with_topic_id(view.id.0),
        Err((code, message)) => {
            row.with_name(asked.name).with_error_code(code.code()).with_error_message(text(message))
        }
    }
}
