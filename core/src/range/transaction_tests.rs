//! Transactions in a primary whose drive's every answer is given by the test: what opens and ends them, what readers see,
//! which markers are taken.

use super::ack::{Ack, Issued, Pending};
use super::checkpoint::{decode, encode};
use super::handover_tests::{One, batch, offsets, send, succeed};
use super::lane::Lane;
use super::markers::{Marker, TransactionVersion};
use super::primary::Batch;
use super::transactions::AbortedSpan;
use crate::codec::batch::BatchHead;
use crate::codec::entry::EntryKind;
use crate::error::AppendError;
use crate::testing::batch::transactional;
use crate::types::{Address, Offset};
use std::sync::Arc;

const ID: i64 = 40;

fn txn(epoch: i16, sequence: i32) -> Batch {
    transactional(0, 1, (ID, epoch, sequence), 1, "t")
}

fn marker(number: u64, epoch: i16, commit: bool) -> Marker {
    Marker {
        producer_id: ID,
        producer_epoch: epoch,
        coordinator_epoch: 5,
        number,
        commit,
        version: TransactionVersion::V2,
    }
}

fn v1(marker: Marker) -> Marker {
    Marker { version: TransactionVersion::V1, ..marker }
}

/// A marker on its way: done, failed or neither.
struct Marking(Pending);

impl Marking {
    fn outcome(&mut self) -> Option<Result<(), AppendError>> {
        self.0.try_take().map(|mut outcomes| match outcomes.remove(0) {
            Issued::Ok { .. } => Ok(()),
            Issued::Err(error) => Err(error),
        })
    }
}

fn mark(one: &One, marker: Marker) -> Result<Marking, AppendError> {
    let ack = Arc::new(Ack::default());
    let issued = one.primary.issue_marker(0, &marker, &ack, 1000)?;
    assert_eq!(issued, Some(()), "there is room");
    let fixed = vec![Issued::Ok { base_offset: 0, log_start: 0, log_append_time: -1 }];
    Ok(Marking(Pending::new(fixed, ack)))
}

/// Sends one batch; its offset once all is complete.
fn sent(one: &One, batch: Batch) -> Result<Offset, AppendError> {
    let (_, mut pending) = send(one, &Lane::default(), &[batch]);
    one.drive.complete_all();
    offsets(&mut pending).expect("complete").remove(0)
}

fn marked(one: &One, marker: Marker) -> Result<(), AppendError> {
    let mut marking = mark(one, marker)?;
    one.drive.complete_all();
    marking.outcome().expect("complete")
}

/// High watermark and last stable offset.
fn shown(one: &One) -> (Offset, Offset) {
    let view = one.primary.view(0).expect("known");
    (view.high_watermark, view.last_stable)
}

fn opened() -> One {
    let one = One::opened(64);
    one.drive.complete_all();
    one
}

#[test]
fn the_last_stable_offset_waits_for_the_earliest_transaction_and_for_its_marker_to_be_complete() {
    let one = opened();
    assert_eq!(sent(&one, batch(0, None, "plain")), Ok(0));
    assert_eq!(sent(&one, txn(0, 0)), Ok(1));
    assert_eq!(sent(&one, transactional(0, 1, (41, 0, 0), 1, "other")), Ok(2));
    assert_eq!(sent(&one, txn(0, 1)), Ok(3));
    assert_eq!(shown(&one), (4, 1));
    let mut marking = mark(&one, marker(1, 1, true)).expect("taken");
    assert_eq!((marking.outcome(), shown(&one)), (None, (4, 1)), "not before the marker is complete");
    one.drive.complete_all();
    assert_eq!((marking.outcome(), shown(&one)), (Some(Ok(())), (5, 2)));
    assert_eq!(marked(&one, Marker { producer_id: 41, ..marker(1, 1, false) }), Ok(()));
    assert_eq!(shown(&one), (6, 6));
    let span = AbortedSpan { producer_id: 41, first: 2, last: 5 };
    assert_eq!(one.primary.aborted(0, 0, 6), Some(vec![span]));
    assert_eq!(one.primary.aborted(0, 3, 4), Some(vec![span]), "it began before");
    assert_eq!(one.primary.aborted(0, 0, 2), Some(vec![]));
}

#[test]
fn a_marker_is_a_control_batch_with_an_offset_of_its_own() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    assert_eq!(marked(&one, marker(1, 1, false)), Ok(()));
    let (header, bytes) = one.drive.below(Address(9)).pop().expect("the marker");
    assert_eq!((header.kind, header.base_offset, header.last_offset()), (EntryKind::Marker, 1, 1));
    let head = BatchHead::parse(&bytes).expect("a whole head");
    assert!(head.is_control() && head.is_transactional());
    assert_eq!((head.base_offset, head.producer_id, head.producer_epoch), (1, ID, 1));
}

#[test]
fn a_marker_whose_number_was_marked_ends_nothing_and_waits_for_the_first_one() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    let mut first = mark(&one, v1(marker(7, 0, true))).expect("taken");
    let mut copy = mark(&one, v1(marker(7, 0, true))).expect("known");
    let mut older = mark(&one, v1(marker(6, 0, false))).expect("known");
    assert_eq!((copy.outcome(), older.outcome()), (None, None), "in flight");
    one.drive.complete_all();
    assert_eq!(first.outcome(), Some(Ok(())));
    assert_eq!((copy.outcome(), older.outcome()), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(sent(&one, txn(0, 1)), Ok(2), "one marker, at 1");
    assert_eq!(marked(&one, v1(marker(7, 0, true))), Ok(()), "late");
    assert_eq!(shown(&one), (3, 2), "the next transaction is open");
    assert_eq!(marked(&one, v1(marker(8, 0, true))), Ok(()));
    assert_eq!(shown(&one), (4, 4));
}

#[test]
fn an_operators_marker_has_no_number_and_is_always_a_new_one() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    assert_eq!(marked(&one, v1(marker(3, 0, true))), Ok(()));
    assert_eq!(sent(&one, txn(0, 1)), Ok(2));
    assert_eq!(marked(&one, v1(marker(0, 0, false))), Ok(()));
    assert_eq!(shown(&one), (4, 4));
    assert_eq!(marked(&one, v1(marker(3, 0, false))), Ok(()));
    assert_eq!(shown(&one), (4, 4), "the number before stays known");
}

#[test]
fn coordinators_and_epochs_that_were_replaced_are_fenced() {
    let one = opened();
    assert_eq!(sent(&one, txn(3, 0)), Ok(0));
    let fenced = |got, current| Err(AppendError::ProducerFenced { got, current });
    assert_eq!(marked(&one, marker(1, 2, true)), fenced(2, 3));
    assert_eq!(marked(&one, marker(1, 3, true)), fenced(3, 3), "version 2: above its batches'");
    assert_eq!(marked(&one, marker(1, 4, true)), Ok(()));
    assert_eq!(marked(&one, marker(2, 4, true)), Ok(()), "nothing is open: as often as one likes");
    let older = Marker { coordinator_epoch: 4, ..marker(3, 5, true) };
    assert_eq!(marked(&one, older), Err(AppendError::CoordinatorFenced { got: 4, current: 5 }));
    assert_eq!(marked(&one, Marker { coordinator_epoch: 4, ..marker(2, 4, true) }), Ok(()), "done already");
    assert_eq!(shown(&one), (3, 3));
}

#[test]
fn after_a_marker_of_a_higher_epoch_late_batches_are_refused_and_new_ones_begin_at_zero() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    assert_eq!(marked(&one, marker(1, 1, false)), Ok(()));
    assert_eq!(sent(&one, txn(0, 1)), Err(AppendError::ProducerFenced { got: 0, current: 1 }));
    assert_eq!(sent(&one, txn(1, 5)), Err(AppendError::OutOfOrderSequence { got: 5, expected: 0 }));
    assert_eq!(sent(&one, txn(1, 0)), Ok(2));
    assert_eq!(shown(&one), (3, 2));
}

#[test]
fn a_plain_batch_amid_its_producers_transaction_is_refused() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    let plain = |sequence| batch(0, Some((ID, 0, sequence)), "p");
    assert_eq!(sent(&one, plain(2)), Err(AppendError::OutOfOrderSequence { got: 2, expected: 1 }));
    assert_eq!(sent(&one, plain(1)), Err(AppendError::TransactionOpen { first_offset: 0 }));
    assert_eq!(marked(&one, v1(marker(1, 0, true))), Ok(()));
    assert_eq!(sent(&one, plain(1)), Ok(2));
    assert_eq!(shown(&one), (3, 3), "a plain batch opens nothing");
}

#[test]
fn a_marker_in_flight_when_its_segment_ends_is_acknowledged_or_made_again_in_the_successor() {
    for (tail, stored) in [(3, true), (2, false)] {
        let one = opened();
        assert_eq!(sent(&one, txn(0, 0)), Ok(0)); // address 1; the marker gets 2
        let mut first = mark(&one, v1(marker(1, 0, false))).expect("taken");
        let mut copy = mark(&one, v1(marker(1, 0, false))).expect("known");
        let next = succeed(&one, tail, 64);
        let outcome = if stored { Ok(()) } else { Err(AppendError::NotLeader { leader: None }) };
        assert_eq!((first.outcome(), copy.outcome()), (Some(outcome.clone()), Some(outcome)));
        next.drive.complete_all();
        assert_eq!(shown(&next), if stored { (2, 2) } else { (1, 0) });
        assert_eq!(marked(&next, v1(marker(1, 0, false))), Ok(()), "whoever asks again");
        assert_eq!(shown(&next), (2, 2));
        let aborted = vec![AbortedSpan { producer_id: ID, first: 0, last: 1 }];
        assert_eq!(next.primary.aborted(0, 0, 2), Some(aborted));
        let captured = next.primary.state().capture(Address(0));
        assert_eq!(decode(&encode(&captured, 64)).expect("our own bytes"), captured);
    }
}

#[test]
fn an_open_transaction_is_not_forgotten_however_old_its_producer_is() {
    let one = opened();
    assert_eq!(sent(&one, txn(0, 0)), Ok(0));
    let mut state = one.primary.state();
    state.expire(i64::MAX, 0);
    assert_eq!((state.producers().len(), state.first_open(0)), (1, Some(0)));
    assert_eq!(marked(&one, marker(1, 1, true)), Ok(()));
    let mut state = one.primary.state();
    state.expire(i64::MAX, 0);
    assert_eq!((state.producers().len(), state.first_open(0)), (0, None));
}
