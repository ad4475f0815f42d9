//! The driver of one partition's machine: one task, no lock. It awaits; what it does is decided by the machine and
//! by `fold`.
//!
//! While an append is on its way, calls gather in the queue; the next batch takes them all, so one durable write
//! serves many calls and no machine is ever seen ahead of its log from outside.

use super::fold::{self, Fold};
use super::together::{Trouble, Voice};
use super::{LogBounds, Machine, Now, Outcome, PartitionLog, Room, Ticket};
use crate::api::OwnEntry;
use crate::error::{AppendError, ReadFailure};
use crate::types::{NodeId, Offset};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Calls that wait for a partition; further ones wait for a place.
const QUEUE_CALLS_MAX: usize = 1024;
/// Calls in one batch.
const BATCH_CALLS_MAX: usize = 256;
/// Record bytes after which a batch is closed.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// How often a log that takes no records is looked at again.
const ROOM_LOOK: Duration = Duration::from_millis(100);
/// Entries per read while loading.
const LOAD_ENTRIES: usize = 1024;

/// How a partition runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Record bytes after which a snapshot is due; the size of the last one counts if that is more.
    pub snapshot_bytes: usize,
    /// How long calls wait for a load before they are answered [`Unavailable::Loading`].
    pub load_patience: Duration,
    /// Pause after a load that failed; calls in it are answered with its reason.
    pub load_retry: Duration,
    /// With whom it says what keeps it from its work.
    pub voice: Voice,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            snapshot_bytes: 16 * 1024 * 1024,
            load_patience: Duration::from_millis(500),
            load_retry: Duration::from_millis(100),
            voice: Voice::default(),
        }
    }
}

/// Why a call was not answered by the machine. What it asked for was done only where the variant says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The log is being folded; until that ends.
    #[error("the state is being loaded")]
    Loading,
    /// Another node leads the partition; ask there.
    #[error("another node leads this partition")]
    NotLeader {
        /// Who, when known.
        leader: Option<NodeId>,
    },
    /// The log cannot be written or read; until an operator acts or space is freed.
    #[error("storage: {0}")]
    Storage(String),
    /// An append had no clear outcome: the call may have been done. Asking again tells.
    #[error("the outcome is not known; the state is being loaded again")]
    Unknown,
    /// The node is stopping; ask another, or again later.
    #[error("the node is stopping")]
    Stopping,
}

impl From<AppendError> for Unavailable {
    fn from(e: AppendError) -> Unavailable {
        match e {
            AppendError::NotLeader { leader } => Unavailable::NotLeader { leader },
            AppendError::UnknownPartition => Unavailable::NotLeader { leader: None },
            AppendError::Storage(what) => Unavailable::Storage(what),
            AppendError::TimedOut => Unavailable::Unknown,
            AppendError::Stopping => Unavailable::Stopping,
            AppendError::OutOfOrderSequence { .. }
            | AppendError::ProducerFenced { .. }
            | AppendError::TransactionOpen { .. }
            | AppendError::CoordinatorFenced { .. }
            | AppendError::Invalid(_) => Unavailable::Storage(format!("unexpected refusal: {e}")),
        }
    }
}

impl From<ReadFailure> for Unavailable {
    fn from(e: ReadFailure) -> Unavailable {
        match e {
            ReadFailure::NotLeader { leader } => Unavailable::NotLeader { leader },
            ReadFailure::UnknownPartition => Unavailable::NotLeader { leader: None },
            ReadFailure::OutOfRange { .. } | ReadFailure::Storage(_) => Unavailable::Storage(e.to_string()),
        }
    }
}

/// Why the log cannot be loaded, since when it was last tried; `None` while it serves, loads, or another node does.
type Failing = Arc<parking_lot::Mutex<Option<String>>>;

struct Call<M: Machine> {
    event: M::Event,
    reply: oneshot::Sender<Result<M::Reply, Unavailable>>,
}

/// A running partition. Cheap to share behind an `Arc`; its task ends with it or with [`Partition::stop`].
pub struct Partition<M: Machine> {
    queue: mpsc::Sender<Call<M>>,
    failing: Failing,
    task: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

impl<M: Machine> std::fmt::Debug for Partition<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("free", &self.queue.capacity()).finish_non_exhaustive()
    }
}

impl<M: Machine> Partition<M> {
    /// Starts to fold `log` and serves from then on.
    pub fn start<L: PartitionLog>(log: L, settings: M::Settings, options: Options) -> Partition<M> {
        let (queue, calls) = mpsc::channel(QUEUE_CALLS_MAX);
        let failing = Failing::default();
        let driver = Driver {
            log,
            settings,
            options,
            calls,
            origin: Instant::now(),
            failing: failing.clone(),
            is_fresh: true,
        };
        let task = tokio::spawn(driver.run());
        Partition { queue, failing, task: parking_lot::Mutex::new(Some(task)) }
    }

    /// Why what is stored cannot be loaded; until an operator acts. `None` while nothing is wrong with it.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    /// Asks the machine; waits as long as the machine lets it wait. Dropping the future gives the answer up, not what
    /// was asked for.
    pub async fn call(&self, event: M::Event) -> Result<M::Reply, Unavailable> {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Call { event, reply }).await.is_err() {
            return Err(Unavailable::Stopping);
        }
        answer.await.unwrap_or(Err(Unavailable::Stopping))
    }

    /// Ends the task; calls that wait are answered [`Unavailable::Stopping`].
    pub async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            // Aborted: the only outcome there is to learn is that it has ended.
            let _ = task.await;
        }
    }
}

impl<M: Machine> Drop for Partition<M> {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

struct Driver<M: Machine, L> {
    log: L,
    settings: M::Settings,
    options: Options,
    calls: mpsc::Receiver<Call<M>>,
    origin: Instant,
    failing: Failing,
    /// Has appended nothing yet.
    is_fresh: bool,
}

/// A loaded machine and where its log stands.
struct Serving<M: Machine> {
    machine: M,
    next: Offset,
    epoch: i32,
    tickets: HashMap<Ticket, oneshot::Sender<Result<M::Reply, Unavailable>>>,
    last_ticket: u64,
    bytes_since: usize,
    snapshot_bytes: usize,
    snapshot: Snapshot,
    /// What the log takes, as of the last step.
    room: Room,
}

/// Where a snapshot stands: at most one at a time.
enum Snapshot {
    None,
    Encoding {
        through: Offset,
        bytes_at: usize,
        task: JoinHandle<Result<VecDeque<OwnEntry>, postcard::Error>>,
    },
    Writing {
        through: Offset,
        bytes_at: usize,
        pieces: VecDeque<OwnEntry>,
    },
}

impl<M: Machine, L: PartitionLog> Driver<M, L> {
    async fn run(mut self) {
        loop {
            let reason = match self.load_answering().await {
                Ok(mut serving) => {
                    self.note(None);
                    self.is_fresh = false;
                    let Err(reason) = self.serve(&mut serving).await else { return };
                    // Whatever keeps it from loading is said then.
                    tracing::debug!(%reason, "a coordinator partition drops its state and loads again");
                    for (_, reply) in serving.tickets.drain() {
                        // A caller that is gone wants no answer.
                        let _ = reply.send(Err(reason.clone()));
                    }
                    continue;
                }
                Err(reason) => reason,
            };
            self.note(Some(&reason));
            if self.refuse_for(self.options.load_retry, reason).await.is_err() {
                return;
            }
        }
    }

    /// Remembers how a load ended, and says so.
    fn note(&self, reason: Option<&Unavailable>) {
        let storage = match reason {
            Some(Unavailable::Storage(why)) => Some(why.clone()),
            _ => None,
        };
        let why = reason.map(ToString::to_string);
        self.options.voice.note(Trouble::NotLoaded, why.as_deref(), Instant::now().into_std());
        *self.failing.lock() = storage;
    }

    fn now(&self) -> Now {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono_ms: Instant::now().duration_since(self.origin).as_millis() as u64,
            wall_ms: since_epoch.as_millis() as i64,
        }
    }

    /// Loads; calls wait meanwhile, for a while.
    async fn load_answering(&mut self) -> Result<Serving<M>, Unavailable> {
        // What was in flight when the process before ended is stored or never will be: the range was fenced since.
        let barrier = if self.is_fresh && self.log.is_full() { Barrier::None } else { Barrier::Written };
        self.is_fresh &= barrier == Barrier::None;
        let load = load::<M, L>(&self.log, &self.settings, barrier);
        tokio::pin!(load);
        let patience = sleep(self.options.load_patience);
        tokio::pin!(patience);
        let mut patient = true;
        let loaded = loop {
            tokio::select! {
                biased;
                loaded = &mut load => break loaded,
                () = &mut patience, if patient => patient = false,
                call = self.calls.recv(), if !patient => match call {
                    // A caller that is gone wants no answer.
                    Some(call) => drop(call.reply.send(Err(Unavailable::Loading))),
                    None => return Err(Unavailable::Stopping),
                },
            }
        };
        let mut serving = loaded?;
        serving.machine.loaded(self.now());
        Ok(serving)
    }

    /// Answers calls with `reason` for some time. `Err` when nobody can call any more.
    async fn refuse_for(&mut self, time: Duration, reason: Unavailable) -> Result<(), ()> {
        let end = sleep(time);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                call = self.calls.recv() => match call {
                    // A caller that is gone wants no answer.
                    Some(call) => drop(call.reply.send(Err(reason.clone()))),
                    None => return Err(()),
                },
            }
        }
    }

    /// Serves until nobody can call any more (`Ok`) or the state has to be loaded again (`Err`).
    async fn serve(&mut self, s: &mut Serving<M>) -> Result<(), Unavailable> {
        let mut batch = Vec::with_capacity(BATCH_CALLS_MAX);
        loop {
            let is_open = s.room == Room::Records;
            let due = s.machine.next_deadline().filter(|_| is_open);
            let due = due.map(|ms| self.origin + Duration::from_millis(ms));
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                biased;
                pieces = encoded(&mut s.snapshot) => s.take_pieces(pieces),
                () = std::future::ready(()), if s.has_piece() => {
                    while batch.len() < BATCH_CALLS_MAX
                        && let Ok(call) = self.calls.try_recv()
                    {
                        batch.push(call);
                    }
                }
                n = self.calls.recv_many(&mut batch, BATCH_CALLS_MAX) => if n == 0 { return Ok(()) },
                () = sleep_until(due.unwrap_or(far)), if due.is_some() => {}
                () = sleep(ROOM_LOOK), if !is_open => {}
            }
            let mut waiting = batch.drain(..).collect::<VecDeque<_>>();
            loop {
                let done = self.step(s, &mut waiting).await;
                if let Err(reason) = done {
                    for call in waiting {
                        // A caller that is gone wants no answer.
                        let _ = call.reply.send(Err(reason.clone()));
                    }
                    return Err(reason);
                }
                if waiting.is_empty() {
                    break;
                }
            }
        }
    }

    /// Handles calls until the batch is full, makes what they recorded durable, answers.
    async fn step(&mut self, s: &mut Serving<M>, waiting: &mut VecDeque<Call<M>>) -> Result<(), Unavailable> {
        if self.log.bounds()?.epoch != s.epoch {
            return Err(Unavailable::NotLeader { leader: None });
        }
        let now = self.now();
        s.look(self.log.room(), now, &self.options.voice);
        let mut out = Outcome::default();
        let mut entries = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(call) = waiting.pop_front()
        {
            if let Some(why) = s.room.refusal()
                && !s.machine.passes(&call.event, now)
            {
                // A caller that is gone wants no answer.
                let _ = call.reply.send(Err(Unavailable::Storage(why.to_owned())));
                continue;
            }
            s.last_ticket += 1;
            let ticket = Ticket(s.last_ticket);
            s.tickets.insert(ticket, call.reply);
            s.machine.handle(ticket, call.event, now, &mut out);
            bytes += push_entry(&mut entries, &mut out)?;
        }
        let is_due = s.machine.next_deadline().is_some_and(|due| due <= now.mono_ms);
        if is_due && s.room == Room::Records {
            s.machine.expire(now, &mut out);
            bytes += push_entry(&mut entries, &mut out)?;
        }
        let written = s.next + entries.len() as Offset;
        let trim = s.push_piece(&mut entries);
        if !entries.is_empty() {
            s.append(&self.log, entries).await?;
        }
        s.bytes_since += bytes;
        for (ticket, reply) in out.take_replies() {
            if let Some(waiter) = s.tickets.remove(&ticket) {
                // A caller that is gone wants no answer.
                let _ = waiter.send(Ok(reply));
            }
        }
        if let Some(through) = trim
            && let Err(e) = self.log.trim(through).await
        {
            tracing::warn!(error = %e, through, "the log below a snapshot stays until the next snapshot");
        }
        s.start_snapshot(written, self.options.snapshot_bytes);
        Ok(())
    }
}

impl<M: Machine> Serving<M> {
    /// Takes note of what the log takes.
    fn look(&mut self, room: Room, now: Now, voice: &Voice) {
        let before = std::mem::replace(&mut self.room, room);
        let (was, why) = (before.refusal(), self.room.refusal());
        if was.is_some() || why.is_some() {
            voice.note(Trouble::RecordsNothing, why, Instant::now().into_std());
        }
        if was.is_some() && why.is_none() {
            self.machine.resume(now);
        }
    }

    /// Whether a piece of a snapshot can be written.
    fn has_piece(&self) -> bool {
        matches!(self.snapshot, Snapshot::Writing { .. }) && !matches!(self.room, Room::Nothing(_))
    }

    async fn append<L: PartitionLog>(&mut self, log: &L, entries: Vec<OwnEntry>) -> Result<(), Unavailable> {
        let count = entries.len() as Offset;
        let first = log.append(entries).await?;
        if first != self.next {
            // Somebody else wrote in between: what was decided here was decided without it.
            tracing::error!(first, expected = self.next, "entries of another writer in a coordinator's log");
            return Err(Unavailable::Unknown);
        }
        self.next = first + count;
        Ok(())
    }

    /// Captures the state at `through` when a snapshot is due and encodes it on another thread.
    fn start_snapshot(&mut self, through: Offset, snapshot_bytes: usize) {
        let due = self.bytes_since >= snapshot_bytes.max(self.snapshot_bytes);
        if !due || !matches!(self.snapshot, Snapshot::None) {
            return;
        }
        let image = self.machine.capture();
        let task = tokio::task::spawn_blocking(move || fold::snapshot::<M>(&image, through));
        self.snapshot = Snapshot::Encoding { through, bytes_at: self.bytes_since, task };
    }

    fn take_pieces(&mut self, pieces: Result<VecDeque<OwnEntry>, String>) {
        let Snapshot::Encoding { through, bytes_at, .. } = self.snapshot else { return };
        self.snapshot = match pieces {
            Ok(pieces) => {
                self.snapshot_bytes = pieces.iter().map(|p| p.payload.len()).sum();
                Snapshot::Writing { through, bytes_at, pieces }
            }
            Err(error) => {
                tracing::error!(error, "a snapshot was not encoded; the log grows until the next");
                // Due again after as many bytes as made this one due.
                self.bytes_since = 0;
                Snapshot::None
            }
        };
    }

    /// Adds the next piece of a snapshot; with the last one the offset that the log may be trimmed to.
    fn push_piece(&mut self, entries: &mut Vec<OwnEntry>) -> Option<Offset> {
        if !self.has_piece() {
            return None;
        }
        let Snapshot::Writing { through, bytes_at, pieces } = &mut self.snapshot else { return None };
        let (through, bytes_at) = (*through, *bytes_at);
        entries.extend(pieces.pop_front());
        if !pieces.is_empty() {
            return None;
        }
        self.bytes_since -= bytes_at.min(self.bytes_since);
        self.snapshot = Snapshot::None;
        Some(through)
    }
}

/// Waits for the encoded snapshot, for ever when there is none.
async fn encoded(snapshot: &mut Snapshot) -> Result<VecDeque<OwnEntry>, String> {
    match snapshot {
        Snapshot::Encoding { task, .. } => match task.await {
            Ok(pieces) => pieces.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        },
        Snapshot::None | Snapshot::Writing { .. } => std::future::pending().await,
    }
}

/// One entry for the records of one event: they are stored all or none. Its length in bytes.
fn push_entry<M: Machine>(entries: &mut Vec<OwnEntry>, out: &mut Outcome<M>) -> Result<usize, Unavailable> {
    let records = out.take_records();
    if records.is_empty() {
        return Ok(0);
    }
    let entry = fold::control::<M>(&records).map_err(|e| Unavailable::Storage(e.to_string()))?;
    let bytes = entry.payload.len();
    entries.push(entry);
    Ok(bytes)
}

/// Whether a load writes a barrier.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Barrier {
    Written,
    /// On a full disk, where starts would fill what is left of it, or where nothing can be written: the first load of a process, which
    /// has nothing in flight.
    None,
}

/// Folds the log behind a barrier: when the barrier is durable, every earlier append is stored or never will be, and
/// this node was the leader.
async fn load<M: Machine, L: PartitionLog>(
    log: &L,
    settings: &M::Settings,
    barrier: Barrier,
) -> Result<Serving<M>, Unavailable> {
    let LogBounds { epoch, end, .. } = log.bounds()?;
    let end = match barrier {
        Barrier::Written => {
            let barrier = fold::control::<M>(&[]).map_err(|e| Unavailable::Storage(e.to_string()))?;
            log.append(vec![barrier]).await? + 1
        }
        Barrier::None => end,
    };
    let bounds = log.bounds()?;
    if bounds.epoch != epoch {
        return Err(Unavailable::NotLeader { leader: None });
    }
    let mut fold = Fold::new(bounds.start);
    while fold.next() < end {
        let entries = log.read(fold.next(), LOAD_ENTRIES).await?;
        if entries.is_empty() {
            let at = fold.next();
            return Err(Unavailable::Storage(format!("nothing readable at offset {at} below {end}")));
        }
        for (offset, kind, payload) in entries {
            fold.push(offset, kind, payload).map_err(|e| Unavailable::Storage(e.to_string()))?;
        }
    }
    let folded = fold.finish::<M>(settings).map_err(|e| Unavailable::Storage(e.to_string()))?;
    Ok(Serving {
        machine: folded.machine,
        next: folded.next,
        epoch,
        tickets: HashMap::new(),
        last_ticket: 0,
        bytes_since: folded.bytes_since,
        snapshot_bytes: folded.snapshot_bytes,
        snapshot: Snapshot::None,
        room: Room::Records,
    })
}
