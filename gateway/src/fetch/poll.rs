//! One Fetch: resolve what is wanted, read, and wait while there is too little.
//!
//! Answers at once when there are `min_bytes`, when nothing can be read, when a read fails or an epoch diverges, else
//! when `max_wait` is over. Errors found before the read do not cut the wait short while another partition is readable.

use super::memory::{Held, Memory};
use super::session::{TopicKey, Wanted};
use crate::groups::Groups;
use crate::offsets_view;
use crate::protocol::errors;
use crate::vpartition;
use kafka_protocol::ResponseError;
use rangeway_core::api::{Api, Catalog, Isolation, PartitionRead, ReadFrom, ReadMemory, TopicView};
use rangeway_core::error::TopicPartition;
use rangeway_core::types::NodeId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long, how much, and what of transactions.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// Enough to answer.
    pub min_bytes: usize,
    /// At most, in all; the first batch may be larger.
    pub max_bytes: usize,
    /// How long to wait for `min_bytes`.
    pub max_wait: Duration,
    /// What of transactions is wanted.
    pub isolation: Isolation,
}

/// What became of a wanted partition.
#[derive(Debug)]
pub enum Outcome {
    /// Read, perhaps nothing.
    Read(PartitionRead),
    /// The client has records of another history: the epoch and its end offset to go back to (KIP-595).
    Diverging {
        /// Epoch.
        epoch: i32,
        /// Its end offset.
        end: i64,
        /// Offsets of the partition.
        offsets: rangeway_core::api::PartitionOffsets,
    },
    /// Cannot be read.
    Error(ResponseError),
}

/// Says why a topic may not be read by who asks, if that is so.
pub type Refuse<'a> = dyn Fn(&TopicView) -> Option<ResponseError> + Sync + 'a;

/// Where records come from.
#[derive(Copy, Clone, Debug)]
pub struct Source<'a> {
    /// The door into core: all that is stored.
    pub api: &'a Api,
    /// This node.
    pub node: NodeId,
    /// What `__consumer_offsets` is made of.
    pub groups: &'a Groups,
    /// What answers may hold.
    pub memory: &'a Arc<Memory>,
}

/// A wanted partition that was found.
#[derive(Copy, Clone, Debug)]
enum Place {
    /// Stored.
    Stored(TopicPartition),
    /// Of `__consumer_offsets`, and the stored partition that it is derived from.
    Derived(offsets_view::At, TopicPartition),
}

/// Finds and checks one wanted partition.
fn resolve(
    wanted: &Wanted,
    catalog: &Catalog,
    node: NodeId,
    refuse: &Refuse<'_>,
) -> Result<Place, ResponseError> {
    let (topic, unknown) = match &wanted.topic {
        TopicKey::Name(name) => (vpartition::by_name(catalog, name), ResponseError::UnknownTopicOrPartition),
        TopicKey::Id(id) => (vpartition::by_id(catalog, *id), ResponseError::UnknownTopicId),
    };
    let topic = topic.ok_or(unknown)?;
    if let Some(code) = refuse(topic) {
        return Err(code);
    }
    let at = vpartition::led_here(topic, wanted.partition, wanted.current_leader_epoch, node)?;
    Ok(match vpartition::derived(topic, wanted.partition) {
        Some((derived, from)) => Place::Derived(derived, from),
        None => Place::Stored(at),
    })
}

/// Whether what the client has is of this partition's history.
fn diverging(api: &Api, at: TopicPartition, wanted: &Wanted) -> Result<Option<Outcome>, ResponseError> {
    if wanted.last_fetched_epoch < 0 {
        return Ok(None);
    }
    let code = |e| errors::read(&e);
    let (known, whole) = api.known_offsets(at).map_err(code)?;
    if !whole && wanted.last_fetched_epoch >= known.leader_epoch {
        // How far that epoch went is not known; the read says whether there is something at the offset.
        return Ok(None);
    }
    let (epoch, end) = vpartition::end_of_epoch(api, at, wanted.last_fetched_epoch).map_err(code)?;
    if epoch < 0 || end < 0 {
        return Err(ResponseError::OffsetOutOfRange);
    }
    if epoch < wanted.last_fetched_epoch || end < wanted.offset {
        return Ok(Some(Outcome::Diverging { epoch, end, offsets: known }));
    }
    Ok(None)
}

/// Reads all that is wanted, waiting as the limits say: one outcome per partition, in order, and the memory that they hold.
pub async fn poll(
    source: Source<'_>,
    wanted: &[Wanted],
    limits: Limits,
    refuse: &Refuse<'_>,
) -> (Vec<Outcome>, Held) {
    let deadline = Instant::now() + limits.max_wait;
    let mut watch = None;
    loop {
        let round = Round::read(source, wanted, limits, refuse).await;
        if round.readable.is_empty()
            || round.urgent
            || round.bytes >= limits.min_bytes
            || Instant::now() >= deadline
        {
            return (round.outcomes, round.held);
        }
        let Some(watch) = &mut watch else {
            // Nothing that comes after this is missed: the next round reads again before it waits.
            watch = Some(source.api.watch(&round.readable));
            continue;
        };
        if tokio::time::timeout_at(deadline.into(), watch.changed()).await.is_err() {
            return (round.outcomes, round.held);
        }
    }
}

/// Whether there is more than was read.
fn has_more(read: &PartitionRead, isolation: Isolation) -> bool {
    read.next_offset
        < match isolation {
            Isolation::Uncommitted => read.offsets.high_watermark,
            Isolation::Committed => read.offsets.last_stable,
        }
}

struct Round {
    outcomes: Vec<Outcome>,
    readable: Vec<TopicPartition>,
    bytes: usize,
    held: Held,
    /// Something that the client must know at once.
    urgent: bool,
}

impl Round {
    async fn read(source: Source<'_>, wanted: &[Wanted], limits: Limits, refuse: &Refuse<'_>) -> Round {
        let Source { api, node, groups, memory } = source;
        let mut round = Round {
            outcomes: Vec::with_capacity(wanted.len()),
            readable: Vec::new(),
            bytes: 0,
            held: memory.answer(),
            urgent: false,
        };
        let mut reads = Vec::with_capacity(wanted.len());
        let mut rows = Vec::with_capacity(wanted.len());
        let mut derived = Vec::new();
        let catalog = api.catalog();
        for (row, want) in wanted.iter().enumerate() {
            let found = resolve(want, &catalog, node, refuse);
            let at = match found {
                Ok(Place::Stored(at)) => at,
                Ok(Place::Derived(at, from)) => {
                    // Replaced below as well.
                    round.outcomes.push(Outcome::Error(ResponseError::UnknownServerError));
                    round.readable.push(from);
                    derived.push((row, at));
                    continue;
                }
                Err(code) => {
                    round.outcomes.push(Outcome::Error(code));
                    continue;
                }
            };
            match diverging(api, at, want) {
                Ok(None) => {
                    // Replaced below by what the read says.
                    round.outcomes.push(Outcome::Error(ResponseError::UnknownServerError));
                    round.readable.push(at);
                    rows.push(row);
                    reads.push(ReadFrom {
                        topic: at.topic,
                        partition: at.partition,
                        offset: want.offset,
                        max_bytes: usize::try_from(want.max_bytes).unwrap_or(0),
                        isolation: limits.isolation,
                    });
                }
                Ok(Some(outcome)) => {
                    round.outcomes.push(outcome);
                    round.urgent = true;
                }
                Err(code) => {
                    round.outcomes.push(Outcome::Error(code));
                    round.urgent = true;
                }
            }
        }
        let answers = match reads.is_empty() {
            true => Vec::new(),
            false => api.read_within(&reads, limits.max_bytes, &mut round.held).await,
        };
        for (row, answer) in rows.into_iter().zip(answers) {
            let outcome = match answer {
                Ok(read) => {
                    round.bytes += read.bytes;
                    // Where memory is short, more is not to come by waiting.
                    round.urgent |=
                        round.bytes > 0 && round.held.is_short() && has_more(&read, limits.isolation);
                    Outcome::Read(read)
                }
                Err(failure) => {
                    round.urgent = true;
                    Outcome::Error(errors::read(&failure))
                }
            };
            round.put(row, outcome);
        }
        for (row, at) in derived {
            if let Some(want) = wanted.get(row) {
                round.read_derived(groups, at, want, row, limits.max_bytes).await;
            }
        }
        round
    }

    /// Nothing diverges in what is derived: it is never cut.
    async fn read_derived(
        &mut self,
        groups: &Groups,
        at: offsets_view::At,
        want: &Wanted,
        row: usize,
        bytes_max: usize,
    ) {
        let of_partition = usize::try_from(want.max_bytes).unwrap_or(0);
        let bytes_max = self.held.take(bytes_max.saturating_sub(self.bytes).min(of_partition));
        let first_whole = self.bytes == 0;
        let outcome = match offsets_view::read(groups, at, want.offset, bytes_max, first_whole).await {
            Ok(read) => {
                self.bytes += read.bytes;
                self.held.keep(read.memory);
                Outcome::Read(read)
            }
            Err(code) => {
                self.urgent = true;
                Outcome::Error(code)
            }
        };
        self.put(row, outcome);
    }

    fn put(&mut self, row: usize, outcome: Outcome) {
        if let Some(slot) = self.outcomes.get_mut(row) {
            *slot = outcome;
        }
    }
}
