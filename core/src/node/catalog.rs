//! What the gateway sees of control state, made anew when topics or leaders change.

use super::Inner;
use crate::api::{Catalog, DerivedTopic, RangeView, TopicView};
use crate::config::topic::TopicConfig;
use crate::control::state::{State, Topic};
use crate::drive::spec::DriveExpr;
use crate::types::{NodeId, Span, TopicId};
use std::sync::Arc;
use uuid::Uuid;

/// What tells the id of a derived topic from that of the topic that it is derived from: bits of a random UUID that mean
/// nothing.
const DERIVED: u128 = 0xd;

impl Inner {
    /// Makes the catalog follow the control state; unchanged topics are shared with the last one.
    pub(super) fn refresh_catalog(&self) {
        // Held to the end: of two that run at once the one with the older state must not be the last.
        let derived = self.derived.lock();
        let state = self.control.read();
        let before = self.catalog.load_full();
        let mut catalog = Catalog {
            version: state.counters.version,
            dynamic: self.dynamic.load_full(),
            ..Catalog::default()
        };
        self.show(&state, &before, &mut catalog);
        for one in derived.iter() {
            self.show_derived(one, &mut catalog);
        }
        self.catalog.store(Arc::new(catalog));
    }

    pub(crate) fn derive_topic(&self, derived: DerivedTopic) {
        self.derived.lock().push(derived);
        self.refresh_catalog();
    }

    fn show_derived(&self, derived: &DerivedTopic, catalog: &mut Catalog) {
        let Some(from) = catalog.by_name.get(derived.from) else { return };
        if catalog.by_name.contains_key(derived.name) {
            return;
        }
        let config = match self.topic_config(&derived.configs) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(topic = derived.name, %error, "a derived topic is not shown");
                return;
            }
        };
        let view = Arc::new(TopicView {
            id: TopicId(Uuid::from_u128(from.id.0.as_u128() ^ DERIVED)),
            name: derived.name.into(),
            configs: Arc::new(derived.configs.clone()),
            config: Arc::new(config),
            internal: false,
            derived_from: Some(from.id),
            ..TopicView::clone(from)
        });
        catalog.by_name.insert(view.name.clone(), view.clone());
        catalog.by_id.insert(view.id, view);
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
        derived_from: None,
        replication_factor: topic.replication_factor,
        drive,
        ranges,
        version: topic_version(topic),
    }
}
