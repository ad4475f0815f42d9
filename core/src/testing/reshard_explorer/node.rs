//! Nodes: an incarnation with its range primaries; what it does when it reads the control state, rolls, takes over.

use super::Scope;
use super::control::{Way, new_segment};
use super::world::{TOPIC, World};
use crate::control::command::{Command, DropSegments, Ended, Extend, Reply};
use crate::control::state::{Range, RangeState};
use crate::drive::WriteError;
use crate::loglet::sequencer::Window;
use crate::range::ack::{Ack, AckSlot, Forks};
use crate::range::fold::{LogSummary, SealedSegment, Step, next_to_read};
use crate::range::lineage::overlap;
use crate::range::primary::{HandedOver, Limits, Phase, RangePrimary, Stamping, divide};
use crate::range::project::inherit;
use crate::range::retention::{FoldsFrom, SegmentStats, SegmentView, droppable, folds_through};
use crate::range::segment::{Owner, Segment};
use crate::range::state::RangeState as Folded;
use crate::range::table;
use crate::reshard::follow::{Todo, follow};
use crate::types::{Address, LogletId, Offset, Partition, RangeId, Span};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A roll under way: the version that was read before the drain, the segment, and whether its record is out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rolling {
    range: RangeId,
    version: u64,
    loglet: LogletId,
    pub(super) sent: bool,
}

/// A range whose segment was fenced by this node, to be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Takeover {
    range: RangeId,
    version: u64,
    ended: Ended,
}

/// See the module head.
pub(super) struct NodeProcess {
    pub(super) generation: u64,
    pub(super) heads: Vec<Arc<RangePrimary>>,
    pub(super) rolling: Option<Rolling>,
    pub(super) takeover: Option<Takeover>,
}

impl NodeProcess {
    pub(super) fn new(_number: usize) -> NodeProcess {
        NodeProcess { generation: 1, heads: Vec::new(), rolling: None, takeover: None }
    }

    pub(super) fn fork(&self, forks: &mut Forks) -> NodeProcess {
        NodeProcess {
            generation: self.generation,
            heads: self.heads.iter().map(|head| head.fork(forks)).collect(),
            rolling: self.rolling,
            takeover: self.takeover.clone(),
        }
    }

    pub(super) fn identify(&self, into: &mut impl Hasher, number: &impl Fn(&AckSlot) -> u64) {
        (self.generation, self.rolling, &self.takeover).hash(into);
        self.heads.iter().for_each(|head| head.identify(into, number));
    }

    /// The primary of a segment.
    pub(super) fn writer(&self, loglet: LogletId) -> Option<&Arc<RangePrimary>> {
        self.heads.iter().find(|head| head.active().0 == loglet)
    }

    pub(super) fn head(&self, range: RangeId) -> Option<&Arc<RangePrimary>> {
        self.heads.iter().find(|head| head.id == range)
    }

    /// Whom an append of the partition goes to here.
    pub(super) fn head_of(&self, partition: Partition) -> Option<&Arc<RangePrimary>> {
        table::find(&self.heads, partition)
    }

    /// What it opened stands in the place of what has ended.
    pub(super) fn replace(&mut self, ended: &[RangeId], opened: Vec<Arc<RangePrimary>>) {
        self.heads = table::replace(&self.heads, ended, opened);
    }

    pub(super) fn takes_appends(&self, range: RangeId) -> bool {
        self.head(range).is_some_and(|head| matches!(head.phase(), Phase::Open | Phase::Between))
    }
}

impl World {
    /// One change of a node's ranges at a time.
    pub(super) fn busy(&self, node: usize) -> bool {
        let here = &self.nodes[node];
        self.drivers[node].is_some() || here.rolling.is_some() || here.takeover.is_some()
    }

    fn todo(&self, node: usize) -> Todo {
        let has: Vec<_> = self.nodes[node].heads.iter().map(|head| (head.id, head.active().0)).collect();
        follow(self.topic(), self.me(node), &has)
    }

    pub(super) fn ended(&self, node: usize) -> Vec<(RangeId, Option<Address>)> {
        self.todo(node).ended
    }

    /// A node reads the control state and does what follows from it.
    pub(super) fn follow(&mut self, node: usize, scope: &Scope) -> Option<()> {
        let todo = self.todo(node);
        if todo == Todo::default() {
            return None;
        }
        let mut items = Vec::new();
        for (range, tail) in &todo.ended {
            items.extend(self.end_head(node, *range, *tail));
        }
        let opened = self.open_ranges(&todo.open, items, scope);
        let ended: Vec<RangeId> = todo.ended.iter().map(|(range, _)| *range).collect();
        self.nodes[node].replace(&ended, opened);
        Some(())
    }

    /// Ends a primary whose segment has this recorded tail.
    pub(super) fn end_head(&mut self, node: usize, range: RangeId, tail: Option<Address>) -> Vec<HandedOver> {
        let Some(head) = self.nodes[node].head(range).cloned() else { return Vec::new() };
        let (loglet, _) = head.active();
        if let Some(leaf) = self.leaf(loglet) {
            leaf.answers.clear();
        }
        if self.nodes[node].rolling.is_some_and(|rolling| rolling.range == range) {
            self.nodes[node].rolling = None;
        }
        head.close(Phase::Blocked("its segment was ended".to_owned()));
        let Some(tail) = tail else {
            // Nobody can say any more what became of what was in flight: their requests time out.
            let waiting = self
                .clients
                .iter_mut()
                .filter(|c| c.node == Some(node) && head.span.contains(c.kind.partition));
            waiting.for_each(super::clients::Client::disconnect);
            self.transactional.iter_mut().for_each(|one| one.forgotten_by(node));
            return Vec::new();
        };
        head.hand_over(tail, None)
    }

    /// Opens ranges that name a node, with what their partitions' primaries there handed over.
    pub(super) fn open_ranges(
        &mut self,
        ids: &[RangeId],
        items: Vec<HandedOver>,
        scope: &Scope,
    ) -> Vec<Arc<RangePrimary>> {
        let mut opened = Vec::new();
        let ranges: Vec<Arc<Range>> = ids.iter().map(|id| self.topic().ranges[id].clone()).collect();
        let spans: Vec<Span> = ranges.iter().map(|range| range.span).collect();
        for (range, handed_over) in ranges.iter().zip(divide(items, &spans)) {
            match self.fold(range.id) {
                Ok(state) => opened.push(self.open(range, state, handed_over, scope)),
                Err(why) => self.broken = Some(format!("range {} is lost: {why}", range.id)),
            }
        }
        opened
    }

    fn segment_of(&self, range: &Range) -> Arc<Segment> {
        let open = range.open().expect("it names its primary");
        let owner = Owner { range: range.id, span: range.span };
        Arc::new(Segment::new(owner, open.loglet, open.base, self.outbox.clone(), 0, None))
    }

    fn open(
        &mut self,
        range: &Range,
        state: Folded,
        items: Vec<HandedOver>,
        scope: &Scope,
    ) -> Arc<RangePrimary> {
        let limits = Limits {
            window: Window { entries: scope.window, bytes: scope.window_bytes },
            checkpoint_piece_bytes: 1 << 16,
            producer_expiration_ms: i64::MAX / 2,
            producers_max: 1000,
        };
        let segment = self.segment_of(range);
        let stamping = Stamping::default();
        let head = RangePrimary::new(TOPIC, range.id, limits, stamping, state, Vec::new(), segment.clone());
        head.open(segment, &epochs(range), items, 0);
        let leader = range.open().expect("it names its primary").primary;
        self.note_epochs(leader, &head);
        head
    }

    /// The state of a range after its recorded segments.
    pub(super) fn fold(&self, id: RangeId) -> Result<Folded, String> {
        let range = self.topic().ranges.get(&id).ok_or_else(|| format!("range {id} was dropped"))?;
        let sealed = range
            .chain
            .iter()
            .filter_map(|entry| Some(SealedSegment { loglet: entry.loglet, tail: entry.tail? }));
        let log = LogSummary {
            begins_at: range.chain.first().map_or(0, |entry| entry.base),
            sealed: sealed.collect(),
            parents: range.parents.clone(),
        };
        let mut before = log.sealed.len();
        loop {
            match next_to_read(&log, before) {
                Step::Segment { index, segment } => {
                    if let Some(state) = self.leaves[&segment.loglet].fold(segment, range.span)? {
                        return Ok(state);
                    }
                    before = index;
                }
                Step::Blank => return Ok(Folded::new(range.span)),
                Step::Parents(parents) => {
                    let states = parents.iter().map(|parent| self.fold(*parent));
                    let states = states.collect::<Result<Vec<_>, _>>()?;
                    return inherit(range.span, &states).map_err(|error| error.to_string());
                }
                Step::Lost => return Err("no checkpoint is left".to_owned()),
            }
        }
    }

    /// A leaf's answer reaches the primary that wrote.
    pub(super) fn answer(&mut self, loglet: LogletId, first: u64) -> Option<()> {
        let leaf = self.leaf(loglet)?;
        let (entries, stored) = leaf.answers.remove(&first)?;
        let head = self.nodes.iter().flat_map(|node| &node.heads).find(|head| head.active().0 == loglet)?;
        let outcome = if stored { Ok(()) } else { Err(WriteError::Sealed) };
        head.answered(Address(first), entries, outcome);
        Some(())
    }

    pub(super) fn has_writer(&self, loglet: LogletId) -> bool {
        self.nodes.iter().flat_map(|node| &node.heads).any(|head| head.active().0 == loglet)
    }

    /// A node dies and comes back.
    pub(super) fn restart(&mut self, node: usize) -> Option<()> {
        self.budget.restarts -= 1;
        let start = Command::StartNode {
            node: self.me(node).node,
            disks: Vec::new(),
            begun: Default::default(),
            now: 0,
        };
        self.apply(&start)?;
        for head in std::mem::take(&mut self.nodes[node].heads) {
            let loglet = head.active().0;
            self.leaf(loglet)?.answers.clear();
        }
        let generation = self.nodes[node].generation + 1;
        self.nodes[node] = NodeProcess { generation, ..NodeProcess::new(node) };
        self.drivers[node] = None;
        for client in self.clients.iter_mut().filter(|client| client.node == Some(node)) {
            client.disconnect();
        }
        self.transactional.iter_mut().for_each(|one| one.forgotten_by(node));
        Some(())
    }

    /// Reads whether a primary's segment is still open: it goes on, or takes nothing more (R4).
    pub(super) fn read_chain(&mut self, node: usize, loglet: LogletId) -> Option<()> {
        let head = self.nodes[node].writer(loglet)?;
        let control = self.topic().ranges.get(&head.id);
        match control.and_then(|r| r.open().map(|open| (r.version, open.loglet))) {
            Some((version, open)) if open == head.active().0 => head.resume(Some(version)),
            _ => head.close(Phase::Blocked("its segment was ended".to_owned())),
        }
        Some(())
    }

    pub(super) fn roll_stops(&mut self, node: usize, at: usize) -> Option<()> {
        let head = self.nodes[node].heads.get(at)?;
        let control = self.topic().ranges.get(&head.id)?;
        let (loglet, _) = head.active();
        control.open().filter(|open| open.loglet == loglet)?;
        if head.phase() != Phase::Open || control.state != RangeState::Active {
            return None;
        }
        let version = control.version;
        head.stop_issuing(version);
        self.budget.rolls -= 1;
        self.nodes[node].rolling = Some(Rolling { range: head.id, version, loglet, sent: false });
        Some(())
    }

    /// Records a roll once it has drained.
    pub(super) fn roll_records(&mut self, node: usize, way: Way, scope: &Scope) -> Option<()> {
        let mut rolling = self.nodes[node].rolling.filter(|rolling| !rolling.sent)?;
        let head = self.nodes[node].writer(rolling.loglet)?.clone();
        let tail = head.drained()?;
        rolling.sent = true;
        self.nodes[node].rolling = Some(rolling);
        let Rolling { range, version, loglet, .. } = rolling;
        let next = new_segment(self.me(node), scope.window);
        let ended = Some(Ended::at(loglet, tail));
        let extend = Extend { topic: TOPIC, range, version, ended, next, now: 0 };
        if let Some(Some(Reply::Extended(_))) = self.propose(Command::Extend(extend), way) {
            let control = self.topic().ranges[&range].clone();
            if self.fold(range) != Ok(head.state()) {
                self.broken = Some(format!("range {range}: drained memory is not its fold"));
            }
            head.open(self.segment_of(&control), &epochs(&control), Vec::new(), 0);
            self.note_epochs(self.me(node), &head);
            self.nodes[node].rolling = None;
        }
        Some(())
    }

    /// A roll that sent nothing is called off.
    pub(super) fn roll_called_off(&mut self, node: usize) -> Option<()> {
        let rolling = self.nodes[node].rolling?;
        let head = self.nodes[node].writer(rolling.loglet)?;
        head.resume(None);
        if head.phase() == Phase::Open {
            self.nodes[node].rolling = None;
        }
        Some(())
    }

    /// A roll without an answer is looked up.
    pub(super) fn roll_read(&mut self, node: usize) -> Option<()> {
        let rolling = self.nodes[node].rolling.filter(|rolling| rolling.sent)?;
        self.read_chain(node, rolling.loglet)?;
        if self.nodes[node].writer(rolling.loglet)?.phase() != Phase::Between {
            self.nodes[node].rolling = None;
        }
        Some(())
    }

    /// A node fences the open segment of a range that nobody leads any more, or that it is to take over.
    pub(super) fn take_over(&mut self, node: usize, range: RangeId, without: u8) -> Option<()> {
        let control = self.topic().ranges.get(&range)?.clone();
        let ended = self.seal(&control, without).ok()?;
        let version = control.version;
        self.nodes[node].takeover = Some(Takeover { range, version, ended });
        Some(())
    }

    pub(super) fn takeover_records(&mut self, node: usize, way: Way, scope: &Scope) -> Option<()> {
        let Takeover { range, version, ended } = self.nodes[node].takeover.take()?;
        let next = new_segment(self.me(node), scope.window);
        let extend = Extend { topic: TOPIC, range, version, ended: Some(ended), next, now: 0 };
        self.propose(Command::Extend(extend), way);
        Some(())
    }

    /// Log starts of a range rise to what is readable.
    pub(super) fn delete_records(&mut self, node: usize, at: usize) -> Option<()> {
        let head = self.nodes[node].heads.get(at)?.clone();
        let highs = head.span.iter().filter_map(|p| Some((p, head.high(p)?)));
        let visible = head.visible_log_starts();
        let raised: Vec<_> =
            highs.zip(visible).filter(|(high, low)| high.1 > low.1).map(|(h, _)| h).collect();
        if raised.is_empty() || head.phase() != Phase::Open {
            return None;
        }
        self.budget.deletes -= 1;
        for (partition, start) in &raised {
            self.deleted[*partition as usize] = self.deleted[*partition as usize].max(*start);
        }
        head.issue_log_starts(&raised, &Arc::new(Ack::default()), 0).ok()??;
        Some(())
    }

    /// A retention pass over a range that is led here, and over closed ranges that its partitions were in.
    pub(super) fn retain(&mut self, node: usize, at: usize) -> Option<()> {
        let head = self.nodes[node].heads.get(at)?;
        let (id, span) = (head.id, head.span);
        let folds = head.checkpointed().map_or(FoldsFrom::Unknown, FoldsFrom::Segment);
        let mut dropped = self.drop_passed(id, folds).is_some();
        let closed = self.topic().ranges.values().filter(|range| range.state == RangeState::Closed);
        let closed: Vec<_> = closed.filter(|range| overlap(range.span, span).is_some()).cloned().collect();
        for range in closed {
            let live = self.topic().live_ranges().map(|live| (live.span, self.checkpointed(live)));
            let folds = folds_through(range.span, live);
            dropped |= self.drop_passed(range.id, folds).is_some();
        }
        dropped.then_some(())
    }

    /// What the primary that leads a partition says of its log start.
    fn log_start(&self, partition: Partition) -> Option<Offset> {
        let head = self.leader(self.range_of(partition))?;
        head.visible_log_starts().into_iter().find(|(p, _)| *p == partition).map(|(_, start)| start)
    }

    fn checkpointed(&self, range: &Range) -> bool {
        self.leader(range).is_some_and(|head| head.checkpointed().is_some())
    }

    /// The primary of a range's open segment.
    fn leader(&self, range: &Range) -> Option<&Arc<RangePrimary>> {
        let open = range.open()?;
        let node = (0..self.nodes.len()).find(|node| self.me(*node) == open.primary)?;
        self.nodes[node].writer(open.loglet)
    }

    fn drop_passed(&mut self, range: RangeId, folds: FoldsFrom) -> Option<()> {
        let range = self.topic().ranges.get(&range)?;
        let views: Vec<SegmentView> =
            range.chain.iter().map(|entry| self.view(entry.loglet, entry.tail)).collect();
        let loglets = droppable(&views, |partition| self.log_start(partition), folds);
        if loglets.is_empty() {
            return None;
        }
        let (range, version) = (range.id, range.version);
        let drop = DropSegments { topic: TOPIC, range, version, loglets, now: 0 };
        self.apply(&Command::DropSegments(drop)).map(|_| ())
    }

    fn view(&self, loglet: LogletId, tail: Option<Address>) -> SegmentView {
        let mut stats = SegmentStats::default();
        let below = tail.map_or(u64::MAX, |tail| tail.0);
        self.leaves[&loglet].entries.range(..below).for_each(|(_, (header, _))| stats.note(header));
        stats.view(loglet, tail.is_some())
    }
}

fn epochs(range: &Range) -> Vec<(Span, i32)> {
    range.epochs.iter().map(|run| (Span { first: run.first, last: run.last }, run.epoch)).collect()
}
