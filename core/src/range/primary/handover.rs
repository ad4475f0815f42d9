//! What was in flight when a segment ended goes to the primary that follows: acknowledged below the recorded tail,
//! numbered again in its order at or above it (design 7, reshard-rules R7b).
//!
//! ```text
//! old primary   0 .. completed .. | in flight: a b c d e        recorded tail T after b
//! hand_over                         a b: acknowledged · c d e: to the successor, without their numbers
//! successor     0 checkpoint | c d e | what others append
//! ```

use super::sequence::Verdict;
use super::{Batch, Head, Phase, RangePrimary};
use crate::drive::Purpose;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{AckSlot, LaneId};
use crate::range::state::SequenceRefusal;
use crate::testing::{Mutant, broken};
use crate::types::{Address, Partition, Span, TopicId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A batch that was in flight at or above the recorded tail: it has no number any more, and who waits for it waits on.
#[derive(Debug)]
#[must_use = "who waits for it is told nothing until a successor takes it over"]
pub struct HandedOver {
    pub(super) topic: TopicId,
    pub(super) batch: Batch,
    pub(super) acks: SmallVec<[AckSlot; 1]>,
}

impl HandedOver {
    /// The batch's partition.
    pub fn partition(&self) -> Partition {
        self.batch.partition
    }

    /// Whether somebody still waits for it.
    fn wanted(&self) -> bool {
        self.acks.iter().any(|ack| !ack.is_answered())
    }

    fn lane(&self) -> Option<LaneId> {
        self.acks.first().and_then(AckSlot::lane)
    }
}

/// Gives each successor what is of its partitions, in order; `spans` are the successors'. What is of none is refused.
pub fn divide(items: Vec<HandedOver>, spans: &[Span]) -> Vec<Vec<HandedOver>> {
    let mut parts: Vec<Vec<HandedOver>> = spans.iter().map(|_| Vec::new()).collect();
    for item in items {
        match spans.iter().position(|span| span.contains(item.partition())) {
            Some(at) => parts[at].push(item),
            None => Refused { item, why: AppendError::NotLeader { leader: None } }.tell(),
        }
    }
    parts
}

/// What a primary has taken over and not numbered yet.
pub(super) struct Inherited {
    pub(super) queue: VecDeque<HandedOver>,
    /// Broker time of the takeover, which its entries get.
    pub(super) at: i64,
    /// Somebody tells what was found and looks again.
    pub(super) settling: bool,
}

/// An item that ends here.
pub(super) struct Refused {
    item: HandedOver,
    why: AppendError,
}

impl Refused {
    pub(super) fn tell(self) {
        let HandedOver { topic, batch, acks } = self.item;
        let at = TopicPartition { topic, partition: batch.partition };
        acks.into_iter().for_each(|ack| ack.refuse(at, &batch, self.why.clone()));
    }
}

/// What is to be done without the lock.
enum Step {
    /// Nothing, for now or for good.
    Rest,
    /// All is settled: others may go on.
    Settled,
    /// These end.
    Refuse(Vec<Refused>),
    /// These are known: duplicates of what is durable.
    Resolve(SmallVec<[AckSlot; 4]>),
}

impl RangePrimary {
    /// Ends what is in flight, once the tail `tail` of the active segment is recorded and this primary takes nothing
    /// more: what is below is acknowledged, save inside `degraded` (R20); batches at or above come back in their order,
    /// to be taken over by the successor; entries of our own there fail, to be made again by whoever made them.
    pub fn hand_over(&self, tail: Address, degraded: Option<(Address, Address)>) -> Vec<HandedOver> {
        let (mut done, mut failed, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut head = self.head.lock();
            assert!(head.phase != Phase::Open, "a primary that takes appends hands nothing over");
            assert!(head.sequencer.tail() <= tail, "what was acknowledged is below the recorded tail");
            head.over = true;
            let mut address = head.sequencer.tail();
            while let Some(slot) = head.slots.pop_front() {
                let thin = degraded.is_some_and(|(from, to)| from <= address && address < to);
                match slot.batch {
                    Some(batch) if broken(Mutant::BlindReappend) => {
                        rest.push(HandedOver { topic: self.topic, batch, acks: slot.acks });
                    }
                    _ if address < tail => {
                        head.show(self.span, slot.effect);
                        if thin {
                            failed.extend(slot.acks.into_iter().map(|ack| (ack, AppendError::TimedOut)));
                        } else {
                            done.extend(slot.acks);
                        }
                    }
                    Some(batch) => rest.push(HandedOver { topic: self.topic, batch, acks: slot.acks }),
                    None => {
                        let moved = AppendError::NotLeader { leader: None };
                        failed.extend(slot.acks.into_iter().map(|ack| (ack, moved.clone())));
                    }
                }
                address = address.plus(1);
            }
            rest.extend(head.inherited.take().into_iter().flat_map(|inherited| inherited.queue));
        }
        done.into_iter().for_each(AckSlot::done);
        failed.into_iter().for_each(|(ack, error)| ack.fail(error));
        self.watchers.wake();
        rest
    }

    /// Numbers what was taken over, as far as the window allows; goes on whenever something completes.
    pub(super) fn settle(self: &Arc<Self>) {
        let mut mine = false;
        loop {
            let step = {
                let mut head = self.head.lock();
                let Some(inherited) = &mut head.inherited else { return };
                if inherited.settling && !mine {
                    return;
                }
                inherited.settling = false;
                let step = self.settle_step(&mut head);
                if let Some(inherited) = &mut head.inherited {
                    inherited.settling = matches!(step, Step::Refuse(_) | Step::Resolve(_));
                }
                step
            };
            match step {
                Step::Rest => return,
                Step::Settled => break,
                Step::Refuse(refused) => refused.into_iter().for_each(Refused::tell),
                Step::Resolve(known) => known.into_iter().for_each(AckSlot::done),
            }
            mine = true;
        }
        self.wake_room();
    }

    fn settle_step(self: &Arc<Self>, head: &mut Head) -> Step {
        if head.phase != Phase::Open || !head.sequencer.issuing() {
            return Step::Rest;
        }
        let Some(mut inherited) = head.inherited.take() else { return Step::Rest };
        let withdrawn = withdraw(&mut inherited.queue);
        if !withdrawn.is_empty() {
            head.inherited = Some(inherited);
            return Step::Refuse(withdrawn);
        }
        let bytes = inherited.queue.iter().map(|item| item.batch.bytes.len()).sum();
        if let Err(error) = head.segment.drive.admit(bytes, Purpose::Records) {
            let why = AppendError::Storage(error.to_string());
            let queue = std::mem::take(&mut inherited.queue);
            head.inherited = Some(inherited);
            return Step::Refuse(queue.into_iter().map(|item| Refused { item, why: why.clone() }).collect());
        }
        let step = self.number_inherited(head, &mut inherited);
        let settled = matches!(step, Step::Rest) && inherited.queue.is_empty();
        if settled {
            return Step::Settled;
        }
        head.inherited = Some(inherited);
        step
    }

    fn number_inherited(self: &Arc<Self>, head: &mut Head, inherited: &mut Inherited) -> Step {
        let mut run = self.begin_run(head, inherited.queue.len(), inherited.at);
        let mut known = SmallVec::new();
        let mut refused = Vec::new();
        while let Some(item) = inherited.queue.pop_front() {
            match self.number(head, &mut run, &item.batch) {
                Verdict::NoRoom => {
                    inherited.queue.push_front(item);
                    break;
                }
                Verdict::Numbered(issued) => {
                    item.acks.iter().for_each(|ack| ack.change(issued.clone()));
                    if let Some(slot) = head.slots.back_mut() {
                        slot.acks = item.acks;
                    }
                }
                Verdict::Duplicate(issued, place) => {
                    item.acks.iter().for_each(|ack| ack.change(issued.clone()));
                    match head.original(place) {
                        Some(slot) => slot.acks.extend(item.acks),
                        None => known.extend(item.acks),
                    }
                }
                Verdict::Refused(refusal) => {
                    let why = refused_again(refusal);
                    let behind = match why {
                        AppendError::NotLeader { .. } => behind(&mut inherited.queue, &item),
                        _ => Vec::new(),
                    };
                    refused.extend(
                        [item].into_iter().chain(behind).map(|item| Refused { item, why: why.clone() }),
                    );
                    break;
                }
            }
        }
        self.submit_run(head, run);
        match (refused.is_empty(), known.is_empty()) {
            (false, _) => {
                // Told before the next look: what stands behind it must not go first.
                known.into_iter().for_each(AckSlot::done);
                Step::Refuse(refused)
            }
            (true, false) => Step::Resolve(known),
            (true, true) => Step::Rest,
        }
    }
}

impl Head {
    /// Puts what was handed over behind what was taken over before.
    pub(super) fn inherit(&mut self, items: Vec<HandedOver>, now_ms: i64) {
        if items.is_empty() {
            return;
        }
        let fresh = || Inherited { queue: VecDeque::new(), at: now_ms, settling: false };
        self.inherited.get_or_insert_with(fresh).queue.extend(items);
    }

    /// What was taken over by a primary that takes nothing for good.
    pub(super) fn refuse_inherited(&mut self) -> Vec<Refused> {
        let why = match self.phase {
            Phase::Stopping => AppendError::Stopping,
            Phase::Gone => AppendError::UnknownPartition,
            Phase::Open | Phase::Between | Phase::Moved | Phase::Blocked(_) => return Vec::new(),
        };
        let queue = self.inherited.take().into_iter().flat_map(|inherited| inherited.queue);
        queue.map(|item| Refused { item, why: why.clone() }).collect()
    }
}

/// Takes out what nobody waits for any more, and with each everything behind it of its lane and partition (R7c, R7d).
fn withdraw(queue: &mut VecDeque<HandedOver>) -> Vec<Refused> {
    let mut withdrawn = Vec::new();
    while let Some(at) = queue.iter().position(|item| !item.wanted()) {
        let mut rest = queue.split_off(at);
        let Some(item) = rest.pop_front() else { break };
        let behind = behind(&mut rest, &item);
        queue.append(&mut rest);
        withdrawn.extend([item].into_iter().chain(behind));
    }
    let why = AppendError::NotLeader { leader: None };
    withdrawn.into_iter().map(|item| Refused { item, why: why.clone() }).collect()
}

/// Takes out what stands behind `item` in its lane and partition.
fn behind(queue: &mut VecDeque<HandedOver>, item: &HandedOver) -> Vec<HandedOver> {
    let Some(lane) = item.lane() else { return Vec::new() };
    if broken(Mutant::WithdrawnAlone) {
        return Vec::new();
    }
    let is_behind = |other: &HandedOver| other.lane() == Some(lane) && other.partition() == item.partition();
    let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(queue).into_iter().partition(is_behind);
    *queue = left.into();
    taken
}

/// Why a batch that had a number gets none from the successor. Its client is never told of a wrong sequence because a
/// segment ended: it asks again, and is told the truth then (G5).
fn refused_again(refusal: SequenceRefusal) -> AppendError {
    match refusal {
        SequenceRefusal::OutOfOrder { .. } | SequenceRefusal::OutsideSpan(_) => {
            AppendError::NotLeader { leader: None }
        }
        other => super::sequence::refused(other),
    }
}
