//! The chain: which loglets make up a range's log, and since when. Pure data and its rules.

use crate::drive::spec::DriveSpec;
use crate::types::{Address, LogletId, Primary};
use serde::{Deserialize, Serialize};

/// How a segment is sealed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SealMode {
    /// The drive refuses writes (log-contracts 1.5 F).
    Fence,
}

/// One segment of a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainEntry {
    /// Virtual address of the loglet's address 0.
    pub base: u64,
    /// The loglet.
    pub loglet: LogletId,
    /// Its drive tree, placed.
    pub drive: DriveSpec,
    /// Window: at most so many slots in flight above the contiguous tail.
    pub window: u32,
    /// How it is sealed.
    pub seal_mode: SealMode,
    /// The one incarnation that may write it.
    pub primary: Primary,
    /// Its length, once sealed.
    pub tail: Option<Address>,
    /// Addresses below the tail with fewer copies than the write quorum, until healed.
    pub degraded: Option<(Address, Address)>,
    /// Addresses below the tail that no child holds.
    pub lost: Vec<(Address, Address)>,
    /// Compacted: gaps inside are right.
    pub sparse: bool,
    /// When it was opened, broker ms.
    pub opened_at: i64,
}
