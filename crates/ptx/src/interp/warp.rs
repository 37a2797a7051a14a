//! Operations of several lanes of a warp.

use super::{Cta, State};
use crate::ir::{Kernel, Op, ReduxOp, Ty, VoteMode};
use crate::launch::{Exception, WARP};
use crate::math::int;
use crate::warp::{self, shuffle_source};

/// Iterates over the set bits.
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            lane
        })
    })
}

impl Cta {
    /// Threads `active` of a warp, their counters at the instruction, reach an operation of several threads. It is done for
    /// those whose partners are all there; the others wait.
    pub(super) fn collective(&mut self, kernel: &Kernel, warp: usize, active: u32, op: &Op) -> Result<(), Exception> {
        if warp::mask(op).is_none() {
            return self.arrive(warp, active, op);
        }
        let first = warp * WARP as usize;
        let pc = self.threads[first + active.trailing_zeros() as usize].pc;
        for lane in bits(active) {
            self.threads[first + lane as usize].state = State::Warp;
        }
        let alive = self.lanes(warp, |t| t.state != State::Exited);
        // All at this instruction, whatever their masks.
        let here = self.lanes(warp, |t| t.state == State::Warp && t.pc == pc);
        let going = bits(here).filter(|&l| self.named(kernel, first, l) & alive & !here == 0);
        let going = going.fold(0, |lanes, l| lanes | 1 << l);
        self.perform(kernel, first, going)?;
        // At this instruction and others, with one mask.
        let mut rest = here & !going;
        while rest != 0 {
            let named = self.named(kernel, first, rest.trailing_zeros());
            let waiting = self.lanes(warp, |t| t.state == State::Warp);
            let alike =
                |&l: &u32| warp::agree(op, self.waits_at(kernel, first, l)) && self.named(kernel, first, l) == named;
            let group = bits(waiting).filter(alike).fold(0, |lanes, l| lanes | 1 << l);
            rest &= !group;
            if named & alive & !group == 0 {
                self.perform(kernel, first, group)?;
            }
        }
        Ok(())
    }

    /// All threads of a warp wait for each other: the lowest go on without the missing ones.
    pub(super) fn force_warp_operation(&mut self, kernel: &Kernel, warp: usize) -> Result<(), Exception> {
        let waiting = self.threads[self.warp_threads(warp)].iter().filter(|t| t.state == State::Warp);
        let Some(pc) = waiting.map(|t| t.pc).min() else { return Ok(()) };
        let lanes = self.lanes(warp, |t| t.state == State::Warp && t.pc == pc);
        self.line = kernel.blocks[pc.block as usize].insts[pc.inst as usize].line;
        self.is_at(self.warp_threads(warp));
        self.perform(kernel, warp * WARP as usize, lanes)
    }

    /// The operation at which a lane waits.
    fn waits_at<'k>(&self, kernel: &'k Kernel, first: usize, lane: u32) -> &'k Op {
        let at = self.threads[first + lane as usize].pc;
        &kernel.blocks[at.block as usize].insts[at.inst as usize].op
    }

    /// The lanes that this waiting lane's mask names.
    fn named(&self, kernel: &Kernel, first: usize, lane: u32) -> u32 {
        let mask = warp::mask(self.waits_at(kernel, first, lane));
        mask.map_or(0, |mask| self.operand(first + lane as usize, mask) as u32)
    }

    /// Performs the operation at which `lanes` wait, each with its own registers, and lets them go on.
    fn perform(&mut self, kernel: &Kernel, first: usize, lanes: u32) -> Result<(), Exception> {
        if lanes != 0 && warp::is_matrix(self.waits_at(kernel, first, lanes.trailing_zeros())) {
            // Nobody waits with another instruction.
            self.matrix(first, lanes, self.waits_at(kernel, first, lanes.trailing_zeros()))?;
            return self.go_on(first, lanes);
        }
        let mut values = [0; WARP as usize];
        for lane in bits(lanes) {
            let thread = first + lane as usize;
            values[lane as usize] = match self.waits_at(kernel, first, lane) {
                Op::Vote { p, .. } => self.pred(thread, *p).into(),
                Op::Match { a, ty, .. } => self.operand(thread, *a) & int::mask(*ty),
                Op::Shfl { a, .. } | Op::Redux { a, .. } => self.operand(thread, *a),
                _ => 0,
            };
        }
        for lane in bits(lanes) {
            let thread = first + lane as usize;
            // A mask without any lane that is here leaves the lane itself.
            let members = match self.named(kernel, first, lane) & lanes {
                0 => 1 << lane,
                members => members,
            };
            self.finish(thread, lane, self.waits_at(kernel, first, lane), &values, lanes, members)?;
        }
        self.go_on(first, lanes)
    }

    /// Lanes have performed the operation at which they waited.
    fn go_on(&mut self, first: usize, lanes: u32) -> Result<(), Exception> {
        for lane in bits(lanes) {
            let thread = &mut self.threads[first + lane as usize];
            thread.state = State::Ready;
            thread.pc.inst += 1;
        }
        Ok(())
    }

    /// The operation for one lane: of `values`, those of `lanes` are there, and those of `members` take part.
    fn finish(
        &mut self,
        thread: usize,
        lane: u32,
        op: &Op,
        values: &[u64; WARP as usize],
        lanes: u32,
        members: u32,
    ) -> Result<(), Exception> {
        let own = values[lane as usize];
        let having = |value: u64| bits(members).filter(|&l| values[l as usize] == value).fold(0, |m, l| m | 1 << l);
        match *op {
            Op::BarWarp { .. } => {}
            Op::Shfl { mode, dst, pred, b, c, .. } => {
                let (b, c) = (self.operand(thread, b) as u32, self.operand(thread, c) as u32);
                let (source, inside) = shuffle_source(mode, lane, b, c);
                let from = if lanes >> source & 1 != 0 { source } else { lane };
                self.set(thread, dst, values[from as usize]);
                if let Some(pred) = pred {
                    self.set(thread, pred, inside.into());
                }
            }
            Op::Vote { mode, dst, .. } => {
                let ayes = having(1);
                let result = match mode {
                    VoteMode::All => u32::from(ayes == members),
                    VoteMode::Any => u32::from(ayes != 0),
                    VoteMode::Uni => u32::from(ayes == members || ayes == 0),
                    VoteMode::Ballot => ayes,
                };
                self.set(thread, dst, result.into());
            }
            Op::Match { all, dst, pred, .. } => {
                let equal = having(own);
                let agree = equal == members;
                self.set(thread, dst, if all && !agree { 0 } else { equal }.into());
                if let Some(pred) = pred {
                    self.set(thread, pred, agree.into());
                }
            }
            Op::Redux { op, ty, dst, .. } => {
                let result = bits(members).map(|l| values[l as usize]).reduce(|x, y| reduce(op, ty, x, y));
                self.set(thread, dst, result.unwrap_or(own));
            }
            Op::Elect { dst, pred, .. } => {
                let leader = members.trailing_zeros();
                if let Some(dst) = dst {
                    self.set(thread, dst, leader.into());
                }
                self.set(thread, pred, u64::from(lane == leader));
            }
            _ => return Err(Exception::Illegal),
        }
        Ok(())
    }
}

fn reduce(op: ReduxOp, ty: Ty, x: u64, y: u64) -> u64 {
    match op {
        ReduxOp::Add => x.wrapping_add(y),
        ReduxOp::And => x & y,
        ReduxOp::Or => x | y,
        ReduxOp::Xor => x ^ y,
        ReduxOp::Min if int::value(ty, y) < int::value(ty, x) => y,
        ReduxOp::Max if int::value(ty, y) > int::value(ty, x) => y,
        ReduxOp::Min | ReduxOp::Max => x,
    }
}
