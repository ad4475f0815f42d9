//! Primaries over drives whose every answer is given by the test: what a segment's end does to what was in flight.

use super::ack::{Ack, Issued, Pending, Share};
use super::lane::Lane;
use super::primary::{Batch, Limits, Phase, Progress, RangePrimary, Stamping, Told, divide};
use super::segment::{Owner, Segment};
use super::state::RangeState;
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::drive::{Purpose, Run, Ticket};
use crate::error::AppendError;
use crate::loglet::sequencer::Window;
use crate::testing::write_only::{Takes, WriteOnly};
use crate::types::{Address, LogletId, Offset, Partition, RangeId, Span, TopicId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Keeps what is submitted; completes runs when it is told so, on the test's thread.
#[derive(Default)]
pub(super) struct Scripted {
    entries: Mutex<Vec<(EntryHeader, Bytes)>>,
    tickets: Mutex<VecDeque<(Ticket, u64)>>,
}

impl Scripted {
    /// How many runs wait.
    pub(super) fn waiting(&self) -> usize {
        self.tickets.lock().len()
    }

    /// How many entries were submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.entries.lock().len() as u64
    }

    /// Completes the `n`th run that waits.
    pub(super) fn complete(&self, n: usize) {
        let ticket = self.tickets.lock().remove(n);
        if let Some((ticket, _)) = ticket {
            ticket.complete(Ok(()));
        }
    }

    pub(super) fn complete_all(&self) {
        while self.waiting() > 0 {
            self.complete(0);
        }
    }

    /// Header and body of the entries below `tail`.
    pub(super) fn below(&self, tail: Address) -> Vec<(EntryHeader, Bytes)> {
        self.entries.lock().iter().take(tail.0 as usize).cloned().collect()
    }
}

impl Takes for Scripted {
    fn take_run(&self, run: Run) {
        let mut entries = self.entries.lock();
        assert_eq!(run.first.0, entries.len() as u64, "submitted in order of addresses");
        entries.extend(run.entries.into_iter().map(|e| (e.header, e.body)));
        self.tickets.lock().push_back((run.ticket, entries.len() as u64));
    }
}

const SPAN: Span = Span { first: 0, last: 3 };

/// A primary with its drive and the state that it began with.
pub(super) struct One {
    pub(super) primary: Arc<RangePrimary>,
    pub(super) drive: Arc<WriteOnly<Scripted>>,
    segment: Arc<Segment>,
    before: RangeState,
}

impl One {
    /// A primary over `before`, not open yet.
    pub(super) fn new(loglet: u64, before: RangeState, window: u32) -> One {
        let limits = Limits {
            window: Window { entries: window, bytes: 1 << 20 },
            checkpoint_piece_bytes: 1 << 16,
            producer_expiration_ms: i64::MAX / 2,
            producers_max: 1000,
        };
        let drive = Arc::<WriteOnly<Scripted>>::default();
        let segment = Arc::new(Segment::new(
            Owner { range: RangeId(loglet as u32), span: before.span() },
            LogletId(loglet),
            0,
            drive.clone(),
            0,
            None,
        ));
        let topic = TopicId(uuid::Uuid::from_u128(7));
        let (id, stamping) = (RangeId(loglet as u32), Stamping::default());
        let primary =
            RangePrimary::new(topic, id, limits, stamping, before.clone(), Vec::new(), segment.clone());
        One { primary, drive, segment, before }
    }

    pub(super) fn open(&self, handed_over: Vec<super::primary::HandedOver>) {
        self.primary.open(self.segment.clone(), &[], handed_over, 1000);
    }

    pub(super) fn opened(window: u32) -> One {
        let one = One::new(1, RangeState::new(SPAN), window);
        one.open(Vec::new());
        one
    }

    /// Its completed tail.
    pub(super) fn completed(&self) -> u64 {
        self.primary.view(0).expect("known").tail.0
    }

    /// What a fold of its segment up to `tail` gives.
    pub(super) fn folded(&self, tail: Address) -> RangeState {
        let mut state = self.before.clone();
        for (header, _) in self.drive.below(tail) {
            if header.kind != EntryKind::Checkpoint {
                state.apply(&header).expect("a stored entry follows");
            }
        }
        state
    }

    /// Text of the batches below `tail` with their partitions and offsets.
    pub(super) fn texts(&self, tail: Address) -> Vec<(Partition, Offset, String)> {
        let data = self.drive.below(tail).into_iter().filter(|(h, _)| h.kind == EntryKind::Data);
        data.map(|(h, body)| (h.partition, h.base_offset, String::from_utf8_lossy(&body).into_owned()))
            .collect()
    }
}

/// A batch of one record that says `text`.
pub(super) fn batch(partition: Partition, producer: Option<(i64, i16, i32)>, text: &str) -> Batch {
    crate::testing::batch::batch(partition, 1, producer, 1, text)
}

/// Issues batches as one request of `lane`; how many were taken.
pub(super) fn send(one: &One, lane: &Lane, batches: &[Batch]) -> (usize, Pending) {
    let ack = Arc::new(Ack::of(lane));
    let mut issued = Vec::new();
    let items = batches.iter().enumerate().map(|(i, b)| (b, Share::New(&ack, i)));
    let told = |_: usize, told: Told| issued.push(told.issued());
    let taken = match one.primary.issue(items, told, 1000) {
        Progress::All => batches.len(),
        Progress::Part(n) => n,
    };
    (taken, Pending::new(issued, ack))
}

pub(super) fn offsets(pending: &mut Pending) -> Option<Vec<Result<Offset, AppendError>>> {
    let outcomes = pending.try_take()?;
    let offset = |one| match one {
        Issued::Ok { base_offset, .. } => Ok(base_offset),
        Issued::Err(error) => Err(error),
    };
    Some(outcomes.into_iter().map(offset).collect())
}

/// Ends `one` at `tail`; its successor, open with what was handed over.
pub(super) fn succeed(one: &One, tail: u64, window: u32) -> One {
    one.primary.stop_issuing(0);
    let next = One::new(2, one.folded(Address(tail)), window);
    next.open(one.primary.hand_over(Address(tail), None));
    one.primary.close(Phase::Moved);
    next
}

#[test]
fn below_the_tail_is_acknowledged_and_the_rest_is_numbered_again() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(64);
    one.drive.complete_all();
    // Addresses 1 to 5; the log ends after 2, so "b2" and what follows lose their numbers.
    let (_, mut first) = send(&one, &lanes[1], &[batch(0, None, "a1"), batch(1, None, "b1")]);
    let (_, mut second) = send(&one, &lanes[1], &[batch(1, None, "b2"), batch(0, None, "a2")]);
    let (_, mut third) = send(&one, &lanes[2], &[batch(1, Some((9, 0, 0)), "b3")]);
    let (_, mut again) = send(&one, &lanes[3], &[batch(1, Some((9, 0, 0)), "b3")]);
    assert!(offsets(&mut again).is_none(), "a duplicate waits for its original");
    let next = succeed(&one, 3, 64);
    assert_eq!(offsets(&mut first), Some(vec![Ok(0), Ok(0)]), "recorded, so acknowledged");
    assert_eq!(one.primary.view(0).expect("known").high_watermark, 1);
    assert!(offsets(&mut second).is_none(), "numbered again and not durable yet");
    // Another batch got in first neither by lane nor by chance.
    let (_, mut late) = send(&next, &lanes[4], &[batch(1, None, "b4")]);
    next.drive.complete_all();
    assert_eq!(offsets(&mut second), Some(vec![Ok(1), Ok(1)]));
    assert_eq!(offsets(&mut third), Some(vec![Ok(2)]));
    assert_eq!(offsets(&mut again), Some(vec![Ok(2)]));
    assert_eq!(offsets(&mut late), Some(vec![Ok(3)]));
    let texts: Vec<String> = next.texts(Address(99)).into_iter().map(|(.., text)| text).collect();
    assert_eq!(texts, ["b2", "a2", "b3", "b4"]);
}

#[test]
fn late_answers_of_the_old_segment_are_nobodys() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(64);
    let (_, mut pending) = send(&one, &lanes[1], &[batch(0, None, "a1")]);
    let next = succeed(&one, 1, 64);
    one.drive.complete_all();
    assert!(offsets(&mut pending).is_none(), "stored above the tail is not stored");
    assert_eq!(one.primary.view(0).expect("known").high_watermark, 0);
    assert_eq!(
        send(&one, &lanes[2], &[batch(0, None, "x")]).0,
        0,
        "nothing is taken any more, nothing is refused"
    );
    next.drive.complete_all();
    assert_eq!(offsets(&mut pending), Some(vec![Ok(0)]));
    assert_eq!(next.primary.view(0).expect("known").high_watermark, 1);
}

#[test]
fn more_than_the_window_is_numbered_before_anything_else() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(8);
    one.drive.complete_all();
    let batches: Vec<Batch> = (0..7).map(|i| batch(0, None, &format!("{i}"))).collect();
    let (taken, mut pending) = send(&one, &lanes[1], &batches);
    assert_eq!(taken, 7);
    let next = succeed(&one, 1, 2);
    let late = batch(0, None, "late");
    let mut rounds = 0;
    while send(&next, &lanes[2], std::slice::from_ref(&late)).0 == 0 {
        rounds += 1;
        assert!(rounds < 20, "it gets in at last");
        next.drive.complete(0);
    }
    assert!(rounds > 2, "{rounds}: the window was full more than once");
    next.drive.complete_all();
    assert_eq!(offsets(&mut pending), Some((0..7).map(Ok).collect()));
    let texts: Vec<String> = next.texts(Address(99)).into_iter().map(|(.., text)| text).collect();
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6", "late"]);
}

#[test]
fn a_primary_that_was_stopped_goes_on_when_the_chain_still_has_its_segment() {
    for gave_a_tail in [false, true] {
        let one = One::opened(8);
        one.drive.complete_all();
        one.primary.stop_issuing(4);
        assert_eq!(one.primary.drained().is_some_and(|_| gave_a_tail), gave_a_tail);
        assert_eq!(send(&one, &Lane::default(), &[batch(0, None, "waits")]).0, 0);
        one.primary.resume(Some(5));
        assert_eq!(send(&one, &Lane::default(), &[batch(0, None, "goes on")]).0, 1);
    }
    let one = One::opened(8);
    one.primary.stop_issuing(4);
    assert_eq!(one.primary.drained(), None, "the checkpoint is in flight");
    one.primary.resume(Some(5));
    assert_eq!(
        send(&one, &Lane::default(), &[batch(0, None, "goes on")]).0,
        1,
        "another parent's seal failed before this one drained"
    );
}

#[test]
fn a_second_end_hands_over_what_the_first_one_left() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(8);
    one.drive.complete_all();
    let batches: Vec<Batch> = (0..6).map(|i| batch(0, None, &format!("{i}"))).collect();
    let (_, mut pending) = send(&one, &lanes[1], &batches);
    let next = succeed(&one, 2, 2);
    next.primary.stop_issuing(0);
    let third = One::new(3, next.folded(Address(1)), 64);
    third.open(next.primary.hand_over(Address(1), None));
    third.drive.complete_all();
    assert_eq!(offsets(&mut pending), Some((0..6).map(Ok).collect()));
    let texts: Vec<String> = third.texts(Address(99)).into_iter().map(|(.., text)| text).collect();
    assert_eq!(texts, ["1", "2", "3", "4", "5"]);
}

#[test]
fn what_has_too_few_copies_is_no_acknowledgement() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(64);
    let (_, mut pending) =
        send(&one, &lanes[1], &[batch(0, None, "a"), batch(0, None, "b"), batch(0, None, "c")]);
    one.primary.stop_issuing(0);
    let rest = one.primary.hand_over(Address(4), Some((Address(2), Address(3))));
    assert!(rest.is_empty());
    assert_eq!(offsets(&mut pending), Some(vec![Ok(0), Err(AppendError::TimedOut), Ok(2)]));
}

#[test]
fn entries_of_our_own_are_made_again_by_who_made_them() {
    let one = One::opened(64);
    let ack = Arc::new(Ack::default());
    let own = [(EntryKind::Control, Bytes::from_static(b"r"))];
    one.primary.issue_own(0, &own, Purpose::Coordination, &ack, 0).expect("open");
    let mut pending = Pending::new(vec![Issued::Err(AppendError::TimedOut)], ack);
    let next = succeed(&one, 1, 64);
    assert_eq!(offsets(&mut pending), Some(vec![Err(AppendError::NotLeader { leader: None })]));
    assert_eq!(next.drive.submitted(), 1, "the checkpoint alone");
}

#[test]
fn what_was_answered_is_withdrawn_with_everything_behind_it() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(64);
    one.drive.complete_all();
    let (_, given_up) = send(&one, &lanes[1], &[batch(0, Some((5, 0, 0)), "a"), batch(1, None, "other")]);
    let (_, mut behind) = send(&one, &lanes[1], &[batch(0, Some((5, 0, 1)), "b")]);
    let (_, mut beside) = send(&one, &lanes[1], &[batch(2, None, "c")]);
    let (_, mut elsewhere) = send(&one, &lanes[2], &[batch(0, None, "d")]);
    drop(given_up);
    let next = succeed(&one, 1, 64);
    next.drive.complete_all();
    assert_eq!(offsets(&mut behind), Some(vec![Err(AppendError::NotLeader { leader: None })]));
    assert_eq!(offsets(&mut beside), Some(vec![Ok(0)]));
    assert_eq!(offsets(&mut elsewhere), Some(vec![Ok(0)]));
    let texts: Vec<String> = next.texts(Address(99)).into_iter().map(|(.., text)| text).collect();
    assert_eq!(texts, ["c", "d"]);
}

#[test]
fn each_successor_gets_what_is_of_its_partitions() {
    let lanes: [Lane; 5] = Default::default();
    let one = One::opened(64);
    let (_, _a) = send(&one, &lanes[1], &[batch(0, None, "a"), batch(3, None, "b"), batch(1, None, "c")]);
    one.primary.stop_issuing(0);
    let rest = one.primary.hand_over(Address(1), None);
    let halves = [Span { first: 0, last: 1 }, Span { first: 2, last: 3 }];
    let parts = divide(rest, &halves);
    let partitions: Vec<Vec<Partition>> =
        parts.iter().map(|part| part.iter().map(|item| item.partition()).collect()).collect();
    assert_eq!(partitions, [vec![0, 1], vec![3]]);
}
