//! Stored batches as the pieces of an answer: few of them, which hold little more memory than their bytes.

use crate::api::Piece;
use crate::drive::{FileSlice, Payload, Stored};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Batches in memory below this size are copied together: each by itself costs more than its bytes, in memory and when
/// it is written.
const JOIN_BELOW: usize = 8 << 10;
/// Most bytes of a piece of joined batches.
const JOINED_MAX: usize = 64 << 10;

/// Pieces under construction, in order.
#[derive(Debug)]
pub(super) struct Pieces {
    all: Vec<Piece>,
    /// Small batches that are not among the pieces yet.
    joined: BytesMut,
    /// Bytes of small batches that may still come.
    small: usize,
    /// Bytes in memory.
    memory: usize,
}

impl Pieces {
    /// Room for `entries`, which are added one by one.
    pub(super) fn of(entries: &[Stored]) -> Pieces {
        let small =
            if entries.len() > 1 { entries.iter().map(|stored| small(&stored.payload)).sum() } else { 0 };
        Pieces { all: Vec::new(), joined: BytesMut::new(), small, memory: 0 }
    }

    /// Adds a batch. Slices of one file that lie back to back become one piece, and so do small batches in memory.
    pub(super) fn push(&mut self, payload: Payload) {
        match payload {
            Payload::Memory { head, body } => {
                let len = head.len() + body.len();
                self.memory += len;
                // A batch by itself is not copied.
                if len >= JOIN_BELOW || self.small <= len && self.joined.is_empty() {
                    self.flush();
                    self.all.extend([head, body].into_iter().filter(|b| !b.is_empty()).map(Piece::Memory));
                } else {
                    self.join(&head, &body);
                }
                if len < JOIN_BELOW {
                    self.small = self.small.saturating_sub(len);
                }
            }
            Payload::File(slice) => {
                self.flush();
                if let Some(Piece::File(before)) = self.all.last_mut()
                    && follows(before, &slice)
                {
                    before.len += slice.len;
                    return;
                }
                self.all.push(Piece::File(slice));
            }
        }
    }

    fn join(&mut self, head: &Bytes, body: &Bytes) {
        let len = head.len() + body.len();
        if self.joined.capacity() - self.joined.len() < len {
            self.flush();
            self.joined = BytesMut::with_capacity(self.small.min(JOINED_MAX).max(len));
        }
        self.joined.extend_from_slice(head);
        self.joined.extend_from_slice(body);
    }

    fn flush(&mut self) {
        if !self.joined.is_empty() {
            self.all.push(Piece::Memory(std::mem::take(&mut self.joined).freeze()));
        }
    }

    /// The pieces, and how many of their bytes are in memory.
    pub(super) fn finish(mut self) -> (Vec<Piece>, usize) {
        self.flush();
        (self.all, self.memory)
    }
}

/// Bytes of a batch that may be joined with others.
fn small(payload: &Payload) -> usize {
    match payload {
        Payload::Memory { .. } if payload.len() < JOIN_BELOW => payload.len(),
        _ => 0,
    }
}

fn follows(before: &FileSlice, slice: &FileSlice) -> bool {
    Arc::ptr_eq(&before.file, &slice.file)
        && before.position + u64::from(before.len) == slice.position
        && before.len.checked_add(slice.len).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::leaf::header;

    fn memory(byte: u8, len: usize) -> Stored {
        let bytes = Bytes::from(vec![byte; len]);
        let payload = Payload::Memory { head: bytes.slice(..len / 2), body: bytes.slice(len / 2..) };
        Stored { header: header(0, 0, 0, 1, 0), payload }
    }

    /// (length, first byte, last byte) of each piece, and the bytes in memory.
    fn pieces(entries: Vec<Stored>) -> (Vec<(usize, u8, u8)>, usize) {
        let mut pieces = Pieces::of(&entries);
        entries.into_iter().for_each(|stored| pieces.push(stored.payload));
        let (all, memory) = pieces.finish();
        let ends = |bytes: &[u8]| (bytes.len(), bytes[0], bytes[bytes.len() - 1]);
        let all = all.iter().map(|piece| match piece {
            Piece::Memory(bytes) => ends(bytes),
            Piece::File(slice) => (slice.len as usize, 0, 0),
        });
        (all.collect(), memory)
    }

    #[test]
    fn small_batches_become_pieces_of_at_most_64_kib() {
        let entries = (0..100).map(|n| memory(n, 1500)).collect();
        let (all, held) = pieces(entries);
        // 43 fit 65,536 bytes.
        assert_eq!(all, [(64_500, 0, 42), (64_500, 43, 85), (21_000, 86, 99)]);
        assert_eq!(held, 150_000);
    }

    #[test]
    fn a_batch_by_itself_and_a_large_one_are_not_copied() {
        assert_eq!(pieces(vec![memory(1, 1500)]), (vec![(750, 1, 1), (750, 1, 1)], 1500));
        let entries = vec![memory(1, 100), memory(2, 100), memory(3, 8192), memory(4, 100)];
        let joined = vec![(200, 1, 2), (4096, 3, 3), (4096, 3, 3), (50, 4, 4), (50, 4, 4)];
        assert_eq!(pieces(entries), (joined, 8492));
    }

    #[test]
    fn what_lies_back_to_back_in_a_file_is_one_piece_and_takes_no_memory() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let slice = |position, len| {
            let slice = FileSlice { file: file.clone(), position, len, pin: Arc::new(()) };
            Stored { header: header(0, 0, 0, 1, 0), payload: Payload::File(slice) }
        };
        let entries =
            vec![slice(0, 9000), slice(9000, 8500), memory(1, 10), slice(17_500, 8300), slice(0, 8200)];
        let all = vec![(17_500, 0, 0), (5, 1, 1), (5, 1, 1), (8300, 0, 0), (8200, 0, 0)];
        assert_eq!(pieces(entries), (all, 10));
    }
}
