//! The disk drive: one leaf of a [`crate::store::DiskStore`].

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Read, ReadError, Run, ScanQuery, SealId, Stored,
    TailDesc, WriteError,
};
use crate::store::Inner;
use crate::store::leaf::{Found, Leaf};
use crate::store::queue::Item;
use crate::types::{Address, Offset, Partition};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::oneshot;

/// See the module head.
pub struct DiskDrive {
    store: Arc<Inner>,
    leaf: Arc<Leaf>,
}

impl DiskDrive {
    pub(crate) fn new(store: Arc<Inner>, leaf: Arc<Leaf>) -> DiskDrive {
        DiskDrive { store, leaf }
    }
}

/// Runs file reads where they may block.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    match tokio::task::spawn_blocking(read).await {
        Ok(outcome) => outcome,
        Err(e) => Err(ReadError::Unavailable(format!("read task ended: {e}"))),
    }
}

async fn load_all(found: Vec<Found>) -> Result<Vec<Stored>, ReadError> {
    if found.iter().all(|f| matches!(f, Found::Memory(_))) {
        return found.into_iter().map(Found::load).collect();
    }
    blocking(move || found.into_iter().map(Found::load).collect()).await
}

impl LogDrive for DiskDrive {
    fn admit(&self, bytes: usize) -> Result<(), AdmitError> {
        if let Some(why) = &self.leaf.state.read().suspect {
            return Err(AdmitError::Dead(format!("segment {}: {why}", self.leaf.id)));
        }
        self.store.admit(bytes)
    }

    fn submit(&self, run: Run) {
        self.store.push(Item::Run { leaf: self.leaf.id, run });
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        async move {
            match self.leaf.find(address)? {
                Ok(read) => Ok(read),
                Err(found) => blocking(move || found.load()).await.map(Read::Value),
            }
        }
        .boxed()
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        self.leaf.state.read().tail.list(query)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        async move { load_all(self.leaf.plan_list(&query)?).await }.boxed()
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        async move { load_all(self.leaf.plan_scan(&query)?).await }.boxed()
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        async move { Ok(self.leaf.last_of(kind, flags, below)) }.boxed()
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        async move {
            let state = self.leaf.state.read();
            match &state.suspect {
                // A hole may be a lost entry: no vote (a hole is a negative vote).
                Some(why) => Err(ReadError::Damaged(format!("segment {}: {why}", self.leaf.id))),
                None => Ok(state.registers.tail(k)),
            }
        }
        .boxed()
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
        _below: Address,
        _by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
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
    }

    fn caps(&self) -> Caps {
        Caps { fence: true, durable: true }
    }
}

fn written(answer: oneshot::Receiver<Result<(), WriteError>>) -> BoxFuture<'static, Result<(), WriteError>> {
    let ended = || Err(WriteError::Unavailable("the journal thread ended".into()));
    async move { answer.await.unwrap_or_else(|_| ended()) }.boxed()
}
