//! Entry points for fuzzing, one per target of `core/fuzz`; compiled for tests and fuzzing only. Each panics when a
//! decoder does, or when what it read breaks a rule that every reader relies on.

use crate::cursor::{Cursor, CursorKey, CursorKeys, Hint, Place, Places, Position, Scope, Spot};
use crate::drive::spec::DriveExpr;
use crate::range::{checkpoint, log_start};
use crate::types::{Address, LogletId, RangeId, Span, TopicId};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

pub use crate::control::fuzz::rows;
pub use crate::store::fuzz::{directory, journal};

/// Control entries: checkpoint pieces, log starts, rows of the control store, drive expressions. The first byte says
/// which.
pub fn control(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind % 5 {
        0 => one_checkpoint(rest),
        1 => checkpoint_pieces(rest),
        2 => log_starts(rest),
        3 => rows(rest),
        _ => expression(rest),
    }
}

/// A whole checkpoint in one piece: what is read is written as the same bytes.
fn one_checkpoint(body: &[u8]) {
    let mut piece = vec![2, 0, 0, 0, 0, 1, 0, 0, 0];
    piece.extend_from_slice(body);
    let piece = Bytes::from(piece);
    if let Ok(captured) = checkpoint::decode(std::slice::from_ref(&piece)) {
        let again = checkpoint::encode(&captured, piece.len().max(64));
        assert_eq!(again, [piece], "one encoding of a state");
    }
}

fn checkpoint_pieces(data: &[u8]) {
    let mut pieces = Vec::new();
    let mut rest = data;
    while let Some((&len, after)) = rest.split_first() {
        let (piece, after) = after.split_at(usize::from(len).min(after.len()));
        let _head = checkpoint::piece_head(piece);
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    let _state = checkpoint::decode(&pieces);
}

fn log_starts(bytes: &[u8]) {
    if let Ok(starts) = log_start::decode(bytes) {
        assert_eq!(log_start::encode(&starts), bytes, "one encoding of log starts");
    }
}

/// What an operator may type.
fn expression(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(expression) = text.parse::<DriveExpr>() {
        assert_eq!(expression.to_string().parse(), Ok(expression), "an expression is read as it is shown");
    }
}

/// Cursors: as text, as signed bytes, and a cursor that is written, changed and read.
pub fn cursor(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    let key = CursorKey { id: 3, secret: [5; 32] };
    let keys = CursorKeys::new(key.clone(), Vec::new());
    match kind % 5 {
        0 => {
            // Under a key that signs nothing here: a fuzzer learns every text that it sees compared.
            let other = CursorKeys::new(CursorKey { id: 3, secret: [6; 32] }, Vec::new());
            if let Ok(text) = std::str::from_utf8(rest) {
                assert!(other.decode(text).is_err(), "nobody guesses a signature");
            }
        }
        1 => signed(&keys, &key, 1, rest),
        2 => signed(&keys, &key, 2, rest),
        3 => changed(&keys, rest, positions(rest)),
        _ => changed(&keys, rest, places(rest)),
    }
}

fn signed(keys: &CursorKeys, key: &CursorKey, scope: u8, body: &[u8]) {
    let mut bytes = vec![1, key.id, scope];
    bytes.extend_from_slice(body);
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&key.secret).expect("any length is a key");
    mac.update(&bytes);
    bytes.extend_from_slice(&mac.finalize().into_bytes()[..16]);
    let text = URL_SAFE_NO_PAD.encode(bytes);
    if let Ok(cursor) = keys.decode(&text) {
        assert_eq!(keys.encode(&cursor), Ok(text), "one text of a cursor");
    }
}

fn number(data: &[u8], at: usize) -> u64 {
    u64::from(data.get(at).copied().unwrap_or_default())
}

fn positions(data: &[u8]) -> Scope {
    let hint =
        |n: u64| Hint { range: RangeId(n as u32), loglet: LogletId(n << 40), address: Address(n << 50) };
    let positions = (0..number(data, 0) % 5).map(|i| Position {
        partition: i as i32,
        offset: number(data, 1) as i64 - 1,
        hint: (number(data, 2) & (1 << i) != 0).then(|| hint(i)),
    });
    Scope::Partitions(positions.collect())
}

fn places(data: &[u8]) -> Scope {
    let place = |i: u64| Place {
        span: Span { first: i as i32, last: i as i32 },
        spot: Spot { range: RangeId(number(data, 1) as u32 >> i), address: number(data, 2) >> i },
    };
    Scope::Topic(Places::new((0..1 + number(data, 0) % 5).map(place).collect()).expect("they tile"))
}

fn changed(keys: &CursorKeys, data: &[u8], scope: Scope) {
    let cursor = Cursor { topic: TopicId(Uuid::from_u128(number(data, 3).into())), scope };
    let text = keys.encode(&cursor).expect("few positions");
    assert_eq!(keys.decode(&text), Ok(cursor), "read as it was written");
    let mut bytes = text.clone().into_bytes();
    // Fewer than it takes to write the signature of another cursor.
    for change in data.get(4..).unwrap_or_default().as_chunks::<2>().0.iter().take(8) {
        let at = usize::from(change[0]) % bytes.len();
        bytes[at] = change[1];
    }
    if let Ok(other) = String::from_utf8(bytes)
        && other != text
    {
        assert!(keys.decode(&other).is_err(), "a changed cursor is noticed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::smoke;

    #[test]
    fn any_bytes_of_control_entries_are_read_without_panic() {
        smoke(8000, 400, control);
    }

    #[test]
    fn any_text_of_a_cursor_is_read_without_panic_and_no_change_goes_unnoticed() {
        smoke(8000, 200, cursor);
    }
}
