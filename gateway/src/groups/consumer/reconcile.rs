//! One member's next step towards its target. Pure.

use super::super::mutant::{self, Mutant};
use super::image::{Current, Partitions, Step, contains, flat};
use rangeway_core::types::TopicId;
use std::collections::BTreeSet;

/// What a member goes towards, and what is known on the way.
pub(super) struct Aim<'a> {
    /// The target's epoch.
    pub(super) epoch: i32,
    /// What the member shall own.
    pub(super) target: &'a Partitions,
    /// What others hold or have still to give up.
    pub(super) held: &'a BTreeSet<(TopicId, i32)>,
    /// What the member says it owns; `None`: it did not say.
    pub(super) owned: Option<&'a Partitions>,
    /// Topics that it may be given more of; `None`: all of its target.
    pub(super) given: Option<&'a BTreeSet<TopicId>>,
}

impl Aim<'_> {
    /// The member after this step: the same when there is nothing to do, or it has to give up partitions first.
    pub(super) fn step(&self, current: &Current) -> Current {
        match current.state {
            Step::Stable if current.epoch == self.epoch => current.clone(),
            Step::Unrevoked if self.may_own(&current.revoking) => current.clone(),
            // What it was asked for is given up: the rest of its way may begin with further ones.
            Step::Unrevoked => self.next(current, (current.epoch + 1).min(self.epoch)),
            Step::Stable | Step::Unreleased => self.next(current, current.epoch),
        }
    }

    fn next(&self, current: &Current, epoch: i32) -> Current {
        let mut assigned = current.assigned.clone();
        let revoking = split_off(&mut assigned, |partition| contains(self.target, partition));
        if !revoking.is_empty() && self.may_own(&revoking) && !mutant::is(Mutant::RevokedUnasked) {
            return moved(current, epoch, Step::Unrevoked, assigned, revoking);
        }
        let mut waits = false;
        for (topic, partition) in flat(self.target) {
            if contains(&assigned, (topic, partition)) || self.given.is_some_and(|of| !of.contains(&topic)) {
                continue;
            }
            if self.held.contains(&(topic, partition)) && !mutant::is(Mutant::HeldIsGiven) {
                waits = true;
            } else {
                assigned.entry(topic).or_default().insert(partition);
            }
        }
        let state = if waits { Step::Unreleased } else { Step::Stable };
        moved(current, self.epoch, state, assigned, Partitions::new())
    }

    /// Whether the member may still read any of these: it said so, or did not say.
    fn may_own(&self, partitions: &Partitions) -> bool {
        self.owned.is_none_or(|owned| flat(partitions).any(|partition| contains(owned, partition)))
    }
}

fn moved(current: &Current, epoch: i32, state: Step, assigned: Partitions, revoking: Partitions) -> Current {
    let previous_epoch = if epoch == current.epoch { current.previous_epoch } else { current.epoch };
    Current { epoch, previous_epoch, state, assigned, revoking }
}

/// Takes out what `keep` does not keep.
fn split_off(partitions: &mut Partitions, keep: impl Fn((TopicId, i32)) -> bool) -> Partitions {
    let mut out = Partitions::new();
    partitions.retain(|topic, of| {
        let gone: BTreeSet<i32> = of.iter().copied().filter(|p| !keep((*topic, *p))).collect();
        of.retain(|p| !gone.contains(p));
        if !gone.is_empty() {
            out.insert(*topic, gone);
        }
        !of.is_empty()
    });
    out
}

#[cfg(test)]
mod tests {
    use super::super::image::by_topic;
    use super::*;
    use uuid::Uuid;

    fn of(partitions: &[i32]) -> Partitions {
        by_topic(partitions.iter().map(|p| (TopicId(Uuid::from_bytes([1; 16])), *p)))
    }

    fn at(epoch: i32, state: Step, assigned: &[i32], revoking: &[i32]) -> Current {
        Current { epoch, previous_epoch: epoch - 1, state, assigned: of(assigned), revoking: of(revoking) }
    }

    fn step(current: &Current, epoch: i32, target: &[i32], held: &[i32], owned: Option<&[i32]>) -> Current {
        let target = of(target);
        let held = flat(&of(held)).collect();
        let owned = owned.map(of);
        Aim { epoch, target: &target, held: &held, owned: owned.as_ref(), given: None }.step(current)
    }

    #[test]
    fn a_new_member_gets_what_is_free_and_waits_for_the_rest() {
        let new = Current::default();
        assert_eq!(step(&new, 1, &[0, 1], &[], None), at(1, Step::Stable, &[0, 1], &[]));
        let waits = step(&new, 1, &[0, 1], &[1], None);
        assert_eq!(waits, at(1, Step::Unreleased, &[0], &[]));
        assert_eq!(step(&waits, 1, &[0, 1], &[1], None), waits);
        assert_eq!(step(&waits, 1, &[0, 1], &[], None).assigned, of(&[0, 1]));
    }

    #[test]
    fn a_partition_is_asked_back_until_the_member_says_that_it_is_without_it() {
        let has = at(2, Step::Stable, &[0, 1, 2], &[]);
        let asked = step(&has, 3, &[0, 1], &[], Some(&[0, 1, 2]));
        assert_eq!(asked, Current { previous_epoch: 1, ..at(2, Step::Unrevoked, &[0, 1], &[2]) });
        for owned in [None, Some(&[0, 1, 2][..]), Some(&[2])] {
            assert_eq!(step(&asked, 3, &[0, 1], &[], owned), asked, "{owned:?}");
        }
        assert_eq!(step(&asked, 3, &[0, 1], &[], Some(&[0, 1])), at(3, Step::Stable, &[0, 1], &[]));
        // Without a word about what it owns it may own anything.
        assert_eq!(step(&has, 3, &[0, 1], &[], None).state, Step::Unrevoked);
        // It gave up everything before it was asked.
        assert_eq!(step(&has, 3, &[0, 1], &[], Some(&[])), at(3, Step::Stable, &[0, 1], &[]));
    }

    #[test]
    fn a_target_that_changes_on_the_way_is_followed() {
        let asked = Current { previous_epoch: 1, ..at(2, Step::Unrevoked, &[0, 1], &[2]) };
        let further = step(&asked, 7, &[0], &[], Some(&[0, 1]));
        assert_eq!(further, at(3, Step::Unrevoked, &[0], &[1]));
        // It comes back to where it was: what it gave up is its own again.
        assert_eq!(step(&asked, 7, &[0, 1, 2], &[], Some(&[0, 1])).assigned, of(&[0, 1, 2]));
        assert_eq!(step(&asked, 7, &[0, 1, 2], &[2], Some(&[0, 1])).state, Step::Unreleased);
    }

    #[test]
    fn of_topics_that_it_has_just_taken_back_a_member_is_given_no_more() {
        let target = of(&[0, 1]);
        let (held, owned, given) = (BTreeSet::new(), of(&[0]), BTreeSet::new());
        let aim = Aim { epoch: 3, target: &target, held: &held, owned: Some(&owned), given: Some(&given) };
        assert_eq!(aim.step(&at(2, Step::Unrevoked, &[0], &[2])), at(3, Step::Stable, &[0], &[]));
    }

    #[test]
    fn a_member_that_is_where_it_shall_be_stays() {
        let settled = at(3, Step::Stable, &[0], &[]);
        assert_eq!(step(&settled, 3, &[0], &[], None), settled);
        assert_eq!(step(&settled, 4, &[0], &[], None), at(4, Step::Stable, &[0], &[]));
    }
}
