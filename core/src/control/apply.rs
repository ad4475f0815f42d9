//! How a command changes the state: deterministic, whole or not at all, no clock and no chance.

use super::command::*;
use super::state::*;
use crate::testing::{Mutant, broken};
use crate::types::{Address, Generation, LogletId, NodeId, Partition, Primary, RangeId, Span, TopicId};
use crate::virtual_log::chain::ChainEntry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A row of the state that a command wrote or removed; its new contents are in the state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Delta {
    /// A topic's own row.
    Topic(TopicId),
    /// A range.
    Range(TopicId, RangeId),
    /// A segment tombstone.
    Tombstone(LogletId),
    /// The highest epoch kept for a name.
    Name(String),
    /// A node.
    Node(NodeId),
    /// An operation.
    Operation(OperationId),
    /// Settings of a node, or of all.
    NodeConfigs(Option<NodeId>),
    /// A rule of who may do what.
    Acl(Acl),
    /// The last starts on a node's disks.
    DiskStarts(NodeId),
}

impl State {
    /// Applies one command. Counters count as changed by every command, so they have no delta.
    ///
    /// Errors: a refusal leaves the state as it was.
    pub fn apply(&mut self, command: &Command) -> Result<(Reply, Vec<Delta>), Refusal> {
        let done = match command {
            Command::CreateTopic(create) => self.create_topic(create),
            Command::DeleteTopic { topic, now } => self.delete_topic(*topic, *now),
            Command::CreatePartitions(create) => self.create_partitions(create),
            Command::AlterConfigs(alter) => self.alter_configs(alter),
            Command::Extend(extend) => self.extend(extend),
            Command::DropSegments(drop) => self.drop_segments(drop),
            Command::AckTombstones { node, loglets } => Ok(self.ack_tombstones(*node, loglets)),
            Command::StartNode { node, disks, begun, now } => self.start_node(*node, disks, begun, *now),
            Command::AllocateProducerIds { count } => self.allocate_producer_ids(*count),
            Command::Restart(restart) => self.restart(restart),
            Command::BeginReshard(begin) => self.begin_reshard(begin),
            Command::Reshard(reshard) => self.reshard(reshard),
            Command::AbortReshard(abort) => self.abort_reshard(abort),
            Command::AlterNodeConfigs(alter) => self.alter_node_configs(alter),
            Command::PrepareReplacement(prepare) => self.prepare_replacement(prepare),
            Command::Replace(replace) => self.replace(replace),
            Command::AlterAcls(alter) => self.alter_acls(alter),
        }?;
        self.counters.version += 1;
        Ok(done)
    }

    fn create_topic(&mut self, create: &CreateTopic) -> Result<(Reply, Vec<Delta>), Refusal> {
        check_topic_name(&create.name)?;
        if let Some(there) = self.topic_like(&create.name) {
            return Err(if there.name == create.name {
                Refusal::TopicExists { name: create.name.clone(), id: there.id }
            } else {
                Refusal::NameCollides { name: create.name.clone(), existing: there.name.clone() }
            });
        }
        if self.topics.contains_key(&create.id) {
            return Err(Refusal::TopicIdTaken(create.id));
        }
        check_partitions(create.partitions, 1)?;
        check_configs(&create.configs)?;
        let first_epoch = match self.name_tombstones.get(&create.name) {
            Some(epoch) => epoch.checked_add(1).ok_or_else(|| exhausted("leader epochs of this name"))?,
            None => 0,
        };
        let mut topic = Topic {
            id: create.id,
            name: create.name.clone(),
            partitions: 0,
            configs: create.configs.clone(),
            drive: create.drive.clone(),
            replication_factor: create.replication_factor,
            internal: create.internal,
            created_at: create.now,
            version: 0,
            next_range: 0,
            first_epoch,
            stones: Vec::new(),
            ranges: BTreeMap::new(),
            layout: BTreeMap::new(),
        };
        let grown = Growth { total: create.partitions, ranges: create.ranges, now: create.now };
        let (created, next_loglet) = self.grow(&mut topic, grown, &create.segments)?;
        self.counters.next_loglet = next_loglet;
        let deltas = deltas_of(&topic, &created);
        Arc::make_mut(&mut self.names).insert(folded(&topic.name), topic.id);
        self.topics.insert(topic.id, Arc::new(topic));
        Ok((Reply::Created(created), deltas))
    }

    fn create_partitions(&mut self, create: &CreatePartitions) -> Result<(Reply, Vec<Delta>), Refusal> {
        let present = self.topics.get(&create.topic).ok_or(Refusal::UnknownTopic(create.topic))?;
        check_partitions(create.total, present.partitions.saturating_add(1))?;
        let mut topic = Topic::clone(present);
        topic.version += 1;
        let grown = Growth { total: create.total, ranges: create.ranges, now: create.now };
        let (created, next_loglet) = self.grow(&mut topic, grown, &create.segments)?;
        self.counters.next_loglet = next_loglet;
        let deltas = deltas_of(&topic, &created);
        self.topics.insert(topic.id, Arc::new(topic));
        Ok((Reply::Created(created), deltas))
    }

    /// Appends partitions in new ranges; answers with them and the loglet counter as it must become.
    fn grow(
        &self,
        topic: &mut Topic,
        growth: Growth,
        segments: &[NewSegment],
    ) -> Result<(Created, u64), Refusal> {
        let added = growth.total - topic.partitions;
        let most = u32::try_from(added).unwrap_or(0).min(NEW_RANGES_MAX);
        if !(1..=most).contains(&growth.ranges) {
            return Err(Refusal::Ranges { got: growth.ranges, max: most });
        }
        if !segments.is_empty() && segments.len() != growth.ranges as usize {
            return Err(Refusal::Segments { got: segments.len(), ranges: growth.ranges });
        }
        let mut next_loglet = self.counters.next_loglet;
        let mut created = Vec::new();
        for (i, span) in cut(topic.partitions, added, growth.ranges).into_iter().enumerate() {
            let id = RangeId(topic.next_range);
            topic.next_range = topic.next_range.checked_add(1).ok_or_else(|| exhausted("range ids"))?;
            let mut range = Range {
                id,
                span,
                state: RangeState::Active,
                version: 0,
                parents: Vec::new(),
                children: Vec::new(),
                chain: Vec::new(),
                epochs: vec![EpochRun { first: span.first, last: span.last, epoch: topic.first_epoch }],
            };
            let opened = match segments.get(i) {
                Some(segment) => {
                    self.check_segment(segment)?;
                    Some(open_segment(&mut range, segment, growth.now, &mut next_loglet)?)
                }
                None => None,
            };
            topic.layout.insert(span.first, id);
            topic.ranges.insert(id, Arc::new(range));
            created.push((id, opened));
        }
        topic.partitions = growth.total;
        Ok((created, next_loglet))
    }

    fn delete_topic(&mut self, id: TopicId, now: i64) -> Result<(Reply, Vec<Delta>), Refusal> {
        let topic = self.topics.remove(&id).ok_or(Refusal::UnknownTopic(id))?;
        let mut deltas = vec![Delta::Topic(id), Delta::Name(topic.name.clone())];
        deltas.extend(self.forget_operations(|operation| operation.topic == id));
        for range in topic.ranges.values() {
            deltas.push(Delta::Range(id, range.id));
            deltas.extend(self.bury(id, range.id, &range.chain, now));
        }
        Arc::make_mut(&mut self.names).remove(&folded(&topic.name));
        Arc::make_mut(&mut self.name_tombstones).insert(topic.name.clone(), topic.highest_epoch());
        Ok((Reply::Done, deltas))
    }

    fn alter_configs(&mut self, alter: &AlterConfigs) -> Result<(Reply, Vec<Delta>), Refusal> {
        let present = self.topics.get_mut(&alter.topic).ok_or(Refusal::UnknownTopic(alter.topic))?;
        if let Some(named) = alter.version.filter(|named| *named != present.version) {
            return Err(Refusal::Stale { named, present: present.version });
        }
        let mut configs = present.configs.clone();
        for (name, value) in &alter.changes {
            match value {
                Some(value) => configs.insert(name.clone(), value.clone()),
                None => configs.remove(name),
            };
        }
        check_configs(&configs)?;
        let topic = Arc::make_mut(present);
        topic.configs = configs;
        match &alter.drive {
            DriveChange::Keep => {}
            DriveChange::Clear => topic.drive = None,
            DriveChange::Set(drive) => topic.drive = Some(drive.clone()),
        }
        topic.version += 1;
        Ok((Reply::Done, vec![Delta::Topic(alter.topic)]))
    }

    fn alter_node_configs(&mut self, alter: &AlterNodeConfigs) -> Result<(Reply, Vec<Delta>), Refusal> {
        let mut configs = self.node_configs.get(&alter.node).cloned().unwrap_or_default();
        for (name, value) in &alter.changes {
            match value {
                Some(value) => configs.insert(name.clone(), value.clone()),
                None => configs.remove(name),
            };
        }
        check_configs(&configs)?;
        let all = Arc::make_mut(&mut self.node_configs);
        match configs.is_empty() {
            true => all.remove(&alter.node),
            false => all.insert(alter.node, configs),
        };
        Ok((Reply::Done, vec![Delta::NodeConfigs(alter.node)]))
    }

    fn alter_acls(&mut self, alter: &AlterAcls) -> Result<(Reply, Vec<Delta>), Refusal> {
        let texts = alter.add.iter().flat_map(|acl| [&acl.name, &acl.principal, &acl.host]);
        if let Some(got) = texts.map(String::len).find(|length| *length > ACL_BYTES_MAX) {
            return Err(Refusal::AclBytes { got, max: ACL_BYTES_MAX });
        }
        let mut acls = BTreeSet::clone(&self.acls);
        let mut changed = BTreeSet::new();
        changed.extend(alter.remove.iter().filter(|acl| acls.remove(acl)));
        changed.extend(alter.add.iter().filter(|acl| acls.insert((*acl).clone())));
        if acls.len() > ACLS_MAX && !alter.add.is_empty() {
            return Err(Refusal::Acls { got: acls.len(), max: ACLS_MAX });
        }
        self.acls = Arc::new(acls);
        Ok((Reply::Done, changed.into_iter().cloned().map(Delta::Acl).collect()))
    }

    fn extend(&mut self, extend: &Extend) -> Result<(Reply, Vec<Delta>), Refusal> {
        let mut next_loglet = self.counters.next_loglet;
        let planned = self.plan_extend(extend, &mut next_loglet)?;
        self.counters.next_loglet = next_loglet;
        let (extended, deltas) = self.install(extend.topic, planned, extend.now);
        Ok((Reply::Extended(extended), deltas))
    }

    fn restart(&mut self, restart: &Restart) -> Result<(Reply, Vec<Delta>), Refusal> {
        let Primary { node, generation } = restart.primary;
        let present = self.nodes.get(&node).map(|node| node.generation);
        if present != Some(generation) {
            return Err(Refusal::DeadPrimary { node, named: generation, present });
        }
        let mut next_loglet = self.counters.next_loglet;
        let mut planned = Vec::new();
        let mut named = BTreeSet::new();
        for row in &restart.ranges {
            let range = self.known_range(row.topic, row.range)?;
            if !named.insert((row.topic, row.range)) {
                return Err(Refusal::Stale { named: row.version, present: row.version + 1 });
            }
            let open = range.open().map(|entry| entry.primary);
            if !open.is_some_and(|open| open.node == node && open.generation < generation) {
                return Err(Refusal::NotMine { range: row.range, node });
            }
            let extend = row.extend(restart.primary, restart.now);
            planned.push((row.topic, self.plan_extend(&extend, &mut next_loglet)?));
        }
        self.counters.next_loglet = next_loglet;
        let mut replies = Vec::new();
        let mut deltas = Vec::new();
        for (topic, plan) in planned {
            let (extended, more) = self.install(topic, plan, restart.now);
            replies.push(extended);
            deltas.extend(more);
        }
        Ok((Reply::Restarted(replies), deltas))
    }

    /// The range as it becomes by sealing its open segment and opening the next.
    fn plan_extend(&self, extend: &Extend, next_loglet: &mut u64) -> Result<Planned, Refusal> {
        let present = self.known_range(extend.topic, extend.range)?;
        check_version(extend.version, present.version)?;
        if present.state != RangeState::Active && !broken(Mutant::IntentDoesNotBlock) {
            return Err(Refusal::NotActive { range: present.id, state: present.state });
        }
        let named = extend.ended.as_ref().map(|ended| ended.loglet);
        let open = present.open().map(|entry| entry.loglet);
        if named != open {
            return Err(Refusal::NotTheOpenSegment { range: present.id, named, open });
        }
        self.check_segment(&extend.next)?;
        let mut range = Range::clone(present);
        raise_epochs(&mut range.epochs, present.open(), extend.next.primary)?;
        let dropped = match &extend.ended {
            Some(ended) => seal_open(&mut range, ended)?,
            None => None,
        };
        open_segment(&mut range, &extend.next, extend.now, next_loglet)?;
        range.version += 1;
        Ok(Planned { range, dropped })
    }

    fn install(&mut self, topic: TopicId, planned: Planned, now: i64) -> (Extended, Vec<Delta>) {
        let Planned { range, dropped } = planned;
        let extended = range.open().map(|open| Extended {
            loglet: open.loglet,
            base: open.base,
            version: range.version,
        });
        let mut deltas = vec![Delta::Range(topic, range.id)];
        deltas.extend(self.bury(topic, range.id, dropped.as_slice(), now));
        let home = self.topics.get_mut(&topic).map(Arc::make_mut).expect("planned for a topic that is there");
        home.ranges.insert(range.id, Arc::new(range));
        (extended.expect("planned with an open segment"), deltas)
    }

    fn drop_segments(&mut self, drop: &DropSegments) -> Result<(Reply, Vec<Delta>), Refusal> {
        let present = self.known_range(drop.topic, drop.range)?;
        check_version(drop.version, present.version)?;
        let count = drop.loglets.len();
        let oldest = present.chain.iter().take(count);
        let sealed: Vec<LogletId> = oldest.filter(|entry| entry.tail.is_some()).map(|e| e.loglet).collect();
        // A closed range that never wrote anything has nothing to drop but itself.
        let empty = present.state == RangeState::Closed && present.chain.is_empty();
        if (count == 0) != empty || sealed != drop.loglets {
            return Err(Refusal::NotAPrefix { range: drop.range });
        }
        let home = self.topics.get(&drop.topic).ok_or(Refusal::UnknownTopic(drop.topic))?;
        let parents_remain = present.parents.iter().any(|parent| home.ranges.contains_key(parent));
        if count == present.chain.len() && parents_remain {
            return Err(Refusal::ParentsRemain { range: drop.range });
        }
        let mut range = Range::clone(present);
        let end = range.sealed_end();
        let dropped: Vec<ChainEntry> = range.chain.drain(..count).collect();
        range.version += 1;
        let mut deltas = vec![Delta::Range(drop.topic, drop.range)];
        deltas.extend(self.bury(drop.topic, drop.range, &dropped, drop.now));
        let topic = self.topics.get_mut(&drop.topic).map(Arc::make_mut).expect("has the range");
        if range.chain.is_empty() {
            topic.ranges.remove(&range.id);
            topic.version += range.version + 1;
            topic.stones.push(Stone { range: range.id, span: range.span, end, children: range.children });
            deltas.push(Delta::Topic(drop.topic));
        } else {
            topic.ranges.insert(range.id, Arc::new(range));
        }
        Ok((Reply::Done, deltas))
    }

    fn ack_tombstones(&mut self, node: NodeId, loglets: &[LogletId]) -> (Reply, Vec<Delta>) {
        let tombstones = Arc::make_mut(&mut self.tombstones);
        let mut deltas = Vec::new();
        for loglet in loglets {
            let Some(tombstone) = tombstones.get_mut(loglet) else { continue };
            if !tombstone.pending.remove(&node) {
                continue;
            }
            if tombstone.pending.is_empty() {
                tombstones.remove(loglet);
            }
            deltas.push(Delta::Tombstone(*loglet));
        }
        (Reply::Done, deltas)
    }

    fn start_node(
        &mut self,
        id: NodeId,
        disks: &[crate::types::DiskId],
        begun: &DiskStarts,
        now: i64,
    ) -> Result<(Reply, Vec<Delta>), Refusal> {
        let before = self.nodes.get(&id).map_or(0, |node| node.generation.0);
        let generation = Generation(before.checked_add(1).ok_or_else(|| exhausted("generations"))?);
        let node = Node { id, generation, disks: disks.to_vec(), started_at: now };
        Arc::make_mut(&mut self.nodes).insert(id, node);
        let mut deltas = vec![Delta::Node(id)];
        let before = self.disk_starts.get(&id).cloned().unwrap_or_default();
        // Of those that are away the last start stands; of those that the node has forgotten nothing is stored.
        let mut starts = before.clone();
        starts.retain(|disk, _| disks.contains(disk));
        starts.extend(begun);
        if starts != before {
            Arc::make_mut(&mut self.disk_starts).insert(id, starts);
            deltas.push(Delta::DiskStarts(id));
        }
        Ok((Reply::Started { generation }, deltas))
    }

    fn allocate_producer_ids(&mut self, count: u32) -> Result<(Reply, Vec<Delta>), Refusal> {
        check_bounds("producer ids in a block", u64::from(count), 1, u64::from(PRODUCER_IDS_MAX))?;
        let first = self.counters.next_producer_id;
        self.counters.next_producer_id =
            first.checked_add(i64::from(count)).ok_or_else(|| exhausted("producer ids"))?;
        Ok((Reply::ProducerIds { first, count }, Vec::new()))
    }

    pub(super) fn known_range(&self, topic: TopicId, range: RangeId) -> Result<&Arc<Range>, Refusal> {
        let topic = self.topics.get(&topic).ok_or(Refusal::UnknownTopic(topic))?;
        topic.ranges.get(&range).ok_or(Refusal::UnknownRange { topic: topic.id, range })
    }

    /// A known node must be named in its present generation. A node registered elsewhere cannot be judged here: its
    /// range's version guards the chain all the same.
    pub(super) fn check_segment(&self, segment: &NewSegment) -> Result<(), Refusal> {
        check_bounds("window in slots", u64::from(segment.window), 1, u64::from(u32::MAX))?;
        let Primary { node, generation: named } = segment.primary;
        match self.nodes.get(&node).map(|node| node.generation) {
            Some(present) if present != named => {
                Err(Refusal::DeadPrimary { node, named, present: Some(present) })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Makes tombstones of segments that left a chain.
    pub(super) fn bury(
        &mut self,
        topic: TopicId,
        range: RangeId,
        chain: &[ChainEntry],
        at: i64,
    ) -> Vec<Delta> {
        if chain.is_empty() {
            return Vec::new();
        }
        let tombstones = Arc::make_mut(&mut self.tombstones);
        let bury = |entry: &ChainEntry| {
            let pending = nodes_of(&entry.drive);
            let tombstone = Tombstone { topic, range, drive: entry.drive.clone(), pending, at };
            tombstones.insert(entry.loglet, tombstone);
            Delta::Tombstone(entry.loglet)
        };
        chain.iter().map(bury).collect()
    }
}

type Created = Vec<(RangeId, Option<LogletId>)>;

pub(super) struct Planned {
    pub(super) range: Range,
    pub(super) dropped: Option<ChainEntry>,
}

#[derive(Copy, Clone)]
struct Growth {
    total: i32,
    ranges: u32,
    now: i64,
}

impl RestartRange {
    fn extend(&self, primary: Primary, now: i64) -> Extend {
        let next =
            NewSegment { drive: self.drive.clone(), window: self.window, seal_mode: self.seal_mode, primary };
        let ended = Some(self.ended.clone());
        Extend { topic: self.topic, range: self.range, version: self.version, ended, next, now }
    }
}

/// Records the open segment's end. An empty segment leaves the chain and is handed back.
pub(super) fn seal_open(range: &mut Range, ended: &Ended) -> Result<Option<ChainEntry>, Refusal> {
    let Some(mut entry) = range.chain.pop() else { return Ok(None) };
    check_ended(ended)?;
    entry.base.checked_add(ended.tail.0).ok_or_else(|| exhausted("addresses"))?;
    if ended.tail == Address(0) {
        return Ok(Some(entry));
    }
    entry.tail = Some(ended.tail);
    entry.degraded = ended.degraded;
    entry.lost = ended.lost.clone();
    range.chain.push(entry);
    Ok(None)
}

/// Raises the epochs if another incarnation than the open segment's follows (R13), an empty one's too (R10).
pub(super) fn raise_epochs(
    epochs: &mut [EpochRun],
    open: Option<&ChainEntry>,
    next: Primary,
) -> Result<(), Refusal> {
    if open.is_none_or(|entry| entry.primary == next) || broken(Mutant::EpochKept) {
        return Ok(());
    }
    for run in epochs {
        run.epoch = run.epoch.checked_add(1).ok_or_else(|| exhausted("leader epochs"))?;
    }
    Ok(())
}

pub(super) fn open_segment(
    range: &mut Range,
    segment: &NewSegment,
    now: i64,
    next_loglet: &mut u64,
) -> Result<LogletId, Refusal> {
    let loglet = LogletId(*next_loglet);
    *next_loglet = next_loglet.checked_add(1).ok_or_else(|| exhausted("loglet ids"))?;
    let base = range.sealed_end();
    range.chain.push(ChainEntry {
        base,
        loglet,
        drive: segment.drive.clone(),
        window: segment.window,
        seal_mode: segment.seal_mode,
        primary: segment.primary,
        tail: None,
        degraded: None,
        lost: Vec::new(),
        sparse: false,
        opened_at: now,
    });
    Ok(loglet)
}

fn deltas_of(topic: &Topic, created: &[(RangeId, Option<LogletId>)]) -> Vec<Delta> {
    let ranges = created.iter().map(|(range, _)| Delta::Range(topic.id, *range));
    std::iter::once(Delta::Topic(topic.id)).chain(ranges).collect()
}

pub(super) fn check_version(named: u64, present: u64) -> Result<(), Refusal> {
    if named == present { Ok(()) } else { Err(Refusal::Stale { named, present }) }
}

fn check_partitions(got: i32, min: i32) -> Result<(), Refusal> {
    if (min..=PARTITIONS_MAX).contains(&got) {
        return Ok(());
    }
    Err(Refusal::Partitions { got, min, max: PARTITIONS_MAX })
}

fn check_configs(configs: &BTreeMap<String, String>) -> Result<(), Refusal> {
    check_bounds("explicit configs", configs.len() as u64, 0, CONFIGS_MAX as u64)?;
    let longest = configs.iter().map(|(name, value)| name.len().max(value.len())).max().unwrap_or(0);
    check_bounds("bytes of a config", longest as u64, 0, CONFIG_BYTES_MAX as u64)
}

/// Degraded and lost addresses lie below the tail.
fn check_ended(ended: &Ended) -> Result<(), Refusal> {
    for (first, last) in ended.degraded.iter().chain(&ended.lost) {
        check_bounds("last degraded or lost address", last.0, first.0, ended.tail.0)?;
    }
    Ok(())
}

fn check_bounds(what: &str, got: u64, min: u64, max: u64) -> Result<(), Refusal> {
    if (min..=max).contains(&got) {
        return Ok(());
    }
    Err(Refusal::OutOfBounds { what: what.to_owned(), got, min, max })
}

pub(super) fn exhausted(what: &str) -> Refusal {
    Refusal::Exhausted(what.to_owned())
}

impl State {
    /// What must hold of every state, after every command: `Err` says what does not. Costs a walk over everything.
    pub fn check(&self) -> Result<(), String> {
        let mut loglets = BTreeSet::new();
        for (id, topic) in &self.topics {
            if *id != topic.id || self.names.get(&folded(&topic.name)) != Some(id) {
                return Err(format!("topic {id} ('{}') is filed wrongly", topic.name));
            }
            topic.check(&mut loglets).map_err(|e| format!("topic '{}': {e}", topic.name))?;
        }
        if self.names.len() != self.topics.len() {
            return Err(format!("{} names for {} topics", self.names.len(), self.topics.len()));
        }
        for (id, tombstone) in self.tombstones.iter() {
            if !loglets.insert(*id) {
                return Err(format!("{id} is both in a chain and a tombstone"));
            }
            if tombstone.pending.is_empty() {
                return Err(format!("tombstone {id} waits for nobody"));
            }
        }
        self.check_operations()?;
        match loglets.last() {
            Some(last) if last.0 >= self.counters.next_loglet => {
                Err(format!("{last} is there, the next id is {}", self.counters.next_loglet))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A range is fencing exactly while one running operation is of it.
    fn check_operations(&self) -> Result<(), String> {
        let mut fencing = BTreeSet::new();
        for operation in self.operations.values().filter(|o| !o.state.is_over()) {
            for id in operation.kind.ranges() {
                let state = self.range(operation.topic, id).map(|range| range.state);
                if state != Some(RangeState::Fencing) {
                    return Err(format!("{} runs and range {id} is {state:?}", operation.kind));
                }
                if !fencing.insert((operation.topic, id)) {
                    return Err(format!("two operations of range {id} run"));
                }
            }
        }
        let all = self.topics.values().flat_map(|t| t.ranges.values().map(|r| (t.id, r)));
        let mut lonely =
            all.filter(|(t, r)| r.state == RangeState::Fencing && !fencing.contains(&(*t, r.id)));
        lonely.next().map_or(Ok(()), |(_, r)| Err(format!("{} is fencing and no operation runs", r.id)))
    }
}

impl Topic {
    fn check(&self, loglets: &mut BTreeSet<LogletId>) -> Result<(), String> {
        let mut next: Partition = 0;
        for range in self.live_ranges() {
            if range.span.first != next {
                return Err(format!("{} begins at {}, not {next}", range.id, range.span.first));
            }
            next = range.span.last.saturating_add(1);
        }
        if next != self.partitions {
            return Err(format!("live ranges cover {next} of {} partitions", self.partitions));
        }
        let live = self.ranges.values().filter(|range| range.state != RangeState::Closed).count();
        if live != self.layout.len() {
            return Err(format!("{live} live ranges, {} in the layout", self.layout.len()));
        }
        for (id, range) in &self.ranges {
            if *id != range.id || id.0 >= self.next_range {
                return Err(format!("{id} is filed wrongly, or not below r{}", self.next_range));
            }
            range.check(self.first_epoch, loglets).map_err(|e| format!("{id}: {e}"))?;
        }
        let reused = self.stones.iter().find(|s| self.ranges.contains_key(&s.range));
        reused.map_or(Ok(()), |stone| Err(format!("{} is a stone and a range", stone.range)))
    }
}

impl Range {
    fn check(&self, first_epoch: i32, loglets: &mut BTreeSet<LogletId>) -> Result<(), String> {
        let Span { first, last } = self.span;
        if first < 0 || first > last {
            return Err(format!("span {first} to {last}"));
        }
        let mut next = first;
        for run in &self.epochs {
            if run.first != next || run.last < run.first || run.epoch < first_epoch {
                return Err(format!("epoch run {run:?}, wanted from {next} on, at least {first_epoch}"));
            }
            next = run.last.saturating_add(1);
        }
        if next != last.saturating_add(1) {
            return Err(format!("epoch runs end before {next}, span at {last}"));
        }
        for (i, entry) in self.chain.iter().enumerate() {
            if !loglets.insert(entry.loglet) {
                return Err(format!("{} is there twice", entry.loglet));
            }
            let following = self.chain.get(i + 1);
            match (entry.tail, following) {
                (Some(tail), Some(next)) if entry.base.checked_add(tail.0) != Some(next.base) => {
                    return Err(format!("{} ends elsewhere than {} begins", entry.loglet, next.loglet));
                }
                (None, Some(_)) => return Err(format!("{} is open, not the last", entry.loglet)),
                (None, None) if self.state == RangeState::Closed => {
                    return Err(format!("{} is open in a closed range", entry.loglet));
                }
                (Some(_), None) if self.state == RangeState::Active => {
                    return Err("active, and its last segment is sealed".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
