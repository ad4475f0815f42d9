//! EndTxn: commit or abort, by the rules that the client goes by (KIP-98, KIP-890).
//!
//! What a client is told that ends a transaction which is not ongoing; a retry names the epoch before:
//!
//! | rules 2 | abort, retry | abort | commit, retry | commit |
//! |---|---|---|---|---|
//! | Empty | fenced | aborts an empty one | fenced | invalid |
//! | CompleteAbort | done | aborts an empty one | invalid | invalid |
//! | CompleteCommit | invalid | aborts an empty one | done | invalid |
//! | PrepareAbort | later | later | invalid | later |
//! | PrepareCommit | invalid | later | later | later |
//!
//! By rules 1 the same outcome again is done, everything else invalid, and another epoch fenced.

use super::ask::{Answer, End, TxnError};
use super::coordinator::Coordinator;
use super::init::is_exhausted;
use super::record::{Entry, NO_ID, Producer, Record, Rules, State};
use rangeway_core::replicated::{Now, Outcome};

/// What an EndTxn does.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    /// It was done before.
    Done,
    /// The outcome is decided now.
    Decide,
}

impl Coordinator {
    /// EndTxn; answered once the outcome is durable, markers follow.
    pub(super) fn end(&mut self, end: End, now: Now, out: &mut Outcome<Coordinator>) -> Answer {
        if end.id.is_empty() {
            return Answer::End(Err(TxnError::InvalidRequest));
        }
        let Some(entry) = self.entry(&end.id) else {
            return Answer::End(Err(TxnError::UnknownProducerId));
        };
        let ending = match end.rules {
            Rules::V1 => ending_v1(entry, &end),
            Rules::V2 => ending_v2(entry, &end),
        };
        match ending {
            Ok(Ending::Done) => return Answer::End(Ok(entry.producer)),
            Ok(Ending::Decide) => {}
            Err(error) => return Answer::End(Err(error)),
        }
        let Producer { id: producer_id, epoch } = entry.producer;
        let has_places = entry.state == State::Ongoing;
        let (epoch, last_epoch, next_id) = match end.rules {
            Rules::V1 => (epoch, entry.last_epoch, NO_ID),
            Rules::V2 if !is_exhausted(epoch) => (epoch + 1, epoch, NO_ID),
            Rules::V2 => match end.fresh_id {
                Some(fresh) => (epoch.saturating_add(1), epoch, fresh),
                None => return Answer::NeedsProducerId,
            },
        };
        let End { id, commit, rules, .. } = end;
        let (name, at) = (id.clone(), now.wall_ms);
        self.emit(Record::Prepared { id, commit, epoch, last_epoch, next_id, rules, at }, now, out);
        if !has_places {
            self.emit(Record::Completed { id: name, at }, now, out);
        }
        let next = match next_id {
            NO_ID => Producer { id: producer_id, epoch },
            id => Producer { id, epoch: 0 },
        };
        Answer::End(Ok(next))
    }
}

fn ending_v1(entry: &Entry, end: &End) -> Result<Ending, TxnError> {
    if entry.producer.id != end.producer.id {
        return Err(TxnError::UnknownProducerId);
    }
    if entry.producer.epoch != end.producer.epoch {
        return Err(TxnError::Fenced);
    }
    match (entry.state, end.commit) {
        (State::Ongoing, _) => Ok(Ending::Decide),
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => Ok(Ending::Done),
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => Err(TxnError::Concurrent),
        (State::Empty, _)
        | (State::CompleteCommit | State::PrepareCommit, false)
        | (State::CompleteAbort | State::PrepareAbort, true) => Err(TxnError::InvalidState),
    }
}

fn ending_v2(entry: &Entry, end: &End) -> Result<Ending, TxnError> {
    let by = end.producer;
    if entry.must_wait(by) {
        return Err(TxnError::Concurrent);
    }
    let is_current = by.epoch == entry.producer.epoch;
    let raised_it = by.epoch.checked_add(1) == Some(entry.producer.epoch);
    let exhausted_it = entry.previous_id == by.id
        && by.id != entry.producer.id
        && is_exhausted(by.epoch)
        && entry.producer.epoch == 0;
    if entry.producer.id != by.id && !exhausted_it {
        return Err(TxnError::UnknownProducerId);
    }
    let is_retry = raised_it || exhausted_it;
    match (entry.state, end.commit) {
        (State::Ongoing, _) if is_current => Ok(Ending::Decide),
        (State::Empty, false) if is_current => Ok(Ending::Decide),
        (State::Empty, true) if is_current => Err(TxnError::InvalidState),
        (State::Ongoing | State::Empty, _) => Err(TxnError::Fenced),

        (State::PrepareCommit, true) | (State::PrepareAbort, false) if raised_it => Err(TxnError::Concurrent),
        (State::PrepareCommit | State::PrepareAbort, _) if raised_it => Err(TxnError::InvalidState),
        (State::PrepareCommit | State::PrepareAbort, _) => Err(TxnError::Fenced),

        (State::CompleteCommit, true) | (State::CompleteAbort, false) if is_retry => Ok(Ending::Done),
        (State::CompleteCommit | State::CompleteAbort, false) if is_current => Ok(Ending::Decide),
        (State::CompleteCommit | State::CompleteAbort, _) if is_retry || is_current => {
            Err(TxnError::InvalidState)
        }
        (State::CompleteCommit | State::CompleteAbort, _) => Err(TxnError::Fenced),
    }
}
