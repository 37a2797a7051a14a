//! The machine that the `.approx` algorithms are written for: vectors of 32-bit lanes.
//!
//! [`super::approx`] states each approximation once, as a branch-free sequence of these operations. The interpreter runs
//! it on [`Scalar`], one lane at a time; a code generator implements [`Lanes`] by emitting the instruction for each
//! operation and is bit-equal by construction. Every float operation is IEEE 754 binary32 (binary64 in [`Lanes64`]),
//! rounded to nearest even, subnormals kept. Bits of a NaN are left open: callers make NaN results canonical.

/// Operations on vectors of 32-bit lanes.
pub trait Lanes {
    /// A vector of f32.
    type F: Copy;
    /// A vector of 32-bit integers.
    type I: Copy;
    /// A vector of truth values.
    type M: Copy;

    /// `v` in every lane.
    fn f(&mut self, v: f32) -> Self::F;
    /// `v` in every lane.
    fn i(&mut self, v: u32) -> Self::I;
    /// The bits of a float.
    fn bits(&mut self, a: Self::F) -> Self::I;
    /// The float with these bits.
    fn float(&mut self, a: Self::I) -> Self::F;
    /// A signed integer to the nearest float.
    fn int_to_float(&mut self, a: Self::I) -> Self::F;

    /// `a + b`.
    fn add(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// Square root.
    fn sqrt(&mut self, a: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(&mut self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a < b ? a : b`; so `b` if unordered (as `minps`).
    fn min(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`; so `b` if unordered (as `maxps`).
    fn max(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b`; false if unordered.
    fn lt(&mut self, a: Self::F, b: Self::F) -> Self::M;
    /// `a <= b`; false if unordered.
    fn le(&mut self, a: Self::F, b: Self::F) -> Self::M;
    /// `m ? a : b`.
    fn select(&mut self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// Wrapping `a + b`.
    fn iadd(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping `a - b`.
    fn isub(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << n`, `n` below 32.
    fn shl(&mut self, a: Self::I, n: u32) -> Self::I;
    /// Arithmetic `a >> n`, `n` below 32.
    fn sar(&mut self, a: Self::I, n: u32) -> Self::I;

    /// Subnormals to zero of the same sign. An engine that runs with hardware flushing may return `a`.
    fn flush(&mut self, a: Self::F) -> Self::F {
        let magnitude = self.abs(a);
        let least = self.f(f32::MIN_POSITIVE);
        let tiny = self.lt(magnitude, least);
        let zero = self.signed_zero(a);
        self.select(tiny, zero, a)
    }
    /// Sign bit cleared.
    fn abs(&mut self, a: Self::F) -> Self::F {
        let bits = self.bits(a);
        let mask = self.i(0x7fff_ffff);
        let bits = self.and(bits, mask);
        self.float(bits)
    }
    /// Zero with the sign of `a`.
    fn signed_zero(&mut self, a: Self::F) -> Self::F {
        let bits = self.bits(a);
        let mask = self.i(0x8000_0000);
        let bits = self.and(bits, mask);
        self.float(bits)
    }
}

/// Operations on vectors of 64-bit lanes, for the few approximations in f64.
pub trait Lanes64 {
    /// A vector of f64.
    type F: Copy;
    /// A vector of truth values.
    type M: Copy;

    /// `v` in every lane.
    fn f(&mut self, v: f64) -> Self::F;
    /// `a / b`.
    fn div(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// Square root.
    fn sqrt(&mut self, a: Self::F) -> Self::F;
    /// `a`'s bits and `mask`.
    fn and(&mut self, a: Self::F, mask: u64) -> Self::F;
    /// `a < b`; false if unordered.
    fn lt(&mut self, a: Self::F, b: Self::F) -> Self::M;
    /// `m ? a : b`.
    fn select(&mut self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// Subnormals to zero of the same sign.
    fn flush(&mut self, a: Self::F) -> Self::F {
        let magnitude = self.and(a, u64::MAX >> 1);
        let least = self.f(f64::MIN_POSITIVE);
        let tiny = self.lt(magnitude, least);
        let zero = self.and(a, 1 << 63);
        self.select(tiny, zero, a)
    }
}

/// One lane, computed by the host: the reference implementation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

impl Lanes for Scalar {
    type F = f32;
    type I = u32;
    type M = bool;

    fn f(&mut self, v: f32) -> f32 {
        v
    }
    fn i(&mut self, v: u32) -> u32 {
        v
    }
    fn bits(&mut self, a: f32) -> u32 {
        a.to_bits()
    }
    fn float(&mut self, a: u32) -> f32 {
        f32::from_bits(a)
    }
    fn int_to_float(&mut self, a: u32) -> f32 {
        a.cast_signed() as f32
    }
    fn add(&mut self, a: f32, b: f32) -> f32 {
        a + b
    }
    fn sub(&mut self, a: f32, b: f32) -> f32 {
        a - b
    }
    fn mul(&mut self, a: f32, b: f32) -> f32 {
        a * b
    }
    fn div(&mut self, a: f32, b: f32) -> f32 {
        a / b
    }
    fn sqrt(&mut self, a: f32) -> f32 {
        a.sqrt()
    }
    fn fma(&mut self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    fn min(&mut self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    fn max(&mut self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    fn lt(&mut self, a: f32, b: f32) -> bool {
        a < b
    }
    fn le(&mut self, a: f32, b: f32) -> bool {
        a <= b
    }
    fn select(&mut self, m: bool, a: f32, b: f32) -> f32 {
        if m { a } else { b }
    }
    fn iadd(&mut self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    fn isub(&mut self, a: u32, b: u32) -> u32 {
        a.wrapping_sub(b)
    }
    fn and(&mut self, a: u32, b: u32) -> u32 {
        a & b
    }
    fn or(&mut self, a: u32, b: u32) -> u32 {
        a | b
    }
    fn xor(&mut self, a: u32, b: u32) -> u32 {
        a ^ b
    }
    fn shl(&mut self, a: u32, n: u32) -> u32 {
        a << n
    }
    fn sar(&mut self, a: u32, n: u32) -> u32 {
        (a.cast_signed() >> n).cast_unsigned()
    }
}

impl Lanes64 for Scalar {
    type F = f64;
    type M = bool;

    fn f(&mut self, v: f64) -> f64 {
        v
    }
    fn div(&mut self, a: f64, b: f64) -> f64 {
        a / b
    }
    fn sqrt(&mut self, a: f64) -> f64 {
        a.sqrt()
    }
    fn and(&mut self, a: f64, mask: u64) -> f64 {
        f64::from_bits(a.to_bits() & mask)
    }
    fn lt(&mut self, a: f64, b: f64) -> bool {
        a < b
    }
    fn select(&mut self, m: bool, a: f64, b: f64) -> f64 {
        if m { a } else { b }
    }
}
