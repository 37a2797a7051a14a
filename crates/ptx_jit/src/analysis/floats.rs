//! Which registers hold floating-point numbers, and of which of them nobody can see what kind of NaN they are.
//!
//! The results of operations are canonical NaNs, and the processor's are not. To make one canonical takes as long as an addition, and in a
//! sum that a loop carries along everything waits for it.

use ptx::ir::{FloatOp, Inst, Kernel, Op, Operand, Reg, RegTy, Term, Ty};

use super::operands;
use super::subnormals::Subnormals;

/// What NaNs a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nans {
    /// As the program has them.
    Canonical,
    /// Any: all its readers are floating-point operations, which take a NaN of any kind, or hand it on to such registers.
    Any,
    /// Any, where the program has the canonical one: some of its readers are stores and copies, which see to it.
    Late,
}

/// What is known of a kernel's registers.
#[derive(Debug)]
pub(crate) struct Floats {
    pub(crate) nans: Vec<Nans>,
    /// All that is written to it is of a floating-point type as wide as it is.
    pub(crate) numbers: Vec<bool>,
    pub(crate) subnormals: Subnormals,
}

/// Rounds of following registers from readers to writers; a kernel that needs more is taken to need none of it.
pub(super) const MAX_ROUNDS: usize = 64;

fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F32 | Ty::F64)
}

impl Floats {
    pub(crate) fn of(kernel: &Kernel) -> Floats {
        let any = read_blindly(kernel, WIDTHS, |inst, any| is_indifferent(kernel, inst, any));
        let late = late(kernel, &any);
        let nans = |(any, late)| match (any, late) {
            (true, _) => Nans::Any,
            (false, true) => Nans::Late,
            (false, false) => Nans::Canonical,
        };
        let nans = any.into_iter().zip(late).map(nans).collect();
        Floats { nans, numbers: numbers(kernel), subnormals: Subnormals::of(kernel) }
    }
}

/// Registers of the widths of floating-point numbers.
const WIDTHS: &[RegTy] = &[RegTy::B32, RegTy::B64];

/// Registers of these types; a branch that looks at the bits of one is not among the instructions.
pub(super) fn candidates(kernel: &Kernel, types: &[RegTy]) -> Vec<bool> {
    let mut candidates: Vec<bool> = kernel.regs.iter().map(|ty| types.contains(ty)).collect();
    for block in &kernel.blocks {
        if let Term::BrIdx { index: Operand::Reg(r), .. } = block.term {
            candidates[r.0 as usize] = false;
        }
    }
    candidates
}

/// Does the instruction take any NaN for any other, if those registers may hold any?
fn is_indifferent(kernel: &Kernel, inst: &Inst, any: &[bool]) -> bool {
    match &inst.op {
        Op::Float { op, ty, .. } => is_float(*ty) && !matches!(op, FloatOp::Copysign),
        Op::Fma { ty, .. } | Op::FloatUn { ty, .. } | Op::Setp { ty, .. } | Op::Testp { ty, .. } => is_float(*ty),
        Op::Cvt { src_ty, .. } => is_float(*src_ty),
        Op::Mov { ty, dst, .. } | Op::Selp { ty, dst, .. } => {
            kernel.regs[dst.0 as usize] == ty.reg() && any[dst.0 as usize]
        }
        _ => false,
    }
}

/// Registers of these types that no instruction reads but those of which `blind` holds, which is told the registers that are left.
pub(super) fn read_blindly(kernel: &Kernel, types: &[RegTy], blind: impl Fn(&Inst, &[bool]) -> bool) -> Vec<bool> {
    let mut left = candidates(kernel, types);
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        // Backwards, so that straight-line code takes one round.
        for inst in kernel.blocks.iter().rev().flat_map(|block| block.insts.iter().rev()) {
            if !blind(inst, &left) {
                operands::inst_reads(inst, &mut |r| changed |= std::mem::take(&mut left[r.0 as usize]));
            }
        }
        if !changed {
            return left;
        }
    }
    vec![false; kernel.regs.len()]
}

/// Registers that are only written where a NaN is the canonical one, and stored or copied in no more places than that; all other readers
/// are indifferent.
fn late(kernel: &Kernel, any: &[bool]) -> Vec<bool> {
    let mut late = candidates(kernel, WIDTHS);
    // Writers less stores.
    let mut worth = vec![0_i64; kernel.regs.len()];
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        let whole = |r: Reg, ty: Ty| kernel.regs[r.0 as usize] == ty.reg() && is_float(ty);
        let canonical = match &inst.op {
            Op::Float { op: FloatOp::Add | FloatOp::Sub | FloatOp::Mul, ty, dst, .. } | Op::Fma { ty, dst, .. }
                if whole(*dst, *ty) =>
            {
                worth[dst.0 as usize] += 1;
                true
            }
            Op::Mov { ty, dst, src: Operand::Imm(bits) } if ty.bits() == 32 => {
                kernel.regs[dst.0 as usize] == RegTy::B32 && !f32::from_bits(*bits as u32).is_nan()
            }
            Op::Mov { ty, dst, src: Operand::Imm(bits) } if ty.bits() == 64 => {
                kernel.regs[dst.0 as usize] == RegTy::B64 && !f64::from_bits(*bits).is_nan()
            }
            _ => false,
        };
        if !canonical {
            operands::writes(&inst.op).into_iter().for_each(|r| late[r.0 as usize] = false);
        }
        if is_indifferent(kernel, inst, any) {
            continue;
        }
        let (ty, settled, address) = match &inst.op {
            Op::St { ty, srcs, addr, .. } => (*ty, srcs.as_slice(), Some(addr.base)),
            // As bits, or where NaNs are to be the program's.
            Op::Mov { ty, src, .. } if inst.guard.is_none() => (*ty, std::slice::from_ref(src), None),
            _ => {
                operands::inst_reads(inst, &mut |r| late[r.0 as usize] = false);
                continue;
            }
        };
        for src in settled {
            if let Operand::Reg(r) = *src {
                worth[r.0 as usize] -= 1;
                late[r.0 as usize] &= kernel.regs[r.0 as usize] == ty.reg();
            }
        }
        if let Some(Operand::Reg(r)) = address {
            late[r.0 as usize] = false;
        }
    }
    late.into_iter().zip(worth).map(|(late, worth)| late && worth >= 0).collect()
}

fn numbers(kernel: &Kernel) -> Vec<bool> {
    let mut numbers = candidates(kernel, WIDTHS);
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        let ty = match &inst.op {
            Op::Float { ty, .. } | Op::Fma { ty, .. } | Op::FloatUn { ty, .. } => *ty,
            Op::Ld { ty, .. } | Op::Mov { ty, .. } | Op::Selp { ty, .. } => *ty,
            Op::Cvt { dst_ty, .. } => *dst_ty,
            _ => Ty::Pred,
        };
        for r in operands::writes(&inst.op) {
            numbers[r.0 as usize] &= is_float(ty) && ty.reg() == kernel.regs[r.0 as usize];
        }
    }
    numbers
}
