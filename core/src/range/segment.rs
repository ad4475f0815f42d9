//! One segment as primaries and readers hold it: who wrote it, its drive, its tail once recorded, where partitions begin.

use crate::drive::LogDrive;
use crate::types::{Address, LogletId, Offset, Partition, RangeId, Span};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::OnceCell;

/// Most errors of a segment that are told apart.
const ERRORS_MAX: usize = 1000;

/// The range that wrote a segment. Those that came from it read the segment too.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The range.
    pub range: RangeId,
    /// Its partitions: the segment holds entries of these, and its starts are one for each of them in order.
    pub span: Span,
}

/// Owner and base of a segment: see [`Segment::order`].
pub type Order = (RangeId, u64);

/// A segment of a range. Shared by the primaries of its range and of all that came from it, readers and background work.
pub struct Segment {
    /// Who wrote it.
    pub owner: Owner,
    /// The loglet.
    pub loglet: LogletId,
    /// Virtual address of its address 0 in its owner's log.
    pub base: u64,
    /// Its drive tree.
    pub drive: Arc<dyn LogDrive>,
    /// Broker ms when it was opened.
    pub opened_at: i64,
    /// What was superseded is left out: offsets may be missing between its entries, never after the last of a partition.
    pub compacted: bool,
    tail: OnceLock<Address>,
    starts: OnceLock<Arc<[Start]>>,
    kept: OnceLock<Arc<[u64]>>,
    looked: OnceCell<Arc<[Seen]>>,
    errors: Mutex<HashSet<String>>,
    replaced: AtomicBool,
    bytes: AtomicU64,
}

/// What a segment's readable entries say of one partition.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Offset of the first one.
    pub first: Option<Offset>,
    /// Their payload bytes.
    pub bytes: u64,
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
        owner: Owner,
        loglet: LogletId,
        base: u64,
        drive: Arc<dyn LogDrive>,
        opened_at: i64,
        tail: Option<Address>,
    ) -> Segment {
        let segment = Segment {
            owner,
            loglet,
            base,
            drive,
            opened_at,
            compacted: false,
            tail: OnceLock::new(),
            starts: OnceLock::new(),
            kept: OnceLock::new(),
            looked: OnceCell::new(),
            errors: Mutex::default(),
            replaced: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        };
        if let Some(tail) = tail {
            segment.seal(tail);
        }
        segment
    }

    /// The same segment as one that was compacted, or not.
    pub fn with_compacted(self, compacted: bool) -> Segment {
        Segment { compacted, ..self }
    }

    /// Payload bytes of the owner's partitions in a compacted segment, if they were counted already. Of any other they are
    /// the difference of starts.
    pub fn kept(&self) -> Option<Arc<[u64]>> {
        self.kept.get().cloned()
    }

    /// Notes the payload bytes of the owner's partitions in a compacted segment.
    pub fn note_kept(&self, kept: Arc<[u64]>) {
        assert_eq!(kept.len(), self.owner.span.count(), "one number for each partition of the owner");
        self.kept.get_or_init(|| kept);
    }

    /// What its readable entries say of the owner's partitions, in order: looked up by `look` once, whoever asks.
    pub(super) async fn seen(&self, look: impl Future<Output = Arc<[Seen]>>) -> Arc<[Seen]> {
        self.looked.get_or_init(|| look).await.clone()
    }

    /// What its readable entries say of a partition, if that was looked up already.
    pub(super) fn seen_of(&self, partition: Partition) -> Option<Seen> {
        self.looked.get()?.get(self.owner.span.index(partition)?).copied()
    }

    /// Whether an error of a read is a new one, to be logged: each place is once, not each of its readers.
    pub(super) fn is_new(&self, error: &str) -> bool {
        let mut errors = self.errors.lock();
        errors.len() < ERRORS_MAX && errors.insert(error.to_owned())
    }

    /// Another segment stands in its place: its data may be deleted at any time from here on.
    pub fn replace(&self) {
        self.replaced.store(true, Ordering::SeqCst);
    }

    /// Whether another segment stands in its place. What was read of it before this was asked is good when it is false.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }

    /// Its place among the segments of its topic: of a partition's history, older ones are less. A child's id is larger than
    /// its parents'.
    pub fn order(&self) -> Order {
        (self.owner.range, self.base)
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

    /// Where the owner's partitions stood when the segment began, if that was read already.
    pub fn starts(&self) -> Option<Arc<[Start]>> {
        self.starts.get().cloned()
    }

    /// Where a partition stood when the segment began, if that was read already and the segment is of that partition.
    pub fn start(&self, partition: Partition) -> Option<Start> {
        self.starts.get()?.get(self.owner.span.index(partition)?).copied()
    }

    /// Notes where the owner's partitions stood when the segment began.
    pub fn note_starts(&self, starts: Arc<[Start]>) {
        assert_eq!(starts.len(), self.owner.span.count(), "one start for each partition of the owner");
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
        write!(
            f,
            "Segment({} of {} base {} tail {:?})",
            self.loglet,
            self.owner.range,
            self.base,
            self.tail()
        )
    }
}
