//! A cursor's text: base64url of its bytes and a MAC over them. Owns the layout (docs/formats-range.md) and the keys;
//! believes no byte that is not signed, and of signed ones only what has a right shape.

use super::{Cursor, Hint, Place, Places, Position, Scope, Spot};
use crate::types::{Address, LogletId, Partition, RangeId, Span, TopicId};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use smallvec::SmallVec;
use uuid::Uuid;

const VERSION: u8 = 1;
const SCOPE_PARTITIONS: u8 = 1;
const SCOPE_TOPIC: u8 = 2;
/// Version, key, scope, topic, count.
const HEAD_LEN: usize = 1 + 1 + 1 + 16 + 2;
const PLAIN_LEN: usize = 4 + 8 + 1;
const HINT_LEN: usize = 4 + 8 + 8;
/// First partition of a topic scope.
const SCOPE_LEN: usize = 4;
const PLACE_LEN: usize = 4 + 4 + 8;
/// A truncated HMAC-SHA-256: 128 bits.
const TAG_LEN: usize = 16;
const HINTED: u8 = 1;

const _: () = assert!(
    SCOPE_LEN + POSITIONS_MAX * PLACE_LEN <= POSITIONS_MAX * (PLAIN_LEN + HINT_LEN),
    "no scope is longer than positions with hints"
);

/// Most positions, or places, in one cursor.
pub const POSITIONS_MAX: usize = 10_000;
/// Longest cursor in its text form, in bytes.
pub const TEXT_BYTES_MAX: usize =
    (HEAD_LEN + POSITIONS_MAX * (PLAIN_LEN + HINT_LEN) + TAG_LEN).div_ceil(3) * 4;

/// A key under which cursors are signed.
#[derive(Clone)]
pub struct CursorKey {
    /// Which key; written in the cursor.
    pub id: u8,
    /// Secret, random.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for CursorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CursorKey({})", self.id)
    }
}

/// The keys that are in use: the first signs, all are accepted.
#[derive(Clone, Debug)]
pub struct CursorKeys {
    signing: CursorKey,
    older: Vec<CursorKey>,
}

/// Why a text is no cursor of ours; each is final for that text.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Longer than any cursor.
    #[error("cursor of {got} bytes, at most {TEXT_BYTES_MAX}")]
    TooLong {
        /// Length of the text.
        got: usize,
    },
    /// Not base64url without padding.
    #[error("cursor is not base64url text")]
    Text,
    /// Not written by this or an older version.
    #[error("unknown cursor version {0}, expected {VERSION}")]
    Version(u8),
    /// Signed with a key that is not, or no longer, in use.
    #[error("cursor signed with key {0}, which is not in use")]
    UnknownKey(u8),
    /// Changed since it was signed, or cut.
    #[error("cursor is not authentic")]
    NotAuthentic,
    /// Signed by us and not understood: made for another purpose.
    #[error("cursor has another scope or shape")]
    Shape,
}

/// Why a cursor cannot be written; final, the caller splits it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cursor of {got} positions, at most {POSITIONS_MAX}")]
pub struct TooManyPositions {
    /// How many there are.
    pub got: usize,
}

impl CursorKeys {
    /// Keys: one to sign with, and older ones still accepted.
    pub fn new(signing: CursorKey, older: Vec<CursorKey>) -> CursorKeys {
        CursorKeys { signing, older }
    }

    /// The opaque text of a cursor: base64url, no padding.
    ///
    /// Errors: more than [`POSITIONS_MAX`] positions.
    pub fn encode(&self, cursor: &Cursor) -> Result<String, TooManyPositions> {
        let (scope, got) = match &cursor.scope {
            Scope::Partitions(positions) => (SCOPE_PARTITIONS, positions.len()),
            Scope::Topic(places) => (SCOPE_TOPIC, places.as_slice().len()),
        };
        let count =
            u16::try_from(got).ok().filter(|_| got <= POSITIONS_MAX).ok_or(TooManyPositions { got })?;
        let mut b = Vec::with_capacity(HEAD_LEN + SCOPE_LEN + got * (PLAIN_LEN + HINT_LEN) + TAG_LEN);
        b.extend_from_slice(&[VERSION, self.signing.id, scope]);
        b.extend_from_slice(cursor.topic.0.as_bytes());
        b.extend_from_slice(&count.to_le_bytes());
        match &cursor.scope {
            Scope::Partitions(positions) => positions.iter().for_each(|p| put_position(&mut b, p)),
            Scope::Topic(places) => put_places(&mut b, places),
        }
        let tag = mac(&self.signing, &b).finalize().into_bytes();
        b.extend_from_slice(tag.first_chunk::<TAG_LEN>().map_or(&[], |t| t));
        Ok(URL_SAFE_NO_PAD.encode(b))
    }

    /// Reads a cursor's text.
    ///
    /// Errors: final for that text; memory stays within a small multiple of its length.
    pub fn decode(&self, text: &str) -> Result<Cursor, CursorError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CursorError::TooLong { got: text.len() });
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError::Text)?;
        let &[version, key, ..] = bytes.as_slice() else {
            return Err(CursorError::NotAuthentic);
        };
        if version != VERSION {
            return Err(CursorError::Version(version));
        }
        let key = self.key(key).ok_or(CursorError::UnknownKey(key))?;
        let (signed, tag) = bytes.split_last_chunk::<TAG_LEN>().ok_or(CursorError::NotAuthentic)?;
        mac(key, signed).verify_truncated_left(tag).map_err(|_| CursorError::NotAuthentic)?;
        decode_signed(signed).ok_or(CursorError::Shape)
    }

    fn key(&self, id: u8) -> Option<&CursorKey> {
        std::iter::once(&self.signing).chain(&self.older).find(|key| key.id == id)
    }
}

fn mac(key: &CursorKey, bytes: &[u8]) -> Hmac<Sha256> {
    let mut padded = sha2::digest::generic_array::GenericArray::default();
    padded[..key.secret.len()].copy_from_slice(&key.secret);
    <Hmac<Sha256> as sha2::digest::KeyInit>::new(&padded).chain_update(bytes)
}

fn put_position(b: &mut Vec<u8>, position: &Position) {
    b.extend_from_slice(&position.partition.to_le_bytes());
    b.extend_from_slice(&position.offset.to_le_bytes());
    b.push(if position.hint.is_some() { HINTED } else { 0 });
    if let Some(hint) = position.hint {
        b.extend_from_slice(&hint.range.0.to_le_bytes());
        b.extend_from_slice(&hint.loglet.0.to_le_bytes());
        b.extend_from_slice(&hint.address.0.to_le_bytes());
    }
}

/// Only the last partition of each span is written: it begins where the one before ends.
fn put_places(b: &mut Vec<u8>, places: &Places) {
    assert!(places.tile(), "spans that do not tile the scope would be read as others");
    b.extend_from_slice(&places.scope().first.to_le_bytes());
    for place in places.as_slice() {
        b.extend_from_slice(&place.span.last.to_le_bytes());
        b.extend_from_slice(&place.spot.range.0.to_le_bytes());
        b.extend_from_slice(&place.spot.address.to_le_bytes());
    }
}

/// The cursor in bytes that are authentic; `None` where they have another scope or shape.
fn decode_signed(bytes: &[u8]) -> Option<Cursor> {
    let mut input = bytes;
    let [_version, _key, scope] = take(&mut input)?;
    let topic = TopicId(Uuid::from_bytes(take(&mut input)?));
    let count = usize::from(u16::from_le_bytes(take(&mut input)?));
    let scope = match scope {
        _ if count > POSITIONS_MAX => return None,
        SCOPE_PARTITIONS => Scope::Partitions(take_positions(&mut input, count)?),
        SCOPE_TOPIC => Scope::Topic(take_places(&mut input, count)?),
        _ => return None,
    };
    input.is_empty().then_some(Cursor { topic, scope })
}

fn take_positions(input: &mut &[u8], count: usize) -> Option<SmallVec<[Position; 1]>> {
    if count > input.len() / PLAIN_LEN {
        return None;
    }
    let mut positions = SmallVec::with_capacity(count);
    for _ in 0..count {
        positions.push(take_position(input)?);
    }
    Some(positions)
}

fn take_places(input: &mut &[u8], count: usize) -> Option<Places> {
    let mut first: Option<Partition> = Some(i32::from_le_bytes(take(input)?));
    if count > input.len() / PLACE_LEN {
        return None;
    }
    let mut places = Vec::with_capacity(count);
    for _ in 0..count {
        let span = Span { first: first?, last: i32::from_le_bytes(take(input)?) };
        let range = RangeId(u32::from_le_bytes(take(input)?));
        let address = u64::from_le_bytes(take(input)?);
        places.push(Place { span, spot: Spot { range, address } });
        first = span.last.checked_add(1);
    }
    let places = Places::new(places)?;
    // One text of a cursor: neighbours at one spot are written as one.
    (places.as_slice().len() == count).then_some(places)
}

fn take_position(input: &mut &[u8]) -> Option<Position> {
    let partition = i32::from_le_bytes(take(input)?);
    let offset = i64::from_le_bytes(take(input)?);
    let hint = match take(input)? {
        [0] => None,
        [HINTED] => Some(Hint {
            range: RangeId(u32::from_le_bytes(take(input)?)),
            loglet: LogletId(u64::from_le_bytes(take(input)?)),
            address: Address(u64::from_le_bytes(take(input)?)),
        }),
        _ => return None,
    };
    Some(Position { partition, offset, hint })
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(id: u8) -> CursorKey {
        CursorKey { id, secret: [id; 32] }
    }

    fn keys() -> CursorKeys {
        CursorKeys::new(key(2), vec![key(1)])
    }

    fn sample() -> Cursor {
        let hint = Hint { range: RangeId(3), loglet: LogletId(0x0102), address: Address(9) };
        Cursor {
            topic: TopicId(Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff)),
            scope: Scope::Partitions(SmallVec::from_slice(&[
                Position { partition: 7, offset: 42, hint: Some(hint) },
                Position { partition: 8, offset: 0, hint: None },
            ])),
        }
    }

    fn place(first: Partition, last: Partition, range: u32, address: u64) -> Place {
        Place { span: Span { first, last }, spot: Spot { range: RangeId(range), address } }
    }

    fn sample_of_a_topic() -> Cursor {
        let places = vec![place(0, 6, 3, 0x0102), place(7, 7, 4, 9), place(8, 15, 3, 0x0102)];
        Cursor { topic: sample().topic, scope: Scope::Topic(Places::new(places).expect("they tile")) }
    }

    fn any_places() -> impl Strategy<Value = Places> {
        let place = (1..5i32, 0..3u32, 0..3u64);
        (0..1000i32, prop::collection::vec(place, 1..6)).prop_map(|(first, pieces)| {
            let mut next = first;
            let places = pieces.into_iter().map(|(count, range, address)| {
                let span = Span { first: next, last: next + count - 1 };
                next += count;
                Place { span, spot: Spot { range: RangeId(range), address } }
            });
            Places::new(places.collect()).expect("they tile")
        })
    }

    fn any_cursor() -> impl Strategy<Value = Cursor> {
        let hint = (any::<u32>(), any::<u64>(), any::<u64>());
        let position =
            (any::<i32>(), any::<i64>(), prop::option::of(hint)).prop_map(|(partition, offset, hint)| {
                let hint = hint.map(|(r, l, a)| Hint {
                    range: RangeId(r),
                    loglet: LogletId(l),
                    address: Address(a),
                });
                Position { partition, offset, hint }
            });
        let positions =
            prop::collection::vec(position, 0..6).prop_map(|p| Scope::Partitions(SmallVec::from_vec(p)));
        let scope = prop_oneof![positions, any_places().prop_map(Scope::Topic)];
        (any::<u128>(), scope)
            .prop_map(|(topic, scope)| Cursor { topic: TopicId(Uuid::from_u128(topic)), scope })
    }

    #[test]
    fn the_text_is_this() {
        let text = keys().encode(&sample()).expect("two positions");
        assert_eq!(
            text,
            "AQIBABEiM0RVZneImaq7zN3u_wIABwAAACoAAAAAAAAAAQMAAAACAQAAAAAAAAkAAAAAAAAACAAAAAAAAAAAAAAAAOtGWTsuvGXB75GRoK3ZyCY"
        );
        assert_eq!(keys().decode(&text), Ok(sample()));
        let text = keys().encode(&sample_of_a_topic()).expect("three places");
        assert_eq!(
            text,
            "AQICABEiM0RVZneImaq7zN3u_wMAAAAAAAYAAAADAAAAAgEAAAAAAAAHAAAABAAAAAkAAAAAAAAADwAAAAMAAAACAQAAAAAAACNBRl6AKV-Z539YLpSg7zk"
        );
        assert_eq!(keys().decode(&text), Ok(sample_of_a_topic()));
    }

    #[test]
    fn the_tag_is_hmac_sha_256() {
        // RFC 4231, test case 2, has a short key; padding with zeros to the block is what HMAC does with it.
        let mut secret = [0u8; 32];
        secret[..4].copy_from_slice(b"Jefe");
        let tag = mac(&CursorKey { id: 0, secret }, b"what do ya want for nothing?").finalize().into_bytes();
        assert_eq!(tag[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn an_older_key_is_accepted_and_an_unknown_one_named() {
        let old = CursorKeys::new(key(1), Vec::new()).encode(&sample()).expect("two positions");
        assert_eq!(keys().decode(&old), Ok(sample()));
        let foreign = CursorKeys::new(key(9), Vec::new()).encode(&sample()).expect("two positions");
        assert_eq!(keys().decode(&foreign), Err(CursorError::UnknownKey(9)));
        let forged = CursorKeys::new(CursorKey { id: 2, secret: [0; 32] }, Vec::new());
        let forged = forged.encode(&sample()).expect("two positions");
        assert_eq!(keys().decode(&forged), Err(CursorError::NotAuthentic));
    }

    #[test]
    fn wrong_texts_are_named() {
        assert_eq!(keys().decode("*"), Err(CursorError::Text));
        assert_eq!(keys().decode(""), Err(CursorError::NotAuthentic));
        assert_eq!(keys().decode("AQ"), Err(CursorError::NotAuthentic));
        assert_eq!(keys().decode("AgIB"), Err(CursorError::Version(2)));
        let long = "A".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(keys().decode(&long), Err(CursorError::TooLong { got: long.len() }));
    }

    #[test]
    fn the_longest_cursor_can_be_read_and_a_longer_one_is_refused() {
        let hint = Hint { range: RangeId(3), loglet: LogletId(0x0102), address: Address(9) };
        let position = Position { partition: 7, offset: 42, hint: Some(hint) };
        let positions = |n| Scope::Partitions(SmallVec::from_elem(position, n));
        let places = |n: usize| {
            let places = (0..n as i32).map(|i| place(i, i, i as u32, 0)).collect();
            Scope::Topic(Places::new(places).expect("they tile"))
        };
        for scope in [positions(POSITIONS_MAX), places(POSITIONS_MAX)] {
            let cursor = Cursor { scope, ..sample() };
            let text = keys().encode(&cursor).expect("as many as there may be");
            assert!(text.len() <= TEXT_BYTES_MAX);
            assert_eq!(keys().decode(&text), Ok(cursor));
        }
        for scope in [positions(POSITIONS_MAX + 1), places(POSITIONS_MAX + 1)] {
            let refused = keys().encode(&Cursor { scope, ..sample() });
            assert_eq!(refused, Err(TooManyPositions { got: POSITIONS_MAX + 1 }));
        }
    }

    #[test]
    fn a_signed_text_of_another_scope_or_shape_is_an_error() {
        let signed = |bytes: &[u8]| {
            let mut b = bytes.to_vec();
            b.extend_from_slice(&mac(&key(2), bytes).finalize().into_bytes()[..TAG_LEN]);
            URL_SAFE_NO_PAD.encode(b)
        };
        let mut head = vec![1, 2, 3];
        head.extend_from_slice(&[0; 18]);
        assert_eq!(keys().decode(&signed(&head)), Err(CursorError::Shape), "another scope");
        head[2] = 1;
        assert!(keys().decode(&signed(&head)).is_ok(), "no positions");
        head.push(0);
        assert_eq!(keys().decode(&signed(&head)), Err(CursorError::Shape), "bytes after the end");
        head.pop();
        head[19..21].copy_from_slice(&[255, 255]);
        assert_eq!(keys().decode(&signed(&head)), Err(CursorError::Shape), "a count that lies");
        assert_eq!(keys().decode(&signed(&[1, 2])), Err(CursorError::Shape));
    }

    #[test]
    fn a_signed_text_whose_spans_do_not_tile_is_an_error() {
        let read = |first: i32, lasts: &[(i32, u32)]| {
            let mut b = vec![1, 2, SCOPE_TOPIC];
            b.extend_from_slice(&[0; 16]);
            b.extend_from_slice(&(lasts.len() as u16).to_le_bytes());
            b.extend_from_slice(&first.to_le_bytes());
            for (last, range) in lasts {
                b.extend_from_slice(&last.to_le_bytes());
                b.extend_from_slice(&range.to_le_bytes());
                b.extend_from_slice(&7u64.to_le_bytes());
            }
            decode_signed(&b)
        };
        let places = Places::new(vec![place(0, 3, 1, 7), place(4, 4, 2, 7)]).expect("they tile");
        let cursor = Cursor { topic: TopicId(Uuid::nil()), scope: Scope::Topic(places) };
        assert_eq!(read(0, &[(3, 1), (4, 2)]), Some(cursor));
        assert_eq!(read(0, &[]), None, "no span");
        assert_eq!(read(0, &[(3, 1), (3, 2)]), None, "an empty span");
        assert_eq!(read(0, &[(3, 1), (2, 2)]), None, "a span backward");
        assert_eq!(read(-1, &[(3, 1)]), None, "no such partition");
        assert_eq!(read(0, &[(i32::MAX, 1), (0, 2)]), None, "after the last partition there is");
        assert_eq!(read(0, &[(3, 1), (4, 1)]), None, "not in its one form");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(cursor in any_cursor()) {
            let text = keys().encode(&cursor).expect("few positions");
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(keys().decode(&text), Ok(cursor));
        }

        #[test]
        fn a_changed_byte_is_an_error(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let text = keys().encode(&sample()).expect("two positions");
            let mut bytes = URL_SAFE_NO_PAD.decode(text).expect("our own text");
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(keys().decode(&URL_SAFE_NO_PAD.encode(bytes)).is_err());
        }

        #[test]
        fn hostile_texts_never_panic(text in ".{0,120}", bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            prop_assert!(keys().decode(&text).is_err());
            prop_assert!(keys().decode(&URL_SAFE_NO_PAD.encode(&bytes)).is_err());
            let _ = decode_signed(&bytes);
        }
    }
}
