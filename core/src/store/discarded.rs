//! Which loglets were deleted, as runs of their ids: a start that ends many segments and begins as many deletes neighbours, so
//! that what is remembered does not grow with the number of starts.

use crate::types::LogletId;
use std::collections::BTreeMap;

/// See the module head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Discarded {
    /// The last id by the first; between two runs is an id of neither.
    runs: BTreeMap<u64, u64>,
}

impl Discarded {
    pub(crate) fn contains(&self, loglet: LogletId) -> bool {
        self.runs.range(..=loglet.0).next_back().is_some_and(|(_, last)| loglet.0 <= *last)
    }

    pub(crate) fn insert(&mut self, loglet: LogletId) {
        if self.contains(loglet) {
            return;
        }
        let id = loglet.0;
        let before = self.runs.range(..id).next_back().filter(|(_, last)| **last + 1 == id);
        let first = before.map_or(id, |(first, _)| *first);
        let after = id.checked_add(1).and_then(|next| self.runs.remove(&next));
        self.runs.insert(first, after.unwrap_or(id));
    }

    /// First and last id of each run, in order.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(first, last)| (*first, *last))
    }

    /// So many runs at most, those with the highest ids.
    pub(crate) fn newest(&self, most: usize) -> Discarded {
        Discarded { runs: self.runs.iter().rev().take(most).map(|(first, last)| (*first, *last)).collect() }
    }

    /// Adds a run behind all others; whether it is one.
    pub(crate) fn push(&mut self, first: u64, last: u64) -> bool {
        let behind =
            self.runs.last_key_value().is_none_or(|(_, end)| end.checked_add(1).is_some_and(|e| e < first));
        let fits = behind && first <= last;
        if fits {
            self.runs.insert(first, last);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn runs_agree_with_a_set_of_ids(ids in proptest::collection::vec(0u64..60, 0..80)) {
            let (mut discarded, mut set) = (Discarded::default(), BTreeSet::new());
            for id in ids {
                discarded.insert(LogletId(id));
                set.insert(id);
                for id in 0..62 {
                    prop_assert_eq!(discarded.contains(LogletId(id)), set.contains(&id));
                }
            }
            let runs: Vec<(u64, u64)> = discarded.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", runs);
            let mut again = Discarded::default();
            prop_assert!(runs.iter().all(|(first, last)| again.push(*first, *last)));
            prop_assert_eq!(&again, &discarded);
            let newest = discarded.newest(2);
            let from = runs.len().saturating_sub(2);
            prop_assert_eq!(newest.runs().collect::<Vec<_>>(), runs[from..].to_vec());
        }
    }

    #[test]
    fn neighbours_are_one_run_however_many_starts_there_were_and_the_highest_id_is_one_too() {
        let mut discarded = Discarded::default();
        (7..100_000).for_each(|id| discarded.insert(LogletId(id)));
        assert_eq!(discarded.runs().collect::<Vec<_>>(), [(7, 99_999)]);
        discarded.insert(LogletId(u64::MAX));
        assert!(discarded.contains(LogletId(u64::MAX)) && !discarded.contains(LogletId(6)));
        assert!(!discarded.push(3, 4) && !discarded.push(u64::MAX, u64::MAX));
    }
}
