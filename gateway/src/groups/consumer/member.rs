//! Who a heartbeat comes from, by both its names and its epoch. Pure.

use super::super::ask::GroupError;
use super::JOIN_EPOCH;
use super::image::{ConsumerImage, ConsumerMember, Partitions, Subscription, contains, flat};
use super::request::{Beat, BeatRefused, refuse};

/// Where the sender of a heartbeat stands in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is a member.
    Known(String),
    /// It becomes one.
    New(String),
    /// A static member comes back.
    Replaces {
        /// The id it had.
        old: String,
        /// The id it has.
        new: String,
    },
}

impl Place {
    /// Its id.
    pub(super) fn member_id(&self) -> &str {
        match self {
            Place::Known(id) | Place::New(id) | Place::Replaces { new: id, .. } => id,
        }
    }

    /// Its id in the group as it is.
    pub(super) fn known_id(&self) -> Option<&str> {
        match self {
            Place::Known(id) | Place::Replaces { old: id, .. } => Some(id),
            Place::New(_) => None,
        }
    }
}

/// Finds the sender.
pub(super) fn place(image: &ConsumerImage, beat: &Beat) -> Result<Place, BeatRefused> {
    let id = if beat.member_id.is_empty() { &beat.fresh_id } else { &beat.member_id };
    let joins = beat.epoch == JOIN_EPOCH;
    let known = |member: &ConsumerMember| check_epoch(member, beat).map(|()| Place::Known(id.clone()));
    if let Some(instance_id) = &beat.instance_id
        && let Some((old, member)) = image.static_member(instance_id)
    {
        return match joins {
            // It said that it would be back, or comes back with the other protocol.
            true if member.current.is_away() => Ok(Place::Replaces { old: old.clone(), new: id.clone() }),
            true if member.subscription.classic.is_some() && old == id => known(member),
            true if member.subscription.classic.is_some() => {
                Ok(Place::Replaces { old: old.clone(), new: id.clone() })
            }
            // Even under the id that it has: whether it is the same process cannot be told.
            true => refuse(
                GroupError::UnreleasedInstance,
                format!(
                    "Static member {id} with instance id {instance_id} cannot join the group because the instance id is owned by {old} member."
                ),
            ),
            false if old != id => Err(fenced(id, instance_id, old)),
            false => known(member),
        };
    }
    match image.members.get(id) {
        Some(member) if beat.instance_id.is_none() || joins => known(member),
        None if joins => Ok(Place::New(id.clone())),
        Some(_) | None => {
            refuse(GroupError::UnknownMember, format!("member {id} is not a member of the group"))
        }
    }
}

/// The instance id is another member's.
pub(super) fn fenced(id: &str, instance_id: &str, by: &str) -> BeatRefused {
    BeatRefused {
        error: GroupError::FencedInstance,
        why: format!("Static member {id} with instance id {instance_id} was fenced by member {by}."),
    }
}

/// The epoch must be the member's own; or the one before, when the answer with the new one was lost; or that of one
/// that abandoned all it had and joins under its id, which a fenced member does.
fn check_epoch(member: &ConsumerMember, beat: &Beat) -> Result<(), BeatRefused> {
    let current = &member.current;
    let lost_answer = || {
        let owned = beat.owned.as_ref();
        beat.epoch == current.previous_epoch && owned.is_some_and(|owned| is_subset(owned, &current.assigned))
    };
    let joins = beat.epoch == JOIN_EPOCH;
    if joins || beat.epoch == current.epoch || (beat.epoch < current.epoch && lost_answer()) {
        return Ok(());
    }
    let (is, known) = (beat.epoch, current.epoch);
    refuse(
        GroupError::FencedMemberEpoch,
        format!(
            "the member says epoch {is} where {known} is known; it has to give up all partitions and to join again"
        ),
    )
}

fn is_subset(some: &Partitions, all: &Partitions) -> bool {
    flat(some).all(|partition| contains(all, partition))
}

/// What a member says after this heartbeat; what it left out stays.
pub(super) fn subscription_after(before: Option<&Subscription>, beat: &Beat) -> Subscription {
    let before = before.cloned().unwrap_or_default();
    let topics = beat.topics.as_ref().map(|topics| topics.iter().cloned().collect());
    let regex = beat.regex.as_ref().map(|regex| Some(regex.clone()).filter(|r| !r.is_empty()));
    Subscription {
        instance_id: beat.instance_id.clone().or(before.instance_id),
        rack_id: beat.rack_id.clone().or(before.rack_id),
        client_id: beat.client_id.clone(),
        client_host: beat.client_host.clone(),
        rebalance_timeout_ms: beat.rebalance_timeout_ms.unwrap_or(before.rebalance_timeout_ms),
        topics: topics.unwrap_or(before.topics),
        regex: regex.unwrap_or(before.regex),
        assignor: beat.assignor.clone().or(before.assignor),
        classic: None,
    }
}

/// Whether another set of topics may come of it.
pub(super) fn subscribes_otherwise(before: Option<&Subscription>, after: &Subscription) -> bool {
    before.is_none_or(|before| before.topics != after.topics || before.regex != after.regex)
}
