//! Background work of a node: rolls, checkpoints, retention, ranges on dead drives. Decisions are pure functions of
//! `range::retention` and `range::fold`; this loop looks and obeys.

use super::Inner;
use super::topic::TopicRuntime;
use crate::control::command::{Command, DropSegments};
use crate::control::propose_one;
use crate::range::checkpoint;
use crate::range::primary::{Known, Phase, RangePrimary};
use crate::range::retention::{self, Bounds, FoldsFrom, Part, Policy, SegmentView};
use crate::range::segment::Start;
use crate::types::{LogletId, Partition};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
const ROLL_AWAY_EVERY: Duration = Duration::from_secs(1);
const RAISE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn run(node: Arc<Inner>) {
    let retention_every = Duration::from_millis(node.options.config.retention_check_ms.unsigned_abs());
    let (mut retained, mut rolled_away) = (Instant::now(), Instant::now());
    loop {
        tokio::select! {
            () = node.cancel.cancelled() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let retention_due = retained.elapsed() >= retention_every;
        let roll_away_due = rolled_away.elapsed() >= ROLL_AWAY_EVERY;
        for topic in node.all_topics().values() {
            for range in topic.ranges().iter() {
                node.look_after(topic, range, roll_away_due).await;
                if retention_due && *range.known() == Known::Whole {
                    node.retain(topic, range).await;
                }
            }
        }
        node.relieve();
        if roll_away_due {
            node.resume_operations().await;
        }
        if retention_due {
            retained = Instant::now();
            let _layout = node.layout.lock().await;
            node.bury().await;
        }
        if roll_away_due {
            rolled_away = Instant::now();
        }
    }
}

impl Inner {
    /// Bounds what a restart has to fold, however many ranges there are.
    fn relieve(&self) {
        let topics = self.all_topics();
        let ranges: Vec<Arc<RangePrimary>> = topics.values().flat_map(|t| t.ranges().to_vec()).collect();
        let unfolded: Vec<(u64, u64)> = ranges.iter().map(|range| range.unfolded()).collect();
        for i in checkpoint::relieve(&unfolded, self.options.config.checkpoint_unfolded_bytes) {
            ranges[i].checkpoint(self.now_ms());
        }
    }

    async fn look_after(&self, topic: &TopicRuntime, range: &Arc<RangePrimary>, roll_away_due: bool) {
        range.look_at_drive();
        match range.phase() {
            Phase::Open => {}
            Phase::Blocked(_) if roll_away_due => {
                if let Err(why) = self.roll_away(topic, range).await {
                    tracing::debug!(topic = %topic.name, range = %range.id, why, "range stays blocked");
                }
                return;
            }
            _ => return,
        }
        let config = topic.config.load_full();
        let (bytes, first_append_at) = range.head_data();
        let now = self.now_ms();
        let due = retention::roll_due(bytes, first_append_at, config.segment_bytes, config.segment_ms, now);
        if due.is_some() {
            self.roll(topic, range).await;
            return;
        }
        let (since, last_full) = range.unfolded();
        if checkpoint::due(since, last_full, self.options.config.checkpoint_bytes) {
            range.checkpoint(self.now_ms());
        }
    }

    async fn retain(&self, topic: &TopicRuntime, range: &Arc<RangePrimary>) {
        let config = topic.config.load_full();
        let policy = Policy { retention_ms: config.retention_ms, retention_bytes: config.retention_bytes };
        let views = match self.segment_views(range).await {
            Ok(views) => views,
            Err(error) => {
                tracing::warn!(topic = %topic.name, range = %range.id, error, "retention cannot look at the segments");
                return;
            }
        };
        let bounds = |partition| {
            range.view(partition).map(|v| Bounds { log_start: v.log_start, high_watermark: v.high_watermark })
        };
        let folds_from = match range.checkpointed() {
            Some(loglet) => FoldsFrom::Segment(loglet),
            None => FoldsFrom::Unknown,
        };
        let plan = retention::plan(&views, bounds, policy, folds_from, self.now_ms());
        if !plan.raise.is_empty() {
            let deadline = Instant::now() + RAISE_TIMEOUT;
            if let Err(error) = self.raise_log_starts(topic.id, &plan.raise, deadline).await {
                tracing::warn!(topic = %topic.name, range = %range.id, %error, "log starts not raised");
                return;
            }
        }
        if !plan.drop.is_empty() {
            self.drop_segments(topic, range, plan.drop).await;
        }
    }

    async fn drop_segments(&self, topic: &TopicRuntime, range: &RangePrimary, loglets: Vec<LogletId>) {
        let _layout = self.layout.lock().await;
        let state = self.control.read();
        let Some(control) = state.range(topic.id, range.id) else { return };
        let command = Command::DropSegments(DropSegments {
            topic: topic.id,
            range: range.id,
            version: control.version,
            loglets: loglets.clone(),
            now: self.now_ms(),
        });
        if let Err(error) = propose_one(&*self.control, command).await {
            tracing::warn!(topic = %topic.name, range = %range.id, %error, "segments not dropped");
            return;
        }
        self.dropped.fetch_add(loglets.len() as u64, Ordering::Relaxed);
        range.drop_segments(&loglets);
        self.refresh_catalog();
        self.bury().await;
    }

    /// What each segment holds of each partition: differences of where the partitions stood when segments began.
    async fn segment_views(&self, range: &RangePrimary) -> Result<Vec<SegmentView>, String> {
        let segments = range.segments();
        let mut views = Vec::with_capacity(segments.len());
        let mut next = range.ends();
        let mut next_opened_at = self.now_ms();
        for segment in segments.iter().rev() {
            let starts = range.starts_of(segment).await.map_err(|e| e.to_string())?;
            let parts = range.span.iter().zip(starts.iter().zip(next.iter()));
            views.push(SegmentView {
                loglet: segment.loglet,
                sealed: segment.tail().is_some(),
                parts: parts.filter_map(|(p, (from, to))| part(p, from, to, next_opened_at)).collect(),
            });
            next = starts;
            next_opened_at = segment.opened_at;
        }
        views.reverse();
        Ok(views)
    }
}

/// What a segment holds of a partition that stood at `from` when it began and at `to` when it ended.
fn part(partition: Partition, from: &Start, to: &Start, ended_at: i64) -> Option<Part> {
    (to.offset > from.offset).then(|| Part {
        partition,
        first: from.offset,
        next: to.offset,
        bytes: to.bytes.saturating_sub(from.bytes),
        // A maximum that did not grow here belongs to older records: then these are no newer than the segment's end.
        max_timestamp: if to.max_timestamp > from.max_timestamp {
            to.max_timestamp
        } else {
            to.max_timestamp.min(ended_at)
        },
        appended_at: ended_at,
    })
}
