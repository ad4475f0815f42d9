//! What a heartbeat does for the group and for its member once it is admitted: epoch, target, one step.

use super::super::coordinator::Turn;
use super::super::record::Record;
use super::assignor::{self, Spec};
use super::image::{ConsumerImage, ConsumerMember, ConsumerRecord, Partitions, Step};
use super::reconcile::Aim;
use super::topics::Resolver;

/// What a heartbeat, or a join, changes of a group.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Neither members nor what they subscribe to.
    None,
    /// A member came, or came back. It is given at once what is free.
    Joined,
    /// A member said within a heartbeat that it subscribes to other topics. What comes of it is told with a later
    /// heartbeat: applications subscribe several times in a row, and a client that is asked to give partitions up the
    /// moment it said so is caught in the middle of that. librdkafka 2.15 falls silent for good when it is unsubscribed
    /// while it gives up what it was asked for; Kafka's answers take long enough that it hardly ever is.
    Resubscribed,
}

impl Turn<'_> {
    /// The group, where it is of the consumer type.
    pub(in super::super) fn consumer(&self) -> Option<&ConsumerImage> {
        self.coordinator.consumers.groups.get(self.group).map(|image| &**image)
    }

    /// A member of it.
    pub(super) fn member(&self, member_id: &str) -> Option<&ConsumerMember> {
        self.consumer()?.members.get(member_id)
    }

    pub(super) fn record(&mut self, fact: ConsumerRecord) {
        let group = self.group.to_owned();
        self.emit(Record::Consumer { group, fact });
    }

    /// Brings the group up to date and this member one step nearer to its target. A member without a word about what it
    /// owns may own anything.
    pub(super) fn converge(&mut self, member_id: &str, owned: Option<&Partitions>, change: Change) {
        self.refresh(change != Change::None);
        if change != Change::Resubscribed {
            self.retarget();
        }
        self.reconcile(member_id, owned, change);
    }

    /// A new epoch, if members, subscriptions or their topics changed.
    fn refresh(&mut self, changed: bool) {
        let catalog = self.coordinator.catalog.clone();
        let seen = self.live().catalog_seen;
        if !changed && seen.is_some_and(|seen| seen >= catalog.version) {
            return;
        }
        self.live().catalog_seen = Some(catalog.version);
        let Some(image) = self.consumer() else { return };
        let topics = Resolver::new(&catalog).all(image);
        if changed || topics != image.topics {
            let epoch = image.epoch.saturating_add(1);
            self.record(ConsumerRecord::Epoch(epoch, topics));
        }
    }

    /// Whether the next target has to wait for the assignment interval: members, subscriptions and topics that change
    /// meanwhile come into one.
    fn is_deferred(&self) -> bool {
        let live = self.coordinator.live.get(self.group);
        let made = live.and_then(|live| live.targeted_at);
        made.is_some_and(|at| self.now.mono_ms < at + self.coordinator.consumer_assignment_ms(self.group))
    }

    /// The epoch that members are to reach now: the group's, or that of its target while the next one has to wait.
    pub(super) fn epoch_to_reach(&self, image: &ConsumerImage) -> i32 {
        if self.is_deferred() { image.target_epoch } else { image.epoch }
    }

    /// A new target, if there is a new epoch and it is time for one.
    fn retarget(&mut self) {
        if self.is_deferred() {
            return;
        }
        let catalog = self.coordinator.catalog.clone();
        let Some(image) = self.consumer().filter(|image| image.epoch > image.target_epoch) else { return };
        let spec = Spec::of(image, &catalog);
        let assignors = &self.coordinator.settings.assignors;
        let mut targets = assignor::preferred(image, assignors).assign(&spec);
        let epoch = image.epoch;
        let mut changed = Vec::new();
        for (id, member) in &image.members {
            let target = targets.remove(id).unwrap_or_default();
            if target != member.target {
                changed.push((id.clone(), target));
            }
        }
        self.record(ConsumerRecord::Target(epoch, changed));
        let now_ms = self.now.mono_ms;
        self.live().targeted_at = Some(now_ms);
    }

    fn reconcile(&mut self, member_id: &str, owned: Option<&Partitions>, change: Change) {
        let Some(image) = self.consumer() else { return };
        let Some(member) = image.members.get(member_id) else { return };
        if member.current.is_settled(image.target_epoch) {
            return;
        }
        let held = image.held_by_others(member_id);
        let subscribed = || Resolver::new(&self.coordinator.catalog).topics(&member.subscription);
        let given = (change == Change::Resubscribed).then(subscribed);
        let (epoch, target) = (image.target_epoch, &member.target);
        let aim = Aim { epoch, target, held: &held, owned, given: given.as_ref() };
        let next = aim.step(&member.current);
        if next == member.current {
            return;
        }
        let timed = next.state == Step::Unrevoked && member.subscription.classic.is_none();
        let rebalance_ms = u64::from(member.subscription.rebalance_timeout_ms);
        let due = timed.then_some(self.now.mono_ms + rebalance_ms);
        self.record(ConsumerRecord::Current(member_id.to_owned(), next));
        self.session(member_id).revoke_due = due;
    }

    /// Takes members out for good. Their partitions are given to others with the next target.
    pub(super) fn remove_consumers<'a>(&mut self, member_ids: impl Iterator<Item = &'a str>) {
        let at = self.now.wall_ms;
        let mut removed = false;
        for member_id in member_ids {
            removed = true;
            self.live().consumers.remove(member_id);
            self.record(ConsumerRecord::Gone { member_id: member_id.to_owned(), at });
        }
        let Some(image) = self.consumer().filter(|_| removed) else { return };
        // Topics that they alone subscribed to go with them: one epoch for both.
        let epoch = image.epoch.saturating_add(1);
        let topics = Resolver::new(&self.coordinator.catalog).all(image);
        self.record(ConsumerRecord::Epoch(epoch, topics));
        self.live().catalog_seen = None;
        self.downgrade_if_classic();
    }
}
