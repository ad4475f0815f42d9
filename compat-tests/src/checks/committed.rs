//! What a client does with the batches it fetched to read committed records only: those of aborted transactions are left out.

use std::collections::BTreeSet;

use kafka_protocol::records::Record;

use super::Fetched;

/// A reader of one partition.
#[derive(Debug, Default)]
pub struct Committed {
    /// Offset to ask for next.
    pub next: i64,
}

impl Committed {
    /// Data records from [`next`](Self::next) on that `isolation` shows.
    pub fn take(&mut self, fetched: &Fetched, isolation: i8) -> Vec<Record> {
        let mut aborted = fetched.aborted.clone();
        aborted.sort_by_key(|(_, first)| *first);
        let mut aborted = aborted.into_iter().peekable();
        let mut skipped = BTreeSet::new();
        let mut shown = Vec::new();
        for batch in &fetched.batches {
            let Some(last) = batch.records.last() else { continue };
            while let Some((producer, _)) = aborted.next_if(|(_, first)| *first <= last.offset) {
                skipped.insert(producer);
            }
            if last.control {
                if is_abort(last) {
                    skipped.remove(&last.producer_id);
                }
            } else if isolation == 0 || !(last.transactional && skipped.contains(&last.producer_id)) {
                shown.extend(batch.records.iter().filter(|record| record.offset >= self.next).cloned());
            }
            self.next = self.next.max(last.offset + 1);
        }
        shown
    }
}

/// The key of a marker is a version and a type, 0 for an abort.
fn is_abort(marker: &Record) -> bool {
    marker.key.as_deref().and_then(|key| key.get(2..4)) == Some(&[0, 0])
}
