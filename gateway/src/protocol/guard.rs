//! Stands between bytes from a peer and the codec crate's decoders, which reserve memory for whatever length an array
//! claims: five bytes could ask for 154 GB.
//!
//! Owns the rule *no decode allocates more than a small constant times the bytes that came*. Any length that is
//! larger than what remains (or than [`READS_MAX`]) is *lowered* to just above it before the decoder sees it: an array
//! then reserves little and runs out of bytes, while a string or byte field, which the decoder asks for in the very
//! next call, gets its true length back.
//!
//! - Compact lengths (flexible versions, KIP-482) are read by the crate byte by byte; the guard looks at the whole
//!   varint at its first byte and, when it must be lowered, answers the same number of bytes with another value. A tag
//!   number is lowered alike, to above [`TAG_MAX`], so it stays unknown and is skipped as it should be.
//! - Plain lengths are `i32`, as other fields are. Versions that have them are decoded twice: the first pass lowers
//!   every `i32`, so that scalars come out wrong, which nobody looks at, and arrays that lie fail. Only what was walked
//!   to its end this way is decoded with true values.
//! - Reads are counted, so that a frame of very many tiny elements, each larger in memory than on the wire, is refused.
//!
//! A boolean is a byte too. One whose high bit is set, which no client sends, is taken for the start of a varint; the
//! value seen is then larger than any length in it, so the rule holds, though the message may come out wrong.

use bytes::{Buf, Bytes};
use kafka_protocol::protocol::buf::{ByteBuf, NotEnoughBytesError};
use kafka_protocol::protocol::{Decodable, Message};

/// Tag numbers up to this are told from each other whatever remains; Kafka's own are below 16.
const TAG_MAX: usize = 256;
/// Reads per message: no array of a message may have more elements.
pub const READS_MAX: usize = 1 << 20;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A length claims more than there is, or the message is cut short.
    #[error("{0}")]
    Malformed(String),
}

/// Decodes a message of which nothing is trusted. `compact`: the version is a flexible one (KIP-482).
///
/// Bytes behind the message are ignored, as Kafka ignores them: librdkafka writes the null array of a Metadata request
/// for all topics as four bytes where flexible versions have one.
pub fn decode<M: Decodable + Message>(body: &Bytes, version: i16, compact: bool) -> Result<M, DecodeError> {
    if !compact {
        let mut buf = Guarded::new(body.clone(), Pass::Structure);
        M::decode(&mut buf, version).map_err(|e| buf.why(e))?;
    }
    let mut buf = Guarded::new(body.clone(), if compact { Pass::Compact } else { Pass::Values });
    M::decode(&mut buf, version).map_err(|e| buf.why(e))
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Pass {
    /// Flexible version: lengths are varints.
    Compact,
    /// Plain version, first time: `i32` lowered, structure walked.
    Structure,
    /// Plain version, second time: true values.
    Values,
}

/// A varint of `len` bytes of which `read` were read; `value` is what the decoder is told, `wire` what was sent.
#[derive(Copy, Clone, Debug)]
struct Varint {
    value: u64,
    wire: u64,
    read: u32,
    len: u32,
}

/// Bytes from a peer, read with suspicion. See the module.
#[derive(Debug)]
pub struct Guarded {
    bytes: Bytes,
    pass: Pass,
    reads: usize,
    /// The varint being read.
    varint: Option<Varint>,
    /// The last length when it was lowered: (as given to the decoder, as on the wire).
    lowered: Option<(u64, u64)>,
    refused: Option<String>,
}

impl Guarded {
    fn new(bytes: Bytes, pass: Pass) -> Guarded {
        Guarded { bytes, pass, reads: 0, varint: None, lowered: None, refused: None }
    }

    /// Reads what `decode` reads of a header; the rest is the body.
    pub fn header<M: Decodable>(
        bytes: Bytes,
        version: i16,
        compact: bool,
    ) -> Result<(M, Bytes), DecodeError> {
        let mut buf = Guarded::new(bytes, if compact { Pass::Compact } else { Pass::Values });
        match M::decode(&mut buf, version) {
            Ok(header) => Ok((header, buf.bytes)),
            Err(e) => Err(buf.why(e)),
        }
    }

    fn why(&self, error: impl std::fmt::Display) -> DecodeError {
        DecodeError::Malformed(self.refused.clone().unwrap_or_else(|| error.to_string().trim().to_owned()))
    }

    /// Counts a read; `false` refuses it, and everything after.
    fn admit(&mut self) -> bool {
        self.varint = None;
        self.lowered = None;
        self.count()
    }

    fn count(&mut self) -> bool {
        self.reads += 1;
        if self.reads > READS_MAX && self.refused.is_none() {
            self.refused = Some(format!("more than {READS_MAX} fields in one message"));
        }
        if self.refused.is_some() {
            // Nothing that asks before it reads gets anything any more.
            self.bytes.clear();
        }
        self.refused.is_none()
    }

    /// The most elements that what remains after `skip` bytes could hold.
    fn plausible(&self, skip: usize) -> usize {
        self.bytes.len().saturating_sub(skip).min(READS_MAX)
    }

    /// Looks at the varint that starts here; `None` when the bytes end within it.
    fn look(&mut self) -> Option<Varint> {
        let mut wire = 0;
        for (at, byte) in self.bytes.iter().take(5).enumerate() {
            wire |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                // A length is stored plus one.
                let most = self.plausible(at + 1).max(TAG_MAX) as u64 + 2;
                return Some(Varint { value: wire.min(most), wire, read: 0, len: at as u32 + 1 });
            }
        }
        if self.bytes.len() >= 5 {
            self.refused = Some("a varint of more than five bytes".to_owned());
        }
        None
    }

    /// The next byte of the varint as the decoder shall see it.
    fn follow(&mut self, byte: u8) -> u8 {
        let Some(mut varint) = self.varint.take() else { return byte };
        let more = if varint.read + 1 < varint.len { 0x80 } else { 0 };
        let seen = ((varint.value >> (7 * varint.read)) & 0x7f) as u8 | more;
        varint.read += 1;
        if more != 0 {
            self.varint = Some(varint);
        } else if varint.value != varint.wire {
            self.lowered = Some((varint.value, varint.wire));
        }
        seen
    }

    fn lower(&mut self, value: i32) -> i32 {
        let most = self.plausible(0) as i32 + 1;
        if value <= most {
            return value;
        }
        self.lowered = Some((most as u64, value as u64));
        most
    }

    /// The length on the wire for one that the decoder asks for.
    fn restore(&self, size: usize) -> usize {
        let size = size as u64;
        let wire = match self.lowered {
            // Plain lengths and the sizes of tagged fields are stored as they are, compact lengths plus one.
            Some((given, wire)) if given == size => wire,
            Some((given, wire)) if given == size + 1 => wire - 1,
            _ => size,
        };
        usize::try_from(wire).unwrap_or(usize::MAX)
    }
}

impl Buf for Guarded {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, n: usize) {
        self.admit();
        self.bytes.advance(n.min(self.bytes.len()));
    }

    fn try_get_u8(&mut self) -> Result<u8, bytes::TryGetError> {
        self.lowered = None;
        if self.pass == Pass::Compact && self.varint.is_none() {
            self.varint = self.look();
        }
        self.count();
        let byte = self.bytes.try_get_u8()?;
        Ok(self.follow(byte))
    }

    fn try_get_i32(&mut self) -> Result<i32, bytes::TryGetError> {
        self.admit();
        let value = self.bytes.try_get_i32()?;
        Ok(if self.pass == Pass::Structure { self.lower(value) } else { value })
    }
}

impl ByteBuf for Guarded {
    fn peek_bytes(&mut self, r: std::ops::Range<usize>) -> Bytes {
        if r.end > self.bytes.len() || r.start > r.end {
            return Bytes::new();
        }
        self.bytes.slice(r)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.admit();
        self.bytes.split_to(size.min(self.bytes.len()))
    }

    fn try_get_bytes(&mut self, size: usize) -> Result<Bytes, NotEnoughBytesError> {
        let size = self.restore(size);
        if !self.admit() || size > self.bytes.len() {
            return Err(NotEnoughBytesError);
        }
        Ok(self.bytes.split_to(size))
    }
}
