//! Who waits, who works, and for whom each process is there.
//!
//! Processes are kept apart by owner: one that has worked for an owner works for no other. Turns and places are counted by
//! tenant, who may have many owners: else whoever opens more sessions than there are processes would have them all.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use ptx_jit::compiler::Helpers;

use crate::pool::Waiting;
use crate::queue::Queue;

/// Whom a process works for, from its first kernel on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) tenant: u64,
    pub(crate) owner: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    /// So many compilations are under way at once, and more only so that no tenant waits for another's.
    processors: usize,
    /// Most processes.
    most: usize,
    pub(crate) queue: Queue<Waiting>,
    /// Compilations under way, by tenant.
    running: HashMap<u64, usize>,
    helpers: Helpers,
    /// Processes that work or have worked for a tenant.
    held: HashMap<u64, usize>,
    /// Processes that have worked for an owner and wait for more of it.
    idle: HashMap<u64, usize>,
    /// Processes that have not worked yet.
    pub(crate) fresh: usize,
    /// Processes that were asked for and are not ready yet.
    pub(crate) expected: usize,
    /// All that live.
    pub(crate) processes: usize,
    /// No process is to stand ready before.
    pub(crate) not_before: Option<Instant>,
}

fn count(counts: &HashMap<u64, usize>, key: u64) -> usize {
    counts.get(&key).copied().unwrap_or(0)
}

fn decrement(counts: &mut HashMap<u64, usize>, key: u64) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl State {
    pub(crate) fn new(processors: usize) -> State {
        let processors = processors.max(1);
        State {
            processors,
            // Each tenant has one at least, up to some; and those that wait for owners they have worked for.
            most: (4 * processors).clamp(16, 64),
            queue: Queue::default(),
            running: HashMap::new(),
            helpers: Helpers::new(processors),
            held: HashMap::new(),
            idle: HashMap::new(),
            fresh: 0,
            expected: 0,
            processes: 0,
            not_before: None,
        }
    }

    /// Processes that there may be beside those that are or will be.
    pub(crate) fn room(&self) -> usize {
        self.most.saturating_sub(self.processes + self.expected)
    }

    /// Has a tenant as many processes as one may have?
    fn is_full(&self, tenant: u64) -> bool {
        count(&self.held, tenant) >= self.most / 2
    }

    /// Compilations of a tenant that may begin now, were there processes.
    fn may_run(&self, tenant: u64) -> usize {
        let free = self.processors.saturating_sub(self.running.values().sum());
        free.max(usize::from(count(&self.running, tenant) == 0))
    }

    /// What a process that has worked for `bound`, or for nobody, is to do next, and on how many threads: that is in the
    /// request.
    pub(crate) fn take(&mut self, bound: Option<Bound>) -> Option<Waiting> {
        let mut queue = std::mem::take(&mut self.queue);
        let mut taken = queue.pop(|tenant, waiting| {
            if self.may_run(tenant) == 0 {
                return None;
            }
            let mut things = waiting.iter().map(|waiting| waiting.request.owner);
            match bound {
                // Those who know the module come first.
                None => (!self.is_full(tenant)).then(|| things.position(|owner| !self.idle.contains_key(&owner)))?,
                Some(bound) if bound.tenant == tenant => {
                    // What came earlier is not overtaken for ever: another process is there for it, or soon.
                    let held_back = self.fresh + self.expected > 0 && !self.is_full(tenant);
                    let stops = |owner| owner == bound.owner || held_back && !self.idle.contains_key(&owner);
                    let at = things.position(stops)?;
                    (waiting.get(at)?.request.owner == bound.owner).then_some(at)
                }
                Some(_) => None,
            }
        });
        self.queue = queue;
        if let Some(waiting) = &mut taken {
            let tenant = waiting.request.tenant;
            *self.running.entry(tenant).or_default() += 1;
            if bound.is_none() {
                *self.held.entry(tenant).or_default() += 1;
            }
            let compilations = self.running.values().sum::<usize>() + self.queue.len();
            let threads = &mut waiting.request.bounds.threads;
            *threads = self.helpers.begin(*threads, compilations);
        }
        taken
    }

    /// A compilation has ended, which was on so many threads.
    pub(crate) fn ended(&mut self, tenant: u64, threads: usize) {
        decrement(&mut self.running, tenant);
        self.helpers.end(threads);
    }

    /// A process that worked for a tenant does so no more.
    pub(crate) fn unbound(&mut self, tenant: u64) {
        decrement(&mut self.held, tenant);
    }

    /// A process waits for more of its owner.
    pub(crate) fn rests(&mut self, bound: Bound) {
        *self.idle.entry(bound.owner).or_default() += 1;
    }

    /// It does no more.
    pub(crate) fn rises(&mut self, bound: Bound) {
        decrement(&mut self.idle, bound.owner);
    }

    pub(crate) fn is_waited_for(&self, bound: Bound) -> bool {
        self.queue.of(bound.tenant).any(|waiting| waiting.request.owner == bound.owner)
    }

    /// Owners that wait for a process, and none of theirs is idle; with their tenants, who may have something begun.
    fn unserved(&self) -> HashSet<(u64, u64)> {
        let tenants = self.queue.tenants().filter(|&(tenant, _)| self.may_run(tenant) > 0);
        let owners =
            tenants.flat_map(|(tenant, queue)| queue.iter().map(move |waiting| (tenant, waiting.request.owner)));
        owners.filter(|(_, owner)| !self.idle.contains_key(owner)).collect()
    }

    /// Processes that could begin something at once.
    pub(crate) fn wanting(&self) -> usize {
        let mut wanting: HashMap<u64, usize> = HashMap::new();
        for (tenant, _) in self.unserved() {
            *wanting.entry(tenant).or_default() += 1;
        }
        let places = |tenant| (self.most / 2).saturating_sub(count(&self.held, tenant)).min(self.may_run(tenant));
        wanting.into_iter().map(|(tenant, owners)| owners.min(places(tenant))).sum()
    }

    /// Is a process that does nothing just now to make room for another?
    pub(crate) fn is_to_go(&self, bound: Bound) -> bool {
        let unserved = self.unserved();
        let mut others = unserved.iter().filter(|(_, owner)| *owner != bound.owner);
        let held = |tenant| count(&self.held, tenant);
        if self.is_full(bound.tenant) && others.clone().any(|&(tenant, _)| tenant == bound.tenant) {
            return true;
        }
        if self.room() > 0 || self.wanting() <= self.fresh + self.expected {
            return false;
        }
        let waited_for = self.is_waited_for(bound);
        others.any(|&(tenant, _)| {
            // One that has work goes only for a tenant that has fewer, or for its own tenant's others.
            let poorer = tenant == bound.tenant || held(tenant) == 0 || held(tenant) + 1 < held(bound.tenant);
            !self.is_full(tenant) && (!waited_for || poorer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ptx_jit::EngineKind;
    use ptx_jit::compiler::{Bounds, Request, Source};

    use super::*;

    fn queue(state: &mut State, tenant: u64, owner: u64) {
        queue_for(state, tenant, owner, 1);
    }

    fn queue_for(state: &mut State, tenant: u64, owner: u64, threads: usize) {
        let source = Arc::new(Source { id: 1, text: "".into(), symbols: HashMap::new() });
        let bounds = Bounds { memory_bytes: 1, time: std::time::Duration::ZERO, threads };
        let (entry, block, stack_bytes, engine) = ("k".to_owned(), [1; 3], 0, EngineKind::Jit);
        let request = Request { tenant, owner, source, entry, block, stack_bytes, engine, bounds };
        let (flight, done) = (Arc::default(), Box::new(|_| ()));
        state.queue.push(tenant, Waiting { flight, request, done, fallback: None, gone: 0 });
    }

    fn taken(state: &mut State, bound: Option<Bound>) -> Option<Bound> {
        let waiting = state.take(bound)?;
        Some(Bound { tenant: waiting.request.tenant, owner: waiting.request.owner })
    }

    #[test]
    fn a_tenant_of_many_owners_leaves_processes_to_others() {
        let mut state = State::new(16);
        state.most = 16;
        state.processes = 16;
        for owner in 0..32 {
            queue(&mut state, 1, 100 + owner);
            queue(&mut state, 1, 100 + owner);
        }
        let held: Vec<Bound> = std::iter::from_fn(|| taken(&mut state, None)).collect();
        assert_eq!(held.len(), 8, "half of all");
        // Another tenant has the other half, so that nothing is left for a third.
        for owner in 0..9 {
            queue(&mut state, 2, 200 + owner);
        }
        let theirs: Vec<Bound> = std::iter::from_fn(|| taken(&mut state, None)).collect();
        assert_eq!(theirs.len(), 8);
        state.ended(2, 1);
        assert!(state.is_to_go(theirs[0]), "one of its own owners has none");
        queue(&mut state, 3, 300);
        queue(&mut state, 1, held[0].owner);
        state.ended(1, 1);
        assert!(state.is_waited_for(held[0]) && state.is_to_go(held[0]), "it goes though its owner has more");
        state.unbound(1);
        state.processes -= 1;
        state.expected += 1;
        assert!(state.wanting() > 0);
        (state.expected, state.processes) = (0, 16);
        assert_eq!(taken(&mut state, None).map(|bound| bound.tenant), Some(1), "its turn came first");
        assert_eq!(taken(&mut state, None), Some(Bound { tenant: 3, owner: 300 }), "and it has no more than half");
    }

    #[test]
    fn an_owner_does_not_overtake_its_tenants_others_for_ever() {
        let mut state = State::new(1);
        state.processes = 2;
        for owner in [10, 20, 10] {
            queue(&mut state, 1, owner);
        }
        let bound = taken(&mut state, None);
        assert_eq!(bound, Some(Bound { tenant: 1, owner: 10 }));
        state.ended(1, 1);
        state.fresh = 1;
        assert!(state.take(bound).is_none(), "20 came before, and a process is there for it");
        state.fresh = 0;
        assert_eq!(taken(&mut state, bound), bound, "with none to come, it goes on");
    }

    #[test]
    fn threads_are_for_processors_that_nobody_uses_or_waits_for() {
        let mut state = State::new(8);
        let begin = |state: &mut State, bound| state.take(bound).map(|waiting| waiting.request.bounds.threads);
        for owner in [1, 2, 3] {
            queue_for(&mut state, owner, owner, 4);
        }
        assert_eq!(begin(&mut state, None), Some(4), "it may have no more");
        assert_eq!(begin(&mut state, None), Some(3), "of the four that are left one is for who waits");
        assert_eq!(begin(&mut state, None), Some(1), "that one");
        for owner in [4, 5] {
            queue_for(&mut state, owner, owner, 4);
            assert_eq!(begin(&mut state, None), Some(1), "each tenant begins something at once");
        }
        let first = Some(Bound { tenant: 1, owner: 1 });
        for (owner, threads) in [(1, 4), (2, 3), (4, 1)] {
            state.ended(owner, threads);
        }
        queue_for(&mut state, 1, 1, 100);
        assert_eq!(begin(&mut state, first), Some(6), "two are others'");
        for (owner, threads) in [(1, 6), (3, 1), (5, 1)] {
            state.ended(owner, threads);
        }
        assert_eq!(state.helpers, Helpers::new(8));
        queue_for(&mut state, 1, 1, 0);
        assert_eq!(begin(&mut state, first), Some(1), "there is always one");
    }
}
