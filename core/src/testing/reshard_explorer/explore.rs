//! The search: breadth first, so that the first trace found is a shortest one.

use super::Scope;
use super::steps::Step;
use super::world::World;
use crate::testing::rng::Rng;
use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a run ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All states were seen.
    Holds { states: usize, steps: usize },
    /// A rule was broken; the steps that lead there.
    Broken { rule: String, trace: Vec<String>, states: usize },
    /// Too many states; none of those seen breaks a rule.
    Capped { states: usize, depth: usize },
}

/// What becomes of worlds that were looked at: with a broken rule, to drop one may assert.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Discard {
    Drop,
    Leak,
}

/// Goes one way of very many, up to `steps` deep; how many steps that was, or the rule that broke and what led there.
pub(super) fn walk(scope: Scope, seed: u64, steps: usize) -> Result<usize, (String, Vec<String>)> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(&scope);
    let mut trace = Vec::new();
    while trace.len() < steps {
        let mut possible = world.steps(&scope);
        let next = loop {
            if possible.is_empty() {
                return Ok(trace.len());
            }
            let step = possible.swap_remove(rng.below(possible.len()));
            match catch_unwind(AssertUnwindSafe(|| world.after(step, &scope))) {
                Ok(Some(next)) => {
                    trace.push(format!("{step:?}"));
                    break next;
                }
                Ok(None) => {}
                Err(panic) => {
                    trace.push(format!("{step:?}"));
                    return Err((format!("asserted: {}", message(&*panic)), trace));
                }
            }
        };
        if let Some(rule) = next.broken_rule() {
            return Err((rule, trace));
        }
        world = next;
    }
    Ok(steps)
}

/// Explores all interleavings.
pub(super) fn explore(scope: Scope, discard: Discard) -> Outcome {
    let first = World::new(&scope);
    let mut graph = Graph::default();
    graph.states.insert(first.key(), 0);
    graph.origins.push((0, None));
    graph.finished.push(first.finished());
    let mut queue = VecDeque::from([(0u32, ManuallyDrop::new(first))]);
    while let Some((number, world)) = queue.pop_front() {
        for step in world.steps(&scope) {
            // What the code asserts is a rule too.
            let made = catch_unwind(AssertUnwindSafe(|| world.after(step, &scope)));
            let next = match made {
                Ok(Some(next)) => next,
                Ok(None) => continue,
                Err(panic) => {
                    graph.origins.push((number, Some(step)));
                    return graph.broken(format!("asserted: {}", message(&*panic)), graph.origins.len() - 1);
                }
            };
            let key = next.key();
            let next = ManuallyDrop::new(next);
            if let Some(known) = graph.states.get(&key) {
                graph.edges.push((number, *known));
                discard.done(next);
                continue;
            }
            let at = graph.origins.len();
            graph.states.insert(key, at as u32);
            graph.edges.push((number, at as u32));
            graph.origins.push((number, Some(step)));
            graph.finished.push(next.finished());
            if let Some(rule) = next.broken_rule() {
                return graph.broken(rule, at);
            }
            if at + 1 >= scope.states_max {
                return Outcome::Capped { states: at + 1, depth: graph.trace(at).len() };
            }
            queue.push_back((at as u32, next));
        }
        discard.done(world);
    }
    match graph.stuck() {
        Some(at) => graph.broken("stuck: it can never be finished from here".to_owned(), at),
        None => Outcome::Holds { states: graph.origins.len(), steps: graph.edges.len() },
    }
}

impl Discard {
    fn done(self, world: ManuallyDrop<World>) {
        if self == Discard::Drop {
            drop(ManuallyDrop::into_inner(world));
        }
    }
}

#[derive(Default)]
struct Graph {
    states: HashMap<u64, u32>,
    /// Parent and step of every state.
    origins: Vec<(u32, Option<Step>)>,
    edges: Vec<(u32, u32)>,
    finished: Vec<bool>,
}

impl Graph {
    fn trace(&self, mut at: usize) -> Vec<String> {
        let mut steps = Vec::new();
        while let Some((parent, Some(step))) = self.origins.get(at) {
            steps.push(format!("{step:?}"));
            at = *parent as usize;
        }
        steps.reverse();
        steps
    }

    fn broken(&self, rule: String, at: usize) -> Outcome {
        Outcome::Broken { rule, trace: self.trace(at), states: self.origins.len() }
    }

    /// The first state from which no finished one is reached.
    fn stuck(&self) -> Option<usize> {
        let mut edges = self.edges.clone();
        edges.sort_unstable_by_key(|(_, to)| *to);
        let mut can = self.finished.clone();
        let mut ahead: Vec<u32> = (0..can.len()).filter(|at| can[*at]).map(|at| at as u32).collect();
        while let Some(at) = ahead.pop() {
            let from = edges.partition_point(|(_, to)| *to < at);
            for (before, _) in edges[from..].iter().take_while(|(_, to)| *to == at) {
                if !std::mem::replace(&mut can[*before as usize], true) {
                    ahead.push(*before);
                }
            }
        }
        can.iter().position(|can| !can)
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
