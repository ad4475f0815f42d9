//! Leaves: a loglet on one disk, or on three of which two must hold what is acknowledged, with the writes that are on their way to each
//! copy, and the drive that takes them.

use crate::codec::entry::{Entry, EntryHeader, EntryKind};
use crate::control::command::Ended;
use crate::drive::merge::{quorum_merge, quorum_thin};
use crate::drive::{Run, TailDesc};
use crate::loglet::sealer::{SealCommand, Sealer};
use crate::range::fold::{Fold, FoldError, SealedSegment};
use crate::range::state::RangeState;
use crate::store::registers::{Registers, Slot};
use crate::testing::write_only::Takes;
use crate::types::{Address, Primary, Span};
use crate::virtual_log::chain::ChainEntry;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub(super) type Written = (EntryHeader, Bytes);

/// A run on its way: the copies that it has not reached, those that stored it, those that are fenced.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    run: Arc<[Written]>,
    pub(super) left: Vec<u8>,
    stored: u8,
    refused: u8,
    /// Whether it is decided.
    told: bool,
}

/// See the module head.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) writer: Primary,
    /// What each copy holds.
    copies: Vec<Registers>,
    /// What any of them does: an address never has two values.
    pub(super) entries: BTreeMap<u64, Written>,
    /// Runs on their way, by their first address.
    pub(super) underway: BTreeMap<u64, Flight>,
    /// Answers on their way back: how many entries, and whether they are stored.
    pub(super) answers: BTreeMap<u64, (u32, bool)>,
}

impl Leaf {
    pub(super) fn of(writer: Primary, copies: usize) -> Leaf {
        Leaf {
            writer,
            copies: vec![Registers::default(); copies],
            entries: BTreeMap::new(),
            underway: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    pub(super) fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Copies that must hold what is acknowledged.
    fn write_quorum(&self) -> usize {
        self.copies.len() / 2 + 1
    }

    /// A run is on its way to all copies.
    pub(super) fn submit(&mut self, first: u64, run: Arc<[Written]>) {
        let left = (0..self.copies.len() as u8).collect();
        self.underway.insert(first, Flight { run, left, stored: 0, refused: 0, told: false });
    }

    /// A run arrives at a copy: stored whole, or refused by the fence. Told, when `answered`, once that decides.
    pub(super) fn arrive(&mut self, first: u64, copy: u8, answered: bool) -> Option<()> {
        let (write, copies) = (self.write_quorum(), self.copies.len());
        let flight = self.underway.get_mut(&first)?;
        let registers = &mut self.copies[usize::from(copy)];
        flight.left.retain(|left| *left != copy);
        if flight.run.iter().any(|(h, _)| registers.write_meets(h.address.0) == Slot::Sealed) {
            flight.refused += 1;
        } else {
            flight.stored += 1;
            for (header, payload) in flight.run.iter() {
                registers.set(header.address.0);
                self.entries.insert(header.address.0, (*header, payload.clone()));
            }
        }
        let decided = match (usize::from(flight.stored), usize::from(flight.refused)) {
            (stored, _) if stored == write => Some(true),
            (_, refused) if refused == copies - write + 1 => Some(false),
            _ => None,
        };
        let (len, over) = (flight.run.len() as u32, flight.left.is_empty());
        if let Some(stored) = decided.filter(|_| !flight.told) {
            flight.told = true;
            if answered {
                self.answers.insert(first, (len, stored));
            }
        }
        if over {
            self.underway.remove(&first);
        }
        Some(())
    }

    /// Whether no write can be acknowledged any more.
    pub(super) fn is_fenced(&self) -> bool {
        let open = self.copies.iter().filter(|copy| !copy.is_fenced()).count();
        open < self.write_quorum()
    }

    /// Entries from 0 without a hole by the answers of all copies but one: what a seal would record.
    fn merged(&self, window: u32, without: u8) -> (TailDesc, Vec<TailDesc>) {
        let asked =
            (0..self.copies.len()).filter(|copy| self.copies.len() == 1 || *copy != usize::from(without));
        let answers: Vec<TailDesc> = asked.map(|copy| self.copies[copy].tail(window)).collect();
        let merged = quorum_merge(self.copies.len(), self.write_quorum(), window, &answers);
        (merged.expect("a seal quorum"), answers)
    }

    /// What a seal would record now at least.
    pub(super) fn contiguous(&self) -> u64 {
        let each =
            (0..self.copies.len() as u8).map(|without| self.merged(u32::MAX, without).0.contiguous().0);
        each.min().unwrap_or(0)
    }

    /// A whole pass of the sealer over all copies but one, up to what it wants recorded: what lies below the tail is on all of
    /// these by then.
    pub(super) fn seal(&mut self, version: u64, open: &ChainEntry, without: u8) -> Result<Ended, String> {
        let mut pass = Sealer::new(version, Address(0));
        loop {
            let (merged, _) = self.merged(open.window, without);
            match pass.command() {
                SealCommand::Probe => pass.probed(Ok(merged)),
                SealCommand::Fence => {
                    let alone = self.copies.len() == 1;
                    let asked = |copy: &usize| alone || *copy != usize::from(without);
                    for copy in (0..self.copies.len()).filter(asked) {
                        self.copies[copy].fence();
                        if merged.contiguous().0 > 0 {
                            self.copies[copy].set_run(0, merged.contiguous().0);
                        }
                    }
                    let (_, answers) = self.merged(open.window, without);
                    let thin = quorum_thin(self.write_quorum(), open.window, &answers, merged.contiguous().0);
                    pass.fenced(Ok(merged), &thin);
                }
                SealCommand::Repair => pass.repaired(),
                SealCommand::Record(record) => {
                    return Ok(Ended { degraded: record.degraded, ..Ended::at(open.loglet, record.tail) });
                }
                SealCommand::Finished(end) => return Err(format!("{end:?}")),
            }
        }
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
        (self.writer, &self.copies, &self.answers).hash(into);
        for (at, entry) in &self.entries {
            at.hash(into);
            one(entry, into);
        }
        for (at, Flight { run, left, stored, refused, .. }) in &self.underway {
            (at, left, stored, refused).hash(into);
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
