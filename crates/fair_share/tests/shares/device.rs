//! A GPU that gives slices in turn, imperfectly.

use std::collections::BTreeMap;

use fair_share::{Demand, FairShare, Key};

/// How a tenant behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Part of the time in which it wants the GPU, in whole periods.
    pub(crate) busy: bool,
    /// It gets this much more, or less, than its slice: what a device does that cannot stop work exactly.
    pub(crate) error: f64,
    /// Work that cannot be interrupted, ns: its turn ends at a multiple; what it overran is deducted from the next turn.
    pub(crate) grain_ns: u64,
    /// Part of the looks that find it between two kernels: it has work again at once, but none just then.
    pub(crate) between: f64,
    /// Most that it wants of a period, ns: then it has no work until the next.
    pub(crate) use_ns: u64,
}

/// The device: turns in order, by slices.
#[derive(Debug, Default)]
pub(crate) struct Device {
    slices: BTreeMap<Key, u64>,
    overrun: BTreeMap<Key, i64>,
    next: Key,
    looks: u64,
    pub(crate) used: BTreeMap<Key, u64>,
}

impl Device {
    pub(crate) fn program(&mut self, slices: Vec<(Key, u64)>) {
        self.slices = slices.into_iter().collect();
    }

    /// Runs for about `length_ns`; what each used.
    pub(crate) fn run(&mut self, length_ns: u64, loads: &BTreeMap<Key, Load>) -> Vec<Demand> {
        let mut used: BTreeMap<Key, u64> = BTreeMap::new();
        let busy: Vec<Key> = loads.iter().filter(|(_, load)| load.busy).map(|(&key, _)| key).collect();
        let mut clock = 0;
        while clock < length_ns && !busy.is_empty() {
            let wants = |key: &Key| used.get(key).copied().unwrap_or(0) < loads[key].use_ns;
            let mut want = busy.iter().copied().filter(wants);
            let Some(first) = want.next() else { break };
            let key = if first >= self.next { first } else { want.find(|&key| key >= self.next).unwrap_or(first) };
            self.next = key + 1;
            let load = loads[&key];
            let slice = self.slices.get(&key).copied().unwrap_or(1_000_000) as f64 * (1.0 + load.error);
            let left = load.use_ns - used.get(&key).copied().unwrap_or(0);
            let slice = slice.min(left as f64);
            let due = slice as i64 - self.overrun.get(&key).copied().unwrap_or(0);
            let ran = if due <= 0 { 0 } else { (due as u64).next_multiple_of(load.grain_ns) };
            self.overrun.insert(key, ran as i64 - due);
            clock += ran.max(1000);
            *used.entry(key).or_default() += ran;
        }
        for (key, ns) in &used {
            *self.used.entry(*key).or_default() += ns;
        }
        self.looks += 1;
        // Spread evenly, and in no step with anything else.
        let chance = |tenant: Key| (self.looks as f64 * 0.618_034 + tenant as f64 * 0.414_214).fract();
        loads
            .iter()
            .map(|(&tenant, load)| Demand {
                tenant,
                used_ns: used.get(&tenant).copied().unwrap_or(0),
                backlogged: load.busy
                    && chance(tenant) >= load.between
                    && used.get(&tenant).copied().unwrap_or(0) < load.use_ns,
            })
            .collect()
    }
}

pub(crate) const PERIOD: u64 = 20_000_000;

/// Runs policy and device together.
pub(crate) fn run(policy: &mut FairShare, device: &mut Device, loads: &BTreeMap<Key, Load>, total_ns: u64) {
    let mut clock = 0;
    while clock < total_ns {
        let demands = device.run(PERIOD, loads);
        let length = demands.iter().map(|demand| demand.used_ns).sum::<u64>().max(PERIOD);
        clock += length;
        device.program(policy.period(length, &demands));
    }
}
