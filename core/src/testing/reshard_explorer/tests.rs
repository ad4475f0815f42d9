//! Runs that hold, and runs that must fail: one for each rule that is broken on purpose, in a world that holds without.
//!
//! `cargo test -p rangeway-core --lib reshard_explorer -- --nocapture` prints sizes and traces. `RANGEWAY_EXPLORE=n` looks at
//! up to `n` states of each world, and of one in which everything may happen; 100,000 take about a minute and 1 GB.

use super::explore::{Discard, Outcome, explore, walk};
use super::{ClientKind, Scope};
use crate::range::markers::TransactionVersion;
use crate::testing::Mutant;
use crate::testing::mutant::switched::with_broken;

const fn plain(partition: i32, batches: u8) -> ClientKind {
    ClientKind { partition, idempotent: false, batches, large_first: false }
}

const fn idempotent(partition: i32, batches: u8) -> ClientKind {
    ClientKind { partition, idempotent: true, batches, large_first: false }
}

const BOTH: &[ClientKind] = &[idempotent(0, 2), plain(1, 2)];
const ONE: &[ClientKind] = &[idempotent(0, 1)];
const TWO: &[ClientKind] = &[idempotent(0, 2)];
const EACH: &[ClientKind] = &[plain(0, 1), plain(1, 1)];
const RIGHT: &[ClientKind] = &[plain(1, 2)];
const THREE: &[ClientKind] = &[idempotent(0, 3)];
const PLAIN: &[ClientKind] = &[plain(0, 2)];
const NONE: &[ClientKind] = &[];

/// A split of a range with a producer of two batches; a drain or seal may fail.
const SPLIT: Scope = Scope {
    ranges: 1,
    nodes: 1,
    replicas: 1,
    clients: TWO,
    window: 3,
    window_bytes: 1 << 20,
    reshards: 1,
    aborts: 0,
    rolls: 0,
    restarts: 0,
    failovers: 0,
    lost: 0,
    late: 0,
    stale: 0,
    timeouts: 0,
    deadlines: true,
    failing: 1,
    readers: 0,
    deletes: 0,
    transactions: 0,
    version: TransactionVersion::V1,
    copies: 0,
    rolls_away: false,
    spread: false,
    reorder: false,
    states_max: 6_000,
};
/// Everything may happen.
const WIDE: Scope = Scope {
    nodes: 2,
    clients: BOTH,
    reshards: 2,
    aborts: 1,
    rolls: 1,
    restarts: 1,
    failovers: 1,
    lost: 1,
    late: 1,
    timeouts: 1,
    readers: 1,
    deletes: 1,
    rolls_away: true,
    spread: true,
    reorder: true,
    ..SPLIT
};
const PLAIN_SPLIT: Scope = Scope { clients: PLAIN, ..SPLIT };
const SPLIT_AGAIN: Scope = Scope { clients: ONE, timeouts: 1, ..SPLIT };
/// A producer whose requests wait for a range whose segment ends, some for too long.
const PARK: Scope = Scope { timeouts: 1, failing: 0, ..SPLIT };
/// What is in flight when its segment ends was given up, or not.
const WITHDRAWN: Scope = Scope { timeouts: 1, ..SPLIT };
const PLAIN_PARK: Scope = Scope { clients: PLAIN, ..PARK };
const REORDER: Scope = Scope { clients: ONE, reorder: true, ..SPLIT };
const MERGE: Scope = Scope { ranges: 2, clients: ONE, timeouts: 1, ..SPLIT };
const SICK_MERGE: Scope = Scope { ranges: 2, clients: ONE, failing: 3, ..SPLIT };
const ROLL: Scope =
    Scope { clients: ONE, reshards: 0, rolls: 1, late: 1, failing: 0, rolls_away: true, ..SPLIT };
const LOST_ROLL: Scope = Scope { late: 0, lost: 1, ..ROLL };
const ROLL_AND_ABORT: Scope =
    Scope { clients: NONE, reshards: 1, rolls: 1, aborts: 1, failing: 0, rolls_away: true, ..SPLIT };
const ABORT: Scope = Scope { clients: ONE, aborts: 1, rolls_away: true, ..SPLIT };
const LATE: Scope =
    Scope { clients: ONE, aborts: 1, reshards: 2, late: 1, failing: 0, rolls_away: true, ..SPLIT };
const RESTART: Scope = Scope { clients: ONE, restarts: 1, failing: 0, ..SPLIT };
const FAILOVER: Scope = Scope { clients: ONE, nodes: 2, reshards: 0, failovers: 1, failing: 0, ..SPLIT };
const SPREAD: Scope = Scope { clients: NONE, nodes: 2, failing: 0, spread: true, ..SPLIT };
const TWO_DRIVERS: Scope = Scope { clients: ONE, nodes: 2, failing: 0, ..SPLIT };
/// Transactions one after the other; a marker may be asked for twice, and a batch get no answer.
const TRANSACTIONS: Scope =
    Scope { clients: NONE, transactions: 2, copies: 1, reshards: 0, failing: 0, timeouts: 0, ..SPLIT };
/// A late batch of an aborted transaction.
const LATE_BATCH: Scope = Scope { copies: 0, timeouts: 1, ..TRANSACTIONS };
/// The same through a split.
const TRANSACTIONS_SPLIT: Scope = Scope { transactions: 1, reshards: 1, ..TRANSACTIONS };
/// The same while another node takes the range over and the first one does not know.
const TRANSACTIONS_FAILOVER: Scope = Scope { nodes: 2, failovers: 1, ..TRANSACTIONS };
/// The same through a roll and a restart.
const TRANSACTIONS_RESTART: Scope = Scope { rolls: 1, restarts: 1, ..TRANSACTIONS };
/// Its first batch takes the whole window: what is behind it would fit beside the first checkpoint, and it does not.
const LARGE: &[ClientKind] = &[ClientKind { large_first: true, ..plain(0, 2) }];
const LARGE_HANDED_OVER: Scope = Scope { clients: LARGE, window_bytes: 1024, ..SPLIT };
/// A producer comes back to who led before, and knew the first of its batches.
const ZOMBIE: Scope = Scope {
    clients: THREE,
    window: 4,
    stale: 1,
    timeouts: 2,
    deadlines: false,
    states_max: 40_000,
    ..FAILOVER
};
const QUORUM: Scope = Scope { clients: ONE, replicas: 3, states_max: 15_000, ..SPLIT };
const QUORUM_AGAIN: Scope = Scope { timeouts: 1, ..QUORUM };
const QUORUM_ROLL: Scope = Scope { replicas: 3, ..ROLL };
const QUORUM_REORDER: Scope = Scope { reorder: true, ..QUORUM };
const READ_SPLIT: Scope = Scope { clients: EACH, readers: 1, failing: 0, ..SPLIT };
const READ_MERGE: Scope = Scope { ranges: 2, clients: RIGHT, ..READ_SPLIT };
const READ_RETAINED: Scope = Scope { readers: 1, ..RETAIN };
const TINY: Scope = Scope { clients: ONE, failing: 0, ..SPLIT };
const RETAIN: Scope = Scope { clients: ONE, deletes: 1, failing: 0, ..SPLIT };

fn states_max() -> Option<usize> {
    std::env::var("RANGEWAY_EXPLORE").ok().and_then(|states| states.parse().ok())
}

/// Explores a world that holds, and the same with each of these rules broken, which must be found.
fn check(name: &str, scope: Scope, mutants: &[Mutant]) {
    let scope = Scope { states_max: states_max().unwrap_or(scope.states_max), ..scope };
    match explore(scope, Discard::Drop) {
        Outcome::Holds { states, steps } => println!("{name}: holds, {states} states, {steps} steps"),
        Outcome::Capped { states, depth } => println!("{name}: holds {depth} steps deep, {states} states"),
        Outcome::Broken { rule, trace, states } => {
            panic!("{name}: {rule}, {states} states, {} steps:\n{}", trace.len(), trace.join("\n"));
        }
    }
    for mutant in mutants {
        match with_broken(Some(*mutant), || explore(scope, Discard::Leak)) {
            Outcome::Broken { rule, trace, states } => {
                println!("  {mutant:?}: {} steps, {states} states, {rule}: {}", trace.len(), trace.join(" "));
            }
            other => panic!("{name}: {mutant:?} is not found: {other:?}"),
        }
    }
}

#[test]
fn a_split_keeps_every_batch_and_its_end_is_recorded_after_the_drain() {
    check("split", SPLIT, &[Mutant::OpenBeforeRecord, Mutant::ReshardEndMeasured]);
}

#[test]
fn batches_without_a_producer_are_not_appended_twice() {
    check("split, plain", PLAIN_SPLIT, &[Mutant::BlindReappend]);
}

#[test]
fn a_batch_sent_again_is_known_to_the_child_and_answered_when_it_is_durable() {
    check("split, again", SPLIT_AGAIN, &[Mutant::SplitForgetsProducers, Mutant::DuplicateInFlight]);
    check("merge, again", MERGE, &[Mutant::MergeForgetsProducers]);
}

#[test]
fn nothing_is_acknowledged_before_the_first_checkpoint() {
    check("split, reordered", REORDER, &[Mutant::CheckpointNotAwaited]);
}

#[test]
fn a_merge_that_is_given_up_leaves_both_ranges_writable() {
    check("merge, sick", SICK_MERGE, &[Mutant::AbortForgetsFence]);
    check("abort", ABORT, &[]);
}

#[test]
fn a_roll_records_what_was_drained_and_waits_for_its_answer() {
    check("roll, late", ROLL, &[Mutant::RollBeforeDrain]);
    check("roll, lost", LOST_ROLL, &[Mutant::ResumeUnanswered]);
    check("roll and abort", ROLL_AND_ABORT, &[Mutant::IntentKeepsVersion]);
}

#[test]
fn a_command_that_comes_late_changes_nothing() {
    check("late", LATE, &[Mutant::CloseUnversioned, Mutant::IntentDoesNotBlock]);
}

#[test]
fn a_restart_amid_a_split_reissues_nothing() {
    check("restart", RESTART, &[Mutant::EmptyFoldsBlank, Mutant::EpochFromFold]);
}

#[test]
fn a_takeover_fences_for_ever_and_leads_under_a_new_epoch() {
    check("failover", FAILOVER, &[Mutant::EpochKept, Mutant::FenceLifted]);
}

#[test]
fn children_are_opened_by_those_who_lead_them() {
    check("children elsewhere", SPREAD, &[Mutant::OnlyDriverOpens]);
}

#[test]
fn two_drivers_close_once() {
    check("two drivers", TWO_DRIVERS, &[]);
}

#[test]
fn a_parent_stays_until_its_children_have_checkpoints() {
    check("retention", RETAIN, &[Mutant::DroppedTooEarly]);
}

#[test]
fn a_marker_ends_its_own_transaction_and_no_other() {
    check("transactions", TRANSACTIONS, &[Mutant::MarkerUnnumbered, Mutant::StableShownEarly]);
    let two = Scope { version: TransactionVersion::V2, ..TRANSACTIONS };
    check("transactions, version 2", two, &[]);
    check("transactions, late batch", LATE_BATCH, &[Mutant::MarkerKeepsEpoch]);
    check("transactions, restart", TRANSACTIONS_RESTART, &[Mutant::OpenNotFolded, Mutant::NumberNotFolded]);
}

#[test]
fn a_transaction_goes_on_in_the_child_and_under_another_primary() {
    check("transactions, failover", TRANSACTIONS_FAILOVER, &[]);
    check("transactions, split", TRANSACTIONS_SPLIT, &[Mutant::MarkerInFlight]);
    check("transactions, split and merge", Scope { reshards: 2, ..TRANSACTIONS_SPLIT }, &[]);
}

#[test]
fn what_waits_keeps_its_order() {
    let rules =
        [Mutant::ParkedOvertaken, Mutant::RefusedAlone, Mutant::RefusedForgotten, Mutant::RefusedStays];
    check("park", PARK, &rules);
    check("park, plain", PLAIN_PARK, &[Mutant::PlainRefused]);
    check("withdrawn", WITHDRAWN, &[Mutant::WithdrawnAlone]);
}

#[test]
fn a_successor_takes_nothing_before_what_it_took_over() {
    check("split, large", LARGE_HANDED_OVER, &[Mutant::OthersBeforeInherited]);
}

#[test]
fn who_does_not_lead_any_more_says_of_no_sequence_that_it_is_wrong() {
    check("zombie", ZOMBIE, &[Mutant::NegativeAtOnce]);
}

#[test]
fn what_has_ended_is_not_found_again() {
    check("split, tiny", TINY, &[Mutant::EndedRangeFound]);
}

#[test]
fn on_three_copies_whichever_answers_a_seal_what_was_acknowledged_is_kept() {
    check("split, three copies", QUORUM, &[Mutant::ReshardEndMeasured]);
    check("split again, three copies", QUORUM_AGAIN, &[Mutant::DuplicateInFlight]);
    check("roll, three copies", QUORUM_ROLL, &[Mutant::RollBeforeDrain]);
    check("reordered, three copies", QUORUM_REORDER, &[Mutant::CheckpointNotAwaited]);
}

#[test]
fn readers_with_cursors_get_every_record_once() {
    check("split, read", READ_SPLIT, &[Mutant::SpanNotCut]);
    check("merge, read", READ_MERGE, &[Mutant::WholeChildPerParent, Mutant::FirstParentEnters]);
    check("retention, read", READ_RETAINED, &[]);
}

#[test]
fn with_everything_that_may_happen_nothing_is_lost() {
    let deep = states_max().unwrap_or(1_500);
    check("wide, split", Scope { states_max: deep, ..WIDE }, &[]);
    check("wide, merge", Scope { ranges: 2, states_max: deep, ..WIDE }, &[]);
}

/// Too deep to see all of: some ways through it.
#[test]
fn on_no_way_through_everything_that_may_happen_anything_is_lost() {
    let walks = states_max().map_or(60, |states| states / 50);
    let mut steps = 0;
    for seed in 0..walks as u64 {
        let (ranges, transactions) = (1 + (seed % 2) as u32, if seed % 3 == 0 { 2 } else { 0 });
        let version = if seed % 6 == 0 { TransactionVersion::V1 } else { TransactionVersion::V2 };
        let replicas = if seed % 4 < 2 { 1 } else { 3 };
        let wide = Scope { replicas, failing: 2, lost: 2, stale: 1, ..WIDE };
        let scope = Scope { ranges, transactions, version, copies: 2, ..wide };
        match walk(scope, seed, 90) {
            Ok(made) => steps += made,
            Err((rule, trace)) => panic!("seed {seed}: {rule}:\n{}", trace.join("\n")),
        }
    }
    println!("{walks} ways of {steps} steps together");
}
