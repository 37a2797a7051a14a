//! The `.approx` and `.full` operations: bit-exact algorithms over [`Lanes`].
//!
//! Bounds are those of the PTX ISA manual, version 9.1, in the sections named; `tests/approx.rs` measures the errors over
//! sweeps of f32, and looks at the manual's tables of special values. All but `sin`, `cos` and the quotients were measured over
//! all of f32, as `SUNDIAL_EVERY_F32=1` makes the tests do.
//!
//! | operation | section | bound | method | measured |
//! |---|---|---|---|---|
//! | `div.approx`, `div.full` | 9.7.3.8 | 2 ulp; `approx` for divisors in [2^-126, 2^126] | IEEE division | 0 ulp |
//! | `rcp` | 9.7.3.13 | 1 ulp | IEEE division | 0 ulp |
//! | `sqrt` | 9.7.3.15 | 2^-23 relative | IEEE root | 2^-24 |
//! | `rsqrt` | 9.7.3.16 | 2^-22.9 relative | IEEE root, IEEE division | 2^-23.42 |
//! | `sin`, `cos` | 9.7.3.18, 19 | 2^-20.5 absolute in [-2π, 2π], 2^-14.7 in [-100π, 100π] | Cody–Waite by π/2, degrees 7 and 6 | 2^-22.47 |
//! | `lg2` | 9.7.3.20 | 2^-22 absolute in (1/2, 2), relative elsewhere | polynomial of degree 8 on [√½, √2) | 2^-22.79 |
//! | `ex2` | 9.7.3.21 | 2 ulp of the correctly rounded | polynomial of degree 6 on [-1/2, 1/2] | 1 ulp |
//! | `tanh` | 9.7.3.22 | 2^-11 relative; subnormals pass | continued fraction, clamped at 5 | 2^-13.28 |
//! | f64 `rcp`, `rsqrt` `.ftz` | 9.7.3.14, 17 | high 32 bits of the result | of the high 32 bits of the operand | |
//! | `tanh` in f16, bf16 | 9.7.4.9 | 2^-10.987, 2^-8 absolute | by way of f32 | |
//! | `ex2` in f16, bf16 | 9.7.4.10 | 2^-9.9, 2^-7 relative | by way of f32 | |

use super::lanes::{Lanes, Lanes64};
use crate::ir::{FloatOp, FloatUnOp, Precision};

/// 1.5 · 2^23: added to a number below 2^22 in magnitude, it leaves the nearest integer in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// A one-operand operation in f32 that has an approximate form; `None` for the others.
pub fn unary<L: Lanes>(l: &mut L, op: FloatUnOp, ftz: bool, x: L::F) -> Option<L::F> {
    Some(match op {
        FloatUnOp::Rcp(Precision::Approx) => rcp(l, ftz, x),
        FloatUnOp::Sqrt(Precision::Approx) => sqrt(l, ftz, x),
        FloatUnOp::Rsqrt(_) => rsqrt(l, ftz, x),
        FloatUnOp::Sin => sin(l, ftz, x),
        FloatUnOp::Cos => cos(l, ftz, x),
        FloatUnOp::Lg2 => lg2(l, ftz, x),
        FloatUnOp::Ex2 => ex2(l, ftz, x),
        FloatUnOp::Tanh => tanh(l, x),
        _ => return None,
    })
}

/// A two-operand operation in f32 that has an approximate form; `None` for the others.
pub fn binary<L: Lanes>(l: &mut L, op: FloatOp, ftz: bool, a: L::F, b: L::F) -> Option<L::F> {
    match op {
        FloatOp::Div(Precision::Approx) => Some(div_approx(l, ftz, a, b)),
        FloatOp::Div(Precision::Full) => Some(div_full(l, ftz, a, b)),
        _ => None,
    }
}

fn flush_if<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    if ftz { l.flush(x) } else { x }
}

/// `rcp.approx.f32`.
pub fn rcp<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let x = flush_if(l, ftz, x);
    let one = l.f(1.0);
    let r = l.div(one, x);
    flush_if(l, ftz, r)
}

/// `sqrt.approx.f32`.
pub fn sqrt<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let x = flush_if(l, ftz, x);
    l.sqrt(x)
}

/// `rsqrt.approx.f32`.
pub fn rsqrt<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let root = sqrt(l, ftz, x);
    let one = l.f(1.0);
    l.div(one, root)
}

/// `div.full.f32`.
pub fn div_full<L: Lanes>(l: &mut L, ftz: bool, a: L::F, b: L::F) -> L::F {
    let (a, b) = (flush_if(l, ftz, a), flush_if(l, ftz, b));
    let q = l.div(a, b);
    flush_if(l, ftz, q)
}

/// `div.approx.f32`: as hardware's `a * (1 / b)`, divisors above 2^126 give zero, or NaN for an infinite dividend.
pub fn div_approx<L: Lanes>(l: &mut L, ftz: bool, a: L::F, b: L::F) -> L::F {
    let q = div_full(l, ftz, a, b);
    let limit = l.f(f32::from_bits(0x7e80_0000));
    let magnitude = l.abs(b);
    let large = l.lt(limit, magnitude);
    let zero = l.signed_zero(b);
    let product = l.mul(a, zero);
    l.select(large, product, q)
}

/// Horner's scheme, highest coefficient first.
fn polynomial<L: Lanes>(l: &mut L, x: L::F, coefficients: &[u32]) -> L::F {
    let mut sum = l.f(f32::from_bits(coefficients[0]));
    for &c in &coefficients[1..] {
        let c = l.f(f32::from_bits(c));
        sum = l.fma(sum, x, c);
    }
    sum
}

/// `(2^f - 1) / f` on [-1/2, 1/2], then the 1.
const EX2: [u32; 7] = [0x3922_09c5, 0x3aaf_8448, 0x3c1d_952a, 0x3d63_57b6, 0x3e75_fdf0, 0x3f31_7218, 0x3f80_0000];

/// `ex2.approx.f32`: `2^n * 2^f`, n the nearest integer.
pub fn ex2<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let magic = l.f(ROUND);
    if ftz {
        // One exponent addition; overflow, NaN and underflow by selection.
        let shifted = l.add(x, magic);
        let n = l.sub(shifted, magic);
        let f = l.sub(x, n);
        let p = polynomial(l, f, &EX2);
        let (shifted, p) = (l.bits(shifted), l.bits(p));
        let exponent = l.shl(shifted, 23);
        let scaled = l.iadd(p, exponent);
        let scaled = l.float(scaled);
        let (top, bottom) = (l.f(128.0), l.f(-126.0));
        let infinity = l.f(f32::INFINITY);
        let special = l.add(x, infinity);
        let below = l.lt(x, top);
        let r = l.select(below, scaled, special);
        let under = l.lt(x, bottom);
        let zero = l.f(0.0);
        return l.select(under, zero, r);
    }
    // Two factors 2^(n/2), so that subnormal results are rounded by the last product.
    let (top, bottom) = (l.f(129.0), l.f(-151.0));
    let x = l.min(top, x);
    let x = l.max(bottom, x);
    let shifted = l.add(x, magic);
    let n = l.sub(shifted, magic);
    let f = l.sub(x, n);
    let p = polynomial(l, f, &EX2);
    let (shifted, base) = (l.bits(shifted), l.i(ROUND.to_bits()));
    let n = l.isub(shifted, base);
    let half = l.sar(n, 1);
    let rest = l.isub(n, half);
    let one = l.i(0x3f80_0000);
    let (half, rest) = (l.shl(half, 23), l.shl(rest, 23));
    let (half, rest) = (l.iadd(half, one), l.iadd(rest, one));
    let (half, rest) = (l.float(half), l.float(rest));
    let p = l.mul(p, half);
    l.mul(p, rest)
}

/// `log2(1 + t) / t` on [√½ - 1, √2 - 1].
const LG2: [u32; 8] =
    [0xbe12_2f9c, 0x3e6e_3c7a, 0xbe7f_411d, 0x3e93_1787, 0xbeb8_6f6f, 0x3ef6_3ab7, 0xbf38_aa96, 0x3fb8_aa3b];

/// `lg2.approx.f32`: `e + log2(m)`, m in [√½, √2).
pub fn lg2<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let least = l.f(f32::MIN_POSITIVE);
    let zero = l.f(0.0);
    let (normal, bias) = if ftz {
        (x, zero)
    } else {
        let small = l.lt(x, least);
        let scale = l.f(16_777_216.0);
        let scaled = l.mul(x, scale);
        let bias = l.f(-24.0);
        (l.select(small, scaled, x), l.select(small, bias, zero))
    };
    let bits = l.bits(normal);
    let root_half = l.i(0x3f35_04f3);
    let above = l.isub(bits, root_half);
    let e = l.sar(above, 23);
    let exponent = l.shl(e, 23);
    let m = l.isub(bits, exponent);
    let (m, e) = (l.float(m), l.int_to_float(e));
    let e = if ftz { e } else { l.add(e, bias) };
    let one = l.f(1.0);
    let t = l.sub(m, one);
    let q = polynomial(l, t, &LG2);
    let r = l.fma(t, q, e);

    let infinity = l.f(f32::INFINITY);
    let finite = l.lt(x, infinity);
    let r = l.select(finite, r, x);
    let (floor, lowest) = if ftz { (least, l.f(-f32::MIN_POSITIVE)) } else { (l.f(f32::from_bits(1)), zero) };
    let not_positive = l.lt(x, floor);
    let (minus_infinity, nan) = (l.f(f32::NEG_INFINITY), l.f(f32::NAN));
    // With ftz the least normal negative number is not flushed.
    let zeroish = if ftz { l.lt(lowest, x) } else { l.le(lowest, x) };
    let pole = l.select(zeroish, minus_infinity, nan);
    l.select(not_positive, pole, r)
}

/// `(sin(r)/r - 1) / r²` by r² on [0, (π/4)²], then the 1.
const SIN: [u32; 4] = [0xb94d_64d8, 0x3c08_8614, 0xbe2a_aaa9, 0x3f80_0000];
/// `(cos(r) - 1) / r²` by r² on [0, (π/4)²], then the 1.
const COS: [u32; 4] = [0xbab3_0f45, 0x3d2a_a528, 0xbeff_fffa, 0x3f80_0000];

/// `sin.approx.f32`. Beyond 6e6 in magnitude, where an ulp is no longer small against π, the result is that of zero.
pub fn sin<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let x = flush_if(l, ftz, x);
    circular(l, x, 0)
}

/// `cos.approx.f32`; see [`sin`].
pub fn cos<L: Lanes>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let x = flush_if(l, ftz, x);
    circular(l, x, 1)
}

/// `sin(x + quarter · π/2)`.
fn circular<L: Lanes>(l: &mut L, x: L::F, quarter: u32) -> L::F {
    let (limit, magnitude, zero) = (l.f(6.0e6), l.abs(x), l.f(0.0));
    let reducible = l.lt(magnitude, limit);
    let lost = l.mul(x, zero);
    let x = l.select(reducible, x, lost);

    let (scale, magic) = (l.f(std::f32::consts::FRAC_2_PI), l.f(ROUND));
    let shifted = l.fma(x, scale, magic);
    let k = l.sub(shifted, magic);
    // Both parts of -π/2 negative, so that r of -0 stays -0.
    let (high, low) = (l.f(f32::from_bits(0xbfc9_0fda)), l.f(f32::from_bits(0xb3a2_2169)));
    let r = l.fma(k, high, x);
    let r = l.fma(k, low, r);

    let square = l.mul(r, r);
    let s = polynomial(l, square, &SIN);
    let s = l.mul(s, r);
    let c = polynomial(l, square, &COS);

    let (bits, quarter) = (l.bits(shifted), l.i(quarter));
    let quadrant = l.iadd(bits, quarter);
    // Bit 0 chooses the cosine: as the sign of a one it can be compared with zero.
    let odd = l.shl(quadrant, 31);
    let one = l.i(0x3f80_0000);
    let odd = l.or(odd, one);
    let odd = l.float(odd);
    let odd = l.lt(odd, zero);
    let r = l.select(odd, c, s);

    let two = l.i(2);
    let sign = l.and(quadrant, two);
    let sign = l.shl(sign, 30);
    let r = l.bits(r);
    let r = l.xor(r, sign);
    l.float(r)
}

/// `tanh.approx.f32`: the continued fraction's seventh convergent. The sixth would do for f32, but not after rounding to f16.
pub fn tanh<L: Lanes>(l: &mut L, x: L::F) -> L::F {
    let u = l.mul(x, x);
    let numerator = polynomial(l, u, &[1.0, 378.0, 17325.0, 135_135.0].map(f32::to_bits));
    let denominator = polynomial(l, u, &[28.0, 3150.0, 62370.0, 135_135.0].map(f32::to_bits));
    let numerator = l.mul(numerator, x);
    let r = l.div(numerator, denominator);
    let (limit, magnitude) = (l.f(5.0), l.abs(x));
    let saturated = l.le(limit, magnitude);
    let zero = l.signed_zero(x);
    let (zero, one) = (l.bits(zero), l.i(0x3f80_0000));
    let one = l.or(zero, one);
    let one = l.float(one);
    l.select(saturated, one, r)
}

/// The upper word of an f64.
const HIGH: u64 = 0xffff_ffff_0000_0000;
/// The NaN that operations on upper words give.
const HIGH_NAN: u64 = 0x7fff_ffff_0000_0000;

/// The upper word of a result.
fn high<L: Lanes64>(l: &mut L, r: L::F) -> L::F {
    let (infinity, zero, nan) = (l.f(f64::INFINITY), l.f(0.0), l.f(f64::from_bits(HIGH_NAN)));
    let r = l.and(r, HIGH);
    let (below, above) = (l.lt(r, infinity), l.lt(zero, r));
    let large = l.select(above, r, nan);
    l.select(below, r, large)
}

/// `rcp.approx.ftz.f64`; its NaN is its own.
pub fn rcp_f64<L: Lanes64>(l: &mut L, x: L::F) -> L::F {
    let x = l.and(x, HIGH);
    let x = l.flush(x);
    let one = l.f(1.0);
    let r = l.div(one, x);
    let r = l.flush(r);
    high(l, r)
}

/// `rsqrt.approx.f64` (`ftz` false) and `rsqrt.approx.ftz.f64`, which looks at the upper words only, and whose NaN
/// is its own.
pub fn rsqrt_f64<L: Lanes64>(l: &mut L, ftz: bool, x: L::F) -> L::F {
    let x = if ftz {
        let x = l.and(x, HIGH);
        l.flush(x)
    } else {
        x
    };
    let root = l.sqrt(x);
    let one = l.f(1.0);
    let r = l.div(one, root);
    if ftz { high(l, r) } else { r }
}
