//! What a node has to do about its ranges once it sees the control state: level-triggered, so that an answer that was
//! lost, or a driver that died, leaves nothing undone (R3, R14). Pure.

use crate::control::state::Topic;
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, Primary, RangeId};

/// What there is to do, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Todo {
    /// Primaries here whose segment was ended, by whomever, with its recorded tail: what they have in flight is settled
    /// by it, and they take nothing any more. `None`: the segment was dropped since, and its tail is not known any more.
    pub ended: Vec<(RangeId, Option<Address>)>,
    /// Ranges whose open segment names this incarnation and that no primary here has open: to be folded and opened.
    pub open: Vec<RangeId>,
}

/// What node and generation `me` has to do about a topic, of which it has these segments open.
pub fn follow(topic: &Topic, me: Primary, has: &[(RangeId, LogletId)]) -> Todo {
    let mut todo = Todo::default();
    for &(id, loglet) in has {
        let range = topic.ranges.get(&id);
        if range.and_then(|range| range.open()).is_some_and(|open| open.loglet == loglet) {
            continue;
        }
        let entry = range.and_then(|range| range.chain.iter().find(|entry| entry.loglet == loglet));
        // Dropped are the oldest. One that left the chain while older ones are there, or at its beginning, was empty.
        let was_empty = || range.is_some_and(|range| range.chain.first().is_none_or(|first| first.base == 0));
        todo.ended.push((id, entry.map_or(was_empty().then_some(Address(0)), |entry| entry.tail)));
    }
    for range in topic.live_ranges() {
        let Some(open) = range.open().filter(|open| open.primary == me) else { continue };
        let drivers = broken(Mutant::OnlyDriverOpens) && !range.parents.is_empty() && range.chain.len() == 1;
        if !has.contains(&(range.id, open.loglet)) && !drivers {
            todo.open.push(range.id);
        }
    }
    todo
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::command::{Command, CreateTopic, NewSegment};
    use crate::control::state::{Range, State};
    use crate::drive::spec::DriveSpec;
    use crate::testing::mutant::switched::with_broken;
    use crate::types::{Generation, NodeId, TopicId};
    use crate::virtual_log::chain::SealMode;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use uuid::Uuid;

    const ME: Primary = Primary { node: NodeId(1), generation: Generation(2) };

    /// A topic of two partitions in two ranges, with one segment each, led by `ME`.
    fn topic() -> Topic {
        let id = TopicId(Uuid::from_u128(1));
        let segment = NewSegment {
            drive: DriveSpec::Memory { node: NodeId(1) },
            window: 4,
            seal_mode: SealMode::Fence,
            primary: ME,
        };
        let create = CreateTopic {
            id,
            name: "t".to_owned(),
            partitions: 2,
            ranges: 2,
            replication_factor: 1,
            drive: None,
            configs: BTreeMap::new(),
            internal: false,
            segments: vec![segment; 2],
            now: 0,
        };
        let mut state = State::default();
        state.apply(&Command::CreateTopic(create)).expect("a topic");
        Topic::clone(&state.topics[&id])
    }

    fn change(topic: &mut Topic, range: u32, change: impl Fn(&mut Range)) {
        topic.ranges.get_mut(&RangeId(range)).map(Arc::make_mut).map(change).expect("there");
    }

    #[test]
    fn what_names_this_incarnation_and_is_not_open_here_is_to_be_opened() {
        let mut topic = topic();
        let both = [(RangeId(0), LogletId(0)), (RangeId(1), LogletId(1))];
        assert_eq!(follow(&topic, ME, &both), Todo::default());
        assert_eq!(follow(&topic, ME, &both[..1]).open, [RangeId(1)]);
        let elsewhere = Primary { generation: Generation(3), ..ME };
        assert_eq!(follow(&topic, elsewhere, &[]), Todo::default());
        change(&mut topic, 1, |range| range.parents = vec![RangeId(9)]);
        let todo = with_broken(Some(Mutant::OnlyDriverOpens), || follow(&topic, ME, &both[..1]));
        assert_eq!(todo, Todo::default(), "a child whose driver died is never opened");
    }

    #[test]
    fn a_segment_that_was_ended_is_ended_here_at_its_recorded_tail() {
        let mut topic = topic();
        let mine = [(RangeId(0), LogletId(0))];
        let ended = |topic: &Topic| follow(topic, ME, &mine).ended;
        change(&mut topic, 0, |range| range.chain[0].tail = Some(Address(5)));
        assert_eq!(ended(&topic), [(RangeId(0), Some(Address(5)))]);
        change(&mut topic, 0, |range| range.chain.clear());
        assert_eq!(ended(&topic), [(RangeId(0), Some(Address(0)))], "an empty one leaves the chain");
        let other = topic.ranges[&RangeId(1)].chain[0].clone();
        change(&mut topic, 0, |range| {
            range.chain = vec![crate::virtual_log::chain::ChainEntry { base: 7, ..other.clone() }]
        });
        assert_eq!(ended(&topic), [(RangeId(0), None)], "it may have been dropped");
        topic.ranges.remove(&RangeId(0));
        assert_eq!(ended(&topic), [(RangeId(0), None)]);
    }
}
