//! Registers that are the same in a whole grid, since they are made of parameters and numbers alone; and addresses that are sums of such
//! and a scaled index. What limits the index of an array that a parameter points to need not be found out at each access.

use ptx::ir::{Inst, IntOp, Kernel, MulPart, Op, Operand, Reg, RegTy, Space, Ty};

use super::operands;
use super::regset::RegSet;

/// What is known of a kernel's registers.
#[derive(Debug)]
pub(crate) struct Pointers {
    /// The one operation that ever writes a register, whatever lanes are active.
    definitions: Vec<Option<Op>>,
    /// How many operations deep a register that is the same in the whole grid is made of parameters; none: it is not.
    depths: Vec<Option<u8>>,
}

/// The sum of registers that are the same in a whole grid, and a number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Base {
    pub(crate) terms: Vec<Reg>,
    pub(crate) number: i64,
}

/// An address: a base, and an index of 32 bits times a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pointer {
    pub(crate) base: Base,
    /// The register that is the index extended to 64 bits, or a multiple of that.
    pub(crate) extended: Reg,
    pub(crate) scale: i64,
    pub(crate) signed: bool,
}

/// An index of 32 bits, extended to 64 bits and scaled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) index: Reg,
    scale: i64,
    pub(crate) signed: bool,
}

/// Deepest expressions that are followed: registers may be made of themselves.
const MAX_DEPTH: u8 = 16;
/// Most terms of a base.
const MAX_TERMS: usize = 4;

fn wide(ty: Ty) -> bool {
    matches!(ty, Ty::B64 | Ty::U64 | Ty::S64)
}

impl Pointers {
    /// `before` are registers that may be read before they are written: then they are not what their definition says.
    pub(crate) fn of(kernel: &Kernel, before: &RegSet) -> Pointers {
        let insts = || kernel.blocks.iter().flat_map(|block| &block.insts);
        let mut writes = vec![0_u32; kernel.regs.len()];
        let mut definitions: Vec<Option<Op>> = vec![None; kernel.regs.len()];
        for Inst { guard, op, .. } in insts() {
            for r in operands::writes(op) {
                writes[r.0 as usize] += 1;
                definitions[r.0 as usize] = (guard.is_none() && computes(kernel, op)).then(|| op.clone());
            }
        }
        for (i, (definition, writes)) in definitions.iter_mut().zip(writes).enumerate() {
            if writes != 1 || before.contains(Reg(i as u32)) {
                *definition = None;
            }
        }
        let mut pointers = Pointers { definitions, depths: vec![None; kernel.regs.len()] };
        // In the order of the text, which is mostly that in which one is made of another.
        for _ in 0..2 {
            for inst in insts() {
                for r in operands::writes(&inst.op) {
                    pointers.depths[r.0 as usize] = pointers.depth(kernel, r);
                }
            }
        }
        pointers
    }

    /// What makes the register.
    pub(crate) fn definition(&self, r: Reg) -> Option<&Op> {
        self.definitions[r.0 as usize].as_ref()
    }

    fn depth(&self, kernel: &Kernel, r: Reg) -> Option<u8> {
        let op = self.definition(r)?;
        let of = |o: &Operand| match *o {
            Operand::Imm(_) => Some(0),
            Operand::Reg(r) => self.depths[r.0 as usize],
        };
        let depth = match op {
            Op::Ld { .. } => parameter(kernel, op).map(|_| 0)?,
            Op::Mov { src, .. } => of(src)?,
            Op::Cvta { a, .. } | Op::Cvt { a, .. } => of(a)?,
            Op::Int { a, b, .. } | Op::Mul { a, b, .. } => of(a)?.max(of(b)?),
            _ => return None,
        };
        (depth < MAX_DEPTH).then_some(depth + 1)
    }

    /// Is the register the same in the whole grid?
    pub(crate) fn is_fixed(&self, r: Reg) -> bool {
        self.depths[r.0 as usize].is_some()
    }

    /// An address in a register, as a base and an index.
    pub(crate) fn pointer(&self, r: Reg) -> Option<Pointer> {
        let (mut at, mut base) = (r, Base::default());
        let mut steps = 0..MAX_DEPTH;
        loop {
            steps.next()?;
            match self.definition(at)? {
                Op::Int { op: IntOp::Add, ty, a, b, .. } if wide(*ty) => {
                    let (rest, term) = match (*a, *b) {
                        (Operand::Reg(rest), term) if self.is_term(term) => (rest, term),
                        (term, Operand::Reg(rest)) if self.is_term(term) => (rest, term),
                        _ => return None,
                    };
                    match term {
                        Operand::Reg(r) => base.terms.push(r),
                        Operand::Imm(v) => base.number = base.number.wrapping_add(v.cast_signed()),
                    }
                    at = rest;
                }
                _ => break,
            }
            if base.terms.len() > MAX_TERMS {
                return None;
            }
        }
        // The order in which terms were added is no matter.
        base.terms.sort_unstable_by_key(|r| r.0);
        let mut factor = 1_i64;
        while let Op::Int { op: IntOp::Shl, ty, a: Operand::Reg(a), b: Operand::Imm(n @ 0..=31), .. } =
            *self.definition(at)?
            && wide(ty)
        {
            steps.next()?;
            factor = factor.checked_mul(1 << n)?;
            at = a;
        }
        let Extension { scale, signed, .. } = self.extension(at)?;
        Some(Pointer { base, extended: at, scale: factor.checked_mul(scale)?, signed })
    }

    fn is_term(&self, o: Operand) -> bool {
        match o {
            Operand::Reg(r) => self.is_fixed(r),
            Operand::Imm(_) => true,
        }
    }

    /// What index the register is an extension of, or a multiple of one, as [`Pointer::extended`].
    pub(crate) fn extension(&self, r: Reg) -> Option<Extension> {
        match *self.definition(r)? {
            Op::Mul { part: MulPart::Wide, ty, a: Operand::Reg(index), b: Operand::Imm(by), .. } if ty.bits() == 32 => {
                let scale = if ty.is_signed() { i64::from(by as i32) } else { i64::from(by as u32) };
                Some(Extension { index, scale, signed: ty.is_signed() })
            }
            Op::Cvt { src_ty, dst_ty, a: Operand::Reg(index), .. } if extends(src_ty, dst_ty) => {
                Some(Extension { index, scale: 1, signed: src_ty.is_signed() })
            }
            _ => None,
        }
    }
}

fn extends(from: Ty, to: Ty) -> bool {
    matches!(from, Ty::B32 | Ty::U32 | Ty::S32) && wide(to)
}

/// Operations of which bases and pointers may be made, on registers of their own width.
fn computes(kernel: &Kernel, op: &Op) -> bool {
    let integer = |ty: Ty| matches!(ty, Ty::B32 | Ty::U32 | Ty::S32 | Ty::B64 | Ty::U64 | Ty::S64);
    let is = |o: &Operand, ty: RegTy| match *o {
        Operand::Reg(r) => kernel.regs[r.0 as usize] == ty,
        Operand::Imm(_) => true,
    };
    let to = |dst: Reg, ty: RegTy| kernel.regs[dst.0 as usize] == ty;
    match op {
        Op::Ld { .. } => parameter(kernel, op).is_some(),
        Op::Mov { ty, dst, src } => integer(*ty) && to(*dst, ty.reg()) && is(src, ty.reg()),
        Op::Cvta { space, dst, a, .. } => {
            !matches!(space, Space::Shared | Space::Local) && to(*dst, RegTy::B64) && is(a, RegTy::B64)
        }
        Op::Cvt { src_ty, dst_ty, sat: false, dst, a, .. } => {
            extends(*src_ty, *dst_ty) && to(*dst, RegTy::B64) && is(a, RegTy::B32)
        }
        Op::Int { op: IntOp::Add | IntOp::Sub, ty, sat: false, dst, a, b } => {
            integer(*ty) && to(*dst, ty.reg()) && is(a, ty.reg()) && is(b, ty.reg())
        }
        Op::Int { op: IntOp::Shl, ty, dst, a, b: Operand::Imm(0..=31), .. } => {
            integer(*ty) && to(*dst, ty.reg()) && is(a, ty.reg())
        }
        Op::Mul { part: MulPart::Lo, ty, dst, a, b } => {
            integer(*ty) && to(*dst, ty.reg()) && is(a, ty.reg()) && is(b, ty.reg())
        }
        Op::Mul { part: MulPart::Wide, ty, dst, a, b } => {
            integer(*ty) && ty.bits() == 32 && to(*dst, RegTy::B64) && is(a, RegTy::B32) && is(b, RegTy::B32)
        }
        _ => false,
    }
}

/// Where a parameter that is loaded whole into its register by its name lies among them; none if the operation is no such load.
pub(crate) fn parameter(kernel: &Kernel, op: &Op) -> Option<u32> {
    let Op::Ld { space: Space::Param, ty, dsts, addr, .. } = op else { return None };
    let (&[Some(dst)], Operand::Imm(base)) = (&dsts[..], addr.base) else { return None };
    let at = base.wrapping_add(addr.offset.cast_unsigned());
    let whole = kernel.regs[dst.0 as usize] == ty.reg() && matches!(ty.bits(), 32 | 64);
    let inside = at.checked_add(ty.bytes().into()).is_some_and(|end| end <= kernel.param_bytes.into());
    (whole && inside && at.is_multiple_of(ty.bytes().into())).then_some(at as u32)
}
