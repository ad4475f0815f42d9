//! Ending a range's segment and opening the next: the graceful roll, and the seal of a segment that cannot go on.

use super::Inner;
use super::follow::States;
use super::said::{Event, Named};
use super::topic::TopicRuntime;
use super::topics::epochs;
use crate::control::command::{self, Command, Ended, Extend};
use crate::control::state::{Range, Topic as ControlTopic};
use crate::control::{ControlError, propose_one};
use crate::drive::Purpose;
use crate::range::primary::{Phase, RangePrimary};
use crate::types::{Address, LogletId, RangeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A drain that takes longer is called off; the roll is tried again later (design 5).
const DRAIN_MAX: Duration = Duration::from_millis(50);

impl Inner {
    /// Rolls a range gracefully: stop issuing, drain, record the tail, open the next segment. Called off when the
    /// drain takes too long or the chain moved.
    ///
    /// Errors: there is no place for the next segment, or the roll was not recorded: to be tried again later.
    pub(super) async fn roll(&self, topic: &TopicRuntime, range: &Arc<RangePrimary>) -> Result<(), String> {
        let _layout = self.layout.lock().await;
        if !topic.is_served_by(range) {
            return Ok(()); // another primary took over while this waited: its segment is not this one's to end
        }
        let state = self.control.read();
        let Some(control_topic) = state.topics.get(&topic.id) else { return Ok(()) };
        let Some(control) = control_topic.ranges.get(&range.id) else { return Ok(()) };
        let Some(open) = control.open() else { return Ok(()) };
        if control.state != command::RangeState::Active {
            return Ok(()); // a split or merge ends its segment
        }
        // As long as nothing was stopped the segment is as good as it was, and what cannot be recorded is not begun.
        if let Some(why) = self.control.failed() {
            return Err(format!("the control state takes no changes until a restart: {why}"));
        }
        // Nor is anything stopped without a place to go on.
        let expression = self.drive_of(control_topic);
        let next = self.new_segment(&expression, LogletId(state.counters.next_loglet));
        // It begins with a checkpoint: it may have to wait for room, and retention for it.
        next.and_then(|next| self.check_room(&next, Purpose::Freeing)).map_err(|e| e.to_string())?;
        let version = control.version;
        range.stop_issuing(version);
        let Some(tail) = range.drain(DRAIN_MAX).await else {
            range.resume(None);
            return Ok(());
        };
        let loglet = open.loglet;
        match self.extend(topic, range, version, Ended::at(loglet, tail)).await {
            Ok(()) => {
                self.rolls.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                self.after_failed_roll(topic, range, loglet);
                Err(format!("not recorded: {error}"))
            }
        }
    }

    /// R4: the sequencer goes on only if the chain, read again, still has its segment open. One that has to stay stopped, since
    /// its roll may yet be recorded, is blocked: clients are told, and it is sealed and rolled away when that is possible.
    pub(super) fn after_failed_roll(
        &self,
        topic: &TopicRuntime,
        range: &Arc<RangePrimary>,
        loglet: LogletId,
    ) {
        let state = self.control.read();
        let control = state.range(topic.id, range.id);
        match control.and_then(|r| r.open().map(|open| (r.version, open.loglet))) {
            Some((version, open)) if open == loglet => {
                range.resume(Some(version));
                if range.phase() == Phase::Between {
                    range.close(Phase::Blocked("the end of its segment could not be recorded".into()));
                }
            }
            _ => range.close(Phase::Blocked("its segment was ended by somebody else".into())),
        }
    }

    /// Records the end of the open segment and the next one, then opens it on the same primary: everything issued is
    /// below the tail.
    async fn extend(
        &self,
        topic: &TopicRuntime,
        range: &Arc<RangePrimary>,
        version: u64,
        ended: Ended,
    ) -> Result<(), String> {
        let tail = ended.tail;
        self.propose_extend(topic, range.id, version, ended).await?;
        if let Some(last) = range.segments().last() {
            last.seal(tail);
            // Whoever reads it from here on shares what is known of it.
            self.segments.keep(last.clone());
        }
        let state = self.control.read();
        let control = state.range(topic.id, range.id).ok_or("the range is gone")?;
        let segment = self.open_segment(control).map_err(|e| e.to_string())?;
        range.open(segment, &epochs(control), Vec::new(), self.now_ms());
        Ok(())
    }

    async fn propose_extend(
        &self,
        topic: &TopicRuntime,
        range: RangeId,
        version: u64,
        ended: Ended,
    ) -> Result<(), String> {
        let state = self.control.read();
        let control_topic = state.topics.get(&topic.id).ok_or("the topic is gone")?;
        let expression = self.drive_of(control_topic);
        let next =
            self.new_segment(&expression, LogletId(state.counters.next_loglet)).map_err(|e| e.to_string())?;
        let command =
            Extend { topic: topic.id, range, version, ended: Some(ended), next, now: self.now_ms() };
        propose_one(&*self.control, Command::Extend(command))
            .await
            .map(|_| ())
            .map_err(|e: ControlError| e.to_string())
    }

    /// Goes on elsewhere with a segment that takes no more writes, or has clients told that this cannot be now.
    pub(super) async fn roll_away(
        &self,
        topic: &TopicRuntime,
        range: &Arc<RangePrimary>,
    ) -> Result<(), String> {
        if let Some(why) = &self.unrecorded {
            return Err(why.clone());
        }
        let _layout = self.layout.lock().await;
        if !topic.is_served_by(range) {
            return Ok(()); // another primary took over while this waited
        }
        let state = self.control.read();
        let control_topic = state.topics.get(&topic.id).ok_or("the topic is gone")?;
        let control = control_topic.ranges.get(&range.id).ok_or("the range is gone")?;
        if control.state != command::RangeState::Active {
            return Err("a split or merge of it is under way".to_owned());
        }
        let gone_on = self.seal_and_go_on(topic, control_topic, control).await;
        if gone_on.is_err() {
            range.stay_blocked();
        }
        gone_on
    }

    /// A segment that takes no more writes: seal it where a seal quorum lives, fold the recorded log, go on elsewhere.
    /// What was in flight below the recorded end is acknowledged, the rest is numbered again by the successor.
    async fn seal_and_go_on(
        &self,
        topic: &TopicRuntime,
        control_topic: &ControlTopic,
        control: &Range,
    ) -> Result<(), String> {
        let expression = self.drive_of(control_topic);
        // Look whether there is a place to go to before anything is fenced.
        let seed = LogletId(self.control.read().counters.next_loglet);
        self.new_segment(&expression, seed).map_err(|e| e.to_string())?;
        let version = control.version;
        let ended = self.seal(control).await?;
        let own = self.sealed_segments(control, Some(&ended))?;
        let folded = self.fold_range(control_topic, control, &own).await?;
        self.propose_extend(topic, control.id, version, ended).await?;
        self.follow(topic, States::from([(control.id, folded)])).await?;
        self.note(Event::GoesOn, Named::range(&topic.name, control.id), "");
        Ok(())
    }
}

impl RangePrimary {
    /// Waits until nothing is in flight, then gives the tail for the roll; `None` when that takes longer than `most`.
    pub(super) async fn drain(&self, most: Duration) -> Option<Address> {
        let until = tokio::time::Instant::now() + most;
        while !self.is_idle() {
            if tokio::time::timeout_at(until, self.wait_for_progress()).await.is_err() {
                return None;
            }
        }
        self.drained()
    }
}
