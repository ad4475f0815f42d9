//! Telling others what changed: the newest state, and which rows changed since the version they know.

use super::Delta;
use super::state::State;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// How many deltas are remembered; a watcher further behind is told "anything may have changed".
const DELTAS_MAX: usize = 16 * 1024;

/// What changed.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The state with the changes in.
    pub state: Arc<State>,
    /// Rows that changed, each once; `None`: the watcher was too far behind, anything may have changed.
    pub deltas: Option<Vec<Delta>>,
}

/// Tells of changes; several states may be told of at once.
#[derive(Debug)]
pub struct Watch {
    known: u64,
    versions: watch::Receiver<u64>,
    published: Arc<Published>,
}

impl Watch {
    /// Waits until the state is newer than the one last told of. `None`: the store is closed.
    pub async fn next(&mut self) -> Option<Changes> {
        let known = self.known;
        self.versions.wait_for(|version| *version > known).await.ok()?;
        let state = self.published.state.load_full();
        let deltas = self.published.history.lock().since(known, state.counters.version);
        self.known = state.counters.version;
        Some(Changes { state, deltas })
    }
}

/// The newest state and a bounded history of deltas.
#[derive(Debug)]
pub(super) struct Published {
    state: ArcSwap<State>,
    history: Mutex<History>,
}

#[derive(Debug)]
struct History {
    /// Everything after this version is remembered.
    from: u64,
    deltas: VecDeque<(u64, Delta)>,
}

impl History {
    fn since(&self, known: u64, until: u64) -> Option<Vec<Delta>> {
        if known < self.from {
            return None;
        }
        let after = self.deltas.iter().filter(|(version, _)| known < *version && *version <= until);
        let rows: BTreeSet<&Delta> = after.map(|(_, delta)| delta).collect();
        Some(rows.into_iter().cloned().collect())
    }

    fn push(&mut self, version: u64, deltas: impl IntoIterator<Item = Delta>) {
        self.deltas.extend(deltas.into_iter().map(|delta| (version, delta)));
        while self.deltas.len() > DELTAS_MAX {
            if let Some((version, _)) = self.deltas.pop_front() {
                self.from = version;
            }
        }
    }
}

impl Published {
    pub(super) fn new(state: State) -> Published {
        let history = History { from: state.counters.version, deltas: VecDeque::new() };
        Published { state: ArcSwap::from_pointee(state), history: Mutex::new(history) }
    }

    pub(super) fn read(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// History first, so that whoever sees the state finds its deltas.
    pub(super) fn publish(&self, state: State, deltas: BTreeSet<Delta>) {
        self.history.lock().push(state.counters.version, deltas);
        self.state.store(Arc::new(state));
    }

    pub(super) fn watch(self: &Arc<Self>, known: u64, versions: watch::Receiver<u64>) -> Watch {
        Watch { known, versions, published: Arc::clone(self) }
    }
}
