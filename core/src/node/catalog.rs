//! What the gateway sees of control state, made anew when topics or leaders change.

use super::Inner;
use crate::api::{Catalog, RangeView, TopicView};
use crate::config::topic::TopicConfig;
use crate::control::state::{State, Topic};
use crate::drive::spec::DriveExpr;
use crate::types::{NodeId, Span};
use std::sync::Arc;

impl Inner {
    /// Makes the catalog follow the control state; unchanged topics are shared with the last one.
    pub(super) fn refresh_catalog(&self) {
        let state = self.control.read();
        let before = self.catalog.load_full();
        let mut catalog = Catalog {
            version: state.counters.version,
            dynamic: self.dynamic.load_full(),
            ..Catalog::default()
        };
        self.show(&state, &before, &mut catalog);
        self.catalog.store(Arc::new(catalog));
    }

    fn show(&self, state: &State, before: &Catalog, catalog: &mut Catalog) {
        for topic in state.topics.values() {
            // A topic that is being made has no runtime yet, and is shown when it has one.
            let Some(config) = self.topic(topic.id).map(|runtime| runtime.config.load_full()) else {
                continue;
            };
            let known = before.by_id.get(&topic.id);
            let view = match known {
                Some(known)
                    if known.version == topic_version(topic) && Arc::ptr_eq(&known.config, &config) =>
                {
                    known.clone()
                }
                _ => Arc::new(view(topic, config, self.drive_of(topic))),
            };
            catalog.by_name.insert(view.name.clone(), view.clone());
            catalog.by_id.insert(view.id, view);
        }
    }
}

/// Grows with every change of the topic or of one of its ranges.
fn topic_version(topic: &Topic) -> u64 {
    topic.version + topic.ranges.values().map(|range| range.version).sum::<u64>()
}

fn view(topic: &Topic, config: Arc<TopicConfig>, drive: DriveExpr) -> TopicView {
    let ranges = topic
        .live_ranges()
        .map(|range| RangeView {
            id: range.id,
            span: range.span,
            leader: range.primary().map_or(NodeId(-1), |p| p.node),
            epochs: range
                .epochs
                .iter()
                .map(|run| (Span { first: run.first, last: run.last }, run.epoch))
                .collect(),
        })
        .collect();
    TopicView {
        id: topic.id,
        name: topic.name.as_str().into(),
        partitions: topic.partitions,
        configs: Arc::new(topic.configs.clone()),
        config,
        internal: topic.internal,
        replication_factor: topic.replication_factor,
        drive,
        ranges,
        version: topic_version(topic),
    }
}
