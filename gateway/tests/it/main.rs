//! The gateway over real TCP, spoken to by the codec crate as a raw client: what Kafka's clients can see on the socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod bad_input;
mod configs;
mod decode_guard;
mod demo;
mod disks;
mod fetch;
mod floods;
mod full;
mod groups;
mod groups_command;
mod messages;
mod metadata;
mod offsets;
mod offsets_view;
mod process;
mod produce;
mod program;
mod proofs;
mod recreate;
mod reserved;
mod reshard;
mod support;
mod transactions;
mod verify;
mod versions;
