//! What the gateway sees of control state, made anew when topics or leaders change.

use super::Inner;
use crate::api::{Catalog, RangeView, TopicView};
use crate::control::state::{State, Topic};
use crate::drive::spec::DriveExpr;
use crate::types::{NodeId, Span};
use std::sync::Arc;

impl Inner {
    /// Makes the catalog follow the control state; unchanged topics are shared with the last one.
    pub(super) fn refresh_catalog(&self) {
        let state = self.control.read();
        let before = self.catalog.load_full();
        self.catalog.store(Arc::new(catalog(&state, &before, |topic| self.drive_of(topic))));
    }
}

fn catalog(state: &State, before: &Catalog, drive_of: impl Fn(&Topic) -> DriveExpr) -> Catalog {
    let mut catalog = Catalog { version: state.counters.version, ..Catalog::default() };
    for topic in state.topics.values() {
        let view = match before.by_id.get(&topic.id) {
            Some(known) if known.version == topic_version(topic) => known.clone(),
            _ => Arc::new(view(topic, drive_of(topic))),
        };
        catalog.by_name.insert(view.name.clone(), view.clone());
        catalog.by_id.insert(view.id, view);
    }
    catalog
}

/// Grows with every change of the topic or of one of its ranges.
fn topic_version(topic: &Topic) -> u64 {
    topic.version + topic.ranges.values().map(|range| range.version).sum::<u64>()
}

fn view(topic: &Topic, drive: DriveExpr) -> TopicView {
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
        internal: topic.internal,
        replication_factor: topic.replication_factor,
        drive,
        ranges,
        version: topic_version(topic),
    }
}
