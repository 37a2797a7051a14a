//! One entry for every instruction that only computes: its operands in a fixed order, raw bits in, raw bits out.

use super::convert::{self, Conversion};
use super::video::{self, Video};
use super::{float, fp8, int};
use crate::ir::{BoolOp, Cmp, Op, Operand, PredRef, Reg, Ty};

/// Where an operand of an instruction comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A register or an immediate, as raw bits.
    Operand(Operand),
    /// A predicate, 0 or 1 after its negation.
    Pred(PredRef),
}

/// The operands and destinations of a computing instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Operands in the order in which [`eval`] takes them.
    pub sources: [Option<Source>; 4],
    /// Registers for the two results of [`eval`].
    pub dests: [Option<Reg>; 2],
}

/// Shape of `op`, or `None` if it does more than compute (memory, warp, control) or moves without computing
/// (`Mov`, `Pack`, `Unpack`, `Selp`, `Cvta`, `Isspacep`).
#[must_use]
pub fn shape(op: &Op) -> Option<Shape> {
    let one = |a: &Operand| [Some(Source::Operand(*a)), None, None, None];
    let two = |a: &Operand, b: &Operand| [Some(Source::Operand(*a)), Some(Source::Operand(*b)), None, None];
    let three = |a: &Operand, b: &Operand, c: &Operand| [a, b, c].map(|x| Some(Source::Operand(*x)));
    let four = |[a, b, c]: [Option<Source>; 3], d: Option<Source>| [a, b, c, d];
    let flag = |r: &Option<Reg>| r.map(|reg| Source::Pred(PredRef { reg, negate: false }));
    let (sources, first, second) = match op {
        Op::Int { dst, a, b, .. }
        | Op::Mul { dst, a, b, .. }
        | Op::Bmsk { dst, a, b, .. }
        | Op::Szext { dst, a, b, .. }
        | Op::Float { dst, a, b, .. }
        | Op::CvtPack { dst, a, b, .. }
        | Op::CvtToFp8 { dst, a, b, .. } => (two(a, b), dst, None),
        Op::Mad { dst, a, b, c, .. }
        | Op::Sad { dst, a, b, c, .. }
        | Op::Prmt { dst, a, b, c, .. }
        | Op::Shf { dst, a, b, c, .. }
        | Op::Lop3 { dst, a, b, c, .. }
        | Op::Dot { dst, a, b, c, .. }
        | Op::Video { dst, a, b, c, .. }
        | Op::Fma { dst, a, b, c, .. }
        | Op::Slct { dst, a, b, c, .. }
        | Op::Bfe { dst, a, pos: b, len: c, .. }
        | Op::Fns { dst, mask: a, base: b, offset: c } => (four(three(a, b, c), None), dst, None),
        Op::Mad24 { dst, a, b, c, .. } => {
            let [a, b, ..] = two(a, b);
            ([a, b, c.map(Source::Operand), None], dst, None)
        }
        Op::AddCarry { dst, a, b, cc_in, cc_out, .. } => {
            let [a, b, ..] = two(a, b);
            ([a, b, flag(cc_in), None], dst, *cc_out)
        }
        Op::MadCarry { dst, a, b, c, cc_in, cc_out, .. } => (four(three(a, b, c), flag(cc_in)), dst, *cc_out),
        Op::Bfi { dst, a, b, pos, len, .. } => (four(three(a, b, pos), Some(Source::Operand(*len))), dst, None),
        Op::IntUn { dst, a, .. }
        | Op::FloatUn { dst, a, .. }
        | Op::Testp { dst, a, .. }
        | Op::Cvt { dst, a, .. }
        | Op::CvtFromFp8 { dst, a, .. } => (one(a), dst, None),
        Op::Setp { dst, dst2, a, b, combine, .. } => {
            let [a, b, ..] = two(a, b);
            ([a, b, combine.map(|(_, p)| Source::Pred(p)), None], dst, *dst2)
        }
        Op::Set { dst, a, b, combine, .. } => {
            let [a, b, ..] = two(a, b);
            ([a, b, combine.map(|(_, p)| Source::Pred(p)), None], dst, None)
        }
        _ => return None,
    };
    Some(Shape { sources, dests: [Some(*first), second] })
}

/// Computes `op` on operands in the order of [`shape`] (absent ones 0). Bits above the operation's width are ignored.
/// The results are to be truncated to their registers: a narrow signed result of a conversion is sign-extended.
///
/// `None` if the operation does not exist (in this type), or is not one that only computes.
#[must_use]
pub fn eval(op: &Op, v: [u64; 4]) -> Option<[u64; 2]> {
    let [a, b, c, d] = v;
    let words = |x: u64| x as u32;
    let result = match *op {
        Op::Int { op, ty, sat, .. } => int::binary(op, ty, sat, a, b),
        Op::Mul { part, ty, .. } => int::mul(part, ty, a, b),
        Op::Mad { part, ty, sat, .. } => int::mad(part, ty, sat, a, b, c),
        Op::Mad24 { part, ty, sat, .. } => int::mad24(part, ty, sat, a, b, c),
        Op::AddCarry { sub, ty, cc_in, .. } => {
            // A difference without carry in has no borrow.
            let (r, carry) = int::add_carry(sub, ty, a, b, if cc_in.is_some() { c & 1 != 0 } else { sub });
            return Some([r, carry.into()]);
        }
        Op::MadCarry { part, ty, .. } => {
            let product = int::mul(part, ty, a, b);
            let (r, carry) = int::add_carry(false, ty, product, c, d & 1 != 0);
            return Some([r, carry.into()]);
        }
        Op::Sad { ty, .. } => int::sad(ty, a, b, c),
        Op::IntUn { op, ty, .. } => int::unary(op, ty, a),
        Op::Bfe { ty, .. } => int::bfe(ty, a, b, c),
        Op::Bfi { ty, .. } => int::bfi(ty, a, b, c, d),
        Op::Bmsk { clamp, .. } => int::bmsk(clamp, words(a), words(b)).into(),
        Op::Szext { clamp, ty, .. } => int::szext(clamp, ty.is_signed(), words(a), words(b)).into(),
        Op::Fns { .. } => int::fns(words(a), words(b), words(c).cast_signed()).into(),
        Op::Prmt { mode, .. } => int::prmt(mode, words(a), words(b), words(c)).into(),
        Op::Shf { left, wrap, .. } => int::shf(left, wrap, words(a), words(b), words(c)).into(),
        Op::Lop3 { lut, .. } => int::lop3(lut, words(a), words(b), words(c)).into(),
        Op::Dot { four, hi, a_signed, b_signed, .. } => {
            int::dot(four, hi, a_signed, b_signed, words(a), words(b), words(c)).into()
        }
        Op::Video { op, lanes, a_signed, b_signed, d_signed, sat, accumulate, mask, .. } => {
            let v = Video { op, lanes, a_signed, b_signed, d_signed, sat, accumulate, mask };
            video::video(v, words(a), words(b), words(c)).into()
        }
        Op::Float { op, ty, round, ftz, sat, .. } => float::binary(op, ty, round, ftz, sat, a, b)?,
        Op::Fma { ty, round, ftz, sat, relu, .. } => float::fma(ty, round, ftz, sat, relu, a, b, c)?,
        Op::FloatUn { op, ty, ftz, .. } => float::unary(op, ty, ftz, a)?,
        Op::Testp { class, ty, .. } => float::testp(class, ty, a)?.into(),
        Op::Setp { cmp, ty, ftz, combine, .. } => {
            let combined = |x: bool| combine_with(combine.map(|(op, _)| op), x, c & 1 != 0);
            let (low, high) = compare(cmp, ty, ftz, a, b);
            // Packed types: one result for each half; scalars: the comparison and its complement.
            return Some([combined(low).into(), combined(high.unwrap_or(!low)).into()]);
        }
        Op::Set { cmp, dst_ty, ty, ftz, combine, .. } => {
            let combined = |x: bool| combine_with(combine.map(|(op, _)| op), x, c & 1 != 0);
            let (low, high) = compare(cmp, ty, ftz, a, b);
            truth(dst_ty, combined(low), high.map(combined))
        }
        Op::Slct { ty, cty, ftz, .. } => {
            let chosen = match float::format(cty) {
                Some(f) => {
                    let c = if ftz { f.flush(c) } else { c };
                    float::holds(Cmp::Ge, float::order(f, ftz, c, 0))
                }
                None => int::value(cty, c) >= 0,
            };
            let r = if chosen { a } else { b };
            if ty.bits() < 64 { r & int::mask(ty) } else { r }
        }
        Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu, .. } => {
            convert::convert(Conversion { dst: dst_ty, src: src_ty, round, to_integral, ftz, sat, relu }, a)?
        }
        Op::CvtPack { dst_ty, src_ty, round, sat, relu, .. } => convert::pack(dst_ty, src_ty, round, sat, relu, a, b)?,
        Op::CvtToFp8 { format, src_ty, relu, .. } => fp8::pack(format, src_ty, relu, a, b)?,
        Op::CvtFromFp8 { format, relu, .. } => fp8::unpack(format, relu, a),
        _ => return None,
    };
    Some([result, 0])
}

fn combine_with(op: Option<BoolOp>, x: bool, p: bool) -> bool {
    match op {
        None => x,
        Some(BoolOp::And) => x & p,
        Some(BoolOp::Or) => x | p,
        Some(BoolOp::Xor) => x ^ p,
    }
}

/// Compares; the second result is that of the upper half of a packed type.
fn compare(cmp: Cmp, ty: Ty, ftz: bool, a: u64, b: u64) -> (bool, Option<bool>) {
    let Some(f) = float::format(ty) else {
        return (float::holds(cmp, Some(int::order(ty, a, b))), None);
    };
    let half = match ty {
        Ty::F16x2 | Ty::BF16x2 => 16,
        Ty::F32x2 => 32,
        _ => return (float::holds(cmp, float::order(f, ftz, a & int::mask(ty), b & int::mask(ty))), None),
    };
    let mask = (1 << half) - 1;
    let at = |shift: u32| float::holds(cmp, float::order(f, ftz, a >> shift & mask, b >> shift & mask));
    (at(0), Some(at(half)))
}

/// Truth in a register: one in a floating-point type, all ones in an integer type.
fn truth(ty: Ty, low: bool, high: Option<bool>) -> u64 {
    let one = |x: bool| match float::format(ty) {
        Some(f) => u64::from(x) * f.one(),
        None if x => int::mask(ty),
        None => 0,
    };
    match (ty, high) {
        (Ty::F16x2 | Ty::BF16x2, Some(high)) => one(low) | one(high) << 16,
        _ => one(low),
    }
}
