//! Committed offsets: what is checked, kept, deleted and expires.

use super::ask::*;
use super::coordinator_rig::*;

#[test]
fn commits_are_checked_in_kafkas_order() {
    let mut rig = Rig::quick();
    let simple = || caller("", -1);
    assert_eq!(rig.commit(commit_of(caller("a", 1), 5)), Err(GroupError::IllegalGeneration));
    let modern = Commit { says_group_not_found: true, ..commit_of(caller("a", 1), 5) };
    assert_eq!(rig.commit(modern), Err(GroupError::GroupNotFound));
    assert_eq!(rig.commit(commit_of(simple(), 5)), Ok(vec![Ok(())]));
    assert_eq!(rig.offset((topic(1), 0)), Some(5));
    let a = rig.stable("a");
    assert_eq!(rig.commit(commit_of(simple(), 6)), Err(GroupError::UnknownMember));
    assert_eq!(rig.commit(commit_of(caller("x", 1), 6)), Err(GroupError::UnknownMember));
    assert_eq!(rig.commit(commit_of(caller("a", 9), 6)), Err(GroupError::IllegalGeneration));
    assert_eq!(rig.commit(commit_of(caller("a", 1), 6)), Ok(vec![Ok(())]));
    let b = rig.join(member("b"));
    assert_eq!(rig.commit(commit_of(caller("a", 1), 7)), Ok(vec![Ok(())]), "while preparing");
    let again = rig.join(again(&a));
    let (_, _) = (rig.joined(again), rig.joined(b));
    assert_eq!(rig.commit(commit_of(caller("a", 2), 8)), Err(GroupError::RebalanceInProgress));
    assert_eq!(rig.offset((topic(1), 0)), Some(7));
}

#[test]
fn any_offset_may_be_committed_and_long_metadata_may_not() {
    let mut rig = Rig::quick();
    for offset in [-1, i64::MAX, i64::MIN, 3] {
        assert_eq!(rig.commit(commit_of(caller("", -1), offset)), Ok(vec![Ok(())]));
        assert_eq!(rig.offset((topic(1), 0)), Some(offset));
    }
    let mut long = commit_of(caller("", -1), 9);
    long.positions[0].1.metadata = "x".repeat(4097);
    assert_eq!(rig.commit(long), Ok(vec![Err(GroupError::MetadataTooLarge)]));
    assert_eq!(rig.offset((topic(1), 0)), Some(3));
    assert_eq!(rig.offset((topic(2), 0)), None);
}

#[test]
fn offsets_and_their_epochs_survive_a_restart() {
    let mut rig = Rig::quick();
    rig.commit(commit_of(caller("", -1), 42)).expect("committed");
    rig.restart();
    let answer = rig.ask(Ask::Offsets { group: "g".into(), keys: None, reader: None });
    let Answer::Offsets(Ok(all)) = answer else { panic!("{answer:?}") };
    let position = all[0].1.as_ref().expect("committed");
    assert_eq!(
        (all.len(), position.offset, position.leader_epoch, position.metadata.as_str()),
        (1, 42, 3, "m")
    );
    assert_eq!(
        rig.ask(Ask::Offsets { group: "other".into(), keys: None, reader: None }),
        Answer::Offsets(Ok(vec![]))
    );
}

#[test]
fn offsets_of_consumed_topics_are_not_deleted() {
    let mut rig = Rig::quick();
    let delete = |rig: &mut Rig, topics: &[(u8, &str)]| {
        let keys = topics.iter().map(|(n, name)| ((topic(*n), 0), (*name).to_owned())).collect();
        match rig.ask(Ask::DeleteOffsets { group: "g".into(), keys }) {
            Answer::DeleteOffsets(answer) => answer,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(delete(&mut rig, &[(1, "t")]), Err(GroupError::GroupNotFound));
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    rig.stable("a");
    assert_eq!(delete(&mut rig, &[(1, "t"), (2, "u")]), Ok(vec![Err(GroupError::SubscribedToTopic), Ok(())]));
    rig.leave(&[("a", None)]);
    assert_eq!(delete(&mut rig, &[(1, "t")]), Ok(vec![Ok(())]));
    assert_eq!(rig.offset((topic(1), 0)), None);
    let ticket = rig.join(Join { protocol_type: "connect".into(), ..member("c") });
    rig.joined(ticket);
    assert_eq!(delete(&mut rig, &[(1, "t")]), Err(GroupError::NonEmptyGroup));
}

#[test]
fn offsets_expire_after_the_group_was_empty_for_the_retention() {
    let mut rig = Rig::quick();
    let week = 7 * 24 * 3600 * 1000i64;
    let catalog = catalog(&[(1, "t"), (2, "u")]);
    let mut other = commit_of(caller("a", 1), 7);
    other.positions[0].0 = (topic(2), 0);
    rig.stable("a");
    rig.commit(commit_of(caller("a", 1), 7)).expect("committed");
    rig.commit(other).expect("committed");
    rig.now.wall_ms += week + 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), Some(7), "consumed");
    assert_eq!(rig.offset((topic(2), 0)), None, "not subscribed to");
    rig.leave(&[("a", None)]);
    rig.now.wall_ms += week - 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), Some(7));
    rig.now.wall_ms += 1;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), None);
    assert_eq!(rig.state(), State::Dead, "empty and without offsets");
}

#[test]
fn simple_groups_expire_by_commit_and_old_clients_choose_their_time() {
    let mut rig = Rig::quick();
    let catalog = catalog(&[(1, "t"), (2, "u")]);
    let mut short = commit_of(caller("", -1), 1);
    short.retention_ms = Some(1000);
    short.positions[0].0 = (topic(2), 0);
    rig.commit(short).expect("committed");
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    rig.now.wall_ms += 1000;
    rig.sweep(&catalog);
    assert_eq!((rig.offset((topic(2), 0)), rig.offset((topic(1), 0))), (None, Some(1)));
    rig.now.wall_ms += 7 * 24 * 3600 * 1000;
    rig.sweep(&catalog);
    assert_eq!(rig.offset((topic(1), 0)), None);
}

#[test]
fn offsets_of_deleted_topics_are_dropped_after_a_while() {
    let mut rig = Rig::quick();
    rig.commit(commit_of(caller("", -1), 1)).expect("committed");
    let (with, without) = (catalog(&[(1, "t")]), catalog(&[]));
    rig.sweep(&without);
    rig.advance(299_999);
    rig.sweep(&with);
    rig.sweep(&without);
    rig.advance(299_999);
    rig.sweep(&without);
    assert_eq!(rig.offset((topic(1), 0)), Some(1), "the wait starts anew when the topic is seen");
    rig.advance(1);
    rig.sweep(&without);
    assert_eq!(rig.offset((topic(1), 0)), None);
    assert!(rig.machine.stored.is_empty());
}
