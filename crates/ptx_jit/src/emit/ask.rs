//! One question for several accesses: where a node accesses memory at places that are known before the first of them, all that must hold
//! for them is asked there. They are done without another branch then, in one block, where operations take what they load from where it
//! lies ([`super::sink`]); else one by one, as everywhere.

use cranelift_codegen::ir::{Block, InstBuilder};
use ptx::ir::{Address, Inst, Op, Operand, Order, Space, Ty};

use super::Emit;
use super::consecutive::vectorable;
use super::memory::Checks;
use crate::analysis::operands;
use crate::analysis::regset::RegSet;

/// Most instructions between an access and the next one.
const FAR: usize = 16;
/// How far behind the last one an instruction may use what it loads, and still belong to them.
const TAIL: usize = 8;
/// Most instructions that there is code of twice for this, in a row.
const MOST: usize = 256;
/// Most conditions that are asked in a row: what each computes is kept for the accesses.
const MOST_ASKED: usize = 12;

/// Accesses of a node that can be asked about together, and where the instructions end that belong to them.
struct Segment {
    accesses: Vec<usize>,
    end: usize,
}

impl<'a> Emit<'a, '_> {
    /// Emits instructions of a node from `first` on, if several of them access memory and can be asked about together; where they end.
    pub(super) fn asked_together(&mut self, insts: &'a [Inst], first: usize, late: &[usize]) -> Option<usize> {
        if self.twice || self.exec.is_some() || self.plan.lanes() == 1 {
            return None;
        }
        let mut checked = self.checked.clone();
        let Segment { accesses, end } = self.segment(insts, first, late)?;
        // What that took is computed anew, each condition right before it is asked for.
        self.checked.clone_from(&checked);
        let mut indices = self.indices.clone();
        let [slow, on] = [(); 2].map(|()| self.b.create_block());
        self.ask(insts, &accesses, slow);
        self.twice = true;
        self.instructions(insts, first..end, late);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(slow);
        (self.checked, self.indices) = (checked.clone(), indices.clone());
        let others = self.b.func.dfg.num_blocks();
        self.instructions(insts, first..end, late);
        self.b.ins().jump(on, &[]);
        let others = others..self.b.func.dfg.num_blocks();
        for block in others.map(|block| Block::from_u32(block as u32)).chain([slow]) {
            self.b.set_cold_block(block);
        }
        self.twice = false;
        self.b.switch_to_block(on);
        // What is known of registers that do not change on the way still holds.
        let mut written = RegSet::default();
        let mut noted = Vec::new();
        for inst in insts[first..end].iter().rev() {
            operands::writes(&inst.op).into_iter().for_each(|r| _ = written.insert(r));
            let mut stands = true;
            operands::inst_reads(inst, &mut |r| stands &= !written.contains(r));
            if stands {
                noted.push(inst);
            }
        }
        checked.retain(|range| !written.contains(range.base));
        indices.retain(|&r, _| !written.contains(r));
        (self.checked, self.indices) = (checked, indices);
        noted.into_iter().rev().for_each(|inst| self.note_index(&inst.op));
        Some(end)
    }

    /// Goes to `slow` if something does not hold of what must for the accesses; code goes on here for all of it.
    fn ask(&mut self, insts: &[Inst], accesses: &[usize], slow: Block) {
        let mut asked = Checks::new();
        for (space, ty, count, addr) in accesses.iter().filter_map(|&i| access(&insts[i])) {
            for fine in self.what_must_hold(space, ty, count, addr).unwrap_or_default() {
                if !asked.contains(&fine) {
                    let next = self.b.create_block();
                    self.b.ins().brif(fine, next, &[], slow, &[]);
                    self.b.switch_to_block(next);
                    asked.push(fine);
                }
            }
        }
        self.checked.iter_mut().for_each(|range| range.settle(&asked));
    }

    /// Which instructions from `first` on; none if nothing is gained.
    fn segment(&mut self, insts: &'a [Inst], first: usize, late: &[usize]) -> Option<Segment> {
        access(&insts[first])?;
        self.upcoming = &insts[first..];
        let (mut asked, mut accesses, mut last) = (Checks::new(), Vec::new(), first);
        let (mut written, mut loaded) = (RegSet::default(), RegSet::default());
        let follows = |i: usize| plain(&insts[i]) && !late.contains(&i);
        for (i, inst) in insts.iter().enumerate().skip(first).take(MOST) {
            if i - last > FAR || !follows(i) {
                break;
            }
            let writes = operands::writes(&inst.op);
            if let Some((space, ty, count, addr)) = access(inst) {
                let known = matches!(addr.base, Operand::Reg(base) if !written.contains(base));
                let Some(fine) = known.then(|| self.what_must_hold(space, ty, count, addr)).flatten() else { break };
                let new: Checks = fine.into_iter().filter(|fine| !asked.contains(fine)).collect();
                if asked.len() + new.len() > MOST_ASKED {
                    break;
                }
                asked.extend(new);
                accesses.push(i);
                last = i;
                writes.iter().for_each(|&r| _ = loaded.insert(r));
            }
            writes.into_iter().for_each(|r| _ = written.insert(r));
        }
        if accesses.len() < 3 && accesses.len() <= asked.len() {
            return None;
        }
        let mut end = last + 1;
        for i in (end..insts.len()).take(TAIL).take_while(|&i| follows(i) && access(&insts[i]).is_none()) {
            let mut uses = false;
            operands::inst_reads(&insts[i], &mut |r| uses |= loaded.contains(r));
            if uses {
                end = i + 1;
            }
        }
        Some(Segment { accesses, end })
    }

    /// What must hold for an access that is one for all lanes, or one for each side by side.
    fn what_must_hold(&mut self, space: Space, ty: Ty, count: usize, addr: Address) -> Option<Checks> {
        let size = i64::from(ty.bytes()) * count as i64;
        let val = self.address(space, addr);
        let spaced = !self.is_one(space, &val);
        if spaced && !(vectorable(ty, count) && Self::distance(space, &val) == Some(size)) {
            return None;
        }
        self.covered(space, addr, size, spaced).map(|(_, fine)| fine)
    }
}

/// A weak load or store for all active lanes: space, type and number of its elements, and where. Parameters by name need no question.
fn access(inst: &Inst) -> Option<(Space, Ty, usize, Address)> {
    let (space, ty, order, count, addr) = match &inst.op {
        Op::Ld { space, ty, order, dsts, addr } => (*space, *ty, *order, dsts.len(), *addr),
        Op::St { space, ty, order, srcs, addr } => (*space, *ty, *order, srcs.len(), *addr),
        _ => return None,
    };
    let asks = !matches!((space, addr.base), (Space::Param, Operand::Imm(_)));
    (asks && inst.guard.is_none() && order == Order::Weak && ty.bits() < 128).then_some((space, ty, count, addr))
}

/// Is it such an access, or arithmetic, or does it read a parameter?
fn plain(inst: &Inst) -> bool {
    let arithmetic = matches!(
        inst.op,
        Op::Mov { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Int { .. }
            | Op::Mul { .. }
            | Op::Mad { .. }
            | Op::IntUn { .. }
            | Op::Bfe { .. }
            | Op::Bfi { .. }
            | Op::Prmt { .. }
            | Op::Shf { .. }
            | Op::Lop3 { .. }
            | Op::Float { .. }
            | Op::Fma { .. }
            | Op::FloatUn { .. }
            | Op::Setp { .. }
            | Op::Selp { .. }
            | Op::Slct { .. }
            | Op::Cvt { .. }
            | Op::Cvta { .. }
            | Op::Ld { space: Space::Param, addr: Address { base: Operand::Imm(_), .. }, .. }
    );
    inst.guard.is_none() && (arithmetic || access(inst).is_some())
}
