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

    /// Length of the frame that is coming, its prefix included, once the prefix is here.
    fn claimed(&self) -> Result<Option<usize>, Close> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let (got, most) = (i32::from_be_bytes(*prefix), self.frame_bytes_max);
        let length = usize::try_from(got).ok().filter(|n| *n <= most);
        length.map(|n| Some(n + PREFIX)).ok_or(Close::FrameSize { got, most })
    }

    /// Whether a part of a frame is here.
    pub fn within_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Bytes that a frame which is still coming holds beyond an ordinary chunk.
    pub fn held(&self) -> usize {
        if self.buffer.is_empty() || self.buffer.capacity() <= CHUNK_MAX { 0 } else { self.buffer.capacity() }
    }

    /// The buffer with room to read into.
    pub fn room(&mut self) -> Result<&mut BytesMut, Close> {
        let claimed = self.claimed()?;
        let spare = self.buffer.capacity() - self.buffer.len();
        let wanted = match claimed {
            Some(whole) if whole - self.buffer.len() <= spare => return Ok(&mut self.buffer),
            Some(whole) if whole <= self.seen.max(self.chunk) => whole.max(self.chunk_for_small(whole)),
            Some(whole) => whole.min((self.buffer.len() * 2).max(self.chunk)),
            None if spare >= SPARE_MIN => return Ok(&mut self.buffer),
            None if self.seen > CHUNK_MIN => self.seen,
            None => self.chunk,
        };
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
        assert!(receive.within_frame());
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
            assert!(!receive.within_frame());
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
