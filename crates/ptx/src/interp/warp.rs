//! Operations of several lanes of a warp.

use super::{Cta, State};
use crate::ir::{Kernel, Op, Operand, ReduxOp, ShflMode, Ty, VoteMode};
use crate::launch::{Exception, WARP};
use crate::math::int;

/// Iterates over the set bits.
fn bits(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            lane
        })
    })
}

fn mask_operand(op: &Op) -> Option<Operand> {
    match op {
        Op::BarWarp { mask }
        | Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(*mask),
        _ => None,
    }
}

impl Cta {
    /// Threads `active` of a warp, their counters at the instruction, reach an operation of several threads. It is done for
    /// those whose partners are all there (or at once with `force`); the others wait.
    pub(super) fn collective(
        &mut self,
        kernel: &Kernel,
        warp: usize,
        active: u32,
        op: &Op,
        force: bool,
    ) -> Result<(), Exception> {
        let Some(mask) = mask_operand(op) else { return self.arrive(warp, active, op) };
        let first = warp * WARP as usize;
        let thread = |lane: u32| first + lane as usize;
        let pc = self.threads[thread(active.trailing_zeros())].pc;
        let alive = self.lanes(warp, |t| t.state != State::Exited);
        let mut rest = active | self.lanes(warp, |t| t.state == State::Warp && t.pc == pc);
        while rest != 0 {
            let named = self.operand(thread(rest.trailing_zeros()), mask) as u32;
            let here = bits(rest).filter(|&l| self.operand(thread(l), mask) as u32 == named).fold(0, |m, l| m | 1 << l);
            rest &= !here;
            let mut arrived = here;
            if matches!(op, Op::BarWarp { .. }) {
                // Barriers may be met at different places.
                for lane in bits(self.lanes(warp, |t| t.state == State::Warp)) {
                    let at = self.threads[thread(lane)].pc;
                    if let Op::BarWarp { mask } = kernel.blocks[at.block as usize].insts[at.inst as usize].op
                        && self.operand(thread(lane), mask) as u32 == named
                    {
                        arrived |= 1 << lane;
                    }
                }
            }
            if named & alive & !arrived == 0 || force {
                self.perform(first, here, op)?;
                for lane in bits(arrived) {
                    self.threads[thread(lane)].state = State::Ready;
                    self.threads[thread(lane)].pc.inst += 1;
                }
            } else {
                for lane in bits(here) {
                    self.threads[thread(lane)].state = State::Warp;
                }
            }
        }
        Ok(())
    }

    /// All threads of a warp wait for each other: the lowest go on without the missing ones.
    pub(super) fn force_warp_operation(&mut self, kernel: &Kernel, warp: usize) -> Result<(), Exception> {
        let waiting = self.threads[self.warp_threads(warp)].iter().filter(|t| t.state == State::Warp);
        let Some(pc) = waiting.map(|t| t.pc).min() else { return Ok(()) };
        let lanes = self.lanes(warp, |t| t.state == State::Warp && t.pc == pc);
        let op = &kernel.blocks[pc.block as usize].insts[pc.inst as usize].op;
        self.collective(kernel, warp, lanes, op, true)
    }

    /// The operation itself, for lanes with one mask.
    fn perform(&mut self, first: usize, lanes: u32, op: &Op) -> Result<(), Exception> {
        let thread = |lane: u32| first + lane as usize;
        match *op {
            Op::BarWarp { .. } => {}
            Op::Shfl { mode, dst, pred, a, b, c, .. } => {
                let values = bits(lanes).fold([0; WARP as usize], |mut values, lane| {
                    values[lane as usize] = self.operand(thread(lane), a);
                    values
                });
                for lane in bits(lanes) {
                    let (b, c) = (self.operand(thread(lane), b) as u32, self.operand(thread(lane), c) as u32);
                    let (source, inside) = shuffle_source(mode, lane, b, c);
                    let from = if lanes >> source & 1 != 0 { source } else { lane };
                    self.set(thread(lane), dst, values[from as usize]);
                    if let Some(pred) = pred {
                        self.set(thread(lane), pred, inside.into());
                    }
                }
            }
            Op::Vote { mode, dst, p, .. } => {
                let ayes = self.filter(first, lanes, p);
                let result = match mode {
                    VoteMode::All => u32::from(ayes == lanes),
                    VoteMode::Any => u32::from(ayes != 0),
                    VoteMode::Uni => u32::from(ayes == lanes || ayes == 0),
                    VoteMode::Ballot => ayes,
                };
                for lane in bits(lanes) {
                    self.set(thread(lane), dst, result.into());
                }
            }
            Op::Match { all, ty, dst, pred, a, .. } => {
                let mut values = [0; WARP as usize];
                for lane in bits(lanes) {
                    values[lane as usize] = self.operand(thread(lane), a) & int::mask(ty);
                }
                for lane in bits(lanes) {
                    let own = values[lane as usize];
                    let equal = bits(lanes).filter(|&l| values[l as usize] == own).fold(0, |m, l| m | 1 << l);
                    let agree = equal == lanes;
                    self.set(thread(lane), dst, if all && !agree { 0 } else { equal }.into());
                    if let Some(pred) = pred {
                        self.set(thread(lane), pred, agree.into());
                    }
                }
            }
            Op::Redux { op, ty, dst, a, .. } => {
                let mut values = bits(lanes).map(|lane| self.operand(thread(lane), a));
                let Some(start) = values.next() else { return Ok(()) };
                let result = values.fold(start, |x, y| reduce(op, ty, x, y));
                for lane in bits(lanes) {
                    self.set(thread(lane), dst, result);
                }
            }
            Op::Elect { dst, pred, .. } => {
                let leader = lanes.trailing_zeros();
                for lane in bits(lanes) {
                    if let Some(dst) = dst {
                        self.set(thread(lane), dst, leader.into());
                    }
                    self.set(thread(lane), pred, u64::from(lane == leader));
                }
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

/// The lane that `lane` reads from in a shuffle, and whether it lies in the segment (else it is `lane` itself).
#[must_use]
pub(crate) fn shuffle_source(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let highest = (lane & segment) | (clamp & !segment);
    let lowest = lane & segment;
    let (source, inside) = match mode {
        // The comparison is of signed numbers: a source below lane 0 is outside.
        ShflMode::Up => (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= highest.cast_signed()),
        ShflMode::Down => (lane + b, lane + b <= highest),
        ShflMode::Bfly => (lane ^ b, (lane ^ b) <= highest),
        ShflMode::Idx => {
            let source = lowest | (b & !segment);
            (source, source <= highest)
        }
    };
    if inside { (source & 31, true) } else { (lane, false) }
}
