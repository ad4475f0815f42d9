//! Offline check of one data directory: reads every byte that counts and checks every checksum. Changes nothing.

use crate::codec::entry::ENTRY_HEADER_LEN;
use crate::store::chunk::{self, CHUNKS, ChunkHeader};
use crate::store::directory::{self, Directories, DirectoryHeader, Summary, page_is_good};
use crate::store::extent::{CHUNK_KEY, EXTENTS, Extent};
use crate::store::format::{BLOCK, ExtentHeader, GROUP_HEADER_LEN, HeaderBlock, RecordKind};
use crate::store::leaf::{read_encoded, verify_entry};
use crate::store::leaf_table::{self, LeafTable};
use crate::store::open::extent_files;
use crate::store::recovery::{FoundGroup, read_up_to, scan};
use crate::store::superblock::{self, SUPERBLOCK, Superblock};
use crate::store::{Damage, OpenError};
use crate::types::{Address, LeafId, LogletId};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

mod missing;

/// What kind of thing is damaged.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// The superblock.
    Superblock,
    /// An extent's header.
    ExtentHeader,
    /// A write group: its header, a record's header or the padding.
    Group,
    /// An entry: its header or its payload.
    Entry,
    /// A directory of an extent or of a chunk.
    Directory,
    /// A chunk's header or padding.
    Chunk,
    /// The leaf table.
    LeafTable,
    /// The inventory.
    Inventory,
    /// A file that ought to be there: an extent, a chunk or its directory, a copy of the leaf table, the inventory.
    Missing,
    /// A file that is none of ours.
    Unknown,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub kind: FindingKind,
    /// File, place, segment and address where known, and what is wrong.
    pub damage: Damage,
}

/// How far a check is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The file that is read.
    pub file: &'a Path,
    /// Bytes of files done.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries checked.
    pub entries: u64,
    /// Bytes of a last write that was cut: no damage, the next start cuts it off.
    pub torn_bytes: u64,
    /// The highest loglet of which anything was read.
    pub newest_loglet: Option<LogletId>,
    /// What is wrong; empty when all is well.
    pub findings: Vec<Finding>,
}

struct Check {
    report: Report,
    total: u64,
}

struct Live {
    path: PathBuf,
    file: File,
    header: ExtentHeader,
}

/// Checks a data directory that no process uses.
///
/// Errors: `InUse` while a node runs on it; `Io` when a file cannot be read. What is damaged is in the report.
pub fn verify(dir: &Path, mut progress: impl FnMut(Progress<'_>)) -> Result<Report, OpenError> {
    // An error here is no finding: without the directory there is nothing to check.
    let _lock = superblock::lock(dir)?;
    let extents = dir.join(EXTENTS);
    let chunks = dir.join(CHUNKS);
    let total = total_bytes(&extents).map_err(OpenError::io(&extents))?
        + total_bytes(&chunks).map_err(OpenError::io(&chunks))?;
    let mut check = Check { report: Report::default(), total };
    let superblock = check.superblock(dir)?;
    check.leaf_tables(dir, superblock.as_ref())?;
    let live = check.headers(dir, superblock.as_ref())?;
    check.missing(dir, superblock.as_ref(), &live)?;
    check.unknown(&extents, "ext")?;
    check.unknown(&chunks, "chk")?;
    let mut groups = Vec::new();
    for (sequence, path) in chunk::files(dir).map_err(OpenError::io(&chunks))? {
        let (done, total) = (check.report.bytes, check.total);
        progress(Progress { file: &path, done, total });
        groups.extend(check.chunk(sequence, &path).map_err(OpenError::io(&path))?);
    }
    for (at, this) in live.iter().enumerate() {
        let (done, total) = (check.report.bytes, check.total);
        progress(Progress { file: &this.path, done, total });
        let next = live.get(at + 1).map(|next| next.header.first_group);
        let chunk = groups.iter().filter(|(n, _)| *n > this.header.number).map(|(_, group)| *group);
        let bound = next.into_iter().chain(chunk).min();
        check.extent(this, bound).map_err(OpenError::io(&this.path))?;
    }
    progress(Progress { file: dir, done: check.total, total: check.total });
    Ok(check.report)
}

fn total_bytes(extents: &Path) -> io::Result<u64> {
    let mut total = 0;
    let items = match std::fs::read_dir(extents) {
        // Made by the first start of a program that has chunks.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        items => items?,
    };
    for item in items {
        total += item?.metadata()?.len();
    }
    Ok(total)
}

impl Check {
    fn add(&mut self, kind: FindingKind, file: &Path, position: u64, what: impl Into<String>) {
        let damage =
            Damage { file: file.to_owned(), position, segment: None, address: None, what: what.into() };
        self.report.findings.push(Finding { kind, damage });
    }

    fn count(&mut self, bytes: u64) {
        self.report.files += 1;
        self.report.bytes += bytes;
    }

    fn superblock(&mut self, dir: &Path) -> Result<Option<Superblock>, OpenError> {
        let path = dir.join(SUPERBLOCK);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.add(FindingKind::Superblock, &path, 0, "missing");
                return Ok(None);
            }
            Err(error) => return Err(OpenError::Io { file: path, error }),
        };
        self.count(bytes.len() as u64);
        match Superblock::decode(&bytes, &path) {
            Ok(superblock) => Ok(Some(superblock)),
            Err(e) => {
                self.add(FindingKind::Superblock, &path, 0, e.to_string());
                Ok(None)
            }
        }
    }

    fn leaf_tables(&mut self, dir: &Path, superblock: Option<&Superblock>) -> Result<(), OpenError> {
        for name in leaf_table::FILES {
            let path = dir.join(name);
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(OpenError::Io { file: path, error }),
            };
            self.count(bytes.len() as u64);
            if superblock.is_some_and(|s| LeafTable::decode(&bytes, s.disk).is_none()) {
                self.add(FindingKind::LeafTable, &path, 0, "checksum, version or disk differs");
            }
        }
        Ok(())
    }

    fn headers(&mut self, dir: &Path, superblock: Option<&Superblock>) -> Result<Vec<Live>, OpenError> {
        let mut live = Vec::new();
        // Without its folder there is none.
        let files = if dir.join(EXTENTS).exists() { extent_files(dir)? } else { Vec::new() };
        for path in files {
            let file = File::open(&path).map_err(OpenError::io(&path))?;
            let len = file.metadata().map_err(OpenError::io(&path))?.len();
            let mut block = [0; BLOCK];
            read_up_to(&file, &mut block, 0).map_err(OpenError::io(&path))?;
            self.count(len);
            match ExtentHeader::read(&block) {
                HeaderBlock::Spare => {}
                HeaderBlock::Newer(v) => {
                    self.add(
                        FindingKind::ExtentHeader,
                        &path,
                        0,
                        format!("version {v} is newer than this program"),
                    );
                }
                HeaderBlock::Damaged => {
                    self.add(FindingKind::ExtentHeader, &path, 0, "both copies are damaged")
                }
                HeaderBlock::Live { header, damaged_copy } => {
                    if damaged_copy {
                        self.add(FindingKind::ExtentHeader, &path, 0, "one of two copies is damaged");
                    } else if !header.is_whole(&block) {
                        self.add(FindingKind::ExtentHeader, &path, 0, "bytes beside the header are not zero");
                    }
                    if superblock.is_some_and(|s| s.disk != header.disk) {
                        self.add(
                            FindingKind::ExtentHeader,
                            &path,
                            0,
                            format!("of another disk, {}", header.disk),
                        );
                        continue;
                    }
                    if len < header.len {
                        let what = format!("file cut: {len} bytes, expected {}", header.len);
                        self.add(FindingKind::ExtentHeader, &path, len, what);
                    }
                    live.push(Live { path, file, header });
                }
            }
        }
        live.sort_by_key(|l| l.header.number);
        Ok(live)
    }

    fn extent(&mut self, this: &Live, next: Option<u64>) -> io::Result<()> {
        let end = self.directory(this)?;
        let (mut entries, mut pads, mut newest) = (0, Vec::new(), self.report.newest_loglet);
        let mut visit = |group: &FoundGroup| {
            newest = newest.max(group.records.iter().map(|r| r.record.leaf.loglet).max());
            let kinds = group.records.iter().map(|r| r.record.kind);
            entries += kinds.filter(|k| matches!(k, RecordKind::Entry | RecordKind::Repair)).count() as u64;
            pads.push(group.position + (GROUP_HEADER_LEN + group.bytes.len()) as u64);
        };
        let found = scan(&this.file, &this.path, this.header, end.or(next), &mut visit)?;
        if let Some(last) = &found.last {
            visit(last);
        }
        self.report.newest_loglet = newest;
        self.report.entries += entries;
        self.report.torn_bytes += found.torn_bytes;
        for damage in found.damage {
            let kind = if damage.segment.is_some() { FindingKind::Entry } else { FindingKind::Group };
            self.report.findings.push(Finding { kind, damage });
        }
        // A last group that was cut has no padding to speak of.
        if found.torn_bytes > 0 {
            pads.pop();
        }
        for at in pads {
            let mut pad = vec![0; (at.next_multiple_of(BLOCK as u64) - at) as usize];
            read_up_to(&this.file, &mut pad, at)?;
            if pad.iter().any(|b| *b != 0) {
                self.add(FindingKind::Group, &this.path, at, "padding of a group is not zero");
            }
        }
        Ok(())
    }

    /// Checks an extent's directory; answers where it says that the extent's groups end.
    fn directory(&mut self, this: &Live) -> io::Result<Option<u64>> {
        let path = directory::path_of(&this.path);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        self.count(bytes.len() as u64);
        let (header, leaves) = match directory::open(&this.path) {
            Ok(opened) => opened,
            Err(what) => {
                self.add(FindingKind::Directory, &path, 0, what);
                return Ok(None);
            }
        };
        self.pages(&path, &bytes, &header, &leaves);
        Ok((header.extent == this.header.number).then_some(header.end_group))
    }

    fn pages(&mut self, path: &Path, bytes: &[u8], header: &DirectoryHeader, leaves: &[(LeafId, Summary)]) {
        for (number, page) in (0u32..).zip(bytes.chunks(BLOCK)) {
            if !page_is_good(page, header.extent, number) {
                let (segment, address, there) = directory::contents(header, leaves, number);
                let (file, position) = (path.to_owned(), u64::from(number) * BLOCK as u64);
                let what = format!("{there}: checksum differs");
                let damage = Damage { file, position, segment, address, what };
                self.report.findings.push(Finding { kind: FindingKind::Directory, damage });
            }
        }
    }

    /// Checks a chunk and its directory; answers its number and its first group.
    fn chunk(&mut self, sequence: u64, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let directory = directory::path_of(path);
        if !path.exists() {
            self.add(FindingKind::Missing, path, 0, missing::BESIDE_ITS_DIRECTORY);
            return Ok(None);
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        self.count(len);
        let pages = match std::fs::read(&directory) {
            Ok(bytes) => bytes,
            // Never finished: the next start deletes it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        self.count(pages.len() as u64);
        let key = CHUNK_KEY | sequence;
        let (header, leaves) = match directory::open(path) {
            Ok((header, leaves)) if header.extent == key && header.covers.is_some() => (header, leaves),
            Ok(_) => {
                self.add(FindingKind::Directory, &directory, 0, "directory of another file");
                return Ok(None);
            }
            Err(what) => {
                self.add(FindingKind::Directory, &directory, 0, what);
                return Ok(None);
            }
        };
        let newest = leaves.iter().map(|(id, _)| id.loglet).max();
        self.report.newest_loglet = self.report.newest_loglet.max(newest);
        let covers = header.covers.unwrap_or_default();
        let found = Some((covers.1, header.first_group));
        self.pages(&directory, &pages, &header, &leaves);
        let mut block = [0; BLOCK];
        read_up_to(&file, &mut block, 0)?;
        let expected = ChunkHeader { disk: header.disk, sequence, covers, data_end: header.data_end };
        if block != expected.encode() {
            let holds: Vec<String> = leaves.iter().take(8).map(|(id, _)| id.to_string()).collect();
            let more = if leaves.len() > 8 { ", …" } else { "" };
            let what = format!(
                "header block differs from the directory, by which its entries are read; it holds segments {}{more}",
                holds.join(", ")
            );
            self.add(FindingKind::Chunk, path, 0, what);
        }
        if len < header.data_end {
            let what = format!("file cut: {len} bytes, expected {}", header.data_end);
            self.add(FindingKind::Chunk, path, len, what);
        }
        let mut padding = vec![0; len.saturating_sub(header.data_end).min(BLOCK as u64) as usize];
        read_up_to(&file, &mut padding, header.data_end)?;
        if padding.iter().any(|b| *b != 0) {
            self.add(FindingKind::Chunk, path, header.data_end, "padding is not zero");
        }
        let chunk = Extent::chunk(sequence, covers, path.to_owned(), file, len);
        chunk.directory.get_or_init(|| header);
        self.chunk_entries(&chunk, &leaves);
        Ok(found)
    }

    fn chunk_entries(&mut self, chunk: &Extent, leaves: &[(LeafId, Summary)]) {
        let directories = Directories::as_they_are();
        let mut bytes = Vec::new();
        for (id, summary) in leaves {
            for i in 0..summary.entries {
                let checked = directories.entry(chunk, summary, i).map_err(|e| (e.to_string(), None, 0));
                let checked = checked.and_then(|entry| {
                    bytes.resize(ENTRY_HEADER_LEN + entry.payload_len as usize, 0);
                    let place = (Some(Address(entry.address)), u64::from(entry.position));
                    read_encoded(chunk, &entry, &directories, &mut bytes)
                        .map_err(|e| e.to_string())
                        .and_then(|_| verify_entry(&bytes))
                        .map_err(|what| (what, place.0, place.1))
                });
                match checked {
                    Ok(_) => self.report.entries += 1,
                    // The page is a finding already.
                    Err((what, ..)) if directories.tells(&what) => {}
                    Err((what, address, position)) => {
                        let file = chunk.path.clone();
                        let damage = Damage { file, position, segment: Some(*id), address, what };
                        self.report.findings.push(Finding { kind: FindingKind::Entry, damage });
                    }
                }
            }
        }
    }
}
