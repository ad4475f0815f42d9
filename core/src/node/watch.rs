//! Wake-ups of long polls, whatever becomes of the ranges meanwhile.

use super::Inner;
use crate::error::TopicPartition;
use crate::range::primary::RangePrimary;
use crate::types::{Partition, TopicId};
use std::sync::Arc;
use tokio::sync::Notify;

/// A topic's ranges as they stand together.
type Layout = Arc<Vec<Arc<RangePrimary>>>;

/// See [`crate::api::Watch`].
#[derive(Debug)]
pub(crate) struct WatchInner {
    node: Arc<Inner>,
    notify: Arc<Notify>,
    topics: Vec<Watched>,
}

/// Partitions of one topic, and who holds them.
#[derive(Debug)]
struct Watched {
    topic: TopicId,
    /// In order.
    partitions: Vec<Partition>,
    /// The layout at the last look; `None` once the topic is gone: then nothing wakes any more.
    layout: Option<Layout>,
    ranges: Vec<Arc<RangePrimary>>,
}

impl Inner {
    pub(crate) fn watch(self: &Arc<Self>, partitions: &[TopicPartition]) -> WatchInner {
        let mut topics: Vec<Watched> = Vec::new();
        for at in partitions {
            match topics.iter_mut().find(|watched| watched.topic == at.topic) {
                Some(watched) => watched.partitions.push(at.partition),
                None => topics.push(Watched {
                    topic: at.topic,
                    partitions: vec![at.partition],
                    layout: None,
                    ranges: Vec::new(),
                }),
            }
        }
        topics.iter_mut().for_each(|watched| watched.partitions.sort_unstable());
        let mut watch = WatchInner { node: self.clone(), notify: Arc::new(Notify::new()), topics };
        watch.register();
        watch
    }
}

impl WatchInner {
    pub(crate) async fn changed(&mut self) {
        self.notify.notified().await;
        self.register();
    }

    /// Registers with the ranges that hold the partitions now. A range that is replaced wakes its watchers *after* the
    /// layout shows its successors: who registered with it too late for that finds another layout when it looks again.
    fn register(&mut self) {
        let layout_of = |topic| self.node.topic(topic).map(|topic| topic.ranges());
        for watched in &mut self.topics {
            let mut now = layout_of(watched.topic);
            loop {
                watched.follow(now);
                watched.ranges.iter().for_each(|range| range.watch(&self.notify));
                now = layout_of(watched.topic);
                if same(&now, &watched.layout) {
                    break;
                }
            }
        }
    }
}

impl Watched {
    fn follow(&mut self, layout: Option<Layout>) {
        if same(&layout, &self.layout) {
            return;
        }
        let all = layout.iter().flat_map(|ranges| ranges.iter());
        let watched = |range: &&Arc<RangePrimary>| {
            let first = self.partitions.partition_point(|p| *p < range.span.first);
            self.partitions.get(first).is_some_and(|p| range.span.contains(*p))
        };
        self.ranges = all.filter(watched).cloned().collect();
        self.layout = layout;
    }
}

fn same(a: &Option<Layout>, b: &Option<Layout>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}
