//! The journal's queue: what is to be written, in the order it was pushed.
//!
//! Its length is bounded by its users: windows and memory permits are taken before anything is reserved and submitted.

use crate::codec::entry::Entry;
use crate::drive::{FenceError, Run, TailDesc, WriteError};
use crate::types::{Address, LeafId, LogletId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot;

/// Something for the journal thread to do.
pub(crate) enum Item {
    Run {
        leaf: LeafId,
        run: Run,
    },
    Fence {
        leaf: LeafId,
        window: u32,
        reply: oneshot::Sender<Result<TailDesc, FenceError>>,
    },
    Repair {
        leaf: LeafId,
        address: Address,
        entry: Entry,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    Trim {
        leaf: LeafId,
        below: Address,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    Discard {
        loglet: LogletId,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    /// Finish what is queued, then end the thread.
    Close {
        reply: oneshot::Sender<Result<(), String>>,
    },
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    asleep: bool,
    /// The thread ends without finishing what is queued.
    abandoned: bool,
}

/// See the module head.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

/// Why the thread woke up.
pub(crate) enum Woken {
    Work,
    Idle,
    Abandoned,
}

impl Queue {
    /// Adds to the end; wakes the thread if it sleeps. The item comes back when no thread serves the queue any more.
    #[allow(clippy::result_large_err, reason = "the item is moved either way")]
    pub(crate) fn push(&self, item: Item) -> Result<(), Item> {
        let mut state = self.state.lock();
        if state.abandoned {
            return Err(item);
        }
        state.items.push_back(item);
        if state.asleep {
            state.asleep = false;
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Items that wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Moves all that is queued to `into`; sleeps while there is nothing, at most `limit`.
    pub(crate) fn take(&self, into: &mut VecDeque<Item>, limit: Option<Duration>) -> Woken {
        let mut state = self.state.lock();
        loop {
            if state.abandoned {
                return Woken::Abandoned;
            }
            if !state.items.is_empty() {
                std::mem::swap(into, &mut state.items);
                return Woken::Work;
            }
            state.asleep = true;
            match limit {
                None => self.wake.wait(&mut state),
                Some(limit) if self.wake.wait_for(&mut state, limit).timed_out() => {
                    state.asleep = false;
                    if state.items.is_empty() && !state.abandoned {
                        return Woken::Idle;
                    }
                }
                Some(_) => {}
            }
            state.asleep = false;
        }
    }

    /// Makes the thread end at once; answers what nobody will do any more.
    pub(crate) fn abandon(&self) -> VecDeque<Item> {
        let mut state = self.state.lock();
        state.abandoned = true;
        self.wake.notify_one();
        std::mem::take(&mut state.items)
    }
}

impl Item {
    /// Answers that the disk cannot do it.
    pub(crate) fn refuse(self, why: &str) {
        match self {
            Item::Run { run, .. } => run.ticket.complete(Err(WriteError::Unavailable(why.to_owned()))),
            // A receiver that is gone waits for no answer.
            Item::Fence { reply, .. } => drop(reply.send(Err(FenceError::Unavailable(why.to_owned())))),
            Item::Repair { reply, .. } | Item::Trim { reply, .. } | Item::Discard { reply, .. } => {
                drop(reply.send(Err(WriteError::Unavailable(why.to_owned()))));
            }
            Item::Close { reply } => drop(reply.send(Err(why.to_owned()))),
        }
    }
}
