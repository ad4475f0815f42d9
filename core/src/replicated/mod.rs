//! Replicated state machines: a coordinator is a fold of one partition of an internal topic (design 12).
//!
//! ```text
//!  call ──► handle(event) ──► (replies, records) ──► append, durable ──► replies leave
//!                 │ every record goes through replay(), at load too
//!  log:  …  R R R S S R R R        state = newest complete snapshot S + the records from its `through` on
//! ```
//! Owns: order of handling, group commit (calls that wait share one append), loading, snapshots, the rise of the log
//! start, and the rule that nothing is answered before what it depends on is durable. Must not know: what a machine
//! decides, and Kafka.
//!
//! INV-REP-1 durable state changes in [`Machine::replay`] only · INV-REP-2 a reply leaves after every record that was made
//! before it, in the same batch or earlier, is durable · INV-REP-3 when an append fails or its outcome is unknown, the state in
//! memory is dropped and folded again from the log behind a barrier entry, so that no record can appear later that
//! the fold has not seen · INV-REP-5 while the log takes no records nothing is decided: what would record is refused before it is
//! handled, what is due waits, and the state goes on being read.

#[cfg(test)]
mod api_log_test;
mod fold;
mod log;
mod runtime;
#[cfg(test)]
pub(crate) mod runtime_test;
mod shared;
mod together;

pub use fold::Damage;
pub use log::{ApiLog, LogBounds, PartitionLog, Room};
pub use runtime::{Options, Partition, Unavailable};
pub use shared::Shared;
pub use together::{Together, Voice};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Names one call until it is answered; unique in one partition's run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Time as a machine sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, ms since this process started: for timers.
    pub mono_ms: u64,
    /// Wall clock, ms since the epoch: for what is stored.
    pub wall_ms: i64,
}

/// A pure state machine: no I/O, no clock.
///
/// It has durable state, which only [`Machine::replay`] changes, and soft state (timers, parked calls), which lives
/// until the partition moves, the process ends or an append fails. Parked calls are then answered with
/// [`Unavailable`] by the runtime.
pub trait Machine: Send + Sized + 'static {
    /// What may be asked.
    type Event: Send + 'static;
    /// What is answered.
    type Reply: Send + 'static;
    /// One durable fact. The records that one event makes are stored as one entry: all or none.
    type Record: Serialize + DeserializeOwned + Send + 'static;
    /// The durable state at one moment, cheap to capture (shared, copied on write).
    type Image: Serialize + DeserializeOwned + Send + 'static;
    /// What a machine is made with.
    type Settings: Clone + Send + Sync + 'static;
    /// Version of the layout of records and image; a reader refuses a newer one.
    const VERSION: u8;
    /// Oldest version that is read as well: since then kinds of records were appended and the image got fields at its
    /// end, which its `Deserialize` takes for empty where the bytes end.
    const VERSION_OLDEST: u8 = Self::VERSION;

    /// An empty machine.
    fn new(settings: &Self::Settings) -> Self;
    /// Handles one event. It is answered here or by a later one.
    fn handle(&mut self, ticket: Ticket, event: Self::Event, now: Now, out: &mut Outcome<Self>);
    /// Whether handling `event` now records nothing, neither at once nor later: it only reads, or changes soft state. Such
    /// events alone are handled while the log takes no records.
    fn passes(&self, event: &Self::Event, now: Now) -> bool;
    /// The log takes records again; what is due was not done meanwhile, and whoever was refused has its time anew.
    fn resume(&mut self, now: Now);
    /// Does what is due by `now`.
    fn expire(&mut self, now: Now, out: &mut Outcome<Self>);
    /// When `expire` is due next, in monotonic ms.
    fn next_deadline(&self) -> Option<u64>;
    /// Applies one record to the durable state; total: it cannot fail on a record that was once written.
    fn replay(&mut self, record: &Self::Record);
    /// Starts timers and other soft state after the last record was replayed.
    fn loaded(&mut self, now: Now);
    /// The durable state now.
    fn capture(&self) -> Self::Image;
    /// Replaces the durable state.
    fn restore(&mut self, image: Self::Image);
}

/// What handling made: answers, and records in order.
#[derive(Debug)]
pub struct Outcome<M: Machine> {
    replies: Vec<(Ticket, M::Reply)>,
    records: Vec<M::Record>,
}

impl<M: Machine> Default for Outcome<M> {
    fn default() -> Self {
        Outcome { replies: Vec::new(), records: Vec::new() }
    }
}

impl<M: Machine> Outcome<M> {
    /// Answers a call once everything recorded so far is durable.
    pub fn reply(&mut self, ticket: Ticket, reply: M::Reply) {
        self.replies.push((ticket, reply));
    }

    /// Records a fact and applies it: the only way by which handling changes durable state.
    pub fn emit(&mut self, machine: &mut M, record: M::Record) {
        machine.replay(&record);
        self.records.push(record);
    }

    /// Takes the records made so far.
    pub fn take_records(&mut self) -> Vec<M::Record> {
        std::mem::take(&mut self.records)
    }

    /// Takes the answers made so far.
    pub fn take_replies(&mut self) -> Vec<(Ticket, M::Reply)> {
        std::mem::take(&mut self.replies)
    }
}
