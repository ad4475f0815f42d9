//! One file per API, or per family of them that does one thing: authorise, call, shape the reply. Handlers hold no state of their own; what the node shares is in
//! [`Shared`](crate::shared::Shared).
//!
//! A handler is `async fn handle(Context, Request) -> Result<Response, Close>`; its row in
//! [`table`](crate::protocol::table) names it. Strings and bytes of a request are slices of the receive buffer: what
//! outlives the request must be copied, else a few bytes pin the whole buffer.

pub mod acls;
pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod alter_configs;
pub mod alter_replica_log_dirs;
pub mod api_versions;
pub mod client_quotas;
mod config_changes;
mod configs;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_partitions;
pub mod create_topics;
pub mod delegation_tokens;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod describe_transactions;
pub mod elect_leaders;
pub mod end_txn;
pub mod fetch;
pub mod find_coordinator;
mod group_configs;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod list_transactions;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod partition_reassignments;
mod places;
pub mod produce;
#[cfg(test)]
mod round_trip;
pub mod sync_group;
pub mod txn_offset_commit;
pub mod update_features;
pub mod user_scram_credentials;
mod words;
pub mod write_txn_markers;

use crate::shared::Shared;
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use rangeway_core::api::{Api, Lane};
use std::net::SocketAddr;
use std::sync::Arc;

/// Everything a handler may use.
#[derive(Clone, Debug)]
pub struct Context {
    /// The door into core.
    pub api: Api,
    /// On whose behalf.
    pub principal: Principal,
    /// From whom.
    pub client: ClientInfo,
    /// The request's version.
    pub version: i16,
    /// What the gateway shares between connections.
    pub shared: Arc<Shared>,
}

impl Context {
    /// Whether the principal may do this; see [`authorize`].
    pub fn authorize(&self, operation: Operation, resource: Resource<'_>) -> bool {
        authorize(&self.principal, operation, resource)
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// `User:ANONYMOUS` until listeners authenticate.
    pub name: Arc<str>,
}

impl Principal {
    /// The principal of a listener without authentication.
    pub fn anonymous() -> Principal {
        Principal { name: Arc::from("User:ANONYMOUS") }
    }
}

/// What is asked to be done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing that needs a grant.
    None,
    /// Read records or offsets.
    Read,
    /// Write records.
    Write,
    /// Create a topic.
    Create,
    /// Delete a topic, a group or records.
    Delete,
    /// Change a topic.
    Alter,
    /// See that it exists and what shape it has.
    Describe,
    /// See configs.
    DescribeConfigs,
    /// Change configs.
    AlterConfigs,
    /// What brokers do among themselves.
    ClusterAction,
    /// Write idempotently.
    IdempotentWrite,
}

/// What it is done to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The cluster as a whole.
    Cluster,
    /// A topic by name.
    Topic(&'a str),
    /// A group by id.
    Group(&'a str),
    /// A transactional id.
    Transaction(&'a str),
}

/// Whether `principal` may do `operation` on `resource`. Every request asks; all is allowed while no listener
/// authenticates.
pub fn authorize(_principal: &Principal, _operation: Operation, _resource: Resource<'_>) -> bool {
    true
}

/// The client of one request.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// As it calls itself in this request.
    pub id: Option<StrBytes>,
    /// Its connection.
    pub connection: Arc<ConnectionInfo>,
}

/// What is known of a connection.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Unique in this process.
    pub number: u64,
    /// The client's end.
    pub peer: SocketAddr,
    /// Our end: the address that the client reached us by.
    pub local: SocketAddr,
    /// Name and version of the client's software, once it said so (ApiVersions 3 and up).
    pub software: Mutex<Option<(String, String)>>,
    /// Its batches, in order.
    pub lane: Lane,
}

impl ClientInfo {
    /// The client id, empty when there is none.
    pub fn id(&self) -> &str {
        self.id.as_ref().map_or("", |id| id.as_str())
    }

    /// Host and port by which this client reaches this node: the advertised address, else its connection's local one.
    pub fn node_address(&self, shared: &Shared) -> (String, u16) {
        match &shared.settings.advertised {
            Some((host, port)) => (host.clone(), *port),
            None => (self.connection.local.ip().to_canonical().to_string(), self.connection.local.port()),
        }
    }
}
