//! A drive in the place of one whose disk is not here: every question is answered with why.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery, SealId,
    Stored, TailDesc, WriteError,
};
use crate::types::{Address, Offset, Partition};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

/// See the module head.
pub struct Absent(pub String);

impl Absent {
    fn unreadable<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T, ReadError>> {
        ready(Err(ReadError::Unavailable(self.0.clone()))).boxed()
    }

    fn unwritable(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        ready(Err(WriteError::Unavailable(self.0.clone()))).boxed()
    }
}

impl LogDrive for Absent {
    fn admit(&self, _bytes: usize, _purpose: Purpose) -> Result<(), AdmitError> {
        Err(AdmitError::Dead(self.0.clone()))
    }

    fn submit(&self, run: Run) {
        let why = self.0.clone();
        let refuse = move || run.ticket.complete(Err(WriteError::Unavailable(why)));
        if std::thread::Builder::new().name("disk-absent".into()).spawn(refuse).is_err() {
            tracing::error!("no thread to refuse a write to a disk that is not here");
        }
    }

    fn read(&self, _address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        self.unreadable()
    }

    fn list_cached(&self, _query: &ListQuery) -> Option<Vec<Stored>> {
        None
    }

    fn list(&self, _query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        self.unreadable()
    }

    fn scan(&self, _query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        self.unreadable()
    }

    fn last_of(
        &self,
        _kind: EntryKind,
        _flags: u8,
        _below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        self.unreadable()
    }

    fn weak_tail(&self, _k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        self.unreadable()
    }

    fn fence(&self, _k: u32, _by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        ready(Err(FenceError::Unavailable(self.0.clone()))).boxed()
    }

    fn repair(
        &self,
        _address: Address,
        _entry: Entry,
        _below: Address,
        _by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        self.unwritable()
    }

    fn trim(&self, _below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        self.unwritable()
    }

    fn note_committed(&self, _committed: Address) {}

    fn note_log_starts(&self, _starts: &[(Partition, Offset)]) {}

    fn caps(&self) -> Caps {
        Caps { fence: false, durable: true }
    }
}
