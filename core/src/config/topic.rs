//! A topic's settings, by the names that Kafka's tools use. One row each; a setting that is stored and has no effect
//! says so in its row, and so in its documentation.

use super::kind::{Kind, drive, flag, items};
use super::node::{
    CHANGES, COOL_DOWN, COUNT, MERGE_BELOW, NodeConfig, RATE, RESHARD_BYTES, SIZE_MIN, WINDOW,
};
use super::reshard::{MODES, ReshardConfig, ReshardMode};
use super::{ConfigError, invalid, nearest};
use crate::drive::spec::DriveExpr;
use std::collections::BTreeMap;

/// Name of the setting that holds a topic's own drive expression.
pub const DRIVE: &str = "rangeway.drive";

/// One setting of a topic.
#[derive(Copy, Clone, Debug)]
pub struct TopicKey {
    /// Its name.
    pub name: &'static str,
    /// Name of the node's setting that Kafka takes the default from, if there is one.
    pub synonym: Option<&'static str>,
    /// Whether Kafka's default of that is null: it is shown without a value until somebody sets it.
    pub synonym_is_null: bool,
    /// Type and bounds.
    pub kind: Kind,
    /// What it does.
    pub effect: Effect,
    doc: &'static str,
    default: Default,
}

/// What a setting does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What its documentation says.
    Used,
    /// Nothing: it is stored and shown, for tools that insist on it.
    StoredOnly {
        /// Why there is nothing to do.
        why: &'static str,
    },
}

/// Where a topic's value comes from when it has none of its own.
#[derive(Copy, Clone, Debug)]
enum Default {
    Fixed(&'static str),
    Node(fn(&NodeConfig) -> String),
}

impl TopicKey {
    /// The value of a topic that has none of its own.
    pub fn default(&self, node: &NodeConfig) -> String {
        match self.default {
            Default::Fixed(value) => value.to_owned(),
            Default::Node(value) => value(node),
        }
    }

    /// Meaning; for a setting without effect also that it has none, and why.
    pub fn documentation(&self) -> String {
        match self.effect {
            Effect::Used => self.doc.to_owned(),
            Effect::StoredOnly { why } => format!("{} Stored, without effect: {why}.", self.doc),
        }
    }

    /// Whether it can hold `value`.
    ///
    /// Errors: `Invalid`, in Kafka's words where Kafka has some.
    pub fn check(&self, value: &str) -> Result<(), ConfigError> {
        self.kind
            .check(value)
            .and_then(|()| self.check_built(value))
            .map_err(|why| invalid(self.name, value, why))
    }

    /// Refuses what Kafka knows and this program would silently not do.
    fn check_built(&self, value: &str) -> Result<(), String> {
        match self.name {
            "follower.replication.throttled.replicas" | "leader.replication.throttled.replicas"
                if !names_replicas(value) =>
            {
                Err("Must be the literal '*' or a list of replicas in the following format: \
                     [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                    .to_owned())
            }
            "compression.gzip.level" if value.trim() == "0" => {
                Err("Value must be -1 (the codec's own default) or 1 to 9".to_owned())
            }
            "remote.storage.enable" if flag(value) == Ok(true) => {
                Err("Tiered storage is not available; possible is: false".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The list with `more` added, each item once, for settings that are lists.
    ///
    /// Errors: `Invalid` for settings that are none.
    pub fn appended(&self, present: &str, more: &str) -> Result<String, ConfigError> {
        self.check_list(more)?;
        let mut all = items(present);
        for item in items(more) {
            if !all.contains(&item) {
                all.push(item);
            }
        }
        Ok(all.join(","))
    }

    /// The list without the items of `less`, for settings that are lists.
    ///
    /// Errors: `Invalid` for settings that are none.
    pub fn subtracted(&self, present: &str, less: &str) -> Result<String, ConfigError> {
        self.check_list(less)?;
        let less = items(less);
        let left: Vec<&str> = items(present).into_iter().filter(|item| !less.contains(item)).collect();
        Ok(left.join(","))
    }

    fn check_list(&self, value: &str) -> Result<(), ConfigError> {
        if matches!(self.kind, Kind::List(_)) {
            return Ok(());
        }
        let why = "Append and subtract are possible for list settings only; this is none";
        Err(invalid(self.name, value, why.to_owned()))
    }
}

/// Whether a list is `*` or names replicas; commas at its end are let pass, as Kafka lets them.
fn names_replicas(value: &str) -> bool {
    let number =
        |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<i32>().is_ok();
    let replica =
        |item: &str| item.split_once(':').is_some_and(|(partition, node)| number(partition) && number(node));
    let mut named = value.trim_end_matches([',', ' ']).split(',').map(str::trim);
    value.trim() == "*" || value.trim_matches([',', ' ']).is_empty() || named.all(replica)
}

const fn key(
    name: &'static str,
    synonym: &'static str,
    kind: Kind,
    default: Default,
    effect: Effect,
    doc: &'static str,
) -> TopicKey {
    let synonym = if synonym.is_empty() { None } else { Some(synonym) };
    TopicKey { name, synonym, synonym_is_null: false, kind, effect, doc, default }
}

/// A setting whose default Kafka takes from another of the node's settings where the first one is null.
const fn null_beneath(key: TopicKey) -> TopicKey {
    TopicKey { synonym_is_null: true, ..key }
}

const fn stored(why: &'static str) -> Effect {
    Effect::StoredOnly { why }
}

const fn millis(min: i64) -> Kind {
    Kind::Millis { min, max: i64::MAX }
}

const NO_TIERING: Effect = stored("there is no tiered storage in Kafka's sense");
const ALWAYS_DURABLE: Effect = stored("every acknowledged record is on disk already");
const NO_INDEX_FILES: Effect = stored("there are no index files");
const NO_LEADER_COPIES: Effect = stored("there are no leader and follower copies to throttle");
const LONG_MAX: Default = Default::Fixed("9223372036854775807");
const POLICIES: &[&str] = &["compact", "delete"];
const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];

/// All settings of a topic, by name.
#[rustfmt::skip]
pub static TOPIC_KEYS: &[TopicKey] = &[
    key("cleanup.policy", "log.cleanup.policy", Kind::List(POLICIES), Default::Fixed("delete"), Effect::Used,
        "What becomes of old records: delete removes them by retention.ms and retention.bytes; compact keeps the newest record of each key, in closed segments; both may be given, or none: then every record stays."),
    key("compression.gzip.level", "compression.gzip.level", Kind::Int { min: -1, max: 9 }, Default::Fixed("-1"), Effect::Used,
        "Level of gzip where batches are compressed anew (compression.type); -1: the codec's own default."),
    key("compression.lz4.level", "compression.lz4.level", Kind::Int { min: 1, max: 17 }, Default::Fixed("9"), Effect::Used,
        "Level of lz4 where batches are compressed anew (compression.type)."),
    key("compression.type", "compression.type", Kind::Choice(CODECS), Default::Fixed("producer"), Effect::Used,
        "How batches are stored: producer keeps them as they were sent; otherwise a batch of another codec is compressed anew when it is taken, which costs the node its time."),
    key("compression.zstd.level", "compression.zstd.level", Kind::Int { min: -131_072, max: 22 }, Default::Fixed("3"), Effect::Used,
        "Level of zstd where batches are compressed anew (compression.type)."),
    key("delete.retention.ms", "log.cleaner.delete.retention.ms", millis(0), Default::Fixed("86400000"), Effect::Used,
        "How long compaction keeps the tombstone of a deleted key, and the marker of a transaction of which nothing is left, after it first met it."),
    key("file.delete.delay.ms", "log.segment.delete.delay.ms", millis(0), Default::Fixed("60000"),
        stored("space is freed when nobody reads it any more"),
        "How long a deleted file stays."),
    key("flush.messages", "log.flush.interval.messages", Kind::Long { min: 1, max: i64::MAX }, LONG_MAX, ALWAYS_DURABLE,
        "Records after which the log is synced."),
    null_beneath(key("flush.ms", "log.flush.interval.ms", millis(0), LONG_MAX, ALWAYS_DURABLE,
        "Time after which the log is synced.")),
    key("follower.replication.throttled.replicas", "", Kind::List(&[]), Default::Fixed(""), NO_LEADER_COPIES,
        "Replicas whose copying is throttled at the follower."),
    key("index.interval.bytes", "log.index.interval.bytes", Kind::Int { min: 0, max: i32::MAX }, Default::Fixed("4096"), NO_INDEX_FILES,
        "Bytes between entries of the offset index."),
    key("leader.replication.throttled.replicas", "", Kind::List(&[]), Default::Fixed(""), NO_LEADER_COPIES,
        "Replicas whose copying is throttled at the leader."),
    key("local.retention.bytes", "log.local.retention.bytes", Kind::Bytes { min: -2, max: i64::MAX }, Default::Fixed("-2"), NO_TIERING,
        "Bytes of a partition kept on local disks before tiering."),
    key("local.retention.ms", "log.local.retention.ms", millis(-2), Default::Fixed("-2"), NO_TIERING,
        "How long records stay on local disks before tiering."),
    key("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", millis(1), LONG_MAX, Effect::Used,
        "A compacted topic's records stay uncompacted no longer than this, whatever min.cleanable.dirty.ratio says; a range's segment is closed at this age at the latest."),
    key("max.message.bytes", "message.max.bytes", Kind::Bytes { min: 0, max: i32::MAX as i64 }, Default::Node(|n| n.message_max_bytes.to_string()), Effect::Used,
        "Largest batch that is taken, after compression."),
    key("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", millis(0), Default::Fixed("3600000"), Effect::Used,
        "How far a record's timestamp may lie ahead of the node's clock."),
    key("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", millis(0), LONG_MAX, Effect::Used,
        "How far a record's timestamp may lie behind the node's clock."),
    key("message.timestamp.type", "log.message.timestamp.type", Kind::Choice(TIMESTAMP_TYPES), Default::Fixed("CreateTime"), Effect::Used,
        "Whose time a record carries: its producer's or the node's at its append."),
    key("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", Kind::Double { min: 0.0, max: 1.0 }, Default::Fixed("0.5"), Effect::Used,
        "Share of uncompacted bytes above which closed segments are compacted; ranges that came from one another are looked at together."),
    key("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", millis(0), Default::Fixed("0"), Effect::Used,
        "A segment is not compacted while its newest record is younger than this."),
    key("min.insync.replicas", "min.insync.replicas", Kind::Int { min: 1, max: i32::MAX }, Default::Fixed("1"), Effect::Used,
        "Copies that must have a record before it is acknowledged to a producer that asks for all (acks=all). It raises the write quorum where the replication factor puts copies on several disks, of segments opened from here on; above the replication factor it counts as that."),
    key("preallocate", "log.preallocate", Kind::Bool, Default::Fixed("false"),
        stored("journal files are always preallocated"),
        "Whether files are preallocated."),
    key("rangeway.compressed.check", "", Kind::Bool, Default::Node(|n| n.compressed_check.to_string()), Effect::Used,
        "Whether compressed batches are opened when they are taken and their records looked at, as Kafka does; otherwise head, CRC and the codec's mark are. They are opened anyway where a rule is about single records: a compacted topic, a lower bound of timestamps."),
    key(DRIVE, "", Kind::Drive, Default::Node(|n| n.drive.to_string()), Effect::Used,
        "Drive expression of segments opened from here on: where records are written and how many copies there are."),
    key("rangeway.reshard", "", Kind::Choice(MODES), Default::Node(|n| n.reshard.to_string()), Effect::Used,
        "Whether ranges are split and merged by load: off, advise (what would be done is logged and explained) or on."),
    key("rangeway.reshard.bytes.per.second", "", RESHARD_BYTES, Default::Node(|n| n.reshard_bytes_per_second.to_string()), Effect::Used,
        "A range that gets more bytes per second is split; 0: any."),
    key("rangeway.reshard.changes.max", "", CHANGES, Default::Node(|n| n.reshard_changes_max.to_string()), Effect::Used,
        "Splits and merges of the topic at a time, at most."),
    key("rangeway.reshard.cool.down.ms", "", COOL_DOWN, Default::Node(|n| n.reshard_cool_down_ms.to_string()), Effect::Used,
        "A range that was split or merged stays as it is for so long."),
    key("rangeway.reshard.merge.below.percent", "", MERGE_BELOW, Default::Node(|n| n.reshard_merge_below_percent.to_string()), Effect::Used,
        "Two neighbouring ranges are merged while together they reach less than this part of every target; 0: never."),
    key("rangeway.reshard.ranges.max", "", COUNT, Default::Node(|n| n.reshard_ranges_max.to_string()), Effect::Used,
        "Splits give the topic at most so many ranges."),
    key("rangeway.reshard.ranges.min", "", COUNT, Default::Node(|n| n.reshard_ranges_min_of().to_string()), Effect::Used,
        "Merges leave the topic at least so many ranges."),
    key("rangeway.reshard.records.per.second", "", RATE, Default::Node(|n| n.reshard_records_per_second.to_string()), Effect::Used,
        "A range that gets more records per second is split; 0: any."),
    key("rangeway.reshard.stored.bytes", "", RESHARD_BYTES, Default::Node(|n| n.reshard_stored_bytes.to_string()), Effect::Used,
        "A range that stores more bytes is split; 0: any."),
    key("rangeway.reshard.window.ms", "", WINDOW, Default::Node(|n| n.reshard_window_ms.to_string()), Effect::Used,
        "Load is judged over so long."),
    key("remote.log.copy.disable", "", Kind::Bool, Default::Fixed("false"), NO_TIERING,
        "Whether copying to tiered storage is paused."),
    key("remote.log.delete.on.disable", "", Kind::Bool, Default::Fixed("false"), NO_TIERING,
        "Whether tiered records are deleted when tiering is switched off."),
    key("remote.storage.enable", "", Kind::Bool, Default::Fixed("false"), Effect::Used,
        "Whether records are tiered; only false is possible."),
    key("retention.bytes", "log.retention.bytes", Kind::Bytes { min: i64::MIN, max: i64::MAX }, Default::Node(|n| n.retention_bytes.to_string()), Effect::Used,
        "A partition's oldest records above this size are deleted; negative: never."),
    key("retention.ms", "log.retention.ms", millis(-1), Default::Node(|n| n.retention_ms.to_string()), Effect::Used,
        "Records older than this are deleted; -1: never."),
    key("segment.bytes", "log.segment.bytes", Kind::Bytes { min: SIZE_MIN, max: i32::MAX as i64 }, Default::Node(|n| n.segment_roll_bytes.min(i32::MAX as u64).to_string()), Effect::Used,
        "A range's segment is closed and the next one opened at this size; it holds all partitions of the range."),
    key("segment.index.bytes", "log.index.size.max.bytes", Kind::Int { min: 4, max: i32::MAX }, Default::Fixed("10485760"), NO_INDEX_FILES,
        "Size of an index file."),
    null_beneath(key("segment.jitter.ms", "log.roll.jitter.ms", millis(0), Default::Node(|n| n.segment_roll_jitter_ms.to_string()),
        stored("segments of ranges are opened at different times anyway"),
        "Random time taken off segment.ms.")),
    null_beneath(key("segment.ms", "log.roll.ms", millis(1), Default::Node(|n| n.segment_roll_ms.to_string()), Effect::Used,
        "A range's segment is closed and the next one opened at this age.")),
    key("unclean.leader.election.enable", "unclean.leader.election.enable", Kind::Bool, Default::Fixed("false"),
        stored("no copy that lacks acknowledged records ever leads"),
        "Whether a copy that lacks records may lead."),
];

/// The setting of that name.
///
/// Errors: `Unknown`, with the name that may be meant.
pub fn find(name: &str) -> Result<&'static TopicKey, ConfigError> {
    TOPIC_KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let nearest = nearest(name, TOPIC_KEYS.iter().map(|key| key.name)).map(str::to_owned);
        ConfigError::Unknown { what: "topic", name: name.to_owned(), nearest }
    })
}

/// Whether a topic may have these explicit settings.
///
/// Errors: the first that is unknown or invalid, or two that contradict each other.
pub fn check(explicit: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, value) in explicit {
        find(name)?.check(value)?;
    }
    let lag = |name: &str, default: i64| {
        explicit.get(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default)
    };
    let (min, max) = (lag("min.compaction.lag.ms", 0), lag("max.compaction.lag.ms", i64::MAX));
    if min > max {
        let why = format!(
            "conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms ({max})"
        );
        return Err(ConfigError::Conflict(why));
    }
    let ranges = |name: &str| explicit.get(name).and_then(|value| value.trim().parse::<i64>().ok());
    if let (Some(min), Some(max)) =
        (ranges("rangeway.reshard.ranges.min"), ranges("rangeway.reshard.ranges.max"))
        && min > max
    {
        let why = format!(
            "rangeway.reshard.ranges.min ({min}) must not be above rangeway.reshard.ranges.max ({max})"
        );
        return Err(ConfigError::Conflict(why));
    }
    Ok(())
}

/// Explicit settings that are stored and do nothing, with the reason: worth a line in the log when they are set.
pub fn without_effect(explicit: &BTreeMap<String, String>) -> Vec<(&'static str, &'static str)> {
    let set = TOPIC_KEYS.iter().filter(|key| explicit.contains_key(key.name));
    set.filter_map(|key| match key.effect {
        Effect::Used => None,
        Effect::StoredOnly { why } => Some((key.name, why)),
    })
    .collect()
}

/// Whose time a record carries.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// Its producer's.
    CreateTime,
    /// The node's at its append.
    LogAppendTime,
}

/// How a topic's batches are compressed, whatever their producers did.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// At this level; -1: the codec's own default.
    Gzip(i32),
    /// It has no levels.
    Snappy,
    /// At this level.
    Lz4(i32),
    /// At this level.
    Zstd(i32),
}

/// What becomes of old records.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// They are deleted by age and size.
    pub delete: bool,
    /// Of each key the newest stays.
    pub compact: bool,
}

/// When and how a topic is compacted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// `min.cleanable.dirty.ratio` in millionths.
    pub dirty_ppm: u32,
    /// `min.compaction.lag.ms`.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_lag_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
}

/// A topic's settings that have an effect, typed: its own values over the node's.
///
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// What becomes of old records.
    pub cleanup: Cleanup,
    /// How the topic is compacted, if it is.
    pub compaction: CompactionConfig,
    /// Records older than this are deleted; `None`: never.
    pub retention_ms: Option<i64>,
    /// A partition's oldest records above this size are deleted; `None`: never.
    pub retention_bytes: Option<u64>,
    /// Size at which a range's segment rolls.
    pub segment_bytes: u64,
    /// Age at which a range's segment rolls.
    pub segment_ms: i64,
    /// Largest batch.
    pub max_message_bytes: u32,
    /// Copies asked for, see its row.
    pub min_insync_replicas: i32,
    /// How batches are stored; `None`: as their producers compressed them.
    pub compression: Option<Compression>,
    /// Whether compressed batches are opened when they are taken.
    pub compressed_check: bool,
    /// Whose time a record carries.
    pub timestamp_type: TimestampType,
    /// How far a timestamp may lie behind the node's clock.
    pub timestamp_before_max_ms: i64,
    /// How far a timestamp may lie ahead of the node's clock.
    pub timestamp_after_max_ms: i64,
    /// The topic's own drive expression.
    pub drive: Option<DriveExpr>,
    /// Splits and merges by load.
    pub reshard: ReshardConfig,
}

impl std::default::Default for TopicConfig {
    /// Those of a topic that says nothing, on a node that says nothing.
    fn default() -> TopicConfig {
        TopicConfig::new(&BTreeMap::new(), &NodeConfig::default()).expect("defaults fit their rows")
    }
}

impl TopicConfig {
    /// The settings of a topic with these explicit ones.
    ///
    /// Errors: as [`check`].
    pub fn new(explicit: &BTreeMap<String, String>, node: &NodeConfig) -> Result<TopicConfig, ConfigError> {
        check(explicit)?;
        let number = |name: &'static str| {
            let key = find(name)?;
            let value = explicit.get(name).cloned().unwrap_or_else(|| key.default(node));
            key.kind.number(&value).map_err(|why| invalid(name, &value, why))
        };
        let fits = |name: &'static str, max: i64| number(name).map(|n| n.clamp(0, max));
        let count = |name: &'static str| number(name).map(|n| n.max(0).unsigned_abs());
        let small = |name: &'static str| count(name).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let own_segment_bytes = explicit.contains_key("segment.bytes");
        let drive = explicit.get(DRIVE).map(|value| drive(value).map_err(|why| invalid(DRIVE, value, why)));
        let appended = explicit.get("message.timestamp.type").is_some_and(|t| t.trim() == "LogAppendTime");
        let level = |name: &'static str| number(name).map(|n| i32::try_from(n).unwrap_or(-1));
        let compression = match explicit.get("compression.type").map(|codec| codec.trim()) {
            Some("uncompressed") => Some(Compression::None),
            Some("gzip") => Some(Compression::Gzip(level("compression.gzip.level")?)),
            Some("snappy") => Some(Compression::Snappy),
            Some("lz4") => Some(Compression::Lz4(level("compression.lz4.level")?)),
            Some("zstd") => Some(Compression::Zstd(level("compression.zstd.level")?)),
            // Checked above: what is left is `producer`.
            _ => None,
        };
        let policy = explicit.get("cleanup.policy").map_or("delete", String::as_str);
        let ratio =
            explicit.get("min.cleanable.dirty.ratio").and_then(|ratio| ratio.trim().parse::<f64>().ok());
        Ok(TopicConfig {
            cleanup: Cleanup {
                delete: items(policy).contains(&"delete"),
                compact: items(policy).contains(&"compact"),
            },
            compaction: CompactionConfig {
                dirty_ppm: (ratio.unwrap_or(0.5).clamp(0.0, 1.0) * 1e6) as u32,
                min_lag_ms: number("min.compaction.lag.ms")?,
                max_lag_ms: number("max.compaction.lag.ms")?,
                delete_retention_ms: number("delete.retention.ms")?,
            },
            retention_ms: Some(number("retention.ms")?).filter(|ms| *ms >= 0),
            retention_bytes: u64::try_from(number("retention.bytes")?).ok(),
            segment_bytes: match own_segment_bytes {
                true => fits("segment.bytes", i64::MAX)?.unsigned_abs(),
                false => node.segment_roll_bytes,
            },
            segment_ms: number("segment.ms")?,
            max_message_bytes: u32::try_from(fits("max.message.bytes", i64::from(i32::MAX))?)
                .unwrap_or(u32::MAX),
            min_insync_replicas: i32::try_from(fits("min.insync.replicas", i64::from(i32::MAX))?)
                .unwrap_or(1),
            compression,
            compressed_check: match explicit.get("rangeway.compressed.check") {
                Some(value) => flag(value) == Ok(true),
                None => node.compressed_check,
            },
            timestamp_type: if appended { TimestampType::LogAppendTime } else { TimestampType::CreateTime },
            timestamp_before_max_ms: number("message.timestamp.before.max.ms")?,
            timestamp_after_max_ms: number("message.timestamp.after.max.ms")?,
            drive: drive.transpose()?,
            reshard: ReshardConfig {
                mode: match explicit.get("rangeway.reshard") {
                    Some(word) => ReshardMode::of(word).unwrap_or(node.reshard),
                    None => node.reshard,
                },
                bytes_per_second: count("rangeway.reshard.bytes.per.second")?,
                records_per_second: count("rangeway.reshard.records.per.second")?,
                stored_bytes: count("rangeway.reshard.stored.bytes")?,
                merge_below_percent: small("rangeway.reshard.merge.below.percent")?,
                window_ms: number("rangeway.reshard.window.ms")?,
                cool_down_ms: number("rangeway.reshard.cool.down.ms")?,
                ranges_min: small("rangeway.reshard.ranges.min")?,
                ranges_max: small("rangeway.reshard.ranges.max")?,
                changes_max: small("rangeway.reshard.changes.max")?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explicit(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refused(name: &str, value: &str) -> String {
        check(&explicit(&[(name, value)])).unwrap_err().to_string()
    }

    #[test]
    fn rows_are_sorted_and_their_defaults_are_values_that_they_take() {
        let node = NodeConfig::default();
        assert!(TOPIC_KEYS.is_sorted_by(|a, b| a.name < b.name));
        for key in TOPIC_KEYS {
            key.check(&key.default(&node)).unwrap();
            assert!(key.doc.ends_with('.'), "{}", key.name);
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_kafkas_words() {
        for (name, value, error) in [
            (
                "retention.ms",
                "x",
                "Invalid value x for configuration retention.ms: Not a number of type LONG",
            ),
            (
                "retention.ms",
                "-2",
                "Invalid value -2 for configuration retention.ms: Value must be at least -1",
            ),
            (
                "retention.ms",
                "7d",
                "Invalid value 7d for configuration retention.ms: Not a number of type LONG",
            ),
            (
                "segment.bytes",
                "9999999999",
                "Invalid value 9999999999 for configuration segment.bytes: Value must be no more than 2147483647",
            ),
            (
                "preallocate",
                "yes",
                "Invalid value yes for configuration preallocate: Expected value to be either true or false",
            ),
            (
                "message.timestamp.type",
                "x",
                "Invalid value x for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
            ),
            (
                "cleanup.policy",
                "x",
                "Invalid value x for configuration cleanup.policy: String must be one of: compact, delete",
            ),
            ("retention.mss", "1", "Unknown topic config name: retention.mss; did you mean retention.ms?"),
        ] {
            assert_eq!(refused(name, value), error);
        }
    }

    #[test]
    fn resharding_is_the_topics_own_over_the_nodes() {
        let mut node = NodeConfig::default();
        let of = |node: &NodeConfig, pairs| TopicConfig::new(&explicit(pairs), node).unwrap().reshard;
        let default = of(&node, &[]);
        assert_eq!((default.mode, default.bytes_per_second), (ReshardMode::Advise, 32 << 20));
        assert_eq!((default.ranges_min, default.ranges_max, default.changes_max), (1, 256, 1));
        node.set("ranges.initial", "3").unwrap();
        node.set("reshard", "off").unwrap();
        node.set("reshard.window.ms", "10s").unwrap();
        let inherited = of(&node, &[]);
        assert_eq!(
            (inherited.mode, inherited.ranges_min, inherited.window_ms),
            (ReshardMode::Off, 3, 10_000)
        );
        let own = of(&node, &[("rangeway.reshard", "on"), ("rangeway.reshard.stored.bytes", "7")]);
        assert_eq!((own.mode, own.stored_bytes, own.window_ms), (ReshardMode::On, 7, 10_000));
        assert!(refused("rangeway.reshard", "yes").ends_with("String must be one of: off, advise, on"));
        assert!(refused("rangeway.reshard.merge.below.percent", "80").ends_with("no more than 75"));
        assert!(node.set("reshard", "auto").unwrap_err().to_string().contains("off, advise, on"));
    }

    #[test]
    fn what_would_silently_not_be_done_is_refused() {
        assert!(refused("compression.type", "zip").contains("String must be one of"));
        assert!(refused("compression.gzip.level", "0").contains("1 to 9"));
        assert!(refused("remote.storage.enable", "true").contains("not available"));
        assert!(refused("cleanup.policy", "delete,").contains("must not be empty"));
        for replicas in
            ["x", "*,*", "1:2,*", "1", "1:", ":2", "1:2,,3:4", ",1:2", "-1:2", "99999999999:1", "1:2:3"]
        {
            let why = refused("leader.replication.throttled.replicas", replicas);
            assert!(why.contains("literal '*'"), "{replicas}: {why}");
        }
        for replicas in ["", "*", " * ", "1:2", "1:2, 3:4", "1:2,1:2", "1:2,", ","] {
            let fine = [("follower.replication.throttled.replicas", replicas)];
            assert_eq!(check(&explicit(&fine)), Ok(()), "{replicas}");
        }
        let fine = [
            ("cleanup.policy", "compact,delete,compact"),
            ("compression.type", "producer"),
            ("remote.storage.enable", "false"),
        ];
        check(&explicit(&fine)).unwrap();
    }

    #[test]
    fn settings_without_effect_say_so() {
        let set = explicit(&[("flush.ms", "5"), ("retention.ms", "5"), ("preallocate", "true")]);
        let names: Vec<&str> = without_effect(&set).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["flush.ms", "preallocate"]);
        let doc = find("flush.ms").unwrap().documentation();
        assert!(
            doc.ends_with("Stored, without effect: every acknowledged record is on disk already."),
            "{doc}"
        );
        assert!(!find("retention.ms").unwrap().documentation().contains("without effect"));
    }

    #[test]
    fn contradicting_lags_are_refused() {
        let lags = explicit(&[("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "9")]);
        assert!(matches!(check(&lags), Err(ConfigError::Conflict(_))));
        let ranges = [("rangeway.reshard.ranges.min", "10"), ("rangeway.reshard.ranges.max", "3")];
        assert!(matches!(check(&explicit(&ranges)), Err(ConfigError::Conflict(_))));
        assert_eq!(check(&explicit(&ranges[..1])), Ok(()));
    }

    #[test]
    fn a_topic_has_the_nodes_values_until_it_has_its_own() {
        let mut node = NodeConfig::default();
        node.set("retention.ms", "1h").unwrap();
        node.set("segment.roll.bytes", "8GiB").unwrap();
        let plain = TopicConfig::new(&BTreeMap::new(), &node).unwrap();
        assert_eq!((plain.retention_ms, plain.retention_bytes), (Some(3_600_000), None));
        assert_eq!(plain.segment_bytes, 8 << 30, "not cut to what Kafka's type can show");
        assert_eq!(plain.timestamp_type, TimestampType::CreateTime);
        assert_eq!((plain.max_message_bytes, plain.timestamp_before_max_ms), (1_048_588, i64::MAX));
        assert_eq!(plain.drive, None);

        let own = explicit(&[
            ("retention.ms", "-1"),
            ("retention.bytes", "1000"),
            ("segment.bytes", "65536"),
            ("segment.ms", "5"),
            ("max.message.bytes", "0"),
            ("message.timestamp.type", "LogAppendTime"),
            ("rangeway.drive", "memory"),
        ]);
        let own = TopicConfig::new(&own, &node).unwrap();
        assert_eq!((own.retention_ms, own.retention_bytes), (None, Some(1000)));
        assert_eq!((own.segment_bytes, own.segment_ms, own.max_message_bytes), (65_536, 5, 0));
        assert_eq!(own.timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(own.drive, Some(DriveExpr::Memory));
        assert!(TopicConfig::new(&explicit(&[("rangeway.drive", "x")]), &node).is_err());
    }

    #[test]
    fn a_topic_is_compacted_where_its_policy_says_so() {
        let of = |pairs: &[(&str, &str)]| TopicConfig::new(&explicit(pairs), &NodeConfig::default()).unwrap();
        let policy = |value| of(&[("cleanup.policy", value)]).cleanup;
        assert_eq!(of(&[]).cleanup, Cleanup { delete: true, compact: false });
        assert_eq!(policy("compact"), Cleanup { delete: false, compact: true });
        assert_eq!(policy("delete, compact"), Cleanup { delete: true, compact: true });
        assert_eq!(policy(""), Cleanup { delete: false, compact: false }, "everything stays");
        let lag = [
            ("min.cleanable.dirty.ratio", "0.25"),
            ("max.compaction.lag.ms", "9"),
            ("delete.retention.ms", "7"),
        ];
        let expected =
            CompactionConfig { dirty_ppm: 250_000, min_lag_ms: 0, max_lag_ms: 9, delete_retention_ms: 7 };
        assert_eq!(of(&lag).compaction, expected);
        assert_eq!(of(&[]).compaction.dirty_ppm, 500_000);
    }

    #[test]
    fn a_codec_has_its_level() {
        let of = |pairs| TopicConfig::new(&explicit(pairs), &NodeConfig::default()).unwrap().compression;
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("compression.type", "producer"), ("compression.zstd.level", "5")]), None);
        assert_eq!(of(&[("compression.type", "uncompressed")]), Some(Compression::None));
        assert_eq!(of(&[("compression.type", "gzip")]), Some(Compression::Gzip(-1)));
        assert_eq!(of(&[("compression.type", "snappy")]), Some(Compression::Snappy));
        assert_eq!(of(&[("compression.type", "lz4")]), Some(Compression::Lz4(9)));
        let own = of(&[("compression.type", "zstd"), ("compression.zstd.level", "-5")]);
        assert_eq!(own, Some(Compression::Zstd(-5)));
    }

    #[test]
    fn lists_grow_and_shrink_by_items_and_others_do_not() {
        let list = find("leader.replication.throttled.replicas").unwrap();
        assert_eq!(list.appended("0:1,1:1", "1:1, 2:1").unwrap(), "0:1,1:1,2:1");
        assert_eq!(list.subtracted("0:1,1:1", "1:1,9:9").unwrap(), "0:1");
        assert_eq!(list.appended("", "a").unwrap(), "a");
        assert!(find("retention.ms").unwrap().appended("1", "2").is_err());
    }
}
