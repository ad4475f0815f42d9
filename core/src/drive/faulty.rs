//! A drive with faults on demand, around any other: for tests of whatever stands above drives.
//!
//! Faults act on what arrives after they were set. Tickets are completed by a thread of its own, which ends with the drive;
//! what waits for it is bounded by the sequencer's window.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::{
    AdmitError, Caps, Completion, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery,
    SealId, Stored, TailDesc, Ticket, WriteError,
};
use crate::types::{Address, Offset, Partition};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

/// The fault menu.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// As the drive inside.
    None,
    /// Writes are held back until the fault changes, then passed on in order.
    Delay,
    /// Writes are done and their answers lost: told as `Unavailable`.
    DropAnswers,
    /// Writes do not arrive: told as `Unavailable`.
    DropRequests,
    /// Writes are refused as sealed, the drive inside is not.
    Sealed,
    /// There is no room for records; all works.
    Full,
    /// Nothing works any more.
    Dead,
}

type Late = (Ticket, Result<(), WriteError>);

/// See the module head.
pub(crate) struct Faulty {
    inner: Arc<dyn LogDrive>,
    state: Mutex<(Fault, Vec<Run>)>,
    late: mpsc::Sender<Late>,
}

/// Tells that the answer was lost, whatever it was.
struct Lost(Ticket);

impl Completion for Lost {
    fn complete(&self, _outcome: Result<(), WriteError>) {
        self.0.clone().complete(Err(WriteError::Unavailable("answer lost".into())));
    }
}

impl Faulty {
    /// `inner`, without a fault yet.
    pub(crate) fn new(inner: Arc<dyn LogDrive>) -> Faulty {
        let (late, tickets) = mpsc::channel::<Late>();
        std::thread::spawn(move || {
            tickets.into_iter().for_each(|(ticket, outcome)| ticket.complete(outcome))
        });
        Faulty { inner, state: Mutex::new((Fault::None, Vec::new())), late }
    }

    /// Changes the fault; what was held back is passed on.
    pub(crate) fn set(&self, fault: Fault) {
        let held = {
            let mut state = self.state.lock();
            state.0 = fault;
            if fault == Fault::Delay { Vec::new() } else { std::mem::take(&mut state.1) }
        };
        held.into_iter().for_each(|run| self.submit(run));
    }

    fn fault(&self) -> Fault {
        self.state.lock().0
    }

    fn answer(&self, ticket: Ticket, error: WriteError) {
        let _ = self.late.send((ticket, Err(error)));
    }

    fn readable(&self) -> Result<&Arc<dyn LogDrive>, ReadError> {
        match self.fault() {
            Fault::Dead => Err(ReadError::Unavailable("dead".into())),
            _ => Ok(&self.inner),
        }
    }

    fn writable(&self) -> Result<&Arc<dyn LogDrive>, WriteError> {
        match self.fault() {
            Fault::Dead => Err(WriteError::Unavailable("dead".into())),
            _ => Ok(&self.inner),
        }
    }
}

impl LogDrive for Faulty {
    fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        match self.fault() {
            Fault::Dead => Err(AdmitError::Dead("dead".into())),
            Fault::Full if matches!(purpose, Purpose::Unasked | Purpose::Records) => {
                Err(AdmitError::Full("no room".into()))
            }
            _ => self.inner.admit(bytes, purpose),
        }
    }

    fn submit(&self, run: Run) {
        let fault = {
            let mut state = self.state.lock();
            if state.0 == Fault::Delay {
                state.1.push(run);
                return;
            }
            state.0
        };
        match fault {
            Fault::None | Fault::Delay | Fault::Full => self.inner.submit(run),
            Fault::DropAnswers => {
                self.inner.submit(Run { ticket: Ticket::new(Arc::new(Lost(run.ticket))), ..run });
            }
            Fault::DropRequests => self.answer(run.ticket, WriteError::Unavailable("request lost".into())),
            Fault::Sealed => self.answer(run.ticket, WriteError::Sealed),
            Fault::Dead => self.answer(run.ticket, WriteError::Unavailable("dead".into())),
        }
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        Box::pin(async move { self.readable()?.read(address).await })
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        self.readable().ok()?.list_cached(query)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move { self.readable()?.list(query).await })
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move { self.readable()?.scan(query).await })
    }

    fn scan_heads(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move { self.readable()?.scan_heads(query).await })
    }

    fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
    ) -> BoxFuture<'_, Result<Option<Address>, ReadError>> {
        Box::pin(async move { self.readable()?.last_of(kind, flags, below).await })
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        Box::pin(async move { self.readable()?.weak_tail(k).await })
    }

    fn fence(&self, k: u32, by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        Box::pin(async move {
            let inner = self.readable().map_err(|e| FenceError::Unavailable(e.to_string()))?;
            inner.fence(k, by).await
        })
    }

    fn thin(&self) -> BTreeSet<u64> {
        self.inner.thin()
    }

    fn repair(
        &self,
        address: Address,
        entry: Entry,
        below: Address,
        by: SealId,
    ) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move { self.writable()?.repair(address, entry, below, by).await })
    }

    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move { self.writable()?.trim(below).await })
    }

    fn note_committed(&self, committed: Address) {
        self.inner.note_committed(committed);
    }

    fn note_log_starts(&self, starts: &[(Partition, Offset)]) {
        self.inner.note_log_starts(starts);
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::contract::{Subject, run_all, submit};
    use crate::drive::quorum::Quorum;
    use crate::testing::leaf::{Leaf, entry_at};

    fn quorum(faults: [Fault; 3]) -> (Quorum, Vec<Arc<Faulty>>) {
        let copies: Vec<Arc<Faulty>> =
            faults.iter().map(|_| Arc::new(Faulty::new(Leaf::threaded()))).collect();
        copies.iter().zip(faults).for_each(|(copy, fault)| copy.set(fault));
        let children = copies.iter().map(|c| Ok(c.clone() as Arc<dyn LogDrive>)).collect();
        (Quorum::new(children, 2), copies)
    }

    fn written(faults: [Fault; 3]) -> Result<(), WriteError> {
        let (quorum, _copies) = quorum(faults);
        submit(&quorum, 0, vec![entry_at(0)]).blocking_recv().unwrap()
    }

    #[test]
    fn without_a_fault_it_is_the_drive_inside() {
        run_all("faulty", || Subject::new(Arc::new(Faulty::new(Leaf::threaded()))));
    }

    #[test]
    fn a_quorum_of_two_takes_one_fault_of_any_kind_and_not_two() {
        use Fault::{Dead, Delay, DropAnswers, DropRequests, None, Sealed};
        for one in [Delay, DropAnswers, DropRequests, Sealed, Dead] {
            assert_eq!(written([None, one, None]), Ok(()), "{one:?}");
        }
        assert!(matches!(written([None, Dead, DropRequests]), Err(WriteError::Unavailable(_))));
        assert_eq!(written([None, Dead, Sealed]), Err(WriteError::Sealed));
        assert_eq!(written([Sealed, Sealed, None]), Err(WriteError::Sealed));
    }

    #[test]
    fn a_write_held_back_completes_once_it_is_let_go() {
        let (quorum, copies) = quorum([Fault::Delay, Fault::Delay, Fault::None]);
        let mut outcome = submit(&quorum, 0, vec![entry_at(0)]);
        assert!(outcome.try_recv().is_err(), "one copy is no quorum");
        copies[0].set(Fault::None);
        assert_eq!(outcome.blocking_recv().unwrap(), Ok(()));
    }

    #[test]
    fn a_quorum_admits_with_a_write_quorum_of_live_copies() {
        let (quorum, copies) = quorum([Fault::Dead, Fault::None, Fault::None]);
        assert_eq!(quorum.admit(1, Purpose::Records), Ok(()));
        copies[1].set(Fault::Dead);
        let refused = quorum.admit(1, Purpose::Records).unwrap_err().to_string();
        assert_eq!(refused, "drive dead: 1 of 3 copies take writes, 2 are needed: dead");
    }

    /// Waits until the copies end there: one may lag behind a write that two have.
    async fn end_at(copies: &[Arc<Faulty>], expected: [u64; 3]) {
        let mut ends = Vec::new();
        for _ in 0..500 {
            ends.clear();
            for copy in copies {
                ends.push(copy.weak_tail(8).await.unwrap().end);
            }
            if ends == expected {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{ends:?}, expected {expected:?}");
    }

    fn put(quorum: &Quorum, at: u64, purpose: Purpose) {
        quorum.admit(1, purpose).unwrap();
        assert_eq!(submit(quorum, at, vec![entry_at(at)]).blocking_recv().unwrap(), Ok(()));
    }

    #[test]
    fn a_copy_without_room_takes_no_records_while_others_do_and_what_it_missed_is_read_and_sealed() {
        use crate::drive::{ScanQuery, SealId};
        use crate::types::NodeId;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (quorum, copies) = quorum([Fault::None; 3]);
        put(&quorum, 0, Purpose::Records);
        copies[0].set(Fault::Full);
        assert!(quorum.lacks_room() && !quorum.is_behind());
        for at in 1..4 {
            put(&quorum, at, if at == 2 { Purpose::Freeing } else { Purpose::Records });
        }
        assert!(quorum.is_behind());
        let all = ScanQuery { from: Address(0), below: Address(9), max_entries: 9 };
        let scanned = |q: &Quorum| runtime.block_on(q.scan(all)).unwrap().len();
        runtime.block_on(end_at(&copies, [1, 4, 4]));
        assert_eq!(scanned(&quorum), 4);
        copies[1].set(Fault::Full);
        let refused = quorum.admit(1, Purpose::Records).unwrap_err().to_string();
        assert_eq!(refused, "disk full: 1 of 3 copies take writes, 2 are needed: no room");
        put(&quorum, 4, Purpose::Freeing);
        // What frees space goes to all that let it.
        runtime.block_on(end_at(&copies, [5, 5, 5]));
        copies[1].set(Fault::Dead);
        let sealed = runtime.block_on(quorum.fence(8, SealId { node: NodeId(1), pass: 1 })).unwrap();
        assert_eq!((sealed.end, sealed.holes.len()), (5, 0), "one of the two that answer has it");
        assert_eq!(quorum.thin(), BTreeSet::from([1, 2, 3]));
        assert_eq!(scanned(&quorum), 5);
        for at in 1..4 {
            assert!(matches!(runtime.block_on(quorum.read(Address(at))), Ok(Read::Value(_))), "{at}");
        }
    }
}
