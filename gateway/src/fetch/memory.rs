//! Memory of answers to Fetch, over all connections of the node.
//!
//! Owns the bytes of records that answers hold in memory, from before they are read until the answer is written or its
//! connection ends; records that are sent from files are not among them. Nobody waits for it and nobody is refused: where
//! little is left, an answer is smaller. A fetch has at most a [`SHARE`] of what others leave, and [`LEAST`] in any case,
//! so the limit is passed by that and by one batch for each connection at most.

use crate::metrics::Metrics;
use rangeway_core::api::ReadMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// One of so many parts of what others leave.
const SHARE: u64 = 8;
/// Bytes that an answer may have in any case.
const LEAST: u64 = 64 << 10;

/// The node's budget for answers.
#[derive(Debug)]
pub struct Memory {
    limit: u64,
    /// Its `response_bytes` is the sum of all.
    metrics: Arc<Metrics>,
}

/// Bytes of one answer, accounted for until this is dropped.
#[derive(Debug)]
pub struct Held {
    memory: Arc<Memory>,
    /// What was read.
    kept: u64,
    /// Room for what is being read.
    taken: u64,
    short: bool,
}

impl Memory {
    /// At most `limit` bytes.
    pub fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Memory> {
        Arc::new(Memory { limit: limit as u64, metrics })
    }

    /// An answer that holds nothing yet.
    pub fn answer(self: &Arc<Self>) -> Held {
        Held { memory: self.clone(), kept: 0, taken: 0, short: false }
    }

    fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.metrics.response_bytes.fetch_add(bytes, AcqRel);
        }
    }

    fn sub(&self, bytes: u64) {
        if bytes > 0 {
            self.metrics.response_bytes.fetch_sub(bytes, AcqRel);
        }
    }
}

impl Held {
    /// Whether there was ever less room than was wanted.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether anything is held.
    pub fn is_empty(&self) -> bool {
        self.kept + self.taken == 0
    }
}

impl ReadMemory for Held {
    fn take(&mut self, wanted: usize) -> usize {
        self.memory.sub(std::mem::take(&mut self.taken));
        let all = self.memory.metrics.response_bytes.load(Acquire);
        let others = all.saturating_sub(self.kept);
        let share = self.memory.limit.saturating_sub(others) / SHARE;
        let room = share.max(LEAST).saturating_sub(self.kept).min(wanted as u64);
        self.short |= room < wanted as u64;
        self.taken = room;
        self.memory.add(room);
        usize::try_from(room).unwrap_or(wanted)
    }

    fn keep(&mut self, bytes: usize) {
        self.memory.add(bytes as u64);
        self.memory.sub(std::mem::take(&mut self.taken));
        self.kept += bytes as u64;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.sub(self.kept + self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn an_answer_has_an_eighth_of_what_others_leave_and_the_least_in_any_case() {
        let metrics = Arc::new(Metrics::new());
        let memory = Memory::new(64 * MIB, metrics.clone());
        let held = || metrics.response_bytes.load(Acquire);
        let mut first = memory.answer();
        assert_eq!(first.take(MIB), MIB);
        first.keep(100_000);
        assert_eq!((held(), first.is_short()), (100_000, false), "what is not kept is free at once");
        assert_eq!(first.take(50 * MIB), 8 * MIB - 100_000);
        first.keep(8 * MIB - 100_000);
        assert!(first.is_short());
        assert_eq!(first.take(1), 0);
        let mut second = memory.answer();
        assert_eq!(second.take(50 * MIB), 7 * MIB);
        let others: Vec<Held> = (0..200)
            .map(|_| {
                let mut held = memory.answer();
                held.take(50 * MIB);
                held
            })
            .collect();
        assert!(held() <= (64 * MIB + 200 * LEAST as usize) as u64);
        let mut late = memory.answer();
        assert_eq!(late.take(50 * MIB) as u64, LEAST);
        late.keep(3 * MIB);
        assert_eq!(late.take(50 * MIB), 0, "it has had its first batch");
        drop((first, second, others, late));
        assert_eq!(held(), 0);
    }
}
