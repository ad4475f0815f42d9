//! Decisions: single ones with their sentences, rules that hold for any layout and load, and a simulated week.

use super::decide::*;
use super::load::{Counts, Meter, RangeLoad, Rate, SLOTS};
use crate::control::state::OperationKind;
use crate::testing::rng::Rng;
use crate::types::{Partition, RangeId, Span};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn policy() -> Policy {
    Policy {
        bytes_per_second: 32 * MIB,
        records_per_second: 50_000,
        stored_bytes: 0,
        window_ms: 30_000,
        cool_down_ms: 60_000,
        merge_below_percent: 40,
        ranges_min: 1,
        ranges_max: 8,
        changes_max: 1,
    }
}

const NOW: i64 = 1_000_000;

/// A range of four partitions that get these MiB/s, old enough.
fn range(id: u32, first: Partition, mib: [u64; 4]) -> (RangeInfo, RangeLoad) {
    let span = Span { first, last: first + 3 };
    let info = RangeInfo { id: RangeId(id), span, made_at: 0, busy: None };
    let of = |mib: u64| Counts { bytes: mib * MIB * 30, records: mib * 30 };
    let total = mib.iter().sum::<u64>();
    let rate = Rate { bytes: total * MIB, records: total };
    let partitions = mib.iter().map(|mib| of(*mib)).collect();
    (
        info,
        RangeLoad {
            measured_ms: 30_000,
            mean: rate,
            steady: rate,
            peak: rate,
            stored_bytes: Some(0),
            partitions,
        },
    )
}

fn of(ranges: &[(RangeInfo, RangeLoad)], policy: &Policy) -> Vec<Decision> {
    let layout = Layout { ranges: ranges.iter().map(|(info, _)| info.clone()).collect(), running: 0 };
    let load = ranges.iter().map(|(info, load)| (info.id, load.clone())).collect();
    decide(&layout, &load, policy, NOW)
}

fn check(ranges: &[(RangeInfo, RangeLoad)], policy: &Policy, expected: &[(Action, &str)]) {
    let decisions = of(ranges, policy);
    let found: Vec<(Action, &str)> = decisions.iter().map(|d| (d.action, d.why.as_str())).collect();
    assert_eq!(found, expected);
}

fn keep(id: u32) -> Action {
    Action::Keep { range: RangeId(id) }
}

#[test]
fn a_hot_range_is_split_where_its_load_is_halved() {
    check(
        &[range(3, 4, [5, 25, 5, 6])],
        &policy(),
        &[(
            Action::Change(OperationKind::Split { range: RangeId(3), at: 6 }),
            "Range 3 has 41.0 MiB/s over 30 s, 128 % of the target of 32.0 MiB/s; a split at partition 6 leaves 73 % on the busier side.",
        )],
    );
}

#[test]
fn records_count_like_bytes_and_decide_where_they_are_nearer_to_their_target() {
    let mut hot = range(0, 0, [1, 1, 1, 1]);
    let rate = Rate { bytes: 4 * MIB, records: 100_000 };
    (hot.1.mean, hot.1.steady, hot.1.peak) = (rate, rate, rate);
    hot.1.partitions = [70_000, 10_000, 10_000, 10_000]
        .map(|records| Counts { bytes: MIB * 30, records: records * 30 })
        .to_vec();
    check(
        &[hot],
        &policy(),
        &[(
            Action::Change(OperationKind::Split { range: RangeId(0), at: 1 }),
            "Range 0 has 100,000 records/s over 30 s, 200 % of the target of 50,000 records/s; a split at partition 1 leaves 70 % on the busier side.",
        )],
    );
}

#[test]
fn a_range_of_one_partition_is_never_split_and_says_so() {
    let (mut info, mut load) = range(0, 0, [50, 0, 0, 0]);
    info.span.last = 0;
    load.partitions.truncate(1);
    check(
        &[(info, load)],
        &policy(),
        &[(
            keep(0),
            "Range 0 has 50.0 MiB/s over 30 s, 156 % of the target of 32.0 MiB/s; not split: it is one partition, which is never cut; a striped drive widens it.",
        )],
    );
}

#[test]
fn a_partition_that_gets_nearly_all_is_not_worth_a_split() {
    check(
        &[range(0, 0, [1, 48, 0, 1])],
        &policy(),
        &[(
            keep(0),
            "Range 0 has 50.0 MiB/s over 30 s, 156 % of the target of 32.0 MiB/s; not split: any cut leaves 98 % on one side, since one partition gets most of it.",
        )],
    );
}

#[test]
fn a_range_above_its_size_is_split_in_the_middle_where_nothing_is_appended() {
    let mut big = range(0, 0, [0; 4]);
    big.1.stored_bytes = Some(3 << 30);
    let policy = Policy { stored_bytes: 1 << 30, ..policy() };
    check(
        &[big],
        &policy,
        &[(
            Action::Change(OperationKind::Split { range: RangeId(0), at: 2 }),
            "Range 0 has 3.0 GiB stored, 300 % of the target of 1.0 GiB stored; a split in the middle, at partition 2, since no partition gets more.",
        )],
    );
}

#[test]
fn what_is_stored_is_not_taken_for_nothing_while_it_is_not_known() {
    let mut ranges = [range(0, 0, [1, 0, 0, 0]), range(1, 4, [0; 4])];
    ranges[1].1.stored_bytes = None;
    let policy = Policy { stored_bytes: 1 << 30, ..policy() };
    let decisions = of(&ranges, &policy);
    assert_eq!(decisions.iter().map(|d| d.action).collect::<Vec<_>>(), [keep(0), keep(1)], "not merged");
    assert!(decisions[1].why.contains("what it stores is not known yet"), "{}", decisions[1].why);
    ranges[1].1.stored_bytes = Some(0);
    assert!(of(&ranges, &policy)[0].action.change().is_some(), "cold once that is known");
    ranges[1].1.stored_bytes = None;
    let any = Policy { stored_bytes: 0, ..policy };
    assert!(of(&ranges, &any)[0].action.change().is_some(), "nothing is asked of it");
}

#[test]
fn cold_neighbours_become_one_and_the_third_waits() {
    check(
        &[range(0, 0, [1, 0, 0, 0]), range(1, 4, [3, 0, 0, 0]), range(2, 8, [0, 0, 0, 2])],
        &policy(),
        &[
            (
                Action::Change(OperationKind::Merge { left: RangeId(0), right: RangeId(1) }),
                "Ranges 0 and 1 got 4.0 MiB/s, 4 records/s together at most, below 40 % of 32.0 MiB/s or 50,000 records/s; one range is enough for them.",
            ),
            (
                keep(2),
                "Range 2 got 2.0 MiB/s, 2 records/s over 30 s and stores 0 B; the target is 32.0 MiB/s or 50,000 records/s.",
            ),
        ],
    );
}

#[test]
fn a_busy_second_keeps_neighbours_apart_and_a_burst_splits_nothing() {
    let (mut left, right) = (range(0, 0, [1, 0, 0, 0]), range(1, 4, [1, 0, 0, 0]));
    left.1.peak.bytes = 200 * MIB;
    left.1.mean.bytes = 40 * MIB;
    let quiet = |id: u32, mib: u64| {
        let why = "0 B; the target is 32.0 MiB/s or 50,000 records/s.";
        format!("Range {id} got {mib}.0 MiB/s, 1 records/s over 30 s and stores {why}")
    };
    check(&[left, right], &policy(), &[(keep(0), &quiet(0, 40)), (keep(1), &quiet(1, 1))]);
}

#[test]
fn every_reason_to_leave_a_hot_range_alone_is_said() {
    let said = |change: &dyn Fn(&mut RangeInfo, &mut RangeLoad, &mut Policy)| {
        let (mut info, mut load) = range(0, 0, [10; 4]);
        let mut policy = policy();
        change(&mut info, &mut load, &mut policy);
        let layout = Layout { ranges: vec![info.clone()], running: 0 };
        let decisions = decide(&layout, &[(info.id, load)].into(), &policy, NOW);
        assert_eq!(decisions[0].action, keep(0));
        decisions[0].why.split_once("not split: ").expect("it is hot").1.to_owned()
    };
    assert_eq!(
        said(&|info, _, _| info.made_at = NOW - 37_000),
        "range 0 was made 37 s ago, and stays as it is for 60 s."
    );
    assert_eq!(said(&|_, load, _| load.measured_ms = 12_000), "range 0 was measured for 12 of 30 s.");
    assert_eq!(said(&|info, _, _| info.busy = Some("is being split")), "range 0 is being split.");
    assert_eq!(said(&|_, _, p| p.ranges_max = 1), "the topic has 1 ranges, the most it may have.");
    assert_eq!(said(&|_, _, p| p.changes_max = 0), "0 split or merge at a time, others come first.");
}

#[test]
fn every_reason_to_leave_cold_neighbours_alone_is_said() {
    let said = |change: &dyn Fn(&mut RangeInfo, &mut RangeLoad, &mut Policy)| {
        let (left, (mut info, mut load)) = (range(0, 0, [0; 4]), range(1, 4, [0; 4]));
        let mut policy = policy();
        change(&mut info, &mut load, &mut policy);
        let layout = Layout { ranges: vec![left.0.clone(), info.clone()], running: 0 };
        let decisions = decide(&layout, &[(left.0.id, left.1), (info.id, load)].into(), &policy, NOW);
        assert_eq!(decisions[0].action, keep(0));
        decisions[0].why.split_once("not merged: ").map_or(String::new(), |(_, why)| why.to_owned())
    };
    assert_eq!(
        said(&|info, _, _| info.made_at = NOW - 1000),
        "range 1 was made 1 s ago, and stays as it is for 60 s."
    );
    assert_eq!(said(&|_, load, _| load.measured_ms = 0), "range 1 was measured for 0 of 30 s.");
    assert_eq!(said(&|_, _, p| p.ranges_min = 2), "the topic has 2 ranges, the fewest it may have.");
    assert_eq!(said(&|_, _, p| p.merge_below_percent = 0), "", "merging is off");
    let off = |p: &mut Policy| (p.bytes_per_second, p.records_per_second) = (0, 0);
    assert_eq!(said(&|_, _, p| off(p)), "", "without a target nothing is cold");
}

#[derive(Clone, Debug)]
struct Case {
    layout: Layout,
    load: BTreeMap<RangeId, RangeLoad>,
    policy: Policy,
}

fn any_case() -> impl Strategy<Value = Case> {
    let range = (1..5usize, 0..200_000i64, 0..8u8, prop::collection::vec(0..20u64, 4), 0..40_000i64, 0..3u64);
    let policy = (0..40u64, 0..3u64, 0..75u64, 1..6usize, 1..10usize, 0..4usize);
    (prop::collection::vec(range, 0..8), policy, 0..3usize).prop_map(|(ranges, policy, running)| {
        let (mib, stored, merge, ranges_min, ranges_max, changes_max) = policy;
        let policy = Policy {
            bytes_per_second: mib * MIB,
            stored_bytes: stored << 20,
            merge_below_percent: merge,
            ranges_min,
            ranges_max,
            changes_max,
            ..self::policy()
        };
        let mut case = Case { layout: Layout { ranges: vec![], running }, load: BTreeMap::new(), policy };
        let mut first = 0;
        for (i, (count, age, busy, mib, measured_ms, stored)) in ranges.into_iter().enumerate() {
            let (mut info, mut load) = self::range(i as u32, first, [mib[0], mib[1], mib[2], mib[3]]);
            info.span.last = first + count as i32 - 1;
            info.made_at = NOW - age;
            info.busy = (busy == 0).then_some("is being merged");
            load.partitions.truncate(count);
            (load.measured_ms, load.stored_bytes) = (measured_ms, Some(stored << 20));
            first = info.span.last + 1;
            if busy != 1 {
                case.load.insert(info.id, load);
            }
            case.layout.ranges.push(info);
        }
        case
    })
}

/// Ranges that an action changes.
fn changed(action: Action) -> Vec<RangeId> {
    match action {
        Action::Change(OperationKind::Split { range, .. }) => vec![range],
        Action::Change(OperationKind::Merge { left, right }) => vec![left, right],
        Action::Keep { .. } => vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_rules_hold_for_any_layout_and_load(case in any_case()) {
        let Case { layout, load, policy } = case;
        let decisions = decide(&layout, &load, &policy, NOW);
        prop_assert_eq!(&decisions, &decide(&layout, &load, &policy, NOW));
        let named: Vec<RangeId> = decisions.iter().flat_map(|d| match d.action {
            Action::Keep { range } => vec![range],
            other => changed(other),
        }).collect();
        let all: Vec<RangeId> = layout.ranges.iter().map(|info| info.id).collect();
        prop_assert_eq!(&named, &all, "each range once, in order");
        prop_assert!(decisions.iter().all(|d| d.why.starts_with('R') && d.why.ends_with('.')));
        let (mut ranges, mut changes) = (all.len(), 0);
        for decision in &decisions {
            let of = |id: RangeId| layout.ranges.iter().position(|info| info.id == id).expect("is there");
            for id in changed(decision.action) {
                let info = &layout.ranges[of(id)];
                prop_assert!(info.busy.is_none() && NOW - info.made_at >= policy.cool_down_ms);
                prop_assert!(load[&id].measured_ms >= policy.window_ms);
            }
            match decision.action {
                Action::Keep { .. } => continue,
                Action::Change(OperationKind::Split { range, at }) => {
                    let span = layout.ranges[of(range)].span;
                    prop_assert!(span.first < at && at <= span.last);
                    ranges += 1;
                }
                Action::Change(OperationKind::Merge { left, right }) => {
                    prop_assert_eq!(of(left) + 1, of(right));
                    let sum = load[&left].peak.bytes + load[&right].peak.bytes;
                    prop_assert!(policy.bytes_per_second == 0 || 100 * sum < policy.merge_below_percent * policy.bytes_per_second);
                    ranges -= 1;
                }
            }
            changes += 1;
        }
        prop_assert!(changes <= policy.changes_max.saturating_sub(layout.running));
        prop_assert!(ranges <= policy.ranges_max.max(all.len()));
        prop_assert!(ranges >= policy.ranges_min.min(all.len()));
    }
}

/// A topic under a load that goes up and down with the day.
struct Week {
    rng: Rng,
    policy: Policy,
    layout: Layout,
    meters: BTreeMap<RangeId, Meter>,
    counters: Vec<Counts>,
    /// Thousandths of the load that each partition gets.
    shares: Vec<u64>,
    next_id: u32,
    splits: usize,
    merges: usize,
    /// How soon, ms, a split or merge undid the one that made the range.
    undone_after_ms: Vec<i64>,
    made_by_split: BTreeMap<RangeId, bool>,
}

const PARTITIONS: usize = 32;
const STEP_MS: i64 = 5000;
/// Six hours: the load changes four times as fast as in life.
const DAY_MS: i64 = 21_600_000;

impl Week {
    fn new(seed: u64, policy: Policy) -> Week {
        let mut rng = Rng::new(seed);
        let weights: Vec<u64> = (0..PARTITIONS).map(|_| 50 + rng.below(100) as u64).collect();
        let sum: u64 = weights.iter().sum();
        let span = Span { first: 0, last: PARTITIONS as i32 - 1 };
        let info = RangeInfo { id: RangeId(0), span, made_at: 0, busy: None };
        Week {
            rng,
            layout: Layout { ranges: vec![info], running: 0 },
            meters: BTreeMap::new(),
            counters: vec![Counts::default(); PARTITIONS],
            shares: weights.iter().map(|weight| weight * 1000 / sum).collect(),
            next_id: 1,
            splits: 0,
            merges: 0,
            undone_after_ms: Vec::new(),
            made_by_split: BTreeMap::new(),
            policy,
        }
    }

    /// 0.7 to 1.3, in thousandths.
    fn noise(&mut self) -> u64 {
        700 + self.rng.below(601) as u64
    }

    /// Five seconds; `bytes` per second in all.
    fn step(&mut self, now: i64, bytes: u64) {
        for partition in 0..PARTITIONS {
            let noise = self.noise();
            let got = bytes / 1000 * self.shares[partition] / 1000 * noise * (STEP_MS as u64 / 1000);
            let got = Counts { bytes: got, records: got / 4096 };
            self.counters[partition] = self.counters[partition].plus(got);
        }
        for info in &self.layout.ranges {
            let meter = self.meters.entry(info.id).or_insert_with(|| Meter::new(self.policy.window_ms));
            assert!(meter.due(now));
            meter.observe(now, info.span.iter().map(|p| self.counters[p as usize]).collect());
        }
        let load = self.meters.iter().map(|(id, meter)| (*id, meter.load(Some(0)))).collect();
        for decision in decide(&self.layout, &load, &self.policy, now) {
            self.change(decision.action, now);
        }
    }

    fn change(&mut self, action: Action, now: i64) {
        let gone = changed(action);
        let Some(at) = self.layout.ranges.iter().position(|info| gone.contains(&info.id)) else { return };
        let old: Vec<RangeInfo> = self.layout.ranges.drain(at..at + gone.len()).collect();
        for info in &old {
            assert!(now - info.made_at >= self.policy.cool_down_ms, "within its cool-down");
            self.meters.remove(&info.id);
        }
        let whole = Span { first: old[0].span.first, last: old[old.len() - 1].span.last };
        let (spans, split) = match action {
            Action::Change(OperationKind::Split { at, .. }) => {
                (vec![Span { last: at - 1, ..whole }, Span { first: at, ..whole }], true)
            }
            _ => (vec![whole], false),
        };
        let undone = |info: &RangeInfo| self.made_by_split.get(&info.id).is_some_and(|by| *by != split);
        if old.iter().all(undone) {
            self.undone_after_ms.extend(old.iter().map(|info| now - info.made_at).min());
        }
        *(if split { &mut self.splits } else { &mut self.merges }) += 1;
        for (i, span) in spans.into_iter().enumerate() {
            let id = RangeId(self.next_id);
            self.next_id += 1;
            self.made_by_split.insert(id, split);
            self.layout.ranges.insert(at + i, RangeInfo { id, span, made_at: now, busy: None });
        }
    }
}

/// Bytes per second at a time of the day: from a tenth of the peak by night to the peak.
fn daily(now: i64, peak: u64) -> u64 {
    let turn = (now % DAY_MS) as f64 / DAY_MS as f64;
    let height = 0.55 - 0.45 * (turn * std::f64::consts::TAU).cos();
    (peak as f64 * height) as u64
}

/// A week, with the targets that the load came to and the ranges that there were, after the first hours, when one range
/// had to become many.
fn week(seed: u64, policy: Policy) -> (Week, Vec<(f64, usize)>) {
    let target = policy.bytes_per_second as f64;
    let mut week = Week::new(seed, policy);
    let mut seen = Vec::new();
    let mut slow_noise = 1000;
    for step in 1..=7 * DAY_MS / STEP_MS {
        let now = step * STEP_MS;
        // Besides what differs from second to second there are busier and quieter minutes.
        if now % 600_000 == 0 {
            slow_noise = week.noise();
        }
        let load = daily(now, PEAK);
        week.step(now, load * slow_noise / 1000);
        if now > DAY_MS / 2 {
            seen.push((load as f64 / target, week.layout.ranges.len()));
        }
    }
    (week, seen)
}

const PEAK: u64 = 256 * MIB;

#[test]
fn through_a_week_of_noisy_days_ranges_follow_the_load_without_going_to_and_fro() {
    for seed in 1..=3 {
        let (week, seen) = week(seed, Policy { ranges_max: 64, ..policy() });
        let most = seen.iter().map(|(_, ranges)| *ranges).max().expect("a week");
        let fewest = seen.iter().map(|(_, ranges)| *ranges).min().expect("a week");
        let (splits, merges) = (week.splits, week.merges);
        let soonest = week.undone_after_ms.iter().min().copied().unwrap_or(i64::MAX);
        println!(
            "seed {seed}: {fewest} to {most} ranges at 0.8 to 8.0 targets; {splits} splits, {merges} merges, \
             the soonest that undid another came after {} s",
            soonest / 1000,
        );
        for (targets, ranges) in seen {
            assert!(ranges as f64 >= targets * 0.7, "{ranges} ranges for {targets:.1} targets");
            assert!(ranges as f64 <= 2.0 + targets * 5.0, "{ranges} ranges for {targets:.1} targets");
        }
        assert!(soonest >= 10 * week.policy.cool_down_ms, "noise alone undoes nothing: {soonest} ms");
        // Up and down once a day, and a third more.
        assert!(splits + merges <= 7 * 2 * (most - fewest) * 4 / 3, "{splits} splits, {merges} merges");
    }
    assert_eq!(policy().window_ms / SLOTS, STEP_MS);
}

#[test]
fn without_a_gap_between_the_thresholds_ranges_would_go_to_and_fro() {
    let (week, _) = week(1, Policy { ranges_max: 64, merge_below_percent: 95, ..policy() });
    let soonest = week.undone_after_ms.iter().min().copied().unwrap_or(i64::MAX);
    assert!(soonest < 10 * week.policy.cool_down_ms, "the gap is what keeps them apart: {soonest} ms");
    assert!(soonest >= week.policy.cool_down_ms, "and still not within a cool-down");
}
