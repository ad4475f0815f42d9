//! AlterReplicaLogDirs (34), versions 1 and 2.
//!
//! v2: flexible. A range's drive says on which disks its partitions lie, for all of them together (`rangeway.drive`); a
//! partition alone cannot be moved. What asks for the place where it lies anyway is answered as done.

use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, TopicName};
use rangeway_core::api::{Catalog, LogDir};
use rangeway_core::types::{Partition, TopicId};
use std::collections::{BTreeMap, HashSet};

/// Says of each partition whether it lies where it was asked to.
pub async fn handle(
    context: Context,
    request: AlterReplicaLogDirsRequest,
) -> Result<AlterReplicaLogDirsResponse, Close> {
    let catalog = context.api.catalog();
    let names = request.dirs.iter().flat_map(|dir| &dir.topics).map(|topic| topic.name.as_str());
    let named: HashSet<TopicId> =
        names.filter_map(|name| vpartition::by_name(&catalog, name)).map(|view| view.id).collect();
    let allowed = context.authorize(Operation::Alter, Resource::Cluster);
    let dirs = if allowed { context.api.log_dirs(|id| named.contains(&id)).await } else { Vec::new() };
    let mut topics: BTreeMap<TopicName, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in &request.dirs {
        for topic in &dir.topics {
            let rows = topics.entry(topic.name.clone()).or_default();
            for partition in &topic.partitions {
                let code = match allowed {
                    true => judge(&dirs, &catalog, &dir.path, &topic.name, *partition),
                    false => ResponseError::ClusterAuthorizationFailed.code(),
                };
                rows.push(
                    AlterReplicaLogDirPartitionResult::default()
                        .with_partition_index(*partition)
                        .with_error_code(code),
                );
            }
        }
    }
    let results = topics.into_iter().map(|(name, rows)| {
        AlterReplicaLogDirTopicResult::default().with_topic_name(name).with_partitions(rows)
    });
    Ok(AlterReplicaLogDirsResponse::default().with_results(results.collect()))
}

fn judge(dirs: &[LogDir], catalog: &Catalog, path: &str, topic: &str, partition: Partition) -> i16 {
    let Some(dir) = dirs.iter().find(|dir| dir.path == path) else {
        return ResponseError::LogDirNotFound.code();
    };
    if dir.dead.is_some() {
        return ResponseError::KafkaStorageError.code();
    }
    let known = vpartition::by_name(catalog, topic).filter(|view| (0..view.partitions).contains(&partition));
    let Some(view) = known else { return ResponseError::UnknownTopicOrPartition.code() };
    let lies_in = |dir: &LogDir| dir.partitions.contains_key(&(view.id, partition));
    let elsewhere = dirs.iter().any(|other| other.path != path && lies_in(other));
    match lies_in(dir) && !elsewhere {
        true => errors::NONE,
        // The answer has no room for a sentence; Kafka itself has no case like this.
        false => ResponseError::InvalidRequest.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rangeway_core::api::{DriveExpr, TopicView};
    use std::sync::Arc;

    #[test]
    fn a_partition_stays_where_it_is() {
        let id = TopicId(uuid::Uuid::from_u128(1));
        let view = Arc::new(TopicView {
            id,
            version: 0,
            name: "t".into(),
            partitions: 2,
            configs: Arc::default(),
            config: Arc::default(),
            internal: false,
            derived_from: None,
            replication_factor: 1,
            drive: DriveExpr::Disk,
            ranges: Arc::new([]),
        });
        let mut catalog = Catalog::default();
        catalog.by_name.insert(view.name.clone(), view);
        let dir = |path: &str, partitions: &[Partition], dead: Option<&str>| LogDir {
            path: path.to_owned(),
            dead: dead.map(str::to_owned),
            total_bytes: None,
            usable_bytes: None,
            partitions: partitions.iter().map(|p| ((id, *p), 0)).collect(),
        };
        let dirs = [
            dir("/a", &[0, 1], None),
            dir("/b", &[1], None),
            dir("/c", &[], None),
            dir("/d", &[], Some("x")),
        ];
        for (path, topic, partition, code) in [
            ("/a", "t", 0, 0),
            ("/b", "t", 0, 42),
            ("/a", "t", 1, 42), // half of it lies elsewhere
            ("/c", "t", 1, 42),
            ("/d", "t", 0, 56),
            ("/e", "t", 0, 57),
            ("a", "t", 0, 57),
            ("/a", "t", 2, 3),
            ("/a", "u", 0, 3),
        ] {
            assert_eq!(judge(&dirs, &catalog, path, topic, partition), code, "{path} {topic} {partition}");
        }
    }
}
