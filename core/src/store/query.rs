//! Answers to reads of one leaf, over memory tail, open extent and directories. Reads files: for blocking threads only.

use crate::codec::entry::EntryKind;
use crate::drive::{ListQuery, Read, ReadError, ScanQuery, Stored};
use crate::store::directory::{Directories, PartitionRow, Summary};
use crate::store::extent::Extent;
use crate::store::index::{IndexEntry, LeafIndex};
use crate::store::leaf::{Index, Leaf, LeafState, load, load_head};
use crate::store::registers::Slot;
use crate::store::tail::stored;
use crate::types::{Address, Offset, Partition};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Most partitions of a leaf whose last place is remembered.
const HINTS_MAX: usize = 16_384;

/// What of its entries an answer holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    /// All, checked.
    All,
    /// Those of our own kinds; of records the header is read and checked, the payload left empty.
    OfOwnKinds,
}

/// Entries of one extent, in address order.
enum Source {
    Memory(std::vec::IntoIter<IndexEntry>),
    Partition { row: PartitionRow, next: u32 },
    Addresses { leaf: Summary, next: u32 },
}

/// An extent that may hold some of the answer; opened when the answer gets there.
struct Candidate {
    extent: Arc<Extent>,
    lowest: u64,
    place: Place,
}

enum Place {
    Memory(Vec<IndexEntry>),
    Disk(Summary),
}

struct Cursor {
    extent: Arc<Extent>,
    source: Source,
}

impl Cursor {
    fn next(&mut self, directories: &Directories) -> Result<Option<IndexEntry>, ReadError> {
        match &mut self.source {
            Source::Memory(entries) => Ok(entries.next()),
            Source::Partition { row, next } if *next < row.count => {
                *next += 1;
                directories.in_partition(&self.extent, row, *next - 1).map(Some)
            }
            Source::Addresses { leaf, next } if *next < leaf.entries => {
                *next += 1;
                directories.entry(&self.extent, leaf, *next - 1).map(Some)
            }
            Source::Partition { .. } | Source::Addresses { .. } => Ok(None),
        }
    }
}

/// What is looked for in each extent.
#[derive(Copy, Clone)]
enum Want {
    Partition(Partition, Offset),
    Addresses(Address),
}

/// Merges candidates in address order. A candidate is opened only when the others have come to its lowest address.
struct Merge<'a> {
    directories: &'a Directories,
    want: Want,
    waiting: std::iter::Peekable<std::vec::IntoIter<Candidate>>,
    cursors: Vec<Cursor>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    heads: Vec<Option<IndexEntry>>,
}

impl<'a> Merge<'a> {
    fn new(directories: &'a Directories, want: Want, mut candidates: Vec<Candidate>) -> Merge<'a> {
        candidates.sort_by_key(|c| c.lowest);
        let waiting = candidates.into_iter().peekable();
        Merge { directories, want, waiting, cursors: Vec::new(), heap: BinaryHeap::new(), heads: Vec::new() }
    }

    fn open(&mut self, c: Candidate) -> Result<(), ReadError> {
        let source = match (c.place, self.want) {
            (Place::Memory(entries), _) => Source::Memory(entries.into_iter()),
            (Place::Disk(leaf), Want::Partition(partition, from)) => {
                let Some(row) = self.directories.find_partition(&c.extent, &leaf, partition)? else {
                    return Ok(());
                };
                let next = self.directories.first_in_partition(&c.extent, &row, from)?;
                Source::Partition { row, next }
            }
            (Place::Disk(leaf), Want::Addresses(from)) => {
                let before = |e: &IndexEntry| e.loglet_address < from.0;
                let next = self.directories.first_entry(&c.extent, &leaf, before)?;
                Source::Addresses { leaf, next }
            }
        };
        self.cursors.push(Cursor { extent: c.extent, source });
        self.heads.push(None);
        self.advance(self.cursors.len() - 1)
    }

    fn advance(&mut self, at: usize) -> Result<(), ReadError> {
        let (Some(cursor), Some(head)) = (self.cursors.get_mut(at), self.heads.get_mut(at)) else {
            return Ok(());
        };
        *head = cursor.next(self.directories)?;
        if let Some(entry) = head {
            self.heap.push(Reverse((entry.address, at)));
        }
        Ok(())
    }

    /// The next entry and its extent, without taking it.
    fn peek(&mut self) -> Result<Option<(Arc<Extent>, IndexEntry)>, ReadError> {
        loop {
            let lowest = self.heap.peek().map(|Reverse((address, _))| *address);
            let due = |c: &Candidate| lowest.is_none_or(|address| c.lowest <= address);
            let Some(candidate) = self.waiting.next_if(due) else { break };
            self.open(candidate)?;
        }
        let Some(Reverse((_, at))) = self.heap.peek() else { return Ok(None) };
        let entry = self.heads.get(*at).copied().flatten();
        Ok(self.cursors.get(*at).zip(entry).map(|(c, e)| (c.extent.clone(), e)))
    }

    fn take(&mut self) -> Result<(), ReadError> {
        match self.heap.pop() {
            Some(Reverse((_, at))) => self.advance(at),
            None => Ok(()),
        }
    }

    /// The oldest extent that holds anything not yet taken.
    fn oldest_left(&mut self) -> Option<u64> {
        let open =
            self.cursors.iter().zip(&self.heads).filter(|(_, h)| h.is_some()).map(|(c, _)| c.extent.number);
        let waiting = self.waiting.by_ref().map(|c| c.extent.number);
        open.chain(waiting).min()
    }
}

impl Leaf {
    /// What stands at an address; see `LogDrive::read`.
    pub(crate) fn read(&self, address: Address, directories: &Directories) -> Result<Read, ReadError> {
        match self.find(address, directories)? {
            Ok(read) => Ok(read),
            Err((extent, entry)) => {
                self.noted(&entry, load(&extent, &entry, directories), directories).map(Read::Value)
            }
        }
    }

    /// An answer, or where to load it from.
    fn find(
        &self,
        address: Address,
        directories: &Directories,
    ) -> Result<Result<Read, (Arc<Extent>, IndexEntry)>, ReadError> {
        let a = address.0;
        let (candidates, free, suspect) = {
            let state = self.state.read();
            if state.discarded || a < state.registers.trimmed() {
                return Ok(Ok(Read::Trimmed));
            }
            if let Some(what) = state.damaged.get(&a) {
                return Err(self.damaged(a, what));
            }
            if let Some(entry) = state.tail.get(a) {
                return Ok(Ok(Read::Value(stored(entry))));
            }
            let mut candidates = Vec::new();
            for (extent, index) in state.extents.iter().rev() {
                match index {
                    Index::Memory(index) => {
                        if let Some(entry) = index.get(a) {
                            return Ok(Err((extent.clone(), entry)));
                        }
                    }
                    Index::Disk(s) if s.entries > 0 && s.addresses.0 <= a && a <= s.addresses.1 => {
                        candidates.push((extent.clone(), *s));
                    }
                    Index::Disk(_) => {}
                }
            }
            (candidates, state.registers.holds(a) == Slot::Free, state.suspect.clone())
        };
        for (extent, leaf) in candidates {
            let at = directories.first_entry(&extent, &leaf, |e| e.address < a)?;
            if at < leaf.entries {
                let entry = directories.entry(&extent, &leaf, at)?;
                if entry.address == a {
                    return Ok(Err((extent, entry)));
                }
            }
        }
        match suspect {
            Some(why) => Err(self.damaged(a, &why)),
            None if free => Ok(Ok(Read::Hole)),
            None => Ok(Ok(Read::Gone { next: self.next_held(a, directories)? })),
        }
    }

    /// Remembers damage that a read met, unless it is one place of a directory that many entries need.
    fn noted<T>(
        &self,
        entry: &IndexEntry,
        read: Result<T, ReadError>,
        directories: &Directories,
    ) -> Result<T, ReadError> {
        if let Err(ReadError::Damaged(what)) = &read
            && !directories.tells(what)
        {
            self.state.write().note_unreadable(entry.address, what.clone());
        }
        read
    }

    fn damaged(&self, address: u64, what: &str) -> ReadError {
        ReadError::Damaged(format!("segment {} address {address}: {what}", self.id))
    }

    /// The next address above `a` that holds an entry, else the end.
    fn next_held(&self, a: u64, directories: &Directories) -> Result<Address, ReadError> {
        let want = Want::Addresses(Address(0));
        let (candidates, end) = {
            let state = self.state.read();
            let pick = |entries: &[IndexEntry]| {
                let at = entries.partition_point(|e| e.address <= a);
                entries.get(at).copied().into_iter().collect()
            };
            (state.candidates(|_, s| s.addresses.1 > a, |i| pick(i.entries())), state.registers.end())
        };
        let mut next = end;
        for c in Merge::new(directories, want, candidates).waiting {
            next = next.min(match c.place {
                Place::Memory(entries) => entries.first().map_or(end, |e| e.address),
                Place::Disk(s) if s.addresses.0 > a => s.addresses.0,
                Place::Disk(s) => {
                    let at = directories.first_entry(&c.extent, &s, |e| e.address <= a)?;
                    directories.entry(&c.extent, &s, at)?.address
                }
            });
        }
        Ok(Address(next))
    }

    /// See `LogDrive::list`. Ends with an error once `waited_for` is false.
    pub(crate) fn list(
        &self,
        query: &ListQuery,
        directories: &Directories,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<Stored>, ReadError> {
        let (partition, from) = (query.partition, query.from_offset);
        let hint = self.hints.lock().get(&partition).filter(|(offset, _)| *offset <= from).map(|(_, e)| *e);
        let (candidates, mut damaged, trimmed) = {
            let state = self.state.read();
            let wanted = |e: &Extent, s: &Summary| {
                s.may_hold(partition)
                    && hint.is_none_or(|h| e.number >= h)
                    && s.addresses.1 >= state.registers.trimmed()
            };
            // One more than asked for, so that the merge knows that there is more.
            let limit = query.max_entries.saturating_add(1);
            let trimmed = state.registers.trimmed();
            let fits = |e: &IndexEntry| {
                e.address >= trimmed && query.min_timestamp.is_none_or(|t| e.max_timestamp >= t)
            };
            let pick = |i: &LeafIndex| {
                let (mut bytes, mut full) = (0, false);
                // One more than fits, likewise.
                let wanted = |e: &IndexEntry| {
                    let wanted = !full;
                    full = bytes >= query.max_bytes.max(1);
                    bytes += e.payload_len as usize;
                    wanted
                };
                i.at_offset(partition, from).filter(fits).take(limit).take_while(wanted).collect()
            };
            (state.candidates(wanted, pick), state.first_bad(0), trimmed)
        };
        let mut merge = Merge::new(directories, Want::Partition(partition, from), candidates);
        let mut found: Vec<(Arc<Extent>, IndexEntry)> = Vec::new();
        let (mut bytes, mut reached) = (0usize, None);
        loop {
            let (extent, entry) = match merge.peek() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // What comes before a damaged place is good; asked again from there, the answer is the error.
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(error),
            };
            let full = found.len() >= query.max_entries || (bytes >= query.max_bytes && !found.is_empty());
            let mut beyond = damaged.as_ref().is_some_and(|(a, _)| *a < entry.address);
            if beyond && found.is_empty() && entry.base_offset <= from {
                // What is asked for begins in this entry, behind the damage.
                damaged = self.state.read().first_bad(entry.address);
                beyond = false;
            }
            // The damaged entry may belong to any partition: the answer ends before it.
            if full || beyond || entry.loglet_address >= query.below.0 {
                break;
            }
            merge.take()?;
            reached = Some((entry.last_offset().saturating_add(1), extent.number));
            if entry.address >= trimmed && query.min_timestamp.is_none_or(|t| entry.max_timestamp >= t) {
                bytes += entry.payload_len as usize;
                found.push((extent, entry));
            }
        }
        if let Some((next, last)) = reached {
            self.remember(partition, next, merge.oldest_left().unwrap_or(last));
        }
        match damaged {
            Some((a, what)) if found.is_empty() && a < query.below.0 => Err(self.damaged(a, &what)),
            _ => self.load_all(found, Payloads::All, directories, waited_for),
        }
    }

    /// Where the entries of a partition from `offset` on begin.
    fn remember(&self, partition: Partition, offset: Offset, extent: u64) {
        let mut hints = self.hints.lock();
        if hints.len() >= HINTS_MAX {
            hints.clear();
        }
        hints.insert(partition, (offset, extent));
    }

    /// See `LogDrive::scan`.
    pub(crate) fn scan(
        &self,
        query: &ScanQuery,
        payloads: Payloads,
        directories: &Directories,
    ) -> Result<Vec<Stored>, ReadError> {
        let (candidates, damaged, trimmed) = {
            let state = self.state.read();
            let wanted = |_: &Extent, s: &Summary| {
                s.entries > 0 && s.loglet_addresses.1 >= query.from.0 && s.loglet_addresses.0 < query.below.0
            };
            let trimmed = state.registers.trimmed();
            let pick = |i: &LeafIndex| {
                let live = i.at_loglet_address(query.from.0).iter().filter(|e| e.address >= trimmed);
                live.take(query.max_entries).copied().collect()
            };
            (state.candidates(wanted, pick), state.first_bad(query.from.0), trimmed)
        };
        let mut merge = Merge::new(directories, Want::Addresses(query.from), candidates);
        let mut found = Vec::new();
        while let Some((extent, entry)) = merge.peek()? {
            let beyond = damaged.as_ref().is_some_and(|(a, _)| *a < entry.address);
            if found.len() >= query.max_entries || beyond || entry.loglet_address >= query.below.0 {
                break;
            }
            merge.take()?;
            if entry.address >= trimmed {
                found.push((extent, entry));
            }
        }
        match damaged {
            Some((a, what)) if found.is_empty() && a < query.below.0 => Err(self.damaged(a, &what)),
            _ => self.load_all(found, payloads, directories, &|| true),
        }
    }

    /// See `LogDrive::last_of`.
    pub(crate) fn last_of(
        &self,
        kind: EntryKind,
        flags: u8,
        below: Address,
        directories: &Directories,
    ) -> Result<Option<Address>, ReadError> {
        let fits = |e: &IndexEntry| e.loglet_address < below.0 && e.kind == kind && e.flags & flags == flags;
        let (candidates, trimmed) = {
            let state = self.state.read();
            let newest =
                |i: &LeafIndex| i.entries().iter().rev().find(|e| fits(e)).copied().into_iter().collect();
            let wanted = |_: &Extent, s: &Summary| s.holds_kind(kind) && s.loglet_addresses.0 < below.0;
            (state.candidates(wanted, newest), state.registers.trimmed())
        };
        let mut best: Option<IndexEntry> = None;
        for c in candidates.into_iter().rev() {
            let found = match c.place {
                Place::Memory(entries) => entries.first().copied(),
                Place::Disk(s) if best.is_some_and(|b| s.loglet_addresses.1 <= b.loglet_address) => None,
                Place::Disk(s) => {
                    let mut at = directories.first_entry(&c.extent, &s, |e| e.loglet_address < below.0)?;
                    let mut found = None;
                    while at > 0 && found.is_none() {
                        at -= 1;
                        found = Some(directories.entry(&c.extent, &s, at)?).filter(fits);
                    }
                    found
                }
            };
            let newer = |e: &IndexEntry| best.is_none_or(|b| b.loglet_address < e.loglet_address);
            best = found.filter(|e| e.address >= trimmed && newer(e)).or(best);
        }
        Ok(best.map(|e| Address(e.loglet_address)))
    }

    fn load_all(
        &self,
        found: Vec<(Arc<Extent>, IndexEntry)>,
        payloads: Payloads,
        directories: &Directories,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<Stored>, ReadError> {
        let mut answer = Vec::with_capacity(found.len());
        for (extent, entry) in found {
            if !waited_for() {
                return Err(ReadError::Unavailable("nobody waits for the answer".to_owned()));
            }
            let recent = self.state.read().tail.get(entry.address).map(stored);
            match recent {
                Some(stored) => answer.push(stored),
                None => {
                    match self.noted(&entry, load_as(&extent, &entry, payloads, directories), directories) {
                        Ok(stored) => answer.push(stored),
                        // What comes before the damage is good; asked again from there, the answer is the error.
                        Err(_) if !answer.is_empty() => break,
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        Ok(answer)
    }
}

fn load_as(
    extent: &Arc<Extent>,
    entry: &IndexEntry,
    payloads: Payloads,
    directories: &Directories,
) -> Result<Stored, ReadError> {
    match (payloads, entry.kind) {
        (Payloads::OfOwnKinds, EntryKind::Data) => load_head(extent, entry, directories),
        _ => load(extent, entry, directories),
    }
}

impl LeafState {
    /// The extents that may hold some of an answer: chosen by summary where there is a directory, picked from memory
    /// otherwise.
    fn candidates(
        &self,
        wanted: impl Fn(&Extent, &Summary) -> bool,
        pick: impl Fn(&LeafIndex) -> Vec<IndexEntry>,
    ) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (extent, index) in &self.extents {
            match index {
                Index::Disk(s) if wanted(extent, s) => candidates.push(Candidate {
                    extent: extent.clone(),
                    lowest: s.addresses.0,
                    place: Place::Disk(*s),
                }),
                Index::Disk(_) => {}
                Index::Memory(index) => {
                    let entries = pick(index);
                    if let Some(first) = entries.first() {
                        let (extent, lowest) = (extent.clone(), first.address);
                        candidates.push(Candidate { extent, lowest, place: Place::Memory(entries) });
                    }
                }
            }
        }
        candidates
    }
}
