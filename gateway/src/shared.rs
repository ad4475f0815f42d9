//! What all connections of a node share: the door into core, settings, counters, budgets.

use crate::connection::Budget;
use crate::fetch::memory::Memory;
use crate::fetch::session::Sessions;
use crate::groups::{self, Groups};
use crate::logs::Levels;
use crate::metrics::Metrics;
use crate::offsets_view;
use crate::transactions::{self, Transactions};
use parking_lot::Mutex;
use rangeway_core::api::Api;
use rangeway_core::config::node::NodeConfig;
use rangeway_core::types::NodeId;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What an operator may set of the Kafka port. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Host and port that clients are told; `None`: the local address of the client's own connection.
    pub advertised: Option<(String, u16)>,
    /// Largest frame (`socket.request.max.bytes`).
    pub frame_bytes_max: usize,
    /// Largest answer to one Fetch (`fetch.max.bytes`).
    pub fetch_bytes_max: usize,
    /// Received requests of all connections (`request.memory.bytes`).
    pub request_memory_bytes: usize,
    /// Records in answers of all connections that are not written (`response.memory.bytes`).
    pub response_memory_bytes: usize,
    /// Connections at once (`connections.max`).
    pub connections_max: usize,
    /// Connections for which the process has descriptors, whatever is set.
    pub connections_fit: usize,
    /// A connection without a request for so long is closed.
    pub connection_idle: Duration,
    /// Fetch sessions at once; the longest unused goes first.
    pub fetch_sessions_max: usize,
    /// A fetch session unused for so long may be given up for another.
    pub fetch_session_idle: Duration,
    /// Make a topic when Metadata asks for one that does not exist (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of a topic whose creator does not say (`num.partitions`).
    pub partitions_default: i32,
    /// All settings of the node, to be shown.
    pub node: Arc<NodeConfig>,
    /// Levels of logs, where they can be changed.
    pub logs: Option<Arc<Levels>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            advertised: None,
            frame_bytes_max: 100 << 20,
            fetch_bytes_max: 57_671_680,
            request_memory_bytes: 128 << 20,
            response_memory_bytes: 64 << 20,
            connections_max: 10_000,
            connections_fit: usize::MAX,
            connection_idle: Duration::from_secs(600),
            fetch_sessions_max: 1000,
            fetch_session_idle: Duration::from_secs(120),
            auto_create_topics: true,
            partitions_default: 16,
            node: Arc::new(NodeConfig::default()),
            logs: None,
        }
    }
}

/// Shared by all connections.
#[derive(Debug)]
pub struct Shared {
    /// The door into core.
    pub api: Api,
    /// This node, for the life of the process.
    pub node: NodeId,
    /// What the operator set.
    pub settings: Settings,
    /// Counters of the Kafka port.
    pub metrics: Arc<Metrics>,
    /// Memory of received requests.
    pub budget: Arc<Budget>,
    /// Memory of answers to Fetch.
    pub fetch_memory: Arc<Memory>,
    /// What clients of Fetch asked to be remembered.
    pub fetch_sessions: Mutex<Sessions>,
    /// The coordinators of groups on this node.
    pub groups: Arc<Groups>,
    /// The coordinators of transactions on this node.
    pub transactions: Transactions,
    me: Weak<Shared>,
}

impl Shared {
    /// Everything that connections share.
    pub fn new(api: Api, settings: Settings) -> Arc<Shared> {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let sessions = Sessions::new(settings.fetch_sessions_max, settings.fetch_session_idle, seed);
        let metrics = Arc::new(Metrics::new());
        let budget = Budget::new(settings.request_memory_bytes, metrics.clone());
        let fetch_memory = Memory::new(settings.response_memory_bytes, metrics.clone());
        api.derive_topic(offsets_view::topic());
        let groups = groups::Settings::of(&settings.node);
        let groups = Arc::new(Groups::new(api.clone(), groups));
        let transactions = transactions::Settings {
            timeout_ms_max: i32::try_from(settings.node.transaction_max_timeout_ms).unwrap_or(i32::MAX),
            id_expiration_ms: settings.node.transactional_id_expiration_ms,
        };
        let transactions = Transactions::new(api.clone(), groups.clone(), transactions);
        let node = api.cluster().node;
        Arc::new_cyclic(|me| Shared {
            api,
            node,
            settings,
            metrics,
            budget,
            fetch_memory,
            fetch_sessions: Mutex::new(sessions),
            groups,
            transactions,
            me: me.clone(),
        })
    }

    /// Ends all coordinators for good: joins that wait for other members would hold the connections open.
    pub async fn stop_coordinators(&self) {
        self.transactions.stop().await;
        self.groups.stop().await;
    }

    /// What keeps groups and transactions from being coordinated here; empty when nothing does.
    pub fn blocked(&self) -> Vec<String> {
        let mut reasons = self.groups.blocked();
        reasons.extend(self.transactions.blocked());
        reasons
    }

    /// Itself, to be handed on; `None` only while it is being dropped.
    pub fn me(&self) -> Option<Arc<Shared>> {
        self.me.upgrade()
    }
}
