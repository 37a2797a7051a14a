//! How a register's value varies over the lanes of a chunk (so many consecutive threads that are run together).
//!
//! Levels: the same in all lanes; affine, that is a base plus a multiple of the lane number; varying. 64-bit
//! affine values keep the 32-bit index they were widened from, because the index may wrap within a chunk:
//! `c + k * extend(b + stride * lane)`. Such a value is exact whatever the index does; only a contiguous access needs to
//! know that it did not wrap, and asks at run time. An index that cannot wrap, since it is a thread's own, may be multiplied by a number
//! that is known only when the code runs, as arrays have whose strides are parameters: `base + step * lane`. Languages whose indices have 32 bits
//! compute in the upper halves of such numbers, and take out of these `c + extend(b + step * lane)`.
//!
//! A register of the first two levels is a scalar or two for the whole chunk, so lanes that are elsewhere must not miss its
//! old value: a write on one side of a divergent branch makes the register varying if it is live on another side or
//! where the sides meet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ptx::ir::{Cmp, Inst, IntOp, Kernel, MulPart, Op, Operand, PredRef, Reg, RegTy, SReg, Space, Ty};
use ptx::launch::WARP;

use super::graph::{Node, NodeId, NodeTerm};
use super::liveness::Liveness;
use super::regset::{RegSet, Sum};
use super::{PATIENCE, operands};

/// Level of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Never written.
    Unknown,
    /// The same in all lanes.
    Same,
    /// 32 bits: base + stride * lane, wrapping.
    Affine { stride: i32 },
    /// 64 bits: c + k * extend(b + stride * lane), extended as signed or not; `whole`: the index does not wrap in a chunk.
    Wide { stride: i32, k: i64, signed: bool, whole: bool },
    /// 64 bits: base + step * lane, wrapping, with a step that is known when the code runs.
    Linear,
    /// 64 bits: c + extend(b + step * lane), extended as signed; the step, of 32 bits like b, is known when the code runs.
    Extended,
    /// One value per lane.
    Varying,
}

impl Class {
    fn meet(self, other: Class) -> Class {
        match (self, other) {
            (Class::Unknown, x) | (x, Class::Unknown) => x,
            (a, b) if a == b => a,
            (
                Class::Wide { stride, k, signed, .. },
                Class::Wide { stride: other_stride, k: other_k, signed: other_signed, .. },
            ) if (stride, k, signed) == (other_stride, other_k, other_signed) => {
                Class::Wide { stride, k, signed, whole: false }
            }
            _ => Class::Varying,
        }
    }
}

/// What is known of the shape of the CTA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block: [u32; 3],
    /// Lanes of a chunk.
    pub(crate) lanes: u32,
}

impl Shape {
    pub(crate) fn threads(self) -> u32 {
        self.block.iter().product()
    }
    /// Does a chunk never reach over the end of a row of threads?
    pub(crate) fn rowed(self) -> bool {
        self.block[0].is_multiple_of(self.lanes) || (self.block[1] == 1 && self.block[2] == 1)
    }
}

/// The class of a special register.
pub(crate) fn special(sreg: SReg, shape: Shape) -> Class {
    match sreg {
        _ if shape.lanes == 1 => Class::Same,
        SReg::Tid(axis) if shape.block[usize::from(axis.min(2))] == 1 => Class::Same,
        SReg::Tid(0) if shape.rowed() => Class::Affine { stride: 1 },
        SReg::Tid(_) if shape.rowed() => Class::Same,
        SReg::LaneId => Class::Affine { stride: 1 },
        SReg::Tid(_) | SReg::LanemaskEq | SReg::LanemaskLe | SReg::LanemaskLt | SReg::LanemaskGe | SReg::LanemaskGt => {
            Class::Varying
        }
        _ => Class::Same,
    }
}

/// Times that classes are found anew because a branch was found to split chunks.
const MAX_ROUNDS: usize = 32;

/// Computes the class of every register, and which nodes end in a branch that may split a chunk. The nodes are visited in
/// `order`.
pub(crate) fn classify(
    kernel: &Kernel,
    nodes: &[Node],
    order: &[NodeId],
    live: &Liveness,
    post: &[Option<NodeId>],
    shape: Shape,
    strict: bool,
) -> (Vec<Class>, Vec<bool>) {
    let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
    let mut force = Force {
        successors: &successors,
        live,
        forced: RegSet::default(),
        sums: [(); 2].map(|()| Sum::of(kernel.regs.len())),
        seen: vec![0; nodes.len()],
        stamp: 0,
        patience: PATIENCE,
    };
    let flow = Flow::new(kernel, nodes, order);
    let mut divergent = vec![false; nodes.len()];
    for round in 0.. {
        let (classes, _) = propagate(&flow, live, &force.forced, shape);
        let mut changed = false;
        for (n, node) in nodes.iter().enumerate() {
            let reg = match &node.term {
                NodeTerm::Cond { p, .. } => p.reg,
                NodeTerm::Index { index: Operand::Reg(r), .. } => *r,
                _ => continue,
            };
            let splits = !matches!(classes[reg.0 as usize], Class::Same | Class::Unknown);
            if splits && !divergent[n] {
                divergent[n] = true;
                let end = if strict { None } else { post[n] };
                changed |= force.branch(&successors[n], end);
            }
        }
        if force.patience == 0 || round == MAX_ROUNDS {
            changed |= force.everything();
        }
        if !changed {
            return (classes, divergent);
        }
    }
    unreachable!("classes are found in {MAX_ROUNDS} rounds, and one more in which all registers vary")
}

/// Makes varying what lanes that have parted must not share.
struct Force<'a> {
    successors: &'a [Vec<NodeId>],
    live: &'a Liveness,
    forced: RegSet,
    /// Empty between searches: what is written, and what is wanted.
    sums: [Sum; 2],
    /// By node, the search that has seen it last.
    seen: Vec<usize>,
    stamp: usize,
    patience: usize,
}

impl Force<'_> {
    /// At a branch: what one side of it writes and another side, or the meeting point, still reads.
    fn branch(&mut self, sides: &[NodeId], end: Option<NodeId>) -> bool {
        let found: Vec<(RegSet, RegSet)> = sides.iter().map(|&side| self.side(side, end)).collect();
        // What is wanted by the sides before each, and then by those behind it.
        let mut changed = false;
        let mut wanted = RegSet::default();
        for (w, l) in &found {
            changed |= self.forced.add(&w.and(&wanted));
            wanted.add(l);
        }
        wanted = RegSet::default();
        for (w, l) in found.iter().rev() {
            changed |= self.forced.add(&w.and(&wanted));
            wanted.add(l);
        }
        changed
    }

    /// What one side of a branch writes until the sides meet, and what it or the code behind it reads.
    fn side(&mut self, side: NodeId, end: Option<NodeId>) -> (RegSet, RegSet) {
        let [written, wanted] = &mut self.sums;
        self.patience = self.patience.saturating_sub((written.words() + wanted.words()) / 64);
        if self.patience == 0 {
            return (RegSet::default(), RegSet::default());
        }
        if let Some(end) = end {
            wanted.add(&self.live.live_in[end]);
        }
        self.stamp += 1;
        let mut work = vec![side];
        while let Some(n) = work.pop() {
            if Some(n) == end || std::mem::replace(&mut self.seen[n], self.stamp) == self.stamp || self.patience == 0 {
                continue;
            }
            let (defined, live_in) = (&self.live.defined[n], &self.live.live_in[n]);
            self.patience = self.patience.saturating_sub(1 + (defined.words() + live_in.words()) / 8);
            written.add(defined);
            wanted.add(live_in);
            work.extend(&self.successors[n]);
        }
        (written.take(), wanted.take())
    }

    /// All that is written anywhere.
    fn everything(&mut self) -> bool {
        self.patience = 0;
        let mut changed = false;
        for set in &self.live.defined {
            changed |= self.forced.add(set);
        }
        changed
    }
}

/// Registers that hold nothing but the thread index x.
fn indices(kernel: &Kernel) -> RegSet {
    let (mut index, mut other) = (RegSet::default(), RegSet::default());
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        for r in operands::writes(&inst.op) {
            let whole = matches!(inst.op, Op::Special { sreg: SReg::Tid(0), ty, .. } if ty.bits() == 32);
            if whole && inst.guard.is_none() {
                index.insert(r)
            } else {
                other.insert(r)
            };
        }
    }
    other.iter().for_each(|r| _ = index.remove(r));
    index
}

/// Is an instruction what takes the upper half of a register as a number?
fn takes_upper(op: &Op) -> Option<Reg> {
    match op {
        Op::Int { op: IntOp::Shr, ty: Ty::S64, a: Operand::Reg(r), b: Operand::Imm(32), .. } => Some(*r),
        _ => None,
    }
}

/// Registers of 64 bits whose lower half is always zero, if anybody takes the upper half of one.
fn uppers(kernel: &Kernel) -> RegSet {
    let insts = || kernel.blocks.iter().flat_map(|block| &block.insts);
    let mut uppers = RegSet::default();
    if !insts().any(|inst| takes_upper(&inst.op).is_some()) {
        return uppers;
    }
    for inst in insts() {
        let written = operands::writes(&inst.op).into_iter();
        written.filter(|r| kernel.regs[r.0 as usize] == RegTy::B64).for_each(|r| _ = uppers.insert(r));
    }
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for inst in insts() {
            let fine = is_upper(&inst.op, &uppers);
            for r in operands::writes(&inst.op) {
                changed |= !fine && uppers.remove(r);
            }
        }
        if !changed {
            return uppers;
        }
    }
    RegSet::default()
}

/// Is the lower half of the result zero, if it is of these registers?
fn is_upper(op: &Op, uppers: &RegSet) -> bool {
    let of = |o: &Operand| match o {
        Operand::Reg(r) => uppers.contains(*r),
        Operand::Imm(v) => *v as u32 == 0,
    };
    match op {
        Op::Int { op: IntOp::Shl, b: Operand::Imm(32..64), .. } => true,
        Op::Int { op: IntOp::Add | IntOp::Sub, sat: false, a, b, .. } => of(a) && of(b),
        Op::Mul { part: MulPart::Lo, a, b, .. } => of(a) || of(b),
        Op::Mad { part: MulPart::Lo, sat: false, a, b, c, .. } => (of(a) || of(b)) && of(c),
        Op::Mov { ty, src, .. } => ty.bits() == 64 && of(src),
        _ => false,
    }
}

/// The class of what an operation writes, by what is known of the kernel besides the classes of what it reads.
fn refined(flow: &Flow<'_>, classes: &[Class], op: &Op, dst: Reg, shape: Shape) -> Class {
    // One that not all lanes have written has a value for each lane.
    let index = |r: Reg| flow.index.contains(r) && matches!(classes[r.0 as usize], Class::Affine { .. });
    match result(flow.kernel, classes, op, dst, shape) {
        Class::Wide { stride, k, signed, .. } if extends(op, index) => Class::Wide { stride, k, signed, whole: true },
        Class::Varying if is_extension(op, &flow.upper, classes) => Class::Extended,
        Class::Varying if same_by_place(op, index, shape) => Class::Same,
        class => class,
    }
}

/// Is the result the same for the threads of a chunk because they lie in one row, side by side from a multiple of their
/// number on? So are the number of their warp, and comparisons of their index with such multiples.
fn same_by_place(op: &Op, index: impl Fn(Reg) -> bool, shape: Shape) -> bool {
    let is_index = |o: &Operand| matches!(o, Operand::Reg(r) if index(*r));
    let multiple = |n: u64| n.is_multiple_of(shape.lanes.into());
    shape.rowed()
        && match op {
            Op::Int { op: IntOp::Shr, a, b: Operand::Imm(n @ 0..32), .. } => is_index(a) && multiple(1 << n),
            Op::Int { op: IntOp::Div, a, b: Operand::Imm(n @ 1..), .. } => is_index(a) && multiple(*n),
            Op::Setp { cmp, ty, a, b: Operand::Imm(n), combine: None, .. } if is_index(a) && ty.bits() == 32 => {
                match cmp {
                    Cmp::Lt | Cmp::Ge => multiple(*n),
                    Cmp::Le | Cmp::Gt => multiple(*n + 1),
                    _ => false,
                }
            }
            _ => false,
        }
}

/// Is the result a thread's own index, extended? It has ten bits, and does not wrap.
fn extends(op: &Op, index: impl Fn(Reg) -> bool) -> bool {
    matches!(op, Op::Cvt { a: Operand::Reg(r), .. } if index(*r))
}

/// Is the result the upper half of what grows from lane to lane, and has nothing in its lower half?
fn is_extension(op: &Op, upper: &RegSet, classes: &[Class]) -> bool {
    takes_upper(op).is_some_and(|r| upper.contains(r) && classes[r.0 as usize] == Class::Linear)
}

/// The instructions of a kernel in the order of its nodes, and where registers are read.
struct Flow<'k> {
    kernel: &'k Kernel,
    /// Each with whether it joins lanes.
    insts: Vec<(&'k Inst, bool)>,
    /// Instructions that read, register by register.
    readers: Vec<usize>,
    /// By register, where its readers begin; they end where the next one's begin.
    first: Vec<usize>,
    /// Registers that hold nothing but the thread index x.
    index: RegSet,
    /// Registers of 64 bits whose lower half is always zero.
    upper: RegSet,
}

impl<'k> Flow<'k> {
    fn new(kernel: &'k Kernel, nodes: &[Node], order: &[NodeId]) -> Flow<'k> {
        let mut insts = Vec::new();
        for node in order.iter().map(|&n| &nodes[n]) {
            let list = kernel.blocks[node.block].insts[node.begin..node.end].iter().enumerate();
            insts.extend(list.map(|(at, inst)| (inst, at < node.joints)));
        }
        let mut first = vec![0; kernel.regs.len() + 1];
        for (inst, _) in &insts {
            operands::inst_reads(inst, &mut |r| first[r.0 as usize + 1] += 1);
        }
        for r in 1..first.len() {
            first[r] += first[r - 1];
        }
        let mut next = first.clone();
        let mut readers = vec![0; first[kernel.regs.len()]];
        for (at, (inst, _)) in insts.iter().enumerate() {
            operands::inst_reads(inst, &mut |r| {
                readers[next[r.0 as usize]] = at;
                next[r.0 as usize] += 1;
            });
        }
        Flow { kernel, insts, readers, first, index: indices(kernel), upper: uppers(kernel) }
    }

    fn readers(&self, r: Reg) -> &[usize] {
        &self.readers[self.first[r.0 as usize]..self.first[r.0 as usize + 1]]
    }
}

/// The classes, if the registers of `forced` vary; and how many instructions were looked at to find them: each once, and
/// again where what it reads has changed since.
fn propagate(flow: &Flow<'_>, live: &Liveness, forced: &RegSet, shape: Shape) -> (Vec<Class>, usize) {
    let mut classes = vec![Class::Unknown; flow.kernel.regs.len()];
    for r in forced.iter() {
        classes[r.0 as usize] = Class::Varying;
    }
    // Registers read before they are written are zero at the start.
    for r in live.live_in[0].iter() {
        let c = &mut classes[r.0 as usize];
        *c = c.meet(Class::Same);
    }
    let mut again = BinaryHeap::new();
    let mut queued = vec![false; flow.insts.len()];
    // Instructions before this one have been looked at.
    let mut seen = 0;
    let mut looks = 0;
    loop {
        let at = if seen < flow.insts.len() {
            seen += 1;
            seen - 1
        } else if let Some(Reverse(at)) = again.pop() {
            queued[at] = false;
            at
        } else {
            return (classes, looks);
        };
        looks += 1;
        let (inst, joint) = flow.insts[at];
        let guard = if joint { Class::Same } else { guard_class(&classes, inst.guard) };
        for dst in operands::writes(&inst.op) {
            let new =
                if guard == Class::Varying { Class::Varying } else { refined(flow, &classes, &inst.op, dst, shape) };
            let old = classes[dst.0 as usize];
            let met = old.meet(new);
            if met == old {
                continue;
            }
            classes[dst.0 as usize] = met;
            for &reader in flow.readers(dst) {
                if reader < seen && !std::mem::replace(&mut queued[reader], true) {
                    again.push(Reverse(reader));
                }
            }
        }
    }
}

fn guard_class(classes: &[Class], guard: Option<PredRef>) -> Class {
    guard.map_or(Class::Same, |p| classes[p.reg.0 as usize])
}

/// A comparison of an index that is affine over the lanes with a value that they share: lanes part in few chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) cmp: Cmp,
    pub(crate) signed: bool,
    /// Of what both are.
    pub(crate) ty: RegTy,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
}

/// The instruction as a bound, if it gives predicate `p` such a value.
pub(crate) fn bound(inst: &Inst, p: Reg, classes: &[Class]) -> Option<Bound> {
    let Inst { guard: None, op: Op::Setp { cmp, ty, dst, a, b, combine: None, .. }, .. } = inst else { return None };
    let (bits, stride) = match (operand(classes, *a), operand(classes, *b)) {
        (Class::Affine { stride }, Class::Same) | (Class::Same, Class::Affine { stride }) => (32, i64::from(stride)),
        (Class::Wide { stride, k, .. }, Class::Same) | (Class::Same, Class::Wide { stride, k, .. }) => {
            (64, k.checked_mul(stride.into())?)
        }
        _ => return None,
    };
    let integer = !ty.is_float() && ty.bits() == bits;
    let known = matches!(cmp, Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge | Cmp::Eq | Cmp::Ne);
    // The index must not wrap more than once in a chunk.
    let fine = *dst == p && integer && known && stride.unsigned_abs() <= u64::from(i32::MAX as u32 / WARP);
    fine.then_some(Bound { cmp: *cmp, signed: ty.is_signed(), ty: ty.reg(), a: *a, b: *b })
}

/// Class of an operand.
pub(crate) fn operand(classes: &[Class], o: Operand) -> Class {
    match o {
        Operand::Reg(r) => classes[r.0 as usize],
        Operand::Imm(_) => Class::Same,
    }
}

fn wide(stride: i32, k: i64, signed: bool, whole: bool) -> Class {
    if stride == 0 || k == 0 { Class::Varying } else { Class::Wide { stride, k, signed, whole } }
}

fn affine(stride: i32) -> Class {
    if stride == 0 { Class::Varying } else { Class::Affine { stride } }
}

/// Class of a product by an immediate.
fn scaled(class: Class, by: i64) -> Class {
    match class {
        Class::Affine { stride } => affine(stride.wrapping_mul(by as i32)),
        Class::Wide { stride, k, signed, whole } => wide(stride, k.wrapping_mul(by), signed, whole),
        Class::Extended => Class::Varying,
        other => other,
    }
}

/// Class of a sum.
fn sum(a: Class, b: Class, negate_b: bool) -> Class {
    match (a, b) {
        (Class::Unknown, _) | (_, Class::Unknown) => Class::Unknown,
        (Class::Same, Class::Same) => Class::Same,
        (Class::Affine { stride }, Class::Same) => affine(stride),
        (Class::Same, Class::Affine { stride }) => affine(if negate_b { stride.wrapping_neg() } else { stride }),
        (Class::Affine { stride: a }, Class::Affine { stride: b }) => {
            affine(if negate_b { a.wrapping_sub(b) } else { a.wrapping_add(b) })
        }
        (Class::Wide { .. } | Class::Linear | Class::Extended, Class::Same) => a,
        (Class::Same, Class::Wide { stride, k, signed, whole }) => {
            wide(stride, if negate_b { k.wrapping_neg() } else { k }, signed, whole)
        }
        (Class::Same | Class::Linear, Class::Linear)
        | (Class::Wide { whole: true, .. }, Class::Linear)
        | (Class::Linear, Class::Wide { whole: true, .. }) => Class::Linear,
        (Class::Same, Class::Extended) if !negate_b => b,
        _ => Class::Varying,
    }
}

/// Class of a product.
fn product(part: MulPart, ty: Ty, a: Operand, b: Operand, ca: Class, cb: Class) -> Class {
    if ca == Class::Unknown || cb == Class::Unknown {
        return Class::Unknown;
    }
    if ca == Class::Same && cb == Class::Same {
        return Class::Same;
    }
    let (class, by) = match (a, b) {
        (_, Operand::Imm(v)) => (ca, v),
        (Operand::Imm(v), _) => (cb, v),
        _ => {
            let grows = |class| matches!(class, Class::Wide { whole: true, .. } | Class::Linear);
            let linear = part == MulPart::Lo && ty.bits() == 64;
            return match (ca, cb) {
                (class, Class::Same) | (Class::Same, class) if linear && grows(class) => Class::Linear,
                _ => Class::Varying,
            };
        }
    };
    match part {
        MulPart::Lo if ty.bits() >= 32 => scaled(class, by as i64),
        MulPart::Wide if ty.bits() == 32 => match class {
            Class::Affine { stride } => {
                let by = if ty.is_signed() { i64::from(by as i32) } else { i64::from(by as u32) };
                wide(stride, by, ty.is_signed(), false)
            }
            _ => Class::Varying,
        },
        _ => Class::Varying,
    }
}

/// Class of what `op` writes to `dst`, from the classes of what it reads.
pub(crate) fn result(kernel: &Kernel, classes: &[Class], op: &Op, dst: Reg, shape: Shape) -> Class {
    match (raw_result(kernel, classes, op, dst, shape), kernel.regs[dst.0 as usize]) {
        (Class::Affine { .. }, RegTy::B16 | RegTy::B64 | RegTy::Pred) => Class::Varying,
        (Class::Wide { .. } | Class::Linear | Class::Extended, RegTy::B16 | RegTy::B32 | RegTy::Pred) => Class::Varying,
        (class, _) => class,
    }
}

fn raw_result(kernel: &Kernel, classes: &[Class], op: &Op, dst: Reg, shape: Shape) -> Class {
    if kernel.regs[dst.0 as usize] == RegTy::B128 {
        return Class::Varying;
    }
    let of = |o: Operand| operand(classes, o);
    let mut all = Class::Same;
    operands::reads(op, &mut |r| {
        all = match (all, classes[r.0 as usize]) {
            (Class::Varying, _) | (_, Class::Varying) => Class::Varying,
            (Class::Unknown, _) | (_, Class::Unknown) => Class::Unknown,
            (Class::Same, Class::Same) => Class::Same,
            _ => Class::Varying,
        };
    });
    match op {
        Op::Special { sreg, ty, .. } => match (special(*sreg, shape), ty.bits()) {
            (Class::Affine { .. }, bits) if bits != 32 => Class::Varying,
            (class, _) => class,
        },
        Op::Mov { src, ty, .. } if ty.bits() >= 32 => of(*src),
        Op::Int { op: IntOp::Add, ty, sat: false, a, b, .. } if ty.bits() >= 32 => sum(of(*a), of(*b), false),
        Op::Int { op: IntOp::Sub, ty, sat: false, a, b, .. } if ty.bits() >= 32 => sum(of(*a), of(*b), true),
        Op::Int { op: IntOp::Shl, ty, a, b: Operand::Imm(n), .. } if ty.bits() >= 32 && *n < u64::from(ty.bits()) => {
            scaled(of(*a), 1_i64.wrapping_shl(*n as u32))
        }
        Op::Mul { part, ty, a, b, .. } => product(*part, *ty, *a, *b, of(*a), of(*b)),
        Op::Mad { part, ty, sat: false, a, b, c, .. } if *part != MulPart::Hi => {
            sum(product(*part, *ty, *a, *b, of(*a), of(*b)), of(*c), false)
        }
        Op::Cvt { dst_ty, src_ty, sat: false, a, .. } if !dst_ty.is_float() && !src_ty.is_float() => {
            match (of(*a), src_ty.bits(), dst_ty.bits()) {
                (Class::Affine { stride }, 32, 64) => wide(stride, 1, src_ty.is_signed(), false),
                (Class::Wide { stride, k, .. }, 64, 32) => affine(stride.wrapping_mul(k as i32)),
                (c @ Class::Affine { .. }, 32, 32) => c,
                (c @ (Class::Wide { .. } | Class::Linear | Class::Extended), 64, 64) => c,
                _ => all,
            }
        }
        Op::Cvta { a, .. } if kernel.regs[dst.0 as usize] == RegTy::B64 => match of(*a) {
            Class::Affine { .. } => Class::Varying,
            c => c,
        },
        Op::Ld { space, .. } => match space {
            Space::Local => Class::Varying,
            Space::Generic if kernel.local_bytes > 0 => Class::Varying,
            _ => all,
        },
        Op::Atom { .. }
        | Op::Call { .. }
        | Op::Shfl { .. }
        | Op::Vote { .. }
        | Op::Match { .. }
        | Op::Redux { .. }
        | Op::Activemask { .. }
        | Op::Elect { .. }
        | Op::Mma { .. }
        | Op::Image { .. }
        | Op::LdMatrix { .. }
        | Op::MovMatrix { .. }
        | Op::Bar { .. } => Class::Varying,
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::analysis::lockstep::Cuts;
    use crate::analysis::{graph, liveness};

    /// Each register is a copy of the one that is written behind it.
    #[test]
    fn chains_against_the_order_of_the_text_are_followed_once() {
        let count = 3000;
        let mut text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{ .reg .b32 %r<{}>; .reg .pred %p;\nL:",
            count + 1
        );
        for i in 0..count {
            writeln!(text, "mov.u32 %r{i}, %r{};", i + 1).unwrap();
        }
        write!(text, "mov.u32 %r{count}, %tid.x; setp.eq.u32 %p, %r0, 0; @%p bra L; ret; }}").unwrap();
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(0, &|_| None).unwrap();
        let nodes = graph::cut(&kernel, &Cuts::default());
        let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
        let ordering = graph::order(&successors).unwrap();
        let live = liveness::liveness(&kernel, &nodes, &ordering.nodes);
        let flow = Flow::new(&kernel, &nodes, &ordering.nodes);
        let shape = Shape { block: [64, 1, 1], lanes: 8 };
        let (classes, looks) = propagate(&flow, &live, &RegSet::default(), shape);
        let copies = classes.iter().filter(|&&class| class == Class::Varying).count();
        assert!(copies >= count, "{copies} of {count} vary");
        assert!(looks <= 4 * flow.insts.len(), "{looks} looks at {} instructions", flow.insts.len());
    }
}
