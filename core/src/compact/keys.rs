//! Where each key of a partition was last: a hash of 128 bits to an offset, within a budget of memory.
//!
//! What does not fit is looked at in several passes, each over one class of keys: then what is superseded is marked, one bit
//! per record.

use crate::types::{Offset, Partition};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bytes of a key in the map, also while it grows.
pub const KEY_BYTES: u64 = 96;
/// Spreads partitions over seeds.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which keys a pass looks at: those of one of `of` classes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The class, below `of`.
    pub nth: u64,
    /// How many there are.
    pub of: u64,
}

/// The map has no room for another key: look at fewer at a time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys do not fit the memory that compaction may use")]
pub struct Full;

/// The newest offset of each key that was noted.
#[derive(Debug)]
pub struct KeyMap {
    seed: u64,
    class: Class,
    most: usize,
    latest: HashMap<u128, Offset>,
}

impl KeyMap {
    /// A map of at most `budget` bytes for the keys of a class. `seed` is random, so that nobody can choose keys that fall
    /// together; it is the same in all passes.
    pub fn new(seed: u64, class: Class, budget: u64) -> KeyMap {
        let most = usize::try_from(budget / KEY_BYTES).unwrap_or(usize::MAX).max(1);
        KeyMap { seed, class, most, latest: HashMap::new() }
    }

    fn hash(&self, partition: Partition, key: &[u8]) -> Option<u128> {
        let seed = self.seed.wrapping_add((partition as u64).wrapping_mul(ODD));
        let hash = xxh3_128_with_seed(key, seed);
        ((hash >> 64) as u64 % self.class.of == self.class.nth).then_some(hash)
    }

    /// Notes a record.
    ///
    /// Errors: there is no room for its key.
    pub fn note(&mut self, partition: Partition, key: &[u8], offset: Offset) -> Result<(), Full> {
        let Some(hash) = self.hash(partition, key) else { return Ok(()) };
        if let Some(latest) = self.latest.get_mut(&hash) {
            *latest = offset.max(*latest);
            return Ok(());
        }
        if self.latest.len() >= self.most {
            return Err(Full);
        }
        self.latest.insert(hash, offset);
        Ok(())
    }

    /// Whether a later record of the key was noted.
    pub fn supersedes(&self, partition: Partition, key: &[u8], offset: Offset) -> bool {
        self.hash(partition, key)
            .and_then(|hash| self.latest.get(&hash))
            .is_some_and(|latest| *latest > offset)
    }

    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.latest.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.latest.is_empty()
    }
}

/// Bits of a piece of [`Marks`].
const PIECE: usize = 1024;

/// Records that are superseded, by partition and offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(HashMap<(Partition, Offset), Box<[u64; PIECE / 64]>>);

impl Marks {
    fn place(offset: Offset) -> (Offset, usize, u64) {
        let bit = offset.rem_euclid(PIECE as i64) as usize;
        (offset.div_euclid(PIECE as i64), bit / 64, 1 << (bit % 64))
    }

    /// Marks a record.
    pub fn set(&mut self, partition: Partition, offset: Offset) {
        let (piece, word, bit) = Marks::place(offset);
        self.0.entry((partition, piece)).or_default()[word] |= bit;
    }

    /// Whether a record is marked.
    pub fn is_set(&self, partition: Partition, offset: Offset) -> bool {
        let (piece, word, bit) = Marks::place(offset);
        self.0.get(&(partition, piece)).is_some_and(|words| words[word] & bit != 0)
    }
}

/// What is known of later records.
#[derive(Debug)]
pub enum Newer {
    /// All keys, in one pass.
    Keys(KeyMap),
    /// What several passes found.
    Marks(Marks),
}
