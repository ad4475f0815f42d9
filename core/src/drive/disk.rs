//! The disk drive: one leaf of a [`crate::store::DiskStore`].

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery, SealId,
    Stored, TailDesc, WriteError,
};
use crate::store::Inner;
use crate::store::leaf::Leaf;
use crate::store::query::Payloads;
use crate::store::queue::Item;
use crate::store::tail::stored;
use crate::types::{Address, Offset, Partition};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// See the module head.
pub struct DiskDrive {
    store: Arc<Inner>,
    leaf: Arc<Leaf>,
}

impl DiskDrive {
    pub(crate) fn new(store: Arc<Inner>, leaf: Arc<Leaf>) -> DiskDrive {
        DiskDrive { store, leaf }
    }

    /// Lists where that may block. When nobody waits for the answer any more, what was not read is not.
    fn list_stored(&self, query: ListQuery) -> BoxFuture<'static, Result<Vec<Stored>, ReadError>> {
        let (leaf, store) = (self.leaf.clone(), self.store.clone());
        async move {
            let waited_for = Arc::new(());
            let waits = Arc::downgrade(&waited_for);
            let list = move || leaf.list(&query, &store.directories, &|| waits.strong_count() > 0);
            let task = AbortOnDropHandle::new(tokio::task::spawn_blocking(list));
            let listed = task.await;
            drop(waited_for);
            listed.unwrap_or_else(|e| Err(ReadError::Unavailable(format!("read task ended: {e}"))))
        }
        .boxed()
    }

    /// Reads files where that may block.
    fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Leaf, &Inner) -> Result<T, ReadError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ReadError>> {
        let (leaf, store) = (self.leaf.clone(), self.store.clone());
        async move {
            let task = tokio::task::spawn_blocking(move || read(&leaf, &store));
            task.await.unwrap_or_else(|e| Err(ReadError::Unavailable(format!("read task ended: {e}"))))
        }
        .boxed()
    }
}

impl DiskDrive {
    /// The first run of addresses `[from, to)` that is missing although a later one is there. One sequencer submits to
    /// a leaf in address order and a journal keeps that order, so for its leaves this means that records were lost.
    pub fn first_missing(&self) -> Option<(u64, u64)> {
        self.leaf.state.read().registers.holes().next()
    }

    /// What stands in the window of the last `k` addresses.
    ///
    /// Errors: something is lost that may have stood there.
    pub fn standing(&self, k: u32) -> Result<TailDesc, ReadError> {
        let state = self.leaf.state.read();
        match &state.suspect {
            // A hole may be a lost entry: no vote (a hole is a negative vote).
            Some(why) => Err(ReadError::Damaged(format!("segment {}: {why}", self.leaf.id))),
            None => Ok(state.registers.tail(k)),
        }
    }
}

impl LogDrive for DiskDrive {
    fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        if let Some(why) = &self.leaf.state.read().suspect {
            return Err(AdmitError::Dead(format!("segment {}: {why}", self.leaf.id)));
        }
        self.store.admit(bytes, purpose)
    }

    fn submit(&self, run: Run) {
        self.store.push(Item::Run { leaf: self.leaf.id, run });
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        let recent = self.leaf.state.read().tail.get(address.0).map(stored);
        match recent {
            Some(entry) => ready(Ok(Read::Value(entry))).boxed(),
            None => self.blocking(move |leaf, store| leaf.read(address, &store.directories)),
        }
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        self.leaf.state.read().tail.list(query)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        match self.list_cached(&query) {
            Some(entries) => ready(Ok(entries)).boxed(),
            None => self.list_stored(query),
        }
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        self.blocking(move |leaf, store| leaf.scan(&query, Payloads::All, &store.directories))
    }

    fn scan_heads(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        self.blocking(move |leaf, store| leaf.scan(&query, Payloads::OfOwnKinds, &store.directories))
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        self.blocking(move |leaf, store| leaf.last_of(kind, flags, below, &store.directories))
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        ready(self.standing(k)).boxed()
    }

    fn fence(&self, k: u32, _by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        let (reply, answer) = oneshot::channel();
        self.store.push(Item::Fence { leaf: self.leaf.id, window: k, reply });
        let ended = || Err(FenceError::Unavailable("the journal thread ended".into()));
        async move { answer.await.unwrap_or_else(|_| ended()) }.boxed()
    }

    fn repair(
        &self,
        address: Address,
        entry: Entry,
        below: Address,
        _by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        if address >= below {
            let why = format!("repair of address {address}, the tail is {below}");
            return ready(Err(WriteError::Unavailable(why))).boxed();
        }
        // A copy takes nothing of what fences and deletions need: what has no room stays degraded, and is recorded so.
        if let Err(full) = self.admit(entry.encoded_len(), Purpose::Records) {
            return ready(Err(WriteError::Unavailable(full.to_string()))).boxed();
        }
        let (reply, answer) = oneshot::channel();
        self.store.push(Item::Repair { leaf: self.leaf.id, address, entry, reply });
        written(answer)
    }

    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        let (reply, answer) = oneshot::channel();
        self.store.push(Item::Trim { leaf: self.leaf.id, below, reply });
        written(answer)
    }

    fn note_committed(&self, _committed: Address) {}

    fn note_log_starts(&self, starts: &[(Partition, Offset)]) {
        let mut state = self.leaf.state.write();
        for (partition, start) in starts {
            let known = state.log_starts.entry(*partition).or_insert(*start);
            *known = (*known).max(*start);
        }
        drop(state);
        self.store.check_extents();
    }

    fn caps(&self) -> Caps {
        Caps { fence: true, durable: true }
    }
}

fn written(answer: oneshot::Receiver<Result<(), WriteError>>) -> BoxFuture<'static, Result<(), WriteError>> {
    let ended = || Err(WriteError::Unavailable("the journal thread ended".into()));
    async move { answer.await.unwrap_or_else(|_| ended()) }.boxed()
}
