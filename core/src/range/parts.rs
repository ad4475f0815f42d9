//! What each segment holds of a range's partitions: differences of where the partitions stood when segments began.

use crate::range::lineage::overlap;
use crate::range::primary::RangePrimary;
use crate::range::retention::{Part, SegmentView};
use crate::range::segment::{Segment, Start};
use crate::range::starts::{bounded, look};
use crate::types::{Partition, RangeId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl RangePrimary {
    /// The segments of the range's partitions, its ancestors' too, oldest first, each with what it holds of these
    /// partitions. The first look at a segment reads its first checkpoint; where that is damaged, the headers of all its
    /// entries, and what cannot be told counts as held by the segment before.
    pub async fn parts(&self, now_ms: i64) -> Vec<(Arc<Segment>, Vec<Part>)> {
        let segments = self.segments();
        // Of each partition: where it stood when the next segment of its history began, and when that was.
        let mut next: Vec<(Start, i64)> = self.ends().iter().map(|end| (*end, now_ms)).collect();
        let mut found = Vec::with_capacity(segments.len());
        for segment in segments.iter().rev() {
            let Some(shared) = overlap(segment.owner.span, self.span) else { continue };
            let starts = self.starts_of(segment).await.ok();
            if segment.compacted && segment.kept().is_none() {
                segment.note_kept(look(segment).await.iter().map(|seen| seen.bytes).collect());
            }
            let kept = if segment.compacted { segment.kept() } else { None };
            let seen = if starts.is_none() { Some(look(segment).await) } else { None };
            let mut parts = Vec::new();
            for partition in shared.iter() {
                let to = self.span.index(partition).and_then(|at| next.get_mut(at));
                let (Some(at), Some(to)) = (segment.owner.span.index(partition), to) else { continue };
                let told = starts.as_ref().and_then(|starts| starts.get(at)).copied();
                let seen = seen.as_ref().and_then(|seen| seen.get(at));
                let from = told.unwrap_or_else(|| bounded(&to.0, seen.copied().unwrap_or_default()));
                let mut found = part(partition, &from, &to.0, to.1);
                if let Some(found) = &mut found {
                    if let Some(kept) = kept.as_ref().and_then(|kept| kept.get(at)) {
                        found.bytes = *kept;
                    }
                    if told.is_none() {
                        // Whose records have the largest timestamp is not known.
                        found.max_timestamp = to.0.max_timestamp;
                    }
                }
                parts.extend(found);
                *to = (from, segment.opened_at);
            }
            found.push((segment.clone(), parts));
        }
        found.reverse();
        found
    }

    /// Payload bytes of the range's partitions by the range that wrote them, in all segments that are left. What lies in
    /// segments of which nothing was read yet counts as the older neighbour's, and is left out where there is none.
    pub fn stored(&self) -> BTreeMap<RangeId, u64> {
        self.look_at_stored().0
    }

    /// The sum of [`stored`](RangePrimary::stored), if nothing is left to be read for it: [`parts`](RangePrimary::parts)
    /// reads all.
    pub fn stored_if_known(&self) -> Option<u64> {
        let (stored, known) = self.look_at_stored();
        known.then(|| stored.values().sum())
    }

    /// What is known of the stored bytes, and whether that is all.
    fn look_at_stored(&self) -> (BTreeMap<RangeId, u64>, bool) {
        let (mut stored, mut known) = (BTreeMap::new(), true);
        let mut next: Vec<u64> = self.ends().iter().map(|end| end.bytes).collect();
        for segment in self.segments().iter().rev() {
            let Some(shared) = overlap(segment.owner.span, self.span) else { continue };
            for partition in shared.iter() {
                let to = self.span.index(partition).and_then(|at| next.get_mut(at));
                let Some(to) = to else { continue };
                let seen = || Some(to.saturating_sub(segment.seen_of(partition)?.bytes));
                if let Some(from) = segment.start(partition).map(|from| from.bytes).or_else(seen) {
                    let kept = segment.kept();
                    let kept = kept.and_then(|kept| kept.get(segment.owner.span.index(partition)?).copied());
                    *stored.entry(segment.owner.range).or_default() +=
                        kept.unwrap_or(to.saturating_sub(from));
                    *to = from;
                } else {
                    known = false;
                }
            }
            known &= !segment.compacted || segment.kept().is_some();
        }
        (stored, known)
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
