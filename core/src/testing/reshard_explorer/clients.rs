//! Producers: each on its own connection, whose lane is the product's, with all its batches in flight. One with a producer
//! id sends again what is refused, on a new connection what it has no answer of too. One without gives up, unless it is
//! refused and its connection stays: then nothing tells it, or anybody, that later batches of its own must not go first.

use super::ClientKind;
use super::world::{TOPIC, World, primary};
use crate::codec::batch::{BATCH_HEAD_LEN, BatchHead};
use crate::control::state::State;
use crate::error::{AppendError, TopicPartition};
use crate::range::ack::{AckSlot, Forks, Issued};
use crate::range::lane::{Appending, Lane, Layout, Outcomes, Parking};
use crate::range::primary::{Batch, RangePrimary};
use crate::range::state::FirstSequence;
use crate::range::table;
use crate::types::{LogletId, Offset, Partition, Primary};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of a large batch.
const LARGE_BYTES: usize = 4096;

/// What a client knows of a batch of its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Known {
    /// Not sent on the present connection.
    Unsent,
    /// Sent, and no answer.
    Sent,
    /// Stored at this offset.
    Acknowledged(Offset),
    /// It will never know more.
    GivenUp,
}

/// See the module head.
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) kind: ClientKind,
    pub(super) known: SmallVec<[Known; 4]>,
    /// The node at the connection's other end.
    pub(super) node: Option<usize>,
    /// Requests that were sent and not read, oldest first.
    pub(super) socket: VecDeque<u8>,
    /// Requests that the node has read: numbered or parked.
    pub(super) pending: Vec<(u8, Appending)>,
    lane: Lane,
    /// How often it connected.
    pub(super) connections: u8,
}

impl Client {
    pub(super) fn new(number: usize, kind: ClientKind) -> Client {
        Client {
            number,
            kind,
            known: (0..kind.batches).map(|_| Known::Unsent).collect(),
            node: None,
            socket: VecDeque::new(),
            pending: Vec::new(),
            lane: Lane::default(),
            connections: 0,
        }
    }

    pub(super) fn fork(&self, forks: &mut Forks) -> Client {
        Client {
            number: self.number,
            kind: self.kind,
            known: self.known.clone(),
            node: self.node,
            socket: self.socket.clone(),
            pending: self.pending.iter().map(|(batch, pending)| (*batch, pending.fork(forks))).collect(),
            lane: self.lane.fork(forks),
            connections: self.connections,
        }
    }

    pub(super) fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        (&self.known, self.node, &self.socket).hash(into);
        self.pending.iter().for_each(|(batch, _)| batch.hash(into));
        self.lane.identify(into, number);
    }

    pub(super) fn parked(&self) -> usize {
        self.lane.parked()
    }

    /// What tells a batch from all others; its timestamp.
    pub(super) fn id(&self, batch: u8) -> i64 {
        (self.number as i64 + 1) * 10 + i64::from(batch)
    }

    pub(super) fn done(&self) -> bool {
        self.known.iter().all(|known| matches!(known, Known::Acknowledged(_) | Known::GivenUp))
    }

    fn batch(&self, batch: u8) -> Batch {
        let idempotent = self.kind.idempotent;
        let head = BatchHead {
            base_offset: 0,
            batch_length: 49,
            magic: 2,
            crc: 0,
            attributes: 0,
            last_offset_delta: 0,
            base_timestamp: self.id(batch),
            max_timestamp: 1,
            producer_id: if idempotent { self.number as i64 + 100 } else { -1 },
            producer_epoch: if idempotent { 0 } else { -1 },
            base_sequence: if idempotent { i32::from(batch) } else { -1 },
            record_count: 1,
        };
        let large = self.kind.large_first && batch == 0;
        let bytes = Bytes::from_static(if large { &[0; LARGE_BYTES] } else { &[0; BATCH_HEAD_LEN] });
        Batch { partition: self.kind.partition, head, bytes, first: FirstSequence::Any }
    }

    /// The connection is gone: answers that were not told never will be.
    pub(super) fn disconnect(&mut self) {
        self.node = None;
        self.socket.clear();
        self.pending.clear();
        self.lane = Lane::default();
        let after = if self.kind.idempotent { Known::Unsent } else { Known::GivenUp };
        for known in self.known.iter_mut().filter(|known| **known == Known::Sent) {
            *known = after;
        }
    }
}

impl World {
    /// A client connects to the node that leads its partition and sends all that it has no answer of.
    pub(super) fn connect(&mut self, client: usize) -> Option<()> {
        let partition = self.clients[client].kind.partition;
        let leader = self.range_of(partition).primary()?.node;
        self.connect_to(client, usize::try_from(leader.0).ok()?)
    }

    /// A client connects to a node that led its partition by what it heard long ago.
    pub(super) fn connect_stale(&mut self, client: usize, node: usize) -> Option<()> {
        self.budget.stale -= 1;
        self.connect_to(client, node)
    }

    fn connect_to(&mut self, client: usize, node: usize) -> Option<()> {
        let client = &mut self.clients[client];
        if client.node.is_some() || !client.known.contains(&Known::Unsent) {
            return None;
        }
        client.node = Some(node);
        for (batch, known) in client.known.iter_mut().enumerate().filter(|(_, k)| **k == Known::Unsent) {
            *known = Known::Sent;
            client.socket.push_back(batch as u8);
        }
        Some(())
    }

    /// The node reads a connection's next request, which its lane numbers or parks.
    pub(super) fn read_request(&mut self, at: usize) -> Option<()> {
        let client = &self.clients[at];
        let (node, batch) = (client.node?, *client.socket.front()?);
        let one = client.batch(batch);
        let layout = self.layout(node);
        let client = &mut self.clients[at];
        client.socket.pop_front();
        if layout.range_of(TopicPartition { topic: TOPIC, partition: one.partition }).is_none() {
            client.disconnect(); // another node leads: what is not answered is asked there
            return Some(());
        }
        let deadline = self.begun + Duration::from_secs(client.pending.len() as u64);
        let appending = client.lane.append(TOPIC, vec![one], deadline, &layout);
        client.pending.push((batch, appending));
        Some(())
    }

    /// A lane looks whether a range takes now what it holds.
    pub(super) fn look(&mut self, at: usize) -> Option<()> {
        let layout = self.layout(self.clients[at].node?);
        let before = self.clients[at].parked();
        self.clients[at].lane.look(&layout);
        (self.clients[at].parked() != before).then_some(())
    }

    /// The deadline of a connection's oldest request passes.
    pub(super) fn expire(&mut self, at: usize) -> Option<()> {
        let layout = self.layout(self.clients[at].node?);
        self.budget.timeouts -= 1;
        let (batch, mut appending) = self.clients[at].pending.remove(0);
        let (control, me) = (self.control.clone(), self.me(self.clients[at].node?));
        let outcomes = appending.expire(&layout, |at, loglet| leads(&control, me, at, loglet));
        self.told(at, batch, outcomes);
        Some(())
    }

    pub(super) fn layout(&self, node: usize) -> Here {
        Here { heads: self.nodes[node].heads.clone(), parking: self.parking.clone() }
    }

    /// Answers that are known reach their clients.
    pub(super) fn answers(&mut self) {
        for at in 0..self.clients.len() {
            let Some(node) = self.clients[at].node else { continue };
            let mut n = 0;
            while let Some((batch, pending)) = self.clients[at].pending.get_mut(n) {
                let batch = *batch;
                let (control, me) = (&self.control, primary(node, self.nodes[node].generation));
                let Some(outcomes) = pending.try_confirmed(|at, loglet| leads(control, me, at, loglet))
                else {
                    n += 1;
                    continue;
                };
                self.clients[at].pending.remove(n);
                self.told(at, batch, outcomes);
            }
        }
    }

    fn told(&mut self, at: usize, batch: u8, outcomes: Outcomes) {
        for issued in outcomes.batches {
            match issued {
                Issued::Ok { base_offset, .. } => {
                    self.clients[at].known[usize::from(batch)] = Known::Acknowledged(base_offset);
                }
                Issued::Err(error) => self.refused(at, batch, &error),
            }
        }
        if outcomes.close_after {
            self.clients[at].disconnect();
        }
    }

    fn refused(&mut self, at: usize, batch: u8, error: &AppendError) {
        let idempotent = self.clients[at].kind.idempotent;
        let again = match error {
            AppendError::OutOfOrderSequence { got, .. } => {
                let partition = self.clients[at].kind.partition;
                let stored = |before: u8| self.stored(partition, self.clients[at].id(before)).is_some();
                if (0..batch).all(stored) {
                    self.broken =
                        Some(format!("client {at}: false 45 for sequence {got}: all before it is stored"));
                }
                false
            }
            AppendError::NotLeader { .. } => true,
            _ => idempotent,
        };
        let client = &mut self.clients[at];
        match again {
            true => client.socket.push_back(batch),
            false => client.known[usize::from(batch)] = Known::GivenUp,
        }
        if *error == AppendError::UnknownPartition {
            client.disconnect();
        }
    }

    /// Offset of a batch that is recorded, or would be by a seal now.
    pub(super) fn stored(&self, partition: Partition, id: i64) -> Option<Offset> {
        self.recorded(partition).into_iter().find(|(found, _)| *found == id).map(|(_, offset)| offset)
    }
}

/// The ranges of a node as its lanes see them.
pub(super) struct Here {
    heads: Vec<Arc<RangePrimary>>,
    parking: Arc<Parking>,
}

impl Layout for Here {
    fn range_of(&self, at: TopicPartition) -> Option<Arc<RangePrimary>> {
        table::find(&self.heads, at.partition).cloned()
    }
    fn now_ms(&self) -> i64 {
        0
    }
    fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }
    async fn leads(&self, _at: TopicPartition, _loglet: LogletId) -> bool {
        unreachable!("nobody waits in a world without time")
    }
}

/// What whoever asks the control state is told.
pub(super) fn leads(control: &State, me: Primary, at: TopicPartition, loglet: LogletId) -> bool {
    let open = control.topics[&at.topic].range_of(at.partition).and_then(|range| range.open());
    open.is_some_and(|open| open.loglet == loglet && open.primary == me)
}

pub(super) fn now() -> Instant {
    Instant::now()
}
