use super::*;
use crate::codec::entry::CHECKPOINT_LAST;
use crate::range::sim::{Live, Op, SPAN, ops};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_fold_is_the_live_state_whatever_happened(ops in ops(160)) {
        let mut live = Live::run(&ops);
        live.step(&Op::Roll { new_epoch: false }); // compares
        live.step(&Op::Crash { cut: 0 });
    }
}

fn segment(loglet: u64, tail: u64) -> SealedSegment {
    SealedSegment { loglet: LogletId(loglet), tail: Address(tail) }
}

#[test]
fn the_walk_skips_empty_segments_and_ends_at_parents_or_blank() {
    let sealed = vec![segment(1, 5), segment(2, 0), segment(3, 2), segment(4, 0)];
    let mut log = LogSummary { begins_at: 0, sealed, parents: vec![RangeId(1), RangeId(2)] };
    let at = |log: &LogSummary, before| match next_to_read(log, before) {
        Step::Segment { index, segment } => (index, segment.loglet.0),
        other => panic!("{other:?}"),
    };
    assert_eq!(at(&log, 4), (2, 3));
    assert_eq!(at(&log, 2), (0, 1));
    assert_eq!(next_to_read(&log, 0), Step::Parents(vec![RangeId(1), RangeId(2)]));
    log.parents.clear();
    assert_eq!(next_to_read(&log, 0), Step::Blank);
    log.begins_at = 10;
    assert_eq!(next_to_read(&log, 0), Step::Lost, "never number afresh what older segments have numbered");
    let empty = LogSummary { begins_at: 0, sealed: Vec::new(), parents: Vec::new() };
    assert_eq!(next_to_read(&empty, 0), Step::Blank);
}

/// A segment with two checkpoints, a batch before and behind the second, and its last pieces' addresses.
fn two_checkpoints() -> (Vec<(EntryHeader, Bytes)>, Vec<usize>) {
    let send = Op::Send {
        partition: 3,
        producer: 1,
        epoch_step: 0,
        sequence_step: 0,
        records: 1,
        transactional: false,
    };
    let checkpoint = Op::Checkpoint { expire_last_ms: 1000, keep_max: 9, piece_bytes: 1 << 16 };
    let mut live = Live::run(&[send.clone(), checkpoint, send.clone(), Op::Piece, send]);
    let entries = live.chain.pop().expect("one segment").entries;
    let is_last =
        |e: &(EntryHeader, Bytes)| e.0.kind == EntryKind::Checkpoint && e.0.flags & CHECKPOINT_LAST != 0;
    let lasts = (0..entries.len()).filter(|at| is_last(&entries[*at])).collect();
    (entries, lasts)
}

#[test]
fn a_fold_never_skips_entries_and_begins_at_the_newest_checkpoint() {
    let (entries, lasts) = two_checkpoints();
    assert_eq!(lasts, [0, 3]);
    let whole = segment(1, entries.len() as u64);
    let begin =
        |at: usize| Fold::begin(whole, SPAN, &entries[at].1, Address(at as u64)).expect("a last piece");

    let mut fold = begin(3);
    assert_eq!(
        fold.from(),
        Address(2),
        "what was appended while the checkpoint was encoded is folded on top"
    );
    fold.push(&entries[2].0, &entries[2].1).expect("in order");
    let gap = fold.push(&entries[4].0, &entries[4].1);
    assert_eq!(gap, Err(FoldError::Gap { loglet: LogletId(1), got: Address(4), expected: Address(3) }));
    assert!(matches!(fold.finish(), Err(FoldError::Gap { .. })), "an unfinished fold has no state");

    let mut fold = begin(0);
    for (header, payload) in &entries[..3] {
        fold.push(header, payload).expect("in order");
    }
    let newer = fold.push(&entries[3].0, &entries[3].1);
    assert_eq!(newer, Err(FoldError::NewerCheckpoint { loglet: LogletId(1), last_piece: Address(3) }));
}

#[test]
fn a_checkpoint_of_other_partitions_or_damaged_is_an_error() {
    let (entries, _) = two_checkpoints();
    let other = Span { first: 3, last: 4 };
    let mut fold = Fold::begin(segment(1, 5), other, &entries[0].1, Address(0)).expect("a last piece");
    assert!(matches!(fold.push(&entries[0].0, &entries[0].1), Err(FoldError::Span { .. })));
    assert!(matches!(
        Fold::begin(segment(1, 5), SPAN, &[7, 7], Address(0)),
        Err(FoldError::Checkpoint { .. })
    ));
    let before_its_capture = Fold::begin(segment(1, 5), SPAN, &entries[3].1, Address(1));
    assert!(matches!(before_its_capture, Err(FoldError::Checkpoint { .. })));
}
