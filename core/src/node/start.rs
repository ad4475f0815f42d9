//! Start and stop of a node: disks, control state, then every range sealed, folded and opened again in one commit.

use super::configs;
use super::said::{Named, Shared};
use super::storage::Storage;
use super::topic::TopicRuntime;
use super::topics::{epochs, owner, stamping};
use super::{Inner, NodeOptions, StartError, disks};
use crate::config::topic::TopicConfig;
use crate::control::command::{Command, Ended, ParentEnd, Reply, Reshard, Restart, RestartRange};
use crate::control::read_only::ReadOnly;
use crate::control::reshard::child_spans;
use crate::control::state::{Operation, OperationState, Range, Topic};
use crate::control::{self, ControlError, propose_one};
use crate::drive::expr::PlaceError;
use crate::env::{Clock, SystemClock};
use crate::range::primary::{Base, Known, NOWHERE, Phase, RangePrimary};
use crate::range::segment::Segment;
use crate::range::state::RangeState;
use crate::range::{lineage, project};
use crate::store::{DiskHealth, DiskStore, MemoryStore, TailBudget};
use crate::types::{LogletId, NodeId, Primary, RangeId, TopicId};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// File of the control state in the first data directory.
pub(super) const CONTROL_FILE: &str = "control.redb";
/// Ranges that are folded at the same time.
const FOLDS_AT_ONCE: usize = 16;
const CLOSE_MAX: Duration = Duration::from_secs(8);

pub(super) async fn start(options: NodeOptions) -> Result<(Arc<Inner>, Vec<String>), StartError> {
    raise_open_files();
    let node = NodeId(options.node_id);
    let tail = TailBudget::new(usize::try_from(options.config.memory_tail_bytes).unwrap_or(usize::MAX));
    let opened = disks::open(&options, &tail).await?;
    let (control, cluster_id) = (opened.control.clone(), opened.cluster_id);
    let (ids, begun) = (opened.ids(), opened.generations());
    let disks::Opened { disks, dirs, reports, absent, .. } = opened;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let now = clock.now_ms();
    let known = control.read().nodes.get(&node).map(|node| node.generation);
    let dead = |disk: &Arc<DiskStore>| matches!(disk.health(), DiskHealth::Dead(_) | DiskHealth::ReadOnly(_));
    let dead = disks.iter().any(dead);
    let reply = propose_one(&*control, Command::StartNode { node, disks: ids, begun, now }).await;
    let (generation, unrecorded) = match (reply, known) {
        (Ok(Reply::Started { generation }), _) => (generation, None),
        (Ok(_), _) => return Err(StartError::Data("the control state did not answer the start".into())),
        // A full disk takes no record of the start: up for reads only. No range opens, since that would be recorded.
        (Err(error), Some(before)) if dead || matches!(error, ControlError::Full(_)) => {
            let why = format!(
                "the start could not be recorded, so the node only reads until it is started again with room: {error}"
            );
            tracing::error!("{why}");
            (before, Some(why))
        }
        (Err(error), _) => return Err(error.into()),
    };
    let control = match &unrecorded {
        // What it would record in this process would be of a start that is not this one.
        Some(why) => Arc::new(ReadOnly { store: control, why: why.clone() }),
        None => control,
    };
    let next = control.read().counters.next_loglet;
    disks.iter().for_each(|disk| disk.used_before(LogletId(next)));
    let memory = MemoryStore::new().map_err(|e| StartError::Data(format!("memory drive: {e}")))?;
    let dynamic = configs::dynamic_of(&control.read(), node);
    let inner = Arc::new(Inner {
        dynamic: arc_swap::ArcSwap::from_pointee(dynamic),
        cluster_id: cluster_id.to_string(),
        primary: Primary { node, generation },
        unrecorded,
        control,
        storage: Storage::new(node, disks, dirs, memory, absent),
        segments: Default::default(),
        options,
        clock,
        topics: Default::default(),
        catalog: Default::default(),
        derived: Default::default(),
        layout: Default::default(),
        producer_ids: parking_lot::Mutex::new(0..0),
        cancel: CancellationToken::new(),
        rolls: Default::default(),
        dropped: Default::default(),
        parking: Default::default(),
        seal_passes: Default::default(),
        reshards: Default::default(),
        compaction: Default::default(),
        balance: Default::default(),
        said: Default::default(),
        tasks: Default::default(),
    });
    // Said at the start, not at the first topic: nothing would be served with it.
    let drive = &inner.options.config.drive;
    match inner.storage.place(drive, LogletId(0)) {
        Ok(_) => {}
        // Disks that are dead from the start (full, not there) leave the node up for reads, and for what lives elsewhere.
        Err(error @ PlaceError::TooFewLive { .. }) => tracing::error!("{error}"),
        Err(error) => {
            return Err(disks::default_drive_unusable(drive, &error));
        }
    }
    inner.warn_of_fewer_copies();
    inner.warn_of_small_reserve();
    inner.bury().await;
    let ranges = inner.recover_ranges().await?;
    let mut lines: Vec<String> = reports
        .iter()
        .zip(inner.storage.dirs())
        .flat_map(|(report, dir)| {
            let found = format!(
                "{}: {} extents ({} read whole), {} chunks ({} unfinished deleted), {} entries, {} bytes of an \
                 unfinished write cut",
                dir.display(),
                report.extents,
                report.scanned,
                report.chunks,
                report.unfinished_chunks,
                report.entries,
                report.torn_bytes
            );
            let damage = report.damage.iter().map(|d| format!("{}: DAMAGE {d}", dir.display()));
            std::iter::once(found).chain(damage).collect::<Vec<_>>()
        })
        .collect();
    lines.push(format!("{} topics, {ranges} ranges, generation {generation}", inner.all_topics().len()));
    for line in inner.under_replicated() {
        tracing::warn!("under-replicated: {line}");
    }
    Ok((inner, lines))
}

/// Raises the limit of open files to what the system allows: each extent and chunk is an open file.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("open files stay limited: {e}");
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|e| StartError::Data(format!("start-up task ended: {e}")))
}

/// A range that takes no appends since the start.
struct Still {
    topic: Arc<Topic>,
    range: Arc<Range>,
    why: String,
    /// Its state and segments, where it was sealed.
    log: Option<(RangeState, Vec<Arc<Segment>>)>,
}

/// A range that was sealed and folded and waits for its next segment.
struct Folded {
    topic: TopicId,
    range: Arc<Range>,
    ended: Option<Ended>,
    sealed: Vec<Arc<Segment>>,
    state: RangeState,
    /// What it was folded from, in the range's own log.
    base: Option<Base>,
}

impl Inner {
    /// Seals and folds all ranges, records the ends and the next segments in one commit, opens them (R14).
    async fn recover_ranges(self: &Arc<Self>) -> Result<usize, StartError> {
        let resumed = self.finish_operations().await;
        let state = self.control.read();
        let all: Vec<(Arc<Topic>, Arc<Range>)> = state
            .topics
            .values()
            .flat_map(|topic| topic.live_ranges().map(|range| (topic.clone(), range.clone())))
            // Those of operations that were just finished are open.
            .filter(|(_, range)| self.unrecorded.is_some() || range.primary() != Some(self.primary))
            .collect();
        let mut folding = futures_util::stream::iter(all)
            .map(|(topic, range)| async move {
                let folded = self.seal_and_fold(&topic, &range).await;
                folded.map_err(|why| (topic, range, why))
            })
            .buffer_unordered(FOLDS_AT_ONCE);
        let (mut folded, mut blocked): (Vec<Folded>, Vec<Still>) = (Vec::new(), Vec::new());
        while let Some(one) = folding.next().await {
            match one {
                Ok(one) => folded.push(one),
                Err((topic, range, why)) => {
                    // Said of all together, in `Inner::blocked`.
                    tracing::debug!(topic = %topic.name, range = %range.id, why, "range stays blocked");
                    blocked.push(Still { topic, range, why, log: None });
                }
            }
        }
        drop(folding);
        let mut degraded = Shared::default();
        for one in folded.iter().filter(|one| one.ended.as_ref().is_some_and(|end| end.degraded.is_some())) {
            let topic = state.topics.get(&one.topic).map_or("", |topic| topic.name.as_str());
            degraded.add(Named::range(topic, one.range.id));
        }
        if degraded.len() > 0 {
            let count = degraded.len();
            tracing::warn!(
                count,
                "segments were sealed with fewer copies than their write quorum: {degraded}"
            );
        }
        if let Err(error) = self.record_restart(&folded).await {
            // Fenced and not recorded: they go on, each by itself, when there is room.
            let why = match error {
                StartError::Control(ControlError::Full(why)) => why,
                error => return Err(error),
            };
            tracing::error!(why, "no room to record the start");
            let (ended, rest): (Vec<_>, Vec<_>) = folded.into_iter().partition(|one| one.ended.is_some());
            folded = rest;
            let still = |one: Folded| {
                let topic = state.topics.get(&one.topic)?.clone();
                let log = Some((one.state, one.sealed));
                Some(Still { topic, range: one.range, why: why.clone(), log })
            };
            blocked.extend(ended.into_iter().filter_map(still));
        }
        folded.extend(resumed);
        let state = self.control.read();
        let mut by_topic: HashMap<TopicId, Vec<Arc<RangePrimary>>> = HashMap::new();
        let count = folded.len();
        for one in folded {
            let topic = state.topics.get(&one.topic).ok_or_else(gone)?;
            let primary = self.reopen(topic, one)?;
            by_topic.entry(topic.id).or_default().push(primary);
        }
        for still in blocked {
            let topic = still.topic.id;
            by_topic.entry(topic).or_default().push(self.stay_blocked(still).await?);
        }
        self.change_topics(|topics| topics.clear());
        for topic in state.topics.values() {
            let config = self.config_of(topic)?;
            let ranges = by_topic.remove(&topic.id).unwrap_or_default();
            let runtime = Arc::new(TopicRuntime::new(topic.id, topic.name.as_str().into(), config, ranges));
            self.change_topics(|topics| {
                topics.insert(topic.id, runtime.clone());
            });
        }
        self.refresh_catalog();
        self.storage.disks().iter().for_each(|disk| disk.settled());
        Ok(count)
    }

    /// Finishes the splits and merges that were under way: their children are opened with the other ranges. What cannot
    /// be finished now leaves its ranges blocked, and is tried again while the node runs.
    async fn finish_operations(&self) -> Vec<Folded> {
        let state = self.control.read();
        let mut children = Vec::new();
        if self.unrecorded.is_some() {
            return children;
        }
        for operation in state.operations.values().filter(|o| !o.state.is_over()) {
            match self.finish_operation(operation).await {
                Ok(opened) => children.extend(opened),
                Err(why) => {
                    tracing::error!(operation = %operation.kind, topic = %operation.topic, why, "not finished; tried again");
                }
            }
        }
        children
    }

    async fn finish_operation(&self, operation: &Operation) -> Result<Vec<Folded>, String> {
        let state = self.control.read();
        let topic = state.topics.get(&operation.topic).ok_or("the topic is gone")?;
        let (mut parents, mut states, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        for id in operation.kind.ranges() {
            let range = topic.ranges.get(&id).ok_or("a range is gone")?;
            let ended = if range.open().is_some() { Some(self.seal(range).await?) } else { None };
            let sealed = self.sealed_segments(range, ended.as_ref())?;
            states.push(self.fold_range(topic, range, &sealed).await?);
            lists.push(self.history(topic, range, sealed)?);
            parents.push(ParentEnd { range: id, version: range.version, ended });
        }
        let expression = self.drive_of(topic);
        let count = child_spans(&operation.kind, states.iter().map(RangeState::span)).len() as u64;
        let seeds = (0..count).map(|n| LogletId(state.counters.next_loglet + n));
        let next = seeds.map(|seed| self.new_segment(&expression, seed)).collect::<Result<Vec<_>, _>>();
        let next = next.map_err(|e| e.to_string())?;
        let command = Reshard { operation: operation.id, parents, next, now: self.now_ms() };
        let reply =
            propose_one(&*self.control, Command::Reshard(command)).await.map_err(|e| e.to_string())?;
        let Reply::Operation { state: OperationState::Done { created } } = reply else {
            return Err("not the answer of a split or merge".to_owned());
        };
        self.reshards.resumed.fetch_add(1, Ordering::Relaxed);
        tracing::info!(operation = %operation.kind, topic = %topic.name, ?created, "finished at the start");
        let state = self.control.read();
        let topic = state.topics.get(&operation.topic).ok_or("the topic is gone")?;
        let child = |id| {
            let range = topic.ranges.get(id).ok_or("a child is gone")?.clone();
            let inherited = project::inherit(range.span, &states).map_err(|e| e.to_string())?;
            let sealed = lineage::inherit(range.span, lists.iter().map(|list: &Vec<_>| list.as_slice()));
            Ok(Folded { topic: topic.id, range, ended: None, sealed, state: inherited, base: None })
        };
        created.iter().map(child).collect()
    }

    async fn seal_and_fold(&self, topic: &Topic, range: &Arc<Range>) -> Result<Folded, String> {
        if let Some(why) = &self.unrecorded {
            return Err(why.clone());
        }
        if range.state == control::state::RangeState::Fencing {
            return Err("a split or merge of it could not be finished".to_owned());
        }
        if range.open().is_some() {
            // Nothing is fenced without a place to go on.
            self.new_segment(&self.drive_of(topic), LogletId(0)).map_err(|e| e.to_string())?;
        }
        let ended = if range.open().is_some() { Some(self.seal(range).await?) } else { None };
        let own = self.sealed_segments(range, ended.as_ref())?;
        let (state, base) = self.fold_range_from(topic, range, &own).await?;
        let sealed = self.history(topic, range, own)?;
        Ok(Folded { topic: topic.id, range: range.clone(), ended, sealed, state, base })
    }

    async fn record_restart(&self, folded: &[Folded]) -> Result<(), StartError> {
        let state = self.control.read();
        let mut rows = Vec::with_capacity(folded.len());
        for (n, one) in (0u64..).zip(folded) {
            let Some(ended) = one.ended.clone() else { continue };
            let topic = state.topics.get(&one.topic).ok_or_else(gone)?;
            let seed = LogletId(state.counters.next_loglet + n);
            let next = self.new_segment(&self.drive_of(topic), seed).map_err(|e| StartError::Range {
                topic: topic.name.clone(),
                range: one.range.id.0,
                why: e.to_string(),
            })?;
            rows.push(RestartRange {
                topic: one.topic,
                range: one.range.id,
                version: one.range.version,
                ended,
                drive: next.drive,
                window: next.window,
                seal_mode: next.seal_mode,
            });
        }
        if rows.is_empty() {
            return Ok(());
        }
        let restart = Restart { primary: self.primary, ranges: rows, now: self.now_ms() };
        propose_one(&*self.control, Command::Restart(restart)).await?;
        Ok(())
    }

    fn reopen(&self, topic: &Topic, one: Folded) -> Result<Arc<RangePrimary>, StartError> {
        let range = topic.ranges.get(&one.range.id).ok_or_else(gone)?;
        let segment =
            self.open_segment(range).map_err(|e| self.range_error(topic, range.id, e.to_string()))?;
        let limits = self.limits();
        let stamping = stamping(&self.config_of(topic)?);
        let primary =
            RangePrimary::new(topic.id, range.id, limits, stamping, one.state, one.sealed, segment.clone());
        primary.reopen(segment, &epochs(range), one.base, self.now_ms());
        Ok(primary)
    }

    /// A range whose disks are not there, damaged, or without room to go on: no appends, reported, what can be read is; others
    /// go on.
    async fn stay_blocked(&self, still: Still) -> Result<Arc<RangePrimary>, StartError> {
        let Still { topic, range, why, log } = still;
        let (topic, range) = (&*topic, &*range);
        let memory = crate::drive::spec::DriveSpec::Memory { node: self.node() };
        let drive = self
            .storage
            .open(NOWHERE, &memory)
            .map_err(|e| self.range_error(topic, range.id, e.to_string()))?;
        let nowhere = Arc::new(Segment::new(owner(range), NOWHERE, 0, drive, self.now_ms(), None));
        let log = match log {
            Some(log) => Ok(log),
            None => self.read_still(topic, range).await,
        };
        let (log, known) = match log {
            Ok(log) => (log, Known::Whole),
            Err(unsure) => {
                let unknown = if why == unsure { why.clone() } else { format!("{why} ({unsure})") };
                match self.salvage(topic, range).await {
                    Some(log) => (log, Known::Prefix(unknown)),
                    None => ((RangeState::new(range.span), Vec::new()), Known::Nothing(unknown)),
                }
            }
        };
        Ok(RangePrimary::blocked(topic.id, range.id, self.limits(), log, known, nowhere, why))
    }

    fn config_of(&self, topic: &Topic) -> Result<TopicConfig, StartError> {
        self.topic_config(&topic.configs)
            .map_err(|e| StartError::Data(format!("topic '{}': {e}", topic.name)))
    }

    fn range_error(&self, topic: &Topic, range: RangeId, why: String) -> StartError {
        StartError::Range { topic: topic.name.clone(), range: range.0, why }
    }

    /// Takes no more appends, lets what is in flight end, checkpoints what changed, closes the disks.
    pub(super) async fn close(&self) {
        let until = tokio::time::Instant::now() + CLOSE_MAX;
        let _layout = self.layout.lock().await;
        let mut ending = Vec::new();
        for topic in self.all_topics().values() {
            for range in topic.ranges().iter() {
                // Of a blocked one nothing completes any more.
                if !matches!(range.phase(), Phase::Blocked(_)) {
                    ending.push(range.clone());
                }
                // On a full disk the next start folds a little more.
                if range.unfolded().0 > 0 && range.has_room_for_checkpoint() {
                    range.checkpoint(self.now_ms());
                }
                range.close(Phase::Stopping);
            }
        }
        for range in ending {
            while !range.is_idle() {
                if tokio::time::timeout_at(until, range.wait_for_progress()).await.is_err() {
                    break;
                }
            }
        }
        for disk in self.storage.disks() {
            if let Err(error) = disk.close().await {
                tracing::error!(%error, "disk not closed cleanly; the next start recovers it");
            }
        }
    }
}

fn gone() -> StartError {
    StartError::Control(ControlError::Closed)
}
