//! The file of the control state: one durable transaction for each group of changes, checked whole when it is opened.
//!
//! A disk that is full is no failed disk: nothing was lost, and nothing that a sync should have kept was given up. The embedded store must
//! be opened again after any error, and then says whether the change is in the file. After every other error nothing is written
//! until the process is started again.

use super::rows::{self, Loader};
use super::state::State;
use super::{ControlError, Delta};
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    TableHandle, WriteTransaction,
};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Format of the file; a higher one is refused.
const FORMAT: u64 = 1;
const FORMAT_KEY: &str = "rangeway.control";
const FORMAT_TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const ROWS_TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// Page cache of the embedded store; the state itself is kept whole in memory.
const CACHE_BYTES: usize = 1 << 20;

/// Opens an existing file.
pub(super) type Opener = Box<dyn Fn(&Path) -> Result<Database, DatabaseError> + Send>;

/// See the module head.
pub(super) struct ControlFile {
    path: PathBuf,
    /// `None` once a write failed.
    database: Option<Database>,
    opener: Opener,
}

/// Why a change was not written, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteError {
    /// There was no room on the disk.
    Full(String),
    /// Something else: the file is not to be written again.
    Failed(String),
}

impl fmt::Debug for ControlFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ControlFile {
    /// Opens the file, made if it is not there; and the state in it.
    ///
    /// Errors: `InUse`, `Newer`, `Damaged`, `Io`; nothing was changed then.
    pub(super) fn open(path: &Path) -> Result<(ControlFile, State), ControlError> {
        let exists = path.try_exists().map_err(|e| io_error(path, &e))?;
        if !exists {
            drop(create(path)?);
        }
        ControlFile::open_by(path, Box::new(|path| builder().open(path)))
    }

    /// Opens an existing file in another way than by its path alone.
    pub(super) fn open_by(path: &Path, opener: Opener) -> Result<(ControlFile, State), ControlError> {
        let mut file = ControlFile { path: path.to_owned(), database: None, opener };
        let state = file.open_again()?;
        Ok((file, state))
    }

    /// Opens the file after a write failed; the state in it.
    ///
    /// Errors: as [`open`](ControlFile::open); it can be tried again.
    pub(super) fn open_again(&mut self) -> Result<State, ControlError> {
        self.database = None;
        let path = &self.path;
        let (database, state) =
            read_whole(path, || (self.opener)(path).map_err(|e| database_error(path, e)))?;
        self.database = Some(database);
        Ok(state)
    }

    /// One durable transaction of the changed rows; how many bytes of keys and values that was.
    pub(super) fn write(&mut self, state: &State, deltas: &BTreeSet<Delta>) -> Result<u64, WriteError> {
        let Some(database) = &self.database else {
            return Err(WriteError::Full("the file is not open since the disk was full".to_owned()));
        };
        let written = write(database, state, deltas);
        if written.is_err() {
            self.database = None;
        }
        written.map_err(|error| match error {
            redb::Error::Io(error) if is_full(&error) => WriteError::Full(error.to_string()),
            other => WriteError::Failed(other.to_string()),
        })
    }
}

/// Whether an error says that the disk, or a quota, is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write(database: &Database, state: &State, deltas: &BTreeSet<Delta>) -> Result<u64, redb::Error> {
    let not_encoded = |why: String| redb::Error::Io(io::Error::other(why));
    let mut bytes = 0;
    let transaction = begin(database)?;
    {
        let mut table = transaction.open_table(ROWS_TABLE)?;
        let counters = rows::encode(&state.counters).map_err(not_encoded)?;
        bytes += rows::COUNTERS.len() + counters.len();
        table.insert(rows::COUNTERS, counters.as_slice())?;
        for delta in deltas {
            let key = rows::key(delta);
            bytes += key.len();
            match rows::value(state, delta).map_err(not_encoded)? {
                Some(value) => {
                    bytes += value.len();
                    table.insert(key.as_slice(), value.as_slice())?
                }
                None => table.remove(key.as_slice())?,
            };
        }
    }
    transaction.commit()?;
    Ok(bytes as u64)
}

/// A transaction whose commit is two syncs. With one sync the embedded store, opened after a kill, takes a damaged
/// newest commit for a torn one and goes back to the one before it without a word.
fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
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
    let transaction = begin(database).map_err(|e| e.to_string())?;
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

/// Checks a store's file as opening it does, on a copy in memory, and answers the state in it: the file is not changed.
///
/// Errors: `Newer`, `Damaged`, `Io`.
pub fn verify(path: &Path) -> Result<State, ControlError> {
    let bytes = fs::read(path).map_err(|e| io_error(path, &e))?;
    let copy = InMemoryBackend::new();
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let copied = copy.set_len(length).and_then(|()| StorageBackend::write(&copy, 0, &bytes));
    copied.map_err(|e| damaged(path, format!("it cannot be copied: {e}")))?;
    let open = || builder().create_with_backend(copy).map_err(|e| database_error(path, e));
    read_whole(path, open).map(|(_, state)| state)
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

pub(super) fn builder() -> Builder {
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

pub(super) fn io_error(path: &Path, error: &io::Error) -> ControlError {
    ControlError::Io { path: shown(path), what: error.to_string() }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
