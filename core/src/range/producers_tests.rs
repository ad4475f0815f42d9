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
            let change = |p: &mut Producer| match what {
                2..6 => {
                    p.record(0, b);
                    p.begin(at as i64);
                }
                6..12 => {
                    let marker = LastMarker {
                        number: at as u64, coordinator_epoch: 0, loglet: LogletId(1), address: Address(1),
                        appended_at: when,
                    };
                    p.end(0, marker);
                }
                _ => p.record(0, b),
            };
            change(table.touch(partition, id, 0, when));
            change(model.entry((partition, id)).or_insert_with(|| Producer::new(0)));
            match what {
                0 => captures.push((table.clone(), model.clone())),
                1 => {
                    table.expire(when / 2, 100);
                    model.retain(|_, p| p.open().is_some() || p.touched_at() >= when / 2);
                    let mut ages: Vec<_> =
                        model.iter().map(|(k, p)| (p.open().is_some(), p.touched_at(), *k)).collect();
                    ages.sort();
                    for (open, _, key) in ages.iter().rev().skip(100) {
                        if !open {
                            model.remove(key);
                        }
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
            let bound = |l: &Leaf| l.items.iter().all(|i| i.1.age() >= l.oldest);
            prop_assert!(table.leaves.iter().all(bound));
            for (key, producer) in &model {
                prop_assert_eq!(table.get(key.0, key.1), Some(producer));
            }
            prop_assert_eq!(table.get(9, 9), None);
            for partition in 0..5 {
                let mine = model.iter().filter(|(k, _)| k.0 == partition).map(|(k, p)| (k.1, p));
                prop_assert!(table.of(partition).eq(mine));
            }
        }
    }
}
