//! A lane: the batches of one connection, which keep their order in each partition whatever becomes of its range.
//!
//! Thin around [`Park`]: what no range takes now is parked and handed out as ranges get room, by whichever of the lane's
//! requests wakes first. Nothing waits before a batch is issued or parked, so a partition that stands still holds up
//! no other (R19). Locks are taken in the order lane, range.

use super::ack::{Ack, AckSlot, Doubt, Issued, LaneId, Share};
use super::park::{Arrival, Park, Parked, Refusal, Sequenced};
use super::primary::{Batch, Phase, Progress, RangePrimary, Told};
use crate::codec::batch::BATCH_HEAD_LEN;
use crate::error::{AppendError, Retry, TopicPartition};
use crate::testing::{Mutant, broken};
use crate::types::{LogletId, Partition, TopicId};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::Notify;

type Indices = SmallVec<[usize; 16]>;
type Groups = SmallVec<[(Arc<RangePrimary>, Indices); 2]>;

/// Where partitions are now, and what time it is.
pub trait Layout {
    /// The primary of a partition; `None` when there is no such partition.
    fn range_of(&self, at: TopicPartition) -> Option<Arc<RangePrimary>>;
    /// Broker ms.
    fn now_ms(&self) -> i64;
    /// Where it is counted what is parked.
    fn parking(&self) -> &Arc<Parking>;
    /// Whether the partition's open segment is this one and led here, by a state that holds all that was recorded before (R6).
    fn leads(&self, at: TopicPartition, loglet: LogletId) -> impl Future<Output = bool> + Send;
}

/// How much is and was parked.
#[derive(Debug, Default)]
pub struct Parking {
    now: AtomicU64,
    total: AtomicU64,
    ms: AtomicU64,
}

impl Parking {
    /// Batches that are parked.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Batches that ever were.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How long all of those that were issued waited, ms.
    pub fn waited_ms(&self) -> u64 {
        self.ms.load(Ordering::Relaxed)
    }
}

/// One that is counted as parked.
#[derive(Debug)]
struct Counted(Arc<Parking>);

impl Counted {
    fn new(parking: &Arc<Parking>) -> Counted {
        parking.now.fetch_add(1, Ordering::Relaxed);
        Counted(parking.clone())
    }
}

impl Clone for Counted {
    fn clone(&self) -> Counted {
        Counted::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    batch: Batch,
    ack: AckSlot,
    since_ms: i64,
    _counted: Counted,
}

/// The batches of one connection, in order. Cheap to clone; a new one for each connection.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: LaneId,
    park: Mutex<Park<Waiting>>,
    /// A range may have room again.
    room: Arc<Notify>,
}

/// The lane of a request, which may be gone before its batches are.
#[derive(Clone, Debug)]
pub struct LaneOf {
    id: LaneId,
    lane: Weak<Inner>,
}

impl LaneOf {
    /// Which.
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// A batch that had been issued is not stored and is not issued again: refuses what is parked behind it, remembers it.
    pub(super) fn bar(&self, at: TopicPartition, batch: &Batch) -> AppendError {
        let Some(lane) = self.lane.upgrade() else { return error_of(Refusal::Again) };
        let (refusal, behind) = lane.park.lock().bar(at, Sequenced::of(&batch.head));
        tell(behind);
        error_of(refusal)
    }
}

impl Default for Lane {
    fn default() -> Lane {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = LaneId(NEXT.fetch_add(1, Ordering::Relaxed));
        Lane(Arc::new(Inner { id, park: Mutex::default(), room: Arc::default() }))
    }
}

/// Outcomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcomes {
    /// One per batch, in order.
    pub batches: Vec<Issued>,
    /// Plain batches waited for too long and were refused. Nothing in them tells a later one from one that is sent again,
    /// so no more is taken: answer what was read and close the connection (R8).
    pub close_after: bool,
}

/// A request under way. Dropping it gives up what of it is parked.
#[derive(Debug)]
pub struct Appending {
    lane: Lane,
    issued: Vec<Issued>,
    ack: Arc<Ack>,
    deadline: Instant,
    /// Whether some of it was parked.
    parked: bool,
}

impl Lane {
    /// For an ack of one of its requests.
    pub(super) fn of(&self) -> LaneOf {
        LaneOf { id: self.0.id, lane: Arc::downgrade(&self.0) }
    }

    /// Issues batches of one topic, or parks them: in either case later calls come after this one. Waits for nothing.
    pub fn append(
        &self,
        topic: TopicId,
        batches: Vec<Batch>,
        deadline: Instant,
        layout: &impl Layout,
    ) -> Appending {
        let ack = Arc::new(Ack::of(self));
        let mut issued: Vec<Issued> = vec![Issued::Err(AppendError::TimedOut); batches.len()];
        let at = |partition: Partition| TopicPartition { topic, partition };
        let mut park = self.0.park.lock();
        let quiet = park.is_quiet();
        let mut parked = false;
        let hold = |park: &mut Park<Waiting>, i: usize| {
            let batch: &Batch = &batches[i];
            let parking = layout.parking();
            parking.total.fetch_add(1, Ordering::Relaxed);
            let body = Waiting {
                batch: batch.clone(),
                ack: ack.slot(i),
                since_ms: layout.now_ms(),
                _counted: Counted::new(parking),
            };
            let sequenced = Sequenced::of(&batch.head);
            park.park(Parked { at: at(batch.partition), sequenced, deadline, body });
        };
        let mut groups = Groups::new();
        for (i, batch) in batches.iter().enumerate() {
            if batch.bytes.len() < BATCH_HEAD_LEN {
                issued[i] = Issued::Err(AppendError::Invalid("a batch is shorter than its head".into()));
                continue;
            }
            if !quiet && park.is_stuck(at(batch.partition), Sequenced::of(&batch.head)) {
                issued[i] = Issued::Err(refuse_behind(&mut park, at(batch.partition), layout));
                continue;
            }
            if !quiet {
                match park.arrive(at(batch.partition), Sequenced::of(&batch.head)) {
                    Arrival::Issue => {}
                    Arrival::Park => {
                        hold(&mut park, i);
                        parked = true;
                        continue;
                    }
                    Arrival::Refuse(refusal) => {
                        issued[i] = Issued::Err(error_of(refusal));
                        continue;
                    }
                }
            }
            let known = groups.iter_mut().find(|(range, _)| range.span.contains(batch.partition));
            match known {
                Some((_, which)) => which.push(i),
                None => match layout.range_of(at(batch.partition)) {
                    Some(range) => groups.push((range, SmallVec::from_iter([i]))),
                    None => issued[i] = Issued::Err(AppendError::UnknownPartition),
                },
            }
        }
        groups.sort_by_key(|(range, _)| range.span.first);
        for (range, which) in &groups {
            let items = which.iter().map(|&i| (&batches[i], Share::New(&ack, i)));
            let told = |n: usize, told: Told| issued[which[n]] = told.issued();
            let taken = match range.issue(items, told, layout.now_ms()) {
                Progress::All => which.len(),
                Progress::Part(n) => n,
            };
            for &i in &which[..taken] {
                let (batch, at) = (&batches[i], at(batches[i].partition));
                if waits_for(range, Sequenced::of(&batch.head), &issued[i]) {
                    hold(&mut park, i);
                    parked = true;
                    continue;
                }
                remember(&mut park, at, range, Sequenced::of(&batch.head), &issued[i]);
                if doubtful(&issued[i]) {
                    let (sequenced, loglet) = (Sequenced::of(&batch.head), range.active_loglet());
                    ack.doubt(Doubt { index: i, at, sequenced, loglet });
                }
            }
            for &i in &which[taken..] {
                hold(&mut park, i);
                parked = true;
            }
        }
        drop(park);
        Appending { lane: self.clone(), issued, ack, deadline, parked }
    }

    /// Hands out what can be; what is due at `now` is refused first. What stays is told when a range has room again.
    pub(super) fn pump(&self, layout: &impl Layout, now: Option<Instant>) {
        let mut park = self.0.park.lock();
        if let Some(now) = now {
            tell(park.due(now));
        }
        while !park.queue().is_empty() && self.hand_out(&mut park, layout) {}
    }

    /// One look at all that is parked; whether another is needed because a range has moved meanwhile.
    fn hand_out(&self, park: &mut Park<Waiting>, layout: &impl Layout) -> bool {
        let mut done = vec![false; park.queue().len()];
        let mut passing: Vec<(TopicPartition, Option<Sequenced>)> = Vec::new();
        let mut stuck: Vec<TopicPartition> = Vec::new();
        let mut groups: Groups = Groups::new();
        for (i, parked) in park.queue().iter().enumerate() {
            let holds = |r: &RangePrimary| r.topic == parked.at.topic && r.span.contains(parked.at.partition);
            match groups.iter_mut().find(|(range, _)| holds(range)) {
                Some((_, which)) => which.push(i),
                None => match layout.range_of(parked.at) {
                    Some(range) => groups.push((range, SmallVec::from_iter([i]))),
                    None => {
                        parked.body.ack.clone().fail(AppendError::UnknownPartition);
                        done[i] = true;
                    }
                },
            }
        }
        groups.sort_by_key(|(range, _)| range.span.first);
        let mut moved = false;
        for (range, which) in &groups {
            let mut rest = which.clone();
            // The second look comes after the wish to be woken, so that no room is missed.
            for look in 0..2 {
                let queue = park.queue();
                let (mut left, mut refused) = (Indices::new(), Vec::new());
                let items = rest.iter().map(|&i| (&queue[i].body.batch, Share::Held(&queue[i].body.ack)));
                let told = |n: usize, told: Told| {
                    let parked = &queue[rest[n]];
                    let ack = parked.body.ack.clone();
                    match told {
                        Told::Waits(issued) => ack.change(issued),
                        // What follows asks the range, which told this under its lock.
                        Told::Known(Issued::Err(error)) => refused.push((rest[n], error)),
                        Told::Known(issued) => {
                            ack.change(issued);
                            ack.done();
                        }
                    }
                };
                let taken = match range.issue(items, told, layout.now_ms()) {
                    Progress::All => rest.len(),
                    Progress::Part(n) => n,
                };
                rest[..taken].iter().for_each(|&i| done[i] = true);
                for (i, error) in refused {
                    let parked = &queue[i];
                    let outcome = Issued::Err(error.clone());
                    if waits_for(range, parked.sequenced, &outcome) {
                        done[i] = false;
                        left.push(i);
                        continue;
                    }
                    if parked.sequenced.is_none() && is_stuck(range, &error) {
                        stuck.push(parked.at);
                    } else if passes(&error) {
                        passing.push((parked.at, parked.sequenced));
                    }
                    if doubtful(&outcome) {
                        parked.body.ack.doubt(parked.at, parked.sequenced, range.active_loglet());
                    }
                    parked.body.ack.clone().fail(error);
                }
                left.extend_from_slice(&rest[taken..]);
                rest = left;
                if rest.is_empty() {
                    break;
                }
                if look == 0 {
                    range.watch_room(&self.0.room);
                }
            }
            moved |= !rest.is_empty() && range.phase() == Phase::Moved;
        }
        let now_ms = layout.now_ms();
        for parked in park.take(&done) {
            let waited = now_ms.saturating_sub(parked.body.since_ms).max(0);
            layout.parking().ms.fetch_add(waited.unsigned_abs(), Ordering::Relaxed);
        }
        stuck.into_iter().for_each(|at| park.refuse_stuck(at));
        for (at, sequenced) in passing {
            if sequenced.is_some() {
                let (_, behind) = park.bar(at, sequenced);
                tell(behind);
            }
        }
        moved
    }
}

impl Appending {
    /// All outcomes in order, once they are known; what is not at the deadline is refused if it is parked, else
    /// `TimedOut`.
    pub async fn wait(mut self, layout: &impl Layout) -> Outcomes {
        let ack = self.ack.clone();
        let known = ack.done();
        let deadline = tokio::time::sleep_until(self.deadline.into());
        tokio::pin!(known, deadline);
        let room = self.lane.0.room.clone();
        let in_time = loop {
            if self.parked {
                self.lane.pump(layout, None);
            }
            tokio::select! {
                biased;
                () = &mut known => break true,
                () = room.notified(), if self.parked => {}
                () = &mut deadline => break false,
            }
        };
        let mut outcomes = if in_time { self.outcomes(true) } else { self.late(layout) };
        for doubt in ack.take_doubts() {
            if !layout.leads(doubt.at, doubt.loglet).await {
                self.take_back(&doubt, &mut outcomes);
            }
        }
        outcomes
    }

    /// A refusal that somebody decided who did not lead any more: whoever does is to be asked.
    fn take_back(&self, doubt: &Doubt, outcomes: &mut Outcomes) {
        let (refusal, behind) = self.lane.0.park.lock().bar(doubt.at, doubt.sequenced);
        tell(behind);
        if let Some(one) = outcomes.batches.get_mut(doubt.index) {
            *one = Issued::Err(error_of(refusal));
        }
    }

    /// The outcomes at the deadline.
    pub(super) fn late(&mut self, layout: &impl Layout) -> Outcomes {
        self.ack.answer();
        if self.parked {
            self.lane.pump(layout, Some(self.deadline));
        }
        for one in &mut self.issued {
            if matches!(one, Issued::Ok { .. }) {
                *one = Issued::Err(AppendError::TimedOut);
            }
        }
        self.outcomes(false)
    }

    /// The outcomes, if all are known now and none is to be confirmed.
    pub fn try_take(&mut self) -> Option<Outcomes> {
        (self.ack.is_done() && !self.ack.has_doubts()).then(|| self.outcomes(true))
    }

    fn outcomes(&mut self, in_time: bool) -> Outcomes {
        self.parked = false;
        let mut batches = std::mem::take(&mut self.issued);
        for (index, changed) in self.ack.take_changed() {
            match (batches.get_mut(index), &changed) {
                // Numbered again and not known to be durable.
                (Some(one), Issued::Ok { .. }) if !in_time => *one = Issued::Err(AppendError::TimedOut),
                (Some(one), _) => *one = changed,
                (None, _) => {}
            }
        }
        Outcomes { batches, close_after: self.lane.0.park.lock().has_ended() }
    }
}

impl Drop for Appending {
    fn drop(&mut self) {
        self.ack.answer();
        if self.parked {
            let mine = |parked: &Parked<Waiting>| parked.body.ack.is_of(&self.ack);
            tell(self.lane.0.park.lock().withdraw(mine));
        }
    }
}

#[cfg(test)]
pub(crate) mod fork;

fn tell(refused: Vec<(Parked<Waiting>, Refusal)>) {
    refused.into_iter().for_each(|(parked, refusal)| parked.body.ack.fail(error_of(refusal)));
}

fn error_of(refusal: Refusal) -> AppendError {
    match refusal {
        Refusal::Again => AppendError::NotLeader { leader: None },
        Refusal::Ended => AppendError::TimedOut,
    }
}

/// Whether an outcome is true only of a primary that still leads (R6). That an epoch is too old stays true.
fn doubtful(issued: &Issued) -> bool {
    matches!(issued, Issued::Err(AppendError::OutOfOrderSequence { .. })) && !broken(Mutant::NegativeAtOnce)
}

/// Whether a batch waits for its range in place of being refused: a plain one does while the range is blocked and may go on shortly, since
/// nothing would keep later ones behind it then (R8).
fn waits_for(range: &RangePrimary, sequenced: Option<Sequenced>, issued: &Issued) -> bool {
    let refused = matches!(issued, Issued::Err(AppendError::Storage(_)));
    refused && sequenced.is_none() && range.may_go_on()
}

/// Whether a refusal is that of a range which cannot go on.
fn is_stuck(range: &RangePrimary, error: &AppendError) -> bool {
    matches!(error, AppendError::Storage(_)) && range.stuck().is_some()
}

/// What a plain batch is told of whose partition one was refused since its range could not go on: the same while it cannot. When it can, this
/// one would overtake it, and the lane ends (R8).
fn refuse_behind(park: &mut Park<Waiting>, at: TopicPartition, layout: &impl Layout) -> AppendError {
    let Some(range) = layout.range_of(at) else { return AppendError::UnknownPartition };
    match range.stuck() {
        Some(why) => AppendError::Storage(why),
        None => error_of(park.refuse(at, None)),
    }
}

/// Whether a refusal by a range may be another answer later: then what follows the batch must not go first.
pub(super) fn passes(error: &AppendError) -> bool {
    error.retry() != Retry::No && *error != AppendError::UnknownPartition
}

fn remember(
    park: &mut Park<Waiting>,
    at: TopicPartition,
    range: &RangePrimary,
    sequenced: Option<Sequenced>,
    issued: &Issued,
) {
    let Issued::Err(error) = issued else { return };
    match sequenced {
        Some(_) if passes(error) => {
            park.refuse(at, sequenced);
        }
        None if is_stuck(range, error) => park.refuse_stuck(at),
        _ => {}
    }
}
