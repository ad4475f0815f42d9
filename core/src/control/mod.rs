//! The control plane: which topics, ranges, chains, epochs and nodes there are.
//!
//! Owns the state machine (`command`, `state`, `apply`: pure, deterministic) and the trait under which it is kept
//! ([`Store`]; [`local`] keeps it on one node). Must not know records, clients or how a segment is written.
//!
//! Checked by [`state::State::check`]: INV-CTRL-1 live ranges tile a topic's partitions exactly · INV-CTRL-2 ids are never
//! used twice · INV-CTRL-3 epochs never fall; and of every chain INV-CHAIN-1 and 4. INV-CTRL-4 a proposal is applied whole
//! or not at all, and answered once it is durable. INV-CTRL-5 a range is fencing exactly while one running operation is
//! of it.

pub mod command;
pub mod file;
pub mod local;
pub mod read_only;
pub mod reshard;
pub mod state;

mod apply;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod replace;
mod rows;
mod watch;

#[cfg(test)]
mod apply_test;
#[cfg(test)]
pub(crate) mod local_test;
#[cfg(test)]
mod reshard_test;

pub use apply::Delta;
pub use watch::{Changes, Watch};

use command::{Command, Refusal, Reply};
use futures_util::future::BoxFuture;
use state::State;
use std::sync::Arc;

/// Most commands in one proposal.
pub const PROPOSAL_COMMANDS_MAX: usize = 1000;

/// Keeps the control state.
pub trait Store: Send + Sync + 'static {
    /// Applies commands in order, all of them or none; answers once they are durable, one reply per command.
    /// Dropping the future does not take the commands back.
    ///
    /// Errors: `Refused` (nothing was applied), `Unknown` (may have been applied: read before going on), `Closed`.
    fn propose(&self, commands: Vec<Command>) -> BoxFuture<'_, Result<Vec<Reply>, ControlError>>;

    /// The newest durable state that this node has; cheap, never waits.
    fn read(&self) -> Arc<State>;

    /// A state that holds everything that anyone was told is durable before this call.
    ///
    /// Errors: `Closed`, or `Unknown` while that cannot be known.
    fn read_latest(&self) -> BoxFuture<'_, Result<Arc<State>, ControlError>>;

    /// Tells of every change after version `from` of the state (its `counters.version`).
    fn watch(&self, from: u64) -> Watch;

    /// Why it takes no changes until the process is started again, if that is so.
    fn failed(&self) -> Option<String> {
        None
    }

    /// What it wrote since it was opened.
    fn written(&self) -> Written;
}

/// Durable writes of control state.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Durable transactions.
    pub commits: u64,
    /// Bytes of the keys and values of changed rows.
    pub bytes: u64,
}

/// Why a proposal has no replies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The command at `index` is refused; none of the proposal is applied.
    #[error("{refusal}")]
    Refused {
        /// Which command.
        index: usize,
        /// Why.
        refusal: Refusal,
    },
    /// More commands than one proposal may hold; none is applied.
    #[error("{got} commands in one proposal, {PROPOSAL_COMMANDS_MAX} at most")]
    TooMany {
        /// How many.
        got: usize,
    },
    /// The store failed while it wrote: the proposal may be applied or not, until the store is opened again; it takes
    /// no more until then.
    #[error("control store failed, outcome unknown: {0}")]
    Unknown(String),
    /// The store failed earlier: nothing is applied until it is opened again.
    #[error("control store takes no changes since it failed: {0}")]
    Failed(String),
    /// The disk that holds the store has no room: nothing is applied until it has.
    #[error("no room for a change of the control state: {0}")]
    Full(String),
    /// The store is closed, for good.
    #[error("control store is closed")]
    Closed,
    /// Another process has the store open, until it ends.
    #[error("control store {0} is in use by another process")]
    InUse(String),
    /// Written by a newer version of the program, until that version opens it.
    #[error(
        "control store {path} has format {found}; this program reads up to {known}: start a newer version"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its format.
        found: u64,
        /// The newest known.
        known: u64,
    },
    /// The file is damaged or no control store; until it is restored.
    #[error("control store {path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The file cannot be opened or read.
    #[error("control store {path}: {what}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        what: String,
    },
}

/// The reply of a proposal of one command.
///
/// Errors: as [`Store::propose`].
pub async fn propose_one(store: &dyn Store, command: Command) -> Result<Reply, ControlError> {
    let mut replies = store.propose(vec![command]).await?;
    replies.pop().ok_or(ControlError::Closed)
}
