//! What a Fetch is beside its messages: sessions that remember what a client wants, the poll that waits for it, and the memory that its answer holds.

pub mod memory;
pub mod poll;
pub mod session;
