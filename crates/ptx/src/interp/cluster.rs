//! Clusters: CTAs that run in turn, see one another's shared memory, and meet at one barrier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Cta, State};
use crate::check::Checker;
use crate::children::Launcher;
use crate::cluster::ClusterBarrier;
use crate::ir::Kernel;
use crate::launch::{Control, FaultSite, GlobalMemory, Launch, Step, WARP};

/// Turns of all CTAs in one [`Cluster::resume`].
const ROUNDS: u32 = 8;

/// What a CTA knows of its cluster's barrier.
#[derive(Debug)]
pub(super) struct Meeting {
    /// The cluster's while the CTA runs; that of a CTA by itself is its own.
    barrier: ClusterBarrier,
    /// The phase that threads arrive for now.
    phase: u64,
    /// Threads that have arrived for it, by warp.
    arrived: Vec<u32>,
    /// The barrier knows that all have.
    told: bool,
}

impl Meeting {
    pub(super) fn new(warps: usize) -> Meeting {
        Meeting { barrier: ClusterBarrier::new(1), phase: 0, arrived: vec![0; warps], told: false }
    }
}

impl Cta {
    /// Threads `active` of a warp arrive at the cluster's barrier, or wait at it; their counters stand at the instruction.
    pub(super) fn meet_cluster(&mut self, warp: usize, active: u32, wait: bool) {
        self.cluster_turned();
        let arrived = self.meeting.arrived[warp];
        if !wait {
            self.observe_arrival(warp);
        } else if active & !arrived != 0 {
            self.observe_passing(warp);
        }
        for lane in (0..WARP).filter(|lane| active >> lane & 1 != 0) {
            let thread = &mut self.threads[warp * WARP as usize + lane as usize];
            // Who has not arrived for this phase has for the one before, which is over.
            if wait && arrived >> lane & 1 != 0 {
                thread.state = State::Cluster;
            } else {
                thread.pc.inst += 1;
            }
        }
        if !wait {
            self.meeting.arrived[warp] |= active;
            self.tell_cluster();
        }
    }

    /// Tells the barrier if all threads have arrived that have not ended.
    pub(super) fn tell_cluster(&mut self) {
        let arrived = &self.meeting.arrived;
        if self.meeting.told || arrived.iter().all(|&lanes| lanes == 0) {
            return;
        }
        let missing = |(warp, lanes): (usize, &u32)| self.lanes(warp, |t| t.state != State::Exited) & !lanes;
        if arrived.iter().enumerate().all(|w| missing(w) == 0) {
            self.meeting.told = true;
            // Who has ended has arrived.
            for warp in 0..self.meeting.arrived.len() {
                if self.meeting.arrived[warp] == 0 {
                    self.observe_arrival(warp);
                }
            }
            self.meeting.barrier.arrive(self.rank);
            self.cluster_turned();
        }
    }

    /// Lets threads go on if the phase is over for which they have arrived.
    pub(super) fn cluster_turned(&mut self) {
        if self.meeting.barrier.phase() == self.meeting.phase {
            return;
        }
        self.meeting.phase = self.meeting.barrier.phase();
        self.meeting.told = false;
        self.meeting.arrived.fill(0);
        self.observe_release(State::Cluster, true);
        for thread in self.threads.iter_mut().filter(|thread| thread.state == State::Cluster) {
            thread.state = State::Ready;
            thread.pc.inst += 1;
        }
    }

    /// Does a thread wait for other CTAs, after all of this one have arrived?
    pub(super) fn waits_for_cluster(&self) -> bool {
        self.meeting.told && self.threads.iter().any(|thread| thread.state == State::Cluster)
    }
}

/// The CTAs of a cluster, in the order of their ranks.
#[derive(Debug)]
pub struct Cluster {
    ctas: Vec<Cta>,
    /// Whose turn it is: who has had a whole slice comes last.
    next: usize,
    barrier: ClusterBarrier,
}

impl Cluster {
    /// Prepares the cluster with linear index `index` of a launch; nothing runs yet. Registers, shared and local memory are zero.
    #[must_use]
    pub fn new(kernel: &Arc<Kernel>, launch: &Arc<Launch>, index: u64) -> Cluster {
        let ranks = launch.cluster_ctas();
        let cta = |rank| Cta::new(Arc::clone(kernel), Arc::clone(launch), launch.member(index, rank));
        Cluster { ctas: (0..ranks).map(cta).collect(), next: 0, barrier: ClusterBarrier::new(ranks) }
    }

    /// Has everything checked from now on.
    pub fn check(&mut self, checker: &Arc<dyn Checker>) {
        self.ctas.iter_mut().for_each(|cta| cta.check(Arc::clone(checker)));
    }

    /// Has somebody take what its threads launch.
    pub fn launcher(&mut self, launcher: &Arc<dyn Launcher>) {
        self.ctas.iter_mut().for_each(|cta| cta.launcher(Arc::clone(launcher)));
    }

    /// Runs its CTAs in turn until all are done, or one is preempted (by `control`), or fails; or until each has had several turns.
    pub fn resume(&mut self, memory: &dyn GlobalMemory, control: &AtomicU32) -> Step {
        for _ in 0..ROUNDS as usize * self.ctas.len() {
            let rank = self.next;
            self.next = (rank + 1) % self.ctas.len();
            match self.turn(rank, memory, control) {
                step @ Step::Exception(_) => return step,
                Step::Done if self.ctas.iter().all(|cta| cta.ended.is_some()) => return Step::Done,
                Step::Preempted if control.load(Ordering::Relaxed) != Control::RUN => break,
                Step::Done | Step::Preempted => {}
            }
        }
        Step::Preempted
    }

    /// Where one of them has failed, if one has.
    #[must_use]
    pub fn fault_site(&self) -> Option<FaultSite> {
        self.ctas.iter().find_map(Cta::fault_site)
    }

    fn turn(&mut self, rank: usize, memory: &dyn GlobalMemory, control: &AtomicU32) -> Step {
        if let Some(step) = self.ctas[rank].ended {
            return step;
        }
        let mut peers: Vec<Vec<u8>> = self.ctas.iter_mut().map(|cta| std::mem::take(&mut cta.shared)).collect();
        let cta = &mut self.ctas[rank];
        cta.shared = std::mem::take(&mut peers[rank]);
        cta.peers = peers;
        cta.meeting.barrier = self.barrier.clone();
        let step = cta.resume(memory, control);
        self.barrier = cta.meeting.barrier.clone();
        let mut peers = std::mem::take(&mut cta.peers);
        peers[rank] = std::mem::take(&mut cta.shared);
        if step == Step::Done {
            self.barrier.end(rank as u32);
            // Nobody may access it any more.
            peers[rank] = Vec::new();
        }
        for (cta, shared) in self.ctas.iter_mut().zip(peers) {
            cta.shared = shared;
        }
        step
    }
}
