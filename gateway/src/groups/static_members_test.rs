//! Static members (KIP-345): they return without a rebalance, and one of two with one name is fenced.

use super::ask::*;
use super::coordinator_rig::*;
use super::record::MemberInfo;
use super::settings::Settings;

#[test]
fn a_static_member_returns_without_a_rebalance_and_fences_its_old_self() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    let joined = rig.joined(ticket);
    let ticket = rig.sync_as_static(&joined, "i", &[("a1", "all")]);
    assert_eq!(rig.synced(ticket), Ok(blob("all")));
    let ticket = rig.join(with_instance("a2", "i"));
    let back = rig.joined(ticket);
    assert_eq!((back.generation, back.leader.as_str(), back.skip_assignment), (1, "a2", true));
    assert_eq!(back.members.len(), 1);
    assert_eq!(rig.state(), State::Stable);
    let old = Caller { instance_id: Some("i".into()), ..caller("a1", 1) };
    assert_eq!(rig.ask(Ask::Heartbeat(old)), Answer::Heartbeat(Err(GroupError::FencedInstance)));
    let ticket = rig.sync_as_static(&back, "i", &[]);
    assert_eq!(rig.synced(ticket), Ok(blob("all")));
    rig.restart();
    let new = Caller { instance_id: Some("i".into()), ..caller("a2", 1) };
    assert_eq!(rig.ask(Ask::Heartbeat(new)), Answer::Heartbeat(Ok(())));
}

#[test]
fn an_older_static_leader_is_told_that_its_old_self_leads() {
    let mut rig = Rig::quick();
    let old = |id: &str| Join { may_skip_assignment: false, ..with_instance(id, "i") };
    let ticket = rig.join(old("a1"));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[("a1", "all")]);
    let ticket = rig.join(old("a2"));
    let back = rig.joined(ticket);
    assert_eq!((back.leader.as_str(), back.skip_assignment, back.members.len()), ("a1", false, 0));
}

#[test]
fn a_static_member_that_returns_while_completing_causes_a_rebalance() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    assert_eq!(rig.joined(ticket).generation, 1);
    let ticket = rig.join(with_instance("a2", "i"));
    assert_eq!(rig.joined(ticket).generation, 2);
}

#[test]
fn two_clients_with_one_instance_id_fence_each_other_in_a_join() {
    let mut rig = Rig::new(Settings { initial_rebalance_delay_ms: 100, ..Settings::default() });
    let first = rig.join(with_instance("a1", "i"));
    let second = rig.join(with_instance("a2", "i"));
    assert_eq!(
        rig.take_answer(first),
        Some(Answer::Join(Err(JoinRefused { error: GroupError::FencedInstance, member_id: "a1".into() })))
    );
    rig.advance(200);
    assert_eq!(rig.joined(second).members.len(), 1);
}

#[test]
fn a_static_member_leaves_by_its_instance_id_only() {
    let mut rig = Rig::quick();
    let ticket = rig.join(with_instance("a1", "i"));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[]);
    assert_eq!(rig.leave(&[("", Some("j"))]), vec![Err(GroupError::UnknownMember)]);
    assert_eq!(rig.leave(&[("a0", Some("i"))]), vec![Err(GroupError::FencedInstance)]);
    assert_eq!(rig.leave(&[("", Some("i"))]), vec![Ok(())]);
    assert_eq!(rig.state(), State::Empty);
}

#[test]
fn static_members_that_are_away_are_kept_through_a_rebalance() {
    let mut rig = Rig::quick();
    let session =
        |join: Join| Join { info: MemberInfo { session_timeout_ms: 100_000, ..join.info.clone() }, ..join };
    let ticket = rig.join(session(with_instance("a1", "i")));
    let joined = rig.joined(ticket);
    rig.sync_as_static(&joined, "i", &[]);
    let b = rig.join(session(member("b")));
    rig.advance(60_001);
    let joined = rig.joined(b);
    assert_eq!((joined.leader.as_str(), joined.members.len()), ("b", 2));
}
