//! `/api/v1/topics`.

use super::HttpState;
use super::error::HttpError;
use super::shapes::{TopicChange, TopicDeleted, TopicDescription, TopicToCreate};
use crate::config::log_without_effect;
use axum::Json;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use hyper::body::Bytes;
use rangeway_core::api::{Api, NewTopic, TopicView};
use rangeway_core::config::nearest;
use rangeway_core::config::topic::{DRIVE, find as find_config};
use rangeway_core::error::TopicError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Query of `GET /api/v1/topics`.
#[derive(Debug, Deserialize)]
pub struct ListQuery {
    /// Also the node's own.
    #[serde(default)]
    internal: bool,
}

/// `GET /api/v1/topics`.
pub async fn list(
    State(state): State<Arc<HttpState>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Vec<TopicDescription>>, HttpError> {
    let Query(ListQuery { internal }) = query.map_err(|e| HttpError::bad_body(e.body_text()))?;
    let catalog = state.api()?.catalog();
    let shown = catalog
        .by_name
        .values()
        .filter(|topic| internal || !(topic.internal || topic.derived_from.is_some()));
    Ok(Json(shown.map(|topic| description(topic)).collect()))
}

/// `POST /api/v1/topics`.
pub async fn create(
    State(state): State<Arc<HttpState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<TopicDescription>), HttpError> {
    let api = state.api()?;
    let wanted: TopicToCreate = parse(body)?;
    let mut configs: std::collections::BTreeMap<String, String> =
        wanted.configs.into_iter().map(|(key, value)| (key, value.into_text())).collect();
    if let Some(drive) = wanted.drive {
        configs.insert(DRIVE.to_owned(), drive);
    }
    let topic = NewTopic {
        name: wanted.name.clone(),
        partitions: wanted.partitions,
        replication_factor: wanted.replication_factor,
        configs: configs.clone(),
        internal: false,
        validate_only: wanted.validate_only,
    };
    let made = api.create_topic(topic).await?;
    if wanted.validate_only {
        // What would be made has no place in the catalog, so its name and configs are the ones asked for.
        let checked = TopicDescription { name: wanted.name, configs, ..description(&made) };
        return Ok((StatusCode::OK, Json(checked)));
    }
    tracing::info!(topic = wanted.name, id = %made.id, partitions = made.partitions, drive = %made.drive, "topic created");
    log_without_effect(&wanted.name, &configs);
    Ok((StatusCode::CREATED, Json(description(&made))))
}

/// `GET /api/v1/topics/NAME`.
pub async fn describe(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<TopicDescription>, HttpError> {
    Ok(Json(description(&*find(state.api()?, &name)?)))
}

/// `PATCH /api/v1/topics/NAME`: both kinds of change are checked before either is made.
pub async fn alter(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TopicDescription>, HttpError> {
    let api = state.api()?;
    let change: TopicChange = parse(body)?;
    let topic = find_own(api, &name)?;
    let configs: Vec<(String, Option<String>)> =
        change.configs.into_iter().map(|(key, value)| (key, value.map(|v| v.into_text()))).collect();
    if change.partitions.is_none() && configs.is_empty() {
        return Err(HttpError::bad_body("nothing to change: give \"partitions\" or \"configs\""));
    }
    for (key, _) in configs.iter().filter(|(key, _)| !topic.configs.contains_key(key)) {
        find_config(key).map_err(|error| TopicError::InvalidConfig(error.to_string()))?;
    }
    if let Some(total) = change.partitions {
        api.create_partitions(topic.id, total, true).await?;
    }
    if !configs.is_empty() {
        let set = configs.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect();
        let names = configs.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(",");
        api.alter_topic_configs(topic.id, configs, false).await?;
        tracing::info!(topic = name, configs = names, "configs changed");
        log_without_effect(&name, &set);
    }
    if let Some(total) = change.partitions {
        api.create_partitions(topic.id, total, false).await?;
        tracing::info!(topic = name, from = topic.partitions, to = total, "partitions added");
    }
    Ok(Json(description(&*find(api, &name)?)))
}

/// `DELETE /api/v1/topics/NAME`.
pub async fn delete(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<TopicDeleted>, HttpError> {
    let api = state.api()?;
    let topic = find_own(api, &name)?;
    api.delete_topic(topic.id).await?;
    tracing::info!(topic = name, id = %topic.id, "topic deleted");
    Ok(Json(TopicDeleted { name, id: topic.id.0, deleted: true }))
}

/// The topic of that name.
pub fn find(api: &Api, name: &str) -> Result<Arc<TopicView>, HttpError> {
    let catalog = api.catalog();
    if let Some(topic) = catalog.by_name.get(name) {
        return Ok(topic.clone());
    }
    let names = catalog.by_name.values().filter(|t| !t.internal).map(|t| &*t.name);
    Err(HttpError::unknown_topic(name, nearest(name, names)))
}

/// The topic of that name, which clients may change.
pub fn find_own(api: &Api, name: &str) -> Result<Arc<TopicView>, HttpError> {
    let topic = find(api, name)?;
    let own = !topic.internal && topic.derived_from.is_none();
    if !own { Err(HttpError::internal_topic(name)) } else { Ok(topic) }
}

/// A JSON body; what is wrong with it is said with line and column.
pub fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, HttpError> {
    let bytes = body.map_err(|rejection| HttpError::unreadable(rejection.status(), rejection.body_text()))?;
    // Serde takes an array for the fields in order, which nobody means.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte == b'[') {
        return Err(HttpError::bad_body(
            "the body is not what this takes: an object, not an array".to_owned(),
        ));
    }
    serde_json::from_slice(&bytes)
        .map_err(|e| HttpError::bad_body(format!("the body is not what this takes: {e}")))
}

fn description(topic: &TopicView) -> TopicDescription {
    TopicDescription {
        name: topic.name.to_string(),
        id: topic.id.0,
        partitions: topic.partitions,
        ranges: topic.ranges.len(),
        drive: topic.drive.to_string(),
        replication_factor: topic.replication_factor,
        configs: (*topic.configs).clone(),
        internal: topic.internal || topic.derived_from.is_some(),
    }
}
