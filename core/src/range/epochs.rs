//! A partition's leader epochs: which epoch began at which offset. Pure data; who leads and why is not known here.

use crate::types::Offset;
use smallvec::SmallVec;

/// A leader epoch and the offset of the first record that may carry it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch, never negative.
    pub epoch: i32,
    /// First offset of the epoch.
    pub start: Offset,
}

/// Epochs of one partition, both epochs and starts strictly ascending.
///
/// An epoch in which nothing was written is forgotten when the next one begins at the same offset, so restarts of an
/// idle partition cost nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable(SmallVec<[EpochStart; 2]>);

impl EpochTable {
    /// A table of these epochs; `None` unless epochs and starts ascend strictly from 0 up.
    pub fn from_starts(starts: &[EpochStart]) -> Option<EpochTable> {
        let ascending = starts.windows(2).all(|w| w[0].epoch < w[1].epoch && w[0].start < w[1].start);
        let positive = starts.first().is_none_or(|first| first.epoch >= 0 && first.start >= 0);
        (ascending && positive).then(|| EpochTable(SmallVec::from_slice(starts)))
    }

    /// The epochs in order.
    pub fn starts(&self) -> &[EpochStart] {
        &self.0
    }

    /// The newest epoch; `None` before the first is set.
    pub fn latest(&self) -> Option<i32> {
        self.0.last().map(|e| e.epoch)
    }

    /// From `start` on records carry `epoch`. An epoch at or below the newest changes nothing: epochs never fall.
    pub fn begin(&mut self, epoch: i32, start: Offset) {
        if epoch < 0 || self.latest().is_some_and(|latest| epoch <= latest) {
            return;
        }
        while self.0.last().is_some_and(|last| last.start >= start) {
            self.0.pop();
        }
        self.0.push(EpochStart { epoch, start });
    }

    /// The largest known epoch at or below `epoch`, and where it ends; the newest one ends at `high_watermark`.
    ///
    /// An epoch older than all known ends where the first known one starts. `None` for a negative epoch, one above
    /// the newest, and when no epoch is known.
    pub fn end_of(&self, epoch: i32, high_watermark: Offset) -> Option<(i32, Offset)> {
        let latest = self.latest()?;
        if epoch < 0 || epoch > latest {
            return None;
        }
        if epoch == latest {
            return Some((latest, high_watermark));
        }
        let after = self.0.partition_point(|e| e.epoch <= epoch);
        let end = self.0.get(after)?.start;
        let known = after.checked_sub(1).and_then(|at| self.0.get(at)).map_or(epoch, |e| e.epoch);
        Some((known, end))
    }

    /// Forgets epochs wholly below `log_start`; the one it falls into starts there from now on.
    pub fn trim(&mut self, log_start: Offset) {
        let passed = self.0.partition_point(|e| e.start <= log_start);
        if passed > 1 {
            self.0.drain(..passed - 1);
        }
        if let Some(first) = self.0.first_mut()
            && first.start < log_start
        {
            first.start = log_start;
        }
        if self.0.len() <= self.0.inline_size() {
            self.0.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(starts: &[(i32, Offset)]) -> EpochTable {
        let mut t = EpochTable::default();
        for &(epoch, start) in starts {
            t.begin(epoch, start);
        }
        t
    }

    #[test]
    fn the_end_of_an_epoch_is_the_start_of_the_next_known_one() {
        let t = table(&[(2, 0), (5, 10), (7, 30)]);
        assert_eq!(t.end_of(7, 42), Some((7, 42)), "the newest ends at the high watermark");
        assert_eq!(t.end_of(5, 42), Some((5, 30)));
        assert_eq!(t.end_of(6, 42), Some((5, 30)), "an unknown epoch answers for the largest below it");
        assert_eq!(t.end_of(2, 42), Some((2, 10)));
        assert_eq!(t.end_of(1, 42), Some((1, 0)), "older than all known: where the first known one starts");
        assert_eq!(t.end_of(8, 42), None);
        assert_eq!(t.end_of(-1, 42), None);
        assert_eq!(EpochTable::default().end_of(0, 0), None);
    }

    #[test]
    fn an_epoch_without_records_is_replaced_and_epochs_never_fall() {
        let mut t = table(&[(0, 0), (1, 5), (2, 5)]);
        assert_eq!(t, table(&[(0, 0), (2, 5)]));
        t.begin(1, 9);
        t.begin(2, 9);
        t.begin(-1, 9);
        assert_eq!(t, table(&[(0, 0), (2, 5)]));
    }

    #[test]
    fn a_raised_log_start_trims_what_it_has_passed() {
        let mut t = table(&[(0, 0), (1, 10), (2, 20), (3, 30)]);
        t.trim(20);
        assert_eq!(t.starts(), &[EpochStart { epoch: 2, start: 20 }, EpochStart { epoch: 3, start: 30 }]);
        t.trim(25);
        assert_eq!(t.end_of(0, 40), Some((0, 25)));
        assert_eq!(t.end_of(2, 40), Some((2, 30)));
        t.trim(99);
        assert_eq!(t.starts(), &[EpochStart { epoch: 3, start: 99 }]);
    }
}
