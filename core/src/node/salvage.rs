//! What can still be read of a range whose log cannot be folded whole: the newest prefix that can (design 9).
//!
//! A fold that stops before the end gives lower bounds, never numbers to go on with: the range takes no appends, and its
//! readers get an error where the prefix ends, not the end of the log.

use super::Inner;
use super::recover::{SCAN_ENTRIES, payload, payload_at};
use super::topics::owner;
use crate::codec::entry::{CHECKPOINT_LAST, EntryKind};
use crate::control::state::{Range, Topic};
use crate::drive::spec::DriveSpec;
use crate::drive::{LogDrive, ScanQuery};
use crate::range::fold::{Fold, SealedSegment};
use crate::range::segment::Segment;
use crate::range::state::RangeState;
use crate::types::{Address, Span};
use std::sync::Arc;

/// Checkpoints of a segment that are tried, newest first.
const CHECKPOINTS_TRIED: usize = 64;

impl Inner {
    /// The state and the segments of a range that cannot be sealed now, if its end is sure all the same: nobody writes it in this
    /// process, and a later seal will find this end. Readers are told of it as of any other.
    ///
    /// Errors: why the end is not sure, or what cannot be read.
    pub(super) async fn read_still(
        &self,
        topic: &Topic,
        range: &Range,
    ) -> Result<(RangeState, Vec<Arc<Segment>>), String> {
        let mut own = self.sealed_segments(range, None)?;
        if let Some(open) = range.open() {
            let end = self.storage.still_end(open.loglet, &open.drive, open.window)?;
            if end > Address(0) {
                let drive = self.storage.open(open.loglet, &open.drive).map_err(|e| e.to_string())?;
                // Not shared: what seals it opens its own.
                let (loglet, base, opened_at) = (open.loglet, open.base, open.opened_at);
                own.push(Arc::new(Segment::new(owner(range), loglet, base, drive, opened_at, Some(end))));
            }
        }
        let state = self.fold_range(topic, range, &own).await?;
        Ok((state, self.history(topic, range, own)?))
    }

    /// The state and the segments of the longest prefix that can be read, those of the ranges that it came from among them;
    /// `None` where no checkpoint can be. Where none of its own can be, the prefix is what its parents ended with.
    pub(super) async fn salvage(
        &self,
        topic: &Topic,
        range: &Range,
    ) -> Option<(RangeState, Vec<Arc<Segment>>)> {
        let chain: Vec<_> =
            range.chain.iter().filter(|e| e.tail.is_some() || is_one_copy(&e.drive)).collect();
        for (at, entry) in chain.iter().enumerate().rev() {
            let Ok(drive) = self.storage.open(entry.loglet, &entry.drive) else { continue };
            let below = entry.tail.unwrap_or(Address(u64::MAX));
            let segment = SealedSegment { loglet: entry.loglet, tail: below };
            let Some((state, end)) = fold_prefix(&*drive, segment, range.span).await else { continue };
            let older = chain.iter().take(at).filter_map(|entry| {
                let drive = self.storage.open_sealed(entry.loglet, &entry.drive).ok()?;
                let (loglet, base, opened_at) = (entry.loglet, entry.base, entry.opened_at);
                let older = Segment::new(owner(range), loglet, base, drive, opened_at, entry.tail);
                Some(Arc::new(older.with_compacted(entry.sparse)))
            });
            let (loglet, base, opened_at) = (entry.loglet, entry.base, entry.opened_at);
            let last = Segment::new(owner(range), loglet, base, drive, opened_at, Some(end));
            let last = last.with_compacted(entry.sparse);
            let own: Vec<_> = older.chain([Arc::new(last)]).collect();
            return Some((state, self.history(topic, range, own.clone()).unwrap_or(own)));
        }
        if range.parents.is_empty() {
            return None;
        }
        let state = self.fold_range(topic, range, &[]).await.ok()?;
        Some((state, self.history(topic, range, Vec::new()).ok()?))
    }
}

/// Whether each address has one place, so that what is durable there stays in the log: with copies, a seal may find that
/// an entry of which one copy is left was never acknowledged.
fn is_one_copy(drive: &DriveSpec) -> bool {
    match drive {
        DriveSpec::Memory { .. } | DriveSpec::Disk { .. } => true,
        DriveSpec::Striped { children } => children.iter().all(is_one_copy),
        DriveSpec::Quorum { .. } => false,
    }
}

/// Folds a segment from its newest readable checkpoint as far as its entries can be read.
async fn fold_prefix(
    drive: &dyn LogDrive,
    segment: SealedSegment,
    span: Span,
) -> Option<(RangeState, Address)> {
    let mut below = segment.tail;
    for _ in 0..CHECKPOINTS_TRIED {
        let last_piece = drive.last_of(EntryKind::Checkpoint, CHECKPOINT_LAST, below).await.ok()??;
        if let Ok(piece) = payload_at(drive, last_piece).await
            && let Ok(fold) = Fold::begin(segment, span, &piece, last_piece)
            && let Some(found) = run(drive, fold, segment.tail).await
        {
            return Some(found);
        }
        below = last_piece;
    }
    None
}

async fn run(drive: &dyn LogDrive, mut fold: Fold, below: Address) -> Option<(RangeState, Address)> {
    let mut from = fold.from();
    'pages: while from < below {
        let query = ScanQuery { from, below, max_entries: SCAN_ENTRIES };
        let Ok(page) = drive.scan_heads(query).await else { break };
        if page.is_empty() {
            break;
        }
        for stored in page {
            let needed = Fold::needs_payload(stored.header.kind);
            let Ok(bytes) = (if needed { payload(stored.payload).await } else { Ok(Default::default()) })
            else {
                break 'pages;
            };
            if fold.push(&stored.header, &bytes).is_err() {
                break 'pages;
            }
            from = stored.header.address.plus(1);
        }
    }
    fold.so_far()
}
