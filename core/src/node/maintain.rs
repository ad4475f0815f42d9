//! Background work of a node: rolls, checkpoints, retention, ranges on dead drives, load. Decisions are pure functions of
//! `range::retention` and `range::fold`; this loop looks and obeys.

use super::Inner;
use super::said::{Event, Named};
use super::topic::TopicRuntime;
use crate::range::checkpoint;
use crate::range::primary::{Phase, RangePrimary};
use crate::range::retention;
use crate::types::{LogletId, RangeId, TopicId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// While nobody writes.
const TICK_IDLE: Duration = Duration::from_millis(500);
const ROLL_AWAY_EVERY: Duration = Duration::from_secs(1);
/// What cannot be rolled away is tried less and less often, at last every so many seconds: each try may read a whole segment.
const ROLL_AWAY_WAIT_MAX: Duration = Duration::from_secs(16);

pub(super) async fn run(node: Arc<Inner>) {
    let retention_every = Duration::from_millis(node.options.config.retention_check_ms.unsigned_abs());
    node.look_at_segments().await;
    let (mut waits, mut rolls) = (Waits::default(), Waits::default());
    // What a start has blocked is said by the start.
    let mut blocked: BTreeSet<Named> = node.blocked_ranges().into_iter().map(|(who, ..)| who).collect();
    let (mut retained, mut rolled_away) = (Instant::now(), Instant::now());
    let (mut tick, mut unfolded) = (TICK, 0);
    loop {
        tokio::select! {
            () = node.cancel.cancelled() => return node.say(),
            () = tokio::time::sleep(tick) => {}
        }
        let retention_due = retained.elapsed() >= retention_every;
        let roll_away_due = rolled_away.elapsed() >= ROLL_AWAY_EVERY;
        for topic in node.all_topics().values() {
            for range in topic.ranges().iter() {
                node.look_after(topic, range, roll_away_due, &mut waits, &mut rolls).await;
            }
            if retention_due {
                node.retain(topic).await;
            }
        }
        blocked = node.note_blocked(&blocked);
        node.say();
        let before = std::mem::replace(&mut unfolded, node.relieve());
        tick = if unfolded == before { TICK_IDLE.min(retention_every).max(TICK) } else { TICK };
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

/// How long blocked ranges wait for another try, by topic, range and segment.
#[derive(Debug, Default)]
struct Waits(HashMap<(TopicId, RangeId, LogletId), (Instant, Duration)>);

impl Waits {
    fn due(&self, of: (TopicId, RangeId, LogletId), now: Instant) -> bool {
        self.0.get(&of).is_none_or(|(at, _)| *at <= now)
    }

    /// Whether it was not tried yet.
    fn is_new(&self, of: (TopicId, RangeId, LogletId)) -> bool {
        !self.0.contains_key(&of)
    }

    fn failed(&mut self, of: (TopicId, RangeId, LogletId), now: Instant) {
        // Ranges that are gone are not asked for again.
        self.0.retain(|_, (at, wait)| now < *at + *wait + ROLL_AWAY_WAIT_MAX);
        let before = self.0.get(&of).map_or(ROLL_AWAY_EVERY / 2, |(_, wait)| *wait);
        let wait = (before * 2).min(ROLL_AWAY_WAIT_MAX);
        self.0.insert(of, (now + wait, wait));
    }

    fn forget(&mut self, of: (TopicId, RangeId, LogletId)) {
        self.0.remove(&of);
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
                range.parts(self.now_ms()).await;
            }
        }
    }

    /// Bounds what a restart has to fold, however many ranges there are: how many bytes it was.
    fn relieve(&self) -> u64 {
        let topics = self.all_topics();
        let ranges: Vec<Arc<RangePrimary>> = topics.values().flat_map(|t| t.ranges().to_vec()).collect();
        let unfolded: Vec<(u64, u64)> = ranges.iter().map(|range| range.unfolded()).collect();
        for i in checkpoint::relieve(&unfolded, self.options.config.checkpoint_unfolded_bytes) {
            ranges[i].checkpoint(self.now_ms());
        }
        unfolded.iter().map(|(bytes, _)| *bytes).sum()
    }

    /// Takes note of ranges that take no writes and are not among those `before`; all that take none.
    fn note_blocked(&self, before: &BTreeSet<Named>) -> BTreeSet<Named> {
        let mut now = BTreeSet::new();
        for (who, _, why) in self.blocked_ranges() {
            if !before.contains(&who) {
                self.note(Event::Blocked, who.clone(), &why);
            }
            now.insert(who);
        }
        now
    }

    /// A roll, not more often than `rolls` says.
    async fn try_roll(&self, topic: &TopicRuntime, range: &Arc<RangePrimary>, rolls: &mut Waits) {
        let of = (topic.id, range.id, range.active_loglet());
        if !rolls.due(of, Instant::now()) {
            return;
        }
        match self.roll(topic, range).await {
            Ok(()) => rolls.forget(of),
            Err(why) => {
                self.note(Event::NotRolled, Named::range(&topic.name, range.id), &why);
                rolls.failed(of, Instant::now());
            }
        }
    }

    /// `again`: blocked ranges that were tried before are due.
    async fn look_after(
        &self,
        topic: &TopicRuntime,
        range: &Arc<RangePrimary>,
        again: bool,
        waits: &mut Waits,
        rolls: &mut Waits,
    ) {
        if range.ends_unfenced() {
            // Nobody else writes the segment, and its writer has stopped: a graceful roll (design 5) to a disk that lives.
            self.try_roll(topic, range, rolls).await;
        }
        range.look_at_drive();
        match range.phase() {
            Phase::Open => {}
            Phase::Blocked(_) => {
                let of = (topic.id, range.id, range.active_loglet());
                // At once at first: clients wait to be told whether it can go on.
                let due = waits.is_new(of) || (again && waits.due(of, Instant::now()));
                if !due {
                    return;
                }
                match self.roll_away(topic, range).await {
                    Ok(()) => waits.forget(of),
                    Err(why) => {
                        tracing::debug!(topic = %topic.name, range = %range.id, why, "range stays blocked");
                        waits.failed(of, Instant::now());
                    }
                }
                return;
            }
            _ => return,
        }
        range.begin_with_room(self.now_ms());
        let config = topic.config.load_full();
        let (bytes, first_append_at) = range.head_data();
        let now = self.now_ms();
        let age = match config.cleanup.compact {
            true => config.segment_ms.min(config.compaction.max_lag_ms),
            false => config.segment_ms,
        };
        let due = retention::roll_due(bytes, first_append_at, config.segment_bytes, age, now);
        if due.is_some() {
            self.try_roll(topic, range, rolls).await;
            return;
        }
        let (since, last_full) = range.unfolded();
        let due = checkpoint::due(since, last_full, self.options.config.checkpoint_bytes);
        if due || range.frees_by_checkpoint() {
            range.checkpoint(self.now_ms());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn what_stays_blocked_is_tried_less_and_less_often() {
        let (mut waits, mut now) = (Waits::default(), Instant::now());
        let of = (TopicId(Uuid::nil()), RangeId(1), LogletId(2));
        let mut tries = Vec::new();
        for second in 0..60 {
            if waits.due(of, now) {
                tries.push(second);
                waits.failed(of, now);
            }
            now += ROLL_AWAY_EVERY;
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 47]);
        waits.forget(of);
        assert!(waits.due(of, now));
    }
}
