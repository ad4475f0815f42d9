//! The coordinator's rules, one scenario each, on the pure machine.

use super::ask::*;
use super::coordinator::{Coordinator, Settings};
use super::record::{Entries, NO_EPOCH, Place, Producer, Record, Rules, State, apply};
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use rangeway_core::types::TopicId;
use uuid::Uuid;

/// A coordinator, a twin that only replays its records, and time.
pub(super) struct Rig {
    pub(super) machine: Coordinator,
    pub(super) records: Vec<Record>,
    twin: Entries,
    tickets: u64,
    ids: i64,
    pub(super) now: Now,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig {
            machine: Coordinator::new(&Settings::default()),
            records: Vec::new(),
            twin: Entries::new(),
            tickets: 0,
            ids: 100,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
        }
    }

    pub(super) fn take(&mut self, mut out: Outcome<Coordinator>) -> Vec<(Ticket, Answer)> {
        for record in out.take_records() {
            apply(&mut self.twin, &record);
            self.records.push(record);
        }
        assert_eq!(self.twin, self.machine.entries, "replay of the records is the durable state");
        for entry in self.machine.entries.values() {
            let open = matches!(entry.state, State::Ongoing) || entry.state.is_prepared();
            assert!(open || entry.places.is_empty(), "no partitions without a transaction");
            assert!(!open || entry.number > 0, "transactions are numbered");
        }
        out.take_replies()
    }

    /// Asks; `None` while the answer is parked.
    pub(super) fn try_ask(&mut self, ask: Ask) -> Option<Answer> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let mut out = Outcome::default();
        let (passes, before) = (self.machine.passes(&ask, self.now), self.records.len());
        self.machine.handle(ticket, ask.clone(), self.now, &mut out);
        let answers = self.take(out);
        let records_nothing = self.records.len() == before && !matches!(ask, Ask::Sweep);
        assert_eq!(passes, records_nothing, "what is handled on a full disk: {ask:?}");
        answers.into_iter().find(|(t, _)| *t == ticket).map(|(_, answer)| answer)
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        self.try_ask(ask).expect("answered at once")
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms as i64;
        while self.machine.next_deadline().is_some_and(|due| due <= self.now.mono_ms) {
            let mut out = Outcome::default();
            self.machine.expire(self.now, &mut out);
            self.take(out);
        }
    }

    /// Another process takes over: records alone survive.
    pub(super) fn restart(&mut self) {
        self.machine = Coordinator::new(&Settings::default());
        for record in &self.records {
            self.machine.replay(record);
        }
        self.machine.loaded(self.now);
    }

    /// The twin from the records again.
    pub(super) fn refold(&mut self) {
        self.twin = Entries::new();
        for record in &self.records {
            apply(&mut self.twin, record);
        }
    }

    pub(super) fn init(&mut self, expected: Option<Producer>) -> Result<Producer, TxnError> {
        let mut init = Init { id: "t".into(), timeout_ms: 60_000, expected, fresh_id: None };
        loop {
            match self.ask(Ask::Init(init.clone())) {
                Answer::Init(answer) => return answer,
                Answer::NeedsProducerId => {
                    assert_eq!(init.fresh_id, None, "asked for once");
                    self.ids += 1;
                    init.fresh_id = Some(self.ids);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn add(&mut self, producer: Producer, rules: Rules, place: Place) -> Result<u64, TxnError> {
        match self.ask(Ask::Add(Add { id: "t".into(), producer, places: vec![place], rules })) {
            Answer::Add(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn verify(&mut self, producer: Producer, places: Vec<Place>) -> Result<Verified, TxnError> {
        match self.ask(Ask::Verify(Add { id: "t".into(), producer, places, rules: Rules::V1 })) {
            Answer::Verify(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn end(
        &mut self,
        producer: Producer,
        rules: Rules,
        commit: bool,
    ) -> Result<Producer, TxnError> {
        let mut end = End { id: "t".into(), producer, commit, rules, fresh_id: None };
        loop {
            match self.ask(Ask::End(end.clone())) {
                Answer::End(answer) => return answer,
                Answer::NeedsProducerId => {
                    assert_eq!(end.fresh_id, None, "asked for once");
                    self.ids += 1;
                    end.fresh_id = Some(self.ids);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// What the writer of markers is given; nothing while its question is parked.
    pub(super) fn decided(&mut self) -> Vec<Decided> {
        match self.try_ask(Ask::Decided) {
            Some(Answer::Decided(decided)) => decided,
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn written(&mut self, number: u64) {
        assert_eq!(self.ask(Ask::Written { id: "t".into(), number }), Answer::Written);
    }

    /// Writes what is decided.
    fn complete(&mut self) -> Decided {
        let mut decided = self.decided();
        assert_eq!(decided.len(), 1);
        let decided = decided.remove(0);
        self.written(decided.number);
        decided
    }

    pub(super) fn state(&self) -> State {
        self.machine.entries["t"].state
    }

    fn set_epoch(&mut self, epoch: i16) -> Producer {
        let id = self.machine.entries["t"].producer.id;
        let record = Record::Initialised {
            id: "t".into(),
            producer: Producer { id, epoch },
            last_epoch: NO_EPOCH,
            timeout_ms: 60_000,
            at: self.now.wall_ms,
        };
        self.machine.replay(&record);
        apply(&mut self.twin, &record);
        self.records.push(record);
        Producer { id, epoch }
    }
}

pub(super) fn place(n: i32) -> Place {
    (TopicId(Uuid::from_u128(1)), n)
}

fn raised(producer: Producer, by: i16) -> Producer {
    Producer { epoch: producer.epoch + by, ..producer }
}

#[test]
fn a_new_producer_fences_the_one_before() {
    let mut rig = Rig::new();
    let first = rig.init(None).expect("initialised");
    assert_eq!(first, Producer { id: 101, epoch: 0 });
    let second = rig.init(None).expect("initialised");
    assert_eq!(second, raised(first, 1));
    assert_eq!(rig.add(first, Rules::V1, place(0)), Err(TxnError::Fenced));
    assert_eq!(rig.verify(first, vec![place(0)]), Err(TxnError::Fenced));
    assert_eq!(rig.end(first, Rules::V1, true), Err(TxnError::Fenced));
    assert_eq!(rig.end(first, Rules::V2, false), Err(TxnError::Fenced));
    assert_eq!(rig.init(Some(first)), Err(TxnError::Fenced));
    assert_eq!(rig.add(second, Rules::V1, place(0)), Ok(1));
    let other = Producer { id: 9, epoch: second.epoch };
    assert_eq!(rig.add(other, Rules::V1, place(0)), Err(TxnError::UnknownProducerId));
    assert_eq!(rig.end(other, Rules::V1, true), Err(TxnError::UnknownProducerId));
    assert_eq!(rig.end(other, Rules::V2, true), Err(TxnError::UnknownProducerId));
    assert_eq!(rig.init(Some(other)), Err(TxnError::Fenced));
}

#[test]
fn timeouts_out_of_bounds_and_empty_ids_are_refused() {
    let mut rig = Rig::new();
    for (id, timeout_ms, error) in [
        ("", 1, TxnError::InvalidRequest),
        ("t", 0, TxnError::InvalidTimeout),
        ("t", -1, TxnError::InvalidTimeout),
        ("t", 900_001, TxnError::InvalidTimeout),
    ] {
        let init = Init { id: id.into(), timeout_ms, expected: None, fresh_id: None };
        assert_eq!(rig.ask(Ask::Init(init)), Answer::Init(Err(error)), "{timeout_ms}");
    }
    let init = Init { id: "t".into(), timeout_ms: 900_000, expected: None, fresh_id: Some(5) };
    assert_eq!(rig.ask(Ask::Init(init)), Answer::Init(Ok(Producer { id: 5, epoch: 0 })));
}

#[test]
fn by_rules_1_the_epoch_stays_and_only_the_same_outcome_again_is_done() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    for (number, commit) in [(1, true), (2, false)] {
        assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(number));
        assert_eq!(rig.add(p, Rules::V1, place(1)), Ok(number));
        let records = rig.records.len();
        assert_eq!(rig.add(p, Rules::V1, place(1)), Ok(number));
        assert_eq!(rig.records.len(), records, "what is added is not added again");
        let verified = rig.verify(p, vec![place(1), place(2)]).expect("verified");
        assert_eq!(verified, Verified { number, places: [place(1)].into() });

        assert_eq!(rig.end(p, Rules::V1, commit), Ok(p));
        assert_eq!(rig.end(p, Rules::V1, commit), Err(TxnError::Concurrent));
        assert_eq!(rig.end(p, Rules::V1, !commit), Err(TxnError::InvalidState));
        assert_eq!(rig.add(p, Rules::V1, place(2)), Err(TxnError::Concurrent));
        assert_eq!(rig.verify(p, vec![place(0)]), Err(TxnError::Concurrent));
        assert_eq!(rig.init(None), Err(TxnError::Concurrent));
        let decided = rig.complete();
        assert_eq!((decided.producer, decided.commit, decided.number), (p, commit, number));
        assert_eq!(decided.places, [place(0), place(1)]);
        assert_eq!(rig.state(), if commit { State::CompleteCommit } else { State::CompleteAbort });
        assert_eq!(rig.end(p, Rules::V1, commit), Ok(p));
        assert_eq!(rig.end(p, Rules::V1, !commit), Err(TxnError::InvalidState));
        let verified = rig.verify(p, vec![place(0)]).expect("verified");
        assert!(verified.places.is_empty(), "its transaction is over");
    }
    rig.init(None).expect("initialised");
    let p = raised(p, 1);
    assert_eq!(rig.end(p, Rules::V1, false), Err(TxnError::InvalidState), "none was begun");
}

#[test]
fn by_rules_2_each_end_raises_the_epoch_and_a_retry_is_known_by_the_epoch_before() {
    for commit in [true, false] {
        let mut rig = Rig::new();
        let p = rig.init(None).expect("initialised");
        assert_eq!(rig.end(p, Rules::V2, true), Err(TxnError::InvalidState), "nothing to commit");
        assert_eq!(rig.add(p, Rules::V2, place(0)), Ok(1));
        let next = rig.end(p, Rules::V2, commit).expect("ended");
        assert_eq!(next, raised(p, 1));
        assert_eq!(rig.end(p, Rules::V2, commit), Err(TxnError::Concurrent));
        assert_eq!(rig.end(p, Rules::V2, !commit), Err(TxnError::InvalidState));
        // The producer was told before the markers were written: it may be faster than they are, and is not fenced for that.
        assert_eq!(rig.end(next, Rules::V2, commit), Err(TxnError::Concurrent));
        assert_eq!(rig.end(next, Rules::V2, !commit), Err(TxnError::Concurrent));
        assert_eq!(rig.end(raised(next, 1), Rules::V2, false), Err(TxnError::Fenced));
        assert_eq!(rig.add(p, Rules::V2, place(0)), Err(TxnError::Fenced));
        assert_eq!(rig.add(next, Rules::V2, place(0)), Err(TxnError::Concurrent));
        assert_eq!(rig.complete().producer, next, "the marker has the raised epoch");

        assert_eq!(rig.end(p, Rules::V2, commit), Ok(next), "asked again");
        assert_eq!(rig.end(p, Rules::V2, !commit), Err(TxnError::InvalidState));
        assert_eq!(rig.end(next, Rules::V2, true), Err(TxnError::InvalidState), "nothing to commit");
        let after = rig.end(next, Rules::V2, false).expect("an empty one");
        assert_eq!((after, rig.state()), (raised(next, 1), State::CompleteAbort));
        assert!(rig.decided().iter().all(|d| d.places.is_empty()), "no partition took part");
        assert_eq!(rig.end(p, Rules::V2, commit), Err(TxnError::Fenced), "two ends ago");
        assert_eq!(rig.add(after, Rules::V2, place(1)), Ok(3));
    }
}

#[test]
fn an_empty_one_may_be_aborted_by_rules_2() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    assert_eq!(rig.end(p, Rules::V2, false), Ok(raised(p, 1)));
    assert_eq!(rig.state(), State::CompleteAbort);
    assert_eq!(rig.end(p, Rules::V2, false), Ok(raised(p, 1)), "asked again");
}

#[test]
fn a_new_producer_aborts_what_the_one_before_left_open() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    assert_eq!(rig.init(None), Err(TxnError::Concurrent));
    assert_eq!(rig.init(None), Err(TxnError::Concurrent));
    let decided = rig.complete();
    assert_eq!((decided.producer, decided.commit), (raised(p, 1), false));
    assert_eq!(rig.init(None), Ok(raised(p, 2)));
    assert_eq!(rig.init(Some(p)), Err(TxnError::Fenced));
}

#[test]
fn a_producer_that_goes_on_after_an_error_gets_the_next_epoch_once() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    let next = rig.init(Some(p)).expect("its own");
    assert_eq!(next, raised(p, 1));
    assert_eq!(rig.init(Some(p)), Ok(next), "the answer was lost");
    assert_eq!(rig.init(Some(next)), Ok(raised(next, 1)));
    assert_eq!(rig.init(Some(p)), Err(TxnError::Fenced));
    let zombie = raised(next, 1);
    let newer = rig.init(None).expect("initialised");
    assert_eq!(rig.init(Some(zombie)), Err(TxnError::Fenced), "a newer producer started");
    assert_eq!(rig.add(newer, Rules::V1, place(0)), Ok(1));
    assert_eq!(rig.init(Some(zombie)), Err(TxnError::Fenced), "and its transaction goes on");
    assert_eq!(rig.state(), State::Ongoing);
    assert_eq!(rig.init(Some(newer)), Err(TxnError::Concurrent));
    assert_eq!(rig.complete().producer, raised(newer, 1));
    assert_eq!(rig.init(Some(newer)), Ok(raised(newer, 1)), "fenced by itself, it goes on");
}

#[test]
fn epochs_end_with_another_producer_id() {
    let mut rig = Rig::new();
    rig.init(None).expect("initialised");
    let last = rig.set_epoch(i16::MAX - 1);
    let next = rig.init(Some(last)).expect("another id");
    assert_eq!(next, Producer { id: 102, epoch: 0 });
    assert_eq!(rig.init(Some(last)), Ok(next), "the answer was lost");
    let last = rig.set_epoch(i16::MAX - 1);
    assert_eq!(rig.init(None), Ok(Producer { id: 103, epoch: 0 }));
    assert_eq!(rig.init(Some(last)), Err(TxnError::Fenced));

    let last = rig.set_epoch(i16::MAX - 1);
    assert_eq!(rig.add(last, Rules::V2, place(0)), Ok(1));
    let next = rig.end(last, Rules::V2, true).expect("ended");
    assert_eq!(next, Producer { id: 104, epoch: 0 });
    assert_eq!(rig.end(next, Rules::V2, false), Err(TxnError::Concurrent), "its new id is known already");
    assert_eq!(rig.add(next, Rules::V2, place(0)), Err(TxnError::Concurrent));
    assert_eq!(rig.init(Some(next)), Err(TxnError::Concurrent));
    let decided = rig.complete();
    assert_eq!(decided.producer, raised(last, 1), "markers are of the id that wrote");
    assert_eq!(rig.end(last, Rules::V2, true), Ok(next), "asked again");
    assert_eq!(rig.end(last, Rules::V2, false), Err(TxnError::InvalidState));
    assert_eq!(rig.add(next, Rules::V2, place(0)), Ok(2));

    let last = rig.set_epoch(i16::MAX - 1);
    assert_eq!(rig.add(last, Rules::V1, place(0)), Ok(3));
    assert_eq!(rig.init(None), Err(TxnError::Concurrent));
    assert_eq!(rig.complete().producer.epoch, i16::MAX, "one epoch is left to fence by");
    assert_eq!(rig.init(None), Ok(Producer { id: 105, epoch: 0 }));
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_under_a_raised_epoch() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    rig.advance(30_000);
    assert_eq!(rig.add(p, Rules::V1, place(1)), Ok(1), "more partitions give no more time");
    rig.advance(29_999);
    assert_eq!(rig.state(), State::Ongoing);
    rig.advance(1);
    assert_eq!(rig.state(), State::PrepareAbort);
    let decided = rig.complete();
    assert_eq!((decided.producer, decided.commit), (raised(p, 1), false));
    assert_eq!(rig.end(p, Rules::V1, true), Err(TxnError::Fenced));
    assert_eq!(rig.add(p, Rules::V1, place(0)), Err(TxnError::Fenced));
    assert_eq!(rig.init(Some(p)), Ok(raised(p, 1)), "its producer may go on");
    rig.advance(1_000_000);
    assert_eq!(rig.state(), State::Empty);
}

#[test]
fn a_transaction_that_ended_in_time_is_left_alone() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    rig.advance(50_000);
    assert_eq!(rig.end(p, Rules::V1, true), Ok(p));
    rig.complete();
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(2));
    rig.advance(59_999);
    assert_eq!(rig.state(), State::Ongoing, "each has its own time");
    rig.advance(1);
    assert_eq!(rig.state(), State::PrepareAbort);
}

#[test]
fn a_coordinator_that_died_goes_on_from_its_records() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    rig.restart();
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    rig.advance(40_000);
    rig.restart();
    rig.advance(19_999);
    assert_eq!(rig.state(), State::Ongoing, "its time goes on");
    assert_eq!(rig.end(p, Rules::V1, true), Ok(p));
    rig.restart();
    assert_eq!(rig.decided().len(), 1);
    rig.restart();
    let decided = rig.complete();
    assert!(decided.commit, "decided, it is handed out until it is complete");
    rig.restart();
    assert!(rig.decided().is_empty());
    assert_eq!(rig.state(), State::CompleteCommit);

    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(2));
    rig.now.wall_ms += 100_000;
    rig.restart();
    rig.advance(0);
    assert_eq!(rig.state(), State::PrepareAbort, "its time was over while nobody coordinated");
}

#[test]
fn the_writer_is_told_at_once_and_an_old_completion_completes_nothing() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    assert_eq!(rig.try_ask(Ask::Decided), None, "parked");
    let mut out = Outcome::default();
    let end = End { id: "t".into(), producer: p, commit: true, rules: Rules::V1, fresh_id: None };
    rig.machine.handle(Ticket(1_000), Ask::End(end), rig.now, &mut out);
    let replies = rig.take(out);
    assert!(replies.iter().any(|(_, a)| matches!(a, Answer::Decided(d) if d.len() == 1)), "{replies:?}");
    rig.written(1);
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(2));
    assert_eq!(rig.end(p, Rules::V1, false), Ok(p));
    rig.written(1);
    assert_eq!(rig.state(), State::PrepareAbort);
    rig.written(2);
    assert_eq!(rig.state(), State::CompleteAbort);
}

#[test]
fn ids_expire_when_no_transaction_is_open() {
    let mut rig = Rig::new();
    let p = rig.init(None).expect("initialised");
    let week_ms = 7 * 24 * 3600 * 1000;
    rig.now.wall_ms += week_ms - 1;
    assert_eq!(rig.ask(Ask::Sweep), Answer::Sweep);
    assert_eq!(rig.ask(Ask::Describe { id: "t".into() }), {
        let (state, started_at) = (State::Empty, -1);
        Answer::Describe(Some(Described {
            state,
            producer: p,
            timeout_ms: 60_000,
            started_at,
            places: vec![],
        }))
    });
    assert_eq!(rig.add(p, Rules::V1, place(0)), Ok(1));
    rig.now.wall_ms += week_ms;
    assert_eq!(rig.ask(Ask::Sweep), Answer::Sweep);
    assert_eq!(rig.state(), State::Ongoing);
    assert_eq!(rig.end(p, Rules::V1, true), Ok(p));
    rig.complete();
    rig.now.wall_ms += week_ms;
    assert_eq!(rig.ask(Ask::Sweep), Answer::Sweep);
    assert_eq!(rig.ask(Ask::Describe { id: "t".into() }), Answer::Describe(None));
    assert_eq!(rig.add(p, Rules::V1, place(0)), Err(TxnError::UnknownProducerId));
}
