//! Groups while their log takes no records. That what passes records nothing is checked at every step of every other test.

use super::ask::*;
use super::consumer_test::{beat, joining, of, owning};
use super::coordinator_rig::*;
use rangeway_core::replicated::Machine;

impl Rig {
    fn passes(&self, ask: Ask) -> bool {
        let asked = Asked { ask, catalog: self.catalog.clone() };
        self.machine.passes(&asked, self.now)
    }

    fn beat_passes(&self, beat: super::consumer::Beat) -> bool {
        self.passes(Ask::Beat(Box::new(beat)))
    }
}

#[test]
fn of_a_classic_group_signs_of_life_and_what_is_known_pass_and_commits_and_new_members_do_not() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    assert!(rig.passes(Ask::Heartbeat(caller("a", 1))));
    assert!(rig.passes(Ask::Offsets { group: "g".into(), keys: None, reader: None }));
    for ask in [Ask::Describe { group: "g".into() }, Ask::List] {
        assert!(rig.passes(ask));
    }
    let sync = |generation: i32| {
        let caller = caller("a", generation);
        Ask::Sync(Sync { caller, protocol_type: None, protocol: None, assignments: vec![] })
    };
    assert!(rig.passes(sync(1)), "its assignment is known");
    assert!(!rig.passes(Ask::Commit(commit_of(caller("a", 1), 5))));
    assert!(!rig.passes(Ask::Leave { group: "g".into(), members: vec![] }));
    assert!(!rig.passes(Ask::Delete { group: "g".into() }));
    assert!(!rig.passes(Ask::Sweep));
    assert!(!rig.passes(Ask::Join(member("b"))), "it begins a rebalance, which ends in a record");
    let unknown = Join { group: "other".into(), ..again(&a) };
    assert!(rig.passes(Ask::Join(unknown)), "it is answered that it is not known");
    let again = rig.join(again(&a));
    rig.joined(again);
    assert!(!rig.passes(sync(2)), "its leader's assignment is to be stored");
}

#[test]
fn a_heartbeat_of_the_consumer_protocol_passes_as_long_as_nothing_changes() {
    let mut rig = Rig::three();
    rig.beaten(joining("a", &["t"]));
    rig.beaten(owning("a", 1, &[0, 1, 2]));
    assert!(rig.beat_passes(beat("a", 1)));
    assert!(rig.beat_passes(owning("a", 1, &[0, 1, 2])), "it says all and nothing new");
    assert!(!rig.beat_passes(joining("b", &["t"])));
    assert!(!rig.beat_passes(beat("a", -1)), "a leave");
    rig.beaten(joining("b", &["t"]));
    assert!(!rig.beat_passes(beat("a", 1)), "it has to give up partitions");
    assert_eq!(rig.image().members["a"].current.assigned, of(&[0, 1, 2]), "a rehearsal changes nothing");
    rig.catalog = topics_at(2, &[(1, "t", 4, &[0])]);
    assert!(!rig.beat_passes(beat("b", 2)), "a topic has grown");
}

#[test]
fn nobody_is_expelled_for_what_was_refused_meanwhile() {
    let mut rig = Rig::three();
    rig.stable("a");
    let mut consumers = Rig::three();
    consumers.beaten(joining("a", &["t"]));
    for rig in [&mut rig, &mut consumers] {
        // What is due waits; then all time begins anew.
        rig.now.mono_ms += 600_000;
        rig.now.wall_ms += 600_000;
        rig.machine.resume(rig.now);
        rig.advance(5_000);
    }
    assert_eq!(rig.heartbeat("a", 1), Ok(()));
    assert_eq!(consumers.beaten(owning("a", 1, &[0, 1, 2])).0, 1);
    for rig in [&mut rig, &mut consumers] {
        rig.advance(600_000);
    }
    assert_eq!(
        rig.heartbeat("a", 1),
        Err(GroupError::UnknownMember),
        "who is silent from then on is given up"
    );
    assert!(consumers.image().members.is_empty());
}
