//! The writer of markers, over a coordinator that runs on a log in memory and partitions that fail.

use super::ask::*;
use super::coordinator::{Coordinator, Settings};
use super::coordinator_test::place;
use super::markers::{self, Attempt, Marker, Markers};
use super::record::{Place, Producer, Rules, State};
use bytes::Bytes;
use parking_lot::Mutex;
use rangeway_core::api::{EntryKind, OwnEntry};
use rangeway_core::error::{AppendError, ReadFailure};
use rangeway_core::replicated::{LogBounds, Options, Partition, PartitionLog, Room};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A log in memory, shared by the runs of a coordinator.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(EntryKind, Bytes)>>>);

impl PartitionLog for Log {
    async fn append(&self, entries: Vec<OwnEntry>) -> Result<i64, AppendError> {
        let mut log = self.0.lock();
        let first = log.len() as i64;
        log.extend(entries.into_iter().map(|e| (e.kind, e.payload)));
        Ok(first)
    }
    async fn read(&self, from: i64, max: usize) -> Result<Vec<(i64, EntryKind, Bytes)>, ReadFailure> {
        let log = self.0.lock();
        let entries = log.iter().enumerate().skip(from as usize).take(max);
        Ok(entries.map(|(n, (kind, payload))| (n as i64, *kind, payload.clone())).collect())
    }
    fn room(&self) -> Room {
        Room::Records
    }
    fn is_full(&self) -> bool {
        false
    }
    async fn trim(&self, _before: i64) -> Result<(), ReadFailure> {
        Ok(())
    }
    fn bounds(&self) -> Result<LogBounds, ReadFailure> {
        Ok(LogBounds { start: 0, end: self.0.lock().len() as i64, epoch: 0 })
    }
}

/// Partitions that keep their first marker per transaction.
#[derive(Default)]
struct Partitions {
    written: Mutex<BTreeMap<Place, Vec<Marker>>>,
    /// Attempts that fail, by partition.
    failures: Mutex<BTreeMap<Place, usize>>,
    gone: Mutex<BTreeSet<Place>>,
}

impl Markers for Partitions {
    async fn write(&self, place: Place, marker: Marker) -> Attempt {
        if self.gone.lock().contains(&place) {
            return Attempt::Gone;
        }
        if let Some(left) = self.failures.lock().get_mut(&place).filter(|left| **left > 0) {
            *left -= 1;
            return Attempt::Failed("not now".into());
        }
        self.written.lock().entry(place).or_default().push(marker);
        Attempt::Written
    }
}

struct Run {
    coordinator: Arc<Partition<Coordinator>>,
    writer: JoinHandle<()>,
}

impl Run {
    fn start(log: &Log, partitions: &Arc<Partitions>) -> Run {
        let coordinator = Partition::start(log.clone(), Settings::default(), Options::default());
        let coordinator = Arc::new(coordinator);
        let writer = markers::run(coordinator.clone(), partitions.clone(), Arc::new(Semaphore::new(2)));
        Run { coordinator, writer: tokio::spawn(writer) }
    }

    async fn stop(self) {
        self.coordinator.stop().await;
        self.writer.await.expect("the writer ends with its coordinator");
    }

    /// Initialises, adds partitions, ends.
    async fn transaction(&self, id: &str, places: &[i32], commit: bool) -> Producer {
        let fresh_id = Some(id.len() as i64);
        let init = Init { id: id.into(), timeout_ms: 60_000, expected: None, fresh_id };
        let Ok(Answer::Init(Ok(producer))) = self.coordinator.call(Ask::Init(init)).await else {
            panic!("no producer")
        };
        let places = places.iter().map(|n| place(*n)).collect();
        let add = Add { id: id.into(), producer, places, rules: Rules::V1 };
        assert_eq!(self.coordinator.call(Ask::Add(add)).await, Ok(Answer::Add(Ok(1))));
        let end = End { id: id.into(), producer, commit, rules: Rules::V1, fresh_id: None };
        assert_eq!(self.coordinator.call(Ask::End(end)).await, Ok(Answer::End(Ok(producer))));
        producer
    }

    async fn state(&self, id: &str) -> State {
        match self.coordinator.call(Ask::Describe { id: id.into() }).await {
            Ok(Answer::Describe(Some(described))) => described.state,
            other => panic!("{other:?}"),
        }
    }

    async fn until(&self, id: &str, state: State) {
        while self.state(id).await != state {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("no hang") });
}

#[test]
fn markers_are_written_until_all_are_there_and_gone_partitions_are_left_out() {
    block_on(async {
        let (log, partitions) = (Log::default(), Arc::new(Partitions::default()));
        partitions.failures.lock().insert(place(1), 3);
        partitions.gone.lock().insert(place(2));
        let run = Run::start(&log, &partitions);
        let producer = run.transaction("a", &[0, 1, 2], true).await;
        run.until("a", State::CompleteCommit).await;
        let marker = Marker { producer, number: 1, commit: true, rules: Rules::V1 };
        let written = partitions.written.lock().clone();
        assert_eq!(written, BTreeMap::from([(place(0), vec![marker]), (place(1), vec![marker])]));
        run.stop().await;
    });
}

#[test]
fn a_transaction_that_cannot_be_completed_holds_up_no_other() {
    block_on(async {
        let (log, partitions) = (Log::default(), Arc::new(Partitions::default()));
        partitions.failures.lock().insert(place(0), usize::MAX);
        let run = Run::start(&log, &partitions);
        for id in ["a", "bb", "ccc"] {
            run.transaction(id, &[0, 1], false).await;
        }
        run.transaction("dddd", &[1, 2], true).await;
        run.until("dddd", State::CompleteCommit).await;
        assert_eq!(run.state("a").await, State::PrepareAbort);
        partitions.failures.lock().clear();
        for id in ["a", "bb", "ccc"] {
            run.until(id, State::CompleteAbort).await;
        }
        run.stop().await;
    });
}

#[test]
fn what_was_decided_is_completed_by_the_next_run() {
    block_on(async {
        let (log, partitions) = (Log::default(), Arc::new(Partitions::default()));
        partitions.failures.lock().insert(place(0), usize::MAX);
        let run = Run::start(&log, &partitions);
        run.transaction("a", &[0, 1], true).await;
        run.stop().await;
        partitions.failures.lock().clear();
        let run = Run::start(&log, &partitions);
        run.until("a", State::CompleteCommit).await;
        assert_eq!(partitions.written.lock().get(&place(0)).map(Vec::len), Some(1));
        run.stop().await;
    });
}
