//! What a client of the order proof says, line by line.
//!
//! Each record's value begins with four big-endian u32: its producer's number, its key's number, which of that key of that
//! producer it is (from 0), and which of that producer (from 0). Keys are `key-NUMBER`, the same ones for all producers.
//!
//! | line | meaning |
//! |---|---|
//! | `acked N`, `read N` | so many records acknowledged, or read, until now |
//! | `offsets P COUNT FIRST LAST SUM` | what was acknowledged of a partition; LAST only grew |
//! | `key K SENT ACKED` | records of a key |
//! | `failed N`, `retries N` | sends that failed; batches or requests sent again |
//! | `assigned P…`, `revoked P…` | all partitions that a member has now; those that it has no longer |
//! | `stretch P FIRST NEXT PRODUCER:KEY:FIRST:NEXT…` | offsets `[FIRST, NEXT)` of a partition, from where the reader was to begin, and counters of each key therein |
//! | `reached` | the offsets that `ends` named are read, of all partitions assigned |
//! | `fault TEXT` | a record, an answer or an event that must not be |
//! | `done` | everything is said |
//!
//! A client hears on stdin: `limit N` (send so many in all), `ends P:OFFSET…` (what to reach; and no pace from here on), `stop`.

use std::collections::BTreeMap;
use std::str::{FromStr, SplitWhitespace};

use anyhow::{Context, Result, bail};

/// Acknowledged offsets of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Records.
    pub count: u64,
    /// Lowest offset.
    pub first: u64,
    /// Highest offset.
    pub last: u64,
    /// Sum of all offsets.
    pub sum: u128,
}

/// What a reader read of a partition from one assignment to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The partition.
    pub partition: i32,
    /// Where the reader was to begin: what the group had committed, or where it was told to.
    pub first: u64,
    /// Offset after the last one read.
    pub next: u64,
    /// First and next counter of each (producer, key).
    pub keys: BTreeMap<(u32, u32), (u32, u32)>,
}

/// All that one life of a client said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records acknowledged until now.
    pub acked: u64,
    /// Records read until now.
    pub read: u64,
    /// By partition.
    pub offsets: BTreeMap<i32, Acked>,
    /// Records sent and acknowledged, by key.
    pub keys: BTreeMap<u32, (u64, u64)>,
    /// Sends that failed.
    pub failed: u64,
    /// Batches or requests that were sent again.
    pub retries: u64,
    /// Partitions that a member has now.
    pub assigned: Vec<i32>,
    /// How often it was given some.
    pub assignments: u64,
    /// In the order in which they ended.
    pub stretches: Vec<Stretch>,
    /// Whether the ends are reached.
    pub reached: bool,
    /// What it complained of.
    pub faults: Vec<String>,
    /// Whether it said everything.
    pub done: bool,
}

impl Report {
    /// Takes one line. Errors: it is not one of those above.
    pub fn take(&mut self, line: &str) -> Result<()> {
        self.parse(line)
            .with_context(|| format!("a client said: {}", line.chars().take(200).collect::<String>()))
    }

    fn parse(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        match words.next().context("nothing")? {
            "acked" => self.acked = number(&mut words)?,
            "read" => self.read = number(&mut words)?,
            "failed" => self.failed = number(&mut words)?,
            "retries" => self.retries = number(&mut words)?,
            "offsets" => {
                let partition = number(&mut words)?;
                let acked = Acked {
                    count: number(&mut words)?,
                    first: number(&mut words)?,
                    last: number(&mut words)?,
                    sum: number(&mut words)?,
                };
                self.offsets.insert(partition, acked);
            }
            "key" => {
                self.keys.insert(number(&mut words)?, (number(&mut words)?, number(&mut words)?));
            }
            "assigned" => {
                self.assigned = words.map(str::parse).collect::<Result<_, _>>()?;
                self.assignments += 1;
            }
            "revoked" => {
                let revoked: Vec<i32> = words.map(str::parse).collect::<Result<_, _>>()?;
                self.assigned.retain(|partition| !revoked.contains(partition));
            }
            "stretch" => self.stretches.push(stretch(&mut words)?),
            "reached" => self.reached = true,
            "fault" => self.faults.push(words.collect::<Vec<_>>().join(" ")),
            "note" => {}
            "done" => self.done = true,
            word => bail!("{word} means nothing"),
        }
        Ok(())
    }
}

fn stretch(words: &mut SplitWhitespace<'_>) -> Result<Stretch> {
    let mut stretch = Stretch {
        partition: number(words)?,
        first: number(words)?,
        next: number(words)?,
        keys: BTreeMap::new(),
    };
    for word in words {
        let numbers: Vec<u32> = word.split(':').map(str::parse).collect::<Result<_, _>>()?;
        let [producer, key, first, next] = numbers[..] else { bail!("{word} is not four numbers") };
        stretch.keys.insert((producer, key), (first, next));
    }
    Ok(stretch)
}

fn number<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    words.next().context("a number is missing")?.parse().context("not a number")
}
