//! What the settings of consumer groups do, on the pure machine.

use super::ask::*;
use super::consumer::Beat;
use super::consumer_test::{beat, classic_join, joining, of, owning, with_instance};
use super::coordinator_rig::{Rig, topics_at};
use super::settings::{Settings, Time};
use rangeway_core::config::groups::MigrationPolicy;
use rangeway_core::config::node::NodeConfig;

impl Rig {
    /// One topic `t` of three partitions; the node's settings are these.
    fn with(settings: &[(&str, &str)]) -> Rig {
        let mut config = NodeConfig::default();
        config.set("group.initial.rebalance.delay.ms", "0").expect("a known key");
        for (key, value) in settings {
            config.set(key, value).expect("a known key");
        }
        let mut rig = Rig::new(Settings::of(&config));
        rig.catalog = topics_at(1, &[(1, "t", 3, &[0])]);
        rig
    }

    /// The refusal, or nothing.
    fn configure(&mut self, name: &str, value: Option<&str>) -> String {
        let changes = vec![(name.to_owned(), value.map(str::to_owned))];
        match self.ask(Ask::Configure { group: "g".into(), changes, validate_only: false }) {
            Answer::Configure(answer) => {
                answer.map_or_else(|refused| refused.to_string(), |()| String::new())
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn configs_of_a_group_hold_at_once_and_outlive_it() {
    let mut rig = Rig::with(&[("group.consumer.min.session.timeout.ms", "6s")]);
    assert_eq!(rig.configure("consumer.session.timeout.ms", Some("6000")), "");
    assert_eq!(rig.configure("consumer.heartbeat.interval.ms", Some("700")), "");
    let joined = rig.beat(joining("a", &["t"])).expect("joined");
    assert_eq!(joined.heartbeat_interval_ms, 700);
    rig.advance(6_000);
    assert_eq!(rig.consumer_state(), "Empty");
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    rig.restart();
    let Answer::Configs(configs) = rig.ask(Ask::Configs { group: "g".into() }) else { panic!() };
    assert_eq!(configs.len(), 2);
    assert_eq!(rig.configure("consumer.heartbeat.interval.ms", None), "");
    let joined = rig.beat(joining("a", &["t"])).expect("joined");
    assert_eq!(joined.heartbeat_interval_ms, 500);
}

/// The words are the reference broker's.
#[test]
fn configs_beyond_the_nodes_bounds_are_refused() {
    let mut rig = Rig::with(&[
        ("group.consumer.min.session.timeout.ms", "5s"),
        ("group.consumer.max.session.timeout.ms", "50s"),
        ("group.consumer.max.heartbeat.interval.ms", "50s"),
    ]);
    for (name, value, why) in [
        ("no", "1", "Unknown group config name: no"),
        (
            "consumer.session.timeout.ms",
            "x",
            "Invalid value x for configuration consumer.session.timeout.ms: Not a number of type INT",
        ),
        (
            "consumer.assignment.interval.ms",
            "-1",
            "Invalid value -1 for configuration consumer.assignment.interval.ms: Value must be at least 0",
        ),
        (
            "consumer.session.timeout.ms",
            "4999",
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            "consumer.session.timeout.ms",
            "50001",
            "consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            "consumer.heartbeat.interval.ms",
            "99",
            "consumer.heartbeat.interval.ms must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        (
            "consumer.assignment.interval.ms",
            "15001",
            "consumer.assignment.interval.ms must be less than or equal to group.consumer.max.assignment.interval.ms",
        ),
        (
            "consumer.heartbeat.interval.ms",
            "45000",
            "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
        ),
    ] {
        assert_eq!(rig.configure(name, Some(value)), why);
    }
    assert!(rig.records.is_empty());
    assert_eq!(rig.configure("consumer.session.timeout.ms", Some("5000")), "");
    // The node's bounds are others after a restart: what was set is brought within them.
    rig.settings.consumer_session_ms.min = 20_000;
    rig.restart();
    rig.beaten(joining("a", &["t"]));
    rig.advance(19_999);
    assert_eq!(rig.consumer_state(), "Stable");
    rig.advance(1);
    assert_eq!(rig.consumer_state(), "Empty");
}

#[test]
fn what_the_node_says_holds_where_the_group_says_nothing() {
    let mut rig = Rig::with(&[
        ("group.consumer.session.timeout.ms", "7s"),
        ("group.consumer.heartbeat.interval.ms", "900"),
    ]);
    assert_eq!(rig.beat(joining("a", &["t"])).expect("joined").heartbeat_interval_ms, 900);
    rig.advance(6_999);
    assert_eq!(rig.consumer_state(), "Stable");
    rig.advance(1);
    assert_eq!(rig.consumer_state(), "Empty");
    // Grown with the group, and within the node's bounds.
    let heartbeat = Time { min: 2_000, max: 3_000, default: None };
    let mut rig = Rig::new(Settings { consumer_heartbeat_ms: heartbeat, ..Settings::default() });
    assert_eq!(rig.beat(joining("a", &["t"])).expect("joined").heartbeat_interval_ms, 2_000);
}

/// The exchange that the reference broker was seen to have.
#[test]
fn what_changes_within_the_assignment_interval_is_assigned_in_one() {
    let mut rig = Rig::with(&[("group.consumer.assignment.interval.ms", "1s")]);
    assert_eq!(
        rig.beaten(joining("a", &["t"])),
        (1, Some(of(&[0, 1, 2]))),
        "the first one waits for nothing"
    );
    assert_eq!(
        rig.beaten(joining("b", &["t"])),
        (1, Some(of(&[]))),
        "in the epoch of the target that is there"
    );
    assert_eq!(rig.beaten(joining("c", &["t"])), (1, Some(of(&[]))));
    assert_eq!(rig.consumer_state(), "Assigning");
    rig.advance(999);
    assert_eq!(rig.beaten(beat("a", 1)), (1, None));
    assert_eq!((rig.image().epoch, rig.image().target_epoch), (3, 1));
    rig.advance(1);
    assert_eq!(rig.beaten(beat("b", 1)), (3, None), "its partition is not free yet");
    assert_eq!(rig.image().target_epoch, 3, "one target for both");
    let (epoch, kept) = rig.beaten(beat("a", 1));
    assert_eq!((epoch, kept.map(|kept| kept.values().map(|of| of.len()).sum())), (1, Some(1)));
    let kept: Vec<i32> = rig.image().members["a"].target.values().flatten().copied().collect();
    assert_eq!(rig.beaten(owning("a", 1, &kept)), (3, None));
    for id in ["b", "c"] {
        let epoch = rig.image().members[id].current.epoch;
        rig.beaten(beat(id, epoch));
    }
    assert_eq!(rig.consumer_state(), "Stable");
    // A group may say otherwise, and that holds at once.
    assert_eq!(rig.beaten(beat("c", -1)), (-1, None));
    assert_eq!(rig.beaten(beat("a", 3)), (3, None), "too early");
    assert_eq!(rig.configure("consumer.assignment.interval.ms", Some("0")), "");
    rig.beaten(beat("a", 3));
    assert_eq!(rig.image().target_epoch, 4);
    // Who takes over has made no target yet.
    assert_eq!(rig.configure("consumer.assignment.interval.ms", None), "");
    rig.beaten(beat("b", -1));
    rig.restart();
    rig.beaten(beat("a", 4));
    assert_eq!(rig.image().target_epoch, 5);
}

#[test]
fn classic_members_are_not_called_while_the_next_assignment_has_to_wait() {
    let mut rig = Rig::with(&[("group.consumer.assignment.interval.ms", "1s")]);
    let id = rig.classic_of_one().member_id;
    // The first target of the upgraded group waits for nothing; the next one does.
    assert_eq!(rig.beaten(joining("m", &["t"])).0, 2);
    assert_eq!(rig.heartbeat_classic(&id, 1), Err(GroupError::RebalanceInProgress));
    rig.join_classic(classic_join(&id, &[0, 1, 2])).expect("joined");
    let kept = rig.sync_classic(&id, 1).expect("told what to keep");
    rig.join_classic(classic_join(&id, &kept)).expect("joined");
    assert_eq!(rig.sync_classic(&id, 2), Ok(kept.clone()));
    rig.beaten(joining("n", &["t"]));
    assert_eq!((rig.image().epoch, rig.image().target_epoch), (3, 2));
    assert_eq!(rig.heartbeat_classic(&id, 2), Ok(()), "there is nothing to join for");
    assert_eq!(rig.join_classic(classic_join(&id, &kept)).expect("joined").generation, 2);
    assert_eq!(rig.sync_classic(&id, 2), Ok(kept.clone()), "nor to join again for");
    rig.advance(1_000);
    assert_eq!(rig.heartbeat_classic(&id, 2), Err(GroupError::RebalanceInProgress));
    rig.join_classic(classic_join(&id, &kept)).expect("joined");
    assert_eq!(rig.image().target_epoch, 3);
}

#[test]
fn the_nodes_assignors_are_those_that_may_be_asked_for() {
    let mut rig = Rig::with(&[("group.consumer.assignors", "uniform,range")]);
    let asking = |id, name: &str| Beat { assignor: Some(name.into()), ..joining(id, &["t"]) };
    let refused = rig.beat(asking("a", "range-scoped")).expect_err("it is not among them");
    assert_eq!(refused.error.code(), 112);
    assert_eq!(
        refused.why,
        "ServerAssignor range-scoped is not supported. Supported assignors: uniform, range."
    );
    rig.beaten(joining("a", &["t"]));
    let assignor = |rig: &mut Rig| match rig.ask(Ask::DescribeConsumers { group: "g".into() }) {
        Answer::DescribeConsumers(Ok(described)) => described.assignor,
        other => panic!("{other:?}"),
    };
    assert_eq!(assignor(&mut rig), "uniform", "the first where nobody asks");
    rig.beaten(asking("b", "range"));
    assert_eq!(assignor(&mut rig), "range");
}

#[test]
fn the_migration_policy_says_which_way_groups_with_members_change() {
    for (policy, upgrades, downgrades) in [
        (MigrationPolicy::Bidirectional, true, true),
        (MigrationPolicy::Upgrade, true, false),
        (MigrationPolicy::Downgrade, false, true),
        (MigrationPolicy::Disabled, false, false),
    ] {
        let policy = policy.to_string();
        let mut rig = Rig::with(&[("group.consumer.migration.policy", &policy)]);
        rig.classic_of_one();
        let code = rig.code(joining("m", &["t"]));
        assert_eq!(code, if upgrades { 0 } else { 69 }, "{policy}");

        let mut rig = Rig::with(&[("group.consumer.migration.policy", &policy)]);
        rig.beaten(with_instance(joining("m", &["t"]), "i"));
        rig.join_classic(classic_join("", &[])).expect("members of both protocols may be in it");
        rig.beaten(with_instance(beat("m", -1), "i"));
        assert_eq!(rig.machine.consumers.groups.contains_key("g"), !downgrades, "{policy}");
    }
}
