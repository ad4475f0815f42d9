//! Joining, and the two turns of a rebalance: preparing and forming the next generation.

use super::ask::{Answer, GroupError, Join, JoinRefused, Joined, State};
use super::coordinator::Turn;
use super::live::{Initial, Live, Member, Rebalance};
use super::mutant::{self, Mutant};
use super::record::{Blob, GroupImage, MemberImage, MemberInfo, Phase, Record};
use rangeway_core::replicated::Ticket;
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Turn<'_> {
    /// JoinGroup: answered now, or when the generation is formed.
    pub(super) fn join(&mut self, ticket: Ticket, join: Join) {
        let member_id = join.member_id.clone();
        if let Err(refused) = self.try_join(ticket, join) {
            let member_id = refused.member_id.unwrap_or(member_id);
            let refused = JoinRefused { error: refused.error, member_id };
            self.out.reply(ticket, Answer::Join(Err(refused)));
        }
    }

    fn try_join(&mut self, ticket: Ticket, join: Join) -> Result<(), Refused> {
        if join.group.is_empty() {
            return Err(GroupError::InvalidGroupId.into());
        }
        self.check_session_timeout(&join)?;
        if !join.member_id.is_empty() && !self.exists() {
            return Err(GroupError::UnknownMember.into());
        }
        if !self.has_room_for(&join.member_id) {
            // As in Kafka a member that has to rejoin and finds the group full is out of it.
            self.remove_member(&join.member_id);
            self.complete_if_all_joined();
            return Err(Refused { error: GroupError::GroupFull, member_id: Some(String::new()) });
        }
        if !self.supports(&join.protocol_type, &join.info) {
            return Err(GroupError::InconsistentProtocol.into());
        }
        if join.member_id.is_empty() { self.join_anew(ticket, join) } else { self.join_again(ticket, join) }
    }

    /// A member without an id.
    fn join_anew(&mut self, ticket: Ticket, join: Join) -> Result<(), Refused> {
        if let Some(instance_id) = join.info.instance_id.clone() {
            match self.live().static_member(&instance_id) {
                Some(old_id) => self.replace_static(ticket, join, &old_id),
                None => self.add(ticket, join.fresh_id, join.protocol_type, join.info),
            }
            return Ok(());
        }
        if join.requires_known_id {
            let due = self.now.mono_ms + u64::from(join.info.session_timeout_ms);
            self.live().pending.insert(join.fresh_id.clone(), due);
            return Err(Refused { error: GroupError::MemberIdRequired, member_id: Some(join.fresh_id) });
        }
        self.add(ticket, join.fresh_id, join.protocol_type, join.info);
        Ok(())
    }

    /// A member with an id.
    fn join_again(&mut self, ticket: Ticket, join: Join) -> Result<(), Refused> {
        let instance_id = join.info.instance_id.as_deref();
        if instance_id.is_none() && self.live().pending.contains(&join.member_id) {
            self.add(ticket, join.member_id, join.protocol_type, join.info);
            return Ok(());
        }
        self.live().validate(&join.member_id, instance_id)?;
        let leads = self.live().leader.as_deref() == Some(&join.member_id);
        let same =
            self.live().members.get(&join.member_id).is_some_and(|m| m.info.protocols == join.info.protocols);
        match self.state() {
            State::CompletingRebalance if same => self.answer_present(ticket, &join.member_id),
            State::Stable if same && !leads => self.answer_present(ticket, &join.member_id),
            State::CompletingRebalance | State::Stable | State::PreparingRebalance => {
                self.update(ticket, &join.member_id, join.info);
                self.prepare_or_complete();
            }
            State::Empty | State::Dead => return Err(GroupError::UnknownMember.into()),
        }
        Ok(())
    }

    fn has_room_for(&mut self, member_id: &str) -> bool {
        let members_max = self.coordinator.settings.members_max;
        let state = self.state();
        let live = self.live();
        let member = live.members.get(member_id);
        let taken = match state {
            State::Empty | State::Dead => return true,
            State::PreparingRebalance if member.is_some_and(|m| m.join.is_some()) => return true,
            State::PreparingRebalance => live.members.values().filter(|m| m.join.is_some()).count(),
            State::CompletingRebalance | State::Stable if member.is_some() => return true,
            State::CompletingRebalance | State::Stable => live.members.len(),
        };
        taken < members_max
    }

    /// Whether a member with these protocols fits: the group's type, and one protocol that all members support.
    fn supports(&mut self, protocol_type: &str, info: &MemberInfo) -> bool {
        if protocol_type.is_empty() || info.protocols.is_empty() {
            return false;
        }
        let live = self.live();
        if live.members.is_empty() {
            return true;
        }
        live.protocol_type.as_deref() == Some(protocol_type)
            && info.protocols.iter().any(|(name, _)| live.members.values().all(|m| m.info.supports(name)))
    }

    fn add(&mut self, ticket: Ticket, id: String, protocol_type: String, info: MemberInfo) {
        self.become_classic_if_empty();
        let now_ms = self.now.mono_ms;
        let live = self.live();
        if live.members.is_empty() {
            live.protocol_type = Some(protocol_type);
        }
        live.add(id, info, ticket, now_ms);
        self.prepare_or_complete();
    }

    /// Parks a member's join. A join of it that is parked already belongs to a connection that was given up.
    pub(super) fn update(&mut self, ticket: Ticket, id: &str, info: MemberInfo) {
        let Some(member) = self.live().members.get_mut(id) else { return };
        member.info = info;
        let before = member.join.replace(ticket);
        let sync = member.sync.take();
        self.give_up(id, before, sync, GroupError::RebalanceInProgress);
    }

    /// Answers calls of a member that will not be served.
    fn give_up(&mut self, id: &str, join: Option<Ticket>, sync: Option<Ticket>, error: GroupError) {
        if let Some(ticket) = join {
            let refused = JoinRefused { error, member_id: id.to_owned() };
            self.out.reply(ticket, Answer::Join(Err(refused)));
        }
        if let Some(ticket) = sync {
            self.out.reply(ticket, Answer::Sync(Err(error)));
        }
    }

    /// A static member came back under a new id: the old id is fenced. Nobody else notices if the group is stable
    /// and would choose the same protocol.
    fn replace_static(&mut self, ticket: Ticket, join: Join, old_id: &str) {
        let now_ms = self.now.mono_ms;
        let new_id = join.fresh_id;
        let before = self.image();
        let live = self.live();
        let led = live.leader.as_deref() == Some(old_id);
        let Some(old) = live.members.remove(old_id) else { return };
        let member = Member {
            order: old.order,
            join: Some(ticket),
            sync: None,
            synced: old.synced,
            is_new: false,
            session_due: now_ms + u64::from(join.info.session_timeout_ms),
            info: join.info,
        };
        live.members.insert(new_id.clone(), member);
        if led {
            live.leader = Some(new_id.clone());
        }
        self.give_up(old_id, old.join, old.sync, GroupError::FencedInstance);
        let same_protocol = select_protocol(self.live()) == before.protocol;
        if self.state() != State::Stable || !same_protocol {
            return self.prepare_or_complete();
        }
        self.store_replaced(before.clone(), old_id, &new_id);
        let mut joined = self.present(&new_id, led && join.may_skip_assignment);
        // An older client that leads would assign again; it is told that its old self leads.
        match before.leader {
            Some(leader) if !join.may_skip_assignment => joined.leader = leader,
            _ => joined.skip_assignment = led && join.may_skip_assignment,
        }
        if let Some(member) = self.live().members.get_mut(&new_id) {
            member.join = None;
        }
        self.out.reply(ticket, Answer::Join(Ok(joined)));
    }

    fn store_replaced(&mut self, mut image: GroupImage, old_id: &str, new_id: &str) {
        let info = self.live().members.get(new_id).map(|m| m.info.clone());
        let old = match mutant::is(Mutant::OldSelfStays) {
            true => image.members.get(old_id).cloned(),
            false => image.members.remove(old_id),
        };
        if let (Some(member), Some(info)) = (old, info) {
            image.members.insert(new_id.to_owned(), MemberImage { info, assignment: member.assignment });
        }
        if image.leader.as_deref() == Some(old_id) {
            image.leader = Some(new_id.to_owned());
        }
        let group = self.group.to_owned();
        self.emit(Record::Formed { group, image });
    }

    /// The present generation, for a member that is in it.
    fn answer_present(&mut self, ticket: Ticket, member_id: &str) {
        let now_ms = self.now.mono_ms;
        self.live().touch(member_id, now_ms);
        let leads = self.live().leader.as_deref() == Some(member_id);
        let joined = self.present(member_id, leads);
        self.out.reply(ticket, Answer::Join(Ok(joined)));
    }

    /// The present generation as `member_id` sees it.
    fn present(&mut self, member_id: &str, with_members: bool) -> Joined {
        let image = self.image();
        let protocol = image.protocol.unwrap_or_default();
        let members = if with_members { self.members_for(&protocol) } else { Vec::new() };
        Joined {
            generation: image.generation,
            protocol_type: image.protocol_type.unwrap_or_default(),
            protocol,
            leader: image.leader.unwrap_or_default(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members,
        }
    }

    fn members_for(&mut self, protocol: &str) -> Vec<(String, Option<String>, Blob)> {
        let members = self.live().members.iter();
        members
            .map(|(id, m)| {
                let metadata = m.info.metadata(protocol).cloned().unwrap_or_default();
                (id.clone(), m.info.instance_id.clone(), metadata)
            })
            .collect()
    }

    /// Starts a rebalance, or ends the one in preparation if nobody is missing.
    pub(super) fn prepare_or_complete(&mut self) {
        if self.live().rebalance.is_none() {
            return self.prepare();
        }
        self.complete_if_all_joined();
    }

    fn prepare(&mut self) {
        let was = self.state();
        if was == State::CompletingRebalance {
            self.refuse_syncs();
        }
        let delay_ms = self.coordinator.settings.initial_rebalance_delay_ms;
        let now_ms = self.now.mono_ms;
        let live = self.live();
        live.sync_due = None;
        let timeout_ms = live.rebalance_timeout_ms();
        if matches!(was, State::Empty | State::Dead) {
            let remaining_ms = timeout_ms.saturating_sub(delay_ms);
            let initial = Some(Initial { remaining_ms, joined_since: false });
            live.rebalance = Some(Rebalance { due: now_ms + delay_ms, initial });
            return;
        }
        live.rebalance = Some(Rebalance { due: now_ms + timeout_ms, initial: None });
        self.complete_if_all_joined();
    }

    /// Members that wait for an assignment which will not come have to join again.
    fn refuse_syncs(&mut self) {
        let now_ms = self.now.mono_ms;
        let waiting: Vec<(String, Ticket)> = {
            let members = self.live().members.iter_mut();
            members.filter_map(|(id, m)| m.sync.take().map(|ticket| (id.clone(), ticket))).collect()
        };
        for (id, ticket) in waiting {
            self.live().touch(&id, now_ms);
            self.out.reply(ticket, Answer::Sync(Err(GroupError::RebalanceInProgress)));
        }
    }

    pub(super) fn complete_if_all_joined(&mut self) {
        let live = self.live();
        let waits = live.rebalance.as_ref().is_none_or(|r| r.initial.is_some());
        if !waits && live.pending.is_empty() && live.members.values().all(|m| m.join.is_some()) {
            self.complete();
        }
    }

    /// The rebalance's time is over.
    pub(super) fn rebalance_due(&mut self) {
        let delay_ms = self.coordinator.settings.initial_rebalance_delay_ms;
        let now_ms = self.now.mono_ms;
        if let Some(rebalance) = &mut self.live().rebalance
            && let Some(initial) = &mut rebalance.initial
            && initial.joined_since
            && initial.remaining_ms > 0
        {
            let delay_ms = delay_ms.min(initial.remaining_ms);
            initial.remaining_ms -= delay_ms;
            initial.joined_since = false;
            rebalance.due = now_ms + delay_ms;
            return;
        }
        self.complete();
    }

    /// Forms the next generation of those who joined, and of static members that are awaited.
    fn complete(&mut self) {
        let now_ms = self.now.mono_ms;
        let live = self.live();
        let late: Vec<String> = {
            let missing =
                live.members.iter().filter(|(_, m)| m.join.is_none() && m.info.instance_id.is_none());
            missing.map(|(id, _)| id.clone()).collect()
        };
        for id in late {
            live.remove(&id);
        }
        if live.leader.as_ref().and_then(|id| live.members.get(id)).is_none_or(|m| m.join.is_none()) {
            let Some(leader) = live.first_of(|m| m.join.is_some()) else {
                if live.members.is_empty() {
                    return self.form_empty();
                }
                // Only static members are left and none of them is back: wait for them or for their sessions.
                let due = now_ms + live.rebalance_timeout_ms().max(1);
                live.rebalance = Some(Rebalance { due, initial: None });
                return;
            };
            live.leader = Some(leader);
        }
        live.rebalance = None;
        live.sync_due = Some(now_ms + live.rebalance_timeout_ms());
        let protocol = select_protocol(live);
        let image = GroupImage {
            protocol_type: live.protocol_type.clone(),
            generation: 0,
            protocol,
            leader: live.leader.clone(),
            members: live.members.iter().map(|(id, m)| (id.clone(), image_of(m))).collect(),
            phase: Phase::Completing,
            changed_at: 0,
        };
        self.form(image);
        self.answer_joins();
    }

    fn form_empty(&mut self) {
        let live = self.live();
        live.rebalance = None;
        live.sync_due = None;
        let protocol_type = live.protocol_type.clone();
        self.form(GroupImage { protocol_type, ..GroupImage::default() });
    }

    /// Stores a generation under the next number.
    fn form(&mut self, image: GroupImage) {
        let step = if mutant::is(Mutant::NumberTwice) { 0 } else { 1 };
        let generation = self.generation().checked_add(step).unwrap_or(1);
        let image = GroupImage { generation, changed_at: self.now.wall_ms, ..image };
        let group = self.group.to_owned();
        self.emit(Record::Formed { group, image });
    }

    fn answer_joins(&mut self) {
        let now_ms = self.now.mono_ms;
        let leader = self.live().leader.clone();
        let ids: Vec<String> = self.live().members.keys().cloned().collect();
        for id in ids {
            let Some(member) = self.live().members.get_mut(&id) else { continue };
            let ticket = member.join.take();
            member.is_new = false;
            member.synced = false;
            member.session_due = now_ms + u64::from(member.info.session_timeout_ms);
            if let Some(ticket) = ticket {
                let joined = self.present(&id, leader.as_deref() == Some(&id));
                self.out.reply(ticket, Answer::Join(Ok(joined)));
            }
        }
    }

    /// Takes a member out for good and answers its parked calls.
    pub(super) fn remove_member(&mut self, id: &str) {
        if let Some(member) = self.live().remove(id) {
            self.give_up(id, member.join, member.sync, GroupError::UnknownMember);
        }
    }

    /// After members were removed: those who are left have to join again.
    pub(super) fn after_removal(&mut self) {
        match self.state() {
            State::Stable | State::CompletingRebalance | State::PreparingRebalance => {
                self.prepare_or_complete()
            }
            State::Empty | State::Dead => {}
        }
    }
}

/// A refusal, with the member id to answer if it is another than the one sent.
pub(super) struct Refused {
    pub(super) error: GroupError,
    pub(super) member_id: Option<String>,
}

impl From<GroupError> for Refused {
    fn from(error: GroupError) -> Refused {
        Refused { error, member_id: None }
    }
}

fn image_of(member: &Member) -> MemberImage {
    MemberImage { info: member.info.clone(), assignment: Blob::default() }
}

fn select_protocol(live: &Live) -> Option<String> {
    let infos: Vec<&MemberInfo> = live.members.values().map(|m| &m.info).collect();
    let leader = live.leader.as_ref().and_then(|id| live.members.get(id))?;
    choose_protocol(&infos, &leader.info)
}

/// The protocol that all support and most members put first among those; a tie goes to the leader's order.
pub(super) fn choose_protocol(members: &[&MemberInfo], leader: &MemberInfo) -> Option<String> {
    let names = |m: &&MemberInfo| m.protocols.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
    let shared = members.iter().map(names).reduce(|a, b| &a & &b)?;
    let mut votes: HashMap<&str, usize> = HashMap::new();
    for member in members {
        if let Some((name, _)) = member.protocols.iter().find(|(name, _)| shared.contains(name)) {
            *votes.entry(name).or_default() += 1;
        }
    }
    let order: BTreeMap<&str, usize> =
        leader.protocols.iter().enumerate().rev().map(|(n, (name, _))| (name.as_str(), n)).collect();
    let best =
        votes.into_iter().max_by_key(|(name, count)| (*count, std::cmp::Reverse(order.get(name).copied())));
    best.map(|(name, _)| name.to_owned())
}
