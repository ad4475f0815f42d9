//! Memory of received requests, over all connections of the node.
//!
//! Owns one number: bytes of whole requests in progress and of large frames that are still coming. A connection looks
//! before it reads on, so the number passes its limit by one step of one connection at most. Waiting is not reading.
//!
//! Frames that are still coming could hold all of it with none of them able to end. So one connection at a time may
//! read its frame to the end above the limit, and while there is no room a frame that stalls ends its connection.

use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The node's budget for requests.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Its `request_bytes` is the number.
    metrics: Arc<Metrics>,
    freed: Notify,
    above: Arc<Semaphore>,
}

/// Bytes that are accounted for until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
    /// The right to be above the limit, kept as long as the bytes are.
    _above: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Budget> {
        Arc::new(Budget {
            limit: limit as u64,
            metrics,
            freed: Notify::new(),
            above: Arc::new(Semaphore::new(1)),
        })
    }

    /// Whether reading may go on.
    pub fn has_room(&self) -> bool {
        self.metrics.request_bytes.load(Acquire) < self.limit
    }

    /// Accounts for `bytes`. Does not wait: look for room first.
    pub fn charge(self: &Arc<Self>, bytes: usize, above: Option<OwnedSemaphorePermit>) -> Charge {
        self.metrics.request_bytes.fetch_add(bytes as u64, AcqRel);
        Charge { budget: self.clone(), bytes: bytes as u64, _above: above }
    }

    /// Waits for room, or, within a frame, for the right to read it to its end above the limit.
    pub async fn wait(&self, place: Place) -> Option<OwnedSemaphorePermit> {
        let room = async {
            loop {
                let freed = self.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if self.has_room() {
                    return;
                }
                freed.await;
            }
        };
        match place {
            Place::BetweenFrames => {
                room.await;
                None
            }
            Place::WithinFrame => tokio::select! {
                biased;
                () = room => None,
                // The semaphore is never closed.
                permit = self.above.clone().acquire_owned() => permit.ok(),
            },
        }
    }
}

impl Charge {
    /// Accounts for more.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.budget.metrics.request_bytes.fetch_add(bytes as u64, AcqRel);
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

/// Where a connection stands when it wants to read on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing of the next frame is here.
    BetweenFrames,
    /// A part of a frame is here.
    WithinFrame,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let before = self.budget.metrics.request_bytes.fetch_sub(self.bytes, AcqRel);
        if before >= self.budget.limit {
            self.budget.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn waiting_ends_when_bytes_are_freed() {
        let budget = Budget::new(100, Arc::new(Metrics::new()));
        assert!(budget.has_room());
        let charge = budget.charge(150, None);
        assert!(budget.wait(Place::BetweenFrames).now_or_never().is_none());
        let waiter = tokio::spawn({
            let budget = budget.clone();
            async move { budget.wait(Place::BetweenFrames).await.is_none() }
        });
        tokio::task::yield_now().await;
        drop(charge);
        assert!(waiter.await.unwrap());
        assert_eq!(budget.metrics.request_bytes.load(Acquire), 0);
    }

    #[tokio::test]
    async fn one_frame_at_a_time_may_end_above_the_limit() {
        let budget = Budget::new(100, Arc::new(Metrics::new()));
        let _full = budget.charge(100, None);
        let first = budget.wait(Place::WithinFrame).now_or_never().unwrap();
        assert!(first.is_some());
        assert!(budget.wait(Place::WithinFrame).now_or_never().is_none());
        drop(budget.charge(10, first));
        assert!(budget.wait(Place::WithinFrame).now_or_never().unwrap().is_some());
    }
}
