//! Readers against a model of a topic: random appends, splits, merges, trims, drops, forgotten stones, new partitions;
//! the readers' cursors are written and read again, and readers die. Each record is delivered once to each reader, in
//! order, or lies in exactly one skip that was reported; without the rules of R15 and R16 that is found to be untrue.

use super::lineage::{Branch, Lineage};
use super::walk::{Read, Skip};
use super::{Cursor, CursorKey, CursorKeys, Place, Places, Scope, Spot};
use crate::testing::mutant::switched::with_broken;
use crate::testing::{Mutant, rng::Rng};
use crate::types::{Partition, RangeId, Span, TopicId, WHOLE_RANGE};
use std::collections::BTreeMap;
use uuid::Uuid;

/// An entry's place in all that was ever appended.
type Record = (Spot, Partition);

struct Log {
    branch: Branch,
    /// Partition of each entry ever appended; [`WHOLE_RANGE`] are the range's own.
    entries: Vec<Partition>,
    /// Not even the stone is left.
    forgotten: bool,
}

/// A topic: all ranges that ever were, by id.
struct Topic {
    logs: Vec<Log>,
    /// What readers are told, as of the last step that changed it.
    lineage: Lineage,
}

struct Reader {
    places: Places,
    /// What was read and not missed, in the order of delivery.
    delivered: Vec<Record>,
    skips: Vec<Skip>,
    /// First record of each partition that it wants.
    wants: BTreeMap<Partition, Spot>,
    /// Takes in new partitions.
    whole: bool,
    saved: Saved,
}

/// What is left of a reader after a crash.
struct Saved {
    text: String,
    delivered: usize,
    skips: usize,
    wants: BTreeMap<Partition, Spot>,
}

/// What can go wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Failure {
    Lost,
    Doubled,
    Disorder,
    /// A skip of what was there, or of nothing.
    FalseSkip,
    NotTiled,
}

fn id(index: usize) -> RangeId {
    RangeId(index as u32)
}

impl Topic {
    fn new(partitions: i32) -> Topic {
        let mut topic = Topic { logs: Vec::new(), lineage: Lineage::default() };
        topic.add(Span { first: 0, last: partitions - 1 }, Vec::new());
        topic.tell();
        topic
    }

    fn add(&mut self, span: Span, parents: Vec<RangeId>) -> RangeId {
        let branch = Branch { span, start: 0, end: None, parents, children: Vec::new() };
        // The first entry is a checkpoint, as in every range, unless it is closed before it is complete.
        self.logs.push(Log { branch, entries: Vec::new(), forgotten: false });
        id(self.logs.len() - 1)
    }

    fn tell(&mut self) {
        let known = self.logs.iter().enumerate().filter(|(_, log)| !log.forgotten);
        self.lineage = known.map(|(index, log)| (id(index), log.branch.clone())).collect();
    }

    /// Open ranges in partition order.
    fn open(&self) -> Vec<usize> {
        let mut open: Vec<usize> =
            (0..self.logs.len()).filter(|i| self.logs[*i].branch.end.is_none()).collect();
        open.sort_by_key(|i| self.logs[*i].branch.span.first);
        open
    }

    fn tail(&self, range: RangeId) -> u64 {
        self.logs[range.0 as usize].entries.len() as u64
    }

    fn append(&mut self, rng: &mut Rng) {
        let open = self.open();
        let log = &mut self.logs[open[rng.below(open.len())]];
        for _ in 0..rng.below(6) {
            let span = log.branch.span;
            let partition = span.first + rng.below(span.count()) as i32;
            log.entries.push(if rng.chance(15) { WHOLE_RANGE } else { partition });
        }
    }

    fn close(&mut self, index: usize, children: Vec<RangeId>) {
        let log = &mut self.logs[index];
        log.branch.end = Some(log.entries.len() as u64);
        log.branch.children = children;
    }

    fn split(&mut self, rng: &mut Rng) {
        let open = self.open();
        let index = open[rng.below(open.len())];
        let span = self.logs[index].branch.span;
        if span.count() < 2 {
            return;
        }
        let at = span.first + 1 + rng.below(span.count() - 1) as i32;
        let left = self.add(Span { last: at - 1, ..span }, vec![id(index)]);
        let right = self.add(Span { first: at, ..span }, vec![id(index)]);
        self.close(index, vec![left, right]);
    }

    fn merge(&mut self, rng: &mut Rng) {
        let open = self.open();
        if open.len() < 2 {
            return;
        }
        let at = rng.below(open.len() - 1);
        let (left, right) = (open[at], open[at + 1]);
        let (a, b) = (self.logs[left].branch.span, self.logs[right].branch.span);
        let child = self.add(Span { first: a.first, last: b.last }, vec![id(left), id(right)]);
        self.close(left, vec![child]);
        self.close(right, vec![child]);
    }

    /// Some of the range's first entries go, all of them where it is closed.
    fn trim(&mut self, rng: &mut Rng) {
        let index = rng.below(self.logs.len());
        let log = &mut self.logs[index];
        let most = log.entries.len() as u64;
        let to = log.branch.start + rng.below((most - log.branch.start) as usize + 1) as u64;
        let all = log.branch.end.is_some() && rng.chance(60);
        log.branch.start = if all { most } else { to };
    }

    /// The stone of a dropped range goes too.
    fn forget(&mut self, rng: &mut Rng) {
        let index = rng.below(self.logs.len());
        let log = &mut self.logs[index];
        log.forgotten |= log.branch.dropped();
    }

    fn grow(&mut self, rng: &mut Rng) {
        let first = self.lineage.partitions().expect("has partitions").last + 1;
        self.add(Span { first, last: first + rng.below(3) as i32 }, Vec::new());
    }
}

fn keys() -> CursorKeys {
    CursorKeys::new(CursorKey { id: 1, secret: [7; 32] }, Vec::new())
}

const TOPIC: TopicId = TopicId(Uuid::from_u128(77));

fn text_of(places: &Places) -> Result<String, Failure> {
    if !places.tile() {
        return Err(Failure::NotTiled);
    }
    let cursor = Cursor { topic: TOPIC, scope: Scope::Topic(places.clone()) };
    Ok(keys().encode(&cursor).expect("few places"))
}

fn read_text(text: &str) -> Places {
    match keys().decode(text).expect("our own text") {
        Cursor { topic: TOPIC, scope: Scope::Topic(places) } => places,
        other => panic!("another cursor: {other:?}"),
    }
}

impl Reader {
    fn new(topic: &Topic, rng: &mut Rng) -> Reader {
        let lineage = &topic.lineage;
        let all = lineage.partitions().expect("has partitions");
        let whole = rng.chance(70);
        let first = rng.below(all.count()) as i32;
        let part = Span { first, last: first + rng.below(all.count() - first as usize) as i32 };
        let scope = if whole { all } else { part };
        let places = match rng.chance(70) {
            true => Places::earliest(lineage, scope),
            false => Places::latest(lineage, scope, |range| topic.tail(range)),
        };
        let places = places.expect("the topic has them");
        let of = |place: &Place| place.span.iter().map(|p| (p, place.spot)).collect::<Vec<_>>();
        let wants: BTreeMap<Partition, Spot> = places.as_slice().iter().flat_map(of).collect();
        assert!(wants.keys().copied().eq(scope.iter()), "a reader of all that it asked for");
        let text = text_of(&places).expect("a new reader's places tile");
        let saved = Saved { text, delivered: 0, skips: 0, wants: wants.clone() };
        Reader { places, delivered: Vec::new(), skips: Vec::new(), wants, whole, saved }
    }

    fn settle(&mut self, topic: &Topic) -> Result<(), Failure> {
        if self.whole {
            self.places.grow(&topic.lineage);
            for partition in self.places.scope().iter() {
                self.wants.entry(partition).or_insert(Spot { range: RangeId(0), address: 0 });
            }
        }
        let skips = self.places.settle(&topic.lineage);
        skips.iter().try_for_each(|skip| judge_skip(skip, topic))?;
        self.skips.extend(skips);
        Ok(())
    }

    /// Reads some of what can be read; returns whether there was anything.
    fn read(&mut self, topic: &Topic, rng: &mut Rng) -> bool {
        let end = |read: &Read| read.until.unwrap_or_else(|| topic.tail(read.from.range));
        let mut reads = self.places.reads(&topic.lineage);
        reads.retain(|read| read.from.address < end(read));
        if reads.is_empty() {
            return false;
        }
        let read = &reads[rng.below(reads.len())];
        let to = read.from.address + 1 + rng.below((end(read) - read.from.address) as usize) as u64;
        let log = &topic.logs[read.from.range.0 as usize];
        assert!(log.branch.start <= read.from.address, "a read of what is gone");
        for address in read.from.address..to {
            let partition = log.entries[address as usize];
            if read.takes(partition) {
                self.delivered.push((Spot { address, ..read.from }, partition));
            }
        }
        self.places.advance(read, to);
        true
    }

    fn save(&mut self) -> Result<(), Failure> {
        let text = text_of(&self.places)?;
        assert_eq!(read_text(&text), self.places);
        let (delivered, skips) = (self.delivered.len(), self.skips.len());
        self.saved = Saved { text, delivered, skips, wants: self.wants.clone() };
        Ok(())
    }

    fn crash(&mut self) {
        self.places = read_text(&self.saved.text);
        self.delivered.truncate(self.saved.delivered);
        self.skips.truncate(self.saved.skips);
        self.wants = self.saved.wants.clone();
    }

    /// After everything was read: what of it all was delivered, and what was missed?
    fn judge(&self, topic: &Topic) -> Result<(), Failure> {
        let mut times: BTreeMap<Record, usize> = BTreeMap::new();
        let mut last: BTreeMap<Partition, Spot> = BTreeMap::new();
        for (spot, partition) in &self.delivered {
            *times.entry((*spot, *partition)).or_default() += 1;
            if times[&(*spot, *partition)] > 1 {
                return Err(Failure::Doubled);
            }
            if last.insert(*partition, *spot).is_some_and(|before| *spot <= before) {
                return Err(Failure::Disorder);
            }
        }
        for (index, log) in topic.logs.iter().enumerate() {
            for (address, partition) in log.entries.iter().enumerate() {
                let spot = Spot { range: id(index), address: address as u64 };
                if self.wants.get(partition).is_some_and(|first| *first <= spot) {
                    let read = times.get(&(spot, *partition)).copied().unwrap_or_default();
                    let covers =
                        |skip: &&Skip| skip.span.contains(*partition) && skip.from <= spot && spot < skip.to;
                    match read + self.skips.iter().filter(covers).count() {
                        0 => return Err(Failure::Lost),
                        1 => {}
                        _ => return Err(Failure::FalseSkip),
                    }
                }
            }
        }
        Ok(())
    }
}

/// A skip is of addresses that there were and that are gone.
fn judge_skip(skip: &Skip, topic: &Topic) -> Result<(), Failure> {
    let log = |range: u32| &topic.logs[range as usize];
    let (from, to) = (skip.from, skip.to);
    if from.range == to.range {
        let gone = from.address < to.address && to.address <= log(from.range.0).branch.start;
        return if gone { Ok(()) } else { Err(Failure::FalseSkip) };
    }
    let of_these = |range: &u32| {
        let span = log(*range).branch.span;
        skip.span.first <= span.last && span.first <= skip.span.last
    };
    let mut between = (from.range.0..to.range.0).filter(of_these);
    let drained = log(from.range.0).branch.end.is_some_and(|end| end <= from.address);
    let gone = |range: u32| log(range).branch.dropped() || (range == from.range.0 && drained);
    let right = to.address == 0 && between.clone().all(gone) && between.any(|range| log(range).forgotten);
    if right { Ok(()) } else { Err(Failure::FalseSkip) }
}

/// How a run goes.
#[derive(Copy, Clone)]
struct Plan {
    steps: usize,
    partitions: usize,
    /// Percent of the steps that reshard.
    reshard: usize,
    /// Percent of the steps that trim or drop.
    trim: usize,
    /// Whether stones are forgotten.
    forget: bool,
    /// Whether cursors are written and readers die.
    crash: bool,
}

const USUAL: Plan = Plan { steps: 120, partitions: 9, reshard: 15, trim: 6, forget: false, crash: true };

fn run(seed: u64, plan: Plan) -> Result<usize, Failure> {
    let mut rng = Rng::new(seed);
    let mut topic = Topic::new(1 + rng.below(plan.partitions) as i32);
    let mut readers = vec![Reader::new(&topic, &mut rng)];
    for _ in 0..plan.steps {
        topic_step(&mut topic, plan, &mut rng);
        if readers.len() < 3 && rng.chance(3) {
            readers.push(Reader::new(&topic, &mut rng));
        }
        let at = rng.below(readers.len());
        reader_step(&mut readers[at], &topic, plan, &mut rng)?;
    }
    for reader in &mut readers {
        reader.settle(&topic)?;
        while reader.read(&topic, &mut rng) {
            reader.settle(&topic)?;
        }
        reader.judge(&topic)?;
    }
    Ok(readers.iter().map(|reader| reader.skips.len()).sum())
}

fn topic_step(topic: &mut Topic, plan: Plan, rng: &mut Rng) {
    let kind = rng.below(100);
    if kind < plan.reshard {
        if rng.chance(50) { topic.split(rng) } else { topic.merge(rng) }
    } else if kind < plan.reshard + plan.trim {
        topic.trim(rng);
        if plan.forget && rng.chance(40) {
            topic.forget(rng);
        }
    } else if kind == 99 {
        topic.grow(rng);
    } else {
        return topic.append(rng);
    }
    topic.tell();
}

fn reader_step(reader: &mut Reader, topic: &Topic, plan: Plan, rng: &mut Rng) -> Result<(), Failure> {
    match rng.below(10) {
        0 | 1 if plan.crash => reader.save(),
        2 if plan.crash => {
            reader.crash();
            Ok(())
        }
        _ => {
            reader.settle(topic)?;
            reader.read(topic, rng);
            Ok(())
        }
    }
}

/// Runs of which all must go well; returns how many skips were reported.
fn all_go_well(runs: u64, plan: Plan) -> usize {
    (0..runs).map(|seed| run(seed, plan).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))).sum()
}

#[test]
fn a_reader_gets_every_record_once_through_splits_and_merges() {
    let skips = all_go_well(1000, Plan { trim: 0, ..USUAL });
    assert_eq!(skips, 0, "nothing was trimmed");
}

#[test]
fn what_was_trimmed_or_dropped_before_it_was_read_is_reported_and_nothing_else() {
    let skips = all_go_well(1000, USUAL);
    assert!(skips > 1000, "trims met readers: {skips}");
}

#[test]
fn a_reader_walks_on_from_ranges_that_nobody_knows() {
    let skips = all_go_well(600, Plan { trim: 20, forget: true, ..USUAL });
    assert!(skips > 1000, "trims met readers: {skips}");
}

#[test]
fn a_reader_walks_through_deep_lineages() {
    all_go_well(8, Plan { steps: 600, reshard: 80, partitions: 40, ..USUAL });
    all_go_well(8, Plan { steps: 600, reshard: 60, trim: 30, partitions: 20, forget: true, ..USUAL });
}

/// A rule broken on purpose is found, as one of these failures, within some runs.
fn is_found(mutant: Mutant, plan: Plan, as_one_of: &[Failure]) {
    let found = (0..300).find_map(|seed| with_broken(Some(mutant), || run(seed, plan)).err());
    let found = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
    assert!(as_one_of.contains(&found), "{mutant:?} was found as {found:?}");
}

#[test]
fn every_rule_of_walking_broken_on_purpose_is_found() {
    let untrimmed = Plan { trim: 0, crash: false, ..USUAL };
    is_found(Mutant::WholeChildPerParent, untrimmed, &[Failure::Doubled, Failure::Disorder]);
    is_found(Mutant::WholeChildPerParent, USUAL, &[Failure::NotTiled, Failure::Doubled]);
    is_found(Mutant::FirstParentEnters, untrimmed, &[Failure::Lost]);
    is_found(Mutant::UnequalUnitedHigh, untrimmed, &[Failure::Lost]);
    is_found(Mutant::UnequalUnitedLow, untrimmed, &[Failure::Doubled]);
    is_found(Mutant::DroppedToLatest, USUAL, &[Failure::FalseSkip, Failure::Lost]);
    is_found(Mutant::SpanNotCut, untrimmed, &[Failure::Doubled, Failure::FalseSkip]);
    is_found(Mutant::SilentSkip, USUAL, &[Failure::Lost]);
}
