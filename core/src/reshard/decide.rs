//! Which ranges of a topic to split or merge, by load (design 7, "Automatic"). Pure: told the layout, the load, the policy
//! and the time, it answers one decision per range with a sentence for an operator, figures in it; doing it is not its
//! business, so the same answer serves as advice.
//!
//! ```text
//!   0 ........ merge below ........ target ........          a range's load, the larger of bytes and records
//!   two neighbours together       a range alone
//!   (their busiest slots)         (without its busiest slot)
//! ```
//! Between the two nothing happens: what was split at the target is far above what is merged, and the other way round.

use super::load::{Counts, RangeLoad, Rate};
use crate::control::state::OperationKind;
use crate::types::{Partition, RangeId, Span};
use std::collections::BTreeMap;

/// A split that takes less than this off the busier side, percent of the range's load, is not worth its pause.
const RELIEF_PERCENT_MIN: u64 = 10;

/// What is wanted of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A range should not get more bytes per second; 0: any.
    pub bytes_per_second: u64,
    /// A range should not get more records per second; 0: any.
    pub records_per_second: u64,
    /// A range should not store more bytes; 0: any.
    pub stored_bytes: u64,
    /// Load is judged over so long, ms.
    pub window_ms: i64,
    /// A range that was made is not changed for so long, ms.
    pub cool_down_ms: i64,
    /// Neighbours are merged when they reach, together, less than so many percent of every target; 0: never.
    pub merge_below_percent: u64,
    /// Not fewer ranges than this.
    pub ranges_min: usize,
    /// Not more ranges than this.
    pub ranges_max: usize,
    /// Not more splits and merges of the topic at a time.
    pub changes_max: usize,
}

/// A topic's ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Those that take appends, in order of partitions.
    pub ranges: Vec<RangeInfo>,
    /// Splits and merges under way.
    pub running: usize,
}

/// A range that takes appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeInfo {
    /// Its id.
    pub id: RangeId,
    /// Its partitions.
    pub span: Span,
    /// When it was made, broker ms.
    pub made_at: i64,
    /// Why it cannot be changed now, if that is so.
    pub busy: Option<&'static str>,
}

/// What to do with a range, or with two.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Split or merge.
    Change(OperationKind),
    /// Leave it as it is.
    Keep {
        /// The range.
        range: RangeId,
    },
}

impl Action {
    /// The split or merge that it is.
    pub fn change(self) -> Option<OperationKind> {
        match self {
            Action::Change(kind) => Some(kind),
            Action::Keep { .. } => None,
        }
    }
}

/// What to do, and why, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Why, with figures.
    pub why: String,
}

/// One decision for each range (one for both where two are merged), in order of partitions.
///
/// `now_ms` is on the clock of [`RangeInfo::made_at`]. Ranges without an entry in `load` count as not measured.
pub fn decide(
    layout: &Layout,
    load: &BTreeMap<RangeId, RangeLoad>,
    policy: &Policy,
    now_ms: i64,
) -> Vec<Decision> {
    let unmeasured = RangeLoad::default();
    let views: Vec<View<'_>> = layout
        .ranges
        .iter()
        .map(|info| View { info, load: load.get(&info.id).unwrap_or(&unmeasured), policy, now_ms })
        .collect();
    let mut plan = Plan {
        verdicts: views.iter().map(|_| None).collect(),
        refused: views.iter().map(|_| None).collect(),
        changes_left: policy.changes_max.saturating_sub(layout.running),
        ranges: views.len(),
        policy,
    };
    plan.splits(&views);
    plan.merges(&views);
    plan.decisions(&views)
}

/// A range with all that is to be known to judge it.
struct View<'a> {
    info: &'a RangeInfo,
    load: &'a RangeLoad,
    policy: &'a Policy,
    now_ms: i64,
}

/// What was found for a range.
enum Verdict {
    Does(Decision),
    /// The left neighbour's decision says it.
    WithLeft,
    Keeps(String),
}

struct Plan<'a> {
    verdicts: Vec<Option<Verdict>>,
    /// Why a range is not merged with its right neighbour, where both are cold.
    refused: Vec<Option<String>>,
    changes_left: usize,
    /// How many there will be.
    ranges: usize,
    policy: &'a Policy,
}

impl Plan<'_> {
    /// The busiest first.
    fn splits(&mut self, views: &[View<'_>]) {
        let mut hot: Vec<(usize, Excess)> =
            views.iter().enumerate().filter_map(|(i, view)| Some((i, view.excess()?))).collect();
        hot.sort_by_key(|(i, excess)| (std::cmp::Reverse(excess.permille), *i));
        for (i, excess) in hot {
            let view = &views[i];
            self.verdicts[i] = Some(match self.split(view) {
                Ok((at, said)) => {
                    self.changes_left -= 1;
                    self.ranges += 1;
                    let action = Action::Change(OperationKind::Split { range: view.info.id, at });
                    Verdict::Does(Decision { action, why: format!("{}; {said}.", excess.said) })
                }
                Err(why) => Verdict::Keeps(format!("{}; not split: {why}.", excess.said)),
            });
        }
    }

    /// Where to split a range, and what that gives; or why not.
    fn split(&self, view: &View<'_>) -> Result<(Partition, String), String> {
        let cut = view.cut()?;
        if let Some(why) = view.refuses_change() {
            return Err(why);
        }
        if self.ranges >= self.policy.ranges_max {
            return Err(format!("the topic has {} ranges, the most it may have", self.ranges));
        }
        self.refuses_more().map_or(Ok(cut), Err)
    }

    fn refuses_more(&self) -> Option<String> {
        let most = self.policy.changes_max;
        (self.changes_left == 0).then(|| format!("{most} split or merge at a time, others come first"))
    }

    /// The coldest neighbours first.
    fn merges(&mut self, views: &[View<'_>]) {
        let pairs = views.windows(2).enumerate();
        let mut cold: Vec<(usize, Rate, u64)> = pairs
            .filter_map(|(i, pair)| {
                let together = pair[0].load.peak.plus(pair[1].load.peak);
                let permille = cold(&pair[0], &pair[1])?;
                Some((i, together, permille))
            })
            .collect();
        cold.sort_by_key(|(i, _, permille)| (*permille, *i));
        for (i, together, _) in cold {
            if self.verdicts[i].is_some() || self.verdicts[i + 1].is_some() {
                continue;
            }
            let (left, right) = (&views[i], &views[i + 1]);
            let ids = format!("Ranges {} and {}", left.info.id.0, right.info.id.0);
            let said = format!(
                "{ids} got {} together at most, below {} % of {}",
                shown(together),
                self.policy.merge_below_percent,
                self.policy.targets()
            );
            let refusal = [left, right].iter().find_map(|view| view.refuses_change());
            match refusal.or_else(|| self.refuses_merge()) {
                // Either may yet go with its other neighbour.
                Some(why) => self.refused[i] = Some(format!("{said}; not merged: {why}.")),
                None => {
                    self.changes_left -= 1;
                    self.ranges -= 1;
                    let action =
                        Action::Change(OperationKind::Merge { left: left.info.id, right: right.info.id });
                    let why = format!("{said}; one range is enough for them.");
                    self.verdicts[i] = Some(Verdict::Does(Decision { action, why }));
                    self.verdicts[i + 1] = Some(Verdict::WithLeft);
                }
            }
        }
    }

    fn refuses_merge(&self) -> Option<String> {
        if self.ranges <= self.policy.ranges_min.max(1) {
            return Some(format!("the topic has {} ranges, the fewest it may have", self.ranges));
        }
        self.refuses_more()
    }

    fn decisions(self, views: &[View<'_>]) -> Vec<Decision> {
        let found = self.verdicts.into_iter().zip(self.refused).zip(views);
        let decisions = found.filter_map(|((verdict, refused), view)| {
            let keep = |why| Decision { action: Action::Keep { range: view.info.id }, why };
            match verdict {
                Some(Verdict::Does(decision)) => Some(decision),
                Some(Verdict::WithLeft) => None,
                Some(Verdict::Keeps(why)) => Some(keep(why)),
                None => Some(keep(refused.unwrap_or_else(|| view.quiet()))),
            }
        });
        decisions.collect()
    }
}

/// What is, what is wanted, how either is shown, and what is said of the first alone.
type Measure<'a> = (u64, u64, fn(u64) -> String, &'a str);

/// How far a range is above a target.
struct Excess {
    /// Of the target, in thousandths.
    permille: u64,
    said: String,
}

impl View<'_> {
    /// The target that it is above most, if it is above one.
    fn excess(&self) -> Option<Excess> {
        let (load, policy) = (self.load, self.policy);
        let over = format!(" over {} s", load.measured_ms / 1000);
        let measures: [Measure<'_>; 3] = [
            (load.steady.bytes, policy.bytes_per_second, |n| format!("{}/s", bytes(n)), &over),
            (load.steady.records, policy.records_per_second, |n| format!("{}/s", records(n)), &over),
            // What is not known yet is above nothing.
            (load.stored_bytes.unwrap_or(0), policy.stored_bytes, |n| format!("{} stored", bytes(n)), ""),
        ];
        let above = measures.into_iter().filter(|(is, target, ..)| 0 < *target && target <= is);
        let (is, target, show, over) = above.max_by_key(|(is, target, ..)| permille(*is, *target))?;
        let (id, permille) = (self.info.id.0, permille(is, target));
        let percent = permille / 10;
        let said =
            format!("Range {id} has {}{over}, {percent} % of the target of {}", show(is), show(target));
        Some(Excess { permille, said })
    }

    /// Why it must not be changed now.
    fn refuses_change(&self) -> Option<String> {
        if let Some(why) = self.info.busy {
            return Some(format!("range {} {why}", self.info.id.0));
        }
        let age = self.now_ms.saturating_sub(self.info.made_at);
        if age < self.policy.cool_down_ms {
            let (id, age, all) = (self.info.id.0, age.max(0) / 1000, self.policy.cool_down_ms / 1000);
            return Some(format!("range {id} was made {age} s ago, and stays as it is for {all} s"));
        }
        if self.load.measured_ms < self.policy.window_ms {
            let (id, is, all) = (self.info.id.0, self.load.measured_ms / 1000, self.policy.window_ms / 1000);
            return Some(format!("range {id} was measured for {is} of {all} s"));
        }
        None
    }

    /// Where to split it, and what that gives.
    fn cut(&self) -> Result<(Partition, String), String> {
        let span = self.info.span;
        if span.count() < 2 {
            return Err("it is one partition, which is never cut; a striped drive widens it".to_owned());
        }
        let shares = &self.load.partitions;
        let whole = shares.iter().fold(Counts::default(), |sum, counts| sum.plus(*counts));
        if whole == Counts::default() || shares.len() != span.count() {
            let at = span.first.saturating_add(i32::try_from(span.count() / 2).unwrap_or(0));
            return Ok((
                at,
                format!("a split in the middle, at partition {at}, since no partition gets more"),
            ));
        }
        let levels = self.levels();
        let share = |counts: Counts| {
            let part = |is: u64, of: u64, level: u64| permille(is, of).saturating_mul(level);
            let bytes = part(counts.bytes, whole.bytes, levels.bytes);
            let records = part(counts.records, whole.records, levels.records);
            bytes.max(records) / levels.bytes.max(levels.records)
        };
        let mut left = Counts::default();
        let mut best: Option<(u64, usize, usize)> = None;
        for (i, counts) in shares.iter().enumerate().take(shares.len() - 1) {
            left = left.plus(*counts);
            let right = Counts { bytes: whole.bytes - left.bytes, records: whole.records - left.records };
            // Of equal ones the most even.
            let uneven = (2 * (i + 1)).abs_diff(shares.len());
            let cut = (share(left).max(share(right)), uneven, i + 1);
            best = Some(best.map_or(cut, |best| best.min(cut)));
        }
        let (busier, _, index) = best.unwrap_or((1000, 0, 1));
        if busier > 1000 - 10 * RELIEF_PERCENT_MIN {
            let busier = busier / 10;
            return Err(format!(
                "any cut leaves {busier} % on one side, since one partition gets most of it"
            ));
        }
        let at = span.first.saturating_add(i32::try_from(index).unwrap_or(0));
        Ok((at, format!("a split at partition {at} leaves {} % on the busier side", busier / 10)))
    }

    /// How near bytes and records are to their targets, in thousandths; not both 0.
    fn levels(&self) -> Rate {
        let (mean, policy) = (self.load.mean, self.policy);
        let level = |is, target| if target == 0 { 0 } else { permille(is, target) };
        let levels = Rate {
            bytes: level(mean.bytes, policy.bytes_per_second),
            records: level(mean.records, policy.records_per_second),
        };
        if levels == Rate::default() { Rate { bytes: 1, records: 1 } } else { levels }
    }

    /// Nothing is to be done.
    fn quiet(&self) -> String {
        let (id, mean, seconds) = (self.info.id.0, shown(self.load.mean), self.load.measured_ms / 1000);
        let stored = match self.load.stored_bytes {
            Some(stored) => format!("stores {}", bytes(stored)),
            None => "what it stores is not known yet".to_owned(),
        };
        format!(
            "Range {id} got {mean} over {seconds} s and {stored}; the target is {}.",
            self.policy.targets()
        )
    }
}

impl Policy {
    fn targets(&self) -> String {
        let rate = |target: u64, shown: String| (target > 0).then(|| format!("{shown}/s"));
        let all = [
            rate(self.bytes_per_second, bytes(self.bytes_per_second)),
            rate(self.records_per_second, records(self.records_per_second)),
            (self.stored_bytes > 0).then(|| format!("{} stored", bytes(self.stored_bytes))),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        if all.is_empty() { "none".to_owned() } else { all.join(" or ") }
    }
}

/// How much two neighbours have together of the target that they are nearest to, in thousandths; `None` unless that is
/// little.
fn cold(left: &View<'_>, right: &View<'_>) -> Option<u64> {
    let policy = left.policy;
    let (a, b) = (left.load, right.load);
    let together = a.peak.plus(b.peak);
    let stored = match (a.stored_bytes, b.stored_bytes) {
        (Some(a), Some(b)) => a.saturating_add(b),
        // Perhaps much.
        _ if policy.stored_bytes > 0 => return None,
        _ => 0,
    };
    let nearest = [
        (together.bytes, policy.bytes_per_second),
        (together.records, policy.records_per_second),
        (stored, policy.stored_bytes),
    ]
    .into_iter()
    .filter(|(_, target)| *target > 0)
    .map(|(is, target)| permille(is, target))
    .max()?;
    (nearest < policy.merge_below_percent.saturating_mul(10)).then_some(nearest)
}

fn permille(is: u64, target: u64) -> u64 {
    let permille = u128::from(is) * 1000 / u128::from(target.max(1));
    u64::try_from(permille).unwrap_or(u64::MAX)
}

fn shown(rate: Rate) -> String {
    format!("{}/s, {}/s", bytes(rate.bytes), records(rate.records))
}

/// `41.2 MiB`.
fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (n.max(1).ilog2() / 10) as usize;
    let tenths = (u128::from(n) * 10) >> (10 * unit);
    if unit == 0 { format!("{n} B") } else { format!("{}.{} {}", tenths / 10, tenths % 10, units[unit]) }
}

/// `50,000 records`.
fn records(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    format!("{} records", groups.collect::<Vec<_>>().join(","))
}
