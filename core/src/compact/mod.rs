//! Compaction: of each key of a partition the newest record stays (`cleanup.policy=compact`). Pure: [`plan`] says which
//! segments are due, [`keys`] knows where each key was last, [`clean`] says what becomes of an entry. `node/compact.rs` reads,
//! writes and has the segments replaced.
//!
//! INV-COMPACT-1 of each key the newest record stays with its offset, and every record that nothing later supersedes ·
//! INV-COMPACT-2 what is written counts from the command on that puts it in the place of the old · INV-COMPACT-3 what was
//! cleaned is the beginning of a partition · INV-COMPACT-4 a list of which a segment was replaced meanwhile is begun again ·
//! INV-COMPACT-5 each partition's last entry is there · INV-COMPACT-6 no fold reads a compacted segment.
//!
//! ```text
//!  clean, clean | dirty, dirty | open          1. the newest offset of each key of the dirty ones: the key map
//!  └──────────┬────────────┘                   2. all of them anew, oldest first, without what the map supersedes
//!     compacted segments, same offsets         3. each group of neighbours replaced by one segment, in one command
//! ```

pub mod clean;
pub mod keys;
pub mod plan;

#[cfg(test)]
mod tests;
