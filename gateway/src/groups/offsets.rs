//! Committed offsets: commit, fetch, delete, expiry.

use super::ask::{Commit, CommitPosition, GroupError, State};
use super::coordinator::{Coordinator, Turn};
use super::mutant::{self, Mutant};
use super::record::{GroupImage, Key, Phase, Position, Record};
use super::subscription;
use rangeway_core::api::Catalog;
use rangeway_core::replicated::{Now, Outcome};
use rangeway_core::types::TopicId;
use std::collections::BTreeSet;

/// Whether the text of a commit is longer than it may be, counted as Kafka does: in UTF-16 units.
pub(super) fn is_too_long(metadata: &str, units_max: usize) -> bool {
    metadata.len() > units_max && metadata.encode_utf16().count() > units_max
}

impl Turn<'_> {
    /// OffsetCommit: refused as a whole, or one answer per partition.
    pub(super) fn commit(&mut self, commit: Commit) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        self.check_commit(&commit)?;
        let metadata_max = self.coordinator.settings.metadata_units_max;
        let now_ms = self.now.wall_ms;
        let expires_at = commit.retention_ms.map(|ms| now_ms.saturating_add(ms));
        let mut answers = Vec::with_capacity(commit.positions.len());
        let mut positions = Vec::with_capacity(commit.positions.len());
        for (key, CommitPosition { offset, leader_epoch, metadata }) in commit.positions {
            if is_too_long(&metadata, metadata_max) {
                answers.push(Err(GroupError::MetadataTooLarge));
                continue;
            }
            answers.push(Ok(()));
            if mutant::is(Mutant::FirstCommitStays) && self.coordinator.has_offset(self.group, &key) {
                continue;
            }
            positions
                .push((key, Position { offset, leader_epoch, metadata, committed_at: now_ms, expires_at }));
        }
        if !positions.is_empty() {
            let group = self.group.to_owned();
            self.emit(Record::Committed { group, positions });
        }
        Ok(answers)
    }

    /// Kafka's checks in Kafka's order.
    fn check_commit(&mut self, commit: &Commit) -> Result<(), GroupError> {
        if let Some(image) = self.consumer() {
            return image.check_commit(commit);
        }
        let caller = &commit.caller;
        if !self.exists() {
            return match caller.generation {
                ..0 => Ok(()),
                _ if commit.says_group_not_found => Err(GroupError::GroupNotFound),
                _ => Err(GroupError::IllegalGeneration),
            };
        }
        let state = self.state();
        if caller.generation < 0 && state == State::Empty {
            return Ok(());
        }
        let speaks_as_member =
            caller.generation >= 0 || !caller.member_id.is_empty() || caller.instance_id.is_some();
        if !speaks_as_member {
            return if state == State::Empty { Ok(()) } else { Err(GroupError::UnknownMember) };
        }
        self.live().validate(&caller.member_id, caller.instance_id.as_deref())?;
        if caller.generation != self.generation() && !mutant::is(Mutant::AnyGenerationCommits) {
            return Err(GroupError::IllegalGeneration);
        }
        if state == State::CompletingRebalance {
            return Err(GroupError::RebalanceInProgress);
        }
        let now_ms = self.now.mono_ms;
        self.live().touch(&caller.member_id, now_ms);
        Ok(())
    }

    /// OffsetDelete: refused as a whole, or one answer per partition.
    pub(super) fn delete_offsets(
        &mut self,
        keys: Vec<(Key, String)>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        if !self.exists() {
            return Err(GroupError::GroupNotFound);
        }
        let image = self.image();
        let is_consumer = image.protocol_type.as_deref() == Some(subscription::PROTOCOL_TYPE);
        if self.consumer().is_none() && self.state() != State::Empty && !is_consumer {
            return Err(GroupError::NonEmptyGroup);
        }
        let subscribed = Subscribed::of(&image);
        let of_consumers = self.consumer().map(|image| image.topics.clone()).unwrap_or_default();
        let mut gone = Vec::new();
        let mut answers = Vec::with_capacity(keys.len());
        for (key, topic) in keys {
            if subscribed.to(&topic) || of_consumers.contains_key(&key.0) {
                answers.push(Err(GroupError::SubscribedToTopic));
                continue;
            }
            answers.push(Ok(()));
            gone.push(key);
        }
        let stored = self.coordinator.stored.get(self.group);
        gone.retain(|key| stored.is_some_and(|s| s.offsets.contains_key(key)));
        if !gone.is_empty() {
            let group = self.group.to_owned();
            self.emit(Record::OffsetsDropped { group, keys: gone });
        }
        Ok(answers)
    }
}

impl Coordinator {
    fn has_offset(&self, group: &str, key: &Key) -> bool {
        self.stored.get(group).is_some_and(|stored| stored.offsets.contains_key(key))
    }

    /// OffsetFetch: of these partitions in order, or of all that are committed.
    pub(super) fn offsets(&self, group: &str, keys: Option<Vec<Key>>) -> Vec<(Key, Option<Position>)> {
        let offsets = self.stored.get(group).map(|s| &s.offsets);
        match keys {
            Some(keys) => {
                keys.into_iter().map(|key| (key, offsets.and_then(|o| o.get(&key)).cloned())).collect()
            }
            None => {
                let all = offsets.into_iter().flat_map(|o| o.iter());
                all.map(|(key, position)| (*key, Some(position.clone()))).collect()
            }
        }
    }

    /// Drops offsets that have expired or whose topic is gone, and empty groups without offsets.
    pub(super) fn sweep(&mut self, now: Now, out: &mut Outcome<Coordinator>) {
        let catalog = self.catalog.clone();
        let gone = self.topics_gone(&catalog, now);
        for group in self.names() {
            let keys = self.due_offsets(&group, &gone, &catalog, now);
            if !keys.is_empty() {
                out.emit(self, Record::OffsetsDropped { group: group.clone(), keys });
            }
            let without_offsets = self.stored.get(&group).is_none_or(|s| s.offsets.is_empty())
                && !self.pending.has_group(&group);
            if without_offsets && self.is_empty(&group) && !self.live.contains_key(&group) {
                out.emit(self, Record::GroupDropped { group });
            }
        }
    }

    /// Whether a group that is stored has no members.
    fn is_empty(&self, group: &str) -> bool {
        match self.consumers.groups.get(group) {
            Some(image) => image.members.is_empty(),
            None => self.state(group) == State::Empty,
        }
    }

    /// Topics with offsets that have been absent from the catalog for long enough.
    fn topics_gone(&mut self, catalog: &Catalog, now: Now) -> BTreeSet<TopicId> {
        let keys = self.stored.values().flat_map(|s| s.offsets.keys());
        let absent: BTreeSet<TopicId> =
            keys.map(|(id, _)| *id).filter(|id| !catalog.by_id.contains_key(id)).collect();
        self.absent_topics.retain(|id, _| absent.contains(id));
        for id in &absent {
            self.absent_topics.entry(*id).or_insert(now.mono_ms);
        }
        let grace_ms = self.settings.absent_topic_grace_ms;
        let absent = self.absent_topics.iter();
        absent
            .filter(|(_, since)| now.mono_ms.saturating_sub(**since) >= grace_ms)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Offsets of a group to drop. Expiry counts from the last commit, and from when the group became empty if it
    /// has a protocol; never for what members consume, nor during a rebalance (KIP-211).
    fn due_offsets(&self, group: &str, gone: &BTreeSet<TopicId>, catalog: &Catalog, now: Now) -> Vec<Key> {
        let Some(stored) = self.stored.get(group) else { return Vec::new() };
        let is_empty = self.is_empty(group);
        let consumers = self.consumers.groups.get(group);
        let since = match (consumers, &stored.group.protocol_type) {
            (Some(image), _) if is_empty => image.emptied_at,
            (None, Some(_)) if is_empty => stored.group.changed_at,
            _ => i64::MIN,
        };
        let may_expire = consumers.is_some() || matches!(self.state(group), State::Empty | State::Stable);
        let subscribed = Subscribed::of(&stored.group);
        let is_read = |topic: &TopicId| match consumers {
            Some(image) => image.topics.contains_key(topic),
            None => catalog.by_id.get(topic).is_none_or(|topic| subscribed.to(&topic.name)),
        };
        let expired = |(topic, _): &Key, position: &Position| {
            let consumed = !is_empty && is_read(topic);
            may_expire && !consumed && self.has_expired(position, since, now)
        };
        let offsets = stored.offsets.iter();
        offsets.filter(|(key, p)| gone.contains(&key.0) || expired(key, p)).map(|(key, _)| *key).collect()
    }

    fn has_expired(&self, position: &Position, since: i64, now: Now) -> bool {
        match position.expires_at {
            Some(at) => now.wall_ms >= at,
            None => {
                let from = position.committed_at.max(since);
                now.wall_ms.saturating_sub(from) >= self.settings.offsets_retention_ms
            }
        }
    }
}

/// What the members of a generation consume.
enum Subscribed {
    /// These topics.
    Topics(BTreeSet<String>),
    /// Nobody knows: take it for everything.
    Unknown,
}

impl Subscribed {
    fn of(image: &GroupImage) -> Subscribed {
        if image.phase == Phase::Empty {
            return Subscribed::Topics(BTreeSet::new());
        }
        if image.protocol_type.as_deref() != Some(subscription::PROTOCOL_TYPE) {
            return Subscribed::Unknown;
        }
        let protocol = image.protocol.as_deref().unwrap_or_default();
        let mut topics = BTreeSet::new();
        for member in image.members.values() {
            match member.info.metadata(protocol).and_then(|blob| subscription::topics(&blob.0)) {
                Some(of_member) => topics.extend(of_member),
                None => return Subscribed::Unknown,
            }
        }
        Subscribed::Topics(topics)
    }

    fn to(&self, topic: &str) -> bool {
        match self {
            Subscribed::Topics(topics) => topics.contains(topic),
            Subscribed::Unknown => true,
        }
    }
}
