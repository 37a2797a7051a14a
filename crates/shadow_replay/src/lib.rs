//! Traces of page table updates, replayed against each way of shadowing.
//!
//! A [`Trace`] says what a guest stored into its page tables, and when it submitted work. [`replay`] does so again: a guest's
//! tables in memory, a [`Shadow`] of them that is the one of virtual GPUs, and a trap that is simulated. So policies
//! are compared with the real cost of following, and with any cost of a trap: that of this machine, or of the machine of the
//! paper.

mod memory;

use std::time::{Duration, Instant};

use gmmu::{
    Changes, Costs, Gmmu2, HaswellPpgtt, Notices, Policy, Progress, Rebuild, Reflection, Shadow, ShadowError,
    Shadowing, Trace, TraceEvent, TraceFormat, Tracked, Tracking, TrackingCounts,
};

use crate::memory::{Guest, Host, Replayed, Trap};

/// Tables that the shadow may have: more than it takes.
const LIMIT: u32 = 4096;

/// What a replay has taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Stores into entries.
    pub updates: u64,
    /// Submissions.
    pub submissions: u64,
    /// What became of the pages.
    pub counts: TrackingCounts,
    /// Time that following took: the guest's own stores are not in it, nor are traps.
    pub followed: Duration,
}

impl Outcome {
    /// Stores that trapped.
    #[must_use]
    pub fn traps(&self) -> u64 {
        self.counts.directory_traps + self.counts.table_traps
    }

    /// Pages that were compared.
    #[must_use]
    pub fn pages_rebuilt(&self) -> u64 {
        self.counts.rebuilt_written + self.counts.rebuilt_unknown
    }

    /// What traps and protections cost, ms.
    #[must_use]
    pub fn modelled_ms(&self, costs: Costs) -> f64 {
        let ns = |count: u64, each: u32| count as f64 * f64::from(each);
        let all = ns(self.traps(), costs.trap)
            + ns(self.counts.released, costs.release)
            + ns(self.counts.protected, costs.protect);
        all / 1e6
    }
}

/// Replays a trace, as fast as it goes. After each submission for which `check` says so, the shadow is compared with the plain
/// walk of the guest's tables.
///
/// # Errors
/// If the shadow cannot be made.
///
/// # Panics
/// If the shadow differs from the walk.
pub fn replay(trace: &Trace, policy: Policy, costs: Costs, check: bool) -> Result<Outcome, ShadowError> {
    match trace.format {
        TraceFormat::Intel => replay_in::<HaswellPpgtt>(trace, policy, costs, check),
        TraceFormat::Nvidia => replay_in::<Gmmu2>(trace, policy, costs, check),
    }
}

fn replay_in<F: Replayed>(trace: &Trace, policy: Policy, costs: Costs, check: bool) -> Result<Outcome, ShadowError> {
    let guest = Guest::<F>::new();
    let mut host = Host::new(F::TABLES);
    let mut shadow = Shadow::<F>::new(&mut host, guest.root(), guest.window(), LIMIT)?;
    let mut tracked = Tracked::new(&mut shadow, Tracking::new(policy, Notices::Stores, costs));
    let mut trap = Trap::default();
    let mut changes = Changes::default();
    let mut with = Reflection { guest: &guest, mem: &mut host, budget: u64::MAX, changes: &mut changes };
    // What there is at first is found by a walk, whatever the policy.
    tracked.submit(&mut shadow, &mut trap, &mut with)?;
    tracked.tracking.counts = TrackingCounts::default();
    let mut outcome = Outcome::default();
    let began = Instant::now();
    let mut checked = Duration::ZERO;
    for event in &trace.events {
        match *event {
            TraceEvent::Update { table, entry, value, .. } => {
                outcome.updates += 1;
                let (at, bytes) = guest.store(table, entry, value);
                if trap.is_protected(at) && tracked.stored((at, bytes), &mut shadow, &mut trap) {
                    tracked.reflect(&mut shadow, &mut trap, &mut with)?;
                }
            }
            TraceEvent::Submit { .. } => {
                outcome.submissions += 1;
                let done = tracked.submit(&mut shadow, &mut trap, &mut with)?;
                assert_eq!(done, Progress::Done, "there is no budget");
                if check {
                    let began = Instant::now();
                    guest.check(with.mem, &shadow);
                    checked += began.elapsed();
                }
            }
        }
        *with.changes = Changes::default();
    }
    outcome.followed = began.elapsed() - checked;
    outcome.counts = tracked.tracking.counts;
    Ok(outcome)
}

/// What comparing a page takes of which nothing has changed, ns: nearly all that a guest costs whose pages are all compared.
///
/// # Errors
/// As [`replay`].
pub fn cost_of_comparing(format: TraceFormat) -> Result<u32, ShadowError> {
    /// Enough to be measured, in some milliseconds.
    const SUBMISSIONS: u64 = 50;
    let events = (0..SUBMISSIONS).map(|time_us| TraceEvent::Submit { time_us }).collect();
    let any = Costs { trap: 1, release: 0, protect: 0, compare: 1 };
    let policy = Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Full };
    let outcome = replay(&Trace { format, events }, policy, any, false)?;
    let ns = outcome.followed.as_nanos() / u128::from(outcome.pages_rebuilt().max(1));
    Ok(u32::try_from(ns).unwrap_or(u32::MAX).max(1))
}

/// The time that the guest's own stores take.
#[must_use]
pub fn stores_alone(trace: &Trace) -> Duration {
    match trace.format {
        TraceFormat::Intel => stores_alone_in::<HaswellPpgtt>(trace),
        TraceFormat::Nvidia => stores_alone_in::<Gmmu2>(trace),
    }
}

fn stores_alone_in<F: Replayed>(trace: &Trace) -> Duration {
    let guest = Guest::<F>::new();
    let began = Instant::now();
    for event in &trace.events {
        if let TraceEvent::Update { table, entry, value, .. } = *event {
            guest.store(table, entry, value);
        }
    }
    began.elapsed()
}
