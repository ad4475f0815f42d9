//! Transactions: Kafka's transaction coordinator on a replicated state machine (design 12).
//!
//! ```text
//!  producer ── init, add, end ──► coordinator (a partition of `__transactions`) ── decided ──► markers ──► each partition
//!           └─ write ──► writers: was the partition added? ──► coordinator, once per transaction and partition
//! ```
//! Owns: the coordinator as a pure machine (`coordinator` and the rules beside it), what it stores (`record`), the
//! writing of markers (`markers`), what is known of transactional writers of this node's partitions (`writers`), and the
//! service that runs one machine per partition of `__transactions` (`service`). Must not know: connections and wire
//! types; handlers translate.

mod ask;
mod coordinator;
mod end;
mod init;
mod markers;
mod node_markers;
mod places;
mod record;
mod service;
mod writers;

#[cfg(test)]
mod coordinator_test;
#[cfg(test)]
mod markers_test;
#[cfg(test)]
mod model_test;

pub(crate) use ask::{Add, Described, End, Init, Listed, TxnError};
pub use coordinator::Settings;
pub(crate) use record::{Place, Producer, Rules, State};
pub(crate) use service::{Admission, leader_of};
pub use service::{TOPIC, Transactions};
pub(crate) use writers::Admitted;
