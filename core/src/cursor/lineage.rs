//! A topic's lineage as a reader needs it: which ranges there are and were, from where to where they can be read, and
//! what became of them. Pure data; made from the control state.
//!
//! ```text
//! present:  0 ........ start ........ (open)      trimmed below start
//! closed:   0 ........ start ....... end          its span went to the children
//! dropped:  0 ................. start = end       a stone: nothing is left, the end is still known (R16)
//! ```

use crate::control::command::RangeState;
use crate::control::state::{Range, Stone, Topic};
use crate::types::{Partition, RangeId, Span};
use std::collections::BTreeMap;

/// What is known of a range, present or dropped. `start <= end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its partitions.
    pub span: Span,
    /// First virtual address that can still be read.
    pub start: u64,
    /// Virtual address after the last entry, once closed.
    pub end: Option<u64>,
    /// Ranges it came from.
    pub parents: Vec<RangeId>,
    /// Ranges that its partitions went to, once closed. Their ids are higher.
    pub children: Vec<RangeId>,
}

/// The ranges of a topic, those dropped as far as they left stones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    branches: BTreeMap<RangeId, Branch>,
}

impl Branch {
    /// Whether nothing of it is left.
    pub fn dropped(&self) -> bool {
        self.end == Some(self.start)
    }

    fn of_range(range: &Range) -> Branch {
        let end = (range.state == RangeState::Closed).then(|| range.sealed_end());
        let start = range.chain.first().map_or(range.sealed_end(), |segment| segment.base);
        let (parents, children) = (range.parents.clone(), range.children.clone());
        Branch { span: range.span, start, end, parents, children }
    }

    fn of_stone(stone: &Stone) -> Branch {
        let (start, end) = (stone.end, Some(stone.end));
        Branch { span: stone.span, start, end, parents: Vec::new(), children: stone.children.clone() }
    }
}

impl FromIterator<(RangeId, Branch)> for Lineage {
    fn from_iter<T: IntoIterator<Item = (RangeId, Branch)>>(branches: T) -> Lineage {
        Lineage { branches: branches.into_iter().collect() }
    }
}

impl Lineage {
    /// A topic's, as the control state has it.
    pub fn of(topic: &Topic) -> Lineage {
        let stones = topic.stones.iter().map(|stone| (stone.range, Branch::of_stone(stone)));
        stones.chain(topic.ranges.values().map(|range| (range.id, Branch::of_range(range)))).collect()
    }

    /// What is known of a range.
    pub fn get(&self, range: RangeId) -> Option<&Branch> {
        self.branches.get(&range)
    }

    /// The run of partitions that the topic has.
    pub fn partitions(&self) -> Option<Span> {
        let first = self.branches.values().map(|branch| branch.span.first).min()?;
        let last = self.branches.values().map(|branch| branch.span.last).max()?;
        Some(Span { first, last })
    }

    /// For each partition of `span` the earliest range after `after` that held it, in the order of partitions; equal
    /// neighbours are one. Partitions that none held are left out.
    pub(super) fn earliest(&self, span: Span, after: Option<RangeId>, which: Which) -> Vec<(Span, RangeId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let mut open = vec![span];
        let mut found: Vec<(Span, RangeId)> = Vec::new();
        for (id, branch) in self.branches.range((from, Unbounded)) {
            if open.is_empty() {
                break;
            }
            if which.takes(branch) {
                found.extend(open.iter().filter_map(|part| Some((cut(*part, branch.span)?, *id))));
                open = open.into_iter().flat_map(|part| without(part, branch.span)).collect();
            }
        }
        found.sort_by_key(|(part, _)| part.first);
        found
    }
}

/// Which ranges are looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All that are known.
    Known,
    /// Those of which something is left, or which are open.
    Present,
    /// Those that are open.
    Open,
}

impl Which {
    fn takes(self, branch: &Branch) -> bool {
        match self {
            Which::Known => true,
            Which::Present => !branch.dropped(),
            Which::Open => branch.end.is_none(),
        }
    }
}

/// The part of `span` that lies in `within`.
pub(super) fn cut(span: Span, within: Span) -> Option<Span> {
    let both = Span { first: span.first.max(within.first), last: span.last.min(within.last) };
    (both.first <= both.last).then_some(both)
}

/// The parts of `span` that do not lie in `taken`, at most two.
pub(super) fn without(span: Span, taken: Span) -> impl Iterator<Item = Span> {
    let part = |first: Partition, last: Partition| {
        let part = Span { first: first.max(span.first), last: last.min(span.last) };
        (part.first <= part.last).then_some(part)
    };
    let left = part(span.first, taken.first.saturating_sub(1));
    let right = if taken.last < taken.first { None } else { part(taken.last.saturating_add(1), span.last) };
    left.into_iter().chain(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::command::{Command, CreateTopic};
    use crate::control::state::State;
    use crate::drive::spec::DriveSpec;
    use crate::types::{Address, Generation, LogletId, NodeId, Primary, TopicId};
    use crate::virtual_log::chain::{SealMode, Segment};
    use std::sync::Arc;
    use uuid::Uuid;

    const ALL: Span = Span { first: 0, last: 7 };

    fn topic() -> Topic {
        let id = TopicId(Uuid::from_u128(1));
        let create = CreateTopic {
            id,
            name: "t".to_owned(),
            partitions: 8,
            ranges: 1,
            replication_factor: 1,
            drive: None,
            configs: BTreeMap::new(),
            internal: false,
            segments: Vec::new(),
            now: 1,
        };
        let mut state = State::default();
        state.apply(&Command::CreateTopic(create)).expect("a topic");
        Topic::clone(&state.topics[&id])
    }

    fn segment(loglet: u64, base: u64, tail: Option<u64>) -> crate::virtual_log::chain::ChainEntry {
        let node = NodeId(1);
        let segment = Segment {
            loglet: LogletId(loglet),
            drive: DriveSpec::Memory { node },
            window: 16,
            seal_mode: SealMode::Fence,
            primary: Primary { node, generation: Generation(1) },
            opened_at: 0,
        };
        crate::virtual_log::chain::ChainEntry { tail: tail.map(Address), ..segment.at(base) }
    }

    #[test]
    fn the_lineage_of_a_topic_is_that_of_its_ranges_and_stones() {
        let mut topic = topic();
        topic.stones.push(Stone { range: RangeId(7), span: ALL, end: 40, children: vec![RangeId(8)] });
        let set = |topic: &mut Topic, id: u32, change: &dyn Fn(&mut Range)| {
            let mut range = Range::clone(&topic.ranges[&RangeId(0)]);
            range.id = RangeId(id);
            change(&mut range);
            topic.ranges.insert(range.id, Arc::new(range));
        };
        set(&mut topic, 8, &|range| {
            range.state = RangeState::Closed;
            range.chain = vec![segment(3, 10, Some(5)), segment(4, 15, Some(2))];
            (range.parents, range.children) = (vec![RangeId(7)], vec![RangeId(9)]);
        });
        set(&mut topic, 9, &|range| {
            range.state = RangeState::Fencing;
            range.chain = vec![segment(5, 30, Some(5)), segment(6, 35, None)];
            range.parents = vec![RangeId(8)];
        });
        let lineage = Lineage::of(&topic);
        let ends = |id| lineage.get(RangeId(id)).map(|branch| (branch.start, branch.end));
        assert_eq!(ends(7), Some((40, Some(40))));
        assert_eq!(ends(8), Some((10, Some(17))));
        assert_eq!(ends(9), Some((30, None)), "until it is closed, nobody knows its end");
        assert_eq!(ends(0), Some((0, None)), "open, and nothing was appended");
        assert_eq!(ends(1), None);
        assert_eq!(lineage.get(RangeId(8)).map(|b| &b.children[..]), Some(&[RangeId(9)][..]));
        assert_eq!(lineage.partitions(), Some(ALL));
    }

    #[test]
    fn spans_are_cut_and_what_is_left_is_named() {
        let span = |first, last| Span { first, last };
        let rest = |a, b| without(a, b).collect::<Vec<_>>();
        assert_eq!(cut(ALL, span(5, 9)), Some(span(5, 7)));
        assert_eq!(cut(ALL, span(8, 9)), None);
        assert_eq!(rest(ALL, span(3, 4)), [span(0, 2), span(5, 7)]);
        assert_eq!(rest(ALL, span(0, 4)), [span(5, 7)]);
        assert_eq!(rest(ALL, span(4, 9)), [span(0, 3)]);
        assert_eq!(rest(span(3, 4), ALL), []);
        assert_eq!(rest(ALL, span(8, 9)), [ALL]);
        assert_eq!(rest(span(8, 9), ALL), [span(8, 9)]);
    }
}
