//! What an instruction reads and writes.

use crate::ir::{Inst, Op, Operand, PredRef, Reg};

/// Calls `f` with every register that the instruction's operation reads (its guard not counted).
pub fn reads(op: &Op, f: &mut dyn FnMut(Reg)) {
    for operand in sources(op) {
        if let Operand::Reg(r) = operand {
            f(r);
        }
    }
    if let Some(p) = predicate(op) {
        f(p.reg);
    }
    match op {
        Op::AddCarry { cc_in: Some(r), .. } | Op::MadCarry { cc_in: Some(r), .. } => f(*r),
        _ => {}
    }
}

/// The predicate that an operation takes as an operand.
#[must_use]
pub fn predicate(op: &Op) -> Option<PredRef> {
    match op {
        Op::Setp { combine: Some((_, p)), .. } | Op::Set { combine: Some((_, p)), .. } => Some(*p),
        Op::Selp { p, .. } | Op::Vote { p, .. } => Some(*p),
        Op::Bar { pred, .. } => *pred,
        _ => None,
    }
}

/// The source operands in the order of the operation's fields; the base of an address among them.
#[must_use]
pub fn sources(op: &Op) -> Vec<Operand> {
    match op {
        Op::Mov { src, .. } | Op::Unpack { src, .. } => vec![*src],
        Op::Pack { srcs, .. } => srcs.clone(),
        Op::Special { .. } | Op::Fence | Op::Activemask { .. } | Op::Trap => vec![],
        Op::Int { a, b, .. }
        | Op::Mul { a, b, .. }
        | Op::AddCarry { a, b, .. }
        | Op::Bmsk { a, b, .. }
        | Op::Szext { a, b, .. }
        | Op::Float { a, b, .. }
        | Op::Setp { a, b, .. }
        | Op::Set { a, b, .. }
        | Op::Selp { a, b, .. }
        | Op::CvtPack { a, b, .. }
        | Op::CvtToFp8 { a, b, .. } => vec![*a, *b],
        Op::Mad { a, b, c, .. }
        | Op::MadCarry { a, b, c, .. }
        | Op::Sad { a, b, c, .. }
        | Op::Prmt { a, b, c, .. }
        | Op::Shf { a, b, c, .. }
        | Op::Lop3 { a, b, c, .. }
        | Op::Dot { a, b, c, .. }
        | Op::Video { a, b, c, .. }
        | Op::Fma { a, b, c, .. }
        | Op::Slct { a, b, c, .. } => vec![*a, *b, *c],
        Op::Mad24 { a, b, c, .. } => [Some(*a), Some(*b), *c].into_iter().flatten().collect(),
        Op::IntUn { a, .. }
        | Op::FloatUn { a, .. }
        | Op::Testp { a, .. }
        | Op::Cvt { a, .. }
        | Op::CvtFromFp8 { a, .. }
        | Op::Cvta { a, .. }
        | Op::Isspacep { a, .. } => vec![*a],
        Op::Bfe { a, pos, len, .. } => vec![*a, *pos, *len],
        Op::Bfi { a, b, pos, len, .. } => vec![*a, *b, *pos, *len],
        Op::Fns { mask, base, offset, .. } => vec![*mask, *base, *offset],
        Op::Ld { addr, .. } => vec![addr.base],
        Op::St { srcs, addr, .. } => {
            let mut list = srcs.clone();
            list.push(addr.base);
            list
        }
        Op::Atom { addr, b, c, .. } => [Some(addr.base), Some(*b), *c].into_iter().flatten().collect(),
        Op::CpAsync { dst, src, src_bytes, .. } => {
            [Some(dst.base), Some(src.base), *src_bytes].into_iter().flatten().collect()
        }
        Op::Bar { id, count, .. } => [Some(*id), *count].into_iter().flatten().collect(),
        Op::BarWarp { mask } | Op::Elect { mask, .. } => vec![*mask],
        Op::Shfl { a, b, c, mask, .. } => vec![*a, *b, *c, *mask],
        Op::Vote { mask, .. } => vec![*mask],
        Op::Match { a, mask, .. } | Op::Redux { a, mask, .. } => vec![*a, *mask],
        Op::Mma { srcs, .. } | Op::Image { srcs, .. } | Op::Transfer { srcs, .. } => srcs.clone(),
        Op::LdMatrix { addr, .. } => vec![addr.base],
        Op::StMatrix { srcs, addr, .. } => srcs.iter().copied().chain([addr.base]).collect(),
        Op::MovMatrix { a, .. } => vec![*a],
        Op::Call { args, .. } => args.clone(),
        Op::Nanosleep { ns } => vec![*ns],
    }
}

/// Registers that the operation writes.
#[must_use]
pub fn writes(op: &Op) -> Vec<Reg> {
    match op {
        Op::Mov { dst, .. }
        | Op::Pack { dst, .. }
        | Op::Special { dst, .. }
        | Op::Int { dst, .. }
        | Op::Mul { dst, .. }
        | Op::Mad { dst, .. }
        | Op::Mad24 { dst, .. }
        | Op::Sad { dst, .. }
        | Op::IntUn { dst, .. }
        | Op::Bfe { dst, .. }
        | Op::Bfi { dst, .. }
        | Op::Bmsk { dst, .. }
        | Op::Szext { dst, .. }
        | Op::Fns { dst, .. }
        | Op::Prmt { dst, .. }
        | Op::Shf { dst, .. }
        | Op::Lop3 { dst, .. }
        | Op::Dot { dst, .. }
        | Op::Video { dst, .. }
        | Op::Float { dst, .. }
        | Op::Fma { dst, .. }
        | Op::FloatUn { dst, .. }
        | Op::Testp { dst, .. }
        | Op::Set { dst, .. }
        | Op::Selp { dst, .. }
        | Op::Slct { dst, .. }
        | Op::Cvt { dst, .. }
        | Op::CvtPack { dst, .. }
        | Op::CvtToFp8 { dst, .. }
        | Op::CvtFromFp8 { dst, .. }
        | Op::Cvta { dst, .. }
        | Op::Isspacep { dst, .. }
        | Op::Vote { dst, .. }
        | Op::Redux { dst, .. }
        | Op::MovMatrix { dst, .. }
        | Op::Activemask { dst } => vec![*dst],
        Op::Mma { dsts, .. } | Op::LdMatrix { dsts, .. } | Op::Image { dsts, .. } => dsts.clone(),
        Op::AddCarry { dst, cc_out, .. } | Op::MadCarry { dst, cc_out, .. } => {
            [Some(*dst), *cc_out].into_iter().flatten().collect()
        }
        Op::Setp { dst, dst2, .. } => [Some(*dst), *dst2].into_iter().flatten().collect(),
        Op::Shfl { dst, pred, .. } | Op::Match { dst, pred, .. } => [Some(*dst), *pred].into_iter().flatten().collect(),
        Op::Unpack { dsts, .. } | Op::Ld { dsts, .. } => dsts.iter().copied().flatten().collect(),
        Op::Atom { dst, .. } | Op::Bar { dst, .. } | Op::Call { dst, .. } => dst.iter().copied().collect(),
        Op::Elect { dst, pred, .. } => [*dst, Some(*pred)].into_iter().flatten().collect(),
        Op::St { .. }
        | Op::StMatrix { .. }
        | Op::CpAsync { .. }
        | Op::Transfer { .. }
        | Op::Fence
        | Op::BarWarp { .. }
        | Op::Nanosleep { .. }
        | Op::Trap => vec![],
    }
}

/// Calls `f` with every register that the instruction reads: operation and guard.
pub fn inst_reads(inst: &Inst, f: &mut dyn FnMut(Reg)) {
    if let Some(p) = inst.guard {
        f(p.reg);
    }
    reads(&inst.op, f);
}
