//! The striped drive: address `a` to child `a mod n`, there at `a / n` (log-contracts 1.3). Wider than one disk, no safer.
//!
//! Owns the translation of addresses; the merging itself is `merge`. All children must answer.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::merge::{
    Limits, Order, stripe_below, stripe_of, stripe_parent, stripe_window, striped_merge, union,
};
use crate::drive::{
    AdmitError, Caps, Completion, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery,
    SealId, Stored, TailDesc, Ticket, WriteError,
};
use crate::types::{Address, Offset, Partition};
use futures_util::future::{BoxFuture, try_join_all};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module head.
pub struct Striped {
    children: Vec<Arc<dyn LogDrive>>,
}

impl Striped {
    /// A drive over `children`, in this order for ever.
    ///
    /// Programmer error: no children.
    pub fn new(children: Vec<Arc<dyn LogDrive>>) -> Striped {
        assert!(!children.is_empty(), "a striped drive has a child");
        Striped { children }
    }

    fn child(&self, address: Address) -> (usize, &Arc<dyn LogDrive>, Address) {
        let (stripe, local) = stripe_of(address, self.children.len());
        (stripe, &self.children[stripe], local)
    }
}

/// One run's ticket at its stripes: good once all parts are, failed with the first that fails.
struct Parts {
    state: Mutex<(usize, Option<Ticket>)>,
}

/// A part's ticket; turns the addresses of its errors into the parent's.
struct Part {
    parts: Arc<Parts>,
    stripe: usize,
    stripes: usize,
}

impl Completion for Part {
    fn complete(&self, outcome: Result<(), WriteError>) {
        let ticket = {
            let (missing, ticket) = &mut *self.parts.state.lock();
            *missing -= usize::from(outcome.is_ok());
            if outcome.is_ok() && *missing > 0 { None } else { ticket.take() }
        };
        if let Some(ticket) = ticket {
            ticket.complete(outcome.map_err(|e| outer(e, self.stripe, self.stripes)));
        }
    }
}

fn outer(error: WriteError, stripe: usize, stripes: usize) -> WriteError {
    match error {
        WriteError::Trimmed(local) => WriteError::Trimmed(stripe_parent(stripe, local, stripes)),
        WriteError::Conflict(local) => WriteError::Conflict(stripe_parent(stripe, local, stripes)),
        WriteError::Sealed | WriteError::Unavailable(_) => error,
    }
}

impl LogDrive for Striped {
    fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        self.children.iter().try_for_each(|child| child.admit(bytes, purpose))
    }

    fn lacks_room(&self) -> bool {
        self.children.iter().any(|child| child.lacks_room())
    }

    fn is_behind(&self) -> bool {
        self.children.iter().any(|child| child.is_behind())
    }

    fn submit(&self, run: Run) {
        let stripes = self.children.len();
        let touched = run.entries.len().min(stripes);
        if touched == 0 {
            unreachable!("a run holds one entry at least");
        }
        let parts = Arc::new(Parts { state: Mutex::new((touched, Some(run.ticket))) });
        let mut pieces: SmallVec<[SmallVec<[Entry; 2]>; 4]> = SmallVec::new();
        pieces.resize_with(touched, SmallVec::new);
        for (i, entry) in run.entries.into_iter().enumerate() {
            pieces[i % stripes].push(entry);
        }
        for (i, entries) in pieces.into_iter().enumerate() {
            let (stripe, child, first) = self.child(run.first.plus(i as u64));
            let ticket = Ticket::new(Arc::new(Part { parts: parts.clone(), stripe, stripes }));
            child.submit(Run { first, entries, ticket });
        }
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        Box::pin(async move {
            let (_, child, local) = self.child(address);
            Ok(match child.read(local).await? {
                // The next address lies on another stripe, of which this one knows nothing.
                Read::Gone { .. } => Read::Gone { next: address.plus(1) },
                read => read,
            })
        })
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        let answers: Option<Vec<_>> = self.children.iter().map(|child| child.list_cached(query)).collect();
        Some(union(Order::Offset, Limits { bytes: query.max_bytes, entries: query.max_entries }, answers?))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let answers = try_join_all(self.children.iter().map(|child| child.list(query))).await?;
            let limits = Limits { bytes: query.max_bytes, entries: query.max_entries };
            Ok(union(Order::Offset, limits, answers))
        })
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let answers = try_join_all(self.children.iter().map(|child| child.scan(query))).await?;
            let limits = Limits { bytes: usize::MAX, entries: query.max_entries };
            Ok(union(Order::Address, limits, answers))
        })
    }

    fn scan_heads(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let answers = try_join_all(self.children.iter().map(|child| child.scan_heads(query))).await?;
            let limits = Limits { bytes: usize::MAX, entries: query.max_entries };
            Ok(union(Order::Address, limits, answers))
        })
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        Box::pin(async move {
            let asked = self.children.iter().map(|child| child.last_of(kind, flags, below));
            Ok(try_join_all(asked).await?.into_iter().flatten().max())
        })
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        Box::pin(async move {
            let window = stripe_window(k, self.children.len());
            let answers = try_join_all(self.children.iter().map(|child| child.weak_tail(window))).await?;
            Ok(striped_merge(k, &answers))
        })
    }

    fn fence(&self, k: u32, by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        Box::pin(async move {
            let window = stripe_window(k, self.children.len());
            let answers = try_join_all(self.children.iter().map(|child| child.fence(window, by))).await?;
            Ok(striped_merge(k, &answers))
        })
    }

    fn thin(&self) -> BTreeSet<u64> {
        let stripes = self.children.len();
        let numbered = self.children.iter().enumerate();
        let outer = |stripe, local| stripe_parent(stripe, Address(local), stripes).0;
        numbered.flat_map(|(s, child)| child.thin().into_iter().map(move |local| outer(s, local))).collect()
    }

    fn repair(
        &self,
        address: Address,
        entry: Entry,
        below: Address,
        by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let (stripe, child, local) = self.child(address);
            let stripes = self.children.len();
            let repaired = child.repair(local, entry, stripe_below(stripe, below, stripes), by).await;
            repaired.map_err(|e| outer(e, stripe, stripes))
        })
    }

    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let stripes = self.children.len();
            let numbered = self.children.iter().enumerate();
            let trims = numbered.map(|(s, child)| child.trim(stripe_below(s, below, stripes)));
            try_join_all(trims).await?;
            Ok(())
        })
    }

    fn note_committed(&self, committed: Address) {
        self.children.iter().for_each(|child| child.note_committed(committed));
    }

    fn note_log_starts(&self, starts: &[(Partition, Offset)]) {
        self.children.iter().for_each(|child| child.note_log_starts(starts));
    }

    fn caps(&self) -> Caps {
        let caps = || self.children.iter().map(|child| child.caps());
        Caps { fence: caps().all(|c| c.fence), durable: caps().all(|c| c.durable) }
    }
}
