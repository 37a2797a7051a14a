//! The sixteen barriers of a CTA.

use std::sync::Arc;

use super::{Cta, State};
use crate::ir::{BarKind, BarRed, Op};
use crate::launch::{Exception, WARP};

/// One barrier between two releases.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Lanes that have arrived, by warp; empty if none has.
    arrived: Vec<u32>,
    /// Threads that it waits for, if not all.
    count: Option<u32>,
    /// Arrivals with a predicate, and how many of these held.
    voters: u32,
    ayes: u32,
}

impl Cta {
    /// Threads `active` of a warp arrive; their counters stand at the instruction.
    pub(super) fn arrive(&mut self, warp: usize, active: u32, op: &Op) -> Result<(), Exception> {
        let Op::Bar { kind, id, count, pred, .. } = op else { return Err(Exception::Illegal) };
        if matches!(kind, BarKind::ClusterArrive | BarKind::ClusterWait) {
            self.meet_cluster(warp, active, *kind == BarKind::ClusterWait);
            return Ok(());
        }
        self.observe_arrival(warp);
        let warps = self.spins.len();
        let mut rest = active;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let thread = warp * WARP as usize + lane as usize;
            let id = self.operand(thread, *id) as usize;
            let count = count.map(|c| self.operand(thread, c) as u32);
            let vote = pred.map(|p| self.pred(thread, p));
            let barrier = self.barriers.get_mut(id).ok_or(Exception::Illegal)?;
            barrier.arrived.resize(warps, 0);
            barrier.arrived[warp] |= 1 << lane;
            barrier.count = count;
            if let (BarKind::Red(_), Some(vote)) = (kind, vote) {
                barrier.voters += 1;
                barrier.ayes += u32::from(vote);
            }
            if *kind == BarKind::Arrive {
                self.threads[thread].pc.inst += 1;
            } else {
                self.threads[thread].state = State::Barrier(id as u8);
            }
        }
        self.release_barriers();
        Ok(())
    }

    /// Lets the threads of complete barriers go on.
    pub(super) fn release_barriers(&mut self) {
        for id in 0..self.barriers.len() {
            if !self.barriers[id].arrived.is_empty() && self.is_complete(&self.barriers[id]) {
                self.release(id);
            }
        }
    }

    fn is_complete(&self, barrier: &Barrier) -> bool {
        let missing = |(warp, arrived): (usize, &u32)| self.lanes(warp, |t| t.state != State::Exited) & !arrived;
        match barrier.count {
            None => barrier.arrived.iter().enumerate().all(|w| missing(w) == 0),
            Some(count) => {
                // Counts are in whole warps: one that has come as far as it can counts fully.
                let counted = |w: (usize, &u32)| match w.1.count_ones() {
                    0 => 0,
                    _ if missing(w) == 0 => WARP,
                    some => some,
                };
                barrier.arrived.iter().enumerate().map(counted).sum::<u32>() >= count
            }
        }
    }

    fn release(&mut self, id: usize) {
        let kernel = Arc::clone(&self.kernel);
        let Barrier { voters, ayes, count, .. } = std::mem::take(&mut self.barriers[id]);
        self.observe_release(State::Barrier(id as u8), count.is_none());
        for thread in 0..self.threads.len() {
            if self.threads[thread].state != State::Barrier(id as u8) {
                continue;
            }
            let pc = self.threads[thread].pc;
            if let Op::Bar { kind: BarKind::Red(red), dst: Some(dst), .. } =
                kernel.blocks[pc.block as usize].insts[pc.inst as usize].op
            {
                let result = match red {
                    BarRed::Popc => ayes.into(),
                    BarRed::And => u64::from(ayes == voters),
                    BarRed::Or => u64::from(ayes != 0),
                };
                self.set(thread, dst, result);
            }
            self.threads[thread].state = State::Ready;
            self.threads[thread].pc.inst += 1;
        }
    }
}
