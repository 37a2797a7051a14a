//! What is known to be short: units that a thread which rings a doorbell may do itself, because waking a worker for them
//! would take longer.

use std::sync::Arc;

use ptx_jit::{Code, Grid};

use crate::job::{Active, Job};

/// Longest work that is short, nanoseconds: about what waking a worker costs.
pub(crate) const SHORT_NS: u64 = 10_000;
/// Longest transfer that is short, bytes.
const SHORT_BYTES: u64 = 128 << 10;
/// Kernels of a channel whose pace is remembered: those of a loop.
const KERNELS: usize = 8;

/// How long CTAs of a channel's latest kernels took. A guess: what it says may be wrong for the next grid.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Address of the code, which tells kernels apart, and nanoseconds for one CTA.
    kernels: [(usize, u64); KERNELS],
    next: usize,
}

impl Pace {
    /// CTAs of a grid were done.
    pub(crate) fn learn(&mut self, code: &Arc<Code>, ctas: u64, ns: u64) {
        let Some(each) = ns.checked_div(ctas) else { return };
        let key = key(code);
        match self.kernels.iter_mut().find(|kernel| kernel.0 == key) {
            Some(kernel) => kernel.1 = each,
            None => {
                self.kernels[self.next] = (key, each);
                self.next = (self.next + 1) % KERNELS;
            }
        }
    }

    /// How long a grid should take one worker, nanoseconds, if that can be told.
    fn guess(&self, grid: &Grid) -> Option<u64> {
        let key = key(&grid.code);
        let kernel = self.kernels.iter().find(|kernel| kernel.0 == key)?;
        grid.launch.grid.iter().try_fold(kernel.1, |ns, side| ns.checked_mul(u64::from(*side)))
    }

    /// Whether a job should be done soon.
    pub(crate) fn is_short(&self, active: &Active) -> bool {
        match &active.job {
            Job::Grid(grid) => !grid.wants_rotation() && self.guess(&grid.grid).is_some_and(|ns| ns <= SHORT_NS),
            Job::Copy(transfer) => transfer.bytes() <= SHORT_BYTES,
            Job::Prepare(_) | Job::Invalidate(_) => false,
        }
    }
}

fn key(code: &Arc<Code>) -> usize {
    Arc::as_ptr(code).addr()
}
