//! When a primary takes appends, and who waits for that.

use super::handover::Refused;
use super::{Phase, RangePrimary};
use crate::loglet::sequencer::AfterRead;
use crate::types::Address;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

impl RangePrimary {
    /// Waits until the window may have room again or the phase changed; no wake-up between the caller's look and this
    /// one is missed.
    pub async fn wait_for_room(&self) {
        let notified = self.room.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        self.waiting.store(true, Ordering::Release);
        let waits = {
            let head = self.head.lock();
            match head.phase {
                Phase::Open => {
                    let (entries, _) = head.sequencer.room();
                    entries == 0 || head.sequencer.in_flight() > 0 || head.inherited.is_some()
                }
                Phase::Between => true,
                Phase::Moved | Phase::Blocked(_) | Phase::Stopping | Phase::Gone => false,
            }
        };
        if waits {
            notified.await;
        }
    }

    /// Waits until something in flight completes or the phase changes; returns at once when nothing is in flight.
    pub async fn wait_for_progress(&self) {
        let notified = self.room.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        self.waiting.store(true, Ordering::Release);
        if !self.is_idle() {
            notified.await;
        }
    }

    /// Begins the drain of a roll or a stop: no further address is handed out. The completed tail once nothing is in
    /// flight; `None` while something is.
    pub fn stop_issuing(&self, chain_version: u64) {
        let mut head = self.head.lock();
        head.sequencer.stop(chain_version);
        if head.phase == Phase::Open {
            head.phase = Phase::Between;
        }
    }

    /// The segment's tail if it has drained and may be rolled at the version named to [`RangePrimary::stop_issuing`].
    pub fn drained(&self) -> Option<Address> {
        let mut head = self.head.lock();
        head.sequencer.roll().ok().map(|roll| roll.tail)
    }

    /// Ends a drain without a roll: appends go on in the same segment. Only before [`RangePrimary::drained`] gave a
    /// tail, or when the chain was read again since (R4).
    pub fn resume(self: &Arc<Self>, chain_read: Option<u64>) {
        {
            let mut head = self.head.lock();
            let issuing = match chain_read {
                None => head.sequencer.resume(),
                // One that was stopped and gave no tail has nothing to wait for.
                Some(version) => {
                    head.sequencer.chain_read(version, true) == AfterRead::Issuing || head.sequencer.resume()
                }
            };
            if issuing && head.phase == Phase::Between {
                head.phase = Phase::Open;
            }
        }
        self.settle();
        self.wake_room();
    }

    /// Wakes whoever waits for room or for another phase.
    pub(super) fn wake_room(&self) {
        self.room.notify_waiters();
        self.lanes.wake();
    }

    /// Wakes `who` once, when there may be room or another phase.
    pub fn watch_room(&self, who: &Arc<Notify>) {
        self.lanes.register(who);
    }

    /// Hands nothing out any more: the segment was ended, by whomever. Appends wait for whoever follows.
    pub fn stop_for_good(&self) {
        let mut head = self.head.lock();
        head.sequencer.seal();
        if head.phase == Phase::Open {
            head.phase = Phase::Between;
        }
    }

    /// Takes no more appends, for the reason given by `phase`. `Moved` comes after the layout shows the successors, so
    /// that whoever looks again finds them; what was closed for good stays so.
    pub fn close(&self, phase: Phase) {
        let refused = {
            let mut head = self.head.lock();
            if !matches!(head.phase, Phase::Moved | Phase::Gone) {
                head.phase = phase;
            }
            head.refuse_inherited()
        };
        refused.into_iter().for_each(Refused::tell);
        self.wake_room();
        self.watchers.wake();
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        self.head.lock().phase.clone()
    }

    /// A blocked range cannot go on elsewhere now: from here on plain batches too are refused in place of waiting for that. Holds until
    /// another segment is opened.
    pub fn stay_blocked(&self) {
        let stays = {
            let mut head = self.head.lock();
            head.stuck = matches!(head.phase, Phase::Blocked(_));
            head.stuck
        };
        if stays {
            self.wake_room();
        }
    }

    /// Why the range is blocked, if it is known that it cannot go on elsewhere now.
    pub fn stuck(&self) -> Option<String> {
        let head = self.head.lock();
        match &head.phase {
            Phase::Blocked(why) if head.stuck => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether the range is blocked and may go on elsewhere shortly.
    pub fn may_go_on(&self) -> bool {
        let head = self.head.lock();
        matches!(head.phase, Phase::Blocked(_)) && !head.stuck
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        let head = self.head.lock();
        head.over || head.sequencer.drained()
    }
}
