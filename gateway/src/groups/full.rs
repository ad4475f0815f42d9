//! A coordinator whose log takes no records, since the disk is full: what is handled all the same, and what comes after.
//!
//! Reads are, and signs of life. Of a join, a sync and a heartbeat of the consumer protocol it depends on the group whether they record
//! anything: that is tried on a copy of it.

use super::ask::{Ask, Asked};
use super::consumer::image::Consumers;
use super::consumer::sessions;
use super::coordinator::Coordinator;
use super::live::Live;
use rangeway_core::replicated::{Machine, Now, Outcome, Ticket};
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Coordinator {
    /// Whether handling this records nothing, neither at once nor later.
    pub(super) fn records_nothing(&self, asked: &Asked, now: Now) -> bool {
        match &asked.ask {
            Ask::Heartbeat(_)
            | Ask::Offsets { .. }
            | Ask::Pending { .. }
            | Ask::Describe { .. }
            | Ask::DescribeConsumers { .. }
            | Ask::List
            | Ask::Configs { .. }
            | Ask::Configured
            | Ask::Look(_) => true,
            Ask::Configure { validate_only, .. } => *validate_only,
            Ask::EndTransaction(ended) => self.end_transaction(*ended).is_none(),
            Ask::Join(_) | Ask::Sync(_) | Ask::Beat(_) => self.rehearse(asked, now),
            Ask::Leave { .. }
            | Ask::Commit(_)
            | Ask::CommitPending(_)
            | Ask::DeleteOffsets { .. }
            | Ask::Delete { .. }
            | Ask::Sweep => false,
        }
    }

    /// Whether a copy of the group answers at once and records nothing. What is parked would be recorded with others.
    fn rehearse(&self, asked: &Asked, now: Now) -> bool {
        let Some(group) = asked.ask.group() else { return false };
        let (ticket, mut out) = (Ticket(u64::MAX), Outcome::default());
        self.only(group).handle(ticket, asked.clone(), now, &mut out);
        out.take_records().is_empty() && out.take_replies().iter().any(|(of, _)| *of == ticket)
    }

    /// A coordinator that has this group alone.
    fn only(&self, group: &str) -> Coordinator {
        fn one<T: Clone>(all: &BTreeMap<String, T>, group: &str) -> BTreeMap<String, T> {
            all.get_key_value(group).map(|(k, v)| (k.clone(), v.clone())).into_iter().collect()
        }
        let consumers = Consumers {
            groups: one(&self.consumers.groups, group),
            configs: one(&self.consumers.configs, group),
        };
        Coordinator {
            settings: self.settings.clone(),
            stored: one(&self.stored, group),
            consumers,
            pending: self.pending.clone(),
            numbers: self.numbers.clone(),
            catalog: self.catalog.clone(),
            live: self.live.get(group).map(|live| (group.to_owned(), live.clone())).into_iter().collect(),
            due: BTreeSet::new(),
            absent_topics: HashMap::new(),
        }
    }

    /// Nobody was expelled while nothing could be recorded, and nobody who was refused meanwhile is now: everybody's time
    /// begins anew.
    pub(super) fn begin_times(&mut self, now_ms: u64) {
        let groups: Vec<String> = self.live.keys().cloned().collect();
        for group in groups {
            let image = self.consumers.groups.get(&group);
            let times = image.map(|image| sessions(image, self.consumer_session_ms(&group), now_ms));
            let Some(live) = self.live.get_mut(&group) else { continue };
            match times {
                Some(times) => live.consumers = times,
                None => live.begin_times(now_ms),
            }
            self.settle(&group);
        }
    }
}

impl Live {
    /// Of a classic group: puts off the end of sessions, of a wait for members, and of one for their syncs.
    fn begin_times(&mut self, now_ms: u64) {
        for member in self.members.values_mut() {
            let due = now_ms + u64::from(member.info.session_timeout_ms);
            member.session_due = member.session_due.max(due);
        }
        let due = now_ms + self.rebalance_timeout_ms();
        if let Some(rebalance) = self.rebalance.as_mut().filter(|rebalance| rebalance.initial.is_none()) {
            rebalance.due = rebalance.due.max(due);
        }
        self.sync_due = self.sync_due.map(|at| at.max(due));
    }
}
