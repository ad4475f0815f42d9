//! A range's state from its recorded log: fences what is open, folds what is sealed. Thin drivers over the pure fold.

use super::Inner;
use crate::codec::entry::{CHECKPOINT_LAST, EntryKind};
use crate::control::command::Ended;
use crate::control::state::Range;
use crate::drive::{LogDrive, ScanQuery, SealId};
use crate::range::fold::{Fold, FoldError, LogSummary, SealedSegment, Step, next_to_read};
use crate::range::read::load;
use crate::range::segment::Segment;
use crate::range::state::RangeState;
use crate::types::Address;
use crate::virtual_log::chain::ChainEntry;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SCAN_ENTRIES: usize = 4096;

impl Inner {
    /// Fences the open segment of a range and says where it ends. The caller records it.
    pub(super) async fn seal(&self, range: &Range) -> Result<Ended, String> {
        let entry = range.open().ok_or_else(|| format!("range {} has no open segment", range.id))?;
        let drive = self.storage.open(entry.loglet, &entry.drive).map_err(|e| e.to_string())?;
        let by = SealId { node: self.node(), pass: self.seal_passes.fetch_add(1, Ordering::Relaxed) };
        let answer = drive.fence(entry.window, by).await.map_err(|e| e.to_string())?;
        Ok(Ended::at(entry.loglet, answer.contiguous()))
    }

    /// Segments of a range that are sealed, with their drives; `ended` is the end of the open one if it was sealed just
    /// now and is not in `range` yet.
    pub(super) fn sealed_segments(
        &self,
        range: &Range,
        ended: Option<&Ended>,
    ) -> Result<Vec<Arc<Segment>>, String> {
        let tail_of = |entry: &ChainEntry| {
            entry.tail.or_else(|| ended.filter(|e| e.loglet == entry.loglet).map(|e| e.tail))
        };
        range
            .chain
            .iter()
            .filter_map(|entry| tail_of(entry).map(|tail| (entry, tail)))
            .filter(|(_, tail)| *tail > Address(0))
            .map(|(entry, tail)| {
                let drive = self.storage.open(entry.loglet, &entry.drive).map_err(|e| e.to_string())?;
                Ok(Arc::new(Segment::new(entry.loglet, entry.base, drive, entry.opened_at, Some(tail))))
            })
            .collect()
    }

    /// The state of a range after its sealed segments.
    pub(super) async fn fold(&self, range: &Range, sealed: &[Arc<Segment>]) -> Result<RangeState, String> {
        let log = LogSummary {
            begins_at: range.chain.first().map_or(0, |entry| entry.base),
            sealed: sealed
                .iter()
                .map(|s| SealedSegment { loglet: s.loglet, tail: s.tail().unwrap_or(Address(0)) })
                .collect(),
            parents: range.parents.clone(),
        };
        let mut before = log.sealed.len();
        loop {
            match next_to_read(&log, before) {
                Step::Segment { index, segment } => {
                    let Some(found) = sealed.get(index) else { return Err("segment list changed".into()) };
                    if let Some(state) = fold_segment(&*found.drive, segment, range.span).await? {
                        return Ok(state);
                    }
                    before = index;
                }
                Step::Blank => return Ok(RangeState::new(range.span)),
                Step::Parents(parents) => {
                    return Err(format!(
                        "its state is in parents {parents:?}, which this version does not fold"
                    ));
                }
                Step::Lost if !sealed.iter().any(|s| s.drive.caps().durable) => {
                    tracing::warn!(range = %range.id, "a range of memory drives starts empty: its records went with the process");
                    return Ok(RangeState::new(range.span));
                }
                Step::Lost => {
                    return Err(
                        "older segments were dropped and no checkpoint is left; its numbering is lost".into(),
                    );
                }
            }
        }
    }
}

/// Folds a segment from its newest complete checkpoint; `None` when it holds none.
async fn fold_segment(
    drive: &dyn LogDrive,
    segment: SealedSegment,
    span: crate::types::Span,
) -> Result<Option<RangeState>, String> {
    let found = drive.last_of(EntryKind::Checkpoint, CHECKPOINT_LAST, segment.tail).await;
    let Some(mut last_piece) = found.map_err(|e| e.to_string())? else { return Ok(None) };
    loop {
        let piece = payload_at(drive, last_piece).await?;
        let fold = Fold::begin(segment, span, &piece, last_piece).map_err(|e| e.to_string())?;
        match run(drive, segment, fold).await? {
            Ok(state) => return Ok(Some(state)),
            Err(FoldError::NewerCheckpoint { last_piece: newer, .. }) => last_piece = newer,
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn run(
    drive: &dyn LogDrive,
    segment: SealedSegment,
    mut fold: Fold,
) -> Result<Result<RangeState, FoldError>, String> {
    let mut from = fold.from();
    while from < segment.tail {
        let query = ScanQuery { from, below: segment.tail, max_entries: SCAN_ENTRIES };
        let page = drive.scan(query).await.map_err(|e| e.to_string())?;
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
    Ok(fold.finish())
}

async fn payload_at(drive: &dyn LogDrive, address: Address) -> Result<Bytes, String> {
    let query = ScanQuery { from: address, below: address.plus(1), max_entries: 1 };
    let mut page = drive.scan(query).await.map_err(|e| e.to_string())?;
    let stored = page.pop().ok_or_else(|| format!("no entry at {address}"))?;
    payload(stored.payload).await
}

async fn payload(payload: crate::drive::Payload) -> Result<Bytes, String> {
    load(payload).await.map_err(|e| e.to_string())
}
