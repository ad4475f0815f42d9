//! A drive of which tests look at what is submitted, and read nothing back through it.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery, SealId,
    Stored, TailDesc, WriteError,
};
use crate::types::{Address, Offset, Partition};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::ops::Deref;

/// What is done with a run.
pub(crate) trait Takes: Send + Sync + 'static {
    fn take_run(&self, run: Run);
}

/// See the module head.
#[derive(Default)]
pub(crate) struct WriteOnly<T>(pub(crate) T);

impl<T> Deref for WriteOnly<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Takes> LogDrive for WriteOnly<T> {
    fn admit(&self, _bytes: usize, _purpose: Purpose) -> Result<(), AdmitError> {
        Ok(())
    }
    fn submit(&self, run: Run) {
        self.0.take_run(run);
    }
    fn read(&self, _address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        async { Ok(Read::Hole) }.boxed()
    }
    fn list_cached(&self, _query: &ListQuery) -> Option<Vec<Stored>> {
        None
    }
    fn list(&self, _query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        async { Ok(Vec::new()) }.boxed()
    }
    fn scan(&self, _query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        async { Ok(Vec::new()) }.boxed()
    }
    fn last_of(
        &self,
        _kind: EntryKind,
        _flags: u8,
        _below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        async { Ok(None) }.boxed()
    }
    fn weak_tail(&self, _k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        async { Ok(TailDesc::default()) }.boxed()
    }
    fn fence(&self, _k: u32, _by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        async { Err(FenceError::Unsupported) }.boxed()
    }
    fn repair(
        &self,
        _address: Address,
        _entry: Entry,
        _below: Address,
        _by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        async { Ok(()) }.boxed()
    }
    fn trim(&self, _below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        async { Ok(()) }.boxed()
    }
    fn note_committed(&self, _committed: Address) {}
    fn note_log_starts(&self, _starts: &[(Partition, Offset)]) {}
    fn caps(&self) -> Caps {
        Caps { fence: true, durable: true }
    }
}
