//! How much of each partition lies in which data directory. A range's log is one, so a partition's part is what its
//! payload comes to, in the segments that retention still holds for it; a copy counts where it lies.

use super::Inner;
use super::topic::TopicRuntime;
use crate::api::LogDir;
use crate::control::state::Topic;
use crate::drive::spec::DriveSpec;
use crate::range::primary::{Phase, RangePrimary};
use crate::range::segment::Segment;
use crate::store::DiskHealth;
use crate::types::{DiskId, Partition, TopicId};
use std::collections::{BTreeMap, HashMap};

/// Bytes on each disk, of the partitions that lie there.
type Held = HashMap<DiskId, BTreeMap<(TopicId, Partition), u64>>;

impl Inner {
    /// All data directories in their order, with what they hold of the topics that `wanted` names.
    pub(crate) async fn log_dirs(&self, wanted: impl Fn(TopicId) -> bool + Send) -> Vec<LogDir> {
        let mut held = Held::new();
        let state = self.control.read();
        for topic in self.all_topics().values().filter(|topic| wanted(topic.id)) {
            if let Some(control) = state.topics.get(&topic.id) {
                self.hold(topic, control, &mut held).await;
            }
        }
        let row = |(disk, dir): (&std::sync::Arc<crate::store::DiskStore>, &std::path::PathBuf)| {
            let space = disk.space();
            LogDir {
                path: std::path::absolute(dir).unwrap_or_else(|_| dir.clone()).display().to_string(),
                dead: match disk.health() {
                    DiskHealth::Dead(why) | DiskHealth::ReadOnly(why) => Some(why),
                    DiskHealth::Live | DiskHealth::Full(_) => None,
                },
                total_bytes: space.map(|(total, _)| total),
                usable_bytes: space.map(|(_, usable)| usable),
                partitions: held.remove(&disk.disk_id()).unwrap_or_default(),
            }
        };
        let unusable = self.storage.absent().iter().filter(|absent| absent.given);
        let offline = unusable.filter_map(|absent| {
            let dir = absent.dir.as_ref()?;
            Some(LogDir {
                path: std::path::absolute(dir).unwrap_or_else(|_| dir.clone()).display().to_string(),
                dead: Some(absent.why.clone()),
                total_bytes: None,
                usable_bytes: None,
                partitions: BTreeMap::new(),
            })
        });
        self.storage.disks().iter().zip(self.storage.dirs()).map(row).chain(offline).collect()
    }

    async fn hold(&self, topic: &TopicRuntime, control: &Topic, held: &mut Held) {
        for range in topic.ranges().iter() {
            let parts = range.parts(self.now_ms()).await;
            for disk in places(control, range).into_iter().flat_map(|drive| shares(drive, 0)) {
                let of_disk = held.entry(disk.0).or_default();
                of_disk.extend(range.span.iter().map(|partition| ((topic.id, partition), 0)));
            }
            let starts: BTreeMap<_, _> = range.visible_log_starts().into_iter().collect();
            for (segment, parts) in parts {
                let Some(drive) = drive_of(control, &segment) else { continue };
                let kept =
                    parts.iter().filter(|p| starts.get(&p.partition).is_none_or(|start| p.next > *start));
                for part in kept {
                    for (disk, bytes) in shares(drive, part.bytes) {
                        *held.entry(disk).or_default().entry((topic.id, part.partition)).or_default() +=
                            bytes;
                    }
                }
            }
        }
    }
}

/// Where a range's partitions lie whatever they hold: where their next record goes. Of a range that is blocked, wherever one of
/// its segments is: what these hold is known in part at best.
fn places<'a>(topic: &'a Topic, range: &RangePrimary) -> Vec<&'a DriveSpec> {
    if let Phase::Blocked(_) = range.phase() {
        let chain = topic.ranges.get(&range.id).map(|range| &range.chain);
        return chain.into_iter().flatten().map(|entry| &entry.drive).collect();
    }
    range.segments().last().and_then(|segment| drive_of(topic, segment)).into_iter().collect()
}

/// The drive tree of a segment, which the chain of its owner names.
fn drive_of<'a>(topic: &'a Topic, segment: &Segment) -> Option<&'a DriveSpec> {
    let chain = &topic.ranges.get(&segment.owner.range)?.chain;
    chain.iter().find(|entry| entry.loglet == segment.loglet).map(|entry| &entry.drive)
}

/// What of `bytes` written to a drive tree lies on which disk: all of it on each copy, an equal part on each stripe,
/// none of it in memory.
fn shares(drive: &DriveSpec, bytes: u64) -> Vec<(DiskId, u64)> {
    match drive {
        DriveSpec::Memory { .. } => Vec::new(),
        DriveSpec::Disk { disk, .. } => vec![(*disk, bytes)],
        DriveSpec::Quorum { children, .. } => children.iter().flat_map(|c| shares(c, bytes)).collect(),
        DriveSpec::Striped { children } => {
            let n = children.len().max(1) as u64;
            // What does not divide is the first stripe's.
            let of = |at: u64| bytes / n + if at == 0 { bytes % n } else { 0 };
            (0..).zip(children).flat_map(|(at, child)| shares(child, of(at))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    #[test]
    fn copies_count_whole_and_stripes_in_equal_parts() {
        let disk = |n: u128| DriveSpec::Disk { node: NodeId(1), disk: DiskId(uuid::Uuid::from_u128(n)) };
        let id = |n: u128| DiskId(uuid::Uuid::from_u128(n));
        assert_eq!(shares(&disk(1), 7), [(id(1), 7)]);
        assert_eq!(shares(&DriveSpec::Memory { node: NodeId(1) }, 7), []);
        let quorum = DriveSpec::Quorum { children: vec![disk(1), disk(2)], write: 2 };
        assert_eq!(shares(&quorum, 7), [(id(1), 7), (id(2), 7)]);
        let striped = DriveSpec::Striped { children: vec![disk(1), disk(2), disk(3)] };
        assert_eq!(shares(&striped, 8), [(id(1), 4), (id(2), 2), (id(3), 2)]);
        let both = DriveSpec::Striped { children: vec![quorum, disk(3)] };
        assert_eq!(shares(&both, 8), [(id(1), 4), (id(2), 4), (id(3), 4)]);
    }
}
