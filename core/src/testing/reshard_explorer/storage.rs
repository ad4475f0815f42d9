//! Leaves: one disk's copy of a loglet, with the writes that are on their way to it, and the drive that takes them.

use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::drive::Run;
use crate::range::fold::{Fold, FoldError, SealedSegment};
use crate::range::state::RangeState;
use crate::store::registers::{Registers, Slot};
use crate::testing::write_only::Takes;
use crate::types::{Address, Primary, Span};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub(super) type Written = (EntryHeader, Bytes);

/// See the module head.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) writer: Primary,
    pub(super) registers: Registers,
    pub(super) entries: BTreeMap<u64, Written>,
    /// Runs on their way, by their first address.
    pub(super) underway: BTreeMap<u64, Arc<[Written]>>,
    /// Answers on their way back: how many entries, and whether they are stored.
    pub(super) answers: BTreeMap<u64, (u32, bool)>,
}

impl Leaf {
    pub(super) fn of(writer: Primary) -> Leaf {
        Leaf {
            writer,
            registers: Registers::default(),
            entries: BTreeMap::new(),
            underway: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// A run arrives: stored whole, or refused by the fence. Answered when `answered`.
    pub(super) fn arrive(&mut self, first: u64, answered: bool) -> Option<()> {
        let run = self.underway.remove(&first)?;
        let sealed = run.iter().any(|(h, _)| self.registers.write_meets(h.address.0) == Slot::Sealed);
        if !sealed {
            for (header, payload) in run.iter() {
                self.registers.set(header.address.0);
                self.entries.insert(header.address.0, (*header, payload.clone()));
            }
        }
        if answered {
            self.answers.insert(first, (run.len() as u32, !sealed));
        }
        Some(())
    }

    /// Entries from 0 without a hole: what a seal would record now.
    pub(super) fn contiguous(&self) -> u64 {
        self.registers.tail(u32::MAX).contiguous().0
    }

    /// Folds the sealed leaf from its newest checkpoint, as recovery does.
    pub(super) fn fold(&self, segment: SealedSegment, span: Span) -> Result<Option<RangeState>, String> {
        let below = || self.entries.range(..segment.tail.0);
        let checkpoints = below().filter(|(_, (h, _))| h.kind == EntryKind::Checkpoint);
        let Some((at, (_, piece))) = checkpoints.last() else { return Ok(None) };
        let failed = |error: FoldError| error.to_string();
        let mut fold = Fold::begin(segment, span, piece, Address(*at)).map_err(failed)?;
        for (_, (header, payload)) in below().filter(|(at, _)| **at >= fold.from().0).collect::<Vec<_>>() {
            fold.push(header, payload).map_err(failed)?;
        }
        fold.finish().map(Some).map_err(failed)
    }

    pub(super) fn identify(&self, into: &mut impl Hasher) {
        let one = |(header, payload): &Written, into: &mut dyn Hasher| {
            let EntryHeader { kind, partition, base_offset, leader_epoch, first_timestamp, .. } = header;
            into.write_u8(*kind as u8);
            into.write_i32(*partition);
            into.write_i64(*base_offset);
            into.write_i32(*leader_epoch);
            into.write_i64(*first_timestamp);
            into.write(payload);
        };
        (self.writer, &self.registers, &self.answers).hash(into);
        for (at, entry) in &self.entries {
            at.hash(into);
            one(entry, into);
        }
        for (at, run) in &self.underway {
            at.hash(into);
            run.iter().for_each(|entry| one(entry, into));
        }
    }
}

/// The drive of every segment: keeps what is submitted until the step's end, when it is on its way to the leaf.
#[derive(Default)]
pub(super) struct Outbox(Mutex<Vec<Run>>);

impl Outbox {
    pub(super) fn take(&self) -> Vec<Arc<[Written]>> {
        let runs = std::mem::take(&mut *self.0.lock());
        let written = |entry: &Entry| {
            let records = matches!(entry.header.kind, EntryKind::Data);
            (entry.header, if records { Bytes::new() } else { entry.body.clone() })
        };
        runs.iter().map(|run| run.entries.iter().map(written).collect()).collect()
    }
}

impl Takes for Outbox {
    fn take_run(&self, run: Run) {
        self.0.lock().push(run);
    }
}
