//! Sessions of a consumer group's members and what time does to them.

use super::super::coordinator::Turn;
use super::image::{ConsumerImage, Step};
use std::collections::BTreeMap;

/// Soft state of one member: when it is given up, monotonic ms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    /// Unless it is heard before.
    pub(super) due: u64,
    /// Unless it has given up by then what it was asked for.
    pub(super) revoke_due: Option<u64>,
    /// Classic protocol: unless it joins again before.
    pub(super) join_due: Option<u64>,
    /// Classic protocol: unless it asks for its assignment before.
    pub(super) sync_due: Option<u64>,
}

impl Session {
    /// The first of its times.
    pub(in super::super) fn next_due(&self) -> u64 {
        let others = [self.revoke_due, self.join_due, self.sync_due];
        others.into_iter().flatten().fold(self.due, u64::min)
    }

    fn why(&self, now_ms: u64) -> Option<&'static str> {
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_ms);
        if self.due <= now_ms {
            Some("it was silent for its session timeout")
        } else if is_due(self.revoke_due) {
            Some("it kept partitions that it was asked to give up for its rebalance timeout")
        } else if is_due(self.join_due) {
            Some("it did not join again within its rebalance timeout")
        } else {
            is_due(self.sync_due).then_some("it never asked for its assignment")
        }
    }
}

/// Of a group that was loaded: everybody's time begins afresh.
pub(in super::super) fn sessions(
    image: &ConsumerImage,
    session_ms: u64,
    now_ms: u64,
) -> BTreeMap<String, Session> {
    let session = |id: &String| {
        let member = image.members.get(id)?;
        let classic = member.subscription.classic.as_ref();
        let session_ms = classic.map_or(session_ms, |c| u64::from(c.session_timeout_ms));
        let rebalance_ms = u64::from(member.subscription.rebalance_timeout_ms);
        let revokes = member.current.state == Step::Unrevoked && classic.is_none();
        let revoke_due = revokes.then_some(now_ms + rebalance_ms);
        Some(Session { due: now_ms + session_ms, revoke_due, ..Session::default() })
    };
    image.members.keys().filter_map(|id| Some((id.clone(), session(id)?))).collect()
}

impl Turn<'_> {
    /// The session of a member, made if it is not there.
    pub(super) fn session(&mut self, member_id: &str) -> &mut Session {
        self.live().consumers.entry(member_id.to_owned()).or_default()
    }

    /// Puts off the end of a member's session.
    pub(super) fn heard(&mut self, member_id: &str) {
        let classic = self.member(member_id).and_then(|m| m.subscription.classic.as_ref());
        let session_ms = match classic {
            Some(classic) => u64::from(classic.session_timeout_ms),
            None => self.coordinator.consumer_session_ms(self.group),
        };
        let due = self.now.mono_ms + session_ms;
        self.session(member_id).due = due;
    }

    /// Removes members whose time is over.
    pub(in super::super) fn expire_consumers(&mut self) {
        let now_ms = self.now.mono_ms;
        let live = self.live();
        live.pending.lapse(now_ms);
        let over: Vec<(String, &'static str)> = {
            let sessions = live.consumers.iter();
            sessions.filter_map(|(id, session)| Some((id.clone(), session.why(now_ms)?))).collect()
        };
        for (member_id, why) in &over {
            tracing::info!(group = self.group, member = member_id, why, "a member is given up");
        }
        self.remove_consumers(over.iter().map(|(id, _)| id.as_str()));
    }
}
