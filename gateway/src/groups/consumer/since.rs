//! Since which epoch a member holds each of its partitions (KIP-1251): a commit that says an earlier epoch of its member
//! counts for those that the member has held ever since. Pure.

use super::image::{ConsumerImage, ConsumerMember, Consumers, Current, contains, flat};
use rangeway_core::types::TopicId;
use serde::Serialize;
use std::collections::BTreeMap;

/// The epoch in which a member was given each partition that it owns or has still to give up.
pub(crate) type Since = BTreeMap<TopicId, BTreeMap<i32, i32>>;

impl ConsumerMember {
    /// A step: what it owned already keeps its epoch, what it gets has that of the step.
    pub(super) fn move_to(&mut self, next: &Current) {
        let held = |partition| contains(&self.current.assigned, partition);
        let revoked = |partition| contains(&self.current.revoking, partition);
        let mut since = Since::new();
        for partition in flat(&next.assigned) {
            let before = self.held_since(partition).filter(|_| held(partition));
            note(&mut since, partition, before.unwrap_or(next.epoch));
        }
        for partition in flat(&next.revoking) {
            let before = self.held_since(partition).filter(|_| held(partition) || revoked(partition));
            note(&mut since, partition, before.unwrap_or(next.epoch));
        }
        self.since = since;
        self.current = next.clone();
    }

    /// The epoch in which it was given a partition; `None`: it does not hold it.
    pub(crate) fn held_since(&self, (topic, partition): (TopicId, i32)) -> Option<i32> {
        self.since.get(&topic)?.get(&partition).copied()
    }

    /// Nothing is known of the past: it holds everything since its present epoch.
    fn begin_since(&mut self) {
        self.since = Since::new();
        let epoch = self.current.epoch.max(0);
        for partition in flat(&self.current.assigned).chain(flat(&self.current.revoking)) {
            note(&mut self.since, partition, epoch);
        }
    }
}

fn note(since: &mut Since, (topic, partition): (TopicId, i32), epoch: i32) {
    since.entry(topic).or_default().insert(partition, epoch);
}

/// A group that was formed anew, as it is kept.
pub(super) fn formed(image: &ConsumerImage) -> ConsumerImage {
    let mut image = image.clone();
    image.members.values_mut().for_each(ConsumerMember::begin_since);
    image
}

/// Of all groups as a snapshot has it: by group and member id.
#[derive(Serialize)]
pub(crate) struct AllSince<'a>(BTreeMap<&'a str, BTreeMap<&'a str, &'a Since>>);

/// The same, read.
pub(crate) type ReadSince = BTreeMap<String, BTreeMap<String, Since>>;

impl Consumers {
    /// What a snapshot has of it.
    pub(crate) fn all_since(&self) -> AllSince<'_> {
        let groups = self.groups.iter().map(|(group, image)| {
            let members = image.members.iter().map(|(id, member)| (id.as_str(), &member.since));
            (group.as_str(), members.collect())
        });
        AllSince(groups.collect())
    }

    /// Takes what a snapshot had of it; `None`: it is of a version that had nothing.
    pub(crate) fn take_since(&mut self, mut read: Option<ReadSince>) {
        for (group, image) in &mut self.groups {
            for (id, member) in &mut image.to_mut().members {
                match &mut read {
                    None => member.begin_since(),
                    Some(read) => {
                        let of_member = read.get_mut(group).and_then(|members| members.remove(id));
                        member.since = of_member.unwrap_or_default();
                    }
                }
            }
        }
    }
}
