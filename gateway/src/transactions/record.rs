//! What is stored of transactions: records, and the state they fold to. Version 1 of the layout; fields are only ever
//! changed together with [`VERSION`].

use rangeway_core::error::TopicPartition;
use rangeway_core::replicated::Shared;
use rangeway_core::types::{Partition, TopicId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the layout of everything in this file.
pub(crate) const VERSION: u8 = 1;
/// No producer id.
pub(crate) const NO_ID: i64 = -1;
/// No epoch.
pub(crate) const NO_EPOCH: i16 = -1;

/// A partition that takes part in a transaction: by topic id, so that a topic made anew under an old name is another.
pub(crate) type Place = (TopicId, Partition);

/// As core names it.
pub(crate) fn at((topic, partition): Place) -> TopicPartition {
    TopicPartition { topic, partition }
}

/// Who writes: a producer id in one of its epochs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Producer {
    /// Its id.
    pub(crate) id: i64,
    /// Its epoch; an older one is fenced by a newer one.
    pub(crate) epoch: i16,
}

/// Which rules the client of a transaction goes by (KIP-890).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Rules {
    /// Partitions are added before they are written; the epoch stays.
    #[default]
    V1,
    /// Writing adds a partition; each transaction's end raises the epoch.
    V2,
}

/// Where a transaction stands.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// None was begun since the producer was initialised.
    #[default]
    Empty,
    /// Partitions are written.
    Ongoing,
    /// To be committed, whatever happens: markers are on their way.
    PrepareCommit,
    /// To be aborted, whatever happens: markers are on their way.
    PrepareAbort,
    /// All markers are written.
    CompleteCommit,
    /// All markers are written.
    CompleteAbort,
}

impl State {
    /// Kafka's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
        }
    }

    /// Whether markers are on their way.
    pub(crate) fn is_prepared(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }
}

/// One durable fact of a transactional id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A producer was initialised: it has no transaction.
    Initialised {
        /// The transactional id.
        id: String,
        /// Who may write from here on.
        producer: Producer,
        /// The epoch before, whose owner may ask for this one again; [`NO_EPOCH`]: nobody may.
        last_epoch: i16,
        /// How long a transaction may take, ms.
        timeout_ms: i32,
        /// Wall clock, ms.
        at: i64,
    },
    /// Partitions take part; the first ones begin a transaction.
    Added {
        /// The transactional id.
        id: String,
        /// Which.
        places: Vec<Place>,
        /// The client's rules.
        rules: Rules,
        /// Wall clock, ms.
        at: i64,
    },
    /// The transaction's outcome is decided.
    Prepared {
        /// The transactional id.
        id: String,
        /// Committed, else aborted.
        commit: bool,
        /// Raised by one, or as it was.
        epoch: i16,
        /// The epoch before, whose owner may ask again.
        last_epoch: i16,
        /// The producer id that follows once all markers are written; [`NO_ID`]: the same.
        next_id: i64,
        /// The rules it ended by.
        rules: Rules,
        /// Wall clock, ms.
        at: i64,
    },
    /// All markers are written.
    Completed {
        /// The transactional id.
        id: String,
        /// Wall clock, ms.
        at: i64,
    },
    /// Unused for so long that it is forgotten.
    Expired {
        /// The transactional id.
        id: String,
    },
}

/// A transactional id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Who may write; its markers carry this.
    pub(crate) producer: Producer,
    /// Producer id before the last change of state; [`NO_ID`] in the first.
    pub(crate) previous_id: i64,
    /// Producer id once all markers are written; [`NO_ID`]: the same.
    pub(crate) next_id: i64,
    /// The epoch before, whose owner may ask again for what raised it; [`NO_EPOCH`]: nobody.
    pub(crate) last_epoch: i16,
    /// How long a transaction may take, ms.
    pub(crate) timeout_ms: i32,
    /// Where it stands.
    pub(crate) state: State,
    /// Number of the transaction, from 1; markers carry it, so that a late copy of one ends nothing later.
    pub(crate) number: u64,
    /// Partitions of the transaction.
    pub(crate) places: BTreeSet<Place>,
    /// When it began, wall clock ms; -1: none did.
    pub(crate) started_at: i64,
    /// Wall clock ms of the last change.
    pub(crate) updated_at: i64,
    /// Rules of the last transaction.
    pub(crate) rules: Rules,
}

impl Entry {
    /// Who goes on once the end that is decided is complete; before, that producer is asked to wait.
    pub(super) fn goes_on(&self) -> Producer {
        match self.next_id {
            NO_ID => self.producer,
            id => Producer { id, epoch: 0 },
        }
    }

    /// Whether this is the producer that goes on, and it has to wait. It was told of the end when that was decided, and may be faster
    /// than the markers.
    pub(super) fn must_wait(&self, by: Producer) -> bool {
        self.state.is_prepared() && self.goes_on() == by
    }
}

/// All transactional ids of a partition.
pub(crate) type Entries = BTreeMap<String, Shared<Entry>>;

/// Applies one record.
pub(crate) fn apply(entries: &mut Entries, record: &Record) {
    match record {
        Record::Initialised { id, producer, last_epoch, timeout_ms, at } => {
            let before = entries.get(id);
            let entry = Entry {
                producer: *producer,
                previous_id: before.map_or(NO_ID, |e| e.producer.id),
                next_id: NO_ID,
                last_epoch: *last_epoch,
                timeout_ms: *timeout_ms,
                state: State::Empty,
                number: before.map_or(0, |e| e.number),
                places: BTreeSet::new(),
                started_at: -1,
                updated_at: *at,
                rules: before.map_or(Rules::V1, |e| e.rules),
            };
            entries.insert(id.clone(), Shared::new(entry));
        }
        Record::Added { id, places, rules, at } => {
            let Some(entry) = entries.get_mut(id).map(Shared::to_mut) else { return };
            if entry.state != State::Ongoing {
                entry.begin(*at);
            }
            entry.state = State::Ongoing;
            entry.places.extend(places.iter().copied());
            entry.previous_id = entry.producer.id;
            entry.rules = *rules;
            entry.updated_at = *at;
        }
        Record::Prepared { id, commit, epoch, last_epoch, next_id, rules, at } => {
            let Some(entry) = entries.get_mut(id).map(Shared::to_mut) else { return };
            if entry.state != State::Ongoing {
                entry.begin(*at);
            }
            entry.state = if *commit { State::PrepareCommit } else { State::PrepareAbort };
            entry.previous_id = entry.producer.id;
            entry.producer.epoch = *epoch;
            entry.last_epoch = *last_epoch;
            entry.next_id = *next_id;
            entry.rules = *rules;
            entry.updated_at = *at;
        }
        Record::Completed { id, at } => {
            let Some(entry) = entries.get_mut(id).map(Shared::to_mut) else { return };
            entry.state = match entry.state {
                State::PrepareCommit => State::CompleteCommit,
                _ => State::CompleteAbort,
            };
            entry.previous_id = entry.producer.id;
            if entry.next_id != NO_ID {
                entry.producer = Producer { id: entry.next_id, epoch: 0 };
                entry.next_id = NO_ID;
            }
            entry.places.clear();
            entry.updated_at = *at;
        }
        Record::Expired { id } => {
            entries.remove(id);
        }
    }
}

impl Entry {
    fn begin(&mut self, at: i64) {
        self.number += 1;
        self.places.clear();
        self.started_at = at;
    }
}
