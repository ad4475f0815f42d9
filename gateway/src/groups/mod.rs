//! Consumer groups: Kafka's classic protocol on a replicated state machine (design 12).
//!
//! Owns: the coordinator as a pure machine (`coordinator` and the rules beside it), what it stores (`record`), and the
//! service that runs one machine per partition of `__groups` (`service`). Must not know: connections and wire types;
//! handlers translate.

mod admin;
mod ask;
mod coordinator;
mod hash;
mod join;
mod offsets;
mod record;
mod service;
mod subscription;
mod sync;

#[cfg(test)]
mod coordinator_test;
#[cfg(test)]
mod storm_test;

#[cfg(test)]
pub(crate) use ask::DescribedMember;
pub(crate) use ask::{
    Caller, Commit, CommitPosition, Described, GroupError, Join, JoinRefused, Joined, Leaver, Listed, State,
    Sync, Synced,
};
pub use coordinator::Settings;
pub(crate) use record::{Blob, Key, MemberInfo, Position};
pub(crate) use service::leader_of;
pub use service::{Groups, TOPIC};
