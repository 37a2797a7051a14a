//! Clusters: CTAs that run in turn on one thread, see one another's shared memory, and meet at one barrier.

use std::sync::Arc;

use ptx::cluster::ClusterBarrier;
use ptx::launch::Step;

use super::cta::JitBatch;
use crate::code::Compiled;
use crate::{Grid, Progress};

/// Turns of all CTAs in one resume.
const ROUNDS: u32 = 8;

/// What the CTAs of a cluster share. One of them runs at a time, and nobody else looks at it meanwhile.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) barrier: ClusterBarrier,
    /// Host address and bytes of the shared memory of each; none of those that have ended.
    memory: Vec<Option<(u64, u64)>>,
}

impl Shared {
    /// The shared memory of CTA `rank`.
    pub(crate) fn memory(&self, rank: u64) -> Option<(u64, u64)> {
        *self.memory.get(usize::try_from(rank).ok()?)?
    }
}

/// A CTA of the cluster, a batch of itself alone.
struct Member {
    batch: JitBatch,
    progress: Progress,
    done: bool,
}

/// Clusters, one after another.
pub(crate) struct ClusterBatch {
    grid: Arc<Grid>,
    code: Arc<Compiled>,
    // Before what they refer to.
    members: Vec<Member>,
    /// Whose turn it is: who has had a whole slice comes last.
    turn: usize,
    shared: *mut Shared,
    ended: Option<Step>,
}

// SAFETY: `shared` is this value's own; see `JitBatch` for its CTAs.
unsafe impl Send for ClusterBatch {}

impl std::fmt::Debug for ClusterBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterBatch").field("code", &self.code).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl ClusterBatch {
    pub(crate) fn new(grid: Arc<Grid>, code: Arc<Compiled>) -> ClusterBatch {
        let ranks = grid.launch.cluster_ctas();
        let shared = Shared { barrier: ClusterBarrier::new(ranks), memory: Vec::new() };
        // Raw, since CTAs refer to it for as long as they live.
        let shared = Box::into_raw(Box::new(shared));
        ClusterBatch { grid, code, members: Vec::new(), turn: 0, shared, ended: None }
    }

    /// As [`crate::Batch::resume`]; `progress` counts clusters.
    pub(crate) fn resume(&mut self, progress: &mut Progress) -> Step {
        if let Some(step) = self.ended {
            return step;
        }
        let ended_before = progress.ended;
        loop {
            if self.members.is_empty() {
                if progress.ended > ended_before && self.grid.stops() {
                    return Step::Preempted;
                }
                let Some(index) = progress.rest.clone().next() else { return self.end(Step::Done) };
                if let Err(error) = self.begin(index) {
                    self.members.clear();
                    log_limit::warn!(%error, "no memory for a cluster now");
                    return Step::Preempted;
                }
                progress.rest.start += 1;
                progress.begun += 1;
            }
            match self.rounds() {
                Step::Done => {
                    self.members.clear();
                    progress.ended += 1;
                }
                Step::Preempted => return Step::Preempted,
                step => {
                    progress.fault_site = self.members.iter().find_map(|member| member.progress.fault_site.clone());
                    return self.end(step);
                }
            }
        }
    }

    fn end(&mut self, step: Step) -> Step {
        self.members.clear();
        self.ended = Some(step);
        step
    }

    /// Makes all CTAs of a cluster ready.
    fn begin(&mut self, index: u64) -> std::io::Result<()> {
        let launch = &self.grid.launch;
        let ranks = launch.cluster_ctas();
        let mut memory = Vec::with_capacity(ranks as usize);
        for rank in 0..ranks {
            let at = launch.linear(launch.member(index, rank));
            let mut batch = JitBatch::of_cluster(Arc::clone(&self.grid), Arc::clone(&self.code), self.shared);
            memory.push(Some(batch.prepare(at)?));
            let progress = Progress { rest: at..at + 1, ..Progress::default() };
            self.members.push(Member { batch, progress, done: false });
        }
        self.turn = 0;
        // SAFETY: this value's own, and no CTA runs.
        unsafe { *self.shared = Shared { barrier: ClusterBarrier::new(ranks), memory } };
        Ok(())
    }

    /// Each CTA in turn, several times, or until it is to stop.
    fn rounds(&mut self) -> Step {
        for _ in 0..ROUNDS as usize * self.members.len() {
            let rank = self.turn;
            self.turn = (rank + 1) % self.members.len();
            let member = &mut self.members[rank];
            if member.done {
                continue;
            }
            match member.batch.resume(&mut member.progress) {
                Step::Preempted => {}
                Step::Done => {
                    member.done = true;
                    // SAFETY: as in `begin`.
                    let shared = unsafe { &mut *self.shared };
                    shared.barrier.end(rank as u32);
                    // Nobody may access it any more.
                    shared.memory[rank] = None;
                    if self.members.iter().all(|member| member.done) {
                        return Step::Done;
                    }
                }
                step => return step,
            }
            if self.grid.stops() {
                break;
            }
        }
        Step::Preempted
    }
}

impl Drop for ClusterBatch {
    fn drop(&mut self) {
        self.members.clear();
        // SAFETY: made by `Box::into_raw`, and the CTAs that refer to it are gone.
        drop(unsafe { Box::from_raw(self.shared) });
    }
}
