//! What all parts of the device share: memory, time, interrupts, counters. No lock of it is held while another is taken,
//! except that the front end's lock comes before all.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gpu_spec::regs::{CHANNELS, accounting};
use parking_lot::Mutex;
use ptx_jit::EngineKind;

use crate::clock::Clock;
use crate::fault_buffer::FaultBuffer;
use crate::interrupts::Interrupts;
use crate::memory::Memory;
use crate::space::Spaces;

/// The device without its front end.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: Memory,
    pub(crate) spaces: Spaces,
    pub(crate) clock: Clock,
    pub(crate) interrupts: Interrupts,
    pub(crate) faults: Mutex<FaultBuffer>,
    pub(crate) doorbells: Doorbells,
    pub(crate) totals: Vec<Totals>,
    pub(crate) engine: EngineKind,
    pub(crate) workers: u64,
    next_job: AtomicU64,
    next_grid: AtomicU64,
}

/// What a TSG has had.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Nanoseconds of workers.
    pub(crate) worker_ns: AtomicU64,
    pub(crate) grids: AtomicU32,
    pub(crate) copies: AtomicU32,
}

impl Shared {
    pub(crate) fn new(memory: Memory, engine: EngineKind, workers: u64) -> Shared {
        Shared {
            memory,
            spaces: Spaces::default(),
            clock: Clock::new(),
            interrupts: Interrupts::default(),
            faults: Mutex::default(),
            doorbells: Doorbells::default(),
            totals: (0..accounting::TSGS).map(|_| Totals::default()).collect(),
            engine,
            workers,
            next_job: AtomicU64::new(1),
            next_grid: AtomicU64::new(1),
        }
    }

    /// A number that no other job has.
    pub(crate) fn next_job(&self) -> u64 {
        self.next_job.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that no other grid has.
    pub(crate) fn next_grid(&self) -> u64 {
        self.next_grid.fetch_add(1, Ordering::Relaxed)
    }
}

const WORDS: usize = CHANNELS as usize / 64;

/// Doorbells that rang and were not heard yet: rung without a lock.
///
/// Whoever waits for one (a worker about to sleep) says so first, then looks again; whoever rings looks last whether
/// somebody waits. All in one order, so one of the two sees the other.
#[derive(Debug)]
pub(crate) struct Doorbells {
    /// One bit for every channel.
    rung: [AtomicU64; WORDS],
    /// One bit for every word of `rung` that may have bits.
    summary: AtomicU64,
    /// Workers that sleep, or are about to.
    pub(crate) sleepers: AtomicU32,
    /// A worker is looking at the doorbells without pause.
    pub(crate) spinning: AtomicBool,
    /// The spinning worker is to look at the front end, though no doorbell rang.
    pub(crate) poked: AtomicBool,
}

impl Default for Doorbells {
    fn default() -> Doorbells {
        Doorbells {
            rung: [const { AtomicU64::new(0) }; WORDS],
            summary: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            spinning: AtomicBool::new(false),
            poked: AtomicBool::new(false),
        }
    }
}

impl Doorbells {
    /// Rings for a channel.
    pub(crate) fn ring(&self, channel: u32) {
        let Some(word) = self.rung.get(channel as usize / 64) else { return };
        word.fetch_or(1 << (channel % 64), Ordering::SeqCst);
        self.summary.fetch_or(1 << (channel / 64), Ordering::SeqCst);
    }

    /// True if some doorbell rang.
    pub(crate) fn any(&self) -> bool {
        self.summary.load(Ordering::SeqCst) != 0
    }

    /// Hears them all.
    pub(crate) fn take(&self, mut heard: impl FnMut(u32)) {
        let mut summary = self.summary.swap(0, Ordering::SeqCst);
        while summary != 0 {
            let word = summary.trailing_zeros();
            summary &= summary - 1;
            let mut bits = self.rung[word as usize].swap(0, Ordering::SeqCst);
            while bits != 0 {
                heard(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ring_is_heard_once() {
        let bells = Doorbells::default();
        for channel in [0, 63, 64, 4095, 4096, 63] {
            bells.ring(channel);
        }
        let mut heard = Vec::new();
        bells.take(|channel| heard.push(channel));
        assert_eq!(heard, [0, 63, 64, 4095]);
        assert!(!bells.any());
    }
}
