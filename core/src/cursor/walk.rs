//! Walking: what a reader of a run of partitions reads next, and where it goes when a range has no more for it (design 8;
//! R15, R16). Pure: told the lineage, it moves the places, says what was missed, and names reads; reading is not its
//! business. Keeps INV-CUR-2: a record is delivered once, or lies in a skip that was reported.
//!
//! ```text
//!  a split                              a merge
//!  r1 ─────────────┬── r2 (0..=3)       r2 (0..=3) ──────┬── r4 (0..=7)
//!   (0..=7)  end ──┴── r3 (4..=7)       r3 (4..=7) ──────┘
//!  (0..=7 @ r1 end) becomes             (0..=3 @ r2 end) becomes (0..=3 @ r4 0), while (4..=7 @ r3 5) stays;
//!  (0..=3 @ r2 0), (4..=7 @ r3 0)       they unite once both stand at one address of r4
//! ```

use super::lineage::{Branch, Lineage, Which, cut, without};
use super::places::{Place, Places, Spot};
use crate::testing::{Mutant, broken};
use crate::types::{Partition, RangeId, Span};
use std::collections::BTreeMap;

/// What a reader missed: of the partitions of `span` everything from `from` on, up to `to` exclusively, is gone.
/// Addresses are counted, so there may have been no record of these partitions among them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The partitions.
    pub span: Span,
    /// Where the reader was.
    pub from: Spot,
    /// Where it goes on. Not above `from` only where the reader had been in ranges that nobody has known since.
    pub to: Spot,
}

/// Something to read: the entries of a range from an address on, of some partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The first entry.
    pub from: Spot,
    /// Read at most up to here, exclusively: the end of a closed range, or a place further on that unites with this one
    /// there. `None`: up to the tail.
    pub until: Option<u64>,
    /// Entries of these partitions are for the reader, others are passed over. In order.
    pub spans: Vec<Span>,
}

impl Read {
    /// Whether entries of the partition are for the reader.
    pub fn takes(&self, partition: Partition) -> bool {
        self.spans.iter().any(|span| span.contains(partition))
    }
}

impl Places {
    /// A reader of everything that is there of `scope`; `None` where the topic has no such partitions.
    pub fn earliest(lineage: &Lineage, scope: Span) -> Option<Places> {
        let start = |range: RangeId| lineage.get(range).map_or(0, |branch| branch.start);
        Places::over(lineage.earliest(scope, None, Which::Present), start)
    }

    /// A reader of everything that is appended after the `tails` of the open ranges; `None` where the topic has no such
    /// partitions.
    pub fn latest(lineage: &Lineage, scope: Span, tails: impl Fn(RangeId) -> u64) -> Option<Places> {
        Places::over(lineage.earliest(scope, None, Which::Open), tails)
    }

    fn over(parts: Vec<(Span, RangeId)>, address: impl Fn(RangeId) -> u64) -> Option<Places> {
        let place = |(span, range)| Place { span, spot: Spot { range, address: address(range) } };
        Places::new(parts.into_iter().map(place).collect())
    }

    /// Takes in partitions that the topic was given since, each from its first record on: for a reader of the whole topic.
    /// What is gone of them already is reported by the next [`Places::settle`] as missed.
    pub fn grow(&mut self, lineage: &Lineage) {
        let last = self.scope().last;
        let Some(all) = lineage.partitions().filter(|all| last < all.last) else { return };
        let new = Span { first: last + 1, last: all.last };
        let begin = |(span, range): (Span, RangeId)| {
            // Of a range that came from others they would have been found: begin before everything, and that is reported.
            let root = lineage.get(range).is_some_and(|branch| branch.parents.is_empty());
            let range = if root { range } else { RangeId(0) };
            Place { span, spot: Spot { range, address: 0 } }
        };
        let mut places = self.0.clone();
        places.extend(lineage.earliest(new, None, Which::Known).into_iter().map(begin));
        if let Some(grown) = Places::new(places) {
            *self = grown;
        }
    }

    /// Brings every place to where its partitions can be read or waited for: a drained range hands them to its children,
    /// cut at their borders, what is trimmed or dropped is passed over. Returns what was missed. To be called before
    /// [`Places::reads`], with the lineage as it is known last.
    pub fn settle(&mut self, lineage: &Lineage) -> Vec<Skip> {
        let mut walk = Walk { lineage, open: self.0.clone(), settled: Vec::new(), skips: Vec::new() };
        // Ends: a place goes on in ranges with higher ids only, after at most one that is unknown.
        while let Some(place) = walk.open.pop() {
            walk.step(place);
        }
        walk.settled.sort_by_key(|place| place.span.first);
        self.0 = walk.settled;
        self.unite();
        if broken(Mutant::SilentSkip) {
            walk.skips.clear();
        }
        walk.skips
    }

    /// What can be read, at most one read per range: of the places in a range those at its lowest address, up to where
    /// they meet the next. Reads of different ranges are independent of each other.
    pub fn reads(&self, lineage: &Lineage) -> Vec<Read> {
        let mut by_range: BTreeMap<RangeId, Vec<&Place>> = BTreeMap::new();
        let readable = |place: &&Place| {
            let branch = lineage.get(place.spot.range);
            branch
                .is_some_and(|b| b.start <= place.spot.address && cut(place.span, b.span) == Some(place.span))
        };
        for place in self.0.iter().filter(readable) {
            by_range.entry(place.spot.range).or_default().push(place);
        }
        by_range.into_iter().filter_map(|(id, places)| read(lineage.get(id)?, &places)).collect()
    }

    /// The entries of `read` below `to` are done with.
    ///
    /// Panics: `to` lies outside of the read.
    pub fn advance(&mut self, read: &Read, to: u64) {
        assert!(read.from.address <= to, "a reader never goes back");
        assert!(read.until.is_none_or(|until| to <= until), "nothing was read above the end of the read");
        for place in &mut self.0 {
            if place.spot == read.from && read.spans.contains(&place.span) {
                place.spot.address = to;
            }
        }
        self.unite();
    }
}

/// The read of the lowest of a range's places.
fn read(branch: &Branch, places: &[&Place]) -> Option<Read> {
    let from = places.iter().map(|place| place.spot).min()?;
    let next = places.iter().map(|place| place.spot.address).filter(|address| from.address < *address).min();
    let until = next.into_iter().chain(branch.end).min();
    if until.is_some_and(|until| until <= from.address) {
        return None;
    }
    let spans = places.iter().filter(|place| place.spot == from).map(|place| place.span).collect();
    Some(Read { from, until, spans })
}

/// Places on their way.
struct Walk<'a> {
    lineage: &'a Lineage,
    /// To be looked at.
    open: Vec<Place>,
    /// Where there is something to read or to wait for.
    settled: Vec<Place>,
    skips: Vec<Skip>,
}

impl Walk<'_> {
    fn step(&mut self, place: Place) {
        let Some(branch) = self.lineage.get(place.spot.range) else {
            return self.leave_unknown(place);
        };
        // Of partitions that the range never held the place says nothing.
        for span in without(place.span, branch.span) {
            self.leave_unknown(Place { span, ..place });
        }
        if let Some(span) = cut(place.span, branch.span) {
            self.step_inside(Place { span, ..place }, branch);
        }
    }

    fn step_inside(&mut self, mut place: Place, branch: &Branch) {
        if place.spot.address < branch.start {
            if broken(Mutant::DroppedToLatest) && branch.dropped() {
                return self.go_to_earliest(place, Which::Open);
            }
            let to = Spot { address: branch.start, ..place.spot };
            self.skips.push(Skip { span: place.span, from: place.spot, to });
            place.spot = to;
        }
        if branch.end.is_none_or(|end| place.spot.address < end) {
            self.settled.push(place);
        } else {
            self.enter_children(place, branch);
        }
    }

    /// A drained range's partitions go to the children that hold them, each from its first entry on.
    fn enter_children(&mut self, place: Place, branch: &Branch) {
        let mut rest = vec![place.span];
        for range in branch.children.iter().copied().filter(|id| place.spot.range < *id) {
            let Some(child) = self.lineage.get(range) else { continue };
            if broken(Mutant::FirstParentEnters) {
                self.open.retain(|other| cut(other.span, child.span).is_none());
                self.settled.retain(|other| cut(other.span, child.span).is_none());
            }
            let spot = Spot { range, address: 0 };
            let mine = rest.iter().filter_map(|part| cut(*part, child.span)).map(|part| match part {
                _ if broken(Mutant::WholeChildPerParent) || broken(Mutant::FirstParentEnters) => child.span,
                _ if broken(Mutant::SpanNotCut) => place.span,
                part => part,
            });
            self.open.extend(mine.map(|span| Place { span, spot }));
            rest = rest.into_iter().flat_map(|part| without(part, child.span)).collect();
        }
        // Children of which not even a stone is left; where nothing came later, there is nothing to go to.
        for span in rest {
            let part = Place { span, ..place };
            let stay = self.go_to_next_known(part);
            self.settled.extend(stay.into_iter().map(|span| Place { span, ..part }));
        }
    }

    /// A place in a range that is not known goes to the next one that is, since a partition's ranges have ascending ids;
    /// where nothing came later (the history is another one) to the earliest of which something is left.
    fn leave_unknown(&mut self, place: Place) {
        for span in self.go_to_next_known(place) {
            self.go_to_earliest(Place { span, ..place }, Which::Present);
        }
    }

    /// Returns the partitions for which nothing is known.
    fn go_to_next_known(&mut self, place: Place) -> Vec<Span> {
        let mut rest = vec![place.span];
        for (span, range) in self.lineage.earliest(place.span, Some(place.spot.range), Which::Known) {
            self.skip(span, place.spot, Spot { range, address: 0 });
            rest = rest.into_iter().flat_map(|part| without(part, span)).collect();
        }
        rest
    }

    fn go_to_earliest(&mut self, place: Place, which: Which) {
        let mut rest = vec![place.span];
        for (span, range) in self.lineage.earliest(place.span, None, which) {
            let address = self.lineage.get(range).map_or(0, |branch| branch.start);
            self.skip(span, place.spot, Spot { range, address });
            rest = rest.into_iter().flat_map(|part| without(part, span)).collect();
        }
        // A lineage without these partitions: the place is kept.
        self.settled.extend(rest.into_iter().map(|span| Place { span, ..place }));
    }

    fn skip(&mut self, span: Span, from: Spot, to: Spot) {
        self.skips.push(Skip { span, from, to });
        self.open.push(Place { span, spot: to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WHOLE_RANGE;

    fn span(first: Partition, last: Partition) -> Span {
        Span { first, last }
    }

    fn spot(range: u32, address: u64) -> Spot {
        Spot { range: RangeId(range), address }
    }

    fn places(of: &[(Span, Spot)]) -> Places {
        Places::new(of.iter().map(|(span, spot)| Place { span: *span, spot: *spot }).collect()).expect("tile")
    }

    /// Range 0 of eight partitions, trimmed to 3, split at 4 into 1 (dropped) and 2, merged into 4; 3 was elsewhere.
    fn lineage() -> Lineage {
        let branch = |span, start, end, children: &[u32]| Branch {
            span,
            start,
            end,
            parents: Vec::new(),
            children: children.iter().map(|id| RangeId(*id)).collect(),
        };
        let branches = [
            (0, branch(span(0, 7), 3, Some(9), &[1, 2])),
            (1, branch(span(0, 3), 6, Some(6), &[4])),
            (2, branch(span(4, 7), 0, Some(5), &[4])),
            (4, branch(span(0, 7), 0, None, &[])),
        ];
        branches.into_iter().map(|(id, branch)| (RangeId(id), branch)).collect()
    }

    fn settled(of: &[(Span, Spot)]) -> (Places, Vec<Skip>) {
        let mut places = places(of);
        let skips = places.settle(&lineage());
        (places, skips)
    }

    #[test]
    fn a_drained_range_hands_its_span_to_its_children_cut_at_their_borders() {
        let (there, skips) = settled(&[(span(2, 5), spot(0, 9))]);
        assert_eq!(there, places(&[(span(2, 3), spot(4, 0)), (span(4, 5), spot(2, 0))]));
        let missed = Skip { span: span(2, 3), from: spot(1, 0), to: spot(1, 6) };
        assert_eq!(skips, [missed], "the left child is gone with what it held");
    }

    #[test]
    fn a_place_at_the_end_of_a_dropped_range_misses_nothing() {
        let (there, skips) = settled(&[(span(0, 3), spot(1, 6)), (span(4, 7), spot(2, 5))]);
        assert_eq!(there, places(&[(span(0, 7), spot(4, 0))]), "both parents are drained: one place");
        assert_eq!(skips, []);
    }

    #[test]
    fn a_trimmed_place_goes_to_the_first_entry_that_is_left() {
        let (there, skips) = settled(&[(span(0, 7), spot(0, 1))]);
        assert_eq!(there, places(&[(span(0, 7), spot(0, 3))]));
        assert_eq!(skips, [Skip { span: span(0, 7), from: spot(0, 1), to: spot(0, 3) }]);
    }

    #[test]
    fn a_place_in_an_unknown_range_goes_to_the_next_that_is_known() {
        let (there, skips) = settled(&[(span(0, 7), spot(3, 8))]);
        assert_eq!(there, places(&[(span(0, 7), spot(4, 0))]));
        assert_eq!(skips, [Skip { span: span(0, 7), from: spot(3, 8), to: spot(4, 0) }]);
    }

    #[test]
    fn a_place_of_another_history_goes_to_the_earliest_that_is_left() {
        let (there, skips) = settled(&[(span(0, 7), spot(9, 8))]);
        assert_eq!(there, places(&[(span(0, 7), spot(0, 3))]));
        assert_eq!(skips, [Skip { span: span(0, 7), from: spot(9, 8), to: spot(0, 3) }]);
        let mut elsewhere = places(&[(span(8, 9), spot(0, 2))]);
        assert_eq!((elsewhere.settle(&lineage()), elsewhere.reads(&lineage())), (Vec::new(), Vec::new()));
        assert_eq!(elsewhere, places(&[(span(8, 9), spot(0, 2))]), "no such partitions: the place is kept");
    }

    #[test]
    fn of_two_places_in_a_range_the_lower_is_read_up_to_the_other() {
        let lineage = lineage();
        let mut there =
            places(&[(span(0, 3), spot(4, 8)), (span(4, 5), spot(4, 2)), (span(6, 7), spot(2, 1))]);
        let in_2 = Read { from: spot(2, 1), until: Some(5), spans: vec![span(6, 7)] };
        let in_4 = Read { from: spot(4, 2), until: Some(8), spans: vec![span(4, 5)] };
        assert_eq!(there.reads(&lineage), [in_2.clone(), in_4.clone()]);
        assert!(in_4.takes(4) && !in_4.takes(3) && !in_4.takes(WHOLE_RANGE));
        there.advance(&in_4, 8);
        assert_eq!(there, places(&[(span(0, 5), spot(4, 8)), (span(6, 7), spot(2, 1))]), "they met");
        there.advance(&in_2, 5);
        assert_eq!(there.settle(&lineage), []);
        let both = [Read { from: spot(4, 0), until: Some(8), spans: vec![span(6, 7)] }];
        assert_eq!(there.reads(&lineage), both);
    }

    #[test]
    fn new_partitions_are_read_from_their_first_record() {
        let mut there = places(&[(span(0, 3), spot(4, 8))]);
        there.grow(&lineage());
        assert_eq!(there, places(&[(span(0, 3), spot(4, 8)), (span(4, 7), spot(0, 0))]));
        there.grow(&lineage());
        assert_eq!(there.scope(), span(0, 7), "once");
    }
}
