//! What a broker may have done to records, whatever was killed meanwhile: a pure comparison of what was sent, answered
//! and seen with what is stored at the end.
//!
//! Must not know: sockets, processes, time. The rules, each a kind of [`Fault`]:
//! - an acknowledged record is at the offset that the acknowledgement named;
//! - offsets are dense from the log start to the end, and the end never falls;
//! - what was once seen at an offset is there for ever;
//! - an idempotent producer's records of a partition are stored in their order, each once, none left out;
//! - a plain producer's stored batches are its attempts in sending order, each at most once;
//! - nothing is stored that nobody sent, and no byte of a record differs;
//! - leader epochs do not fall along the log; a group's committed offset does not fall.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::payload::{Place, RecordId};

const FAULTS_MAX: usize = 1_000;

/// How a producer numbers its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With producer id and sequences: each record once.
    Idempotent,
    /// Without: a retry may store a batch again.
    Plain,
}

/// A batch handed to a connection; whether it was stored is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Counter of its first record.
    pub first: u64,
    /// Records in it.
    pub count: u32,
}

/// A batch that the broker has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The producer's number.
    pub producer: u32,
    /// The batch.
    pub batch: Attempt,
    /// Offset of its first record, as answered.
    pub base_offset: i64,
}

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of the sentence that Display makes of them")]
pub enum Fault {
    /// An acknowledged record is not stored at all at its offset.
    Lost { place: Place, id: RecordId, offset: i64 },
    /// Another record stands where an acknowledged one must be.
    Renumbered { place: Place, id: RecordId, offset: i64, found: RecordId },
    /// Stored more often than allowed.
    Doubled { place: Place, id: RecordId, offset: i64 },
    /// Stored against the order of sending.
    Reordered { place: Place, id: RecordId, offset: i64 },
    /// An idempotent producer's record is missing before a later one.
    LeftOut { place: Place, id: RecordId, offset: i64 },
    /// A hole or an overlap in the numbering.
    NotDense { place: Place, expected: i64, found: i64 },
    /// A record differs from what was once read at its offset.
    Changed { place: Place, offset: i64, was: RecordId, is: Option<RecordId> },
    /// A record that nobody sent.
    Invented { place: Place, id: RecordId, offset: i64 },
    /// A record whose bytes are wrong.
    Damaged { place: Place, offset: i64, why: String },
    /// A leader epoch below an earlier one of the partition.
    EpochFell { place: Place, offset: i64, was: i32, is: i32 },
    /// The end of a partition lies below an end that was known before.
    EndFell { place: Place, was: i64, is: i64 },
    /// The log start of a partition lies below one that was known before, or moved where nothing may be trimmed.
    StartMoved { place: Place, was: i64, is: i64 },
    /// A group's committed offset lies below an acknowledged commit.
    CommitFell { group: String, place: Place, was: i64, is: i64 },
    /// An answer that the protocol does not allow here.
    Answer { place: Place, what: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { place, id, offset } => {
                write!(f, "LOST {id}, acknowledged at {place} offset {offset}")
            }
            Self::Renumbered { place, id, offset, found } => {
                write!(f, "RENUMBERED {id}, acknowledged at {place} offset {offset} where {found} is")
            }
            Self::Doubled { place, id, offset } => {
                write!(f, "DOUBLED {id}, again at {place} offset {offset}")
            }
            Self::Reordered { place, id, offset } => write!(f, "REORDERED {id} at {place} offset {offset}"),
            Self::LeftOut { place, id, offset } => {
                write!(f, "LEFT OUT {id}, a later one is at {place} offset {offset}")
            }
            Self::NotDense { place, expected, found } => {
                write!(f, "NOT DENSE {place}: offset {found} after {}", expected - 1)
            }
            Self::Changed { place, offset, was, is: Some(is) } => {
                write!(f, "CHANGED {place} offset {offset}: {was} was read, {is} is there")
            }
            Self::Changed { place, offset, was, is: None } => {
                write!(f, "CHANGED {place} offset {offset}: {was} was read, nothing is there")
            }
            Self::Invented { place, id, offset } => write!(f, "INVENTED {id} at {place} offset {offset}"),
            Self::Damaged { place, offset, why } => write!(f, "DAMAGED {place} offset {offset}: {why}"),
            Self::EpochFell { place, offset, was, is } => {
                write!(f, "EPOCH FELL {place} offset {offset}: {is} after {was}")
            }
            Self::EndFell { place, was, is } => write!(f, "END FELL {place}: {is} after {was}"),
            Self::StartMoved { place, was, is } => write!(f, "START MOVED {place}: {is} after {was}"),
            Self::CommitFell { group, place, was, is } => {
                write!(f, "COMMIT FELL group {group} {place}: {is} after {was}")
            }
            Self::Answer { place, what } => write!(f, "ANSWER {place}: {what}"),
        }
    }
}

/// A stored batch as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Leader epoch that it carries.
    pub epoch: i32,
    /// Its records, or what is wrong with one.
    pub records: Vec<Result<RecordId, String>>,
}

/// A partition as it was read back at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// First offset that can be read.
    pub start: i64,
    /// Offset after the last one.
    pub end: i64,
    /// All batches between, in the order in which they came.
    pub batches: Vec<Stored>,
}

#[derive(Debug, Default)]
struct PlaceHistory {
    attempts: BTreeMap<u32, Vec<Attempt>>,
    acks: Vec<Ack>,
    seen: Vec<Option<RecordId>>,
    start: i64,
    end: i64,
}

/// All that was sent, answered and seen in a run.
#[derive(Debug, Default)]
pub struct History {
    kinds: BTreeMap<u32, Kind>,
    places: BTreeMap<Place, PlaceHistory>,
    trimmed: Vec<u16>,
    commits: BTreeMap<(String, Place), (i64, i64)>,
    acked_records: BTreeMap<u32, u64>,
    faults: Vec<Fault>,
}

impl History {
    /// Makes a producer known before its first attempt.
    pub fn producer(&mut self, producer: u32, kind: Kind) {
        self.kinds.insert(producer, kind);
    }

    /// Allows the log start of that topic's partitions to rise.
    pub fn may_trim(&mut self, topic: u16) {
        self.trimmed.push(topic);
    }

    /// A batch goes to a connection; called in sending order.
    pub fn attempted(&mut self, place: Place, producer: u32, batch: Attempt) {
        self.place(place).attempts.entry(producer).or_default().push(batch);
    }

    /// A batch has been acknowledged.
    pub fn acked(&mut self, place: Place, ack: Ack) {
        *self.acked_records.entry(ack.producer).or_default() += u64::from(ack.batch.count);
        let history = self.place(place);
        history.end = history.end.max(ack.base_offset + i64::from(ack.batch.count));
        history.acks.push(ack);
    }

    /// A consumer was given that record, or bytes that are none.
    pub fn seen(&mut self, place: Place, offset: i64, found: Result<RecordId, String>) {
        let id = match found {
            Ok(id) => id,
            Err(why) => return self.faults.push(Fault::Damaged { place, offset, why }),
        };
        let Ok(index) = usize::try_from(offset) else {
            return self.faults.push(Fault::NotDense { place, expected: 0, found: offset });
        };
        let history = self.place(place);
        if history.seen.len() <= index {
            history.seen.resize(index + 1, None);
        }
        history.end = history.end.max(offset + 1);
        match history.seen[index].replace(id) {
            Some(was) if was != id => {
                self.faults.push(Fault::Changed { place, offset, was, is: Some(id) });
            }
            _ => {}
        }
    }

    /// The broker named these as log start and end of a partition, asked when it could know the true ones.
    pub fn bounds(&mut self, place: Place, start: i64, end: i64) {
        let may_trim = self.trimmed.contains(&place.topic);
        let history = self.place(place);
        let (old_start, old_end) = (history.start, history.end);
        history.start = old_start.max(start);
        history.end = old_end.max(end);
        if end < old_end {
            self.faults.push(Fault::EndFell { place, was: old_end, is: end });
        }
        if start < old_start || (start > old_start && !may_trim) {
            self.faults.push(Fault::StartMoved { place, was: old_start, is: start });
        }
    }

    /// A commit was sent.
    pub fn committing(&mut self, group: &str, place: Place, offset: i64) {
        let commit = self.commits.entry((group.to_owned(), place)).or_insert((-1, -1));
        commit.1 = commit.1.max(offset);
    }

    /// That commit was acknowledged.
    pub fn committed(&mut self, group: &str, place: Place, offset: i64) {
        let commit = self.commits.entry((group.to_owned(), place)).or_insert((-1, offset));
        commit.0 = commit.0.max(offset);
    }

    /// The broker answered this as the group's position; -1 stands for none.
    pub fn position(&mut self, group: &str, place: Place, offset: i64) {
        let (acked, sent) = self.commits.get(&(group.to_owned(), place)).copied().unwrap_or((-1, -1));
        if offset < acked {
            self.faults.push(Fault::CommitFell { group: group.to_owned(), place, was: acked, is: offset });
        } else if offset > sent {
            let what = format!("group {group} stands at {offset}, the furthest commit sent is {sent}");
            self.faults.push(Fault::Answer { place, what });
        } else {
            // What was answered once binds like an acknowledged commit.
            self.commits.insert((group.to_owned(), place), (offset, sent));
        }
    }

    /// Something happened that no rule allows. Past a thousand, more of them tell nothing.
    pub fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }

    /// Whether those positions lie at or behind every end known so far.
    pub fn is_read_up_to(&self, positions: &BTreeMap<Place, i64>) -> bool {
        self.places.iter().all(|(place, known)| positions.get(place).is_some_and(|at| *at >= known.end))
    }

    /// Records acknowledged so far.
    pub fn acked_records(&self) -> u64 {
        self.acked_records.values().sum()
    }

    /// A producer that never had a record acknowledged: what the others show says nothing about its kind.
    pub fn idle_producer(&self) -> Option<u32> {
        self.kinds.keys().copied().find(|producer| !self.acked_records.contains_key(producer))
    }

    /// Faults found while the run goes on.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    fn place(&mut self, place: Place) -> &mut PlaceHistory {
        self.places.entry(place).or_default()
    }
}

/// All faults: those found while the run went on, then those that the logs show at the end.
pub fn judge(history: &History, logs: &BTreeMap<Place, Log>) -> Vec<Fault> {
    let mut faults = history.faults.clone();
    let (nothing, empty) = (PlaceHistory::default(), Log::default());
    let mut places: Vec<Place> = history.places.keys().chain(logs.keys()).copied().collect();
    places.sort_unstable();
    places.dedup();
    for place in places {
        let known = history.places.get(&place).unwrap_or(&nothing);
        let log = logs.get(&place).unwrap_or(&empty);
        let whole = whole(place, known, log, &mut faults);
        check_acks(place, known, log, &whole, &mut faults);
        for (id, kind) in &history.kinds {
            let of_producer: Vec<(i64, u64)> = whole
                .iter()
                .enumerate()
                .filter_map(|(offset, found)| {
                    found.filter(|f| f.producer == *id).map(|f| (offset as i64, f.counter))
                })
                .collect();
            let attempts = known.attempts.get(id).map_or(&[][..], Vec::as_slice);
            let check = ProducerCheck { place, producer: *id, attempts, stored: &of_producer, log };
            match kind {
                Kind::Idempotent => check.once_and_in_order(&whole, &mut faults),
                Kind::Plain => check.attempts_in_order(&mut faults),
            }
        }
        for (offset, found) in whole.iter().enumerate() {
            if let Some(id) = found.filter(|id| !history.kinds.contains_key(&id.producer)) {
                faults.push(Fault::Invented { place, id, offset: offset as i64 });
            }
        }
    }
    faults
}

/// Records of plain producers that are stored more than once: kills that met a batch stored and not yet acknowledged.
pub fn repeats(history: &History, logs: &BTreeMap<Place, Log>) -> u64 {
    let mut repeated = 0;
    for log in logs.values() {
        let mut once = BTreeSet::new();
        let ids = log.batches.iter().flat_map(|batch| batch.records.iter().flatten());
        for id in ids.filter(|id| history.kinds.get(&id.producer) == Some(&Kind::Plain)) {
            repeated += u64::from(!once.insert(*id));
        }
    }
    repeated
}

/// What stands at every offset: from the log where it reaches, from what consumers saw where it has been trimmed.
fn whole(place: Place, known: &PlaceHistory, log: &Log, faults: &mut Vec<Fault>) -> Vec<Option<RecordId>> {
    let mut whole = known.seen.clone();
    let mut expected = log.start;
    let mut epoch = -1;
    for batch in &log.batches {
        // The first batch may begin below a log start that lies inside of it.
        if batch.base_offset != expected && expected != log.start || batch.base_offset > expected {
            faults.push(Fault::NotDense { place, expected, found: batch.base_offset });
        }
        if batch.epoch < epoch {
            faults.push(Fault::EpochFell { place, offset: batch.base_offset, was: epoch, is: batch.epoch });
        }
        epoch = epoch.max(batch.epoch);
        for (index, found) in batch.records.iter().enumerate() {
            let offset = batch.base_offset + index as i64;
            let id = match found {
                Ok(id) => *id,
                Err(why) => {
                    faults.push(Fault::Damaged { place, offset, why: why.clone() });
                    continue;
                }
            };
            let at = usize::try_from(offset).unwrap_or(0);
            if whole.len() <= at {
                whole.resize(at + 1, None);
            }
            match whole[at].replace(id) {
                Some(was) if was != id => faults.push(Fault::Changed { place, offset, was, is: Some(id) }),
                _ => {}
            }
        }
        expected = batch.base_offset + batch.records.len() as i64;
    }
    if expected != log.end {
        faults.push(Fault::NotDense { place, expected, found: log.end });
    }
    if log.end < known.end {
        faults.push(Fault::EndFell { place, was: known.end, is: log.end });
    }
    for (offset, seen) in known.seen.iter().enumerate() {
        if let Some(was) = seen.filter(|_| offset as i64 >= expected) {
            faults.push(Fault::Changed { place, offset: offset as i64, was, is: None });
        }
    }
    whole
}

fn check_acks(
    place: Place,
    known: &PlaceHistory,
    log: &Log,
    whole: &[Option<RecordId>],
    faults: &mut Vec<Fault>,
) {
    let read_to = log.batches.last().map_or(log.start, |b| b.base_offset + b.records.len() as i64);
    for ack in &known.acks {
        for index in 0..ack.batch.count {
            let id = RecordId { producer: ack.producer, counter: ack.batch.first + u64::from(index) };
            let offset = ack.base_offset + i64::from(index);
            let found = usize::try_from(offset).ok().and_then(|at| whole.get(at).copied().flatten());
            match found {
                Some(found) if found == id && (offset < log.start || offset < read_to) => {}
                Some(found) if found != id => faults.push(Fault::Renumbered { place, id, offset, found }),
                // Trimmed before any consumer came by: allowed where the log start may rise, and judged there.
                None if offset < log.start => {}
                _ => faults.push(Fault::Lost { place, id, offset }),
            }
        }
    }
}

struct ProducerCheck<'a> {
    place: Place,
    producer: u32,
    attempts: &'a [Attempt],
    /// (offset, counter) of everything of this producer, by offset.
    stored: &'a [(i64, u64)],
    log: &'a Log,
}

impl ProducerCheck<'_> {
    fn id(&self, counter: u64) -> RecordId {
        RecordId { producer: self.producer, counter }
    }

    fn invented(&self, counter: u64) -> bool {
        self.attempts.last().is_none_or(|last| counter >= last.first + u64::from(last.count))
            && !self.attempts.iter().any(|a| (a.first..a.first + u64::from(a.count)).contains(&counter))
    }

    fn once_and_in_order(&self, whole: &[Option<RecordId>], faults: &mut Vec<Fault>) {
        let place = self.place;
        let first_hole = whole.iter().position(Option::is_none).map_or(i64::MAX, |at| at as i64);
        let last_hole = whole.iter().rposition(Option::is_none).map_or(-1, |at| at as i64);
        let mut next = 0;
        let mut seen = BTreeSet::new();
        for &(offset, counter) in self.stored {
            let id = self.id(counter);
            if self.invented(counter) {
                faults.push(Fault::Invented { place, id, offset });
            }
            if !seen.insert(counter) {
                faults.push(Fault::Doubled { place, id, offset });
                continue;
            }
            if counter < next {
                faults.push(Fault::Reordered { place, id, offset });
            } else if counter > next && (offset < first_hole || offset > last_hole) {
                // Before the first trimmed stretch and after the last one nothing may be missing, except across it.
                let across = last_hole >= 0 && self.first_after(last_hole) == Some(offset);
                if !across {
                    faults.push(Fault::LeftOut { place, id: self.id(next), offset });
                }
            }
            next = next.max(counter + 1);
        }
    }

    fn first_after(&self, hole: i64) -> Option<i64> {
        self.stored.iter().map(|&(offset, _)| offset).find(|&offset| offset > hole)
    }

    fn attempts_in_order(&self, faults: &mut Vec<Fault>) {
        let place = self.place;
        let mut left = self.attempts.iter();
        let mut runs = self.stored.iter().copied().filter(|&(offset, _)| offset >= self.log.start).peekable();
        let mut stored_times: BTreeMap<u64, usize> = BTreeMap::new();
        while let Some((offset, counter)) = runs.next() {
            let id = self.id(counter);
            if self.invented(counter) {
                faults.push(Fault::Invented { place, id, offset });
                continue;
            }
            let times = stored_times.entry(counter).or_default();
            *times += 1;
            let rest = left.clone();
            match left.find(|attempt| attempt.first == counter) {
                Some(attempt) => {
                    // The rest of the batch lies back to back with its first record.
                    for index in 1..u64::from(attempt.count) {
                        let wanted = (offset + index as i64, counter + index);
                        if runs.next_if_eq(&wanted).is_none() {
                            let id = self.id(wanted.1);
                            faults.push(Fault::LeftOut { place, id, offset: wanted.0 });
                            break;
                        }
                    }
                }
                None => {
                    left = rest;
                    let sent = self.attempts.iter().filter(|a| a.first == counter).count();
                    let fault = if *times > sent {
                        Fault::Doubled { place, id, offset }
                    } else {
                        Fault::Reordered { place, id, offset }
                    };
                    faults.push(fault);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "judge_test.rs"]
mod tests;
