//! Settings that are changed while a node runs: a topic's, what topics have that do not say otherwise, and the rules of who may do what.

use super::Inner;
use super::topic::TopicRuntime;
use super::topics::{control_error, invalid_config, own_drive, stamping, would_apply};
use crate::config::ConfigError;
use crate::config::connections::ConnectionLimits;
use crate::config::dynamic::{self, DynamicConfigs};
use crate::config::topic::TopicConfig;
use crate::control::command::{Acl, AlterAcls, AlterConfigs, AlterNodeConfigs, Command, DriveChange};
use crate::control::propose_one;
use crate::control::state::State;
use crate::error::TopicError;
use crate::types::{LogletId, NodeId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was set for a node while it ran.
pub(super) fn dynamic_of(state: &State, node: NodeId) -> DynamicConfigs {
    let of = |whose| state.node_configs.get(&whose).cloned().unwrap_or_default();
    DynamicConfigs { all: of(None), node: of(Some(node)) }
}

impl Inner {
    /// The settings of a topic with these explicit ones, here and now.
    pub(super) fn topic_config(
        &self,
        explicit: &BTreeMap<String, String>,
    ) -> Result<TopicConfig, ConfigError> {
        TopicConfig::new(&self.dynamic.load().beneath(explicit), &self.options.config)
    }

    pub(crate) async fn alter_topic_configs(
        &self,
        id: TopicId,
        changes: Vec<(String, Option<String>)>,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let _layout = self.layout.lock().await;
        let state = self.control.read();
        let topic = state.topics.get(&id).ok_or(TopicError::Unknown)?;
        let mut configs = topic.configs.clone();
        for (name, value) in &changes {
            match value {
                Some(value) => configs.insert(name.clone(), value.clone()),
                None => configs.remove(name),
            };
        }
        let config = self.topic_config(&configs).map_err(invalid_config)?;
        let drive = own_drive(&configs)?;
        if let Some(expression) = &drive {
            self.new_segment(expression, LogletId(state.counters.next_loglet))?;
        }
        let command = Command::AlterConfigs(AlterConfigs {
            topic: id,
            version: Some(topic.version),
            changes: changes.into_iter().collect::<BTreeMap<_, _>>(),
            drive: drive.map_or(DriveChange::Clear, DriveChange::Set),
        });
        if validate_only {
            return would_apply(&state, &command);
        }
        propose_one(&*self.control, command).await.map_err(control_error)?;
        if let Some(runtime) = self.topic(id) {
            runtime.set_config(config);
        }
        self.refresh_catalog();
        Ok(())
    }

    /// The rules of who may do what.
    pub(crate) fn acls(&self) -> Arc<BTreeSet<Acl>> {
        self.control.read().acls.clone()
    }

    /// Changes the rules of who may do what; they hold when this returns.
    pub(crate) async fn alter_acls(&self, alter: AlterAcls) -> Result<(), TopicError> {
        propose_one(&*self.control, Command::AlterAcls(alter)).await.map_err(control_error)?;
        Ok(())
    }

    /// Changes settings of this node, or of all; they hold for all topics when this returns.
    pub(crate) async fn alter_node_configs(
        &self,
        node: Option<NodeId>,
        changes: Vec<(String, Option<String>)>,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        for (name, value) in &changes {
            if let Some(value) = value {
                dynamic::check(name, value).map_err(invalid_config)?;
            }
        }
        let _layout = self.layout.lock().await;
        let changes = changes.into_iter().collect();
        let command = Command::AlterNodeConfigs(AlterNodeConfigs { node, changes });
        // How every topic would be: refused as a whole where one would contradict itself.
        let mut state = State::clone(&self.control.read());
        state.apply(&command).map_err(|refusal| TopicError::Control(refusal.to_string()))?;
        let dynamic = dynamic_of(&state, self.node());
        ConnectionLimits::of(&self.options.config, &dynamic).check().map_err(invalid_config)?;
        let topics = self.all_topics();
        let mut configs: Vec<(&Arc<TopicRuntime>, TopicConfig)> = Vec::with_capacity(topics.len());
        for (id, runtime) in topics.iter() {
            let Some(topic) = state.topics.get(id) else { continue };
            let config = TopicConfig::new(&dynamic.beneath(&topic.configs), &self.options.config);
            let config = config
                .map_err(|error| TopicError::InvalidConfig(format!("topic '{}': {error}", topic.name)))?;
            configs.push((runtime, config));
        }
        if validate_only {
            return Ok(());
        }
        propose_one(&*self.control, command).await.map_err(control_error)?;
        self.dynamic.store(Arc::new(dynamic));
        configs.into_iter().for_each(|(runtime, config)| runtime.set_config(config));
        let expiration = self.limits().producer_expiration_ms;
        for topic in topics.values() {
            topic.ranges().iter().for_each(|range| range.set_producer_expiration(expiration));
        }
        self.refresh_catalog();
        Ok(())
    }
}

impl TopicRuntime {
    /// Takes new settings; they hold from the next batch on.
    pub(super) fn set_config(&self, config: TopicConfig) {
        let stamping = stamping(&config);
        self.ranges().iter().for_each(|range| range.set_stamping(stamping));
        self.config.store(Arc::new(config));
    }
}
