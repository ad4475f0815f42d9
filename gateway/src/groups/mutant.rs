//! Switches in the coordinator, one per rule that is broken on purpose: the storms must notice each. Consulted where the
//! rule is kept; outside of tests all are off.

/// A rule broken on purpose.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A partition is given to a member while another one holds it.
    HeldIsGiven,
    /// A member is not waited for until it has given up what it is asked for.
    RevokedUnasked,
    /// Commits of a consumer group count in any epoch.
    AnyEpochCommits,
    /// Commits of a classic group count in any generation.
    AnyGenerationCommits,
    /// A generation is formed under the number of the one before.
    NumberTwice,
    /// The old self of a static member that came back is a member still.
    OldSelfStays,
    /// An older commit of a partition stays where a newer one comes.
    FirstCommitStays,
}

/// Whether this rule is broken.
#[cfg(not(test))]
pub(super) const fn is(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(super) use of_tests::{is, with};

#[cfg(test)]
mod of_tests {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether this rule is broken on this thread.
    pub(in super::super) fn is(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }

    /// Runs `test` with a rule broken.
    pub(in super::super) fn with<T>(mutant: Mutant, test: impl FnOnce() -> T) -> T {
        ON.set(Some(mutant));
        let out = test();
        ON.set(None);
        out
    }
}
