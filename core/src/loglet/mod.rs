//! The loglet: one segment under one sequencer incarnation, sealed once, for ever (design 5, log-contracts 1.5, 1.7).
//!
//! Decisions are machines without I/O and clock; whoever drives them obeys their commands. Knows nothing of chains'
//! storage, ranges' state or clients.

pub mod repair;
pub mod sealer;
pub mod sequencer;
