//! As even as subscriptions allow, with as few moves as that takes.
//!
//! Members with one subscription: everybody's share is known at once; who has more than it gives up the rest, small pieces of ranges first, and what is
//! free is given in runs to whom they fit. Mixed subscriptions: what is free goes to the member with least, then single
//! partitions move from more to less until no move makes it more even.

use super::super::image::{Partitions, by_topic, flat};
use super::{Spec, TopicSpec};
use rangeway_core::types::TopicId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How partitions that are given lie.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Those of a range at one member, as far as they fit.
    Together,
    /// One by one to whoever has least.
    Spread,
}

type Partition = (TopicId, i32);

/// Who owns what, by the member's place in the spec.
struct Board<'a> {
    spec: &'a Spec<'a>,
    placement: Placement,
    owned: Vec<BTreeSet<Partition>>,
}

pub(super) fn assign(spec: &Spec<'_>, placement: Placement) -> BTreeMap<String, Partitions> {
    let mut board = Board { spec, placement, owned: vec![BTreeSet::new(); spec.members.len()] };
    let free = board.keep();
    let alike = spec.members.windows(2).all(|pair| matches!(pair, [a, b] if a.topics == b.topics));
    if alike {
        board.share_out(free)
    } else {
        board.even_out(free)
    }
    let ids = spec.members.iter().map(|m| m.id.to_owned());
    ids.zip(board.owned.into_iter().map(by_topic)).collect()
}

impl Board<'_> {
    /// Everybody keeps what it had and still may have. What is left: free.
    fn keep(&mut self) -> BTreeSet<Partition> {
        let spec = self.spec;
        let all = spec.topics.iter().flat_map(|(topic, of)| (0..of.partitions).map(|p| (*topic, p)));
        let mut free: BTreeSet<Partition> = all.collect();
        for (owned, member) in self.owned.iter_mut().zip(&spec.members) {
            let mine = flat(member.before).filter(|(topic, _)| member.topics.contains(topic));
            owned.extend(mine.filter(|partition| free.remove(partition)));
        }
        free
    }

    /// A partition's range; where neighbours are spread each is alone.
    fn range_of(&self, (topic, partition): Partition) -> (TopicId, usize) {
        let of: Option<&TopicSpec> =
            self.spec.topics.get(&topic).filter(|_| self.placement == Placement::Together);
        (topic, of.map_or(partition as usize, |of| of.range_of(partition)))
    }

    /// All subscribe to the same.
    fn share_out(&mut self, mut free: BTreeSet<Partition>) {
        let count = self.owned.len();
        let Some(total) = self.owned.iter().map(BTreeSet::len).reduce(|a, b| a + b).map(|n| n + free.len())
        else {
            return;
        };
        let (base, extra) = (total / count, total % count);
        // Who has most keeps one more: that takes fewer moves.
        let mut by_size: Vec<usize> = (0..count).collect();
        by_size.sort_by_key(|place| Reverse(self.load(*place)));
        let mut shares = vec![base; count];
        for place in by_size.into_iter().take(extra) {
            if let Some(share) = shares.get_mut(place) {
                *share += 1;
            }
        }
        for (place, share) in shares.iter().enumerate() {
            free.extend(self.give_up(place, self.load(place).saturating_sub(*share)));
        }
        for run in self.runs(free) {
            self.give(run, &shares);
        }
    }

    fn load(&self, place: usize) -> usize {
        self.owned.get(place).map_or(0, BTreeSet::len)
    }

    /// Takes `count` partitions from a member: a piece of just that size if it has one, else small ones first, and the
    /// upper end of the last.
    fn give_up(&mut self, place: usize, mut count: usize) -> Vec<Partition> {
        let mut given = Vec::new();
        let mut pieces = self.pieces(self.owned.get(place).cloned().unwrap_or_default());
        pieces.sort_by_key(|piece| (piece.len() != count, piece.len(), Reverse(piece.first().copied())));
        for mut piece in pieces {
            let rest = piece.len().saturating_sub(count);
            let upper = piece.split_off(rest);
            count -= upper.len();
            given.extend(upper);
        }
        if let Some(owned) = self.owned.get_mut(place) {
            owned.retain(|partition| !given.contains(partition));
        }
        given
    }

    /// Partitions by their ranges, ascending in each.
    fn pieces(&self, partitions: BTreeSet<Partition>) -> Vec<Vec<Partition>> {
        let mut pieces: BTreeMap<(TopicId, usize), Vec<Partition>> = BTreeMap::new();
        for partition in partitions {
            pieces.entry(self.range_of(partition)).or_default().push(partition);
        }
        pieces.into_values().collect()
    }

    /// Neighbours within a range, longest runs first.
    fn runs(&self, free: BTreeSet<Partition>) -> Vec<Vec<Partition>> {
        let mut runs: Vec<Vec<Partition>> = Vec::new();
        for piece in self.pieces(free) {
            for partition in piece {
                match runs.last_mut() {
                    Some(run) if run.last().is_some_and(|last| self.are_neighbours(*last, partition)) => {
                        run.push(partition);
                    }
                    _ => runs.push(vec![partition]),
                }
            }
        }
        runs.sort_by_key(|run| Reverse(run.len()));
        runs
    }

    fn are_neighbours(&self, a: Partition, b: Partition) -> bool {
        a.0 == b.0 && a.1 + 1 == b.1 && self.range_of(a) == self.range_of(b)
    }

    /// Gives a run to whom it fits, in as few pieces as there is room for.
    fn give(&mut self, mut run: Vec<Partition>, shares: &[usize]) {
        while let (Some(first), Some(last)) = (run.first().copied(), run.last().copied()) {
            let room =
                |place: usize| shares.get(place).copied().unwrap_or(0).saturating_sub(self.load(place));
            let places = (0..self.owned.len()).filter(|place| room(*place) > 0);
            let best = places.max_by_key(|place| {
                let (room, len) = (room(*place), run.len());
                // The fullest among those that can take it all; else the one that can take most. Ties: the first.
                let fit = match self.placement {
                    Placement::Together if room >= len => (true, usize::MAX - room),
                    Placement::Together | Placement::Spread => (false, room),
                };
                (self.has_neighbour(*place, first, last), fit, Reverse(*place))
            });
            let Some(place) = best else { return };
            let taken = room(place).min(run.len());
            // From the end that touches what it has.
            let at_end = self.touches(place, last) && !self.touches(place, first);
            let piece = if at_end { run.split_off(run.len() - taken) } else { run.drain(..taken).collect() };
            if let Some(owned) = self.owned.get_mut(place) {
                owned.extend(piece);
            }
        }
    }

    fn has_neighbour(&self, place: usize, first: Partition, last: Partition) -> bool {
        self.touches(place, first) || self.touches(place, last)
    }

    /// Whether a member has a partition beside this one, of the same range.
    fn touches(&self, place: usize, partition: Partition) -> bool {
        let (topic, number) = partition;
        let sides = [(topic, number - 1), (topic, number + 1)];
        let is_near = |side: &Partition| self.range_of(*side) == self.range_of(partition);
        self.owned
            .get(place)
            .is_some_and(|owned| sides.iter().any(|side| owned.contains(side) && is_near(side)))
    }

    /// Subscriptions differ.
    fn even_out(&mut self, free: BTreeSet<Partition>) {
        let spec = self.spec;
        let readers: BTreeMap<TopicId, Vec<usize>> = spec
            .topics
            .keys()
            .map(|topic| {
                let members = spec.members.iter().enumerate();
                (*topic, members.filter(|(_, m)| m.topics.contains(topic)).map(|(place, _)| place).collect())
            })
            .collect();
        let readers_of = |topic: TopicId| readers.get(&topic).map(Vec::as_slice).unwrap_or_default();
        let mut free: Vec<Partition> = free.into_iter().collect();
        // Those that few may read first: the others can make up for it.
        free.sort_by_key(|(topic, _)| readers_of(*topic).len());
        for partition in free {
            let best = readers_of(partition.0)
                .iter()
                .copied()
                .min_by_key(|place| (self.load(*place), !self.touches(*place, partition), *place));
            if let Some(owned) = best.and_then(|place| self.owned.get_mut(place)) {
                owned.insert(partition);
            }
        }
        // Each move makes the sum of the squared loads smaller: it ends.
        while self.move_one_each(&readers_of) {}
    }

    /// Moves partitions to members that have two less or fewer; whether any moved.
    fn move_one_each<'r>(&mut self, readers_of: &impl Fn(TopicId) -> &'r [usize]) -> bool {
        let mut moved = false;
        for place in 0..self.owned.len() {
            let owned: Vec<Partition> = self.owned.get(place).into_iter().flatten().copied().collect();
            for partition in owned {
                let readers = readers_of(partition.0).iter().copied();
                let Some(least) = readers.min_by_key(|place| (self.load(*place), *place)) else { continue };
                if self.load(place) < self.load(least) + 2 {
                    continue;
                }
                if let Some(owned) = self.owned.get_mut(place) {
                    owned.remove(&partition);
                }
                if let Some(owned) = self.owned.get_mut(least) {
                    owned.insert(partition);
                }
                moved = true;
            }
        }
        moved
    }
}
