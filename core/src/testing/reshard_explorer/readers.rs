//! Readers: each follows the whole topic with a cursor's places, through splits, merges and what is deleted. What it is given of a partition
//! goes on where it was, save where a skip was reported that only deleted records lie in.

use super::world::{PARTITIONS, TOPIC, World};
use crate::codec::entry::{EntryHeader, EntryKind};
use crate::cursor::Places;
use crate::cursor::lineage::Lineage;
use crate::cursor::walk::Read;
use crate::types::{Offset, Partition, RangeId, Span};
use std::hash::{Hash, Hasher};

/// See the module head.
#[derive(Clone)]
pub(super) struct Reader {
    places: Places,
    /// Of each partition the next offset.
    next: [Offset; PARTITIONS as usize],
    /// Of each partition, whether a skip was reported since its last record.
    skipped: [bool; PARTITIONS as usize],
}

impl Reader {
    pub(super) fn identify(&self, into: &mut impl Hasher) {
        (&self.places, self.next, self.skipped).hash(into);
    }

    pub(super) fn reached(&self, partition: Partition) -> Offset {
        self.next[partition as usize]
    }
}

impl World {
    fn lineage(&self) -> Lineage {
        Lineage::of(self.topic())
    }

    pub(super) fn add_reader(&mut self) {
        let all = Span { first: 0, last: PARTITIONS - 1 };
        let places = Places::earliest(&self.lineage(), all).expect("the topic has them");
        let (next, skipped) = ([0; PARTITIONS as usize], [false; PARTITIONS as usize]);
        self.readers.push(Reader { places, next, skipped });
    }

    /// A reader looks at the layout and reads what one range has for it.
    pub(super) fn read_on(&mut self, at: usize, which: usize) -> Option<()> {
        let (lineage, mut reader) = (self.lineage(), self.readers[at].clone());
        let before = reader.places.clone();
        for skip in reader.places.settle(&lineage) {
            skip.span.iter().for_each(|partition| reader.skipped[partition as usize] = true);
        }
        let read = reader.places.reads(&lineage).into_iter().nth(which);
        let found = read.map(|read| (self.entries_of(&read), read));
        let mut changed = reader.places != before;
        if let Some((entries, read)) = found {
            for (_, header) in entries.iter().filter(|(_, header)| {
                matches!(header.kind, EntryKind::Data | EntryKind::Marker) && read.takes(header.partition)
            }) {
                if let Err(wrong) = self.delivered(&mut reader, header) {
                    self.broken = Some(wrong);
                }
            }
            if let Some((last, _)) = entries.last() {
                reader.places.advance(&read, last + 1);
                changed = true;
            }
        }
        self.readers[at] = reader;
        changed.then_some(())
    }

    fn delivered(&self, reader: &mut Reader, header: &EntryHeader) -> Result<(), String> {
        let (partition, offset) = (header.partition, header.base_offset);
        let (next, skipped) = (&mut reader.next[partition as usize], &mut reader.skipped[partition as usize]);
        let deleted = self.deleted[partition as usize];
        if offset < *next {
            return Err(format!("partition {partition}: a reader is given {offset} again, {next} is next"));
        }
        if offset > *next && !(*skipped && offset <= deleted) {
            return Err(format!(
                "partition {partition}: a reader is given {offset} where {next} is next; below {deleted} is deleted"
            ));
        }
        (*next, *skipped) = (header.last_offset() + 1, false);
        Ok(())
    }

    /// What of a read can be read now, by virtual address: all of a sealed segment, of an open one what its primary shows.
    fn entries_of(&self, read: &Read) -> Vec<(u64, EntryHeader)> {
        let Some(range) = self.topic().ranges.get(&read.from.range) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in &range.chain {
            let end = match entry.tail {
                Some(tail) => tail.0,
                None => self.shown(range.id, entry.loglet).unwrap_or(0),
            };
            let below = self.leaves[&entry.loglet].entries.range(..end);
            found.extend(below.map(|(local, (header, _))| (entry.base + local, *header)));
        }
        let wanted = read.from.address..read.until.unwrap_or(u64::MAX);
        found.retain(|(address, _)| wanted.contains(address));
        found
    }

    /// The completed tail of a segment by the primary that leads it.
    fn shown(&self, range: RangeId, loglet: crate::types::LogletId) -> Option<u64> {
        let open = self.control.topics[&TOPIC].ranges.get(&range)?.open()?;
        let node = (0..self.nodes.len()).find(|node| self.me(*node) == open.primary)?;
        let head = self.nodes[node].writer(loglet)?;
        Some(head.active().1.tail().0)
    }
}
