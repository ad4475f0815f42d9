//! Directories, recycling, retention, and a model that everything is compared with.

use super::*;
use crate::drive::{Read, ScanQuery, TailDesc};
use crate::store::verify::verify;
use crate::store::{Fault, Faults, RewriteStep};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(super) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_clean_restart_reads_directories_only_and_finds_everything() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let config = || StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir.path()) };
        let (store, _) = DiskStore::open(config()).unwrap();
        let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
        for i in 0..300u64 {
            let p = (i % 5) as i32;
            write(&*a, i, vec![data(leaf(1), i, p, i as i64, 2000)]).await.unwrap();
            if i % 10 == 0 {
                write(&*b, i / 10 * 2, vec![data(leaf(2), i / 10 * 2, 0, i as i64, 20)]).await.unwrap();
            }
        }
        b.fence(8, SEAL).await.unwrap();
        a.trim(Address(20)).await.unwrap();
        store.close().await.unwrap();
        drop((store, a, b));
        let (store, report) = DiskStore::open(config()).unwrap();
        assert_eq!((report.scanned, report.entries >= 330), (0, true), "{report:?}");
        let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
        let tail = b.weak_tail(5).await.unwrap();
        assert_eq!((tail.end, tail.holes.into_iter().collect::<Vec<_>>()), (59, vec![55, 57]));
        assert_eq!(write(&*b, 59, vec![data(leaf(2), 59, 0, 999, 20)]).await, Err(WriteError::Sealed));
        let mut from = 0;
        let mut seen = Vec::new();
        loop {
            let query = ListQuery { from_offset: from, max_entries: 7, ..everything(3) };
            let page = a.list(query).await.unwrap();
            let Some(last) = page.last() else { break };
            from = last.header.last_offset() + 1;
            for e in &page {
                let sent = data(leaf(1), e.header.address.0, 3, e.header.base_offset, 2000);
                assert_eq!(bytes_of(e), payload_of(&sent));
                seen.push(e.header.base_offset);
            }
        }
        assert_eq!(seen, (0..300).filter(|i| i % 5 == 3 && *i >= 20).collect::<Vec<_>>());
        let scan = ScanQuery { from: Address(100), below: Address(200), max_entries: 1000 };
        assert_eq!(a.scan(scan).await.unwrap().len(), 100);
        assert_eq!(a.last_of(EntryKind::Data, 0, Address(150)).await.unwrap(), Some(Address(149)));
        for i in 20..300 {
            assert!(matches!(a.read(Address(i)).await.unwrap(), Read::Value(_)), "{i}");
        }
        write(&*a, 300, vec![data(leaf(1), 300, 0, 300, 20)]).await.unwrap();
    });
}

#[test]
fn a_trimmed_or_deleted_segments_extents_are_recycled_but_not_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) =
            DiskStore::open(StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir.path()) }).unwrap();
        let (a, b) = (store.drive(leaf(1)), store.drive(leaf(2)));
        for i in 0..60u64 {
            write(&*a, i, vec![data(leaf(1), i, 0, i as i64, 10_000)]).await.unwrap();
        }
        for i in 0..20u64 {
            write(&*b, i, vec![data(leaf(2), i, 0, i as i64, 10_000)]).await.unwrap();
        }
        let held = a.list(ListQuery { max_entries: 1, ..everything(0) }).await.unwrap();
        assert!(matches!(held[0].payload, Payload::File(_)), "large payloads are slices of files");
        let b_fenced = b.fence(4, SEAL).await.unwrap();
        a.trim(Address(50)).await.unwrap();
        eventually("trimmed extents become spare", || store.stats().recycled >= 5).await;
        assert_eq!(bytes_of(&held[0]), payload_of(&data(leaf(1), 0, 0, 0, 10_000)), "pinned while held");
        let before = store.stats().recycled;
        drop(held);
        eventually("a pin that is gone frees its extent", || store.stats().recycled > before).await;
        drop(store.discard(leaf(1).loglet));
        // Fills the open extent, so that all of the deleted segment lies in closed ones.
        for i in 0..20u64 {
            write(&*store.drive(leaf(3)), i, vec![data(leaf(3), i, 0, i as i64, 10_000)]).await.unwrap();
        }
        let all = b.list(everything(0)).await.unwrap();
        assert_eq!(all.len(), 20);
        drop((all, a, b));
        drop(store);
        {
            let (again, report) = open(dir.path());
            assert_eq!(report.damage, vec![]);
            assert_eq!(again.drive(leaf(2)).fence(4, SEAL).await.unwrap(), b_fenced);
            let zombie = write(&*again.drive(leaf(1)), 60, vec![data(leaf(1), 60, 0, 60, 10)]).await;
            assert_eq!(zombie, Err(WriteError::Sealed), "a deleted segment takes no writes");
            assert!(matches!(again.drive(leaf(1)).read(Address(55)).await.unwrap(), Read::Trimmed));
            again.close().await.unwrap();
        }
    });
}

#[test]
fn extents_below_their_log_starts_are_freed_and_read_as_gone_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) =
            DiskStore::open(StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir.path()) }).unwrap();
        let a = store.drive(leaf(1));
        for i in 0..40u64 {
            write(&*a, i, vec![data(leaf(1), i, (i % 2) as i32, i as i64, 10_000)]).await.unwrap();
        }
        a.note_log_starts(&[(0, 30), (1, 20)]);
        eventually("extents below the log starts are freed", || store.stats().recycled >= 2).await;
        let gone = a.read(Address(0)).await.unwrap();
        assert!(matches!(gone, Read::Gone { next } if next.0 > 0 && next.0 <= 20), "{gone:?}");
        assert_eq!(a.weak_tail(64).await.unwrap().holes, BTreeSet::new());
        store.close().await.unwrap();
        drop((store, a));
        let (store, _) = open(dir.path());
        let a = store.drive(leaf(1));
        assert!(matches!(a.read(Address(0)).await.unwrap(), Read::Gone { .. }));
        let tail = a.weak_tail(64).await.unwrap();
        assert_eq!((tail.end, tail.holes), (40, BTreeSet::new()));
        assert!(a.list(ListQuery { from_offset: 30, ..everything(0) }).await.unwrap().len() == 5);
    });
}

#[test]
fn an_idle_disk_prepares_one_spare_extent_when_none_is_left() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let config =
            StoreConfig { extent_bytes: 16 << 20, tail_bytes: TailBudget::new(0), ..config(dir.path()) };
        let (store, _) = DiskStore::open(config).unwrap();
        eventually("a new disk has two", || store.stats().extents_spare == 2).await;
        let drive = store.drive(leaf(1));
        for a in 0..3u64 {
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 12 << 20)]).await.unwrap();
        }
        let written = || store.inner.extents.lock().spares.iter().filter(|s| s.written).count();
        eventually("one is prepared", || written() == 1).await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!((written(), store.stats().extents_spare), (1, 1), "and no more");
    });
}

/// Names the threads that make files.
#[derive(Default)]
struct Makers(parking_lot::Mutex<Vec<String>>);

impl Faults for Makers {
    fn write(&self, _len: usize) -> Fault {
        Fault::None
    }
    fn allocate_fails(&self, _: u64) -> bool {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().push(name);
        false
    }
}

#[test]
fn appends_do_not_wait_for_the_next_extents_file() {
    let dir = tempfile::tempdir().unwrap();
    let makers = Arc::new(Makers::default());
    runtime().block_on(async {
        let config = StoreConfig { faults: Some(makers.clone()), ..config(dir.path()) };
        let extent = config.extent_bytes as usize;
        let (store, _) = DiskStore::open(config).unwrap();
        let drive = store.drive(leaf(1));
        for a in 0..12u64 {
            let extents = || store.inner.extents.lock();
            eventually("one file ahead", || extents().live.len() < 2 || !extents().spares.is_empty()).await;
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, extent / 2)]).await.unwrap();
        }
        assert!(store.inner.extents.lock().live.len() >= 6, "{:?}", store.stats());
        let made = makers.0.lock().clone();
        let by_others = made.iter().filter(|name| *name != "keeper").count();
        assert!(by_others <= 2, "none is made ahead before one was closed: {made:?}");
    });
}

#[test]
fn extent_numbers_are_not_used_again_when_all_extents_are_recycled() {
    let dir = tempfile::tempdir().unwrap();
    let numbers = || {
        let files = std::fs::read_dir(dir.path().join("extents")).unwrap().map(|f| f.unwrap().path());
        let of = |f: PathBuf| {
            let bytes = std::fs::read(&f).unwrap();
            let held = f.extension().is_some_and(|e| e == "ext") && bytes.starts_with(b"RWEX");
            held.then(|| u64::from_le_bytes(bytes[32..40].try_into().unwrap()))
        };
        files.filter_map(of).collect::<Vec<_>>()
    };
    runtime().block_on(async {
        let (mut a, mut seen) = (0, BTreeSet::new());
        for start in 0..3 {
            let (store, _) = open(dir.path());
            let drive = store.drive(leaf(1));
            write(&*drive, a, vec![data(leaf(1), a, 0, a as i64, 100)]).await.unwrap();
            a += 1;
            drive.trim(Address(a)).await.unwrap();
            assert!(numbers().into_iter().all(|n| seen.insert(n)), "start {start}: {:?} {seen:?}", numbers());
            store.close().await.unwrap();
            drop((store, drive));
            let (store, _) = open(dir.path());
            eventually("the only extent is recycled, before or after the start", || numbers().is_empty())
                .await;
            store.close().await.unwrap();
        }
    });
}

#[test]
fn trimmed_entries_of_an_open_extent_do_not_make_a_short_answer_empty() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (store, _) =
            DiskStore::open(StoreConfig { tail_bytes: TailBudget::new(0), ..config(dir.path()) }).unwrap();
        let a = store.drive(leaf(1));
        for i in 0..10u64 {
            write(&*a, i, vec![data(leaf(1), i, 0, i as i64, 100)]).await.unwrap();
        }
        a.trim(Address(8)).await.unwrap();
        let listed = a.list(ListQuery { max_entries: 3, ..everything(0) }).await.unwrap();
        let scanned = a.scan(ScanQuery { from: Address(0), below: ALL, max_entries: 3 }).await.unwrap();
        for found in [listed, scanned] {
            assert_eq!(found.iter().map(|s| s.header.address.0).collect::<Vec<_>>(), vec![8, 9]);
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Write { leaf: u64, skip: u64, count: u64, len: usize },
    Fill { leaf: u64 },
    Fence { leaf: u64 },
    Trim { leaf: u64, back: u64 },
    Discard { leaf: u64 },
    LogStart { leaf: u64, partition: i32, back: u64 },
    Kill,
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0u64..4, prop_oneof![8 => Just(0u64), 1 => 1u64..4], 1u64..5, prop_oneof![4 => 0usize..300, 2 => 2000usize..12_000, 1 => 60_000usize..80_000])
            .prop_map(|(leaf, skip, count, len)| Op::Write { leaf, skip, count, len }),
        2 => (0u64..4).prop_map(|leaf| Op::Fill { leaf }),
        1 => (0u64..4).prop_map(|leaf| Op::Fence { leaf }),
        2 => (0u64..4, 0u64..10).prop_map(|(leaf, back)| Op::Trim { leaf, back }),
        1 => (0u64..4).prop_map(|leaf| Op::Discard { leaf }),
        4 => (0u64..4, 0i32..3, 0u64..20).prop_map(|(leaf, partition, back)| Op::LogStart { leaf, partition, back }),
        2 => Just(Op::Kill),
        1 => Just(Op::Close),
    ]
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<u64, Entry>,
    end: u64,
    trim: u64,
    fenced: bool,
    discarded: bool,
    log_starts: BTreeMap<i32, i64>,
}

impl Model {
    /// Whether an entry must be there: below its log start it may be gone.
    fn lives(&self, header: &EntryHeader) -> bool {
        self.log_starts.get(&header.partition).is_none_or(|start| header.last_offset() >= *start)
    }
    fn note_log_starts(&self, drive: &dyn LogDrive) {
        drive.note_log_starts(&self.log_starts.iter().map(|(p, start)| (*p, *start)).collect::<Vec<_>>());
    }
    fn tail(&self, k: u64) -> TailDesc {
        let from = self.end.saturating_sub(k).max(self.trim);
        let holes = (from..self.end).filter(|a| !self.entries.contains_key(a)).collect();
        TailDesc { end: self.end, holes, trim: self.trim }
    }
}

async fn compare(store: &DiskStore, model: &BTreeMap<u64, Model>, tail: &TailBudget) {
    for (l, m) in model {
        let drive = store.drive(leaf(*l));
        if m.discarded {
            assert!(matches!(drive.read(Address(0)).await.unwrap(), Read::Trimmed));
            continue;
        }
        assert_eq!(drive.weak_tail(16).await.unwrap(), m.tail(16));
        let untrimmed = m.entries.range(m.trim..).map(|(_, e)| e);
        let live: Vec<&Entry> = untrimmed.filter(|e| m.lives(&e.header)).collect();
        let scan = ScanQuery { from: Address(0), below: ALL, max_entries: usize::MAX };
        let scanned = drive.scan(scan).await.unwrap();
        assert_eq!(
            scanned.iter().map(|s| s.header).filter(|h| m.lives(h)).collect::<Vec<_>>(),
            live.iter().map(|e| e.header).collect::<Vec<_>>()
        );
        assert!(scanned.is_sorted_by(|a, b| a.header.address < b.header.address), "each once");
        for s in &scanned {
            assert!(s.header.address.0 >= m.trim);
            let written = &m.entries[&s.header.address.0];
            assert_eq!((s.header, bytes_of(s)), (written.header, payload_of(written)));
        }
        for p in 0..3 {
            let (mut from, mut listed) = (i64::MIN, Vec::new());
            loop {
                let page = drive
                    .list(ListQuery { from_offset: from, max_entries: 3, ..everything(p) })
                    .await
                    .unwrap();
                let Some(last) = page.last() else { break };
                from = last.header.last_offset() + 1;
                listed.extend(page.iter().map(|s| s.header));
            }
            let expected: Vec<_> = live.iter().map(|e| e.header).filter(|h| h.partition == p).collect();
            listed.retain(|h| m.lives(h));
            assert_eq!(listed, expected);
        }
        for a in 0..m.end + 2 {
            match drive.read(Address(a)).await.unwrap() {
                Read::Value(v) => assert_eq!(v.header, m.entries[&a].header),
                Read::Trimmed => assert!(a < m.trim),
                Read::Hole => assert!(a >= m.trim && !m.entries.contains_key(&a)),
                Read::Gone { next } => {
                    assert!(a >= m.trim && !m.lives(&m.entries[&a].header), "only what is dead is freed");
                    let passed = m.entries.range(a..next.0.min(m.end));
                    assert!(passed.map(|(_, e)| &e.header).all(|h| !m.lives(h)), "{a} to {next:?}");
                }
            }
        }
    }
    assert!(tail.used() <= 20_000);
}

fn entry_of(l: u64, a: u64, len: usize) -> Entry {
    data(leaf(l), a, (a % 3) as i32, a as i64, len)
}

/// Ends all rewriting at its step number `at`, as a kill does.
pub(super) struct EndsAt {
    pub(super) at: usize,
    pub(super) seen: AtomicUsize,
}

impl Faults for EndsAt {
    fn write(&self, _: usize) -> Fault {
        Fault::None
    }
    fn rewrite_ends(&self, _: RewriteStep) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed) >= self.at
    }
}

/// `ends`: rewriting is on, and ends at these steps of the first lives of the store.
async fn run_model(ops: Vec<Op>, ends: Option<Vec<usize>>) {
    let dir = tempfile::tempdir().unwrap();
    let tail = TailBudget::new(20_000);
    let mut lives = ends.clone().unwrap_or_default().into_iter();
    let mut config = || {
        let config = StoreConfig { tail_bytes: tail.clone(), ..config(dir.path()) };
        if ends.is_none() {
            return config;
        }
        let faults: Option<Arc<dyn Faults>> =
            lives.next().map(|at| Arc::new(EndsAt { at, seen: AtomicUsize::new(0) }) as _);
        StoreConfig { journal_bytes: 64 << 10, chunk_bytes: 64 << 10, faults, ..config }
    };
    let mut store = DiskStore::open(config()).unwrap().0;
    let mut pinned: Vec<(Stored, Vec<u8>)> = Vec::new();
    let mut model: BTreeMap<u64, Model> = BTreeMap::new();
    for op in ops {
        match op {
            Op::Write { leaf: l, skip, count, len } => {
                let m = model.entry(l).or_default();
                let first = m.end + skip;
                let entries: Vec<_> = (first..first + count).map(|a| entry_of(l, a, len)).collect();
                let outcome = write(&*store.drive(leaf(l)), first, entries.clone()).await;
                if m.fenced || m.discarded {
                    assert_eq!(outcome, Err(WriteError::Sealed));
                    continue;
                }
                assert_eq!(outcome, Ok(()));
                let newest = store.drive(leaf(l)).read(Address(m.end.saturating_sub(1))).await.unwrap();
                if let Read::Value(v) = newest {
                    let bytes = bytes_of(&v);
                    pinned.push((v, bytes));
                }
                m.end = first + count;
                m.entries.extend((first..).zip(entries));
            }
            Op::Fill { leaf: l } => {
                let m = model.entry(l).or_default();
                let Some(a) = (m.trim..m.end).find(|a| !m.entries.contains_key(a)) else { continue };
                if m.fenced || m.discarded {
                    continue;
                }
                write(&*store.drive(leaf(l)), a, vec![entry_of(l, a, 50)]).await.unwrap();
                m.entries.insert(a, entry_of(l, a, 50));
            }
            Op::Fence { leaf: l } => {
                let m = model.entry(l).or_default();
                if !m.discarded {
                    assert_eq!(store.drive(leaf(l)).fence(16, SEAL).await.unwrap(), m.tail(16));
                    m.fenced = true;
                }
            }
            Op::Trim { leaf: l, back } => {
                let m = model.entry(l).or_default();
                if !m.discarded {
                    let below = m.end.saturating_sub(back);
                    store.drive(leaf(l)).trim(Address(below)).await.unwrap();
                    m.trim = m.trim.max(below);
                }
            }
            Op::LogStart { leaf: l, partition, back } => {
                let m = model.entry(l).or_default();
                let (start, known) =
                    (m.end.saturating_sub(back) as i64, m.log_starts.entry(partition).or_default());
                *known = start.max(*known);
                m.note_log_starts(&*store.drive(leaf(l)));
            }
            Op::Discard { leaf: l } => {
                let Some(m) = model.get_mut(&l) else { continue };
                drop(store.discard(leaf(l).loglet));
                m.discarded = true;
                // Durable with the next group, as a later write's answer shows.
                write(
                    &*store.drive(leaf(9)),
                    model.entry(9).or_default().end,
                    vec![entry_of(9, model[&9].end, 1)],
                )
                .await
                .unwrap();
                let m = model.entry(9).or_default();
                m.entries.insert(m.end, entry_of(9, m.end, 1));
                m.end += 1;
            }
            Op::Kill | Op::Close => {
                // Another process knows nothing of pins.
                assert!(pinned.drain(..).all(|(stored, bytes)| bytes_of(&stored) == bytes));
                if matches!(op, Op::Close) {
                    store.close().await.unwrap();
                }
                drop(store);
                if ends.is_some() {
                    assert_eq!(verify(dir.path(), |_| {}).unwrap().findings, vec![]);
                }
                let (again, report) = DiskStore::open(config()).unwrap();
                assert_eq!((&report.damage, report.torn_bytes), (&vec![], 0));
                assert!(!matches!(op, Op::Close) || report.scanned == 0, "{report:?}");
                store = again;
                compare(&store, &model, &tail).await;
                for (l, m) in model.iter().filter(|(_, m)| !m.discarded) {
                    m.note_log_starts(&*store.drive(leaf(*l)));
                }
                compare(&store, &model, &tail).await;
            }
        }
    }
    compare(&store, &model, &tail).await;
    assert!(pinned.drain(..).all(|(stored, bytes)| bytes_of(&stored) == bytes));
}

/// Cases of each model test; `RANGEWAY_TEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("RANGEWAY_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn a_disk_store_agrees_with_a_model_over_kills_and_restarts(ops in prop::collection::vec(op(), 1..60)) {
        runtime().block_on(run_model(ops, None));
    }

    #[test]
    fn rewriting_changes_nothing_that_is_read_wherever_it_is_killed(
        ops in prop::collection::vec(op(), 20..80),
        ends in prop::collection::vec(prop_oneof![4 => 0usize..12, 1 => Just(usize::MAX)], 0..8),
    ) {
        runtime().block_on(run_model(ops, Some(ends)));
    }
}

/// Holds the first write back until it is let go.
#[derive(Default)]
struct Held {
    state: parking_lot::Mutex<(bool, bool)>,
    changed: parking_lot::Condvar,
}

impl Held {
    fn wait_until_held(&self) {
        let mut state = self.state.lock();
        while !state.0 {
            self.changed.wait(&mut state);
        }
    }

    fn let_go(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

impl Faults for Held {
    fn write(&self, _len: usize) -> Fault {
        let mut state = self.state.lock();
        state.0 = true;
        self.changed.notify_all();
        while !state.1 {
            self.changed.wait(&mut state);
        }
        Fault::None
    }
}

#[test]
fn what_gathers_while_a_write_runs_is_one_write() {
    const APPENDS: u64 = 1000;
    let (dir, held) = (tempfile::tempdir().unwrap(), Arc::new(Held::default()));
    let config = StoreConfig { extent_bytes: 8 << 20, faults: Some(held.clone()), ..config(dir.path()) };
    let (store, _) = DiskStore::open(config).unwrap();
    let append = |n: u64| submit(&*store.drive(leaf(n)), 0, vec![data(leaf(n), 0, 0, 0, 100)]);
    let first = append(0);
    held.wait_until_held();
    let others: Vec<_> = (1..APPENDS).map(append).collect();
    held.let_go();
    runtime().block_on(async {
        for told in std::iter::once(first).chain(others) {
            told.await.unwrap().unwrap();
        }
    });
    // All are ranges of their own. The first, the rest (less than a group's bytes), perhaps the proof of the rest.
    let stats = store.stats();
    assert_eq!(stats.records, APPENDS);
    assert!((2..=3).contains(&stats.groups), "{} groups", stats.groups);
    assert!((2..=3).contains(&stats.syncs), "{} durable writes", stats.syncs);
}
