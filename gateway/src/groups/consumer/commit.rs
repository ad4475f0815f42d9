//! Who may commit and read offsets of a consumer group.

use super::super::ask::{Commit, CommitPosition, GroupError};
use super::super::coordinator::Coordinator;
use super::super::mutant::{self, Mutant};
use super::super::record::Key;
use super::image::ConsumerImage;

impl ConsumerImage {
    /// OffsetCommit: Kafka's checks in Kafka's order.
    pub(in super::super) fn check_commit(&self, commit: &Commit) -> Result<(), GroupError> {
        let caller = &commit.caller;
        if caller.generation < 0 && self.members.is_empty() {
            return Ok(());
        }
        let member = self.members.get(&caller.member_id).ok_or(GroupError::UnknownMember)?;
        let is_classic = member.subscription.classic.is_some();
        if !is_classic && !commit.says_group_not_found {
            return Err(GroupError::UnsupportedVersion);
        }
        if mutant::is(Mutant::AnyEpochCommits) {
            return Ok(());
        }
        self.check_owner(&caller.member_id, caller.generation, &commit.positions)
    }

    /// TxnOffsetCommit: without a member id anybody may; producers know of generations alone.
    pub(in super::super) fn check_pending(&self, commit: &Commit) -> Result<(), GroupError> {
        let caller = &commit.caller;
        if caller.generation < 0 && (caller.member_id.is_empty() || self.members.is_empty()) {
            return Ok(());
        }
        let checked = self.check_owner(&caller.member_id, caller.generation, &commit.positions);
        checked.map_err(|error| match error {
            GroupError::StaleMemberEpoch => GroupError::IllegalGeneration,
            other => other,
        })
    }

    /// The member's present epoch; or an earlier one, in which it held all of these already (KIP-1251): a commit that was on
    /// its way when the epoch moved counts. Refused as a whole, as Kafka does.
    fn check_owner(
        &self,
        member_id: &str,
        epoch: i32,
        positions: &[(Key, CommitPosition)],
    ) -> Result<(), GroupError> {
        let member = self.members.get(member_id).ok_or(GroupError::UnknownMember)?;
        let held = |key: Key| member.held_since(key).is_some_and(|since| since <= epoch);
        let is_classic = member.subscription.classic.is_some();
        if !is_classic && epoch < member.current.epoch && positions.iter().all(|(key, _)| held(*key)) {
            return Ok(());
        }
        self.check_epoch(member_id, epoch)
    }

    fn check_epoch(&self, member_id: &str, epoch: i32) -> Result<(), GroupError> {
        let member = self.members.get(member_id).ok_or(GroupError::UnknownMember)?;
        match member.current.epoch == epoch {
            true => Ok(()),
            false if member.subscription.classic.is_some() => Err(GroupError::IllegalGeneration),
            false => Err(GroupError::StaleMemberEpoch),
        }
    }
}

impl Coordinator {
    /// OffsetFetch v9: a member that names itself must be one, in its epoch.
    pub(in super::super) fn check_reader(
        &self,
        group: &str,
        reader: Option<&(String, i32)>,
    ) -> Result<(), GroupError> {
        match (self.consumers.groups.get(group), reader) {
            (Some(image), Some((member_id, epoch))) => image.check_epoch(member_id, *epoch),
            (None, _) | (_, None) => Ok(()),
        }
    }
}
