//! How a register's value varies over the lanes of a chunk (so many consecutive threads that are run together).
//!
//! Three levels: the same in all lanes; affine, that is a base plus a constant times the lane number; varying. 64-bit
//! affine values keep the 32-bit index they were widened from, because the index may wrap within a chunk:
//! `c + k * extend(b + stride * lane)`. Such a value is exact whatever the index does; only a contiguous access needs to
//! know that it did not wrap, and asks at run time.
//!
//! A register of the first two levels is one scalar for the whole chunk, so lanes that are elsewhere must not miss its
//! old value: a write on one side of a divergent branch makes the register varying if it is live on another side or
//! where the sides meet.

use ptx::ir::{Cmp, Inst, IntOp, Kernel, MulPart, Op, Operand, PredRef, Reg, RegTy, SReg, Space, Ty};
use ptx::launch::WARP;

use super::graph::{Node, NodeId, NodeTerm};
use super::liveness::{Liveness, RegSet};
use super::operands;

/// Level of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Never written.
    Unknown,
    /// The same in all lanes.
    Same,
    /// 32 bits: base + stride * lane, wrapping.
    Affine { stride: i32 },
    /// 64 bits: c + k * extend(b + stride * lane), extended as signed or not.
    Wide { stride: i32, k: i64, signed: bool },
    /// One value per lane.
    Varying,
}

impl Class {
    fn meet(self, other: Class) -> Class {
        match (self, other) {
            (Class::Unknown, x) | (x, Class::Unknown) => x,
            (a, b) if a == b => a,
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

/// Computes the class of every register, and which nodes end in a branch that may split a chunk.
pub(crate) fn classify(
    kernel: &Kernel,
    nodes: &[Node],
    live: &Liveness,
    post: &[Option<NodeId>],
    shape: Shape,
    strict: bool,
) -> (Vec<Class>, Vec<bool>) {
    let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
    let mut forced = RegSet::new(kernel.regs.len());
    let mut divergent = vec![false; nodes.len()];
    loop {
        let classes = propagate(kernel, nodes, live, &forced, shape);
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
                changed |= force(kernel, &successors, live, &successors[n], end, &mut forced);
            }
        }
        if !changed {
            return (classes, divergent);
        }
    }
}

/// Makes varying what one side of a branch writes and another side, or the meeting point, still reads.
fn force(
    kernel: &Kernel,
    successors: &[Vec<NodeId>],
    live: &Liveness,
    sides: &[NodeId],
    end: Option<NodeId>,
    forced: &mut RegSet,
) -> bool {
    let regs = kernel.regs.len();
    let mut written = Vec::new();
    let mut wanted = Vec::new();
    for &side in sides {
        let (mut w, mut l) = (RegSet::new(regs), RegSet::new(regs));
        if let Some(end) = end {
            l.add(&live.live_in[end]);
        }
        let mut seen = vec![false; successors.len()];
        let mut work = vec![side];
        while let Some(n) = work.pop() {
            if Some(n) == end || std::mem::replace(&mut seen[n], true) {
                continue;
            }
            w.add(&live.defined[n]);
            l.add(&live.live_in[n]);
            work.extend(&successors[n]);
        }
        written.push(w);
        wanted.push(l);
    }
    let mut changed = false;
    for (i, w) in written.iter().enumerate() {
        for (j, l) in wanted.iter().enumerate() {
            if i != j {
                changed |= forced.add(&w.and(l));
            }
        }
    }
    changed
}

fn propagate(kernel: &Kernel, nodes: &[Node], live: &Liveness, forced: &RegSet, shape: Shape) -> Vec<Class> {
    let mut classes = vec![Class::Unknown; kernel.regs.len()];
    for r in forced.iter() {
        classes[r.0 as usize] = Class::Varying;
    }
    // Registers read before they are written are zero at the start.
    for r in live.live_in[0].iter() {
        let c = &mut classes[r.0 as usize];
        *c = c.meet(Class::Same);
    }
    let mut changed = true;
    while changed {
        changed = false;
        for node in nodes {
            for (at, inst) in kernel.blocks[node.block].insts[node.begin..node.end].iter().enumerate() {
                let joint = node.sync && at == 0;
                let guard = if joint { Class::Same } else { guard_class(&classes, inst.guard) };
                for dst in operands::writes(&inst.op) {
                    let new = match guard {
                        Class::Varying => Class::Varying,
                        _ => result(kernel, &classes, &inst.op, dst, shape),
                    };
                    let old = classes[dst.0 as usize];
                    let met = old.meet(new);
                    if met != old {
                        classes[dst.0 as usize] = met;
                        changed = true;
                    }
                }
            }
        }
    }
    classes
}

fn guard_class(classes: &[Class], guard: Option<PredRef>) -> Class {
    guard.map_or(Class::Same, |p| classes[p.reg.0 as usize])
}

/// A comparison of an index that is affine over the lanes with a value that they share: lanes part in few chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) cmp: Cmp,
    pub(crate) signed: bool,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
}

/// The instruction as a bound, if it gives predicate `p` such a value.
pub(crate) fn bound(inst: &Inst, p: Reg, classes: &[Class]) -> Option<Bound> {
    let Inst { guard: None, op: Op::Setp { cmp, ty, dst, a, b, combine: None, .. }, .. } = inst else { return None };
    let stride = match (operand(classes, *a), operand(classes, *b)) {
        (Class::Affine { stride }, Class::Same) | (Class::Same, Class::Affine { stride }) => stride,
        _ => return None,
    };
    let integer = !ty.is_float() && ty.bits() == 32;
    let known = matches!(cmp, Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge | Cmp::Eq | Cmp::Ne);
    // The index must not wrap more than once in a chunk.
    let fine = *dst == p && integer && known && stride.unsigned_abs() <= i32::MAX as u32 / WARP;
    fine.then_some(Bound { cmp: *cmp, signed: ty.is_signed(), a: *a, b: *b })
}

/// The comparison that gives `p` its value in `node`, if it is a bound whose operands are still there at the end.
pub(crate) fn bound_at_end(kernel: &Kernel, node: &Node, p: Reg, classes: &[Class]) -> Option<Bound> {
    let body = node.body(kernel);
    let at = body.iter().rposition(|inst| operands::writes(&inst.op).contains(&p))?;
    let bound = bound(&body[at], p, classes)?;
    let changes = |o: Operand| matches!(o, Operand::Reg(r) if body[at..].iter().any(|inst| operands::writes(&inst.op).contains(&r)));
    (!changes(bound.a) && !changes(bound.b)).then_some(bound)
}

/// Class of an operand.
pub(crate) fn operand(classes: &[Class], o: Operand) -> Class {
    match o {
        Operand::Reg(r) => classes[r.0 as usize],
        Operand::Imm(_) => Class::Same,
    }
}

fn wide(stride: i32, k: i64, signed: bool) -> Class {
    if stride == 0 || k == 0 { Class::Varying } else { Class::Wide { stride, k, signed } }
}

fn affine(stride: i32) -> Class {
    if stride == 0 { Class::Varying } else { Class::Affine { stride } }
}

/// Class of a product by an immediate.
fn scaled(class: Class, by: i64) -> Class {
    match class {
        Class::Affine { stride } => affine(stride.wrapping_mul(by as i32)),
        Class::Wide { stride, k, signed } => wide(stride, k.wrapping_mul(by), signed),
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
        (Class::Wide { .. }, Class::Same) => a,
        (Class::Same, Class::Wide { stride, k, signed }) => {
            wide(stride, if negate_b { k.wrapping_neg() } else { k }, signed)
        }
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
        _ => return Class::Varying,
    };
    match part {
        MulPart::Lo if ty.bits() >= 32 => scaled(class, by as i64),
        MulPart::Wide if ty.bits() == 32 => match class {
            Class::Affine { stride } => {
                let by = if ty.is_signed() { i64::from(by as i32) } else { i64::from(by as u32) };
                wide(stride, by, ty.is_signed())
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
        (Class::Wide { .. }, RegTy::B16 | RegTy::B32 | RegTy::Pred) => Class::Varying,
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
                (Class::Affine { stride }, 32, 64) => wide(stride, 1, src_ty.is_signed()),
                (Class::Wide { stride, k, .. }, 64, 32) => affine(stride.wrapping_mul(k as i32)),
                (c @ Class::Affine { .. }, 32, 32) | (c @ Class::Wide { .. }, 64, 64) => c,
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
        | Op::Bar { .. } => Class::Varying,
        _ => all,
    }
}
