//! Bytes from a socket to frames, without copying a frame.
//!
//! Owns the buffer of a connection. A frame is a slice of the chunk that it was read into. Small frames share chunks,
//! which grow from 16 to 256 KiB by use. A large frame gets a chunk of just its size, so that the next one starts a
//! chunk of its own and nothing is moved; but only as far as the connection has shown that it sends such frames:
//! otherwise the chunk doubles with what came, so that a length that is only claimed costs nothing.

use crate::protocol::dispatch::Close;
use bytes::{Bytes, BytesMut};

/// Smallest chunk.
const CHUNK_MIN: usize = 16 << 10;
/// Largest chunk that small frames share.
const CHUNK_MAX: usize = 256 << 10;
/// Less free space than this is not worth a read.
const SPARE_MIN: usize = 1 << 10;
/// Length prefix of a frame.
const PREFIX: usize = 4;

/// The receiving end of a connection.
#[derive(Debug)]
pub struct Receive {
    /// What was read and not yet taken.
    buffer: BytesMut,
    chunk: usize,
    /// Largest frame that came whole lately, its prefix included.
    seen: usize,
    frame_bytes_max: usize,
}

/// A frame of which a part is here and that needs more than an ordinary chunk, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// What it claims to be long, its prefix included.
    pub whole: usize,
    /// Memory that it holds beyond an ordinary chunk.
    pub held: usize,
    /// What is not here.
    pub missing: usize,
}

impl Receive {
    /// Frames of at most `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> Receive {
        Receive { buffer: BytesMut::new(), chunk: CHUNK_MIN, seen: 0, frame_bytes_max }
    }

    /// Takes a whole frame, without its length prefix; `None` when more must come first.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, Close> {
        let Some(whole) = self.claimed()? else { return Ok(None) };
        if self.buffer.len() < whole {
            return Ok(None);
        }
        // One frame below the largest lowers what is expected by an eighth.
        self.seen = whole.max(self.seen - self.seen / 8);
        let mut frame = self.buffer.split_to(whole).freeze();
        let _prefix = frame.split_to(PREFIX);
        Ok(Some(frame))
    }

    /// Whether something is here that was not taken.
    pub fn is_begun(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Length of the frame that is coming, its prefix included, once the prefix is here.
    fn claimed(&self) -> Result<Option<usize>, Close> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let (got, most) = (i32::from_be_bytes(*prefix), self.frame_bytes_max);
        let length = usize::try_from(got).ok().filter(|n| *n <= most);
        length.map(|n| Some(n + PREFIX)).ok_or(Close::FrameSize { got, most })
    }

    /// The frame that is still coming, if it holds or needs more than an ordinary chunk.
    pub fn unfinished(&self) -> Option<Unfinished> {
        let whole = self.claimed().ok()?.unwrap_or(PREFIX);
        let (here, capacity) = (self.buffer.len(), self.buffer.capacity());
        let large = capacity > CHUNK_MAX;
        (here > 0 && (large || whole > CHUNK_MAX)).then(|| Unfinished {
            whole,
            held: if large { capacity } else { 0 },
            missing: whole.saturating_sub(here),
        })
    }

    /// Whether reading on takes more memory than there is for it.
    pub fn grows(&self) -> bool {
        self.wanted().is_ok_and(|wanted| wanted.is_some())
    }

    /// Capacity to have before reading on; `None` when what there is will do.
    fn wanted(&self) -> Result<Option<usize>, Close> {
        let (here, spare) = (self.buffer.len(), self.buffer.capacity() - self.buffer.len());
        Ok(match self.claimed()? {
            Some(whole) if whole.saturating_sub(here) <= spare => None,
            Some(whole) if whole <= self.seen.max(self.chunk) => Some(whole.max(self.chunk_for_small(whole))),
            // Filled before it grows: else each read of a few bytes would copy all of it.
            Some(_) if spare >= SPARE_MIN => None,
            Some(whole) => Some(whole.min((here * 2).max(self.chunk))),
            None if spare >= SPARE_MIN => None,
            None if self.seen > CHUNK_MIN => Some(self.seen),
            None => Some(self.chunk),
        })
    }

    /// The buffer with room to read into.
    pub fn room(&mut self) -> Result<&mut BytesMut, Close> {
        let Some(wanted) = self.wanted()? else { return Ok(&mut self.buffer) };
        // An old chunk whose frames are all gone is used again.
        if !(self.buffer.is_empty() && self.buffer.try_reclaim(wanted)) {
            let mut next = BytesMut::with_capacity(wanted);
            next.extend_from_slice(&self.buffer);
            self.buffer = next;
        }
        Ok(&mut self.buffer)
    }

    /// Small frames share a chunk; a large one has one of its own.
    fn chunk_for_small(&self, whole: usize) -> usize {
        if whole <= CHUNK_MIN { self.chunk } else { 0 }
    }

    /// Notes that a read brought `bytes`: a full buffer asks for a larger chunk, little for a smaller one.
    pub fn came(&mut self, bytes: usize) {
        if self.buffer.len() == self.buffer.capacity() && bytes >= self.chunk / 2 {
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        } else if bytes < self.chunk / 16 {
            self.chunk = (self.chunk - self.chunk / 16).max(CHUNK_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    /// Feeds `bytes` as a socket would, `step` at a time; the frames, and the largest capacity seen.
    fn feed(receive: &mut Receive, mut bytes: &[u8], step: usize) -> Result<(Vec<Bytes>, usize), Close> {
        let (mut frames, mut most) = (Vec::new(), 0);
        while !bytes.is_empty() {
            let room = receive.room()?;
            most = most.max(room.capacity());
            let n = step.min(bytes.len()).min(room.capacity() - room.len());
            assert!(n > 0, "there is always room to read into");
            room.put_slice(&bytes[..n]);
            receive.came(n);
            bytes = &bytes[n..];
            while let Some(frame) = receive.next_frame()? {
                frames.push(frame);
            }
        }
        Ok((frames, most))
    }

    fn frame(n: usize) -> Vec<u8> {
        let mut out = (n as i32).to_be_bytes().to_vec();
        out.extend((0..n).map(|i| i as u8));
        out
    }

    #[test]
    fn a_claimed_length_costs_nothing_until_it_comes() {
        let mut receive = Receive::new(100 << 20);
        let mut bytes = frame(64 << 20);
        bytes.truncate(40_000);
        let (frames, most) = feed(&mut receive, &bytes, 1000).unwrap();
        assert!(frames.is_empty());
        assert!(most <= 2 * 40_000 + CHUNK_MAX, "{most}");
        assert!(!receive.buffer.is_empty());
    }

    #[test]
    fn frames_of_one_size_are_not_moved_once_they_are_known() {
        let mut receive = Receive::new(100 << 20);
        let one = frame(300_000);
        feed(&mut receive, &one, usize::MAX).unwrap();
        for _ in 0..3 {
            let bytes: Vec<u8> = one.iter().chain(&one).copied().collect();
            let room = receive.room().unwrap();
            assert_eq!((room.len(), room.capacity()), (0, one.len()), "one frame to a chunk");
            let (frames, _) = feed(&mut receive, &bytes, usize::MAX).unwrap();
            assert_eq!(frames.len(), 2);
            assert!(receive.buffer.is_empty());
        }
    }

    #[test]
    fn lengths_out_of_bounds_are_refused_before_anything_is_reserved() {
        for length in [-1i32, i32::MIN, 1001] {
            let mut receive = Receive::new(1000);
            receive.room().unwrap().put_i32(length);
            assert!(
                matches!(receive.next_frame(), Err(Close::FrameSize { got, most: 1000 }) if got == length)
            );
        }
    }

    #[test]
    fn a_frame_that_comes_in_drops_is_not_copied_with_each() {
        let mut receive = Receive::new(100 << 20);
        let mut bytes = frame(64 << 20);
        bytes.truncate(1 << 20);
        feed(&mut receive, &bytes, 100_000).unwrap();
        let mut grown = 0;
        for _ in 0..2000 {
            grown += usize::from(receive.grows());
            receive.room().unwrap().put_u8(7);
            receive.came(1);
        }
        assert!(grown <= 1, "{grown} times");
        let frame = receive.unfinished().unwrap();
        assert_eq!(frame.whole - frame.missing, (1 << 20) + 2000);
        assert!(frame.held >= 1 << 20);
    }

    proptest::proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(sizes in proptest::collection::vec(0usize..70_000, 1..12), step in 1usize..50_000) {
            let mut receive = Receive::new(100 << 20);
            let bytes: Vec<u8> = sizes.iter().flat_map(|n| frame(*n)).collect();
            let (frames, most) = feed(&mut receive, &bytes, step).unwrap();
            let got: Vec<usize> = frames.iter().map(Bytes::len).collect();
            proptest::prop_assert_eq!(got, sizes);
            for f in frames {
                proptest::prop_assert!(f.iter().enumerate().all(|(i, b)| *b == i as u8));
            }
            proptest::prop_assert!(most <= CHUNK_MAX);
        }
    }
}
