//! What was refused for now, in the order in which it must be sent again. Pure.

use std::collections::VecDeque;

/// Whether what was refused had been refused before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was sent for the first time; others of its partition may be on their way behind it.
    First,
    /// It was sent again; the others of its partition wait behind it.
    Again,
}

/// Refused batches of partitions. Nothing else is sent while there are any.
#[derive(Clone, Debug)]
pub struct Waiting<T>(VecDeque<(i32, T)>);

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting(VecDeque::new())
    }
}

impl<T> Waiting<T> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something of this partition waits.
    pub fn has(&self, partition: i32) -> bool {
        self.0.iter().any(|(of, _)| *of == partition)
    }

    /// Takes what one request's answer refused, in the request's order.
    pub fn refused(&mut self, batches: Vec<(i32, T)>, sent: Sent) {
        match sent {
            Sent::First => self.0.extend(batches),
            Sent::Again => batches.into_iter().rev().for_each(|batch| self.0.push_front(batch)),
        }
    }

    /// The first batch of each partition, to be sent in one request; the rest waits until that is answered.
    pub fn next_round(&mut self) -> Vec<T> {
        let mut partitions = Vec::new();
        let mut now = Vec::new();
        let mut later = VecDeque::new();
        for (partition, batch) in self.0.drain(..) {
            if partitions.contains(&partition) {
                later.push_back((partition, batch));
            } else {
                partitions.push(partition);
                now.push(batch);
            }
        }
        self.0 = later;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three requests with a batch for each of partitions 1 and 2 are refused, then what is sent again is, too.
    #[test]
    fn every_partition_keeps_its_order_however_often_it_is_refused() {
        let mut waiting = Waiting::default();
        for request in 1..=3 {
            waiting.refused(vec![(1, 10 + request), (2, 20 + request)], Sent::First);
        }
        assert_eq!(waiting.next_round(), [11, 21]);
        assert!(waiting.has(1) && waiting.has(2));
        waiting.refused(vec![(1, 11), (2, 21)], Sent::Again);
        assert_eq!(waiting.next_round(), [11, 21]);
        waiting.refused(vec![(2, 21)], Sent::Again);
        let mut rounds = Vec::new();
        while !waiting.is_empty() {
            rounds.push(waiting.next_round());
        }
        assert_eq!(rounds, [vec![21, 12], vec![22, 13], vec![23]]);
        assert!(!waiting.has(1));
    }
}
