//! The runtime against a log that crashes, refuses, and answers late.

use super::fold::{self, Fold};
use super::*;
use crate::api::{EntryKind, OwnEntry};
use crate::error::{AppendError, ReadFailure};
use crate::testing::lines::Lines;
use crate::types::Offset;
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Level;

/// A map of counters; a caller may wait until a counter reaches a value.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    durable: Shared<BTreeMap<String, u64>>,
    waiting: Vec<(Ticket, String, u64)>,
    expire_at: Option<u64>,
    resumed: Vec<u64>,
}

#[derive(Debug)]
pub(crate) enum Ask {
    Add(String, u64),
    Get(String),
    WaitFor(String, u64),
    AddLater(String, u64),
}

impl Machine for Counters {
    type Event = Ask;
    type Reply = u64;
    type Record = (String, u64);
    type Image = Shared<BTreeMap<String, u64>>;
    type Settings = ();
    const VERSION: u8 = 1;

    fn new(_: &()) -> Counters {
        Counters::default()
    }

    fn handle(&mut self, ticket: Ticket, event: Ask, now: Now, out: &mut Outcome<Counters>) {
        match event {
            Ask::Add(key, n) => {
                out.emit(self, (key.clone(), n));
                out.reply(ticket, self.get(&key));
                let (ready, waiting) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|(_, key, at)| self.durable.get(key).is_some_and(|v| v >= at));
                self.waiting = waiting;
                let ready: Vec<(Ticket, String, u64)> = ready;
                for (ticket, key, _) in ready {
                    out.reply(ticket, self.get(&key));
                }
            }
            Ask::Get(key) => out.reply(ticket, self.get(&key)),
            Ask::WaitFor(key, at) => self.waiting.push((ticket, key, at)),
            Ask::AddLater(key, ms) => {
                self.expire_at = Some(now.mono_ms + ms);
                self.waiting.push((ticket, key, 1));
            }
        }
    }

    fn passes(&self, event: &Ask, _: Now) -> bool {
        matches!(event, Ask::Get(_))
    }

    fn resume(&mut self, now: Now) {
        self.resumed.push(now.mono_ms);
        self.expire_at = self.expire_at.map(|at| at.max(now.mono_ms + 5));
    }

    fn expire(&mut self, now: Now, out: &mut Outcome<Counters>) {
        if self.expire_at.is_some_and(|at| at <= now.mono_ms) {
            self.expire_at = None;
            for (ticket, key, _) in std::mem::take(&mut self.waiting) {
                out.emit(self, (key.clone(), 1));
                out.reply(ticket, self.get(&key));
            }
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.expire_at
    }

    fn replay(&mut self, (key, n): &(String, u64)) {
        *self.durable.to_mut().entry(key.clone()).or_default() += n;
    }

    fn loaded(&mut self, _: Now) {}

    fn capture(&self) -> Self::Image {
        self.durable.clone()
    }

    fn restore(&mut self, image: Self::Image) {
        self.durable = image;
    }
}

impl Counters {
    fn get(&self, key: &str) -> u64 {
        self.durable.get(key).copied().unwrap_or(0)
    }
}

/// What the next append does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing stored, an error.
    Refuse,
    /// Stored, but the answer is lost.
    LoseAnswer,
    /// Stored only when the next append comes, after the answer was lost: a late write.
    Late,
    /// Nothing stored, another leader.
    Deposed,
    /// Never answers.
    Hang,
}

#[derive(Default)]
struct Disk {
    start: Offset,
    entries: Vec<(EntryKind, Bytes)>,
    late: Vec<OwnEntry>,
    faults: Vec<Fault>,
    appends: usize,
    epoch: i32,
    slow: Duration,
    /// What is taken; everything unless it says otherwise.
    room: Option<Room>,
    refused: usize,
}

#[derive(Clone, Default)]
struct FakeLog(Arc<Mutex<Disk>>);

impl Disk {
    fn end(&self) -> Offset {
        self.start + self.entries.len() as Offset
    }
    fn store(&mut self, entries: Vec<OwnEntry>) -> Offset {
        let first = self.end();
        self.entries.extend(entries.into_iter().map(|e| (e.kind, e.payload)));
        first
    }
}

impl PartitionLog for FakeLog {
    async fn append(&self, entries: Vec<OwnEntry>) -> Result<Offset, AppendError> {
        let slow = self.0.lock().slow;
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let fault = {
            let mut disk = self.0.lock();
            if let Some(Room::Nothing(why)) = disk.room.clone() {
                disk.refused += 1;
                return Err(AppendError::Storage(why));
            }
            disk.appends += 1;
            let late = std::mem::take(&mut disk.late);
            disk.store(late);
            match disk.faults.pop() {
                None => return Ok(disk.store(entries)),
                Some(Fault::LoseAnswer) => {
                    disk.store(entries);
                    Fault::LoseAnswer
                }
                Some(Fault::Late) => {
                    disk.late = entries;
                    Fault::Late
                }
                Some(other) => other,
            }
        };
        match fault {
            Fault::Refuse => Err(AppendError::Storage("disk full".into())),
            Fault::LoseAnswer | Fault::Late => Err(AppendError::TimedOut),
            Fault::Deposed => Err(AppendError::NotLeader { leader: None }),
            Fault::Hang => std::future::pending().await,
        }
    }

    async fn read(&self, from: Offset, max: usize) -> Result<Vec<(Offset, EntryKind, Bytes)>, ReadFailure> {
        let disk = self.0.lock();
        if from < disk.start {
            return Err(ReadFailure::OutOfRange { got: from, log_start: disk.start, end: disk.end() });
        }
        let skip = (from - disk.start) as usize;
        let entries = disk.entries.iter().skip(skip).take(max.min(3)).cloned().enumerate();
        Ok(entries.map(|(n, (kind, payload))| (from + n as Offset, kind, payload)).collect())
    }

    fn room(&self) -> Room {
        self.0.lock().room.clone().unwrap_or(Room::Records)
    }

    fn is_full(&self) -> bool {
        self.room() != Room::Records
    }

    async fn trim(&self, before: Offset) -> Result<(), ReadFailure> {
        let mut disk = self.0.lock();
        let drop = (before - disk.start) as usize;
        disk.entries.drain(..drop);
        disk.start = before;
        Ok(())
    }

    fn bounds(&self) -> Result<LogBounds, ReadFailure> {
        let disk = self.0.lock();
        Ok(LogBounds { start: disk.start, end: disk.end(), epoch: disk.epoch })
    }
}

fn options() -> Options {
    Options {
        snapshot_bytes: 64,
        load_patience: Duration::from_secs(5),
        load_retry: Duration::from_millis(1),
        voice: Voice::default(),
    }
}

fn start(log: &FakeLog) -> Partition<Counters> {
    Partition::start(log.clone(), (), options())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime()
        .block_on(async { tokio::time::timeout(Duration::from_secs(20), future).await.expect("no hang") })
}

/// The state that a reader of the log finds.
fn folded(log: &FakeLog) -> BTreeMap<String, u64> {
    let disk = log.0.lock();
    let mut fold = Fold::new(disk.start);
    for (n, (kind, payload)) in disk.entries.iter().enumerate() {
        fold.push(disk.start + n as Offset, *kind, payload.clone()).expect("a whole log");
    }
    let folded = fold.finish::<Counters>(&()).expect("a whole log");
    BTreeMap::clone(&folded.machine.durable)
}

#[test]
fn answers_after_restart_are_those_before_it() {
    block_on(async {
        let log = FakeLog::default();
        let first = start(&log);
        for n in 1..=40 {
            assert_eq!(first.call(Ask::Add("a".into(), 1)).await, Ok(n));
        }
        first.stop().await;
        assert_eq!(first.call(Ask::Get("a".into())).await, Err(Unavailable::Stopping));
        let second = start(&log);
        assert_eq!(second.call(Ask::Get("a".into())).await, Ok(40));
    });
}

#[test]
fn snapshots_raise_the_log_start_and_carry_the_state() {
    block_on(async {
        let log = FakeLog::default();
        let first = start(&log);
        for n in 0..400u64 {
            first.call(Ask::Add(format!("key{}", n % 5), 1)).await.expect("stored");
        }
        // Snapshots are encoded beside the calls: on a busy machine they come later than these.
        let until = Instant::now() + Duration::from_secs(20);
        let bounds = || {
            let disk = log.0.lock();
            (disk.start, disk.entries.len())
        };
        while (bounds().0 <= 200 || bounds().1 >= 200) && Instant::now() < until {
            first.call(Ask::Add("more".into(), 1)).await.expect("stored");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        first.stop().await;
        let (start_at, kept) = bounds();
        assert!(start_at > 200, "log start {start_at}");
        assert!(kept < 200, "{kept} entries kept");
        let second = start(&log);
        for n in 0..5 {
            assert_eq!(second.call(Ask::Get(format!("key{n}"))).await, Ok(80));
        }
    });
}

#[test]
fn a_snapshot_of_many_pieces_comes_back_whole() {
    let big: BTreeMap<String, u64> = (0..60_000).map(|n| (format!("key{n:08}"), n)).collect();
    let pieces = fold::snapshot::<Counters>(&Shared::new(big.clone()), 0).expect("encodes");
    assert!(pieces.len() > 2, "{} pieces", pieces.len());
    let mut fold = Fold::new(0);
    for (n, piece) in pieces.into_iter().enumerate() {
        fold.push(n as Offset, piece.kind, piece.payload).expect("a piece");
    }
    let machine = fold.finish::<Counters>(&()).expect("whole").machine;
    assert_eq!(*machine.durable, big);
}

#[test]
fn a_cut_snapshot_counts_for_nothing_and_a_trimmed_log_without_one_is_refused() {
    let image = Shared::new((0..60_000).map(|n| (format!("key{n:08}"), n)).collect::<BTreeMap<_, _>>());
    let record = fold::control::<Counters>(&[("a".to_owned(), 7)]).expect("encodes");
    let pieces = fold::snapshot::<Counters>(&image, 1).expect("encodes");
    let mut fold = Fold::new(0);
    fold.push(0, record.kind, record.payload).expect("a record");
    for (n, piece) in pieces.iter().take(pieces.len() - 1).enumerate() {
        fold.push(1 + n as Offset, piece.kind, piece.payload.clone()).expect("a piece");
    }
    let machine = fold.finish::<Counters>(&()).expect("whole").machine;
    assert_eq!(*machine.durable, BTreeMap::from([("a".to_owned(), 7)]));

    let mut trimmed = Fold::new(5);
    trimmed.push(5, pieces[1].kind, pieces[1].payload.clone()).expect("a piece");
    let refused = trimmed.finish::<Counters>(&()).expect_err("no state to start from");
    assert_eq!(refused, Damage::SnapshotMissing { start: 5 });
}

#[test]
fn what_cannot_be_loaded_is_said_until_it_can() {
    block_on(async {
        let log = FakeLog::default();
        log.0.lock().start = 5;
        let partition = start(&log);
        assert!(matches!(partition.call(Ask::Get("a".into())).await, Err(Unavailable::Storage(_))));
        let why = partition.failing().expect("said");
        assert!(why.contains("starts at 5"), "{why}");
        {
            // As an operator would help: the log from its beginning.
            let mut disk = log.0.lock();
            (disk.start, disk.entries) = (0, Vec::new());
        }
        while partition.call(Ask::Get("a".into())).await != Ok(0) {}
        assert_eq!(partition.failing(), None);
    });
}

#[test]
fn damaged_entries_are_errors() {
    for payload in [&b""[..], &[1], &[2, 1, 0], &[1, 9, 0], &[1, 1, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let mut fold = Fold::new(0);
        fold.push(0, EntryKind::Control, Bytes::copy_from_slice(payload)).expect("gathered");
        let error = fold.finish::<Counters>(&()).map(|_| ()).expect_err("damage");
        assert!(matches!(error, Damage::Entry { offset: 0, .. }), "{error}");
    }
    let mut fold = Fold::new(3);
    assert_eq!(fold.push(4, EntryKind::Control, Bytes::new()), Err(Damage::Gap { got: 4, expected: 3 }));
    assert!(Fold::new(0).push(0, EntryKind::Data, Bytes::new()).is_err());
    assert!(Fold::new(0).push(0, EntryKind::Snapshot, Bytes::from_static(b"short")).is_err());
}

#[test]
fn concurrent_calls_share_appends() {
    block_on(async {
        let log = FakeLog::default();
        log.0.lock().slow = Duration::from_millis(20);
        let partition = Arc::new(Partition::<Counters>::start(
            log.clone(),
            (),
            Options { snapshot_bytes: 1 << 20, ..options() },
        ));
        let calls = (0..200).map(|_| partition.call(Ask::Add("a".into(), 1)));
        let answers = futures_util::future::join_all(calls).await;
        let mut answers: Vec<u64> = answers.into_iter().map(|a| a.expect("stored")).collect();
        answers.sort_unstable();
        assert_eq!(answers, (1..=200).collect::<Vec<_>>());
        assert!(log.0.lock().appends <= 4, "{} appends", log.0.lock().appends);
    });
}

#[test]
fn parked_calls_are_answered_by_later_events_and_by_time() {
    block_on(async {
        let log = FakeLog::default();
        let partition = start(&log);
        let (waited, added) = tokio::join!(partition.call(Ask::WaitFor("a".into(), 3)), async {
            partition.call(Ask::Add("a".into(), 2)).await.expect("stored");
            partition.call(Ask::Add("a".into(), 1)).await
        });
        assert_eq!((waited, added), (Ok(3), Ok(3)));
        assert_eq!(partition.call(Ask::AddLater("b".into(), 5)).await, Ok(1));
        assert_eq!(folded(&log).get("b"), Some(&1));
    });
}

#[test]
fn a_failed_append_answers_everybody_and_rolls_back() {
    for (fault, reason, kept) in [
        (Fault::Refuse, Unavailable::Storage("disk full".into()), 0),
        (Fault::Deposed, Unavailable::NotLeader { leader: None }, 0),
        (Fault::LoseAnswer, Unavailable::Unknown, 5),
        (Fault::Late, Unavailable::Unknown, 5),
    ] {
        block_on(async {
            let log = FakeLog::default();
            let partition = start(&log);
            assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(0));
            log.0.lock().faults.push(fault);
            let (parked, failed) = tokio::join!(
                partition.call(Ask::WaitFor("a".into(), 100)),
                partition.call(Ask::Add("a".into(), 5))
            );
            assert_eq!((parked, failed), (Err(reason.clone()), Err(reason.clone())), "{fault:?}");
            assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(kept), "{fault:?}");
            assert_eq!(partition.call(Ask::Add("a".into(), 1)).await, Ok(kept + 1), "{fault:?}");
        });
    }
}

#[test]
fn while_the_log_takes_no_records_the_state_is_read_nothing_is_decided_and_all_goes_on_when_it_does() {
    let full = || "disk full".to_owned();
    for room in [Room::Freeing(full()), Room::Nothing(full())] {
        block_on(async {
            let log = FakeLog::default();
            let partition = start(&log);
            assert_eq!(partition.call(Ask::Add("a".into(), 5)).await, Ok(5));
            let parked = partition.call(Ask::WaitFor("a".into(), 6));
            let due = partition.call(Ask::AddLater("b".into(), 30));
            let rest = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                log.0.lock().room = Some(room.clone());
                let appends = log.0.lock().appends;
                for _ in 0..20 {
                    let refused = partition.call(Ask::Add("a".into(), 1)).await;
                    assert_eq!(refused, Err(Unavailable::Storage(full())));
                    assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(5));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(partition.call(Ask::Get("b".into())).await, Ok(0), "what is due waits");
                assert_eq!(log.0.lock().appends, appends, "nothing was decided");
                assert_eq!(log.0.lock().refused, 0, "nor tried, nor loaded again");
                log.0.lock().room = None;
                while partition.call(Ask::Add("a".into(), 1)).await.is_err() {}
            };
            let (parked, due, ()) = tokio::join!(parked, due, rest);
            assert_eq!((parked, due), (Ok(6), Ok(1)), "who waited is answered, without a restart");
            assert_eq!(folded(&log), BTreeMap::from([("a".to_owned(), 6), ("b".to_owned(), 1)]));
        });
    }
}

#[test]
fn fifty_partitions_of_a_full_disk_say_so_in_one_line_and_that_they_go_on_in_another() {
    let lines = Lines::default();
    let _logged = tracing::subscriber::set_default(lines.clone());
    block_on(async {
        let (log, unreadable, together) = (FakeLog::default(), FakeLog::default(), Together::of("__groups"));
        let begin = |log: &FakeLog, partition| {
            let voice = Voice { together: together.clone(), partition };
            let load_retry = Duration::from_millis(100);
            Partition::<Counters>::start(log.clone(), (), Options { voice, load_retry, ..options() })
        };
        log.0.lock().room = Some(Room::Freeing("disk full".into()));
        unreadable.0.lock().start = 5;
        let partitions: Vec<_> = (0..50).map(|n| begin(&log, n)).collect();
        let lost: Vec<_> = (50..100).map(|n| begin(&unreadable, n)).collect();
        let asked = partitions.iter().map(|partition| partition.call(Ask::Get("a".into())));
        assert!(futures_util::future::join_all(asked).await.iter().all(|answer| *answer == Ok(0)));
        let mut said = Vec::new();
        while said.len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            said.extend(lines.take());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        said.extend(lines.take());
        assert_eq!(said.len(), 2, "{said:?}");
        // All of them, unless the machine is so slow that some came later than others waited for them.
        for what in ["cannot be loaded", "record nothing until their logs do"] {
            let whole = |line: &str| [what, "__groups", "count="].iter().all(|part| line.contains(part));
            let is_said = |(level, line): &(Level, String)| *level == Level::WARN && whole(line);
            assert!(said.iter().any(is_said), "{what}: {said:?}");
        }
        log.0.lock().room = None;
        (unreadable.0.lock().start, unreadable.0.lock().entries) = (0, Vec::new());
        let mut said = Vec::new();
        while said.len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            said.extend(lines.take());
        }
        assert!(said.iter().all(|(level, _)| *level == Level::INFO), "{said:?}");
        drop((partitions, lost));
    });
}

#[test]
fn the_log_of_a_full_disk_is_loaded_without_taking_room_of_it_however_often() {
    block_on(async {
        let log = FakeLog::default();
        let first = start(&log);
        assert_eq!(first.call(Ask::Add("a".into(), 5)).await, Ok(5));
        first.stop().await;
        let (refused, appends) = (Unavailable::Storage("disk full".into()), log.0.lock().appends);
        for room in [Room::Freeing("disk full".into()), Room::Nothing("disk full".into())] {
            log.0.lock().room = Some(room);
            let again = start(&log);
            assert_eq!(again.call(Ask::Get("a".into())).await, Ok(5));
            assert_eq!(again.call(Ask::Add("a".into(), 1)).await, Err(refused.clone()));
            again.stop().await;
        }
        assert_eq!(log.0.lock().appends, appends);
        assert_eq!(log.0.lock().refused, 0);
        let last = start(&log);
        assert_eq!(last.call(Ask::Get("a".into())).await, Ok(5));
        log.0.lock().room = None;
        while last.call(Ask::Add("a".into(), 1)).await != Ok(6) {}
        last.stop().await;
        let (first, appends) = (start(&log), log.0.lock().appends);
        assert_eq!(first.call(Ask::Get("a".into())).await, Ok(6));
        assert_eq!(log.0.lock().appends, appends + 1, "behind a barrier where there is room");
    });
}

#[test]
fn another_leader_epoch_means_loading_again() {
    block_on(async {
        let log = FakeLog::default();
        let partition = start(&log);
        assert_eq!(partition.call(Ask::Add("a".into(), 1)).await, Ok(1));
        {
            let mut disk = log.0.lock();
            let record = fold::control::<Counters>(&[("a".to_owned(), 10)]).expect("encodes");
            disk.store(vec![record]);
            disk.epoch += 1;
        }
        assert_eq!(partition.call(Ask::Get("a".into())).await, Err(Unavailable::NotLeader { leader: None }));
        assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(11));
    });
}

#[test]
fn calls_during_a_long_load_are_told_so() {
    block_on(async {
        let log = FakeLog::default();
        log.0.lock().faults.push(Fault::Hang);
        let options = Options { load_patience: Duration::from_millis(5), ..options() };
        let partition = Partition::<Counters>::start(log, (), options);
        assert_eq!(partition.call(Ask::Get("a".into())).await, Err(Unavailable::Loading));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Adds(Vec<u8>),
    Fault(Fault),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::collection::vec(0u8..4, 1..8).prop_map(Step::Adds),
        2 => prop_oneof![Just(Fault::Refuse), Just(Fault::LoseAnswer), Just(Fault::Late)].prop_map(Step::Fault),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Acknowledged adds are never lost, refused ones never stored, unknown ones stored once or never; the live
    /// answers equal the fold of the log at every step.
    #[test]
    fn an_acknowledged_call_is_never_lost(steps in proptest::collection::vec(step(), 1..40)) {
        let outcome = block_on(async {
            let log = FakeLog::default();
            let mut partition = start(&log);
            let (mut sure, mut unsure) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Fault(fault) => log.0.lock().faults.push(fault),
                    Step::Crash => {
                        partition.stop().await;
                        // What the dead writer had on its way and nobody acknowledged.
                        log.0.lock().late.clear();
                        partition = start(&log);
                    }
                    Step::Adds(keys) => {
                        let calls = keys.iter().map(|k| partition.call(Ask::Add(format!("k{k}"), 1)));
                        for answer in futures_util::future::join_all(calls).await {
                            match answer {
                                Ok(_) => sure += 1,
                                Err(Unavailable::Unknown) => unsure += 1,
                                Err(_) => {}
                            }
                        }
                    }
                }
            }
            log.0.lock().faults.clear();
            let mut live = 0;
            for k in 0..4 {
                live += loop {
                    match partition.call(Ask::Get(format!("k{k}"))).await {
                        Ok(n) => break n,
                        Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                };
            }
            (sure, unsure, live, folded(&log).values().sum::<u64>())
        });
        let (sure, unsure, live, stored) = outcome;
        prop_assert!(live >= sure, "{live} of {sure} acknowledged");
        prop_assert!(live <= sure + unsure, "{live} of at most {}", sure + unsure);
        prop_assert_eq!(live, stored);
    }
}
