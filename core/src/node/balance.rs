//! Splits and merges by load: measures ranges, asks `reshard::decide`, and does or says what it decides (design 7,
//! "Automatic"). Owns the meters; the decision is not made here.

use super::Inner;
use super::topic::TopicRuntime;
use crate::api::ReshardAdvice;
use crate::config::reshard::{ReshardConfig, ReshardMode};
use crate::control::command::RangeState;
use crate::control::state::{OperationKind, Topic};
use crate::range::primary::{Known, Phase, RangePrimary};
use crate::reshard::decide::{Action, Decision, Layout, Policy, RangeInfo, decide};
use crate::reshard::load::{Counts, Meter, RangeLoad};
use crate::types::{RangeId, TopicId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is remembered between decisions.
#[derive(Debug, Default)]
pub(super) struct Balance {
    topics: Mutex<HashMap<TopicId, Remembered>>,
    /// Splits and merges that were begun by load.
    pub(super) splits: AtomicU64,
    pub(super) merges: AtomicU64,
}

#[derive(Debug, Default)]
struct Remembered {
    meters: BTreeMap<RangeId, Meter>,
    /// Splits and merges begun here that are not over.
    begun: usize,
    /// Ranges whose split or merge did not come about, and when that was, broker ms.
    failed: BTreeMap<RangeId, i64>,
    /// What was advised last.
    advised: Vec<Action>,
}

impl Balance {
    /// Splits and merges that are advised now.
    pub(super) fn advised(&self) -> (usize, usize) {
        let topics = self.topics.lock();
        let all = topics.values().flat_map(|topic| &topic.advised);
        let splits = all
            .clone()
            .filter(|action| matches!(action, Action::Change(OperationKind::Split { .. })))
            .count();
        (splits, all.count() - splits)
    }

    fn over(&self, topic: TopicId, failed: &[RangeId], now: i64) {
        let mut topics = self.topics.lock();
        let remembered = topics.entry(topic).or_default();
        remembered.begun = remembered.begun.saturating_sub(1);
        remembered.failed.extend(failed.iter().map(|range| (*range, now)));
    }
}

impl Inner {
    /// One look at all topics: samples that are due, and decisions where there are new ones.
    pub(super) fn balance(self: &Arc<Self>) {
        let topics = self.all_topics();
        let state = self.control.read();
        let now = self.now_ms();
        self.balance.topics.lock().retain(|id, remembered| topics.contains_key(id) || remembered.begun > 0);
        for topic in topics.values() {
            let Some(control) = state.topics.get(&topic.id).filter(|control| !control.internal) else {
                continue;
            };
            if !self.measure(topic, now) {
                continue;
            }
            let config = topic.config.load();
            match config.reshard.mode {
                ReshardMode::Off => self.advise(topic, Vec::new()),
                ReshardMode::Advise => self.advise(topic, self.decisions(topic, control, now)),
                ReshardMode::On => {
                    self.advise(topic, Vec::new());
                    self.act(topic, self.decisions(topic, control, now), now);
                }
            }
        }
    }

    /// Samples the topic's ranges where that is due; returns whether there was one.
    fn measure(&self, topic: &TopicRuntime, now: i64) -> bool {
        let window_ms = topic.config.load().reshard.window_ms;
        let ranges = topic.ranges();
        let mut topics = self.balance.topics.lock();
        let remembered = topics.entry(topic.id).or_default();
        let mut sampled = false;
        for range in ranges.iter().filter(|range| range.phase() == Phase::Open) {
            let meter = remembered.meters.entry(range.id).or_insert_with(|| Meter::new(window_ms));
            if meter.window_ms() != window_ms {
                *meter = Meter::new(window_ms);
            }
            if meter.due(now) {
                meter.observe(now, counters(range));
                sampled = true;
            }
        }
        if sampled {
            let lives = |id: &RangeId| ranges.iter().any(|range| range.id == *id);
            remembered.meters.retain(|id, _| lives(id));
            remembered.failed.retain(|id, _| lives(id));
        }
        sampled
    }

    fn decisions(&self, topic: &TopicRuntime, control: &Topic, now: i64) -> Vec<Decision> {
        let config = topic.config.load();
        let policy = policy(&config.reshard);
        let ranges = topic.ranges();
        let running = self.control.read();
        let running = running.operations.values().filter(|o| o.topic == topic.id && !o.state.is_over());
        let running = running.count();
        let topics = self.balance.topics.lock();
        let Some(remembered) = topics.get(&topic.id) else { return Vec::new() };
        let load: BTreeMap<RangeId, RangeLoad> = ranges
            .iter()
            .filter_map(|range| {
                let stored_bytes = range.stored_if_known();
                Some((range.id, remembered.meters.get(&range.id)?.load(stored_bytes)))
            })
            .collect();
        let infos = ranges.iter().map(|range| RangeInfo {
            id: range.id,
            span: range.span,
            made_at: made_at(control, range.id).unwrap_or(now),
            busy: busy(control, range).or_else(|| {
                let failed = remembered.failed.get(&range.id)?;
                let lately = now.saturating_sub(*failed) < policy.cool_down_ms.max(policy.window_ms);
                lately.then_some("could not be changed a moment ago, the log says why")
            }),
        });
        let layout = Layout { ranges: infos.collect(), running: running.max(remembered.begun) };
        decide(&layout, &load, &policy, now)
    }

    /// Keeps what is advised, and logs it when it is another than before.
    fn advise(&self, topic: &TopicRuntime, decisions: Vec<Decision>) {
        let advice: Vec<Decision> =
            decisions.into_iter().filter(|decision| decision.action.change().is_some()).collect();
        let actions: Vec<Action> = advice.iter().map(|decision| decision.action).collect();
        let mut topics = self.balance.topics.lock();
        let remembered = topics.entry(topic.id).or_default();
        for decision in advice.iter().filter(|decision| !remembered.advised.contains(&decision.action)) {
            if let Some(kind) = decision.action.change() {
                tracing::info!(topic = %topic.name, operation = %kind, why = decision.why, "advised by load");
            }
        }
        remembered.advised = actions;
    }

    fn act(self: &Arc<Self>, topic: &TopicRuntime, decisions: Vec<Decision>, now: i64) {
        for decision in decisions {
            let Some(kind) = decision.action.change() else { continue };
            tracing::info!(topic = %topic.name, operation = %kind, why = decision.why, "begun by load");
            let count = match kind {
                OperationKind::Split { .. } => &self.balance.splits,
                OperationKind::Merge { .. } => &self.balance.merges,
            };
            count.fetch_add(1, Ordering::Relaxed);
            self.balance.topics.lock().entry(topic.id).or_default().begun += 1;
            let (node, id, name) = (self.clone(), topic.id, topic.name.clone());
            self.tasks.spawn(async move {
                let ranges = kind.ranges();
                let why_not = match node.reshard(id, kind).await {
                    Ok(operation) => operation.why,
                    Err(error) => Some(error.to_string()),
                };
                if let Some(why) = &why_not {
                    tracing::warn!(topic = %name, ?ranges, why, "split or merge by load did not come about");
                }
                node.balance.over(id, if why_not.is_some() { &ranges } else { &[] }, now);
            });
        }
    }

    /// What is, or would be, done by load now, and why; `None` for topics that are none of the clients'.
    pub(crate) fn reshard_advice(&self, topic: TopicId) -> Option<ReshardAdvice> {
        let state = self.control.read();
        let control = state.topics.get(&topic).filter(|topic| !topic.internal)?;
        let runtime = self.topic(topic)?;
        let mode = runtime.config.load().reshard.mode;
        let decisions = self.decisions(&runtime, control, self.now_ms());
        let lines = decisions.into_iter().map(|decision| match (decision.action, mode) {
            (Action::Keep { .. }, _) => decision.why,
            (Action::Change(OperationKind::Split { .. }), ReshardMode::On) => {
                format!("To be split: {}", decision.why)
            }
            (Action::Change(OperationKind::Merge { .. }), ReshardMode::On) => {
                format!("To be merged: {}", decision.why)
            }
            (Action::Change(OperationKind::Split { .. }), _) => {
                format!("A split is advised: {}", decision.why)
            }
            (Action::Change(OperationKind::Merge { .. }), _) => {
                format!("A merge is advised: {}", decision.why)
            }
        });
        Some(ReshardAdvice { mode: mode.to_string(), lines: lines.collect() })
    }
}

fn policy(config: &ReshardConfig) -> Policy {
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    Policy {
        bytes_per_second: config.bytes_per_second,
        records_per_second: config.records_per_second,
        stored_bytes: config.stored_bytes,
        window_ms: config.window_ms,
        cool_down_ms: config.cool_down_ms,
        merge_below_percent: u64::from(config.merge_below_percent),
        ranges_min: count(config.ranges_min),
        ranges_max: count(config.ranges_max),
        changes_max: count(config.changes_max),
    }
}

/// What the range's partitions got in their whole lives.
fn counters(range: &RangePrimary) -> Vec<Counts> {
    let ends = range.ends();
    ends.iter().map(|end| Counts { bytes: end.bytes, records: end.offset.max(0).unsigned_abs() }).collect()
}

/// When the range was made, as far as its chain still says.
fn made_at(control: &Topic, range: RangeId) -> Option<i64> {
    Some(control.ranges.get(&range)?.chain.first()?.opened_at)
}

/// Why a range cannot be split or merged now.
fn busy(control: &Topic, range: &RangePrimary) -> Option<&'static str> {
    let active = control.ranges.get(&range.id).is_some_and(|range| range.state == RangeState::Active);
    match (range.phase(), range.known()) {
        _ if !active => Some("is being split or merged"),
        (_, Known::Prefix(_) | Known::Nothing(_)) => Some("is damaged"),
        (Phase::Open, Known::Whole) => None,
        (_, Known::Whole) => Some("takes no appends now"),
    }
}
