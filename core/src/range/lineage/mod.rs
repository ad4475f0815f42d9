//! Lineage: the segments of a range and of the ranges it came from, as one list (design 7 and 8). Pure.
//!
//! A range's list is every segment that may hold entries of its partitions, oldest first: its own, and those of each
//! ancestor whose span overlaps. They are ordered by range and base: ids of ranges grow in the order of creation, and a range
//! begins where its parents are closed. (Loglet ids say nothing: a compacted segment has a new one.) So those of the list whose owner's span holds a partition are, in order, that partition's history
//! (INV-RANGE-9), however often it was split and merged; those that hold other partitions only are passed over.
//!
//! ```text
//!  r0 [0..3]  l1 l2 ─┬─ r1 [0..1]  l3 l6 ─┬─ r3 [0..3]  l7
//!                    └─ r2 [2..3]  l4 l5 ─┘
//!  list of r3: l1 l2 l3 l4 l5 l6 l7; history of partition 0: l1 l2 l3 l6 l7, of partition 2: l1 l2 l4 l5 l7
//! ```

use crate::range::segment::{Order, Owner, Segment};
use crate::types::{Address, Partition, RangeId, Span};
use crate::virtual_log::chain::ChainEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the control state says of a range, as far as its lineage goes.
#[derive(Copy, Clone, Debug)]
pub struct Kin<'a> {
    /// The range and its partitions.
    pub owner: Owner,
    /// The ranges that it came from.
    pub parents: &'a [RangeId],
    /// Its segments, oldest first.
    pub chain: &'a [ChainEntry],
}

/// The sealed segments of a range's ancestors that may hold entries of `span`, oldest first, each with its owner.
/// `find` looks a range up; one that it does not know was dropped, and with it everything older.
pub fn ancestors<'a>(
    span: Span,
    parents: &'a [RangeId],
    find: impl Fn(RangeId) -> Option<Kin<'a>>,
) -> Vec<(Owner, &'a ChainEntry)> {
    let mut found: BTreeMap<Order, (Owner, &ChainEntry)> = BTreeMap::new();
    let mut seen: BTreeSet<RangeId> = BTreeSet::new();
    let mut ahead: Vec<RangeId> = parents.to_vec();
    while let Some(id) = ahead.pop() {
        let Some(kin) = find(id).filter(|kin| overlap(kin.owner.span, span).is_some()) else { continue };
        if seen.insert(id) {
            ahead.extend(kin.parents);
            let sealed = kin.chain.iter().filter(|entry| entry.tail.is_some_and(|tail| tail > Address(0)));
            found.extend(sealed.map(|entry| ((id, entry.base), (kin.owner, entry))));
        }
    }
    found.into_values().collect()
}

/// What a range over `span` inherits of the lists of its parents, whose last segments are sealed: shared, so that what
/// one has opened and read the others have too.
pub fn inherit<'a>(span: Span, parents: impl IntoIterator<Item = &'a [Arc<Segment>]>) -> Vec<Arc<Segment>> {
    let mut found: BTreeMap<Order, Arc<Segment>> = BTreeMap::new();
    for segment in parents.into_iter().flatten() {
        let tail = segment.tail();
        assert!(tail.is_some(), "{segment:?} is open, and its range has children");
        if tail > Some(Address(0)) && overlap(segment.owner.span, span).is_some() {
            found.insert(segment.order(), segment.clone());
        }
    }
    found.into_values().collect()
}

/// The partitions that two spans have in common.
pub fn overlap(a: Span, b: Span) -> Option<Span> {
    let both = Span { first: a.first.max(b.first), last: a.last.min(b.last) };
    (both.first <= both.last).then_some(both)
}

/// Place of the first segment of `partition` at or after place `from`.
pub(super) fn next_of(segments: &[Arc<Segment>], from: usize, partition: Partition) -> Option<usize> {
    let later = segments.iter().enumerate().skip(from);
    later.into_iter().find(|(_, segment)| segment.owner.span.contains(partition)).map(|(at, _)| at)
}

/// Place of the `n`th segment of `partition` back from place `before`, excluded, else the oldest one there; `n` counts
/// from 1.
pub(super) fn back(
    segments: &[Arc<Segment>],
    before: usize,
    n: usize,
    partition: Partition,
) -> Option<usize> {
    let older = segments.iter().enumerate().take(before).rev();
    let older = older.filter(|(_, segment)| segment.owner.span.contains(partition));
    older.take(n).last().map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
