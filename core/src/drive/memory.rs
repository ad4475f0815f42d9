//! The memory drive: one leaf of a [`crate::store::MemoryStore`]. Not durable; fences within the process.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery, SealId,
    Stored, TailDesc, Ticket, WriteError,
};
use crate::store::memory::MemoryLeaf;
use crate::types::{Address, Offset, Partition};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// See the module head.
pub struct MemoryDrive {
    leaf: Arc<MemoryLeaf>,
    done: Sender<(Ticket, Result<(), WriteError>)>,
}

impl MemoryDrive {
    pub(crate) fn new(leaf: Arc<MemoryLeaf>, done: Sender<(Ticket, Result<(), WriteError>)>) -> MemoryDrive {
        MemoryDrive { leaf, done }
    }
}

impl LogDrive for MemoryDrive {
    fn admit(&self, _bytes: usize, _purpose: Purpose) -> Result<(), AdmitError> {
        Ok(())
    }

    fn submit(&self, run: Run) {
        self.leaf.submit(run, &self.done);
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        ready(Ok(self.leaf.read(address))).boxed()
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        Some(self.leaf.list(query))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        ready(Ok(self.leaf.list(&query))).boxed()
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        ready(Ok(self.leaf.scan(&query))).boxed()
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        ready(Ok(self.leaf.last_of(kind, flags, below))).boxed()
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        ready(Ok(self.leaf.tail(k))).boxed()
    }

    fn fence(&self, k: u32, _by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        ready(self.leaf.fence(k)).boxed()
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
        ready(self.leaf.repair(address, entry)).boxed()
    }

    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        self.leaf.trim(below);
        ready(Ok(())).boxed()
    }

    fn note_committed(&self, _committed: Address) {}

    fn note_log_starts(&self, _starts: &[(Partition, Offset)]) {}

    fn caps(&self) -> Caps {
        Caps { fence: true, durable: false }
    }
}
