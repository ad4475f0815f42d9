//! Writes to extent files: durable when they return, without the page cache where the file system can, and with a hook
//! that makes them fail in tests.

use crate::store::format::BLOCK;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// `O_DSYNC` on Linux (all architectures that Rust's standard library supports there but MIPS and SPARC).
const O_DSYNC: i32 = 0o10000;

/// What a test makes a write do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The write fails; nothing is written.
    WriteFails,
    /// The first so many bytes are written, then it fails, as at a power cut.
    Torn(usize),
    /// All is written, the sync fails.
    SyncFails,
    /// No space left on the device.
    Full,
}

/// A step of a rewrite of extents into a chunk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RewriteStep {
    /// A piece of the chunk is to be written.
    Piece,
    /// The chunk's bytes are on the disk; it is to be registered by its directory.
    Register,
    /// The chunk counts; the extents are to be recycled.
    Recycle,
}

/// Decides the fate of writes and the space of the file system, in tests.
pub trait Faults: Send + Sync {
    /// Asked before each durable write of an extent.
    fn write(&self, len: usize) -> Fault;
    /// Asked before a file of `len` bytes is allocated; `true`: the file system is full.
    fn allocate_fails(&self, _len: u64) -> bool {
        false
    }
    /// Asked at the start; `true`: the file system has no room for the superblock of this start.
    fn no_room_to_begin(&self) -> bool {
        false
    }
    /// Asked when the control state is opened: the file is on a disk that has no room from then on.
    #[cfg(test)]
    fn no_room_for_control(&self) -> bool {
        false
    }
    /// Asked when the control state is opened: its file fails while the flag is set.
    #[cfg(test)]
    fn control_fails(&self) -> Option<Arc<std::sync::atomic::AtomicBool>> {
        None
    }
    /// Asked before a file of an extent is opened; `true`: the process has no descriptor left.
    fn no_descriptor(&self) -> bool {
        false
    }
    /// Asked before each step of a rewrite; `true`: all rewriting ends there and leaves behind what there is, as if the
    /// process were killed.
    fn rewrite_ends(&self, _step: RewriteStep) -> bool {
        false
    }
    /// Replaces the file system's free bytes.
    fn available(&self) -> Option<u64> {
        None
    }
}

/// How extents are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// `O_DIRECT | O_DSYNC`: one system call, no copy in the page cache.
    Direct,
    /// Buffered, then `fdatasync`: where the file system has no direct writes.
    Buffered,
}

/// Between two tries to open a file, and how many there are at most: a minute.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);
const DESCRIPTOR_TRIES: u32 = 600;

/// Runs what opens a file, again as long as the process or the system has no descriptor left: the disk is not to blame, and
/// connections that end give theirs back.
///
/// Errors: any other, at once; none left after a minute.
pub(crate) fn with_descriptor<T>(
    faults: Option<&Arc<dyn Faults>>,
    mut open: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let none_left = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    let is_short = |e: &io::Error| none_left.iter().any(|left| e.raw_os_error() == Some(left.raw_os_error()));
    for tried in 0..DESCRIPTOR_TRIES {
        let opened = match faults.is_some_and(|f| f.no_descriptor()) {
            true => Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error())),
            false => open(),
        };
        match opened {
            Err(error) if is_short(&error) => {
                if tried == 0 {
                    tracing::warn!(%error, "no extent can be opened; tried again until connections or files are closed");
                }
                std::thread::sleep(DESCRIPTOR_PAUSE);
            }
            opened => return opened,
        }
    }
    open()
}

fn open_direct(path: &Path) -> io::Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    OpenOptions::new().write(true).custom_flags(direct | O_DSYNC).open(path)
}

/// A file that a start writes and deletes.
pub(crate) const PROBE: &str = "probe.new";

impl WriteMode {
    /// Which mode the file system of `dir` can do; tried with a file of one block.
    pub(crate) fn probe(dir: &Path) -> io::Result<WriteMode> {
        let path = dir.join(PROBE);
        File::create(&path)?;
        let mut block = Aligned::with_capacity(BLOCK);
        block.extend(&[0; BLOCK]);
        let tried = open_direct(&path).and_then(|f| f.write_all_at(block.filled(), 0));
        std::fs::remove_file(&path)?;
        match tried {
            Ok(()) => Ok(WriteMode::Direct),
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Ok(WriteMode::Buffered)
            }
            Err(e) => Err(e),
        }
    }
}

/// An extent's file, opened for durable writes.
pub(crate) struct Writer {
    file: File,
    mode: WriteMode,
    faults: Option<Arc<dyn Faults>>,
}

impl Writer {
    pub(crate) fn open(path: &Path, mode: WriteMode, faults: Option<Arc<dyn Faults>>) -> io::Result<Writer> {
        let file = with_descriptor(faults.as_ref(), || match mode {
            WriteMode::Direct => open_direct(path),
            WriteMode::Buffered => OpenOptions::new().write(true).open(path),
        })?;
        Ok(Writer { file, mode, faults })
    }

    /// Writes whole blocks at `position`; on the disk when it returns.
    ///
    /// Errors: for good; what the file holds there is not known (never retried).
    pub(crate) fn write(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        match self.faults.as_ref().map_or(Fault::None, |f| f.write(bytes.len())) {
            Fault::None => {}
            Fault::WriteFails => return Err(io::Error::other("injected write failure")),
            Fault::Full => return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())),
            Fault::SyncFails => {
                self.file.write_all_at(bytes, position)?;
                return Err(io::Error::other("injected sync failure"));
            }
            Fault::Torn(len) => {
                let whole = len.min(bytes.len());
                // A cut inside a block needs a buffered write.
                let file = OpenOptions::new()
                    .write(true)
                    .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file)))?;
                file.write_all_at(bytes.get(..whole).unwrap_or(bytes), position)?;
                return Err(io::Error::other("injected torn write"));
            }
        }
        self.file.write_all_at(bytes, position)?;
        match self.mode {
            WriteMode::Direct => Ok(()),
            WriteMode::Buffered => self.file.sync_data(),
        }
    }
}

/// A buffer whose bytes begin on a block boundary, reused for ever.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn with_capacity(capacity: usize) -> Aligned {
        let bytes = vec![0; capacity + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Aligned { bytes, start, len: 0 }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len() - BLOCK
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends; grows (with a copy) only for what is larger than the buffer ever was.
    pub(crate) fn extend(&mut self, piece: &[u8]) {
        if self.len + piece.len() > self.capacity() {
            let mut larger = Aligned::with_capacity((self.len + piece.len()).next_multiple_of(BLOCK));
            larger.extend(self.filled());
            *self = larger;
        }
        let at = self.start + self.len;
        self.bytes[at..at + piece.len()].copy_from_slice(piece);
        self.len += piece.len();
    }

    /// Fills up to a whole block with zeros.
    pub(crate) fn pad(&mut self) {
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        let missing = self.len.next_multiple_of(BLOCK) - self.len;
        self.extend(&ZEROS[..missing]);
    }

    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The first `N` bytes, to fill in later.
    pub(crate) fn front(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}
