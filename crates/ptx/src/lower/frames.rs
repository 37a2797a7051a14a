//! What a unit in a circle of calls keeps over a call: the registers of its own that are read after it.

use std::collections::HashMap;

use super::graph::{Graph, marked, successors};
use super::slots::Laid;
use super::stack::{Dynamic, Opened, higher, load, store, sum};
use super::units::{Site, Stack, Units};
use crate::error::PtxError;
use crate::ir::{Address, Cmp, Inst, IntOp, Op, Operand, Order, PredRef, Reg, RegTy, Space, Term, Ty};
use crate::operands::{inst_reads, writes};

/// Most bits of liveness: blocks times registers of one unit.
const MOST_BITS: usize = 1 << 30;

/// A set of a unit's registers, by their place among these.
type Set = Vec<u64>;

/// Registers of a unit, numbered.
struct Own {
    regs: Vec<Reg>,
    of: HashMap<Reg, usize>,
}

impl Own {
    fn of(graph: &Graph, unit: usize) -> Own {
        let owners = graph.owners().iter().enumerate().filter(|(_, owner)| **owner as usize == unit);
        let regs: Vec<Reg> = owners.map(|(at, _)| Reg(at as u32)).collect();
        let of = regs.iter().enumerate().map(|(at, reg)| (*reg, at)).collect();
        Own { regs, of }
    }
    fn words(&self) -> usize {
        self.regs.len().div_ceil(64)
    }
    fn add(&self, set: &mut Set, reg: Reg) {
        if let Some(at) = self.of.get(&reg) {
            set[at / 64] |= 1 << (at % 64);
        }
    }
    fn remove(&self, set: &mut Set, reg: Reg) {
        if let Some(at) = self.of.get(&reg) {
            set[at / 64] &= !(1 << (at % 64));
        }
    }
    fn members(&self, set: &Set) -> Vec<Reg> {
        let members = self.regs.iter().enumerate().filter(|(at, _)| set[at / 64] >> (at % 64) & 1 != 0);
        members.map(|(_, reg)| *reg).collect()
    }
}

/// What marks of calls stand for.
pub(super) fn keep(
    graph: &mut Graph,
    units: &Units,
    stack: Stack,
    laid: &Laid,
    line: u32,
) -> Result<HashMap<Reg, Vec<Op>>, PtxError> {
    let mut marks = HashMap::new();
    let mut by_caller: HashMap<usize, Vec<Site>> = HashMap::new();
    for site in &units.sites {
        by_caller.entry(site.caller).or_default().push(*site);
    }
    for opened in &units.opened {
        by_caller.entry(opened.unit).or_default();
    }
    let mut callers: Vec<usize> = by_caller.keys().copied().collect();
    callers.sort_unstable();
    for caller in callers {
        let sites = &by_caller[&caller];
        let own = Own::of(graph, caller);
        let live = live_out(graph, units, caller, &own, laid, sites, line)?;
        let variables = laid.frames[caller].next_multiple_of(16);
        let mut kept = Vec::with_capacity(sites.len());
        for site in sites {
            let circle = |unit: usize| units.list[unit].circle;
            let regs = if circle(site.caller) == circle(site.callee) {
                own.members(&live[site.call - units.list[caller].blocks.start])
            } else {
                Vec::new()
            };
            kept.push(Kept::new(graph, regs, variables, line)?);
        }
        let end = kept.iter().map(|k| k.end).max().unwrap_or(variables).next_multiple_of(16);
        let Stack { sp, next, .. } = stack;
        for (site, kept) in sites.iter().zip(kept) {
            let mut before = kept.stores(sp);
            before.push(sum(next, sp, Operand::Imm(end)));
            let to_next = Op::Mov { ty: Ty::U32, dst: next, src: Operand::Reg(sp) };
            // Where frames are as long as the function wants them to be, the caller's begin is noted below the callee's.
            let to_own = match units.dynamic {
                Some(Dynamic { top, .. }) => {
                    before.push(higher(next, next, top));
                    before.push(sum(next, next, Operand::Imm(16)));
                    before.push(store(next, -16, Operand::Reg(sp)));
                    load(sp, sp, -16)
                }
                None => {
                    let (a, b) = (Operand::Reg(sp), Operand::Imm(end));
                    Op::Int { op: IntOp::Sub, ty: Ty::U32, sat: false, dst: sp, a, b }
                }
            };
            marks.insert(site.before, before);
            marks.insert(site.back, vec![to_next, to_own]);
            marks.insert(site.after, kept.loads(sp));
        }
        for Opened { mark, .. } in units.opened.iter().filter(|opened| opened.unit == caller) {
            if let Some(Dynamic { top, .. }) = units.dynamic {
                marks.insert(*mark, vec![sum(*mark, sp, Operand::Imm(end)), higher(top, top, *mark)]);
            }
        }
    }
    Ok(marks)
}

/// Registers read after each block of the unit. A call goes on where it returns.
fn live_out(
    graph: &Graph,
    units: &Units,
    unit: usize,
    own: &Own,
    laid: &Laid,
    sites: &[Site],
    line: u32,
) -> Result<Vec<Set>, PtxError> {
    let blocks = units.list[unit].blocks.clone();
    if blocks.len().saturating_mul(own.regs.len()) > MOST_BITS {
        return Err(PtxError::unsupported(line, "a recursive function of this size is not supported"));
    }
    let calls: HashMap<usize, &Site> = sites.iter().map(|site| (site.call, site)).collect();
    let rests: HashMap<usize, &Site> = sites.iter().map(|site| (site.rest, site)).collect();
    let (mut outs, mut ins) = (vec![vec![0; own.words()]; blocks.len()], vec![vec![0; own.words()]; blocks.len()]);
    let mut nexts: Vec<Vec<usize>> = Vec::with_capacity(blocks.len());
    let mut befores: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for block in blocks.clone() {
        let mut next = Vec::new();
        match (calls.get(&block), graph.term(block)) {
            (Some(site), _) => next.push(site.rest),
            // The exit: the callers read the results.
            (None, Some(_)) if block + 1 == blocks.end => {}
            (None, Some(term)) => successors(term, |to| next.extend(graph.block_of(to))),
            (None, None) => {}
        }
        next.retain(|to| blocks.contains(to));
        for to in &next {
            befores[to - blocks.start].push(block - blocks.start);
        }
        nexts.push(next);
    }
    let exit = blocks.len() - 1;
    for reg in units.list[unit].read_at_exit() {
        own.add(&mut outs[exit], reg);
    }
    for slot in units.list[unit].result_slots() {
        for reg in laid.regs(slot) {
            own.add(&mut outs[exit], reg);
        }
    }
    let mut work: Vec<usize> = (0..blocks.len()).collect();
    let mut waits = vec![true; blocks.len()];
    while let Some(at) = work.pop() {
        waits[at] = false;
        let mut live = std::mem::take(&mut outs[at]);
        for to in &nexts[at] {
            for (word, more) in live.iter_mut().zip(&ins[to - blocks.start]) {
                *word |= more;
            }
        }
        outs[at].clone_from(&live);
        let block = blocks.start + at;
        through(graph, block, calls.get(&block).copied(), rests.get(&block).copied(), own, &mut live);
        if live != ins[at] {
            ins[at] = live;
            for before in &befores[at] {
                if !std::mem::replace(&mut waits[*before], true) {
                    work.push(*before);
                }
            }
        }
    }
    Ok(outs)
}

/// The register that a block's end reads.
fn read_by(term: &Term, mut f: impl FnMut(Reg)) {
    match term {
        Term::CondBra { p, .. } => f(p.reg),
        Term::BrIdx { index: Operand::Reg(reg), .. } => f(*reg),
        _ => {}
    }
}

/// From what is live after the instructions to what is live before them.
fn backwards(insts: &[Inst], own: &Own, live: &mut Set) {
    for inst in insts.iter().rev().filter(|i| marked(i).is_none()) {
        if inst.guard.is_none() {
            for reg in writes(&inst.op) {
                own.remove(live, reg);
            }
        }
        inst_reads(inst, &mut |reg| own.add(live, reg));
    }
}

/// From what is live after a block to what is live before it. The block may begin with the return from a call, and end with
/// a call: what is read after the call is kept over it, whatever becomes of the registers meanwhile.
fn through(graph: &Graph, block: usize, call: Option<&Site>, rest: Option<&Site>, own: &Own, live: &mut Set) {
    let insts = graph.insts(block);
    let place = |mark: Reg| insts.iter().position(|i| marked(i) == Some(mark));
    let end = match call.and_then(|site| place(site.before)) {
        Some(before) => {
            let mut arguments = vec![0; own.words()];
            backwards(&insts[before..], own, &mut arguments);
            live.iter_mut().zip(arguments).for_each(|(word, more)| *word |= more);
            before
        }
        None => {
            if let Some(term) = graph.term(block) {
                read_by(term, |reg| own.add(live, reg));
            }
            insts.len()
        }
    };
    let start = rest.and_then(|site| place(site.after)).unwrap_or(0);
    backwards(&insts[start..end], own, live);
    // The callee's results are read here: they are not what the caller had there.
    for reg in insts[..start].iter().filter(|i| marked(i).is_none()).flat_map(|i| writes(&i.op)) {
        own.remove(live, reg);
    }
}

/// Registers with their places in the frame.
struct Kept {
    /// Register, its class, offset, and for predicates a register of 16 bits.
    regs: Vec<(Reg, RegTy, u64, Option<Reg>)>,
    end: u64,
}

impl Kept {
    fn new(graph: &mut Graph, regs: Vec<Reg>, start: u64, line: u32) -> Result<Kept, PtxError> {
        let mut sized: Vec<(Reg, RegTy)> = regs.into_iter().map(|reg| (reg, graph.ty(reg))).collect();
        // The widest first: so all are aligned.
        sized.sort_by_key(|(reg, class)| (std::cmp::Reverse(stored(*class).bytes()), *reg));
        let mut kept = Kept { regs: Vec::with_capacity(sized.len()), end: start };
        for (reg, class) in sized {
            let narrow = if class == RegTy::Pred { Some(graph.reg(RegTy::B16, line)?) } else { None };
            kept.regs.push((reg, class, kept.end, narrow));
            kept.end += u64::from(stored(class).bytes());
        }
        Ok(kept)
    }

    fn stores(&self, sp: Reg) -> Vec<Op> {
        let mut ops = Vec::new();
        for (reg, class, offset, narrow) in &self.regs {
            let value = match narrow {
                Some(narrow) => {
                    let p = PredRef { reg: *reg, negate: false };
                    ops.push(Op::Selp { ty: Ty::B16, dst: *narrow, a: Operand::Imm(1), b: Operand::Imm(0), p });
                    *narrow
                }
                None => *reg,
            };
            let (space, order, srcs) = (Space::Local, Order::Weak, vec![Operand::Reg(value)]);
            ops.push(Op::St { space, ty: stored(*class), order, srcs, addr: at(sp, *offset) });
        }
        ops
    }

    fn loads(&self, sp: Reg) -> Vec<Op> {
        let mut ops = Vec::new();
        for (reg, class, offset, narrow) in &self.regs {
            let (space, order, dsts) = (Space::Local, Order::Weak, vec![Some(narrow.unwrap_or(*reg))]);
            ops.push(Op::Ld { space, ty: stored(*class), order, dsts, addr: at(sp, *offset) });
            if let Some(narrow) = narrow {
                let (a, b) = (Operand::Reg(*narrow), Operand::Imm(0));
                let (cmp, ty, ftz) = (Cmp::Ne, Ty::B16, false);
                ops.push(Op::Setp { cmp, ty, ftz, dst: *reg, dst2: None, a, b, combine: None });
            }
        }
        ops
    }
}

fn at(sp: Reg, offset: u64) -> Address {
    Address { base: Operand::Reg(sp), offset: offset.cast_signed() }
}

/// The type in which a register is stored.
fn stored(class: RegTy) -> Ty {
    match class {
        RegTy::Pred | RegTy::B16 => Ty::B16,
        RegTy::B32 => Ty::B32,
        RegTy::B64 => Ty::B64,
        RegTy::B128 => Ty::B128,
    }
}
