//! A transactional producer of partition 0 and its coordinator, whose own log is taken for granted: one batch in each
//! transaction, a marker when it is to end. A call that asks a primary for the marker may wait, be given up and still be
//! carried out; the coordinator asks again meanwhile. Odd transactions are aborted, even ones committed; one whose batch
//! got no answer is aborted under a higher epoch.

use super::Scope;
use super::clients::leads;
use super::world::{TOPIC, World, primary};
use crate::codec::batch::{BATCH_HEAD_LEN, BatchHead, TRANSACTIONAL_BIT};
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::codec::marker::MarkerBody;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{Ack, AckSlot, Forks, Issued};
use crate::range::lane::{Appending, Lane, Layout};
use crate::range::markers::{Marker, TransactionVersion};
use crate::range::primary::Batch;
use crate::range::state::FirstSequence;
use crate::types::{Offset, Partition};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub(super) const PARTITION: Partition = 0;
const ID: i64 = 200;

/// What a producer and its coordinator may do next; numbers are those of batches, calls and nodes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TxnStep {
    /// The next transaction begins: its batch is on its way.
    Begin,
    /// A batch arrives at the leader.
    Read(usize),
    /// The lane looks whether a range takes now what it holds.
    Look,
    /// The coordinator decides that the transaction ends.
    End,
    /// The coordinator gives up waiting and asks once more.
    AskAgain,
    /// A call reaches a node.
    Mark(usize, usize),
}

/// A batch without an answer.
struct Sent {
    number: u64,
    epoch: i16,
    sequence: i32,
    /// The node that has read it.
    pending: Option<(usize, Appending)>,
}

/// A wish for a marker.
struct Call {
    marker: Marker,
    /// The node that has taken it, and who waits.
    issued: Option<(usize, Arc<Ack>)>,
}

/// See the module head.
pub(super) struct Transactional {
    version: TransactionVersion,
    /// The current or last transaction.
    number: u64,
    epoch: i16,
    sequence: i32,
    acknowledged: bool,
    /// The marker of the current one, once its coordinator has decided.
    ending: Option<Marker>,
    sent: Vec<Sent>,
    calls: Vec<Call>,
    /// How the transactions from 1 on ended, as far as the coordinator was told: committed or not.
    ended: Vec<bool>,
    lane: Lane,
}

impl Transactional {
    pub(super) fn new(version: TransactionVersion) -> Transactional {
        Transactional {
            version,
            number: 0,
            epoch: 0,
            sequence: 0,
            acknowledged: false,
            ending: None,
            sent: Vec::new(),
            calls: Vec::new(),
            ended: Vec::new(),
            lane: Lane::default(),
        }
    }

    pub(super) fn fork(&self, forks: &mut Forks) -> Transactional {
        let sent = |one: &Sent| Sent {
            pending: one.pending.as_ref().map(|(node, pending)| (*node, pending.fork(forks))),
            ..*one
        };
        Transactional {
            sent: self.sent.iter().map(sent).collect(),
            calls: self
                .calls
                .iter()
                .map(|call| Call {
                    marker: call.marker,
                    issued: call.issued.as_ref().map(|(node, ack)| (*node, forks.of(ack))),
                })
                .collect(),
            ended: self.ended.clone(),
            lane: self.lane.fork(forks),
            ..*self
        }
    }

    pub(super) fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        (self.number, self.epoch, self.sequence, self.acknowledged, &self.ended).hash(into);
        self.ending.is_some().hash(into);
        for one in &self.sent {
            (one.number, one.epoch, one.sequence, one.pending.as_ref().map(|(node, _)| *node)).hash(into);
        }
        for call in &self.calls {
            (call.marker.number, call.issued.as_ref().map(|(node, _)| *node)).hash(into);
        }
        self.lane.identify(into, number);
    }

    /// Which of its batches or calls `ack` is of.
    pub(super) fn place(&self, ack: &AckSlot) -> Option<usize> {
        let batch = self.sent.iter().position(|one| one.pending.as_ref().is_some_and(|(_, p)| p.has(ack)));
        let call = || {
            let mine = |call: &Call| call.issued.as_ref().is_some_and(|(_, of)| ack.is_of(of));
            self.calls.iter().position(mine).map(|at| at + 10)
        };
        batch.or_else(call)
    }

    /// A node has died, or can say no more what became of what it had taken.
    pub(super) fn forgotten_by(&mut self, node: usize) {
        let had = self.sent.iter().any(|one| one.pending.as_ref().is_some_and(|(at, _)| *at == node));
        if had {
            self.lane = Lane::default();
            self.sent.iter_mut().for_each(|one| one.pending = None);
        }
        let mine = |call: &&mut Call| call.issued.as_ref().is_some_and(|(at, _)| *at == node);
        self.calls.iter_mut().filter(mine).for_each(|call| call.issued = None);
    }

    fn idle(&self) -> bool {
        self.number == self.ended.len() as u64
    }

    pub(super) fn finished(&self) -> bool {
        self.idle() && self.sent.is_empty()
    }

    fn batch(&self, sent: &Sent) -> Batch {
        let head = BatchHead {
            base_offset: 0,
            batch_length: 49,
            magic: 2,
            crc: 0,
            attributes: TRANSACTIONAL_BIT,
            last_offset_delta: 0,
            base_timestamp: sent.number as i64 * 1000 + i64::from(sent.epoch),
            max_timestamp: 1,
            producer_id: ID,
            producer_epoch: sent.epoch,
            base_sequence: sent.sequence,
            record_count: 1,
        };
        let bytes = Bytes::from_static(&[0; BATCH_HEAD_LEN]);
        Batch { partition: PARTITION, head, bytes, first: FirstSequence::Zero }
    }
}

impl World {
    pub(super) fn transaction_steps(&self, steps: &mut Vec<TxnStep>) {
        let Some(txn) = &self.transactional else { return };
        if txn.idle() && self.budget.transactions > 0 {
            steps.push(TxnStep::Begin);
        }
        let waiting = txn.sent.iter().enumerate().filter(|(_, one)| one.pending.is_none());
        steps.extend(waiting.map(|(at, _)| TxnStep::Read(at)));
        if txn.lane.parked() > 0 {
            steps.push(TxnStep::Look);
        }
        if !txn.idle() && txn.ending.is_none() && (txn.acknowledged || self.budget.timeouts > 0) {
            steps.push(TxnStep::End);
        }
        if txn.ending.is_some() && self.budget.copies > 0 {
            steps.push(TxnStep::AskAgain);
        }
        for (at, _) in txn.calls.iter().enumerate().filter(|(_, call)| call.issued.is_none()) {
            let holds = |node: &usize| self.nodes[*node].head_of(PARTITION).is_some();
            steps.extend((0..self.nodes.len()).filter(holds).map(|node| TxnStep::Mark(at, node)));
        }
    }

    pub(super) fn transact(&mut self, step: TxnStep) -> Option<()> {
        let mut txn = self.transactional.take()?;
        let made = match step {
            TxnStep::Begin => {
                self.budget.transactions -= 1;
                txn.number += 1;
                let (number, epoch, sequence) = (txn.number, txn.epoch, txn.sequence);
                txn.sent.push(Sent { number, epoch, sequence, pending: None });
                txn.sequence += 1;
                Some(())
            }
            TxnStep::Read(at) => self.read_sent(&mut txn, at),
            TxnStep::Look => self.look_in_lane(&txn),
            TxnStep::End => {
                self.end_transaction(&mut txn);
                Some(())
            }
            TxnStep::AskAgain => {
                self.budget.copies -= 1;
                txn.calls.extend(txn.ending.map(|marker| Call { marker, issued: None }));
                Some(())
            }
            TxnStep::Mark(at, node) => self.mark(&mut txn, at, node),
        };
        self.transactional = Some(txn);
        made
    }

    fn read_sent(&mut self, txn: &mut Transactional, at: usize) -> Option<()> {
        let leader = self.range_of(PARTITION).primary()?;
        let node = (0..self.nodes.len()).find(|node| self.me(*node) == leader)?;
        let elsewhere = |one: &Sent| one.pending.as_ref().is_some_and(|(at, _)| *at != node);
        if txn.sent.iter().any(elsewhere) {
            return None; // its connection ends first
        }
        let layout = self.layout(node);
        layout.range_of(TopicPartition { topic: TOPIC, partition: PARTITION })?;
        let batch = txn.batch(&txn.sent[at]);
        let deadline = self.begun + Duration::from_secs(1);
        let appending = txn.lane.append(TOPIC, vec![batch], deadline, &layout);
        txn.sent[at].pending = Some((node, appending));
        Some(())
    }

    fn look_in_lane(&self, txn: &Transactional) -> Option<()> {
        let node = txn.sent.iter().find_map(|one| one.pending.as_ref().map(|(node, _)| *node))?;
        let before = txn.lane.parked();
        txn.lane.look(&self.layout(node));
        (txn.lane.parked() != before).then_some(())
    }

    fn end_transaction(&mut self, txn: &mut Transactional) {
        if !txn.acknowledged {
            self.budget.timeouts -= 1;
        }
        let raises = !txn.acknowledged || txn.version == TransactionVersion::V2;
        let marker = Marker {
            producer_id: ID,
            producer_epoch: txn.epoch + i16::from(raises),
            coordinator_epoch: 0,
            number: txn.number,
            commit: txn.acknowledged && txn.number.is_multiple_of(2),
            version: txn.version,
        };
        txn.ending = Some(marker);
        txn.calls.push(Call { marker, issued: None });
    }

    fn mark(&mut self, txn: &mut Transactional, at: usize, node: usize) -> Option<()> {
        let head = self.nodes[node].head_of(PARTITION)?.clone();
        let (call, ack) = (&mut txn.calls[at], Arc::new(Ack::default()));
        match head.issue_marker(PARTITION, &call.marker, &ack, 0) {
            Ok(None) => None,
            Ok(Some(())) => {
                call.issued = Some((node, ack));
                Some(())
            }
            Err(error @ (AppendError::ProducerFenced { .. } | AppendError::CoordinatorFenced { .. })) => {
                self.broken = Some(format!("marker {}: {error}", call.marker.number));
                Some(())
            }
            // Asked again later, perhaps elsewhere.
            Err(_) => None,
        }
    }

    /// Answers that are known reach the producer and the coordinator.
    pub(super) fn transaction_answers(&mut self) {
        let Some(mut txn) = self.transactional.take() else { return };
        let mut n = 0;
        while let Some(one) = txn.sent.get_mut(n) {
            let (control, nodes) = (&self.control, &self.nodes);
            let outcomes = one.pending.as_mut().and_then(|(node, pending)| {
                let me = primary(*node, nodes[*node].generation);
                pending.try_confirmed(|at, loglet| leads(control, me, at, loglet))
            });
            let Some(outcome) = outcomes.and_then(|mut outcomes| outcomes.batches.pop()) else {
                n += 1;
                continue;
            };
            let over = txn.ending.is_some() || txn.number == txn.ended.len() as u64;
            let current = one.number == txn.number && !over;
            match outcome {
                Issued::Ok { .. } => {
                    txn.acknowledged |= current;
                    txn.sent.remove(n);
                }
                Issued::Err(
                    error @ (AppendError::ProducerFenced { .. } | AppendError::OutOfOrderSequence { .. }),
                ) => {
                    if current {
                        self.broken = Some(format!("batch of transaction {}: {error}", one.number));
                    }
                    txn.sent.remove(n);
                }
                Issued::Err(_) => one.pending = None,
            }
        }
        let mut n = 0;
        while let Some(call) = txn.calls.get_mut(n) {
            let Some((_, ack)) = call.issued.as_ref().filter(|(_, ack)| ack.is_done()) else {
                n += 1;
                continue;
            };
            if ack.take_changed().iter().any(|(_, outcome)| matches!(outcome, Issued::Err(_))) {
                call.issued = None;
                n += 1;
                continue;
            }
            let Call { marker, .. } = txn.calls.remove(n);
            if txn.ending.is_some_and(|ending| ending.number == marker.number) {
                txn.ended.push(marker.commit);
                txn.ending = None;
                txn.acknowledged = false;
                if marker.producer_epoch > txn.epoch {
                    txn.epoch = marker.producer_epoch;
                    txn.sequence = 0;
                }
            }
        }
        self.transactional = Some(txn);
    }

    /// - a marker ends its own transaction, once, and nothing of that comes after it;
    /// - what the coordinator was told is recorded;
    /// - readers are shown nothing of an open transaction as stable, and are told of every aborted one.
    pub(super) fn broken_transaction(&self) -> Option<String> {
        let txn = self.transactional.as_ref()?;
        let mut open: Option<(u64, Offset)> = None;
        let mut marked: BTreeMap<u64, bool> = BTreeMap::new();
        let mut aborted: Vec<(Offset, Offset)> = Vec::new();
        for header in self.recorded_headers(PARTITION) {
            let EntryHeader { base_offset, first_timestamp, producer_id, .. } = header;
            match MarkerBody::of(&header) {
                None if header.kind == EntryKind::Data && producer_id == ID => {
                    let number = first_timestamp as u64 / 1000;
                    if marked.contains_key(&number) {
                        return Some(format!("a batch of transaction {number} lies behind its marker"));
                    }
                    open.get_or_insert((number, base_offset));
                }
                None => {}
                Some(MarkerBody { number, commit, .. }) => {
                    if marked.insert(number, commit).is_some() {
                        return Some(format!("transaction {number} is marked twice"));
                    }
                    match open.take() {
                        Some((other, _)) if other != number => {
                            return Some(format!(
                                "the marker of transaction {number} ends transaction {other}"
                            ));
                        }
                        Some((_, first)) if !commit => aborted.push((first, base_offset)),
                        _ => {}
                    }
                }
            }
        }
        for (commit, number) in txn.ended.iter().zip(1..) {
            if marked.get(&number) != Some(commit) {
                return Some(format!("transaction {number}, told to be over ({commit}), is not: {marked:?}"));
            }
        }
        let heads = self.nodes.iter().flat_map(|node| &node.heads);
        for (head, view) in heads.filter_map(|head| Some((head, head.view(PARTITION)?))) {
            if open.is_some_and(|(_, first)| first.max(view.log_start) < view.last_stable) {
                return Some(format!("{} shows {} as stable, open is {open:?}", head.id, view.last_stable));
            }
            let told = head.aborted(PARTITION, view.log_start, view.last_stable).unwrap_or_default();
            if view.log_start == view.last_stable {
                continue; // nothing that a committed reader is shown
            }
            let read = |span: &&(Offset, Offset)| span.0 < view.last_stable && span.1 >= view.log_start;
            let told = |(first, _): &(Offset, Offset)| told.iter().any(|span| span.first == *first);
            if let Some((first, _)) = aborted.iter().filter(read).find(|span| !told(span)) {
                return Some(format!("{} does not tell that what begins at {first} was aborted", head.id));
            }
        }
        None
    }
}

/// The producer of a run, if it has one.
pub(super) fn producer_of(scope: &Scope) -> Option<Transactional> {
    (scope.transactions > 0).then(|| Transactional::new(scope.version))
}
