//! How the answers of children become the answer of their parent: pure functions over tails, lists and scans.
//!
//! Owns the rules of log-contracts 1.2 and 1.3. Knows nothing of drives, I/O or who asks. Both combinators take T1 to T4
//! of their children and give them back, so induction covers every tree.
//!
//! ```text
//!  quorum, K = 4      end                stripes, S = 2: parent a = child a mod 2, local a / 2
//!  child 0   x x . x  8                  child 0   0 1 2 3      parent   0 2 4 6
//!  child 1   x . x    7                  child 1   0 1 2          "      1 3 5
//!  parent    x x x x  8  (any of)
//! ```

use crate::drive::{Stored, TailDesc};
use crate::testing::{Mutant, broken};
use crate::types::Address;
use std::collections::BTreeSet;

/// Fewer children answered than a rule needs; until more of them do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got} of {children} copies answered, {needed} are needed")]
pub struct TooFew {
    /// Children that answered.
    pub got: usize,
    /// Answers that are needed.
    pub needed: usize,
    /// Children there are.
    pub children: usize,
}

/// Children of a quorum that must answer a read or a fence: any so many meet any `write` children that hold an entry.
pub fn seal_quorum(children: usize, write: usize) -> usize {
    assert!(1 <= write && write <= children, "a write quorum lies within the children");
    children - write + 1
}

/// The tail of a quorum of `children` from the tails of those that answered, all asked with the same `k`: an address is
/// written if *any* answer has it, since an acknowledged one is on a child of every seal quorum. Unacknowledged ones that
/// some child holds are kept too.
///
/// Errors: [`TooFew`] below the seal quorum: no tail can be told.
pub fn quorum_merge(children: usize, write: usize, k: u32, answers: &[TailDesc]) -> Result<TailDesc, TooFew> {
    let needed = seal_quorum(children, write);
    if answers.len() < needed {
        return Err(TooFew { got: answers.len(), needed, children });
    }
    if broken(Mutant::OrderStatistic) {
        return Ok(order_statistic(children, write, answers));
    }
    let holders_min = if broken(Mutant::WriteQuorumOfAnswers) { write } else { 1 };
    let trim = answers.iter().map(|d| d.trim).max().unwrap_or(0);
    let top = answers.iter().map(|d| d.end.max(d.trim)).max().unwrap_or(0);
    let low = top.saturating_sub(u64::from(k));
    let written = |a: u64| a < trim || holders(answers, a) >= holders_min;
    let end = (low..top).rev().find(|a| written(*a)).map_or(low, |a| a + 1);
    let holes = (low.max(trim)..end).filter(|a| !written(*a)).collect();
    Ok(TailDesc { end, holes, trim })
}

/// The tail that every seal of a quorum will find, whichever of its children answer it: that of all of them, if they hold the same.
/// `None` where it depends on who answers: then only a seal tells.
pub fn quorum_agreed(children: usize, answers: &[TailDesc]) -> Option<TailDesc> {
    let end = |d: &TailDesc| d.end.max(d.trim);
    let first = answers.first().filter(|_| answers.len() == children)?;
    let agree = answers.iter().all(|d| d.holes.is_empty() && end(d) == end(first));
    let trim = answers.iter().map(|d| d.trim).max().unwrap_or(0);
    agree.then(|| TailDesc { end: end(first), holes: BTreeSet::new(), trim })
}

/// Addresses of a quorum's window below its `end` that fewer answers hold than the write quorum asks for: what a seal
/// repairs. Children that did not answer hold nothing, as far as is known.
pub fn quorum_thin(write: usize, k: u32, answers: &[TailDesc], end: u64) -> BTreeSet<u64> {
    let trim = answers.iter().map(|d| d.trim).max().unwrap_or(0);
    let low = end.saturating_sub(u64::from(k)).max(trim);
    (low..end).filter(|a| (1..write).contains(&holders(answers, *a))).collect()
}

fn holders(answers: &[TailDesc], a: u64) -> usize {
    answers.iter().filter(|d| d.written(a)).count()
}

/// B4: an order statistic of scalar tails, which forgets that another child may cover each address.
fn order_statistic(children: usize, write: usize, answers: &[TailDesc]) -> TailDesc {
    let mut ends: Vec<u64> = answers.iter().map(|d| d.contiguous().0).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    let end = ends.get(write.min(children) - 1).copied().unwrap_or(0);
    TailDesc { end, holes: BTreeSet::new(), trim: 0 }
}

/// Window to ask each of `stripes` children for, so that together they cover the parent's last `k` addresses exactly.
pub fn stripe_window(k: u32, stripes: usize) -> u32 {
    assert!(stripes >= 1, "a striped drive has a child");
    k.div_ceil(u32::try_from(stripes).unwrap_or(u32::MAX))
}

/// The tail of a striped drive from the tails of *all* its children, in order, asked with [`stripe_window`].
pub fn striped_merge(k: u32, answers: &[TailDesc]) -> TailDesc {
    let stripes = answers.len() as u64;
    assert!(stripes >= 1, "a striped drive has a child");
    let numbered = || (0u64..).zip(answers);
    let parent = |s: u64, local: u64| local.saturating_mul(stripes).saturating_add(s);
    let end =
        numbered().filter_map(|(s, d)| d.end.max(d.trim).checked_sub(1).map(|l| parent(s, l) + 1)).max();
    let end = end.unwrap_or(0);
    let trim = numbered().map(|(s, d)| parent(s, d.trim)).min().unwrap_or(0).min(end);
    let low = end.saturating_sub(u64::from(k)).max(trim);
    let written = |a: u64| answers.get((a % stripes) as usize).is_some_and(|d| d.written(a / stripes));
    TailDesc { end, holes: (low..end).filter(|a| !written(*a)).collect(), trim }
}

/// Which child of `stripes` holds a parent's address, and where.
pub fn stripe_of(address: Address, stripes: usize) -> (usize, Address) {
    let stripes = stripes as u64;
    ((address.0 % stripes) as usize, Address(address.0 / stripes))
}

/// The parent's address of a child's.
pub fn stripe_parent(stripe: usize, local: Address, stripes: usize) -> Address {
    Address(local.0.saturating_mul(stripes as u64).saturating_add(stripe as u64))
}

/// How many of a child's addresses lie below a parent's address: a bound such as a trim point, translated.
pub fn stripe_below(stripe: usize, below: Address, stripes: usize) -> Address {
    Address(below.0.saturating_sub(stripe as u64).div_ceil(stripes as u64))
}

/// Where an entry of an answer stands in the order that was asked for, as `[first, end)`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By offset, of one partition.
    Offset,
    /// By the loglet's address.
    Address,
}

impl Order {
    fn place(self, stored: &Stored) -> (i64, i64) {
        match self {
            Order::Offset => (stored.header.base_offset, stored.header.last_offset().saturating_add(1)),
            Order::Address => {
                let at = i64::try_from(stored.header.address.0).unwrap_or(i64::MAX);
                (at, at.saturating_add(1))
            }
        }
    }
}

/// How much of a union is wanted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ends with the entry that reaches so many payload bytes.
    pub bytes: usize,
    /// At most so many entries.
    pub entries: usize,
}

/// Whether an answer certainly misses nothing: it starts at or before `from` and each entry begins where the one before
/// ended. Then one copy's answer is as good as all of them.
pub fn dense(order: Order, from: i64, answer: &[Stored]) -> bool {
    let mut at = None;
    !answer.is_empty()
        && answer.iter().all(|stored| {
            let (first, end) = order.place(stored);
            let follows = at.map_or(first <= from && from < end, |at| first == at);
            at = Some(end);
            follows
        })
}

/// Union of answers that are each in order, without repetition. Each answer is a prefix of what its child holds (limits
/// cut it), so behind the end of one child's answer another child's entry is taken only if nothing can be missing
/// between: it follows the one before without a gap. The union is therefore a prefix as well; empty only if all are.
pub fn union(order: Order, limits: Limits, answers: Vec<Vec<Stored>>) -> Vec<Stored> {
    let mut answers: Vec<_> =
        answers.into_iter().filter(|a| !a.is_empty()).map(|a| a.into_iter().peekable()).collect();
    let mut union: Vec<Stored> = Vec::new();
    let (mut bytes, mut ended, mut at) = (0usize, false, i64::MIN);
    while union.is_empty() || (union.len() < limits.entries && bytes < limits.bytes) {
        let heads = answers.iter_mut().enumerate();
        let key = |s: &Stored| (order.place(s).0, s.header.address);
        let lowest = heads.filter_map(|(i, a)| a.peek().map(|s| (key(s), i))).min();
        let Some(((first, address), which)) = lowest else { break };
        if ended && first > at {
            break;
        }
        let Some(stored) = answers.get_mut(which).and_then(Iterator::next) else { break };
        if union.last().is_none_or(|last| last.header.address != address) {
            at = order.place(&stored).1;
            bytes = bytes.saturating_add(stored.payload.len());
            union.push(stored);
        }
        ended = answers.iter_mut().any(|a| a.peek().is_none());
    }
    union
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Payload;
    use crate::testing::leaf::header;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn tail(end: u64, holes: &[u64]) -> TailDesc {
        TailDesc { end, holes: holes.iter().copied().collect(), trim: 0 }
    }

    #[test]
    fn quorum_tail_keeps_a_record_held_by_one_survivor() {
        let merged = quorum_merge(3, 2, 4, &[tail(8, &[6]), tail(7, &[5])]).unwrap();
        assert_eq!(merged, tail(8, &[]));
        assert_eq!(quorum_thin(2, 4, &[tail(8, &[6]), tail(7, &[5])], 8), BTreeSet::from([5, 6, 7]));
        assert_eq!(quorum_merge(3, 2, 4, &[tail(8, &[])]), Err(TooFew { got: 1, needed: 2, children: 3 }));
    }

    proptest! {
        #[test]
        fn where_all_copies_agree_any_seal_quorum_finds_the_same(
            copies in proptest::collection::vec((4u64..7, 0u64..5, any::<bool>()), 1..4), write in 1usize..4,
        ) {
            let tails: Vec<TailDesc> = copies
                .iter()
                .map(|(end, trim, hole)| TailDesc { trim: *trim, ..tail(*end, &[end - 2][..usize::from(*hole)]) })
                .collect();
            let (all, write) = (tails.len(), write.min(tails.len()));
            prop_assert_eq!(quorum_agreed(all + 1, &tails), None, "one did not answer");
            let Some(agreed) = quorum_agreed(all, &tails) else { return Ok(()) };
            for subset in 1..1usize << all {
                let answers: Vec<TailDesc> =
                    (0..all).filter(|i| subset >> i & 1 == 1).map(|i| tails[i].clone()).collect();
                if let Ok(merged) = quorum_merge(all, write, 8, &answers) {
                    prop_assert_eq!(merged.contiguous(), agreed.contiguous());
                }
            }
        }
    }

    #[test]
    fn an_empty_answer_is_a_vote_and_an_address_that_nobody_has_is_a_hole() {
        assert_eq!(quorum_merge(3, 2, 2, &[tail(0, &[]), tail(2, &[0])]).unwrap(), tail(2, &[0]));
        assert_eq!(quorum_merge(2, 2, 2, &[tail(0, &[])]).unwrap(), tail(0, &[]));
    }

    #[test]
    fn trimmed_addresses_count_as_written() {
        let mut trimmed = tail(4, &[]);
        trimmed.trim = 4;
        let merged = quorum_merge(3, 2, 8, &[trimmed.clone(), tail(7, &[0, 1, 2, 3, 5])]).unwrap();
        assert_eq!(merged, TailDesc { end: 7, holes: BTreeSet::from([5]), trim: 4 });
        assert_eq!(striped_merge(8, &[trimmed, tail(3, &[])]).trim, 1);
    }

    #[test]
    fn striped_tail_has_the_holes_of_short_children() {
        assert_eq!(striped_merge(4, &[tail(4, &[]), tail(2, &[])]), tail(7, &[5]));
        assert_eq!(stripe_window(4, 3), 2);
        assert_eq!(striped_merge(4, &[tail(0, &[]), tail(0, &[])]), tail(0, &[]));
    }

    fn stored(address: u64, offset: i64, records: i32) -> Stored {
        let header = header(address, 0, offset, records, 3);
        Stored { header, payload: Payload::Memory { head: Bytes::from_static(b"abc"), body: Bytes::new() } }
    }

    fn addresses(union: &[Stored]) -> Vec<u64> {
        union.iter().map(|s| s.header.address.0).collect()
    }

    const ALL: Limits = Limits { bytes: usize::MAX, entries: usize::MAX };

    #[test]
    fn a_union_stops_where_a_cut_answer_may_hide_an_entry() {
        let a = vec![stored(0, 0, 1), stored(2, 5, 1)];
        let b = vec![stored(3, 9, 1), stored(4, 10, 1)];
        assert_eq!(addresses(&union(Order::Offset, ALL, vec![a.clone(), b.clone()])), [0, 2]);
        assert_eq!(addresses(&union(Order::Offset, ALL, vec![a, vec![]])), [0, 2]);
        let dense = vec![stored(5, 6, 3)];
        let a = vec![stored(0, 0, 1), stored(2, 5, 1)];
        assert_eq!(addresses(&union(Order::Offset, ALL, vec![a, dense])), [0, 2, 5]);
        assert_eq!(addresses(&union(Order::Offset, Limits { bytes: 4, entries: 9 }, vec![b])), [3, 4]);
    }

    #[test]
    fn an_answer_is_dense_only_if_it_covers_where_reading_began() {
        assert!(dense(Order::Offset, 2, &[stored(0, 0, 3), stored(1, 3, 1)]));
        assert!(!dense(Order::Offset, 3, &[stored(0, 4, 3)]));
        assert!(!dense(Order::Offset, 0, &[stored(0, 0, 3), stored(1, 4, 1)]));
        assert!(!dense(Order::Offset, 0, &[]));
    }

    proptest! {
        /// Children that hold random subsets and cut their answers: whatever the union leaves out lies behind its end.
        #[test]
        fn a_union_never_skips_an_entry_that_a_child_holds(
            held in prop::collection::vec(prop::collection::btree_set(0u64..40, 0..40), 1..4),
            cuts in prop::collection::vec(1usize..12, 4),
            entries in 1usize..20,
        ) {
            let answers: Vec<Vec<Stored>> = held.iter().zip(&cuts)
                .map(|(held, cut)| held.iter().take(*cut).map(|a| stored(*a, *a as i64 * 2, 2)).collect())
                .collect();
            let got = addresses(&union(Order::Address, Limits { bytes: usize::MAX, entries }, answers));
            let all: BTreeSet<u64> = held.iter().flatten().copied().collect();
            let expected: Vec<u64> = all.iter().copied().take(got.len()).collect();
            prop_assert_eq!(&got, &expected);
            prop_assert_eq!(got.is_empty(), all.is_empty());
        }

        /// A striped tail equals the tail of the parent's registers, computed without stripes.
        #[test]
        fn stripes_tell_the_parents_tail_exactly(written in prop::collection::btree_set(0u64..60, 0..60), stripes in 1usize..6, k in 1u32..20) {
            let window = stripe_window(k, stripes);
            let answers: Vec<TailDesc> = (0..stripes).map(|s| {
                let own: BTreeSet<u64> = written.iter().filter(|a| **a as usize % stripes == s)
                    .map(|a| a / stripes as u64).collect();
                describe(&own, window)
            }).collect();
            prop_assert_eq!(striped_merge(k, &answers), describe(&written, k));
        }

        #[test]
        fn stripe_addresses_translate_back(a in 0u64..1000, stripes in 1usize..9) {
            let (s, local) = stripe_of(Address(a), stripes);
            prop_assert_eq!(stripe_parent(s, local, stripes), Address(a));
            for s in 0..stripes {
                let below = (0..a).filter(|b| *b as usize % stripes == s).count() as u64;
                prop_assert_eq!(stripe_below(s, Address(a), stripes), Address(below));
            }
        }
    }

    fn describe(written: &BTreeSet<u64>, k: u32) -> TailDesc {
        let end = written.last().map_or(0, |a| a + 1);
        let low = end.saturating_sub(u64::from(k));
        TailDesc { end, holes: (low..end).filter(|a| !written.contains(a)).collect(), trim: 0 }
    }
}
