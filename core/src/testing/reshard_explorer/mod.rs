//! All interleavings of live resharding, breadth first: one topic of two partitions, splits and merges, rolls, failovers,
//! aborts, two drivers, clients with batches in flight, a transactional producer with its coordinator, retention.
//!
//! The world is a model only where it must be: the network, the leaves' disks, which step comes next. What decides is the
//! product's: [`State::apply`](crate::control::state::State::apply), the reshard driver, the sealer, registers, range
//! primaries with their sequencers and hand-over, fold, projection and union, retention.
//!
//! Checked in every state: see [`check`]; and that from every state all can still be finished (progress). Each rule of
//! reshard-rules broken by a switch of [`Mutant`](super::Mutant) must be found.

mod check;
mod clients;
mod control;
mod drive;
mod explore;
mod node;
mod readers;
mod steps;
mod storage;
mod tests;
mod transactions;
mod world;

use crate::range::markers::TransactionVersion;

/// What may happen in a run: how often, at most.
#[derive(Copy, Clone, Debug)]
pub(super) struct Scope {
    /// Ranges at the start: 1 to be split, 2 to be merged.
    pub(super) ranges: u32,
    /// Nodes, each with one driver; node 0 leads all at the start.
    pub(super) nodes: usize,
    /// Copies of each segment: one, or three of which two hold what is acknowledged.
    pub(super) replicas: usize,
    /// Partition and kind of each client.
    pub(super) clients: &'static [ClientKind],
    /// Entries in flight per range.
    pub(super) window: u32,
    /// Their bytes.
    pub(super) window_bytes: u64,
    /// Splits and merges begun.
    pub(super) reshards: u8,
    /// Operations aborted by the operator.
    pub(super) aborts: u8,
    /// Rolls begun.
    pub(super) rolls: u8,
    /// Nodes that die and come back.
    pub(super) restarts: u8,
    /// Ranges taken over from a node that lives.
    pub(super) failovers: u8,
    /// Answers to control commands that are lost.
    pub(super) lost: u8,
    /// Control commands that are carried out later, if ever, their answers lost.
    pub(super) late: u8,
    /// Connections that are made to whoever led before.
    pub(super) stale: u8,
    /// Requests that their clients give up.
    pub(super) timeouts: u8,
    /// Whether single requests come to their deadlines, not only connections to their ends.
    pub(super) deadlines: bool,
    /// Drains that do not end in time, and seals without a quorum.
    pub(super) failing: u8,
    /// Readers with cursors.
    pub(super) readers: u8,
    /// Log starts raised to the end, and retention passes.
    pub(super) deletes: u8,
    /// Transactions of one producer; none: there is no such producer.
    pub(super) transactions: u8,
    /// How its epochs go.
    pub(super) version: TransactionVersion,
    /// Markers that are asked for once more.
    pub(super) copies: u8,
    /// Whether a range whose segment takes no more writes is rolled away.
    pub(super) rolls_away: bool,
    /// Whether the second child is led by the other node.
    pub(super) spread: bool,
    /// Whether runs may arrive at a leaf out of order.
    pub(super) reorder: bool,
    /// The run ends, without a verdict, at so many states.
    pub(super) states_max: usize,
}

/// A producer on its own connection.
#[derive(Copy, Clone, Debug)]
pub(super) struct ClientKind {
    pub(super) partition: i32,
    /// Whether it has a producer id: then it sends again until it has an answer.
    pub(super) idempotent: bool,
    /// Batches it sends, all in flight at once.
    pub(super) batches: u8,
    /// Whether the first of them is larger than a small window.
    pub(super) large_first: bool,
}
