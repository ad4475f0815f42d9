//! One row per API. Dispatch, ApiVersions, metrics and the generated page of the docs read it.
//!
//! *Served* is what a handler answers; *advertised* is what ApiVersions lists. They differ for Produce: versions 0 to 2
//! are listed because clients test for compression by asking for exactly 0, and are answered by closing, as Kafka does
//! (KAFKA-18659).

use super::dispatch::{Decoded, Handler, handle};
use crate::handlers::{self, Operation};
use kafka_protocol::messages as m;

/// Versions, both ends included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Lowest.
    pub min: i16,
    /// Highest.
    pub max: i16,
}

impl Versions {
    /// Whether `version` is one of them.
    pub fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

/// In which order the requests of a connection are worked on. Replies leave in request order always.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Taken up only when all earlier ordered requests were issued.
    Ordered,
    /// Worked on beside others.
    Overlapping,
    /// Worked on beside others, but taken up only when all earlier ones of this stage are answered and the answers written:
    /// such an answer may be large.
    InTurn,
}

/// Which quota a request is counted under.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Bytes produced.
    Produce,
    /// Bytes fetched.
    Fetch,
    /// Time.
    Request,
    /// Changes of control state.
    Mutation,
}

/// One API.
#[derive(Debug)]
pub struct Row {
    /// API key.
    pub key: i16,
    /// Kafka's name for it.
    pub name: &'static str,
    /// Versions that the handler answers.
    pub served: Versions,
    /// Versions that ApiVersions lists.
    pub advertised: Versions,
    /// First version with compact lengths and tagged fields.
    pub flexible: i16,
    /// Order on a connection.
    pub stage: Stage,
    /// Memory that one byte of a request costs while it is worked on, in bytes: its messages and their answer.
    pub memory: usize,
    /// What the principal must be allowed to do; on which resource is the handler's matter.
    pub operation: Operation,
    /// Which quota counts.
    pub quota: Quota,
    /// What it is, in a line.
    pub doc: &'static str,
    /// Decodes, works, encodes.
    pub handler: Handler,
}

const fn versions(min: i16, max: i16) -> Versions {
    Versions { min, max }
}

/// `row!(name, key, served versions, flexible from, stage, memory, operation, quota, handler, doc)`.
///
/// The handler is `request type => async fn(Context, Request) -> Result<Response, Close>`, or `raw` and a function
/// that decodes and encodes for itself.
macro_rules! row {
    ($name:literal, $key:literal, $min:literal..=$max:literal, flexible $flexible:literal, $stage:ident,
     $memory:literal, $operation:ident, $quota:ident, raw $handler:path, $doc:literal) => {
        Row {
            key: $key,
            name: $name,
            served: versions($min, $max),
            advertised: versions($min, $max),
            flexible: $flexible,
            stage: Stage::$stage,
            memory: $memory,
            operation: Operation::$operation,
            quota: Quota::$quota,
            doc: $doc,
            handler: |context, decoded: Decoded| Box::pin($handler(context, decoded)),
        }
    };
    ($name:literal, $key:literal, $min:literal..=$max:literal, flexible $flexible:literal, $stage:ident,
     $memory:literal, $operation:ident, $quota:ident, $request:ident => $handler:path, $doc:literal) => {
        Row {
            key: $key,
            name: $name,
            served: versions($min, $max),
            advertised: versions($min, $max),
            flexible: $flexible,
            stage: Stage::$stage,
            memory: $memory,
            operation: Operation::$operation,
            quota: Quota::$quota,
            doc: $doc,
            handler: |context, decoded: Decoded| {
                Box::pin(handle::<m::$request, _, _>(context, decoded, $handler))
            },
        }
    };
}

/// All APIs, by key.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    Row {
        advertised: versions(0, 13),
        ..row!("Produce", 0, 3..=13, flexible 9, Ordered, 1, Write, Produce,
            raw handlers::produce::handle, "Store batches")
    },
    row!("Fetch", 1, 4..=17, flexible 12, InTurn, 8, Read, Fetch,
        raw handlers::fetch::handle, "Read batches, waiting for them if wished"),
    row!("ListOffsets", 2, 1..=10, flexible 6, Overlapping, 8, Describe, Request,
        ListOffsetsRequest => handlers::list_offsets::handle, "Offsets by time, first and last"),
    row!("Metadata", 3, 0..=13, flexible 9, Overlapping, 8, Describe, Request,
        MetadataRequest => handlers::metadata::handle, "Nodes, topics and who leads what"),
    row!("OffsetCommit", 8, 2..=9, flexible 8, Ordered, 8, Read, Request,
        OffsetCommitRequest => handlers::offset_commit::handle, "Commit a group's offsets"),
    row!("OffsetFetch", 9, 1..=9, flexible 6, Ordered, 8, Describe, Request,
        OffsetFetchRequest => handlers::offset_fetch::handle, "A group's committed offsets"),
    row!("FindCoordinator", 10, 0..=6, flexible 3, Overlapping, 8, Describe, Request,
        FindCoordinatorRequest => handlers::find_coordinator::handle, "The node that coordinates a group or a transactional id"),
    row!("JoinGroup", 11, 0..=9, flexible 6, Ordered, 8, Read, Request,
        JoinGroupRequest => handlers::join_group::handle, "Join a group; answered when its generation is formed"),
    row!("Heartbeat", 12, 0..=4, flexible 4, Ordered, 8, Read, Request,
        HeartbeatRequest => handlers::heartbeat::handle, "A member's sign of life"),
    row!("LeaveGroup", 13, 0..=5, flexible 4, Ordered, 8, Read, Request,
        LeaveGroupRequest => handlers::leave_group::handle, "Take members out of a group"),
    row!("SyncGroup", 14, 0..=5, flexible 4, Ordered, 8, Read, Request,
        SyncGroupRequest => handlers::sync_group::handle, "Hand in or fetch a generation's assignment"),
    row!("DescribeGroups", 15, 0..=6, flexible 5, Ordered, 8, Describe, Request,
        DescribeGroupsRequest => handlers::describe_groups::handle, "Groups with their members"),
    row!("ListGroups", 16, 0..=5, flexible 3, Ordered, 8, Describe, Request,
        ListGroupsRequest => handlers::list_groups::handle, "Names and states of all groups"),
    row!("SaslHandshake", 17, 0..=1, flexible 32767, Ordered, 8, None, Request,
        SaslHandshakeRequest => handlers::sasl::handshake, "Refused, no listener takes SASL"),
    row!("ApiVersions", 18, 0..=4, flexible 3, Overlapping, 8, None, Request,
        ApiVersionsRequest => handlers::api_versions::handle, "What this node speaks, and its features"),
    row!("CreateTopics", 19, 2..=7, flexible 5, Overlapping, 8, Create, Mutation,
        CreateTopicsRequest => handlers::create_topics::handle, "Make topics"),
    row!("DeleteTopics", 20, 1..=6, flexible 4, Overlapping, 8, Delete, Mutation,
        DeleteTopicsRequest => handlers::delete_topics::handle, "Delete topics and their records"),
    row!("DeleteRecords", 21, 0..=2, flexible 2, Overlapping, 8, Delete, Mutation,
        DeleteRecordsRequest => handlers::delete_records::handle, "Raise where partitions start"),
    row!("InitProducerId", 22, 0..=5, flexible 2, Overlapping, 8, IdempotentWrite, Request,
        InitProducerIdRequest => handlers::init_producer_id::handle, "An id for an idempotent or transactional producer"),
    row!("OffsetForLeaderEpoch", 23, 2..=4, flexible 4, Overlapping, 8, Describe, Request,
        OffsetForLeaderEpochRequest => handlers::offset_for_leader_epoch::handle, "Where the records of a leader epoch end"),
    row!("AddPartitionsToTxn", 24, 0..=5, flexible 3, Ordered, 8, Write, Request,
        AddPartitionsToTxnRequest => handlers::add_partitions_to_txn::handle, "Add partitions to a transaction"),
    row!("AddOffsetsToTxn", 25, 0..=4, flexible 3, Ordered, 8, Write, Request,
        AddOffsetsToTxnRequest => handlers::add_offsets_to_txn::handle, "Add a group's offsets to a transaction"),
    row!("EndTxn", 26, 0..=5, flexible 3, Ordered, 8, Write, Request,
        EndTxnRequest => handlers::end_txn::handle, "Commit or abort a transaction"),
    row!("WriteTxnMarkers", 27, 1..=1, flexible 1, Overlapping, 8, ClusterAction, Request,
        WriteTxnMarkersRequest => handlers::write_txn_markers::handle, "End a transaction in single partitions"),
    row!("TxnOffsetCommit", 28, 0..=5, flexible 3, Ordered, 8, Write, Request,
        TxnOffsetCommitRequest => handlers::txn_offset_commit::handle, "Commit a group's offsets within a transaction"),
    row!("DescribeAcls", 29, 1..=3, flexible 2, Overlapping, 8, Describe, Request,
        DescribeAclsRequest => handlers::acls::describe, "Access rules; refused without an authoriser"),
    row!("CreateAcls", 30, 1..=3, flexible 2, Overlapping, 8, Alter, Mutation,
        CreateAclsRequest => handlers::acls::create, "Make access rules; refused without an authoriser"),
    row!("DeleteAcls", 31, 1..=3, flexible 2, Overlapping, 8, Alter, Mutation,
        DeleteAclsRequest => handlers::acls::delete, "Delete access rules; refused without an authoriser"),
    row!("DescribeConfigs", 32, 1..=4, flexible 4, Overlapping, 8, DescribeConfigs, Request,
        DescribeConfigsRequest => handlers::describe_configs::handle, "Configs of topics and of this node"),
    row!("AlterConfigs", 33, 0..=2, flexible 2, Overlapping, 8, AlterConfigs, Mutation,
        AlterConfigsRequest => handlers::alter_configs::handle, "Replace all configs of topics"),
    row!("AlterReplicaLogDirs", 34, 1..=2, flexible 2, Overlapping, 8, Alter, Mutation,
        AlterReplicaLogDirsRequest => handlers::alter_replica_log_dirs::handle, "Move partitions between disks; only to where they are"),
    row!("DescribeLogDirs", 35, 1..=4, flexible 2, Overlapping, 8, Describe, Request,
        DescribeLogDirsRequest => handlers::describe_log_dirs::handle, "Data directories, and the bytes of partitions there"),
    row!("SaslAuthenticate", 36, 0..=2, flexible 2, Ordered, 8, None, Request,
        SaslAuthenticateRequest => handlers::sasl::authenticate, "Refused, no listener takes SASL"),
    row!("CreatePartitions", 37, 0..=3, flexible 2, Overlapping, 8, Alter, Mutation,
        CreatePartitionsRequest => handlers::create_partitions::handle, "Add partitions to topics"),
    row!("CreateDelegationToken", 38, 1..=3, flexible 2, Overlapping, 8, None, Mutation,
        CreateDelegationTokenRequest => handlers::delegation_tokens::create, "Refused on a listener that does not authenticate"),
    row!("RenewDelegationToken", 39, 1..=2, flexible 2, Overlapping, 8, None, Mutation,
        RenewDelegationTokenRequest => handlers::delegation_tokens::renew, "Refused on a listener that does not authenticate"),
    row!("ExpireDelegationToken", 40, 1..=2, flexible 2, Overlapping, 8, None, Mutation,
        ExpireDelegationTokenRequest => handlers::delegation_tokens::expire, "Refused on a listener that does not authenticate"),
    row!("DescribeDelegationToken", 41, 1..=3, flexible 2, Overlapping, 8, None, Request,
        DescribeDelegationTokenRequest => handlers::delegation_tokens::describe, "Refused on a listener that does not authenticate"),
    row!("DeleteGroups", 42, 0..=2, flexible 2, Ordered, 8, Delete, Request,
        DeleteGroupsRequest => handlers::delete_groups::handle, "Delete groups without members"),
    row!("ElectLeaders", 43, 0..=2, flexible 2, Overlapping, 8, Alter, Mutation,
        ElectLeadersRequest => handlers::elect_leaders::handle, "There is never an election to hold"),
    row!("IncrementalAlterConfigs", 44, 0..=1, flexible 1, Overlapping, 8, AlterConfigs, Mutation,
        IncrementalAlterConfigsRequest => handlers::incremental_alter_configs::handle, "Change single configs of topics"),
    row!("AlterPartitionReassignments", 45, 0..=1, flexible 0, Overlapping, 8, Alter, Mutation,
        AlterPartitionReassignmentsRequest => handlers::partition_reassignments::alter, "Place partitions; only to where they are"),
    row!("ListPartitionReassignments", 46, 0..=0, flexible 0, Overlapping, 8, Describe, Request,
        ListPartitionReassignmentsRequest => handlers::partition_reassignments::list, "None is ever under way"),
    row!("OffsetDelete", 47, 0..=0, flexible 32767, Ordered, 8, Delete, Request,
        OffsetDeleteRequest => handlers::offset_delete::handle, "Delete offsets of topics that are not consumed"),
    row!("DescribeClientQuotas", 48, 0..=1, flexible 1, Overlapping, 8, DescribeConfigs, Request,
        DescribeClientQuotasRequest => handlers::client_quotas::describe, "Quotas; there are none"),
    row!("AlterClientQuotas", 49, 0..=1, flexible 1, Overlapping, 8, AlterConfigs, Mutation,
        AlterClientQuotasRequest => handlers::client_quotas::alter, "Set quotas; refused, none would be enforced"),
    row!("DescribeUserScramCredentials", 50, 0..=0, flexible 0, Overlapping, 8, Describe, Request,
        DescribeUserScramCredentialsRequest => handlers::user_scram_credentials::describe, "Users; there are none"),
    row!("AlterUserScramCredentials", 51, 0..=0, flexible 0, Overlapping, 8, Alter, Mutation,
        AlterUserScramCredentialsRequest => handlers::user_scram_credentials::alter, "Make users; refused, no listener takes SASL"),
    row!("DescribeQuorum", 55, 0..=2, flexible 0, Overlapping, 8, Describe, Request,
        DescribeQuorumRequest => handlers::describe_quorum::handle, "Who keeps the control state"),
    row!("UpdateFeatures", 57, 0..=2, flexible 0, Overlapping, 8, Alter, Mutation,
        UpdateFeaturesRequest => handlers::update_features::handle, "Feature levels; they come with the program"),
    row!("DescribeCluster", 60, 0..=2, flexible 0, Overlapping, 8, Describe, Request,
        DescribeClusterRequest => handlers::describe_cluster::handle, "Nodes of the cluster"),
    row!("DescribeProducers", 61, 0..=0, flexible 0, Overlapping, 8, Read, Request,
        DescribeProducersRequest => handlers::describe_producers::handle, "Who writes to partitions, and since when within a transaction; lastTimestamp is the node's time, Kafka's is the largest timestamp of the last batch"),
    row!("DescribeTransactions", 65, 0..=0, flexible 0, Overlapping, 8, Describe, Request,
        DescribeTransactionsRequest => handlers::describe_transactions::handle, "Transactional ids with their transactions"),
    row!("ListTransactions", 66, 0..=2, flexible 0, Overlapping, 8, Describe, Request,
        ListTransactionsRequest => handlers::list_transactions::handle, "Transactional ids by state, producer and age"),
    row!("ConsumerGroupHeartbeat", 68, 0..=1, flexible 0, Ordered, 8, Read, Request,
        ConsumerGroupHeartbeatRequest => handlers::consumer_group_heartbeat::handle, "Join, stay in and leave a group whose coordinator assigns"),
    row!("ConsumerGroupDescribe", 69, 0..=1, flexible 0, Ordered, 8, Describe, Request,
        ConsumerGroupDescribeRequest => handlers::consumer_group_describe::handle, "Groups whose coordinator assigns, with their members"),
    row!("ListConfigResources", 74, 0..=1, flexible 0, Overlapping, 8, DescribeConfigs, Request,
        ListConfigResourcesRequest => handlers::list_config_resources::handle, "Names of what has configs"),
    row!("DescribeTopicPartitions", 75, 0..=0, flexible 0, Overlapping, 8, Describe, Request,
        DescribeTopicPartitionsRequest => handlers::describe_topic_partitions::handle, "Topics in pages"),
];

/// The row of a key.
pub fn find(key: i16) -> Option<&'static Row> {
    // Keys are few and small: an index built once beats a search.
    static INDEX: std::sync::LazyLock<Vec<Option<&'static Row>>> = std::sync::LazyLock::new(|| {
        let mut index = vec![None; TABLE.iter().map(|r| r.key as usize + 1).max().unwrap_or(0)];
        for row in TABLE {
            if let Some(slot) = index.get_mut(row.key as usize) {
                *slot = Some(row);
            }
        }
        index
    });
    INDEX.get(usize::try_from(key).ok()?).copied().flatten()
}
