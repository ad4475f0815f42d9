//! The classic protocol's rules, one scenario each, on the pure machine.

use super::ask::*;
use super::coordinator_rig::*;
use super::record::{Blob, MemberInfo};
use super::settings::Settings;

#[test]
fn a_member_alone_gets_generation_one_and_everything() {
    let mut rig = Rig::quick();
    let joined = rig.stable("a");
    assert_eq!((joined.generation, joined.leader.as_str(), joined.protocol.as_str()), (1, "a", "range"));
    assert_eq!(joined.members, vec![("a".into(), None, subscribed("t"))]);
    assert_eq!(rig.heartbeat("a", 1), Ok(()));
}

#[test]
fn joins_are_checked_before_anything_else() {
    let mut rig = Rig::quick();
    let with_session = |ms| Join { info: MemberInfo { session_timeout_ms: ms, ..info() }, ..member("a") };
    for (join, error) in [
        (Join { group: String::new(), ..member("a") }, GroupError::InvalidGroupId),
        (with_session(5_999), GroupError::InvalidSessionTimeout),
        (with_session(1_800_001), GroupError::InvalidSessionTimeout),
        (with_session(u32::MAX), GroupError::InvalidSessionTimeout),
        (Join { member_id: "x".into(), ..member("a") }, GroupError::UnknownMember),
        (with_protocols(member("a"), &[]), GroupError::InconsistentProtocol),
        (Join { protocol_type: String::new(), ..member("a") }, GroupError::InconsistentProtocol),
    ] {
        let sent = join.member_id.clone();
        assert_eq!(rig.refused(join), JoinRefused { error, member_id: sent });
    }
    assert_eq!(rig.state(), State::Dead);
    rig.stable("a");
    for join in
        [with_protocols(member("b"), &["other"]), Join { protocol_type: "connect".into(), ..member("b") }]
    {
        assert_eq!(rig.refused(join).error, GroupError::InconsistentProtocol);
    }
    assert_eq!(rig.refused(Join { member_id: "x".into(), ..member("b") }).error, GroupError::UnknownMember);
    assert_eq!(rig.state(), State::Stable);
}

#[test]
fn a_dynamic_member_is_first_told_its_id() {
    let mut rig = Rig::quick();
    let first = Join { requires_known_id: true, ..member("a") };
    let refused = rig.refused(first.clone());
    assert_eq!(refused, JoinRefused { error: GroupError::MemberIdRequired, member_id: "a".into() });
    assert_eq!(rig.groups()[0].state, "Empty");
    let ticket = rig.join(Join { member_id: "a".into(), ..first.clone() });
    assert_eq!(rig.joined(ticket).member_id, "a");
    // An id that is not used within the session timeout is forgotten.
    rig.refused(Join { fresh_id: "b".into(), ..first.clone() });
    rig.advance(10_001);
    assert_eq!(rig.refused(Join { member_id: "b".into(), ..first }).error, GroupError::UnknownMember);
}

#[test]
fn a_join_phase_waits_for_ids_that_were_given_out() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    rig.refused(Join { requires_known_id: true, ..member("b") });
    let ticket = rig.join(again(&a));
    assert_eq!(rig.state(), State::PreparingRebalance);
    let b = rig.join(Join { member_id: "b".into(), requires_known_id: true, ..member("unused") });
    let (a, b) = (rig.joined(ticket), rig.joined(b));
    assert_eq!((a.generation, b.generation, a.members.len(), b.members.len()), (2, 2, 2, 0));
}

#[test]
fn an_empty_group_waits_for_more_members_and_longer_for_each() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() });
    let a = rig.join(member("a"));
    rig.advance(2_000);
    let b = rig.join(member("b"));
    rig.advance(3_900);
    assert_eq!(rig.take_answer(a), None, "extended once, for b");
    rig.advance(100);
    let (a, b) = (rig.joined(a), rig.joined(b));
    assert_eq!((a.generation, a.leader.as_str(), b.leader.as_str()), (1, "a", "a"));
}

#[test]
fn the_wait_of_an_empty_group_ends_at_the_rebalance_timeout() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() });
    let short = |id: &str| Join { info: MemberInfo { rebalance_timeout_ms: 5_000, ..info() }, ..member(id) };
    let first = rig.join(short("m0"));
    for n in 1..4 {
        rig.advance(1_600);
        rig.join(short(&format!("m{n}")));
    }
    rig.advance(201);
    assert_eq!(rig.joined(first).members.len(), 4);
}

#[test]
fn members_that_do_not_rejoin_in_time_are_dropped() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    assert_eq!(rig.heartbeat("a", 1), Err(GroupError::RebalanceInProgress));
    for _ in 0..6 {
        rig.advance(9_999);
        let _ = rig.heartbeat("a", 1);
    }
    rig.advance(6);
    let joined = rig.joined(b);
    assert_eq!((joined.generation, joined.leader.as_str(), joined.members.len()), (2, "b", 1));
    assert_eq!(rig.heartbeat("a", a.generation), Err(GroupError::UnknownMember));
}

#[test]
fn followers_wait_for_the_leaders_assignment() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    assert_eq!(rig.state(), State::CompletingRebalance);
    assert_eq!(rig.heartbeat("b", 2), Ok(()));
    let waiting = rig.sync_as(&b, &[]);
    assert_eq!(rig.take_answer(waiting), None);
    let leader = rig.sync_as(&a, &[("b", "for b"), ("stranger", "x")]);
    assert_eq!(rig.synced(waiting), Ok(blob("for b")));
    assert_eq!(rig.synced(leader), Ok(Blob::default()), "not named: empty");
    let later = rig.sync_as(&b, &[]);
    assert_eq!(rig.synced(later), Ok(blob("for b")), "known from here on");
}

#[test]
fn a_follower_may_be_given_nothing() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.sync_as(&a, &[("a", "all")]);
    assert_eq!(rig.synced(waiting), Ok(Blob::default()));
}

#[test]
fn syncs_are_checked() {
    let mut rig = Rig::quick();
    let sync = |rig: &mut Rig, member: &str, generation, protocol: Option<&str>| {
        let ticket = rig.send(Ask::Sync(Sync {
            caller: caller(member, generation),
            protocol_type: Some("consumer".into()),
            protocol: protocol.map(str::to_owned),
            assignments: vec![],
        }));
        rig.synced(ticket)
    };
    assert_eq!(sync(&mut rig, "a", 1, None), Err(GroupError::UnknownMember));
    let a = rig.stable("a");
    assert_eq!(sync(&mut rig, "x", 1, None), Err(GroupError::UnknownMember));
    assert_eq!(sync(&mut rig, "a", 2, None), Err(GroupError::IllegalGeneration));
    assert_eq!(sync(&mut rig, "a", 1, Some("roundrobin")), Err(GroupError::InconsistentProtocol));
    assert_eq!(sync(&mut rig, "a", 1, Some("range")), Ok(blob("all")));
    rig.join(member("b"));
    let ticket = rig.sync_as(&a, &[]);
    assert_eq!(rig.synced(ticket), Err(GroupError::RebalanceInProgress));
}

#[test]
fn members_that_never_sync_are_removed() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    for _ in 0..6 {
        rig.advance(9_999);
        let _ = rig.heartbeat(&a.member_id, 2);
    }
    rig.advance(10);
    assert_eq!(rig.synced(waiting), Err(GroupError::RebalanceInProgress));
    assert_eq!(rig.heartbeat("a", 2), Err(GroupError::UnknownMember));
    assert_eq!(rig.state(), State::PreparingRebalance);
}

#[test]
fn only_a_change_or_the_leader_causes_a_rebalance() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let ticket = rig.join(again(&b));
    assert_eq!(rig.joined(ticket).generation, 2, "unchanged while completing");
    rig.sync_as(&a, &[]);
    let ticket = rig.join(again(&b));
    let present = rig.joined(ticket);
    assert_eq!((present.generation, present.leader.as_str()), (2, "a"), "unchanged while stable");
    assert_eq!(rig.state(), State::Stable);
    let changed = rig.join(with_protocols(again(&b), &["range"]));
    assert_eq!(rig.state(), State::PreparingRebalance);
    let leader = rig.join(again(&a));
    assert_eq!((rig.joined(changed).generation, rig.joined(leader).generation), (3, 3));
    let ticket = rig.sync_as(&Joined { generation: 3, ..a.clone() }, &[]);
    assert_eq!(rig.synced(ticket), Ok(Blob::default()));
    let leader = rig.join(again(&a));
    assert_eq!(rig.take_answer(leader), None, "a leader that rejoins wants a rebalance");
}

#[test]
fn a_new_join_while_completing_sends_everybody_back() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.join(member("c"));
    assert_eq!(rig.synced(waiting), Err(GroupError::RebalanceInProgress));
    let late = rig.sync_as(&a, &[("a", "all")]);
    assert_eq!(rig.synced(late), Err(GroupError::RebalanceInProgress));
}

#[test]
fn the_protocol_is_the_most_wanted_of_those_that_all_support() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 10, ..Settings::default() });
    let a = rig.join(with_protocols(member("a"), &["x", "y", "z"]));
    rig.join(with_protocols(member("b"), &["w", "y", "x"]));
    rig.join(with_protocols(member("c"), &["y", "x"]));
    rig.advance(100);
    let joined = rig.joined(a);
    assert_eq!(joined.protocol, "y");
    assert_eq!(joined.members.iter().map(|m| m.2.clone()).collect::<Vec<_>>(), vec![blob("y"); 3]);
}

#[test]
fn silent_members_are_removed_and_heartbeats_keep_them() {
    let mut rig = Rig::quick();
    rig.stable("a");
    for _ in 0..5 {
        rig.advance(9_000);
        assert_eq!(rig.heartbeat("a", 1), Ok(()));
    }
    rig.advance(10_001);
    assert_eq!(rig.state(), State::Empty);
    assert_eq!(rig.heartbeat("a", 1), Err(GroupError::UnknownMember));
    assert_eq!(rig.machine.stored["g"].group.generation, 2);
}

#[test]
fn a_parked_member_does_not_expire() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (_, b) = (rig.joined(a), rig.joined(b));
    let waiting = rig.sync_as(&b, &[]);
    rig.advance(9_000);
    let _ = rig.heartbeat("a", 2);
    rig.advance(9_000);
    assert_eq!(rig.take_answer(waiting), None);
    let members = rig.machine.live_members("g");
    assert_eq!(members.len(), 2, "b is parked for longer than its session timeout");
}

#[test]
fn leaving_is_answered_per_member_and_empties_the_group() {
    let mut rig = Rig::quick();
    assert_eq!(rig.leave(&[("a", None)]), vec![Err(GroupError::UnknownMember)]);
    rig.stable("a");
    assert_eq!(rig.leave(&[("x", None), ("a", None)]), vec![Err(GroupError::UnknownMember), Ok(())]);
    assert_eq!(rig.state(), State::Empty);
    let joined = rig.stable("b");
    assert_eq!(joined.generation, 3, "the empty group took a generation too");
}

#[test]
fn a_leader_that_leaves_is_followed_by_the_next() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, b) = (rig.joined(a), rig.joined(b));
    rig.sync_as(&a, &[]);
    rig.leave(&[("a", None)]);
    assert_eq!(rig.heartbeat("b", 2), Err(GroupError::RebalanceInProgress));
    let b = rig.join(again(&b));
    assert_eq!(rig.joined(b).leader, "b");
}

#[test]
fn a_full_group_refuses_further_members() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 0, members_max: 1, ..Settings::default() });
    let a = rig.stable("a");
    assert_eq!(rig.refused(member("b")).error, GroupError::GroupFull);
    let ticket = rig.join(again(&a));
    assert_eq!(rig.joined(ticket).generation, 2);
}

#[test]
fn after_a_restart_a_stable_group_is_stable_and_sessions_are_fresh() {
    let mut rig = Rig::quick();
    rig.stable("a");
    rig.advance(9_000);
    rig.restart();
    assert_eq!(rig.state(), State::Stable);
    rig.advance(9_000);
    assert_eq!(rig.heartbeat("a", 1), Ok(()));
    rig.advance(10_001);
    assert_eq!(rig.state(), State::Empty);
}

#[test]
fn a_generation_number_is_never_given_twice_across_a_restart() {
    let mut rig = Rig::quick();
    let a = rig.stable("a");
    let b = rig.join(member("b"));
    let a = rig.join(again(&a));
    let (a, _) = (rig.joined(a), rig.joined(b));
    assert_eq!(a.generation, 2);
    rig.restart();
    assert_eq!(rig.state(), State::CompletingRebalance);
    let ticket = rig.sync_as(&a, &[("b", "late")]);
    assert_eq!(rig.synced(ticket), Ok(Blob::default()));
    let ticket = rig.join(again(&a));
    rig.advance(60_001);
    assert_eq!(rig.joined(ticket).generation, 3);
}

#[test]
fn groups_are_described_listed_and_deleted() {
    let mut rig = Rig::quick();
    assert_eq!(rig.ask(Ask::Describe { group: "g".into() }), Answer::Describe(Err(Absent::NotFound)));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Err(GroupError::GroupNotFound)));
    rig.stable("a");
    let answer = rig.ask(Ask::Describe { group: "g".into() });
    let Answer::Describe(Ok(described)) = answer else { panic!("{answer:?}") };
    assert_eq!((described.state.name(), described.protocol_type.as_str()), ("Stable", "consumer"));
    assert_eq!((described.protocol.as_str(), &described.members[0].assignment), ("range", &blob("all")));
    assert_eq!(rig.groups()[0].state, "Stable");
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Err(GroupError::NonEmptyGroup)));
    let b = rig.join(member("b"));
    let answer = rig.ask(Ask::Describe { group: "g".into() });
    let Answer::Describe(Ok(described)) = answer else { panic!("{answer:?}") };
    assert_eq!((described.state, described.members.len()), (State::PreparingRebalance, 2));
    assert_eq!(described.members[0].assignment, blob("all"), "while rebalancing");
    rig.leave(&[("a", None), ("b", None)]);
    assert!(matches!(rig.take_answer(b), Some(Answer::Join(Err(_)))));
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert!(rig.groups().is_empty());
    rig.restart();
    assert!(rig.groups().is_empty());
}
