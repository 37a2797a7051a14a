//! What a CTA's scheduler knows of its cluster's barrier.

use super::State;
use crate::abi::context;
use crate::run::barrier::Waiting;

/// The phase of the barrier that threads arrive for now.
#[derive(Debug)]
pub(super) struct Gathering {
    phase: u64,
    /// Lanes that have arrived, by warp.
    arrived: Vec<u32>,
    /// Has any?
    begun: bool,
    /// The barrier knows that all have.
    told: bool,
    /// Those that wait.
    pub(super) waiting: Vec<Waiting>,
}

impl Gathering {
    pub(super) fn new(warps: usize) -> Gathering {
        Gathering { phase: 0, arrived: vec![0; warps], begun: false, told: false, waiting: Vec::new() }
    }

    /// For another CTA.
    pub(super) fn clear(&mut self) {
        self.phase = 0;
        self.turn();
        self.waiting.clear();
    }

    fn turn(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.arrived.fill(0);
        }
        self.told = false;
    }

    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Does somebody wait for other CTAs, after all of this one have arrived?
    pub(super) fn waits(&self) -> bool {
        self.told && !self.waiting.is_empty()
    }
}

impl State {
    /// The active lanes arrive at the cluster's barrier, or wait at it, at the head of `region`; true if some go on at once.
    pub(super) fn gather(&mut self, region: usize, wait: bool) -> bool {
        self.cluster_turned();
        let mut arrived = std::mem::take(&mut self.gathering.arrived);
        let mut lanes = vec![0; arrived.len()];
        for ((lanes, active), arrived) in lanes.iter_mut().zip(self.active()).zip(&mut arrived) {
            if wait {
                // Who has not arrived for this phase has for the one before, which is over.
                *lanes = *active & *arrived;
                *active &= !*arrived;
            } else {
                *arrived |= *active;
            }
        }
        self.gathering.arrived = arrived;
        if lanes.iter().any(|&bits| bits != 0) {
            self.gathering.waiting.push(Waiting { region, lanes });
        }
        if wait {
            return self.active().iter().any(|&bits| bits != 0);
        }
        self.gathering.begun = true;
        self.count_live(true);
        self.tell_if_all();
        true
    }

    /// Tells the barrier if all threads have arrived that have not ended; none is active.
    pub(super) fn tell_cluster(&mut self) {
        if self.gathering.begun && !self.gathering.told {
            self.count_live(false);
            self.tell_if_all();
        }
    }

    /// The same, when `live` is right.
    fn tell_if_all(&mut self) {
        let missing = self.gathering.arrived.iter().zip(&self.live).any(|(arrived, live)| live & !arrived != 0);
        if self.gathering.told || missing {
            return;
        }
        self.gathering.told = true;
        let rank = self.context.fixed[context::CLUSTER_RANK];
        // SAFETY: what a cluster's CTAs share outlives them, and one of them runs at a time: this one.
        if let Some(cluster) = unsafe { self.context.cluster.as_mut() } {
            cluster.barrier.arrive(rank);
        }
    }

    /// Lets those go on who wait for a phase that is over; true if there were any.
    pub(super) fn cluster_turned(&mut self) -> bool {
        // SAFETY: as above.
        let over = match unsafe { self.context.cluster.as_ref() } {
            Some(cluster) => {
                let phase = cluster.barrier.phase();
                std::mem::replace(&mut self.gathering.phase, phase) != phase
            }
            // Nobody else is to come.
            None => self.gathering.told,
        };
        if over {
            self.gathering.turn();
            self.released.append(&mut self.gathering.waiting);
        }
        over
    }
}
