//! Checks data directories that no node uses: every checksum of every file, and the control state. Changes nothing.

use super::start::CONTROL_FILE;
use crate::control::{self, ControlError};
use crate::store::places;
use crate::store::verify as store;
use std::path::{Path, PathBuf};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// What kind of thing: `superblock`, `extent header`, `group`, `entry`, `directory`, `chunk`, `leaf table`, `inventory`,
    /// `control state`, `missing file` or `unknown file`.
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
        all.findings.extend(report.findings.into_iter().map(finding));
        let file = directory.join(CONTROL_FILE);
        if file.exists() {
            all.control = true;
            all.files += 1;
            all.bytes += std::fs::metadata(&file).map_or(0, |m| m.len());
            all.findings.extend(control(file)?);
        }
    }
    if !all.control {
        all.findings.extend(directories.iter().filter_map(|directory| control_missing(directory)));
    }
    Ok(all)
}

/// Where disks are noted the control state is too.
fn control_missing(directory: &Path) -> Option<Finding> {
    directory.join(places::FILE).exists().then(|| Finding {
        kind: "missing file",
        file: directory.join(CONTROL_FILE),
        position: None,
        segment: None,
        address: None,
        what: format!("missing: it says whose the records are, and was here, beside {}", places::FILE),
    })
}

fn control(file: PathBuf) -> Result<Option<Finding>, CannotVerify> {
    let what = match control::file::verify(&file) {
        Ok(()) => return Ok(None),
        Err(ControlError::Damaged { what, .. }) => what,
        Err(other) => return Err(CannotVerify(other.to_string())),
    };
    Ok(Some(Finding { kind: "control state", file, position: None, segment: None, address: None, what }))
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
