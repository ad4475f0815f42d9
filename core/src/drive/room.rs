//! Which copies of a quorum take the next run, by what they say of their room.
//!
//! A copy without room takes no records while a write quorum of others does: its reserve stays for what it is kept for. It
//! misses what it did not take, so it also stays away for the rest of the loglet, as long as those that miss nothing are
//! enough: a beginning that is whole is worth more than pieces. INV-DRIVE-3.

use crate::drive::{AdmitError, Purpose};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of each copy that was opened.
#[derive(Default)]
struct Copy {
    /// It is not sent what is submitted next.
    passed_over: AtomicBool,
    /// It was passed over once.
    behind: AtomicBool,
}

/// See the module head. `admit` and the `submit` that follows come under one lock: the loglet has one proposer.
pub(super) struct Rooms {
    copies: Box<[Copy]>,
    write: usize,
}

/// Too few copies take a run.
pub(super) struct TooFew {
    pub(super) admitting: usize,
    /// The error to tell, of those that were met.
    pub(super) why: Option<AdmitError>,
}

/// What a copy said, if it was asked.
type Answer = Option<Result<(), AdmitError>>;
type Answers = SmallVec<[Answer; 4]>;

impl Rooms {
    pub(super) fn new(copies: usize, write: usize) -> Rooms {
        Rooms { copies: (0..copies).map(|_| Copy::default()).collect(), write }
    }

    /// Asks copies whether they take so many bytes, by number, until enough do: first those that miss nothing and have room
    /// for records, then those behind that have it, then whatever takes `purpose`. Those that do take what is submitted
    /// next. Of 0 bytes it is a mere question.
    pub(super) fn admit(
        &self,
        bytes: usize,
        purpose: Purpose,
        mut ask: impl FnMut(usize, Purpose) -> Result<(), AdmitError>,
    ) -> Result<(), TooFew> {
        let mut answers: Answers = SmallVec::from_elem(None, self.copies.len());
        let mut asked = |wanted: &dyn Fn(usize, &Answer) -> bool, purpose| {
            for (i, answer) in answers.iter_mut().enumerate().filter(|(i, answer)| wanted(*i, answer)) {
                *answer = Some(ask(i, purpose));
            }
            answers.iter().filter(|answer| takes(answer)).count()
        };
        let is_behind = |i: usize| self.copies.get(i).is_some_and(|c| c.behind.load(Ordering::Relaxed));
        let first = if purpose == Purpose::Unasked { purpose } else { Purpose::Records };
        let mut admitting = asked(&|i, _| !is_behind(i), first);
        if admitting < self.write {
            admitting = asked(&|_, answer| answer.is_none(), first);
        }
        if admitting < self.write && purpose != first {
            admitting = asked(&|_, answer| !takes(answer), purpose);
        }
        let enough = admitting >= self.write;
        if bytes > 0 {
            for (copy, answer) in self.copies.iter().zip(&answers) {
                // What is submitted all the same goes to all, as to one disk.
                copy.passed_over.store(enough && !takes(answer), Ordering::Relaxed);
            }
        }
        if enough { Ok(()) } else { Err(TooFew { admitting, why: worst(answers) }) }
    }

    /// Whether a copy is not sent the run that is submitted now; and whether it is the first time.
    pub(super) fn passes_over(&self, copy: usize) -> Option<First> {
        let copy = self.copies.get(copy).filter(|c| c.passed_over.load(Ordering::Relaxed))?;
        Some(First(!copy.behind.swap(true, Ordering::Relaxed)))
    }

    /// Whether a copy misses what others were sent, since it had no room.
    pub(super) fn any_behind(&self) -> bool {
        self.copies.iter().any(|copy| copy.behind.load(Ordering::Relaxed))
    }
}

/// Whether it is the first time.
pub(super) struct First(pub(super) bool);

fn takes(answer: &Answer) -> bool {
    matches!(answer, Some(Ok(())))
}

/// Full passes when space is freed, so it is the better news.
fn worst(answers: Answers) -> Option<AdmitError> {
    let errors = answers.into_iter().filter_map(|answer| answer?.err());
    errors.reduce(|held, error| if matches!(held, AdmitError::Dead(_)) { error } else { held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Purpose::{Coordination, Freeing, Records, Rewriting};

    /// What copies take: up to how deep into their reserve, or not even with room.
    const ROOM: Option<Purpose> = Some(Records);

    fn admit(rooms: &Rooms, purpose: Purpose, copies: [Option<Purpose>; 3]) -> Result<Vec<usize>, usize> {
        let depth = |p: Purpose| match p {
            Purpose::Unasked | Records => 0,
            Coordination => 1,
            Rewriting => 2,
            Freeing => 3,
        };
        let ask = |i: usize, asked: Purpose| match copies[i] {
            Some(least) if depth(asked) >= depth(least) => Ok(()),
            Some(_) => Err(AdmitError::Full("full".into())),
            None => Err(AdmitError::Dead("dead".into())),
        };
        rooms.admit(1, purpose, ask).map_err(|few| few.admitting)?;
        Ok((0..3).filter(|i| rooms.passes_over(*i).is_none()).collect())
    }

    #[test]
    fn a_copy_without_room_is_passed_over_while_enough_others_have_it_whatever_it_is() {
        for purpose in [Records, Coordination, Rewriting, Freeing] {
            let rooms = Rooms::new(3, 2);
            assert_eq!(admit(&rooms, purpose, [ROOM; 3]), Ok(vec![0, 1, 2]));
            assert!(!rooms.any_behind());
            assert_eq!(admit(&rooms, purpose, [Some(Coordination), ROOM, ROOM]), Ok(vec![1, 2]));
            assert!(rooms.any_behind());
        }
    }

    #[test]
    fn what_misses_nothing_goes_on_and_what_is_behind_takes_part_when_it_is_needed() {
        let rooms = Rooms::new(3, 2);
        assert_eq!(admit(&rooms, Records, [Some(Freeing), ROOM, ROOM]), Ok(vec![1, 2]));
        assert_eq!(admit(&rooms, Records, [ROOM; 3]), Ok(vec![1, 2]), "it has room again");
        assert_eq!(admit(&rooms, Records, [ROOM, Some(Freeing), ROOM]), Ok(vec![0, 2]));
        assert_eq!(admit(&rooms, Records, [ROOM, ROOM, None]), Ok(vec![0, 1]));
        assert_eq!(admit(&rooms, Records, [ROOM, Some(Freeing), None]), Err(1));
    }

    #[test]
    fn reserves_are_used_only_where_room_is_not_enough_and_as_deep_as_the_purpose_goes() {
        let rooms = Rooms::new(3, 2);
        let full = [Some(Coordination), Some(Rewriting), Some(Freeing)];
        assert_eq!(admit(&rooms, Records, full), Err(0));
        assert_eq!(admit(&rooms, Coordination, full), Err(1));
        assert_eq!(admit(&rooms, Rewriting, full), Ok(vec![0, 1]));
        assert_eq!(admit(&rooms, Freeing, full), Ok(vec![0, 1, 2]));
        assert_eq!(admit(&rooms, Coordination, [ROOM, Some(Coordination), Some(Freeing)]), Ok(vec![0, 1]));
    }

    #[test]
    fn a_question_changes_nothing() {
        let rooms = Rooms::new(2, 1);
        let full = |i: usize, _| if i == 0 { Err(AdmitError::Full("full".into())) } else { Ok(()) };
        assert!(rooms.admit(0, Records, full).is_ok());
        assert!(rooms.passes_over(0).is_none() && !rooms.any_behind());
        assert!(rooms.admit(1, Records, full).is_ok());
        assert!(rooms.passes_over(0).is_some_and(|first| first.0));
        assert!(rooms.passes_over(0).is_some_and(|first| !first.0));
    }
}
