//! The range: a pure fold of its log (design 6). State, checkpoints, fold, projection and union, retention.
//!
//! Decisions are pure: no I/O, no clock; time and bytes are passed in. `primary` and `read` are the thin drivers.

pub mod ack;
pub mod checkpoint;
pub mod epochs;
pub mod fold;
pub mod lane;
pub mod lineage;
pub mod log_start;
pub mod markers;
pub mod park;
pub mod parts;
pub mod primary;
pub mod producers;
pub mod project;
pub mod read;
pub mod retention;
pub mod segment;
mod starts;
pub mod state;
pub mod table;
pub mod transactions;
pub mod watch;

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod park_tests;
#[cfg(test)]
mod parking_tests;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod transaction_tests;
