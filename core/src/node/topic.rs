//! A topic as this node serves it: its ranges' primaries and its typed configs.

use crate::config::topic::TopicConfig;
use crate::range::primary::RangePrimary;
use crate::range::table;
use crate::types::{Partition, RangeId, TopicId};
use arc_swap::ArcSwap;
use std::sync::Arc;

pub(super) struct TopicRuntime {
    pub(super) id: TopicId,
    pub(super) name: Arc<str>,
    pub(super) config: ArcSwap<TopicConfig>,
    /// In order of partitions.
    ranges: ArcSwap<Vec<Arc<RangePrimary>>>,
}

impl TopicRuntime {
    pub(super) fn new(
        id: TopicId,
        name: Arc<str>,
        config: TopicConfig,
        ranges: Vec<Arc<RangePrimary>>,
    ) -> TopicRuntime {
        let topic = TopicRuntime {
            id,
            name,
            config: ArcSwap::from_pointee(config),
            ranges: ArcSwap::from_pointee(Vec::new()),
        };
        topic.add(ranges);
        topic
    }

    pub(super) fn ranges(&self) -> Arc<Vec<Arc<RangePrimary>>> {
        self.ranges.load_full()
    }

    /// The range that holds `partition`.
    pub(super) fn range_of(&self, partition: Partition) -> Option<Arc<RangePrimary>> {
        table::find(&self.ranges.load(), partition).cloned()
    }

    /// Whether this very primary serves its range, and not one that took over from it.
    pub(super) fn is_served_by(&self, primary: &Arc<RangePrimary>) -> bool {
        self.ranges.load().iter().any(|range| Arc::ptr_eq(range, primary))
    }

    /// Puts the ranges `new` in the place of those of the ids `closed`, at once for everybody who looks.
    pub(super) fn replace(&self, closed: &[RangeId], new: Vec<Arc<RangePrimary>>) {
        self.ranges.store(Arc::new(table::replace(&self.ranges.load(), closed, new)));
    }

    /// Adds ranges, each in place of one of the same id.
    pub(super) fn add(&self, more: Vec<Arc<RangePrimary>>) {
        let same: Vec<RangeId> = more.iter().map(|range| range.id).collect();
        self.replace(&same, more);
    }
}
