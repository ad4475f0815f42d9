//! The journal thread: queue → encode → write and sync → publish → complete. One per disk, for all ranges.
//!
//! While a write runs, the next group gathers in the queue; there is no timer. Writes and fences go through this one
//! thread in order, which is what makes a fence exact: nothing is acknowledged after it.
//!
//! A disk that is full to its last block refuses what needs a new extent, before anything of it is written, and goes on when there is
//! room. To whoever submitted it is a write that failed: an address stays free until the fence of its segment.
//!
//! INV-STORE-1 group `n + 1` is written only after the write of group `n` returned durable · INV-STORE-2 readers see an
//! entry only once it is durable · INV-STORE-3 after a failed write nothing is ever written again.

use crate::codec::entry::{ENTRY_HEADER_LEN, Entry};
use crate::drive::{FenceError, Read, Run, TailDesc, Ticket, WriteError};
use crate::store::extent::Extent;
use crate::store::file::{Aligned, Writer};
use crate::store::format::{
    BLOCK, GROUP_HEADER_LEN, GroupHeader, RECORD_HEADER_LEN, RecordHeader, RecordKind, align_up,
};
use crate::store::index::IndexEntry;
use crate::store::leaf::Leaf;
use crate::store::queue::{Item, Woken};
use crate::store::registers::{Registers, Slot};
use crate::store::room::says_full;
use crate::store::tail::Evict;
use crate::store::{Inner, stats::Counters};
use crate::types::{Address, LeafId, LogletId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Most bytes of a group, save for a single entry that is larger.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// How long the queue must stay empty before an empty group proves the last one. Nobody waits for it.
const IDLE_BEFORE_PROOF: Duration = Duration::from_millis(20);

/// The extent that is written.
pub(crate) struct Open {
    pub(crate) extent: Arc<Extent>,
    pub(crate) writer: Writer,
    pub(crate) position: u64,
    pub(crate) salt: u64,
    pub(crate) first_group: u64,
}

/// The journal thread's state.
pub(crate) struct Journal {
    inner: Arc<Inner>,
    open: Option<Open>,
    next_group: u64,
    leaves: HashMap<LeafId, Own>,
    buffer: Aligned,
    group: Group,
    /// The last group holds records and no later header proves it.
    unproven: bool,
    /// The last extent that was needed was not to be had.
    crammed: bool,
}

/// The journal's view of a leaf: ahead of what is published by the group being built.
struct Own {
    leaf: Arc<Leaf>,
    registers: Registers,
}

#[derive(Default)]
struct Group {
    records: u32,
    entries: Vec<Written>,
    touched: Vec<LeafId>,
    after: Vec<After>,
}

struct Written {
    leaf: Arc<Leaf>,
    address: Address,
    entry: Entry,
    /// Of the entry header, from the group's start.
    offset: usize,
    /// Fills a hole: not for the memory tail, which is a suffix.
    below_end: bool,
}

/// What to tell once the group is durable.
enum After {
    Ticket(Ticket, Result<(), WriteError>),
    Write(oneshot::Sender<Result<(), WriteError>>, Result<(), WriteError>),
    Fence(oneshot::Sender<Result<TailDesc, FenceError>>, LeafId, u32),
}

/// Why a record is not written: the disk died, which is recorded in `Inner`, or it has no room for another extent.
pub(crate) struct Refused(String);

impl Journal {
    pub(crate) fn new(inner: Arc<Inner>, open: Option<Open>, next_group: u64) -> Journal {
        let buffer = Aligned::with_capacity(GROUP_BYTES_MAX.min(inner.extent_bytes as usize) + BLOCK);
        let mut journal = Journal {
            inner,
            open,
            next_group,
            leaves: HashMap::new(),
            buffer,
            group: Group::default(),
            unproven: false,
            crammed: false,
        };
        journal.note_left();
        journal.begin_group();
        journal
    }

    /// Serves the queue until it is closed or abandoned.
    pub(crate) fn run(mut self) {
        let mut items = VecDeque::new();
        loop {
            let limit = (self.unproven && !self.inner.is_dead()).then_some(IDLE_BEFORE_PROOF);
            match self.inner.queue.take(&mut items, limit) {
                Woken::Abandoned => return self.refuse_group("the store was dropped"),
                Woken::Idle => {
                    // A failure has recorded itself.
                    if self.flush().is_err() {
                        continue;
                    }
                    self.unproven = false;
                }
                Woken::Work => {
                    for item in items.drain(..) {
                        if let Item::Close { reply } = item {
                            let closed = self.close();
                            self.inner
                                .queue
                                .abandon()
                                .into_iter()
                                .for_each(|i| i.refuse("the store is closed"));
                            // The closer may have gone.
                            drop(reply.send(closed));
                            return;
                        }
                        self.handle(item);
                    }
                    if self.has_work() && self.flush().is_err() {
                        continue;
                    }
                }
            }
        }
    }

    fn handle(&mut self, item: Item) {
        if let Some(why) = self.inner.dead_reason() {
            return item.refuse(&why);
        }
        // A failure on the way has told whoever waits; when the disk died, what was in the group is complete and what follows refused.
        let done = match item {
            Item::Run { leaf, run } => self.write_run(leaf, run),
            Item::Fence { leaf, window, reply } => self.fence(leaf, window, reply),
            Item::Repair { leaf, address, entry, reply } => self.repair(leaf, address, entry, reply),
            Item::Trim { leaf, below, reply } => self.trim(leaf, below, reply),
            Item::Discard { loglet, reply } => self.discard(loglet, reply),
            Item::Close { .. } => Ok(()),
        };
        if let Err(Refused(why)) = done {
            tracing::debug!(why, "record dropped");
        }
    }

    /// Deletes a loglet. That needs no room, but its tombstone does.
    fn discard(
        &mut self,
        loglet: LogletId,
        reply: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), Refused> {
        let put = self.put(RecordKind::Discard, LeafId { loglet, leaf: 0 }, Address(0), None);
        if !self.inner.is_dead() {
            self.discard_own(loglet);
        }
        match put {
            Ok(()) => self.group.after.push(After::Write(reply, Ok(()))),
            // A receiver that is gone waits for no answer.
            Err(Refused(ref why)) => drop(reply.send(Err(WriteError::Unavailable(why.clone())))),
        }
        put
    }

    fn own(&mut self, id: LeafId) -> &mut Own {
        let inner = &self.inner;
        self.leaves.entry(id).or_insert_with(|| {
            let leaf = inner.leaf(id);
            let registers = leaf.state.read().registers.clone();
            Own { leaf, registers }
        })
    }

    fn discard_own(&mut self, loglet: LogletId) {
        self.leaves.retain(|id, _| id.loglet != loglet);
        self.inner.forget(loglet);
    }

    fn write_run(&mut self, id: LeafId, run: Run) -> Result<(), Refused> {
        let Run { first, entries, ticket } = run;
        let mut outcome = Ok(());
        for (i, entry) in entries.into_iter().enumerate() {
            let address = first.plus(i as u64);
            match self.write_entry(id, address, entry) {
                Ok(Ok(())) => {}
                Ok(Err(refused)) => {
                    outcome = Err(refused);
                    break;
                }
                Err(Refused(why)) => {
                    ticket.complete(Err(WriteError::Unavailable(why.clone())));
                    return Err(Refused(why));
                }
            }
        }
        self.group.after.push(After::Ticket(ticket, outcome));
        Ok(())
    }

    fn write_entry(
        &mut self,
        id: LeafId,
        address: Address,
        entry: Entry,
    ) -> Result<Result<(), WriteError>, Refused> {
        let own = self.own(id);
        let discarded = own.leaf.state.read().discarded;
        let meets = if discarded { Slot::Sealed } else { own.registers.write_meets(address.0) };
        match meets {
            Slot::Sealed => Ok(Err(WriteError::Sealed)),
            Slot::Trimmed => Ok(Err(WriteError::Trimmed(address))),
            Slot::Written => Ok(self.same_or_conflict(id, address, &entry)),
            Slot::Free => self.put_entry(RecordKind::Entry, id, address, entry).map(Ok),
        }
    }

    /// A second write of an address: the same bytes are fine (W2). An entry's header holds a checksum over itself and
    /// the payload's head, whose checksum covers the rest: equal headers are equal entries.
    fn same_or_conflict(&mut self, id: LeafId, address: Address, entry: &Entry) -> Result<(), WriteError> {
        let header = |e: &Entry| e.head.get(..ENTRY_HEADER_LEN).map(<[u8]>::to_vec);
        let in_group = self.group.entries.iter().find(|w| w.leaf.id == id && w.address == address);
        let standing = match in_group {
            Some(w) => header(&w.entry),
            None => {
                let leaf = self.own(id).leaf.clone();
                match leaf.read(address, &self.inner.directories) {
                    Ok(Read::Value(stored)) if stored.header == entry.header => header(entry),
                    Ok(_) => None,
                    Err(e) => return Err(WriteError::Unavailable(e.to_string())),
                }
            }
        };
        if standing.is_some() && standing == header(entry) {
            return Ok(());
        }
        tracing::error!(leaf = %id, %address, "conflicting write: two sequencers wrote one segment");
        Err(WriteError::Conflict(address))
    }

    fn put_entry(
        &mut self,
        kind: RecordKind,
        id: LeafId,
        address: Address,
        entry: Entry,
    ) -> Result<(), Refused> {
        self.put(kind, id, address, Some(&entry))?;
        let offset = self.buffer.len() - entry.encoded_len();
        let own = self.own(id);
        let below_end = own.registers.set(address.0);
        let leaf = own.leaf.clone();
        self.group.entries.push(Written { leaf, address, entry, offset, below_end });
        self.touch(id);
        Ok(())
    }

    fn touch(&mut self, id: LeafId) {
        if self.group.touched.last() != Some(&id) {
            self.group.touched.push(id);
        }
    }

    fn fence(
        &mut self,
        id: LeafId,
        window: u32,
        reply: oneshot::Sender<Result<TailDesc, FenceError>>,
    ) -> Result<(), Refused> {
        let own = self.own(id);
        if let Some(why) = own.leaf.state.read().suspect.clone() {
            drop(reply.send(Err(FenceError::Unavailable(format!("segment {id}: {why}")))));
            return Ok(());
        }
        let (end, fenced) = (own.registers.end(), own.registers.is_fenced());
        if !fenced {
            if let Err(Refused(why)) = self.put(RecordKind::Fence, id, Address(end), None) {
                drop(reply.send(Err(FenceError::Unavailable(why.clone()))));
                return Err(Refused(why));
            }
            self.own(id).registers.fence();
            self.touch(id);
        }
        self.group.after.push(After::Fence(reply, id, window));
        Ok(())
    }

    fn repair(
        &mut self,
        id: LeafId,
        address: Address,
        entry: Entry,
        reply: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), Refused> {
        let own = self.own(id);
        let outcome = match own.registers.holds(address.0) {
            _ if !own.registers.is_fenced() => {
                Err(WriteError::Unavailable(format!("segment {id} is not fenced: fence it before a repair")))
            }
            Slot::Written => self.same_or_conflict(id, address, &entry),
            Slot::Trimmed | Slot::Sealed => Ok(()),
            Slot::Free => match self.put_entry(RecordKind::Repair, id, address, entry) {
                Ok(()) => Ok(()),
                Err(Refused(why)) => {
                    drop(reply.send(Err(WriteError::Unavailable(why.clone()))));
                    return Err(Refused(why));
                }
            },
        };
        self.group.after.push(After::Write(reply, outcome));
        Ok(())
    }

    fn trim(
        &mut self,
        id: LeafId,
        below: Address,
        reply: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), Refused> {
        if below.0 > self.own(id).registers.trimmed() {
            if let Err(Refused(why)) = self.put(RecordKind::Trim, id, below, None) {
                drop(reply.send(Err(WriteError::Unavailable(why.clone()))));
                return Err(Refused(why));
            }
            self.own(id).registers.trim(below.0);
            self.touch(id);
        }
        self.group.after.push(After::Write(reply, Ok(())));
        Ok(())
    }

    /// Encodes a record into the group; writes the group first when the record does not fit any more.
    fn put(
        &mut self,
        kind: RecordKind,
        leaf: LeafId,
        address: Address,
        entry: Option<&Entry>,
    ) -> Result<(), Refused> {
        let body = entry.map_or(0, Entry::encoded_len);
        let len = RECORD_HEADER_LEN + body;
        if self.group.records > 0 && self.buffer.len() + len > self.room() {
            self.flush()?;
        }
        if self.group.records == 0 && align_up(self.buffer.len() + len) as u64 > self.left() {
            self.roll(align_up(GROUP_HEADER_LEN + len))?;
        }
        let header = RecordHeader { kind, leaf, address, len: body as u32 };
        if let Some(open) = self.open.as_ref().filter(|_| entry.is_none()) {
            // So that the extent's directory has a row for the leaf.
            match kind {
                RecordKind::Discard => Inner::note_discard(&open.extent, leaf.loglet),
                _ => {
                    open.extent.leaves.lock().insert(leaf);
                }
            }
        }
        self.buffer.extend(&header.encode(self.next_group));
        if let Some(entry) = entry {
            self.buffer.extend(&entry.head);
            self.buffer.extend(&entry.body);
        }
        self.group.records += 1;
        Ok(())
    }

    /// Counts what is left of the open extent as room.
    fn note_left(&self) {
        self.inner.open_left.store(self.left(), Ordering::Relaxed);
    }

    /// Bytes left in the open extent.
    fn left(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| o.extent.len().saturating_sub(o.position))
    }

    /// Most bytes that the current group may take.
    fn room(&self) -> usize {
        GROUP_BYTES_MAX.min(usize::try_from(self.left()).unwrap_or(GROUP_BYTES_MAX))
    }

    fn begin_group(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > 2 * GROUP_BYTES_MAX {
            self.buffer = Aligned::with_capacity(GROUP_BYTES_MAX + BLOCK);
        }
        self.buffer.extend(&[0; GROUP_HEADER_LEN]);
        self.group.records = 0;
    }

    fn has_work(&self) -> bool {
        self.group.records > 0 || !self.group.after.is_empty()
    }

    /// Goes on in a new extent that has room for a group of `need` bytes. There is nothing in the group.
    fn roll(&mut self, need: usize) -> Result<(), Refused> {
        let inner = self.inner.clone();
        let _moving = inner.moving();
        let (header, path) = match inner.prepare_extent(need as u64, self.next_group) {
            Ok(prepared) => prepared,
            Err(e) if says_full(&e) => return Err(self.cram(&e)),
            Err(e) => return Err(self.die(format!("no new extent: {e}"))),
        };
        match inner.start_extent(header, &path) {
            Ok(open) => {
                // Its header proves the last group of the old one.
                (self.unproven, self.crammed) = (false, false);
                let old = self.open.replace(open);
                self.note_left();
                if let Some(old) = old {
                    inner.closed(old, self.next_group);
                }
                Ok(())
            }
            Err(e) => Err(self.die(format!("no new extent: {e}"))),
        }
    }

    /// No room is left for another extent, not for the smallest; until somebody frees some.
    fn cram(&mut self, error: &std::io::Error) -> Refused {
        let dir = self.inner.dir.display();
        let why = format!("{dir}: full to the last block, no new extent: {error}");
        if !std::mem::replace(&mut self.crammed, true) {
            tracing::error!(why, "what needs room is refused until there is some");
        }
        Refused(why)
    }

    /// Writes the group, publishes it and tells everyone who waits for it. Without records, and nobody waiting, it
    /// writes an empty group.
    fn flush(&mut self) -> Result<(), Refused> {
        if self.group.records > 0 || self.group.after.is_empty() {
            self.write_group()?;
        }
        self.publish();
        self.complete();
        self.begin_group();
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), Refused> {
        if self.left() < align_up(self.buffer.len()) as u64 {
            // Only an empty group comes here: a record has made its room. Without any, the last group is proven later.
            return if self.crammed { Ok(()) } else { self.roll(BLOCK) };
        }
        let Some(open) = self.open.as_mut() else { return Ok(()) };
        let header = GroupHeader {
            extent: open.extent.number,
            number: self.next_group,
            generation: self.inner.superblock.generation,
            len: (self.buffer.len() - GROUP_HEADER_LEN) as u32,
            records: self.group.records,
        };
        self.buffer.front(GROUP_HEADER_LEN).copy_from_slice(&header.encode(open.salt));
        self.buffer.pad();
        match open.writer.write(self.buffer.filled(), open.position) {
            Ok(()) => {
                self.inner.counters.group(self.buffer.len(), self.group.records);
                open.position += self.buffer.len() as u64;
                self.next_group += 1;
                self.unproven = self.group.records > 0;
                self.note_left();
                Ok(())
            }
            Err(e) => {
                let why = format!("{}: write failed: {e}", open.extent.path.display());
                Err(self.die(why))
            }
        }
    }

    /// Makes a durable group readable: entries first, then the registers that say they are there.
    fn publish(&mut self) {
        let Some(open) = self.open.as_ref() else { return };
        let span = self.buffer.len() as u64;
        let start = open.position.saturating_sub(span);
        let mut entries = self.group.entries.drain(..).peekable();
        while let Some(first) = entries.next() {
            let leaf = first.leaf.clone();
            let mut bytes = 0;
            let mut freed = 0;
            let below;
            {
                let mut state = leaf.state.write();
                let mut next = Some(first);
                while let Some(w) = next {
                    let position = (start + w.offset as u64) as u32;
                    state.index_in(leaf.id, &open.extent).insert(IndexEntry::new(
                        &w.entry.header,
                        w.address,
                        position,
                    ));
                    if w.below_end {
                        freed += state.tail.clear();
                    } else {
                        bytes += state.tail.push(w.address.0, w.entry);
                    }
                    next = entries.next_if(|n| Arc::ptr_eq(&n.leaf, &leaf));
                }
                below = state.tail.next();
            }
            self.inner.tail.release(freed);
            let weak: std::sync::Weak<dyn Evict> = Arc::downgrade(&leaf) as _;
            self.inner.tail.add(weak, below, bytes);
        }
        drop(entries);
        let mut trims = false;
        for id in self.group.touched.drain(..) {
            let Some(own) = self.leaves.get(&id) else { continue };
            let mut state = own.leaf.state.write();
            let before = state.registers.trimmed();
            state.registers.clone_from(&own.registers);
            let trimmed = state.registers.trimmed();
            trims |= trimmed > before;
            let freed = state.tail.trim(trimmed);
            drop(state);
            self.inner.tail.release(freed);
        }
        if trims {
            self.inner.check_extents();
        }
    }

    fn complete(&mut self) {
        for after in self.group.after.drain(..) {
            match after {
                After::Ticket(ticket, outcome) => ticket.complete(outcome),
                // Receivers may have gone.
                After::Write(reply, outcome) => drop(reply.send(outcome)),
                After::Fence(reply, id, window) => {
                    let tail = self.leaves.get(&id).map(|own| own.registers.tail(window));
                    drop(reply.send(tail.ok_or(FenceError::Unavailable("segment discarded".into()))));
                }
            }
        }
    }

    /// The disk is dead for this process: what it holds of the last write is not known, so nothing is tried again.
    fn die(&mut self, why: String) -> Refused {
        tracing::error!(dir = %self.inner.dir.display(), "disk dead: {why}; its ranges take no writes until a restart");
        self.inner.die(why.clone());
        self.refuse_group(&why);
        Refused(why)
    }

    fn refuse_group(&mut self, why: &str) {
        for after in self.group.after.drain(..) {
            match after {
                After::Ticket(t, _) => t.complete(Err(WriteError::Unavailable(why.to_owned()))),
                After::Write(r, _) => drop(r.send(Err(WriteError::Unavailable(why.to_owned())))),
                After::Fence(r, _, _) => drop(r.send(Err(FenceError::Unavailable(why.to_owned())))),
            }
        }
        self.group.entries.clear();
        self.group.touched.clear();
        self.leaves.clear();
        self.begin_group();
    }

    fn close(&mut self) -> Result<(), String> {
        if let Some(why) = self.inner.dead_reason() {
            return Err(why);
        }
        let flushed = if self.has_work() { self.flush() } else { Ok(()) };
        match flushed {
            Ok(()) => {
                // All its groups are synced: its directory proves them.
                if let Some(open) = self.open.take() {
                    self.inner.closed(open, self.next_group);
                }
                Ok(())
            }
            Err(Refused(why)) => Err(why),
        }
    }
}

impl Counters {
    /// Counts a group of so many bytes on the disk.
    fn group(&self, bytes: usize, records: u32) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.records.fetch_add(u64::from(records), Ordering::Relaxed);
        self.group_bytes_max.fetch_max(bytes as u64, Ordering::Relaxed);
    }
}
