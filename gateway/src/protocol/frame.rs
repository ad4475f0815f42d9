//! Responses with stored bytes in them, encoded without touching those bytes.
//!
//! The codec writes a record field with one `put_slice`. [`Spliced`] is a buffer that knows a slice of a reserved
//! region of zeros when it is handed one, and keeps the [`Piece`]s that were registered for it instead of bytes. The
//! region is never written nor read, so it costs address space only.

use super::dispatch::{Close, Frame};
use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::buf::ByteBufMut;
use kafka_protocol::protocol::{Encodable, HeaderVersion};
use rangeway_core::api::Piece;
use std::sync::LazyLock;

/// The most stored bytes in one response: a full answer and one batch larger than it.
pub const STORED_BYTES_MAX: usize = 160 << 20;

static PLACE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; STORED_BYTES_MAX]));

/// Stored bytes on their way into a response.
#[derive(Debug, Default)]
pub struct Splices {
    /// (place in the region, length, pieces), in order of place.
    all: Vec<(usize, usize, Vec<Piece>)>,
    used: usize,
}

impl Splices {
    /// A stand-in for `pieces`, to be put into a message's record field; `None` when there is no more room.
    pub fn add(&mut self, pieces: Vec<Piece>) -> Option<Bytes> {
        let len: usize = pieces.iter().map(Piece::len).sum();
        if len == 0 {
            return Some(Bytes::new());
        }
        let end = self.used.checked_add(len).filter(|end| *end <= STORED_BYTES_MAX)?;
        let stand_in = PLACE.slice(self.used..end);
        self.all.push((self.used, len, pieces));
        self.used = end;
        Some(stand_in)
    }
}

/// Encodes a response, with the registered pieces where their stand-ins are.
pub fn encode<T: Encodable + HeaderVersion>(
    api: &'static str,
    response: &T,
    splices: Splices,
    version: i16,
    correlation: i32,
) -> Result<Frame, Close> {
    let failed = |why: String| Close::Internal { api, why };
    let mut out =
        Spliced { splices, next: 0, head: BytesMut::with_capacity(512), done: Vec::new(), done_len: 0 };
    out.put_i32(correlation);
    if T::header_version(version) >= 1 {
        out.put_u8(0);
    }
    response.encode(&mut out, version).map_err(|e| failed(e.to_string()))?;
    if out.next != out.splices.all.len() {
        return Err(failed(format!("{} of {} record fields were encoded", out.next, out.splices.all.len())));
    }
    let length = i32::try_from(out.offset()).map_err(|_| failed("it does not fit a frame".to_owned()))?;
    out.flush();
    // The prefix goes in front of the first piece, which is the response's head.
    let mut frame = Frame::with_capacity(out.done.len() + 1);
    frame.push(Piece::Memory(Bytes::copy_from_slice(&length.to_be_bytes())));
    frame.extend(out.done);
    Ok(frame)
}

struct Spliced {
    splices: Splices,
    next: usize,
    head: BytesMut,
    done: Vec<Piece>,
    done_len: usize,
}

impl Spliced {
    fn flush(&mut self) {
        if !self.head.is_empty() {
            self.done_len += self.head.len();
            self.done.push(Piece::Memory(self.head.split().freeze()));
        }
    }

    /// Takes the pieces that `bytes` stand for, if it is the next stand-in.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let Some((place, len, pieces)) = self.splices.all.get_mut(self.next) else { return false };
        if bytes.len() != *len || bytes.as_ptr() as usize != PLACE.as_ptr() as usize + *place {
            return false;
        }
        let (len, pieces) = (*len, std::mem::take(pieces));
        self.next += 1;
        self.flush();
        self.done_len += len;
        self.done.extend(pieces);
        true
    }
}

// The trait is unsafe to implement because `advance_mut` declares bytes written; that is handed on to `BytesMut`
// unchanged, and nothing else here is.
#[allow(unsafe_code, reason = "the codec asks for a BufMut, and this one only hands on to BytesMut")]
unsafe impl BufMut for Spliced {
    fn remaining_mut(&self) -> usize {
        self.head.remaining_mut()
    }

    unsafe fn advance_mut(&mut self, n: usize) {
        // SAFETY: the caller's promise about `chunk_mut` is about `head`'s chunk.
        unsafe { self.head.advance_mut(n) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.head.chunk_mut()
    }

    fn put_slice(&mut self, bytes: &[u8]) {
        if !self.take(bytes) {
            self.head.extend_from_slice(bytes);
        }
    }
}

impl ByteBufMut for Spliced {
    fn offset(&self) -> usize {
        self.done_len + self.head.len()
    }

    // Gaps are for record batches, which no response encodes; they would work within what was not spliced yet.
    fn seek(&mut self, offset: usize) {
        self.head.resize(offset.saturating_sub(self.done_len), 0);
    }

    fn range(&mut self, r: std::ops::Range<usize>) -> &mut [u8] {
        let from = r.start.saturating_sub(self.done_len);
        let to = r.end.saturating_sub(self.done_len);
        self.head.get_mut(from..to).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::FetchResponse;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};

    fn response(records: Vec<Bytes>) -> FetchResponse {
        let partitions = records
            .into_iter()
            .zip(0..)
            .map(|(r, i)| PartitionData::default().with_partition_index(i).with_records(Some(r)))
            .collect();
        FetchResponse::default()
            .with_responses(vec![FetchableTopicResponse::default().with_partitions(partitions)])
    }

    #[test]
    fn a_spliced_response_has_the_bytes_of_a_copied_one_and_shares_the_records() {
        let records: Vec<Bytes> =
            [3usize, 0, 70_000, 1].iter().map(|n| Bytes::from(vec![*n as u8; *n])).collect();
        for version in 4..=17 {
            let mut splices = Splices::default();
            let stand_ins = records
                .iter()
                .map(|r| {
                    let (a, b) = (r.slice(..r.len() / 2), r.slice(r.len() / 2..));
                    splices.add(vec![Piece::Memory(a), Piece::Memory(b)]).unwrap()
                })
                .collect();
            let spliced = encode("Fetch", &response(stand_ins), splices, version, 7).unwrap();
            let copied =
                crate::protocol::dispatch::encode("Fetch", &response(records.clone()), version, 7).unwrap();
            let flat = |frame: Frame| -> Vec<u8> {
                frame
                    .iter()
                    .flat_map(|p| match p {
                        Piece::Memory(b) => b.to_vec(),
                        Piece::File(_) => Vec::new(),
                    })
                    .collect()
            };
            let shared = spliced.iter().any(
                |p| matches!(p, Piece::Memory(b) if b.len() == 35_000 && b.as_ptr() == records[2].as_ptr()),
            );
            assert!(shared, "version {version}");
            assert_eq!(flat(spliced), flat(copied), "version {version}");
        }
    }

    #[test]
    fn no_more_than_the_region_is_promised() {
        let mut splices = Splices::default();
        let half = Bytes::from(vec![0; STORED_BYTES_MAX / 2 + 1]);
        assert!(splices.add(vec![Piece::Memory(half.clone())]).is_some());
        assert!(splices.add(vec![Piece::Memory(half)]).is_none());
    }
}
