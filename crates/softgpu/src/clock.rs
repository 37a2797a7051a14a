//! The GPU's time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch at the device's start, and on from there without jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: u64,
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let base = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Clock { base, start: Instant::now() }
    }

    /// Nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.base + self.start.elapsed().as_nanos() as u64
    }
}
