//! Soft state of one group: who is joining, parked calls, timers.

use super::ask::GroupError;
use super::consumer::Session;
use super::coordinator::NEW_MEMBER_JOIN_MS;
use super::pending_ids::PendingIds;
use super::record::{GroupImage, MemberInfo, Phase};
use rangeway_core::replicated::Ticket;
use std::collections::BTreeMap;

/// Soft state of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// Joined or joining, by member id.
    pub(super) members: BTreeMap<String, Member>,
    /// Ids given out and not yet used.
    pub(super) pending: PendingIds,
    /// The rebalance in preparation.
    pub(super) rebalance: Option<Rebalance>,
    /// When members that have not synced are removed.
    pub(super) sync_due: Option<u64>,
    /// The member that will lead, or leads.
    pub(super) leader: Option<String>,
    /// Protocol type of the members.
    pub(super) protocol_type: Option<String>,
    /// Consumer protocol: members' sessions, by member id.
    pub(super) consumers: BTreeMap<String, Session>,
    /// Version of the catalog that a consumer group's subscriptions were last looked up in.
    pub(super) catalog_seen: Option<u64>,
    /// Consumer protocol: when the newest target was made, monotonic ms.
    pub(super) targeted_at: Option<u64>,
    pub(super) joined: u64,
    /// When it is looked at, as the coordinator's index has it.
    pub(super) wake: Option<u64>,
}

/// Soft state of one member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) info: MemberInfo,
    /// Order of joining: the first one that is left leads.
    pub(super) order: u64,
    /// Its parked join.
    pub(super) join: Option<Ticket>,
    /// Its parked sync.
    pub(super) sync: Option<Ticket>,
    /// Has asked for this generation's assignment.
    pub(super) synced: bool,
    /// Was in no generation yet.
    pub(super) is_new: bool,
    /// When its session ends, unless a call of it is parked.
    pub(super) session_due: u64,
}

/// Members are joining.
#[derive(Clone, Debug)]
pub(super) struct Rebalance {
    /// When those who have not joined are left out.
    pub(super) due: u64,
    /// The group was empty: wait for further members, whoever has joined.
    pub(super) initial: Option<Initial>,
}

/// The wait of a group that was empty.
#[derive(Clone, Debug)]
pub(super) struct Initial {
    /// How much longer it may be extended, ms.
    pub(super) remaining_ms: u64,
    /// Somebody joined since the last extension.
    pub(super) joined_since: bool,
}

impl Member {
    /// When it is removed for silence; `None` while a call of it is parked.
    pub(super) fn expires(&self) -> Option<u64> {
        let parked = self.sync.is_some() || (self.join.is_some() && !self.is_new);
        (!parked).then_some(self.session_due)
    }
}

impl Live {
    /// Adds a member with a parked join.
    pub(super) fn add(&mut self, id: String, info: MemberInfo, ticket: Ticket, now_ms: u64) {
        self.joined += 1;
        if let Some(initial) = self.rebalance.as_mut().and_then(|r| r.initial.as_mut()) {
            initial.joined_since = true;
        }
        self.pending.remove(&id);
        self.leader.get_or_insert_with(|| id.clone());
        let member = Member {
            info,
            order: self.joined,
            join: Some(ticket),
            sync: None,
            synced: false,
            is_new: true,
            session_due: now_ms + NEW_MEMBER_JOIN_MS,
        };
        self.members.insert(id, member);
    }

    /// Takes a member out; the lead goes to the one that joined first of those left.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        if self.leader.as_deref() == Some(id) {
            self.leader = self.first_of(|_| true);
        }
        Some(member)
    }

    /// The member that joined first among those that `which` picks.
    pub(super) fn first_of(&self, which: impl Fn(&Member) -> bool) -> Option<String> {
        let picked = self.members.iter().filter(|(_, m)| which(m));
        picked.min_by_key(|(_, m)| m.order).map(|(id, _)| id.clone())
    }

    /// The member with this `group.instance.id`.
    pub(super) fn static_member(&self, instance_id: &str) -> Option<String> {
        let mut members = self.members.iter();
        let found = members.find(|(_, m)| m.info.instance_id.as_deref() == Some(instance_id));
        found.map(|(id, _)| id.clone())
    }

    /// Whether the caller is a member, by both its names.
    pub(super) fn validate(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            return match self.static_member(instance_id) {
                None => Err(GroupError::UnknownMember),
                Some(id) if id != member_id => Err(GroupError::FencedInstance),
                Some(_) => Ok(()),
            };
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(GroupError::UnknownMember) }
    }

    /// The longest rebalance timeout of all members, ms.
    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|m| u64::from(m.info.rebalance_timeout_ms)).max().unwrap_or(0)
    }

    /// Puts off the end of a member's session.
    pub(super) fn touch(&mut self, member_id: &str, now_ms: u64) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.session_due = now_ms + u64::from(member.info.session_timeout_ms);
        }
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        let members = self.members.values().filter_map(Member::expires);
        let consumers = self.consumers.values().map(Session::next_due);
        let pending = self.pending.next_due();
        let rebalance = self.rebalance.as_ref().map(|r| r.due);
        members.chain(consumers).chain(pending).chain(rebalance).chain(self.sync_due).min()
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.members.is_empty()
            && self.consumers.is_empty()
            && self.pending.is_empty()
            && self.rebalance.is_none()
    }

    /// Begins anew as `fresh`; ids that were given out stay, and when it is looked at. Answers what it was.
    pub(super) fn begin(&mut self, fresh: Live) -> Live {
        let pending = std::mem::take(&mut self.pending);
        let fresh = Live { pending, wake: self.wake, ..fresh };
        std::mem::replace(self, fresh)
    }

    /// Of a generation that was loaded: sessions start afresh, nobody is parked.
    pub(super) fn of(image: &GroupImage, now_ms: u64) -> Live {
        let mut live = Live {
            leader: image.leader.clone(),
            protocol_type: image.protocol_type.clone(),
            ..Live::default()
        };
        for (id, member) in &image.members {
            live.joined += 1;
            let member = Member {
                info: member.info.clone(),
                order: live.joined,
                join: None,
                sync: None,
                synced: image.phase == Phase::Stable,
                is_new: false,
                session_due: now_ms + u64::from(member.info.session_timeout_ms),
            };
            live.members.insert(id.clone(), member);
        }
        live.sync_due = (image.phase == Phase::Completing).then(|| now_ms + live.rebalance_timeout_ms());
        live
    }
}
