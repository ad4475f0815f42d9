//! The gateway: Kafka clients on one side, core's door on the other.
//!
//! `cli` is what the program offers, `config` what an operator may set, `http` administration and metrics.

pub mod cli;
pub mod config;
pub mod http;
