//! Memory of received requests, over all connections of the node.
//!
//! ```text
//! limit   [ requests in progress: at least half ................ | large frames that are coming: at most half ]
//! ```
//! Owns the bytes of whole requests in progress, and of large frames that are still coming: those that need more than an ordinary
//! chunk, which every connection has. So frames that do not end take nothing from requests, nor from small frames, which are
//! read as long as requests leave room; which of the large ones grow or end is [`Coming`]'s to decide. A connection looks before it
//! takes, so each number passes its limit by one step of one connection at most, and by one large frame at a time that may
//! end above it. Waiting is not reading.

use super::coming::Coming;
use super::receive::Unfinished;
use crate::metrics::Metrics;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How often a frame that waits for memory looks whether others are to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The node's budget for requests.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Bytes of whole requests.
    whole: AtomicU64,
    /// Its `request_bytes` is the sum of all.
    metrics: Arc<Metrics>,
    freed: Notify,
    frames: Mutex<Frames>,
    numbers: AtomicU64,
}

/// Large frames that are coming.
#[derive(Debug)]
struct Frames {
    coming: Coming,
    /// What tells a connection that its frame is ended.
    ended: HashMap<u64, CancellationToken>,
    looked_at: Instant,
}

/// Bytes of a whole request, accounted for until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

/// A large frame that is coming, until this is dropped.
#[derive(Debug)]
pub struct Arrival {
    budget: Arc<Budget>,
    number: u64,
    held: u64,
    waits: bool,
    ended: CancellationToken,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Budget> {
        let limit = limit as u64;
        Arc::new(Budget {
            limit,
            whole: AtomicU64::new(0),
            metrics,
            freed: Notify::new(),
            frames: Mutex::new(Frames {
                coming: Coming::new(limit / 2),
                ended: HashMap::new(),
                looked_at: Instant::now(),
            }),
            numbers: AtomicU64::new(0),
        })
    }

    /// Whether the next request may be read: requests have half of the memory to themselves.
    pub fn has_room(&self) -> bool {
        self.whole.load(Acquire) < self.limit / 2 || self.metrics.request_bytes.load(Acquire) < self.limit
    }

    /// Accounts for `bytes` of a whole request. Does not wait: look for room first.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let mut charge = Charge { budget: self.clone(), bytes: 0 };
        charge.add(bytes);
        charge
    }

    /// A large frame of which the first bytes are here.
    pub fn arrival(self: &Arc<Self>) -> Arrival {
        let number = self.numbers.fetch_add(1, Relaxed);
        let ended = CancellationToken::new();
        self.frames.lock().ended.insert(number, ended.clone());
        Arrival { budget: self.clone(), number, held: 0, waits: false, ended }
    }

    /// Waits until the next request may be read.
    pub async fn wait(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    fn free(&self) {
        self.freed.notify_waiters();
    }
}

impl Charge {
    /// Accounts for more.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.budget.whole.fetch_add(bytes as u64, AcqRel);
        self.budget.metrics.request_bytes.fetch_add(bytes as u64, AcqRel);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let all = self.budget.metrics.request_bytes.fetch_sub(self.bytes, AcqRel);
        let whole = self.budget.whole.fetch_sub(self.bytes, AcqRel);
        if whole >= self.budget.limit / 2 || all >= self.budget.limit {
            self.budget.free();
        }
    }
}

impl Arrival {
    /// Whether the frame may be read on; `grows`: that takes more memory than it has.
    pub fn may_read(&mut self, frame: &Unfinished, grows: bool) -> bool {
        let (room, now) = (self.budget.has_room(), Instant::now());
        let may = {
            let coming = &mut self.budget.frames.lock().coming;
            if !grows {
                coming.reads(self.number, now);
            }
            !grows || coming.may_grow(self.number, frame.missing as u64, room, now)
        };
        if std::mem::replace(&mut self.waits, !may) && may {
            self.budget.free(); // it is the turn of the next one that waits
        }
        may
    }

    /// The frame is not read, for a reason that is not its client's.
    pub fn rests(&self) {
        self.budget.frames.lock().coming.rests(self.number);
    }

    /// What the frame holds now.
    pub fn holds(&mut self, frame: &Unfinished) {
        let held = frame.held as u64;
        self.budget.metrics.request_bytes.fetch_add(held, AcqRel);
        self.budget.metrics.request_bytes.fetch_sub(self.held, AcqRel);
        self.held = held;
        let coming = &mut self.budget.frames.lock().coming;
        coming.holds(self.number, held, frame.missing as u64, Instant::now());
    }

    /// So many bytes of it came.
    pub fn came(&self, bytes: usize) {
        self.budget.frames.lock().coming.came(self.number, bytes as u64, Instant::now());
    }

    /// Waits until it is worth looking again whether the frame may grow. Ends frames that keep this one from it.
    pub async fn wait(&self) {
        // When it is over, something was given back or is to be looked for.
        let _ = tokio::time::timeout(LOOK_EVERY, self.budget.freed.notified()).await;
        let now = Instant::now();
        let mut frames = self.budget.frames.lock();
        if now.duration_since(frames.looked_at) < LOOK_EVERY {
            return;
        }
        frames.looked_at = now;
        for number in frames.coming.ends(now) {
            if let Some(ended) = frames.ended.get(&number) {
                ended.cancel();
            }
        }
    }

    /// Completes when the frame is to end so that others get on.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.budget.metrics.request_bytes.fetch_sub(self.held, AcqRel);
        let mut frames = self.budget.frames.lock();
        frames.coming.leaves(self.number);
        frames.ended.remove(&self.number);
        drop(frames);
        self.budget.free();
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
        let charge = budget.charge(150);
        assert!(budget.wait().now_or_never().is_none());
        let waiter = tokio::spawn({
            let budget = budget.clone();
            async move { budget.wait().await }
        });
        tokio::task::yield_now().await;
        drop(charge);
        waiter.await.unwrap();
        assert_eq!(budget.metrics.request_bytes.load(Acquire), 0);
    }

    #[test]
    fn frames_that_come_take_nothing_of_what_requests_need() {
        let budget = Budget::new(8 << 20, Arc::new(Metrics::new()));
        let half = || {
            let frame = Unfinished { whole: 50 << 20, held: 1 << 20, missing: 49 << 20 };
            let mut arrival = budget.arrival();
            let may = arrival.may_read(&frame, true);
            if may {
                arrival.holds(&frame);
            }
            (may, arrival)
        };
        let large: Vec<_> = (0..6).map(|_| half()).collect();
        let may: Vec<bool> = large.iter().map(|(may, _)| *may).collect();
        assert_eq!(may, [true, true, true, true, true, false], "four within the limit, one above");
        assert!(budget.has_room(), "requests have theirs");
        let requests = budget.charge(5 << 20);
        assert!(!budget.has_room(), "which is not all");
        drop(large);
        assert!(budget.has_room());
        drop(requests);
        assert_eq!(budget.metrics.request_bytes.load(Acquire), 0);
    }
}
