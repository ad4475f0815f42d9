//! Reading extents back: groups in order, tears cut, damage reported.
//!
//! A group is *proven* when a later header exists: of a later group, or of an extent whose first group is later. Bad
//! bytes in a proven group are damage (INV-STORE-4); in the last, unproven one they are a tear, of which nothing was
//! acknowledged (INV-STORE-5).

use crate::codec::entry::{ENTRY_HEADER_LEN, EntryHeader, check};
use crate::store::format::{
    BLOCK, ExtentHeader, GROUP_HEADER_LEN, GroupHeader, RECORD_HEADER_LEN, RecordHeader, RecordKind,
    align_up, u64_at,
};
use crate::store::leaf::verify_entry;
use crate::types::{Address, LeafId};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How far ahead a search for a later group reads at a time.
const WINDOW: usize = 1 << 20;

/// Bytes that are there and wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where in it, in bytes: of a damaged entry its header, as reads name it too.
    pub position: u64,
    /// The segment, where it is known.
    pub segment: Option<LeafId>,
    /// The drive-local address, where it is known.
    pub address: Option<Address>,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} position {}", self.file.display(), self.position)?;
        if let (Some(segment), Some(address)) = (self.segment, self.address) {
            write!(f, " segment {segment} address {address}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// What opening a data directory found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Extents that hold data.
    pub extents: u64,
    /// Chunks that hold data.
    pub chunks: u64,
    /// Chunk files that were never finished, and are deleted.
    pub unfinished_chunks: u64,
    /// Of the extents, read whole because they have no directory.
    pub scanned: u64,
    /// Entries found.
    pub entries: u64,
    /// Bytes of the last write that were cut: it was not complete, nothing in it was acknowledged.
    pub torn_bytes: u64,
    /// Damage; reads of what it concerns answer errors.
    pub damage: Vec<Damage>,
}

/// A record as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) record: RecordHeader,
    /// Of an entry or a repair: its header, and the position of that in the file.
    pub(crate) entry: Option<(EntryHeader, u64)>,
}

/// A group as it was found.
#[derive(Debug)]
pub(crate) struct FoundGroup {
    pub(crate) number: u64,
    pub(crate) position: u64,
    /// Good records up to the first bad one.
    pub(crate) records: Vec<Found>,
    /// Encoded records, for copying.
    pub(crate) bytes: Vec<u8>,
    /// Bytes of `bytes` that the good records take, when all of them are in order from the start.
    pub(crate) good: usize,
    bad: Vec<Damage>,
}

impl FoundGroup {
    /// Bytes that it takes in its extent.
    pub(crate) fn span(&self) -> u64 {
        align_up(GROUP_HEADER_LEN + self.bytes.len()) as u64
    }
}

/// What a scan hands out as it goes.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The last group, if nothing later proves it.
    pub(crate) last: Option<FoundGroup>,
    pub(crate) next_group: u64,
    /// Where the next group would stand.
    pub(crate) end: u64,
    pub(crate) torn_bytes: u64,
    pub(crate) damage: Vec<Damage>,
    /// Groups in which records of unknown segments are lost.
    pub(crate) lost_groups: Vec<(u64, String)>,
}

struct Scanner<'a> {
    file: &'a File,
    path: &'a Path,
    header: ExtentHeader,
    scan: Scan,
}

/// Reads an extent; `proven_below`: groups below are known to be complete. `visit` gets each proven group.
///
/// Errors: the file cannot be read.
pub(crate) fn scan(
    file: &File,
    path: &Path,
    header: ExtentHeader,
    proven_below: Option<u64>,
    mut visit: impl FnMut(&FoundGroup),
) -> io::Result<Scan> {
    let mut s = Scanner { file, path, header, scan: Scan::default() };
    let mut pending: Option<FoundGroup> = None;
    let mut position = BLOCK as u64;
    let mut number = header.first_group;
    while proven_below.is_none_or(|b| number < b) {
        let found = match s.group_at(position)?.filter(|g| g.number == number) {
            Some(group) => Some((group, position)),
            None => {
                let later = s.later_group(position, number)?;
                match (&later, proven_below) {
                    (Some((group, _)), _) => s.lost(position, number, group.number),
                    (None, Some(below)) => s.lost(position, number, below),
                    (None, None) => s.note_cut_header(position)?,
                }
                later
            }
        };
        let Some((group, at)) = found else { break };
        if let Some(proven) = pending.take() {
            s.damaged(&proven);
            visit(&proven);
        }
        number = group.number + 1;
        position = at + group.span() as u64;
        pending = Some(s.read_group(&group, at)?);
    }
    match pending {
        Some(group) if proven_below.is_some() => {
            s.damaged(&group);
            visit(&group);
        }
        Some(group) => {
            s.scan.torn_bytes += (group.bytes.len() - group.good) as u64;
            s.scan.last = Some(group);
        }
        None => {}
    }
    s.scan.next_group = number;
    s.scan.end = position;
    Ok(s.scan)
}

impl Scanner<'_> {
    fn group_at(&self, position: u64) -> io::Result<Option<GroupHeader>> {
        if position + BLOCK as u64 > self.header.len {
            return Ok(None);
        }
        let mut h = [0; GROUP_HEADER_LEN];
        read_up_to(self.file, &mut h, position)?;
        Ok(self.fitting(&h, position))
    }

    fn fitting(&self, bytes: &[u8], position: u64) -> Option<GroupHeader> {
        GroupHeader::decode(bytes, self.header.salt)
            .filter(|g| g.extent == self.header.number && position + g.span() as u64 <= self.header.len)
    }

    /// The first group after `position` with a number above `number`.
    fn later_group(&self, position: u64, number: u64) -> io::Result<Option<(GroupHeader, u64)>> {
        let mut window = vec![0; WINDOW];
        let mut at = position + BLOCK as u64;
        while at < self.header.len {
            let len = read_up_to(self.file, &mut window, at)?;
            if len == 0 {
                break;
            }
            for (i, block) in window.get(..len).unwrap_or_default().chunks(BLOCK).enumerate() {
                let here = at + (i * BLOCK) as u64;
                if let Some(g) = self.fitting(block, here).filter(|g| g.number > number) {
                    return Ok(Some((g, here)));
                }
            }
            at += WINDOW as u64;
        }
        Ok(None)
    }

    /// A group header that was begun and not finished is a tear too.
    fn note_cut_header(&mut self, position: u64) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let len = read_up_to(self.file, &mut block, position)?;
        // What an earlier life of the file left names another extent.
        let ours = u64_at(&block, 8) == Some(self.header.number);
        if ours && block.starts_with(b"RWGR") {
            self.scan.torn_bytes += len as u64;
        }
        Ok(())
    }

    fn lost(&mut self, position: u64, from: u64, below: u64) {
        let what = format!("write groups {from} to {} are damaged; their records are lost", below - 1);
        self.scan
            .lost_groups
            .push((below - 1, format!("{} position {position}: {what}", self.path.display())));
        let file = self.path.to_owned();
        self.scan.damage.push(Damage { file, position, segment: None, address: None, what });
    }

    fn damaged(&mut self, group: &FoundGroup) {
        for damage in &group.bad {
            if damage.segment.is_none() {
                self.scan.lost_groups.push((group.number, damage.to_string()));
            }
            self.scan.damage.push(damage.clone());
        }
    }

    fn read_group(&self, group: &GroupHeader, position: u64) -> io::Result<FoundGroup> {
        let start = position + GROUP_HEADER_LEN as u64;
        let mut bytes = vec![0; group.len as usize];
        let got = read_up_to(self.file, &mut bytes, start)?;
        let (records, good, mut bad) = parse(&bytes, group.number, start, self.path);
        if got < bytes.len() && bad.is_empty() {
            bad.push(self.bad_at(start + got as u64, "file cut".into()));
        }
        let whole = records.len() as u64;
        if bad.iter().all(|d| d.segment.is_some()) && whole != u64::from(group.records) {
            bad.push(self.bad_at(start, format!("group of {whole} records, expected {}", group.records)));
        }
        Ok(FoundGroup { number: group.number, position, records, bytes, good, bad })
    }

    fn bad_at(&self, position: u64, what: String) -> Damage {
        Damage { file: self.path.to_owned(), position, segment: None, address: None, what }
    }
}

/// The records of a group: the good ones, how many bytes the ones before the first bad one take, and what is wrong.
pub(crate) fn parse(bytes: &[u8], group: u64, start: u64, path: &Path) -> (Vec<Found>, usize, Vec<Damage>) {
    let (mut records, mut bad) = (Vec::new(), Vec::new());
    let (mut at, mut good) = (0usize, 0usize);
    while let Some(rest) = bytes.get(at..).filter(|r| !r.is_empty()) {
        let position = start + at as u64;
        let damage = |segment: Option<LeafId>, address, what| Damage {
            file: path.to_owned(),
            position,
            segment,
            address,
            what,
        };
        let Some(record) = RecordHeader::decode(rest, group) else {
            bad.push(damage(None, None, "record header damaged; the rest of its group is lost".into()));
            break;
        };
        let end = RECORD_HEADER_LEN + record.len as usize;
        let Some(body) = rest.get(RECORD_HEADER_LEN..end) else {
            bad.push(damage(None, None, "record longer than its group".into()));
            break;
        };
        at += end;
        let whose = (Some(record.leaf), Some(record.address));
        match record.kind {
            RecordKind::Entry | RecordKind::Repair => {
                let place = position + RECORD_HEADER_LEN as u64;
                let header = trusted_header(body);
                match (verify_entry(body), header) {
                    (Ok(h), _) => records.push(Found { record, entry: Some((h, place)) }),
                    (Err(what), header) => {
                        bad.push(Damage { position: place, ..damage(whose.0, whose.1, what) });
                        // Known to be there, unreadable: its header says to whom that matters, if it is whole.
                        records.push(Found { record, entry: header.map(|h| (h, place)) });
                    }
                }
            }
            _ => records.push(Found { record, entry: None }),
        }
        if bad.is_empty() {
            good = at;
        }
    }
    (records, good, bad)
}

/// An entry's header, when its own checksum holds although the payload is damaged.
fn trusted_header(entry: &[u8]) -> Option<EntryHeader> {
    let header = EntryHeader::decode(entry).ok()?;
    let payload = entry.get(ENTRY_HEADER_LEN..)?;
    let covered = payload.get(..header.covered_len())?;
    let whole = payload.len() == header.payload_len as usize;
    (whole && check(entry.first_chunk()?, covered).is_ok()).then_some(header)
}

/// Reads until the buffer is full or the file ends; answers how many bytes.
pub(crate) fn read_up_to(file: &File, mut buffer: &mut [u8], mut position: u64) -> io::Result<usize> {
    let mut total = 0;
    while !buffer.is_empty() {
        match file.read_at(buffer, position) {
            Ok(0) => break,
            Ok(n) => {
                total += n;
                position += n as u64;
                buffer = buffer.get_mut(n..).unwrap_or_default();
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}
