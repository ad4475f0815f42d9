//! Split and merge as commands: intent, close and create, abort (design 7, reshard-rules R1, R3, R13).
//!
//! Between intent and end the ranges are `fencing`: they still tile the topic and no segment is opened in them. Parents
//! close and children appear in one command, so no state exists in which both accept a write, or a child without its
//! parents' recorded tails.

use super::apply::{Delta, Planned, check_version, exhausted, open_segment, raise_epochs, seal_open};
use super::command::*;
use super::state::*;
use crate::testing::{Mutant, broken};
use crate::types::{LogletId, Primary, RangeId, Span, TopicId};
use crate::virtual_log::chain::ChainEntry;
use std::sync::Arc;

/// Operations of a topic that are kept once they are over: the newest.
pub const OPERATIONS_KEPT: usize = 64;

type Applied = Result<(Reply, Vec<Delta>), Refusal>;

impl State {
    pub(super) fn begin_reshard(&mut self, begin: &BeginReshard) -> Applied {
        if let Some(known) = self.operations.get(&begin.operation) {
            return Ok((Reply::Operation { state: known.state.clone() }, Vec::new()));
        }
        let topic = self.topics.get(&begin.topic).ok_or(Refusal::UnknownTopic(begin.topic))?;
        let ranges = check_kind(topic, &begin.kind)?;
        let mut deltas = Vec::new();
        let topic = self.topics.get_mut(&begin.topic).map(Arc::make_mut).expect("looked up above");
        for id in ranges {
            let range = topic.ranges.get_mut(&id).map(Arc::make_mut).expect("checked above");
            range.state = RangeState::Fencing;
            if !broken(Mutant::IntentKeepsVersion) {
                range.version += 1;
            }
            deltas.push(Delta::Range(begin.topic, id));
        }
        deltas.extend(self.forget_old_operations(begin.topic));
        let operation = Operation {
            id: begin.operation,
            topic: begin.topic,
            kind: begin.kind,
            state: OperationState::Running,
            started_at: begin.now,
            ended_at: begin.now,
        };
        Arc::make_mut(&mut self.operations).insert(begin.operation, operation);
        deltas.push(Delta::Operation(begin.operation));
        Ok((Reply::Operation { state: OperationState::Running }, deltas))
    }

    pub(super) fn reshard(&mut self, reshard: &Reshard) -> Applied {
        let operation = self.operation(reshard.operation)?;
        if let OperationState::Done { .. } = operation.state {
            return Ok((Reply::Operation { state: operation.state.clone() }, Vec::new()));
        }
        if !broken(Mutant::CloseUnversioned) {
            check_running(operation)?;
        }
        let (topic_id, kind) = (operation.topic, operation.kind);
        let topic = self.topics.get(&topic_id).ok_or(Refusal::UnknownTopic(topic_id))?;
        let ids = kind.ranges();
        if ids.iter().ne(reshard.parents.iter().map(|parent| &parent.range)) {
            return Err(Refusal::OtherRanges(reshard.operation));
        }
        let parents = reshard.parents.iter().map(|parent| close(topic, parent));
        let mut parents = parents.collect::<Result<Vec<Planned>, Refusal>>()?;
        let spans = child_spans(&kind, parents.iter().map(|p| p.range.span));
        if reshard.next.len() != spans.len() {
            let ranges = u32::try_from(spans.len()).unwrap_or(u32::MAX);
            return Err(Refusal::Segments { got: reshard.next.len(), ranges });
        }
        let mut next_loglet = self.counters.next_loglet;
        let mut next_range = topic.next_range;
        let mut children = Vec::with_capacity(spans.len());
        for (span, segment) in spans.into_iter().zip(&reshard.next) {
            self.check_segment(segment)?;
            let id = RangeId(next_range);
            next_range = next_range.checked_add(1).ok_or_else(|| exhausted("range ids"))?;
            let mut child = Range {
                id,
                span,
                state: RangeState::Active,
                version: 0,
                parents: ids.to_vec(),
                children: Vec::new(),
                chain: Vec::new(),
                epochs: epochs_of(span, ids.iter().filter_map(|id| topic.ranges.get(id)), segment.primary)?,
            };
            open_segment(&mut child, segment, reshard.now, &mut next_loglet)?;
            children.push(child);
        }
        let created: Vec<RangeId> = children.iter().map(|child| child.id).collect();
        parents.iter_mut().for_each(|parent| parent.range.children.clone_from(&created));
        self.counters.next_loglet = next_loglet;
        Ok(self.install_reshard(reshard, topic_id, next_range, parents, children))
    }

    /// From here on nothing is refused.
    fn install_reshard(
        &mut self,
        reshard: &Reshard,
        topic_id: TopicId,
        next_range: u32,
        parents: Vec<Planned>,
        children: Vec<Range>,
    ) -> (Reply, Vec<Delta>) {
        let mut deltas = vec![Delta::Topic(topic_id), Delta::Operation(reshard.operation)];
        for parent in &parents {
            deltas.extend(self.bury(topic_id, parent.range.id, parent.dropped.as_slice(), reshard.now));
        }
        let topic = self.topics.get_mut(&topic_id).map(Arc::make_mut).expect("planned in it");
        topic.next_range = next_range;
        topic.version += 1;
        for parent in parents {
            topic.layout.remove(&parent.range.span.first);
            deltas.push(Delta::Range(topic_id, parent.range.id));
            topic.ranges.insert(parent.range.id, Arc::new(parent.range));
        }
        let created: Vec<RangeId> = children.iter().map(|child| child.id).collect();
        for child in children {
            topic.layout.insert(child.span.first, child.id);
            deltas.push(Delta::Range(topic_id, child.id));
            topic.ranges.insert(child.id, Arc::new(child));
        }
        let state = OperationState::Done { created };
        self.end_operation(reshard.operation, state.clone(), reshard.now);
        (Reply::Operation { state }, deltas)
    }

    pub(super) fn abort_reshard(&mut self, abort: &AbortReshard) -> Applied {
        let operation = self.operation(abort.operation)?;
        if let OperationState::Aborted { .. } = operation.state {
            return Ok((Reply::Operation { state: operation.state.clone() }, Vec::new()));
        }
        check_running(operation)?;
        let (topic_id, ids) = (operation.topic, operation.kind.ranges());
        let topic = self.topics.get(&topic_id).ok_or(Refusal::UnknownTopic(topic_id))?;
        if abort.sealed.iter().any(|(parent, _)| !ids.contains(&parent.range)) {
            return Err(Refusal::OtherRanges(abort.operation));
        }
        let mut next_loglet = self.counters.next_loglet;
        let mut planned = Vec::with_capacity(ids.len());
        for id in ids {
            let present =
                topic.ranges.get(&id).ok_or(Refusal::UnknownRange { topic: topic_id, range: id })?;
            let sealed = abort.sealed.iter().find(|(parent, _)| parent.range == id);
            planned.push(match sealed {
                Some((parent, next)) => {
                    self.check_segment(next)?;
                    let mut plan = end(present, parent)?;
                    raise_epochs(&mut plan.range.epochs, present.open(), next.primary)?;
                    open_segment(&mut plan.range, next, abort.now, &mut next_loglet)?;
                    plan.range.version += 1;
                    plan
                }
                None => {
                    let mut range = Range::clone(present);
                    if !broken(Mutant::IntentKeepsVersion) {
                        range.version += 1;
                    }
                    Planned { range, dropped: None }
                }
            });
        }
        self.counters.next_loglet = next_loglet;
        let mut deltas = vec![Delta::Operation(abort.operation)];
        for mut plan in planned {
            plan.range.state = RangeState::Active;
            deltas.push(Delta::Range(topic_id, plan.range.id));
            deltas.extend(self.bury(topic_id, plan.range.id, plan.dropped.as_slice(), abort.now));
            let topic = self.topics.get_mut(&topic_id).map(Arc::make_mut).expect("planned in it");
            topic.ranges.insert(plan.range.id, Arc::new(plan.range));
        }
        let state = OperationState::Aborted { why: abort.why.clone() };
        self.end_operation(abort.operation, state.clone(), abort.now);
        Ok((Reply::Operation { state }, deltas))
    }

    fn operation(&self, id: OperationId) -> Result<&Operation, Refusal> {
        self.operations.get(&id).ok_or(Refusal::UnknownOperation(id))
    }

    fn end_operation(&mut self, id: OperationId, state: OperationState, now: i64) {
        if let Some(operation) = Arc::make_mut(&mut self.operations).get_mut(&id) {
            operation.state = state;
            operation.ended_at = now;
        }
    }

    /// Forgets the oldest operations of a topic that are over, down to the number that is kept.
    fn forget_old_operations(&mut self, topic: TopicId) -> Vec<Delta> {
        let over = self.operations.values().filter(|o| o.topic == topic && o.state.is_over());
        let mut over: Vec<(i64, OperationId)> = over.map(|o| (o.ended_at, o.id)).collect();
        let Some(excess) = over.len().checked_sub(OPERATIONS_KEPT).filter(|n| *n > 0) else {
            return Vec::new();
        };
        over.sort_unstable();
        let old: std::collections::BTreeSet<OperationId> = over[..excess].iter().map(|(_, id)| *id).collect();
        self.forget_operations(|operation| old.contains(&operation.id))
    }

    pub(super) fn forget_operations(&mut self, which: impl Fn(&Operation) -> bool) -> Vec<Delta> {
        let gone: Vec<OperationId> =
            self.operations.values().filter(|operation| which(operation)).map(|o| o.id).collect();
        if gone.is_empty() {
            return Vec::new();
        }
        let operations = Arc::make_mut(&mut self.operations);
        gone.into_iter()
            .map(|id| {
                operations.remove(&id);
                Delta::Operation(id)
            })
            .collect()
    }
}

/// What a split or merge may be asked of now: its ranges, all active.
///
/// Errors: `NotActive` while another operation runs on one of them, others for good.
pub fn check_kind(topic: &Topic, kind: &OperationKind) -> Result<Vec<RangeId>, Refusal> {
    let ids = kind.ranges();
    let mut spans = Vec::with_capacity(ids.len());
    for id in &ids {
        let range = topic.ranges.get(id).ok_or(Refusal::UnknownRange { topic: topic.id, range: *id })?;
        if range.state != RangeState::Active && !broken(Mutant::IntentDoesNotBlock) {
            return Err(Refusal::NotActive { range: *id, state: range.state });
        }
        spans.push(range.span);
    }
    match (kind, spans.as_slice()) {
        (OperationKind::Split { range, at }, [span]) => {
            if span.first == span.last {
                return Err(Refusal::SinglePartition { range: *range, partition: span.first });
            }
            if *at <= span.first || *at > span.last {
                let Span { first, last } = *span;
                return Err(Refusal::SplitPoint { range: *range, first, last, at: *at });
            }
        }
        (OperationKind::Merge { left, right }, [l, r]) if l.last.checked_add(1) != Some(r.first) => {
            return Err(Refusal::NotNeighbours { left: *left, right: *right });
        }
        _ => {}
    }
    Ok(ids.into_vec())
}

/// Spans of the children, in order of partitions.
pub fn child_spans(kind: &OperationKind, parents: impl Iterator<Item = Span>) -> Vec<Span> {
    let whole = parents.reduce(|left, right| Span { first: left.first, last: right.last });
    match (kind, whole) {
        (OperationKind::Split { at, .. }, Some(Span { first, last })) => {
            vec![Span { first, last: at.saturating_sub(1) }, Span { first: *at, last }]
        }
        (OperationKind::Merge { .. }, Some(whole)) => vec![whole],
        (_, None) => Vec::new(),
    }
}

/// A parent as it becomes: closed at its tail.
fn close(topic: &Topic, parent: &ParentEnd) -> Result<Planned, Refusal> {
    let unknown = Refusal::UnknownRange { topic: topic.id, range: parent.range };
    let mut plan = end(topic.ranges.get(&parent.range).ok_or(unknown)?, parent)?;
    plan.range.state = RangeState::Closed;
    plan.range.version += 1;
    Ok(plan)
}

/// A fencing range with its open segment ended.
fn end(present: &Arc<Range>, parent: &ParentEnd) -> Result<Planned, Refusal> {
    if !broken(Mutant::CloseUnversioned) && !broken(Mutant::IntentDoesNotBlock) {
        check_version(parent.version, present.version)?;
    }
    if present.state != RangeState::Fencing {
        return Err(Refusal::NotActive { range: present.id, state: present.state });
    }
    let named = parent.ended.as_ref().map(|ended| ended.loglet);
    let open: Option<LogletId> = present.open().map(|entry| entry.loglet);
    if named != open {
        return Err(Refusal::NotTheOpenSegment { range: present.id, named, open });
    }
    let mut range = Range::clone(present);
    let dropped: Option<ChainEntry> = match &parent.ended {
        Some(ended) => seal_open(&mut range, ended)?,
        None => None,
    };
    Ok(Planned { range, dropped })
}

/// The runs of the parents' leader epochs within `span`, each raised if another incarnation than `primary` led its
/// parent; equal neighbours are one run.
fn epochs_of<'a>(
    span: Span,
    parents: impl Iterator<Item = &'a Arc<Range>>,
    primary: Primary,
) -> Result<Vec<EpochRun>, Refusal> {
    let mut runs: Vec<EpochRun> = Vec::new();
    for parent in parents {
        let mut epochs = parent.epochs.clone();
        raise_epochs(&mut epochs, parent.open(), primary)?;
        for run in epochs {
            let (first, last) = (run.first.max(span.first), run.last.min(span.last));
            if first > last {
                continue;
            }
            match runs.last_mut() {
                Some(before) if before.epoch == run.epoch => before.last = last,
                _ => runs.push(EpochRun { first, last, epoch: run.epoch }),
            }
        }
    }
    Ok(runs)
}

fn check_running(operation: &Operation) -> Result<(), Refusal> {
    match &operation.state {
        OperationState::Running => Ok(()),
        over => Err(Refusal::OperationOver { operation: operation.id, state: over.to_string() }),
    }
}
