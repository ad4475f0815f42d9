//! Topic commands: checked, recorded in control state, then put into service.

use super::Inner;
use super::topic::TopicRuntime;
use crate::api::{NewTopic, TopicView};
use crate::config::ConfigError;
use crate::config::topic::{self, TopicConfig};
use crate::control::command::{Command, CreatePartitions, CreateTopic, NewSegment, Refusal, Reply};
use crate::control::state::{Range, State, Topic};
use crate::control::{ControlError, propose_one};
use crate::drive::Purpose;
use crate::drive::expr::{self, PlaceError};
use crate::drive::spec::DriveExpr;
use crate::error::TopicError;
use crate::range::primary::{Phase, RangePrimary, Stamping};
use crate::range::segment::{Owner, Segment};
use crate::range::state::RangeState;
use crate::types::{LogletId, RangeId, Span, TopicId, is_reserved_topic};
use crate::virtual_log::chain::SealMode;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

const PRODUCER_ID_BLOCK: u32 = 1000;

impl Inner {
    /// Runs a change of the control state and of what is served to its end, also when who asked hangs up in the middle: else
    /// a topic could be recorded and not served, or the other way round, until the next start.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.tasks.spawn(change).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and with it who waits here.
                Err(_) => std::future::pending().await,
            },
        }
    }

    pub(crate) async fn create_topic(&self, new: NewTopic) -> Result<Arc<TopicView>, TopicError> {
        if !new.internal && is_reserved_topic(&new.name) {
            return Err(TopicError::Reserved(new.name));
        }
        let partitions = new.partitions.unwrap_or(self.options.config.num_partitions);
        let replication_factor =
            new.replication_factor.unwrap_or(self.options.config.default_replication_factor);
        if replication_factor < 1 {
            return Err(TopicError::InvalidReplication(format!(
                "replication factor {replication_factor} asked for; it must be 1 or more, or -1 for the default"
            )));
        }
        if replication_factor > 1 && !self.options.config.replication_lenient.unwrap_or(true) {
            return Err(TopicError::InvalidReplication(format!(
                "replication factor {replication_factor} is larger than the number of nodes, 1"
            )));
        }
        let drive = own_drive(&new.configs)?;
        let layout = self.layout.lock().await;
        let config = self.topic_config(&new.configs).map_err(invalid_config)?;
        let state = self.control.read();
        let seed = LogletId(state.counters.next_loglet);
        let expression = self.drive_for(drive.as_ref(), replication_factor, config.min_insync_replicas);
        let segment = self.new_segment(&expression, seed)?;
        let purpose = if new.internal { Purpose::Coordination } else { Purpose::Records };
        self.check_room(&segment, purpose)?;
        let ranges = u32::try_from(partitions.max(1))
            .unwrap_or(1)
            .min(self.options.config.ranges_initial.unwrap_or(1));
        let command = CreateTopic {
            id: TopicId(Uuid::new_v4()),
            name: new.name,
            partitions,
            ranges,
            replication_factor,
            drive,
            configs: new.configs,
            internal: new.internal,
            segments: vec![segment; ranges as usize],
            now: self.now_ms(),
        };
        let id = command.id;
        if new.validate_only {
            would_apply(&state, &Command::CreateTopic(command.clone()))?;
            return Ok(Arc::new(TopicView {
                id,
                name: command.name.as_str().into(),
                partitions,
                configs: Arc::new(command.configs),
                config: Arc::new(config),
                internal: command.internal,
                derived_from: None,
                replication_factor,
                drive: expression,
                ranges: Arc::from([]),
                version: 0,
            }));
        }
        propose_one(&*self.control, Command::CreateTopic(command)).await.map_err(control_error)?;
        let topic = self.control.read().topics.get(&id).cloned().ok_or(TopicError::Unknown)?;
        let ranges = self.open_new_ranges(&topic, &config, topic.live_ranges().map(|r| r.id).collect())?;
        let runtime = TopicRuntime::new(id, topic.name.as_str().into(), config, ranges);
        let runtime = Arc::new(runtime);
        self.change_topics(|topics| {
            topics.insert(id, runtime.clone());
        });
        self.refresh_catalog();
        drop(layout);
        self.catalog().by_id.get(&id).cloned().ok_or(TopicError::Unknown)
    }

    pub(crate) async fn delete_topic(&self, id: TopicId) -> Result<(), TopicError> {
        let _layout = self.layout.lock().await;
        let command = Command::DeleteTopic { topic: id, now: self.now_ms() };
        propose_one(&*self.control, command).await.map_err(control_error)?;
        let runtime = self.topic(id);
        self.change_topics(|topics| {
            topics.remove(&id);
        });
        self.refresh_catalog();
        if let Some(runtime) = runtime {
            runtime.ranges().iter().for_each(|range| range.close(Phase::Gone));
        }
        self.bury().await;
        Ok(())
    }

    pub(crate) async fn create_partitions(
        &self,
        id: TopicId,
        total: i32,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let _layout = self.layout.lock().await;
        let state = self.control.read();
        let topic = state.topics.get(&id).ok_or(TopicError::Unknown)?;
        let expression = self.drive_of(topic);
        let segment = self.new_segment(&expression, LogletId(state.counters.next_loglet))?;
        self.check_room(&segment, Purpose::Records)?;
        let command = Command::CreatePartitions(CreatePartitions {
            topic: id,
            total,
            ranges: 1,
            segments: vec![segment],
            now: self.now_ms(),
        });
        if validate_only {
            return would_apply(&state, &command);
        }
        let reply = propose_one(&*self.control, command).await.map_err(control_error)?;
        let created = match reply {
            Reply::Created(ranges) => ranges.into_iter().map(|(range, _)| range).collect(),
            _ => Vec::new(),
        };
        let topic = self.control.read().topics.get(&id).cloned().ok_or(TopicError::Unknown)?;
        let runtime = self.topic(id).ok_or(TopicError::Unknown)?;
        let ranges = self.open_new_ranges(&topic, &runtime.config.load(), created)?;
        runtime.add(ranges);
        self.refresh_catalog();
        Ok(())
    }

    pub(crate) async fn new_producer_id(&self) -> Result<i64, TopicError> {
        loop {
            if let Some(id) = self.producer_ids.lock().next() {
                return Ok(id);
            }
            let command = Command::AllocateProducerIds { count: PRODUCER_ID_BLOCK };
            if let Reply::ProducerIds { first, count } =
                propose_one(&*self.control, command).await.map_err(control_error)?
            {
                let mut ids = self.producer_ids.lock();
                if ids.is_empty() {
                    *ids = first..first + i64::from(count);
                }
            }
        }
    }

    /// The drive expression of a topic's next segment.
    pub(super) fn drive_of(&self, topic: &Topic) -> DriveExpr {
        // What was stored is valid, or the start would have refused it.
        let in_sync = self.topic_config(&topic.configs).map_or(1, |config| config.min_insync_replicas);
        self.drive_for(topic.drive.as_ref(), topic.replication_factor, in_sync)
    }

    /// A given expression wins; else the node's; else copies on as many disks as asked for and there are.
    fn drive_for(&self, own: Option<&DriveExpr>, replication_factor: i16, in_sync: i32) -> DriveExpr {
        let node = &self.options.config.drive;
        if let Some(expression) = own.or((*node != DriveExpr::Disk).then_some(node)) {
            return expression.clone();
        }
        let copies = usize::try_from(replication_factor).unwrap_or(1).min(self.storage.known());
        if copies < 2 {
            return DriveExpr::Disk;
        }
        let write = usize::try_from(in_sync).unwrap_or(1).max(copies / 2 + 1).min(copies);
        DriveExpr::Quorum {
            children: vec![DriveExpr::Disk; copies],
            write: u8::try_from(write).unwrap_or(u8::MAX),
        }
    }

    /// Whether a segment that nobody needs to go on with has room: its first entries are not asked about.
    pub(super) fn check_room(&self, segment: &NewSegment, purpose: Purpose) -> Result<(), TopicError> {
        self.storage.takes(&segment.drive, purpose).map_err(|error| TopicError::NoDisk(error.to_string()))
    }

    /// A segment to open on the disks that live.
    pub(super) fn new_segment(
        &self,
        expression: &DriveExpr,
        seed: LogletId,
    ) -> Result<NewSegment, TopicError> {
        let drive = self.storage.place(expression, seed).map_err(|error| match error {
            PlaceError::TooFewLive { .. } => TopicError::NoDisk(error.to_string()),
            PlaceError::TooFewDisks { .. } | PlaceError::Bounds(_) => {
                TopicError::InvalidDrive(error.to_string())
            }
        })?;
        Ok(NewSegment {
            drive,
            window: self.limits().window.entries,
            seal_mode: SealMode::Fence,
            primary: self.primary,
        })
    }

    /// Primaries of ranges that were just created, open.
    fn open_new_ranges(
        &self,
        topic: &Topic,
        config: &TopicConfig,
        ranges: Vec<RangeId>,
    ) -> Result<Vec<Arc<RangePrimary>>, TopicError> {
        ranges
            .into_iter()
            .filter_map(|id| topic.ranges.get(&id))
            .map(|range| {
                let segment = self.open_segment(range)?;
                let primary = RangePrimary::new(
                    topic.id,
                    range.id,
                    self.limits(),
                    stamping(config),
                    RangeState::new(range.span),
                    Vec::new(),
                    segment.clone(),
                );
                primary.open(segment, &epochs(range), Vec::new(), self.now_ms());
                Ok(primary)
            })
            .collect()
    }

    /// The open segment of a range's chain, with its drive.
    pub(super) fn open_segment(&self, range: &Range) -> Result<Arc<Segment>, TopicError> {
        let entry = range
            .open()
            .ok_or_else(|| TopicError::Control(format!("range {} has no open segment", range.id)))?;
        let drive = self
            .storage
            .open(entry.loglet, &entry.drive)
            .map_err(|e| TopicError::InvalidDrive(e.to_string()))?;
        Ok(Arc::new(Segment::new(owner(range), entry.loglet, entry.base, drive, entry.opened_at, None)))
    }

    /// Deletes what tombstones name and says so, but for what is being written to replace segments. The caller holds the layout.
    pub(super) async fn bury(&self) {
        let node = self.node();
        let due = {
            let state = self.control.read();
            let written = self.compaction.written.lock();
            let due = state.tombstones_of(node).filter(|(id, _)| !written.contains(id));
            due.map(|(id, stone)| (id, stone.drive.clone())).collect()
        };
        // What a dead or absent disk holds is deleted when it is back.
        let loglets = self.storage.discard(due).await;
        if loglets.is_empty() {
            return;
        }
        let command = Command::AckTombstones { node, loglets };
        if let Err(error) = propose_one(&*self.control, command).await {
            tracing::warn!(%error, "tombstones stay; they are tried again at the next retention check");
        }
    }
}

/// The range as the owner of its segments.
pub(super) fn owner(range: &Range) -> Owner {
    Owner { range: range.id, span: range.span }
}

/// A range's leader epochs as runs.
pub(super) fn epochs(range: &Range) -> Vec<(Span, i32)> {
    range.epochs.iter().map(|run| (Span { first: run.first, last: run.last }, run.epoch)).collect()
}

/// What a topic's configs mean for sequencing.
pub(super) fn stamping(config: &TopicConfig) -> Stamping {
    Stamping { log_append_time: config.timestamp_type == topic::TimestampType::LogAppendTime }
}

pub(super) fn invalid_config(error: ConfigError) -> TopicError {
    TopicError::InvalidConfig(error.to_string())
}

pub(super) fn own_drive(configs: &BTreeMap<String, String>) -> Result<Option<DriveExpr>, TopicError> {
    match configs.get("rangeway.drive").map(String::as_str) {
        None | Some("") => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|e: expr::ExprError| TopicError::InvalidConfig(e.to_string()))
        }
    }
}

pub(super) fn control_error(error: ControlError) -> TopicError {
    match error {
        ControlError::Refused { refusal, .. } => topic_error(refusal),
        // Nothing is applied, nor would it be if it were asked for again.
        ControlError::Failed(_) | ControlError::Full(_) => TopicError::NoDisk(error.to_string()),
        other => TopicError::Control(other.to_string()),
    }
}

/// What a command would be answered, on a copy of the state.
pub(super) fn would_apply(state: &State, command: &Command) -> Result<(), TopicError> {
    State::clone(state).apply(command).map(|_| ()).map_err(topic_error)
}

fn topic_error(refusal: Refusal) -> TopicError {
    match refusal {
        Refusal::TopicExists { name, .. } => TopicError::Exists(name),
        Refusal::NameCollides { .. } | Refusal::InvalidName(_) => {
            TopicError::InvalidName(refusal.to_string())
        }
        Refusal::UnknownTopic(_) => TopicError::Unknown,
        Refusal::Partitions { .. } => TopicError::InvalidPartitions(refusal.to_string()),
        other => TopicError::Control(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_control_state_does_not_take_is_told_from_what_it_may_have_taken() {
        for none in [ControlError::Failed("an error".into()), ControlError::Full("no room".into())] {
            let text = none.to_string();
            assert_eq!(control_error(none), TopicError::NoDisk(text));
        }
        for later in [ControlError::Unknown("an error".into()), ControlError::Closed] {
            let text = later.to_string();
            assert_eq!(control_error(later), TopicError::Control(text));
        }
    }
}
