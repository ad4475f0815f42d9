//! A node: its disks, control state, ranges and background work. Started and stopped as a whole.
//!
//! Owns the wiring and the drivers; decisions are in the pure modules below. Must not know clients.

mod append;
mod balance;
mod catalog;
mod compact;
mod configs;
mod copies;
mod disk_copies;
mod disks;
mod follow;
mod lineage;
mod log_dirs;
mod maintain;
mod pieces;
mod range_stats;
mod read;
mod recover;
mod reshard;
mod retain;
mod roll;
mod said;
mod salvage;
mod start;
mod storage;
mod topic;
mod topics;
pub mod verify;
mod watch;

#[cfg(test)]
mod absent_test;
#[cfg(test)]
mod damage_places_test;
#[cfg(test)]
mod damage_test;
#[cfg(test)]
mod tests;

use crate::api::{Api, Catalog, ClusterView, ControlVoter, DerivedTopic, Metric};
use crate::codec::records::RecordCodec;
use crate::config::dynamic::DynamicConfigs;
use crate::config::node::NodeConfig;
use crate::control::{self, Store};
use crate::drive::narrow::disks_of;
use crate::env::Clock;
use crate::error::TopicPartition;
use crate::loglet::sequencer::Window;
use crate::range::lane::Parking;
use crate::range::primary::{Limits, Phase, RangePrimary};
use crate::types::{LeafId, NodeId, Primary, TopicId};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use said::{Named, by_cause};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use storage::Storage;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use topic::TopicRuntime;

pub(crate) use crate::range::lane::Appending;
pub(crate) use watch::WatchInner;

/// Payload of one checkpoint entry, at most.
const CHECKPOINT_PIECE_BYTES: usize = 256 << 10;
/// Idempotent producers that a range remembers past a checkpoint, at most.
const PRODUCERS_MAX: usize = 100_000;

/// Damaged places that are shown one by one.
const DAMAGE_SHOWN: usize = 100;

/// What a node needs to start.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Data directories, one per disk; the first also holds control state.
    pub data: Vec<PathBuf>,
    /// This node's number.
    pub node_id: i32,
    /// Rack, if any.
    pub rack: Option<String>,
    /// Sizes and times.
    pub config: NodeConfig,
    /// Directories that are new are taken although a disk that holds segments is missing.
    pub accept_new_disks: bool,
    /// What packs and unpacks records, where compaction takes batches apart.
    pub codec: Arc<dyn RecordCodec>,
    /// What goes wrong on which of the directories.
    #[cfg(test)]
    pub(crate) faults: TestFaults,
}

/// Faults by data directory, in tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct TestFaults(pub(crate) HashMap<PathBuf, Arc<dyn crate::store::Faults>>);

#[cfg(test)]
impl std::fmt::Debug for TestFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestFaults({})", self.0.len())
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A data directory cannot be used: in use, another cluster's, a newer format, damaged. Exit code 3.
    #[error("{0}")]
    Data(String),
    /// The control state cannot be read or written.
    #[error(transparent)]
    Control(#[from] control::ControlError),
    /// A range cannot be recovered.
    #[error("topic '{topic}' range {range}: {why}")]
    Range {
        /// Topic name.
        topic: String,
        /// Range.
        range: u32,
        /// Why.
        why: String,
    },
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
    recovered: Vec<String>,
}

impl Node {
    /// Opens the disks, recovers, seals the old segments of all ranges, opens new ones, serves.
    ///
    /// Errors: see [`StartError`]; nothing runs then.
    pub async fn start(options: NodeOptions) -> Result<Node, StartError> {
        let (inner, recovered) = start::start(options).await?;
        inner.tasks.spawn(maintain::run(inner.clone()));
        inner.tasks.spawn(compact::run(inner.clone()));
        inner.tasks.close();
        Ok(Node { inner, recovered })
    }

    /// The door.
    pub fn api(&self) -> Api {
        Api { node: self.inner.clone() }
    }

    /// What recovery found, lines for the operator.
    pub fn recovered(&self) -> &[String] {
        &self.recovered
    }

    /// Drains, checkpoints, closes the disks.
    pub async fn stop(self) {
        self.inner.cancel.cancel();
        self.inner.tasks.wait().await;
        self.inner.close().await;
    }
}

#[cfg(test)]
impl Node {
    /// Ends as a kill would, as far as one process can: no drain, no checkpoint, no mark of a clean end.
    async fn crash(self) {
        self.inner.cancel.cancel();
        self.inner.tasks.wait().await;
        assert_eq!(Arc::strong_count(&self.inner), 1, "nobody else holds the node");
    }
}

pub(crate) struct Inner {
    pub(super) options: NodeOptions,
    clock: Arc<dyn Clock>,
    pub(super) cluster_id: String,
    pub(super) primary: Primary,
    /// Why the control state does not know of this start, if it does not: then no range goes on in this process.
    unrecorded: Option<String>,
    pub(super) control: Arc<dyn Store>,
    storage: Storage,
    /// Sealed segments, shared by the ranges that read them.
    segments: lineage::OpenSegments,
    topics: ArcSwap<HashMap<TopicId, Arc<TopicRuntime>>>,
    catalog: ArcSwap<Catalog>,
    /// What the catalog shows beside stored topics; held while the catalog is made anew.
    derived: Mutex<Vec<DerivedTopic>>,
    /// Settings that were changed while nodes run; changed under the layout lock.
    pub(super) dynamic: ArcSwap<DynamicConfigs>,
    /// One change of the layout at a time.
    pub(super) layout: tokio::sync::Mutex<()>,
    producer_ids: Mutex<std::ops::Range<i64>>,
    pub(super) cancel: CancellationToken,
    pub(super) seal_passes: AtomicU64,
    pub(super) rolls: AtomicU64,
    pub(super) dropped: AtomicU64,
    reshards: reshard::Reshards,
    compaction: compact::Compaction,
    balance: balance::Balance,
    /// What is to be logged of ranges.
    said: said::Log,
    /// Background work; awaited at the stop.
    tasks: TaskTracker,
    /// What of appends is parked.
    pub(super) parking: Arc<Parking>,
}

impl Inner {
    pub(super) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    fn topic(&self, id: TopicId) -> Option<Arc<TopicRuntime>> {
        self.topics.load().get(&id).cloned()
    }

    fn all_topics(&self) -> Arc<HashMap<TopicId, Arc<TopicRuntime>>> {
        self.topics.load_full()
    }

    fn change_topics(&self, change: impl Fn(&mut HashMap<TopicId, Arc<TopicRuntime>>)) {
        self.topics.rcu(|topics| {
            let mut topics = HashMap::clone(topics);
            change(&mut topics);
            topics
        });
    }

    pub(super) fn range(&self, at: TopicPartition) -> Option<Arc<RangePrimary>> {
        self.topics.load().get(&at.topic)?.range_of(at.partition)
    }

    pub(crate) fn cluster(&self) -> ClusterView {
        ClusterView {
            cluster_id: self.cluster_id.clone(),
            node: self.primary.node,
            nodes: vec![(self.primary.node, self.options.rack.clone())],
        }
    }

    /// This node: it keeps the control state alone, on its first disk.
    pub(crate) fn control_voter(&self) -> ControlVoter {
        ControlVoter {
            generation: self.primary.generation.0,
            disk: self.storage.disks().first().map_or(uuid::Uuid::nil(), |disk| disk.disk_id().0),
            version: self.control.read().counters.version,
        }
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut out = Vec::new();
        let mut add = |name, help, counter, labels, value: f64| {
            out.push(Metric { name, help, counter, labels, value });
        };
        let (mut ranges, mut batches, mut bytes, mut checkpoints, mut duplicates, mut blocked) =
            (0, 0, 0, 0, 0, 0);
        let (mut segments, mut open) = (0, 0);
        let thin = self.thin_segments();
        for topic in self.all_topics().values() {
            for range in topic.ranges().iter() {
                let counts = range.counts();
                ranges += 1;
                segments += range.segments().iter().filter(|s| s.owner.range == range.id).count();
                batches += counts.batches.load(Ordering::Relaxed);
                bytes += counts.bytes.load(Ordering::Relaxed);
                checkpoints += counts.checkpoints.load(Ordering::Relaxed);
                duplicates += counts.duplicates.load(Ordering::Relaxed);
                blocked += usize::from(matches!(range.phase(), Phase::Blocked(_)));
                open += range.open_transactions();
            }
        }
        add("ranges", "Active ranges led by this node", false, vec![], ranges as f64);
        add("ranges_blocked", "Ranges that take no writes", false, vec![], blocked as f64);
        add("segments", "Segments of active ranges", false, vec![], segments as f64);
        let help = "Segments with fewer copies than their drive asks for";
        add("segments_under_replicated", help, false, vec![], thin as f64);
        let help = "Disks that are dead, or known and not here";
        let dead = self.storage.known() - self.storage.live().len();
        add("disks_dead", help, false, vec![], dead as f64);
        add("entries_appended_total", "Entries appended, own ones included", true, vec![], batches as f64);
        add("append_bytes_total", "Payload bytes appended", true, vec![], bytes as f64);
        add("parked_appends", "Batches that wait for their range", false, vec![], self.parking.now() as f64);
        add(
            "parked_total",
            "Batches that had to wait for their range",
            true,
            vec![],
            self.parking.total() as f64,
        );
        add(
            "append_park_seconds_total",
            "How long they waited, in all",
            true,
            vec![],
            self.parking.waited_ms() as f64 / 1000.0,
        );
        let help = "Open transactions, counted in each partition that they write to";
        add("transactions_open", help, false, vec![], open as f64);
        add("checkpoints_total", "Checkpoints written", true, vec![], checkpoints as f64);
        add("duplicate_batches_total", "Batches answered as duplicates", true, vec![], duplicates as f64);
        add(
            "segment_rolls_total",
            "Segments rolled",
            true,
            vec![],
            self.rolls.load(Ordering::Relaxed) as f64,
        );
        add(
            "segments_dropped_total",
            "Segments dropped by retention",
            true,
            vec![],
            self.dropped.load(Ordering::Relaxed) as f64,
        );
        let compaction = &self.compaction;
        for (name, help, value) in [
            ("segments_compacted_total", "Segments replaced by compaction", &compaction.replaced),
            ("compaction_records_read_total", "Records that compaction looked at", &compaction.records),
            ("compaction_records_kept_total", "Records of these that stay", &compaction.kept),
            ("compaction_bytes_written_total", "Payload bytes that compaction wrote", &compaction.bytes),
            ("compactions_failed_total", "Compactions given up, to be begun again", &compaction.failed),
        ] {
            add(name, help, true, vec![], value.load(Ordering::Relaxed) as f64);
        }
        let control = self.control.written();
        add(
            "control_commits_total",
            "Durable changes of the control state",
            true,
            vec![],
            control.commits as f64,
        );
        add("control_bytes_total", "Bytes of rows that they changed", true, vec![], control.bytes as f64);
        let reshards = &self.reshards;
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        add("range_splits_total", "Splits done", true, vec![], count(&reshards.splits));
        add("range_merges_total", "Merges done", true, vec![], count(&reshards.merges));
        add("reshards_aborted_total", "Splits and merges given up", true, vec![], count(&reshards.aborted));
        add(
            "reshards_resumed_total",
            "Splits and merges that an earlier start had begun, finished at this one",
            true,
            vec![],
            count(&reshards.resumed),
        );
        add(
            "reshard_pause_seconds_total",
            "Time in which ranges took no appends while they were split or merged",
            true,
            vec![],
            count(&reshards.paused_us) / 1e6,
        );
        add(
            "reshard_pause_seconds_max",
            "Longest of these pauses since the start",
            false,
            vec![],
            count(&reshards.longest_us) / 1e6,
        );
        let (splits, merges) = self.balance.advised();
        let (split, merge) = (vec![("kind", "split".to_owned())], vec![("kind", "merge".to_owned())]);
        for (kind, advised, begun) in
            [(split, splits, &self.balance.splits), (merge, merges, &self.balance.merges)]
        {
            let help = "Splits and merges that are advised by load, and not done";
            add("reshard_advice", help, false, kind.clone(), advised as f64);
            add("reshard_decisions_total", "Splits and merges begun by load", true, kind, count(begun));
        }
        let running = self.control.read().operations.values().filter(|o| !o.state.is_over()).count();
        add("reshards_running", "Splits and merges under way", false, vec![], running as f64);
        for disk in self.storage.disks() {
            let label = || vec![("disk", disk.disk_id().to_string())];
            let stats = disk.stats();
            for (name, help, counter, value) in [
                (
                    "journal_bytes_total",
                    "Bytes written to the journal, padding included",
                    true,
                    stats.bytes_written,
                ),
                ("journal_syncs_total", "Durable writes", true, stats.syncs),
                ("journal_groups_total", "Groups written", true, stats.groups),
                ("journal_records_total", "Records in them", true, stats.records),
                ("extents_open", "Extents that take writes", false, stats.extents_open),
                ("extents_closed", "Extents that hold data", false, stats.extents_closed),
                ("extents_spare", "Extents ready for reuse", false, stats.extents_spare),
                ("extents_recycled_total", "Extents reused", true, stats.recycled),
                ("damaged_places", "Entries and files found damaged", false, disk.damage().len() as u64),
                ("extents_adopted", "Closed extents that stay as they are", false, stats.adopted),
                (
                    "extents_scattered_bytes",
                    "Bytes of closed extents that are not adopted; beyond journal_bytes the oldest are rewritten",
                    false,
                    stats.scattered_bytes,
                ),
                ("journal_bytes", "Setting journal.bytes of this disk", false, stats.journal_bytes),
                ("chunks", "Chunk files that hold data", false, stats.chunks),
                ("chunks_written_total", "Chunk files written", true, stats.chunks_written),
                ("extents_rewritten_total", "Extents rewritten into chunks", true, stats.extents_rewritten),
                ("rewritten_bytes_total", "Bytes rewritten into chunks", true, stats.rewritten),
            ] {
                add(name, help, counter, label(), value as f64);
            }
        }
        out
    }

    pub(crate) fn blocked(&self) -> Vec<String> {
        let mut reasons = self.storage.dead();
        reasons.extend(self.unreadable_segments());
        reasons.extend(by_cause(self.blocked_ranges()));
        reasons
    }

    /// Ranges that take no writes, each with its cause, which is the disks that its segment lies on and that take none, if there
    /// are any, and with why.
    fn blocked_ranges(&self) -> Vec<(Named, String, String)> {
        let (state, live) = (self.control.read(), self.storage.live());
        let mut rows = Vec::new();
        for topic in self.all_topics().values() {
            for range in topic.ranges().iter() {
                let Phase::Blocked(why) = range.phase() else { continue };
                let open = state.range(topic.id, range.id).and_then(|range| range.open().cloned());
                let disks = open.map(|open| disks_of(&open.drive)).unwrap_or_default();
                let dead: Vec<String> = disks.difference(&live).map(|disk| disk.to_string()).collect();
                let cause = if dead.is_empty() { why.clone() } else { dead.join(" ") };
                rows.push((Named::range(&topic.name, range.id), cause, why));
            }
        }
        rows
    }

    /// What is damaged, by disk, topic, range and address: the first [`DAMAGE_SHOWN`] places and how many more.
    pub(crate) fn damage(&self) -> Vec<String> {
        let found = self.storage.damage();
        if found.is_empty() {
            return Vec::new();
        }
        let state = self.control.read();
        let mut whose = HashMap::new();
        for topic in state.topics.values() {
            for range in topic.ranges.values() {
                whose.extend(range.chain.iter().map(|entry| (entry.loglet, (topic.name.as_str(), range.id))));
            }
        }
        let line = |(disk, leaf, what): &(String, Option<LeafId>, String)| match leaf
            .and_then(|leaf| whose.get(&leaf.loglet))
        {
            Some((topic, range)) => format!("topic '{topic}' range {range} {disk}: {what}"),
            None => format!("{disk}: {what}"),
        };
        let mut lines: Vec<String> = found.iter().take(DAMAGE_SHOWN).map(line).collect();
        if found.len() > DAMAGE_SHOWN {
            lines.push(format!("and {} more places", found.len() - DAMAGE_SHOWN));
        }
        lines
    }

    /// What primaries need of the node's settings.
    pub(super) fn limits(&self) -> Limits {
        let config = &self.options.config;
        let expiration = self.dynamic.load().producer_id_expiration_ms();
        Limits {
            window: Window { entries: config.window_entries, bytes: config.window_bytes },
            checkpoint_piece_bytes: CHECKPOINT_PIECE_BYTES,
            producer_expiration_ms: expiration.unwrap_or(config.producer_id_expiration_ms),
            producers_max: PRODUCERS_MAX,
        }
    }

    pub(super) fn node(&self) -> NodeId {
        self.primary.node
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.primary.node)
    }
}
