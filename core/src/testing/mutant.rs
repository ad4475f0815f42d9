//! Switches in the code under test, one per counter-example of the design; consulted where the rule is kept.

/// A rule broken on purpose. Names follow the counter-examples.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// B1: the tail is computed from ends measured before the fence. What was measured is kept in tests only.
    #[cfg(test)]
    MeasuredBeforeFence,
    /// B2: the tail is the highest end, holes below it or not.
    HighestEnd,
    /// B3: only addresses that a write quorum *of the answers* holds count.
    WriteQuorumOfAnswers,
    /// B4: the tail is an order statistic of the children's own tails.
    OrderStatistic,
    /// A read takes the word of a seal quorum that nothing is there, also where a seal kept what one copy alone holds.
    SealQuorumReads,
    /// B6: readers see the tail before the chain has recorded it.
    TailShownEarly,
    /// B7: a fenced leaf says Ok to a write of the bytes that it holds.
    FencedRewriteOk,
    /// B9: a wiped leaf answers under its old name.
    WipedLeafAnswers,
    /// M5: the roll's compare-and-set goes out before the drain is complete.
    RollBeforeDrain,
    /// M1: children are opened before the parents' ends are recorded.
    OpenBeforeRecord,
    /// M2: a split or merge records ends that were measured before the fence or drain.
    ReshardEndMeasured,
    /// M16: an abort leaves a fenced segment as its range's last.
    AbortForgetsFence,
    /// M7: intent and abort leave the range's version as it is.
    IntentKeepsVersion,
    /// M8: an intent does not keep a second one away.
    IntentDoesNotBlock,
    /// M4a: a parked batch that is refused leaves what is behind it.
    RefusedAlone,
    /// M4c: a batch goes past those of its partition that are parked.
    ParkedOvertaken,
    /// M4e: nobody remembers which sequence was refused.
    RefusedForgotten,
    /// M4f: after a plain batch was refused later ones are taken.
    PlainRefused,
    /// M21: a parked batch that is refused stays parked.
    RefusedStays,
    /// M4b: a batch that is withdrawn when its segment ends leaves what is behind it.
    WithdrawnAlone,
    /// M4d: a successor takes new batches before those that it took over.
    OthersBeforeInherited,
    /// M19: that a sequence is wrong is said by a primary that need not lead any more.
    NegativeAtOnce,
    /// M20: who looks a partition up may find a range that has ended.
    EndedRangeFound,
    /// M13: a duplicate of what is in flight is answered at once.
    DuplicateInFlight,
    /// M14: everything in flight is appended again when its segment ends, what is below the tail too.
    BlindReappend,
    /// M3: a child begins without its parent's producers.
    SplitForgetsProducers,
    /// M3m: a merged range begins without its parents' producers.
    MergeForgetsProducers,
    /// M8b: a range is closed whatever its version is.
    CloseUnversioned,
    /// M9: what stands behind a segment's first checkpoint is acknowledged before the checkpoint is complete.
    CheckpointNotAwaited,
    /// M10: a range whose own segments are empty folds to nothing.
    EmptyFoldsBlank,
    /// M11: another incarnation leads under the leader epoch of the one before.
    EpochKept,
    /// M12: a leader epoch is made from the folded one, not taken from the chain.
    EpochFromFold,
    /// M15: what every partition has passed is dropped, whoever folds through it.
    DroppedTooEarly,
    /// M17: children are opened by the operation's driver only.
    OnlyDriverOpens,
    /// M18: a leaf that was fenced takes writes again.
    FenceLifted,
    /// M6: issuing goes on after a roll's compare-and-set that was never answered.
    ResumeUnanswered,
    /// N1: each parent of a merge brings its reader the whole child.
    WholeChildPerParent,
    /// N2: the first parent of a merge that is drained enters the child for both.
    FirstParentEnters,
    /// N3a: neighbours at unequal addresses of a range unite at the higher one.
    UnequalUnitedHigh,
    /// N3b: neighbours at unequal addresses of a range unite at the lower one.
    UnequalUnitedLow,
    /// N4: a place in a dropped range goes to the open ranges.
    DroppedToLatest,
    /// N5: a place is not cut at the children's borders.
    SpanNotCut,
    /// N6: what was missed is not reported.
    SilentSkip,
    /// X1: a marker is taken for a new one whatever its transaction's number is.
    MarkerUnnumbered,
    /// X2: a marker leaves its producer's epoch as it is.
    MarkerKeepsEpoch,
    /// X3: a checkpoint says nothing of open transactions.
    OpenNotFolded,
    /// X4: a checkpoint says nothing of the numbers of markers.
    NumberNotFolded,
    /// X5: a marker whose copy is in flight is answered at once.
    MarkerInFlight,
    /// The last stable offset moves when a marker is issued, not when it is complete.
    StableShownEarly,
}

#[cfg(test)]
pub(crate) mod switched {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether this thread runs with `mutant`.
    pub(crate) fn broken(mutant: Mutant) -> bool {
        BROKEN.with(|b| b.get() == Some(mutant))
    }

    /// Runs `f` on this thread with one rule broken.
    pub(crate) fn with_broken<T>(mutant: Option<Mutant>, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Mutant>);
        impl Drop for Restore {
            fn drop(&mut self) {
                BROKEN.with(|b| b.set(self.0));
            }
        }
        let _restore = Restore(BROKEN.with(|b| b.replace(mutant)));
        f()
    }
}

#[cfg(test)]
pub(crate) use switched::broken;

/// Never, outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn broken(_mutant: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_holds_for_its_closure_on_its_thread_only() {
        switched::with_broken(Some(Mutant::RollBeforeDrain), || {
            assert!(broken(Mutant::RollBeforeDrain));
            assert!(!broken(Mutant::ResumeUnanswered));
            assert!(!std::thread::spawn(|| broken(Mutant::RollBeforeDrain)).join().unwrap());
        });
        assert!(!broken(Mutant::RollBeforeDrain));
    }
}
