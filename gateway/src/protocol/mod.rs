//! The Kafka wire protocol: the table of APIs, dispatch, error codes, batch checks, and what stands around the codec
//! crate (a guard in front of its decoders, a buffer that splices stored bytes into its encoders).
//!
//! Owns bytes to messages and back. Knows nothing of sockets.

pub mod batch;
pub mod dispatch;
pub mod errors;
pub mod frame;
pub mod guard;
pub mod table;
