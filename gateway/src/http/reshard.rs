//! `/api/v1/topics/NAME/ranges/R/split` and `…/ranges/merge` (design 7, 16).

use super::HttpState;
use super::error::HttpError;
use super::operations::description;
use super::shapes::{Partitions, PlanDescription, RangeToSplit, RangesToMerge};
use super::topics::{find, parse};
use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use rangeway_core::api::{Api, OperationView, RangeStats, ReshardPlan};
use rangeway_core::error::ReshardError;
use rangeway_core::types::TopicId;
use std::sync::Arc;

/// `POST /api/v1/topics/NAME/ranges/R/split`: answers 200 when it is done, 202 with an operation that still runs after
/// 30 s, 409 when it was given up.
pub async fn split(
    State(state): State<Arc<HttpState>>,
    Path((name, range)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, HttpError> {
    let api = state.api()?;
    let wanted = match &body {
        Ok(bytes) if bytes.is_empty() => RangeToSplit::default(),
        _ => parse(body)?,
    };
    let topic = find(api, &name)?;
    let range: u32 =
        range.parse().map_err(|_| HttpError::bad_body(format!("'{range}' is not the number of a range")))?;
    still_there(&api.range_stats(topic.id), range)?;
    if wanted.dry_run {
        return Ok(planned(api.preview_split(topic.id, range, wanted.at).await?));
    }
    done(api, api.split(topic.id, range, wanted.at).await?)
}

/// `POST /api/v1/topics/NAME/ranges/merge`: answers as [`split`].
pub async fn merge(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, HttpError> {
    let api = state.api()?;
    let wanted: RangesToMerge = parse(body)?;
    let topic = find(api, &name)?;
    let (left, right) = in_order(api, topic.id, wanted.ranges)?;
    if wanted.dry_run {
        return Ok(planned(api.preview_merge(topic.id, left, right)?));
    }
    done(api, api.merge(topic.id, left, right).await?)
}

/// The two ranges by their partitions: people name them in either order.
fn in_order(api: &Api, topic: TopicId, [a, b]: [u32; 2]) -> Result<(u32, u32), HttpError> {
    let ranges = api.range_stats(topic);
    let (first_a, first_b) = (still_there(&ranges, a)?.first, still_there(&ranges, b)?.first);
    Ok(if first_b < first_a { (b, a) } else { (a, b) })
}

/// Says of a closed range where its partitions are. One that is closed from here on is refused by core.
fn still_there(ranges: &[RangeStats], id: u32) -> Result<&RangeStats, HttpError> {
    let range = ranges.iter().find(|range| range.id == id).ok_or(ReshardError::UnknownRange(id))?;
    if range.state == "closed" {
        return Err(HttpError::range_closed(id, &range.children));
    }
    Ok(range)
}

fn planned(plan: ReshardPlan) -> Response {
    let creates = plan.creates.iter().map(|s| Partitions { first: s.first, last: s.last }).collect();
    Json(PlanDescription { dry_run: true, closes: plan.closes, creates }).into_response()
}

fn done(api: &Api, view: OperationView) -> Result<Response, HttpError> {
    let status = match view.state.as_str() {
        "aborted" => {
            let why = view.why.as_deref().unwrap_or("no reason was recorded");
            return Err(HttpError::aborted(&view.kind, &view.operation, why));
        }
        "running" => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok((status, Json(description(api, view))).into_response())
}
