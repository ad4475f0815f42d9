//! Transactions of one partition: which are open, and where aborted ones lie (KIP-98). Pure data; whose turn it is to
//! open or end one is the producer table's and the coordinator's.
//!
//! ```text
//! offset    0   1   2   3   4   5   6   7   8
//!           A1  B1  A2  C1  B◼  A3  A◻  D1  C2        ◼ commit, ◻ abort
//! aborted: A from 1st offset 0 to its marker 6 · open: C from 3, D from 7 · last stable offset: 3
//! ```
//! Aborted spans are kept in the order of their markers, in blocks, each of which knows the lowest first offset in it and
//! after it: a reader looks at the blocks of what it reads and of transactions that were open then, however many there are.

use crate::types::Offset;
use std::sync::Arc;

/// Spans per block.
const BLOCK: usize = 64;

/// An aborted transaction in one partition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AbortedSpan {
    /// Whose it was.
    pub producer_id: i64,
    /// Offset of its first record.
    pub first: Offset,
    /// Offset of its marker.
    pub last: Offset,
}

/// Consecutive aborted spans.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    spans: Arc<Vec<AbortedSpan>>,
    /// Lowest first offset of these.
    lowest: Offset,
    /// Lowest first offset of these and of all that follow.
    lowest_from: Offset,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Open ones: first offset and producer, ascending.
    open: Vec<(Offset, i64)>,
    aborted: Vec<Block>,
}

/// See the module head. Cloning copies one pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions(Option<Arc<Known>>);

impl Transactions {
    /// The first offset of the earliest open transaction.
    pub fn first_open(&self) -> Option<Offset> {
        self.0.as_ref()?.open.first().map(|(first, _)| *first)
    }

    /// The open transactions, earliest first: first offset and producer.
    pub fn open(&self) -> &[(Offset, i64)] {
        self.0.as_ref().map_or(&[], |known| &known.open)
    }

    /// A producer's transaction begins at `first`.
    pub fn begin(&mut self, first: Offset, producer_id: i64) {
        let open = &mut self.change().open;
        let place = open.partition_point(|one| *one < (first, producer_id));
        open.insert(place, (first, producer_id));
    }

    /// The producer's transaction that began at `first` ends with the marker at `last`.
    pub fn end(&mut self, producer_id: i64, first: Offset, last: Offset, commit: bool) {
        let known = self.change();
        known.open.retain(|one| *one != (first, producer_id));
        if !commit {
            known.abort(AbortedSpan { producer_id, first, last });
        }
        self.tidy();
    }

    /// Adds an aborted span whose marker follows those of all others.
    pub fn abort(&mut self, span: AbortedSpan) {
        self.change().abort(span);
    }

    /// The aborted spans in the order of their markers.
    pub fn aborted(&self) -> impl Iterator<Item = &AbortedSpan> {
        self.blocks().iter().flat_map(|block| block.spans.iter())
    }

    /// How many aborted spans there are.
    pub fn aborted_len(&self) -> usize {
        self.blocks().iter().map(|block| block.spans.len()).sum()
    }

    /// The aborted spans that have something in `[from, below)`, by first offset.
    pub fn aborted_within(&self, from: Offset, below: Offset) -> Vec<AbortedSpan> {
        let blocks = self.blocks();
        let begin =
            blocks.partition_point(|block| block.spans.last().is_some_and(|newest| newest.last < from));
        let near = blocks.iter().skip(begin).take_while(|block| block.lowest_from < below);
        let mut found: Vec<AbortedSpan> = near
            .filter(|block| block.lowest < below)
            .flat_map(|block| block.spans.iter())
            .filter(|span| span.first < below && span.last >= from)
            .copied()
            .collect();
        found.sort_unstable_by_key(|span| (span.first, span.producer_id));
        found
    }

    /// Whether [`Transactions::trim`] forgets something.
    pub fn trims(&self, log_start: Offset) -> bool {
        self.aborted().next().is_some_and(|oldest| oldest.last < log_start)
    }

    /// Forgets the aborted spans that end below `log_start`: nobody reads there.
    pub fn trim(&mut self, log_start: Offset) {
        if !self.trims(log_start) {
            return;
        }
        let kept: Vec<AbortedSpan> = self.aborted().filter(|span| span.last >= log_start).copied().collect();
        let known = self.change();
        known.aborted.clear();
        kept.into_iter().for_each(|span| known.abort(span));
        self.tidy();
    }

    fn blocks(&self) -> &[Block] {
        self.0.as_ref().map_or(&[], |known| &known.aborted)
    }

    fn change(&mut self) -> &mut Known {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Nothing is kept of nothing.
    fn tidy(&mut self) {
        if self.0.as_ref().is_some_and(|known| known.open.is_empty() && known.aborted.is_empty()) {
            self.0 = None;
        }
    }
}

impl Known {
    fn abort(&mut self, span: AbortedSpan) {
        match self.aborted.last_mut() {
            Some(block) if block.spans.len() < BLOCK => {
                Arc::make_mut(&mut block.spans).push(span);
                block.lowest = block.lowest.min(span.first);
            }
            _ => self.aborted.push(Block {
                spans: Arc::new(vec![span]),
                lowest: span.first,
                lowest_from: span.first,
            }),
        }
        // Only blocks of spans that were open together with this one hold a higher bound.
        for block in self.aborted.iter_mut().rev() {
            if block.lowest_from <= span.first {
                break;
            }
            block.lowest_from = span.first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_drawing_is_true() {
        let mut t = Transactions::default();
        t.begin(0, 1);
        t.begin(1, 2);
        t.begin(3, 3);
        t.end(2, 1, 4, true);
        t.end(1, 0, 6, false);
        t.begin(7, 4);
        assert_eq!(t.first_open(), Some(3));
        assert_eq!(t.open(), [(3, 3), (7, 4)]);
        assert_eq!(t.aborted_within(0, 9), [AbortedSpan { producer_id: 1, first: 0, last: 6 }]);
        t.end(3, 3, 9, true);
        t.end(4, 7, 10, true);
        t.trim(7);
        assert_eq!(t, Transactions::default(), "nothing is kept of nothing");
    }

    /// What is looked at is bounded by what was open together, not by what was ever aborted.
    #[test]
    fn a_reader_looks_at_few_blocks_of_many() {
        let mut t = Transactions::default();
        for n in 0..100_000 {
            t.begin(n * 2, 1);
            t.end(1, n * 2, n * 2 + 1, false);
        }
        let looked_at = |from, below| {
            let blocks = t.blocks();
            let begin = blocks.partition_point(|b| b.spans.last().is_some_and(|s| s.last < from));
            blocks.iter().skip(begin).take_while(|b| b.lowest_from < below).count()
        };
        assert_eq!(t.aborted_within(1001, 1011).len(), 6);
        assert!(looked_at(1001, 1011) <= 2);
        assert_eq!(t.aborted_within(0, 0), []);
    }

    proptest! {
        #[test]
        fn spans_are_found_as_in_a_list(
            ops in prop::collection::vec((0..6i64, 0..3u8, 0..400i64, 0..400i64), 1..400),
        ) {
            let mut t = Transactions::default();
            let mut open: Vec<(Offset, i64)> = Vec::new();
            let mut aborted: Vec<AbortedSpan> = Vec::new();
            for (offset, &(producer_id, what, from, below)) in ops.iter().enumerate() {
                let offset = offset as Offset;
                match open.iter().position(|(_, id)| *id == producer_id) {
                    None => {
                        t.begin(offset, producer_id);
                        open.push((offset, producer_id));
                    }
                    Some(at) if what > 0 => {
                        let (first, _) = open.remove(at);
                        t.end(producer_id, first, offset, what == 1);
                        if what == 2 {
                            aborted.push(AbortedSpan { producer_id, first, last: offset });
                        }
                    }
                    Some(_) => {}
                }
                if from == 7 {
                    t.trim(below);
                    aborted.retain(|span| span.last >= below);
                }
                prop_assert_eq!(t.open(), &open[..]);
                prop_assert_eq!(t.first_open(), open.first().map(|o| o.0));
                let mut expected: Vec<AbortedSpan> =
                    aborted.iter().filter(|s| s.first < below && s.last >= from).copied().collect();
                expected.sort_by_key(|s| s.first);
                prop_assert_eq!(t.aborted_within(from, below), expected);
            }
            prop_assert!(t.aborted().eq(aborted.iter()));
            let mut again = Transactions::default();
            aborted.iter().for_each(|span| again.abort(*span));
            open.iter().for_each(|(first, id)| again.begin(*first, *id));
            prop_assert!(again.aborted().eq(t.aborted()));
        }
    }
}
