//! Retention and roll: which records are let go, which segments may be dropped, when the head rolls. Pure.
//!
//! Kafka's meaning, on parts: a partition's records in one segment are what Kafka calls a segment of that partition.
//! Oldest first, a partition lets a whole part go when the part's newest record is older than `retention_ms`, or when
//! the partition would still hold `retention_bytes` without it; it stops at the first part that stays. So up to one
//! part more than the limit is kept, never less. By time the head's part goes too (an idle partition empties).
//!
//! A segment is dropped when every partition has passed it, in whichever range it lives now, *and* no fold needs it any
//! more (R12). The log starts of that judgement are the committed ones.

use crate::codec::entry::{EntryHeader, EntryKind};
use crate::testing::{Mutant, broken};
use crate::types::{LogletId, Offset, Partition, Span};
use std::collections::BTreeMap;

/// The records of one partition in one segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The partition.
    pub partition: Partition,
    /// Offset of its first record here.
    pub first: Offset,
    /// One above the offset of its last record here.
    pub next: Offset,
    /// Payload bytes.
    pub bytes: u64,
    /// Largest record timestamp, ms, of this part or of the partition up to its end (the walk stops at the first part
    /// that stays, so both give the same); 0 or less when no record has one.
    pub max_timestamp: i64,
    /// When its last entry was sequenced, broker ms; counts where no record has a timestamp.
    pub appended_at: i64,
}

impl Part {
    /// Time of its newest record, ms.
    pub fn newest(&self) -> i64 {
        if self.max_timestamp > 0 { self.max_timestamp } else { self.appended_at }
    }
}

/// One segment as retention sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// The loglet.
    pub loglet: LogletId,
    /// Whether its tail is recorded; the head is not.
    pub sealed: bool,
    /// Its partitions' parts, of completed entries only.
    pub parts: Vec<Part>,
}

/// What a topic keeps; `None` is without limit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Age of the newest record of a part, in ms, above which the part goes.
    pub retention_ms: Option<i64>,
    /// Bytes that a partition keeps at least.
    pub retention_bytes: Option<u64>,
}

/// What is readable of a partition: committed values.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that may be read.
    pub log_start: Offset,
    /// One above the last completed record.
    pub high_watermark: Offset,
}

/// What a fold of the range needs to read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FoldsFrom {
    /// This segment: it holds the newest checkpoint that is complete below a known committed tail.
    Segment(LogletId),
    /// Nothing of this closed range: every child has such a checkpoint of its own.
    Children,
    /// Not known, or there is none yet: everything is needed.
    Unknown,
}

/// One partition on the way through its parts.
struct Walk {
    bounds: Bounds,
    held: u64,
    raised: Offset,
    stopped: bool,
}

/// New log starts at `now` (broker ms), ascending by partition: one log-start entry of the range that holds them now.
/// `segments` are those of the partitions' whole history, oldest first, also of ranges that are closed. A partition of
/// which `bounds` knows nothing is not this range's to judge.
pub fn raise(
    segments: &[SegmentView],
    bounds: impl Fn(Partition) -> Option<Bounds>,
    policy: Policy,
    now: i64,
) -> Vec<(Partition, Offset)> {
    if policy == Policy::default() {
        return Vec::new();
    }
    let parts = || segments.iter().flat_map(|segment| &segment.parts);
    let mut walks: BTreeMap<Partition, Walk> = BTreeMap::new();
    for part in parts() {
        let Some(bounds) = bounds(part.partition) else {
            continue;
        };
        let fresh = Walk { bounds, held: 0, raised: bounds.log_start, stopped: false };
        let walk = walks.entry(part.partition).or_insert(fresh);
        if part.next > walk.bounds.log_start {
            walk.held = walk.held.saturating_add(part.bytes);
        }
    }
    for part in parts() {
        let Some(walk) =
            walks.get_mut(&part.partition).filter(|w| !w.stopped && part.next > w.bounds.log_start)
        else {
            continue;
        };
        let left = walk.held.saturating_sub(part.bytes);
        let old = policy.retention_ms.is_some_and(|ms| now.saturating_sub(part.newest()) > ms);
        let spare = policy.retention_bytes.is_some_and(|bytes| left >= bytes);
        if old || spare {
            walk.held = left;
            walk.raised = part.next.min(walk.bounds.high_watermark).max(walk.raised);
        }
        // A part that is only half committed ends the walk too: nothing behind it is.
        walk.stopped = !(old || spare) || part.next > walk.bounds.high_watermark;
    }
    let raised = walks.into_iter().filter(|(_, w)| w.raised > w.bounds.log_start);
    raised.map(|(partition, w)| (partition, w.raised)).collect()
}

/// The segments of one range that may be deleted, oldest first, of its `segments`, oldest first, with what they hold of
/// all of the range's partitions. `log_start` is the committed one of whichever range holds a partition now; a partition
/// of which it is not known holds back the segments that it is in.
pub fn droppable(
    segments: &[SegmentView],
    log_start: impl Fn(Partition) -> Option<Offset>,
    folds_from: FoldsFrom,
) -> Vec<LogletId> {
    let needless = match broken(Mutant::DroppedTooEarly) {
        true => segments.len(),
        false => needless(segments, folds_from),
    };
    let passed = |part: &Part| log_start(part.partition).is_some_and(|start| part.next <= start);
    let dead = segments.iter().take(needless).take_while(|s| s.sealed && s.parts.iter().all(passed));
    dead.map(|s| s.loglet).collect()
}

/// How many of one range's `segments`, the oldest ones, no fold needs any more.
pub fn needless(segments: &[SegmentView], folds_from: FoldsFrom) -> usize {
    match folds_from {
        FoldsFrom::Segment(loglet) => segments.iter().position(|s| s.loglet == loglet).unwrap_or(0),
        FoldsFrom::Children => segments.len(),
        FoldsFrom::Unknown => 0,
    }
}

/// What folds through a closed range over `span`: nothing once every live range that holds partitions of it has a
/// complete checkpoint in its open segment (R12). `live` are these ranges in order of partitions, each with whether it
/// has one; one that is not known, and so would leave a gap, needs everything.
pub fn folds_through(span: Span, live: impl IntoIterator<Item = (Span, bool)>) -> FoldsFrom {
    let mut next = span.first;
    for (of, checkpointed) in live {
        if of.last < next || of.first > span.last {
            continue;
        }
        if of.first > next || !checkpointed {
            return FoldsFrom::Unknown;
        }
        next = of.last.saturating_add(1);
    }
    if next > span.last { FoldsFrom::Children } else { FoldsFrom::Unknown }
}

/// What retention needs to know of a segment, gathered from its completed entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    bytes: u64,
    first_append_at: Option<i64>,
    parts: BTreeMap<Partition, Part>,
}

impl SegmentStats {
    /// Takes in a completed entry, in address order.
    pub fn note(&mut self, header: &EntryHeader) {
        let bytes = u64::from(header.payload_len);
        self.bytes = self.bytes.saturating_add(bytes);
        if !matches!(
            header.kind,
            EntryKind::Data | EntryKind::Control | EntryKind::Snapshot | EntryKind::Marker
        ) {
            return;
        }
        self.first_append_at.get_or_insert(header.appended_at);
        let (partition, first, next) =
            (header.partition, header.base_offset, header.last_offset().saturating_add(1));
        let fresh =
            Part { partition, first, next, bytes: 0, max_timestamp: -1, appended_at: header.appended_at };
        let part = self.parts.entry(partition).or_insert(fresh);
        part.next = next;
        part.bytes = part.bytes.saturating_add(bytes);
        part.max_timestamp = part.max_timestamp.max(header.max_timestamp);
        part.appended_at = part.appended_at.max(header.appended_at);
    }

    /// Payload bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the first records were sequenced, broker ms; `None` before.
    pub fn first_append_at(&self) -> Option<i64> {
        self.first_append_at
    }

    /// The segment as retention sees it.
    pub fn view(&self, loglet: LogletId, sealed: bool) -> SegmentView {
        SegmentView { loglet, sealed, parts: self.parts.values().copied().collect() }
    }
}

/// Why a head rolls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RollReason {
    /// It holds `segment_bytes` or more.
    Size,
    /// Its first records are `segment_ms` old or older.
    Age,
}

/// Whether a head of `bytes`, whose first records were sequenced at `first_append_at`, rolls at `now` (broker ms). A
/// head without records never does: it would be replaced by its like.
pub fn roll_due(
    bytes: u64,
    first_append_at: Option<i64>,
    segment_bytes: u64,
    segment_ms: i64,
    now: i64,
) -> Option<RollReason> {
    let first_append_at = first_append_at?;
    if bytes >= segment_bytes {
        return Some(RollReason::Size);
    }
    (now.saturating_sub(first_append_at) >= segment_ms).then_some(RollReason::Age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Address;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn part(partition: Partition, first: Offset, next: Offset, bytes: u64, max_timestamp: i64) -> Part {
        Part { partition, first, next, bytes, max_timestamp, appended_at: 0 }
    }

    /// Three segments of 10 records, 100 bytes and one hour each of partition 0; partition 1 has only the first.
    fn segments() -> Vec<SegmentView> {
        let segment = |n: i64, sealed| SegmentView {
            loglet: LogletId(n as u64 + 1),
            sealed,
            parts: vec![part(0, n * 10, n * 10 + 10, 100, n * 1000)],
        };
        let mut all = vec![segment(0, true), segment(1, true), segment(2, false)];
        all[0].parts.push(part(1, 0, 5, 50, 500));
        all
    }

    fn starts(zero: Offset, one: Offset) -> impl Fn(Partition) -> Option<Bounds> {
        move |p| match p {
            0 => Some(Bounds { log_start: zero, high_watermark: 30 }),
            1 => Some(Bounds { log_start: one, high_watermark: 5 }),
            _ => None,
        }
    }

    fn raised(policy: Policy, now: i64) -> Vec<(Partition, Offset)> {
        raise(&segments(), starts(0, 0), policy, now)
    }

    #[test]
    fn without_limits_nothing_goes() {
        assert_eq!(raised(Policy::default(), i64::MAX), []);
    }

    #[test]
    fn by_time_a_part_goes_when_its_newest_record_is_too_old_the_heads_too() {
        let policy = Policy { retention_ms: Some(1000), retention_bytes: None };
        assert_eq!(raised(policy, 1000), []);
        assert_eq!(raised(policy, 1001), [(0, 10)]);
        assert_eq!(raised(policy, 1501), [(0, 10), (1, 5)]);
        assert_eq!(raised(policy, 3000), [(0, 20), (1, 5)]);
        assert_eq!(raised(policy, 3001), [(0, 30), (1, 5)]);
    }

    #[test]
    fn by_bytes_each_partition_keeps_at_least_the_limit() {
        let raised = |bytes| raised(Policy { retention_ms: None, retention_bytes: Some(bytes) }, 0);
        assert_eq!(raised(300), []);
        assert_eq!(raised(201), []);
        assert_eq!(raised(200), [(0, 10)]);
        assert_eq!(raised(100), [(0, 20)]);
        assert_eq!(raised(0), [(0, 30), (1, 5)]);
    }

    #[test]
    fn nothing_above_the_high_watermark_goes_and_what_is_gone_does_not_count() {
        let policy = Policy { retention_ms: Some(1), retention_bytes: None };
        let half = |p| (p == 0).then_some(Bounds { log_start: 3, high_watermark: 24 });
        assert_eq!(raise(&segments(), half, policy, 9999), [(0, 24)]);
        let bytes = Policy { retention_ms: None, retention_bytes: Some(200) };
        assert_eq!(raise(&segments(), starts(10, 5), bytes, 9999), []);
    }

    #[test]
    fn records_without_a_timestamp_age_by_when_they_came() {
        let mut all = segments();
        all.truncate(1);
        all[0].parts = vec![Part { max_timestamp: -1, appended_at: 700, ..part(0, 0, 10, 100, -1) }];
        let policy = Policy { retention_ms: Some(1000), retention_bytes: None };
        for without in [-1, 0] {
            all[0].parts[0].max_timestamp = without;
            assert_eq!(raise(&all, starts(0, 0), policy, 1700), []);
            assert_eq!(raise(&all, starts(0, 0), policy, 1701), [(0, 10)]);
        }
    }

    #[test]
    fn a_segment_goes_when_all_have_passed_it_and_no_fold_needs_it() {
        let dropped =
            |zero, one, folds| droppable(&segments(), |p| starts(zero, one)(p).map(|b| b.log_start), folds);
        let head = FoldsFrom::Segment(LogletId(3));
        assert_eq!(dropped(30, 5, head), [LogletId(1), LogletId(2)]);
        assert_eq!(dropped(30, 4, head), [], "a cold neighbour holds the segment");
        assert_eq!(dropped(10, 5, head), [LogletId(1)]);
        assert_eq!(dropped(30, 5, FoldsFrom::Segment(LogletId(2))), [LogletId(1)]);
        assert_eq!(dropped(30, 5, FoldsFrom::Segment(LogletId(1))), [], "its checkpoint is the newest");
        assert_eq!(dropped(30, 5, FoldsFrom::Segment(LogletId(99))), [], "a checkpoint in no known segment");
        assert_eq!(dropped(30, 5, FoldsFrom::Unknown), []);
        assert_eq!(dropped(30, 5, FoldsFrom::Children), [LogletId(1), LogletId(2)], "never an unsealed one");
        assert_eq!(droppable(&segments(), |p| (p == 0).then_some(30), head), []);
    }

    #[test]
    fn a_closed_range_is_needed_until_all_that_live_over_it_have_a_checkpoint() {
        let span = |first, last| Span { first, last };
        let of = |live: &[(Span, bool)]| folds_through(span(2, 5), live.iter().copied());
        let (left, right) = (span(0, 3), span(4, 9));
        assert_eq!(of(&[(left, true), (right, true)]), FoldsFrom::Children);
        assert_eq!(of(&[(span(0, 9), true)]), FoldsFrom::Children);
        assert_eq!(of(&[(left, true), (right, false)]), FoldsFrom::Unknown);
        assert_eq!(of(&[(left, true)]), FoldsFrom::Unknown, "what holds 4 and 5 is not known");
        assert_eq!(of(&[(right, true)]), FoldsFrom::Unknown);
        assert_eq!(of(&[(span(2, 2), true), (span(4, 5), true)]), FoldsFrom::Unknown, "a gap");
        assert_eq!(of(&[]), FoldsFrom::Unknown);
        let beside = [(span(0, 1), false), (span(2, 5), true), (span(6, 9), false)];
        assert_eq!(of(&beside), FoldsFrom::Children, "others have no part in it");
    }

    #[test]
    fn a_head_rolls_by_size_and_age_and_never_empty() {
        assert_eq!(roll_due(99, Some(1000), 100, 50, 1049), None);
        assert_eq!(roll_due(100, Some(1000), 100, 50, 1000), Some(RollReason::Size));
        assert_eq!(roll_due(99, Some(1000), 100, 50, 1050), Some(RollReason::Age));
        assert_eq!(roll_due(u64::MAX, None, 100, 50, i64::MAX), None);
    }

    #[test]
    fn stats_are_gathered_from_entries() {
        let mut stats = SegmentStats::default();
        let entry = EntryHeader {
            loglet: LogletId(1),
            address: Address(0),
            kind: EntryKind::Checkpoint,
            flags: 0,
            partition: -1,
            base_offset: -1,
            last_offset_delta: 0,
            record_count: 0,
            leader_epoch: 0,
            appended_at: 5,
            first_timestamp: -1,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            first_sequence: -1,
            attributes: 0,
            payload_len: 1000,
        };
        stats.note(&entry);
        assert_eq!((stats.bytes(), stats.first_append_at()), (1000, None));
        let data =
            EntryHeader { kind: EntryKind::Data, partition: 3, payload_len: 80, appended_at: 7, ..entry };
        stats.note(&EntryHeader { base_offset: 10, last_offset_delta: 1, max_timestamp: 900, ..data });
        stats.note(&EntryHeader { base_offset: 12, max_timestamp: 800, appended_at: 9, ..data });
        assert_eq!((stats.bytes(), stats.first_append_at()), (1160, Some(7)));
        let part = Part { partition: 3, first: 10, next: 13, bytes: 160, max_timestamp: 900, appended_at: 9 };
        assert_eq!(stats.view(LogletId(1), true).parts, [part]);
    }

    proptest! {
        #[test]
        fn a_pass_keeps_the_limit_and_never_raises_above_the_end(
            sizes in prop::collection::vec((0..3i32, 1..5i64, 0..100u64, 0..1000i64), 0..40),
            per_segment in 1..6usize,
            ms in prop::option::of(0..1000i64),
            bytes in prop::option::of(0..300u64),
            start in 0..20i64,
            lag in 0..4i64,
        ) {
            let mut next: HashMap<Partition, Offset> = HashMap::new();
            let mut all = Vec::new();
            for (n, chunk) in sizes.chunks(per_segment).enumerate() {
                let mut stats: BTreeMap<Partition, Part> = BTreeMap::new();
                for &(p, records, size, timestamp) in chunk {
                    let at = next.entry(p).or_insert(0);
                    let fresh = Part { partition: p, first: *at, next: *at, bytes: 0, max_timestamp: -1, appended_at: 0 };
                    let part = stats.entry(p).or_insert(fresh);
                    *at += records;
                    (part.next, part.bytes) = (*at, part.bytes + size);
                    part.max_timestamp = part.max_timestamp.max(timestamp);
                }
                all.push(SegmentView { loglet: LogletId(n as u64), sealed: true, parts: stats.into_values().collect() });
            }
            let bounds = |p: Partition| {
                let end = next.get(&p).copied().unwrap_or(0);
                Some(Bounds { log_start: start.min(end), high_watermark: (end - lag).max(start.min(end)) })
            };
            let policy = Policy { retention_ms: ms, retention_bytes: bytes };
            let folds_from = all.last().map_or(FoldsFrom::Unknown, |s| FoldsFrom::Segment(s.loglet));
            let raised = raise(&all, bounds, policy, 1000);
            for (p, raised) in &raised {
                let b = bounds(*p).expect("known");
                prop_assert!(*raised > b.log_start && *raised <= b.high_watermark);
                let gone = |part: &&Part| part.partition == *p && part.next > b.log_start && part.first < *raised;
                for part in all.iter().flat_map(|s| &s.parts).filter(gone) {
                    let behind = all.iter().flat_map(|s| &s.parts).filter(|x| x.partition == *p && x.first >= part.next);
                    let left: u64 = behind.map(|x| x.bytes).sum();
                    let old = ms.is_some_and(|ms| 1000 - part.newest() > ms);
                    prop_assert!(old || bytes.is_some_and(|bytes| left >= bytes), "{part:?} went without a reason");
                }
            }
            for loglet in &droppable(&all, |p| bounds(p).map(|b| b.log_start), folds_from) {
                let segment = all.iter().find(|s| s.loglet == *loglet).expect("known");
                prop_assert!(segment.parts.iter().all(|x| x.next <= bounds(x.partition).expect("known").log_start));
                prop_assert!(Some(loglet) != all.last().map(|s| &s.loglet));
            }
        }
    }
}
