//! The JSON bodies of the admin interface, read and written by the same types. Changing one is a change that
//! operators see.

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use uuid::Uuid;

/// `{"error":{"code","message","hint"}}`: the one shape of errors, on the command line and over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// See [`ErrorBody`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// A word for programs; stable.
    pub code: String,
    /// A sentence for people: what is true.
    pub message: String,
    /// What would change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ErrorBody {
    /// An error without a hint.
    pub fn new(code: &str, message: impl Into<String>) -> ErrorBody {
        ErrorBody { error: ErrorDetail { code: code.to_owned(), message: message.into(), hint: None } }
    }

    /// With a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> ErrorBody {
        self.error.hint = Some(hint.into());
        self
    }
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicDescription {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: Uuid,
    /// How many partitions.
    pub partitions: i32,
    /// How many active ranges.
    pub ranges: usize,
    /// Drive expression.
    pub drive: String,
    /// Replication factor asked for at creation.
    pub replication_factor: i16,
    /// Configs that were set.
    pub configs: BTreeMap<String, String>,
    /// Kept by the node for itself.
    #[serde(default)]
    pub internal: bool,
}

/// A topic to be made: the body of `POST /api/v1/topics`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicToCreate {
    /// Name.
    pub name: String,
    /// How many partitions; absent: the node's default.
    #[serde(default)]
    pub partitions: Option<i32>,
    /// Copies asked for; absent: the node's default.
    #[serde(default)]
    pub replication_factor: Option<i16>,
    /// Drive expression; absent: the node's default.
    #[serde(default)]
    pub drive: Option<String>,
    /// Topic configs.
    #[serde(default, deserialize_with = "each_once")]
    pub configs: BTreeMap<String, ConfigValue>,
    /// Only check.
    #[serde(default)]
    pub validate_only: bool,
}

/// A change of a topic: the body of `PATCH /api/v1/topics/NAME`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicChange {
    /// The new, larger count of partitions.
    #[serde(default)]
    pub partitions: Option<i32>,
    /// Configs to set, or with `null` to take back.
    #[serde(default, deserialize_with = "each_once")]
    pub configs: BTreeMap<String, Option<ConfigValue>>,
}

/// An object in which no key stands twice: JSON leaves open which of the values would be meant.
fn each_once<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    json: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    struct EachOnce<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> Visitor<'de> for EachOnce<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of configs")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut configs = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, V>()? {
                if configs.contains_key(&key) {
                    return Err(A::Error::custom(format!("config {key} is named more than once")));
                }
                configs.insert(key, value);
            }
            Ok(configs)
        }
    }

    json.deserialize_map(EachOnce(PhantomData))
}

/// A config's value as people write it in JSON.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ConfigValue {
    /// `"compact"`.
    Text(String),
    /// `true`.
    Switch(bool),
    /// `3600000`.
    Number(serde_json::Number),
}

impl ConfigValue {
    /// As the config tables take it.
    pub fn into_text(self) -> String {
        match self {
            ConfigValue::Text(text) => text,
            ConfigValue::Switch(on) => on.to_string(),
            ConfigValue::Number(number) => number.to_string(),
        }
    }
}

/// A topic that is gone: the answer to `DELETE /api/v1/topics/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicDeleted {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: Uuid,
    /// True.
    pub deleted: bool,
}

/// One range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeDescription {
    /// Identity in its topic.
    pub id: u32,
    /// First partition.
    pub first: i32,
    /// Last partition.
    pub last: i32,
    /// `active`, `fencing` or `closed`.
    pub state: String,
    /// Why it takes no writes, where it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Node that leads it.
    pub primary: i32,
    /// How many segments.
    pub segments: usize,
    /// Payload bytes in its own segments, those of a closed range too.
    pub bytes: u64,
    /// Ranges it came from.
    pub parents: Vec<u32>,
    /// Ranges that came from it.
    pub children: Vec<u32>,
    /// Records that its partitions ever got, before it was made too: two looks give a rate. 0 once it is closed.
    pub appended_records: u64,
    /// Their payload bytes.
    pub appended_bytes: u64,
}

/// The ranges of a topic in numbers and sentences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangesExplained {
    /// The topic.
    pub topic: String,
    /// Its ranges.
    pub ranges: Vec<RangeExplained>,
    /// The split or merge of the topic that was begun last, if it is remembered.
    pub last_reshard: Option<OperationDescription>,
    /// All of it in sentences.
    pub lines: Vec<String>,
}

/// One range with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeExplained {
    /// As it is listed.
    #[serde(flatten)]
    pub range: RangeDescription,
    /// Records appended per second while it was looked at; none of a closed range.
    pub records_per_second: Option<f64>,
    /// Payload bytes appended per second while it was looked at.
    pub bytes_per_second: Option<f64>,
    /// When the oldest segment that is left was opened, ms since 1970.
    pub oldest_opened_at: Option<i64>,
    /// Its open segment.
    pub head: Option<Head>,
    /// Where its partitions stand; none of a closed range.
    pub partitions: Vec<PartitionEnds>,
}

/// The open segment of a range.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its loglet.
    pub loglet: u64,
    /// Address in the range of its first entry.
    pub base: u64,
    /// Address after its last completed entry.
    pub tail: u64,
    /// When it was opened, ms since 1970.
    pub opened_at: i64,
}

/// Where a partition stands.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionEnds {
    /// The partition.
    pub partition: i32,
    /// First readable offset.
    pub log_start: i64,
    /// One above its last completed record.
    pub end: i64,
}

/// What to split: the body of `POST /api/v1/topics/NAME/ranges/R/split`. Nothing at all is a split in the middle.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeToSplit {
    /// First partition of the right half; absent: where the stored bytes are halved, in the middle while there are few.
    #[serde(default)]
    pub at: Option<i32>,
    /// Only say what would become of it.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to merge: the body of `POST /api/v1/topics/NAME/ranges/merge`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangesToMerge {
    /// Two neighbours, in either order.
    pub ranges: [u32; 2],
    /// Only say what would become of them.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a split or merge would do: the answer to `"dry_run": true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDescription {
    /// True.
    pub dry_run: bool,
    /// Ranges that it would close.
    pub closes: Vec<u32>,
    /// Partitions of the ranges that it would make.
    pub creates: Vec<Partitions>,
}

/// A run of partitions.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partitions {
    /// First partition.
    pub first: i32,
    /// Last partition.
    pub last: i32,
}

/// A split or merge: the answer to asking for one, and a row of `GET /api/v1/operations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationDescription {
    /// Its identity.
    pub operation: String,
    /// The topic's name; none once the topic is deleted.
    pub topic: Option<String>,
    /// What it does, in words.
    pub kind: String,
    /// `running`, `done` or `aborted`.
    pub state: String,
    /// Ranges that it closed.
    pub closed: Vec<u32>,
    /// Ranges that it made.
    pub created: Vec<u32>,
    /// How long its partitions took no appends, ms. None while it runs, and once the node was started again.
    pub paused_ms: Option<f64>,
    /// Why it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it was recorded, ms since 1970.
    pub started_at: i64,
    /// When it ended, ms since 1970; none while it runs.
    pub ended_at: Option<i64>,
}

/// The cluster as this node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Stable identity of the cluster.
    pub cluster_id: String,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
    /// Shards of the control plane.
    pub vnodes: Vec<VnodeStatus>,
    /// What keeps ranges from being served.
    pub blocked: Vec<String>,
    /// Topics with segments of fewer copies than their drive asks for, and why.
    #[serde(default)]
    pub under_replicated: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Number.
    pub id: i32,
    /// Where Kafka clients reach it.
    pub address: String,
    /// `alive`, `suspect`, `gone` or `draining`.
    pub state: String,
    /// Rack, if any.
    pub rack: Option<String>,
}

/// One shard of the control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VnodeStatus {
    /// Number.
    pub id: u32,
    /// Node that leads it.
    pub leader: i32,
    /// Nodes that vote in it.
    pub voters: Vec<i32>,
}
