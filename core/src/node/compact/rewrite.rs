//! Reading the entries of a segment, writing what stays of neighbouring ones into a loglet of its own, and having that
//! stand in their place.

use super::super::Inner;
use super::super::recover::seal_pass;
use super::super::topic::TopicRuntime;
use super::{Member, blocking};
use crate::codec::batch::TRANSACTIONAL_BIT;
use crate::codec::entry::{CHECKPOINT_LAST, ENTRY_HEADER_LEN, Entry, EntryHeader, EntryKind};
use crate::compact::clean::{Cleaner, Item, Rules};
use crate::control::command::{Command, PrepareReplacement, RangeState, Replace, Reply};
use crate::control::{ControlError, propose_one};
use crate::drive::{Completion, LogDrive, Purpose, Run, ScanQuery, SealId, Ticket, WriteError};
use crate::error::TopicPartition;
use crate::range::lineage::overlap;
use crate::range::read::load;
use crate::range::segment::Segment;
use crate::types::{Address, LogletId, Offset, Partition, RangeId};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Entries that are read at a time.
const PAGE_ENTRIES: usize = 64;
/// Payload bytes that are read at a time, but for a single larger entry.
const PAGE_BYTES: usize = 4 << 20;
/// Payload bytes that are written at a time; between two the disk is others'.
const RUN_BYTES: usize = 256 << 10;
/// Entries that are written at a time.
const RUN_ENTRIES: usize = 64;
/// How long a replacement waits for a split or merge of its range to end.
const FENCING_WAIT: Duration = Duration::from_millis(200);
const FENCING_WAITS_MAX: u32 = 300;
/// How often it is asked what was aborted.
const ASKED_MAX: u32 = 3;

/// A compaction that is not done, and why. Nothing is lost: what it wrote does not count.
#[derive(Debug)]
pub(in super::super) struct Stopped(pub(in super::super) String);

impl<E: std::error::Error> From<E> for Stopped {
    fn from(error: E) -> Stopped {
        Stopped(error.to_string())
    }
}

/// The entries of a segment, page by page.
pub(super) struct Pages<'a> {
    member: &'a Member,
    log_starts: &'a BTreeMap<Partition, Offset>,
    from: Address,
    /// The next offset of each partition.
    next: BTreeMap<Partition, Offset>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(member: &'a Member, rules: &'a Rules) -> Pages<'a> {
        let next = member.parts.iter().map(|(partition, (first, _))| (*partition, *first)).collect();
        Pages { member, log_starts: &rules.log_starts, from: Address(0), next }
    }

    /// The next entries, nothing after the last.
    ///
    /// Errors: what cannot be read; records that should be there and are not; the node stops.
    pub(super) async fn next(
        &mut self,
        node: &Inner,
        topic: &TopicRuntime,
    ) -> Result<Option<Vec<Item>>, Stopped> {
        if node.cancel.is_cancelled() {
            return Err(Stopped("the node stops".to_owned()));
        }
        let segment = &self.member.segment;
        let below = segment.tail().unwrap_or(Address(0));
        let page =
            segment.drive.scan(ScanQuery { from: self.from, below, max_entries: PAGE_ENTRIES }).await?;
        if page.is_empty() {
            self.check_end()?;
            return Ok(None);
        }
        let (mut items, mut bytes) = (Vec::with_capacity(page.len()), 0);
        for stored in page {
            let header = stored.header;
            bytes += stored.payload.len();
            if bytes > PAGE_BYTES && !items.is_empty() {
                break;
            }
            self.from = header.address.plus(1);
            self.check(&header)?;
            let aborted = header.attributes & TRANSACTIONAL_BIT != 0
                && header.kind == EntryKind::Data
                && node.is_aborted(topic, &header);
            items.push(Item { header, payload: load(stored.payload).await?, aborted });
        }
        Ok(Some(items))
    }

    /// Nothing is taken for superseded that only cannot be found: offsets follow one another from the log start on.
    fn check(&mut self, header: &EntryHeader) -> Result<(), Stopped> {
        if header.base_offset < 0 {
            return Ok(());
        }
        let start = self.log_starts.get(&header.partition).copied().unwrap_or(0);
        let next = self.next.insert(header.partition, header.last_offset() + 1);
        let expected = next.unwrap_or(0).max(start);
        let gap = header.base_offset > expected && !self.member.segment.compacted;
        if gap { Err(self.missing(header.partition, expected)) } else { Ok(()) }
    }

    fn check_end(&self) -> Result<(), Stopped> {
        for (partition, (_, end)) in &self.member.parts {
            let deleted = self.log_starts.get(partition).is_some_and(|start| end <= start);
            if !deleted && self.next.get(partition) != Some(end) {
                return Err(self.missing(*partition, self.next.get(partition).copied().unwrap_or(-1)));
            }
        }
        Ok(())
    }

    fn missing(&self, partition: Partition, from: Offset) -> Stopped {
        let loglet = self.member.segment.loglet;
        Stopped(format!(
            "segment {loglet} partition {partition}: records from offset {from} on are not found"
        ))
    }
}

/// A loglet that is being written. Given up, its data is deleted at the next look at tombstones.
struct Written<'a> {
    taken: Taken<'a>,
    drive: Arc<dyn LogDrive>,
    next: Address,
    run: SmallVec<[Entry; 2]>,
    run_bytes: usize,
    run_entries: usize,
    kept: Vec<u64>,
}

/// Keeps a loglet's tombstone from being obeyed.
struct Taken<'a> {
    node: &'a Inner,
    loglet: LogletId,
    /// It is not known whether it stands in a chain.
    unknown: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.unknown {
            self.node.compaction.written.lock().remove(&self.loglet);
        }
    }
}

impl Written<'_> {
    async fn push(&mut self, header: EntryHeader, payload: Bytes) -> Result<(), Stopped> {
        let header = EntryHeader {
            loglet: self.taken.loglet,
            address: self.next.plus(self.run.len() as u64),
            ..header
        };
        self.run_bytes += payload.len();
        self.run.push(encoded(header, &payload));
        if self.run_bytes >= RUN_BYTES || self.run.len() >= self.run_entries {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Stopped> {
        if self.run.is_empty() {
            return Ok(());
        }
        let node = self.taken.node;
        node.compaction.step()?;
        // On a full disk as far as it fits: what it takes is less than what it frees.
        self.drive.admit(self.run_bytes, Purpose::Rewriting)?;
        let entries = std::mem::take(&mut self.run);
        let (first, count) = (self.next, entries.len() as u64);
        let (tell, told) = oneshot::channel();
        let ticket = Ticket::new(Arc::new(Told(Mutex::new(Some(tell)))));
        self.drive.submit(Run { first, entries, ticket });
        told.await??;
        node.compaction.bytes.fetch_add(self.run_bytes as u64, Ordering::Relaxed);
        self.next = first.plus(count);
        self.run_bytes = 0;
        Ok(())
    }
}

struct Told(Mutex<Option<oneshot::Sender<Result<(), WriteError>>>>);

impl Completion for Told {
    fn complete(&self, outcome: Result<(), WriteError>) {
        if let Some(tell) = self.0.lock().take() {
            // Nobody waits any more where the node stops.
            drop(tell.send(outcome));
        }
    }
}

fn encoded(header: EntryHeader, payload: &Bytes) -> Entry {
    let covered = header.covered_len().min(payload.len());
    let patched = if header.kind == EntryKind::Data { covered } else { 0 };
    let mut head = BytesMut::with_capacity(ENTRY_HEADER_LEN + patched);
    head.extend_from_slice(&header.encode(&payload[..covered]));
    head.extend_from_slice(&payload[..patched]);
    Entry { header, head: head.freeze(), body: payload.slice(patched..) }
}

impl Inner {
    fn is_aborted(&self, topic: &TopicRuntime, header: &EntryHeader) -> bool {
        let at = TopicPartition { topic: topic.id, partition: header.partition };
        // Below the log start nothing is known, and nothing is kept. It may rise between the two questions.
        let spans = (0..ASKED_MAX).find_map(|_| {
            let range = self.range(at)?;
            let from = range.view(header.partition)?.log_start.max(header.base_offset);
            range.aborted(header.partition, from, header.last_offset() + 1)
        });
        spans.is_some_and(|spans| spans.iter().any(|span| span.producer_id == header.producer_id))
    }

    /// Writes what stays of neighbouring segments and puts it in their place.
    pub(super) async fn rewrite(
        &self,
        topic: &TopicRuntime,
        group: &[&Member],
        mut cleaner: Cleaner,
    ) -> Result<Cleaner, Stopped> {
        let Some(first) = group.first() else { return Ok(cleaner) };
        let mut ends: BTreeMap<Partition, Offset> = BTreeMap::new();
        for member in group {
            ends.extend(member.parts.iter().map(|(partition, (_, end))| (*partition, *end)));
        }
        let rules = cleaner.rules().clone();
        let mut written = self.prepare(topic, first.piece.range, first.piece.span.count()).await?;
        let (mut checkpoint, mut last_kept) = (true, BTreeSet::new());
        for member in group {
            let mut pages = Pages::new(member, &rules);
            while let Some(items) = pages.next(self, topic).await? {
                let (codec, ends) = (self.options.codec.clone(), ends.clone());
                let cleaned = move || {
                    let mut kept = Vec::new();
                    for item in &items {
                        if item.header.kind == EntryKind::Checkpoint && checkpoint {
                            // The first one says where the partitions stood.
                            checkpoint = item.header.flags & CHECKPOINT_LAST == 0;
                            kept.push((item.header, item.payload.clone(), false));
                            continue;
                        }
                        let end = ends.get(&item.header.partition);
                        let is_last = end == Some(&(item.header.last_offset() + 1));
                        let cleaned = cleaner.clean(item, is_last, &*codec);
                        kept.extend(cleaned.map(|(header, payload)| (header, payload, is_last)));
                    }
                    (cleaner, checkpoint, kept)
                };
                let kept;
                (cleaner, checkpoint, kept) = blocking(cleaned).await?;
                for (header, payload, is_last) in kept {
                    if is_last {
                        last_kept.insert(header.partition);
                    }
                    let at = first.piece.span.index(header.partition);
                    if let Some(bytes) = at.and_then(|at| written.kept.get_mut(at)) {
                        *bytes += payload.len() as u64;
                    }
                    written.push(header, payload).await?;
                }
            }
        }
        written.flush().await?;
        let lost = ends.iter().find(|(partition, end)| {
            let deleted = rules.log_starts.get(partition).is_some_and(|start| *end <= start);
            !deleted && !last_kept.contains(partition)
        });
        if checkpoint || lost.is_some() {
            return Err(Stopped(format!("what was written lacks a checkpoint or an end ({lost:?})")));
        }
        self.compaction.step()?;
        self.install(topic, group, written).await?;
        Ok(cleaner)
    }

    async fn prepare(
        &self,
        topic: &TopicRuntime,
        range: RangeId,
        partitions: usize,
    ) -> Result<Written<'_>, Stopped> {
        let (taken, drive) = {
            // Tombstones are looked at under it.
            let _layout = self.layout.lock().await;
            let state = self.control.read();
            let control = state.topics.get(&topic.id).ok_or(Stopped("the topic is gone".into()))?;
            let seed = LogletId(state.counters.next_loglet);
            let drive = self.storage.place(&self.drive_of(control), seed)?;
            let now = self.now_ms();
            let prepare = PrepareReplacement { topic: topic.id, range, drive: drive.clone(), now };
            let reply = propose_one(&*self.control, Command::PrepareReplacement(prepare)).await?;
            let Reply::Prepared(loglet) = reply else {
                return Err(Stopped("not the answer of a replacement".into()));
            };
            self.compaction.written.lock().insert(loglet);
            (Taken { node: self, loglet, unknown: false }, drive)
        };
        let window = self.limits().window.entries as usize;
        let (next, kept) = (Address(0), vec![0; partitions]);
        let run_entries = RUN_ENTRIES.min(window).max(1);
        let drive = self.storage.open(taken.loglet, &drive)?;
        self.compaction.step()?;
        Ok(Written { taken, drive, next, run: SmallVec::new(), run_bytes: 0, run_entries, kept })
    }

    /// Seals what was written and has it stand in the place of what it was made of.
    async fn install(
        &self,
        topic: &TopicRuntime,
        group: &[&Member],
        mut written: Written<'_>,
    ) -> Result<(), Stopped> {
        let by = SealId { node: self.node(), pass: self.seal_passes.fetch_add(1, Ordering::Relaxed) };
        let end = seal_pass(&*written.drive, 0, self.limits().window.entries, by).await.map_err(Stopped)?;
        if end.tail != written.next {
            return Err(Stopped(format!(
                "{} entries were written, the seal found {}",
                written.next, end.tail
            )));
        }
        self.compaction.step()?;
        let old: Vec<LogletId> = group.iter().map(|member| member.segment.loglet).collect();
        let range =
            group.first().map(|member| member.piece.range).ok_or(Stopped("nothing to replace".into()))?;
        for _ in 0..FENCING_WAITS_MAX {
            let layout = self.layout.lock().await;
            let state = self.control.read();
            let present = state.range(topic.id, range).ok_or(Stopped("the range is gone".into()))?;
            if present.state == RangeState::Fencing {
                drop(layout);
                tokio::time::sleep(FENCING_WAIT).await;
                continue;
            }
            let replace = Replace {
                topic: topic.id,
                range,
                version: present.version,
                old: old.clone(),
                with: written.taken.loglet,
                degraded: end.degraded,
                now: self.now_ms(),
            };
            let replaced = propose_one(&*self.control, Command::Replace(replace)).await;
            // Whether it is recorded is known at the next start only; until then its data stays.
            let sure = replaced.is_ok()
                || matches!(
                    replaced,
                    Err(ControlError::Refused { .. } | ControlError::TooMany { .. } | ControlError::Full(_))
                );
            written.taken.unknown = !sure;
            replaced?;
            self.show_replacement(topic, group, &written)?;
            drop(layout);
            return self.compaction.step();
        }
        Err(Stopped("a split or merge of the range does not end".to_owned()))
    }

    /// Shows the replacement to readers. The caller holds the layout.
    fn show_replacement(
        &self,
        topic: &TopicRuntime,
        group: &[&Member],
        written: &Written<'_>,
    ) -> Result<(), Stopped> {
        let Some(first) = group.first().map(|member| &member.segment) else { return Ok(()) };
        let state = self.control.read();
        let range = state.range(topic.id, first.owner.range).ok_or(Stopped("the range is gone".into()))?;
        let entry = range.chain.iter().find(|entry| entry.loglet == written.taken.loglet);
        let entry = entry.ok_or(Stopped("the replacement is not in the chain".into()))?;
        let (loglet, drive) = (entry.loglet, written.drive.clone());
        let segment = Segment::new(first.owner, loglet, entry.base, drive, entry.opened_at, entry.tail);
        let segment = Arc::new(segment.with_compacted(true));
        if let Some(starts) = first.starts() {
            segment.note_starts(starts);
        }
        segment.note_kept(written.kept.clone().into());
        let segment = self.segments.keep(segment);
        let old: Vec<LogletId> = group.iter().map(|member| member.segment.loglet).collect();
        let readers = topic.ranges();
        let readers = readers.iter().filter(|reader| overlap(reader.span, first.owner.span).is_some());
        readers.for_each(|reader| reader.replace_segments(&old, &segment));
        group.iter().for_each(|member| member.segment.replace());
        self.refresh_catalog();
        Ok(())
    }
}
