//! The fold: a range's state from its recorded log (design 6, R10). Pure; a driver reads and hands over what it found.
//!
//! Where to read is [`next_to_read`]'s: newest segment first, then older ones, then the parents. One segment with a
//! complete checkpoint below its tail is enough, since nothing but checkpoint pieces is written to a segment before
//! its first checkpoint is. [`Fold`] then takes that segment's entries from the checkpoint's capture on.

use crate::codec::entry::{EntryHeader, EntryKind};
use crate::range::checkpoint::{self, CheckpointError, PieceHead};
use crate::range::log_start::{self, LogStartError};
use crate::range::state::{ApplyError, RangeState};
use crate::testing::{Mutant, broken};
use crate::types::{Address, LogletId, Offset, Partition, RangeId, Span};
use bytes::Bytes;
use std::sync::Arc;

/// A segment that is sealed, its tail recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// The loglet.
    pub loglet: LogletId,
    /// Its length in entries.
    pub tail: Address,
}

/// What the control state says of a range's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSummary {
    /// Virtual address at which the oldest segment that is left begins: above 0 once older ones were dropped.
    pub begins_at: u64,
    /// The sealed segments, oldest first.
    pub sealed: Vec<SealedSegment>,
    /// The ranges that this one came from.
    pub parents: Vec<RangeId>,
}

/// Where a fold goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look for the newest last piece of a checkpoint below the tail of `sealed[index]`; if there is none, ask again
    /// with `index`.
    Segment {
        /// Place of the segment in the summary.
        index: usize,
        /// The segment.
        segment: SealedSegment,
    },
    /// Fold these ranges and take [`crate::range::project::inherit`] of their states.
    Parents(Vec<RangeId>),
    /// Nothing was ever written: [`RangeState::new`].
    Blank,
    /// Older segments were dropped and what is left holds no checkpoint: the state is lost. Numbering afresh would give
    /// offsets twice, so the range stays closed until an operator decides.
    Lost,
}

/// The next place to look for a checkpoint: older than `sealed[before]`; first asked with `sealed.len()`.
pub fn next_to_read(log: &LogSummary, before: usize) -> Step {
    let older = log.sealed.iter().enumerate().take(before).rev();
    if let Some((index, segment)) = older.into_iter().find(|(_, segment)| segment.tail > Address(0)) {
        return Step::Segment { index, segment: *segment };
    }
    if broken(Mutant::EmptyFoldsBlank) {
        return Step::Blank;
    }
    if log.begins_at > 0 {
        return Step::Lost;
    }
    if log.parents.is_empty() { Step::Blank } else { Step::Parents(log.parents.clone()) }
}

/// Why a segment does not fold.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// The checkpoint is damaged or of a newer program; final.
    #[error("loglet {loglet}: {error}")]
    Checkpoint {
        /// The loglet.
        loglet: LogletId,
        /// What is wrong.
        error: CheckpointError,
    },
    /// The checkpoint is of other partitions; final.
    #[error("loglet {loglet}: checkpoint of partitions {}..={}, expected {}..={}", got.first, got.last, expected.first, expected.last)]
    Span {
        /// The loglet.
        loglet: LogletId,
        /// What the checkpoint holds.
        got: Span,
        /// The range's partitions.
        expected: Span,
    },
    /// A log-start entry is damaged or of a newer program; final.
    #[error("loglet {loglet} address {address}: {error}")]
    LogStart {
        /// The loglet.
        loglet: LogletId,
        /// The entry.
        address: Address,
        /// What is wrong.
        error: LogStartError,
    },
    /// An entry does not follow from those before; final.
    #[error("loglet {loglet} address {address}: {error}")]
    Entry {
        /// The loglet.
        loglet: LogletId,
        /// The entry.
        address: Address,
        /// What is wrong.
        error: ApplyError,
    },
    /// Entries are missing; until the drive gives them. A fold that skipped them would give numbers twice.
    #[error("loglet {loglet}: entry {got} where {expected} belongs; entries are missing")]
    Gap {
        /// The loglet.
        loglet: LogletId,
        /// Address given (the tail, at the end).
        got: Address,
        /// Address that belongs there.
        expected: Address,
    },
    /// A newer complete checkpoint lies behind the one begun with: begin again with its last piece.
    #[error("loglet {loglet}: a newer checkpoint ends at {last_piece}")]
    NewerCheckpoint {
        /// The loglet.
        loglet: LogletId,
        /// Address of the newer one's last piece.
        last_piece: Address,
    },
}

/// What an entry does to the state, kept until the checkpoint is whole.
enum Pending {
    Records(EntryHeader),
    LogStarts(Address, Vec<(Partition, Offset)>),
}

/// The fold of one sealed segment. Entries come in address order from [`Fold::from`] up to the tail, none left out.
pub struct Fold {
    segment: SealedSegment,
    span: Span,
    /// The checkpoint begun with: its last piece and that piece's address.
    last: (PieceHead, Address),
    next: Address,
    pieces: Vec<Bytes>,
    pending: Vec<Pending>,
    state: Option<RangeState>,
    /// As the checkpoint has them.
    log_starts: Arc<[(Partition, Offset)]>,
}

impl Fold {
    /// Begins a fold of `segment`, of a range over `span`, with the payload of the last piece of its newest checkpoint
    /// below the tail, which lies at `address`.
    ///
    /// Errors: final, the piece is damaged or of a newer program.
    pub fn begin(
        segment: SealedSegment,
        span: Span,
        last_piece: &[u8],
        address: Address,
    ) -> Result<Fold, FoldError> {
        let failed = |error| FoldError::Checkpoint { loglet: segment.loglet, error };
        let head = checkpoint::piece_head(last_piece).map_err(failed)?;
        if head.index + 1 != head.count || head.from > address {
            let (got, count) = (head.index, head.count);
            return Err(failed(CheckpointError::Pieces { got, count, expected: count - 1 }));
        }
        Ok(Fold {
            segment,
            span,
            last: (head, address),
            next: head.from,
            pieces: Vec::new(),
            pending: Vec::new(),
            state: None,
            log_starts: Arc::default(),
        })
    }

    /// The first address to read.
    pub fn from(&self) -> Address {
        self.last.0.from
    }

    /// Whether an entry's payload is needed: not that of records.
    pub fn needs_payload(kind: EntryKind) -> bool {
        matches!(kind, EntryKind::Checkpoint | EntryKind::LogStart)
    }

    /// Takes the next entry; `payload` may be empty where [`Fold::needs_payload`] says so.
    ///
    /// Errors: `NewerCheckpoint` and `Gap` as they say, others are final.
    pub fn push(&mut self, header: &EntryHeader, payload: &Bytes) -> Result<(), FoldError> {
        let (loglet, address) = (self.segment.loglet, header.address);
        if address != self.next || address >= self.segment.tail || header.loglet != loglet {
            return Err(FoldError::Gap { loglet, got: address, expected: self.next });
        }
        self.next = address.plus(1);
        match header.kind {
            EntryKind::Checkpoint => self.take_piece(address, payload),
            EntryKind::LogStart => {
                let starts = log_start::decode(payload);
                let starts = starts.map_err(|error| FoldError::LogStart { loglet, address, error })?;
                self.take(Pending::LogStarts(address, starts))
            }
            EntryKind::Data | EntryKind::Control | EntryKind::Snapshot | EntryKind::Marker => {
                self.take(Pending::Records(*header))
            }
        }
    }

    /// The state after the segment's last entry.
    ///
    /// Errors: `Gap` if entries below the tail were not given.
    pub fn finish(self) -> Result<RangeState, FoldError> {
        let (loglet, got, expected) = (self.segment.loglet, self.segment.tail, self.next);
        match self.state {
            Some(state) if got == expected => Ok(state),
            _ => Err(FoldError::Gap { loglet, got, expected }),
        }
    }

    /// The log starts that the checkpoint holds: a fold from it needs no record below them. None before it was whole.
    pub fn log_starts(&self) -> Arc<[(Partition, Offset)]> {
        self.log_starts.clone()
    }

    /// The state as far as entries were given, and the address after the last of them; `None` before the checkpoint was
    /// whole. No fold of the log where more follows: what can still be read of a log that is damaged further on.
    pub fn so_far(self) -> Option<(RangeState, Address)> {
        let next = self.next;
        self.state.map(|state| (state, next))
    }

    fn take_piece(&mut self, address: Address, payload: &Bytes) -> Result<(), FoldError> {
        let loglet = self.segment.loglet;
        let failed = |error| FoldError::Checkpoint { loglet, error };
        let head = checkpoint::piece_head(payload).map_err(failed)?;
        let (last, last_at) = self.last;
        if address > last_at {
            let complete = head.index + 1 == head.count;
            let newer = FoldError::NewerCheckpoint { loglet, last_piece: address };
            return if complete { Err(newer) } else { Ok(()) };
        }
        if (head.from, head.count) != (last.from, last.count) {
            return Ok(()); // of an older checkpoint, written while this one's capture was taken
        }
        if head.index == 0 {
            self.pieces.clear(); // a first attempt with the same capture was given up
        }
        self.pieces.push(payload.clone());
        if address < last_at {
            return Ok(());
        }
        let captured = checkpoint::decode(&self.pieces).map_err(failed)?;
        if captured.state.span() != self.span {
            return Err(FoldError::Span { loglet, got: captured.state.span(), expected: self.span });
        }
        self.pieces.clear();
        self.log_starts = captured.state.log_starts();
        self.state = Some(captured.state);
        for pending in std::mem::take(&mut self.pending) {
            self.take(pending)?;
        }
        Ok(())
    }

    fn take(&mut self, entry: Pending) -> Result<(), FoldError> {
        let Some(state) = self.state.as_mut() else {
            self.pending.push(entry);
            return Ok(());
        };
        let (address, applied) = match &entry {
            Pending::Records(header) => (header.address, state.apply(header)),
            Pending::LogStarts(address, starts) => (*address, state.apply_log_starts(starts)),
        };
        applied.map_err(|error| FoldError::Entry { loglet: self.segment.loglet, address, error })
    }
}

impl std::fmt::Debug for Fold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fold({} at {} of {})", self.segment.loglet, self.next, self.segment.tail)
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
