//! Consumer groups: Kafka's classic protocol and KIP-848 on one replicated state machine (design 12).
//!
//! Owns: the coordinator as a pure machine (`coordinator` and the rules beside it; `consumer` for KIP-848), what it
//! stores (`record`, `image`), and the service that runs one machine per partition of `__groups` (`service`). Must not know: connections and wire types;
//! handlers translate.

mod admin;
mod ask;
mod consumer;
mod coordinator;
mod full;
mod image;
mod join;
mod live;
mod mutant;
mod offsets;
mod pending;
mod pending_ids;
mod record;
mod service;
mod settings;
mod subscription;
mod sync;
mod view;

#[cfg(test)]
mod consumer_config_test;
#[cfg(test)]
mod consumer_storm_test;
#[cfg(test)]
mod consumer_test;
#[cfg(test)]
mod contract_test;
#[cfg(test)]
mod coordinator_rig;
#[cfg(test)]
mod coordinator_test;
#[cfg(test)]
mod full_test;
#[cfg(test)]
mod offsets_test;
#[cfg(test)]
mod pending_test;
#[cfg(test)]
mod static_members_test;
#[cfg(test)]
mod storm_test;
#[cfg(test)]
mod view_test;

pub(crate) use ask::{
    Absent, Caller, Commit, CommitPosition, Described, GroupError, Join, JoinRefused, Joined, Leaver, Listed,
    State, Sync, Synced,
};
#[cfg(test)]
pub(crate) use ask::{DescribedMember, GroupType};
#[cfg(test)]
pub(crate) use consumer::ConsumerState;
pub(crate) use consumer::{
    Beat, BeatRefused, Beaten, CONFIG_KEYS, Change, ConfigError, ConfigKey, DescribedConsumer,
    DescribedConsumers, NamedPartitions, Partitions, by_topic,
};
pub(crate) use pending::{Ended, PendingCommit};
pub(crate) use record::{Blob, GroupImage, Key, MemberImage, MemberInfo, Position};
pub(crate) use service::leader_of;
pub use service::{Groups, TOPIC};
pub use settings::{Settings, Time};
pub(crate) use subscription::assignment as member_assignment;
pub(crate) use view::{Change as Shown, Look, Row, Seen};
