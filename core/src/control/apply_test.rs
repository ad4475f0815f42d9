//! The state machine: single commands, and random sequences of them with the invariants checked after each.

use super::command::*;
use super::rows::{self, Loader};
use super::state::*;
use crate::drive::spec::DriveSpec;
use crate::types::{Address, DiskId, Generation, LogletId, NodeId, Primary, RangeId, TopicId};
use crate::virtual_log::chain::SealMode;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

fn topic_id(n: u128) -> TopicId {
    TopicId(Uuid::from_u128(n))
}

pub(super) fn primary(node: i32, generation: u64) -> Primary {
    Primary { node: NodeId(node), generation: Generation(generation) }
}

pub(super) fn segment(primary: Primary) -> NewSegment {
    let drive = DriveSpec::Memory { node: primary.node };
    NewSegment { drive, window: 16, seal_mode: SealMode::Fence, primary }
}

fn create(id: u128, name: &str, partitions: i32, ranges: u32) -> CreateTopic {
    CreateTopic {
        id: topic_id(id),
        name: name.to_owned(),
        partitions,
        ranges,
        replication_factor: 1,
        drive: None,
        configs: BTreeMap::new(),
        internal: false,
        segments: Vec::new(),
        now: 1,
    }
}

/// An `Extend` that fits the range as it is, ending the open segment (if any) at `tail`.
fn fitting(state: &State, topic: TopicId, range: RangeId, tail: u64, primary: Primary) -> Extend {
    let present = state.range(topic, range).expect("range");
    let ended = present.open().map(|open| Ended::at(open.loglet, Address(tail)));
    Extend { topic, range, version: present.version, ended, next: segment(primary), now: 2 }
}

pub(super) fn applied(state: &mut State, command: Command) -> Reply {
    let (reply, _) = state.apply(&command).expect("applied");
    state.check().expect("invariants");
    reply
}

pub(super) fn refused(state: &mut State, command: Command) -> Refusal {
    let before = state.clone();
    let refusal = state.apply(&command).expect_err("refused");
    assert_eq!(*state, before, "a refusal changes nothing");
    refusal
}

/// One topic of 4 partitions in 2 ranges, and node 1 in generation 1.
fn small() -> (State, TopicId) {
    let mut state = State::default();
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 0 },
    );
    let mut topic = create(1, "orders", 4, 2);
    topic.segments = vec![segment(primary(1, 1)), segment(primary(1, 1))];
    let reply = applied(&mut state, Command::CreateTopic(topic));
    let first = vec![(RangeId(0), Some(LogletId(0))), (RangeId(1), Some(LogletId(1)))];
    assert_eq!(reply, Reply::Created(first));
    (state, topic_id(1))
}

#[test]
fn partitions_are_cut_evenly_and_whole() {
    let spans: Vec<(i32, i32)> = cut(10, 7, 3).into_iter().map(|s| (s.first, s.last)).collect();
    assert_eq!(spans, [(10, 11), (12, 13), (14, 16)]);
    assert_eq!(cut(0, 2, 9).len(), 2);
    assert!(cut(0, 0, 1).is_empty());
}

#[test]
fn a_name_that_differs_only_in_dot_and_underscore_collides() {
    let mut state = State::default();
    applied(&mut state, Command::CreateTopic(create(1, "a.b", 1, 1)));
    let collision = refused(&mut state, Command::CreateTopic(create(2, "a_b", 1, 1)));
    assert_eq!(collision, Refusal::NameCollides { name: "a_b".into(), existing: "a.b".into() });
    let exists = refused(&mut state, Command::CreateTopic(create(2, "a.b", 1, 1)));
    assert_eq!(exists, Refusal::TopicExists { name: "a.b".into(), id: topic_id(1) });
    assert!(state.topic_named("a_b").is_none());
    assert!(state.topic_named("a.b").is_some());
}

#[test]
fn names_that_are_no_topic_names_are_refused() {
    for name in ["", ".", "..", "a b", "ä", "a/b", &"x".repeat(250)] {
        assert!(matches!(check_topic_name(name), Err(Refusal::InvalidName(_))), "{name}");
    }
    for name in ["a", "...", "A-b_c.9", &"x".repeat(249)] {
        assert_eq!(check_topic_name(name), Ok(()), "{name}");
    }
}

#[test]
fn numbers_of_partitions_ranges_and_segments_are_bounded() {
    let mut state = State::default();
    for partitions in [0, -1, PARTITIONS_MAX + 1] {
        let refusal = refused(&mut state, Command::CreateTopic(create(1, "t", partitions, 1)));
        assert!(matches!(refusal, Refusal::Partitions { got, .. } if got == partitions));
    }
    for ranges in [0, 4] {
        let refusal = refused(&mut state, Command::CreateTopic(create(1, "t", 3, ranges)));
        assert_eq!(refusal, Refusal::Ranges { got: ranges, max: 3 });
    }
    let mut one_segment = create(1, "t", 3, 2);
    one_segment.segments = vec![segment(primary(1, 1))];
    let refusal = refused(&mut state, Command::CreateTopic(one_segment));
    assert_eq!(refusal, Refusal::Segments { got: 1, ranges: 2 });
}

#[test]
fn a_roll_keeps_the_epoch_and_a_new_generation_raises_it() {
    let (mut state, topic) = small();
    let roll = fitting(&state, topic, RangeId(0), 5, primary(1, 1));
    let reply = applied(&mut state, Command::Extend(roll));
    assert_eq!(reply, Reply::Extended(Extended { loglet: LogletId(2), base: 5, version: 1 }));
    assert_eq!(state.range(topic, RangeId(0)).and_then(|r| r.epoch_of(0)), Some(0));

    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 3 },
    );
    let restarted = fitting(&state, topic, RangeId(0), 7, primary(1, 2));
    applied(&mut state, Command::Extend(restarted));
    let range = state.range(topic, RangeId(0)).expect("range");
    assert_eq!((range.epoch_of(0), range.epoch_of(1), range.epoch_of(2)), (Some(1), Some(1), None));
    assert_eq!(range.open().map(|open| open.base), Some(12));
    assert_eq!(range.chain.len(), 3);
}

#[test]
fn an_empty_segment_leaves_the_chain_and_its_epoch_stays() {
    let (mut state, topic) = small();
    for generation in 2..=4 {
        applied(
            &mut state,
            Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 3 },
        );
        let crash = fitting(&state, topic, RangeId(1), 0, primary(1, generation));
        applied(&mut state, Command::Extend(crash));
    }
    let range = state.range(topic, RangeId(1)).expect("range");
    assert_eq!(range.chain.len(), 1);
    assert_eq!(range.epoch_of(3), Some(3), "one per generation, though no segment of it is left");
    assert_eq!(state.tombstones.len(), 3);
}

#[test]
fn an_extend_that_decided_on_an_older_version_is_refused() {
    let (mut state, topic) = small();
    let late = fitting(&state, topic, RangeId(0), 5, primary(1, 1));
    applied(&mut state, Command::Extend(late.clone()));
    assert_eq!(refused(&mut state, Command::Extend(late.clone())), Refusal::Stale { named: 0, present: 1 });
    let wrong_segment = Extend { version: 1, ..late };
    let refusal = refused(&mut state, Command::Extend(wrong_segment));
    let (named, open) = (Some(LogletId(0)), Some(LogletId(2)));
    assert_eq!(refusal, Refusal::NotTheOpenSegment { range: RangeId(0), named, open });
    assert_eq!(refusal.retry(), Retry::Reread);
}

#[test]
fn a_segment_of_a_dead_generation_is_not_opened() {
    let (mut state, topic) = small();
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 3 },
    );
    let zombie = fitting(&state, topic, RangeId(0), 5, primary(1, 1));
    let refusal = refused(&mut state, Command::Extend(zombie));
    let (named, present) = (Generation(1), Some(Generation(2)));
    assert_eq!(refusal, Refusal::DeadPrimary { node: NodeId(1), named, present });
}

fn restart_row(state: &State, topic: TopicId, range: u32, tail: u64) -> RestartRange {
    let extend = fitting(state, topic, RangeId(range), tail, primary(1, 2));
    RestartRange {
        topic,
        range: RangeId(range),
        version: extend.version,
        ended: extend.ended.expect("open"),
        drive: extend.next.drive,
        window: 16,
        seal_mode: SealMode::Fence,
    }
}

#[test]
fn a_restart_seals_and_extends_all_ranges_or_none() {
    let (mut state, topic) = small();
    let restart = |state: &State, rows: &[(u32, u64)]| {
        let ranges = rows.iter().map(|(range, tail)| restart_row(state, topic, *range, *tail)).collect();
        Command::Restart(Restart { primary: primary(1, 2), ranges, now: 9 })
    };
    let early = restart(&state, &[(0, 4)]);
    assert!(matches!(refused(&mut state, early), Refusal::DeadPrimary { .. }));
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 3 },
    );

    let twice = restart(&state, &[(0, 4), (0, 4)]);
    assert!(matches!(refused(&mut state, twice), Refusal::Stale { .. }));
    let both = restart(&state, &[(0, 4), (1, 0)]);
    let Reply::Restarted(opened) = applied(&mut state, both.clone()) else { panic!("reply") };
    assert_eq!(opened.iter().map(|e| (e.loglet.0, e.base)).collect::<Vec<_>>(), [(2, 4), (3, 0)]);
    assert!(matches!(refused(&mut state, both), Refusal::NotMine { .. }), "asked twice, done once");
    let epochs: Vec<_> =
        (0..4).map(|p| state.topics[&topic].range_of(p).and_then(|r| r.epoch_of(p))).collect();
    assert_eq!(epochs, [Some(1); 4]);
}

#[test]
fn only_the_oldest_sealed_segments_can_be_dropped() {
    let (mut state, topic) = small();
    for _ in 0..3 {
        let roll = fitting(&state, topic, RangeId(0), 10, primary(1, 1));
        applied(&mut state, Command::Extend(roll));
    }
    let chain: Vec<LogletId> =
        state.range(topic, RangeId(0)).expect("range").chain.iter().map(|e| e.loglet).collect();
    let drop = |version, loglets: &[LogletId]| {
        let loglets = loglets.to_vec();
        Command::DropSegments(DropSegments { topic, range: RangeId(0), version, loglets, now: 5 })
    };
    let not_a_prefix = Refusal::NotAPrefix { range: RangeId(0) };
    for wrong in [&chain[1..2], &chain[..0], &chain[..4], &[chain[1], chain[0]]] {
        assert_eq!(refused(&mut state, drop(3, wrong)), not_a_prefix);
    }
    assert!(matches!(refused(&mut state, drop(2, &chain[..2])), Refusal::Stale { .. }));
    applied(&mut state, drop(3, &chain[..2]));
    let range = state.range(topic, RangeId(0)).expect("range");
    assert_eq!((range.version, range.chain[0].base), (4, 20));
    assert_eq!(state.tombstones_of(NodeId(1)).map(|(id, _)| id).collect::<Vec<_>>(), chain[..2]);

    let ack = Command::AckTombstones { node: NodeId(1), loglets: chain[..2].to_vec() };
    applied(&mut state, ack.clone());
    assert!(state.tombstones.is_empty());
    applied(&mut state, ack);
}

#[test]
fn a_closed_range_without_segments_leaves_a_stone() {
    let (mut state, id) = small();
    let roll = fitting(&state, id, RangeId(0), 10, primary(1, 1));
    applied(&mut state, Command::Extend(roll));
    // No command closes a range yet; a merge of both ranges would leave this.
    let topic = Arc::make_mut(state.topics.get_mut(&id).expect("topic"));
    let mut child = Range::clone(&topic.ranges[&RangeId(1)]);
    child.span.first = 0;
    child.epochs[0].first = 0;
    topic.ranges.insert(RangeId(1), Arc::new(child));
    let closed = Arc::make_mut(topic.ranges.get_mut(&RangeId(0)).expect("range"));
    closed.state = RangeState::Closed;
    closed.children = vec![RangeId(1)];
    closed.chain[1].tail = Some(Address(3));
    topic.layout = BTreeMap::from([(0, RangeId(1))]);
    state.check().expect("a state that a merge leaves");
    let span = state.topics[&id].ranges[&RangeId(0)].span;

    let loglets = vec![LogletId(0), LogletId(2)];
    let drop = DropSegments { topic: id, range: RangeId(0), version: 1, loglets, now: 5 };
    applied(&mut state, Command::DropSegments(drop));
    let stone = Stone { range: RangeId(0), span, end: 13, children: vec![RangeId(1)] };
    assert_eq!(state.topics[&id].stones, [stone]);
}

#[test]
fn a_closed_range_goes_after_its_parents_and_an_empty_one_without_segments() {
    let (mut state, id) = small();
    let reshard = |state: &mut State, n: u128, kind: OperationKind, tail: u64, children: usize| {
        let operation = Uuid::from_u128(n);
        let begin = BeginReshard { operation, topic: id, kind, now: 1 };
        applied(state, Command::BeginReshard(begin));
        let ended = |range: &RangeId| parent_end(state, id, *range, tail).expect("there");
        let parents = kind.ranges().iter().map(ended).collect();
        let next = vec![segment(primary(1, 1)); children];
        applied(state, Command::Reshard(Reshard { operation, parents, next, now: 2 }));
    };
    // r0 ends with ten entries, its child r2 before it wrote anything.
    reshard(&mut state, 1, OperationKind::Split { range: RangeId(0), at: 1 }, 10, 2);
    reshard(&mut state, 2, OperationKind::Merge { left: RangeId(2), right: RangeId(3) }, 0, 1);
    let drop = |state: &State, range: u32| {
        let present = state.range(id, RangeId(range)).expect("there");
        let loglets = present.chain.iter().filter(|e| e.tail.is_some()).map(|e| e.loglet).collect();
        Command::DropSegments(DropSegments {
            topic: id,
            range: RangeId(range),
            version: present.version,
            loglets,
            now: 5,
        })
    };
    assert!(state.range(id, RangeId(2)).expect("there").chain.is_empty());
    let remain = Refusal::ParentsRemain { range: RangeId(2) };
    let early = drop(&state, 2);
    assert_eq!(refused(&mut state, early), remain, "r0 is reached through it");
    let live = drop(&state, 4);
    assert_eq!(refused(&mut state, live), Refusal::NotAPrefix { range: RangeId(4) }, "it lives");
    for range in [0, 2, 3] {
        let command = drop(&state, range);
        applied(&mut state, command);
    }
    let ends: Vec<_> = state.topics[&id].stones.iter().map(|s| (s.range.0, s.end)).collect();
    assert_eq!(ends, [(0, 10), (2, 0), (3, 0)]);
}

#[test]
fn a_topic_created_again_starts_above_its_old_epochs() {
    let (mut state, topic) = small();
    applied(
        &mut state,
        Command::StartNode { node: NodeId(1), disks: Vec::new(), begun: Default::default(), now: 3 },
    );
    let failover = fitting(&state, topic, RangeId(0), 5, primary(1, 2));
    applied(&mut state, Command::Extend(failover));
    applied(&mut state, Command::DeleteTopic { topic, now: 4 });
    assert_eq!(state.tombstones.len(), 3);
    assert_eq!(refused(&mut state, Command::DeleteTopic { topic, now: 4 }), Refusal::UnknownTopic(topic));
    applied(&mut state, Command::CreateTopic(create(2, "orders", 1, 1)));
    let grown = CreatePartitions { topic: topic_id(2), total: 3, ranges: 1, segments: Vec::new(), now: 5 };
    applied(&mut state, Command::CreatePartitions(grown));
    let again = &state.topics[&topic_id(2)];
    let epochs: Vec<_> = (0..3).map(|p| again.range_of(p).and_then(|r| r.epoch_of(p))).collect();
    assert_eq!(epochs, [Some(2); 3]);
}

#[test]
fn partitions_are_appended_in_new_ranges() {
    let (mut state, topic) = small();
    let grow = |total, ranges| {
        Command::CreatePartitions(CreatePartitions { topic, total, ranges, segments: vec![], now: 5 })
    };
    assert!(matches!(refused(&mut state, grow(4, 1)), Refusal::Partitions { min: 5, .. }));
    assert_eq!(refused(&mut state, grow(6, 3)), Refusal::Ranges { got: 3, max: 2 });
    let reply = applied(&mut state, grow(7, 2));
    assert_eq!(reply, Reply::Created(vec![(RangeId(2), None), (RangeId(3), None)]));
    let topic = &state.topics[&topic];
    assert_eq!(topic.range_of(4).map(|r| r.id), Some(RangeId(2)));
    assert_eq!(topic.range_of(6).map(|r| r.id), Some(RangeId(3)));
    assert!(topic.range_of(7).is_none() && topic.range_of(-1).is_none());
}

#[test]
fn configs_are_set_and_given_up_singly_against_a_version() {
    let (mut state, topic) = small();
    let alter = |version, changes: &[(&str, Option<&str>)]| {
        let changes = changes.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect();
        Command::AlterConfigs(AlterConfigs { topic, version, changes, drive: DriveChange::Keep })
    };
    applied(&mut state, alter(None, &[("retention.ms", Some("5")), ("segment.bytes", Some("7"))]));
    applied(&mut state, alter(Some(1), &[("retention.ms", None), ("absent", None)]));
    assert_eq!(state.topics[&topic].configs, BTreeMap::from([("segment.bytes".to_owned(), "7".to_owned())]));
    assert_eq!(refused(&mut state, alter(Some(1), &[])), Refusal::Stale { named: 1, present: 2 });
    let long = "x".repeat(CONFIG_BYTES_MAX + 1);
    assert!(matches!(refused(&mut state, alter(None, &[("a", Some(&long))])), Refusal::OutOfBounds { .. }));
}

#[test]
fn producer_id_blocks_never_overlap() {
    let mut state = State::default();
    for first in [0, 1000, 2000] {
        let reply = applied(&mut state, Command::AllocateProducerIds { count: 1000 });
        assert_eq!(reply, Reply::ProducerIds { first, count: 1000 });
    }
    for count in [0, PRODUCER_IDS_MAX + 1] {
        let refusal = refused(&mut state, Command::AllocateProducerIds { count });
        assert!(matches!(refusal, Refusal::OutOfBounds { .. }));
    }
}

/// One step of a random run; numbers are taken modulo what is there.
#[derive(Clone, Debug)]
enum Step {
    Create { name: u8, partitions: i32, ranges: u32, placed: bool },
    Delete { topic: u8 },
    Grow { topic: u8, more: i32, ranges: u32 },
    Extend { range: u8, tail: u64, node: i32, stale: bool },
    Drop { range: u8, count: usize },
    Ack { node: i32 },
    Start { node: i32 },
    Restart { node: i32, tail: u64 },
    Ids { count: u32 },
    Begin { range: u8, at: i32, merge: bool },
    Reshard { operation: u8, tail: u64, node: i32, stale: bool },
    Abort { operation: u8, sealed: u8, tail: u64 },
    Prepare { range: u8 },
    Replace { prepared: u8, first: usize, count: usize, stale: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..4u8, 0..6i32, 0..4u32, any::<bool>())
            .prop_map(|(name, partitions, ranges, placed)| Step::Create { name, partitions, ranges, placed }),
        1 => (0..4u8).prop_map(|topic| Step::Delete { topic }),
        1 => (0..4u8, 0..4i32, 0..3u32).prop_map(|(topic, more, ranges)| Step::Grow { topic, more, ranges }),
        6 => (any::<u8>(), 0..4u64, 1..3i32, prop::bool::weighted(0.1))
            .prop_map(|(range, tail, node, stale)| Step::Extend { range, tail, node, stale }),
        2 => (any::<u8>(), 0..4usize).prop_map(|(range, count)| Step::Drop { range, count }),
        1 => (1..3i32).prop_map(|node| Step::Ack { node }),
        1 => (1..3i32).prop_map(|node| Step::Start { node }),
        1 => (1..3i32, 0..3u64).prop_map(|(node, tail)| Step::Restart { node, tail }),
        1 => (0..5u32).prop_map(|count| Step::Ids { count }),
        3 => (any::<u8>(), 0..6i32, any::<bool>()).prop_map(|(range, at, merge)| Step::Begin { range, at, merge }),
        4 => (any::<u8>(), 0..4u64, 1..3i32, prop::bool::weighted(0.1))
            .prop_map(|(operation, tail, node, stale)| Step::Reshard { operation, tail, node, stale }),
        1 => (any::<u8>(), any::<u8>(), 0..4u64)
            .prop_map(|(operation, sealed, tail)| Step::Abort { operation, sealed, tail }),
        2 => any::<u8>().prop_map(|range| Step::Prepare { range }),
        3 => (any::<u8>(), 0..2usize, 1..4usize, prop::bool::weighted(0.1))
            .prop_map(|(prepared, first, count, stale)| Step::Replace { prepared, first, count, stale }),
    ]
}

fn prepare(topic: TopicId, range: RangeId) -> Command {
    let drive = DriveSpec::Memory { node: NodeId(1) };
    Command::PrepareReplacement(PrepareReplacement { topic, range, drive, now: 6 })
}

fn replacing(range: &Range, topic: TopicId, old: Vec<LogletId>, with: LogletId) -> Replace {
    Replace { topic, range: range.id, version: range.version, old, with, degraded: None, now: 7 }
}

#[test]
fn a_replacement_is_a_tombstone_until_it_stands_in_the_place_of_neighbours() {
    let (mut state, topic) = small();
    let at = RangeId(0);
    for tail in [5, 3, 7] {
        let roll = fitting(&state, topic, at, tail, primary(1, 1));
        applied(&mut state, Command::Extend(roll));
    }
    let chain = |state: &State| -> Vec<(u64, u64, Option<u64>, bool)> {
        let range = state.range(topic, at).expect("range");
        range.chain.iter().map(|e| (e.loglet.0, e.base, e.tail.map(|t| t.0), e.sparse)).collect()
    };
    assert_eq!(
        chain(&state),
        [(0, 0, Some(5), false), (2, 5, Some(3), false), (3, 8, Some(7), false), (4, 15, None, false)]
    );
    assert_eq!(applied(&mut state, prepare(topic, at)), Reply::Prepared(LogletId(5)));
    assert_eq!(state.tombstones_of(NodeId(1)).map(|(id, _)| id).collect::<Vec<_>>(), [LogletId(5)]);
    let range = state.range(topic, at).expect("range").clone();
    let ids = |ids: &[u64]| ids.iter().map(|id| LogletId(*id)).collect::<Vec<_>>();
    let command = |old: &[u64], with| Command::Replace(replacing(&range, topic, ids(old), LogletId(with)));
    for old in [&[][..], &[2, 0], &[0, 3], &[3, 4], &[4], &[9]] {
        assert_eq!(refused(&mut state, command(old, 5)), Refusal::NotReplaceable { range: at }, "{old:?}");
    }
    assert_eq!(refused(&mut state, command(&[0, 2], 6)), Refusal::NotPrepared(LogletId(6)));
    let stale = Replace { version: range.version + 1, ..replacing(&range, topic, ids(&[0, 2]), LogletId(5)) };
    assert!(matches!(refused(&mut state, Command::Replace(stale)), Refusal::Stale { .. }));
    applied(&mut state, command(&[0, 2], 5));
    assert_eq!(chain(&state), [(5, 0, Some(8), true), (3, 8, Some(7), false), (4, 15, None, false)]);
    assert_eq!(state.tombstones.keys().copied().collect::<Vec<_>>(), ids(&[0, 2]));
    assert!(matches!(refused(&mut state, command(&[3], 5)), Refusal::Stale { .. }), "the version has grown");
    // One that was given up is no replacement any more.
    applied(&mut state, prepare(topic, at));
    applied(&mut state, Command::AckTombstones { node: NodeId(1), loglets: ids(&[6]) });
    let range = state.range(topic, at).expect("range").clone();
    let late = Command::Replace(replacing(&range, topic, ids(&[5, 3]), LogletId(6)));
    assert_eq!(refused(&mut state, late), Refusal::NotPrepared(LogletId(6)));
}

/// The command of a step in the state as it is.
fn command(state: &State, step: &Step, n: u128) -> Option<Command> {
    let generation = |node: i32| state.nodes.get(&NodeId(node)).map_or(1, |node| node.generation.0);
    let topic = |i: u8| state.topics.keys().nth(usize::from(i) % state.topics.len().max(1)).copied();
    let range = |i: u8| {
        let all: Vec<(TopicId, &Arc<Range>)> =
            state.topics.values().flat_map(|t| t.ranges.values().map(|r| (t.id, r))).collect();
        all.get(usize::from(i) % all.len().max(1)).map(|(topic, range)| (*topic, Range::clone(range)))
    };
    Some(match step {
        Step::Create { name, partitions, ranges, placed } => {
            let mut create = create(n, &format!("t{name}"), *partitions, *ranges);
            if *placed {
                create.segments = vec![segment(primary(1, generation(1))); *ranges as usize];
            }
            Command::CreateTopic(create)
        }
        Step::Delete { topic: i } => Command::DeleteTopic { topic: topic(*i)?, now: 1 },
        Step::Grow { topic: i, more, ranges } => {
            let topic = topic(*i)?;
            let total = state.topics[&topic].partitions + more;
            Command::CreatePartitions(CreatePartitions {
                topic,
                total,
                ranges: *ranges,
                segments: vec![],
                now: 1,
            })
        }
        Step::Extend { range: i, tail, node, stale } => {
            let (topic, range) = range(*i)?;
            let mut extend = fitting(state, topic, range.id, *tail, primary(*node, generation(*node)));
            extend.version += u64::from(*stale);
            Command::Extend(extend)
        }
        Step::Drop { range: i, count } => {
            let (topic, range) = range(*i)?;
            let loglets = range.chain.iter().take(*count).map(|entry| entry.loglet).collect();
            let version = range.version;
            Command::DropSegments(DropSegments { topic, range: range.id, version, loglets, now: 1 })
        }
        Step::Ack { node } => {
            let loglets = state.tombstones.keys().copied().collect();
            Command::AckTombstones { node: NodeId(*node), loglets }
        }
        Step::Start { node } => {
            Command::StartNode { node: NodeId(*node), disks: Vec::new(), begun: Default::default(), now: 1 }
        }
        Step::Restart { node, tail } => {
            let primary = primary(*node, generation(*node));
            let all = state.topics.values().flat_map(|t| t.ranges.values().map(|r| (t.id, r)));
            let old = all.filter(|(_, range)| {
                range.open().is_some_and(|open| {
                    open.primary.node == primary.node && open.primary.generation < primary.generation
                })
            });
            let row = |(topic, range): (TopicId, &Arc<Range>)| RestartRange {
                topic,
                range: range.id,
                version: range.version,
                ended: Ended::at(range.open().expect("open").loglet, Address(*tail)),
                drive: DriveSpec::Memory { node: primary.node },
                window: 4,
                seal_mode: SealMode::Fence,
            };
            Command::Restart(Restart { primary, ranges: old.map(row).collect(), now: 1 })
        }
        Step::Prepare { range: i } => {
            let (topic, range) = range(*i)?;
            prepare(topic, range.id)
        }
        Step::Replace { prepared: i, first, count, stale } => {
            let n = usize::from(*i) % state.tombstones.len().max(1);
            let (with, tombstone) = state.tombstones.iter().nth(n)?;
            let range = state.range(tombstone.topic, tombstone.range)?;
            let old = range.chain.iter().skip(*first).take(*count).map(|entry| entry.loglet).collect();
            let mut replace = replacing(range, tombstone.topic, old, *with);
            replace.version += u64::from(*stale);
            Command::Replace(replace)
        }
        Step::Ids { count } => Command::AllocateProducerIds { count: *count },
        Step::Begin { range: i, at, merge } => {
            let (topic, range) = range(*i)?;
            let right = state.topics[&topic].range_of(range.span.last.saturating_add(1)).map(|r| r.id);
            let kind = match (merge, right) {
                (true, Some(right)) => OperationKind::Merge { left: range.id, right },
                _ => OperationKind::Split { range: range.id, at: *at },
            };
            Command::BeginReshard(BeginReshard { operation: Uuid::from_u128(n), topic, kind, now: n as i64 })
        }
        Step::Reshard { operation: i, tail, node, stale } => {
            let operation = operation(state, *i)?;
            let ranges = operation.kind.ranges();
            let children = 3 - ranges.len();
            let mut parents: Vec<ParentEnd> = ranges
                .iter()
                .map(|id| parent_end(state, operation.topic, *id, *tail))
                .collect::<Option<_>>()?;
            parents[0].version += u64::from(*stale);
            let next = vec![segment(primary(*node, generation(*node))); children];
            Command::Reshard(Reshard { operation: operation.id, parents, next, now: n as i64 })
        }
        Step::Abort { operation: i, sealed, tail } => {
            let operation = operation(state, *i)?;
            let ranges = operation.kind.ranges();
            let fenced = ranges.iter().take(usize::from(*sealed) % 3);
            let sealed = fenced.map(|id| {
                Some((parent_end(state, operation.topic, *id, *tail)?, segment(primary(1, generation(1)))))
            });
            let sealed = sealed.collect::<Option<_>>()?;
            let why = "a test".to_owned();
            Command::AbortReshard(AbortReshard { operation: operation.id, why, sealed, now: n as i64 })
        }
    })
}

fn operation(state: &State, i: u8) -> Option<&Operation> {
    state.operations.values().nth(usize::from(i) % state.operations.len().max(1))
}

fn parent_end(state: &State, topic: TopicId, id: RangeId, tail: u64) -> Option<ParentEnd> {
    let range = state.range(topic, id)?;
    let ended = range.open().map(|open| Ended::at(open.loglet, Address(tail)));
    Some(ParentEnd { range: id, version: range.version, ended })
}

/// What may never be seen to fall or come back, over a whole run.
#[derive(Default)]
struct Watcher {
    epochs: BTreeMap<(String, i32), i32>,
    versions: BTreeMap<(TopicId, RangeId), u64>,
    ranges_gone: BTreeSet<(TopicId, RangeId)>,
    loglets_gone: BTreeSet<LogletId>,
    loglets: BTreeSet<LogletId>,
}

impl Watcher {
    fn look(&mut self, state: &State) {
        let mut ranges = BTreeSet::new();
        let mut loglets: BTreeSet<LogletId> = state.tombstones.keys().copied().collect();
        for topic in state.topics.values() {
            for partition in 0..topic.partitions {
                let range = topic.range_of(partition).expect("tiled");
                let epoch = range.epoch_of(partition).expect("an epoch for each partition");
                let seen = self.epochs.entry((topic.name.clone(), partition)).or_insert(epoch);
                assert!(*seen <= epoch, "epoch of {} {partition} fell", topic.name);
                *seen = epoch;
            }
            for range in topic.ranges.values() {
                let seen = self.versions.entry((topic.id, range.id)).or_insert(range.version);
                assert!(*seen <= range.version, "version of {} fell", range.id);
                *seen = range.version;
                ranges.insert((topic.id, range.id));
                loglets.extend(range.chain.iter().map(|entry| entry.loglet));
            }
        }
        assert!(ranges.is_disjoint(&self.ranges_gone), "a range came back");
        self.ranges_gone.extend(self.versions.keys().filter(|key| !ranges.contains(*key)));
        assert!(loglets.is_disjoint(&self.loglets_gone), "a loglet came back");
        self.loglets_gone.extend(self.loglets.difference(&loglets));
        self.loglets.extend(&loglets);
    }
}

/// Keeps rows as the store does, from the deltas alone.
fn keep(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, state: &State, deltas: &[super::Delta]) {
    rows.insert(rows::COUNTERS.to_vec(), rows::encode(&state.counters).expect("encodes"));
    for delta in deltas {
        match rows::value(state, delta).expect("encodes") {
            Some(value) => rows.insert(rows::key(delta), value),
            None => rows.remove(&rows::key(delta)),
        };
    }
}

fn loaded(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> State {
    let mut loader = Loader::default();
    rows.iter().for_each(|(key, value)| loader.row(key, value).expect("a good row"));
    loader.finish().expect("a good state")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_command_and_rows_and_replay_give_the_same_state(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut state = State::default();
        let mut kept = BTreeMap::new();
        keep(&mut kept, &state, &[]);
        let mut done = Vec::new();
        let mut watcher = Watcher::default();
        for (n, step) in steps.iter().enumerate() {
            let Some(command) = command(&state, step, n as u128 + 1) else { continue };
            let before = state.clone();
            match state.apply(&command) {
                Ok((_, deltas)) => {
                    prop_assert_eq!(state.counters.version, before.counters.version + 1);
                    keep(&mut kept, &state, &deltas);
                    done.push(command);
                }
                Err(_) => prop_assert_eq!(&state, &before),
            }
            prop_assert_eq!(state.check(), Ok(()));
            watcher.look(&state);
            prop_assert_eq!(&loaded(&kept), &state);
        }
        let mut replayed = State::default();
        for command in &done {
            replayed.apply(command).expect("applied before");
        }
        prop_assert_eq!(&replayed, &state);
    }
}

#[test]
fn command_numbers_stay() {
    let (topic, now) = (topic_id(1), 0);
    let id = RangeId(0);
    let commands = [
        Command::CreateTopic(create(1, "t", 1, 1)),
        Command::DeleteTopic { topic, now },
        Command::CreatePartitions(CreatePartitions { topic, total: 2, ranges: 1, segments: vec![], now }),
        Command::AlterConfigs(AlterConfigs {
            topic,
            version: None,
            changes: BTreeMap::new(),
            drive: DriveChange::Keep,
        }),
        Command::Extend(Extend {
            topic,
            range: id,
            version: 0,
            ended: None,
            next: segment(primary(1, 1)),
            now,
        }),
        Command::DropSegments(DropSegments { topic, range: id, version: 0, loglets: vec![], now }),
        Command::AckTombstones { node: NodeId(1), loglets: vec![] },
        Command::StartNode { node: NodeId(1), disks: vec![], begun: Default::default(), now },
        Command::AllocateProducerIds { count: 1 },
        Command::Restart(Restart { primary: primary(1, 1), ranges: vec![], now }),
        Command::BeginReshard(BeginReshard {
            operation: Uuid::from_u128(1),
            topic,
            kind: OperationKind::Split { range: id, at: 1 },
            now,
        }),
        Command::Reshard(Reshard { operation: Uuid::from_u128(1), parents: vec![], next: vec![], now }),
        Command::AbortReshard(AbortReshard {
            operation: Uuid::from_u128(1),
            why: String::new(),
            sealed: vec![],
            now,
        }),
        Command::AlterNodeConfigs(AlterNodeConfigs { node: None, changes: BTreeMap::new() }),
        prepare(topic, id),
        Command::Replace(Replace {
            topic,
            range: id,
            version: 0,
            old: vec![],
            with: LogletId(1),
            degraded: None,
            now,
        }),
        Command::AlterAcls(AlterAcls { add: vec![acl("t", 3)], remove: vec![] }),
    ];
    for (number, command) in commands.iter().enumerate() {
        let bytes = postcard::to_allocvec(command).expect("encodes");
        assert_eq!(usize::from(bytes[0]), number, "{command:?}");
        assert_eq!(&postcard::from_bytes::<Command>(&bytes).expect("decodes"), command);
    }
}

/// Rows of version 1 as they are on disks; a change of these bytes needs a new row version with a reader for both.
#[test]
fn rows_of_version_1_stay_as_they_are() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (mut state, topic) = small();
    let roll = fitting(&state, topic, RangeId(0), 300, primary(1, 1));
    applied(&mut state, Command::Extend(roll));
    let row_of = |state: &State, delta| hex(rows::value(state, &delta).expect("encodes").expect("there"));
    let row = |delta| row_of(&state, delta);
    assert_eq!(hex(rows::encode(&state.counters).expect("encodes")), COUNTERS_V1);
    assert_eq!(row(super::Delta::Topic(topic)), TOPIC_V1);
    assert_eq!(row(super::Delta::Range(topic, RangeId(0))), RANGE_V1);
    assert_eq!(row(super::Delta::Node(NodeId(1))), NODE_V1);
    applied(&mut state, set_of(Some(NodeId(1)), &[("a", Some("1")), ("b", Some("22"))]));
    assert_eq!(
        hex(rows::value(&state, &super::Delta::NodeConfigs(Some(NodeId(1))))
            .expect("encodes")
            .expect("there")),
        NODE_CONFIGS_V1
    );
    applied(&mut state, Command::AlterAcls(AlterAcls { add: vec![acl("t", 3)], remove: vec![] }));
    assert_eq!(row_of(&state, super::Delta::Acl(acl("t", 3))), ACL_V1);
    let (disk, other) = (DiskId(Uuid::from_u128(7)), DiskId(Uuid::from_u128(8)));
    let begun = |generation| [(disk, Generation(generation)), (other, Generation(300))].into();
    let start = |disks: &[DiskId], begun| Command::StartNode {
        node: NodeId(1),
        disks: disks.to_vec(),
        begun,
        now: 3,
    };
    applied(&mut state, start(&[disk, other], begun(1)));
    applied(&mut state, start(&[disk], [(disk, Generation(2))].into()));
    assert_eq!(state.disk_starts[&NodeId(1)], [(disk, Generation(2))].into(), "the other one is forgotten");
    applied(&mut state, start(&[disk, other], begun(3)));
    applied(&mut state, start(&[disk, other], Default::default()));
    assert_eq!(state.disk_starts[&NodeId(1)], begun(3), "both were away");
    assert_eq!(row_of(&state, super::Delta::DiskStarts(NodeId(1))), DISK_STARTS_V1);
}

fn acl(name: &str, permission: i8) -> Acl {
    let text = str::to_owned;
    Acl {
        resource: 2,
        pattern: 3,
        name: text(name),
        principal: text("User:*"),
        host: text("*"),
        operation: 4,
        permission,
    }
}

#[test]
fn access_rules_come_and_go_with_their_rows_and_have_bounds() {
    let mut state = State::default();
    let mut kept = BTreeMap::new();
    let mut alter = |state: &mut State, add: &[Acl], remove: &[Acl]| {
        let command = Command::AlterAcls(AlterAcls { add: add.to_vec(), remove: remove.to_vec() });
        let (_, deltas) = state.apply(&command).expect("applied");
        for delta in &deltas {
            match rows::value(state, delta).expect("encodes") {
                Some(value) => kept.insert(rows::key(delta), value),
                None => kept.remove(&rows::key(delta)),
            };
        }
        let mut loader = Loader::default();
        kept.iter().for_each(|(key, value)| loader.row(key, value).expect("reads"));
        assert_eq!(loader.finish().expect("loads").acls, state.acls);
        deltas.len()
    };
    assert_eq!(alter(&mut state, &[acl("a", 3), acl("a", 2), acl("b", 3)], &[]), 3);
    assert_eq!(alter(&mut state, &[acl("a", 3)], &[acl("c", 3)]), 0, "nothing changes");
    assert_eq!(alter(&mut state, &[], &[acl("a", 2), acl("b", 3)]), 2);
    assert_eq!(state.acls.iter().collect::<Vec<_>>(), [&acl("a", 3)]);
    assert_eq!(alter(&mut state, &[acl("a", 3)], &[acl("a", 3)]), 1, "one row, written once");
    assert_eq!(state.acls.len(), 1);

    let refused = |state: &mut State, add: Vec<Acl>| {
        let before = state.clone();
        let refusal =
            state.apply(&Command::AlterAcls(AlterAcls { add, remove: vec![] })).expect_err("refused");
        assert_eq!(*state, before);
        refusal
    };
    let long = acl(&"x".repeat(ACL_BYTES_MAX + 1), 3);
    assert!(matches!(refused(&mut state, vec![long]), Refusal::AclBytes { .. }));
    let many = (0..ACLS_MAX).map(|n| acl(&n.to_string(), 3)).collect();
    assert!(matches!(refused(&mut state, many), Refusal::Acls { .. }));
}

fn set_of(node: Option<NodeId>, changes: &[(&str, Option<&str>)]) -> Command {
    let changes = changes.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
    Command::AlterNodeConfigs(AlterNodeConfigs { node, changes: changes.collect() })
}

#[test]
fn settings_of_nodes_are_kept_by_node_and_gone_when_empty() {
    let mut state = State::default();
    let of = |state: &State, node| {
        let configs = state.node_configs.get(&node).cloned().unwrap_or_default();
        configs.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    applied(&mut state, set_of(None, &[("a", Some("1")), ("b", Some("2"))]));
    applied(&mut state, set_of(Some(NodeId(1)), &[("a", Some("3"))]));
    applied(&mut state, set_of(None, &[("b", None), ("never.set", None)]));
    assert_eq!(
        (of(&state, None), of(&state, Some(NodeId(1)))),
        (vec!["a=1".to_owned()], vec!["a=3".to_owned()])
    );
    let rows = |state: &State| {
        let mut loader = Loader::default();
        for node in [None, Some(NodeId(1))] {
            let delta = super::Delta::NodeConfigs(node);
            if let Some(value) = rows::value(state, &delta).expect("encodes") {
                loader.row(&rows::key(&delta), &value).expect("reads");
            }
        }
        loader.finish().expect("loads").node_configs
    };
    assert_eq!(rows(&state), state.node_configs);
    applied(&mut state, set_of(None, &[("a", None)]));
    assert_eq!(state.node_configs.keys().collect::<Vec<_>>(), [&Some(NodeId(1))]);
    assert_eq!(rows(&state), state.node_configs);
    let long = "x".repeat(CONFIG_BYTES_MAX + 1);
    assert!(state.apply(&set_of(None, &[("a", Some(&long))])).is_err());
}

const NODE_CONFIGS_V1: &str = "0143ea60c402016101310162023232";
const DISK_STARTS_V1: &str =
    "01d8724f22021000000000000000000000000000000007031000000000000000000000000000000008ac02";
const ACL_V1: &str = "015193aa790203017406557365723a2a012a0403";
const COUNTERS_V1: &str = "019589eb4b030300";
const TOPIC_V1: &str = "01e9e6ca1c1000000000000000000000000000000001066f726465727308000002000200020000";
const RANGE_V1: &str =
    "01d68c49850000020001000002000000021000020101ac0200000002ac0202000210000201000000000401000200";
const NODE_V1: &str = "0166a8456702010000";
