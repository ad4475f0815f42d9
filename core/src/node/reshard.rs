//! Splits and merges of ranges: carries out what `reshard::driver` says, one operation at a time (design 7).

use super::Inner;
use super::follow::States;
use super::topic::TopicRuntime;
use super::topics::control_error;
use crate::api::{OperationView, ReshardPlan};
use crate::control::command::{AbortReshard, BeginReshard, Command, ParentEnd, Refusal, Reply, Reshard};
use crate::control::reshard::{check_kind, child_spans};
use crate::control::state::{Operation, OperationId, OperationKind, OperationState, Range, Topic};
use crate::control::{ControlError, propose_one};
use crate::drive::Purpose;
use crate::error::ReshardError;
use crate::range::primary::{Phase, RangePrimary};
use crate::range::project;
use crate::range::state::RangeState;
use crate::reshard::driver::{Driver, Parent, Step};
use crate::types::{Address, LogletId, Partition, RangeId, Span, TopicId};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Parents that have not drained by then are fenced (design 7).
const DRAIN_MAX: Duration = Duration::from_millis(50);
/// How long a caller waits for the end of an operation; it runs on all the same (design 16).
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How often who waits for an operation that was left running looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Operations whose pause is remembered.
const PAUSES_KEPT: usize = 256;

/// What operators see of resharding.
#[derive(Debug, Default)]
pub(super) struct Reshards {
    pub(super) splits: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) aborted: AtomicU64,
    /// Begun by an earlier start or driver, and finished.
    pub(super) resumed: AtomicU64,
    /// Sum of all pauses, µs.
    pub(super) paused_us: AtomicU64,
    pub(super) longest_us: AtomicU64,
    pauses: Mutex<VecDeque<(OperationId, Duration)>>,
}

impl Reshards {
    fn paused(&self, operation: OperationId, pause: Duration) {
        let us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        self.paused_us.fetch_add(us, Ordering::Relaxed);
        self.longest_us.fetch_max(us, Ordering::Relaxed);
        let mut pauses = self.pauses.lock();
        pauses.truncate(PAUSES_KEPT - 1);
        pauses.push_front((operation, pause));
    }

    fn pause_of(&self, operation: OperationId) -> Option<Duration> {
        self.pauses.lock().iter().find(|(id, _)| *id == operation).map(|(_, pause)| *pause)
    }
}

/// Why a range that could not be sealed is not split or merged, and what would help.
fn unsealed(range: &Range, why: &str) -> String {
    let segment = range.open().map_or_else(String::new, |open| format!(" segment {}", open.loglet));
    let help = "ask again once enough of its disks take writes; a disk that failed does after a restart";
    format!("range {}{segment}: {why}; {help}", range.id)
}

impl Inner {
    /// Splits a range before partition `at` (`None`: where its stored bytes are halved), or merges two neighbours.
    /// Answers when it is done, or after 30 s with an operation that still runs.
    pub(crate) async fn reshard(
        self: &Arc<Self>,
        topic: TopicId,
        kind: OperationKind,
    ) -> Result<OperationView, ReshardError> {
        if self.cancel.is_cancelled() {
            return Err(ReshardError::Stopping);
        }
        let operation = Uuid::new_v4();
        let begin = BeginReshard { operation, topic, kind, now: self.now_ms() };
        {
            // Not into the middle of a roll: it would be refused and its drain be in vain.
            let _layout = self.layout.lock().await;
            propose_one(&*self.control, Command::BeginReshard(begin)).await.map_err(reshard_error)?;
        }
        let node = self.clone();
        let work = self.tasks.spawn(async move { node.carry_out(operation).await });
        // Its outcome is read from the control state, also when the task panicked. What cannot go on at once is taken up
        // again by the next pass.
        let over = async {
            let _ = work.await;
            while self.runs(operation) && !self.cancel.is_cancelled() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let _ = tokio::time::timeout(ANSWER_MAX, over).await;
        self.operation(operation).ok_or(ReshardError::UnknownTopic)
    }

    /// What a split or merge would do, if it is possible now.
    pub(crate) fn preview_reshard(
        &self,
        topic: TopicId,
        kind: &OperationKind,
    ) -> Result<ReshardPlan, ReshardError> {
        let state = self.control.read();
        let topic = state.topics.get(&topic).ok_or(ReshardError::UnknownTopic)?;
        let closed = check_kind(topic, kind).map_err(refused)?;
        let expression = self.drive_of(topic);
        self.new_segment(&expression, LogletId(state.counters.next_loglet))
            .and_then(|next| self.check_room(&next, Purpose::Records))
            .map_err(|e| ReshardError::Busy(e.to_string()))?;
        let spans = closed.iter().filter_map(|id| topic.ranges.get(id)).map(|range| range.span);
        let created = child_spans(kind, spans);
        Ok(ReshardPlan { closes: closed.iter().map(|id| id.0).collect(), creates: created })
    }

    /// First partition of the right half of a range by stored bytes, or by partitions while it holds few. Reads what is to
    /// be known of the segments that retention left.
    pub(crate) async fn split_point(
        &self,
        topic: TopicId,
        range: RangeId,
    ) -> Result<Partition, ReshardError> {
        let runtime = self.topic(topic).ok_or(ReshardError::UnknownTopic)?;
        let ranges = runtime.ranges();
        let range = ranges.iter().find(|r| r.id == range).ok_or(ReshardError::UnknownRange(range.0))?;
        let mut bytes = vec![0u64; range.span.count()];
        for part in range.parts(self.now_ms()).await.iter().flat_map(|(_, parts)| parts) {
            if let Some(stored) = range.span.index(part.partition).and_then(|at| bytes.get_mut(at)) {
                *stored = stored.saturating_add(part.bytes);
            }
        }
        Ok(halve(range.span, &bytes))
    }

    fn runs(&self, id: OperationId) -> bool {
        self.control.read().operations.get(&id).is_some_and(|operation| !operation.state.is_over())
    }

    pub(crate) fn operation(&self, id: OperationId) -> Option<OperationView> {
        let state = self.control.read();
        state.operations.get(&id).map(|operation| self.operation_view(operation))
    }

    /// Operations that run or ended not long ago, oldest first.
    pub(crate) fn operations(&self) -> Vec<OperationView> {
        let state = self.control.read();
        let mut all: Vec<&Operation> = state.operations.values().collect();
        all.sort_by_key(|operation| (operation.started_at, operation.id));
        all.into_iter().map(|operation| self.operation_view(operation)).collect()
    }

    fn operation_view(&self, operation: &Operation) -> OperationView {
        let closed = operation.kind.ranges().iter().map(|id| id.0).collect();
        let (closed, created, why) = match &operation.state {
            OperationState::Done { created } => (closed, created.iter().map(|id| id.0).collect(), None),
            OperationState::Aborted { why } => (Vec::new(), Vec::new(), Some(why.clone())),
            OperationState::Running => (Vec::new(), Vec::new(), None),
        };
        let pause = self.reshards.pause_of(operation.id);
        OperationView {
            operation: operation.id.to_string(),
            topic: operation.topic,
            kind: operation.kind.to_string(),
            state: operation.state.to_string(),
            closed,
            created,
            why,
            paused_ms: pause.map(|pause| pause.as_secs_f64() * 1000.0),
            started_at: operation.started_at,
            ended_at: operation.ended_at,
        }
    }

    /// Gives a running operation up, if nothing was recorded of it yet.
    pub(crate) async fn abort_operation(&self, id: OperationId) -> Result<OperationView, ReshardError> {
        let _layout = self.layout.lock().await;
        let ran = self.control.read().operations.get(&id).is_some_and(|o| !o.state.is_over());
        let command = AbortReshard {
            operation: id,
            why: "given up by an operator".to_owned(),
            sealed: Vec::new(),
            now: self.now_ms(),
        };
        propose_one(&*self.control, Command::AbortReshard(command)).await.map_err(reshard_error)?;
        self.reshards.aborted.fetch_add(u64::from(ran), Ordering::Relaxed);
        // A head that was stopped goes on; one that was fenced blocks at its next append and is rolled away.
        let state = self.control.read();
        if let Some(operation) = state.operations.get(&id)
            && let Some(runtime) = self.topic(operation.topic)
        {
            for head in runtime.ranges().iter().filter(|r| operation.kind.ranges().contains(&r.id)) {
                let open = state.range(runtime.id, head.id).and_then(|range| range.open());
                if let (Some(open), Phase::Between) = (open, head.phase()) {
                    self.after_failed_roll(&runtime, head, open.loglet);
                }
            }
        }
        self.operation(id).ok_or(ReshardError::UnknownTopic)
    }

    /// Begins again what was begun and is carried out by nobody: its driver died, or could not go on.
    pub(super) async fn resume_operations(&self) {
        if self.unrecorded.is_some() {
            return; // the next start takes them up
        }
        let state = self.control.read();
        let now = self.now_ms();
        let running = state.operations.values().filter(|o| !o.state.is_over());
        let left = running.filter(|o| now.saturating_sub(o.started_at) > 1000);
        for operation in left.map(|o| o.id).collect::<Vec<_>>() {
            self.carry_out(operation).await;
        }
    }

    /// Carries an operation out from wherever it is. What cannot go on now is left running, for the next pass.
    pub(super) async fn carry_out(&self, id: OperationId) {
        let _layout = self.layout.lock().await;
        let Some(mut work) = self.take_up(id) else { return };
        loop {
            match work.driver.step() {
                Step::Probe => {
                    let probed = self.probe(&work).await;
                    work.driver.probed(probed);
                }
                Step::Stop => {
                    work.stopped_at = Instant::now();
                    for (parent, head) in work.driver.parents().iter().zip(&work.heads) {
                        if parent.led_here {
                            head.stop_issuing(parent.version);
                        }
                    }
                    work.driver.stopped();
                }
                Step::Drain(n) => {
                    let left = DRAIN_MAX.saturating_sub(work.stopped_at.elapsed());
                    let tail = work.heads[n].drain(left).await;
                    work.driver.drained(n, tail);
                }
                Step::Seal(n) => {
                    let range = &work.ranges[n];
                    let ended = self.seal(range).await.map_err(|why| unsealed(range, &why));
                    work.driver.sealed(n, ended);
                }
                Step::Record(ends) => self.record_reshard(&mut work, ends).await,
                Step::Read => {
                    let state = self.control.read();
                    match state.operations.get(&id) {
                        Some(operation) => work.driver.read(&operation.state),
                        None => return,
                    }
                    // Whatever was recorded, it need not be what was to be recorded here.
                    work.states.clear();
                }
                Step::Open { created, .. } => {
                    if let Err(why) = self.open_children(&work, &created).await {
                        tracing::error!(topic = %work.runtime.name, operation = %work.operation.kind, why,
                            "children recorded and not opened; tried again");
                    }
                    work.driver.opened();
                }
                Step::Abort { why, sealed } => self.abort_reshard(&mut work, why, sealed).await,
                Step::Resume { sealed } => {
                    self.resume_parents(&work, &sealed).await;
                    work.driver.opened();
                }
                Step::Over => return,
            }
        }
    }

    fn take_up(&self, id: OperationId) -> Option<Work> {
        let state = self.control.read();
        let operation = state.operations.get(&id).filter(|o| !o.state.is_over())?.clone();
        let topic = state.topics.get(&operation.topic)?.clone();
        let runtime = self.topic(operation.topic)?;
        let mut work = Work {
            operation,
            topic,
            runtime,
            ranges: SmallVec::new(),
            heads: SmallVec::new(),
            driver: Driver::new([]),
            states: Vec::new(),
            stopped_at: Instant::now(),
        };
        let mut parents: SmallVec<[Parent; 2]> = SmallVec::new();
        let primaries = work.runtime.ranges();
        for id in work.operation.kind.ranges() {
            let range = work.topic.ranges.get(&id)?.clone();
            let head = primaries.iter().find(|primary| primary.id == id)?.clone();
            let runs = matches!(head.phase(), Phase::Open | Phase::Between);
            let led_here = runs && range.open().is_some_and(|open| open.primary == self.primary);
            let open = range.open().map(|entry| entry.loglet);
            parents.push(Parent { range: id, version: range.version, open, led_here });
            work.ranges.push(range);
            work.heads.push(head);
        }
        work.driver = Driver::new(parents);
        Some(work)
    }

    /// Whether all parents can be sealed and their children be placed.
    async fn probe(&self, work: &Work) -> Result<SmallVec<[Address; 2]>, String> {
        let expression = self.drive_of(&work.topic);
        let seed = LogletId(self.control.read().counters.next_loglet);
        self.new_segment(&expression, seed).map_err(|e| format!("no place for a new segment: {e}"))?;
        let mut tails = SmallVec::new();
        for range in &work.ranges {
            let Some(open) = range.open() else {
                tails.push(Address(0));
                continue;
            };
            let answer = async {
                if let Some(lost) = self.storage.lost(open.loglet, &open.drive) {
                    return Err(lost);
                }
                let drive = self.storage.open(open.loglet, &open.drive).map_err(|e| e.to_string())?;
                drive.weak_tail(open.window).await.map_err(|e| e.to_string())
            };
            let tail = answer.await.map_err(|why| {
                format!("range {} segment {}: no seal quorum answers: {why}", range.id, open.loglet)
            })?;
            tails.push(tail.contiguous());
        }
        Ok(tails)
    }

    async fn record_reshard(&self, work: &mut Work, ends: Vec<ParentEnd>) {
        let expression = self.drive_of(&work.topic);
        let children = match work.operation.kind {
            OperationKind::Split { .. } => 2,
            OperationKind::Merge { .. } => 1,
        };
        let seed = self.control.read().counters.next_loglet;
        let next = (0..children).map(|n| self.new_segment(&expression, LogletId(seed + n)));
        let next = match next.collect::<Result<Vec<_>, _>>() {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(topic = %work.runtime.name, operation = %work.operation.kind, %error,
                    "no place for the children now; tried again");
                return work.driver.unanswered();
            }
        };
        match self.ended_states(work, &ends).await {
            Ok(states) => work.states = states,
            Err(why) => {
                tracing::warn!(topic = %work.runtime.name, operation = %work.operation.kind, why,
                    "a range to be closed cannot be folded now; tried again");
                return work.driver.unanswered();
            }
        }
        let command = Reshard { operation: work.operation.id, parents: ends, next, now: self.now_ms() };
        match propose_one(&*self.control, Command::Reshard(command)).await {
            Ok(Reply::Operation { state: OperationState::Done { created } }) => work.driver.recorded(created),
            Ok(other) => {
                tracing::error!(?other, "not the answer of a split or merge");
                work.driver.unanswered();
            }
            Err(error) => {
                tracing::warn!(topic = %work.runtime.name, operation = %work.operation.kind, %error, "not recorded");
                work.driver.unanswered();
            }
        }
    }

    /// Opens the children with what their parents ended with.
    async fn open_children(&self, work: &Work, created: &[RangeId]) -> Result<(), String> {
        let state = self.control.read();
        let topic = state.topics.get(&work.operation.topic).ok_or("the topic is gone")?;
        #[cfg(test)]
        for (before, state) in work.ranges.iter().zip(&work.states) {
            let recorded = topic.ranges.get(&before.id).ok_or("a parent is gone")?;
            let own = self.sealed_segments(recorded, None)?;
            assert_eq!(*state, self.fold_range(topic, recorded, &own).await?, "memory equals the fold");
        }
        let mut states = States::new();
        for id in created.iter().filter(|_| !work.states.is_empty()) {
            let span = topic.ranges.get(id).ok_or("a child is gone")?.span;
            states.insert(*id, project::inherit(span, &work.states).map_err(|e| e.to_string())?);
        }
        self.follow(&work.runtime, states).await?;
        self.count_reshard(work, created);
        Ok(())
    }

    fn count_reshard(&self, work: &Work, created: &[RangeId]) {
        let pause = work.stopped_at.elapsed();
        self.reshards.paused(work.operation.id, pause);
        let done = match work.operation.kind {
            OperationKind::Split { .. } => &self.reshards.splits,
            OperationKind::Merge { .. } => &self.reshards.merges,
        };
        done.fetch_add(1, Ordering::Relaxed);
        let paused_ms = pause.as_secs_f64() * 1000.0;
        tracing::info!(topic = %work.runtime.name, operation = %work.operation.kind, ?created, paused_ms, "done");
    }

    /// What the parents end with: from memory after a complete drain, since it equals the fold then, else folded. Before
    /// anything is recorded: an end that cannot be folded is not recorded.
    async fn ended_states(&self, work: &Work, ends: &[ParentEnd]) -> Result<Vec<RangeState>, String> {
        if work.driver.all_drained() {
            return Ok(work.heads.iter().map(|head| head.state()).collect());
        }
        let mut states = Vec::with_capacity(ends.len());
        for (range, end) in work.ranges.iter().zip(ends) {
            let own = self.sealed_segments(range, end.ended.as_ref())?;
            states.push(self.fold_range(&work.topic, range, &own).await?);
        }
        Ok(states)
    }

    async fn abort_reshard(&self, work: &mut Work, why: String, sealed: Vec<ParentEnd>) {
        tracing::warn!(topic = %work.runtime.name, operation = %work.operation.kind, why, "given up");
        let expression = self.drive_of(&work.topic);
        let seed = self.control.read().counters.next_loglet;
        let sealed = sealed
            .into_iter()
            .zip(seed..)
            .map(|(end, seed)| self.new_segment(&expression, LogletId(seed)).map(|next| (end, next)));
        let Ok(sealed) = sealed.collect::<Result<Vec<_>, _>>() else { return work.driver.unanswered() };
        let command = AbortReshard { operation: work.operation.id, why, sealed, now: self.now_ms() };
        match propose_one(&*self.control, Command::AbortReshard(command)).await {
            Ok(_) => {
                self.reshards.aborted.fetch_add(1, Ordering::Relaxed);
                work.driver.aborted();
            }
            Err(error) => {
                tracing::warn!(topic = %work.runtime.name, %error, "giving up not recorded");
                work.driver.unanswered();
            }
        }
    }

    /// After an abort: parents go on, in their own segment or in the one that follows it.
    async fn resume_parents(&self, work: &Work, sealed: &[ParentEnd]) {
        for (head, before) in work.heads.iter().zip(&work.ranges) {
            let open = before.open().map(|open| open.loglet);
            if open != self.open_loglet(&work.runtime, head.id) {
                continue; // another segment follows, and is opened below
            }
            if sealed.iter().any(|end| end.range == head.id) {
                // Somebody else gave the operation up and knew nothing of the fence: it is rolled away.
                head.close(Phase::Blocked("its segment was fenced".to_owned()));
            } else if let Some(open) = open {
                self.after_failed_roll(&work.runtime, head, open);
            }
        }
        if let Err(why) = self.follow(&work.runtime, States::new()).await {
            tracing::error!(topic = %work.runtime.name, why, "recorded and not opened; tried again");
        }
    }

    /// The open segment of a range, as the control state has it now.
    fn open_loglet(&self, runtime: &TopicRuntime, range: RangeId) -> Option<LogletId> {
        self.control.read().range(runtime.id, range)?.open().map(|open| open.loglet)
    }
}

/// An operation under way.
struct Work {
    operation: Operation,
    topic: Arc<Topic>,
    runtime: Arc<TopicRuntime>,
    /// The parents as they were read after the intent, in order of partitions.
    ranges: SmallVec<[Arc<Range>; 2]>,
    heads: SmallVec<[Arc<RangePrimary>; 2]>,
    driver: Driver,
    /// What the parents ended with, once that is known.
    states: Vec<RangeState>,
    stopped_at: Instant,
}

/// What each partition counts beside the bytes that it stores, so that a few records decide nothing: what a partition will get
/// is not told by less.
const BYTES_UNTOLD: u64 = 64 << 10;

/// First partition of the right part that leaves the parts' bytes as equal as can be; of equal ones the most even. Of a range
/// that stores little that is the middle.
fn halve(span: Span, bytes: &[u64]) -> Partition {
    let counts = |stored: &u64| u128::from(*stored) + u128::from(BYTES_UNTOLD);
    let total: u128 = bytes.iter().map(counts).sum();
    let mut left = 0u128;
    let mut best = (u128::MAX, u32::MAX, span.first.saturating_add(1));
    for (partition, stored) in span.iter().zip(bytes) {
        left += counts(stored);
        let at = partition.saturating_add(1);
        if at > span.last {
            break;
        }
        let uneven = at.abs_diff(span.first).abs_diff(span.last.abs_diff(partition));
        best = best.min((left.abs_diff(total - left), uneven, at));
    }
    best.2
}

fn reshard_error(error: ControlError) -> ReshardError {
    match error {
        ControlError::Refused { refusal, .. } => refused(refusal),
        other => ReshardError::Control(control_error(other).to_string()),
    }
}

fn refused(refusal: Refusal) -> ReshardError {
    match refusal {
        Refusal::UnknownTopic(_) => ReshardError::UnknownTopic,
        Refusal::UnknownRange { range, .. } => ReshardError::UnknownRange(range.0),
        Refusal::UnknownOperation(id) => ReshardError::UnknownOperation(id.to_string()),
        Refusal::NotActive { .. } => ReshardError::Busy(format!(
            "{refusal}: it was closed, or another split or merge of it is under way"
        )),
        Refusal::SplitPoint { .. }
        | Refusal::SinglePartition { .. }
        | Refusal::NotNeighbours { .. }
        | Refusal::OperationOver { .. } => ReshardError::Impossible(refusal.to_string()),
        other => ReshardError::Control(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_halved_by_bytes_and_by_partitions_while_it_is_empty() {
        let span = Span { first: 4, last: 7 };
        let mib = |of: [u64; 4]| of.map(|n| n << 20);
        assert_eq!(halve(span, &[0, 0, 0, 0]), 6);
        assert_eq!(halve(span, &mib([10, 1, 1, 1])), 5);
        assert_eq!(halve(span, &mib([1, 1, 1, 10])), 7);
        assert_eq!(halve(span, &mib([0, 0, 0, 10])), 7);
        assert_eq!(halve(span, &mib([5, 5, 5, 5])), 6);
        assert_eq!(halve(Span { first: 0, last: 1 }, &[u64::MAX, u64::MAX]), 1);
        assert_eq!(halve(Span { first: 0, last: 2 }, &[0, 0, 0]), 1);
    }

    #[test]
    fn a_few_records_do_not_move_the_cut_from_the_middle() {
        let span = Span { first: 0, last: 15 };
        for at in 0..16 {
            let mut bytes = [0; 16];
            bytes[at] = 500;
            assert_eq!(halve(span, &bytes), 8, "one record in partition {at}");
        }
        let mut bytes = [0; 16];
        bytes[..3].copy_from_slice(&[900, 900, 900]);
        assert_eq!(halve(span, &bytes), 8);
        // Many do: all of what is stored lies in the first three.
        bytes[..3].copy_from_slice(&[90 << 20, 90 << 20, 180 << 20]);
        assert_eq!(halve(span, &bytes), 2);
    }
}
