//! Looking before sleeping.

use std::hint::spin_loop;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Longest look, ns: about what two futex wakes between cores cost.
const MOST: u64 = 20_000;
/// Shortest look that is still worth its first load, ns.
const LEAST: u64 = 500;

static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// An adaptive bound for one kind of wait.
///
/// It doubles when what was waited for came soon, and halves when it did not, so that a waiter on long work burns
/// nothing that other threads could use.
#[derive(Debug, Clone)]
pub struct Spin {
    bound: u64,
}

impl Default for Spin {
    fn default() -> Self {
        Spin { bound: MOST / 4 }
    }
}

impl Spin {
    /// Looks until `ready` holds, at most for the present bound; true if it does.
    pub fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if *CORES == 1 {
            return false;
        }
        let bound = Duration::from_nanos(self.bound);
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
        // A wait that a full look would have covered, the wake's own cost included.
        let soon = waited < Duration::from_nanos(3 * MOST / 2);
        self.bound = if soon { (self.bound * 2).min(MOST) } else { (self.bound / 2).max(LEAST) };
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
        for _ in 0..20 {
            spin.learn(Duration::from_micros(2));
        }
        assert_eq!(spin.bound, MOST);
        assert!(spin.until(|| true));
        assert!(!spin.until(|| false));
    }
}
