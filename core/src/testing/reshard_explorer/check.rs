//! What must hold in every state. *Recorded* is what lies below a recorded tail, and of an open segment what a seal would
//! record now: anybody may seal it at any time.
//!
//! - what was acknowledged is recorded at its offset;
//! - offsets are dense, and each names one record;
//! - a client's batches are recorded in its order, once;
//! - readers are shown nothing above what is recorded;
//! - a segment whose successor is there takes nothing any more: no parent and child both accept;
//! - a leader epoch of a partition is one incarnation's, and the next one's is higher;
//! - a reader with a cursor is given every record once, in its partition's order, or told of a skip of deleted ones only;
//! - recorded segments have no holes; the control state is sound (its ranges tile the topic, among others);
//! - nobody is told of a wrong sequence whose predecessors are stored (noted when it is told);
//! - transactions: see [`World::broken_transaction`];
//! - a range's state is never lost, and drained memory is its fold (noted when it is opened).

use super::clients::Known;
use super::world::{PARTITIONS, World};
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::range::primary::{Phase, RangePrimary};
use crate::types::{LogletId, Offset, Partition, Primary};
use std::sync::Arc;

impl World {
    /// Batches of a partition that are recorded, markers too, in their order: what tells them apart, and their offsets.
    pub(super) fn recorded(&self, partition: Partition) -> Vec<(i64, Offset)> {
        self.recorded_headers(partition).map(|h| (h.first_timestamp, h.base_offset)).collect()
    }

    /// Their headers.
    pub(super) fn recorded_headers(&self, partition: Partition) -> impl Iterator<Item = EntryHeader> {
        let below = self.leaves.iter().flat_map(|(loglet, leaf)| leaf.entries.range(..self.end_of(*loglet)));
        let mine = below.map(|(_, (header, _))| *header).filter(move |h| h.partition == partition);
        mine.filter(|h| matches!(h.kind, EntryKind::Data | EntryKind::Marker))
    }

    /// The tail of a segment, or what a seal would make of it.
    fn end_of(&self, loglet: LogletId) -> u64 {
        if let Some(tail) = self.tails.get(&loglet) {
            return *tail;
        }
        let open = self.topic().live_ranges().any(|range| range.open().is_some_and(|o| o.loglet == loglet));
        if open { self.leaves[&loglet].contiguous() } else { 0 }
    }

    pub(super) fn broken_rule(&self) -> Option<String> {
        if self.broken.is_some() {
            return self.broken.clone();
        }
        for (loglet, tail) in &self.tails {
            let held = self.leaves[loglet].entries.range(..*tail).count() as u64;
            if held < *tail {
                return Some(format!("{loglet}: {held} entries below its recorded tail {tail}"));
            }
        }
        (0..PARTITIONS)
            .find_map(|partition| self.broken_in(partition))
            .or_else(|| self.broken_transaction())
            .or_else(|| self.two_accept())
    }

    fn broken_in(&self, partition: Partition) -> Option<String> {
        let recorded = self.recorded(partition);
        for ((id, offset), expected) in recorded.iter().zip(0..) {
            if *offset != expected {
                return Some(format!(
                    "partition {partition}: batch {id} has offset {offset} where {expected} belongs"
                ));
            }
        }
        for client in self.clients.iter().filter(|client| client.kind.partition == partition) {
            let ids = (0..client.kind.batches).map(|batch| client.id(batch)).collect::<Vec<_>>();
            let stored: Vec<i64> = recorded.iter().map(|(id, _)| *id).filter(|id| ids.contains(id)).collect();
            let in_order = match client.kind.idempotent {
                true => stored.iter().eq(ids.iter().take(stored.len())),
                false => stored.is_sorted_by(|a, b| a < b),
            };
            if !in_order {
                return Some(format!(
                    "client {}: its batches {ids:?} are recorded as {stored:?}",
                    client.number
                ));
            }
            for (id, known) in ids.iter().zip(&client.known) {
                if let Known::Acknowledged(offset) = known
                    && !recorded.contains(&(*id, *offset))
                {
                    return Some(format!("batch {id}, acknowledged at {offset}, is lost: {recorded:?}"));
                }
            }
        }
        let end = recorded.len() as Offset;
        let shown = self.heads().filter_map(|head| head.high(partition)).max();
        shown
            .filter(|high| *high > end)
            .map(|high| format!("partition {partition}: readers are shown {high}, recorded are {end}"))
    }

    fn two_accept(&self) -> Option<String> {
        for head in self.heads().filter(|head| head.phase() == Phase::Open) {
            let (loglet, sequencer) = head.active();
            let takes = sequencer.issuing() && !self.leaves[&loglet].is_fenced();
            let open = self.topic().live_ranges().any(|r| r.open().is_some_and(|o| o.loglet == loglet));
            if takes && !open {
                return Some(format!("{loglet} of {} takes appends, and others are open", head.id));
            }
        }
        None
    }

    fn heads(&self) -> impl Iterator<Item = &Arc<RangePrimary>> {
        self.nodes.iter().flat_map(|node| &node.heads)
    }

    /// A primary tells of its leader epochs.
    pub(super) fn note_epochs(&mut self, me: Primary, head: &RangePrimary) {
        let state = head.state();
        for (partition, of_state) in state.partitions() {
            let Some(epoch) = of_state.epochs.latest() else { continue };
            let before = *self.led.entry((partition, epoch)).or_insert(me);
            let highest = self.led.keys().filter(|(p, _)| *p == partition).map(|(_, epoch)| *epoch).max();
            if before != me || highest > Some(epoch) {
                self.broken = Some(format!(
                    "partition {partition}: {me:?} leads under epoch {epoch}; {before:?} did; highest was {highest:?}"
                ));
            }
        }
    }

    /// Whether all readers have all of a partition that is not deleted.
    fn read_to_the_end(&self, partition: Partition) -> bool {
        let end = self.recorded(partition).last().map_or(0, |(_, offset)| offset + 1);
        let deleted = self.deleted[partition as usize];
        self.readers.iter().all(|reader| reader.reached(partition) >= end || end <= deleted)
    }

    /// Whether nothing is left to do, and every partition takes appends.
    pub(super) fn finished(&self) -> bool {
        let writable = |partition: Partition| {
            let Some(open) = self.range_of(partition).open() else { return false };
            let node = (0..self.nodes.len()).find(|node| self.me(*node) == open.primary);
            let head = node.and_then(|node| self.nodes[node].head_of(partition));
            head.is_some_and(|head| {
                let (loglet, sequencer) = head.active();
                let fenced = self.leaves[&loglet].is_fenced();
                loglet == open.loglet && head.phase() == Phase::Open && sequencer.issuing() && !fenced
            })
        };
        self.running().is_none()
            && self.clients.iter().all(|client| client.done())
            && self.transactional.as_ref().is_none_or(|one| one.finished())
            && self.drivers.iter().all(Option::is_none)
            && (0..PARTITIONS).all(writable)
            && (0..PARTITIONS).all(|partition| self.read_to_the_end(partition))
    }
}
