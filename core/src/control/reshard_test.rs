//! Split, merge and abort as commands: lineage, epochs, versions, and what is refused.

use super::apply_test::{applied, refused};
use super::command::*;
use super::reshard::OPERATIONS_KEPT;
use super::state::*;
use crate::testing::mutant::Mutant;
use crate::testing::mutant::switched::with_broken;
use crate::types::{Address, Generation, LogletId, NodeId, Primary, RangeId, Span, TopicId};
use std::collections::BTreeMap;
use uuid::Uuid;

const TOPIC: TopicId = TopicId(Uuid::from_u128(1));

fn segment(generation: u64) -> NewSegment {
    super::apply_test::segment(super::apply_test::primary(1, generation))
}

/// A topic of 8 partitions in so many ranges.
fn topic(ranges: u32) -> State {
    let mut state = State::default();
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 0 },
    );
    let create = CreateTopic {
        id: TOPIC,
        name: "orders".to_owned(),
        partitions: 8,
        ranges,
        replication_factor: 1,
        drive: None,
        configs: BTreeMap::new(),
        internal: false,
        segments: vec![segment(1); ranges as usize],
        now: 1,
    };
    applied(&mut state, Command::CreateTopic(create));
    state
}

fn id(n: u128) -> OperationId {
    Uuid::from_u128(n)
}

fn begin(n: u128, kind: OperationKind) -> Command {
    Command::BeginReshard(BeginReshard { operation: id(n), topic: TOPIC, kind, now: n as i64 })
}

fn split(range: u32, at: i32) -> OperationKind {
    OperationKind::Split { range: RangeId(range), at }
}

fn merge(left: u32, right: u32) -> OperationKind {
    OperationKind::Merge { left: RangeId(left), right: RangeId(right) }
}

fn parent_end(state: &State, range: u32, tail: u64) -> ParentEnd {
    let present = state.range(TOPIC, RangeId(range)).expect("there");
    let ended = present.open().map(|open| Ended::at(open.loglet, Address(tail)));
    ParentEnd { range: RangeId(range), version: present.version, ended }
}

fn finish(state: &State, n: u128, parents: &[u32], tail: u64, generation: u64) -> Command {
    let next = vec![segment(generation); 3 - parents.len()];
    let parents = parents.iter().map(|range| parent_end(state, *range, tail)).collect();
    Command::Reshard(Reshard { operation: id(n), parents, next, now: 9 })
}

fn done(created: &[u32]) -> Reply {
    Reply::Operation {
        state: OperationState::Done { created: created.iter().map(|n| RangeId(*n)).collect() },
    }
}

fn range(state: &State, n: u32) -> &Range {
    state.range(TOPIC, RangeId(n)).expect("there")
}

#[test]
fn a_split_closes_the_parent_and_opens_its_children_in_one_command() {
    let mut state = topic(1);
    applied(&mut state, begin(1, split(0, 3)));
    assert_eq!((range(&state, 0).state, range(&state, 0).version), (RangeState::Fencing, 1));
    let command = finish(&state, 1, &[0], 5, 1);
    assert_eq!(applied(&mut state, command.clone()), done(&[1, 2]));
    let parent = range(&state, 0);
    assert_eq!((parent.state, parent.version), (RangeState::Closed, 2));
    assert_eq!(parent.chain[0].tail, Some(Address(5)));
    assert_eq!(parent.children, [RangeId(1), RangeId(2)]);
    for (n, span) in [(1, Span { first: 0, last: 2 }), (2, Span { first: 3, last: 7 })] {
        let child = range(&state, n);
        assert_eq!((child.span, child.state), (span, RangeState::Active));
        assert_eq!(child.parents, [RangeId(0)]);
        assert_eq!(child.epochs, [EpochRun { first: span.first, last: span.last, epoch: 0 }]);
        assert_eq!(child.open().map(|open| (open.base, open.loglet)), Some((0, LogletId(u64::from(n)))));
    }
    assert_eq!(state.topics[&TOPIC].range_of(3).map(|r| r.id), Some(RangeId(2)));
    // A reply that was lost: asked again, nothing changes.
    let before = state.clone();
    assert_eq!(applied(&mut state, command), done(&[1, 2]));
    assert_eq!(state.topics, before.topics);
}

#[test]
fn epochs_grow_where_another_incarnation_leads_a_child_and_only_there() {
    let mut state = topic(1);
    applied(&mut state, begin(1, split(0, 4)));
    let parents = vec![parent_end(&state, 0, 5)];
    let elsewhere = Primary { node: NodeId(2), generation: Generation(7) };
    let next = vec![segment(1), NewSegment { primary: elsewhere, ..segment(1) }];
    applied(&mut state, Command::Reshard(Reshard { operation: id(1), parents, next, now: 9 }));
    let epoch = |partition| state.topics[&TOPIC].range_of(partition).and_then(|r| r.epoch_of(partition));
    assert_eq!((epoch(0), epoch(7)), (Some(0), Some(1)));
}

#[test]
fn a_merge_unites_neighbours_and_their_epochs() {
    let mut state = topic(2);
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 2 },
    );
    // Range 0 rolled to the new generation: one epoch more than range 1, whose segment is the old one's.
    let open = range(&state, 0).open().map(|open| open.loglet).expect("open");
    let ended = Some(Ended::at(open, Address(4)));
    let extend = Extend { topic: TOPIC, range: RangeId(0), version: 0, ended, next: segment(2), now: 2 };
    applied(&mut state, Command::Extend(extend));
    applied(&mut state, begin(1, merge(0, 1)));
    let command = finish(&state, 1, &[0, 1], 6, 2);
    assert_eq!(applied(&mut state, command), done(&[2]));
    let child = range(&state, 2);
    assert_eq!(child.parents, [RangeId(0), RangeId(1)]);
    assert_eq!(child.span, Span { first: 0, last: 7 });
    // Only the partitions whose incarnation changed grew; now all stand at 1, one run.
    assert_eq!(child.epochs, [EpochRun { first: 0, last: 7, epoch: 1 }]);
}

#[test]
fn what_cannot_be_split_or_merged_is_refused() {
    let mut state = topic(8);
    let single = Refusal::SinglePartition { range: RangeId(3), partition: 3 };
    assert_eq!(refused(&mut state, begin(1, split(3, 3))), single);
    let neighbours = Refusal::NotNeighbours { left: RangeId(1), right: RangeId(3) };
    assert_eq!(refused(&mut state, begin(1, merge(1, 3))), neighbours);
    let backwards = Refusal::NotNeighbours { left: RangeId(2), right: RangeId(1) };
    assert_eq!(refused(&mut state, begin(1, merge(2, 1))), backwards);
    assert!(matches!(refused(&mut state, begin(1, merge(2, 2))), Refusal::NotNeighbours { .. }));
    assert!(matches!(refused(&mut state, begin(1, split(9, 1))), Refusal::UnknownRange { .. }));
    let mut state = topic(1);
    for at in [-1, 0, 8, i32::MIN, i32::MAX] {
        let point = Refusal::SplitPoint { range: RangeId(0), first: 0, last: 7, at };
        assert_eq!(refused(&mut state, begin(1, split(0, at))), point);
    }
}

#[test]
fn a_range_has_one_operation_at_a_time_and_takes_no_segment_meanwhile() {
    let mut state = topic(2);
    applied(&mut state, begin(1, split(0, 2)));
    let fencing = Refusal::NotActive { range: RangeId(0), state: RangeState::Fencing };
    assert_eq!(refused(&mut state, begin(2, split(0, 1))), fencing);
    assert_eq!(refused(&mut state, begin(2, merge(0, 1))), fencing);
    let parent = parent_end(&state, 0, 3);
    let ParentEnd { version, ended, .. } = parent;
    let extend = Extend { topic: TOPIC, range: RangeId(0), version, ended, next: segment(1), now: 1 };
    assert_eq!(refused(&mut state, Command::Extend(extend)), fencing);
    // The same intent again is known.
    let running = Reply::Operation { state: OperationState::Running };
    assert_eq!(applied(&mut state, begin(1, split(0, 2))), running);
    assert_eq!(range(&state, 0).version, 1);
}

#[test]
fn a_close_names_the_version_and_the_segment_that_it_ends() {
    let mut state = topic(1);
    let early = finish(&state, 1, &[0], 5, 1);
    assert_eq!(refused(&mut state, early), Refusal::UnknownOperation(id(1)));
    let before_intent = parent_end(&state, 0, 5);
    applied(&mut state, begin(1, split(0, 4)));
    let command = |parent: ParentEnd| {
        let next = vec![segment(1); 2];
        Command::Reshard(Reshard { operation: id(1), parents: vec![parent], next, now: 1 })
    };
    assert_eq!(refused(&mut state, command(before_intent)), Refusal::Stale { named: 0, present: 1 });
    let mut other = parent_end(&state, 0, 5);
    other.ended = Some(Ended::at(LogletId(7), Address(5)));
    assert!(matches!(refused(&mut state, command(other)), Refusal::NotTheOpenSegment { .. }));
    let mut one = finish(&state, 1, &[0], 5, 1);
    if let Command::Reshard(reshard) = &mut one {
        reshard.next.pop();
    }
    assert_eq!(refused(&mut state, one), Refusal::Segments { got: 1, ranges: 2 });
}

#[test]
fn an_abort_leaves_every_range_writable() {
    let mut state = topic(2);
    applied(&mut state, begin(1, merge(0, 1)));
    // The left one was fenced at 3, the right one was not.
    let sealed = vec![(parent_end(&state, 0, 3), segment(1))];
    let late = finish(&state, 1, &[0, 1], 3, 1);
    let abort = AbortReshard { operation: id(1), why: "no seal quorum".into(), sealed, now: 5 };
    let aborted = Reply::Operation { state: OperationState::Aborted { why: "no seal quorum".into() } };
    assert_eq!(applied(&mut state, Command::AbortReshard(abort.clone())), aborted);
    let (left, right) = (range(&state, 0), range(&state, 1));
    assert_eq!((left.state, right.state), (RangeState::Active, RangeState::Active));
    assert_eq!((left.chain.len(), left.open().map(|open| open.base)), (2, Some(3)));
    assert_eq!((right.chain.len(), left.version, right.version), (1, 2, 2));
    // Asked again it is known; a close that was under way comes too late.
    assert_eq!(applied(&mut state, Command::AbortReshard(abort)), aborted);
    let over = Refusal::OperationOver { operation: id(1), state: "aborted".to_owned() };
    assert_eq!(refused(&mut state, late), over);
}

#[test]
fn an_empty_last_segment_leaves_the_closed_chain() {
    let mut state = topic(1);
    applied(&mut state, begin(1, split(0, 4)));
    let command = finish(&state, 1, &[0], 0, 1);
    applied(&mut state, command);
    assert!(range(&state, 0).chain.is_empty());
    assert_eq!(state.tombstones.keys().copied().collect::<Vec<_>>(), [LogletId(0)]);
    assert_eq!(range(&state, 1).epochs, [EpochRun { first: 0, last: 3, epoch: 0 }]);
}

#[test]
fn operations_that_are_over_are_forgotten_in_time_and_with_their_topic() {
    let mut state = topic(1);
    let mut live = 0;
    for n in 1..=(OPERATIONS_KEPT as u128 + 10) {
        applied(&mut state, begin(n * 2, split(live, 4)));
        let command = finish(&state, n * 2, &[live], 1, 1);
        applied(&mut state, command);
        applied(&mut state, begin(n * 2 + 1, merge(live + 1, live + 2)));
        let command = finish(&state, n * 2 + 1, &[live + 1, live + 2], 1, 1);
        applied(&mut state, command);
        live += 3;
    }
    assert_eq!(state.operations.len(), OPERATIONS_KEPT + 1);
    applied(&mut state, Command::DeleteTopic { topic: TOPIC, now: 1 });
    assert!(state.operations.is_empty());
}

/// M7: a driver that slept through an abort and a second intent closes with a tail that is stale by then.
#[test]
fn a_version_that_intent_and_abort_leave_alone_lets_a_stale_close_through() {
    let stale_close = || {
        let mut state = topic(1);
        applied(&mut state, begin(1, split(0, 4)));
        let stale = parent_end(&state, 0, 3);
        let abort = AbortReshard { operation: id(1), why: String::new(), sealed: vec![], now: 1 };
        applied(&mut state, Command::AbortReshard(abort));
        applied(&mut state, begin(2, split(0, 4)));
        let next = vec![segment(1); 2];
        state
            .apply(&Command::Reshard(Reshard { operation: id(2), parents: vec![stale], next, now: 1 }))
            .is_ok()
    };
    assert!(!stale_close());
    assert!(with_broken(Some(Mutant::IntentKeepsVersion), stale_close));
}
