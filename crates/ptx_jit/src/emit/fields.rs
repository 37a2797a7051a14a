//! Fields, bytes and halfwords of words in machine code: what packs, unpacks and sums them.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{Op, Operand, RegTy, Ty, VideoOp};

use super::Emit;
use super::alu::Parts;

/// Bits of a word: so many, from there on, as a number with or without sign.
#[derive(Clone, Copy)]
struct Field {
    at: u8,
    bits: u8,
    signed: bool,
}

impl Field {
    fn mask(self) -> u32 {
        (u32::MAX >> (32 - self.bits)) << self.at
    }
}

impl Emit<'_, '_> {
    /// Native code of such an operation, if there is.
    pub(super) fn native_fields(&mut self, op: &Op, v: &[Parts], vector: bool) -> Option<Parts> {
        Some(match op {
            Op::Sad { ty, .. } if ty.bits() == 32 => {
                let signed = ty.is_signed();
                self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    let (high, low) = if signed {
                        (e.b.ins().smax(a, b), e.b.ins().smin(a, b))
                    } else {
                        (e.b.ins().umax(a, b), e.b.ins().umin(a, b))
                    };
                    let difference = e.b.ins().isub(high, low);
                    e.b.ins().iadd(c, difference)
                })
            }
            // Those with lengths that are known are shifts, and are elsewhere.
            Op::Bfe { ty, .. } if ty.bits() == 32 => {
                let sources = [(&v[0], RegTy::B32), (&v[1], RegTy::B32), (&v[2], RegTy::B32)];
                self.lanewise(&sources, RegTy::B32, vector, |e, s| e.extracted(*ty, s[0], s[1], s[2]))
            }
            Op::Bfi { ty, pos: Operand::Imm(pos), len: Operand::Imm(len), .. } => {
                let bits = u64::from(ty.bits());
                let kept = if bits == 64 { u64::from(u32::MAX) } else { 0xff };
                let (pos, len) = (pos & kept, len & kept);
                if pos >= bits {
                    return Some(v[1].clone());
                }
                let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 } << pos;
                self.map2(&v[0], &v[1], |e, a, b| {
                    let moved = e.b.ins().ishl_imm_u(a, pos as i64);
                    e.inserted(moved, b, field)
                })
            }
            Op::Prmt { mode: None, c: Operand::Imm(c), .. } => {
                let selectors = [0, 4, 8, 12].map(|at| (c >> at & 0xf) as u8);
                self.map2(&v[0], &v[1], |e, a, b| e.permuted(a, b, selectors))
            }
            Op::Dot { four, hi, a_signed, b_signed, .. } => {
                let (parts, bits, first) = if *four { (4, 8, 0) } else { (2, 16, if *hi { 2 } else { 0 }) };
                let (a_signed, b_signed) = (*a_signed, *b_signed);
                self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    (0..parts).fold(c, |sum, n| {
                        let x = e.number_in(a, Field { at: bits * n, bits, signed: a_signed });
                        let y = e.number_in(b, Field { at: 8 * (first + n), bits: 8, signed: b_signed });
                        let product = e.b.ins().imul(x, y);
                        e.b.ins().iadd(sum, product)
                    })
                })
            }
            Op::Video { op, lanes, a_signed, b_signed, d_signed, sat, accumulate, mask, .. } => {
                let bits = 32 / lanes;
                let range = sat.then(|| range(bits, *d_signed));
                let shown = (0..*lanes).filter(|lane| mask >> lane & 1 != 0).map(|lane| lane * bits);
                let shown: Vec<u8> = shown.collect();
                self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    shown.iter().fold(c, |result, &at| {
                        let x = e.number_in(a, Field { at, bits, signed: *a_signed });
                        let y = e.number_in(b, Field { at, bits, signed: *b_signed });
                        let part = e.video(*op, x, y, range);
                        if *accumulate {
                            return e.b.ins().iadd(result, part);
                        }
                        let moved = e.b.ins().ishl_imm_u(part, i64::from(at));
                        let field = Field { at, bits, signed: false }.mask();
                        e.inserted(moved, result, field.into())
                    })
                })
            }
            _ => return None,
        })
    }

    /// A field of 32-bit lanes, as 32-bit numbers.
    fn number_in(&mut self, v: Value, Field { at, bits, signed }: Field) -> Value {
        let top = self.b.ins().ishl_imm_u(v, i64::from(32 - bits - at));
        let down = i64::from(32 - bits);
        if signed { self.b.ins().sshr_imm_u(top, down) } else { self.b.ins().ushr_imm_u(top, down) }
    }

    /// `below`, but with the bits of `field` from `above`.
    fn inserted(&mut self, above: Value, below: Value, field: u64) -> Value {
        let (inside, outside) = (self.constant(above, field), self.constant(above, !field));
        let (above, below) = (self.b.ins().band(above, inside), self.b.ins().band(below, outside));
        self.b.ins().bor(above, below)
    }

    /// Bits of a scalar, where and how many is known when it runs only.
    fn extracted(&mut self, ty: Ty, a: Value, pos: Value, len: Value) -> Value {
        // Of 64 bits none is missing: what lies above a word is its sign, or zeros.
        let a = self.extend(a, ty);
        let (pos, len) = (self.b.ins().band_imm_u(pos, 0xff), self.b.ins().band_imm_u(len, 0xff));
        let (last, all) = (self.i32(63), self.i32(64));
        let down = self.b.ins().umin(pos, last);
        let moved = if ty.is_signed() { self.b.ins().sshr(a, down) } else { self.b.ins().ushr(a, down) };
        // Shifts by 64 are by none.
        let len = self.b.ins().umin(len, all);
        let unused = self.b.ins().isub(all, len);
        let top = self.b.ins().ishl(moved, unused);
        let field = if ty.is_signed() { self.b.ins().sshr(top, unused) } else { self.b.ins().ushr(top, unused) };
        let field = self.b.ins().ireduce(types::I32, field);
        let zero = self.i32(0);
        self.b.ins().select(len, field, zero)
    }

    /// Bytes of `b` above `a`: those that the low three bits of selectors name, or with the fourth their signs.
    fn permuted(&mut self, a: Value, b: Value, selectors: [u8; 4]) -> Value {
        if self.is_vector(a) && selectors.iter().all(|selector| selector & 8 == 0) {
            let of = |byte: u8| {
                let (lane, selector) = (byte / 4 * 4, selectors[usize::from(byte % 4)]);
                // The second vector's bytes are numbered behind the first's.
                lane + (selector & 3) + if selector & 4 == 0 { 0 } else { 16 }
            };
            let bytes: Vec<u8> = (0..16).map(of).collect();
            let mask = self.b.func.dfg.immediates.push(bytes.into());
            let (a, b) = (self.cast(types::I8X16, a), self.cast(types::I8X16, b));
            let picked = self.b.ins().shuffle(a, b, mask);
            return self.cast(types::I32X4, picked);
        }
        let mut result = self.constant(a, 0);
        for (to, selector) in (0..4).zip(selectors) {
            let from = if selector & 4 == 0 { a } else { b };
            let byte = Field { at: 8 * (selector & 3), bits: 8, signed: false };
            let part = if selector & 8 == 0 {
                let part = self.number_in(from, byte);
                self.b.ins().ishl_imm_u(part, 8 * to)
            } else {
                let signs = self.number_in(from, Field { at: byte.at + 7, bits: 1, signed: true });
                self.band_const(signs, 0xff << (8 * to))
            };
            result = self.b.ins().bor(result, part);
        }
        result
    }

    /// One part of a packed operation, of numbers of at most 16 bits and a sign.
    fn video(&mut self, op: VideoOp, x: Value, y: Value, range: Option<(i32, i32)>) -> Value {
        let result = match op {
            VideoOp::Add => self.b.ins().iadd(x, y),
            VideoOp::Sub => self.b.ins().isub(x, y),
            VideoOp::Avrg => {
                // Halves round away from zero: one is added to sums that are not negative.
                let sum = self.b.ins().iadd(x, y);
                let negative = self.b.ins().sshr_imm_u(sum, 31);
                let one = self.constant(sum, 1);
                let rounded = self.b.ins().iadd(sum, one);
                let rounded = self.b.ins().iadd(rounded, negative);
                self.b.ins().sshr_imm_u(rounded, 1)
            }
            VideoOp::AbsDiff => {
                let (high, low) = (self.b.ins().smax(x, y), self.b.ins().smin(x, y));
                self.b.ins().isub(high, low)
            }
            VideoOp::Min => self.b.ins().smin(x, y),
            VideoOp::Max => self.b.ins().smax(x, y),
        };
        let Some((least, most)) = range else { return result };
        let (least, most) = (self.constant(result, least as u32 as u64), self.constant(result, most as u32 as u64));
        let result = self.b.ins().smax(result, least);
        self.b.ins().smin(result, most)
    }
}

/// What numbers of so many bits can be.
fn range(bits: u8, signed: bool) -> (i32, i32) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}
