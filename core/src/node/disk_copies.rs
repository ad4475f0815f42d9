//! Copies of disks in the place of the disks, and of the control state: which of what is given is not what the node last
//! wrote. Nothing here changes anything.

use super::StartError;
use super::disks::{Look, Opened};
use super::start::CONTROL_FILE;
use crate::control::state::DiskStarts;
use crate::store::{DiskStore, Identity};
use crate::types::{DiskId, Generation, LogletId};
use std::path::{Path, PathBuf};

/// Two directories of one disk.
pub(super) struct Twins<'a> {
    pub(super) first: &'a PathBuf,
    pub(super) second: &'a PathBuf,
    why: String,
}

/// Directories that say they are the same disk, by pairs.
pub(super) fn twins<'a>(given: &'a [PathBuf], looks: &[Look]) -> Vec<Twins<'a>> {
    let mut found = Vec::new();
    let mut seen: Vec<(&PathBuf, Identity)> = Vec::new();
    for (dir, look) in given.iter().zip(looks) {
        let Ok(identity @ Identity::Disk { id, .. }) = look else { continue };
        let before =
            seen.iter().find(|(_, seen)| matches!(seen, Identity::Disk { id: other, .. } if id == other));
        if let Some((first, before)) = before {
            found.push(Twins { first, second: dir, why: told_apart(before, identity) });
        }
        seen.push((dir, *identity));
    }
    found
}

fn told_apart(first: &Identity, second: &Identity) -> String {
    let (Identity::Disk { id, generation: first }, Identity::Disk { generation: second, .. }) =
        (first, second)
    else {
        return String::new();
    };
    format!("disk {id} (started {} times and {} times)", first.0, second.0)
}

impl std::fmt::Display for Twins<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, second) = (self.first.display(), self.second.display());
        write!(
            f,
            "data directories {first} and {second} are both {}: one is a copy of the other, and what is written to one is \
             missing in the other. Give only the one that the node used last; a further disk begins in an empty directory",
            self.why
        )
    }
}

/// Errors: two directories are the same disk.
pub(super) fn refuse_twins(given: &[PathBuf], looks: &[Look]) -> Result<(), StartError> {
    match twins(given, looks).first() {
        None => Ok(()),
        Some(twins) => Err(StartError::Data(twins.to_string())),
    }
}

/// A directory with an older copy of its disk than the node last started on.
#[derive(Debug)]
pub(super) struct Older<'a> {
    pub(super) dir: &'a PathBuf,
    disk: DiskId,
    found: Generation,
    known: Generation,
    /// What to do if there is no other copy.
    else_do: &'static str,
}

/// Directories whose disk was once in a later generation. One that was away has its own last one still. A higher one than is
/// known is of a start that was cut off before it was recorded, or of one before there were records.
pub(super) fn older<'a>(given: &'a [PathBuf], looks: &[Look], starts: &DiskStarts) -> Vec<Older<'a>> {
    let older = |(dir, look): (&'a PathBuf, &Look)| {
        let Ok(Identity::Disk { id, generation }) = look else { return None };
        let (disk, found, known) = (*id, *generation, *starts.get(id)?);
        let else_do = else_do(dir, given.len());
        (found < known).then_some(Older { dir, disk, found, known, else_do })
    };
    given.iter().zip(looks).filter_map(older).collect()
}

fn else_do(dir: &Path, given: usize) -> &'static str {
    match (dir.join(CONTROL_FILE).exists(), given) {
        (false, _) => {
            "put an empty directory in its place and start once with --accept-new-disks, or start without it"
        }
        (true, 1) => "move all but control.redb out of it and start once with --accept-new-disks",
        (true, _) => {
            "move control.redb into another of the data directories, name that one first, and start without this one"
        }
    }
}

impl std::fmt::Display for Older<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Older { dir, disk, found, known, else_do } = self;
        write!(
            f,
            "data directory {}: this is an older copy of disk {disk}: it is of its start {}, expected is start {} or a later one; \
             what was acknowledged since is not in it. Put the disk back as it was; if that one is lost for good, {else_do}",
            dir.display(),
            found.0,
            known.0
        )
    }
}

/// Errors: a directory holds an older copy of its disk.
pub(super) fn refuse_older(
    given: &[PathBuf],
    looks: &[Look],
    starts: Option<&DiskStarts>,
) -> Result<(), StartError> {
    match starts.and_then(|starts| older(given, looks, starts).into_iter().next()) {
        None => Ok(()),
        Some(older) => Err(StartError::Data(older.to_string())),
    }
}

/// Loglets are numbered by the control state, durably, before anything is stored of them: a disk that has one that is not
/// numbered yet was written with a later control state.
///
/// Errors: there is such a disk.
pub(super) fn refuse_older_control(opened: &Opened) -> Result<(), StartError> {
    let next = opened.control.read().counters.next_loglet;
    let newest = |(disk, dir): (&std::sync::Arc<DiskStore>, &PathBuf)| {
        let newest = disk.newest_loglet().filter(|newest| newest.0 >= next)?;
        Some(control_is_older(dir, newest, next))
    };
    match (opened.disks.iter().zip(&opened.dirs).find_map(newest), opened.dirs.first()) {
        (Some(why), Some(first)) => {
            let control = first.join(CONTROL_FILE);
            Err(StartError::Data(format!("{}: {why}", control.display())))
        }
        _ => Ok(()),
    }
}

/// What is said of a control state that does not know a segment in `dir`.
pub(super) fn control_is_older(dir: &Path, newest: LogletId, next: u64) -> String {
    format!(
        "this is an older copy of the control state: {} holds segment {newest}, and the next to be made here would be {}; of what \
         was acknowledged since it does not know whose it is. Put back {CONTROL_FILE} as it was last",
        dir.display(),
        LogletId(next)
    )
}
