//! Members of the classic protocol in a consumer group (KIP-848, online migration): a join is one step of
//! reconciliation and is answered at once, a sync tells what the member owns, a heartbeat says when to join again.

use super::super::ask::{Answer, Caller, GroupError, Join, JoinRefused, Joined, Leaver, Sync, Synced};
use super::super::coordinator::Turn;
use super::super::join::Refused;
use super::super::subscription::{self, PROTOCOL_TYPE};
use super::converge::Change;
use super::image::{ConsumerImage, ConsumerMember, Step, contains, flat};
use super::member::Place;
use super::migrate::{ids, names, of_classic};
use rangeway_core::replicated::Ticket;

impl Turn<'_> {
    /// JoinGroup into a consumer group with members.
    pub(in super::super) fn join_consumer(&mut self, ticket: Ticket, join: Join) {
        let sent_id = join.member_id.clone();
        let info = join.info.clone();
        match self.try_join_consumer(join) {
            Err(refused) => {
                let member_id = refused.member_id.unwrap_or(sent_id);
                let refused = JoinRefused { error: refused.error, member_id };
                self.out.reply(ticket, Answer::Join(Err(refused)));
            }
            Ok(member_id) if self.consumer().is_none() => {
                // It replaced the last member of the consumer protocol: its join counts for the next generation.
                self.update(ticket, &member_id, info);
                self.prepare_or_complete();
            }
            Ok(member_id) => {
                let joined = self.joined_consumer(&member_id);
                self.out.reply(ticket, Answer::Join(Ok(joined)));
            }
        }
    }

    /// The id of the member that joined.
    fn try_join_consumer(&mut self, join: Join) -> Result<String, Refused> {
        self.check_session_timeout(&join)?;
        let parsed = self.check_protocols(&join)?;
        let place = self.classic_place(&join)?;
        if let Some(image) = self.consumer() {
            self.check_consumer_room(image, &place).map_err(|refused| Refused::from(refused.error))?;
        }
        let owned = ids(&parsed.owned, &self.coordinator.catalog);
        let after = of_classic(&join.info, parsed);

        let before = place.known_id().and_then(|id| self.member(id)).map(|m| m.subscription.clone());
        let member_id = place.member_id().to_owned();
        self.live().pending.remove(&member_id);
        let change = match self.seat(&place, before.as_ref(), after) {
            true => Change::Joined,
            false => Change::None,
        };
        self.converge(&member_id, Some(&owned), change);
        self.heard(&member_id);
        let sync_due = self.now.mono_ms + u64::from(join.info.rebalance_timeout_ms);
        let session = self.session(&member_id);
        session.join_due = None;
        session.sync_due = Some(sync_due);
        self.downgrade_if_classic();
        Ok(member_id)
    }

    /// The member must be a consumer, and share a protocol with the other classic members.
    fn check_protocols(&self, join: &Join) -> Result<subscription::Parsed, GroupError> {
        let inconsistent = GroupError::InconsistentProtocol;
        if join.protocol_type != PROTOCOL_TYPE {
            return Err(inconsistent);
        }
        let (_, metadata) = join.info.protocols.first().ok_or(inconsistent)?;
        let members = self.consumer().into_iter().flat_map(|image| image.members.iter());
        let others = members.filter(|(id, _)| **id != join.member_id);
        let classic: Vec<_> = others.filter_map(|(_, m)| m.subscription.classic.as_ref()).collect();
        let supported =
            |name: &String| classic.iter().all(|c| c.protocols.iter().any(|(other, _)| other == name));
        if !join.info.protocols.iter().any(|(name, _)| supported(name)) {
            return Err(inconsistent);
        }
        subscription::parse(&metadata.0).ok_or(inconsistent)
    }

    fn classic_place(&mut self, join: &Join) -> Result<Place, Refused> {
        let fresh = join.fresh_id.clone();
        let is_new = join.member_id.is_empty();
        if let Some(instance_id) = join.info.instance_id.as_deref() {
            let found =
                self.consumer().and_then(|image| image.static_member(instance_id)).map(|(id, _)| id.clone());
            return match found {
                Some(old) if is_new => Ok(Place::Replaces { old, new: fresh }),
                Some(id) if id == join.member_id => Ok(Place::Known(id)),
                Some(_) => Err(GroupError::FencedInstance.into()),
                None if is_new => Ok(Place::New(fresh)),
                None => Err(GroupError::UnknownMember.into()),
            };
        }
        if is_new && join.requires_known_id {
            let due = self.now.mono_ms + u64::from(join.info.session_timeout_ms);
            self.live().pending.insert(fresh.clone(), due);
            return Err(Refused { error: GroupError::MemberIdRequired, member_id: Some(fresh) });
        }
        if is_new {
            return Ok(Place::New(fresh));
        }
        if self.member(&join.member_id).is_some() {
            return Ok(Place::Known(join.member_id.clone()));
        }
        if self.live().pending.contains(&join.member_id) {
            return Ok(Place::New(join.member_id.clone()));
        }
        Err(GroupError::UnknownMember.into())
    }

    fn joined_consumer(&self, member_id: &str) -> Joined {
        let member = self.member(member_id);
        let protocols = member.and_then(|m| m.subscription.classic.as_ref()).map(|c| &c.protocols);
        let protocol = protocols.and_then(|p| p.first()).map(|(name, _)| name.clone());
        Joined {
            generation: member.map_or(0, |m| m.current.epoch),
            protocol_type: PROTOCOL_TYPE.to_owned(),
            protocol: protocol.unwrap_or_default(),
            // Nobody leads: the coordinator assigns.
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }

    /// SyncGroup: what the member owns.
    pub(in super::super) fn sync_consumer(&mut self, sync: &Sync) -> Result<Synced, GroupError> {
        let (image, member) = self.classic_member(&sync.caller)?;
        let protocols = member.subscription.classic.as_ref().map(|c| c.protocols.as_slice());
        let (protocol, metadata) =
            protocols.and_then(<[_]>::first).ok_or(GroupError::InconsistentProtocol)?;
        let differs = |asked: &Option<String>, is: &str| asked.as_ref().is_some_and(|asked| asked != is);
        if differs(&sync.protocol_type, PROTOCOL_TYPE) || differs(&sync.protocol, protocol) {
            return Err(GroupError::InconsistentProtocol);
        }
        let behind =
            self.epoch_to_reach(image) > member.current.epoch && member.current.state != Step::Unrevoked;
        let catalog = &self.coordinator.catalog;
        let version = subscription::version(&metadata.0);
        let synced = Synced {
            protocol_type: PROTOCOL_TYPE.to_owned(),
            protocol: protocol.clone(),
            assignment: subscription::encode_assignment(version, &names(&member.current.assigned, catalog)),
        };
        let member_id = &sync.caller.member_id;
        if behind {
            self.await_join(member_id);
            return Err(GroupError::RebalanceInProgress);
        }
        self.session(member_id).sync_due = None;
        self.heard(member_id);
        Ok(synced)
    }

    /// Heartbeat: an error where the member has to join again.
    pub(in super::super) fn heartbeat_consumer(&mut self, caller: &Caller) -> Result<(), GroupError> {
        let (image, member) = self.classic_member(caller)?;
        let current = &member.current;
        let is_free = || {
            let held = image.held_by_others(&caller.member_id);
            let missing = flat(&member.target).filter(|partition| !contains(&current.assigned, *partition));
            !missing.into_iter().any(|partition| held.contains(&partition))
        };
        let joins_again = current.epoch < self.epoch_to_reach(image)
            || current.state == Step::Unrevoked
            || (current.state == Step::Unreleased && is_free());
        self.heard(&caller.member_id);
        if joins_again {
            self.await_join(&caller.member_id);
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// The member has to join again within its rebalance timeout.
    fn await_join(&mut self, member_id: &str) {
        let rebalance_ms =
            self.member(member_id).map_or(0, |m| u64::from(m.subscription.rebalance_timeout_ms));
        let due = self.now.mono_ms + rebalance_ms;
        self.session(member_id).join_due.get_or_insert(due);
    }

    /// LeaveGroup: one answer per member. Tools take members of either protocol out with it.
    pub(in super::super) fn leave_consumer(&mut self, leavers: &[Leaver]) -> Vec<Result<(), GroupError>> {
        let mut gone = Vec::new();
        let mut answers = Vec::with_capacity(leavers.len());
        for leaver in leavers {
            let unused = leaver.instance_id.is_none() && self.live().pending.remove(&leaver.member_id);
            let found = if unused { Ok(None) } else { self.leaving(leaver).map(Some) };
            answers.push(found.as_ref().map(|_| ()).map_err(|error| *error));
            gone.extend(found.ok().flatten().filter(|id| !gone.contains(id)));
        }
        self.remove_consumers(gone.iter().map(String::as_str));
        answers
    }

    fn leaving(&self, leaver: &Leaver) -> Result<String, GroupError> {
        let unknown = GroupError::UnknownMember;
        let image = self.consumer().ok_or(unknown)?;
        let (id, _) = match &leaver.instance_id {
            Some(instance_id) => image.static_member(instance_id).ok_or(unknown)?,
            None => image.members.get_key_value(&leaver.member_id).ok_or(unknown)?,
        };
        if !leaver.member_id.is_empty() && *id != leaver.member_id {
            return Err(GroupError::FencedInstance);
        }
        Ok(id.clone())
    }

    /// A member of the classic protocol, by all its names and its generation.
    fn classic_member(&self, caller: &Caller) -> Result<(&ConsumerImage, &ConsumerMember), GroupError> {
        let unknown = GroupError::UnknownMember;
        let image = self.consumer().ok_or(unknown)?;
        let (id, member) = match &caller.instance_id {
            Some(instance_id) => image.static_member(instance_id).ok_or(unknown)?,
            None => image.members.get_key_value(&caller.member_id).ok_or(unknown)?,
        };
        if *id != caller.member_id {
            return Err(GroupError::FencedInstance);
        }
        if member.subscription.classic.is_none() {
            return Err(unknown);
        }
        if caller.generation == member.current.epoch {
            Ok((image, member))
        } else {
            Err(GroupError::IllegalGeneration)
        }
    }

    /// Session timeouts of the classic protocol have bounds.
    pub(in super::super) fn check_session_timeout(&self, join: &Join) -> Result<(), GroupError> {
        let settings = &self.coordinator.settings;
        let bounds = settings.session_timeout_ms_min..=settings.session_timeout_ms_max;
        let asked = i32::try_from(join.info.session_timeout_ms);
        if asked.is_ok_and(|ms| bounds.contains(&ms)) {
            Ok(())
        } else {
            Err(GroupError::InvalidSessionTimeout)
        }
    }
}
