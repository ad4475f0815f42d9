//! Groups change their kind online (KIP-848): to the consumer type when the first member of that protocol joins, back
//! when the last one is gone and members of the classic protocol are left.

use super::super::ask::{Answer, GroupError, JoinRefused, State};
use super::super::coordinator::Turn;
use super::super::join;
use super::super::live::{Live, Member};
use super::super::record::{GroupImage, MemberImage, MemberInfo, Phase, Record};
use super::super::subscription::{self, PROTOCOL_TYPE};
use super::JOIN_EPOCH;
use super::image::{
    ClassicSide, ConsumerImage, ConsumerMember, ConsumerRecord, Current, Partitions, Step, Subscription,
    by_topic,
};
use super::request::{BeatRefused, refuse};
use super::session::sessions;
use rangeway_core::api::Catalog;
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

/// What a group is to a member of the consumer protocol.
pub(super) enum Kind {
    /// Of its type.
    Consumer,
    /// Of another type, or not there yet: it becomes this.
    Becomes(ConsumerImage),
}

impl Turn<'_> {
    /// The group as a member with this epoch finds it.
    pub(super) fn kind_for(&self, epoch: i32) -> Result<Kind, BeatRefused> {
        if self.consumer().is_some() {
            return Ok(Kind::Consumer);
        }
        let state = self.state();
        if state == State::Dead && epoch != JOIN_EPOCH {
            return refuse(GroupError::GroupNotFound, format!("Consumer group {} not found.", self.group));
        }
        if matches!(state, State::Empty | State::Dead) && epoch == JOIN_EPOCH {
            let epoch = self.generation();
            return Ok(Kind::Becomes(ConsumerImage {
                epoch,
                target_epoch: epoch,
                ..ConsumerImage::default()
            }));
        }
        let upgrades = epoch == JOIN_EPOCH && self.coordinator.settings.migration.upgrades();
        let upgraded = if upgrades { self.upgraded() } else { None };
        match upgraded {
            Some(image) => Ok(Kind::Becomes(image)),
            None => {
                refuse(GroupError::GroupNotFound, format!("Group {} is not a consumer group.", self.group))
            }
        }
    }

    /// A classic group with members as a consumer group; `None` when its members are no consumers.
    fn upgraded(&self) -> Option<ConsumerImage> {
        let live = self.coordinator.live.get(self.group)?;
        if live.protocol_type.as_deref() != Some(PROTOCOL_TYPE) {
            return None;
        }
        let before = self.image();
        let mut given = BTreeSet::new();
        let mut members = BTreeMap::new();
        for (id, member) in &live.members {
            let upgraded =
                upgraded_member(member, before.members.get(id), &before, &self.coordinator.catalog)?;
            let mut assigned = upgraded.current.assigned.clone();
            // An assignor of a client may have given one partition twice; here it has one owner.
            assigned.retain(|topic, of| {
                of.retain(|partition| given.insert((*topic, *partition)));
                !of.is_empty()
            });
            let current = Current { assigned: assigned.clone(), ..upgraded.current };
            members.insert(id.clone(), ConsumerMember { target: assigned, current, ..upgraded });
        }
        let epoch = before.generation;
        Some(ConsumerImage { epoch, target_epoch: epoch, members, ..ConsumerImage::default() })
    }

    /// The group is of the consumer type from here on. Whoever waits for a generation has to join again.
    pub(super) fn become_consumer(&mut self, image: ConsumerImage) {
        let (session_ms, now_ms) = (self.coordinator.consumer_session_ms(self.group), self.now.mono_ms);
        let consumers = sessions(&image, session_ms, now_ms);
        self.record(ConsumerRecord::Formed(image));
        let before = self.live().begin(Live { consumers, ..Live::default() });
        for (member_id, member) in before.members {
            let error = GroupError::RebalanceInProgress;
            if let Some(ticket) = member.join {
                self.out.reply(ticket, Answer::Join(Err(JoinRefused { error, member_id })));
            }
            if let Some(ticket) = member.sync {
                self.out.reply(ticket, Answer::Sync(Err(error)));
            }
        }
    }

    /// An empty group of the consumer type is of the classic type from here on.
    pub(in super::super) fn become_classic_if_empty(&mut self) {
        let Some(image) = self.consumer().filter(|image| image.members.is_empty()) else { return };
        let (generation, changed_at) = (image.epoch, image.emptied_at);
        let image = GroupImage { generation, changed_at, ..GroupImage::default() };
        let group = self.group.to_owned();
        self.emit(Record::Formed { group, image });
        let live = self.live();
        live.consumers.clear();
        live.catalog_seen = None;
    }

    /// A group in which only members of the classic protocol are left is of the classic type from here on; they have to
    /// join again.
    pub(super) fn downgrade_if_classic(&mut self) {
        let Some(image) = self.consumer() else { return };
        let members_max = self.coordinator.settings.members_max;
        let is_classic = image.members.values().all(|m| m.subscription.classic.is_some());
        if !self.coordinator.settings.migration.downgrades() {
            return;
        }
        if image.members.is_empty() || !is_classic || image.members.len() > members_max {
            return;
        }
        let Some(image) = downgraded(image, &self.coordinator.catalog, self.now.wall_ms) else { return };
        tracing::info!(group = self.group, "the last member of the consumer protocol is gone");
        let now_ms = self.now.mono_ms;
        let group = self.group.to_owned();
        self.emit(Record::Formed { group, image: image.clone() });
        self.live().begin(Live::of(&image, now_ms));
        self.prepare_or_complete();
    }
}

fn upgraded_member(
    member: &Member,
    image: Option<&MemberImage>,
    group: &GroupImage,
    catalog: &Catalog,
) -> Option<ConsumerMember> {
    let chosen = group.protocol.as_deref().and_then(|name| member.info.metadata(name));
    let metadata = chosen.or_else(|| member.info.protocols.first().map(|(_, metadata)| metadata))?;
    let parsed = subscription::parse(&metadata.0)?;
    let assigned = match image.map(|m| &m.assignment.0) {
        None => Partitions::new(),
        Some(bytes) => {
            let mut owned = match bytes.is_empty() {
                true => Partitions::new(),
                false => ids(&subscription::assignment(bytes)?, catalog),
            };
            // A cooperative member reads what it said it owns until it has asked for its assignment, and who asked may not
            // have given up yet what it was not assigned any more: all of that is its own until it joins again.
            for (topic, of) in ids(&parsed.owned, catalog) {
                owned.entry(topic).or_default().extend(of);
            }
            owned
        }
    };
    let epoch = group.generation;
    Some(ConsumerMember {
        subscription: of_classic(&member.info, parsed),
        target: assigned.clone(),
        current: Current {
            epoch,
            previous_epoch: epoch,
            state: Step::Stable,
            assigned,
            ..Current::default()
        },
        ..ConsumerMember::default()
    })
}

/// What a member of the classic protocol says, in the consumer protocol's words.
pub(super) fn of_classic(info: &MemberInfo, parsed: subscription::Parsed) -> Subscription {
    Subscription {
        instance_id: info.instance_id.clone(),
        rack_id: parsed.rack,
        client_id: info.client_id.clone(),
        client_host: info.client_host.clone(),
        rebalance_timeout_ms: info.rebalance_timeout_ms,
        topics: parsed.topics.into_iter().collect(),
        regex: None,
        assignor: None,
        classic: Some(ClassicSide {
            session_timeout_ms: info.session_timeout_ms,
            protocols: info.protocols.clone(),
        }),
    }
}

/// Partitions of topics that exist, by id.
pub(super) fn ids(named: &[(String, Vec<i32>)], catalog: &Catalog) -> Partitions {
    let topics = named.iter().filter_map(|(name, of)| Some((catalog.by_name.get(name.as_str())?, of)));
    by_topic(topics.flat_map(|(topic, of)| {
        let known = of.iter().filter(|p| (0..topic.partitions).contains(*p));
        known.map(|p| (topic.id, *p))
    }))
}

/// Partitions of topics that exist, by name.
pub(super) fn names(partitions: &Partitions, catalog: &Catalog) -> Vec<(String, Vec<i32>)> {
    let named = |(id, of): (&TopicId, &BTreeSet<i32>)| {
        Some((catalog.by_id.get(id)?.name.to_string(), of.iter().copied().collect()))
    };
    partitions.iter().filter_map(named).collect()
}

/// A consumer group of classic members alone as a classic group; `None` when they share no protocol. Its generation is
/// the target's epoch: the highest that a member may know.
fn downgraded(image: &ConsumerImage, catalog: &Catalog, wall_ms: i64) -> Option<GroupImage> {
    let mut members = BTreeMap::new();
    for (id, member) in &image.members {
        let classic = member.subscription.classic.as_ref()?;
        let info = MemberInfo {
            instance_id: member.subscription.instance_id.clone(),
            client_id: member.subscription.client_id.clone(),
            client_host: member.subscription.client_host.clone(),
            session_timeout_ms: classic.session_timeout_ms,
            rebalance_timeout_ms: member.subscription.rebalance_timeout_ms,
            protocols: classic.protocols.clone(),
        };
        let version = classic.protocols.first().map_or(0, |(_, metadata)| subscription::version(&metadata.0));
        let assignment = subscription::encode_assignment(version, &names(&member.current.assigned, catalog));
        members.insert(id.clone(), MemberImage { info, assignment });
    }
    let infos: Vec<&MemberInfo> = members.values().map(|m| &m.info).collect();
    let protocol = Some(join::choose_protocol(&infos, infos.first()?)?);
    Some(GroupImage {
        protocol_type: Some(PROTOCOL_TYPE.to_owned()),
        generation: image.target_epoch,
        protocol,
        leader: members.keys().next().cloned(),
        members,
        phase: Phase::Stable,
        changed_at: wall_ms,
    })
}
