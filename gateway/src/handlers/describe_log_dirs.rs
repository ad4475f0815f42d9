//! DescribeLogDirs (35), versions 1 to 4.
//!
//! v2: flexible. v3: a top-level error. v4: size of the disk (KIP-827). A log directory is a data directory of this node.
//! A range's log is one for all its partitions: a partition's size is its payload, on each disk what lies there of it;
//! what lies in memory only is in no directory.

use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::{Catalog, LogDir};
use rangeway_core::types::{Partition, TopicId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Which partitions were asked for; `None`: all.
type Asked = Option<HashMap<TopicId, HashSet<Partition>>>;

/// Describes the data directories.
pub async fn handle(
    context: Context,
    request: DescribeLogDirsRequest,
) -> Result<DescribeLogDirsResponse, Close> {
    let response = DescribeLogDirsResponse::default();
    if !context.authorize(Operation::Describe, Resource::Cluster) {
        return Ok(response.with_error_code(ResponseError::ClusterAuthorizationFailed.code()));
    }
    let catalog = context.api.catalog();
    let asked: Asked = request.topics.map(|topics| {
        let mut asked: HashMap<TopicId, HashSet<Partition>> = HashMap::new();
        for topic in topics {
            if let Some(view) = vpartition::by_name(&catalog, &topic.topic) {
                asked.entry(view.id).or_default().extend(topic.partitions);
            }
        }
        asked
    });
    let wanted = |id: TopicId| asked.as_ref().is_none_or(|asked| asked.contains_key(&id));
    let dirs = context.api.log_dirs(wanted).await;
    let results = dirs.into_iter().map(|dir| row(dir, &catalog, &asked)).collect();
    Ok(response.with_results(results))
}

fn row(dir: LogDir, catalog: &Catalog, asked: &Asked) -> DescribeLogDirsResult {
    let bytes = |n: Option<u64>| n.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let result = DescribeLogDirsResult::default()
        .with_log_dir(StrBytes::from_string(dir.path))
        .with_total_bytes(bytes(dir.total_bytes))
        .with_usable_bytes(bytes(dir.usable_bytes));
    if dir.dead.is_some() {
        return result.with_error_code(ResponseError::KafkaStorageError.code());
    }
    let mut topics: BTreeMap<&str, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for ((id, partition), size) in &dir.partitions {
        let Some(topic) = vpartition::by_id(catalog, id.0) else { continue };
        if asked.as_ref().is_some_and(|asked| asked.get(id).is_none_or(|set| !set.contains(partition))) {
            continue;
        }
        topics.entry(&topic.name).or_default().push(
            DescribeLogDirsPartition::default()
                .with_partition_index(*partition)
                .with_partition_size(i64::try_from(*size).unwrap_or(i64::MAX)),
        );
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        DescribeLogDirsTopic::default()
            .with_name(TopicName(StrBytes::from_string(name.to_owned())))
            .with_partitions(partitions)
    });
    result.with_topics(topics.collect())
}
