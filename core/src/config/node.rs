//! A node's settings: one row each, from which come the struct, its defaults, parsing and the documentation.

use super::access::{AUTHORIZERS, Authorizer, Principals};
use super::connections::{ConnectionLimits, Overrides};
use super::dynamic::DynamicConfigs;
use super::groups::{self, ASSIGNORS, MIGRATION_POLICIES, MigrationPolicy};
use super::kind::{Kind, drive, flag, items, one_of};
use super::reshard::{MODES, ReshardMode};
use super::{ConfigError, invalid, nearest};
use crate::drive::spec::DriveExpr;

const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const DAY: i64 = 24 * 60 * MINUTE;

/// All sizes go down to this, so that tests reach rolls, flushes, checkpoints and recycling.
pub const SIZE_MIN: i64 = 64 * KIB;

const SIZE: Kind = Kind::Bytes { min: SIZE_MIN, max: 1 << 50 };
const SIZE_IN_MEMORY: Kind = Kind::Bytes { min: SIZE_MIN, max: 64 * GIB };
/// One response has room for so much, and for one batch that is larger than it.
const FETCH: Kind = Kind::Bytes { min: 1024, max: 128 * MIB };
const FRAME: Kind = Kind::Bytes { min: SIZE_MIN, max: i32::MAX as i64 };
pub(super) const COUNT: Kind = Kind::Int { min: 1, max: 1_000_000 };
pub(super) const CONNECTIONS: Kind = Kind::Int { min: 1, max: i32::MAX };
pub(super) const CONNECTIONS_PER_IP: Kind = Kind::Int { min: 0, max: i32::MAX };
/// Kafka takes 0 too, and nobody could connect to set it anew.
pub(super) const CONNECTIONS_RATE: Kind = Kind::Int { min: 1, max: i32::MAX };
const PERIOD: Kind = Kind::Millis { min: 1, max: i64::MAX };
/// Kafka's type of it is a whole number of 32 bits.
pub(super) const PERIOD_INT: Kind = Kind::Millis { min: 1, max: i32::MAX as i64 };

const GROUP_TIME: Kind = Kind::Millis { min: 1, max: i32::MAX as i64 };
const ASSIGNMENT_TIME: Kind = Kind::Millis { min: 0, max: i32::MAX as i64 };
const GROUP_SIZE: Kind = Kind::Int { min: 1, max: i32::MAX };

pub(super) const RATE: Kind = Kind::Long { min: 0, max: i64::MAX };
pub(super) const RESHARD_BYTES: Kind = Kind::Bytes { min: 0, max: i64::MAX };
/// At three quarters of the target what was split would soon be merged again.
pub(super) const MERGE_BELOW: Kind = Kind::Int { min: 0, max: 75 };
pub(super) const WINDOW: Kind = Kind::Millis { min: 100, max: DAY };
pub(super) const COOL_DOWN: Kind = Kind::Millis { min: 0, max: 30 * DAY };
pub(super) const CHANGES: Kind = Kind::Int { min: 1, max: 100 };

/// One setting of a node.
#[derive(Copy, Clone, Debug)]
pub struct NodeKey {
    /// Dotted name.
    pub name: &'static str,
    /// Type and bounds.
    pub kind: Kind,
    /// Meaning.
    pub doc: &'static str,
    /// Whether it may be `auto`, whatever its type.
    pub may_be_auto: bool,
    get: fn(&NodeConfig) -> String,
    set: fn(&mut NodeConfig, &str) -> Result<(), String>,
}

impl NodeKey {
    /// The value in `config`, as `set` takes it; numbers without a unit.
    pub fn value(&self, config: &NodeConfig) -> String {
        (self.get)(config)
    }

    /// The default value.
    pub fn default(&self) -> String {
        self.value(&NodeConfig::default())
    }

    /// Name of the environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("RANGEWAY_{}", self.name.to_ascii_uppercase().replace('.', "__"))
    }
}

macro_rules! node_config {
    ($($name:literal $field:ident: $type:ty = $default:expr, $kind:expr, $doc:literal;)*) => {
        /// A node's settings. Numbers of bytes and milliseconds, as the names say.
        #[derive(Clone, Debug, PartialEq)]
        pub struct NodeConfig {
            $(#[doc = $doc] pub $field: $type,)*
        }

        impl Default for NodeConfig {
            fn default() -> NodeConfig {
                NodeConfig { $($field: $default,)* }
            }
        }

        /// All settings of a node.
        pub static NODE_KEYS: &[NodeKey] = &[$(NodeKey {
            name: $name,
            kind: $kind,
            doc: $doc,
            may_be_auto: <$type as Value>::MAY_BE_AUTO,
            get: |config| Value::show(&config.$field),
            set: |config, value| {
                config.$field = Value::read($kind, value)?;
                Ok(())
            },
        },)*];
    };
}

node_config! {
    "num.partitions" num_partitions: i32 = 16, COUNT,
        "Partitions of a topic whose creator does not say how many (auto-created, or -1).";
    "auto.create.topics.enable" auto_create_topics: bool = true, Kind::Bool,
        "Whether a topic is created when a client asks for it.";
    "default.replication.factor" default_replication_factor: i16 = 1, Kind::Int { min: 1, max: 16 },
        "Replication factor of a topic whose creator does not say one (auto-created, or -1).";
    "topics.replication.lenient" replication_lenient: Option<bool> = None, Kind::Bool,
        "Whether a replication factor above the number of nodes is accepted and echoed. auto: on a lone node only.";
    "drive" drive: DriveExpr = DriveExpr::Disk, Kind::Drive,
        "Drive expression of topics that have none of their own: disk, memory, quorum(2, write=2), striped(2, disk).";
    "ranges.initial" ranges_initial: Option<u32> = None, COUNT,
        "Ranges that a new topic starts with, at most one per partition. auto: one per live node.";
    "reshard" reshard: ReshardMode = ReshardMode::Advise, Kind::Choice(MODES),
        "Whether ranges are split and merged by load: off, advise (what would be done is logged and explained) or on. Topics may say otherwise (rangeway.reshard), also for all that follows.";
    "reshard.bytes.per.second" reshard_bytes_per_second: u64 = 32 * MIB as u64, RESHARD_BYTES,
        "A range that gets more bytes per second is split; 0: any.";
    "reshard.records.per.second" reshard_records_per_second: u64 = 50_000, RATE,
        "A range that gets more records per second is split; 0: any.";
    "reshard.stored.bytes" reshard_stored_bytes: u64 = 0, RESHARD_BYTES,
        "A range that stores more bytes is split; 0: any.";
    "reshard.merge.below.percent" reshard_merge_below_percent: u32 = 40, MERGE_BELOW,
        "Two neighbouring ranges are merged while together they reach less than this part of every target; 0: never.";
    "reshard.window.ms" reshard_window_ms: i64 = 30 * SECOND, WINDOW,
        "Load is judged over so long. A shorter burst splits nothing, a shorter lull merges nothing.";
    "reshard.cool.down.ms" reshard_cool_down_ms: i64 = MINUTE, COOL_DOWN,
        "A range that was split or merged stays as it is for so long.";
    "reshard.ranges.min" reshard_ranges_min: Option<u32> = None, COUNT,
        "Merges leave a topic at least so many ranges. auto: as many as a new topic starts with.";
    "reshard.ranges.max" reshard_ranges_max: u32 = 256, COUNT,
        "Splits give a topic at most so many ranges.";
    "reshard.changes.max" reshard_changes_max: u32 = 1, CHANGES,
        "Splits and merges of a topic at a time, at most.";
    "segment.roll.bytes" segment_roll_bytes: u64 = GIB as u64, SIZE,
        "A range's segment is closed and the next one opened at this size. Topics may say otherwise (segment.bytes).";
    "segment.roll.ms" segment_roll_ms: i64 = 7 * DAY, PERIOD,
        "A range's segment is closed and the next one opened at this age. Topics may say otherwise (segment.ms).";
    "segment.roll.jitter.ms" segment_roll_jitter_ms: i64 = 0, Kind::Millis { min: 0, max: i64::MAX },
        "Random time taken off segment.roll.ms. Kept and shown, without effect: segments of ranges are opened at different times anyway. Topics may say otherwise (segment.jitter.ms).";
    "retention.ms" retention_ms: i64 = 7 * DAY, Kind::Millis { min: -1, max: i64::MAX },
        "Records older than this are deleted; -1: never. Topics may say otherwise (retention.ms).";
    "retention.bytes" retention_bytes: i64 = -1, Kind::Bytes { min: -1, max: i64::MAX },
        "A partition's oldest records above this size are deleted; -1: never. Topics may say otherwise (retention.bytes).";
    "cleaner.dedupe.buffer.size" cleaner_memory_bytes: u64 = 32 * MIB as u64, SIZE_IN_MEMORY,
        "Memory for the keys of a topic that is compacted, one topic at a time. Keys that do not fit are looked at in several passes.";
    "cleaner.backoff.ms" cleaner_backoff_ms: i64 = 15 * SECOND, Kind::Millis { min: 10, max: DAY },
        "How often it is looked whether a topic is to be compacted (cleanup.policy).";
    "retention.check.ms" retention_check_ms: i64 = MINUTE, Kind::Millis { min: 10, max: DAY },
        "How often it is looked for what retention deletes.";
    "message.max.bytes" message_max_bytes: u32 = 1_048_588, Kind::Bytes { min: 1024, max: GIB },
        "Largest batch. Topics may say otherwise (max.message.bytes).";
    "compressed.check" compressed_check: bool = false, Kind::Bool,
        "Whether compressed batches are opened when they are taken, as Kafka does, so that one whose inside no consumer could read is refused. It takes the node's time to decompress them. Topics may say otherwise (rangeway.compressed.check).";
    "request.max.bytes" request_max_bytes: u32 = 100 * MIB as u32, FRAME,
        "Largest request; a connection that announces a larger one is closed.";
    "request.memory.bytes" request_memory_bytes: u64 = 128 * MIB as u64, SIZE_IN_MEMORY,
        "Memory for requests that are being received, all connections together.";
    "response.memory.bytes" response_memory_bytes: u64 = 64 * MIB as u64, SIZE_IN_MEMORY,
        "Memory for records in responses to consumers that are not yet written, all connections together. Where little is left, responses are smaller. Records that are sent from files take none.";
    "fetch.max.bytes" fetch_max_bytes: u32 = 55 * MIB as u32, FETCH,
        "Largest response to one fetch, whatever the consumer asks for; a first batch that is larger is sent whole.";
    "window.entries" window_entries: u32 = 4096, Kind::Int { min: 1, max: 65_536 },
        "Most entries of a range on their way to disk at once.";
    "window.bytes" window_bytes: u64 = 32 * MIB as u64, SIZE_IN_MEMORY,
        "Most bytes of a range on their way to disk at once; a larger request is issued in pieces, in order.";
    "memory.tail.bytes" memory_tail_bytes: u64 = 32 * MIB as u64, SIZE_IN_MEMORY,
        "Memory for recent records, from which consumers that keep up are served.";
    "extent.bytes" extent_bytes: u64 = 64 * MIB as u64, Kind::Bytes { min: SIZE_MIN, max: 4 * GIB },
        "Size of a journal file.";
    "journal.bytes" journal_bytes: Option<u64> = None, SIZE,
        "Journal files of a disk whose records lie scattered may take so much; beyond, the oldest are rewritten, clustered by partition. Appends never wait for that. auto: the lesser of 4 GiB and 5 % of the disk, and at least two journal files.";
    "chunk.bytes" chunk_bytes: u64 = 4 * MIB as u64, Kind::Bytes { min: SIZE_MIN, max: GIB },
        "Largest write while scattered records are rewritten, and the memory for it.";
    "disk.reserve.bytes" disk_reserve_bytes: Option<u64> = None, SIZE,
        "Space of a disk that records may not take: below it appends are refused. auto: the greater of 256 MiB and 2 % of the disk.";
    "checkpoint.bytes" checkpoint_bytes: u64 = 64 * MIB as u64, SIZE,
        "A range's state is written again after so many bytes of its log (or 16 times its own size, if that is more).";
    "checkpoint.unfolded.bytes" checkpoint_unfolded_bytes: u64 = 512 * MIB as u64, SIZE,
        "Bytes of log above the last checkpoints of all ranges of the node, together: above it the states of those with most are written again.";
    "producer.id.expiration.ms" producer_id_expiration_ms: i64 = DAY, PERIOD_INT,
        "An idempotent producer that is silent for so long is forgotten at the next checkpoint.";
    "fetch.sessions.max" fetch_sessions_max: u32 = 1000, Kind::Int { min: 0, max: 1_000_000 },
        "Fetch sessions of all consumers; 0: none.";
    "fetch.session.idle.ms" fetch_session_idle_ms: i64 = 2 * MINUTE, PERIOD,
        "A fetch session unused for so long may be given to another consumer.";
    "connections.max" connections_max: u32 = 10_000, CONNECTIONS,
        "Connections of clients; further ones are closed at once.";
    "connections.per.ip.max" connections_per_ip_max: u32 = i32::MAX as u32, CONNECTIONS_PER_IP,
        "Connections of one address of clients; further ones are closed at once. 0: of those in connections.per.ip.overrides only.";
    "connections.per.ip.overrides" connections_per_ip_overrides: Overrides = Overrides::default(), Kind::Addresses,
        "Connections of these addresses, in place of connections.per.ip.max: 10.0.0.7:100,::1:5. Names of hosts are not looked up.";
    "connections.rate.max" connections_rate_max: u32 = i32::MAX as u32, CONNECTIONS_RATE,
        "Connections of clients that are let in within a second, after a burst of as many; further ones wait.";
    "connections.idle.ms" connections_idle_ms: i64 = 10 * MINUTE, PERIOD,
        "A connection without a request for so long is closed; so is one with a part of a request of which, in such a time, less came than 512 bytes a second.";
    "group.initial.rebalance.delay.ms" group_initial_rebalance_delay_ms: i64 = 500, ASSIGNMENT_TIME,
        "How long a new group waits for more members before it assigns partitions.";
    "group.min.session.timeout.ms" group_min_session_timeout_ms: i64 = 6 * SECOND, GROUP_TIME,
        "Shortest session timeout that a member of the classic protocol may ask for.";
    "group.max.session.timeout.ms" group_max_session_timeout_ms: i64 = 30 * MINUTE, GROUP_TIME,
        "Longest session timeout that a member of the classic protocol may ask for.";
    "group.max.size" group_max_size: u32 = i32::MAX as u32, GROUP_SIZE,
        "Most members of a group of the classic protocol.";
    "group.consumer.session.timeout.ms" group_consumer_session_timeout_ms: i64 = 45 * SECOND, GROUP_TIME,
        "A member of the consumer protocol that is silent for so long is given up. Groups may say otherwise (consumer.session.timeout.ms).";
    "group.consumer.min.session.timeout.ms" group_consumer_min_session_timeout_ms: i64 = 45 * SECOND, GROUP_TIME,
        "Least that a group may say.";
    "group.consumer.max.session.timeout.ms" group_consumer_max_session_timeout_ms: i64 = MINUTE, GROUP_TIME,
        "Most that a group may say.";
    "group.consumer.heartbeat.interval.ms" group_consumer_heartbeat_interval_ms: Option<i64> = None, GROUP_TIME,
        "How often members of the consumer protocol send heartbeats. Groups may say otherwise (consumer.heartbeat.interval.ms). auto: 5 ms for each member, at least 500 and at most 15000.";
    "group.consumer.min.heartbeat.interval.ms" group_consumer_min_heartbeat_interval_ms: i64 = 100, GROUP_TIME,
        "Least that a group may say.";
    "group.consumer.max.heartbeat.interval.ms" group_consumer_max_heartbeat_interval_ms: i64 = 15 * SECOND, GROUP_TIME,
        "Most that a group may say.";
    "group.consumer.assignment.interval.ms" group_consumer_assignment_interval_ms: i64 = 0, ASSIGNMENT_TIME,
        "Least time between two assignments of a group of the consumer protocol: what changes meanwhile is assigned in one. Groups may say otherwise (consumer.assignment.interval.ms).";
    "group.consumer.min.assignment.interval.ms" group_consumer_min_assignment_interval_ms: i64 = 0, ASSIGNMENT_TIME,
        "Least that a group may say.";
    "group.consumer.max.assignment.interval.ms" group_consumer_max_assignment_interval_ms: i64 = 15 * SECOND, ASSIGNMENT_TIME,
        "Most that a group may say.";
    "group.consumer.max.size" group_consumer_max_size: u32 = i32::MAX as u32, GROUP_SIZE,
        "Most members of a group of the consumer protocol.";
    "group.consumer.assignors" group_consumer_assignors: Vec<String> = ASSIGNORS.iter().map(|name| (*name).to_owned()).collect(), Kind::List(ASSIGNORS),
        "Assignors that members of the consumer protocol may ask for; the first is that of groups in which nobody asks.";
    "group.consumer.migration.policy" group_consumer_migration_policy: MigrationPolicy = MigrationPolicy::Bidirectional, Kind::Choice(MIGRATION_POLICIES),
        "Whether groups with members change between the classic and the consumer protocol: bidirectional, upgrade (to consumer), downgrade (to classic) or disabled. Empty groups always do.";
    "offsets.retention.minutes" offsets_retention_minutes: u32 = 7 * 24 * 60, Kind::Int { min: 1, max: i32::MAX },
        "How long offsets of a group that is empty are kept.";
    "offset.metadata.max.bytes" offset_metadata_max_bytes: u32 = 4096, Kind::Bytes { min: 0, max: i32::MAX as i64 },
        "Longest text that may go with a committed offset, in UTF-16 units.";
    "authorizer.class.name" authorizer: Authorizer = Authorizer::None, Kind::Choice(AUTHORIZERS),
        "Whether access rules (ACLs) are kept and hold. With none, nobody is refused anything. No listener authenticates: all clients are User:ANONYMOUS, told apart by their hosts.";
    "allow.everyone.if.no.acl.found" allow_everyone_if_no_acl_found: bool = false, Kind::Bool,
        "Whether all may do everything to what no access rule is about.";
    "super.users" super_users: Principals = Principals::default(), Kind::Text,
        "Who may do everything whatever the access rules say: principals such as User:alice, separated by semicolons.";
    "transaction.max.timeout.ms" transaction_max_timeout_ms: i64 = 15 * MINUTE, PERIOD_INT,
        "Longest time that a producer may give its transactions; one that takes longer than given is aborted.";
    "transactional.id.expiration.ms" transactional_id_expiration_ms: i64 = 7 * DAY, PERIOD_INT,
        "A transactional id without an open transaction that is unused for so long is forgotten.";
}

impl NodeConfig {
    /// Sets one setting from text: `--set key=value`, a file's or an environment variable's value.
    ///
    /// Errors: an unknown name (with the one that may be meant), or a value that it cannot hold.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let key = find(name).ok_or_else(|| unknown(name))?;
        (key.set)(self, value).map_err(|why| invalid(name, value, why))
    }

    /// Whether the settings fit together.
    ///
    /// Errors: `Conflict`, naming both.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (message, request) = (self.message_max_bytes, self.request_max_bytes);
        if message >= request {
            let why = format!("message.max.bytes ({message}) must be below request.max.bytes ({request})");
            return Err(ConfigError::Conflict(why));
        }
        let (extent, journal) = (self.extent_bytes, self.journal_bytes);
        if let Some(journal) = journal.filter(|journal| *journal < 2 * extent) {
            let why = format!("journal.bytes ({journal}) must be at least twice extent.bytes ({extent})");
            return Err(ConfigError::Conflict(why));
        }
        if let Some(min) = self.reshard_ranges_min.filter(|min| *min > self.reshard_ranges_max) {
            let max = self.reshard_ranges_max;
            let why = format!("reshard.ranges.min ({min}) must not be above reshard.ranges.max ({max})");
            return Err(ConfigError::Conflict(why));
        }
        ConnectionLimits::of(self, &DynamicConfigs::default()).check()?;
        groups::check(self)
    }

    /// `journal.bytes` on a disk of this size; at least two extents.
    pub fn journal_bytes_of(&self, disk: u64) -> u64 {
        self.journal_bytes.unwrap_or((4 * GIB as u64).min(disk / 20)).max(2 * self.extent_bytes)
    }

    /// `reshard.ranges.min` on one node.
    pub fn reshard_ranges_min_of(&self) -> u32 {
        self.reshard_ranges_min.or(self.ranges_initial).unwrap_or(1)
    }

    /// `group.consumer.heartbeat.interval.ms` of a group without members.
    pub fn group_consumer_heartbeat_interval_ms_of(&self) -> i64 {
        let (min, max) =
            (self.group_consumer_min_heartbeat_interval_ms, self.group_consumer_max_heartbeat_interval_ms);
        self.group_consumer_heartbeat_interval_ms.unwrap_or_else(|| groups::heartbeat_ms(0, min, max))
    }

    /// `disk.reserve.bytes` on a disk of this size.
    pub fn disk_reserve_bytes_of(&self, disk: u64) -> u64 {
        self.disk_reserve_bytes.unwrap_or((256 * MIB as u64).max(disk / 50))
    }
}

/// The setting of that name.
pub fn find(name: &str) -> Option<&'static NodeKey> {
    NODE_KEYS.iter().find(|key| key.name == name)
}

fn unknown(name: &str) -> ConfigError {
    let nearest = nearest(name, NODE_KEYS.iter().map(|key| key.name)).map(str::to_owned);
    ConfigError::Unknown { what: "node", name: name.to_owned(), nearest }
}

/// A value of a setting as text.
trait Value: Sized {
    const MAY_BE_AUTO: bool = false;
    fn read(kind: Kind, text: &str) -> Result<Self, String>;
    fn show(&self) -> String;
}

macro_rules! number_values {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(kind: Kind, text: &str) -> Result<$type, String> {
                let number = kind.number_with_unit(text)?;
                <$type>::try_from(number).map_err(|_| format!("Value must be no more than {}", <$type>::MAX))
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
number_values!(i16, i32, u32, i64, u64);

impl Value for bool {
    fn read(_: Kind, text: &str) -> Result<bool, String> {
        flag(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for ReshardMode {
    fn read(_: Kind, text: &str) -> Result<ReshardMode, String> {
        ReshardMode::of(text).ok_or_else(|| one_of(text, MODES).err().unwrap_or_default())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Authorizer {
    fn read(_: Kind, text: &str) -> Result<Authorizer, String> {
        Authorizer::of(text).ok_or_else(|| one_of(text, AUTHORIZERS).err().unwrap_or_default())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Principals {
    fn read(_: Kind, text: &str) -> Result<Principals, String> {
        Principals::of(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Overrides {
    fn read(_: Kind, text: &str) -> Result<Overrides, String> {
        Overrides::of(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for MigrationPolicy {
    fn read(_: Kind, text: &str) -> Result<MigrationPolicy, String> {
        let policy = MigrationPolicy::of(text);
        policy.ok_or_else(|| one_of(text, MIGRATION_POLICIES).err().unwrap_or_default())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A list that names at least one thing; what it names twice counts once.
impl Value for Vec<String> {
    fn read(kind: Kind, text: &str) -> Result<Vec<String>, String> {
        kind.check(text)?;
        let list: Vec<String> = items(&kind.shown(text)).into_iter().map(str::to_owned).collect();
        if list.is_empty() { Err("The list is empty".to_owned()) } else { Ok(list) }
    }

    fn show(&self) -> String {
        self.join(",")
    }
}

impl Value for DriveExpr {
    fn read(_: Kind, text: &str) -> Result<DriveExpr, String> {
        drive(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// `auto`: the node finds it out.
impl<T: Value> Value for Option<T> {
    const MAY_BE_AUTO: bool = true;

    fn read(kind: Kind, text: &str) -> Result<Option<T>, String> {
        if text.trim() == "auto" {
            return Ok(None);
        }
        T::read(kind, text).map(Some).map_err(|why| format!("{why}, or auto"))
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "auto".to_owned(), Value::show)
    }
}
