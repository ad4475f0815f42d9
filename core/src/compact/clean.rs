//! What becomes of an entry when its segment is compacted. Kafka's rules (its `Cleaner`), entry by entry in each partition's
//! order:
//!
//! - a record stays unless a later one of its key is among the dirty segments; one without a key stays;
//! - a tombstone goes once `delete.retention.ms` have passed since a cleaning first met it: that one writes the time into
//!   the batch (KIP-534);
//! - records of aborted transactions go; the marker of a commit goes once nothing of its transaction is left, as a tombstone
//!   does; that of an abort stays as long as readers are told of the transaction, which is until the log start has passed it;
//! - the last entry of each partition stays, be it empty, so that where a segment ends can be read from it.

use super::keys::{Full, KeyMap, Marks, Newer};
use crate::codec::batch::{BatchHead, TRANSACTIONAL_BIT};
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::codec::marker::MARKER_COMMIT;
use crate::codec::records::{Malformed, OpenBatch, RecordCodec, Rewritten, delete_horizon};
use crate::types::{Offset, Partition};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A compressed batch may grow to this many times its size, or that of a small one.
const UNPACKED_BATCHES_MAX: usize = 64;
const SMALL_BATCH: usize = 1 << 20;

/// An entry as it was read.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its header.
    pub header: EntryHeader,
    /// Its payload.
    pub payload: Bytes,
    /// Of a transaction that was aborted.
    pub aborted: bool,
}

impl Item {
    /// Opened, if it is a batch whose records count.
    fn open(&self, codec: &dyn RecordCodec) -> Option<Result<OpenBatch<'_>, Malformed>> {
        (self.header.kind == EntryKind::Data && !self.aborted).then(|| open(&self.payload, codec))
    }

    /// How many records it holds.
    fn records(&self) -> usize {
        if self.header.kind == EntryKind::Data {
            usize::try_from(self.header.record_count).unwrap_or(0)
        } else {
            0
        }
    }
}

fn open<'a>(batch: &'a Bytes, codec: &dyn RecordCodec) -> Result<OpenBatch<'a>, Malformed> {
    OpenBatch::new(batch, codec, batch.len().max(SMALL_BATCH).saturating_mul(UNPACKED_BATCHES_MAX))
}

/// Notes the keys of an entry of a dirty segment. One that cannot be opened supersedes nothing.
///
/// Errors: the map is full.
pub fn note_keys(map: &mut KeyMap, item: &Item, codec: &dyn RecordCodec) -> Result<(), Full> {
    let Some(Ok(batch)) = item.open(codec) else { return Ok(()) };
    for record in batch.records().map_while(Result::ok) {
        if let Some(key) = record.key {
            let offset = item.header.base_offset + i64::from(record.offset_delta);
            map.note(item.header.partition, key, offset)?;
        }
    }
    Ok(())
}

/// Marks what of an entry is superseded by what a pass over a class of keys noted.
pub fn mark(map: &KeyMap, marks: &mut Marks, item: &Item, codec: &dyn RecordCodec) {
    let Some(Ok(batch)) = item.open(codec) else { return };
    let partition = item.header.partition;
    for record in batch.records().map_while(Result::ok) {
        let offset = item.header.base_offset + i64::from(record.offset_delta);
        if record.key.is_some_and(|key| map.supersedes(partition, key, offset)) {
            marks.set(partition, offset);
        }
    }
}

/// What holds for one cleaning.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// What lies below is deleted.
    pub log_starts: BTreeMap<Partition, Offset>,
    /// Broker ms.
    pub now: i64,
    /// How long tombstones stay after a cleaning first met them, ms.
    pub delete_retention_ms: i64,
}

/// Counters of a cleaning.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Records that were looked at.
    pub records: u64,
    /// Records that stay.
    pub kept: u64,
    /// Batches that could not be opened, and stay as they are.
    pub unreadable: u64,
}

/// One cleaning: entries come in each partition's order, oldest first, all of a partition that are left.
#[derive(Debug)]
pub struct Cleaner {
    rules: Rules,
    newer: Newer,
    /// Producers of whose transaction a record was kept and no marker was met since.
    open: BTreeSet<(Partition, i64)>,
    /// What was done so far.
    pub cleaned: Cleaned,
}

impl Cleaner {
    /// A cleaning by what is known of later records.
    pub fn new(rules: Rules, newer: Newer) -> Cleaner {
        Cleaner { rules, newer, open: BTreeSet::new(), cleaned: Cleaned::default() }
    }

    /// What holds for it.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What becomes of an entry: header and payload, or nothing. `is_last`: no later one of its partition is in the segments
    /// that are put together with its own. Loglet and address are the caller's to set.
    pub fn clean(
        &mut self,
        item: &Item,
        is_last: bool,
        codec: &dyn RecordCodec,
    ) -> Option<(EntryHeader, Bytes)> {
        let header = &item.header;
        let log_start = self.rules.log_starts.get(&header.partition).copied().unwrap_or(0);
        let deleted = header.last_offset() < log_start;
        match header.kind {
            EntryKind::Checkpoint | EntryKind::LogStart => None,
            EntryKind::Control | EntryKind::Snapshot => (!deleted).then(|| verbatim(item)),
            EntryKind::Marker => {
                let of_it = self.open.remove(&(header.partition, header.producer_id));
                if deleted { None } else { self.marker(item, of_it || is_last, codec) }
            }
            EntryKind::Data if deleted => None,
            EntryKind::Data => self.data(item, is_last, log_start, codec),
        }
    }

    fn data(
        &mut self,
        item: &Item,
        is_last: bool,
        log_start: Offset,
        codec: &dyn RecordCodec,
    ) -> Option<(EntryHeader, Bytes)> {
        self.cleaned.records += item.records() as u64;
        match self.rewritten(item, log_start, codec) {
            Ok((keep, _)) if !keep.contains(&true) => {
                let batch = if is_last { open_head(&item.payload) } else { None };
                batch.map(|emptied| changed(item, emptied))
            }
            Ok((keep, batch)) => {
                self.cleaned.kept += keep.iter().filter(|keep| **keep).count() as u64;
                self.note_open(item);
                Some(batch.map_or_else(|| verbatim(item), |batch| changed(item, batch)))
            }
            Err(error) => {
                tracing::warn!(partition = item.header.partition, offset = item.header.base_offset, %error,
                    "a batch cannot be opened and stays as it is");
                self.cleaned.unreadable += 1;
                self.note_open(item);
                Some(verbatim(item))
            }
        }
    }

    fn note_open(&mut self, item: &Item) {
        if item.header.attributes & TRANSACTIONAL_BIT != 0 {
            self.open.insert((item.header.partition, item.header.producer_id));
        }
    }

    /// Which records of a batch stay, and the batch with these where it is another one.
    fn rewritten(
        &self,
        item: &Item,
        log_start: Offset,
        codec: &dyn RecordCodec,
    ) -> Result<(Vec<bool>, Option<Rewritten>), Malformed> {
        if item.aborted {
            return Ok((Vec::new(), None));
        }
        let batch = open(&item.payload, codec)?;
        let horizon = batch.delete_horizon();
        let (mut keep, mut tombstones) = (Vec::with_capacity(item.records()), false);
        for record in batch.records() {
            let record = record?;
            let offset = item.header.base_offset + i64::from(record.offset_delta);
            let stays = offset >= log_start
                && match record.key {
                    None => true,
                    Some(key) => {
                        !self.superseded(item.header.partition, key, offset)
                            && (record.value.is_some() || horizon.is_none_or(|at| self.rules.now < at))
                    }
                };
            tombstones |= stays && record.key.is_some() && record.value.is_none();
            keep.push(stays);
        }
        let set = (tombstones && horizon.is_none()).then(|| self.horizon());
        if !keep.contains(&true) || (set.is_none() && !keep.contains(&false)) {
            return Ok((keep, None));
        }
        let anew = batch.rewrite(codec, &keep, set)?;
        Ok((keep, Some(anew)))
    }

    fn superseded(&self, partition: Partition, key: &[u8], offset: Offset) -> bool {
        match &self.newer {
            Newer::Keys(map) => map.supersedes(partition, key, offset),
            Newer::Marks(marks) => marks.is_set(partition, offset),
        }
    }

    fn horizon(&self) -> i64 {
        self.rules.now.saturating_add(self.rules.delete_retention_ms)
    }

    fn marker(&self, item: &Item, needed: bool, codec: &dyn RecordCodec) -> Option<(EntryHeader, Bytes)> {
        let commits = item.header.flags & MARKER_COMMIT != 0;
        if needed || !commits {
            return Some(verbatim(item));
        }
        let set = BatchHead::parse(&item.payload).and_then(|head| delete_horizon(&head));
        match set {
            Some(at) => (self.rules.now < at).then(|| verbatim(item)),
            None => {
                let anew = open(&item.payload, codec)
                    .and_then(|batch| batch.rewrite(codec, &[true], Some(self.horizon())));
                Some(anew.map_or_else(
                    |_| verbatim(item),
                    |anew| {
                        let header = EntryHeader {
                            attributes: anew.attributes,
                            payload_len: anew.bytes.len() as u32,
                            ..item.header
                        };
                        (header, anew.bytes)
                    },
                ))
            }
        }
    }
}

/// A batch without its records.
fn open_head(batch: &Bytes) -> Option<Rewritten> {
    BatchHead::parse(batch).map(|head| crate::codec::records::emptied(batch, &head))
}

fn verbatim(item: &Item) -> (EntryHeader, Bytes) {
    (item.header, item.payload.clone())
}

fn changed(item: &Item, batch: Rewritten) -> (EntryHeader, Bytes) {
    let header = EntryHeader {
        record_count: batch.records,
        max_timestamp: batch.max_timestamp,
        attributes: batch.attributes,
        payload_len: batch.bytes.len() as u32,
        ..item.header
    };
    (header, batch.bytes)
}
