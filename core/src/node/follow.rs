//! What this node serves follows the control state, whoever changed it (R14): `reshard::follow` says what is to be opened
//! and which primaries have ended; this opens, hands over what was in flight, and shows the new layout.

use super::Inner;
use super::said::{Event, Named};
use super::topic::TopicRuntime;
use super::topics::{epochs, stamping};
use crate::control::state::{Range, Topic};
use crate::range::lineage::overlap;
use crate::range::primary::{HandedOver, Phase, RangePrimary, divide};
use crate::range::state::RangeState;
use crate::reshard::follow::{Todo, follow};
use crate::types::{Address, LogletId, RangeId, Span};
use std::collections::HashMap;
use std::sync::Arc;

/// States that whoever changed the control state knows already; the others are folded.
pub(super) type States = HashMap<RangeId, RangeState>;

impl Inner {
    /// Opens what the control state says is open here and nobody has open, and moves there what the primaries before had
    /// in flight. The caller holds the layout. Does nothing where nothing is to be opened.
    ///
    /// Errors: what cannot be folded or opened, until it can; then nothing was changed.
    pub(super) async fn follow(&self, runtime: &TopicRuntime, mut states: States) -> Result<(), String> {
        let state = self.control.read();
        let topic = state.topics.get(&runtime.id).ok_or("the topic is gone")?;
        let heads = runtime.ranges();
        let todo = self.todo(topic, &heads);
        if todo.open.is_empty() {
            return Ok(());
        }
        let ended = self.ended(topic, &heads, &todo);
        let config = runtime.config.load();
        let mut opening = Vec::with_capacity(todo.open.len());
        for id in &todo.open {
            let range = topic.ranges.get(id).ok_or("a range is gone")?;
            let own = self.sealed_segments(range, None)?;
            let state = match states.remove(id) {
                Some(state) => state,
                None => self.fold_range(topic, range, &own).await?,
            };
            let older = self.history(topic, range, own)?;
            let segment = self.open_segment(range).map_err(|e| e.to_string())?;
            let (limits, stamping) = (self.limits(), stamping(&config));
            let next = RangePrimary::new(topic.id, *id, limits, stamping, state, older, segment.clone());
            opening.push((next, segment, epochs(range)));
        }
        // Nothing fails from here on: what is handed over is taken over.
        let spans: Vec<Span> = opening.iter().map(|(next, ..)| next.span).collect();
        let replaced =
            ended.iter().filter(|one| spans.iter().any(|span| overlap(*span, one.head.span).is_some()));
        let replaced: Vec<&Ended> = replaced.collect();
        let handed: Vec<HandedOver> = replaced.iter().flat_map(|one| one.hand_over()).collect();
        let mut opened = Vec::with_capacity(opening.len());
        for ((next, segment, epochs), handed) in opening.into_iter().zip(divide(handed, &spans)) {
            next.open(segment, &epochs, handed, self.now_ms());
            opened.push(next);
        }
        let closed: Vec<RangeId> = replaced.iter().map(|one| one.head.id).collect();
        runtime.replace(&closed, opened);
        self.refresh_catalog();
        replaced.iter().for_each(|one| one.head.close(Phase::Moved));
        Ok(())
    }

    /// The level-triggered pass: what was recorded and not opened, because whoever recorded it could not go on.
    pub(super) async fn follow_all(&self) {
        if self.unrecorded.is_some() {
            return; // the segments that are open have another start's primaries
        }
        for runtime in self.all_topics().values() {
            let left = |node: &Inner| {
                let state = node.control.read();
                let topic = state.topics.get(&runtime.id);
                topic.is_some_and(|topic| !node.todo(topic, &runtime.ranges()).open.is_empty())
            };
            if !left(self) {
                continue;
            }
            let _layout = self.layout.lock().await;
            if let Err(why) = self.follow(runtime, States::new()).await {
                self.note(Event::NotOpened, Named::topic(&runtime.name), &why);
            }
        }
    }

    fn todo(&self, topic: &Topic, heads: &[Arc<RangePrimary>]) -> Todo {
        let has: Vec<(RangeId, LogletId)> =
            heads.iter().map(|head| (head.id, head.active_loglet())).collect();
        follow(topic, self.primary, &has)
    }

    /// The primaries whose segments have ended; their tails are noted where they are known.
    fn ended(&self, topic: &Topic, heads: &[Arc<RangePrimary>], todo: &Todo) -> Vec<Ended> {
        let ended = todo.ended.iter().filter_map(|(id, tail)| {
            let head = heads.iter().find(|head| head.id == *id)?.clone();
            let loglet = head.active_loglet();
            if let (Some(last), Some(tail)) = (head.segments().last(), tail)
                && last.loglet == loglet
            {
                last.seal(*tail);
                self.segments.keep(last.clone());
            }
            let degraded = topic.ranges.get(id).and_then(|range| degraded(range, loglet));
            Some(Ended { head, tail: *tail, degraded })
        });
        ended.collect()
    }
}

/// A primary whose segment was ended, by whomever.
struct Ended {
    head: Arc<RangePrimary>,
    tail: Option<Address>,
    degraded: Option<(Address, Address)>,
}

impl Ended {
    fn hand_over(&self) -> Vec<HandedOver> {
        self.head.stop_for_good();
        // Of a segment that was dropped since, nobody can say what is below its tail: its waiters time out.
        self.tail.map(|tail| self.head.hand_over(tail, self.degraded)).unwrap_or_default()
    }
}

fn degraded(range: &Range, loglet: LogletId) -> Option<(Address, Address)> {
    range.chain.iter().find(|entry| entry.loglet == loglet)?.degraded
}
