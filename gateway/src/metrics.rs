//! Counters of the Kafka port. Owns names and numbers; the HTTP module turns them into text.

use crate::protocol::dispatch::Close;
use crate::protocol::table::{Row, TABLE};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the latency buckets, in microseconds.
pub const LATENCY_BUCKETS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000];

/// Counters of one API.
#[derive(Debug, Default)]
pub struct ApiMetrics {
    /// Requests taken up.
    pub requests: AtomicU64,
    /// Requests that ended their connection.
    pub errors: AtomicU64,
    /// Bytes of requests.
    pub bytes_in: AtomicU64,
    /// Bytes of responses.
    pub bytes_out: AtomicU64,
    /// Microseconds from the last byte of the request to its reply being ready, summed.
    pub latency_us: AtomicU64,
    /// Requests by latency: one per bound of [`LATENCY_BUCKETS_US`], then the rest. Not cumulative.
    pub latency: [AtomicU64; LATENCY_BUCKETS_US.len() + 1],
}

/// Why connections ended, as [`Metrics::closed`] counts them.
pub const CLOSE_REASONS: [&str; 17] = [
    "client",
    "io",
    "idle",
    "stopping",
    "too_many",
    "too_many_per_ip",
    "stalled",
    "unfinished",
    "frame_size",
    "malformed",
    "unknown_api",
    "unsupported_version",
    "produce_held",
    "unacknowledged_failure",
    "internal",
    "panic",
    "other",
];

/// Counters of the Kafka port.
#[derive(Debug)]
pub struct Metrics {
    apis: Vec<ApiMetrics>,
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections accepted so far.
    pub accepted: AtomicU64,
    /// Times that a connection could not be accepted.
    pub accept_failures: AtomicU64,
    /// Bytes of requests held in memory now.
    pub request_bytes: AtomicU64,
    /// Bytes of records held in memory now for answers that are not written.
    pub response_bytes: AtomicU64,
    closed: [AtomicU64; CLOSE_REASONS.len()],
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// All zero.
    pub fn new() -> Metrics {
        Metrics {
            apis: TABLE.iter().map(|_| ApiMetrics::default()).collect(),
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            accept_failures: AtomicU64::new(0),
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            closed: Default::default(),
        }
    }

    /// The counters of a row.
    pub fn api(&self, row: &'static Row) -> Option<&ApiMetrics> {
        TABLE.binary_search_by_key(&row.key, |r| r.key).ok().and_then(|at| self.apis.get(at))
    }

    /// Counts the end of a connection by its reason.
    pub fn count_closed(&self, reason: &str) {
        let at = CLOSE_REASONS.iter().position(|r| *r == reason).unwrap_or(CLOSE_REASONS.len() - 1);
        if let Some(counter) = self.closed.get(at) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Connections that ended, by reason.
    pub fn closed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        CLOSE_REASONS.iter().zip(&self.closed).map(|(reason, n)| (*reason, n.load(Relaxed)))
    }

    /// Every API with its counters.
    pub fn apis(&self) -> impl Iterator<Item = (&'static Row, &ApiMetrics)> {
        TABLE.iter().zip(&self.apis)
    }
}

impl ApiMetrics {
    /// Counts a request that was answered.
    pub fn count_reply(&self, took: Duration, bytes: usize) {
        let us = took.as_micros().min(u128::from(u64::MAX)) as u64;
        let at = LATENCY_BUCKETS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.latency.get(at) {
            bucket.fetch_add(1, Relaxed);
        }
        self.latency_us.fetch_add(us, Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a request that ended its connection.
    pub fn count_error(&self, _why: &Close) {
        self.errors.fetch_add(1, Relaxed);
    }
}
