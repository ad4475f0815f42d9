//! Groups of the consumer protocol (KIP-848): the coordinator decides who reads what, members follow in their own time.
//!
//! ```text
//!  members, subscriptions, topics ──► group epoch + 1
//!  group epoch > target epoch     ──► the assignor makes a target: partitions per member
//!  each heartbeat                 ──► this member one step nearer to its target:
//!
//!        partitions to give up?                    all given up
//!  Stable ─────────────────────► Unrevoked ─────────────────────────┐
//!    │  ▲                        (epoch stays; fenced when its       ▼
//!    │  │ all of its target       rebalance timeout is over)   member epoch = target epoch
//!    │  └──────────────────────── Unreleased ◄──────────────────────┤ others still hold some of its target
//!    └─────────── nothing to give up ───────────────────────────────┘ else Stable
//! ```
//! A partition is given to a member only when no other holds it or has still to give it up, so it has one owner at any
//! time (INV-GROUP-1). Splits and merges of ranges change no epoch and move no partition (INV-GROUP-2): an epoch depends
//! on names and partition counts alone.
//!
//! Members of the classic protocol may be in such a group (`classic`), and groups change their kind online (`migrate`).
//! Owns: epochs, targets, reconciliation, sessions of members. Must not know: wire types, what a split is.

pub(super) mod assignor;
mod classic;
mod commit;
mod configs;
mod converge;
mod describe;
mod heartbeat;
pub(super) mod image;
mod member;
mod migrate;
mod re2j;
#[cfg(test)]
mod re2j_test;
mod reconcile;
mod request;
mod session;
mod since;
mod topics;

pub(crate) use configs::{Change, ConfigError, ConfigKey, KEYS as CONFIG_KEYS};
pub(crate) use describe::{DescribedConsumer, DescribedConsumers, NamedPartitions};
#[cfg(test)]
pub(crate) use image::ConsumerState;
pub(crate) use image::{Partitions, by_topic};
pub(crate) use request::{Beat, BeatRefused, Beaten};
pub(super) use session::{Session, sessions};
pub(super) use since::ReadSince;

/// Member epoch that asks to join.
pub(crate) const JOIN_EPOCH: i32 = 0;
/// Member epoch that says good-bye.
pub(crate) const LEAVE_EPOCH: i32 = -1;
/// Member epoch of a static member that will be back.
pub(crate) const LEAVE_STATIC_EPOCH: i32 = -2;
