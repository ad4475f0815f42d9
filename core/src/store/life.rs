//! How much of an extent or a chunk lives: what neither its leaves' trim points nor log starts have passed.

use crate::store::Inner;
use crate::store::extent::Extent;
use crate::store::keeper::DISCARD_ROW;
use crate::store::leaf::Index;
use crate::store::rewrite::{Left, Life, life_of};
use crate::types::{LeafId, WHOLE_RANGE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How closely extents are looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Until something in it lives; whole when it is the first time.
    Quick,
    /// How much of it lives: reads all partition rows.
    Whole,
}

impl Inner {
    /// How much of a closed extent or of a chunk is left.
    pub(crate) fn life(&self, extent: &Arc<Extent>, look: Look) -> Life {
        // What died before it was closed is nowhere else seen.
        let is_first = !extent.looked.fetch_or(true, Ordering::Relaxed);
        let look = if is_first { Look::Whole } else { look };
        let mut all = Left { live: 0, whole: 0, gone: false };
        let ids: Vec<LeafId> = extent.leaves.lock().iter().copied().collect();
        for id in ids.into_iter().filter(|id| id.leaf != DISCARD_ROW) {
            let left = self.left_of(id, extent, look);
            all.live = all.live.saturating_add(left.live);
            all.whole = all.whole.saturating_add(left.whole);
            all.gone |= left.gone;
            if all.live > 0 && look == Look::Quick {
                return if extent.half_dead.load(Ordering::Relaxed) { Life::Spent } else { Life::Live };
            }
        }
        let life = life_of(all, extent.payload.load(Ordering::Relaxed), self.full.load(Ordering::Relaxed));
        extent.half_dead.fetch_or(life == Life::Spent, Ordering::Relaxed);
        life
    }

    fn left_of(&self, id: LeafId, extent: &Arc<Extent>, look: Look) -> Left {
        const GONE: Left = Left { live: 0, whole: 0, gone: true };
        // Of unknown size: more than any share.
        const LIVE: Left = Left { live: u64::MAX, whole: 0, gone: false };
        let Some(leaf) = self.known_leaf(id) else { return GONE };
        let (summary, trimmed) = {
            let state = leaf.state.read();
            let at = state.extents.partition_point(|(e, _)| e.number < extent.number);
            let Some((_, index)) = state.extents.get(at).filter(|(e, _)| e.key == extent.key) else {
                return GONE;
            };
            let Index::Disk(summary) = index else { return LIVE };
            let trimmed = state.registers.trimmed();
            if state.discarded || summary.entries == 0 || summary.addresses.1 < trimmed {
                return GONE;
            }
            let nothing_gone = state.log_starts.is_empty() && trimmed <= summary.addresses.0;
            if summary.holds_whole_range_only() {
                return Left { live: 0, whole: summary.bytes.max(1), gone: false };
            }
            if nothing_gone {
                return Left { live: summary.bytes.max(1), whole: 0, gone: false };
            }
            (*summary, trimmed)
        };
        let mut left = Left { live: 0, whole: 0, gone: trimmed > summary.addresses.0 };
        let above = match left.gone && look == Look::Whole {
            true => self.directories.first_entry(extent, &summary, |e| e.address < trimmed),
            false => Ok(0),
        };
        let Ok(below) = above else { return LIVE };
        // Entries of a leaf count as equally large, and the trimmed ones as spread evenly over its partitions.
        let entries = u64::from(summary.entries);
        let share = |count: u32| {
            let part = u128::from(summary.bytes) * u128::from(count) * u128::from(summary.entries - below);
            u64::try_from(part / u128::from(entries * entries)).unwrap_or(u64::MAX).max(1)
        };
        for i in 0..summary.partitions {
            let Ok(row) = self.directories.partition(extent, &summary, i) else { return LIVE };
            if row.partition == WHOLE_RANGE {
                left.whole = left.whole.saturating_add(share(row.count));
                continue;
            }
            let start = leaf.state.read().log_starts.get(&row.partition).copied();
            if start.is_some_and(|start| row.last_offset < start) {
                left.gone = true;
                continue;
            }
            left.live = left.live.saturating_add(share(row.count));
            if look == Look::Quick {
                break;
            }
        }
        left
    }
}
