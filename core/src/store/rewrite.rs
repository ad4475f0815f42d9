//! Which closed extents are rewritten into a chunk next. Pure.
//!
//! Extents with large runs are data as they are. Scattered ones wait, within a bound, so that what dies young is never
//! written twice. What is half dead (a quarter, while the disk is full), or holds only entries of the whole range any more (checkpoints, log starts), is
//! rewritten at once, extents and chunks alike: what lives pins no more than its own size of what is dead.

use std::ops::Range;

/// Most neighbours that are rewritten together.
const TOGETHER_MAX: usize = 4;
/// Most entries of several that are rewritten together: their headers are held in memory meanwhile.
const ENTRIES_MAX: u64 = 64 << 10;
/// Most bytes of several: positions in a chunk are 32 bits.
const BYTES_MAX: u64 = 1 << 30;

/// How much of an extent or a chunk is left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Entries of partitions.
    Live,
    /// At least half is dead, a quarter while the disk is full, or nothing but entries of the whole range is left, and others have died.
    Spent,
    /// Nothing.
    Dead,
}

/// What is left in an extent or a chunk, in payload bytes, about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Of partitions.
    pub(crate) live: u64,
    /// Of entries of the whole range.
    pub(crate) whole: u64,
    /// Something in it is dead.
    pub(crate) gone: bool,
}

/// How a file is of whose `payload` bytes so much is left, on a disk that is `full` or not. What was just rewritten is not
/// spent: nothing in it is dead.
pub(crate) fn life_of(left: Left, payload: u64, full: bool) -> Life {
    let lives = left.live.saturating_add(left.whole);
    match left {
        Left { live: 0, whole: 0, .. } => Life::Dead,
        Left { gone: false, .. } => Life::Live,
        Left { live: 0, .. } => Life::Spent,
        _ if lives <= payload / 2 => Life::Spent,
        _ if full && lives <= payload - payload / 4 => Life::Spent,
        _ => Life::Live,
    }
}

/// A closed extent, or a chunk; neighbours in the list have no other between them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) chunk: bool,
    pub(crate) adopted: bool,
    /// Cannot be rewritten, or found no room when it was tried.
    pub(crate) stuck: bool,
    pub(crate) life: Life,
    pub(crate) len: u64,
    pub(crate) entries: u64,
}

/// How much a rewrite may get in the journal's way. Appends are never refused for it; only the disk's reserve refuses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It waits for a busy journal, and leaves it half of the time.
    Low,
    /// More than twice the bound waits: it takes its share of the disk, or extents pile up.
    High,
}

/// What to rewrite together next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Of the candidates.
    pub(crate) range: Range<usize>,
    pub(crate) urgency: Urgency,
}

impl Candidate {
    fn is_scattered(&self) -> bool {
        !self.chunk && !self.adopted && !self.stuck
    }
    fn is_spent(&self) -> bool {
        self.life == Life::Spent && !self.stuck
    }
}

/// What to rewrite together next; `all` is oldest first. On a `full` disk what is spent goes first: it alone frees.
pub(crate) fn choose(all: &[Candidate], journal_bytes: u64, full: bool) -> Option<Choice> {
    let waiting: u64 = all.iter().filter(|c| c.is_scattered()).map(|c| c.len).sum();
    let frees = full && all.iter().any(Candidate::is_spent);
    if waiting > journal_bytes
        && !frees
        && let Some(first) = all.iter().position(Candidate::is_scattered)
    {
        // A quarter more than needed, so that neighbours are clustered together.
        let enough = waiting - (journal_bytes - journal_bytes / 4);
        let urgency = if waiting / 2 > journal_bytes { Urgency::High } else { Urgency::Low };
        return Some(Choice { range: run(all, first, enough, Candidate::is_scattered), urgency });
    }
    let first = all.iter().position(Candidate::is_spent)?;
    Some(Choice { range: run(all, first, u64::MAX, Candidate::is_spent), urgency: Urgency::Low })
}

/// Neighbours from `first` on until `enough` bytes are taken.
fn run(all: &[Candidate], first: usize, enough: u64, fits: fn(&Candidate) -> bool) -> Range<usize> {
    let (mut end, mut bytes, mut entries) = (first, 0u64, 0u64);
    while let Some(next) = all.get(end).filter(|c| fits(c) && end - first < TOGETHER_MAX && bytes < enough) {
        bytes = bytes.saturating_add(next.len);
        entries = entries.saturating_add(next.entries);
        if end > first && (entries > ENTRIES_MAX || bytes > BYTES_MAX) {
            break;
        }
        end += 1;
    }
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate() -> impl Strategy<Value = Candidate> {
        let life = prop_oneof![4 => Just(Life::Live), 1 => Just(Life::Spent)];
        (
            prop::bool::weighted(0.2),
            prop::bool::weighted(0.3),
            prop::bool::weighted(0.1),
            life,
            1u64..100,
            0u64..40_000,
        )
            .prop_map(|(chunk, adopted, stuck, life, len, entries)| Candidate {
                chunk,
                adopted: adopted && !chunk,
                stuck,
                life,
                len,
                entries,
            })
    }

    #[test]
    fn a_full_disk_has_files_rewritten_of_which_a_quarter_is_dead() {
        for (live, gone, full, expected) in [
            (75, true, true, Life::Spent),
            (75, true, false, Life::Live),
            (76, true, true, Life::Live),
            (75, false, true, Life::Live),
            (u64::MAX, true, true, Life::Live),
        ] {
            assert_eq!(life_of(Left { live, whole: 0, gone }, 100, full), expected, "{live} {gone} {full}");
        }
    }

    #[test]
    fn a_file_is_spent_from_half_of_it_on_or_when_no_record_is_left() {
        for (live, whole, gone, expected) in [
            (0, 0, true, Life::Dead),
            (0, 0, false, Life::Dead),
            (0, 100, false, Life::Live),
            (0, 99, true, Life::Spent),
            (100, 0, false, Life::Live),
            (51, 0, true, Life::Live),
            (50, 0, true, Life::Spent),
            (40, 11, true, Life::Live),
            (u64::MAX, 0, true, Life::Live),
        ] {
            assert_eq!(life_of(Left { live, whole, gone }, 100, false), expected, "{live} {whole} {gone}");
        }
    }

    proptest! {
        #[test]
        fn adopted_data_stays_scattered_data_waits_and_spent_extents_go_at_once(
            all in prop::collection::vec(candidate(), 0..20), journal_bytes in 0u64..600, full in any::<bool>(),
        ) {
            let waiting: u64 = all.iter().filter(|c| c.is_scattered()).map(|c| c.len).sum();
            let chosen = choose(&all, journal_bytes, full);
            let spent = all.iter().any(|c| c.is_spent());
            prop_assert_eq!(chosen.is_some(), waiting > journal_bytes || spent);
            let Some(Choice { range, urgency }) = chosen else { return Ok(()) };
            let waits = waiting > journal_bytes && !(full && spent);
            prop_assert_eq!(urgency == Urgency::High, waits && waiting > 2 * journal_bytes + 1);
            let picked = &all[range.clone()];
            prop_assert!(!picked.is_empty() && picked.len() <= TOGETHER_MAX);
            prop_assert!(picked.iter().all(|c| !c.stuck));
            prop_assert!(picked.len() == 1 || picked.iter().map(|c| c.entries).sum::<u64>() <= ENTRIES_MAX);
            if waits {
                prop_assert!(picked.iter().all(|c| c.is_scattered()));
                prop_assert!(!all[..range.start].iter().any(|c| c.is_scattered()), "oldest first");
                let but_last: u64 = picked[..picked.len() - 1].iter().map(|c| c.len).sum();
                prop_assert!(waiting - but_last > journal_bytes - journal_bytes / 4, "no more than needed");
            } else {
                prop_assert!(picked.iter().all(|c| c.is_spent()));
            }
        }
    }
}
