//! Which connections are let in, and when: how many an address has, and how fast all come. Pure: it is told the time.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So much may come at once before it has to wait.
const BURST: Duration = Duration::from_secs(1);

/// The connections that each address has; addresses without one take no memory.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<HashMap<IpAddr, u32>>);

/// A connection of an address, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    of: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    /// Counts one more of `address`, unless it has `limit`.
    pub(super) fn enter(self: &Arc<Addresses>, address: IpAddr, limit: u32) -> Option<Seat> {
        let mut open = self.0.lock();
        let has = open.get(&address).copied().unwrap_or(0);
        if has >= limit {
            return None;
        }
        open.insert(address, has + 1);
        Some(Seat { of: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.of.0.lock();
        if let Some(has) = open.get_mut(&self.address) {
            *has -= 1;
            if *has == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// How fast connections come.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// When the next is due that comes as slowly as all may on the whole.
    due: Option<Instant>,
}

impl Rate {
    /// How long a connection waits that comes now, of which there may be `rate` in a second.
    pub(super) fn wait(&mut self, rate: u32, now: Instant) -> Duration {
        let due = self.due.map_or(now, |due| due.max(now));
        self.due = Some(due + Duration::from_secs(1) / rate.max(1));
        (due - now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_connections_until_one_ends_whatever_others_have() {
        let (addresses, a, b) =
            (Arc::new(Addresses::default()), IpAddr::from([1, 2, 3, 4]), IpAddr::from([5; 4]));
        let mut held: Vec<Seat> = (0..3).map(|_| addresses.enter(a, 3).expect("a seat")).collect();
        assert!(addresses.enter(a, 3).is_none() && addresses.enter(b, 0).is_none());
        held.push(addresses.enter(b, 1).expect("another address"));
        held.remove(0);
        assert!(addresses.enter(a, 2).is_none(), "the limit has fallen meanwhile");
        held.push(addresses.enter(a, 3).expect("one has ended"));
        drop(held);
        assert!(addresses.0.lock().is_empty());
    }

    #[test]
    fn a_seconds_worth_comes_at_once_and_the_rest_as_fast_as_it_may() {
        let (mut rate, begun) = (Rate::default(), Instant::now());
        let waits: Vec<u128> = (0..14).map(|_| rate.wait(10, begun).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200, 300]);
        assert_eq!(
            rate.wait(10, begun + Duration::from_secs(60)),
            Duration::ZERO,
            "what was not used is not saved up"
        );
        let mut rate = Rate::default();
        let unbounded = (0..100_000).map(|_| rate.wait(i32::MAX as u32, begun)).max();
        assert!(unbounded < Some(Duration::from_millis(1)) || unbounded.is_none(), "{unbounded:?}");
    }
}
