//! The slow twin: weighted slices as they are where nobody has a priority.

use std::collections::BTreeMap;

use fair_share::{Demand, Key, LEAST_PERCENT, Tuning};

/// Shares and lags.
#[derive(Default)]
pub(crate) struct Plain {
    tenants: BTreeMap<Key, (Option<f64>, f64)>,
}

impl Plain {
    pub(crate) fn set(&mut self, tenant: Key, share_percent: Option<f64>) {
        self.tenants.entry(tenant).or_default().0 = share_percent;
    }

    /// Demands are of all tenants, in order.
    pub(crate) fn period(&mut self, length_ns: u64, demands: &[Demand]) -> Vec<(Key, u64)> {
        let tuning = Tuning::default();
        let given: f64 = self.tenants.values().filter_map(|(share, _)| *share).fold(0.0, |sum, share| sum + share);
        let without = self.tenants.values().filter(|(share, _)| share.is_none()).count() as u32;
        let rest = ((100.0 - given) / f64::from(without.max(1))).max(LEAST_PERCENT);
        let (mut pool, mut weights) = (0.0, 0.0);
        for ((share, _), demand) in self.tenants.values().zip(demands).filter(|(_, demand)| demand.backlogged) {
            pool += demand.used_ns as f64;
            weights += share.unwrap_or(rest);
        }
        for ((share, lag), demand) in self.tenants.values_mut().zip(demands) {
            *lag = match demand.backlogged {
                true => {
                    let bound = tuning.lag_bound_ns as f64;
                    (*lag + pool * share.unwrap_or(rest) / weights - demand.used_ns as f64).clamp(-bound, bound)
                }
                false => (*lag * 0.9).min(0.0),
            };
        }
        let all: f64 = self.tenants.values().map(|(share, _)| share.unwrap_or(rest)).sum();
        let part = |(share, lag): &(Option<f64>, f64)| {
            let fair = share.unwrap_or(rest) / all;
            (fair + tuning.gain * lag / length_ns.max(1) as f64).clamp(fair / 4.0, fair * 4.0)
        };
        let least = self.tenants.values().map(part).fold(1.0, f64::min);
        let round = (tuning.round_ns as f64).max(tuning.least_slice_ns as f64 / least);
        let slice = |tenant| ((part(tenant) * round) as u64).clamp(tuning.least_slice_ns, tuning.most_slice_ns);
        self.tenants.iter().map(|(key, tenant)| (*key, slice(tenant))).collect()
    }
}
