//! The producer table: what the last batches of each idempotent producer were, per partition (protocol: idempotence).
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

/// A producer's state in one partition: its epoch and that epoch's last batches. Never without a batch.
#[derive(Clone, Debug)]
pub struct Producer {
    epoch: i16,
    len: u8,
    batches: [RecentBatch; BATCHES_REMEMBERED],
}

impl PartialEq for Producer {
    fn eq(&self, other: &Producer) -> bool {
        self.epoch == other.epoch && self.batches() == other.batches()
    }
}
impl Eq for Producer {}

impl Producer {
    /// A producer after its first batch.
    pub fn new(epoch: i16, batch: RecentBatch) -> Producer {
        let mut batches = [NO_BATCH; BATCHES_REMEMBERED];
        batches[0] = batch;
        Producer { epoch, len: 1, batches }
    }

    /// The producer's newest epoch.
    pub fn epoch(&self) -> i16 {
        self.epoch
    }

    /// The last batches of that epoch, oldest first; at least one.
    pub fn batches(&self) -> &[RecentBatch] {
        &self.batches[..usize::from(self.len)]
    }

    /// The newest batch.
    pub fn last(&self) -> &RecentBatch {
        &self.batches[usize::from(self.len) - 1]
    }

    /// The remembered batch with exactly these sequences.
    pub fn duplicate_of(&self, first_sequence: i32, last_sequence: i32) -> Option<&RecentBatch> {
        let same = |b: &&RecentBatch| b.first_sequence == first_sequence && b.last_sequence == last_sequence;
        self.batches().iter().rev().find(same)
    }

    /// Remembers a batch that the log holds. Another epoch forgets the present one's batches, a lower one too: the log
    /// is right, and a primary that had expired the producer took it.
    pub fn record(&mut self, epoch: i16, batch: RecentBatch) {
        if epoch != self.epoch {
            *self = Producer::new(epoch, batch);
            return;
        }
        if usize::from(self.len) == BATCHES_REMEMBERED {
            self.batches.copy_within(1.., 0);
            self.batches[BATCHES_REMEMBERED - 1] = batch;
        } else {
            self.batches[usize::from(self.len)] = batch;
            self.len += 1;
        }
    }
}

/// A key of the table.
pub type ProducerKey = (Partition, i64);
type Item = (ProducerKey, Producer);

#[derive(Clone, Debug)]
struct Leaf {
    first: ProducerKey,
    /// No producer of the leaf was last appended to before this: expiry need not look into leaves above its limit.
    oldest: i64,
    items: Arc<Vec<Item>>,
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
        let at = leaf.items.binary_search_by(|(k, _)| k.cmp(&key)).ok()?;
        leaf.items.get(at).map(|(_, producer)| producer)
    }

    /// Remembers a batch of a producer; allocates only for a new producer and after a capture.
    pub fn record(&mut self, partition: Partition, producer_id: i64, epoch: i16, batch: RecentBatch) {
        let key = (partition, producer_id);
        let Some(at) = self.leaf_of(key) else {
            return self.push(key, Producer::new(epoch, batch));
        };
        let leaf = &mut self.leaves[at];
        leaf.oldest = leaf.oldest.min(batch.appended_at);
        let items = Arc::make_mut(&mut leaf.items);
        match items.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(found) => items[found].1.record(epoch, batch),
            Err(place) => self.insert(at, place, (key, Producer::new(epoch, batch))),
        }
    }

    /// Adds a producer with a key above all others.
    pub fn push(&mut self, key: ProducerKey, producer: Producer) {
        assert!(self.leaves.last().is_none_or(|l| l.items.last().is_some_and(|i| i.0 < key)), "keys ascend");
        let oldest = producer.last().appended_at;
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

    /// Forgets the producers whose newest batch was appended before `before_ms`, and of the others all but the
    /// `keep_max` most recent ones (of equally recent ones the lower keys go first). Looks only where something may be
    /// too old, unless there are more than `keep_max`.
    pub fn expire(&mut self, before_ms: i64, keep_max: usize) {
        self.retain_from((before_ms, (Partition::MIN, i64::MIN)));
        if self.len <= keep_max {
            return;
        }
        let mut ages: Vec<(i64, ProducerKey)> = self.iter().map(|(k, p)| (p.last().appended_at, k)).collect();
        let cut = self.len - keep_max;
        if cut == ages.len() {
            *self = ProducerTable::default();
            return;
        }
        let oldest_kept = *ages.select_nth_unstable(cut).1;
        self.retain_from(oldest_kept);
    }

    /// Keeps what was last appended to at `limit` or later, by (time, key).
    fn retain_from(&mut self, limit: (i64, ProducerKey)) {
        let mut kept: Vec<Leaf> = Vec::with_capacity(self.leaves.len());
        for mut leaf in std::mem::take(&mut self.leaves) {
            let age = |item: &Item| (item.1.last().appended_at, item.0);
            if leaf.oldest <= limit.0 {
                if leaf.items.iter().any(|item| age(item) < limit) {
                    Arc::make_mut(&mut leaf.items).retain(|item| age(item) >= limit);
                }
                leaf.oldest = leaf.items.iter().map(|item| age(item).0).min().unwrap_or(i64::MAX);
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn batch(first_sequence: i32, appended_at: i64) -> RecentBatch {
        RecentBatch { first_sequence, last_sequence: first_sequence, appended_at, ..NO_BATCH }
    }

    #[test]
    fn sequences_wrap_to_zero_after_the_largest() {
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
        assert_eq!(sequence_after(7, 0), 7);
        let wrapped = RecentBatch { first_sequence: i32::MAX, last_sequence: 1, base_offset: 10, ..NO_BATCH };
        assert_eq!(wrapped.last_offset(), 12);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map_under_any_order_of_inserts_captures_and_expiry(
            ops in prop::collection::vec((0..4i32, 0..200i64, 0..50i64, 0..40u8), 1..600),
        ) {
            let mut table = ProducerTable::default();
            let mut model: BTreeMap<ProducerKey, Producer> = BTreeMap::new();
            let mut captures = Vec::new();
            for (at, &(partition, id, when, what)) in ops.iter().enumerate() {
                let b = batch(at as i32, when);
                table.record(partition, id, 0, b);
                model.entry((partition, id)).and_modify(|p| p.record(0, b)).or_insert_with(|| Producer::new(0, b));
                match what {
                    0 => captures.push((table.clone(), model.clone())),
                    1 => {
                        table.expire(when / 2, 100);
                        model.retain(|_, p| p.last().appended_at >= when / 2);
                        let mut ages: Vec<_> = model.iter().map(|(k, p)| (p.last().appended_at, *k)).collect();
                        ages.sort();
                        for (_, key) in ages.iter().rev().skip(100) {
                            model.remove(key);
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
            }
            captures.push((table, model));
            for (table, model) in captures {
                prop_assert!(table.iter().eq(model.iter().map(|(k, p)| (*k, p))));
                prop_assert!(table.leaves.iter().all(|l| l.items.len() <= LEAF_MAX && l.first == l.items[0].0));
                let bound = |l: &Leaf| l.items.iter().all(|i| i.1.last().appended_at >= l.oldest);
                prop_assert!(table.leaves.iter().all(bound));
                for (key, producer) in &model {
                    prop_assert_eq!(table.get(key.0, key.1), Some(producer));
                }
                prop_assert_eq!(table.get(9, 9), None);
            }
        }
    }
}
