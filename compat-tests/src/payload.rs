//! Records that say who they are.
//!
//! Every field of a record (key, value, header, timestamp) is a function of its identity, so whoever reads it back can
//! tell whether a single byte of it changed without keeping what was sent.

use std::fmt;
use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, TimestampType,
};

const MAGIC: u32 = 0x5354_4f52;
const HEAD_BYTES: usize = 26;
const VALUE_BYTES_MAX: usize = 120_000;
const NOISE_BYTES: usize = 1 << 20;

/// Values are cut from this at a place that their identity decides: dear to make once, cheap to copy and compare.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut noise = vec![0; NOISE_BYTES];
    fastrand::Rng::with_seed(7).fill(&mut noise);
    noise
});
/// Timestamps stay within a minute after the run began, so none is ever too far in the future for a broker.
const TIMESTAMP_SPREAD_MS: u64 = 60_000;

/// A partition of one of the run's topics, by the topic's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the topic in the run.
    pub topic: u16,
    /// Partition index.
    pub partition: i32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {} partition {}", self.topic, self.partition)
    }
}

/// Who sent a record and which one it was: `counter` counts a producer's records of one partition from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// Number of the producer in the run.
    pub producer: u32,
    /// Position among the producer's records of the partition, from 0.
    pub counter: u64,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} of producer {}", self.counter, self.producer)
    }
}

/// The record of that identity, without offset and sequence. `began_ms` is the run's wall-clock start.
pub fn record(place: Place, id: RecordId, began_ms: i64) -> Record {
    let mut random = fastrand::Rng::with_seed(mix(place, id));
    let size = value_bytes(&mut random);
    let mut value = BytesMut::with_capacity(size);
    value.put_u32(MAGIC);
    value.put_u16(place.topic);
    value.put_i32(place.partition);
    value.put_u32(id.producer);
    value.put_u64(id.counter);
    value.put_u32(u32::try_from(size).unwrap_or(u32::MAX));
    let noise = random.usize(..NOISE_BYTES - VALUE_BYTES_MAX);
    value.put_slice(&NOISE[noise..noise + size - HEAD_BYTES]);
    let key = (random.u8(..3) > 0).then(|| Bytes::from(format!("{}-{}", id.producer, id.counter % 97)));
    let mut headers = IndexMap::new();
    if random.u8(..3) == 0 {
        headers.insert(StrBytes::from_static_str("run"), Some(Bytes::from(id.counter.to_string())));
    }
    Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: NO_SEQUENCE,
        timestamp: began_ms + (id.counter % TIMESTAMP_SPREAD_MS) as i64,
        key,
        value: Some(value.freeze()),
        headers,
    }
}

/// Whose record this is, once every byte of it has been compared with what that record must be.
///
/// Errors: what differs, as a sentence.
pub fn identify(place: Place, found: &Record, began_ms: i64) -> Result<RecordId, String> {
    let value = found.value.as_ref().ok_or("no value")?;
    let head: &[u8; HEAD_BYTES] =
        value.first_chunk().ok_or_else(|| format!("a value of {} bytes", value.len()))?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(0) != MAGIC {
        return Err(format!("a value that begins with {:08x}", word(0)));
    }
    let stored = Place { topic: u16::from_be_bytes([head[4], head[5]]), partition: word(6) as i32 };
    let id = RecordId { producer: word(10), counter: u64::from(word(14)) << 32 | u64::from(word(18)) };
    if stored != place {
        return Err(format!("{id} of {stored}"));
    }
    let wanted = record(place, id, began_ms);
    if wanted.value != found.value {
        return Err(format!("{id} with another value"));
    }
    if wanted.key != found.key {
        return Err(format!("{id} with another key"));
    }
    if wanted.headers != found.headers {
        return Err(format!("{id} with other headers"));
    }
    if wanted.timestamp != found.timestamp {
        return Err(format!("{id} with timestamp {} for {}", found.timestamp, wanted.timestamp));
    }
    Ok(id)
}

/// Mostly small values, some of a few pages, a few that fill a group of their own.
fn value_bytes(random: &mut fastrand::Rng) -> usize {
    match random.u8(..100) {
        0..70 => random.usize(HEAD_BYTES..300),
        70..97 => random.usize(1_000..8_000),
        _ => random.usize(20_000..VALUE_BYTES_MAX),
    }
}

fn mix(place: Place, id: RecordId) -> u64 {
    let mut state = u64::from(place.topic) << 48 ^ (place.partition as u64) << 32 ^ u64::from(id.producer);
    for word in [id.counter, 0x9e37_79b9_7f4a_7c15] {
        state = (state ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 29;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { topic: 1, partition: 3 };

    #[test]
    fn a_record_tells_who_it_is() {
        for counter in 0..200 {
            let id = RecordId { producer: 7, counter };
            assert_eq!(identify(PLACE, &record(PLACE, id, 1_000), 1_000), Ok(id));
        }
    }

    #[test]
    fn a_change_of_any_field_is_seen() {
        let id = RecordId { producer: 7, counter: 5 };
        let sent = record(PLACE, id, 1_000);
        let mut value = sent.value.clone().unwrap().to_vec();
        *value.last_mut().unwrap() ^= 1;
        let changed = [
            Record { value: Some(value.into()), ..sent.clone() },
            Record { value: None, ..sent.clone() },
            Record { key: Some(Bytes::from_static(b"x")), ..sent.clone() },
            Record { timestamp: sent.timestamp + 1, ..sent.clone() },
            Record { headers: IndexMap::from_iter([(StrBytes::from_static_str("x"), None)]), ..sent.clone() },
        ];
        for record in changed {
            assert!(identify(PLACE, &record, 1_000).is_err(), "{record:?}");
        }
        assert!(identify(Place { topic: 1, partition: 4 }, &sent, 1_000).is_err());
    }
}
