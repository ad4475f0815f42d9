//! The gateway: Kafka clients on one side, core's door on the other.
//!
//! `connection` owns sockets, `protocol` owns bytes to messages, `handlers` one file per API, `shared` what they share.

pub mod connection;
pub mod handlers;
pub mod metrics;
pub mod protocol;
pub mod shared;

pub use connection::serve;
pub use shared::{Settings, Shared};
