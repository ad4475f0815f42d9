//! Member ids that were given out and that nobody has joined with yet (KIP-394), of one group: so many at most, and then the
//! oldest is forgotten. Whoever holds that is told that it is unknown, and asks for another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ids given out and not yet used, in one group.
pub(super) const PENDING_IDS_MAX: usize = 10_000;

/// The ids of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingIds {
    /// Which of them it is, and when it lapses.
    by_id: BTreeMap<Arc<str>, (u64, u64)>,
    /// In the order in which they were given out.
    by_number: BTreeMap<u64, Arc<str>>,
    /// (when, which) lapses.
    by_due: BTreeSet<(u64, u64)>,
    given: u64,
}

impl PendingIds {
    /// Gives an id out until `due`, monotonic ms.
    pub(super) fn insert(&mut self, id: String, due: u64) {
        self.remove(&id);
        while self.by_id.len() >= PENDING_IDS_MAX {
            let Some(oldest) = self.by_number.first_key_value().map(|(_, id)| id.clone()) else { break };
            self.remove(&oldest);
        }
        self.given += 1;
        let id: Arc<str> = id.into();
        self.by_number.insert(self.given, id.clone());
        self.by_due.insert((due, self.given));
        self.by_id.insert(id, (self.given, due));
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let Some((number, due)) = self.by_id.remove(id) else { return false };
        self.by_number.remove(&number);
        self.by_due.remove(&(due, number));
        true
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_number.clear();
        self.by_due.clear();
    }

    /// Drops those whose time is over; whether there were any.
    pub(super) fn lapse(&mut self, now_ms: u64) -> bool {
        let mut lapsed = false;
        while let Some((due, number)) = self.by_due.first().copied()
            && due <= now_ms
        {
            self.by_due.pop_first();
            if let Some(id) = self.by_number.remove(&number) {
                self.by_id.remove(&id);
            }
            lapsed = true;
        }
        lapsed
    }

    /// When the next one lapses.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.by_due.first().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_each_lapses_in_its_time() {
        let mut ids = PendingIds::default();
        for n in 0..=PENDING_IDS_MAX as u64 {
            // Later ones lapse earlier.
            ids.insert(format!("m{n}"), 50_000 - n);
        }
        assert!(!ids.contains("m0") && ids.contains("m1") && ids.contains("m10000"));
        assert!(ids.remove("m10000") && !ids.remove("m10000"));
        assert_eq!(ids.next_due(), Some(40_001));
        assert!(!ids.lapse(40_000) && ids.lapse(40_001) && !ids.contains("m9999"));
        assert!(ids.lapse(60_000) && ids.is_empty() && ids.next_due().is_none());
        assert!(ids.by_number.is_empty() && ids.by_due.is_empty(), "nothing is left of them");
    }
}
