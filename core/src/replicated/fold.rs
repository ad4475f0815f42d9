//! Layout of a machine's entries, and the fold of a log into a machine. Pure.
//!
//! ```text
//! control   | format 1 | version 1 | records (postcard) |          no records: a barrier
//! snapshot  | format 1 | version 1 | through 8 LE | index 4 LE | last 1 | piece of the image (postcard) |
//! ```
//! A snapshot holds every record below `through`, which is at or below the offset of its first piece: records go on
//! while it is encoded. A snapshot whose last piece is missing was given up; it counts for nothing.

use super::Machine;
use crate::api::{EntryKind, OwnEntry};
use crate::types::Offset;
use bytes::Bytes;
use std::collections::VecDeque;

const FORMAT: u8 = 1;
const CONTROL_HEAD_LEN: usize = 2;
const SNAPSHOT_HEAD_LEN: usize = 15;
/// Bytes of a snapshot in one entry.
pub(super) const SNAPSHOT_PIECE_BYTES: usize = 256 * 1024;

/// Why a log cannot be folded. Nothing is served from it until an operator has repaired it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// An offset is missing.
    #[error("offset {got} follows where {expected} was expected")]
    Gap {
        /// Offset that was read.
        got: Offset,
        /// Offset that had to come.
        expected: Offset,
    },
    /// The log starts above 0 and holds no complete snapshot that reaches down to its start.
    #[error("no complete snapshot for a log that starts at {start}")]
    SnapshotMissing {
        /// The log's start.
        start: Offset,
    },
    /// Bytes that are no entry of a machine, or one of a newer version.
    #[error("entry at offset {offset}: {what}")]
    Entry {
        /// Its offset.
        offset: Offset,
        /// What is wrong.
        what: String,
    },
}

/// Encodes the records of one event as an entry.
pub(super) fn control<M: Machine>(records: &[M::Record]) -> Result<OwnEntry, postcard::Error> {
    let payload = postcard::to_extend(records, vec![FORMAT, M::VERSION])?;
    Ok(OwnEntry { kind: EntryKind::Control, payload: payload.into() })
}

/// Encodes a snapshot as entries of at most [`SNAPSHOT_PIECE_BYTES`] plus a head.
pub(super) fn snapshot<M: Machine>(
    image: &M::Image,
    through: Offset,
) -> Result<VecDeque<OwnEntry>, postcard::Error> {
    let image = postcard::to_stdvec(image)?;
    let pieces: Vec<&[u8]> =
        if image.is_empty() { vec![&[]] } else { image.chunks(SNAPSHOT_PIECE_BYTES).collect() };
    let count = pieces.len();
    let entries = pieces.iter().enumerate().map(|(index, piece)| {
        let mut payload = Vec::with_capacity(SNAPSHOT_HEAD_LEN + piece.len());
        payload.extend([FORMAT, M::VERSION]);
        payload.extend(through.to_le_bytes());
        payload.extend((index as u32).to_le_bytes());
        payload.push(u8::from(index + 1 == count));
        payload.extend(*piece);
        OwnEntry { kind: EntryKind::Snapshot, payload: payload.into() }
    });
    Ok(entries.collect())
}

/// Gathers a log in order; memory is bounded by what lies between two snapshots.
pub(super) struct Fold {
    start: Offset,
    next: Offset,
    controls: VecDeque<(Offset, Bytes)>,
    partial: Option<Partial>,
    snapshot: Option<(Offset, Offset, Vec<u8>)>,
}

struct Partial {
    through: Offset,
    pieces: u32,
    bytes: Vec<u8>,
}

/// A folded log.
#[derive(Debug)]
pub(super) struct Folded<M> {
    pub(super) machine: M,
    /// Offset of the next entry.
    pub(super) next: Offset,
    /// Bytes of records that the newest snapshot does not hold.
    pub(super) bytes_since: usize,
    /// Length of the newest snapshot.
    pub(super) snapshot_bytes: usize,
}

impl Fold {
    pub(super) fn new(start: Offset) -> Fold {
        Fold { start, next: start, controls: VecDeque::new(), partial: None, snapshot: None }
    }

    pub(super) fn next(&self) -> Offset {
        self.next
    }

    /// Takes the entry at the next offset.
    pub(super) fn push(&mut self, offset: Offset, kind: EntryKind, payload: Bytes) -> Result<(), Damage> {
        if offset != self.next {
            return Err(Damage::Gap { got: offset, expected: self.next });
        }
        self.next = offset + 1;
        match kind {
            EntryKind::Control => self.controls.push_back((offset, payload)),
            EntryKind::Snapshot => self.push_piece(offset, &payload)?,
            other => {
                let what = format!("an entry of kind {other:?} in the log of a state machine");
                return Err(Damage::Entry { offset, what });
            }
        }
        Ok(())
    }

    fn push_piece(&mut self, offset: Offset, payload: &[u8]) -> Result<(), Damage> {
        let cut = || Damage::Entry { offset, what: "snapshot piece is cut".into() };
        let (head, piece) = payload.split_at_checked(SNAPSHOT_HEAD_LEN).ok_or_else(cut)?;
        let head: &[u8; SNAPSHOT_HEAD_LEN] = head.first_chunk().ok_or_else(cut)?;
        let [_, _, a, b, c, d, e, f, g, h, i, j, k, l, last] = *head;
        let through = Offset::from_le_bytes([a, b, c, d, e, f, g, h]);
        let index = u32::from_le_bytes([i, j, k, l]);
        let partial = match self.partial.take() {
            _ if index == 0 => Partial { through, pieces: 1, bytes: piece.to_vec() },
            Some(mut p) if p.through == through && p.pieces == index => {
                p.bytes.extend_from_slice(piece);
                p.pieces += 1;
                p
            }
            // A piece of a snapshot whose beginning was trimmed or given up.
            _ => return Ok(()),
        };
        if last == 0 {
            self.partial = Some(partial);
            return Ok(());
        }
        while self.controls.front().is_some_and(|(at, _)| *at < through) {
            self.controls.pop_front();
        }
        let versioned = [head.get(..CONTROL_HEAD_LEN).unwrap_or_default(), &partial.bytes].concat();
        self.snapshot = Some((offset, through, versioned));
        Ok(())
    }

    /// The machine after the last entry.
    pub(super) fn finish<M: Machine>(self, settings: &M::Settings) -> Result<Folded<M>, Damage> {
        let mut machine = M::new(settings);
        let mut snapshot_bytes = 0;
        match self.snapshot {
            Some((offset, through, bytes)) if through >= self.start => {
                snapshot_bytes = bytes.len();
                machine.restore(decode::<M, M::Image>(offset, &bytes)?);
            }
            None if self.start == 0 => {}
            _ => return Err(Damage::SnapshotMissing { start: self.start }),
        }
        let mut bytes_since = 0;
        for (offset, payload) in self.controls {
            bytes_since += payload.len();
            for record in decode::<M, Vec<M::Record>>(offset, &payload)? {
                machine.replay(&record);
            }
        }
        Ok(Folded { machine, next: self.next, bytes_since, snapshot_bytes })
    }
}

fn decode<M: Machine, T: serde::de::DeserializeOwned>(offset: Offset, bytes: &[u8]) -> Result<T, Damage> {
    let damage = |what: String| Damage::Entry { offset, what };
    let (head, body) = bytes.split_at_checked(CONTROL_HEAD_LEN).ok_or_else(|| damage("cut".into()))?;
    match head {
        [FORMAT, version] if (M::VERSION_OLDEST..=M::VERSION).contains(version) => {}
        other => {
            let versions = M::VERSION_OLDEST..=M::VERSION;
            return Err(damage(format!("format and version {other:?}, expected {FORMAT} and {versions:?}")));
        }
    }
    postcard::from_bytes(body).map_err(|e| damage(e.to_string()))
}
