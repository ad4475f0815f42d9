//! Reading a range by partition and offset across its segments and those of the ranges it came from. A read error never
//! looks like the end of the log.

use crate::drive::{AdmitError, ListQuery, Payload, Purpose, ReadError, Stored};
use crate::error::ReadFailure;
use crate::range::lineage;
use crate::range::primary::{Known, RangePrimary, ReadView};
use crate::range::segment::{Segment, Start};
use crate::range::transactions::AbortedSpan;
use crate::types::{Address, Offset, Partition};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Entries that one list call may give.
const LIST_ENTRIES_MAX: usize = 4096;
/// How often a list is begun again because segments were replaced meanwhile.
const READS_MAX: usize = 8;

/// What of transactions a reader wants to see.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything up to the high watermark.
    #[default]
    Uncommitted,
    /// What lies below the last stable offset, and which transactions there were aborted.
    Committed,
}

/// Entries of a partition and what was true when they were looked up.
#[derive(Debug)]
pub struct PartitionEntries {
    /// What the reader may see.
    pub view: ReadView,
    /// Entries in offset order, the first one holding or following the offset asked for.
    pub entries: Vec<Stored>,
    /// For a committed reader: the aborted transactions that have something in these entries, by first offset.
    pub aborted: Vec<AbortedSpan>,
}

/// What a list is to give: entries of a partition from the one that holds `offset` on, that begin below `below`.
#[derive(Copy, Clone, Debug)]
struct Wanted {
    partition: Partition,
    offset: Offset,
    below: Offset,
    max_bytes: usize,
    max_entries: usize,
}

impl RangePrimary {
    /// Entries of `partition` from the one that holds `offset` on, at most `max_bytes` of payload but at least one where
    /// there is one that the reader wants to see.
    ///
    /// Errors: `OutOfRange` below the log start or above the end; `Storage` for damage, until repaired.
    pub async fn read(
        &self,
        partition: Partition,
        offset: Offset,
        max_bytes: usize,
        isolation: Isolation,
    ) -> Result<PartitionEntries, ReadFailure> {
        let view = self.view(partition).ok_or(ReadFailure::UnknownPartition)?;
        let (log_start, end) = (view.log_start, view.high_watermark);
        match &self.known {
            Known::Nothing(why) => return Err(ReadFailure::Storage(why.clone())),
            // Neither the end of the log nor out of range: it cannot be seen what is there.
            Known::Prefix(why) if offset >= end => return Err(ReadFailure::Storage(why.clone())),
            Known::Prefix(_) | Known::Whole => {}
        }
        if offset < log_start || offset > end {
            return Err(ReadFailure::OutOfRange { got: offset, log_start, end });
        }
        let below = match isolation {
            Isolation::Uncommitted => end,
            Isolation::Committed => view.last_stable,
        };
        if offset >= below || max_bytes == 0 {
            return Ok(PartitionEntries { view, entries: Vec::new(), aborted: Vec::new() });
        }
        let wanted = Wanted { partition, offset, below, max_bytes, max_entries: LIST_ENTRIES_MAX };
        let entries = self.list(&view, wanted, None).await?;
        let next = entries.last().map(|last| last.header.last_offset() + 1);
        let aborted = match (isolation, next) {
            (Isolation::Committed, Some(next)) => self.aborted(partition, offset, next),
            _ => Some(Vec::new()),
        };
        let (Some(aborted), false) = (aborted, entries.is_empty()) else {
            // The log start may have risen past the place meanwhile; otherwise something that was acknowledged is gone.
            let now = self.view(partition).ok_or(ReadFailure::UnknownPartition)?;
            if offset < now.log_start {
                return Err(ReadFailure::OutOfRange { got: offset, log_start: now.log_start, end });
            }
            return Err(ReadFailure::Storage(format!(
                "topic {} partition {partition}: no entry holds offset {offset}, log start {log_start}, end {end}",
                self.topic
            )));
        };
        Ok(PartitionEntries { view, entries, aborted })
    }

    /// The first entry at or above the log start whose maximum timestamp is at least `timestamp`.
    pub async fn first_at_timestamp(
        &self,
        partition: Partition,
        timestamp: i64,
    ) -> Result<Option<Stored>, ReadFailure> {
        let view = self.view(partition).ok_or(ReadFailure::UnknownPartition)?;
        let (offset, below) = (view.log_start, view.high_watermark);
        let wanted = Wanted { partition, offset, below, max_bytes: usize::MAX, max_entries: 1 };
        let mut found = self.list(&view, wanted, Some(timestamp)).await?;
        match (found.pop(), &self.known) {
            (None, Known::Prefix(why) | Known::Nothing(why)) => Err(ReadFailure::Storage(why.clone())),
            (found, _) => Ok(found),
        }
    }

    /// The first entry that holds the partition's largest timestamp; `None` for a partition without records.
    pub async fn first_at_max_timestamp(&self, partition: Partition) -> Result<Option<Stored>, ReadFailure> {
        let index = self.span.index(partition).ok_or(ReadFailure::UnknownPartition)?;
        if let Known::Prefix(why) | Known::Nothing(why) = &self.known {
            return Err(ReadFailure::Storage(why.clone()));
        }
        let hint = self.ends().get(index).map_or(-1, |end| end.max_timestamp);
        let mut best = self.first_at_timestamp(partition, hint).await?;
        if best.is_some() {
            return Ok(best);
        }
        // The largest one ever is below the log start or not complete: climb from one record maximum to the next.
        let mut above = i64::MIN;
        while let Some(next) = self.first_at_timestamp(partition, above).await? {
            let max = next.header.max_timestamp;
            best = Some(next);
            let Some(further) = max.checked_add(1) else { break };
            above = further;
        }
        Ok(best)
    }

    /// Reads on where compaction replaced a segment that was being read, whose data may be deleted then.
    ///
    /// Errors: also a range that has ended, whose segments were replaced in its successors.
    async fn list(
        &self,
        view: &ReadView,
        wanted: Wanted,
        min_timestamp: Option<i64>,
    ) -> Result<Vec<Stored>, ReadFailure> {
        for _ in 0..READS_MAX {
            let segments = self.segments();
            match self.list_in(&segments, view, wanted, min_timestamp).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(_) if segments.iter().any(|segment| segment.is_replaced()) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ReadFailure::Storage(format!(
            "topic {} partition {}: segments are being replaced, read again",
            self.topic, wanted.partition
        )))
    }

    /// The entries; nothing where a segment was replaced while it was read.
    async fn list_in(
        &self,
        segments: &[Arc<Segment>],
        view: &ReadView,
        wanted: Wanted,
        min_timestamp: Option<i64>,
    ) -> Result<Option<Vec<Stored>>, ReadFailure> {
        let Wanted { partition, offset, below: end, max_bytes, max_entries } = wanted;
        let mut place = self.begin_at(segments, partition, offset, min_timestamp).await;
        let mut found: Vec<Stored> = Vec::new();
        let mut bytes = 0usize;
        let mut from = offset;
        while let Some((at, segment)) = place.and_then(|at| Some((at, segments.get(at)?))) {
            let next = lineage::next_of(segments, at + 1, partition);
            if holds_nothing_of(segments, at, next, partition) {
                place = next;
                continue;
            }
            // A segment opened after the view was taken holds nothing that the view shows.
            let below = match segment.tail() {
                Some(tail) => tail,
                None if segment.loglet == view.segment.loglet => view.tail,
                None => Address(0),
            };
            let query = ListQuery {
                partition,
                from_offset: from,
                below,
                max_bytes: max_bytes - bytes,
                max_entries: max_entries - found.len(),
                min_timestamp,
            };
            let listed = match segment.drive.list_cached(&query) {
                Some(listed) => listed,
                None => match segment.drive.list(query).await {
                    Ok(listed) => listed,
                    // What comes before is good; asked again from here, the answer is the error.
                    Err(_) if !found.is_empty() => return Ok(Some(found)),
                    Err(error) => return Err(unreadable(self, segment, error)),
                },
            };
            if segment.is_replaced() {
                return Ok(None);
            }
            // An answer may stop short of its limits; only an empty one is the segment's end.
            if listed.is_empty() {
                place = next;
                continue;
            }
            for stored in listed {
                let len = stored.payload.len();
                // Offsets are dense: what begins later than asked for comes after something that is missing, but where
                // something was superseded. There too each partition's last entry is left.
                if min_timestamp.is_none()
                    && !segment.compacted
                    && stored.header.base_offset > from
                    && from < end
                {
                    if !found.is_empty() {
                        return Ok(Some(found));
                    }
                    let next = stored.header.base_offset;
                    return Err(ReadFailure::Storage(format!(
                        "topic {} partition {partition} segment {}: offsets {from} to {} are missing",
                        self.topic,
                        segment.loglet,
                        next - 1
                    )));
                }
                if stored.header.base_offset >= end || (!found.is_empty() && bytes + len > max_bytes) {
                    return Ok(Some(found));
                }
                bytes += len;
                from = stored.header.last_offset() + 1;
                found.push(stored);
            }
            if bytes >= max_bytes || found.len() >= max_entries || from >= end {
                return Ok(Some(found));
            }
        }
        Ok(Some(found))
    }

    /// The segment in which a list begins: the one that holds `offset`, or a later one before which the partition had no
    /// record of `min_timestamp` or newer.
    async fn begin_at(
        &self,
        segments: &[Arc<Segment>],
        partition: Partition,
        offset: Offset,
        min_timestamp: Option<i64>,
    ) -> Option<usize> {
        let by_offset = self.last_segment(segments, partition, |start| start.offset <= offset).await;
        let Some(timestamp) = min_timestamp else { return by_offset };
        // Older segments need not be looked at: none is left, or none can be read, as after a restart of memory drives.
        if by_offset.is_none_or(|at| lineage::next_of(segments, at + 1, partition).is_none()) {
            return by_offset;
        }
        let by_time = self.last_segment(segments, partition, |start| start.max_timestamp < timestamp).await;
        by_offset.max(by_time)
    }

    /// The last segment of `partition` of whose beginning `holds` is true, which is true of the older ones too; else the
    /// oldest one there is. Looked for back from the newest in growing steps, so that a place near the tail costs the
    /// same however old the range's lineage is.
    async fn last_segment(
        &self,
        segments: &[Arc<Segment>],
        partition: Partition,
        holds: impl Fn(&Start) -> bool,
    ) -> Option<usize> {
        let begins =
            async |at: usize| self.began(segments, at, partition).await.is_some_and(|start| holds(&start));
        let (mut high, mut step) = (segments.len(), 0);
        let mut low = loop {
            let at = lineage::back(segments, high, step.max(1), partition)?;
            if begins(at).await || lineage::back(segments, at, 1, partition).is_none() {
                break at;
            }
            (high, step) = (at, (step * 2).max(1));
        };
        loop {
            let middle = low + (high - low) / 2;
            let before = lineage::back(segments, middle + 1, 1, partition).filter(|at| *at > low);
            let after = || lineage::next_of(segments, middle + 1, partition).filter(|at| *at < high);
            let Some(at) = before.or_else(after) else { return Some(low) };
            if begins(at).await {
                low = at;
            } else {
                high = at;
            }
        }
    }
}

/// Whether it is known without a read that a segment holds nothing of `partition`: it began in the `next` one of its
/// history where it began in this one.
fn holds_nothing_of(segments: &[Arc<Segment>], at: usize, next: Option<usize>, partition: Partition) -> bool {
    let begins = |at: usize| segments.get(at)?.start(partition).map(|start| start.offset);
    matches!((begins(at), next.and_then(begins)), (Some(here), Some(next)) if here == next)
}

/// A payload as one piece of memory.
pub async fn load(payload: Payload) -> Result<Bytes, ReadError> {
    match payload {
        Payload::Memory { head, body } if head.is_empty() => Ok(body),
        Payload::Memory { head, body } => {
            let mut joined = BytesMut::with_capacity(head.len() + body.len());
            joined.extend_from_slice(&head);
            joined.extend_from_slice(&body);
            Ok(joined.freeze())
        }
        Payload::File(slice) => {
            let read = tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0u8; slice.len as usize];
                std::os::unix::fs::FileExt::read_exact_at(&*slice.file, &mut buffer, slice.position)
                    .map(|()| Bytes::from(buffer))
            });
            match read.await {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(e)) => Err(ReadError::Unavailable(e.to_string())),
                Err(e) => Err(ReadError::Unavailable(e.to_string())),
            }
        }
    }
}

/// The error of a read of `segment`; logged when it is a new one, and not of what was let go meanwhile.
pub(super) fn unreadable(range: &RangePrimary, segment: &Segment, error: ReadError) -> ReadFailure {
    let what = error.to_string();
    // What a disk that is dead or not here keeps from all its readers is said of the disk.
    let of_the_disk = matches!(error, ReadError::Unavailable(_))
        && matches!(segment.drive.admit(0, Purpose::Records), Err(AdmitError::Dead(_)));
    if of_the_disk {
        tracing::debug!(topic = %range.topic, range = %range.id, segment = %segment.loglet, what, "read failed");
    } else if range.reads(segment) && segment.is_new(&what) {
        tracing::warn!(topic = %range.topic, range = %range.id, segment = %segment.loglet, what, "read failed");
    }
    ReadFailure::Storage(format!(
        "topic {} range {} segment {}: {what}",
        range.topic, range.id, segment.loglet
    ))
}
