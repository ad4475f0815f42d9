//! The quorum drive: every entry to all copies, durable once `write` of them have it (log-contracts 1.2).
//!
//! Owns which answers suffice; the merging itself is `merge`. A copy that could not be opened is absent for good: it
//! counts as failed. A copy bounds its own answers in time; a write, a fence and a tail finish without slow ones, a read
//! asks further copies when one fails. Which copies have room for a run is `room`.
//!
//! INV-SEAL-7 what a seal keeps is read also where one copy alone holds it.

use crate::codec::entry::{Entry, EntryKind};
use crate::drive::merge::{Limits, Order, dense, quorum_merge, quorum_thin, seal_quorum, union};
use crate::drive::room::{First, Rooms, TooFew};
use crate::drive::{
    AdmitError, Caps, Completion, FenceError, ListQuery, LogDrive, Purpose, Read, ReadError, Run, ScanQuery,
    SealId, Stored, TailDesc, Ticket, WriteError,
};
use crate::testing::{Mutant, broken};
use crate::types::{Address, Offset, Partition};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A copy, or why there is none.
pub type Copy = Result<Arc<dyn LogDrive>, String>;

/// See the module head.
pub struct Quorum {
    /// Copies that were opened.
    children: Vec<Arc<dyn LogDrive>>,
    /// Copies that were not, and why.
    absent: Vec<String>,
    write: usize,
    rooms: Rooms,
    /// Which copy is asked first: moves on when it fails, or misses something.
    preferred: AtomicUsize,
    /// How long a fence waits for further copies once a seal quorum answered: each one saves repairs.
    grace: Option<Duration>,
    fenced: Mutex<Fenced>,
}

/// What the last fence found.
#[derive(Default)]
struct Fenced {
    /// See [`LogDrive::thin`].
    thin: BTreeSet<u64>,
    /// Copies that answered, by number.
    copies: BTreeSet<usize>,
}

impl Quorum {
    /// A quorum of `copies`, `write` of which make an entry durable.
    ///
    /// Programmer error: `write` outside of `1..=copies.len()`, or not one copy that was opened.
    pub fn new(copies: Vec<Copy>, write: usize) -> Quorum {
        assert!(1 <= write && write <= copies.len(), "a write quorum lies within the copies");
        let mut children = Vec::new();
        let mut absent = Vec::new();
        for copy in copies {
            match copy {
                Ok(child) => children.push(child),
                Err(why) => absent.push(why),
            }
        }
        assert!(!children.is_empty(), "a quorum without an open copy is no drive");
        let (rooms, preferred) = (Rooms::new(children.len(), write), AtomicUsize::new(0));
        Quorum { children, absent, write, rooms, preferred, grace: None, fenced: Mutex::default() }
    }

    /// Lets a fence wait so long for further copies once a seal quorum answered. Needs a runtime with a timer.
    pub fn with_grace(self, grace: Duration) -> Quorum {
        Quorum { grace: Some(grace), ..self }
    }

    fn copies(&self) -> usize {
        self.children.len() + self.absent.len()
    }

    fn seal_quorum(&self) -> usize {
        seal_quorum(self.copies(), self.write)
    }

    /// Asks all copies at once; the answers as soon as `needed` are good, with all others that are there by then or come
    /// within `grace`.
    ///
    /// Errors: why fewer than `needed` answered.
    async fn ask_all<'a, T, E: std::fmt::Display>(
        &'a self,
        needed: usize,
        grace: Option<Duration>,
        ask: impl Fn(&'a Arc<dyn LogDrive>) -> BoxFuture<'a, Result<T, E>>,
    ) -> Result<Vec<(usize, T)>, String> {
        let numbered = self.children.iter().enumerate();
        let mut asked: FuturesUnordered<_> =
            numbered.map(|(i, child)| ask(child).map(move |a| (i, a))).collect();
        let mut good = Vec::new();
        let mut failed = self.absent.clone();
        while good.len() < needed && good.len() + asked.len() >= needed {
            match asked.next().await {
                Some((i, Ok(answer))) => good.push((i, answer)),
                Some((_, Err(error))) => failed.push(error.to_string()),
                None => break,
            }
        }
        if good.len() < needed {
            return Err(self.too_few(good.len(), needed, &failed));
        }
        let mut rest = |(i, answer): (usize, Result<T, E>)| good.extend(answer.ok().map(|a| (i, a)));
        if let Some(grace) = grace {
            let all = async {
                while let Some(answer) = asked.next().await {
                    rest(answer)
                }
            };
            let _ = tokio::time::timeout(grace, all).await;
        }
        while let Some(Some(answer)) = asked.next().now_or_never() {
            rest(answer);
        }
        good.sort_by_key(|(i, _)| *i);
        Ok(good)
    }

    /// Asks another copy first from now on than `i`, if that is the one.
    fn prefer_another(&self, i: usize) {
        let next = (i + 1) % self.children.len();
        // Another failure may have moved on before.
        let _ = self.preferred.compare_exchange(i, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The copies that are sent the run that is submitted now.
    fn takers(&self) -> SmallVec<[&Arc<dyn LogDrive>; 4]> {
        let mut takers = SmallVec::new();
        for (i, child) in self.children.iter().enumerate() {
            match self.rooms.passes_over(i) {
                None => takers.push(child),
                Some(First(true)) => self.prefer_another(i),
                Some(First(false)) => {}
            }
        }
        takers
    }

    fn too_few(&self, got: usize, needed: usize, failed: &[String]) -> String {
        let copies = self.copies();
        format!("{got} of {copies} copies answered, {needed} are needed: {}", failed.join("; "))
    }

    /// Asks one copy, and all others if `enough` does not hold of its answer: what a seal quorum does not have was never
    /// acknowledged, but a seal may have kept it, and then a single copy may hold it (degraded).
    ///
    /// Errors: damaged if all failures are damage, else unavailable: fewer than a seal quorum answered.
    async fn ask_in_turn<'a, T>(
        &'a self,
        ask: impl Fn(&'a Arc<dyn LogDrive>) -> BoxFuture<'a, Result<T, ReadError>>,
        enough: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, ReadError> {
        let needed = self.seal_quorum();
        let count = self.children.len();
        let start = self.preferred.load(Ordering::Relaxed);
        let mut order = self.children.iter().enumerate().cycle().skip(start).take(count);
        let mut asked = FuturesUnordered::new();
        let mut good: Vec<T> = Vec::new();
        let mut failed = self.absent.clone();
        let mut damaged = 0;
        loop {
            // The first copy alone, since it mostly suffices; then all others, at once.
            let first = good.is_empty() && failed.len() == self.absent.len();
            let rest = if broken(Mutant::SealQuorumReads) { needed - good.len() } else { count };
            let wanted = if first { 1 } else { rest };
            while asked.len() < wanted {
                let Some((i, child)) = order.next() else { break };
                asked.push(ask(child).map(move |answer| (i, answer)));
            }
            match asked.next().await {
                Some((_, Ok(answer))) if enough(&answer) => return Ok(vec![answer]),
                Some((_, Ok(answer))) => good.push(answer),
                Some((i, Err(error))) => {
                    damaged += usize::from(matches!(error, ReadError::Damaged(_)));
                    failed.push(error.to_string());
                    self.prefer_another(i);
                }
                None if good.len() >= needed => return Ok(good),
                None => break,
            }
            if good.len() >= needed && broken(Mutant::SealQuorumReads) {
                return Ok(good);
            }
        }
        let why = self.too_few(good.len(), needed, &failed);
        Err(match damaged == failed.len() && damaged > 0 {
            true => ReadError::Damaged(why),
            false => ReadError::Unavailable(why),
        })
    }

    /// Tells all copies; good once `write` of them did it.
    async fn write_all<'a>(
        &'a self,
        tell: impl Fn(usize, &'a Arc<dyn LogDrive>) -> BoxFuture<'a, Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        let mut tally = Tally::new(self.copies(), self.write, self.absent.len());
        let mut told: FuturesUnordered<_> =
            self.children.iter().enumerate().map(|(i, child)| tell(i, child)).collect();
        let mut decided = None;
        while decided.is_none() {
            let Some(outcome) = told.next().await else { break };
            decided = tally.count(outcome);
        }
        // Copies that can answer at once are let finish, so that a repair reaches as many as live.
        while let Some(Some(_)) = told.next().now_or_never() {}
        decided.unwrap_or_else(|| Err(WriteError::Unavailable(self.absent.join("; "))))
    }
}

/// Counts the copies' outcomes of one run until the quorum's is decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    copies: usize,
    write: usize,
    good: usize,
    failed: usize,
    error: Option<WriteError>,
}

impl Tally {
    pub(crate) fn new(copies: usize, write: usize, absent: usize) -> Tally {
        Tally { copies, write, good: 0, failed: absent, error: None }
    }

    /// `Some` when the outcome is decided by this one or was before: good at `write`, failed once that is out of reach.
    pub(crate) fn count(&mut self, outcome: Result<(), WriteError>) -> Option<Result<(), WriteError>> {
        match outcome {
            Ok(()) => self.good += 1,
            Err(error) => {
                self.failed += 1;
                if self.error.as_ref().is_none_or(|held| rank(held) < rank(&error)) {
                    self.error = Some(error);
                }
            }
        }
        if self.good >= self.write {
            return Some(Ok(()));
        }
        let spare = self.copies - self.write;
        (self.failed > spare).then(|| Err(self.failure()))
    }

    fn failure(&self) -> WriteError {
        let (failed, copies) = (self.failed, self.copies);
        let text = |why: &str| WriteError::Unavailable(format!("{failed} of {copies} copies failed: {why}"));
        match &self.error {
            Some(WriteError::Unavailable(why)) => text(why),
            Some(error) => error.clone(),
            None => text("absent"),
        }
    }
}

/// Which of two errors is told: a conflict is an alarm and is never hidden; one sealed copy is enough to say so, since a
/// seal pass has then begun and will be finished.
fn rank(error: &WriteError) -> u8 {
    match error {
        WriteError::Unavailable(_) => 0,
        WriteError::Sealed => 1,
        WriteError::Trimmed(_) => 2,
        WriteError::Conflict(_) => 3,
    }
}

/// One run's ticket at all copies.
struct Votes {
    tally: Mutex<(Tally, Option<Ticket>)>,
}

impl Completion for Votes {
    fn complete(&self, outcome: Result<(), WriteError>) {
        if let Err(error @ WriteError::Conflict(_)) = &outcome {
            tracing::error!(%error, "a copy refused an entry");
        }
        let decided = {
            let (tally, ticket) = &mut *self.tally.lock();
            tally.count(outcome).and_then(|outcome| Some((ticket.take()?, outcome)))
        };
        if let Some((ticket, outcome)) = decided {
            ticket.complete(outcome);
        }
    }
}

impl LogDrive for Quorum {
    fn admit(&self, bytes: usize, purpose: Purpose) -> Result<(), AdmitError> {
        let ask = |i: usize, purpose| match self.children.get(i) {
            Some(child) => child.admit(bytes, purpose),
            None => Err(AdmitError::Dead("no such copy".to_owned())),
        };
        let Err(TooFew { admitting, why }) = self.rooms.admit(bytes, purpose, ask) else { return Ok(()) };
        let (copies, write) = (self.copies(), self.write);
        let text =
            |why: &str| format!("{admitting} of {copies} copies take writes, {write} are needed: {why}");
        Err(match why {
            Some(AdmitError::Full(why)) => AdmitError::Full(text(&why)),
            Some(AdmitError::Dead(why)) => AdmitError::Dead(text(&why)),
            None => AdmitError::Dead(text(&self.absent.join("; "))),
        })
    }

    fn submit(&self, run: Run) {
        let takers = self.takers();
        let failed = self.copies() - takers.len();
        let tally = Tally::new(self.copies(), self.write, failed);
        let ticket = Ticket::new(Arc::new(Votes { tally: Mutex::new((tally, Some(run.ticket))) }));
        let Some((last, others)) = takers.split_last() else {
            unreachable!("no run is submitted that no copy takes");
        };
        for child in others {
            child.submit(Run { first: run.first, entries: run.entries.clone(), ticket: ticket.clone() });
        }
        last.submit(Run { first: run.first, entries: run.entries, ticket });
    }

    fn lacks_room(&self) -> bool {
        self.children.iter().any(|child| child.lacks_room())
    }

    fn is_behind(&self) -> bool {
        self.rooms.any_behind() || self.children.iter().any(|child| child.is_behind())
    }

    fn read(&self, address: Address) -> BoxFuture<'_, Result<Read, ReadError>> {
        Box::pin(async move {
            let value = |r: &Read| matches!(r, Read::Value(_));
            let answers = self.ask_in_turn(|child| child.read(address), value).await?;
            let mut freed: Option<Address> = None;
            let mut holes = false;
            for answer in answers {
                match answer {
                    Read::Value(_) | Read::Trimmed => return Ok(answer),
                    Read::Hole => holes = true,
                    Read::Gone { next } => freed = Some(freed.map_or(next, |least| least.min(next))),
                }
            }
            Ok(match freed {
                None => Read::Hole,
                // A copy that misses the entry may hold the next one.
                Some(next) => Read::Gone { next: if holes { address.plus(1) } else { next } },
            })
        })
    }

    fn list_cached(&self, query: &ListQuery) -> Option<Vec<Stored>> {
        let mut answers = Vec::new();
        for child in &self.children {
            let Some(answer) = child.list_cached(query) else { continue };
            if dense(Order::Offset, query.from_offset, &answer) {
                return Some(answer);
            }
            answers.push(answer);
        }
        // As `list` does it: all that were opened, and no fewer than a seal quorum.
        let all = answers.len() == self.children.len() && answers.len() >= self.seal_quorum();
        all.then(|| union(Order::Offset, limits(query), answers))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let enough = |a: &Vec<Stored>| dense(Order::Offset, query.from_offset, a);
            let answers = self.ask_in_turn(|child| child.list(query), enough).await?;
            Ok(union(Order::Offset, limits(&query), answers))
        })
    }

    fn scan(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let from = i64::try_from(query.from.0).unwrap_or(i64::MAX);
            let enough = |a: &Vec<Stored>| dense(Order::Address, from, a);
            let answers = self.ask_in_turn(|child| child.scan(query), enough).await?;
            let limits = Limits { bytes: usize::MAX, entries: query.max_entries };
            Ok(union(Order::Address, limits, answers))
        })
    }

    fn scan_heads(&self, query: ScanQuery) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let from = i64::try_from(query.from.0).unwrap_or(i64::MAX);
            let enough = |a: &Vec<Stored>| dense(Order::Address, from, a);
            let answers = self.ask_in_turn(|child| child.scan_heads(query), enough).await?;
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
            let answers = self.ask_in_turn(|child| child.last_of(kind, flags, below), |_| false).await?;
            Ok(answers.into_iter().flatten().max())
        })
    }

    fn weak_tail(&self, k: u32) -> BoxFuture<'_, Result<TailDesc, ReadError>> {
        Box::pin(async move {
            let answers = self.ask_all(self.seal_quorum(), None, |child| child.weak_tail(k)).await;
            let answers: Vec<TailDesc> =
                answers.map_err(ReadError::Unavailable)?.into_iter().map(|(_, d)| d).collect();
            quorum_merge(self.copies(), self.write, k, &answers)
                .map_err(|e| ReadError::Unavailable(e.to_string()))
        })
    }

    fn fence(&self, k: u32, by: SealId) -> BoxFuture<'_, Result<TailDesc, FenceError>> {
        Box::pin(async move {
            let answers = self.ask_all(self.seal_quorum(), self.grace, |child| child.fence(k, by)).await;
            let answers = answers.map_err(FenceError::Unavailable)?;
            let inner = answers.iter().filter_map(|(i, _)| self.children.get(*i)).flat_map(|c| c.thin());
            let mut thin: BTreeSet<u64> = inner.collect();
            let (copies, answers): (BTreeSet<usize>, Vec<TailDesc>) = answers.into_iter().unzip();
            let merged = quorum_merge(self.copies(), self.write, k, &answers)
                .map_err(|e| FenceError::Unavailable(e.to_string()))?;
            thin.extend(quorum_thin(self.write, k, &answers, merged.end));
            *self.fenced.lock() = Fenced { thin, copies };
            Ok(merged)
        })
    }

    fn thin(&self) -> BTreeSet<u64> {
        self.fenced.lock().thin.clone()
    }

    fn repair<'a>(
        &'a self,
        address: Address,
        entry: Entry,
        below: Address,
        by: SealId,
    ) -> BoxFuture<'a, Result<(), WriteError>> {
        let fenced = self.fenced.lock().copies.clone();
        Box::pin(async move {
            let repair = |i: usize, child: &'a Arc<dyn LogDrive>| -> BoxFuture<'a, Result<(), WriteError>> {
                let late = !fenced.is_empty() && !fenced.contains(&i);
                let entry = entry.clone();
                Box::pin(async move {
                    // A copy for which the seal did not wait is fenced first: repairs go to fenced copies only.
                    if late {
                        let fence = child.fence(1, by).await;
                        fence.map_err(|e| WriteError::Unavailable(e.to_string()))?;
                    }
                    child.repair(address, entry, below, by).await
                })
            };
            self.write_all(repair).await
        })
    }

    /// Waits for every copy's answer, so that a later read finds no copy behind, save one that failed.
    fn trim(&self, below: Address) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let outcomes = join_all(self.children.iter().map(|child| child.trim(below))).await;
            let mut tally = Tally::new(self.copies(), self.write, self.absent.len());
            let decided = outcomes.into_iter().filter_map(|outcome| tally.count(outcome)).next();
            decided.unwrap_or_else(|| Err(WriteError::Unavailable(self.absent.join("; "))))
        })
    }

    fn note_committed(&self, committed: Address) {
        self.children.iter().for_each(|child| child.note_committed(committed));
    }

    fn note_log_starts(&self, starts: &[(Partition, Offset)]) {
        self.children.iter().for_each(|child| child.note_log_starts(starts));
    }

    /// Absent copies are taken to be as good as the others: what was written through them counts by their kind.
    fn caps(&self) -> Caps {
        let caps = || self.children.iter().map(|child| child.caps());
        let volatile = caps().filter(|c| !c.durable).count();
        Caps { fence: caps().all(|c| c.fence), durable: volatile < self.write }
    }
}

fn limits(query: &ListQuery) -> Limits {
    Limits { bytes: query.max_bytes, entries: query.max_entries }
}
