//! What the compatibility tests and the crash storm share.
//!
//! Owns: brokers as real processes on free ports, a wire-level client with exact control over sequences and
//! retries, the judge of what a broker may do to records, the driver of foreign client programs.
//! Must not know: anything of the broker's inside; it is a process with two ports, a data directory and a log.

pub mod broker;
pub mod browser;
pub mod checks;
pub mod cost;
pub mod http;
pub mod java;
pub mod judge;
pub mod load;
pub mod matrix;
pub mod member;
pub mod once;
pub mod order;
pub mod payload;
pub mod ports;
pub mod reshard;
pub mod skip;
pub mod storm;
pub mod suite;
pub mod turmoil;
pub mod wire;
