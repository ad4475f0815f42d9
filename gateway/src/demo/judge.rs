//! Says of consumed records whether they are what was produced: each key's sequence numbers in order, none missing, none
//! twice, each key in its partition, each partition's offsets without a gap. Pure.

use std::collections::BTreeMap;

/// Faults that are told one by one.
const FAULTS_TOLD: usize = 20;

/// What consumed records have shown so far.
#[derive(Clone, Debug)]
pub struct Judge {
    next_offset: Vec<i64>,
    keys: BTreeMap<String, Key>,
    seen: u64,
    faults: Vec<String>,
    fault_count: u64,
}

#[derive(Copy, Clone, Debug)]
struct Key {
    partition: i32,
    /// The sequence number that comes next.
    next: u64,
}

impl Judge {
    /// Nothing was consumed of so many partitions.
    pub fn new(partitions: i32) -> Judge {
        let next_offset = vec![0; usize::try_from(partitions).unwrap_or(0)];
        Judge { next_offset, keys: BTreeMap::new(), seen: 0, faults: Vec::new(), fault_count: 0 }
    }

    /// Takes a consumed record: sequence numbers of a key begin at 0.
    pub fn saw(&mut self, partition: i32, offset: i64, key: &str, sequence: u64) {
        self.seen += 1;
        let at = usize::try_from(partition).ok();
        match at.and_then(|at| self.next_offset.get_mut(at)) {
            None => self.fault(format!("partition {partition} does not exist")),
            Some(next) => {
                let expected = std::mem::replace(next, offset.saturating_add(1));
                if offset != expected {
                    self.fault(format!(
                        "partition {partition}: offset {offset} where {expected} was to come"
                    ));
                }
            }
        }
        let before = self.keys.get(key).copied().unwrap_or(Key { partition, next: 0 });
        if before.partition != partition {
            self.fault(format!(
                "{key}: in partition {partition}, and before that in partition {}",
                before.partition
            ));
        }
        let next = sequence.saturating_add(1);
        match sequence {
            _ if sequence == before.next => {}
            _ if sequence < before.next => {
                self.fault(format!("{key}: number {sequence} again or late, after {}", before.next - 1));
            }
            _ => self.fault(format!("{key}: number {sequence} where {} was to come", before.next)),
        }
        self.keys.insert(key.to_owned(), Key { partition, next: next.max(before.next) });
    }

    /// Takes something that is no record of the demo.
    pub fn saw_nonsense(&mut self, what: String) {
        self.seen += 1;
        self.fault(what);
    }

    /// All is consumed: what was acknowledged and did not come is lost. `produced` is the count of each key.
    pub fn finish<'a>(&mut self, produced: impl IntoIterator<Item = (&'a str, u64)>) {
        for (key, count) in produced {
            let next = self.keys.get(key).map_or(0, |key| key.next);
            if next < count {
                self.fault(format!(
                    "{key}: numbers {next} to {} were acknowledged and never came",
                    count - 1
                ));
            }
        }
    }

    /// Records consumed.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The offset that each partition is read on from.
    pub fn next_offsets(&self) -> &[i64] {
        &self.next_offset
    }

    /// How much was wrong.
    pub fn fault_count(&self) -> u64 {
        self.fault_count
    }

    /// What was wrong, the first of it.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    fn fault(&mut self, what: String) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_TOLD {
            self.faults.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (partition, offset, key, sequence) of what is consumed, after which 3 of `a` and 1 of `b` were to have come.
    fn check(seen: &[(i32, i64, &str, u64)], faults: &[&str]) {
        let mut judge = Judge::new(2);
        for (partition, offset, key, sequence) in seen {
            judge.saw(*partition, *offset, key, *sequence);
        }
        judge.finish([("a", 3), ("b", 1)]);
        assert_eq!(judge.faults(), faults);
        assert_eq!(judge.fault_count(), faults.len() as u64);
        assert_eq!(judge.seen(), seen.len() as u64);
    }

    #[test]
    fn what_came_whole_and_in_order_is_right() {
        check(&[(0, 0, "a", 0), (1, 0, "b", 0), (0, 1, "a", 1), (0, 2, "a", 2)], &[]);
    }

    #[test]
    fn a_lost_record_is_found_in_the_middle_and_at_the_end() {
        check(&[(0, 0, "a", 0), (1, 0, "b", 0), (0, 1, "a", 2)], &["a: number 2 where 1 was to come"]);
        check(
            &[(0, 0, "a", 0), (0, 1, "a", 1)],
            &[
                "a: numbers 2 to 2 were acknowledged and never came",
                "b: numbers 0 to 0 were acknowledged and never came",
            ],
        );
    }

    #[test]
    fn a_record_that_comes_twice_or_late_is_found() {
        let all = [(0, 0, "a", 0), (1, 0, "b", 0), (0, 1, "a", 1), (0, 2, "a", 1), (0, 3, "a", 2)];
        check(&all, &["a: number 1 again or late, after 1"]);
        let late = [(0, 0, "a", 1), (0, 1, "a", 0), (0, 2, "a", 2), (1, 0, "b", 0)];
        check(&late, &["a: number 1 where 0 was to come", "a: number 0 again or late, after 1"]);
    }

    #[test]
    fn a_gap_of_offsets_and_a_key_that_moves_are_found() {
        let gap = [(0, 0, "a", 0), (0, 2, "a", 1), (0, 3, "a", 2), (1, 0, "b", 0)];
        check(&gap, &["partition 0: offset 2 where 1 was to come"]);
        let moved = [(0, 0, "a", 0), (0, 1, "a", 1), (1, 0, "a", 2), (1, 1, "b", 0)];
        check(&moved, &["a: in partition 1, and before that in partition 0"]);
        check(
            &[(2, 0, "a", 0), (2, 1, "a", 1), (2, 2, "a", 2), (1, 0, "b", 0)],
            &["partition 2 does not exist", "partition 2 does not exist", "partition 2 does not exist"],
        );
    }
}
