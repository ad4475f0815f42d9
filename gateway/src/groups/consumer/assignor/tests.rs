//! Assignors on any members, topics and pasts.

use super::super::image::{Partitions, by_topic, flat};
use super::*;
use proptest::prelude::*;
use uuid::Uuid;

fn topic(n: u8) -> TopicId {
    TopicId(Uuid::from_bytes([n; 16]))
}

/// Members with their topics and what they had; topics with partitions and ranges.
#[derive(Clone, Debug)]
struct World {
    members: Vec<(String, BTreeSet<TopicId>, Partitions)>,
    topics: BTreeMap<TopicId, TopicSpec>,
}

impl World {
    fn spec(&self) -> Spec<'_> {
        let members = self.members.iter().map(|(id, topics, before)| MemberSpec {
            id,
            instance_id: None,
            topics: topics.clone(),
            before,
        });
        Spec { members: members.collect(), topics: self.topics.clone() }
    }

    fn alike(members: usize, topics: &[(u8, i32, &[i32])]) -> World {
        let topics: BTreeMap<TopicId, TopicSpec> = topics
            .iter()
            .map(|(n, partitions, ranges)| {
                (topic(*n), TopicSpec { partitions: *partitions, ranges: ranges.to_vec() })
            })
            .collect();
        let all: BTreeSet<TopicId> = topics.keys().copied().collect();
        let members = (0..members).map(|n| (format!("m{n:03}"), all.clone(), Partitions::new())).collect();
        World { members, topics }
    }

    /// The assignment becomes the past.
    fn settle(&mut self, assignor: Assignor) -> BTreeMap<String, Partitions> {
        let targets = assignor.assign(&self.spec());
        for (id, _, before) in &mut self.members {
            *before = targets[id].clone();
        }
        targets
    }
}

fn topics() -> impl Strategy<Value = BTreeMap<TopicId, TopicSpec>> {
    let one = (0i32..40, proptest::collection::btree_set(1i32..40, 0..6)).prop_map(|(partitions, cuts)| {
        let cuts = cuts.into_iter().filter(|cut| *cut < partitions);
        TopicSpec { partitions, ranges: std::iter::once(0).chain(cuts).collect() }
    });
    proptest::collection::vec(one, 1..5)
        .prop_map(|all| all.into_iter().enumerate().map(|(n, of)| (topic(n as u8), of)).collect())
}

/// `alike`: one subscription for all.
fn world(alike: bool) -> impl Strategy<Value = World> {
    let member =
        (proptest::collection::btree_set(0u8..5, 0..5), proptest::collection::vec((0u8..6, 0i32..45), 0..30));
    (topics(), proptest::collection::vec(member, 1..9)).prop_map(move |(topics, members)| {
        let first = members[0].0.clone();
        let members = members.into_iter().enumerate().map(|(n, (subscribed, before))| {
            let subscribed = if alike { first.clone() } else { subscribed };
            let subscribed = subscribed.into_iter().map(topic).filter(|t| topics.contains_key(t)).collect();
            (format!("m{n}"), subscribed, by_topic(before.into_iter().map(|(t, p)| (topic(t), p))))
        });
        let members: Vec<(String, BTreeSet<TopicId>, Partitions)> = members.collect();
        let read: BTreeSet<TopicId> =
            members.iter().flat_map(|(_, topics, _)| topics.iter().copied()).collect();
        World { members, topics: topics.into_iter().filter(|(id, _)| read.contains(id)).collect() }
    })
}

/// Everything that is subscribed to has one owner, which subscribes to it.
fn check_complete(world: &World, targets: &BTreeMap<String, Partitions>) {
    let mut owners: BTreeMap<(TopicId, i32), usize> = BTreeMap::new();
    for (id, topics, _) in &world.members {
        for partition in flat(&targets[id]) {
            assert!(topics.contains(&partition.0), "{id} does not subscribe to {partition:?}");
            *owners.entry(partition).or_default() += 1;
        }
    }
    let all: BTreeSet<(TopicId, i32)> =
        world.topics.iter().flat_map(|(id, of)| (0..of.partitions).map(|p| (*id, p))).collect();
    assert_eq!(
        owners.keys().copied().collect::<BTreeSet<_>>(),
        all,
        "nothing is left out, nothing is made up"
    );
    assert!(owners.values().all(|count| *count == 1), "one owner each");
}

fn loads(targets: &BTreeMap<String, Partitions>) -> Vec<usize> {
    targets.values().map(|t| flat(t).count()).collect()
}

/// What members keep of what they had, where the first to claim a partition has it.
fn kept(world: &World, targets: &BTreeMap<String, Partitions>) -> (Vec<usize>, usize) {
    let mut claimed = BTreeSet::new();
    let mut had = Vec::new();
    let mut kept = 0;
    for (id, topics, before) in &world.members {
        let exists =
            |(t, p): &(TopicId, i32)| world.topics.get(t).is_some_and(|of| (0..of.partitions).contains(p));
        let valid = flat(before).filter(|p| topics.contains(&p.0) && exists(p));
        let mine: Vec<_> = valid.filter(|p| claimed.insert(*p)).collect();
        kept += mine.iter().filter(|p| super::super::image::contains(&targets[id], **p)).count();
        had.push(mine.len());
    }
    (had, kept)
}

proptest! {
    #[test]
    fn every_partition_has_one_owner_that_wants_it(world in prop_oneof![world(true), world(false)]) {
        for assignor in [Assignor::RangeScoped, Assignor::Uniform, Assignor::Range] {
            check_complete(&world, &assignor.assign(&world.spec()));
        }
    }

    #[test]
    fn members_alike_differ_by_one_at_most_and_no_partition_moves_without_need(world in world(true)) {
        for assignor in [Assignor::RangeScoped, Assignor::Uniform] {
            let targets = assignor.assign(&world.spec());
            let loads = loads(&targets);
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{loads:?}");
            // The most that anybody could keep: the larger shares go to those who had most.
            let (mut had, kept) = kept(&world, &targets);
            had.sort_unstable_by(|a, b| b.cmp(a));
            let total: usize = loads.iter().sum();
            let (base, extra) = (total / had.len(), total % had.len());
            let could = had.iter().enumerate().map(|(n, had)| *had.min(&(base + usize::from(n < extra))));
            prop_assert_eq!(kept, could.sum::<usize>());
        }
    }

    #[test]
    fn members_of_any_subscription_are_as_even_as_a_move_can_make_them(world in world(false)) {
        for assignor in [Assignor::RangeScoped, Assignor::Uniform] {
            let targets = assignor.assign(&world.spec());
            for (id, _, _) in &world.members {
                for (other, topics, _) in &world.members {
                    let (mine, theirs) = (flat(&targets[id]).count(), flat(&targets[other]).count());
                    let movable = flat(&targets[id]).any(|(topic, _)| topics.contains(&topic));
                    prop_assert!(!movable || mine <= theirs + 1, "{id} has {mine}, {other} has {theirs}");
                }
            }
        }
    }

    /// INV-GROUP-2: whatever the ranges become, what is balanced stays.
    #[test]
    fn no_split_or_merge_moves_a_partition(
        mut world in prop_oneof![world(true), world(false)],
        other in topics(),
    ) {
        for assignor in [Assignor::RangeScoped, Assignor::Uniform, Assignor::Range] {
            let before = world.settle(assignor);
            for (id, of) in &mut world.topics {
                if let Some(other) = other.get(id) {
                    of.ranges = other.ranges.clone();
                }
            }
            prop_assert_eq!(&assignor.assign(&world.spec()), &before);
        }
    }
}

#[test]
fn whole_ranges_go_to_one_member() {
    let world = World::alike(4, &[(1, 16, &[0, 4, 8, 12])]);
    let targets = Assignor::RangeScoped.assign(&world.spec());
    for target in targets.values() {
        let of: Vec<i32> = flat(target).map(|(_, p)| p).collect();
        assert_eq!(of.len(), 4);
        assert_eq!((of[0] % 4, of[3] - of[0]), (0, 3), "{of:?} is a range");
    }
    // Ranges of different sizes, two topics: the large ones first, the small ones fill up.
    let world = World::alike(2, &[(1, 8, &[0, 6]), (2, 4, &[0, 2])]);
    let targets = Assignor::RangeScoped.assign(&world.spec());
    assert_eq!(loads(&targets), vec![6, 6]);
    let first = flat(&targets["m000"]).collect::<Vec<_>>();
    assert!(first.iter().all(|(t, p)| *t == topic(1) && *p < 6), "{first:?}");
}

#[test]
fn whoever_comes_gets_whole_ranges_of_whoever_has_too_much() {
    let mut world = World::alike(1, &[(1, 12, &[0, 3, 6, 9])]);
    world.settle(Assignor::RangeScoped);
    world.members.push(("m001".into(), world.members[0].1.clone(), Partitions::new()));
    let targets = world.settle(Assignor::RangeScoped);
    let of: Vec<i32> = flat(&targets["m001"]).map(|(_, p)| p).collect();
    assert_eq!(of.len(), 6);
    assert_eq!((of[0] % 3, of[3] % 3), (0, 0), "two whole ranges: {of:?}");
    // It leaves: the other has all again, and has kept its own.
    world.members.pop();
    assert_eq!(loads(&world.settle(Assignor::RangeScoped)), vec![12]);
}

#[test]
fn uniform_spreads_neighbours_and_range_gives_blocks() {
    let world = World::alike(2, &[(1, 4, &[0]), (2, 4, &[0])]);
    let of = |targets: &BTreeMap<String, Partitions>, n: u8| -> Vec<i32> {
        targets["m000"].get(&topic(n)).into_iter().flatten().copied().collect()
    };
    let uniform = Assignor::Uniform.assign(&world.spec());
    assert_eq!((of(&uniform, 1), of(&uniform, 2)), (vec![0, 2], vec![0, 2]));
    let range = Assignor::Range.assign(&world.spec());
    assert_eq!((of(&range, 1), of(&range, 2)), (vec![0, 1], vec![0, 1]), "topics alike are cut alike");
}

#[test]
fn a_large_group_is_assigned_member_by_member() {
    let mut world = World::alike(1, &[(1, 1000, &[0, 250, 500, 750])]);
    for n in 1..100 {
        world.members.push((format!("m{n:03}"), world.members[0].1.clone(), Partitions::new()));
        let targets = world.settle(Assignor::RangeScoped);
        check_complete(&world, &targets);
    }
    assert!(loads(&Assignor::RangeScoped.assign(&world.spec())).iter().all(|load| *load == 10));
}
