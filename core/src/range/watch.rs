//! Wake-ups of long polls: cheap while nobody waits.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Who wants to know of the next readable entry of a range.
#[derive(Debug, Default)]
pub struct Watchers {
    any: AtomicBool,
    list: Mutex<Vec<Weak<Notify>>>,
}

impl Watchers {
    /// Wakes `who` once, at the next change, however often it registers: one who waits on several ranges registers with
    /// all of them again when one has woken it.
    pub fn register(&self, who: &Arc<Notify>) {
        let mut list = self.list.lock();
        if !list.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(who))) {
            if list.len() >= 64 && list.len().is_power_of_two() {
                list.retain(|one| one.strong_count() > 0);
            }
            list.push(Arc::downgrade(who));
        }
        self.any.store(true, Ordering::Release);
    }

    /// Wakes all who registered.
    pub fn wake(&self) {
        if !self.any.load(Ordering::Acquire) || !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let woken = std::mem::take(&mut *self.list.lock());
        for who in woken.iter().filter_map(Weak::upgrade) {
            who.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_grows_neither_by_one_who_comes_again_nor_by_those_who_have_gone() {
        let watchers = Watchers::default();
        let stays = Arc::new(Notify::new());
        for _ in 0..1000 {
            watchers.register(&stays);
            watchers.register(&Arc::new(Notify::new()));
        }
        assert!(watchers.list.lock().len() <= 65);
        watchers.wake();
        assert!(watchers.list.lock().is_empty());
    }
}
