//! InitProducerId: who may write under a transactional id (KIP-98, KIP-360).

use super::ask::{Answer, Init, TxnError};
use super::coordinator::Coordinator;
use super::record::{Entry, NO_EPOCH, NO_ID, Producer, Record, Rules, State};
use rangeway_core::replicated::{Now, Outcome};

/// Epochs from here on are not given to clients: one is left by which a producer can be fenced.
const EPOCH_EXHAUSTED: i16 = i16::MAX - 1;

/// Whether a producer id has no epoch left to give.
pub(super) fn is_exhausted(epoch: i16) -> bool {
    epoch >= EPOCH_EXHAUSTED
}

/// What an InitProducerId does to an entry without an open transaction.
enum Next {
    /// The next epoch, and the one before, whose owner may ask again.
    Epoch(i16, i16),
    /// Epoch 0 of another producer id, and the epoch whose owner may ask again.
    OtherId(i16),
}

impl Coordinator {
    /// InitProducerId with a transactional id.
    pub(super) fn init(&mut self, asked: Init, now: Now, out: &mut Outcome<Coordinator>) -> Answer {
        if asked.id.is_empty() {
            return Answer::Init(Err(TxnError::InvalidRequest));
        }
        if asked.timeout_ms <= 0 || asked.timeout_ms > self.settings.timeout_ms_max {
            return Answer::Init(Err(TxnError::InvalidTimeout));
        }
        let next = match self.entry(&asked.id) {
            None => Next::OtherId(NO_EPOCH),
            Some(entry) => match next(entry, asked.expected) {
                Ok(next) => next,
                Err(Refused::Ongoing) => {
                    self.fence(asked.id, now, out);
                    return Answer::Init(Err(TxnError::Concurrent));
                }
                Err(Refused::Error(error)) => return Answer::Init(Err(error)),
            },
        };
        let (producer, last_epoch) = match (next, self.entry(&asked.id), asked.fresh_id) {
            (Next::Epoch(epoch, last), Some(entry), _) => (Producer { id: entry.producer.id, epoch }, last),
            (Next::OtherId(last), _, Some(id)) => (Producer { id, epoch: 0 }, last),
            _ => return Answer::NeedsProducerId,
        };
        let Init { id, timeout_ms, .. } = asked;
        let record = Record::Initialised { id, producer, last_epoch, timeout_ms, at: now.wall_ms };
        self.emit(record, now, out);
        Answer::Init(Ok(producer))
    }

    /// Aborts an ongoing transaction for its producer: the raised epoch keeps whatever it still sends out. A producer
    /// that lives learns of it and may go on under the raised epoch; a newer one gets another.
    pub(super) fn fence(&mut self, id: String, now: Now, out: &mut Outcome<Coordinator>) {
        let Some(entry) = self.entry(&id) else { return };
        let last_epoch = entry.producer.epoch;
        let record = Record::Prepared {
            id,
            commit: false,
            epoch: last_epoch.saturating_add(1),
            last_epoch,
            next_id: NO_ID,
            rules: Rules::V2,
            at: now.wall_ms,
        };
        self.emit(record, now, out);
    }
}

enum Refused {
    /// There is a transaction, which has to be aborted first.
    Ongoing,
    Error(TxnError),
}

fn next(entry: &Entry, expected: Option<Producer>) -> Result<Next, Refused> {
    let fenced = Err(Refused::Error(TxnError::Fenced));
    if !expected.is_none_or(|p| is_own_id(entry, p) || entry.must_wait(p)) {
        return fenced;
    }
    match entry.state {
        State::PrepareCommit | State::PrepareAbort => Err(Refused::Error(TxnError::Concurrent)),
        // A producer of an older epoch ends nobody's transaction. Kafka 4.3 aborts the newer one's before it refuses, and so
        // fences both; what the older one is told in the end is the same.
        State::Ongoing if expected.is_some_and(|p| p != entry.producer) => fenced,
        State::Ongoing => Err(Refused::Ongoing),
        State::Empty | State::CompleteCommit | State::CompleteAbort => {
            let epoch = entry.producer.epoch;
            match expected.map(|p| p.epoch) {
                // Asked again for what raised the epoch: the answer was lost.
                Some(of) if of != epoch && of == entry.last_epoch && !is_exhausted(epoch) => {
                    Ok(Next::Epoch(epoch, entry.last_epoch))
                }
                Some(of) if of != epoch && of != entry.last_epoch => fenced,
                of if is_exhausted(epoch) => Ok(Next::OtherId(of.unwrap_or(NO_EPOCH))),
                None => Ok(Next::Epoch(epoch + 1, NO_EPOCH)),
                Some(_) => Ok(Next::Epoch(epoch + 1, epoch)),
            }
        }
    }
}

/// Whether the producer id that a client names is the present one, or one whose epochs ended.
fn is_own_id(entry: &Entry, named: Producer) -> bool {
    named.id == entry.producer.id || (named.id == entry.previous_id && is_exhausted(named.epoch))
}
