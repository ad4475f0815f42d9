//! `/api/v1/topics/NAME/ranges`.

use super::HttpState;
use super::error::HttpError;
use super::shapes::{RangeDescription, RangesExplained};
use super::topics::find;
use axum::Json;
use axum::extract::{Path, State};
use rangeway_core::api::{RangeStats, TopicView};
use std::sync::Arc;

/// `GET /api/v1/topics/NAME/ranges`: active and closed ones, by id.
pub async fn list(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<Vec<RangeDescription>>, HttpError> {
    let api = state.api()?;
    let topic = find(api, &name)?;
    Ok(Json(api.range_stats(topic.id).into_iter().map(range).collect()))
}

/// `GET /api/v1/topics/NAME/ranges/explain`.
pub async fn explain(
    State(state): State<Arc<HttpState>>,
    Path(name): Path<String>,
) -> Result<Json<RangesExplained>, HttpError> {
    let api = state.api()?;
    let topic = find(api, &name)?;
    let ranges: Vec<RangeDescription> = api.range_stats(topic.id).into_iter().map(range).collect();
    let lines = sentences(&topic, &ranges);
    Ok(Json(RangesExplained { topic: name, ranges, lines }))
}

fn range(stats: RangeStats) -> RangeDescription {
    RangeDescription {
        id: stats.id,
        first: stats.first,
        last: stats.last,
        state: stats.state,
        primary: stats.primary,
        segments: stats.segments,
        bytes: stats.bytes,
        parents: stats.parents,
        children: stats.children,
    }
}

fn sentences(topic: &TopicView, ranges: &[RangeDescription]) -> Vec<String> {
    let all: u64 = ranges.iter().map(|r| r.bytes).sum();
    let mut lines = vec![format!(
        "{} has {} in {}, each range one log on drive {}.",
        topic.name,
        counted(i64::from(topic.partitions), "partition"),
        counted(i64::try_from(topic.ranges.len()).unwrap_or(i64::MAX), "active range"),
        topic.drive
    )];
    for range in ranges {
        let share = if all == 0 { 0.0 } else { 100.0 * range.bytes as f64 / all as f64 };
        lines.push(format!(
            "Range {} ({}) holds partitions {} to {}: {}, {} bytes in {} ({share:.0} % of the topic); {}.{}",
            range.id,
            range.state,
            range.first,
            range.last,
            led(topic, range),
            range.bytes,
            counted(i64::try_from(range.segments).unwrap_or(i64::MAX), "segment"),
            origin(range),
            fate(range),
        ));
    }
    lines
}

/// Who leads a range, and in which epochs clients see its partitions.
fn led(topic: &TopicView, range: &RangeDescription) -> String {
    let Some(view) = topic.ranges.iter().find(|view| view.id.0 == range.id) else {
        return "not led".to_owned();
    };
    let epochs: Vec<String> = match &*view.epochs {
        [(_, epoch)] => vec![format!("leader epoch {epoch}")],
        runs => runs
            .iter()
            .map(|(span, epoch)| {
                format!("leader epoch {epoch} for partitions {} to {}", span.first, span.last)
            })
            .collect(),
    };
    format!("led by node {}, {}", view.leader.0, epochs.join(", "))
}

fn origin(range: &RangeDescription) -> String {
    match range.parents.as_slice() {
        [] => "made with the topic or with added partitions".to_owned(),
        [parent] => format!("split from range {parent}"),
        parents => format!("merged from ranges {}", joined(parents)),
    }
}

fn fate(range: &RangeDescription) -> String {
    match range.children.as_slice() {
        [] => String::new(),
        children => format!(" Its partitions went on in {}.", joined(children)),
    }
}

fn joined(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ")
}

fn counted(n: i64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
