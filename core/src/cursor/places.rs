//! Places: where a reader of a run of partitions is, span by span. Owns their tiling and what unites; knows no lineage.
//!
//! Ranges of a partition have ascending ids along its history, so the spots of one partition are ordered.

use crate::types::{RangeId, Span};

/// A place in a topic's log.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spot {
    /// The range.
    pub range: RangeId,
    /// Virtual address in the range: the next entry to read.
    pub address: u64,
}

/// Where a reader is in a run of partitions.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The partitions.
    pub span: Span,
    /// What is read next of them; entries of other partitions there are not for this place.
    pub spot: Spot,
}

/// Where a reader is in a run of partitions, its scope: at least one place, in the order of partitions. Their spans tile
/// the scope, and neighbours at one spot are one place (INV-CUR-1; R15).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Places(pub(super) Vec<Place>);

impl Places {
    /// The places, neighbours at one spot united; `None` unless their spans tile a run of partitions, in order.
    pub fn new(places: Vec<Place>) -> Option<Places> {
        let mut places = Places(places);
        if !places.tile() {
            return None;
        }
        places.unite();
        Some(places)
    }

    /// All of them.
    pub fn as_slice(&self) -> &[Place] {
        &self.0
    }

    /// The run of partitions that is read.
    pub fn scope(&self) -> Span {
        let (first, last) = (self.0.first(), self.0.last());
        first.zip(last).map_or(NOWHERE, |(a, b)| Span { first: a.span.first, last: b.span.last })
    }

    /// Whether the spans tile the scope: none is empty, and each begins where the one before ends.
    pub(super) fn tile(&self) -> bool {
        let whole = |place: &Place| 0 <= place.span.first && place.span.first <= place.span.last;
        let follow = |pair: &[Place]| pair[0].span.last.checked_add(1) == Some(pair[1].span.first);
        !self.0.is_empty() && self.0.iter().all(whole) && self.0.windows(2).all(follow)
    }

    /// Makes one place of neighbours at one spot, and of no others: uniting unequal ones would lose what lies between
    /// (at the higher) or repeat it (at the lower).
    pub(super) fn unite(&mut self) {
        self.0.dedup_by(|place, before| {
            let one = joint(before.spot, place.spot);
            if let Some(spot) = one {
                *before = Place { span: Span { first: before.span.first, last: place.span.last }, spot };
            }
            one.is_some()
        });
    }
}

const NOWHERE: Span = Span { first: 0, last: -1 };

/// The spot at which two neighbours are one place.
fn joint(a: Spot, b: Spot) -> Option<Spot> {
    use crate::testing::{Mutant, broken};
    match a.range == b.range {
        true if broken(Mutant::UnequalUnitedHigh) => Some(a.max(b)),
        true if broken(Mutant::UnequalUnitedLow) => Some(a.min(b)),
        _ => (a == b).then_some(a),
    }
}
