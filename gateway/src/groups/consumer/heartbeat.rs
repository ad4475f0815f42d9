//! ConsumerGroupHeartbeat: join, stay, leave. Everything that can refuse comes before the first record.

use super::super::ask::GroupError;
use super::super::coordinator::Turn;
use super::converge::Change;
use super::image::{ConsumerImage, ConsumerRecord, Current, Partitions, Step, Subscription};
use super::member::{Place, fenced, place, subscribes_otherwise, subscription_after};
use super::migrate::Kind;
use super::request::{Beat, BeatRefused, Beaten, refuse};
use super::{JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH};

impl Turn<'_> {
    /// A heartbeat of a member or of one that wants to be one.
    pub(in super::super) fn beat(&mut self, beat: &Beat) -> Result<Beaten, BeatRefused> {
        beat.check(&self.coordinator.settings.assignors)?;
        match beat.epoch {
            LEAVE_EPOCH | LEAVE_STATIC_EPOCH => self.beat_leave(beat),
            _ => self.beat_stay(beat),
        }
    }

    fn beat_stay(&mut self, beat: &Beat) -> Result<Beaten, BeatRefused> {
        let kind = self.kind_for(beat.epoch)?;
        let (place, before) = {
            let image = match &kind {
                Kind::Consumer => self.consumer(),
                Kind::Becomes(image) => Some(image),
            };
            let empty = ConsumerImage::default();
            let image = image.unwrap_or(&empty);
            let place = place(image, beat)?;
            self.check_consumer_room(image, &place)?;
            let before = place.known_id().and_then(|id| image.members.get(id));
            (place, before.map(|m| m.subscription.clone()))
        };
        let after = subscription_after(before.as_ref(), beat);

        if let Kind::Becomes(image) = kind {
            self.become_consumer(image);
        }
        let member_id = place.member_id().to_owned();
        let known = place.known_id().and_then(|id| self.member(id)).map(|m| m.current.clone());
        let change = match self.seat(&place, before.as_ref(), after) {
            false => Change::None,
            true if beat.epoch == JOIN_EPOCH => Change::Joined,
            true => Change::Resubscribed,
        };
        self.converge(&member_id, beat.owned.as_ref(), change);
        self.heard(&member_id);
        Ok(self.beaten(&member_id, beat, &known.unwrap_or_default()))
    }

    /// Writes down who the member is; whether that may change what is subscribed to.
    pub(super) fn seat(&mut self, place: &Place, before: Option<&Subscription>, after: Subscription) -> bool {
        if let Place::Replaces { old, new } = place {
            self.live().consumers.remove(old);
            self.record(ConsumerRecord::Replaced { old: old.clone(), new: new.clone() });
        }
        let otherwise = subscribes_otherwise(before, &after);
        if before != Some(&after) {
            self.record(ConsumerRecord::Member(place.member_id().to_owned(), after));
        }
        otherwise
    }

    /// The assignment is told when it changed, to whom asks for all, and to whom missed the last answer.
    fn beaten(&self, member_id: &str, beat: &Beat, before: &Current) -> Beaten {
        let current = self.member(member_id).map(|m| m.current.clone()).unwrap_or_default();
        let missed = beat.epoch != before.epoch;
        let tell = beat.is_full() || missed || before.assigned != current.assigned;
        Beaten {
            member_id: member_id.to_owned(),
            epoch: current.epoch,
            heartbeat_interval_ms: self.coordinator.consumer_heartbeat_ms(self.group),
            assignment: tell.then_some(current.assigned),
        }
    }

    pub(super) fn check_consumer_room(
        &self,
        image: &ConsumerImage,
        place: &Place,
    ) -> Result<(), BeatRefused> {
        let members_max = self.coordinator.settings.consumer_members_max;
        if matches!(place, Place::New(_)) && image.members.len() >= members_max {
            return refuse(
                GroupError::GroupFull,
                format!("the group has as many members as it may ({members_max}); until one leaves"),
            );
        }
        Ok(())
    }

    fn beat_leave(&mut self, beat: &Beat) -> Result<Beaten, BeatRefused> {
        let Some(image) = self.consumer() else {
            let why = format!("Group {} not found.", self.group);
            return refuse(GroupError::GroupNotFound, why);
        };
        let unknown = || BeatRefused::from(GroupError::UnknownMember);
        let member = match &beat.instance_id {
            None => image.members.get(&beat.member_id).ok_or_else(unknown)?,
            Some(instance_id) => {
                let (id, member) = image.static_member(instance_id).ok_or_else(unknown)?;
                if *id != beat.member_id {
                    return Err(fenced(&beat.member_id, instance_id, id));
                }
                member
            }
        };
        if beat.epoch == LEAVE_STATIC_EPOCH {
            // It will be back within its session: its partitions are kept for it, and nobody is told.
            let mut current = member.current.clone();
            current.epoch = LEAVE_STATIC_EPOCH;
            current.state = Step::Stable;
            current.revoking = Partitions::new();
            self.record(ConsumerRecord::Current(beat.member_id.clone(), current));
            self.session(&beat.member_id).revoke_due = None;
        } else {
            self.remove_consumers([beat.member_id.as_str()].into_iter());
        }
        Ok(Beaten {
            member_id: beat.member_id.clone(),
            epoch: beat.epoch,
            heartbeat_interval_ms: 0,
            assignment: None,
        })
    }
}
