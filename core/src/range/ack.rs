//! Who waits for appended batches: one [`Ack`] per request, told by the ranges as entries complete.

use super::lane::{Lane, LaneOf, passes};
use super::park::Sequenced;
use super::primary::Batch;
use crate::error::{AppendError, TopicPartition};
use crate::types::{LogletId, Offset};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

/// Outcome of one batch, as the range knows it when it is sequenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issued {
    /// Numbered; good once durable.
    Ok {
        /// Offset of its first record.
        base_offset: Offset,
        /// The partition's log start.
        log_start: Offset,
        /// Broker time that was stamped, else -1.
        log_append_time: i64,
    },
    /// Refused before it was numbered.
    Err(AppendError),
}

/// Whose batches keep their order: those of one connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(pub u64);

/// Counts a request's batches that are not durable yet and wakes its waiter at the last one.
#[derive(Debug, Default)]
pub struct Ack {
    open: AtomicUsize,
    /// Outcomes that are not those which were fixed first; the last one of a batch holds.
    changed: Mutex<Vec<(usize, Issued)>>,
    doubts: Mutex<Vec<Doubt>>,
    waker: AtomicWaker,
    /// Its request got its answer, or nobody wants one.
    answered: AtomicBool,
    lane: Option<LaneOf>,
}

/// A refusal that is true only if whoever decided it still led its partition then: a primary whose segment was ended meanwhile does not
/// know what its successor took (R6).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Which batch of the request.
    pub index: usize,
    /// Its partition.
    pub at: TopicPartition,
    /// Its place in its producer's order.
    pub sequenced: Option<Sequenced>,
    /// The segment that was open when it was decided.
    pub loglet: LogletId,
}

/// One batch's share in an [`Ack`].
#[derive(Clone, Debug)]
pub struct AckSlot {
    ack: Arc<Ack>,
    index: usize,
}

impl Ack {
    /// A share for batch `index`; it must be resolved once.
    pub fn slot(self: &Arc<Self>, index: usize) -> AckSlot {
        self.open.fetch_add(1, Ordering::AcqRel);
        AckSlot { ack: self.clone(), index }
    }

    /// For a request of a lane.
    pub fn of(lane: &Lane) -> Ack {
        Ack { lane: Some(lane.of()), ..Ack::default() }
    }

    /// Whether all outcomes are known.
    pub fn is_done(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Waits for that; one waiter at a time.
    pub async fn done(&self) {
        poll_fn(|cx| {
            if self.is_done() {
                return Poll::Ready(());
            }
            self.waker.register(cx.waker());
            if self.is_done() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The request gets its answer now: what becomes of its batches is told to nobody.
    pub fn answer(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// A refusal is not to be told before it is confirmed.
    pub(super) fn doubt(&self, doubt: Doubt) {
        self.doubts.lock().push(doubt);
    }

    /// Whether there are refusals to be confirmed.
    pub(super) fn has_doubts(&self) -> bool {
        !self.doubts.lock().is_empty()
    }

    /// Those that are to be confirmed before anything is told.
    pub(super) fn take_doubts(&self) -> Vec<Doubt> {
        std::mem::take(&mut *self.doubts.lock())
    }

    /// The outcomes that changed since, by batch, in order of their changes.
    pub fn take_changed(&self) -> Vec<(usize, Issued)> {
        std::mem::take(&mut *self.changed.lock())
    }
}

impl AckSlot {
    /// The batch is durable.
    pub fn done(self) {
        self.close();
    }

    /// The batch will not be: `error` is its outcome.
    pub fn fail(self, error: AppendError) {
        self.change(Issued::Err(error));
        self.close();
    }

    /// The batch was numbered again: `issued` is its outcome once it is durable.
    pub fn change(&self, issued: Issued) {
        self.ack.changed.lock().push((self.index, issued));
    }

    /// Whether its request was answered, or nobody waits for it.
    pub fn is_answered(&self) -> bool {
        self.ack.answered.load(Ordering::Acquire)
    }

    /// The refusal that follows is not to be told before it is confirmed.
    pub(super) fn doubt(&self, at: TopicPartition, sequenced: Option<Sequenced>, loglet: LogletId) {
        self.ack.doubt(Doubt { index: self.index, at, sequenced, loglet });
    }

    /// The lane of its request.
    pub fn lane(&self) -> Option<LaneId> {
        self.ack.lane.as_ref().map(LaneOf::id)
    }

    /// Whether it is a share of `ack`.
    pub fn is_of(&self, ack: &Arc<Ack>) -> bool {
        Arc::ptr_eq(&self.ack, ack)
    }

    /// A batch that was issued ends without being stored: `error` is its outcome, or, when that passes, what keeps the
    /// order of its lane.
    pub(super) fn refuse(self, at: TopicPartition, batch: &Batch, error: AppendError) {
        let error = match &self.ack.lane {
            Some(lane) if passes(&error) => lane.bar(at, batch),
            _ => error,
        };
        self.fail(error);
    }

    fn close(self) {
        let before = self.ack.open.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a batch was resolved twice");
        if before == 1 {
            self.ack.waker.wake();
        }
    }
}

/// A request's batches: outcomes fixed when they were sequenced, and the ack that says when they hold.
#[derive(Debug)]
pub struct Pending {
    issued: Vec<Issued>,
    ack: Arc<Ack>,
}

impl Pending {
    /// Waits on `ack` for the batches behind `issued`.
    pub fn new(issued: Vec<Issued>, ack: Arc<Ack>) -> Pending {
        Pending { issued, ack }
    }

    /// All outcomes in order; what is not known at `deadline` is `TimedOut`.
    pub async fn wait(mut self, deadline: Instant) -> Vec<Issued> {
        let timed_out = tokio::time::timeout_at(deadline.into(), self.ack.done()).await.is_err();
        if timed_out {
            self.ack.answer();
            return self
                .take()
                .into_iter()
                .map(|one| match one {
                    Issued::Ok { .. } => Issued::Err(AppendError::TimedOut),
                    refused => refused,
                })
                .collect();
        }
        self.take()
    }

    /// All outcomes, if they are known now.
    pub fn try_take(&mut self) -> Option<Vec<Issued>> {
        self.ack.is_done().then(|| self.take())
    }

    fn take(&mut self) -> Vec<Issued> {
        let mut issued = std::mem::take(&mut self.issued);
        for (index, changed) in self.ack.take_changed() {
            if let Some(one) = issued.get_mut(index) {
                *one = changed;
            }
        }
        issued
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.ack.answer();
    }
}

/// What is resolved when a batch completes.
#[derive(Copy, Clone, Debug)]
pub enum Share<'a> {
    /// Taken of the ack when the batch is sequenced.
    New(&'a Arc<Ack>, usize),
    /// Taken before.
    Held(&'a AckSlot),
}

impl Share<'_> {
    /// The share, to be resolved once.
    pub fn take(self) -> AckSlot {
        match self {
            Share::New(ack, index) => ack.slot(index),
            Share::Held(slot) => slot.clone(),
        }
    }
}

/// Acks of which a test made a second one, by where the first is.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Forks {
    acks: std::collections::HashMap<usize, Arc<Ack>>,
    pub(super) lanes: super::lane::fork::LaneForks,
}

#[cfg(test)]
impl Forks {
    pub(crate) fn of(&mut self, ack: &Arc<Ack>) -> Arc<Ack> {
        let lane = ack.lane.as_ref().map(|lane| lane.fork(&mut self.lanes));
        let fork = || {
            Arc::new(Ack {
                open: AtomicUsize::new(ack.open.load(Ordering::Acquire)),
                changed: Mutex::new(ack.changed.lock().clone()),
                doubts: Mutex::new(ack.doubts.lock().clone()),
                waker: AtomicWaker::new(),
                answered: AtomicBool::new(ack.answered.load(Ordering::Acquire)),
                lane,
            })
        };
        self.acks.entry(Arc::as_ptr(ack) as usize).or_insert_with(fork).clone()
    }
}

#[cfg(test)]
impl AckSlot {
    pub(crate) fn fork(&self, forks: &mut Forks) -> AckSlot {
        AckSlot { ack: forks.of(&self.ack), index: self.index }
    }
}
