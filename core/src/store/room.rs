//! Room to start on a full disk: a small file that is given up when there is no other, and the least size of a disk.
//!
//! A start writes little (superblock, control state), but it must write. Entries stop at the reserve, long before; what
//! fills a disk to its last block is somebody else, and then the node still starts, for its readers.

use crate::store::superblock::{OpenError, sync_dir};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// The file that is given up.
pub(crate) const BALLAST: &str = "ballast";
const BALLAST_BYTES: u64 = 1 << 20;
/// The ballast is laid only where so many times its size is free.
const BALLAST_SHARE: u64 = 16;

fn free(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Gives the ballast up if less than its size is free; whether it did.
pub(crate) fn make(dir: &Path) -> io::Result<bool> {
    let path = dir.join(BALLAST);
    if free(dir)? >= BALLAST_BYTES || !path.exists() {
        return Ok(false);
    }
    std::fs::remove_file(&path)?;
    sync_dir(dir)?;
    Ok(true)
}

/// Lays the ballast if it is not there and room is plenty.
pub(crate) fn lay(dir: &Path) -> io::Result<()> {
    let path = dir.join(BALLAST);
    if path.exists() || free(dir)? < BALLAST_SHARE * BALLAST_BYTES {
        return Ok(());
    }
    let file: File = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BALLAST_BYTES) {
        Ok(()) => file.sync_all()?,
        // A file without blocks of its own would free nothing.
        Err(rustix::io::Errno::OPNOTSUPP) => std::fs::remove_file(&path)?,
        Err(e) => return Err(e.into()),
    }
    sync_dir(dir)
}

/// Whether a directory was not opened since the disk (or a quota) is full.
pub(crate) fn is_full(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { error, .. } if says_full(error))
}

/// Whether an error says that the disk (or a quota) is full.
pub(crate) fn says_full(error: &io::Error) -> bool {
    let full = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT];
    full.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Least size of a disk, in bytes: two extents, one being written and the next, above the reserve.
pub(crate) fn least(extent_bytes: u64, reserve_bytes: u64) -> u64 {
    extent_bytes.saturating_mul(2).saturating_add(reserve_bytes)
}

/// Size of the disk that holds `dir`, in bytes.
pub(crate) fn disk_bytes(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_is_laid_once_and_kept_while_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        lay(dir.path()).unwrap();
        lay(dir.path()).unwrap();
        let laid = std::fs::metadata(dir.path().join(BALLAST)).map(|m| m.len());
        assert!(laid.is_err() || laid.is_ok_and(|len| len == BALLAST_BYTES));
        assert!(!make(dir.path()).unwrap(), "there is room");
    }

    #[test]
    fn only_a_full_disk_is_a_full_disk() {
        let io = |n| OpenError::Io { file: "f".into(), error: io::Error::from_raw_os_error(n) };
        assert!(is_full(&io(28)));
        assert!(!is_full(&io(5)));
        assert!(!is_full(&OpenError::InUse("d".into())));
    }
}
