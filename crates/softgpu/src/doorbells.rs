//! Doorbells that rang and were not heard yet: rung without a lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gpu_spec::regs::CHANNELS;

const WORDS: usize = CHANNELS as usize / 64;

/// One bit for every channel.
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
