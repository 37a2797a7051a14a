//! Looking before sleeping.

use std::hint::spin_loop;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Longest look, ns: about what it takes to wake a thread on an idle core, on virtual machines whose idle cores halt.
const MOST: u64 = 50_000;
/// Shortest look that is still worth its first load, ns.
const LEAST: u64 = 500;
/// One look in so many is a full one, whatever was learnt. Two sides that sleep while they wait for each other find each
/// other slow because they sleep; one full look shows both that they need not.
const TRIAL: u32 = 16;

static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// An adaptive bound for one kind of wait.
///
/// A full look when what was waited for came soon the last time; half as long after each time that it did not, so that a
/// waiter on long work burns nothing that other threads could use. On a machine with one core there is nothing to look for:
/// who could bring it does not run. Beside as many busy strangers as cores looking still pays: 8 µs for a launch and its
/// synchronization, 42 where nobody looks.
#[derive(Debug, Clone)]
pub struct Spin {
    bound: u64,
    waits: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Spin { bound: MOST / 4, waits: 0 }
    }
}

impl Spin {
    /// How long to look this time.
    #[must_use]
    pub fn bound(&self) -> Duration {
        if *CORES == 1 { Duration::ZERO } else { self.learnt() }
    }

    /// What experience says.
    fn learnt(&self) -> Duration {
        let trial = self.waits % TRIAL == TRIAL - 1;
        Duration::from_nanos(if trial { MOST } else { self.bound })
    }

    /// Looks until `ready` holds, at most for the present bound; true if it does.
    pub fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        let bound = self.bound();
        if bound.is_zero() {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                spin_loop();
                if ready() {
                    return true;
                }
            }
            if start.elapsed() >= bound {
                return false;
            }
        }
    }

    /// Learns how long the wait took in all, sleep included.
    pub fn learn(&mut self, waited: Duration) {
        self.waits = self.waits.wrapping_add(1);
        let soon = waited < Duration::from_nanos(MOST);
        self.bound = if soon { MOST } else { (self.bound / 2).max(LEAST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_follows_experience_and_stays_in_range() {
        let mut spin = Spin::default();
        for _ in 0..20 {
            spin.learn(Duration::from_millis(5));
        }
        assert_eq!(spin.bound, LEAST);
        spin.learn(Duration::from_micros(2));
        assert_eq!(spin.bound, MOST);
        assert!(spin.until(|| true));
        assert!(!spin.until(|| false));
    }

    #[test]
    fn a_full_look_comes_again_and_again() {
        let mut spin = Spin::default();
        let mut full = 0;
        for _ in 0..10 * TRIAL {
            spin.learn(Duration::from_millis(5));
            full += u32::from(spin.learnt() == Duration::from_nanos(MOST));
        }
        assert_eq!(full, 10);
    }
}
