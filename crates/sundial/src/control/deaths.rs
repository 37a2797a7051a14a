//! A loop of deaths is slowed down.
//!
//! The first deaths in a row cost nothing: the next tenant is not to wait for a device process that was shot down once. If
//! it goes on, each start comes later than the one before, and the log says so.

use std::time::Duration;

/// A life this long ends a row.
const CALM: Duration = Duration::from_secs(60);
/// So many starts come at once.
const FREE: u32 = 3;
/// The first pause; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// Deaths of device processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Deaths {
    /// One after another, without a calm life in between.
    pub(super) in_a_row: u32,
    pub(super) ever: u64,
}

impl Deaths {
    /// One more, after a life of `lived`: how long to wait before the next start.
    pub(super) fn add(&mut self, lived: Duration) -> Duration {
        self.ever += 1;
        self.in_a_row = if lived >= CALM { 1 } else { self.in_a_row.saturating_add(1) };
        match self.in_a_row.saturating_sub(FREE) {
            0 => Duration::ZERO,
            more => FIRST.saturating_mul(1 << (more - 1).min(16)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_row_and_end_with_a_calm_life() {
        let mut deaths = Deaths::default();
        let mut add = |seconds| deaths.add(Duration::from_secs(seconds)).as_millis();
        let row: Vec<u128> = (0..8).map(|_| add(1)).collect();
        assert_eq!(row, [0, 0, 0, 250, 500, 1000, 2000, 4000]);
        for _ in 0..100 {
            assert!(add(59) <= LONGEST.as_millis());
        }
        assert_eq!(add(59), LONGEST.as_millis());
        assert_eq!(add(60), 0);
        assert_eq!((deaths.in_a_row, deaths.ever), (1, 110));
    }
}
