//! What each segment holds of a range's partitions: differences of where the partitions stood when segments began.

use crate::drive::ScanQuery;
use crate::error::ReadFailure;
use crate::range::lineage::overlap;
use crate::range::primary::RangePrimary;
use crate::range::retention::{Part, SegmentView};
use crate::range::segment::{Segment, Start};
use crate::types::{Address, Partition, RangeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Headers that are counted at a time.
const SCAN_ENTRIES: usize = 4096;

impl RangePrimary {
    /// The segments of the range's partitions, its ancestors' too, oldest first, each with what it holds of these
    /// partitions. The first look at a segment reads its first checkpoint.
    ///
    /// Errors: `Storage`, a first checkpoint cannot be read.
    pub async fn parts(&self, now_ms: i64) -> Result<Vec<(Arc<Segment>, Vec<Part>)>, ReadFailure> {
        let segments = self.segments();
        // Of each partition: where it stood when the next segment of its history began, and when that was.
        let mut next: Vec<(Start, i64)> = self.ends().iter().map(|end| (*end, now_ms)).collect();
        let mut found = Vec::with_capacity(segments.len());
        for segment in segments.iter().rev() {
            let Some(shared) = overlap(segment.owner.span, self.span) else { continue };
            let starts = self.starts_of(segment).await?;
            let kept = if segment.compacted { Some(self.kept_in(segment).await?) } else { None };
            let mut parts = Vec::new();
            for partition in shared.iter() {
                let from = segment.owner.span.index(partition).and_then(|at| starts.get(at)).copied();
                let to = self.span.index(partition).and_then(|at| next.get_mut(at));
                if let (Some(from), Some(to)) = (from, to) {
                    let kept = kept.as_ref().and_then(|kept| kept.get(segment.owner.span.index(partition)?));
                    let found = part(partition, &from, &to.0, to.1);
                    parts.extend(
                        found.map(|found| Part { bytes: kept.copied().unwrap_or(found.bytes), ..found }),
                    );
                    *to = (from, segment.opened_at);
                }
            }
            found.push((segment.clone(), parts));
        }
        found.reverse();
        Ok(found)
    }

    /// Payload bytes of its owner's partitions in a compacted segment: from memory, else counted.
    async fn kept_in(&self, segment: &Segment) -> Result<Arc<[u64]>, ReadFailure> {
        if let Some(kept) = segment.kept() {
            return Ok(kept);
        }
        let mut kept = vec![0u64; segment.owner.span.count()];
        let (mut from, below) = (Address(0), segment.tail().unwrap_or(Address(0)));
        loop {
            let query = ScanQuery { from, below, max_entries: SCAN_ENTRIES };
            let page = segment.drive.scan_heads(query).await;
            let page = page.map_err(|e| ReadFailure::Storage(format!("segment {}: {e}", segment.loglet)))?;
            let Some(last) = page.last() else { break };
            from = last.header.address.plus(1);
            for stored in &page {
                let at = segment.owner.span.index(stored.header.partition);
                if let Some(bytes) = at.and_then(|at| kept.get_mut(at)) {
                    *bytes = bytes.saturating_add(u64::from(stored.header.payload_len));
                }
            }
        }
        let kept: Arc<[u64]> = kept.into();
        segment.note_kept(kept.clone());
        Ok(kept)
    }

    /// Payload bytes of the range's partitions by the range that wrote them, in all segments that are left. What lies in
    /// segments of which nothing was read yet counts as the older neighbour's, and is left out where there is none.
    pub fn stored(&self) -> BTreeMap<RangeId, u64> {
        let mut stored = BTreeMap::new();
        let mut next: Vec<u64> = self.ends().iter().map(|end| end.bytes).collect();
        for segment in self.segments().iter().rev() {
            let Some(shared) = overlap(segment.owner.span, self.span) else { continue };
            for partition in shared.iter() {
                let to = self.span.index(partition).and_then(|at| next.get_mut(at));
                if let (Some(from), Some(to)) = (segment.start(partition), to) {
                    let kept = segment.kept();
                    let kept = kept.and_then(|kept| kept.get(segment.owner.span.index(partition)?).copied());
                    *stored.entry(segment.owner.range).or_default() +=
                        kept.unwrap_or(to.saturating_sub(from.bytes));
                    *to = from.bytes;
                }
            }
        }
        stored
    }
}

/// The segments of a topic, by the ranges that wrote them, with what each holds of all the partitions that were looked
/// at: put together from what the ranges of today see of their histories.
#[derive(Debug, Default)]
pub struct Holdings(BTreeMap<RangeId, BTreeMap<u64, (Arc<Segment>, SegmentView)>>);

impl Holdings {
    /// Adds what one range sees, as [`RangePrimary::parts`] gives it.
    pub fn add(&mut self, seen: Vec<(Arc<Segment>, Vec<Part>)>) {
        for (segment, parts) in seen {
            let of_owner = self.0.entry(segment.owner.range).or_default();
            let (_, view) = of_owner.entry(segment.base).or_insert_with(|| {
                let (loglet, sealed) = (segment.loglet, segment.tail().is_some());
                (segment, SegmentView { loglet, sealed, parts: Vec::new() })
            });
            view.parts.extend(parts);
        }
    }

    /// What is known of the segments that a range wrote, oldest first.
    pub fn views(&self, range: RangeId) -> Vec<SegmentView> {
        self.0.get(&range).into_iter().flat_map(BTreeMap::values).map(|(_, view)| view.clone()).collect()
    }

    /// The segments that a range wrote, oldest first.
    pub fn segments(&self, range: RangeId) -> impl Iterator<Item = &Arc<Segment>> {
        self.0.get(&range).into_iter().flat_map(BTreeMap::values).map(|(segment, _)| segment)
    }
}

/// What a segment holds of a partition that stood at `from` when it began and at `to` when it ended.
fn part(partition: Partition, from: &Start, to: &Start, ended_at: i64) -> Option<Part> {
    (to.offset > from.offset).then(|| Part {
        partition,
        first: from.offset,
        next: to.offset,
        bytes: to.bytes.saturating_sub(from.bytes),
        // A maximum that did not grow here belongs to older records: then these are no newer than the segment's end.
        max_timestamp: if to.max_timestamp > from.max_timestamp {
            to.max_timestamp
        } else {
            to.max_timestamp.min(ended_at)
        },
        appended_at: ended_at,
    })
}
