//! The producer table: per partition, what the last batches of each idempotent producer were (protocol: idempotence), its
//! open transaction, and the last marker that ended one (reshard-rules R17).
//!
//! Keyed (partition, producer id), since sequences are numbered per partition: so a split is a projection of the table
//! and a merge a disjoint union. Copy-on-write in small leaves in key order: a capture copies pointers, and no choice
//! of producer ids by a client makes a lookup slow.

use crate::types::{Address, LogletId, Offset, Partition, Span};
use std::sync::Arc;

/// How many batches of a producer are remembered: clients keep at most five in flight.
pub const BATCHES_REMEMBERED: usize = 5;
const LEAF_MAX: usize = 32;

/// The sequence `by` after `sequence`; after 2^31 - 1 comes 0.
pub fn sequence_after(sequence: i32, by: i32) -> i32 {
    (sequence.wrapping_add(by)) & i32::MAX
}

/// A batch as the table remembers it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RecentBatch {
    /// Sequence of the first record.
    pub first_sequence: i32,
    /// Sequence of the last record.
    pub last_sequence: i32,
    /// Offset of the first record.
    pub base_offset: Offset,
    /// The loglet that holds the batch.
    pub loglet: LogletId,
    /// Its local address there.
    pub address: Address,
    /// When it was sequenced, broker ms.
    pub appended_at: i64,
}

impl RecentBatch {
    /// Offset of the last record: sequences and offsets run in step inside a batch.
    pub fn last_offset(&self) -> Offset {
        self.base_offset + i64::from(self.last_sequence.wrapping_sub(self.first_sequence) & i32::MAX)
    }
}

const NO_BATCH: RecentBatch = RecentBatch {
    first_sequence: 0,
    last_sequence: 0,
    base_offset: 0,
    loglet: LogletId(0),
    address: Address(0),
    appended_at: 0,
};

/// The newest marker of a producer in a partition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LastMarker {
    /// The highest number of a transaction that any marker named; 0 without.
    pub number: u64,
    /// Leader epoch of the coordinator's partition.
    pub coordinator_epoch: i32,
    /// The loglet that holds the marker.
    pub loglet: LogletId,
    /// Its local address there.
    pub address: Address,
    /// When it was sequenced, broker ms.
    pub appended_at: i64,
}

/// A producer's state in one partition: its epoch and that epoch's last batches, its open transaction, its last marker.
/// Never without a batch or marker.
#[derive(Clone, Debug)]
pub struct Producer {
    epoch: i16,
    len: u8,
    batches: [RecentBatch; BATCHES_REMEMBERED],
    open: Option<Offset>,
    marker: Option<LastMarker>,
}

impl PartialEq for Producer {
    fn eq(&self, other: &Producer) -> bool {
        let ends = |p: &Producer| (p.epoch, p.open, p.marker);
        ends(self) == ends(other) && self.batches() == other.batches()
    }
}
impl Eq for Producer {}

impl Producer {
    /// A producer of which nothing but its epoch is known.
    pub fn new(epoch: i16) -> Producer {
        Producer { epoch, len: 0, batches: [NO_BATCH; BATCHES_REMEMBERED], open: None, marker: None }
    }

    /// The producer's newest epoch.
    pub fn epoch(&self) -> i16 {
        self.epoch
    }

    /// The last batches of that epoch, oldest first.
    pub fn batches(&self) -> &[RecentBatch] {
        &self.batches[..usize::from(self.len)]
    }

    /// The newest batch of that epoch.
    pub fn last(&self) -> Option<&RecentBatch> {
        self.batches().last()
    }

    /// First offset of its open transaction.
    pub fn open(&self) -> Option<Offset> {
        self.open
    }

    /// Its newest marker.
    pub fn marker(&self) -> Option<&LastMarker> {
        self.marker.as_ref()
    }

    /// When it last appended something, or had something ended, broker ms.
    pub fn touched_at(&self) -> i64 {
        let batch = self.last().map(|batch| batch.appended_at);
        batch.max(self.marker.map(|marker| marker.appended_at)).unwrap_or(i64::MIN)
    }

    /// What expiry judges by: a producer whose transaction is open is never too old.
    fn age(&self) -> i64 {
        if self.open.is_some() { i64::MAX } else { self.touched_at() }
    }

    /// The remembered batch with exactly these sequences.
    pub fn duplicate_of(&self, first_sequence: i32, last_sequence: i32) -> Option<&RecentBatch> {
        let same = |b: &&RecentBatch| b.first_sequence == first_sequence && b.last_sequence == last_sequence;
        self.batches().iter().rev().find(same)
    }

    /// Remembers a batch that the log holds. Another epoch forgets the present one's batches, a lower one too: the log
    /// is right, and a primary that had expired the producer took it.
    pub fn record(&mut self, epoch: i16, batch: RecentBatch) {
        self.set_epoch(epoch);
        if usize::from(self.len) == BATCHES_REMEMBERED {
            self.batches.copy_within(1.., 0);
            self.batches[BATCHES_REMEMBERED - 1] = batch;
        } else {
            self.batches[usize::from(self.len)] = batch;
            self.len += 1;
        }
    }

    /// Its transaction begins at `first`; one that is open stays as it is. Whether it began.
    pub fn begin(&mut self, first: Offset) -> bool {
        let begins = self.open.is_none();
        self.open.get_or_insert(first);
        begins
    }

    /// A marker of `epoch` ends its transaction: the first offset of that, if one was open. Numbers never fall.
    pub fn end(&mut self, epoch: i16, marker: LastMarker) -> Option<Offset> {
        self.set_epoch(epoch);
        let number = self.marker.map_or(0, |before| before.number).max(marker.number);
        self.marker = Some(LastMarker { number, ..marker });
        self.open.take()
    }

    fn set_epoch(&mut self, epoch: i16) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.len = 0;
        }
    }
}

/// A key of the table.
pub type ProducerKey = (Partition, i64);
type Item = (ProducerKey, Producer);

#[derive(Clone, Debug)]
struct Leaf {
    first: ProducerKey,
    /// No producer of the leaf was touched before this: expiry need not look into leaves above its limit.
    oldest: i64,
    items: Arc<Vec<Item>>,
}

impl Leaf {
    fn place(&self, key: ProducerKey) -> Result<usize, usize> {
        self.items.binary_search_by(|(k, _)| k.cmp(&key))
    }
}

/// All producers of a range. Cloning copies pointers only: one for up to 32 producers.
#[derive(Clone, Debug, Default)]
pub struct ProducerTable {
    leaves: Vec<Leaf>,
    len: usize,
}

impl PartialEq for ProducerTable {
    fn eq(&self, other: &ProducerTable) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}
impl Eq for ProducerTable {}

impl ProducerTable {
    /// How many producers, counted per partition.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The producers in key order.
    pub fn iter(&self) -> impl Iterator<Item = (ProducerKey, &Producer)> {
        self.leaves.iter().flat_map(|leaf| leaf.items.iter().map(|(key, producer)| (*key, producer)))
    }

    /// A producer's state in a partition.
    pub fn get(&self, partition: Partition, producer_id: i64) -> Option<&Producer> {
        let key = (partition, producer_id);
        let leaf = self.leaves.get(self.leaf_of(key)?)?;
        let at = leaf.place(key).ok()?;
        leaf.items.get(at).map(|(_, producer)| producer)
    }

    /// The producers of a partition in order of their ids.
    pub fn of(&self, partition: Partition) -> impl Iterator<Item = (i64, &Producer)> {
        let first = self.leaf_of((partition, i64::MIN)).unwrap_or(0);
        let items = self.leaves.iter().skip(first).flat_map(|leaf| leaf.items.iter());
        let mine = items.skip_while(move |(key, _)| key.0 < partition);
        mine.take_while(move |(key, _)| key.0 == partition).map(|(key, producer)| (key.1, producer))
    }

    /// A producer's state, to be changed by something appended at `now_ms`; one that is not known begins in `epoch`.
    /// Allocates only for that and after a capture.
    pub fn touch(
        &mut self,
        partition: Partition,
        producer_id: i64,
        epoch: i16,
        now_ms: i64,
    ) -> &mut Producer {
        let key = (partition, producer_id);
        let place = self.leaf_of(key).map(|at| (at, self.leaves[at].place(key)));
        let (at, found) = match place {
            Some((at, Ok(found))) => (at, found),
            Some((at, Err(place))) => {
                self.insert(at, place, (key, Producer::new(epoch)));
                self.find(key)
            }
            None => {
                self.push_aged(key, Producer::new(epoch), now_ms);
                self.find(key)
            }
        };
        let leaf = &mut self.leaves[at];
        leaf.oldest = leaf.oldest.min(now_ms);
        &mut Arc::make_mut(&mut leaf.items)[found].1
    }

    /// Where a producer that is in the table is.
    fn find(&self, key: ProducerKey) -> (usize, usize) {
        let found = self.leaf_of(key).and_then(|at| Some((at, self.leaves[at].place(key).ok()?)));
        found.expect("it is in the table")
    }

    /// Adds a producer with a key above all others.
    pub fn push(&mut self, key: ProducerKey, producer: Producer) {
        let age = producer.age();
        self.push_aged(key, producer, age);
    }

    fn push_aged(&mut self, key: ProducerKey, producer: Producer, oldest: i64) {
        assert!(self.leaves.last().is_none_or(|l| l.items.last().is_some_and(|i| i.0 < key)), "keys ascend");
        match self.leaves.last_mut() {
            Some(leaf) if leaf.items.len() < LEAF_MAX => {
                leaf.oldest = leaf.oldest.min(oldest);
                Arc::make_mut(&mut leaf.items).push((key, producer));
            }
            _ => self.leaves.push(Leaf { first: key, oldest, items: Arc::new(vec![(key, producer)]) }),
        }
        self.len += 1;
    }

    /// The producers of the partitions in `span`.
    pub fn project(&self, span: Span) -> ProducerTable {
        self.keep(|key, _| span.contains(key.0))
    }

    /// Forgets the producers whose newest batch or marker was appended before `before_ms`, and of the others all but the
    /// `keep_max` most recent ones (of equally recent ones the lower keys go first); those whose transaction is open stay,
    /// however many. Looks only where something may be too old, unless there are more than `keep_max`.
    pub fn expire(&mut self, before_ms: i64, keep_max: usize) {
        self.retain_from((before_ms, (Partition::MIN, i64::MIN)));
        if self.len <= keep_max {
            return;
        }
        let mut ages: Vec<(i64, ProducerKey)> = self.iter().map(|(k, p)| (p.age(), k)).collect();
        let cut = self.len - keep_max;
        let oldest_kept = match cut == ages.len() {
            true => (i64::MAX, (Partition::MAX, i64::MAX)),
            false => *ages.select_nth_unstable(cut).1,
        };
        self.retain_from(oldest_kept);
    }

    /// Keeps what was touched at `limit` or later, by (time, key), and open transactions.
    fn retain_from(&mut self, limit: (i64, ProducerKey)) {
        let mut kept: Vec<Leaf> = Vec::with_capacity(self.leaves.len());
        for mut leaf in std::mem::take(&mut self.leaves) {
            let stays = |item: &Item| item.1.open.is_some() || (item.1.age(), item.0) >= limit;
            if leaf.oldest <= limit.0 {
                if !leaf.items.iter().all(stays) {
                    Arc::make_mut(&mut leaf.items).retain(stays);
                }
                leaf.oldest = leaf.items.iter().map(|item| item.1.age()).min().unwrap_or(i64::MAX);
            }
            let Some(first) = leaf.items.first().map(|item| item.0) else {
                continue;
            };
            leaf.first = first;
            match kept.last_mut() {
                Some(before) if before.items.len() + leaf.items.len() <= LEAF_MAX / 2 => {
                    before.oldest = before.oldest.min(leaf.oldest);
                    Arc::make_mut(&mut before.items).extend_from_slice(&leaf.items);
                }
                _ => kept.push(leaf),
            }
        }
        self.len = kept.iter().map(|leaf| leaf.items.len()).sum();
        self.leaves = kept;
    }

    /// This table followed by `other`, whose partitions are all higher.
    pub fn union(&self, other: &ProducerTable) -> ProducerTable {
        let mut all = self.clone();
        all.leaves.extend(other.leaves.iter().cloned());
        all.len += other.len;
        all
    }

    fn keep(&self, wanted: impl Fn(ProducerKey, &Producer) -> bool) -> ProducerTable {
        let mut kept = ProducerTable::default();
        for leaf in &self.leaves {
            if leaf.items.iter().all(|(key, p)| wanted(*key, p)) {
                kept.leaves.push(leaf.clone());
                kept.len += leaf.items.len();
                continue;
            }
            for (key, producer) in leaf.items.iter().filter(|(key, p)| wanted(*key, p)) {
                kept.push(*key, producer.clone());
            }
        }
        kept
    }

    /// The leaf that holds `key` if the table does: the last one that begins at or below it, else the first.
    fn leaf_of(&self, key: ProducerKey) -> Option<usize> {
        if self.leaves.is_empty() {
            return None;
        }
        Some(self.leaves.partition_point(|leaf| leaf.first <= key).saturating_sub(1))
    }

    fn insert(&mut self, at: usize, place: usize, item: Item) {
        let leaf = &mut self.leaves[at];
        let key = item.0;
        let oldest = leaf.oldest;
        self.len += 1;
        if leaf.items.len() == LEAF_MAX {
            let items = Arc::make_mut(&mut leaf.items);
            // Ids mostly ascend: a full leaf stays full when the new one goes behind it.
            let mut upper = items.split_off(if place == LEAF_MAX { LEAF_MAX } else { LEAF_MAX / 2 });
            if place >= items.len() {
                upper.insert(place - items.len(), item);
            } else {
                items.insert(place, item);
                leaf.first = leaf.first.min(key);
            }
            if let Some(first) = upper.first().map(|i| i.0) {
                self.leaves.insert(at + 1, Leaf { first, oldest, items: Arc::new(upper) });
            }
            return;
        }
        leaf.first = leaf.first.min(key);
        Arc::make_mut(&mut leaf.items).insert(place, item);
    }
}

#[cfg(test)]
#[path = "producers_tests.rs"]
mod tests;
