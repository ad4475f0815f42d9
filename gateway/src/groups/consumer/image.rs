//! What a group of the consumer protocol stores: the image and the records that change it.

use super::super::record::{Blob, Record};
use super::since::{Since, formed};
use super::{JOIN_EPOCH, LEAVE_STATIC_EPOCH};
use rangeway_core::replicated::Shared;
use rangeway_core::types::TopicId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Partitions by topic; no topic is without any.
pub(crate) type Partitions = BTreeMap<TopicId, BTreeSet<i32>>;

/// Durable state of all consumer groups of one partition of `__groups`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Consumers {
    /// Groups that are of the consumer type, by name.
    pub(crate) groups: BTreeMap<String, Shared<ConsumerImage>>,
    /// Configs that were set, by group; a group need not exist to have some.
    pub(crate) configs: BTreeMap<String, BTreeMap<String, String>>,
}

/// One group.
///
/// `member epoch ≤ target epoch ≤ epoch`, save for static members that are away (their epoch is -2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumerImage {
    /// Grows whenever members, their subscriptions or the topics behind these change.
    pub(crate) epoch: i32,
    /// Epoch that the targets were made for.
    pub(crate) target_epoch: i32,
    /// Topics subscribed to and their partition counts, as of `epoch`.
    pub(crate) topics: BTreeMap<TopicId, i32>,
    /// By member id.
    pub(crate) members: BTreeMap<String, ConsumerMember>,
    /// When it became empty, wall clock ms.
    pub(crate) emptied_at: i64,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumerMember {
    /// What it said.
    pub(crate) subscription: Subscription,
    /// What it shall own.
    pub(crate) target: Partitions,
    /// What it owns on the way there.
    pub(crate) current: Current,
    /// Since when it holds that. It follows from the records; a snapshot has it beside the groups.
    #[serde(skip)]
    pub(crate) since: Since,
}

/// What a member says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subscription {
    /// `group.instance.id` of a static member.
    pub(crate) instance_id: Option<String>,
    /// Its rack.
    pub(crate) rack_id: Option<String>,
    /// Client id of its connection.
    pub(crate) client_id: String,
    /// Where it connects from, `/address`.
    pub(crate) client_host: String,
    /// How long it may take to give partitions up, ms.
    pub(crate) rebalance_timeout_ms: u32,
    /// Topics by name.
    pub(crate) topics: BTreeSet<String>,
    /// Topics by pattern.
    pub(crate) regex: Option<String>,
    /// The assignor that it prefers.
    pub(crate) assignor: Option<String>,
    /// For a member that speaks the classic protocol.
    pub(crate) classic: Option<ClassicSide>,
}

/// What a member of the classic protocol said beside its subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassicSide {
    /// ms.
    pub(crate) session_timeout_ms: u32,
    /// Protocols it can use, best first, with their metadata.
    pub(crate) protocols: Vec<(String, Blob)>,
}

/// Where a member stands on the way to its target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Current {
    /// Its epoch; 0 before its first assignment, -2 while a static member is away.
    pub(crate) epoch: i32,
    /// The epoch before: a member that missed an answer still says it.
    pub(crate) previous_epoch: i32,
    /// Its state.
    pub(crate) state: Step,
    /// Its own: it may read and commit these.
    pub(crate) assigned: Partitions,
    /// Asked back and perhaps still read.
    pub(crate) revoking: Partitions,
}

/// State of a member.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Has what its epoch gives it.
    #[default]
    Stable,
    /// Has to give up partitions first.
    Unrevoked,
    /// Waits for partitions that others hold.
    Unreleased,
}

/// State of a group as tools see it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConsumerState {
    /// No members.
    Empty,
    /// A target is due.
    Assigning,
    /// Members are on the way to their targets.
    Reconciling,
    /// All are there.
    Stable,
}

impl ConsumerState {
    /// Kafka's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ConsumerState::Empty => "Empty",
            ConsumerState::Assigning => "Assigning",
            ConsumerState::Reconciling => "Reconciling",
            ConsumerState::Stable => "Stable",
        }
    }
}

impl ConsumerImage {
    /// State of the group.
    pub(crate) fn state(&self) -> ConsumerState {
        if self.members.is_empty() {
            ConsumerState::Empty
        } else if self.epoch > self.target_epoch {
            ConsumerState::Assigning
        } else if self.members.values().all(|m| m.current.is_settled(self.target_epoch)) {
            ConsumerState::Stable
        } else {
            ConsumerState::Reconciling
        }
    }

    /// The member with this `group.instance.id`.
    pub(crate) fn static_member(&self, instance_id: &str) -> Option<(&String, &ConsumerMember)> {
        self.members.iter().find(|(_, m)| m.subscription.instance_id.as_deref() == Some(instance_id))
    }

    /// What all members but one hold or have still to give up.
    pub(crate) fn held_by_others(&self, member_id: &str) -> BTreeSet<(TopicId, i32)> {
        let others = self.members.iter().filter(|(id, _)| *id != member_id);
        let held = others.flat_map(|(_, m)| [&m.current.assigned, &m.current.revoking]);
        held.flat_map(flat).collect()
    }
}

impl Current {
    /// Whether it has all of its target.
    pub(crate) fn is_settled(&self, target_epoch: i32) -> bool {
        self.state == Step::Stable && self.epoch == target_epoch
    }

    /// Whether it is a static member that said it would be back.
    pub(crate) fn is_away(&self) -> bool {
        self.epoch == LEAVE_STATIC_EPOCH
    }
}

/// Partitions one by one.
pub(crate) fn flat(partitions: &Partitions) -> impl Iterator<Item = (TopicId, i32)> + '_ {
    partitions.iter().flat_map(|(topic, of)| of.iter().map(|partition| (*topic, *partition)))
}

/// Partitions by topic.
pub(crate) fn by_topic(partitions: impl IntoIterator<Item = (TopicId, i32)>) -> Partitions {
    let mut all = Partitions::new();
    for (topic, partition) in partitions {
        all.entry(topic).or_default().insert(partition);
    }
    all
}

/// Whether a partition is among them.
pub(crate) fn contains(partitions: &Partitions, (topic, partition): (TopicId, i32)) -> bool {
    partitions.get(&topic).is_some_and(|of| of.contains(&partition))
}

/// One durable fact of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConsumerRecord {
    /// The group is of the consumer type from here on, as given.
    Formed(ConsumerImage),
    /// A member came, or says another thing about itself; target and current stay.
    Member(String, Subscription),
    /// A static member came back under another id: it takes over what its old self had, and joins.
    Replaced {
        /// The old member id.
        old: String,
        /// The new one.
        new: String,
    },
    /// A member is gone.
    Gone {
        /// Its id.
        member_id: String,
        /// Wall clock, ms.
        at: i64,
    },
    /// A new group epoch, and what the subscriptions amount to in it.
    Epoch(i32, BTreeMap<TopicId, i32>),
    /// Targets of an epoch: of those members whose target changed.
    Target(i32, Vec<(String, Partitions)>),
    /// A member made a step.
    Current(String, Current),
}

impl Consumers {
    /// Applies one record of the partition.
    pub(crate) fn apply(&mut self, record: &Record) {
        match record {
            Record::Consumer { group, fact } => {
                if let ConsumerRecord::Formed(image) = fact {
                    self.groups.insert(group.clone(), Shared::new(formed(image)));
                } else if let Some(image) = self.groups.get_mut(group) {
                    apply(image.to_mut(), fact);
                }
            }
            Record::Configured { group, configs } if configs.is_empty() => {
                self.configs.remove(group);
            }
            Record::Configured { group, configs } => {
                self.configs.insert(group.clone(), configs.clone());
            }
            // The group is of the classic type from here on, or gone.
            Record::Formed { group, .. } | Record::GroupDropped { group } => {
                self.groups.remove(group);
            }
            Record::Assigned { .. }
            | Record::Committed { .. }
            | Record::OffsetsDropped { .. }
            | Record::OffsetsPending(_)
            | Record::TransactionEnded(_) => {}
        }
    }
}

fn apply(image: &mut ConsumerImage, fact: &ConsumerRecord) {
    match fact {
        ConsumerRecord::Formed(new) => *image = formed(new),
        ConsumerRecord::Member(id, subscription) => {
            image.members.entry(id.clone()).or_default().subscription = subscription.clone();
        }
        ConsumerRecord::Replaced { old, new } => {
            if let Some(mut member) = image.members.remove(old) {
                member.current.previous_epoch = JOIN_EPOCH;
                member.current.epoch = JOIN_EPOCH;
                image.members.insert(new.clone(), member);
            }
        }
        ConsumerRecord::Gone { member_id, at } => {
            image.members.remove(member_id);
            if image.members.is_empty() {
                image.emptied_at = *at;
            }
        }
        ConsumerRecord::Epoch(epoch, topics) => {
            image.epoch = *epoch;
            image.topics = topics.clone();
        }
        ConsumerRecord::Target(epoch, targets) => {
            image.target_epoch = *epoch;
            for (id, target) in targets {
                if let Some(member) = image.members.get_mut(id) {
                    member.target = target.clone();
                }
            }
        }
        ConsumerRecord::Current(id, current) => {
            if let Some(member) = image.members.get_mut(id) {
                member.move_to(current);
            }
        }
    }
}
