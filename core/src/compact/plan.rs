//! Which segments of a topic are cleaned, and when. Pure.
//!
//! Ranges that came from one another share the histories of their partitions: a *family* is cleaned as one, its segments in
//! the order of (range, base), which is each partition's order. A segment that cannot be cleaned yet holds back all later ones
//! that share a partition with it, so that what is clean is always the beginning of a partition.

use crate::range::lineage::overlap;
use crate::types::{RangeId, Span};
use std::collections::BTreeMap;

/// A sealed segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Who wrote it.
    pub range: RangeId,
    /// Its partitions.
    pub span: Span,
    /// It was cleaned with all that is older.
    pub compacted: bool,
    /// No fold needs it, no copy of it is missing, and all of it is stable.
    pub free: bool,
    /// Payload bytes in it.
    pub bytes: u64,
    /// Its records are not older, broker ms.
    pub oldest: i64,
    /// Its records are not newer, ms.
    pub newest: i64,
}

/// When a topic is cleaned.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Above this share of dirty bytes, in millionths.
    pub dirty_ppm: u32,
    /// Records stay as they are for so long, ms.
    pub min_lag_ms: i64,
    /// Records are cleaned after so long whatever the share is, ms.
    pub max_lag_ms: i64,
}

/// What is to be cleaned: places in the list of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Segments that were not cleaned before.
    pub dirty: Vec<usize>,
    /// All that is to be written anew, the dirty ones included.
    pub targets: Vec<usize>,
}

/// Each range's family, named by its lowest range. `ranges` are all that are left, with their parents, ids ascending.
pub fn families<'a>(
    ranges: impl IntoIterator<Item = (RangeId, &'a [RangeId])>,
) -> BTreeMap<RangeId, RangeId> {
    let mut families: BTreeMap<RangeId, RangeId> = BTreeMap::new();
    for (id, parents) in ranges {
        let of: Vec<RangeId> = parents.iter().filter_map(|parent| families.get(parent).copied()).collect();
        let one = of.iter().copied().min().unwrap_or(id);
        families.values_mut().filter(|family| of.contains(family)).for_each(|family| *family = one);
        families.insert(id, one);
    }
    families
}

/// What of a family's segments, in their order, is to be cleaned at `now`; `None` while that is not worth it.
pub fn due(pieces: &[Piece], policy: &Policy, now: i64) -> Option<Due> {
    let mut due = Due::default();
    let mut held: Vec<Span> = Vec::new();
    let (mut clean, mut dirty, mut overdue) = (0u64, 0u64, false);
    for (at, piece) in pieces.iter().enumerate() {
        let young = policy.min_lag_ms > 0 && now.saturating_sub(piece.newest) < policy.min_lag_ms;
        let waits = !piece.free || (young && !piece.compacted);
        if waits || held.iter().any(|span| overlap(*span, piece.span).is_some()) {
            held.push(piece.span);
            continue;
        }
        due.targets.push(at);
        if piece.compacted {
            clean = clean.saturating_add(piece.bytes);
        } else {
            due.dirty.push(at);
            dirty = dirty.saturating_add(piece.bytes);
            overdue |= now.saturating_sub(piece.oldest) > policy.max_lag_ms;
        }
    }
    let share = u128::from(dirty) * 1_000_000
        > u128::from(policy.dirty_ppm) * (u128::from(clean) + u128::from(dirty));
    (!due.dirty.is_empty() && (overdue || share)).then_some(due)
}

/// The same with fewer dirty segments, the oldest half; `None` where there is one.
pub fn less(due: &Due, pieces: &[Piece]) -> Option<Due> {
    let half = due.dirty.len() / 2;
    let dirty: Vec<usize> = due.dirty.iter().take(half).copied().collect();
    let left_out = |at: &usize| pieces.get(*at).is_some_and(|piece| !piece.compacted) && !dirty.contains(at);
    let targets = due.targets.iter().filter(|at| !left_out(at)).copied().collect();
    (half > 0).then_some(Due { dirty, targets })
}

/// Targets that become one segment each: neighbours in one range's log, of at most `most` bytes as they are now.
pub fn groups(pieces: &[Piece], targets: &[usize], most: u64) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0u64;
    for &at in targets {
        let Some(piece) = pieces.get(at) else { continue };
        let follows = groups.last().and_then(|group| group.last()).is_some_and(|last| {
            last + 1 == at && pieces.get(*last).is_some_and(|before| before.range == piece.range)
        });
        bytes = bytes.saturating_add(piece.bytes);
        match groups.last_mut() {
            Some(group) if follows && bytes <= most => group.push(at),
            _ => {
                bytes = piece.bytes;
                groups.push(vec![at]);
            }
        }
    }
    groups
}
