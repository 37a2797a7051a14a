//! Weighted slices, for a device that can preempt: what each was entitled to, what it got, and slices corrected by the
//! difference.

use std::collections::{BTreeMap, VecDeque};

use crate::weights::{Claim, Wanting, divide, rest};
use crate::{Key, Priority};

/// Settings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Aim for the time in which everybody has had a turn, ns.
    pub round_ns: u64,
    /// Shortest slice that the device can keep, ns.
    pub least_slice_ns: u64,
    /// Longest slice: bounds how long others wait, ns.
    pub most_slice_ns: u64,
    /// Largest lag, ns of GPU time.
    pub lag_bound_ns: u64,
    /// How much of the lag one period should make good, at most.
    pub gain: f64,
    /// Span of the window of [`Standing::received_percent`], ns.
    pub window_ns: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            round_ns: 6_000_000,
            least_slice_ns: 200_000,
            most_slice_ns: 20_000_000,
            lag_bound_ns: 200_000_000,
            gain: 0.25,
            window_ns: 1_000_000_000,
        }
    }
}

/// What a tenant did in a period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Who.
    pub tenant: Key,
    /// GPU time used, ns.
    pub used_ns: u64,
    /// Whether it had work waiting all the while.
    pub backlogged: bool,
}

/// What a tenant is entitled to, and what it got.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Standing {
    /// Share while everybody wants time, percent.
    pub entitled_percent: f64,
    /// Part of the last window's wall time, percent.
    pub received_percent: f64,
    /// GPU time ever used, ns.
    pub used_ns: u64,
}

#[derive(Debug)]
struct Tenant {
    claim: Claim,
    /// Positive: it is owed time. Invariant: within `lag_bound_ns`.
    lag_ns: f64,
    used_ns: u64,
    /// Use in the periods of the window.
    window: VecDeque<u64>,
    window_ns: u64,
}

/// The policy and its books.
#[derive(Debug)]
pub struct FairShare {
    tuning: Tuning,
    tenants: BTreeMap<Key, Tenant>,
    /// Lengths of the periods of the window.
    periods: VecDeque<u64>,
    periods_ns: u64,
}

impl FairShare {
    /// Nobody shares yet.
    #[must_use]
    pub fn new(tuning: Tuning) -> FairShare {
        FairShare { tuning, tenants: BTreeMap::new(), periods: VecDeque::new(), periods_ns: 0 }
    }

    /// A tenant arrives, or its share changes. Shares are above 0; who admits tenants keeps their sum below 100 %.
    pub fn set(&mut self, tenant: Key, share_percent: Option<f64>) {
        let periods = self.periods.len();
        self.tenants
            .entry(tenant)
            .or_insert_with(|| Tenant {
                claim: Claim { share_percent, priority: Priority::default() },
                lag_ns: 0.0,
                used_ns: 0,
                window: std::iter::repeat_n(0, periods).collect(),
                window_ns: 0,
            })
            .claim
            .share_percent = share_percent;
    }

    /// A tenant that is there has another priority from now on.
    pub fn prioritize(&mut self, tenant: Key, priority: Priority) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.claim.priority = priority;
        }
    }

    /// A tenant leaves.
    pub fn remove(&mut self, tenant: Key) {
        self.tenants.remove(&tenant);
    }

    /// Those that want time at once.
    fn wanting(&self, wants: impl Fn(&Key) -> bool) -> Wanting {
        let rest = rest(self.tenants.values().map(|tenant| tenant.claim.share_percent));
        let want = self.tenants.iter().filter(|(key, _)| wants(key));
        Wanting::new(rest, want.map(|(_, tenant)| tenant.claim))
    }

    /// What tenants that want time weigh in a period: what they would if all of them had work all the while, but those who had divide
    /// theirs as if the others wanted no more than they used. Who polls, and goes before others, takes nothing from those behind
    /// him but what he uses.
    fn weights(&self, length_ns: u64, wants: impl Fn(&Key) -> Option<Demand>) -> BTreeMap<Key, f64> {
        let wanting = self.wanting(|key| wants(key).is_some());
        let in_full = |(key, tenant): (&Key, &Tenant)| Some((wants(key)?, tenant.claim));
        let demands: Vec<(Demand, Claim)> = self.tenants.iter().filter_map(in_full).collect();
        let mut weights: BTreeMap<Key, f64> =
            demands.iter().map(|(demand, claim)| (demand.tenant, wanting.weight(*claim))).collect();
        if wanting.are_of_one_class() {
            return weights;
        }
        let bounded: Vec<(Claim, f64)> = demands
            .iter()
            .map(|(demand, claim)| {
                let used = 100.0 * demand.used_ns as f64 / length_ns.max(1) as f64;
                (*claim, if demand.backlogged { f64::INFINITY } else { used })
            })
            .collect();
        let rest = rest(self.tenants.values().map(|tenant| tenant.claim.share_percent));
        let divided = divide(rest, &bounded);
        let busy = || demands.iter().zip(&divided).filter(|((demand, _), _)| demand.backlogged);
        let in_full: f64 = busy().map(|((_, claim), _)| wanting.weight(*claim)).sum();
        let together: f64 = busy().map(|(_, part)| part).sum();
        for ((demand, _), part) in busy() {
            weights.insert(demand.tenant, in_full * part / together);
        }
        weights
    }

    /// What a tenant is entitled to, and what it got.
    #[must_use]
    pub fn standing(&self, tenant: Key) -> Option<Standing> {
        let found = self.tenants.get(&tenant)?;
        Some(Standing {
            entitled_percent: self.wanting(|_| true).weight(found.claim),
            received_percent: 100.0 * found.window_ns as f64 / self.periods_ns.max(1) as f64,
            used_ns: found.used_ns,
        })
    }

    /// A period of `length_ns` has passed. Returns the slice for each tenant, ns, for the time to come.
    ///
    /// Who is not mentioned used nothing and wanted nothing.
    pub fn period(&mut self, length_ns: u64, demands: &[Demand]) -> Vec<(Key, u64)> {
        let demand: BTreeMap<Key, Demand> = demands.iter().map(|demand| (demand.tenant, *demand)).collect();
        let known =
            |key: &Key| demand.get(key).copied().unwrap_or(Demand { tenant: *key, used_ns: 0, backlogged: false });

        // Whoever waits for each of its kernels is often found between two of them, and wants the next at once.
        let wants = |key: &Key| Some(known(key)).filter(|demand| demand.backlogged || demand.used_ns > 0);
        let weights = self.weights(length_ns, wants);

        // Those who wanted no more are content with what they had; the others divide what remains.
        let (mut pool, mut whole) = (0.0, 0.0);
        for (key, weight) in weights.iter().filter(|(key, _)| known(key).backlogged) {
            pool += known(key).used_ns as f64;
            whole += weight;
        }
        let bound = self.tuning.lag_bound_ns as f64;
        for (key, tenant) in &mut self.tenants {
            let Demand { used_ns, backlogged, .. } = known(key);
            if backlogged {
                let entitled = pool * weights.get(key).copied().unwrap_or(0.0) / whole;
                tenant.lag_ns = (tenant.lag_ns + entitled - used_ns as f64).clamp(-bound, bound);
            } else {
                // No credit for idling; a debt fades.
                tenant.lag_ns = (tenant.lag_ns * 0.9).min(0.0);
            }
            tenant.used_ns += used_ns;
            tenant.window.push_back(used_ns);
            tenant.window_ns += used_ns;
        }
        self.remember(length_ns);
        self.slices(length_ns, &weights)
    }

    fn remember(&mut self, length_ns: u64) {
        self.periods.push_back(length_ns);
        self.periods_ns += length_ns;
        while self.periods_ns > self.tuning.window_ns && self.periods.len() > 1 {
            self.periods_ns -= self.periods.pop_front().unwrap_or(0);
            for tenant in self.tenants.values_mut() {
                tenant.window_ns -= tenant.window.pop_front().unwrap_or(0);
            }
        }
    }

    /// Slices in proportion to the weights of those who want time, corrected by lag.
    fn slices(&self, length_ns: u64, weights: &BTreeMap<Key, f64>) -> Vec<(Key, u64)> {
        let Tuning { round_ns, least_slice_ns, most_slice_ns, gain, .. } = self.tuning;
        let wanting = self.wanting(|key| weights.contains_key(key));
        let corrected = |tenant: &Tenant, fair: f64| {
            // At most four times more, or less, than fair: correction must not become oscillation.
            let owed = gain * tenant.lag_ns / length_ns.max(1) as f64;
            (fair + owed).clamp(fair / 4.0, fair * 4.0)
        };
        // Rounded down to whole nanoseconds, between bounds that are whole.
        let slice = |ns: f64| (ns as u64).clamp(least_slice_ns, most_slice_ns);

        // Who wants nothing has a place in the round, too, as long as nobody goes before anybody.
        let equals = wanting.are_of_one_class();
        let weight = |key: &Key, tenant: &Tenant| match weights.get(key) {
            Some(weight) => Some(*weight),
            None => equals.then(|| wanting.weight(tenant.claim)),
        };
        let in_round = || self.tenants.iter().filter_map(|(key, tenant)| Some((tenant, weight(key, tenant)?)));
        let all: f64 = in_round().map(|(_, weight)| weight).sum();
        // The smallest part still gets a slice that the device can keep.
        let least = in_round().map(|(tenant, weight)| corrected(tenant, weight / all)).fold(1.0, f64::min);
        let round = (round_ns as f64).max(least_slice_ns as f64 / least);
        let planned = |tenant: &Tenant, weight: f64| slice(corrected(tenant, weight / all) * round);
        let there = |(key, tenant): (&Key, &Tenant)| Some(planned(tenant, *weights.get(key)?));
        let taken: u64 = self.tenants.iter().filter_map(there).sum();
        let slice_of = |(key, tenant): (&Key, &Tenant)| {
            let joined = wanting.with(tenant.claim);
            if let Some(weight) = weight(key, tenant)
                && (weights.contains_key(key) || joined.are_of_one_class())
            {
                return (*key, planned(tenant, weight));
            }
            // When it wakes, it has its part at once, beside slices that know nothing of it yet.
            let part = corrected(tenant, joined.weight(tenant.claim) / joined.whole());
            (*key, slice(taken as f64 * part / (1.0 - part)))
        };
        self.tenants.iter().map(slice_of).collect()
    }
}
