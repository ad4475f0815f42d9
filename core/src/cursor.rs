//! Cursors: opaque tokens that say where a reader is and stay valid through any split, merge or roll (design 8).
//!
//! Two scopes. *Partitions*: offsets survive resharding, so a position is (partition, offset); its hint names a place in
//! the log, saves a seek and may be stale at any time. *Topic*: a run of partitions is read range by range, so a place is
//! (partition span, range, virtual address), and the spans tile the scope ([`places`]); what to read next, and where a
//! place goes when its range is drained, trimmed or dropped, follows from the topic's [`lineage`] ([`walk`]).
//!
//! A cursor is authentic (MAC under one of our keys), so its fields may be believed; it grants nothing: whoever presents
//! it is authorised like everybody. Layout: docs/formats-range.md. Keeps INV-CUR-1 and INV-CUR-2.

pub mod lineage;
pub mod places;
mod text;
pub mod walk;
#[cfg(test)]
mod walk_test;

pub use places::{Place, Places, Spot};
pub use text::{CursorError, CursorKey, CursorKeys, POSITIONS_MAX, TEXT_BYTES_MAX, TooManyPositions};

use crate::types::{Address, LogletId, Offset, Partition, RangeId, TopicId};
use smallvec::SmallVec;

/// A place in the log where an offset was last seen; may be stale.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The range.
    pub range: RangeId,
    /// The loglet.
    pub loglet: LogletId,
    /// The entry that holds the offset, or the first one after it.
    pub address: Address,
}

/// Where a reader is in one partition.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The partition.
    pub partition: Partition,
    /// The next offset to read.
    pub offset: Offset,
    /// Where to look first.
    pub hint: Option<Hint>,
}

/// Where a reader is in a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The topic.
    pub topic: TopicId,
    /// What is read of it, and from where on.
    pub scope: Scope,
}

/// What a cursor covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Some partitions, each from its offset on, in the reader's order.
    Partitions(SmallVec<[Position; 1]>),
    /// A run of partitions, the whole topic as a rule, range by range.
    Topic(Places),
}
