//! What Kafka's coordinator answers where members misbehave, are late, are too many or are two: its code for each.

use super::ask::*;
use super::consumer_test::{joining, with_instance as beat_as};
use super::coordinator_rig::*;
use super::pending::PendingCommit;
use super::pending_ids::PENDING_IDS_MAX;
use super::record::Blob;
use super::settings::Settings;

fn as_static(member: &str, instance: &str, generation: i32) -> Caller {
    Caller { instance_id: Some(instance.into()), ..caller(member, generation) }
}

#[test]
fn heartbeats_are_answered_by_member_generation_and_state() {
    let mut rig = Rig::quick();
    let heartbeat = |rig: &mut Rig, caller: Caller| match rig.ask(Ask::Heartbeat(caller)) {
        Answer::Heartbeat(answer) => answer,
        other => panic!("{other:?}"),
    };
    assert_eq!(heartbeat(&mut rig, caller("a", 1)), Err(GroupError::UnknownMember), "no such group");
    let nameless = Caller { group: String::new(), ..caller("a", 1) };
    assert_eq!(heartbeat(&mut rig, nameless), Err(GroupError::InvalidGroupId));
    let ticket = rig.join(with_instance("a", "i"));
    let joined = rig.joined(ticket);
    assert_eq!(rig.state(), State::CompletingRebalance);
    assert_eq!(heartbeat(&mut rig, as_static("a", "i", 1)), Ok(()), "while the assignment is awaited");
    rig.sync_as_static(&joined, "i", &[]);
    for (caller, answer) in [
        (caller("a", 1), Ok(())),
        (caller("x", 1), Err(GroupError::UnknownMember)),
        (caller("a", 0), Err(GroupError::IllegalGeneration)),
        (caller("a", 2), Err(GroupError::IllegalGeneration)),
        (as_static("x", "i", 1), Err(GroupError::FencedInstance)),
        (as_static("a", "j", 1), Err(GroupError::UnknownMember)),
        // Who is fenced hears that before anything about its generation.
        (as_static("x", "i", 0), Err(GroupError::FencedInstance)),
    ] {
        assert_eq!(heartbeat(&mut rig, caller.clone()), answer, "{caller:?}");
    }
    rig.join(member("b"));
    assert_eq!(rig.state(), State::PreparingRebalance);
    assert_eq!(heartbeat(&mut rig, as_static("a", "i", 1)), Err(GroupError::RebalanceInProgress));
    assert_eq!(heartbeat(&mut rig, caller("b", 1)), Err(GroupError::RebalanceInProgress));
}

#[test]
fn who_rejoins_a_group_that_is_full_by_now_is_out_of_it() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let ticket = rig.join(again(&a));
    let (a, b) = (rig.joined(ticket), rig.joined(b));
    rig.sync_as(&a, &[]);
    // The node starts anew with room for one.
    rig.settings = Settings { members_max: 1, ..rig.settings.clone() };
    rig.restart();
    let ticket = rig.join(again(&a));
    assert_eq!(rig.state(), State::PreparingRebalance);
    let refused = rig.refused(again(&b));
    assert_eq!(refused, JoinRefused { error: GroupError::GroupFull, member_id: String::new() });
    assert_eq!(rig.joined(ticket).members.len(), 1, "nobody waits for it");
    assert_eq!(rig.heartbeat("b", 2), Err(GroupError::UnknownMember));
}

#[test]
fn a_group_that_has_only_given_out_an_id_is_seen_while_the_id_can_be_used() {
    let mut rig = Rig::quick();
    let asks = Join { requires_known_id: true, fresh_id: "fresh".into(), ..member("") };
    assert_eq!(rig.refused(asks.clone()).error, GroupError::MemberIdRequired);
    let Answer::Describe(Ok(described)) = rig.ask(Ask::Describe { group: "g".into() }) else { panic!() };
    assert_eq!((described.state, described.members.len()), (State::Empty, 0));
    assert_eq!((described.protocol_type, described.protocol), (String::new(), String::new()));
    let listed = rig.groups();
    assert_eq!((listed.len(), listed[0].state, listed[0].group_type), (1, "Empty", GroupType::Classic));
    let consumers = rig.ask(Ask::DescribeConsumers { group: "g".into() });
    assert_eq!(consumers, Answer::DescribeConsumers(Err(Absent::OtherType)));
    // The id lapses, or the group is deleted: nothing is left of it.
    rig.advance(asks.info.session_timeout_ms.into());
    assert!(rig.groups().is_empty() && rig.machine.live.is_empty());
    assert_eq!(rig.ask(Ask::Describe { group: "g".into() }), Answer::Describe(Err(Absent::NotFound)));
    assert_eq!(rig.refused(asks).error, GroupError::MemberIdRequired);
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert!(rig.groups().is_empty() && rig.machine.live.is_empty() && rig.records.is_empty());
}

#[test]
fn a_flood_of_clients_that_never_come_back_takes_bounded_memory() {
    let mut rig = Rig::quick();
    let flood = |id: String| Join { requires_known_id: true, fresh_id: id, ..member("") };
    assert_eq!(rig.refused(flood("f0".into())).error, GroupError::MemberIdRequired);
    let due = rig.now.mono_ms + 10_000;
    let live = rig.machine.live.get_mut("g").expect("an id is given out");
    (1..PENDING_IDS_MAX).for_each(|n| live.pending.insert(format!("f{n}"), due));
    assert!(live.pending.contains("f0"));
    // One more is one less of the oldest: whoever holds that has to ask for another.
    assert_eq!(rig.refused(flood("more".into())).error, GroupError::MemberIdRequired);
    assert!(rig.records.is_empty(), "nothing of it is stored");
    let used = |id: &str| Join { member_id: id.into(), ..flood(String::new()) };
    assert_eq!(rig.refused(used("f0")).error, GroupError::UnknownMember);
    // Those who have their ids may use them.
    let ticket = rig.join(used("f7"));
    rig.advance(10_001);
    assert_eq!(rig.joined(ticket).generation, 1, "ids lapse, and the group goes on without them");
    assert_eq!(rig.refused(flood("again".into())).error, GroupError::MemberIdRequired);
}

#[test]
fn a_member_has_one_instance_id() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a", "i"));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[("a", "all")]);
    // Of the classic protocol it cannot take another.
    let second = Join { member_id: "a".into(), ..with_instance("a", "j") };
    assert_eq!(rig.refused(second).error, GroupError::UnknownMember);
    assert_eq!(
        rig.ask(Ask::Heartbeat(as_static("a", "i", 1))),
        Answer::Heartbeat(Ok(())),
        "it is still the first"
    );
    // Of the consumer protocol it may, when it joins; as in Kafka the first is free then, also after a start.
    let mut rig = Rig::three();
    rig.beaten(beat_as(joining("m", &["t"]), "i"));
    rig.beaten(beat_as(joining("m", &["t"]), "j"));
    assert_eq!(rig.image().members.len(), 1);
    assert_eq!(
        rig.beat(beat_as(joining("n", &["t"]), "j")).expect_err("in use").error,
        GroupError::UnreleasedInstance
    );
    rig.restart();
    assert!(rig.beat(beat_as(joining("n", &["t"]), "i")).is_ok());
    assert_eq!(rig.image().members.len(), 2);
}

#[test]
fn leaving_takes_ids_that_were_given_out_too() {
    let mut rig = Rig::quick();
    rig.stable("a");
    for id in ["p", "q"] {
        rig.refused(Join { requires_known_id: true, fresh_id: id.into(), ..member("") });
    }
    let left = rig.leave(&[("p", None), ("q", Some("i")), ("p", None), ("", None), ("", Some("i"))]);
    let unknown = || Err(GroupError::UnknownMember);
    assert_eq!(left, vec![Ok(()), Ok(()), unknown(), unknown(), unknown()]);
}

#[test]
fn a_commits_text_is_measured_in_utf16_units() {
    let mut rig = Rig::quick();
    rig.stable("a");
    let answer = |rig: &mut Rig, text: String| {
        let mut commit = commit_of(caller("a", 1), 1);
        commit.positions[0].1.metadata = text.clone();
        let pending = PendingCommit { producer_id: 1, number: 1, commit: commit.clone() };
        let plain = rig.commit(commit).expect("per partition")[0];
        let Answer::CommitPending(Ok(within)) = rig.ask(Ask::CommitPending(pending)) else { panic!() };
        assert_eq!(within[0], plain);
        plain
    };
    for (text, units) in [("é", 1), ("中", 1), ("x", 1), ("😀", 2)] {
        assert_eq!(answer(&mut rig, text.repeat(4_096 / units)), Ok(()), "{text}");
        assert_eq!(
            answer(&mut rig, text.repeat(4_096 / units) + "x"),
            Err(GroupError::MetadataTooLarge),
            "{text}"
        );
    }
}

#[test]
fn during_a_rebalance_members_are_described_without_their_metadata() {
    let mut rig = Rig::quick();
    rig.stable("a");
    let described = |rig: &mut Rig| match rig.ask(Ask::Describe { group: "g".into() }) {
        Answer::Describe(Ok(described)) => described,
        other => panic!("{other:?}"),
    };
    let stable = described(&mut rig);
    assert_eq!((stable.state, stable.protocol.as_str()), (State::Stable, "range"));
    assert_eq!(stable.members[0].metadata, subscribed("t"));
    rig.join(member("b"));
    let preparing = described(&mut rig);
    assert_eq!((preparing.state, preparing.protocol.as_str()), (State::PreparingRebalance, ""));
    assert!(preparing.members.iter().all(|m| m.metadata == Blob::default()));
    assert_eq!(preparing.members[0].assignment, blob("all"), "as it was given");
}

#[test]
fn commits_of_a_member_keep_it_and_those_of_others_do_not() {
    let mut rig = Rig::quick();
    rig.stable("a");
    for _ in 0..3 {
        rig.advance(9_000);
        assert!(rig.commit(commit_of(caller("a", 1), 1)).is_ok());
        assert_eq!(rig.commit(commit_of(caller("a", 0), 1)), Err(GroupError::IllegalGeneration));
    }
    rig.advance(9_000);
    assert_eq!(rig.commit(commit_of(caller("a", 0), 1)), Err(GroupError::IllegalGeneration));
    rig.advance(1_001);
    assert_eq!(rig.state(), State::Empty);
}
