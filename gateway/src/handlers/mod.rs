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
pub mod sasl;
pub mod sync_group;
pub mod txn_offset_commit;
pub mod update_features;
pub mod user_scram_credentials;
mod words;
pub mod write_txn_markers;

pub use crate::access::{Operation, Principal, Resource};

use crate::access::{self, Asked};
use crate::shared::Shared;
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use rangeway_core::api::{Acl, Api, Lane};
use rangeway_core::config::access::Authorizer;
use std::collections::BTreeSet;
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
    /// Whether the principal may do this. All is allowed without an authoriser.
    pub fn authorize(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.judged(|rules, asked| access::may(rules, asked, operation, resource))
    }

    /// Whether the principal may make a topic of this name: a right on it, or on the cluster, will do.
    pub fn may_create(&self, topic: &str) -> bool {
        self.authorize(Operation::Create, Resource::Cluster)
            || self.authorize(Operation::Create, Resource::Topic(topic))
    }

    /// Whether the principal may write with an idempotent producer at all: to some topic, or by a right of its own (KIP-679).
    pub fn may_be_idempotent(&self) -> bool {
        self.authorize(Operation::IdempotentWrite, Resource::Cluster)
            || self.judged(access::may_write_some_topic)
    }

    fn judged(&self, judge: impl FnOnce(&BTreeSet<Acl>, &Asked<'_>) -> bool) -> bool {
        let node = &self.shared.settings.node;
        if node.authorizer == Authorizer::None {
            return true;
        }
        let asked = Asked {
            principal: &self.principal.name,
            host: &self.client.connection.peer.ip().to_canonical().to_string(),
            super_users: &node.super_users,
            everyone: node.allow_everyone_if_no_acl_found,
        };
        judge(&self.api.acls(), &asked)
    }
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
