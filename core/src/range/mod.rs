//! The range: a pure fold of its log (design 6). State, checkpoints, fold, projection and union, retention.
//!
//! Everything in the modules below is pure: no I/O, no clock; time and bytes are passed in.

pub mod checkpoint;
pub mod epochs;
pub mod fold;
pub mod log_start;
pub mod producers;
pub mod project;
pub mod retention;
pub mod state;

#[cfg(test)]
mod sim;
