//! One segment as its range's primary and readers hold it: its drive, its tail once recorded, where partitions begin.

use crate::drive::LogDrive;
use crate::types::{Address, LogletId, Offset};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A segment of a range. Shared by the primary, readers and background work.
pub struct Segment {
    /// The loglet.
    pub loglet: LogletId,
    /// Virtual address of its address 0.
    pub base: u64,
    /// Its drive tree.
    pub drive: Arc<dyn LogDrive>,
    /// Broker ms when it was opened.
    pub opened_at: i64,
    tail: OnceLock<Address>,
    starts: OnceLock<Arc<[Start]>>,
    bytes: AtomicU64,
}

/// What a partition had before a segment: the difference of two is what the segment between them holds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Its next offset.
    pub offset: Offset,
    /// Payload bytes stored for it so far, in the range's whole life.
    pub bytes: u64,
    /// Its largest timestamp so far, ms; -1 without.
    pub max_timestamp: i64,
}

impl Segment {
    /// A segment whose tail is known when it is sealed already.
    pub fn new(
        loglet: LogletId,
        base: u64,
        drive: Arc<dyn LogDrive>,
        opened_at: i64,
        tail: Option<Address>,
    ) -> Segment {
        let segment = Segment {
            loglet,
            base,
            drive,
            opened_at,
            tail: OnceLock::new(),
            starts: OnceLock::new(),
            bytes: AtomicU64::new(0),
        };
        if let Some(tail) = tail {
            segment.seal(tail);
        }
        segment
    }

    /// The recorded tail, for good; `None` while the segment is open.
    pub fn tail(&self) -> Option<Address> {
        self.tail.get().copied()
    }

    /// Notes the tail that the chain has recorded.
    pub fn seal(&self, tail: Address) {
        let noted = self.tail.get_or_init(|| tail);
        assert_eq!(*noted, tail, "a recorded tail never changes");
    }

    /// Where the range's partitions stood when the segment began, if that was read already.
    pub fn starts(&self) -> Option<Arc<[Start]>> {
        self.starts.get().cloned()
    }

    /// Notes where the partitions stood when the segment began.
    pub fn note_starts(&self, starts: Arc<[Start]>) {
        self.starts.get_or_init(|| starts);
    }

    /// Bytes written in this process, headers included.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add_bytes(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} base {} tail {:?})", self.loglet, self.base, self.tail())
    }
}
