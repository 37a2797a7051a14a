//! One question for several accesses: where a node accesses memory at places that are known before the first of them, all that must hold
//! for them is asked there. They are done without another branch then, in one block, where operations take what they load from where it
//! lies ([`super::sink`]); else one by one, as everywhere. Of an array's elements side by side, whose indices are one number and constants
//! that are added to it, as of a loop unrolled, one question is enough. Where a chunk is one lane, others that ask for themselves may be
//! among them.

use cranelift_codegen::ir::{Block, InstBuilder, Value};
use ptx::ir::{Address, Inst, Op, Operand, Order, Reg, RegTy, Space, Ty};

use super::Emit;
use super::consecutive::vectorable;
use super::fixed::{Reach, Room};
use super::memory::{Checked, Checks, Host, MAX_SPAN};
use super::rare::Rare;
use crate::analysis::classes::Class;
use crate::analysis::operands;
use crate::analysis::pointers::Base;
use crate::analysis::regset::RegSet;

/// Most instructions between an access and the next one.
const FAR: usize = 16;
/// How far behind the last one an instruction may use what it loads, and still belong to them.
const TAIL: usize = 8;
/// Most instructions that there is code of twice for this, one behind another.
const MOST: usize = 256;
/// Most conditions that are asked in a row: what each computes is kept for the accesses.
const MOST_ASKED: usize = 12;

/// Most that is added to an index.
const MOST_AHEAD: i64 = 256;

/// Accesses of a node that can be asked about together, and where the instructions end that belong to them.
struct Segment {
    accesses: Vec<usize>,
    end: usize,
}

/// Elements of one array around one index.
struct Series {
    space: Space,
    /// Bytes of an element.
    size: i64,
    /// Where the array begins, but for the number in it.
    base: Base,
    scale: i64,
    signed: bool,
    index: Value,
    elements: Vec<Element>,
}

/// One of them: its address is in `r`, but for the offset, and `by` bytes behind that of the index.
#[derive(Clone, Copy)]
struct Element {
    r: Reg,
    offset: i64,
    by: i64,
    ahead: i64,
}

impl Series {
    /// Do these elements belong to another series?
    fn continues(&self, other: &Series) -> bool {
        let of = |one: &Series| (one.space, one.size, one.scale, one.signed, one.index);
        let aligned = |a: &Element, b: &Element| a.by.wrapping_sub(b.by) % self.size == 0;
        of(self) == of(other) && self.base == other.base && aligned(&self.elements[0], &other.elements[0])
    }

    /// Are there several indices?
    fn is_long(&self) -> bool {
        self.elements.iter().any(|element| element.ahead != self.elements[0].ahead)
    }

    /// Has another array the same index, without a sign, so that one limit is that of both?
    fn shares_index(&self, other: &Series) -> bool {
        !self.signed && !other.signed && self.index == other.index && !std::ptr::eq(self, other)
    }

    /// From the lowest element to the highest; none if that is too far.
    fn reach(&self) -> Option<Reach> {
        let all = |of: fn(&Element) -> i64| self.elements.iter().map(of);
        let (low, high) = (all(|e| e.by).min()?, all(|e| e.by).max()?);
        let most = all(|e| e.ahead).max()?;
        let span = high.checked_sub(low).filter(|&span| span <= MAX_SPAN[1])? + self.size;
        self.size.cast_unsigned().is_power_of_two().then(|| Reach {
            base: Base { number: low, ..self.base.clone() },
            scale: self.scale,
            signed: self.signed,
            size: self.size,
            span,
            ahead: most,
        })
    }
}

/// What has been made of this before.
fn made_before<T: PartialEq>(made: &[(T, Value)], of: &T) -> Option<Value> {
    made.iter().find(|(other, _)| other == of).map(|(_, v)| *v)
}

impl<'a> Emit<'a, '_> {
    /// Emits instructions of a node from `first` on, if several of them access memory and can be asked about together; where they end.
    pub(super) fn asked_together(&mut self, insts: &'a [Inst], first: usize, late: &[usize]) -> Option<usize> {
        if self.twice || self.exec.is_some() {
            return None;
        }
        let mut checked = self.checked.clone();
        let segment = self.segment(insts, first, late);
        // What that took is computed anew, each condition right before it is asked for.
        self.checked.clone_from(&checked);
        let Segment { accesses, end } = segment?;
        let mut indices = self.indices.clone();
        let [slow, on] = [(); 2].map(|()| self.b.create_block());
        self.ask(insts, &accesses, slow);
        self.twice = true;
        self.instructions(insts, first..end, late);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(slow);
        (self.checked, self.indices) = (checked.clone(), indices.clone());
        let others = self.b.func.dfg.num_blocks();
        self.rarely = true;
        self.instructions(insts, first..end, late);
        self.rarely = false;
        self.b.ins().jump(on, &[]);
        let others = others as u32..self.b.func.dfg.num_blocks() as u32;
        for block in others.clone().map(Block::from_u32).chain([slow]) {
            self.b.set_cold_block(block);
        }
        self.rare.push(Rare { head: slow, others });
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
        self.note_series(insts, accesses);
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
        // The address of an element of a series is right only where nothing of it wraps: none is left that was not asked about.
        self.checked.retain(Checked::is_settled);
    }

    /// Which instructions from `first` on; none if nothing is gained.
    fn segment(&mut self, insts: &'a [Inst], first: usize, late: &[usize]) -> Option<Segment> {
        access(&insts[first])?;
        self.upcoming = &insts[first..];
        let follows = |i: usize| plain(&insts[i]) && !late.contains(&i);
        let alone = self.plan.lanes() == 1;
        // Those at places that are known here.
        let (mut known, mut written, mut last) = (Vec::new(), RegSet::default(), first);
        for (i, inst) in insts.iter().enumerate().skip(first).take(MOST) {
            if i - last > FAR || !follows(i) {
                break;
            }
            match access(inst) {
                Some((.., Address { base: Operand::Reg(base), .. })) if !written.contains(base) => {
                    known.push(i);
                    last = i;
                }
                Some(_) if !alone => break,
                _ => {}
            }
            operands::writes(&inst.op).into_iter().for_each(|r| _ = written.insert(r));
        }
        self.note_series(insts, &known);
        let (mut asked, mut accesses, mut last) = (Checks::new(), Vec::new(), first);
        for i in known {
            if i - last > FAR {
                break;
            }
            let Some((space, ty, count, addr)) = access(&insts[i]) else { continue };
            let Some(fine) = self.what_must_hold(space, ty, count, addr) else {
                if alone {
                    continue;
                }
                break;
            };
            let new: Checks = fine.into_iter().filter(|fine| !asked.contains(fine)).collect();
            if asked.len() + new.len() > MOST_ASKED {
                break;
            }
            asked.extend(new);
            accesses.push(i);
            last = i;
        }
        if accesses.len() < 3 && accesses.len() <= asked.len() {
            return None;
        }
        let mut loaded = RegSet::default();
        for inst in insts[first..=last].iter().filter(|inst| access(inst).is_some()) {
            operands::writes(&inst.op).into_iter().for_each(|r| _ = loaded.insert(r));
        }
        let mut end = last + 1;
        for i in (end..insts.len()).take(TAIL).take_while(|&i| follows(i) && access(&insts[i]).is_none()) {
            // A comparison stays with the branch that it is for.
            let mut uses = false;
            operands::inst_reads(&insts[i], &mut |r| uses |= loaded.contains(r));
            if uses && !matches!(&insts[i].op, Op::Setp { .. }) {
                end = i + 1;
            }
        }
        Some(Segment { accesses, end })
    }

    /// The series that accesses, each one for all lanes, belong to.
    fn series(&mut self, insts: &[Inst], accesses: &[usize]) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        for (space, ty, count, addr) in accesses.iter().filter_map(|&i| access(&insts[i])) {
            let size = i64::from(ty.bytes()) * count as i64;
            let Operand::Reg(r) = addr.base else { continue };
            let global = matches!(space, Space::Global | Space::Const | Space::Generic);
            if !global || self.reg_ty(r) != RegTy::B64 || self.class(r) != Class::Same {
                continue;
            }
            let val = self.get(r);
            let Some((pointer, index)) = self.pointer(r, &val) else { continue };
            let (index, ahead) = self.sum(index);
            let at = addr.offset.checked_add(size).and_then(|_| pointer.base.number.checked_add(addr.offset));
            let by = pointer.scale.checked_mul(ahead).and_then(|by| by.checked_add(at?));
            let (0..=MOST_AHEAD, Some(by)) = (ahead, by) else { continue };
            let element = Element { r, offset: addr.offset, by, ahead };
            let base = Base { number: 0, ..pointer.base };
            let series = Series {
                space,
                size,
                base,
                scale: pointer.scale,
                signed: pointer.signed,
                index,
                elements: vec![element],
            };
            match all.iter_mut().find(|other| series.continues(other)) {
                Some(found) => found.elements.push(element),
                None => all.push(series),
            }
        }
        all
    }

    /// Notes what must hold for accesses whose indices are one value and numbers that are added to it: that there is room from the lowest
    /// element to the highest one, and that no index wraps. Then all of them are where they are without a wrap.
    fn note_series(&mut self, insts: &[Inst], accesses: &[usize]) {
        let all = self.series(insts, accesses);
        let mut reached: Vec<(&Series, Reach, Room)> = Vec::new();
        for series in all.iter().filter(|one| one.is_long() || all.iter().any(|other| one.shares_index(other))) {
            let Some(reach) = series.reach() else { continue };
            let Some(room) = self.room(&reach) else { continue };
            reached.push((series, reach, room));
        }
        let mut extended: Vec<((Value, bool), Value)> = Vec::new();
        let mut asked: Vec<([Value; 2], Value)> = Vec::new();
        for (series, reach, room) in &reached {
            let of = (series.index, series.signed);
            let index = made_before(&extended, &of).unwrap_or_else(|| self.extended(series.index, series.signed));
            extended.push((of, index));
            // One limit for all arrays that an index without a sign is into; where there are signs, each array adds its own number.
            let alike =
                reached.iter().filter(|(other, ..)| std::ptr::eq(*series, *other) || series.shares_index(other));
            let limits: Vec<Value> = alike.map(|(.., room)| room.limit).collect();
            let room = room.to(self.least(&limits).unwrap_or(room.limit));
            let fine =
                made_before(&asked, &[index, room.limit]).unwrap_or_else(|| self.is_below(room, series.signed, index));
            asked.push(([index, room.limit], fine));
            let host = self.host_of(room, reach, index);
            for &Element { r, offset, by, .. } in &series.elements {
                let host = Host::Whole(self.moved(host, by - reach.base.number));
                self.checked.push(Checked::of_one(series.space, (r, offset), series.size, host, fine));
            }
        }
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
