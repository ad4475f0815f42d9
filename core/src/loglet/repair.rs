//! Repair at a seal: which addresses are copied, and which stay degraded. Pure; whoever drives it reads and writes.
//!
//! Repair is bounded and never holds up a seal: what cannot be copied, or not in time, is recorded as degraded.

use crate::types::Address;
use std::collections::BTreeSet;

/// Copies under way at one time.
const COPIES_MAX: usize = 64;

/// See the module head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    waiting: BTreeSet<Address>,
    running: BTreeSet<Address>,
    failed: BTreeSet<Address>,
}

impl Repair {
    /// Repair of these addresses.
    pub fn new(thin: impl IntoIterator<Item = Address>) -> Repair {
        Repair { waiting: thin.into_iter().collect(), running: BTreeSet::new(), failed: BTreeSet::new() }
    }

    /// The next address to copy: read it at the root, then `repair` it at the root. `None` while enough are under way.
    pub fn next_copy(&mut self) -> Option<Address> {
        if self.running.len() >= COPIES_MAX {
            return None;
        }
        let address = self.waiting.pop_first()?;
        self.running.insert(address);
        Some(address)
    }

    /// A copy ended, well or not. Without effect for an address that was given up.
    pub fn copied<E>(&mut self, address: Address, outcome: Result<(), E>) {
        if self.running.remove(&address) && outcome.is_err() {
            self.failed.insert(address);
        }
    }

    /// Time is up: whatever is not copied stays degraded.
    pub fn give_up(&mut self) {
        self.failed.append(&mut self.waiting);
        self.failed.append(&mut self.running);
    }

    /// Whether nothing is left to do.
    pub fn finished(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// The run `[from, to)` that covers all addresses that could not be copied.
    pub fn degraded(&self) -> Option<(Address, Address)> {
        Some((*self.failed.first()?, self.failed.last()?.plus(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_or_is_given_up_is_degraded_and_the_rest_is_not() {
        let mut repair = Repair::new((3..8).map(Address));
        assert_eq!(repair.next_copy(), Some(Address(3)));
        assert_eq!(repair.next_copy(), Some(Address(4)));
        repair.copied(Address(3), Ok::<(), ()>(()));
        repair.copied(Address(4), Err(()));
        assert_eq!(repair.next_copy(), Some(Address(5)));
        assert!(!repair.finished());
        repair.give_up();
        assert!(repair.finished());
        repair.copied(Address(5), Ok::<(), ()>(()));
        assert_eq!(repair.degraded(), Some((Address(4), Address(8))));
    }

    #[test]
    fn copies_under_way_are_bounded() {
        let mut repair = Repair::new((0..100).map(Address));
        let started = std::iter::from_fn(|| repair.next_copy()).count();
        assert_eq!(started, COPIES_MAX);
        repair.copied(Address(0), Ok::<(), ()>(()));
        assert_eq!(repair.next_copy(), Some(Address(64)));
    }
}
