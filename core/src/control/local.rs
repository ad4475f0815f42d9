//! The control state on one node: one embedded store, one thread that turns waiting proposals into one transaction.

use super::command::{Command, Reply};
use super::file::{ControlFile, WriteError, io_error};
use super::state::State;
use super::watch::{Published, Watch};
use super::{ControlError, Delta, PROPOSAL_COMMANDS_MAX, Store, Written};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use tokio::sync::{mpsc, oneshot, watch};

/// Proposals that may wait for the thread.
const QUEUE_PROPOSALS_MAX: usize = 1024;
/// Proposals in one transaction.
const GROUP_PROPOSALS_MAX: usize = 256;

/// A [`Store`] of one node, in a file or in memory. Dropping it closes it: waits for the commit under way.
#[derive(Debug)]
pub struct LocalStore {
    published: Arc<Published>,
    queue: mpsc::Sender<Job>,
    versions: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
    written: Arc<Counts>,
    failed: Arc<OnceLock<String>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Counts {
    commits: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
enum Job {
    Propose(Proposal),
    /// Look at the stop flag.
    Wake,
}

#[derive(Debug)]
struct Proposal {
    commands: Vec<Command>,
    answer: oneshot::Sender<Result<Vec<Reply>, ControlError>>,
}

impl LocalStore {
    /// Opens the store's file, made if it is not there; its directory must be there. Blocks for as long as reading
    /// the file takes.
    ///
    /// Errors: `InUse`, `Newer`, `Damaged`, `Io`; nothing was changed then.
    pub fn open(path: &Path) -> Result<LocalStore, ControlError> {
        let (file, state) = ControlFile::open(path)?;
        LocalStore::start(path, Some(file), state)
    }

    /// A store in a file that was opened already.
    #[cfg(test)]
    pub(super) fn in_file(path: &Path, (file, state): (ControlFile, State)) -> LocalStore {
        LocalStore::start(path, Some(file), state).expect("a thread can be started")
    }

    /// An empty store that is lost with the process.
    pub fn in_memory() -> LocalStore {
        LocalStore::start(Path::new("memory"), None, State::default()).expect("a thread can be started")
    }

    /// Takes no more proposals; those waiting are answered `Closed`. Blocks until the commit under way is done.
    pub fn close(&self) {
        self.stop.store(true, Ordering::Release);
        // A full queue wakes the thread as well.
        let _ = self.queue.try_send(Job::Wake);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the control store's thread ended by a panic");
        }
    }

    fn start(path: &Path, file: Option<ControlFile>, state: State) -> Result<LocalStore, ControlError> {
        let (queue, jobs) = mpsc::channel(QUEUE_PROPOSALS_MAX);
        let (told, versions) = watch::channel(state.counters.version);
        let published = Arc::new(Published::new(state));
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(Counts::default());
        let failed = Arc::new(OnceLock::new());
        let mut writer = Writer {
            file,
            jobs,
            told,
            published: published.clone(),
            stop: stop.clone(),
            written: written.clone(),
            failed: None,
            for_good: failed.clone(),
        };
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || writer.run());
        let thread = Mutex::new(Some(thread.map_err(|e| io_error(path, &e))?));
        Ok(LocalStore { published, queue, versions, stop, written, failed, thread })
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for LocalStore {
    fn propose(&self, commands: Vec<Command>) -> BoxFuture<'_, Result<Vec<Reply>, ControlError>> {
        Box::pin(async move {
            if commands.len() > PROPOSAL_COMMANDS_MAX {
                return Err(ControlError::TooMany { got: commands.len() });
            }
            let (answer, answered) = oneshot::channel();
            let job = Job::Propose(Proposal { commands, answer });
            self.queue.send(job).await.map_err(|_| ControlError::Closed)?;
            answered.await.unwrap_or(Err(ControlError::Closed))
        })
    }

    fn read(&self) -> Arc<State> {
        self.published.read()
    }

    fn read_latest(&self) -> BoxFuture<'_, Result<Arc<State>, ControlError>> {
        // The only writer publishes before it answers.
        Box::pin(std::future::ready(Ok(self.read())))
    }

    fn watch(&self, from: u64) -> Watch {
        self.published.watch(from, self.versions.clone())
    }

    fn failed(&self) -> Option<String> {
        self.failed.get().cloned()
    }

    fn written(&self) -> Written {
        let Counts { commits, bytes } = &*self.written;
        Written { commits: commits.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

/// The one thread that changes the state.
struct Writer {
    /// `None`: kept in memory only.
    file: Option<ControlFile>,
    jobs: mpsc::Receiver<Job>,
    told: watch::Sender<u64>,
    published: Arc<Published>,
    stop: Arc<AtomicBool>,
    written: Arc<Counts>,
    /// Why the file takes no writes.
    failed: Option<WriteError>,
    /// Why it takes none until the process is started again.
    for_good: Arc<OnceLock<String>>,
}

impl Writer {
    fn run(&mut self) {
        while let Some(job) = self.jobs.blocking_recv() {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let more = std::iter::from_fn(|| self.jobs.try_recv().ok());
            let jobs = std::iter::once(job).chain(more.take(GROUP_PROPOSALS_MAX - 1));
            let proposals = jobs.filter_map(|job| match job {
                Job::Propose(proposal) => Some(proposal),
                Job::Wake => None,
            });
            let group = proposals.collect();
            self.commit(group);
        }
    }

    /// Applies a group, makes it durable, publishes it, answers: in this order.
    fn commit(&mut self, group: Vec<Proposal>) {
        self.try_again();
        if let Some(failed) = &self.failed {
            let refused = match failed.clone() {
                WriteError::Full(why) => ControlError::Full(why),
                WriteError::Failed(why) => ControlError::Failed(why),
            };
            return group.into_iter().for_each(|p| answer(p.answer, Err(refused.clone())));
        }
        let mut state = State::clone(&self.published.read());
        let mut deltas = BTreeSet::new();
        let mut replies = Vec::with_capacity(group.len());
        for proposal in group {
            let reply = apply_all(&mut state, &proposal.commands, &mut deltas);
            replies.push((proposal.answer, reply));
        }
        if state.counters.version != self.published.read().counters.version {
            if let Err(refused) = self.write(&state, &deltas) {
                return replies
                    .into_iter()
                    .for_each(|(to, reply)| answer(to, reply.and(Err(refused.clone()))));
            }
            let version = state.counters.version;
            self.published.publish(state, deltas);
            self.told.send_replace(version);
        }
        replies.into_iter().for_each(|(to, reply)| answer(to, reply));
    }

    /// Writes a state. Errors: `Full` when the file is as it was; `Unknown` otherwise.
    fn write(&mut self, state: &State, deltas: &BTreeSet<Delta>) -> Result<(), ControlError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let error = match file.write(state, deltas) {
            Ok(bytes) => {
                self.written.commits.fetch_add(1, Ordering::Relaxed);
                self.written.bytes.fetch_add(bytes, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) => error,
        };
        self.failed = Some(error.clone());
        let why = match error {
            WriteError::Failed(why) => {
                tracing::error!(%why, "control store failed; it takes no more changes until a restart");
                let _ = self.for_good.set(why.clone());
                return Err(ControlError::Unknown(why));
            }
            WriteError::Full(why) => why,
        };
        match file.open_again() {
            Ok(found) if found.counters.version == state.counters.version => {
                self.failed = None;
                Ok(())
            }
            Ok(found) if found.counters.version == self.published.read().counters.version => {
                tracing::warn!(%why, "no room for a change of the control state; the next one is tried");
                self.failed = None;
                Err(ControlError::Full(why))
            }
            // Looked at again before the next change.
            _ => Err(ControlError::Unknown(why)),
        }
    }

    /// Opens a file again that was closed since there was no room: it goes on if it is what was published last.
    fn try_again(&mut self) {
        let (Some(WriteError::Full(_)), Some(file)) = (&self.failed, &mut self.file) else { return };
        match file.open_again() {
            Ok(found) if found.counters.version == self.published.read().counters.version => {
                self.failed = None
            }
            Ok(_) => {
                let why = "a change whose outcome nobody was told is in the file; start again".to_owned();
                tracing::error!(%why, "control store takes no more changes until a restart");
                let _ = self.for_good.set(why.clone());
                self.failed = Some(WriteError::Failed(why));
            }
            Err(error) => tracing::debug!(%error, "the control store cannot be opened again yet"),
        }
    }
}

/// The one who asked may have gone; the commands stand all the same.
fn answer(to: oneshot::Sender<Result<Vec<Reply>, ControlError>>, reply: Result<Vec<Reply>, ControlError>) {
    let _ = to.send(reply);
}

/// Applies a proposal whole or not at all.
fn apply_all(
    state: &mut State,
    commands: &[Command],
    deltas: &mut BTreeSet<Delta>,
) -> Result<Vec<Reply>, ControlError> {
    // One command is whole or not at all by itself.
    let before = (commands.len() > 1).then(|| state.clone());
    let mut replies = Vec::with_capacity(commands.len());
    let mut touched = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        match state.apply(command) {
            Ok((reply, more)) => {
                replies.push(reply);
                touched.extend(more);
            }
            Err(refusal) => {
                if let Some(before) = before {
                    *state = before;
                }
                return Err(ControlError::Refused { index, refusal });
            }
        }
    }
    deltas.extend(touched);
    Ok(replies)
}
