//! Fetch sessions (KIP-227): a client names its partitions once, then only what changed; answers leave out what did
//! not change.
//!
//! A pure state machine: no clock, no I/O. Owns the sessions of a node; they belong to no connection. Knows nothing of
//! topics beyond the names and ids that clients gave.
//!
//! ```text
//! (id 0, epoch 0)   everything named, a session wished   → new session, or 0 when none is to be had
//! (id n, epoch 0)   the same, and session n is given up
//! (id n, epoch -1)  everything named, session n is given up, none wished
//! (id n, epoch e)   changes only; e must be the epoch that the last answer implied (it wraps from max to 1)
//! ```

use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Epoch of a request that wishes a new session.
pub const INITIAL: i32 = 0;
/// Epoch of a request that wants no session.
pub const FINAL: i32 = -1;

/// A topic as the client names it: by name below Fetch 13, by id from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicKey {
    /// By name.
    Name(StrBytes),
    /// By id.
    Id(Uuid),
}

impl TopicKey {
    /// The same, holding nothing of the request that it came with.
    fn detached(&self) -> TopicKey {
        match self {
            TopicKey::Name(name) => TopicKey::Name(StrBytes::from_string(name.to_string())),
            TopicKey::Id(id) => TopicKey::Id(*id),
        }
    }
}

/// A partition that a client wants records of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its topic.
    pub topic: TopicKey,
    /// Its number.
    pub partition: i32,
    /// First offset wanted.
    pub offset: i64,
    /// At most so many bytes, but for the first batch of an answer.
    pub max_bytes: i32,
    /// The leader epoch that the client believes in, or -1.
    pub current_leader_epoch: i32,
    /// The epoch of the last record that the client has, or -1.
    pub last_fetched_epoch: i32,
}

/// What an answer says of a partition, as far as sessions care.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// High watermark, -1 with an error.
    pub high_watermark: i64,
    /// Last stable offset, -1 with an error.
    pub last_stable: i64,
    /// Log start, -1 with an error.
    pub log_start: i64,
    /// Has records, an error or a diverging epoch: is shown in any case.
    pub always: bool,
    /// Has records: goes to the end of the session's order, so that others get their turn.
    pub has_records: bool,
}

/// How a request stands to sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No session, none wished.
    Sessionless,
    /// A new session is wished.
    New,
    /// Changes within a session.
    Incremental(i32),
}

/// A request after its session spoke: what to read, in order.
#[derive(Clone, Debug)]
pub struct Turn {
    /// How it stands to sessions.
    pub kind: Kind,
    /// What to read.
    pub wanted: Vec<Wanted>,
    by_id: bool,
}

#[derive(Debug)]
struct Cached {
    wanted: Wanted,
    /// High watermark, last stable offset and log start that were shown; -1 for none.
    shown: [i64; 3],
}

#[derive(Debug)]
struct Session {
    /// The epoch that the next request must have.
    epoch: i32,
    by_id: bool,
    used: Instant,
    /// In the order of answers.
    order: BTreeMap<u64, Cached>,
    places: HashMap<(TopicKey, i32), u64>,
    next_place: u64,
}

impl Session {
    fn new(by_id: bool, now: Instant) -> Session {
        Session { epoch: 1, by_id, used: now, order: BTreeMap::new(), places: HashMap::new(), next_place: 0 }
    }

    fn want(&mut self, wanted: Wanted) {
        let key = (wanted.topic.clone(), wanted.partition);
        if let Some(cached) = self.places.get(&key).and_then(|place| self.order.get_mut(place)) {
            // Offsets shown so far stay: the client knows them.
            cached.wanted = Wanted { topic: key.0, ..wanted };
            return;
        }
        let topic = wanted.topic.detached();
        self.places.insert((topic.clone(), wanted.partition), self.next_place);
        let cached = Cached { wanted: Wanted { topic, ..wanted }, shown: [-1; 3] };
        self.order.insert(self.next_place, cached);
        self.next_place += 1;
    }

    fn forget(&mut self, topic: TopicKey, partition: i32) {
        if let Some(place) = self.places.remove(&(topic, partition)) {
            self.order.remove(&place);
        }
    }

    /// Notes what an answer shows of a partition; whether it must be in the answer.
    fn show(&mut self, wanted: &Wanted, shown: Shown) -> bool {
        let key = (wanted.topic.clone(), wanted.partition);
        let Some(place) = self.places.get(&key).copied() else { return true };
        let Some(cached) = self.order.get_mut(&place) else { return true };
        let offsets = [shown.high_watermark, shown.last_stable, shown.log_start];
        let changed = std::mem::replace(&mut cached.shown, offsets) != offsets;
        if shown.has_records
            && let Some(cached) = self.order.remove(&place)
        {
            self.order.insert(self.next_place, cached);
            self.places.insert(key, self.next_place);
            self.next_place += 1;
        }
        changed || shown.always
    }
}

/// All sessions of a node.
#[derive(Debug)]
pub struct Sessions {
    all: HashMap<i32, Session>,
    max: usize,
    idle: Duration,
    /// State of the id generator: ids need not be secret, only not be guessed by accident after a restart.
    seed: u64,
}

impl Sessions {
    /// Room for `max` sessions; one unused for `idle` makes way for another. `seed` should differ between starts.
    pub fn new(max: usize, idle: Duration, seed: u64) -> Sessions {
        Sessions { all: HashMap::new(), max, idle, seed }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes a request in. Errors go to the response's top level: the session is not known, its epoch is another, or
    /// it names topics the other way.
    pub fn begin(
        &mut self,
        id: i32,
        epoch: i32,
        by_id: bool,
        wanted: Vec<Wanted>,
        forgotten: Vec<(TopicKey, i32)>,
        now: Instant,
    ) -> Result<Turn, ResponseError> {
        if epoch == FINAL || epoch == INITIAL {
            self.all.remove(&id);
            let kind = if epoch == INITIAL { Kind::New } else { Kind::Sessionless };
            return Ok(Turn { kind, wanted, by_id });
        }
        let session = self.all.get_mut(&id).ok_or(ResponseError::FetchSessionIdNotFound)?;
        if session.epoch != epoch {
            return Err(ResponseError::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ResponseError::FetchSessionTopicIdError);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        session.used = now;
        for (topic, partition) in forgotten {
            session.forget(topic, partition);
        }
        for wanted in wanted {
            session.want(wanted);
        }
        let wanted = session.order.values().map(|c| c.wanted.clone()).collect();
        Ok(Turn { kind: Kind::Incremental(id), wanted, by_id })
    }

    /// Notes what the answer shows, one entry per partition of `turn` in order: the session id for the answer, and
    /// which entries belong into it.
    pub fn finish(&mut self, turn: &Turn, shown: &[Shown], now: Instant) -> (i32, Vec<bool>) {
        match turn.kind {
            Kind::Sessionless => (0, vec![true; shown.len()]),
            Kind::New => {
                if turn.wanted.is_empty() || !self.make_room(now) {
                    return (0, vec![true; shown.len()]);
                }
                let id = self.new_id();
                let mut session = Session::new(turn.by_id, now);
                for (wanted, shown) in turn.wanted.iter().zip(shown) {
                    session.want(wanted.clone());
                    session.show(wanted, *shown);
                }
                self.all.insert(id, session);
                (id, vec![true; shown.len()])
            }
            Kind::Incremental(id) => {
                let Some(session) = self.all.get_mut(&id) else { return (id, vec![true; shown.len()]) };
                session.used = now;
                (id, turn.wanted.iter().zip(shown).map(|(w, s)| session.show(w, *s)).collect())
            }
        }
    }

    fn make_room(&mut self, now: Instant) -> bool {
        if self.all.len() < self.max {
            return true;
        }
        let oldest = self.all.iter().min_by_key(|(_, s)| s.used).map(|(id, s)| (*id, s.used));
        match oldest {
            Some((id, used)) if now.saturating_duration_since(used) >= self.idle => {
                self.all.remove(&id);
                true
            }
            _ => false,
        }
    }

    fn new_id(&mut self) -> i32 {
        loop {
            // splitmix64.
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let id = ((z ^ (z >> 31)) & 0x7fff_ffff) as i32;
            if id > 0 && !self.all.contains_key(&id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(topic: &'static str, partition: i32, offset: i64) -> Wanted {
        Wanted {
            topic: TopicKey::Name(StrBytes::from_static_str(topic)),
            partition,
            offset,
            max_bytes: 1000,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
        }
    }

    fn quiet(high_watermark: i64) -> Shown {
        Shown { high_watermark, last_stable: 0, log_start: 0, always: false, has_records: false }
    }

    fn sessions(max: usize) -> (Sessions, Instant) {
        (Sessions::new(max, Duration::from_secs(120), 42), Instant::now())
    }

    /// A session of two partitions, both shown with high watermark 5.
    fn opened(sessions: &mut Sessions, now: Instant) -> i32 {
        let turn = sessions
            .begin(0, INITIAL, false, vec![wanted("a", 0, 5), wanted("a", 1, 5)], vec![], now)
            .unwrap();
        let (id, include) = sessions.finish(&turn, &[quiet(5), quiet(5)], now);
        assert!(id > 0);
        assert_eq!(include, [true, true], "a full answer shows all");
        id
    }

    #[test]
    fn an_incremental_answer_shows_only_what_changed() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let turn = s.begin(id, 1, false, vec![], vec![], now).unwrap();
        assert_eq!(turn.wanted.len(), 2);
        assert_eq!(s.finish(&turn, &[quiet(5), quiet(6)], now), (id, vec![false, true]));
        let turn = s.begin(id, 2, false, vec![], vec![], now).unwrap();
        assert_eq!(s.finish(&turn, &[quiet(5), quiet(6)], now).1, [false, false]);
        let turn = s.begin(id, 3, false, vec![], vec![], now).unwrap();
        let moved = Shown { last_stable: 1, ..quiet(5) };
        assert_eq!(s.finish(&turn, &[moved, quiet(6)], now).1, [true, false], "a transaction has ended");
    }

    #[test]
    fn a_partition_is_shown_again_after_an_error() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let error =
            Shown { high_watermark: -1, last_stable: -1, log_start: -1, always: true, has_records: false };
        let turn = s.begin(id, 1, false, vec![], vec![], now).unwrap();
        assert_eq!(s.finish(&turn, &[error, quiet(5)], now).1, [true, false]);
        let turn = s.begin(id, 2, false, vec![], vec![], now).unwrap();
        assert_eq!(s.finish(&turn, &[quiet(5), quiet(5)], now).1, [true, false]);
    }

    #[test]
    fn partitions_are_changed_added_and_forgotten() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let forgotten = vec![(TopicKey::Name(StrBytes::from_static_str("a")), 1)];
        let turn = s.begin(id, 1, false, vec![wanted("a", 0, 9), wanted("b", 3, 1)], forgotten, now).unwrap();
        assert_eq!(turn.wanted, [wanted("a", 0, 9), wanted("b", 3, 1)]);
    }

    #[test]
    fn who_had_records_goes_last() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let turn = s.begin(id, 1, false, vec![], vec![], now).unwrap();
        let records =
            Shown { high_watermark: 6, last_stable: 6, log_start: 0, always: true, has_records: true };
        s.finish(&turn, &[records, quiet(5)], now);
        let turn = s.begin(id, 2, false, vec![], vec![], now).unwrap();
        let order: Vec<i32> = turn.wanted.iter().map(|w| w.partition).collect();
        assert_eq!(order, [1, 0]);
    }

    #[test]
    fn wrong_ids_epochs_and_ways_of_naming_are_refused() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let mut begin =
            |id, epoch, by_id| s.begin(id, epoch, by_id, vec![], vec![], now).map(|_| ()).unwrap_err();
        assert_eq!(begin(id ^ 1, 1, false), ResponseError::FetchSessionIdNotFound);
        assert_eq!(begin(id, 2, false), ResponseError::InvalidFetchSessionEpoch);
        assert_eq!(begin(id, 1, true), ResponseError::FetchSessionTopicIdError);
    }

    #[test]
    fn the_epoch_wraps_to_1() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        s.all.get_mut(&id).unwrap().epoch = i32::MAX;
        s.begin(id, i32::MAX, false, vec![], vec![], now).unwrap();
        assert!(s.begin(id, 1, false, vec![], vec![], now).is_ok());
    }

    #[test]
    fn a_full_cache_gives_none_until_one_is_idle() {
        let (mut s, now) = sessions(1);
        let id = opened(&mut s, now);
        let turn =
            |s: &mut Sessions, at| s.begin(0, INITIAL, false, vec![wanted("c", 0, 0)], vec![], at).unwrap();
        let first = turn(&mut s, now);
        assert_eq!(s.finish(&first, &[quiet(1)], now).0, 0);
        let later = now + Duration::from_secs(120);
        let second = turn(&mut s, later);
        assert!(s.finish(&second, &[quiet(1)], later).0 > 0);
        assert_eq!(s.len(), 1);
        assert!(s.begin(id, 1, false, vec![], vec![], later).is_err());
    }

    #[test]
    fn epoch_minus_one_gives_a_session_up() {
        let (mut s, now) = sessions(10);
        let id = opened(&mut s, now);
        let turn = s.begin(id, FINAL, false, vec![wanted("a", 0, 5)], vec![], now).unwrap();
        assert_eq!(s.finish(&turn, &[quiet(5)], now), (0, vec![true]));
        assert!(s.is_empty());
    }
}
