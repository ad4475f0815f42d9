//! The disks of a start: which of them are there, which are new, and which are missing. A disk that cannot be opened is as
//! one that died while the node ran, unless it is the first: that one holds the control state.

use super::start::{CONTROL_FILE, blocking};
use super::storage::AbsentDisk;
use super::{NodeOptions, StartError, disk_copies};
use crate::control::local::LocalStore;
use crate::control::state::{DiskStarts, State};
use crate::control::{ControlError, Store};
use crate::drive::expr::{PlaceError, disks_needed};
use crate::drive::narrow::disks_of;
use crate::drive::spec::DriveExpr;
use crate::store::places::{self, is_same};
use crate::store::{DiskStore, Identity, OpenError, RecoveryReport, StoreConfig, TailBudget};
use crate::types::{DiskId, NodeId};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// What a start has found.
pub(super) struct Opened {
    pub(super) control: Arc<dyn Store>,
    pub(super) cluster_id: Uuid,
    /// Those that are open, in the order of their directories, which are `dirs`.
    pub(super) disks: Vec<Arc<DiskStore>>,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) reports: Vec<RecoveryReport>,
    pub(super) absent: Vec<AbsentDisk>,
}

impl Opened {
    /// All disks of the node: what the control state remembers.
    pub(super) fn ids(&self) -> Vec<DiskId> {
        let open = self.disks.iter().map(|disk| disk.disk_id());
        open.chain(self.absent.iter().filter_map(|absent| absent.id)).collect()
    }

    /// Of those that are open, the generations that are durable there.
    pub(super) fn generations(&self) -> DiskStarts {
        self.disks.iter().map(|disk| (disk.disk_id(), disk.generation())).collect()
    }
}

pub(super) type Look = Result<Identity, OpenError>;

/// Opens the first disk and the control state on it, then the others.
///
/// Errors: the first disk or the control state cannot be used; a directory is somebody else's; a known disk is missing while
/// a given directory is empty, as it is when a disk is not mounted.
pub(super) async fn open(options: &NodeOptions, tail: &Arc<TailBudget>) -> Result<Opened, StartError> {
    let given = &options.data;
    let Some(first) = given.first() else {
        return Err(StartError::Data("no data directory is given".into()));
    };
    for at in 0..given.len() {
        refuse_twice(given, at)?;
    }
    let dirs = given.clone();
    let looks: Vec<Look> =
        blocking(move || dirs.iter().map(|dir| DiskStore::look(dir, &[CONTROL_FILE])).collect()).await?;
    for (dir, look) in given.iter().zip(&looks) {
        if let Err(error @ OpenError::Foreign { .. }) = look {
            return Err(unusable(dir, error));
        }
    }
    disk_copies::refuse_twins(given, &looks)?;
    refuse_misplaced_control(given, &looks, options.accept_new_disks)?;
    refuse_before_anything_is_made(options, &looks, tail)?;
    let path = first.join(CONTROL_FILE);
    // Before any disk begins another generation.
    let control = open_control_that_is_there(options, &path).await?;
    let refuse_older = |state: &State| {
        disk_copies::refuse_older(given, &looks, state.disk_starts.get(&NodeId(options.node_id)))
    };
    control.as_ref().map_or(Ok(()), |control| refuse_older(&control.read()))?;
    let (disk, report) = open_one(options, 0, None, tail)
        .await?
        .map_err(|e| first_unusable(first, &e, given.len(), is_new(looks.first())))?;
    if report.entries > 0 && !path.exists() {
        return Err(StartError::Data(format!(
            "{} is missing although {} records are there: it says whose they are; bring it back (the first --data \
             directory holds it)",
            path.display(),
            report.entries
        )));
    }
    let control: Arc<dyn Store> = match control {
        Some(control) => control,
        None => open_control(options, path).await?,
    };
    refuse_older(&control.read())?;
    let known = places::read(first);
    let absent = absent_disks(options, &looks, &control.read(), &known)?;
    let cluster_id = disk.cluster_id();
    let mut opened = Opened {
        control,
        cluster_id,
        disks: vec![disk],
        dirs: vec![first.clone()],
        reports: vec![report],
        absent,
    };
    for (at, (dir, look)) in given.iter().zip(looks).enumerate().skip(1) {
        // Those before it are made by now, so that a name of the same directory is found out.
        refuse_twice(given, at)?;
        let id = match look {
            Ok(Identity::Disk { id, .. }) => Some(id),
            Ok(Identity::New) => None,
            Err(error) if error.is_of_the_disk() => continue, // among the absent already
            Err(error) => return Err(unusable(dir, &error)),
        };
        match open_one(options, at, Some(cluster_id), tail).await? {
            Ok((disk, report)) => {
                opened.disks.push(disk);
                opened.dirs.push(dir.clone());
                opened.reports.push(report);
            }
            Err(error) if error.is_of_the_disk() => opened.absent.push(not_opened(id, dir, &error)),
            Err(error) => return Err(unusable(dir, &error)),
        }
    }
    disk_copies::refuse_older_control(&opened)?;
    for absent in &opened.absent {
        tracing::error!("{absent}; the node goes on with its other disks");
    }
    let mut places: BTreeMap<DiskId, PathBuf> =
        opened.absent.iter().filter_map(|a| Some((a.id?, a.dir.clone()?))).collect();
    places.extend(opened.disks.iter().map(|d| d.disk_id()).zip(opened.dirs.iter().map(|d| absolute(d))));
    places::write(first, &places);
    Ok(opened)
}

/// The control state that is there. `None`: there is none, or the disk must be opened to know what is wrong with it, or to have
/// room.
///
/// Errors: what is wrong with the control state alone.
async fn open_control_that_is_there(
    options: &NodeOptions,
    path: &Path,
) -> Result<Option<Arc<dyn Store>>, StartError> {
    if !path.exists() {
        return Ok(None);
    }
    match open_control(options, path.to_owned()).await {
        Ok(control) => Ok(Some(control)),
        Err(StartError::Control(ControlError::Io { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(test))]
async fn open_control(_: &NodeOptions, path: PathBuf) -> Result<Arc<dyn Store>, StartError> {
    Ok(Arc::new(blocking(move || LocalStore::open(&path)).await??))
}

#[cfg(test)]
async fn open_control(options: &NodeOptions, path: PathBuf) -> Result<Arc<dyn Store>, StartError> {
    let faults = options.data.first().and_then(|first| options.faults.0.get(first));
    if let Some(fails) = faults.and_then(|faults| faults.control_fails()) {
        let failing = move || crate::control::local_test::failing(&path, fails);
        return Ok(Arc::new(blocking(failing).await??));
    }
    if faults.is_none_or(|faults| !faults.no_room_for_control()) {
        return Ok(Arc::new(blocking(move || LocalStore::open(&path)).await??));
    }
    let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cram = full.clone();
    let store = blocking(move || crate::control::local_test::crammed(&path, cram)).await??;
    full.store(true, std::sync::atomic::Ordering::Release);
    Ok(Arc::new(store))
}

fn refuse_twice(given: &[PathBuf], at: usize) -> Result<(), StartError> {
    let Some((dir, earlier)) = given.get(..=at).and_then(<[_]>::split_last) else { return Ok(()) };
    match earlier.iter().find(|before| is_same(before, dir)) {
        None => Ok(()),
        Some(before) => Err(StartError::Data(format!(
            "data directory {} is given twice (before as {}): give each disk's directory once",
            dir.display(),
            before.display()
        ))),
    }
}

/// The control state is on the first disk; it is not begun anew beside disks that hold data of an older one.
fn refuse_misplaced_control(given: &[PathBuf], looks: &[Look], accept_new: bool) -> Result<(), StartError> {
    let (Some(first), Some(look)) = (given.first(), looks.first()) else { return Ok(()) };
    if let Err(error) = look {
        return Err(first_unusable(first, error, given.len(), false));
    }
    let control = first.join(CONTROL_FILE);
    if control.exists() && matches!(look, Ok(Identity::New)) && !accept_new {
        return Err(StartError::Data(format!(
            "{}: the superblock and all data are missing beside {}: bring them back, or, if they are lost for good, start once \
             with --accept-new-disks",
            first.display(),
            control.display()
        )));
    }
    if control.exists() {
        return Ok(());
    }
    let others = || given.iter().zip(looks).skip(1);
    if let Some((dir, _)) = others().find(|(dir, _)| dir.join(CONTROL_FILE).exists()) {
        return Err(StartError::Data(format!(
            "{}: {CONTROL_FILE}, the control state, is not here but in {}: name that directory first",
            first.display(),
            dir.display()
        )));
    }
    let used = others().find(|(_, look)| !matches!(look, Ok(Identity::New)));
    match used {
        None => Ok(()),
        Some((dir, _)) => Err(StartError::Data(format!(
            "{}: there is no {CONTROL_FILE} here, and {} is in use: the first --data directory holds the control state, \
             without which nobody knows whose the records are. Is its disk mounted? Mount it, or name the directory with \
             {CONTROL_FILE} first",
            first.display(),
            dir.display()
        ))),
    }
}

fn is_new(look: Option<&Look>) -> bool {
    matches!(look, Some(Ok(Identity::New)))
}

/// What would end a start after new directories were made is said before: a start that fails leaves nothing behind.
///
/// Errors: a directory is somebody else's, or in use; a new disk is too small; a new node has too few directories for its
/// default drive.
fn refuse_before_anything_is_made(
    options: &NodeOptions,
    looks: &[Look],
    tail: &Arc<TailBudget>,
) -> Result<(), StartError> {
    refuse_others_disks(options, looks)?;
    for (at, (dir, _)) in
        options.data.iter().zip(looks).enumerate().filter(|(_, (_, look))| is_new(Some(look)))
    {
        match DiskStore::has_room_to_begin(&store_config(options, dir, None, tail)) {
            Err(error) if at == 0 => return Err(first_unusable(dir, &error, options.data.len(), true)),
            Err(error) if !error.is_of_the_disk() => return Err(unusable(dir, &error)),
            // Found out again, and gone without.
            Err(_) | Ok(()) => {}
        }
    }
    let (drive, have) = (&options.config.drive, options.data.len());
    let needed = disks_needed(drive);
    // A node that exists may know more disks than are given.
    if is_new(looks.first()) && have < needed {
        return Err(default_drive_unusable(
            drive,
            &PlaceError::TooFewDisks { expr: drive.to_string(), needed, have },
        ));
    }
    Ok(())
}

/// Errors: a directory holds no disk, or the disk of another cluster or node, or one that a process uses.
fn refuse_others_disks(options: &NodeOptions, looks: &[Look]) -> Result<(), StartError> {
    let mut cluster = None;
    for (dir, look) in options.data.iter().zip(looks) {
        let belongs = match look {
            Ok(Identity::New) => continue,
            Ok(Identity::Disk { .. }) => DiskStore::belongs(dir, cluster, NodeId(options.node_id)),
            Err(error) if error.is_of_the_disk() => continue, // among the absent
            Err(error) => return Err(unusable(dir, error)),
        };
        match belongs {
            Ok(found) => cluster = Some(found),
            Err(error) if !error.is_of_the_disk() => return Err(unusable(dir, &error)),
            // Found out again when it is opened.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Topics that name no drive could not be made.
pub(super) fn default_drive_unusable(drive: &DriveExpr, error: &PlaceError) -> StartError {
    StartError::Data(format!("the default drive {drive} cannot be used here: {error}"))
}

/// `is_new`: nothing was there before.
fn first_unusable(dir: &Path, error: &OpenError, given: usize, is_new: bool) -> StartError {
    if !error.is_of_the_disk() {
        return unusable(dir, error);
    }
    let shown = dir.display();
    let control = dir.join(CONTROL_FILE);
    let control = control.display();
    let instead = if is_new { ", or name another directory (--data)" } else { "" };
    if let Some(remedy) = remedy(error) {
        return StartError::Data(format!("data directory {shown}: {error}: {remedy}{instead}"));
    }
    if is_new {
        return StartError::Data(format!(
            "data directory {shown}: {error}. Nothing was there yet: make it usable{instead}"
        ));
    }
    let without = match given {
        1 => "it is the only disk of this node: bring it, or the file, back as it was".to_owned(),
        _ => format!(
            "bring it back; if it is lost and {control} can be read, move that file into another of the data directories and \
             name that one first: the node then starts without this disk"
        ),
    };
    StartError::Data(format!(
        "data directory {shown}: {error}. The first data directory holds the control state ({control}), without which nothing can \
         be served: {without}"
    ))
}

/// What mends an error that says nothing of lost data.
fn remedy(error: &OpenError) -> Option<&'static str> {
    let OpenError::Io { error, .. } = error else { return None };
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Some("the user that runs the node must be allowed to read and write there; give it that right")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("mount it so that it can be written"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some("free some space"),
        io::ErrorKind::NotADirectory => {
            Some("a part of that path is a file, where a directory must be; move the file away")
        }
        _ => None,
    }
}

fn unusable(dir: &Path, error: &OpenError) -> StartError {
    StartError::Data(format!("data directory {}: {error}", dir.display()))
}

fn not_opened(id: Option<DiskId>, dir: &Path, error: &OpenError) -> AbsentDisk {
    let why = format!("cannot be used: {error}; mend it or bring it back, and start again");
    AbsentDisk { id, dir: Some(dir.to_owned()), why, given: true }
}

/// Disks that the control state knows and that are not there, and directories that cannot be used.
///
/// Errors: a disk with segments is missing and a directory is new: it may be the mount point of that disk.
fn absent_disks(
    options: &NodeOptions,
    looks: &[Look],
    state: &State,
    places: &BTreeMap<DiskId, PathBuf>,
) -> Result<Vec<AbsentDisk>, StartError> {
    let node = NodeId(options.node_id);
    let held = held(state);
    let recorded = state.nodes.get(&node).map(|node| node.disks.clone()).unwrap_or_default();
    let present: Vec<DiskId> = looks
        .iter()
        .filter_map(|look| if let Ok(Identity::Disk { id, .. }) = look { Some(*id) } else { None })
        .collect();
    let mut missing: Vec<DiskId> = held.keys().copied().filter(|id| !present.contains(id)).collect();
    let mut unheld: Vec<DiskId> =
        recorded.iter().copied().filter(|id| !present.contains(id) && !held.contains_key(id)).collect();
    let mut absent = Vec::new();
    let mut new = Vec::new();
    for (dir, look) in options.data.iter().zip(looks) {
        match look {
            Ok(Identity::Disk { .. }) => {}
            Ok(Identity::New) => new.push(dir),
            Err(error) if error.is_of_the_disk() => {
                let was_here = |id: &DiskId| places.get(id) == Some(&absolute(dir));
                let id = missing.iter().chain(&unheld).copied().find(was_here);
                missing.retain(|m| Some(*m) != id);
                unheld.retain(|m| Some(*m) != id);
                absent.push(not_opened(id, dir, error));
            }
            Err(_) => {}
        }
    }
    if let (Some(lost), Some(dir), false) = (missing.first(), new.first(), options.accept_new_disks) {
        return Err(StartError::Data(mount_first(*lost, held.get(lost), places.get(lost), dir)));
    }
    let gone = |id: &DiskId| {
        let why = match held.get(id) {
            Some(segments) => {
                format!(
                    "with {segments} is in none of the data directories: give its directory and start again"
                )
            }
            None => "is in none of the data directories".to_owned(),
        };
        AbsentDisk { id: Some(*id), dir: places.get(id).cloned(), why, given: false }
    };
    // One without segments is remembered only so that a drive's copies are not taken for too many.
    let fewer = recorded.len().saturating_sub(options.data.len() + missing.len());
    absent.extend(missing.iter().chain(unheld.iter().take(fewer)).map(gone));
    Ok(absent)
}

fn mount_first(lost: DiskId, holds: Option<&Held>, was: Option<&PathBuf>, new: &Path) -> String {
    let was = was.map_or_else(String::new, |dir| format!(" (last in {})", dir.display()));
    let holds = holds.map_or_else(String::new, ToString::to_string);
    let new = new.display();
    format!(
        "disk {lost}{was} with {holds} is in none of the data directories, and {new} is empty: is a disk not mounted? Mount it \
         and start again. To start without it, leave {new} out. If it is lost for good and {new} is to take its place, start \
         once with --accept-new-disks"
    )
}

/// What the chains say is on a disk.
#[derive(Default)]
struct Held {
    segments: usize,
    topics: std::collections::BTreeSet<String>,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (segments, topics) = (self.segments, self.topics.len());
        let first = self.topics.first().map(String::as_str).unwrap_or_default();
        write!(f, "{segments} segments of {topics} topics ('{first}'")?;
        f.write_str(if topics > 1 { ", …)" } else { ")" })
    }
}

fn held(state: &State) -> BTreeMap<DiskId, Held> {
    let mut held: BTreeMap<DiskId, Held> = BTreeMap::new();
    for topic in state.topics.values() {
        for entry in topic.ranges.values().flat_map(|range| &range.chain) {
            for disk in disks_of(&entry.drive) {
                let held = held.entry(disk).or_default();
                held.segments += 1;
                held.topics.insert(topic.name.clone());
            }
        }
    }
    held
}

fn absolute(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

type OneDisk = Result<(Arc<DiskStore>, RecoveryReport), OpenError>;

async fn open_one(
    options: &NodeOptions,
    at: usize,
    cluster_id: Option<Uuid>,
    tail: &Arc<TailBudget>,
) -> Result<OneDisk, StartError> {
    let dir = options.data.get(at).ok_or_else(|| StartError::Data("no data directory is given".into()))?;
    let config = store_config(options, dir, cluster_id, tail);
    blocking(move || DiskStore::open(config)).await
}

fn store_config(
    options: &NodeOptions,
    dir: &Path,
    cluster_id: Option<Uuid>,
    tail: &Arc<TailBudget>,
) -> StoreConfig {
    let disk = disk_bytes(dir);
    StoreConfig {
        dir: dir.to_owned(),
        cluster_id,
        node_id: NodeId(options.node_id),
        extent_bytes: options.config.extent_bytes,
        tail_bytes: tail.clone(),
        journal_bytes: options.config.journal_bytes_of(disk),
        chunk_bytes: usize::try_from(options.config.chunk_bytes).unwrap_or(usize::MAX),
        reserve_bytes: options.config.disk_reserve_bytes_of(disk),
        #[cfg(test)]
        faults: options.faults.0.get(dir).cloned(),
        #[cfg(not(test))]
        faults: None,
    }
}

/// Size of the disk that holds `dir`, in bytes; 0 when the system does not say.
fn disk_bytes(dir: &Path) -> u64 {
    let existing = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(existing).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(error: OpenError, given: usize, is_new: bool) -> String {
        let StartError::Data(why) = first_unusable(Path::new("/d"), &error, given, is_new) else {
            panic!("of data")
        };
        why
    }

    #[test]
    fn what_is_said_of_a_first_directory_fits_what_is_wrong_with_it() {
        let io = |kind: io::ErrorKind| OpenError::Io { file: "/d/extents".into(), error: kind.into() };
        for (kind, remedy) in [
            (io::ErrorKind::PermissionDenied, "allowed to read and write"),
            (io::ErrorKind::ReadOnlyFilesystem, "can be written"),
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::NotADirectory, "move the file away"),
        ] {
            let (new, old) = (said(io(kind), 1, true), said(io(kind), 1, false));
            assert!(new.contains(remedy) && new.contains("or name another directory (--data)"), "{new}");
            assert!(old.contains(remedy) && !old.contains("another"), "{old}");
            assert!(!new.contains("bring it") && !old.contains("bring it"), "nothing is lost: {new} {old}");
        }
        let new = said(io(io::ErrorKind::Other), 1, true);
        assert!(new.contains("Nothing was there yet") && !new.contains("bring it"), "{new}");
        let old = said(io(io::ErrorKind::Other), 1, false);
        assert!(old.contains("only disk of this node: bring it"), "{old}");
        assert!(said(io(io::ErrorKind::Other), 2, false).contains("move that file into another"));
    }
}
