//! What becomes of the multiprocessors' time that no TSG has.
//!
//! Pure: time comes in as numbers.

/// How much of that time nobody wanted (idle), and how much somebody did (overhead).
#[derive(Debug)]
pub(crate) struct Occupancy {
    places: usize,
    /// Until when time is counted.
    until: u64,
    /// Nanoseconds of multiprocessors.
    idle: u64,
    overhead: u64,
}

impl Occupancy {
    pub(crate) fn new(places: usize, now: u64) -> Occupancy {
        Occupancy { places, until: now, idle: 0, overhead: 0 }
    }

    /// Until now `busy` multiprocessors did something for a TSG, and `wanting` TSGs had something for one more.
    pub(crate) fn note(&mut self, now: u64, busy: usize, wanting: usize) {
        let ns = now.saturating_sub(self.until);
        self.until = self.until.max(now);
        let free = self.places.saturating_sub(busy);
        let wanted = free.min(wanting);
        self.overhead += ns * wanted as u64;
        self.idle += ns * (free - wanted) as u64;
    }

    /// Time without anything to do, and time for which others waited; nanoseconds of the device.
    pub(crate) fn unused(&self) -> (u64, u64) {
        let places = self.places.max(1) as u64;
        (self.idle / places, self.overhead / places)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_time_is_accounted_for(
            places in 1usize..8,
            steps in proptest::collection::vec((0u64..1_000_000, 0usize..8, 0usize..12), 0..200),
        ) {
            let (mut now, mut busy_ns) = (17, 0);
            let mut occupancy = Occupancy::new(places, now);
            for (ns, busy, wanting) in steps {
                let busy = busy.min(places);
                now += ns;
                busy_ns += ns * busy as u64;
                occupancy.note(now, busy, wanting);
                // Whoever has looked at the clock before somebody else changes nothing.
                occupancy.note(now - ns, places, 0);
            }
            prop_assert_eq!(busy_ns + occupancy.idle + occupancy.overhead, (now - 17) * places as u64);
        }
    }
}
