//! Which HTTP connections are open, what each waits for, and which one ends when another comes and no place is left. Pure: it
//! is told the time.
//!
//! A connection that waits for a request ends for a new one at once, one whose client is slow with a body or an answer after
//! [`Limits::patience`]. One that the node works for never does. Whether one may end and that it begins on a request is
//! decided in one place, so no request is begun on a connection that ends.

use super::limits::Limits;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// What a connection waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Its client, with the head of a request; part of one may have come.
    Request,
    /// Its client, with the body.
    Body,
    /// The node.
    Node,
    /// Its client, with taking the answer, of which the library does not have all.
    Answer,
    /// Its client, with taking the rest of it.
    Rest,
}

/// What happens on a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The head of a request is there.
    Head,
    /// Nothing of its body is needed any more.
    BodyRead,
    /// Its answer is made.
    Answered,
    /// All of the answer is on its way to the stream.
    Handed,
    /// The stream has taken all that it was given.
    Flushed,
}

impl Stage {
    fn after(self, event: Event) -> Stage {
        match (self, event) {
            (_, Event::Head) => Stage::Body,
            (Stage::Body, Event::BodyRead) => Stage::Node,
            (Stage::Body | Stage::Node, Event::Answered) => Stage::Answer,
            (Stage::Answer, Event::Handed) => Stage::Rest,
            (Stage::Rest, Event::Flushed) => Stage::Request,
            (as_it_is, _) => as_it_is,
        }
    }
}

#[derive(Debug)]
struct Place {
    stage: Stage,
    since: Instant,
    end: CancellationToken,
}

/// The connections that are open.
#[derive(Debug)]
pub(super) struct Places {
    limits: Limits,
    next: u64,
    open: BTreeMap<u64, Place>,
}

/// What becomes of a new connection.
#[derive(Debug)]
pub(super) enum Entry {
    /// It has this place, which ends with the token.
    Taken(u64, CancellationToken),
    /// It waits until one leaves or changes its stage, or so long.
    Full(Option<Duration>),
}

impl Places {
    pub(super) fn new(limits: Limits) -> Places {
        Places { limits, next: 0, open: BTreeMap::new() }
    }

    /// Gives a new connection its place, or ends another one for it.
    pub(super) fn enter(&mut self, now: Instant) -> Entry {
        if self.open.len() >= self.limits.connections {
            return Entry::Full(self.make_room(now));
        }
        let (id, end) = (self.next, CancellationToken::new());
        self.next += 1;
        self.open.insert(id, Place { stage: Stage::Request, since: now, end: end.clone() });
        Entry::Taken(id, end)
    }

    /// Ends a connection, unless one ends already; answers how soon one may be ended where none may now.
    fn make_room(&self, now: Instant) -> Option<Duration> {
        if self.open.values().any(|place| place.end.is_cancelled()) {
            return None;
        }
        let oldest = |of: fn(Stage) -> bool| {
            self.open.values().filter(move |place| of(place.stage)).min_by_key(|place| place.since)
        };
        if let Some(idle) = oldest(|stage| stage == Stage::Request) {
            idle.end.cancel();
            return None;
        }
        let slow = oldest(|stage| stage != Stage::Node)?;
        let left = self.limits.patience.saturating_sub(now.saturating_duration_since(slow.since));
        if left.is_zero() {
            slow.end.cancel();
            return None;
        }
        Some(left)
    }

    /// Takes note of what happened on a connection; whether it goes on.
    pub(super) fn tell(&mut self, id: u64, event: Event, now: Instant) -> bool {
        let Some(place) = self.open.get_mut(&id).filter(|place| !place.end.is_cancelled()) else {
            return false;
        };
        let stage = place.stage.after(event);
        if stage != place.stage {
            (place.stage, place.since) = (stage, now);
        }
        true
    }

    /// A connection is closed.
    pub(super) fn leave(&mut self, id: u64) {
        self.open.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    const TO_THE_NODE: [Event; 2] = [Head, BodyRead];

    struct Door {
        places: Places,
        begun: Instant,
        ends: Vec<(u64, CancellationToken)>,
    }

    /// A door whose `n` connections came one second after the other.
    fn door(n: u64) -> Door {
        let limits = Limits { connections: n as usize, patience: PATIENCE, ..Limits::default() };
        let mut door = Door { places: Places::new(limits), begun: Instant::now(), ends: Vec::new() };
        for second in 0..n {
            let Entry::Taken(id, end) = door.enter(second) else { panic!("there is a place") };
            door.ends.push((id, end));
        }
        door
    }

    impl Door {
        fn at(&self, second: u64) -> Instant {
            self.begun + Duration::from_secs(second)
        }

        fn enter(&mut self, second: u64) -> Entry {
            self.places.enter(self.at(second))
        }

        fn tell(&mut self, id: u64, events: &[Event], second: u64) -> bool {
            let at = self.at(second);
            events.iter().all(|event| self.places.tell(id, *event, at))
        }

        /// Who ends for a connection that comes then, else how long it waits.
        fn ended(&mut self, second: u64) -> (Vec<u64>, Option<Duration>) {
            let Entry::Full(wait) = self.enter(second) else { panic!("no place is free") };
            (self.ends.iter().filter(|(_, end)| end.is_cancelled()).map(|(id, _)| *id).collect(), wait)
        }
    }

    #[test]
    fn what_has_waited_longest_for_a_request_ends_for_a_new_connection() {
        let mut door = door(3);
        // The first has had an answer since.
        assert!(door.tell(0, &[Head, BodyRead, Answered, Handed, Flushed], 4));
        assert_eq!(door.ended(5), (vec![1], None));
        assert_eq!(door.ended(6), (vec![1], None), "one at a time");
        assert!(!door.tell(1, &[Head], 6), "no request begins on it any more");
        door.places.leave(1);
        assert!(matches!(door.enter(6), Entry::Taken(3, _)));
        assert_eq!(door.ended(7), (vec![1, 2], None));
    }

    #[test]
    fn what_the_node_works_for_does_not_end_and_what_its_client_holds_up_does_after_a_while() {
        for (held_up, named) in [
            (&[Head][..], "body"),
            (&[Head, BodyRead, Answered], "answer"),
            (&[Head, Answered, Handed], "rest"),
        ] {
            let mut door = door(2);
            assert!(door.tell(0, &TO_THE_NODE, 2));
            assert!(door.tell(1, held_up, 3));
            assert_eq!(door.ended(4), (vec![], Some(PATIENCE - Duration::from_secs(1))), "{named}");
            assert_eq!(door.ended(8), (vec![1], None), "{named}");
        }
        let mut door = door(1);
        assert!(door.tell(0, &TO_THE_NODE, 1));
        assert_eq!(door.ended(1000), (vec![], None), "it waits until something changes");
    }

    #[test]
    fn events_that_come_late_change_nothing() {
        let mut door = door(1);
        // Answered before its body had come, of which the rest is read behind the answer.
        assert!(door.tell(0, &[Head, Answered, BodyRead, Handed, BodyRead], 1));
        assert_eq!(door.ended(2).0, [0; 0], "the answer is not taken yet");
        assert!(door.tell(0, &[Flushed, Flushed, Handed], 3));
        assert_eq!(door.ended(4).0, [0]);
    }
}
