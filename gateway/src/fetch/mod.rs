//! What a Fetch is beside its messages: sessions that remember what a client wants, and the poll that waits for it.

pub mod poll;
pub mod session;
