//! Background work of a node: rolls, checkpoints, retention, ranges on dead drives, load. Decisions are pure functions of
//! `range::retention` and `range::fold`; this loop looks and obeys.

use super::Inner;
use super::topic::TopicRuntime;
use crate::range::checkpoint;
use crate::range::primary::{Phase, RangePrimary};
use crate::range::retention;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
const ROLL_AWAY_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(node: Arc<Inner>) {
    let retention_every = Duration::from_millis(node.options.config.retention_check_ms.unsigned_abs());
    node.look_at_segments().await;
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
            }
            if retention_due {
                node.retain(topic).await;
            }
        }
        node.relieve();
        node.balance();
        if roll_away_due {
            node.resume_operations().await;
            node.follow_all().await;
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
    /// Reads where segments begin, so that figures of a node that started again are whole from the start.
    async fn look_at_segments(&self) {
        for topic in self.all_topics().values() {
            for range in topic.ranges().iter() {
                if self.cancel.is_cancelled() {
                    return;
                }
                if let Err(error) = range.parts(self.now_ms()).await {
                    tracing::debug!(topic = %topic.name, range = %range.id, %error, "a segment's beginning cannot be read");
                }
            }
        }
    }

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
}
