//! The control state on one node: one embedded store, one thread that turns waiting proposals into one transaction.

use super::command::{Command, Reply};
use super::rows::{self, Loader};
use super::state::State;
use super::watch::{Published, Watch};
use super::{ControlError, Delta, PROPOSAL_COMMANDS_MAX, Store};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    TableHandle, WriteTransaction,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use tokio::sync::{mpsc, oneshot, watch};

/// Format of the file; a higher one is refused.
const FORMAT: u64 = 1;
const FORMAT_KEY: &str = "rangeway.control";
const FORMAT_TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const ROWS_TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

/// Proposals that may wait for the thread.
const QUEUE_PROPOSALS_MAX: usize = 1024;
/// Proposals in one transaction.
const GROUP_PROPOSALS_MAX: usize = 256;
/// Page cache of the embedded store; the state itself is kept whole in memory.
const CACHE_BYTES: usize = 1 << 20;

/// A [`Store`] of one node, in a file or in memory. Dropping it closes it: waits for the commit under way.
#[derive(Debug)]
pub struct LocalStore {
    published: Arc<Published>,
    queue: mpsc::Sender<Job>,
    versions: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        let exists = path.try_exists().map_err(|e| io_error(path, &e))?;
        let (database, state) = match exists {
            true => load(path)?,
            false => (create(path)?, State::default()),
        };
        LocalStore::start(path.to_owned(), Some(database), state)
    }

    /// An empty store that is lost with the process.
    pub fn in_memory() -> LocalStore {
        LocalStore::start(PathBuf::from("memory"), None, State::default()).expect("a thread can be started")
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

    fn start(path: PathBuf, database: Option<Database>, state: State) -> Result<LocalStore, ControlError> {
        let (queue, jobs) = mpsc::channel(QUEUE_PROPOSALS_MAX);
        let (told, versions) = watch::channel(state.counters.version);
        let published = Arc::new(Published::new(state));
        let stop = Arc::new(AtomicBool::new(false));
        let failed = None;
        let mut writer =
            Writer { database, jobs, told, published: published.clone(), stop: stop.clone(), failed };
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || writer.run());
        let thread = Mutex::new(Some(thread.map_err(|e| io_error(&path, &e))?));
        Ok(LocalStore { published, queue, versions, stop, thread })
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
}

/// The one thread that changes the state.
struct Writer {
    database: Option<Database>,
    jobs: mpsc::Receiver<Job>,
    told: watch::Sender<u64>,
    published: Arc<Published>,
    stop: Arc<AtomicBool>,
    /// Why the file takes no more writes.
    failed: Option<String>,
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
        if let Some(why) = &self.failed {
            return group.into_iter().for_each(|p| answer(p.answer, Err(ControlError::Failed(why.clone()))));
        }
        let mut state = State::clone(&self.published.read());
        let mut deltas = BTreeSet::new();
        let mut replies = Vec::with_capacity(group.len());
        for proposal in group {
            let reply = apply_all(&mut state, &proposal.commands, &mut deltas);
            replies.push((proposal.answer, reply));
        }
        if state.counters.version != self.published.read().counters.version {
            if let Err(why) = self.write(&state, &deltas) {
                tracing::error!(%why, "control store failed; it takes no more changes until a restart");
                self.failed = Some(why.clone());
                for (to, reply) in replies {
                    answer(to, reply.and(Err(ControlError::Unknown(why.clone()))));
                }
                return;
            }
            let version = state.counters.version;
            self.published.publish(state, deltas);
            self.told.send_replace(version);
        }
        replies.into_iter().for_each(|(to, reply)| answer(to, reply));
    }

    fn write(&self, state: &State, deltas: &BTreeSet<Delta>) -> Result<(), String> {
        match &self.database {
            Some(database) => write(database, state, deltas),
            None => Ok(()),
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

/// One durable transaction of the changed rows.
fn write(database: &Database, state: &State, deltas: &BTreeSet<Delta>) -> Result<(), String> {
    let transaction = begin(database)?;
    {
        let mut table = transaction.open_table(ROWS_TABLE).map_err(|e| e.to_string())?;
        let counters = rows::encode(&state.counters)?;
        table.insert(rows::COUNTERS, counters.as_slice()).map_err(|e| e.to_string())?;
        for delta in deltas {
            let key = rows::key(delta);
            match rows::value(state, delta)? {
                Some(value) => table.insert(key.as_slice(), value.as_slice()),
                None => table.remove(key.as_slice()),
            }
            .map_err(|e| e.to_string())?;
        }
    }
    transaction.commit().map_err(|e| e.to_string())
}

/// A transaction whose commit is two syncs. With one sync the embedded store, opened after a kill, takes a damaged
/// newest commit for a torn one and goes back to the one before it without a word.
fn begin(database: &Database) -> Result<WriteTransaction, String> {
    let mut transaction = database.begin_write().map_err(|e| e.to_string())?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Makes the file under another name first: a crash leaves either no store or a whole one.
fn create(path: &Path) -> Result<Database, ControlError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error(&new, &e)),
    }
    let database = builder().create(&new).map_err(|e| database_error(&new, e))?;
    format_new(&database).map_err(|what| ControlError::Io { path: shown(&new), what })?;
    let renamed = fs::rename(&new, path).and_then(|()| sync_directory_of(path));
    renamed.map_err(|e| io_error(path, &e))?;
    Ok(database)
}

fn format_new(database: &Database) -> Result<(), String> {
    let transaction = begin(database)?;
    {
        let mut format = transaction.open_table(FORMAT_TABLE).map_err(|e| e.to_string())?;
        format.insert(FORMAT_KEY, FORMAT).map_err(|e| e.to_string())?;
        let mut table = transaction.open_table(ROWS_TABLE).map_err(|e| e.to_string())?;
        let counters = rows::encode(&State::default().counters)?;
        table.insert(rows::COUNTERS, counters.as_slice()).map_err(|e| e.to_string())?;
    }
    transaction.commit().map_err(|e| e.to_string())
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Opens an existing file and reads all of it.
fn load(path: &Path) -> Result<(Database, State), ControlError> {
    read_whole(path, || builder().open(path).map_err(|e| database_error(path, e)))
}

/// Checks a store's file as opening it does, on a copy in memory: the file is not changed.
///
/// Errors: `Newer`, `Damaged`, `Io`.
pub fn verify(path: &Path) -> Result<(), ControlError> {
    let bytes = fs::read(path).map_err(|e| io_error(path, &e))?;
    let copy = InMemoryBackend::new();
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let copied = copy.set_len(length).and_then(|()| StorageBackend::write(&copy, 0, &bytes));
    copied.map_err(|e| damaged(path, format!("it cannot be copied: {e}")))?;
    let open = || builder().create_with_backend(copy).map_err(|e| database_error(path, e));
    read_whole(path, open).map(|_| ())
}

/// The embedded store may panic on a damaged file: that is damage too.
fn read_whole(
    path: &Path,
    open: impl FnOnce() -> Result<Database, ControlError>,
) -> Result<(Database, State), ControlError> {
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        let mut database = open()?;
        check_pages(path, &mut database)?;
        let state = read_all(path, &database)?;
        Ok((database, state))
    }));
    loaded.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(damaged(path, said.unwrap_or_else(|| "it cannot be read".to_owned())))
    })
}

/// Every page against its checksum: a row that a damaged page hides would be lost without a word.
fn check_pages(path: &Path, database: &mut Database) -> Result<(), ControlError> {
    match database.check_integrity() {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(path, "a page's checksum does not fit".to_owned())),
        Err(e) => Err(database_error(path, e)),
    }
}

fn read_all(path: &Path, database: &Database) -> Result<State, ControlError> {
    let damage = |what: String| damaged(path, what);
    let transaction = database.begin_read().map_err(|e| damage(e.to_string()))?;
    let tables: Vec<String> = transaction
        .list_tables()
        .map_err(|e| damage(e.to_string()))?
        .map(|table| table.name().to_owned())
        .collect();
    if !tables.iter().any(|name| name == FORMAT_TABLE.name()) {
        return Err(damage("it holds no control state of Rangeway".to_owned()));
    }
    let format = transaction.open_table(FORMAT_TABLE).map_err(|e| damage(e.to_string()))?;
    let format = format.get(FORMAT_KEY).map_err(|e| damage(e.to_string()))?;
    match format.map(|row| row.value()) {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            return Err(ControlError::Newer { path: shown(path), found, known: FORMAT });
        }
        found => return Err(damage(format!("format {found:?}"))),
    }
    let table = transaction.open_table(ROWS_TABLE).map_err(|e| damage(e.to_string()))?;
    let mut loader = Loader::default();
    for row in table.iter().map_err(|e| damage(e.to_string()))? {
        let (key, value) = row.map_err(|e| damage(e.to_string()))?;
        loader.row(key.value(), value.value()).map_err(damage)?;
    }
    loader.finish().map_err(damage)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn database_error(path: &Path, error: DatabaseError) -> ControlError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => ControlError::InUse(shown(path)),
        DatabaseError::Storage(redb::StorageError::Io(e)) => match e.kind() {
            // What the file should hold at a place is not there.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                damaged(path, format!("the file is cut or overwritten ({e})"))
            }
            _ => io_error(path, &e),
        },
        other => damaged(path, other.to_string()),
    }
}

fn damaged(path: &Path, what: String) -> ControlError {
    ControlError::Damaged { path: shown(path), what }
}

fn io_error(path: &Path, error: &io::Error) -> ControlError {
    ControlError::Io { path: shown(path), what: error.to_string() }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
