//! Checks data directories that no node uses: every checksum of every file, and the control state. Changes nothing.

use super::disk_copies::{control_is_older, older, twins};
use super::start::CONTROL_FILE;
use crate::control::state::State;
use crate::control::{self, ControlError};
use crate::store::superblock::SUPERBLOCK;
use crate::store::verify as store;
use crate::store::{DiskStore, places};
use std::path::{Path, PathBuf};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// What kind of thing: `superblock`, `extent header`, `group`, `entry`, `directory`, `chunk`, `leaf table`, `inventory`,
    /// `control state`, `copied disk`, `missing file` or `unknown file`.
    pub kind: &'static str,
    /// The file.
    pub file: PathBuf,
    /// Where in it, in bytes.
    pub position: Option<u64>,
    /// The segment, where it is known.
    pub segment: Option<String>,
    /// The address in the segment, where it is known.
    pub address: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Files read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries checked.
    pub entries: u64,
    /// Bytes of last writes that were cut by a crash: no damage, the next start cuts them off.
    pub torn_bytes: u64,
    /// Whether control state was among what was checked.
    pub control: bool,
    /// What is wrong; empty when all is well.
    pub findings: Vec<Finding>,
}

/// Why nothing could be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CannotVerify(String);

/// Checks directories one after the other. `progress` is told the file and the bytes done and in all of its directory.
///
/// Errors: a directory that a node uses, or a file that cannot be read. What is damaged is a finding.
pub fn verify(
    directories: &[PathBuf],
    mut progress: impl FnMut(&Path, u64, u64),
) -> Result<Verified, CannotVerify> {
    let mut all = Verified::default();
    let (mut newest, mut states) = (Vec::new(), Vec::new());
    for directory in directories {
        if !directory.is_dir() {
            return Err(CannotVerify(format!("{}: no such directory", directory.display())));
        }
        let report = store::verify(directory, |at| progress(at.file, at.done, at.total))
            .map_err(|e| CannotVerify(e.to_string()))?;
        all.files += report.files;
        all.bytes += report.bytes;
        all.entries += report.entries;
        all.torn_bytes += report.torn_bytes;
        newest.extend(report.newest_loglet.map(|newest| (directory, newest)));
        all.findings.extend(report.findings.into_iter().map(finding));
        let file = directory.join(CONTROL_FILE);
        if file.exists() {
            all.control = true;
            all.files += 1;
            all.bytes += std::fs::metadata(&file).map_or(0, |m| m.len());
            match control(&file)? {
                Ok(state) => states.push((file, state)),
                Err(damage) => all.findings.push(damage),
            }
        }
    }
    if !all.control {
        all.findings.extend(directories.iter().filter_map(|directory| control_missing(directory)));
    }
    all.findings.extend(copied(directories, &states));
    for (file, state) in &states {
        let next = state.counters.next_loglet;
        let later = newest.iter().find(|(_, newest)| newest.0 >= next);
        all.findings.extend(later.map(|(directory, newest)| {
            of("control state", file.clone(), control_is_older(directory, *newest, next))
        }));
    }
    Ok(all)
}

/// Directories that no start takes together, or not with this control state.
fn copied(directories: &[PathBuf], states: &[(PathBuf, State)]) -> Vec<Finding> {
    let looks: Vec<_> = directories.iter().map(|dir| DiskStore::look(dir, &[CONTROL_FILE])).collect();
    let found = |directory: &Path, what| of("copied disk", directory.join(SUPERBLOCK), what);
    let twins = twins(directories, &looks);
    let twins = twins.iter().map(|twins| found(twins.second, twins.to_string()));
    let starts = states.iter().flat_map(|(_, state)| state.disk_starts.values());
    let older = starts.flat_map(|starts| older(directories, &looks, starts));
    twins.chain(older.map(|older| found(older.dir, older.to_string()))).collect()
}

fn of(kind: &'static str, file: PathBuf, what: String) -> Finding {
    Finding { kind, file, position: None, segment: None, address: None, what }
}

/// Where disks are noted the control state is too.
fn control_missing(directory: &Path) -> Option<Finding> {
    directory.join(places::FILE).exists().then(|| {
        let what = format!("missing: it says whose the records are, and was here, beside {}", places::FILE);
        of("missing file", directory.join(CONTROL_FILE), what)
    })
}

/// The control state, or what is wrong with it.
fn control(file: &Path) -> Result<Result<State, Finding>, CannotVerify> {
    match control::file::verify(file) {
        Ok(state) => Ok(Ok(state)),
        Err(ControlError::Damaged { what, .. }) => Ok(Err(of("control state", file.to_owned(), what))),
        Err(other) => Err(CannotVerify(other.to_string())),
    }
}

fn finding(found: store::Finding) -> Finding {
    let kind = match found.kind {
        store::FindingKind::Superblock => "superblock",
        store::FindingKind::ExtentHeader => "extent header",
        store::FindingKind::Group => "group",
        store::FindingKind::Entry => "entry",
        store::FindingKind::Directory => "directory",
        store::FindingKind::Chunk => "chunk",
        store::FindingKind::LeafTable => "leaf table",
        store::FindingKind::Inventory => "inventory",
        store::FindingKind::Missing => "missing file",
        store::FindingKind::Unknown => "unknown file",
    };
    let damage = found.damage;
    Finding {
        kind,
        file: damage.file,
        position: Some(damage.position),
        segment: damage.segment.map(|leaf| leaf.to_string()),
        address: damage.address.map(|address| address.0),
        what: damage.what,
    }
}
