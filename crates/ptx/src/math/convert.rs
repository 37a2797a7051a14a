//! `cvt`: between all integer and floating-point types.

use super::float;
use super::int;
use super::soft::{self, Format, Number};
use crate::ir::{Round, Ty};

/// The modifiers of a conversion; fields as in [`crate::ir::Op::Cvt`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named for the modifiers of the instruction")]
pub struct Conversion {
    pub dst: Ty,
    pub src: Ty,
    pub round: Option<Round>,
    pub to_integral: bool,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
}

/// Converts `a`. Integer results are sign- or zero-extended to 64 bits. `None` if there is no such conversion.
#[must_use]
pub fn convert(c: Conversion, a: u64) -> Option<u64> {
    if c.dst == c.src && matches!(c.dst, Ty::F16x2 | Ty::BF16x2 | Ty::F32x2) {
        let element = match c.dst {
            Ty::F16x2 => Ty::F16,
            Ty::BF16x2 => Ty::BF16,
            _ => Ty::F32,
        };
        let packed = c.dst;
        let c = Conversion { dst: element, src: element, ..c };
        return float::elementwise(packed, [a, 0, 0], |[a, ..]| convert(c, a));
    }
    match (float::format(c.dst), float::format(c.src)) {
        (None, None) => Some(integer_to_integer(c, a)),
        (None, Some(from)) => Some(float_to_integer(c, from, a)),
        (Some(to), None) => {
            let number = Number::integer(int::value(c.src, a));
            let r = to.round(number, c.round.unwrap_or(Round::Rn));
            Some(if c.sat { to.saturate(r) } else { r })
        }
        (Some(to), Some(from)) => Some(float_to_float(c, to, from, a)),
    }
}

fn integer_to_integer(c: Conversion, a: u64) -> u64 {
    let value = int::value(c.src, a);
    let value = if c.sat { int::clamp(c.dst, value) } else { value };
    int::value(c.dst, value as u64) as u64
}

fn float_to_integer(c: Conversion, from: Format, a: u64) -> u64 {
    // Only single precision flushes.
    let a = if c.ftz && from == soft::F32 { from.flush(a) } else { a };
    match soft::to_integer(from.unpack(a), c.round.unwrap_or(Round::Rz)) {
        Some(value) => int::clamp(c.dst, value) as u64,
        None if from == soft::F64 || c.dst.bits() == 64 => int::value(c.dst, 1 << (c.dst.bits() - 1)) as u64,
        None => 0,
    }
}

fn float_to_float(c: Conversion, to: Format, from: Format, a: u64) -> u64 {
    // To f16 only the result could be flushed, and f16 is not: the least f32 still decides a directed rounding.
    let a = if c.ftz && from == soft::F32 && to != soft::F16 { from.flush(a) } else { a };
    let mode = c.round.unwrap_or(Round::Rn);
    let r = if to == from && !c.to_integral {
        to.canonical(a)
    } else if c.to_integral {
        let integral = from.integral(a, mode);
        to.round(from.unpack(integral), Round::Rn)
    } else {
        to.round(from.unpack(a), mode)
    };
    let r = if c.ftz && to == soft::F32 { to.flush(r) } else { r };
    let r = if c.sat { to.saturate(r) } else { r };
    if c.relu { to.relu(r) } else { r }
}

/// Two floats into a packed half type, `a` to the upper half; `sat` clamps to the largest finite magnitude (`.satfinite`).
#[must_use]
pub fn pack(dst: Ty, src: Ty, round: Round, sat: bool, relu: bool, a: u64, b: u64) -> Option<u64> {
    let (to, from) = (float::format(dst)?, float::format(src)?);
    let one = |x: u64| {
        let r = to.round(from.unpack(x), round);
        let r = if sat && to.magnitude(r) == to.infinity(false) { to.max_finite(r >> to.sign_shift() != 0) } else { r };
        if relu { to.relu(r) } else { r }
    };
    let half = to.sign_shift() + 1;
    Some(one(a) << half | one(b))
}

/// An f32 rounded to 10 bits of fraction, to nearest even; infinities stay, NaNs stay NaNs.
#[must_use]
pub fn tf32(bits: u32) -> u32 {
    const KEPT: u32 = !0x1fff;
    match bits & 0x7fff_ffff {
        magnitude if magnitude > 0x7f80_0000 => super::NAN_F32 & KEPT,
        _ => bits.wrapping_add(0xfff + (bits >> 13 & 1)) & KEPT,
    }
}
