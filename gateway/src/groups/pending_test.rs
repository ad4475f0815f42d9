//! Offsets within transactions, on the pure machine.

use super::ask::*;
use super::coordinator::Coordinator;
use super::image::Image;
use super::pending::{Ended, PendingCommit};
use super::record::{Key, Record};
use super::settings::Settings;
use super::view::Numbers;
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use rangeway_core::types::TopicId;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// A coordinator, its records, and what it answered last.
struct Rig {
    machine: Coordinator,
    records: Vec<Record>,
    tickets: u64,
}

impl Rig {
    fn new() -> Rig {
        Rig { machine: Coordinator::new(&Settings::default()), records: Vec::new(), tickets: 0 }
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        self.tickets += 1;
        let mut out = Outcome::default();
        let now = Now { mono_ms: self.tickets, wall_ms: 1_700_000_000_000 };
        let asked = Asked { ask, catalog: Arc::default() };
        self.machine.handle(Ticket(self.tickets), asked, now, &mut out);
        self.records.extend(out.take_records());
        self.refold();
        out.take_replies().pop().expect("answered at once").1
    }

    /// The fold of the records, and the image through its bytes, are the state.
    fn refold(&self) {
        let mut twin = Coordinator::new(&Settings::default());
        for record in &self.records {
            twin.replay(record);
        }
        let image = self.machine.capture();
        assert_eq!(twin.capture(), image);
        let bytes = postcard::to_stdvec(&image).expect("encodes");
        assert_eq!(postcard::from_bytes::<Image>(&bytes).expect("decodes"), image);
    }

    fn pend(&mut self, producer_id: i64, number: u64, offset: i64) {
        let commit = commit("g", -1, offset);
        let answer = self.ask(Ask::CommitPending(PendingCommit { producer_id, number, commit }));
        assert_eq!(answer, Answer::CommitPending(Ok(vec![Ok(())])));
    }

    fn end(&mut self, producer_id: i64, number: u64, commit: bool) {
        let answer = self.ask(Ask::EndTransaction(Ended { producer_id, number, commit }));
        assert_eq!(answer, Answer::EndTransaction);
    }

    fn committed(&mut self) -> Option<i64> {
        let ask = Ask::Offsets { group: "g".into(), keys: Some(vec![key()]), reader: None };
        let Answer::Offsets(Ok(offsets)) = self.ask(ask) else { panic!("offsets") };
        offsets[0].1.as_ref().map(|p| p.offset)
    }

    fn is_pending(&mut self) -> bool {
        let Answer::Pending(keys) = self.ask(Ask::Pending { group: "g".into() }) else { panic!("keys") };
        keys.contains(&key())
    }
}

fn key() -> Key {
    (TopicId(Uuid::from_u128(1)), 3)
}

fn commit(group: &str, generation: i32, offset: i64) -> Commit {
    let caller = Caller { group: group.into(), member_id: String::new(), instance_id: None, generation };
    let position = CommitPosition { offset, leader_epoch: 1, metadata: String::new() };
    Commit { caller, says_group_not_found: false, retention_ms: None, positions: vec![(key(), position)] }
}

#[test]
fn pending_offsets_count_with_the_commit_and_are_dropped_with_the_abort() {
    let mut rig = Rig::new();
    rig.pend(7, 1, 10);
    assert_eq!((rig.committed(), rig.is_pending()), (None, true));
    rig.end(7, 1, true);
    assert_eq!((rig.committed(), rig.is_pending()), (Some(10), false));
    rig.pend(7, 2, 20);
    rig.end(7, 2, false);
    assert_eq!((rig.committed(), rig.is_pending()), (Some(10), false));
}

#[test]
fn a_marker_of_an_earlier_transaction_ends_nothing() {
    let mut rig = Rig::new();
    rig.pend(7, 2, 20);
    rig.end(7, 1, true);
    rig.end(8, 9, true);
    assert_eq!((rig.committed(), rig.is_pending()), (None, true));
    let records = rig.records.len();
    rig.end(7, 2, true);
    rig.end(7, 2, true);
    assert_eq!(rig.records.len(), records + 1, "the second one finds nothing to end");
    assert_eq!(rig.committed(), Some(20));
}

#[test]
fn the_later_commit_wins_whichever_transaction_ends_first() {
    let mut rig = Rig::new();
    rig.pend(7, 1, 10);
    rig.pend(8, 1, 20);
    rig.end(8, 1, true);
    assert_eq!((rig.committed(), rig.is_pending()), (Some(20), true));
    rig.end(7, 1, true);
    assert_eq!(rig.committed(), Some(20));

    rig.pend(7, 2, 30);
    assert_eq!(rig.ask(Ask::Commit(commit("g", -1, 40))), Answer::Commit(Ok(vec![Ok(())])));
    assert_eq!((rig.committed(), rig.is_pending()), (Some(40), true), "it is not stable before that end");
    rig.end(7, 2, true);
    assert_eq!(rig.committed(), Some(40));
    assert!(!rig.is_pending());

    rig.pend(7, 3, 50);
    rig.pend(8, 2, 60);
    rig.end(7, 3, true);
    assert_eq!((rig.committed(), rig.is_pending()), (Some(50), true));
    rig.end(8, 2, true);
    assert_eq!((rig.committed(), rig.is_pending()), (Some(60), false));
}

#[test]
fn a_deleted_group_has_nothing_pending() {
    let mut rig = Rig::new();
    rig.ask(Ask::Commit(commit("g", -1, 1)));
    rig.pend(7, 1, 10);
    assert_eq!(rig.ask(Ask::Delete { group: "g".into() }), Answer::Delete(Ok(())));
    assert!(!rig.is_pending());
    rig.end(7, 1, true);
    assert_eq!(rig.committed(), None);
}

#[test]
fn a_generation_that_is_not_the_groups_is_refused() {
    let mut rig = Rig::new();
    let ask = |rig: &mut Rig, generation| {
        let commit = commit("g", generation, 10);
        rig.ask(Ask::CommitPending(PendingCommit { producer_id: 7, number: 1, commit }))
    };
    assert_eq!(ask(&mut rig, 3), Answer::CommitPending(Err(GroupError::IllegalGeneration)));
    assert_eq!(ask(&mut rig, -1), Answer::CommitPending(Ok(vec![Ok(())])));
}

#[test]
fn images_of_older_versions_are_read_as_ones_with_nothing_pending() {
    let mut rig = Rig::new();
    rig.ask(Ask::Commit(commit("g", -1, 1)));
    let groups = rig.machine.capture().groups;
    let bytes = postcard::to_stdvec(&groups).expect("encodes");
    let read = postcard::from_bytes::<Image>(&bytes).expect("decodes");
    let version_1 = Image { numbers: Numbers::of(&groups), groups, ..Image::default() };
    assert_eq!(read, version_1);
    let bytes = postcard::to_stdvec(&(&version_1.groups, &version_1.consumers)).expect("encodes");
    assert_eq!(postcard::from_bytes::<Image>(&bytes).expect("decodes"), version_1, "version 2");
    let nothing = postcard::to_stdvec(&BTreeMap::<u8, u8>::new()).expect("encodes");
    assert_eq!(postcard::from_bytes::<Image>(&nothing).expect("decodes"), Image::default());
}
