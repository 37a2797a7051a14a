//! Checks the rules that [`crate::ir`] states, so that an engine may rely on them.
//!
//! The front end produces nothing else, whatever the text says; a violation is a defect of the front end, and reported as
//! an unsupported kernel rather than run.

use crate::error::PtxError;
use crate::ir::{
    Address, AtomOp, BarKind, BarRed, Builtin, FloatOp, FloatUnOp, Inst, IntOp, IntUnOp, Kernel, MulPart, Op, Operand,
    Precision, PredRef, Reg, RegTy, Space, Term, Ty, VoteMode,
};
use crate::matrix::Element;
use crate::tensor::Transfer;
use texture::Access;

/// Checks all rules.
///
/// # Errors
/// The first rule that does not hold.
pub fn verify(kernel: &Kernel) -> Result<(), PtxError> {
    let checker = Checker { kernel };
    if kernel.blocks.is_empty() {
        return Err(defect(0, "a kernel without blocks"));
    }
    let params =
        kernel.params.iter().all(|p| p.offset.checked_add(p.size).is_some_and(|end| end <= kernel.param_bytes));
    let aligned =
        kernel.shared_align.is_power_of_two() && kernel.shared_align >= 16 && kernel.local_bytes.is_multiple_of(16);
    if !params || !aligned {
        return Err(defect(0, "a parameter outside its block, or memory without its alignment"));
    }
    let mut reached = vec![false; kernel.blocks.len()];
    for block in &kernel.blocks {
        let line = block.insts.last().map_or(0, |i| i.line);
        for inst in &block.insts {
            checker.inst(inst).map_err(|what| defect(inst.line, what))?;
        }
        checker.term(&block.term).map_err(|what| defect(line, what))?;
    }
    let mut work = vec![0usize];
    while let Some(at) = work.pop() {
        if std::mem::replace(&mut reached[at], true) {
            continue;
        }
        let mut enters = false;
        let mut visit = |to: crate::ir::BlockId| {
            enters |= to.0 == 0;
            work.push(to.0 as usize);
        };
        match &kernel.blocks[at].term {
            Term::Bra(to) => visit(*to),
            Term::CondBra { then, els, .. } => {
                visit(*then);
                visit(*els);
            }
            Term::BrIdx { targets, .. } => targets.iter().copied().for_each(visit),
            Term::Exit => {}
        }
        if enters {
            return Err(defect(0, "the entry block has a predecessor"));
        }
    }
    if reached.contains(&false) {
        return Err(defect(0, "an unreachable block"));
    }
    Ok(())
}

fn defect(line: u32, what: impl std::fmt::Display) -> PtxError {
    PtxError::unsupported(line, format!("internal compiler error: {what}"))
}

struct Checker<'k> {
    kernel: &'k Kernel,
}

type Check = Result<(), String>;

fn when(holds: bool, what: &str) -> Check {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

const fn is_int(ty: Ty) -> bool {
    matches!(ty, Ty::U16 | Ty::U32 | Ty::U64 | Ty::S16 | Ty::S32 | Ty::S64)
}

const fn is_bits(ty: Ty) -> bool {
    matches!(ty, Ty::B16 | Ty::B32 | Ty::B64)
}

fn bits(class: RegTy) -> u32 {
    match class {
        RegTy::Pred => 1,
        RegTy::B16 => 16,
        RegTy::B32 => 32,
        RegTy::B64 => 64,
        RegTy::B128 => 128,
    }
}

impl Checker<'_> {
    fn class(&self, reg: Reg) -> Result<RegTy, String> {
        self.kernel.regs.get(reg.0 as usize).copied().ok_or_else(|| format!("register {} does not exist", reg.0))
    }

    fn is(&self, reg: Reg, class: RegTy) -> Check {
        let actual = self.class(reg)?;
        if actual == class { Ok(()) } else { Err(format!("register {} is {actual:?}, not {class:?}", reg.0)) }
    }

    fn reg(&self, reg: Reg, ty: Ty) -> Check {
        self.is(reg, ty.reg())
    }

    fn opt(&self, reg: Option<Reg>, ty: Ty) -> Check {
        reg.map_or(Ok(()), |r| self.reg(r, ty))
    }

    /// A register of the type's class, or an immediate without bits above the type's.
    fn src(&self, operand: Operand, ty: Ty) -> Check {
        match operand {
            Operand::Reg(reg) => self.reg(reg, ty),
            Operand::Imm(value) => when(ty.bits() >= 64 || value >> ty.bits() == 0, "an immediate with excess bits"),
        }
    }

    fn srcs(&self, operands: &[Operand], ty: Ty) -> Check {
        operands.iter().try_for_each(|o| self.src(*o, ty))
    }

    /// A register at least as wide as the type, or an immediate.
    fn wide(&self, operand: Operand, ty: Ty) -> Check {
        match operand {
            Operand::Reg(reg) => self.wide_reg(reg, ty),
            Operand::Imm(_) => self.src(operand, ty),
        }
    }

    fn wide_reg(&self, reg: Reg, ty: Ty) -> Check {
        let class = self.class(reg)?;
        when(class != RegTy::Pred && ty != Ty::Pred && bits(class) >= ty.bits(), "a register narrower than its type")
    }

    fn pred(&self, p: PredRef) -> Check {
        self.is(p.reg, RegTy::Pred)
    }

    fn opt_pred(&self, p: Option<PredRef>) -> Check {
        p.map_or(Ok(()), |p| self.pred(p))
    }

    fn address(&self, space: Space, address: Address) -> Check {
        let Operand::Reg(reg) = address.base else { return Ok(()) };
        match (self.class(reg)?, space) {
            (RegTy::B64, _) | (RegTy::B32, Space::Shared | Space::Local | Space::Param) => Ok(()),
            _ => Err("an address register of the wrong width".into()),
        }
    }

    fn term(&self, term: &Term) -> Check {
        let block = |id: crate::ir::BlockId| when((id.0 as usize) < self.kernel.blocks.len(), "no such block");
        match term {
            Term::Bra(to) => block(*to),
            Term::CondBra { p, then, els, .. } => {
                self.pred(*p)?;
                block(*then)?;
                block(*els)
            }
            Term::BrIdx { index, targets } => {
                self.src(*index, Ty::U32)?;
                when(!targets.is_empty(), "an indexed branch without targets")?;
                targets.iter().try_for_each(|t| block(*t))
            }
            Term::Exit => Ok(()),
        }
    }

    fn inst(&self, inst: &Inst) -> Check {
        self.opt_pred(inst.guard)?;
        self.op(&inst.op).map_err(|what| format!("{what} in {:?}", inst.op))
    }

    fn op(&self, op: &Op) -> Check {
        match op {
            Op::Mov { .. } | Op::Pack { .. } | Op::Unpack { .. } | Op::Special { .. } => self.moves(op),
            Op::Int { .. } | Op::Mul { .. } | Op::Mad { .. } | Op::Mad24 { .. } | Op::AddCarry { .. } => self.int(op),
            Op::MadCarry { .. } | Op::Sad { .. } | Op::IntUn { .. } => self.int(op),
            Op::Float { .. } | Op::Fma { .. } | Op::FloatUn { .. } | Op::Testp { .. } => self.float(op),
            Op::Setp { .. } | Op::Set { .. } | Op::Selp { .. } | Op::Slct { .. } => self.select(op),
            Op::Cvt { .. }
            | Op::CvtPack { .. }
            | Op::CvtToFp8 { .. }
            | Op::CvtFromFp8 { .. }
            | Op::Cvta { .. }
            | Op::Isspacep { .. } => self.convert(op),
            Op::Ld { .. } | Op::St { .. } | Op::Atom { .. } | Op::CpAsync { .. } | Op::Fence => self.memory(op),
            Op::Image { access, dsts, srcs } => self.image(access, dsts, srcs),
            Op::Transfer { transfer, srcs } => self.transfer(transfer, srcs),
            Op::Bfe { .. } | Op::Bfi { .. } | Op::Bmsk { .. } | Op::Szext { .. } | Op::Fns { .. } => self.bits(op),
            Op::Prmt { .. } | Op::Shf { .. } | Op::Lop3 { .. } | Op::Dot { .. } | Op::Video { .. } => self.bits(op),
            _ => self.lanes(op),
        }
    }

    fn moves(&self, op: &Op) -> Check {
        match op {
            Op::Mov { ty, dst, src } => {
                self.reg(*dst, *ty)?;
                // An 8-bit or 128-bit immediate has no excess bits to speak of.
                self.src(*src, *ty)
            }
            Op::Pack { dst, srcs } => {
                let part = self.part(self.class(*dst)?, srcs.len())?;
                self.srcs(srcs, part)
            }
            Op::Unpack { dsts, src } => {
                let class = match src {
                    Operand::Reg(reg) => self.class(*reg)?,
                    Operand::Imm(_) => return Err("a constant is unpacked".into()),
                };
                let part = self.part(class, dsts.len())?;
                dsts.iter().try_for_each(|d| self.opt(*d, part))
            }
            Op::Special { ty, dst, .. } => {
                when(!ty.is_float() && (16..=64).contains(&ty.bits()), "a special register of this type")?;
                self.reg(*dst, *ty)
            }
            _ => Ok(()),
        }
    }

    fn part(&self, class: RegTy, parts: usize) -> Result<Ty, String> {
        match (bits(class) as usize).checked_div(parts) {
            Some(8) => Ok(Ty::B8),
            Some(16) => Ok(Ty::B16),
            Some(32) => Ok(Ty::B32),
            Some(64) => Ok(Ty::B64),
            _ => Err("parts of no register's width".into()),
        }
    }

    fn int(&self, op: &Op) -> Check {
        match op {
            Op::Int { op, ty, sat, dst, a, b } => {
                let logic = matches!(op, IntOp::And | IntOp::Or | IntOp::Xor);
                let shift = matches!(op, IntOp::Shl | IntOp::Shr);
                let ok = match ty {
                    Ty::Pred => logic,
                    _ if is_bits(*ty) => logic || shift,
                    _ => is_int(*ty) && !logic,
                };
                when(ok, "an integer operation of this type")?;
                when(!sat || (*ty == Ty::S32 && matches!(op, IntOp::Add | IntOp::Sub)), "a saturation")?;
                self.reg(*dst, *ty)?;
                self.src(*a, *ty)?;
                self.src(*b, if shift { Ty::U32 } else { *ty })
            }
            Op::Mul { part, ty, dst, a, b } => {
                self.reg(*dst, product(*part, *ty)?)?;
                self.srcs(&[*a, *b], *ty)
            }
            Op::Mad { part, ty, sat, dst, a, b, c } => {
                when(!sat || (*ty == Ty::S32 && *part == MulPart::Hi), "a saturation")?;
                let wide = product(*part, *ty)?;
                self.reg(*dst, wide)?;
                self.srcs(&[*a, *b], *ty)?;
                self.src(*c, wide)
            }
            Op::Mad24 { part, ty, dst, a, b, c, .. } => {
                when(matches!(ty, Ty::U32 | Ty::S32) && *part != MulPart::Wide, "a 24-bit product of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b, c.unwrap_or(*a)], *ty)
            }
            Op::AddCarry { ty, dst, a, b, cc_in, cc_out, .. } => {
                when(is_int(*ty) && ty.bits() >= 32, "a carry of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b], *ty)?;
                self.opt(*cc_in, Ty::Pred)?;
                self.opt(*cc_out, Ty::Pred)
            }
            Op::MadCarry { part, ty, dst, a, b, c, cc_in, cc_out, .. } => {
                when(is_int(*ty) && ty.bits() >= 32 && *part != MulPart::Wide, "a carry of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b, *c], *ty)?;
                self.opt(*cc_in, Ty::Pred)?;
                self.opt(*cc_out, Ty::Pred)
            }
            Op::Sad { ty, dst, a, b, c } => {
                when(is_int(*ty), "an integer operation of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b, *c], *ty)
            }
            Op::IntUn { op, ty, dst, a } => {
                let (ok, result) = match op {
                    IntUnOp::Abs | IntUnOp::Neg => (is_int(*ty) && ty.is_signed(), *ty),
                    IntUnOp::Not => (is_bits(*ty) || *ty == Ty::Pred, *ty),
                    IntUnOp::Cnot => (is_bits(*ty), *ty),
                    IntUnOp::Brev => (is_bits(*ty) && ty.bits() >= 32, *ty),
                    IntUnOp::Popc | IntUnOp::Clz => (is_bits(*ty) && ty.bits() >= 32, Ty::U32),
                    IntUnOp::Bfind | IntUnOp::BfindShiftAmt => (is_int(*ty) && ty.bits() >= 32, Ty::U32),
                };
                when(ok, "an integer operation of this type")?;
                self.reg(*dst, result)?;
                self.src(*a, *ty)
            }
            _ => Ok(()),
        }
    }

    fn bits(&self, op: &Op) -> Check {
        match op {
            Op::Bfe { ty, dst, a, pos, len } => {
                when(is_int(*ty) && ty.bits() >= 32, "a bit field of this type")?;
                self.reg(*dst, *ty)?;
                self.src(*a, *ty)?;
                self.srcs(&[*pos, *len], Ty::U32)
            }
            Op::Bfi { ty, dst, a, b, pos, len } => {
                when(is_bits(*ty) && ty.bits() >= 32, "a bit field of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b], *ty)?;
                self.srcs(&[*pos, *len], Ty::U32)
            }
            Op::Bmsk { dst, a, b, .. } => {
                self.is(*dst, RegTy::B32)?;
                self.srcs(&[*a, *b], Ty::U32)
            }
            Op::Szext { ty, dst, a, b, .. } => {
                when(matches!(ty, Ty::U32 | Ty::S32), "an extension of this type")?;
                self.is(*dst, RegTy::B32)?;
                self.srcs(&[*a, *b], Ty::U32)
            }
            Op::Fns { dst, mask: a, base: b, offset: c }
            | Op::Prmt { dst, a, b, c, .. }
            | Op::Shf { dst, a, b, c, .. }
            | Op::Lop3 { dst, a, b, c, .. }
            | Op::Dot { dst, a, b, c, .. } => {
                if let Op::Prmt { mode, .. } = op {
                    when(mode.is_none_or(|m| m < 6), "a permute mode")?;
                }
                self.is(*dst, RegTy::B32)?;
                self.srcs(&[*a, *b, *c], Ty::B32)
            }
            Op::Video { lanes, mask, dst, a, b, c, .. } => {
                when(matches!(lanes, 2 | 4) && mask >> lanes == 0, "a video instruction of this shape")?;
                self.is(*dst, RegTy::B32)?;
                self.srcs(&[*a, *b, *c], Ty::B32)
            }
            _ => Ok(()),
        }
    }

    fn float(&self, op: &Op) -> Check {
        match op {
            Op::Float { op, ty, dst, a, b, .. } => {
                let ok = match op {
                    FloatOp::Div(Precision::Ieee(_)) | FloatOp::Copysign => matches!(ty, Ty::F32 | Ty::F64),
                    FloatOp::Div(_) => *ty == Ty::F32,
                    _ => ty.is_float(),
                };
                when(ok, "a floating-point operation of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b], *ty)
            }
            Op::Fma { ty, dst, a, b, c, .. } => {
                when(ty.is_float(), "a floating-point operation of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b, *c], *ty)
            }
            Op::FloatUn { op, ty, dst, a, .. } => {
                let ok = match op {
                    FloatUnOp::Abs | FloatUnOp::Neg => ty.is_float() && *ty != Ty::F32x2,
                    FloatUnOp::Rcp(_) | FloatUnOp::Sqrt(_) | FloatUnOp::Rsqrt(_) => matches!(ty, Ty::F32 | Ty::F64),
                    FloatUnOp::Sin | FloatUnOp::Cos | FloatUnOp::Lg2 => *ty == Ty::F32,
                    FloatUnOp::Ex2 | FloatUnOp::Tanh => ty.is_float() && *ty != Ty::F64 && *ty != Ty::F32x2,
                };
                when(ok, "a floating-point operation of this type")?;
                self.reg(*dst, *ty)?;
                self.src(*a, *ty)
            }
            Op::Testp { class, ty, dst, a } => {
                when(*class < 6 && matches!(ty, Ty::F32 | Ty::F64), "a class test of this type")?;
                self.is(*dst, RegTy::Pred)?;
                self.src(*a, *ty)
            }
            _ => Ok(()),
        }
    }

    fn select(&self, op: &Op) -> Check {
        match op {
            Op::Setp { ty, dst, dst2, a, b, combine, .. } => {
                self.comparable(*ty)?;
                self.is(*dst, RegTy::Pred)?;
                self.opt(*dst2, Ty::Pred)?;
                self.opt_pred(combine.map(|c| c.1))?;
                self.srcs(&[*a, *b], *ty)
            }
            Op::Set { dst_ty, ty, dst, a, b, combine, .. } => {
                self.comparable(*ty)?;
                self.reg(*dst, *dst_ty)?;
                self.opt_pred(combine.map(|c| c.1))?;
                self.srcs(&[*a, *b], *ty)
            }
            Op::Selp { ty, dst, a, b, p } => {
                when(*ty != Ty::Pred, "a selection of predicates")?;
                self.reg(*dst, *ty)?;
                self.pred(*p)?;
                self.srcs(&[*a, *b], *ty)
            }
            Op::Slct { ty, cty, dst, a, b, c, .. } => {
                when(*ty != Ty::Pred && matches!(cty, Ty::S32 | Ty::F32), "a selection of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *b], *ty)?;
                self.src(*c, *cty)
            }
            _ => Ok(()),
        }
    }

    fn comparable(&self, ty: Ty) -> Check {
        let scalar_float = matches!(ty, Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64);
        when(is_int(ty) || is_bits(ty) || scalar_float, "a comparison of this type")
    }

    fn convert(&self, op: &Op) -> Check {
        match op {
            Op::Cvt { dst_ty, src_ty, round, to_integral, dst, a, .. } => {
                let scalar =
                    |ty: Ty| is_int(ty) || matches!(ty, Ty::U8 | Ty::S8 | Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64);
                when(scalar(*dst_ty) && scalar(*src_ty), "a conversion of this type")?;
                when(!to_integral || (dst_ty == src_ty && dst_ty.is_float()), "an integral rounding")?;
                let needs = (src_ty.is_float() && !dst_ty.is_float()) || (!src_ty.is_float() && dst_ty.is_float());
                when(!needs || round.is_some(), "a conversion without rounding")?;
                self.wide_reg(*dst, *dst_ty)?;
                self.wide(*a, *src_ty)
            }
            Op::CvtPack { dst_ty, src_ty, dst, a, b, .. } => {
                when(matches!(dst_ty, Ty::F16x2 | Ty::BF16x2) && *src_ty == Ty::F32, "a conversion of this type")?;
                self.reg(*dst, *dst_ty)?;
                self.srcs(&[*a, *b], *src_ty)
            }
            Op::CvtToFp8 { src_ty, dst, a, b, .. } => {
                when(matches!(src_ty, Ty::F32 | Ty::F16x2 | Ty::BF16x2), "a conversion of this type")?;
                self.is(*dst, RegTy::B16)?;
                self.srcs(&[*a, *b], *src_ty)
            }
            Op::CvtFromFp8 { dst, a, .. } => {
                self.is(*dst, RegTy::B32)?;
                self.src(*a, Ty::B16)
            }
            Op::Cvta { space, dst, a, .. } => {
                when(matches!(space, Space::Shared | Space::Local), "an address conversion of this space")?;
                self.is(*dst, RegTy::B64)?;
                self.src(*a, Ty::U64)
            }
            Op::Isspacep { space, dst, a } => {
                when(matches!(space, Space::Shared | Space::Local | Space::Global), "a test of this space")?;
                self.is(*dst, RegTy::Pred)?;
                self.src(*a, Ty::U64)
            }
            _ => Ok(()),
        }
    }

    fn memory(&self, op: &Op) -> Check {
        let shape = |ty: Ty, n: usize| {
            let bits = ty.bits() as usize * n;
            when(ty != Ty::Pred && matches!(n, 1 | 2 | 4 | 8) && bits <= 256, "an access of this shape")
        };
        match op {
            Op::Ld { space, ty, dsts, addr, .. } => {
                shape(*ty, dsts.len())?;
                self.address(*space, *addr)?;
                dsts.iter().flatten().try_for_each(|d| self.wide_reg(*d, *ty))
            }
            Op::St { space, ty, srcs, addr, .. } => {
                shape(*ty, srcs.len())?;
                when(!matches!(space, Space::Const | Space::Param), "a store to read-only memory")?;
                self.address(*space, *addr)?;
                srcs.iter().try_for_each(|s| self.wide(*s, *ty))
            }
            Op::Atom { op, space, ty, dst, addr, b, c, .. } => {
                when(matches!(space, Space::Generic | Space::Global | Space::Shared), "an atomic in this space")?;
                let arithmetic = matches!(op, AtomOp::Add | AtomOp::Min | AtomOp::Max);
                when(
                    !ty.is_float() || arithmetic || (*op == AtomOp::Exch && *ty == Ty::F32),
                    "an atomic of this type",
                )?;
                when(matches!(ty.bits(), 16 | 32 | 64), "an atomic of this width")?;
                when(*op != AtomOp::Arrive || *ty == Ty::U64, "an mbarrier object of this type")?;
                when(c.is_some() == (*op == AtomOp::Cas), "operands of an atomic")?;
                self.address(*space, *addr)?;
                self.opt(*dst, *ty)?;
                self.srcs(&[*b, c.unwrap_or(*b)], *ty)
            }
            Op::CpAsync { bytes, dst, src, src_bytes } => {
                when(matches!(bytes, 4 | 8 | 16), "a copy of this size")?;
                self.address(Space::Shared, *dst)?;
                self.address(Space::Global, *src)?;
                src_bytes.map_or(Ok(()), |s| self.src(s, Ty::U32))
            }
            _ => Ok(()),
        }
    }

    fn image(&self, access: &Access, dsts: &[Reg], srcs: &[Operand]) -> Check {
        let (words, values, value) = access.sources();
        let (results, result) = access.results();
        when(access.is_valid(), "an access to a texture or surface that there is not")?;
        when(dsts.len() == results && srcs.len() == 1 + words + values, "the operands of a texture or surface")?;
        let (places, values) = srcs.split_at(1 + words);
        self.src(places[0], Ty::B64)?;
        self.srcs(&places[1..], Ty::B32)?;
        values.iter().try_for_each(|v| self.wide(*v, bytes(value)))?;
        dsts.iter().try_for_each(|d| self.wide_reg(*d, bytes(result)))
    }

    fn transfer(&self, transfer: &Transfer, srcs: &[Operand]) -> Check {
        let (words, addresses) = transfer.sources();
        when(transfer.is_valid(), "a bulk copy that there is not")?;
        when(srcs.len() == 1 + words + addresses, "the operands of a bulk copy")?;
        let (first, rest) = srcs.split_at(1);
        let (words, addresses) = rest.split_at(words);
        self.srcs(first, Ty::B64)?;
        self.srcs(words, Ty::B32)?;
        self.srcs(addresses, Ty::B64)
    }

    fn lanes(&self, op: &Op) -> Check {
        match op {
            Op::Bar { kind, id, count, pred, dst } => {
                let result = match kind {
                    BarKind::Red(BarRed::Popc) => Some(Ty::U32),
                    BarKind::Red(_) => Some(Ty::Pred),
                    _ => None,
                };
                when(dst.is_some() == result.is_some() && pred.is_some() == result.is_some(), "a barrier's result")?;
                when(*kind != BarKind::Arrive || count.is_some(), "an arrival without a count")?;
                self.opt(*dst, result.unwrap_or(Ty::Pred))?;
                self.opt_pred(*pred)?;
                self.srcs(&[*id, count.unwrap_or(*id)], Ty::U32)
            }
            Op::BarWarp { mask } => self.src(*mask, Ty::B32),
            Op::Shfl { dst, pred, a, b, c, mask, .. } => {
                self.is(*dst, RegTy::B32)?;
                self.opt(*pred, Ty::Pred)?;
                self.srcs(&[*a, *b, *c, *mask], Ty::B32)
            }
            Op::Vote { mode, dst, p, mask } => {
                self.reg(*dst, if *mode == VoteMode::Ballot { Ty::B32 } else { Ty::Pred })?;
                self.pred(*p)?;
                self.src(*mask, Ty::B32)
            }
            Op::Match { all, ty, dst, pred, a, mask } => {
                when(matches!(ty, Ty::B32 | Ty::B64) && (*all || pred.is_none()), "a match of this type")?;
                self.is(*dst, RegTy::B32)?;
                self.opt(*pred, Ty::Pred)?;
                self.src(*a, *ty)?;
                self.src(*mask, Ty::B32)
            }
            Op::Redux { ty, dst, a, mask, .. } => {
                when(matches!(ty, Ty::B32 | Ty::U32 | Ty::S32), "a reduction of this type")?;
                self.reg(*dst, *ty)?;
                self.srcs(&[*a, *mask], Ty::B32)
            }
            Op::Activemask { dst } => self.is(*dst, RegTy::B32),
            Op::Elect { dst, pred, mask } => {
                self.opt(*dst, Ty::B32)?;
                self.is(*pred, RegTy::Pred)?;
                self.src(*mask, Ty::B32)
            }
            Op::Mma { product, dsts, srcs } => {
                product.check()?;
                let [a, b, c, d] = product.registers();
                let metadata = usize::from(product.sparse.is_some());
                let count = a + b + c + metadata;
                when(dsts.len() == d && srcs.len() == count, "the registers of a matrix product")?;
                let (factors, rest) = srcs.split_at(a + b);
                let (sums, metadata) = rest.split_at(c);
                dsts.iter().try_for_each(|r| self.is(*r, product.d.reg()))?;
                self.srcs(factors, words(product.a))?;
                self.srcs(sums, words(product.c))?;
                self.srcs(metadata, Ty::B32)
            }
            Op::LdMatrix { space, dsts, addr, .. } => {
                when(matches!(dsts.len(), 1 | 2 | 4), "a load of so many matrices")?;
                when(matches!(space, Space::Shared | Space::Generic), "a load of matrices from this space")?;
                dsts.iter().try_for_each(|r| self.is(*r, RegTy::B32))?;
                self.address(*space, *addr)
            }
            Op::StMatrix { space, srcs, addr, .. } => {
                when(matches!(srcs.len(), 1 | 2 | 4), "a store of so many matrices")?;
                when(matches!(space, Space::Shared | Space::Generic), "a store of matrices to this space")?;
                self.srcs(srcs, Ty::B32)?;
                self.address(*space, *addr)
            }
            Op::MovMatrix { dst, a } => {
                self.is(*dst, RegTy::B32)?;
                self.src(*a, Ty::B32)
            }
            Op::Call { builtin, args, dst } => self.call(*builtin, args, *dst),
            Op::Nanosleep { ns } => self.src(*ns, Ty::U32),
            _ => Ok(()),
        }
    }

    fn call(&self, builtin: Builtin, args: &[Operand], dst: Option<Reg>) -> Check {
        let (params, result): (&[Ty], Option<Ty>) = match builtin {
            Builtin::Vprintf => (&[Ty::B64, Ty::B64], Some(Ty::B32)),
            Builtin::AssertFail => (&[Ty::B64, Ty::B64, Ty::B32, Ty::B64, Ty::B64], None),
            Builtin::Malloc => (&[Ty::B64], Some(Ty::B64)),
            Builtin::Free => (&[Ty::B64], None),
            Builtin::Launch => (&[Ty::B64, Ty::B64], Some(Ty::B32)),
            Builtin::Copy => (&[Ty::B64, Ty::B64, Ty::B64, Ty::B32, Ty::B64], Some(Ty::B32)),
            Builtin::Fill => (&[Ty::B64, Ty::B32, Ty::B64, Ty::B64], Some(Ty::B32)),
        };
        when(args.len() == params.len(), "a call's arguments")?;
        when(dst.is_none() || result.is_some(), "a call's result")?;
        self.opt(dst, result.unwrap_or(Ty::Pred))?;
        args.iter().zip(params).try_for_each(|(a, ty)| self.src(*a, *ty))
    }
}

/// So many bytes, as a type.
fn bytes(count: u8) -> Ty {
    match count {
        1 => Ty::B8,
        2 => Ty::B16,
        4 => Ty::B32,
        _ => Ty::B64,
    }
}

/// The registers of a matrix, as a type.
fn words(of: Element) -> Ty {
    if of.reg() == RegTy::B64 { Ty::B64 } else { Ty::B32 }
}

fn product(part: MulPart, ty: Ty) -> Result<Ty, String> {
    match (part, ty) {
        (MulPart::Wide, Ty::U16) => Ok(Ty::U32),
        (MulPart::Wide, Ty::S16) => Ok(Ty::S32),
        (MulPart::Wide, Ty::U32) => Ok(Ty::U64),
        (MulPart::Wide, Ty::S32) => Ok(Ty::S64),
        (MulPart::Wide, _) => Err("a wide product of this type".into()),
        _ if is_int(ty) => Ok(ty),
        _ => Err("a product of this type".into()),
    }
}
