//! What operators see of a topic's ranges.

use super::Inner;
use crate::api::{HeadStats, PartitionStats, RangeStats};
use crate::control::state::Range;
use crate::range::primary::{Phase, RangePrimary};
use crate::types::{RangeId, TopicId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Inner {
    /// Reads what is still to be known of the bytes that the topic's ranges store.
    pub(crate) async fn know_stored(&self, topic: TopicId) {
        for range in self.topic(topic).map(|t| t.ranges()).unwrap_or_default().iter() {
            if range.stored_if_known().is_none() {
                range.parts(self.now_ms()).await;
            }
        }
    }

    /// All ranges that the control state has, closed ones too, in the order of their partitions.
    pub(crate) fn range_stats(&self, topic: TopicId) -> Vec<RangeStats> {
        let state = self.control.read();
        let Some(control) = state.topics.get(&topic) else { return Vec::new() };
        let primaries = self.topic(topic).map(|t| t.ranges()).unwrap_or_default();
        let mut stored: BTreeMap<RangeId, u64> = BTreeMap::new();
        for (range, bytes) in primaries.iter().flat_map(|primary| primary.stored()) {
            *stored.entry(range).or_default() += bytes;
        }
        let row = |range: &Arc<Range>| {
            let live = primaries.iter().find(|primary| primary.id == range.id);
            row(range, live.map(|live| &**live), stored.get(&range.id).copied().unwrap_or(0))
        };
        let mut rows: Vec<RangeStats> = control.ranges.values().map(row).collect();
        rows.sort_by_key(|row| (row.first, row.id));
        rows
    }
}

fn row(range: &Range, live: Option<&RangePrimary>, bytes: u64) -> RangeStats {
    let ends = live.map(|live| live.ends()).unwrap_or_default();
    let views = live.into_iter().flat_map(|live| live.span.iter().map(|p| (p, live.view(p))));
    let tail = live.and_then(|live| live.view(live.span.first)).map_or(0, |view| view.tail.0);
    RangeStats {
        id: range.id.0,
        first: range.span.first,
        last: range.span.last,
        state: range.state.to_string(),
        blocked: live.and_then(|live| match live.phase() {
            Phase::Blocked(why) => Some(why),
            _ => None,
        }),
        primary: range.primary().map_or(-1, |p| p.node.0),
        segments: range.chain.len(),
        bytes,
        parents: range.parents.iter().map(|r| r.0).collect(),
        children: range.children.iter().map(|r| r.0).collect(),
        appended_records: ends.iter().map(|end| end.offset.unsigned_abs()).sum(),
        appended_bytes: ends.iter().map(|end| end.bytes).sum(),
        oldest_opened_at: range.chain.first().map(|entry| entry.opened_at),
        head: range.open().map(|open| HeadStats {
            loglet: open.loglet.0,
            base: open.base,
            tail: open.base.saturating_add(tail),
            opened_at: open.opened_at,
        }),
        partitions: views
            .filter_map(|(partition, view)| {
                let view = view?;
                Some(PartitionStats { partition, log_start: view.log_start, end: view.high_watermark })
            })
            .collect(),
    }
}
