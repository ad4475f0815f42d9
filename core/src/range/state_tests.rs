use super::*;

const SPAN: Span = Span { first: 10, last: 13 };
const P: Partition = 11;

fn head(producer_id: i64, producer_epoch: i16, base_sequence: i32, records: i32) -> BatchHead {
    BatchHead {
        base_offset: 0,
        batch_length: 49,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: records - 1,
        base_timestamp: 0,
        max_timestamp: 0,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count: records,
    }
}

/// A range and the next address of its loglet.
struct Log {
    state: RangeState,
    address: u64,
}

impl Log {
    fn new() -> Log {
        let mut state = RangeState::new(SPAN);
        state.set_epoch(SPAN, 3);
        Log { state, address: 0 }
    }

    fn send(&mut self, partition: Partition, head: BatchHead, how: Sequencing) -> Decision {
        let decision = self.state.decide(partition, &head, how);
        if let Decision::Append { base_offset, leader_epoch } = decision {
            let header = EntryHeader {
                loglet: LogletId(7),
                address: Address(self.address),
                kind: EntryKind::Data,
                flags: 0,
                partition,
                base_offset,
                last_offset_delta: head.last_offset_delta,
                record_count: head.record_count,
                leader_epoch,
                appended_at: 1000 + self.address as i64,
                first_timestamp: -1,
                max_timestamp: -1,
                producer_id: head.producer_id,
                producer_epoch: head.producer_epoch,
                first_sequence: head.base_sequence,
                attributes: 0,
                payload_len: 61,
            };
            self.address += 1;
            self.state.apply(&header).expect("what was decided can be applied");
        }
        decision
    }

    fn next(&mut self, producer_id: i64, epoch: i16, sequence: i32, records: i32) -> Decision {
        self.send(P, head(producer_id, epoch, sequence, records), Sequencing::Next(FirstSequence::Any))
    }
}

fn appended(base_offset: Offset) -> Decision {
    Decision::Append { base_offset, leader_epoch: 3 }
}

fn out_of_order(got: i32, expected: i32) -> Decision {
    Decision::Refuse(SequenceRefusal::OutOfOrder { got, expected })
}

#[test]
fn batches_without_a_producer_get_dense_offsets_per_partition() {
    let mut log = Log::new();
    assert_eq!(log.next(-1, -1, -1, 3), appended(0));
    assert_eq!(log.next(-1, -1, -1, 1), appended(3));
    assert_eq!(log.send(12, head(-1, -1, -1, 1), Sequencing::Next(FirstSequence::Any)), appended(0));
    let outside = Decision::Refuse(SequenceRefusal::OutsideSpan(14));
    assert_eq!(log.send(14, head(-1, -1, -1, 1), Sequencing::Next(FirstSequence::Any)), outside);
    assert_eq!(log.state.partition(P).map(|p| p.next), Some(4));
}

#[test]
fn the_last_five_batches_are_recognised_and_the_sixth_is_out_of_order() {
    let mut log = Log::new();
    for n in 0..6 {
        assert_eq!(log.next(1, 0, n * 2, 2), appended(i64::from(n) * 2));
    }
    for n in 1..6i64 {
        let original = Decision::Duplicate {
            base_offset: n * 2,
            last_offset: n * 2 + 1,
            place: (LogletId(7), Address(n as u64)),
            appended_at: 1000 + n,
        };
        assert_eq!(log.next(1, 0, n as i32 * 2, 2), original, "duplicate of batch {n}");
    }
    assert_eq!(log.next(1, 0, 0, 2), out_of_order(0, 12));
    assert_eq!(log.next(1, 0, 10, 1), out_of_order(10, 12), "same first sequence, other length");
    assert_eq!(log.next(1, 0, 13, 1), out_of_order(13, 12), "a gap");
    assert_eq!(log.next(1, 0, 12, 1), appended(12));
}

#[test]
fn whose_transactions_begin_with_zero_misses_nothing() {
    let mut log = Log::new();
    let zero = Sequencing::Next(FirstSequence::Zero);
    let missed = |got| Decision::Refuse(SequenceRefusal::OutOfOrder { got, expected: 0 });
    assert_eq!(log.send(P, head(1, 0, 3, 2), zero), missed(3));
    assert_eq!(log.send(P, head(1, 0, 0, 2), zero), appended(0));
    assert_eq!(log.send(P, head(1, 0, 2, 2), zero), appended(2), "it is known now");
    assert_eq!(log.send(P, head(1, 1, 2, 1), zero), missed(2), "a new epoch begins there too");
}

#[test]
fn producer_epochs_fence_and_a_new_one_starts_at_zero() {
    let mut log = Log::new();
    log.next(1, 4, 0, 1);
    log.next(1, 4, 1, 1);
    assert_eq!(log.next(1, 5, 2, 1), out_of_order(2, 0));
    assert_eq!(log.next(1, 5, 0, 1), appended(2));
    let fenced = Decision::Refuse(SequenceRefusal::InvalidProducerEpoch { got: 4, current: 5 });
    assert_eq!(log.next(1, 4, 1, 1), fenced, "also for a batch that the older epoch had written");
    assert_eq!(log.next(1, 5, 1, 1), appended(3));
}

#[test]
fn an_unknown_producer_may_start_anywhere_and_sequences_wrap() {
    let mut log = Log::new();
    assert_eq!(log.next(9001, 0, i32::MAX - 1, 1), appended(0));
    assert_eq!(log.next(9001, 0, i32::MAX, 2), appended(1), "a batch across the wrap");
    assert!(matches!(
        log.next(9001, 0, i32::MAX, 2),
        Decision::Duplicate { base_offset: 1, last_offset: 2, .. }
    ));
    assert_eq!(log.next(9001, 0, 1, 1), appended(3));
    assert_eq!(log.next(9002, 0, i32::MAX, 1), appended(4));
    assert_eq!(log.next(9002, 0, 0, 1), appended(5), "right after the wrap");
}

#[test]
fn sequences_of_two_partitions_are_apart() {
    let mut log = Log::new();
    assert_eq!(log.next(1, 0, 0, 1), appended(0));
    assert_eq!(log.send(12, head(1, 0, 0, 1), Sequencing::Next(FirstSequence::Any)), appended(0));
    assert_eq!(log.send(12, head(1, 0, 1, 1), Sequencing::Next(FirstSequence::Any)), appended(1));
    assert_eq!(log.next(1, 0, 1, 1), appended(1));
}

#[test]
fn given_offsets_only_rise_and_leave_gaps() {
    let mut log = Log::new();
    let given = |offset, epoch| Decision::Append { base_offset: offset, leader_epoch: epoch };
    assert_eq!(log.send(P, head(1, 0, 5, 2), Sequencing::At(100, 8)), given(100, 8));
    let taken = Decision::Refuse(SequenceRefusal::OffsetTaken { got: 101, next: 102 });
    assert_eq!(log.send(P, head(1, 0, 7, 1), Sequencing::At(101, 8)), taken);
    let fell = Decision::Refuse(SequenceRefusal::LeaderEpochFell { got: 7, current: 8 });
    assert_eq!(log.send(P, head(1, 0, 7, 1), Sequencing::At(110, 7)), fell);
    assert_eq!(
        log.send(P, head(1, 0, 70, 1), Sequencing::At(110, 8)),
        given(110, 8),
        "the source has judged it"
    );
    assert_eq!(log.next(1, 0, 71, 1), given(111, 8), "and its sequences count from then on");
    assert_eq!(log.state.end_of_epoch(P, 3, 112), Some((3, 100)));
}

#[test]
fn impossible_numbers_are_refused_before_they_reach_the_log() {
    let log = Log::new();
    let refused = |head: &BatchHead, how| {
        matches!(log.state.decide(P, head, how), Decision::Refuse(SequenceRefusal::Impossible { .. }))
    };
    assert!(refused(&head(-1, -1, -1, 0), Sequencing::Next(FirstSequence::Any)));
    assert!(refused(&head(1, 0, -1, 1), Sequencing::Next(FirstSequence::Any)));
    assert!(refused(&head(-1, -1, -1, 1), Sequencing::At(i64::MAX, 3)));
}

#[test]
fn an_entry_that_does_not_follow_is_an_error_and_changes_nothing() {
    let mut log = Log::new();
    log.next(1, 0, 0, 4);
    let before = log.state.clone();
    let entry = EntryHeader {
        loglet: LogletId(7),
        address: Address(1),
        kind: EntryKind::Data,
        flags: 0,
        partition: P,
        base_offset: 4,
        last_offset_delta: 0,
        record_count: 1,
        leader_epoch: 3,
        appended_at: 0,
        first_timestamp: -1,
        max_timestamp: -1,
        producer_id: 1,
        producer_epoch: 0,
        first_sequence: 4,
        attributes: 0,
        payload_len: 61,
    };
    let wrong = [
        EntryHeader { base_offset: 3, ..entry },
        EntryHeader { last_offset_delta: -1, ..entry },
        EntryHeader { base_offset: i64::MAX, ..entry },
        EntryHeader { partition: 9, ..entry },
        EntryHeader { partition: -1, ..entry },
        EntryHeader { leader_epoch: 2, ..entry },
    ];
    for header in wrong {
        assert!(log.state.apply(&header).is_err(), "{header:?}");
    }
    assert_eq!(
        log.state.apply_log_starts(&[(10, 0), (P, 5)]),
        Err(ApplyError::LogStartAboveEnd { partition: P, got: 5, next: 4 })
    );
    assert_eq!(log.state, before);
    log.state
        .apply(&EntryHeader { kind: EntryKind::Snapshot, producer_id: -1, ..entry })
        .expect("one offset");
    assert_eq!(log.state.partition(P).map(|p| p.next), Some(5));
}

#[test]
fn log_starts_rise_only_and_trim_epochs() {
    let mut log = Log::new();
    log.next(-1, -1, -1, 10);
    log.state.set_epoch(SPAN, 4);
    log.send(P, head(-1, -1, -1, 10), Sequencing::Next(FirstSequence::Any));
    log.state.apply_log_starts(&[(P, 12)]).expect("inside the log");
    log.state.apply_log_starts(&[(P, 5)]).expect("a late copy changes nothing");
    assert_eq!(log.state.partition(P).map(|p| p.log_start), Some(12));
    assert_eq!(log.state.end_of_epoch(P, 3, 20), Some((3, 12)));
    assert_eq!(log.state.end_of_epoch(P, 4, 20), Some((4, 20)));
    assert_eq!(log.state.end_of_epoch(P, 5, 20), None);
    assert_eq!(log.state.end_of_epoch(99, 4, 20), None);
}

#[test]
fn a_capture_does_not_see_what_comes_later() {
    let mut log = Log::new();
    log.next(1, 0, 0, 1);
    let captured = log.state.capture(Address(1));
    let copy = log.state.clone();
    log.next(1, 0, 1, 1);
    assert_eq!(captured.state, copy);
    assert_ne!(captured.state, log.state);
}

#[test]
fn expiry_forgets_by_time_in_the_log_and_by_number() {
    let mut log = Log::new();
    for id in 0..5 {
        log.next(id, 0, 0, 1); // appended at 1000 + id
    }
    log.state.expire(1002, 2);
    let left: Vec<i64> = log.state.producers().iter().map(|(key, _)| key.1).collect();
    assert_eq!(left, [3, 4]);
    assert_eq!(log.next(0, 0, 77, 1), appended(5), "an expired producer may start anywhere");
}

#[test]
fn ten_thousand_partitions_cost_little() {
    assert!(size_of::<PartitionState>() <= 88, "{}", size_of::<PartitionState>());
}
