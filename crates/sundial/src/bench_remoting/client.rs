//! A process that is measured, and what was counted of it: by its library, by the daemon, by the system.

use std::ops::Sub;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::admin::SessionLine;
use crate::bench::median;
use crate::stage::Stage;

/// What was counted of one process; what nobody counts is none.
#[derive(Clone, Copy, Default, Debug, PartialEq, Serialize)]
pub(super) struct Counts {
    /// Calls of the driver API.
    pub(super) calls: Option<f64>,
    /// Answers that were waited for.
    pub(super) round_trips: Option<f64>,
    /// Processor time of the process; natively the GPU's threads are among its own.
    pub(super) cpu_ms: Option<f64>,
    /// Time that it had of the GPU, as the daemon meters it.
    pub(super) gpu_ms: Option<f64>,
    /// Time in its library: copying, and waiting for answers or for the GPU.
    pub(super) copy_ms: Option<f64>,
    pub(super) wait_ms: Option<f64>,
}

impl Counts {
    /// What was counted until now of each of some processes: a tenant's name, none of one straight on the GPU, and its number.
    /// The daemon reads what it tells when it is asked: of the sessions' shared memory, and of the device.
    pub(super) fn of<'a>(
        stage: &Stage,
        processes: impl IntoIterator<Item = (Option<&'a str>, u32)>,
    ) -> Result<Vec<Counts>> {
        let mut told = None;
        let mut all = Vec::new();
        for (tenant, pid) in processes {
            let mut counts = Counts { cpu_ms: cpu_ms(pid), ..Counts::default() };
            if let Some(tenant) = tenant {
                let (listing, report) = match &mut told {
                    Some(told) => told,
                    none => none.insert((stage.listing()?, stage.usage()?)),
                };
                let lines = || listing.sessions.iter().filter(|line| line.tenant == tenant);
                lines().next().with_context(|| format!("{tenant} has no session any more"))?;
                let sum = |of: &dyn Fn(&SessionLine) -> f64| Some(lines().map(of).sum::<f64>());
                counts.calls = sum(&|line| (line.calls_local + line.calls_sent) as f64);
                counts.round_trips = sum(&|line| line.round_trips as f64);
                counts.copy_ms = sum(&|line| line.copy_seconds * 1e3);
                counts.wait_ms = sum(&|line| line.wait_seconds * 1e3);
                // Who has had nothing yet has no line there.
                let used = report.tenants.iter().filter(|used| used.tenant == tenant);
                counts.gpu_ms = Some(used.map(|used| used.gpu_seconds * 1e3).sum());
            }
            all.push(counts);
        }
        Ok(all)
    }

    fn all(&self) -> [Option<f64>; 6] {
        let Counts { calls, round_trips, cpu_ms, gpu_ms, copy_ms, wait_ms } = *self;
        [calls, round_trips, cpu_ms, gpu_ms, copy_ms, wait_ms]
    }

    fn from_all(all: [Option<f64>; 6]) -> Counts {
        let [calls, round_trips, cpu_ms, gpu_ms, copy_ms, wait_ms] = all;
        Counts { calls, round_trips, cpu_ms, gpu_ms, copy_ms, wait_ms }
    }

    /// Of each of so many repetitions.
    pub(super) fn each(&self, repetitions: u32) -> Counts {
        Counts::from_all(self.all().map(|count| count.map(|count| count / f64::from(repetitions))))
    }

    /// The means of those that ran at once: of their times, and of the counts of those that have them.
    pub(super) fn mean(all: &[(f64, Counts)]) -> (f64, Counts) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let mut counts = [None; 6];
        for (at, count) in counts.iter_mut().enumerate() {
            let known: Vec<f64> = all.iter().filter_map(|(_, counts)| counts.all()[at]).collect();
            *count = (!known.is_empty()).then(|| mean(&known));
        }
        (mean(&all.iter().map(|(ms, _)| *ms).collect::<Vec<f64>>()), Counts::from_all(counts))
    }

    /// Each count's middle, of those that have it.
    pub(super) fn middle(all: &[Counts]) -> Counts {
        let mut middle = [None; 6];
        for (at, count) in middle.iter_mut().enumerate() {
            let mut known: Vec<f64> = all.iter().filter_map(|counts| counts.all()[at]).collect();
            *count = if known.is_empty() { None } else { Some(median(&mut known)) };
        }
        Counts::from_all(middle)
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        let (mut counts, before) = (self.all(), before.all());
        for (count, before) in counts.iter_mut().zip(before) {
            *count = count.zip(before).map(|(after, before)| (after - before).max(0.0));
        }
        Counts::from_all(counts)
    }
}

/// Processor time of all threads that a process has now, as the system schedules them.
fn cpu_ms(pid: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let ns = |thread: std::fs::DirEntry| -> Option<f64> {
        std::fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Some(threads.flatten().filter_map(ns).sum::<f64>() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_counts_stays_none() {
        let of = |calls, gpu_ms| Counts { calls: Some(calls), gpu_ms, ..Counts::default() };
        assert_eq!(of(9.0, Some(2.0)) - of(3.0, None), of(6.0, None));
        assert_eq!(of(9.0, Some(2.0)).each(2), of(4.5, Some(1.0)));
        let (ms, mean) = Counts::mean(&[(2.0, of(1.0, None)), (4.0, of(3.0, Some(7.0)))]);
        assert_eq!((ms, mean), (3.0, of(2.0, Some(7.0))));
        assert_eq!(Counts::middle(&[of(1.0, None), of(5.0, Some(7.0)), of(3.0, None)]), of(3.0, Some(7.0)));
        assert!(cpu_ms(std::process::id()).is_some_and(|ms| ms > 0.0));
    }
}
