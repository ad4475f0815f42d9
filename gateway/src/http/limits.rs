//! What one client may take of the HTTP port, and for how long.

use std::time::Duration;

/// Bounds of the HTTP port. Together they end every connection, whatever its client does or leaves undone.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    /// Connections that are open at once; for a further one another ends, or it waits.
    pub(super) connections: usize,
    /// How long a client that is slow with a body or an answer holds its place when others wait for one.
    pub(super) patience: Duration,
    /// Time for the head of a request, from the moment from which it can come: an idle connection ends with it too.
    pub(super) head: Duration,
    /// Time for its body.
    pub(super) body: Duration,
    /// Bytes of its body.
    pub(super) body_bytes: usize,
    /// Age at which a connection takes no further request.
    pub(super) age: Duration,
    /// Time that it has from then on to get its last answer to its client. A split may take 30 s.
    pub(super) last_answer: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 128,
            patience: Duration::from_secs(5),
            head: Duration::from_secs(30),
            body: Duration::from_secs(30),
            body_bytes: 1 << 20,
            age: Duration::from_secs(600),
            last_answer: Duration::from_secs(60),
        }
    }
}
