//! Completing transactions: writes the markers of what a coordinator has decided, and tells it when all are there.
//!
//! A marker is written again until it is durable; a copy that comes late ends nothing, since it carries the number of its
//! transaction. Transactions go on independently of each other; attempts are bounded, not what waits for the next one.

use super::ask::{Answer, Ask, Decided};
use super::coordinator::Coordinator;
use super::record::{Place, Producer, Rules};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use rangeway_core::replicated::{Partition, Unavailable};
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Attempts at a time, of all coordinators of a node.
pub(super) const ATTEMPTS_MAX: usize = 256;
/// Pause after a first failure; doubled with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a marker says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Whose transaction.
    pub(crate) producer: Producer,
    /// Which of it.
    pub(crate) number: u64,
    /// Committed, else aborted.
    pub(crate) commit: bool,
    /// The rules it ended by.
    pub(crate) rules: Rules,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The marker is durable, now or since before.
    Written,
    /// The partition is gone for good: nothing of the transaction is left there.
    Gone,
    /// Not known to be durable; again later.
    Failed(String),
}

/// Where markers are written.
pub(crate) trait Markers: Send + Sync + 'static {
    /// One attempt, of bounded time.
    fn write(&self, place: Place, marker: Marker) -> impl Future<Output = Attempt> + Send;
}

/// Serves one coordinator until it is stopped.
pub(super) async fn run<M: Markers>(
    coordinator: Arc<Partition<Coordinator>>,
    markers: Arc<M>,
    attempts: Arc<Semaphore>,
) {
    // Handed out again when the coordinator was loaded again, while they are still being written.
    let mut in_progress = HashSet::new();
    let mut completing = FuturesUnordered::new();
    loop {
        let question = coordinator.call(Ask::Decided);
        tokio::pin!(question);
        let answer = loop {
            tokio::select! {
                answer = &mut question => break answer,
                Some(key) = completing.next() => {
                    in_progress.remove(&key);
                }
            }
        };
        match answer {
            Ok(Answer::Decided(decided)) => {
                for decided in decided {
                    if in_progress.insert((decided.id.clone(), decided.number)) {
                        completing.push(complete(&coordinator, &*markers, &attempts, decided));
                    }
                }
            }
            Ok(_) => return tracing::error!("a coordinator gave another answer than was asked for"),
            Err(Unavailable::Stopping) => return,
            Err(error) => {
                tracing::debug!(%error, "no decided transactions from a coordinator; again later");
                sleep(PAUSE_MIN).await;
            }
        }
    }
}

/// Writes all markers of a transaction, then says so.
async fn complete<M: Markers>(
    coordinator: &Partition<Coordinator>,
    markers: &M,
    attempts: &Semaphore,
    decided: Decided,
) -> (String, u64) {
    let Decided { id, number, producer, commit, places, rules } = decided;
    let marker = Marker { producer, number, commit, rules };
    join_all(places.into_iter().map(|place| write(markers, attempts, place, marker))).await;
    let mut pause = PAUSE_MIN;
    loop {
        match coordinator.call(Ask::Written { id: id.clone(), number }).await {
            Ok(_) | Err(Unavailable::Stopping) => return (id, number),
            // Loaded again, it hands the transaction out again; or it knows already.
            Err(error) => {
                tracing::debug!(%error, id, "a complete transaction could not be told; again later")
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Until it is written or its partition is gone.
async fn write<M: Markers>(markers: &M, attempts: &Semaphore, place: Place, marker: Marker) {
    let mut pause = PAUSE_MIN;
    loop {
        let attempt = {
            let Ok(_permit) = attempts.acquire().await else { return };
            markers.write(place, marker).await
        };
        match attempt {
            Attempt::Written | Attempt::Gone => return,
            Attempt::Failed(why) => {
                let (topic, partition) = place;
                tracing::debug!(%topic, partition, why, "a transaction marker is not written yet");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
