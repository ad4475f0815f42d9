//! Server-side assignors: from members, topics and what was, to who shall own what. Pure.
//!
//! `range-scoped` and `uniform` balance the number of partitions and move as few as that takes; they differ in which
//! partitions lie together. `range` gives each member a block of every topic, the same block where topics are alike.
//! Ranges are a matter of taste here: they say what lies well together when partitions are given, and never move one.

mod balance;
mod range;
#[cfg(test)]
mod tests;

use super::image::{ConsumerImage, Partitions};
use super::topics::Resolver;
use balance::Placement;
use rangeway_core::api::{Catalog, TopicView};
use rangeway_core::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

/// A way to assign.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assignor {
    /// Partitions of one range stay together where balance allows: members read few streams from few nodes.
    RangeScoped,
    /// Neighbours are spread.
    Uniform,
    /// Blocks per topic.
    Range,
}

/// What is to be assigned.
#[derive(Clone, Debug)]
pub(super) struct Spec<'a> {
    /// Members in order of their ids.
    pub(super) members: Vec<MemberSpec<'a>>,
    /// Topics that anybody subscribes to.
    pub(super) topics: BTreeMap<TopicId, TopicSpec>,
}

/// One member.
#[derive(Clone, Debug)]
pub(super) struct MemberSpec<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// `group.instance.id`.
    pub(super) instance_id: Option<&'a str>,
    /// What it subscribes to.
    pub(super) topics: BTreeSet<TopicId>,
    /// Its target so far.
    pub(super) before: &'a Partitions,
}

/// One topic.
#[derive(Clone, Debug)]
pub(super) struct TopicSpec {
    /// How many partitions.
    pub(super) partitions: i32,
    /// First partition of each range, ascending.
    pub(super) ranges: Vec<i32>,
}

impl TopicSpec {
    fn of(topic: &TopicView) -> TopicSpec {
        let ranges = topic.ranges.iter().map(|range| range.span.first).collect();
        TopicSpec { partitions: topic.partitions, ranges }
    }

    /// Which range a partition is in.
    fn range_of(&self, partition: i32) -> usize {
        self.ranges.partition_point(|first| *first <= partition)
    }
}

impl<'a> Spec<'a> {
    /// Of a group.
    pub(super) fn of(image: &'a ConsumerImage, catalog: &Catalog) -> Spec<'a> {
        let mut resolver = Resolver::new(catalog);
        let members = image.members.iter().map(|(id, member)| MemberSpec {
            id,
            instance_id: member.subscription.instance_id.as_deref(),
            topics: resolver.topics(&member.subscription),
            before: &member.target,
        });
        let members: Vec<MemberSpec<'_>> = members.collect();
        let ids: BTreeSet<TopicId> = members.iter().flat_map(|m| m.topics.iter().copied()).collect();
        let topics = ids.into_iter().filter_map(|id| Some((id, TopicSpec::of(catalog.by_id.get(&id)?))));
        Spec { topics: topics.collect(), members }
    }
}

impl Assignor {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Assignor::RangeScoped => "range-scoped",
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// A target for every member.
    pub(super) fn assign(self, spec: &Spec<'_>) -> BTreeMap<String, Partitions> {
        match self {
            Assignor::RangeScoped => balance::assign(spec, Placement::Together),
            Assignor::Uniform => balance::assign(spec, Placement::Spread),
            Assignor::Range => range::assign(spec),
        }
    }
}

/// The assignor of a name.
pub(in super::super) fn find(name: &str) -> Option<Assignor> {
    [Assignor::RangeScoped, Assignor::Uniform, Assignor::Range].into_iter().find(|a| a.name() == name)
}

/// The assignor of these that most members ask for; the first where nobody asks.
pub(super) fn preferred(image: &ConsumerImage, among: &[Assignor]) -> Assignor {
    let asked = image.members.values().filter_map(|m| find(m.subscription.assignor.as_deref()?));
    let mut votes: BTreeMap<&'static str, (usize, Assignor)> = BTreeMap::new();
    for assignor in asked.filter(|assignor| among.contains(assignor)) {
        votes.entry(assignor.name()).or_insert((0, assignor)).0 += 1;
    }
    let most = votes.into_values().max_by_key(|(count, _)| *count);
    most.map(|(_, assignor)| assignor).or(among.first().copied()).unwrap_or(Assignor::RangeScoped)
}
