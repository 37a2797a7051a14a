//! A GPU that runs one command at a time, in virtual time, and tenants who submit to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fair_share::{Key, Next, Turns};

/// What a tenant does: it submits a command, and the next one some time after one has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Length of a command, ns.
    pub(crate) length_ns: u64,
    /// From a command's end to the next's submission, ns.
    pub(crate) gap_ns: u64,
    /// Commands that it has submitted at any time.
    pub(crate) depth: u64,
}

/// What a tenant has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Had {
    pub(crate) used_ns: u64,
    pub(crate) commands: u64,
    /// Longest that a command of it waited.
    pub(crate) waited_ns: u64,
}

/// Tenants, policy and GPU.
#[derive(Debug)]
pub(crate) struct Simulator {
    pub(crate) turns: Turns,
    pub(crate) now: u64,
    pub(crate) had: BTreeMap<Key, Had>,
    /// Time in which somebody had a command and none ran.
    pub(crate) wasted_ns: u64,
    /// The longest such time.
    pub(crate) longest_waste_ns: u64,
    /// Those who are active.
    loads: BTreeMap<Key, Load>,
    arrivals: BinaryHeap<Reverse<(u64, Key)>>,
    /// Since when a tenant's oldest command waits.
    waiting: BTreeMap<Key, u64>,
}

impl Simulator {
    pub(crate) fn new(turns: Turns) -> Simulator {
        Simulator {
            turns,
            now: 0,
            had: BTreeMap::new(),
            wasted_ns: 0,
            longest_waste_ns: 0,
            loads: BTreeMap::new(),
            arrivals: BinaryHeap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// A tenant begins to submit.
    pub(crate) fn begin(&mut self, tenant: Key, load: Load) {
        if self.loads.insert(tenant, load).is_none() {
            let missing = load.depth.saturating_sub(self.turns.commands(tenant));
            (0..missing).for_each(|_| self.arrivals.push(Reverse((self.now, tenant))));
        }
    }

    /// A tenant submits nothing more.
    pub(crate) fn end(&mut self, tenant: Key) {
        self.loads.remove(&tenant);
    }

    /// A tenant leaves.
    pub(crate) fn leave(&mut self, tenant: Key) {
        self.end(tenant);
        self.waiting.remove(&tenant);
        self.turns.remove(tenant);
    }

    fn arrive(&mut self, until: u64) {
        while let Some(&Reverse((at, tenant))) = self.arrivals.peek()
            && at <= until
        {
            self.arrivals.pop();
            if self.loads.contains_key(&tenant) {
                self.turns.submitted(tenant, 1, at);
                self.waiting.entry(tenant).or_insert(at);
            }
        }
    }

    /// Runs for some time; a command that is on the GPU then is finished.
    pub(crate) fn run(&mut self, length_ns: u64) {
        let end = self.now + length_ns;
        let mut lengths: BTreeMap<Key, u64> = BTreeMap::new();
        while self.now < end {
            self.arrive(self.now);
            match self.turns.next(self.now) {
                Next::Run(tenant) => {
                    if let Some(load) = self.loads.get(&tenant) {
                        lengths.insert(tenant, load.length_ns);
                    }
                    // Of one that submits nothing more, what is left.
                    let length = lengths.get(&tenant).copied().unwrap_or(1000);
                    self.execute(tenant, length);
                }
                Next::At(until) => {
                    let next = self.arrivals.peek().map_or(until, |Reverse((at, _))| until.min(*at));
                    self.wasted_ns += next - self.now;
                    self.longest_waste_ns = self.longest_waste_ns.max(next - self.now);
                    self.now = next;
                }
                Next::Later => {
                    let wanted: u64 = self.loads.keys().map(|tenant| self.turns.commands(*tenant)).sum();
                    assert_eq!(wanted, 0, "somebody has a command, and none runs");
                    self.now = self.arrivals.peek().map_or(end, |Reverse((at, _))| end.min(*at));
                }
            }
        }
    }

    fn execute(&mut self, tenant: Key, length_ns: u64) {
        let had = self.had.entry(tenant).or_default();
        let since = self.waiting.remove(&tenant).unwrap_or(self.now);
        had.waited_ns = had.waited_ns.max(self.now - since);
        had.used_ns += length_ns;
        had.commands += 1;
        self.now += length_ns;
        self.arrive(self.now);
        self.turns.completed(tenant, 1, length_ns, self.now);
        if self.turns.commands(tenant) > 0 {
            self.waiting.insert(tenant, self.now);
        }
        if let Some(load) = self.loads.get(&tenant) {
            self.arrivals.push(Reverse((self.now + load.gap_ns, tenant)));
        }
    }
}
