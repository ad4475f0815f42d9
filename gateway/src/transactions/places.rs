//! Partitions of a transaction: adding them, and whether they were (KIP-98, KIP-890).

use super::ask::{Add, TxnError, Verified};
use super::coordinator::Coordinator;
use super::record::{Entry, Record, State};
use rangeway_core::replicated::{Now, Outcome};

impl Coordinator {
    /// Adds partitions; the first ones begin a transaction. Its number.
    pub(super) fn add(
        &mut self,
        add: Add,
        now: Now,
        out: &mut Outcome<Coordinator>,
    ) -> Result<u64, TxnError> {
        let entry = self.owned(&add)?;
        let has_all = add.places.iter().all(|place| entry.places.contains(place));
        if entry.state == State::Ongoing && has_all {
            return Ok(entry.number);
        }
        let Add { id, places, rules, .. } = add;
        let name = id.clone();
        self.emit(Record::Added { id, places, rules, at: now.wall_ms }, now, out);
        Ok(self.entry(&name).map_or(0, |e| e.number))
    }

    /// Which partitions take part.
    pub(super) fn verify(&self, asked: &Add) -> Result<Verified, TxnError> {
        let entry = self.owned(asked)?;
        let ongoing = entry.state == State::Ongoing;
        let places = asked.places.iter().filter(|place| ongoing && entry.places.contains(place));
        Ok(Verified { number: entry.number, places: places.copied().collect() })
    }

    /// The entry, if the producer owns it and may begin or go on with a transaction.
    fn owned(&self, asked: &Add) -> Result<&Entry, TxnError> {
        if asked.id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        let entry = self.entry(&asked.id).ok_or(TxnError::UnknownProducerId)?;
        if entry.must_wait(asked.producer) {
            return Err(TxnError::Concurrent);
        }
        if entry.producer.id != asked.producer.id {
            return Err(TxnError::UnknownProducerId);
        }
        if entry.producer.epoch != asked.producer.epoch {
            return Err(TxnError::Fenced);
        }
        if entry.state.is_prepared() { Err(TxnError::Concurrent) } else { Ok(entry) }
    }
}
