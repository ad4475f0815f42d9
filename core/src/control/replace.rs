//! How sealed segments are replaced by one that holds what stays of them. Part of the state machine: see [`super::apply`].

use super::apply::{Delta, check_version, exhausted};
use super::command::{PrepareReplacement, RangeState, Refusal, Replace, Reply};
use super::state::{Range, State, Tombstone, nodes_of};
use crate::types::LogletId;
use crate::virtual_log::chain::ChainEntry;
use std::sync::Arc;

impl State {
    pub(super) fn prepare_replacement(
        &mut self,
        prepare: &PrepareReplacement,
    ) -> Result<(Reply, Vec<Delta>), Refusal> {
        self.known_range(prepare.topic, prepare.range)?;
        let loglet = LogletId(self.counters.next_loglet);
        self.counters.next_loglet = loglet.0.checked_add(1).ok_or_else(|| exhausted("loglet ids"))?;
        let tombstone = Tombstone {
            topic: prepare.topic,
            range: prepare.range,
            drive: prepare.drive.clone(),
            pending: nodes_of(&prepare.drive),
            at: prepare.now,
        };
        Arc::make_mut(&mut self.tombstones).insert(loglet, tombstone);
        Ok((Reply::Prepared(loglet), vec![Delta::Tombstone(loglet)]))
    }

    pub(super) fn replace(&mut self, replace: &Replace) -> Result<(Reply, Vec<Delta>), Refusal> {
        let present = self.known_range(replace.topic, replace.range)?;
        check_version(replace.version, present.version)?;
        if present.state == RangeState::Fencing {
            return Err(Refusal::NotActive { range: present.id, state: present.state });
        }
        let prepared = self.tombstones.get(&replace.with);
        let prepared = prepared.filter(|t| (t.topic, t.range) == (replace.topic, replace.range));
        let drive = prepared.ok_or(Refusal::NotPrepared(replace.with))?.drive.clone();
        let mut range = Range::clone(present);
        let gone =
            splice(&mut range, replace, drive).ok_or(Refusal::NotReplaceable { range: replace.range })?;
        range.version += 1;
        Arc::make_mut(&mut self.tombstones).remove(&replace.with);
        let mut deltas = vec![Delta::Range(replace.topic, replace.range), Delta::Tombstone(replace.with)];
        deltas.extend(self.bury(replace.topic, replace.range, &gone, replace.now));
        let topic = self.topics.get_mut(&replace.topic).map(Arc::make_mut).expect("has the range");
        topic.ranges.insert(range.id, Arc::new(range));
        Ok((Reply::Done, deltas))
    }
}

/// Puts the replacement into the chain, with base and length of what it replaces, and hands that back.
fn splice(
    range: &mut Range,
    replace: &Replace,
    drive: crate::drive::spec::DriveSpec,
) -> Option<Vec<ChainEntry>> {
    let first = range.chain.iter().position(|entry| Some(&entry.loglet) == replace.old.first())?;
    let run = range.chain.get(first..first.checked_add(replace.old.len())?)?;
    let whole =
        |entry: &ChainEntry| entry.tail.is_some() && entry.degraded.is_none() && entry.lost.is_empty();
    if !run.iter().map(|entry| entry.loglet).eq(replace.old.iter().copied()) || !run.iter().all(whole) {
        return None;
    }
    let (oldest, newest) = (run.first()?, run.last()?);
    let length = newest.base.checked_add(newest.tail?.0)?.checked_sub(oldest.base)?;
    let inside = |(from, to): &(crate::types::Address, crate::types::Address)| from < to && to.0 <= length;
    if !replace.degraded.iter().all(inside) {
        return None;
    }
    let with = ChainEntry {
        loglet: replace.with,
        drive,
        primary: newest.primary,
        tail: Some(crate::types::Address(length)),
        degraded: replace.degraded,
        sparse: true,
        ..oldest.clone()
    };
    Some(range.chain.splice(first..first + replace.old.len(), [with]).collect())
}
