//! Assignments, signs of life, leaving, and what time does to members.

use super::ask::{Answer, Caller, GroupError, Leaver, State, Sync, Synced};
use super::coordinator::Turn;
use super::record::{Blob, Record};
use rangeway_core::replicated::Ticket;

impl Turn<'_> {
    /// SyncGroup: answered now, or when the leader's assignment is stored.
    pub(super) fn sync(&mut self, ticket: Ticket, sync: Sync) {
        let member_id = sync.caller.member_id.clone();
        match self.try_sync(ticket, sync) {
            Ok(SyncDone::Parked) => {}
            Ok(SyncDone::Known) => {
                let synced = self.assignment_of(&member_id);
                self.out.reply(ticket, Answer::Sync(Ok(synced)));
            }
            Err(error) => self.out.reply(ticket, Answer::Sync(Err(error))),
        }
    }

    fn try_sync(&mut self, ticket: Ticket, sync: Sync) -> Result<SyncDone, GroupError> {
        self.check_caller(&sync.caller)?;
        let image = self.image();
        let differs = |asked: &Option<String>, is: &Option<String>| asked.is_some() && asked != is;
        if differs(&sync.protocol_type, &image.protocol_type) || differs(&sync.protocol, &image.protocol) {
            return Err(GroupError::InconsistentProtocol);
        }
        let now_ms = self.now.mono_ms;
        let member_id = &sync.caller.member_id;
        match self.state() {
            State::Empty | State::Dead => Err(GroupError::UnknownMember),
            State::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            State::Stable => {
                self.mark_synced(member_id, None);
                self.live().touch(member_id, now_ms);
                Ok(SyncDone::Known)
            }
            State::CompletingRebalance => {
                self.mark_synced(member_id, Some(ticket));
                if image.leader.as_ref() == Some(member_id) {
                    self.assign(sync.assignments);
                }
                Ok(SyncDone::Parked)
            }
        }
    }

    fn mark_synced(&mut self, member_id: &str, ticket: Option<Ticket>) {
        let Some(member) = self.live().members.get_mut(member_id) else { return };
        member.synced = true;
        let before = std::mem::replace(&mut member.sync, ticket);
        if let Some(before) = before {
            // Its connection was given up; the member asks again on another.
            self.out.reply(before, Answer::Sync(Err(GroupError::RebalanceInProgress)));
        }
    }

    /// Stores the leader's assignment and answers all who wait for it.
    fn assign(&mut self, assignments: Vec<(String, Blob)>) {
        let now_ms = self.now.mono_ms;
        let (group, at) = (self.group.to_owned(), self.now.wall_ms);
        let members = &self.live().members;
        let assignments = assignments.into_iter().filter(|(id, _)| members.contains_key(id)).collect();
        self.emit(Record::Assigned { group, assignments, at });
        let waiting: Vec<(String, Ticket)> = {
            let members = self.live().members.iter_mut();
            members.filter_map(|(id, m)| m.sync.take().map(|ticket| (id.clone(), ticket))).collect()
        };
        for (id, ticket) in waiting {
            self.live().touch(&id, now_ms);
            let synced = self.assignment_of(&id);
            self.out.reply(ticket, Answer::Sync(Ok(synced)));
        }
    }

    fn assignment_of(&self, member_id: &str) -> Synced {
        let stored = self.coordinator.stored.get(self.group);
        let image = stored.map(|s| &s.group);
        let member = image.and_then(|i| i.members.get(member_id));
        Synced {
            protocol_type: image.and_then(|i| i.protocol_type.clone()).unwrap_or_default(),
            protocol: image.and_then(|i| i.protocol.clone()).unwrap_or_default(),
            assignment: member.map(|m| m.assignment.clone()).unwrap_or_default(),
        }
    }

    /// Heartbeat. A member learns here that it has to join again.
    pub(super) fn heartbeat(&mut self, caller: &Caller) -> Result<(), GroupError> {
        self.check_caller(caller)?;
        let now_ms = self.now.mono_ms;
        match self.state() {
            State::Empty | State::Dead => Err(GroupError::UnknownMember),
            State::PreparingRebalance => {
                self.live().touch(&caller.member_id, now_ms);
                Err(GroupError::RebalanceInProgress)
            }
            State::CompletingRebalance | State::Stable => {
                self.live().touch(&caller.member_id, now_ms);
                Ok(())
            }
        }
    }

    /// A member of the present generation, by all its names.
    pub(super) fn check_caller(&mut self, caller: &Caller) -> Result<(), GroupError> {
        if self.group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        if !self.exists() {
            return Err(GroupError::UnknownMember);
        }
        self.live().validate(&caller.member_id, caller.instance_id.as_deref())?;
        if caller.generation == self.generation() { Ok(()) } else { Err(GroupError::IllegalGeneration) }
    }

    /// LeaveGroup: one answer per member.
    pub(super) fn leave(&mut self, members: &[Leaver]) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        if self.group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        if !self.exists() {
            return Ok(vec![Err(GroupError::UnknownMember); members.len()]);
        }
        let answers: Vec<_> = members.iter().map(|leaver| self.leave_one(leaver)).collect();
        if answers.iter().any(Result::is_ok) {
            self.after_removal();
        }
        Ok(answers)
    }

    fn leave_one(&mut self, leaver: &Leaver) -> Result<(), GroupError> {
        let live = self.live();
        if let Some(instance_id) = leaver.instance_id.as_deref()
            && leaver.member_id.is_empty()
        {
            let id = live.static_member(instance_id).ok_or(GroupError::UnknownMember)?;
            self.remove_member(&id);
            return Ok(());
        }
        if live.pending.remove(&leaver.member_id) {
            return Ok(());
        }
        live.validate(&leaver.member_id, leaver.instance_id.as_deref())?;
        self.remove_member(&leaver.member_id);
        Ok(())
    }

    /// Does what is due for this group.
    pub(super) fn expire(&mut self) {
        let now_ms = self.now.mono_ms;
        let Some(live) = self.coordinator.live.get_mut(self.group) else { return };
        let lapsed = live.pending.lapse(now_ms);
        let silent: Vec<String> = {
            let members = live.members.iter().filter(|(_, m)| m.expires().is_some_and(|due| due <= now_ms));
            members.map(|(id, _)| id.clone()).collect()
        };
        for id in &silent {
            tracing::info!(group = self.group, member = id, "a member was silent for its session timeout");
            self.remove_member(id);
        }
        if !silent.is_empty() {
            self.after_removal();
        } else if lapsed {
            self.complete_if_all_joined();
        }
        if self.live().sync_due.is_some_and(|due| due <= now_ms) {
            self.sync_due();
        }
        if self.live().rebalance.as_ref().is_some_and(|r| r.due <= now_ms) {
            self.rebalance_due();
        }
    }

    /// Members that joined and never asked for their assignment are removed.
    fn sync_due(&mut self) {
        self.live().sync_due = None;
        let missing: Vec<String> = {
            let members = self.live().members.iter().filter(|(_, m)| !m.synced);
            members.map(|(id, _)| id.clone()).collect()
        };
        for id in &missing {
            tracing::info!(
                group = self.group,
                member = id,
                "a member joined and never asked for its assignment"
            );
            self.remove_member(id);
        }
        if !missing.is_empty() {
            self.after_removal();
        }
    }
}

/// How a sync was taken.
enum SyncDone {
    /// Answered with the leader's assignment, perhaps already.
    Parked,
    /// The assignment is known.
    Known,
}
