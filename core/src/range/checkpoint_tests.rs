use super::*;
use crate::range::epochs::{EpochStart, EpochTable};
use crate::range::producers::{LastMarker, ProducerTable};
use crate::range::transactions::{AbortedSpan, Transactions};
use crate::types::{LogletId, Span};
use proptest::prelude::*;

fn batch(first_sequence: i32, records: i32, base_offset: i64, address: u64) -> RecentBatch {
    RecentBatch {
        first_sequence,
        last_sequence: first_sequence.wrapping_add(records - 1) & i32::MAX,
        base_offset,
        loglet: LogletId(9),
        address: Address(address),
        appended_at: 1_700_000_000_000 + address as i64,
    }
}

fn sample() -> Captured {
    let epochs = |starts: &[(i32, i64)]| {
        let starts: Vec<_> = starts.iter().map(|&(epoch, start)| EpochStart { epoch, start }).collect();
        EpochTable::from_starts(&starts).expect("ascending")
    };
    let partitions = [
        PartitionState {
            next: 300,
            log_start: 5,
            epochs: epochs(&[(0, 5), (2, 100)]),
            bytes: 4096,
            max_timestamp: 7,
            transactions: Transactions::default(),
        },
        PartitionState::default(),
        PartitionState {
            next: i64::MAX,
            log_start: 0,
            epochs: epochs(&[(i32::MAX, 0)]),
            bytes: 0,
            max_timestamp: -1,
            transactions: Transactions::default(),
        },
    ];
    let mut producers = ProducerTable::default();
    let mut first = Producer::new(3);
    first.record(3, batch(i32::MAX, 2, 10, 4));
    first.record(3, batch(1, 1, 12, 6));
    producers.push((4, 0), first);
    let mut second = Producer::new(0);
    second.record(0, batch(0, 1, 20, 7));
    producers.push((4, 1000), second);
    let mut third = Producer::new(i16::MAX);
    third.record(i16::MAX, batch(5, 1, i64::MAX - 1, u64::MAX));
    producers.push((6, 7), third);
    let state = RangeState::from_partitions(Span { first: 4, last: 6 }, partitions.into_iter(), producers);
    Captured { state, from: Address(8) }
}

#[test]
fn the_bytes_are_these() {
    let pieces = encode(&sample(), 1 << 20);
    let hex: String = pieces.iter().flat_map(|p| p.iter()).map(|b| format!("{b:02x}")).collect();
    let expected = concat!(
        "02000000000100000008000000000000000400000006000000",
        "ac020580200e0200050264",
        "0000000000",
        "ffffffffffffffff7f00000101ffffffff0700",
        "03",
        "00010602ffffffff070114120888a0abfef962010004000404",
        "00e8070001000028120e8ea0abfef962",
        "0208feff03010500fcffffffffffffffff011201fe9fabfef962",
        "00",
    );
    assert_eq!(hex, expected);
    assert_eq!(decode(&pieces), Ok(sample()));
}

/// The sample with an open transaction, markers and aborted transactions.
fn with_transactions() -> Captured {
    let mut captured = sample();
    let Captured { state, .. } = &mut captured;
    let marker = |number, address| LastMarker {
        number,
        coordinator_epoch: 2,
        loglet: LogletId(9),
        address: Address(address),
        appended_at: 1000,
    };
    state.producers.touch(4, 0, 3, 1000).end(3, marker(300, 8));
    state.producers.touch(4, 0, 3, 1000).begin(12);
    state.producers.touch(4, 2, 1, 1000).end(1, marker(0, 9));
    let first = state.partition_mut(4).expect("in the span");
    for (producer_id, first_offset, last) in [(0, 5, 20), (2, 1, 21), (0, 22, 299)] {
        first.transactions.abort(AbortedSpan { producer_id, first: first_offset, last });
    }
    first.transactions.begin(12, 0);
    let last = state.partition_mut(6).expect("in the span");
    last.transactions.abort(AbortedSpan { producer_id: i64::MAX, first: 0, last: i64::MAX - 1 });
    captured
}

#[test]
fn the_bytes_of_transactions_are_these() {
    let pieces = encode(&with_transactions(), 1 << 20);
    let hex: String = pieces.iter().flat_map(|p| p.iter()).map(|b| format!("{b:02x}")).collect();
    let expected = concat!(
        "02000000000100000008000000000000000400000006000000",
        "ac020580200e0200050264",
        "0000000000",
        "ffffffffffffffff7f00000101ffffffff0700",
        "04",
        "0001061affffffff070114120888a0abfef962010004000404",
        "0cac02040908d00f",
        "000202100004 0909d00f",
        "00e6070001000028120e8ea0abfef962",
        "0208feff03010500fcffffffffffffffff011201fe9fabfef962",
        "02",
        "000314 0f 00 01 14 04 9602 9502 03",
        "0201feffffffffffffff7ffeffffffffffffff7ffeffffffffffffffff01",
    )
    .replace(' ', "");
    assert_eq!(hex, expected);
    assert_eq!(decode(&pieces), Ok(with_transactions()));
}

#[test]
fn checkpoints_without_transactions_are_read() {
    let mut old = encode(&sample(), 1 << 20)[0].to_vec();
    assert_eq!(old.pop(), Some(0), "no partition with aborted transactions");
    old[0] = 1;
    assert_eq!(decode(&[Bytes::from(old.clone())]), Ok(sample()));
    old.push(0);
    assert_eq!(decode(&[Bytes::from(old)]), Err(CheckpointError::Impossible("bytes after the end")));
    let mut mixed = encode(&sample(), 64);
    mixed[1] = Bytes::from([&[1], &mixed[1][1..]].concat());
    assert_eq!(decode(&mixed), Err(CheckpointError::Impossible("mixture of versions")));
}

#[test]
fn pieces_must_be_all_and_in_order() {
    let pieces = encode(&sample(), 64);
    assert!(pieces.len() >= 3, "{}", pieces.len());
    assert!(pieces.iter().all(|p| p.len() <= 64));
    assert_eq!(decode(&pieces), Ok(sample()));
    let flags: Vec<u8> = pieces.iter().map(|p| piece_head(p).expect("a piece").flags()).collect();
    assert_eq!(flags.first(), Some(&CHECKPOINT_FIRST));
    assert_eq!(flags.last(), Some(&CHECKPOINT_LAST));
    assert!(matches!(decode(&pieces[1..]), Err(CheckpointError::Pieces { .. })));
    assert!(matches!(decode(&pieces[..1]), Err(CheckpointError::Pieces { .. })));
    let mut swapped = pieces.clone();
    swapped.swap(0, 1);
    assert!(matches!(decode(&swapped), Err(CheckpointError::Pieces { .. })));
    let other = encode(&Captured { from: Address(9), ..sample() }, 64);
    swapped = pieces.clone();
    swapped[1] = other[1].clone();
    assert!(matches!(decode(&swapped), Err(CheckpointError::Pieces { .. })));
    assert_eq!(decode(&[]), Err(CheckpointError::Short));
    assert_eq!(piece_head(&[9]), Err(CheckpointError::Version(9)));
}

#[test]
fn a_span_that_lies_allocates_nothing() {
    let mut bytes =
        encode(&Captured { state: RangeState::new(Span { first: 0, last: 0 }), from: Address(0) }, 64)[0]
            .to_vec();
    bytes[PIECE_HEAD_LEN + 4..PIECE_HEAD_LEN + 8].copy_from_slice(&i32::MAX.to_le_bytes());
    assert_eq!(decode(&[Bytes::from(bytes)]), Err(CheckpointError::Impossible("span")));
}

#[test]
fn a_checkpoint_is_due_after_the_floor_or_sixteen_times_the_last_one() {
    assert!(!due(63, 0, 64));
    assert!(due(64, 4, 64));
    assert!(!due(79, 5, 64));
    assert!(due(80, 5, 64));
}

#[test]
fn ten_thousand_idle_partitions_take_seventy_kilobytes() {
    let mut state = RangeState::new(Span { first: 0, last: 9_999 });
    state.set_epoch(Span { first: 0, last: 9_999 }, 1);
    let bytes: usize = encode(&state.capture(Address(0)), 1 << 20).iter().map(Bytes::len).sum();
    assert!(bytes <= 70_100, "{bytes}");
}

proptest! {
    #[test]
    fn a_changed_byte_is_an_error_or_another_valid_state(at in 0usize..200, to in any::<u8>(), max in 64usize..200) {
        let mut pieces = encode(&with_transactions(), max);
        let piece = at % pieces.len();
        let mut bytes = pieces[piece].to_vec();
        let place = at % bytes.len();
        bytes[place] = to;
        pieces[piece] = Bytes::from(bytes);
        if let Ok(captured) = decode(&pieces) {
            prop_assert_eq!(encode(&captured, max), pieces, "one state has one encoding");
        }
    }

    #[test]
    fn hostile_bytes_never_panic(body in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..4], 0..200)) {
        for version in [1, 2] {
            let mut bytes = vec![version, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
            bytes.extend_from_slice(&body);
            let _ = decode(&[Bytes::from(bytes)]);
        }
        let _ = decode(&[Bytes::from(body)]);
    }
}

#[test]
fn ranges_with_most_unfolded_log_are_relieved_until_all_together_are_within_the_limit() {
    assert_eq!(relieve(&[(10, 1), (30, 1), (20, 1)], 60), Vec::<usize>::new());
    assert_eq!(relieve(&[(10, 1), (30, 1), (20, 1)], 59), [1]);
    assert_eq!(relieve(&[(10, 1), (30, 1), (20, 1)], 29), [1, 2]);
    assert_eq!(relieve(&[(10, 1), (30, 1), (20, 1)], 0), [1, 2, 0]);
    assert_eq!(
        relieve(&[(10, 10), (30, 40)], 5),
        Vec::<usize>::new(),
        "a checkpoint larger than its log helps nobody"
    );
    assert_eq!(relieve(&[(u64::MAX, 1), (u64::MAX, 1)], 5), [0, 1]);
}
