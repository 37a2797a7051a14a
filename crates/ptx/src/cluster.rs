//! The barrier of a cluster's CTAs, once for both engines.
//!
//! An engine tells it when all threads of a CTA that have not ended have arrived, and when a CTA has ended. As soon as all have, the
//! **phase** is over: threads that wait go on, and arrivals count for the next one.

/// The barrier of a cluster. CTAs are known by rank.
#[derive(Clone, Debug)]
pub struct ClusterBarrier {
    /// One bit for each CTA.
    all: u32,
    arrived: u32,
    ended: u32,
    phase: u64,
}

impl ClusterBarrier {
    /// Of so many CTAs, from 1 to [`crate::launch::MAX_CLUSTER_CTAS`].
    #[must_use]
    pub fn new(ctas: u32) -> ClusterBarrier {
        ClusterBarrier { all: u32::MAX >> (32 - ctas.clamp(1, 32)), arrived: 0, ended: 0, phase: 0 }
    }

    /// Phases that are over.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// All threads of a CTA have arrived.
    pub fn arrive(&mut self, rank: u32) {
        self.arrived |= 1 << (rank & 31);
        self.turn();
    }

    /// A CTA has ended: it is waited for no more.
    pub fn end(&mut self, rank: u32) {
        self.ended |= 1 << (rank & 31);
        if self.arrived != 0 {
            self.turn();
        }
    }

    fn turn(&mut self) {
        if self.all & !(self.arrived | self.ended) == 0 {
            self.phase += 1;
            self.arrived = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ClusterBarrier;

    #[test]
    fn a_phase_ends_when_all_that_are_left_have_arrived() {
        let mut barrier = ClusterBarrier::new(3);
        barrier.arrive(0);
        barrier.arrive(2);
        assert_eq!(barrier.phase(), 0);
        barrier.arrive(1);
        assert_eq!(barrier.phase(), 1);
        barrier.end(1);
        assert_eq!(barrier.phase(), 1, "nobody has arrived");
        barrier.arrive(2);
        barrier.end(0);
        assert_eq!(barrier.phase(), 2);
        barrier.arrive(2);
        assert_eq!(barrier.phase(), 3, "the others have ended");
    }
}
