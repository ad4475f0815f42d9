//! Retention of a topic: its ranges raise the log starts of their partitions, and segments that nobody needs any more are
//! dropped, those of closed ranges too. Decisions are `range::retention`'s; this looks and obeys.

use super::Inner;
use super::said::{Event, Named};
use super::topic::TopicRuntime;
use crate::control::command::{Command, DropSegments, RangeState};
use crate::control::propose_one;
use crate::control::state::{Range, Topic};
use crate::range::lineage::overlap;
use crate::range::parts::Holdings;
use crate::range::primary::{Known, RangePrimary};
use crate::range::retention::{self, Bounds, FoldsFrom, Part, Policy, SegmentView};
use crate::range::segment::Segment;
use crate::types::{LogletId, Offset, Partition, RangeId, TopicId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const RAISE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a pass over a topic found.
pub(super) struct Pass {
    /// The topic's ranges when it began.
    layout: Arc<Vec<Arc<RangePrimary>>>,
    /// Those whose log is known whole, and goes on.
    pub(super) looked_at: Vec<Arc<RangePrimary>>,
    pub(super) holdings: Holdings,
    /// Committed log starts of their partitions.
    pub(super) log_starts: BTreeMap<Partition, Offset>,
}

impl Inner {
    /// Whether the node keeps a topic for itself.
    pub(super) fn is_internal(&self, topic: TopicId) -> bool {
        self.control.read().topics.get(&topic).is_some_and(|control| control.internal)
    }

    /// One pass over a topic. A layout that changes meanwhile ends it: the next one judges anew.
    pub(super) async fn retain(&self, topic: &TopicRuntime) {
        let mut pass = Pass::new(topic.ranges());
        for range in pass.whole() {
            let parts = range.parts(self.now_ms()).await;
            let views = parts.iter().map(|(segment, parts)| SegmentView {
                loglet: segment.loglet,
                sealed: segment.tail().is_some(),
                parts: parts.clone(),
            });
            self.raise(topic, &range, &views.collect::<Vec<_>>()).await;
            pass.add(range, parts);
        }
        pass.note_log_starts();
        let state = self.control.read();
        let Some(control) = state.topics.get(&topic.id) else { return };
        // Oldest first: a range goes only after its parents.
        for id in control.ranges.keys() {
            self.drop_of(topic, &pass, *id).await;
        }
    }

    /// What a topic's segments hold now.
    pub(super) async fn look_at(&self, topic: &TopicRuntime) -> Pass {
        let mut pass = Pass::new(topic.ranges());
        for range in pass.whole() {
            let parts = range.parts(self.now_ms()).await;
            pass.add(range, parts);
        }
        pass.note_log_starts();
        pass
    }

    async fn raise(&self, topic: &TopicRuntime, range: &RangePrimary, views: &[SegmentView]) {
        let config = topic.config.load_full();
        // What a coordinator needs goes only below its snapshot, by its own trim (INV-REP-4).
        let policy = match config.cleanup.delete && !self.is_internal(topic.id) {
            true => Policy { retention_ms: config.retention_ms, retention_bytes: config.retention_bytes },
            false => Policy::default(),
        };
        let bounds = |partition| {
            range.view(partition).map(|v| Bounds { log_start: v.log_start, high_watermark: v.high_watermark })
        };
        let raise = retention::raise(views, bounds, policy, self.now_ms());
        if raise.is_empty() {
            return;
        }
        let deadline = Instant::now() + RAISE_TIMEOUT;
        if let Err(error) = self.raise_log_starts(topic.id, &raise, deadline).await {
            self.note(Event::NotRaised, Named::range(&topic.name, range.id), &error.to_string());
        }
    }

    /// Drops what may go of a range's own segments, and the range with them when it is closed and nothing is left.
    async fn drop_of(&self, topic: &TopicRuntime, pass: &Pass, id: RangeId) {
        let state = self.control.read();
        let Some(control) = state.topics.get(&topic.id) else { return };
        if control.ranges.get(&id).is_some_and(|range| pass.droppable(control, range).is_some()) {
            let _layout = self.layout.lock().await;
            self.drop_now(topic, pass, id).await;
        }
        pass.let_go(id);
    }

    /// The caller holds the layout.
    async fn drop_now(&self, topic: &TopicRuntime, pass: &Pass, id: RangeId) {
        let state = self.control.read();
        let Some(control) = state.topics.get(&topic.id) else { return };
        let Some(range) = control.ranges.get(&id) else { return };
        if !Arc::ptr_eq(&pass.layout, &topic.ranges()) {
            return;
        }
        let Some(loglets) = pass.droppable(control, range) else { return };
        let (version, now) = (range.version, self.now_ms());
        let drop = DropSegments { topic: topic.id, range: id, version, loglets: loglets.clone(), now };
        if let Err(error) = propose_one(&*self.control, Command::DropSegments(drop)).await {
            self.note(Event::NotDropped, Named::range(&topic.name, id), &error.to_string());
            return;
        }
        self.dropped.fetch_add(loglets.len() as u64, Ordering::Relaxed);
        let readers = pass.layout.iter().filter(|reader| overlap(reader.span, range.span).is_some());
        readers.for_each(|reader| reader.drop_segments(&loglets));
        self.refresh_catalog();
    }
}

impl Pass {
    fn new(layout: Arc<Vec<Arc<RangePrimary>>>) -> Pass {
        let (looked_at, log_starts) = (Vec::new(), BTreeMap::new());
        Pass { layout, looked_at, holdings: Holdings::default(), log_starts }
    }

    fn whole(&self) -> Vec<Arc<RangePrimary>> {
        let whole = |range: &&Arc<RangePrimary>| *range.known() == Known::Whole && !range.is_still();
        self.layout.iter().filter(whole).cloned().collect()
    }

    fn add(&mut self, range: Arc<RangePrimary>, parts: Vec<(Arc<Segment>, Vec<Part>)>) {
        self.holdings.add(parts);
        self.looked_at.push(range);
    }

    fn note_log_starts(&mut self) {
        self.log_starts = self.looked_at.iter().flat_map(|range| range.visible_log_starts()).collect();
    }

    /// What a fold needs of a range.
    pub(super) fn folds_from(&self, range: &Range) -> FoldsFrom {
        if range.state == RangeState::Closed {
            let live = self.looked_at.iter().map(|live| (live.span, live.checkpointed().is_some()));
            return retention::folds_through(range.span, live);
        }
        let live = self.looked_at.iter().find(|live| live.id == range.id);
        live.and_then(|live| live.checkpointed()).map_or(FoldsFrom::Unknown, FoldsFrom::Segment)
    }

    /// The segments of a range that may go: none, for a closed range that has none and may go itself.
    fn droppable(&self, topic: &Topic, range: &Range) -> Option<Vec<LogletId>> {
        let folds_from = self.folds_from(range);
        let log_start = |partition| self.log_starts.get(&partition).copied();
        let mut loglets = retention::droppable(&self.holdings.views(range.id), log_start, folds_from);
        if loglets.len() == range.chain.len() && folds_from == FoldsFrom::Children {
            // What is left of its parents is reached through it.
            if range.parents.iter().all(|parent| !topic.ranges.contains_key(parent)) {
                return Some(loglets);
            }
            loglets.pop();
        }
        (!loglets.is_empty()).then_some(loglets)
    }

    /// Tells the drives of a closed range's segments what is below the log starts, so that a cold partition keeps its own
    /// records only: once no fold needs them.
    fn let_go(&self, id: RangeId) {
        let Some(owner) = self.holdings.segments(id).next().map(|segment| segment.owner) else { return };
        if self.looked_at.iter().any(|live| live.id == id) {
            return; // its own checkpoints say so
        }
        let live = self.looked_at.iter().map(|live| (live.span, live.checkpointed().is_some()));
        if retention::folds_through(owner.span, live) != FoldsFrom::Children {
            return;
        }
        let raised = self.log_starts.range(owner.span.first..=owner.span.last);
        let raised: Vec<(Partition, Offset)> =
            raised.filter(|(_, start)| **start > 0).map(|(partition, start)| (*partition, *start)).collect();
        if !raised.is_empty() {
            self.holdings.segments(id).for_each(|segment| segment.drive.note_log_starts(&raised));
        }
    }
}
