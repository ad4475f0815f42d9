//! `/api/v1/topics/NAME/ranges`.

use super::HttpState;
use super::error::HttpError;
use super::explain::{Look, sentences};
use super::operations;
use super::shapes::{Head, PartitionEnds, RangeDescription, RangeExplained, RangesExplained};
use super::topics::find;
use axum::Json;
use axum::extract::{Path, State};
use rangeway_core::api::RangeStats;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rates are taken over so long.
const LOOK: Duration = Duration::from_millis(500);

/// `GET /api/v1/topics/NAME/ranges`: active and closed ones, in the order of their partitions.
pub async fn list(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<Vec<RangeDescription>>, HttpError> {
    let api = state.api()?;
    let topic = find(api, &name)?;
    api.know_stored(topic.id).await;
    Ok(Json(api.range_stats(topic.id).iter().map(range).collect()))
}

/// `GET /api/v1/topics/NAME/ranges/explain`: looks twice, half a second apart, for the rates.
pub async fn explain(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<RangesExplained>, HttpError> {
    let api = state.api()?;
    let id = find(api, &name)?.id;
    api.know_stored(id).await;
    let (before, looked) = (api.range_stats(id), Instant::now());
    tokio::time::sleep(LOOK).await;
    let (topic, after, seconds) = (find(api, &name)?, api.range_stats(id), looked.elapsed().as_secs_f64());
    let ranges: Vec<RangeExplained> = after.into_iter().map(|r| explained(r, &before, seconds)).collect();
    let last = api.operations().into_iter().rev().find(|operation| operation.topic == id);
    let last_reshard = last.map(|view| operations::description(api, view));
    let look =
        Look { topic: &topic, ranges: &ranges, last_reshard: last_reshard.as_ref(), now_ms: api.now_ms() };
    let mut lines = sentences(look);
    if let Some(advice) = api.reshard_advice(id) {
        lines.push(format!("Splits and merges by load (rangeway.reshard): {}.", advice.mode));
        lines.extend(advice.lines);
    }
    Ok(Json(RangesExplained { topic: name, ranges, last_reshard, lines }))
}

fn range(stats: &RangeStats) -> RangeDescription {
    RangeDescription {
        id: stats.id,
        first: stats.first,
        last: stats.last,
        state: stats.state.clone(),
        blocked: stats.blocked.clone(),
        primary: stats.primary,
        segments: stats.segments,
        bytes: stats.bytes,
        parents: stats.parents.clone(),
        children: stats.children.clone(),
        appended_records: stats.appended_records,
        appended_bytes: stats.appended_bytes,
    }
}

fn explained(stats: RangeStats, before: &[RangeStats], seconds: f64) -> RangeExplained {
    // A range that was made meanwhile has no earlier look.
    let earlier = before.iter().find(|r| r.id == stats.id).filter(|_| stats.head.is_some());
    let rate = |count: fn(&RangeStats) -> u64| {
        earlier.map(|earlier| count(&stats).saturating_sub(count(earlier)) as f64 / seconds)
    };
    RangeExplained {
        records_per_second: rate(|r| r.appended_records),
        bytes_per_second: rate(|r| r.appended_bytes),
        range: range(&stats),
        oldest_opened_at: stats.oldest_opened_at,
        head: stats.head.map(|h| Head {
            loglet: h.loglet,
            base: h.base,
            tail: h.tail,
            opened_at: h.opened_at,
        }),
        partitions: stats
            .partitions
            .iter()
            .map(|p| PartitionEnds { partition: p.partition, log_start: p.log_start, end: p.end })
            .collect(),
    }
}
