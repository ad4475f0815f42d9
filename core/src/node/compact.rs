//! Compaction of topics whose policy asks for it: thin drivers over [`crate::compact`]. One family of ranges at a time.
//!
//! What is written counts from the moment at which the control state names it in the place of what it was made of; until then
//! it is a tombstone, deleted at the next start or when its compaction is given up (INV-COMPACT-2).

mod rewrite;

use super::Inner;
use super::retain::Pass;
use super::said::{Event, Named};
use super::topic::TopicRuntime;
use crate::compact::clean::{Cleaner, Item, Rules, mark, note_keys};
use crate::compact::keys::{Class, Full, KeyMap, Marks, Newer};
use crate::compact::plan::{self, Due, Piece, Policy};
use crate::control::state::Topic;
use crate::range::retention;
use crate::range::segment::Segment;
use crate::types::{LogletId, Offset, Partition, RangeId};
use parking_lot::Mutex;
use rewrite::{Pages, Stopped};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// Passes over the keys of one compaction, at most: more do not fit the memory that it may use.
const CLASSES_MAX: u64 = 1 << 16;

/// What compaction is doing and has done in this process.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// Loglets that are being written, or of which it is not known whether they stand in a chain: tombstones that are kept.
    pub(super) written: Mutex<HashSet<LogletId>>,
    pub(super) replaced: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Steps until a compaction stops as a crash would have it, counted down; 0: none stops.
    #[cfg(test)]
    pub(super) stop_after: AtomicU64,
}

impl Compaction {
    /// A place at which a crash makes a difference.
    pub(super) fn step(&self) -> Result<(), Stopped> {
        #[cfg(test)]
        if self.stop_after.load(Ordering::Relaxed) > 0 && self.stop_after.fetch_sub(1, Ordering::Relaxed) == 1
        {
            return Err(Stopped("a test stops it here".to_owned()));
        }
        Ok(())
    }
}

/// A sealed segment of a family.
struct Member {
    piece: Piece,
    segment: Arc<Segment>,
    /// Of each partition that it has records of: where they begin, and one above where they end.
    parts: BTreeMap<Partition, (Offset, Offset)>,
}

pub(super) async fn run(node: Arc<Inner>) {
    let every = Duration::from_millis(node.options.config.cleaner_backoff_ms.unsigned_abs());
    loop {
        tokio::select! {
            () = node.cancel.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        for topic in node.all_topics().values() {
            if topic.config.load().cleanup.compact && !node.cancel.is_cancelled() {
                node.compact(topic).await;
            }
        }
    }
}

impl Inner {
    /// Compacts what is due of a topic.
    pub(super) async fn compact(&self, topic: &TopicRuntime) {
        if self.is_internal(topic.id) {
            return; // its keys are none that could supersede each other
        }
        let pass = self.look_at(topic).await;
        let families = {
            let state = self.control.read();
            let Some(control) = state.topics.get(&topic.id) else { return };
            families(control).into_iter().map(|of| members(control, &pass, &of)).collect::<Vec<_>>()
        };
        for members in families {
            let config = topic.config.load_full();
            let policy = Policy {
                dirty_ppm: config.compaction.dirty_ppm,
                min_lag_ms: config.compaction.min_lag_ms,
                max_lag_ms: config.compaction.max_lag_ms,
            };
            let pieces: Vec<Piece> = members.iter().map(|member| member.piece).collect();
            let Some(due) = plan::due(&pieces, &policy, self.now_ms()) else { continue };
            let rules = Rules {
                log_starts: pass.log_starts.clone(),
                now: self.now_ms(),
                delete_retention_ms: config.compaction.delete_retention_ms,
            };
            if let Err(Stopped(why)) = self.clean(topic, &members, &pieces, due, rules).await {
                self.compaction.failed.fetch_add(1, Ordering::Relaxed);
                self.note(Event::NotCompacted, Named::topic(&topic.name), &why);
            }
        }
    }

    async fn clean(
        &self,
        topic: &TopicRuntime,
        members: &[Member],
        pieces: &[Piece],
        due: Due,
        rules: Rules,
    ) -> Result<(), Stopped> {
        let (due, newer) = self.newer(topic, members, pieces, due, &rules).await?;
        self.compaction.step()?;
        let mut cleaner = Cleaner::new(rules, newer);
        // Oldest first: what is said to be clean is the beginning of a partition, wherever this ends.
        for group in plan::groups(pieces, &due.targets, topic.config.load().segment_bytes) {
            let group: Vec<&Member> = group.iter().filter_map(|at| members.get(*at)).collect();
            let before = cleaner.cleaned;
            cleaner = self.rewrite(topic, &group, cleaner).await?;
            let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
            add(&self.compaction.replaced, group.len() as u64);
            add(&self.compaction.records, cleaner.cleaned.records - before.records);
            add(&self.compaction.kept, cleaner.cleaned.kept - before.kept);
        }
        let cleaned = cleaner.cleaned;
        tracing::info!(topic = %topic.name, segments = due.targets.len(), records = cleaned.records, kept = cleaned.kept, "compacted");
        Ok(())
    }

    /// Where the keys of the dirty segments were last; of fewer of these, or in several passes, where the keys of all do not
    /// fit into memory.
    async fn newer(
        &self,
        topic: &TopicRuntime,
        members: &[Member],
        pieces: &[Piece],
        mut due: Due,
        rules: &Rules,
    ) -> Result<(Due, Newer), Stopped> {
        // Random, so that nobody can choose keys that fall together.
        let seed = Uuid::new_v4().as_u64_pair().0;
        let mut class = Class { nth: 0, of: 1 };
        while let Err(Full) = match self.keys(topic, members, &due, rules, seed, class).await? {
            Ok(map) => return Ok((due, Newer::Keys(map))),
            Err(full) => Err::<(), Full>(full),
        } {
            match plan::less(&due, pieces) {
                Some(less) => due = less,
                None => break,
            }
        }
        'classes: loop {
            class = Class { nth: 0, of: class.of * 2 };
            if class.of > CLASSES_MAX {
                return Err(Stopped(
                    "its keys do not fit cleaner.dedupe.buffer.size in any number of passes".into(),
                ));
            }
            let mut marks = Marks::default();
            for nth in 0..class.of {
                let Ok(map) = self.keys(topic, members, &due, rules, seed, Class { nth, ..class }).await?
                else {
                    continue 'classes;
                };
                marks = self.mark(topic, members, &due, rules, map, marks).await?;
            }
            return Ok((due, Newer::Marks(marks)));
        }
    }

    async fn keys(
        &self,
        topic: &TopicRuntime,
        members: &[Member],
        due: &Due,
        rules: &Rules,
        seed: u64,
        class: Class,
    ) -> Result<Result<KeyMap, Full>, Stopped> {
        let mut map = KeyMap::new(seed, class, self.options.config.cleaner_memory_bytes);
        for member in due.dirty.iter().filter_map(|at| members.get(*at)) {
            let mut pages = Pages::new(member, rules);
            while let Some(items) = pages.next(self, topic).await? {
                let codec = self.options.codec.clone();
                let noted = move || {
                    let noted = items.iter().try_for_each(|item| note_keys(&mut map, item, &*codec));
                    noted.map(|()| map)
                };
                map = match blocking(noted).await? {
                    Ok(map) => map,
                    Err(full) => return Ok(Err(full)),
                };
            }
        }
        Ok(Ok(map))
    }

    /// Marks what the keys of one class supersede.
    async fn mark(
        &self,
        topic: &TopicRuntime,
        members: &[Member],
        due: &Due,
        rules: &Rules,
        map: KeyMap,
        mut marks: Marks,
    ) -> Result<Marks, Stopped> {
        let map = Arc::new(map);
        for member in due.targets.iter().filter_map(|at| members.get(*at)) {
            let mut pages = Pages::new(member, rules);
            while let Some(items) = pages.next(self, topic).await? {
                let (codec, map) = (self.options.codec.clone(), map.clone());
                let marked = move || {
                    items.iter().for_each(|item: &Item| mark(&map, &mut marks, item, &*codec));
                    marks
                };
                marks = blocking(marked).await?;
            }
        }
        Ok(marks)
    }
}

/// Runs what takes long beside the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Stopped> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Stopped(error.to_string()))
}

/// The ranges of each family, ids ascending.
fn families(topic: &Topic) -> Vec<Vec<RangeId>> {
    let kin = topic.ranges.iter().map(|(id, range)| (*id, range.parents.as_slice()));
    let mut families: BTreeMap<RangeId, Vec<RangeId>> = BTreeMap::new();
    for (range, family) in plan::families(kin) {
        families.entry(family).or_default().push(range);
    }
    families.into_values().collect()
}

/// The sealed segments of a family in their order.
fn members(topic: &Topic, pass: &Pass, family: &[RangeId]) -> Vec<Member> {
    let stable: BTreeMap<Partition, Offset> = pass
        .looked_at
        .iter()
        .flat_map(|range| range.span.iter().filter_map(|p| Some((p, range.view(p)?.last_stable))))
        .collect();
    let mut members = Vec::new();
    for range in family.iter().filter_map(|id| topic.ranges.get(id)) {
        let views = pass.holdings.views(range.id);
        let needless = retention::needless(&views, pass.folds_from(range));
        for (at, (segment, view)) in pass.holdings.segments(range.id).zip(&views).enumerate() {
            if !view.sealed {
                continue;
            }
            let entry = range.chain.iter().find(|entry| entry.loglet == segment.loglet);
            let whole = entry.is_some_and(|entry| entry.degraded.is_none() && entry.lost.is_empty());
            let is_stable =
                view.parts.iter().all(|part| stable.get(&part.partition).is_some_and(|at| part.next <= *at));
            let piece = Piece {
                range: range.id,
                span: range.span,
                compacted: segment.compacted,
                free: at < needless && whole && is_stable,
                bytes: view.parts.iter().map(|part| part.bytes).sum(),
                oldest: segment.opened_at,
                newest: view.parts.iter().map(|part| part.newest()).max().unwrap_or(i64::MIN),
            };
            let parts = view.parts.iter().map(|part| (part.partition, (part.first, part.next))).collect();
            members.push(Member { piece, segment: segment.clone(), parts });
        }
    }
    members
}
