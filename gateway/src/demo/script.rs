//! What the demo does to the ranges next: splits until there are many, merges until there is one, and again. Pure.

/// A range as the script sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Identity.
    pub id: u32,
    /// First partition.
    pub first: i32,
    /// Last partition.
    pub last: i32,
}

impl Range {
    /// How many partitions it has.
    pub fn width(&self) -> i32 {
        self.last - self.first + 1
    }
}

/// What to do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Split a range in the middle of its partitions.
    Split {
        /// The range.
        range: u32,
        /// First partition of the right half.
        at: i32,
    },
    /// Merge two neighbours.
    Merge {
        /// The left one.
        left: u32,
        /// The right one.
        right: u32,
    },
}

/// Where the script is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Ranges to split to.
    most: usize,
    growing: bool,
}

impl Script {
    /// Splits to `most` ranges first.
    pub fn new(most: usize) -> Script {
        Script { most, growing: true }
    }

    /// What to do with these ranges, which tile the topic in order; `None` when nothing can be done.
    pub fn next(&mut self, ranges: &[Range]) -> Option<Step> {
        let widest = ranges.iter().filter(|range| range.width() > 1).max_by_key(|range| range.width());
        let narrowest = ranges.windows(2).min_by_key(|pair| pair.iter().map(Range::width).sum::<i32>());
        let split = widest.map(|r| Step::Split { range: r.id, at: r.first + r.width() / 2 });
        let merge = narrowest.and_then(|pair| match pair {
            [left, right] => Some(Step::Merge { left: left.id, right: right.id }),
            _ => None,
        });
        if self.growing && (ranges.len() >= self.most || split.is_none()) {
            self.growing = false;
        } else if !self.growing && merge.is_none() {
            self.growing = true;
        }
        if self.growing { split } else { merge }
    }

    /// How many steps it takes to split to all and merge back to one.
    pub fn cycle(most: usize) -> u32 {
        u32::try_from(most.saturating_sub(1)).unwrap_or(u32::MAX).saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_to_many_and_merged_to_one_and_again() {
        let mut script = Script::new(6);
        let mut ranges = vec![Range { id: 0, first: 0, last: 15 }];
        let (mut next, mut counts) = (1, Vec::new());
        for _ in 0..Script::cycle(6) * 2 {
            match script.next(&ranges).unwrap() {
                Step::Split { range, at: middle } => {
                    let at = ranges.iter().position(|r| r.id == range).unwrap();
                    let Range { first, last, .. } = ranges[at];
                    assert!(first < middle && middle <= last);
                    let halves = [
                        Range { id: next, first, last: middle - 1 },
                        Range { id: next + 1, first: middle, last },
                    ];
                    ranges.splice(at..=at, halves);
                    next += 2;
                }
                Step::Merge { left, right } => {
                    let at = ranges.iter().position(|r| r.id == left).unwrap();
                    assert_eq!(ranges[at + 1].id, right);
                    let merged = Range { id: next, first: ranges[at].first, last: ranges[at + 1].last };
                    ranges.splice(at..=at + 1, [merged]);
                    next += 1;
                }
            }
            counts.push(ranges.len());
        }
        assert_eq!(counts, [2, 3, 4, 5, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn what_cannot_be_split_is_left() {
        let one = [Range { id: 0, first: 0, last: 0 }];
        assert_eq!(Script::new(4).next(&one), None);
        let two = [Range { id: 0, first: 0, last: 0 }, Range { id: 1, first: 1, last: 1 }];
        assert_eq!(Script::new(4).next(&two), Some(Step::Merge { left: 0, right: 1 }));
    }
}
