//! `/api/v1/operations`: splits and merges that run or ended not long ago.

use super::HttpState;
use super::error::HttpError;
use super::shapes::OperationDescription;
use axum::Json;
use axum::extract::{Path, State};
use rangeway_core::api::{Api, OperationView};
use rangeway_core::error::ReshardError;
use std::sync::Arc;
use uuid::Uuid;

/// `GET /api/v1/operations`: oldest first.
pub async fn list(State(state): State<Arc<HttpState>>) -> Result<Json<Vec<OperationDescription>>, HttpError> {
    let api = state.api()?;
    Ok(Json(api.operations().into_iter().map(|view| description(api, view)).collect()))
}

/// `GET /api/v1/operations/ID`.
pub async fn show(
    State(state): State<Arc<HttpState>>,
    Path(id): Path<String>,
) -> Result<Json<OperationDescription>, HttpError> {
    let api = state.api()?;
    let view = api.operation(parse(&id)?).ok_or(ReshardError::UnknownOperation(id))?;
    Ok(Json(description(api, view)))
}

/// `POST /api/v1/operations/ID/abort`: gives up what still runs; its ranges go on as they were.
pub async fn abort(
    State(state): State<Arc<HttpState>>,
    Path(id): Path<String>,
) -> Result<Json<OperationDescription>, HttpError> {
    let api = state.api()?;
    let view = api.abort_operation(parse(&id)?).await?;
    tracing::info!(operation = id, "given up");
    Ok(Json(description(api, view)))
}

/// What is no identity names no operation either.
fn parse(id: &str) -> Result<Uuid, HttpError> {
    Uuid::parse_str(id).map_err(|_| ReshardError::UnknownOperation(id.to_owned()).into())
}

/// As it is shown: with the topic's name, the pause to the microsecond.
pub fn description(api: &Api, view: OperationView) -> OperationDescription {
    let topic = api.catalog().by_id.get(&view.topic).map(|topic| topic.name.to_string());
    let over = view.state != "running";
    OperationDescription {
        operation: view.operation,
        topic,
        kind: view.kind,
        closed: view.closed,
        created: view.created,
        paused_ms: view.paused_ms.map(|ms| (ms * 1000.0).round() / 1000.0),
        why: view.why,
        started_at: view.started_at,
        ended_at: over.then_some(view.ended_at),
        state: view.state,
    }
}
