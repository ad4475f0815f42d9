//! The consumer protocol's rules, one scenario each, on the pure machine.

use super::ask::*;
use super::consumer::image::{ConsumerImage, Partitions, by_topic, flat};
use super::consumer::{Beat, BeatRefused, Beaten};
use super::coordinator_rig::{Rig, blob, info, topic, topics_at};
use super::pending::PendingCommit;
use super::record::{Blob, MemberInfo};
use super::settings::Settings;
use super::subscription;
use rangeway_core::api::TopicView;
use rangeway_core::replicated::Machine;
use std::sync::Arc;

pub(super) fn parts(of: &[(u8, i32)]) -> Partitions {
    by_topic(of.iter().map(|(t, p)| (topic(*t), *p)))
}

/// Partitions of topic 1.
pub(super) fn of(partitions: &[i32]) -> Partitions {
    by_topic(partitions.iter().map(|p| (topic(1), *p)))
}

/// A heartbeat that says nothing new.
pub(super) fn beat(id: &str, epoch: i32) -> Beat {
    Beat {
        group: "g".into(),
        member_id: id.into(),
        fresh_id: format!("fresh-{id}"),
        makes_its_id: true,
        epoch,
        instance_id: None,
        rack_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        rebalance_timeout_ms: None,
        topics: None,
        regex: None,
        assignor: None,
        owned: None,
    }
}

/// The first heartbeat of a member.
pub(super) fn joining(id: &str, topics: &[&str]) -> Beat {
    Beat {
        rebalance_timeout_ms: Some(60_000),
        topics: Some(topics.iter().map(|t| (*t).to_owned()).collect()),
        owned: Some(Partitions::new()),
        ..beat(id, 0)
    }
}

pub(super) fn owning(id: &str, epoch: i32, owned: &[i32]) -> Beat {
    Beat { owned: Some(of(owned)), ..beat(id, epoch) }
}

pub(super) fn with_instance(beat: Beat, instance: &str) -> Beat {
    Beat { instance_id: Some(instance.into()), ..beat }
}

impl Rig {
    /// One topic `t` of three partitions.
    pub(super) fn three() -> Rig {
        let mut rig = Rig::quick();
        rig.catalog = topics_at(1, &[(1, "t", 3, &[0])]);
        rig
    }

    pub(super) fn beat(&mut self, beat: Beat) -> Result<Beaten, BeatRefused> {
        match self.ask(Ask::Beat(Box::new(beat))) {
            Answer::Beat(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn beaten(&mut self, beat: Beat) -> (i32, Option<Partitions>) {
        let beaten = self.beat(beat).expect("accepted");
        (beaten.epoch, beaten.assignment)
    }

    pub(super) fn code(&mut self, beat: Beat) -> i16 {
        self.beat(beat).map_or_else(|refused| refused.error.code(), |_| 0)
    }

    pub(super) fn image(&self) -> &ConsumerImage {
        &self.machine.consumers.groups["g"]
    }

    pub(super) fn consumer_state(&self) -> &'static str {
        self.image().state().name()
    }

    /// Codes of a commit of these partitions, plain and within a transaction.
    fn commits(&mut self, id: &str, epoch: i32, partitions: &[i32]) -> [i16; 2] {
        let caller = Caller { group: "g".into(), member_id: id.into(), instance_id: None, generation: epoch };
        let position = |p: &i32| {
            ((topic(1), *p), CommitPosition { offset: 1, leader_epoch: -1, metadata: String::new() })
        };
        let positions = partitions.iter().map(position).collect();
        let commit = Commit { caller, says_group_not_found: true, retention_ms: None, positions };
        let pending = PendingCommit { producer_id: 1, number: 1, commit: commit.clone() };
        let plain = match self.ask(Ask::Commit(commit)) {
            Answer::Commit(answer) => answer.err().map_or(0, GroupError::code),
            other => panic!("{other:?}"),
        };
        match self.ask(Ask::CommitPending(pending)) {
            Answer::CommitPending(answer) => [plain, answer.err().map_or(0, GroupError::code)],
            other => panic!("{other:?}"),
        }
    }

    fn commit_as(&mut self, id: &str, epoch: i32, offset: i64) -> Result<(), GroupError> {
        let caller = Caller { group: "g".into(), member_id: id.into(), instance_id: None, generation: epoch };
        let position = CommitPosition { offset, leader_epoch: -1, metadata: String::new() };
        let positions = vec![((topic(1), 0), position)];
        let commit = Commit { caller, says_group_not_found: true, retention_ms: None, positions };
        match self.ask(Ask::Commit(commit)) {
            Answer::Commit(Ok(answers)) => answers[0],
            Answer::Commit(Err(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }
}

/// The exchange that the reference broker was seen to have.
#[test]
fn a_second_member_gets_what_the_first_has_given_up() {
    let mut rig = Rig::three();
    assert_eq!(rig.beaten(joining("m", &["t"])), (1, Some(of(&[0, 1, 2]))));
    assert_eq!(rig.beaten(owning("m", 1, &[0, 1, 2])), (1, None));
    assert_eq!(rig.beaten(beat("m", 1)), (1, None));
    assert_eq!(rig.consumer_state(), "Stable");

    assert_eq!(rig.beaten(joining("m2", &["t"])), (2, Some(of(&[]))));
    assert_eq!(rig.consumer_state(), "Reconciling");
    assert_eq!(rig.beaten(beat("m", 1)), (1, Some(of(&[0, 1]))), "it is told what to keep, in its old epoch");
    assert_eq!(rig.beaten(owning("m", 1, &[0, 1, 2])), (1, None), "it still owns it all");
    assert_eq!(rig.beaten(beat("m2", 2)), (2, None));
    assert_eq!(rig.beaten(owning("m", 1, &[0, 1])), (2, None));
    assert_eq!(rig.beaten(beat("m2", 2)), (2, Some(of(&[2]))));
    assert_eq!(rig.consumer_state(), "Stable");

    // An answer that was lost: the epoch before counts, with nothing owned beyond what is assigned.
    assert_eq!(rig.beaten(owning("m", 1, &[0, 1])), (2, Some(of(&[0, 1]))));
    assert_eq!(rig.code(owning("m", 1, &[0, 1, 2])), 110);
    assert_eq!(rig.code(beat("m", 1)), 110, "it says nothing of what it owns");
    assert_eq!(rig.code(beat("m", 3)), 110);
    assert_eq!(rig.code(beat("x", 3)), 25);
    // A fenced member comes back under its id, with nothing, and is where it was.
    assert_eq!(rig.beaten(joining("m", &["t"])), (2, Some(of(&[0, 1]))));
    assert_eq!(rig.image().epoch, 2);
}

#[test]
fn heartbeats_are_checked_before_anything_else() {
    let mut rig = Rig::three();
    let join = || joining("m", &["t"]);
    for (case, beat, code) in [
        ("no member id", Beat { member_id: String::new(), ..join() }, 42),
        ("no group", Beat { group: String::new(), ..join() }, 42),
        ("empty instance", with_instance(join(), ""), 42),
        ("empty rack", Beat { rack_id: Some(String::new()), ..join() }, 42),
        ("no rebalance timeout", Beat { rebalance_timeout_ms: None, ..join() }, 42),
        ("no subscription", Beat { topics: None, ..join() }, 42),
        ("says not what it owns", Beat { owned: None, ..join() }, 42),
        ("owns something", Beat { owned: Some(of(&[0])), ..join() }, 42),
        ("assignor", Beat { assignor: Some("foo".into()), ..join() }, 112),
        ("pattern", Beat { regex: Some("[".into()), ..join() }, 128),
        ("epoch", beat("m", -5), 42),
        ("static leave without instance", beat("m", -2), 42),
        ("no such group", beat("m", 3), 69),
        ("leaves no group", beat("m", -1), 69),
    ] {
        assert_eq!(rig.code(beat), code, "{case}");
    }
    assert!(rig.records.is_empty() && rig.machine.live.is_empty(), "nothing is left of it");
    // v0: the coordinator makes the id.
    let old = Beat { makes_its_id: false, member_id: String::new(), ..join() };
    assert_eq!(rig.beat(old).expect("joined").member_id, "fresh-m");
    assert_eq!(rig.code(beat("y", 1)), 25);
    assert_eq!(rig.code(beat("y", -1)), 25);
}

#[test]
fn a_member_that_leaves_gives_its_partitions_to_the_others() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(joining("b", &["t"]));
    let left = rig.beat(beat("a", -1)).expect("left");
    assert_eq!((left.epoch, left.assignment), (-1, None));
    assert_eq!(rig.consumer_state(), "Assigning");
    assert_eq!(rig.beaten(beat("b", 2)), (3, Some(of(&[0, 1, 2]))));
    assert_eq!(rig.code(beat("a", -1)), 25);
    rig.beaten(beat("b", -1));
    assert_eq!(rig.consumer_state(), "Empty");
    assert_eq!(rig.code(beat("b", 3)), 25, "the group is there, it is not");
    assert!(rig.machine.live.is_empty(), "nobody is watched");
}

#[test]
fn a_member_that_takes_its_topics_along_begins_one_epoch() {
    let mut rig = Rig::three();
    rig.catalog = topics_at(2, &[(1, "t", 3, &[0]), (2, "u", 1, &[0])]);
    rig.beaten(joining("a", &["t"]));
    rig.beaten(joining("b", &["u"]));
    let before = rig.image().epoch;
    rig.beaten(beat("b", -1));
    assert_eq!(rig.image().epoch, before + 1);
    let epoch = rig.image().members["a"].current.epoch;
    rig.beaten(beat("a", epoch));
    assert_eq!(rig.image().epoch, before + 1, "nothing has changed since");
}

#[test]
fn a_silent_member_is_removed_and_a_slow_one_too() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(joining("b", &["t"]));
    rig.beaten(beat("a", 1));
    // It was asked to give up a partition and only says that it lives.
    for _ in 0..3 {
        rig.advance(19_000);
        assert_eq!(rig.code(beat("a", 1)), 0);
        assert_eq!(rig.code(beat("b", 2)), 0);
    }
    rig.advance(3_000);
    assert_eq!(rig.code(beat("a", 1)), 25, "its rebalance timeout is over");
    assert_eq!(rig.beaten(beat("b", 2)), (3, Some(of(&[0, 1, 2]))));
    rig.advance(44_999);
    assert_eq!(rig.code(beat("b", 3)), 0);
    rig.advance(45_001);
    assert_eq!(rig.code(beat("b", 3)), 25, "its session is over");
    assert_eq!(rig.consumer_state(), "Empty");
}

/// As Kafka has it since KAFKA-20747.
#[test]
fn a_static_member_that_joins_under_another_instance_id_frees_the_one_it_had() {
    let mut rig = Rig::three();
    rig.beaten(with_instance(joining("a", &["t"]), "i"));
    assert_eq!(rig.code(with_instance(joining("b", &["t"]), "i")), 111);
    rig.beaten(with_instance(joining("a", &["t"]), "k"));
    assert_eq!(rig.image().members.len(), 1);
    assert_eq!(rig.code(with_instance(joining("b", &["t"]), "k")), 111, "its own now");
    assert_eq!(rig.code(with_instance(joining("b", &["t"]), "i")), 0, "nobody's any more");
    rig.beaten(with_instance(beat("a", -1), "k"));
    assert_eq!(rig.image().members.keys().collect::<Vec<_>>(), ["b"], "each leaves for itself");
}

#[test]
fn static_members_keep_their_partitions_while_they_are_away() {
    let mut rig = Rig::three();
    let join = |id| with_instance(joining(id, &["t"]), "i");
    assert_eq!(rig.beaten(join("a")), (1, Some(of(&[0, 1, 2]))));
    for id in ["a", "b"] {
        let refused = rig.beat(join(id)).expect_err("it is in use, whoever asks");
        assert_eq!(refused.error.code(), 111);
        let why = format!(
            "Static member {id} with instance id i cannot join the group because the instance id is owned by a member."
        );
        assert_eq!(refused.why, why);
    }
    assert_eq!(rig.beaten(with_instance(beat("a", 1), "i")), (1, None), "it goes on as it was");
    let fenced = rig.beat(with_instance(beat("b", 1), "i")).expect_err("another's");
    assert_eq!(
        (fenced.error.code(), fenced.why.as_str()),
        (82, "Static member b with instance id i was fenced by member a.")
    );
    assert_eq!(rig.beaten(with_instance(beat("a", -2), "i")), (-2, None));
    assert_eq!(rig.code(with_instance(beat("a", 1), "i")), 110, "it is away");
    rig.advance(20_000);
    assert_eq!(rig.beaten(join("b")), (1, Some(of(&[0, 1, 2]))), "in the same epoch: nobody else was told");
    assert_eq!(rig.code(with_instance(beat("a", 1), "i")), 82);
    assert_eq!(rig.code(with_instance(beat("a", -1), "i")), 82);
    // It may come back under its own id too.
    assert_eq!(rig.beaten(with_instance(beat("b", -2), "i")), (-2, None));
    assert_eq!(rig.beaten(join("b")).1, Some(of(&[0, 1, 2])));
    // Away for longer than its session: gone.
    rig.beaten(with_instance(beat("b", -2), "i"));
    rig.advance(45_000);
    assert_eq!(rig.consumer_state(), "Empty");
    // -1 is a leave for good.
    rig.beaten(join("c"));
    rig.beaten(with_instance(beat("c", -1), "i"));
    assert_eq!(rig.consumer_state(), "Empty");
}

#[test]
fn topics_and_patterns_are_followed_and_splits_are_not() {
    let mut rig = Rig::three();
    let join = Beat { regex: Some("t.*".into()), ..joining("a", &["u"]) };
    assert_eq!(rig.beaten(join), (1, Some(of(&[0, 1, 2]))));
    // A split: another version of the catalog, the same topics.
    rig.catalog = topics_at(2, &[(1, "t", 3, &[0, 1])]);
    assert_eq!(rig.beaten(beat("a", 1)), (1, None));
    assert_eq!((rig.image().epoch, rig.consumer_state()), (1, "Stable"));
    // Topics come: by name and by pattern.
    rig.catalog =
        topics_at(3, &[(1, "t", 3, &[0, 1]), (2, "u", 1, &[0]), (3, "tt", 1, &[0]), (4, "v", 1, &[0])]);
    let all = parts(&[(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]);
    assert_eq!(rig.beaten(beat("a", 1)), (2, Some(all)));
    // Partitions are added, a topic goes.
    rig.catalog = topics_at(4, &[(1, "t", 4, &[0, 1]), (2, "u", 1, &[0])]);
    let told = rig.beaten(Beat { owned: Some(of(&[0, 1, 2])), ..beat("a", 2) });
    assert_eq!(told, (3, Some(parts(&[(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]))));
    // The pattern is taken back, the names change.
    let other = Beat { regex: Some(String::new()), topics: Some(vec!["u".into()]), ..beat("a", 3) };
    assert_eq!(rig.beaten(other), (3, None), "it is told with a later heartbeat");
    assert_eq!(rig.beaten(beat("a", 3)), (3, Some(parts(&[(2, 0)]))), "to be given up first");
    let owned = Beat { owned: Some(parts(&[(2, 0)])), ..beat("a", 3) };
    assert_eq!(rig.beaten(owned), (4, None));
    assert_eq!(rig.code(Beat { regex: Some("(".into()), ..beat("a", 4) }), 128);
}

/// As Kafka 4.4 was seen to do: `.*` takes `__consumer_offsets` along.
#[test]
fn a_pattern_matches_what_is_shown_of_offsets_and_no_topic_of_the_nodes_own() {
    let mut rig = Rig::three();
    let rows: [(u8, &str, i32, &[i32]); 3] =
        [(1, "t", 1, &[0]), (2, "__consumer_offsets", 1, &[0]), (3, "__groups", 1, &[0])];
    let mut catalog = Arc::unwrap_or_clone(topics_at(1, &rows));
    for (n, internal, derived_from) in [(2, false, Some(topic(3))), (3, true, None)] {
        let view = (*catalog.by_id[&topic(n)]).clone();
        let view = Arc::new(TopicView { internal, derived_from, ..view });
        catalog.by_name.insert(view.name.clone(), view.clone());
        catalog.by_id.insert(view.id, view);
    }
    rig.catalog = Arc::new(catalog);
    let join = Beat { regex: Some(".*".into()), ..joining("a", &[]) };
    assert_eq!(rig.beaten(join), (1, Some(parts(&[(1, 0), (2, 0)]))));
}

/// A static member that comes back begins no epoch, whether all that it subscribes to exists or not (Kafka 4.4, too).
#[test]
fn a_static_member_that_returns_begins_no_epoch_whatever_it_subscribes_to() {
    let mut rig = Rig::three();
    let joining = |id: &str| with_instance(joining(id, &["t", "not-there"]), "i");
    assert_eq!(rig.beaten(joining("a")), (1, Some(of(&[0, 1, 2]))));
    assert_eq!(rig.beaten(with_instance(beat("a", -2), "i")), (-2, None));
    assert_eq!(rig.beaten(joining("b")), (1, Some(of(&[0, 1, 2]))));
    assert_eq!((rig.image().epoch, rig.consumer_state()), (1, "Stable"));
}

/// An application that subscribes several times in a row is asked to give partitions up once, and not in between.
#[test]
fn what_a_member_subscribes_to_anew_is_told_with_a_later_heartbeat() {
    let mut rig = Rig::three();
    rig.catalog = topics_at(1, &[(1, "t", 3, &[0]), (2, "u", 1, &[0]), (3, "v", 1, &[0])]);
    let anew = |epoch, topics: &[&str]| Beat {
        topics: Some(topics.iter().map(|t| (*t).to_owned()).collect()),
        ..beat("a", epoch)
    };
    assert_eq!(rig.beaten(joining("a", &["t"])), (1, Some(of(&[0, 1, 2]))), "who joins waits for nothing");
    assert_eq!(rig.beaten(anew(1, &["t", "u"])), (1, None));
    assert_eq!(rig.beaten(anew(1, &["u", "v"])), (1, None));
    assert_eq!((rig.image().epoch, rig.image().target_epoch), (3, 1));
    assert_eq!(rig.beaten(anew(1, &["u", "v"])), (1, Some(Partitions::new())), "said again is not anew");
    // While it gives these up it subscribes once more: what it acknowledges counts, but it gets nothing that it left.
    let both = Beat { owned: Some(Partitions::new()), ..anew(1, &["v"]) };
    assert_eq!(rig.beaten(both), (3, Some(parts(&[(3, 0)]))));
    assert_eq!(rig.beaten(Beat { owned: Some(parts(&[(3, 0)])), ..beat("a", 3) }), (4, None));
    assert_eq!(rig.consumer_state(), "Stable");
    // Who leaves and comes back joins, whatever it subscribes to.
    assert_eq!(rig.beaten(beat("a", -1)), (-1, None));
    assert_eq!(rig.beaten(joining("a", &["u"])), (6, Some(parts(&[(2, 0)]))));
    // Whoever of the group says its heartbeat first makes the next target.
    rig.beaten(joining("b", &["t"]));
    assert_eq!(rig.beaten(anew(6, &["t", "u"])).1, None);
    rig.beaten(beat("b", 7));
    assert_eq!(rig.image().target_epoch, 8);
}

#[test]
fn epochs_targets_and_owners_survive_a_restart() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(joining("b", &["t"]));
    rig.beaten(beat("a", 1));
    let before = rig.image().clone();
    rig.restart();
    assert_eq!(rig.image(), &before);
    assert_eq!(rig.beaten(beat("b", 2)), (2, None), "nothing is computed anew");
    // Times begin afresh: that of giving up, too.
    rig.advance(44_000);
    assert_eq!(rig.code(beat("a", 1)), 0);
    rig.advance(16_500);
    assert_eq!(rig.code(beat("a", 1)), 25);
}

#[test]
fn the_assignor_that_most_ask_for_is_used() {
    let mut rig = Rig::three();
    let ask =
        |id, assignor: Option<&str>| Beat { assignor: assignor.map(str::to_owned), ..joining(id, &["t"]) };
    rig.beaten(ask("a", None));
    let name = |rig: &mut Rig| match rig.ask(Ask::DescribeConsumers { group: "g".into() }) {
        Answer::DescribeConsumers(Ok(described)) => described.assignor,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(&mut rig), "range-scoped");
    rig.beaten(ask("b", Some("range")));
    assert_eq!(name(&mut rig), "range");
    rig.beaten(ask("c", Some("uniform")));
    rig.beaten(ask("d", Some("uniform")));
    assert_eq!(name(&mut rig), "uniform");
}

#[test]
fn commits_and_reads_are_of_the_members_epoch() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    assert_eq!(rig.commit_as("a", 1, 5), Ok(()));
    assert_eq!(rig.commit_as("a", 0, 6), Err(GroupError::StaleMemberEpoch));
    assert_eq!(rig.commit_as("a", 2, 6), Err(GroupError::StaleMemberEpoch));
    assert_eq!(rig.commit_as("x", 1, 6), Err(GroupError::UnknownMember));
    assert_eq!(rig.commit_as("", -1, 6), Err(GroupError::UnknownMember), "the group has members");
    let read = |rig: &mut Rig, reader: Option<(&str, i32)>| {
        let reader = reader.map(|(id, epoch)| (id.to_owned(), epoch));
        match rig.ask(Ask::Offsets { group: "g".into(), keys: None, reader }) {
            Answer::Offsets(answer) => answer.map(|all| all[0].1.as_ref().map(|p| p.offset)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(&mut rig, None), Ok(Some(5)));
    assert_eq!(read(&mut rig, Some(("a", 1))), Ok(Some(5)));
    assert_eq!(read(&mut rig, Some(("a", 2))), Err(GroupError::StaleMemberEpoch));
    assert_eq!(read(&mut rig, Some(("x", 1))), Err(GroupError::UnknownMember));
    rig.beaten(beat("a", -1));
    assert_eq!(rig.commit_as("", -1, 7), Ok(()), "nobody is in it: tools may");
    assert_eq!(read(&mut rig, None), Ok(Some(7)));
}

/// KIP-1251, as Kafka 4.4 answers.
#[test]
fn a_commit_that_was_on_its_way_when_the_epoch_moved_counts_for_what_the_member_kept() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(owning("a", 1, &[0, 1, 2]));
    rig.beaten(joining("b", &["t"]));
    rig.beaten(beat("a", 1));
    assert_eq!(rig.commits("a", 1, &[0, 2]), [0, 0], "what it is asked for is still its own");
    assert_eq!(rig.beaten(owning("a", 1, &[0, 1])), (2, None));
    rig.beaten(beat("b", 2));
    for restarted in [false, true] {
        if restarted {
            // Through the records, and through a snapshot of it all.
            rig.restart();
            let bytes = postcard::to_stdvec(&rig.machine.capture()).expect("encodes");
            rig.machine.restore(postcard::from_bytes(&bytes).expect("decodes"));
        }
        assert_eq!(rig.commits("a", 1, &[0, 1]), [0, 0], "kept");
        assert_eq!(rig.commits("a", 2, &[0, 1]), [0, 0]);
        assert_eq!(rig.commits("a", 1, &[2]), [113, 22], "given up");
        assert_eq!(rig.commits("a", 1, &[0, 2]), [113, 22], "refused as a whole");
        assert_eq!(rig.commits("a", 0, &[0]), [113, 22], "before it had any");
        assert_eq!(rig.commits("a", 3, &[0]), [113, 22], "of the future");
        assert_eq!(rig.commits("b", 1, &[2]), [113, 22], "another's then");
    }
    // It comes back: of the new epoch, and not of those in which it was another's.
    rig.beaten(beat("b", -1));
    assert_eq!(rig.beaten(beat("a", 2)), (3, Some(of(&[0, 1, 2]))));
    assert_eq!(rig.commits("a", 2, &[2]), [113, 22]);
    assert_eq!(rig.commits("a", 1, &[0, 1]), [0, 0]);
    assert_eq!(rig.commits("a", 3, &[0, 1, 2]), [0, 0]);
}

#[test]
fn of_an_image_without_assignment_epochs_a_member_holds_all_since_its_present_one() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(joining("b", &["t"]));
    rig.beaten(beat("a", 1));
    rig.beaten(owning("a", 1, &[0, 1]));
    let image = rig.machine.capture();
    let version_4 = (&image.groups, &image.consumers, &image.pending, &image.numbers);
    let bytes = postcard::to_stdvec(&version_4).expect("encodes");
    rig.machine.restore(postcard::from_bytes(&bytes).expect("decodes"));
    let member = &rig.image().members["a"];
    let since = |partition| member.held_since((topic(1), partition));
    assert_eq!([since(0), since(1), since(2)], [Some(2), Some(2), None]);
}

/// Java's `Admin.removeMembersFromConsumerGroup`: dynamic members by their id, static ones by either or both.
#[test]
fn tools_take_members_out_by_any_of_their_ids() {
    let mut rig = Rig::three();
    for id in ["a", "b"] {
        rig.beaten(joining(id, &["t"]));
    }
    for (id, instance) in [("c", "i"), ("d", "j")] {
        rig.beaten(with_instance(joining(id, &["t"]), instance));
    }
    let unknown = || Err(GroupError::UnknownMember);
    assert_eq!(
        rig.leave(&[("x", None), ("x", Some("i")), ("", Some("k")), ("", None), ("a", Some("i"))]),
        [unknown(), Err(GroupError::FencedInstance), unknown(), unknown(), Err(GroupError::FencedInstance)]
    );
    assert_eq!(rig.image().members.len(), 4);
    assert_eq!(rig.leave(&[("a", None), ("c", Some("i")), ("", Some("j"))]), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(rig.image().members.keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(rig.code(beat("a", 1)), 25);
    let epoch = rig.image().members["b"].current.epoch;
    assert_eq!(rig.beaten(beat("b", epoch)).1, Some(of(&[0, 1, 2])), "it has all of it now");
}

#[test]
fn commits_within_transactions_are_of_the_members_epoch_or_of_nobody() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    let mut commit = |member: &str, generation| {
        let caller = Caller { group: "g".into(), member_id: member.into(), instance_id: None, generation };
        let position = CommitPosition { offset: 1, leader_epoch: -1, metadata: String::new() };
        let positions = vec![((topic(1), 0), position)];
        let commit = Commit { caller, says_group_not_found: false, retention_ms: None, positions };
        match rig.ask(Ask::CommitPending(PendingCommit { producer_id: 1, number: 1, commit })) {
            Answer::CommitPending(answer) => answer.map(|_| ()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(commit("a", 1), Ok(()));
    assert_eq!(commit("", -1), Ok(()));
    assert_eq!(commit("a", 2), Err(GroupError::IllegalGeneration));
    assert_eq!(commit("x", 1), Err(GroupError::UnknownMember));
}

#[test]
fn a_full_group_takes_nobody_and_lets_its_own_come_back() {
    let mut rig = Rig::new(Settings { consumer_members_max: 1, ..Settings::default() });
    rig.catalog = topics_at(1, &[(1, "t", 3, &[0])]);
    rig.beaten(with_instance(joining("a", &["t"]), "i"));
    assert_eq!(rig.code(joining("b", &["t"])), 81);
    rig.beaten(with_instance(beat("a", -2), "i"));
    assert_eq!(rig.code(with_instance(joining("c", &["t"]), "i")), 0);
}

#[test]
fn groups_are_of_one_type_for_every_tool() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    assert_eq!(rig.ask(Ask::Describe { group: "g".into() }), Answer::Describe(Err(Absent::OtherType)));
    let Answer::List(listed) = rig.ask(Ask::List) else { panic!() };
    let row = (listed[0].state, listed[0].group_type, listed[0].protocol_type.as_str());
    assert_eq!((listed.len(), row), (1, ("Stable", GroupType::Consumer, "consumer")));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Err(GroupError::NonEmptyGroup)));
    let keys = vec![((topic(1), 0), "t".to_owned()), ((topic(2), 0), "u".to_owned())];
    let deleted = rig.ask(Ask::DeleteOffsets { group: "g".into(), keys });
    assert_eq!(deleted, Answer::DeleteOffsets(Ok(vec![Err(GroupError::SubscribedToTopic), Ok(())])));
    rig.beaten(beat("a", -1));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    let describe = Ask::DescribeConsumers { group: "g".into() };
    assert_eq!(rig.ask(describe), Answer::DescribeConsumers(Err(Absent::NotFound)));
    assert!(rig.machine.stored.is_empty() && rig.machine.consumers.groups.is_empty());
}

#[test]
fn offsets_expire_once_nobody_reads_their_topic() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    assert_eq!(rig.commit_as("a", 1, 5), Ok(()));
    let week_ms = 7 * 24 * 3600 * 1000;
    for _ in 0..(week_ms / 40_000 + 2) {
        rig.now.mono_ms += 40_000;
        rig.now.wall_ms += 40_000;
        assert_eq!(rig.code(beat("a", 1)), 0);
    }
    rig.ask(Ask::Sweep);
    assert_eq!(rig.machine.stored["g"].offsets.len(), 1, "it is read");
    rig.beaten(beat("a", -1));
    rig.advance(week_ms - 1);
    rig.ask(Ask::Sweep);
    assert_eq!(rig.machine.stored["g"].offsets.len(), 1, "the time counts from when the group became empty");
    rig.advance(1);
    rig.ask(Ask::Sweep);
    assert!(rig.machine.stored.is_empty() && rig.machine.consumers.groups.is_empty());
}

/// A subscription as cooperative clients send it.
pub(super) fn subscribing(topics: &[&str], owned: &[(String, Vec<i32>)]) -> Blob {
    let mut bytes = vec![0, 1];
    bytes.extend((topics.len() as i32).to_be_bytes());
    for name in topics {
        bytes.extend((name.len() as i16).to_be_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes.extend((-1i32).to_be_bytes());
    // From here on as in an assignment, without its version and user data.
    let encoded = subscription::encode_assignment(1, owned).0;
    bytes.extend(&encoded[2..encoded.len() - 4]);
    Blob(bytes.into())
}

pub(super) fn classic_join(id: &str, owned: &[i32]) -> Join {
    let owned = if owned.is_empty() { vec![] } else { vec![("t".to_owned(), owned.to_vec())] };
    Join {
        group: "g".into(),
        member_id: id.into(),
        fresh_id: format!("fresh-{id}"),
        protocol_type: "consumer".into(),
        info: MemberInfo {
            protocols: vec![("cooperative-sticky".into(), subscribing(&["t"], &owned))],
            ..info()
        },
        requires_known_id: false,
        may_skip_assignment: true,
    }
}

impl Rig {
    pub(super) fn join_classic(&mut self, join: Join) -> Result<Joined, JoinRefused> {
        match self.ask(Ask::Join(join)) {
            Answer::Join(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn sync_classic(&mut self, id: &str, generation: i32) -> Result<Vec<i32>, GroupError> {
        let caller = Caller { group: "g".into(), member_id: id.into(), instance_id: None, generation };
        let sync = Sync { caller, protocol_type: None, protocol: None, assignments: vec![] };
        match self.ask(Ask::Sync(sync)) {
            Answer::Sync(answer) => answer.map(|synced| {
                let topics = subscription::assignment(&synced.assignment.0).expect("an assignment");
                topics.into_iter().flat_map(|(_, partitions)| partitions).collect()
            }),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn heartbeat_classic(&mut self, id: &str, generation: i32) -> Result<(), GroupError> {
        let caller = Caller { group: "g".into(), member_id: id.into(), instance_id: None, generation };
        match self.ask(Ask::Heartbeat(caller)) {
            Answer::Heartbeat(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// A classic group of one, which has all of topic `t`.
    pub(super) fn classic_of_one(&mut self) -> Joined {
        let joined = self.join_classic(classic_join("", &[])).expect("joined");
        let all = subscription::encode_assignment(1, &[("t".to_owned(), vec![0, 1, 2])]);
        let caller = Caller {
            group: "g".into(),
            member_id: joined.member_id.clone(),
            instance_id: None,
            generation: joined.generation,
        };
        let assignments = vec![(joined.member_id.clone(), all)];
        let synced = self.ask(Ask::Sync(Sync { caller, protocol_type: None, protocol: None, assignments }));
        assert!(matches!(synced, Answer::Sync(Ok(_))), "{synced:?}");
        joined
    }
}

#[test]
fn a_classic_group_is_upgraded_when_a_consumer_joins_and_downgraded_when_it_leaves() {
    let mut rig = Rig::three();
    let joined = rig.classic_of_one();
    let id = joined.member_id.clone();
    assert_eq!(rig.beaten(joining("m", &["t"])), (2, Some(of(&[]))), "the old member has it all still");
    assert_eq!(rig.consumer_state(), "Reconciling");
    assert_eq!(rig.ask(Ask::Describe { group: "g".into() }), Answer::Describe(Err(Absent::OtherType)));

    // The classic member hears that it has to join again, is told what to keep, gives up the rest, and joins again.
    assert_eq!(rig.heartbeat_classic(&id, 1), Err(GroupError::RebalanceInProgress));
    let again = rig.join_classic(classic_join(&id, &[0, 1, 2])).expect("joined");
    assert_eq!((again.generation, again.leader.as_str(), again.members.len()), (1, "", 0));
    assert_eq!(rig.sync_classic(&id, 1), Ok(vec![0, 1]));
    assert_eq!(rig.heartbeat_classic(&id, 1), Err(GroupError::RebalanceInProgress), "to say that it is done");
    assert_eq!(rig.join_classic(classic_join(&id, &[0, 1])).expect("joined").generation, 2);
    assert_eq!(rig.sync_classic(&id, 2), Ok(vec![0, 1]));
    assert_eq!(rig.heartbeat_classic(&id, 2), Ok(()));
    assert_eq!(rig.beaten(beat("m", 2)), (2, Some(of(&[2]))));
    assert_eq!(rig.consumer_state(), "Stable");
    assert_eq!(rig.sync_classic(&id, 1), Err(GroupError::IllegalGeneration));
    assert_eq!(
        rig.sync_classic("m", 2),
        Err(GroupError::UnknownMember),
        "it does not speak the classic protocol"
    );
    assert_eq!(rig.commit_as(&id, 2, 9), Ok(()));
    assert_eq!(rig.commit_as(&id, 1, 9), Err(GroupError::IllegalGeneration));

    // Back: the classic member is asked to join again, and leads.
    rig.beaten(beat("m", -1));
    assert!(!rig.machine.consumers.groups.contains_key("g"));
    assert_eq!(rig.heartbeat_classic(&id, 2), Err(GroupError::RebalanceInProgress));
    let alone = rig.join_classic(classic_join(&id, &[0, 1])).expect("joined");
    assert_eq!((alone.generation, alone.leader.as_str(), alone.members.len()), (3, id.as_str(), 1));
}

#[test]
fn whoever_waits_for_a_generation_when_the_group_is_upgraded_joins_again() {
    let mut rig = Rig::three();
    let joined = rig.classic_of_one();
    let waits = rig.send(Ask::Join(Join { fresh_id: "second".into(), ..classic_join("", &[]) }));
    assert_eq!(rig.beaten(joining("m", &["t"])).0, 2);
    let refused = match rig.take_answer(waits) {
        Some(Answer::Join(Err(refused))) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused.error, GroupError::RebalanceInProgress);
    assert_eq!(rig.image().members.len(), 3);
    let again = rig.join_classic(classic_join(&refused.member_id, &[])).expect("joined");
    assert_eq!(again.generation, 2);
    // What it may have once the first member has given it up.
    assert_eq!(rig.sync_classic(&refused.member_id, 2), Ok(vec![]));
    assert_eq!(rig.heartbeat_classic(&refused.member_id, 2), Ok(()), "it waits");
    assert_eq!(rig.join_classic(classic_join(&joined.member_id, &[0, 1, 2])).expect("joined").generation, 1);
    assert_eq!(rig.sync_classic(&joined.member_id, 1).map(|p| p.len()), Ok(1));
    let kept = rig.image().members[&joined.member_id].current.assigned[&topic(1)]
        .iter()
        .copied()
        .collect::<Vec<_>>();
    rig.join_classic(classic_join(&joined.member_id, &kept)).expect("joined");
    assert_eq!(
        rig.heartbeat_classic(&refused.member_id, 2),
        Err(GroupError::RebalanceInProgress),
        "it is free"
    );
    rig.join_classic(classic_join(&refused.member_id, &[])).expect("joined");
    assert_eq!(rig.sync_classic(&refused.member_id, 2).map(|p| p.len()), Ok(1));
}

#[test]
fn what_a_cooperative_member_has_not_yet_given_up_is_its_own_in_the_upgraded_group() {
    let mut rig = Rig::three();
    let leader = rig.classic_of_one().member_id;
    let second = rig.send(Ask::Join(Join { fresh_id: "second".into(), ..classic_join("", &[]) }));
    rig.join_classic(classic_join(&leader, &[0, 1])).expect("joined");
    assert!(matches!(rig.take_answer(second), Some(Answer::Join(Ok(joined))) if joined.generation == 2));
    let assign = |rig: &mut Rig, generation: i32, of_second: &[i32]| {
        let caller = Caller { group: "g".into(), member_id: leader.clone(), instance_id: None, generation };
        let of = |partitions: &[i32]| {
            let some = Some(("t".to_owned(), partitions.to_vec())).filter(|_| !partitions.is_empty());
            subscription::encode_assignment(1, &some.into_iter().collect::<Vec<_>>())
        };
        let assignments = vec![(leader.clone(), of(&[0, 1])), ("second".to_owned(), of(of_second))];
        let synced = rig.ask(Ask::Sync(Sync { caller, protocol_type: None, protocol: None, assignments }));
        assert!(matches!(synced, Answer::Sync(Ok(_))), "{synced:?}");
    };
    assign(&mut rig, 2, &[2]);
    assert_eq!(rig.sync_classic("second", 2), Ok(vec![2]));
    // The next generation is assigned without partition 2, and the member that reads it has not asked yet.
    let again = rig.send(Ask::Join(classic_join(&leader, &[0, 1])));
    rig.join_classic(classic_join("second", &[2])).expect("joined");
    assert!(matches!(rig.take_answer(again), Some(Answer::Join(Ok(joined))) if joined.generation == 3));
    assign(&mut rig, 3, &[]);
    let (epoch, given) = rig.beaten(joining("m", &["t"]));
    assert_eq!(given, Some(of(&[])), "partition 2 is still read");
    assert_eq!(rig.beaten(beat("m", epoch)).1, None);
    // It is free when the member comes back without it; then everybody follows.
    for _ in 0..3 {
        for id in ["second", &leader] {
            let kept: Vec<i32> =
                rig.image().members[id].current.assigned.values().flatten().copied().collect();
            rig.join_classic(classic_join(id, &kept)).expect("joined");
        }
        let epoch = rig.image().members["m"].current.epoch;
        rig.beaten(beat("m", epoch));
    }
    let held: usize = rig.image().members.values().map(|m| flat(&m.current.assigned).count()).sum();
    assert_eq!((rig.consumer_state(), held), ("Stable", 3), "{:?}", rig.image());
}

#[test]
fn classic_members_of_a_consumer_group_are_given_up_when_they_do_not_come_back() {
    let mut rig = Rig::three();
    rig.beaten(joining("m", &["t"]));
    let joined = rig.join_classic(Join { requires_known_id: true, ..classic_join("", &[]) });
    let id = joined.expect_err("first its id").member_id;
    let joined = rig.join_classic(classic_join(&id, &[])).expect("joined");
    assert_eq!(joined.generation, 2);
    assert_eq!(rig.join_classic(classic_join("nobody", &[])).expect_err("unknown").error.code(), 25);
    let other = Join { protocol_type: "connect".into(), ..classic_join("", &[]) };
    assert_eq!(rig.join_classic(other).expect_err("no consumer").error.code(), 23);
    // It never asks for its assignment.
    for _ in 0..8 {
        rig.advance(8_000);
        rig.code(beat("m", 1));
        let _ = rig.heartbeat_classic(&id, 2);
    }
    assert_eq!(rig.heartbeat_classic(&id, 2), Err(GroupError::UnknownMember));
    assert_eq!(rig.image().members.len(), 1);
}

#[test]
fn a_group_that_is_no_consumers_group_is_not_upgraded() {
    let mut rig = Rig::three();
    let connect = Join {
        protocol_type: "connect".into(),
        info: MemberInfo { protocols: vec![("compatible".into(), blob("?"))], ..info() },
        ..classic_join("", &[])
    };
    rig.join_classic(connect).expect("joined");
    assert_eq!(rig.code(joining("m", &["t"])), 69);
    let malformed = Join {
        group: "h".into(),
        info: MemberInfo { protocols: vec![("range".into(), blob("?"))], ..info() },
        ..classic_join("", &[])
    };
    rig.join_classic(malformed).expect("joined");
    assert_eq!(rig.code(Beat { group: "h".into(), ..joining("m", &["t"]) }), 69);
}

#[test]
fn an_empty_group_takes_the_type_of_who_joins_it() {
    let mut rig = Rig::three();
    rig.beaten(joining("m", &["t"]));
    rig.beaten(beat("m", -1));
    assert_eq!(rig.consumer_state(), "Empty");
    let joined = rig.classic_of_one();
    assert!(joined.generation > 1, "numbers go on: {}", joined.generation);
    assert!(!rig.machine.consumers.groups.contains_key("g"));
    let leave = Ask::Leave {
        group: "g".into(),
        members: vec![Leaver { member_id: joined.member_id.clone(), instance_id: None }],
    };
    assert_eq!(rig.ask(leave), Answer::Leave(Ok(vec![Ok(())])));
    let before = rig.machine.stored["g"].group.generation;
    let (epoch, assignment) = rig.beaten(joining("m", &["t"]));
    assert!(epoch > before);
    assert_eq!(assignment, Some(of(&[0, 1, 2])));
}

#[test]
fn a_static_member_changes_its_protocol_by_a_restart() {
    let mut rig = Rig::three();
    let instance =
        |join: Join| Join { info: MemberInfo { instance_id: Some("i".into()), ..join.info.clone() }, ..join };
    let classic = rig.join_classic(instance(classic_join("", &[]))).expect("joined");
    // It restarts as a consumer: no leave is needed, and its partitions are its own.
    let (epoch, assignment) = rig.beaten(with_instance(joining("m", &["t"]), "i"));
    assert_eq!(assignment, Some(of(&[0, 1, 2])));
    assert!(epoch > classic.generation);
    assert_eq!(rig.image().members.len(), 1);
    // And back: the last consumer is replaced, the group is a classic one again.
    let back = rig.join_classic(instance(classic_join("", &[]))).expect("joined");
    assert!(!rig.machine.consumers.groups.contains_key("g"));
    assert_eq!((back.leader.clone(), back.members.len()), (back.member_id.clone(), 1));
    assert!(back.generation > epoch);
}
