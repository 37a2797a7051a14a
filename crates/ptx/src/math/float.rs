//! Floating-point instructions on raw bits of f16, bf16, f32 and f64.
//!
//! Rounding to nearest in f32 and f64 uses the host's operations, all else [`super::soft`].

use std::cmp::Ordering;

use super::approx;
use super::lanes::Scalar;
use super::soft::{self, Format};
use crate::ir::{Cmp, FloatOp, FloatUnOp, Precision, Round, Ty};

/// The format of a scalar floating-point type, or of the elements of a packed one.
#[must_use]
pub fn format(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => soft::F16,
        Ty::BF16 | Ty::BF16x2 => soft::BF16,
        Ty::F32 | Ty::F32x2 => soft::F32,
        Ty::F64 => soft::F64,
        _ => return None,
    })
}

/// Applies `f` to the elements of a packed type, or to the value of a scalar one.
pub fn elementwise(ty: Ty, v: [u64; 3], f: impl Fn([u64; 3]) -> Option<u64>) -> Option<u64> {
    let half = match ty {
        Ty::F16x2 | Ty::BF16x2 => 16,
        Ty::F32x2 => 32,
        _ => return f(v.map(|x| x & super::int::mask(ty))),
    };
    let mask = (1u64 << half) - 1;
    let low = f(v.map(|x| x & mask))?;
    let high = f(v.map(|x| x >> half & mask))?;
    Some(low | high << half)
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}
fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// Result stage common to all: canonical NaN, flushing, clamping.
fn finish(f: Format, bits: u64, ftz: bool, sat: bool) -> u64 {
    let bits = f.canonical(bits);
    let bits = if ftz { f.flush(bits) } else { bits };
    if sat { f.saturate(bits) } else { bits }
}

/// A two-operand operation; `None` if it does not exist in `ty`.
#[must_use]
pub fn binary(op: FloatOp, ty: Ty, round: Round, ftz: bool, sat: bool, a: u64, b: u64) -> Option<u64> {
    let f = format(ty)?;
    elementwise(ty, [a, b, 0], |[a, b, _]| {
        let (a, b) = if ftz { (f.flush(a), f.flush(b)) } else { (a, b) };
        let r = match op {
            FloatOp::Add => add(f, round, a, b),
            // A NaN's sign does not matter here: the result is canonical.
            FloatOp::Sub => add(f, round, a, b ^ f.sign(true)),
            FloatOp::Mul => match (f, round) {
                (soft::F32, Round::Rn) => (f32_of(a) * f32_of(b)).to_bits().into(),
                (soft::F64, Round::Rn) => (f64_of(a) * f64_of(b)).to_bits(),
                _ => f.mul(a, b, round),
            },
            FloatOp::Div(Precision::Ieee(round)) => match (f, round) {
                (soft::F32, Round::Rn) => (f32_of(a) / f32_of(b)).to_bits().into(),
                (soft::F64, Round::Rn) => (f64_of(a) / f64_of(b)).to_bits(),
                _ => f.div(a, b, round),
            },
            FloatOp::Div(_) if f == soft::F32 => {
                approx::binary(&mut Scalar, op, ftz, f32_of(a), f32_of(b))?.to_bits().into()
            }
            FloatOp::Div(_) => f.div(a, b, Round::Rn),
            FloatOp::Min => return Some(finish(f, extreme(f, a, b, false, false), ftz, sat)),
            FloatOp::Max => return Some(finish(f, extreme(f, a, b, true, false), ftz, sat)),
            FloatOp::MinNan => extreme(f, a, b, false, true),
            FloatOp::MaxNan => extreme(f, a, b, true, true),
            FloatOp::Copysign => return Some(f.magnitude(b) | (a & f.sign(true))),
        };
        Some(finish(f, r, ftz, sat))
    })
}

fn add(f: Format, round: Round, a: u64, b: u64) -> u64 {
    match (f, round) {
        (soft::F32, Round::Rn) => (f32_of(a) + f32_of(b)).to_bits().into(),
        (soft::F64, Round::Rn) => (f64_of(a) + f64_of(b)).to_bits(),
        _ => f.add(a, b, round),
    }
}

/// An integer that orders like the number; -0 below +0. Not for NaN.
fn key(f: Format, bits: u64) -> i64 {
    let magnitude = f.magnitude(bits).cast_signed();
    if bits >> f.sign_shift() & 1 != 0 { -magnitude - 1 } else { magnitude }
}

/// Minimum or maximum.
fn extreme(f: Format, a: u64, b: u64, max: bool, nan: bool) -> u64 {
    match (f.is_nan(a), f.is_nan(b)) {
        (false, false) => {
            if (key(f, a) > key(f, b)) == max {
                a
            } else {
                b
            }
        }
        (true, true) => f.nan,
        _ if nan => f.nan,
        (true, false) => b,
        (false, true) => a,
    }
}

/// Fused multiply-add; `None` if `ty` is not a floating-point type.
#[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
#[must_use]
pub fn fma(ty: Ty, round: Round, ftz: bool, sat: bool, relu: bool, a: u64, b: u64, c: u64) -> Option<u64> {
    let f = format(ty)?;
    elementwise(ty, [a, b, c], |v| {
        let [a, b, c] = if ftz { v.map(|x| f.flush(x)) } else { v };
        let r = match (f, round) {
            (soft::F32, Round::Rn) => f32_of(a).mul_add(f32_of(b), f32_of(c)).to_bits().into(),
            (soft::F64, Round::Rn) => f64_of(a).mul_add(f64_of(b), f64_of(c)).to_bits(),
            _ => f.fma(a, b, c, round),
        };
        let r = finish(f, r, ftz, sat);
        Some(if relu { f.relu(r) } else { r })
    })
}

/// A one-operand operation; `None` if it does not exist in `ty`.
#[must_use]
pub fn unary(op: FloatUnOp, ty: Ty, ftz: bool, a: u64) -> Option<u64> {
    let f = format(ty)?;
    elementwise(ty, [a, 0, 0], |[a, ..]| {
        let a = if ftz { f.flush(a) } else { a };
        let r = match op {
            FloatUnOp::Abs => f.magnitude(a),
            FloatUnOp::Neg => a ^ f.sign(true),
            FloatUnOp::Sqrt(Precision::Ieee(round)) => match (f, round) {
                (soft::F32, Round::Rn) => f32_of(a).sqrt().to_bits().into(),
                (soft::F64, Round::Rn) => f64_of(a).sqrt().to_bits(),
                _ => f.sqrt(a, round),
            },
            FloatUnOp::Rcp(Precision::Ieee(round)) => match (f, round) {
                (soft::F32, Round::Rn) => (1.0 / f32_of(a)).to_bits().into(),
                (soft::F64, Round::Rn) => (1.0 / f64_of(a)).to_bits(),
                _ => f.div(f.one(), a, round),
            },
            // Upper words, with a NaN of their own.
            FloatUnOp::Rcp(_) if f == soft::F64 => return Some(approx::rcp_f64(&mut Scalar, f64_of(a)).to_bits()),
            FloatUnOp::Rsqrt(_) if f == soft::F64 && ftz => {
                return Some(approx::rsqrt_f64(&mut Scalar, ftz, f64_of(a)).to_bits());
            }
            FloatUnOp::Rsqrt(_) if f == soft::F64 => approx::rsqrt_f64(&mut Scalar, ftz, f64_of(a)).to_bits(),
            _ if f == soft::F64 => return None,
            _ if f == soft::F32 => approx::unary(&mut Scalar, op, ftz, f32_of(a))?.to_bits().into(),
            // In the half formats by way of f32, whose subnormals stay: bf16 has the range of f32.
            _ => {
                let wide = soft::F32.round(f.unpack(a), Round::Rn);
                let r = approx::unary(&mut Scalar, op, false, f32_of(wide))?;
                f.round(soft::F32.unpack(r.to_bits().into()), Round::Rn)
            }
        };
        Some(finish(f, r, ftz, false))
    })
}

/// `testp`, classes as in [`crate::ir::Op::Testp`].
#[must_use]
pub fn testp(class: u8, ty: Ty, a: u64) -> Option<bool> {
    let f = format(ty)?;
    let magnitude = f.magnitude(a);
    let normal = (1u64 << f.fraction_bits)..f.infinity(false);
    Some(match class {
        0 => magnitude < f.infinity(false),
        1 => magnitude == f.infinity(false),
        2 => magnitude <= f.infinity(false),
        3 => magnitude > f.infinity(false),
        // Zero counts as normal.
        4 => magnitude == 0 || normal.contains(&magnitude),
        5 => magnitude != 0 && magnitude < normal.start,
        _ => return None,
    })
}

/// Compares two numbers; `None` if unordered.
#[must_use]
pub fn order(f: Format, ftz: bool, a: u64, b: u64) -> Option<Ordering> {
    if f.is_nan(a) || f.is_nan(b) {
        return None;
    }
    let (a, b) = if ftz { (f.flush(a), f.flush(b)) } else { (a, b) };
    if f.magnitude(a) | f.magnitude(b) == 0 { Some(Ordering::Equal) } else { Some(key(f, a).cmp(&key(f, b))) }
}

/// Whether a comparison holds, given the order of its operands.
#[must_use]
pub fn holds(cmp: Cmp, order: Option<Ordering>) -> bool {
    let unordered = order.is_none();
    match cmp {
        Cmp::Eq => order == Some(Ordering::Equal),
        Cmp::Ne => !unordered && order != Some(Ordering::Equal),
        Cmp::Lt => order == Some(Ordering::Less),
        Cmp::Le => !unordered && order != Some(Ordering::Greater),
        Cmp::Gt => order == Some(Ordering::Greater),
        Cmp::Ge => !unordered && order != Some(Ordering::Less),
        Cmp::Equ => unordered || order == Some(Ordering::Equal),
        Cmp::Neu => order != Some(Ordering::Equal),
        Cmp::Ltu => unordered || order == Some(Ordering::Less),
        Cmp::Leu => order != Some(Ordering::Greater),
        Cmp::Gtu => unordered || order == Some(Ordering::Greater),
        Cmp::Geu => order != Some(Ordering::Less),
        Cmp::Num => !unordered,
        Cmp::Nan => unordered,
    }
}
