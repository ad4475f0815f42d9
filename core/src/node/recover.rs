//! Fences what is open, folds what is sealed: one segment at a time. Thin drivers over the pure seal pass and fold.

use super::Inner;
use crate::codec::entry::{CHECKPOINT_LAST, Entry, EntryKind};
use crate::control::command::Ended;
use crate::control::state::Range;
use crate::drive::{LogDrive, Read, ScanQuery, SealId};
use crate::loglet::repair::Repair;
use crate::loglet::sealer::{SealCommand, SealEnd, SealRecord, Sealer};
use crate::range::fold::{Fold, FoldError, SealedSegment};
use crate::range::primary::Base;
use crate::range::read::load;
use crate::range::state::RangeState;
use crate::types::Address;
use bytes::{Bytes, BytesMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

const REPAIR_MAX: Duration = Duration::from_secs(10);
pub(super) const SCAN_ENTRIES: usize = 4096;

impl Inner {
    /// Fences the open segment of a range and says where it ends. The caller records it.
    pub(super) async fn seal(&self, range: &Range) -> Result<Ended, String> {
        let entry = range.open().ok_or_else(|| format!("range {} has no open segment", range.id))?;
        let drive = self.storage.open(entry.loglet, &entry.drive).map_err(|e| e.to_string())?;
        if let Some(lost) = self.storage.lost(entry.loglet, &entry.drive) {
            return Err(lost);
        }
        let by = SealId { node: self.node(), pass: self.seal_passes.fetch_add(1, Ordering::Relaxed) };
        let end = seal_pass(&*drive, range.version, entry.window, by).await?;
        if let Some((from, to)) = end.degraded {
            // A start says it of all together; the control state has it.
            tracing::debug!(segment = %entry.loglet, %from, %to, "sealed with fewer copies than its write quorum");
        }
        Ok(Ended { degraded: end.degraded, ..Ended::at(entry.loglet, end.tail) })
    }
}

/// A seal pass up to what it wants recorded: probe, fence, repair within a time.
pub(super) async fn seal_pass(
    drive: &dyn LogDrive,
    version: u64,
    window: u32,
    by: SealId,
) -> Result<SealRecord, String> {
    let mut pass = Sealer::new(version, Address(0));
    loop {
        match pass.command() {
            SealCommand::Probe => pass.probed(drive.weak_tail(window).await),
            SealCommand::Fence => {
                let answer = drive.fence(window, by).await;
                pass.fenced(answer, &drive.thin());
            }
            SealCommand::Repair => {
                let tail = drive.fence(window, by).await.map_err(|e| e.to_string())?.contiguous();
                let copying = copy_thin(drive, pass.repair(), tail, by);
                if tokio::time::timeout(REPAIR_MAX, copying).await.is_err() {
                    tracing::debug!("repair of a sealed segment took too long; what is left stays degraded");
                }
                pass.repaired();
            }
            SealCommand::Record(record) => return Ok(record),
            SealCommand::Finished(SealEnd::Recorded { tail }) => {
                return Ok(SealRecord { version, tail, degraded: None });
            }
            SealCommand::Finished(SealEnd::Unreachable(why)) => return Err(why),
            SealCommand::Finished(SealEnd::BelowCommitted { tail, committed }) => {
                return Err(format!("the drive ends at {tail}, below the acknowledged {committed}"));
            }
        }
    }
}

/// Gives addresses with too few copies their missing ones.
async fn copy_thin(drive: &dyn LogDrive, repair: &mut Repair, below: Address, by: SealId) {
    while let Some(address) = repair.next_copy() {
        let outcome = copy_one(drive, address, below, by).await;
        if let Err(error) = &outcome {
            tracing::debug!(%address, error, "entry not copied");
        }
        repair.copied(address, outcome);
    }
}

async fn copy_one(drive: &dyn LogDrive, address: Address, below: Address, by: SealId) -> Result<(), String> {
    let stored = match drive.read(address).await.map_err(|e| e.to_string())? {
        Read::Value(stored) => stored,
        Read::Trimmed | Read::Gone { .. } => return Ok(()),
        Read::Hole => return Err("no copy is readable".into()),
    };
    let bytes = load(stored.payload).await.map_err(|e| e.to_string())?;
    let covered = stored.header.covered_len().min(bytes.len());
    let mut head = BytesMut::from(&stored.header.encode(&bytes[..covered])[..]);
    let patched = if stored.header.kind == EntryKind::Data { covered } else { 0 };
    head.extend_from_slice(&bytes[..patched]);
    let entry = Entry { header: stored.header, head: head.freeze(), body: bytes.slice(patched..) };
    drive.repair(address, entry, below, by).await.map_err(|e| e.to_string())
}

/// Folds a segment from its newest complete checkpoint, which is told too; `None` when it holds none.
pub(super) async fn fold_segment(
    drive: &dyn LogDrive,
    segment: SealedSegment,
    span: crate::types::Span,
) -> Result<Option<(RangeState, Base)>, String> {
    let found = drive.last_of(EntryKind::Checkpoint, CHECKPOINT_LAST, segment.tail).await;
    let Some(mut last_piece) = found.map_err(|e| e.to_string())? else { return Ok(None) };
    loop {
        let piece = payload_at(drive, last_piece).await?;
        let fold = Fold::begin(segment, span, &piece, last_piece).map_err(|e| e.to_string())?;
        match run(drive, segment, fold).await? {
            Ok(folded) => return Ok(Some(folded)),
            Err(FoldError::NewerCheckpoint { last_piece: newer, .. }) => last_piece = newer,
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn run(
    drive: &dyn LogDrive,
    segment: SealedSegment,
    mut fold: Fold,
) -> Result<Result<(RangeState, Base), FoldError>, String> {
    let mut from = fold.from();
    while from < segment.tail {
        let query = ScanQuery { from, below: segment.tail, max_entries: SCAN_ENTRIES };
        let page = drive.scan_heads(query).await.map_err(|e| e.to_string())?;
        if page.is_empty() {
            return Err(format!(
                "segment {}: no entry at {from}, below its tail {}",
                segment.loglet, segment.tail
            ));
        }
        for stored in page {
            let payload = if Fold::needs_payload(stored.header.kind) {
                payload(stored.payload).await?
            } else {
                Bytes::new()
            };
            if let Err(error) = fold.push(&stored.header, &payload) {
                return Ok(Err(error));
            }
            from = stored.header.address.plus(1);
        }
    }
    let base = Base { loglet: segment.loglet, log_starts: fold.log_starts() };
    Ok(fold.finish().map(|state| (state, base)))
}

pub(super) async fn payload_at(drive: &dyn LogDrive, address: Address) -> Result<Bytes, String> {
    let query = ScanQuery { from: address, below: address.plus(1), max_entries: 1 };
    let mut page = drive.scan(query).await.map_err(|e| e.to_string())?;
    let stored = page.pop().ok_or_else(|| format!("no entry at {address}"))?;
    payload(stored.payload).await
}

pub(super) async fn payload(payload: crate::drive::Payload) -> Result<Bytes, String> {
    load(payload).await.map_err(|e| e.to_string())
}
