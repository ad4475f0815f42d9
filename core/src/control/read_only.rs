//! A store that is only read: of a node whose start it could not record.

use super::command::{Command, Reply};
use super::state::State;
use super::watch::Watch;
use super::{ControlError, Store, Written};
use futures_util::future::{BoxFuture, ready};
use std::sync::Arc;

/// Reads another store and refuses every change, whatever that store would do.
pub struct ReadOnly {
    /// What is read.
    pub store: Arc<dyn Store>,
    /// Why nothing is changed.
    pub why: String,
}

impl std::fmt::Debug for ReadOnly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadOnly({})", self.why)
    }
}

impl Store for ReadOnly {
    fn propose(&self, _: Vec<Command>) -> BoxFuture<'_, Result<Vec<Reply>, ControlError>> {
        Box::pin(ready(Err(ControlError::Full(self.why.clone()))))
    }

    fn read(&self) -> Arc<State> {
        self.store.read()
    }

    fn read_latest(&self) -> BoxFuture<'_, Result<Arc<State>, ControlError>> {
        self.store.read_latest()
    }

    fn watch(&self, from: u64) -> Watch {
        self.store.watch(from)
    }

    fn written(&self) -> Written {
        self.store.written()
    }
}
