//! Rangeway's range log: drives, loglets, virtual logs, ranges and the control plane.
//!
//! Modules import strictly downward in the order below (design 17); `api` is the only door for the gateway.

pub mod api;
pub mod codec;
pub mod compact;
pub mod config;
pub mod control;
pub mod cursor;
pub mod drive;
pub mod env;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod loglet;
pub mod node;
pub mod range;
pub mod replicated;
pub mod reshard;
pub mod store;
pub(crate) mod testing;
pub mod types;
pub mod virtual_log;
