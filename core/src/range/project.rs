//! Projection and union of states: what a split and a merge do to the fold (design 7). Pure.

use crate::range::producers::ProducerTable;
use crate::range::state::{PartitionState, RangeState};
use crate::testing::{Mutant, broken};
use crate::types::Span;

/// Why states do not make up a range; final, the lineage is wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineageError {
    /// The part is not inside of the whole.
    #[error("partitions {}..={} are not inside of {}..={}", part.first, part.last, whole.first, whole.last)]
    Outside {
        /// What was asked for.
        part: Span,
        /// What there is.
        whole: Span,
    },
    /// The second does not begin where the first ends.
    #[error("partitions {}..={} do not follow {}..={}", right.first, right.last, left.first, left.last)]
    NotAdjacent {
        /// The first.
        left: Span,
        /// The second.
        right: Span,
    },
    /// A range with parents was given the state of none of them.
    #[error("no parent covers partitions {}..={}", .0.first, .0.last)]
    NoParent(Span),
}

/// The state of the partitions in `span`, a part of the state's own.
///
/// Errors: `Outside`.
pub fn project(state: &RangeState, span: Span) -> Result<RangeState, LineageError> {
    let whole = state.span();
    if span.count() == 0 || span.first < whole.first || span.last > whole.last {
        return Err(LineageError::Outside { part: span, whole });
    }
    if span == whole {
        return Ok(state.clone());
    }
    let skipped = whole.index(span.first).unwrap_or(0);
    let partitions = partition_states(state).skip(skipped).take(span.count());
    let producers = match broken(Mutant::SplitForgetsProducers) {
        true => ProducerTable::default(),
        false => state.producers().project(span),
    };
    Ok(RangeState::from_partitions(span, partitions, producers))
}

/// The state of two adjacent ranges as one.
///
/// Errors: `NotAdjacent`.
pub fn union(left: &RangeState, right: &RangeState) -> Result<RangeState, LineageError> {
    let (l, r) = (left.span(), right.span());
    if l.last.checked_add(1) != Some(r.first) {
        return Err(LineageError::NotAdjacent { left: l, right: r });
    }
    let span = Span { first: l.first, last: r.last };
    let producers = match broken(Mutant::MergeForgetsProducers) {
        true => ProducerTable::default(),
        false => left.producers().union(right.producers()),
    };
    Ok(RangeState::from_partitions(span, partition_states(left).chain(partition_states(right)), producers))
}

/// The state with which a range over `span` begins: its parents' folded states, in order of partitions, each cut to
/// the span, as one.
///
/// Errors: the parents do not cover the span without gap or overlap.
pub fn inherit(span: Span, parents: &[RangeState]) -> Result<RangeState, LineageError> {
    let mut whole: Option<RangeState> = None;
    for parent in parents {
        let of = parent.span();
        let part = Span { first: span.first.max(of.first), last: span.last.min(of.last) };
        let part = project(parent, part)?;
        whole = Some(match whole {
            None => part,
            Some(left) => union(&left, &part)?,
        });
    }
    let whole = whole.ok_or(LineageError::NoParent(span))?;
    if whole.span() != span {
        return Err(LineageError::Outside { part: span, whole: whole.span() });
    }
    Ok(whole)
}

fn partition_states(state: &RangeState) -> impl Iterator<Item = PartitionState> {
    state.partitions().map(|(_, partition)| partition.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::sim::{Live, SPAN, ops};
    use proptest::prelude::*;

    fn halves(at: i32) -> (Span, Span) {
        (Span { first: SPAN.first, last: at - 1 }, Span { first: at, last: SPAN.last })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..ProptestConfig::default() })]

        #[test]
        fn the_union_of_both_projections_is_the_whole(ops in ops(80), at in SPAN.first + 1..=SPAN.last) {
            let state = Live::run(&ops).state;
            let (left, right) = halves(at);
            let (l, r) = (project(&state, left).expect("inside"), project(&state, right).expect("inside"));
            prop_assert_eq!(l.producers().len() + r.producers().len(), state.producers().len());
            for (partition, of_state) in state.partitions() {
                let half = if left.contains(partition) { &l } else { &r };
                prop_assert_eq!(half.partition(partition), Some(of_state));
            }
            prop_assert!(union(&l, &r).expect("adjacent") == state);
            prop_assert!(inherit(SPAN, &[l, r]).expect("both parents") == state);
            prop_assert!(inherit(right, std::slice::from_ref(&state)).expect("one parent") == project(&state, right).expect("inside"));
        }
    }

    #[test]
    fn wrong_lineage_is_an_error() {
        let state = RangeState::new(SPAN);
        let (left, right) = halves(100);
        let (l, r) = (project(&state, left).expect("inside"), project(&state, right).expect("inside"));
        assert!(matches!(union(&r, &l), Err(LineageError::NotAdjacent { .. })));
        assert!(matches!(project(&l, right), Err(LineageError::Outside { .. })));
        assert!(matches!(project(&l, Span { first: 9, last: 8 }), Err(LineageError::Outside { .. })));
        assert!(matches!(inherit(SPAN, std::slice::from_ref(&l)), Err(LineageError::Outside { .. })));
        assert_eq!(inherit(SPAN, &[]), Err(LineageError::NoParent(SPAN)));
    }
}
