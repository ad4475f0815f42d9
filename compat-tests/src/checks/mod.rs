//! What the black-box checks of the offsets contract are made of (protocol.md 14.4): clients that go on across kills, a writer whose
//! record at offset *n* is number *n*, a reader that sees anything else, a proxy that loses answers.

pub mod client;
pub mod committed;
pub mod numbered;
pub mod proxy;
pub mod transactional;
pub mod writer;

pub use client::{Client, Fetched};
pub use committed::Committed;
pub use writer::Writer;
