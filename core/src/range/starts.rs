//! Where partitions stood when a segment began: as its first checkpoint says. Where that cannot be read, as the segment's
//! entries and the beginning of the next one tell, so that a damaged checkpoint costs no record (decision 0012).

use crate::codec::entry::{CHECKPOINT_LAST, EntryKind};
use crate::drive::{ReadError, ScanQuery};
use crate::error::ReadFailure;
use crate::range::checkpoint;
use crate::range::lineage;
use crate::range::primary::RangePrimary;
use crate::range::read::{load, unreadable};
use crate::range::segment::{Seen, Segment, Start};
use crate::types::{Address, Partition};
use bytes::Bytes;
use std::sync::Arc;

/// Headers that are looked at at a time.
const SCAN_ENTRIES: usize = 4096;

impl RangePrimary {
    /// Where `partition` stood when the segment at place `at` of its history began; `None` for one of another range.
    ///
    /// Where the first checkpoint cannot be read the offset is that of the segment's first readable entry, and all values
    /// are bounds from above: a list that begins in the segment before misses nothing.
    pub(super) async fn began(
        &self,
        segments: &[Arc<Segment>],
        at: usize,
        partition: Partition,
    ) -> Option<Start> {
        let mut passed = Seen::default();
        let mut place = Some(at);
        while let Some((at, segment)) = place.and_then(|at| Some((at, segments.get(at)?))) {
            let index = segment.owner.span.index(partition)?;
            if let Ok(starts) = self.starts_of(segment).await {
                return Some(bounded(starts.get(index)?, passed));
            }
            let seen = look(segment).await.get(index).copied()?;
            passed =
                Seen { first: passed.first.or(seen.first), bytes: passed.bytes.saturating_add(seen.bytes) };
            place = lineage::next_of(segments, at + 1, partition);
        }
        Some(bounded(self.ends().get(self.span.index(partition)?)?, passed))
    }

    /// Where the partitions of its owner stood when `segment` began: from memory, else from its first checkpoint.
    ///
    /// Errors: the checkpoint cannot be read; see [`RangePrimary::began`].
    pub(super) async fn starts_of(&self, segment: &Arc<Segment>) -> Result<Arc<[Start]>, ReadFailure> {
        if let Some(starts) = segment.starts() {
            return Ok(starts);
        }
        let bad = |e| unreadable(self, segment, e);
        let below = segment.tail().unwrap_or(Address(0));
        let pieces = read_checkpoint(segment, Address(0), below).await.map_err(bad)?;
        let captured = checkpoint::decode(&pieces)
            .map_err(|e| bad(ReadError::Damaged(format!("first checkpoint: {e}"))))?;
        let (span, expected) = (captured.state.span(), segment.owner.span);
        if span != expected {
            return Err(bad(ReadError::Damaged(format!(
                "first checkpoint of partitions {} to {}, expected {} to {}",
                span.first, span.last, expected.first, expected.last
            ))));
        }
        let starts: Arc<[Start]> = captured
            .state
            .partitions()
            .map(|(_, p)| Start { offset: p.next, bytes: p.bytes, max_timestamp: p.max_timestamp })
            .collect();
        segment.note_starts(starts.clone());
        Ok(starts)
    }
}

/// Where a partition stood when a segment began, of whose entries `seen` is known, and after which it stood at `next`.
pub(super) fn bounded(next: &Start, seen: Seen) -> Start {
    Start {
        offset: seen.first.map_or(next.offset, |first| first.min(next.offset)),
        bytes: next.bytes.saturating_sub(seen.bytes),
        max_timestamp: next.max_timestamp,
    }
}

/// What the readable entries of a segment say of its owner's partitions. Reads all headers, once.
pub(super) async fn look(segment: &Segment) -> Arc<[Seen]> {
    segment.seen(look_at_all(segment)).await
}

async fn look_at_all(segment: &Segment) -> Arc<[Seen]> {
    let mut seen = vec![Seen::default(); segment.owner.span.count()];
    let (mut from, below) = (Address(0), segment.tail().unwrap_or(Address(0)));
    while from < below {
        let page = segment.drive.scan_heads(ScanQuery { from, below, max_entries: SCAN_ENTRIES }).await;
        let Ok(page) = page else {
            let Some(next) = readable_after(segment, from, below).await else { break };
            from = next;
            continue;
        };
        let Some(last) = page.last() else { break };
        from = last.header.address.plus(1);
        for stored in &page {
            let at = segment.owner.span.index(stored.header.partition);
            if let Some(of) = at.and_then(|at| seen.get_mut(at)) {
                of.first.get_or_insert(stored.header.base_offset);
                of.bytes = of.bytes.saturating_add(u64::from(stored.header.payload_len));
            }
        }
    }
    seen.into()
}

/// The first address above `bad` from which on something can be read, looked for in growing steps: exact when one run of
/// addresses is unreadable.
async fn readable_after(segment: &Segment, bad: Address, below: Address) -> Option<Address> {
    let reads = async |at: u64| {
        let query = ScanQuery { from: Address(at), below, max_entries: 1 };
        segment.drive.scan_heads(query).await.is_ok()
    };
    let (mut low, mut step) = (bad.0, 1);
    let mut high = loop {
        let at = bad.0.saturating_add(step).min(below.0);
        if at == below.0 {
            break at;
        }
        if reads(at).await {
            break at;
        }
        (low, step) = (at, step * 2);
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if reads(middle).await {
            high = middle;
        } else {
            low = middle;
        }
    }
    (high < below.0).then_some(Address(high))
}

/// The pieces of the checkpoint whose first entry is at `first`.
///
/// Errors: `Damaged` when an entry between is none of a checkpoint or missing.
pub async fn read_checkpoint(
    segment: &Segment,
    first: Address,
    below: Address,
) -> Result<Vec<Bytes>, ReadError> {
    let mut pieces = Vec::new();
    let mut from = first;
    loop {
        let page = segment.drive.scan(ScanQuery { from, below, max_entries: 64 }).await?;
        if page.is_empty() {
            return Err(ReadError::Damaged(format!(
                "segment {}: checkpoint at {first} has no end",
                segment.loglet
            )));
        }
        for stored in page {
            if stored.header.kind != EntryKind::Checkpoint || stored.header.address != from {
                return Err(ReadError::Damaged(format!(
                    "segment {}: no checkpoint entry at {from}",
                    segment.loglet
                )));
            }
            let last = stored.header.flags & CHECKPOINT_LAST != 0;
            pieces.push(load(stored.payload).await?);
            from = from.plus(1);
            if last {
                return Ok(pieces);
            }
        }
    }
}
