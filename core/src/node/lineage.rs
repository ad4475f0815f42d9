//! A range's segments and state out of its own log and those of the ranges it came from. Thin drivers over `range::fold`
//! and `range::lineage`.

use super::Inner;
use super::recover::{SCAN_ENTRIES, fold_segment};
use super::topics::owner;
use crate::codec::entry::EntryKind;
use crate::control::command::Ended;
use crate::control::state::{Range, Topic};
use crate::drive::{LogDrive, ScanQuery};
use crate::range::fold::{LogSummary, SealedSegment, Step, next_to_read};
use crate::range::lineage::{self, Kin};
use crate::range::primary::Base;
use crate::range::project;
use crate::range::segment::{Owner, Segment};
use crate::range::state::RangeState;
use crate::types::{Address, LogletId, RangeId};
use crate::virtual_log::chain::ChainEntry;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Sealed segments that are in use: each is opened once, however many ranges read it.
#[derive(Debug, Default)]
pub(super) struct OpenSegments(Mutex<HashMap<LogletId, Weak<Segment>>>);

impl OpenSegments {
    fn get(&self, loglet: LogletId) -> Option<Arc<Segment>> {
        self.0.lock().get(&loglet)?.upgrade()
    }

    /// Remembers a segment; gives the one that another had opened meanwhile.
    pub(super) fn keep(&self, segment: Arc<Segment>) -> Arc<Segment> {
        let mut known = self.0.lock();
        if known.len() >= 64 && known.len().is_power_of_two() {
            known.retain(|_, segment| segment.strong_count() > 0);
        }
        if let Some(first) = known.get(&segment.loglet).and_then(Weak::upgrade) {
            return first;
        }
        known.insert(segment.loglet, Arc::downgrade(&segment));
        segment
    }
}

/// What one range's own log gives.
enum Own {
    State(RangeState, Option<Base>),
    /// Nothing: the state is what these ranges ended with.
    Inherited(Vec<RangeId>),
}

/// A range on the way through its lineage.
struct Folding<'a> {
    range: &'a Range,
    /// Whose states it inherits, once its own log was found to give none.
    parents: Option<Vec<RangeId>>,
}

impl Inner {
    /// Segments of a range's own that are sealed, oldest first; `ended` is the end of the open one if it was sealed just
    /// now and is not in `range` yet.
    ///
    /// Errors: a disk that is not there.
    pub(super) fn sealed_segments(
        &self,
        range: &Range,
        ended: Option<&Ended>,
    ) -> Result<Vec<Arc<Segment>>, String> {
        let tail_of = |entry: &ChainEntry| {
            entry.tail.or_else(|| ended.filter(|e| e.loglet == entry.loglet).map(|e| e.tail))
        };
        let tails = range.chain.iter().filter_map(|entry| Some((entry, tail_of(entry)?)));
        tails
            .filter(|(_, tail)| *tail > Address(0))
            .map(|(entry, tail)| self.sealed_segment(owner(range), entry, tail))
            .collect()
    }

    /// All segments that hold a range's partitions, oldest first: `own`, the sealed ones of its own, after those of its
    /// ancestors that are left (see [`crate::range::lineage`]).
    ///
    /// Errors: a disk that is not there.
    pub(super) fn history(
        &self,
        topic: &Topic,
        range: &Range,
        own: Vec<Arc<Segment>>,
    ) -> Result<Vec<Arc<Segment>>, String> {
        let find = |id: RangeId| {
            let range = topic.ranges.get(&id)?;
            Some(Kin { owner: owner(range), parents: &range.parents, chain: &range.chain })
        };
        let inherited = lineage::ancestors(range.span, &range.parents, find);
        let inherited = inherited.into_iter().map(|(owner, entry)| {
            let tail =
                entry.tail.ok_or_else(|| format!("segment {} of an ancestor is open", entry.loglet))?;
            self.sealed_segment(owner, entry, tail)
        });
        inherited.chain(own.into_iter().map(Ok)).collect()
    }

    fn sealed_segment(
        &self,
        owner: Owner,
        entry: &ChainEntry,
        tail: Address,
    ) -> Result<Arc<Segment>, String> {
        if let Some(open) = self.segments.get(entry.loglet) {
            return Ok(open);
        }
        let drive = self.storage.open_sealed(entry.loglet, &entry.drive).map_err(|e| e.to_string())?;
        let (loglet, base, opened_at) = (entry.loglet, entry.base, entry.opened_at);
        let segment = Segment::new(owner, loglet, base, drive, opened_at, Some(tail));
        Ok(self.segments.keep(Arc::new(segment.with_compacted(entry.sparse))))
    }

    /// The state of a range after its sealed segments, which are given: folded from its own log, else inherited from what
    /// its parents ended with, and so on back (R10). Each range of the lineage is folded once.
    ///
    /// Errors: what cannot be read; an ancestor that was dropped although the state is in it.
    pub(super) async fn fold_range(
        &self,
        topic: &Topic,
        range: &Range,
        sealed: &[Arc<Segment>],
    ) -> Result<RangeState, String> {
        self.fold_range_from(topic, range, sealed).await.map(|(state, _)| state)
    }

    /// As [`fold_range`](Inner::fold_range), with the checkpoint of the range's own that it was folded from, if it has one.
    pub(super) async fn fold_range_from(
        &self,
        topic: &Topic,
        range: &Range,
        sealed: &[Arc<Segment>],
    ) -> Result<(RangeState, Option<Base>), String> {
        let mut from = None;
        let mut folded: HashMap<RangeId, RangeState> = HashMap::new();
        let mut ahead = vec![Folding { range, parents: None }];
        while let Some(mut one) = ahead.pop() {
            let id = one.range.id;
            if folded.contains_key(&id) {
                continue;
            }
            let parents = match one.parents.take() {
                Some(parents) => parents,
                None => {
                    let own = match id == range.id {
                        true => self.fold_own(one.range, sealed).await?,
                        false => self.fold_own(one.range, &self.sealed_segments(one.range, None)?).await?,
                    };
                    match own {
                        Own::Inherited(parents) => parents,
                        Own::State(state, base) => {
                            from = if id == range.id { base } else { from };
                            folded.insert(id, state);
                            continue;
                        }
                    }
                }
            };
            let missing: Vec<&RangeId> = parents.iter().filter(|p| !folded.contains_key(p)).collect();
            if missing.is_empty() {
                let state = inherited(one.range, &parents, &folded)?;
                folded.insert(id, state);
                continue;
            }
            let missing: Vec<Folding> =
                missing.into_iter().map(|p| parent(topic, id, *p)).collect::<Result<_, _>>()?;
            ahead.push(Folding { range: one.range, parents: Some(parents) });
            ahead.extend(missing);
        }
        let state = folded.remove(&range.id).ok_or_else(|| format!("range {} has no state", range.id))?;
        Ok((state, from))
    }

    async fn fold_own(&self, range: &Range, sealed: &[Arc<Segment>]) -> Result<Own, String> {
        let log = LogSummary {
            begins_at: range.chain.first().map_or(0, |entry| entry.base),
            sealed: sealed
                .iter()
                .map(|s| SealedSegment { loglet: s.loglet, tail: s.tail().unwrap_or(Address(0)) })
                .collect(),
            parents: range.parents.clone(),
        };
        let mut before = log.sealed.len();
        loop {
            match next_to_read(&log, before) {
                Step::Segment { index, segment } => {
                    let Some(found) = sealed.get(index) else { return Err("segment list changed".into()) };
                    if found.compacted {
                        // A newer segment had the state, or there would be none like this.
                        if found.drive.caps().durable {
                            return Err(format!(
                                "range {}: the checkpoints above segment {} are gone, and that is compacted; its numbering is lost",
                                range.id, segment.loglet
                            ));
                        }
                        before = index;
                        continue;
                    }
                    if let Some((state, base)) = fold_segment(&*found.drive, segment, range.span).await? {
                        return Ok(Own::State(state, Some(base)));
                    }
                    holds_no_state(&*found.drive, segment).await?;
                    before = index;
                }
                Step::Blank => return Ok(Own::State(RangeState::new(range.span), None)),
                Step::Parents(parents) => return Ok(Own::Inherited(parents)),
                Step::Lost if self.forgets(range) => {
                    tracing::warn!(range = %range.id, "a range of memory drives starts empty: its records went with the process");
                    return Ok(Own::State(RangeState::new(range.span), None));
                }
                Step::Lost => {
                    return Err(format!(
                        "range {}: older segments were dropped and no checkpoint is left; its numbering is lost",
                        range.id
                    ));
                }
            }
        }
    }

    /// Whether all that is left of a range's chain is on drives that do not outlive the process.
    fn forgets(&self, range: &Range) -> bool {
        let durable = |entry: &ChainEntry| {
            self.storage.open(entry.loglet, &entry.drive).map_or(true, |drive| drive.caps().durable)
        };
        !range.chain.iter().any(durable)
    }
}

/// Whether a segment without a whole checkpoint is right: one that ended within its first holds pieces of it and nothing else.
///
/// Errors: entries are missing, or others are there; what they numbered must not be numbered again.
async fn holds_no_state(drive: &dyn LogDrive, segment: SealedSegment) -> Result<(), String> {
    if !drive.caps().durable {
        return Ok(());
    }
    let mut from = Address(0);
    while from < segment.tail {
        let query = ScanQuery { from, below: segment.tail, max_entries: SCAN_ENTRIES };
        let page = drive.scan_heads(query).await.map_err(|e| e.to_string())?;
        let pieces = page.iter().take_while(|stored| {
            let piece = stored.header.kind == EntryKind::Checkpoint && stored.header.address == from;
            from = if piece { from.plus(1) } else { from };
            piece
        });
        if page.is_empty() || pieces.count() < page.len() {
            return Err(format!(
                "segment {}: no checkpoint of it can be found, though it holds entries up to {}; its numbering is lost",
                segment.loglet, segment.tail
            ));
        }
    }
    Ok(())
}

/// The parent `id` of `child`, to be folded.
fn parent(topic: &Topic, child: RangeId, id: RangeId) -> Result<Folding<'_>, String> {
    // Ids grow: a lineage that went in a circle would never end.
    if id >= child {
        return Err(format!("range {child}: range {id} is younger and cannot be its parent"));
    }
    let range = topic.ranges.get(&id).ok_or_else(|| {
        format!("range {child}: its state is in range {id}, which was dropped; its numbering is lost")
    })?;
    Ok(Folding { range, parents: None })
}

fn inherited(
    range: &Range,
    parents: &[RangeId],
    folded: &HashMap<RangeId, RangeState>,
) -> Result<RangeState, String> {
    let mut states: Vec<RangeState> = parents.iter().filter_map(|p| folded.get(p).cloned()).collect();
    states.sort_by_key(|state| state.span().first);
    project::inherit(range.span, &states).map_err(|e| format!("range {}: {e}", range.id))
}
