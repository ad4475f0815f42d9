use super::world::*;
use super::*;
use crate::range::read::Isolation;
use crate::range::retention::{self, Bounds, Policy, SegmentView};
use crate::store::{DiskStore, MemoryStore, StoreConfig, TailBudget};
use crate::types::{LeafId, LogletId, NodeId};
use proptest::prelude::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_split_and_merged_every_partition_reads_as_it_was_written(ops in ops(), max_bytes in 1..400usize) {
        runtime().block_on(async {
            let mut world = World::memory();
            for op in &ops {
                world.step(op).await;
            }
            world.check(max_bytes).await;
        });
    }
}

async fn split_and_merged(mut world: World) {
    for round in 0..3 {
        for partition in 0..PARTITIONS {
            world.append(partition, 2, round).await;
        }
        world.split(4, round == 1).await;
        world.check(100).await;
        for partition in [1, 5] {
            world.append(partition, 1, 5 + round).await;
            world.transact(partition, round).await;
            world.transact(partition, 7).await;
        }
        world.split(6, false).await;
        world.merge(4, true).await;
        world.append(5, 3, 9).await;
        world.mark(5, 7, false).await;
        world.mark(1, round, round == 1).await;
        world.merge(0, false).await;
        world.check(200).await;
        world.trim(1, 1).await;
        world.restart().await;
    }
    assert_eq!(world.live.len(), 1);
    world.check(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_reads_across_splits_and_merges_as_memory_does() {
    split_and_merged(World::memory()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let config = StoreConfig {
        extent_bytes: 1 << 20,
        tail_bytes: TailBudget::new(0),
        reserve_bytes: 0,
        ..StoreConfig::new(dir.path(), NodeId(1))
    };
    let store =
        tokio::task::spawn_blocking(|| DiskStore::open(config).expect("opens").0).await.expect("ends");
    split_and_merged(World::new(Store::Disk(store))).await;
}

#[tokio::test]
async fn a_read_near_the_tail_looks_at_nothing_of_the_ancestors() {
    let mut world = World::memory();
    for _ in 0..20 {
        world.append(0, 1, 1).await;
        world.split(4, false).await;
        world.append(5, 1, 1).await;
        world.merge(0, false).await;
    }
    world.append(0, 1, 1).await;
    world.restart().await;
    world.append(0, 1, 2).await;
    let range = &world.live[0].0;
    let end = world.model[0].end();
    for offset in [end, end - 1] {
        range.read(0, offset, 100, Isolation::Uncommitted).await.expect("readable");
    }
    let looked_at = || range.segments().iter().rev().map(|s| s.starts().is_some()).collect::<Vec<_>>();
    let (newest, older) = (looked_at()[0], looked_at()[1..].iter().filter(|seen| **seen).count());
    assert_eq!((newest, older), (true, 0));
    range.read(0, end - 2, 100, Isolation::Uncommitted).await.expect("readable");
    assert_eq!(looked_at().iter().filter(|seen| **seen).count(), 2, "the one before, and no more");
    world.check(300).await;
}

#[tokio::test]
async fn retention_lets_a_closed_range_go_once_all_partitions_have_passed_it_and_its_children_have_checkpoints()
 {
    let mut world = World::memory();
    for partition in [0, 5] {
        world.append(partition, 2, 1).await;
    }
    world.roll(0).await;
    world.append(5, 1, 2).await;
    world.split(4, false).await;
    world.trim(5, 0).await;
    let ancestors = |world: &World, at: usize| {
        world.live[at].0.segments().iter().filter(|s| s.owner.range.0 == 0).count()
    };
    world.retain().await;
    assert_eq!((world.dropped, ancestors(&world, 1)), (0, 2), "the left child has no checkpoint");
    world.open(0);
    world.append(1, 1, 1).await;
    world.retain().await;
    assert_eq!(world.dropped, 0, "partition 0 has not passed the first segment");
    world.trim(0, 0).await;
    world.retain().await;
    assert_eq!((world.dropped, ancestors(&world, 0), ancestors(&world, 1)), (2, 0, 0));
    let owners = |at: usize| world.live[at].0.stored().into_iter().filter(|(_, n)| *n > 0).map(|(r, _)| r.0);
    assert_eq!((owners(0).collect::<Vec<_>>(), owners(1).count()), (vec![1], 0));
    world.check(100).await;
}

#[tokio::test]
async fn retention_counts_a_partitions_records_wherever_they_were_written() {
    let mut world = World::memory();
    for _ in 0..3 {
        world.append(5, 2, 100).await;
        world.append(0, 1, 100).await;
        world.split(4, false).await;
        world.append(5, 1, 200).await;
        world.merge(0, false).await;
    }
    let range = world.live[0].0.clone();
    let seen = range.parts(world.clock).await;
    let views: Vec<SegmentView> = seen
        .into_iter()
        .map(|(s, parts)| SegmentView { loglet: s.loglet, sealed: s.tail().is_some(), parts })
        .collect();
    let of =
        |p| views.iter().flat_map(|v| &v.parts).filter(move |part| part.partition == p).collect::<Vec<_>>();
    assert_eq!(
        of(5).iter().map(|p| (p.first, p.next)).collect::<Vec<_>>(),
        [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9)]
    );
    assert_eq!(of(0).iter().map(|p| (p.first, p.next)).collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
    let stored: u64 = world.model[5].entries.iter().map(|e| e.bytes as u64).sum();
    assert_eq!(of(5).iter().map(|p| p.bytes).sum::<u64>(), stored);
    let bounds =
        |p| range.view(p).map(|v| Bounds { log_start: v.log_start, high_watermark: v.high_watermark });
    let newest: u64 = world.model[5].entries[4..].iter().map(|e| e.bytes as u64).sum();
    let bytes = Policy { retention_ms: None, retention_bytes: Some(newest) };
    assert_eq!(retention::raise(&views, bounds, bytes, 0), [(0, 1), (5, 6)]);
    let time = Policy { retention_ms: Some(50), retention_bytes: None };
    assert_eq!(retention::raise(&views, bounds, time, 200), [(0, 3), (5, 2)]);
}

/// Segments that nothing was read of, of the ranges `(id, span)` in the order of their loglets, all sealed.
fn list(of: &[(u32, Span)]) -> Vec<Arc<Segment>> {
    let store = MemoryStore::new().expect("a thread");
    let sealed = |(loglet, &(range, span)): (u64, &(u32, Span))| {
        let loglet = LogletId(loglet);
        let drive = store.drive(LeafId { loglet, leaf: 0 });
        let owner = Owner { range: RangeId(range), span };
        Arc::new(Segment::new(owner, loglet, 0, drive, 0, Some(Address(1))))
    };
    (0..).zip(of).map(sealed).collect()
}

#[test]
fn the_history_of_a_partition_is_what_holds_it() {
    let segments =
        list(&[(0, span(0, 3)), (1, span(0, 1)), (2, span(2, 3)), (1, span(0, 1)), (3, span(0, 3))]);
    let history = |partition| {
        let mut places = Vec::new();
        while let Some(at) = next_of(&segments, places.last().map_or(0, |at| at + 1), partition) {
            places.push(at);
        }
        places
    };
    assert_eq!(history(0), [0, 1, 3, 4]);
    assert_eq!(history(2), [0, 2, 4]);
    assert_eq!(history(4), [] as [usize; 0]);
    assert_eq!(back(&segments, 5, 1, 2), Some(4));
    assert_eq!(back(&segments, 4, 1, 2), Some(2));
    assert_eq!(back(&segments, 4, 9, 2), Some(0), "the oldest there is");
    assert_eq!(back(&segments, 0, 1, 2), None);
}

#[test]
fn a_child_inherits_what_overlaps_and_nothing_twice_or_empty() {
    let grandparent = list(&[(0, span(0, 7))]).remove(0);
    let mut lists = [vec![grandparent.clone()], vec![grandparent]];
    let others = list(&[(9, span(0, 7)), (1, span(0, 3)), (2, span(4, 5))]);
    lists[0].push(others[1].clone());
    lists[1].push(others[2].clone());
    let of = |span| -> Vec<u64> {
        inherit(span, lists.iter().map(|l| &l[..])).iter().map(|s| s.loglet.0).collect()
    };
    assert_eq!(of(span(0, 5)), [0, 1, 2]);
    assert_eq!(of(span(3, 3)), [0, 1]);
    assert_eq!(of(span(6, 7)), [0]);
}

mod control {
    use super::*;
    use crate::drive::spec::DriveSpec;
    use crate::types::{Generation, Primary};
    use crate::virtual_log::chain::SealMode;

    fn entry(base: u64, loglet: u64, tail: Option<u64>) -> ChainEntry {
        let node = NodeId(1);
        ChainEntry {
            base,
            loglet: LogletId(loglet),
            drive: DriveSpec::Memory { node },
            window: 1,
            seal_mode: SealMode::Fence,
            primary: Primary { node, generation: Generation(1) },
            tail: tail.map(Address),
            degraded: None,
            lost: Vec::new(),
            sparse: false,
            opened_at: 0,
        }
    }

    struct Given {
        owner: Owner,
        parents: Vec<RangeId>,
        chain: Vec<ChainEntry>,
    }

    fn given(id: u32, span: Span, parents: &[u32], chain: &[(u64, Option<u64>)]) -> Given {
        Given {
            owner: Owner { range: RangeId(id), span },
            parents: parents.iter().map(|p| RangeId(*p)).collect(),
            chain: chain
                .iter()
                .scan(0, |end, (loglet, tail)| {
                    let base = *end;
                    *end += tail.unwrap_or(0);
                    Some(entry(base, *loglet, *tail))
                })
                .collect(),
        }
    }

    fn loglets(of: &[Given], span: Span, parents: &[RangeId]) -> Vec<u64> {
        let find = |id: RangeId| {
            let found = of.iter().find(|r| r.owner.range == id)?;
            Some(Kin { owner: found.owner, parents: &found.parents, chain: &found.chain })
        };
        ancestors(span, parents, find).iter().map(|(_, entry)| entry.loglet.0).collect()
    }

    #[test]
    fn ancestors_are_found_through_empty_and_shared_ones_and_not_through_dropped_ones() {
        let mut all = vec![
            given(0, span(0, 7), &[], &[(1, Some(9)), (2, Some(4))]),
            given(1, span(0, 3), &[0], &[]),
            given(2, span(4, 7), &[0], &[(5, Some(2))]),
            given(3, span(0, 7), &[1, 2], &[(7, Some(3)), (8, Some(0))]),
        ];
        let parents = [RangeId(3)];
        assert_eq!(loglets(&all, span(0, 7), &parents), [1, 2, 5, 7]);
        assert_eq!(loglets(&all, span(1, 1), &parents), [1, 2, 7], "the sibling's are not the partition's");
        all.remove(0);
        assert_eq!(loglets(&all, span(0, 7), &parents), [5, 7]);
        assert_eq!(loglets(&all, span(0, 7), &[]), [] as [u64; 0]);
    }

    #[test]
    fn a_compacted_segment_stands_where_those_stood_that_it_replaced() {
        let mut all = [
            given(0, span(0, 7), &[], &[(90, Some(13)), (3, Some(4))]),
            given(1, span(0, 3), &[0], &[(80, Some(2)), (9, Some(2))]),
        ];
        all[0].chain[0].sparse = true;
        all[1].chain[0].sparse = true;
        assert_eq!(loglets(&all, span(0, 7), &[RangeId(1)]), [90, 3, 80, 9]);
    }

    #[test]
    fn a_lineage_a_thousand_deep_is_walked_once() {
        // Each step splits the one range and merges both halves: 2^500 ways lead to the root.
        let mut all = vec![given(0, span(0, 1), &[], &[(1, Some(1))])];
        for n in 0..500u32 {
            let (parent, left) = (3 * n, 3 * n + 1);
            let loglet = u64::from(left) + 1;
            all.push(given(left, span(0, 0), &[parent], &[(loglet, Some(1))]));
            all.push(given(left + 1, span(1, 1), &[parent], &[(loglet + 1, Some(1))]));
            all.push(given(left + 2, span(0, 1), &[left, left + 1], &[(loglet + 2, Some(1))]));
        }
        let found = loglets(&all, span(1, 1), &[RangeId(1500)]);
        assert_eq!(found.len(), 1001);
        assert!(found.windows(2).all(|w| w[0] < w[1]), "oldest first");
    }
}
