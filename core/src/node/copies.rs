//! What lacks copies, and what cannot be read, because disks are dead, full or not here: for people who look after the node.

use super::Inner;
use super::said::{Named, Shared};
use crate::control::state::Topic;
use crate::drive::expr::{copies, shape};
use crate::drive::narrow::{disks_of, is_narrowed, is_readable, lacks_copy};
use crate::store::DiskStore;
use crate::types::{DiskId, LogletId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Least reserve of a disk, in bytes: a quarter of it is for what every start writes of each range, fences, deletions and rows of
/// the control state, of which the old and the new are there for a while.
fn reserve_least(ranges: u64) -> u64 {
    const BASE: u64 = 1 << 20;
    const RANGE: u64 = 8 << 10;
    BASE.saturating_add(ranges.saturating_mul(RANGE))
}

impl Inner {
    /// Segments with fewer copies than their drive asks for, a line for each reason.
    pub(crate) fn under_replicated(&self) -> Vec<String> {
        let (state, live) = (self.control.read(), self.storage.live());
        // By why: of which topics, how many segments of how many.
        let mut causes: BTreeMap<String, (Shared, usize, usize)> = BTreeMap::new();
        for topic in state.topics.values() {
            let (thin, all, disks) = self.thin(topic, &live);
            if thin == 0 {
                continue;
            }
            let why: Vec<String> = disks.into_iter().map(|disk| self.storage.named(disk)).collect();
            let why = match why.is_empty() {
                true => "a disk was missing or full when they were written".to_owned(),
                false => why.join("; "),
            };
            let cause = causes.entry(why).or_default();
            cause.0.add(Named::topic(&topic.name));
            (cause.1, cause.2) = (cause.1 + thin, cause.2 + all);
        }
        let line = |(why, (of, thin, all)): (String, (Shared, usize, usize))| {
            format!("{of}: {thin} of {all} segments have fewer copies than their drive asks for: {why}")
        };
        causes.into_iter().map(line).collect()
    }

    /// How many segments have fewer copies than their drive asks for.
    pub(super) fn thin_segments(&self) -> usize {
        let (state, live) = (self.control.read(), self.storage.live());
        state.topics.values().map(|topic| self.thin(topic, &live).0).sum()
    }

    /// How many of a topic's segments lack copies, of how many, and which disks those were on.
    fn thin(&self, topic: &Topic, live: &BTreeSet<DiskId>) -> (usize, usize, BTreeSet<DiskId>) {
        let (expression, behind) = (self.drive_of(topic), self.behind(topic.id));
        let (mut thin, mut all, mut disks) = (0, 0, BTreeSet::new());
        for entry in topic.ranges.values().flat_map(|range| &range.chain) {
            all += 1;
            let lacks = lacks_copy(&entry.drive, live);
            if lacks {
                disks.extend(disks_of(&entry.drive).difference(live).copied());
            }
            let is_thin = lacks
                || entry.degraded.is_some()
                || is_narrowed(&expression, &entry.drive)
                || behind.contains(&entry.loglet);
            thin += usize::from(is_thin);
        }
        (thin, all, disks)
    }

    /// Segments of a topic of which a copy was without room in this process.
    fn behind(&self, topic: TopicId) -> BTreeSet<LogletId> {
        let topics = self.all_topics();
        let ranges = topics.get(&topic).map(|topic| topic.ranges().to_vec()).unwrap_or_default();
        let segments = ranges.iter().flat_map(|range| range.segments().to_vec());
        segments.filter(|segment| segment.drive.is_behind()).map(|segment| segment.loglet).collect()
    }

    /// Segments of which no copy is on a disk that is here, a line for all that the same disks are missing of.
    pub(super) fn unreadable_segments(&self) -> Vec<String> {
        if self.storage.absent().is_empty() {
            return Vec::new();
        }
        let (state, here) = (self.control.read(), self.storage.here());
        let mut causes: BTreeMap<String, (Shared, usize)> = BTreeMap::new();
        for topic in state.topics.values() {
            for range in topic.ranges.values() {
                let lost = range.chain.iter().filter(|entry| !is_readable(&entry.drive, &here));
                let disks: Vec<BTreeSet<DiskId>> = lost.map(|entry| disks_of(&entry.drive)).collect();
                if disks.is_empty() {
                    continue;
                }
                let count = disks.len();
                let names: BTreeSet<DiskId> =
                    disks.into_iter().flatten().filter(|d| !here.contains(d)).collect();
                let names: Vec<String> = names.into_iter().map(|disk| self.storage.named(disk)).collect();
                let cause = causes.entry(names.join("; ")).or_default();
                cause.0.add(Named::range(&topic.name, range.id));
                cause.1 += count;
            }
        }
        let line = |(names, (of, count)): (String, (Shared, usize))| {
            format!("{of}: {count} segments cannot be read: {names}")
        };
        causes.into_iter().map(line).collect()
    }

    /// Starts of a full disk take what fences are kept of a reserve, for each range a little: says so when that is not enough.
    pub(super) fn warn_of_small_reserve(&self) {
        let state = self.control.read();
        let ranges: u64 = state.topics.values().map(|topic| topic.live_ranges().count() as u64).sum();
        let least = reserve_least(ranges);
        let small = |(disk, dir): (&Arc<DiskStore>, &PathBuf)| {
            (disk.reserve_bytes() < least).then(|| dir.display().to_string())
        };
        let small: Vec<String> =
            self.storage.disks().iter().zip(self.storage.dirs()).filter_map(small).collect();
        if !small.is_empty() {
            tracing::warn!(
                ranges,
                least,
                "the reserve (disk.reserve.bytes) of {} is small for so many ranges: once such a disk is full, it may not last for \
                 what a start has to write",
                small.join(", ")
            );
        }
    }

    /// Topics that name no drive of their own follow the node's: says so when that keeps fewer copies than they had.
    pub(super) fn warn_of_fewer_copies(&self) {
        let state = self.control.read();
        let fewer = state.topics.values().filter_map(|topic| {
            let next = self.drive_of(topic);
            let before =
                topic.live_ranges().filter_map(|range| range.chain.last()).map(|entry| shape(&entry.drive));
            let before = before.max_by_key(copies).filter(|before| copies(before) > copies(&next))?;
            Some((topic.name.as_str(), before, next))
        });
        let fewer: Vec<_> = fewer.collect();
        if let Some((topic, before, next)) = fewer.first() {
            tracing::warn!(
                "{} topics, such as '{topic}', were written to `{before}` and go on with `{next}`: fewer copies. They follow \
                 the node's drive: give it as before (--drive), or name theirs (rangeway.drive)",
                fewer.len()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_grows_with_the_ranges_and_the_default_is_enough_for_many() {
        assert_eq!(reserve_least(0), 1 << 20);
        assert!(reserve_least(1000) > 8 << 20 && reserve_least(1000) < 10 << 20);
        assert!(reserve_least(30_000) < 256 << 20);
        assert_eq!(reserve_least(u64::MAX), u64::MAX);
    }
}
