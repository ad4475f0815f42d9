//! Offsets that are committed within a transaction: they wait until the transaction's marker reaches this partition of
//! `__groups`, then count all together or are dropped (KIP-98, KIP-447).
//!
//! ```text
//!  TxnOffsetCommit ──► pending (producer id, number of its transaction) ── marker: commit ──► offsets of the group
//!                                                                        └─ marker: abort ───► nothing
//! ```
//! Which of two commits of one partition is the newer is told by when they were made, not by when their transactions
//! end: a position that a later commit has replaced is dropped, but its partition has no stable offset before that end.
//!
//! INV-TXN-6 offsets of a transaction count all together with its commit, and are never shown as stable before its end.

use super::ask::{Commit, CommitPosition, GroupError, State};
use super::coordinator::{Coordinator, Turn};
use super::offsets::is_too_long;
use super::record::{Key, Position, Record, Stored};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Number of a commit that a later one has replaced; real ones are counted from 1.
const REPLACED: u64 = 0;

/// TxnOffsetCommit: a commit, and the transaction that it is part of.
#[derive(Clone, Debug)]
pub(crate) struct PendingCommit {
    /// The producer.
    pub(crate) producer_id: i64,
    /// Its transaction, as its coordinator numbers it.
    pub(crate) number: u64,
    /// What it commits.
    pub(crate) commit: Commit,
}

/// Record: offsets of a group that wait for the end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingOffsets {
    /// The producer.
    pub(crate) producer_id: i64,
    /// Its transaction.
    pub(crate) number: u64,
    /// The group.
    pub(crate) group: String,
    /// What was committed.
    pub(crate) positions: Vec<(Key, Position)>,
}

/// Record, and the question that makes it: a producer's transaction ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The producer.
    pub(crate) producer_id: i64,
    /// Its transaction; this one and earlier ones are over.
    pub(crate) number: u64,
    /// Committed, else aborted.
    pub(crate) commit: bool,
}

/// All pending offsets of one partition of `__groups`; durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// By producer id.
    producers: BTreeMap<i64, OfProducer>,
    /// Counts commits: a later one has a higher number.
    commits: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OfProducer {
    number: u64,
    /// By group and partition: which commit it was ([`REPLACED`] from then on), and what.
    positions: BTreeMap<(String, Key), (u64, Position)>,
}

impl Pending {
    /// Applies one record of the partition.
    pub(super) fn apply(&mut self, groups: &mut BTreeMap<String, Stored>, record: &Record) {
        match record {
            Record::OffsetsPending(added) => self.add(added),
            Record::TransactionEnded(ended) => self.end(groups, *ended),
            Record::Committed { group, positions } => {
                let replaced: BTreeSet<Key> = positions.iter().map(|(key, _)| *key).collect();
                self.replace(|(of, key), _| of == group && replaced.contains(key));
            }
            Record::OffsetsDropped { .. }
            | Record::Formed { .. }
            | Record::Assigned { .. }
            | Record::Consumer { .. }
            | Record::Configured { .. } => {}
            Record::GroupDropped { group } => self.retain(|(of, _)| of != group),
        }
    }

    fn add(&mut self, added: &PendingOffsets) {
        self.commits += 1;
        let of = self.producers.entry(added.producer_id).or_default();
        if of.number != added.number {
            *of = OfProducer { number: added.number, positions: BTreeMap::new() };
        }
        for (key, position) in &added.positions {
            of.positions.insert((added.group.clone(), *key), (self.commits, position.clone()));
        }
    }

    fn end(&mut self, groups: &mut BTreeMap<String, Stored>, ended: Ended) {
        if !self.holds(ended) {
            return;
        }
        let positions = self.producers.remove(&ended.producer_id).unwrap_or_default().positions;
        if !ended.commit {
            return;
        }
        for (place, (committed, position)) in positions {
            if committed == REPLACED {
                continue;
            }
            self.replace(|other, at| *other == place && at <= committed);
            let (group, key) = place;
            groups.entry(group).or_default().offsets.to_mut().insert(key, position);
        }
    }

    /// Offsets that count when `record`, which ends a transaction, is applied.
    pub(super) fn counts_with(&self, record: &Record) -> Vec<(String, Key)> {
        let Record::TransactionEnded(ended) = record else { return Vec::new() };
        let of = self.producers.get(&ended.producer_id).filter(|_| ended.commit && self.holds(*ended));
        let positions = of.into_iter().flat_map(|of| of.positions.iter());
        positions.filter(|(_, (at, _))| *at != REPLACED).map(|(place, _)| place.clone()).collect()
    }

    /// What `which` picks, of (group and partition, number of its commit), a later commit has replaced: it goes on waiting
    /// and will not count.
    fn replace(&mut self, which: impl Fn(&(String, Key), u64) -> bool) {
        let positions = self.producers.values_mut().flat_map(|of| of.positions.iter_mut());
        for (place, (at, _)) in positions {
            if which(place, *at) {
                *at = REPLACED;
            }
        }
    }

    /// Keeps what `keep` says of a group and partition.
    fn retain(&mut self, keep: impl Fn(&(String, Key)) -> bool) {
        self.producers.retain(|_, of| {
            of.positions.retain(|place, _| keep(place));
            !of.positions.is_empty()
        });
    }

    /// Whether anything waits for the end of this transaction or of one before it.
    fn holds(&self, ended: Ended) -> bool {
        self.producers.get(&ended.producer_id).is_some_and(|of| of.number <= ended.number)
    }

    /// Partitions of a group with an offset that waits.
    fn keys_of(&self, group: &str) -> BTreeSet<Key> {
        let places = self.producers.values().flat_map(|of| of.positions.keys());
        places.filter(|(of, _)| of == group).map(|(_, key)| *key).collect()
    }

    /// Whether a group has an offset that waits.
    pub(super) fn has_group(&self, group: &str) -> bool {
        self.producers.values().any(|of| of.positions.keys().any(|(name, _)| name == group))
    }
}

impl Turn<'_> {
    /// TxnOffsetCommit: refused as a whole, or one answer per partition.
    pub(super) fn commit_pending(
        &mut self,
        asked: PendingCommit,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        self.check_pending(&asked.commit)?;
        let metadata_max = self.coordinator.settings.metadata_units_max;
        let committed_at = self.now.wall_ms;
        let mut answers = Vec::with_capacity(asked.commit.positions.len());
        let mut positions = Vec::with_capacity(asked.commit.positions.len());
        for (key, CommitPosition { offset, leader_epoch, metadata }) in asked.commit.positions {
            if is_too_long(&metadata, metadata_max) {
                answers.push(Err(GroupError::MetadataTooLarge));
                continue;
            }
            answers.push(Ok(()));
            positions
                .push((key, Position { offset, leader_epoch, metadata, committed_at, expires_at: None }));
        }
        if !positions.is_empty() {
            let PendingCommit { producer_id, number, .. } = asked;
            let group = self.group.to_owned();
            self.emit(Record::OffsetsPending(PendingOffsets { producer_id, number, group, positions }));
        }
        Ok(answers)
    }

    /// Kafka's checks: as of a plain commit, but without a member id in any state (old versions have none), and during a
    /// rebalance too.
    fn check_pending(&mut self, commit: &Commit) -> Result<(), GroupError> {
        let caller = &commit.caller;
        if let Some(image) = self.consumer() {
            return image.check_pending(commit);
        }
        if !self.exists() {
            return if caller.generation < 0 { Ok(()) } else { Err(GroupError::IllegalGeneration) };
        }
        if caller.generation < 0 && self.state() == State::Empty {
            return Ok(());
        }
        if caller.generation < 0 && caller.member_id.is_empty() && caller.instance_id.is_none() {
            return Ok(());
        }
        self.live().validate(&caller.member_id, caller.instance_id.as_deref())?;
        if caller.generation == self.generation() { Ok(()) } else { Err(GroupError::IllegalGeneration) }
    }
}

impl Coordinator {
    /// Ends a transaction for all groups of this partition; the record, if anything waited for it.
    pub(super) fn end_transaction(&self, ended: Ended) -> Option<Record> {
        self.pending.holds(ended).then_some(Record::TransactionEnded(ended))
    }

    /// Partitions of a group with an offset that waits for the end of a transaction.
    pub(super) fn pending_keys(&self, group: &str) -> BTreeSet<Key> {
        self.pending.keys_of(group)
    }
}
