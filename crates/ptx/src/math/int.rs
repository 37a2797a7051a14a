//! Integer and bit instructions on raw bits.
//!
//! Operands may carry anything above the width of the type; results are zero-extended to 64 bits unless said otherwise.

use std::cmp::Ordering;

use crate::ir::{IntOp, IntUnOp, MulPart, Ty};

/// All ones in the width of `ty`.
#[must_use]
pub fn mask(ty: Ty) -> u64 {
    u64::MAX >> (64 - ty.bits().min(64))
}

/// The value of the low bits of `a`, by the type's width and sign.
#[must_use]
pub fn value(ty: Ty, a: u64) -> i128 {
    let unused = 64 - ty.bits().min(64);
    if ty.is_signed() { i128::from((a << unused).cast_signed() >> unused) } else { i128::from(a & mask(ty)) }
}

/// The nearest value that `ty` can hold.
#[must_use]
pub fn clamp(ty: Ty, v: i128) -> i128 {
    let bits = ty.bits().min(64);
    if ty.is_signed() { v.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { v.clamp(0, (1 << bits) - 1) }
}

/// Compares by the type's sign.
#[must_use]
pub fn order(ty: Ty, a: u64, b: u64) -> Ordering {
    value(ty, a).cmp(&value(ty, b))
}

/// A two-operand operation.
#[must_use]
pub fn binary(op: IntOp, ty: Ty, sat: bool, a: u64, b: u64) -> u64 {
    let (x, y) = (value(ty, a), value(ty, b));
    let wide = match op {
        IntOp::Add if sat => clamp(ty, x + y),
        IntOp::Sub if sat => clamp(ty, x - y),
        IntOp::Add => x + y,
        IntOp::Sub => x - y,
        IntOp::Div => x.checked_div(y).unwrap_or(-1),
        IntOp::Rem => x.checked_rem(y).unwrap_or(-1),
        IntOp::Min => x.min(y),
        IntOp::Max => x.max(y),
        IntOp::And => x & y,
        IntOp::Or => x | y,
        IntOp::Xor => x ^ y,
        IntOp::Shl => {
            let n = b as u32;
            if n >= ty.bits() { 0 } else { x << n }
        }
        IntOp::Shr => x >> (b as u32).min(ty.bits()),
    };
    wide as u64 & mask(ty)
}

/// A one-operand operation.
#[must_use]
pub fn unary(op: IntUnOp, ty: Ty, a: u64) -> u64 {
    let x = value(ty, a);
    let (bits, m) = (ty.bits(), mask(ty));
    let raw = a & m;
    match op {
        IntUnOp::Abs => x.unsigned_abs() as u64 & m,
        IntUnOp::Neg => raw.wrapping_neg() & m,
        IntUnOp::Not => !raw & m,
        IntUnOp::Cnot => u64::from(raw == 0),
        IntUnOp::Popc => raw.count_ones().into(),
        IntUnOp::Clz => (raw.leading_zeros() - (64 - bits)).into(),
        IntUnOp::Brev => raw.reverse_bits() >> (64 - bits),
        IntUnOp::Bfind | IntUnOp::BfindShiftAmt => {
            let magnitude = if x < 0 { !raw & m } else { raw };
            if magnitude == 0 {
                return u64::from(u32::MAX);
            }
            let position = 63 - magnitude.leading_zeros();
            if op == IntUnOp::Bfind { position.into() } else { (bits - 1 - position).into() }
        }
    }
}

/// Part of a product; `Wide` is twice as wide as `ty`.
#[must_use]
pub fn mul(part: MulPart, ty: Ty, a: u64, b: u64) -> u64 {
    // Signed 64-bit products fit i128; unsigned ones wrap there to the right bits.
    let product = value(ty, a).wrapping_mul(value(ty, b)).cast_unsigned();
    match part {
        MulPart::Lo => product as u64 & mask(ty),
        MulPart::Hi => (product >> ty.bits()) as u64 & mask(ty),
        MulPart::Wide => product as u64 & wide_mask(ty),
    }
}

fn wide_mask(ty: Ty) -> u64 {
    u64::MAX >> (64 - (2 * ty.bits()).min(64))
}

/// Part of a product, plus `c`.
#[must_use]
pub fn mad(part: MulPart, ty: Ty, sat: bool, a: u64, b: u64, c: u64) -> u64 {
    let product = mul(part, ty, a, b);
    if sat {
        return clamp(ty, value(ty, product) + value(ty, c)) as u64 & mask(ty);
    }
    product.wrapping_add(c) & if part == MulPart::Wide { wide_mask(ty) } else { mask(ty) }
}

/// 24-bit multiply, plus `c`.
#[must_use]
pub fn mad24(part: MulPart, ty: Ty, sat: bool, a: u64, b: u64, c: u64) -> u64 {
    let low24 = |x: u64| {
        let x = (x as u32) << 8;
        if ty.is_signed() { i64::from(x.cast_signed() >> 8) } else { i64::from(x >> 8) }
    };
    let product = low24(a).wrapping_mul(low24(b));
    let product = if part == MulPart::Hi { product >> 16 } else { product };
    let product = product as u64 & mask(ty);
    if sat {
        return clamp(ty, value(ty, product) + value(ty, c)) as u64 & mask(ty);
    }
    product.wrapping_add(c) & mask(ty)
}

/// `a + b + carry`, or `a + !b + carry` (`sub`): the result and the carry out. A subtraction's carry is the complement of its
/// borrow, as hardware has it.
#[must_use]
pub fn add_carry(sub: bool, ty: Ty, a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (a, b) = (u128::from(a & mask(ty)), u128::from(if sub { !b } else { b } & mask(ty)));
    let r = a + b + u128::from(carry);
    (r as u64 & mask(ty), r > u128::from(mask(ty)))
}

/// `c + |a - b|`.
#[must_use]
pub fn sad(ty: Ty, a: u64, b: u64, c: u64) -> u64 {
    c.wrapping_add((value(ty, a) - value(ty, b)).unsigned_abs() as u64) & mask(ty)
}

/// Position and length of a bit field: their low 8 bits, but in 64-bit types all 32.
fn field(ty: Ty, pos: u64, len: u64) -> (u32, u32) {
    let kept = if ty.bits() == 64 { u32::MAX } else { 0xff };
    (pos as u32 & kept, len as u32 & kept)
}

/// Bit field extract.
#[must_use]
pub fn bfe(ty: Ty, a: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = field(ty, pos, len);
    if len == 0 {
        return 0;
    }
    // Above the top of the operand there are copies of the sign, or zeros.
    let end = pos.saturating_add(len).min(ty.bits());
    let x = value(ty, a);
    let field = x >> pos.min(ty.bits());
    let kept = end.saturating_sub(pos);
    if kept == 0 {
        // The field lies wholly above the operand.
        return field as u64 & mask(ty);
    }
    let unused = 128 - kept;
    let field = if ty.is_signed() {
        field << unused >> unused
    } else {
        (field.cast_unsigned() << unused >> unused).cast_signed()
    };
    field as u64 & mask(ty)
}

/// Bit field insert.
#[must_use]
pub fn bfi(ty: Ty, a: u64, b: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = field(ty, pos, len);
    let ones = if len >= 64 { u128::from(u64::MAX) } else { (1 << len) - 1 };
    let field = if pos >= 64 { 0 } else { (ones << pos) as u64 };
    let moved = if pos >= 64 { 0 } else { a << pos };
    ((b & !field) | (moved & field)) & mask(ty)
}

/// Bit mask of width `b` at `a`.
#[must_use]
pub fn bmsk(clamp: bool, a: u32, b: u32) -> u32 {
    let (start, width) = (a & 31, b & 31);
    if clamp && a >= 32 {
        return 0;
    }
    let low = u32::MAX << start;
    let overflow = start + width >= 32 || (clamp && b >= 32);
    let high = if overflow { 0 } else { u32::MAX << (start + width) };
    low & !high
}

/// Sign- or zero-extends from bit `b`.
#[must_use]
pub fn szext(clamp: bool, signed: bool, a: u32, b: u32) -> u32 {
    let width = b & 31;
    if clamp && b >= 32 {
        return a;
    }
    let above = u32::MAX << width;
    let sign = signed && width != 0 && a >> (width - 1) & 1 != 0;
    (a & !above) | if sign { above } else { 0 }
}

/// Position of the n-th set bit of `mask` counted from `base` (up if `offset` is positive), or all ones; 0 for the least `offset`, as
/// hardware has it.
#[must_use]
pub fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if offset == i32::MIN {
        return 0;
    }
    let is_set = |position: u32| position < 32 && mask >> position & 1 != 0;
    if offset == 0 {
        return if is_set(base) { base } else { u32::MAX };
    }
    let (mut position, mut left) = (base, offset.unsigned_abs());
    while position < 32 {
        if is_set(position) {
            left -= 1;
            if left == 0 {
                return position;
            }
        }
        position = if offset > 0 { position + 1 } else { position.wrapping_sub(1) };
    }
    u32::MAX
}

/// Byte permute; modes as in [`crate::ir::Op::Prmt`].
#[must_use]
pub fn prmt(mode: Option<u8>, a: u32, b: u32, c: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |n: u32| (bytes >> (8 * (n & 7))) as u32 & 0xff;
    let k = c & 3;
    let pick = |d: u32| match mode {
        None => {
            let selector = c >> (4 * d) & 0xf;
            let x = byte(selector);
            match (selector & 8, x & 0x80) {
                (0, _) => x,
                (_, 0) => 0,
                _ => 0xff,
            }
        }
        Some(0) => byte(k + d),
        Some(1) => byte(k.wrapping_sub(d)),
        Some(2) => byte(k),
        Some(3) => byte(d.max(k)),
        Some(4) => byte(d.min(k)),
        _ => byte(2 * (k & 1) + (d & 1)),
    };
    (0..4).fold(0, |r, d| r | pick(d) << (8 * d))
}

/// Funnel shift of `{b:a}`.
#[must_use]
pub fn shf(left: bool, wrap: bool, a: u32, b: u32, c: u32) -> u32 {
    let n = if wrap { c & 31 } else { c.min(32) };
    let both = u64::from(b) << 32 | u64::from(a);
    if left { (both << n >> 32) as u32 } else { (both >> n) as u32 }
}

/// Three-input logic.
#[must_use]
pub fn lop3(lut: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8).filter(|i| lut >> i & 1 != 0).fold(0, |r, i| {
        let term = |x: u32, on: bool| if on { x } else { !x };
        r | (term(a, i & 4 != 0) & term(b, i & 2 != 0) & term(c, i & 1 != 0))
    })
}

/// Dot product of bytes (`four`), or of halfwords of `a` with two bytes of `b`, plus `c`.
#[must_use]
pub fn dot(four: bool, hi: bool, a_signed: bool, b_signed: bool, a: u32, b: u32, c: u32) -> u32 {
    let part = |x: u32, bits: u32, n: u32, signed: bool| {
        let top = x << (32 - bits * (n + 1));
        if signed { top.cast_signed() >> (32 - bits) } else { (top >> (32 - bits)).cast_signed() }
    };
    let (parts, width, first) = if four { (4, 8, 0) } else { (2, 16, if hi { 2 } else { 0 }) };
    (0..parts).fold(c, |sum, n| {
        let product = part(a, width, n, a_signed).wrapping_mul(part(b, 8, first + n, b_signed));
        sum.wrapping_add(product.cast_unsigned())
    })
}
