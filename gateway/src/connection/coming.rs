//! Frames that are still coming: which may take more memory, and which end when none is left. Pure: it is told the time.
//!
//! Owns the bytes that unfinished large frames hold, and their limit. A frame may grow while they are below the limit.
//! When they are not, it waits. Of those that wait it is the turn of the one of which least is missing: when there is room,
//! or to go above the limit to its end, one at a time, so that frames which hold all of it cannot keep each other from ending.
//! When somebody has waited for [`PATIENCE`], frames end whose bytes could have come and did not: the slowest first. Nobody is
//! ended for being slow while there is room, nor for not being read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// So long a frame waits for memory before others that come too slowly end.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Slower than so many bytes per second is too slow while others wait for memory.
const PACE_MIN: u64 = 64 << 10;

/// Unfinished frames, by the number of their connection's arrival.
#[derive(Debug)]
pub(super) struct Coming {
    limit: u64,
    held: u64,
    frames: BTreeMap<u64, Frame>,
    /// Those that wait, with what is missing of each in front.
    waiting: BTreeSet<(u64, u64)>,
    /// Who may go above the limit.
    above: Option<u64>,
}

#[derive(Debug)]
struct Frame {
    held: u64,
    missing: u64,
    turn: Turn,
}

/// Whose turn it is to do something about a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Turn {
    /// The client's: what comes is read. `came` bytes `since`; `before`: so many per second in the stretch before.
    Reading { since: Instant, came: u64, before: Option<u64> },
    /// Ours: it waits for memory.
    Waiting { since: Instant },
    /// Ours: it is not read for another reason.
    Resting,
}

impl Coming {
    pub(super) fn new(limit: u64) -> Coming {
        Coming { limit, held: 0, frames: BTreeMap::new(), waiting: BTreeSet::new(), above: None }
    }

    /// Bytes held.
    #[cfg(test)]
    fn held(&self) -> u64 {
        self.held
    }

    /// Whether frame `id`, of which `missing` bytes are not here, may be read on when that takes more memory. `room`: requests
    /// leave some, without which nothing here is to blame.
    pub(super) fn may_grow(&mut self, id: u64, missing: u64, room: bool, now: Instant) -> bool {
        let frame = self.frames.entry(id).or_insert(Frame { held: 0, missing, turn: Turn::Resting });
        self.waiting.remove(&(frame.missing, id));
        frame.missing = missing;
        let first = self.waiting.first().is_none_or(|first| (missing, id) < *first);
        let free = self.held < self.limit;
        if self.above == Some(id) || room && first && (free || self.above.is_none()) {
            // While others wait it is its turn to the end, not by steps between which another one could take it.
            if !free || !self.waiting.is_empty() {
                self.above.get_or_insert(id);
            }
            self.reads(id, now);
            return true;
        }
        let since = match frame.turn {
            Turn::Waiting { since } if room => since,
            _ => now,
        };
        frame.turn = Turn::Waiting { since };
        self.waiting.insert((missing, id));
        false
    }

    /// Frame `id` is read on within the memory that it has.
    pub(super) fn reads(&mut self, id: u64, now: Instant) {
        if let Some(frame) = self.frames.get_mut(&id)
            && !matches!(frame.turn, Turn::Reading { .. })
        {
            frame.turn = Turn::Reading { since: now, came: 0, before: None };
            self.waiting.remove(&(frame.missing, id));
        }
    }

    /// Frame `id` is not read, for a reason of ours.
    pub(super) fn rests(&mut self, id: u64) {
        if let Some(frame) = self.frames.get_mut(&id) {
            frame.turn = Turn::Resting;
            self.waiting.remove(&(frame.missing, id));
        }
        self.above.take_if(|above| *above == id);
    }

    /// Frame `id` holds so many bytes.
    pub(super) fn holds(&mut self, id: u64, held: u64, missing: u64, now: Instant) {
        let turn = Turn::Reading { since: now, came: 0, before: None };
        let frame = self.frames.entry(id).or_insert(Frame { held: 0, missing, turn });
        self.held = self.held - frame.held + held;
        if self.waiting.remove(&(frame.missing, id)) {
            self.waiting.insert((missing, id));
        }
        (frame.held, frame.missing) = (held, missing);
    }

    /// So many bytes of frame `id` came.
    pub(super) fn came(&mut self, id: u64, bytes: u64, now: Instant) {
        let Some(Frame { turn: Turn::Reading { since, came, before }, .. }) = self.frames.get_mut(&id) else {
            return;
        };
        let stretch = now.duration_since(*since);
        if stretch >= PATIENCE {
            // With nothing in between this is a long one.
            (*since, *before) = (now, Some(per_second(*came + bytes, stretch)));
            *came = 0;
        } else {
            *came += bytes;
        }
    }

    /// Frame `id` is whole, or its connection is over.
    pub(super) fn leaves(&mut self, id: u64) {
        let Some(frame) = self.frames.remove(&id) else { return };
        self.waiting.remove(&(frame.missing, id));
        self.held -= frame.held;
        self.above.take_if(|above| *above == id);
    }

    /// Which frames end now so that others get on: none while there is room, or nobody has waited for long.
    pub(super) fn ends(&self, now: Instant) -> Vec<u64> {
        let waits = |(_, id): &(u64, u64)| match self.frames.get(id)?.turn {
            Turn::Waiting { since } => Some(now.duration_since(since)),
            _ => None,
        };
        let longest = self.waiting.iter().filter_map(waits).max();
        if self.held < self.limit || longest.is_none_or(|waited| waited < PATIENCE) {
            return Vec::new();
        }
        let mut slow: Vec<(u64, u64, u64)> = self
            .frames
            .iter()
            .filter_map(|(id, frame)| Some((frame.pace(now)?, frame.held, *id)))
            .filter(|(pace, held, _)| *pace < PACE_MIN && *held > 0)
            .collect();
        // Of equally slow ones those that hold most.
        slow.sort_by_key(|(pace, held, id)| (*pace, std::cmp::Reverse(*held), *id));
        let enough = self.limit - self.limit / 4;
        let mut left = self.held;
        let mut ends = Vec::new();
        for (_, held, id) in slow {
            if left < enough && !ends.is_empty() {
                break;
            }
            left -= held;
            ends.push(id);
        }
        ends
    }
}

impl Frame {
    /// Bytes per second of late; `None` while it is not for the client to send, or for too short a time to tell.
    fn pace(&self, now: Instant) -> Option<u64> {
        let Turn::Reading { since, came, before } = self.turn else { return None };
        match now.duration_since(since) {
            young if young < PATIENCE => before,
            // What came did so within the first of them, or another stretch would have begun.
            old if old >= 2 * PATIENCE => Some(0),
            stretch => Some(per_second(came, stretch)),
        }
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1_000_000) / us
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Connections against a table, in steps of 10 ms.
    struct World {
        coming: Coming,
        begun: Instant,
        ms: u64,
        clients: Vec<Client>,
    }

    /// A frame of which the client sends `pace` bytes per second until `sends` are sent.
    #[derive(Clone, Debug)]
    struct Client {
        whole: u64,
        sends: u64,
        pace: u64,
        /// Bytes here, and bytes of memory for them.
        got: u64,
        held: u64,
        owed: u64,
        over: Option<Over>,
    }

    #[derive(Copy, Clone, Debug, PartialEq, Eq)]
    enum Over {
        Whole,
        Ended,
    }

    fn client(whole: u64, sends: u64, pace: u64) -> Client {
        Client { whole, sends, pace, got: 0, held: 0, owed: 0, over: None }
    }

    impl World {
        fn new(limit: u64, clients: Vec<Client>) -> World {
            let begun = Instant::now();
            World { coming: Coming::new(limit), begun, ms: 0, clients }
        }

        fn now(&self) -> Instant {
            self.begun + Duration::from_millis(self.ms)
        }

        fn step(&mut self) {
            self.ms += 10;
            let now = self.now();
            for (id, client) in (0..).zip(&mut self.clients) {
                if client.over.is_some() {
                    continue;
                }
                // What the client sends waits in its socket until it is read.
                client.owed = (client.owed + client.pace / 100).min(client.sends - client.got);
                let missing = client.whole - client.got;
                if client.held == client.got {
                    if !self.coming.may_grow(id, missing, true, now) {
                        continue;
                    }
                    client.held = client.whole.min((client.got * 2).max(64 << 10));
                    self.coming.holds(id, client.held, missing, now);
                } else {
                    self.coming.reads(id, now);
                }
                let read = client.owed.min(client.held - client.got);
                if read > 0 {
                    client.got += read;
                    client.owed -= read;
                    self.coming.came(id, read, now);
                    self.coming.holds(id, client.held, client.whole - client.got, now);
                }
                if client.got == client.whole {
                    client.over = Some(Over::Whole);
                    self.coming.leaves(id);
                }
            }
            let held = self.clients.iter().filter(|c| c.over.is_none()).map(|c| c.held).sum::<u64>();
            assert_eq!(self.coming.held(), held);
            let full = held >= self.coming.limit;
            for id in self.coming.ends(now) {
                let client = &mut self.clients[id as usize];
                assert!(full, "nobody is ended while there is room");
                client.over = Some(Over::Ended);
                self.coming.leaves(id);
            }
        }

        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds * 100 {
                self.step();
            }
        }
    }

    #[test]
    fn a_slow_frame_comes_to_its_end_when_memory_is_not_short() {
        let mut world = World::new(48 * MIB, vec![client(MIB, MIB, 10_000), client(MIB, MIB, 300)]);
        world.run(120);
        assert_eq!(world.clients[0].over, Some(Over::Whole));
        assert_eq!(world.clients[1].over, None, "it still comes");
    }

    #[test]
    fn half_frames_that_fill_it_end_and_a_large_frame_gets_on() {
        // A hundred that send 3 MB of 100 at once and nothing more; sixty that go on by a few bytes.
        let silent = vec![client(100 * MIB, 3 * MIB, 100 * MIB); 100];
        let dripping = vec![client(100 * MIB, 100 * MIB, 500); 60];
        for mut clients in [silent.clone(), [silent, dripping].concat()] {
            let good = clients.len();
            clients.push(client(MIB, MIB, 10 * MIB));
            let mut world = World::new(48 * MIB, clients);
            world.run(4);
            assert_eq!(world.clients[good].over, Some(Over::Whole), "{:?}", world.clients[good]);
        }
    }

    #[test]
    fn what_is_not_read_is_not_to_blame() {
        let now = Instant::now();
        let mut coming = Coming::new(MIB);
        coming.holds(1, MIB, 1, now);
        coming.rests(1);
        assert!(coming.may_grow(2, MIB, true, now), "above the limit");
        coming.holds(2, 1000, MIB, now);
        assert!(!coming.may_grow(3, 5 * MIB, true, now));
        let late = now + 3 * PATIENCE;
        assert_eq!(coming.ends(late), [2], "it was to send and did not");
        coming.leaves(2);
        assert!(!coming.may_grow(3, 5 * MIB, false, late), "requests hold the memory");
        assert!(coming.may_grow(3, 5 * MIB, true, late));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Whatever half frames do, a frame that keeps the pace is not ended, and gets to its end in time.
        #[test]
        fn a_frame_that_keeps_the_pace_gets_to_its_end(
            others in proptest::collection::vec((64u64..4_000, 1u64..100, 0u64..20_000), 0..60),
            begins in 0u64..300,
            whole in 65u64..2_000,
        ) {
            // Of each, KiB claimed, the part that is sent at once at most, and a pace below that asked for.
            let mut clients: Vec<Client> = others
                .into_iter()
                .map(|(kib, percent, pace)| {
                    let whole = kib << 10;
                    Client { owed: whole * percent / 100, ..client(whole, whole - 1, pace) }
                })
                .collect();
            let good = clients.len();
            let mut world = World::new(8 * MIB, std::mem::take(&mut clients));
            for _ in 0..begins {
                world.step();
            }
            world.clients.push(client(whole << 10, whole << 10, 4 * MIB));
            // Where all that wait are nearer to their end: one turn above the limit each, which ends after a burst's time and
            // three times the patience.
            for _ in 0..400 * (good + 2) {
                if world.clients[good].over.is_some() {
                    break;
                }
                world.step();
            }
            prop_assert_eq!(world.clients[good].over, Some(Over::Whole));
        }
    }
}
