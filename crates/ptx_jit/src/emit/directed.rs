//! Arithmetic in f32 and f64 that rounds down, up or towards zero (`add.rm.f64`), of scalars and of vectors.
//!
//! The processor rounds to nearest throughout. The sign of what the nearest result lacks is known exactly, from a remainder that `fma` or the
//! sum itself leaves, and says whether the result is one step off. Remainders that could vanish below the least number are taken of operands
//! scaled by powers of two, which changes no sign. Infinite remainders are those of finite operands whose result overflowed; operands
//! that are infinite, and NaN, leave NaN, which is not below zero nor above.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use ptx::ir::Round;

use super::Emit;

/// An operation on floats that can round otherwise than to nearest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Directed {
    Add,
    Mul,
    Div,
    /// Of the first operand.
    Sqrt,
}

/// When operands are scaled, and by what: exponents of two, by the format's precision and least number.
struct Scales {
    /// Products below this are scaled, twice by `product`.
    small_product: i32,
    product: i32,
    /// Dividends and radicands below this are scaled, by twice `half`.
    small: i32,
    half: i32,
}

fn scales(ty: Type) -> Scales {
    if ty.lane_type() == types::F64 {
        Scales { small_product: -960, product: 537, small: -900, half: 100 }
    } else {
        Scales { small_product: -100, product: 75, small: -70, half: 30 }
    }
}

impl Emit<'_, '_> {
    /// `op` of floats, rounded as `round` says; `None` if to nearest with ties away from zero, which no arithmetic has.
    ///
    /// NaN results are of any kind.
    pub(super) fn directed(&mut self, op: Directed, round: Round, x: Value, y: Value) -> Option<Value> {
        // Up is down with the opposite sign; a root has no opposite.
        let up = round == Round::Rp;
        let turn = up && op != Directed::Sqrt;
        let opposite = |e: &mut Self, v: Value| if turn { e.b.ins().fneg(v) } else { v };
        let x = opposite(self, x);
        let y = if op == Directed::Add { opposite(self, y) } else { y };
        let (nearest, lacks) = match op {
            Directed::Add => self.sum_and_rest(x, y),
            Directed::Mul => self.product_and_rest(x, y),
            Directed::Div => self.quotient_and_rest(x, y),
            Directed::Sqrt => self.root_and_rest(x),
        };
        let zero = self.float_const(nearest, 0.0);
        let (above, below) =
            (self.b.ins().fcmp(FloatCC::LessThan, lacks, zero), self.b.ins().fcmp(FloatCC::LessThan, zero, lacks));
        let bits = self.integer_bits(nearest);
        let one = self.constant(bits, 1);
        let (inwards, outwards) = (self.b.ins().isub(bits, one), self.b.ins().iadd(bits, one));
        let bits = match round {
            Round::Rz => {
                let (negative, positive) = (
                    self.b.ins().fcmp(FloatCC::LessThan, nearest, zero),
                    self.b.ins().fcmp(FloatCC::LessThan, zero, nearest),
                );
                let (too_high, too_low) = (self.b.ins().band(above, positive), self.b.ins().band(below, negative));
                let far = self.b.ins().bor(too_high, too_low);
                self.pick(far, inwards, bits)
            }
            // Roots are not negative.
            Round::Rp if op == Directed::Sqrt => self.pick(below, outwards, bits),
            Round::Rm | Round::Rp => {
                let wide = self.b.func.dfg.value_type(bits).lane_type() == types::I64;
                let sign: u64 = if wide { 1 << 63 } else { 1 << 31 };
                let none = self.constant(bits, 0);
                let negative = self.compare(IntCC::SignedLessThan, bits, none);
                // Zero of either sign lacks something only where it is negative: the next number below is the same.
                let down = self.pick(negative, outwards, inwards);
                let bits = self.pick(above, down, bits);
                if op == Directed::Add {
                    // An exact zero is negative, unless both terms are positive zeros.
                    let (p, q) = (self.integer_bits(x), self.integer_bits(y));
                    let signs = self.b.ins().bor(p, q);
                    let sign = self.constant(bits, sign);
                    let signed = self.b.ins().band(signs, sign);
                    let nothing = self.b.ins().fcmp(FloatCC::Equal, nearest, zero);
                    self.pick(nothing, signed, bits)
                } else {
                    bits
                }
            }
            Round::Rn | Round::Rna => return None,
        };
        let r = self.floating(bits);
        Some(opposite(self, r))
    }

    /// A sum, and what it lacks.
    fn sum_and_rest(&mut self, x: Value, y: Value) -> (Value, Value) {
        let sum = self.b.ins().fadd(x, y);
        let (p, q) = (self.b.ins().fabs(x), self.b.ins().fabs(y));
        let swap = self.b.ins().fcmp(FloatCC::LessThan, p, q);
        let (large, small) = (self.float_pick(swap, y, x), self.float_pick(swap, x, y));
        let taken = self.b.ins().fsub(sum, large);
        (sum, self.b.ins().fsub(small, taken))
    }

    /// A product, and a number of the sign of what it lacks.
    fn product_and_rest(&mut self, x: Value, y: Value) -> (Value, Value) {
        let product = self.b.ins().fmul(x, y);
        let s = scales(self.b.func.dfg.value_type(x));
        let factor = self.scale_if_below(product, s.small_product, s.product);
        let (x, y) = (self.b.ins().fmul(x, factor), self.b.ins().fmul(y, factor));
        let scaled = self.b.ins().fmul(product, factor);
        let scaled = self.b.ins().fmul(scaled, factor);
        let scaled = self.b.ins().fneg(scaled);
        (product, self.b.ins().fma(x, y, scaled))
    }

    /// A quotient, and a number of the sign of what it lacks.
    fn quotient_and_rest(&mut self, x: Value, y: Value) -> (Value, Value) {
        let quotient = self.b.ins().fdiv(x, y);
        let s = scales(self.b.func.dfg.value_type(x));
        let factor = self.scale_if_below(x, s.small, 2 * s.half);
        // Of divisor and quotient the one that is small for certain.
        let one = self.float_const(x, 1.0);
        let magnitude = self.b.ins().fabs(y);
        let below = self.b.ins().fcmp(FloatCC::LessThan, magnitude, one);
        let (first, second) = (self.float_pick(below, factor, one), self.float_pick(below, one, factor));
        let (divisor, scaled) = (self.b.ins().fmul(y, first), self.b.ins().fmul(quotient, second));
        let dividend = self.b.ins().fmul(x, factor);
        let scaled = self.b.ins().fneg(scaled);
        let rest = self.b.ins().fma(scaled, divisor, dividend);
        // The remainder has the sign of what lacks, times that of the divisor.
        let (bits, divisor) = (self.integer_bits(rest), self.integer_bits(y));
        let wide = self.b.func.dfg.value_type(bits).lane_type() == types::I64;
        let sign = self.constant(bits, if wide { 1 << 63 } else { 1 << 31 });
        let turned = self.b.ins().band(divisor, sign);
        let bits = self.b.ins().bxor(bits, turned);
        (quotient, self.floating(bits))
    }

    /// A square root, and a number of the sign of what it lacks.
    fn root_and_rest(&mut self, x: Value) -> (Value, Value) {
        let root = self.b.ins().sqrt(x);
        let s = scales(self.b.func.dfg.value_type(x));
        let half = self.scale_if_below(x, s.small, s.half);
        let scaled = self.b.ins().fmul(root, half);
        let radicand = self.b.ins().fmul(x, half);
        let radicand = self.b.ins().fmul(radicand, half);
        let negative = self.b.ins().fneg(scaled);
        (root, self.b.ins().fma(negative, scaled, radicand))
    }

    /// Two to the power `by` where `v` is nearer to zero than two to the power `small`, else one.
    fn scale_if_below(&mut self, v: Value, small: i32, by: i32) -> Value {
        let magnitude = self.b.ins().fabs(v);
        let limit = self.float_const(v, 2f64.powi(small));
        let below = self.b.ins().fcmp(FloatCC::LessThan, magnitude, limit);
        let (factor, one) = (self.float_const(v, 2f64.powi(by)), self.float_const(v, 1.0));
        self.float_pick(below, factor, one)
    }
}
