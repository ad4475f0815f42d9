//! The gateway: Kafka clients on one side, core's door on the other.
//!
//! `cli` is what the program offers, `config` what an operator may set, `http` administration and metrics,
//! `bench` a client that measures, `demo` a load that is judged while ranges are split and merged;
//! `connection` owns sockets, `protocol` owns bytes to messages, `handlers` one file per API, `shared` what they share.

pub mod access;
pub mod bench;
pub mod cli;
pub mod config;
pub mod connection;
mod coordinators;
pub mod demo;
pub mod fetch;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod groups;
pub mod handlers;
mod heavy;
pub mod http;
pub mod logs;
pub mod metrics;
mod offsets_view;
pub mod protocol;
pub mod shared;
pub mod transactions;
pub mod vpartition;

pub use connection::serve;
pub use protocol::batch::Codecs;
pub use shared::{Settings, Shared};
