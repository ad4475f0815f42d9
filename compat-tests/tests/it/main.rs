//! Real clients and a small crash storm against a started broker.
//!
//! By default the broker is this workspace's `rangeway`; with `RANGEWAY_COMPAT_REFERENCE=1` it is the reference broker.

#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers of the tests included")]

mod checks;
mod clients;
#[cfg(feature = "rdkafka")]
mod compaction;
#[cfg(feature = "containers")]
mod container;
mod crash;
mod demo;
mod full_disk;
mod java;
mod librdkafka;
mod once;
mod order;
mod page;
#[cfg(feature = "rdkafka")]
mod rdkafka_client;
mod sharing;
