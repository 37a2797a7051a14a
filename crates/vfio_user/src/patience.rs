//! Looking or sleeping, whichever brings the next message sooner.
//!
//! To look is to ask the socket again and again: it saves waking up, but takes the processor from whoever else could use it,
//! which on a busy machine is the very thread that the answer is to come from. To sleep is cheap where the kernel runs the
//! other side on the same processor at once. Which is better changes with load and placement, so both are tried and timed.
//!
//! Trials of both sides have to fall together: one side that looks while the other sleeps learns little of what it were like
//! if both looked. So they are timed by the count of commands, which both sides know.

use std::sync::LazyLock;
use std::time::Duration;

/// Of so many commands …
const PERIOD: u64 = 128;
/// … the waits of the last few are done the other way, to see.
const TRIAL: u64 = 8;
/// Waits count as no longer than so many looks: how long nothing happened says nothing about how to wait.
const CLIP: u64 = 4;

static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// What was learnt of one socket.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// Longest look, ns. With 0 there are none.
    most: u64,
    /// What waits took of late, ns: those that began with a look, and those that did not.
    looked: u64,
    slept: u64,
    /// Commands so far.
    commands: u64,
}

impl Patience {
    pub(crate) fn new(most: Duration) -> Patience {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX / CLIP).min(u64::MAX / CLIP);
        // With one processor, who could bring a message does not run while this looks.
        let most = if *CORES == 1 { 0 } else { most };
        Patience { most, looked: 0, slept: most, commands: 0 }
    }

    /// How long to look this time before sleeping.
    pub(crate) fn bound(&self) -> Duration {
        Duration::from_nanos(if self.looks() { self.most } else { 0 })
    }

    /// Learns how long the wait took in all.
    pub(crate) fn learn(&mut self, waited: Duration) {
        if self.most == 0 {
            return;
        }
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX).min(self.most * CLIP);
        let average = if self.looks() { &mut self.looked } else { &mut self.slept };
        *average = (*average * 7 + waited) / 8;
    }

    /// How many commands there were on the connection so far.
    pub(crate) fn set_commands(&mut self, commands: u64) {
        self.commands = commands;
    }

    fn looks(&self) -> bool {
        let trial = self.commands % PERIOD >= PERIOD - TRIAL;
        // A look costs what sleep does not, so it has to be better, not as good.
        self.most > 0 && (self.looked < self.slept / 10 * 9) != trial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of waits that begin with a look, in percent, once it has been learnt what either takes.
    fn share(most: u64, looked: u64, slept: u64) -> u32 {
        let mut patience = Patience::new(Duration::from_nanos(most));
        let mut looks = 0;
        for wait in 0..1000 {
            patience.set_commands(wait);
            let look = !patience.bound().is_zero();
            assert!(patience.bound() <= Duration::from_nanos(most));
            patience.learn(Duration::from_nanos(if look { looked } else { slept }));
            looks += u32::from(wait >= 200 && look);
        }
        looks / 8
    }

    #[test]
    fn the_better_way_is_taken() {
        let (most, least) = if *CORES == 1 { (0..1, 0..1) } else { (90..100, 1..10) };
        assert!(most.contains(&share(5000, 2000, 9000)), "looking is better");
        assert!(least.contains(&share(5000, 30_000, 9000)), "looking is worse");
        assert!(least.contains(&share(5000, 9000, 9000)), "as good is not good enough");
        assert!(least.contains(&share(5000, 1_000_000, 900_000)), "nothing happens");
        assert_eq!(share(0, 10, 1000), 0, "never");
    }

    #[test]
    fn a_change_is_noticed() {
        let mut patience = Patience::new(Duration::from_micros(5));
        for (looked, slept) in [(2, 10), (40, 10), (2, 10)] {
            for wait in 0..2000 {
                patience.set_commands(wait);
                let look = !patience.bound().is_zero();
                patience.learn(Duration::from_micros(if look { looked } else { slept }));
            }
            assert_eq!(patience.looked < patience.slept / 10 * 9, *CORES > 1 && looked < slept);
        }
    }
}
