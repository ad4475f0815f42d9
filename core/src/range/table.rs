//! Which primary serves a partition: the primaries of a topic in order of their partitions, of which none overlap. Pure.

use super::primary::RangePrimary;
use crate::testing::{Mutant, broken};
use crate::types::{Partition, RangeId};
use std::sync::Arc;

/// The primary that holds `partition`.
pub fn find(table: &[Arc<RangePrimary>], partition: Partition) -> Option<&Arc<RangePrimary>> {
    let at = table.partition_point(|range| range.span.last < partition);
    table.get(at).filter(|range| range.span.contains(partition))
}

/// The table with `new` in the place of those of the ids `closed`: whoever looks finds either all of the old or all of the new, and
/// never again what has ended (R7e).
pub fn replace(
    table: &[Arc<RangePrimary>],
    closed: &[RangeId],
    new: Vec<Arc<RangePrimary>>,
) -> Vec<Arc<RangePrimary>> {
    let stays = |range: &&Arc<RangePrimary>| !closed.contains(&range.id) || broken(Mutant::EndedRangeFound);
    let mut next: Vec<Arc<RangePrimary>> = table.iter().filter(stays).cloned().chain(new).collect();
    next.sort_by_key(|range| range.span.first);
    next
}
