//! ConsumerGroupDescribe.

use super::super::ask::Absent;
use super::super::coordinator::Coordinator;
use super::assignor;
use super::image::{ConsumerState, Partitions};
use super::migrate::names;

/// One group in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedConsumers {
    /// Its state.
    pub(crate) state: ConsumerState,
    /// Its epoch.
    pub(crate) epoch: i32,
    /// Epoch of the target.
    pub(crate) target_epoch: i32,
    /// The assignor that makes targets.
    pub(crate) assignor: &'static str,
    /// Its members.
    pub(crate) members: Vec<DescribedConsumer>,
}

/// One member in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedConsumer {
    /// Its id.
    pub(crate) member_id: String,
    /// `group.instance.id`.
    pub(crate) instance_id: Option<String>,
    /// Its rack.
    pub(crate) rack_id: Option<String>,
    /// Its epoch.
    pub(crate) epoch: i32,
    /// Client id of its connection.
    pub(crate) client_id: String,
    /// `/address`.
    pub(crate) client_host: String,
    /// Topics by name.
    pub(crate) topics: Vec<String>,
    /// Topics by pattern.
    pub(crate) regex: Option<String>,
    /// What it owns; topics with their names.
    pub(crate) assigned: Vec<NamedPartitions>,
    /// What it shall own.
    pub(crate) target: Vec<NamedPartitions>,
    /// It speaks the classic protocol.
    pub(crate) is_classic: bool,
}

/// Partitions of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPartitions {
    /// Its id.
    pub(crate) id: rangeway_core::types::TopicId,
    /// Its name.
    pub(crate) name: String,
    /// Its partitions.
    pub(crate) partitions: Vec<i32>,
}

impl Coordinator {
    /// One group.
    pub(in super::super) fn describe_consumers(&self, group: &str) -> Result<DescribedConsumers, Absent> {
        let absent = if self.is_known(group) { Absent::OtherType } else { Absent::NotFound };
        let image = self.consumers.groups.get(group).ok_or(absent)?;
        let members = image.members.iter().map(|(id, member)| DescribedConsumer {
            member_id: id.clone(),
            instance_id: member.subscription.instance_id.clone(),
            rack_id: member.subscription.rack_id.clone(),
            epoch: member.current.epoch,
            client_id: member.subscription.client_id.clone(),
            client_host: member.subscription.client_host.clone(),
            topics: member.subscription.topics.iter().cloned().collect(),
            regex: member.subscription.regex.clone(),
            assigned: self.named(&member.current.assigned),
            target: self.named(&member.target),
            is_classic: member.subscription.classic.is_some(),
        });
        Ok(DescribedConsumers {
            state: image.state(),
            epoch: image.epoch,
            target_epoch: image.target_epoch,
            assignor: assignor::preferred(image, &self.settings.assignors).name(),
            members: members.collect(),
        })
    }

    /// Partitions of topics that exist.
    fn named(&self, partitions: &Partitions) -> Vec<NamedPartitions> {
        let named = names(partitions, &self.catalog).into_iter().filter_map(|(name, partitions)| {
            let id = self.catalog.by_name.get(name.as_str())?.id;
            Some(NamedPartitions { id, name, partitions })
        });
        named.collect()
    }
}
